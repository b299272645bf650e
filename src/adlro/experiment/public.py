"""The functions that `import adlro` offers (docs/python.md); the commands call the same ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from adlro.catalogue.clusters import ClusterFile, NodesTable, build_cluster, load_cluster
from adlro.core.code_cache import set_ready
from adlro.core.errors import UsageError
from adlro.core.learned import KNOWN_SPEEDS
from adlro.core.records import Cluster, Disturbance
from adlro.core.toml import checked, read_text
from adlro.experiment.compare import Comparison, OnProgress
from adlro.experiment.compare import run_comparison as compare_on
from adlro.experiment.conditions import (
    DEFAULT_CLUSTER,
    DEFAULT_JOBS,
    DEFAULT_POLICIES,
    DEFAULT_POLICY,
    DEFAULT_SEEDS,
    UNCHANGED,
    Conditions,
    check_job_weights,
)
from adlro.experiment.instance import run_one
from adlro.experiment.policies import PolicyLike, find_policies
from adlro.experiment.policies import policy as find_policy
from adlro.experiment.scenario import Hazards, Scenario, find_disturbances, load_scenario
from adlro.experiment.side_by_side import compiled_side_by_side
from adlro.experiment.simulation import Simulation
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.measure.hyperscore import EQUAL, ScoreWeights, read_score_weights
from adlro.measure.metrics import measure
from adlro.measure.statistics import FEWEST_OBSERVATIONS
from adlro.simulation.simulator import SimulationSettings

Frame: TypeAlias = Any
"""A DataFrame of pandas or Polars, a table of pyarrow, or a dict of columns."""

ClusterLike: TypeAlias = str | Path | Cluster
Disturbances: TypeAlias = str | Path | Sequence[Disturbance]


@dataclass(frozen=True, slots=True)
class TraceJobs:
    """Jobs of a trace, or of a DataFrame, and how they are read."""

    source: Any  # a path, or a DataFrame
    options: TraceOptions


JobsLike: TypeAlias = str | Path | TraceJobs | Frame


# ---- what an experiment is made of -------------------------------------------------------------------------------


def cluster(
    source: ClusterLike | None = None,
    *,
    nodes: Sequence[NodesTable] = (),
    name: str = "mine",
    network: tuple[str, float] = ("ethernet-100g", 25.0),
    gpu_models: Mapping[str, Mapping[str, Any]] | None = None,
    affinity: Mapping[str, Sequence[str]] | None = None,
) -> Cluster:
    """A cluster: by the name of a shipped one, from a TOML file, or from `nodes` made with `adlro.nodes`.

    `network` is the name and the bandwidth (GB/s, both directions summed) of what joins the nodes. `gpu_models` adds
    models that are not in the catalogue, and `affinity` sends families to models: both as in docs/catalogue.md.
    """
    if isinstance(source, Cluster):
        return source
    if source is not None and not isinstance(source, str | Path):
        raise UsageError(
            f"the cluster is a {type(source).__name__}; expected a shipped name, a path that ends in .toml, or what "
            "adlro.cluster() returns."
        )
    if (source is None) is not bool(nodes):
        raise UsageError("adlro.cluster() takes a name or a file, or nodes=[adlro.nodes(…), …]: expected one of them.")
    if source is not None:
        return load_cluster(str(source))
    kind, gb_s = network
    values = {
        "name": name,
        "network": {"kind": kind, "gb_s": gb_s},
        "nodes": list(nodes),
        "gpus": {model: dict(figures) for model, figures in (gpu_models or {}).items()},
        "affinity": {family: list(models) for family, models in (affinity or {}).items()},
    }
    return build_cluster(checked(values, "adlro.cluster()", ClusterFile), "adlro.cluster()")


def nodes(
    name: str,
    *,
    cpus: float,
    memory_gb: float,
    gpu: str | None = None,
    gpus: int | Mapping[str, int] = 0,
    count: int = 1,
    link: Literal["nvlink", "xgmi", "pcie"] = "pcie",
    link_gb_s: float | None = None,
) -> NodesTable:
    """`count` machines alike, for `adlro.cluster`: the keys of a [[nodes]] table of a cluster file.

    `gpus` is how many GPUs of the model `gpu` each has; for several models it is a dict, as in {"v100": 2, "t4": 2}.
    """
    groups = [{"model": model, "count": each} for model, each in gpus.items()] if isinstance(gpus, Mapping) else gpus
    values = {
        "name": name,
        "count": count,
        "gpu": gpu,
        "gpus": groups,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "link": link,
        "link_gb_s": link_gb_s,
    }
    return checked(values, f"adlro.nodes({name!r})", NodesTable)


def trace(
    source: str | Path | Frame,
    *,
    format: str | None = None,
    families: str | Path | None = None,
    gpus_per_unit: float = 1.0,
    skip_bad_rows: bool = False,
    scale_load: float = 1.0,
    window: str | None = None,
    sample: float = 1.0,
    columns: str | Path | None = None,
    ran_on: str | Path | None = None,
) -> TraceJobs:
    """Jobs of a trace, or of a DataFrame, where the defaults of reading it do not suit.

    The options are those of the commands (docs/traces.md). A path or a DataFrame may also be passed as `jobs` itself.
    """
    options = TraceOptions(
        format=format, families=None if families is None else str(families), gpus_per_unit=gpus_per_unit,
        skip_bad_rows=skip_bad_rows, scale_load=scale_load, window=window, sample=sample,
        columns=None if columns is None else str(columns), ran_on=None if ran_on is None else str(ran_on),
    )  # fmt: skip
    return TraceJobs(str(source) if isinstance(source, Path) else source, options)


# ---- experiments -------------------------------------------------------------------------------------------------


def compare(
    cluster: ClusterLike = DEFAULT_CLUSTER,
    jobs: JobsLike = DEFAULT_JOBS,
    policies: PolicyLike | Iterable[PolicyLike] = DEFAULT_POLICIES,
    *,
    seeds: int | Sequence[int] | None = None,
    first_seed: int | None = None,
    windows: int | None = None,
    job_count: int | None = None,
    baseline: str | None = None,
    load: float | None = UNCHANGED.load,
    estimates: str | None = UNCHANGED.estimates,
    restart_s: float = UNCHANGED.restart_s,
    kill_at_limit: bool = UNCHANGED.kill_at_limit,
    queue_window: int = UNCHANGED.queue_window,
    mtbf_h: float | None = UNCHANGED.mtbf_h,
    repair_h: float = UNCHANGED.repair_h,
    wear_per_day: float = UNCHANGED.wear_per_day,
    weights: str = UNCHANGED.weights,
    disturbances: Disturbances | None = UNCHANGED.disturbances,
    thermal: bool = UNCHANGED.thermal,
    room_c: float = UNCHANGED.room_c,
    slow_gpus: float = UNCHANGED.slow_gpus,
    slow_speed: float = UNCHANGED.slow_speed,
    measured_pace: bool = UNCHANGED.measured_pace,
    speeds: str = UNCHANGED.speeds,
    speed_table: str | Path | None = UNCHANGED.speed_table,
    regret: bool = False,
    hyperscore: str | Path | Mapping[str, float] | None = None,
    regression: bool = False,
    threads: int | None = None,
    ray: str | None = None,
    keep_times: bool = True,
    progress: OnProgress | None = None,
) -> Comparison:
    """Compare policies on the same jobs, over several seeds.

    `cluster` and `jobs` are names of shipped ones, files or objects: a cluster of `adlro.cluster`; jobs of a workload,
    of a trace (`adlro.trace` says how it is read) or of a DataFrame. `policies` are what `adlro.policy` takes; the
    first is the baseline unless `baseline` names another.

    `seeds` is how many seeds (default 10, but 1 for a trace), from `first_seed` on, or which. `windows` cuts a trace
    into so many windows, which take the place of seeds. `job_count` is how many jobs there are on each seed or in each
    window. The conditions from `load` to `speed_table` are those of `adlro compare --help`. `regret` also runs the
    policies with known speeds, and tells what not knowing them costs (docs/speeds.md). `hyperscore` are the weights of
    the HyperScore, `regression` adds the regression of completion times to the results. Compiled policies
    run on all cores or on `threads` of them; `ray` executes the runs on a Ray cluster instead: its address, "auto" or
    "local" (docs/ray.md). The results do not depend on either. Without `keep_times` the result needs less memory (3 kB
    per run), but cannot write a report. `progress(what, done, total)` is told how it goes.
    """
    made = call_text("compare", locals(), compare)
    shares = _weights_of(hyperscore)
    conditions = Conditions(
        load, estimates, restart_s, kill_at_limit, queue_window, mtbf_h, repair_h, wear_per_day, weights,
        thermal=thermal, room_c=room_c, slow_gpus=slow_gpus, slow_speed=slow_speed, measured_pace=measured_pace,
        speeds=speeds, speed_table=_path_of(speed_table),
    )  # fmt: skip
    scenario = scenario_of(cluster, jobs, job_count, windows, disturbances, conditions)
    chosen = find_policies(policies)
    which = _seeds_of(scenario, seeds, first_seed)
    kind = "window" if windows else "seed"
    if regression and len(which) < FEWEST_OBSERVATIONS:
        raise UsageError(
            f"--regression with {len(which)} {kind}s; expected at least {FEWEST_OBSERVATIONS}: pass --{kind}s."
        )
    tell: OnProgress = progress or (lambda _what, _done, _total: None)
    runs = f"{_counted(len(chosen), 'policy', 'policies')} on {_counted(len(which), kind)}"
    tell(f"Comparing {runs}", 0, len(chosen) * len(which))
    found = compare_on(scenario, chosen, which, threads, tell, baseline, keep_times, ray)
    if regret:
        if scenario.speeds == KNOWN_SPEEDS:
            raise UsageError("--regret compares with known speeds; expected --speeds prior, agnostic or learned.")
        known = compare_on(replace(scenario, speeds=KNOWN_SPEEDS), chosen, which, threads, tell, baseline, False, ray)
        found = replace(found, known=known.metrics)
    is_plain = conditions == Conditions() and disturbances is None
    is_the_papers = is_plain and (_named(cluster), _named(jobs)) == (DEFAULT_CLUSTER, DEFAULT_JOBS)
    return replace(found, weights=shares, with_regression=regression, is_the_papers=is_the_papers, command=made)


def simulate(
    cluster: ClusterLike = DEFAULT_CLUSTER,
    jobs: JobsLike = DEFAULT_JOBS,
    policy: PolicyLike = DEFAULT_POLICY,
    *,
    seed: int = 0,
    windows: int | None = None,
    job_count: int | None = None,
    load: float | None = UNCHANGED.load,
    estimates: str | None = UNCHANGED.estimates,
    restart_s: float = UNCHANGED.restart_s,
    kill_at_limit: bool = UNCHANGED.kill_at_limit,
    queue_window: int = UNCHANGED.queue_window,
    mtbf_h: float | None = UNCHANGED.mtbf_h,
    repair_h: float = UNCHANGED.repair_h,
    wear_per_day: float = UNCHANGED.wear_per_day,
    weights: str = UNCHANGED.weights,
    disturbances: Disturbances | None = UNCHANGED.disturbances,
    thermal: bool = UNCHANGED.thermal,
    room_c: float = UNCHANGED.room_c,
    slow_gpus: float = UNCHANGED.slow_gpus,
    slow_speed: float = UNCHANGED.slow_speed,
    measured_pace: bool = UNCHANGED.measured_pace,
    speeds: str = UNCHANGED.speeds,
    speed_table: str | Path | None = UNCHANGED.speed_table,
    progress: OnProgress | None = None,
) -> Simulation:
    """Run one policy on one seed, or on one window of a trace: every event and every measure.

    The arguments are those of `adlro.compare`; with `windows`, `seed` is the number of the window, from 0.
    """
    made = call_text("simulate", locals(), simulate)
    scenario = scenario_of(
        cluster, jobs, job_count, windows, disturbances,
        Conditions(
            load, estimates, restart_s, kill_at_limit, queue_window, mtbf_h, repair_h, wear_per_day, weights,
            thermal=thermal, room_c=room_c, slow_gpus=slow_gpus, slow_speed=slow_speed, measured_pace=measured_pace,
            speeds=speeds, speed_table=_path_of(speed_table),
        ),
    )  # fmt: skip
    check_whole("seed", seed, 0)
    chosen = find_policy(policy)
    tell: OnProgress = progress or (lambda _what, _done, _total: None)
    tell(f"Simulating {chosen.name}", 0, 1)
    with compiled_side_by_side([chosen]):
        run = run_one(scenario, chosen, seed)
    set_ready(chosen.name)
    tell("Measuring", 0, 1)
    return Simulation(scenario, run, measure(run), made)


# ---- from arguments to an experiment -----------------------------------------------------------------------------


def scenario_of(
    where: ClusterLike,
    jobs: JobsLike,
    job_count: int | None,
    windows: int | None,
    disturbances: Disturbances | None,
    conditions: Conditions,
) -> Scenario:
    """The scenario that the arguments describe."""
    check_whole("job_count", job_count, 1)
    check_whole("windows", windows, 1)
    check_whole("queue_window", conditions.queue_window, 0)
    wanted = jobs if isinstance(jobs, TraceJobs) else TraceJobs(jobs, TraceOptions())
    source = str(wanted.source) if isinstance(wanted.source, str | Path) else wanted.source
    listed: tuple[Disturbance, ...] = ()
    origin = None
    if isinstance(disturbances, str | Path):
        listed, origin = find_disturbances(str(disturbances)), str(disturbances)
    elif disturbances:
        listed, origin = tuple(disturbances), f"{len(disturbances)} given in Python"
    check_job_weights(conditions.weights)
    settings = SimulationSettings(
        conditions.restart_s, conditions.kill_at_limit, conditions.queue_window, conditions.weights
    )
    room_c = conditions.room_c if conditions.thermal else None
    hazards = Hazards(
        conditions.mtbf_h, conditions.repair_h, conditions.wear_per_day, listed, origin, room_c, conditions.slow_gpus,
        conditions.slow_speed,
    )  # fmt: skip
    return load_scenario(
        cluster(where), source, job_count, settings, hazards, conditions.estimates, wanted.options, windows,
        conditions.load, conditions.speeds, conditions.measured_pace, conditions.speed_table,
    )  # fmt: skip


def _path_of(file: str | Path | None) -> str | None:
    return None if file is None else str(file)


def _seeds_of(scenario: Scenario, seeds: int | Sequence[int] | None, first_seed: int | None) -> Sequence[int]:
    """The seeds of a comparison: those asked for, the windows of a trace, or as many as make sense."""
    if scenario.windows:
        if seeds is not None or first_seed is not None:
            raise UsageError("with --windows, windows take the place of seeds. Leave out --seeds and --first-seed.")
        return range(len(scenario.windows))
    if seeds is not None and not isinstance(seeds, int):
        which = [int(seed) for seed in seeds]
        if first_seed is not None or not which or min(which) < 0 or len(set(which)) < len(which):
            raise UsageError(
                f"seeds is {seeds!r}; expected how many, or a list of different numbers from 0 (without first_seed)."
            )
        return which
    check_whole("seeds", seeds, 1)
    check_whole("first_seed", first_seed, 0)
    count = seeds if seeds is not None else DEFAULT_SEEDS if scenario.varies else 1
    return range(first_seed or 0, (first_seed or 0) + count)


def check_whole(name: str, value: int | None, least: int) -> None:
    """Refuse anything but a whole number from `least` on; None means the default."""
    if value is not None and (type(value) is not int or value < least):
        raise UsageError(f"{name} is {value!r}; expected a whole number from {least}.")


def _weights_of(hyperscore: str | Path | Mapping[str, float] | None) -> ScoreWeights:
    """The weights of the HyperScore: from a TOML file or a mapping; all alike if nothing or 'equal' is given."""
    if hyperscore is None or hyperscore == "equal":
        return EQUAL
    if isinstance(hyperscore, str | Path):
        return read_score_weights(read_text(str(hyperscore), "weights file"), str(hyperscore))
    return checked(dict(hyperscore), "hyperscore", ScoreWeights)


def _named(source: Any) -> Any:
    """The name or path of a cluster or jobs, if it is one."""
    plain = isinstance(source, TraceJobs) and source.options == TraceOptions()
    return source.source if isinstance(source, TraceJobs) and plain else source if isinstance(source, str) else None


def _counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in singular or plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


NO_MATTER: Final = ("progress", "ray")
"""Keywords that do not affect results."""


def call_text(name: str, given: Mapping[str, Any], function: Callable[..., Any]) -> str:
    """The call as text, with the arguments that differ from the defaults: results say what they were made with."""
    defaults = {**(function.__kwdefaults__ or {})}
    words = [
        f"{key}={_shown(value)}"
        for key, value in given.items()
        if key not in NO_MATTER and (key not in defaults or value is not defaults[key])
    ]
    return f"adlro.{name}({', '.join(words)})"


def _shown(value: Any) -> str:
    """An argument as text: short, and the same in every process."""
    match value:
        case str() | int() | float() | None:
            return repr(value)
        case Path():
            return repr(str(value))
        case TraceJobs():
            plain = TraceOptions()
            given = {each.name: getattr(value.options, each.name) for each in fields(TraceOptions)}
            words = [f"{key}={each!r}" for key, each in given.items() if each != getattr(plain, key)]
            return f"adlro.trace({', '.join([_shown(value.source), *words])})"
        case range():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case Mapping() if all(isinstance(each, int | float) for each in value.values()):
            return repr(dict(value))
    named_as = getattr(value, "name", None) or getattr(value, "__name__", None)
    return named_as if isinstance(named_as, str) else type(value).__name__
