"""Errors as the OpenAPI document shows them, and the document itself."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from adlro.api.answers import JSON, sent
from adlro.api.errors import Refused, body_of, refused, refused_for, refused_for_input
from adlro.api.models_out import ErrorOut
from adlro.api.pictures import Body, json_bytes
from adlro.core.errors import AdlroError

Documented = dict[int | str, dict[str, Any]]
"""Answers by status, for the document."""


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


_REASONS: Final = {
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
_EXAMPLES: Final = {
    401: ("a token is needed", "header Authorization", "Bearer adlro_…", "Send your token; an operator makes one."),
    403: ("your role is viewer", "/api/v1/jobs", "the role user", "Ask an operator."),
    404: ("there is no job 17", "job 17", "", "GET /api/v1/jobs lists them."),
    409: ("job 17 has ended already: finished", "job 17", "a job that waits or runs", ""),
    413: ("the body is too large", "body", "262144 bytes at most", ""),
    422: ("gpus is 'two'", "body.job.gpus", "a whole number from 0 to 65536", "Correct it and send it again."),
    429: ("too many requests", "/api/v1/jobs", "100 a second at most", "Wait 1 s."),
}
ALWAYS: Final = (400, 408, 413, 421, 429, 431, 500)
"""What may be said to any request."""

EVENT_SCHEMA: Final = {
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

NOT_MODIFIED: Final[Documented] = {304: {"description": "It is as the answer with the tag of `If-None-Match` was."}}


def errors(*codes: int) -> Documented:
    """The errors of an address, for the document."""
    described: Documented = {}
    for code in sorted({*ALWAYS, *codes}):
        described[code] = {"model": ErrorOut, "description": _REASONS[code]}
        if code in _EXAMPLES:
            example = dict(zip(("what", "where", "expected", "do"), _EXAMPLES[code], strict=True))
            described[code]["content"] = {JSON: {"example": {"error": example}}}
    return described


def document_of(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    """An answer with the document, which is written when it is first asked for."""
    written: list[Body] = []

    async def answer(request: Request) -> Response:
        if not written:
            written.append(Body(json_bytes(await to_thread.run_sync(_describe, app))))
        return sent(request, written[0], JSON)

    return answer


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with who may ask."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description="Durations are in seconds, times are seconds since 1970 by the cluster's clock; null: unknown.",
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
        "description": _REASONS[401],
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/ErrorOut"},
                "example": {"error": dict(zip(("what", "where", "expected", "do"), _EXAMPLES[401], strict=True))},
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
