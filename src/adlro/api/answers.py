"""How the API answers: as JSON, compressed where that helps, from prepared pictures; and who asks."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

from anyio import to_thread
from fastapi import Request
from starlette.responses import Response

from adlro.api.errors import Refused, refused
from adlro.api.events import Listeners
from adlro.api.pictures import WORTH_PACKING, Address, Body, Eyes, Picture, eyes_of, json_bytes
from adlro.api.security import WHO, App, Receive, Scope, Send, first_of, may
from adlro.api.settings import ApiSettings
from adlro.api.views import Views
from adlro.core.errors import CatalogueError
from adlro.core.ports import LiveJob
from adlro.core.toml import nearest
from adlro.live.service import Service, Who

V1: Final = "/api/v1"
JSON: Final = "application/json"

log = logging.getLogger("adlro.api")


@dataclass(frozen=True, slots=True)
class Kit:
    """What all answers are made with."""

    service: Service
    settings: ApiSettings
    views: Views
    listeners: Listeners
    questions: threading.BoundedSemaphore
    making: dict[Address, asyncio.Future[Body]]
    policies: Callable[[], Sequence[Mapping[str, Any]]]


# ---- answers ---------------------------------------------------------------------------------------------------------


async def kept(kit: Kit, request: Request, make: Callable[[Picture], object]) -> Response:
    """An answer that is made once for each state, in a thread; `Shortcut` returns it when the same is asked again."""
    address = address_of(request.scope, kit_eyes(kit, request))

    def build() -> Body:
        now = kit.views.ready() or kit.views.picture()
        return now.make(address, make, takes_packed(request.scope["headers"]))

    making = kit.making.get(address)
    if making is None:  # another request is already making it
        making = kit.making[address] = asyncio.ensure_future(to_thread.run_sync(build))
        making.add_done_callback(lambda _: kit.making.pop(address, None))
    return sent(request, await asyncio.shield(making), JSON)


def address_of(scope: Scope, eyes: Eyes) -> Address:
    """The key under which an answer is kept."""
    return scope["path"], scope["query_string"], eyes


@final
class Shortcut:
    """An ASGI application in front of another; it returns kept answers without any further work."""

    def __init__(self, app: App, views: Views, others: str) -> None:
        self._app = app
        self._views = views
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "GET" and (who := scope[WHO]) is not None:
            now = self._views.ready() if scope["path"].startswith(V1) else None
            body = now.bodies.get(address_of(scope, eyes_of(who, self._others))) if now else None
            if body is not None:
                status, headers, content = form_of(body, scope["headers"], JSON)
                lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
                lines.append((b"content-length", b"%d" % len(content)))
                await send({"type": "http.response.start", "status": status, "headers": lines})
                await send({"type": "http.response.body", "body": content})
                return
        await self._app(scope, receive, send)


def sent(request: Request, body: Body, kind: str) -> Response:
    """A body in the form that the client accepts; empty if the client has it already."""
    status, headers, content = form_of(body, request.scope["headers"], kind)
    return Response(content, status, headers)


def form_of(body: Body, asked: Sequence[tuple[bytes, bytes]], kind: str) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the content with which a body is sent to a client."""
    body.uses += 1
    headers = {"ETag": body.tag, "Cache-Control": "no-cache", "Vary": "Authorization, Accept-Encoding"}
    if first_of(asked, b"if-none-match") == body.tag:
        return 304, headers, b""
    headers["Content-Type"] = kind
    if is_worth_packing(body, asked):
        return 200, headers | {"Content-Encoding": "gzip"}, body.packed
    return 200, headers, body.plain


def is_worth_packing(body: Body, asked: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a body is large, and the client accepts compressed answers."""
    return len(body.plain) >= WORTH_PACKING and takes_packed(asked)


def takes_packed(asked: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the client accepts compressed answers."""
    return "gzip" in (first_of(asked, b"accept-encoding") or "")


def in_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is made for this request only."""
    return Response(json_bytes(value), status, {"Cache-Control": "no-store", **(headers or {})}, JSON)


async def picture(kit: Kit) -> Picture:
    """The picture of the latest state."""
    now = kit.views.ready()
    return now if now is not None else await to_thread.run_sync(kit.views.picture)


async def find_job(kit: Kit, id: str) -> LiveJob:
    """A job that is in the latest state, or that the daemon remembers."""
    now = await picture(kit)
    live = None if id in now.touched else now.jobs.get(id) or now.jobs.get(now.also.get(id, ""))
    if live is None:
        live = await to_thread.run_sync(kit.service.job, id)
    if live is None:
        raise no_job(id)
    return live


def no_job(id: str) -> Refused:
    """The error for a job that does not exist."""
    return refused(404, f"there is no job {id}", f"job {id}", "", "GET /api/v1/jobs lists them.")


def not_yours(id: str) -> Refused:
    """The error for another user's job."""
    return refused(403, f"job {id} is another's", f"job {id}", "a job of your own, or the role operator")


def policies_shown(now: Picture, policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The policies, and the one in use."""
    state = now.state
    return {
        "current": state.policy, "fallback": state.fallback, "is_guarded": state.is_guarded, "policies": policies,
    }  # fmt: skip


@cache
def catalogue() -> list[dict[str, Any]]:
    """The policies that ship, as `adlro policies --json` has them."""
    from adlro.decide.catalogue import policies  # it imports the compiler

    keys = ("name", "summary", "preemptive", "resizes", "weighs", "needs")
    return [{key: getattr(policy, key) for key in keys} for policy in policies()]


def check_policy(name: str, policies: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
    """Raise CatalogueError unless the policy is in the catalogue: a path would make the daemon run a file."""
    names = [policy["name"] for policy in policies()]
    if name not in names:
        raise CatalogueError(f"there is no policy {name!r}.{nearest(name, names)} GET {V1}/policies lists them.")


# ---- who -------------------------------------------------------------------------------------------------------------


def who_of(request: Request) -> Who:
    """Who asks."""
    who: Who = request.scope[WHO]
    return who


def kit_eyes(kit: Kit, request: Request) -> Eyes:
    """What the requester may see."""
    return eyes_of(who_of(request), kit.settings.others)


def role(needed: str) -> Callable[[Request], None]:
    """A dependency that refuses requesters without this role."""

    def check(request: Request) -> None:
        if not may(who_of(request), needed):
            raise refused(
                403, f"your role is {who_of(request).role}", request.url.path, f"the role {needed}", "Ask an operator."
            )

    return check
