"""Prepares a decision: the choices to try, and the jobs of the world in which they are tried."""

from typing import NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.rules import best_runtime, in_queue, seen, weight_of
from adlro.core.tables import FOREVER, NOBODY, START, STOP, WAIT, Choice, Floats, Ints, View
from adlro.decide.lookahead.plans import fill_plans
from adlro.decide.lookahead.playing import Trial
from adlro.decide.lookahead.ranking import fill_ranking
from adlro.decide.sorting import is_among, sort_pairs


class Room(NamedTuple):
    """Arrays to work in."""

    keys: Floats  # [jobs + 1] what is sorted by
    numbers: Ints  # [jobs + 1] what is sorted
    free: Ints  # [sites] GPUs
    named: Ints  # [choices] jobs that a choice names
    plan_jobs: Ints  # [plans]
    plan_sites: Ints
    plan_seconds: Floats
    one_job: Ints  # [1] for a ranking of one
    one_site: Ints
    one_score: Floats


def room_to_gather(view: View, choices: int, plans: int) -> Room:
    """Arrays for decisions with at most `choices` choices, `plans` of which are plans."""
    rows = len(view.jobs) + 1
    return Room(
        keys=np.empty(rows),
        numbers=np.empty(rows, np.int32),
        free=np.empty(len(view.sites), np.int32),
        named=np.empty(choices, np.int32),
        plan_jobs=np.empty(plans, np.int32),
        plan_sites=np.empty(plans, np.int32),
        plan_seconds=np.empty(plans),
        one_job=np.empty(1, np.int32),
        one_site=np.empty(1, np.int32),
        one_score=np.empty(1),
    )


@compiled_alone
def jobs_of_world(view: View, most: int) -> int:
    """About how many jobs the world will have: the running ones and at most `most` waiting ones."""
    clock = view.clock[0]
    return int(clock.running) + min(int(clock.queued), most)


@compiled_alone
def gather(
    view: View,
    room: Room,
    trial: Trial,
    members: Ints,
    first: Choice,
    jobs: Ints,
    sites: Ints,
    plans: int,
    most: int,
    coming: int,
) -> tuple[int, int]:
    """Fill in the choices to try, and the jobs of the world in submit order; returns the number of both.

    The choices are the base's own, the pairs in `jobs` and `sites` (without a site: to stop the job), waiting if some
    running job will end, and at most `plans` plans; without duplicates. If there are fewer than two choices, no jobs
    are listed. If `members` is too short for the jobs and the `coming` ones, it is not filled.
    """
    if first.verb == WAIT and len(jobs) == 0 and fill_ranking(view, room.one_job, room.one_site, room.one_score) == 0:
        return 0, 0  # nothing can start, and every plan begins with waiting too
    count = fill_choices(view, trial, first, jobs, sites)
    planned = 0
    if plans > 0 and view.clock[0].running > 0:
        planned = fill_plans(
            view, room.keys, room.numbers, room.free, room.plan_jobs, room.plan_sites, room.plan_seconds, plans
        )
    if count + planned == 1:
        return 1, 0
    for p in range(planned):
        trial.target[count + p] = room.plan_jobs[p]
        trial.kept[count + p] = room.plan_sites[p]
    names = 0
    for c in range(count + planned):
        if c >= count or trial.verb[c] == START:
            room.named[names] = trial.target[c] if c >= count else trial.job[c]
            names += 1
    known = fill_members(view, room.keys, room.numbers, most, room.named, names)
    if known + coming <= len(members):
        for i in range(known):
            members[i] = room.numbers[i]
        for c in range(count):
            if trial.verb[c] != WAIT:
                trial.job[c] = place_of(members, known, trial.job[c])
        for c in range(count, count + planned):
            trial.target[c] = place_of(members, known, trial.target[c])
    return count + planned, known


@compiled
def fill_choices(view: View, trial: Trial, first: Choice, jobs: Ints, sites: Ints) -> int:
    """Fill in all choices except plans, with the job numbers of the view; returns their number."""
    put_choice(trial, 0, first.verb, first.job, first.site, first.until)
    count = 1
    for i in range(len(jobs)):
        verb = STOP if sites[i] == NOBODY else START
        is_first = first.verb == verb and first.job == jobs[i] and first.site == sites[i] and first.until == FOREVER
        if not is_first:
            put_choice(trial, count, verb, jobs[i], sites[i], FOREVER)
            count += 1
    if first.verb != WAIT and view.clock[0].running > 0:
        put_choice(trial, count, WAIT, NOBODY, NOBODY, FOREVER)
        count += 1
    return count


@compiled
def put_choice(trial: Trial, c: int, verb: int, job: int, site: int, until: float) -> None:
    """Fill in one choice."""
    trial.verb[c] = verb
    trial.job[c] = NOBODY if verb == WAIT else job
    trial.site[c] = site
    trial.until[c] = until
    trial.target[c] = NOBODY


@compiled
def fill_members(view: View, keys: Floats, members: Ints, most: int, named: Ints, names: int) -> int:
    """Fill in the jobs of the world in submit order: the running ones and `most` waiting ones; returns their number.

    Of a longer queue the jobs with the shortest best runtimes are taken, and all in `named`.
    """
    waits = seen(view)
    count = min(waits, most)
    if waits > most:
        for q in range(waits):
            j = in_queue(view, q)
            keys[q] = best_runtime(view, j) / weight_of(view, j)
            members[q] = q
        sort_pairs(keys, members, waits)
        for i in range(count):
            members[i] = in_queue(view, members[i])
        for n in range(names):
            if not is_among(members, count, named[n]):
                members[count] = named[n]
                count += 1
    else:
        for q in range(waits):
            members[q] = in_queue(view, q)
    for i in range(view.clock[0].running):
        members[count] = view.running[i]
        count += 1
    for i in range(count):
        keys[i] = members[i]
    sort_pairs(keys, members, count)
    return count


@compiled
def place_of(numbers: Ints, count: int, number: int) -> int:
    """The index of a number among the first `count`, which ascend."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_alone
def add_regret(
    trial: Trial, members: Ints, tried: int, jobs: Ints, sites: Ints, regret_s: Floats, waiting_s: float
) -> None:
    """Add to the cost of each choice what the adviser expects it to cost. A plan counts as its first choice.

    A pair that the adviser does not list costs as much as waiting: it comes from the base, and the adviser ranks it
    low.
    """
    for c in range(tried):
        regret = waiting_s
        if trial.verb[c] != WAIT:
            job = members[trial.job[c]]
            for i in range(len(jobs)):
                if jobs[i] == job and sites[i] == trial.site[c]:
                    regret = regret_s[i]
        trial.cost[c] += regret
