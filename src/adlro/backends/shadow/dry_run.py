"""Shadow: a live cluster that schedules itself, seen as if its jobs were ours to place. Orders are only written down.

Nothing is ever changed on the cluster behind it: only `read` and `close` of the wrapped back end are called. What we
would have started keeps its place in what we see (state `placed`) until the cluster starts the job itself, another job
takes the place, the job leaves, or the run that we had in mind would be over. So the next decision sees its
consequences, and is still made from the real cluster: a wish that reality has overtaken is void.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from adlro.core.errors import BackendError
from adlro.core.occupancy import Occupancy, alike
from adlro.core.ports import ENDED, PLACES, Answer, Backend, JobState, LiveJob, Order, Part, Snapshot, Submission
from adlro.core.records import Cluster, SpeedOf

# What a note tells.
CLUSTER_LINE: Final = "cluster"  # the cluster as it is from now on
LOOKED: Final = "looked"  # it was read; a gap shows that nobody watched
SEEN: Final = "seen"  # a job was seen for the first time
WISHED: Final = "wished"  # we would have started it
VOID: Final = "void"  # a planned start became void; `why` says why
STARTED_LINE: Final = "started"  # the cluster started it itself
ENDED_NOTE: Final = "ended"
GONE_LINE: Final = "gone"  # it is no longer listed, and its end was not seen

# Why a wish came to nothing.
PLACE_TAKEN: Final = "taken"  # another job has the place
NODE_DOWN: Final = "down"  # the node takes no jobs any more
JOB_LEFT: Final = "left"  # the job was cancelled, or is no longer listed
RUN_OVER: Final = "over"  # the run that we planned would have ended

FOR_ROOM: Final = frozenset(["", "none", "resources", "priority", "nodedown", "cleaning"])
"""Reasons of a job that waits for room or for its turn. With any other reason, nobody could start it now."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the record of what we would have done and of what happened. Times are seconds since 1970."""

    what: str
    time_s: float
    id: str = ""
    job: LiveJob | None = None  # as the cluster tells it
    decision: str = ""
    parts: tuple[Part, ...] = ()
    why: str = ""
    cluster: Cluster | None = None
    down: tuple[str, ...] = ()


Write = Callable[[Sequence[Note]], str]
"""Records notes; returns what went wrong in words, or ""."""

RunsFor = Callable[[LiveJob, tuple[Part, ...]], float | None]
"""How many seconds a job is expected to run at a place; None if that is not known."""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A start that was recorded and not carried out."""

    decision: str
    parts: tuple[Part, ...]
    time_s: float
    until_s: float | None  # when the run would be over


def could_start(job: LiveJob) -> bool:
    """Whether a waiting job is ours, or waits for nothing but room and its turn."""
    return job.state is JobState.WAITING and (job.managed or job.reason.strip("()").lower() in FOR_ROOM)


def for_its_limit(job: LiveJob, parts: tuple[Part, ...]) -> float | None:
    """The job's time limit, in seconds."""
    return job.job.limit_s


