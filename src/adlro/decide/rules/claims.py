"""Claims: a waiting job takes its place from running jobs, if it gains more than they lose."""

from typing import Final, NamedTuple

from adlro.core.compiled import compiled, widened
from adlro.core.rules import (
    LEAST_WEIGHT,
    expected_end,
    most_in,
    portion,
    queue_position,
    rate_there,
    restart_cost,
    restart_of,
    weight_of,
    work_left,
)
from adlro.core.tables import FOREVER, NOBODY, RUNNING, View
from adlro.decide.rules.corrections import SETTING_BACK
from adlro.decide.rules.timelines import Timelines, externality, first_gpu_of, free_at_once, price_of_stop
from adlro.decide.sorting import is_among

SETBACK: Final = 0.25
"""What a stopped job loses, as a share of the runtime of the job that takes its place."""


MOST_EFFORT: Final = 1_000_000
"""How many parts of gangs the search for victims looks at in one plan. The shortest jobs come first."""


class Claim(NamedTuple):
    """The best place that others would have to leave: one of them, and the job's cost there with their loss."""

    victim: int
    cost: float


@compiled
def loss_of(view: View, lines: Timelines, v: int, j: int, seconds: float) -> float:
    """What a running job v loses if job j takes its place for so many seconds, apart from GPUs left idle.

    In seconds of j: where jobs count by their priority, a second of another job counts by its weight against that of j.
    """
    weight = weight_of(view, j)
    share = weight_of(view, v) / weight
    pressure = lines.pressure[0] / weight
    price = price_of_stop(view, v, lines.pressure[0]) * share
    if len(lines.sticking) == 0:
        return SETBACK * seconds * share + restart_of(view, v) * (share + pressure * view.jobs[v].gpus) + price
    restart = lines.sticking[first_gpu_of(view, v)] * restart_of(view, v)
    return lines.claiming[0] * SETBACK * seconds * share + restart * (share + pressure * view.jobs[v].gpus) + price


@compiled
def least_loss(view: View, j: int, seconds: float) -> float:
    """The least that a victim of job j can lose, whoever it is."""
    clock = view.clock[0]
    share = 1.0 if clock.weighted == 0 else LEAST_WEIGHT / weight_of(view, j)
    return (SETBACK * seconds + clock.restart) * share


@compiled
def outlasts(view: View, v: int, j: int, seconds: float) -> bool:
    """Whether a running job has more left than job j would take in its place and a restart, each by its weight."""
    clock = view.clock[0]
    rest = expected_end(view, v) - clock.now
    return rest / weight_of(view, v) > (seconds + restart_of(view, v)) / weight_of(view, j)


@compiled
def stays_visible(view: View, j: int) -> bool:
    """Whether the policy would still see the job in the queue if all running jobs that came before it were stopped."""
    clock = view.clock[0]
    if clock.window == 0:
        return True
    before = queue_position(view, j)
    for i in range(clock.running):
        before += view.running[i] < j
    return before < clock.window


@compiled
def best_claim(view: View, lines: Timelines, i: int, limit: float) -> Claim:
    """The place now with the least cost and loss below the limit, if running jobs leave it."""
    clock = view.clock[0]
    j = lines.jobs[i]
    job = view.jobs[j]
    left = work_left(view, j)
    restart = restart_cost(view, j)
    best = Claim(NOBODY, limit)
    if not stays_visible(view, j):
        return best
    lines.claiming[0] = lines.factors[i, SETTING_BACK]
    lowest = min(lines.claiming[0], lines.claiming[1])
    for p in range(len(view.pools)):
        pool = view.pools[p]
        width = view.width[job.kind, view.sites[pool.anchor].form]
        if width > 1:
            rate = rate_there(view, j, pool.anchor)
            if rate > 0.0:
                best = claim_across(view, lines, i, p, width, restart + left / rate, best)
            continue
        for k in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[k]
            site = view.sites[s]
            rate = rate_there(view, j, s)
            if view.width[job.kind, site.form] != 1 or rate <= 0.0:
                continue
            seconds = restart + left / rate
            cost = clock.now + seconds + externality(view, j, p, seconds, lines.rivals[i, p])
            if cost + lowest * least_loss(view, j, seconds) < best.cost:
                best = claim_at(view, lines, j, s, seconds, cost, best)
    return best


