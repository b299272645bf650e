"""A world to train policies in that resize jobs: rounds and GPUs, but no nodes. Much quicker than a simulation.

Every minute the policy gives each job a configuration or none. A change costs the job its restart; so does its first
start. GPUs are counted by pool: whether they lie together on a node is left out, which is right as long as
configurations fill nodes (`decide/rules/elastic.py`). On Sia's lists the mean completion time is that of a simulation
within two percent.

Axes: N jobs of the list, K kinds of jobs, E entries of all kinds (by kind), P pools.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled_allocating
from adlro.core.tables import NOBODY, Floats, Ints
from adlro.decide.network.sizing_net import SizingWeights, learned_sizing
from adlro.decide.rules.elastic import SIZING_ROUND_S, SizingProblem
from adlro.decide.rules.pools import Indices


class Kinds(NamedTuple):
    """The configurations of each kind of job, and the cluster."""

    first: Indices  # [K + 1] its entries are first[k] to first[k + 1]
    pool: Ints  # [E]
    size: Ints  # [E]
    rate: Floats  # [E]
    capacity: Floats  # [P]


class RoundJobs(NamedTuple):
    """A list of jobs, in submit order."""

    submit: Floats  # [N] s
    kind: Indices  # [N]
    work: Floats  # [N]
    restart: Floats  # [N] s
    stoppable: npt.NDArray[np.bool_]  # [N]


@compiled_allocating
def problem_at(
    now: float,
    jobs: Indices,
    jobs_of: RoundJobs,
    kinds: Kinds,
    capacity: Floats,
    left: Floats,
    entry: Indices,
    since: Floats,
) -> SizingProblem:
    """What is to be decided now on these jobs. The past of the jobs, which the network does not see, is left out."""
    count, entries = len(jobs), 0
    for j in jobs:
        entries += kinds.first[jobs_of.kind[j] + 1] - kinds.first[jobs_of.kind[j]]
    owner, pool, size = np.empty(entries, np.int32), np.empty(entries, np.int32), np.empty(entries, np.int32)
    rate, running = np.empty(entries), np.full(count, NOBODY, np.int32)
    restarting = np.zeros(count, np.bool_)
    at = 0
    for i in range(count):
        j = jobs[i]
        restarting[i] = entry[j] != NOBODY and since[j] > now
        for e in range(kinds.first[jobs_of.kind[j]], kinds.first[jobs_of.kind[j] + 1]):
            owner[at], pool[at], size[at], rate[at] = i, kinds.pool[e], kinds.size[e], kinds.rate[e]
            if entry[j] == e:
                running[i] = at
            at += 1
    nothing = np.zeros(count)
    return SizingProblem(
        jobs, left[jobs], jobs_of.restart[jobs], nothing, nothing, running, nothing, restarting,
        jobs_of.stoppable[jobs], owner, pool, size.astype(np.float64), size, rate, capacity,
    )  # fmt: skip


@compiled_allocating
def mean_completion(jobs_of: RoundJobs, kinds: Kinds, weights: SizingWeights, longest_s: float) -> float:
    """The mean completion time under the network, in seconds.

    The run is cut off so long after the last arrival: then each job that is left counts as if it ended after twice the
    time of the run. A network may change jobs so often that nothing gets done.
    """
    count = len(jobs_of.submit)
    left, end, since = jobs_of.work.copy(), np.full(count, np.inf), np.zeros(count)
    entry = np.full(count, NOBODY, np.int64)
    here = np.empty(count, np.int64)
    present, arrived, finished = 0, 0, 0
    now = jobs_of.submit[0]
    while finished < count and now < jobs_of.submit[-1] + longest_s:
        while arrived < count and jobs_of.submit[arrived] <= now:
            here[present] = arrived
            present += 1
            arrived += 1
        if present == 0:
            now = jobs_of.submit[arrived]
            continue
        capacity, count_here = kinds.capacity.copy(), 0
        jobs = np.empty(present, np.int64)
        for i in range(present):
            j = here[i]
            if entry[j] == NOBODY or jobs_of.stoppable[j]:
                jobs[count_here] = j
                count_here += 1
            else:
                capacity[kinds.pool[entry[j]]] -= kinds.size[entry[j]]
        if count_here > 0:
            problem = problem_at(now, jobs[:count_here], jobs_of, kinds, capacity, left, entry, since)
            chosen = learned_sizing(problem, weights)
            for i in range(count_here):
                c, j = chosen[i], jobs[i]
                if c != problem.now[i]:
                    entry[j] = NOBODY if c == NOBODY else kinds.first[jobs_of.kind[j]] + c - _first_entry(problem, c)
                    since[j] = now + jobs_of.restart[j]
        over, still = now + SIZING_ROUND_S, 0
        for i in range(present):
            j = here[i]
            if entry[j] != NOBODY:
                rate, begin = kinds.rate[entry[j]], max(now, since[j])
                if begin + left[j] / rate <= over:
                    end[j] = begin + left[j] / rate
                    finished += 1
                    continue
                left[j] -= rate * max(0.0, over - begin)
            here[still] = j
            still += 1
        present, now = still, over
    for j in range(count):
        if math.isinf(end[j]):
            end[j] = 2 * now
    return (end - jobs_of.submit).mean()


@compiled_allocating
def _first_entry(problem: SizingProblem, c: int) -> int:
    """The first configuration of the job that this one belongs to."""
    first = c
    while first > 0 and problem.owner[first - 1] == problem.owner[c]:
        first -= 1
    return first
