"""A running Slurm as it is read: both generations' answers, what they leave out, and no error as an empty cluster."""

import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.backends.slurm.commands import CONFIG_S, Commands, Patience, Ran, patience_in
from adlro.backends.slurm.comments import comment_with, words_in
from adlro.backends.slurm.fields import devices_in
from adlro.backends.slurm.jobs import STARTING_S, told_of
from adlro.backends.slurm.kept import AskPlan
from adlro.backends.slurm.models import PATIENCE_S
from adlro.backends.slurm.nodes import FamilyPattern, Naming, down_of, sites_of
from adlro.backends.slurm.parse import (
    SlurmNode,
    SlurmReservation,
    nodes_in,
    read_reservations,
    reservations_in,
    version_in,
)
from adlro.backends.slurm.parse_jobs import SlurmJob, jobs_in
from adlro.backends.slurm.reader import FORGOTTEN_S, Reader
from adlro.backends.slurm.rest import Rest
from adlro.backends.slurm.sources import CommandSource, RestSource
from adlro.catalogue.gpus import find_gpu
from adlro.core.errors import BackendError, TelemetryError
from adlro.core.ports import JobState, LiveJob, Part, Setback, Snapshot
from adlro.core.records import GpuModel, Link
from adlro.ingest.host_lists import whole_numbers
from adlro.ingest.telemetry.names import model_of

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "slurm" / "samples"
VOLTA = "v100-sxm2-16gb"
NOW = 1_794_725_600.0


def model(name: str) -> GpuModel | None:
    return model_of(name, find_gpu)


NAMING = Naming(model)


def node(name: str = "volta0", gres: str = "v100", count: int = 4, **changed: Any) -> SlurmNode:
    return replace(SlurmNode(name, 16.0, 64_000.0, ((gres, count),), ("IDLE",), (), ("gpu",)), **changed)


def job(id: str = "7", **changed: Any) -> SlurmJob:
    """A waiting job that is held for us and asks for one GPU."""
    base = SlurmJob(
        id=id,
        user="ada",
        name="train",
        state="PENDING",
        partition="gpu",
        nodes=1,
        cpus=1.0,
        memory_mib=1000.0,
        gres=(("", 1),),
        limit_s=3600.0,
        submit_unix=NOW - 100,
        start_unix=None,
        node_list="",
        priority=0.0,
        states=("PENDING",),
        reason="JobHeldUser",
        comment="adlro:held",
        per_node="gres:gpu:1",
    )
    return replace(base, **changed)


def runs(id: str = "7", **changed: Any) -> SlurmJob:
    """The same job, placed by us and at work."""
    running: dict[str, Any] = {
        "state": "RUNNING",
        "states": ("RUNNING",),
        "reason": "None",
        "comment": "adlro:decision=d1 adlro:restarts=0",
        "node_list": "volta0",
        "start_unix": NOW - 50,
        "priority": 1.0,
        "detail": ("gpu:v100:1(IDX:2)",),
        "required_nodes": "volta0",
    }
    return job(id, **{**running, **changed})


class Fixed:
    """A source with answers of a test's choice."""

    what = "a test"

    def __init__(self, jobs: list[SlurmJob], nodes: list[SlurmNode] | None = None) -> None:
        self.found, self.machines = jobs, nodes or [node(), node("volta1")]
        self.error: str = ""
        self.generation: tuple[int, int] | None = (22, 5)
        self.kept: list[SlurmReservation] = []
        self.news = False

    def has_changed(self) -> bool:
        return self.news

    def jobs(self) -> list[SlurmJob]:
        if self.error:
            raise BackendError(self.error)
        return self.found

    def nodes(self) -> list[SlurmNode]:
        return self.machines

    def reservations(self) -> list[SlurmReservation]:
        return self.kept

    def version(self) -> tuple[int, int] | None:
        return self.generation


def read_one(found: SlurmJob, naming: Naming = NAMING, nodes: list[SlurmNode] | None = None) -> LiveJob:
    """One job through a reader of its own."""
    (live,) = Reader([Fixed([found], nodes)], naming, lambda: NOW).read().jobs
    return live


# ---- words -------------------------------------------------------------------------------------------------------


def test_numbers_and_devices_are_found() -> None:
    assert whole_numbers("1-7:2,9") == (1, 3, 5, 7, 9)
    assert whole_numbers("0-999999999") == ()
    assert devices_in("gpu:v100:3(IDX:0-1,3)") == (("v100", (0, 1, 3)),)
    assert devices_in("gpu:v100_0:0(IDX:),gpu:v100_1:1(IDX:1)") == (("v100_1", (1,)),)
    assert devices_in("gpu:0(IDX:N/A)") == ()


@given(st.text(alphabet="ab[]0123-,:%", max_size=40))
def test_no_list_makes_it_crash(text: str) -> None:
    whole_numbers(text)
    devices_in(text)


@given(
    st.text(max_size=30), st.dictionaries(st.sampled_from(["decision", "family", "held"]), st.from_regex(r"\A\w+\Z"))
)
def test_our_words_in_a_comment_are_read_back_and_the_users_text_stays(text: str, words: dict[str, str]) -> None:
    text = text.replace("adlro:", "")
    comment = comment_with(text, words)
    assert set(words_in(comment)) == set(words)
    assert all(value == words[name] for name, value in words_in(comment).items() if name != "held")
    kept = " ".join(re.findall(r"\S+", text, re.ASCII))
    assert kept in comment
    assert comment_with(comment, {}) == kept


def test_the_version_is_told_by_both_generations() -> None:
    assert version_in({"meta": {"Slurm": {"release": "22.05.8"}}}) == (22, 5)
    assert version_in({"meta": {"slurm": {"release": "24.11.5"}}}) == (24, 11)
    assert version_in({"meta": {}}) is version_in([]) is None


