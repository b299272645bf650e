"""What goes in and out of the API, for checking what comes in and for the OpenAPI document.

Answers are written by views.py; tests hold them against these models.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from adlro.core.accounts import LONGEST_NAME, NAME_PATTERN
from adlro.core.ports import JobState, Part, Setback, Submission
from adlro.core.records import Job, Link, Node
from adlro.core.schema import Property, properties_of
from adlro.core.toml import model_field, model_with
from adlro.live.service import Alarm, Compared, Decision, Drift, Start, WhatIf

PLAIN: Final = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
"""No control characters, and none that turn the direction of a line: a name is shown in tables and on pages."""

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._/@+ -]*$"

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=64)]
DecisionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:+-]*$", max_length=128)]
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]
NameOrNone = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._/@+ -]*)?$", max_length=64)]
UserOrNone = Annotated[str, StringConstraints(pattern=f"^({NAME_PATTERN})?$", max_length=LONGEST_NAME)]
PlainOrNone = Annotated[str, StringConstraints(pattern=PLAIN, max_length=256)]
Sort = Literal[
    "", "id", "name", "user", "partition", "state", "gpus", "submitted", "waited", "started", "start", "place", "ran",
    "ended",
]  # fmt: skip
Argument = Annotated[str, StringConstraints(pattern=r"^[^\u0000]*$", max_length=65_536)]


def whole(value: object) -> object:
    """2 for 2.0, which is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]
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
        str, StringConstraints(pattern=PLAIN, max_length=200)
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


GpusOfNode = Annotated[int, Field(ge=1, le=64), BeforeValidator(whole)]
NodeCount = Annotated[int, Field(ge=1, le=1000), BeforeValidator(whole)]
NodesIn = Annotated[
    tuple[Name, GpusOfNode, NodeCount],
    Field(strict=False),  # JSON has lists only
]


