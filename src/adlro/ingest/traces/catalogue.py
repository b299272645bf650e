"""The trace formats, how they are recognised, and the one function that reads them all: `read_any_trace`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError, UsageError
from adlro.core.toml import nearest
from adlro.ingest.traces.cells import Cells, Writing, guessed_layout, layout_of, text_lines
from adlro.ingest.traces.clouds import read_dlrm, read_helios, read_openb, read_philly, read_philly_sizes
from adlro.ingest.traces.column_map import OWN, ColumnMap, read_mapped
from adlro.ingest.traces.frame import FRAME, read_frame
from adlro.ingest.traces.job_lists import MeasuredFamilies, is_gavel, read_gavel, read_sia
from adlro.ingest.traces.own import NEEDED, read_own, read_own_parquet
from adlro.ingest.traces.rows import Rows
from adlro.ingest.traces.slurm import check_sacct, is_sacct_json, read_mit, read_nrel, read_sacct, read_sacct_json
from adlro.ingest.traces.source import PARQUET, TraceFile, open_trace
from adlro.ingest.traces.swf import is_swf, read_swf
from adlro.ingest.traces.table import read_table
from adlro.ingest.traces.tabulate import FamilyRule, Tabulated, Trace, TraceOptions, check_options, tabulate


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what it is called, how it is recognised by its beginning, and how a file of it is read."""

    name: str
    summary: str
    recognise: Callable[[bytes], bool]
    read: Callable[
        [TraceFile, MeasuredFamilies, str | None], Trace
    ]  # with the column that is asked for by name, if one is
    needs: tuple[str, ...] = ()  # columns without which it is not this format, if its first line names columns
    separator: str = ","


def _table(
    name: str,
    summary: str,
    read: Callable[[Cells, MeasuredFamilies], Rows],
    needs: tuple[str, ...],
    separator: str = ",",
    clock: float | None = None,
    check: Callable[[TraceFile, Sequence[str]], None] = lambda _source, _names: None,
) -> Format:
    """A format whose first line names its columns; `clock` is the Unix time of its 0.

    `check` refuses a file by the names of its columns.
    """

    def recognise(head: bytes) -> bool:
        return set(needs) <= set(layout_of(head, needs, separator).names)

    def read_all(source: TraceFile, measured: MeasuredFamilies, column: str | None) -> Trace:
        layout = layout_of(source.head, needs, separator)
        if missing := [column for column in needs if column not in layout.names]:
            raise TraceError(
                f"'{source.path}' is not a {name} trace: its first line has no column {missing[0]!r}; "
                f"expected {', '.join(needs)}."
            )
        check(source, layout.names)
        return read_table(source, layout, Writing(), lambda cells: read(cells, measured), column, lambda: clock)

    return Format(name, summary, recognise, read_all, needs, separator)


def _alone(read: Callable[[Cells], Rows]) -> Callable[[Cells, MeasuredFamilies], Rows]:
    """A reader that does not need the measured families."""
    return lambda cells, _measured: read(cells)


FEWEST_COLUMNS: Final = 3

PHILLY_0: Final = 1_502_753_220.0  # 2017-08-14 23:27:00, in the README of the form with all sizes

FORMATS: Final = (
    Format("parquet", "our own table as Parquet", lambda head: head.startswith(PARQUET),
           lambda source, _measured, column: read_own_parquet(source, column)),
    _table("csv", "our own table as CSV", _alone(read_own), NEEDED),
    Format("swf", "Standard Workload Format (Parallel Workloads Archive)", is_swf,
           lambda source, _measured, _column: read_swf(source)),
    _table("sacct", "Slurm: sacct --parsable2", _alone(read_sacct), ("JobID", "Submit"), "|", 0.0, check_sacct),
    Format("sacct-json", "Slurm: sacct --json", is_sacct_json,
           lambda source, _measured, _column: read_sacct_json(source)),
    _table("supercloud", "Slurm columns of MIT SuperCloud", _alone(read_mit),
           ("id_user", "time_submit", "time_start", "time_end", "timelimit", "cpus_req"), clock=0.0),
    _table("nrel", "Slurm columns of NREL Eagle", _alone(read_nrel),
           ("job_id", "wallclock_req", "gpus_req", "submit_time", "start_time", "run_time"), clock=0.0),
    _table("philly", "Microsoft Philly, as prepared for Pollux and Sia", _alone(read_philly),
           ("timestamp", "duration", "num_gpus", "cluster"), clock=0.0),
    _table("philly-sizes", "Microsoft Philly, all job sizes", _alone(read_philly_sizes),
           ("#job id", "arrival time (sec)", "size", "duration (sec)"), clock=PHILLY_0),
    _table("openb", "Alibaba openb v2023: the list of pods", _alone(read_openb),
           ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time",
            "deletion_time", "scheduled_time")),
    _table("dlrm", "Alibaba DLRM v2025: instances of recommendation services", _alone(read_dlrm),
           ("instance_sn", "app_name", "cpu_request", "gpu_request", "memory_request", "creation_time",
            "deletion_time")),
    _table("helios", "SenseTime Helios job log", _alone(read_helios),
           ("job_id", "gpu_num", "cpu_num", "state", "submit_time", "duration"), clock=0.0),
    _table("sia", "Sia's job lists, tied to its measured speeds", read_sia,
           ("name", "time", "application", "num_replicas", "batch_size")),
    Format("gavel", "Gavel's job lists, tied to its measured speeds", is_gavel,
           lambda source, measured, _column: read_gavel(source, measured)),
)  # fmt: skip


