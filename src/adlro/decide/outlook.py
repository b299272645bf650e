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
    last_seen,
    most_free_on,
    place_after,
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
    times: Floats  # [S] room to put times in order
    # The rest has no rows unless the outlook is kept through a run. Sites are in the order of View.pool_sites.
    known: Ints  # [S] Site.changes when the site was last foreseen; NOBODY: never
    next_end: Floats  # [S] when the next GPU of the site that is held comes free
    middle: Floats  # [S] when the middle one of its GPUs is free; FOREVER where the node is down


NOT_YET: Final = -FOREVER
"""In Outlook.ready: nobody has asked yet."""

LN_2: Final = math.log(2.0)

HEAD: Final = 2
"""Where Outlook.counts names the head: of the jobs that must wait for their goal, the one that would end first."""

WISEST: Final = 3
"""Where Outlook.counts names the row that the rule would start, NOBODY if none; its pool comes next."""


def make_outlook(view: View, rows: int = _ROWS) -> Outlook:
    """Arrays of the right size for a view."""
    return new_outlook(view, rows)


@compiled_allocating
def new_outlook(view: View, rows: int, is_kept: bool = False) -> Outlook:
    """Arrays of the right size for a view, for compiled code.

    An outlook that is kept through a run looks only at sites that have changed since it was last filled. It must be
    filled from one view alone, in the order of its history.
    """
    pools = len(view.pools)
    kept = len(view.sites) if is_kept else 0
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
        np.empty(len(view.sites), np.float64),
        np.full(kept, NOBODY, np.int32),
        np.empty(kept, np.float64),
        np.empty(kept, np.float64),
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
    if pool.sites > FEW_SITES and job.share == WHOLE_GPU:
        return tightest_of_many(view, j, p)
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
def tightest_of_many(view: View, j: int, p: int) -> int:
    """As `tightest_spot`, for a job of whole GPUs on one node: the sites with the fewest free GPUs first."""
    job = view.jobs[j]
    pool = view.pools[p]
    top = 0.0
    for h in range(len(view.forms)):
        if view.forms[h].pool == p and view.width[job.kind, h] == 1:
            top = max(top, view.rate[job.kind, h])
    chosen = NOBODY
    least = 0
    fastest = 0.0
    for free in range(job.gpus, pool.largest + 1):
        if chosen != NOBODY and free * WHOLE_GPU > least:
            break
        place = place_after(view, p, free, NOBODY) if view.spare[p, free] > 0 else NOBODY
        while place != NOBODY:
            s = view.pool_sites[pool.first_site + place]
            site = view.sites[s]
            rate = view.rate[job.kind, site.form]
            tighter = chosen == NOBODY or site.free_share < least
            as_tight = site.free_share == least and (rate > fastest or (rate == fastest and s < chosen))
            if (tighter or as_tight) and view.width[job.kind, site.form] == 1 and fits_on_node(view, j, s):
                chosen = widened(s)
                least = site.free_share
                fastest = rate
                if least == free * WHOLE_GPU and fastest >= top:
                    break  # none can be better
            place = place_after(view, p, free, place)
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
    if len(outlook.known) > 0:
        foresee_changes(view, outlook)
        return
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
            sort_times(outlook.gpu_free, first, gpus)
        for g in range(gpus):
            time = outlook.gpu_free[first + g]
            if time < outlook.ready[p, g + 1]:
                outlook.ready[p, g + 1] = time
            if now < time < release:
                release = time
    outlook.ready[p, 0] = release


@compiled
def foresee_changes(view: View, outlook: Outlook) -> None:
    """As `foresee_gpus`, for an outlook that is kept: only where something has changed, or should have ended by now.

    A GPU that was free when its site last changed keeps that time, which is in the past. How soon a pool has so many
    GPUs free on one node is found when somebody asks.
    """
    now = view.clock[0].now
    shared = 0
    for p in range(len(view.pools)):
        for g in range(outlook.ready.shape[1]):
            outlook.ready[p, g] = NOT_YET
    for i in range(len(view.sites)):
        if view.sites[view.pool_sites[i]].changes != outlook.known[i] or outlook.next_end[i] <= now:
            shared += foresee_site(view, outlook, i)
    if shared > 0:
        foresee_shared(view, outlook)
    for p in range(len(view.pools)):
        pool = view.pools[p]
        release = FOREVER
        for i in range(pool.first_site, pool.first_site + pool.sites):
            release = min(release, outlook.next_end[i])
        outlook.ready[p, 0] = release


