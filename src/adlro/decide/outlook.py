"""What can be foreseen at a decision: when GPUs come free, when each job could start where, and whom that would delay.

Everything here follows from estimates and the rules. The rule `eft-reserving` decides by it alone; the network sees it
as planes over (job, pool) pairs, the rule's judgement (`prior`) among them. A pool is all GPUs of one model; within
it a job goes to the site where it fits most tightly, so the pair (job, pool) names a site.

Over 500 lines: one computation in steps, each of which fills arrays that the next one reads.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    best_runtime,
    expected_end,
    fits_across,
    fits_on_node,
    in_queue,
    most_free_on,
    restart_cost,
    seen,
    work_left,
)
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Floats, Ints, View

_ROWS: Final = 16
"""How many queued jobs are looked at. Of jobs that need exactly the same only the shortest counts as one."""

PATIENCE: Final = 1.0
"""A start may last this much longer than to wait for the place where the job would end first: once more as long."""

UNWISE: Final = -4.0
"""The prior of a legal pair that lasts too long or delays a job that would end before it."""

IDLE: Final = -3.0
"""The prior of waiting: below every wise start, above every unwise one."""

LONGEST: Final = 2.5
"""Priors of wise starts lie within this of 0."""

ALIKE: Final = 1e-6
"""Runtimes that differ by a smaller share may have priors that are the same, or not, by how they are rounded."""


FEW_SITES: Final = 4
"""So few sites of a pool are looked at one by one without asking first whether any has enough."""


class Outlook(NamedTuple):
    """What is foreseen, in arrays that are filled anew at each decision. W rows (jobs), P pools, G GPUs."""

    gpu_free: Floats  # [G] when each GPU is expected to be free; on each site the soonest first
    ready: Floats  # [P, GPUs of the largest site + 1] when a node of the pool first has so many free; 0: next release
    rows: Ints  # [W] the jobs, by runtime at their fastest
    alike: Ints  # [W] queued jobs with the same demand, this one included
    brief: Floats  # [W] s to run at its fastest
    finish: Floats  # [W] s until it would end, where it would end first, the wait for GPUs included
    goal: Ints  # [W] the pool where that is
    spot: Ints  # [W, P] where it may start now; NOBODY: nowhere in the pool
    run: Floats  # [W, P] s to run there
    wait: Floats  # [W, P] s until it is expected to fit; 0 if it fits now
    delay: Floats  # [W, P] s by which a start there would put off the head
    prior: Floats  # [W, P] the rule's judgement: the larger the sooner
    counts: Ints  # [5] rows in use; legal pairs; the row of the head; row and pool of the rule's choice
    unit: Floats  # [1] typical runtime of the rows in s: what the network measures time in
    demand: Ints  # [W] what each row needs: the same number for the same
    awaited: Ints  # [P] 1 where it is foreseen when GPUs come free


LN_2: Final = math.log(2.0)

HEAD: Final = 2
"""Where Outlook.counts names the head: of the jobs that must wait for their goal, the one that would end first."""

WISEST: Final = 3
"""Where Outlook.counts names the row that the rule would start, NOBODY if none; its pool comes next."""


def make_outlook(view: View, rows: int = _ROWS) -> Outlook:
    """Arrays of the right size for a view."""
    return new_outlook(view, rows)


@compiled_allocating
def new_outlook(view: View, rows: int) -> Outlook:
    """Arrays of the right size for a view, for compiled code."""
    pools = len(view.pools)
    return Outlook(
        np.empty(len(view.gpus), np.float64),
        np.empty((pools, view.spare.shape[1]), np.float64),
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows, np.float64),
        np.empty(rows, np.float64),
        np.empty(rows, np.int32),
        np.empty((rows, pools), np.int32),
        np.empty((rows, pools), np.float64),
        np.empty((rows, pools), np.float64),
        np.empty((rows, pools), np.float64),
        np.empty((rows, pools), np.float64),
        np.empty(5, np.int32),
        np.empty(1, np.float64),
        np.empty(rows, np.int32),
        np.empty(pools, np.int32),
    )


@compiled
def look(view: View, outlook: Outlook, whole: bool = True) -> int:
    """Fill the outlook; how many legal pairs there are. Without any, only the rows and their places are filled.

    Unless the outlook is to be `whole`, only what the rule needs to choose is filled: when GPUs come free is foreseen
    in the pools that some row would have to wait for, and not at all if the choice is plain without.
    """
    for p in range(len(view.pools)):
        outlook.awaited[p] = whole
    admit_rows(view, outlook)
    find_spots(view, outlook)
    if outlook.counts[1] > 0 and (whole or not is_plain(view, outlook)):
        foresee_gpus(view, outlook)
        foresee_rows(view, outlook)
        judge(view, outlook)
    return outlook.counts[1]


@compiled
def is_worth_a_look(view: View) -> bool:
    """Whether any queued job might start: none can where each needs more whole GPUs than any pool has free."""
    most = 0
    for p in range(len(view.pools)):
        most = max(most, view.pools[p].free_gpus)
    for q in range(seen(view)):
        job = view.jobs[in_queue(view, q)]
        if job.gpus <= most or job.share < WHOLE_GPU:
            return True
    return False


@compiled
def quick_log(x: float) -> float:
    """The natural logarithm of a positive number within 1e-9; a network is shown dozens at every step.

    x = m · 2^e with m from √½ to √2, and log m = 2 artanh((m − 1) / (m + 1)) by its series.
    """
    bits = np.float64(x).view(np.int64)
    e = (bits - 0x3FE6A09E00000000) >> 52
    m = np.int64(bits - (e << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    return e * LN_2 + s * (2.0 + z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0)))))


# ---- the rows ----------------------------------------------------------------------------------------------------


@compiled
def admit_rows(view: View, outlook: Outlook) -> None:
    """The shortest jobs of the queue, one for each demand: of two that need the same, the longer gains nothing."""
    most = len(outlook.rows)
    count = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        job = view.jobs[j]
        if job.gpus == 0:
            continue  # it needs no GPU: whoever asked starts it at once where it fits
        brief = best_runtime(view, j)
        demand = job.demand
        twin = NOBODY
        for w in range(count):
            if outlook.demand[w] == demand:
                twin = w
                break
        waiting = 1
        if twin != NOBODY:
            if brief >= outlook.brief[twin]:
                outlook.alike[twin] += 1
                continue
            waiting = outlook.alike[twin] + 1
            w = twin  # the place falls free; the shorter job moves up from here
        elif count < most:
            w = count
            count += 1
        elif brief < outlook.brief[most - 1]:
            w = most - 1
        else:
            continue
        while w > 0 and outlook.brief[w - 1] > brief:
            outlook.rows[w] = outlook.rows[w - 1]
            outlook.brief[w] = outlook.brief[w - 1]
            outlook.alike[w] = outlook.alike[w - 1]
            outlook.demand[w] = outlook.demand[w - 1]
            w -= 1
        outlook.rows[w] = j
        outlook.brief[w] = brief
        outlook.alike[w] = waiting
        outlook.demand[w] = demand
    outlook.counts[0] = count


# ---- where they fit now ------------------------------------------------------------------------------------------


@compiled
def find_spots(view: View, outlook: Outlook) -> None:
    """For each row and pool, where the job may start now and how long it runs there (or would, if it fitted)."""
    legal = 0
    for w in range(outlook.counts[0]):
        j = outlook.rows[w]
        kind = view.jobs[j].kind
        lost = restart_cost(view, j)
        left = work_left(view, j)
        for p in range(len(view.pools)):
            outlook.run[w, p] = 0.0  # at first the best rate stands here
        for h in range(len(view.forms)):
            if view.width[kind, h] > 0:
                p = view.forms[h].pool
                outlook.run[w, p] = max(outlook.run[w, p], view.rate[kind, h])
        for p in range(len(view.pools)):
            rate = outlook.run[w, p]
            run = lost + left / rate if rate > 0.0 else FOREVER
            s = NOBODY
            if run < FOREVER:
                s = tightest_spot(view, j, p)
                if s == NOBODY:
                    outlook.awaited[p] = 1
                else:
                    legal += 1
                    here = view.rate[kind, view.sites[s].form]
                    if here != rate:
                        run = lost + left / here
            outlook.spot[w, p] = s
            outlook.run[w, p] = run
    outlook.counts[1] = legal
    outlook.counts[WISEST] = NOBODY


@compiled
def tightest_spot(view: View, j: int, p: int) -> int:
    """The site of the pool where the job may start now with the least left over; of equal ones the fastest, then first.

    A gang over several nodes has one site: the anchor of the pool.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    if job.share == WHOLE_GPU and pool.free_gpus < job.gpus:
        return NOBODY
    width = view.width[job.kind, view.sites[pool.anchor].form]
    if width > 1:
        return pool.anchor if fits_across(view, j, pool.anchor, width) else NOBODY
    if pool.sites > FEW_SITES and job.share == WHOLE_GPU and most_free_on(view, p, 1) < job.gpus:
        return NOBODY
    chosen = NOBODY
    least = 0
    fastest = 0.0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        s = view.pool_sites[i]
        site = view.sites[s]
        if site.free_share < job.gpus * job.share or view.width[job.kind, site.form] != 1:
            continue
        rate = view.rate[job.kind, site.form]
        if chosen != NOBODY and (
            site.free_share > least
            or (site.free_share == least and (rate < fastest or (rate == fastest and s > chosen)))
        ):
            continue
        if fits_on_node(view, j, s):
            chosen = s
            least = site.free_share
            fastest = rate
    return chosen


