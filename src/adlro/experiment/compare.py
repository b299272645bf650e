"""Several policies on the same seeds, and the means over these seeds. Nothing is printed here."""

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from adlro.experiment.scenario import Scenario
from adlro.experiment.side_by_side import compiled_side_by_side
from adlro.measure.hyperscore import EQUAL, Weights
from adlro.measure.metrics import Metrics, measure

if TYPE_CHECKING:
    from pandas import DataFrame

    from adlro.measure.drawing import Figure

CONFIDENCE: Final = 0.95

WARM_UP_JOBS: Final = 16

OnProgress = Callable[[str, int, int], None]
"""Told what is being done, how many runs are done, and of how many."""

OnRun = Callable[[Run], None]
"""Shown every run, from several threads."""


Times = dict[tuple[str, int], tuple[int, Floats]]
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
    times: Times = field(default_factory=dict)  # for a report; empty if they were not kept
    weights: Weights = EQUAL  # of the HyperScore
    with_regression: bool = False  # whether results include the regression of completion times
    is_the_papers: bool = False  # whether it is the experiment of the paper's Table 1
    command: str = ""  # what made it

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
    if len(seeds) > 1:  # loading it takes as long as the runs, which leave Python alone
        Thread(target=import_module, args=["scipy.stats"]).start()
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

    longest_first = sorted(policies, key=lambda policy: policy.choose is not None)  # those in plain Python
    pool = ThreadPoolExecutor(threads)
    under_way: deque[list[Future[Metrics]]] = deque()
    try:
        for seed in seeds:
            instance = draw(scenario, seed)
            load.append(offered_load(instance))
            runs = {policy.name: pool.submit(judge, instance, policy, on_run) for policy in longest_first}
            under_way.append([runs[policy.name] for policy in policies])
            if len(under_way) > threads:  # so that many seeds of many jobs need not lie in memory at once
                collect(under_way.popleft())
        while under_way:
            collect(under_way.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    metrics = {name: tuple(values) for name, values in found.items()}
    return Comparison(scenario, tuple(seeds), metrics, baseline, tuple(load), tuple(policies))


def judge(instance: Instance, policy: Policy, on_run: OnRun = lambda _run: None) -> Metrics:
    """The measures of one run."""
    run = play_out(instance, copied(instance.view), policy)
    on_run(run)
    return measure(run)


def warm_up(scenario: Scenario, policies: Sequence[Policy], seed: int, on_policy: Callable[[str], None]) -> None:
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
    """Run a policy on a few jobs, so that all that it needs is compiled."""
    few = replace(scenario, jobs=min(WARM_UP_JOBS, scenario.jobs or scenario.workload.jobs))
    judge(draw(few, seed), policy)
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
