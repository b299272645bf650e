"""Which pairs are worth trying: the best sites of the jobs that end soonest."""

from typing import NamedTuple

import numpy as np

from adlro.core.compiled import compiled, widened
from adlro.core.rules import (
    first_idle,
    fits_across,
    fits_on_node,
    in_queue,
    open_to,
    runtime,
    seen,
    weight_of,
)
from adlro.core.tables import (
    FOREVER,
    NOBODY,
    Floats,
    Ints,
    View,
)
from adlro.decide.choosing import best_spot, hopeless, shortest


class Pick(NamedTuple):
    """A site for a job. Lower values are better."""

    site: int
    pool: int
    seconds: float
    left: int


@compiled
def before(a: Pick, b: Pick) -> bool:
    """Whether a is better: it ends sooner, then leaves less over, then comes first."""
    if a.site == NOBODY or b.site == NOBODY:
        return a.site != NOBODY
    if a.seconds != b.seconds:
        return a.seconds < b.seconds
    if a.left != b.left:
        return a.left < b.left
    return a.site < b.site


@compiled
def pick_at(view: View, j: int, s: int) -> Pick:
    """The values of the job at this site."""
    site = view.sites[s]
    return Pick(widened(s), widened(site.pool), runtime(view, j, s), widened(site.free_share))


@compiled
def with_pick(best: tuple[Pick, Pick], new: Pick) -> tuple[Pick, Pick]:
    """The two best sites of different models, with one more considered."""
    one, two = best
    if new.pool == one.pool:
        return (new, two) if before(new, one) else best
    if before(new, one):
        return (new, one)
    return (one, new) if before(new, two) else best


@compiled
def two_sites(view: View, j: int) -> tuple[Pick, Pick]:
    """The best site for the job, and the best of another model. Of equal idle sites only the first counts."""
    nowhere = Pick(NOBODY, NOBODY, FOREVER, 0)
    best = (nowhere, nowhere)
    if view.jobs[j].gpus == 0:
        s = best_spot(view, j, shortest).site
        return (pick_at(view, j, s), nowhere) if s != NOBODY else best
    for i in range(view.clock[0].open):
        if open_to(view, j, i):
            best = with_pick(best, pick_at(view, j, view.open[i].site))
    for h in range(len(view.forms)):
        s = first_idle(view, h)
        if s != NOBODY and view.width[view.jobs[j].kind, h] == 1 and fits_on_node(view, j, s):
            best = with_pick(best, pick_at(view, j, s))
    if view.jobs[j].gpus > 1:
        for p in range(len(view.pools)):
            s = view.pools[p].anchor
            width = view.width[view.jobs[j].kind, view.sites[s].form]
            if width > 1 and fits_across(view, j, s, width):
                best = with_pick(best, pick_at(view, j, s))
    return best


@compiled
def fill_ranking(view: View, jobs: Ints, sites: Ints, scores: Floats) -> int:
    """Fill in the pairs with the shortest runtimes, shortest first, at most two for each job; returns their number."""
    count = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        one, two = two_sites(view, j)
        count = insert(view, jobs, sites, scores, count, j, one)
        count = insert(view, jobs, sites, scores, count, j, two)
    return count


@compiled
def insert(view: View, jobs: Ints, sites: Ints, scores: Floats, count: int, j: int, pick: Pick) -> int:
    """Insert a pair into the ranking if it exists and there is room or a worse pair; returns the new length."""
    score = -pick.seconds / weight_of(view, j)
    if pick.site == NOBODY or (count == len(jobs) and score <= scores[count - 1]):
        return count
    at = min(count, len(jobs) - 1)
    while at > 0 and scores[at - 1] < score:
        jobs[at] = jobs[at - 1]
        sites[at] = sites[at - 1]
        scores[at] = scores[at - 1]
        at -= 1
    jobs[at] = j
    sites[at] = pick.site
    scores[at] = score
    return min(count + 1, len(jobs))


def by_runtime(view: View, most: int) -> tuple[Ints, Ints, Floats]:
    """The legal pairs with the shortest runtimes, at most two sites (of different models) for each job."""
    jobs, sites, scores = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    count = fill_ranking(view, jobs, sites, scores) if most else 0
    return jobs[:count], sites[:count], scores[:count]
