"""Look-ahead: play the best few choices forward on a small copy of the cluster, and take the one that ends best.

The copy (the *world*) holds the running jobs and the waiting ones that the policy sees, numbered anew, and nothing
else of the trace: it costs the same whether a thousand jobs are still to come or a million. Its truth is made of
estimates; wear is unknown, and a node that is down stays down. In it the base policy decides on, by the same engine
and the same rules as the run itself.

A choice is a pair that might start now, waiting for the next event, or a *plan*: keep a site (or, for a gang over
several nodes, its pool) free of others until a waiting job can start there. Rules that take what fits now never start
wide gangs while small jobs keep coming; one wait is not enough, since the base would give the GPUs away again.

All compiled code of this stands in this one file, where Numba itself notices every change.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numba import types

from adlro.core.compiled import compiled, compiled_with, widened
from adlro.core.copying import CLUSTER, LISTS, copied, copy_cluster, copy_lists
from adlro.core.driver import new_truth
from adlro.core.engine import (
    DECIDE,
    OVER,
    TRUTH_TYPE,
    Truth,
    advance,
    apply,
    clear_progress,
    is_asked,
    resume,
    set_asked,
)
from adlro.core.errors import PolicyError
from adlro.core.policy import CHOOSE_TYPE, FLOATS, INTS, VIEW_TYPE, Choose, Policy, starting, waiting
from adlro.core.rules import (
    best_runtime,
    count_bits,
    expected_end,
    first_idle,
    fits,
    fits_across,
    fits_on_node,
    in_queue,
    note_release,
    open_to,
    refresh,
    runtime,
    seen,
    work_done,
    work_left,
)
from adlro.core.tables import (
    DONE,
    FINISHED,
    FOREVER,
    FUTURE,
    JOB,
    NOBODY,
    RUN,
    RUNNING,
    START,
    WAIT,
    Choice,
    Floats,
    Ints,
    View,
    records,
)
from adlro.decide import outlook
from adlro.decide.choosing import best_spot, hopeless, shortest
from adlro.decide.rules import baselines, reserving

Rank: TypeAlias = Callable[[View, int], tuple[Ints, Ints, Floats]]
"""`rank(view, most)`: at most so many legal pairs worth a look, the best first: their jobs, sites and scores."""


class Advice(NamedTuple):
    """What somebody who knows more than the base says about the choices at a decision."""

    first: Choice  # what he would do himself
    jobs: Ints  # of the legal pairs worth a look, the best first
    sites: Ints
    regret_s: Floats  # s of completion time that each pair costs more than the best choice, in his opinion
    waiting_s: float  # the same of waiting


Advise: TypeAlias = Callable[[View, int], Advice]
"""`advise(view, most)`: advice with at most so many pairs."""

Leaf: TypeAlias = Callable[[View], float]
"""`leaf(world)`: seconds that the unfinished jobs of the world still need from its clock on, summed."""

MOST_CANDIDATES: Final = 16
MOST_PLANS: Final = 16

FORESEEN: Final = 64
"""Jobs to come that the clairvoyant one knows."""

FIRST_ROWS: Final = 64
"""Room for jobs in a new world; it is made larger when needed."""

MOST_JOBS: Final = 128
"""Waiting jobs in the world. Of a longer queue those with the least best runtime are taken, and all that a candidate
names: whoever cares for the mean starts the short ones first, so the next hours are about them."""

MOST_WORK: Final = 500_000
"""Choices tried × jobs of the world × GPUs of the cluster: on large clusters fewer choices are tried, since playing
one forward takes time in proportion to both. On 16 GPUs, or on 100 with less than a hundred jobs, all are tried."""

ROUNDING: Final = 1e-9
"""Another choice must be better than the base's by this share of the cost: sums depend on the order of the ends."""


class World(NamedTuple):
    """A small cluster to try things on, and what will come true there."""

    shown: View  # what the base sees
    truth: Truth
    members: Ints  # [rows] the job of the trace behind each job of the world
    numbers: Ints  # [demands] the world's number for a demand of the trace while it is being filled, else NOBODY


