"""The learned policy: the legal pair, or waiting, with the highest Q; alone and with look-ahead."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled, compiled_allocating, compiled_alone, widened
from adlro.core.policy import Choose, Policy
from adlro.core.rules import weight_of
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Floats, Ints, View
from adlro.decide.checkpoint import read_weights
from adlro.decide.lookahead import Advice, Advise, lookahead
from adlro.decide.network.inference import Scratch, Weights, forward, knows_stops, new_scratch
from adlro.decide.network.past import Past, new_past, notice_ends, observe_past
from adlro.decide.network.planes import LIKENESS, Planes, new_planes, observe
from adlro.decide.network.readings import add_worth, is_read, no_worth, shipped_worth
from adlro.decide.outlook import POLICIES as RULES
from adlro.decide.outlook import Outlook, look, new_outlook, quick_log, start_without_gpu, wisest
from adlro.decide.rules.claiming import MOVES

ROWS: Final = 32
"""Number of jobs that the network sees: twice as many as in training. Its weights do not depend on the number."""


class Mind(NamedTuple):
    """The arrays that the network uses at a decision, kept between decisions."""

    outlook: Outlook
    planes: Planes
    weights: Weights
    scratch: Scratch
    past: Past
    q: Floats  # [rows * pools + 1] by pair; the last one is waiting
    bonus: Floats  # [rows * pools] what is added to it, for what the network does not see
    worth: Floats  # [R, S] what readings of GPUs are worth (readings.py)


TRIED: Final = 512
"""GPUs of the largest clusters on which the network was compared with rules. Beyond that the rule's part in Q grows."""


KEPT_FROM: Final = 1024
"""From this number of GPUs on, the outlook is kept between decisions and updated where something has changed."""


def new_mind(view: View, weights: Weights, rows: int, is_kept: bool = False, worth: Floats | None = None) -> Mind:
    """Arrays for the decisions of one run; of one view only if `is_kept` (`outlook.new_outlook`).

    On thousands of GPUs one choice changes less than the network can resolve, and alone it did worse than plain rules.
    So the rule's weight grows with the size of the cluster beyond TRIED.
    """
    more = np.float32(max(1.0, len(view.gpus) / TRIED))
    mine = weights._replace(trust=weights.trust * more)
    known = no_worth() if worth is None else worth
    return room_for(view, mine, rows, is_kept and len(view.gpus) >= KEPT_FROM, known)


@compiled_allocating
def room_for(view: View, weights: Weights, rows: int, is_kept: bool, worth: Floats) -> Mind:
    """Allocate the arrays of a mind."""
    pools = len(view.pools)
    stops = knows_stops(weights)
    every = rows + MOVES if stops else rows
    return Mind(
        new_outlook(view, every, is_kept),
        new_planes(every, pools, stops),
        weights,
        new_scratch(every, pools, len(weights.first)),
        new_past(view),
        np.zeros(every * pools + 1),
        np.zeros(every * pools),
        worth,
    )


@compiled
def uses_past(weights: Weights) -> bool:
    """Whether the network was trained with the memory of good placements; if not, its weights for it are 0."""
    row = weights.pair[LIKENESS]
    for o in range(len(row)):
        if row[o] != 0.0:
            return True
    return False


ADVICE: Final = 40.0
"""How many typical runtimes one unit of Q is worth in look-ahead.

Chosen from 1, 5, 15, 40, 100 and 250 (docs/results/ablations.md). The unit of Q is what a choice usually gains or loses
in training, not seconds.
"""


@compiled
def consider(view: View, mind: Mind) -> int:
    """Compute Q of every pair that may start now, and of waiting; returns the number of such pairs."""
    legal = look(view, mind.outlook)
    remembers = uses_past(mind.weights)
    if remembers:
        notice_ends(view, mind.past)
    if legal > 0:
        observe(view, mind.outlook, mind.planes)
        if remembers:
            observe_past(view, mind.outlook, mind.past, mind.planes)
        forward(mind.planes, mind.outlook.counts[0], mind.weights, mind.scratch, mind.q)
    return legal


