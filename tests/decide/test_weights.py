"""Priority counts: what weights change, and that equal ones change nothing."""

from dataclasses import replace

import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.core.rules import LEAST_WEIGHT, weight_at
from adlro.core.tables import View
from adlro.decide.catalogue import find_policy, shipped_policies

HIGH, LOW = {"priority": 1.0}, {"priority": 0.25}
KNOWS_WEIGHTS = tuple(policy.name for policy in shipped_policies() if policy.weighs)


def test_a_weight_is_in_proportion_to_the_priority_and_never_nothing() -> None:
    assert [weight_at(priority) for priority in (0.25, 0.5, 1.0)] == [0.5, 1.0, 2.0]
    assert weight_at(0.0) == LEAST_WEIGHT


@pytest.mark.parametrize(
    "name", ["eft-reserving", "plan", "adlro-plan", "adlro-preemptive", "lookahead-plan", "lookahead-sjf"]
)
def test_of_two_jobs_the_one_with_the_least_time_for_its_weight_goes_first(name: str) -> None:
    # 100 s of weight 0.5 against 150 s of weight 2.
    case = Case([("v100", 1)], [(0, 100, 1, LOW), (0, 150, 1, HIGH)])
    assert run(case, name) == {0: Fate(0, 0, 100), 1: Fate(100, 0, 250)}
    assert run(replace(case, weights="priority"), name) == {0: Fate(150, 0, 250), 1: Fate(0, 0, 150)}


def test_a_job_of_high_priority_is_not_stopped_for_a_shorter_one_of_low_priority() -> None:
    # At 20 job 0 has 40 left: more than 10 and a restart of 5. By weight it has 20, and the other 30.
    case = Case([("v100", 1)], [(0, 60, 1, HIGH), (20, 10, 1, LOW)], restart_s=5.0)
    assert run(case, "plan")[0].stops == 1
    assert run(replace(case, weights="priority"), "plan") == {0: Fate(0, 0, 60), 1: Fate(60, 0, 70)}


def test_a_job_of_low_priority_is_stopped_for_one_of_high_priority_that_takes_as_long() -> None:
    # At 20 job 0 has 40 left, and so has job 1. By weight it is 80 against 20 and a restart of 2.5. Without a stop
    # job 1 would end at 100; with it at 60, and job 0 loses (10 + 5) / 4 + 5.
    case = Case([("v100", 1)], [(0, 60, 1, LOW), (20, 40, 1, HIGH)], restart_s=5.0)
    assert run(case, "plan")[0].stops == 0
    assert run(replace(case, weights="priority"), "plan") == {0: Fate(0, 0, 105, stops=1), 1: Fate(20, 0, 60)}


# paper-dqn works on paper16 only, and sees no priority.
@pytest.mark.parametrize("name", [policy.name for policy in shipped_policies() if policy.name != "paper-dqn"])
def test_a_policy_says_whether_weights_change_what_it_does(name: str) -> None:
    cases = [mixed_case(seed) for seed in (2, 3)]
    changed = [play(replace(case, weights="priority"), name).events != play(case, name).events for case in cases]
    assert any(changed) == find_policy(name).weighs


@pytest.mark.parametrize("name", KNOWS_WEIGHTS)
def test_where_all_priorities_are_the_same_weights_change_nothing(name: str) -> None:
    case = mixed_case(2)
    same = [(*job[:3], {**job[3], "priority": 0.7}) for job in case.jobs]
    assert (
        play(replace(case, jobs=same, weights="priority"), name).events == play(replace(case, jobs=same), name).events
    )


@pytest.mark.parametrize("name", ["eft-reserving", "plan", "adlro-plan", "lookahead-plan"])
def test_weights_that_are_all_twice_as_large_change_nothing(name: str) -> None:
    # The setting itself is off where all priorities are the same, so it is put in by hand.
    def count_by_priority(view: View) -> None:
        view.clock[0].weighted = 1

    policy = find_policy(name)
    case = mixed_case(1)
    same = replace(case, jobs=[(*job[:3], {**job[3], "priority": 1.0}) for job in case.jobs])
    assert play(same, replace(policy, prepare=count_by_priority)).events == play(same, policy).events
