"""Rules that stop jobs: least remaining time, least attained service. docs/policies.md defines each one exactly."""

from typing import Final

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    attained,
    count_bits,
    fastest_rate,
    gpu_share,
    in_queue,
    most_in,
    portion,
    runtime,
    seen,
    shared_gpu,
    work_left,
)
from adlro.core.tables import FOREVER, NOBODY, STOP, WAIT, Choice, Floats, Ints, View
from adlro.decide.choosing import Key, first_spot, hopeless, shortest, start_or_wait

QUANTUM_S: Final = 360.0
"""Seconds after which las checks again, in addition to arrivals and ends."""

DEMOTION: Final = 3600.0
"""GPU-seconds after which tiresias moves a job from its first queue to its second."""


# ---- keys: smallest first ----------------------------------------------------------------------------------------


@compiled
def time_left(view: View, j: int) -> float:
    """Estimated seconds left at the job's fastest site."""
    return work_left(view, j) / fastest_rate(view, j)


@compiled
def service_left(view: View, j: int) -> float:
    """Estimated GPU-seconds left at the job's fastest site."""
    return time_left(view, j) * gpu_share(view, j)


@compiled
def service(view: View, j: int) -> float:
    """GPU-seconds received so far."""
    return attained(view, j)


@compiled
def tiresias_key(view: View, j: int) -> float:
    """The job's queue (first or second), and its position in that queue."""
    place = j / (len(view.jobs) + 1.0)
    return place + (1.0 if attained(view, j) >= DEMOTION else 0.0)


# ---- making room -------------------------------------------------------------------------------------------------


@compiled
def add_room(view: View, j: int, sign: int, room: Ints, levels: Ints) -> None:
    """Count what a running job holds as room at each of its sites (sign 1), or no longer (sign -1).

    `room` has the GPUs of each site, followed by cores and memory of each node. `levels` is like View.spare: the number
    of sites of each pool by their number of GPUs, counting free GPUs and room.
    """
    job = view.jobs[j]
    run = view.runs[j]
    sites = len(view.sites)
    whole = max(job.gpus, 1)
    s = run.site
    mask = run.mask
    p = run.parts
    while True:
        count = count_bits(mask)
        # A job without GPUs holds all its cores and memory at one site.
        part = count if job.gpus > 0 else 1
        site = view.sites[s]
        levels[site.pool, site.free_gpus + room[s]] -= 1
        room[s] += sign * count
        levels[site.pool, site.free_gpus + room[s]] += 1
        room[sites + 2 * site.node] += sign * portion(job.cpus, part, whole)
        room[sites + 2 * site.node + 1] += sign * portion(job.memory, part, whole)
        if p == NOBODY:
            return
        s = view.parts[p].site
        mask = view.parts[p].mask
        p = view.parts[p].next


@compiled
def cleared_site(view: View, j: int, room: Ints, levels: Ints) -> int:
    """The site where the job would fit with the shortest runtime if all room were free, or NOBODY."""
    job = view.jobs[j]
    chosen = NOBODY
    soonest = FOREVER
    for p in range(len(view.pools)):
        pool = view.pools[p]
        width = max(1, view.width[job.kind, view.sites[pool.anchor].form])
        if job.share == WHOLE_GPU and most_in(levels, p, pool.largest, width) < job.gpus:
            continue
        if width > 1:
            seconds = runtime(view, j, pool.anchor)
            sooner = seconds < soonest or (seconds == soonest and pool.anchor < chosen)
            if sooner and would_fit_across(view, j, p, width, room):
                chosen = pool.anchor
                soonest = seconds
            continue
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            if view.width[job.kind, view.sites[s].form] != 1:
                continue
            seconds = runtime(view, j, s)
            sooner = seconds < soonest or (seconds == soonest and s < chosen)
            if sooner and would_fit(view, j, s, room):
                chosen = s
                soonest = seconds
    return chosen


