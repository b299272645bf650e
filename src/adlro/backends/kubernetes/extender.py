"""A scheduler extender: kube-scheduler keeps its queue and its rules, and asks us which nodes are fastest for a pod.

Each request is answered from the copy that the watches keep and from the request itself; nothing is remembered between
requests. The words on the wire are those of kube-scheduler's extender API v1 (capitalised, as Go writes them).
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, final

from adlro.backends.kubernetes.binding import Binder
from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.nodes import NodeFacts, Products, node_facts_of
from adlro.backends.kubernetes.pods import Pod, pod_of
from adlro.backends.kubernetes.pools import PCIE_LINK, PLAIN_NETWORK, lacking
from adlro.backends.kubernetes.reader import PodReader
from adlro.backends.kubernetes.seating import Seat
from adlro.backends.kubernetes.wants import refusal
from adlro.core.errors import AdlroError
from adlro.core.records import GpuModel, Placing, SpeedOf
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

_BEST: Final = 10
MOST_BYTES: Final = 64 * 1024 * 1024
_VERBS: Final = ("filter", "prioritize", "bind", "preempt")


@final
class Extender:
    """Answers the verbs of an extender. Any thread may ask."""

    def __init__(self, reader: PodReader, products: Products, speed: SpeedOf, binder: Binder | None = None) -> None:
        self._reader, self._products, self._speed, self._binder = reader, products, speed, binder
        self._speeds: dict[tuple[str, str, int], float] = {}
        self._models: dict[str, tuple[NodeFacts, GpuModel]] = {}  # by node, as it was

    def answer(self, verb: str, asked: Raw) -> object:
        """The answer to one request, as JSON."""
        match verb:
            case "filter":
                return self.filter(asked)
            case "prioritize":
                return self.prioritise(asked)
            case "bind":
                return self.bind(asked)
        return self.preempt(asked)

    def filter(self, asked: Raw) -> Raw:
        """The offered nodes on which the pod runs at all; the others with the reason."""
        pod, nodes = pod_of(asked["Pod"]), self._nodes(asked)
        # A node that our copy does not have yet is left to kube-scheduler, which knows better.
        never = {name: wrong for name, node in nodes.items() if node is not None and (wrong := self._never(pod, node))}
        kept = [name for name in nodes if name not in never]
        listed = asked.get("Nodes")
        return {
            "Nodes": {
                **listed,
                "items": [each for each in listed.get("items") or () if each["metadata"]["name"] in kept],
            }
            if listed is not None
            else None,
            "NodeNames": kept if listed is None else None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": never,
            "Error": "",
        }

    def prioritise(self, asked: Raw) -> list[Raw]:
        """A score for each offered node: 10 for the fastest GPU model, less in proportion to its speed."""
        pod = pod_of(asked["Pod"])
        speeds = {name: self._speed_on(pod, node) if node else 0.0 for name, node in self._nodes(asked).items()}
        fastest = max(speeds.values(), default=0.0)
        return [
            {"Host": name, "Score": round(_BEST * speed / fastest) if fastest > 0 else 0}
            for name, speed in speeds.items()
        ]

    def bind(self, asked: Raw) -> Raw:
        """Bind the pod to the node that kube-scheduler chose."""
        if self._binder is None:
            return {"Error": "this extender does not bind; remove bindVerb from its configuration"}
        name, namespace, node = str(asked["PodName"]), str(asked["PodNamespace"]), str(asked["Node"])
        pod = pod_of({"metadata": {"name": name, "namespace": namespace, "uid": asked["PodUID"]}})
        (outcome,) = self._binder.bind([Seat(pod, node, {})])
        return {"Error": "" if outcome.done else outcome.said}

    def preempt(self, asked: Raw) -> Raw:
        """The nodes on which kube-scheduler would preempt, without those on which the pod could not run."""
        pod = pod_of(asked["Pod"])
        offered: Mapping[str, Any] = asked.get("NodeNameToMetaVictims") or {
            name: {
                "Pods": [{"UID": each["metadata"]["uid"]} for each in victims.get("Pods") or ()],
                "NumPDBViolations": victims.get("NumPDBViolations", 0),
            }
            for name, victims in (asked.get("NodeNameToVictims") or {}).items()
        }
        with self._reader.lock:
            nodes = dict(self._reader.nodes)
        kept = {name: each for name, each in offered.items() if name not in nodes or not self._never(pod, nodes[name])}
        return {"NodeNameToMetaVictims": kept}

    def _nodes(self, asked: Raw) -> dict[str, NodeFacts | None]:
        """The offered nodes: from the request if it has them, else from our copy."""
        if asked.get("Nodes") is not None:
            return {each["metadata"]["name"]: node_facts_of(each) for each in asked["Nodes"].get("items") or ()}
        with self._reader.lock:
            return {name: self._reader.nodes.get(name) for name in asked.get("NodeNames") or ()}

    def _never(self, pod: Pod, node: NodeFacts) -> str:
        """Why a pod can never run on a node, whatever ends there."""
        if wrong := refusal(pod.wants, node.name, node.labels, node.taints, node.allocatable, node.most_attached):
            return wrong
        if short := lacking(pod.asks, node.allocatable):
            return f"Insufficient {short[0]}"
        if pod.gpus and self._speed_on(pod, node) <= 0:
            return f"its family does not run on {self._model_of(node).name}"
        return ""

    def _model_of(self, node: NodeFacts) -> GpuModel:
        """The model of a node's GPUs."""
        known = self._models.get(node.name)
        if known is None or known[0] is not node:
            known = self._models[node.name] = node, self._products.of(node)[0]
        return known[1]

    def _speed_on(self, pod: Pod, node: NodeFacts) -> float:
        """The predicted speed of a pod on a node; 1 everywhere without GPUs."""
        if not pod.gpus:
            return 1.0
        if node.gpu_resource != pod.gpu_resource:
            return 0.0
        model = self._model_of(node)
        family = self._reader.making.family_of(pod)
        key = (family, model.name, pod.gpus)
        if key not in self._speeds:
            self._speeds[key] = self._speed(family, Placing(model, pod.gpus, 1, PCIE_LINK, PLAIN_NETWORK)).value
        return self._speeds[key]


class _Handler(BaseHTTPRequestHandler):
    """One connection of kube-scheduler."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    answer: Callable[[str, Raw], object]

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""

    def do_GET(self) -> None:
        """Say that we are alive."""
        self._reply(200 if self.path == "/healthz" else 404, {"status": "ok"} if self.path == "/healthz" else {})

    def do_POST(self) -> None:
        """Answer one verb. An error is a status of 500: with `ignorable: true` kube-scheduler goes on without us."""
        verb = self.path.rstrip("/").rpartition("/")[2]
        length = int(self.headers.get("Content-Length") or 0)
        if verb not in _VERBS or not 0 < length <= MOST_BYTES:
            self.close_connection = True
            self._reply(404 if verb not in _VERBS else 413, {"Error": f"expected one of {', '.join(_VERBS)}"})
            return
        try:
            self._reply(200, type(self).answer(verb, json.loads(self.rfile.read(length))))
        except (AdlroError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("a request of kube-scheduler could not be answered", extra={"verb": verb, "why": repr(error)})
            self._reply(500, {"Error": f"{type(error).__name__}: {error}"})

    def _reply(self, status: int, value: object) -> None:
        text = json.dumps(value, separators=(",", ":")).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)


@final
class ExtenderServer:
    """The extender behind a port."""

    def __init__(self, answer: Callable[[str, Raw], object], host: str, port: int) -> None:
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self.address: Sequence[Any] = self._server.server_address
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End it."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
