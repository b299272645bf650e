"""A scenario: a cluster, jobs and conditions, from names, files or Python objects. Wrong input is refused here."""

import math
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import OwnSpeeds, family_named, speed_of, speeds_by
from adlro.catalogue.workloads import SUFFIX, workload_names, workload_text
from adlro.core.errors import CatalogueError, ConfigError, UsageError
from adlro.core.learned import KNOWN_SPEEDS, check_speeds
from adlro.core.plan import Plan, is_paced, plan_cluster
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Disturbance, SpeedOf
from adlro.core.tables import Floats, Jobs, View
from adlro.core.toml import nearest, read_text
from adlro.ingest.disturbances import read_disturbances
from adlro.ingest.host_lists import INDEX_TYPE
from adlro.ingest.synthetic import one_of_each
from adlro.ingest.telemetry.names import model_of
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport
from adlro.ingest.traces.windows import Window, cut, slowed, windows_of
from adlro.ingest.workload_file import Estimates, Workload, load_workload
from adlro.normalise.pack import pack, pack_disturbances, with_model_names
from adlro.simulation.simulator import SimulationSettings

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Hazards:
    """Disturbances of the hardware: random failures, wear, and a list. They are the same for every policy."""

    mtbf_h: float | None = None  # mean hours between two failures of a node; None: none by chance
    repair_h: float = 4.0  # mean hours until it is back
    wear_per_day: float = 0.0  # share of its speed that a GPU loses in a day, on average
    listed: tuple[Disturbance, ...] = ()
    source: str | None = None  # where the list comes from
    room_c: float | None = None  # temperature of the air that enters the nodes; None: GPUs never become hot
    slow_gpus: float = 0.0  # share of the GPUs that are slow from the start
    slow_speed: float = 0.6  # their speed, relative to their model


