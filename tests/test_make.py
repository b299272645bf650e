"""`make test` runs its stages in order, stops at the first that fails and says which one it was."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.parts import program

ROOT = Path(__file__).parent.parent
TOOLS = ("adlro", "lint-imports", "mkdocs", "mypy", "pip", "pytest", "python", "ruff")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder with the Makefile, in which every tool succeeds and does nothing."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "mkdocs.yml").touch()
    for tool in [f".venv/bin/{name}" for name in TOOLS] + ["scripts/test_parts.sh"]:
        set_tool(tmp_path / tool, "exit 0")
    (tmp_path / ".venv/.dev").touch()  # newer than what it depends on, so nothing is installed
    (tmp_path / ".venv/.demo").touch()
    return tmp_path


def set_tool(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def make(house: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = [program("make"), *targets]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, check=False)


def stages(house: Path) -> list[str]:
    listed = re.search(r"run all checks: (.+)$", make(house, "help").stdout, re.MULTILINE)
    assert listed is not None
    return listed[1].split()


def test_every_stage_runs_in_order_and_is_a_target_of_its_own(house: Path) -> None:
    done = make(house, "test")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"stage '(\w+)' passed", done.stdout) == stages(house)
    assert done.stdout.endswith("make test: all stages passed\n")
    for stage in stages(house):
        assert make(house, stage).returncode == 0


def test_a_failed_installation_is_a_failed_stage_too(house: Path) -> None:
    (house / ".venv/.dev").unlink()
    set_tool(house / ".venv/bin/python", "echo no such package >&2; exit 1")
    done = make(house, "test")
    assert done.returncode != 0
    assert "no such package" in done.stderr
    assert "make test: stage 'setup' failed (pip), see above. Rerun it alone with: make setup" in done.stderr


@pytest.mark.parametrize(
    ("stage", "tool"),
    [
        ("parts", "scripts/test_parts.sh"),
        ("style", "ruff"),
        ("types", "mypy"),
        ("layers", "lint-imports"),
        ("docs", "mkdocs"),
        ("compile", "adlro"),
        ("pytest", "pytest"),
    ],
)
def test_a_stage_that_fails_is_named_with_its_tool_and_ends_the_run(house: Path, stage: str, tool: str) -> None:
    path = house / tool if "/" in tool else house / ".venv/bin" / tool
    set_tool(path, "echo what the tool found >&2; exit 1")
    done = make(house, "test")
    assert done.returncode != 0
    assert "what the tool found" in done.stdout + done.stderr
    assert f"make test: stage '{stage}' failed ({tool}), see above. Rerun it alone with: make {stage}" in done.stderr
    names = stages(house)
    assert re.findall(r"stage '(\w+)' passed", done.stdout) == names[: names.index(stage)]
    assert "all stages passed" not in done.stdout