@compiled
def is_plain(view: View, outlook: Outlook) -> bool:
    """Whether the first legal pair is the rule's choice whatever is foreseen; if so it is noted as that.

    It is if no legal pair is shorter, its job cannot end twice as fast elsewhere, and no job that has to wait somewhere
    could end before it: it lasts not too long, and delays nobody whom it may not.
    """
    row = 0
    pool = 0
    while outlook.spot[row, pool] == NOBODY:
        pool += 1
        if pool == len(view.pools):
            row, pool = row + 1, 0
    run = outlook.run[row, pool]
    for w in range(outlook.counts[0]):
        for p in range(len(view.pools)):
            other = outlook.run[w, p]
            if outlook.spot[w, p] != NOBODY:
                if other != run and other < (1.0 + ALIKE) * run:
                    return False
            elif w == row:
                if run > (1.0 + PATIENCE) * other:
                    return False
            elif run > other:
                return False
    outlook.counts[WISEST] = row
    outlook.counts[WISEST + 1] = pool
    return True


# ---- when they could start ---------------------------------------------------------------------------------------


@compiled
def foresee_gpus(view: View, outlook: Outlook) -> None:
    """When each GPU is expected to be free, when each pool first has so many free on one node, and its next release.

    The next release (when a GPU that is held comes free; FOREVER if none is) stands where 0 GPUs would.
    """
    now = view.clock[0].now
    for g in range(len(view.gpus)):
        outlook.gpu_free[g] = now
    for i in range(view.clock[0].running):
        j = view.running[i]
        run = view.runs[j]
        if run.mask == 0 or outlook.awaited[view.sites[run.site].pool] == 0:
            continue
        end = expected_end(view, j)
        hold(view, outlook, run.site, run.mask, end)
        part = run.parts
        while part != NOBODY:
            hold(view, outlook, view.parts[part].site, view.parts[part].mask, end)
            part = view.parts[part].next
    for p in range(len(view.pools)):
        if outlook.awaited[p] != 0:
            foresee_pool(view, outlook, p)


