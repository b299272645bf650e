"""The Kubernetes rows of `adlro bench`: the daemon and the extender on a real API server of this machine.

scripts/control_plane.sh builds the server. Nodes and pods exist in it only; nobody runs a container.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from adlro.backends.kubernetes.client import MERGE, STRATEGIC, Api, ApiError
from adlro.backends.kubernetes.credentials import door_of
from adlro.backends.kubernetes.lab import ControlPlane, control_plane_up
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.errors import BackendError

PRODUCTS: Final = ("NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-16GB", "Tesla-T4", "NVIDIA-A10")
_GPUS: Final = 8
_PODS: Final = "/api/v1/namespaces/default/pods"
_CREATORS: Final = 8
_PATIENCE_S: Final = 600.0


def node_body(name: str, product: str) -> dict[str, Any]:
    """A node with eight GPUs, which is ready."""
    room = {"cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": str(_GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }  # fmt: skip


def pod_body(name: str, gpus: int, scheduler: str = "adlro", node: str = "", **annotations: str) -> dict[str, Any]:
    """A pod that asks for GPUs, and for cores and memory in proportion."""
    asks = {"cpu": str(4 * gpus), "memory": f"{16 * gpus}Gi", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    spec = {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {f"adlro.io/{key}": value for key, value in annotations.items()}},
        "spec": {**spec, **({"nodeName": node} if node else {})},
    }  # fmt: skip


def status_body(phase: str) -> dict[str, Any]:
    """What a kubelet writes when a pod runs, or has ended."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state: dict[str, Any] = {"running": {"startedAt": now}}
    if phase != "Running":
        state = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}
    container = {"name": "main", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"status": {"phase": phase, "startTime": now, "containerStatuses": [container]}}


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A cluster to measure on."""

    plane: ControlPlane
    api: Api
    pool: ThreadPoolExecutor

    def nodes(self, count: int) -> None:
        """Create nodes of four models in turn."""

        bodies = (node_body(f"n{number}", PRODUCTS[number % len(PRODUCTS)]) for number in range(count))
        list(self.pool.map(self.node, bodies))

    def node(self, body: Mapping[str, Any]) -> None:
        """Create a node. Without controllers nobody else removes the taint of a new one."""
        self.api.ask("POST", "/api/v1/nodes", None, body)
        self.api.ask("PATCH", f"/api/v1/nodes/{body['metadata']['name']}", None, {"spec": {"taints": None}}, MERGE)

    def pods(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Create pods."""
        list(self.pool.map(lambda body: self.api.ask("POST", _PODS, None, body), bodies))

    def ends(self, name: str, phase: str = "Succeeded") -> None:
        """Let a pod run, or end."""
        self.api.ask("PATCH", f"{_PODS}/{name}/status", None, status_body(phase), STRATEGIC)

    def config(self, folder: Path, more: str = "") -> Path:
        """A config of the daemon for this cluster."""
        path = folder / "adlro.toml"
        path.write_text(
            f'[backend]\nkind = "kubernetes"\n[kubernetes]\nkubeconfig = "{self.plane.kubeconfig}"\n'
            f'[store]\nurl = "sqlite:{folder}/adlro.db"\n[api]\nport = 0\n{more}'
        )
        return path


@contextmanager
def bench_cluster() -> Iterator[BenchCluster]:
    """An empty cluster until the end of the block."""
    with control_plane_up() as plane, ThreadPoolExecutor(_CREATORS) as pool:
        api = Api(door_of(KubernetesOptions(kubeconfig=str(plane.kubeconfig))), 60.0)
        try:
            yield BenchCluster(plane, api, pool)
        finally:
            api.close()


