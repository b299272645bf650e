"""What the daemon remembers is bounded: many thousands of jobs leave no more behind than some hundreds."""

from collections.abc import Iterator

from tests.live.stand_in import large_cluster

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.catalogue.speeds import speed_of
from adlro.core.ports import Submission
from adlro.core.records import Job
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.keep import Keep
from adlro.daemon.opening import IN_MEMORY_ROWS, open_memory
from adlro.daemon.running import DaemonParts
from adlro.daemon.store import open_store
from adlro.live.news import KEPT_EVENTS
from adlro.live.turn import Orchestrator, TurnSettings

TURN_S = 3600.0
EACH_TURN = 60


def arrivals() -> Iterator[Submission]:
    """Short jobs without end, each with a name of its own."""
    number = 0
    while True:
        job = Job("data", 300.0, number * TURN_S / EACH_TURN, user=f"u{number % 40}", name=f"n{number}", estimate=300.0)
        yield Submission(job)
        number += 1


def sizes(thing: object) -> dict[str, int]:
    """How many elements each container of an object has."""
    names = getattr(type(thing), "__slots__", None) or vars(thing)
    found = {name: getattr(thing, name) for name in names}
    return {
        name: len(value) for name, value in found.items() if hasattr(value, "__len__") and not isinstance(value, str)
    }


def test_no_container_of_the_daemon_grows_with_the_jobs_that_were() -> None:
    clock = ByHand()
    backend = Simulated(large_cluster(32), speed_of, clock=clock, arrivals=arrivals(), keep_ended_s=2 * TURN_S)
    memory = open_store("sqlite::memory:", Keep(decisions=300, jobs=300, ticks=50))
    settings = TurnSettings(history=300, kept_history=20, compare_s=1e9, starts_s=0.01)

    def decide(config: object, fenced: Simulated, store: object) -> tuple[Orchestrator, tuple[()]]:
        return Orchestrator(fenced, memory, "fcfs", "fcfs", settings), ()

    flags = {"policy.name": "fcfs", "policy.fallback": "fcfs"}
    parts = DaemonParts(backend, memory, decide, lambda: backend.now_s)  # type: ignore[arg-type]
    daemon = Daemon(load_config(None, flags), lambda config: parts)
    try:
        for _ in range(70):
            daemon.tick()
            clock.move(TURN_S)
        assert backend._submitted > 4000
        assert daemon._running is not None
        for thing in (daemon._running.decider, daemon._running, backend):
            for name, size in sizes(thing).items():
                assert size <= 1500, f"{type(thing).__name__}.{name} has {size}"
        assert len(daemon.events(1, 0.0)) <= KEPT_EVENTS
    finally:
        daemon.close()


def test_a_store_without_a_file_keeps_little_because_it_takes_memory() -> None:
    flags = {"backend.kind": "simulated", "policy.name": "fcfs", "policy.fallback": "fcfs"}
    memory, notes = open_memory(load_config(None, flags))
    assert notes == ()
    keep = memory._keep
    assert max(keep.decisions, keep.jobs, keep.ticks, keep.alarms) <= IN_MEMORY_ROWS
    assert keep.days < 1
    memory.close()
