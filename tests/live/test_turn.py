"""The turns of the daemon: nothing is lost, nothing runs twice, and every trouble is told."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, Watch, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import BackendError, CatalogueError
from adlro.core.ports import ENDED, JobState, LiveJob, Order, Part, Submission
from adlro.core.records import Job
from adlro.live.limits import PreemptTable
from adlro.live.orders import stands_as
from adlro.live.service import Decision, Tick, WhatIf
from adlro.live.turn import Orchestrator, TurnSettings

V100 = "v100-sxm2-16gb"


def busy(count: int, seed: int = 0, restartable: bool = False) -> Obedient:
    """A cluster of 16 GPUs with so many jobs waiting."""
    random = Random(seed)
    backend = Obedient(load_cluster("paper16"))
    backend.seconds = lambda job, parts: (job.job.estimate or 600.0) / max(job.job.gpus, 1)
    for number in range(count):
        family, gpus = random.choice(["simulation", "learning", "data"]), random.choice([1, 1, 2, 4, 8])
        job = Job(
            family, 0.0, gpus=gpus, user=f"u{number % 3}", name=f"n{number % 5}", estimate=random.uniform(60, 900),
            restartable=restartable,
        )  # fmt: skip
        backend.submit(Submission(job))
    return backend


def orchestrator(backend: Obedient, memory: Notebook | None = None, policy: str = "sjf", **given: Any) -> Orchestrator:
    settings = given.pop("settings", TurnSettings(starts_s=0.01, compare_s=1e9))
    return Orchestrator(backend, memory or Notebook(), policy, settings=settings, **given)


def until_done(backend: Obedient, tick: Callable[[], object], turns: int = 200) -> None:
    for _ in range(turns):
        tick()
        if all(job.state in ENDED for job in backend.jobs.values()):
            return
        backend.wait(60.0)
    pytest.fail(f"jobs are left: {[job.id for job in backend.jobs.values() if job.state not in ENDED]}")


def kinds(tick: Tick) -> list[str]:
    return [alarm.kind for alarm in tick.alarms]


STOPPING = TurnSettings(starts_s=0.01, compare_s=1e9, preempt=PreemptTable(is_on=True, least_run_s=100.0))


@pytest.mark.parametrize("policy", ["sjf", "adlro", "fcfs-easy", "srtf"])
def test_every_job_runs_once_and_where_it_was_decided(policy: str) -> None:
    backend, memory = busy(40, restartable=True), Notebook()
    ours = orchestrator(backend, memory, policy, settings=STOPPING)
    until_done(backend, ours.tick)
    stops = {order.job for order in backend.orders if not order.is_start}
    assert all(times == 1 for id, times in backend.starts.items() if id not in stops)
    assert set(backend.starts) == set(backend.jobs) == set(memory.past)
    assert memory.unanswered() == []
    for job in memory.past.values():
        assert stands_as(job, memory.made[job.decision])
    assert not [alarm for tick in memory.ticks for alarm in tick.alarms]


def test_a_turn_whose_time_was_over_says_so() -> None:
    backend = busy(40)
    assert orchestrator(backend, settings=TurnSettings(decide_s=0.0, compare_s=1e9)).tick().is_cut
    assert not orchestrator(busy(4)).tick().is_cut


def test_decisions_have_ids_that_sort_as_they_were_made_even_if_the_clock_stands_still_or_goes_back() -> None:
    backend, memory = busy(30), Notebook()
    ours = orchestrator(backend, memory)
    made: list[Decision] = []
    for step in (0.0, 300.0, -700.0, 900.0):
        made += ours.tick().decisions
        backend.wait(step)
    ids = [decision.id for decision in made]
    assert ids == sorted(set(ids))
    assert len(ids) > 10


@pytest.mark.parametrize("last", ["999999999999999-000001-99998", "zz"])
def test_ids_go_on_where_an_earlier_life_ended(last: str) -> None:
    backend, memory = busy(3), Notebook()
    memory.made[last] = Decision(last, EPOCH_S, 1, "x", "start", (), "sjf", "")
    ids = [last, *(decision.id for decision in orchestrator(backend, memory).tick().decisions)]
    assert len(ids) == 4
    assert ids == sorted(set(ids))


def test_a_decision_has_its_prediction_and_what_else_was_open() -> None:
    backend = busy(0)
    backend.submit(Submission(Job("simulation", 0.0, gpus=1, estimate=1000.0)))
    decision = orchestrator(backend, policy="adlro").tick().decisions[0]
    assert decision.low_s is not None
    assert decision.runtime_s is not None
    assert decision.high_s is not None
    assert decision.low_s < decision.runtime_s < decision.high_s
    chosen, *others = decision.alternatives
    assert chosen.chosen
    assert chosen.score is not None
    assert len(others) == 2
    assert chosen.score >= max(other.score for other in others if other.score is not None)
    assert "min on v100 here, " in decision.reason
    assert "Q" not in decision.reason


def test_a_start_that_was_decided_and_not_acted_on_is_decided_again() -> None:
    backend, memory = busy(3), Notebook()
    backend.dies_in_act = True
    tick = orchestrator(backend, memory).tick()
    assert kinds(tick) == ["backend"]
    assert len(memory.unanswered()) == 3
    backend.dies_in_act = False
    before = memory.unanswered()
    tick = orchestrator(backend, memory).tick()
    assert "settled" in kinds(tick)
    assert not any(memory.said[decision.id].done for decision in before)
    assert memory.unanswered() == []
    assert len(tick.decisions) == 3
    assert all(times == 1 for times in backend.starts.values())


def test_a_start_that_was_acted_on_and_not_written_down_is_found() -> None:
    backend, memory = busy(3), Notebook()
    memory.answered = lambda decisions, answers: None  # type: ignore[method-assign]
    orchestrator(backend, memory).tick()
    del memory.answered
    assert len(memory.unanswered()) == 3
    tick = orchestrator(backend, memory).tick()
    assert tick.decisions == ()
    assert all(answer.done for answer in memory.said.values())
    assert len(memory.said) == 3


class Killed(BaseException):
    """The process is gone: nobody catches this."""


class Deadly:
    """Dies at the n-th call of anything, before or after it is done."""

    def __init__(self, inner: object, left: list[int]) -> None:
        self._inner, self._left = inner, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] == 0:
                raise Killed
            answer = found(*args, **kwargs)
            self._left[0] -= 1
            if self._left[0] == 0:
                raise Killed
            return answer

        return call


def test_a_hundred_deaths_lose_nothing_and_run_nothing_twice() -> None:
    random, deaths = Random(7), 0
    for round_ in range(5):
        backend, memory = busy(25, seed=round_), Notebook()
        while deaths < 20 * (round_ + 1):
            left = [random.randint(1, 30)]
            try:
                ours = Orchestrator(
                    Deadly(backend, left),
                    Deadly(memory, left),
                    "sjf",
                    settings=TurnSettings(starts_s=0.001, compare_s=1e9),
                )
                for _ in range(5):
                    ours.tick()
                    backend.wait(20.0)
            except Killed:
                deaths += 1
        until_done(backend, orchestrator(backend, memory).tick)
        assert set(backend.starts) == set(backend.jobs) == set(memory.past)
        assert all(times == 1 for times in backend.starts.values())


def test_an_order_that_is_refused_is_not_repeated_at_once() -> None:
    backend, time = busy(2), Watch()
    backend.refuses = frozenset(["job1"])
    ours = orchestrator(backend, monotonic=time)
    first = ours.tick()
    assert kinds(first) == ["refused"]
    assert "it is refused here" in first.alarms[0].text
    for seconds, orders in ((1.0, 0), (30.0, 1), (31.0, 0), (30.0, 1)):
        time.time += seconds
        assert len([made for made in ours.tick().decisions if made.job == "job1"]) == orders
    why = ours.why("job1")
    assert why is not None
    assert why.dominant == "refused"
    backend.refuses = frozenset()
    time.time += 10_000.0
    assert [made.job for made in ours.tick().decisions] == ["job1"]


def test_an_order_that_was_taken_and_not_carried_out_is_told() -> None:
    backend = busy(1)
    backend.ignores = frozenset(["job1"])
    ours = orchestrator(backend)
    tick = ours.tick()
    assert kinds(tick) == ["refused"]
    assert "waits still" in tick.alarms[0].text
    assert ours.tick().decisions == ()


def test_a_job_that_runs_elsewhere_than_decided_is_told() -> None:
    backend = busy(1)
    carry_out = backend.carry_out

    def elsewhere(order: Order) -> Any:
        return carry_out(replace(order, parts=(Part("turing", "t4", 1, (0,)),)))

    backend.carry_out = elsewhere  # type: ignore[method-assign]
    backend.jobs["job1"] = waiting("job1", models=frozenset([V100]))
    tick = orchestrator(backend).tick()
    assert kinds(tick) == ["misplaced"]
    assert tick.alarms[0].text == f"job job1 was to start on 1 {V100} on volta0 and has 1 t4 on turing."


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Part("volta0", V100, 2, (2, 3)), ""),  # other GPUs of the same node: the cluster chooses those
        (Part("volta0", V100, 2), ""),
        (Part("volta0", V100, 1, (0,)), f"was to start on 2 {V100} on volta0 and has 1 {V100} on volta0."),
        (Part("volta0", "t4", 2), f"was to start on 2 {V100} on volta0 and has 2 t4 on volta0."),
    ],
)
def test_an_alarm_of_a_misplaced_job_says_what_differs_and_other_gpus_of_the_node_are_none(
    part: Part, said: str
) -> None:
    backend = busy(1)
    carry_out = backend.carry_out
    backend.carry_out = lambda order: carry_out(replace(order, parts=(part,)))  # type: ignore[method-assign]
    backend.jobs["job1"] = waiting("job1", gpus=2, models=frozenset([V100]))
    tick = orchestrator(backend).tick()
    assert [alarm.text for alarm in tick.alarms] == ([f"job job1 {said}"] if said else [])


def test_a_cluster_that_cannot_be_read_is_not_an_empty_one() -> None:
    backend = busy(30)
    ours = orchestrator(backend)
    with pytest.raises(BackendError):
        ours.state()
    ours.tick()
    before = ours.state().snapshot.jobs
    backend.is_gone = True
    tick = ours.tick()
    assert kinds(tick) == ["backend"]
    assert tick.decisions == ()
    state = ours.state()
    assert state.snapshot.jobs == before
    assert state.snapshot.notes[-1].startswith("stale:")
    assert kinds(ours.tick()) == []  # told once
    backend.is_gone = False
    backend.wait(900.0)
    assert ours.tick().decisions
    assert ours.state().snapshot.notes == ()


def test_a_memory_that_cannot_be_written_is_told_and_does_not_stop_anything() -> None:
    backend, memory = busy(4), Notebook(is_full=True)
    ours = orchestrator(backend, memory)
    tick = ours.tick()
    assert set(kinds(tick)) == {"store"}
    assert len(tick.decisions) >= 3
    until_done(backend, ours.tick)
    assert all(times == 1 for times in backend.starts.values())


def test_another_policy_decides_from_the_next_turn_on() -> None:
    ours = orchestrator(busy(3))
    ours.tick()
    ours.use_policy("fcfs")
    assert ours.tick().policy == "fcfs"
    assert ours.state().policy == "fcfs"
    with pytest.raises(CatalogueError, match="no policy 'fcf'"):
        ours.use_policy("fcf")


def test_a_cluster_that_cannot_stop_jobs_is_never_told_to() -> None:
    backend = busy(40, restartable=True)
    backend.can_stop = False
    ours = orchestrator(backend, policy="srtf", settings=STOPPING)
    until_done(backend, ours.tick)
    assert all(order.is_start for order in backend.orders)


def test_a_job_that_is_stopped_keeps_its_work_and_its_place_in_the_queue() -> None:
    backend = Obedient(load_cluster("paper16"), can_stop=True)
    backend.jobs["long"] = waiting("long", family="uniform", gpus=8, estimate=80_000.0, restartable=True)
    ours = orchestrator(backend, policy="srtf", settings=STOPPING)
    backend.seconds = lambda job, parts: 1e6
    ours.tick()
    backend.wait(50.0)
    backend.jobs["short"] = waiting(
        "short", family="uniform", at_s=60.0, gpus=8, estimate=800.0, models=frozenset([V100])
    )
    assert ours.tick().decisions == ()  # it has not run for 100 s yet
    backend.wait(1000.0)
    verbs = [(made.verb, made.job) for made in ours.tick().decisions]
    assert verbs == [("stop", "long"), ("start", "short")]
    backend.wait(10.0)
    ours.tick()
    assert ours._seen.carried["long"].saved == pytest.approx(8 * 1050.0, rel=0.05)


def test_a_requeued_job_keeps_its_first_submission() -> None:
    backend, memory = Obedient(load_cluster("paper16")), Notebook()
    backend.jobs["old"] = waiting("old", gpus=8, models=frozenset([V100]))
    backend.jobs["new"] = waiting("new", at_s=5.0, gpus=8, models=frozenset([V100]))
    backend.down = {"volta0": "down", "volta1": "down"}
    backend.now_s += 10.0
    orchestrator(backend, memory, "fcfs").tick()
    late = replace(backend.jobs["old"].job, submit_s=EPOCH_S + 100.0)  # as Slurm does after a requeue
    backend.jobs["old"] = replace(backend.jobs["old"], job=late)
    backend.now_s += 200.0
    backend.down = {}
    assert [made.job for made in orchestrator(backend, memory, "fcfs").tick().decisions] == ["old"]


def test_a_job_that_is_gone_without_an_end_is_told() -> None:
    backend = busy(2)
    ours = orchestrator(backend)
    ours.tick()
    del backend.jobs["job2"]
    tick = ours.tick()
    assert kinds(tick) == ["vanished"]
    assert "job2" in tick.alarms[0].text


def test_an_end_is_learnt_once_and_with_the_place_that_the_cluster_forgot() -> None:
    backend, memory = busy(1), Notebook()
    ours = orchestrator(backend, memory)
    ours.tick()
    backend.wait(10_000.0)
    backend.jobs["job1"] = replace(backend.jobs["job1"], parts=())
    ours.tick()
    ours.tick()
    orchestrator(backend, memory).tick()
    assert memory.past["job1"].parts != ()


def test_history_teaches_how_long_jobs_run() -> None:
    backend, memory = Obedient(load_cluster("paper16")), Notebook()
    part = (Part("volta0", V100, 1, (0,)),)
    for number in range(30):
        job = Job("simulation", 0.0, EPOCH_S, user="ann", name="fluid")
        at = EPOCH_S - 1e5 + number * 1000
        memory.past[f"p{number}"] = LiveJob(
            f"p{number}", job, JobState.FINISHED, part, started_s=at, ended_s=at + 432.0 + number, starts=1
        )
    backend.jobs["a"] = LiveJob("a", Job("simulation", 0.0, EPOCH_S, user="ann", name="fluid"), JobState.WAITING)
    backend.jobs["b"] = LiveJob("b", Job("simulation", 0.0, EPOCH_S, user="bob", name="new"), JobState.WAITING)
    decisions = {made.job: made for made in orchestrator(backend, memory).tick().decisions}
    on_v100 = decisions["a"]
    assert on_v100.parts[0].model == V100
    assert on_v100.runtime_s == pytest.approx(450.0, rel=0.05)
    assert [like.user for like in on_v100.like] == ["ann"] * 3
    assert on_v100.like[0].similarity > 0.9


@pytest.mark.parametrize(
    ("state", "ran_s"),
    [(JobState.FAILED, 0.0), (JobState.FAILED, 3.0), (JobState.CANCELLED, 500.0), (JobState.FINISHED, 0.0)],
)
def test_a_job_that_never_ran_or_failed_at_once_is_not_learnt_as_a_runtime(state: JobState, ran_s: float) -> None:
    backend = Obedient(load_cluster("paper16"))
    job = Job("simulation", 0.0, EPOCH_S, user="ann", name="fluid")
    backend.jobs["gone"] = LiveJob("gone", job, state, started_s=EPOCH_S - 9.0, ended_s=EPOCH_S - 9.0 + ran_s, starts=1)
    backend.jobs["a"] = LiveJob("a", job, JobState.WAITING)
    made = orchestrator(backend).tick().decisions[0]
    assert made.like == ()


@pytest.mark.parametrize(("policy", "first"), [("qssf", "ann"), ("multifactor", "bob")])
def test_policies_that_look_back_are_told_of_the_past(policy: str, first: str) -> None:
    backend, memory = Obedient(load_cluster("paper16")), Notebook()
    for number in range(20):  # ann's jobs are short, and she had much more of the cluster
        for user, seconds, gpus in (("ann", 500.0, 8), ("bob", 2000.0, 1)):
            job = Job("uniform", 0.0, EPOCH_S, user=user, name=f"{user}-{number % 2}", gpus=gpus)
            job = replace(job, gpus=1) if policy == "qssf" else job
            parts, at = (Part("volta0", V100, gpus, (0,)),), EPOCH_S - 3600.0 - number
            memory.past[f"{user}{number}"] = LiveJob(
                f"{user}{number}", job, JobState.FINISHED, parts, started_s=at - seconds, ended_s=at, starts=1
            )
    for user in ("bob", "ann") if policy == "qssf" else ("ann", "bob"):
        backend.jobs[user] = waiting(
            user, family="uniform", gpus=8, user=user, name=f"{user}-1", models=frozenset([V100])
        )
    tick = orchestrator(backend, memory, policy).tick()
    assert [made.job for made in tick.decisions] == [first]


def test_a_policy_of_a_users_own_file_decides(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from adlro.core.policy import starting, waiting\n"
        "def last(view):\n"
        '    """Starts the last job at the last site."""\n'
        "    from adlro.core.rules import fits, in_queue\n"
        "    j = int(in_queue(view, view.clock[0].queued - 1))\n"
        "    s = len(view.sites) - 1\n"
        "    return starting(j, s) if fits(view, j, s) else waiting()\n"
    )
    backend = busy(0)
    for name in ("a", "b"):
        backend.jobs[name] = waiting(name, gpus=4)
    ours = orchestrator(backend)
    ours.use_policy(f"{path}:last")
    made = ours.tick().decisions
    assert [(each.job, each.parts[0].node) for each in made] == [("b", "radeon")]
    with pytest.raises(CatalogueError, match="no function 'first'"):
        ours.use_policy(f"{path}:first")


def test_utilisation_and_times_in_the_system_are_kept() -> None:
    backend, time = busy(20), Watch()
    ours = orchestrator(backend, monotonic=time, settings=TurnSettings(starts_s=0.01, compare_s=100.0))
    for _ in range(20):
        ours.tick()
        backend.wait(120.0)
        time.time += 120.0
    history = ours.state().history
    assert len(history) == 20
    assert history[0].utilisation > 0.4
    assert history[-1].utilisation == 0.0
    assert history[-1].jct_s == pytest.approx(history[-2].jct_s)  # all have ended: nothing is added any more
    assert history[-1].fallback_jct_s is not None


def test_questions_are_answered_from_the_latest_state() -> None:
    backend = busy(40)
    ours = orchestrator(backend, policy="adlro")
    ours.tick()
    job = Submission(Job("learning", 0.0, gpus=2, estimate=100.0))
    foreseen = ours.what_if(WhatIf(jobs=(job,)))
    assert foreseen.starts[0].middle_s is not None
    assert ours.what_if(WhatIf(add_nodes=((V100, 4, 8),))).jct_if_s < foreseen.jct_s  # type: ignore[operator]
    assert len(ours.state().snapshot.jobs) == 40


def test_others_may_ask_while_a_turn_goes_on() -> None:
    backend, troubles, is_over = busy(60), list[Exception](), threading.Event()
    ours = orchestrator(backend, policy="adlro")
    ours.tick()
    job = Submission(Job("learning", 0.0, gpus=2, estimate=100.0))

    def ask() -> None:
        try:
            while not is_over.is_set():
                for each in ours.state().snapshot.jobs[::7]:
                    assert ours.why(each.id) is not None
                ours.what_if(WhatIf(jobs=(job,)))
        except Exception as error:
            troubles.append(error)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    for _ in range(15):
        backend.wait(30.0)
        ours.tick()
    is_over.set()
    for asker in askers:
        asker.join()
    assert troubles == []


def test_the_measured_history_goes_on_after_a_restart_where_it_ended() -> None:
    backend, memory = busy(8), Notebook()
    settings = TurnSettings(starts_s=0.01, compare_s=1e9, kept_history=3)
    ours = orchestrator(backend, memory, settings=settings)
    for _ in range(5):
        ours.tick()
        backend.wait(30.0)
    before = ours.state().history
    assert len(before) == 3
    assert len(memory.measured) == 3  # a point for a minute
    assert before[0].running
    again = orchestrator(backend, memory, settings=settings)
    again.tick()
    assert again.state().history == before
    backend.wait(30.0)
    again.tick()
    assert again.state().history[:2] == before[1:]
    assert again.state().history[-1].time_s == before[-1].time_s + 60.0
    memory.is_full = True
    backend.wait(60.0)
    assert "store" in kinds(again.tick())
    assert len(again.state().history) == 3
