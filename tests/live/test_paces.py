"""Worn and throttled GPUs of a live cluster: what telemetry and past jobs show is what every policy sees."""

from dataclasses import replace

import pytest
from tests.live.stand_in import Notebook, Obedient, running, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import Part
from adlro.core.rules import expected_end, gpus_to_take, runtime
from adlro.live.clocks import JobClocks
from adlro.live.corrections import Corrections
from adlro.live.said import as_said
from adlro.live.scene import Scenes
from adlro.live.turn import Orchestrator

V100 = "v100-sxm2-16gb"
CLUSTER = load_cluster("paper16")
HOT: dict[str, dict[str, float | None]] = {"volta0/0": {"throttle": 1.0, "sm_clock": 0.5}}
COOL: dict[str, dict[str, float | None]] = {"volta0/0": {"throttle": 0.0, "sm_clock": 1.0}}


def test_a_gpu_stays_slow_until_a_job_runs_there_at_its_full_clock() -> None:
    clocks = JobClocks()
    job = running("a", (Part("volta0", V100, 1, (0,)),))
    clocks.note(snapshot(job), HOT)
    assert clocks.slowed == {("volta0", 0): pytest.approx(0.5, abs=0.02)}
    clocks.note(snapshot(at_s=60.0), COOL)  # idle: its clock says nothing about how fast it is
    assert ("volta0", 0) in clocks.slowed
    clocks.note(snapshot(job, at_s=120.0), {"volta0/0": {"throttle": 1.0, "sm_clock": 0.48}})
    assert clocks.slowed == {("volta0", 0): pytest.approx(0.5, abs=0.02)}, "small changes make no new tables"
    clocks.note(snapshot(job, at_s=180.0), COOL)
    assert clocks.slowed == {}


def test_what_jobs_and_clocks_show_of_a_gpu_is_not_counted_twice() -> None:
    jobs = Corrections(gpus={("volta0", 0): 0.8}, sites={("volta1", V100): 0.9})
    both = jobs.with_clocks({("volta0", 0): 0.7, ("volta0", 1): 0.6, ("volta1", 2): 0.45}, CLUSTER)
    assert [both.of_gpu("volta0", V100, number) for number in (0, 1, 2)] == [0.7, 0.6, 1.0]
    assert both.of_gpu("volta1", V100, 2) == pytest.approx(0.45)
    assert both.of_gpu("volta1", V100, 3) == 0.9
    assert jobs.with_clocks({("volta0", 0): 0.9}, CLUSTER).of_gpu("volta0", V100, 0) == 0.8
    assert jobs.with_clocks({}, CLUSTER) is jobs


def test_where_orders_name_gpus_a_job_gets_the_fastest_and_policies_see_the_pace_of_these() -> None:
    worn = Corrections(gpus={("volta1", 0): 0.5})
    jobs = [waiting("one"), waiting("four", gpus=4)]
    before = Scenes(places_gpus=True).scene(snapshot(*jobs), as_said).view
    assert before.clock[0].paced == 0, "without a worn GPU nothing changes"
    after = Scenes(places_gpus=True).scene(snapshot(*jobs), as_said, corrections=worn).view
    assert gpus_to_take(after, 0, 1, 1) == 0b0010
    assert runtime(after, 0, 1) == runtime(before, 0, 1)
    assert runtime(after, 1, 1) == pytest.approx(2.0 * runtime(before, 1, 1))
    assert runtime(after, 1, 0) == runtime(before, 1, 0)


def test_a_job_that_runs_on_a_worn_gpu_is_expected_to_end_later() -> None:
    job = running("a", (Part("volta0", V100, 1, (0,)),))
    ends = [
        expected_end(Scenes(places_gpus=True).scene(snapshot(job), as_said, corrections=each).view, 0)
        for each in (Corrections(), Corrections(gpus={("volta0", 0): 0.5}), Corrections(gpus={("volta0", 1): 0.5}))
    ]
    assert ends == pytest.approx([ends[0], 2.0 * ends[0], ends[0]])


@pytest.mark.parametrize(("figures", "number"), [(HOT, 1), (COOL, 0)])
def test_the_next_job_gets_another_gpu_than_the_one_that_was_throttled(
    figures: dict[str, dict[str, float | None]], number: int
) -> None:
    node = replace(CLUSTER, nodes=CLUSTER.nodes[:1])
    backend = Obedient(node, places_gpus=True)
    orchestrator = Orchestrator(backend, Notebook(), "sjf", "fcfs", telemetry=lambda: figures)
    backend.jobs["a"] = waiting("a")
    orchestrator.tick()
    assert backend.jobs["a"].parts[0].indices == (0,)
    orchestrator.tick()  # sees what the GPU says while the job runs
    backend.wait(100.0)
    backend.jobs["b"] = waiting("b", at_s=100.0)
    orchestrator.tick()
    assert backend.jobs["b"].parts[0].indices == (number,)
