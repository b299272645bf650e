"""Look-ahead: play the best few choices forward on a small copy of the cluster, and take the one that ends best.

The copy (the *world*) contains the running jobs and the waiting jobs that the policy sees, with new numbers, and
nothing else of the trace. So its cost does not depend on how many jobs are still to come. Its truth is made from
estimates; wear is unknown, and a node that is down stays down. In it the base policy goes on deciding, with the same
engine and the same rules as the run itself.

A choice is a pair that may start now, waiting for the next event, or a *plan*: keep a site (or, for a gang over several
nodes, its pool) free of other jobs until a waiting job can start there. Rules that start whatever fits now never start
wide gangs while small jobs keep arriving. A single wait does not help, because the base would give the GPUs away again.

Compiled functions of one module here never call those of another one, because the code cache finds a function by the
text of its own file (`core/code_cache.py`).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from adlro.core.errors import PolicyError
from adlro.core.policy import Choose, Policy, starting, waiting
from adlro.core.rules import (
    seen,
)
from adlro.core.tables import (
    FOREVER,
    NOBODY,
    START,
    WAIT,
    Choice,
    Floats,
    Ints,
    View,
)
from adlro.decide import outlook
from adlro.decide.lookahead.future import Foresee, clairvoyant, nothing_comes
from adlro.decide.lookahead.plans import plans_for
from adlro.decide.lookahead.playing import Trial, blank_world, try_out
from adlro.decide.lookahead.ranking import by_runtime, fill_lengths
from adlro.decide.rules import baselines, reserving

Rank: TypeAlias = Callable[[View, int], tuple[Ints, Ints, Floats]]
"""`rank(view, most)`: at most `most` legal pairs worth trying, the best first: their jobs, sites and scores."""


class Advice(NamedTuple):
    """The advice of an adviser, which knows more than the base, about the choices at a decision."""

    first: Choice  # its own choice
    jobs: Ints  # [pairs] jobs of the legal pairs worth trying, the best first
    sites: Ints
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
        world = blank_world(view, FIRST_ROWS, base.preemptive)
        trial = blank_trial(candidates + plans + 2)
        advise = by_base(ask, rank) if adviser is None else adviser(view)

        def choose(view: View) -> Choice:
            nonlocal world
            deadline = clock() + budget_s
            half = most_tries(view, most_jobs) // 2
            advice = advise(view, min(candidates, half))
            first = advice.first
            if first.verb == WAIT and not len(by_runtime(view, 1)[0]):
                return first  # nothing can start, and every plan begins with waiting too
            choices = choices_for(view, first, advice.jobs, advice.sites)
            planned = plans_for(view, min(plans, half))
            tried = len(choices) + len(planned)
            if tried == 1 or clock() >= deadline:
                return first
            future = foresee(view)
            named = [choice.job for choice in choices if choice.verb == START] + [job for job, _ in planned]
            members = known_jobs(view, most_jobs, named)
            known, coming = len(members), len(future.jobs)
            if known + coming > len(world.members):
                world = blank_world(view, 2 * (known + coming), base.preemptive)
            world.members[:known], world.members[known : known + coming] = members, future.jobs
            write_down(trial, members, choices, planned)
            for c in range(tried) if by_one else (0,):
                last = c + 1 if by_one else tried
                try_out(view, world, known, coming, future.times, trial, c, last, ask, horizon_s, leaf is None)
                if leaf is not None:
                    trial.cost[c] += leaf(world.shown)
                if clock() >= deadline:
                    tried = last
                    break
            if adviser is not None:
                add_regret(trial, members, tried, advice)
            return chosen(trial, members, tried, first)

        return choose

    return Policy(
        name or f"lookahead-{base.name}",
        f"plays the best choices forward over the known jobs, {base.name} deciding on, and takes the best",
        make=make,
        preemptive=base.preemptive,
        needs=tuple(dict.fromkeys((*base.needs, "estimate"))),
        prepare=base.prepare,
    )


def most_tries(view: View, most_jobs: int) -> int:
    """How many choices there is time to try, in addition to the first and waiting; at least two."""
    clock = view.clock[0]
    jobs = int(clock.running) + min(int(clock.queued), most_jobs)
    return max(2, MOST_WORK // max(1, jobs * len(view.gpus)))


def by_base(ask: Choose, rank: Rank) -> Advise:
    """Advice from the base itself: its choice and the ranked pairs, without costs."""

    def advise(view: View, most: int) -> Advice:
        first = ask(view)
        jobs, sites, _ = rank(view, most)
        return Advice(first, jobs, sites, np.zeros(len(jobs)), 0.0)

    return advise


def add_regret(trial: Trial, members: Ints, tried: int, advice: Advice) -> None:
    """Add to the cost of each choice what the adviser expects it to cost. A plan counts as its first choice.

    A pair that the adviser does not list costs as much as waiting: it comes from the base, and the adviser ranks it
    low.
    """
    pairs = zip(advice.jobs.tolist(), advice.sites.tolist(), strict=True)
    said = dict(zip(pairs, advice.regret_s.tolist(), strict=True))
    for c in range(tried):
        regret = advice.waiting_s
        if trial.verb[c] != WAIT:
            regret = said.get((int(members[trial.job[c]]), int(trial.site[c])), regret)
        trial.cost[c] += regret


def choices_for(view: View, first: Choice, jobs: Ints, sites: Ints) -> list[Choice]:
    """The base's choice, then the ranked pairs, then waiting if some running job will end; without duplicates."""
    pairs = [starting(j, s) for j, s in zip(jobs.tolist(), sites.tolist(), strict=True)]
    choices = [first, *(pair for pair in pairs if pair != first)]
    if first.verb != WAIT and view.clock[0].running > 0:
        choices.append(waiting())
    return choices