WORTH_OF_WEIGHT: Final = 0.05
"""How much Q a job's weight is worth, for each factor of e against the usual weight of the waiting jobs.

Chosen from 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2 and 4 (docs/decisions.md).
"""


@compiled
def usual_log_weight(view: View, mind: Mind) -> float:
    """The mean logarithm of the weights of the rows; 0 if all jobs count the same."""
    rows = mind.outlook.counts[0]
    if view.clock[0].weighted == 0 or rows == 0:
        return 0.0
    logs = 0.0
    for w in range(rows):
        logs += quick_log(weight_of(view, mind.outlook.rows[w]))
    return logs / rows


@compiled
def worth_of_weight(view: View, j: int, usual: float) -> float:
    """What is added to Q of a job's pairs where jobs count by their priority; the network was trained without it."""
    return 0.0 if view.clock[0].weighted == 0 else WORTH_OF_WEIGHT * (quick_log(weight_of(view, j)) - usual)


@compiled
def fill_bonus(view: View, mind: Mind) -> None:
    """Fill in what is added to Q of each legal pair: for the weight of the job, and for what is read of the GPUs."""
    pools = len(view.pools)
    usual = usual_log_weight(view, mind)
    reads = is_read(view)
    for w in range(mind.outlook.counts[0]):
        own = worth_of_weight(view, mind.outlook.rows[w], usual)
        for p in range(pools):
            mind.bonus[w * pools + p] = own
        if reads:
            add_worth(view, mind.outlook, w, mind.worth, mind.bonus)


@compiled_alone
def best_by_q(view: View, mind: Mind) -> Choice:
    """The legal pair with the highest Q, or wait. A job without GPUs starts at once."""
    free = start_without_gpu(view)
    return free if free.verb == START else best_of(view, mind, consider(view, mind))


@compiled
def best_of(view: View, mind: Mind, legal: int) -> Choice:
    """The legal pair with the largest Q, or waiting; `legal` is the number of legal pairs."""
    if legal == 0:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    pools = len(view.pools)
    chosen = NOBODY
    best = -FOREVER
    fill_bonus(view, mind)
    for w in range(mind.outlook.counts[0]):
        for p in range(pools):
            if mind.outlook.spot[w, p] != NOBODY:
                value = mind.q[w * pools + p] + mind.bonus[w * pools + p]
                if value > best:
                    best = value
                    chosen = w * pools + p
    if chosen == NOBODY:
        return wisest(view, mind.outlook)  # Q is NaN for every pair: do what the rule would do
    if view.clock[0].running > 0 and mind.q[len(mind.q) - 1] >= best:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    w = chosen // pools
    return Choice(START, widened(mind.outlook.rows[w]), widened(mind.outlook.spot[w, chosen % pools]), FOREVER)


@compiled_alone
def advice_by_q(view: View, mind: Mind, jobs: Ints, sites: Ints, scores: Floats) -> tuple[Choice, int, float, float]:
    """Fill in the legal pairs with the largest Q, the best first.

    Returns the network's own choice, the number of pairs, Q of waiting, and the typical runtime.
    """
    free = start_without_gpu(view)
    legal = consider(view, mind)
    count = fill_by_q(view, mind, jobs, sites, scores) if legal > 0 else 0
    first = free if free.verb == START else best_of(view, mind, legal)
    return first, count, mind.q[len(mind.q) - 1], mind.outlook.unit[0]


