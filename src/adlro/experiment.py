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

from adlro.act.simulator import Settings, simulate
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import REFERENCE, families, find_family
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.catalogue.speeds import speed_of
from adlro.catalogue.workloads import SUFFIX, workload_names, workload_text
from adlro.core.errors import AdlroError, CatalogueError, ConfigError, PolicyError, TraceError, UsageError
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU, Cluster, Disturbance, Link, Placing
from adlro.core.run import Run
from adlro.core.tables import Ints, Jobs, View
from adlro.core.toml import nearest
from adlro.ingest.disturbances import DAY_S, failures, read_disturbances, wear
from adlro.ingest.synthetic import generate
from adlro.ingest.traces import catalogue as traces
from adlro.ingest.traces.job_lists import Measured
from adlro.ingest.traces.tabulate import FamilyRule, TraceOptions, TraceReport
from adlro.ingest.workload_file import Estimates, Workload, load_workload
from adlro.measure.hyperscore import EQUAL, Weights, read_weights
from adlro.measure.metrics import Metrics, measure
from adlro.normalise.pack import Plan, pack, pack_disturbances, plan_cluster, refusals, with_model_names

CONFIDENCE: Final = 0.95
HOUR_S: Final = 3600.0

WEAR_SPREAD: Final = 0.5
"""Sigma of the logarithm of a GPU's own drift: some wear at half the average rate, some at twice."""

WEAR_STEP_S: Final = 6 * HOUR_S
"""Speed drifts in steps of this length: short against the drift, and few enough for thousands of GPUs."""