class BoundPods:
    """When each pod was bound, by a watch of its own."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._api = Api(cluster.api.door, 60.0)
        self._changed = threading.Condition()
        self.at: dict[str, float] = {}
        self.node: dict[str, str] = {}
        version = str(self._api.get(_PODS, {"limit": "1"})["metadata"]["resourceVersion"])
        self._thread = threading.Thread(target=self._follow, args=(version,), daemon=True)
        self._thread.start()

    def _follow(self, version: str) -> None:
        query = {"resourceVersion": version, "fieldSelector": "spec.nodeName!="}
        with suppress(BackendError):
            for event in self._api.watch(_PODS, query, _PATIENCE_S):
                pod = event.get("object") or {}
                if name := (pod.get("metadata") or {}).get("name"):
                    with self._changed:
                        self.node[name] = pod["spec"]["nodeName"]
                        self.at.setdefault(name, time.monotonic())
                        self._changed.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until enough is bound."""
        with self._changed:
            if not self._changed.wait_for(holds, _PATIENCE_S):
                raise BackendError(f"only {len(self.at)} pods were bound in {_PATIENCE_S:.0f} s")

    def close(self) -> None:
        """End the watch."""
        self._api.wake()
        self._thread.join(5.0)
        self._api.close()


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which this part of all lies."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * (len(ranked) - 1) + 0.5))]


# ---- the daemon: from creation to bound, and binds a second --------------------------------------------------------

NODES_OF_DAEMON: Final = 1000
PODS_WAITING: Final = 5000
_SINGLE: Final = 200
_WARM: Final = 20


