"""Plans to try: for which jobs the next free GPUs could be kept."""

import numpy as np

from adlro.core.compiled import compiled, widened
from adlro.core.rules import (
    count_bits,
    expected_end,
    fits,
    in_queue,
    runtime,
    seen,
)
from adlro.core.tables import (
    NOBODY,
    Floats,
    Ints,
    View,
)


@compiled
def fill_ends(view: View, ends: Floats) -> None:
    """Fill in when each running job is expected to end."""
    for i in range(view.clock[0].running):
        ends[i] = expected_end(view, view.running[i])


@compiled
def fill_plans(view: View, order: Ints, room: Ints, jobs: Ints, sites: Ints, seconds: Floats) -> int:
    """Fill in a job and a site for each plan worth trying; returns the number of plans.

    For each model and number of GPUs: the waiting job with the shortest runtime there, unless it fits now, at the site
    that will first have enough free GPUs. `order` has the running jobs by expected end, `room` one entry for each site.
    """
    count = 0
    for h in range(len(view.forms)):
        s = view.form_sites[view.forms[h].first_site]
        for q in range(seen(view)):
            j = in_queue(view, q)
            if view.jobs[j].gpus > 0 and view.width[view.jobs[j].kind, h] > 0:
                count = put_plan(view, jobs, sites, seconds, count, j, s)
    kept = 0
    for c in range(count):
        s = first_to_be_free(view, order, room, jobs[c], view.sites[sites[c]].pool)
        if s != NOBODY:
            jobs[kept] = jobs[c]
            sites[kept] = s
            kept += 1
    return kept


@compiled
def put_plan(view: View, jobs: Ints, sites: Ints, seconds: Floats, count: int, j: int, s: int) -> int:
    """Add the job to the plans if there is room and it is the shortest of its size; returns the new length."""
    needed = runtime(view, j, s)
    at = count
    for c in range(count):
        if view.jobs[jobs[c]].gpus == view.jobs[j].gpus and view.sites[sites[c]].pool == view.sites[s].pool:
            at = c
    if at == count:
        if count == len(jobs):
            return count
        count += 1
    elif seconds[at] <= needed:
        return count
    jobs[at] = j
    sites[at] = s
    seconds[at] = needed
    return count


@compiled
def first_to_be_free(view: View, order: Ints, room: Ints, j: int, p: int) -> int:
    """The site of the pool that will first have enough GPUs free as running jobs end; NOBODY if one has them now.

    For a gang over several nodes it is the anchor of the pool. Cores and memory are checked by the trial itself.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    width = 0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        s = view.pool_sites[i]
        room[s] = view.sites[s].free_gpus
        width = max(width, view.width[job.kind, view.sites[s].form])
        if fits(view, j, s):
            return NOBODY
    if width > 1:
        return widened(pool.anchor)
    for i in range(len(order)):
        run = view.runs[order[i]]
        s = run.site
        mask = run.mask
        part = run.parts
        while True:
            if view.sites[s].pool == p:
                room[s] += count_bits(mask)
                if room[s] >= job.gpus and view.width[job.kind, view.sites[s].form] == 1:
                    return widened(s)
            if part == NOBODY:
                break
            s = view.parts[part].site
            mask = view.parts[part].mask
            part = view.parts[part].next
    return NOBODY


def plans_for(view: View, most: int) -> list[tuple[int, int]]:
    """The plans worth trying: each a waiting job and the site to keep for it."""
    count = int(view.clock[0].running)
    if not most or not count:
        return []
    ends, room = np.empty(count), np.empty(len(view.sites), np.int32)
    fill_ends(view, ends)
    order = view.running[:count][np.argsort(ends, kind="stable")]
    jobs, sites, seconds = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    found = fill_plans(view, order, room, jobs, sites, seconds)
    return list(zip(jobs[:found].tolist(), sites[:found].tolist(), strict=True))
