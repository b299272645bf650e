"""Claims and moves over an outlook: what a rule or a network that decides over (job, pool) pairs may do besides starts.

A *claim* is a pair of a waiting job and a pool: the cheapest victims there are stopped, and the job starts in their
place. Who they are is the rule of `claims.py`, which `plan` uses too. A *move* is a pair of a running job and a pool:
it is stopped and starts there at once. Both are one action; nothing is only stopped. `eft_claiming.py` does them.

Why a moment ends: a job that was started now is not stopped now, so at one moment each job is stopped at most once. A
job that has been started more than `timelines.MOST_STARTS` times is not stopped again.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import expected_end, rate_held, rate_there, restart_cost, restart_of, weight_of, work_left
from adlro.core.tables import FOREVER, NOBODY, Floats, Ints, View
from adlro.decide.outlook import (
    HEAD,
    IDLE,
    UNWISE,
    WISEST,
    Outlook,
    foresee_gpus,
    foresee_rows,
    judge,
    look,
    quick_log,
    tightest_spot,
    width_in,
)
from adlro.decide.rules.claims import (
    MOST_EFFORT,
    free_in_pool,
    least_loss,
    loss_of_all,
    stays_visible,
    victims_across,
    victims_at,
)
from adlro.decide.rules.preemptive import time_left
from adlro.decide.rules.timelines import (
    Timelines,
    free_at_once,
    hold_gpus,
    may_be_stopped,
    rate_in,
    waiting_weight,
)
from adlro.decide.sorting import sort_pairs

MOVES: Final = 8
"""How many running jobs may be moved, at most: those that gain most. They are the rows behind the waiting jobs."""

HOPE: Final = 0.5
"""A claim is a choice only if the job gains more than this share of what the victims lose."""

STOP_SPAN: Final = 0.45
"""Scores of claims and moves are within ±STOP_SPAN of the score of waiting: below those of wise starts."""


class Claims(NamedTuple):
    """The claims and moves at a decision. W rows (waiting jobs, then MOVES running ones), P pools, G GPUs, S sites."""

    free: Floats  # [G] when each GPU is expected to be free
    holder: Ints  # [G] the running job there that may be stopped; NOBODY: none
    order: Ints  # [G + 1] the running jobs on whole GPUs that may be stopped, in the order of their remaining times
    keys: Floats  # [G + 1] those times by their weights
    victims: Ints  # [G + 1] scratch
    have: Ints  # [S] scratch
    levels: Ints  # [1, GPUs of the largest site + 1] scratch
    effort: Ints  # [1] scratch
    pressure: Floats  # [1] waiting jobs for each GPU, by their weights
    place: Ints  # [W, P] the site to claim or to move to; NOBODY: the pair is neither a claim nor a move
    gain: Floats  # [W, P] s by which the job ends sooner
    loss: Floats  # [W, P] s that the others lose; for a move, a restart
    stopped: Ints  # [W, P] number of victims
    idle: Ints  # [W, P] GPUs that are freed and not used
    rest: Floats  # [W, P] least s that a victim has left
    counts: Ints  # [5] claims; moves (rows); row and pool of the rule's choice; jobs that may be stopped


CLAIMED: Final = 0
MOVED: Final = 1
BEST_STOP: Final = 2
STOPPABLE: Final = 4
"""Indices in Claims.counts."""


@compiled_allocating
def new_claims(view: View, rows: int) -> Claims:
    """Arrays of the right size for a view and `rows` waiting jobs."""
    gpus, pools, every = len(view.gpus), len(view.pools), rows + MOVES
    return Claims(
        np.zeros(gpus, np.float64),
        np.zeros(gpus, np.int32),
        np.zeros(gpus + 1, np.int32),
        np.zeros(gpus + 1, np.float64),
        np.zeros(gpus + 1, np.int32),
        np.zeros(len(view.sites), np.int32),
        np.zeros((1, view.spare.shape[1]), np.int32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float64),
        np.zeros((every, pools), np.int32),
        np.zeros((every, pools), np.float64),
        np.zeros((every, pools), np.float64),
        np.zeros((every, pools), np.int32),
        np.zeros((every, pools), np.int32),
        np.zeros((every, pools), np.float64),
        np.zeros(5, np.int32),
    )


@compiled
def without_moves(outlook: Outlook) -> Outlook:
    """The same outlook without the rows of running jobs, for filling in the waiting ones."""
    return Outlook(
        outlook.gpu_free,
        outlook.ready,
        outlook.rows[: len(outlook.rows) - MOVES],
        outlook.alike,
        outlook.brief,
        outlook.finish,
        outlook.goal,
        outlook.spot,
        outlook.run,
        outlook.wait,
        outlook.delay,
        outlook.prior,
        outlook.counts,
        outlook.unit,
        outlook.demand,
        outlook.awaited,
        outlook.times,
        outlook.known,
        outlook.next_end,
        outlook.middle,
    )


@compiled
def timelines_of(claims: Claims) -> Timelines:
    """The timelines in which victims are looked for: nothing is planned yet, and the jobs are the running ones."""
    return Timelines(
        claims.free,
        claims.free,
        claims.holder,
        claims.order[: claims.counts[STOPPABLE]],
        claims.gain,
        claims.keys,
        claims.victims,
        claims.have,
        claims.levels,
        claims.effort,
        claims.pressure,
        claims.gain[:0],
        claims.free[:0],
        claims.free[:0],
    )


# ---- what may be done --------------------------------------------------------------------------------------------


@compiled
def look_around(view: View, outlook: Outlook, claims: Claims, whole: bool) -> int:
    """Fill the outlook and the claims; returns the number of starts, claims and moves.

    Without `whole`, only what the rule needs for its choice is filled.
    """
    waiting = without_moves(outlook)
    claims.counts[CLAIMED] = 0
    claims.counts[MOVED] = 0
    claims.counts[BEST_STOP] = NOBODY
    find_stoppable(view, claims)
    starts = look(view, waiting, whole)
    if claims.counts[STOPPABLE] == 0 or (not whole and starts > 0 and outlook.counts[WISEST] != NOBODY):
        for w in range(outlook.counts[0]):
            for p in range(len(view.pools)):
                claims.place[w, p] = NOBODY
        return starts
    if starts == 0 or not whole:
        for p in range(len(view.pools)):
            outlook.awaited[p] = 1
        foresee_gpus(view, waiting)
        foresee_rows(view, waiting)
        judge(view, waiting)
    hold_gpus(view, claims.free, claims.holder)
    find_claims(view, outlook, claims, whole)
    find_moves(view, outlook, claims)
    choose_stop(view, outlook, claims)
    return starts + claims.counts[CLAIMED] + claims.counts[MOVED]


@compiled
def find_stoppable(view: View, claims: Claims) -> None:
    """List the running jobs that may be stopped now, in the order of their remaining times."""
    count = 0
    for i in range(view.clock[0].running):
        v = view.running[i]
        if view.jobs[v].gpus > 0 and may_be_stopped(view, v):
            claims.order[count] = v
            claims.keys[count] = time_left(view, v) / weight_of(view, v)
            count += 1
    sort_pairs(claims.keys, claims.order, count)
    claims.counts[STOPPABLE] = count
    claims.pressure[0] = waiting_weight(view) / max(1, len(view.gpus))
    claims.effort[0] = 0


@compiled
def find_claims(view: View, outlook: Outlook, claims: Claims, whole: bool) -> None:
    """For each waiting row and pool in which it does not fit: the site with the least loss, and what that is.

    Without `whole`, only claims are looked for that may be better than those before.
    """
    lines = timelines_of(claims)
    hope = HOPE if whole else 1.0
    most = 0.0
    for w in range(outlook.counts[0]):
        j = outlook.rows[w]
        job = view.jobs[j]
        is_able = job.share == WHOLE_GPU and outlook.finish[w] < FOREVER and stays_visible(view, j)
        for p in range(len(view.pools)):
            claims.place[w, p] = NOBODY
            if not is_able or outlook.spot[w, p] != NOBODY or outlook.run[w, p] == FOREVER:
                continue
            gain = outlook.finish[w] - outlook.run[w, p]
            if gain - hope * least_loss(view, j, outlook.run[w, p]) <= (0.0 if whole else most):
                continue
            if find_claim(view, outlook, claims, lines, w, p, hope):
                claims.counts[CLAIMED] += 1
                most = max(most, claims.gain[w, p] - claims.loss[w, p])


@compiled
def find_claim(view: View, outlook: Outlook, claims: Claims, lines: Timelines, w: int, p: int, hope: float) -> bool:
    """Find the cheapest claim of a row in a pool; whether there is one that gains enough."""
    j = outlook.rows[w]
    job = view.jobs[j]
    pool = view.pools[p]
    width = width_in(view, job.kind, p)
    lost = restart_cost(view, j)
    left = work_left(view, j)
    best = 0.0
    sites = 1 if width > 1 else pool.sites
    for k in range(sites):
        s = pool.anchor if width > 1 else view.pool_sites[pool.first_site + k]
        form = view.sites[s].form
        rate = rate_there(view, j, s)
        if view.width[job.kind, form] != width or rate <= 0.0:
            continue
        seconds = lost + left / rate
        gain = outlook.finish[w] - seconds
        if gain - hope * least_loss(view, j, seconds) <= best:
            continue
        if width > 1:
            if claims.effort[0] > MOST_EFFORT:
                continue
            count = victims_across(view, lines, j, p, width, seconds, 0)
            free = free_in_pool(view, lines, p)
        else:
            free = free_at_once(view, lines, s)
            if free + held_by_stoppable(view, claims, s) < job.gpus:
                continue
            count = victims_at(view, lines, j, s, seconds)
        if count == 0:
            continue
        loss = loss_of_all(view, lines, count, j, free, seconds)
        if gain - hope * loss > best:
            best = gain - hope * loss
            note_claim(view, claims, w, p, s, gain, loss, count, free, job.gpus)
    return best > 0.0


@compiled
def held_by_stoppable(view: View, claims: Claims, s: int) -> int:
    """How many GPUs of the site are held by jobs that may be stopped."""
    site = view.sites[s]
    count = 0
    for g in range(site.first_gpu, site.first_gpu + site.gpus):
        count += claims.holder[g] != NOBODY
    return count


@compiled
def note_claim(
    view: View, claims: Claims, w: int, p: int, s: int, gain: float, loss: float, count: int, free: int, gpus: int
) -> None:
    """Record a claim of the row: its victims are the first `count`."""
    now = view.clock[0].now
    freed = 0
    rest = FOREVER
    for k in range(count):
        v = claims.victims[k]
        freed += view.jobs[v].gpus
        rest = min(rest, expected_end(view, v) - now)
    claims.place[w, p] = s
    claims.gain[w, p] = gain
    claims.loss[w, p] = loss
    claims.stopped[w, p] = count
    claims.idle[w, p] = max(0, freed - max(0, gpus - free))
    claims.rest[w, p] = rest


@compiled
def find_moves(view: View, outlook: Outlook, claims: Claims) -> None:
    """The running jobs that gain most in a pool in which they fit now, as rows behind the waiting ones."""
    first = outlook.counts[0]
    count = 0
    for i in range(claims.counts[STOPPABLE]):
        v = claims.order[i]
        most = most_by_moving(view, v)
        if most <= 0.0 or not stays_visible(view, v):
            continue
        at = count
        if count < MOVES:
            count += 1
        elif most > outlook.brief[first + MOVES - 1]:
            at = MOVES - 1
        else:
            continue
        while at > 0 and outlook.brief[first + at - 1] < most:  # holds the gain first
            outlook.brief[first + at] = outlook.brief[first + at - 1]
            outlook.rows[first + at] = outlook.rows[first + at - 1]
            at -= 1
        outlook.brief[first + at] = most
        outlook.rows[first + at] = v
    claims.counts[MOVED] = count
    logs = 0.0
    for w in range(first, first + count):
        fill_move(view, outlook, claims, w)
        logs += quick_log(max(outlook.brief[w], 1.0))
    if first == 0 and count > 0:
        outlook.unit[0] = math.exp(logs / count)  # nobody waits: the unit of time is the usual one of these jobs


@compiled
def move_to(view: View, v: int, p: int) -> tuple[int, float]:
    """Where in the pool a running job could go on now, and by how many seconds it would end sooner there."""
    job = view.jobs[v]
    if view.pools[p].free_gpus < job.gpus:
        return NOBODY, 0.0
    own = rate_held(view, v)
    if rate_in(view, v, p) <= own:
        return NOBODY, 0.0
    s = tightest_spot(view, v, p)
    if s == NOBODY:
        return NOBODY, 0.0
    rate = rate_there(view, v, s)
    if rate <= own:
        return NOBODY, 0.0
    stay = expected_end(view, v) - view.clock[0].now
    return widened(s), stay - restart_of(view, v) - work_left(view, v) / rate


@compiled
def most_by_moving(view: View, v: int) -> float:
    """The most seconds by which a running job ends sooner elsewhere beyond a restart, its own included; 0 if none."""
    most = 0.0
    for p in range(len(view.pools)):
        s, gain = move_to(view, v, p)
        if s != NOBODY:
            most = max(most, gain - restart_of(view, v))
    return most


@compiled
def fill_move(view: View, outlook: Outlook, claims: Claims, w: int) -> None:
    """Fill in the row of a running job: the pools in which it would end sooner."""
    v = outlook.rows[w]
    stay = expected_end(view, v) - view.clock[0].now
    outlook.alike[w] = 1
    outlook.demand[w] = view.jobs[v].demand
    outlook.brief[w] = restart_of(view, v) + time_left(view, v)
    outlook.finish[w] = stay
    outlook.goal[w] = view.sites[view.runs[v].site].pool
    for p in range(len(view.pools)):
        s, gain = move_to(view, v, p)
        if gain <= restart_of(view, v):
            s = NOBODY
        outlook.spot[w, p] = s
        outlook.run[w, p] = stay - gain if s != NOBODY else FOREVER
        outlook.wait[w, p] = 0.0 if s != NOBODY else FOREVER
        outlook.delay[w, p] = 0.0
        outlook.prior[w, p] = UNWISE
        claims.place[w, p] = s
        claims.gain[w, p] = gain
        claims.loss[w, p] = restart_of(view, v)
        claims.stopped[w, p] = 0
        claims.idle[w, p] = 0
        claims.rest[w, p] = stay


@compiled
def choose_stop(view: View, outlook: Outlook, claims: Claims) -> None:
    """The rule's score of every claim and move, and the best one: the largest gain beyond the loss.

    The score is between those of unwise and wise starts, and above that of waiting if the gain is larger. A move into
    the pool that the head waits for is unwise.
    """
    head = outlook.counts[HEAD]
    waiting = outlook.counts[0]
    best = IDLE
    for w in range(waiting + claims.counts[MOVED]):
        for p in range(len(view.pools)):
            if claims.place[w, p] == NOBODY:
                continue
            if w >= waiting and head != NOBODY and outlook.goal[head] == p:
                continue
            net = claims.gain[w, p] - claims.loss[w, p]
            prior = IDLE + STOP_SPAN * net / (abs(net) + outlook.unit[0])
            outlook.prior[w, p] = prior
            if prior > best:
                best = prior
                claims.counts[BEST_STOP] = w
                claims.counts[BEST_STOP + 1] = p


# ---- doing it ----------------------------------------------------------------------------------------------------


@compiled
def fill_victims(view: View, outlook: Outlook, claims: Claims, w: int, p: int) -> int:
    """Fill in the jobs that are stopped for a claim or move of this pair, and return their number.

    It may follow `look_around` on the same state of the cluster, or on a copy of it.
    """
    j = outlook.rows[w]
    if w >= outlook.counts[0]:
        claims.victims[0] = j
        return 1
    s = claims.place[w, p]
    form = view.sites[s].form
    job = view.jobs[j]
    width = view.width[job.kind, form]
    seconds = restart_cost(view, j) + work_left(view, j) / rate_there(view, j, s)
    lines = timelines_of(claims)
    if width > 1:
        return victims_across(view, lines, j, p, width, seconds, 0)
    return victims_at(view, lines, j, s, seconds)
