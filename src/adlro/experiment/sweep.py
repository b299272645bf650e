"""A sweep: a grid or a random search over clusters, workloads, policies and training settings (docs/sweep.md).

Each run and each training is a row of one Parquet table, known by a hash of all that it depends on. Results go into a
journal beside the table as they come, so a sweep that was ended goes on where it was; and a sweep with more values does
only what is new. The rows come in the order of the sweep, wherever and in whatever order they were computed.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, final

import numpy as np
from pydantic import Field

from adlro import __version__
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speeds_by
from adlro.core.errors import ConfigError, UsageError
from adlro.core.toml import Schema, checked, parse_toml, read_text
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import Judged, OnProgress, Runs
from adlro.experiment.conditions import DEFAULT_CLUSTER, DEFAULT_JOBS, DEFAULT_POLICY, UNCHANGED, Conditions
from adlro.experiment.places import Group, RunPlace, Tell, Work, run_place
from adlro.experiment.public import TraceJobs, scenario_of
from adlro.experiment.scenario import Scenario, find_workload, is_trace
from adlro.experiment.sweep_table import Row, SweepJournal, replace_file, write_table
from adlro.experiment.trainings import Trainings
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.measure.metrics import Metrics

if TYPE_CHECKING:
    from pandas import DataFrame

CHECKPOINTS: Final = ".networks"
"""Ends the name of the folder of trained networks, beside the table."""

WRITE_EVERY: Final = 5_000
"""Rows after which the table is written, besides at the end."""


# ---- the file ----------------------------------------------------------------------------------------------------


class ValueRange(Schema):
    """Any number from `low` to `high`, for a random search; `log`: evenly over magnitudes."""

    low: float
    high: float
    log: bool = False


_T = TypeVar("_T")
Axis: TypeAlias = _T | list[_T]
NumberAxis: TypeAlias = float | list[float] | ValueRange


class RunsTable(Schema):
    """What the runs are made of. A list is an axis: each of its values is tried."""

    cluster: Axis[str] = DEFAULT_CLUSTER
    workload: Axis[str] = DEFAULT_JOBS
    jobs: Axis[int] | None = None
    format: str | None = None
    families: Axis[str] | None = None
    load: NumberAxis | None = None
    estimates: Axis[str] | None = None
    restart_s: NumberAxis = UNCHANGED.restart_s
    kill_at_limit: Axis[bool] = UNCHANGED.kill_at_limit
    queue_window: Axis[int] = UNCHANGED.queue_window
    mtbf_h: NumberAxis | None = None
    repair_h: NumberAxis = UNCHANGED.repair_h
    wear_per_day: NumberAxis = UNCHANGED.wear_per_day
    weights: Axis[str] = UNCHANGED.weights
    disturbances: Axis[str] | None = None
    thermal: Axis[bool] = UNCHANGED.thermal
    room_c: NumberAxis = UNCHANGED.room_c
    slow_gpus: NumberAxis = UNCHANGED.slow_gpus
    slow_speed: NumberAxis = UNCHANGED.slow_speed
    measured_pace: Axis[bool] = UNCHANGED.measured_pace
    speeds: Axis[str] = UNCHANGED.speeds
    speed_table: Axis[str] | None = None
    policy: Axis[str] = DEFAULT_POLICY


class TrainingTable(Schema):
    """Trainings. A list in `set` is an axis; each is trained with `seeds` seeds, and its best network is a policy."""

    preset: str = "adlro"
    quick: bool = False
    steps: int | None = None
    episodes: int | None = None
    minutes: float | None = None
    cluster: str | None = None
    workload: str | None = None
    seeds: Annotated[int, Field(ge=1)] = 1
    first_seed: Annotated[int, Field(ge=0)] = 0
    cores: Annotated[int, Field(ge=1)] = 1
    set: dict[str, Any] = Field(default_factory=dict)


class SweepFile(Schema):
    """A sweep in TOML."""

    search: Literal["grid", "random"] = "grid"
    samples: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 1
    first_seed: Annotated[int, Field(ge=0)] = 0
    windows: Annotated[int, Field(ge=1)] | None = None
    runs: RunsTable | None = None
    training: TrainingTable | None = None


def read_sweep(source: str | Path | Mapping[str, Any]) -> SweepFile:
    """A sweep from a TOML file or a mapping, checked."""
    if isinstance(source, Mapping):
        found, where = checked(dict(source), "sweep", SweepFile), "sweep"
    else:
        found, where = parse_toml(read_text(str(source), "sweep"), str(source), SweepFile), str(source)
    if (found.search == "random") is (found.samples is None):
        raise ConfigError(f"{where}: 'samples' is for search = \"random\", which needs it; the grid has every point.")
    if found.runs is None and found.training is None:
        raise ConfigError(f"{where}: nothing to do; expected a table [runs] or [training].")
    return found


# ---- points ------------------------------------------------------------------------------------------------------

Point: TypeAlias = dict[str, Any]
"""A value for each axis."""


def points_of(axes: Mapping[str, Any], sweep: SweepFile, where: str) -> list[Point]:
    """The points of a grid or of a random search over axes, each once; what is not a list or a range stays."""
    if sweep.search == "grid":
        choices = [choices_of(name, axis, where) for name, axis in axes.items()]
        found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*choices)]
    else:
        random = np.random.default_rng(sweep.seed)
        found = [
            {name: drawn_value(name, axis, random, where) for name, axis in axes.items()}
            for _ in range(sweep.samples or 0)
        ]
    return list({as_key(point): point for point in found}.values())


def choices_of(name: str, axis: Any, where: str) -> list[Any]:
    """The values of an axis of a grid."""
    if range_of(name, axis, where) is not None:
        raise ConfigError(f"{where}: '{name}' is a range; expected a list: a grid tries every value.")
    if axis == []:
        raise ConfigError(f"{where}: '{name}' is an empty list; expected at least one value.")
    return axis if isinstance(axis, list) else [axis]


def drawn_value(name: str, axis: Any, random: np.random.Generator, where: str) -> Any:
    """A value of an axis of a random search."""
    within = range_of(name, axis, where)
    if within is not None and within.log:
        return float(np.exp(random.uniform(np.log(within.low), np.log(within.high))))
    if within is not None:
        return float(random.uniform(within.low, within.high))
    values = choices_of(name, axis, where)
    return values[int(random.integers(len(values)))]


def range_of(name: str, axis: Any, where: str) -> ValueRange | None:
    """The range that an axis is; None if it is none."""
    if not isinstance(axis, ValueRange | dict):
        return None
    within = axis if isinstance(axis, ValueRange) else checked(axis, f"{where}: '{name}'", ValueRange)
    if not within.low < within.high or (within.log and within.low <= 0):
        expected = "low above 0 and below high" if within.log else "low below high"
        raise ConfigError(f"{where}: '{name}' is a range from {within.low:g} to {within.high:g}; expected {expected}.")
    return within


def as_key(value: Any) -> str:
    """The same text for the same value."""
    return json.dumps(value, sort_keys=True, default=str)


def identity(value: Any) -> str:
    """A short hash of all that a row depends on."""
    return hashlib.sha256(as_key(value).encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def content(name: str) -> str:
    """A name, with the hash of the file that it may name: a file that has changed gives other rows."""
    path = Path(name.partition(":")[0] if ".py" in name else name)
    if not path.is_file():
        return name
    return f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


# ---- runs --------------------------------------------------------------------------------------------------------


@final
class OfPoint:
    """The runs of some policies on one scenario, which is read when it is needed: a sweep may have many.

    On another machine it arrives as the runs themselves, with the scenario.
    """

    def __init__(self, point: Point, policies: tuple[str, ...], windows: int | None) -> None:
        self.point, self.policies, self.windows = point, policies, windows

    def __reduce__(self) -> Any:
        return _itself, (self._runs(),)

    def _runs(self) -> Runs:
        chosen = tuple(find_policy(name) for name in self.policies)
        return Runs(scenario_at(as_key(self.point), self.windows), chosen, 0, False)

    def warm_up(self, tell: Tell) -> None:
        """Compile every policy."""
        self._runs().warm_up(tell)

    def prepare(self, seed: int) -> Any:
        """The jobs of a seed, and the runs that they are for."""
        runs = self._runs()
        return runs, runs.prepare(seed)

    def run(self, prepared: Any, policy: int) -> Judged:
        """One policy on the jobs of a seed."""
        runs, of_seed = prepared
        found: Judged = runs.run(of_seed, policy)
        return found


def _itself(runs: Runs) -> Runs:
    return runs


@lru_cache(maxsize=2)
def scenario_at(key: str, windows: int | None) -> Scenario:
    """The scenario of a point."""
    point = json.loads(key)
    options = TraceOptions(format=point["format"], families=point["families"])
    conditions = Conditions(**{each.name: point[each.name] for each in fields(Conditions)})
    jobs = TraceJobs(point["workload"], options)
    return scenario_of(point["cluster"], jobs, point["jobs"], windows, conditions.disturbances, conditions)


def check_sweep_names(found: Sequence[Point]) -> None:
    """Refuse clusters, workloads and policies that do not exist, before anything takes its time."""
    for name in {point["cluster"] for point in found}:
        load_cluster(name)
    for name, table in {(point["workload"], point["speed_table"]) for point in found}:
        if not is_trace(name):
            find_workload(name, speeds_by(table))
    for name in {point["policy"] for point in found}:
        find_policy(name)


# ---- the sweep ---------------------------------------------------------------------------------------------------

INPUT_COLUMNS: Final = (
    "id",
    "kind",
    *RunsTable.model_fields,
    "windows",
    "seed",
    "preset",
    "quick",
    "steps",
    "episodes",
    "minutes",
)
RESULT_COLUMNS: Final = (
    "offered_load", *(each.name for each in fields(Metrics)), "best_jct_against_rule", "trained_steps",
    "trained_episodes", "trained_s", "version",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Sweep:
    """What came of a sweep: its table, and how many of its rows are new."""

    table: Path
    rows: int
    new: int

    def to_pandas(self) -> "DataFrame":
        """The table as a DataFrame."""
        from adlro.experiment.frames import need

        return need("pandas", "to_pandas()").read_parquet(self.table)

    def as_dict(self) -> dict[str, Any]:
        """What `adlro sweep --json` prints."""
        return {"table": str(self.table), "rows": self.rows, "new": self.new, "version": __version__}

    def __repr__(self) -> str:
        return f"{self.table}: {self.rows:,} rows, {self.new:,} of them new"


def sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    threads: int | None = None,
    ray: str | None = None,
    progress: OnProgress | None = None,
) -> Sweep:
    """Do all runs and trainings of a sweep (a TOML file, or a mapping with its keys) that the table does not have yet.

    `out` is the Parquet table; by default it has the name of the file and lies beside it. Runs are executed on all
    cores, on `threads` of them, or on a Ray cluster (`ray`: its address, "auto" or "local"); rows do not depend on it.
    """
    wanted = read_sweep(source)
    if out is None and isinstance(source, Mapping):
        raise UsageError("--out is missing; expected the name of the Parquet table.")
    table = Path(str(source)).with_suffix(".parquet") if out is None else Path(out)
    if not table.absolute().parent.is_dir():
        raise UsageError(f"--out: cannot write '{table}'; expected a file in a folder that exists.")
    for remembered in (content, scenario_at):
        remembered.cache_clear()  # files may have changed since the last sweep of this process
    rows = planned(wanted, Path(f"{table}{CHECKPOINTS}"))
    journal = SweepJournal(table)
    have = journal.read()
    missing = sum(row["id"] not in have for row in rows)
    tell: OnProgress = progress or (lambda _what, _done, _total: None)
    tell(f"Sweeping {len(rows):,} rows, {missing:,} of them new", 0, missing)
    if missing:
        with run_place(ray, threads) as place, journal:
            done = 0
            for kind in ("training", "run"):  # trained networks are policies of the runs
                todo = [row for row in rows if row["kind"] == kind and row["id"] not in have]
                for row in executed(todo, wanted, place, lambda what: tell(what, done, missing)):  # noqa: B023
                    have[row["id"]] = row
                    journal.add(row)
                    done += 1
                    tell(str(row["policy"]), done, missing)
                    if done % WRITE_EVERY == 0:
                        write_table(
                            table,
                            [have[each["id"]] for each in rows if each["id"] in have],
                            INPUT_COLUMNS,
                            RESULT_COLUMNS,
                        )
    write_table(table, [have[row["id"]] for row in rows], INPUT_COLUMNS, RESULT_COLUMNS)
    journal.remove()
    return Sweep(table, len(rows), missing)


def planned(wanted: SweepFile, networks: Path) -> list[Row]:
    """Every row of the sweep in its order, without results."""
    trainings = planned_trainings(wanted, networks)
    if wanted.runs is None:
        return trainings
    axes = {name: getattr(wanted.runs, name) for name in RunsTable.model_fields}
    found = points_of(axes, wanted, "[runs]")
    check_sweep_names(found)
    rows = []
    seeds = range(wanted.windows) if wanted.windows else range(wanted.first_seed, wanted.first_seed + wanted.seeds)
    for point in found:
        for seed in seeds:
            rows.append(row_of_run(point, point["policy"], seed, wanted.windows))
    others = {as_key(point | {"policy": None}): point for point in found}.values()
    for training in trainings:
        for point in others:
            for seed in seeds:
                rows.append(row_of_run(point, training["policy"], seed, wanted.windows, training))
    return [*trainings, *rows]


def row_of_run(point: Point, policy: str, seed: int, windows: int | None, training: Row | None = None) -> Row:
    """The row of a run before it has a result; with the settings of the training of its policy."""
    names = [point["cluster"], point["workload"], point["disturbances"], point["speed_table"]]
    of_files = [content(name) for name in names if name is not None]
    about = training["id"] if training else content(policy)
    known = {**point, "policy": about, "seed": seed, "windows": windows, "files": of_files, "version": __version__}
    of_training = {key: value for key, value in (training or {}).items() if key.startswith("set.")}
    row = {"id": identity(known), "kind": "run", **point, "policy": policy, "windows": windows, "seed": seed}
    return row | of_training


def planned_trainings(wanted: SweepFile, networks: Path) -> list[Row]:
    """The rows of the trainings before they have results; `policy` is where the best network will be."""
    table = wanted.training
    if table is None:
        return []
    about = {name: getattr(table, name) for name in ("preset", "quick", "steps", "episodes", "minutes")}
    about |= {"cluster": table.cluster, "workload": table.workload}
    rows = []
    for point in points_of(table.set, wanted, "[training.set]") if table.set else [{}]:
        for seed in range(table.first_seed, table.first_seed + table.seeds):
            of_files = [content(name) for name in (table.cluster, table.workload) if name is not None]
            name = identity({**about, "set": point, "seed": seed, "files": of_files, "version": __version__})
            settings = {f"set.{key}": value for key, value in point.items()}
            rows.append(
                {"id": name, "kind": "training", **about, "policy": str(networks / f"{name}.safetensors"), "seed": seed}
                | settings
            )
    return rows


def executed(rows: Sequence[Row], wanted: SweepFile, place: RunPlace, tell: Tell) -> Iterator[Row]:
    """The rows with their results, in any order."""
    if not rows:
        return
    if rows[0]["kind"] == "training":
        assert wanted.training is not None
        yield from trained(rows, wanted.training, place, tell)
        return
    groups, of = groups_of_rows(rows, wanted.windows)
    for done in place.spread(groups, tell):
        row = of[id(done.work), done.key, done.item]
        result: Judged = done.result
        yield row | {"version": __version__, "offered_load": result.load} | result.metrics.as_dict()


def groups_of_rows(rows: Sequence[Row], windows: int | None) -> tuple[list[Group], dict[tuple[int, int, int], Row]]:
    """Runs grouped by scenario and seed: what policies share is drawn once. And which row each run is."""
    axes = [name for name in RunsTable.model_fields if name != "policy"]
    by_point: dict[str, list[Row]] = {}
    for row in rows:
        by_point.setdefault(as_key({name: row[name] for name in axes}), []).append(row)
    groups: list[Group] = []
    of: dict[tuple[int, int, int], Row] = {}
    for key, some in by_point.items():
        policies = tuple(dict.fromkeys(row["policy"] for row in some))
        work: Work = OfPoint(json.loads(key), policies, windows)
        by_seed: dict[int, list[int]] = {}
        for row in some:
            item = policies.index(row["policy"])
            by_seed.setdefault(row["seed"], []).append(item)
            of[id(work), row["seed"], item] = row
        groups += [Group(work, seed, tuple(items)) for seed, items in by_seed.items()]
    return groups, of


def trained(rows: Sequence[Row], table: TrainingTable, place: RunPlace, tell: Tell) -> Iterator[Row]:
    """The rows of trainings with their results; their best networks are written."""
    settings = [
        {"settings": {key.removeprefix("set."): value for key, value in row.items() if key.startswith("set.")}}
        | {name: row[name] for name in ("preset", "quick", "steps", "episodes", "minutes", "seed", "cluster")}
        | {"jobs": row["workload"]}
        for row in rows
    ]
    work = Trainings(tuple(settings), table.cores)
    groups = [Group(work, number, (0,), cores=table.cores, one_at_a_time=True) for number in range(len(rows))]
    for done in place.spread(groups, tell):
        row, (network, result) = rows[done.key], done.result
        path = Path(row["policy"])
        path.parent.mkdir(exist_ok=True)
        replace_file(path, network)
        yield row | {"version": __version__} | result
