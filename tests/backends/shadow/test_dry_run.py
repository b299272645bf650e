"""The shadow: what it shows, what it writes down, and that it never touches the cluster behind it."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.strategies import gpu_model

from adlro.backends.shadow.dry_run import (
    GONE_LINE,
    JOB_LEFT,
    LOOKED,
    NODE_DOWN,
    PLACE_TAKEN,
    RUN_OVER,
    Note,
    Shadow,
    Write,
)
from adlro.core.errors import BackendError
from adlro.core.ports import Answer, Backend, JobState, LiveJob, Order, Part, Snapshot, Submission, Watched
from adlro.core.records import Cluster, Gpus, Job, Link, Node

PCIE = Link("pcie", 32.0)
CLUSTER = Cluster(
    "two",
    "",
    (Node("a", 8, 64, (Gpus("v100", 2),), PCIE), Node("b", 8, 64, (Gpus("t4", 2),), PCIE)),
    PCIE,
    {"v100": gpu_model("v100"), "t4": gpu_model("t4")},
)
ON_A = (Part("a", "v100", 2),)
ON_B = (Part("b", "t4", 2),)
READS = {"name", "can_stop", "read", "close"}


def waits(id: str, gpus: int = 2, limit_s: float | None = None, reason: str = "Resources") -> LiveJob:
    job = Job("uniform", 0.0, 0.0, gpus, cpus=2, memory_gb=4, limit_s=limit_s)
    return LiveJob(id, job, JobState.WAITING, managed=False, reason=reason)


def runs(job: LiveJob, parts: tuple[Part, ...], at_s: float = 5.0) -> LiveJob:
    return replace(job, state=JobState.RUNNING, parts=parts, started_s=at_s, starts=1, reason="")


def ends(job: LiveJob, at_s: float) -> LiveJob:
    return replace(job, state=JobState.FINISHED, ended_s=at_s)


class Site:
    """A cluster that schedules itself: each read shows the next scene, and whatever changes anything is an error."""

    def __init__(self, *scenes: Sequence[LiveJob], down: dict[str, str] | None = None) -> None:
        self.scenes = list(scenes)
        self.down = down or {}
        self.called: set[str] = set()
        self.time_s = 0.0

    def __getattribute__(self, name: str) -> Any:
        if name in {word for word in vars(Backend) if not word.startswith("_")}:
            object.__getattribute__(self, "called").add(name)
        return object.__getattribute__(self, name)

    name = "site"
    can_stop = True
    can_resize = True
    places_gpus = True

    def read(self) -> Snapshot:
        scene = self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]
        self.time_s += 10.0
        return Snapshot(self.time_s, CLUSTER, tuple(scene), self.down)

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        raise AssertionError("an order reached the cluster")

    def submit(self, submission: Submission) -> str:
        raise AssertionError("a job reached the cluster")

    def cancel(self, job: str) -> None:
        raise AssertionError("a cancellation reached the cluster")

    def close(self) -> None:
        pass


def watch(*scenes: Sequence[LiveJob], **more: Any) -> tuple[Shadow, list[Note]]:
    notes: list[Note] = []
    return Shadow(Site(*scenes), written_to(notes), **more), notes


def written_to(notes: list[Note]) -> Write:
    def write(new: Sequence[Note]) -> str:
        notes.extend(new)
        return ""

    return write


def told(notes: Sequence[Note]) -> list[tuple[str, str]]:
    return [(note.what, note.id) for note in notes if note.id]


def states(shadow: Shadow) -> dict[str, JobState]:
    return {job.id: job.state for job in shadow.read().jobs}


def test_nothing_that_changes_the_cluster_is_ever_called() -> None:
    site = Site([waits("1"), runs(waits("2"), ON_B)])
    shadow: Backend = Shadow(site)
    shadow.read()
    shadow.act([Order("1", "d1", ON_A), Order("2", "d2"), Order("nobody", "d3", ON_A)])
    for refused in (lambda: shadow.submit(Submission(Job("uniform", 1.0))), lambda: shadow.cancel("2")):
        with pytest.raises(BackendError, match="shadow mode changes nothing"):
            refused()
    shadow.read()
    shadow.close()
    assert site.called <= READS


def test_the_shadow_has_every_method_of_a_back_end_so_that_none_can_fall_through() -> None:
    methods = {name for kind in (Backend, Watched) for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    assert methods == {name for name in vars(Shadow) if not name.startswith("_")} - {"wishes"}


def test_a_waiting_job_counts_as_ours_and_a_running_one_does_not() -> None:
    shadow, _ = watch([waits("1"), runs(replace(waits("2"), managed=True), ON_B)])
    assert {job.id: job.managed for job in shadow.read().jobs} == {"1": True, "2": False}


@pytest.mark.parametrize(
    "reason", ["Dependency", "BeginTime", "JobHeldUser", "QOSMaxGRESPerUser", "it names its nodes"]
)
def test_a_job_that_waits_for_something_else_than_room_is_not_ours(reason: str) -> None:
    shadow, _ = watch([waits("1", reason=reason)])
    assert not shadow.read().jobs[0].managed


def test_what_we_would_have_started_keeps_its_place_and_is_written_down_once() -> None:
    shadow, notes = watch([waits("1")])
    shadow.read()
    assert shadow.act([Order("1", "d1", ON_A)]) == [Answer("1", True, "shadow: written down, not carried out")]
    job = shadow.read().jobs[0]
    assert (job.state, job.parts, job.decision) == (JobState.PLACED, ON_A, "d1")
    assert shadow.act([Order("1", "d2", ON_B)])[0].done
    assert [(note.id, note.decision) for note in notes if note.what == "wished"] == [("1", "d1")]


def test_a_job_that_the_cluster_starts_itself_is_seen_as_such_with_the_wish_beside_it() -> None:
    shadow, notes = watch([waits("1")], [runs(waits("1"), ON_B)])
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    shadow.read()
    job = shadow.read().jobs[0]
    assert (job.state, job.parts, job.decision, job.managed) == (JobState.RUNNING, ON_B, "", False)
    (note,) = [note for note in notes if note.what == "started"]
    assert note.job is not None
    assert (note.decision, note.parts, note.job.parts) == ("d1", ON_A, ON_B)
    assert not shadow.wishes


def test_a_wish_is_void_when_the_cluster_gives_its_place_to_another_job() -> None:
    shadow, notes = watch([waits("1"), waits("2")], [waits("1"), runs(waits("2"), ON_A)])
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    shadow.read()
    assert states(shadow) == {"1": JobState.WAITING, "2": JobState.RUNNING}
    assert [note.why for note in notes if note.what == "void"] == [PLACE_TAKEN]


def test_what_reality_made_of_an_order_before_it_was_read_back_is_no_refusal() -> None:
    shadow, _ = watch([waits("1"), waits("2")], [runs(waits("1"), ON_B), runs(waits("2"), ON_A)])
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    back = shadow.read().jobs[0]
    assert (back.state, back.parts, back.decision) == (JobState.PLACED, ON_A, "d1")
    assert shadow.read().jobs[0].parts == ON_B


def test_a_wish_ends_with_the_run_that_we_had_in_mind_and_the_job_is_not_wished_again() -> None:
    shadow, notes = watch([waits("1", limit_s=15)])
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    assert states(shadow) == {"1": JobState.PLACED}
    job = shadow.read().jobs[0]
    assert (job.state, job.managed) == (JobState.WAITING, False)
    assert [note.why for note in notes if note.what == "void"] == [RUN_OVER]


def test_a_wish_is_void_when_its_job_leaves_or_its_node_goes_down() -> None:
    shadow, notes = watch([waits("1")], [])
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    shadow.read()
    assert [note.why for note in notes if note.what == "void"] == [JOB_LEFT]
    site = Site([waits("1")])
    shadow = Shadow(site, written_to(notes))
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    site.down = {"a": "drained"}
    shadow.read()
    assert [note.why for note in notes if note.what == "void"] == [JOB_LEFT, NODE_DOWN]


def test_an_order_for_a_place_without_room_is_answered_so() -> None:
    shadow, _ = watch([waits("1"), waits("2"), runs(waits("3"), ON_B)])
    shadow.read()
    first, second, third = shadow.act([Order("1", "d1", ON_A), Order("2", "d2", ON_A), Order("2", "d3", ON_B)])
    assert (first.done, second.done, third.done) == (True, False, False)
    assert "no room" in second.said


def test_orders_to_stop_are_not_done() -> None:
    shadow, _ = watch([runs(waits("1"), ON_A)])
    shadow.read()
    assert not shadow.can_stop
    assert shadow.act([Order("1", "d1")]) == [Answer("1", False, "shadow: no job is stopped")]


def test_each_step_of_a_job_is_written_down_once() -> None:
    job = runs(waits("1"), ON_B)
    shadow, notes = watch([waits("1")], [job], [job], [ends(job, 25.0)], [ends(job, 25.0)], [])
    for _ in range(6):
        shadow.read()
    assert told(notes) == [("seen", "1"), ("started", "1"), ("ended", "1")]


def test_a_job_that_started_and_ended_between_two_looks_is_not_missed() -> None:
    shadow, notes = watch([waits("1")], [ends(runs(waits("1"), ON_B), 8.0)])
    shadow.read()
    shadow.read()
    assert told(notes) == [("seen", "1"), ("started", "1"), ("ended", "1")]


def test_a_job_that_is_no_longer_listed_is_gone_and_one_that_waits_again_is_seen_again() -> None:
    job = waits("1")
    shadow, notes = watch([job], [runs(job, ON_A)], [job], [])
    for _ in range(4):
        shadow.read()
    assert told(notes) == [("seen", "1"), ("started", "1"), ("seen", "1"), (GONE_LINE, "1")]


def test_a_shadow_that_was_restarted_wishes_and_writes_nothing_twice() -> None:
    scene = [waits("1"), runs(waits("2"), ON_B)]
    shadow, notes = watch(scene)
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])
    again, more = watch(scene, past=list(notes))
    assert {job.id: job.state for job in again.read().jobs} == {"1": JobState.PLACED, "2": JobState.RUNNING}
    assert told(more) == []


def test_that_somebody_looked_is_written_down_once_in_a_while() -> None:
    shadow, notes = watch([waits("1")], beat_s=30.0)
    for _ in range(7):
        shadow.read()
    assert [note.time_s for note in notes if note.what == LOOKED] == [10.0, 40.0, 70.0]


def test_an_error_of_the_cluster_is_passed_on_and_forgets_nothing() -> None:
    site = Site([waits("1")])
    shadow = Shadow(site)
    shadow.read()
    shadow.act([Order("1", "d1", ON_A)])

    def fail() -> Snapshot:
        raise BackendError("slurmctld does not answer.")

    site.read = fail  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="does not answer"):
        shadow.read()
    assert set(shadow.wishes) == {"1"}


def test_a_record_that_cannot_be_written_is_told_in_the_snapshot() -> None:
    shadow = Shadow(Site([waits("1")]), lambda notes: "No space left on device")
    assert shadow.read().notes == ("shadow record: No space left on device",)


def test_a_whole_gpu_is_not_found_on_two_halves() -> None:
    halves = [runs(shares(f"half {at}"), (Part("a", "v100", 1, (at,)),)) for at in (0, 1)]
    shadow, _ = watch([waits("1", gpus=1), *halves])
    shadow.read()
    (answer,) = shadow.act([Order("1", "d1", (Part("a", "v100", 1),))])
    assert (answer.done, answer.said) == (False, "shadow: there is no room for it there")


def test_a_job_is_not_placed_on_a_gpu_with_too_little_memory() -> None:
    job = waits("1")
    large = replace(job, job=replace(job.job, gpu_memory_gb=40.0))
    shadow, _ = watch([large])
    shadow.read()
    assert not shadow.act([Order("1", "d1", ON_A)])[0].done


def shares(id: str) -> LiveJob:
    """A job on half a GPU."""
    return LiveJob(id, Job("uniform", 0.0, 0.0, 1, 500), JobState.WAITING, managed=False)
