"""The event log: everything that happened in a run, as JSON lines, and as the stretches in which jobs held GPUs."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from adlro.core.errors import AdlroError
from adlro.core.records import WHOLE_GPU
from adlro.core.run import Run
from adlro.core.tables import (
    DONE,
    DOWN,
    EVENT_NAMES,
    FAILED,
    ILLEGAL,
    NOBODY,
    OVERRAN,
    RESIZED,
    SPEED,
    SPREAD,
    STARTED,
    STOPPED,
    SUBMITTED,
    TURNED_AWAY,
    UP,
    Table,
    records,
)

STRETCH = np.dtype(
    [
        ("start", "f8"),
        ("end", "f8"),
        ("mask", "u8"),  # GPUs of the site, one bit each
        ("job", "i4"),
        ("site", "i4"),
        ("began", "i2"),  # STARTED; SPREAD: a further part of a gang
        ("ending", "i2"),  # DONE, OVERRAN, STOPPED or FAILED; NOBODY: it still ran when the run ended
    ],
    align=True,
)
"""One time that a job held GPUs at one site."""

OUTAGE = np.dtype([("start", "f8"), ("end", "f8"), ("node", "i4")], align=True)
"""One time that a node was down."""

RUN_LINE: Final = "run"
"""The kind of the first line of a log, which describes the run."""

_CHUNK: Final = 65_536
"""Events turned into Python objects at a time, so that a long log needs little memory."""

_LATE: Final = (STARTED, SPREAD, STOPPED, RESIZED, TURNED_AWAY, ILLEGAL)
"""Events that come after the arrivals of the same moment (docs/semantics.md)."""


def stretches(run: Run) -> Table:
    """Every time a job held GPUs, as a STRETCH table by job and then by time; a gang has one row for each site."""
    events = run.events
    begin, end = _spans(events["what"], events["job"], (STARTED, SPREAD), (DONE, OVERRAN, STOPPED, FAILED))
    closed = end != NOBODY
    held = records(STRETCH, len(begin))
    held["start"] = events["time"][begin]
    held["end"] = np.where(closed, events["time"][end], _last(run))
    held["mask"] = events["mask"][begin]
    held["job"] = events["job"][begin]
    held["site"] = events["site"][begin]
    held["began"] = events["what"][begin]
    held["ending"] = np.where(closed, events["what"][end], NOBODY)
    return held


def outages(run: Run) -> Table:
    """Every time a node was down, as an OUTAGE table by node and then by time."""
    events = run.events
    begin, end = _spans(events["what"], events["site"], (DOWN,), (UP,))
    down = records(OUTAGE, len(begin))
    down["start"] = events["time"][begin]
    down["end"] = np.where(end != NOBODY, events["time"][end], _last(run))
    down["node"] = events["site"][begin]
    return down


def write_events(run: Run, file: Path) -> None:
    """Write the log as JSON lines in time order: what run it is, then submissions and events (docs/metrics.md)."""
    # An encoder of our own because json.dumps builds a new one for every call that names separators.
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    with file.open("w", encoding="utf-8") as out:
        out.writelines(encode(line) + "\n" for line in log_lines(run))


def read_events(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of an event log one by one, as they were written."""
    with file.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict) or line.get("event") not in (RUN_LINE, *EVENT_NAMES) or "time_s" not in line:
                raise AdlroError(
                    f"{file}:{number}: found {text.strip()[:60]!r}; expected a JSON object with 'event' and 'time_s'. "
                    "Write the log again with `adlro simulate --events`."
                )
            yield line


