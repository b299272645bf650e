"""The record of a shadow: what ADLRO would have done and what happened, line by line in a file that only grows.

A record is read from that file, from the daemon's memory, or from the accounting of a Slurm site. `shadow_replay` plays
it again under other policies.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

from pydantic import TypeAdapter, ValidationError

from adlro.backends.shadow.dry_run import CLUSTER_LINE, LOOKED, VOID, WISHED, Note, RunsFor, Shadow, for_its_limit
from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import for_every_family, speed_of
from adlro.core.errors import CatalogueError, StoreError, TraceError
from adlro.core.ports import ENDED, Backend, JobState, LiveJob, Part
from adlro.core.records import CPU_ONLY, Cluster, Job
from adlro.experiment.traces import family_rule
from adlro.ingest.host_lists import hosts_in
from adlro.ingest.traces.cells import Cells, Layout, clock_time, header_of, read_cells
from adlro.ingest.traces.slurm import gpus_in_tres, memory_gb_in_tres, type_in, types_in
from adlro.ingest.traces.source import open_trace
from adlro.ingest.traces.tabulate import FamilyRule
from adlro.live.service import DaemonMemory

FILE: Final = "shadow.jsonl"
"""The name of the record's file, beside the daemon's database."""

GAP_S: Final = 300.0
"""A longer time without a reading means that nobody watched."""

RECALLED: Final = 32_000_000
"""How many bytes of the record a restarted shadow reads to learn what it knew. Reading a note twice does no harm."""

_MOST_HISTORY: Final = 1_000_000


# ---- writing -----------------------------------------------------------------------------------------------------


def shadowed(real: Backend, path: Path, runs_for: RunsFor = for_its_limit) -> Shadow:
    """A shadow of this back end that records into this file, and continues an earlier record."""
    past, _broken = read_notes(path, RECALLED) if path.exists() else ([], 0)
    return Shadow(real, Journal(path).write, past, runs_for, speed=for_every_family(speed_of))


@final
class Journal:
    """A file of notes, one JSON object per line, append-only. It may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"")
        except OSError as error:
            raise StoreError(f"cannot write the shadow record '{path}': {error.strerror}.") from None

    def write(self, notes: Sequence[Note]) -> str:
        """Append notes and flush them to disk; returns what went wrong in words, or ""."""
        try:
            self._append(b"".join(_notes().dump_json(tidy(note), exclude_defaults=True) + b"\n" for note in notes))
        except OSError as error:
            self._lost += len(notes)
            return f"{self._lost} lines could not be written: {error.strerror}"
        return ""

    def _append(self, text: bytes) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            if text and size and os.pread(file, 1, size - 1) != b"\n":
                text = b"\n" + text  # a line that a crash or a full disk cut off must not swallow the next one
            while text:
                text = text[os.write(file, text) :]
            os.fdatasync(file)
        finally:
            os.close(file)


@cache
def _notes() -> TypeAdapter[Note]:
    return TypeAdapter(Note)


def tidy(note: Note) -> Note:
    """The note without NaN and infinite numbers: unknown work is 0, as in every live job."""
    if note.job is None or math.isfinite(note.job.job.work):
        return note
    return replace(note, job=replace(note.job, job=replace(note.job.job, work=0.0)))


