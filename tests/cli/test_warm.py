"""adlro warm: what it says, and how it ends."""

import json
from pathlib import Path

import pytest

from adlro.cli.app import run
from adlro.core import code_cache

FAST = ["--policy", "fcfs", "--fallback", "fcfs"]


def test_it_compiles_what_a_daemon_needs_and_the_second_time_says_that_nothing_was_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["warm", *FAST, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["failed"] == []
    assert "decisions of fcfs" in first["steps"]
    assert Path(first["cache"]) == code_cache.folder_in_use()
    assert run(["warm", *FAST]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Everything was compiled already")
    assert "compiling" not in said.err


def test_a_policy_of_ones_own_that_fails_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text("def choose(view):\n    raise ValueError('no')\n")
    assert run(["warm", "--policy", f"{file}:choose", "--fallback", "fcfs"]) == 1
    assert "predictions with" in capsys.readouterr().err


def test_a_cache_that_cannot_be_kept_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_cache, "outlasts_this_process", lambda: False)
    assert run(["warm", *FAST]) == 1
    assert "XDG_CACHE_HOME" in capsys.readouterr().err


def test_a_policy_that_is_not_there_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["warm", "--policy", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
