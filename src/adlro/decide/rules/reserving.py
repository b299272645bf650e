"""Rules that use the expected ends of running jobs: EASY backfilling, Slurm's multifactor."""

from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.copying import imagined
from adlro.core.policy import NEVER, Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    add_free,
    count_bits,
    expected_end,
    fits,
    gpu_share,
    in_queue,
    last_seen,
    most_free_on,
    next_part,
    portion,
    release_part,
    runtime,
    seen,
    shared_gpu,
    usage_now,
)
from adlro.core.tables import FOREVER, NOBODY, Choice, Floats, Ints, View
from adlro.decide.choosing import Key, Score, anywhere, first_spot, hopeless, shortest, start_or_wait

AGE_WEIGHT: Final = 1000.0
SIZE_WEIGHT: Final = 1000.0
FAIR_SHARE_WEIGHT: Final = 2000.0
PRIORITY_WEIGHT: Final = 1000.0
OLDEST_S: Final = 7 * 86400.0
HALF_LIFE_S: Final = 7 * 86400.0


class Reservation(NamedTuple):
    """When and where the head will fit, if the running jobs end as expected."""

    time: float
    site: int


# ---- the cluster in the future -----------------------------------------------------------------------------------


@compiled
def free_all_parts(world: View, j: int) -> None:
    """Release everything that a running job holds, in an imagined cluster."""
    job = world.jobs[j]
    run = world.runs[j]
    if run.parts == NOBODY:
        release_part(world, j, run.site, run.mask, job.cpus, job.memory)
        return
    free_portion(world, j, run.site, run.mask)
    p = run.parts
    while p != NOBODY:
        free_portion(world, j, world.parts[p].site, world.parts[p].mask)
        p = world.parts[p].next


@compiled
def free_portion(world: View, j: int, s: int, mask: int) -> None:
    """Release one part of a gang over several nodes."""
    job = world.jobs[j]
    count = count_bits(mask)
    release_part(world, j, s, mask, portion(job.cpus, count, job.gpus), portion(job.memory, count, job.gpus))


@compiled
def no_room_in(view: View, j: int, p: int) -> bool:
    """Whether the numbers of free GPUs show that the job fits nowhere in the pool."""
    job = view.jobs[j]
    width = max(1, view.width[job.kind, view.sites[view.pools[p].anchor].form])
    return job.share == WHOLE_GPU and most_free_on(view, p, width) < job.gpus


@compiled
def last_place_worth_a_look(view: View, j: int, p: int) -> int:
    """End of the pool's sites to check for the job: a gang over several nodes only has the first."""
    pool = view.pools[p]
    wide = view.width[view.jobs[j].kind, view.sites[pool.anchor].form] > 1
    return pool.first_site + 1 if wide else pool.first_site + pool.sites


@compiled
def first_site_that_fits(view: View, j: int) -> int:
    """The site with the lowest index where the job fits, or NOBODY."""
    chosen = NOBODY
    for p in range(len(view.pools)):
        if no_room_in(view, j, p):
            continue
        for i in range(view.pools[p].first_site, last_place_worth_a_look(view, j, p)):
            s = view.pool_sites[i]
            if chosen != NOBODY and s > chosen:
                break
            if fits(view, j, s):
                chosen = s
                break
    return chosen


@compiled_allocating
def by_expected_end(view: View) -> tuple[Ints, Floats]:
    """The running jobs by expected end (ties by index), and those ends."""
    count = view.clock[0].running
    jobs = np.sort(view.running[:count])
    ends = np.empty(count, np.float64)
    for i in range(count):
        ends[i] = expected_end(view, jobs[i])
    order = np.argsort(ends, kind="mergesort")
    return jobs[order], ends[order]


@compiled_allocating
def reserve(view: View, world: View, head: int) -> Reservation:
    """Let running jobs end in the imagined cluster until the head fits. The imagined cluster keeps that state."""
    jobs, ends = by_expected_end(view)
    i = 0
    while i < len(jobs):
        time = ends[i]
        while i < len(jobs) and ends[i] == time:
            free_all_parts(world, jobs[i])
            i += 1
        site = first_site_that_fits(world, head)
        if site != NOBODY:
            return Reservation(time, widened(site))
    return Reservation(FOREVER, NOBODY)


# ---- EASY --------------------------------------------------------------------------------------------------------


@compiled
def take_counts(view: View, world: View, j: int, s: int, sign: int) -> None:
    """Count a job's GPUs, cores and memory as taken (sign 1) or released (sign -1) in the imagined cluster.

    Only the counts change, not which GPUs are held. A share counts as a whole GPU, unless the job would go to a GPU
    that is already shared.
    """
    job = view.jobs[j]
    width = view.width[job.kind, view.sites[s].form]
    if width == 1:
        gpus = job.gpus
        if job.share < WHOLE_GPU and shared_gpu(view, j, s) != NOBODY:
            gpus = 0
        take_counts_at(world, s, sign * gpus, sign * job.cpus, sign * job.memory)
        return
    needed = job.gpus
    last = NOBODY
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        count = min(needed, view.sites[last].free_gpus)
        cpus = portion(job.cpus, count, job.gpus)
        take_counts_at(world, last, sign * count, sign * cpus, sign * portion(job.memory, count, job.gpus))
        needed -= count


