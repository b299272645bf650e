"""`adlro-preemptive`: a network starts, claims and moves; when it waits, `adlro-plan` decides. And with look-ahead.

docs/policies.md has the definitions. The network is one that was trained to stop jobs (`stopping_q.py`). Where no job
may be stopped, the network of `adlro` decides instead; where few jobs wait, `adlro-plan` (`corrected_plan.py`). Who is
stopped, and what that costs, is what `plan` says (`rules/plan.py`, `rules/claiming.py`). A start that the network does
not want is made only for a job that may be stopped again.

Why a moment ends: once `plan` was asked at a moment it decides until the clock moves, and what the network does at a
moment ends too (`rules/claiming.py`). A job that was started now is not stopped now. So at one moment each job is
stopped at most once and started at most once. A job that has been started more than `timelines.MOST_STARTS` times is
not stopped again. Look-ahead chooses among starts and the stops of `plan`, so all this holds for it too.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.driver import made
from adlro.core.policy import Choose, Policy
from adlro.core.rules import in_queue, runtime, seen
from adlro.core.tables import FOREVER, NOBODY, START, STOP, WAIT, Choice, Floats, View
from adlro.decide.checkpoint import read_weights
from adlro.decide.lookahead import MOST_JOBS, Advice, Advise, lookahead
from adlro.decide.lookahead.gathering import jobs_of_world
from adlro.decide.network.corrected_plan import LEARNT_GPUS, corrected_plan, is_learnt
from adlro.decide.network.corrected_plan import POLICIES as RULES
from adlro.decide.network.greedy_q import (
    ROWS,
    Mind,
    advice_by_q,
    best_of,
    consider,
    new_mind,
    q_lookahead,
    shipped,
    shipped_path,
)
from adlro.decide.network.inference import Weights
from adlro.decide.network.readings import no_worth, shipped_worth
from adlro.decide.network.stopping_q import start_claim_or_move
from adlro.decide.outlook import start_without_gpu
from adlro.decide.rules.claiming import Claims, new_claims
from adlro.decide.rules.eft_claiming import Pending, new_pending

RUNS_FOR: Final = 10.0
"""A job that the network would let wait is started by `plan` only if it runs for at least this many restarts there."""

CROWDED: Final = 0.2
"""Waiting jobs for each GPU from which on the network is asked where `plan` has corrections."""

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


@compiled
def is_calm(view: View) -> bool:
    """Whether the network is not asked: the cluster is larger than those of its training, or few jobs wait.

    With few waiting jobs `plan` is better than the network where it has corrections.
    """
    gpus = len(view.gpus)
    return gpus > LEARNT_GPUS or (is_learnt(view) and view.clock[0].queued < CROWDED * gpus)


@compiled_allocating
def by_plan(view: View, memory: Floats) -> Choice:
    """What `plan` does now. Unless it has made room at this moment, it starts only what is cheap to undo."""
    now = view.clock[0].now
    memory[_PLANNED] = now
    if not may_stop_any(view):
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    choice = corrected_plan(view)
    if choice.verb == STOP:
        memory[_STOPPED] = now
    if choice.verb == START and memory[_STOPPED] != now and not is_cheap_to_undo(view, choice):
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return choice


@compiled_allocating
def start_or_stop(view: View, calm: Mind, bold: Mind, claims: Claims, pending: Pending, memory: Floats) -> Choice:
    """What the network does; if it waits, what `adlro-plan` does, from then on until the clock moves.

    On a calm cluster `adlro-plan` decides alone.
    """
    if memory[_PLANNED] == view.clock[0].now:
        return by_plan(view, memory)
    if not may_stop_any(view):
        choice = start_without_gpu(view)
        return choice if choice.verb == START else best_of(view, calm, consider(view, calm))
    if is_calm(view) and pending.moment[0] != view.clock[0].now:
        return corrected_plan(view)
    choice = start_claim_or_move(view, bold, claims, pending)
    return choice if choice.verb != WAIT else by_plan(view, memory)


def preemptive_q(
    calm: Callable[[], Weights],
    bold: Callable[[], Weights],
    name: str,
    summary: str,
    worth: Callable[[], Floats] = no_worth,
) -> Policy:
    """A policy that does what the network `bold` wants, and otherwise what `plan` does.

    Where no job may be stopped, it does what the network `calm` wants, to which readings are worth `worth`.
    """

    def make(view: View, seed: int) -> Choose:
        calmly = new_mind(view, calm(), ROWS, is_kept=True, worth=worth())
        minds = calmly, new_mind(view, bold(), ROWS, is_kept=True)
        room = minds[0], minds[1], new_claims(view, ROWS), new_pending(view), np.full(2, -FOREVER)
        own = quick_call(start_or_stop, view, *room)

        def choose(shown: View) -> Choice:
            if shown is view:
                return own()
            for mind in minds:
                mind.outlook.known.fill(NOBODY)  # as in `greedy_q.q_policy`
            choice = start_or_stop(shown, *room)
            for mind in minds:
                mind.outlook.known.fill(NOBODY)
            return choice

        return choose

    return Policy(name, summary, make=make, preemptive=True, heeds_marks=True, needs=("estimate",), weighs=True)


@cache
def shipped_to_stop() -> Weights:
    """The weights of the network that ships with the package and may stop jobs."""
    return read_weights(shipped_path(), stops=True)[0]


# ---- with look-ahead ---------------------------------------------------------------------------------------------

PAIRS: Final = 4
"""How many pairs of the network are played forward, beside what `plan` does and waiting."""

STOPPING_ADVICE: Final = 15.0
"""How many typical runtimes one unit of Q is worth here; 0 and 15 were tried (docs/results/ablations.md)."""

MOST_REPLANNED: Final = 2_000_000
"""Most jobs² × GPUs × choices that are played forward. `plan` looks at all jobs and GPUs after every job's end."""