def read_notes(path: Path, last: int | None = None) -> tuple[list[Note], int]:
    """The notes in a file (or in its last bytes), and how many lines are unreadable: cut off by a crash, or damaged."""
    notes, broken = [], 0
    try:
        with path.open("rb") as file:
            if last is not None and path.stat().st_size > last:
                file.seek(-last, os.SEEK_END)
                file.readline()
            for line in file:
                if line.strip():
                    try:
                        notes.append(_notes().validate_json(line))
                    except ValidationError:
                        broken += 1
    except OSError as error:
        raise StoreError(f"cannot read the shadow record '{path}': {error.strerror}.") from None
    return notes, broken


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a start that we planned."""

    job: str
    outcome: str  # started, taken, down, left, over; or standing: nothing yet
    lead_s: float | None = None  # by how much the wish came before the cluster's own start
    same_model: bool = False
    same_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """What was seen of a cluster from one moment to another. Jobs are as they stood at the end of it."""

    source: str
    cluster: Cluster
    begin_s: float
    end_s: float
    jobs: tuple[LiveJob, ...]
    fates: tuple[Fate, ...] = ()
    unwatched_s: float = 0.0
    down_gpu_s: float = 0.0
    notes: tuple[str, ...] = ()  # problems of the record, in words
    set_aside: Mapping[str, int] | None = None


def read_record(path: Path) -> Record:
    """The record that a shadow kept in a file."""
    notes, broken = read_notes(path)
    if broken and not notes:
        raise StoreError(
            f"'{path}' is not a shadow record: none of its {broken} lines can be read. Pass the file shadow.jsonl."
        )
    if not any(note.what == LOOKED for note in notes):
        raise StoreError(f"'{path}' contains no record yet. Let the daemon run in shadow mode for a while.")
    record = record_of(notes, path.name)
    return (
        replace(record, notes=(*record.notes, f"{broken} lines of it are damaged and left out")) if broken else record
    )


def record_of(notes: Sequence[Note], source: str) -> Record:
    """The record that notes make up."""
    clusters = [note.cluster for note in notes if note.what == CLUSTER_LINE and note.cluster is not None]
    looks = [note for note in notes if note.what == LOOKED]
    begin_s, end_s = notes[0].time_s, max(note.time_s for note in notes)
    gaps = [later.time_s - look.time_s for look, later in pairwise(looks)]
    told = []
    if len(set(map(_nodes_of, clusters))) > 1:
        told.append("the cluster changed while it was watched; the latest one is taken for all of the time")
    jobs, unseen = _courses(notes)
    if unseen:
        told.append(f"the ends of {unseen} jobs were not seen: they are taken to have ended when they were missed")
    return Record(
        source=source,
        cluster=clusters[-1],
        begin_s=begin_s,
        end_s=end_s,
        jobs=jobs,
        fates=tuple(_fates(notes)),
        unwatched_s=sum(gap for gap in gaps if gap > GAP_S),
        down_gpu_s=_down_gpu_s(looks, end_s, clusters[-1]),
        notes=tuple(told),
    )


def _nodes_of(cluster: Cluster) -> tuple[tuple[str, Any], ...]:
    return tuple((node.name, node.gpus) for node in cluster.nodes)


def _courses(notes: Sequence[Note]) -> tuple[tuple[LiveJob, ...], int]:
    """The course of each job, in the order of first sight; and how many ends were not seen."""
    found: dict[str, LiveJob] = {}
    before: list[LiveJob] = []  # jobs whose number another one got later
    unseen = 0
    for note in notes:
        known = found.get(note.id)
        if note.what == "gone" and known is not None and known.state not in ENDED:
            unseen += known.started_s is not None
            state = JobState.FINISHED if known.started_s is not None else JobState.CANCELLED
            found[note.id] = replace(known, state=state, ended_s=note.time_s)
        elif note.what in ("seen", "started", "ended") and note.job is not None:
            if known is not None and _is_another(known, note.job):
                before.append(known)
                known = None
            found[note.id] = _joined(known, note.job)
    return (*before, *found.values()), unseen


def _is_another(known: LiveJob, now: LiveJob) -> bool:
    """Whether this is another job with the number of one that had ended: clusters reuse numbers."""
    ended_s = known.ended_s if known.state in ENDED and known.ended_s is not None else math.inf
    return now.job.submit_s > ended_s and now.starts <= 1


def _joined(known: LiveJob | None, now: LiveJob) -> LiveJob:
    """A job as it is now, with what was known before and is no longer reported: its place and first submission."""
    if known is None:
        return now
    submit_s = min(known.job.submit_s, now.job.submit_s)
    is_same_run = now.state is not JobState.WAITING
    return replace(
        now,
        job=replace(
            now.job,
            submit_s=submit_s,
            family=now.job.family or known.job.family,
            models=now.job.models or known.job.models,
        ),
        parts=now.parts or (known.parts if is_same_run else ()),
        started_s=now.started_s if now.started_s is not None or not is_same_run else known.started_s,
    )


def _fates(notes: Sequence[Note]) -> Iterator[Fate]:
    """What became of each planned start."""
    standing: dict[str, Note] = {}
    for note in notes:
        wish = standing.get(note.id)
        if note.what == WISHED:
            standing[note.id] = note
        elif wish is not None and note.what == VOID:
            yield Fate(note.id, note.why)
            del standing[note.id]
        elif wish is not None and note.what == "started" and note.job is not None:
            started_s = note.time_s if note.job.started_s is None else note.job.started_s
            yield Fate(
                note.id,
                "started",
                lead_s=max(0.0, started_s - wish.time_s),
                same_model={part.model for part in wish.parts} == {part.model for part in note.job.parts},
                same_nodes={part.node for part in wish.parts} == {part.node for part in note.job.parts},
            )
            del standing[note.id]
    for id in standing:
        yield Fate(id, "standing")


def _down_gpu_s(looks: Sequence[Note], end_s: float, cluster: Cluster) -> float:
    """GPU-seconds on nodes that were down."""
    gpus = {node.name: sum(group.count for group in node.gpus) for node in cluster.nodes}
    until = [look.time_s for look in looks[1:]] + [end_s]
    return sum(
        (later - look.time_s) * sum(gpus.get(name, 0) for name in look.down)
        for look, later in zip(looks, until, strict=True)
    )


# ---- from elsewhere ----------------------------------------------------------------------------------------------


def record_of_memory(memory: DaemonMemory, cluster: Cluster, source: str) -> Record:
    """What the daemon remembers about ended jobs, without a shadow's own record."""
    jobs = tuple(job for job in memory.history(_MOST_HISTORY) if job.ended_s is not None)
    if not jobs:
        raise StoreError(f"'{source}' has no job that ended. Let the daemon run for a while.")
    return Record(
        source=source,
        cluster=cluster,
        begin_s=first_end(jobs),
        end_s=max(job.ended_s or 0.0 for job in jobs),
        jobs=jobs,
        notes=(
            "there is no record of a shadow: jobs that had not ended are not known, nor is what we would have done",
        ),
    )


