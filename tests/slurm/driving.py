"""A back end on a lab, and the few things that tests do with it again and again."""

import getpass
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from tests.slurm.lab import Lab

from adlro.backends.slurm.backend import slurm_backend
from adlro.backends.slurm.options import SlurmOptions
from adlro.core.ports import Answer, JobState, LiveJob, Order, Part, Snapshot, Submission
from adlro.core.records import Job

VOLTA, TURING, RADEON = "v100-sxm2-16gb", "t4", "mi50"
SAY_WHERE = 'echo "$SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}"'


def options_of(lab: Lab, way: str) -> SlurmOptions:
    """The options of one way into a lab: socket, token, commands, or socket-only (without the command line)."""
    common = SlurmOptions(conf=lab.environment["SLURM_CONF"], submit_as="self", timeout_s=15)
    if way == "token":
        return common.model_copy(update={"rest": f"http://127.0.0.1:{lab.rest_port}", "user": getpass.getuser()})
    if way.startswith("socket"):
        return common.model_copy(update={"rest": f"unix:{lab.socket}", "command_line": way == "socket"})
    return common


class Driven:
    """A back end on a lab; leaving it ends every job."""

    def __init__(self, lab: Lab, way: str) -> None:
        self.lab = lab
        self.backend = slurm_backend(options_of(lab, way))
        self._decisions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()
        self.lab.run("scancel", "--partition=gpu")
        self.lab.wait(lambda: not self.lab.run("squeue", "--noheader").strip(), "an empty queue")

    def submit(self, script: str, gpus: int = 1, **job: object) -> str:
        """Hand a script in through the back end."""
        wish = replace(Job("learning", 0.0, gpus=gpus, cpus=1, memory_gb=1), **job)  # type: ignore[arg-type]
        return self.backend.submit(Submission(wish, ("/bin/sh", "-c", script), str(self.lab.folder / "jobs")))

    def read(self) -> Snapshot:
        """The cluster now."""
        return self.backend.read()

    def job(self, name: str) -> LiveJob:
        """A job now."""
        return next(job for job in self.backend.read().jobs if job.id == name)

    def order(self, name: str, *parts: Part) -> Answer:
        """Order a job to a place, or (no parts) to stop; under a decision of its own."""
        self._decisions += 1
        (answer,) = self.backend.act([Order(name, f"d{self._decisions}", parts)])
        return answer

    def place(self, name: str, *parts: Part) -> None:
        """Order a job to a place; Slurm must take it."""
        self.read()
        answer = self.order(name, *parts)
        assert answer.done, answer

    def until(self, name: str, *states: JobState, seconds: float = 60.0) -> LiveJob:
        """The job when it is in one of these states."""
        return self.when(name, lambda job: job.state in states, " or ".join(states), seconds)

    def when(self, name: str, is_true: Callable[[LiveJob], bool], what: str, seconds: float = 60.0) -> LiveJob:
        """The job when something is true of it."""
        end = time.monotonic() + seconds
        while not is_true(job := self.job(name)):
            assert time.monotonic() < end, f"not {what} within {seconds} s: {job}"
            time.sleep(0.05)
        return job

    def output(self, name: str) -> str:
        """What a job printed."""
        return (self.lab.folder / "jobs" / f"slurm-{name}.out").read_text()