@compiled
def foresee_site(view: View, outlook: Outlook, i: int) -> int:
    """When the GPUs of one site are expected to be free, from who holds them; 1 if some are shared, else 0.

    Who shares a GPU is not known here: such a site is marked as not known yet.
    """
    now = view.clock[0].now
    site = view.sites[view.pool_sites[i]]
    last = site.first_gpu + site.gpus - 1
    shared = 0
    for g in range(site.gpus):
        gpu = view.gpus[site.first_gpu + g]
        time = now
        if gpu.free_share < WHOLE_GPU:
            if gpu.holder == NOBODY:
                shared = 1
            else:
                time = expected_end(view, gpu.holder)
        outlook.gpu_free[last - g] = time
    if shared != 0:
        outlook.known[i] = NOBODY
    else:
        finish_site(view, outlook, i)
    return shared


@compiled
def foresee_shared(view: View, outlook: Outlook) -> None:
    """The same for the sites that are not known yet, from all running jobs."""
    for k in range(view.clock[0].running):
        j = view.running[k]
        run = view.runs[j]
        if view.jobs[j].share < WHOLE_GPU:
            site = view.sites[run.site]
            if outlook.known[view.pools[site.pool].first_site + site.place] == NOBODY:
                hold(view, outlook, run.site, run.mask, expected_end(view, j))
    for i in range(len(view.sites)):
        if outlook.known[i] == NOBODY:
            finish_site(view, outlook, i)


