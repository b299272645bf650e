"""Requests to an API server: JSON over kept connections, one for each thread, and watches.

No client library: the typed ones take ten times as long to read a list, and raise on a bind that succeeded.
"""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, final
from urllib.parse import urlencode

from adlro.backends.kubernetes.credentials import ClusterServer
from adlro.core.errors import BackendError

Raw = Mapping[str, Any]

CHUNK: Final = 1 << 16
_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
MERGE: Final = "application/merge-patch+json"
OPENED: Final[Raw] = {"type": "OPENED"}
STRATEGIC: Final = "application/strategic-merge-patch+json"


class ApiError(BackendError):
    """The server answered with an error."""

    def __init__(self, status: int, said: str, retry_s: float = 0.0) -> None:
        super().__init__(said)
        self.status = status
        self.retry_s = retry_s


@final
class Api:
    """One API server. Any thread may ask; each has a connection of its own."""

    def __init__(self, door: ClusterServer, timeout_s: float = 15.0) -> None:
        self.door, self._timeout_s = door, timeout_s
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self.denied: dict[str, str] = {}
        """Rights that we lack, as "verb resource", with what the server said."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Raw:
        """An object or a list."""
        return self.ask("GET", path, query)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        kind: str = "application/json",
    ) -> Raw:
        """The answer to one request. Raises ApiError for an answer that is an error, BackendError for none."""
        payload = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        target = self._target(path, query)
        for attempt in (0, 1):
            connection, is_new = self._connection()
            try:
                connection.request(method, target, payload, self._headers(kind if payload else ""))
                response = connection.getresponse()
                text = response.read()  # whole: a connection with an unread answer cannot be used again
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                # A kept connection may have been closed meanwhile. Only then, and only if nothing can have happened
                # or happening twice does no harm (a second bind gets 409), is the request sent again.
                if is_new or attempt or isinstance(error, TimeoutError):
                    raise BackendError(f"the API server {self._where} does not answer: {_said(error)}.") from None
                continue
            return self._checked(method, path, response.status, response.headers.get("Retry-After", ""), text)
        raise AssertionError("a second attempt always ends")

    def watch(self, path: str, query: Mapping[str, str], silent_s: float) -> Iterator[Raw]:
        """OPENED, then the events of a watch until the server ends it. No word for `silent_s` seconds: BackendError."""
        connection = self._connect(silent_s)
        try:
            connection.request("GET", self._target(path, {**query, "watch": "1"}), headers=self._headers(""))
            response = connection.getresponse()
            if response.status != 200:
                self._checked("WATCH", path, response.status, "", response.read())
            yield OPENED
            rest = b""
            while chunk := response.read1(CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _parsed(line, path)
        except (OSError, http.client.HTTPException) as error:
            raise BackendError(f"the watch of {path} broke: {_said(error)}.") from None
        finally:
            self._drop(connection)

    def wake(self) -> None:
        """End the exchange on every connection: threads that read from one wake with an error."""
        with self._lock:
            mine = list(self._open)
        for connection in mine:
            if (sock := connection.sock) is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections; nobody uses them any more."""
        for connection in list(self._open):
            self._drop(connection)

    def _checked(self, method: str, path: str, status: int, retry: str, text: bytes) -> Raw:
        """The answer as JSON, or ApiError."""
        right = right_of(method, path)
        if 200 <= status < 300:
            self.denied.pop(right, None)
            return _parsed(text, path) if text else {}
        try:
            said = str(json.loads(text).get("message", ""))
        except (ValueError, AttributeError):
            said = text.decode(errors="replace").strip()[:200]
        if status == 403:
            self.denied[right] = said
            said = f"the right to {right} is missing: {said}"
        seconds = float(retry) if retry.replace(".", "", 1).isdigit() else 0.0
        raise ApiError(status, said or f"HTTP {status} for {method} {path}", seconds)

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.door.prefix}{path}" + (f"?{urlencode(query)}" if query else "")

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "adlro"}
        if kind:
            headers["Content-Type"] = kind
        if token := self.door.token():
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """The connection of this thread, and whether it is new."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None and connection in self._open:
            return connection, False
        self._mine.connection = self._connect(self._timeout_s)
        return self._mine.connection, True

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        door = self.door
        connection = (
            http.client.HTTPSConnection(door.host, door.port, timeout=timeout_s, context=door.context)
            if door.context is not None
            else http.client.HTTPConnection(door.host, door.port, timeout=timeout_s)
        )
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            raise BackendError(f"the API server {self._where} cannot be reached: {_said(error)}.") from None
        with self._lock:
            self._open.add(connection)
        return connection

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    @property
    def _where(self) -> str:
        return f"{self.door.host}:{self.door.port}"


def right_of(method: str, path: str) -> str:
    """The right that a request needs, as RBAC calls it: list pods, create pods/binding, get leases.GROUP."""
    words = path.strip("/").split("/")
    group = words[1] if words[0] == "apis" else ""
    rest = words[3:] if group else words[2:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    name = "/".join([*rest[:1], *rest[2:3]])
    verb = "list" if method == "GET" and len(rest) == 1 else _VERBS.get(method, "watch")
    return f"{verb} {name}.{group}" if group else f"{verb} {name}"


def _parsed(text: bytes, path: str) -> Raw:
    try:
        found = json.loads(text)
    except ValueError:
        raise BackendError(f"the answer to {path} is not JSON: {text[:80]!r}.") from None
    if not isinstance(found, dict):
        raise BackendError(f"the answer to {path} is not an object: {text[:80]!r}.")
    return found


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
