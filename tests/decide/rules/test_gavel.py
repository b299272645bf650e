"""Gavel's rounds: who gets which model, what happens between rounds, and that every run ends."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import run_compiled
from tests.decide.two_models import ADA, BELL, cluster_of, finishes, run, speed, starts, stops
from tests.strategies import Scenario, scenarios

from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy
from adlro.core.records import Disturbance, Job
from adlro.decide.rules.allox import POLICIES as ALLOX
from adlro.decide.rules.gavel import POLICIES, ROUND_S, solve_round
from adlro.decide.rules.pools import ViewReader
from adlro.normalise.pack import pack, pack_jobs

BY_NAME = {policy.name: policy for policy in POLICIES}
MAXMIN, MAXSUM, MAKESPAN = BY_NAME["gavel-maxmin"], BY_NAME["gavel-maxsum"], BY_NAME["gavel-makespan"]
ONE_OF_EACH = cluster_of({ADA: 1}, {BELL: 1})


@pytest.mark.parametrize("policy", [MAXMIN, MAXSUM, MAKESPAN], ids=lambda policy: policy.name)
def test_each_of_two_jobs_gets_its_own_model_and_keeps_it(policy: Policy) -> None:
    ran = run(policy, ONE_OF_EACH, [Job("bell", 1000.0), Job("ada", 1000.0)])
    assert starts(ran) == [(0.0, 0, 1), (0.0, 1, 0)]
    assert finishes(ran) == {0: 1000.0, 1: 1000.0}


def test_the_agnostic_twin_gives_each_of_two_jobs_both_models_in_turn() -> None:
    ran = run(BY_NAME["gavel-maxmin-agnostic"], ONE_OF_EACH, [Job("bell", 1000.0), Job("ada", 1000.0)])
    assert starts(ran)[:4] == [(0.0, 0, 0), (0.0, 1, 1), (ROUND_S, 0, 1), (ROUND_S, 1, 0)]
    assert min(finishes(ran).values()) > 1000.0


def test_an_agnostic_twin_leaves_no_job_on_one_model_for_good() -> None:
    ran = run(BY_NAME["gavel-maxsum-agnostic"], cluster_of({ADA: 2}, {BELL: 2}), [Job("same", 500.0)] * 4)
    assert starts(ran)[:4] == [(0.0, 0, 0), (0.0, 1, 0), (0.0, 2, 1), (0.0, 3, 1)]
    assert sorted(starts(ran)[4:]) == [(ROUND_S, 0, 1), (ROUND_S, 1, 1), (ROUND_S, 2, 0), (ROUND_S, 3, 0)]


def test_makespan_gives_the_fast_model_to_the_long_job_and_max_sum_to_the_one_that_loses_more() -> None:
    jobs = [Job("half", 7200.0), Job("less", 300.0)]
    assert starts(run(MAXSUM, ONE_OF_EACH, jobs))[:2] == [(0.0, 0, 1), (0.0, 1, 0)]
    assert starts(run(MAKESPAN, ONE_OF_EACH, jobs))[:2] == [(0.0, 0, 0), (0.0, 1, 1)]


def test_max_min_shares_one_gpu_evenly_and_max_sum_runs_one_job_after_the_other() -> None:
    jobs = [Job("same", 3600.0) for _ in range(3)]
    shared = run(MAXMIN, cluster_of({ADA: 1}), jobs)
    assert min(finishes(shared).values()) > 3 * 3600.0 - 3 * ROUND_S
    assert finishes(run(MAXSUM, cluster_of({ADA: 1}), jobs)) == {0: 3600.0, 1: 7200.0, 2: 10800.0}


def test_makespan_gives_time_by_the_work_left() -> None:
    ran = run(MAKESPAN, cluster_of({ADA: 1}), [Job("same", 7200.0), Job("same", 3600.0)])
    assert min(finishes(ran).values()) > 7200.0
    assert max(finishes(ran).values()) == 10800.0


def test_who_comes_in_a_round_waits_for_its_end_though_a_gpu_is_free() -> None:
    ran = run(MAXMIN, cluster_of({ADA: 2}), [Job("same", 100.0), Job("same", 100.0, submit_s=50.0)])
    assert starts(ran) == [(0.0, 0, 0), (ROUND_S, 1, 0)]


def test_the_first_job_after_an_idle_time_begins_a_round() -> None:
    ran = run(MAXMIN, cluster_of({ADA: 2}), [Job("same", 100.0), Job("same", 100.0, submit_s=1000.0)])
    assert starts(ran) == [(0.0, 0, 0), (1000.0, 1, 0)]


def test_rounds_follow_each_other_while_nothing_happens() -> None:
    ran = run(MAXMIN, cluster_of({ADA: 2}), [Job("same", 9000.0), Job("same", 100.0, submit_s=5000.0)])
    assert starts(ran) == [(0.0, 0, 0), (14 * ROUND_S, 1, 0)]


@pytest.mark.parametrize(("comes", "begins"), [(1050.0, 3 * ROUND_S), (1100.0, 1100.0)])
def test_no_round_is_counted_after_the_last_job_has_ended(comes: float, begins: float) -> None:
    # The job ends at 1000 s, in the round from 720 s to 1080 s.
    ran = run(MAXMIN, cluster_of({ADA: 2}), [Job("same", 1000.0), Job("same", 100.0, submit_s=comes)])
    assert starts(ran) == [(0.0, 0, 0), (begins, 1, 0)]


def test_a_job_without_gpus_starts_in_the_middle_of_a_round_and_is_never_moved() -> None:
    idle = [Job("same", work, submit_s=50.0, gpus=0, cpus=8.0) for work in (100.0, 900.0)]
    ran = run(MAXMIN, ONE_OF_EACH, [Job("ada", 900.0), *idle])
    assert starts(ran) == [(0.0, 0, 0), (50.0, 1, 0), (50.0, 2, 1)]
    assert not stops(ran)


def test_a_job_that_stays_on_its_model_is_not_stopped() -> None:
    ran = run(MAXMIN, cluster_of({ADA: 2}), [Job("same", 2000.0), Job("same", 500.0)], restart_s=30.0)
    assert not stops(ran)
    assert finishes(ran) == {0: 2000.0, 1: 500.0}


def test_a_gang_gets_a_node_though_single_jobs_have_spread_over_all() -> None:
    # Jobs 0 and 2 stay alone on a node each when 1 and 3 have ended; the gang needs both GPUs of one node.
    jobs = [Job("same", work) for work in (2000.0, 100.0, 2000.0, 100.0)]
    jobs.append(Job("same", 1000.0, submit_s=150.0, gpus=2))
    ran = run(MAXMIN, cluster_of({ADA: 2}, {ADA: 2}), jobs)
    assert {site for _, job, site in starts(ran)[:4] if job in (0, 2)} == {0, 1}
    assert [time for time, job, _ in starts(ran) if job == 4] == [ROUND_S]
    assert {job for time, job, _ in starts(ran) if time == ROUND_S} >= {0, 2, 4}


def test_a_small_job_fills_the_gpus_that_a_gang_cannot_use() -> None:
    # The gang of 4 is wider than what is up until 500 s; the small jobs run meanwhile.
    trouble = [Disturbance(0.0, "down", "n1"), Disturbance(500.0, "up", "n1")]
    jobs = [Job("same", 400.0, gpus=4), Job("same", 400.0), Job("same", 400.0)]
    ran = run(MAXMIN, cluster_of({ADA: 2}, {ADA: 2}), jobs, disturbances=trouble)
    assert starts(ran) == [(0.0, 1, 0), (0.0, 2, 0), (2 * ROUND_S, 0, 0)]


def test_planning_a_round_changes_nothing_in_the_view() -> None:
    jobs = pack_jobs([Job("ada", 100.0), Job("bell", 100.0)])
    view = pack(plan_cluster(ONE_OF_EACH), jobs, speed)
    view.queue[:2] = [0, 1]
    view.clock[0].queued = 2
    before = [table.tobytes() for table in view]
    plan, choices = solve_round(ViewReader(view), "maxmin")
    assert len(choices) == 2
    assert plan.pool.tolist() == [0, 1]
    assert [table.tobytes() for table in view] == before


def test_the_catalogue_can_be_read_without_the_solver() -> None:
    code = "import sys, adlro.decide.rules.gavel, adlro.decide.rules.allox; sys.exit('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=80)
@given(scenarios(), st.sampled_from((*POLICIES, *ALLOX)))
def test_only_legal_choices_and_every_run_ends(scenario: Scenario, policy: Policy) -> None:
    ran = run_compiled(scenario, policy)
    assert ran.outcome.illegal == 0
    if not any(disturbance.what == "down" for disturbance in scenario.disturbances):
        assert ran.outcome.unfinished == 0


@settings(max_examples=20)
@given(scenarios(), st.sampled_from((*POLICIES, *ALLOX)))
def test_the_same_run_twice_is_the_same(scenario: Scenario, policy: Policy) -> None:
    assert run_compiled(scenario, policy).events == run_compiled(scenario, policy).events