@compiled
def finish_site(view: View, outlook: Outlook, i: int) -> None:
    """Put the GPUs of a site in order, and note the next end and the middle."""
    now = view.clock[0].now
    site = view.sites[view.pool_sites[i]]
    outlook.known[i] = site.changes
    outlook.next_end[i] = FOREVER
    outlook.middle[i] = now
    first, gpus = site.first_gpu, site.gpus
    if view.nodes[site.node].up == 0:
        outlook.middle[i] = FOREVER
        for g in range(first, first + gpus):
            outlook.gpu_free[g] = FOREVER
    elif site.free_gpus < gpus:
        sort_times(outlook.gpu_free, first, gpus)
        for g in range(first + gpus - 1, first - 1, -1):
            if outlook.gpu_free[g] > now:
                outlook.next_end[i] = outlook.gpu_free[g]
        outlook.middle[i] = outlook.gpu_free[first + (gpus - 1) // 2]


@compiled
def sort_times(times: Floats, first: int, count: int) -> None:
    """Put so many times in order, the soonest first."""
    for g in range(first + 1, first + count):
        time = times[g]
        at = g
        while at > first and times[at - 1] > time:
            times[at] = times[at - 1]
            at -= 1
        times[at] = time


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
    gathered = Gathered(NOBODY, 0, 0)
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
                    width = width_in(view, kind, p)
                    if width > 1 or outlook.ready[p, gpus] == NOT_YET:
                        gathered = gather_times(view, outlook, p, -(-gpus // width), gathered)
                    wait = time_until_ready(view, outlook, gpus, width, p, gathered.sites) - now
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
def time_until_ready(view: View, outlook: Outlook, gpus: int, width: int, p: int, count: int) -> float:
    """When the pool is expected to have GPUs for a job that does not fit now: never sooner than its next release.

    So many times of sites have been gathered for it, unless the answer is known already.
    """
    if width > 1:
        return max(smallest(outlook.times, count, width), outlook.ready[p, 0])
    if outlook.ready[p, gpus] == NOT_YET:
        outlook.ready[p, gpus] = smallest(outlook.times, count, 1)
    time = outlook.ready[p, gpus]
    if time > view.clock[0].now:
        return time
    return outlook.ready[p, 0]  # GPUs are free, but not the cores or the memory beside them


class Gathered(NamedTuple):
    """What Outlook.times has: for which pool (NOBODY: nothing), how many GPUs on each site, and for how many sites."""

    pool: int
    gpus: int
    sites: int


@compiled
def gather_times(view: View, outlook: Outlook, p: int, gpus: int, before: Gathered) -> Gathered:
    """Write down when each site of the pool that has so many GPUs has them free, unless that was done before."""
    if before.pool == p and before.gpus == gpus:
        return before
    pool = view.pools[p]
    count = 0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        site = view.sites[view.pool_sites[i]]
        if site.gpus >= gpus:
            outlook.times[count] = outlook.gpu_free[site.first_gpu + gpus - 1]
            count += 1
    return Gathered(widened(p), widened(gpus), widened(count))


@compiled
def smallest(times: Floats, count: int, k: int) -> float:
    """The k-th smallest of the first so many times, FOREVER if there are fewer. Those after its place are no smaller.

    Hoare's selection: it costs as much as a few looks at each, however large k is.
    """
    if k > count:
        return FOREVER
    low = 0
    high = count - 1
    while low < high:
        pivot = times[(low + high) // 2]
        left = low
        right = high
        while left <= right:
            while times[left] < pivot:
                left += 1
            while times[right] > pivot:
                right -= 1
            if left <= right:
                times[left], times[right] = times[right], times[left]
                left += 1
                right -= 1
        if k - 1 <= right:
            high = right
        elif k - 1 >= left:
            low = left
        else:
            break
    return times[k - 1]


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
    ready = head_ready(view, outlook)
    for w in range(outlook.counts[0]):
        for p in range(len(view.pools)):
            outlook.prior[w, p] = UNWISE
            if outlook.spot[w, p] == NOBODY:
                continue
            run = outlook.run[w, p]
            if head != NOBODY and w != head and p == outlook.goal[head]:
                outlook.delay[w, p] = delay_of_head(view, outlook, w, p, ready)
                if outlook.delay[w, p] > 0.0 and run > outlook.finish[head]:
                    continue
            if run <= (1.0 + PATIENCE) * outlook.finish[w]:
                prior = max(-LONGEST, min(LONGEST, -0.5 * quick_log(max(run, 1e-3) / outlook.unit[0])))
                outlook.prior[w, p] = prior
                if prior > best:
                    best = prior
                    outlook.counts[WISEST] = w
                    outlook.counts[WISEST + 1] = p


class Ready(NamedTuple):
    """When as many sites as the head takes each have its part free, and when one more has."""

    time: float
    later: float


@compiled
def head_ready(view: View, outlook: Outlook) -> Ready:
    """When the goal of the head is ready for it, if some row could start there before; else nobody asks."""
    head = outlook.counts[HEAD]
    if head == NOBODY:
        return Ready(FOREVER, FOREVER)
    goal = outlook.goal[head]
    rivals = 0
    for w in range(outlook.counts[0]):
        rivals += outlook.spot[w, goal] != NOBODY
    if rivals == 0:
        return Ready(FOREVER, FOREVER)
    job = view.jobs[outlook.rows[head]]
    width = width_in(view, job.kind, goal)
    count = gather_times(view, outlook, goal, -(-job.gpus // width), Gathered(NOBODY, 0, 0)).sites
    time = smallest(outlook.times, count, width)
    later = FOREVER
    for i in range(width, count):
        later = min(later, outlook.times[i])
    return Ready(time, later)


@compiled
def delay_of_head(view: View, outlook: Outlook, w: int, p: int, ready: Ready) -> float:
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
    if view.width[job.kind, view.sites[s].form] > 1:
        return until - expected if view.pools[p].free_gpus - job.gpus < first.gpus else 0.0
    taken = job.gpus if view.sites[s].free_gpus >= job.gpus else 0  # a share of a GPU in use takes none that is free
    if taken == 0:
        return 0.0
    each = -(-first.gpus // width_in(view, first.kind, p))
    return max(0.0, ready_without(view, outlook, s, each, taken, until, ready) - expected)


@compiled
def ready_without(view: View, outlook: Outlook, s: int, each: int, taken: int, until: float, ready: Ready) -> float:
    """When the head's sites are ready, if some GPUs of one site are held until then.

    The site is one of the first to be ready, or it does not count. In its place comes the one that is ready next, or
    the site itself, later.
    """
    site = view.sites[s]
    if site.gpus < each or outlook.gpu_free[site.first_gpu + each - 1] > ready.time:
        return ready.time
    return min(ready.later, max(ready.time, ready_after(view, outlook, s, each, taken, until)))


# ---- the rule ----------------------------------------------------------------------------------------------------


@compiled
def start_without_gpu(view: View) -> Choice:
    """Start the shortest job that needs no GPU and fits somewhere, where it is least in the way of those that do."""
    last = last_seen(view)
    chosen = NOBODY
    site = NOBODY
    least = FOREVER
    d = view.clock[0].demand
    while d != NOBODY:
        j = view.demands[d].first
        if view.jobs[j].gpus == 0 and j <= last:
            s = plainest_spot(view, j)
            while s != NOBODY and j != NOBODY and j <= last:
                brief = best_runtime(view, j)
                if brief < least or (brief == least and j < chosen):
                    chosen = widened(j)
                    site = widened(s)
                    least = brief
                j = view.runs[j].next
        d = view.demands[d].next
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
