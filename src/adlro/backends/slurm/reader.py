"""Read a running Slurm: one reader for all of ADLRO, over the sources that answer. It remembers what jobs were told."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from adlro.backends.slurm.jobs import RUNS, told_of
from adlro.backends.slurm.kept import AskPlan, KeptGpus
from adlro.backends.slurm.models import PATIENCE_S
from adlro.backends.slurm.nodes import Devices, NamedNode, Naming, cluster_of, down_of, reserved_nodes, sites_of
from adlro.backends.slurm.parse import (
    SlurmNode,
    SlurmReservation,
)
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.backends.slurm.sources import SlurmSource
from adlro.backends.slurm.told import ReportedJob
from adlro.catalogue.speeds import UNKNOWN_FAMILY
from adlro.core.errors import BackendError
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Part, Setback, Snapshot
from adlro.core.records import Job

SAME_S: Final = 10.0
"""Within this time an unchanged answer means an unchanged snapshot; later, a job may have waited too long in its
place."""

_KEPT_S: Final = 900.0
"""How long a job that vanished from Slurm's answers is reported as ended."""

LEAK_S: Final = 6.0
"""GPUs without a job count as leaked after Slurm has counted them as used for this long."""

FORGOTTEN_S: Final = 20.0
"""A job that slurmctld forgot to have started is not placed for so long. Its script still runs: slurmctld ends that run
when the node registers (5 s later in the lab). Who starts the job again before has it twice, and Slurm drains the node
("Duplicate jobid").
"""

MOST_NOTES: Final = 50


@dataclass(frozen=True, slots=True)
class SourceReading:
    """What one source reported."""

    jobs: list[SlurmJob]
    nodes: list[SlurmNode]
    reservations: list[SlurmReservation]
    version: tuple[int, int] | None

    def is_as(self, other: "SourceReading") -> bool:
        """Whether nothing has happened since another reading. The source then gives the same list of jobs."""
        return self.jobs is other.jobs and self.nodes == other.nodes and self.reservations == other.reservations


@dataclass(frozen=True, slots=True)
class Before:
    """The last reading, for the case that nothing has happened since."""

    reading: SourceReading
    snapshot: Snapshot
    odd: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A job that ran, and of which slurmctld knew no more when it was started again: when that was seen, how often."""

    at_s: float
    starts: int


@final
class Leaks:
    """GPUs that Slurm counts as used though no job has them: after a crash of slurmctld some may be.

    Slurm gives them to nobody, so they must not count as free. They are shown as held by a job that is not ours.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._since: dict[tuple[str, str], float] = {}

    def look(
        self, sites: Mapping[str, NamedNode], jobs: Sequence[ReportedJob], now_s: float
    ) -> tuple[list[LiveJob], list[str]]:
        """A stand-in for each leak that lasts, and a line about it. Jobs and nodes are read one after the other, so a
        difference may be a job that began in between.

        A job that waits in its place has no GPU in Slurm's books yet. It may even wait there because of the leak, so it
        must not hide it.
        """
        used, waited_for = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
        for job in jobs:
            held = waited_for if job.is_pending and job.live.state is JobState.PLACED else used
            for part in job.live.parts if job.live.state in PLACES else ():
                held[part.node, part.model] = held.get((part.node, part.model), 0) + part.count
        leaks = {
            at: extra
            for name, site in sites.items()
            for model, devices in site.devices.items()
            if (extra := used_of(site, devices) - used.get(at := (name, model), 0)) > 0
        }
        self._since = {at: self._since.get(at, now_s) for at in leaks}
        found, lines = [], []
        for (node, model), extra in leaks.items():
            since = self._since[node, model]
            at = node, model
            room = len(sites[node].devices[model].types) - used.get(at, 0) - waited_for.get(at, 0)
            count = min(extra, room)  # those of a job that waits there are held by it
            if now_s - since < LEAK_S or count <= 0:
                continue
            books = Job(UNKNOWN_FAMILY, 0.0, since, gpus=count, name="used in Slurm's books")
            reason = "Slurm counts these GPUs as used, and no job has them"
            found.append(
                LiveJob(
                    f"leak@{node}/{model}",
                    books,
                    JobState.RUNNING,
                    (Part(node, model, count),),
                    since,
                    managed=False,
                    reason=reason,
                )
            )
            lines.append(
                f"node {node}: Slurm counts {count} {model} as used that no job has. 'scontrol reconfigure' frees them."
            )
        return found, lines


