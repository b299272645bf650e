"""What stands before the API: who asks, how often, how much, from which page. All of it before anything is parsed."""

import asyncio
import ipaddress
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, final
from urllib.parse import urlsplit

from adlro.api.errors import Refused, body_of, refused, refused_for
from adlro.api.settings import ApiSettings
from adlro.api.tokens import ROLES, Tokens, find_who
from adlro.core.accounts import NAME_RULE, is_name
from adlro.core.errors import AdlroError
from adlro.live.service import Who

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

WHO: Final = "adlro.who"
"""Where in a request's scope it stands who asks; nobody where no token is needed and none was sent."""
STILL: Final = "adlro.still"
"""And a function that says whether that token counts still."""

API: Final = "/api/"
OPEN: Final = frozenset({"/api/v1/openapi.json"})
"""What anyone may read under /api/; beside it the dashboard's files, /healthz and /readyz."""
GUARDED: Final = frozenset({"/metrics"})
_PROBES: Final = frozenset({"/healthz", "/readyz"})

MOST_HEADERS: Final = 100
LARGEST_HEADERS: Final = 16_384
MOST_BUCKETS: Final = 10_000
COSTS: Final = {
    "/api/v1/what-if": 20.0,
    "/api/v1/usage": 10.0,
    "/api/v1/past": 5.0,
    "/api/v1/history": 5.0,
    "/api/v1/decisions": 2.0,
}
"""Requests that count for several: a question played forward, or answered from the store, costs the daemon much."""

_LOCAL: Final = Who("local", "operator")

