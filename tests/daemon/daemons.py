"""A daemon around stand-ins: an orchestrator that starts whatever waits, in one turn, and a cluster that obeys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.live.stand_in import Obedient

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import BackendError, CatalogueError, StoreError
from adlro.core.learned import JobSpeeds, LearnedTable
from adlro.core.ports import ENDED, Backend, JobState, Leadership, LiveJob, Order, Part
from adlro.core.records import Job
from adlro.daemon.config import Config, load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.fence import Fenced
from adlro.daemon.running import DaemonParts, Decider
from adlro.daemon.store import Store, open_store
from adlro.live.service import Alarm, DaemonMemory, Decision, State, Tick, WhatIf, WhatIfAnswer, Why

HERE = Part("volta0", "v100-sxm2-16gb", 1)


@dataclass
class Eager:
    """An orchestrator (daemon.Decider) that starts every job that waits. `bug` is raised in place of a turn."""

    backend: Backend
    memory: DaemonMemory
    policy: str = "fcfs"
    bug: Exception | None = None
    number: int = 0
    latest: State | None = None
    alarms: list[Alarm] = field(default_factory=list)
    cut_for: int = 0
    """So many turns have time for one decision only."""
    wake_s: float = math.inf

    def tick(self) -> Tick:
        if self.bug is not None:
            raise self.bug
        self.number += 1
        try:
            seen = self.backend.read()
        except BackendError as error:
            return Tick(
                self.number, 0.0, self.policy, self.policy, 0.001, 0, 0, alarms=(Alarm(0.0, "backend", str(error)),)
            )
        waiting = [job for job in seen.jobs if job.state is JobState.WAITING]
        is_cut, self.cut_for = self.cut_for > 0, max(0, self.cut_for - 1)
        decisions = tuple(
            Decision(
                f"{self.number}-{job.id}", seen.time_s, self.number, job.id, "start", (HERE,), self.policy, "it waits"
            )
            for job in (waiting[:1] if is_cut else waiting)
        )
        alarms: tuple[Alarm, ...] = ()
        try:
            self.memory.first_seen(seen.jobs)
            self.memory.intend(decisions)
        except StoreError as error:
            alarms = (Alarm(seen.time_s, "store", str(error)),)
        answers = tuple(self.backend.act([Order(made.job, made.id, made.parts) for made in decisions]))
        try:
            self.memory.answered(decisions, answers)
            self.memory.ended([job for job in seen.jobs if job.state in ENDED])
        except StoreError as error:
            alarms = (Alarm(seen.time_s, "store", str(error)),)
        seen = self.backend.read()
        running = sum(job.state is JobState.RUNNING for job in seen.jobs)
        tick = Tick(
            self.number, seen.time_s, self.policy, self.policy, 0.001, len(waiting), running, decisions, answers,
            alarms, is_cut,
        )  # fmt: skip
        self.latest = State(seen, tick, self.backend.name, self.policy, "fcfs", False, True)
        return tick

    def state(self) -> State:
        if self.latest is None:
            raise BackendError("the cluster has not been read yet.")
        return replace(self.latest, policy=self.policy)

    def why(self, job: str) -> Why | None:
        return Why(job, "waiting", "policy", "it waits", "4.2") if self.latest else None

    def speeds(self, job: str) -> JobSpeeds | None:
        return JobSpeeds("", {}, ()) if self.latest else None

    def learned_speeds(self) -> LearnedTable:
        return LearnedTable("", (), 0, 0, "live")

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        return WhatIfAnswer(1.0, 2.0, 3.0, 4.0, (), 0, 0.001, "it would be worse")

    def use_policy(self, name: str) -> None:
        if name not in ("fcfs", "sjf"):
            raise CatalogueError(f"no policy {name!r}.")
        self.policy = name


@dataclass
class Made:
    """What was built for a daemon, the latest last."""

    backend: Obedient
    stores: list[Store] = field(default_factory=list)
    deciders: list[Eager] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    wrong: Exception | None = None

    def build(self, config: Config) -> DaemonParts:
        """The parts of a daemon."""
        if self.wrong is not None:
            raise self.wrong
        self.stores.append(open_store(config.store_url()))
        return DaemonParts(self.backend, self.stores[-1], self.decide, clock=lambda: self.backend.now_s)

    def decide(self, config: Config, backend: Fenced, memory: DaemonMemory) -> tuple[Decider, Sequence["Made"]]:
        """An orchestrator."""
        self.deciders.append(Eager(backend, memory))
        self.deciders[-1].use_policy(config.policy.name)
        return self.deciders[-1], [self]

    def close(self) -> None:
        """What the daemon does when it lets go of an orchestrator."""
        self.closed.append("orchestrator")


FLAGS = {"policy.name": "fcfs", "policy.fallback": "fcfs", "tick_s": 0.05}


def new_parts() -> Made:
    """The parts of a daemon on the paper's cluster."""
    return Made(Obedient(load_cluster("paper16")))


def made_daemon(made: Made | None = None, leadership: Leadership | None = None, **flags: object) -> tuple[Daemon, Made]:
    """A daemon around stand-ins; `store_url="…"` is the flag store.url."""
    made = made or new_parts()
    named = {name if name in Config.model_fields else name.replace("_", ".", 1): value for name, value in flags.items()}
    config = load_config(None, FLAGS | named)
    return Daemon(config, made.build, leadership, flags=FLAGS | named), made


def a_job(user: str = "ada", name: str = "train") -> Job:
    return Job("learning", 60.0, user=user, name=name)


def until(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that another thread or process does; never longer than it needs."""
    import time

    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def states(jobs: Sequence[LiveJob]) -> dict[str, str]:
    return {job.id: str(job.state) for job in jobs}