@compiled
def foresee_pool(view: View, outlook: Outlook, p: int) -> None:
    """Put the GPUs of each site of the pool in order, and note the soonest of them."""
    now = view.clock[0].now
    pool = view.pools[p]
    for g in range(outlook.ready.shape[1]):
        outlook.ready[p, g] = FOREVER
    release = FOREVER
    for i in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[i]]
        first, gpus = site.first_gpu, site.gpus
        if view.nodes[site.node].up == 0:
            for g in range(first, first + gpus):
                outlook.gpu_free[g] = FOREVER
            continue
        if site.free_gpus < gpus:
            for g in range(first + 1, first + gpus):
                time = outlook.gpu_free[g]
                at = g
                while at > first and outlook.gpu_free[at - 1] > time:
                    outlook.gpu_free[at] = outlook.gpu_free[at - 1]
                    at -= 1
                outlook.gpu_free[at] = time
        for g in range(gpus):
            time = outlook.gpu_free[first + g]
            if time < outlook.ready[p, g + 1]:
                outlook.ready[p, g + 1] = time
            if now < time < release:
                release = time
    outlook.ready[p, 0] = release


@compiled
def hold(view: View, outlook: Outlook, s: int, mask: int, end: float) -> None:
    """These GPUs of a site are held until then, or longer.

    They are counted from the end: those with low numbers are taken first, and what is free shall come first.
    """
    site = view.sites[s]
    last = site.first_gpu + site.gpus - 1
    for g in range(site.gpus):
        free = outlook.gpu_free[last - g]
        outlook.gpu_free[last - g] = max(free, end) if mask >> g & 1 else free


