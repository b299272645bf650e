"""The measured history in the store, and what jobs of the past used.

Points of the history get coarser with age: every point for a day, then one for ten minutes, after two weeks one for an
hour. So eight weeks are a few thousand rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import isfinite
from statistics import fmean, quantiles
from typing import Any, Final

from adlro.core.ports import JobState, LiveJob
from adlro.core.records import WHOLE_GPU
from adlro.live.service import Compared, Past, Spent, Usage

DAY_S: Final = 86_400.0
THINNING: Final = ((DAY_S, 600.0), (14 * DAY_S, 3600.0))
"""From which age on, in seconds, points are averaged over how many seconds."""

THINNED_AT_ONCE: Final = 5000
"""Points that one look averages at most."""

MOST_POINTS: Final = 50_000
"""Points that one question answers at most, the latest."""

FIGURES: Final = ("utilisation", "jct_s", "fallback_jct_s", "waiting", "running")

INSERT_POINTS: Final = (
    f"INSERT INTO points (number, noted_s, time_s, span_s, weight, {', '.join(FIGURES)}) "
    "VALUES (?, ?, ?, 0, 1, ?, ?, ?, ?, ?)"
)
SELECT_POINTS: Final = (
    f"SELECT time_s, {', '.join(FIGURES)} FROM points WHERE time_s >= ? AND time_s <= ? "
    f"ORDER BY time_s DESC, number DESC LIMIT {MOST_POINTS}"
)
TO_THIN: Final = (
    f"SELECT number, weight, time_s, {', '.join(FIGURES)} FROM points WHERE span_s < ? AND time_s < ? "
    f"ORDER BY time_s, number LIMIT {THINNED_AT_ONCE}"
)
THIN: Final = (
    f"UPDATE points SET span_s = ?, weight = ?, time_s = ?, {', '.join(f'{each} = ?' for each in FIGURES)} "
    "WHERE number = ?"
)
INSERT_RAN_ON: Final = (
    "INSERT INTO ran_on (number, node, ended_s, gpu_s) VALUES (?, ?, ?, ?) ON CONFLICT (number, node) DO NOTHING"
)
FILL_IN: Final = "UPDATE ended SET owner = ?, queue = ?, state = ?, gpu_s = ?, waited_s = ?, ran_s = ? WHERE number = ?"


# ---- points ------------------------------------------------------------------------------------------------------


def thinned(rows: Sequence[tuple[Any, ...]], span_s: float) -> tuple[list[tuple[Any, ...]], list[tuple[int]]]:
    """Average rows of TO_THIN over stretches of time: the values of THIN for one row of each, and numbers to delete."""
    groups = [list(group) for _, group in groupby(rows, lambda row: row[2] // span_s)]
    if len(rows) == THINNED_AT_ONCE and len(groups) > 1:
        groups.pop()  # the rest of it comes with the next look
    kept, gone = [], []
    for group in groups:
        weights = [row[1] for row in group]
        means = [_mean([row[at] for row in group], weights) for at in range(2, 3 + len(FIGURES))]
        kept.append((span_s, sum(weights), *means, group[0][0]))
        gone += [(row[0],) for row in group[1:]]
    return kept, gone


def finite(value: float | None) -> float | None:
    """A number, or None for what is none."""
    return value if value is not None and isfinite(value) else None


def _mean(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """The mean of the values that are there."""
    there = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in there)
    return sum(value * weight for value, weight in there) / total if total else None


def in_steps(points: Sequence[Compared], step_s: float) -> list[Compared]:
    """The points averaged over stretches of time, each at the mean of its moments; below a second: as they are."""
    if step_s < 1.0:
        return list(points)
    found = []
    for _, group in groupby(points, lambda point: point.time_s // step_s):
        some = list(group)
        ones = [1.0] * len(some)
        means = {name: _mean([getattr(point, name) for point in some], ones) for name in ("time_s", *FIGURES)}
        found.append(Compared(**means))  # type: ignore[arg-type]  # time_s and utilisation are always there
    return found


# ---- jobs of the past --------------------------------------------------------------------------------------------


def figures_of(job: LiveJob) -> tuple[str, str, str, float, float | None, float | None]:
    """What is asked of a job that ended: owner, queue, state, GPU-seconds, waited and ran (None: it never started)."""
    if job.started_s is None or job.ended_s is None:
        return job.job.user, job.partition, str(job.state), 0.0, None, None
    ran_s = max(0.0, job.ended_s - job.started_s)
    held = sum(part.count for part in job.parts) if job.parts else job.job.gpus
    gpu_s = ran_s * held * job.job.share / WHOLE_GPU
    return job.job.user, job.partition, str(job.state), gpu_s, max(0.0, job.started_s - job.job.submit_s), ran_s


def nodes_of(job: LiveJob) -> Iterator[tuple[str, float]]:
    """The nodes that a job ran on, with its GPU-seconds on each."""
    ran_s = max(0.0, (job.ended_s or 0.0) - job.started_s) if job.started_s is not None else 0.0
    for node in dict.fromkeys(part.node for part in job.parts):
        held = sum(part.count for part in job.parts if part.node == node)
        yield node, ran_s * held * job.job.share / WHOLE_GPU


def where(asked: Past) -> tuple[str, list[str], list[Any]]:
    """The tables, conditions and values of a question about the past."""
    tables, conditions, values = "ended e", [], []
    if asked.node:
        tables += " JOIN ran_on r ON r.number = e.number"
        conditions.append("r.node = ?")
        values.append(asked.node)
    for column, value in (("owner", asked.user), ("queue", asked.partition)):
        if value:
            conditions.append(f"e.{column} = ?")
            values.append(value)
    return tables, conditions, values


def summed(rows: Sequence[tuple[Any, ...]], since_s: float, until_s: float, step_s: float) -> Usage:
    """What rows of (ended_s, gpu_s, waited_s, ran_s, state) come to, in total and in stretches up to `until_s`."""
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