@pytest.mark.parametrize(
    ("told", "code", "signal"),
    [
        (0, 0, None),
        (3 << 8, 3, None),
        (15, 0, 15),
        ({"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False, "number": 0}}}, 3, None),
        ({"return_code": {"set": True, "number": 0}, "signal": {"id": {"set": True, "number": 9}}}, 0, 9),
        (None, None, None),
    ],
)
def test_an_exit_code_is_read_as_both_generations_tell_it(told: Any, code: int | None, signal: int | None) -> None:
    (found,) = jobs_in({"jobs": [{"job_id": 1, "exit_code": told}], "errors": []}, "test")
    assert (found.exit_code, found.signal) == (code, signal)


# ---- whose a job is, and where it stands ---------------------------------------------------------------------------


def test_a_job_is_ours_only_if_it_is_held_and_marked_for_us() -> None:
    assert read_one(job()).managed
    assert read_one(job(comment="mine adlro:held adlro:family=data")).managed
    for change in (
        {"comment": ""},
        {"comment": "mine adlro:family=data"},  # held by its user, who says something about it
        {"comment": "adlro:userheld"},
        {"comment": "adlro:held adlro:userheld"},
        {"comment": "adlro:decision=d1"},  # placed by us, then held by its user
        {"comment": "adlro:released=1"},
        {"reason": "JobHeldAdmin"},
        {"priority": 5.0, "reason": "Resources"},
        {"dependency": "afterok:3(unfulfilled)"},
        {"begin_unix": NOW + 60},
        {"reservation": "maintenance"},
        {"is_het": True},
        {"required_nodes": "volta0"},
        {"excluded_nodes": "volta0"},
        {"features": "[rack1|rack2]"},
        {"nodes": 2, "per_node": "gres:gpu:2", "gres": (("", 4),)},
    ):
        live = read_one(job(**change))
        assert (live.state, live.managed) == (JobState.WAITING, False), change


def test_when_slurm_plans_to_start_a_held_job_is_not_when_its_user_wants_it_to_begin() -> None:
    """Slurm keeps its plan for a job that was held again until it schedules next."""
    assert read_one(job(start_unix=NOW + 300)).managed
    assert read_one(job(start_unix=NOW + 300, begin_unix=NOW - 5)).managed


TWO_MODELS = [node(), node("volta1"), node("turing0", "t4")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"required_nodes": "volta0"}, "names its nodes"),
        ({"special": "it asks for --gpus-per-task"}, "--gpus-per-task"),
        ({"nodes": 2, "gres": (), "per_node": ""}, "2 nodes without GPUs"),
        ({"excluded_nodes": "volta1"}, "some nodes and not others"),
        ({"reservation": "maintenance"}, "the reservation maintenance"),
        ({"partition": "cpu"}, "partition cpu, where ADLRO places no jobs"),
        ({"nodes": 2, "per_node": "gres:gpu:2", "gres": (("", 4),)}, "2 nodes with 2 GPUs on each"),
    ],
)
def test_a_job_that_is_held_for_us_and_that_we_cannot_place_is_to_be_given_back(
    change: dict[str, Any], reason: str
) -> None:
    naming = replace(NAMING, partitions=frozenset(["gpu"]))
    live = read_one(job(**change), naming, TWO_MODELS)
    assert (live.managed, live.setback) == (False, Setback.UNPLACEABLE)
    assert reason in live.reason
    not_ours = read_one(job(**{"partition": "gpu", **change, "comment": "", "node_list": "volta0"}), naming, TWO_MODELS)
    assert not_ours.setback is Setback.NONE


def test_a_job_that_was_moved_to_another_partition_after_we_placed_it_is_given_back() -> None:
    placed = runs(state="PENDING", states=("PENDING",), reason="Resources", node_list="", start_unix=None, detail=())
    naming = replace(NAMING, partitions=frozenset(["gpu"]))
    assert read_one(placed, naming).setback is Setback.NONE
    moved = read_one(replace(placed, partition="cpu"), naming)
    assert (moved.managed, moved.setback) == (False, Setback.UNPLACEABLE)


@pytest.mark.parametrize("listed", ["1-200000", "nonsense"])
def test_an_array_whose_tasks_cannot_be_read_is_given_back(listed: str) -> None:
    live = read_one(job(array="7", tasks=listed))
    assert (live.id, live.setback) == ("7", Setback.UNPLACEABLE)


def test_an_array_whose_list_of_tasks_slurm_shortens_has_its_own_name() -> None:
    told, _ = told_of([job(array="7", tasks="1,3,5,...")], sites_of([node()], NAMING)[0], NAMING, NOW, True)
    assert {each.together for each in told} == {"7"}


def test_words_in_the_line_for_people_are_no_marks() -> None:
    assert words_in("mine [adlro: waits for adlro:held jobs] adlro:decision=d1") == {"decision": "d1"}


def test_gpus_asked_for_on_one_node_are_never_split_over_two() -> None:
    nodes = [*TWO_MODELS, node("ampere0", "a100", 8)]
    eight: dict[str, Any] = {"per_node": "gres:gpu:8", "gres": (("", 8),)}
    assert read_one(job(**eight), nodes=nodes).job.models == {"a100-sxm4-40gb"}
    assert read_one(job(**eight), nodes=TWO_MODELS).setback is Setback.UNPLACEABLE
    in_all: dict[str, Any] = {"per_node": "", "per_job": "gres:gpu:8", "gres": (("", 8),)}
    assert read_one(job(**in_all), nodes=nodes).job.models == frozenset()  # on any number of nodes


def test_a_job_that_waits_for_something_of_its_own_is_not_given_back() -> None:
    for change in (
        {"dependency": "afterok:3(unfulfilled)", "special": "it asks for --exclusive"},
        {"begin_unix": NOW + 60, "special": "it asks for --exclusive"},
        {"reason": "JobHeldAdmin", "special": "it asks for --exclusive"},
        {"comment": "adlro:userheld", "special": "it asks for --exclusive"},
    ):
        assert read_one(job(**change)).setback is Setback.NONE, change


REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"tres_per_task": "gres:gpu:1"}, "--gpus-per-task"),
    ({"tres_per_socket": "gres:gpu:1"}, "--gpus-per-socket"),
    ({"shared": "none"}, "--exclusive"),
    ({"shared": "user"}, "--exclusive"),
    ({"shared": ["none"]}, "--exclusive"),
    ({"shared": "shared"}, ""),
    ({"shared": []}, ""),
    ({"node_count": 1, "max_nodes": 3}, "range of nodes"),
    ({"node_count": 2, "max_nodes": 2}, ""),
    ({"max_nodes": {"set": True, "infinite": False, "number": 1}}, ""),
    ({"contiguous": True}, "--contiguous"),
    ({"licenses": "matlab:1"}, "licences"),
    ({"burst_buffer": "#BB"}, "burst buffer"),
    ({"core_spec": 2}, "--core-spec"),
    ({"core_spec": 0, "thread_spec": 32766}, ""),
    ({"sockets_per_node": 1}, "layout"),
    ({"tasks_per_core": {"set": False, "infinite": True, "number": 0}}, ""),
    ({"flags": ["GRES_ENFORCE_BIND"]}, "--gres-flags"),
    ({"flags": ["JOB_CPUS_SET"]}, ""),
]


@pytest.mark.parametrize(("asked", "told"), REQUESTS)
def test_a_request_beyond_nodes_gpus_cpus_and_memory_is_named(asked: dict[str, Any], told: str) -> None:
    (found,) = jobs_in({"jobs": [{"job_id": 1, "job_state": "PENDING", **asked}]}, "a test")
    assert told in found.special
    assert bool(told) == bool(found.special)


