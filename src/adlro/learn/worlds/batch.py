"""Many simulated clusters side by side, each stepped to its next decision in one compiled call.

A *world* is a cluster with a menu of jobs, made once by `draw.py`; an *environment* is a run in progress on a world.
An environment that ends draws a new world, load and jobs inside the same call. Observations are written into arrays
that the caller keeps, without a copy.

The reward is minus the time that all jobs spend in the system until the next decision. With `shaped` it is compared
with the rule `eft-reserving`: what the choice gains or loses if the rule decides everything afterwards, found by
playing both on with the same future. That is the same task (the sum of what the choices of a policy gain over the
rule's is what the policy gains over the rule), but a choice that agrees with the rule gets exactly 0 instead of a large
number that says little about the choice. With `ahead` the future ends with the next so many jobs to come: what one
choice does to jobs that come much later is mostly chance, and would drown the rest.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np

from adlro.core.compiled import compiled, compiled_alone, is_compiled, widened
from adlro.core.engine import OVER, Truth, advance, apply, is_asked, next_moment, set_asked
from adlro.core.rules import has_room
from adlro.core.tables import DONE, FOREVER, NOBODY, OVERRAN, START, WAIT, Choice, Ints, View
from adlro.decide.network.past import forget, notice_ends, observe_past
from adlro.decide.network.planes import Bytes, Planes, observe
from adlro.decide.outlook import Outlook, is_worth_a_look, look, wisest
from adlro.learn.worlds.envs import (
    Came,
    Draw,
    Envs,
    Foreseen,
    Seen,
    Worlds,
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
from adlro.learn.worlds.episodes import begin_episode, chance

TOGETHER: Final = 16
"""The jobs that choices are judged by grow by so many at once."""

TURNS_OF_A_THREAD: Final = 4
"""How often each thread takes some of the environments in a step that plays ahead: some take a hundred times as long as
others. Else it takes its part at once: threads that come back often wait for each other at the interpreter's lock."""

APART: Final = 16
"""Rows from one thread's spare row to the next: side by side, threads would write to the same lines of the processors'
caches, and wait for each other. So even arrays with one number in a row have a line between two of them."""

BY_CHANCE: Final = -2
"""In place of an action: any legal one. The step writes down which it took."""


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
        if is_asked(truth):
            truth.progress[0].events = 0  # starts of this moment: no end is among them, and many might fill the log
            if clock.queued > 0 and has_room(view) and is_worth_a_look(view) and look(view, outlook, whole) > 0:
                return total
            set_asked(view, truth, False)
        before, jobs, arrived = clock.now, clock.queued + clock.running, clock.arrived
        status = advance(view, truth)
        total += area(view, truth, before, jobs, arrived)
        if status == OVER:
            return -1.0 - total


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
        _start_over(worlds, envs, foreseen, b, draw)
        view = view_of(worlds, envs, b, b)
    observe(view, outlook, planes)
    if draw.similar:
        notice_ends(view, past_of(envs, b))
        observe_past(view, outlook, past_of(envs, b), planes)
    legal[len(legal) - 1] = may_wait(view)


# It is long and seldom called. What each step calls is compiled into it: to hand over a view takes its time.
@compiled_alone
def _start_over(worlds: Worlds, envs: Envs, foreseen: Foreseen, b: int, draw: Draw) -> None:
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
    """Step the environments from `first` to before `last`, with one spare row to play ahead in."""
    for b in range(first, last):
        if actions[b] == BY_CHANCE:
            actions[b] = legal_by_chance(seen.legal[b], envs.state[b])
        _step_one(worlds, envs, foreseen, planes_of(seen, b), seen.legal[b], came, actions[b], draw, b, spare)


@compiled_alone
def _start_some(worlds: Worlds, envs: Envs, foreseen: Foreseen, seen: Seen, draw: Draw, first: int, last: int) -> None:
    """Begin episodes in the environments from `first` to before `last`."""
    for b in range(first, last):
        _start_over(worlds, envs, foreseen, b, draw)
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
def _choose_some(seen: Seen, envs: Envs, actions: Ints, first: int, last: int) -> None:
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
    versions: dict[Any, Any]  # of `_step_some`, by the type of the actions

    @property
    def count(self) -> int:
        """How many environments there are."""
        return len(self.came.done)

    @property
    def actions(self) -> int:
        """How many actions there are, waiting included; it is the last."""
        return self.seen.legal.shape[1]


def make_batch(
    worlds: Worlds, count: int, jobs: int, rows: int, pools: int, draw: Draw, seed: int, workers: int | None = None
) -> Batch:
    """So many environments of so many jobs each, at their first decision."""
    workers = workers or os.cpu_count() or 1
    total = count + APART * workers
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


def start_all(batch: Batch) -> None:
    """Begin a new episode in every environment, by the states of their generators (`envs.state.random`)."""
    _start_some(batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.draw, 0, batch.count)


def step(batch: Batch, actions: Ints) -> None:
    """Take one action in every environment, on all threads; `came` says what came of it, `seen` what is seen now.

    An action that may not be counts as waiting. Where it is BY_CHANCE a legal one is drawn, and written in its place.
    """
    ours = batch.worlds, batch.envs, batch.foreseen, batch.seen, batch.came
    kind = numba.typeof(actions)
    if kind not in batch.versions:
        batch.versions[kind] = version_for(_step_some, *ours, actions, batch.draw, 0, 0, 0)
    version = batch.versions[kind]

    def some(first: int, last: int, worker: int) -> None:
        version(*ours, actions, batch.draw, first, last, spare_row(batch.count, worker))

    in_parts(batch, some, TURNS_OF_A_THREAD if batch.draw.shaped else 1)


def spare_row(count: int, worker: int) -> int:
    """The row in which a thread plays ahead, behind so many environments."""
    return count + APART * (worker + 1) - 1


def version_for(function: Any, *arguments: Any) -> Any:
    """The compiled version of a function for arguments of these types.

    To choose it Numba looks at each of a hundred arrays: 16 of the 17 µs of a call for no environments (an EPYC, 2
    cores), in which no other thread may do the same.
    """
    return function.compile(tuple(map(numba.typeof, arguments))) if is_compiled(function) else function


def choose_by_chance(batch: Batch, actions: Ints) -> None:
    """A legal action by chance for every environment."""
    in_parts(batch, lambda first, last, _: _choose_some(batch.seen, batch.envs, actions, first, last))


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