log = logging.getLogger("adlro.api")

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@final
class Buckets:
    """A bucket of tokens for each name: so many at once, filled at a rate. The names used longest ago are forgotten."""

    def __init__(self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, cost: float = 1.0) -> float:
        """Take from a bucket; 0, or the seconds to wait if there is not enough in it."""
        now = self._clock()
        level, since = self._levels.get(name, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        cost = min(cost, self._burst)
        enough = level >= cost
        self._levels[name] = (level - cost if enough else level, now)
        self._levels.move_to_end(name)
        if len(self._levels) > MOST_BUCKETS:
            self._levels.popitem(last=False)
        return 0.0 if enough else (cost - level) / self._rate


@final
class Guard:
    """An ASGI application in front of another: it lets through what may come, and answers the rest itself."""

    def __init__(
        self,
        app: App,
        settings: ApiSettings,
        tokens: Tokens,
        note: Callable[[str, str, int, float], None] = lambda method, path, status, seconds: None,
    ) -> None:
        """`note` is told of every answer when it begins: method, path, status, and seconds since the request."""
        self._app, self._note = app, note
        self._settings = settings
        self._tokens = tokens
        self._buckets = Buckets(settings.rate_per_s, settings.burst)
        self._hosts = frozenset(name.lower() for name in ("localhost", settings.host, *settings.hosts))
        more = ((b"strict-transport-security", b"max-age=31536000"),) if settings.has_tls else ()
        self._headers = [*HEADERS, *more]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun, since = False, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._note(scope["method"], scope["path"], message["status"], time.perf_counter() - since)
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        try:
            self._check_form(scope)
            who = self._admit(scope)
            scope[WHO] = who
            await self._app(scope, await self._with_body(scope, receive), answer)
        except Refused as error:
            if not begun:
                await send_refusal(error, answer)
        except AdlroError as error:
            if not begun:
                await send_refusal(refused_for(error, scope["path"]), answer)
        except Exception as error:
            number = secrets.token_hex(4)
            # The words of an error may hold what a user sent; its kind and place do not.
            log.error("the API failed", extra={"number": number, "path": scope["path"], "where": error_place(error)})
            if not begun:
                what = f"the daemon made a mistake; its log has it under {number}"
                await send_refusal(refused(500, what, scope["path"], do="Please report it."), answer)

    def _check_form(self, scope: Scope) -> None:
        """Refuse what a browser was led to send by a foreign page, and headers without end."""
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > LARGEST_HEADERS:
            raise refused(
                431, "the headers are too large", "headers", f"{MOST_HEADERS} headers, {LARGEST_HEADERS} bytes at most"
            )
        hosts = all_of(headers, b"host")
        if len(hosts) != 1:
            raise refused(400, "the request has no Host, or several", "header Host", "one name or address")
        host = name_of(hosts[0])
        if host not in self._hosts and not is_address(host):
            raise refused(
                421,
                "this server does not have that name",
                "header Host",
                "localhost, an address, or a name of the configuration",
                "An operator can add the name to `hosts`.",
            )
        origin = first_of(headers, b"origin")
        is_foreign = origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower()
        if is_foreign or first_of(headers, b"sec-fetch-site") in ("cross-site", "same-site"):
            # A link to the dashboard may be followed from anywhere; nothing else may be asked by a foreign page.
            is_visit = scope["method"] == "GET" and first_of(headers, b"sec-fetch-mode") == "navigate"
            if is_foreign or not is_visit or scope["path"].startswith(API):
                raise refused(
                    403,
                    "the request comes from a page of another site",
                    "header Origin",
                    "this server's own pages, or no browser",
                )

    def _admit(self, scope: Scope) -> Who | None:
        """Who asks. Refuses who must say so and does not, and who asks too often."""
        path: str = scope["path"]
        given = first_of(scope["headers"], b"authorization")
        who = self._who(given)
        scope[STILL] = lambda: self._who(given) is not None
        client = scope.get("client")
        name = f"token {who.name}" if who and self._settings.auth == "tokens" else f"address {client and client[0]}"
        # A probe is cheap, and must be answered however much others on its machine ask: else a watchdog trips.
        wait_s = 0.0 if path in _PROBES else self._buckets.take(name, COSTS.get(path, 1.0))
        if wait_s:
            seconds = math.ceil(wait_s)
            raise refused(
                429,
                "too many requests",
                path,
                f"{self._settings.rate_per_s:g} a second at most",
                f"Wait {seconds} s.",
                {"Retry-After": str(seconds)},
            )
        is_open = path in OPEN or not (path.startswith(API) or path in GUARDED)
        if who is None and not is_open:
            raise self._unknown(given)
        if who is not None and not is_name(who.name):  # a file of tokens from before names were checked
            raise refused(
                403,
                f"the name of this token is {who.name!r}",
                "header Authorization",
                NAME_RULE,
                "Ask an operator to remove the token (`adlro token remove`) and to make one for your login name.",
            )
        return who

    def _who(self, given: str | None) -> Who | None:
        """Whose token stands in the header Authorization."""
        if self._settings.auth == "off":
            return _LOCAL
        kind, _, token = (given or "").partition(" ")
        return find_who(self._tokens(), token.strip()) if kind.lower() == "bearer" else None

    def _unknown(self, given: str | None) -> Refused:
        """What is said to somebody without a token that counts."""
        what = "no such token" if given else "a token is needed"
        do = "Send your token; an operator makes one with `adlro token add`."
        if not self._tokens():
            do = "There are no tokens yet: `adlro token add NAME --role operator` makes one."
        return refused(
            401, what, "header Authorization", "Bearer adlro_…", do, {"WWW-Authenticate": 'Bearer realm="adlro"'}
        )

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """The same request with its body read already, if that is not too large and there in time."""
        headers = scope["headers"]
        length = first_of(headers, b"content-length")
        if length is None and first_of(headers, b"transfer-encoding") is None:
            return receive
        kind = (first_of(headers, b"content-type") or "").partition(";")[0].strip().lower()
        if length != "0" and kind != "application/json":
            # A foreign page may have a browser post text or a form, but not JSON, without asking us first.
            raise refused(415, "the body is not declared as JSON", "header Content-Type", "application/json")
        limit = self._settings.largest_body
        too_large = refused(
            413, "the body is too large", "body", f"{limit} bytes at most", headers={"Connection": "close"}
        )
        if length is not None and (not length.isascii() or not length.isdigit() or int(length[:19]) > limit):
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise refused(
                408,
                "the body did not arrive",
                "body",
                f"all of it within {self._settings.body_s:g} s",
                headers={"Connection": "close"},
            ) from None
        whole: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is not None:
                message, whole = whole, None
                return message
            return await receive()

        return replay


def may(who: Who | None, role: str) -> bool:
    """Whether somebody has this role, or one that may more."""
    return who is not None and who.role in ROLES and ROLES.index(who.role) >= ROLES.index(role)


async def send_refusal(error: Refused, send: Send) -> None:
    """Answer with an error."""
    body = body_of(error.problem)
    headers = {"content-type": "application/json", "content-length": str(len(body)), "cache-control": "no-store"}
    headers |= {name.lower(): value for name, value in error.headers.items()}
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def all_of(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """All values of a header."""
    return [value.decode("latin-1") for key, value in headers if key == name]


def first_of(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def name_of(host: str) -> str:
    """The host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def is_address(host: str) -> bool:
    """Whether a host is an address: a page that was led here by a changed name (DNS rebinding) has a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def error_place(error: BaseException) -> str:
    """The kind of an error and the last line of code that it came by."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{where}"
