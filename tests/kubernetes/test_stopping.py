"""Pods that are marked as restartable are evicted for others, within all limits; their jobs go on in new pods."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.test_turns import KilledError
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.backend import Kubernetes
from adlro.backends.kubernetes.client import Api
from adlro.core.ports import Answer, JobState, LiveJob, Order
from adlro.daemon.store import Store, open_store
from adlro.live.limits import PreemptTable
from adlro.live.turn import Orchestrator, TurnSettings

MARKED = {"adlro.io/restartable": "true"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{tmp_path}/adlro.db")) as opened:
        yield opened


def job_pod(world: World, name: str, job: str = "train", grace: int = 30, **more: Any) -> None:
    """A pod that a Job owns, marked as restartable."""
    world.pod(name, annotations=MARKED, owner=job, terminationGracePeriodSeconds=grace, **more)


def stop(backend: Kubernetes, job: str, for_job: str = "") -> Answer:
    return backend.act([Order(job, "d-stop", for_job=for_job)])[0]


def running(world: World, backend: Kubernetes, name: str, id: str) -> LiveJob:
    """Bind a pod to node a, let it run, and wait until a snapshot has it."""
    world.seen(backend, id)
    assert world.order(backend, id, ("a", int(world.gpus_of(name)))).done
    world.runs(name)
    return world.seen(backend, id, lambda job: job.state is JobState.RUNNING)


def test_a_stopped_job_goes_on_in_the_pod_that_its_owner_creates(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x1")
    backend = world.backend()
    before = running(world, backend, "train-x1", "train:0")
    world.pod("short")
    world.seen(backend, "train:0", lambda job: job.job.restartable)
    answer = stop(backend, world.id("train:0"))
    assert (answer.done, answer.is_pending) == (True, True)
    job_pod(world, "train-x2")  # its owner replaces it while it still ends
    eventually(lambda: world.id("train-x2") in backend._reader.pods)
    stopping = world.seen(backend, "train:0")
    assert stopping.also == (world.id("train-x1"),)  # what `adlro why pod/train-x1` asks for
    assert (stopping.state, stopping.is_stopping, stopping.parts) == (JobState.RUNNING, True, before.parts)
    assert stop(backend, world.id("train:0")).is_pending  # the daemon repeats the order
    world.delete("train-x1")  # the kubelet has ended it
    waits = world.seen(backend, "train:0", lambda job: job.state is JobState.WAITING and job.managed)
    assert (waits.starts, waits.job.submit_s, waits.is_stopping) == (1, before.job.submit_s, False)
    again = running(world, backend, "train-x2", "train:0")
    assert again.starts == 2
    notes = world.get("train-x2")["metadata"]["annotations"]
    assert (notes["adlro.io/slot"], notes["adlro.io/starts"]) == ("0", "2")
    assert float(notes["adlro.io/submitted"]) == before.job.submit_s


def test_a_job_whose_pod_is_not_there_again_yet_waits_for_its_owner(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x1", grace=0)
    backend = world.backend()
    running(world, backend, "train-x1", "train:0")
    world.pod("short")
    world.seen(backend, "short")
    assert stop(backend, world.id("train:0")).done
    job = world.seen(backend, "train:0", lambda job: job.state is JobState.WAITING)
    assert (job.managed, job.starts) == (False, 1)
    assert "owner has not created" in job.reason


def test_the_pods_of_one_job_keep_their_slots_also_over_a_restart_of_the_daemon(world: World) -> None:
    world.node("a", gpus=4)
    for number in range(3):
        job_pod(world, f"train-x{number}", grace=0)
    backend = world.backend()
    for number in range(3):
        running(world, backend, f"train-x{number}", f"train:{number}")
    world.pod("short")
    world.seen(backend, "short")
    assert stop(backend, world.id("train:1")).done
    eventually(lambda: len(world.pods()) == 3)
    job_pod(world, "train-a", grace=0)  # sorts before the others
    for each in (backend, world.backend()):
        waits = world.seen(each, "train:1", lambda job: job.state is JobState.WAITING and job.managed)
        assert waits.job.gpus == 1
        states = {job.id: job.state for job in each.read().jobs}
        assert states[world.id("train:0")] is states[world.id("train:2")] is JobState.RUNNING


def test_an_indexed_pod_has_its_index_as_its_slot(world: World) -> None:
    world.node("a")
    index = {"batch.kubernetes.io/job-completion-index": "7"}
    world.pod("train-7-x", annotations=MARKED | index, owner="train")
    assert world.seen(world.backend(), "train:7").state is JobState.WAITING


def test_a_job_that_is_deleted_is_cancelled_and_does_not_wait_for_ever(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x1", grace=0)
    backend = world.backend()
    running(world, backend, "train-x1", "train:0")
    world.delete("train-x1")
    world.seen(backend, "train:0", lambda job: job.state is JobState.CANCELLED)


def test_a_gang_is_stopped_as_a_whole_and_waits_again_as_one_job(world: World) -> None:
    world.node("a")
    labels, notes = {"adlro.io/gang": "g"}, MARKED | {"adlro.io/gang-size": "2"}
    for number in range(2):
        world.pod(f"g-{number}", labels=labels, annotations=notes, owner="g", terminationGracePeriodSeconds=30)
    backend = world.backend()
    world.seen(backend, "g", lambda job: job.managed)
    assert world.order(backend, "g", ("a", 2)).done
    for number in range(2):
        world.runs(f"g-{number}")
    before = world.seen(backend, "g", lambda job: job.state is JobState.RUNNING)
    world.pod("short")
    world.seen(backend, "short")
    assert stop(backend, world.id("g")).is_pending
    for number in range(2, 4):
        world.pod(f"g-{number}", labels=labels, annotations=notes, owner="g")
    eventually(lambda: all(world.id(f"g-{number}") in backend._reader.pods for number in range(4)))
    assert world.seen(backend, "g").is_stopping
    for number in range(2):
        world.delete(f"g-{number}")
    waits = world.seen(backend, "g", lambda job: job.state is JobState.WAITING and job.managed)
    assert (waits.starts, waits.job.gpus, waits.job.submit_s) == (1, 2, before.job.submit_s)


# ---- who is not stopped ----------------------------------------------------------------------------------------------


def refused(world: World, name: str, id: str, for_pod: str = "", **taker: Any) -> str:
    """Why a running pod is not stopped for another one."""
    backend = world.backend()
    running(world, backend, name, id)
    world.pod("taker", **taker)
    world.seen(backend, "taker")
    answer = stop(backend, world.id(id), world.id("taker") if for_pod else "")
    assert not answer.done
    assert "deletionTimestamp" not in world.get(name)["metadata"]
    return str(answer.said)


def test_a_pod_without_the_mark_is_not_stopped(world: World) -> None:
    world.node("a")
    world.pod("p", owner="train")
    assert "not marked as restartable" in refused(world, "p", "p")


def test_a_pod_that_nobody_would_create_again_is_not_stopped(world: World) -> None:
    world.node("a")
    world.pod("p", annotations=MARKED)
    assert "nothing would create its pod p again" in refused(world, "p", "p")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_pod_of_a_higher_priority_class_is_not_stopped(world: World, is_known: bool) -> None:
    world.node("a")
    job_pod(world, "train-x", priorityClassName=world.priority("high", 1000))
    said = refused(world, "train-x", "train:0", "taker" if is_known else "")
    assert "its priority (1000) is higher" in said


def test_a_pod_of_a_higher_priority_class_is_not_offered_to_policies(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x", priorityClassName=world.priority("high", 1000))
    backend = world.backend()
    running(world, backend, "train-x", "train:0")
    world.pod("low")
    world.seen(backend, "low")
    assert not world.seen(backend, "train:0").job.restartable
    world.pod("equal", priorityClassName="high")
    world.seen(backend, "equal")
    assert world.seen(backend, "train:0").job.restartable


def test_nobody_is_stopped_for_a_pod_that_never_preempts(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x")
    meek = world.priority("meek", 5000, preemptionPolicy="Never")
    assert "preemptionPolicy: Never" in refused(world, "train-x", "train:0", "taker", priorityClassName=meek)


def test_a_disruption_budget_keeps_a_pod_from_being_stopped(world: World) -> None:
    world.node("a")
    world.budget("b", {"app": "x"})
    job_pod(world, "train-x", labels={"app": "x"})
    assert "a PodDisruptionBudget protects train-x" in refused(world, "train-x", "train:0")


def test_the_pod_that_gets_the_room_shows_the_node_that_is_emptied_for_it(world: World) -> None:
    world.node("a")
    job_pod(world, "train-x")
    backend = world.backend()
    running(world, backend, "train-x", "train:0")
    world.pod("short")
    world.seen(backend, "short")
    assert stop(backend, world.id("train:0"), world.id("short")).done
    assert world.get("short")["status"]["nominatedNodeName"] == "a"


def test_room_that_kube_scheduler_empties_for_a_pod_of_its_own_is_not_taken(world: World) -> None:
    world.node("a", gpus=2)
    world.pod("theirs", gpus=2, scheduler="default-scheduler")
    status = {"status": {"nominatedNodeName": "a"}}
    world.api.ask("PATCH", f"{world.path('theirs')}/status", None, status, "application/merge-patch+json")
    world.pod("ours")
    backend = world.backend()
    world.seen(backend, "ours")
    assert "Insufficient nvidia.com/gpu" in world.order(backend, "ours", ("a", 1)).said


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_a_policy_stops_a_long_job_for_a_short_one_and_both_run(world: World, store: Store) -> None:
    world.node("a", gpus=1)
    long, short = {"adlro.io/estimate": "360000"}, {"adlro.io/estimate": "60"}
    world.pod("long-x1", annotations=MARKED | long, owner="long")
    backend = world.backend()
    settings = TurnSettings(
        starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(is_on=True, least_run_s=0.0)
    )
    daemon = Orchestrator(backend, store, "srtf", "fcfs-first-fit", settings)
    eventually(lambda: daemon.tick().number > 0 and bool(world.node_of("long-x1")))
    world.runs("long-x1")
    world.seen(backend, "long:0", lambda job: job.state is JobState.RUNNING)
    world.pod("short", annotations=short)
    world.seen(backend, "short")
    eventually(lambda: daemon.tick().number > 0 and not any(p["metadata"]["name"] == "long-x1" for p in world.pods()))
    world.pod("long-x2", annotations=MARKED | long, owner="long")  # as the Job controller does
    eventually(lambda: daemon.tick().number > 0 and bool(world.node_of("short")))
    assert world.node_of("long-x2") == ""
    verbs = [(each.verb, each.job) for each in store.decisions(limit=10)][::-1]
    assert verbs == [("start", world.id("long:0")), ("stop", world.id("long:0")), ("start", world.id("short"))]
    world.runs("short", "Succeeded")
    eventually(lambda: daemon.tick().number > 0 and bool(world.node_of("long-x2")))
    assert world.get("long-x2")["metadata"]["annotations"]["adlro.io/starts"] == "2"


@pytest.mark.parametrize("after", [False, True], ids=["before the eviction", "between eviction and record"])
def test_a_daemon_that_is_killed_while_it_stops_a_job_loses_neither_of_the_two(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    world.node("a", gpus=1)
    long = MARKED | {"adlro.io/estimate": "360000"}
    world.pod("long-x1", annotations=long, owner="long")
    settings = TurnSettings(
        starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(is_on=True, least_run_s=0.0)
    )
    backend = world.backend()
    daemon = Orchestrator(backend, store, "srtf", "fcfs-first-fit", settings)
    eventually(lambda: daemon.tick().number > 0 and bool(world.node_of("long-x1")))
    world.runs("long-x1")
    world.seen(backend, "long:0", lambda job: job.state is JobState.RUNNING)
    world.pod("short", annotations={"adlro.io/estimate": "60"})
    world.seen(backend, "short")
    whole = Api.ask

    def ask(self: Api, method: str, path: str, *rest: Any) -> Any:
        if not path.endswith("/eviction"):
            return whole(self, method, path, *rest)
        if after:
            whole(self, method, path, *rest)
        raise KilledError

    def is_killed() -> bool:
        try:
            daemon.tick()
        except KilledError:
            return True
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Api, "ask", ask)
        eventually(is_killed)
    backend.close()
    world.backends.remove(backend)
    successor = Orchestrator(world.backend(), store, "srtf", "fcfs-first-fit", settings)

    def short_is_bound() -> bool:
        names = {pod["metadata"]["name"] for pod in world.pods()}
        if not names & {"long-x1", "long-x2"}:
            world.pod("long-x2", annotations=long, owner="long")  # as the Job controller does
        successor.tick()
        return bool(world.node_of("short"))

    eventually(short_is_bound)
    world.runs("short", "Succeeded")
    eventually(lambda: successor.tick().number > 0 and bool(world.node_of("long-x2")))
    assert successor._guarded.stops.stops_of(world.id("long:0")) == 1