def test_a_running_job_counts_with_the_gpus_that_it_holds() -> None:
    told = {"job_id": 1, "job_state": "RUNNING", "tres_per_node": "gres:gpu:1", "gres_detail": ["gpu:v100:4(IDX:0-3)"]}
    (found,) = jobs_in({"jobs": [told]}, "a test")
    assert found.gres == (("v100", 4),)


def with_reservation(*kept: SlurmReservation, **changed: Any) -> Snapshot:
    source = Fixed([job(**changed)], TWO_MODELS)
    source.kept = list(kept)
    return Reader([source], NAMING, lambda: NOW).read()


def test_a_node_in_a_reservation_takes_no_jobs_of_ours() -> None:
    snapshot = with_reservation(SlurmReservation("maint", ("volta1",), NOW - 10, NOW + 600, 16))
    assert list(snapshot.down) == ["volta1"]
    assert "reserved (maint) until" in snapshot.down["volta1"]
    assert snapshot.jobs[0].managed
    over = with_reservation(SlurmReservation("maint", ("volta1",), NOW - 600, NOW - 10, 16))
    part = with_reservation(SlurmReservation("few", ("volta1",), NOW - 10, NOW + 600, 4))
    assert not over.down
    assert not part.down


def test_a_job_that_would_run_into_a_reservation_on_some_of_its_nodes_is_slurms() -> None:
    soon = SlurmReservation("maint", ("volta1",), NOW + 1800, NOW + 3600, 16)
    (long,) = with_reservation(soon).jobs  # one hour
    assert (long.managed, long.setback) == (False, Setback.UNPLACEABLE)
    assert "volta1 is reserved (maint) from" in long.reason
    (short,) = with_reservation(soon, limit_s=600.0).jobs
    assert short.managed
    (endless,) = with_reservation(soon, limit_s=None).jobs
    assert endless.setback is Setback.UNPLACEABLE


def test_a_job_that_would_run_into_a_reservation_everywhere_waits_for_its_end() -> None:
    everywhere = SlurmReservation("maint", ("volta0", "volta1", "turing0"), NOW + 1800, NOW + 3600, 48)
    (live,) = with_reservation(everywhere).jobs
    assert (live.managed, live.setback) == (False, Setback.NONE)
    assert "reserved (maint) from" in live.reason


def test_reservations_are_read_from_text_and_json() -> None:
    text = (
        "ReservationName=maint StartTime=2026-11-16T08:50:01 EndTime=2026-11-16T09:50:01 Duration=01:00:00 "
        "Nodes=volta[0-1] NodeCnt=2 CoreCnt=32 Features=(null) Flags=SPEC_NODES TRES=cpu=32 Users=root State=ACTIVE\n"
    )
    (found,) = read_reservations(text, "a test")
    assert (found.name, found.nodes, found.cpus) == ("maint", ("volta0", "volta1"), 32)
    assert found.end_unix - found.start_unix == 3600
    assert read_reservations("No reservations in the system\n", "a test") == []
    with pytest.raises(TelemetryError, match="expected 'scontrol show reservation'"):
        read_reservations("scontrol: nonsense", "a test")
    new = {"name": "maint", "node_list": "volta[0-1]", "start_time": {"set": True, "number": 5}, "tres": "cpu=32"}
    (json_one,) = reservations_in({"reservations": [new]}, "a test")
    assert (json_one.nodes, json_one.start_unix, json_one.cpus) == (("volta0", "volta1"), 5.0, 32)
    assert json_one.end_unix == math.inf


def test_the_comment_keeps_the_users_text_our_words_and_one_line_for_people() -> None:
    comment = comment_with("my run adlro:held", {"held": "yes"}, "waits for 4 v100 on one node; start about 14:20")
    assert comment == "my run [adlro: waits for 4 v100 on one node; start about 14:20] adlro:held"
    again = comment_with(comment, words_in(comment), "waits ] for [more")
    assert again == "my run [adlro: waits   for  more] adlro:held"
    assert comment_with(again, {"held": "", "decision": "d1"}) == "my run adlro:decision=d1"


def test_of_jobs_that_slurm_places_itself_it_is_told_where_they_could_not_go() -> None:
    waiting: dict[str, Any] = {"priority": 5.0, "reason": "Priority", "comment": ""}
    assert read_one(job(**waiting)).reason == "Priority"
    bound = read_one(job(**waiting, reservation="maintenance"))
    assert (bound.managed, bound.reason) == (False, "it asks for the reservation maintenance")
    snapshot = Reader([Fixed([job(**waiting, reservation="maintenance")])], NAMING, lambda: NOW).read()
    assert not snapshot.notes  # it is no concern of ours


def test_a_placed_job_holds_its_place_until_it_lost_it() -> None:
    placed = runs(state="PENDING", states=("PENDING",), reason="Resources", node_list="", start_unix=None, detail=())
    live = read_one(placed)
    assert (live.state, live.managed, live.parts, live.decision) == (
        JobState.PLACED, True, (Part("volta0", VOLTA, 1),), "d1",
    )  # fmt: skip
    for lost, setback in (
        (replace(placed, restarts=1, reason="BeginTime"), Setback.PUT_BACK),
        (replace(placed, reason="BadConstraints", priority=0.0), Setback.UNPLACEABLE),
        (replace(placed, reason="QOSMaxWallDurationPerJobLimit"), Setback.UNPLACEABLE),
        (replace(placed, reason="PartitionTimeLimit"), Setback.UNPLACEABLE),
        (replace(placed, reason="NodeDown"), Setback.PLACE),
        (replace(placed, reason="QOSMaxJobsPerUserLimit"), Setback.LIMIT),
        (replace(placed, reason="AssocGrpGRES"), Setback.LIMIT),
        (replace(placed, reason="Licenses"), Setback.LIMIT),
        (replace(placed, reason="JobArrayTaskLimit"), Setback.LIMIT),
        (replace(placed, comment=f"{placed.comment} adlro:placed={NOW - 600:.0f}"), Setback.UNPLACEABLE),  # for others
        (replace(placed, reason="None", comment=f"{placed.comment} adlro:placed={NOW - 600:.0f}"), Setback.PLACE),
    ):
        live = read_one(lost)
        assert (live.state, live.parts, live.setback) == (JobState.WAITING, (), setback), lost.reason
        assert live.managed is (setback is not Setback.UNPLACEABLE)
    down = [node(state=("DOWN", "NOT_RESPONDING"), reason="Not responding"), node("volta1")]
    assert read_one(placed, nodes=down).state is JobState.WAITING


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("RUNNING",), JobState.RUNNING),
        (("SUSPENDED",), JobState.RUNNING),
        (("COMPLETING",), JobState.RUNNING),
        (("COMPLETED", "COMPLETING"), JobState.RUNNING),
        (("CONFIGURING",), JobState.PLACED),
        (("COMPLETED",), JobState.FINISHED),
        (("TIMEOUT",), JobState.FAILED),
        (("NODE_FAIL",), JobState.FAILED),
        (("OUT_OF_MEMORY",), JobState.FAILED),
        (("CANCELLED",), JobState.CANCELLED),
        (("SOMETHING_NEW",), JobState.WAITING),
    ],
)
def test_every_state_of_slurm_is_one_of_ours(states: tuple[str, ...], state: JobState) -> None:
    live = read_one(runs(state=states[0], states=states, end_unix=NOW - 1))
    assert live.state is state
    assert (live.ended_s == NOW - 1) is (state in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED))


