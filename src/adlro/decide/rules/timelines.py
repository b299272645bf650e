"""Timelines: when GPUs come free if all jobs are planned in the order of their remaining times, the shortest first.

`plan` uses them, and claims on the places of running jobs do (`claims.py`). Each job gets the place with the least end
plus externality. The externality is what its stay there costs the longer jobs that want the same GPUs.
"""

from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    expected_end,
    fits_across,
    fits_on_node,
    in_queue,
    most_in,
    rate_on,
    rate_there,
    restart_cost,
    seen,
    weight_of,
    work_left,
)
from adlro.core.tables import ALL_SPENT, FOREVER, NOBODY, RUNNING, Floats, Ints, View
from adlro.decide.outlook import smallest
from adlro.decide.rules.corrections import EXTERNAL, ORDER, STICKING, Corrector, corrections, corrects
from adlro.decide.rules.preemptive import time_left

MOST_PLANNED: Final = 128
"""How many waiting jobs are planned, the shortest first."""

MOST_STARTS: Final = 50
"""A job that has been started more often than this is not stopped again."""

EXTERNALITY: Final = 2.5
"""Weight of the delay that a job causes to longer jobs."""

FILLED: Final = 0.75
"""Longer jobs count as delayed once they want more than this share of a pool."""

PRICE: Final = 0.2
"""What the last stop of a job's budget costs, as a share of its time left."""


class Timelines(NamedTuple):
    """When GPUs come free in the plan so far. G GPUs, P pools, J' planned jobs."""

    free: Floats  # [G] when each GPU is free, if running jobs that are not planned yet end as expected
    wanted: Floats  # [G] when the first planned job that starts later wants the GPU; FOREVER: none does
    holder: Ints  # [G] the running job, not planned yet, that may be stopped and holds the GPU; NOBODY: none
    jobs: Ints  # [J'] the jobs in the order of the plan
    rivals: Floats  # [J', P] how many longer jobs want the pool and would not fit in it at once
    times: Floats  # [G] scratch
    victims: Ints  # [running jobs] scratch
    have: Ints  # [S] scratch: GPUs of a site that a gang could have
    levels: Ints  # [1, most GPUs of a site + 1] scratch: how many sites of a pool could give so many
    effort: Ints  # [1] how many parts of gangs the search for victims has looked at
    pressure: Floats  # [1] waiting jobs for each GPU of the cluster, counted by their weights
    factors: Floats  # [J', O] the factors of `corrections.py`
    sticking: Floats  # [G] of the first GPU of each running job: the factor of its restart, if it is stopped; empty: 1
    claiming: Floats  # [2] the factor of what victims lose to the job that claims; the least factor of all restarts


@compiled
def may_be_stopped(view: View, j: int) -> bool:
    """Whether a running job may be stopped at this moment."""
    job = view.jobs[j]
    run = view.runs[j]
    return (
        job.stoppable != 0 and job.share == WHOLE_GPU and run.started < view.clock[0].now and run.starts <= MOST_STARTS
    )


@compiled
def waiting_weight(view: View) -> float:
    """How many jobs wait; where jobs count by their priority, the sum of their weights."""
    clock = view.clock[0]
    if clock.weighted == 0:
        return float(clock.queued)
    weight = 0.0
    for q in range(clock.queued):
        weight += weight_of(view, in_queue(view, q))
    return weight


@compiled
def rate_in(view: View, j: int, p: int) -> float:
    """The best rate of the job in a pool, 0 if it never runs there."""
    kind = view.jobs[j].kind
    best = 0.0
    for h in range(len(view.forms)):
        if view.forms[h].pool == p and view.width[kind, h] > 0:
            best = max(best, rate_on(view, j, h))
    return best


@compiled
def price_of_stop(view: View, v: int, pressure: float) -> float:
    """Seconds that one more stop of job v costs because its budget of stops becomes smaller; 0 if it has no budget.

    A stop that lets several waiting jobs start is worth it sooner: `pressure` is the number of waiting jobs per GPU.
    """
    job = view.jobs[v]
    if job.spent == 0:
        return 0.0
    return PRICE * time_left(view, v) * job.spent / ALL_SPENT / max(1.0, pressure * job.gpus)


@compiled
def externality(view: View, j: int, p: int, seconds: float, rivals: float) -> float:
    """Seconds by which all longer jobs together start later, if the job stays so long in the pool."""
    return EXTERNALITY * seconds * view.jobs[j].gpus / view.pools[p].gpus * rivals


