"""Policies that resize jobs, in rounds of 60 s: `rank-elastic`, `sia` and `pollux`. docs/policies.md defines them.

Each is a way to choose one configuration (pool and GPUs) for every job; elastic.py has the rounds around it.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from adlro.core.compiled import compiled_allocating
from adlro.core.policy import Policy
from adlro.core.tables import NOBODY, Floats, Ints
from adlro.decide.rules.elastic import SizingProblem, fill_greedily, sizing_rounds, smallest_rates

HORIZON_S: Final = 600.0
"""The time over which rank-elastic counts what a change brings."""

FAIRNESS: Final = -0.5
"""Sia's p: the power of the normalised goodput in its sum."""

UNSERVED: Final = 1.1
"""Sia's λ: what a job without GPUs costs; above the cost of any configuration, which is at most 1."""

MUST: Final = 1000.0
"""More than all other terms of the sum together: a job that still pays for its start stays where it is."""

_SOLVING: Final = threading.Lock()
"""One program at a time: the standard output belongs to the whole process."""

LEAST_FACTOR: Final = 0.01
"""Lower bound of the factor for changes, which is negative for a job that has restarted more than it has lived."""


@compiled_allocating
def rank_sizing(problem: SizingProblem) -> Ints:
    """Short jobs weigh more, by their rank; then the upgrades with the largest gain in weighted speed per GPU."""
    smallest = smallest_rates(problem)
    value = rank_values(problem, smallest, rank_weights(problem, smallest))
    return fill_greedily(problem, value, pool_prices(relative_speeds(problem)))


@compiled_allocating
def rank_weights(problem: SizingProblem, smallest: Floats) -> Floats:
    """The weight of each job: the root of 2 * rank - 1, where the longest job has rank 1. [J]

    Of equal jobs the one that came last counts as the longest.
    """
    count = len(problem.jobs)
    weight = np.empty(count)
    order = np.argsort(-(problem.left / smallest)[::-1], kind="mergesort")  # the longest first
    for i in range(count):
        weight[count - 1 - order[i]] = math.sqrt(2.0 * (i + 1) - 1.0)
    return weight


@compiled_allocating
def rank_values(problem: SizingProblem, smallest: Floats, weight: Floats) -> Floats:
    """The value of each configuration: weighted speed, and what the cost of a change leaves of it. [C]"""
    value = np.empty(len(problem.owner))
    for c in range(len(value)):
        i = problem.owner[c]
        value[c] = weight[i] * problem.rate[c] / smallest[i]
        if problem.now[i] != c:
            horizon = min(problem.left[i] / problem.rate[c], HORIZON_S)
            value[c] *= horizon / max(horizon + problem.restart[i], 1e-9)
    return value


@compiled_allocating
def relative_speeds(problem: SizingProblem) -> Floats:
    """The best speed per GPU of each job on each pool, over that on its best pool. [J, P]"""
    per_gpu = np.zeros((len(problem.jobs), len(problem.capacity)))
    best = np.zeros(len(problem.jobs))
    for c in range(len(problem.owner)):
        i, p = problem.owner[c], problem.pool[c]
        per_gpu[i, p] = max(per_gpu[i, p], problem.rate[c] / problem.gpus[c])
        best[i] = max(best[i], per_gpu[i, p])
    for i in range(len(best)):
        per_gpu[i] /= best[i]
    return per_gpu


@compiled_allocating
def pool_prices(relative: Floats) -> Floats:
    """What a GPU of each pool counts: its relative speed on average over the jobs. [P]"""
    price = np.zeros(relative.shape[1])
    for i in range(len(relative)):
        price += relative[i]
    for p in range(len(price)):
        price[p] = max(price[p] / len(relative), 1e-3)
    return price


def change_factor(problem: SizingProblem) -> Floats:
    """What a change leaves of a running job's goodput (Sia, Pollux): (age - restarts * cost) / (age + cost). [J]

    It is 1 for a waiting job, and for one that is younger than a restart is long.
    """
    restarts = np.maximum(problem.starts - 1, 0)
    factor = (problem.age - restarts * problem.restart) / np.maximum(problem.age + problem.restart, 1e-9)
    free = (problem.now == NOBODY) | (problem.age < problem.restart)
    return np.where(free, 1.0, np.clip(factor, LEAST_FACTOR, 1.0))


