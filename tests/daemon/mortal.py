"""A world in which the daemon dies at any call to its cluster or its memory, while the cluster goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.errors import BackendError
from adlro.core.ports import ENDED, Answer, Backend, JobState, LiveJob, Order, Snapshot, Submission
from adlro.core.records import Job
from adlro.daemon.config import Config, load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.fence import Fenced
from adlro.daemon.running import Closing, DaemonParts, Decider
from adlro.daemon.store import Store, open_store
from adlro.live.service import DaemonMemory
from adlro.live.turn import Orchestrator, TurnSettings

FLAGS = {"policy.name": "sjf", "policy.fallback": "fcfs-first-fit"}
QUICK = TurnSettings(starts_s=0.01, compare_s=1e9, explained=0, alike=0, decide_s=5.0, decision_s=5.0)
"""Without the questions that are not asked here."""


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Fuse:
    """Burns down by one with each call; at 0 the process dies. `at` names one place where it does."""

    left: float = float("inf")
    at: str = ""
    deaths: int = 0
    places: list[str] = field(default_factory=list)

    def burn(self, place: str) -> None:
        self.left -= 1
        if self.left <= 0 or place == self.at:
            self.left, self.at = float("inf"), ""
            self.deaths += 1
            self.places.append(place)
            raise Killed(place)


class MortalMemory:
    """A memory at each of whose calls the process may die, before or after."""

    def __init__(self, store: Store, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name == "close":
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._fuse.burn(f"before {name}")
            answer = found(*given, **named)
            self._fuse.burn(f"after {name}")
            return answer

        return call


@dataclass
class World:
    """A simulated cluster that nothing kills, a store on a disk, and daemons that die."""

    folder: Path
    fuse: Fuse = field(default_factory=Fuse)
    clock: ByHand = field(default_factory=ByHand)
    is_gone: bool = False
    shift_s: float = 0.0
    flags: dict[str, Any] = field(default_factory=lambda: dict(FLAGS))
    settings: TurnSettings = QUICK
    name: str = "simulated"
    can_stop: bool = False
    can_resize: bool = False
    places_gpus: bool = False
    can_annotate: bool = False
    orders: list[Order] = field(default_factory=list)
    handed_in: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster = load_cluster("paper16")
        self.cluster = Simulated(
            cluster, speed_of, clock=self.clock, start_s=1.8e9, keep_ended_s=1e9, start_delay_s=5.0
        )
        self.store: Store | None = None
        self.daemon = self.born()

    # ---- the back end that the daemon sees

    def read(self) -> Snapshot:
        self._meet("read")
        snapshot = self.cluster.read()
        self.fuse.burn("after read")
        return replace(snapshot, time_s=snapshot.time_s + self.shift_s)

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        self._meet("act")
        answers = []
        for order in orders:
            answers += self.cluster.act([order])
            self.orders.append(order)
            self.fuse.burn("after an order")
        self.fuse.burn("after act")
        return answers

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        self._meet("give_back")
        return self.cluster.give_back(reasons)

    def annotate(self, lines: Mapping[str, str]) -> None:
        self.cluster.annotate(lines)

    def submit(self, submission: Submission) -> str:
        self._meet("submit")
        id = self.cluster.submit(submission)
        self.handed_in.append(id)
        self.fuse.burn("after submit")
        return id

    def cancel(self, job: str) -> None:
        self._meet("cancel")
        self.cluster.cancel(job)

    def close(self) -> None:
        """The cluster goes on."""

    def _meet(self, what: str) -> None:
        self.fuse.burn(f"before {what}")
        if self.is_gone:
            raise BackendError("the cluster does not answer.")

    # ---- lives

    def born(self) -> Daemon:
        """A new process."""
        return Daemon(load_config(None, self.flags | {"store.url": f"sqlite:{self.folder}/adlro.db"}), self.build)

    def build(self, config: Config) -> DaemonParts:
        self.store = open_store(config.store_url())
        memory: Any = MortalMemory(self.store, self.fuse)
        backend: Backend = self
        return DaemonParts(backend, memory, self.decide, clock=lambda: self.cluster.now_s)

    def decide(self, config: Config, backend: Fenced, memory: DaemonMemory) -> tuple[Decider, Sequence[Closing]]:
        return Orchestrator(backend, memory, config.policy.name, config.policy.fallback, self.settings), ()

    def turn(self) -> bool:
        """One turn; a daemon that dies in it is followed by another, without a word of farewell. Whether it lived."""
        return self.outlive(self.daemon.tick)

    def outlive(self, do: Callable[[], object]) -> bool:
        """Do something; whether the process lived through it."""
        try:
            do()
        except Killed:
            assert self.store is not None
            self.store._writer.close()
            self.store._reader.close()
            self.daemon._bell.close()
            self.daemon._ring.close()
            self.daemon = self.born()
            return False
        return True

    def submitted(self, jobs: int, gpus: Sequence[int] = (1, 2, 4)) -> None:
        """Hand jobs in, whoever dies over it."""
        for number in range(jobs):
            work = 60.0 * (1 + number % 7)
            job = Job("learning", work, gpus=gpus[number % len(gpus)], name=f"j{number}", user="ada", estimate=work)
            self.cluster.submit(Submission(job))

    def played_to_the_end(self, most: int = 400, step_s: float = 40.0) -> list[LiveJob]:
        """Turn after turn until nothing waits or runs; all jobs then."""
        for _ in range(most):
            self.turn()
            self.clock.move(step_s)
            jobs = self.cluster.read().jobs
            if all(job.state in ENDED for job in jobs):
                self.turn()
                return list(jobs)
        raise AssertionError("some jobs never ended")

    def check_all_ran_once(self, jobs: Sequence[LiveJob], starts: int = 1) -> None:
        """Every job finished, and started so often; and the records say the same."""
        assert [job.id for job in jobs if job.state is not JobState.FINISHED] == []
        assert {job.id: job.starts for job in jobs if job.starts > starts} == {}
        assert self.store is not None
        assert {job.id for job in self.store.history(10**6)} == {job.id for job in jobs}
        assert self.store.unanswered() == []
        known = {made.id: made.job for made in self.store.decisions(limit=10**6)}
        assert all(known[job.decision] == job.id for job in jobs), "each ran by a decision that was written down before"