@cache
def daemon_figures() -> tuple[float, float]:
    """Pods bound a second with 5,000 waiting, and the p99 from creation to bound on the idle cluster (s)."""
    with bench_cluster() as cluster, TemporaryDirectory() as folder:
        cluster.nodes(NODES_OF_DAEMON)
        command = [sys.executable, "-m", "adlro", "serve", "--config", str(cluster.config(Path(folder)))]
        with (Path(folder) / "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        bound = BoundPods(cluster)
        try:
            taken = [_alone(cluster, bound, f"single{number}") for number in range(_SINGLE + _WARM)]
            os.kill(daemon.pid, signal.SIGSTOP)  # so that all of them wait
            cluster.pods(pod_body(f"many{number}", 1) for number in range(PODS_WAITING))
            begin = time.monotonic()
            os.kill(daemon.pid, signal.SIGCONT)
            bound.wait(lambda: len(bound.at) == _SINGLE + _WARM + PODS_WAITING)
            seconds = max(bound.at.values()) - begin
        finally:
            daemon.kill()
            daemon.wait()
            bound.close()
    return PODS_WAITING / seconds, percentile(taken[_WARM:], 0.99)


def _alone(cluster: BenchCluster, bound: BoundPods, name: str) -> float:
    """Seconds from the creation of a pod until it is bound, on an idle cluster."""
    begin = time.monotonic()
    cluster.pods([pod_body(name, 1)])
    bound.wait(lambda: name in bound.at)
    time.sleep(random.uniform(0.02, 0.12))  # so that it meets the daemon at any moment
    return bound.at[name] - begin


# ---- large turns ---------------------------------------------------------------------------------------------------

NODES_OF_TURN: Final = 5000
WAITING_IN_TURN: Final = 10_000
_TURNS: Final = 100
_ENDING: Final = 20


def fill_for_turns(cluster: BenchCluster, nodes: int, waiting: int) -> None:
    """A full cluster: a pod runs on each node, and many wait."""
    cluster.nodes(nodes)
    cluster.pods(pod_body(f"run{n}", _GPUS, node=f"n{n}") for n in range(nodes))
    list(cluster.pool.map(lambda n: cluster.ends(f"run{n}", "Running"), range(nodes)))
    cluster.pods(pod_body(f"wait{n}", (1, 1, 1, 2, 4, 8)[n % 6], estimate=str(600 + n % 7200)) for n in range(waiting))


def turns_at(kubeconfig: str, turns: int, ending: int = _ENDING) -> list[tuple[float, float]]:
    """How long turns take while pods end all the time, and their CPU time (s).

    It runs in a process of its own, so that its memory can be read.
    """
    from adlro.backends.kubernetes.backend import kubernetes_backend
    from adlro.daemon.store import open_store
    from adlro.live.turn import Orchestrator

    options = KubernetesOptions(kubeconfig=kubeconfig, timeout_s=60.0)
    api, backend = Api(door_of(options)), kubernetes_backend(options)
    found: list[tuple[float, float]] = []
    with TemporaryDirectory() as folder:
        memory = open_store(f"sqlite:{folder}/adlro.db")
        orchestrator = Orchestrator(backend, memory, "adlro")
        for turn in range(turns + 3):
            begin = time.process_time()
            seconds = orchestrator.tick().seconds
            found.append((seconds, time.process_time() - begin))
            for number in range(turn * ending, (turn + 1) * ending):
                with suppress(ApiError):
                    api.ask("PATCH", f"{_PODS}/run{number}/status", None, status_body("Succeeded"), STRATEGIC)
        memory.close()
    backend.close()
    api.close()
    return found[3:]


@cache
def turn_figures() -> tuple[float, float, float]:
    """Of turns on a full cluster with many pods waiting: the p99 (s), that of their CPU time, and the memory (MB)."""
    script = (
        "import json, sys\n"
        "from adlro.bench import peak_mb\n"
        "from adlro.bench_kubernetes import turns_at\n"
        "print(json.dumps([turns_at(sys.argv[1], int(sys.argv[2])), peak_mb()]))\n"
    )
    with bench_cluster() as cluster:
        fill_for_turns(cluster, NODES_OF_TURN, WAITING_IN_TURN)
        command = [sys.executable, "-c", script, str(cluster.plane.kubeconfig), str(_TURNS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    turns, memory = json.loads(done.stdout.splitlines()[-1])
    whole, cpu = zip(*turns, strict=True)
    return percentile(whole, 0.99), percentile(cpu, 0.99), float(memory)


# ---- the extender --------------------------------------------------------------------------------------------------

_ASKED: Final = 500


def extender_figures() -> tuple[float, float]:
    """The p99 of filter and prioritise with 1,000 nodes (s): with their names, and with the nodes in the request."""
    with bench_cluster() as cluster, TemporaryDirectory() as folder:
        cluster.nodes(NODES_OF_DAEMON)
        nodes = list(cluster.api.get("/api/v1/nodes")["items"])
        config = str(cluster.config(Path(folder)))
        command = [sys.executable, "-m", "adlro", "kubernetes", "extender", "--port", "0", "--config", config]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert process.stdout is not None
            address = next(line for line in process.stdout if "http://" in line).split("http://")[1].split("/")[0]
            names = [each["metadata"]["name"] for each in nodes]
            by_name = _asked_s(address, {"Nodes": None, "NodeNames": names}, _ASKED)
            by_node = _asked_s(address, {"Nodes": {"items": nodes}, "NodeNames": None}, _ASKED // 10)
        finally:
            process.kill()
            process.wait()
    return percentile(by_name, 0.99), percentile(by_node, 0.99)


def _asked_s(address: str, nodes: Mapping[str, Any], count: int) -> list[float]:
    """How long the extender takes to answer filter and prioritise."""
    connection = http.client.HTTPConnection(address, timeout=60)
    found = []
    for number in range(count + _WARM):
        pod = pod_body(f"p{number}", 1 + number % _GPUS, "default-scheduler")
        pod["metadata"] |= {"namespace": "default", "uid": f"u{number}"}
        body = json.dumps({"Pod": pod, **nodes}, separators=(",", ":"))
        for verb in ("filter", "prioritize"):
            begin = time.perf_counter()
            connection.request("POST", f"/extender/v1/{verb}", body)
            connection.getresponse().read()
            found.append(time.perf_counter() - begin)
    connection.close()
    return found[2 * _WARM :]
