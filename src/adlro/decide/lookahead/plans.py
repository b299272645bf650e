"""Plans to try: for which jobs the next free GPUs could be kept."""

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
from adlro.decide.sorting import sort_pairs


@compiled
def fill_plans(
    view: View, keys: Floats, order: Ints, room: Ints, jobs: Ints, sites: Ints, seconds: Floats, most: int
) -> int:
    """Fill in a job and a site for each plan worth trying, at most `most`; returns the number of plans.

    For each model and number of GPUs: the waiting job with the shortest runtime there, unless it fits now, at the site
    that will first have enough free GPUs. `keys` and `order` have room for the running jobs, `room` for the sites.
    """
    count = 0
    for h in range(len(view.forms)):
        s = view.form_sites[view.forms[h].first_site]
        for q in range(seen(view)):
            j = in_queue(view, q)
            if view.jobs[j].gpus > 0 and view.width[view.jobs[j].kind, h] > 0:
                count = put_plan(view, jobs, sites, seconds, count, most, j, s)
    if count > 0:
        fill_order(view, keys, order)
    kept = 0
    for c in range(count):
        s = first_to_be_free(view, order, room, jobs[c], view.sites[sites[c]].pool)
        if s != NOBODY:
            jobs[kept] = jobs[c]
            sites[kept] = s
            kept += 1
    return kept


@compiled
def fill_order(view: View, keys: Floats, order: Ints) -> None:
    """Fill in the running jobs by expected end."""
    running = view.clock[0].running
    for i in range(running):
        keys[i] = expected_end(view, view.running[i])
        order[i] = i
    sort_pairs(keys, order, running)
    for i in range(running):
        order[i] = view.running[order[i]]


@compiled
def put_plan(view: View, jobs: Ints, sites: Ints, seconds: Floats, count: int, most: int, j: int, s: int) -> int:
    """Add the job to the plans if there is room and it is the shortest of its size; returns the new length."""
    needed = runtime(view, j, s)
    at = count
    for c in range(count):
        if view.jobs[jobs[c]].gpus == view.jobs[j].gpus and view.sites[sites[c]].pool == view.sites[s].pool:
            at = c
    if at == count:
        if count == most:
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
    for i in range(view.clock[0].running):
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