WARM_UP_JOBS: Final = 16

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many runs are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Hazards:
    """What befalls the hardware: failures by chance, wear, and a list. It is the same for every policy."""

    mtbf_h: float | None = None  # mean hours between two failures of a node; None: none by chance
    repair_h: float = 4.0  # mean hours until it is back
    wear_per_day: float = 0.0  # share of its speed that a GPU loses in a day, on average
    listed: tuple[Disturbance, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in place of a workload: the same jobs for every seed."""

    name: str
    all_jobs: Jobs
    report: TraceReport
    estimates: Estimates

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.all_jobs)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What policies are put to; a seed makes it definite."""

    plan: Plan
    workload: Workload | Recorded
    jobs: int | None = None  # None: as many as the workload says
    settings: Settings = field(default_factory=Settings)
    hazards: Hazards = field(default_factory=Hazards)

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each policy came to on each seed."""

    scenario: Scenario
    seeds: tuple[int, ...]
    metrics: dict[str, tuple[Metrics, ...]]  # by policy; in the order of the seeds
    baseline: str  # the policy that the others are compared with
    load: tuple[float, ...]  # offered on each seed: work at its fastest over what the GPUs could do meanwhile

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
) -> Scenario:
    """A scenario from the names of shipped ones or from files; everything that can be wrong is found here."""
    check_numbers(restart_s=settings.restart_s, window=settings.window, wear_per_day=hazards.wear_per_day)
    check_numbers(above_0=True, mtbf_h=hazards.mtbf_h, repair_h=hazards.repair_h, jobs=jobs)
    plan = plan_cluster(load_cluster(cluster))
    pack_disturbances(plan, hazards.listed)
    if is_trace(workload):
        recorded = record(workload, estimates)
        return Scenario(plan, recorded, None if jobs is None else min(jobs, recorded.jobs), settings, hazards)
    return Scenario(plan, told(find_workload(workload), estimates), jobs, settings, hazards)


def told(workload: Workload, estimates: str | None) -> Workload:
    """The workload with other estimates: `oracle`, `limit`, or `lognormal:SIGMA` for an error of that size."""
    if estimates is None:
        return workload
    source, _, sigma = estimates.partition(":")
    try:
        value = float(sigma) if sigma else 0.0
    except ValueError:
        value = -1.0
    if source not in ("oracle", "limit", "lognormal") or not 0.0 <= value <= 5.0 or (sigma and source == "oracle"):
        raise UsageError(
            f"--estimates is {estimates!r}; expected oracle, limit, or lognormal:SIGMA with SIGMA from 0 to 5."
        )
    wanted = Estimates.model_validate({"source": source, "sigma": value})
    return workload.model_copy(update={"estimates": wanted})


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
            f"there is no workload '{name_or_path}'.{nearest(name_or_path, names)} Shipped are "
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


def record(path: str, estimates: str | None = None) -> Recorded:
    """A trace as it is, with these estimates (`limit` or `oracle`), or its own."""
    jobs, report = read_trace(path, TraceOptions(estimates=estimates))
    source = "limit" if report.estimates.startswith("limit") else "oracle"
    return Recorded(report.file, jobs, report, Estimates.model_validate({"source": source}))


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
    """The rule behind --families: one family for all jobs, or hash:sia or hash:gavel for one of the measured ones."""
    how, _, group = text.partition(":")
    if how != "hash":
        return FamilyRule(text, (find_family(text).name,))
    names = tuple(name for name in families() if name.startswith(f"{group}/") and runs_alone(name))
    if not names or not group:
        raise UsageError(f"--families is {text!r}; expected uniform, hash:sia, hash:gavel or the name of a family.")
    return FamilyRule(text, names)


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


def first_jobs(recorded: Recorded, count: int | None) -> Jobs:
    """The first jobs of a trace, in a table of their own: packing writes into it."""
    jobs = recorded.all_jobs
    some = slice(None, count)
    table = jobs.table[some].copy().view(np.recarray)
    return replace(jobs, table=table, work=jobs.work[some].copy())


# ---- from a scenario to runs -------------------------------------------------------------------------------------


def load_jobs(workload: str, seed: int, count: int | None = None) -> Jobs:
    """Jobs drawn from a shipped workload or a TOML file, in submit order."""
    return generate(find_workload(workload), seed, count)


def draw(scenario: Scenario, seed: int) -> Instance:
    """Draw the jobs and disturbances of a seed, and pack them for the cluster."""
    workload = scenario.workload
    if isinstance(workload, Recorded):
        jobs = first_jobs(workload, scenario.jobs)
    else:
        jobs = generate(workload, seed, scenario.jobs)
    jobs = named_as_in(scenario.cluster, jobs)
    view = pack(scenario.plan, jobs, speed_of)
    disturbances = pack_disturbances(scenario.plan, disturbances_of(scenario, jobs, seed))
    return Instance(scenario, seed, jobs, view, disturbances, refusals(scenario.plan, jobs, view))


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
    try:
        outcome = simulate(view, instance.jobs.work, policy, scenario.settings, instance.disturbances, instance.seed)
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
) -> Comparison:
    """Measure every policy on the same seeds: on each of them all policies meet the same jobs and disturbances.

    Compiled policies run side by side on all cores, or on so many `threads`; the results do not depend on it.
    The baseline is the first policy, or the one of that name.
    """
    names = [policy.name for policy in policies]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise UsageError(
            f"the baseline '{baseline}' is not among the policies compared.{nearest(baseline, names)} "
            f"Compared are {', '.join(names)}."
        )
    if isinstance(scenario.workload, Recorded) and len(seeds) > 1 and not by_chance(scenario.hazards):
        raise UsageError(
            f"{len(seeds)} seeds for the trace '{scenario.workload.name}', whose jobs are the same for every seed: "
            f"nothing would differ between them. Say --seeds 1."
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
            under_way.append([pool.submit(judge, instance, policy) for policy in policies])
            if len(under_way) > threads:  # so that many seeds of many jobs need not lie in memory at once
                collect(under_way.popleft())
        while under_way:
            collect(under_way.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    metrics = {name: tuple(values) for name, values in found.items()}
    return Comparison(scenario, tuple(seeds), metrics, baseline, tuple(load))


def by_chance(hazards: Hazards) -> bool:
    """Whether what befalls the hardware depends on the seed."""
    return hazards.mtbf_h is not None or hazards.wear_per_day > 0


def judge(instance: Instance, policy: Policy) -> Metrics:
    """The measures of one run."""
    return measure(play_out(instance, unused(instance.view), policy))


def offered_load(instance: Instance) -> float:
    """GPU-seconds of work at its fastest, over those of the cluster while jobs arrive; infinite if all come at once."""
    table, fastest = instance.jobs.table, instance.view.fastest[instance.jobs.table["demand"]]
    runs = fastest > 0
    runtime = instance.jobs.work[runs] / fastest[runs]
    needed = float(runtime @ (table["gpus"][runs] * table["share"][runs])) / WHOLE_GPU
    there = instance.scenario.cluster.gpu_count * float(table["submit"][-1] - table["submit"][0])
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
