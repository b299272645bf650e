"""The notebooks of examples/notebooks: they run from top to bottom, and are stored without outputs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "examples/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_S = 300  # for one cell, on a busy machine that compiles; usually it takes a few seconds

SHOWN = {
    "compare_on_your_history": ("DataFrame on mine, 30 jobs each, 8 windows", "report.html"),
    "train_and_look_inside": ("Training of adlro, seed 0: 2,048 steps", "GPU model"),
    "write_a_policy": ("save_the_fast_ones", "60 jobs, 60 finished"),
}
"""What their outputs must have in them."""


def read(file: Path) -> Any:
    """A notebook."""
    return nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]


def test_there_are_three_notebooks() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SHOWN)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_outputs(file: Path) -> None:
    for cell in read(file).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count, cell.metadata) == ([], None, {})


RUN = f"""
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {{"metadata": {{"path": sys.argv[2]}}}}
NotebookClient(notebook, timeout={LONGEST_S}, startup_timeout={LONGEST_S}, resources=where).execute()
nbformat.write(notebook, sys.argv[3])
"""
"""In a process of its own: the client leaves event loops open, which other tests would hear of."""


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_from_top_to_bottom(file: Path, tmp_path: Path) -> None:
    environment = dict(os.environ)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "TMPDIR"):
        folder = tmp_path / name.lower()
        folder.mkdir()
        environment[name] = str(folder)
    done = tmp_path / "done.ipynb"
    command = [sys.executable, "-c", RUN, str(file), str(tmp_path), str(done)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    outputs = [output for cell in read(done).cells if cell.cell_type == "code" for output in cell.outputs]
    shown = "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    for text in SHOWN[file.stem]:
        assert text in shown
