"""The paper's task (its section 4) as many environments side by side, using the compiled functions of `batch.py`.

The paper's reward is R = −(job completion time + λ · idle GPU time) for a whole run. Here it comes step by step: minus
the time that all jobs spent in the system since the last decision, minus λ times the idle GPU time. A GPU of which 3/4
are in use is idle by 1/4; GPUs of a node that is down are not idle. The sum from the first decision to the end of the
last job is −(sum of completion times + λ · idle GPU time). Both are in units of the typical runtime of the world's
jobs.

With many jobs in the system these rewards are large and nearly the same whatever is done. For training they are
therefore discounted by time, γ for each unit, and shaped by the potential −(jobs in the system) / −ln γ, which does not
change which policy is best (Ng, Harada and Russell 1999). Times −ln γ · FINISH this leaves about FINISH for each job
that finishes.

`decide/network/paper_state.py` defines observations and actions. There is no action for waiting: an environment stops
only where something can start, so there is always a legal action.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.engine import OVER, Truth, advance, apply, is_asked, set_asked
from adlro.core.errors import ConfigError
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import gpu_share
from adlro.core.tables import DONE, DOWN, FAILED, FOREVER, NOBODY, OVERRAN, START, UP, WAIT, Choice, Ints, View
from adlro.decide.network.paper_state import (
    CHANNELS_IN,
    SIZES,
    TYPES,
    WINDOW,
    PaperSeen,
    assignment,
    mark,
    observe,
    start_due,
)
from adlro.learn.worlds.batch import in_parts
from adlro.learn.worlds.envs import Came, Draw, Envs, Worlds, came_for, envs_for, truth_of, view_of
from adlro.learn.worlds.episodes import begin_episode, chance

LAMBDA: Final = 0.5
"""Default weight of idle GPU time. The paper only says that it is between 0 and 1."""


FINISH: Final = 0.05
"""What a job that finishes is worth in the shaped reward, so that values are of the size of 10."""


class Stakes(NamedTuple):
    """What counts in the reward."""

    lam: float  # weight of idle GPU time
    discount: float  # of a unit of time; 1: the rewards are the paper's, undiscounted
    averaged: bool  # whether the weight is that of means, over jobs and over GPUs, instead of sums


class Passed(NamedTuple):
    """What happened on the way to the next decision."""

    jobs: float  # s of job time
    idle: float  # s of idle GPU time
    over: bool  # whether the run ended


# ---- a step ------------------------------------------------------------------------------------------------------


@compiled
def idle_now(view: View) -> float:
    """Number of idle GPUs, with fractions. GPUs of nodes that are down do not count."""
    share = 0
    for s in range(len(view.sites)):
        site = view.sites[s]
        if view.nodes[site.node].up != 0:
            share += site.free_share
    return share / WHOLE_GPU


@compiled
def gpus_on(view: View, n: int) -> int:
    """Number of GPUs of a node."""
    node = view.nodes[n]
    gpus = 0
    for s in range(node.first_site, node.first_site + node.sites):
        gpus += view.sites[s].gpus
    return gpus


@compiled
def add_up(view: View, truth: Truth, before: float, jobs: int, idle: float, arrived: int) -> Passed:
    """Job time and idle GPU time since `before`, from the state then and the events since; empties the log."""
    now = view.clock[0].now
    in_system = jobs * (now - before)
    unused = idle * (now - before)
    for j in range(arrived, view.clock[0].arrived):
        in_system += now - view.jobs[j].submit
    for e in range(truth.progress[0].events):
        event = truth.events[e]
        ago = now - event.time
        if event.what == DONE or event.what == OVERRAN:
            in_system -= ago
        if event.what == DONE or event.what == OVERRAN or event.what == FAILED:
            if view.jobs[event.job].gpus > 0:
                unused += ago * gpu_share(view, event.job)
        elif event.what == DOWN:
            unused -= ago * gpus_on(view, event.site)
        elif event.what == UP:
            unused += ago * gpus_on(view, event.site)
    truth.progress[0].events = 0
    return Passed(in_system, unused, False)


@compiled
def to_next_choice(view: View, truth: Truth, rows: Ints, kept: Ints, legal: Any) -> Passed:
    """Move on until some assignment is legal, or the run is over. Jobs that GPUs are kept for start on the way."""
    jobs_s = 0.0
    idle_s = 0.0
    clock = view.clock[0]
    progress = truth.progress[0]
    while True:
        if is_asked(truth):
            due = start_due(view, kept)
            if due.verb == START:
                apply(view, truth, due)
                continue
            if clock.queued > 0 and mark(view, rows, kept, legal) > 0:
                return Passed(jobs_s, idle_s, False)
            set_asked(view, truth, False)
        progress.events = 0  # only starts, which the state already has; many at one moment must not fill the log
        before, jobs, idle, arrived = clock.now, clock.queued + clock.running, idle_now(view), clock.arrived
        status = advance(view, truth)
        passed = add_up(view, truth, before, jobs, idle, arrived)
        jobs_s += passed.jobs
        idle_s += passed.idle
        if status == OVER:
            return Passed(jobs_s, idle_s, True)


@compiled
def _start_over(worlds: Worlds, envs: Envs, rows: Ints, kept: Ints, legal: Any, b: int, draw: Draw) -> None:
    """Begin an episode that has a decision, and move on to that decision."""
    while True:
        begin_episode(worlds, envs, b, draw)
        kept[:] = NOBODY
        passed = to_next_choice(view_of(worlds, envs, b, b), truth_of(worlds, envs, b, b), rows, kept, legal)
        if not passed.over:
            envs.state[b].episode_cost += passed.jobs
            return


@compiled
def _reward_of(
    passed: Passed, before: int, after: int, span: float, unit: float, jobs_per_gpu: float, stakes: Stakes
) -> float:
    """The reward of a step from `before` jobs in the system to `after`. `span` is its time in units."""
    lam = stakes.lam * jobs_per_gpu if stakes.averaged else stakes.lam
    reward = -(passed.jobs + lam * passed.idle) / unit
    if stakes.discount == 1.0:
        return reward
    rate = -math.log(stakes.discount)
    return FINISH * (rate * reward + before - stakes.discount**span * after)


@compiled
def _step_one(
    worlds: Worlds,
    envs: Envs,
    rows: Ints,
    kept: Ints,
    seen: PaperSeen,
    came: Came,
    action: int,
    stakes: Stakes,
    draw: Draw,
    b: int,
) -> None:
    """Take one action in one environment, and move on to its next decision. An illegal action counts as waiting."""
    state = envs.state[b]
    view = view_of(worlds, envs, b, b)
    truth = truth_of(worlds, envs, b, b)
    info = worlds.info[state.world]
    legal = seen.legal[b]
    clock = view.clock[0]
    began, before = clock.now, clock.queued + clock.running
    if 0 <= action < len(legal) and legal[action] != 0:
        choice = assignment(view, rows, kept, action)
        if choice.verb == START:
            apply(view, truth, choice)
    else:
        apply(view, truth, Choice(WAIT, NOBODY, NOBODY, FOREVER))
    passed = to_next_choice(view, truth, rows, kept, legal)
    state.episode_cost += passed.jobs
    state.steps += 1
    span = (clock.now - began) / info.unit
    after = 0 if passed.over else clock.queued + clock.running
    came.reward[b] = _reward_of(passed, before, after, span, info.unit, state.jobs / info.gpus, stakes)
    came.raw[b] = -passed.jobs / info.unit
    came.span[b] = 1.0 if stakes.discount == 1.0 else span
    came.agreed[b] = 0
    came.done[b] = passed.over
    came.score[b] = 0.0
    if passed.over:
        came.score[b] = state.episode_cost / state.jobs / info.unit
        state.finished += 1
        _start_over(worlds, envs, rows, kept, legal, b, draw)
        view = view_of(worlds, envs, b, b)
    observe(view, rows, kept, seen.use[b], seen.queue[b], seen.jobs[b])


@compiled_alone
def _step_some(
    worlds: Worlds,
    envs: Envs,
    rows: Ints,
    kept: Ints,
    seen: PaperSeen,
    came: Came,
    actions: Ints,
    stakes: Stakes,
    draw: Draw,
    first: int,
    last: int,
) -> None:
    """Step the environments from `first` to `last` - 1."""
    for b in range(first, last):
        _step_one(worlds, envs, rows[b], kept[b], seen, came, actions[b], stakes, draw, b)


@compiled_alone
def _start_some(
    worlds: Worlds, envs: Envs, rows: Ints, kept: Ints, seen: PaperSeen, draw: Draw, first: int, last: int
) -> None:
    """Begin episodes in the environments from `first` to `last` - 1."""
    for b in range(first, last):
        _start_over(worlds, envs, rows[b], kept[b], seen.legal[b], b, draw)
        observe(view_of(worlds, envs, b, b), rows[b], kept[b], seen.use[b], seen.queue[b], seen.jobs[b])


@compiled_alone
def _choose_some(legal: Any, envs: Envs, actions: Ints, first: int, last: int) -> None:
    """A random legal action for each environment."""
    for b in range(first, last):
        count = 0
        for a in range(legal.shape[1]):
            count += legal[b, a]
        pick = int(chance(envs.state[b]) * count)
        for a in range(legal.shape[1]):
            if legal[b, a] != 0:
                if pick == 0:
                    actions[b] = a
                    break
                pick -= 1


# ---- for Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaperBatch:
    """Many environments of the paper's task and their observations. `step_paper` changes everything in place."""

    worlds: Worlds
    envs: Envs
    rows: Ints  # [B, W] jobs in the window
    kept: Ints  # [B, sites] the job that each site is kept for; [B, 0] if GPUs are never kept
    seen: PaperSeen
    came: Came
    draw: Draw
    stakes: Stakes
    threads: ThreadPoolExecutor
    workers: int

    @property
    def count(self) -> int:
        """Number of environments."""
        return len(self.came.done)

    @property
    def actions(self) -> int:
        """Number of actions: jobs in the window times GPUs."""
        return self.seen.legal.shape[1]


