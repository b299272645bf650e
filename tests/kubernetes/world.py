"""A cluster for tests, on the fake server or on a real one: nodes, pods, and what a kubelet would write."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.fake_server import FakeServer

from adlro.backends.kubernetes.backend import Kubernetes, backend_at
from adlro.backends.kubernetes.client import MERGE, STRATEGIC, Api, ApiError
from adlro.backends.kubernetes.credentials import ClusterServer
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.ports import LiveJob, Order, Part

Raw = dict[str, Any]

A100 = "NVIDIA-A100-SXM4-80GB"
T4 = "Tesla-T4"
V100 = "Tesla-V100-SXM2-16GB"


@dataclass
class World:
    """One cluster. `fake` is the server in this process; None on a real one."""

    server: ClusterServer
    fake: FakeServer | None
    namespace: str = "default"
    backends: list[Kubernetes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = Api(self.server)

    @property
    def faults(self) -> FakeServer:
        """The fake server; only tests that need faults ask for it."""
        assert self.fake is not None
        return self.fake

    # ---- what is there ----------------------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        gpus: int = 4,
        product: str = A100,
        labels: Mapping[str, str] | None = None,
        taints: list[Raw] | None = None,
        cpu: str = "64",
        memory: str = "256Gi",
        more: Mapping[str, str] | None = None,
        resource: str = "nvidia.com/gpu",
    ) -> None:
        """Create a node that is ready."""
        room = {"cpu": cpu, "memory": memory, "pods": "110", **(more or {})}
        if gpus:
            room[resource] = str(gpus)
        found = {
            "kubernetes.io/hostname": name,
            **({"nvidia.com/gpu.product": product} if product else {}),
            **(labels or {}),
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        body = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": found},
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
        }  # fmt: skip
        self.api.ask("POST", "/api/v1/nodes", None, body)
        self.api.ask("PATCH", f"/api/v1/nodes/{name}", None, {"spec": {"taints": taints}}, MERGE)

    def change_node(self, name: str, change: Raw) -> None:
        """Change a node, by a merge patch."""
        self.api.ask("PATCH", f"/api/v1/nodes/{name}", None, change, MERGE)

    def pod(
        self,
        name: str,
        gpus: int = 1,
        cpu: str = "1",
        memory: str = "1Gi",
        scheduler: str = "adlro",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
        resource: str = "nvidia.com/gpu",
        node: str = "",
        owner: str = "",
        **spec: Any,
    ) -> Raw:
        """Create a pod; `owner` is the Job that would create it again."""
        asks = {"cpu": cpu, "memory": memory, **(more or {})}
        if gpus:
            asks[resource] = str(gpus)
        container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
        container |= spec.pop("container", {})
        body: Raw = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "spec": {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0, **spec},
        }  # fmt: skip
        if node:
            body["spec"]["nodeName"] = node
        if owner:
            body["metadata"]["ownerReferences"] = [
                {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-of-{owner}", "controller": True}
            ]
        return dict(self.api.ask("POST", f"/api/v1/namespaces/{self.namespace}/pods", None, body))

    def get(self, name: str) -> Raw:
        """A pod as the server has it."""
        return dict(self.api.get(self.path(name)))

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def delete(self, name: str) -> None:
        """Delete a pod at once."""
        self.api.ask("DELETE", self.path(name), {"gracePeriodSeconds": "0"})

    def priority(self, name: str, value: int, **more: Any) -> str:
        """Create a priority class; its name."""
        body = {"metadata": {"name": name}, "value": value, **more}
        with suppress(ApiError):  # an earlier test made it
            self.api.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
        return name

    def budget(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a disruption budget that lets no pod with these labels be evicted."""
        version = "v1" if self.fake is not None else "v1beta1"
        body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": dict(labels)}}}
        self.api.ask(
            "POST", f"/apis/policy/{version}/namespaces/{self.namespace}/poddisruptionbudgets", None,
            {"apiVersion": f"policy/{version}", "kind": "PodDisruptionBudget", **body},
        )  # fmt: skip

    def claim(self, name: str, mode: str = "ReadWriteOnce", **source: Any) -> None:
        """Create a claim and the volume that it is bound to, as the controller of volumes would."""
        size = {"storage": "1Gi"}
        volume, namespace = f"volume-of-{name}", self.namespace
        body = {"metadata": {"name": volume}, "spec": {"capacity": size, "accessModes": [mode], **source}}
        self.api.ask("POST", "/api/v1/persistentvolumes", None, body)
        folder = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        claim = self.api.ask("POST", folder, None, {
            "metadata": {"name": name, "annotations": done},
            "spec": {"volumeName": volume, "accessModes": [mode], "resources": {"requests": size}},
        })  # fmt: skip
        its = {"namespace": namespace, "name": name, "uid": claim["metadata"]["uid"]}
        self.api.ask("PATCH", f"/api/v1/persistentvolumes/{volume}", None, {"spec": {"claimRef": its}}, MERGE)
        self.api.ask("PATCH", f"{folder}/{name}/status", None, {"status": {"phase": "Bound"}}, MERGE)

    def drivers(self, node: str, **limits: int | None) -> None:
        """Say how many volumes a node can attach by each driver, as its kubelet would."""
        found = [{"name": name, "nodeID": node, "allocatable": {"count": many}} for name, many in limits.items()]
        body = {"metadata": {"name": node}, "spec": {"drivers": found}}
        self.api.ask("POST", "/apis/storage.k8s.io/v1/csinodes", None, body)

    def gpus_of(self, name: str) -> int:
        """How many GPUs a pod asks for."""
        asks = self.get(name)["spec"]["containers"][0]["resources"]["requests"]
        return int(asks.get("nvidia.com/gpu", 0))

    def node_of(self, name: str) -> str:
        """The node of a pod; "" while it waits."""
        return str(self.get(name)["spec"].get("nodeName", ""))

    def pods(self) -> list[Raw]:
        """All pods of the test."""
        return list(self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"])

    def events(self) -> list[Raw]:
        """All events of the test that a scheduler wrote about pods that wait."""
        found = self.api.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [each for each in found if each.get("reason") == "FailedScheduling"]

    def runs(self, name: str, phase: str = "Running", exit_code: int = 0) -> None:
        """Do as a kubelet would: the pod runs, or has ended."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state: Raw = {"running": {"startedAt": now}}
        if phase != "Running":
            state = {"terminated": {"exitCode": exit_code, "startedAt": now, "finishedAt": now}}
        status = {
            "phase": phase, "startTime": now,
            "containerStatuses": [
                {"name": "main", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
            ],
        }  # fmt: skip
        self.api.ask("PATCH", f"{self.path(name)}/status", None, {"status": status}, STRATEGIC)

    # ---- the back end ------------------------------------------------------------------------------------------------

    def backend(self, **options: Any) -> Kubernetes:
        """A back end on this cluster, which has read it once."""
        found = backend_at(self.server, KubernetesOptions(**options), pause_s=0.02)
        self.backends.append(found)
        found.read()
        return found

    def id(self, name: str) -> str:
        """The id of a pod or a gang as a job."""
        return f"{self.namespace}.{name}"

    def job(self, backend: Kubernetes, name: str) -> LiveJob | None:
        """A pod or a gang in a snapshot."""
        return next((job for job in backend.read().jobs if job.id == self.id(name)), None)

    def seen(self, backend: Kubernetes, name: str, holds: Callable[[LiveJob], bool] = lambda job: True) -> LiveJob:
        """A job as soon as it is in a snapshot and fits."""
        found: list[LiveJob] = []

        def look() -> bool:
            job = self.job(backend, name)
            found[:] = [job] if job is not None else []
            return job is not None and holds(job)

        eventually(look, lambda: f"{name} is {found}")
        return found[0]

    def order(self, backend: Kubernetes, name: str, *places: tuple[str, int], decision: str = "d-1") -> Any:
        """Order a start on nodes, with the model names of the latest snapshot; the answer."""
        nodes = {node.name: node for node in backend.read().cluster.nodes}
        parts = tuple(
            Part(node, nodes[node].gpus[0].model if count and node in nodes else "cpu", count) for node, count in places
        )
        return backend.act([Order(self.id(name), decision, parts)])[0]

    def close(self) -> None:
        """End everything."""
        for backend in self.backends:
            backend.close()
        self.api.close()

    def clear(self) -> None:
        """Delete what an earlier test left on a real server."""
        for kind in ("pods", "events"):
            self.api.ask("DELETE", f"/api/v1/namespaces/{self.namespace}/{kind}", {"gracePeriodSeconds": "0"})
        for each in self.api.get("/api/v1/nodes")["items"]:
            self.api.ask("DELETE", f"/api/v1/nodes/{each['metadata']['name']}")
        for folder in (f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims", "/api/v1/persistentvolumes"):
            for each in self.api.get(folder)["items"]:  # no controller is there to let them go
                free = {"metadata": {"finalizers": None}}
                self.api.ask("PATCH", f"{folder}/{each['metadata']['name']}", None, free, MERGE)
        for path in (
            f"/apis/policy/v1beta1/namespaces/{self.namespace}/poddisruptionbudgets",
            f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims",
            "/api/v1/persistentvolumes",
            "/apis/storage.k8s.io/v1/csinodes",
            f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases",
        ):
            with suppress(ApiError):  # the fake has no such list, or a server no such kind
                self.api.ask("DELETE", path)


def eventually(holds: Callable[[], bool], said: Callable[[], str] = lambda: "", seconds: float = 60.0) -> None:
    """Wait until something holds, and fail if it does not within some seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, said() or "it never came to hold"
        time.sleep(0.01)