def log_lines(run: Run) -> Iterator[dict[str, Any]]:
    """The lines of the event log, one by one."""
    yield {
        "event": RUN_LINE,
        "time_s": 0.0,
        "cluster": run.cluster.name,
        "policy": run.policy,
        "seed": run.seed,
        "jobs": len(run.jobs),
        "gpus": int(run.site_gpus.sum()),
    }
    submissions = _submissions(run)
    places = [(run.cluster.nodes[node].name, model) for node, model in zip(run.site_node, run.site_model, strict=True)]
    arrivals = np.bincount(_arrivals(run), minlength=len(run.events) + 1).astype(np.int32)
    for first in range(0, len(run.events), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        for arriving, event in zip(arrivals[chunk].tolist(), run.events[chunk].tolist(), strict=False):
            yield from islice(submissions, arriving)
            yield _line(run, places, *event)
    yield from submissions


def _arrivals(run: Run) -> npt.NDArray[np.intp]:
    """For each job, the row of the events before which its submission belongs. [J]"""
    time = run.events["time"]
    submit = run.jobs.table["submit"]
    late = np.append(np.flatnonzero(np.isin(run.events["what"], _LATE)), len(time))
    moment_begins = np.searchsorted(time, submit, "left")
    moment_ends = np.searchsorted(time, submit, "right")
    before: npt.NDArray[np.intp] = np.minimum(late[np.searchsorted(late, moment_begins)], moment_ends)
    return before


def _submissions(run: Run) -> Iterator[dict[str, Any]]:
    """The line of each job's submission, in submit order."""
    jobs = run.jobs
    for first in range(0, len(jobs), _CHUNK):
        rows = jobs.table[["submit", "user", "group", "family", "gpus", "share"]][first : first + _CHUNK].tolist()
        work = jobs.work[first : first + _CHUNK].tolist()
        for job, (submit, user, group, family, gpus, share) in enumerate(rows, start=first):
            yield {
                "event": EVENT_NAMES[SUBMITTED],
                "time_s": submit,
                "job": job,
                "name": jobs.names[group] if jobs.names else "",
                "user": jobs.users[user],
                "family": jobs.families[family],
                "gpus": gpus,
                "share": share / WHOLE_GPU,
                "work": work[job - first],
            }


def _line(
    run: Run, places: list[tuple[str, str]], time: float, mask: int, job: int, site: int, value: float, what: int
) -> dict[str, Any]:
    """The line of one event, with only the fields of its kind."""
    line: dict[str, Any] = {"event": EVENT_NAMES[what], "time_s": time}
    if what in (DOWN, UP):
        return line | {"node": run.cluster.nodes[site].name}
    if what != SPEED and job != NOBODY:
        line["job"] = job
    # A policy may name a site that does not exist; that is why a choice can be illegal.
    if what in (STARTED, SPREAD, SPEED, ILLEGAL) and 0 <= site < len(places):
        line["node"], line["model"] = places[site]
        if what != ILLEGAL:
            line["gpus"] = [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
    if what == FAILED:
        line["lost"] = value
    elif what == TURNED_AWAY:
        line["reason"] = run.refusals.get(job, "")
    elif what == SPEED:
        line["factor"] = value
    elif what == RESIZED:
        line["size"] = int(value)
    return line


def _last(run: Run) -> float:
    """The time of the last event."""
    return float(run.events["time"][-1]) if len(run.events) else 0.0


def _spans(
    what: npt.NDArray[np.int32], key: npt.NDArray[np.int32], begins: tuple[int, ...], ends: tuple[int, ...]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Rows of the events that begin something, and for each the row of the next that ends it for the same key.

    In order of key, then of time. NOBODY stands for an end that never came.
    """
    unsorted = np.flatnonzero(np.isin(what, (*begins, *ends)))
    # One sort of (key, row) packed in a word is several times faster than a stable argsort by key.
    packed = key[unsorted].astype(np.int64)
    packed <<= 32
    packed |= unsorted
    packed.sort()
    rows = packed.astype(np.uint32).astype(np.int32)
    packed >>= 32
    is_end = np.isin(what[rows], ends)
    begin = np.flatnonzero(~is_end)
    end = np.flatnonzero(is_end)
    following = np.append(end, NOBODY)[np.searchsorted(end, begin)]
    closed = (following != NOBODY) & (packed[following] == packed[begin])
    return rows[begin], np.where(closed, rows[following], np.int32(NOBODY))