def read_any_trace(
    trace: str | Any,
    options: TraceOptions,
    rule: FamilyRule,
    measured: MeasuredFamilies,
    columns: ColumnMap | None = None,
) -> Tabulated:
    """The jobs of a trace in submit order, what was read, left out and assumed, and where they ran.

    A trace is the path of a file, or a table in memory (a DataFrame) with the columns of our own table. `columns` says
    what the columns of a file mean that is in no format of ours.
    """
    check_options(options)
    if not isinstance(trace, str):
        if options.format not in (None, FRAME):
            raise UsageError(f"--format is {options.format!r}, but the jobs are a DataFrame. Leave it out.")
        if columns is not None:
            raise UsageError("--columns is for files, but the jobs are a DataFrame. Rename its columns instead.")
        source, found = read_frame(trace, rule.column)
        with np.errstate(all="ignore"):
            return tabulate(source, FRAME, found, options, rule)
    source = open_trace(trace)
    if columns is not None:
        if options.format is not None:
            raise UsageError("--format and --columns exclude each other: a map describes a table of no known format.")
        with np.errstate(all="ignore"):
            return tabulate(source, OWN, read_mapped(source, columns, rule.column), options, rule)
    format_ = find_format(options.format) if options.format else recognised(source)
    with np.errstate(all="ignore"):  # what comes to no number is found when the rows are judged
        return tabulate(source, format_.name, format_.read(source, measured, rule.column), options, rule)


def find_format(name: str) -> Format:
    """The format of that name."""
    for format_ in FORMATS:
        if format_.name == name:
            return format_
    names = [format_.name for format_ in FORMATS]
    raise UsageError(f"there is no format '{name}'.{nearest(name, names)} Formats are {', '.join(names)}.")


def recognised(source: TraceFile) -> Format:
    """The format of a file, recognised by its beginning."""
    for format_ in FORMATS:
        if format_.recognise(source.head):
            return format_
    raise TraceError(f"'{source.path}' has an unknown format; {why_unknown(source)}")


def why_unknown(source: TraceFile) -> str:
    """What a file of no known format looks like, and what to do."""
    lines = text_lines(source.head)
    near, lacks = nearest_format(source)
    if near is not None:
        return (
            f"it looks like {near.name}, but has no column {', '.join(lacks)}. A trace tells when each job was "
            f"submitted and how long it ran: get a file with these columns, or describe this one: `adlro trace map`."
        )
    shown = "".join(letter if letter.isprintable() else "·" for letter in (lines or [""])[0].strip())[:80]
    layout = guessed_layout(source.head)
    if len(layout.names) >= FEWEST_COLUMNS:
        return (
            f"it begins with {shown!r} and looks like a table of {len(layout.names)} columns. "
            f"`adlro trace map` proposes how to read it with --columns; `adlro trace formats` lists the known formats."
        )
    return f"it begins with {shown!r}. `adlro trace formats` lists the formats; choose one with --format."


def nearest_format(source: TraceFile) -> tuple[Format | None, list[str]]:
    """The format of which this table has most columns, if it has most of them, and the columns that it lacks."""
    best: tuple[Format | None, list[str]] = (None, [])
    most = 0.5
    for format_ in FORMATS:
        if format_.needs:
            names = layout_of(source.head, format_.needs, format_.separator).names
            lacks = [name for name in format_.needs if name not in names]
            share = 1 - len(lacks) / len(format_.needs)
            if share > most and len(format_.needs) - len(lacks) >= FEWEST_COLUMNS:
                best, most = (format_, lacks), share
    return best
