"""The REST API of the daemon (docs/api.md). `make_app` builds it around a Service, `make_server` puts it on a port.

What is asked often is answered from bytes that are made once a tick; whatever may wait (the store, the back end, a
question played forward) is asked in a thread.
"""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, cast, final

import uvicorn
from anyio import to_thread
from fastapi import Body as FromBody
from fastapi import Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match

from adlro import __version__
from adlro.api.door import Door, listening
from adlro.api.errors import Refused, body_of, refused, refused_for, refused_for_input
from adlro.api.events import Listeners
from adlro.api.metrics import Requests
from adlro.api.models import (
    AlarmsOut,
    ClusterOut,
    DecisionsAsked,
    DecisionsOut,
    DriftsOut,
    ErrorOut,
    EventNumber,
    EventsAsked,
    HealthOut,
    IdOut,
    JobId,
    JobOut,
    JobsAsked,
    JobsOut,
    LatestAsked,
    MeOut,
    NothingAsked,
    PoliciesOut,
    PolicyIn,
    ReadyOut,
    StateAsked,
    StateOut,
    SubmissionIn,
    WhatIfIn,
    one_of_them,
    question_of,
    submission_of,
)
from adlro.api.security import STILL, WHO, App, Guard, Receive, Scope, Send, first_of, may
from adlro.api.settings import ApiSettings
from adlro.api.tokens import TokenFile, Tokens
from adlro.api.views import (
    WORTH_PACKING,
    Address,
    Body,
    Eyes,
    Filter,
    Picture,
    Views,
    alarms_shown,
    cluster_shown,
    decision_shown,
    event_shown,
    eyes_of,
    job_shown,
    jobs_shown,
    json_bytes,
    state_shown,
    why_here,
    why_shown,
)
from adlro.core.errors import AccountError, AdlroError, CatalogueError
from adlro.core.ports import ENDED, LiveJob
from adlro.core.toml import nearest
from adlro.live.service import Event, Foreseen, Service, Who, Why, reason_for_all
from adlro.process.collector import COLLECT_EVERY_S, unhurried_collector

__all__ = ["ApiServer", "ApiSettings", "make_app", "make_server"]

V1: Final = "/api/v1"
JSON: Final = "application/json"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": JSON,
}
"""Files of the dashboard that are served."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of /metrics. It is written here because this process does not import Prometheus' client."""

API_SWITCH_S: Final = 0.0001
"""How long a busy thread of the API's process may keep the interpreter while another waits; Python grants 5 ms."""

MOST_QUESTIONS: Final = 2
"""Questions that are played forward at a time."""
QUESTION_WAIT_S: Final = 2.0

Documented = dict[int | str, dict[str, Any]]
"""Answers by status, for the document."""

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


