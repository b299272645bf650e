"""A live cluster as the daemon meets it: a snapshot is a fact, an order is a wish, an answer is what was said to it.

A back end reads snapshots and carries out orders; it never decides. Whatever it cannot read it raises as BackendError:
an error is never an empty cluster.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from adlro.core.records import Cluster, Job


class JobState(StrEnum):
    """Where a job of a live cluster stands."""

    WAITING = "waiting"  # it may be started; ours to place if `managed`
    PLACED = "placed"  # let go to a place, and not seen running yet: it holds that place
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"  # ended with an error, or at its limit
    CANCELLED = "cancelled"


ENDED: frozenset[JobState] = frozenset([JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
PLACES: frozenset[JobState] = frozenset([JobState.PLACED, JobState.RUNNING])
"""States in which a job holds its place."""

RESERVED = "reserved"
"""The first word of the reason in `Snapshot.down` of a node that is reserved for others."""


class Setback(StrEnum):
    """What keeps a waiting job of ours from starting, besides a lack of room."""

    NONE = ""
    LIMIT = "limit"  # a limit of its user, account or licence: it starts nowhere until that changes
    PLACE = "place"  # the cluster does not start it where we placed it
    UNPLACEABLE = "unplaceable"  # held for us, but the cluster's own scheduler places it better: give it back


@dataclass(frozen=True, slots=True)
class Part:
    """GPUs of one model on one node that a job holds or shall hold. No `indices`: which of them is not known, or free.

    A job without GPUs has one part with the model `records.CPU_ONLY` and a count of 0.
    """

    node: str
    model: str
    count: int
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job of a live cluster. Times are seconds since 1970.

    `job.submit_s` is the moment of its first submission in that clock (a requeue does not change it if the back end can
    help it). `job.work` and `job.estimate` are what the submitter says, in GPU-seconds on the reference model; 0 and
    None where nothing is said: the daemon predicts. `starts` counts how often it began.
    """

    id: str
    job: Job
    state: JobState
    parts: tuple[Part, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None
    starts: int = 0
    managed: bool = True  # ours to place; else it only takes room
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # what the back end says of it, in its own words
    decision: str = ""  # the decision that placed it, as the back end keeps it: "" if none of ours did
    partition: str = ""  # the queue it was submitted to, where the cluster has several
    qos: str = ""  # the cluster's word for the set of limits that count for it
    setback: Setback = Setback.NONE  # why it does not start although it waits for us; `reason` has the words
    is_stopping: bool = False  # we told it to stop; it holds its place until it has ended, and then waits again


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a back end saw at one moment. `down` has the nodes that take no jobs, and why."""

    time_s: float
    cluster: Cluster
    jobs: tuple[LiveJob, ...]
    down: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what could not be read as it should, in words


@dataclass(frozen=True, slots=True)
class Order:
    """Start a job at a place, or stop it so that it waits again (`parts` is empty then)."""

    job: str
    decision: str  # kept by the back end where it can, so that records agree after a crash
    parts: tuple[Part, ...] = ()

    @property
    def is_start(self) -> bool:
        """Whether it starts a job."""
        return bool(self.parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the back end said to an order. Not `done`: nothing happened, and `said` tells why.

    `is_final`: it would be refused again. A job whose start is refused for good should be given back to the cluster.
    `is_pending`: a stop that takes its time. The job holds its place until a snapshot shows that it waits.
    """

    job: str
    done: bool
    said: str = ""
    is_final: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a user hands in: what it needs, and what it does. A simulated cluster needs no command."""

    job: Job
    command: tuple[str, ...] = ()
    directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """The end of what the latest start of a job wrote. The byte counts are those of the whole files."""

    job: str
    user: str  # whose job it is, as the back end knows it
    out: str
    err: str
    out_bytes: int
    err_bytes: int


@runtime_checkable
class KeepsOutput(Protocol):
    """A back end that keeps the output of jobs in a place that only it writes. Any thread may call it."""

    def output(self, job: str) -> Output | None:
        """The end of a job's output; None if there is none, or it cannot be read safely."""


NOT_RESTARTABLE = "it is not marked as restartable"
"""What every back end says to the order to stop a running job that its user has not marked."""


def nobody_to_give_to(reasons: Mapping[str, str]) -> list[Answer]:
    """The answers of a cluster that has no scheduler of its own."""
    return [Answer(job, False, "this cluster has no scheduler besides ADLRO", is_final=True) for job in reasons]


class Backend(Protocol):
    """A live cluster. One thread calls it at a time."""

    @property
    def name(self) -> str:
        """What it is, in a word: simulated, local, slurm, kubernetes, shadow."""

    @property
    def can_stop(self) -> bool:
        """Whether orders to stop a job so that it waits again are carried out."""

    @property
    def can_annotate(self) -> bool:
        """Whether users see what `annotate` is given."""

    def read(self) -> Snapshot:
        """The cluster now. Raises BackendError when it cannot be read whole."""

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders, in this order; an answer for each. Raises BackendError when the back end is gone.

        Carrying out an order twice does no harm: a job that is placed or runs already is not started again. The order
        to stop a job is given again as long as the job is stopping, so that a back end that first warns a job can end
        it later.
        """

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Hand waiting jobs (by id, with the reason) to the cluster's own scheduler for good; an answer for each.

        A cluster that has no scheduler of its own answers not done.
        """

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Show users a line about each waiting job where they look for it. What cannot be shown is left out."""

    def submit(self, submission: Submission) -> str:
        """Hand a job in, held for us; its id."""

    def cancel(self, job: str) -> None:
        """End a job for good, whether it waits or runs."""

    def close(self) -> None:
        """Let go of what it holds. Jobs that run go on where the back end can keep them."""


@runtime_checkable
class SubmitsAside(Protocol):
    """A back end whose submissions may take long because a user can hold them up. Turns go on meanwhile."""

    def submit_aside(self, submission: Submission, alone: AbstractContextManager[object]) -> str:
        """Hand a job in as `submit` does; its id. Any thread may call it, several at a time.

        `alone` is the lock of all other calls. It is taken only for a moment, never while a user's process runs.
        """


class Watched(Protocol):
    """A back end that can also say cheaply whether anything has changed: a turn then does not wait for its time.

    A back end without this method is read every turn, and only then.
    """

    def has_changed(self) -> bool:
        """Whether a job or a node may have changed since the latest read().

        It is asked about once a second and must cost far less than read(). Raises BackendError when nobody answers.
        A back end that knows the answer without asking anybody may have an attribute `probe_s`, and is asked so often.
        """


class Leadership(Protocol):
    """Who leads. Only one of all that share a lock does."""

    def take(self) -> bool:
        """Lead if nobody else does, at once; whether we lead now."""

    def holds(self) -> bool:
        """Whether we still lead; asked before every act."""

    def holder(self) -> str:
        """Who leads, as far as it can be told, in words."""

    def release(self) -> None:
        """Let the next one lead."""
