"""The stages put together: one policy on one seed, or several policies on the same seeds. Nothing is printed here."""

import csv
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import numpy as np
from scipy.special import stdtrit

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import REFERENCE, families, find_family
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.catalogue.speeds import speed_of
from adlro.catalogue.workloads import SUFFIX, workload_names, workload_text
from adlro.core.errors import AdlroError, CatalogueError, ConfigError, PolicyError, TraceError, UsageError
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU, Cluster, Disturbance, Link, Placing
from adlro.core.run import Run
from adlro.core.tables import Floats, Ints, Jobs, Table, View
from adlro.core.toml import nearest
from adlro.ingest.disturbances import DAY_S, failures, read_disturbances, wear
from adlro.ingest.synthetic import generate, one_of_each
from adlro.ingest.traces import catalogue as traces
from adlro.ingest.traces.family_map import read_family_map
from adlro.ingest.traces.job_lists import Measured
from adlro.ingest.traces.tabulate import FamilyRule, TraceOptions, TraceReport
from adlro.ingest.traces.windows import Window, cut, misjudged, slowed, windows_of
from adlro.ingest.workload_file import Estimates, Workload, load_workload
from adlro.measure.hyperscore import EQUAL, Weights, read_weights
from adlro.measure.metrics import Metrics, measure
from adlro.normalise.pack import Plan, pack, pack_disturbances, plan_cluster, refusals, with_model_names
from adlro.predict.following import traits_of, untold
from adlro.predict.online import Predicting
from adlro.simulate.simulator import Settings, simulate

CONFIDENCE: Final = 0.95
HOUR_S: Final = 3600.0

WEAR_SPREAD: Final = 0.5
"""Sigma of the logarithm of a GPU's own drift: some wear at half the average rate, some at twice."""

WEAR_STEP_S: Final = 6 * HOUR_S
"""Speed drifts in steps of this length: short against the drift, and few enough for thousands of GPUs."""

WARM_UP_JOBS: Final = 16

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many runs are done, and of how many."""

OnRun = Callable[[Run], None]
"""Shown every run, from several threads."""


@dataclass(frozen=True, slots=True)
class Hazards:
    """What befalls the hardware: failures by chance, wear, and a list. It is the same for every policy."""

    mtbf_h: float | None = None  # mean hours between two failures of a node; None: none by chance
    repair_h: float = 4.0  # mean hours until it is back
    wear_per_day: float = 0.0  # share of its speed that a GPU loses in a day, on average
    listed: tuple[Disturbance, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What policies are told of the work of recorded jobs: `oracle`, `limit`, `lognormal`, `predicted`, or `trace`.

    The last is what a column of the trace says.
    """

    source: str
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in place of a workload: the same jobs for every seed, or for each seed a window of it."""

    name: str
    all_jobs: Jobs
    report: TraceReport
    estimates: Told
    windows: tuple[Window, ...] = ()  # none: the whole trace

    @property
    def jobs(self) -> int:
        """How many jobs there are, in the largest window if it is cut."""
        return max((window.jobs for window in self.windows), default=len(self.all_jobs))


@dataclass(frozen=True, slots=True)
class Scenario:
    """What policies are put to; a seed makes it definite."""

    plan: Plan
    workload: Workload | Recorded
    jobs: int | None = None  # None: as many as the workload says
    settings: Settings = field(default_factory=Settings)
    hazards: Hazards = field(default_factory=Hazards)
    load: float | None = None  # the offered load that was asked for; None: as the workload says

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of a trace that stand in for seeds; none if there are none."""
        return self.workload.windows if isinstance(self.workload, Recorded) else ()

    @property
    def varies(self) -> bool:
        """Whether anything differs between two seeds."""
        workload, hazards = self.workload, self.hazards
        if isinstance(workload, Recorded) and not workload.windows and workload.estimates.source != "lognormal":
            return hazards.mtbf_h is not None or hazards.wear_per_day > 0
        return True

    @property
    def cluster(self) -> Cluster:
        """The cluster that the jobs run on."""
        return self.plan.cluster


