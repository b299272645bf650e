"""The measured history and the usage of past jobs: how they are averaged and added up."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import isfinite
from statistics import fmean, quantiles
from typing import Any, Final

from adlro.core.ports import JobState, LiveJob
from adlro.core.records import WHOLE_GPU
from adlro.live.service import Compared, Spent, Usage

FIGURES: Final = ("utilisation", "jct_s", "fallback_jct_s", "waiting", "running")


def finite(value: float | None) -> float | None:
    """The number, or None if it is NaN or infinite."""
    return value if value is not None and isfinite(value) else None


def mean_of(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """The mean of the values that are not None."""
    there = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in there)
    return sum(value * weight for value, weight in there) / total if total else None


def in_steps(points: Sequence[Compared], step_s: float) -> list[Compared]:
    """The points averaged over steps of time, each at the mean of its times; a step below a second changes nothing."""
    if step_s < 1.0:
        return list(points)
    found = []
    for _, group in groupby(points, lambda point: point.time_s // step_s):
        some = list(group)
        ones = [1.0] * len(some)
        means = {name: mean_of([getattr(point, name) for point in some], ones) for name in ("time_s", *FIGURES)}
        found.append(Compared(**means))  # type: ignore[arg-type]  # time_s and utilisation are always there
    return found


def figures_of(job: LiveJob) -> tuple[str, str, str, float, float | None, float | None]:
    """The figures of a job that ended: owner, queue, state, GPU-seconds, wait and runtime (None: it never started)."""
    if job.started_s is None or job.ended_s is None:
        return job.job.user, job.partition, str(job.state), 0.0, None, None
    ran_s = max(0.0, job.ended_s - job.started_s)
    held = sum(part.count for part in job.parts) if job.parts else job.job.gpus
    gpu_s = ran_s * held * job.job.share / WHOLE_GPU
    return job.job.user, job.partition, str(job.state), gpu_s, max(0.0, job.started_s - job.job.submit_s), ran_s


def summed(rows: Sequence[tuple[Any, ...]], since_s: float, until_s: float, step_s: float) -> Usage:
    """The totals of rows (ended_s, gpu_s, waited_s, ran_s, state), overall and in steps of time up to `until_s`."""
    waited = [row[2] for row in rows if row[2] is not None]
    ran = [row[3] for row in rows if row[3] is not None]
    deciles = quantiles(waited, n=10, method="inclusive") if len(waited) > 1 else waited * 9
    count = max(1, round((until_s - since_s) / step_s))
    stretches: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    for row in rows:
        stretches[min(count - 1, max(0, int((row[0] - since_s) / step_s)))].append(row)
    return Usage(
        since_s=since_s,
        until_s=until_s,
        jobs=len(rows),
        gpu_s=sum(row[1] or 0.0 for row in rows),
        failed=sum(row[4] == JobState.FAILED for row in rows),
        waited_s=fmean(waited) if waited else None,
        waited_median_s=deciles[4] if deciles else None,
        waited_p90_s=deciles[8] if deciles else None,
        ran_s=fmean(ran) if ran else None,
        spent=tuple(
            Spent(
                since_s + number * step_s,
                len(some),
                sum(row[1] or 0.0 for row in some),
                fmean(there) if (there := [row[2] for row in some if row[2] is not None]) else None,
            )
            for number, some in enumerate(stretches)
        ),
    )
