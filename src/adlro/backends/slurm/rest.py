"""Questions to slurmrestd, over a Unix socket or TCP."""

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, final
from urllib.parse import urlsplit

from adlro.core.errors import BackendError

TIMEOUT_S: Final = 30.0
"""Slurm itself gives up on its controller after about 9 s; a large queue takes a second to be written down."""

KNOWN_API: Final = 42
"""The newest v0.0.N that was tried; a newer slurmrestd speaks this one too."""

HANGS_S: Final = 10.0
"""A slurmrestd that let a question time out is not asked for so long; the command line is used at once instead."""

_PROBE_S: Final = 2.0
"""Then it is asked whether it answers again, and is not waited for longer than this."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        """The socket at `path`."""
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@final
class Rest:
    """A slurmrestd: at unix:/path, or at http(s)://host:port with a token. One connection, kept open."""

    def __init__(
        self, address: str, user: str = "", token: Callable[[], str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Nothing is asked yet. `token` is called at the start, and again when one has expired."""
        self.address = address
        self._user, self._token, self._timeout_s = user, token, timeout_s
        self._secret = ""
        self._connection: http.client.HTTPConnection | None = None
        self._api = 0
        self._hung_s: float | None = None  # when it last let a question time out, by the clock that never jumps

    @property
    def api(self) -> int:
        """The N of the v0.0.N that is spoken: the newest that both sides know."""
        if not self._api:
            _, answer = self._ask("GET", "/openapi/v3", None, True)
            paths = answer.get("paths") if isinstance(answer, dict) else None
            found = (re.fullmatch(r"/slurm/v0\.0\.(\d+)/jobs/?", str(path)) for path in paths or ())
            numbers = sorted(int(match[1]) for match in found if match)
            if not numbers:
                raise BackendError(f"slurmrestd at {self.address} does not offer /slurm/v0.0.N/jobs; is it slurmrestd?")
            self._api = max((number for number in numbers if number <= KNOWN_API), default=numbers[0])
        return self._api

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, again: bool = True) -> tuple[int, Any]:
        """The status and the JSON of an answer. `again`: asking twice does no harm. No answer is a BackendError."""
        return self._ask(method, f"/slurm/v0.0.{self.api}{path}", body, again)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, again: bool) -> tuple[int, Any]:
        self._check_hangs()
        if not again:
            self.close()  # a connection that the other side has closed would fail after the request was sent
        try:
            status, text = self._exchange(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not again or isinstance(error, TimeoutError | ConnectionRefusedError | FileNotFoundError):
                raise self._silent(error) from None
            try:
                status, text = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as second:
                self.close()
                raise self._silent(second) from None
        if status == http.HTTPStatus.UNAUTHORIZED and self._token:
            self._secret = ""  # it may have expired: ask for a new one, once
            try:
                status, text = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._silent(error) from None
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise BackendError(
                f"slurmrestd at {self.address} refuses access (401). Over a socket it must run as the same user; "
                "over TCP it needs a token of 'scontrol token'."
            )
        if status == http.HTTPStatus.NOT_MODIFIED:
            return status, None
        try:
            return status, json.loads(text)
        except ValueError:
            raise BackendError(
                f"slurmrestd at {self.address} answers {status} to {path}, and not in JSON: {text[:80]!r}."
            ) from None

    def _check_hangs(self) -> None:
        """Raise at once while it hangs: who waits for it at every call holds up every turn."""
        if self._hung_s is None:
            return
        for_s = time.monotonic() - self._hung_s
        if for_s < HANGS_S:
            raise BackendError(f"slurmrestd at {self.address} does not answer: a request timed out {for_s:.0f} s ago.")
        try:
            self._exchange("GET", "/openapi/v3", None, min(_PROBE_S, self._timeout_s))
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        finally:
            self.close()  # its time-out is that of the probe
        self._hung_s = None

    def _silent(self, error: Exception) -> BackendError:
        self._hung_s = time.monotonic() if isinstance(error, TimeoutError) else None
        return BackendError(f"slurmrestd at {self.address} does not answer: {_said(error)}.")

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = connection_to(self.address, timeout_s or self._timeout_s)
        headers = {"Accept": "application/json"}
        if self._token is not None:
            self._secret = self._secret or self._token()
            headers["X-SLURM-USER-TOKEN"] = self._secret
            if self._user:
                headers["X-SLURM-USER-NAME"] = self._user
        if body is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def connection_to(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to unix:/path, http://host:port or https://host:port."""
    if address.startswith(("unix:", "/")):
        return UnixConnection(address.removeprefix("unix:"), timeout_s)
    parts = urlsplit(address)
    if parts.scheme == "https" and parts.hostname:
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    if parts.scheme == "http" and parts.hostname:
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    raise BackendError(
        f"'{address}' is not an address of slurmrestd; expected unix:/path, http://host:port or https://…."
    )


def _said(error: Exception) -> str:
    """What went wrong, in few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
