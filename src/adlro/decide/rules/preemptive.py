"""Rules that stop jobs: least remaining time, least attained service. docs/policies.md says each one exactly."""

from typing import Final

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import attained, count_bits, gpu_share, in_queue, portion, runtime, seen, shared_gpu, work_left
from adlro.core.tables import FOREVER, NOBODY, STOP, WAIT, Choice, Ints, View
from adlro.decide.choosing import Key, best_spot, hopeless, shortest, start_or_wait

QUANTUM_S: Final = 360.0
"""How often las looks again, beside arrivals and ends."""

DEMOTION: Final = 3600.0
"""GPU-seconds after which tiresias moves a job from its first queue to its second."""


# ---- keys: the smallest first ------------------------------------------------------------------------------------


@compiled
def time_left(view: View, j: int) -> float:
    """Estimated seconds of work left on the job's fastest GPUs."""
    return work_left(view, j) / view.fastest[view.jobs[j].demand]


@compiled
def service_left(view: View, j: int) -> float:
    """Estimated GPU-seconds left on the job's fastest GPUs."""
    return time_left(view, j) * gpu_share(view, j)


@compiled
def service(view: View, j: int) -> float:
    """GPU-seconds had so far."""
    return attained(view, j)


@compiled
def tiresias_key(view: View, j: int) -> float:
    """Which of the two queues the job is in, and its place in that queue."""
    place = j / (len(view.jobs) + 1.0)
    return place + (1.0 if attained(view, j) >= DEMOTION else 0.0)


# ---- making room -------------------------------------------------------------------------------------------------


@compiled
def count_room(view: View, j: int, key: Key, limit: float, room: Ints) -> int:
    """Add what a running job holds to the room at each site, if its key is worse than the limit; 1 if it counted.

    `room` has for each site GPUs, and for each node cores and memory after them. Jobs on a share of a GPU are not
    stopped: the rest of that GPU may be held by somebody else.
    """
    job = view.jobs[j]
    if job.share < WHOLE_GPU or not key(view, j) > limit:
        return 0
    run = view.runs[j]
    sites = len(view.sites)
    s = run.site
    mask = run.mask
    p = run.parts
    while True:
        count = count_bits(mask)
        # A job without GPUs holds all its cores and memory at its one site.
        part = count if job.gpus > 0 else 1
        whole = max(job.gpus, 1)
        node = view.sites[s].node
        room[s] += count
        room[sites + 2 * node] += portion(job.cpus, part, whole)
        room[sites + 2 * node + 1] += portion(job.memory, part, whole)
        if p == NOBODY:
            return 1
        s = view.parts[p].site
        mask = view.parts[p].mask
        p = view.parts[p].next
    return 1


@compiled
def would_fit(view: View, j: int, s: int, room: Ints) -> bool:
    """Whether the job would fit at the site if all that counts as room were free."""
    job = view.jobs[j]
    site = view.sites[s]
    width = view.width[job.kind, site.form]
    if width == 1:
        # A share may go to a GPU that is shared already, once there are cores and memory for it.
        gpus = 0 if job.share < WHOLE_GPU and shared_gpu(view, j, s) != NOBODY else job.gpus
        return enough_at(view, s, room, gpus, job.cpus, job.memory)
    if width == 0 or s != view.pools[site.pool].anchor:
        return False
    # The most GPUs that `width` sites could give, each with its part of cores and memory.
    pool = view.pools[site.pool]
    needed = job.gpus
    least = 1 << 30
    after = NOBODY
    for _ in range(width):
        best = NOBODY
        most = 0
        for i in range(pool.first_site, pool.first_site + pool.sites):
            t = view.pool_sites[i]
            free = view.sites[t].free_gpus + room[t]
            if free <= most or free > least or (free == least and t <= after):
                continue
            count = min(free, needed)
            cpus = portion(job.cpus, count, job.gpus)
            if enough_at(view, t, room, count, cpus, portion(job.memory, count, job.gpus)):
                best = t
                most = free
        if best == NOBODY:
            return False
        needed -= min(needed, most)
        least = most
        after = best
    return needed == 0


@compiled
def enough_at(view: View, s: int, room: Ints, gpus: int, cpus: int, memory: int) -> bool:
    """Whether one site would have this much, room included."""
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
    """The running job with the worst key, above the limit, among those in the job's way at the site; or NOBODY."""
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
    """The waiting job with the smallest key that fits, or for which jobs of larger keys can be stopped."""
    clock = view.clock[0]
    room = np.zeros(len(view.sites) + 2 * len(view.nodes), np.int32)
    best = FOREVER
    choice = Choice(WAIT, NOBODY, NOBODY, until)
    worst_running = -FOREVER
    for i in range(clock.running):
        worst_running = max(worst_running, key(view, view.running[i]))
    for q in range(seen(view)):
        j = in_queue(view, q)
        value = key(view, j)
        if not value < best:
            continue
        if not hopeless(view, j):
            site = best_spot(view, j, shortest).site
            if site != NOBODY:
                best = value
                choice = start_or_wait(j, site)
                continue
        if not value < worst_running:
            continue
        victims = 0
        room[:] = 0
        for i in range(clock.running):
            counted = count_room(view, view.running[i], key, value, room)
            if view.running[i] < j:
                victims += counted
        if clock.window > 0 and q + victims >= clock.window:
            continue  # stopped jobs that were submitted earlier could push this one out of sight
        site = NOBODY
        soonest = FOREVER
        for s in range(len(view.sites)):
            seconds = runtime(view, j, s)
            if seconds < soonest and would_fit(view, j, s, room):
                site = s
                soonest = seconds
        if site != NOBODY:
            victim = victim_for(view, j, site, key, value)
            if victim != NOBODY:
                best = value
                choice = Choice(STOP, widened(victim), NOBODY, FOREVER)
    return choice


# ---- the policies ------------------------------------------------------------------------------------------------


@compiled_allocating
def srtf(view: View) -> Choice:
    """Least remaining time first."""
    return preempting(view, time_left, FOREVER)


@compiled_allocating
def srsf(view: View) -> Choice:
    """Least remaining service first."""
    return preempting(view, service_left, FOREVER)


@compiled_allocating
def las(view: View) -> Choice:
    """Least attained service first, looked at again after each quantum while somebody waits."""
    clock = view.clock[0]
    return preempting(view, service, clock.now + QUANTUM_S if clock.queued > 0 else FOREVER)


@compiled
def next_demotion(view: View) -> float:
    """When the first running job leaves the first queue; FOREVER if nobody waits."""
    clock = view.clock[0]
    soonest = FOREVER
    if clock.queued > 0:
        for i in range(clock.running):
            j = view.running[i]
            left = DEMOTION - attained(view, j)
            if left > 0.0:
                # A hair later than computed, so that rounding cannot leave the job short of its threshold.
                soonest = min(soonest, clock.now + left / gpu_share(view, j) + 1e-6)
    return soonest


@compiled_allocating
def tiresias(view: View) -> Choice:
    """Two queues by attained service, first come first served in each; the first before the second."""
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
