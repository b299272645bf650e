"""The policy against the fallback: over the same jobs, and over all of them."""

from dataclasses import replace

import numpy as np
import pytest

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import JobState, LiveJob, Part, Snapshot
from adlro.core.records import Job
from adlro.decide.catalogue import find_policy
from adlro.live.compared import LEAST_ENDED, ComparisonWindow, mean_within
from adlro.live.corrections import Corrections
from adlro.live.predicting import MeasuredJob
from adlro.live.said import as_said
from adlro.live.scene import Scenes

CLUSTER = load_cluster("paper16")
NODE = CLUSTER.nodes[0]
BEGIN_S = 1_000_000.0


def job(number: int, seconds: float) -> LiveJob:
    return LiveJob(f"{number}", Job("uniform", 0.0, BEGIN_S, gpus=1, estimate=seconds), JobState.WAITING)


def after(window: ComparisonWindow, jobs: list[LiveJob], seconds: float, ended_s: dict[str, float]) -> None:
    """Let a window pass in which these jobs ended."""
    window.note(Snapshot(BEGIN_S, CLUSTER, tuple(jobs)), {}, [])
    part = (Part(NODE.name, NODE.gpus[0].model, 1),)
    done, now = [], []
    for each in jobs:
        if each.id in ended_s:
            ended = replace(
                each, state=JobState.FINISHED, parts=part, started_s=BEGIN_S, ended_s=BEGIN_S + ended_s[each.id]
            )
            done.append(MeasuredJob(ended, ended_s[each.id], ended_s[each.id], part, None))
            now.append(ended)
        else:
            now.append(each)
    window.note(Snapshot(BEGIN_S + seconds, CLUSTER, tuple(now)), {}, done)


def compare(window: ComparisonWindow, weights: str = "equal"):  # type: ignore[no-untyped-def]
    fcfs = find_policy("fcfs-first-fit")
    return window.compare(Scenes(weights=weights), as_said, find_policy("sjf"), fcfs, Corrections(), 20.0)


def test_time_within_the_window_counts_what_has_ended_and_what_has_not() -> None:
    came, ended = np.array([0.0, 40.0, 200.0]), np.array([30.0, np.inf, np.inf])
    assert mean_within(came, ended, 100.0) == pytest.approx((30 + 60 + 0) / 3)


def test_a_policy_that_lets_jobs_wait_is_not_praised_for_the_few_it_let_go() -> None:
    jobs = [job(number, 10.0) for number in range(2 * LEAST_ENDED)]
    window = ComparisonWindow(1e6)
    after(window, jobs, 1000.0, {each.id: 10.0 for each in jobs[:LEAST_ENDED]})  # the others were left to wait
    found = compare(window)
    assert found is not None
    assert found.jobs == len(jobs)
    assert found.measured_s == pytest.approx((10 + 1000) / 2)
    assert found.fallback_s is not None
    assert found.fallback_s < 0.2 * found.measured_s  # by the jobs that ended alone it would be no better


def test_jobs_that_their_users_took_back_count_for_nobody() -> None:
    jobs = [job(number, 10.0) for number in range(LEAST_ENDED + 1)]
    window = ComparisonWindow(1e6)
    after(window, jobs, 100.0, {each.id: 10.0 for each in jobs[:LEAST_ENDED]})
    back = replace(jobs[-1], state=JobState.CANCELLED)
    window.note(Snapshot(BEGIN_S + 200.0, CLUSTER, (back,)), {}, [])
    found = compare(window)
    assert found is not None
    assert found.jobs == LEAST_ENDED
    assert found.measured_s == pytest.approx(10.0)


def test_nothing_is_said_of_few_jobs() -> None:
    jobs = [job(number, 10.0) for number in range(LEAST_ENDED)]
    window = ComparisonWindow(1e6)
    after(window, jobs, 100.0, {each.id: 10.0 for each in jobs[:-1]})
    assert compare(window) is None


def test_jobs_count_by_their_weights_where_priorities_count() -> None:
    jobs = [job(number, 10.0) for number in range(2 * LEAST_ENDED)]
    first = {each.id: 10.0 for each in jobs[:LEAST_ENDED]}
    jobs = [replace(each, job=replace(each.job, priority=0.75 if each.id in first else 0.25)) for each in jobs]
    window = ComparisonWindow(1e6)
    after(window, jobs, 100.0, {each.id: 10.0 if each.id in first else 90.0 for each in jobs})
    plain, weighted = compare(window), compare(window, "priority")
    assert plain is not None
    assert weighted is not None
    assert plain.measured_s == pytest.approx((10 + 90) / 2)
    assert weighted.measured_s == pytest.approx((1.5 * 10 + 0.5 * 90) / 2)
    assert weighted.fallback_s != plain.fallback_s  # both are told by the same weights
