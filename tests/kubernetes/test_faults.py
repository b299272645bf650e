"""Whatever ends in the middle (daemon, server, node, leader): every pod is bound once, and none is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.test_turns import KilledError, bound, check_room, first_fit, kill_at
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import Api, ApiError
from adlro.backends.kubernetes.lab import ControlPlane
from adlro.backends.kubernetes.lease import LeaseLock
from adlro.backends.kubernetes.reader import PodReader
from adlro.core.errors import BackendError
from adlro.core.ports import Answer, JobState, Order, Part
from adlro.daemon.fence import Fenced
from adlro.daemon.store import Store, open_store
from adlro.live.limits import PreemptTable
from adlro.live.turn import Orchestrator, TurnSettings

POLICY = "fcfs-first-fit"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{tmp_path}/adlro.db")) as opened:
        yield opened


@pytest.mark.parametrize("after", [False, True], ids=["between decide and bind", "between bind and record"])
def test_a_daemon_that_is_killed_leaves_a_record_that_its_successor_settles(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    world.node("a", gpus=2)
    world.pod("p")
    world.pod("q")
    backend = world.backend()
    for name in ("p", "q"):
        world.seen(backend, name)
    with monkeypatch.context() as patch:
        kill_at(backend, patch, 0, after)
        with suppress(KilledError):
            Orchestrator(backend, store, POLICY, POLICY).tick()
    before = bound(world)
    assert bool(before) == after
    backend.close()
    world.backends.remove(backend)
    successor = Orchestrator(world.backend(), store, POLICY, POLICY)
    eventually(lambda: successor.tick().number > 0 and len(bound(world)) == 2)
    assert {name: bound(world)[name] for name in before} == before
    made = {decision.id: decision for decision in store.decisions(limit=10)}
    for name in ("p", "q"):
        assert made[world.get(name)["metadata"]["annotations"]["adlro.io/decision"]].job == world.id(name)
    assert len(store.unanswered()) == 0


def test_a_node_that_is_removed_takes_no_pod_and_what_stood_on_it_ends_no_turn(world: World, store: Store) -> None:
    world.node("a", gpus=2)
    world.node("b", gpus=2)
    world.pod("runs", node="a")
    world.runs("runs")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    world.seen(backend, "runs")
    model = backend.read().cluster.nodes[0].gpus[0].model
    world.api.ask("DELETE", "/api/v1/nodes/a")
    eventually(lambda: [node.name for node in backend.read().cluster.nodes] == ["b"])
    (answer,) = backend.act([Order(world.id("p"), "d", (Part("a", model, 1),))])
    assert world.node_of("p") == ("b" if answer.done else "")
    world.pod("q")
    world.seen(backend, "q")
    daemon = Orchestrator(backend, store, POLICY, POLICY)
    eventually(lambda: daemon.tick().number > 0 and bound(world).get("q") == "b")


def test_a_pod_that_was_created_in_the_future_of_our_clock_starts_now(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("a")
    world.pod("p")
    behind = time.time() - 7200.0
    monkeypatch.setattr("adlro.backends.kubernetes.reader.PodReader.snapshot", skewed(behind))
    backend = world.backend()
    backend._reader._clock = lambda: behind
    backend._reader._put_pod(world.get("p"))
    daemon = Orchestrator(backend, store, POLICY, POLICY, clock=lambda: behind)
    eventually(lambda: daemon.tick().number > 0 and bool(world.node_of("p")))


def skewed(now_s: float) -> Callable[..., Any]:
    """Snapshots by a clock that is wrong."""
    whole = PodReader.snapshot

    def snapshot(self: PodReader, is_back: bool = False) -> Any:
        self._clock = lambda: now_s
        return whole(self, is_back)

    return snapshot


# ---- replicas --------------------------------------------------------------------------------------------------------


def test_the_second_replica_goes_on_when_the_leader_is_killed_and_the_old_leader_changes_nothing(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world.node("a", gpus=2)
    world.pod("p")
    now = [100.0]
    locks = [
        LeaseLock(Api(world.server, 5.0), world.namespace, "adlro", retry_s=1e6, monotonic=lambda: now[0])
        for _ in range(2)
    ]
    for lock in locks:
        request.addfinalizer(lock.release)
    replicas = [Fenced(world.backend(), lock) for lock in locks]
    stores = [open_store(f"sqlite:{tmp_path}/{number}.db") for number in range(2)]
    for each in stores:
        request.addfinalizer(each.close)
    daemons = [Orchestrator(each, its, POLICY, POLICY) for each, its in zip(replicas, stores, strict=True)]
    assert locks[0].take()
    assert not locks[1].take()
    eventually(lambda: daemons[0].tick().number > 0 and bool(world.node_of("p")))
    world.pod("q")  # the leader dies here: nobody renews its Lease
    now[0] += 16.0
    eventually(locks[1].take)
    eventually(lambda: daemons[1].tick().number > 0 and bool(world.node_of("q")))
    world.pod("r")
    with pytest.raises(BackendError):  # the old leader wakes up
        replicas[0].act([])
    assert world.node_of("r") == ""
    check_room(world, 2)


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.real_only
def test_a_server_that_is_killed_and_started_again_costs_no_pod(
    world: World, store: Store, control_plane: ControlPlane
) -> None:
    world.node("a", gpus=4)
    world.pod("p0")
    backend = world.backend()
    daemon = Orchestrator(backend, store, POLICY, POLICY)
    eventually(lambda: daemon.tick().number > 0 and len(bound(world)) == 1)
    control_plane.kill("kube-apiserver")
    for _ in range(3):
        daemon.tick()  # neither decides wrongly nor ends
    control_plane.start_server()
    for number in range(1, 4):
        world.pod(f"p{number}")
    eventually(lambda: daemon.tick().number > 0 and len(bound(world)) == 4)
    check_room(world, 4)


@pytest.mark.real_only
def test_a_server_that_dies_while_many_pods_are_bound_leaves_each_bound_once(
    world: World, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.backends.kubernetes.reader.ASSUMED_S", 3.0)
    for number in range(4):
        world.node(f"n{number}", gpus=16)
    for number in range(60):
        world.pod(f"p{number}")
    backend = world.backend()
    eventually(lambda: sum(job.managed for job in backend.read().jobs) == 60)
    orders = first_fit(backend)
    killer = threading.Timer(0.05, control_plane.kill, ["kube-apiserver"])
    killer.start()
    answers: list[Answer] = []
    with suppress(BackendError):
        answers = backend.act(orders)
    killer.join()
    control_plane.start_server()

    def all_bound() -> bool:
        with suppress(BackendError):
            backend.act(first_fit(backend))
        check_room(world, 16)
        return len(bound(world)) == 60

    eventually(all_bound, lambda: f"{len(bound(world))} of 60 are bound; at first {sum(a.done for a in answers)}")


# ---- Jobs ------------------------------------------------------------------------------------------------------------


def kubelet(world: World, ends: Callable[[str], bool]) -> None:
    """Do what kubelets do, once: let bound pods run, end those that may, and remove those that were told to end."""
    for pod in world.pods():
        name, phase = pod["metadata"]["name"], pod["status"]["phase"]
        if not pod["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
            continue
        with suppress(ApiError):
            if "deletionTimestamp" in pod["metadata"]:
                world.delete(name)
            elif phase == "Pending":
                world.runs(name)
            elif ends(name):
                world.runs(name, "Succeeded")


def create_job(world: World, name: str, pods: int, **annotations: str) -> None:
    asks = {"cpu": "1", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": "adlro", "restartPolicy": "Never", "containers": [container]},
    }
    body = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"completions": pods, "parallelism": pods, "template": template},
    }  # fmt: skip
    world.api.ask("POST", f"/apis/batch/v1/namespaces/{world.namespace}/jobs", None, body)


def is_complete(world: World, name: str) -> bool:
    found = world.api.get(f"/apis/batch/v1/namespaces/{world.namespace}/jobs/{name}")
    conditions = found.get("status", {}).get("conditions") or []
    return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)


@pytest.fixture
def controllers(world: World, control_plane: ControlPlane) -> Iterator[None]:
    """The controllers of Jobs, as long as a test runs."""
    control_plane.start_controllers()
    yield
    for each in world.api.get(f"/apis/batch/v1/namespaces/{world.namespace}/jobs")["items"]:
        path = f"/apis/batch/v1/namespaces/{world.namespace}/jobs/{each['metadata']['name']}"
        world.api.ask("DELETE", path, {"propagationPolicy": "Background"})
    control_plane.kill("kube-controller-manager")


@pytest.mark.real_only
def test_a_job_of_ten_pods_ends_complete(world: World, store: Store, controllers: None) -> None:
    world.node("a", gpus=2)
    world.node("b", gpus=2)
    create_job(world, "ten", 10)
    daemon = Orchestrator(world.backend(), store, POLICY, POLICY)

    def done() -> bool:
        daemon.tick()
        check_room(world, 2)
        kubelet(world, lambda name: True)
        return is_complete(world, "ten")

    eventually(done)
    assert len({decision.job for decision in store.decisions(limit=100)}) == 10


@pytest.mark.real_only
def test_a_job_that_is_stopped_goes_on_in_the_pod_that_its_controller_creates(
    world: World, store: Store, controllers: None
) -> None:
    world.node("a", gpus=1)
    create_job(world, "long", 1, **{"adlro.io/restartable": "true", "adlro.io/estimate": "360000"})
    settings = TurnSettings(
        starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(is_on=True, least_run_s=0.0)
    )
    backend = world.backend()
    daemon = Orchestrator(backend, store, "srtf", POLICY, settings)

    def turn(ends: Callable[[str], bool]) -> None:
        daemon.tick()
        check_room(world, 1)
        kubelet(world, ends)

    def long_runs() -> bool:
        turn(lambda name: False)
        job = world.job(backend, "long:0")
        return job is not None and job.state is JobState.RUNNING

    eventually(long_runs)
    (first,) = bound(world)
    world.pod("short", annotations={"adlro.io/estimate": "60"})

    def short_runs() -> bool:
        turn(lambda name: False)
        return world.get("short")["status"]["phase"] == "Running"

    eventually(short_runs)
    assert first not in {pod["metadata"]["name"] for pod in world.pods()}

    def complete() -> bool:
        turn(lambda name: True)
        return is_complete(world, "long")

    eventually(complete)
    made = [(each.verb, each.job) for each in store.decisions(limit=10)][::-1]
    long, short = world.id("long:0"), world.id("short")
    assert made == [("start", long), ("stop", long), ("start", short), ("start", long)]
