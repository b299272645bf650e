"""What telemetry reads of live GPUs: the same columns as in the simulator."""

import pytest
from tests.live.stand_in import Notebook, Obedient, running, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import Part
from adlro.core.readings import gauge_at
from adlro.core.tables import FOREVER
from adlro.live.clocks import JobClocks
from adlro.live.corrections import Corrections
from adlro.live.said import as_said
from adlro.live.scene import Scenes
from adlro.live.turn import Orchestrator
from adlro.normalise.telemetry import THROTTLE_C

CLUSTER = load_cluster("paper16")
FIGURES: dict[str, dict[str, float | None]] = {
    "volta0/0": {"temperature": 0.5, "bandwidth": 0.25},
    "volta0/1": {"temperature": 0.75, "bandwidth": None},
    "volta1/3": {"throttle": 0.0},
}
SLOW = {("volta1", 0): 0.5}


def test_the_headroom_and_the_bandwidth_of_each_gpu_come_from_its_telemetry() -> None:
    corrections = Corrections(gpus=SLOW, figures=FIGURES)
    jobs = [waiting("one"), waiting("two", gpus=2)]
    view = Scenes(places_gpus=True).scene(snapshot(*jobs), as_said, corrections=corrections).view
    assert view.clock[0].metered == 1
    limit = THROTTLE_C["nvidia"]
    assert gauge_at(view, 0, 0) == pytest.approx((0.5 * limit, 0.75))
    assert gauge_at(view, 1, 0) == pytest.approx((0.25 * limit, 0.75))
    assert gauge_at(view, 1, 1) == (FOREVER, 1.0)


def test_where_paces_are_not_seen_nothing_else_is_read_of_gpus() -> None:
    healthy = Scenes(places_gpus=True).scene(snapshot(), as_said, corrections=Corrections(figures=FIGURES)).view
    unplaced = Scenes().scene(snapshot(), as_said, corrections=Corrections(gpus=SLOW, figures=FIGURES)).view
    silent = Scenes(places_gpus=True).scene(snapshot(), as_said, corrections=Corrections(gpus=SLOW)).view
    for view in (healthy, unplaced, silent):
        assert view.clock[0].metered == 0
        assert (view.gpus.headroom == FOREVER).all()
        assert (view.gpus.bandwidth == 1.0).all()


def test_figures_that_are_no_longer_fresh_are_forgotten() -> None:
    clocks = JobClocks()
    job = running("a", (Part("volta0", "v100-sxm2-16gb", 1, (0,)),))
    clocks.note(snapshot(job), FIGURES)
    assert clocks.figures == FIGURES
    clocks.note(snapshot(job, at_s=60.0), None)
    assert clocks.figures == {}


def test_a_daemon_shows_policies_what_it_reads_once_a_gpu_was_slow() -> None:
    backend = Obedient(CLUSTER, places_gpus=True)
    figures: dict[str, dict[str, float | None]] = {"volta0/0": {"throttle": 1.0, "sm_clock": 0.5, "temperature": 1.0}}
    ours = Orchestrator(backend, Notebook(), "sjf", "fcfs", telemetry=lambda: figures)
    backend.jobs["a"] = waiting("a")
    ours.tick()
    ours.tick()
    assert ours._standing is not None
    gpu = ours._standing.scene.view.gpus[0]
    assert float(gpu.pace) == pytest.approx(0.5, abs=0.02)
    assert float(gpu.headroom) == 0.0
