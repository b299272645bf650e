"""An API server in this process, as far as a scheduler needs one, and with faults at will.

Objects with versions, lists with pages, watches with bookmarks, bindings, status, evictions under disruption budgets,
leases, events. The same tests run on it and on a real server, which holds it to the truth.
"""

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Raw = dict[str, Any]
Key = tuple[str, str, str, str]  # group, plural, namespace, name

CLUSTER_WIDE = {"nodes", "namespaces", "persistentvolumes", "priorityclasses", "csinodes"}
PLAIN = {
    "nodes", "namespaces", "pods", "events", "persistentvolumes", "persistentvolumeclaims", "leases", "podgroups",
    "workloads", "csinodes",
    "poddisruptionbudgets", "priorityclasses",
}  # fmt: skip
MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
KINDS = {"nodes": "Node", "pods": "Pod", "leases": "Lease", "events": "Event"}


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str, retry: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.retry = status, reason, message, retry


@dataclass
class Fault:
    """Requests that fit get an error, so many times."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int
    after: bool = False  # the request is carried out, and the answer lost or replaced
    delay_s: float = 0.0
    retry: str = ""


@dataclass
class Target:
    """What a path names."""

    group: str
    plural: str
    namespace: str
    name: str
    sub: str

    @property
    def key(self) -> Key:
        return (self.group, self.plural, self.namespace, self.name)


@dataclass
class FakeServer:
    """The objects, the log of changes, and the faults that are due."""

    objects: dict[Key, Raw] = field(default_factory=dict)
    log: list[tuple[int, str, Key, Raw]] = field(default_factory=list)
    version: int = 100
    oldest: int = 100
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)  # "verb plural" that nobody may
    served: set[str] = field(default_factory=lambda: {"scheduling.x-k8s.io"})  # groups that may have gangs
    eviction_versions: tuple[str, ...] = ("policy/v1", "policy/v1beta1")
    changed: threading.Condition = field(default_factory=threading.Condition)
    cuts: int = 0
    url: str = ""

    # ---- faults ----------------------------------------------------------------------------------------------------

    def fail(self, method: str, path: str, status: int, times: int = 1, **more: Any) -> None:
        """Answer the next requests that fit with an error; status 0 closes the connection without an answer."""
        self.faults.append(Fault(method, re.compile(path), status, times, **more))

    def cut_watches(self) -> None:
        """Break every watch that is open."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """Forget the past: a watch from an older version gets 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.log.clear()

    def due(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.method in (method, "*") and fault.path.search(path):
                fault.times -= 1
                return fault
        return None

    # ---- objects ---------------------------------------------------------------------------------------------------

    def put(self, what: str, key: Key, raw: Raw) -> Raw:
        """Write an object under the next version, and tell those who watch."""
        with self.changed:
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            if what == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = raw
            self.log.append((self.version, what, key, copy.deepcopy(raw)))
            self.changed.notify_all()
            return raw

    def serves(self, target: Target) -> bool:
        """Whether this server has such objects."""
        return target.plural not in ("podgroups", "workloads") or target.group in self.served

    def answer(self, method: str, target: Target, query: Mapping[str, str], body: Raw) -> Raw:
        """Carry out one request."""
        verb = {
            "GET": "get" if target.name else "list",
            "POST": "create",
            "PATCH": "patch",
            "PUT": "update",
            "DELETE": "delete",
        }[method]
        resource = f"{target.plural}/{target.sub}" if target.sub else target.plural
        if f"{verb} {resource}" in self.denied:
            raise RefusedError(
                403, "Forbidden", f'{resource} is forbidden: User "adlro" cannot {verb} resource "{resource}"'
            )
        if target.plural not in PLAIN or not self.serves(target):
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        with self.changed:
            if method == "POST":
                return self._create(target, query, body)
            if method == "GET" and not target.name:
                return self._list(target, query)
            found = self.objects.get(target.key)
            if found is None:
                raise RefusedError(404, "NotFound", f'{target.plural} "{target.name}" not found')
            if method == "GET":
                return found
            if method == "DELETE":
                return self._delete(target.key, found, query.get("gracePeriodSeconds"))
            return self._change(method, target, found, body)

    def _create(self, target: Target, query: Mapping[str, str], body: Raw) -> Raw:
        if target.sub == "binding":
            return self._bind(target, query, body)
        if target.sub == "eviction":
            return self._evict(target, body)
        meta = body.setdefault("metadata", {})
        if "generateName" in meta and "name" not in meta:
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if target.plural == "events" and not MICRO.fullmatch(str(body.get("eventTime", ""))):
            raise RefusedError(400, "BadRequest", "eventTime must have microseconds")
        key = (target.group, target.plural, target.namespace, meta["name"])
        if key in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{target.plural} "{meta["name"]}" already exists')
        if target.namespace:
            meta["namespace"] = target.namespace
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        if target.plural == "pods":
            named = self.objects.get(
                ("scheduling.k8s.io", "priorityclasses", "", body["spec"].get("priorityClassName"))
            )
            if named is not None:
                body["spec"]["priority"] = named["value"]
                body["spec"].setdefault("preemptionPolicy", named.get("preemptionPolicy", "PreemptLowerPriority"))
            body.setdefault("status", {}).setdefault("phase", "Pending")
            body.setdefault("spec", {}).setdefault("schedulerName", "default-scheduler")
        if target.plural == "nodes":
            body.setdefault("spec", {}).setdefault("taints", []).append(
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
            )
        return self.put("ADDED", key, body)

    def _list(self, target: Target, query: Mapping[str, str]) -> Raw:
        items = [
            raw
            for key, raw in self.objects.items()
            if key[:2] == (target.group, target.plural) and target.namespace in ("", key[2]) and fits(raw, query)
        ]
        items.sort(key=lambda raw: (raw["metadata"].get("namespace", ""), raw["metadata"]["name"]))
        begin, limit = int(query.get("continue", 0)), int(query.get("limit", 0) or len(items) or 1)
        meta = {"resourceVersion": str(self.version)}
        if begin + limit < len(items):
            meta["continue"] = str(begin + limit)
        return {"kind": "List", "metadata": meta, "items": copy.deepcopy(items[begin : begin + limit])}

    def _change(self, method: str, target: Target, found: Raw, body: Raw) -> Raw:
        if method == "PUT":
            given = (body.get("metadata") or {}).get("resourceVersion")
            if given and given != found["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict", f'"{target.name}": the object has been modified')
            changed = copy.deepcopy(body)
            changed["metadata"] = {**found["metadata"], **{k: v for k, v in body["metadata"].items() if k != "uid"}}
            if target.sub == "status":
                changed = {**copy.deepcopy(found), "status": changed.get("status", {})}
        else:
            uid = (body.get("metadata") or {}).get("uid")
            if uid and uid != found["metadata"]["uid"]:
                raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition")
            given = {"status": body.get("status", {})} if target.sub == "status" else body
            changed = merged(copy.deepcopy(found), given)
        return self.put("MODIFIED", target.key, changed)

    def _bind(self, target: Target, query: Mapping[str, str], body: Raw) -> Raw:
        key = ("", "pods", target.namespace, target.name)
        pod = self.objects.get(key)
        if pod is None:
            raise RefusedError(404, "NotFound", f'pods "{target.name}" not found')
        meta = body.get("metadata") or {}
        if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition")
        if pod["spec"].get("nodeName"):
            message = f"pod {target.name} is already assigned to node {pod['spec']['nodeName']!r}"
            raise RefusedError(
                409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{target.name}": {message}'
            )
        if query.get("dryRun") != "All":
            pod = copy.deepcopy(pod)
            pod["spec"]["nodeName"] = body["target"]["name"]
            pod["metadata"].setdefault("annotations", {}).update(meta.get("annotations") or {})
            merged(
                pod,
                {
                    "status": {
                        "conditions": [{"type": "PodScheduled", "status": "True", "reason": None, "message": None}]
                    }
                },
            )
            self.put("MODIFIED", key, pod)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _evict(self, target: Target, body: Raw) -> Raw:
        if body.get("apiVersion") not in self.eviction_versions:
            raise RefusedError(
                400, "BadRequest", f'no kind "Eviction" is registered for version "{body.get("apiVersion")}"'
            )
        key = ("", "pods", target.namespace, target.name)
        pod = self.objects.get(key)
        if pod is None:
            raise RefusedError(404, "NotFound", f'pods "{target.name}" not found')
        spent = []
        for other, budget in self.objects.items():
            labels = (budget.get("spec") or {}).get("selector", {}).get("matchLabels", {})
            mine = pod["metadata"].get("labels") or {}
            if other[1] == "poddisruptionbudgets" and other[2] == target.namespace and labels.items() <= mine.items():
                if not (budget.get("status") or {}).get("disruptionsAllowed", 0):
                    raise RefusedError(
                        429,
                        "TooManyRequests",
                        "Cannot evict pod as it would violate the pod's disruption budget.",
                        "10",
                    )
                spent.append(budget)
        if (body.get("deleteOptions") or {}).get("dryRun") != ["All"]:
            for budget in spent:
                budget["status"]["disruptionsAllowed"] -= 1
            self._delete(key, pod, None)
        return {"kind": "Status", "status": "Success", "code": 201}

    def _delete(self, key: Key, found: Raw, grace: str | None) -> Raw:
        """Delete an object; a pod on a node stays until its kubelet deletes it without grace."""
        spec = found.get("spec") or {}
        seconds = float(grace if grace is not None else spec.get("terminationGracePeriodSeconds", 0) or 0)
        if key[1] != "pods" or not spec.get("nodeName") or not seconds:
            return self.put("DELETED", key, copy.deepcopy(found))
        leaving = copy.deepcopy(found)
        leaving["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return self.put("MODIFIED", key, leaving)

    # ---- watches ---------------------------------------------------------------------------------------------------

    def events(self, target: Target, query: Mapping[str, str]) -> Iterator[Raw]:
        """The changes since a version; with a bookmark when there is nothing else to tell for a while."""
        since = int(query.get("resourceVersion") or self.version)
        cuts, until = self.cuts, time.monotonic() + float(query.get("timeoutSeconds", 60))
        seen: set[Key] = (
            {key for key, raw in self.objects.items() if fits(raw, query)} if "fieldSelector" in query else set()
        )
        if since < self.oldest:
            yield {
                "type": "ERROR",
                "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"},
            }
            return
        while time.monotonic() < until:
            with self.changed:
                if self.cuts != cuts:
                    return
                news = [each for each in self.log if each[0] > since]
                if not news:
                    self.changed.wait(0.2)
                    if self.cuts != cuts:
                        return
                    news = [each for each in self.log if each[0] > since]
                latest = self.version
            for version, what, key, raw in news:
                since = version
                if key[:2] != (target.group, target.plural) or target.namespace not in ("", key[2]):
                    continue
                if "fieldSelector" in query:
                    is_in = fits(raw, query)
                    if not is_in and key not in seen:
                        continue
                    what = what if is_in and key in seen else ("ADDED" if is_in else "DELETED")
                    (seen.add if is_in else seen.discard)(key)
                yield {"type": what, "object": raw}
            if not news and query.get("allowWatchBookmarks") == "true":
                since = max(since, latest)
                yield {"type": "BOOKMARK", "object": {"kind": "Bookmark", "metadata": {"resourceVersion": str(since)}}}


def fits(raw: Raw, query: Mapping[str, str]) -> bool:
    """Whether an object fits the field selector of a request."""
    for word in filter(None, query.get("fieldSelector", "").split(",")):
        path, is_not, value = (
            (word.partition("!=")[0], True, word.partition("!=")[2])
            if "!=" in word
            else (*word.partition("=")[:1], False, word.partition("=")[2].lstrip("="))
        )
        found: Any = raw
        for name in path.split("."):
            found = (found or {}).get(name)
        if ((found or "") == value) == is_not:
            return False
    return True


def merged(into: Raw, given: Raw) -> Raw:
    """A strategic merge: mappings merge, None deletes, conditions merge by their type, other lists are replaced."""
    for name, value in given.items():
        if value is None:
            into.pop(name, None)
        elif name == "conditions":
            by_type = {each["type"]: each for each in into.get(name) or ()}
            for each in value:
                by_type[each["type"]] = merged(by_type.get(each["type"], {}), each)
            into[name] = list(by_type.values())
        elif isinstance(value, dict):
            into[name] = merged(dict(into.get(name) or {}), value)
        else:
            into[name] = value
    return into


def target_of(path: str) -> Target:
    """What a path names."""
    words = path.strip("/").split("/")
    group = words[1] if words[0] == "apis" else ""
    rest = words[3:] if group else words[2:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return Target(group, rest[0], namespace, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else "")


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A server on a free port of this machine, until the end of the block."""
    server = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            server.requests.append((self.command, self.path))
            fault = server.due("WATCH" if "watch" in query else self.command, parts.path)
            try:
                if fault is not None and fault.delay_s:
                    time.sleep(fault.delay_s)
                if fault is not None and not fault.after and fault.status >= 0:
                    if not fault.status:
                        self.close_connection = True
                        return
                    raise RefusedError(fault.status, "Injected", f"injected {fault.status}", fault.retry)
                target = target_of(parts.path)
                if "watch" in query:
                    self.stream(target, query)
                    return
                found = server.answer(self.command, target, query, body)
                if fault is not None and fault.after:
                    if not fault.status:
                        self.close_connection = True
                        return
                    raise RefusedError(fault.status, "Injected", f"injected {fault.status}", fault.retry)
                self.reply(201 if self.command == "POST" else 200, found)
            except RefusedError as error:
                status = {
                    "kind": "Status",
                    "status": "Failure",
                    "message": error.message,
                    "reason": error.reason,
                    "code": error.status,
                }
                self.reply(error.status, status, error.retry)

        def reply(self, status: int, raw: Raw, retry: str = "") -> None:
            text = json.dumps(raw).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if retry:
                self.send_header("Retry-After", retry)
            self.end_headers()
            self.wfile.write(text)

        def stream(self, target: Target, query: Mapping[str, str]) -> None:
            if "watch " + target.plural in server.denied:
                raise RefusedError(403, "Forbidden", f'cannot watch resource "{target.plural}"')
            if not server.serves(target):
                raise RefusedError(404, "NotFound", "the server could not find the requested resource")
            self.close_connection = True
            with suppress(OSError):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                for event in server.events(target, query):
                    text = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
                    self.wfile.flush()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, address: Any) -> None:
            """A client that closes its connection is no error."""

    listener = Listener(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.cut_watches()
        listener.shutdown()
        listener.server_close()
        thread.join()
