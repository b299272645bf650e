"""Policies that may not stop every job: `srtf+stops(10)` is srtf that stops no job more than ten times.

A live cluster has the same wrapper around its policy. Its rule also knows which jobs are marked as restartable, and
how often each user was affected (live/stops.py).
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Generic, Protocol, TypeVar, final

import numpy as np

from adlro.core.copying import copied
from adlro.core.driver import made
from adlro.core.policy import Choose, Policy, waiting
from adlro.core.remembering import Remembered, Remembers
from adlro.core.tables import ALL_SPENT, RUNNING, STOP, Choice, View
from adlro.core.units import HOUR_S

STOPS: Final = "stops"

_Name = TypeVar("_Name", int, str)


class StopRule(Protocol):
    """Says which running jobs may be stopped. It is told of every stop."""

    def may_stop(self, view: View, j: int) -> bool:
        """Whether this running job may be stopped now."""

    def note_stop(self, view: View, j: int) -> None:
        """Count a stop that was chosen."""

    def spent(self, view: View) -> Mapping[int, int]:
        """By job, what is used up of its own budget (JOB.spent), as far as the view does not say so."""


@dataclass(frozen=True, slots=True)
class StopBudget:
    """How often jobs may be stopped: each job in its life, the jobs of each user in an hour, all jobs in an hour."""

    per_job: float
    per_user_hour: float = math.inf
    per_hour: float = math.inf


@final
class StopCounts(Generic[_Name]):
    """The stops so far, against a budget. Times are seconds by any one clock; jobs and users have names or numbers."""

    def __init__(self, budget: StopBudget) -> None:
        self.budget = budget
        self.by_job: dict[_Name, int] = {}
        self.recent: deque[tuple[float, _Name]] = deque()
        """Time and user of the stops within the last hour, the oldest first."""

    def used_up(self, job: _Name, user: _Name, now: float) -> str:
        """The first budget that has no stop left for this job, in words; "" if all have."""
        self.forget_before(now - HOUR_S)
        budget = self.budget
        if self.by_job.get(job, 0) >= budget.per_job:
            return f"it was stopped {self.by_job.get(job, 0)} times, the most that one job may be"
        if len(self.recent) >= budget.per_hour:
            return f"{len(self.recent)} jobs were stopped in the last hour, the most that is allowed"
        mine = sum(who == user for _, who in self.recent)
        if mine >= budget.per_user_hour:
            return f"{mine} jobs of its user were stopped in the last hour, the most that is allowed"
        return ""

    def add(self, job: _Name, user: _Name, now: float) -> None:
        """Count a stop."""
        self.by_job[job] = self.by_job.get(job, 0) + 1
        self.recent.append((now, user))

    def take_back(self, job: _Name, user: _Name) -> None:
        """Uncount the latest stop of a job, which was not carried out."""
        self.by_job[job] -= 1
        at = next(i for i in reversed(range(len(self.recent))) if self.recent[i][1] == user)
        del self.recent[at]

    def forget_before(self, time: float) -> None:
        """Forget when older stops were; how often each job was stopped stays."""
        while self.recent and self.recent[0][0] <= time:
            self.recent.popleft()


def spent_of(stops: int, most: float) -> int:
    """What so many stops use up of a job's own budget (JOB.spent); all of it, if it has no stops."""
    return min(ALL_SPENT, int(ALL_SPENT * stops / most)) if most > 0 else ALL_SPENT


@final
class CountedRule:
    """Every job may be stopped, as far as the budget reaches. Jobs and users are rows of the view."""

    def __init__(self, budget: StopBudget) -> None:
        self.counts = StopCounts[int](budget)

    def may_stop(self, view: View, j: int) -> bool:
        """Whether the budget has a stop left for this job."""
        return not self.counts.used_up(j, int(view.jobs[j].user), float(view.clock[0].now))

    def note_stop(self, view: View, j: int) -> None:
        """Count it."""
        self.counts.add(j, int(view.jobs[j].user), float(view.clock[0].now))

    def spent(self, view: View) -> Mapping[int, int]:
        """What each job has used up of its budget."""
        most = self.counts.budget.per_job
        if most <= 0:
            return dict.fromkeys(range(len(view.jobs)), ALL_SPENT)
        return {j: spent_of(count, most) for j, count in self.counts.by_job.items()}


