"""`plan` with sizes, in rounds of 60 s: `plan-elastic`. docs/policies.md defines it.

Axes: J jobs, C configurations, P pools.
"""

from typing import Final

import numpy as np

from adlro.core.compiled import compiled_allocating
from adlro.core.policy import Policy
from adlro.core.tables import NOBODY, Floats, Ints
from adlro.decide.rules.elastic import SizingProblem, sizing_rounds
from adlro.decide.rules.sizing import HORIZON_S
from adlro.decide.rules.timelines import EXTERNALITY, FILLED


@compiled_allocating
def plan_sizing(problem: SizingProblem) -> Ints:
    """From the shortest job to the longest, the configuration with the least end + externality that has room. [J]"""
    order = longest_first(problem)
    cost = costs_with_externality(problem, order)
    first, last = bounds_of(problem)
    chosen = np.full(len(order), NOBODY, np.int32)
    free = problem.capacity.copy()
    for i in order[::-1]:
        for c in range(first[i], last[i]):
            has_room = problem.gpus[c] <= free[problem.pool[c]] + 1e-9
            if has_room and (chosen[i] == NOBODY or cost[c] < cost[chosen[i]]):
                chosen[i] = c
        if chosen[i] != NOBODY:
            free[problem.pool[chosen[i]]] -= problem.gpus[chosen[i]]
    return chosen


@compiled_allocating
def longest_first(problem: SizingProblem) -> Ints:
    """The jobs by the time left in their fastest configuration, the longest first; of equal jobs the last first."""
    fastest = np.zeros(len(problem.jobs))
    for c in range(len(problem.owner)):
        fastest[problem.owner[c]] = max(fastest[problem.owner[c]], problem.rate[c])
    backwards = np.argsort(-(problem.left / fastest)[::-1], kind="mergesort")
    return len(fastest) - 1 - backwards  # type: ignore[return-value]


@compiled_allocating
def bounds_of(problem: SizingProblem) -> tuple[Ints, Ints]:
    """The first configuration of each job, and the one after its last. [J] and [J]"""
    first, last = np.zeros(len(problem.jobs), np.int64), np.zeros(len(problem.jobs), np.int64)
    for c in range(len(problem.owner) - 1, -1, -1):
        first[problem.owner[c]] = c
    for c in range(len(problem.owner)):
        last[problem.owner[c]] = c + 1
    return first, last  # type: ignore[return-value]


@compiled_allocating
def costs_with_externality(problem: SizingProblem, order: Ints) -> Floats:
    """The runtime of each configuration, with the restart if it is a change, and what it costs the longer jobs. [C]

    From the longest job to the shortest, each wants the pool of its cheapest configuration, with these GPUs.
    """
    cost = np.empty(len(problem.owner))
    first, last = bounds_of(problem)
    wanting, wanted = np.zeros(len(problem.capacity)), np.zeros(len(problem.capacity))
    for i in order:
        best = first[i]
        for c in range(first[i], last[i]):
            p, gpus = problem.pool[c], problem.gpus[c]
            runtime = problem.left[i] / problem.rate[c]
            if problem.now[i] != c:
                # Sizes change often: a restart of a long job must pay within the horizon, not only in the end.
                runtime *= 1.0 + problem.restart[i] / max(min(runtime, HORIZON_S), 1e-9)
            capacity = max(problem.capacity[p], 1.0)
            crowd = 0.0
            if wanted[p] > 0.0:
                crowd = wanting[p] * (wanted[p] - FILLED * (capacity - gpus)) / wanted[p]
                crowd = min(max(crowd, 0.0), wanting[p])
            cost[c] = runtime + EXTERNALITY * runtime * gpus / capacity * crowd
            if cost[c] < cost[best]:
                best = c
        wanting[problem.pool[best]] += 1.0
        wanted[problem.pool[best]] += problem.gpus[best]
    return cost


POLICIES: Final = (
    Policy(
        "plan-elastic",
        "resizes jobs in rounds of 1 min; in the order of plan, the least runtime + cost for the longer jobs",
        make=sizing_rounds(plan_sizing),
        preemptive=True,
        heeds_marks=True,
        needs=("estimate", "rates"),
        resizes=True,
    ),
)