@dataclass(frozen=True, slots=True)
class EstimateSource:
    """The source of the estimates of recorded jobs:

    `oracle`, `limit`, `lognormal`, `predicted` or `trace`.

    `trace` is a column of the trace.
    """

    source: str
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in place of a workload: the same jobs for every seed, or for each seed a window of it."""

    name: str
    all_jobs: Jobs
    report: TraceReport
    estimates: EstimateSource
    windows: tuple[Window, ...] = ()  # none: the whole trace

    @property
    def jobs(self) -> int:
        """The number of jobs; of the largest window if the trace is cut into windows."""
        return max((window.jobs for window in self.windows), default=len(self.all_jobs))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, jobs and conditions; with a seed everything is determined."""

    plan: Plan
    workload: Workload | Recorded
    jobs: int | None = None  # None: as many as the workload says
    settings: SimulationSettings = field(default_factory=SimulationSettings)
    hazards: Hazards = field(default_factory=Hazards)
    load: float | None = None  # the offered load that was asked for; None: as the workload says
    speeds: str = KNOWN_SPEEDS  # what policies know about speeds (unknown_speeds.py)
    speed: SpeedOf = speed_of  # how fast jobs run: the tables that ship, or one of the user's own before them

    @property
    def measured_pace(self) -> bool:
        """Whether policies see the measured pace of each GPU."""
        return is_paced(self.plan)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of a trace that take the place of seeds; empty if there are none."""
        return self.workload.windows if isinstance(self.workload, Recorded) else ()

    @property
    def varies(self) -> bool:
        """Whether anything differs between two seeds."""
        workload, hazards = self.workload, self.hazards
        if isinstance(workload, Recorded) and not workload.windows and workload.estimates.source != "lognormal":
            worn = hazards.wear_per_day > 0 or hazards.slow_gpus > 0
            return worn or hazards.mtbf_h is not None or hazards.room_c is not None
        return True

    @property
    def cluster(self) -> Cluster:
        """The cluster that the jobs run on."""
        return self.plan.cluster


def load_scenario(
    cluster: str | Cluster,
    workload: str | Any,
    jobs: int | None = None,
    settings: SimulationSettings = SimulationSettings(),  # noqa: B008  (frozen)
    hazards: Hazards = Hazards(),  # noqa: B008  (frozen)
    estimates: str | None = None,
    trace: TraceOptions = TraceOptions(),  # noqa: B008  (frozen)
    windows: int | None = None,
    load: float | None = None,
    speeds: str = KNOWN_SPEEDS,
    measured_pace: bool = False,
    speed_table: str | None = None,
) -> Scenario:
    """A scenario from names, files or Python objects; everything that can be wrong is found here.

    `workload` may be a table in memory (a DataFrame), which is read as a trace. `trace` says how a trace is read,
    `windows` into how many it is cut; a synthetic workload has neither. `speed_table` is a file.
    """
    if hazards.room_c is not None and not -40.0 <= hazards.room_c <= 60.0:
        raise UsageError(f"--room-c is {hazards.room_c:g}; expected a temperature from -40 to 60 C.")
    if not 0.0 <= hazards.slow_gpus <= 1.0:
        raise UsageError(f"--slow-gpus is {hazards.slow_gpus:g}; expected a fraction from 0 to 1.")
    if not 0.0 < hazards.slow_speed <= 1.0:
        raise UsageError(f"--slow-speed is {hazards.slow_speed:g}; expected a fraction above 0, at most 1.")
    check_numbers(restart_s=settings.restart_s, window=settings.window, wear_per_day=hazards.wear_per_day)
    check_numbers(above_0=True, mtbf_h=hazards.mtbf_h, repair_h=hazards.repair_h, jobs=jobs, load=load)
    known = check_speeds(speeds)
    found_cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    plan = plan_cluster(found_cluster, by_site=measured_pace)
    pack_disturbances(plan, hazards.listed)
    speed = _speeds_for(plan, speed_table)
    if not is_trace(workload):
        found = _told(find_workload(workload, speed), estimates)
        refuse_trace_options(found.name, trace, windows)
        found = found if load is None else _paced(plan, found, load, speed)
        return Scenario(plan, found, jobs, settings, hazards, load, known, speed)
    recorded = record(workload, estimates, trace, speed)
    if load is not None:
        recorded = paced_trace(plan, recorded, load, trace, speed)
    if windows is not None:
        recorded = replace(recorded, windows=windows_of(recorded.all_jobs, windows, jobs))
    count = None if jobs is None else min(jobs, recorded.jobs)
    return Scenario(plan, recorded, count, settings, hazards, load, known, speed)


def _speeds_for(plan: Plan, path: str | None) -> SpeedOf:
    """The speeds that ship, or those of a table of one's own before them; its own families must run everywhere."""
    speed = speeds_by(path)
    names = [name for name in plan.models if name != CPU_ONLY]
    missing = speed.lacks(names) if isinstance(speed, OwnSpeeds) else None
    if missing is not None:
        raise CatalogueError(
            f"{path}: {missing}, which is in '{plan.cluster.name}'. Add one; per_second 0: cannot run."
        )
    return speed


def _told(workload: Workload, estimates: str | None) -> Workload:
    """The workload with other estimates."""
    if estimates is None:
        return workload
    wanted = estimates_of(estimates)
    if wanted.source == "predicted":  # limits stay what they are: a predictor sees them
        wanted = wanted.model_copy(update={"sigma": workload.estimates.sigma})
    if wanted.source == "limit":
        for part in (part for part in workload.families if part.limit_factor is None):
            raise UsageError(
                f"--estimates {estimates}: in the workload '{workload.name}' users of {part.family[0]} give no limit. "
                f"Add a limit_factor to a copy of its file, or use --estimates oracle or noisy:0.5."
            )
    return workload.model_copy(update={"estimates": wanted})


_SOURCES: Final = {
    "oracle": "oracle",
    "user": "limit",
    "limit": "limit",
    "noisy": "lognormal",
    "lognormal": "lognormal",
    "predicted": "predicted",
}
"""The names of estimates for users, and what workload files call them."""


def estimates_of(text: str) -> Estimates:
    """The estimates that a text asks for: oracle, user (or limit), noisy:SIGMA (or lognormal:SIGMA), predicted."""
    word, _, sigma = text.partition(":")
    source = _SOURCES.get(word)
    try:
        value = float(sigma) if sigma else 0.0
    except ValueError:
        value = -1.0
    unfit = {"oracle": bool(sigma), "lognormal": not sigma, "predicted": bool(sigma)}.get(source or "", False)
    if source is None or unfit or not 0.0 <= value <= 5.0:
        raise UsageError(
            f"--estimates is {text!r}; "
            "expected oracle, user (the limit), predicted, or noisy:SIGMA with SIGMA from 0 to 5."
        )
    return Estimates.model_validate({"source": source, "sigma": value})