class Trial(NamedTuple):
    """What is to be tried, as columns, and what each came to. Jobs are those of the world."""

    verb: Ints
    job: Ints
    site: Ints
    target: Ints  # a plan's job, NOBODY if it is no plan; of a plan the first three say what it begins with
    kept: Ints  # the site that the plan keeps for it
    until: Floats
    cost: Floats


# ---- the world ---------------------------------------------------------------------------------------------------


def blank_world(view: View, rows: int, preemptive: bool) -> World:
    """A world with room for so many jobs, to be filled; what no run ever changes is shared with the view."""
    kept = ("users",) if view.clock[0].half_life > 0.0 else ()
    world = copied(view, CLUSTER + LISTS + kept)._replace(
        jobs=records(JOB, rows),
        runs=records(RUN, rows),
        queue=np.zeros(2 * rows + 2, np.int32),
        running=np.zeros(rows + 1, np.int32),
        tried=np.zeros(rows, np.int32),
        spread=np.zeros(rows, np.int32),
        fastest=np.zeros(rows),
    )
    truth = new_truth(world, np.zeros(rows), 2 * rows + 4 * len(view.sites) + 64, preemptive)
    return World(world, truth, np.zeros(rows, np.int32), np.full(len(view.tried), NOBODY, np.int32))


WORLD_TYPE = types.NamedTuple([VIEW_TYPE, TRUTH_TYPE, INTS, INTS], World)
TRIAL_TYPE = types.NamedTuple([INTS, INTS, INTS, INTS, INTS, FLOATS, FLOATS], Trial)


@compiled
def fill(view: View, imagined: World, known: int, coming: int, arrivals: Floats) -> None:
    """Make the world what is known now, with `coming` more jobs that arrive at these times."""
    world, truth = imagined.shown, imagined.truth
    copy_cluster(view, world)
    copy_lists(view, world)
    clock = world.clock[0]
    if clock.half_life > 0.0:
        for u in range(len(view.users)):
            world.users[u] = view.users[u]
    clock.arrived = known
    clock.head = 0
    clock.queued = 0
    clock.running = 0
    clock.clear = 0
    clock.clear_version = clock.version
    clock.wake = FOREVER
    clock.learn = 0  # what ends here has not been seen to end
    clear_progress(world, truth)
    demands = 0
    for i in range(known + coming):
        j = imagined.members[i]
        job = view.jobs[j]
        world.jobs[i] = job
        number = imagined.numbers[job.demand]
        if number == NOBODY:
            number = demands
            demands += 1
            imagined.numbers[job.demand] = number
            world.tried[number] = view.tried[job.demand]
            world.spread[number] = view.spread[job.demand]
            world.fastest[number] = view.fastest[job.demand]
        world.jobs[i].demand = number
        if i < known:
            truth.work[i] = work_done(view, j) + work_left(view, j)
            stand(view, world, truth, i, j)
        else:
            truth.work[i] = job.estimate
            world.jobs[i].submit = arrivals[i - known]
            clear_run(world, i)
    for i in range(known + coming):
        imagined.numbers[view.jobs[imagined.members[i]].demand] = NOBODY
    for i in range(known + coming, len(world.jobs)):
        world.jobs[i].submit = FOREVER  # an unused row: a job that never comes
    set_asked(world, truth, True)


@compiled
def stand(view: View, world: View, truth: Truth, i: int, j: int) -> None:
    """Let the job of the world wait or run as it does in the view."""
    clock = world.clock[0]
    world.runs[i] = view.runs[j]
    run = world.runs[i]
    if run.state != RUNNING:
        world.queue[clock.queued] = i
        clock.queued += 1
        return
    # Work counts from the beginning of this stretch, by its rate: wear on the way cannot be seen.
    run.done = run.saved
    run.since = run.started
    if run.starts > 1:
        run.since += clock.restart
    world.running[clock.running] = i
    resume(world, truth, i, clock.running)
    clock.running += 1


@compiled
def clear_run(world: View, i: int) -> None:
    """A job that has not come yet."""
    run = world.runs[i]
    run.state = FUTURE
    run.done = 0.0
    run.saved = 0.0
    run.held = 0.0
    run.starts = 0
    run.mask = 0
    run.site = NOBODY
    run.parts = NOBODY
    run.slot = NOBODY


