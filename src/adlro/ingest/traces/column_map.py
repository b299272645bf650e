"""The file behind `--columns FILE.toml`: what the columns of a user's own table mean, and how the table is written."""

import codecs
import re
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from adlro.core.errors import TraceError
from adlro.core.records import WHOLE_GPU
from adlro.core.tables import Floats
from adlro.core.toml import Schema, nearest, parse_toml
from adlro.ingest.host_lists import hosts_in
from adlro.ingest.traces.cells import Cells, Layout, Writing, as_floats, clock_time, column_names_in
from adlro.ingest.traces.rows import Rows
from adlro.ingest.traces.source import TraceFile, pieces
from adlro.ingest.traces.swf import UNIX_TIMES_BEGIN
from adlro.ingest.traces.table import read_table
from adlro.ingest.traces.tabulate import Trace

OWN: Final = "columns"
"""What reports call the format of a table that a map describes."""

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
GIGABYTES: Final = {"B": 1 / 1024**3, "KB": 1 / 1024**2, "MB": 1 / 1024, "GB": 1.0, "TB": 1024.0}
THOUSANDTHS: Final = {"thousandths": 1.0, "percent": 10.0, "fraction": 1000.0}
ISO: Final = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M")
OFFSET: Final = r"(Z|[+-]\d\d:?\d\d)$"

Length = Literal["us", "ms", "s", "min", "h", "d", "clock"]
Amount = Literal["B", "KB", "MB", "GB", "TB"]


class ColumnNames(Schema):
    """[columns]: what stands in which column of the file."""

    submit: str
    gpus: str | int
    start: str | None = None
    end: str | None = None
    duration: str | None = None
    limit: str | None = None
    user: str | None = None
    name: str | None = None
    id: str | None = None
    family: str | None = None
    models: str | None = None
    ran_on: str | None = None
    nodes: str | None = None
    node_count: str | None = None
    share: str | None = None
    cpus: str | None = None
    memory: str | None = None
    gpu_memory: str | None = None
    priority: str | None = None

    @model_validator(mode="after")
    def _tells_a_duration(self) -> "ColumnNames":
        if self.duration is None and (self.start is None or self.end is None):
            raise ValueError("nothing tells how long a job ran; expected 'duration', or 'start' and 'end'")
        if isinstance(self.gpus, int) and self.gpus < 0:
            raise ValueError(f"'gpus' is {self.gpus}; expected the name of a column, or a number from 0 for all jobs")
        return self


class Units(Schema):
    """[units]: in which unit a column is."""

    time: Literal["us", "ms", "s"] = "s"
    duration: Length = "s"
    limit: Length = "s"
    memory: Amount = "GB"
    gpu_memory: Amount = "GB"
    share: Literal["thousandths", "percent", "fraction"] = "thousandths"


