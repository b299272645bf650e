"""Refusals are remembered with their reason; what we cannot place goes back to the cluster's own scheduler."""

from dataclasses import replace

from tests.live.stand_in import Notebook, Obedient, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import Answer, JobState, LiveJob, Order, Part, Setback
from adlro.live.service import Alarm
from adlro.live.setbacks import LIMIT_S, SOONEST_S, SOONEST_SHARED_S, Setbacks
from adlro.live.turn import Orchestrator, TurnSettings

VOLTA = Part("volta0", "v100-sxm2-16gb", 1)


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limited(id: str = "big", said: str = "Slurm says QOSMaxGRESPerUser", **given: object) -> LiveJob:
    """A job that a limit keeps from starting."""
    given.setdefault("user", "ann")
    given.setdefault("gpus", 4)
    return replace(waiting(id, **given), setback=Setback.LIMIT, reason=said, decision="d1")  # type: ignore[arg-type]


def holds(id: str, user: str = "ann") -> LiveJob:
    """A job that runs."""
    return replace(waiting(id, user=user), state=JobState.RUNNING, parts=(VOLTA,))


def names(setbacks: Setbacks, *jobs: LiveJob) -> set[str]:
    return set(setbacks.passed_over({job.id: job for job in jobs}))


def test_a_limited_job_is_held_again_and_passed_over_with_its_reason() -> None:
    setbacks = Setbacks(Clock())
    seen = setbacks.look(snapshot(limited()))
    assert seen.withdraw == ("big",)
    assert seen.limits == {"big": "Slurm says QOSMaxGRESPerUser"}
    (words,) = setbacks.passed_over({"big": limited()}).values()
    assert "QOSMaxGRESPerUser" in words
    assert "when a job of ann ends" in words
    assert not setbacks.look(snapshot(limited())).limits  # it is told once


def test_a_limit_of_a_user_also_holds_up_his_jobs_that_ask_for_as_much() -> None:
    setbacks = Setbacks(Clock())
    setbacks.look(snapshot(limited(gpus=2)))
    same, small = waiting("same", user="ann", gpus=2), waiting("small", user="ann", gpus=1)
    other = waiting("other", user="bob", gpus=8)
    elsewhere = replace(waiting("elsewhere", user="ann", gpus=2), qos="large")
    assert names(setbacks, same, small, other, elsewhere) == {"same"}


def test_a_limit_on_cpus_says_nothing_about_jobs_with_as_many_gpus() -> None:
    setbacks = Setbacks(Clock())
    setbacks.look(snapshot(limited(said="Slurm says QOSMaxCpuPerUserLimit")))
    assert not names(setbacks, waiting("same", user="ann", gpus=4))


def test_a_limit_of_an_array_holds_up_nobody_else() -> None:
    setbacks = Setbacks(Clock())
    setbacks.look(snapshot(limited("12_3", said="Slurm says JobArrayTaskLimit", gpus=1)))
    assert names(setbacks, limited("12_3"), waiting("other", user="ann", gpus=1)) == {"12_3"}


def test_a_limit_of_a_user_is_tried_again_when_one_of_his_jobs_ends() -> None:
    clock = Clock()
    setbacks = Setbacks(clock)
    big = replace(limited(), setback=Setback.NONE)
    setbacks.look(snapshot(limited(), holds("mine"), holds("theirs", "bob")))
    clock.now += SOONEST_S
    setbacks.look(snapshot(big, holds("mine")))  # bob's job ended: no matter
    assert names(setbacks, big) == {"big"}
    setbacks.look(snapshot(big))
    assert not names(setbacks, big)


def test_a_limit_that_users_share_is_tried_again_when_anybodys_job_ends_but_not_all_the_time() -> None:
    clock = Clock()
    setbacks = Setbacks(clock)
    shared = limited(said="Slurm says AssocGrpGRES")
    big = replace(shared, setback=Setback.NONE)
    setbacks.look(snapshot(shared, holds("theirs", "bob")))
    clock.now += SOONEST_S
    setbacks.look(snapshot(big))
    assert names(setbacks, big) == {"big"}
    clock.now += SOONEST_SHARED_S
    setbacks.look(snapshot(big))
    assert not names(setbacks, big)


