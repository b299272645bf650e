"""The rule `eft-claiming`, and how a claim or a move is done step by step.

The rule starts jobs as `eft-reserving` does. When that rule waits, the claim or move with the largest gain beyond its
loss is made. Rewards of a training in which jobs may be stopped are measured against it.
"""

from typing import Final, NamedTuple

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_allocating, compiled_alone, widened
from adlro.core.policy import Choose, Policy
from adlro.core.rules import fits
from adlro.core.tables import FOREVER, NOBODY, QUEUED, RUNNING, START, STOP, WAIT, Choice, Floats, Ints, View
from adlro.decide.outlook import WISEST, Outlook, new_outlook, start_without_gpu
from adlro.decide.rules.claiming import BEST_STOP, MOVES, Claims, fill_victims, look_around, new_claims

_ROWS: Final = 16
"""How many waiting jobs the rule looks at, as `eft-reserving` does."""


class Pending(NamedTuple):
    """A claim or move that was begun: the policy is asked again after each stop."""

    moment: Floats  # [1] when it was begun; -FOREVER: none is pending
    steps: Ints  # [3 + G + 1] number of jobs still to be stopped, the job to start, its site, and the former


@compiled_allocating
def new_pending(view: View) -> Pending:
    """Nothing is pending."""
    return Pending(np.full(1, -FOREVER), np.zeros(len(view.gpus) + 4, np.int32))


@compiled
def begin_claim(view: View, outlook: Outlook, claims: Claims, w: int, p: int, pending: Pending) -> Choice:
    """Begin the claim or move of this pair; returns its first step."""
    count = fill_victims(view, outlook, claims, w, p)
    pending.moment[0] = view.clock[0].now
    pending.steps[0] = count
    pending.steps[1] = outlook.rows[w]
    pending.steps[2] = claims.place[w, p]
    for k in range(count):
        pending.steps[3 + k] = claims.victims[k]
    return next_step(view, pending)


@compiled
def next_step(view: View, pending: Pending) -> Choice:
    """The next step of what was begun at this moment: a stop, then the start. WAIT if nothing is pending."""
    if pending.moment[0] == view.clock[0].now:
        while pending.steps[0] > 0:
            pending.steps[0] -= 1
            v = pending.steps[3 + pending.steps[0]]
            if view.runs[v].state == RUNNING and view.jobs[v].stoppable != 0:
                return Choice(STOP, widened(v), NOBODY, FOREVER)
        j, s = pending.steps[1], pending.steps[2]
        pending.moment[0] = -FOREVER
        if view.runs[j].state == QUEUED and fits(view, j, s):
            return Choice(START, widened(j), widened(s), FOREVER)
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)


# ---- the rule ----------------------------------------------------------------------------------------------------


@compiled_alone
def choose_by_rule(view: View, outlook: Outlook, claims: Claims, pending: Pending) -> Choice:
    """Start as `eft-reserving` does; if that rule waits, make the claim or move that gains most."""
    choice = next_step(view, pending)
    if choice.verb != WAIT:
        return choice
    choice = start_without_gpu(view)
    if choice.verb == START or look_around(view, outlook, claims, False) == 0:
        return choice
    w = outlook.counts[WISEST]
    if w != NOBODY:
        p = outlook.counts[WISEST + 1]
        return Choice(START, widened(outlook.rows[w]), widened(outlook.spot[w, p]), FOREVER)
    w = claims.counts[BEST_STOP]
    if w == NOBODY:
        return choice
    return begin_claim(view, outlook, claims, w, claims.counts[BEST_STOP + 1], pending)


def _make(view: View, seed: int) -> Choose:
    """The rule for one run, with what it has begun."""
    room = new_outlook(view, _ROWS + MOVES), new_claims(view, _ROWS), new_pending(view)
    own = quick_call(choose_by_rule, view, *room)

    def choose(shown: View) -> Choice:
        return own() if shown is view else choose_by_rule(shown, *room)

    return choose


POLICIES: Final = (
    Policy(
        "eft-claiming",
        "as eft-reserving; when that waits, a waiting job takes the place of running ones, or a running one moves",
        make=_make,
        preemptive=True,
        heeds_marks=True,
        needs=("estimate",),
        weighs=True,
    ),
)
