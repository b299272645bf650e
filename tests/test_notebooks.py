"""The notebooks of examples/notebooks: they run from top to bottom, and are stored without outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

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


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_from_top_to_bottom(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "TMPDIR"):
        folder = tmp_path / name.lower()
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    notebook = read(file)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=LONGEST_S, startup_timeout=LONGEST_S, resources=where).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    for text in SHOWN[file.stem]:
        assert text in shown
