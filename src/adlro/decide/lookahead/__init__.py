"""Look-ahead: play the best few choices forward on a small copy of the cluster, and take the one that ends best.

The copy (the *world*) contains the running jobs and the waiting jobs that the policy sees, with new numbers, and
nothing else of the trace. So its cost does not depend on how many jobs are still to come. Its truth is made from
estimates; wear is unknown, and a node that is down stays down. In it the base policy goes on deciding, with the same
engine and the same rules as the run itself.

A choice is a pair that may start now, waiting for the next event, or a *plan*: keep a site (or, for a gang over several
nodes, its pool) free of other jobs until a waiting job can start there. Rules that start whatever fits now never start
wide gangs while small jobs keep arriving. A single wait does not help, because the base would give the GPUs away again.
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
from adlro.decide.rules import baselines, earliest, plan, reserving

Rank: TypeAlias = Callable[[View, int], tuple[Ints, Ints, Floats]]
"""`rank(view, most)`: at most `most` legal pairs worth trying, the best first: their jobs, sites and scores."""


class Advice(NamedTuple):
    """The advice of an adviser, which knows more than the base, about the choices at a decision."""

    first: Choice  # its own choice
    jobs: Ints  # [pairs] jobs of the legal pairs worth trying, the best first
    sites: Ints  # where they start; NOBODY: the job runs, and the choice is to stop it
    regret_s: Floats  # [pairs] s of completion time that it expects each pair to cost more than the best choice
    waiting_s: float  # the same for waiting


Advise: TypeAlias = Callable[[View, int], Advice]
"""`advise(view, most)`: advice on at most `most` pairs."""

Leaf: TypeAlias = Callable[[View], float]
"""`leaf(world)`: sum of the seconds that the unfinished jobs of the world still need."""

MOST_CANDIDATES: Final = 16
MOST_PLANS: Final = 16

FORESEEN: Final = 64
"""Number of future jobs that the clairvoyant policy knows."""

FIRST_ROWS: Final = 64
"""Rows for jobs in a new world. It grows when needed."""

MOST_JOBS: Final = 128
"""Maximum number of waiting jobs in the world.

Of a longer queue, the jobs with the shortest best runtime are taken, and all that a candidate names. To minimise the
mean, short jobs start first, so they matter most for the next hours.
"""

MOST_WORK: Final = 500_000
"""Maximum of choices tried × jobs of the world × GPUs of the cluster.

Playing one choice forward takes time in proportion to jobs and GPUs, so fewer choices are tried on large clusters. On
16 GPUs, or on 100 GPUs with fewer than a hundred jobs, all are tried.
"""

ROUNDING: Final = 1e-9
"""Another choice must beat the base's by this share of the cost, because rounding depends on the order of the ends."""


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
    """A policy that plays choices forward with the base, and takes the one with the lowest mean completion time.

    It tries the base's own choice, the best pairs by `rank`, waiting, and plans, in this order; ties go to the first.
    An `adviser`, made for each run, replaces `rank` and the base's own choice. The cost that it expects for a choice is
    added: it may know what playing forward cannot show, such as the jobs that usually arrive. Large clusters get fewer
    tries (MOST_WORK). Each choice is played until all known jobs have ended, or for `horizon_s` simulated seconds (not
    a number of decisions, because a busy choice makes more decisions in the same time). Jobs unfinished by then cost
    what `leaf` says. Without `leaf`, running jobs are assumed to end as expected, and the others to run at once where
    they are fastest.

    After `budget_s` seconds by `clock` the best choice so far is taken. Answers then depend on the machine, so this is
    for live clusters; without it the same run always gives the same result.
    """
    ask = base.choose
    if ask is None:
        raise PolicyError(
            f"look-ahead over {base.name!r}: expected a compiled policy; this one is plain Python with a memory of its "
            "own, which trying things out would spoil. Take a rule such as sjf or eft."
        )
    # A base that stops jobs can make room for gangs without plans.
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
        weighs=True,
    )


@final
class Desk:
    """The arrays that the decisions of a run use (a world, a trial), and the functions that work on them."""

    def __init__(self, view: View, choices: int, plans: int, preemptive: bool) -> None:
        self._view, self._preemptive = view, preemptive
        self._room = room_to_gather(view, choices, plans)
        self.trial = blank_trial(choices)
        self.add_regret, self.chosen = quick_call(add_regret, self.trial), quick_call(chosen, self.trial)
        self.enlarge(FIRST_ROWS)

    def show(self, view: View) -> None:
        """Use this view from now on. Mostly it is the view of the last decision, but it may be a copy."""
        if view is not self._view:
            self._view = view
            self._bind()

    def enlarge(self, rows: int) -> None:
        """Replace the world by one with room for `rows` jobs."""
        self.world = blank_world(self._view, rows, self._preemptive)
        self._bind()

    def _bind(self) -> None:
        self.jobs_of_world = quick_call(jobs_of_world, self._view)
        self.gather = quick_call(gather, self._view, self._room, self.trial, self.world.members)
        self.try_out = quick_call(try_out, self._view, self.world)


def _as_ints(numbers: Ints) -> Ints:
    """The numbers with the type that compiled code expects; a user's adviser may give another."""
    return np.ascontiguousarray(numbers, np.int32)


def most_tries(jobs: int, gpus: int) -> int:
    """How many choices there is time to try, in addition to the first and waiting; at least two."""
    return max(2, MOST_WORK // max(1, jobs * gpus))


def by_base(ask: Choose, rank: Rank) -> Advise:
    """Advice from the base itself: its choice and the ranked pairs, without costs."""

    def advise(view: View, most: int) -> Advice:
        first = ask(view)
        jobs, sites, _ = rank(view, most)
        return Advice(first, jobs, sites, np.zeros(len(jobs)), 0.0)

    return advise


def blank_trial(rows: int) -> Trial:
    """A trial with room for `rows` choices."""
    verb, job, site, target, kept = np.zeros((5, rows), np.int32)
    return Trial(verb, job, site, target, kept, np.zeros(rows), np.zeros(rows))


@compiled_alone
def chosen(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
    """The cheapest choice, or the first choice of the cheapest plan; the base's unless another clearly wins."""
    best = 0
    for c in range(tried):
        if trial.cost[c] < trial.cost[best] * (1.0 - ROUNDING):
            best = c
    if best == 0:
        return first
    job = NOBODY if trial.verb[best] == WAIT else widened(members[trial.job[best]])
    return Choice(widened(trial.verb[best]), job, widened(trial.site[best]), trial.until[best])


RULES: Final = {
    policy.name: policy for module in (baselines, earliest, reserving, outlook, plan) for policy in module.POLICIES
}

STRONGEST: Final = "eft-reserving"

POLICIES: Final = tuple(lookahead(RULES[name]) for name in ("sjf", "sjf-picky", "eft", STRONGEST, "plan"))

CLAIRVOYANT: Final = replace(
    lookahead(RULES[STRONGEST], foresee=clairvoyant(FORESEEN)),
    name="lookahead-clairvoyant",
    summary=f"cheats: as lookahead-{STRONGEST}, and knows the next {FORESEEN} jobs to come; shows what is left to gain",
    needs=("truth",),
)
"""It knows the future, so the catalogue does not list it; it can be found by its name."""
