"""Many simulated clusters side by side, each stepped to its next decision in one compiled call.

A *world* is a cluster with a menu of jobs, made once by `draw.py`; an *environment* is a run in progress on a world.
When an episode ends, a new world, load and jobs are drawn in the same call. Observations are written without a copy
into arrays that the caller keeps.

The reward is minus the time that all jobs spend in the system until the next decision. With `shaped` it is relative to
the rule `eft-reserving`: what the choice gains or loses if the rule makes all later decisions, found by playing both on
with the same future. The task stays the same, because the sum of these gains is what the policy gains over the rule.
But a choice that agrees with the rule gets exactly 0, instead of a large number that says little about the choice. With
`ahead` the future ends after that many further jobs: the effect of one choice on much later jobs is mostly noise, which
would hide the rest.

If jobs may be stopped in some episodes (`Draw.stops`), an action may also be a claim or a move (`stopping.py`), and the
rule is `eft-claiming`.

Over 500 lines: the steps and the starts exist in two versions, with and without stops, and each lists its arguments.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numba

from adlro.core.compiled import compiled, compiled_alone, is_compiled, widened
from adlro.core.engine import OVER, Truth, advance, apply, is_asked, next_moment, set_asked
from adlro.core.rules import has_room
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Ints, View
from adlro.decide.network.past import forget, notice_ends, observe_past
from adlro.decide.network.planes import Bytes, Planes, observe
from adlro.decide.outlook import Outlook, is_worth_a_look, look, wisest
from adlro.decide.rules.claiming import MOVES
from adlro.learn.worlds.envs import (
    Came,
    Draw,
    Envs,
    Foreseen,
    Seen,
    Worlds,
    came_for,
    copy_state,
    envs_for,
    foreseen_for,
    outlook_of,
    past_of,
    planes_of,
    seen_for,
    truth_of,
    view_of,
)
from adlro.learn.worlds.episodes import area, begin_episode, chance
from adlro.learn.worlds.stopping import act_or_stop, claims_of, move_on_or_stop, observe_stops_here

TOGETHER: Final = 16
"""The number of jobs that choices are judged by is rounded up to a multiple of this."""

TURNS_OF_A_THREAD: Final = 4
"""Parts of the environments that each thread takes in a step with `shaped` rewards.

There, some environments take a hundred times as long as others. Other steps use one part for each thread, because
threads that return often wait for each other at the interpreter's lock.
"""

APART: Final = 16
"""Distance in rows between the spare rows of two threads.

