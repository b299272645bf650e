"""What telemetry said about the clocks of a job's GPUs while it ran: a throttled GPU is slow, and its model is not."""

import math
from collections.abc import Mapping
from statistics import median
from typing import Final, final

from adlro.core.ports import JobState, LiveJob, Snapshot

GpuFigures = Mapping[str, Mapping[str, float | None]]
"""By "node/index", as State.telemetry."""

_FOLLOW: Final = 0.02
"""The share of the difference by which each reading moves the usual clock of a model. It begins at the highest one:
a GPU that is hot when we first look does not pass for a usual one."""


@final
class JobClocks:
    """The mean clock of each running job's slowest GPU, over the usual one of its model."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._jobs: dict[str, tuple[float, float]] = {}  # by job: seconds, and the sum of seconds × pace
        self._latest_s = -math.inf

    def note(self, snapshot: Snapshot, figures: GpuFigures | None) -> None:
        """Take in a reading. `figures` are None or empty where nothing is fresh."""
        passed_s = min(max(snapshot.time_s - self._latest_s, 1.0), 3600.0)
        self._latest_s = snapshot.time_s
        if not figures:
            return
        running = [job for job in snapshot.jobs if job.state is JobState.RUNNING]
        clocks: dict[str, list[float]] = {}
        for job in running:
            for model, levels in _levels_of(job, figures):
                if (clock := levels.get("sm_clock")) is not None and clock > 0.0:
                    clocks.setdefault(model, []).append(clock)
        for model, seen in clocks.items():
            before = self._usual.get(model, 1.0)
            self._usual[model] = before + _FOLLOW * (median(seen) - before)
        for job in running:
            paces = [self._pace(model, levels) for model, levels in _levels_of(job, figures)]
            if known := [pace for pace in paces if pace is not None]:
                seconds, total = self._jobs.get(job.id, (0.0, 0.0))
                self._jobs[job.id] = seconds + passed_s, total + passed_s * min(known)

    def ended(self, job: str) -> float | None:
        """What is known of a job that has ended (LiveJob.gpu_pace); it is forgotten then."""
        seconds, total = self._jobs.pop(job, (0.0, 0.0))
        if seconds == 0.0:
            return None
        return max(0.0, total / seconds)

    def _pace(self, model: str, levels: Mapping[str, float | None]) -> float | None:
        """The clock of a GPU over its usual one, if it is throttled; 1 if it is not, None if it does not say.

        Minus infinity: throttled without a clock. Then the mean, too, is not known.
        """
        throttled = levels.get("throttle")
        if throttled is None:
            return None
        if throttled <= 0.0:
            return 1.0
        clock = levels.get("sm_clock")
        if clock is None or clock <= 0.0:
            return -math.inf
        return 1.0 - throttled * (1.0 - min(1.0, clock / self._usual.get(model, 1.0)))


def _levels_of(job: LiveJob, figures: GpuFigures) -> list[tuple[str, Mapping[str, float | None]]]:
    """Model and levels of each GPU of a job, where it is known which they are."""
    return [
        (part.model, levels)
        for part in job.parts
        for index in part.indices
        if (levels := figures.get(f"{part.node}/{index}")) is not None
    ]