@compiled_allocating
def jobs_in_order(view: View) -> Ints:
    """The running jobs and the shortest waiting ones that need whole GPUs, in the order of their remaining times.

    Where jobs count by their priority, a remaining time is divided by the job's weight here.
    """
    running = view.clock[0].running
    waiting = seen(view)
    jobs = np.empty(running + waiting, np.int32)
    keys = np.empty(running + waiting, np.float64)
    count = 0
    for q in range(waiting):
        j = in_queue(view, q)
        job = view.jobs[j]
        if job.gpus > 0 and job.share == WHOLE_GPU and view.fastest[job.demand] > 0.0:
            jobs[count] = j
            keys[count] = time_left(view, j) / weight_of(view, j)
            count += 1
    if count > MOST_PLANNED:
        order = np.argsort(keys[:count], kind="mergesort")[:MOST_PLANNED]
        jobs[:MOST_PLANNED] = jobs[order]
        keys[:MOST_PLANNED] = keys[order]
        count = MOST_PLANNED
    for i in range(running):
        j = view.running[i]
        if view.jobs[j].gpus > 0 and view.jobs[j].share == WHOLE_GPU:
            jobs[count] = j
            keys[count] = time_left(view, j) / weight_of(view, j)
            count += 1
    return jobs[np.argsort(keys[:count], kind="mergesort")]


@compiled_allocating
def rivals_for(view: View, jobs: Ints, factors: Floats) -> Floats:
    """For each job and pool: how many longer jobs want the pool and would not fit in it at once.

    The jobs say which pool they want from the longest to the shortest: the one where a job's runtime and its
    externality on the longer ones are least. Where jobs count by their priority, each counts by its weight against
    that of the job.
    """
    pools = len(view.pools)
    rivals = np.zeros((len(jobs), pools))
    gpus = np.zeros(pools)
    many = np.zeros(pools)
    for i in range(len(jobs) - 1, -1, -1):
        j = jobs[i]
        job = view.jobs[j]
        left = work_left(view, j)
        weight = weight_of(view, j)
        least = FOREVER
        goal = NOBODY
        for p in range(pools):
            size = view.pools[p].gpus
            over = gpus[p] - FILLED * (size - job.gpus)
            if over > 0.0 and many[p] > 0.0:
                rivals[i, p] = min(many[p], over * many[p] / gpus[p]) / weight * factors[i, EXTERNAL]
            rate = rate_in(view, j, p)
            if rate > 0.0:
                seconds = left / rate
                cost = seconds + externality(view, j, p, seconds, rivals[i, p])
                if cost < least:
                    least = cost
                    goal = p
        if goal != NOBODY:
            gpus[goal] += job.gpus
            many[goal] += weight
    return rivals


@compiled
def hold_gpus(view: View, free: Floats, holder: Ints) -> None:
    """For each GPU: when it is free if running jobs end as expected, and the running job there that may be stopped."""
    now = view.clock[0].now
    for g in range(len(view.gpus)):
        free[g] = now
        holder[g] = NOBODY
    for s in range(len(view.sites)):
        site = view.sites[s]
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            gpu = view.gpus[g]
            if view.nodes[site.node].up == 0:
                free[g] = FOREVER
            elif gpu.free_share < WHOLE_GPU and gpu.holder != NOBODY:
                free[g] = expected_end(
                    view, gpu.holder
                )  # also a job that the policy is not shown: it may not be stopped
    for i in range(view.clock[0].running):
        j = view.running[i]
        stoppable = may_be_stopped(view, j)
        end = expected_end(view, j)
        run = view.runs[j]
        s = run.site
        mask = run.mask
        p = run.parts
        while True:
            site = view.sites[s]
            for g in range(site.gpus):
                if mask >> g & 1:
                    free[site.first_gpu + g] = max(free[site.first_gpu + g], end)
                    if stoppable:
                        holder[site.first_gpu + g] = j
            if p == NOBODY:
                break
            s = view.parts[p].site
            mask = view.parts[p].mask
            p = view.parts[p].next