If they were adjacent, threads would write to the same cache lines and wait for each other. At this distance even arrays
with one number in a row use different cache lines.
"""

BY_CHANCE: Final = -2
"""Used as an action: draw a legal one at random. The step overwrites it with the action taken."""


# ---- a step ------------------------------------------------------------------------------------------------------


@compiled
def move_on(view: View, truth: Truth, outlook: Outlook, whole: bool) -> float:
    """Move on to the next legal pair; returns the job time t (s) on the way, or -1 - t if the run is over.

    Without `whole`, only the part of the outlook that the rule needs is filled.
    """
    total = 0.0
    clock = view.clock[0]
    while True:
        if is_asked(truth):
            truth.progress[0].events = 0  # these are only starts, no ends; many at one moment might fill the log
            if clock.queued > 0 and has_room(view) and is_worth_a_look(view) and look(view, outlook, whole) > 0:
                return total
            set_asked(view, truth, False)
        before, jobs, arrived = clock.now, clock.queued + clock.running, clock.arrived
        status = advance(view, truth)
        total += area(view, truth, before, jobs, arrived)
        if status == OVER:
            return -1.0 - total


# It is long and has several callers, so it is compiled once instead of into each of them.
@compiled_alone
def cost_after(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, spare: int, limit: int, choice: Choice) -> float:
    """Job time (s) until the first `limit` jobs end, if the rule decides after this choice. Played in a spare row."""
    copy_state(worlds, envs, b, spare, limit)
    view = view_of(worlds, envs, b, spare, limit)
    truth = truth_of(worlds, envs, b, spare)
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
    """How many jobs of the episode a choice is judged by. Equal for several choices, to reuse costs."""
    if draw.ahead == 0:
        return jobs
    until = arrived + draw.ahead + gpus // 4
    return min(jobs, until + (TOGETHER - until % TOGETHER) % TOGETHER)


@compiled
def _step_one(
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
    act: Any,
    begin: Any,
    look: Any,
) -> None:
    """Take one action in one environment, and move on to its next decision."""
    passed = act(worlds, envs, foreseen, legal, came, action, planes.pools.shape[0], draw, b, spare)
    _finish_step(worlds, envs, foreseen, planes, legal, came, draw, b, passed, begin, look)


@compiled
def _act_or_stop(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    legal: Bytes,
    came: Came,
    action: int,
    pools: int,
    draw: Draw,
    b: int,
    spare: int,
) -> float:
    """Like `_act`, where jobs may be stopped."""
    until = judged_until(envs.clock[b, 0].arrived, envs.state[b].jobs, worlds.info[envs.state[b].world].gpus, draw)
    return act_or_stop(worlds, envs, foreseen, legal, came, action, pools, draw.shaped, until, b, spare)


@compiled
def _look(view: View, foreseen: Foreseen, b: int, planes: Planes) -> None:
    """Write what is seen now."""
    observe(view, outlook_of(foreseen, b), planes)


@compiled
def _look_at_stops(view: View, foreseen: Foreseen, b: int, planes: Planes) -> None:
    """Like `_look`, where jobs may be stopped."""
    observe_stops_here(view, outlook_of(foreseen, b), claims_of(foreseen, b), planes)


@compiled
def _act(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    legal: Bytes,
    came: Came,
    action: int,
    pools: int,
    draw: Draw,
    b: int,
    spare: int,
) -> float:
    """Start a job or wait, write the shaped reward, and move on as `move_on` does."""
    state = envs.state[b]
    view = view_of(worlds, envs, b, b)
    truth = truth_of(worlds, envs, b, b)
    outlook = outlook_of(foreseen, b)
    info = worlds.info[state.world]
    choice = Choice(WAIT, NOBODY, NOBODY, FOREVER)
    if 0 <= action < len(legal) - 1 and legal[action] != 0:
        w = action // pools
        s = outlook.spot[w, action % pools]
        choice = Choice(START, widened(outlook.rows[w]), widened(s), FOREVER)
    rule = wisest(view, outlook)
    if choice.verb == WAIT and next_moment(view, truth) == FOREVER:
        choice = rule  # nothing runs and nothing will arrive: waiting would leave the jobs undone
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
    came.reward[b] = reward
    came.agreed[b] = agreed
    apply(view, truth, choice)
    return move_on(view, truth, outlook, True)


@compiled
def _finish_step(
    worlds: Worlds,
    envs: Envs,
    foreseen: Foreseen,
    planes: Planes,
    legal: Bytes,
    came: Came,
    draw: Draw,
    b: int,
    passed: float,
    begin: Any,
    look: Any,
) -> None:
    """Write the other results of a step, begin a new episode if this one is over, and write what is seen now."""
    state = envs.state[b]
    info = worlds.info[state.world]
    over = passed < 0.0
    if over:
        passed = -1.0 - passed
    state.cost -= passed
    if not draw.shaped:
        came.reward[b] = -passed / info.unit
    state.episode_cost += passed
    state.steps += 1
    came.raw[b] = -passed / info.unit
    came.done[b] = over
    came.score[b] = 0.0
    if over:
        came.score[b] = state.episode_cost / state.jobs / info.unit
        state.finished += 1
        begin(worlds, envs, foreseen, b, draw)
    view = view_of(worlds, envs, b, b)
    look(view, foreseen, b, planes)
    if draw.similar:
        notice_ends(view, past_of(envs, b))
        observe_past(view, outlook_of(foreseen, b), past_of(envs, b), planes)
    legal[len(legal) - 1] = may_wait(view)


@compiled
def _move(view: View, truth: Truth, foreseen: Foreseen, b: int) -> float:
    """Move on to the next decision."""
    return move_on(view, truth, outlook_of(foreseen, b), True)


@compiled
def _move_where_jobs_stop(view: View, truth: Truth, foreseen: Foreseen, b: int) -> float:
    """Like `_move`, where jobs may be stopped."""
    return move_on_or_stop(view, truth, outlook_of(foreseen, b), claims_of(foreseen, b), True)


@compiled
def _start_over_with(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, draw: Draw, move: Any) -> None:
    """Begin an episode that has a decision, and move on to that decision."""
    while True:
        begin_episode(worlds, envs, b, draw)
        if draw.similar:
            forget(past_of(envs, b))
        view, truth = view_of(worlds, envs, b, b), truth_of(worlds, envs, b, b)
        passed = move(view, truth, foreseen, b)
        if passed >= 0.0:
            envs.state[b].episode_cost += passed
            return


# These are long and rarely called, so they are compiled separately. What every step calls is compiled into the step,
# because passing a view takes time. Worlds without stops have versions of their own, which compile in half the time.
@compiled_alone
def _start_over(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, draw: Draw) -> None:
    """Begin an episode in which no job is stopped."""
    _start_over_with(worlds, envs, foreseen, b, draw, _move)


@compiled_alone
def _start_over_with_stops(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, draw: Draw) -> None:
    """Begin an episode in which jobs may be stopped."""
    _start_over_with(worlds, envs, foreseen, b, draw, _move_where_jobs_stop)


@compiled
def may_wait(view: View) -> bool:
    """Whether waiting is a legal action: only while something runs, because otherwise nothing would happen."""
    return view.clock[0].running > 0


@compiled
def _step_with(
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
    act: Any,
    begin: Any,
    look: Any,
) -> None:
    """Step the environments from `first` to `last` - 1, with one spare row for playing ahead."""
    for b in range(first, last):
        if actions[b] == BY_CHANCE:
            actions[b] = legal_by_chance(seen.legal[b], envs.state[b])
        planes, legal = planes_of(seen, b), seen.legal[b]
        _step_one(worlds, envs, foreseen, planes, legal, came, actions[b], draw, b, spare, act, begin, look)


@compiled_alone
def _step_some(
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
    """Step environments in which no job is stopped."""
    _step_with(worlds, envs, foreseen, seen, came, actions, draw, first, last, spare, _act, _start_over, _look)


@compiled_alone
def _step_some_with_stops(
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
    """Step environments in which jobs may be stopped."""
    act, begin, look = _act_or_stop, _start_over_with_stops, _look_at_stops
    _step_with(worlds, envs, foreseen, seen, came, actions, draw, first, last, spare, act, begin, look)


@compiled
def _start_with(
    worlds: Worlds, envs: Envs, foreseen: Foreseen, seen: Seen, draw: Draw, first: int, last: int, begin: Any, look: Any
) -> None:
    """Begin episodes in the environments from `first` to `last` - 1."""
    for b in range(first, last):
        begin(worlds, envs, foreseen, b, draw)
        view = view_of(worlds, envs, b, b)
        look(view, foreseen, b, planes_of(seen, b))
        seen.legal[b, seen.legal.shape[1] - 1] = may_wait(view)


@compiled_alone
def _start_some(worlds: Worlds, envs: Envs, foreseen: Foreseen, seen: Seen, draw: Draw, first: int, last: int) -> None:
    """Begin episodes in which no job is stopped."""
    _start_with(worlds, envs, foreseen, seen, draw, first, last, _start_over, _look)


@compiled_alone
def _start_some_with_stops(
    worlds: Worlds, envs: Envs, foreseen: Foreseen, seen: Seen, draw: Draw, first: int, last: int
) -> None:
    """Begin episodes in which jobs may be stopped."""
    _start_with(worlds, envs, foreseen, seen, draw, first, last, _start_over_with_stops, _look_at_stops)


@compiled
def legal_by_chance(legal: Bytes, state: Any) -> int:
    """A random legal action."""
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
def _choose_some(seen: Seen, envs: Envs, actions: Ints, first: int, last: int) -> None:
    """A random legal action for each environment."""
    for b in range(first, last):
        actions[b] = legal_by_chance(seen.legal[b], envs.state[b])


# ---- for Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Many environments and their observations. `step` changes everything in place."""

    worlds: Worlds
    envs: Envs
    foreseen: Foreseen
    seen: Seen
    came: Came
    draw: Draw
    threads: ThreadPoolExecutor
    workers: int
    versions: dict[Any, Any]  # compiled versions of `_step_some`, by the type of the actions

    @property
    def count(self) -> int:
        """Number of environments."""
        return len(self.came.done)

    @property
    def actions(self) -> int:
        """Number of actions. The last one is waiting."""
        return self.seen.legal.shape[1]