@final
class Shadow:
    """A back end beside a cluster that schedules itself: reads pass through, orders are only recorded."""

    def __init__(
        self,
        real: Backend,
        write: Write = lambda notes: "",
        past: Iterable[Note] = (),
        runs_for: RunsFor = for_its_limit,
        is_ours: Callable[[LiveJob], bool] = could_start,
        beat_s: float = 60.0,
        speed: SpeedOf = alike,
    ) -> None:
        """`past` are the notes from before a restart, so that nothing is planned twice."""
        self._real = real
        self._write = write
        self._runs_for = runs_for
        self._is_ours = is_ours
        self._beat_s = beat_s
        self._speed = speed
        self._occupancy: Occupancy | None = None
        self._cluster: Cluster | None = None
        self._looked_s = float("-inf")
        self._stage: dict[str, str] = {}  # by job: the latest of SEEN, STARTED_LINE, ENDED_NOTE
        self._wishes: dict[str, PlannedStart] = {}  # by job, the oldest first
        self._fresh: dict[str, PlannedStart] = {}  # of the latest orders, until they were read back once
        self._over: set[str] = set()  # jobs whose imagined run is over, and that wait still
        self._latest: Snapshot | None = None
        self._trouble = ""
        for note in past:
            self._learn(note)

    @property
    def name(self) -> str:
        """The name of the back end."""
        return "shadow"

    @property
    def can_annotate(self) -> bool:
        """False: shadow mode changes nothing on the cluster."""
        return False

    @property
    def can_stop(self) -> bool:
        """False: the effect of a stop cannot be seen on the real cluster."""
        return False

    @property
    def places_gpus(self) -> bool:
        """False: the real cluster chooses the GPUs of a node."""
        return False

    @property
    def can_resize(self) -> bool:
        """False: on the real cluster the job has the GPUs that it asked for."""
        return False

    @property
    def wishes(self) -> Mapping[str, PlannedStart]:
        """What we would have started and the cluster has not, by job."""
        return dict(self._wishes)

    def read(self) -> Snapshot:
        """The real cluster now, with what we would have started in its place.

        The first reading after orders shows all of them as placed: what reality made of them meanwhile is no refusal.
        """
        seen = self._real.read()
        self._latest = seen
        self._keep(self._news(seen))
        notes = (*seen.notes, f"shadow record: {self._trouble}") if self._trouble else seen.notes
        shown = tuple(self._shown(job) for job in seen.jobs)
        self._fresh = {}
        return replace(seen, jobs=shown, notes=notes)

    def has_changed(self) -> bool:
        """Whether the real cluster has changed, if it can tell."""
        probe = getattr(self._real, "has_changed", None)
        return bool(probe()) if probe is not None else False

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Record the orders. Nothing is carried out."""
        if self._latest is None:
            raise BackendError("shadow: orders came before the cluster was read; read it first.")
        seen = self._latest
        jobs = {job.id: job for job in seen.jobs}
        occupancy = self._occupied(seen)
        for id, wish in self._wishes.items():
            if id in jobs:
                wished(occupancy, jobs[id], wish.parts)
        answers, notes = [], []
        for order in orders:
            job = jobs.get(order.job)
            said = self._refusal(order, job, occupancy)
            answers.append(Answer(order.job, not said, said or "shadow: written down, not carried out"))
            if not said and job is not None and order.job not in self._wishes:
                wished(occupancy, job, order.parts)
                notes.append(Note(WISHED, seen.time_s, job.id, job, order.decision, order.parts))
                self._learn(notes[-1])
                self._fresh[job.id] = self._wishes[job.id]
        self._keep(notes)
        return answers

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Nothing to do: no job was taken."""
        return [Answer(job, False, "shadow mode changes nothing", is_final=True) for job in reasons]

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Nothing to do: shadow mode changes nothing on the cluster."""

    def submit(self, submission: Submission) -> str:
        """Refused: a shadow changes nothing."""
        raise BackendError("shadow mode changes nothing. Submit the job to the cluster itself (sbatch).")

    def cancel(self, job: str) -> None:
        """Refused: a shadow changes nothing."""
        raise BackendError(f"shadow mode changes nothing. Cancel job {job} on the cluster itself (scancel).")

    def close(self) -> None:
        """Close the connection; the cluster continues."""
        self._real.close()

    # ---- what is seen ---------------------------------------------------------------------------------------------

    def _shown(self, job: LiveJob) -> LiveJob:
        """A job as the daemon sees it: ours while it waits, the cluster's once the cluster has started it."""
        wish = self._fresh.get(job.id) if job.state not in ENDED else None
        if job.state is not JobState.WAITING and wish is None:
            return replace(job, managed=False) if job.managed else job
        wish = wish or self._wishes.get(job.id)
        if wish is not None:
            return replace(
                job, state=JobState.PLACED, parts=wish.parts, managed=True, decision=wish.decision, reason="shadow"
            )
        if job.id in self._over:
            return replace(job, managed=False, reason=f"shadow: its run would be over; {job.reason}".rstrip("; "))
        return replace(job, managed=self._is_ours(job))

    def _refusal(self, order: Order, job: LiveJob | None, occupancy: Occupancy) -> str:
        """Why an order could not have been carried out; "" if it could."""
        if not order.is_start:
            return "shadow: no job is stopped"
        if job is None or job.state is not JobState.WAITING:
            return "shadow: it does not wait any more"
        if order.job in self._wishes:
            return ""
        return "" if is_open(occupancy, job, order.parts) else "shadow: there is no room for it there"

    # ---- what is written down -------------------------------------------------------------------------------------

    def _news(self, seen: Snapshot) -> list[Note]:
        """All that is new in a snapshot; it is learnt at the same time."""
        found: list[Note] = []

        def tell(note: Note) -> None:
            self._learn(note)
            found.append(note)

        now = seen.time_s
        if seen.cluster != self._cluster:
            tell(Note(CLUSTER_LINE, now, cluster=seen.cluster))
        if now - self._looked_s >= self._beat_s:
            tell(Note(LOOKED, now, down=tuple(sorted(seen.down))))
        jobs = {job.id: job for job in seen.jobs}
        for job in seen.jobs:
            for note in self._news_of(job, now):
                tell(note)
        for id in [id for id in self._stage if id not in jobs]:
            if self._stage[id] != ENDED_NOTE:
                tell(Note(GONE_LINE, now, id))
            del self._stage[id]
        occupancy = self._occupied(seen)
        for id, wish in list(self._wishes.items()):
            if why := void_because(jobs.get(id), wish, seen, occupancy):
                tell(Note(VOID, now, id, decision=wish.decision, parts=wish.parts, why=why))
            else:
                wished(occupancy, jobs[id], wish.parts)
        return found

    def _occupied(self, seen: Snapshot) -> Occupancy:
        """What the cluster's own jobs hold."""
        if self._occupancy is None or self._occupancy.cluster != seen.cluster:
            self._occupancy = Occupancy(seen.cluster, self._speed)
        occupancy = self._occupancy
        for node in [name for name in occupancy.down if name not in seen.down]:
            occupancy.open(node)
        for node, why in seen.down.items():
            if node not in occupancy.down and occupancy.has_node(node):
                occupancy.close(node, why)
        occupancy.follow((job.id, job.job, job.parts) for job in seen.jobs if job.state in PLACES)
        return occupancy

    def _news_of(self, job: LiveJob, now: float) -> Iterable[Note]:
        """What is new about one job."""
        stage = self._stage.get(job.id)
        if stage is None:
            yield Note(SEEN, now, job.id, job)
        let_go = job.state in (JobState.RUNNING, JobState.PLACED)
        ran = let_go or (job.state in ENDED and job.started_s is not None)
        if ran and stage not in (STARTED_LINE, ENDED_NOTE):
            wish = self._wishes.get(job.id)
            yield Note(STARTED_LINE, now, job.id, job, wish.decision if wish else "", wish.parts if wish else ())
        if job.state is JobState.WAITING and stage in (STARTED_LINE, ENDED_NOTE):
            yield Note(SEEN, now, job.id, job, why="it waits again")
        if job.state in ENDED and stage != ENDED_NOTE:
            yield Note(ENDED_NOTE, now, job.id, job)

    def _learn(self, note: Note) -> None:
        """Apply a note, whether it is new or was read from the record."""
        match note.what:
            case "cluster":
                self._cluster = note.cluster
            case "looked":
                self._looked_s = note.time_s
            case "wished":
                length = self._runs_for(note.job, note.parts) if note.job is not None else None
                until = None if length is None else note.time_s + length
                self._wishes[note.id] = PlannedStart(note.decision, note.parts, note.time_s, until)
            case "void":
                self._wishes.pop(note.id, None)
                if note.why == RUN_OVER:
                    self._over.add(note.id)
            case "seen" | "started" | "ended" | "gone":
                self._stage[note.id] = note.what
                if note.what != SEEN:
                    self._over.discard(note.id)
                if note.what == STARTED_LINE:
                    self._wishes.pop(note.id, None)

    def _keep(self, notes: Sequence[Note]) -> None:
        if notes:
            self._trouble = self._write(notes)


def void_because(job: LiveJob | None, wish: PlannedStart, seen: Snapshot, occupancy: Occupancy) -> str:
    """Why a planned start is void; "" while it stands."""
    if job is None or job.state is not JobState.WAITING:
        return JOB_LEFT
    if any(part.node in seen.down for part in wish.parts):
        return NODE_DOWN
    if wish.until_s is not None and seen.time_s >= wish.until_s:
        return RUN_OVER
    return "" if is_open(occupancy, job, wish.parts) else PLACE_TAKEN


def wished(occupancy: Occupancy, job: LiveJob, parts: tuple[Part, ...]) -> None:
    """Let a job hold the place that we would have given it."""
    occupancy.stand(f"wish {job.id}", job.job, parts)


def is_open(occupancy: Occupancy, job: LiveJob, parts: tuple[Part, ...]) -> bool:
    """Whether the rules would let the job start in this place now."""
    return bool(parts) and not isinstance(occupancy.fit(job.job, parts), str)
