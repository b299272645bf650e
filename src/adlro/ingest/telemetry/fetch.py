"""One GET, with limits: a time-out, a largest body, no redirects, and no secrets in what it says."""

import http.client
import time
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from adlro.core.errors import TelemetryError, UsageError

_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How long one request may take in all, and how large its answer may be."""

    seconds: float = 10.0
    bytes: int = 64 << 20


USUAL_LIMITS: Final = FetchLimits()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that sends us elsewhere is an answer, not an order: the address of a source is the user's to say."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
"""Without proxies: sources stand inside the cluster, and a proxy from the environment would see their secrets."""


def check_url(url: str) -> str:
    """The address as it will be used, if it is one of http or https with a host."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # it is checked when it is asked for
    except ValueError as error:
        raise UsageError(f"'{shown(url)}' is not an address: {error}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(ord(sign) <= 32 for sign in url.strip()):
        raise UsageError(
            f"'{shown(url)}' is not an address of a source; expected http://HOST:PORT or https://HOST:PORT."
        )
    return urlunsplit(parts)


def shown(url: str) -> str:
    """The address for people and logs: without user, password and query."""
    rest = url.strip().partition("?")[0].partition("#")[0]
    scheme, mark, rest = rest.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def get(url: str, accept: str, limits: FetchLimits, data: bytes | None = None) -> bytes:
    """The body of the answer to one request (a POST with `data`); whatever goes wrong is one clear line."""
    url = check_url(url)
    where, parts = shown(url), urlsplit(url)
    headers = {"Accept": accept, "User-Agent": "adlro", "Accept-Encoding": "identity"}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    deadline = time.monotonic() + limits.seconds
    try:
        request = urllib.request.Request(url, data, headers)
        with _OPENER.open(request, timeout=limits.seconds) as answer:
            return _read(answer, where, limits, deadline)
    except urllib.error.HTTPError as error:
        with error:
            raise TelemetryError(_said(error.code, where, _start_of(error))) from None
    except TimeoutError:
        raise TelemetryError(_too_slow(where, limits)) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TelemetryError(_too_slow(where, limits)) from None
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise TelemetryError(
            f"{where}: no connection: {_one_line(reason)}. Check that it runs, and the port."
        ) from None
    except (http.client.HTTPException, OSError, ValueError) as error:
        kind = type(error).__name__
        raise TelemetryError(f"{where}: the answer is incomplete or not HTTP ({kind}: {_one_line(error)}).") from None


def _read(answer: http.client.HTTPResponse, where: str, limits: FetchLimits, deadline: float) -> bytes:
    """The body, piece by piece, so that neither a long nor a slow one is taken to its end."""
    told = answer.headers.get("Content-Length", "")
    if told.isdecimal() and int(told) > limits.bytes:
        raise TelemetryError(_too_large(where, limits))
    pieces, size = [], 0
    while piece := answer.read1(_PIECE):
        size += len(piece)
        if size > limits.bytes:
            raise TelemetryError(_too_large(where, limits))
        if time.monotonic() > deadline:
            raise TelemetryError(_too_slow(where, limits))
        pieces.append(piece)
    if told.isdecimal() and size < int(told):
        raise TelemetryError(f"{where}: the answer ended after {size:,} of {int(told):,} bytes.")
    return b"".join(pieces)


def _start_of(error: urllib.error.HTTPError) -> str:
    """The first words of an answer that reports an error."""
    try:
        return _one_line(error.read(2000).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return ""


def _said(code: int, where: str, text: str) -> str:
    if 300 <= code < 400:
        return f"{where}: it redirects to another address (HTTP {code}), which is not followed. Give the final address."
    if code in (401, 403):
        return f"{where}: it wants other credentials (HTTP {code}). Write them as http://USER:PASSWORD@HOST:PORT."
    return f"{where}: it answers with an error, HTTP {code}{': ' + text if text else ''}."


def _too_slow(where: str, limits: FetchLimits) -> str:
    return f"{where}: no whole answer within {limits.seconds:g} s. Is it overloaded? --timeout gives it longer."


def _too_large(where: str, limits: FetchLimits) -> str:
    size = f"{limits.bytes / (1 << 20):g} MiB"
    return f"{where}: the answer is larger than {size}, and was refused. Is this the right address?"


def _one_line(text: object) -> str:
    """A foreign text that is safe to print: one line, not long, without control characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
    return line if len(line) <= 200 else f"{line[:199]}…"