@compiled_allocating
def new_timelines(view: View, corrector: Corrector) -> Timelines:
    """The timelines before anything is planned."""
    gpus = len(view.gpus)
    jobs = jobs_in_order(view)
    factors = corrections(view, jobs, corrector)
    if corrects(corrector):
        keys = np.empty(len(jobs))
        for i in range(len(jobs)):
            keys[i] = time_left(view, jobs[i]) / weight_of(view, jobs[i]) * factors[i, ORDER]
        order = np.argsort(keys, kind="mergesort")
        jobs = jobs[order]
        factors = factors[order]
    free = np.empty(gpus, np.float64)
    holder = np.empty(gpus, np.int32)
    hold_gpus(view, free, holder)
    sticking = np.ones(gpus)
    claiming = np.ones(2)
    for i in range(len(jobs)):
        claiming[1] = min(claiming[1], factors[i, STICKING])
        if view.runs[jobs[i]].state == RUNNING:
            sticking[first_gpu_of(view, jobs[i])] = factors[i, STICKING]
    return Timelines(
        free,
        np.full(gpus, FOREVER),
        holder,
        jobs,
        rivals_for(view, jobs, factors),
        np.empty(gpus, np.float64),
        np.empty(max(1, view.clock[0].running), np.int32),
        np.empty(len(view.sites), np.int32),
        np.empty((1, view.spare.shape[1]), np.int32),
        np.zeros(1, np.int32),
        np.full(1, waiting_weight(view) / max(1, gpus)),
        factors,
        sticking,
        claiming,
    )


@compiled
def first_gpu_of(view: View, j: int) -> int:
    """The first GPU that a running job holds on its first site."""
    run = view.runs[j]
    site = view.sites[run.site]
    for g in range(site.gpus):
        if run.mask >> g & 1:
            return widened(site.first_gpu + g)
    return widened(site.first_gpu)


@compiled
def site_ready(view: View, lines: Timelines, s: int, gpus: int) -> float:
    """When so many GPUs of the site are free for the job in the plan so far."""
    site = view.sites[s]
    # Of a few GPUs the k-th smallest time: count for each how many are not later.
    best = FOREVER
    for a in range(site.first_gpu, site.first_gpu + site.gpus):
        time = lines.free[a]
        if time >= best:
            continue
        count = 0
        for b in range(site.first_gpu, site.first_gpu + site.gpus):
            count += lines.free[b] <= time
        if count >= gpus:
            best = time
    return best


@compiled
def pool_ready(view: View, lines: Timelines, p: int, gpus: int, width: int) -> float:
    """When so many nodes of a pool have so many GPUs free together in the plan so far."""
    pool = view.pools[p]
    count = 0
    if gpus == width * pool.largest:
        for k in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[k]
            if view.sites[s].gpus == pool.largest:
                lines.times[count] = site_ready(view, lines, s, pool.largest)
                count += 1
        return smallest(lines.times, count, width)
    for k in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[k]]
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            lines.times[count] = lines.free[g]
            count += 1
    low = gpus  # the k-th GPU to come free is the one that makes it enough: between these
    high = count
    while low < high:
        middle = (low + high) // 2
        if together_by(view, lines, p, width, smallest(lines.times, count, middle)) >= gpus:
            high = middle
        else:
            low = middle + 1
    time = smallest(lines.times, count, low)
    return time if together_by(view, lines, p, width, time) >= gpus else FOREVER


@compiled
def together_by(view: View, lines: Timelines, p: int, width: int, time: float) -> int:
    """The most GPUs that so many nodes of the pool have free together by a time."""
    pool = view.pools[p]
    for count in range(pool.largest + 1):
        lines.levels[0, count] = 0
    for k in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[k]]
        count = 0
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            count += lines.free[g] <= time
        lines.levels[0, count] += 1
    return most_in(lines.levels, 0, pool.largest, width)


@compiled
def next_end_on(view: View, lines: Timelines, s: int) -> float:
    """When the next GPU of the site's node comes free: GPUs are free now, but not the cores or memory beside them."""
    node = view.nodes[view.sites[s].node]
    soonest = FOREVER
    for other in range(node.first_site, node.first_site + node.sites):
        site = view.sites[other]
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            if lines.free[g] > view.clock[0].now:
                soonest = min(soonest, lines.free[g])
    return soonest


@compiled
def next_release(view: View, lines: Timelines, p: int) -> float:
    """When the next GPU of the pool comes free."""
    pool = view.pools[p]
    soonest = FOREVER
    for k in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[k]]
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            if lines.free[g] > view.clock[0].now:
                soonest = min(soonest, lines.free[g])
    return soonest


class Place(NamedTuple):
    """A place for a job in the plan. A gang over several nodes has the anchor of its pool as its site."""

    site: int
    start: float
    seconds: float  # that the job holds it
    cost: float  # its end and its externality