def with_few_stops(policy: Policy, per_job: float) -> Policy:
    """The same policy, which stops no job more often than this; 0: it stops none."""
    often = f" more than {per_job:g} times" if per_job else ""
    return replace(
        policy,
        name=f"{policy.name}+{STOPS}({per_job:g})",
        summary=f"{policy.summary}; no job is stopped{often}",
        choose=None,
        make=lambda view, seed: LimitedStops(
            policy.choose or made(policy, view, seed), CountedRule(StopBudget(per_job)), policy.heeds_marks
        ),
    )


@cache
def without_stops(policy: Policy) -> Policy:
    """The same policy, which stops no job; a policy that stops none anyway stays as it is."""
    return with_few_stops(policy, 0) if policy.preemptive else policy


def with_stop_rule(policy: Policy, rule: StopRule) -> Policy:
    """The same policy, which stops only jobs that the rule lets it stop."""
    return replace(
        policy,
        name=f"{policy.name}+{STOPS}",
        choose=None,
        make=lambda view, seed: LimitedStops(policy.choose or made(policy, view, seed), rule, policy.heeds_marks),
    )


@final
class LimitedStops:
    """Asks another, from which it hides the running jobs that may not be stopped; or marks them, if that is heeded.

    To refuse a stop when it comes would be too late: the other may have stopped a job already so that, with this one,
    there is room for a third.
    """

    def __init__(self, base: Choose, rule: StopRule, heeds_marks: bool = False) -> None:
        self.base, self._rule, self._heeds_marks = base, rule, heeds_marks

    def __call__(self, view: View) -> Choice:
        """What the other chooses, unless it stops a job that may not be stopped."""
        choice = self.base(self._with_fixed(view))
        if is_stop(view, choice):
            if not self._rule.may_stop(view, choice.job):
                return waiting()
            self._rule.note_stop(view, choice.job)
        return choice

    def _with_fixed(self, view: View) -> View:
        """The view as the other sees it: jobs that may not be stopped hold their GPUs, and are marked or in no list."""
        running = view.running[: view.clock[0].running]
        fixed = [j for j in running.tolist() if not self._rule.may_stop(view, j)]
        shown = without_running(view, fixed) if fixed and not self._heeds_marks else view
        spent = self._rule.spent(view)
        if spent or (fixed and self._heeds_marks):
            jobs = view.jobs.copy()
            jobs.spent[list(spent)] = list(spent.values())
            jobs.stoppable[jobs.spent == ALL_SPENT] = 0
            jobs.stoppable[fixed] = 0
            shown = shown._replace(jobs=jobs)
        return shown

    def remembered(self) -> Remembered:
        """What the other keeps, and how often each job was stopped."""
        inner = self.base.remembered() if isinstance(self.base, Remembers) else Remembered()
        if not isinstance(self._rule, CountedRule):
            return inner  # its rule has a memory of its own
        counts = self._rule.counts.by_job
        rest = {**inner.rest, "stops": list(counts.values())}
        return Remembered((*inner.jobs, *counts), inner.by_job, inner.times, rest)

    def recall(self, view: View, kept: Remembered) -> bool:
        """Let the other go on, and count from where it was."""
        if isinstance(self._rule, CountedRule):
            rest = dict(kept.rest)
            counts = rest.pop("stops", [])
            first = len(kept.jobs) - len(counts)
            mine = zip(kept.jobs[first:], counts, strict=True)
            self._rule.counts.by_job.update({j: count for j, count in mine if j >= 0})
            kept = Remembered(kept.jobs[:first], kept.by_job, kept.times, rest)
        return self.base.recall(view, kept) if isinstance(self.base, Remembers) else True


def is_stop(view: View, choice: Choice) -> bool:
    """Whether a choice stops a job that runs."""
    return choice.verb == STOP and 0 <= choice.job < len(view.jobs) and view.runs[choice.job].state == RUNNING


def without_running(view: View, fixed: Sequence[int]) -> View:
    """A view that does not list these running jobs. They keep their GPUs."""
    world = copied(view)
    count = int(world.clock[0].running)
    listed = world.running[:count]
    rest = listed[~np.isin(listed, fixed)]
    world.running[: len(rest)] = rest
    world.clock[0].running = len(rest)
    return world


def innermost(choose: Any) -> Any:
    """The policy inside of all wrappers."""
    while (inner := getattr(choose, "base", None)) is not None:
        choose = inner
    return choose