# ---- playing forward ---------------------------------------------------------------------------------------------


@compiled
def counted(world: View, truth: Truth, began: float) -> float:
    """Seconds from `began` (or from its submission, if later) to the end of each job that the log says has ended."""
    seconds = 0.0
    for e in range(truth.progress[0].events):
        event = truth.events[e]
        if event.what == DONE:
            seconds += event.time - max(began, world.jobs[event.job].submit)
    return seconds


@compiled
def outstanding(world: View, truth: Truth, jobs: int, began: float, guess: bool) -> float:
    """Seconds that the unfinished jobs have been there since `began`; with a guess of those that they still need.

    The guess: a running job ends as expected, any other runs at once where it is fastest.
    """
    now = world.clock[0].now
    seconds = 0.0
    for i in range(jobs):
        run = world.runs[i]
        if run.state == FINISHED:
            continue
        seconds += max(0.0, now - max(began, world.jobs[i].submit))
        if guess:
            seconds += truth.live[run.slot].end - now if run.state == RUNNING else best_runtime(world, i)
    return seconds


@compiled
def settled(world: View, truth: Truth) -> bool:
    """Whether all jobs of the world have come and begun, so that nobody will be asked again."""
    clock = world.clock[0]
    if clock.queued > 0 or truth.progress[0].asked_when_none_waits != 0:
        return False
    return clock.arrived == len(world.jobs) or world.jobs[clock.arrived].submit == FOREVER


@compiled
def keep(view: View, world: View, target: int, s: int, for_all: bool) -> None:
    """Keep a site (for a gang over several nodes: its pool) for the target, or open it for all again.

    To others a node that is kept is as if it were down. What runs there goes on.
    """
    site = world.sites[s]
    if world.width[world.jobs[target].kind, site.form] == 1:
        keep_node(view, world, site.node, for_all)
        return
    pool = world.pools[site.pool]
    for i in range(pool.first_site, pool.first_site + pool.sites):
        keep_node(view, world, world.sites[world.pool_sites[i]].node, for_all)


@compiled
def keep_node(view: View, world: View, n: int, for_all: bool) -> None:
    """Keep one node, or open it for all again, if it is up at all."""
    if view.nodes[n].up == 0 or (world.nodes[n].up != 0) == for_all:
        return
    world.nodes[n].up = 1 if for_all else 0
    if for_all:
        note_release(world, n)
    refresh(world, n)


@compiled
def remember(trial: Trial, c: int, choice: Choice) -> None:
    """Write down what a plan begins with."""
    if trial.verb[c] == NOBODY:
        trial.verb[c] = choice.verb
        trial.job[c] = choice.job
        trial.site[c] = choice.site
        trial.until[c] = choice.until


@compiled
def rolled_out(
    view: View, imagined: World, trial: Trial, c: int, choose: Choose, jobs: int, horizon: float, guess: bool
) -> float:
    """Sum over the jobs of the seconds until each ends, if this is chosen now and the base decides on."""
    world, truth = imagined.shown, imagined.truth
    clock = world.clock[0]
    progress = truth.progress[0]
    began = clock.now
    seconds = 0.0
    target = trial.target[c]
    status = DECIDE
    if target == NOBODY:
        choice = Choice(widened(trial.verb[c]), widened(trial.job[c]), widened(trial.site[c]), trial.until[c])
        apply(world, truth, choice)
    else:
        trial.verb[c] = NOBODY
    while True:
        if is_asked(truth) and target != NOBODY:
            s = trial.kept[c]
            keep(view, world, target, s, True)
            if fits(world, target, s):
                choice = Choice(START, widened(target), widened(s), FOREVER)
                remember(trial, c, choice)
                apply(world, truth, choice)
                target = NOBODY
            else:
                keep(view, world, target, s, False)
        while is_asked(truth):
            progress.events = 0
            choice = choose(world)
            remember(trial, c, choice)
            apply(world, truth, choice)
        progress.events = 0  # nobody reads this log but `counted`
        if guess and settled(world, truth):
            break  # nothing is left to decide, so what is guessed of those that run is the truth of this world
        status = advance(world, truth)
        seconds += counted(world, truth, began)
        if status == OVER or clock.now >= began + horizon:
            break
    if target != NOBODY and status == OVER and world.runs[target].state != FINISHED:
        return FOREVER  # the plan's job never starts, neither there nor, by the base, elsewhere
    return seconds + outstanding(world, truth, jobs, began, guess)