def test_a_limit_is_tried_again_after_a_while_and_later_each_time() -> None:
    clock = Clock()
    setbacks = Setbacks(clock)
    big = replace(limited(), setback=Setback.NONE)
    for wait_s in (LIMIT_S, 2 * LIMIT_S, 4 * LIMIT_S):
        setbacks.look(snapshot(limited()))
        clock.now += wait_s - 1
        setbacks.look(snapshot(big))
        assert names(setbacks, big) == {"big"}
        clock.now += 1
        setbacks.look(snapshot(big))
        assert not names(setbacks, big)


def test_a_limit_is_forgotten_when_the_job_was_changed() -> None:
    setbacks = Setbacks(Clock())
    setbacks.look(snapshot(limited()))
    smaller = replace(limited(gpus=1), setback=Setback.NONE)
    setbacks.look(snapshot(smaller))
    assert not names(setbacks, smaller)


def test_a_job_that_lost_two_places_goes_back() -> None:
    setbacks = Setbacks(Clock())
    lost = replace(waiting("j"), setback=Setback.PLACE, reason="Slurm says ReqNodeNotAvail", decision="d1")
    first = setbacks.look(snapshot(lost))
    assert (first.give_back, first.withdraw) == ({}, ("j",))
    assert not setbacks.look(snapshot(lost)).give_back  # the same place: it was not tried again yet
    assert names(setbacks, lost) == {"j"}  # for some seconds it is passed over
    assert setbacks.look(snapshot(replace(lost, decision="d2"))).give_back == {
        "j": "Slurm says ReqNodeNotAvail, 2 times"
    }


def test_a_job_that_ran_in_between_has_lost_no_place() -> None:
    setbacks = Setbacks(Clock())
    lost = replace(waiting("j"), setback=Setback.PLACE, reason="Slurm says NodeDown", decision="d1")
    setbacks.look(snapshot(lost))
    setbacks.look(snapshot(holds("j")))
    assert not setbacks.look(snapshot(replace(lost, decision="d2"))).give_back


def test_a_job_that_was_put_back_is_held_again_once_before_it_is_placed() -> None:
    setbacks = Setbacks(Clock())
    put_back = replace(waiting("j"), setback=Setback.PUT_BACK, reason="put back after it began", decision="d1")
    assert setbacks.look(snapshot(put_back)).withdraw == ("j",)
    assert names(setbacks, put_back) == {"j"}
    assert not setbacks.look(snapshot(put_back)).withdraw  # it could not be held: it is placed as it is
    assert not names(setbacks, put_back)
    setbacks.look(snapshot(holds("j")))  # the cluster started it by itself, under the same decision
    assert setbacks.look(snapshot(put_back)).withdraw == ("j",)


# ---- in the orchestrator -----------------------------------------------------------------------------------------


def living(backend: Obedient, policy: str = "fcfs-first-fit") -> Orchestrator:
    return Orchestrator(backend, Notebook(), policy, "fcfs-first-fit")


class WithLimit(Obedient):
    """A cluster on which one user may hold two GPUs at a time."""

    def carry_out(self, order: Order) -> Answer:
        job = self.jobs[order.job]
        if not order.is_start:
            self.orders.append(order)
            self.jobs[job.id] = replace(job, setback=Setback.NONE, decision="")
            return Answer(job.id, True)
        user = job.job.user
        used = sum(each.job.gpus for each in self.jobs.values() if each.job.user == user and each.parts)
        if used + job.job.gpus <= 2:
            return super().carry_out(order)
        self.orders.append(order)
        reason = "Slurm says QOSMaxGRESPerUser"
        self.jobs[job.id] = replace(job, setback=Setback.LIMIT, reason=reason, decision=order.decision)
        return Answer(job.id, True)


def test_a_job_over_its_limit_is_decided_once_and_others_run_beside_it() -> None:
    backend = WithLimit(load_cluster("paper16"))
    backend.jobs["big"] = waiting("big", user="ann", gpus=4)
    for n in range(12):
        backend.jobs[f"one{n}"] = waiting(f"one{n}", user=f"u{n}", gpus=1, at_s=1.0 + n)
    orchestrator = living(backend)
    alarms: list[Alarm] = []
    for _ in range(6):
        backend.now_s += 5
        alarms += orchestrator.tick().alarms
    assert sum(order.job == "big" and order.is_start for order in backend.orders) == 1
    assert all(backend.jobs[f"one{n}"].state is JobState.RUNNING for n in range(12))
    assert [alarm.kind for alarm in alarms if alarm.job == "big"] == ["limit"]
    why = orchestrator.why("big")
    assert why is not None
    assert why.dominant == "refused"
    assert "QOSMaxGRESPerUser" in why.text