def test_devices_get_our_index_on_a_node_with_two_models() -> None:
    mixed = SlurmNode("m0", 16.0, 64_000.0, (("t4", 2), ("v100", 2)), ("IDLE",), (), ("gpu",))
    live = read_one(runs(node_list="m0", detail=("gpu:t4:1(IDX:1),gpu:v100:2(IDX:2-3)",)), nodes=[mixed])
    assert set(live.parts) == {Part("m0", "t4", 1, (1,)), Part("m0", VOLTA, 2, (0, 1))}


def test_families_come_from_the_comment_then_from_rules_and_else_are_uniform() -> None:
    rules = (
        FamilyPattern(re.compile("^bert"), "learning"),
        FamilyPattern(re.compile("^cpu"), "data", "partition"),
    )
    naming = replace(NAMING, families=rules, is_family=lambda name: name != "nonsense")
    assert read_one(job(name="bert-large"), naming).job.family == "learning"
    assert read_one(job(name="bert", comment="adlro:held adlro:family=simulation"), naming).job.family == "simulation"
    assert read_one(job(name="x", partition="cpu"), naming).job.family == "data"
    assert read_one(job(name="x"), naming).job.family == "uniform"
    source = Fixed([job(comment="adlro:held adlro:family=nonsense")])
    snapshot = Reader([source], naming, lambda: NOW).read()
    assert snapshot.jobs[0].job.family == "uniform"
    assert any("no family 'nonsense'" in note for note in snapshot.notes)


def test_partitions_that_are_not_ours_are_left_out_with_their_nodes() -> None:
    naming = replace(NAMING, partitions=frozenset(["gpu"]), links={"volta0": Link("nvlink", 300.0)})
    other = job("2", partition="cpu", comment="")
    source = Fixed([job("1"), other], [node(), node("cpu0", partitions=("cpu",))])
    snapshot = Reader([source], naming, lambda: NOW).read()
    assert [each.id for each in snapshot.jobs] == ["1"]
    assert [(each.name, each.link.kind) for each in snapshot.cluster.nodes] == [("volta0", "nvlink")]


def test_the_last_task_of_an_array_waits_for_the_others_if_too_many_would_run() -> None:
    last = job("12", array="12", task=2, at_once=2)
    at_work = [runs("13", array="12", task=0), runs("14", array="12", task=1, node_list="volta1")]
    given_back = job("14", array="12", task=1, priority=5.0, reason="Priority", comment=f"adlro:released={NOW:.0f}")
    for others, managed in ((at_work, False), (at_work[:1], True), ([*at_work[:1], given_back], True)):
        snapshot = Reader([Fixed([last, *others])], NAMING, lambda: NOW).read()
        assert [each.managed for each in snapshot.jobs if each.id == "12_2"] == [managed]


def test_of_an_array_as_many_tasks_are_ours_as_may_run_at_a_time() -> None:
    waiting = job("12", array="12", tasks="1,3,7-9%3")
    at_work = runs("13", array="12", task=0)
    snapshot = Reader([Fixed([waiting, at_work])], NAMING, lambda: NOW).read()
    managed = {each.id: each.managed for each in snapshot.jobs}
    assert managed == {"12_1": True, "12_3": True, "12_7": False, "12_8": False, "12_9": False, "12_0": True}


# ---- what Slurm forgets ----------------------------------------------------------------------------------------------


def test_a_job_that_has_ended_keeps_the_devices_that_it_had() -> None:
    source = Fixed([runs()])
    reader = Reader([source], NAMING, lambda: NOW)
    assert reader.read().jobs[0].parts == (Part("volta0", VOLTA, 1, (2,)),)
    source.found = [runs(state="COMPLETED", states=("COMPLETED",), detail=(), end_unix=NOW, exit_code=0)]
    assert reader.read().jobs[0].parts == (Part("volta0", VOLTA, 1, (2,)),)
    assert Reader([source], NAMING, lambda: NOW).read().jobs[0].parts == (Part("volta0", VOLTA, 1),)


def test_devices_that_are_taken_back_before_the_end_is_told_are_remembered_where_the_job_still_is() -> None:
    source = Fixed([runs()])
    reader = Reader([source], NAMING, lambda: NOW)
    reader.read()
    source.found = [runs(detail=())]
    assert reader.read().jobs[0].parts == (Part("volta0", VOLTA, 1, (2,)),)
    source.found = [runs(state="COMPLETED", states=("COMPLETED",), detail=(), end_unix=NOW, exit_code=0)]
    assert reader.read().jobs[0].parts == (Part("volta0", VOLTA, 1, (2,)),)
    source.found = [runs(detail=(), node_list="volta1", required_nodes="volta1")]
    assert reader.read().jobs[0].parts == (Part("volta1", VOLTA, 1),)


def test_the_first_submit_time_survives_a_requeue_and_a_new_daemon() -> None:
    first = f"adlro:submit={NOW - 500:.0f}"
    again = job(restarts=1, submit_unix=NOW, comment="adlro:held", admin_comment=first, start_unix=NOW + 10)
    assert read_one(again).job.submit_s == NOW - 500
    assert read_one(again).managed
    liar = job(comment="adlro:held", admin_comment="adlro:submit=5")
    assert read_one(liar).job.submit_s == NOW - 100  # of a job that never began, only Slurm is believed


@pytest.mark.parametrize("space", [" ", "\u00a0", "\x1f", "] "])
def test_words_in_a_comment_give_a_user_no_priority_no_age_no_gpus_and_no_other_name(space: str) -> None:
    """Where Slurm has no plugin of ours, a user can write all of this, and requeue the job."""
    words = ["adlro:held", "adlro:user=alice", "adlro:priority=1", "adlro:gpus=4", "adlro:submit=5", "adlro:bound=x",
             "adlro:restarts=1", "adlro:decision=7"]  # fmt: skip
    comment = "adlro:held " + space.join(["x", *words])
    told = read_one(job(comment=comment, restarts=1, gres=(), per_node=""))
    assert (told.job.user, told.job.priority, told.job.gpus, told.job.submit_s) == ("ada", 0.5, 0, NOW - 100)
    again = comment_with(comment, {"held": "yes"})  # as the daemon writes it
    assert words_in(again) == {"held": "yes"}


