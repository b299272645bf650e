"""Questions to a daemon over HTTP, and what went wrong with them in one line."""

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import typer

from adlro.core.errors import BackendError, UsageError
from adlro.core.ports import LONGEST_ID

DEFAULT_URL: Final = "http://127.0.0.1:8321"
DAEMON: Final = "The daemon (docs/api.md)"
TOKEN: Final = "ADLRO_TOKEN"
LARGEST_ANSWER: Final = 256 * 1024 * 1024
LONGEST_SAID: Final = 300
_COMMANDS: Final = {"GET /api/v1/jobs": "`adlro queue`", "GET /api/v1/policies": "`adlro policies`"}
"""What the daemon calls by address, as a user of the terminal knows it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which daemon is asked. The token is not a flag: others on the machine could read it."""

    url: Annotated[
        str,
        typer.Option(
            envvar="ADLRO_URL",
            metavar="URL",
            help="Address of the daemon. If it requires a token, set ADLRO_TOKEN in the environment.",
            rich_help_panel=DAEMON,
        ),
    ] = DEFAULT_URL
    timeout: Annotated[
        float,
        typer.Option(metavar="S", min=0.1, max=600, help="Seconds to wait for an answer.", rich_help_panel=DAEMON),
    ] = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its body as it came, and the tag under which it can be asked for again."""

    text: str
    tag: str

    @property
    def value(self) -> Any:
        """What it says."""
        return json.loads(self.text)


@final
class DaemonClient:
    """A daemon that is asked again and again over one connection."""

    def __init__(self, where: Where) -> None:
        self.url = where.url.rstrip("/")
        self._timeout_s = where.timeout
        self._place = _checked(self.url)
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, path: str, query: Mapping[str, Any] | None = None, method: str = "GET", body: Any = None, tag: str = ""
    ) -> Reply | None:
        """What it answers; None if it is still that of the tag. Raises an AdlroError that says why not in one line."""
        address = f"{self._place.path}/api/v1{path}"
        if query and (asked := {key: value for key, value in query.items() if value not in (None, "", [], ())}):
            address += "?" + urlencode(asked, doseq=True)
        headers = {"Accept": "application/json", "User-Agent": "adlro"}
        if token := os.environ.get(TOKEN):
            if not token.isascii() or not token.isprintable():
                raise UsageError(f"{TOKEN} is not a token; expected adlro_ and 43 letters and digits.")
            headers["Authorization"] = f"Bearer {token}"
        if tag:
            headers["If-None-Match"] = tag
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        status, answered, text = self._send(method, address, data, headers)
        if status == http.HTTPStatus.NOT_MODIFIED:
            return None
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise self._refusal(status, text)
        return Reply(text, answered.get("etag", ""))

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Reply:
        """What it answers to a plain question."""
        reply = self.ask(path, query)
        assert reply is not None  # no tag was sent
        return reply

    def __enter__(self) -> "DaemonClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(
        self, method: str, address: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], str]:
        """Send a request, over a new connection if the daemon has closed the old one meanwhile."""
        for attempt in ("old", "new"):
            is_new = self._connection is None
            connection = self._connection = self._connection or self._connect()
            try:
                connection.request(method, address, data, headers)
                answer = connection.getresponse()
                text = answer.read(LARGEST_ANSWER).decode("utf-8", errors="replace")
                return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
            except (http.client.HTTPException, OSError) as error:
                self.close()
                closed = isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError)
                if attempt == "new" or is_new or not closed or method == "POST":
                    raise self._silence(error) from None
        raise AssertionError

    def _connect(self) -> http.client.HTTPConnection:
        place = self._place
        assert place.hostname is not None  # checked
        if place.scheme == "https":
            return http.client.HTTPSConnection(place.hostname, place.port, timeout=self._timeout_s)
        return http.client.HTTPConnection(place.hostname, place.port, timeout=self._timeout_s)

    def _silence(self, error: Exception) -> BackendError:
        """What is said when no answer came."""
        if isinstance(error, ConnectionRefusedError):
            return BackendError(
                f"no daemon answers at {self.url}. Start one with `adlro serve` (`adlro serve --demo` runs a "
                "simulated cluster), or give its address with --url or ADLRO_URL."
            )
        if isinstance(error, TimeoutError):
            return BackendError(
                f"the daemon at {self.url} did not answer within {self._timeout_s:g} s. Try again, or raise --timeout."
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return BackendError(
                f"the certificate of {self.url} is not trusted: {error.verify_message}. If it is your "
                "own, set SSL_CERT_FILE to its file."
            )
        if isinstance(error, socket.gaierror):
            return BackendError(f"the host {self._place.hostname!r} does not exist. Check --url or ADLRO_URL.")
        return BackendError(
            f"the request to {self.url} failed: {type(error).__name__}: {printable(str(error))}. Check that an adlro "
            "daemon runs there, and whether the address needs http or https."
        )

    def _refusal(self, status: int, text: str) -> BackendError | UsageError:
        """What the daemon said, in one line."""
        try:
            problem = json.loads(text)["error"]
            said = problem["what"].rstrip(".")
            said += f"; expected {problem['expected'].rstrip('.')}" if problem["expected"] else ""
            line = ". ".join(part for part in (said, problem["do"].rstrip(".")) if part) + "."
        except (ValueError, KeyError, TypeError, AttributeError):
            return BackendError(
                f"{self.url} answered {status}, but not as an adlro daemon does. Check --url or ADLRO_URL."
            )
        for address, command in _COMMANDS.items():
            line = line.replace(address, command)
        line = printable(line)[:LONGEST_SAID]
        if status == http.HTTPStatus.UNAUTHORIZED:
            return BackendError(f"{self.url}: {line} Set it in the environment variable {TOKEN}.")
        if status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT, http.HTTPStatus.UNPROCESSABLE_ENTITY):
            return UsageError(line)
        return BackendError(f"{self.url}: {line}")


def _checked(url: str) -> SplitResult:
    """The parts of an address, if it is one."""
    place = urlsplit(url if "://" in url else "")
    try:
        is_right = place.scheme in ("http", "https") and bool(place.hostname) and (place.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or place.query or place.username:
        raise UsageError(f"--url is {url!r}; expected http://HOST:PORT or https://HOST:PORT, as in {DEFAULT_URL}.")
    return place


def in_path(id: str) -> str:
    """A job's id as part of an address, if it can be one."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", id) or len(id) > LONGEST_ID:
        raise UsageError(f"{id!r} is not a job id; `adlro queue` lists them.")
    return quote(id, safe="")


def printable(text: str) -> str:
    """The text without what could move the cursor or colour the screen: names of jobs are others' words."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
