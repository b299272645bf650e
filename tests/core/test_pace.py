"""The measured pace of GPUs: cases by hand, the reference simulator, and clusters on which there is nothing to see."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.both import PLAIN, disagreement, looking, run_compiled, settings_of, tell
from tests.decide.two_models import ADA, cluster_of, speed
from tests.reference import Options, random_choices
from tests.reference_heat import Gpu, Heat
from tests.strategies import Scenario, scenarios, wide_scenarios

from adlro.core.driver import truth_from_here
from adlro.core.heat import new_heat
from adlro.core.plan import is_paced, plan_cluster
from adlro.core.policy import Policy, waiting
from adlro.core.records import Cluster, Disturbance, Job
from adlro.core.rules import (
    best_runtime,
    enqueue_all,
    expected_end,
    gpus_to_take,
    rate_held,
    rate_there,
    renew_paces,
    runtime,
    take,
    work_done,
)  # fmt: skip
from adlro.core.tables import DONE, NOBODY, SPEED, STARTED, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import simulate

SEEN = Options(measured=True)


def with_paces(scenario: Scenario) -> Scenario:
    """The same run with policies that see the measured paces."""
    return replace(scenario, options=replace(scenario.options, measured=True))


def agrees(scenario: Scenario, policy: Policy, same: reference.Policy) -> str:
    """Where the two simulators disagree."""
    expected = reference.simulate(
        scenario.cluster, scenario.jobs, scenario.speed, same, scenario.options, scenario.disturbances,
        policy.preemptive,
    )  # fmt: skip
    return disagreement(run_compiled(scenario, policy).events, expected)


CATALOGUE: dict[str, reference.Policy] = {
    "sjf": reference.sjf,
    "sjf-picky": reference.sjf_picky,
    "fcfs-easy": reference.fcfs_easy,
    "srtf": reference.srtf,
}


@pytest.mark.parametrize("name", ["fcfs", "sjf", "sjf-picky"])
@settings(max_examples=40)
@given(scenario=scenarios())
def test_both_simulators_agree_on_every_event_with_measured_paces(name: str, scenario: Scenario) -> None:
    assert not agrees(with_paces(scenario), *PLAIN[name])


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=40)
@given(scenario=scenarios() | wide_scenarios())
def test_the_policies_that_ship_see_the_paces_that_the_reference_sees(name: str, scenario: Scenario) -> None:
    assert not agrees(with_paces(scenario), find_policy(name), CATALOGUE[name])


@settings(max_examples=40)
@given(scenario=scenarios(), seed=st.integers(0, 2**16))
def test_both_simulators_measure_the_same_whatever_is_chosen(scenario: Scenario, seed: int) -> None:
    assert not agrees(with_paces(scenario), looking(random_choices(seed), True), random_choices(seed))


@settings(max_examples=8)
@given(scenarios(), st.integers(0, 100))
def test_both_simulators_agree_with_heat_and_measured_paces(scenario: Scenario, seed: int) -> None:
    gpus = scenario.cluster.gpu_count
    if gpus == 0:
        return
    scenario = with_paces(scenario)
    random = np.random.default_rng(seed)
    limits, resistances = (random.uniform(40, 80, gpus).tolist(), random.uniform(0.8, 1.3, gpus).tolist())
    plan, jobs = plan_cluster(scenario.cluster, by_site=True), pack_jobs(scenario.jobs)
    outcome = simulate(
        pack(plan, jobs, scenario.speed), jobs.work, find_policy("fcfs-first-fit"), settings_of(scenario),
        pack_disturbances(plan, scenario.disturbances), heat=new_heat([100.0] * gpus, limits, resistances),
    )  # fmt: skip
    second = Heat([Gpu(limit, resistance, 25.0) for limit, resistance in zip(limits, resistances, strict=True)])
    expected = reference.simulate(
        scenario.cluster, scenario.jobs, scenario.speed, reference.fcfs_first_fit, scenario.options,
        scenario.disturbances, heat=second,
    )  # fmt: skip
    found = [tell(event) for event in outcome.events]
    assert [event[1:3] for event in found] == [event[1:3] for event in expected]
    assert [event[0] for event in found] == pytest.approx([event[0] for event in expected], rel=1e-6, abs=1e-6)


# ---- nothing to see ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fcfs-first-fit", "sjf", "fcfs-easy", "srtf", "eft-reserving", "plan", "adlro"])
@settings(max_examples=15)
@given(scenario=scenarios())
def test_on_gpus_that_do_not_wear_measured_paces_change_nothing(name: str, scenario: Scenario) -> None:
    scenario = replace(scenario, disturbances=[each for each in scenario.disturbances if each.what != "speed"])
    policy = find_policy(name)
    assert run_compiled(with_paces(scenario), policy).events == run_compiled(scenario, policy).events


# ---- by hand -------------------------------------------------------------------------------------------------------


def packed(cluster: Cluster, *jobs: Job) -> View:
    """A view of these jobs in which paces are seen."""
    plan = plan_cluster(cluster, by_site=True)
    assert is_paced(plan)
    return pack(plan, pack_jobs(jobs), speed)


def renewed(view: View) -> None:
    """Let policies see paces that were written by hand."""
    view.clock[0].readings, view.sites.ranked = 1, NOBODY
    enqueue_all(view, np.arange(len(view.jobs), dtype=np.int32))
    renew_paces(view)


def starts(scenario: Scenario, name: str = "fcfs-first-fit") -> list[tuple[float, int, int, int]]:
    """Time, job, site and GPUs (as a mask) of each start."""
    events = run_compiled(scenario, find_policy(name)).outcome.events
    return [(float(e.time), int(e.job), int(e.site), int(e.mask)) for e in events if e.what == STARTED]


def test_a_gpu_that_was_slow_for_a_job_is_taken_last() -> None:
    # GPU 0 is slow, which nobody knows before the first job has run there: the second job gets GPU 1.
    slow = [Disturbance(0.0, "speed", "n0", 0, 0.5)]
    jobs = [Job("same", 10.0, 0.0), Job("same", 10.0, 100.0)]
    blind = Scenario(cluster_of({ADA: 2}), jobs, speed, Options(), slow)
    assert starts(blind) == [(0.0, 0, 0, 0b01), (100.0, 1, 0, 0b01)]
    assert starts(replace(blind, options=SEEN)) == [(0.0, 0, 0, 0b01), (100.0, 1, 0, 0b10)]


def test_a_gpu_on_which_nothing_ran_counts_as_usual() -> None:
    view = packed(cluster_of({ADA: 2}), Job("same", 10.0))
    ran: list[float] = []

    def look(shown: View) -> Choice:
        ran.append(rate_there(shown, 0, 0))
        return waiting()

    policy = Policy("look", "", make=lambda view, seed: look)
    simulate(view, np.array([10.0]), policy, disturbances=[(0.0, SPEED, 0, 0, 0.5)])
    assert ran == [1.0]
    assert view.gpus.pace.tolist() == [1.0, 1.0]


def test_the_rate_at_a_site_is_that_of_the_slowest_gpu_that_the_job_would_get() -> None:
    view = packed(cluster_of({ADA: 4}), Job("same", 12.0, gpus=1), Job("same", 12.0, gpus=3), Job("same", 9.0, gpus=4))
    view.gpus.pace = (0.5, 1.0, 0.75, 1.0)
    renewed(view)
    assert gpus_to_take(view, 0, 0, 1) == 0b0010
    assert gpus_to_take(view, 1, 0, 3) == 0b1110
    assert (rate_there(view, 0, 0), rate_there(view, 1, 0), rate_there(view, 2, 0)) == (1.0, 3 * 0.75, 4 * 0.5)
    assert runtime(view, 1, 0) == pytest.approx(12 / 2.25)
    take(view, 0, 0)  # GPU 1 is taken: the next job of three gets the slow one too
    renew_paces(view)
    assert rate_there(view, 1, 0) == 3 * 0.5
    assert rate_there(view, 2, 0) == 4 * 0.5  # does not fit now: as if all were free
    assert best_runtime(view, 1) == pytest.approx(12 / 2.25)


@pytest.mark.parametrize(("by_site", "end", "done", "rate"), [(True, 124.0, 14.0, 0.25), (False, 40.0, 20.0, 1.0)])
def test_the_expected_end_of_a_job_on_a_worn_gpu_is_its_end(
    by_site: bool, end: float, done: float, rate: float
) -> None:
    # 12 s at full speed, then at a quarter: 40 - 12 = 28 left, 112 s more.
    jobs = pack_jobs([Job("same", 40.0, 0.0), Job("same", 1.0, 20.0)])
    view = pack(plan_cluster(cluster_of({ADA: 1}), by_site=by_site), jobs, speed)
    fcfs = find_policy("fcfs").choose
    assert fcfs is not None
    seen: list[tuple[float, float, float]] = []

    def look(shown: View) -> Choice:
        if shown.clock[0].now == 20.0:
            seen.append((expected_end(shown, 0), work_done(shown, 0), rate_held(shown, 0)))
        return fcfs(shown)

    policy = Policy("look", "", make=lambda view, seed: look)
    outcome = simulate(view, jobs.work, policy, disturbances=[(12.0, SPEED, 0, 0, 0.25)])
    assert seen == [(end, done, rate)]
    assert [float(event.time) for event in outcome.events if event.what == DONE] == [124.0, 128.0]


def test_a_gang_over_several_nodes_counts_with_the_mean_of_the_slowest_gpu_of_each_node() -> None:
    view = packed(cluster_of({ADA: 2}, {ADA: 2}, {ADA: 2}), Job("same", 40.0, gpus=4), Job("same", 1.0, gpus=1))
    view.gpus.pace = (1.0, 0.5, 1.0, 1.0, 0.75, 1.0)
    renewed(view)
    rate = view.rate[view.jobs[0].kind, 0]
    assert rate_there(view, 0, 0) == rate * (0.5 + 1.0 + 0.75) / 3
    assert rate_there(view, 1, 0) == 1.0


def test_the_gpus_of_a_gang_are_measured_one_by_one() -> None:
    slow = [Disturbance(0.0, "speed", "n1", 0, 0.5)]
    jobs = [Job("same", 40.0, gpus=4), Job("same", 10.0, 100.0), Job("same", 10.0, 100.0), Job("same", 10.0, 100.0)]
    scenario = Scenario(cluster_of({ADA: 2}, {ADA: 2}), jobs, speed, SEEN, slow)
    assert starts(scenario)[1:] == [(100.0, 1, 0, 0b01), (100.0, 2, 0, 0b10), (100.0, 3, 1, 0b10)]


def test_what_is_played_forward_runs_at_the_measured_paces() -> None:
    view = packed(cluster_of({ADA: 2}), Job("same", 40.0))
    view.gpus.pace = (0.5, 0.25)
    truth = truth_from_here(view, np.array([40.0]), 100, False)
    assert truth.factor.tolist() == [0.5, 0.25]
    assert truth.progress[0].worn == 1