def test_an_account_that_submits_for_others_says_whose_a_job_is() -> None:
    naming = replace(NAMING, submitters=frozenset(["ada"]))
    given = job(comment="adlro:held adlro:user=alice adlro:priority=0.9")
    found = Reader([Fixed([given])], naming, lambda: NOW).read().jobs[0].job
    assert (found.user, found.priority) == ("alice", 0.9)


def test_a_running_job_that_vanished_is_told_as_ended_with_a_note() -> None:
    source = Fixed([runs("7"), job("8")])
    reader = Reader([source], NAMING, lambda: NOW)
    reader.read()
    source.found = []
    snapshot = reader.read()
    ended = {each.id: each for each in snapshot.jobs}
    assert (ended["7"].state, ended["7"].exit_code, ended["7"].ended_s) == (JobState.FAILED, None, NOW)
    assert ended["8"].state is JobState.CANCELLED
    assert sum("how it ended is not known" in note for note in snapshot.notes) == 2
    assert {each.id for each in reader.read().jobs} == {"7", "8"}  # still told, but noted once
    assert not reader.read().notes


def test_an_answer_that_is_the_same_is_not_translated_again_but_time_goes_on() -> None:
    clock = {"now": NOW}
    placed = job(
        priority=1.0, reason="Resources", required_nodes="volta0", comment=f"adlro:decision=d1 adlro:placed={NOW:.0f}"
    )
    source = Fixed([placed])
    reader = Reader([source], NAMING, lambda: clock["now"])
    first = reader.read()
    clock["now"] += 5
    second = reader.read()
    assert second.jobs is first.jobs
    assert second.time_s == NOW + 5
    clock["now"] += 300  # the answer is still the same, but it has waited too long in its place
    assert [each.state for each in (*second.jobs, *reader.read().jobs)] == [JobState.PLACED, JobState.WAITING]


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ("SchedulerParameters     = batch_sched_delay=0,bf_interval=45,bf_max_time=9\n", 45.0 + STARTING_S),
        ("SchedulerParameters     = bf_interval=1\n", 1.0 + STARTING_S),
        ("SchedulerParameters     = (null)\nSchedulerType = sched/backfill\n", PATIENCE_S),
        ("SchedulerParameters     = xbf_interval=4,bf_interval=x\n", PATIENCE_S),
        ("slurm_load_ctl_conf error: Unable to contact slurm controller\n", PATIENCE_S),
    ],
)
def test_patience_is_the_time_that_slurm_takes_to_look_for_backfill(config: str, seconds: float) -> None:
    assert patience_in(config) == seconds


def test_slurm_s_config_is_read_again_now_and_then_and_not_at_every_turn() -> None:
    asked: list[Sequence[str]] = []

    class Answering:
        def run(self, command: Sequence[str]) -> Ran:
            asked.append(command)
            if len(asked) == 2:
                raise BackendError("scontrol has not answered for 30 s; is slurmctld up?")
            return Ran(0, f"SchedulerParameters = bf_interval={10 * len(asked)}\n", "")

    clock = {"now": 0.0}
    patience = Patience(cast(Commands, Answering()), lambda: clock["now"])
    assert [patience(), patience()] == [15.0, 15.0]
    clock["now"] += CONFIG_S
    assert patience() == 15.0  # no answer: what was known
    clock["now"] += CONFIG_S
    assert patience() == 35.0
    assert len(asked) == 3


def test_a_job_whose_gpus_slurm_keeps_for_another_goes_back_when_slurm_has_looked_for_backfill() -> None:
    clock = {"now": NOW}
    placed = job(
        priority=1.0, reason="Priority", required_nodes="volta0", comment=f"adlro:decision=d1 adlro:placed={NOW:.0f}"
    )
    reader = Reader([Fixed([placed])], NAMING, lambda: clock["now"], lambda: 4.0)
    assert reader.read().jobs[0].setback is Setback.NONE
    clock["now"] += 4
    assert reader.read().jobs[0].setback is Setback.NONE
    clock["now"] += 2
    (live,) = reader.read().jobs
    assert (live.state, live.managed, live.setback) == (JobState.WAITING, False, Setback.UNPLACEABLE)
    assert live.reason == "Slurm says Priority for 6 s: it keeps the GPUs for another job"


def kept_by(jobs: list[SlurmJob], ask_plan: AskPlan | None = None) -> tuple[Reader, Fixed, dict[str, float]]:
    """A reader that has just seen that Slurm keeps the GPUs of volta0."""
    clock = {"now": NOW}
    words = f"adlro:decision=d1 adlro:placed={NOW - 10:.0f}"
    kept_out = job(priority=1.0, reason="Priority", required_nodes="volta0", comment=words)
    source = Fixed([kept_out, *jobs])
    reader = Reader([source], NAMING, lambda: clock["now"], lambda: 4.0, ask_plan)
    assert f"kept@volta0/{VOLTA}" in [each.id for each in reader.read().jobs]
    source.found = [replace(kept_out, required_nodes="", comment=f"adlro:released={NOW:.0f}"), *jobs]  # given back
    return reader, source, clock


def kept_in(reader: Reader) -> list[tuple[Part, ...]]:
    return [each.parts for each in reader.read().jobs if each.id.startswith("kept@")]


def test_gpus_that_slurm_keeps_for_its_own_job_are_taken_as_long_as_it_plans_so() -> None:
    rival = job("9", partition="other", priority=9.0, reason="Resources", comment="")
    plan = {"9": "volta0"}
    reader, source, clock = kept_by([rival, runs("8")], lambda: plan)
    clock["now"] += 1
    assert kept_in(reader) == [(Part("volta0", VOLTA, 3),)]  # job 8 has the fourth
    clock["now"] += 1
    source.found = [each for each in source.found if each.id != "8"]
    assert kept_in(reader) == [(Part("volta0", VOLTA, 4),)]
    clock["now"] += 1
    source.found = list(source.found)
    plan["9"] = "volta1"
    assert kept_in(reader) == []


def test_a_plan_in_slurms_own_json_is_believed() -> None:
    rival = job("9", partition="other", priority=9.0, reason="Resources", comment="", planned_nodes="volta0")
    reader, source, clock = kept_by([rival], None)
    clock["now"] += 1
    assert kept_in(reader) == [(Part("volta0", VOLTA, 4),)]
    clock["now"] += 1
    source.found = [replace(each, planned_nodes="") for each in source.found]
    assert kept_in(reader) == []


