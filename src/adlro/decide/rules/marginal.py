"""Policies that resize jobs by marginal gain, in rounds of 60 s: `afs` and `optimus`. docs/policies.md defines them.

Both begin with no GPUs for anybody, and give the next step to one job again and again. They differ in whose step it is.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from adlro.core.policy import Policy
from adlro.core.tables import NOBODY, Floats, Ints
from adlro.decide.rules.elastic import SizingProblem, sizing_rounds


class Steps(NamedTuple):
    """The jobs that could have more GPUs, in submit order: what each has so far, and its next step. Axis A."""

    left: Floats  # [A] work left
    now: Floats  # [A] work per second with the GPUs that it has so far; 0: none
    after: Floats  # [A] with its next step
    extra: Floats  # [A] GPUs that the step adds


NextStep: TypeAlias = Callable[[Steps], int]
"""Which of these jobs gets its next step: its place in the list."""


def grown(problem: SizingProblem, whose: NextStep) -> Ints:
    """A configuration or NOBODY for each job: step by step to its next larger size, as long as there are GPUs. [J]

    The next step of a job is its next larger size at which it is faster and for which a model has room: on the model
    where it runs, else on its fastest.
    """
    count, owner, pool = len(problem.jobs), problem.owner, problem.pool
    chosen, where = np.full(count, NOBODY, np.int32), np.full(count, NOBODY, np.int32)
    rate, held, free = np.zeros(count), np.zeros(count), problem.capacity.copy()
    runs_at = np.where(problem.now != NOBODY, pool[problem.now] if len(pool) else NOBODY, NOBODY)
    elsewhere = runs_at[owner] != pool
    order = np.lexsort((-problem.rate, elsewhere, problem.gpus, owner))  # of each job, the first that is able is next
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    while len(owner):
        room = free[pool] + np.where(where[owner] == pool, held[owner], 0.0)
        able = (problem.gpus <= room + 1e-9) & (problem.gpus > held[owner]) & (problem.rate > rate[owner])
        first = np.full(count, len(order), np.int64)
        np.minimum.at(first, owner[able], position[able])
        who = np.flatnonzero(first < len(order))
        if not len(who):
            break
        step = order[first[who]]
        extra = problem.gpus[step] - held[who]
        at = whose(Steps(problem.left[who], rate[who], problem.rate[step], extra))
        i, c = who[at], step[at]
        if where[i] != NOBODY:
            free[where[i]] += held[i]
        free[pool[c]] -= problem.gpus[c]
        chosen[i], where[i], rate[i], held[i] = c, pool[c], problem.rate[c], problem.gpus[c]
    return chosen


def by_future_share(steps: Steps) -> int:
    """AFS: of two jobs the shorter, unless the longer gains more; one pass over the jobs."""
    now, after = steps.now, steps.after
    length = steps.left / np.where(now > 0.0, now, after)
    as_longer = (after - now) / after / steps.extra
    with np.errstate(divide="ignore"):
        as_shorter = (after - now) / now / steps.extra
    best = 0
    for other in range(1, len(now)):
        short, long = (best, other) if length[best] <= length[other] else (other, best)
        best = long if as_longer[long] > as_shorter[short] else short
    return best


def by_time_saved(steps: Steps) -> int:
    """Optimus: the first job without GPUs, if there is one; else the job that saves most time per extra GPU."""
    without = np.flatnonzero(steps.now == 0.0)
    if len(without):
        return int(without[0])
    return int(np.argmax((steps.left / steps.now - steps.left / steps.after) / steps.extra))


def afs_sizing(problem: SizingProblem) -> Ints:
    """The configurations of AFS."""
    return grown(problem, by_future_share)


def optimus_sizing(problem: SizingProblem) -> Ints:
    """The configurations of Optimus."""
    return grown(problem, by_time_saved)


POLICIES: Final = (
    Policy(
        "afs",
        "resizes jobs in rounds of 1 min; the next GPU goes to the shorter job, unless a longer one gains more (AFS)",
        make=sizing_rounds(afs_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("estimate", "rates"),
        resizes=True,
    ),
    Policy(
        "optimus",
        "resizes jobs in rounds of 1 min; one step for each job, then where it saves most time per GPU (Optimus)",
        make=sizing_rounds(optimus_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("estimate", "rates"),
        resizes=True,
    ),
)
