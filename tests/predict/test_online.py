"""Predictions in a run: what is told follows from what has been seen by then, and from nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy
from adlro.core.tables import DONE, DOWN, OVERRAN, STARTED, STOPPED, UP, Choice, Jobs, View
from adlro.decide.catalogue import find_policy
from adlro.normalise.pack import pack
from adlro.predict.expected import NO_LIMIT_S
from adlro.predict.following import UNKNOWN_S, seconds_of, traits_of, untold
from adlro.predict.online import LIMIT, Predicting
from adlro.simulation.simulator import Outcome, SimulationSettings, simulate

PLAN = plan_cluster(load_cluster("paper16"))
NOTHING = SimulationSettings()
LATER_S = 1e7

Told = list[tuple[float, int, float]]
Happening = Sequence[tuple[float, int, int, int, float]]


def busy(count: int, seed: int = 0) -> Jobs:
    """Jobs that come faster than sixteen GPUs can do them, and a last one long after they have ended."""
    jobs = untold(jobs_of(count, 0.5, seed))
    jobs.table["submit"] /= 8
    jobs.table["submit"][-1] = LATER_S
    return jobs


def played(
    jobs: Jobs, policy: str | Policy, settings: SimulationSettings = NOTHING, happening: Happening = ()
) -> tuple[Outcome, Predicting]:
    """What came of a run with predictions, and who predicted."""
    view = pack(PLAN, jobs, speed_of)
    player = Predicting.new(traits_of(jobs))
    found = find_policy(policy) if isinstance(policy, str) else policy
    return simulate(view, jobs.work, found, settings, happening, 0, player), player


def in_python(name: str, told: Told | None = None) -> Policy:
    """A compiled policy as one in plain Python, which writes down what it is told of each job that is there."""
    base = find_policy(name)
    assert base.choose is not None
    choose = base.choose

    def asked(view: View) -> Choice:
        if told is not None:
            clock = view.clock[0]
            there = [*view.queue[clock.head : clock.head + clock.queued], *view.running[: clock.running]]
            told.extend((float(clock.now), int(j), float(view.jobs[j].estimate)) for j in sorted(there))
        return choose(view)

    return Policy("asked", "", make=lambda view, seed: asked, preemptive=base.preemptive)


def times(outcome: Outcome, what: int) -> dict[int, float]:
    """When it last happened to each job."""
    return {int(event.job): float(event.time) for event in outcome.events if event.what == what}


@pytest.mark.parametrize("name", ["sjf", "srtf", "fcfs-easy"])
def test_a_policy_in_python_meets_the_same_run_as_a_compiled_one(name: str) -> None:
    jobs = busy(80)
    assert played(jobs, name)[0].events.tobytes() == played(jobs, in_python(name))[0].events.tobytes()


@pytest.mark.parametrize("name", ["sjf", "srtf"])
def test_nothing_that_is_told_depends_on_the_work_of_a_job_that_has_not_ended(name: str) -> None:
    jobs = busy(80)
    one: Told = []
    ends = times(played(jobs, in_python(name, one))[0], DONE)
    for changed in (5, 30, 60):
        work = jobs.work.copy()
        work[changed] *= 3.0
        other: Told = []
        played(replace(jobs, work=work), in_python(name, other))
        before = [entry for entry in one if entry[0] < ends[changed]]
        assert len(before) > 20
        assert before == other[: len(before)]


def test_what_has_ended_changes_what_is_told() -> None:
    jobs = busy(80)
    one: Told = []
    end = times(played(jobs, in_python("sjf", one))[0], DONE)[2]
    work = jobs.work.copy()
    work[2] *= 0.2
    other: Told = []
    played(replace(jobs, work=work), in_python("sjf", other))
    assert [entry for entry in one if entry[0] > end] != [entry for entry in other if entry[0] > end]


def test_the_first_job_of_all_is_told_its_limit() -> None:
    jobs, told = busy(10), Told()
    played(jobs, in_python("sjf", told))
    assert told[0][1] == 0
    assert told[0][2] == pytest.approx(jobs.table["limit"][0] * jobs.table["gpus"][0])


def test_who_gave_no_limit_counts_as_having_the_longest_that_anybody_gave_so_far() -> None:
    jobs = busy(6)
    jobs.table[:] = jobs.table[0]
    jobs.table["submit"], jobs.table["gpus"], jobs.table["limit"] = np.arange(6.0), 1, 3600.0
    jobs.table["limit"][[0, 2, 4]] = np.inf
    jobs.table["limit"][3] = 1e6
    told: Told = []
    played(untold(jobs), in_python("sjf", told))
    at_first = {j: next(amount for _, which, amount in told if which == j) for j in (0, 2, 4)}
    assert at_first[0] == pytest.approx(NO_LIMIT_S**0.9 * UNKNOWN_S**0.1)  # nobody gave one
    assert at_first[2] == pytest.approx(at_first[0], rel=1e-3)  # an hour is what stands for none
    assert at_first[4] == pytest.approx(at_first[2] * (1e6 / 3600.0) ** LIMIT, rel=1e-3)


@pytest.mark.parametrize("name", ["sjf", "las", "srtf"])
def test_the_runtime_that_is_learnt_is_what_the_job_took_on_the_reference_model_however_often_it_was_stopped(
    name: str,
) -> None:
    jobs = busy(80)
    outcome, player = played(jobs, name)
    if name != "sjf":
        assert times(outcome, STOPPED)
    np.testing.assert_allclose(player.online.worked[:-1], seconds_of(jobs)[:-1], rtol=1e-9)
    assert player.online.state.learnt[0] == 79


def test_a_job_that_lost_work_with_its_node_is_learnt_without_what_it_lost() -> None:
    jobs = busy(60)
    jobs.table["checkpoint"] = 500.0
    down = [(3000.0 * n, DOWN, n % 4, 0, 0.0) for n in range(1, 8)]
    up = [(time + 400.0, UP, node, 0, 0.0) for time, _, node, _, _ in down]
    _, player = played(jobs, "sjf", NOTHING, down + up)
    # The log has losses in single precision.
    np.testing.assert_allclose(player.online.worked[:-1], seconds_of(jobs)[:-1], rtol=1e-4)


def test_a_job_killed_at_its_limit_is_learnt_as_that_long() -> None:
    jobs = busy(40)
    jobs.table["limit"] = 600.0
    outcome, player = played(jobs, "fcfs-first-fit", SimulationSettings(kill_at_limit=True))
    killed, began = times(outcome, OVERRAN), times(outcome, STARTED)
    assert len(killed) > 5
    for j, end in killed.items():
        assert end - began[j] == pytest.approx(600.0)
        if end < LATER_S:
            assert player.online.worked[j] == pytest.approx(600.0 * player.online.speed[j])
    assert player.online.state.learnt[0] == 39


def test_of_a_job_that_runs_more_is_told_the_longer_it_has_run_but_not_beyond_its_limit() -> None:
    jobs = busy(60)
    told: Told = []
    outcome, _ = played(jobs, in_python("sjf", told))
    began, ended = times(outcome, STARTED), times(outcome, DONE)
    most = jobs.table["limit"] * jobs.table["gpus"]
    grew = 0
    for j in range(60):
        while_it_ran = [amount for time, which, amount in told if which == j and began[j] < time < ended[j]]
        assert while_it_ran == sorted(while_it_ran)
        assert all(amount <= most[j] * (1 + 1e-9) for amount in while_it_ran)
        grew += len(set(while_it_ran)) > 1
    assert grew > 5


def test_shortest_first_gains_from_predictions_where_programs_have_habits() -> None:
    jobs = busy(600)
    jobs.table["limit"] = np.inf

    def mean_jct(outcome: Outcome) -> float:
        return float(np.mean([end - jobs.table["submit"][j] for j, end in times(outcome, DONE).items()]))

    nobody_knows = untold(jobs)
    blind = simulate(pack(PLAN, nobody_knows, speed_of), jobs.work, find_policy("sjf"))
    assert mean_jct(played(nobody_knows, "sjf")[0]) < 0.95 * mean_jct(blind)
