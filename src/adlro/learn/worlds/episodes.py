"""A new random episode: a world, its jobs, their arrivals and estimates, node failures, and the cost of a restart."""

import math
from typing import Any, Final

import numpy as np

from adlro.core.compiled import compiled
from adlro.core.engine import Truth, clear_progress
from adlro.core.rules import clear_demand
from adlro.core.tables import DONE, DOWN, FOREVER, FUTURE, NOBODY, OVERRAN, RECENT, UP, View
from adlro.learn.worlds.envs import Draw, Envs, Worlds, copy_world, truth_of, view_of

SMALL: Final = 16
"""Number of GPUs of a small cluster."""

RESTART: Final = 30.0
"""Seconds that a restart costs where jobs are only restarted after failures."""

LEAST_RESTART: Final = 5.0
"""The least cost of a restart that is not free, in s."""

FILLS: Final = 6.0
"""How many times the jobs of an episode fill the cluster."""


# ---- random numbers ----------------------------------------------------------------------------------------------


@compiled
def chance(state: Any) -> float:
    """A random number from 0 to 1, excluding 1."""
    x = state.random
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state.random = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@compiled
def gap(state: Any) -> float:
    """An exponential random number with mean 1."""
    return -math.log(1.0 - chance(state))


@compiled
def bell(state: Any) -> float:
    """A normal random number (Box-Muller)."""
    return math.sqrt(2.0 * gap(state)) * math.cos(2.0 * math.pi * chance(state))


@compiled
def _spread(sigma: float, state: Any) -> float:
    """A lognormal factor with this standard deviation of its logarithm. It always uses two random numbers."""
    if sigma == 0.0:
        chance(state)
        chance(state)
        return 1.0
    return math.exp(sigma * bell(state))


# ---- the time of jobs --------------------------------------------------------------------------------------------


@compiled
def area(view: View, truth: Truth, before: float, jobs: int, arrived: int) -> float:
    """Job time (s) since `before`: of the jobs in the system then, plus those that came, minus those that ended."""
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


# ---- a new episode -----------------------------------------------------------------------------------------------


@compiled
def begin_episode(worlds: Worlds, envs: Envs, b: int, draw: Draw) -> None:
    """Draw a world and its jobs, and reset everything to the beginning."""
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
    copy_world(worlds, envs, b)
    for i in range(RECENT):
        envs.released[b, i] = 0
    view = view_of(worlds, envs, b, b)
    for d in range(len(view.demands)):
        clear_demand(view, d)
    for i in range(info.gpus):
        envs.factor[b, i] = 1.0
    clock = envs.clock[b, 0]
    clock.now = 0.0
    clock.wake = FOREVER
    clock.restart = RESTART
    clock.half_life = 0.0
    clock.illegal = 0
    clock.arrived = 0
    clock.head = 0
    clock.queued = 0
    clock.demand = NOBODY
    clock.running = 0
    clock.open = 0
    clock.version = 0
    clock.clear = 0
    clock.clear_version = 0
    clock.window = 0
    clock.free_part = 0
    clock.learn = 0
    clear_progress(view_of(worlds, envs, b, b), truth_of(worlds, envs, b, b))
    progress = envs.progress[b, 0]
    progress.kill = 0
    progress.worn = 0
    progress.asked_when_none_waits = 0
    if draw.stops > 0.0:
        draw_restart(envs, b, draw)


@compiled
def draw_restart(envs: Envs, b: int, draw: Draw) -> None:
    """Draw whether jobs may be stopped in this episode, and what a restart costs each of them.

    The cost is 0 in one of eight of these episodes; in the others its logarithm is drawn evenly.
    """
    state = envs.state[b]
    may_stop = chance(state) < draw.stops
    is_free = chance(state) < 0.125
    least = min(LEAST_RESTART, draw.restart)
    cost = least * math.exp(chance(state) * math.log(draw.restart / least)) if draw.restart > 0.0 else 0.0
    envs.clock[b, 0].restart = 0.0 if is_free else cost
    envs.progress[b, 0].asked_when_none_waits = may_stop
    for j in range(state.jobs):
        envs.jobs[b, j].stoppable = may_stop
        envs.jobs[b, j].restart = FOREVER  # what the run says


@compiled
def jobs_in_episode(info: Any, draw: Draw, room: int) -> int:
    """Number of jobs of an episode: enough to keep a large cluster full for most of it."""
    return room if draw.jobs == 0 else min(room, max(draw.jobs, int(FILLS * info.crowd)))


@compiled
def draw_jobs(worlds: Worlds, envs: Envs, b: int, draw: Draw) -> None:
    """Draw the jobs of an episode from the menu of its world: their arrivals, estimates, and node failures."""
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
        work = worlds.work[n, pick] * _spread(draw.jitter, state)
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
    """Nodes that go down for a while, in time order, or none. The list is padded with times that never come."""
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
