"""A job as Slurm told of it, with what ADLRO noted in its comments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from adlro.backends.slurm.comments import HELD, LINE, RELEASED, USER_HELD, comment_with, stop_in, words_in
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.core.ports import LiveJob
from adlro.core.records import Job
from adlro.ingest.host_lists import gpus_in

LAUNCH_FAILED: Final = "launch failed"
"""What Slurm says of a job that it holds because a node could not start it. The reason is JobHeldUser all the same."""


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """A job as it was last told: what must be known to give orders about it."""

    live: LiveJob
    job: SlurmJob
    words: Mapping[str, str]
    is_task: bool = False  # a task of an array, which an order may have to split off first
    together: str = ""  # the tasks that wait in one record with it, as one name: 12_[3,7]
    is_kept_out: bool = False  # Slurm keeps the GPUs that we placed it on for another job

    @property
    def is_pending(self) -> bool:
        """Whether it waits in Slurm's eyes."""
        return self.job.state == "PENDING"

    @property
    def is_held(self) -> bool:
        """Whether it will not start before it is let go."""
        return self.is_pending and is_held(self.job)

    @property
    def is_pinned(self) -> bool:
        """Whether it may start at named nodes only."""
        return bool(self.job.required_nodes)

    @property
    def restarts(self) -> int:
        """How often it began and was put back."""
        return self.job.restarts

    @property
    def requeued_s(self) -> float:
        """When it was last put back: Slurm overwrites the time of its submission then. 0 if it never was."""
        return (self.job.submit_unix or 0.0) if self.job.restarts else 0.0

    @property
    def begins_s(self) -> float:
        """It does not start before this time; 0 if no time is set."""
        return self.job.begin_unix or 0.0

    @property
    def asked(self) -> str:
        """The GPUs asked for on each node, in Slurm's words; "" if none are, or if they are asked for otherwise."""
        return ",".join(f"gpu:{word}:{count}" if word else f"gpu:{count}" for word, count in gpus_in(self.job.per_node))

    @property
    def is_per_job(self) -> bool:
        """Whether its GPUs are asked for in all, however many nodes they are on."""
        return bool(gpus_in(self.job.per_job))

    def size_words(self, gpus: int) -> tuple[str, ...]:
        """What scontrol is told so that its cores and memory belong to this many GPUs."""
        job = self.live.job
        cpus = -(-round(job.cpus) * gpus // max(job.gpus, 1))
        words = [f"{name}={cpus}" for name in ("NumCPUs", "CPUsPerTask", "MinCPUsNode")] if cpus else []
        if self.job.memory_is_per_node:
            words.append(f"MinMemoryNode={-(-_mib(job) * gpus // max(job.gpus, 1))}")
        return tuple(words)

    @property
    def asked_for(self) -> str:
        """The GPUs, cores and memory that it was submitted with, as its word says them."""
        job = self.live.job
        return f"{job.gpus}:{round(job.cpus)}:{_mib(job)}"

    @property
    def may_requeue(self) -> bool:
        """Whether it may be put back once it has begun."""
        return self.job.may_requeue

    @property
    def stop(self) -> str:
        """When it is put back, if it was told to stop."""
        return stop_in(self.words, self.job.restarts)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended in Slurm's eyes."""
        return self.job.state in ("COMPLETED", "FAILED")

    @property
    def is_ours_to_give_back(self) -> bool:
        """Whether it waits because of us: held for us, or let go to a place and not begun."""
        if not self.is_pending or not self.words or RELEASED in self.words or self.job.reason == "JobHeldAdmin":
            return False
        return is_held_for_us(self.job, self.words) or (
            not self.is_held and self.is_pinned and "decision" in self.words
        )

    def comment(self, line: str = "", **words: str) -> str:
        """Its comment with these words of ours in place of those of the same name; an empty word is taken away.

        `line` is what users are told.
        """
        return comment_with(self.job.comment, {**self.words, **words}, line)

    def admin_comment(self, **words: str) -> str:
        """Its admin comment with these words of ours, which users cannot write."""
        return comment_with(self.job.admin_comment, words_in(self.job.admin_comment) | words)

    @property
    def line(self) -> str:
        """What users are told in its comment now."""
        found = LINE.search(self.job.comment)
        return found[0][len("[adlro: ") : -1] if found else ""


def _mib(job: Job) -> int:
    return round(job.memory_gb * 1e9 / 1024**2)


def is_held(job: SlurmJob) -> bool:
    """Whether a waiting job will not start before somebody lets it go."""
    return job.priority == 0 or job.reason.startswith("JobHeld")


def is_held_for_us(job: SlurmJob, words: Mapping[str, str]) -> bool:
    """Whether a job is held because ADLRO shall place it. A hold of its user or of an administrator is theirs to end.

    A job that we placed is held again without our mark when its user holds it. Slurm itself holds it when it cannot
    start there; that one is ours too.
    """
    if not is_held(job) or RELEASED in words or USER_HELD in words:
        return False
    is_slurms = not job.reason.startswith("JobHeld") or job.description.startswith(LAUNCH_FAILED)
    return HELD in words or ("decision" in words and is_slurms)


def waits_for_us(job: SlurmJob) -> bool:
    """Whether a job is held for us, or was let go to a place of ours and has not begun."""
    words = words_in(job.comment)
    was_placed = job.state == "PENDING" and "decision" in words and bool(job.required_nodes) and not is_held(job)
    return was_placed or is_held_for_us(job, words)
