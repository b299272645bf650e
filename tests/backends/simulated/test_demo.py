"""The demo's cluster: busy from the first moment on, the same for the same seed, and with something to see."""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.demo import (
    BLOCK,
    MADE_UP,
    MOST_WAITING,
    WAITING_AT_FIRST,
    demo_arrivals,
    demo_backend,
    demo_cluster,
    simulated_backend,
    telemetry,
)
from adlro.catalogue.families import find_family
from adlro.core.errors import CatalogueError
from adlro.core.ports import JobState, Order, Part, Snapshot
from adlro.core.units import HOUR_S


def first_fit(backend: Simulated, snapshot: Snapshot) -> None:
    """Start whatever fits on one node."""
    nodes = snapshot.cluster.nodes
    for live in snapshot.jobs:
        if live.state is JobState.WAITING:
            any(
                backend.act([Order(live.id, "d", (Part(node.name, node.gpus[0].model, live.job.gpus),))])[0].done
                for node in nodes
            )


def test_the_demo_has_a_queue_at_once_and_jobs_without_end() -> None:
    clock = ByHand()
    backend = demo_backend(seed=3, clock=clock)
    first = backend.read()
    assert len(first.jobs) == WAITING_AT_FIRST
    assert first.cluster.gpu_count == 32
    arrivals = islice(demo_arrivals(demo_cluster(), 3), 2 * BLOCK)
    times = [arriving.job.submit_s for arriving in arrivals]
    assert times == sorted(times)
    assert times[-1] > 10 * HOUR_S
    clock.move(1e6)
    assert sum(live.state is JobState.WAITING for live in backend.read().jobs) == MOST_WAITING


def test_the_demo_is_the_same_for_the_same_seed_and_only_for_it() -> None:
    def jobs(seed: int) -> list[object]:
        return [arriving.job for arriving in islice(demo_arrivals(demo_cluster(), seed), 50)]

    assert jobs(1) == jobs(1)
    assert jobs(1) != jobs(2)


def test_jobs_of_the_demo_look_like_somebodys_who_may_guess_their_work_but_do_not_know_it() -> None:
    live = demo_backend(clock=ByHand()).read().jobs
    assert {find_family(each.job.family).name for each in live} == {"simulation", "learning", "data"}
    assert all(each.job.user and each.job.name and each.job.limit_s for each in live)
    assert {each.job.work for each in live} == {0.0}
    assert {each.job.estimate is None for each in live} == {True, False}
    kinds = {(each.job.user, each.job.name, each.job.family, each.job.gpus) for each in live}
    assert len(kinds) == len({kind[:2] for kind in kinds})  # a name that comes again is the same kind of job
    json.dumps([asdict(each) | {"job": {**asdict(each.job), "models": []}} for each in live])  # plain numbers only


def test_a_day_of_the_demo_is_busy_and_has_a_failure_and_a_worn_node() -> None:
    clock = ByHand()
    backend = demo_backend(clock=clock)
    held, down, worn = [], set[str](), set[float]()
    for _ in range(24 * 12):
        clock.move(HOUR_S / 12)
        snapshot = backend.read()
        first_fit(backend, snapshot)
        figures = telemetry(backend, backend.read())
        held.append(sum(figure["utilisation"] is not None and figure["utilisation"] > 0 for figure in figures.values()))
        down |= set(snapshot.down)
        worn |= {backend.factor(node.name, gpu) for node in snapshot.cluster.nodes for gpu in range(4)}
    assert sum(held) / len(held) > 0.6 * 32
    assert down
    assert worn == {1.0, 0.65}


def test_figures_are_made_up_from_what_runs() -> None:
    clock = ByHand()
    backend = demo_backend(clock=clock)
    idle = telemetry(backend, backend.read())
    assert list(idle)[:5] == ["volta0/0", "volta0/1", "volta0/2", "volta0/3", "volta1/0"]
    assert {figure["utilisation"] for figure in idle.values()} == {0.0}
    one = next(live for live in backend.read().jobs if live.job.gpus == 1)
    backend.act([Order(one.id, "d", (Part("volta0", "v100-sxm2-16gb", 1, (2,)),))])
    clock.move(60.0)
    backend.fail_node("radeon1")
    busy = telemetry(backend, backend.read())
    assert (busy["volta0/2"]["utilisation"] or 0) > 0.5
    assert (busy["volta0/2"]["temperature"] or 0) > (busy["volta0/1"]["temperature"] or 0)
    assert busy["radeon1/0"] == dict.fromkeys(MADE_UP)
    assert all(0.0 <= value <= 1.0 for figure in busy.values() for value in figure.values() if value is not None)


def test_a_simulated_cluster_takes_any_cluster_and_workload(tmp_path: Path) -> None:
    clock = ByHand()
    backend = simulated_backend("paper16", "paper", seed=1, clock=clock)
    assert len(backend.read().jobs) == 1  # the first job comes at once
    clock.move(24 * HOUR_S)
    assert len(backend.read().jobs) > 50
    assert simulated_backend("paper16", None, clock=clock).read().jobs == ()
    trace = tmp_path / "small.swf"
    trace.write_text("".join(f"{n} {n * 60} -1 100 2 -1 -1 2 200 -1 1 1 1 1 1 1 -1 -1\n" for n in range(1, 6)))
    traced = simulated_backend("paper16", str(trace), clock=clock)
    clock.move(300.0)
    assert [live.job.gpus for live in traced.read().jobs] == [2] * 5
    with pytest.raises(CatalogueError, match="no cluster"):
        simulated_backend("paper17", "paper")
