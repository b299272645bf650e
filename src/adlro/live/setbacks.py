"""Jobs that the cluster does not start where they were placed:

what is remembered of them, and which jobs go back.

A refusal is remembered with its reason, and the job is passed over until its cause may have changed. Meanwhile its GPUs
count as free. A job that the cluster's own scheduler places better is given back to it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Setback, Snapshot
from adlro.core.records import Job

BACK_OFF_S: Final = 30.0
LONGEST_BACK_OFF_S: Final = 3600.0
"""A refused job is left alone for a time that doubles with each refusal, up to this."""

LIMIT_S: Final = 60.0
LONGEST_LIMIT_S: Final = 900.0
"""A limit is tried again after this time even if no job ended: an administrator may have raised it."""

SOONEST_S: Final = 2.0
SOONEST_SHARED_S: Final = 4.0
"""The least time between two tries: of a limit of one user, and of one that several users share."""

MOST_LOSSES: Final = 2
"""A job that lost its place this many times goes back to the cluster's own scheduler."""

LOST_S: Final = 4.0
"""A job that lost its place is passed over for this long: nodes that come back after a fault need some seconds."""

PER_USER: Final = "User"
"""In the reason of a limit that counts the jobs of one user."""

OF_ARRAY: Final = "ArrayTaskLimit"
"""In the reason of the limit on tasks of an array that run at a time."""

BY_SIZE: Final = re.compile(r"GRES|Jobs|Submit")
"""In the reason of a limit on GPUs or on the number of jobs: what asks for as many GPUs or more is over it as well."""


@dataclass(slots=True)
class RefusedOrder:
    """A job whose order was not carried out."""

    times: int
    until: float
    said: str


@dataclass(slots=True)
class BlockingLimit:
    """A limit that kept a job from starting. Times are from the monotonic clock."""

    said: str
    job: Job
    partition: str
    qos: str
    since: float
    until: float  # tried again at this time in any case
    has_ended: bool = False  # a job that may have counted towards it has ended

    @property
    def is_per_user(self) -> bool:
        """Whether only jobs of the same user count towards it: a limit of this user, or of an array."""
        return PER_USER in self.said or OF_ARRAY in self.said

    def is_over(self, now: float) -> bool:
        """Whether it is time to try again."""
        soonest = SOONEST_S if self.is_per_user else SOONEST_SHARED_S
        return now >= self.until or (self.has_ended and now >= self.since + soonest)

    def holds_up(self, job: LiveJob) -> bool:
        """Whether it also blocks another job: one of the same user that asks for as much or more."""
        is_alike = (job.job.user, job.partition, job.qos) == (self.job.user, self.partition, self.qos)
        return is_alike and job.job.gpus >= self.job.gpus > 0 and BY_SIZE.search(self.said) is not None


@dataclass(frozen=True, slots=True)
class SetbackNews:
    """What a snapshot brought: jobs to give back with the reason, jobs to hold again, and new limits."""

    give_back: Mapping[str, str] = field(default_factory=dict)
    withdraw: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)