@compiled_with(
    types.void(
        VIEW_TYPE,
        WORLD_TYPE,
        types.int64,
        types.int64,
        FLOATS,
        TRIAL_TYPE,
        types.int64,
        types.int64,
        CHOOSE_TYPE,
        types.float64,
        types.boolean,
    )
)
def try_out(
    view: View,
    world: World,
    known: int,
    coming: int,
    arrivals: Floats,
    trial: Trial,
    first: int,
    last: int,
    choose: Choose,
    horizon: float,
    guess: bool,
) -> None:
    """Play the choices from the first to the one before the last forward, and write down what each comes to."""
    for c in range(first, last):
        fill(view, world, known, coming, arrivals)
        trial.cost[c] = rolled_out(view, world, trial, c, choose, known + coming, horizon, guess)


# ---- who is worth a try ------------------------------------------------------------------------------------------


class Pick(NamedTuple):
    """A site for a job: the less, the better."""

    site: int
    pool: int
    seconds: float
    left: int


@compiled
def before(a: Pick, b: Pick) -> bool:
    """Whether a is the better one: it ends sooner, leaves less over, or comes first."""
    if a.site == NOBODY or b.site == NOBODY:
        return a.site != NOBODY
    if a.seconds != b.seconds:
        return a.seconds < b.seconds
    if a.left != b.left:
        return a.left < b.left
    return a.site < b.site


@compiled
def pick_at(view: View, j: int, s: int) -> Pick:
    """What the job would have at this site."""
    site = view.sites[s]
    return Pick(widened(s), widened(site.pool), runtime(view, j, s), widened(site.free_share))


@compiled
def with_pick(best: tuple[Pick, Pick], new: Pick) -> tuple[Pick, Pick]:
    """The two best sites of different models, with one more looked at."""
    one, two = best
    if new.pool == one.pool:
        return (new, two) if before(new, one) else best
    if before(new, one):
        return (new, one)
    return (one, new) if before(new, two) else best


@compiled
def two_sites(view: View, j: int) -> tuple[Pick, Pick]:
    """The best site for the job, and the best of another model; of equal idle sites the first stands for all."""
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
    """Write down the pairs with the least runtimes, at most two for each job, the least first; how many they are."""
    count = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        one, two = two_sites(view, j)
        count = insert(jobs, sites, scores, count, j, one)
        count = insert(jobs, sites, scores, count, j, two)
    return count


@compiled
def insert(jobs: Ints, sites: Ints, scores: Floats, count: int, j: int, pick: Pick) -> int:
    """Put a pair at its place in the ranking, if it is there and there is room or something worse; the new length."""
    score = -pick.seconds
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
    """The legal pairs with the least runtimes, at most two sites (of different models) for each job."""
    jobs, sites, scores = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    count = fill_ranking(view, jobs, sites, scores) if most else 0
    return jobs[:count], sites[:count], scores[:count]


@compiled
def fill_lengths(view: View, lengths: Floats) -> None:
    """The best runtime of each waiting job that the policy sees."""
    for q in range(seen(view)):
        lengths[q] = best_runtime(view, in_queue(view, q))


# ---- plans -------------------------------------------------------------------------------------------------------


@compiled
def fill_ends(view: View, ends: Floats) -> None:
    """When each running job is expected to end."""
    for i in range(view.clock[0].running):
        ends[i] = expected_end(view, view.running[i])


