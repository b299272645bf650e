"""Heat: cases by hand, the sum of heat that goes in and out, and the reference simulator."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.both import run_compiled, settings_of, tell
from tests.decide.two_models import ADA, cluster_of, speed
from tests.reference import Options
from tests.reference_heat import Gpu, Heat
from tests.strategies import Scenario, scenarios

from adlro.core.heat import IDLE_POWER, INERTIA_S, NEAR_C, OWN_C, new_heat, temperature_at
from adlro.core.plan import plan_cluster
from adlro.core.records import Cluster, Disturbance, Job
from adlro.core.tables import DONE, SPEED, Table
from adlro.decide.catalogue import find_policy
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import Outcome, simulate

ONE = cluster_of({ADA: 1})
TWO = cluster_of({ADA: 2})

REACHES = INERTIA_S * math.log((85 - 34) / (85 - 60))
"""From 34 C (idle) on the way to 85 C (at full power, alone on its node) 60 C come after this many seconds."""

HELD = 35 / (OWN_C + NEAR_C)
"""The power at which a GPU that is alone on its node stays at 60 C."""

CLOCK = math.sqrt((HELD - IDLE_POWER) / (1 - IDLE_POWER))


def run(
    cluster: Cluster,
    jobs: list[Job],
    limit: float = 60.0,
    disturbances: list[Disturbance] | None = None,
    limits: list[float] | None = None,
) -> tuple[Outcome, Table]:
    """Run jobs first come first served on GPUs of 100 W that slow down at a limit."""
    plan, packed = plan_cluster(cluster), pack_jobs(jobs)
    gpus = cluster.gpu_count
    heat = new_heat([100.0] * gpus, limits or [limit] * gpus, [1.0] * gpus)
    outcome = simulate(
        pack(plan, packed, speed), packed.work, find_policy("fcfs"),
        disturbances=pack_disturbances(plan, disturbances or []), heat=heat,
    )  # fmt: skip
    return outcome, outcome.heat


def end_of(outcome: Outcome, job: int = 0) -> float:
    return float(next(event.time for event in outcome.events if event.what == DONE and event.job == job))


def test_a_gpu_that_reaches_its_limit_goes_on_at_the_clock_that_keeps_it_there() -> None:
    outcome, heat = run(ONE, [Job("same", 1000.0, 0.0)])
    speeds = [(event.time, event.value) for event in outcome.events if event.what == SPEED]
    assert speeds[0] == pytest.approx((REACHES, CLOCK), rel=1e-6)
    assert end_of(outcome) == pytest.approx(REACHES + (1000 - REACHES) / CLOCK)
    assert heat[0].hottest == pytest.approx(60.0)
    assert heat[0].throttled == pytest.approx(end_of(outcome) - REACHES)


def test_below_its_limit_heat_changes_nothing() -> None:
    outcome, heat = run(ONE, [Job("same", 1000.0, 0.0)], limit=86.0)
    assert end_of(outcome) == 1000.0
    assert not any(event.what == SPEED for event in outcome.events)
    assert heat[0].hottest == pytest.approx(85 - 51 * math.exp(-1000 / INERTIA_S))


def test_a_neighbour_warms_a_gpu_and_its_end_lets_it_go_faster() -> None:
    alone, _ = run(TWO, [Job("same", 2000.0, 0.0)], limit=75.0)
    # The neighbour idles: 25 + 45 + 15 * 1.15 / 2 = 78.6 C are more than 75 C.
    beside, _ = run(TWO, [Job("same", 2000.0, 0.0), Job("same", 500.0, 0.0)], limit=75.0)
    assert end_of(beside, 0) > end_of(alone, 0) > 2000.0
    by_time = [(float(e.time), float(e.value)) for e in beside.events if e.what == SPEED and e.mask == 1]
    assert by_time[0][1] < by_time[1][1] < 1.0  # slower while both are hot, faster once the neighbour is done
    assert by_time[1][0] == pytest.approx(end_of(beside, 1))


def test_wear_and_heat_multiply_and_either_can_change_alone() -> None:
    worn = [Disturbance(500.0, "speed", "n0", 0, 0.5)]
    outcome, heat = run(ONE, [Job("same", 1000.0, 0.0)], disturbances=worn)
    done = REACHES + (500 - REACHES) * CLOCK
    assert end_of(outcome) == pytest.approx(500 + (1000 - done) / (0.5 * CLOCK))
    assert heat[0].wear == 0.5


def test_an_idle_gpu_among_hot_neighbours_may_be_hotter_than_its_limit() -> None:
    # 25 + 45 * 0.15 + 15 * 1.15 / 2 = 40.4 C at the idle GPU: it has no clock to lower, and the run goes on.
    outcome, heat = run(TWO, [Job("same", 2000.0, 0.0)], limits=[90.0, 38.0])
    assert heat[1].hottest == pytest.approx(25 + 45 * 0.15 + 15 * 1.15 / 2)
    assert heat[1].throttled == 0.0
    assert end_of(outcome) == 2000.0


def test_what_goes_into_a_gpu_goes_into_the_air_or_warms_it() -> None:
    # Small steps of the differential equation, with the clock that the run logged: an independent account.
    jobs = [Job("same", 900.0, 0.0), Job("same", 300.0, 100.0), Job("same", 200.0, 700.0)]
    outcome, heat = run(TWO, jobs, limit=70.0)
    end = max(float(event.time) for event in outcome.events)
    use = [[(0.0, 0.0)], [(0.0, 0.0)]]
    clocks = [[(0.0, 1.0)], [(0.0, 1.0)]]
    for event in outcome.events:
        for gpu in (g for g in range(2) if event.mask >> g & 1):
            if event.what == SPEED:
                clocks[gpu].append((float(event.time), float(event.value)))
            else:
                use[gpu].append((float(event.time), 0.0 if event.what == DONE else 1.0))
    step, temperature = 0.05, np.array([25 + OWN_C * IDLE_POWER + NEAR_C * IDLE_POWER] * 2)
    drawn, given_off, start = np.zeros(2), np.zeros(2), temperature.copy()
    for time in np.arange(0.0, end, step):
        power = np.array(
            [IDLE_POWER + (1 - IDLE_POWER) * at(use[g], time) * at(clocks[g], time) ** 2 for g in range(2)]
        )
        off = temperature - (25 + NEAR_C * power.mean())
        drawn, given_off = drawn + power * step, given_off + off * step
        temperature = temperature + (OWN_C * power - off) * step / INERTIA_S
    assert OWN_C * drawn == pytest.approx(given_off + INERTIA_S * (temperature - start), rel=1e-6)
    for g in range(2):
        assert heat[g].energy + heat[g].power * 100 * (end - heat[g].since) == pytest.approx(100 * drawn[g], rel=1e-3)
        assert temperature_at(heat, g, end) == pytest.approx(temperature[g], abs=0.1)


def at(steps: list[tuple[float, float]], time: float) -> float:
    """The value that holds at a time."""
    return next(value for since, value in reversed(steps) if since <= time)


@settings(max_examples=8)
@given(scenarios(), st.integers(0, 100))
def test_both_simulators_agree_with_heat(scenario: Scenario, seed: int) -> None:
    gpus = scenario.cluster.gpu_count
    if gpus == 0:
        return
    random = np.random.default_rng(seed)
    limits, resistances = (random.uniform(40, 80, gpus).tolist(), random.uniform(0.8, 1.3, gpus).tolist())
    plan, jobs = plan_cluster(scenario.cluster), pack_jobs(scenario.jobs)
    heat = new_heat([100.0] * gpus, limits, resistances)
    outcome = simulate(
        pack(plan, jobs, scenario.speed), jobs.work, find_policy("fcfs-first-fit"), settings_of(scenario),
        pack_disturbances(plan, scenario.disturbances), heat=heat,
    )  # fmt: skip
    second = Heat([Gpu(limit, resistance, 25.0) for limit, resistance in zip(limits, resistances, strict=True)])
    expected = reference.simulate(
        scenario.cluster, scenario.jobs, scenario.speed, reference.fcfs_first_fit, scenario.options,
        scenario.disturbances, heat=second,
    )  # fmt: skip
    found = [tell(event) for event in outcome.events]
    assert [event[1:3] for event in found] == [event[1:3] for event in expected]
    assert [event[0] for event in found] == pytest.approx([event[0] for event in expected], rel=1e-6, abs=1e-6)


def test_the_run_without_heat_is_the_run_of_the_compiled_simulator() -> None:
    scenario = Scenario(TWO, [Job("same", 50.0, 0.0)], speed, Options(), [])
    assert run_compiled(scenario, find_policy("fcfs")).outcome.heat.size == 0
