"""A cluster that is not there, behind the same door as a real one: jobs take as long as they would, on its own clock.

The rules are those of docs/semantics.md; here they act on names, one order at a time, and nobody decides.

Over 500 lines: one class, because all of it is about the same jobs and the same order of events.
"""

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from adlro.backends.simulated.entries import Entry, checkpointed, spoken_work
from adlro.backends.simulated.heating import Heating
from adlro.core.errors import AdlroError, BackendError
from adlro.core.jobs import check_job
from adlro.core.occupancy import Occupancy, is_at
from adlro.core.ports import (
    ENDED,
    NOT_RESTARTABLE,
    Answer,
    JobState,
    LiveJob,
    Order,
    Part,
    Snapshot,
    Submission,
    nobody_to_give_to,
)
from adlro.core.records import WHOLE_GPU, Cluster, Disturbance, Placing, SpeedOf
from adlro.core.sizes import as_ordered

_READS_OF_AN_END: Final = 2
"""An ended job is shown in at least this many snapshots, however fast the clock runs."""

# What happens at one moment, in this order.
_END, _DISTURBANCE, _ARRIVAL, _BEGIN, _OLD, _HOT = range(6)


class Simulated:
    """A back end (ports.Backend) of simulated nodes. Every method may be called from any thread.

    Time: `clock` gives seconds at the cluster's own pace (default: real time, `speed` times as fast); at its first
    reading the cluster's time is `start_s`, seconds since 1970. It never runs backwards, whatever `clock` does.
    Submit times of `arrivals` and times of `disturbances` are seconds since then, in order; both may be endless.

    `job.work` of a submission is the truth and is not shown (snapshots say 0), unless `tells_work`; if it is 0, the
    estimate takes its place. GPUs are numbered through the node, group by group. Jobs that ended stay in snapshots for
    `keep_ended_s`. With `most_waiting`, arrivals hold back while so many jobs wait. With `heating`, GPUs become hot and
    lower their clocks.
    """

    def __init__(
        self,
        cluster: Cluster,
        speed_of: SpeedOf,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] | None = None,
        start_s: float | None = None,
        arrivals: Iterable[Submission] = (),
        disturbances: Iterable[Disturbance] = (),
        restart_s: float = 0.0,
        start_delay_s: float = 0.0,
        kill_at_limit: bool = False,
        keep_ended_s: float = 3600.0,
        most_waiting: int | None = None,
        tells_work: bool = False,
        heating: Heating | None = None,
    ) -> None:
        if not 0.0 < speed < math.inf:
            raise BackendError(f"the speed of the simulated cluster is {speed:g}; expected a number above 0.")
        self.cluster, self.speed = cluster, speed
        self._speed_of = speed_of
        self._clock = clock or (lambda: time.monotonic() * speed)
        self._start_s = time.time() if start_s is None else start_s
        self._restart_s, self._start_delay_s, self._kill_at_limit = restart_s, start_delay_s, kill_at_limit
        self._keep_ended_s, self._most_waiting, self._tells_work = keep_ended_s, most_waiting, tells_work
        self._arrivals, self._disturbances = iter(arrivals), iter(disturbances)

        self._lock = threading.RLock()
        self._occupancy = Occupancy(cluster, speed_of)
        self._heating = heating
        self._stirred: set[str] = set()  # nodes on which something has changed since their heat was last looked at
        self._factors = {node.name: [1.0] * sum(group.count for group in node.gpus) for node in cluster.nodes}
        self._entries: dict[str, Entry] = {}
        self._events: list[tuple[float, int, int, int]] = []  # time, what, number of the job, version
        self._live: dict[str, LiveJob] = {}  # what the next snapshot shows, in order of submission
        self._changed: set[str] = set()
        self._old: deque[str] = deque()  # ended long ago; forgotten once they were shown
        self._waiting = self._submitted = self._reads = self._not_taken = 0
        self._zero = self._clock()
        self._now = 0.0
        self._shift = 0.0  # by how much arrivals are late, because they held back
        self._held_back = False
        self._next_arrival = self._draw_arrival()
        self._next_disturbance = self._draw_disturbance()

    # ---- what the daemon asks of it ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the back end."""
        return "simulated"

    @property
    def can_annotate(self) -> bool:
        """False: users see their jobs only on our own pages."""
        return False

    can_stop: Final = True
    can_resize: Final = True
    places_gpus: Final = True

    def read(self) -> Snapshot:
        """The cluster now."""
        with self._lock:
            self._advance()
            for job in self._changed:
                self._live[job] = self._record(self._entries[job])
            self._changed.clear()
            self._reads += 1
            snapshot = Snapshot(
                self._start_s + self._now, self.cluster, tuple(self._live.values()), self._occupancy.down, self._notes()
            )
            while self._old and self._reads - self._entries[self._old[0]].end_reads >= _READS_OF_AN_END:
                job = self._old.popleft()
                del self._entries[job], self._live[job]
            return snapshot

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders; returns an answer for each."""
        with self._lock:
            self._advance()
            return [self._start(order) if order.is_start else self._stop(order) for order in orders]

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Nothing to do: there is no other scheduler."""
        return nobody_to_give_to(reasons)

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Nothing to do: users see their jobs only on our own pages."""

    def submit(self, submission: Submission) -> str:
        """Submit a job now; returns its id."""
        with self._lock:
            self._advance()
            return self._enter(submission, self._now)

    def cancel(self, job: str) -> None:
        """End a job for good, whether it waits or runs. A job that has ended stays as it is."""
        with self._lock:
            self._advance()
            entry = self._find(job)
            if entry.state not in ENDED:
                self._end(entry, JobState.CANCELLED, "cancelled")

    def close(self) -> None:
        """Nothing to close."""

    # ---- what befalls it ---------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The cluster's own time, seconds since 1970."""
        with self._lock:
            self._advance()
            return self._start_s + self._now

    @property
    def next_event_s(self) -> float | None:
        """The time of the next event without new orders, seconds since 1970; None if there is none."""
        with self._lock:
            self._advance()
            self._drop_void()
            found = self._events[0][0] if self._events else math.inf
            if self._next_disturbance is not None:
                found = min(found, self._next_disturbance.time_s)
            if self._next_arrival is not None and not self._held_back:
                found = min(found, self._next_arrival.job.submit_s + self._shift)
            if self._heating is not None:
                found = min(found, self._heating.next_s)
            return None if found == math.inf else self._start_s + found

    def fail_node(self, node: str, reason: str = "it does not answer") -> None:
        """Take a node down; the jobs on it wait again."""
        with self._lock:
            self._advance()
            self._set_down(self._known(node), reason)

    def drain(self, node: str, reason: str = "drained") -> None:
        """Drain a node: it takes no more jobs, and those on it continue."""
        with self._lock:
            self._advance()
            if self._known(node) not in self._occupancy.down:
                self._occupancy.close(node, reason)

    def return_node(self, node: str) -> None:
        """Let a node that was down or drained take jobs again."""
        with self._lock:
            self._advance()
            self._occupancy.open(self._known(node))

    def wear(self, node: str, gpu: int, factor: float) -> None:
        """Let a GPU run at this factor of its speed from now on."""
        with self._lock:
            self._advance()
            self._set_factor(self._known(node), gpu, factor)

    def factor(self, node: str, gpu: int) -> float:
        """The speed factor of a GPU; 1 is as new."""
        with self._lock:
            self._advance()
            return self._factors[self._known(node)][self._known_gpu(node, gpu)]

    def heat_of(self, node: str, gpu: int) -> Mapping[str, float]:
        """What telemetry would show of the heat of a GPU, from 0 to 1; nothing if the cluster has no heat."""
        with self._lock:
            self._advance()
            return {} if self._heating is None else self._heating.figures(self._known(node), gpu, self._now)

    def speed_of_job(self, job: str) -> float:
        """How fast each GPU of a job works at present, 1 for a reference GPU; 0 if it does not run."""
        with self._lock:
            entry = self._entries.get(job)
            if entry is None or entry.state is not JobState.RUNNING or not entry.running.gpus:
                return 0.0
            return entry.rate / (entry.running.gpus * entry.running.share / WHOLE_GPU)

    def fail_job(self, job: str, exit_code: int = 1, signal: int | None = None) -> None:
        """End a running job with an error."""
        with self._lock:
            self._advance()
            entry = self._find(job)
            if entry.state is not JobState.RUNNING:
                raise BackendError(f"the job {job} is {entry.state}; only one that runs can fail.")
            what = f"signal {signal}" if signal else f"exit code {exit_code}"
            entry.exit_code, entry.signal = None if signal else exit_code, signal
            self._end(entry, JobState.FAILED, f"ended with {what}")

    # ---- time --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Process all due events, in order."""
        now = max(self._now, self._clock() - self._zero)
        while True:
            self._warm()
            self._drop_void()
            due, what = self._first_due()
            if due > now:
                break
            self._now = max(self._now, due)  # what is late happens now
            if what == _DISTURBANCE:
                self._befall()
            elif what == _ARRIVAL:
                self._arrive()
            elif what != _HOT:
                _, what, number, _ = heapq.heappop(self._events)
                self._happen(self._entries[str(number)], what)
        self._now = now

    def _drop_void(self) -> None:
        """Remove void events from the top."""
        while self._events and self._is_void(*self._events[0][2:]):
            heapq.heappop(self._events)

    def _is_void(self, number: int, version: int) -> bool:
        entry = self._entries.get(str(number))
        return entry is None or entry.version != version

    def _first_due(self) -> tuple[float, int]:
        """The time and kind of the next event."""
        found = (self._events[0][0], self._events[0][1]) if self._events else (math.inf, _OLD)
        if self._next_disturbance is not None:
            found = min(found, (self._next_disturbance.time_s, _DISTURBANCE))
        if self._next_arrival is not None and not self._held_back:
            found = min(found, (self._next_arrival.job.submit_s + self._shift, _ARRIVAL))
        if self._heating is not None:
            found = min(found, (self._heating.next_s, _HOT))
        return found

    def _expect(self, due: float, what: int, entry: Entry) -> None:
        """Schedule an event of a job. Void events are removed before they outnumber the others."""
        heapq.heappush(self._events, (due, what, entry.number, entry.version))
        if len(self._events) > 2 * len(self._entries) + 64:
            self._events = [event for event in self._events if not self._is_void(*event[2:])]
            heapq.heapify(self._events)

    def _happen(self, entry: Entry, what: int) -> None:
        """Process an event: a job begins, ends, or has ended long ago."""
        if what == _BEGIN:
            self._begin(entry)
        elif what == _OLD:
            self._old.append(entry.id)
        elif self._is_over_limit(entry):
            entry.signal = 15
            self._end(entry, JobState.FAILED, f"reached its limit of {entry.job.limit_s:g} s")
        else:
            entry.exit_code = 0
            self._end(entry, JobState.FINISHED, "")

    def _befall(self) -> None:
        """Apply the next disturbance."""
        item = self._next_disturbance
        assert item is not None
        self._next_disturbance = self._draw_disturbance()
        node = self._known(item.node)
        if item.what == "down":
            self._set_down(node, "it does not answer")
        elif item.what == "up":
            self._occupancy.open(node)
        else:
            self._set_factor(node, item.gpu, item.factor)

    def _arrive(self) -> None:
        """Submit the next job of the stream, or hold it back until fewer jobs wait."""
        if self._most_waiting is not None and self._waiting >= self._most_waiting:
            self._held_back = True
            return
        arriving = self._next_arrival
        assert arriving is not None
        self._next_arrival = self._draw_arrival()
        try:
            self._enter(arriving, self._now)
        except AdlroError:
            self._not_taken += 1

    def _draw_arrival(self) -> Submission | None:
        return next(self._arrivals, None)

    def _draw_disturbance(self) -> Disturbance | None:
        return next(self._disturbances, None)

    # ---- jobs --------------------------------------------------------------------------------------------------

    def _enter(self, submission: Submission, now: float) -> str:
        """Put a job in the queue."""
        job = replace(submission.job, submit_s=self._start_s + now)
        check_job(job)
        if job.gpus:  # whoever names a family that nobody knows hears it now
            model = next(iter(self.cluster.models.values()), None)
            self._speed_of(job.family, Placing(model, job.gpus, 1, self.cluster.network, self.cluster.network))
        self._submitted += 1
        shown = job if self._tells_work else replace(job, work=0.0)
        entry = Entry(self._submitted, job, shown, job.work or spoken_work(job))
        self._entries[entry.id] = entry
        self._live[entry.id] = self._record(entry)  # here, so that snapshots have them in order of submission
        self._waiting += 1
        return entry.id

    def _start(self, order: Order) -> Answer:
        """Start a job where the order says, if it waits and fits there."""
        entry = self._entries.get(order.job)
        if entry is None:
            return Answer(order.job, False, "there is no such job")
        if entry.state in ENDED:
            was_this = bool(order.decision) and entry.decision == order.decision
            return Answer(order.job, was_this, f"it is {entry.state} already")
        if entry.state is not JobState.WAITING:
            return Answer(order.job, is_at(entry.parts, order.parts), f"it is {entry.state} already")
        running = as_ordered(entry.job, order.parts)
        if isinstance(running, str):
            return Answer(order.job, False, running)
        found = self._occupancy.fit(running, order.parts)
        if isinstance(found, str):
            return Answer(order.job, False, found)
        self._occupancy.take(entry.id, running, found)
        entry.parts, entry.running = found, running
        self._stir(entry)
        entry.state, entry.decision, entry.reason = JobState.PLACED, order.decision, ""
        self._leave_queue()
        entry.version += 1
        self._changed.add(entry.id)
        if self._start_delay_s > 0.0:
            self._expect(self._now + self._start_delay_s, _BEGIN, entry)
        else:
            self._begin(entry)
        return Answer(order.job, True)

    def _begin(self, entry: Entry) -> None:
        """Let a placed job begin to run; it pays first for its start, or for its restart if it ran before."""
        entry.state = JobState.RUNNING
        entry.began = self._now
        entry.started = self._start_s + self._now
        restart_s = self._restart_s if entry.job.restart_s is None else entry.job.restart_s
        entry.since = self._now + (restart_s if entry.starts else entry.job.start_s)
        entry.starts += 1
        entry.saved = entry.done
        self._changed.add(entry.id)
        self._pace(entry)

    def _pace(self, entry: Entry) -> None:
        """Set the speed of a running job, and the time of its end."""
        entry.rate = self._occupancy.rate(entry.running, entry.parts) * self._worn(entry.parts)
        entry.version += 1
        self._expect(min(self._finish(entry), self._limit(entry)), _END, entry)

    def _finish(self, entry: Entry) -> float:
        return entry.since + max(0.0, entry.work - entry.done) / entry.rate

    def _limit(self, entry: Entry) -> float:
        if not self._kill_at_limit or entry.job.limit_s is None:
            return math.inf
        return entry.began + max(0.0, entry.job.limit_s - entry.held)

    def _is_over_limit(self, entry: Entry) -> bool:
        return self._limit(entry) < self._finish(entry)

    def _settle(self, entry: Entry) -> None:
        """Add the work of a running job up to now; the cost of its start is paid first."""
        if entry.state is JobState.RUNNING and self._now > entry.since:
            entry.done = min(entry.work, entry.done + (self._now - entry.since) * entry.rate)
            entry.since = self._now

    def _stop(self, order: Order) -> Answer:
        """Stop a job that is restartable, so that it waits again; all its work is kept."""
        entry = self._entries.get(order.job)
        if entry is None:
            return Answer(order.job, False, "there is no such job")
        if entry.state in ENDED:
            return Answer(order.job, False, f"it is {entry.state} already")
        if entry.state is JobState.WAITING:
            return Answer(order.job, True, "it waits already")
        if entry.state is JobState.RUNNING and not entry.job.restartable:
            return Answer(order.job, False, NOT_RESTARTABLE)
        self._settle(entry)
        entry.saved = entry.done
        self._requeue(entry, f"stopped by decision {order.decision}" if order.decision else "stopped")
        return Answer(order.job, True)

    def _fail(self, entry: Entry, reason: str) -> None:
        """A job loses its node: it returns to its last checkpoint and to the queue."""
        self._settle(entry)
        entry.done = entry.saved = max(checkpointed(entry.done, entry.job.checkpoint), entry.saved)
        self._requeue(entry, reason)

    def _requeue(self, entry: Entry, reason: str) -> None:
        if entry.state is JobState.RUNNING:
            entry.held += self._now - entry.began
        self._stir(entry)
        self._occupancy.release(entry.id)
        entry.state, entry.parts, entry.started = JobState.WAITING, (), None
        entry.reason, entry.decision = reason, ""
        entry.version += 1
        self._waiting += 1
        self._changed.add(entry.id)

    def _end(self, entry: Entry, state: JobState, reason: str) -> None:
        """End a job; its record keeps where it ran."""
        if entry.state is JobState.WAITING:
            self._leave_queue()
        else:
            self._settle(entry)
            self._stir(entry)
            self._occupancy.release(entry.id)
        entry.state, entry.reason = state, reason
        entry.ended = self._start_s + self._now
        entry.end_reads = self._reads
        entry.version += 1
        self._changed.add(entry.id)
        self._expect(self._now + self._keep_ended_s, _OLD, entry)

    def _leave_queue(self) -> None:
        """Remove a job from the queue; if arrivals were held back, the next one comes now."""
        self._waiting -= 1
        if self._held_back and self._next_arrival is not None:
            self._held_back = False
            self._shift = self._now - self._next_arrival.job.submit_s

    def _record(self, entry: Entry) -> LiveJob:
        return LiveJob(
            entry.id, entry.shown, entry.state, entry.parts, entry.started, entry.ended, entry.starts, True,
            entry.exit_code, entry.signal, entry.reason, entry.decision,
        )  # fmt: skip

    def _notes(self) -> tuple[str, ...]:
        """What could not be accepted."""
        return (f"{self._not_taken} arriving jobs could not be taken",) if self._not_taken else ()

    def _find(self, job: str) -> Entry:
        if job not in self._entries:
            raise BackendError(f"there is no job {job!r} on the simulated cluster.")
        return self._entries[job]

    # ---- places ------------------------------------------------------------------------------------------------

    def _worn(self, parts: tuple[Part, ...]) -> float:
        return min((self._pace_of(part.node, i) for part in parts for i in part.indices), default=1.0)

    def _pace_of(self, node: str, gpu: int) -> float:
        clock = 1.0 if self._heating is None else self._heating.clock(node, gpu)
        return self._factors[node][gpu] * clock

    def _stir(self, entry: Entry) -> None:
        """Note that the heat of the nodes of a job will change."""
        if self._heating is not None:
            self._stirred.update(part.node for part in entry.parts)

    def _warm(self) -> None:
        """Let the heat follow what has changed at this moment, before time moves on."""
        if self._heating is None:
            return
        for node in sorted(self._stirred | self._heating.due(self._now)):
            use = [0.0] * len(self._factors[node])
            for entry in self._on(node):
                for gpu in (i for part in entry.parts if part.node == node for i in part.indices):
                    use[gpu] += entry.job.share / WHOLE_GPU
            for gpu in self._heating.settle(node, use, self._now):
                self._change_pace(node, gpu)
        self._stirred.clear()

    def _known(self, node: str) -> str:
        if not self._occupancy.has_node(node):
            raise BackendError(f"there is no node {node!r} in the cluster {self.cluster.name!r}.")
        return node

    def _known_gpu(self, node: str, gpu: int) -> int:
        if not 0 <= gpu < len(self._factors[node]):
            raise BackendError(f"node {node!r} has no GPU {gpu}; it has {len(self._factors[node])}.")
        return gpu

    def _set_down(self, node: str, reason: str) -> None:
        self._occupancy.close(node, reason)
        for entry in self._on(node):
            self._fail(entry, f"its node {node} went down: {reason}")

    def _set_factor(self, node: str, gpu: int, factor: float) -> None:
        if not 0.0 < factor <= 10.0:
            raise BackendError(f"the factor of a GPU is {factor}; expected above 0, to 10.")
        self._factors[node][self._known_gpu(node, gpu)] = factor
        self._change_pace(node, gpu)

    def _change_pace(self, node: str, gpu: int) -> None:
        """Let the jobs on a GPU go on at its new speed."""
        for entry in self._on(node):
            holds = any(part.node == node and gpu in part.indices for part in entry.parts)
            if holds and entry.state is JobState.RUNNING:
                self._settle(entry)
                self._pace(entry)

    def _on(self, node: str) -> list[Entry]:
        """The jobs that hold part of a node, in order of submission."""
        return sorted((self._entries[job] for job in self._occupancy.on(node)), key=lambda entry: entry.number)