@compiled
def fill_plans(view: View, order: Ints, room: Ints, jobs: Ints, sites: Ints, seconds: Floats) -> int:
    """Write down a job and a site for each plan worth a try; how many they are.

    For each model and each number of GPUs: the waiting job with the least runtime there, unless it fits now, at the
    site that will first have enough GPUs free. `order` has the running jobs by expected end, `room` a row by site.
    """
    count = 0
    for h in range(len(view.forms)):
        s = view.form_sites[view.forms[h].first_site]
        for q in range(seen(view)):
            j = in_queue(view, q)
            if view.jobs[j].gpus > 0 and view.width[view.jobs[j].kind, h] > 0:
                count = put_plan(view, jobs, sites, seconds, count, j, s)
    kept = 0
    for c in range(count):
        s = first_to_be_free(view, order, room, jobs[c], view.sites[sites[c]].pool)
        if s != NOBODY:
            jobs[kept] = jobs[c]
            sites[kept] = s
            kept += 1
    return kept


@compiled
def put_plan(view: View, jobs: Ints, sites: Ints, seconds: Floats, count: int, j: int, s: int) -> int:
    """Add the job to the plans if it is the shortest of its model and size, and there is room; the new number."""
    needed = runtime(view, j, s)
    at = count
    for c in range(count):
        if view.jobs[jobs[c]].gpus == view.jobs[j].gpus and view.sites[sites[c]].pool == view.sites[s].pool:
            at = c
    if at == count:
        if count == len(jobs):
            return count
        count += 1
    elif seconds[at] <= needed:
        return count
    jobs[at] = j
    sites[at] = s
    seconds[at] = needed
    return count


@compiled
def first_to_be_free(view: View, order: Ints, room: Ints, j: int, p: int) -> int:
    """The site of the pool that will first have enough GPUs free, as running jobs end; NOBODY if one has them now.

    A gang over several nodes has its pool's anchor. Cores and memory are left to the trial itself.
    """
    job = view.jobs[j]
    pool = view.pools[p]
    width = 0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        s = view.pool_sites[i]
        room[s] = view.sites[s].free_gpus
        width = max(width, view.width[job.kind, view.sites[s].form])
        if fits(view, j, s):
            return NOBODY
    if width > 1:
        return widened(pool.anchor)
    for i in range(len(order)):
        run = view.runs[order[i]]
        s = run.site
        mask = run.mask
        part = run.parts
        while True:
            if view.sites[s].pool == p:
                room[s] += count_bits(mask)
                if room[s] >= job.gpus and view.width[job.kind, view.sites[s].form] == 1:
                    return widened(s)
            if part == NOBODY:
                break
            s = view.parts[part].site
            mask = view.parts[part].mask
            part = view.parts[part].next
    return NOBODY


def plans_for(view: View, most: int) -> list[tuple[int, int]]:
    """The plans worth a try: each a waiting job and the site to be kept for it."""
    count = int(view.clock[0].running)
    if not most or not count:
        return []
    ends, room = np.empty(count), np.empty(len(view.sites), np.int32)
    fill_ends(view, ends)
    order = view.running[:count][np.argsort(ends, kind="stable")]
    jobs, sites, seconds = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    found = fill_plans(view, order, room, jobs, sites, seconds)
    return list(zip(jobs[:found].tolist(), sites[:found].tolist(), strict=True))


# ---- what will come ----------------------------------------------------------------------------------------------


class Future(NamedTuple):
    """Jobs that will come: which of the trace, and when."""

    jobs: Ints
    times: Floats


Foresee: TypeAlias = Callable[[View], Future]

NOTHING: Final = Future(np.empty(0, np.int32), np.empty(0))


def nothing_comes(view: View) -> Future:
    """As far as an honest policy knows, nothing."""
    return NOTHING


def clairvoyant(jobs: int) -> Foresee:
    """The truth: the next jobs of the trace. No honest policy may know them."""

    def foresee(view: View) -> Future:
        first = int(view.clock[0].arrived)
        coming = np.arange(first, min(first + jobs, len(view.jobs)), dtype=np.int32)
        coming = coming[view.fastest[view.jobs.demand[coming]] > 0.0]
        return Future(coming, np.ascontiguousarray(view.jobs.submit[coming]))

    return foresee


# ---- the policy --------------------------------------------------------------------------------------------------