class WhatIfIn(In):
    """A change to simulate: submit these jobs now, add or remove these nodes, use that policy."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "jobs": [{"job": {"family": "learning", "gpus": 4}}],
                "add_nodes": [["a100-sxm4-80gb", 4, 1]],
                "remove_nodes": [],
                "policy": "",
            }
        }
    )
    jobs: list[SubmissionIn] = Field([], max_length=100)
    add_nodes: list[NodesIn] = Field(
        [], max_length=100, description="Each is [GPU model, GPUs on each node, number of nodes]."
    )
    remove_nodes: list[Name] = Field([], max_length=1000)
    policy: NameOrNone = Field("", description="By name; empty: the one in use.")


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
    search: Annotated[str, StringConstraints(pattern=PLAIN, max_length=200)] = Field(
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

    job: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]*)?$", max_length=64)] = ""
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
    return WhatIf(jobs, tuple(given.add_nodes), tuple(given.remove_nodes), given.policy)


# ---- out ------------------------------------------------------------------------------------------------------------


class Out(BaseModel):
    """Something that is answered, for the document."""


class ProblemOut(Out):
    """What is wrong; a text is empty where there is nothing to say."""

    what: str
    where: str
    expected: str
    do: str


class ErrorOut(Out):
    """Every error has this shape."""

    error: ProblemOut


def shown_field(each: Property) -> tuple[Any, Any]:
    """A property as it is answered: always there."""
    kind: Any = list[str] if each.kind is frozenset else each.kind
    return kind | None if each.is_optional else kind, ...


KnownOfJob: Any = model_with("KnownOfJob", Out, {each.name: shown_field(each) for each in properties_of(Job)})


class JobNeedsOut(KnownOfJob):  # type: ignore[misc]  # its fields come from Job
    """What a job needs, and what is known of it. `user` and `name` are empty if the job is hidden."""


class JobOut(Out):
    """A job."""

    id: str
    job: JobNeedsOut
    state: JobState
    parts: list[Part]
    started_s: float | None
    ended_s: float | None
    starts: int = Field(description="How often it has started.")
    managed: bool = Field(description="Whether ADLRO places it.")
    exit_code: int | None
    signal: int | None
    reason: str
    decision: str
    partition: str = Field(description='The queue it was submitted to; "" where the cluster has no queues.')
    qos: str = Field(description='The name of the limits that count for it; "" where the cluster has none.')
    setback: Setback = Field(description="What keeps a waiting job from starting, besides missing resources.")
    is_hidden: bool = Field(description="It belongs to another user: user, name and reason are not shown.")


class JobsOut(Out):
    """A page of jobs, with the predicted starts of those that wait."""

    jobs: list[JobOut]
    starts: dict[str, Start]
    total: int
    offset: int
    limit: int
    time_s: float
    backend: str = Field("", description="As in the state. With shadow, starts are not carried out.")


class IdOut(Out):
    """The job that it was about."""

    id: str


class ModelOut(Out):
    """A GPU model in a few words."""

    title: str
    vendor: str
    architecture: str
    memory_gb: float
    tdp_w: float


class ClusterInStateOut(Out):
    """The cluster without what runs on it."""

    name: str
    summary: str
    nodes: list[Node]
    network: Link
    models: dict[str, ModelOut]


class SnapshotOut(Out):
    """What the back end saw."""

    time_s: float
    cluster: ClusterInStateOut
    jobs: list[JobOut]
    down: dict[str, str]
    notes: list[str]


class TickOut(Out):
    """The latest turn of the daemon."""

    number: int
    time_s: float
    policy: str
    decided_by: str
    seconds: float
    waiting: int
    running: int
    alarms: list[Alarm]
    is_cut: bool


class StateOut(Out):
    """Everything that the dashboard shows."""

    snapshot: SnapshotOut
    tick: TickOut | None
    backend: str
    policy: str
    fallback: str
    is_guarded: bool
    is_leader: bool
    starts: dict[str, Start]
    alarms: list[Alarm]
    drifts: list[Drift]
    history: list[Compared]
    telemetry: dict[str, dict[str, float | None]]
    counts: dict[str, int]
    partitions: list[str] = Field(description="Those that jobs were submitted to, by name.")


class TenantOut(Out):
    """A job on a GPU."""

    id: str
    user: str
    name: str
    is_index_known: bool = Field(
        description="True if the job is known to be on this GPU; false if only its node is known."
    )


class GpuOut(Out):
    """A GPU."""

    index: int
    model: str
    jobs: list[TenantOut]
    telemetry: dict[str, float | None] | None


KnownOfNode: Any = model_with(
    "KnownOfNode", Out, {each.name: shown_field(each) for each in properties_of(Node) if each.name != "gpus"}
)


class NodeOut(KnownOfNode):  # type: ignore[misc]  # the other fields come from Node
    """A node. `down` says why it takes no jobs."""

    down: str | None
    gpus: list[GpuOut]


class ClusterOut(Out):
    """The cluster with what runs on it."""

    time_s: float
    name: str
    summary: str
    gpus: int
    network: Link
    models: dict[str, ModelOut]
    nodes: list[NodeOut]


class DecisionsOut(Out):
    """Decisions, the latest first; `next` is the `before` of the next page."""

    decisions: list[Decision]
    next: str | None


class PolicyOut(Out):
    """A policy of the catalogue."""

    name: str
    summary: str
    preemptive: bool
    needs: list[str]


class PoliciesOut(Out):
    """Which policy decides, and which could."""

    current: str
    fallback: str
    is_guarded: bool = Field(description="Whether the fallback decides now.")
    policies: list[PolicyOut]


class AlarmsOut(Out):
    """Alarms, the latest last."""

    alarms: list[Alarm]


class DriftsOut(Out):
    """Speeds that differ from the speed table."""

    drifts: list[Drift]


class HistoryOut(Out):
    """What was measured, the oldest first."""

    history: list[Compared]
    step_s: float = Field(description="The seconds over which points were averaged; 0: as they are stored.")


class PastOut(Out):
    """Jobs that ended, the latest first; `next` is the `before` of the next page."""

    jobs: list[JobOut]
    next: float | None


class SpentOut(Out):
    """What the jobs that ended within one stretch of time used."""

    time_s: float
    jobs: int
    gpu_s: float
    waited_s: float | None


class UsageOut(Out):
    """What the jobs that ended between two moments used, and how long they waited."""

    since_s: float
    until_s: float
    jobs: int
    gpu_s: float
    failed: int
    waited_s: float | None
    waited_median_s: float | None
    waited_p90_s: float | None
    ran_s: float | None
    spent: list[SpentOut]


class OutputOut(Out):
    """The last 64 KiB of each output of a job, and how large each is."""

    job: str
    out: str
    err: str
    out_bytes: int
    err_bytes: int


class MeOut(Out):
    """Who asks."""

    name: str
    role: Literal["viewer", "user", "operator"]
    sees: Literal["all", "own", "none"] = Field(description="Whose jobs are shown in full.")


class HealthOut(Out):
    """The process answers."""

    ok: bool


class ReadyOut(Out):
    """Whether the latest turn is recent and complete; otherwise why not, for those who may know."""

    ready: bool
    why: str