@final
class Setbacks:
    """The memory of refusals. It may be lost: then a job is tried once more."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._refused: dict[str, RefusedOrder] = {}
        self._limits: dict[str, BlockingLimit] = {}
        self._tries: dict[str, int] = {}
        self._losses: dict[str, set[str]] = {}
        self._put_back: dict[str, str] = {}  # jobs that were put back and are held again once, with their decisions
        self._held_now: set[str] = set()  # those of the last look
        self._placed: dict[str, str] = {}  # jobs that held GPUs at the last look, with their users

    # ---- a look ----------------------------------------------------------------------------------------------------

    def look(self, snapshot: Snapshot) -> SetbackNews:
        """Learn from a snapshot which refusals are new, and which may be over."""
        now = self._monotonic()
        there = {job.id: job for job in snapshot.jobs}
        self._note_ends(there)
        self._forget(there, now)
        self._held_now = set()
        give_back, withdraw, new = dict[str, str](), list[str](), dict[str, str]()
        for job in snapshot.jobs:
            if job.setback is Setback.NONE or job.state is not JobState.WAITING:
                continue
            if job.setback is Setback.UNPLACEABLE:
                give_back[job.id] = job.reason
            elif job.setback is Setback.PUT_BACK:
                if self._put_back.get(job.id) != job.decision:  # else it could not be held again: it is placed as it is
                    self._put_back[job.id] = job.decision
                    self._held_now.add(job.id)
                    withdraw.append(job.id)
            elif job.setback is Setback.LIMIT:
                withdraw.append(job.id)
                if job.id not in self._limits:
                    new[job.id] = job.reason
                    self._limit(job, now)
            elif self._lost(job) >= MOST_LOSSES:
                give_back[job.id] = f"{job.reason}, {MOST_LOSSES} times"
            else:
                withdraw.append(job.id)  # else Slurm might start it there after all, where others have been placed
        return SetbackNews(give_back, tuple(withdraw), new)

    def _note_ends(self, there: Mapping[str, LiveJob]) -> None:
        """Tell the limits about jobs that held GPUs and no longer do."""
        gone = [user for id, user in self._placed.items() if id not in there or there[id].state not in PLACES]
        users = set(gone)
        for limit in self._limits.values():
            if limit.job.user in users or (gone and not limit.is_per_user):
                limit.has_ended = True
        self._placed = {id: job.job.user for id, job in there.items() if job.state in PLACES}

    def _forget(self, there: Mapping[str, LiveJob], now: float) -> None:
        """Forget jobs that run, ended or changed, and limits that may have changed."""
        for id, limit in list(self._limits.items()):
            job = there.get(id)
            if job is None or job.state is not JobState.WAITING or job.job != limit.job or limit.is_over(now):
                del self._limits[id]
        for memory in (self._refused, self._losses, self._tries, self._put_back):
            for id in list(memory):
                job = there.get(id)
                if job is None or job.state in ENDED or job.state is JobState.RUNNING:
                    del memory[id]

    def _limit(self, job: LiveJob, now: float) -> None:
        tries = self._tries[job.id] = self._tries.get(job.id, 0) + 1
        wait_s = min(LIMIT_S * 2 ** (tries - 1), LONGEST_LIMIT_S)
        self._limits[job.id] = BlockingLimit(job.reason, job.job, job.partition, job.qos, now, now + wait_s)

    def _lost(self, job: LiveJob) -> int:
        """How many decisions lost their place."""
        lost = self._losses.setdefault(job.id, set())
        if job.decision not in lost:
            lost.add(job.decision)
            self._refused[job.id] = RefusedOrder(len(lost), self._monotonic() + LOST_S, job.reason)
        return len(lost)

    # ---- orders that were refused ------------------------------------------------------------------------------------

    def refuse(self, id: str, said: str) -> float:
        """Note that an order was not carried out; returns for how long the job is left alone, longer each time."""
        times = self._refused[id].times + 1 if id in self._refused else 1
        wait_s = min(BACK_OFF_S * 2 ** (times - 1), LONGEST_BACK_OFF_S)
        self._refused[id] = RefusedOrder(times, self._monotonic() + wait_s, said)
        return wait_s

    def accept(self, id: str) -> None:
        """Note that an order was carried out."""
        self._refused.pop(id, None)

    # ---- who is passed over ------------------------------------------------------------------------------------------

    def passed_over(self, jobs: Mapping[str, LiveJob]) -> dict[str, str]:
        """The waiting jobs that are not asked about now, each with the reason in words."""
        now = self._monotonic()
        found = {
            id: f"The cluster refused to start it ({refused.said}); it is tried again in {refused.until - now:.0f} s."
            for id, refused in self._refused.items()
            if id in jobs and refused.until > now
        }
        found |= {id: "It was put back after it began, and is held again first." for id in self._held_now if id in jobs}
        by_user: dict[tuple[str, str], list[BlockingLimit]] = {}
        for limit in self._limits.values():
            by_user.setdefault((limit.job.user, limit.partition), []).append(limit)
        for id, job in jobs.items() if by_user else ():
            limits = by_user.get((job.job.user, job.partition), [])
            if job.state is not JobState.WAITING or not limits:
                continue
            held_up = self._limits.get(id) or next((each for each in limits if each.holds_up(job)), None)
            if held_up is not None:
                who = f"a job of {held_up.job.user}" if held_up.is_per_user else "another job"
                found[id] = f"A limit keeps it from starting ({held_up.said}); it is tried again when {who} ends."
        return found