@compiled
def would_fit(view: View, j: int, s: int, room: Ints) -> bool:
    """Whether the job, which needs one node there, would fit at the site if all room were free."""
    job = view.jobs[j]
    # A share may go to a GPU that is already shared, once there are cores and memory for it.
    gpus = 0 if job.share < WHOLE_GPU and shared_gpu(view, j, s) != NOBODY else job.gpus
    return enough_at(view, s, room, gpus, job.cpus, job.memory)


@compiled
def would_fit_across(view: View, j: int, p: int, width: int, room: Ints) -> bool:
    """Whether a gang would fit on `width` nodes of the pool if all room were free.

    Like `fits_across`: the sites with the most GPUs first, each with its part of cores and memory.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    needed = job.gpus
    nodes = width
    for free in range(pool.largest, 0, -1):
        count = min(free, needed)
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            if view.sites[s].free_gpus + room[s] != free:
                continue
            cpus = portion(job.cpus, count, job.gpus)
            if enough_at(view, s, room, count, cpus, portion(job.memory, count, job.gpus)):
                needed -= count
                nodes -= 1
                if nodes == 0:
                    return needed == 0
                count = min(free, needed)
    return False


@compiled
def enough_at(view: View, s: int, room: Ints, gpus: int, cpus: int, memory: int) -> bool:
    """Whether one site would have this much, including room."""
    site = view.sites[s]
    node = view.nodes[site.node]
    at = len(view.sites) + 2 * site.node
    return (
        node.up != 0
        and site.free_gpus + room[s] >= gpus
        and node.free_cpus + room[at] >= cpus
        and node.free_memory + room[at + 1] >= memory
    )


@compiled
def victim_for(view: View, j: int, s: int, key: Key, limit: float) -> int:
    """Of the running jobs that block the job at the site, the one with the largest key above the limit; or NOBODY."""
    job = view.jobs[j]
    pool = view.sites[s].pool if view.width[job.kind, view.sites[s].form] > 1 else NOBODY
    worst = NOBODY
    worst_key = limit
    for i in range(view.clock[0].running):
        other = view.running[i]
        if view.jobs[other].share < WHOLE_GPU:
            continue
        value = key(view, other)
        worse = value > worst_key or (value == worst_key and value > limit and other > worst)
        if worse and in_the_way(view, other, s, pool):
            worst = other
            worst_key = value
    return worst


@compiled
def in_the_way(view: View, j: int, s: int, pool: int) -> bool:
    """Whether a running job holds anything on the site's node (or, for a gang over several, on a node of its pool)."""
    run = view.runs[j]
    at = run.site
    p = run.parts
    while True:
        if view.sites[at].node == view.sites[s].node or (pool != NOBODY and node_has(view, view.sites[at].node, pool)):
            return True
        if p == NOBODY:
            return False
        at = view.parts[p].site
        p = view.parts[p].next


@compiled
def node_has(view: View, n: int, pool: int) -> bool:
    """Whether one of the node's sites is in the pool."""
    node = view.nodes[n]
    for s in range(node.first_site, node.first_site + node.sites):
        if view.sites[s].pool == pool:
            return True
    return False


