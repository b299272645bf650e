"""Many simulated clusters side by side, each stepped to its next decision in one compiled call.

A *world* is a cluster with a menu of jobs, made once by `worlds.py`; an *environment* is a run in progress on a world.
An environment that ends draws a new world, load and jobs inside the same call. Observations are written into arrays
that the caller keeps, without a copy.

The reward is minus the time that all jobs spend in the system until the next decision. With `shaped` it is compared
with the rule `eft-reserving`: what the choice gains or loses if the rule decides everything afterwards, found by
playing both on with the same future. That is the same task (the sum of what the choices of a policy gain over the
rule's is what the policy gains over the rule), but a choice that agrees with the rule gets exactly 0 instead of a large
number that says little about the choice. With `ahead` the future ends with the next so many jobs to come: what one
choice does to jobs that come much later is mostly chance, and would drown the rest.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numba
import numpy as np

from adlro.core.compiled import compiled, compiled_alone, is_compiled, widened
from adlro.core.engine import LIVE, LOG_FULL, OVER, PROGRESS, Truth, advance, apply, next_moment
from adlro.core.rules import has_room
from adlro.core.tables import (
    CLOCK,
    DISTURBANCE,
    DONE,
    DOWN,
    EVENT,
    FOREVER,
    FORM,
    FUTURE,
    GPU,
    GROUP,
    JOB,
    MIX_COLUMNS,
    MIX_ROWS,
    NOBODY,
    NODE,
    OFFER,
    OVERRAN,
    PART,
    POOL,
    RECENT,
    RUN,
    SITE,
    START,
    UP,
    USER,
    WAIT,
    Choice,
    Floats,
    Ints,
    View,
)
from adlro.decide.outlook import Outlook, is_worth_a_look, look, wisest
from adlro.decide.past import GANGS, LENGTHS, Past, forget, notice_ends, observe_past
from adlro.decide.planes import (
    PAIR_PLANES,
    POOL_PLANES,
    ROW_PLANES,
    WHOLE_PLANES,
    Bytes,
    Planes,
    Singles,
    observe,
)

Tables: TypeAlias = Any
"""Records in an array of two axes: environments or worlds, then what they have. NumPy has no type for its rows."""

WORLD = np.dtype(
    [
        ("gap", "f8"),  # s between two arrivals at load 1
        ("unit", "f8"),  # typical runtime in s
        ("scale", "f8"),  # s by which shaped rewards are divided
        ("crowd", "f8"),  # jobs that fill the cluster
        ("sites", "i4"),
        ("nodes", "i4"),
        ("gpus", "i4"),
        ("forms", "i4"),
        ("pools", "i4"),
        ("menu", "i4"),  # jobs on the menu
        ("in_order", "i4"),  # the menu is a recorded trace: jobs come in its order
    ],
    align=True,
)
"""What is single about a world."""

STATE = np.dtype(
    [
        ("random", "u8"),
        ("cost", "f8"),  # the rule's cost from here on, if known, for the jobs before `limit`
        ("raw", "f8"),  # s of job time since the last decision
        ("episode_cost", "f8"),  # sum of completion times so far, s
        ("world", "i4"),
        ("jobs", "i4"),
        ("known", "i4"),  # cost is known
        ("limit", "i4"),
        ("arrived", "i4"),  # arrivals counted into the area so far
        ("finished", "i4"),  # episodes ended
        ("steps", "i4"),  # in this episode
    ],
    align=True,
)
"""What is single about an environment."""


class Worlds(NamedTuple):
    """All worlds, padded to one size. N worlds."""

    info: Tables  # WORLD [N]
    jobs: Tables  # JOB [N, M] the menu
    work: Floats  # [N, M]
    sites: Tables
    nodes: Tables
    gpus: Tables
    forms: Tables
    pools: Tables
    parts: Tables
    idle: Ints
    form_sites: Ints
    pool_sites: Ints
    spare: Ints  # [N, P, L]
    rate: Floats  # [N, K, H]
    width: Ints  # [N, K, H]
    fastest: Floats  # [N, D]
    spread: Ints  # [N, D]
    home: Ints  # [N, K, H]


class Envs(NamedTuple):
    """The state of all environments, and behind them one spare row for each thread to play ahead in."""

    state: Tables  # STATE [B]
    jobs: Tables
    runs: Tables
    sites: Tables
    nodes: Tables
    gpus: Tables
    forms: Tables
    pools: Tables
    parts: Tables
    users: Tables
    groups: Tables
    open: Tables
    clock: Tables
    queue: Ints
    running: Ints
    released: Ints
    tried: Ints
    idle: Ints
    spare: Ints
    mix: Floats
    work: Floats
    live: Tables
    heap: Ints
    factor: Floats
    disturbances: Tables
    events: Tables
    progress: Tables
    good: Floats  # [B, cells, P] and what follows: the memory of good placements
    weight: Floats
    watched: Ints
    watched_pools: Ints
    past: Floats


class Foreseen(NamedTuple):
    """The outlook of every environment."""

    gpu_free: Floats
    ready: Floats
    rows: Ints
    alike: Ints
    brief: Floats
    finish: Floats
    goal: Ints
    spot: Ints
    run: Floats
    wait: Floats
    delay: Floats
    prior: Floats
    counts: Ints
    unit: Floats
    demand: Ints
    awaited: Ints


class Seen(NamedTuple):
    """The observations of all environments. B environments, W rows, P pools."""

    rows: Singles  # [B, W, ROW_PLANES]
    pools: Singles  # [B, P, POOL_PLANES]
    pairs: Singles  # [B, W, P, PAIR_PLANES]
    whole: Singles  # [B, WHOLE_PLANES]
    prior: Singles  # [B, W, P]
    present: Bytes  # [B, W, P]
    legal: Bytes  # [B, W * P + 1] which actions may be; the last one is to wait


class Came(NamedTuple):
    """What came of a step."""

    reward: Singles  # [B]
    raw: Singles  # [B] minus the job time until the next decision, in units of the world's typical runtime
    done: Bytes  # [B] the episode ended, and the observation is of the next one
    agreed: Bytes  # [B] the choice was the rule's own
    score: Singles  # [B] where an episode ended: its mean completion time in units of the world's typical runtime


class Draw(NamedTuple):
    """How an episode is drawn."""

    load_low: float
    load_high: float
    backlog: int  # at most so many jobs are there from the start on SMALL GPUs, on more GPUs more, up to half of all
    burst: float  # share of episodes whose jobs come in bursts
    sigma: float  # largest spread of the logarithm of estimates
    jitter: float  # spread of the logarithm of a job's work around its menu's
    failures: float  # share of episodes in which nodes fail
    shaped: bool
    similar: bool = False  # the memory of good placements is shown
    jobs: int = 0  # jobs of an episode at least, and more where more fill the cluster; 0: as many as there is room for
    ahead: int = 0  # jobs to come that a choice is judged by, and one more for each four GPUs; 0: all of the episode


SMALL: Final = 16
"""GPUs of a small cluster."""

TURNS: Final = 6.0
"""How often the jobs of an episode fill the cluster."""

TOGETHER: Final = 16
"""The jobs that choices are judged by grow by so many at once."""

TURNS_OF_A_THREAD: Final = 4
"""How often each thread takes some of the environments in a step that plays ahead: some take a hundred times as long as
others. Else it takes its part at once: threads that come back often wait for each other at the interpreter's lock."""

