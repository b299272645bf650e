"""A small copy of the cluster, and playing a choice forward on it. Compiled; only Python calls it from outside."""

from typing import NamedTuple

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
    advance_with,
    apply,
    clear_progress,
    is_asked,
    resume,
    set_asked,
    undisturbed,
    unheated,
)
from adlro.core.plan import no_demands
from adlro.core.policy import CHOOSE_TYPE, FLOATS, INTS, VIEW_TYPE, Choose
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    best_runtime,
    clear_demand,
    enqueue,
    fits,
    note_release,
    refresh,
    start_cost,
    weight_of,
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
    Choice,
    Floats,
    Ints,
    View,
    records,
)


class World(NamedTuple):
    """A small copy of the cluster to try choices on, and its truth."""

    shown: View  # what the base policy sees
    truth: Truth
    members: Ints  # [rows] the job of the trace for each job of the world
    numbers: Ints  # [demands] the world's number for each demand of the trace while it is being filled, else NOBODY


class Trial(NamedTuple):
    """The choices to try, as columns, and the cost of each. Jobs are those of the world."""

    verb: Ints
    job: Ints
    site: Ints
    target: Ints  # the job of a plan, NOBODY if it is not a plan; the first three columns then are its first choice
    kept: Ints  # the site that the plan keeps for it
    until: Floats
    cost: Floats


# ---- the world ---------------------------------------------------------------------------------------------------


def blank_world(view: View, rows: int, preemptive: bool) -> World:
    """An empty world with room for `rows` jobs. Arrays that no run changes are shared with the view."""
    kept = ("users",) if view.clock[0].half_life > 0.0 else ()
    world = copied(view, CLUSTER + LISTS + kept)._replace(
        jobs=records(JOB, rows),
        runs=records(RUN, rows),
        queue=np.zeros(2 * rows + 2, np.int32),
        running=np.zeros(rows + 1, np.int32),
        demands=no_demands(rows),
        spread=np.zeros(rows, np.int32),
        fastest=np.zeros(rows),
    )
    truth = new_truth(world, np.zeros(rows), 2 * rows + 4 * len(view.sites) + 64, preemptive)
    return World(world, truth, np.zeros(rows, np.int32), np.full(len(view.demands), NOBODY, np.int32))


WORLD_TYPE = types.NamedTuple([VIEW_TYPE, TRUTH_TYPE, INTS, INTS], World)
TRIAL_TYPE = types.NamedTuple([INTS, INTS, INTS, INTS, INTS, FLOATS, FLOATS], Trial)


@compiled
def fill(view: View, imagined: World, known: int, coming: int, arrivals: Floats) -> None:
    """Fill the world with what is known now, and `coming` more jobs that arrive at these times."""
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
    clock.demand = NOBODY
    clock.running = 0
    clock.clear = 0
    clock.clear_version = clock.version
    clock.wake = FOREVER
    clock.learn = 0  # jobs that end here have not really ended
    clear_progress(world, truth)
    for g in range(len(world.gpus)):
        world.gpus[g].holder = NOBODY  # the number of a job of the trace, which means another job here
        if clock.paced != 0:
            truth.factor[g] = world.gpus[g].pace
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
            clear_demand(world, number)
            world.demands[number].tried = view.demands[job.demand].tried
            world.spread[number] = view.spread[job.demand]
            world.fastest[number] = view.fastest[job.demand]
        world.jobs[i].demand = number
        world.jobs[i].shapes = 0  # nobody is resized here
        if i < known:
            truth.work[i] = work_done(view, j) + work_left(view, j)
            _stand(view, world, truth, i, j)
        else:
            truth.work[i] = job.estimate
            world.jobs[i].submit = arrivals[i - known]
            clear_run(world, i)
    for i in range(known + coming):
        imagined.numbers[view.jobs[imagined.members[i]].demand] = NOBODY
    for i in range(known + coming, len(world.jobs)):
        world.jobs[i].submit = FOREVER  # an unused row: a job that never arrives
    set_asked(world, truth, True)


@compiled
def _stand(view: View, world: View, truth: Truth, i: int, j: int) -> None:
    """Let the job of the world wait or run as it does in the view."""
    clock = world.clock[0]
    world.runs[i] = view.runs[j]
    run = world.runs[i]
    if run.state != RUNNING:
        enqueue(world, i)
        return
    if clock.paced == 0:
        # Work counts from the start of this stretch at the nominal rate: wear is not visible.
        run.done = run.saved
        run.since = run.started + start_cost(world, i, run.starts - 1)
    world.running[clock.running] = i
    resume(world, truth, i, clock.running)
    clock.running += 1
    if world.jobs[i].share == WHOLE_GPU:
        _hold(world, i)