@compiled
def held_at(view: View, lines: Timelines, v: int, s: int) -> int:
    """How many GPUs of the site a running job holds that are not booked for others."""
    site = view.sites[s]
    count = 0
    for g in range(site.first_gpu, site.first_gpu + site.gpus):
        count += lines.holder[g] == v
    return count


@compiled
def claim_at(view: View, lines: Timelines, j: int, s: int, seconds: float, cost: float, best: Claim) -> Claim:
    """The better of a claim and the claim on one site."""
    count = victims_at(view, lines, j, s, seconds)
    if count == 0:
        return best
    loss = loss_of_all(view, lines, count, j, free_at_once(view, lines, s), seconds)
    if cost + loss < best.cost:
        return Claim(widened(lines.victims[0]), cost + loss)
    return best


@compiled
def victims_at(view: View, lines: Timelines, j: int, s: int, seconds: float) -> int:
    """Fill in who has to leave a site for job j, and return their number; 0 if that is nobody or not enough."""
    job = view.jobs[j]
    site = view.sites[s]
    node = view.nodes[site.node]
    if node.up == 0:
        return 0
    free = free_at_once(view, lines, s)
    cpus = node.free_cpus
    memory = node.free_memory
    count = 0
    # The victims: those with the least loss for each GPU first, until there is room.
    while free < job.gpus or cpus < job.cpus or memory < job.memory:
        least = FOREVER
        victim = NOBODY
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            v = lines.holder[g]
            if v != NOBODY and not is_among(lines.victims, count, v):
                price = loss_of(view, lines, v, j, seconds) / min(job.gpus, held_at(view, lines, v, s))
                if price < least and outlasts(view, v, j, seconds):
                    least = price
                    victim = v
        if victim == NOBODY:
            return 0
        lines.victims[count] = victim
        count += 1
        held = held_at(view, lines, victim, s)
        free += held
        cpus += portion(view.jobs[victim].cpus, held, view.jobs[victim].gpus)
        memory += portion(view.jobs[victim].memory, held, view.jobs[victim].gpus)
    # None that is not needed, the last one spared first.
    k = count - 1
    while k >= 0:
        v = lines.victims[k]
        other = view.jobs[v]
        held = held_at(view, lines, v, s)
        less_cpus = portion(other.cpus, held, other.gpus)
        less_memory = portion(other.memory, held, other.gpus)
        if free - held >= job.gpus and cpus - less_cpus >= job.cpus and memory - less_memory >= job.memory:
            free -= held
            cpus -= less_cpus
            memory -= less_memory
            count -= 1
            lines.victims[k] = lines.victims[count]
        k -= 1
    return count


@compiled
def loss_of_all(view: View, lines: Timelines, count: int, j: int, free: int, seconds: float) -> float:
    """What the first `count` victims lose together, and the waiting jobs by GPUs that are freed and not used."""
    loss = idle_loss(view, lines, count, j, free, seconds)
    for k in range(count):
        loss += loss_of(view, lines, lines.victims[k], j, seconds)
    return loss


@compiled
def idle_loss(view: View, lines: Timelines, count: int, j: int, free: int, seconds: float) -> float:
    """What it costs the waiting jobs that victims free GPUs which job j does not use."""
    freed = 0
    for k in range(count):
        freed += view.jobs[lines.victims[k]].gpus
    unused = freed - max(0, view.jobs[j].gpus - free)
    return lines.pressure[0] / weight_of(view, j) * max(0, unused) * seconds


