"""The formats of traces, how they are told apart, and the one way in: `read_any_trace`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError, UsageError
from adlro.core.toml import nearest
from adlro.ingest.traces.cells import Cells, header_of, read_cells
from adlro.ingest.traces.clouds import read_dlrm, read_helios, read_openb, read_philly, read_philly_sizes
from adlro.ingest.traces.frame import FRAME, read_frame
from adlro.ingest.traces.job_lists import MeasuredFamilies, is_gavel, read_gavel, read_sia
from adlro.ingest.traces.own import NEEDED, read_own, read_own_parquet
from adlro.ingest.traces.rows import Rows
from adlro.ingest.traces.slurm import is_sacct_json, read_mit, read_nrel, read_sacct, read_sacct_json
from adlro.ingest.traces.source import PARQUET, TraceFile, open_trace
from adlro.ingest.traces.swf import is_swf, read_swf
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


def _table(
    name: str,
    summary: str,
    read: Callable[[Cells, MeasuredFamilies], Rows],
    needs: tuple[str, ...],
    separator: str = ",",
    clock: float | None = None,
) -> Format:
    """A format whose first line names its columns; `clock` is the Unix time of its 0."""

    def recognise(head: bytes) -> bool:
        return set(needs) <= set(header_of(head, separator))

    def read_all(source: TraceFile, measured: MeasuredFamilies, column: str | None) -> Trace:
        names = header_of(source.head, separator)
        missing = [column for column in needs if column not in names]
        if missing:
            raise TraceError(
                f"'{source.path}' is not a {name} trace: its first line has no column {missing[0]!r}; "
                f"expected {', '.join(needs)}."
            )
        if len(set(names)) < len(names):
            raise TraceError(f"'{source.path}': two columns in its first line have the same name. Rename one.")
        broken: list[int] = []
        found = parts(source, measured, column, broken)
        return Trace(found, broken, clock=lambda: clock, columns=tuple(names))

    def parts(source: TraceFile, measured: MeasuredFamilies, column: str | None, broken: list[int]) -> Iterator[Rows]:
        for cells in read_cells(source, separator):
            broken.extend(cells.broken)
            if len(cells):
                yield replace(read(cells, measured), column=cells.labels(column))

    return Format(name, summary, recognise, read_all)


def _alone(read: Callable[[Cells], Rows]) -> Callable[[Cells, MeasuredFamilies], Rows]:
    """A reader that needs to know nothing of measured families."""
    return lambda cells, _measured: read(cells)


PHILLY_0: Final = 1_502_753_220.0  # 2017-08-14 23:27:00, in the README of the form with all sizes

FORMATS: Final = (
    Format("parquet", "our own table as Parquet", lambda head: head.startswith(PARQUET),
           lambda source, _measured, column: read_own_parquet(source, column)),
    _table("csv", "our own table as CSV", _alone(read_own), NEEDED),
    Format("swf", "Standard Workload Format (Parallel Workloads Archive)", is_swf,
           lambda source, _measured, _column: read_swf(source)),
    _table("sacct", "Slurm: sacct --parsable2", _alone(read_sacct), ("JobID", "Submit"), "|", 0.0),
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


def read_any_trace(trace: str | Any, options: TraceOptions, rule: FamilyRule, measured: MeasuredFamilies) -> Tabulated:
    """The jobs of a trace in submit order, what was read, left out and assumed, and where they ran.

    A trace is the path of a file, or a table in memory (a DataFrame) with the columns of our own table.
    """
    check_options(options)
    if not isinstance(trace, str):
        if options.format not in (None, FRAME):
            raise UsageError(f"--format is {options.format!r}, but the jobs are a DataFrame. Leave it out.")
        source, found = read_frame(trace, rule.column)
        with np.errstate(all="ignore"):
            return tabulate(source, FRAME, found, options, rule)
    source = open_trace(trace)
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
    """The format that a file is in, by how it begins."""
    for format_ in FORMATS:
        if format_.recognise(source.head):
            return format_
    first = next((line for line in source.head.decode("utf-8", "replace").splitlines() if line.strip()), "")
    shown = "".join(letter if letter.isprintable() else "·" for letter in first.strip())[:80]
    raise TraceError(
        f"'{source.path}' has an unknown format; it begins with {shown!r}. "
        f"`adlro trace formats` lists the formats; choose one with --format."
    )
