"""Look-ahead: play the best few choices forward on a small copy of the cluster, and take the one that ends best.

The copy (the *world*) holds the running jobs and the waiting ones that the policy sees, numbered anew, and nothing
else of the trace: it costs the same whether a thousand jobs are still to come or a million. Its truth is made of
estimates; wear is unknown, and a node that is down stays down. In it the base policy decides on, by the same engine
and the same rules as the run itself.

A choice is a pair that might start now, waiting for the next event, or a *plan*: keep a site (or, for a gang over
several nodes, its pool) free of others until a waiting job can start there. Rules that take what fits now never start
wide gangs while small jobs keep coming; one wait is not enough, since the base would give the GPUs away again.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled_alone, widened
from adlro.core.errors import PolicyError
from adlro.core.policy import Choose, Policy
from adlro.core.tables import (
    FOREVER,
    NOBODY,
    WAIT,
    Choice,
    Floats,
    Ints,
    View,
)
from adlro.decide import outlook
from adlro.decide.lookahead.future import Foresee, clairvoyant, nothing_comes
from adlro.decide.lookahead.gathering import add_regret, gather, jobs_of_world, room_to_gather
from adlro.decide.lookahead.playing import Trial, blank_world, try_out
from adlro.decide.lookahead.ranking import by_runtime
from adlro.decide.rules import baselines, earliest, reserving

Rank: TypeAlias = Callable[[View, int], tuple[Ints, Ints, Floats]]
"""`rank(view, most)`: at most so many legal pairs worth a look, the best first: their jobs, sites and scores."""


class Advice(NamedTuple):
    """What somebody who knows more than the base says about the choices at a decision."""

    first: Choice  # what he would do himself
    jobs: Ints  # of the legal pairs worth a look, the best first
    sites: Ints
    regret_s: Floats  # s of completion time that each pair costs more than the best choice, in his opinion
    waiting_s: float  # the same of waiting


Advise: TypeAlias = Callable[[View, int], Advice]
"""`advise(view, most)`: advice with at most so many pairs."""

Leaf: TypeAlias = Callable[[View], float]
"""`leaf(world)`: seconds that the unfinished jobs of the world still need from its clock on, summed."""

MOST_CANDIDATES: Final = 16
MOST_PLANS: Final = 16

FORESEEN: Final = 64
"""Jobs to come that the clairvoyant one knows."""

FIRST_ROWS: Final = 64
"""Room for jobs in a new world; it is made larger when needed."""

MOST_JOBS: Final = 128
"""Waiting jobs in the world. Of a longer queue those with the least best runtime are taken, and all that a candidate
names: whoever cares for the mean starts the short ones first, so the next hours are about them."""

MOST_WORK: Final = 500_000
"""Choices tried × jobs of the world × GPUs of the cluster: on large clusters fewer choices are tried, since playing
one forward takes time in proportion to both. On 16 GPUs, or on 100 with less than a hundred jobs, all are tried."""

ROUNDING: Final = 1e-9
"""Another choice must be better than the base's by this share of the cost: sums depend on the order of the ends."""


def lookahead(
    base: Policy,
    candidates: int = MOST_CANDIDATES,
    horizon_s: float = FOREVER,
    *,
    plans: int = MOST_PLANS,
    rank: Rank = by_runtime,
    adviser: Callable[[View], Advise] | None = None,
    leaf: Leaf | None = None,
    budget_s: float = FOREVER,
    clock: Callable[[], float] = time.perf_counter,
    most_jobs: int = MOST_JOBS,
    foresee: Foresee = nothing_comes,
    name: str | None = None,
) -> Policy:
    """A policy that plays choices forward with the base deciding on, and takes the one with the least mean completion.

    Tried are the base's own choice, the best pairs by `rank`, waiting, and plans, in this order; equals go to the
    first. An `adviser`, made anew for each run, takes the place of `rank` and of the base's own choice, and what it
    says that a choice costs is added: it may know what playing forward cannot show, such as the jobs that usually come.
    On large clusters fewer are tried (MOST_WORK). Each choice is played until all known jobs have ended, or for
    `horizon_s` simulated seconds (not for a number of decisions, of which a busy choice has more in the same time).
    What is unfinished then costs what `leaf` says, or a guess: running jobs end as expected, others run at once where
    they are fastest.

    After `budget_s` seconds by `clock` the best so far is taken. That makes an answer depend on the machine, so it is
    for live clusters; without it the same run always comes out the same.
    """
    ask = base.choose
    if ask is None:
        raise PolicyError(
            f"look-ahead over {base.name!r}: expected a compiled policy; this one is plain Python with a memory of its "
            "own, which trying things out would spoil. Take a rule such as sjf or eft."
        )
    # A base that stops jobs makes room for gangs by itself.
    plans = 0 if base.preemptive else plans
    by_one = leaf is not None or budget_s < FOREVER

    def make(view: View, seed: int) -> Choose:
        desk = Desk(view, candidates + plans + 2, plans, base.preemptive)
        advise = by_base(ask, rank) if adviser is None else adviser(view)

        def choose(shown: View) -> Choice:
            desk.show(shown)
            deadline = clock() + budget_s
            half = most_tries(desk.jobs_of_world(most_jobs), len(shown.gpus)) // 2
            advice = advise(shown, min(candidates, half))
            first, jobs, sites = advice.first, *map(_as_ints, (advice.jobs, advice.sites))
            future = foresee(shown)
            coming = len(future.jobs)
            tried, known = desk.gather(first, jobs, sites, min(plans, half), most_jobs, coming)
            if tried <= 1 or clock() >= deadline:
                return first
            if known + coming > len(desk.world.members):
                desk.enlarge(2 * (known + coming))
                desk.gather(first, jobs, sites, min(plans, half), most_jobs, coming)
            members, trial = desk.world.members, desk.trial
            members[known : known + coming] = future.jobs
            for c in range(tried) if by_one else (0,):
                last = c + 1 if by_one else tried
                desk.try_out(known, coming, future.times, trial, c, last, ask, horizon_s, leaf is None)
                if leaf is not None:
                    trial.cost[c] += leaf(desk.world.shown)
                if clock() >= deadline:
                    tried = last
                    break
            if adviser is not None:
                desk.add_regret(members, tried, jobs, sites, advice.regret_s, advice.waiting_s)
            return desk.chosen(members, tried, first)

        return choose

    return Policy(
        name or f"lookahead-{base.name}",
        f"plays the best choices forward over the known jobs, {base.name} deciding on, and takes the best",
        make=make,
        preemptive=base.preemptive,
        needs=tuple(dict.fromkeys((*base.needs, "estimate"))),
        prepare=base.prepare,
    )


