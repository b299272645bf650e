"""What a leader runs: its parts, and what it told listeners about each job."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

from adlro.core.errors import BackendError
from adlro.core.learned import JobSpeeds, LearnedTable
from adlro.core.ports import (
    ENDED,
    Backend,
    JobState,
    LiveJob,
    Snapshot,
)
from adlro.daemon.config import Config
from adlro.daemon.store import Store
from adlro.live.service import (
    DaemonMemory,
    State,
    Tick,
    WhatIf,
    WhatIfAnswer,
    Why,
)

if TYPE_CHECKING:  # it imports the compiler, which tests of the daemon do without
    pass
from adlro.daemon.fence import Fenced

KEPT_FRESH: Final = 10_000


class Decider(Protocol):
    """What the daemon needs of an orchestrator (live/turn.py)."""

    def tick(self) -> Tick:
        """One turn."""

    def state(self) -> State:
        """The latest state. Raises BackendError while the cluster has never been read."""

    def why(self, job: str) -> Why | None:
        """Why a job waits, or runs where it does."""

    def speeds(self, job: str) -> JobSpeeds | None:
        """What is believed of a job's speed on each model."""

    def learned_speeds(self) -> LearnedTable:
        """The families of jobs that were found."""

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """The effect of a change."""

    def use_policy(self, name: str) -> None:
        """Decide with this policy from the next tick on."""

    @property
    def wake_s(self) -> float:
        """When the policy wants to be asked again if nothing changes, by the cluster's clock; inf: no time named."""


class Closing(Protocol):
    """Something that must be closed."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """The parts of a daemon that leads. `decide` makes an orchestrator, again when the config changes."""

    backend: Backend
    memory: Store
    decide: Callable[[Config, Fenced, DaemonMemory], tuple[Decider, Sequence[Closing]]]
    clock: Callable[[], float] = time.time
    notes: tuple[str, ...] = ()


@final
class Running:
    """What a leader holds; all of it is closed together."""

    def __init__(self, parts: DaemonParts, backend: Fenced, config: Config) -> None:
        self.backend, self.memory, self.clock = backend, parts.memory, parts.clock
        self._parts = parts
        self._closing: Sequence[Closing] = ()
        self.decide_by(config)
        self.jobs: dict[str, LiveJob] = {}
        self.fresh: dict[str, LiveJob] = {}  # submitted, and not in a snapshot yet
        self.cancelled: set[str] = set()  # told already
        self.has_looked = False
        self.lacks: set[str] = set()  # rights that are missing, as we told

    def decide_by(self, config: Config) -> None:
        """Make an orchestrator from a config; it learns from the cluster and the memory what the previous one knew."""
        decider, closing = self._parts.decide(config, self.backend, self.memory)
        for each in self._closing:
            each.close()
        self.decider, self._closing = decider, closing

    def policy_in_use(self) -> str:
        """The policy that was last switched to; "" before the first turn."""
        try:
            return self.decider.state().policy
        except BackendError:
            return ""

    def add(self, job: LiveJob) -> None:
        """Remember a job until a snapshot shows it."""
        while len(self.fresh) >= KEPT_FRESH:
            self.fresh.pop(next(iter(self.fresh)))
        self.fresh[job.id] = job

    def look(self, snapshot: Snapshot) -> list[tuple[str, LiveJob]]:
        """What happened to jobs since the last look: kind of event and job, in the snapshot's order."""
        before, self.jobs = self.jobs, {job.id: job for job in snapshot.jobs}
        news: list[tuple[str, LiveJob]] = []
        for job in snapshot.jobs:
            was = before.get(job.id)
            if was is job:
                continue
            if was is None and self.has_looked and job.id not in self.fresh:
                news.append(("submitted", job))
            if job.state is JobState.RUNNING and (
                was is None or was.state is not job.state or was.starts != job.starts
            ):
                news.append(("started", job))
            if job.state in ENDED and (was is None or was.state not in ENDED):
                kind = "cancelled" if job.state is JobState.CANCELLED else "ended"
                if kind == "ended" or job.id not in self.cancelled:
                    news.append((kind, job))
                self.cancelled.discard(job.id)
        for id in [id for id in list(self.fresh) if id in self.jobs]:
            del self.fresh[id]
        self.cancelled = {id for id in self.cancelled.copy() if id in self.jobs or id in self.fresh}
        is_first, self.has_looked = not self.has_looked, True
        return [] if is_first else news

    def close(self) -> None:
        """Close everything, even if closing one part fails."""
        with ExitStack() as stack:
            stack.callback(self.memory.close)
            stack.callback(self.backend.close)
            for each in self._closing:
                stack.callback(each.close)
