"""Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, after a header of semicolons."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from adlro.core.compiled import compiled
from adlro.core.tables import Floats
from adlro.ingest.traces.rows import CodeColumn, Labels, Rows
from adlro.ingest.traces.source import TraceFile, pieces
from adlro.ingest.traces.tabulate import Trace

_FIELDS: Final = 18
(JOB_FIELD, SUBMIT_FIELD, _WAIT, RUN_FIELD, ALLOCATED, _CPU, _MEMORY, REQUESTED, TIME, _REQUESTED_MEMORY, STATUS,
 USER_FIELD, _GROUP, EXECUTABLE, QUEUE_FIELD) = range(15)  # fmt: skip

CANCELLED: Final = 5
PARTIAL: Final = (2, 3, 4)
"""Parts of a job that was stopped and went on: the job has a line of its own."""

# What a line is.
BLANK: Final = 0
HEADER: Final = 1
ODD: Final = 2  # not what the fast reader knows: looked at one by one
_PLAIN: Final = 3

NEWLINE, SPACE, SEMICOLON, MINUS, POINT, ZERO, NINE = (ord(letter) for letter in "\n ;-.09")
MOST_DIGITS: Final = 15  # so many fit in a float exactly

LATEST_START: Final = 1e11

UNIX_TIMES_BEGIN: Final = 1e8
"""Submit times above this are Unix times already, whatever the header says (theta_2022, wagap-2013)."""


def is_swf(head: bytes) -> bool:
    """Whether the first line that is no header has 18 numbers or more."""
    lines = head.split(b"\n")
    complete = lines if len(lines) == 1 else lines[:-1]
    data = next((line for line in complete if line.strip() and not line.lstrip().startswith(b";")), None)
    if data is None:  # a header longer than what was looked at
        return any(b"UnixStartTime:" in line or b"MaxJobs:" in line for line in complete)
    return _numbers(data) is not None


def read_swf(source: TraceFile) -> Trace:
    """The jobs of a log; processors stand for GPUs."""
    broken: list[int] = []
    header: dict[str, float] = {}
    return Trace(
        _parts(source, broken, header),
        broken,
        unit="processor",
        clock=lambda: header.get("clock"),
        notes=("processors are counted as GPUs; memory and CPU demands of the log are not carried over",),
    )


def _parts(source: TraceFile, broken: list[int], header: dict[str, float]) -> Iterator[Rows]:
    before = 0
    for piece in pieces(source):
        letters = np.frombuffer(piece, np.uint8)
        lines = piece.count(b"\n")
        values, kind, begin = np.empty((lines, _FIELDS)), np.zeros(lines, np.int8), np.zeros(lines + 1, np.int64)
        parse_lines(letters, values, kind, begin)
        number = before + np.cumsum(kind != BLANK)
        before += int(np.count_nonzero(kind != BLANK))
        for odd in np.flatnonzero((kind == ODD) | (kind == HEADER)).tolist():
            line = piece[begin[odd] : begin[odd + 1]]
            if kind[odd] == HEADER:
                _note_start(line, header)
            elif (found := _numbers(line)) is not None:
                values[odd], kind[odd] = found, _PLAIN
        broken += number[kind == ODD].tolist()
        good = kind == _PLAIN
        if good.any():
            rows = values if good.all() else values[good]
            _set_clock(header, float(np.median(rows[:, SUBMIT_FIELD])))
            yield _rows(rows, number[good])


@compiled
def parse_lines(letters: Any, values: Any, kind: Any, begin: Any) -> None:
    """Read the first 18 numbers of every line; a line with anything but plain decimals there is marked as odd."""
    at, end = 0, len(letters)
    for line in range(len(kind)):
        begin[line] = at
        kind[line] = BLANK
        fields = 0
        while at < end and letters[at] != NEWLINE:
            if letters[at] <= SPACE:
                at += 1
                continue
            if fields == 0:
                kind[line] = HEADER if letters[at] == SEMICOLON else ODD
            sign, whole, scale, digits, plain = 1.0, 0.0, 1.0, 0, True
            if letters[at] == MINUS:
                sign = -1.0
                at += 1
            after_point = False
            while at < end and letters[at] > SPACE:
                letter = letters[at]
                if ZERO <= letter <= NINE:
                    whole = whole * 10.0 + (letter - ZERO)
                    scale = scale * 10.0 if after_point else scale
                    digits += 1
                elif letter == POINT and not after_point:
                    after_point = True
                else:
                    plain = False
                at += 1
            if not plain or digits == 0 or digits > MOST_DIGITS:
                break
            values[line, fields] = sign * whole / scale
            fields += 1
            if fields == _FIELDS:
                if kind[line] == ODD:
                    kind[line] = _PLAIN
                break
        while at < end and letters[at] != NEWLINE:
            at += 1
        at += 1
    begin[len(kind)] = end


def _note_start(line: bytes, header: dict[str, float]) -> None:
    """What the header says of the clock."""
    if b"UnixStartTime:" in line:
        try:
            header["start"] = float(line.partition(b"UnixStartTime:")[2].split()[0])
        except (ValueError, IndexError):
            return  # the clock is not known then: hours and weekdays count from the first job


def _set_clock(header: dict[str, float], submit: float) -> None:
    """The Unix time of the log's 0, once it can be told."""
    if "clock" not in header and submit > UNIX_TIMES_BEGIN:
        header["clock"] = 0.0
    elif "clock" not in header and 0 < header.get("start", 0.0) < LATEST_START:
        header["clock"] = header["start"]