def lookahead(
    base: Policy,
    candidates: int = MOST_CANDIDATES,
    horizon_s: float = FOREVER,
    *,
    plans: int = MOST_PLANS,
    rank: Rank = by_runtime,
    adviser: Callable[[View], Advise] | None = None,
    leaf: Leaf | None = None,
    budget_s: float = FOREVER,
    clock: Callable[[], float] = time.perf_counter,
    most_jobs: int = MOST_JOBS,
    foresee: Foresee = nothing_comes,
    name: str | None = None,
) -> Policy:
    """A policy that plays choices forward with the base deciding on, and takes the one with the least mean completion.

    Tried are the base's own choice, the best pairs by `rank`, waiting, and plans, in this order; equals go to the
    first. An `adviser`, made anew for each run, takes the place of `rank` and of the base's own choice, and what it
    says that a choice costs is added: it may know what playing forward cannot show, such as the jobs that usually come.
    On large clusters fewer are tried (MOST_WORK). Each choice is played until all known jobs have ended, or for
    `horizon_s` simulated seconds (not for a number of decisions, of which a busy choice has more in the same time).
    What is unfinished then costs what `leaf` says, or a guess: running jobs end as expected, others run at once where
    they are fastest.

    After `budget_s` seconds by `clock` the best so far is taken. That makes an answer depend on the machine, so it is
    for live clusters; without it the same run always comes out the same.
    """
    ask = base.choose
    if ask is None:
        raise PolicyError(
            f"look-ahead over {base.name!r}: expected a compiled policy; this one is plain Python with a memory of its "
            "own, which trying things out would spoil. Take a rule such as sjf or eft."
        )
    # A base that stops jobs makes room for gangs by itself.
    plans = 0 if base.preemptive else plans
    by_one = leaf is not None or budget_s < FOREVER

    def make(view: View, seed: int) -> Choose:
        world = blank_world(view, FIRST_ROWS, base.preemptive)
        trial = blank_trial(candidates + plans + 2)
        advise = by_base(ask, rank) if adviser is None else adviser(view)

        def choose(view: View) -> Choice:
            nonlocal world
            deadline = clock() + budget_s
            half = most_tries(view, most_jobs) // 2
            advice = advise(view, min(candidates, half))
            first = advice.first
            choices = choices_for(view, first, advice.jobs, advice.sites)
            planned = plans_for(view, min(plans, half))
            tried = len(choices) + len(planned)
            if tried == 1 or clock() >= deadline:
                return first
            future = foresee(view)
            named = [choice.job for choice in choices if choice.verb == START] + [job for job, _ in planned]
            members = known_jobs(view, most_jobs, named)
            known, coming = len(members), len(future.jobs)
            if known + coming > len(world.members):
                world = blank_world(view, 2 * (known + coming), base.preemptive)
            world.members[:known], world.members[known : known + coming] = members, future.jobs
            write_down(trial, members, choices, planned)
            for c in range(tried) if by_one else (0,):
                last = c + 1 if by_one else tried
                try_out(view, world, known, coming, future.times, trial, c, last, ask, horizon_s, leaf is None)
                if leaf is not None:
                    trial.cost[c] += leaf(world.shown)
                if clock() >= deadline:
                    tried = last
                    break
            if adviser is not None:
                add_regret(trial, members, tried, advice)
            return chosen(trial, members, tried, first)

        return choose

    return Policy(
        name or f"lookahead-{base.name}",
        f"plays the best choices forward over the known jobs, {base.name} deciding on, and takes the best",
        make=make,
        preemptive=base.preemptive,
        needs=tuple(dict.fromkeys((*base.needs, "estimate"))),
        prepare=base.prepare,
    )


