"""What scripts/results.py makes of comparisons, and that docs/results/ has a place for each."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adlro.catalogue.clusters import load_cluster

ROOT = Path(__file__).parent.parent
WINDOWS = 12


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts/results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["results"] = module  # its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def answer(results: ModuleType, command: Sequence[str]) -> dict[str, Any]:
    """What `adlro compare --json` might say: sjf an hour faster on every window, fcfs as fast as fcfs-easy."""
    policies = command[command.index("-p") + 1].split(",")
    hours = {name: [10.0 + index - (name == "sjf") for index in range(WINDOWS)] for name in policies}
    per_seed = {
        name: {key: [0.0] * WINDOWS for key in (*results.MEASURES, "jobs")}
        | {"jct_mean_s": [3600 * hour for hour in values]}
        for name, values in hours.items()
    }
    found = {name: {"per_seed": values} for name, values in per_seed.items()}
    return {"result": {"policies": found, "load": [0.5] * WINDOWS, "seeds": [*range(WINDOWS)]}, "seconds": 1.0}


@pytest.fixture
def small(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment of four policies on two lists that takes no time; allox is too late on the second."""
    only = ("fcfs-easy", "fcfs", "sjf", "allox")
    monkeypatch.setitem(results.EXPERIMENTS, "small", results.Experiment("Small", "", {"a": ["x", "y"]}, only=only))
    monkeypatch.setattr(
        results, "run", lambda command, _limit: None if {"allox", "y"} <= {*command} else answer(results, command)
    )


def row_of(markdown: str, policy: str) -> list[str]:
    return next(line.split(" | ") for line in markdown.splitlines() if f"`{policy}`" in line and line.startswith("|"))


@pytest.mark.usefixtures("small")
def test_a_policy_that_wins_on_every_window_is_better_and_the_best(results: ModuleType, tmp_path: Path) -> None:
    markdown = results.table(results.EXPERIMENTS["small"], results.outcome("small", tmp_path))
    row = row_of(markdown, "sjf")
    assert row[1] == "14.5"  # hours: the mean of 9 to 20
    assert row[3] == "−6.5 %"  # one hour of 15.5
    assert row[6:8] == ["better", "best"]
    assert row_of(markdown, "fcfs")[6:8] == ["no difference shown", "no"]


@pytest.mark.usefixtures("small")
def test_a_policy_that_was_too_slow_is_named_below_the_table_and_not_in_it(results: ModuleType, tmp_path: Path) -> None:
    found = results.outcome("small", tmp_path)
    assert "allox" not in found.values
    assert "Left out: `allox` (more than 10 min)." in results.table(results.EXPERIMENTS["small"], found)


@pytest.mark.usefixtures("small")
def test_what_is_kept_is_not_run_again(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = results.outcome("small", tmp_path)
    monkeypatch.setattr(results, "run", lambda *_: pytest.fail("run again"))
    assert results.outcome("small", tmp_path) == first
    assert json.loads(next(tmp_path.glob("*together.json")).read_text())["seconds"] == 1.0


def test_every_table_of_the_document_comes_from_an_experiment_and_is_there(results: ModuleType) -> None:
    document = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/results").glob("*.md"))
    for name in results.EXPERIMENTS:
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        assert document.count(begin) == document.count(end) == 1, name
        assert "| `fcfs-" in document.split(begin)[1].split(end)[0], name


def test_a_table_is_written_between_its_marks_and_nowhere_else(
    results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGES", tmp_path)
    (tmp_path / "a.md").write_text("before\n<!-- philly -->\nold\n<!-- end of philly -->\nafter\n")
    (tmp_path / "b.md").write_text("<!-- sia -->\nold\n<!-- end of sia -->\n")
    results.write("philly", "new")
    assert (tmp_path / "a.md").read_text() == "before\n<!-- philly -->\nnew\n<!-- end of philly -->\nafter\n"
    assert "old" in (tmp_path / "b.md").read_text()
    with pytest.raises(SystemExit, match=r"0 pages .* place for kth"):
        results.write("kth", "new")


@pytest.mark.parametrize(("file", "gpus"), [("supercloud.toml", 32), ("kth_sp2.toml", 100)])
def test_the_clusters_made_for_the_results_have_the_gpus_that_the_document_says(file: str, gpus: int) -> None:
    assert load_cluster(str(ROOT / "examples" / file)).gpu_count == gpus