def _numbers(line: bytes) -> list[float] | None:
    """The first 18 words as numbers; some logs have more words after them."""
    words = line.split(None, _FIELDS)[:_FIELDS]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return None
    return numbers if len(numbers) == _FIELDS else None


def _rows(values: Floats, line: CodeColumn) -> Rows:
    """Lines as rows; -1 is what the format writes for what is not known."""
    import pyarrow

    run, status, size, asked = values[:, RUN_FIELD], values[:, STATUS], values[:, ALLOCATED], values[:, TIME]
    size = np.where(size > 0, size, values[:, REQUESTED])
    never_ran = (run <= 0) & (status == CANCELLED)
    return Rows(
        line=line,
        submit=values[:, SUBMIT_FIELD],
        duration=np.where(run == -1, np.nan, run),
        gpus=np.where(size == -1, np.nan, np.where(size == 0, -1.0, size)),
        limit=np.where(asked > 0, asked, np.nan),
        user=_labels(values[:, USER_FIELD], "user"),
        name=_names(values),
        id=pyarrow.array(values[:, JOB_FIELD]),
        aside={
            "cancelled before it ran": never_ran,
            "part of a job that has its own line": np.isin(status, PARTIAL),
        },
    )


def _labels(column: Floats, word: str) -> Labels:
    """Numbers as labels: user12; empty for what is not known."""
    known, codes = _distinct(column)
    return Labels(codes, tuple(f"{word}{value:g}" if value >= 0 else "" for value in known))


def _names(values: Floats) -> Labels:
    """What recurs: the executable where it is known, else the queue."""
    known = values[:, EXECUTABLE] >= 0
    if known.any():
        return _labels(values[:, EXECUTABLE], "executable")
    return _labels(values[:, QUEUE_FIELD], "queue")


def _distinct(column: Floats) -> tuple[Floats, CodeColumn]:
    """The distinct values, and which each row has; by counting where they are small whole numbers."""
    whole = column.astype(np.int64, copy=False) if np.all(np.abs(column) < 1e6) else None
    if whole is None or not np.array_equal(whole, column):
        known, codes = np.unique(column, return_inverse=True)
        return known, codes.astype(np.int64)
    low = int(whole.min(initial=0))
    present = np.zeros(int(whole.max(initial=0)) - low + 1, bool)
    present[whole - low] = True
    numbers = np.cumsum(present) - 1
    return (np.flatnonzero(present) + low).astype(np.float64), numbers[whole - low]
