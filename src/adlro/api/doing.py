"""Addresses that change something: submit, cancel, policy; and questions that take long."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import Body as FromBody
from fastapi import Depends, FastAPI, Path, Query, Request
from starlette.responses import Response

from adlro.api.answers import (
    V1,
    Kit,
    check_policy,
    find_job,
    in_json,
    kit_eyes,
    log,
    no_job,
    not_yours,
    picture,
    policies_shown,
    role,
    who_of,
)
from adlro.api.document import errors
from adlro.api.errors import refused, refused_for
from adlro.api.models import (
    JobId,
    NothingAsked,
    PolicyIn,
    SubmissionIn,
    WhatIfIn,
    question_of,
    submission_of,
)
from adlro.api.models_out import IdOut, PoliciesOut
from adlro.api.settings import ApiSettings
from adlro.core.errors import AccountError
from adlro.core.ports import ENDED
from adlro.live.service import WhatIfAnswer, Who

MOST_QUESTIONS: Final = 2
"""How many what-if questions are played forward at a time."""
QUESTION_WAIT_S: Final = 2.0


def add_doing(app: FastAPI, kit: Kit) -> None:
    """Add what a user or an operator may do. Each change is written to the log: who, what, which job."""
    add_submit_and_cancel(app, kit)
    add_what_if(app, kit)
    add_use_policy(app, kit)


def add_submit_and_cancel(app: FastAPI, kit: Kit) -> None:
    """Add the submission and the cancellation of jobs."""

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
        """Submit a job. It belongs to the token's name; an operator may name another user."""
        who = who_of(request)
        now = await picture(kit)
        user = owner(given, who)
        check_priority(given, who)
        await to_thread.run_sync(check_user, kit.settings, user)
        submission = submission_of(_fitting(given), user, now.state.snapshot.time_s)
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
        """Cancel a job, waiting or running: one of your own, or any as an operator."""
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


def add_what_if(app: FastAPI, kit: Kit) -> None:
    """Add what-if questions."""

    @app.post(
        f"{V1}/what-if",
        response_model=WhatIfAnswer,
        responses=errors(400, 403, 404, 409, 413, 415, 422, 503),
        dependencies=[Depends(role("user"))],
        tags=["what if"],
    )
    async def ask_what_if(
        request: Request, asked: Annotated[NothingAsked, Query()], given: Annotated[WhatIfIn, FromBody()]
    ) -> Response:
        """Simulate from now on what more jobs, other wishes of jobs, other nodes or another policy would change."""
        who = who_of(request)
        now = (await picture(kit)).state.snapshot.time_s
        for one in given.change:
            if not kit_eyes(kit, request).sees(await find_job(kit, one.job)):
                raise not_yours(one.job)
        jobs = tuple(submission_of(_fitting(one), owner(one, who), now) for one in given.jobs)
        if given.policy:
            await to_thread.run_sync(check_policy, given.policy, kit.policies)
        question = question_of(given, jobs)

        def answer() -> WhatIfAnswer:
            if not kit.questions.acquire(timeout=QUESTION_WAIT_S):
                raise refused(
                    503,
                    "other requests of this kind are running",
                    "",
                    "",
                    "Ask again in a few seconds.",
                    {"Retry-After": "2"},
                )
            try:
                return kit.service.what_if(question)
            finally:
                kit.questions.release()

        return in_json(await to_thread.run_sync(answer))


def add_use_policy(app: FastAPI, kit: Kit) -> None:
    """Add the choice of the policy."""

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
        """Use a policy of the catalogue from the next turn on."""
        await to_thread.run_sync(check_policy, given.name, kit.policies)
        await to_thread.run_sync(kit.service.use_policy, given.name)
        now = await picture(kit)
        log.info("policy set", extra={"by": who_of(request).name, "policy": given.name})
        return in_json(policies_shown(now, kit.policies()) | {"current": given.name})


def owner(given: SubmissionIn, who: Who) -> str:
    """The user whom the job will belong to."""
    if given.job.user and given.job.user != who.name and who.role != "operator":
        raise refused(403, "a job for another user", "body.job.user", f"{who.name!r}, or nothing")
    return given.job.user or who.name


def check_priority(given: SubmissionIn, who: Who) -> None:
    """Refuse a priority that a user sets: every user would choose the highest."""
    usual: float = type(given.job).model_fields["priority"].default
    if given.job.priority != usual and who.role != "operator":
        raise refused(
            403, f"a priority of {given.job.priority:g} from the role {who.role}", "body.job.priority",
            f"{usual:g}, or nothing", "Leave it out, or ask an operator to submit the job.",
        )  # fmt: skip


def check_user(settings: ApiSettings, user: str) -> None:
    """Refuse a user whose jobs are not taken. The back end checks again; its result decides as whom the job runs."""
    try:
        settings.owners.account(user)
    except AccountError as error:
        raise refused_for(error, "body.job.user") from None


def _fitting(given: SubmissionIn) -> SubmissionIn:
    """The same submission, if its fields fit together."""
    if given.job.share < 1000 and given.job.gpus != 1:
        raise refused(409, f"a share of a GPU for a job of {given.job.gpus} GPUs", "body.job.share", "1000, or one GPU")
    return given
