"""Several policies on the same seeds, and the means over these seeds. Nothing is printed here."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Literal

from adlro.core.code_cache import is_ready, set_ready
from adlro.core.copying import copied
from adlro.core.errors import UsageError
from adlro.core.policy import Policy
from adlro.core.run import Run
from adlro.core.tables import Floats
from adlro.core.toml import nearest
from adlro.experiment.instance import Instance, draw, offered_load, play_out
from adlro.experiment.places import Group, Tell, run_place
from adlro.experiment.scenario import Scenario
from adlro.experiment.side_by_side import compiled_side_by_side
from adlro.measure.detail import completion_times
from adlro.measure.hyperscore import EQUAL, ScoreWeights
from adlro.measure.metrics import Metrics, measure
from adlro.measure.statistics import CONFIDENCE

if TYPE_CHECKING:
    from pandas import DataFrame

    from adlro.measure.drawing import Figure


_WARM_UP_JOBS: Final = 16

OnProgress = Callable[[str, int, int], None]
"""Receives what is being done, how many runs are done, and of how many."""

CompletionTimes = dict[tuple[str, int], tuple[int, Floats]]
"""By policy and seed: how many jobs finished, and quantiles of their completion times."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The measures of each policy on each seed. Printed, it is the table of `adlro compare`."""

    scenario: Scenario
    seeds: tuple[int, ...]
    metrics: dict[str, tuple[Metrics, ...]]  # by policy; in the order of the seeds
    baseline: str  # the policy that the others are compared with
    load: tuple[float, ...]  # offered on each seed: work at its fastest over what the GPUs could do meanwhile
    policies: tuple[Policy, ...] = ()
    times: CompletionTimes = field(default_factory=dict)  # for a report; empty if they were not kept
    weights: ScoreWeights = EQUAL  # of the HyperScore
    with_regression: bool = False  # whether results include the regression of completion times
    is_the_papers: bool = False  # whether it is the experiment of the paper's Table 1
    command: str = ""  # what made it
    known: dict[str, tuple[Metrics, ...]] | None = None  # the same with known speeds, if the regret was asked for

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

    def __repr__(self) -> str:
        from adlro.experiment.tables import as_text, comparison_lines

        return as_text(comparison_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values: what `adlro compare --json` prints (docs/json.md)."""
        from adlro.experiment.results import comparison_as_dict

        return comparison_as_dict(self)

    def to_pandas(self, per: Literal["run", "policy"] = "run") -> "DataFrame":
        """A DataFrame with a row for each policy and seed (`run`), or with the means of each policy (`policy`)."""
        from adlro.experiment.frames import of_policies, of_runs

        if per not in ("run", "policy"):
            raise UsageError(f"per is {per!r}; expected 'run' or 'policy'.")
        return of_runs(self) if per == "run" else of_policies(self)

    def plot(self, figure: str = "differences") -> "Figure":
        """A figure of the report by its name: differences, jct, jct-curves, gantt, utilisation, queue and others."""
        from adlro.experiment.report import figure_of

        return figure_of(self, figure)

    def report(self, folder: str | Path, policy: str | None = None) -> Path:
        """Write the report (docs/report.md) into a folder and return its page; `policy` is shown beside the baseline.

        Two runs are played again for it.
        """
        from adlro.experiment.report import check_report, write_report

        check_report(Path(folder), policy, list(self.metrics), "report")
        return write_report(self, Path(folder), policy, self.as_dict())


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds with its 95 % interval; None where a seed has no value, or where there is only one seed."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The kept results of one run."""

    metrics: Metrics
    load: float  # offered on this seed
    times: tuple[int, Floats] | None  # how many jobs finished, and quantiles of their completion times


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of several policies on seeds of one scenario: the work of a place. A group is a seed, an item a policy.

    All policies of a seed meet the same jobs and disturbances.
    """

    scenario: Scenario
    policies: tuple[Policy, ...]
    first_seed: int  # for the warm-up
    keep_times: bool

    def warm_up(self, tell: Tell) -> None:
        """Compile every policy."""
        warm_up_policies(self.scenario, self.policies, self.first_seed, lambda name: tell(f"getting {name} ready"))

    def prepare(self, seed: int) -> tuple[Instance, float]:
        """The jobs of a seed and the load that they offer."""
        instance = draw(self.scenario, seed)
        return instance, offered_load(instance)

    def run(self, prepared: tuple[Instance, float], policy: int) -> Judged:
        """One policy on the jobs of a seed."""
        instance, load = prepared
        run = played(instance, self.policies[policy])
        return Judged(measure(run), load, completion_times(run) if self.keep_times else None)


def run_comparison(
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    threads: int | None = None,
    on_progress: OnProgress = lambda _what, _done, _total: None,
    baseline: str | None = None,
    keep_times: bool = False,
    ray: str | None = None,
) -> Comparison:
    """Measure every policy on the same seeds: on each of them all policies meet the same jobs and disturbances.

    Compiled policies run side by side on all cores, or on so many `threads`, or on a Ray cluster; the results do not
    depend on it. The baseline is the first policy, or the one of that name. `keep_times` keeps completion times.
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
    total = len(policies) * len(seeds)
    loading = Thread(target=import_module, args=["scipy.stats"])
    if len(seeds) > 1:  # loading it takes as long as the runs, which leave Python alone
        loading.start()
    runs = Runs(scenario, tuple(policies), seeds[0], keep_times)
    # Those in plain Python first: they take longest.
    every = tuple(sorted(range(len(policies)), key=lambda item: policies[item].choose is not None))
    found: dict[tuple[int, int], Judged] = {}
    with run_place(ray, threads) as place:
        groups = [Group(runs, seed, every) for seed in seeds]
        for done in place.spread(groups, lambda what: on_progress(what, 0, total)):
            found[done.item, done.key] = done.result
            on_progress(names[done.item], len(found), total)
    if len(seeds) > 1:
        loading.join()  # else the next import of the caller (PyTorch, say) meets modules that are half loaded
    return Comparison(
        scenario,
        tuple(seeds),
        {name: tuple(found[item, seed].metrics for seed in seeds) for item, name in enumerate(names)},
        baseline,
        tuple(found[0, seed].load for seed in seeds),
        tuple(policies),
        times={
            (names[item], seed): each.times for (item, seed), each in sorted(found.items()) if each.times is not None
        },
    )


@dataclass(frozen=True, slots=True)
class Regret:
    """What not knowing the speeds costs a policy: mean JCT with known speeds, and how much longer it is without."""

    known_jct_mean_s: float | None
    jct_mean_s: float | None
    relative: float | None
    interval: tuple[float, float] | None  # 95 %, of the relative regret over the seeds


def regrets(comparison: Comparison) -> dict[str, Regret]:
    """By policy: the regret against known speeds on the same jobs; nothing if it was not asked for."""
    found = {}
    for name, knowing in (comparison.known or {}).items():
        ours = [each.jct_mean_s for each in comparison.metrics[name]]
        theirs = [each.jct_mean_s for each in knowing]
        pairs = [None if a is None or not b else a / b - 1.0 for a, b in zip(ours, theirs, strict=True)]
        with_known, without, spread = over_seeds(theirs).value, over_seeds(ours).value, over_seeds(pairs)
        relative = without / with_known - 1.0 if with_known and without is not None else None
        reach = None if spread.low is None or spread.high is None else (spread.low, spread.high)
        found[name] = Regret(with_known, without, relative, reach)
    return found


def played(instance: Instance, policy: Policy) -> Run:
    """One run of a policy on a copy of an instance."""
    return play_out(instance, copied(instance.view), policy)


def judge_run(instance: Instance, policy: Policy) -> Metrics:
    """The measures of one run."""
    return measure(played(instance, policy))


def warm_up_policies(
    scenario: Scenario, policies: Sequence[Policy], seed: int, on_policy: Callable[[str], None]
) -> None:
    """Run each policy on a few jobs, so that what must be compiled is compiled once and not by every thread.

    Policies that have run before need not: loading what they need takes no time.
    """
    if all(is_ready(policy.name) for policy in policies):
        return
    with compiled_side_by_side(policies):
        for policy in policies:
            on_policy(policy.name)
            judge_few(scenario, policy, seed)


def judge_few(scenario: Scenario, policy: Policy, seed: int) -> None:
    """Run a policy on a few jobs, so that everything it needs is compiled."""
    few = replace(scenario, jobs=min(_WARM_UP_JOBS, scenario.jobs or scenario.workload.jobs))
    judge_run(draw(few, seed), policy)
    set_ready(policy.name)


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
    from scipy.special import stdtrit  # a third of a second, and one seed does without it

    reach = float(stdtrit(len(known) - 1, (1 + CONFIDENCE) / 2)) * stdev(known) / math.sqrt(len(known))
    return Mean(mean, mean - reach, mean + reach)
