"""What a turn leaves to look at: predicted starts, lines in the cluster's own queue, points of the history."""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

import numpy as np

from adlro.core.errors import BackendError
from adlro.core.policy import Policy
from adlro.core.ports import PLACES, Backend, JobState, Snapshot
from adlro.core.tables import QUEUED
from adlro.live.compared import ComparedTimes
from adlro.live.explain import Standing, explain_job
from adlro.live.explain_short import short_reason
from adlro.live.foresee import Foresight
from adlro.live.guard import Decided
from adlro.live.scene import Scene
from adlro.live.service import Compared, Start
from adlro.live.telling import Heard, Notes

_LONG_QUEUE: Final = 1000
_SELDOM: Final = 9.0
"""Starts of a queue longer than this take at most a tenth of the time: so many times as long they stay as they are."""


@final
class Starts:
    """When waiting jobs are predicted to start."""

    def __init__(self, seconds: float) -> None:
        self._foresight, self._seconds = Foresight(), seconds
        self._until = -np.inf

    def predicted(self, scene: Scene, decided: Decided, before: Standing | None, policy: Policy) -> Mapping[str, Start]:
        """The predicted starts; those of a long queue are not foreseen anew every turn."""
        began = time.perf_counter()
        is_long = decided.view.clock[0].queued > _LONG_QUEUE
        if is_long and before is not None and before.starts and began < self._until:
            states = decided.view.runs["state"]
            return {
                id: start
                for id, start in before.starts.items()
                if (j := scene.index.get(id)) is not None and states[j] == QUEUED
            }
        starts = self._foresight.starts(scene, decided.view, policy, self._seconds)
        now = time.perf_counter()
        self._until = now + _SELDOM * (now - began)
        return starts


@final
class Lines:
    """What users are told of their jobs in the cluster's own queue."""

    def __init__(self, backend: Backend, most: int, least_s: float) -> None:
        self._backend, self._most, self._least_s = backend, most, least_s
        self._lines: dict[str, tuple[str, float]] = {}  # what users were told of a job, and when

    def annotate(self, snapshot: Snapshot, standing: Standing, given_back: Collection[str], now: float) -> None:
        """Tell users in the cluster's own queue what their jobs wait for: a few each turn, the next to start first."""
        if not self._backend.can_annotate:
            return
        waiting = [
            job for job in snapshot.jobs if job.state is JobState.WAITING and job.managed and job.id not in given_back
        ]
        if len(self._lines) > 2 * len(waiting) + 1000:
            there = {job.id for job in waiting}
            self._lines = {id: told for id, told in self._lines.items() if id in there}
        due = [job for job in waiting if now - self._lines.get(job.id, ("", -np.inf))[1] >= self._least_s]
        due.sort(key=lambda job: _start_of(standing, job.id))
        lines = {}
        for job in due[: self._most]:
            line = short_reason(explain_job(standing, job, None, in_full=False), now_s=snapshot.time_s)
            if line != self._lines.get(job.id, ("", 0.0))[0]:
                lines[job.id] = line
            self._lines[job.id] = line, now
        if lines:
            with suppress(BackendError):  # the next turn tells that the cluster is gone
                self._backend.annotate(lines)


@final
class History:
    """Points of how the cluster fared, the latest of them."""

    def __init__(self, notes: Notes, kept: int, every_s: float) -> None:
        self._notes, self._kept, self._every_s = notes, kept, every_s
        self.points: deque[Compared] = deque(maxlen=kept)
        self._has_points = False
        self._kept_at = -np.inf

    def keep(self, snapshot: Snapshot, outcome: ComparedTimes | None, heard: Heard) -> None:
        """Keep a point of the history now and then, also beyond a restart."""
        now_s = snapshot.time_s
        if not self._has_points:
            self._has_points = True
            since_s = now_s - self._kept * self._every_s
            none: Sequence[Compared] = []
            self.points.extend(self._notes.ask(lambda: self._notes.memory.points(since_s, now_s), none))
            self._kept_at = self.points[-1].time_s if self.points else -np.inf
        if 0.0 <= now_s - self._kept_at < self._every_s:  # a clock that was set back counts too
            return
        self._kept_at = now_s
        point = point_of(snapshot, outcome)
        self.points.append(point)
        self._notes.write(heard, now_s, lambda: self._notes.memory.keep_points([point]), None)


def _start_of(standing: Standing, id: str) -> float:
    """When a job is predicted to start; later than all others if that is not known."""
    start = standing.starts.get(id)
    return start.middle_s if start is not None and start.middle_s is not None else np.inf


def point_of(snapshot: Snapshot, found: ComparedTimes | None) -> Compared:
    """One point of the history."""
    measured_s, fallback_s = (found.measured_s, found.fallback_s) if found is not None else (None, None)
    states = [job.state for job in snapshot.jobs]
    running = sum(state in PLACES for state in states)
    waiting = states.count(JobState.WAITING)
    return Compared(snapshot.time_s, _utilisation(snapshot), measured_s, fallback_s, waiting, running)


def _utilisation(snapshot: Snapshot) -> float:
    """The share of the GPUs that are up and held by jobs."""
    up = sum(group.count for node in snapshot.cluster.nodes if node.name not in snapshot.down for group in node.gpus)
    held = sum(
        part.count * job.job.share / 1000
        for job in snapshot.jobs
        if job.state in PLACES
        for part in job.parts
        if part.node not in snapshot.down
    )
    return min(1.0, held / up) if up else 0.0