@compiled
def foresee_rows(view: View, outlook: Outlook) -> None:
    """For each row: the wait for each pool, where it would end first and when; and which row is the head."""
    now = view.clock[0].now
    outlook.counts[HEAD] = NOBODY
    logs = 0.0
    for w in range(outlook.counts[0]):
        job = view.jobs[outlook.rows[w]]
        gpus, kind = job.gpus, job.kind
        first = FOREVER
        goal = NOBODY
        logs += quick_log(max(outlook.brief[w], 1.0))
        for p in range(len(view.pools)):
            run = outlook.run[w, p]
            wait = FOREVER
            if run != FOREVER:
                wait = 0.0
                if outlook.spot[w, p] == NOBODY:
                    wait = time_until_ready(view, outlook, gpus, width_in(view, kind, p), p) - now
                if wait + run < first:
                    first = wait + run
                    goal = p
            outlook.wait[w, p] = wait
            outlook.delay[w, p] = 0.0
        outlook.finish[w] = first
        outlook.goal[w] = goal
        head = outlook.counts[HEAD]
        if goal != NOBODY and outlook.spot[w, goal] == NOBODY and (head == NOBODY or first < outlook.finish[head]):
            outlook.counts[HEAD] = w
    outlook.unit[0] = math.exp(logs / max(outlook.counts[0], 1))


@compiled
def width_in(view: View, kind: int, p: int) -> int:
    """Over how many nodes of the pool a job of this kind goes; 0 if it never runs there."""
    widest = view.width[kind, view.sites[view.pools[p].anchor].form]
    if widest > 0:
        return widest
    for h in range(len(view.forms)):
        if view.forms[h].pool == p and view.width[kind, h] > 0:
            return 1
    return 0


@compiled
def time_until_ready(view: View, outlook: Outlook, gpus: int, width: int, p: int) -> float:
    """When the pool is expected to have GPUs for a job that does not fit now: never sooner than its next release."""
    now = view.clock[0].now
    if width > 1:
        return max(ready_across(view, outlook, gpus, width, p, NOBODY, 0, 0.0), outlook.ready[p, 0])
    time = outlook.ready[p, gpus]
    if time > now:
        return time
    return outlook.ready[p, 0]  # GPUs are free, but not the cores or the memory beside them


