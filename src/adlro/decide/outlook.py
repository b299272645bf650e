"""A forecast at a decision: when GPUs become free, when each job could start where, and whom that would delay.

Everything follows from estimates and the rules. The rule `eft-reserving` decides by it alone. The network sees it as
planes over (job, pool) pairs, including the rule's score (`prior`). A pool is all GPUs of one model. Within a pool a
job goes to the site where it fits most tightly, so a pair (job, pool) stands for one site.

Over 500 lines: one computation in steps, each of which fills arrays that the next one reads.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, compiled_alone, widened
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
    pace_at,
    place_after,
    rate_on,
    rate_there,
    restart_cost,
    seen,
    weight_of,
    work_left,
)
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Floats, Ints, View

_ROWS: Final = 16
"""How many queued jobs are considered. Of jobs with the same demand only the shortest counts."""

PATIENCE: Final = 1.0
"""A start is acceptable if it takes at most 1 + PATIENCE times as long as the earliest possible finish."""

UNWISE: Final = -4.0
"""The prior of a legal pair that runs too long, or delays a job that would end before it."""

IDLE: Final = -3.0
"""The prior of waiting: below every good start and above every UNWISE one."""

LONGEST: Final = 2.5
"""Priors of good starts are within ±LONGEST."""

ALIKE: Final = 1e-6
"""Relative difference of run times below which rounding decides whether two priors are equal."""


FEW_SITES: Final = 4
"""In pools with at most this many sites all are checked one by one, without a test whether any has enough GPUs."""


ABOUT_AS_FAST: Final = 0.95
"""Where the pace of GPUs is measured, a job goes to the tightest of the sites with this share of the best pace."""


class Outlook(NamedTuple):
    """The forecast, in arrays that every decision fills again. W rows (jobs), P pools, G GPUs."""

    gpu_free: Floats  # [G] when each GPU is expected to be free; sorted within each site
    ready: Floats  # [P, GPUs of the largest site + 1] when a node of the pool first has that many free; 0: next release
    rows: Ints  # [W] the jobs, sorted by best runtime
    alike: Ints  # [W] number of queued jobs with the same demand, including this one
    brief: Floats  # [W] best runtime in s
    finish: Floats  # [W] s until its earliest possible end, including the wait for GPUs
    goal: Ints  # [W] the pool with that end
    spot: Ints  # [W, P] the site where it may start now; NOBODY: none in the pool
    run: Floats  # [W, P] runtime there in s
    wait: Floats  # [W, P] s until it is expected to fit; 0 if it fits now
    delay: Floats  # [W, P] s by which a start there would delay the head
    prior: Floats  # [W, P] the rule's score: higher starts sooner
    counts: Ints  # [5] rows in use; legal pairs; the row of the head; row and pool of the rule's choice
    unit: Floats  # [1] typical runtime of the rows in s: the network's unit of time
    demand: Ints  # [W] demand of each row; equal numbers mean equal needs
    awaited: Ints  # [P] 1 if the forecast covers when the pool's GPUs become free
    times: Floats  # [S] scratch space for sorting times
    # The arrays below have length 0 unless the outlook is kept through a run. Sites are ordered as in View.pool_sites.
    known: Ints  # [S] Site.changes when the site was last updated; NOBODY: never
    next_end: Floats  # [S] when the site's next busy GPU becomes free
    middle: Floats  # [S] when the median GPU of the site becomes free; FOREVER if the node is down


NOT_YET: Final = -FOREVER
"""In Outlook.ready: not computed yet."""

LN_2: Final = math.log(2.0)

HEAD: Final = 2
"""Index in Outlook.counts of the head: of the jobs that must wait for their goal, the one that would end first."""

WISEST: Final = 3
"""Index in Outlook.counts of the row that the rule would start, NOBODY if none. Its pool is next."""


def make_outlook(view: View, rows: int = _ROWS) -> Outlook:
    """Arrays of the right size for a view."""
    return new_outlook(view, rows)


@compiled_allocating
def new_outlook(view: View, rows: int, is_kept: bool = False) -> Outlook:
    """Arrays of the right size for a view, for compiled code.

    An outlook that is kept through a run updates only sites that have changed since the last time. It must always be
    filled from the same view, in order of time.
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
    """Fill the outlook and return the number of legal pairs. If it is 0, only rows and their sites are filled.

    Without `whole`, only what the rule needs for its choice is filled: the forecast covers the pools that some row
    would wait for, and is skipped if the choice is obvious without it.
    """
    for p in range(len(view.pools)):
        outlook.awaited[p] = whole
    admit_rows(view, outlook)
    find_spots(view, outlook)
    if outlook.counts[1] > 0 and (whole or view.clock[0].weighted != 0 or not is_plain(view, outlook)):
        foresee_gpus(view, outlook)
        foresee_rows(view, outlook)
        judge(view, outlook)
    return outlook.counts[1]


