"""What goes out of the API, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from adlro.core.ports import JobState, Part, Setback
from adlro.core.records import Job, Link, Node
from adlro.core.schema import Property, properties_of
from adlro.core.toml import model_with
from adlro.live.service import Alarm, Compared, Decision, Drift, Start, Stopping

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
    is_stopping: bool = Field(description="It was told to stop, and will wait again once it has ended.")
    gpu_pace: float | None = Field(
        description="Of a job that ended, if speeds are learnt and there is telemetry: the clock of its slowest GPU "
        "over the usual one; 0: throttled, by how much is not known."
    )
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
    stopping: Stopping | None = Field(description="Whether running jobs may be stopped, and how often they were.")
    history: list[Compared]
    telemetry: dict[str, dict[str, float | None]]
    counts: dict[str, int]
    partitions: list[str] = Field(description="Those that jobs were submitted to, by name.")
    partition_word: str = Field(description="What this cluster calls them: partition, or namespace on Kubernetes.")


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
    resizes: bool
    weighs: bool
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
