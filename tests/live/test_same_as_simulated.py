"""The same policy decides the same live as in the simulator: one list of jobs, played through both."""

import math
from dataclasses import replace
from random import Random

import pytest
from tests.live.stand_in import Notebook

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.demo import heating_of
from adlro.backends.simulated.entries import arriving
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.driver import NO_HEAT
from adlro.core.plan import gpu_numbers, plan_cluster
from adlro.core.ports import ENDED, Part
from adlro.core.records import CPU_ONLY, Job
from adlro.core.tables import SPREAD, STARTED
from adlro.decide.catalogue import find_policy, policies
from adlro.experiment.instance import cold_gpus
from adlro.live.limits import GuardTable, PreemptTable
from adlro.live.turn import Orchestrator, TurnSettings
from adlro.normalise.pack import pack, pack_jobs
from adlro.simulation.simulator import SimulationSettings as World
from adlro.simulation.simulator import simulate

V100 = "v100-sxm2-16gb"
FAMILIES = ("simulation", "learning", "data")
CLUSTER = replace(
    load_cluster("paper16"), affinity={"simulation": (V100,), "learning": (V100, "t4"), "data": ("mi50",)}
)
"""With a map of its own: a daemon does not know the families of jobs that are still to come."""

RESTART_S = 32.0
ALONE = TurnSettings(
    decide_s=600.0, decision_s=600.0, guard=GuardTable(stale_s=1e9, max_wait_s=0.0),
    preempt=PreemptTable(
        is_on=True, least_run_s=0.0, per_job=1000, per_user_hour=10_000, per_hour=10_000, restart_s=RESTART_S
    ),
    compare_s=math.inf, starts_s=0.0, explained=0, alike=0,
)  # fmt: skip

Starts = list[tuple[float, int, tuple[Part, ...]]]


def some_jobs() -> list[Job]:
    """Jobs of several families, users and sizes that come faster than they can be run. All are said as they are.

    Half of those on whole GPUs can run with other numbers of GPUs.

    They come in bursts with the same mix of sizes, since a daemon does not know the sizes of jobs still to come.
    """
    random = Random(7)
    jobs: list[Job] = []
    for burst_s in (0.0, 709.0, 1511.0, 2617.0):
        for gpus, share in ((1, 1000), (4, 1000), (0, 1000), (1, 500), (8, 1000), (2, 1000), (1, 1000)):
            work = float(random.randrange(500, 9000)) * max(1, gpus)
            number = len(jobs)
            sizes = "1,2,4,8" if gpus and share == 1000 and number % 2 else ""
            jobs.append(
                Job(
                    random.choice(FAMILIES), work, burst_s, gpus, share, cpus=2.0, memory_gb=4.0,
                    user=f"user {number % 3}", name=f"job {number % 5}", estimate=work, checkpoint=0.0,
                    sizes=sizes,
                )
            )  # fmt: skip
    return jobs


def in_the_simulator(name: str, jobs: list[Job], weights: str = "equal", room_c: float | None = None) -> Starts:
    """What starts when and where in a simulation; with heat, if the room has a temperature."""
    plan, packed = plan_cluster(CLUSTER), pack_jobs(jobs)
    view = pack(plan, packed, speed_of)
    found: Starts = []
    world = World(restart_s=RESTART_S, weights=weights)
    heat = NO_HEAT if room_c is None else cold_gpus(CLUSTER, room_c, 0)
    for event in simulate(view, packed.work, find_policy(name), world, heat=heat).events:
        if event.what in (STARTED, SPREAD):
            numbers = gpu_numbers(plan, int(event.site), int(event.mask))
            site = plan.sites[event.site]
            model = plan.models[site.model] if numbers else CPU_ONLY
            part = Part(plan.cluster.nodes[site.node].name, model, len(numbers), numbers)
            if event.what == SPREAD:
                time, job, parts = found.pop()
                found.append((time, job, (*parts, part)))
            else:
                found.append((float(event.time), int(event.job), (part,)))
    return found