def refuse_trace_options(name: str, trace: TraceOptions, windows: int | None) -> None:
    """Refuse options that only a trace can have."""
    plain = TraceOptions()
    given = [each.name for each in fields(TraceOptions) if getattr(trace, each.name) != getattr(plain, each.name)]
    flags = {"gpus_per_unit": "unit"}
    if windows is not None:
        raise UsageError(f"--windows is for traces; '{name}' has other jobs for every seed. Use --seeds {windows}.")
    if given:
        flag = flags.get(given[0], given[0]).replace("_", "-")
        hints = {"scale-load": " --load sets the load of any workload.", "window": " For the queue use --queue-window."}
        hint = hints.get(flag, "")
        raise UsageError(f"--{flag} is for traces, and the workload '{name}' is not a trace. Leave it out.{hint}")


def check_numbers(above_0: bool = False, **numbers: float | None) -> None:
    """Refuse a number that is NaN, infinite or too small. None means that nothing was asked for."""
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and (value > 0 if above_0 else value >= 0)):
            expected = "a number above 0" if above_0 else "a number from 0"
            raise UsageError(f"{name} is {value:g}; expected {expected}.")


def find_workload(name_or_path: str, speed: SpeedOf = speed_of) -> Workload:
    """A shipped workload by name, or one from a path that ends in .toml; every family in it is known."""
    if name_or_path in workload_names():
        text, where = workload_text(name_or_path)
    elif name_or_path.endswith(SUFFIX):
        text, where = read_text(name_or_path, "workload file"), name_or_path
    else:
        names = workload_names()
        raise CatalogueError(
            f"there is no workload '{name_or_path}'.{nearest(name_or_path, names)} Workloads that ship: "
            f"{', '.join(names)}; a workload of your own is a path that ends in {SUFFIX}, or the file of a trace."
        )
    workload = load_workload(text, where)
    for number, part in enumerate(workload.families):
        for family in part.family:
            try:
                family_named(family, speed)
            except CatalogueError as error:
                raise ConfigError(f"{where}: 'families[{number}].family': {error}") from None
    return workload


def find_disturbances(path: str) -> tuple[Disturbance, ...]:
    """The disturbances of a list in TOML or JSON lines."""
    return tuple(read_disturbances(read_text(path, "list of disturbances"), path))


def is_trace(workload: str | Any) -> bool:
    """Whether this is a trace: a table in memory, or a path that is no TOML file. A bare word is a misspelt name."""
    if not isinstance(workload, str):
        return True
    if workload in workload_names() or workload.endswith(SUFFIX):
        return False
    path = Path(workload)
    return bool(path.suffix) or len(path.parts) > 1 or path.exists()


def record(
    trace: str | Any,
    estimates: str | None = None,
    options: TraceOptions = TraceOptions(),  # noqa: B008  (frozen)
    speed: SpeedOf = speed_of,
) -> Recorded:
    """A trace as these options ask for it, with these estimates or its own."""
    from adlro.experiment.traces import read_trace  # the readers of all formats: most commands need none of them

    wanted = estimates_of(estimates) if estimates is not None else None
    if wanted is not None and wanted.source == "limit" and wanted.sigma:
        raise UsageError(f"--estimates is {estimates!r}; the limits of a trace cannot be changed; expected user.")
    # An error in the estimates is drawn with the seed, on top of the true work.
    reading = None if wanted is None else "limit" if wanted.source == "limit" else "oracle"
    jobs, report = read_trace(trace, replace(options, estimates=reading), speed)
    if wanted is not None and wanted.source == "lognormal":
        report = replace(report, estimates=f"true work with a log-normal error, sigma {wanted.sigma:g}, by seed")
        return Recorded(report.file, jobs, report, EstimateSource("lognormal", wanted.sigma))
    if wanted is not None and wanted.source == "predicted":
        report = replace(report, estimates="predicted, from what has ended in the run")
        return Recorded(report.file, jobs, report, EstimateSource("predicted"))
    source = "limit" if report.estimates.startswith("limit") else "oracle" if report.estimates == "oracle" else "trace"
    return Recorded(report.file, jobs, report, EstimateSource(source))