BY_CHANCE: Final = -2
"""In place of an action: any legal one. The step writes down which it took."""


# ---- chance ------------------------------------------------------------------------------------------------------


@compiled
def chance(state: Any) -> float:
    """A number from 0 to 1, excluding 1."""
    x = state.random
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state.random = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@compiled
def gap(state: Any) -> float:
    """An exponential number with mean 1."""
    return -math.log(1.0 - chance(state))


@compiled
def bell(state: Any) -> float:
    """A normal number (Box and Muller)."""
    return math.sqrt(2.0 * gap(state)) * math.cos(2.0 * math.pi * chance(state))


@compiled
def spread(sigma: float, state: Any) -> float:
    """A factor with a normal logarithm of this spread around 0; without any, chance goes on all the same."""
    if sigma == 0.0:
        chance(state)
        chance(state)
        return 1.0
    return math.exp(sigma * bell(state))


# ---- one environment out of many ---------------------------------------------------------------------------------


@compiled
def view_of(worlds: Worlds, envs: Envs, b: int, row: int, limit: int = NOBODY) -> View:
    """The view of an environment on the row that holds its state: its own, or a spare one to play ahead in.

    With a limit, as if no jobs came after the first so many.
    """
    n = envs.state[b].world
    info = worlds.info[n]
    return View(
        envs.jobs[b, : envs.state[b].jobs if limit == NOBODY else limit],
        envs.runs[row],
        envs.sites[row, : info.sites],
        envs.nodes[row, : info.nodes],
        envs.gpus[row, : info.gpus],
        envs.forms[row, : info.forms],
        envs.pools[row, : info.pools],
        envs.parts[row],
        envs.users[row],
        envs.groups[row],
        envs.open[row],
        envs.clock[row],
        envs.queue[row],
        envs.running[row],
        envs.released[row],
        envs.tried[row],
        worlds.spread[n],
        envs.idle[row],
        worlds.form_sites[n],
        worlds.pool_sites[n],
        worlds.rate[n],
        worlds.width[n],
        envs.spare[row],
        worlds.fastest[n],
        worlds.home[n],
        envs.mix,
    )