def is_too_large(view: View) -> bool:
    """Whether so many jobs on so many GPUs take too long to play forward with `plan`."""
    jobs = jobs_of_world(view, MOST_JOBS)
    return bool(jobs * jobs * len(view.gpus) * (PAIRS + 2) > MOST_REPLANNED)


def stop_adviser(weights: Callable[[], Weights], worth: Callable[[], Floats]) -> Callable[[View], Advise]:
    """The network's best pairs with their regret, and what `adlro-plan` would do, without any."""

    def adviser(view: View) -> Advise:
        mind = new_mind(view, weights(), ROWS, worth=worth())
        by_q, by_rule = quick_call(advice_by_q, view, mind), quick_call(corrected_plan, view)
        room = np.zeros(PAIRS, np.int32), np.zeros(PAIRS, np.int32), np.zeros(PAIRS)

        def advise(shown: View, most: int) -> Advice:
            if shown is view:
                (own, count, waiting, typical_s), planned = by_q(*room), by_rule()
            else:
                (own, count, waiting, typical_s), planned = advice_by_q(shown, mind, *room), corrected_plan(shown)
            jobs, sites, scores = room[0][:count], room[1][:count], room[2][:count]
            best = max(waiting, float(scores[0])) if count else waiting
            unit_s = STOPPING_ADVICE * typical_s
            regret_s: Floats = (best - scores) * unit_s
            if planned.verb != WAIT:
                others = (jobs != planned.job) | (sites != planned.site)
                jobs, sites = np.append(planned.job, jobs[others]), np.append(planned.site, sites[others])
                regret_s = np.append(0.0, regret_s[others])
            first = own if own.verb == START else planned
            return Advice(first, jobs, sites, regret_s, (best - waiting) * unit_s)

        return advise

    return adviser


def preemptive_lookahead(
    calm: Callable[[], Weights],
    bold: Callable[[], Weights],
    name: str,
    summary: str,
    worth: Callable[[], Floats] = no_worth,
) -> Policy:
    """Look-ahead over `adlro-plan` with the network `calm` as adviser.

    Where no job may be stopped it is look-ahead that keeps jobs running; where playing forward takes too long, the
    network and `plan` without look-ahead.
    """
    ahead = lookahead(RULES[0], PAIRS + 1, adviser=stop_adviser(calm, worth), name=name)
    keeping = q_lookahead(calm, name, summary, worth=worth)
    at_once = preemptive_q(calm, bold, name, summary, worth)

    def make(view: View, seed: int) -> Choose:
        chooses = [made(policy, view, seed) for policy in (ahead, keeping, at_once)]

        def choose(shown: View) -> Choice:
            if not may_stop_any(shown):
                return chooses[1](shown)
            return chooses[2 if is_too_large(shown) else 0](shown)

        return choose

    return Policy(name, summary, make=make, preemptive=True, heeds_marks=True, needs=("estimate",), weighs=True)


POLICIES: Final = (
    preemptive_q(
        shipped,
        shipped_to_stop,
        "adlro-preemptive",
        "a Q-network starts, claims and moves jobs; when it waits or few jobs wait, adlro-plan decides",
        shipped_worth,
    ),
    preemptive_lookahead(
        shipped,
        shipped_to_stop,
        "adlro-preemptive-lookahead",
        "simulates the choices of the network and of adlro-plan, which decides on, and takes the best",
        shipped_worth,
    ),
)
