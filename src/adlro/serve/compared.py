"""The policy against the fallback: the last window, played again from a snapshot with the work that jobs turned out.

Both decide over the same jobs, at the times at which they came, from the same beginning; the measured figure stands
beside. What ended is played with its measured work, what runs or waits still with its estimate.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from adlro.core.policy import Policy
from adlro.core.ports import ENDED, JobState, LiveJob, Snapshot
from adlro.serve.forward import play_forward, usual_work
from adlro.serve.live_view import Corrections, Predict, Scenes
from adlro.serve.predicting import Measured

LEAST_ENDED: Final = 10
"""Jobs that must have ended before anything is said."""

MOST_JOBS: Final = 2000
"""A window with more jobs is too dear to play again within a turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Mean completion times of the jobs that ended within the window: measured, and as either would have done."""

    measured_s: float
    policy_s: float | None
    fallback_s: float | None
    jobs: int


@dataclass(slots=True)
class Beginning:
    """Where a window begins, and what came since."""

    snapshot: Snapshot
    submitted: Mapping[str, float]
    came: dict[str, LiveJob] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)  # of jobs that ended
    took_s: dict[str, float] = field(default_factory=dict)  # from submission to end


@final
class Window:
    """The last window, kept as two beginnings: when one gets too old the next is half a window old."""

    def __init__(self, window_s: float, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._window_s = window_s
        self._monotonic = monotonic
        self._begun: list[Beginning] = []

    def clear(self) -> None:
        """Begin anew."""
        self._begun.clear()

    def note(self, snapshot: Snapshot, submitted: Mapping[str, float], ended: Sequence[Measured]) -> None:
        """Take a snapshot in, and jobs that ended since the last one."""
        begun = self._begun
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
                    first = submitted.get(done.job.id, done.job.job.submit_s)
                    each.took_s[done.job.id] = done.job.ended_s - first

    def compare(
        self,
        scenes: Scenes,
        predict: Predict,
        policy: Policy,
        fallback: Policy,
        corrections: Corrections,
        seconds: float,
    ) -> Outcome | None:
        """Play the window again with both; None while too little ended. At most so many seconds."""
        if not self._begun or len(self._begun[0].took_s) < LEAST_ENDED:
            return None
        begun = self._begun[0]
        measured_s = float(np.mean(list(begun.took_s.values())))
        nothing = Outcome(measured_s, None, None, len(begun.took_s))
        if len(begun.snapshot.jobs) + len(begun.came) > MOST_JOBS:
            return nothing
        came = tuple(
            replace(job, state=JobState.WAITING, parts=(), started_s=None, starts=0) for job in begun.came.values()
        )
        snapshot = replace(begun.snapshot, jobs=begun.snapshot.jobs + came)
        scene = scenes.scene(snapshot, predict, begun.submitted, corrections, coming=True)
        work, done = usual_work(scene.view)
        rows, submit = [], []
        for id in begun.took_s:
            j = scene.index.get(id)
            if j is not None:
                work[j] = max(begun.work[id], done[j] + 1e-3)
                rows.append(j)
                submit.append(float(scene.view.jobs[j].submit))
        if not rows:
            return nothing
        found: list[float | None] = []
        for who in (fallback, policy):
            played = play_forward(scene.view, work, who, seconds / 2, monotonic=self._monotonic)
            ends = played.end[rows]
            found.append(None if np.isnan(ends).any() else float(np.mean(ends - submit)))
        return Outcome(measured_s, found[1], found[0], len(rows))
