"""The interface to a live cluster: snapshots (what is), orders (what we want) and answers (what the back end replied).

A back end reads snapshots and carries out orders; it never decides. If it cannot read something it raises BackendError;
it never reports an empty cluster instead.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from adlro.core.records import Cluster, Job

LONGEST_ID: Final = 320
"""Characters of a job's id at most: a pod's is its namespace (63 characters), a dot and its name (253)."""


class JobState(StrEnum):
    """The state of a job on a live cluster."""

    WAITING = "waiting"  # it may start; we place it if it is `managed`
    PLACED = "placed"  # released to its place but not seen running yet: it holds that place
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"  # ended with an error, or at its walltime limit
    CANCELLED = "cancelled"


ENDED: frozenset[JobState] = frozenset([JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
PLACES: frozenset[JobState] = frozenset([JobState.PLACED, JobState.RUNNING])
"""States in which a job holds its place."""

RESERVED = "reserved"
"""First word of the reason in `Snapshot.down` if a node is reserved for others."""


class Setback(StrEnum):
    """Why a waiting job of ours does not start, apart from a lack of resources."""

    NONE = ""
    LIMIT = "limit"  # a limit of its user, account or licence: it starts nowhere until that changes
    PLACE = "place"  # the cluster does not start it where we placed it
    PUT_BACK = "put-back"  # put back after it began, and not held yet: the cluster would start it in its old place
    UNPLACEABLE = "unplaceable"  # held for us, but the cluster's own scheduler can place it better: give it back


@dataclass(frozen=True, slots=True)
class Part:
    """GPUs of one model on one node that a job holds or will hold. Empty `indices`: unknown, or any GPUs.

    A job without GPUs has one part with the model `records.CPU_ONLY` and a count of 0.
    """

    node: str
    model: str
    count: int
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job of a live cluster. Times are in seconds since 1970.

    `job.submit_s` is when it was first submitted, on that clock; a requeue does not change it if the back end can avoid
    it. `job.work` and `job.estimate` are what the submitter declared, in GPU-seconds on the reference model. If nothing
    was declared they are 0 and None, and the daemon predicts them. `starts` counts how often the job has started.
    `job.gpus` is what it was submitted with. A job with `sizes` may run with another number of GPUs: that of its parts.
    """

    id: str
    job: Job
    state: JobState
    parts: tuple[Part, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None
    starts: int = 0
    managed: bool = True  # we place it; otherwise it only occupies resources
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # the back end's own words about it
    decision: str = ""  # id of the decision that placed it, as the back end stored it; "" if it was not ours
    partition: str = ""  # the queue it was submitted to, if the cluster has several
    qos: str = ""  # the cluster's name for the set of limits that apply to it
    setback: Setback = Setback.NONE  # why it does not start although it waits for us; `reason` says it in words
    is_stopping: bool = False  # we told it to stop; it holds its GPUs until it has ended, and then waits again
    gpu_pace: float | None = None
    """Clock of its slowest GPU over the usual one of its model while it ran, by telemetry: 1, or less if it was
    throttled; 0: it was, and by how much is not known; None: no telemetry, or the job has not ended."""
    also: tuple[str, ...] = ()  # other ids by which its user may ask for it: of the pods that it consists of


@dataclass(frozen=True, slots=True)
class MissingRight:
    """Something that the cluster does not let us do."""

    right: str  # verb and resource, in the cluster's own words
    is_needed: bool  # whether jobs cannot be placed without it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a back end saw at one moment. `down` maps nodes that accept no jobs to the reason."""

    time_s: float
    cluster: Cluster
    jobs: tuple[LiveJob, ...]
    down: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what could not be read properly, in words
    lacks: tuple[MissingRight, ...] = ()
    partition_word: str = "partition"  # what the cluster calls the partition of a job: namespace on Kubernetes


@dataclass(frozen=True, slots=True)
class Order:
    """Start a job on these parts, or stop it so that it waits again (then `parts` is empty).

    The parts may have another number of GPUs than the job was submitted with, if it is one of its `sizes` and the back
    end can resize jobs: the job then starts with that number, and with the cores and memory that belong to it.
    """

    job: str
    decision: str  # stored by the back end if it can, so that records agree after a crash
    parts: tuple[Part, ...] = ()
    for_job: str = ""  # the job that a stop makes room for, if that is known

    @property
    def is_start(self) -> bool:
        """Whether this order starts a job."""
        return bool(self.parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """The back end's answer to an order. If not `done`, nothing happened, and `said` gives the reason.

    `is_final`: the order would be refused again. If a start is refused for good, give the job back to the cluster.
    `is_pending`: a stop that takes time. The job holds its GPUs until a snapshot shows that it waits.
    """

    job: str
    done: bool
    said: str = ""
    is_final: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a user submits: what it needs and what it runs. A simulated cluster needs no command."""

    job: Job
    command: tuple[str, ...] = ()
    directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """The end of the output of a job's latest start. The byte counts are for the whole files."""

    job: str
    user: str  # the job's user, as the back end knows it
    out: str
    err: str
    out_bytes: int
    err_bytes: int


@runtime_checkable
class KeepsOutput(Protocol):
    """A back end that stores job output where no other program writes. Thread-safe."""

    def output(self, job: str) -> Output | None:
        """The end of a job's output; None if there is none or it cannot be read safely."""


NOT_RESTARTABLE = "it is not marked as restartable"
"""The answer of every back end to the order to stop a running job that its user has not marked."""


def nobody_to_give_to(reasons: Mapping[str, str]) -> list[Answer]:
    """The answers of a cluster that has no scheduler of its own."""
    return [Answer(job, False, "this cluster has no scheduler besides ADLRO", is_final=True) for job in reasons]


class Backend(Protocol):
    """A live cluster. Not thread-safe: the caller makes one call at a time."""

    @property
    def name(self) -> str:
        """Its kind in one word: simulated, local, slurm, kubernetes, shadow."""

    @property
    def can_stop(self) -> bool:
        """Whether it can stop a job so that it waits again."""

    @property
    def can_resize(self) -> bool:
        """Whether it can start a job with another number of GPUs than it was submitted with."""

    @property
    def places_gpus(self) -> bool:
        """Whether a job gets the very GPUs that an order names; if not, the cluster chooses on the node."""

    @property
    def can_annotate(self) -> bool:
        """Whether users can see what `annotate` writes."""

    def read(self) -> Snapshot:
        """The cluster now. Raises BackendError if it cannot be read completely."""

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders in sequence; one answer for each. Raises BackendError if the back end is unreachable.

        Orders are idempotent: a job that is already placed or running is not started again. The order to stop a job is
        given again while the job is stopping, so a back end may warn a job first and end it later.
        """

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Give waiting jobs (id and reason) to the cluster's own scheduler for good; one answer for each.

        A cluster without its own scheduler answers "not done".
        """

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Show users a line about each waiting job where they look for it. Lines that cannot be shown are dropped."""

    def submit(self, submission: Submission) -> str:
        """Submit a job, held for us; returns its id."""

    def cancel(self, job: str) -> None:
        """End a waiting or running job for good."""

    def close(self) -> None:
        """Release all resources. Running jobs continue if the back end can keep them."""


@runtime_checkable
class SubmitsAside(Protocol):
    """A back end where a user can make a submission slow. Turns continue meanwhile."""

    def submit_aside(self, submission: Submission, alone: AbstractContextManager[object]) -> str:
        """Submit a job like `submit`; returns its id. Thread-safe.

        `alone` is the lock that guards all other calls. It is held only briefly, never while a user's process runs.
        """


class Watched(Protocol):
    """A back end that can cheaply say whether anything has changed, so that a turn can begin early.

    A back end without this method is read once every turn.
    """

    def has_changed(self) -> bool:
        """Whether a job or a node may have changed since the latest read().

        It is called about once a second and must cost far less than read(). Raises BackendError if nobody answers. A
        back end that knows the answer without asking anybody may have an attribute `probe_s`; it is then called at that
        interval (s), and a turn follows a change sooner (daemon/pacing.py).
        """


class Leadership(Protocol):
    """Which daemon leads: at most one of all that share a lock."""

    def take(self) -> bool:
        """Become the leader if nobody else is, without waiting; returns whether we lead now."""

    def holds(self) -> bool:
        """Whether we still lead. Checked before every action."""

    def holder(self) -> str:
        """Who leads, in words, as far as it is known."""

    def release(self) -> None:
        """Give up the lead, so that another daemon can take it."""
