"""Compare the policy with the fallback:

play the last window again from a snapshot, with the work that jobs really had.

Both decide over the same jobs, at the same arrival times and from the same beginning; the measured figure is reported
beside them. Jobs that have ended are played with their measured work, the others with their estimate.

The figure is the mean time that jobs spent in the system within the window, over all its jobs, ended or not. A mean
over ended jobs only would favour the policy that decided: it let those jobs go first, and the jobs that it keeps
waiting would not count. Where jobs count by their priorities, each has its weight in the mean: a policy that lets those
of high priority go first is not to be blamed for it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from adlro.core.policy import Policy
from adlro.core.ports import ENDED, JobState, LiveJob, Snapshot
from adlro.core.tables import Floats
from adlro.live.corrections import Corrections
from adlro.live.forward import play_forward, usual_work
from adlro.live.predicting import MeasuredJob
from adlro.live.scene import Predict, Scenes

LEAST_ENDED: Final = 10
"""At least this many jobs must have ended before there is a comparison."""

_MOST_JOBS: Final = 2000
"""A window with more jobs takes too long to play again within a turn."""


@dataclass(frozen=True, slots=True)
class ComparedTimes:
    """Mean time in the system within the window, over all its jobs:

    measured, and predicted for the policy and the fallback.
    """

    measured_s: float
    policy_s: float | None
    fallback_s: float | None
    jobs: int


@dataclass(slots=True)
class Beginning:
    """A snapshot at which a window begins, and the jobs that came or ended since."""

    snapshot: Snapshot
    submitted: Mapping[str, float]
    came: dict[str, LiveJob] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)  # of jobs that ended
    ended_s: dict[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # ended without having run, as by their users: nobody's merit

    def first(self, job: LiveJob) -> float:
        """When a job was first submitted."""
        return self.submitted.get(job.id, job.job.submit_s)


@final
class ComparisonWindow:
    """The last window, kept as two beginnings: when one gets too old, the next is half a window old."""

    def __init__(self, window_s: float, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._window_s = window_s
        self._monotonic = monotonic
        self._begun: list[Beginning] = []
        self._latest_s = 0.0

    def clear(self) -> None:
        """Begin anew."""
        self._begun.clear()

    def note(self, snapshot: Snapshot, submitted: Mapping[str, float], ended: Sequence[MeasuredJob]) -> None:
        """Add a snapshot, and the jobs that ended since the last one."""
        begun, self._latest_s = self._begun, snapshot.time_s
        if begun and (
            snapshot.time_s < begun[-1].snapshot.time_s or snapshot.cluster.nodes != begun[-1].snapshot.cluster.nodes
        ):
            begun.clear()  # a clock that jumped back, or another cluster: the past cannot be played on it
        if not begun or snapshot.time_s - begun[-1].snapshot.time_s >= self._window_s / 2:
            live = tuple(job for job in snapshot.jobs if job.state not in ENDED)
            begun.append(Beginning(replace(snapshot, jobs=live), dict(submitted)))
        if len(begun) > 2:
            del begun[0]
        for each in begun:
            known = {job.id for job in each.snapshot.jobs}
            for job in snapshot.jobs:
                if job.managed and job.id not in known and job.id not in each.came and job.state not in ENDED:
                    each.came[job.id] = job
            for done in ended:
                if done.job.ended_s is not None and (done.job.id in known or done.job.id in each.came):
                    each.work[done.job.id] = done.work
                    each.ended_s[done.job.id] = done.job.ended_s
            each.gone.update(job.id for job in snapshot.jobs if job.state in ENDED and job.id not in each.ended_s)

    def compare(
        self,
        scenes: Scenes,
        predict: Predict,
        policy: Policy,
        fallback: Policy,
        corrections: Corrections,
        seconds: float,
    ) -> ComparedTimes | None:
        """Play the window again with both policies, for at most this many seconds; None if too few jobs ended."""
        if not self._begun or len(self._begun[0].ended_s) < LEAST_ENDED:
            return None
        begun = self._begun[0]
        begin_s, passed_s = begun.snapshot.time_s, self._latest_s - begun.snapshot.time_s
        there = [
            job for job in (*begun.snapshot.jobs, *begun.came.values()) if job.managed and job.id not in begun.gone
        ]
        came_s = np.array([max(begun.first(job), begin_s) - begin_s for job in there])
        ended_s = np.array([begun.ended_s.get(job.id, np.inf) - begin_s for job in there])
        weight = scenes.weights_of(there)
        measured_s = mean_within(came_s, ended_s, passed_s, weight)
        nothing = ComparedTimes(measured_s, None, None, len(there))
        if len(begun.snapshot.jobs) + len(begun.came) > _MOST_JOBS:
            return nothing
        came = tuple(
            replace(job, state=JobState.WAITING, parts=(), started_s=None, starts=0)
            for job in begun.came.values()
            if job.id not in begun.gone
        )
        snapshot = replace(begun.snapshot, jobs=begun.snapshot.jobs + came)
        scene = scenes.scene(snapshot, predict, begun.submitted, corrections, coming=True)
        work, done = usual_work(scene.view)
        rows = [scene.index.get(job.id, -1) for job in there]
        if min(rows) < 0:
            return nothing  # the tables leave out a job: the two sets of jobs would differ
        for job, j in zip(there, rows, strict=True):
            if job.id in begun.work:
                work[j] = max(begun.work[job.id], done[j] + 1e-3)
        now = float(scene.view.clock[0].now)
        found: list[float | None] = []
        for who in (fallback, policy):
            played = play_forward(scene.view, work, who, seconds / 2, monotonic=self._monotonic)
            seen = np.concatenate([played.start, played.end])
            if not played.is_whole and not np.nanmax(seen, initial=-np.inf) >= now + passed_s:
                found.append(None)  # time ran out before the window's end
                continue
            ends = np.where(np.isnan(played.end[rows]), np.inf, played.end[rows]) - now
            found.append(mean_within(came_s, ends, passed_s, weight))
        return ComparedTimes(measured_s, found[1], found[0], len(rows))


def mean_within(came_s: Floats, ended_s: Floats, passed_s: float, weight: Floats | None = None) -> float:
    """The mean time that jobs spent in the system within the window, which began at 0; by their weights, if any."""
    return float(np.average(np.minimum(ended_s, passed_s) - np.minimum(came_s, passed_s), weights=weight))
