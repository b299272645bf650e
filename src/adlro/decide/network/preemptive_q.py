"""`adlro-preemptive`: the network starts jobs; when it waits, `plan` stops, moves and starts jobs.

docs/policies.md has the definition. Who is stopped, and what that costs, is what `plan` says (`rules/plan.py`). A start
that the network does not want is made only for a job that may be stopped again.

Why a moment ends: the network only starts jobs, and once `plan` was asked at a moment it decides until the clock moves.
A job that was started now is not stopped now. So at one moment each job is stopped at most once and started at most
once. A job that has been started more than `timelines.MOST_STARTS` times is not stopped again.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.policy import Choose, Policy
from adlro.core.rules import in_queue, runtime, seen
from adlro.core.tables import FOREVER, NOBODY, START, STOP, WAIT, Choice, Floats, View
from adlro.decide.network.greedy_q import (
    ROWS,
    Mind,
    best_of,
    consider,
    new_mind,
    shipped,
)
from adlro.decide.network.inference import Weights
from adlro.decide.outlook import start_without_gpu
from adlro.decide.rules.plan import plan

RUNS_FOR: Final = 10.0
"""A job that the network would let wait is started by `plan` only if it runs for at least this many restarts there."""

_PLANNED: Final = 0
_STOPPED: Final = 1
"""Indices in the memory of a policy: the moment at which `plan` was last asked, and at which it last stopped a job."""


@compiled
def may_stop_any(view: View) -> bool:
    """Whether any job, running or waiting, may ever be stopped."""
    for i in range(view.clock[0].running):
        if view.jobs[view.running[i]].stoppable != 0:
            return True
    for q in range(seen(view)):
        if view.jobs[in_queue(view, q)].stoppable != 0:
            return True
    return False


@compiled
def is_cheap_to_undo(view: View, choice: Choice) -> bool:
    """Whether a job that is started may be stopped again, and runs so long that a restart matters little."""
    restarts = RUNS_FOR * view.clock[0].restart
    return view.jobs[choice.job].stoppable != 0 and runtime(view, choice.job, choice.site) >= restarts


@compiled_allocating
def by_plan(view: View, memory: Floats) -> Choice:
    """What `plan` does now. Unless it has made room at this moment, it starts only what is cheap to undo."""
    now = view.clock[0].now
    memory[_PLANNED] = now
    if not may_stop_any(view):
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    choice = plan(view)
    if choice.verb == STOP:
        memory[_STOPPED] = now
    if choice.verb == START and memory[_STOPPED] != now and not is_cheap_to_undo(view, choice):
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return choice


@compiled_allocating
def start_or_stop(view: View, mind: Mind, memory: Floats) -> Choice:
    """The network's choice; if that is to wait, what `plan` does, from then on until the clock moves."""
    clock = view.clock[0]
    if memory[_PLANNED] != clock.now and clock.queued > 0:
        choice = start_without_gpu(view)
        if choice.verb != START:
            choice = best_of(view, mind, consider(view, mind))
        if choice.verb == START:
            return choice
    return by_plan(view, memory)


def preemptive_q(weights: Callable[[], Weights], name: str, summary: str) -> Policy:
    """A policy that starts jobs by the network's Q, and otherwise does what `plan` does."""

    def make(view: View, seed: int) -> Choose:
        mind = new_mind(view, weights(), ROWS, is_kept=True)
        memory = np.full(2, -FOREVER)
        own = quick_call(start_or_stop, view, mind, memory)

        def choose(shown: View) -> Choice:
            if shown is view:
                return own()
            mind.outlook.known.fill(NOBODY)  # as in `greedy_q.q_policy`
            choice = start_or_stop(shown, mind, memory)
            mind.outlook.known.fill(NOBODY)
            return choice

        return choose

    return Policy(name, summary, make=make, preemptive=True, heeds_marks=True, needs=("estimate",))


POLICIES: Final = (
    preemptive_q(
        shipped,
        "adlro-preemptive",
        "the Q-network that ships starts jobs; when it waits, plan decides: it may stop, move and start jobs",
    ),
)
