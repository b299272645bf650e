"""A map of columns proposed from the beginning of a table (`adlro trace map`), and its first rows as understood."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from adlro.ingest.traces.cells import FALLBACK, Cells, Layout, column_names_in, guessed_layout, is_utf8, text_lines
from adlro.ingest.traces.cells import read_cells as cells_in
from adlro.ingest.traces.column_map import ColumnMap, layout_in, mapped_rows
from adlro.ingest.traces.rows import Labels
from adlro.ingest.traces.source import TraceFile
from adlro.ingest.traces.swf import UNIX_TIMES_BEGIN

_SHOWN: Final = 5
_LOOKED_AT: Final = 200
COMMENTS: Final = ("#", "%", "//")

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "submit": ("submit", "submittime", "submitted", "submittedat", "submission", "submissiontime", "timesubmit",
               "tsubmit", "arrival", "arrivaltime", "creationtime", "created", "createdat", "queuedat", "qtime",
               "eingereicht"),
    "start": ("start", "starttime", "started", "startedat", "timestart", "begin", "begintime", "scheduledtime",
              "beginn"),
    "end": ("end", "endtime", "ended", "endedat", "timeend", "finish", "finished", "finishedat", "finishtime",
            "completiontime", "completed", "deletiontime", "ende"),
    "duration": ("duration", "runtime", "elapsed", "elapsedraw", "elapsedtime", "runningtime", "jobduration", "dauer",
                 "laufzeit"),
    "gpus": ("gpus", "gpu", "ngpus", "ngpu", "numgpus", "numgpu", "gpunum", "gpucount", "reqgpus", "allocgpus",
             "gpusreq", "gpurequest", "requestedgpus", "gpuanzahl"),
    "limit": ("limit", "timelimit", "timelimitraw", "walltime", "walltimelimit", "walllimit", "requestedtime",
              "reqtime", "wallclockreq", "maxtime"),
    "user": ("user", "username", "userid", "uid", "owner", "account", "nutzer", "benutzer"),
    "name": ("name", "jobname", "job", "task", "taskname"),
    "id": ("id", "jobid", "jobidraw", "taskid", "instanceid"),
    "ran_on": ("gpu", "gputype", "gpumodel", "gpuname", "ranon", "gpukind", "accelerator"),
    "nodes": ("nodelist", "node", "host", "hosts", "hostname", "hostlist", "exechost"),
    "node_count": ("nnodes", "nodes", "numnodes", "nodecount", "allocnodes"),
    "cpus": ("cpus", "ncpus", "cpu", "numcpus", "cpucount", "cores", "ncores", "alloccpus", "reqcpus", "cpurequest"),
    "memory": ("memory", "mem", "reqmem", "ram", "memoryrequest"),
    "gpu_memory": ("gpumemory", "gpumem", "vram"),
    "share": ("share", "gpushare", "gpumilli"),
    "family": ("family",),
    "models": ("models", "gpuspec", "allowedgpus"),
    "priority": (),
}  # fmt: skip
"""What columns are usually called: in lower case, without signs, and without a unit at the end."""

UNITS: Final = {
    "us": "us", "ms": "ms", "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "min",
    "mins": "min", "minutes": "min", "h": "h", "hr": "h", "hrs": "h", "hours": "h", "d": "d", "days": "d",
    "kb": "KB", "kib": "KB", "mb": "MB", "mib": "MB", "gb": "GB", "gib": "GB", "tb": "TB", "tib": "TB", "b": "B",
    "percent": "percent", "milli": "thousandths",
}  # fmt: skip

_OF_A_GPU: Final = ("percent", "thousandths")
"""Units that only a share has."""

DATES: Final = (
    "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%Y%m%d%H%M%S", "%a %b %d %H:%M:%S %Y", "%Y-%m-%d",
)  # fmt: skip
_NEEDED: Final = ("submit", "gpus", "duration")
_STATES: Final = ("state", "jobstate", "status", "jobstatus", "zustand")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a table seems to hold."""

    separator: str
    encoding: str | None
    comment: str
    decimal: str
    time_format: str | None
    columns: Mapping[str, str]
    units: Mapping[str, str]
    other: tuple[str, ...] = field(default=())  # columns that nothing is known about
    never_ran: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what columns of states say of such rows

    @property
    def missing(self) -> tuple[str, ...]:
        """What a map must name and this one does not."""
        has_length = "duration" in self.columns or {"start", "end"} <= set(self.columns)
        return tuple(key for key in _NEEDED if key not in self.columns and not (key == "duration" and has_length))

    def as_dict(self) -> dict[str, Any]:
        """The map as tables of TOML, without what has its default."""
        head = {
            "separator": self.separator,
            "encoding": self.encoding,
            "comment": self.comment or None,
            "decimal": None if self.decimal == "." else self.decimal,
            "time_format": self.time_format,
        }
        found: dict[str, Any] = {key: value for key, value in head.items() if value is not None}
        return found | {"columns": dict(self.columns)} | ({"units": dict(self.units)} if self.units else {})


