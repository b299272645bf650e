"""docs/python.md: its blocks run, print what is shown below them, and use every public name."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import adlro

PAGE = Path(__file__).parent.parent / "docs/python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 10
    for number, (code, shown) in enumerate(blocks):
        file = tmp_path / f"block{number}.py"
        file.write_text(code)
        told = io.StringIO()
        with contextlib.redirect_stdout(told), monkeypatch.context() as patch:
            if "@adlro.compiled" in code:  # nobody needs the compiled function of this file again
                patch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "cache"))
            exec(compile(code, os.fspath(file), "exec"), names)
        assert told.getvalue().startswith(shown.rstrip("\n"))
    assert (tmp_path / "differences.png").exists()
    assert (tmp_path / "out/report.html").exists()


def test_the_page_shows_every_public_name_at_work() -> None:
    used = set(re.findall(r"\badlro\.(\w+)", PAGE.read_text(encoding="utf-8")))
    assert set(adlro.__all__) <= used