@compiled
def truth_of(envs: Envs, b: int, row: int) -> Truth:
    """What only the simulator knows of an environment."""
    return Truth(
        envs.work[b],
        envs.live[row],
        envs.heap[row],
        envs.factor[row],
        envs.disturbances[b],
        envs.events[row],
        envs.progress[row],
    )


@compiled
def past_of(envs: Envs, b: int) -> Past:
    """What an environment remembers of good placements."""
    return Past(envs.good[b], envs.weight[b], envs.watched[b], envs.watched_pools[b], envs.past[b])


@compiled
def outlook_of(foreseen: Foreseen, row: int) -> Outlook:
    """The outlook kept on a row."""
    return Outlook(
        foreseen.gpu_free[row],
        foreseen.ready[row],
        foreseen.rows[row],
        foreseen.alike[row],
        foreseen.brief[row],
        foreseen.finish[row],
        foreseen.goal[row],
        foreseen.spot[row],
        foreseen.run[row],
        foreseen.wait[row],
        foreseen.delay[row],
        foreseen.prior[row],
        foreseen.counts[row],
        foreseen.unit[row],
        foreseen.demand[row],
        foreseen.awaited[row],
    )


@compiled
def copy_state(worlds: Worlds, envs: Envs, source: int, target: int, limit: int) -> None:
    """Copy all that changes during a run to another row, for the first so many jobs."""
    info = worlds.info[envs.state[source].world]
    for i in range(limit):
        envs.runs[target, i] = envs.runs[source, i]
    copy_cluster(
        envs.sites,
        envs.nodes,
        envs.gpus,
        envs.forms,
        envs.pools,
        envs.parts,
        envs.spare,
        envs.idle,
        source,
        envs,
        target,
        info,
    )
    clock = envs.clock[source, 0]
    envs.clock[target, 0] = clock
    for i in range(clock.open):
        envs.open[target, i] = envs.open[source, i]
    for i in range(clock.head, clock.head + clock.queued):
        envs.queue[target, i] = envs.queue[source, i]
    for i in range(clock.running):
        envs.running[target, i] = envs.running[source, i]
    for i in range(RECENT):
        envs.released[target, i] = envs.released[source, i]
    for i in range(envs.tried.shape[1]):
        envs.tried[target, i] = envs.tried[source, i]
    progress = envs.progress[source, 0]
    envs.progress[target, 0] = progress
    envs.progress[target, 0].events = 0  # the log is not copied: what it says of starts is not read any more
    for i in range(progress.slots):
        envs.live[target, i] = envs.live[source, i]
    for i in range(progress.ending):
        envs.heap[target, i] = envs.heap[source, i]
    for i in range(info.gpus):
        envs.factor[target, i] = envs.factor[source, i]