@compiled_allocating
def preempting(view: View, key: Key, until: float) -> Choice:
    """The waiting job with the smallest key that fits, or for which jobs with larger keys can be stopped.

    Jobs are tried in the order of their keys. The room of a job is also room for every job before it, so running jobs
    are counted once and then removed one by one. Jobs on a share of a GPU are not stopped, because other jobs may hold
    the rest of that GPU.
    """
    clock = view.clock[0]
    worst = -FOREVER
    for i in range(clock.running):
        worst = max(worst, key(view, view.running[i]))
    positions = np.empty(seen(view), np.int32)
    values = np.empty(len(positions), np.float64)
    count = 0
    for q in range(len(positions)):
        j = in_queue(view, q)
        value = key(view, j)
        if value < FOREVER and (value < worst or not hopeless(view, j)):
            positions[count] = q
            values[count] = value
            count += 1
    order = np.argsort(values[:count], kind="mergesort")
    rivals = np.empty(0, np.int32)
    keys = np.empty(0, np.float64)
    room = np.empty(0, np.int32)
    levels = np.empty((0, 0), np.int32)
    gone = NOBODY  # number of rivals that no longer count as room; NOBODY: not counted yet
    for i in range(count):
        q = positions[order[i]]
        value = values[order[i]]
        j = in_queue(view, q)
        if not hopeless(view, j):
            site = first_spot(view, j, shortest).site
            if site != NOBODY:
                return start_or_wait(j, site)
        if not value < worst:
            continue
        if gone == NOBODY:
            rivals, keys = rivals_by_key(view, key)
            room = np.zeros(len(view.sites) + 2 * len(view.nodes), np.int32)
            levels = view.spare.copy()
            for r in range(len(rivals)):
                add_room(view, rivals[r], 1, room, levels)
            gone = 0
        while gone < len(rivals) and not keys[gone] > value:
            add_room(view, rivals[gone], -1, room, levels)
            gone += 1
        if clock.window > 0 and q + earlier(rivals[gone:], j) >= clock.window:
            continue  # stopped jobs that were submitted earlier could push this one out of the window
        site = cleared_site(view, j, room, levels)
        if site != NOBODY:
            victim = victim_for(view, j, site, key, value)
            if victim != NOBODY:
                return Choice(STOP, widened(victim), NOBODY, FOREVER)
    return Choice(WAIT, NOBODY, NOBODY, until)


@compiled_allocating
def rivals_by_key(view: View, key: Key) -> tuple[Ints, Floats]:
    """The running jobs that may be stopped, by ascending key, and their keys."""
    running = view.clock[0].running
    jobs = np.empty(running, np.int32)
    keys = np.empty(running, np.float64)
    count = 0
    for i in range(running):
        j = view.running[i]
        if view.jobs[j].share == WHOLE_GPU:
            jobs[count] = j
            keys[count] = key(view, j)
            count += 1
    order = np.argsort(keys[:count], kind="mergesort")
    return jobs[order], keys[order]


@compiled
def earlier(jobs: Ints, j: int) -> int:
    """How many of the jobs were submitted before this one."""
    count = 0
    for other in jobs:
        count += other < j
    return count


# ---- the policies ------------------------------------------------------------------------------------------------


@compiled_allocating
def srtf(view: View) -> Choice:
    """Shortest remaining time first."""
    return preempting(view, time_left, FOREVER)


@compiled_allocating
def srsf(view: View) -> Choice:
    """Shortest remaining service first."""
    return preempting(view, service_left, FOREVER)


@compiled_allocating
def las(view: View) -> Choice:
    """Least attained service first; checked again after each quantum while a job waits."""
    clock = view.clock[0]
    return preempting(view, service, clock.now + QUANTUM_S if clock.queued > 0 else FOREVER)


@compiled
def next_demotion(view: View) -> float:
    """When the first running job leaves the first queue; FOREVER if no job waits."""
    clock = view.clock[0]
    soonest = FOREVER
    if clock.queued > 0:
        for i in range(clock.running):
            j = view.running[i]
            left = DEMOTION - attained(view, j)
            if left > 0.0:
                # Slightly later than computed, so that rounding cannot leave the job below its threshold.
                soonest = min(soonest, clock.now + left / gpu_share(view, j) + 1e-6)
    return soonest


@compiled_allocating
def tiresias(view: View) -> Choice:
    """Two queues by attained service, first come first served in each; the first has priority."""
    return preempting(view, tiresias_key, next_demotion(view))


POLICIES: Final = (
    Policy("srtf", "least remaining time first", choose=srtf, preemptive=True, needs=("estimate",)),
    Policy("srsf", "least remaining time x GPUs first", choose=srsf, preemptive=True, needs=("estimate",)),
    Policy("las", "least GPU-seconds received so far first; decides again every 360 s", choose=las, preemptive=True),
    Policy(
        "tiresias",
        "two queues by GPU-seconds received so far, submit order inside each",
        choose=tiresias,
        preemptive=True,
    ),
)
