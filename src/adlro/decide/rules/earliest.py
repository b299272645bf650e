"""Earliest finish first: each job waits for the site where it is expected to finish first."""

from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import Policy
from adlro.core.rules import count_bits, expected_end, fits, last_seen, portion, runtime
from adlro.core.tables import FOREVER, NOBODY, Choice, Floats, View
from adlro.decide.choosing import first_spot, hopeless, shortest, start_or_wait


class Finish(NamedTuple):
    """Where a job would finish, and when it would start and end there."""

    site: int
    start: float
    end: float


@compiled_allocating
def ends_of_running(view: View) -> tuple[Floats, Floats]:
    """For each site, when its GPUs in use come free, soonest first; for each node, when the next of its jobs ends.

    The first has rows as in View.gpus. FOREVER stands for GPUs that are free, and for nodes where no job runs.
    """
    times = np.full(len(view.gpus), FOREVER)
    soonest = np.full(len(view.nodes), FOREVER)
    for i in range(view.clock[0].running):
        j = view.running[i]
        end = expected_end(view, j)
        run = view.runs[j]
        s = run.site
        mask = run.mask
        p = run.parts
        while True:
            site = view.sites[s]
            soonest[site.node] = min(soonest[site.node], end)
            for _ in range(count_bits(mask)):
                insert_time(times, site.first_gpu, site.gpus, end)
            if p == NOBODY:
                break
            s = view.parts[p].site
            mask = view.parts[p].mask
            p = view.parts[p].next
    return times, soonest


@compiled
def insert_time(times: Floats, first: int, count: int, time: float) -> None:
    """Insert a time into `count` ascending ones; the last one is dropped."""
    at = first + count - 1
    if count == 0 or times[at] <= time:
        return
    while at > first and times[at - 1] > time:
        times[at] = times[at - 1]
        at -= 1
    times[at] = time


@compiled
def free_at(view: View, times: Floats, s: int, gpus: int) -> float:
    """When the site is expected to have this many GPUs free."""
    site = view.sites[s]
    if view.nodes[site.node].up == 0 or site.gpus < gpus:
        return FOREVER
    if gpus <= site.free_gpus:
        return view.clock[0].now
    return max(view.clock[0].now, times[site.first_gpu + gpus - site.free_gpus - 1])


@compiled
def large_enough(view: View, j: int, s: int) -> bool:
    """Whether the node could ever give the job its cores and memory (for a gang over several: its part of them)."""
    job = view.jobs[j]
    site = view.sites[s]
    node = view.nodes[site.node]
    whole = max(job.gpus, 1)
    part = max(min(site.gpus, job.gpus), 1)
    return node.cpus >= portion(job.cpus, part, whole) and node.memory >= portion(job.memory, part, whole)


@compiled
def pool_free_at(view: View, times: Floats, j: int, s: int, width: int) -> float:
    """When the pool is expected to have its part of a gang free on each of as many nodes as the gang takes."""
    pool = view.pools[view.sites[s].pool]
    each = -(-view.jobs[j].gpus // width)
    last = -1.0
    for _ in range(width):
        soonest = FOREVER
        ready = 0
        for i in range(pool.first_site, pool.first_site + pool.sites):
            time = free_at(view, times, view.pool_sites[i], each)
            if not large_enough(view, j, view.pool_sites[i]):
                continue
            if time <= last:
                ready += 1
            elif time < soonest:
                soonest = time
        if ready >= width:
            return last
        last = soonest
    return last


@compiled
def next_end_in(view: View, ends: Floats, s: int) -> float:
    """When the next job in the pool of a site is expected to end."""
    pool = view.pools[view.sites[s].pool]
    soonest = FOREVER
    for i in range(pool.first_site, pool.first_site + pool.sites):
        soonest = min(soonest, ends[view.sites[view.pool_sites[i]].node])
    return soonest


@compiled
def earliest_finish(view: View, times: Floats, ends: Floats, j: int) -> Finish:
    """Where the job is expected to finish first, waiting for a busy site included, and when.

    Where GPUs are free and it still does not fit, cores or memory are short: at the soonest until a job there ends.
    """
    job = view.jobs[j]
    best = Finish(NOBODY, FOREVER, FOREVER)
    for s in range(len(view.sites)):
        width = view.width[job.kind, view.sites[s].form]
        if width == 0:
            continue
        if fits(view, j, s):
            start = view.clock[0].now
        elif width > 1:
            if s != view.pools[view.sites[s].pool].anchor:
                continue
            start = pool_free_at(view, times, j, s, width)
            if start <= view.clock[0].now:
                start = next_end_in(view, ends, s)
        elif not large_enough(view, j, s):
            continue  # to wait for it would be to wait for ever
        else:
            start = free_at(view, times, s, job.gpus)
            if start <= view.clock[0].now:
                start = ends[view.sites[s].node]
        end = start + runtime(view, j, s)
        if end < best.end:
            best = Finish(widened(s), start, end)
    return best


@compiled_allocating
def eft(view: View) -> Choice:
    """Each job waits for the site where it finishes first; of those that need not wait, the first to finish.

    Jobs with equal demands fit at the same sites, and would wait equally long for the others. So if one of them waits
    for a site, that site is tried first for the next one, and mostly no other site has to be tried.
    """
    now = view.clock[0].now
    last = last_seen(view)
    times = np.empty(0)
    ends = np.empty(0)
    chosen = NOBODY
    site = NOBODY
    best = FOREVER
    d = view.clock[0].demand
    while d != NOBODY:
        j = view.demands[d].first
        here = NOBODY
        if j <= last and not hopeless(view, j):
            here = first_spot(view, j, shortest).site
        there = Finish(NOBODY, FOREVER, FOREVER)
        while here != NOBODY and j != NOBODY and j <= last:
            end = now + runtime(view, j, here)  # it can end no sooner if it is started now
            waits = there.site != NOBODY and there.start + runtime(view, j, there.site) < end
            if not waits and (end < best or (end == best and j < chosen)):
                if len(times) == 0:
                    times, ends = ends_of_running(view)
                there = earliest_finish(view, times, ends, j)
                if fits(view, j, there.site):
                    best = there.end
                    chosen = widened(j)
                    site = there.site
                    there = Finish(NOBODY, FOREVER, FOREVER)
            j = view.runs[j].next
        d = view.demands[d].next
    return start_or_wait(chosen, site)


POLICIES: Final = (
    Policy(
        "eft",
        "earliest finish first, including the wait for a busy site (HEFT without a graph)",
        choose=eft,
        needs=("estimate",),
    ),
)
