"""A sweep into one table: every point once, resumable, the same however it was interrupted."""

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tests.learn.small import SMALL

import adlro
from adlro.core.errors import CatalogueError, ConfigError
from adlro.experiment.sweep import points_of, read_sweep
from adlro.experiment.sweep_table import JOURNAL

GRID: dict[str, Any] = {
    "seeds": 2,
    "runs": {"cluster": ["paper16", "gavel108"], "load": [0.7, 1.1], "policy": ["fcfs", "sjf"], "jobs": 12},
}


class Ended(Exception):  # noqa: N818  (a sweep that a user ends)
    pass


def rows_of(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(table).to_pylist()
    return found


def test_a_grid_has_a_row_for_each_point_and_seed_with_the_measures_of_compare(tmp_path: Path) -> None:
    found = adlro.sweep(GRID, tmp_path / "grid.parquet")
    rows = rows_of(found.table)
    assert (found.rows, found.new, len(rows)) == (16, 16, 16)
    assert len({(row["cluster"], row["load"], row["policy"], row["seed"]) for row in rows}) == 16
    alone = adlro.compare("gavel108", "paper", "sjf", seeds=2, job_count=12, load=1.1)
    wanted = [each.jct_mean_s for each in alone.metrics["sjf"]]
    of_point = [row for row in rows if (row["cluster"], row["load"], row["policy"]) == ("gavel108", 1.1, "sjf")]
    assert [row["jct_mean_s"] for row in of_point] == wanted
    assert [row["offered_load"] for row in of_point] == list(alone.load)


def test_a_sweep_that_was_ended_goes_on_and_has_the_same_table(tmp_path: Path) -> None:
    whole, table = tmp_path / "whole.parquet", tmp_path / "ended.parquet"
    adlro.sweep(GRID, whole)

    def end(_what: str, done: int, _total: int) -> None:
        if done == 5:
            raise Ended

    with pytest.raises(Ended):
        adlro.sweep(GRID, table, progress=end)
    journal = Path(f"{table}{JOURNAL}")
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 5
    journal.write_text("".join(lines)[:-20])  # the last line was cut off when the process was killed
    assert adlro.sweep(GRID, table, threads=1).new == 12
    assert table.read_bytes() == whole.read_bytes()
    assert not journal.exists()


def test_a_sweep_with_more_values_does_only_what_is_new(tmp_path: Path) -> None:
    table, own = tmp_path / "grid.parquet", tmp_path / "own.toml"
    workload = Path(__file__).parents[2] / "examples" / "my_workload.toml"
    own.write_text(workload.read_text())
    wanted = {"seeds": 2, "runs": {"workload": str(own), "policy": ["fcfs"], "jobs": 12}}
    assert adlro.sweep(wanted, table).new == 2
    wanted["runs"]["policy"] = ["fcfs", "sjf"]  # type: ignore[index]
    assert adlro.sweep(wanted, table).new == 2
    assert [row["policy"] for row in rows_of(table)] == ["fcfs", "fcfs", "sjf", "sjf"]
    own.write_text(own.read_text() + "\n# another file\n")
    assert adlro.sweep(wanted, table).new == 4


def test_a_random_search_draws_the_same_points_again_within_their_ranges() -> None:
    axes = {"load": {"low": 0.5, "high": 1.5}, "rate": {"low": 1e-5, "high": 1e-1, "log": True}, "policy": ["a", "b"]}
    wanted = read_sweep({"search": "random", "samples": 200, "runs": {}})
    found = points_of(axes, wanted, "x")
    assert found == points_of(axes, wanted, "x")
    assert all(0.5 <= point["load"] <= 1.5 for point in found)
    assert {point["policy"] for point in found} == {"a", "b"}
    small = sum(point["rate"] < 1e-3 for point in found)
    assert 70 < small < 130  # half of the magnitudes
    assert found != points_of(axes, wanted.model_copy(update={"seed": 1}), "x")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "nothing to do; expected a table"),
        ({"runs": {"polcy": "sjf"}}, "unknown key 'runs.polcy'. Did you mean 'policy'?"),
        ({"search": "random", "runs": {}}, "'samples' is for search = \"random\""),
        ({"samples": 3, "runs": {}}, "'samples' is for search"),
        ({"runs": {"load": {"low": 0.5, "high": 1.0}}}, "'load' is a range; expected a list"),
        ({"runs": {"policy": []}}, "'policy' is an empty list"),
        ({"search": "random", "samples": 2, "runs": {"load": {"low": 2.0, "high": 1.0}}}, "expected low below high"),
    ],
)
def test_a_wrong_sweep_is_refused_with_the_reason(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        adlro.sweep(wrong, tmp_path / "x.parquet")
    assert said in str(error.value)


def test_an_unknown_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no policy 'sfj'"):
        adlro.sweep({"runs": {"policy": ["fcfs", "sfj"]}}, tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_trained_networks_are_policies_of_the_runs(tmp_path: Path) -> None:
    table = tmp_path / "trained.parquet"
    settings = {name: value for name, value in SMALL.items() if name not in ("steps", "episodes")}
    wanted = {
        "runs": {"policy": "sjf", "jobs": 12},
        "training": {"steps": 64, "cluster": "paper16", "set": {**settings, "worlds": 2, "rate": [1e-4, 1e-3]}},
    }
    assert adlro.sweep(wanted, table).new == 5
    first, second, sjf, *runs = rows_of(table)
    assert [row["kind"] for row in (first, second, sjf)] == ["training", "training", "run"]
    assert (first["set.rate"], second["set.rate"], sjf["set.rate"]) == (1e-4, 1e-3, None)
    assert [(row["policy"], row["set.rate"]) for row in runs] == [(first["policy"], 1e-4), (second["policy"], 1e-3)]
    assert all(row["finished"] == 12 for row in runs)
    assert first["trained_steps"] >= 64
    assert adlro.sweep(wanted, table).new == 0
