"""Building blocks of policies: the best pair, the first job that fits, the head of the queue only.

A score is `score(view, j, s, pair) -> float`. The highest score starts first, and NEVER excludes a pair. Ties go to the
job that was submitted first, then to the first site. Scores are compiled into the policy that uses them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import NEVER
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    best_runtime,
    first_idle,
    first_of_form,
    fits,
    fits_across,
    fits_on_node,
    in_queue,
    last_seen,
    most_free_on,
    open_to,
    runtime,
    seen,
    work_left,
)
from adlro.core.tables import FOREVER, NOBODY, RECENT, START, WAIT, Choice, Floats, Ints, View


class Pair(NamedTuple):
    """What is known about a job at a site before it starts there."""

    runtime_s: float  # estimated seconds until it ends, if it starts here now
    best_s: float  # the same at the fastest site of this cluster
    leftover: float  # GPUs that would stay free at the site (with fractions)
    home: bool  # whether the operator's fixed map allows the job here


Score = Callable[[View, int, int, Pair], float]
Key = Callable[[View, int], float]


class Spot(NamedTuple):
    """A site for a job, and its score there."""

    site: int
    score: float


class Search(NamedTuple):
    """Intermediate result of a search for a site."""

    legal: bool  # whether any site is legal, whatever its score
    site: int
    score: float


@compiled
def anywhere(view: View, j: int, s: int, pair: Pair) -> float:
    """All sites are equally good: the first one is taken."""
    return 0.0


@compiled
def shortest(view: View, j: int, s: int, pair: Pair) -> float:
    """The site where the job ends soonest."""
    return -pair.runtime_s


@compiled
def best_spot(view: View, j: int, score: Score) -> Spot:
    """The legal site with the highest score for the job; NOBODY if the score accepts none.

    If the job fits nowhere, its demand is marked with the current capacity version. Later searches then only look at
    nodes that have released something since, and jobs with the same demand need no search at all.
    """
    best_s = best_runtime(view, j)
    search = Search(False, NOBODY, NEVER)
    if was_tried(view, j):
        search = look_at_released(view, j, best_s, score, search)
    elif view.jobs[j].gpus == 0:
        search = look_everywhere(view, j, best_s, score, search)
    else:
        search = look_at_open(view, j, best_s, score, search)
    return note_search(view, j, look_across(view, j, best_s, score, search))


@compiled
def first_spot(view: View, j: int, score: Score) -> Spot:
    """Like `best_spot`, for a score that is equal at all sites of a form: only the first legal site of each counts."""
    best_s = best_runtime(view, j)
    search = Search(False, NOBODY, NEVER)
    if was_tried(view, j):
        search = look_at_released(view, j, best_s, score, search)
    elif view.jobs[j].gpus == 0:
        search = look_everywhere(view, j, best_s, score, search)
    elif view.jobs[j].share < WHOLE_GPU:
        search = look_at_open(view, j, best_s, score, search)
    else:
        for h in range(len(view.forms)):
            if view.width[view.jobs[j].kind, h] == 1:
                s = first_of_form(view, j, h)
                if s != NOBODY:
                    search = better(view, j, s, view.sites[s].free_share, best_s, score, search)
    return note_search(view, j, look_across(view, j, best_s, score, search))


@compiled
def was_tried(view: View, j: int) -> bool:
    """Whether jobs of this demand recently fitted nowhere, so that only later releases matter."""
    tried = view.demands[view.jobs[j].demand].tried
    return tried != NOBODY and view.clock[0].version - tried <= RECENT


@compiled
def look_at_released(view: View, j: int, best_s: float, score: Score, search: Search) -> Search:
    """The search, continued at the nodes that have released something since the demand was tried."""
    for v in range(view.demands[view.jobs[j].demand].tried + 1, view.clock[0].version + 1):
        node = view.nodes[view.released[v % RECENT]]
        for s in range(node.first_site, node.first_site + node.sites):
            search = look_at(view, j, s, best_s, score, search)
    return search


@compiled
def look_everywhere(view: View, j: int, best_s: float, score: Score, search: Search) -> Search:
    """The search, continued at all sites: a job without GPUs can also run where no GPU is free."""
    for s in range(len(view.sites)):
        search = look_at(view, j, s, best_s, score, search)
    return search


@compiled
def look_at_open(view: View, j: int, best_s: float, score: Score, search: Search) -> Search:
    """The search, continued at all open sites and the first idle site of each form."""
    for i in range(view.clock[0].open):
        if open_to(view, j, i):
            offer = view.open[i]
            search = better(view, j, offer.site, offer.free_share, best_s, score, search)
    for h in range(len(view.forms)):
        s = first_idle(view, h)
        if s != NOBODY:
            search = look_at(view, j, s, best_s, score, search)
    return search


@compiled
def look_across(view: View, j: int, best_s: float, score: Score, search: Search) -> Search:
    """The search, continued in the pools where the job is a gang over several nodes."""
    if view.spread[view.jobs[j].demand] == 0:
        return search
    for p in range(len(view.pools)):
        s = view.pools[p].anchor
        width = view.width[view.jobs[j].kind, view.sites[s].form]
        if width > 1 and fits_across(view, j, s, width):
            search = better(view, j, s, view.sites[s].free_share, best_s, score, search)
    return search


@compiled
def note_search(view: View, j: int, search: Search) -> Spot:
    """The result of a search. If no site is legal, the demand is marked with the current capacity version."""
    view.demands[view.jobs[j].demand].tried = NOBODY if search.legal else view.clock[0].version
    return Spot(search.site, search.score)


@compiled
def look_at(view: View, j: int, s: int, best_s: float, score: Score, search: Search) -> Search:
    """The search, continued at this site, for a job on one node."""
    if view.width[view.jobs[j].kind, view.sites[s].form] == 1 and fits_on_node(view, j, s):
        return better(view, j, s, view.sites[s].free_share, best_s, score, search)
    return search


@compiled
def better(view: View, j: int, s: int, free_share: int, best_s: float, score: Score, search: Search) -> Search:
    """The search with one more legal site, which becomes the best if its score is higher."""
    job = view.jobs[j]
    site = view.sites[s]
    leftover = (free_share - job.gpus * job.share) / WHOLE_GPU
    home = view.home[job.kind, site.form] != 0
    value = float(score(view, j, s, Pair(runtime(view, j, s), best_s, leftover, home)))
    if value > search.score or (value == search.score and value > NEVER and s < search.site):
        return Search(True, widened(s), value)
    return Search(True, search.site, search.score)


@compiled
def hopeless(view: View, j: int) -> bool:
    """Whether a quick check shows that the job fits nowhere."""
    demand = view.jobs[j].demand
    if view.demands[demand].tried != view.clock[0].version:
        return False
    return view.spread[demand] == 0 or not room_across(view, j)


@compiled
def settled(view: View, j: int) -> bool:
    """Whether the job fits nowhere, and will not until something is released.

    This is never true for a gang over several nodes: a start of another job can make it fit, because that changes which
    nodes have the most free GPUs.
    """
    demand = view.jobs[j].demand
    return view.demands[demand].tried == view.clock[0].version and view.spread[demand] == 0


@compiled
def room_across(view: View, j: int) -> bool:
    """Whether some pool has enough free GPUs for a gang over several nodes, on as many nodes as it may use."""
    job = view.jobs[j]
    for p in range(len(view.pools)):
        pool = view.pools[p]
        width = view.width[job.kind, view.sites[pool.anchor].form]
        if width > 1 and pool.free_gpus >= job.gpus and most_free_on(view, p, width) >= job.gpus:
            return True
    return False


@compiled
def first_hopeful(view: View) -> int:
    """The first position of the queue that may fit. Jobs before it were tried, and nothing was released since."""
    clock = view.clock[0]
    if clock.clear_version != clock.version or clock.clear > clock.queued:
        clock.clear_version = clock.version
        clock.clear = 0
    while clock.clear < clock.queued and settled(view, in_queue(view, clock.clear)):
        clock.clear += 1
    return clock.clear


@compiled
def best_pair(view: View, score: Score) -> Choice:
    """Start the legal (job, site) pair with the highest score."""
    last = last_seen(view)
    chosen = NOBODY
    best = Spot(NOBODY, NEVER)
    d = view.clock[0].demand
    while d != NOBODY:
        j = view.demands[d].first
        while j != NOBODY and j <= last and not hopeless(view, j):
            spot = best_spot(view, j, score)
            if comes_before(spot.score, j, best.score, chosen):
                best = spot
                chosen = widened(j)
            j = view.runs[j].next
        d = view.demands[d].next
    return start_or_wait(chosen, best.site)


@compiled
def comes_before(value: float, j: int, best: float, chosen: int) -> bool:
    """Whether a job with this value is preferred to the one chosen so far; ties go by submit order."""
    return value > best or (value == best and value > NEVER and j < chosen)


@compiled
def shortest_pair(view: View, score: Score) -> Choice:
    """Like `best_pair`, for a score that is equal at all sites of a form and does not fall with less work.

    Of the jobs with the same demand it only looks at two: the one with the least work left among those never started,
    and among those that would pay the restart cost.
    """
    last = last_seen(view)
    chosen = NOBODY
    best = Spot(NOBODY, NEVER)
    d = view.clock[0].demand
    while d != NOBODY:
        first = view.demands[d].first
        if first <= last and not hopeless(view, first):
            for again in range(2):
                j = least_work(view, first, last, again != 0)
                if j != NOBODY and not hopeless(view, j):
                    spot = first_spot(view, j, score)
                    if comes_before(spot.score, j, best.score, chosen):
                        best = spot
                        chosen = widened(j)
        d = view.demands[d].next
    return start_or_wait(chosen, best.site)


@compiled
def least_work(view: View, first: int, last: int, again: bool) -> int:
    """The waiting job of a demand with the least work left, from its first job to the last one seen.

    `again` selects the jobs that have been started before, or the others. NOBODY if there is none.
    """
    chosen = NOBODY
    least = FOREVER
    j = first
    while j != NOBODY and j <= last:
        if (view.runs[j].starts > 0) == again:
            left = work_left(view, j)
            if chosen == NOBODY or left < least:
                chosen = widened(j)
                least = left
        j = view.runs[j].next
    return chosen


@compiled
def first_that_fits(view: View, score: Score) -> Choice:
    """Start the first job in the queue that fits anywhere, at its best site.

    Demands that were tried recently are checked first, because only few nodes matter for them. Of the other demands
    only jobs before the one found are tried.
    """
    last = last_seen(view)
    chosen = NOBODY
    site = NOBODY
    for phase in range(2):
        d = view.clock[0].demand
        while d != NOBODY:
            j = view.demands[d].first
            while j != NOBODY and j <= last and (chosen == NOBODY or j < chosen):
                if hopeless(view, j) or was_tried(view, j) != (phase == 0):
                    break
                spot = best_spot(view, j, score)
                if spot.site != NOBODY:
                    chosen = widened(j)
                    site = widened(spot.site)
                j = view.runs[j].next
            d = view.demands[d].next
    return start_or_wait(chosen, site)


@compiled
def largest_key_first(view: View, key: Key, score: Score) -> Choice:
    """Start the job with the largest key among those that fit anywhere, at its best site."""
    last = last_seen(view)
    chosen = NOBODY
    best = NEVER
    site = NOBODY
    d = view.clock[0].demand
    while d != NOBODY:
        j = view.demands[d].first
        while j != NOBODY and j <= last and not hopeless(view, j):
            value = key(view, j)
            if comes_before(value, j, best, chosen):
                spot = best_spot(view, j, score)
                if spot.site != NOBODY:
                    best = value
                    chosen = widened(j)
                    site = widened(spot.site)
            j = view.runs[j].next
        d = view.demands[d].next
    return start_or_wait(chosen, site)


@compiled
def head_or_nobody(view: View, score: Score) -> Choice:
    """Start the head of the queue at its best site; if it does not fit, all jobs wait."""
    j = in_queue(view, 0)
    if hopeless(view, j):
        return start_or_wait(NOBODY, NOBODY)
    return start_or_wait(j, best_spot(view, j, score).site)


@compiled
def start_or_wait(j: int, s: int) -> Choice:
    """Start the job at the site, or wait if there is no site."""
    if s == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, widened(j), widened(s), FOREVER)


@compiled_allocating
def legal_pairs(view: View) -> tuple[Ints, Floats]:
    """All legal pairs now: rows of (job, site), and for each (runtime, best runtime, leftover)."""
    seen_jobs = seen(view)
    pairs = np.empty((seen_jobs * len(view.sites), 2), np.int32)
    known = np.empty((seen_jobs * len(view.sites), 3), np.float64)
    count = 0
    for q in range(seen_jobs):
        j = in_queue(view, q)
        job = view.jobs[j]
        for s in range(len(view.sites)):
            if fits(view, j, s):
                pairs[count, 0] = j
                pairs[count, 1] = s
                known[count, 0] = runtime(view, j, s)
                known[count, 1] = best_runtime(view, j)
                known[count, 2] = (view.sites[s].free_share - job.gpus * job.share) / WHOLE_GPU
                count += 1
    return pairs[:count], known[:count]