def propose(source: TraceFile) -> Proposal:
    """A map for a table, by the words in its header and the cells of its first rows."""
    layout = guessed_layout(source.head, COMMENTS)
    lines = text_lines(source.head)
    rows = [column_names_in(line, layout.separator) for line in lines[layout.rows_from : layout.rows_from + _LOOKED_AT]]
    cells = {
        name: [row[place] for row in rows if len(row) == len(layout.names) and row[place]]
        for place, name in enumerate(layout.names)
    }
    columns, units = dict[str, str](), dict[str, str]()
    for key, words in _WORDS.items():
        for name in layout.names:
            bare, unit = split_unit(name)
            if unit in _OF_A_GPU and key != "share":
                continue  # cpu_milli: no number of cores
            if name not in columns.values() and (bare in words or _plain(name) in words) and _fits(key, cells[name]):
                columns[key] = name
                if unit and key in ("duration", "limit", "memory", "gpu_memory", "share"):
                    units[key] = unit
                break
    for key in ("duration", "limit"):
        if key in columns and any(":" in text for text in cells[columns[key]]):
            units[key] = "clock"
    time_format = date_format(cells.get(columns.get("submit", ""), []))
    if unit := _time_unit(cells.get(columns.get("submit", ""), [])):
        units["time"] = unit
    first = lines[0] if lines else ""
    comment = next((sign for sign in COMMENTS if first.startswith(sign)), "") if layout.rows_from > 1 else ""
    return Proposal(
        separator=layout.separator,
        encoding=None if is_utf8(source.head) or is_utf8(source.head[: source.head.rfind(b"\n")]) else FALLBACK,
        comment=comment,
        decimal=decimal_sign(layout, cells, columns),
        time_format=time_format,
        columns=columns,
        units={key: unit for key, unit in units.items() if unit not in ("s", "GB", "thousandths")},
        other=tuple(name for name in layout.names if name not in columns.values()),
        never_ran=_never_ran(layout, rows, columns),
    )