@compiled
def _hold(world: View, i: int) -> None:
    """Record the running job as the holder of its GPUs."""
    run = world.runs[i]
    s = run.site
    mask = run.mask
    part = run.parts
    while True:
        site = world.sites[s]
        for g in range(site.gpus):
            if mask >> g & 1:
                world.gpus[site.first_gpu + g].holder = i
        if part == NOBODY:
            return
        s = world.parts[part].site
        mask = world.parts[part].mask
        part = world.parts[part].next


@compiled
def clear_run(world: View, i: int) -> None:
    """Reset a job to not yet submitted."""
    run = world.runs[i]
    run.state = FUTURE
    run.done = 0.0
    run.saved = 0.0
    run.held = 0.0
    run.more = 0.0
    run.starts = 0
    run.mask = 0
    run.site = NOBODY
    run.parts = NOBODY
    run.slot = NOBODY


# ---- playing forward ---------------------------------------------------------------------------------------------


@compiled
def counted(world: View, truth: Truth, began: float) -> float:
    """Sum of the seconds from `began` (or from submission, if later) to the end of each job that has ended.

    Here and below each job's seconds count by its weight.
    """
    seconds = 0.0
    for e in range(truth.progress[0].events):
        event = truth.events[e]
        if event.what == DONE:
            seconds += (event.time - max(began, world.jobs[event.job].submit)) * weight_of(world, event.job)
    return seconds


@compiled
def outstanding(world: View, truth: Truth, jobs: int, began: float, guess: bool) -> float:
    """Sum of the seconds since `began` of the unfinished jobs, and with `guess` also of those that they still need.

    The guess: running jobs end as expected, and the others run at once where they are fastest.
    """
    now = world.clock[0].now
    seconds = 0.0
    for i in range(jobs):
        run = world.runs[i]
        if run.state == FINISHED:
            continue
        weight = weight_of(world, i)
        seconds += max(0.0, now - max(began, world.jobs[i].submit)) * weight
        if guess:
            seconds += (truth.live[run.slot].end - now if run.state == RUNNING else best_runtime(world, i)) * weight
    return seconds


@compiled
def _settled(world: View, truth: Truth) -> bool:
    """Whether all jobs of the world have arrived and started, so that no more choices are needed."""
    clock = world.clock[0]
    if clock.queued > 0 or truth.progress[0].asked_when_none_waits != 0:
        return False
    return clock.arrived == len(world.jobs) or world.jobs[clock.arrived].submit == FOREVER


@compiled
def keep(view: View, world: View, target: int, s: int, for_all: bool) -> None:
    """Keep a site (for a gang over several nodes: its pool) for the target, or open it to all jobs again.

    A kept node looks down to other jobs. Jobs that run there continue.
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
    """Keep one node, or open it to all jobs again, if it is up."""
    if view.nodes[n].up == 0 or (world.nodes[n].up != 0) == for_all:
        return
    world.nodes[n].up = 1 if for_all else 0
    if for_all:
        note_release(world, n)
    refresh(world, n)


@compiled
def _remember(trial: Trial, c: int, choice: Choice) -> None:
    """Record the first choice of a plan."""
    if trial.verb[c] == NOBODY:
        trial.verb[c] = choice.verb
        trial.job[c] = choice.job
        trial.site[c] = choice.site
        trial.until[c] = choice.until


@compiled
def rolled_out(
    view: View, imagined: World, trial: Trial, c: int, choose: Choose, jobs: int, horizon: float, guess: bool
) -> float:
    """Sum over the jobs of the seconds until each ends, if this choice is taken now and the base decides after that."""
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
                _remember(trial, c, choice)
                apply(world, truth, choice)
                target = NOBODY
            else:
                keep(view, world, target, s, False)
        while is_asked(truth):
            progress.events = 0
            choice = choose(world)
            _remember(trial, c, choice)
            apply(world, truth, choice)
        progress.events = 0  # only `counted` reads this log
        if guess and _settled(world, truth):
            break  # no decisions are left, so the guess for the running jobs is exact in this world
        status = advance_with(world, truth, undisturbed, unheated)
        seconds += counted(world, truth, began)
        if status == OVER or clock.now >= began + horizon:
            break
    if target != NOBODY and status == OVER and world.runs[target].state != FINISHED:
        return FOREVER  # the job of the plan never starts, neither there nor elsewhere by the base
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
    """Play the choices from `first` to `last` - 1 forward, and record the cost of each."""
    for c in range(first, last):
        fill(view, world, known, coming, arrivals)
        trial.cost[c] = rolled_out(view, world, trial, c, choose, known + coming, horizon, guess)
