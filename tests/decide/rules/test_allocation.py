"""Shares of time, rounds and matchings: small cases by hand, optimality against plain formulations, odd input."""

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from adlro.core.tables import NOBODY, Floats
from adlro.decide.rules.allocation import (
    agnostic,
    allox,
    max_min,
    max_sum,
    min_makespan,
    pick_round,
    round_priorities,
    spread,
)

Solve: TypeAlias = Callable[[Floats, Floats, Floats, Floats], Floats]

ONE_EACH = np.array([1.0, 1.0])
GAVEL_EXAMPLE = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])


def ones(count: int) -> Floats:
    return np.ones(count)


def normalised(throughput: Floats, gpus: Floats, capacity: Floats, weight: Floats) -> Floats:
    """What max_min compares, written out a second time."""
    equal_share = capacity / capacity.sum()
    gain: Floats = throughput * (gpus / weight / (throughput * equal_share).sum(axis=1))[:, None]
    return gain


def least_by_a_plain_program(gain: Floats, gpus: Floats, capacity: Floats) -> float:
    """The largest least gain, from the textbook form of the program: no groups, no change of variables."""
    jobs, models = gain.shape
    upper = np.zeros((2 * jobs + models, jobs * models + 1))
    for job in range(jobs):
        own = slice(job * models, (job + 1) * models)
        upper[job, own] = 1.0
        upper[jobs : jobs + models, own] = np.eye(models) * gpus[job]
        upper[jobs + models + job, own] = -gain[job]
        upper[jobs + models + job, -1] = 1.0
    limits = np.concatenate((np.ones(jobs), capacity, np.zeros(jobs)))
    cost = np.zeros(jobs * models + 1)
    cost[-1] = -1.0
    return -float(linprog(cost, A_ub=upper, b_ub=limits).fun)


def assert_feasible(shares: Floats, throughput: Floats, gpus: Floats, capacity: Floats) -> None:
    assert np.isfinite(shares).all()
    assert (shares >= 0).all()
    assert (shares[throughput <= 0] == 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-12).all()
    assert (gpus @ shares <= capacity * (1 + 1e-12)).all()


def test_max_min_finds_the_allocation_of_gavels_paper() -> None:
    shares = max_min(GAVEL_EXAMPLE, ones(3), ONE_EACH, ones(3))
    assert shares == pytest.approx(np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]]), abs=0.01)


def test_max_min_gives_the_fast_model_to_the_job_that_gains_from_it() -> None:
    shares = max_min(np.array([[2.0, 1.0], [1.0, 1.0]]), ones(2), ONE_EACH, ones(2))
    assert shares == pytest.approx(np.eye(2), abs=1e-6)


