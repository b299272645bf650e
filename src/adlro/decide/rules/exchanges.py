"""Exchanges: where every waiting job can start at once, jobs share out the GPU models by speed alone.

Then nobody waits for anybody, and what is lost is lost on slow GPUs. If a GPU of a model has the same price for all, a
job should be where (1 + price) / speed is least, however long it is. The prices at which every job finds its place are
those at which the product of all speeds is largest. So two jobs exchange their models if that makes the product of
their speeds larger, by more than the restarts are worth. docs/policies.md has the definition.

There is no memory of an exchange that was begun. After the first of the two is stopped it waits; for a waiting job a
change costs nothing. So the exchange is then worth more than before, and is chosen again.
"""

from math import log
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import fastest_rate, in_queue, restart_of, seen, weight_of, work_left
from adlro.core.tables import ALL_SPENT, FOREVER, NOBODY, START, STOP, WAIT, Choice, Floats, Ints, View
from adlro.decide.rules.claims import stays_visible
from adlro.decide.rules.pools import site_in_pool
from adlro.decide.rules.preemptive import time_left
from adlro.decide.rules.timelines import MOST_PLANNED, may_be_stopped

LEAST_GAIN: Final = 0.05
"""What each job that is stopped for an exchange must bring at least, as a logarithm of speed."""

FOR_RESTARTED: Final = 0.0005
"""How much more, times the square of its earlier restarts: otherwise few jobs would be exchanged again and again."""

FOR_SPENT: Final = 1.25
"""How much more, times the square of the share of its budget of stops that is used up."""

FOR_RESTART: Final = 2.0
"""How much more for each share of its time left that a restart costs."""

LONG_ENOUGH: Final = 10.0
"""Models are shared out only if every waiting job runs for at least this many restarts: a start is cheap to undo."""

MOST_EXCHANGES: Final = 64
"""How many exchanges one decision looks for."""

_NEVER: Final = -1e9


class Division(NamedTuple):
    """Who has which model. J' jobs with the same number of GPUs, the running ones first; P pools."""

    jobs: Ints  # [J']
    home: Ints  # [J'] the pool where the job runs; NOBODY: it waits
    goal: Ints  # [J'] the pool that it should have; NOBODY: none is free
    speed: (
        Floats  # [J', P] logarithm of its speed there against its fastest, by its weight; _NEVER: it does not run there
    )
    charge: Floats  # [J'] what leaving its home costs it
    free: Ints  # [P] places for one such job that are free and nobody's goal
    urge: Floats  # [P, P] scratch: what the job that most gains by going from one pool to another gains
    who: Ints  # [P, P] scratch: that job, as an index of `jobs`


@compiled
def all_can_start(view: View) -> bool:
    """Whether free GPUs are enough for all waiting jobs, each on one node, and all of them may be stopped again."""
    clock = view.clock[0]
    waiting = seen(view)
    if waiting < clock.queued or waiting > MOST_PLANNED:
        return False
    free = 0
    for p in range(len(view.pools)):
        free += view.pools[p].free_gpus
    for q in range(waiting):
        j = in_queue(view, q)
        job = view.jobs[j]
        free -= job.gpus
        if free < 0 or job.gpus == 0 or job.share < WHOLE_GPU or job.stoppable == 0 or view.fastest[job.demand] <= 0.0:
            return False
        if time_left(view, j) < LONG_ENOUGH * restart_of(view, j) or not has_room_on_a_node(view, j):
            return False
    return True


@compiled
def has_room_on_a_node(view: View, j: int) -> bool:
    """Whether some node has enough free GPUs for the job, and it never needs several."""
    job = view.jobs[j]
    found = False
    for p in range(len(view.pools)):
        pool = view.pools[p]
        width = view.width[job.kind, view.sites[pool.anchor].form]
        if width > 1:
            return False
        if width == 1 and not found:
            for free in range(job.gpus, pool.largest + 1):
                found = found or view.spare[p, free] > 0
    return found


@compiled
def may_be_exchanged(view: View, v: int) -> bool:
    """Whether a running job may be stopped now, and is on one node."""
    job = view.jobs[v]
    run = view.runs[v]
    return (
        may_be_stopped(view, v)
        and run.parts == NOBODY
        and view.width[job.kind, view.sites[run.site].form] == 1
        and stays_visible(view, v)
    )


@compiled_allocating
def division_now(view: View, gpus: int) -> Division:
    """The running jobs with so many GPUs where they are, and each waiting one on its fastest model that is free.

    The shortest waiting job comes first.
    """
    pools = len(view.pools)
    running = view.clock[0].running
    jobs = np.empty(running + seen(view), np.int32)
    count = 0
    for k in range(running):
        v = view.running[k]
        if view.jobs[v].gpus == gpus and may_be_exchanged(view, v):
            jobs[count] = v
            count += 1
    placed = count
    for q in range(seen(view)):
        j = in_queue(view, q)
        if view.jobs[j].gpus == gpus:
            k = count  # the shortest first
            while k > placed and time_left(view, jobs[k - 1]) > time_left(view, j):
                jobs[k] = jobs[k - 1]
                k -= 1
            jobs[k] = j
            count += 1
    division = Division(
        jobs[:count],
        np.full(count, NOBODY, np.int32),
        np.full(count, NOBODY, np.int32),
        np.full((count, pools), _NEVER),
        np.zeros(count),
        np.zeros(pools, np.int32),
        np.empty((pools, pools)),
        np.empty((pools, pools), np.int32),
    )
    for s in range(len(view.sites)):
        site = view.sites[s]
        if view.nodes[site.node].up != 0:
            division.free[site.pool] += site.free_gpus // gpus
    for k in range(count):
        fill_job(view, division, k, k < placed)
    return division


