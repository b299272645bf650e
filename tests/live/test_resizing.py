"""Resizing jobs live: which jobs get another number of GPUs, and what happens where that is not possible."""

from dataclasses import replace
from typing import Any

import pytest
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, running, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import JobState, Part
from adlro.live.limits import PreemptTable
from adlro.live.service import Tick
from adlro.live.turn import Orchestrator, TurnSettings

V100 = "v100-sxm2-16gb"
ON: dict[str, Any] = {"is_on": True, "least_run_s": 0.0}


def with_job(**given: Any) -> Obedient:
    """A restartable job that runs for long on one of eight GPUs of a model, on nodes of four, and has sizes."""
    backend = Obedient(load_cluster("paper16"), seconds=lambda job, parts: 1e6)
    about: dict[str, Any] = {
        "restartable": True,
        "sizes": "1,2,4",
        "estimate": 4e5,
        "models": frozenset([V100]),
        "user": "eve",
    } | given
    backend.jobs["a"] = running("a", (Part("volta0", V100, 1, (0,)),), "uniform", gpus=1, **about)
    backend.now_s += 5000.0
    return backend


def orchestrator(backend: Obedient, memory: Notebook | None = None, **preempt: Any) -> Orchestrator:
    table = PreemptTable(**(ON | preempt))
    settings = TurnSettings(starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=table)
    return Orchestrator(backend, memory or Notebook(), "rank-elastic", "fcfs", settings)


def made(tick: Tick) -> list[tuple[str, str, int]]:
    return [(each.verb, each.job, sum(part.count for part in each.parts)) for each in tick.decisions]


def told(tick: Tick) -> list[str]:
    return [alarm.text for alarm in tick.alarms]


def test_a_job_that_names_its_sizes_is_stopped_and_goes_on_with_more_gpus_and_is_told_why() -> None:
    backend = with_job()
    ours = orchestrator(backend)
    tick = ours.tick()
    assert told(tick) == []
    assert made(tick) == [("stop", "a", 0), ("start", "a", 4)]
    stop, start = tick.decisions
    assert "to give it 4 GPUs instead of 1" in stop.reason
    assert "It gets 4 GPUs, one of its sizes (1,2,4); it asked for 1." in start.reason
    assert backend.jobs["a"].state is JobState.RUNNING
    assert [order.is_start for order in backend.orders] == [False, True]
    stopping = ours.state().stopping
    assert stopping is not None
    assert stopping.last_hour == 1
    backend.wait(100.0)
    assert made(ours.tick()) == []  # it has the most that it can have


@pytest.mark.parametrize("lacks", [{"sizes": ""}, {"restartable": False}])
def test_a_job_that_does_not_say_that_it_can_be_resized_keeps_its_gpus(lacks: dict[str, Any]) -> None:
    backend = with_job(**lacks)
    about: dict[str, Any] = {
        "gpus": 1,
        "estimate": 4e5,
        "sizes": "1,2,4",
        "restartable": True,
        "models": frozenset([V100]),
    } | lacks
    backend.jobs["b"] = waiting("b", "uniform", backend.now_s - EPOCH_S, **about)
    ours = orchestrator(backend)
    assert made(ours.tick()) == [("start", "b", 1)]
    backend.wait(100.0)
    assert made(ours.tick()) == []


def test_a_job_is_resized_only_as_often_as_it_may_be_stopped() -> None:
    backend, memory = with_job(), Notebook()
    assert made(orchestrator(backend, memory, per_job=0).tick()) == []
    backend.wait(100.0)
    assert made(orchestrator(backend, memory, per_job=1).tick()) == [("stop", "a", 0), ("start", "a", 4)]
    backend.jobs["b"] = waiting(
        "b", "uniform", backend.now_s - EPOCH_S, gpus=8, estimate=10.0, models=frozenset([V100]), restartable=True
    )
    backend.wait(100.0)
    assert made(orchestrator(backend, memory, per_job=1).tick()) == []


def test_a_job_that_takes_its_time_to_stop_starts_with_its_new_number_when_it_has_ended() -> None:
    backend = replace(with_job(), grace_s=30.0)
    ours = orchestrator(backend)
    assert made(ours.tick()) == [("stop", "a", 0)]
    for _ in range(2):
        backend.wait(20.0)
        assert made(ours.tick()) == []  # in the second turn it is put back, after the policy has looked
    backend.wait(1.0)
    assert made(ours.tick()) == [("start", "a", 4)]
    assert backend.starts == {"a": 1}


def test_where_nothing_can_be_resized_an_alarm_says_so_and_jobs_get_what_they_asked_for() -> None:
    for change, said in (
        ({"can_resize": False}, "the back end stand-in cannot give a job another number of GPUs. Every job has"),
        ({"can_stop": False}, "No running job is stopped, and no job is resized."),
    ):
        backend = replace(with_job(), **change)  # type: ignore[arg-type]
        backend.jobs["b"] = waiting(
            "b", "uniform", 0.0, gpus=1, estimate=4e5, sizes="1,2,4", restartable=True, models=frozenset([V100])
        )
        ours = orchestrator(backend)
        tick = ours.tick()
        assert said in told(tick)[0]
        assert len(told(tick)) == 1
        if "can_resize" in change:
            assert made(tick) == [("start", "b", 1)]
        backend.wait(100.0)
        assert told(ours.tick()) == []


def test_a_job_keeps_the_size_that_it_runs_with_when_stopping_is_switched_off() -> None:
    backend = with_job()
    orchestrator(backend).tick()
    backend.wait(100.0)
    ours = orchestrator(backend, is_on=False)
    assert made(ours.tick()) == []
    standing = ours._standing
    assert standing is not None
    assert standing.scene.view.jobs.gpus.tolist() == [4]
    assert standing.scene.view.jobs.shapes.tolist() == [0]
