"""`plan`: plan all jobs anew at every event, running ones too, and stop or move a job where that pays.

docs/policies.md has the definition. The jobs are planned in the order of their remaining times, the shortest first
(`timelines.py`). Only the first step of the plan that can be taken now is taken: a start, or a stop. Then the plan is
made again, until there is no such step.

Why a moment ends: a job that was started now is not stopped now. So at one moment each job is stopped at most once and
started at most once. A job that has been started more than `MOST_STARTS` times is not stopped again.
"""

from typing import Final

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating, widened
from adlro.core.policy import Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    expected_end,
    fastest_rate,
    fits_across,
    fits_on_node,
    in_queue,
    most_in,
    rate_held,
    rate_there,
    restart_cost,
    restart_of,
    seen,
    work_left,
)
from adlro.core.tables import ALL_SPENT, FOREVER, NOBODY, QUEUED, RUNNING, START, STOP, WAIT, Choice, View
from adlro.decide.choosing import first_spot, shortest
from adlro.decide.outlook import start_without_gpu
from adlro.decide.rules.claims import best_claim, stays_visible
from adlro.decide.rules.corrections import FILLING, MOVING, Corrector, no_corrections
from adlro.decide.rules.exchanges import all_can_start, share_out
from adlro.decide.rules.timelines import (
    MOST_STARTS,
    Timelines,
    best_place,
    book_place,
    externality,
    free_at_once,
    keep_running,
    may_be_stopped,
    new_timelines,
    pool_ready,
    price_of_stop,
)

MOST_GAPS: Final = 16
"""How many lengths of gaps are tried for a gang over several nodes, the longest first."""

WORTH: Final = 1.0
"""A job fills a gap that is too short for it if the work it gets done there is worth more than this many restarts."""

NEARLY_SPENT: Final = ALL_SPENT * 4 // 5
"""A job that has used up so much of its budget of stops fills no gap that is too short for it."""


@compiled
def gains_by_moving(view: View, lines: Timelines, i: int, corrector: Corrector) -> bool:
    """Whether a running job ends sooner in a place that is free now, its restart included, and by enough.

    With a corrector, also whether it does better for all in a slower place.
    """
    clock = view.clock[0]
    v = lines.jobs[i]
    job = view.jobs[v]
    run = view.runs[v]
    if not may_be_stopped(view, v) or not stays_visible(view, v):
        return False
    least = restart_of(view, v) * lines.factors[i, MOVING] + price_of_stop(view, v, lines.pressure[0])
    own = rate_held(view, v)
    left = work_left(view, v)
    end = expected_end(view, v)
    home = view.sites[run.site].pool
    stay = end + externality(view, v, home, end - clock.now, lines.rivals[i, home])
    for p in range(len(view.pools)):
        pool = view.pools[p]
        if pool.free_gpus < job.gpus:
            continue
        width = view.width[job.kind, view.sites[pool.anchor].form]
        for k in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[k]
            form = view.sites[s].form
            rate = rate_there(view, v, s)
            if (rate <= own and corrector.slower == FOREVER) or rate <= 0.0 or view.width[job.kind, form] == 0:
                continue
            seconds = restart_of(view, v) + left / rate
            beside = externality(view, v, p, seconds, lines.rivals[i, p])
            more = corrector.slower * left / own if rate <= own else 0.0
            is_sooner = rate <= own or clock.now + seconds < end
            if is_sooner and clock.now + seconds + beside + least + more < stay:
                if width > 1:
                    if pool_ready(view, lines, p, job.gpus, width) <= clock.now and fits_across(
                        view, v, pool.anchor, width
                    ):
                        return True
                elif free_at_once(view, lines, s) >= job.gpus and fits_on_node(view, v, s):
                    return True
            if width > 1:
                break
    return False