def test_without_a_plan_kept_gpus_are_free_again_when_a_neighbour_comes_or_goes_or_after_a_minute() -> None:
    rival = job("9", partition="other", priority=9.0, reason="Resources", comment="")
    reader, source, clock = kept_by([rival, runs("8")])
    clock["now"] += 11
    assert kept_in(reader) == [(Part("volta0", VOLTA, 3),)]
    source.found = [each for each in source.found if each.id != "8"]
    assert kept_in(reader) == []
    reader, source, clock = kept_by([rival])
    clock["now"] += 59
    assert kept_in(reader)
    clock["now"] += 2
    source.found = list(source.found)
    assert kept_in(reader) == []


def test_a_job_that_cannot_be_given_back_blocks_a_node_only_once() -> None:
    rival = job("9", partition="other", priority=9.0, reason="Resources", comment="", planned_nodes="volta0")
    reader, source, clock = kept_by([rival])
    words = f"adlro:decision=d1 adlro:placed={NOW - 10:.0f}"
    stuck = job(priority=1.0, reason="Priority", required_nodes="volta0", comment=words)
    source.found = [stuck, rival]
    clock["now"] += 30
    assert kept_in(reader)
    clock["now"] += 31
    source.found = [stuck, rival]
    assert kept_in(reader) == []


def test_a_number_that_slurm_gives_to_another_job_is_another_job() -> None:
    source = Fixed([job(submit_unix=NOW - 400)])
    reader = Reader([source], NAMING, lambda: NOW)
    assert reader.read().jobs[0].job.submit_s == NOW - 400
    source.found = [job(submit_unix=NOW - 5)]
    assert reader.read().jobs[0].job.submit_s == NOW - 5


def test_a_job_that_slurmctld_forgot_to_have_started_is_not_placed_while_its_first_run_may_go_on() -> None:
    clock = {"now": NOW}
    source = Fixed([runs("7")])
    reader = Reader([source], NAMING, lambda: clock["now"])
    first = reader.read().jobs[0]
    assert (first.state, first.starts) == (JobState.RUNNING, 1)
    source.found = [job("7")]  # as before it was placed: held, the same restart count, the same submission
    told = reader.read()
    assert (told.jobs[0].state, told.jobs[0].managed, told.jobs[0].starts) == (JobState.WAITING, False, 1)
    assert "slurmctld forgot" in told.jobs[0].reason
    assert any("it will begin again" in note for note in told.notes)
    clock["now"] += FORGOTTEN_S
    assert reader.read().jobs[0].managed
    assert reader.read().jobs[0].job.submit_s == first.job.submit_s
    source.found = [runs("7")]
    assert reader.read().jobs[0].starts == 2  # Slurm says 1
    source.found = [job("7", restarts=1)]
    assert reader.read().jobs[0].managed  # it was put back, and Slurm knows it


def test_a_source_that_fails_is_replaced_by_the_next_and_if_none_answers_that_is_an_error() -> None:
    first, second = Fixed([]), Fixed([job()])
    first.error = "slurmrestd is gone"
    snapshot = Reader([first, second], NAMING, lambda: NOW).read()
    assert len(snapshot.jobs) == 1
    assert snapshot.notes == ("a test was not used: slurmrestd is gone",)
    second.error = "and squeue too"
    with pytest.raises(BackendError, match=r"slurmrestd is gone.*and squeue too"):
        Reader([first, second], NAMING, lambda: NOW).read()


# ---- over HTTP -------------------------------------------------------------------------------------------------------

Reply = Callable[[str, dict[str, str]], tuple[int, Any]]