@dataclass(frozen=True, slots=True)
class Instance:
    """A scenario with a seed: the jobs and the disturbances that every policy meets alike."""

    scenario: Scenario
    seed: int
    jobs: Jobs
    view: View
    disturbances: list[tuple[float, int, int, int, float]]
    refusals: dict[int, str]
    traits: "Table | None" = None  # what a predictor sees of the jobs, where policies are told what is predicted


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each policy came to on each seed."""

    scenario: Scenario
    seeds: tuple[int, ...]
    metrics: dict[str, tuple[Metrics, ...]]  # by policy; in the order of the seeds
    baseline: str  # the policy that the others are compared with
    load: tuple[float, ...]  # offered on each seed: work at its fastest over what the GPUs could do meanwhile

    @property
    def over(self) -> str:
        """What stands for one repetition, in a word: a seed, or a window of a trace."""
        return "window" if self.scenario.windows else "seed"

    def per_seed(self, measures: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
        """By policy, by measure: its values in the order of the seeds."""
        return {
            name: {key: [getattr(each, key) for each in results] for key in measures}
            for name, results in self.metrics.items()
        }


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds with its 95 % interval; None where a seed has no value, or where there is only one seed."""

    value: float | None
    low: float | None
    high: float | None


# ---- from names to a scenario ------------------------------------------------------------------------------------


def load_scenario(
    cluster: str,
    workload: str,
    jobs: int | None = None,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    hazards: Hazards = Hazards(),  # noqa: B008  (frozen)
    estimates: str | None = None,
    trace: TraceOptions = TraceOptions(),  # noqa: B008  (frozen)
    windows: int | None = None,
    load: float | None = None,
) -> Scenario:
    """A scenario from the names of shipped ones or from files; everything that can be wrong is found here.

    `trace` says how a trace is read, `windows` into how many it is cut; a synthetic workload has neither.
    """
    check_numbers(restart_s=settings.restart_s, window=settings.window, wear_per_day=hazards.wear_per_day)
    check_numbers(above_0=True, mtbf_h=hazards.mtbf_h, repair_h=hazards.repair_h, jobs=jobs, load=load)
    plan = plan_cluster(load_cluster(cluster))
    pack_disturbances(plan, hazards.listed)
    if not is_trace(workload):
        found = told(find_workload(workload), estimates)
        refuse_trace_options(found.name, trace, windows)
        return Scenario(plan, found if load is None else paced(plan, found, load), jobs, settings, hazards, load)
    recorded = record(workload, estimates, trace)
    if load is not None:
        recorded = paced_trace(plan, recorded, load, trace)
    if windows is not None:
        recorded = replace(recorded, windows=windows_of(recorded.all_jobs, windows, jobs))
    return Scenario(plan, recorded, None if jobs is None else min(jobs, recorded.jobs), settings, hazards, load)


def told(workload: Workload, estimates: str | None) -> Workload:
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


SOURCES: Final = {
    "oracle": "oracle",
    "user": "limit",
    "limit": "limit",
    "noisy": "lognormal",
    "lognormal": "lognormal",
    "predicted": "predicted",
}
"""How estimates are asked for, and what workload files call them."""


def estimates_of(text: str) -> Estimates:
    """The estimates that a text asks for: oracle, user (or limit), noisy:SIGMA (or lognormal:SIGMA), predicted."""
    word, _, sigma = text.partition(":")
    source = SOURCES.get(word)
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
    """Refuse what only a trace can be asked for."""
    plain = TraceOptions()
    given = [each.name for each in fields(TraceOptions) if getattr(trace, each.name) != getattr(plain, each.name)]
    flags = {"gpus_per_unit": "unit"}
    if windows is not None:
        raise UsageError(f"--windows is for traces; '{name}' has other jobs for every seed. Use --seeds {windows}.")
    if given:
        flag = flags.get(given[0], given[0]).replace("_", "-")
        hints = {"scale-load": " --load sets the load of any workload.", "window": " For the queue say --queue-window."}
        hint = hints.get(flag, "")
        raise UsageError(f"--{flag} is for traces, and the workload '{name}' is not a trace. Leave it out.{hint}")


def check_numbers(above_0: bool = False, **numbers: float | None) -> None:
    """Refuse a number that is not finite, or too small. None is no number, and is fine."""
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and (value > 0 if above_0 else value >= 0)):
            expected = "a number above 0" if above_0 else "a number from 0"
            raise UsageError(f"{name} is {value:g}; expected {expected}.")


