"""Lower bounds on the mean JCT."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.core.run import Run
from adlro.core.tables import DONE, STARTED
from adlro.measure.bounds import Bounds, fastest_runtime_bound, lower_bounds, pooled_srpt_bound
from adlro.measure.metrics import measure

ONE_KIND = np.array([[1.0]])


def pooled(submit: list[float], work: list[float], gpus: float = 1.0) -> float | None:
    """The bound for jobs of one GPU and one kind on so many equal GPUs."""
    count = len(submit)
    kind = np.zeros(count, np.int32)
    return pooled_srpt_bound(
        np.array(submit, np.float64), np.array(work, np.float64), kind, np.ones(count), ONE_KIND, np.array([gpus])
    )


def test_each_job_counts_at_its_own_fastest_rate() -> None:
    work, kind = np.array([10.0, 10.0, 10.0]), np.array([0, 1, 2], np.int32)
    assert fastest_runtime_bound(work, kind, np.array([1.0, 2.0, 0.0])) == pytest.approx((10 + 5) / 2)
    assert fastest_runtime_bound(work[:0], kind[:0], np.array([1.0])) is None


def test_the_shorter_job_goes_first_and_interrupts() -> None:
    assert pooled([0, 0], [10, 4]) == pytest.approx((4 + 14) / 2)
    assert pooled([0, 2], [10, 4]) == pytest.approx((14 + 4) / 2)
    assert pooled([0, 2], [10, 4], gpus=2) == pytest.approx((7 + 2) / 2)
    assert pooled([], []) is None


def test_a_slow_model_adds_only_its_own_speed_to_the_pool() -> None:
    rate, kind = np.array([[1.0, 0.25]]), np.zeros(1, np.int32)
    bound = pooled_srpt_bound(np.zeros(1), np.array([10.0]), kind, np.ones(1), rate, np.array([1.0, 4.0]))
    assert bound == pytest.approx(10 / 2)


def test_counting_gpu_seconds_is_tighter_where_kinds_differ() -> None:
    # Kind 0 is fast everywhere, kind 1 slow everywhere: counted in work, a slow job would look quick.
    rate, kind = np.array([[10.0], [1.0]]), np.array([0, 1], np.int32)
    bound = pooled_srpt_bound(np.zeros(2), np.array([10.0, 20.0]), kind, np.ones(2), rate, np.array([1.0]))
    assert bound == pytest.approx((1 + 21) / 2)


def test_shares_and_jobs_without_gpus_ask_for_what_they_hold() -> None:
    rate, kind = np.array([[0.5], [1.0]]), np.array([0, 1], np.int32)
    bound = pooled_srpt_bound(np.zeros(2), np.array([4.0, 9.0]), kind, np.array([0.5, 0.0]), rate, np.array([2.0]))
    assert bound == pytest.approx((4 / 2 + 0) / 2)


JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(jobs=JOBS, gpus=st.integers(1, 3))
def test_no_order_of_starting_jobs_beats_the_bounds(jobs: list[tuple[int, int]], gpus: int) -> None:
    submit, work = [float(job[0]) for job in jobs], [float(job[1]) for job in jobs]
    best = np.inf
    for order in permutations(range(len(jobs))):
        free, jct = [0.0] * gpus, 0.0
        for job in order:
            gpu = free.index(min(free))
            free[gpu] = max(free[gpu], submit[job]) + work[job]
            jct += free[gpu] - submit[job]
        best = min(best, jct / len(jobs))
    bound = pooled(submit, work, gpus)
    assert bound is not None
    assert max(bound, sum(work) / len(work)) <= best + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    jobs=JOBS,
    rate=st.lists(st.lists(st.floats(0.1, 9), min_size=3, max_size=3), min_size=2, max_size=2),
    gpus=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    more=st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
def test_more_gpus_never_raise_the_pooled_bound(
    jobs: list[tuple[int, int]], rate: list[list[float]], gpus: list[int], more: list[int]
) -> None:
    submit, work = np.array(jobs, np.float64).T
    kind = np.arange(len(jobs), dtype=np.int32) % 2
    small, large = np.array(gpus, np.float64), np.array(gpus, np.float64) + more
    table = np.array(rate)

    def bound(form_gpus: np.ndarray) -> float | None:
        there = table * (form_gpus > 0)  # a shape without GPUs is no place to run
        return pooled_srpt_bound(submit, work, kind, np.ones(len(jobs)), there, form_gpus)

    before, after = bound(small), bound(large)
    assert before is None or (after is not None and after <= before + 1e-9)


def test_a_run_is_never_better_than_its_bounds(build: Callable[..., Run]) -> None:
    jobs = [{"work": 20}, {"work": 40, "submit": 10}, {"work": 999, "submit": 11}]
    run = build(jobs, [(0, STARTED, 0, 0, 1), (20, DONE, 0), (20, STARTED, 1, 0, 1), (60, DONE, 1)], unfinished=1)
    bounds = lower_bounds(run)
    assert bounds.fastest_runtime_s == pytest.approx(30)
    assert bounds.pooled_srpt_s == pytest.approx((20 / 5 + 40 / 5) / 2)  # 4 V100 and 2 T4 of half the speed
    assert bounds.best_s == bounds.fastest_runtime_s
    assert measure(run).jct_mean_s == pytest.approx(35)
    assert lower_bounds(build()) == Bounds(None, None, None)
