"""What the simulated cluster knows of a job, and jobs as they arrive."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from adlro.core.ports import (
    JobState,
    Part,
    Submission,
)
from adlro.core.records import WHOLE_GPU, Job

SECONDS_IF_UNSAID: Final = 600.0
"""How long a job runs on the reference model if its user says nothing about its work."""


class Entry:
    """One job with what only the cluster knows: its true work, and how much of it is done."""

    __slots__ = (
        "began", "decision", "done", "end_reads", "ended", "exit_code", "held", "id", "job", "number", "parts",
        "rate", "reason", "running", "saved", "shown", "signal", "since", "started", "starts", "state", "version",
        "work",
    )  # fmt: skip

    def __init__(self, number: int, job: Job, shown: Job, work: float) -> None:
        self.id, self.number, self.job, self.shown, self.work = str(number), number, job, shown, work
        self.running = job  # with the GPUs that it has, or last had
        self.state = JobState.WAITING
        self.parts: tuple[Part, ...] = ()
        self.started: float | None = None  # this stretch, or the last one
        self.ended: float | None = None
        self.starts = 0
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.reason = self.decision = ""
        self.version = 0  # events of an older version are void
        self.done = self.saved = 0.0  # work done, and what of it a failure cannot take away
        self.rate = 0.0  # work a second, as worn as its GPUs are …
        self.since = self.began = 0.0  # … since then; and when this stretch began
        self.held = 0.0  # seconds on GPUs in earlier stretches
        self.end_reads = 0  # how often the cluster had been read when it ended


def spoken_work(job: Job) -> float:
    """The work of a job whose user does not give it: its estimate, else some minutes on each GPU."""
    return job.estimate or SECONDS_IF_UNSAID * max(1.0, job.gpus * job.share / WHOLE_GPU)


def arriving(jobs: Iterable[Job]) -> Iterator[Submission]:
    """Jobs as a stream of submissions, by their submit times. All are restartable, as in a simulation."""
    return (Submission(replace(job, restartable=True)) for job in jobs)


def checkpointed(done: float, each: float | None) -> float:
    """The work that remains after a failure: that of the last checkpoint."""
    if each is None:
        return 0.0
    return math.floor(done / each) * each if each > 0.0 else done
