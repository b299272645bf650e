"""A pod never goes to a node that kube-scheduler's defaults would refuse; on a real server, it is asked the same."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.lab import ControlPlane

Make = Callable[[World], None]
HOST = "kubernetes.io/hostname"
PORT = {"container": {"ports": [{"containerPort": 9, "hostPort": 9000}]}}


def required(kind: str, terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def apart(app: str) -> dict[str, Any]:
    return required("podAntiAffinity", [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}])


def by_label(operator: str, *values: str, key: str = "zone") -> dict[str, Any]:
    one = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return required("nodeAffinity", {"nodeSelectorTerms": [{"matchExpressions": [one]}]})


def nothing(world: World) -> None:
    """No pod stands on the node."""


def other(**pod: Any) -> Make:
    """Another pod stands on the node."""

    def make(world: World) -> None:
        world.pod("other", node="a", **pod)

    return make


@dataclass(frozen=True)
class Case:
    """One predicate: what the node is like, what stands on it, and what a pod asks for."""

    pod: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)
    there: Make = nothing
    change: dict[str, Any] = field(default_factory=dict)


TEAM = {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]}
LEAVES = {"taints": [{"key": "leaves", "effect": "NoExecute"}]}
INIT = {"name": "i", "image": "x", "resources": {"requests": {"cpu": "100"}}}
REFUSED: dict[str, Case] = {
    "NodeUnschedulable": Case(change={"spec": {"unschedulable": True}}),
    "NodeName": Case(
        required("nodeAffinity", {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
        ]})
    ),
    "a selector": Case({"nodeSelector": {"zone": "west"}}, {"labels": {"zone": "east"}}),
    "affinity In": Case(by_label("In", "west"), {"labels": {"zone": "east"}}),
    "affinity NotIn": Case(by_label("NotIn", "east"), {"labels": {"zone": "east"}}),
    "affinity Exists": Case(by_label("Exists")),
    "affinity DoesNotExist": Case(by_label("DoesNotExist"), {"labels": {"zone": "east"}}),
    "affinity Gt": Case(by_label("Gt", "5", key="rank"), {"labels": {"rank": "5"}}),
    "affinity Lt": Case(by_label("Lt", "5", key="rank"), {"labels": {"rank": "5"}}),
    "a taint NoSchedule": Case(node=TEAM),
    "a taint NoExecute": Case(node=LEAVES),
    "another value tolerated": Case({"tolerations": [{"key": "team", "value": "blue"}]}, TEAM),
    "another effect tolerated": Case(
        {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]}, TEAM
    ),
    "GPUs": Case({"gpus": 5}),
    "GPUs that are taken": Case({"gpus": 2}, there=other(gpus=3)),
    "cores": Case({"cpu": "65"}),
    "cores that are taken": Case({"cpu": "33"}, there=other(gpus=0, cpu="32")),
    "memory": Case({"memory": "257Gi"}),
    "an init container": Case({"initContainers": [INIT]}),
    "another resource": Case({"more": {"example.com/nic": "2"}}, {"more": {"example.com/nic": "1"}}),
    "another resource that is taken": Case(
        {"more": {"example.com/nic": "1"}}, {"more": {"example.com/nic": "1"}},
        other(gpus=0, more={"example.com/nic": "1"}),
    ),
    "local storage": Case({"more": {"ephemeral-storage": "2Gi"}}, {"more": {"ephemeral-storage": "1Gi"}}),
    "the number of pods": Case(node={"more": {"pods": "1"}}, there=other(gpus=0)),
    "NodePorts": Case(PORT, there=other(gpus=0, **PORT)),
    "its anti-affinity": Case(apart("x"), there=other(gpus=0, labels={"app": "x"})),
    "the anti-affinity of another": Case({"labels": {"app": "x"}}, there=other(gpus=0, **apart("x"))),
    "pod affinity": Case(
        required("podAffinity", [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "none"}}}])
    ),
    "a claim that does not exist": Case(
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]}
    ),
}  # fmt: skip
ACCEPTED: dict[str, Case] = {
    "a selector": Case({"nodeSelector": {"zone": "east"}}, {"labels": {"zone": "east"}}),
    "affinity In": Case(by_label("In", "west", "east"), {"labels": {"zone": "east"}}),
    "affinity NotIn": Case(by_label("NotIn", "west")),
    "affinity Gt": Case(by_label("Gt", "5", key="rank"), {"labels": {"rank": "6"}}),
    "a taint that is tolerated": Case({"tolerations": [{"key": "team", "operator": "Exists"}]}, TEAM),
    "any taint tolerated": Case({"tolerations": [{"operator": "Exists"}]}, LEAVES),
    "PreferNoSchedule": Case(node={"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}),
    "another address of a port": Case(
        {"container": {"ports": [{"containerPort": 9, "hostPort": 9000, "hostIP": "127.0.0.1"}]}},
        there=other(gpus=0, container={"ports": [{"containerPort": 9, "hostPort": 9000, "hostIP": "127.0.0.2"}]}),
    ),
    "anti-affinity to others": Case(apart("y"), there=other(gpus=0, labels={"app": "x"})),
    "all that is left": Case({"gpus": 1, "cpu": "32"}, there=other(gpus=3, cpu="32")),
}


def build(world: World, case: Case) -> None:
    world.node("a", **case.node)
    if case.change:
        world.change_node("a", case.change)
    case.there(world)


def goes_to_a(world: World, case: Case) -> bool:
    """Whether ADLRO binds the pod to the only node, when it is told to."""
    backend = world.backend()
    world.pod("p", **case.pod)
    job = world.seen(backend, "p")
    assert job.managed or job.reason
    answer = world.order(backend, "p", ("a", job.job.gpus))
    assert answer.done == bool(world.node_of("p"))
    assert answer.done or answer.said
    return bool(answer.done)


@pytest.mark.parametrize("name", REFUSED)
def test_a_pod_is_not_bound_to_a_node_that_does_not_meet(world: World, name: str) -> None:
    build(world, REFUSED[name])
    assert not goes_to_a(world, REFUSED[name])


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_pod_is_bound_to_a_node_that_meets(world: World, name: str) -> None:
    build(world, ACCEPTED[name])
    assert goes_to_a(world, ACCEPTED[name])


@pytest.mark.fake_only
def test_a_claim_that_one_pod_alone_may_use_is_not_given_to_a_second(world: World) -> None:
    world.node("a")
    world.node("b")
    world.api.ask("POST", "/api/v1/persistentvolumes", None, {"metadata": {"name": "vol"}, "spec": {}})
    world.api.ask("POST", f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims", None, {
        "metadata": {"name": "c"}, "spec": {"volumeName": "vol", "accessModes": ["ReadWriteOncePod"]},
    })  # fmt: skip
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    world.pod("p", volumes=volumes)
    world.pod("q", volumes=volumes)
    backend = world.backend()
    world.seen(backend, "p", lambda job: job.managed)
    world.seen(backend, "q", lambda job: job.managed)
    assert world.order(backend, "p", ("a", 1)).done
    assert "ReadWriteOncePod" in world.order(backend, "q", ("b", 1)).said


@pytest.mark.real_only
def test_kube_scheduler_agrees_about_every_predicate(world: World, control_plane: ControlPlane) -> None:
    control_plane.start_scheduler()
    try:
        for is_refused, cases in ((True, REFUSED), (False, ACCEPTED)):
            for name, case in cases.items():
                world.clear()
                build(world, case)
                world.pod("p", scheduler="default-scheduler", **case.pod)

                def judged() -> bool:
                    pod = world.get("p")
                    return bool(pod["spec"].get("nodeName") or pod["status"].get("conditions"))

                eventually(judged, lambda name=name: f"kube-scheduler says nothing about {name}")  # type: ignore[misc]
                if not is_refused and not world.node_of("p"):
                    time.sleep(0.5)  # it may have heard of the pod before it heard of the node
                    world.delete("p")
                    world.pod("p", scheduler="default-scheduler", **case.pod)
                    eventually(judged)
                assert bool(world.node_of("p")) != is_refused, name
    finally:
        control_plane.kill("kube-scheduler")
