"""What every policy of the catalogue promises, on busy little clusters with everything that can happen in them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.both import Ran
from tests.decide.conftest import Case, mixed_case, play
from tests.reference import Event

from adlro.core.policy import Policy, starting, waiting
from adlro.core.tables import JOB, Choice, View
from adlro.decide.catalogue import find_policy, policies
from adlro.decide.choosing import legal_pairs

SEEDS = range(4)
NAMES = [policy.name for policy in policies()]

every_policy = pytest.mark.parametrize("name", NAMES)


@cache
def ran(name: str, seed: int) -> Ran:
    """The policy alone on the case of this seed."""
    return play(mixed_case(seed), name, seed)


def jobs_with(events: list[Event], *names: str) -> list[int]:
    """The jobs of the events with these names, in order."""
    return [job for _, what, job, _ in events if what in names]


def test_the_cases_hold_all_that_can_happen() -> None:
    events = [event for seed in SEEDS for event in ran("srtf", seed).events]
    assert {what for _, what, _, _ in events} == {
        *("start", "spread", "finish", "stop", "fail", "refuse", "down", "up", "speed"),
    }
    assert {mixed_case(seed).window for seed in SEEDS} == {0, 3}
    jobs = np.concatenate([ran("srtf", seed).jobs.table for seed in SEEDS])
    assert (jobs["gpus"] == 0).any()
    assert (jobs["share"] < 1000).any()
    assert (jobs["allowed"] > 0).any()


@every_policy
@pytest.mark.parametrize("seed", SEEDS)
def test_it_chooses_only_what_is_legal_and_every_job_ends_once_or_is_refused(name: str, seed: int) -> None:
    outcome, events = ran(name, seed).outcome, ran(name, seed).events
    assert outcome.illegal == 0
    assert outcome.unfinished == 0
    assert sorted(jobs_with(events, "finish", "refuse")) == list(range(len(ran(name, seed).jobs)))


@every_policy
def test_the_run_ends_though_a_node_never_comes_back(name: str) -> None:
    case = mixed_case(0)
    lost = [item for item in case.disturbances if (item.what, item.node) != ("up", "n0")]
    found = play(replace(case, disturbances=lost), name)
    assert found.outcome.illegal == 0
    refused_or_ended = len(jobs_with(found.events, "finish", "refuse"))
    assert found.outcome.unfinished == len(found.jobs) - refused_or_ended
    assert jobs_with(found.events, "finish")


@every_policy
def test_it_does_the_same_alone_as_beside_others_in_a_pool_of_four_threads(name: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(lambda seed: play(mixed_case(seed), name, seed).events, SEEDS))
    assert beside == [ran(name, seed).events for seed in SEEDS]


def test_only_random_depends_on_the_seed() -> None:
    for name in NAMES:
        other = play(mixed_case(0), name, seed=7).events
        assert (other == ran(name, 0).events) == (name != "random"), name


# ---- the truth ----------------------------------------------------------------------------------------------------


def crowded(seed: int) -> Case:
    """A case in which all jobs wait at once: there is much to choose from, and the truth would tell."""
    case = mixed_case(seed, jobs=30)
    return replace(case, jobs=[(0.0, *rest) for _, *rest in case.jobs], window=0)


def with_other_work(case: Case, factor: dict[int, float]) -> Case:
    """The same case with other true work in these jobs; nothing that a policy may know is changed."""
    return replace(case, jobs=[(at, work * factor.get(j, 1.0), *rest) for j, (at, work, *rest) in enumerate(case.jobs)])


def until(events: list[Event], time: float) -> list[Event]:
    """What happens up to this time."""
    return [event for event in events if event[0] <= time]


def before_the_truth_shows(run: Callable[[Case], list[Event]], case: Case) -> tuple[list[Event], list[Event]]:
    """What happens until half of the jobs have ended, as it is, and with other work in the other half.

    Those that run by then get more of it, so that they still end later; those that wait get more or less.
    """
    events = run(case)
    finishes = {job: time for time, what, job, _ in events if what == "finish"}
    half = sorted(finishes.values())[len(finishes) // 2]
    others = {job for job, time in finishes.items() if time > half}
    started = others & set(jobs_with(until(events, half), "start"))
    source = Random(0)
    changed = run(
        with_other_work(case, {j: 2.0 if j in started else source.choice((0.1, 3.0)) for j in sorted(others)})
    )
    assert changed != events
    assert started
    return until(events, half), until(changed, half)


@every_policy
def test_it_never_reads_the_truth(name: str) -> None:
    for seed in SEEDS[:2]:
        as_it_is, changed = before_the_truth_shows(lambda case: play(case, name).events, crowded(seed))
        assert len(as_it_is) > 20
        assert as_it_is == changed


def knowing(case: Case) -> Policy:
    """A policy that has been told the truth: the least true work first."""

    def choose(view: View) -> Choice:
        pairs = legal_pairs(view)[0].tolist()
        return starting(*min(pairs, key=lambda pair: case.jobs[pair[0]][1])) if pairs else waiting()

    return Policy("knowing", "", make=lambda view, seed: choose)


def test_a_policy_that_knew_the_truth_would_be_found_out() -> None:
    for seed in SEEDS[:2]:
        as_it_is, changed = before_the_truth_shows(lambda case: play(case, knowing(case)).events, crowded(seed))
        assert as_it_is != changed


def numbers_in(view: View) -> Iterator[Any]:
    """Every column of floating-point numbers in the view, by name."""
    for field in view._fields:
        table = getattr(view, field)
        for column in table.dtype.names or [None]:
            values = np.asarray(table if column is None else table[column])
            if values.dtype.kind == "f":
                yield f"{field}.{column}", values.astype(np.float64)


def test_the_view_holds_neither_the_work_of_a_job_nor_its_end() -> None:
    assert "work" not in (JOB.names or ())
    case = mixed_case(0)
    # Where the estimate is right the work can be known from it.
    work = {j: float(job[1]) for j, job in enumerate(case.jobs) if job[3]["estimate"] != job[1]}
    ends = {job: time for time, what, job, _ in play(case, "srtf").events if what == "finish"}
    srtf = find_policy("srtf").choose
    assert srtf is not None
    asked = 0

    def choose(view: View) -> Choice:
        nonlocal asked
        asked += 1
        now = float(view.clock[0].now)
        hidden = {job for job, end in ends.items() if end > now}
        secrets = [work[job] for job in hidden & set(work)] + [ends[job] for job in hidden]
        for column, values in numbers_in(view):
            shown = values[np.isfinite(values)]
            assert not np.isin(shown, secrets).any(), column
        return srtf(view)

    spy = Policy("spy", "", make=lambda view, seed: choose, preemptive=True)
    assert play(case, spy).events == play(case, "srtf").events
    assert asked > 2 * len(case.jobs)