@compiled
def copy_cluster(
    sites: Tables,
    nodes: Tables,
    gpus: Tables,
    forms: Tables,
    pools: Tables,
    parts: Tables,
    spare: Ints,
    idle: Ints,
    source: int,
    envs: Envs,
    target: int,
    info: Any,
) -> None:
    """Copy a cluster to a row."""
    for i in range(info.sites):
        envs.sites[target, i] = sites[source, i]
    for i in range(info.nodes):
        envs.nodes[target, i] = nodes[source, i]
    for i in range(info.gpus):
        envs.gpus[target, i] = gpus[source, i]
    for i in range(info.forms):
        envs.forms[target, i] = forms[source, i]
    for i in range(info.pools):
        envs.pools[target, i] = pools[source, i]
    for i in range(envs.parts.shape[1]):
        envs.parts[target, i] = parts[source, i]
    for i in range(envs.spare.shape[1]):
        for k in range(envs.spare.shape[2]):
            envs.spare[target, i, k] = spare[source, i, k]
    for i in range(envs.idle.shape[1]):
        envs.idle[target, i] = idle[source, i]


# ---- a new episode -----------------------------------------------------------------------------------------------


@compiled
def begin_episode(worlds: Worlds, envs: Envs, b: int, draw: Draw) -> None:
    """Draw a world and its jobs, and set everything to the beginning."""
    state = envs.state[b]
    state.world = int(chance(state) * len(worlds.info))
    n = state.world
    info = worlds.info[n]
    state.jobs = jobs_in_episode(info, draw, envs.jobs.shape[1])
    state.known = 0
    state.raw = 0.0
    state.steps = 0
    state.episode_cost = 0.0
    state.arrived = 0
    draw_jobs(worlds, envs, b, draw)
    for j in range(state.jobs):
        run = envs.runs[b, j]
        run.done = 0.0
        run.saved = 0.0
        run.held = 0.0
        run.started = 0.0
        run.since = 0.0
        run.mask = 0
        run.site = NOBODY
        run.parts = NOBODY
        run.slot = NOBODY
        run.starts = 0
        run.state = FUTURE
    copy_cluster(
        worlds.sites,
        worlds.nodes,
        worlds.gpus,
        worlds.forms,
        worlds.pools,
        worlds.parts,
        worlds.spare,
        worlds.idle,
        n,
        envs,
        b,
        info,
    )
    for i in range(RECENT):
        envs.released[b, i] = 0
    for i in range(envs.tried.shape[1]):
        envs.tried[b, i] = NOBODY
    for i in range(info.gpus):
        envs.factor[b, i] = 1.0
    clock = envs.clock[b, 0]
    clock.now = 0.0
    clock.wake = FOREVER
    clock.restart = 30.0
    clock.half_life = 0.0
    clock.illegal = 0
    clock.arrived = 0
    clock.head = 0
    clock.queued = 0
    clock.running = 0
    clock.open = 0
    clock.version = 0
    clock.clear = 0
    clock.clear_version = 0
    clock.window = 0
    clock.free_part = 0
    clock.learn = 0
    progress = envs.progress[b, 0]
    progress.events = 0
    progress.disturbances = 0
    progress.ending = 0
    progress.slots = 0
    progress.free_slot = NOBODY
    progress.choices = 0
    progress.deciding = 0
    progress.halfway = 0
    progress.idle_wakes = 0
    progress.kill = 0
    progress.worn = 0
    progress.asked_when_none_waits = 0


@compiled
def jobs_in_episode(info: Any, draw: Draw, room: int) -> int:
    """How many jobs an episode has: enough that a large cluster is full for most of it."""
    return room if draw.jobs == 0 else min(room, max(draw.jobs, int(TURNS * info.crowd)))


