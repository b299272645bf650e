"""What the daemon knows and answers, as records: the API, the dashboard and the terminal show nothing else.

JSON has the same names as these fields.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from adlro.core.learned import JobSpeeds, LearnedTable
from adlro.core.ports import ENDED, Answer, JobState, LiveJob, Output, Part, Snapshot, Submission


@dataclass(frozen=True, slots=True)
class Alternative:
    """A place that was open for a job when it was decided, and how the policy judged it (the higher the better)."""

    parts: tuple[Part, ...]
    score: float | None  # Q of the network, or the policy's own score; None where the policy gives none
    runtime_s: float  # expected there
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """A past job that is similar to a job."""

    job: str
    name: str
    user: str
    runtime_s: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Mention:
    """A job that a sentence names by its id; its name and user, for those who may see them."""

    job: str
    name: str
    user: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that was made, with its reasons. `verb` is start or stop."""

    id: str
    time_s: float
    tick: int
    job: str
    verb: str
    parts: tuple[Part, ...]
    policy: str  # who decided: the policy, or the fallback
    reason: str  # in words, with ids of other jobs only: `with_names` adds the names that a reader may see
    runtime_s: float | None = None  # predicted there: the middle …
    low_s: float | None = None  # … and the interval (p10, p90)
    high_s: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    like: tuple[Like, ...] = ()
    mentions: tuple[Mention, ...] = ()  # the jobs that the reason names


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that an operator should know. `kind` is one word of a fixed list (docs/live-decisions.md)."""

    time_s: float
    kind: str
    text: str
    job: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """A speed that is not what it was thought to be: factor 0.7 means that it runs at 70 % of the expected speed.

    An empty `family` or `node`, and a `gpu` of None, mean all of them.
    """

    model: str
    factor: float
    jobs: int  # how many it was seen on
    since_s: float
    family: str = ""
    node: str = ""
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """When a waiting job is predicted to start, seconds since 1970; None: not foreseen."""

    job: str
    low_s: float | None
    middle_s: float | None
    high_s: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """One turn of the daemon: read, decide, act, read back."""

    number: int
    time_s: float
    policy: str  # who was asked
    decided_by: str  # who decided: the fallback, when the guard stepped in
    seconds: float  # how long the turn took
    waiting: int
    running: int
    decisions: tuple[Decision, ...] = ()
    answers: tuple[Answer, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    is_cut: bool = False  # the time for decisions was over before everybody had been asked for


@dataclass(frozen=True, slots=True)
class Compared:
    """What was measured, beside what the fallback is predicted to have come to over the same jobs."""

    time_s: float
    utilisation: float  # allocated share of the GPUs that are up
    jct_s: float | None  # mean time in the system within the window, of all its jobs, ended or not
    fallback_jct_s: float | None
    waiting: float | None = None  # jobs; not whole in a mean over several points
    running: float | None = None


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which past jobs: of a user, of a partition, on a node; an empty field does not filter."""

    user: str = ""
    partition: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """What the jobs that ended within one step of time used. `time_s` is its beginning."""

    time_s: float
    jobs: int
    gpu_s: float
    waited_s: float | None  # mean from submission to the latest start


@dataclass(frozen=True, slots=True)
class Usage:
    """What the jobs that ended between two moments used, and how long they waited."""

    since_s: float
    until_s: float
    jobs: int
    gpu_s: float
    failed: int
    waited_s: float | None  # mean …
    waited_median_s: float | None
    waited_p90_s: float | None
    ran_s: float | None  # mean time from start to end
    spent: tuple[Spent, ...] = ()  # the oldest first


@dataclass(frozen=True, slots=True)
class Stopping:
    """Whether running jobs may be stopped, how often they were, and what it costs."""

    is_on: bool
    restartable: int  # running jobs that are marked as restartable
    last_hour: int  # stops within the last hour …
    per_hour: int  # … of so many, …
    per_user_hour: int  # … of each user, …
    per_job: int  # … and of one job in its life
    under_way: tuple[str, ...]  # jobs that were told to stop and have not ended yet
    took_s: float | None  # median time from a stop to its end, as measured
    restart_s: float  # what stopping and restarting costs a job, as policies are told