def _never_ran(layout: Layout, rows: Sequence[Sequence[str]], columns: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """What a column of states says only of rows without a start or a duration."""
    lengths = [layout.names.index(columns[key]) for key in ("duration", "start") if key in columns]
    whole = [row for row in rows if len(row) == len(layout.names)]
    found = {}
    for place, name in enumerate(layout.names):
        if _plain(name) in _STATES and name not in columns.values() and lengths:
            ran = {row[place] for row in whole if row[lengths[0]]}
            never = dict.fromkeys(row[place] for row in whole if row[place] and row[place] not in ran)
            if never:
                found[name] = tuple(never)[:_SHOWN]
    return found


def _plain(name: str) -> str:
    """A name in lower case, without signs."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def split_unit(name: str) -> tuple[str, str]:
    """The bare word of a column and the unit at its end: ("duration", "min") for duration_min or Duration (min)."""
    found = re.fullmatch(r"(.*?)[\s_.(\[/-]+([A-Za-z]+)[\s)\]]*", name.strip())
    unit = UNITS.get(found[2].lower(), "") if found else ""
    return (_plain(found[1]), unit) if found and unit else (_plain(name), "")


def _fits(key: str, texts: Sequence[str]) -> bool:
    """Whether cells can be what a column of that name is taken for."""
    if key in ("gpus", "node_count", "cpus", "share"):
        return all(_is_number(text) for text in texts[:_SHOWN])
    if key in ("nodes", "ran_on"):
        return not texts or not all(_is_number(text) for text in texts)
    return True


def _is_number(text: str) -> bool:
    """Whether a cell is a number, with a point or a comma."""
    return re.fullmatch(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*", text) is not None


def decimal_sign(layout: Layout, cells: Mapping[str, Sequence[str]], columns: Mapping[str, str]) -> str:
    """The sign before decimals in the columns of numbers."""
    texts = [text for key in ("duration", "cpus", "memory", "submit") for text in cells.get(columns.get(key, ""), [])]
    has_comma = any(re.fullmatch(r"\s*\d+,\d+\s*", text) for text in texts)
    return "," if has_comma and layout.separator != "," else "."


def date_format(texts: Sequence[str]) -> str | None:
    """The form of dates that are neither numbers nor ISO dates; None if the default reads them."""
    dates = [text.strip() for text in texts if not _is_number(text)]
    if not dates or all(re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", text) for text in dates):
        return None
    return next((form for form in DATES if all(_is_date(text, form) for text in dates)), None)


def _is_date(text: str, form: str) -> bool:
    """Whether a text is a date of this form."""
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def _time_unit(texts: Sequence[str]) -> str:
    """The unit of times whose numbers are too large for seconds of this century; "" if they are not."""
    numbers = [float(text.replace(",", ".")) for text in texts if _is_number(text)]
    most = max(numbers, default=0.0)
    return "us" if most > 1e14 else "ms" if most > 1e11 else ""


def as_toml(found: Proposal, file: str) -> str:
    """The proposal as the text of a map, with a word on what is missing or was not used."""
    lines = [f"# How to read {json.dumps(file)}: check it, then pass it as --columns. docs/traces.md lists all keys."]
    values = found.as_dict()
    lines += [f"{key} = {_quoted(value)}" for key, value in values.items() if isinstance(value, str)]
    if found.time_format is not None or "time" not in found.units:
        lines.append('# time_zone = "UTC"    # of dates that do not name their own')
    for table in ("columns", "units"):
        if table in values:
            lines += ["", f"[{table}]", *(f"{key} = {_quoted(name)}" for key, name in values[table].items())]
        if table == "columns":
            lines += [f'# {key} = ""    # missing: no column looks like it' for key in found.missing]
            if found.other:
                lines.append(f"# not used: {', '.join(map(_quoted, found.other))}")
    if found.never_ran:
        lines += ["", "# To leave out rows that did not run, remove the # before the next lines:", "# [set_aside]"]
        lines += [f"# {_quoted(name)} = [{', '.join(map(_quoted, words))}]" for name, words in found.never_ran.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text in quotes, as TOML and JSON both write it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def first_rows(source: TraceFile, found: ColumnMap) -> Iterator[dict[str, Any]]:
    """The first rows of a table as a map makes us understand them; None for what is missing."""
    layout = layout_in(source, found)
    pieces = cells_in(source, layout, found.writing)
    cells = next((one for one in pieces if len(one)), None)
    if cells is None:
        return
    few = Cells({name: column[:_SHOWN] for name, column in cells.columns.items()}, cells.line[:_SHOWN])
    with np.errstate(all="ignore"):
        rows = mapped_rows(few, found)
    for place in range(len(few)):
        submit = number_at(rows.submit, place)
        is_date = submit is not None and submit > UNIX_TIMES_BEGIN
        yield {
            "submit": datetime.fromtimestamp(submit, UTC).isoformat() if is_date and submit is not None else submit,
            "duration_s": number_at(rows.duration, place),
            "gpus": number_at(rows.gpus, place),
            "limit_s": number_at(rows.limit, place),
            "user": text_at(rows.user, place),
            "name": text_at(rows.name, place),
            "ran_on": text_at(rows.types, place),
            "nodes": text_at(rows.places, place),
            **{key: number_at(column, place) for key, column in rows.given.items()},
        }


def number_at(column: Any, place: int) -> float | None:
    """One number of a column; None if it is missing."""
    value = np.nan if column is None else float(column[place])
    return value if np.isfinite(value) else None


def text_at(labels: Labels | None, place: int) -> str | None:
    """One text of a column; None if it is empty."""
    return None if labels is None else str(labels.texts[labels.codes[place]]) or None