def used_of(site: NamedNode, devices: Devices) -> int:
    """How many of these devices Slurm counts as used."""
    types = set(devices.types)
    return min(sum(count for word, count in site.node.used if word in types), len(devices.types))


@final
class Reader:
    """Snapshots of one Slurm, from the first of its sources that answers.

    It keeps what Slurm forgets: the devices of a job that has ended, the first submission of one that was put back,
    that a job ran when slurmctld was killed before it had saved that, and that a job was there at all, should Slurm
    lose it or drop it before it was seen to end.
    """

    def __init__(
        self,
        sources: Sequence[SlurmSource],
        naming: Naming,
        clock: Callable[[], float] = time.time,
        patience: Callable[[], float] = lambda: PATIENCE_S,
        ask_plan: AskPlan | None = None,
    ) -> None:
        """At least one source, the preferred first. `patience` says how long Slurm takes to look for backfill.

        `ask_plan` asks Slurm where it plans to start waiting jobs.
        """
        self._sources, self._naming, self._clock, self._patience = tuple(sources), naming, clock, patience
        self._told: dict[str, ReportedJob] = {}
        self._sites: dict[str, NamedNode] = {}
        self._parts: dict[str, tuple[Part, ...]] = {}
        self._first: dict[str, tuple[SlurmJob, float]] = {}
        self._gone: dict[str, LiveJob] = {}
        self._forgotten: dict[str, Forgotten] = {}
        self._leaks = Leaks()
        self._kept_gpus = KeptGpus(ask_plan)
        self._before: Before | None = None
        self._latest: SlurmSource | None = None  # who answered last
        self._has_changed = False

    def has_changed(self) -> bool:
        """Whether a job or a node has changed since the latest reading. Raises BackendError."""
        if not self._has_changed and self._latest is not None:
            self._has_changed = self._latest.has_changed()
        return self._has_changed

    def read(self) -> Snapshot:
        """The cluster now. Raises BackendError when no source gives all of it."""
        now = self._clock()
        self._has_changed = False
        reading, notes = self._ask()
        before, patience_s = self._before, self._patience()
        same_s = min(SAME_S, patience_s / 2)
        if before is not None and reading.is_as(before.reading) and 0 <= now - before.at_s < same_s:
            return replace(before.snapshot, time_s=now, notes=tuple([*notes, *before.odd][:MOST_NOTES]))
        sites, problems = sites_of(reading.nodes, self._naming)
        reserved = reserved_nodes(reading.reservations, sites, now)
        keeps_types = reading.version is None or reading.version < (24, 11)
        told, odd = told_of(reading.jobs, sites, self._naming, now, keeps_types, reserved, patience_s)
        lost: list[str] = []
        kept = {each.live.id: self._with_memory(each, now, lost) for each in told}
        lost += self._note_gone(kept, now)
        self._told, self._sites = kept, sites
        live = [each.live for each in kept.values()]
        leaked, leaks = self._leaks.look(sites, tuple(kept.values()), now)
        live += leaked
        odd += leaks
        live += self._kept_gpus.look(sites, reading.jobs, tuple(kept.values()), live, now)
        snapshot = Snapshot(
            time_s=now,
            cluster=cluster_of(sites, self._naming),
            jobs=tuple(live + [job for job in self._gone.values() if job.id not in kept]),
            down=down_of(sites, reserved),
            notes=tuple([*notes, *lost, *problems, *odd][:MOST_NOTES]),
        )
        self._before = Before(reading, snapshot, (*problems, *odd), now)
        return snapshot

    def told(self, job: str) -> ReportedJob | None:
        """A job as last read."""
        return self._told.get(job)

    def all_told(self) -> Sequence[ReportedJob]:
        """All jobs as last read."""
        return tuple(self._told.values())

    @property
    def sites(self) -> Mapping[str, NamedNode]:
        """The nodes with their devices, as last read."""
        return self._sites

    def types(self, node: str, model: str) -> tuple[str, ...] | None:
        """Slurm's type for each device of a model on a node, if each has one of its own; None: only how many counts."""
        site = self._sites.get(node)
        devices = site.devices.get(model) if site else None
        return devices.types if devices and devices.have_types_each else None

    def type_of(self, node: str, model: str) -> str:
        """Slurm's type for a model on a node that has others too; "" where the node says it all."""
        site = self._sites.get(node)
        if site is None or len(site.devices) < 2 or model not in site.devices:
            return ""
        return site.devices[model].types[0]

    def _ask(self) -> tuple[SourceReading, list[str]]:
        """Jobs, nodes and reservations of the first source that gives all of them."""
        notes: list[str] = []
        for source in self._sources:
            try:
                reading = SourceReading(source.jobs(), source.nodes(), source.reservations(), source.version())
                self._latest = source
                return reading, notes
            except BackendError as error:
                notes.append(f"{source.what} was not used: {error}")
        raise BackendError(" ".join(note.removeprefix(f"{self._sources[0].what} was not used: ") for note in notes[:2]))

    def _with_memory(self, told: ReportedJob, now_s: float, notes: list[str]) -> ReportedJob:
        """A job with what Slurm has forgotten of it."""
        live = told.live
        before = self._first.get(live.id)
        if before is None or _is_another(before[0], told.job):
            self._first[live.id] = before = told.job, live.job.submit_s
            self._parts.pop(live.id, None)
            self._gone.pop(live.id, None)
            self._forgotten.pop(live.id, None)
        elif _was_forgotten(before[0], told.job):
            earlier = self._forgotten.get(live.id, Forgotten(0.0, 0))
            self._forgotten[live.id] = Forgotten(now_s, earlier.starts + 1)
            notes.append(f"job {live.id} ran on {before[0].node_list}, and slurmctld forgot it: it will begin again")
        live = self._as_forgotten(live, now_s)
        first = min(before[1], live.job.submit_s)
        self._first[live.id] = told.job, first
        if live.state is JobState.RUNNING and any(part.indices for part in live.parts):
            self._parts[live.id] = live.parts
        elif live.state is JobState.RUNNING:  # about to end: the devices are taken back before the job is told as ended
            if _places(self._parts.get(live.id, ())) != _places(live.parts):
                self._parts.pop(live.id, None)
        elif live.state not in ENDED:
            self._parts.pop(live.id, None)
        ends = live.state is JobState.RUNNING or live.state in ENDED
        parts = self._parts.get(live.id, live.parts) if ends else live.parts
        return replace(told, live=replace(live, parts=parts, job=replace(live.job, submit_s=first)))

    def _as_forgotten(self, live: LiveJob, now_s: float) -> LiveJob:
        """A job with the starts that slurmctld forgot; one that it forgot just now is not to be placed yet."""
        forgotten = self._forgotten.get(live.id)
        if forgotten is None:
            return live
        live = replace(live, starts=live.starts + forgotten.starts)
        if live.state is not JobState.WAITING or not live.managed or now_s - forgotten.at_s >= FORGOTTEN_S:
            return live
        reason = "slurmctld forgot that it ran; it is placed again when that run must have ended"
        return replace(live, managed=False, reason=reason, setback=Setback.NONE)

    def _note_gone(self, now: Mapping[str, ReportedJob], time_s: float) -> list[str]:
        """Tell of jobs that are in the answers no longer though nobody saw them end."""
        notes = []
        for name, told in self._told.items():
            if name in now:
                continue
            if told.live.state not in ENDED:
                began = told.live.state is JobState.RUNNING
                what = "ran" if began else "waited"
                notes.append(f"job {name} {what} and is in Slurm's answers no longer; how it ended is not known")
                self._gone[name] = replace(
                    told.live,
                    state=JobState.FAILED if began else JobState.CANCELLED,
                    ended_s=time_s,
                    exit_code=None,
                    signal=None,
                    reason="gone from Slurm's answers",
                )
            self._first.pop(name, None)
            self._parts.pop(name, None)
            self._forgotten.pop(name, None)
        self._gone = {name: job for name, job in self._gone.items() if time_s - (job.ended_s or 0.0) < _KEPT_S}
        return notes


def _places(parts: Sequence[Part]) -> list[tuple[str, str, int]]:
    """Where a job is, without which devices."""
    return [(part.node, part.model, part.count) for part in parts]


def _is_another(before: SlurmJob, now: SlurmJob) -> bool:
    """Whether a number has been given to another job: slurmctld forgets what it had no time to save."""
    moved = before.submit_unix != now.submit_unix and now.restarts <= before.restarts
    return moved or before.user != now.user or before.name != now.name


def _was_forgotten(before: SlurmJob, now: SlurmJob) -> bool:
    """Whether a job ran and waits with the same restart count: slurmctld was killed before it had saved the start."""
    ran = before.state in RUNS or before.state == "COMPLETING"
    return ran and now.state == "PENDING" and now.restarts == before.restarts