@dataclass(frozen=True, slots=True)
class State:
    """All that is shown, at one moment."""

    snapshot: Snapshot
    tick: Tick | None
    backend: str
    policy: str
    fallback: str
    is_guarded: bool  # the fallback decides now
    is_leader: bool
    starts: Mapping[str, Start] = field(default_factory=dict)  # by job
    alarms: tuple[Alarm, ...] = ()  # the latest last
    drifts: tuple[Drift, ...] = ()
    stopping: Stopping | None = None
    history: tuple[Compared, ...] = ()  # the oldest first
    telemetry: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """By "node/index": utilisation, temperature (0..1 of the throttle point), memory …; None: missing."""
    placed: Mapping[str, Decision] = field(default_factory=dict)
    """By job: the decision that placed it, of jobs that do not wait and that this daemon has placed. The answer of the
    API leaves it out; `why` is answered from it."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job waits, or why it runs where it does."""

    job: str
    state: str
    dominant: str  # one word of a fixed list (docs/live-decisions.md): resources, priority, reserved, policy, down, …
    text: str  # a sentence or two for the user, with ids of other jobs only
    rule: str  # the rule that says so, as docs/semantics.md names it
    start: Start | None = None
    places: tuple[Mapping[str, str], ...] = ()  # for each pool: {"model", "answer"} why not there now
    ahead: int | None = None  # jobs that are expected to start before it
    decision: Decision | None = None  # the one that placed it, if it runs or ran
    short: str = ""  # the same in a few words, without names of others: for one line in squeue
    mentions: tuple[Mention, ...] = ()  # the jobs that the text names


def why_placed(job: LiveJob, decision: Decision | None) -> Why:
    """Why a job runs where it does, or how it ended. `decision` is the one that placed it."""
    if job.state in ENDED:
        text = {
            JobState.FINISHED: "It has finished.",
            JobState.FAILED: "It ended with an error, or at its limit.",
        }.get(job.state, "It was cancelled.")
        return Why(job.id, job.state, "ended", f"{text} {job.reason}".strip(), "", decision=decision, short=job.state)
    where = ", ".join(f"{part.count} × {part.model} on {part.node}" for part in job.parts) or "an unknown place"
    dominant = "running" if job.state is JobState.RUNNING else "starting"
    verb = "It runs on" if job.state is JobState.RUNNING else "It is about to start on"
    because = f" {decision.reason}" if decision is not None else " No decision of ours put it there."
    short = f"{'runs' if job.state is JobState.RUNNING else 'starts'} on {where}"
    named = decision.mentions if decision is not None else ()
    return Why(
        job.id, job.state, dominant, f"{verb} {where}.{because}", "", decision=decision, short=short, mentions=named
    )


def with_names(text: str, mentions: Sequence[Mention]) -> str:
    """A sentence with the names of the jobs that it names by id: "job 812" becomes "lattice-3 (job 812)"."""
    names = {mention.job: mention.name for mention in mentions if mention.name}
    if not names:
        return text
    ids = "|".join(re.escape(id) for id in sorted(names, key=len, reverse=True))
    return re.sub(rf"\bjob ({ids})(?![\w+-]|\.\w)", lambda found: f"{names[found[1]]} ({found[0]})", text)


@dataclass(frozen=True, slots=True)
class OtherWish:
    """A waiting job that asks for something else; None: as it does now."""

    job: str
    gpus: int | None = None
    models: tuple[str, ...] | None = None  # GPU models; empty: any


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A question: hand in these jobs now, let others ask for something else, change nodes, use that policy."""

    jobs: tuple[Submission, ...] = ()
    add_nodes: tuple[tuple[str, int, int], ...] = ()  # (model, GPUs on each, how many)
    remove_nodes: tuple[str, ...] = ()
    policy: str = ""  # "" is the one in use
    change: tuple[OtherWish, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The answer: means over the jobs that wait now, with and without the change.

    `starts` has the new jobs, then the jobs that ask for something else.
    """

    jct_s: float | None
    jct_if_s: float | None
    makespan_s: float | None
    makespan_if_s: float | None
    starts: tuple[Start, ...]
    changed: int  # jobs that would start at another time
    seconds: float  # how long the answer took
    text: str  # one sentence


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for listeners. Numbers grow by one; after a gap, read the state again."""

    number: int
    time_s: float
    kind: str  # tick, submitted, decided, started, ended, cancelled, alarm, policy
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks: `role` is viewer, user or operator."""

    name: str
    role: str


STANDING_BY: Final = "a standby"
"""How the reason of a daemon begins that is not ready because another one leads."""

