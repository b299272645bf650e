"""Running jobs that are stopped on a real Slurm: only marked ones, after their signal, and each runs again once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.slurm.driving import RADEON, Driven

from adlro.core.ports import ENDED, Answer, Backend, JobState, Order, Part
from adlro.daemon.store import open_store
from adlro.live.limits import PreemptTable
from adlro.live.turn import Orchestrator, TurnSettings

STOPPING = TurnSettings(
    starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(is_on=True, least_run_s=0.0)
)
ALL_FOUR = Part("radeon0", RADEON, 4)

SCRIPT = """#!/bin/sh
#SBATCH --signal=B:USR1@1
trap 'echo checkpoint >> MARKS; LEAVE' USR1
echo begin >> MARKS
if grep -q checkpoint MARKS; then echo end >> MARKS; exit 0; fi
while :; do sleep 0.1; done
"""
"""A job that never ends unless it goes on from its checkpoint. It says in its script which signal it wants."""


def hand_in(driven: Driven, name: str, script: str, comment: str) -> str:
    """Submit a job for all GPUs of a node, as a user does."""
    file = driven.lab.folder / "jobs" / f"{name}.sh"
    file.write_text(script)
    words = f"--comment=adlro:held adlro:models=mi50 {comment}"
    said = driven.lab.run("sbatch", "--parsable", "--hold", "--gres=gpu:4", f"--chdir={file.parent}", words, str(file))
    return said.strip()


class DiedError(BaseException):
    """The daemon is gone."""


@dataclass
class DiesAtStops:
    """A back end whose daemon dies right after it has given an order to stop a job."""

    backend: Backend
    lives: int = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        answers = self.backend.act(orders)
        if self.lives and not all(order.is_start for order in orders):
            self.lives -= 1
            raise DiedError
        return answers


@pytest.mark.parametrize("leaves", [False, True])
def test_a_restartable_job_gets_its_signal_is_requeued_and_runs_once_more_although_the_daemon_is_killed_twice(
    by_socket: Driven, tmp_path: Path, leaves: bool
) -> None:
    marks, short_marks = (by_socket.lab.folder / "jobs" / f"{name}-{leaves}" for name in ("marks", "short"))
    script = SCRIPT.replace("MARKS", str(marks)).replace("LEAVE", "exit 0" if leaves else ":")
    long = hand_in(by_socket, "long", script, "adlro:restartable adlro:estimate=400000")
    backend = DiesAtStops(by_socket.backend)

    def born() -> Orchestrator:
        store = open_store(f"sqlite:{tmp_path}/adlro.db")
        return Orchestrator(cast(Backend, backend), store, "srtf", "fcfs", STOPPING)

    daemon, short, deaths, end = born(), "", 0, time.monotonic() + 60
    while not short or by_socket.job(long).state not in ENDED:
        assert time.monotonic() < end, by_socket.job(long)
        if not short and marks.exists() and by_socket.job(long).state is JobState.RUNNING:
            line = f"#!/bin/sh\necho short >> {short_marks}\nsleep 0.5\n"
            short = hand_in(by_socket, "short", line, "adlro:estimate=40")
        try:
            daemon.tick()
        except DiedError:
            daemon, deaths = born(), deaths + 1
        if deaths == 1 and by_socket.job(long).state is JobState.WAITING:
            daemon, deaths = born(), 2  # once more, between its stop and its restart
        time.sleep(0.1)
    assert marks.read_text().split() == ["begin", "checkpoint", "begin", "end"]
    assert short_marks.read_text().split() == ["short"]
    ended = by_socket.job(long)
    assert (ended.state, ended.starts, deaths) == (JobState.FINISHED, 2, 2)
    assert by_socket.job(short).starts == 1


def test_a_running_job_without_the_mark_is_never_stopped(by_socket: Driven, tmp_path: Path) -> None:
    name = hand_in(by_socket, "unmarked", "#!/bin/sh\nsleep 2\n", "adlro:estimate=400000")
    by_socket.place(name, ALL_FOUR)
    by_socket.until(name, JobState.RUNNING)
    answer = by_socket.order(name)
    assert (answer.done, answer.said) == (False, "it is not marked as restartable")
    hand_in(by_socket, "waits", "#!/bin/sh\ntrue\n", "adlro:estimate=40")
    daemon = Orchestrator(by_socket.backend, open_store("sqlite::memory:"), "srtf", "fcfs", STOPPING)
    while by_socket.job(name).state not in ENDED:
        assert not [made for made in daemon.tick().decisions if made.verb == "stop"]
        time.sleep(0.2)
    assert (by_socket.job(name).state, by_socket.job(name).starts) == (JobState.FINISHED, 1)