def first_end(jobs: Iterable[LiveJob]) -> float:
    """The first end of a job that ran. Earlier ends are not in the list, so the cluster is known from here on."""
    return min(job.ended_s for job in jobs if job.ended_s is not None and job.started_s is not None)


SACCT: Final = (
    "sacct --allusers --duplicates --parsable2 --starttime=now-14days --format="
    "JobID,User,JobName,Partition,State,Submit,Start,End,Timelimit,AllocCPUS,ReqTRES,AllocTRES,NodeList"
)
"""The command with which a site exports its history."""

_NEEDED: Final = ("JobID", "State", "Submit", "Start", "End", "AllocTRES", "NodeList")

_STATES: Final = {
    "COMPLETED": JobState.FINISHED,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "PENDING": JobState.WAITING,
    "REQUEUED": JobState.CANCELLED,
    "CANCELLED": JobState.CANCELLED,
}
"""Slurm's states that are not failures."""

NO_NODES: Final = frozenset(["", "none assigned", "(null)", "none", "unknown"])
"""What sacct says of a job that has no nodes."""

_INDEX: Final = re.compile(r"_\d+$")


def read_sacct_record(path: str, cluster: Cluster, families: str = "uniform") -> Record:
    """The history of a site, as `sacct --parsable2` prints it, on a cluster whose nodes have the same names."""
    source = open_trace(path)
    names = header_of(source.head, "|")
    if missing := [name for name in _NEEDED if name not in names]:
        raise TraceError(f"'{path}': its first line has no column {missing[0]!r}; expected the output of: {SACCT}")
    rule = family_rule(families)
    if rule.column is not None and rule.column not in (*names, "user", "name"):
        raise TraceError(f"'{path}': the file has no column '{rule.column}', which --families names.")
    aside: Counter[str] = Counter()
    jobs: dict[str, LiveJob] = {}
    for cells in read_cells(source, Layout("|", tuple(names))):
        aside["wrong number of cells"] += len(cells.broken)
        for job in _jobs_of(cells, cluster, rule, aside):
            known = jobs.get(job.id)
            jobs[job.id] = job if known is None else _requeued(known, job)
    ran = [job for job in jobs.values() if job.ended_s is not None and job.started_s is not None]
    if not ran:
        raise TraceError(f"'{path}': no job in it has started and ended; expected the output of: {SACCT}")
    times = [time for job in jobs.values() for time in (job.job.submit_s, job.started_s, job.ended_s) if time]
    return Record(
        source.name,
        cluster,
        first_end(ran),
        max(times),
        tuple(jobs.values()),
        set_aside={reason: count for reason, count in aside.items() if count},
    )