@compiled
def is_worth_a_look(view: View) -> bool:
    """Whether any queued job might start: none can if each needs more whole GPUs than any pool has free."""
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
    """The natural logarithm of a positive number, within 1e-9. The network's inputs need dozens at every step.

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
def key_of(view: View, outlook: Outlook, w: int) -> float:
    """What the rows are sorted by: the best runtime, by the job's weight."""
    return outlook.brief[w] / weight_of(view, outlook.rows[w])


@compiled
def admit_rows(view: View, outlook: Outlook) -> None:
    """Choose the rows: the shortest queued jobs, one for each demand. A longer job of the same demand gains nothing."""
    most = len(outlook.rows)
    count = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        job = view.jobs[j]
        if job.gpus == 0:
            continue  # it needs no GPU: the caller starts it at once if it fits
        brief = best_runtime(view, j)
        key = brief / weight_of(view, j)
        demand = job.demand
        twin = NOBODY
        for w in range(count):
            if outlook.demand[w] == demand:
                twin = w
                break
        waiting = 1
        if twin != NOBODY:
            if key >= key_of(view, outlook, twin):
                outlook.alike[twin] += 1
                continue
            waiting = outlook.alike[twin] + 1
            w = twin  # this row becomes free, and the shorter job moves up from here
        elif count < most:
            w = count
            count += 1
        elif key < key_of(view, outlook, most - 1):
            w = most - 1
        else:
            continue
        while w > 0 and key_of(view, outlook, w - 1) > key:
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
    """For each row and pool: the site where the job may start now, and its runtime there, even if it does not fit."""
    legal = 0
    for w in range(outlook.counts[0]):
        j = outlook.rows[w]
        kind = view.jobs[j].kind
        lost = restart_cost(view, j)
        left = work_left(view, j)
        for p in range(len(view.pools)):
            outlook.run[w, p] = 0.0  # holds the best rate first
        for h in range(len(view.forms)):
            if view.width[kind, h] > 0:
                p = view.forms[h].pool
                outlook.run[w, p] = max(outlook.run[w, p], rate_on(view, j, h))
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
                    here = rate_there(view, j, s)
                    if here != rate:
                        run = lost + left / here
            outlook.spot[w, p] = s
            outlook.run[w, p] = run
    outlook.counts[1] = legal
    outlook.counts[WISEST] = NOBODY


@compiled
def tightest_spot(view: View, j: int, p: int) -> int:
    """The site of the pool where the job fits now with the least left over; ties: the fastest, then the first.

    For a gang over several nodes it is the anchor of the pool.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    if job.share == WHOLE_GPU and pool.free_gpus < job.gpus:
        return NOBODY
    width = view.width[job.kind, view.sites[pool.anchor].form]
    if width > 1:
        return pool.anchor if fits_across(view, j, pool.anchor, width) else NOBODY
    if view.clock[0].paced != 0:
        return tightest_of_fast(view, j, p)
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


@compiled_alone
def tightest_of_fast(view: View, j: int, p: int) -> int:
    """Like `tightest_spot` on one node, of the sites whose GPUs have about the best measured pace that the job can get.

    Without wear and heat it is the same site.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    best = 0.0
    chosen = NOBODY
    least = 0
    fastest = 0.0
    for again in range(2):
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            site = view.sites[s]
            if site.free_share < job.gpus * job.share or view.width[job.kind, site.form] != 1:
                continue
            pace = pace_at(view, j, s)
            if again == 0:
                if pace > best and fits_on_node(view, j, s):
                    best = pace
            elif pace >= ABOUT_AS_FAST * best:
                rate = view.rate[job.kind, site.form] * pace
                tighter = site.free_share < least or (site.free_share == least and rate > fastest)
                if (chosen == NOBODY or tighter) and fits_on_node(view, j, s):
                    chosen = widened(s)
                    least = site.free_share
                    fastest = rate
    return chosen


