"""Look-ahead: play the best few choices forward on a small copy of the cluster, and take the one that ends best.

The copy (the *world*) holds the running jobs and the waiting ones that the policy sees, numbered anew, and nothing
else of the trace: it costs the same whether a thousand jobs are still to come or a million. Its truth is made of
estimates; wear is unknown, and a node that is down stays down. In it the base policy decides on, by the same engine
and the same rules as the run itself.

A choice is a pair that might start now, waiting for the next event, or a *plan*: keep a site (or, for a gang over
several nodes, its pool) free of others until a waiting job can start there. Rules that take what fits now never start
wide gangs while small jobs keep coming; one wait is not enough, since the base would give the GPUs away again.

All compiled code of this stands in this one file, where Numba itself notices every change.
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
                return first  # nothing can start: every plan begins with waiting too
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
    """How many choices there is time to try, beside the first and waiting: at least two."""
    clock = view.clock[0]
    jobs = int(clock.running) + min(int(clock.queued), most_jobs)
    return max(2, MOST_WORK // max(1, jobs * len(view.gpus)))


def by_base(ask: Choose, rank: Rank) -> Advise:
    """Advice of the base itself: its choice and the ranked pairs, with no opinion on what they cost."""

    def advise(view: View, most: int) -> Advice:
        first = ask(view)
        jobs, sites, _ = rank(view, most)
        return Advice(first, jobs, sites, np.zeros(len(jobs)), 0.0)

    return advise


def add_regret(trial: Trial, members: Ints, tried: int, advice: Advice) -> None:
    """Add to what each choice costs what the adviser says it costs more than the best; a plan counts as its beginning.

    A pair of which the adviser has not spoken counts as much as waiting: it is the base's, and he thinks little of it.
    """
    pairs = zip(advice.jobs.tolist(), advice.sites.tolist(), strict=True)
    said = dict(zip(pairs, advice.regret_s.tolist(), strict=True))
    for c in range(tried):
        regret = advice.waiting_s
        if trial.verb[c] != WAIT:
            regret = said.get((int(members[trial.job[c]]), int(trial.site[c])), regret)
        trial.cost[c] += regret


def choices_for(view: View, first: Choice, jobs: Ints, sites: Ints) -> list[Choice]:
    """The base's choice, then the ranked pairs, then waiting, if there is an end to wait for; nothing twice."""
    pairs = [starting(j, s) for j, s in zip(jobs.tolist(), sites.tolist(), strict=True)]
    choices = [first, *(pair for pair in pairs if pair != first)]
    if first.verb != WAIT and view.clock[0].running > 0:
        choices.append(waiting())
    return choices


def known_jobs(view: View, most: int, named: list[int]) -> Ints:
    """The jobs of the world in submit order: those that run, and the waiting ones that it has room for."""
    clock = view.clock[0]
    waits = view.queue[clock.head : clock.head + seen(view)]
    if len(waits) > most:
        lengths = np.empty(len(waits))
        fill_lengths(view, lengths)
        shortest_ones = waits[np.argsort(lengths, kind="stable")[:most]]
        waits = np.union1d(shortest_ones, np.array(named, np.int32))
    return np.sort(np.concatenate([waits, view.running[: clock.running]]))


def blank_trial(rows: int) -> Trial:
    """A trial with room for so many choices."""
    verb, job, site, target, kept = np.zeros((5, rows), np.int32)
    return Trial(verb, job, site, target, kept, np.zeros(rows), np.zeros(rows))


def write_down(trial: Trial, members: Ints, choices: list[Choice], planned: list[tuple[int, int]]) -> None:
    """Put choices and plans into the columns of the trial, with the world's numbers for jobs."""
    number = {j: i for i, j in enumerate(members.tolist())}
    for c, choice in enumerate(choices):
        trial.verb[c], trial.site[c], trial.until[c], trial.target[c] = choice.verb, choice.site, choice.until, NOBODY
        trial.job[c] = NOBODY if choice.verb == WAIT else number[choice.job]
    for c, (j, s) in enumerate(planned, start=len(choices)):
        trial.target[c], trial.kept[c] = number[j], s


def chosen(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
    """The choice that costs least, or what the best plan begins with; the base's unless another is really better."""
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
"""Not in the catalogue's list, whose policies know nothing of the future; found by its name."""