@compiled
def fill_by_q(view: View, mind: Mind, jobs: Ints, sites: Ints, scores: Floats) -> int:
    """Fill in the legal pairs with the largest Q, the best first; returns their number."""
    pools = len(view.pools)
    count = 0
    fill_bonus(view, mind)
    for w in range(mind.outlook.counts[0]):
        for p in range(pools):
            if mind.outlook.spot[w, p] == NOBODY:
                continue
            score = mind.q[w * pools + p] + mind.bonus[w * pools + p]
            if count == len(jobs) and score <= scores[count - 1]:
                continue
            at = count if count < len(jobs) else count - 1
            count = min(count + 1, len(jobs))
            while at > 0 and scores[at - 1] < score:
                jobs[at] = jobs[at - 1]
                sites[at] = sites[at - 1]
                scores[at] = scores[at - 1]
                at -= 1
            jobs[at] = mind.outlook.rows[w]
            sites[at] = mind.outlook.spot[w, p]
            scores[at] = score
    return count


def q_policy(weights: Callable[[], Weights], name: str, summary: str, worth: Callable[[], Floats] = no_worth) -> Policy:
    """A policy that takes the choice with the highest Q. The weights are loaded when a run begins."""

    def make(view: View, seed: int) -> Choose:
        mind = new_mind(view, weights(), ROWS, is_kept=True, worth=worth())
        best = quick_call(best_by_q, view, mind)

        def choose(shown: View) -> Choice:
            if shown is view:
                return best()
            # A copy, in which other things have happened: what was foreseen is worth nothing, there and here.
            mind.outlook.known.fill(NOBODY)
            choice = best_by_q(shown, mind)
            mind.outlook.known.fill(NOBODY)
            return choice

        return choose

    return Policy(name, summary, make=make, needs=("estimate",), weighs=True)


def q_lookahead(
    weights: Callable[[], Weights],
    name: str,
    summary: str,
    budget_s: float = FOREVER,
    worth: Callable[[], Floats] = no_worth,
) -> Policy:
    """Look-ahead over the rule `eft-reserving` with the network as adviser: its Q is added to the cost."""

    def adviser(view: View) -> Advise:
        mind = new_mind(view, weights(), ROWS, worth=worth())
        own = quick_call(advice_by_q, view, mind)
        room: dict[int, tuple[Ints, Ints, Floats]] = {}

        def advise(shown: View, most: int) -> Advice:
            if most not in room:
                room[most] = np.zeros(most, np.int32), np.zeros(most, np.int32), np.zeros(most)
            jobs, sites, scores = room[most]
            by_q = own if shown is view else quick_call(advice_by_q, shown, mind)
            first, count, waiting, typical_s = by_q(jobs, sites, scores)
            best = max(waiting, float(scores[0])) if count else waiting
            unit_s = ADVICE * typical_s
            regret_s = (best - scores[:count]) * unit_s
            return Advice(first, jobs[:count], sites[:count], regret_s, (best - waiting) * unit_s)

        return advise

    found = lookahead(RULES[0], adviser=adviser, budget_s=budget_s, name=name)
    return replace(found, summary=summary)


# ---- the checkpoint that ships -----------------------------------------------------------------------------------


@cache
def shipped() -> Weights:
    """The weights that ship with the package."""
    return read_weights(shipped_path())[0]


def shipped_path() -> Path:
    """The path of the checkpoint that ships with the package."""
    return Path(str(resources.files("adlro.decide").joinpath("checkpoints", "adlro.safetensors")))


def policy_of_readings(worth: Floats, path: Path) -> Policy:
    """The policy `adlro` with a user's own weights of readings, named after its file."""
    summary = f"the network that ships, with readings that are worth what {path.name} says"
    return q_policy(shipped, path.stem, summary, lambda: worth)


def policy_of_weights(weights: Weights, path: Path) -> Policy:
    """The policy of a user's own network that never stops a job, named after its file."""
    return q_policy(lambda: weights, path.stem, f"the network of {path.name}")


POLICIES: Final = (
    q_policy(
        shipped,
        "adlro",
        "the Q-network that ships: the pair of job and GPU model, or waiting, with the largest value",
        shipped_worth,
    ),
    q_lookahead(
        shipped,
        "adlro-lookahead",
        "simulates choices over the known jobs, counts the network's value too, and takes the best",
        worth=shipped_worth,
    ),
)