@compiled
def fill_job(view: View, division: Division, k: int, is_running: bool) -> None:
    """Fill in the speeds of a job, its charge, and its place.

    Speeds are those of the model, without the measured pace of single GPUs: if two jobs exchange their GPUs, the paces
    of these do not change the product of their speeds.
    """
    j = division.jobs[k]
    job = view.jobs[j]
    weight = weight_of(view, j)
    for p in range(len(view.pools)):
        h = view.sites[view.pools[p].anchor].form
        if view.width[job.kind, h] == 1 and view.rate[job.kind, h] > 0.0:
            division.speed[k, p] = weight * log(view.rate[job.kind, h] / view.fastest[job.demand])
    if is_running:
        run = view.runs[j]
        restarts = restart_of(view, j) * fastest_rate(view, j) / work_left(view, j)
        again = FOR_RESTARTED * (run.starts - 1) ** 2 + FOR_SPENT * (job.spent / ALL_SPENT) ** 2
        division.charge[k] = weight * (LEAST_GAIN + again + FOR_RESTART * restarts)
        division.home[k] = view.sites[run.site].pool
        division.goal[k] = division.home[k]
        return
    best = _NEVER
    for p in range(len(view.pools)):
        if division.free[p] > 0 and division.speed[k, p] > best and site_in_pool(view, j, p) != NOBODY:
            best = division.speed[k, p]
            division.goal[k] = p
    if division.goal[k] != NOBODY:
        division.free[division.goal[k]] -= 1


@compiled
def fill_urges(division: Division) -> None:
    """Find who gains most, or loses least, by going from one pool to another."""
    pools = len(division.free)
    division.urge[:] = _NEVER
    division.who[:] = NOBODY
    for k in range(len(division.jobs)):
        a = division.goal[k]
        if a == NOBODY:
            continue
        for b in range(pools):
            if b == a or division.speed[k, b] == _NEVER or division.speed[k, a] == _NEVER:
                continue
            gain = division.speed[k, b] - division.speed[k, a]
            if division.home[k] == a:
                gain -= division.charge[k]
            elif division.home[k] == b:
                gain += division.charge[k]
            if gain > division.urge[a, b]:
                division.urge[a, b] = gain
                division.who[a, b] = k


@compiled
def fit_both(view: View, i: int, j: int) -> bool:
    """Whether of two jobs with equally many GPUs each has enough cores and memory in the place of the other.

    A job that waits has no place yet.
    """
    return has_beside(view, i, j) and has_beside(view, j, i)


@compiled
def has_beside(view: View, j: int, v: int) -> bool:
    """Whether job j has enough cores and memory if it takes the place of job v, or v has no place."""
    s = view.runs[v].site
    if view.runs[v].starts == 0 or s == NOBODY:
        return True
    job = view.jobs[j]
    other = view.jobs[v]
    node = view.nodes[view.sites[s].node]
    return node.free_cpus + other.cpus >= job.cpus and node.free_memory + other.memory >= job.memory


@compiled
def exchange_once(view: View, division: Division) -> bool:
    """Make the best exchange of two jobs, or let a waiting job have a model that is free; whether there was one."""
    fill_urges(division)
    pools = len(division.free)
    best = 1e-9
    one = NOBODY
    other = NOBODY
    into = NOBODY
    for a in range(pools):
        for b in range(pools):
            k = division.who[a, b]
            if k == NOBODY:
                continue
            if division.free[b] > 0 and division.home[k] == NOBODY and division.urge[a, b] > best:
                best = division.urge[a, b]
                one = k
                other = NOBODY
                into = b
            m = division.who[b, a]
            if a > b or m == NOBODY:
                continue
            both = division.urge[a, b] + division.urge[b, a]
            if both > best and fit_both(view, division.jobs[k], division.jobs[m]):
                best = both
                one = k
                other = m
                into = b
    if one == NOBODY:
        return False
    left = division.goal[one]
    division.goal[one] = into
    if other != NOBODY:
        division.goal[other] = left
    else:
        division.free[left] += 1
        division.free[into] -= 1
    return True


@compiled_allocating
def share_out(view: View) -> Choice:
    """The first stop or start that brings the jobs to the models that they should have; WAIT: there is none.

    It may be asked only where `all_can_start`.
    """
    for gpus in range(1, view.spare.shape[1]):
        division = division_now(view, gpus)
        for _ in range(MOST_EXCHANGES):
            if not exchange_once(view, division):
                break
        for k in range(len(division.jobs)):
            if division.home[k] != NOBODY and division.goal[k] != division.home[k]:
                return Choice(STOP, widened(division.jobs[k]), NOBODY, FOREVER)
        for k in range(len(division.jobs)):
            if division.home[k] == NOBODY and division.goal[k] != NOBODY:
                site = site_in_pool(view, division.jobs[k], division.goal[k])
                if site != NOBODY:
                    return Choice(START, widened(division.jobs[k]), widened(site), FOREVER)
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)