def known_jobs(view: View, most: int, named: list[int]) -> Ints:
    """The jobs of the world in submit order: the running ones, and as many waiting ones as it has room for."""
    clock = view.clock[0]
    waits = view.queue[clock.head : clock.head + seen(view)]
    if len(waits) > most:
        lengths = np.empty(len(waits))
        fill_lengths(view, lengths)
        shortest_ones = waits[np.argsort(lengths, kind="stable")[:most]]
        waits = np.union1d(shortest_ones, np.array(named, np.int32))
    return np.sort(np.concatenate([waits, view.running[: clock.running]]))


def blank_trial(rows: int) -> Trial:
    """A trial with room for `rows` choices."""
    verb, job, site, target, kept = np.zeros((5, rows), np.int32)
    return Trial(verb, job, site, target, kept, np.zeros(rows), np.zeros(rows))


def write_down(trial: Trial, members: Ints, choices: list[Choice], planned: list[tuple[int, int]]) -> None:
    """Write choices and plans into the columns of the trial, with the world's job numbers."""
    number = {j: i for i, j in enumerate(members.tolist())}
    for c, choice in enumerate(choices):
        trial.verb[c], trial.site[c], trial.until[c], trial.target[c] = choice.verb, choice.site, choice.until, NOBODY
        trial.job[c] = NOBODY if choice.verb == WAIT else number[choice.job]
    for c, (j, s) in enumerate(planned, start=len(choices)):
        trial.target[c], trial.kept[c] = number[j], s


def chosen(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
    """The cheapest choice, or the first choice of the cheapest plan; the base's unless another clearly wins."""
    best = 0
    for c, cost in enumerate(trial.cost[:tried].tolist()):
        if cost < trial.cost[best] * (1.0 - ROUNDING):
            best = c
    if best == 0:
        return first
    verb = int(trial.verb[best])
    job = NOBODY if verb == WAIT else int(members[trial.job[best]])
    return Choice(verb, job, int(trial.site[best]), float(trial.until[best]))


RULES: Final = {policy.name: policy for module in (baselines, reserving, outlook) for policy in module.POLICIES}

STRONGEST: Final = "eft-reserving"

POLICIES: Final = tuple(lookahead(RULES[name]) for name in ("sjf", "sjf-picky", "eft", STRONGEST))

CLAIRVOYANT: Final = replace(
    lookahead(RULES[STRONGEST], foresee=clairvoyant(FORESEEN)),
    name="lookahead-clairvoyant",
    summary=f"cheats: as lookahead-{STRONGEST}, and knows the next {FORESEEN} jobs to come; shows what is left to gain",
    needs=("truth",),
)
"""It knows the future, so the catalogue does not list it; it can be found by its name."""
