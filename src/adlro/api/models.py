"""What goes in and out of the API, for checking what comes in and for the OpenAPI document.

Answers are written by views.py; tests hold them against these models.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from adlro.core.accounts import LONGEST_NAME, NAME_PATTERN
from adlro.core.ports import LONGEST_ID, JobState, Submission
from adlro.core.records import Job
from adlro.core.schema import Property, properties_of
from adlro.core.toml import model_field, model_with
from adlro.live.service import OtherWish, WhatIf

_PLAIN: Final = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
"""No control characters, and none that turn the direction of a line: a name is shown in tables and on pages."""

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._/@+ -]*$"

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=LONGEST_ID)]
DecisionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:+-]*$", max_length=128)]
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]
NameOrNone = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._/@+ -]*)?$", max_length=64)]
UserOrNone = Annotated[str, StringConstraints(pattern=f"^({NAME_PATTERN})?$", max_length=LONGEST_NAME)]
PlainOrNone = Annotated[str, StringConstraints(pattern=_PLAIN, max_length=256)]
Sort = Literal[
    "", "id", "name", "user", "partition", "state", "gpus", "submitted", "waited", "started", "start", "place", "ran",
    "ended",
]  # fmt: skip
Argument = Annotated[str, StringConstraints(pattern=r"^[^\u0000]*$", max_length=65_536)]


def _whole(value: object) -> object:
    """2 for 2.0, which is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
EventNumber = Annotated[int, Field(ge=0, le=2**53)]


def one_of_them(schema: dict[str, Any]) -> None:
    """Say of an address what may be left out, instead of that it may be null."""
    schema |= next(kind for kind in schema.pop("anyOf") if kind["type"] != "null")


class In(BaseModel):
    """Something that is sent: every name known, every type exact."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Asked(BaseModel):
    """What is asked for in an address: every name known."""

    model_config = ConfigDict(extra="forbid")


# ---- in --------------------------------------------------------------------------------------------------------------


SET_BY_US: Final = frozenset(["submit_s"])
"""Properties of a job that whoever submits it does not say."""

TEXT_KINDS: Final[dict[str, Any]] = {
    "family": Name, "models": list[Name], "user": UserOrNone, "name": Annotated[
        str, StringConstraints(pattern=_PLAIN, max_length=200)
    ],
}  # fmt: skip
"""Which texts are safe to show and to hand on, by property."""

SAFE_KINDS: Final[dict[type, Any]] = {int: Whole, str: PlainOrNone}
"""For the other properties."""


def asked_field(each: Property) -> tuple[Any, Any]:
    """A property of a job as it is sent."""
    kind, field = model_field(each, TEXT_KINDS.get(each.name) or SAFE_KINDS.get(each.kind))
    if each.name == "models":
        return kind, Field([], max_length=64, description=each.user_words)
    return kind, field


AskedOfJob: Any = model_with(
    "AskedOfJob", In, {each.name: asked_field(each) for each in properties_of(Job) if each.name not in SET_BY_US}
)


class JobIn(AskedOfJob):  # type: ignore[misc]  # its fields come from Job
    """What a job needs."""


class SubmissionIn(In):
    """A job to submit. The command is a list of words; no shell interprets it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "job": {"family": "learning", "gpus": 2, "limit_s": 7200, "name": "train"},
                "command": ["python", "train.py", "--epochs", "90"],
                "directory": "/scratch/ann",
                "environment": {"OMP_NUM_THREADS": "4"},
            }
        }
    )
    job: JobIn
    command: list[Argument] = Field([], max_length=4096)
    directory: Annotated[str, StringConstraints(pattern=r"^(/[^\u0000-\u001f\u007f]*)?$", max_length=4096)] = Field(
        "", description="Working directory, an absolute path; empty: the back end chooses."
    )
    environment: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)], Argument
    ] = Field({}, max_length=512, json_schema_extra={"additionalProperties": False})


GpusOfNode = Annotated[int, Field(ge=1, le=64), BeforeValidator(_whole)]
NodeCount = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)]
NodesIn = Annotated[
    tuple[Name, GpusOfNode, NodeCount],
    Field(strict=False),  # JSON has lists only
]


class OtherWishIn(In):
    """A waiting job that asks for something else."""

    job: JobId
    gpus: Annotated[int, Field(ge=1, le=65_536), BeforeValidator(_whole)] | None = Field(
        None, description="Number of GPUs; left out: as it asks for now."
    )
    models: list[Name] | None = Field(
        None, max_length=64, description="GPU models that it may run on; empty: any; left out: as it asks for now."
    )