@compiled
def draw_jobs(worlds: Worlds, envs: Envs, b: int, draw: Draw) -> None:
    """Draw the jobs of an episode from the menu of its world, when they come, what policies are told, and failures."""
    state = envs.state[b]
    n = state.world
    info = worlds.info[n]
    load = draw.load_low + (draw.load_high - draw.load_low) * chance(state)
    sigma = draw.sigma * chance(state) if chance(state) < 0.5 else 0.0
    bursts = chance(state) < draw.burst
    most = min(max(draw.backlog, draw.backlog * info.gpus // SMALL), max(draw.backlog, state.jobs // 2))
    waiting = int(chance(state) * (most + 1)) if chance(state) < 0.5 else 0
    first = int(chance(state) * max(1, info.menu - state.jobs)) if info.in_order != 0 else 0
    now = 0.0
    together = 0
    for j in range(state.jobs):
        pick = first + j if info.in_order != 0 else int(chance(state) * info.menu)
        pick = pick % info.menu
        envs.jobs[b, j] = worlds.jobs[n, pick]
        job = envs.jobs[b, j]
        work = worlds.work[n, pick] * spread(draw.jitter, state)
        if j >= waiting:
            pause = gap(state)
            if info.in_order != 0 and pick > 0:
                pause = (worlds.jobs[n, pick].submit - worlds.jobs[n, pick - 1].submit) / info.gap
            if bursts:
                if together > 0:
                    together -= 1
                    pause = 0.05 * pause
                elif chance(state) < 0.1:
                    together = 4 + int(chance(state) * 12)
                pause *= 1.5
            now += pause * info.gap / load
        job.submit = now
        envs.work[b, j] = work
        job.estimate = work
        if sigma > 0.0:
            job.estimate = work * math.exp(sigma * bell(state))
    draw_failures(worlds, envs, b, draw, now)


@compiled
def draw_failures(worlds: Worlds, envs: Envs, b: int, draw: Draw, last: float) -> None:
    """Nodes that go down for a while, in time order, or none; the list is filled up with times that never come."""
    state = envs.state[b]
    info = worlds.info[state.world]
    for i in range(envs.disturbances.shape[1]):
        envs.disturbances[b, i].time = FOREVER
        envs.disturbances[b, i].what = UP
        envs.disturbances[b, i].node = 0
    if info.nodes < 2 or chance(state) >= draw.failures:
        return
    pairs = envs.disturbances.shape[1] // 2
    now = 0.0
    for i in range(pairs):
        now += gap(state) * last / pairs
        node = int(chance(state) * info.nodes)
        away = gap(state) * last / (4.0 * pairs)
        down, up = envs.disturbances[b, 2 * i], envs.disturbances[b, 2 * i + 1]
        down.time = now
        down.what = DOWN
        down.node = node
        up.time = now + away
        up.what = UP
        up.node = node
        now += away


# ---- a step ------------------------------------------------------------------------------------------------------


@compiled
def area(view: View, truth: Truth, before: float, jobs: int, arrived: int) -> float:
    """Job time since then: of those that were in the system, plus those that came, less those that ended."""
    now = view.clock[0].now
    total = jobs * (now - before)
    for j in range(arrived, view.clock[0].arrived):
        total += now - view.jobs[j].submit
    for e in range(truth.progress[0].events):
        event = truth.events[e]
        if event.what == DONE or event.what == OVERRAN:
            total -= now - event.time
    truth.progress[0].events = 0
    return total


@compiled
def move_on(view: View, truth: Truth, outlook: Outlook, whole: bool) -> float:
    """Move on until there is a legal pair to decide on; the job time on the way, or minus one when the run is over.

    Unless the outlook is to be `whole`, only what the rule needs of it is filled.
    """
    total = 0.0
    clock = view.clock[0]
    while True:
        if truth.progress[0].deciding != 0:
            truth.progress[0].events = 0  # starts of this moment: no end is among them, and many might fill the log
            if clock.queued > 0 and has_room(view) and is_worth_a_look(view) and look(view, outlook, whole) > 0:
                return total
            truth.progress[0].deciding = 0
        before, jobs, arrived = clock.now, clock.queued + clock.running, clock.arrived
        status = advance(view, truth)
        total += area(view, truth, before, jobs, arrived)
        if status == OVER:
            return -1.0 - total
        if status == LOG_FULL:
            truth.progress[0].deciding = 0


# It is long and called from several places, so it is compiled once and not into each of them.
@compiled_alone
def cost_after(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, spare: int, limit: int, choice: Choice) -> float:
    """Job time until the first `limit` jobs end, if the rule decides after this choice, played in a spare row."""
    copy_state(worlds, envs, b, spare, limit)
    view = view_of(worlds, envs, b, spare, limit)
    truth = truth_of(envs, b, spare)
    outlook = outlook_of(foreseen, spare)
    apply(view, truth, choice)
    total = 0.0
    while True:
        passed = move_on(view, truth, outlook, False)
        if passed < 0.0:
            return total - passed - 1.0
        total += passed
        apply(view, truth, wisest(view, outlook))


@compiled
def judged_until(arrived: int, jobs: int, gpus: int, draw: Draw) -> int:
    """How many jobs of the episode a choice is judged by; the same for several choices, so that costs stay known."""
    if draw.ahead == 0:
        return jobs
    until = arrived + draw.ahead + gpus // 4
    return min(jobs, until + (TOGETHER - until % TOGETHER) % TOGETHER)


@compiled
def step_one(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    planes: Planes,
    legal: Bytes,
    came: Came,
    action: int,
    draw: Draw,
    b: int,
    spare: int,
) -> None:
    """Take one action in one environment, and go on to its next decision."""
    state = envs.state[b]
    view = view_of(worlds, envs, b, b)
    truth = truth_of(envs, b, b)
    outlook = outlook_of(foreseen, b)
    info = worlds.info[state.world]
    pools = planes.pools.shape[0]
    choice = Choice(WAIT, NOBODY, NOBODY, FOREVER)
    if 0 <= action < len(legal) - 1 and legal[action] != 0:
        w = action // pools
        s = outlook.spot[w, action % pools]
        choice = Choice(START, widened(outlook.rows[w]), widened(s), FOREVER)
    rule = wisest(view, outlook)
    if choice.verb == WAIT and next_moment(view, truth) == FOREVER:
        choice = rule  # nothing runs and nothing is to come: to wait would leave the jobs undone
    agreed = rule.verb == choice.verb and rule.job == choice.job and rule.site == choice.site
    reward = 0.0
    if draw.shaped and not agreed:
        limit = judged_until(view.clock[0].arrived, state.jobs, info.gpus, draw)
        if state.known == 0 or state.limit != limit:
            state.cost = cost_after(worlds, envs, foreseen, b, spare, limit, rule)
        after = cost_after(worlds, envs, foreseen, b, spare, limit, choice)
        reward = (state.cost - after) / info.scale
        state.cost = after
        state.known = 1
        state.limit = limit
    apply(view, truth, choice)
    passed = move_on(view, truth, outlook, True)
    over = passed < 0.0
    if over:
        passed = -1.0 - passed
    state.cost -= passed
    if not draw.shaped:
        reward = -passed / info.unit
    state.episode_cost += passed
    state.steps += 1
    came.reward[b] = reward
    came.raw[b] = -passed / info.unit
    came.agreed[b] = agreed
    came.done[b] = over
    came.score[b] = 0.0
    if over:
        came.score[b] = state.episode_cost / state.jobs / info.unit
        state.finished += 1
        start_over(worlds, envs, foreseen, b, draw)
        view = view_of(worlds, envs, b, b)
    observe(view, outlook, planes)
    if draw.similar:
        notice_ends(view, past_of(envs, b))
        observe_past(view, outlook, past_of(envs, b), planes)
    legal[len(legal) - 1] = may_wait(view)


# It is long and seldom called. What each step calls is compiled into it: to hand over a view takes its time.
@compiled_alone
def start_over(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, draw: Draw) -> None:
    """Begin an episode that has a decision, and go to it."""
    while True:
        begin_episode(worlds, envs, b, draw)
        if draw.similar:
            forget(past_of(envs, b))
        passed = move_on(view_of(worlds, envs, b, b), truth_of(envs, b, b), outlook_of(foreseen, b), True)
        if passed >= 0.0:
            envs.state[b].episode_cost += passed
            return


@compiled
def may_wait(view: View) -> bool:
    """Whether to wait is a legal action: while something runs, else nothing would come of it."""
    return view.clock[0].running > 0


@compiled
def planes_of(seen: Seen, b: int) -> Planes:
    """The observation of one environment."""
    rows, pools = seen.present.shape[1:]
    legal = seen.legal[b, : rows * pools].reshape((rows, pools))
    return Planes(seen.rows[b], seen.pools[b], seen.pairs[b], seen.whole[b], seen.prior[b], seen.present[b], legal)


@compiled_alone
def step_some(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    seen: Seen,
    came: Came,
    actions: Ints,
    draw: Draw,
    first: int,
    last: int,
    spare: int,
) -> None:
    """Step the environments from `first` to before `last`, with one spare row to play ahead in."""
    for b in range(first, last):
        if actions[b] == BY_CHANCE:
            actions[b] = legal_by_chance(seen.legal[b], envs.state[b])
        step_one(worlds, envs, foreseen, planes_of(seen, b), seen.legal[b], came, actions[b], draw, b, spare)


@compiled_alone
def start_some(worlds: Worlds, envs: Envs, foreseen: Foreseen, seen: Seen, draw: Draw, first: int, last: int) -> None:
    """Begin episodes in the environments from `first` to before `last`."""
    for b in range(first, last):
        start_over(worlds, envs, foreseen, b, draw)
        view = view_of(worlds, envs, b, b)
        observe(view, outlook_of(foreseen, b), planes_of(seen, b))
        seen.legal[b, seen.legal.shape[1] - 1] = may_wait(view)


@compiled
def legal_by_chance(legal: Bytes, state: Any) -> int:
    """A legal action by chance."""
    count = 0
    for a in range(len(legal)):
        count += legal[a]
    pick = int(chance(state) * count)
    for a in range(len(legal)):
        if legal[a] != 0:
            if pick == 0:
                return a
            pick -= 1
    return len(legal) - 1


@compiled_alone
def choose_some(seen: Seen, envs: Envs, actions: Ints, first: int, last: int) -> None:
    """A legal action by chance for each environment."""
    for b in range(first, last):
        actions[b] = legal_by_chance(seen.legal[b], envs.state[b])


# ---- for Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Many environments and what they show. `step` changes all of it in place."""

    worlds: Worlds
    envs: Envs
    foreseen: Foreseen
    seen: Seen
    came: Came
    draw: Draw
    threads: ThreadPoolExecutor
    workers: int
    versions: dict[Any, Any]  # of `step_some`, by the type of the actions

    @property
    def count(self) -> int:
        """How many environments there are."""
        return len(self.came.done)

    @property
    def actions(self) -> int:
        """How many actions there are, waiting included; it is the last."""
        return self.seen.legal.shape[1]


def table(dtype: np.dtype[Any], *shape: int) -> Tables:
    """Records in an array of any shape."""
    return np.zeros(shape, dtype).view(np.recarray)


def make_batch(
    worlds: Worlds, count: int, jobs: int, rows: int, pools: int, draw: Draw, seed: int, workers: int | None = None
) -> Batch:
    """So many environments of so many jobs each, at their first decision."""
    workers = workers or os.cpu_count() or 1
    total = count + workers
    envs = envs_for(worlds, count, total, jobs, seed, draw.similar)
    batch = Batch(
        worlds,
        envs,
        foreseen_for(total, rows, worlds),
        seen_for(count, rows, pools),
        Came(
            np.zeros(count, np.float32),
            np.zeros(count, np.float32),
            np.zeros(count, np.uint8),
            np.zeros(count, np.uint8),
            np.zeros(count, np.float32),
        ),
        draw,
        ThreadPoolExecutor(workers),
        workers,
        {},
    )
    start_all(batch)
    return batch


def envs_for(worlds: Worlds, count: int, total: int, jobs: int, seed: int, similar: bool = False) -> Envs:
    """So many environments of so many jobs each, with `total` rows for what changes in a run, and nothing begun."""
    sites, nodes, gpus, pools = (each.shape[1] for each in (worlds.sites, worlds.nodes, worlds.gpus, worlds.pools))
    cells = (int(worlds.jobs["family"].max(initial=0)) + 1) * GANGS * LENGTHS if similar else 0
    envs = Envs(
        state=table(STATE, count),
        jobs=table(JOB, count, jobs),
        runs=table(RUN, total, jobs),
        sites=table(SITE, total, sites),
        nodes=table(NODE, total, nodes),
        gpus=table(GPU, total, gpus),
        forms=table(FORM, total, worlds.forms.shape[1]),
        pools=table(POOL, total, worlds.pools.shape[1]),
        parts=table(PART, total, worlds.parts.shape[1]),
        users=table(USER, total, 1),
        groups=table(GROUP, total, 1),
        open=table(OFFER, total, sites + 1),
        clock=table(CLOCK, total, 1),
        queue=np.zeros((total, 2 * jobs + 2), np.int32),
        running=np.zeros((total, jobs + 1), np.int32),
        released=np.zeros((total, RECENT), np.int32),
        tried=np.zeros((total, worlds.fastest.shape[1]), np.int32),
        idle=np.zeros((total, worlds.idle.shape[1]), np.int32),
        spare=np.zeros((total, *worlds.spare.shape[1:]), np.int32),
        mix=np.zeros((MIX_ROWS, MIX_COLUMNS)),
        work=np.zeros((count, jobs)),
        live=table(LIVE, total, jobs + 1),
        heap=np.zeros((total, jobs + 1), np.int32),
        factor=np.ones((total, gpus)),
        disturbances=table(DISTURBANCE, count, 8),
        events=table(EVENT, total, 4 * (gpus + 2 * sites + 16)),
        progress=table(PROGRESS, total, 1),
        good=np.zeros((count, cells, pools)),
        weight=np.zeros((count, cells, pools)),
        watched=np.zeros((count, jobs + 1), np.int32),
        watched_pools=np.zeros((count, jobs + 1), np.int32),
        past=np.zeros((count, 3)),
    )
    envs.state["random"] = np.random.default_rng(seed).integers(1, 2**63, count, np.uint64)
    return envs


def start_all(batch: Batch) -> None:
    """Begin a new episode in every environment, by the states of their generators (`envs.state.random`)."""
    start_some(batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.draw, 0, batch.count)


def foreseen_for(total: int, rows: int, worlds: Worlds) -> Foreseen:
    """Outlooks for so many rows of environments."""
    pools = worlds.pools.shape[1]
    return Foreseen(
        np.zeros((total, worlds.gpus.shape[1])),
        np.zeros((total, *worlds.spare.shape[1:])),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows)),
        np.zeros((total, rows)),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows, pools), np.int32),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, 5), np.int32),
        np.zeros((total, 1)),
        np.zeros((total, rows), np.int32),
        np.zeros((total, pools), np.int32),
    )