def test_max_min_uses_what_the_least_job_cannot() -> None:
    throughput = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 5.0]])
    shares = max_min(throughput, ones(3), ONE_EACH, ones(3))
    assert shares == pytest.approx(np.array([[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_twice_the_weight_gets_twice_the_time() -> None:
    shares = max_min(np.ones((2, 1)), ones(2), np.array([1.0]), np.array([2.0, 1.0]))
    assert shares[:, 0] == pytest.approx([2 / 3, 1 / 3])


def test_a_gang_of_four_gets_a_quarter_of_the_time_of_a_single_job() -> None:
    shares = max_min(np.ones((9, 1)), np.array([4.0] + [1.0] * 8), np.array([4.0]), ones(9))
    assert shares[0, 0] == pytest.approx(shares[1, 0] / 4)


def test_a_gang_takes_what_a_job_with_all_its_time_leaves() -> None:
    shares = max_min(np.array([[4.0], [1.0]]), np.array([4.0, 1.0]), np.array([4.0]), ones(2))
    assert shares[:, 0] == pytest.approx([0.75, 1.0])


def test_makespan_shares_end_all_jobs_together_when_gpus_are_short() -> None:
    throughput = np.array([[2.0], [1.0], [1.0]])
    left = np.array([600.0, 100.0, 300.0])
    shares = min_makespan(throughput, ones(3), np.array([1.0]), left)
    assert left / (throughput * shares).sum(axis=1) == pytest.approx([700.0] * 3)


def test_makespan_copes_with_works_of_very_different_sizes() -> None:
    throughput = np.tile([3.0, 1.0], (20, 1))
    left = np.geomspace(1e4, 1e11, 20)
    shares = min_makespan(throughput, ones(20), np.array([2.0, 2.0]), left)
    assert_feasible(shares, throughput, ones(20), np.array([2.0, 2.0]))
    # The longest job alone needs 1e11 / 3 s on the fast model, and no job needs more.
    assert (left / (throughput * shares).sum(axis=1)).max() == pytest.approx(1e11 / 3, rel=1e-6)


def test_max_sum_serves_whom_a_model_suits_best() -> None:
    # Against its best, the first job loses 3/4 on the second model, the last one 1/2: that one should go there.
    shares = max_sum(GAVEL_EXAMPLE, ones(3), ONE_EACH, ones(3))
    assert shares == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_max_sum_serves_the_earlier_of_jobs_alike_whole() -> None:
    throughput = np.tile([2.0, 1.0], (4, 1))
    shares = max_sum(throughput, ones(4), np.array([1.0, 1.0]), ones(4))
    assert shares == pytest.approx(np.array([[1, 0], [0, 1], [0, 0], [0, 0]]), abs=1e-6)


def test_agnostic_twins_see_where_a_job_runs_and_nothing_more() -> None:
    assert agnostic(np.array([[3.0, 0.0], [0.1, 7.0]])).tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_jobs_alike_get_the_same_share() -> None:
    throughput = np.repeat(GAVEL_EXAMPLE, 3, axis=0)
    shares = max_min(throughput, ones(9), ONE_EACH, ones(9))
    assert (shares[0::3] == shares[1::3]).all()
    assert (shares[0::3] == shares[2::3]).all()


@pytest.mark.parametrize("solve", [max_min, max_sum, min_makespan])
def test_nothing_to_share_is_no_error(solve: Solve) -> None:
    assert solve(np.zeros((0, 2)), ones(0), ONE_EACH, ones(0)).shape == (0, 2)
    assert solve(np.ones((2, 0)), ones(2), ones(0), ones(2)).shape == (2, 0)
    assert not solve(GAVEL_EXAMPLE, ones(3), np.zeros(2), ones(3)).any()
    assert not solve(np.zeros((2, 2)), ones(2), ONE_EACH, ones(2)).any()


@pytest.mark.parametrize("solve", [max_min, max_sum, min_makespan])
def test_a_job_that_runs_nowhere_takes_nothing_from_the_others(solve: Solve) -> None:
    throughput = np.array([[0.0, 0.0], [2.0, 1.0], [9.0, 9.0]])
    gpus = np.array([1.0, 1.0, 5.0])  # the last one is larger than every model
    shares = solve(throughput, gpus, ONE_EACH, ones(3))
    assert not shares[[0, 2]].any()
    assert shares[1] == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("solve", [max_min, max_sum, min_makespan])
def test_a_job_without_gpus_runs_all_the_time_beside_the_others(solve: Solve) -> None:
    shares = solve(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([0.0, 1.0]), ONE_EACH, ones(2))
    assert shares == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-6)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Floats, Floats, Floats]:
    seed = draw(st.integers(0, 2**32 - 1))
    jobs = draw(st.integers(1, 12))
    models = draw(st.integers(1, 4))
    random = np.random.default_rng(seed)
    throughput = random.choice([0.0, 0.3, 1.0, 2.0, 50.0], size=(jobs, models))
    gpus = random.choice([0.25, 1.0, 2.0, 4.0], size=jobs)
    return throughput, gpus, random.integers(0, 9, models).astype(float), random.choice([0.2, 1.0, 1.0], size=jobs)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_allocation_is_feasible(problem: tuple[Floats, Floats, Floats, Floats]) -> None:
    throughput, gpus, capacity, weight = problem
    for solve in (max_min, max_sum, min_makespan):
        assert_feasible(solve(throughput, gpus, capacity, weight), throughput, gpus, capacity)


@pytest.mark.parametrize("seed", range(8))
def test_max_min_and_makespan_reach_the_optimum_of_the_plain_program(seed: int) -> None:
    random = np.random.default_rng(seed)
    throughput = random.uniform(0.1, 5.0, (9, 3)).repeat(2, axis=0)
    gpus = random.choice([0.5, 1.0, 2.0], 9).repeat(2)
    capacity = random.integers(2, 12, 3).astype(float)
    weight = random.uniform(0.2, 1.0, 9).repeat(2)
    for gain, shares in (
        (normalised(throughput, gpus, capacity, weight), max_min(throughput, gpus, capacity, weight)),
        (throughput / weight[:, None], min_makespan(throughput, gpus, capacity, weight)),
    ):
        reached = float((gain * shares).sum(axis=1).min())
        assert reached == pytest.approx(least_by_a_plain_program(gain, gpus, capacity), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_max_sum_is_never_below_a_random_feasible_allocation(seed: int) -> None:
    random = np.random.default_rng(seed)
    throughput = random.uniform(0.1, 5.0, (8, 3))
    gpus = random.choice([1.0, 2.0], 8)
    capacity = np.array([3.0, 2.0, 4.0])
    worth = throughput / throughput.max(axis=1, keepdims=True)
    best = float((worth * max_sum(throughput, gpus, capacity, ones(8))).sum())
    for _ in range(200):
        guess = random.dirichlet(ones(4), 8)[:, :3] ** random.choice([0.2, 1.0, 4.0])
        guess /= np.maximum(guess.sum(axis=1), 1.0)[:, None]
        guess /= np.maximum(gpus @ guess / capacity, 1.0)
        assert float((worth * guess).sum()) <= best + 1e-9


def test_who_received_nothing_comes_first_in_the_order_of_the_shares() -> None:
    shares = np.array([[0.2, 0.0], [0.6, 0.4], [0.2, 0.6]])
    priority = round_priorities(shares, np.array([[0.0, 0.0], [0.0, 100.0], [300.0, 300.0]]))
    assert priority[1, 0] > priority[0, 0] > priority[2, 0]
    assert priority[2, 0] == pytest.approx(0.2)
    assert priority[:, 1] == pytest.approx([0.0, 0.4 / 0.25, 0.6 / 0.75])


def test_over_many_rounds_every_job_gets_its_share() -> None:
    shares = max_min(GAVEL_EXAMPLE, ones(3), ONE_EACH, ones(3))
    received = np.full((3, 2), 180.0)
    for _ in range(400):
        choice = pick_round(round_priorities(shares, received), ones(3), ONE_EACH, GAVEL_EXAMPLE)
        running = np.flatnonzero(choice != NOBODY)
        received[running, choice[running]] += 360.0
    assert received / (400 * 360.0) == pytest.approx(shares, abs=0.03)


def test_a_round_never_overfills_a_model_and_skips_a_gang_that_does_not_fit() -> None:
    priority = np.array([[9.0, 0.0], [8.0, 7.0], [1.0, 0.5]])
    choice = pick_round(priority, np.array([3.0, 4.0, 1.0]), np.array([4.0, 4.0]), np.ones((3, 2)))
    assert choice.tolist() == [0, 1, 0]


def test_equal_priorities_go_to_the_better_model_then_to_the_earlier_job() -> None:
    choice = pick_round(np.ones((3, 2)), ones(3), ONE_EACH, np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]))
    assert choice.tolist() == [1, NOBODY, 0]


def test_idle_gpus_go_to_jobs_without_a_share_only_when_asked() -> None:
    priority = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    throughput = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert pick_round(priority, ones(3), ONE_EACH, throughput).tolist() == [0, NOBODY, 1]
    assert pick_round(priority, ones(3), ONE_EACH, throughput, fill=False).tolist() == [0, NOBODY, NOBODY]


def test_a_round_of_nobody_is_empty() -> None:
    assert pick_round(np.zeros((0, 2)), ones(0), ONE_EACH, np.zeros((0, 2))).tolist() == []


def test_allox_runs_the_shortest_first_on_one_machine() -> None:
    assert allox(np.array([[5.0], [2.0], [9.0]]), np.zeros(1)).tolist() == [1]


def test_allox_waits_for_a_fast_machine_that_is_soon_free() -> None:
    duration = np.array([[1.0, 10.0]])
    assert allox(duration, np.array([3.0, 0.0])).tolist() == [0, NOBODY]
    assert allox(duration, np.array([30.0, 0.0])).tolist() == [NOBODY, 0]


def test_allox_lets_many_jobs_queue_where_alone_they_can_run() -> None:
    duration = np.full((12, 4), np.inf)
    duration[:, 2] = np.arange(12, 0, -1)
    assert allox(duration, np.zeros(4)).tolist() == [NOBODY, NOBODY, 11, NOBODY]


def test_allox_leaves_machines_empty_without_jobs_that_run() -> None:
    assert allox(np.full((2, 3), np.inf), np.zeros(3)).tolist() == [NOBODY] * 3
    assert allox(np.zeros((0, 3)), np.zeros(3)).tolist() == [NOBODY] * 3
    assert allox(np.zeros((2, 0)), np.zeros(0)).tolist() == []


@pytest.mark.parametrize("seed", range(12))
def test_allox_begins_the_plan_with_the_least_sum_of_completion_times(seed: int) -> None:
    random = np.random.default_rng(seed)
    duration = random.lognormal(2.0, 1.5, (6, 1)) * np.array([1.0, 3.0, 20.0]) * random.uniform(0.5, 1.5, (6, 3))
    ready = random.choice([0.0, 5.0, 40.0], 3)
    plans = []
    for machines in itertools.product(range(3), repeat=6):
        total, first = 0.0, [NOBODY] * 3
        for machine in range(3):
            queue = sorted((float(duration[job, machine]), job) for job in range(6) if machines[job] == machine)
            ends = np.cumsum([ready[machine], *(seconds for seconds, _ in queue)])[1:]
            total += float(ends.sum())
            if queue:
                first[machine] = queue[0][1]
        plans.append((total, first))
    assert allox(duration, ready).tolist() == min(plans)[1]


def test_allox_takes_jobs_alike_in_their_order() -> None:
    assert allox(np.full((5, 2), 7.0), np.zeros(2)).tolist() in ([0, 1], [1, 0])


def test_spread_gives_every_model_its_part_of_a_jobs_time() -> None:
    shares = np.array([[1.0, 0.0], [0.0, 0.5]])
    even = spread(shares, np.ones((2, 2)), ones(2), np.array([3.0, 1.0]))
    assert even == pytest.approx(np.array([[0.75, 0.25], [0.375, 0.125]]))


def test_spread_keeps_room_for_a_job_that_runs_on_one_model_only() -> None:
    throughput = np.array([[1.0, 0.0], [1.0, 1.0]])
    even = spread(np.eye(2), throughput, ones(2), ONE_EACH)
    assert even == pytest.approx(np.eye(2), abs=0.1)
    assert_feasible(even, throughput, ones(2), ONE_EACH)


def test_a_job_that_has_waited_for_weeks_has_a_finite_priority() -> None:
    priority = round_priorities(np.array([[0.5], [0.5]]), np.array([[5e-324], [360.0]]))
    assert np.isfinite(priority).all()
    assert priority[0, 0] > priority[1, 0]
