"""The verbs that policies are made of: the best pair, the first that fits, the head or nobody.

A score is `score(view, j, s, pair) -> float`, the larger the sooner, NEVER to refuse; equal scores go to the job
submitted first, then to the first site. Scores are compiled into the policy that uses them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.policy import NEVER
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import best_runtime, first_idle, fits, fits_across, fits_on_node, in_queue, runtime, seen
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Floats, Ints, View


class Pair(NamedTuple):
    """What is known of a job at a site, before it starts there."""

    runtime_s: float  # estimated seconds to its end, if it started here now
    best_s: float  # the same on the fastest GPUs of this cluster
    leftover: float  # GPUs that would stay free at the site (with fractions)
    home: bool  # the operator's fixed map sends the job here


Score = Callable[[View, int, int, Pair], float]
Key = Callable[[View, int], float]


class Spot(NamedTuple):
    """A site for a job, and its score there."""

    site: int
    score: float


@compiled
def anywhere(view: View, j: int, s: int, pair: Pair) -> float:
    """Any site is as good as another: the first one is taken."""
    return 0.0


@compiled
def shortest(view: View, j: int, s: int, pair: Pair) -> float:
    """Where it ends soonest."""
    return -pair.runtime_s


@compiled
def best_spot(view: View, j: int, score: Score) -> Spot:
    """The legal site with the best score for the job; NOBODY if there is none that the score accepts.

    A job that fits nowhere is marked, so that it is not looked at again until capacity has been released.
    """
    job = view.jobs[j]
    best = Spot(NOBODY, NEVER)
    legal = False
    best_s = best_runtime(view, j)
    if job.gpus == 0:
        for s in range(len(view.sites)):
            if fits(view, j, s):
                legal = True
                best = better(view, j, s, best_s, score, best)
    else:
        for i in range(view.clock[0].open):
            s = view.open[i]
            if view.width[job.kind, view.sites[s].form] == 1 and fits_on_node(view, j, s):
                legal = True
                best = better(view, j, s, best_s, score, best)
        for h in range(len(view.forms)):
            width = view.width[job.kind, h]
            if width == 1:
                s = first_idle(view, h)
                if s != NOBODY and fits_on_node(view, j, s):
                    legal = True
                    best = better(view, j, s, best_s, score, best)
            elif width > 1:
                s = view.pools[view.forms[h].pool].anchor
                if view.sites[s].form == h and fits_across(view, j, s, width):
                    legal = True
                    best = better(view, j, s, best_s, score, best)
    if not legal:
        view.runs[j].tried = view.clock[0].version
    return best


@compiled
def better(view: View, j: int, s: int, best_s: float, score: Score, best: Spot) -> Spot:
    """The better of this site and the best one so far."""
    job = view.jobs[j]
    site = view.sites[s]
    leftover = (site.free_share - job.gpus * job.share) / WHOLE_GPU
    home = view.home[job.kind, site.form] != 0
    value = float(score(view, j, s, Pair(runtime(view, j, s), best_s, leftover, home)))
    if value > best.score or (value == best.score and value > NEVER and s < best.site):
        return Spot(np.int64(s), value)
    return best


@compiled
def hopeless(view: View, j: int) -> bool:
    """Whether the job was found to fit nowhere, and nothing has been released since."""
    return view.runs[j].tried == view.clock[0].version


@compiled
def best_pair(view: View, score: Score) -> Choice:
    """Start the legal (job, site) pair with the best score."""
    chosen = NOBODY
    best = Spot(NOBODY, NEVER)
    for q in range(seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        spot = best_spot(view, j, score)
        if spot.score > best.score:
            best = spot
            chosen = j
    return start_or_wait(chosen, best.site)


@compiled
def first_that_fits(view: View, score: Score) -> Choice:
    """Start the first job in the queue that fits anywhere, at its best site."""
    for q in range(seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        spot = best_spot(view, j, score)
        if spot.site != NOBODY:
            return start_or_wait(j, spot.site)
    return start_or_wait(NOBODY, NOBODY)


@compiled
def largest_key_first(view: View, key: Key, score: Score) -> Choice:
    """Start the job with the largest key among those that fit anywhere, at its best site."""
    chosen = NOBODY
    best = NEVER
    site = NOBODY
    for q in range(seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        value = key(view, j)
        if value > best:
            spot = best_spot(view, j, score)
            if spot.site != NOBODY:
                best = value
                chosen = j
                site = spot.site
    return start_or_wait(chosen, site)


@compiled
def head_or_nobody(view: View, score: Score) -> Choice:
    """Start the head of the queue at its best site; if it does not fit, everybody waits."""
    j = in_queue(view, 0)
    if hopeless(view, j):
        return start_or_wait(NOBODY, NOBODY)
    return start_or_wait(j, best_spot(view, j, score).site)


@compiled
def start_or_wait(j: int, s: int) -> Choice:
    """Start the job at the site, or wait if there is no site."""
    if s == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, np.int64(j), np.int64(s), FOREVER)


@compiled_allocating
def legal_pairs(view: View) -> tuple[Ints, Floats]:
    """Every legal pair now: rows of (job, site), and of (runtime, best runtime, leftover) beside them."""
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
