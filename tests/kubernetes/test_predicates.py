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


def of_claims(*claims: str) -> dict[str, Any]:
    """A pod with volumes behind claims."""
    return {
        "volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": name}} for n, name in enumerate(claims)]
    }


def of_disks(*sources: dict[str, Any]) -> dict[str, Any]:
    """A pod that names its disks itself."""
    return {"volumes": [{"name": f"v{number}", **source} for number, source in enumerate(sources)]}


def ebs(id: str) -> dict[str, Any]:
    return {"awsElasticBlockStore": {"volumeID": id}}


def pd(name: str, reads: bool = False) -> dict[str, Any]:
    return {"gcePersistentDisk": {"pdName": name, "readOnly": reads}}


def iscsi(name: str, reads: bool = False) -> dict[str, Any]:
    iqn = f"iqn.2001-04.com.example:{name}"
    return {"iscsi": {"targetPortal": "127.0.0.1", "iqn": iqn, "lun": 0, "readOnly": reads}}


def rbd(image: str, *monitors: str, reads: bool = False, pool: str = "rbd") -> dict[str, Any]:
    return {"rbd": {"monitors": list(monitors), "image": image, "pool": pool, "readOnly": reads}}


def attaches(most: int | None, *handles: str, **other: Any) -> Make:
    """The node can attach so many volumes by a driver; there are claims c0, c1, … of such volumes, and another pod."""

    def make(world: World) -> None:
        world.drivers("a", **{"disk.example.com": most})
        for number, handle in enumerate(handles):
            world.claim(f"c{number}", csi={"driver": "disk.example.com", "volumeHandle": handle})
        if other:
            world.pod("other", node="a", gpus=0, **other)

    return make


def of_plugin(*sources: dict[str, Any], **other: Any) -> Make:
    """There are claims c0, c1, … of volumes of plugins that are built in, and another pod."""

    def make(world: World) -> None:
        for number, source in enumerate(sources):
            world.claim(f"c{number}", **source)
        if other:
            world.pod("other", node="a", gpus=0, **other)

    return make


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
ONE_PD = {"more": {"attachable-volumes-gce-pd": "1"}}
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
    "volumes of a driver": Case(of_claims("c0", "c1"), there=attaches(1, "x", "y")),
    "volumes of a driver beside others": Case(of_claims("c1"), there=attaches(1, "x", "y", **of_claims("c0"))),
    "volumes of a driver that differ in their path": Case(
        of_claims("c1"), there=attaches(1, "one/x", "two/x", **of_claims("c0"))
    ),
    "disks of a plugin": Case(of_disks(pd("x"), pd("y")), ONE_PD),
    "disks of a plugin beside others": Case(of_disks(pd("x")), ONE_PD, other(gpus=0, **of_disks(pd("y")))),
    "volumes of a plugin beside others": Case(of_claims("c0"), ONE_PD, of_plugin(pd("x"), **of_disks(pd("y")))),
    "disks of a plugin without a limit": Case(of_disks(*(pd(f"x{number}") for number in range(17)))),
    "a GCE disk that is in use": Case(of_disks(pd("x")), there=other(gpus=0, **of_disks(pd("x")))),
    "a GCE disk that another only reads": Case(of_disks(pd("x")), there=other(gpus=0, **of_disks(pd("x", True)))),
    "an EBS disk that is in use": Case(of_disks(ebs("x")), there=other(gpus=0, **of_disks(ebs("x")))),
    "an iSCSI disk that is in use": Case(of_disks(iscsi("x")), there=other(
        gpus=0, **of_disks(iscsi("x"))
    )),
    "an RBD image that is in use": Case(of_disks(rbd("i", "m1", "m2")), there=other(
        gpus=0, **of_disks(rbd("i", "m2", "m3"))
    )),
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
    "as many volumes of a driver as it can attach": Case(
        of_claims("c0", "c1"), there=attaches(2, "x", "y", **of_claims("c1"))
    ),
    "volumes of a driver without a limit": Case(of_claims("c0", "c1"), there=attaches(None, "x", "y")),
    "as many disks of a plugin as it can attach": Case(
        of_claims("c0"), ONE_PD, of_plugin(pd("x"), **of_disks(pd("x", True)))
    ),
    "other disks": Case(of_disks(pd("x"), ebs("x"), iscsi("x")), there=other(
        gpus=0, **of_disks(pd("y"), ebs("y"), iscsi("y"))
    )),
    "disks that all only read": Case(of_disks(pd("x", True), iscsi("y", True), rbd("z", "m", reads=True)), there=other(
        gpus=0, **of_disks(pd("x", True), iscsi("y", True), rbd("z", "m", reads=True))
    )),
    "RBD images of other pools and monitors": Case(of_disks(rbd("i", "m1"), rbd("j", "m1")), there=other(
        gpus=0, **of_disks(rbd("i", "m2"), rbd("j", "m1", pool="other"))
    )),
    "all that is left": Case({"gpus": 1, "cpu": "32"}, there=other(gpus=3, cpu="32")),
}  # fmt: skip


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
    world.claim("c", "ReadWriteOncePod")
    world.pod("p", **of_claims("c"))
    world.pod("q", **of_claims("c"))
    backend = world.backend()
    world.seen(backend, "p", lambda job: job.managed)
    world.seen(backend, "q", lambda job: job.managed)
    assert world.order(backend, "p", ("a", 1)).done
    assert "ReadWriteOncePod" in world.order(backend, "q", ("b", 1)).said


