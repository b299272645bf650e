"""Readings of GPUs: how far they are below their limit, and the memory bandwidth that is left."""

import math

import numpy as np
import pytest
from tests.decide.two_models import ADA, cluster_of, speed

from adlro.core.driver import NO_HEAT, truth_from_here
from adlro.core.engine import apply
from adlro.core.heat import INERTIA_S, NEAR_C, OWN_C, new_heat
from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy, starting, waiting
from adlro.core.readings import Gauge, gauge_at, unsure_in, unsure_of, with_unsure
from adlro.core.records import Cluster, Job
from adlro.core.rules import enqueue_all, renew_paces, take
from adlro.core.tables import FOREVER, NOBODY, Choice, Table, View
from adlro.decide.catalogue import find_policy
from adlro.normalise.pack import pack, pack_jobs
from adlro.simulation.simulator import simulate

ONE = cluster_of({ADA: 1})


def packed(cluster: Cluster, *jobs: Job, by_site: bool = True) -> View:
    """A view of these jobs in which paces are seen."""
    return pack(plan_cluster(cluster, by_site=by_site), pack_jobs(jobs), speed)


def headrooms(by_site: bool = True, warm: bool = True) -> tuple[list[tuple[float, float]], int]:
    """When a policy was asked, and what it read of the one GPU then; and whether anything was read at all."""
    jobs = [Job("same", 100.0, 0.0), Job("same", 1.0, 40.0), Job("same", 1.0, 340.0)]
    view = packed(ONE, *jobs, by_site=by_site)
    fcfs = find_policy("fcfs").choose
    assert fcfs is not None
    seen: list[tuple[float, float]] = []

    def look(shown: View) -> Choice:
        seen.append((float(shown.clock[0].now), float(shown.gpus[0].headroom)))
        return fcfs(shown)

    heat: Table = new_heat([100.0], [80.0], [1.0]) if warm else NO_HEAT
    simulate(view, np.array([100.0, 1.0, 1.0]), Policy("look", "", make=lambda *_: look), heat=heat)
    return seen, int(view.clock[0].metered)


def test_the_headroom_is_read_when_the_policy_is_asked_also_of_a_gpu_that_is_idle() -> None:
    cold, busy = 25 + 0.15 * (OWN_C + NEAR_C), 25 + OWN_C + NEAR_C
    at_40 = busy + (cold - busy) * math.exp(-40 / INERTIA_S)
    at_100 = busy + (cold - busy) * math.exp(-100 / INERTIA_S)
    at_101 = busy + (cold - busy) * math.exp(-101 / INERTIA_S)
    at_340 = cold + (at_101 - cold) * math.exp(-239 / INERTIA_S)
    seen, metered = headrooms()
    read = dict(seen)
    assert [time for time, _ in dict.fromkeys(seen)] == sorted(read)
    assert read[0.0] == pytest.approx(80 - cold)
    assert read[40.0] == pytest.approx(80 - at_40)
    assert read[100.0] == pytest.approx(80 - at_100)
    assert read[340.0] == pytest.approx(80 - at_340, rel=1e-5)
    assert metered == 1


@pytest.mark.parametrize(("by_site", "warm"), [(False, True), (True, False)])
def test_without_measured_paces_or_heat_nothing_is_read(by_site: bool, warm: bool) -> None:
    seen, metered = headrooms(by_site, warm)
    assert {headroom for _, headroom in seen} == {FOREVER}
    assert metered == 0


def test_a_job_reads_the_hottest_of_the_gpus_that_it_would_get() -> None:
    view = packed(cluster_of({ADA: 4}), *(Job("same", 10.0, gpus=gpus) for gpus in (1, 2, 4)))
    view.gpus.headroom, view.gpus.bandwidth = (5.0, 20.0, 10.0, 40.0), (1.0, 0.5, 0.75, 1.0)
    assert gauge_at(view, 0, 0) == Gauge(5.0, 1.0)
    assert gauge_at(view, 1, 0) == Gauge(5.0, 0.5)
    take(view, 0, 0)
    assert gauge_at(view, 1, 0) == Gauge(10.0, 0.5)
    view.gpus.pace = (1.0, 0.5, 1.0, 1.0)  # GPU 1 is slow now: a job takes the others
    view.clock[0].readings, view.sites.ranked = 1, NOBODY
    renew_paces(view)
    assert gauge_at(view, 1, 0) == Gauge(10.0, 0.75)


def test_a_gang_over_several_nodes_reads_the_hottest_of_all_its_gpus() -> None:
    view = packed(cluster_of({ADA: 2}, {ADA: 2}, {ADA: 2}), Job("same", 10.0, gpus=3), Job("same", 1.0, gpus=0))
    view.gpus.headroom = (30.0, 30.0, 20.0, 5.0, 1.0, 1.0)
    assert gauge_at(view, 0, 0).headroom == 20.0
    assert gauge_at(view, 1, 0) == Gauge(FOREVER, 1.0)


def test_jobs_use_the_bandwidth_of_the_gpus_that_they_share() -> None:
    jobs = [Job("same", 10.0, share=500), Job("same", 10.0, share=250), Job("same", 10.0)]
    view = packed(cluster_of({ADA: 3}), *jobs)
    enqueue_all(view, np.arange(3, dtype=np.int32))
    truth = truth_from_here(view, np.full(3, 10.0), 100, False)._replace(bandwidth=np.full(view.rate.shape, 0.8))
    left = []
    for j in range(3):
        assert apply(view, truth, starting(j, 0))
        left.append([round(float(value), 6) for value in view.gpus.bandwidth])
    # What is left is read when the policy is asked: after the last start nobody waits, so nobody asks.
    assert left == [[0.6, 1.0, 1.0], [0.4, 1.0, 1.0], [0.4, 1.0, 1.0]]
    assert not apply(view, truth, waiting())


def test_known_rates_are_sure() -> None:
    view = packed(ONE, Job("same", 10.0))
    assert unsure_of(view, 0, 0) == 0.0
    assert not len(unsure_in(view))
    assert unsure_of(with_unsure(view, np.array([[0.5]])), 0, 0) == 0.5
