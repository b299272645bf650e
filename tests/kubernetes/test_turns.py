"""Turns of the daemon on a cluster: from the queue to bound pods, beside another scheduler, and through kills."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.world import T4, World, eventually

from adlro.backends.kubernetes.backend import Kubernetes
from adlro.backends.kubernetes.client import Api
from adlro.backends.shadow.record import shadowed
from adlro.core.ports import JobState, Order, Part
from adlro.daemon.store import Store, open_store
from adlro.live.turn import Orchestrator

POLICY = "fcfs-first-fit"  # plain, so that what is tested is the back end


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:{tmp_path}/adlro.db")) as opened:
        yield opened


def bound(world: World) -> dict[str, str]:
    """The node of each pod that has one."""
    found = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in world.pods()}
    return {name: node for name, node in found.items() if node}


def condition(world: World, name: str) -> str:
    found = world.get(name).get("status", {}).get("conditions") or []
    return next((each.get("message") or "" for each in found if each["type"] == "PodScheduled"), "")


def test_turns_bind_what_fits_and_tell_the_rest_when_it_will_start(world: World, store: Store) -> None:
    world.node("a", gpus=2)
    for number in range(3):
        world.pod(f"p{number}", annotations={"adlro.io/limit": "1h"})
    world.pod("huge", gpus=64)
    backend = world.backend()
    daemon = Orchestrator(backend, store, POLICY, POLICY)
    eventually(lambda: len(backend.read().jobs) == 4)
    tick = daemon.tick()
    assert [decision.verb for decision in tick.decisions] == ["start", "start"]
    assert len(bound(world)) == 2
    (left,) = {"p0", "p1", "p2"} - bound(world).keys()
    eventually(lambda: daemon.tick().number > 0 and bool(condition(world, left)))
    assert "; start " in condition(world, left)
    assert "Nearest: a (it has 2 nvidia.com/gpu of 64" in condition(world, "huge")
    why = daemon.why(world.id("huge"))
    assert why is not None
    done = next(iter(bound(world)))
    world.runs(done, "Succeeded")
    world.seen(backend, done, lambda job: job.state is JobState.FINISHED)
    eventually(lambda: daemon.tick().number > 0 and left in bound(world))
    made = {decision.id for decision in store.decisions(limit=10)}
    assert {world.get(name)["metadata"]["annotations"]["adlro.io/decision"] for name in bound(world)} <= made


def test_a_gang_and_a_pod_with_a_selector_are_placed_by_the_rules(world: World, store: Store) -> None:
    for name, zone in (("a", "east"), ("b", "east"), ("c", "west")):
        world.node(name, gpus=4, labels={"zone": zone})
    world.node("t", gpus=8, product=T4)
    for number in range(2):
        world.pod(f"g{number}", gpus=4, labels={"adlro.io/gang": "g"}, annotations={"adlro.io/gang-size": "2"})
    world.pod("west", gpus=2, nodeSelector={"zone": "west"})
    world.pod("cpu", gpus=0)
    backend = world.backend()
    eventually(lambda: sum(job.managed for job in backend.read().jobs) == 3)
    daemon = Orchestrator(backend, store, POLICY, POLICY)
    daemon.tick()
    eventually(lambda: daemon.tick().number > 0 and len(bound(world)) == 4)
    found = bound(world)
    assert found["west"] == "c"
    models = {"a": "a100", "b": "a100", "c": "a100", "t": "t4"}
    assert len({models[found["g0"]], models[found["g1"]]}) == 1


def test_a_shadow_records_what_it_would_do_and_changes_nothing(world: World, store: Store, tmp_path: Path) -> None:
    world.node("a")
    world.pod("theirs", scheduler="default-scheduler")
    world.pod("huge", gpus=64, scheduler="default-scheduler")
    before = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in world.pods()}
    backend = world.backend()
    world.seen(backend, "theirs")
    shadow = shadowed(backend, tmp_path / "shadow.jsonl")
    daemon = Orchestrator(shadow, store, POLICY, POLICY)
    for _ in range(3):
        daemon.tick()
    assert {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in world.pods()} == before
    assert world.events() == []
    assert '"wished"' in (tmp_path / "shadow.jsonl").read_text()


# ---- kills -----------------------------------------------------------------------------------------------------------


class KilledError(BaseException):
    """The process ends here, at once."""


def kill_at(backend: Kubernetes, monkeypatch: pytest.MonkeyPatch, request: int, after: bool) -> None:
    """Let the process end at a binding request: before it is sent, or when it has been answered."""
    whole, count = backend._api.ask, iter(range(10**6))

    def ask(self: Api, method: str, path: str, *rest: Any) -> Any:
        is_due = path.endswith("/binding") and next(count) >= request
        if is_due and not after:
            raise KilledError
        found = whole(method, path, *rest)
        if is_due:
            raise KilledError
        return found

    monkeypatch.setattr(Api, "ask", ask)


def first_fit(backend: Kubernetes) -> list[Order]:
    """Orders for all that waits: each pod on the first node with room for it."""
    snapshot = backend.read()
    free = {node.name: node.gpus[0].count for node in snapshot.cluster.nodes if node.name not in snapshot.down}
    models = {node.name: node.gpus[0].model for node in snapshot.cluster.nodes}
    for job in snapshot.jobs:
        if job.state in (JobState.PLACED, JobState.RUNNING):
            for part in job.parts:
                free[part.node] = free.get(part.node, 0) - part.count
    orders = []
    for job in snapshot.jobs:
        if job.state is JobState.WAITING and job.managed:
            parts, left = [], job.job.gpus
            for node in free:
                if (many := min(left, free[node])) > 0:
                    parts.append(Part(node, models[node], many))
                    free[node] -= many
                    left -= many
            if not left:
                orders.append(Order(job.id, f"d-{job.id}", tuple(parts)))
    return orders


def check_room(world: World, gpus: int) -> None:
    """No node has more pods than GPUs."""
    held: Counter[str] = Counter()
    for pod in world.pods():
        if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed"):
            asks = pod["spec"]["containers"][0]["resources"]["requests"]
            held[pod["spec"]["nodeName"]] += int(asks["nvidia.com/gpu"])
    assert all(many <= gpus for many in held.values()), held


def end(world: World, name: str) -> None:
    """Let a pod end. One of a gang stays: the rest of a gang that is not whole would wait for ever."""
    if name.startswith("p"):
        world.delete(name)
    else:
        world.runs(name, "Succeeded")


def test_a_hundred_kills_lose_no_pod_bind_none_twice_and_fill_no_node_beyond_its_gpus(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(20)
    for number in range(4):
        world.node(f"n{number}", gpus=4)
    made = pods = 0
    for _ in range(100 if world.fake is not None else 30):
        for _ in range(draw.randint(0, 2)):
            world.pod(f"p{made}", gpus=draw.randint(1, 2))
            made, pods = made + 1, pods + 1
        if draw.random() < 0.3:
            for number in range(2):
                size = {"adlro.io/gang-size": "2"}
                world.pod(f"g{made}-{number}", gpus=2, labels={"adlro.io/gang": f"g{made}"}, annotations=size)
            made, pods = made + 1, pods + 2
        backend = world.backend()
        with monkeypatch.context() as patch:
            kill_at(backend, patch, draw.randint(0, 3), draw.random() < 0.5)
            with suppress(KilledError):
                backend.act(first_fit(backend))
        backend.close()
        world.backends.remove(backend)
        check_room(world, 4)
        for name in [name for name in bound(world) if draw.random() < 0.5]:
            end(world, name)

    def all_bound() -> bool:
        backend = world.backend()
        backend.act(first_fit(backend))
        backend.close()
        world.backends.remove(backend)
        check_room(world, 4)
        waiting = {pod["metadata"]["name"] for pod in world.pods()} - bound(world).keys()
        for name in bound(world):
            end(world, name)
        return not waiting

    eventually(all_bound, lambda: f"{len(world.pods())} pods, {len(bound(world))} bound")
    if world.fake is not None:
        bindings: Counter[str] = Counter()
        last: dict[str, str] = {}
        for _, _, key, raw in world.fake.log:
            if key[1] == "pods":
                node, uid = raw["spec"].get("nodeName", ""), raw["metadata"]["uid"]
                bindings[uid] += node != last.get(uid, "")
                last[uid] = node
        assert len(bindings) == pods > 100
        assert set(bindings.values()) == {1}
