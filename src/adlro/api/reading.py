"""Addresses that read: state, jobs, cluster, decisions, reasons."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, FastAPI, Path, Query, Request
from starlette.responses import Response

from adlro.api.answers import (
    JSON,
    V1,
    Kit,
    address_of,
    find_job,
    in_json,
    kept,
    kit_eyes,
    no_job,
    not_yours,
    picture,
    policies_shown,
    role,
    sent,
    who_of,
)
from adlro.api.document import NOT_MODIFIED, errors
from adlro.api.hidden import alarms_shown, decision_shown, job_shown, speeds_shown, why_here, why_shown
from adlro.api.listing import jobs_shown
from adlro.api.models import DecisionsAsked, JobId, JobsAsked, LatestAsked, NothingAsked, StateAsked
from adlro.api.models_out import (
    AlarmsOut,
    ClusterOut,
    DecisionsOut,
    DriftsOut,
    JobOut,
    JobsOut,
    MeOut,
    PoliciesOut,
    StateOut,
)
from adlro.api.pictures import Body, Filter, Picture, json_bytes
from adlro.api.views import cluster_shown, state_shown
from adlro.core.learned import JobSpeeds, LearnedTable
from adlro.live.service import Why


def add_reading(app: FastAPI, kit: Kit) -> None:
    """Add what a viewer may ask. The API document lists the addresses in this order."""
    add_state_and_cluster(app, kit)
    add_jobs(app, kit)
    add_speeds(app, kit)
    add_decisions(app, kit)
    add_policies_and_alarms(app, kit)
    add_me(app, kit)


def add_state_and_cluster(app: FastAPI, kit: Kit) -> None:
    """Add the state of everything, and the cluster alone."""

    @app.get(f"{V1}/state", response_model=StateOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["cluster"])
    async def get_state(request: Request, asked: Annotated[StateAsked, Query()]) -> Response:
        """Everything that the dashboard shows, in one answer."""
        eyes = kit_eyes(kit, request)
        return await kept(kit, request, lambda now: state_shown(now, eyes, asked.waiting, asked.ended))

    @app.get(f"{V1}/cluster", response_model=ClusterOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["cluster"])
    async def get_cluster(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Nodes and GPUs, the jobs on each, and telemetry."""
        eyes = kit_eyes(kit, request)
        return await kept(kit, request, lambda now: cluster_shown(now, eyes))


def add_jobs(app: FastAPI, kit: Kit) -> None:
    """Add the list of jobs, one job, and why it waits or runs."""

    @app.get(f"{V1}/jobs", response_model=JobsOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["jobs"])
    async def list_jobs(request: Request, asked: Annotated[JobsAsked, Query()]) -> Response:
        """Jobs, page by page: those that hold GPUs, those that wait by predicted start, those that ended; or sorted."""
        eyes = kit_eyes(kit, request)
        wanted = Filter(
            tuple(sorted(set(asked.state))), asked.user, asked.model, asked.partition, asked.node,
            asked.search.strip().casefold(), asked.sort, asked.order == "desc",
        )  # fmt: skip
        return await kept(kit, request, lambda now: jobs_shown(now, eyes, wanted, asked.offset, asked.limit))

    @app.get(f"{V1}/jobs/{{id}}", response_model=JobOut, responses=errors(404, 422, 503) | NOT_MODIFIED, tags=["jobs"])
    async def get_job(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """One job, also one that has ended."""
        live = await find_job(kit, id)
        return sent(request, Body(json_bytes(job_shown(live, kit_eyes(kit, request)))), JSON)

    @app.get(
        f"{V1}/jobs/{{id}}/why",
        response_model=Why,
        responses=errors(403, 404, 422, 503) | NOT_MODIFIED,
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
        id = live.id
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


def add_speeds(app: FastAPI, kit: Kit) -> None:
    """Add what is believed of the speeds of one job, and of all."""

    @app.get(
        f"{V1}/jobs/{{id}}/speeds",
        response_model=JobSpeeds,
        responses=errors(403, 404, 422, 503) | NOT_MODIFIED,
        tags=["jobs"],
    )
    async def get_speeds(
        request: Request, id: Annotated[JobId, Path()], asked: Annotated[NothingAsked, Query()]
    ) -> Response:
        """How fast a job is believed to be on each GPU model, against the fastest, and the past jobs behind it."""
        eyes = kit_eyes(kit, request)
        live = await find_job(kit, id)
        if not eyes.sees(live):
            raise not_yours(id)

        def answer(now: Picture) -> JobSpeeds:
            found = kit.service.speeds(live.id)
            if found is None:
                raise no_job(id)
            return speeds_shown(found, eyes)

        return await kept(kit, request, answer)

    @app.get(
        f"{V1}/speeds",
        response_model=LearnedTable,
        responses=errors(403, 422, 503),
        dependencies=[Depends(role("operator"))],
        tags=["cluster"],
    )
    async def list_speeds(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """The families of jobs that were found here, with their learnt speeds. They hold words of all users' names."""
        # Not kept: who sees all jobs is not always an operator.
        return in_json(await to_thread.run_sync(kit.service.learned_speeds))


def add_decisions(app: FastAPI, kit: Kit) -> None:
    """Add the list of decisions."""

    @app.get(
        f"{V1}/decisions", response_model=DecisionsOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["decisions"]
    )
    async def list_decisions(request: Request, asked: Annotated[DecisionsAsked, Query()]) -> Response:
        """Decisions with their reasons, alternatives and similar past jobs; the latest first."""
        eyes = kit_eyes(kit, request)

        def answer(now: Picture) -> dict[str, Any]:
            found = kit.service.decisions(asked.job, asked.before, asked.limit)
            following = found[-1].id if len(found) == asked.limit else None
            jobs = (None if eyes.all else now.jobs.get(one.job) or kit.service.job(one.job) for one in found)
            shown = [decision_shown(one, live, eyes) for one, live in zip(found, jobs, strict=True)]
            return {"decisions": shown, "next": following}

        return await kept(kit, request, answer)


def add_policies_and_alarms(app: FastAPI, kit: Kit) -> None:
    """Add the lists of policies, alarms and drifts."""

    @app.get(f"{V1}/policies", response_model=PoliciesOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["policies"])
    async def list_policies(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """The policies by name, the one in use, and the fallback."""
        return await kept(kit, request, lambda now: policies_shown(now, kit.policies()))

    @app.get(f"{V1}/alarms", response_model=AlarmsOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["cluster"])
    async def list_alarms(request: Request, asked: Annotated[LatestAsked, Query()]) -> Response:
        """Alarms, the latest last."""
        eyes = kit_eyes(kit, request)
        return await kept(
            kit,
            request,
            lambda now: {"alarms": alarms_shown(now.state.alarms, now.jobs, eyes)[-asked.limit :]},
        )

    @app.get(f"{V1}/drifts", response_model=DriftsOut, responses=errors(422, 503) | NOT_MODIFIED, tags=["cluster"])
    async def list_drifts(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Speeds that differ from the speed table."""
        return await kept(kit, request, lambda now: {"drifts": now.state.drifts})


def add_me(app: FastAPI, kit: Kit) -> None:
    """Add what the caller's token allows."""

    @app.get(f"{V1}/me", response_model=MeOut, responses=errors(422), tags=["cluster"])
    async def get_me(request: Request, asked: Annotated[NothingAsked, Query()]) -> Response:
        """Your name and role, and whose jobs you see in full."""
        who = who_of(request)
        eyes = kit_eyes(kit, request)
        sees = "all" if eyes.all else "own" if eyes.name else "none"
        return in_json({"name": who.name, "role": who.role, "sees": sees})