class ColumnMap(Schema):
    """A whole map."""

    columns: ColumnNames
    separator: str = ","
    encoding: str | None = None
    comment: str = ""
    decimal: Literal[".", ","] = "."
    time_format: str | None = None
    time_zone: str = "UTC"
    units: Units = Field(Units())
    set_aside: dict[str, list[str]] = Field({})

    @field_validator("separator")
    @classmethod
    def _one_sign(cls, text: str) -> str:
        text = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(text, text)
        if len(text) != 1 or text in '"\n\r' or not text.isascii():
            raise ValueError(f"{text!r} does not separate cells; expected one sign, such as ';', or 'tab'")
        return text

    @field_validator("encoding")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        try:
            if name is not None and "\n,".encode(codecs.lookup(name).name) != b"\n,":
                raise ValueError(f"{name!r} is not an encoding that we read line by line; convert the file to UTF-8")
        except LookupError:
            raise ValueError(f"there is no encoding {name!r}; expected one such as utf-8, latin-1 or cp1252") from None
        return name

    @field_validator("time_zone")
    @classmethod
    def _there(cls, name: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {name!r}; expected one such as UTC or Europe/Zurich") from None
        return name

    @property
    def writing(self) -> Writing:
        """How the bytes become lines."""
        return Writing(self.encoding, self.comment)


def read_column_map(text: str, where: str) -> ColumnMap:
    """The map that a TOML text holds."""
    return parse_toml(text, where, ColumnMap)


def read_mapped(source: TraceFile, found: ColumnMap, column: str | None) -> Trace:
    """The rows of a table that a map describes; `column` is one that is asked for by name."""
    layout = layout_in(source, found)
    clock: list[float] = []

    def rows(cells: Cells) -> Rows:
        some = mapped_rows(cells, found)
        if not clock and len(some):
            clock.append(float(np.nan_to_num(np.nanmax(some.submit, initial=0.0))))
        return some

    def start() -> float | None:
        return 0.0 if clock and clock[0] > UNIX_TIMES_BEGIN else None

    return read_table(source, layout, found.writing, rows, column, start)


def layout_in(source: TraceFile, found: ColumnMap) -> Layout:
    """Where the cells of the table are; every column that the map names must be there."""
    first = b""
    for piece in pieces(source):  # comments may be longer than the head of the file
        if first := found.writing.clean(piece).partition(b"\n")[0]:
            break
    names = column_names_in(first.decode("utf-8", "replace"), found.separator)
    wanted = {key: name for key, name in found.columns.model_dump().items() if isinstance(name, str)}
    wanted |= {f"set_aside.{name}": name for name in found.set_aside}
    for key, name in wanted.items():
        if name not in names:
            shown = ", ".join(names) if len(names) > 1 else f"one column only, {names[:1]}: is the separator right?"
            raise TraceError(
                f"--columns: '{source.path}' has no column '{name}', which the map names as '{key}'."
                f"{nearest(name, names)} Its first line has {shown}."
            )
    return Layout(found.separator, tuple(names))


def mapped_rows(cells: Cells, found: ColumnMap) -> Rows:
    """The cells of a piece as rows."""
    columns, units = found.columns, found.units
    start, end = times(cells, columns.start, found), times(cells, columns.end, found)
    told = lengths(cells, columns.duration, units.duration, found)
    duration = end - start if columns.duration is None else told
    if columns.duration is not None and columns.start and columns.end:
        duration = np.where(np.isnan(told), end - start, told)
    given = {
        "cpus": (columns.cpus, 1.0),
        "memory_gb": (columns.memory, GIGABYTES[units.memory]),
        "gpu_memory_gb": (columns.gpu_memory, GIGABYTES[units.gpu_memory]),
        "priority": (columns.priority, 1.0),
    }
    limit = lengths(cells, columns.limit, units.limit, found)
    share = numbers(cells, columns.share, found) * THOUSANDTHS[units.share]
    gpus = columns.gpus
    counted = cells.parsed(columns.nodes, lambda text: float(len(hosts_in(text))) or np.nan)
    return Rows(
        line=cells.line,
        submit=times(cells, columns.submit, found),
        duration=duration,
        gpus=np.full(len(cells), float(gpus)) if isinstance(gpus, int) else numbers(cells, gpus, found),
        share=None if columns.share is None else np.where(np.isnan(share), WHOLE_GPU, share),
        limit=None if columns.limit is None else np.where(limit > 0, limit, np.nan),
        given={key: numbers(cells, name, found) * unit for key, (name, unit) in given.items() if name is not None},
        user=cells.labels(columns.user),
        name=cells.labels(columns.name),
        family=cells.labels(columns.family),
        models=cells.labels(columns.models),
        types=cells.labels(columns.ran_on),
        places=cells.labels(columns.nodes),
        nodes=counted if columns.node_count is None else numbers(cells, columns.node_count, found),
        id=None if columns.id is None else cells.columns[columns.id],
        aside={
            f"{name} is {word}": cells.is_in(name, [word]) for name, words in found.set_aside.items() for word in words
        },
    )


def numbers(cells: Cells, name: str | None, found: ColumnMap) -> Floats:
    """A column of numbers, with its own decimal sign."""
    if name is None or found.decimal == "." or not cells.has(name):
        return cells.number(name)
    import pyarrow.compute as pc

    return Cells({name: pc.replace_substring(cells.columns[name], ",", ".")}, cells.line).number(name)


def lengths(cells: Cells, name: str | None, unit: Length, found: ColumnMap) -> Floats:
    """A column of lengths of time, in seconds."""
    if unit == "clock":
        return cells.parsed(name, clock_time)
    return numbers(cells, name, found) * _SECONDS[unit]


def times(cells: Cells, name: str | None, found: ColumnMap) -> Floats:
    """A column of times as Unix seconds: numbers, or dates in the map's format and time zone."""
    if name is None:
        return cells.number(None)
    as_numbers = numbers(cells, name, found) * _SECONDS[found.units.time]
    if found.time_format is None and not np.isnan(as_numbers).any():
        return as_numbers
    if found.time_format is not None and "%z" in found.time_format:
        return cells.parsed(name, lambda text: with_offset(text, found.time_format or ""))
    dates = np.full(len(cells), np.nan)
    for form in ISO if found.time_format is None else (found.time_format,):
        dates = np.where(np.isnan(dates), dates_in(cells.columns[name], form, found), dates)
    return dates if found.time_format is not None else np.where(np.isnan(as_numbers), dates, as_numbers)


def dates_in(column: Any, form: str, found: ColumnMap) -> Floats:
    """Dates of one form as Unix seconds; nan for what is none."""
    import pyarrow.compute as pc

    text, offsets = pc.utf8_trim_whitespace(column), np.zeros(len(column))
    zoned = np.zeros(len(column), bool)
    if found.time_format is None:
        zoned = as_floats(pc.fill_null(pc.match_substring_regex(text, OFFSET), False)) == 1
        if zoned.any():
            each = text.to_pylist()
            offsets[zoned] = [offset_s(each[row] or "") for row in np.flatnonzero(zoned).tolist()]
            text = pc.replace_substring_regex(text, OFFSET, "")
        text = pc.utf8_slice_codeunits(pc.replace_substring(text, "T", " "), 0, 19)
    local = pc.strptime(text, format=form, unit="s", error_is_null=True)
    here = pc.assume_timezone(local, found.time_zone, ambiguous="earliest", nonexistent="earliest")
    seconds = as_floats(pc.cast(local, "int64")) - offsets
    return np.where(zoned, seconds, as_floats(pc.cast(here, "int64")))


def offset_s(text: str) -> float:
    """Seconds that the clock of a date is ahead of UTC, by the end of its text."""
    found = re.search(OFFSET, text)
    if found is None or found[1] == "Z":
        return 0.0
    digits = found[1][1:].replace(":", "")
    return (1 if found[1][0] == "+" else -1) * (int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0)


def with_offset(text: str, form: str) -> float:
    """A date that names its own offset as Unix seconds; nan if it is none."""
    from datetime import datetime

    try:
        return datetime.strptime(text.strip(), form).timestamp()
    except (ValueError, OverflowError):
        return float("nan")