@final
class Desk:
    """Where the decisions of a run are made: a world and other arrays, and the functions that work on them."""

    def __init__(self, view: View, choices: int, plans: int, preemptive: bool) -> None:
        self._view, self._preemptive = view, preemptive
        self._room = room_to_gather(view, choices, plans)
        self.trial = blank_trial(choices)
        self.add_regret, self.chosen = quick_call(add_regret, self.trial), quick_call(chosen, self.trial)
        self.enlarge(FIRST_ROWS)

    def show(self, view: View) -> None:
        """Decide on this view from now on: mostly it is the one of the last decision, but it may be a copy."""
        if view is not self._view:
            self._view = view
            self._bind()

    def enlarge(self, rows: int) -> None:
        """Take a world with room for so many jobs."""
        self.world = blank_world(self._view, rows, self._preemptive)
        self._bind()

    def _bind(self) -> None:
        self.jobs_of_world = quick_call(jobs_of_world, self._view)
        self.gather = quick_call(gather, self._view, self._room, self.trial, self.world.members)
        self.try_out = quick_call(try_out, self._view, self.world)


def _as_ints(numbers: Ints) -> Ints:
    """The same numbers as compiled code expects them, whoever gave the advice."""
    return np.ascontiguousarray(numbers, np.int32)


def most_tries(jobs: int, gpus: int) -> int:
    """How many choices there is time to try, beside the first and waiting: at least two."""
    return max(2, MOST_WORK // max(1, jobs * gpus))


def by_base(ask: Choose, rank: Rank) -> Advise:
    """Advice of the base itself: its choice and the ranked pairs, with no opinion on what they cost."""

    def advise(view: View, most: int) -> Advice:
        first = ask(view)
        jobs, sites, _ = rank(view, most)
        return Advice(first, jobs, sites, np.zeros(len(jobs)), 0.0)

    return advise


def blank_trial(rows: int) -> Trial:
    """A trial with room for so many choices."""
    verb, job, site, target, kept = np.zeros((5, rows), np.int32)
    return Trial(verb, job, site, target, kept, np.zeros(rows), np.zeros(rows))


@compiled_alone
def chosen(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
    """The choice that costs least, or what the best plan begins with; the base's unless another is really better."""
    best = 0
    for c in range(tried):
        if trial.cost[c] < trial.cost[best] * (1.0 - ROUNDING):
            best = c
    if best == 0:
        return first
    job = NOBODY if trial.verb[best] == WAIT else widened(members[trial.job[best]])
    return Choice(widened(trial.verb[best]), job, widened(trial.site[best]), trial.until[best])


RULES: Final = {
    policy.name: policy for module in (baselines, earliest, reserving, outlook) for policy in module.POLICIES
}

STRONGEST: Final = "eft-reserving"

POLICIES: Final = tuple(lookahead(RULES[name]) for name in ("sjf", "sjf-picky", "eft", STRONGEST))

CLAIRVOYANT: Final = replace(
    lookahead(RULES[STRONGEST], foresee=clairvoyant(FORESEEN)),
    name="lookahead-clairvoyant",
    summary=f"cheats: as lookahead-{STRONGEST}, and knows the next {FORESEEN} jobs to come; shows what is left to gain",
    needs=("truth",),
)
"""Not in the catalogue's list, whose policies know nothing of the future; found by its name."""