@contextmanager
def slurmrestd(reply: Reply) -> Iterator[str]:
    """A server on this machine that answers like slurmrestd; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = reply(self.path, dict(self.headers))
            data = b"" if body is None else json.dumps(body).encode() if not isinstance(body, bytes) else body
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OPENAPI: dict[str, Any] = {
    "paths": {f"/slurm/v0.0.{n}/{what}": {} for n in (40, 41, 42, 43) for what in ("jobs", "job/submit")}
}


def test_what_has_not_changed_is_not_read_again_until_a_clock_is_set_or_a_minute_is_over() -> None:
    asked: list[str] = []
    clock = {"wall": NOW, "steady": 0.0}

    def reply(path: str, _: dict[str, str]) -> tuple[int, Any]:
        asked.append(path)
        if path == "/openapi/v3":
            return 200, OPENAPI
        return (304, None) if "update_time" in path else (200, {"jobs": [{"job_id": 1}], "errors": []})

    with slurmrestd(reply) as address:
        rest = Rest(address)
        source = RestSource(rest, lambda: clock["wall"], lambda: clock["steady"])
        first = source.jobs()
        clock["wall"] += 5
        clock["steady"] += 5
        assert source.jobs() is first
        assert asked == [
            "/openapi/v3", "/slurm/v0.0.42/jobs", f"/slurm/v0.0.42/jobs?update_time={NOW - 10:.0f}",
        ]  # fmt: skip
        clock["wall"] += 3600  # somebody set the clock: what it said before means nothing
        source.jobs()
        assert asked[-1] == "/slurm/v0.0.42/jobs"
        clock["wall"] += 100
        clock["steady"] += 100
        source.jobs()
        assert asked[-1] == "/slurm/v0.0.42/jobs"
        rest.close()


def test_slurmrestd_is_asked_for_news_with_the_time_of_the_reading_and_only_what_differs_is_news() -> None:
    asked: list[str] = []
    clock = {"now": NOW}
    name = "train"
    is_quiet = True

    def reply(path: str, _: dict[str, str]) -> tuple[int, Any]:
        asked.append(path.partition("42")[2])
        if path == "/openapi/v3":
            return 200, OPENAPI
        if is_quiet and "update_time" in path:
            return 304, None
        what = {"nodes": [{"name": "volta0"}]} if "/nodes" in path else {"jobs": [{"job_id": 1, "name": name}]}
        return 200, what | {"errors": []}

    with slurmrestd(reply) as address:
        rest = Rest(address)
        source = RestSource(rest, lambda: clock["now"], lambda: clock["now"])
        assert not source.has_changed()  # nothing was read yet
        first = source.jobs()
        source.nodes()
        asked.clear()
        clock["now"] += 1
        assert not source.has_changed()
        assert asked == [f"/jobs?update_time={NOW:.0f}", f"/nodes?update_time={NOW:.0f}"]
        is_quiet = False  # an answer, and all is as before: Slurm counts in whole seconds
        assert not source.has_changed()
        name = "another"
        assert source.has_changed()
        is_quiet = True
        asked.clear()
        found = source.jobs()
        assert found is not first
        assert found[0].name == "another"
        assert asked == [f"/jobs?update_time={NOW + 1 - 10:.0f}"]  # the news were kept: they are not sent again
        rest.close()


def test_news_are_news_until_the_next_reading() -> None:
    source = Fixed([job()])
    reader = Reader([source], NAMING, lambda: NOW)
    assert not reader.has_changed()
    reader.read()
    source.news = True
    assert reader.has_changed()
    source.news = False
    assert reader.has_changed()
    reader.read()
    assert not reader.has_changed()


def test_while_a_job_waits_for_others_slurmrestd_is_not_believed_for_long_that_nothing_has_changed() -> None:
    asked: list[str] = []
    clock = {"now": NOW}

    def reply(path: str, _: dict[str, str]) -> tuple[int, Any]:
        asked.append(path)
        waits = {"job_id": 2, "job_state": "PENDING", "dependency": "singleton(unfulfilled)"}
        return (304, None) if "update_time" in path else (200, OPENAPI | {"jobs": [waits], "errors": []})

    with slurmrestd(reply) as address:
        rest = Rest(address)
        source = RestSource(rest, lambda: clock["now"], lambda: clock["now"])
        source.jobs()
        clock["now"] += 5
        source.jobs()
        assert "update_time" in asked[-1]
        clock["now"] += 6
        source.jobs()
        assert "update_time" not in asked[-1]
        rest.close()


@pytest.mark.parametrize(
    ("dependency", "is_ours"),
    [
        ("afterok:1(unfulfilled)", True),
        ("afterok:1(unfulfilled),afterany:2(unfulfilled)", True),
        ("afternotok:2", True),
        ("afterany:2", True),
        ("afterok:2(failed)", False),
        ("afterok:2(unfulfilled)", False),
        ("afterok:1(unfulfilled),afterok:3(unfulfilled)", False),  # it runs still
        ("afterok:1(unfulfilled)?afterok:3(unfulfilled)", False),
        ("afterok:4(unfulfilled)", False),  # about to end
        ("afterok:9(unfulfilled)", False),  # nobody knows it any more
        ("afterok:5_*(unfulfilled)", False),
        ("afterok:6(unfulfilled)", False),  # the last task of an array
        ("singleton(unfulfilled)", False),
    ],
)
def test_a_dependency_that_is_met_does_not_wait_for_slurm_to_look(dependency: str, is_ours: bool) -> None:
    ended = {"state": "COMPLETED", "states": ("COMPLETED",), "end_unix": NOW - 1}
    jobs = [
        runs("1", **ended),
        runs("2", **{**ended, "state": "FAILED", "states": ("FAILED",)}),
        runs("3"),
        runs("4", **{**ended, "states": ("COMPLETED", "COMPLETING")}),
        runs("6", **ended, array="5", task=2),
        job("7", dependency=dependency),
    ]
    snapshot = Reader([Fixed(jobs)], NAMING, lambda: NOW).read()
    (waits,) = [live for live in snapshot.jobs if live.id == "7"]
    assert (waits.state, waits.managed) == (JobState.WAITING, is_ours)


def test_a_newer_slurmrestd_that_says_unchanged_with_an_empty_list_is_not_an_empty_cluster() -> None:
    """24.11 answers 200 with no jobs and a warning; and to /nodes 500, because partitions have not changed."""
    asked: list[str] = []

    def reply(path: str, _: dict[str, str]) -> tuple[int, Any]:
        asked.append(path)
        if path == "/openapi/v3":
            return 200, OPENAPI
        if path.endswith("/nodes"):
            return 200, {"nodes": [{"name": "volta0"}], "errors": []}
        if "update_time" not in path:
            return 200, {"jobs": [{"job_id": 1}], "last_update": {"set": True, "number": 77}, "errors": []}
        if "/nodes" in path:
            return 500, {"errors": [{"error": "Unspecified error"}]}
        warning = {"description": "No job changes since update_time[77]=1970-01-01T00:01:17"}
        return 200, {"jobs": [], "last_update": {"set": True, "number": 0}, "errors": [], "warnings": [warning]}

    with slurmrestd(reply) as address:
        rest = Rest(address)
        source = RestSource(rest)
        assert [len(source.jobs()) for _ in range(3)] == [1, 1, 1]
        assert asked[-1].endswith("update_time=77")  # by Slurm's own clock
        assert [len(source.nodes()) for _ in range(3)] == [1, 1, 1]
        assert sum("/nodes?" in path for path in asked) == 1
        rest.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"jobs": [], "errors": [{"error": "Unable to contact slurm controller"}]}),
        (200, {"jobs": [], "errors": [{"description": "Unable to contact slurm controller"}]}),
        (200, {"errors": []}),
        (200, {"jobs": [], "errors": [], "last_update": {"set": True, "number": 0}}),
        (503, {"jobs": [], "errors": []}),
        (200, b"<html>"),
        (200, [1]),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error_and_not_an_empty_cluster(status: int, body: Any) -> None:
    with slurmrestd(lambda path, _: (200, OPENAPI) if "openapi" in path else (status, body)) as address:
        rest = Rest(address)
        with pytest.raises(BackendError):
            RestSource(rest).jobs()
        rest.close()


def test_a_token_that_has_expired_is_asked_for_again_once_and_is_never_told() -> None:
    tokens = iter(["old", "new", "newer"])

    def reply(path: str, headers: dict[str, str]) -> tuple[int, Any]:
        assert headers["X-SLURM-USER-NAME"] == "ada"
        good = headers["X-SLURM-USER-TOKEN"] == "new"
        return (200, OPENAPI if "openapi" in path else {"jobs": [], "errors": []}) if good else (401, None)

    with slurmrestd(reply) as address:
        rest = Rest(address, "ada", lambda: next(tokens))
        assert RestSource(rest).jobs() == []
        rest.close()
    with slurmrestd(lambda *_: (401, None)) as address:
        rest = Rest(address, "ada", lambda: "s3cret")
        with pytest.raises(BackendError, match="refuses access") as told:
            RestSource(rest).jobs()
        assert "s3cret" not in str(told.value)
        rest.close()


def test_nobody_at_the_address_is_an_error_in_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"http://127.0.0.1:{port}", "unix:/nowhere/rest.sock"):
        with pytest.raises(BackendError, match="does not answer"):
            RestSource(Rest(address)).jobs()
    with pytest.raises(BackendError, match="not an address of slurmrestd"):
        RestSource(Rest("ftp://x")).jobs()


# ---- with commands ---------------------------------------------------------------------------------------------------


def with_commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Commands:
    """Commands of these names that do what these scripts do."""
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Commands(timeout_s=5)


def test_each_generation_is_asked_with_the_command_that_tells_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"jobs": [{"job_id": 5}], "errors": []})
    old = with_commands(tmp_path, monkeypatch, scontrol="echo slurm-wlm 22.05.8", squeue=f"echo '{answer}'")
    assert [found.id for found in CommandSource(old).jobs()] == ["5"]
    nodes = json.dumps({"nodes": [{"name": "volta0"}], "errors": []})
    new = with_commands(
        tmp_path, monkeypatch,
        scontrol=f"[ $1 = --version ] && echo slurm 24.11.5 || echo '{nodes}'",
        squeue=f"[ $1 = --states=all ] && echo '{answer}'",
        sinfo="exit 9",
    )  # fmt: skip
    assert [found.id for found in CommandSource(new).jobs()] == [
        "5"
    ]  # without the states, those that ended are missing
    assert [found.name for found in CommandSource(new).nodes()] == ["volta0"]


def test_the_command_line_says_what_has_changed_since_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"jobs": [], "errors": []})
    lines = tmp_path / "lines"
    lines.write_text("7 PENDING\n")
    commands = with_commands(
        tmp_path, monkeypatch,
        squeue=f"[ $2 = --json ] && echo '{answer}' || cat {lines}",
        sinfo=f"[ -e {tmp_path}/down ] && echo volta0 down || echo volta0 idle",
    )  # fmt: skip
    source = CommandSource(commands)
    source.jobs()
    assert source.has_changed()  # it is not known what was there at the first reading
    source.jobs()
    assert not source.has_changed()
    lines.write_text("7 PENDING\n8 PENDING\n")
    assert source.has_changed()
    assert not source.has_changed()
    (tmp_path / "down").touch()
    assert source.has_changed()
    with_commands(tmp_path, monkeypatch, squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(BackendError, match="contact slurm controller"):
        source.has_changed()


@pytest.mark.parametrize(
    "squeue",
    [
        'echo \'{"jobs": [], "errors": [{"error": "Unable to contact slurm controller"}]}\'',
        'echo \'{"jobs": [], "errors": [], "last_update": {"set": true, "number": 0}}\'',  # 24.11
        "echo gone >&2; exit 1",
        "exit 0",
        "echo '{'",
        "echo JOBID PARTITION",
    ],
)
def test_a_command_that_fails_or_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str
) -> None:
    commands = with_commands(tmp_path, monkeypatch, scontrol="echo slurm-wlm 22.05.8", squeue=squeue)
    with pytest.raises(BackendError):
        CommandSource(commands).jobs()


def test_a_command_that_is_not_there_or_does_not_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = with_commands(tmp_path, monkeypatch, slow="exec sleep 60")
    with pytest.raises(BackendError, match="nowhere is not installed"):
        commands.run(["nowhere"])
    monkeypatch.setattr(commands, "_timeout_s", 0.1)
    with pytest.raises(BackendError, match="has not answered"):
        commands.run(["slow"])


def test_the_environment_of_the_daemon_does_not_change_what_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    commands = with_commands(tmp_path, monkeypatch, show="echo $SQUEUE_FORMAT$SLURM_CONF")
    assert commands.run(["show"]).out.strip() == ""


# ---- real answers ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the outputs of real Slurms are not beside the repository")
def test_real_answers_of_both_generations_become_snapshots() -> None:
    for jobs_file, nodes_file in (
        ("22.05/squeue.json", "22.05/sinfo.json"),
        ("22.05/squeue.json", "22.05/sinfo-index-types.json"),
        ("24.11/squeue.json", "24.11/scontrol-show-nodes.json"),
    ):
        jobs = json.loads((SAMPLES / jobs_file).read_text())
        nodes = json.loads((SAMPLES / nodes_file).read_text())
        source = Fixed(jobs_in(jobs, jobs_file), nodes_in(nodes, nodes_file))
        snapshot = Reader([source], NAMING, lambda: NOW).read()
        assert snapshot.cluster.nodes
        assert not snapshot.down
        by_id = {each.id: each for each in snapshot.jobs}
        assert (by_id["1"].state, by_id["1"].managed, by_id["1"].job.gpus) == (JobState.WAITING, True, 2)
        running = [each for each in snapshot.jobs if each.state is JobState.RUNNING]
        assert [each.parts for each in running] == [(Part("volta0", VOLTA, 2, (0, 1)),)] * len(running)
        assert running


def test_answers_that_are_no_objects_are_told(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="not an object"):
        jobs_in([], "test")
    with pytest.raises(TelemetryError, match="there are no nodes"):
        nodes_in({"nodes": [], "errors": []}, "test")


def test_gpus_that_slurm_counts_as_used_and_no_job_has_are_not_free() -> None:
    now = NOW
    used = [node(used=(("v100", 3),)), node("volta1")]
    reader = Reader([Fixed([runs()], used)], NAMING, lambda: now)
    assert [each.id for each in reader.read().jobs] == ["7"]  # a job may have begun in between
    now += 20
    snapshot = reader.read()
    (leak,) = (each for each in snapshot.jobs if each.id != "7")
    assert (leak.parts, leak.managed, leak.state) == ((Part("volta0", VOLTA, 2),), False, JobState.RUNNING)
    assert any("2 v100-sxm2-16gb as used that no job has" in note for note in snapshot.notes)


def test_a_job_that_waits_in_its_place_does_not_hide_gpus_that_slurm_counts_as_used_and_no_job_has() -> None:
    # Slurm cannot start a job on two GPUs where only one is free in its books. As long as the leak is not known, one
    # job after the other is placed there and waits.
    now = NOW
    waits = job("8", priority=1.0, reason="Resources", required_nodes="volta0", gres=(("", 2),), per_node="gres:gpu:2")
    source = Fixed([], [node(used=(("v100", 3),)), node("volta1")])
    reader = Reader([source], NAMING, lambda: now)
    by_id = dict[str, LiveJob]()
    for decision in ("d1", "d2"):
        now += 20
        source.found = [runs(), replace(waits, comment=f"adlro:decision={decision} adlro:placed={now:.0f}")]
        by_id = {each.id: each for each in reader.read().jobs}
        assert by_id["8"].state is JobState.PLACED
    taken = {id: part.count for id, each in by_id.items() for part in each.parts}
    assert taken == {"7": 1, "8": 2, f"leak@volta0/{VOLTA}": 1}  # of four GPUs: not more than there are


def test_a_job_that_slurm_holds_because_its_launch_failed_is_ours_to_place_again() -> None:
    failed = job(comment="adlro:decision=d1", description="launch failed requeued held", required_nodes="volta0")
    assert read_one(failed).managed
    assert not read_one(replace(failed, description="")).managed  # its user holds it


def test_a_node_that_slurmctld_has_not_heard_from_since_its_start_takes_no_jobs() -> None:
    told = {"name": "volta0", "state": "mixed", "gres": "gpu:v100:4", "partitions": ["gpu"], "cpus": 16}
    (unheard,) = nodes_in({"nodes": [{**told, "slurmd_start_time": 0}]}, "a test")
    assert not unheard.is_up
    assert down_of(sites_of([unheard], NAMING)[0]) == {"volta0": "mixed+unregistered"}
    for start in (1794823725, {"set": True, "infinite": False, "number": 1794823725}):
        (heard,) = nodes_in({"nodes": [{**told, "slurmd_start_time": start}]}, "a test")
        assert heard.is_up
