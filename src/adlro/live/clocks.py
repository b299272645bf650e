"""What telemetry said about the clocks of GPUs while jobs ran: a throttled GPU is slow, and its model is not."""

import math
from collections.abc import Mapping
from statistics import median
from typing import Final, NamedTuple, final

from adlro.core.ports import JobState, LiveJob, Snapshot

GpuFigures = Mapping[str, Mapping[str, float | None]]
"""By "node/index", as State.telemetry."""

_FOLLOW: Final = 0.02
"""The share of the difference by which each reading moves the usual clock of a model. It begins at the highest one:
a GPU that is hot when we first look does not pass for a usual one."""


_RESOLUTION: Final = 0.05
"""The pace of a GPU in use changes only by more than this: each change means new tables."""


class _Reading(NamedTuple):
    """What one GPU of a running job said."""

    node: str
    number: int
    model: str
    levels: Mapping[str, float | None]


@final
class JobClocks:
    """The mean clock of each running job's slowest GPU, over the usual one of its model; and the latest of each GPU."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._jobs: dict[str, tuple[float, float]] = {}  # by job: seconds, and the sum of seconds × pace
        self._latest_s = -math.inf
        self._gpus: dict[tuple[str, int], float] = {}
        self.figures: GpuFigures = {}  # the latest; empty where nothing is fresh

    @property
    def slowed(self) -> Mapping[tuple[str, int], float]:
        """By node and number, the pace of each GPU that was throttled while a job last ran on it."""
        return {gpu: pace for gpu, pace in self._gpus.items() if pace < 1.0}

    def note(self, snapshot: Snapshot, figures: GpuFigures | None) -> None:
        """Take in a reading. `figures` are None or empty where nothing is fresh."""
        passed_s = min(max(snapshot.time_s - self._latest_s, 1.0), 3600.0)
        self._latest_s = snapshot.time_s
        self.figures = figures or {}
        if not figures:
            return
        running = [job for job in snapshot.jobs if job.state is JobState.RUNNING]
        clocks: dict[str, list[float]] = {}
        for job in running:
            for each in _readings_of(job, figures):
                if (clock := each.levels.get("sm_clock")) is not None and clock > 0.0:
                    clocks.setdefault(each.model, []).append(clock)
        for model, seen in clocks.items():
            before = self._usual.get(model, 1.0)
            self._usual[model] = before + _FOLLOW * (median(seen) - before)
        for job in running:
            readings = _readings_of(job, figures)
            paces = [self._pace(each.model, each.levels) for each in readings]
            for each, pace in zip(readings, paces, strict=True):
                self._note_gpu(each, pace)
            if known := [pace for pace in paces if pace is not None]:
                seconds, total = self._jobs.get(job.id, (0.0, 0.0))
                self._jobs[job.id] = seconds + passed_s, total + passed_s * min(known)

    def _note_gpu(self, said: _Reading, pace: float | None) -> None:
        """Remember the pace of one GPU, if it tells one that differs from the last."""
        if pace is None or pace == -math.inf:
            return
        before = self._gpus.get((said.node, said.number), 1.0)
        if pace == 1.0 or abs(pace - before) > _RESOLUTION:
            self._gpus[said.node, said.number] = round(pace, 2)

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


def _readings_of(job: LiveJob, figures: GpuFigures) -> list[_Reading]:
    """What each GPU of a job said, where it is known which they are."""
    return [
        _Reading(part.node, index, part.model, levels)
        for part in job.parts
        for index in part.indices
        if (levels := figures.get(f"{part.node}/{index}")) is not None
    ]