def live(
    name: str, jobs: list[Job], restarted_at: int = 0, weights: str = "equal", room_c: float | None = None
) -> Starts:
    """What starts when and where with a turn at each event; the daemon is restarted before this turn, if any."""
    clock, memory = ByHand(), Notebook()
    backend = Simulated(
        CLUSTER, speed_of, clock=clock, start_s=0.0, arrivals=arriving(jobs), restart_s=RESTART_S, keep_ended_s=1e9,
        heating=heating_of(CLUSTER, room_c, 0),
    )  # fmt: skip
    settings = replace(ALONE, weights=weights)
    daemon = Orchestrator(backend, memory, name, "fcfs", settings, monotonic=clock)
    found: Starts = []
    for turn in range(1, 100 * len(jobs)):
        if turn == restarted_at:
            daemon = Orchestrator(backend, memory, name, "fcfs", settings, monotonic=clock)
        tick = daemon.tick()
        unusual = [alarm.text for alarm in tick.alarms if alarm.kind not in ("kept", "starving")]
        assert not unusual, unusual
        found += [(tick.time_s, int(made.job) - 1, made.parts) for made in tick.decisions if made.verb == "start"]
        later = [time for time in (backend.next_event_s, daemon.wake_s) if time is not None and time < math.inf]
        if not later or (turn > len(jobs) and all(job.state in ENDED for job in backend.read().jobs)):
            break
        clock.move(min(later) - tick.time_s)
    assert all(job.state in ENDED for job in backend.read().jobs)
    return found


@pytest.mark.parametrize("name", [policy.name for policy in policies()])
def test_a_policy_starts_the_same_jobs_live_as_in_the_simulator(name: str) -> None:
    jobs = some_jobs()
    assert live(name, jobs) == in_the_simulator(name, jobs)


@pytest.mark.parametrize(
    "name", ["eft-reserving", "eft-claiming", "plan", "adlro", "adlro-preemptive", "lookahead-sjf", "adlro-lookahead"]
)
def test_a_policy_that_knows_weights_starts_the_same_jobs_live_where_priorities_count(name: str) -> None:
    jobs = [replace(job, priority=(0.1, 0.5, 1.0)[number % 3]) for number, job in enumerate(some_jobs())]
    starts = in_the_simulator(name, jobs, "priority")
    assert live(name, jobs, weights="priority") == starts
    assert starts != in_the_simulator(name, jobs)
    assert live(name, jobs) == in_the_simulator(name, jobs)


@pytest.mark.parametrize("name", ["fcfs", "fcfs-first-fit", "static-affinity"])
def test_a_policy_starts_the_same_jobs_on_a_hot_simulated_cluster_as_in_a_run_with_heat(name: str) -> None:
    # Policies that know no estimates: a daemon learns from jobs that take longer than was said.
    jobs = some_jobs()
    starts = in_the_simulator(name, jobs, room_c=45.0)
    found = live(name, jobs, room_c=45.0)
    assert [(job, parts) for _, job, parts in found] == [(job, parts) for _, job, parts in starts]
    assert [time for time, _, _ in found] == pytest.approx([time for time, _, _ in starts], abs=1e-6)
    assert [time for time, _, _ in starts] != [time for time, _, _ in in_the_simulator(name, jobs)]


@pytest.mark.parametrize(
    "name", ["sjf+starvation(4000)", "srtf+least-run(2500)", "las+least-run(300)+starvation(6000)", "srtf+stops(1)"]
)
def test_a_wrapped_policy_starts_the_same_jobs_live_as_in_the_simulator(name: str) -> None:
    jobs = some_jobs()
    starts = in_the_simulator(name, jobs)
    assert live(name, jobs) == starts
    assert starts != in_the_simulator(name.partition("+")[0], jobs)


@pytest.mark.parametrize("name", [policy.name for policy in policies() if policy.resizes])
def test_a_policy_that_resizes_gives_jobs_other_numbers_of_gpus_than_they_asked_for(name: str) -> None:
    jobs = some_jobs()
    given = [(jobs[job], sum(part.count for part in parts)) for _, job, parts in live(name, jobs)]
    assert {bool(job.sizes) for job, gpus in given if gpus != job.gpus} == {True}


@pytest.mark.parametrize("name", ["gavel-maxmin", "random", "rank-elastic", "adlro-elastic", "sia"])
def test_a_policy_goes_on_after_a_restart_where_it_was(name: str) -> None:
    jobs = some_jobs()
    assert live(name, jobs, restarted_at=4) == in_the_simulator(name, jobs)