@compiled
def tightest_of_many(view: View, j: int, p: int) -> int:
    """Like `tightest_spot`, for whole GPUs on one node: sites with the fewest free GPUs are checked first."""
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
                    break  # no later site can be better
            place = place_after(view, p, free, place)
    return chosen


@compiled
def is_plain(view: View, outlook: Outlook) -> bool:
    """Whether the first legal pair is the rule's choice whatever the forecast says; if so, record it.

    This holds if no legal pair is shorter, its job cannot end in half the time elsewhere, and no job that has to wait
    could end before it. Then it does not run too long and delays no job that it may not delay.
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
    """Forecast when each GPU is free, when each pool first has a number of GPUs free on one node, and its next release.

    The next release (when a busy GPU becomes free; FOREVER if none is busy) is stored at index 0 GPUs.
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
    """Sort the GPUs of each site of the pool by when they become free, and keep the earliest times for the pool."""
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
    """Like `foresee_gpus`, for an outlook that is kept: only where something has changed or should have ended by now.

    A GPU that was free when its site last changed keeps that time, which is in the past. When a pool has a number of
    GPUs free on one node is computed on demand.
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
    """Forecast when the GPUs of one site are free, from the jobs that hold them; 1 if some are shared, else 0.

    The holders of a shared GPU are not known here, so such a site is marked as unknown.
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
    """The same for the sites marked as unknown, from all running jobs."""
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
    """Sort the GPUs of a site by when they become free, and record the next end and the median."""
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
    """Sort `count` times in place, the earliest first."""
    for g in range(first + 1, first + count):
        time = times[g]
        at = g
        while at > first and times[at - 1] > time:
            times[at] = times[at - 1]
            at -= 1
        times[at] = time


@compiled
def hold(view: View, outlook: Outlook, s: int, mask: int, end: float) -> None:
    """Record that these GPUs of a site are held until `end` at least.

    They are counted from the last GPU: jobs take the lowest numbers first, and free GPUs must come first in the order.
    """
    site = view.sites[s]
    last = site.first_gpu + site.gpus - 1
    for g in range(site.gpus):
        free = outlook.gpu_free[last - g]
        outlook.gpu_free[last - g] = max(free, end) if mask >> g & 1 else free


@compiled
def foresee_rows(view: View, outlook: Outlook) -> None:
    """For each row: the wait for each pool, and where and when it would end first. Also finds the head."""
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
        waits = goal != NOBODY and outlook.spot[w, goal] == NOBODY
        if waits and (head == NOBODY or finish_of(view, outlook, w) < finish_of(view, outlook, head)):
            outlook.counts[HEAD] = w
    outlook.unit[0] = math.exp(logs / max(outlook.counts[0], 1))


@compiled
def finish_of(view: View, outlook: Outlook, w: int) -> float:
    """Seconds until the row's earliest possible end, by the job's weight."""
    return outlook.finish[w] / weight_of(view, outlook.rows[w])


@compiled
def width_in(view: View, kind: int, p: int) -> int:
    """On how many nodes of the pool a job of this kind runs; 0 if it never runs there."""
    widest = view.width[kind, view.sites[view.pools[p].anchor].form]
    if widest > 0:
        return widest
    for h in range(len(view.forms)):
        if view.forms[h].pool == p and view.width[kind, h] > 0:
            return 1
    return 0


@compiled
def time_until_ready(view: View, outlook: Outlook, gpus: int, width: int, p: int, count: int) -> float:
    """When the pool is expected to have GPUs for a job that does not fit now: not before its next release.

    Outlook.times holds `count` times of sites for it, unless the answer is already known.
    """
    if width > 1:
        return max(smallest(outlook.times, count, width), outlook.ready[p, 0])
    if outlook.ready[p, gpus] == NOT_YET:
        outlook.ready[p, gpus] = smallest(outlook.times, count, 1)
    time = outlook.ready[p, gpus]
    if time > view.clock[0].now:
        return time
    return outlook.ready[p, 0]  # GPUs are free, but cores or memory are not


