"""The measured history in the store, and what jobs of the past used.

Points of the history get coarser with age: every point for a day, then one for ten minutes, after two weeks one for an
hour. So eight weeks are a few thousand rows.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from adlro.core.ports import LiveJob
from adlro.core.records import WHOLE_GPU
from adlro.core.units import DAY_S
from adlro.live.history import FIGURES, mean_of
from adlro.live.service import HistoryQuery

THINNING: Final = ((DAY_S, 600.0), (14 * DAY_S, 3600.0))
"""From which age on, in seconds, points are averaged over how many seconds."""

THINNED_AT_ONCE: Final = 5000
"""Points that one look averages at most."""

MOST_POINTS: Final = 50_000
"""Points that one question answers at most, the latest."""

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
        means = [mean_of([row[at] for row in group], weights) for at in range(2, 3 + len(FIGURES))]
        kept.append((span_s, sum(weights), *means, group[0][0]))
        gone += [(row[0],) for row in group[1:]]
    return kept, gone


# ---- jobs of the past --------------------------------------------------------------------------------------------


def nodes_of_job(job: LiveJob) -> Iterator[tuple[str, float]]:
    """The nodes that a job ran on, with its GPU-seconds on each."""
    ran_s = max(0.0, (job.ended_s or 0.0) - job.started_s) if job.started_s is not None else 0.0
    for node in dict.fromkeys(part.node for part in job.parts):
        held = sum(part.count for part in job.parts if part.node == node)
        yield node, ran_s * held * job.job.share / WHOLE_GPU


def where(asked: HistoryQuery) -> tuple[str, list[str], list[Any]]:
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