NOT_READY: Final = frozenset({
    "the daemon is starting",
    STANDING_BY,
    "the cluster or the store cannot be opened",
    "the policies are being compiled",
    "the first turn is still running",
    "the cluster cannot be read",
    "rights are missing",
    "the latest reading of the cluster is too old",
    "the daemon does not answer",
    "the daemon has ended",
})  # fmt: skip
"""Reasons for not being ready that name nobody and nothing: everybody may read them."""


def reason_for_all(why: str) -> str:
    """Why the daemon is not ready, without details that only those with a token may know."""
    if found := re.match(r"compiling: \d+ of \d+", why):
        return found[0]
    reason = why.partition(":")[0].rstrip(".")
    return reason if reason in NOT_READY else "not ready"


class Service(Protocol):
    """What the API may ask of the daemon; all of it may be called from any thread.

    The API runs in a process of its own (api/host.py): what is given and answered must be data that can be pickled.
    A new method here can be called from there at once.
    """

    def state(self) -> State:
        """The latest state; it does not wait for a tick."""

    def job(self, id: str) -> LiveJob | None:
        """One job, also one that ended a while ago."""

    def submit(self, submission: Submission) -> str:
        """Submit a job; returns its id."""

    def cancel(self, job: str) -> None:
        """End a job."""

    def why(self, job: str) -> Why | None:
        """Why a job waits, or why it runs where it does; None if there is no such job."""

    def speeds(self, job: str) -> JobSpeeds | None:
        """What is believed of a job's speed on each GPU model, and why; None if there is no such job."""

    def learned_speeds(self) -> LearnedTable:
        """The families of jobs that were found, with their speeds; none unless speeds are learnt."""

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """The effect of a change, played forward from the latest snapshot."""

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        """Decisions, the latest first."""

    def use_policy(self, name: str) -> None:
        """Decide with this policy from the next tick on. Raises CatalogueError if there is none of that name."""

    def events(self, after: int, wait_s: float) -> Sequence[Event]:
        """Events with a number above `after`: at once if there are any, else after waiting up to this many seconds."""

    def is_ready(self) -> tuple[bool, str]:
        """Whether the latest tick is recent and whole; else why not, as "reason: details". It never waits.

        Everybody is told the reason if it is one of NOT_READY; only those with a token are told the details.
        """

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        """The measured history between two moments, the oldest first; the older the coarser."""

    def past(self, asked: HistoryQuery, before_s: float | None, limit: int) -> Sequence[LiveJob]:
        """Jobs that ended before a moment (None: now), the latest first."""

    def usage(self, asked: HistoryQuery, since_s: float, until_s: float, step_s: float) -> Usage:
        """What jobs that ended between two moments used, in total and in steps of `step_s`."""

    def output(self, job: str) -> Output | None:
        """The end of a job's output; None where the back end keeps no output, or has none for this job."""


class DaemonMemory(Protocol):
    """What the daemon remembers after a crash.

    It owns no truth about the cluster: it can be lost and rebuilt.

    One thread writes. Methods raise StoreError on failure; the daemon then continues without the memory, with an alarm.
    """

    def first_seen(self, jobs: Sequence[LiveJob]) -> Mapping[str, float]:
        """Note new jobs; returns by id the submit time under which each was first noted."""

    def intend(self, decisions: Sequence[Decision]) -> None:
        """Record decisions before they are acted on."""

    def answered(self, decisions: Sequence[Decision], answers: Sequence[Answer]) -> None:
        """Record the answers to decisions."""

    def unanswered(self) -> Sequence[Decision]:
        """Decisions that were recorded and have no answer: the daemon died in between. The cluster knows the truth."""

    def ended(self, jobs: Sequence[LiveJob]) -> None:
        """Record jobs that ended, once each: the history from which runtimes and speeds are learnt."""

    def history(self, limit: int) -> Sequence[LiveJob]:
        """The latest jobs that ended, the oldest first."""

    def job(self, id: str) -> LiveJob | None:
        """A job that ended, if it is remembered."""

    def keep_points(self, points: Sequence[Compared]) -> None:
        """Record points of the measured history."""

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        """The measured history between two moments, the oldest first; the older the coarser."""

    def ticked(self, tick: Tick) -> None:
        """Record a turn with its alarms."""

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        """Decisions, the latest first; `before` is the id of a decision."""

    def alarms(self, limit: int) -> Sequence[Alarm]:
        """The latest alarms, the latest last."""

    def get(self, key: str) -> str | None:
        """A small value by its name."""

    def put(self, key: str, value: str) -> None:
        """Keep a small value."""