def find_workload(name_or_path: str) -> Workload:
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
                find_family(family)
            except CatalogueError as error:
                raise ConfigError(f"{where}: 'families[{number}].family': {error}") from None
    return workload


def find_disturbances(path: str) -> tuple[Disturbance, ...]:
    """The disturbances of a list in TOML or JSON lines."""
    return tuple(read_disturbances(read_text(path, "list of disturbances"), path))


def find_weights(name_or_path: str | None) -> Weights:
    """What counts how much in the HyperScore, from a TOML file; all alike if there is none or it is called 'equal'."""
    if name_or_path is None or name_or_path == "equal":
        return EQUAL
    return read_weights(read_text(name_or_path, "weights file"), name_or_path)


def read_text(path: str, what: str) -> str:
    """The text of a user's file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise CatalogueError(f"cannot read the {what} '{path}': {reason}.") from None


# ---- traces ------------------------------------------------------------------------------------------------------


def is_trace(workload: str) -> bool:
    """Whether this names a trace: a path that is no TOML file. A bare word that is no file is a misspelt name."""
    if workload in workload_names() or workload.endswith(SUFFIX):
        return False
    path = Path(workload)
    return bool(path.suffix) or len(path.parts) > 1 or path.exists()


def record(path: str, estimates: str | None = None, options: TraceOptions = TraceOptions()) -> Recorded:  # noqa: B008
    """A trace as these options ask for it, with these estimates or its own."""
    wanted = estimates_of(estimates) if estimates is not None else None
    if wanted is not None and wanted.source == "limit" and wanted.sigma:
        raise UsageError(f"--estimates is {estimates!r}; the limits of a trace cannot be changed; expected user.")
    # An error in the estimates is drawn with the seed, on top of the true work.
    reading = None if wanted is None else "limit" if wanted.source == "limit" else "oracle"
    jobs, report = read_trace(path, replace(options, estimates=reading))
    if wanted is not None and wanted.source == "lognormal":
        report = replace(report, estimates=f"true work with a log-normal error, sigma {wanted.sigma:g}, by seed")
        return Recorded(report.file, jobs, report, Told("lognormal", wanted.sigma))
    if wanted is not None and wanted.source == "predicted":
        report = replace(report, estimates="predicted, from what has ended in the run")
        return Recorded(report.file, jobs, report, Told("predicted"))
    source = "limit" if report.estimates.startswith("limit") else "oracle" if report.estimates == "oracle" else "trace"
    return Recorded(report.file, jobs, report, Told(source))


def read_trace(path: str, options: TraceOptions) -> tuple[Jobs, TraceReport]:
    """The jobs of a trace in submit order, all of known families, and the report on it."""
    rule = family_rule(options.families or "uniform")
    jobs, report = traces.read_trace(path, options, rule, Measured(measured_family, reference_rate))
    for name in jobs.families:
        try:
            find_family(name)
        except CatalogueError as error:
            raise TraceError(f"'{path}': {error}") from None
    return jobs, report


def family_rule(text: str) -> FamilyRule:
    """The rule behind --families: a family for all jobs, hash:GROUP for measured ones, or what a column says."""
    how, colon, rest = text.partition(":")
    if text.endswith(SUFFIX):
        return mapped_families(text)
    if how == "column" and rest:
        hint = f"Say which families they are in a map: --families FILE{SUFFIX}."
        return FamilyRule(f"as in column '{rest}'", ("uniform",), rest, measured_family, hint)
    if how != "hash" and not colon:
        return FamilyRule(text, (find_family(text).name,))
    names = tuple(name for name in families() if name.startswith(f"{rest}/") and runs_alone(name))
    if how != "hash" or not names or not rest:
        raise UsageError(
            f"--families is {text!r}; expected uniform, hash:sia, hash:gavel, the name of a family, column:NAME, "
            f"or a map that ends in {SUFFIX}."
        )
    return FamilyRule(text, names)


def mapped_families(path: str) -> FamilyRule:
    """The rule of a file that maps the values of a column to families."""

    def known(key: str, name: str) -> str:
        try:
            return find_family(name).name
        except CatalogueError as error:
            raise ConfigError(f"{path}: '{key}': {error}") from None

    found = read_family_map(read_text(path, "map of families"), path, known)
    hint = f"Add what is missing to [map] in {path}, or a default."
    return FamilyRule(found.told(), ("uniform",), found.column, found.family_of, hint)


def runs_alone(family: str) -> bool:
    """Whether one GPU of the reference model can run it: a trace has jobs of every size."""
    link = Link("nvlink", 300.0)
    return speed_of(family, Placing(gpu_models()[REFERENCE], 1, 1, link, link)).value > 0


def measured_family(original: str) -> str | None:
    """Our name for a family of a job list, if it was measured."""
    try:
        return find_family(original).name
    except CatalogueError:
        return None


def reference_rate(family: str) -> float | None:
    """Steps per second on one GPU of the reference model, as measured by Gavel."""
    text = resources.files("adlro.catalogue").joinpath("throughputs", "gavel.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        if (row["family"], row["gpu"], row["gpus"], row["across"]) == (family, REFERENCE, "1", "0"):
            return float(row["per_second"])
    return None


def jobs_of(recorded: Recorded, seed: int, most: int | None) -> Jobs:
    """The jobs of a trace, or of the window that stands in for the seed, in a table of their own."""
    first, count = 0, recorded.jobs
    if recorded.windows:
        if not 0 <= seed < len(recorded.windows):
            raise UsageError(
                f"there is no window {seed}: '{recorded.name}' has {len(recorded.windows)} windows, counted from 0."
            )
        first, count = recorded.windows[seed].first_job, recorded.windows[seed].jobs
    jobs = cut(recorded.all_jobs, first, count if most is None else min(most, count))
    told = recorded.estimates
    return misjudged(jobs, told.sigma, seed) if told.source == "lognormal" else jobs


# ---- the load asked for ------------------------------------------------------------------------------------------


def paced(plan: Plan, workload: Workload, load: float) -> Workload:
    """The workload with the mean time between arrivals at which the load is expected to be this; a surge comes on top.

    The mean work of a job is computed from the distributions, so the factor is the same for every seed.
    """
    if workload.arrivals.process == "all-at-once":
        raise UsageError(
            f"--load {load:g}: the jobs of '{workload.name}' arrive all at once, so there is no offered load."
        )
    kinds, chance = one_of_each(workload)
    kinds = named_as_in(plan.cluster, kinds)
    needed = float(chance @ gpu_seconds(kinds, pack(plan, kinds, speed_of)))
    if not needed:
        raise UsageError(f"--load {load:g}: no job of '{workload.name}' uses a GPU of {plan.cluster.name}.")
    interval_s = needed / (load * plan.cluster.gpu_count)
    arrivals = workload.arrivals.model_copy(update={"mean_interarrival_s": interval_s})
    return workload.model_copy(update={"arrivals": arrivals})


def paced_trace(plan: Plan, recorded: Recorded, load: float, options: TraceOptions) -> Recorded:
    """The trace with all times between submissions stretched by the factor that gives the whole of it this load."""
    if options.scale_load != 1.0:
        raise UsageError(f"--load {load:g} and --scale-load {options.scale_load:g} exclude each other. Leave one out.")
    jobs = named_as_in(plan.cluster, cut(recorded.all_jobs, 0, len(recorded.all_jobs)))
    needed = float(gpu_seconds(jobs, pack(plan, jobs, speed_of)).sum())
    span_s = recorded.report.span_s
    if not needed or not span_s:
        why = "its jobs come all at once" if needed else f"no job of it uses a GPU of {plan.cluster.name}"
        raise UsageError(f"--load {load:g}: '{recorded.name}' has no load: {why}.")
    factor = needed / (plan.cluster.gpu_count * span_s) / load
    report = replace(recorded.report, scale_load=1 / factor, span_s=span_s * factor)
    return replace(recorded, all_jobs=slowed(recorded.all_jobs, factor), report=report)


def gpu_seconds(jobs: Jobs, view: View) -> Floats:
    """What each job needs of the cluster where it runs fastest; 0 if it runs nowhere."""
    table, fastest = jobs.table, view.fastest[jobs.table["demand"]]
    runtime = np.divide(jobs.work, fastest, out=np.zeros(len(jobs)), where=fastest > 0)
    return runtime * (table["gpus"] * (table["share"] / WHOLE_GPU))


# ---- from a scenario to runs -------------------------------------------------------------------------------------


def load_jobs(workload: str, seed: int, count: int | None = None) -> Jobs:
    """Jobs drawn from a shipped workload or a TOML file, in submit order."""
    return generate(find_workload(workload), seed, count)


def draw(scenario: Scenario, seed: int) -> Instance:
    """Draw the jobs and disturbances of a seed, and pack them for the cluster."""
    workload = scenario.workload
    if isinstance(workload, Recorded):
        jobs = jobs_of(workload, seed, scenario.jobs)
    else:
        jobs = generate(workload, seed, scenario.jobs)
    jobs = named_as_in(scenario.cluster, jobs)
    traits = None
    if workload.estimates.source == "predicted":
        jobs, traits = untold(jobs), traits_of(jobs)
    view = pack(scenario.plan, jobs, speed_of)
    disturbances = pack_disturbances(scenario.plan, disturbances_of(scenario, jobs, seed))
    return Instance(scenario, seed, jobs, view, disturbances, refusals(scenario.plan, jobs, view), traits)


def named_as_in(cluster: Cluster, jobs: Jobs) -> Jobs:
    """The same jobs with allowed GPU models called as the cluster calls them; unknown ones keep their names."""
    names = {}
    for word in sorted(frozenset().union(*jobs.allowed)):
        try:
            names[word] = find_gpu(word, cluster.models).name
        except CatalogueError:
            continue  # a model of another cluster's own: these jobs are refused here, with that reason
    return with_model_names(jobs, names)


def disturbances_of(scenario: Scenario, jobs: Jobs, seed: int) -> list[Disturbance]:
    """All that befalls the cluster for longer than any sensible policy needs for these jobs."""
    hazards, nodes = scenario.hazards, scenario.cluster.nodes
    found = list(hazards.listed)
    if hazards.mtbf_h is None and not hazards.wear_per_day:
        return found
    at_best_s = float(jobs.table["submit"].max() + jobs.work.sum() / max(1, scenario.cluster.gpu_count))
    until_s = DAY_S + 4 * at_best_s
    if hazards.mtbf_h is not None:
        names = [node.name for node in nodes]
        found += failures(names, hazards.mtbf_h * HOUR_S, hazards.repair_h * HOUR_S, until_s, seed)
    if hazards.wear_per_day:
        gpus = {node.name: sum(group.count for group in node.gpus) for node in nodes}
        found += wear(gpus, hazards.wear_per_day, WEAR_SPREAD, WEAR_STEP_S, until_s, seed)
    return sorted(found, key=lambda item: item.time_s)


def run_one(scenario: Scenario, policy: Policy, seed: int) -> Run:
    """One policy on one seed, to the end."""
    instance = draw(scenario, seed)
    return play_out(instance, instance.view, policy)


def play_out(instance: Instance, view: View, policy: Policy) -> Run:
    """Let the policy run on a view of the instance that nobody has used yet."""
    scenario, plan = instance.scenario, instance.scenario.plan
    player = None
    if instance.traits is not None:
        player = Predicting.new(instance.traits)
        view = view._replace(jobs=view.jobs.copy())  # what is told of them changes in each run
    try:
        outcome = simulate(
            view, instance.jobs.work, policy, scenario.settings, instance.disturbances, instance.seed, player
        )
    except (AdlroError, MemoryError):
        raise
    except Exception as error:  # a policy may be anybody's code
        said = (str(error).strip().splitlines() or [""])[0]
        raise PolicyError(f"the policy '{policy.name}' failed: {type(error).__name__}: {said}") from error
    return Run(
        cluster=plan.cluster,
        jobs=instance.jobs,
        events=outcome.events,
        rate=view.rate,
        site_form=column(plan.sites["form"]),
        site_model=tuple(plan.models[model] for model in plan.sites["model"]),
        site_gpus=column(plan.sites["gpus"]),
        site_node=column(plan.sites["node"]),
        policy=policy.name,
        seed=instance.seed,
        unfinished=outcome.unfinished,
        refusals=instance.refusals,
        illegal=outcome.illegal,
    )


def column(values: Ints) -> Ints:
    """A field of a table as an array of its own."""
    return np.ascontiguousarray(values, np.int32)


def unused(view: View) -> View:
    """A copy of a freshly packed view for one run; what no run ever changes is shared."""
    shared = {"jobs", "form_sites", "pool_sites", "rate", "width", "fastest"}
    return view._replace(**{name: getattr(view, name).copy() for name in view._fields if name not in shared})


# ---- several policies on the same seeds --------------------------------------------------------------------------


def compare(
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    threads: int | None = None,
    on_progress: OnProgress = lambda _what, _done, _total: None,
    baseline: str | None = None,
    on_run: OnRun = lambda _run: None,
) -> Comparison:
    """Measure every policy on the same seeds: on each of them all policies meet the same jobs and disturbances.

    Compiled policies run side by side on all cores, or on so many `threads`; the results do not depend on it.
    The baseline is the first policy, or the one of that name. `on_run` may look at every run before it is forgotten.
    """
    names = [policy.name for policy in policies]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise UsageError(
            f"the baseline '{baseline}' is not among the policies compared.{nearest(baseline, names)} "
            f"The policies compared are {', '.join(names)}."
        )
    if len(seeds) > 1 and not scenario.varies:
        raise UsageError(
            f"{len(seeds)} seeds for the trace '{scenario.workload.name}', whose jobs are the same for every seed: "
            f"nothing would differ between them. Use --windows {len(seeds)} to cut it into windows, or --seeds 1."
        )
    threads = threads or os.cpu_count() or 1
    total = len(policies) * len(seeds)
    warm_up(scenario, policies, seeds[0], lambda name: on_progress(f"getting {name} ready", 0, total))
    found: dict[str, list[Metrics]] = {policy.name: [] for policy in policies}
    load: list[float] = []
    done = 0

    def collect(runs: Sequence[Future[Metrics]]) -> None:
        nonlocal done
        for policy, run in zip(policies, runs, strict=True):
            found[policy.name].append(run.result())
            done += 1
            on_progress(policy.name, done, total)

    pool = ThreadPoolExecutor(threads)
    under_way: deque[list[Future[Metrics]]] = deque()
    try:
        for seed in seeds:
            instance = draw(scenario, seed)
            load.append(offered_load(instance))
            under_way.append([pool.submit(judge, instance, policy, on_run) for policy in policies])
            if len(under_way) > threads:  # so that many seeds of many jobs need not lie in memory at once
                collect(under_way.popleft())
        while under_way:
            collect(under_way.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    metrics = {name: tuple(values) for name, values in found.items()}
    return Comparison(scenario, tuple(seeds), metrics, baseline, tuple(load))


def judge(instance: Instance, policy: Policy, on_run: OnRun = lambda _run: None) -> Metrics:
    """The measures of one run."""
    run = play_out(instance, unused(instance.view), policy)
    on_run(run)
    return measure(run)


def offered_load(instance: Instance) -> float:
    """GPU-seconds of work at its fastest, over those of the cluster while jobs arrive; infinite if all come at once."""
    needed, submit = float(gpu_seconds(instance.jobs, instance.view).sum()), instance.jobs.table["submit"]
    there = instance.scenario.cluster.gpu_count * float(submit[-1] - submit[0])
    return needed / there if there else math.inf


def warm_up(scenario: Scenario, policies: Sequence[Policy], seed: int, on_policy: Callable[[str], None]) -> None:
    """Run each policy on a few jobs, so that what must be compiled is compiled once and not by every thread."""
    few = replace(scenario, jobs=min(WARM_UP_JOBS, scenario.jobs or scenario.workload.jobs))
    instance = None
    for policy in policies:
        on_policy(policy.name)
        instance = instance or draw(few, seed)
        judge(instance, policy)


def metric_names() -> tuple[str, ...]:
    """The names of all measures, in the order in which they are documented."""
    return tuple(each.name for each in fields(Metrics))


def over_seeds(values: Sequence[float | None]) -> Mean:
    """Mean over seeds, with a t interval."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Mean(None, None, None)
    mean = fmean(known)
    if len(known) == 1:
        return Mean(mean, None, None)
    reach = float(stdtrit(len(known) - 1, (1 + CONFIDENCE) / 2)) * stdev(known) / math.sqrt(len(known))
    return Mean(mean, mean - reach, mean + reach)