class Gathered(NamedTuple):
    """The content of Outlook.times: the pool (NOBODY: empty), the number of GPUs, and the number of sites."""

    pool: int
    gpus: int
    sites: int


@compiled
def gather_times(view: View, outlook: Outlook, p: int, gpus: int, before: Gathered) -> Gathered:
    """Collect when each site of the pool has `gpus` GPUs free, if it is large enough. Does nothing if already done."""
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
    """The k-th smallest of the first `count` times, FOREVER if there are fewer. Later entries are not smaller.

    This is Hoare's selection: it looks at each entry only a few times, however large k is.
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
    """When the site has `gpus` GPUs free, if the first `taken` GPUs are held until `until`."""
    site = view.sites[s]
    if gpus > site.gpus:
        return FOREVER
    sooner = 0  # among those not taken
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
    """The rule's score of every legal pair, the delay of the head for each, and the best pair."""
    head = outlook.counts[HEAD]
    best = IDLE
    ready = head_ready(view, outlook)
    for w in range(outlook.counts[0]):
        weight = weight_of(view, outlook.rows[w])
        for p in range(len(view.pools)):
            outlook.prior[w, p] = UNWISE
            if outlook.spot[w, p] == NOBODY:
                continue
            run = outlook.run[w, p]
            if head != NOBODY and w != head and p == outlook.goal[head]:
                outlook.delay[w, p] = delay_of_head(view, outlook, w, p, ready)
                if outlook.delay[w, p] > 0.0 and run / weight > finish_of(view, outlook, head):
                    continue
            if run <= (1.0 + PATIENCE) * outlook.finish[w]:
                prior = max(-LONGEST, min(LONGEST, -0.5 * quick_log(max(run, 1e-3) / weight / outlook.unit[0])))
                outlook.prior[w, p] = prior
                if prior > best:
                    best = prior
                    outlook.counts[WISEST] = w
                    outlook.counts[WISEST + 1] = p


class Ready(NamedTuple):
    """When enough sites for the head have their parts free, and when one more site has."""

    time: float
    later: float


@compiled
def head_ready(view: View, outlook: Outlook) -> Ready:
    """When the goal of the head is ready for it. Only computed if some row could start there before it."""
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
    """Seconds by which the head would start later in its pool if this row started there now."""
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
    taken = job.gpus if view.sites[s].free_gpus >= job.gpus else 0  # a share of a GPU in use takes no free GPU
    if taken == 0:
        return 0.0
    each = -(-first.gpus // width_in(view, first.kind, p))
    return max(0.0, ready_without(view, outlook, s, each, taken, until, ready) - expected)


@compiled
def ready_without(view: View, outlook: Outlook, s: int, each: int, taken: int, until: float, ready: Ready) -> float:
    """When the sites for the head are ready, if some GPUs of one site are held until `until`.

    This only matters if the site is among the first to be ready. Then either the next site replaces it, or the head
    waits for this site.
    """
    site = view.sites[s]
    if site.gpus < each or outlook.gpu_free[site.first_gpu + each - 1] > ready.time:
        return ready.time
    return min(ready.later, max(ready.time, ready_after(view, outlook, s, each, taken, until)))


# ---- the rule ----------------------------------------------------------------------------------------------------


@compiled
def start_without_gpu(view: View) -> Choice:
    """Start the shortest job without GPUs that fits, where it hinders jobs with GPUs least."""
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
    """The node with the fewest GPUs on which the job fits; ties: the fewest free GPUs, then the fewest cores."""
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
    """The legal pair with the highest prior, if it is better than waiting."""
    w = outlook.counts[WISEST]
    if w == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, widened(outlook.rows[w]), widened(outlook.spot[w, outlook.counts[WISEST + 1]]), FOREVER)


@compiled_allocating
def eft_reserving(view: View) -> Choice:
    """Shortest job first, where it ends about soonest; no start delays the job that waits and would end next."""
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
        weighs=True,
    ),
)