def _paced(plan: Plan, workload: Workload, load: float, speed: SpeedOf) -> Workload:
    """The workload with the mean time between arrivals that gives this expected load; a surge comes on top.

    The mean work of a job is computed from the distributions, so the factor is the same for every seed.
    """
    if workload.arrivals.process == "all-at-once":
        raise UsageError(
            f"--load {load:g}: the jobs of '{workload.name}' arrive all at once, so there is no offered load."
        )
    kinds, chance = one_of_each(workload)
    kinds = named_as_in(plan.cluster, kinds)
    needed = float(chance @ gpu_seconds(kinds, pack(plan, kinds, speed)))
    if not needed:
        raise UsageError(f"--load {load:g}: no job of '{workload.name}' uses a GPU of {plan.cluster.name}.")
    interval_s = needed / (load * plan.cluster.gpu_count)
    arrivals = workload.arrivals.model_copy(update={"mean_interarrival_s": interval_s})
    return workload.model_copy(update={"arrivals": arrivals})


def paced_trace(
    plan: Plan, recorded: Recorded, load: float, options: TraceOptions, speed: SpeedOf = speed_of
) -> Recorded:
    """The trace with all times between submissions stretched by one factor, so that it has this load overall."""
    if options.scale_load != 1.0:
        raise UsageError(f"--load {load:g} and --scale-load {options.scale_load:g} exclude each other. Leave one out.")
    jobs = named_as_in(plan.cluster, cut(recorded.all_jobs, 0, len(recorded.all_jobs)))
    needed = float(gpu_seconds(jobs, pack(plan, jobs, speed)).sum())
    span_s = recorded.report.span_s
    if not needed or not span_s:
        why = "its jobs come all at once" if needed else f"no job of it uses a GPU of {plan.cluster.name}"
        raise UsageError(f"--load {load:g}: '{recorded.name}' has no load: {why}.")
    factor = needed / (plan.cluster.gpu_count * span_s) / load
    report = replace(recorded.report, scale_load=1 / factor, span_s=span_s * factor)
    return replace(recorded, all_jobs=slowed(recorded.all_jobs, factor), report=report)


def gpu_seconds(jobs: Jobs, view: View) -> Floats:
    """GPU-seconds of each job where it runs fastest; 0 if it runs nowhere."""
    table, fastest = jobs.table, view.fastest[jobs.table["demand"]]
    runtime = np.divide(jobs.work, fastest, out=np.zeros(len(jobs)), where=fastest > 0)
    return runtime * (table["gpus"] * (table["share"] / WHOLE_GPU))


def named_as_in(cluster: Cluster, jobs: Jobs) -> Jobs:
    """The same jobs with the cluster's names for allowed GPU models; unknown names stay."""
    names = {}
    for word in sorted(frozenset().union(*jobs.allowed)):
        for each in (word, INDEX_TYPE.sub("", word)):
            if model := model_of(each, lambda name: find_gpu(name, cluster.models)):
                names[word] = model.name
                break
        # Otherwise it is a model of another cluster's own: these jobs are refused here, with that reason.
    return with_model_names(jobs, names)


def nowhere_allowed(cluster: Cluster, jobs: Jobs) -> str:
    """How many jobs allow only GPU models that the cluster does not have, and what to do about it; "" if none do."""
    jobs = named_as_in(cluster, jobs)
    counts = np.bincount(jobs.table["allowed"][jobs.table["gpus"] > 0], minlength=len(jobs.allowed)).tolist()
    words = Counter[str]()
    lost = 0
    for models, count in zip(jobs.allowed, counts, strict=True):
        if models and count and not any(model in cluster.models for model in models):
            lost += count
            words.update(dict.fromkeys(models, count))
    if not lost:
        return ""
    ranked = sorted(words, key=lambda word: (-words[word], word))
    named = ", ".join(f"'{word}'" for word in ranked[:_MOST_NAMED])
    more = f" and {len(ranked) - _MOST_NAMED} others" if len(ranked) > _MOST_NAMED else ""
    return (
        f"{lost:,} of its {len(jobs):,} jobs allow only GPUs that {cluster.name} does not have ({named}{more}), and "
        "are refused. If it has them under another name, say so: --ran-on FILE.toml, [types]"
    )