def check_lambda(lam: float) -> None:
    """Raise an error if the weight of idle GPU time is outside the paper's range."""
    if not 0.0 < lam < 1.0:
        raise ConfigError(f"lambda is {lam}; expected a number above 0 and below 1, such as {LAMBDA}.")


def check_worlds(worlds: Worlds) -> int:
    """Raise an error if one network cannot be used for all worlds; returns the number of GPUs of each."""
    counts = sorted({int(row.gpus) for row in worlds.info})
    if len(counts) != 1:
        raise ConfigError(
            f"preset paper: the clusters have {', '.join(map(str, counts))} GPUs; expected one number, since the "
            f"network has an output for each GPU. Train on one cluster, or take preset adlro."
        )
    return counts[0]


def node_sizes(worlds: Worlds) -> list[int]:
    """The number of GPUs of each node, the same in all worlds."""
    found = {
        tuple(int(sites.gpus[(sites.node == n) & (np.arange(len(sites)) < row.sites)].sum()) for n in range(row.nodes))
        for sites, row in zip(worlds.sites, worlds.info, strict=True)
    }
    if len(found) != 1:
        raise ConfigError("grid: the nodes of the clusters differ; expected one cluster. Leave grid=true out.")
    return [count for count in found.pop() if count > 0]


def make_paper_batch(
    worlds: Worlds,
    count: int,
    jobs: int,
    draw: Draw,
    lam: float,
    seed: int,
    workers: int | None = None,
    window: int = WINDOW,
    sizes: bool = True,
    keeps: bool = True,
    discount: float = 1.0,
    averaged: bool = False,
) -> PaperBatch:
    """Make `count` environments of `jobs` jobs each, at their first decision. `draw.shaped` has no effect here.

    `window` is the number of waiting jobs that the agent judges. With `sizes` it sees how many GPUs they ask for, with
    `keeps` it may keep GPUs for a gang. With a `discount` for a unit of time, the rewards are shaped (see above). With
    `averaged` λ weighs the mean idle time of a GPU against the mean completion time, instead of the sums.
    """
    check_lambda(lam)
    gpus = check_worlds(worlds)
    workers = workers or os.cpu_count() or 1
    features = 1 + TYPES + (SIZES if sizes else 0)
    batch = PaperBatch(
        worlds,
        envs_for(worlds, count, count, jobs, seed),
        np.full((count, window), NOBODY, np.int32),
        np.full((count, worlds.sites.shape[1] if keeps else 0), NOBODY, np.int32),
        PaperSeen(
            np.zeros((count, gpus, CHANNELS_IN), np.float32),
            np.zeros((count, features), np.float32),
            np.zeros((count, window, features), np.float32),
            np.zeros((count, window * gpus), np.uint8),
        ),
        came_for(count),
        draw,
        Stakes(float(lam), float(discount), bool(averaged)),
        ThreadPoolExecutor(workers),
        workers,
    )
    begin_paper(batch)
    return batch


def begin_paper(batch: PaperBatch) -> None:
    """Begin a new episode in every environment, from the random states in `envs.state.random`."""
    _start_some(batch.worlds, batch.envs, batch.rows, batch.kept, batch.seen, batch.draw, 0, batch.count)


def step_paper(batch: PaperBatch, actions: Ints) -> None:
    """Take one action in every environment, on all threads. `came` has the results, `seen` the new observations."""

    def some(first: int, last: int, _worker: int) -> None:
        ours = batch.worlds, batch.envs, batch.rows, batch.kept, batch.seen, batch.came
        _step_some(*ours, actions, batch.stakes, batch.draw, first, last)

    in_parts(cast(Any, batch), some)


def choose_paper_by_chance(batch: PaperBatch, actions: Ints) -> None:
    """A random legal action for every environment."""
    in_parts(cast(Any, batch), lambda first, last, _: _choose_some(batch.seen.legal, batch.envs, actions, first, last))