@compiled
def take_counts_at(world: View, s: int, gpus: int, cpus: int, memory: int) -> None:
    """Count this much more as taken at one site of the imagined cluster."""
    add_free(world, s, -gpus)
    node = world.nodes[world.sites[s].node]
    node.free_cpus -= cpus
    node.free_memory -= memory


@compiled
def harmless_site(view: View, world: View, j: int, head: int, reservation: Reservation) -> int:
    """The site with the lowest index where the job fits now and does not delay the head, or NOBODY."""
    chosen = NOBODY
    for p in range(len(view.pools)):
        if no_room_in(view, j, p):
            continue
        for i in range(view.pools[p].first_site, last_place_worth_a_look(view, j, p)):
            s = view.pool_sites[i]
            if chosen != NOBODY and s > chosen:
                break
            if fits(view, j, s) and is_harmless(view, world, j, s, head, reservation):
                chosen = s
                break
    return chosen


@compiled
def is_harmless(view: View, world: View, j: int, s: int, head: int, reservation: Reservation) -> bool:
    """Whether the job, which fits at the site now, would not delay the head there."""
    if reservation.site == NOBODY or view.clock[0].now + runtime(view, j, s) <= reservation.time:
        return True
    take_counts(view, world, j, s, 1)
    still = fits(world, head, reservation.site)
    take_counts(view, world, j, s, -1)
    return still


@compiled
def top_job(view: View, key: Key) -> int:
    """The job with the largest key, whether it fits or not."""
    chosen = NOBODY
    best = NEVER
    for q in range(seen(view)):
        j = in_queue(view, q)
        value = key(view, j)
        if chosen == NOBODY or value > best:
            best = value
            chosen = j
    return chosen


@compiled
def somebody_else_fits(view: View, head: int) -> bool:
    """Whether any job except the head could start now. Only then is a reservation worth computing."""
    last = last_seen(view)
    d = view.clock[0].demand
    while d != NOBODY:
        j = view.demands[d].first
        if j == head:
            j = view.runs[j].next
        if j != NOBODY and j <= last and not hopeless(view, j) and first_spot(view, j, anywhere).site != NOBODY:
            return True
        d = view.demands[d].next
    return False


@compiled_allocating
def easy(view: View, key: Key, score: Score) -> Choice:
    """Start the job with the largest key; while it waits, start later jobs that fit and do not delay it.

    The score must be equal at all sites of a form.
    """
    head = top_job(view, key)
    if not hopeless(view, head):
        site = first_spot(view, head, score).site
        if site != NOBODY:
            return start_or_wait(head, site)
    if not somebody_else_fits(view, head):
        return start_or_wait(NOBODY, NOBODY)
    world = imagined(view)
    reservation = reserve(view, world, head)
    chosen = NOBODY
    site = NOBODY
    best = NEVER
    for q in range(seen(view)):
        j = in_queue(view, q)
        if j == head or hopeless(view, j):
            continue
        value = key(view, j)
        if chosen == NOBODY or value > best:
            harmless = harmless_site(view, world, j, head, reservation)
            if harmless != NOBODY:
                chosen = j
                site = harmless
                best = value
    return start_or_wait(chosen, site)


@compiled
def submit_order(view: View, j: int) -> float:
    """Key that is largest for the job submitted first."""
    return -float(j)


@compiled_allocating
def fcfs_easy(view: View) -> Choice:
    """Submit order with EASY backfilling."""
    return easy(view, submit_order, anywhere)


# ---- multifactor -------------------------------------------------------------------------------------------------


@compiled
def multifactor_key(view: View, j: int) -> float:
    """Slurm's multifactor priority: age, size, fair share and the job's own priority."""
    clock = view.clock[0]
    job = view.jobs[j]
    age = min((clock.now - job.submit) / OLDEST_S, 1.0)
    total = 0
    for p in range(len(view.pools)):
        total += view.pools[p].gpus
    size = gpu_share(view, j) / max(total, 1)
    fair = 1.0
    if clock.usage > 0.0:
        fair = 2.0 ** (-usage_now(view, job.user) / clock.usage * len(view.users))
    return AGE_WEIGHT * age + SIZE_WEIGHT * size + FAIR_SHARE_WEIGHT * fair + PRIORITY_WEIGHT * job.priority


@compiled_allocating
def multifactor(view: View) -> Choice:
    """Slurm's multifactor priority with EASY backfilling."""
    total = 0.0
    for u in range(len(view.users)):
        total += usage_now(view, u)
    view.clock[0].usage = total
    return easy(view, multifactor_key, shortest)


def keep_usage(view: View) -> None:
    """Let the simulator record the usage of each user, with a half-life."""
    view.clock[0].half_life = HALF_LIFE_S


POLICIES: Final = (
    Policy(
        "fcfs-easy",
        "submit order with EASY backfilling: no job delays the reservation of the head",
        choose=fcfs_easy,
        needs=("estimate",),
    ),
    Policy(
        "multifactor",
        "Slurm's priority (age, size, fair share, the job's own) with EASY backfilling",
        choose=multifactor,
        needs=("estimate", "user"),
        prepare=keep_usage,
    ),
)