@compiled
def ready_across(
    view: View, outlook: Outlook, gpus: int, width: int, p: int, taken_at: int, taken: int, until: float
) -> float:
    """When as many nodes as a gang takes each have its part free; with `taken` GPUs of one site held until then."""
    pool = view.pools[p]
    each = -(-gpus // width)
    last = -1.0
    ready = 0  # nodes that have it by then
    while ready < width and last < FOREVER:
        soonest = FOREVER
        more = 0
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            if view.sites[s].gpus < each:
                continue
            if s == taken_at:
                time = ready_after(view, outlook, s, each, taken, until)
            else:
                time = outlook.gpu_free[view.sites[s].first_gpu + each - 1]
            if last < time <= soonest:
                more = more + 1 if time == soonest else 1
                soonest = time
        ready += more
        last = soonest
    return last


@compiled
def ready_after(view: View, outlook: Outlook, s: int, gpus: int, taken: int, until: float) -> float:
    """When the site has so many GPUs free, if the first `taken` of them are held until then."""
    site = view.sites[s]
    if gpus > site.gpus:
        return FOREVER
    sooner = 0  # of those not taken
    for g in range(site.first_gpu + taken, site.first_gpu + site.gpus):
        if outlook.gpu_free[g] >= until:
            break
        sooner += 1
    if gpus <= sooner:
        return outlook.gpu_free[site.first_gpu + taken + gpus - 1]
    if gpus <= sooner + taken:
        return until
    return outlook.gpu_free[site.first_gpu + gpus - 1]


# ---- whom a start would delay ------------------------------------------------------------------------------------


@compiled
def judge(view: View, outlook: Outlook) -> None:
    """The rule's judgement of every legal pair, how long it would put off the head, and which pair is the wisest."""
    head = outlook.counts[HEAD]
    best = IDLE
    for w in range(outlook.counts[0]):
        for p in range(len(view.pools)):
            outlook.prior[w, p] = UNWISE
            if outlook.spot[w, p] == NOBODY:
                continue
            run = outlook.run[w, p]
            if head != NOBODY and w != head and p == outlook.goal[head]:
                outlook.delay[w, p] = delay_of_head(view, outlook, w, p)
                if outlook.delay[w, p] > 0.0 and run > outlook.finish[head]:
                    continue
            if run <= (1.0 + PATIENCE) * outlook.finish[w]:
                prior = max(-LONGEST, min(LONGEST, -0.5 * quick_log(max(run, 1e-3) / outlook.unit[0])))
                outlook.prior[w, p] = prior
                if prior > best:
                    best = prior
                    outlook.counts[WISEST] = w
                    outlook.counts[WISEST + 1] = p


@compiled
def delay_of_head(view: View, outlook: Outlook, w: int, p: int) -> float:
    """Seconds by which the head would start later in its pool, if this row started there now."""
    head = outlook.counts[HEAD]
    first = view.jobs[outlook.rows[head]]
    job = view.jobs[outlook.rows[w]]
    now = view.clock[0].now
    until = now + outlook.run[w, p]
    expected = now + outlook.wait[head, p]
    if until <= expected:
        return 0.0
    s = outlook.spot[w, p]
    width = width_in(view, first.kind, p)
    if view.width[job.kind, view.sites[s].form] > 1:
        return until - expected if view.pools[p].free_gpus - job.gpus < first.gpus else 0.0
    taken = job.gpus if view.sites[s].free_gpus >= job.gpus else 0  # a share of a GPU in use takes none that is free
    if taken == 0:
        return 0.0
    if width > 1:
        return max(0.0, ready_across(view, outlook, first.gpus, width, p, s, taken, until) - expected)
    soonest = ready_after(view, outlook, s, first.gpus, taken, until)
    pool = view.pools[p]
    for i in range(pool.first_site, pool.first_site + pool.sites):
        other = view.pool_sites[i]
        if other != s and view.sites[other].gpus >= first.gpus:
            soonest = min(soonest, outlook.gpu_free[view.sites[other].first_gpu + first.gpus - 1])
    return max(0.0, soonest - expected)


# ---- the rule ----------------------------------------------------------------------------------------------------


@compiled
def start_without_gpu(view: View) -> Choice:
    """Start the shortest job that needs no GPU and fits somewhere, where it is least in the way of those that do."""
    chosen = NOBODY
    site = NOBODY
    least = FOREVER
    for q in range(seen(view)):
        j = in_queue(view, q)
        if view.jobs[j].gpus == 0:
            brief = best_runtime(view, j)
            if brief < least:
                s = plainest_spot(view, j)
                if s != NOBODY:
                    chosen = j
                    site = s
                    least = brief
    if chosen == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, widened(chosen), widened(site), FOREVER)


@compiled
def plainest_spot(view: View, j: int) -> int:
    """The node that the job fits on with the fewest GPUs; of equal ones that with the fewest free, the fewest cores."""
    chosen = NOBODY
    for s in range(len(view.sites)):
        if chosen != NOBODY:
            site, best = view.sites[s], view.sites[chosen]
            if site.gpus != best.gpus:
                worse = site.gpus > best.gpus
            elif site.free_gpus != best.free_gpus:
                worse = site.free_gpus > best.free_gpus
            else:
                worse = view.nodes[site.node].free_cpus >= view.nodes[best.node].free_cpus
            if worse:
                continue
        if fits_on_node(view, j, s):
            chosen = s
    return chosen


@compiled
def wisest(view: View, outlook: Outlook) -> Choice:
    """The legal pair with the largest prior, if it is better than to wait."""
    w = outlook.counts[WISEST]
    if w == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, widened(outlook.rows[w]), widened(outlook.spot[w, outlook.counts[WISEST + 1]]), FOREVER)


@compiled_allocating
def eft_reserving(view: View) -> Choice:
    """Shortest first, each where it ends about first; nobody delays the next to end once its GPUs come free."""
    choice = start_without_gpu(view)
    if choice.verb == START:
        return choice
    outlook = new_outlook(view, _ROWS)
    if look(view, outlook, False) == 0:
        return choice
    return wisest(view, outlook)


POLICIES: Final = (
    Policy(
        "eft-reserving",
        "shortest first, each where it ends about first; nobody delays the next to end once its GPUs come free",
        choose=eft_reserving,
        needs=("estimate",),
    ),
)