@compiled
def claim_across(view: View, lines: Timelines, i: int, p: int, width: int, seconds: float, best: Claim) -> Claim:
    """The better of a claim and the claim of a gang on several nodes of a pool."""
    clock = view.clock[0]
    j = lines.jobs[i]
    cost = clock.now + seconds + externality(view, j, p, seconds, lines.rivals[i, p])
    lowest = min(lines.claiming[0], lines.claiming[1])
    if cost + lowest * least_loss(view, j, seconds) >= best.cost or lines.effort[0] > MOST_EFFORT:
        return best
    count = victims_across(view, lines, j, p, width, seconds, i + 1)
    if count == 0:
        return best
    loss = loss_of_all(view, lines, count, j, free_in_pool(view, lines, p), seconds)
    if cost + loss < best.cost:
        return Claim(widened(lines.victims[0]), cost + loss)
    return best


@compiled
def free_in_pool(view: View, lines: Timelines, p: int) -> int:
    """How many GPUs of the pool are free now and not booked."""
    pool = view.pools[p]
    free = 0
    for k in range(pool.first_site, pool.first_site + pool.sites):
        free += free_at_once(view, lines, view.pool_sites[k])
    return free


@compiled
def victims_across(view: View, lines: Timelines, j: int, p: int, width: int, seconds: float, first: int) -> int:
    """Fill in who has to leave the nodes of a pool for a gang, and return their number; 0 if nobody or not enough.

    The victims are among the jobs of the plan from number `first` on.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    for count in range(pool.largest + 1):
        lines.levels[0, count] = 0
    for k in range(pool.first_site, pool.first_site + pool.sites):
        s = view.pool_sites[k]
        lines.have[s] = free_at_once(view, lines, s) if view.nodes[view.sites[s].node].up != 0 else 0
        lines.levels[0, lines.have[s]] += 1
    count = 0
    # The longest first: the plan is in the order of remaining times.
    for k in range(len(lines.jobs) - 1, first - 1, -1):
        if most_in(lines.levels, 0, pool.largest, width) >= job.gpus:
            break
        v = lines.jobs[k]
        if is_claimable(view, lines, v, p, j, seconds):
            clear_gpus(view, lines, v, p, 1)
            lines.victims[count] = v
            count += 1
    if most_in(lines.levels, 0, pool.largest, width) < job.gpus:
        return 0
    for k in range(count - 1, -1, -1):  # none that is not needed, the shortest spared first
        v = lines.victims[k]
        clear_gpus(view, lines, v, p, -1)
        if most_in(lines.levels, 0, pool.largest, width) >= job.gpus:
            count -= 1
            lines.victims[k] = lines.victims[count]
        else:
            clear_gpus(view, lines, v, p, 1)
    return count


@compiled
def is_claimable(view: View, lines: Timelines, v: int, p: int, j: int, seconds: float) -> bool:
    """Whether the running job may be stopped, is in the pool, and outlasts job j there."""
    run = view.runs[v]
    if not is_running_here(view, v, p) or not outlasts(view, v, j, seconds):
        return False
    site = view.sites[run.site]
    for g in range(site.gpus):
        if run.mask >> g & 1 and lines.holder[site.first_gpu + g] == v:
            return True
    return False


@compiled
def is_running_here(view: View, v: int, p: int) -> bool:
    """Whether the job runs in the pool."""
    run = view.runs[v]
    return run.state == RUNNING and view.sites[run.site].pool == p


@compiled
def clear_gpus(view: View, lines: Timelines, v: int, p: int, sign: int) -> None:
    """Count the GPUs of a running job in the pool as ones that a gang could have (sign 1), or no longer (-1)."""
    run = view.runs[v]
    s = run.site
    part = run.parts
    while True:
        lines.effort[0] += 1
        if view.sites[s].pool == p:
            lines.levels[0, lines.have[s]] -= 1
            lines.have[s] += sign * held_at(view, lines, v, s)
            lines.levels[0, lines.have[s]] += 1
        if part == NOBODY:
            return
        s = view.parts[part].site
        part = view.parts[part].next