class WhatIfIn(In):
    """A change to simulate: submit these jobs now, let jobs ask for something else, change nodes, use that policy."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "jobs": [{"job": {"family": "learning", "gpus": 4}}],
                "add_nodes": [["a100-sxm4-80gb", 4, 1]],
                "remove_nodes": [],
                "policy": "",
                "change": [{"job": "1008", "gpus": 2, "models": ["t4"]}],
            }
        }
    )
    jobs: list[SubmissionIn] = Field([], max_length=100)
    add_nodes: list[NodesIn] = Field(
        [], max_length=100, description="Each is [GPU model, GPUs on each node, number of nodes]."
    )
    remove_nodes: list[Name] = Field([], max_length=1000)
    policy: NameOrNone = Field("", description="By name; empty: the one in use.")
    change: list[OtherWishIn] = Field([], max_length=100)


class PolicyIn(In):
    """The policy to use."""

    model_config = ConfigDict(json_schema_extra={"example": {"name": "sjf"}})
    name: Name


class JobsAsked(Asked):
    """Which jobs, and which page of them."""

    state: list[JobState] = Field([], max_length=6)
    user: PlainOrNone = ""
    model: NameOrNone = ""
    partition: PlainOrNone = ""
    node: PlainOrNone = Field("", description="Jobs that hold GPUs on this node.")
    search: Annotated[str, StringConstraints(pattern=_PLAIN, max_length=200)] = Field(
        "",
        description="A text in the id, family, partition, name or user; hidden names and users are ignored.",
    )
    sort: Sort = Field("", description="Empty: running jobs, waiting jobs by predicted start, the rest.")
    order: Literal["asc", "desc"] = "asc"
    offset: int = Field(0, ge=0, le=10_000_000)
    limit: int = Field(100, ge=1, le=1000)


class StateAsked(Asked):
    """How much of the queue and of the past."""

    waiting: int = Field(200, ge=0, le=1000)
    ended: int = Field(50, ge=0, le=1000)


class DecisionsAsked(Asked):
    """Which decisions, and which page of them."""

    job: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]*)?$", max_length=LONGEST_ID)] = ""
    before: DecisionId = ""
    limit: int = Field(100, ge=1, le=1000)


class LatestAsked(Asked):
    """How many."""

    limit: int = Field(100, ge=1, le=10_000)


Moment = Annotated[float, Field(ge=0, le=1e12)]


class HistoryAsked(Asked):
    """Which stretch of the history, and how fine."""

    limit: int = Field(100, ge=1, le=10_000)
    since: Moment | None = Field(None, description="Seconds since 1970.", json_schema_extra=one_of_them)
    until: Moment | None = Field(None, description="Seconds since 1970.", json_schema_extra=one_of_them)
    step_s: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        None,
        description="Average over this many seconds; left out: as fine as `limit` allows.",
        json_schema_extra=one_of_them,
    )


class PastAsked(Asked):
    """Which jobs of the past."""

    user: PlainOrNone = ""
    partition: PlainOrNone = ""
    node: PlainOrNone = ""
    before: Moment | None = Field(
        None,
        description="Only jobs that ended before this time: `next` of the previous page.",
        json_schema_extra=one_of_them,
    )
    limit: int = Field(100, ge=1, le=1000)


class UsageAsked(Asked):
    """Whose usage, over how many days, in how many steps."""

    user: PlainOrNone = ""
    partition: PlainOrNone = ""
    node: PlainOrNone = ""
    days: float = Field(7.0, ge=0.01, le=3660)
    steps: int = Field(7, ge=1, le=500)


class EventsAsked(Asked):
    """From where on."""

    after: EventNumber | None = Field(None, description="As the header Last-Event-ID.", json_schema_extra=one_of_them)


class ReadyAsked(Asked):
    """What counts as ready."""

    standby: bool = Field(False, description="Whether a daemon that stands by for a leader is ready too.")


class NothingAsked(Asked):
    """No more than the address."""


# ---- from records to records ---------------------------------------------------------------------------------------


def submission_of(given: SubmissionIn, user: str, now_s: float) -> Submission:
    """What was sent, as the daemon knows it; `now_s` is the cluster's clock."""
    asked = {name: getattr(given.job, name) for name in type(given.job).model_fields}
    job = Job(**asked | {"submit_s": now_s, "user": user, "models": frozenset(given.job.models)})
    return Submission(job, tuple(given.command), given.directory, dict(given.environment))


def question_of(given: WhatIfIn, jobs: tuple[Submission, ...]) -> WhatIf:
    """What was asked, as the daemon knows it."""
    change = tuple(
        OtherWish(one.job, one.gpus, None if one.models is None else tuple(one.models)) for one in given.change
    )
    return WhatIf(jobs, tuple(given.add_nodes), tuple(given.remove_nodes), given.policy, change)