def make_app(
    service: Service,
    settings: ApiSettings,
    metrics: Callable[[], bytes | str] | None = None,
    dashboard: FilePath | None = None,
    tokens: Tokens | None = None,
    policies: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
) -> FastAPI:
    """The API around a service. `tokens` says which count, in place of the file of the settings.

    `policies` lists the catalogue where importing it, and the compiler with it, would take too long.
    """
    from adlro.api.pages import add_pages, add_past  # they use what is here

    counted = tokens or tokens_of(settings)
    kit = Kit(
        service,
        settings,
        Views(service.state),
        Listeners(service.events, settings.heartbeat_s, settings.stream_s),
        threading.BoundedSemaphore(MOST_QUESTIONS),
        {},
        policies or catalogue,
    )
    app = FastAPI(
        title="ADLRO",
        version=__version__,
        summary="A scheduler for clusters whose GPUs differ: its cluster, its jobs, its decisions and their reasons.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.listeners = kit.listeners
    app.state.has_tokens = lambda: bool(counted())
    add_reading(app, kit)
    add_past(app, kit)
    add_doing(app, kit)
    add_events(app, kit)
    requests = Requests()
    add_probes(app, kit, metrics, requests)
    app.add_route(f"{V1}/openapi.json", document_of(app), include_in_schema=False)
    add_pages(app, pages_in(dashboard))
    requests.use_routes(app.routes)
    app.add_exception_handler(Refused, cast(Any, on_refused))
    app.add_exception_handler(AdlroError, cast(Any, on_adlro_error))
    app.add_exception_handler(RequestValidationError, cast(Any, on_bad_input))
    app.add_exception_handler(HTTPException, cast(Any, on_http))
    app.add_middleware(cast(Any, Shortcut), views=kit.views, others=settings.others)
    app.add_middleware(cast(Any, Guard), settings=settings, tokens=counted, note=requests.note)
    return app


def tokens_of(settings: ApiSettings) -> Tokens:
    """The tokens of the file of the settings; none if there is no file."""
    return TokenFile(settings.token_file) if settings.token_file is not None else lambda: ()


# ---- reading ---------------------------------------------------------------------------------------------------------


def add_reading(app: FastAPI, kit: Kit) -> None:
    """What a viewer may ask."""

    @app.get(f"{V1}/state", response_model=StateOut, responses=errors(422, 503) | UNCHANGED, tags=["cluster"])
    async def get_state(request: Request, asked: Annotated[StateAsked, Query()]) -> Response:
        """All that a screen shows, in one answer."""
        eyes = kit_eyes(kit, request)
        return await kept(kit, request, lambda now: state_shown(now, eyes, asked.waiting, asked.ended))

    @app.get(f"{V1}/cluster", response_model=ClusterOut, responses=errors(422, 503) | UNCHANGED, tags=["cluster"])
    async def get_cluster(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Nodes and GPUs, who runs on each, and their telemetry."""
        eyes = kit_eyes(kit, request)
        return await kept(kit, request, lambda now: cluster_shown(now, eyes))

    @app.get(f"{V1}/jobs", response_model=JobsOut, responses=errors(422, 503) | UNCHANGED, tags=["jobs"])
    async def list_jobs(request: Request, asked: Annotated[JobsAsked, Query()]) -> Response:
        """Jobs, page by page: those that hold GPUs, those that wait by predicted start, those that ended; or sorted."""
        eyes = kit_eyes(kit, request)
        wanted = Filter(
            tuple(sorted(set(asked.state))), asked.user, asked.model, asked.partition, asked.node,
            asked.search.strip().casefold(), asked.sort, asked.order == "desc",
        )  # fmt: skip
        return await kept(kit, request, lambda now: jobs_shown(now, eyes, wanted, asked.offset, asked.limit))

    @app.get(f"{V1}/jobs/{{id}}", response_model=JobOut, responses=errors(404, 422, 503) | UNCHANGED, tags=["jobs"])
    async def get_job(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """One job, also one that has ended."""
        live = await find_job(kit, id)
        return sent(request, Body(json_bytes(job_shown(live, kit_eyes(kit, request)))), JSON)

    @app.get(
        f"{V1}/jobs/{{id}}/why",
        response_model=Why,
        responses=errors(403, 404, 422, 503) | UNCHANGED,
        tags=["jobs"],
    )
    async def get_why(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """Why a job waits, with the predicted start; or why it runs where it does."""
        eyes = kit_eyes(kit, request)
        live = await find_job(kit, id)
        if not eyes.sees(live):
            raise not_yours(id)
        now = await picture(kit)
        if (here := why_here(now, id)) is not None:
            address = address_of(request.scope, eyes)
            return sent(request, now.make(address, lambda _: why_shown(here, live, eyes), packs=False), JSON)

        def answer(now: Picture) -> Why:
            why = kit.service.why(id)
            if why is None:
                raise no_job(id)
            return why_shown(why, live, eyes)

        return await kept(kit, request, answer)

    @app.get(f"{V1}/decisions", response_model=DecisionsOut, responses=errors(422, 503) | UNCHANGED, tags=["decisions"])
    async def list_decisions(request: Request, asked: Annotated[DecisionsAsked, Query()]) -> Response:
        """Choices with their reasons, the alternatives and the past jobs that each is like; the latest first."""
        eyes = kit_eyes(kit, request)

        def answer(now: Picture) -> dict[str, Any]:
            found = kit.service.decisions(asked.job, asked.before, asked.limit)
            following = found[-1].id if len(found) == asked.limit else None
            jobs = (None if eyes.all else now.jobs.get(one.job) or kit.service.job(one.job) for one in found)
            shown = [decision_shown(one, live, eyes) for one, live in zip(found, jobs, strict=True)]
            return {"decisions": shown, "next": following}

        return await kept(kit, request, answer)

    @app.get(f"{V1}/policies", response_model=PoliciesOut, responses=errors(422, 503) | UNCHANGED, tags=["policies"])
    async def list_policies(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """The policies by name, the one in use, and the fallback."""
        return await kept(kit, request, lambda now: policies_shown(now, kit.policies()))

    @app.get(f"{V1}/alarms", response_model=AlarmsOut, responses=errors(422, 503) | UNCHANGED, tags=["cluster"])
    async def list_alarms(request: Request, asked: Annotated[LatestAsked, Query()]) -> Response:
        """What an operator should know, the latest last."""
        eyes = kit_eyes(kit, request)
        return await kept(
            kit,
            request,
            lambda now: {"alarms": alarms_shown(now.state.alarms, now.jobs, eyes)[-asked.limit :]},
        )

    @app.get(f"{V1}/drifts", response_model=DriftsOut, responses=errors(422, 503) | UNCHANGED, tags=["cluster"])
    async def list_drifts(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Speeds that are not what they were thought to be."""
        return await kept(kit, request, lambda now: {"drifts": now.state.drifts})

    @app.get(f"{V1}/me", response_model=MeOut, responses=errors(422), tags=["cluster"])
    async def get_me(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Who you are to the daemon, and whose jobs you see whole."""
        who = who_of(request)
        eyes = kit_eyes(kit, request)
        sees = "all" if eyes.all else "own" if eyes.name else "none"
        return in_json({"name": who.name, "role": who.role, "sees": sees})


# ---- doing -----------------------------------------------------------------------------------------------------------


def add_doing(app: FastAPI, kit: Kit) -> None:
    """What a user or an operator may do. Each is written to the log: who, what, which job."""

    @app.post(
        f"{V1}/jobs",
        response_model=IdOut,
        status_code=201,
        responses=errors(400, 403, 409, 413, 415, 422, 503),
        dependencies=[Depends(role("user"))],
        tags=["jobs"],
    )
    async def submit_job(
        request: Request, asked: Annotated[NothingAsked, Query()], given: Annotated[SubmissionIn, FromBody()]
    ) -> Response:
        """Hand a job in. It belongs to the token's name; an operator may name another."""
        who = who_of(request)
        now = await picture(kit)
        user = owner(given, who)
        check_priority(given, who)
        await to_thread.run_sync(check_user, kit.settings, user)
        submission = submission_of(fitting(given), user, now.state.snapshot.time_s)
        id = await to_thread.run_sync(kit.service.submit, submission)
        now.touch(id)
        log.info("job submitted", extra={"by": who.name, "user": user, "job": id})
        return in_json({"id": id}, 201, {"Location": f"{V1}/jobs/{id}"})

    @app.delete(
        f"{V1}/jobs/{{id}}",
        response_model=IdOut,
        responses=errors(403, 404, 409, 422, 503),
        dependencies=[Depends(role("user"))],
        tags=["jobs"],
    )
    async def cancel_job(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """End a job of one's own, whether it waits or runs; an operator, any."""
        who = who_of(request)
        live = await to_thread.run_sync(kit.service.job, id)  # the newest there is: it may have ended just now
        if live is None:
            raise no_job(id)
        if who.role != "operator" and live.job.user != who.name:
            raise not_yours(id)
        if live.state in ENDED:
            raise refused(409, f"job {id} has ended already: {live.state}", f"job {id}", "a job that waits or runs")
        await to_thread.run_sync(kit.service.cancel, id)
        (await picture(kit)).touch(id)
        log.info("job cancelled", extra={"by": who.name, "job": id})
        return in_json({"id": id})

    @app.post(
        f"{V1}/what-if",
        response_model=Foreseen,
        responses=errors(400, 403, 409, 413, 415, 422, 503),
        dependencies=[Depends(role("user"))],
        tags=["what if"],
    )
    async def ask_what_if(
        request: Request, asked: Annotated[NothingAsked, Query()], given: Annotated[WhatIfIn, FromBody()]
    ) -> Response:
        """What would come of more jobs, of other nodes or of another policy, played forward from now."""
        who = who_of(request)
        now = (await picture(kit)).state.snapshot.time_s
        jobs = tuple(submission_of(fitting(one), owner(one, who), now) for one in given.jobs)
        if given.policy:
            await to_thread.run_sync(check_policy, given.policy, kit.policies)
        question = question_of(given, jobs)

        def answer() -> Foreseen:
            if not kit.questions.acquire(timeout=QUESTION_WAIT_S):
                raise refused(503, "others are asking", "", "", "Ask again in a few seconds.", {"Retry-After": "2"})
            try:
                return kit.service.what_if(question)
            finally:
                kit.questions.release()

        return in_json(await to_thread.run_sync(answer))

    @app.put(
        f"{V1}/policies/current",
        response_model=PoliciesOut,
        responses=errors(400, 403, 409, 413, 415, 422, 503),
        dependencies=[Depends(role("operator"))],
        tags=["policies"],
    )
    async def use_policy(
        request: Request, asked: Annotated[NothingAsked, Query()], given: Annotated[PolicyIn, FromBody()]
    ) -> Response:
        """Decide with a policy of the catalogue from the next tick on."""
        await to_thread.run_sync(check_policy, given.name, kit.policies)
        await to_thread.run_sync(kit.service.use_policy, given.name)
        now = await picture(kit)
        log.info("policy set", extra={"by": who_of(request).name, "policy": given.name})
        return in_json(policies_shown(now, kit.policies()) | {"current": given.name})


def owner(given: SubmissionIn, who: Who) -> str:
    """Whose the job will be."""
    if given.job.user and given.job.user != who.name and who.role != "operator":
        raise refused(403, "a job for another user", "body.job.user", f"{who.name!r}, or nothing")
    return given.job.user or who.name


def check_priority(given: SubmissionIn, who: Who) -> None:
    """Refuse a priority that a user chooses: everybody would choose the highest."""
    usual: float = type(given.job).model_fields["priority"].default
    if given.job.priority != usual and who.role != "operator":
        raise refused(
            403, f"a priority of {given.job.priority:g} from the role {who.role}", "body.job.priority",
            f"{usual:g}, or nothing", "Leave it out, or ask an operator to submit the job.",
        )  # fmt: skip


def check_user(settings: ApiSettings, user: str) -> None:
    """Refuse a user whose jobs are not taken. The back end looks again: what it finds is what the job runs as."""
    try:
        settings.owners.account(user)
    except AccountError as error:
        raise refused_for(error, "body.job.user") from None


def fitting(given: SubmissionIn) -> SubmissionIn:
    """The same, if what it says fits together."""
    if given.job.share < 1000 and given.job.gpus != 1:
        raise refused(409, f"a share of a GPU for a job of {given.job.gpus} GPUs", "body.job.share", "1000, or one GPU")
    return given


# ---- events, probes, pages ----------------------------------------------------------------------------------------


def add_events(app: FastAPI, kit: Kit) -> None:
    """What happens, as it happens."""
    streamed: Documented = {200: {"description": "Events as they happen.", "content": {"text/event-stream": EVENT}}}

    @app.get(f"{V1}/events", response_class=StreamingResponse, responses=errors(422, 503) | streamed, tags=["events"])
    async def listen(
        request: Request,
        asked: Annotated[EventsAsked, Query()],
        last_event_id: Annotated[EventNumber | None, Header(json_schema_extra=one_of_them)] = None,
    ) -> Response:
        """Events with a number, from the next one on or from the one after `Last-Event-ID` (or `after`)."""
        if kit.listeners.count >= kit.settings.most_streams:
            raise refused(
                503, "too many listen", V1 + "/events", f"{kit.settings.most_streams} at most", "Come back later.",
                {"Retry-After": "30"},
            )  # fmt: skip
        eyes = kit_eyes(kit, request)
        after = last_event_id if last_event_id is not None else asked.after

        async def shown(event: Event) -> Event:
            return event if eyes.all else event_shown(event, (await picture(kit)).jobs, eyes)

        stream = kit.listeners.stream(after, shown, request.scope[STILL])
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )


def add_probes(app: FastAPI, kit: Kit, metrics: Callable[[], bytes | str] | None, requests: Requests) -> None:
    """What watches the daemon."""

    @app.get("/healthz", response_model=HealthOut, responses=errors(), tags=["probes"])
    async def get_health() -> Response:
        """Whether the process answers."""
        return Response(b'{"ok":true}', media_type=JSON)

    @app.get(
        "/readyz",
        response_model=ReadyOut,
        responses=errors() | {503: {"model": ReadyOut, "description": "It is not ready."}},
        tags=["probes"],
    )
    async def get_ready(request: Request) -> Response:
        """Whether the latest tick is recent and whole."""
        ready, why = kit.service.is_ready()
        told = why if request.scope[WHO] else "" if ready else reason_for_all(why)
        return in_json({"ready": ready, "why": told}, 200 if ready else 503)

    described: Documented = {
        200: {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get("/metrics", response_class=Response, responses=errors(404) | described, tags=["probes"])
    async def get_metrics() -> Response:
        """The figures of the daemon, of the cluster and of this API."""
        if metrics is None:
            raise refused(404, "this daemon has no metrics", "/metrics")
        page = await to_thread.run_sync(metrics)
        page = page.encode() if isinstance(page, str) else page
        return Response(page + requests.page().encode(), media_type=PROMETHEUS)


def pages_in(folder: FilePath | None) -> dict[str, tuple[bytes, str]]:
    """The files of the dashboard by address, read once: no address can lead to another file."""
    if folder is None:
        return {}
    pages = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and (kind := KINDS.get(file.suffix)):
            path = f"/{file.relative_to(folder).as_posix()}"
            pages["/" if path == "/index.html" else path] = (file.read_bytes(), kind)
    return pages


def page(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """An answer with a file."""
    made = Body(body)

    async def answer(request: Request) -> Response:
        return sent(request, made, kind)

    return answer


# ---- answers ---------------------------------------------------------------------------------------------------------


async def kept(kit: Kit, request: Request, make: Callable[[Picture], object]) -> Response:
    """An answer that is made once for each state, in a thread; `Shortcut` gives it to whoever asks the same again."""
    address = address_of(request.scope, kit_eyes(kit, request))

    def build() -> Body:
        now = kit.views.ready() or kit.views.picture()
        return now.make(address, make, takes_packed(request.scope["headers"]))

    making = kit.making.get(address)
    if making is None:  # else another is having the same made
        making = kit.making[address] = asyncio.ensure_future(to_thread.run_sync(build))
        making.add_done_callback(lambda _: kit.making.pop(address, None))
    return sent(request, await asyncio.shield(making), JSON)


def address_of(scope: Scope, eyes: Eyes) -> Address:
    """Under what an answer is kept."""
    return scope["path"], scope["query_string"], eyes


@final
class Shortcut:
    """An ASGI application in front of another that gives answers which are kept, without a further look."""

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
    """A body in the form that the reader takes; nothing if it has it already."""
    status, headers, content = form_of(body, request.scope["headers"], kind)
    return Response(content, status, headers)


def form_of(body: Body, asked: Sequence[tuple[bytes, bytes]], kind: str) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the content with which a body goes out to a reader."""
    body.uses += 1
    headers = {"ETag": body.tag, "Cache-Control": "no-cache", "Vary": "Authorization, Accept-Encoding"}
    if first_of(asked, b"if-none-match") == body.tag:
        return 304, headers, b""
    headers["Content-Type"] = kind
    if is_worth_packing(body, asked):
        return 200, headers | {"Content-Encoding": "gzip"}, body.packed
    return 200, headers, body.plain


def is_worth_packing(body: Body, asked: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a body is large, and the reader takes compressed ones."""
    return len(body.plain) >= WORTH_PACKING and takes_packed(asked)


def takes_packed(asked: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the reader takes compressed answers."""
    return "gzip" in (first_of(asked, b"accept-encoding") or "")


def in_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is made for this request."""
    return Response(json_bytes(value), status, {"Cache-Control": "no-store", **(headers or {})}, JSON)


async def picture(kit: Kit) -> Picture:
    """The picture of the latest state."""
    now = kit.views.ready()
    return now if now is not None else await to_thread.run_sync(kit.views.picture)


async def find_job(kit: Kit, id: str) -> LiveJob:
    """A job that is in the latest state, or that the daemon remembers."""
    now = await picture(kit)
    live = None if id in now.touched else now.jobs.get(id)
    if live is None:
        live = await to_thread.run_sync(kit.service.job, id)
    if live is None:
        raise no_job(id)
    return live


def no_job(id: str) -> Refused:
    """What is said of a job that is not there."""
    return refused(404, f"there is no job {id}", f"job {id}", "", "GET /api/v1/jobs lists them.")


def not_yours(id: str) -> Refused:
    """What is said of another's job."""
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

    keys = ("name", "summary", "preemptive", "needs")
    return [{key: getattr(policy, key) for key in keys} for policy in policies()]


def check_policy(name: str, policies: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
    """Raise CatalogueError unless it is in the catalogue: a path would have the daemon run a file."""
    names = [policy["name"] for policy in policies()]
    if name not in names:
        raise CatalogueError(f"there is no policy {name!r}.{nearest(name, names)} GET {V1}/policies lists them.")


# ---- who -------------------------------------------------------------------------------------------------------------


def who_of(request: Request) -> Who:
    """Who asks."""
    who: Who = request.scope[WHO]
    return who


def kit_eyes(kit: Kit, request: Request) -> Eyes:
    """What the one who asks may see."""
    return eyes_of(who_of(request), kit.settings.others)


def role(needed: str) -> Callable[[Request], None]:
    """A dependency that refuses who has not this role."""

    def check(request: Request) -> None:
        if not may(who_of(request), needed):
            raise refused(
                403, f"your role is {who_of(request).role}", request.url.path, f"the role {needed}", "Ask an operator."
            )

    return check


# ---- errors, and the document ----------------------------------------------------------------------------------------


async def on_refused(request: Request, error: Refused) -> Response:
    """An error that we raised."""
    return Response(body_of(error.problem), error.status, {"Cache-Control": "no-store", **error.headers}, JSON)


async def on_adlro_error(request: Request, error: AdlroError) -> Response:
    """An error of the daemon, of the user or of the cluster."""
    return await on_refused(request, refused_for(error, request.url.path))


async def on_bad_input(request: Request, error: RequestValidationError) -> Response:
    """An input that is not as the document says."""
    return await on_refused(request, refused_for_input(list(error.errors())))


async def on_http(request: Request, error: HTTPException) -> Response:
    """An error that the framework found."""
    headers = dict(error.headers or {})
    if error.status_code == 405:
        routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        headers["Allow"] = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
    words = {
        404: ("there is nothing here", "an address of docs/api.md"),
        405: (f"{request.method} is not for this address", headers.get("Allow", "")),
        400: ("the body cannot be read", "JSON in UTF-8"),
    }
    what, expected = words.get(error.status_code, (str(error.detail), ""))
    return await on_refused(request, refused(error.status_code, what, request.url.path, expected, headers=headers))


REASONS: Final = {
    400: "The request cannot be read.",
    401: "A token is needed, or this one does not count.",
    403: "The role does not allow it, or the job is another's.",
    404: "There is no such thing.",
    405: "Not for this address.",
    408: "The body did not come in time.",
    409: "It is right in form, but not as things are: the job has ended, or the cluster has no such thing.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    421: "The server does not go by the name in `Host`.",
    422: "The input is not as this document says.",
    429: "Too many requests; `Retry-After` says when to come back.",
    431: "The headers are too large.",
    500: "A mistake of the daemon; its log has more under the number that is told.",
    503: "The cluster or the daemon's store does not answer now.",
}
EXAMPLES: Final = {
    401: ("a token is needed", "header Authorization", "Bearer adlro_…", "Send your token; an operator makes one."),
    403: ("your role is viewer", "/api/v1/jobs", "the role user", "Ask an operator."),
    404: ("there is no job 17", "job 17", "", "GET /api/v1/jobs lists them."),
    409: ("job 17 has ended already: finished", "job 17", "a job that waits or runs", ""),
    413: ("the body is too large", "body", "262144 bytes at most", ""),
    422: ("gpus is 'two'", "body.job.gpus", "a valid integer", "Put it right, and send it again."),
    429: ("too many requests", "/api/v1/jobs", "100 a second at most", "Wait 1 s."),
}
ALWAYS: Final = (400, 408, 413, 421, 429, 431, 500)
"""What may be said to any request."""

EVENT: Final = {
    "schema": {
        "type": "object",
        "description": "The fields of one event of the stream; `data` is the record, as JSON.",
        "required": ["id", "event", "data"],
        "properties": {
            "id": {"type": "string"},
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": JSON},
        },
    },
    "example": 'id: 27\nevent: tick\ndata: {"number":27,"time_s":1800000240.0,"kind":"tick","data":{"tick":4}}\n\n',
}

UNCHANGED: Final[Documented] = {304: {"description": "It is as the answer with the tag of `If-None-Match` was."}}


def errors(*codes: int) -> Documented:
    """The errors of an address, for the document."""
    described: Documented = {}
    for code in sorted({*ALWAYS, *codes}):
        described[code] = {"model": ErrorOut, "description": REASONS[code]}
        if code in EXAMPLES:
            example = dict(zip(("what", "where", "expected", "do"), EXAMPLES[code], strict=True))
            described[code]["content"] = {JSON: {"example": {"error": example}}}
    return described


def document_of(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    """An answer with the document, which is written when it is first asked for."""
    written: list[Body] = []

    async def answer(request: Request) -> Response:
        if not written:
            written.append(Body(json_bytes(await to_thread.run_sync(describe, app))))
        return sent(request, written[0], JSON)

    return answer


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with who may ask."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description="Times are seconds, moments seconds since 1970 by the cluster's clock; null is not known.",
        routes=app.routes,
    )
    document.setdefault("components", {})["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `adlro token add`, with a role: viewer, user or operator.",
        }
    }
    unauthorised = {
        "description": REASONS[401],
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/ErrorOut"},
                "example": {"error": dict(zip(("what", "where", "expected", "do"), EXAMPLES[401], strict=True))},
            }
        },
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in ("/healthz", "/readyz"):
                operation["security"] = []
                continue
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = unauthorised
    return document


# ---- the server ------------------------------------------------------------------------------------------------------


@final
class ApiServer(uvicorn.Server):
    """A server with a door of its own, that ends its streams when it is told to end. Signals are the daemon's."""

    def __init__(self, config: uvicorn.Config, settings: ApiSettings) -> None:
        super().__init__(config)
        self._settings = settings

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to end."""
        with unhurried_collector() as collect, quick_switches():
            collecting = asyncio.create_task(collect_now_and_then(collect))
            try:
                await super().serve(sockets)
            finally:
                collecting.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, as the door allows."""
        door = Door(
            sockets or [listening(self.config.host, self.config.port)], self.config, self.server_state, self._settings
        )
        door.open()
        self.servers = cast(Any, [door])
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs us."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: streams first, for they would not."""
        listeners: Listeners = cast(Any, self.config.app).state.listeners
        listeners.close()
        await super().shutdown(sockets)


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let the thread of the API have its turn soon while another is busy."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, API_SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def collect_now_and_then(collect: Callable[[], None]) -> None:
    """Look for rings of objects that nobody holds any more."""
    while True:
        await asyncio.sleep(COLLECT_EVERY_S)
        collect()


def make_server(app: FastAPI, settings: ApiSettings) -> ApiServer:
    """The API on its port. Raises ConfigError where that would let in whom it should not; `run` or `serve` starts it.

    From another thread: `server.should_exit = True` ends it.
    """
    settings.check(settings.auth == "off" or app.state.has_tokens())
    return ApiServer(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            log_level="warning",
            access_log=False,
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=cast(Any, settings.idle_s),  # a fraction works as well
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=32_768,
            ssl_certfile=settings.tls_cert or None,
            ssl_keyfile=settings.tls_key or None,
        ),
        settings,
    )
