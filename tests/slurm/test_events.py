"""The daemon acts on what happens in Slurm, and does not wait for its next turn."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.daemons import until
from tests.slurm.lab import Lab, running

from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.opening import open_parts

HELD = ("--gres=gpu:1", "--hold", "--comment=adlro:held")


TURN_S, BACKFILL_S = 240, 120
"""So far apart are the turns of the daemon and of Slurm: what waits for one of them is not soon."""

SOON_S = 30.0
"""Three seconds are Slurm's batch_sched_delay; beside it the daemon asks once a second, and machines may be slow."""


def times(lab: Lab, job: str) -> list[float]:
    """What a job printed: when it began, and when it ended."""
    path = lab.folder / "jobs" / f"{job}.out"
    return [float(word) for word in path.read_text().split()] if path.exists() else []


@pytest.fixture(scope="module")
def usual() -> Iterator[Lab]:
    """A Slurm with its usual delay after events that looks for work by itself less often than usual."""
    usual = f"SchedulerParameters=batch_sched_delay=3,sched_interval={TURN_S},bf_interval={BACKFILL_S}"
    with running(Lab(conf=[usual])) as started:
        yield started


@pytest.mark.parametrize("way", ["rest", "commands"])
def test_a_dependent_starts_seconds_after_its_parent_although_turns_are_far_apart(
    usual: Lab, tmp_path: Path, way: str
) -> None:
    flags = {
        "backend.kind": "slurm",
        "slurm.conf": usual.environment["SLURM_CONF"],
        "slurm.rest": f"unix:{usual.socket}" if way == "rest" else "",
        "store.url": f"sqlite:{tmp_path}/adlro.db",
        "policy.name": "fcfs",
        "policy.fallback": "fcfs",
        "tick_s": float(TURN_S),
    }
    daemon = Daemon(load_config(None, flags), open_parts, flags=flags)
    turning = threading.Thread(target=daemon.run)
    turning.start()
    try:
        until(lambda: daemon.is_ready()[0], 120)
        parent = usual.sbatch("date +%s.%N; sleep 3; date +%s.%N", *HELD)
        child = usual.sbatch("date +%s.%N", *HELD, f"--dependency=afterok:{parent}")
        usual.wait(lambda: times(usual, child), "the start of the dependent", 100)
        assert times(usual, child)[0] - times(usual, parent)[1] < SOON_S
    finally:
        daemon.stop()
        turning.join(timeout=60)
        usual.run("scancel", "--partition=gpu")
    assert not turning.is_alive()