def test_volumes_that_no_node_can_attach_are_named_as_the_nearest_miss(world: World) -> None:
    world.node("a", **ONE_PD)  # type: ignore[arg-type]
    world.pod("p", **of_disks(pd("x"), pd("y")))
    said = "1 node(s) exceed max volume count (attachable-volumes-gce-pd: 1)"
    assert said in world.seen(world.backend(), "p", lambda job: bool(job.reason)).reason


def test_a_pod_goes_to_another_node_of_the_pool_when_the_first_can_attach_no_more(world: World) -> None:
    for name in ("a", "b"):
        world.node(name)
        world.drivers(name, **{"disk.example.com": 1})
    for number in range(3):
        world.claim(f"c{number}", csi={"driver": "disk.example.com", "volumeHandle": f"x{number}"})
        world.pod(f"p{number}", **of_claims(f"c{number}"))
    backend = world.backend()
    for number in range(3):
        world.seen(backend, f"p{number}", lambda job: job.managed)
    assert [world.order(backend, f"p{number}", ("a", 1)).done for number in range(3)] == [True, True, False]
    assert (world.node_of("p0"), world.node_of("p1")) == ("a", "b")


def test_a_limit_that_changes_counts_at_once(world: World) -> None:
    world.node("a")
    world.claim("c", csi={"driver": "disk.example.com", "volumeHandle": "x"})
    backend = world.backend()
    world.pod("p", **of_claims("c"))
    world.seen(backend, "p", lambda job: job.managed)
    world.drivers("a", **{"disk.example.com": 0})
    world.seen(backend, "p", lambda job: "exceed max volume count" in job.reason)
    assert not world.order(backend, "p", ("a", 1)).done
    world.api.ask("DELETE", "/apis/storage.k8s.io/v1/csinodes/a")
    world.seen(backend, "p", lambda job: job.managed)
    assert world.order(backend, "p", ("a", 1)).done


def test_a_volume_of_a_plugin_counts_against_the_driver_that_has_taken_it_over(world: World) -> None:
    world.node("a")
    world.drivers("a", **{"ebs.csi.aws.com": 2})
    world.claim("same", csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"})
    world.pod("other", node="a", gpus=0, **of_claims("same"))
    world.claim("old", awsElasticBlockStore={"volumeID": "aws://east/vol-1"})
    world.claim("next", awsElasticBlockStore={"volumeID": "aws://east/vol-2"})
    world.claim("third", csi={"driver": "ebs.csi.aws.com", "volumeHandle": "vol-3"})
    backend = world.backend()
    for name in ("old", "next", "third"):
        world.pod(name, **of_claims(name))
        world.seen(backend, name, lambda job: job.managed)
    done = {name: world.order(backend, name, ("a", 1)).done for name in ("old", "next", "third")}
    assert done == {"old": True, "next": True, "third": False}


@pytest.mark.fake_only
def test_without_the_right_to_read_limits_a_pod_whose_volumes_are_attached_is_refused(world: World) -> None:
    world.faults.denied.add("list csinodes")
    world.node("a")
    world.claim("c", csi={"driver": "disk.example.com", "volumeHandle": "x"})
    world.claim("files", nfs={"server": "127.0.0.1", "path": "/"})
    world.pod("p", **of_claims("c"))
    world.pod("q", **of_claims("files"))
    backend = world.backend()
    assert "may not list csinodes.storage.k8s.io" in world.seen(backend, "p").reason
    assert not world.order(backend, "p", ("a", 1)).done
    assert world.order(backend, "q", ("a", 1)).done


@pytest.mark.real_only
def test_kube_scheduler_agrees_about_every_predicate(world: World, control_plane: ControlPlane) -> None:

    def judged() -> bool:
        pod = world.get("p")
        return bool(pod["spec"].get("nodeName") or pod["status"].get("conditions"))

    control_plane.start_scheduler()
    try:
        for is_refused, cases in ((True, REFUSED), (False, ACCEPTED)):
            for name, case in cases.items():
                world.clear()
                build(world, case)
                for _ in range(3):
                    world.pod("p", scheduler="default-scheduler", **case.pod)
                    eventually(judged, lambda name=name: f"kube-scheduler says nothing about {name}")  # type: ignore[misc]
                    if bool(world.node_of("p")) != is_refused:
                        break
                    world.delete("p")
                    time.sleep(0.5)  # it may have heard of the pod before it heard of the node, or of what is there
                else:
                    pytest.fail(f"kube-scheduler does not agree about {name}")
    finally:
        control_plane.kill("kube-scheduler")
