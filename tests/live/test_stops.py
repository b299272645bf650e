"""Stopping running jobs live: who may be stopped, how often, and what waits until they have ended."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, running, waiting

from adlro.backends.local.backend import Local
from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import ENDED, Backend, JobState, LiveJob, Part, Submission
from adlro.core.records import Job
from adlro.core.tables import ALL_SPENT, View
from adlro.live.limits import PreemptTable
from adlro.live.service import Tick
from adlro.live.stops import StopLedger
from adlro.live.turn import Orchestrator, TurnSettings

V100 = "v100-sxm2-16gb"
ON: dict[str, Any] = {"is_on": True, "least_run_s": 0.0}


def turns(**preempt: Any) -> TurnSettings:
    return TurnSettings(starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(**preempt))


def orchestrator(
    backend: Backend, memory: Notebook | None = None, policy: str = "srtf", **preempt: Any
) -> Orchestrator:
    return Orchestrator(backend, memory or Notebook(), policy, "fcfs", turns(**(preempt or ON)))


def long_ones(*ids: str, **given: Any) -> Obedient:
    """Jobs that hold all eight GPUs of a model, four each, for long; the first has most work left."""
    given.setdefault("restartable", True)
    backend = Obedient(load_cluster("paper16"), seconds=lambda job, parts: 1e6)
    for number, id in enumerate(ids):
        parts = (Part(f"volta{number}", V100, 4, (0, 1, 2, 3)),)
        backend.jobs[id] = running(
            id, parts, "uniform", estimate=4e5 - number, models=frozenset([V100]), user=f"user {id}", **given
        )
    backend.now_s += 5000.0
    return backend


def come(backend: Obedient, id: str, **given: object) -> None:
    """A short job for four of these GPUs."""
    asked = {"gpus": 4, "estimate": 400.0, "models": frozenset([V100])} | given
    backend.jobs[id] = waiting(id, "uniform", backend.now_s - EPOCH_S, **asked)


def made(tick: Tick) -> list[tuple[str, str]]:
    return [(decision.verb, decision.job) for decision in tick.decisions]


def told(tick: Tick) -> list[str]:
    return [alarm.text for alarm in tick.alarms if alarm.kind == "preempt"]


# ---- who ---------------------------------------------------------------------------------------------------------


def test_by_default_no_job_is_stopped_and_the_first_turn_says_so() -> None:
    backend = long_ones("a", "b")
    come(backend, "short")
    ours = orchestrator(backend, is_on=False)
    first = ours.tick()
    assert made(first) == []
    assert told(first) == [
        "srtf stops running jobs, but stopping is switched off (adlro serve --preempt, docs/preemption.md). "
        "No running job is stopped."
    ]
    assert told(ours.tick()) == []
    assert all(order.is_start for order in backend.orders)


def test_a_policy_that_stops_no_jobs_says_nothing_and_one_that_is_switched_to_does() -> None:
    ours = orchestrator(long_ones("a"), policy="sjf", is_on=False)
    assert told(ours.tick()) == []
    ours.use_policy("las")
    assert len(told(ours.tick())) == 1


def test_a_back_end_that_cannot_stop_jobs_is_told_about_although_stopping_is_switched_on() -> None:
    backend = replace(long_ones("a"), can_stop=False)
    assert told(orchestrator(backend).tick()) == [
        "srtf stops running jobs, but the back end stand-in cannot stop jobs. No running job is stopped."
    ]


def test_only_a_marked_job_is_stopped_even_if_another_would_be_the_better_victim() -> None:
    backend = long_ones("a", "b")
    backend.jobs["a"] = replace(backend.jobs["a"], job=replace(backend.jobs["a"].job, restartable=False))
    come(backend, "short")
    assert made(orchestrator(backend).tick()) == [("stop", "b"), ("start", "short")]


def test_a_job_without_the_mark_is_never_stopped_and_others_start_beside_it() -> None:
    backend = long_ones("a", "b", restartable=False)
    come(backend, "short")
    come(backend, "elsewhere", estimate=9000.0, models=frozenset(["t4"]))
    ours = orchestrator(backend)
    assert made(ours.tick()) == [("start", "elsewhere")]
    assert made(ours.tick()) == []


def test_a_job_of_others_is_not_stopped_although_it_is_marked() -> None:
    backend = long_ones("a")
    backend.jobs["a"] = replace(backend.jobs["a"], managed=False)
    come(backend, "short", gpus=8)
    assert made(orchestrator(backend).tick()) == []


def test_no_job_is_stopped_for_one_that_also_needs_the_gpus_of_a_job_that_may_not_be_stopped() -> None:
    backend = long_ones("a", "b")
    backend.jobs["a"] = replace(backend.jobs["a"], job=replace(backend.jobs["a"].job, restartable=False))
    come(backend, "short", gpus=8)
    assert made(orchestrator(backend).tick()) == []


def test_no_job_is_stopped_for_one_for_which_the_budget_has_too_few_stops() -> None:
    backend = long_ones("a", "b")
    come(backend, "short", gpus=8)
    ours = orchestrator(backend, **ON, per_hour=1)
    assert made(ours.tick()) == []
    assert backend.orders == []
    assert ours._guarded.stops.stops_of("a") == ours._guarded.stops.stops_of("b") == 0


# ---- how often ---------------------------------------------------------------------------------------------------


def stops_in(backend: Obedient, ours: Orchestrator, hours: float, every_s: float = 600.0) -> int:
    """How often jobs are stopped while a short job comes every so many seconds."""
    before = sum(not order.is_start for order in backend.orders)
    for number in range(round(hours * 3600 / every_s)):
        come(backend, f"short {backend.now_s:.0f} {number}", gpus=8, user="short")
        backend.seconds = lambda job, parts: 60.0 if job.id.startswith("short") else 1e6
        ours.tick()
        backend.wait(100.0)
        ours.tick()
        backend.wait(every_s - 100.0)
    return sum(not order.is_start for order in backend.orders) - before


@pytest.mark.parametrize(
    ("budget", "stops"),
    [({}, 12), ({"per_job": 2}, 4), ({"per_hour": 4}, 4), ({"per_hour": 5}, 4), ({"per_user_hour": 1}, 2)],
)
def test_stops_within_an_hour_stay_within_each_budget(budget: dict[str, Any], stops: int) -> None:
    backend = long_ones("a", "b")
    assert stops_in(backend, orchestrator(backend, **ON, **budget), 1.0) == stops


def test_an_hour_later_there_are_stops_again_for_the_cluster_but_not_for_a_job_that_had_all_of_its_own() -> None:
    backend = long_ones("a", "b")
    ours = orchestrator(backend, **ON, per_hour=4)
    assert [stops_in(backend, ours, 1.0) for _ in range(2)] == [4, 4]
    backend = long_ones("a", "b")
    ours = orchestrator(backend, **ON, per_job=3)
    assert [stops_in(backend, ours, 1.0) for _ in range(2)] == [6, 0]


def test_policies_see_how_much_of_its_own_budget_a_job_has_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()  # what is used up, and whether the job may be stopped again
    asked = StopLedger.may_stop

    def may_stop(ledger: StopLedger, view: View, j: int) -> bool:
        seen.add((int(view.jobs[j].spent), int(view.jobs[j].stoppable)))
        return asked(ledger, view, j)

    monkeypatch.setattr(StopLedger, "may_stop", may_stop)
    backend = long_ones("a", "b")
    stops_in(backend, orchestrator(backend, **ON, per_job=4), 2.0)
    unmarked = (0, 0)  # the short ones
    assert seen - {unmarked} == {(0, 1), (250, 1), (500, 1), (750, 1), (ALL_SPENT, 0)}


def test_what_was_stopped_counts_after_a_restart_and_under_another_policy() -> None:
    backend, memory = long_ones("a", "b"), Notebook()
    ours = orchestrator(backend, memory, **ON, per_job=1)
    assert stops_in(backend, ours, 1.0) == 2
    ours.use_policy("srsf")
    assert stops_in(backend, ours, 1.0) == 0
    assert stops_in(backend, orchestrator(backend, memory, **ON, per_job=1), 1.0) == 0
    assert stops_in(backend, orchestrator(backend, memory, **ON, per_job=2), 1.0) == 2


def test_a_stop_that_the_cluster_refuses_is_not_tried_in_every_turn_and_does_not_count() -> None:
    backend = replace(long_ones("a", "b"), refuses=frozenset(["a"]))
    come(backend, "short", gpus=8)
    ours = orchestrator(backend)
    tick = ours.tick()
    assert {alarm.kind for alarm in tick.alarms} == {"refused"}
    assert "job a could not be stopped: it is refused here" in tick.alarms[0].text
    for _ in range(5):
        backend.wait(60.0)
        ours.tick()
    assert [order.job for order in backend.orders if not order.is_start] == ["a", "b"]
    stopping = ours.state().stopping
    assert stopping is not None
    assert stopping.last_hour == 1
    assert backend.starts == {"b": 1}


def test_the_state_says_how_much_of_the_budget_is_used() -> None:
    backend = long_ones("a", "b")
    ours = orchestrator(backend)
    come(backend, "short")
    ours.tick()
    found = ours.state().stopping
    assert found is not None
    assert (found.is_on, found.restartable, found.last_hour, found.per_hour) == (True, 1, 1, 100)
    assert (found.under_way, found.took_s, found.restart_s) == ((), None, 30.0)


def test_a_job_that_has_just_started_is_not_stopped_and_others_start_beside_it_meanwhile() -> None:
    backend = long_ones("a", "b")
    ours = orchestrator(backend, is_on=True, least_run_s=6000.0)
    come(backend, "short")
    come(backend, "elsewhere", estimate=9000.0, models=frozenset(["t4"]))
    assert made(ours.tick()) == [("start", "elsewhere")]
    backend.wait(1100.0)
    assert made(ours.tick()) == [("stop", "a"), ("start", "short")]


# ---- stops that take their time ----------------------------------------------------------------------------------


def test_what_needs_the_gpus_of_a_job_that_is_stopping_starts_when_they_are_free() -> None:
    backend = replace(long_ones("a", "b"), grace_s=45.0)
    come(backend, "short")
    ours = orchestrator(backend)
    assert made(ours.tick()) == [("stop", "a")]
    for _ in range(4):
        backend.wait(10.0)
        assert made(ours.tick()) == []
    assert backend.jobs["a"].is_stopping
    backend.wait(10.0)
    assert made(ours.tick()) == []  # this turn's order puts it back
    backend.wait(10.0)
    assert made(ours.tick()) == [("start", "short")]
    assert backend.starts == {"short": 1}
    assert backend.jobs["b"].state is JobState.RUNNING


def test_no_second_job_is_stopped_for_the_same_one_while_the_first_is_stopping() -> None:
    backend = replace(long_ones("a", "b"), grace_s=45.0)
    come(backend, "short")
    ours = orchestrator(backend)
    ours.tick()
    come(backend, "other", estimate=500.0)
    for _ in range(4):
        backend.wait(10.0)
        ours.tick()
    assert {order.job for order in backend.orders} == {"a"}


def test_the_time_that_a_stop_takes_is_measured_and_added_to_the_restart_cost_that_policies_see() -> None:
    backend = replace(long_ones("a", "b"), grace_s=45.0)
    come(backend, "short")
    ours = orchestrator(backend, **ON, restart_s=20.0)
    for _ in range(8):
        ours.tick()
        backend.wait(10.0)
    stopping = ours.state().stopping
    assert stopping is not None
    assert (stopping.took_s, stopping.restart_s) == (60.0, 80.0)
    assert ours._standing is not None
    assert ours._standing.scene.view.clock[0].restart == 80.0


def test_the_work_of_a_job_that_took_its_time_to_stop_is_carried_once() -> None:
    backend = replace(long_ones("a", "b"), grace_s=45.0)
    come(backend, "short")
    ours = orchestrator(backend)
    for _ in range(8):
        ours.tick()
        backend.wait(10.0)
    assert ours._seen.carried["a"].held_s == pytest.approx(5060.0, abs=11.0)


def test_a_daemon_that_dies_while_a_job_is_stopping_lets_it_end_and_start_again_once() -> None:
    backend, memory = replace(long_ones("a", "b"), grace_s=45.0), Notebook()
    come(backend, "short")
    backend.seconds = lambda job, parts: 60.0
    orchestrator(backend, memory).tick()
    ours = orchestrator(backend, memory)
    seen = []
    for _ in range(20):
        seen += made(ours.tick())
        backend.wait(10.0)
    assert seen == [("start", "short"), ("start", "a")]
    assert backend.starts == {"short": 1, "a": 1}
    assert memory.unanswered() == []


def test_a_stop_that_was_decided_and_never_ordered_is_decided_again_and_counts_once() -> None:
    backend, memory = long_ones("a", "b"), Notebook()
    come(backend, "short")
    backend.dies_in_act = True
    orchestrator(backend, memory).tick()
    assert [each.verb for each in memory.unanswered()] == ["stop"]
    backend.dies_in_act = False
    ours = orchestrator(backend, memory, **ON)
    assert "settled" in [alarm.kind for alarm in ours.tick().alarms]
    assert made(memory.ticks[-1]) == [("stop", "a"), ("start", "short")]
    assert ours._guarded.stops.stops_of("a") == 1


def test_stopping_goes_on_after_it_was_switched_off_for_a_job_that_was_told_to() -> None:
    backend, memory = replace(long_ones("a", "b"), grace_s=45.0), Notebook()
    come(backend, "short")
    orchestrator(backend, memory).tick()
    ours = orchestrator(backend, memory, is_on=False)
    for _ in range(8):
        ours.tick()
        backend.wait(10.0)
    assert (backend.jobs["a"].state, backend.starts) == (JobState.WAITING, {"short": 1})


def test_a_policy_that_plans_rounds_goes_on_as_soon_as_the_gpus_are_free() -> None:
    backend = replace(long_ones("a", "b"), grace_s=45.0)
    for id in ("one", "two"):
        come(backend, id, estimate=4e5)
    ours = orchestrator(backend, policy="gavel-maxmin")
    seen: list[tuple[str, str]] = []
    for _ in range(60):
        seen += made(ours.tick())
        backend.wait(10.0)
        if len(backend.starts) > 1:
            break
    assert {verb for verb, _ in seen} == {"stop", "start"}
    assert {"one", "two"} & set(backend.starts)
    stopped = min(memory.time_s for memory in ours._notes.memory.decisions() if memory.verb == "stop")
    started = min(memory.time_s for memory in ours._notes.memory.decisions() if memory.verb == "start")
    assert started - stopped < 120.0


# ---- what is told ------------------------------------------------------------------------------------------------


def test_the_decision_says_for_whom_a_job_is_stopped_and_what_that_one_gains() -> None:
    backend = long_ones("a", "b")
    come(backend, "short")
    stop = orchestrator(backend).tick().decisions[0]
    assert (stop.verb, stop.job) == ("stop", "a")
    assert stop.reason.startswith("srtf stops it after 83 min so that job short can start, which needs about 100 s: ")
    assert "that job gains up to 26" in stop.reason
    assert [mention.job for mention in stop.mentions] == ["short"]


def test_why_says_when_and_for_whom_a_job_was_stopped_and_how_often() -> None:
    backend, memory = replace(long_ones("a", "b"), grace_s=45.0), Notebook()
    come(backend, "short")
    ours = orchestrator(backend, memory)
    ours.tick()
    backend.wait(10.0)
    ours.tick()
    told_to = ours.why("a")
    assert told_to is not None
    assert told_to.text.startswith("It was told to stop at ")
    for _ in range(8):
        backend.wait(10.0)
        ours.tick()
    why = ours.why("a")
    assert why is not None
    assert why.text.startswith("It was stopped at ")
    assert "(1 of at most 10 times): srtf stops it after 83 min so that job short can start" in why.text
    assert "Waits for 4 v100 on one node" in why.text
    assert "short" in [mention.job for mention in why.mentions]
    other = ours.why("short")
    assert other is not None
    assert "stopped" not in other.text


def test_predicted_starts_assume_that_no_job_is_stopped() -> None:
    backend = long_ones("a", "b", restartable=False)
    come(backend, "short")
    settings = replace(turns(**ON), starts_s=5.0)
    ours = Orchestrator(backend, Notebook(), "srtf", "fcfs", settings)
    ours.tick()
    start = ours.state().starts["short"].middle_s
    assert start is not None
    assert start > backend.now_s + 3600.0


# ---- with real processes -----------------------------------------------------------------------------------------


def test_on_this_machine_a_marked_job_ends_for_a_short_one_and_runs_again_once_although_the_daemon_dies(
    tmp_path: Path,
) -> None:
    whole = load_cluster("paper16")
    cluster = replace(whole, nodes=whole.nodes[:1], models={V100: whole.models[V100]})
    backend, memory, marks = Local(cluster, tmp_path / "spool", grace_s=5.0), Notebook(), tmp_path / "marks"
    script = (
        f"echo begin >> {marks}; grep -q saved {marks} && exit 0; "
        f"trap 'sleep 0.3; echo saved >> {marks}; exit 0' TERM; while :; do sleep 0.05; done"
    )
    wish = Job("uniform", gpus=4, estimate=4e5, restartable=True)
    long = backend.submit(Submission(wish, ("/bin/sh", "-c", script)))

    def job(id: str) -> LiveJob:
        return {each.id: each for each in backend.read().jobs}[id]

    ours, short, deaths, end = orchestrator(backend, memory), "", 0, time.monotonic() + 60.0
    while not short or job(long).state not in ENDED:
        assert time.monotonic() < end, backend.read().jobs
        tick = ours.tick()
        assert not [alarm for alarm in tick.alarms if alarm.kind == "refused"]
        if not short and job(long).state is JobState.RUNNING and marks.exists():
            time.sleep(0.2)  # it sets its trap
            short = backend.submit(Submission(replace(wish, estimate=40.0), ("true",)))
        if job(long).is_stopping and not deaths:
            ours, deaths = orchestrator(backend, memory), 1
        time.sleep(0.02)
    starts = {each.id: each.starts for each in backend.read().jobs}
    backend.close()
    assert marks.read_text().split() == ["begin", "saved", "begin"]
    assert (starts, deaths) == ({long: 2, short: 1}, 1)
    assert [made.verb for made in memory.decisions(job=long)[::-1]] == ["start", "stop", "start"]