def sia_sizing(problem: SizingProblem) -> Ints:
    """Sia's integer program: the least sum of (normalised goodput)^p over the jobs, one configuration for each."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # imported here: SciPy loads slowly
    from scipy.sparse import csr_array

    owner, count = problem.owner, len(problem.jobs)
    able = _within_reach(problem)
    least = np.full(count, np.inf)
    np.minimum.at(least, owner, problem.rate)
    fewest = np.full(count, np.inf)
    np.minimum.at(fewest, owner, problem.gpus)
    goodput = problem.rate / least[owner] * np.maximum(fewest, 1.0)[owner]
    goodput = goodput * np.where(problem.changes, change_factor(problem)[owner], 1.0)
    cost = goodput**FAIRNESS - UNSERVED
    cost[problem.now[problem.restarting & (problem.now != NOBODY)]] = -MUST
    columns = np.arange(len(owner))
    one_each = csr_array((np.ones(len(owner)), (owner, columns)), (count, len(owner)))
    gpus = csr_array((problem.gpus, (problem.pool, columns)), (len(problem.capacity), len(owner)))
    with _nothing_printed():
        solved = milp(
            cost,
            integrality=np.ones(len(owner)),
            bounds=Bounds(0, able.astype(np.float64)),
            constraints=[LinearConstraint(one_each, 0, 1), LinearConstraint(gpus, 0, problem.capacity)],
            options={"mip_rel_gap": 1e-4, "time_limit": 10.0, "presolve": False},  # it saves nothing on these
        )
    pick = np.full(count, NOBODY, np.int32)
    if solved.x is None:
        return problem.now.copy()
    for c in np.flatnonzero(solved.x > 0.5):
        pick[owner[c]] = c
    return pick


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Let nothing reach the standard output: HiGHS prints a line of its own now and then, which would spoil JSON."""
    with _SOLVING:
        sys.stdout.flush()
        kept = os.dup(1)
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _within_reach(problem: SizingProblem) -> Ints:
    """1 for configurations that Sia allows now: the smallest size, or at most twice the most GPUs so far. [C]"""
    fewest = np.full(len(problem.jobs), np.inf)
    np.minimum.at(fewest, problem.owner, problem.gpus)
    most = np.maximum(fewest, 2 * problem.most)[problem.owner]
    return (problem.gpus <= most).astype(np.int32)


def pollux_sizing(problem: SizingProblem) -> Ints:
    """The harmonic mean of the speedups over a fair share, which Pollux maximises, by greedy upgrades; models alike."""
    owner = problem.owner
    if not len(owner):
        return np.zeros(0, np.int32)
    count, pools = len(problem.jobs), len(problem.capacity)
    # The goodput of a size is its mean over the pools: Pollux does not know that models differ.
    sizes, at = np.unique(problem.size, return_inverse=True)
    total, seen = np.zeros((count, len(sizes))), np.zeros((count, len(sizes)))
    np.add.at(total, (owner, at), problem.rate)
    np.add.at(seen, (owner, at), 1.0)
    mean = (total / np.maximum(seen, 1.0))[owner, at]
    share = max(1.0, problem.capacity.sum() / count)
    fair = np.zeros(count)
    np.maximum.at(fair, owner, np.where(problem.gpus <= share, mean, 0.0))
    np.maximum(fair, np.where(fair == 0.0, smallest_rates(problem), 0.0), out=fair)
    speedup = mean / fair[owner] * np.where(problem.changes, change_factor(problem)[owner], 1.0)
    # The sum of -1 / speedup; a job without GPUs counts as one hundred times slower than its fair share.
    return fill_greedily(problem, 100.0 - 1.0 / np.maximum(speedup, 0.01), np.ones(pools))


POLICIES: Final = (
    Policy(
        "rank-elastic",
        "resizes jobs in rounds of 1 min; short jobs weigh more, by their rank, and GPUs go where they gain most",
        make=sizing_rounds(rank_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("estimate", "rates"),
        resizes=True,
    ),
    Policy(
        "sia",
        "resizes jobs in rounds of 1 min; least sum of (normalised goodput)^-0.5, an integer program (Sia)",
        make=sizing_rounds(sia_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("rates",),
        resizes=True,
    ),
    Policy(
        "pollux",
        "resizes jobs in rounds of 1 min; largest harmonic mean of speedups over a fair share, models taken as equal",
        make=sizing_rounds(pollux_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("rates",),
        resizes=True,
    ),
)