def make_batch(
    worlds: Worlds, count: int, jobs: int, rows: int, pools: int, draw: Draw, seed: int, workers: int | None = None
) -> Batch:
    """Make `count` environments of `jobs` jobs each, at their first decision.

    If jobs may be stopped in some episodes, observations have MOVES more rows, for running jobs.
    """
    stops = draw.stops > 0.0
    rows = rows + MOVES if stops else rows
    workers = workers or os.cpu_count() or 1
    total = count + APART * workers
    envs = envs_for(worlds, count, total, jobs, seed, draw.similar)
    batch = Batch(
        worlds,
        envs,
        foreseen_for(total, rows, worlds, stops),
        seen_for(count, rows, pools, stops),
        came_for(count),
        draw,
        ThreadPoolExecutor(workers),
        workers,
        {},
    )
    start_all(batch)
    return batch


def start_all(batch: Batch) -> None:
    """Begin a new episode in every environment, from the random states in `envs.state.random`."""
    start = _start_some_with_stops if batch.draw.stops > 0.0 else _start_some
    start(batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.draw, 0, batch.count)


def step(batch: Batch, actions: Ints) -> None:
    """Take one action in every environment, on all threads. `came` has the results, `seen` the new observations.

    Illegal actions count as waiting. For BY_CHANCE a legal action is drawn and written in its place.
    """
    ours = batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.came
    kind = numba.typeof(actions)
    if kind not in batch.versions:
        step_some = _step_some_with_stops if batch.draw.stops > 0.0 else _step_some
        batch.versions[kind] = version_for(step_some, *ours, actions, batch.draw, 0, 0, 0)
    version = batch.versions[kind]

    def some(first: int, last: int, worker: int) -> None:
        version(*ours, actions, batch.draw, first, last, spare_row(batch.count, worker))

    in_parts(batch, some, TURNS_OF_A_THREAD if batch.draw.shaped else 1)


def spare_row(count: int, worker: int) -> int:
    """The row in which a thread plays ahead. These rows follow those of the environments."""
    return count + APART * (worker + 1) - 1


def version_for(function: Any, *arguments: Any) -> Any:
    """The compiled version of a function for arguments of these types.

    Numba selects it by looking at each of a hundred arrays. That takes 16 of the 17 µs of an empty call (EPYC, 2
    cores), and no other thread can do the same meanwhile.
    """
    return function.compile(tuple(map(numba.typeof, arguments))) if is_compiled(function) else function


def choose_by_chance(batch: Batch, actions: Ints) -> None:
    """A random legal action for every environment."""
    in_parts(batch, lambda first, last, _: _choose_some(batch.seen, batch.envs, actions, first, last))


def in_parts(batch: Batch, work: Any, turns: int = 1) -> None:
    """Do `work` for all environments: this thread and the others take the next part until none is left."""
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
        if not other.cancel():  # it has begun, so it may still be working
            other.result()