@compiled
def gap_place(view: View, lines: Timelines, i: int, until: float) -> int:
    """Where a waiting job may run meanwhile: on free GPUs that nobody wants before it ends, or not for long enough."""
    clock = view.clock[0]
    j = lines.jobs[i]
    job = view.jobs[j]
    left = work_left(view, j)
    restart = restart_cost(view, j)
    worth = WORTH * restart_of(view, j) * lines.factors[i, FILLING] + price_of_stop(view, j, lines.pressure[0])
    is_often = view.runs[j].starts > MOST_STARTS // 2 or job.spent >= NEARLY_SPENT
    chosen = NOBODY
    most = 0.0
    for p in range(len(view.pools)):
        pool = view.pools[p]
        if pool.free_gpus < job.gpus:
            continue
        width = view.width[job.kind, view.sites[pool.anchor].form]
        for k in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[k]
            if width > 1:
                if s != pool.anchor or not fits_across(view, j, s, width):
                    continue
            elif view.width[job.kind, view.sites[s].form] != 1 or not fits_on_node(view, j, s):
                continue
            rate = rate_there(view, j, s)
            if rate <= 0.0:
                continue
            end = clock.now + restart + left / rate
            gap = gap_at(view, lines, s, job.gpus) if width <= 1 else gap_across(view, lines, p, job.gpus, width)
            done = (min(gap, until) - clock.now - restart) * rate / fastest_rate(view, j)
            if end <= gap and end <= until:
                done = FOREVER
            elif job.stoppable == 0 or is_often or done <= worth:
                continue
            if done > most:
                most = done
                chosen = widened(s)
    return chosen


@compiled
def gap_across(view: View, lines: Timelines, p: int, gpus: int, width: int) -> float:
    """Until when so many nodes of the pool together have enough free GPUs for a gang that are not wanted by others."""
    pool = view.pools[p]
    time = FOREVER
    for _ in range(MOST_GAPS):
        for count in range(pool.largest + 1):
            lines.levels[0, count] = 0
        earlier = -FOREVER
        for k in range(pool.first_site, pool.first_site + pool.sites):
            site = view.sites[view.pool_sites[k]]
            count = 0
            for g in range(site.gpus):
                if site.free_mask >> g & 1:
                    wanted = lines.wanted[site.first_gpu + g]
                    if wanted >= time:
                        count += 1
                    else:
                        earlier = max(earlier, wanted)
            lines.levels[0, count] += 1
        if most_in(lines.levels, 0, pool.largest, width) >= gpus:
            return time
        time = earlier
    return -FOREVER


@compiled
def gap_at(view: View, lines: Timelines, s: int, gpus: int) -> float:
    """Until when so many of the site's free GPUs are not wanted by others."""
    site = view.sites[s]
    best = -FOREVER
    for a in range(site.gpus):
        if site.free_mask >> a & 1:
            time = lines.wanted[site.first_gpu + a]
            count = 0
            for b in range(site.gpus):
                count += site.free_mask >> b & 1 and lines.wanted[site.first_gpu + b] >= time
            if count >= gpus:
                best = max(best, time)
    return best


@compiled_allocating
def plan(view: View) -> Choice:
    """Plan all jobs anew, and take the first step of the plan that can be taken now."""
    return plan_with(view, no_corrections())


@compiled_allocating
def plan_with(view: View, corrector: Corrector) -> Choice:
    """The same, with numbers that a network corrects."""
    clock = view.clock[0]
    choice = start_without_gpu(view)
    if choice.verb == START:
        return choice
    for q in range(seen(view)):
        j = in_queue(view, q)
        if view.jobs[j].gpus > 0 and view.jobs[j].share < WHOLE_GPU:
            site = first_spot(view, j, shortest).site
            if site != NOBODY:
                return Choice(START, widened(j), widened(site), FOREVER)
    if all_can_start(view):
        choice = share_out(view)
        if choice.verb != WAIT:
            return choice
    lines = new_timelines(view, corrector)
    starts = np.full(len(lines.jobs), FOREVER)
    for i in range(len(lines.jobs)):
        j = lines.jobs[i]
        if view.runs[j].state == RUNNING:
            keep_running(view, lines, j)
            if gains_by_moving(view, lines, i, corrector):
                return Choice(STOP, widened(j), NOBODY, FOREVER)
            continue
        place = best_place(view, lines, i)
        claim = best_claim(view, lines, i, place.cost)
        if claim.victim != NOBODY:
            return Choice(STOP, claim.victim, NOBODY, FOREVER)
        if place.site == NOBODY or place.start == FOREVER:
            continue
        if place.start <= clock.now:
            return Choice(START, widened(j), widened(place.site), FOREVER)
        starts[i] = place.start
        book_place(view, lines, j, place)
    for i in range(len(lines.jobs)):
        j = lines.jobs[i]
        if view.runs[j].state == QUEUED:
            site = gap_place(view, lines, i, starts[i])
            if site != NOBODY:
                return Choice(START, widened(j), site, FOREVER)
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)


POLICIES: Final = (
    Policy(
        "plan",
        "plan all jobs anew at every event, running ones too; stop or move a job where that pays",
        choose=plan,
        preemptive=True,
        needs=("estimate",),
        weighs=True,
    ),
)
