"""The REST API of the daemon (docs/api.md). `make_app` builds it around a Service, `make_server` puts it on a port.

What is asked often is answered from bytes that are made once a tick; whatever may wait (the store, the back end, a
question played forward) is asked in a thread.
"""

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, cast

from anyio import to_thread
from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from adlro import __version__
from adlro.api.answers import JSON, V1, Kit, Shortcut, catalogue, in_json, kit_eyes, picture, sent
from adlro.api.document import (
    EVENT_SCHEMA,
    Documented,
    document_of,
    errors,
    on_adlro_error,
    on_bad_input,
    on_http,
    on_refused,
)
from adlro.api.doing import MOST_QUESTIONS, add_doing
from adlro.api.errors import Refused, refused
from adlro.api.events import Listeners
from adlro.api.hidden import event_shown
from adlro.api.metrics import Requests
from adlro.api.models import EventNumber, EventsAsked, ReadyAsked, one_of_them
from adlro.api.models_out import HealthOut, ReadyOut
from adlro.api.pictures import Body
from adlro.api.reading import add_reading
from adlro.api.security import STILL, WHO, Guard
from adlro.api.settings import ApiSettings
from adlro.api.tokens import TokenFile, Tokens
from adlro.api.views import Views
from adlro.core.errors import AdlroError
from adlro.live.service import STANDING_BY, Event, Service, reason_for_all

_KINDS: Final = {
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
"""The content type of /metrics, written here because this process does not import Prometheus' client."""


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
        summary="A scheduler for clusters with different GPU models: cluster, jobs, decisions and their reasons.",
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


# ---- events, probes, pages ----------------------------------------------------------------------------------------


def add_events(app: FastAPI, kit: Kit) -> None:
    """What happens, as it happens."""
    streamed: Documented = {
        200: {"description": "Events as they happen.", "content": {"text/event-stream": EVENT_SCHEMA}}
    }

    @app.get(f"{V1}/events", response_class=StreamingResponse, responses=errors(422, 503) | streamed, tags=["events"])
    async def listen(
        request: Request,
        asked: Annotated[EventsAsked, Query()],
        last_event_id: Annotated[EventNumber | None, Header(json_schema_extra=one_of_them)] = None,
    ) -> Response:
        """Numbered events, from the next one on, or from the one after `Last-Event-ID` (or `after`)."""
        if kit.listeners.count >= kit.settings.most_streams:
            raise refused(
                503, "too many streams", V1 + "/events", f"{kit.settings.most_streams} at most", "Try again later.",
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
        responses=errors(422) | {503: {"model": ReadyOut, "description": "It is not ready."}},
        tags=["probes"],
    )
    async def get_ready(request: Request, asked: Annotated[ReadyAsked, Query()]) -> Response:
        """Whether the latest turn is recent and complete."""
        ready, why = kit.service.is_ready()
        ready = ready or (asked.standby and why.startswith(STANDING_BY))
        told = why if request.scope[WHO] else "" if ready else reason_for_all(why)
        return in_json({"ready": ready, "why": told}, 200 if ready else 503)

    described: Documented = {
        200: {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get("/metrics", response_class=Response, responses=errors(404) | described, tags=["probes"])
    async def get_metrics() -> Response:
        """Metrics of the daemon, the cluster and this API, for Prometheus."""
        if metrics is None:
            raise refused(404, "this daemon has no metrics", "/metrics")
        page = await to_thread.run_sync(metrics)
        page = page.encode() if isinstance(page, str) else page
        return Response(page + requests.page().encode(), media_type=PROMETHEUS)


def pages_in(folder: FilePath | None) -> dict[str, tuple[bytes, str]]:
    """The files of the dashboard by address, read once, so that no address can lead to another file."""
    if folder is None:
        return {}
    pages = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and (kind := _KINDS.get(file.suffix)):
            path = f"/{file.relative_to(folder).as_posix()}"
            pages["/" if path == "/index.html" else path] = (file.read_bytes(), kind)
    return pages


def page(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """An answer with a file."""
    made = Body(body)

    async def answer(request: Request) -> Response:
        return sent(request, made, kind)

    return answer
