"""The policy of a network that may stop and move jobs: of all starts, claims, moves and waiting, the one with most Q.

A claim or a move is carried out in steps, one for each call at the same moment (`rules/eft_claiming.py`). Why every
moment ends, and how often a job is stopped at most, is in `rules/claiming.py`. Where no job may be stopped there are
only starts.
"""

from pathlib import Path

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_alone, widened
from adlro.core.policy import Choose, Policy
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, View
from adlro.decide.network.greedy_q import ROWS, Mind, new_mind, uses_past, usual_log_weight, worth_of_weight
from adlro.decide.network.inference import Weights, forward
from adlro.decide.network.past import notice_ends, observe_past
from adlro.decide.network.stop_planes import observe_stops
from adlro.decide.outlook import start_without_gpu, wisest
from adlro.decide.rules.claiming import MOVED, Claims, look_around, new_claims
from adlro.decide.rules.eft_claiming import Pending, begin_claim, new_pending, next_step


@compiled_alone
def start_claim_or_move(view: View, mind: Mind, claims: Claims, pending: Pending) -> Choice:
    """The next step of what was begun, or the choice with the highest Q. A job without GPUs starts at once."""
    choice = next_step(view, pending)
    if choice.verb == WAIT:
        choice = start_without_gpu(view)
    if choice.verb != WAIT or look_around(view, mind.outlook, claims, True) == 0:
        return choice
    observe_stops(view, mind.outlook, claims, mind.planes)
    if uses_past(mind.weights):
        notice_ends(view, mind.past)
        observe_past(view, mind.outlook, mind.past, mind.planes)
    forward(mind.planes, mind.outlook.counts[0] + claims.counts[MOVED], mind.weights, mind.scratch, mind.q)
    return best_of_all(view, mind, claims, pending)


@compiled
def best_of_all(view: View, mind: Mind, claims: Claims, pending: Pending) -> Choice:
    """The legal pair with the largest Q, or waiting."""
    pools = len(view.pools)
    waiting = mind.outlook.counts[0]
    chosen = NOBODY
    best = -FOREVER
    usual = usual_log_weight(view, mind)
    for w in range(waiting + claims.counts[MOVED]):
        bonus = worth_of_weight(view, mind.outlook.rows[w], usual)
        for p in range(pools):
            if mind.planes.legal[w, p] != 0:
                value = mind.q[w * pools + p] + bonus
                if value > best:
                    best = value
                    chosen = w * pools + p
    if chosen == NOBODY:
        return wisest(view, mind.outlook)  # Q is NaN for every pair: do what the rule would do
    if view.clock[0].running > 0 and mind.q[len(mind.q) - 1] >= best:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    w, p = chosen // pools, chosen % pools
    if claims.place[w, p] != NOBODY:
        return begin_claim(view, mind.outlook, claims, w, p, pending)
    return Choice(START, widened(mind.outlook.rows[w]), widened(mind.outlook.spot[w, p]), FOREVER)


def stopping_q(weights: Weights, path: Path) -> Policy:
    """The policy of a user's own network that may stop jobs, named after its file."""

    def make(view: View, seed: int) -> Choose:
        mind = new_mind(view, weights, ROWS, is_kept=True)
        room = mind, new_claims(view, ROWS), new_pending(view)
        own = quick_call(start_claim_or_move, view, *room)

        def choose(shown: View) -> Choice:
            if shown is view:
                return own()
            mind.outlook.known.fill(NOBODY)  # as in `greedy_q.q_policy`
            choice = start_claim_or_move(shown, *room)
            mind.outlook.known.fill(NOBODY)
            return choice

        return choose

    return Policy(
        path.stem,
        f"the network of {path.name}, which may stop and move jobs",
        make=make,
        preemptive=True,
        heeds_marks=True,
        needs=("estimate",),
        weighs=True,
    )