def most_tries(view: View, most_jobs: int) -> int:
    """How many choices there is time to try, beside the first and waiting: at least two."""
    clock = view.clock[0]
    jobs = int(clock.running) + min(int(clock.queued), most_jobs)
    return max(2, MOST_WORK // max(1, jobs * len(view.gpus)))


def by_base(ask: Choose, rank: Rank) -> Advise:
    """Advice of the base itself: its choice and the ranked pairs, with no opinion on what they cost."""

    def advise(view: View, most: int) -> Advice:
        first = ask(view)
        jobs, sites, _ = rank(view, most)
        return Advice(first, jobs, sites, np.zeros(len(jobs)), 0.0)

    return advise


def add_regret(trial: Trial, members: Ints, tried: int, advice: Advice) -> None:
    """Add to what each choice costs what the adviser says it costs more than the best; a plan counts as its beginning.

    A pair of which the adviser has not spoken counts as much as waiting: it is the base's, and he thinks little of it.
    """
    pairs = zip(advice.jobs.tolist(), advice.sites.tolist(), strict=True)
    said = dict(zip(pairs, advice.regret_s.tolist(), strict=True))
    for c in range(tried):
        regret = advice.waiting_s
        if trial.verb[c] != WAIT:
            regret = said.get((int(members[trial.job[c]]), int(trial.site[c])), regret)
        trial.cost[c] += regret


def choices_for(view: View, first: Choice, jobs: Ints, sites: Ints) -> list[Choice]:
    """The base's choice, then the ranked pairs, then waiting, if there is an end to wait for; nothing twice."""
    pairs = [starting(j, s) for j, s in zip(jobs.tolist(), sites.tolist(), strict=True)]
    choices = [first, *(pair for pair in pairs if pair != first)]
    if first.verb != WAIT and view.clock[0].running > 0:
        choices.append(waiting())
    return choices


def known_jobs(view: View, most: int, named: list[int]) -> Ints:
    """The jobs of the world in submit order: those that run, and the waiting ones that it has room for."""
    clock = view.clock[0]
    waits = view.queue[clock.head : clock.head + seen(view)]
    if len(waits) > most:
        lengths = np.empty(len(waits))
        fill_lengths(view, lengths)
        shortest_ones = waits[np.argsort(lengths, kind="stable")[:most]]
        waits = np.union1d(shortest_ones, np.array(named, np.int32))
    return np.sort(np.concatenate([waits, view.running[: clock.running]]))


def blank_trial(rows: int) -> Trial:
    """A trial with room for so many choices."""
    verb, job, site, target, kept = np.zeros((5, rows), np.int32)
    return Trial(verb, job, site, target, kept, np.zeros(rows), np.zeros(rows))


def write_down(trial: Trial, members: Ints, choices: list[Choice], planned: list[tuple[int, int]]) -> None:
    """Put choices and plans into the columns of the trial, with the world's numbers for jobs."""
    number = {j: i for i, j in enumerate(members.tolist())}
    for c, choice in enumerate(choices):
        trial.verb[c], trial.site[c], trial.until[c], trial.target[c] = choice.verb, choice.site, choice.until, NOBODY
        trial.job[c] = NOBODY if choice.verb == WAIT else number[choice.job]
    for c, (j, s) in enumerate(planned, start=len(choices)):
        trial.target[c], trial.kept[c] = number[j], s


def chosen(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
    """The choice that costs least, or what the best plan begins with; the base's unless another is really better."""
    best = 0
    for c, cost in enumerate(trial.cost[:tried].tolist()):
        if cost < trial.cost[best] * (1.0 - ROUNDING):
            best = c
    if best == 0:
        return first
    verb = int(trial.verb[best])
    job = NOBODY if verb == WAIT else int(members[trial.job[best]])
    return Choice(verb, job, int(trial.site[best]), float(trial.until[best]))


RULES: Final = {policy.name: policy for module in (baselines, reserving, outlook) for policy in module.POLICIES}

STRONGEST: Final = "eft-reserving"

POLICIES: Final = tuple(lookahead(RULES[name]) for name in ("sjf", "sjf-picky", "eft", STRONGEST))

CLAIRVOYANT: Final = replace(
    lookahead(RULES[STRONGEST], foresee=clairvoyant(FORESEEN)),
    name="lookahead-clairvoyant",
    summary=f"cheats: as lookahead-{STRONGEST}, and knows the next {FORESEEN} jobs to come; shows what is left to gain",
    needs=("truth",),
)
"""Not in the catalogue's list, whose policies know nothing of the future; found by its name."""
