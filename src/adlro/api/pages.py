"""What the pages of the dashboard ask beyond the state: the past from the store, usage, history, output; and the pages.

The answers hold what anyone may see: of others' jobs no name, no user, no output.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import FastAPI, Path, Query, Request
from starlette.responses import Response

from adlro.api.answers import V1, Kit, find_job, in_json, kept, kit_eyes, not_yours, who_of
from adlro.api.app import page
from adlro.api.document import NOT_MODIFIED, errors
from adlro.api.errors import refused
from adlro.api.hidden import job_shown
from adlro.api.models import HistoryAsked, JobId, NothingAsked, PastAsked, UsageAsked
from adlro.api.models_out import HistoryOut, OutputOut, PastOut, UsageOut
from adlro.api.pictures import Eyes, Picture
from adlro.live.history import in_steps, summed
from adlro.live.service import Compared, HistoryQuery, Usage

_KINDS: Final = ("job", "node", "user", "partition")
"""What has a page of its own."""

STEPS_S: Final = (0.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0)
"""Over how many seconds points of the history are averaged, where nobody says."""


def add_past(app: FastAPI, kit: Kit) -> None:
    """The history and the jobs of the past."""

    @app.get(f"{V1}/history", response_model=HistoryOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["cluster"])
    async def list_history(request: Request, asked: Annotated[HistoryAsked, Query()]) -> Response:
        """Utilisation, queue and JCT as measured, beside what the fallback is predicted to have come to; the oldest
        first. With `since` or `until` from the store, which keeps weeks of it.
        """

        def answer(now: Picture) -> dict[str, Any]:
            if asked.since is None and asked.until is None:
                return {"history": now.state.history[-asked.limit :], "step_s": 0.0}
            until_s = now.state.snapshot.time_s if asked.until is None else asked.until
            found = list(kit.service.points(asked.since or 0.0, until_s))
            step_s = asked.step_s if asked.step_s is not None else step_for(found, asked.limit)
            return {"history": in_steps(found, step_s)[-asked.limit :], "step_s": step_s}

        return await kept(kit, request, answer)

    @app.get(f"{V1}/past", response_model=PastOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["jobs"])
    async def list_past(request: Request, asked: Annotated[PastAsked, Query()]) -> Response:
        """Jobs that ended, from the store: of a user, of a partition, on a node; the latest first."""
        eyes = kit_eyes(kit, request)
        wanted = HistoryQuery(asked.user, asked.partition, asked.node)

        def answer(now: Picture) -> dict[str, Any]:
            found = kit.service.past(wanted, asked.before, asked.limit) if may_ask(wanted, eyes) else ()
            following = found[-1].ended_s if len(found) == asked.limit else None
            return {"jobs": [job_shown(live, eyes) for live in found], "next": following}

        return await kept(kit, request, answer)

    @app.get(f"{V1}/usage", response_model=UsageOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["jobs"])
    async def get_usage(request: Request, asked: Annotated[UsageAsked, Query()]) -> Response:
        """GPU time and waiting times of the jobs that ended in the last days: of a user, of a partition, on a node."""
        eyes = kit_eyes(kit, request)
        wanted = HistoryQuery(asked.user, asked.partition, asked.node)

        def answer(now: Picture) -> Usage:
            until_s = now.state.snapshot.time_s
            since_s, step_s = until_s - 86_400.0 * asked.days, 86_400.0 * asked.days / asked.steps
            if not may_ask(wanted, eyes):
                return summed((), since_s, until_s, step_s)
            return kit.service.usage(wanted, since_s, until_s, step_s)

        return await kept(kit, request, answer)

    @app.get(
        f"{V1}/jobs/{{id}}/output", response_model=OutputOut, responses=errors(403, 404, 409, 422, 503), tags=["jobs"]
    )
    async def get_output(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """The end of a job's output, for its user and for operators, if the back end keeps it."""
        live = await find_job(kit, id)
        who = who_of(request)  # not what he sees: a site that shows everybody's jobs does not show their output
        if who.role != "operator" and not (who.role == "user" and live.job.user == who.name):
            raise not_yours(id)
        found = await to_thread.run_sync(kit.service.output, id)
        if found is None or (who.role != "operator" and found.user != who.name):
            raise refused(
                409, f"there is no output of job {id} here", f"job {id}", "",
                "Look where the job writes it: only the local back end keeps output itself.",
            )  # fmt: skip
        return in_json({
            "job": found.job, "out": found.out, "err": found.err, "out_bytes": found.out_bytes,
            "err_bytes": found.err_bytes,
        })  # fmt: skip


def may_ask(wanted: HistoryQuery, eyes: Eyes) -> bool:
    """Whether one may ask about a user; about partitions and nodes everybody may."""
    return not wanted.user or eyes.all or wanted.user == eyes.name


def step_for(points: list[Compared], most: int) -> float:
    """The finest step with which so many points are enough."""
    if len(points) <= most:
        return 0.0
    length_s = points[-1].time_s - points[0].time_s
    return next((step for step in STEPS_S[1:] if length_s / step < most), STEPS_S[-1])


def add_pages(app: FastAPI, files: dict[str, tuple[bytes, str]]) -> None:
    """The dashboard's files, and its page under the address of each job, node, user and partition."""
    for path, (body, kind) in files.items():
        app.add_route(path, page(body, kind), include_in_schema=False)
    if "/" in files:
        body, kind = files["/"]
        deeper: Callable[..., Any] = page(from_folder(body), kind)
        for each in _KINDS:
            app.add_route(f"/{each}/{{name:path}}", deeper, include_in_schema=False)


def from_folder(html: bytes) -> bytes:
    """The page as it finds its files from one folder down; they stay relative, for proxies that serve it elsewhere."""
    return html.replace(b' href="./', b' href="../').replace(b' src="./', b' src="../')
