"""A simulated cluster whose GPUs become hot: what telemetry shows of it, and what it does to jobs."""

from collections.abc import Mapping

import pytest

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.demo import heating_of, telemetry
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import find_family
from adlro.catalogue.gpus import gpu_models
from adlro.catalogue.speeds import bandwidth_used, roofline, speed_of
from adlro.core.ports import JobState, Order, Part, Submission
from adlro.core.records import Job
from adlro.daemon.config import load_config

PAPER16 = load_cluster("paper16")
V100, T4 = "v100-sxm2-16gb", "t4"
NODE = PAPER16.nodes[0]


def running(
    room_c: float | None, gpus: int = 4, work: float = 40_000.0, family: str = "data"
) -> tuple[Simulated, ByHand]:
    """A cluster with one job on the first node, which has four V100."""
    clock = ByHand()
    heating = heating_of(PAPER16, room_c, 0)
    backend = Simulated(PAPER16, speed_of, clock=clock, start_s=0.0, heating=heating)
    id = backend.submit(Submission(Job(family, work, gpus=gpus, estimate=work)))
    (answer,) = backend.act([Order(id, "d", (Part(NODE.name, V100, gpus, tuple(range(gpus))),))])
    assert answer.done, answer.said
    return backend, clock


def figures(backend: Simulated, gpu: int = 0) -> dict[str, float | None]:
    return telemetry(backend, backend.read())[f"{NODE.name}/{gpu}"]


def test_a_busy_node_in_a_hot_room_throttles_and_its_job_takes_longer() -> None:
    cool, clock = running(None)
    clock.move(36_000.0)
    (usual,) = cool.read().jobs
    backend, clock = running(45.0)
    assert figures(backend)["throttle"] == 0.0
    clock.move(1200.0)
    shown = figures(backend)
    assert shown["throttle"] == 1.0
    assert shown["temperature"] == pytest.approx(1.0)
    assert 0.3 <= (shown["sm_clock"] or 0.0) < 1.0
    assert (shown["power"] or 0.0) < 1.0
    clock.move(36_000.0)
    (live,) = backend.read().jobs
    assert live.state is usual.state is JobState.FINISHED
    assert live.ended_s is not None
    assert usual.ended_s is not None
    assert live.ended_s > 1.02 * usual.ended_s


def test_a_node_cools_down_after_its_job() -> None:
    backend, clock = running(45.0, work=8000.0)
    clock.move(1500.0)
    hot = figures(backend)
    clock.move(3600.0)
    cold = figures(backend)
    assert (cold["temperature"] or 0.0) < 0.75 * (hot["temperature"] or 0.0)
    assert (cold["throttle"], cold["sm_clock"]) == (0.0, 1.0)
    assert cold["power"] == pytest.approx(0.15)


def test_without_heat_no_clocks_are_made_up() -> None:
    backend, _ = running(None)
    assert set(figures(backend)) == {"utilisation", "temperature", "memory", "power", "bandwidth"}


def test_the_bandwidth_in_use_is_that_of_the_roofline_at_the_jobs_own_speed() -> None:
    backend, _ = running(None, gpus=1)
    assert figures(backend)["bandwidth"] == pytest.approx(0.8)  # by the mix of the family on the reference model
    backend.wear(NODE.name, 0, 0.5)
    assert figures(backend)["bandwidth"] == pytest.approx(0.4)
    assert figures(backend, 1)["bandwidth"] == 0.0
    assert figures(running(None, gpus=1, family="uniform")[0])["bandwidth"] is None


@pytest.mark.parametrize("family", ["simulation", "learning", "data"])
def test_a_family_uses_more_of_the_bandwidth_where_it_bounds_more_of_the_time(family: str) -> None:
    models, kind = gpu_models(), find_family(family)
    on = {name: bandwidth_used(family, models[name], roofline(kind, models[name]).value) for name in (V100, T4, "mi50")}
    assert on[V100] == pytest.approx(kind.mix.bandwidth)
    for name in (T4, "mi50"):
        share = kind.mix.bandwidth * models[V100].memory_bandwidth_gb_s / models[name].memory_bandwidth_gb_s
        assert on[name] == pytest.approx(share * roofline(kind, models[name]).value)
        assert 0.0 < (on[name] or 0.0) <= 1.0


def test_heat_is_an_option_of_the_config_and_off_by_default() -> None:
    assert "sm_clock" not in _shown({})
    assert "sm_clock" in _shown({"simulated.thermal": True, "simulated.room_c": 30.0})


def _shown(flags: dict[str, object]) -> Mapping[str, float | None]:
    opened = load_config(None, {"simulated.cluster": "paper16", **flags}).open_backend()
    assert opened.telemetry is not None
    return opened.telemetry(opened.backend.read())[f"{NODE.name}/0"]
