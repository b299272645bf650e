"""A cluster that does what it is told, at once, and a memory that forgets nothing: stand-ins for the daemon's ends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import BackendError, StoreError
from adlro.core.ports import ENDED, Answer, JobState, LiveJob, Order, Part, Setback, Snapshot, Submission
from adlro.core.records import Cluster, Job, Link, Node
from adlro.live.service import Alarm, Compared, Decision, Tick

EPOCH_S = 1_700_000_000.0


def waiting(id: str, family: str = "simulation", at_s: float = 0.0, **given: object) -> LiveJob:
    """A job that waits since so many seconds after the beginning."""
    given.setdefault("estimate", 3600.0)
    job = Job(family, 0.0, EPOCH_S + at_s, **given)  # type: ignore[arg-type]
    return LiveJob(id, job, JobState.WAITING)


def running(
    id: str, parts: tuple[Part, ...], family: str = "simulation", at_s: float = 0.0, **given: object
) -> LiveJob:
    """A job that runs since so many seconds after the beginning."""
    given.setdefault("gpus", sum(part.count for part in parts))
    job = waiting(id, family, at_s, **given)
    return replace(job, state=JobState.RUNNING, parts=parts, started_s=EPOCH_S + at_s, starts=1)


def snapshot(*jobs: LiveJob, cluster: str = "paper16", at_s: float = 0.0, **given: object) -> Snapshot:
    """What was seen so many seconds after the beginning."""
    return Snapshot(EPOCH_S + at_s, load_cluster(cluster), jobs, **given)  # type: ignore[arg-type]


def large_cluster(nodes: int, gpus: int = 4) -> Cluster:
    """A cluster of so many nodes of three models."""
    small = load_cluster("paper16")
    kinds = (small.nodes[0], small.nodes[2], small.nodes[3])
    made = tuple(
        Node(f"n{n}", 32, 256, tuple(replace(group, count=gpus) for group in kinds[n % 3].gpus), kinds[n % 3].link)
        for n in range(nodes)
    )
    return Cluster("large", "", made, Link("infiniband-edr", 25), small.models)


Seconds = Callable[[LiveJob, tuple[Part, ...]], float]


@dataclass
class Obedient:
    """A back end in memory. `seconds` says how long a job will run where it was put; time moves when told."""

    cluster: Cluster
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    now_s: float = EPOCH_S
    down: dict[str, str] = field(default_factory=dict)
    seconds: Seconds = lambda job, parts: 100.0
    name: str = "stand-in"
    can_stop: bool = True
    can_resize: bool = True
    places_gpus: bool = False
    can_annotate: bool = True
    grace_s: float = 0.0  # a job that is told to stop is warned, and put back by an order that comes so long after
    warned: dict[str, float] = field(default_factory=dict)
    is_gone: bool = False
    dies_in_act: bool = False
    refuses: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    orders: list[Order] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    given_back: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)

    def read(self) -> Snapshot:
        """What stands."""
        if self.is_gone:
            raise BackendError("the stand-in does not answer.")
        return Snapshot(self.now_s, self.cluster, tuple(self.jobs.values()), dict(self.down))

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Do it."""
        if self.is_gone or self.dies_in_act:
            raise BackendError("the stand-in does not answer.")
        return [self.carry_out(order) for order in orders]

    def carry_out(self, order: Order) -> Answer:
        """One order."""
        self.orders.append(order)
        job = self.jobs[order.job]
        if order.job in self.refuses:
            return Answer(order.job, False, "it is refused here")
        if order.job in self.ignores:
            return Answer(order.job, True)
        if not order.is_start:
            if self.now_s < self.warned.setdefault(job.id, self.now_s) + self.grace_s:
                self.jobs[job.id] = replace(job, is_stopping=True)
                return Answer(job.id, True, "it was warned", is_pending=True)
            del self.warned[job.id]
            self.jobs[job.id] = replace(job, state=JobState.WAITING, parts=(), started_s=None, is_stopping=False)
            self.ends.pop(job.id, None)
            return Answer(job.id, True)
        if job.state is not JobState.WAITING:
            return Answer(job.id, True, "it runs already")
        self.starts[job.id] = self.starts.get(job.id, 0) + 1
        self.jobs[job.id] = replace(
            job, state=JobState.RUNNING, parts=order.parts, started_s=self.now_s, starts=job.starts + 1,
            decision=order.decision,
        )  # fmt: skip
        self.ends[job.id] = self.now_s + self.seconds(job, order.parts)
        return Answer(job.id, True)

    def wait(self, seconds: float) -> None:
        """Let time pass, and jobs end."""
        until = self.now_s + seconds
        for id, end in sorted(self.ends.items(), key=lambda item: item[1]):
            if end <= until:
                self.jobs[id] = replace(self.jobs[id], state=JobState.FINISHED, ended_s=end)
                del self.ends[id]
        self.now_s = until

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """They are not ours any more."""
        for id, reason in reasons.items():
            self.given_back[id] = reason
            self.jobs[id] = replace(self.jobs[id], managed=False, setback=Setback.NONE)
        return [Answer(id, True) for id in reasons]

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Keep them."""
        self.lines.update(lines)

    def submit(self, submission: Submission) -> str:
        """One more job."""
        id = f"job{len(self.jobs) + 1}"
        job = replace(submission.job, submit_s=self.now_s)
        self.jobs[id] = LiveJob(id, job, JobState.WAITING)
        return id

    def cancel(self, job: str) -> None:
        """End it."""
        self.jobs[job] = replace(self.jobs[job], state=JobState.CANCELLED, ended_s=self.now_s)
        self.ends.pop(job, None)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Notebook:
    """A memory in memory. `is_full` makes every writing fail."""

    is_full: bool = False
    seen: dict[str, float] = field(default_factory=dict)
    made: dict[str, Decision] = field(default_factory=dict)
    said: dict[str, Answer] = field(default_factory=dict)
    past: dict[str, LiveJob] = field(default_factory=dict)
    ticks: list[Tick] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    measured: list[Compared] = field(default_factory=list)

    def check(self) -> None:
        """Fail if it is full."""
        if self.is_full:
            raise StoreError("no space is left on the disk.")

    def first_seen(self, jobs: Sequence[LiveJob]) -> Mapping[str, float]:
        self.check()
        for job in jobs:
            self.seen.setdefault(job.id, job.job.submit_s)
        return {job.id: self.seen[job.id] for job in jobs}

    def keep_points(self, points: Sequence[Compared]) -> None:
        self.check()
        self.measured += points

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        return [point for point in self.measured if since_s <= point.time_s <= until_s]

    def intend(self, decisions: Sequence[Decision]) -> None:
        self.check()
        self.made.update({decision.id: decision for decision in decisions})

    def answered(self, decisions: Sequence[Decision], answers: Sequence[Answer]) -> None:
        self.check()
        self.said.update({decision.id: answer for decision, answer in zip(decisions, answers, strict=True)})

    def unanswered(self) -> Sequence[Decision]:
        self.check()
        return [decision for id, decision in self.made.items() if id not in self.said]

    def ended(self, jobs: Sequence[LiveJob]) -> None:
        self.check()
        assert all(job.state in ENDED and job.id not in self.past for job in jobs)
        self.past.update({job.id: job for job in jobs})

    def history(self, limit: int) -> Sequence[LiveJob]:
        return list(self.past.values())[-limit:]

    def job(self, id: str) -> LiveJob | None:
        return self.past.get(id)

    def ticked(self, tick: Tick) -> None:
        self.check()
        self.ticks.append(tick)

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        found = [made for made in self.made.values() if not job or made.job == job]
        found = [made for made in found if not before or made.id < before]
        return sorted(found, key=lambda made: made.id, reverse=True)[:limit]

    def alarms(self, limit: int) -> Sequence[Alarm]:
        return [alarm for tick in self.ticks for alarm in tick.alarms][-limit:]

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def put(self, key: str, value: str) -> None:
        self.check()
        self.values[key] = value


@dataclass
class Watch:
    """A clock that moves when told."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time