def test_a_job_that_was_put_back_is_held_in_one_turn_and_placed_in_the_next() -> None:
    backend = WithLimit(load_cluster("paper16"))
    backend.jobs["j"] = replace(waiting("j"), setback=Setback.PUT_BACK, reason="put back", decision="d1")
    orchestrator = living(backend)
    for _ in range(2):
        backend.now_s += 5
        assert not orchestrator.tick().alarms
    assert [order.is_start for order in backend.orders] == [False, True]
    assert backend.jobs["j"].state is JobState.RUNNING


def test_what_the_back_end_cannot_place_goes_back_at_once_with_an_alarm() -> None:
    backend = Obedient(load_cluster("paper16"))
    odd = waiting("odd")
    backend.jobs["odd"] = replace(odd, managed=False, setback=Setback.UNPLACEABLE, reason="it asks for --exclusive")
    tick = living(backend).tick()
    assert backend.given_back == {"odd": "it asks for --exclusive"}
    assert [(alarm.kind, alarm.job) for alarm in tick.alarms] == [("given-back", "odd")]
    assert not backend.orders


def test_what_no_node_could_ever_take_goes_back() -> None:
    backend = Obedient(load_cluster("paper16"))
    backend.jobs["wide"] = waiting("wide", gpus=100)
    backend.jobs["fat"] = waiting("fat", memory_gb=999_999.0)
    living(backend).tick()
    assert set(backend.given_back) == {"wide", "fat"}


def test_a_start_that_is_refused_for_good_goes_back_in_the_same_turn() -> None:
    class Refusing(Obedient):
        def carry_out(self, order: Order) -> Answer:
            return Answer(order.job, False, "Slurm says: Invalid generic resource", is_final=True)

    backend = Refusing(load_cluster("paper16"))
    backend.jobs["j"] = waiting("j")
    living(backend).tick()
    assert backend.given_back == {"j": "Slurm says: Invalid generic resource"}


def test_where_nobody_else_schedules_a_job_that_cannot_run_stays_and_is_told_why() -> None:
    class Alone(Obedient):
        def give_back(self, reasons: object) -> list[Answer]:
            assert isinstance(reasons, dict)
            self.given_back.update(reasons)
            return [Answer(id, False, "nobody else", is_final=True) for id in reasons]

    backend = Alone(load_cluster("paper16"))
    backend.jobs["wide"] = waiting("wide", gpus=100)
    orchestrator = living(backend)
    orchestrator.tick()
    backend.given_back.clear()
    assert not orchestrator.tick().alarms
    assert not backend.given_back  # it is asked once
    why = orchestrator.why("wide")
    assert why is not None
    assert why.dominant == "never"


# ---- what users are told -------------------------------------------------------------------------------------------


def test_users_see_what_a_job_waits_for_and_a_line_stands_for_a_while() -> None:
    backend = Obedient(load_cluster("paper16"))
    backend.jobs["first"] = waiting("first", gpus=8, models=frozenset(["v100-sxm2-16gb"]))
    backend.jobs["second"] = waiting("second", gpus=8, models=frozenset(["v100-sxm2-16gb"]), at_s=1.0)
    clock = Clock()
    orchestrator = Orchestrator(backend, Notebook(), "fcfs-first-fit", "fcfs-first-fit", monotonic=clock)
    orchestrator.tick()
    assert set(backend.lines) == {"second"}
    assert "8 v100" in backend.lines["second"]
    assert "start" in backend.lines["second"]
    backend.lines.clear()
    backend.wait(60)
    orchestrator.tick()
    assert not backend.lines
    clock.now += 60
    orchestrator.tick()
    assert set(backend.lines) <= {"second"}


def test_only_a_few_lines_are_written_in_a_turn() -> None:
    backend = Obedient(load_cluster("paper16"))
    for n in range(40):
        backend.jobs[f"j{n}"] = waiting(f"j{n}", gpus=8, at_s=float(n))
    orchestrator = living(backend)
    orchestrator.tick()
    assert len(backend.lines) == TurnSettings().annotated
    orchestrator.tick()
    assert len(backend.lines) == 2 * TurnSettings().annotated