@compiled
def best_place(view: View, lines: Timelines, i: int) -> Place:
    """Where the i-th job of the plan has the least cost, if nobody is stopped."""
    clock = view.clock[0]
    j = lines.jobs[i]
    job = view.jobs[j]
    left = work_left(view, j)
    restart = restart_cost(view, j)
    best = Place(NOBODY, FOREVER, 0.0, FOREVER)
    for p in range(len(view.pools)):
        pool = view.pools[p]
        width = view.width[job.kind, view.sites[pool.anchor].form]
        if width > 1:
            rate = rate_there(view, j, pool.anchor)
            if rate <= 0.0:
                continue
            seconds = restart + left / rate
            beside = externality(view, j, p, seconds, lines.rivals[i, p])
            if not clock.now + seconds + beside < best.cost:
                continue
            start = pool_ready(view, lines, p, job.gpus, width)
            if start <= clock.now and not fits_across(view, j, pool.anchor, width):
                start = next_release(view, lines, p)
            if start + seconds + beside < best.cost:
                best = Place(widened(pool.anchor), start, seconds, start + seconds + beside)
            continue
        for k in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[k]
            site = view.sites[s]
            rate = rate_there(view, j, s)
            if view.width[job.kind, site.form] != 1 or rate <= 0.0:
                continue
            seconds = restart + left / rate
            beside = externality(view, j, p, seconds, lines.rivals[i, p])
            if not clock.now + seconds + beside <= best.cost:
                continue
            start = site_ready(view, lines, s, job.gpus)
            if start <= clock.now and not fits_on_node(view, j, s):
                start = next_end_on(view, lines, s)
            cost = start + seconds + beside
            tighter = (
                cost == best.cost
                and best.site != NOBODY
                and view.sites[best.site].pool == p
                and site.free_gpus < view.sites[best.site].free_gpus
            )
            if cost < best.cost or (tighter and cost < FOREVER):
                best = Place(widened(s), start, seconds, cost)
    return best


@compiled
def book(view: View, lines: Timelines, s: int, gpus: int, start: float, end: float) -> int:
    """Let a job have up to so many GPUs of a site from its start to its end; how many it got.

    Of the GPUs that are free by the start those are taken that come free last.
    """
    site = view.sites[s]
    taken = 0
    while taken < gpus:
        chosen = NOBODY
        latest = -FOREVER
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            if latest < lines.free[g] <= start:
                latest = lines.free[g]
                chosen = g
        if chosen == NOBODY:
            break
        lines.free[chosen] = end
        lines.wanted[chosen] = min(lines.wanted[chosen], start)
        lines.holder[chosen] = NOBODY  # whoever holds it keeps it until its end
        taken += 1
    return taken


@compiled
def book_place(view: View, lines: Timelines, j: int, place: Place) -> None:
    """Let the job have its place in the plan."""
    job = view.jobs[j]
    end = place.start + place.seconds
    width = view.width[job.kind, view.sites[place.site].form]
    if width == 1:
        book(view, lines, place.site, job.gpus, place.start, end)
        return
    pool = view.pools[view.sites[place.site].pool]
    needed = job.gpus
    for most in range(pool.largest, 0, -1):  # the sites with the most GPUs first, as the rules take them
        for k in range(pool.first_site, pool.first_site + pool.sites):
            if needed <= 0:
                return
            s = view.pool_sites[k]
            site = view.sites[s]
            count = 0
            for g in range(site.first_gpu, site.first_gpu + site.gpus):
                count += lines.free[g] <= place.start
            if count == most:
                needed -= book(view, lines, s, needed, place.start, end)


@compiled
def free_at_once(view: View, lines: Timelines, s: int) -> int:
    """How many GPUs of the site are free now and not booked."""
    site = view.sites[s]
    count = 0
    for g in range(site.first_gpu, site.first_gpu + site.gpus):
        count += lines.free[g] <= view.clock[0].now
    return count


@compiled
def keep_running(view: View, lines: Timelines, v: int) -> None:
    """A running job stays where it is: nobody planned after it may stop it."""
    run = view.runs[v]
    s = run.site
    mask = run.mask
    part = run.parts
    while True:
        site = view.sites[s]
        for g in range(site.gpus):
            if mask >> g & 1 and lines.holder[site.first_gpu + g] == v:
                lines.holder[site.first_gpu + g] = NOBODY
        if part == NOBODY:
            return
        s = view.parts[part].site
        mask = view.parts[part].mask
        part = view.parts[part].next
