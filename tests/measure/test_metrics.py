"""Each measure on a run small enough to work out by hand."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adlro.core.heat import IDLE_POWER
from adlro.core.run import Run
from adlro.core.tables import (
    DONE,
    DOWN,
    FAILED,
    NOBODY,
    OVERRAN,
    SPREAD,
    STARTED,
    STOPPED,
    TURNED_AWAY,
    UP,
)
from adlro.measure import metrics
from adlro.measure.metrics import measure

Build = Callable[..., Run]
CAPACITY = 6  # GPUs
WATTS = 2 * 300 + 2 * 300 + 2 * 70


def one_after_another(build: Build) -> Run:
    """Two jobs on one V100: 0 of 20 s from 0, 1 of 40 s, submitted at 10, from 20."""
    jobs = [{"work": 20}, {"work": 40, "submit": 10, "user": 2}]
    return build(jobs, [(0, STARTED, 0, 0, 1), (20, DONE, 0), (20, STARTED, 1, 0, 1), (60, DONE, 1)])


def test_completion_and_waiting_are_counted_from_submission(build: Build) -> None:
    found = measure(one_after_another(build))
    assert (found.jobs, found.finished, found.killed, found.unfinished, found.refused) == (2, 2, 0, 0, 0)
    assert found.jct_mean_s == pytest.approx((20 + 50) / 2)
    assert found.jct_p50_s == pytest.approx(35)
    assert found.jct_p95_s == pytest.approx(20 + 0.95 * 30)
    assert found.jct_p99_s == pytest.approx(20 + 0.99 * 30)
    assert found.wait_mean_s == pytest.approx((0 + 10) / 2)
    assert found.wait_p95_s == pytest.approx(9.5)
    assert found.makespan_s == 60
    assert found.throughput_per_h == pytest.approx(2 * 60)


def test_a_job_counts_by_its_priority_in_the_weighted_mean_and_waits_in_its_class(build: Build) -> None:
    # JCTs of 20 and 50, weights of 0.5 and 2; waits of 0 and 10.
    run = one_after_another(build)
    assert measure(run).jct_weighted_mean_s == measure(run).jct_mean_s
    run.jobs.table.priority[:] = [0.25, 1.0]
    found = measure(run)
    assert found.jct_weighted_mean_s == pytest.approx((0.5 * 20 + 2 * 50) / 2.5)
    assert (found.wait_priority_1_s, found.wait_priority_4_s) == (0, 10)
    assert (found.wait_priority_2_s, found.wait_priority_3_s) == (None, None)
    assert found.wait_p99_s == pytest.approx(9.9)


def test_the_most_stops_are_those_of_the_job_that_was_stopped_most_often(build: Build) -> None:
    events = [(0, STARTED, 0, 0, 1), (0, STARTED, 1, 0, 2), (5, STOPPED, 0, 0, 1), (5, STARTED, 0, 0, 1)]
    events += [(6, STOPPED, 0, 0, 1), (6, STARTED, 0, 0, 1), (7, STOPPED, 1, 0, 2), (7, STARTED, 1, 0, 2)]
    found = measure(build([{"work": 20}, {"work": 20}], [*events, (20, DONE, 0), (20, DONE, 1)]))
    assert (found.preemptions, found.most_stops) == (3, 2)


def test_slowdown_is_against_the_best_runtime_and_bounded(build: Build) -> None:
    jobs = [{"work": 20}, {"work": 1}]  # on the slow GPU: 40 s instead of 20 s; 5 s count against 10 s
    run = build(jobs, [(0, STARTED, 0, 2, 1), (3, STARTED, 1, 0, 1), (5, DONE, 1), (40, DONE, 0)])
    assert measure(run).bounded_slowdown_mean == pytest.approx((40 / 20 + 1) / 2)


def test_use_is_what_was_held_of_all_gpus(build: Build) -> None:
    found = measure(one_after_another(build))
    assert found.utilisation == pytest.approx(60 / (CAPACITY * 60))
    assert found.effective_utilisation == pytest.approx(60 / (CAPACITY * 60))
    assert found.idle_gpu_s == pytest.approx(5 * 60)


def test_a_share_holds_and_burns_its_part_of_a_gpu(build: Build) -> None:
    run = build([{"work": 5, "share": 250}], [(0, STARTED, 0, 0, 1), (20, DONE, 0)])
    found = measure(run)
    assert found.utilisation == pytest.approx(0.25 / CAPACITY)
    assert found.effective_utilisation == pytest.approx(0.25 / CAPACITY)
    watts = 0.25 * 300 + IDLE_POWER * (WATTS - 0.25 * 300)
    assert found.energy_kwh == pytest.approx(watts * 20 / 3.6e6)


def test_a_gang_over_two_nodes_holds_all_its_gpus(build: Build) -> None:
    events = [(2, STARTED, 0, 0, 0b11), (2, SPREAD, 0, 1, 0b11), (12, DONE, 0)]
    found = measure(build([{"work": 40, "gpus": 4, "submit": 2}], events))
    assert found.utilisation == pytest.approx(4 / CAPACITY)
    assert found.effective_utilisation == pytest.approx(4 / CAPACITY)
    assert found.wait_mean_s == 0
    assert found.energy_kwh == pytest.approx((4 * 300 + IDLE_POWER * 140) * 10 / 3.6e6)


def test_a_slow_gpu_is_used_but_less_effectively(build: Build) -> None:
    found = measure(build([{"work": 10}], [(0, STARTED, 0, 2, 1), (20, DONE, 0)]))
    assert found.utilisation == pytest.approx(1 / CAPACITY)
    assert found.effective_utilisation == pytest.approx(0.5 / CAPACITY)


def test_restarts_and_lost_work_are_not_effective(build: Build) -> None:
    # 4 s of work, stopped; 5 s of restart and 3 s of work, of which 2 are lost; 5 s of restart and the last 5 s.
    events: list[tuple[Any, ...]] = [
        (0, STARTED, 0, 0, 1),
        (4, STOPPED, 0),
        (4, STARTED, 0, 1, 1),
        (12, DOWN, NOBODY, 1),
    ]
    events += [(12, FAILED, 0, 1, 1, 2.0), (12, STARTED, 0, 0, 1), (22, DONE, 0)]
    found = measure(build([{"work": 10}], events))
    assert found.utilisation == pytest.approx(1 / CAPACITY)
    assert found.effective_utilisation == pytest.approx(10 / 22 / CAPACITY)
    assert (found.preemptions, found.failures, found.work_lost) == (1, 1, 2.0)
    assert found.wait_mean_s == 0


def test_a_killed_job_is_no_completion_but_used_its_gpus(build: Build) -> None:
    jobs = [{"work": 10}, {"work": 100, "submit": 1}]
    events = [(0, STARTED, 0, 0, 1), (5, STARTED, 1, 2, 1), (10, DONE, 0), (15, FAILED, 1, 2, 1, 1.0)]
    events += [(15, STARTED, 1, 2, 1), (20, OVERRAN, 1)]
    found = measure(build(jobs, events))
    assert (found.finished, found.killed) == (1, 1)
    assert found.jct_mean_s == 10
    assert found.wait_mean_s == pytest.approx((0 + 4) / 2)
    assert found.makespan_s == 20
    assert found.throughput_per_h == pytest.approx(3600 / 20)
    assert found.effective_utilisation == pytest.approx((10 + 15 * 0.5 - 1) / (20 * CAPACITY))


def test_a_killed_gang_did_its_work_once(build: Build) -> None:
    events = [(0, STARTED, 0, 0, 3), (0, SPREAD, 0, 1, 3), (10, OVERRAN, 0)]
    assert measure(build([{"work": 99, "gpus": 4}], events)).effective_utilisation == pytest.approx(4 / CAPACITY)


def test_unfinished_and_refused_jobs_are_counted_apart(build: Build) -> None:
    jobs = [{"work": 10}, {"work": 50}, {"work": 50, "submit": 1}, {"work": 1, "submit": 2, "gpus": 99}]
    events = [(0, STARTED, 0, 0, 1), (0, STARTED, 1, 0, 2), (2, TURNED_AWAY, 3), (10, DONE, 0)]
    found = measure(build(jobs, events, unfinished=2, refusals={3: "too wide"}, illegal=4))
    assert (found.jobs, found.finished, found.unfinished, found.refused, found.illegal) == (4, 1, 2, 1, 4)
    assert found.utilisation == pytest.approx(2 / CAPACITY)
    assert found.effective_utilisation == pytest.approx(2 / CAPACITY)


def test_without_jobs_everything_is_missing_and_nothing_is_zero(build: Build) -> None:
    found = measure(build()).as_dict()
    counts = {"jobs", "finished", "killed", "unfinished", "refused", "preemptions", "most_stops", "failures"}
    counts |= {"work_lost", "illegal"}
    assert {name for name, value in found.items() if value is not None} == counts
    assert json.loads(json.dumps(found, allow_nan=False))["jct_mean_s"] is None


def test_a_job_that_only_waited_leaves_the_measures_missing(build: Build) -> None:
    found = measure(build([{"work": 1}], unfinished=1))
    assert found.unfinished == 1
    assert (found.jct_mean_s, found.wait_mean_s, found.makespan_s, found.utilisation) == (None,) * 4


def test_a_job_without_gpus_takes_no_capacity(build: Build) -> None:
    found = measure(build([{"work": 20, "gpus": 0}], [(0, STARTED, 0, 0, 0), (20, DONE, 0)]))
    assert found.bounded_slowdown_mean == 1
    assert (found.utilisation, found.effective_utilisation) == (0, 0)
    assert found.finish_time_fairness_mean == 1


def test_jobs_of_no_length_do_not_divide_by_zero(build: Build) -> None:
    found = measure(build([{"work": 0, "submit": 5}], [(5, STARTED, 0, 0, 1), (5, DONE, 0)]))
    assert (found.makespan_s, found.jct_mean_s, found.bounded_slowdown_mean) == (0, 0, 1)
    assert (found.throughput_per_h, found.utilisation, found.fragmentation) == (None, None, None)
    json.dumps(found.as_dict(), allow_nan=False)


def test_jain_compares_the_mean_slowdown_of_users(build: Build) -> None:
    run = one_after_another(build)  # slowdowns 1 (ann) and 50/40 (cy); bob has none
    assert measure(run).jain_users == pytest.approx(2.25**2 / (2 * (1 + 1.25**2)))
    run.jobs.table["user"] = 0
    assert measure(run).jain_users == pytest.approx(1)


def test_a_job_that_waits_more_than_its_share_is_treated_unfairly(build: Build) -> None:
    # Both need 2 of 6 GPUs: an equal share is enough, so 0 should take 20 s (it does) and 1 should take 40 s (50 s).
    jobs = [{"work": 40, "gpus": 2}, {"work": 80, "gpus": 2, "submit": 10}]
    run = build(jobs, [(0, STARTED, 0, 0, 3), (20, DONE, 0), (20, STARTED, 1, 0, 3), (60, DONE, 1)])
    found = measure(run)
    assert found.finish_time_fairness_mean == pytest.approx((1 + 50 / 40) / 2)
    assert found.finish_time_fairness_max == pytest.approx(50 / 40)


def test_with_company_a_large_job_may_fairly_take_longer(build: Build) -> None:
    # Each wants 4 of 6 GPUs. Over the life of 0 (0 to 20) there are 1.5 jobs on average, over that of 1 (10 to 40) 4/3:
    # either way an equal share is enough. The refused one is no company.
    jobs = [{"work": 80, "gpus": 4}, {"work": 80, "gpus": 4, "submit": 10}, {"work": 1, "gpus": 99, "submit": 10}]
    events = [(0, STARTED, 0, 0, 3), (0, SPREAD, 0, 1, 3), (10, TURNED_AWAY, 2), (20, DONE, 0)]
    events += [(20, STARTED, 1, 0, 3), (20, SPREAD, 1, 1, 3), (40, DONE, 1)]
    found = measure(build(jobs, events))
    assert found.finish_time_fairness_mean == pytest.approx((20 / (20 * 1) + 30 / 20) / 2)
    jobs[0]["submit"] = jobs[1]["submit"] = 0
    found = measure(build(jobs, events))  # now 0 has company all its life: 2 · 4/6 = 4/3 times the runtime is fair
    assert found.finish_time_fairness_mean == pytest.approx((20 / (20 * 4 / 3) + 40 / 20) / 2)
    assert found.finish_time_fairness_max == pytest.approx(2)


def test_fragmentation_is_free_capacity_in_partly_used_sites(build: Build) -> None:
    # To 10: one GPU of site 0 held, 1 of 5 free lies beside it. To 20: site 0 full, none of 4.
    events = [(0, STARTED, 0, 0, 1), (10, STARTED, 1, 0, 2), (20, DONE, 0), (20, DONE, 1)]
    run = build([{"work": 20}, {"work": 10}], events)
    assert measure(run).fragmentation == pytest.approx((1 / 5 + 0) / 2)


def test_the_rest_of_a_shared_gpu_is_fragmented(build: Build) -> None:
    run = build([{"work": 2, "share": 400}], [(0, STARTED, 0, 1, 2), (5, DONE, 0)])
    assert measure(run).fragmentation == pytest.approx(1.6 / 5.6)


def test_gpus_that_are_down_are_not_free(build: Build) -> None:
    events = [(0, DOWN, NOBODY, 1), (0, STARTED, 0, 0, 1), (5, UP, NOBODY, 1), (10, DONE, 0)]
    assert measure(build([{"work": 10}], events)).fragmentation == pytest.approx((1 / 3 + 1 / 5) / 2)


def test_a_full_cluster_has_no_fragmentation_to_measure(build: Build) -> None:
    jobs = [{"work": 4, "gpus": 2}] * 3
    run = build(jobs, [(0, STARTED, job, job, 3) for job in range(3)] + [(4, DONE, job) for job in range(3)])
    assert measure(run).fragmentation is None


def test_sampled_fragmentation_is_near_the_exact_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    events: list[tuple[Any, ...]] = [
        (time, STARTED, job, job % 3, 1 + job // 3 % 2) for job, time in enumerate(random.uniform(0, 50, 6))
    ]
    events += [(time, DONE, job) for job, time in enumerate(random.uniform(50, 100, 6))]
    run = build([{"work": 1}] * 6, sorted(events))
    exact = measure(run).fragmentation
    monkeypatch.setattr(metrics, "MOMENTS", 11)
    rough = measure(run).fragmentation
    assert rough != exact
    assert rough == pytest.approx(exact, abs=0.1)
