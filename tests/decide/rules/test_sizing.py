"""Policies that resize jobs: who gets how many GPUs, of which model, and that every run ends."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import Ran, run_compiled
from tests.decide.two_models import ADA, BELL, cluster_of, finishes, run, stops
from tests.strategies import Scenario, scenarios

from adlro.core.policy import Policy
from adlro.core.records import Job
from adlro.core.tables import NOBODY
from adlro.decide.catalogue import policies
from adlro.decide.network import sizing_q
from adlro.decide.rules import marginal, plan_elastic, sizing
from adlro.decide.rules.elastic import Sizing, SizingProblem, packs_well
from adlro.decide.rules.marginal import afs_sizing, optimus_sizing
from adlro.decide.rules.plan_elastic import plan_sizing
from adlro.decide.rules.sizing import _nothing_printed, change_factor, rank_sizing, sia_sizing
from adlro.decide.stops import with_few_stops

POLICIES = (*sizing.POLICIES, *marginal.POLICIES, *plan_elastic.POLICIES, *sizing_q.POLICIES)
BY_NAME = {policy.name: policy for policy in POLICIES}
RANK, SIA, POLLUX = BY_NAME["rank-elastic"], BY_NAME["sia"], BY_NAME["pollux"]
SIZES = "1,2,4,8"


def sizes(ran: Ran) -> list[tuple[float, int, int]]:
    """When which job was started with how many GPUs."""
    found: list[list[float]] = []
    for time, what, job, detail in ran.events:
        if what == "start":
            found.append([time, job, len(detail[1])])  # type: ignore[arg-type]
        elif what == "spread":
            found[-1][2] += len(detail[1])  # type: ignore[arg-type]
    return [(time, int(job), int(gpus)) for time, job, gpus in found]


AFS, OPTIMUS = BY_NAME["afs"], BY_NAME["optimus"]


@pytest.mark.parametrize("policy", [RANK, POLLUX, AFS, OPTIMUS], ids=lambda policy: policy.name)
def test_a_job_alone_gets_all_gpus_that_it_can_use(policy: Policy) -> None:
    ran = run(policy, cluster_of({ADA: 4}), [Job("same", 400.0, sizes=SIZES)])
    assert sizes(ran) == [(0.0, 0, 4)]
    assert finishes(ran) == {0: 100.0}


def test_under_sia_a_job_begins_small_and_at_most_doubles_in_a_round() -> None:
    ran = run(SIA, cluster_of({ADA: 4}), [Job("same", 4000.0, sizes=SIZES)])
    assert [(time, gpus) for time, _, gpus in sizes(ran)] == [(0.0, 1), (60.0, 2), (120.0, 4)]


def test_under_rank_weights_the_first_of_two_equal_jobs_that_scale_perfectly_gets_everything() -> None:
    ran = run(RANK, cluster_of({ADA: 4}), [Job("same", 400.0, sizes=SIZES)] * 2)
    assert sizes(ran) == [(0.0, 0, 4), (120.0, 1, 4)]


@pytest.mark.parametrize("policy", [SIA, POLLUX], ids=lambda policy: policy.name)
def test_two_equal_jobs_share_the_gpus_equally(policy: Policy) -> None:
    ran = run(policy, cluster_of({ADA: 4}), [Job("same", 4000.0, sizes=SIZES)] * 2)
    first = {job: gpus for time, job, gpus in sizes(ran) if time <= 120.0}
    assert first == {0: 2, 1: 2}


def problem_of(work: list[float], sizes: list[int], gpus: float, restart: float = 0.0) -> SizingProblem:
    """Waiting jobs that run twice as fast on twice the GPUs, on one pool."""
    jobs, count = len(work), len(sizes)
    owner = np.repeat(np.arange(jobs, dtype=np.int32), count)
    size = np.tile(np.array(sizes, np.int32), jobs)
    return SizingProblem(
        np.arange(jobs), np.array(work), np.full(jobs, restart), np.zeros(jobs), np.zeros(jobs),
        np.full(jobs, NOBODY, np.int32), np.zeros(jobs), np.zeros(jobs, bool), np.ones(jobs, bool), owner,
        np.zeros(jobs * count, np.int32), size.astype(float), size,
        size.astype(float), np.array([gpus]),
    )  # fmt: skip


def test_rank_weights_give_the_short_job_more_than_the_long_one() -> None:
    # Speed is linear, so the greedy filling serves the largest weight first: sqrt(3) for the shorter, 1 for the longer.
    problem = problem_of([100.0, 900.0], [1, 2, 3], 3.0)
    assert rank_sizing(problem).tolist() == [2, NOBODY]
    problem = problem_of([900.0, 100.0], [1, 2, 3], 4.0)
    assert rank_sizing(problem).tolist() == [0, 5]


def test_rank_weights_do_not_resize_a_job_that_would_lose_more_than_it_gains() -> None:
    problem = problem_of([1000.0], [2, 4], 4.0, restart=800.0)
    running = problem._replace(now=np.array([0], np.int32))
    # 4 GPUs would take 250 s, but only 250 / 1050 of their doubled speed would be left.
    assert rank_sizing(running).tolist() == [0]
    cheap = running._replace(restart=np.array([10.0]))
    assert rank_sizing(cheap).tolist() == [1]


def test_sias_program_has_the_least_sum_of_costs() -> None:
    # A job costs 1 with one GPU, 0.71 with two, 1.1 with none. Four GPUs for three: two, two and none (2.51), not two,
    # one and one (2.71). Four for four: one each (4), and not two, one, one and none (3.81), if nobody may double.
    running = problem_of([100.0] * 3, [1, 2], 4.0)._replace(
        now=np.array([0, 2, 4], np.int32), starts=np.ones(3), age=np.full(3, 1e6), most=np.ones(3)
    )
    picked = sia_sizing(running)
    assert sorted(picked.tolist()).index(NOBODY) == 0
    assert np.count_nonzero(picked != NOBODY) == 2
    new = sia_sizing(problem_of([100.0] * 4, [1, 2], 4.0))
    assert new.tolist() == [0, 2, 4, 6]


def test_of_two_equal_gains_afs_serves_the_shorter_job_and_optimus_the_one_that_saves_more_time() -> None:
    # Speed is linear. After two steps of Optimus both have one GPU; then the long one saves 450 s, the short one 50 s.
    # Under AFS the short one has two before the long one has any, as 1 / 1 is not more than 1 / 1. Then it is 1 / 2.
    problem = problem_of([900.0, 100.0], [1, 2, 3], 3.0)
    assert problem.size[afs_sizing(problem)].tolist() == [1, 2]
    assert problem.size[optimus_sizing(problem)].tolist() == [2, 1]


def test_under_afs_a_long_job_that_scales_gets_what_a_short_one_would_waste() -> None:
    problem = problem_of([900.0, 100.0], [1, 2], 3.0)
    wasteful = problem._replace(rate=np.array([1.0, 2.0, 1.0, 1.1]))
    assert problem.size[afs_sizing(wasteful)].tolist() == [2, 1]


def test_under_optimus_every_job_has_a_gpu_before_one_has_two_and_the_first_come_first() -> None:
    assert optimus_sizing(problem_of([900.0, 100.0, 100.0], [1, 2], 2.0)).tolist() == [0, 2, NOBODY]
    assert afs_sizing(problem_of([900.0, 100.0, 50.0], [1, 2], 2.0)).tolist() == [NOBODY, NOBODY, 5]


@pytest.mark.parametrize("sizing", [afs_sizing, optimus_sizing])
def test_a_step_that_makes_a_job_no_faster_is_not_taken_and_a_job_stays_on_its_model(sizing: Sizing) -> None:
    flat = problem_of([900.0], [1, 2], 2.0)._replace(rate=np.array([1.0, 1.0]))
    assert sizing(flat).tolist() == [0]
    two = problem_of([900.0], [1, 1], 1.0)._replace(
        pool=np.array([0, 1], np.int32), rate=np.array([1.0, 3.0]), capacity=np.array([1.0, 1.0])
    )
    assert sizing(two).tolist() == [1]  # on its fastest model, if it waits
    assert sizing(two._replace(now=np.array([0], np.int32))).tolist() == [0]


def test_plan_elastic_takes_fewer_gpus_for_a_job_if_longer_jobs_want_them() -> None:
    # Speeds 2 and 3 with two and four GPUs. Alone: 33 s with four, not 50 s with two. If a longer job wants all four,
    # four cost 33 * (1 + 2.5 * 4/4 * 1) = 117 s and two 50 * (1 + 2.5 * 2/4 * (4 - 0.75 * 2)/4) = 89 s.
    alone = problem_of([100.0], [2, 4], 4.0)._replace(rate=np.array([2.0, 3.0]))
    assert plan_sizing(alone).tolist() == [1]
    two = problem_of([100.0, 900.0], [2, 4], 4.0)._replace(rate=np.array([2.0, 3.0] * 2))
    assert plan_sizing(two).tolist() == [0, 2]
    linear = two._replace(rate=np.array([2.0, 4.0] * 2))  # 87.5 s with four, 89 s with two
    assert plan_sizing(linear).tolist() == [1, NOBODY]


def test_plan_elastic_resizes_a_running_job_only_if_that_pays_within_the_horizon() -> None:
    running = problem_of([1e5], [1, 2], 2.0, restart=500.0)._replace(now=np.array([0], np.int32))
    assert plan_sizing(running).tolist() == [1]  # 1e5 / 2 * (1 + 500 / 600) is less than 1e5
    dear = running._replace(restart=np.array([700.0]))
    assert plan_sizing(dear).tolist() == [0]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_jobs_that_may_not_be_stopped_keep_their_gpus_and_the_rest_is_shared(policy: Policy) -> None:
    limited = with_few_stops(policy, 0)
    ran = run(limited, cluster_of({ADA: 4}), [Job("same", 4000.0, sizes="1"), Job("same", 400.0, 70.0, sizes="1,2,4")])
    assert stops(ran) == []
    assert sizes(ran)[0] == (0.0, 0, 1)
    assert len(sizes(ran)) == 2
    assert policy in policies()


def test_sia_starts_a_job_on_a_share_of_a_gpu() -> None:
    assert finishes(run(SIA, cluster_of({ADA: 1}), [Job("same", 25.0, share=250)])) == {0: 100.0}


def test_the_solver_prints_nothing_and_our_output_is_back_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with _nothing_printed():
        os.write(1, b"a line of the solver")
    print("ours")
    assert capfd.readouterr().out == "ours\n"


def test_under_sia_a_job_that_still_pays_for_its_start_stays_as_it_is() -> None:
    problem = problem_of([100.0], [1, 2, 4], 4.0)._replace(
        now=np.array([0], np.int32), most=np.array([4.0]), age=np.full(1, 1e6), starts=np.ones(1)
    )
    assert sia_sizing(problem).tolist() == [2]
    assert sia_sizing(problem._replace(restarting=np.array([True]))).tolist() == [0]


def test_a_change_counts_less_the_more_a_young_job_has_restarted() -> None:
    problem = problem_of([1.0] * 4, [1], 4.0, restart=50.0)._replace(
        now=np.array([0, 1, 2, NOBODY], np.int32), age=np.array([450.0, 450.0, 100.0, 0.0]),
        starts=np.array([1.0, 3.0, 9.0, 0.0]),
    )  # fmt: skip
    assert change_factor(problem).tolist() == pytest.approx([450 / 500, 350 / 500, 0.01, 1.0])


@pytest.mark.parametrize(
    ("gpus", "node", "well"), [(1, 4, True), (3, 4, False), (4, 4, True), (6, 4, False), (8, 4, True), (3, 3, True)]
)
def test_powers_of_two_on_a_node_and_whole_nodes_pack_well(gpus: int, node: int, well: bool) -> None:
    assert packs_well(gpus, node) == well


def test_a_whole_node_is_cleared_for_a_job_that_needs_it() -> None:
    # Four small jobs hold one GPU of each node or more; a gang of two nodes finds room only if they move together.
    small = [Job("same", 9000.0 + i) for i in range(4)]
    gang = Job("same", 400.0, submit_s=10.0, gpus=4)
    ran = run(RANK, cluster_of({ADA: 4}, {ADA: 4}), [*small, gang])
    assert [job for time, job, _ in sizes(ran) if time == 60.0 and job == 4] == [4]


def test_a_job_goes_to_the_model_on_which_it_is_fast() -> None:
    ran = run(RANK, cluster_of({ADA: 2}, {BELL: 2}), [Job("ada", 900.0, sizes="1,2"), Job("bell", 900.0, sizes="1,2")])
    assert stops(ran) == []
    assert finishes(ran) == {0: 450.0, 1: 450.0}


@settings(max_examples=40)
@given(scenarios(), st.sampled_from(POLICIES))
def test_only_legal_choices_and_every_run_ends(scenario: Scenario, policy: Policy) -> None:
    ran = run_compiled(scenario, policy)
    assert ran.outcome.illegal == 0