def seen_for(count: int, rows: int, pools: int) -> Seen:
    """Observations of nothing."""
    return Seen(
        np.zeros((count, rows, len(ROW_PLANES)), np.float32),
        np.zeros((count, pools, len(POOL_PLANES)), np.float32),
        np.zeros((count, rows, pools, len(PAIR_PLANES)), np.float32),
        np.zeros((count, len(WHOLE_PLANES)), np.float32),
        np.zeros((count, rows, pools), np.float32),
        np.zeros((count, rows, pools), np.uint8),
        np.zeros((count, rows * pools + 1), np.uint8),
    )


def step(batch: Batch, actions: Ints) -> None:
    """Take one action in every environment, on all threads; `came` says what came of it, `seen` what is seen now.

    An action that may not be counts as waiting. Where it is BY_CHANCE a legal one is drawn, and written in its place.
    """
    ours = batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.came
    kind = numba.typeof(actions)
    if kind not in batch.versions:
        batch.versions[kind] = version_for(step_some, *ours, actions, batch.draw, 0, 0, 0)
    version = batch.versions[kind]

    def some(first: int, last: int, worker: int) -> None:
        version(*ours, actions, batch.draw, first, last, batch.count + worker)

    in_parts(batch, some, TURNS_OF_A_THREAD if batch.draw.shaped else 1)


def version_for(function: Any, *arguments: Any) -> Any:
    """The compiled version of a function for arguments of these types.

    To choose it Numba looks at each of a hundred arrays: 16 of the 17 µs of a call for no environments (an EPYC, 2
    cores), in which no other thread may do the same.
    """
    return function.compile(tuple(map(numba.typeof, arguments))) if is_compiled(function) else function


def choose_by_chance(batch: Batch, actions: Ints) -> None:
    """A legal action by chance for every environment."""
    in_parts(batch, lambda first, last, _: choose_some(batch.seen, batch.envs, actions, first, last))


def in_parts(batch: Batch, work: Any, turns: int = 1) -> None:
    """Do something for all environments: this thread and the others each take the next part until none is left."""
    if batch.workers == 1:
        work(0, batch.count, 0)
        return
    size = max(1, -(-batch.count // (turns * batch.workers)))
    firsts = iter(range(0, batch.count, size))

    def share(worker: int) -> None:
        for first in firsts:
            work(first, min(first + size, batch.count), worker)

    others = [batch.threads.submit(share, worker) for worker in range(1, batch.workers)]
    share(0)
    for other in others:
        if not other.cancel():  # it has begun, so it may have something in hand
            other.result()