def _requeued(first: LiveJob, later: LiveJob) -> LiveJob:
    """A job with several rows ran several times: the last run counts, from the first submission."""
    if later.job.submit_s < first.job.submit_s:
        first, later = later, first
    return replace(later, job=replace(later.job, submit_s=first.job.submit_s), starts=first.starts + later.starts)


def _jobs_of(cells: Cells, cluster: Cluster, rule: FamilyRule, aside: Counter[str]) -> Iterator[LiveJob]:
    """The jobs of a piece of sacct's answer."""
    submit, start, end = cells.time("Submit"), cells.time("Start"), cells.time("End")
    limit = cells.parsed("Timelimit", clock_time) if cells.has("Timelimit") else cells.number("TimelimitRaw") * 60
    cpus = cells.number(cells.first_of("AllocCPUS", "NCPUS", "ReqCPUS"))
    texts = {name: column.to_pylist() for name, column in cells.columns.items()}
    models = _models_by_node(cluster)
    for row in range(len(cells)):
        cell = {name: column[row] or "" for name, column in texts.items()}
        id = cell["JobID"]
        if "." in id:
            continue  # a step
        word = cell["State"].split(" ")[0].rstrip("+")
        state = _STATES.get(word, JobState.FAILED)
        if not math.isfinite(submit[row]):
            aside["submit time missing"] += 1
            continue
        listed = cell["NodeList"].strip()
        # A job without nodes never started, though sacct gives it a start.
        nodes = () if listed.lower() in NO_NODES else hosts_in(listed)
        started = float(start[row]) if nodes and math.isfinite(start[row]) and state is not JobState.WAITING else None
        ended = float(end[row]) if math.isfinite(end[row]) and state in ENDED else None
        gpus = int(gpus_in_tres(cell["AllocTRES"] or cell.get("ReqTRES", "")))
        wanted = _model_of(type_in(cell.get("ReqTRES", "")), cluster)
        user, name = cell.get("User", ""), cell.get("JobName", "")
        job = Job(
            family=_family_of(rule, user, name, cell),
            work=0.0,
            submit_s=float(submit[row]),
            gpus=gpus,
            cpus=float(cpus[row]) if math.isfinite(cpus[row]) else 0.0,
            memory_gb=memory_gb_in_tres(cell["AllocTRES"]),
            models=frozenset([wanted]) if wanted else frozenset(),
            user=user,
            name=name,
            limit_s=float(limit[row]) if 0 < limit[row] < math.inf else None,
        )
        parts = _parts_of(cell["AllocTRES"], nodes, gpus, cluster, models) if started is not None else ()
        yield LiveJob(id, job, state, parts, started, ended, starts=int(started is not None))


def _family_of(rule: FamilyRule, user: str, name: str, cell: Mapping[str, str]) -> str:
    """The family that the rule gives a job."""
    if rule.column is not None:
        value = {"user": user, "name": name}.get(rule.column, cell.get(rule.column, ""))
        family = rule.family_of(value)
        if family is None:
            raise TraceError(f"column '{rule.column}' holds {value[:60]!r}, for which there is no family. {rule.hint}")
        return family
    import zlib

    return rule.names[zlib.crc32(f"{user}\0{name}".encode()) % len(rule.names)]


def _models_by_node(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    return {node.name: tuple(group.model for group in node.gpus) for node in cluster.nodes}


def _model_of(word: str, cluster: Cluster) -> str:
    """The cluster's name for a GPU type; "" if it has none."""
    for candidate in (word, _INDEX.sub("", word)):
        try:
            return find_gpu(candidate, cluster.models).name if candidate else ""
        except CatalogueError:
            continue
    return ""


def _parts_of(
    tres: str, nodes: Sequence[str], gpus: int, cluster: Cluster, models: Mapping[str, tuple[str, ...]]
) -> tuple[Part, ...]:
    """Where a job ran, its GPUs spread evenly over its nodes; nothing where that cannot be told."""
    if any(node not in models for node in nodes):
        return ()
    if gpus == 0:
        return tuple(Part(node, CPU_ONLY, 0) for node in nodes)
    typed = {_model_of(word, cluster) for word in types_in(tres)}
    parts = []
    for place, node in enumerate(nodes):
        held = models[node] if len(models[node]) == 1 else tuple(typed.intersection(models[node]))
        if len(held) != 1:
            return ()
        count = gpus // len(nodes) + (place < gpus % len(nodes))
        if count:
            parts.append(Part(node, held[0], count))
    return tuple(parts)
