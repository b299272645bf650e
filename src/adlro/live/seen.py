"""What was seen of jobs from turn to turn: first submissions, ends and saved work; and what is learnt from it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Final, final

from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Snapshot
from adlro.core.records import Cluster
from adlro.live.believed import LESSONS, LiveSpeeds
from adlro.live.clocks import GpuFigures, JobClocks
from adlro.live.corrections import Corrections
from adlro.live.drift import Watch, drift_in_words
from adlro.live.predicting import MeasuredJob, Runtimes, measured
from adlro.live.scene import Carried, Scene, start_cost_s
from adlro.live.service import Drift
from adlro.live.telling import Heard, Notes

MOST_NAMED: Final = 5
"""How many jobs one alarm names."""


@final
class SeenJobs:
    """The jobs as last seen. One thread changes it in a turn; any thread may call `for_questions`."""

    def __init__(self, notes: Notes, history: int, restart_s: float, speeds: LiveSpeeds | None = None) -> None:
        self._notes, self._history, self._restart_s = notes, history, restart_s
        self.speeds = speeds or LiveSpeeds()
        # Learned speeds follow a model that changes as a whole by themselves.
        self.runtimes, self.watch = Runtimes(), Watch(by_model=not self.speeds.learns)
        self._clocks = JobClocks()
        self.submitted: dict[str, float] = {}
        self.carried: dict[str, Carried] = {}
        self.stopped: set[str] = set()
        self.expected: dict[str, float] = {}  # work as predicted when the job was started
        self._lock = Lock()  # guards what a turn changes and other threads read
        self._has_history = False
        self._learnt: set[tuple[str, float | None]] = set()
        self._known: dict[str, LiveJob] = {}

    def for_questions(self) -> tuple[dict[str, float], dict[str, Carried]]:
        """Copies of the first submissions and of the work that was saved."""
        with self._lock:
            return dict(self.submitted), dict(self.carried)

    def forget_all_but(self, there: Mapping[str, object]) -> None:
        """Forget jobs that are gone, once there are many of them."""
        if len(self.expected) > 2 * len(there) + 1000:
            self.expected = {id: work for id, work in self.expected.items() if id in there}

    def note_placed(self, jobs: Sequence[LiveJob]) -> None:
        """Remember where jobs stand after orders."""
        self._known.update((job.id, job) for job in jobs if job.state in PLACES)

    def noted(self, snapshot: Snapshot, heard: Heard) -> Mapping[str, float]:
        """First submissions by job: from the memory, or as first seen."""
        live = [job for job in snapshot.jobs if job.state not in ENDED]
        new = [job for job in live if job.id not in self.submitted]
        if new:
            nothing: Mapping[str, float] = {}
            found = self._notes.write(heard, snapshot.time_s, lambda: self._notes.memory.first_seen(new), nothing)
            with self._lock:
                for job in new:
                    self.submitted[job.id] = found.get(job.id, job.job.submit_s)
        if len(self.submitted) > 2 * len(snapshot.jobs) + 1000:
            there = {job.id for job in snapshot.jobs}
            with self._lock:
                self.submitted = {id: at for id, at in self.submitted.items() if id in there}
        return self.submitted

    def learn(self, snapshot: Snapshot, heard: Heard) -> list[MeasuredJob]:
        """Learn from jobs that ended since the last turn (at first from history); returns the new ones."""
        if not self._has_history:
            self._has_history = True
            none: Sequence[LiveJob] = []
            past = self._notes.write(heard, snapshot.time_s, lambda: self._notes.memory.history(self._history), none)
            self._learn_history(past, snapshot.cluster)
            self._learnt.update((job.id, job.ended_s) for job in past)
        ended, there = [], set()
        for job in snapshot.jobs:
            if job.state in ENDED:
                there.add((job.id, job.ended_s))
                if (job.id, job.ended_s) not in self._learnt:
                    ended.append(self._whole(job))
        self._missed(snapshot, heard)
        if not ended:
            return []
        if self.speeds.learns:
            ended.sort(key=lambda job: job.ended_s or 0.0)  # as the store will tell them after a restart
        self._learnt.update((job.id, job.ended_s) for job in ended)
        if len(self._learnt) > 2 * len(there) + 2 * self._history:
            self._learnt &= there
        self._notes.write(heard, snapshot.time_s, lambda: self._notes.memory.ended(ended), None)
        found = self._learn_all(ended, snapshot.cluster, heard)
        for job in ended:
            self.carried.pop(job.id, None)
            self.expected.pop(job.id, None)
        return found

    def _learn_history(self, past: Sequence[LiveJob], cluster: Cluster) -> None:
        """Learn from the jobs in the store. Where speeds are learnt, the latest of them teach one after the other."""
        old = past[: max(0, len(past) - LESSONS)] if self.speeds.learns else past
        self._take_in(measured(old, cluster, self.watch.corrections, pace_of=self.speeds.pace), cluster, None, False)
        for job in past[len(old) :]:
            self._take_in(measured([job], cluster, self.watch.corrections, pace_of=self.speeds.pace), cluster, None)

    def _learn_all(self, ended: Sequence[LiveJob], cluster: Cluster, heard: Heard) -> list[MeasuredJob]:
        """Learn from jobs that ended since the last turn. Each is measured with what the one before it taught."""
        found: list[MeasuredJob] = []
        for some in [[job] for job in ended] if self.speeds.learns else [ended]:
            new = measured(
                some, cluster, self.watch.corrections, self.expected, self.speeds.pace, self.carried, self._restart_s
            )
            self._take_in(new, cluster, heard)
            found += new
        return found

    def _take_in(
        self, found: Sequence[MeasuredJob], cluster: Cluster, heard: Heard | None, teaches: bool = True
    ) -> None:
        """Learn runtimes and speeds, and look for speeds that have changed."""
        before = self.runtimes.learn(found)
        for each, expected in zip(found, before, strict=True):
            if each.job.state is JobState.FINISHED:
                drift = self.watch.observe(each)
                shift = self.speeds.learn(each, expected, cluster, self.watch.corrections) if teaches else None
                if drift is None and shift is not None:
                    model = each.parts[0].model
                    drift = Drift(model, round(shift.factor, 2), shift.seen, each.job.ended_s or 0.0)
                if drift is not None and heard is not None:
                    self._notes.tell(heard, each.job.ended_s or 0.0, "drift", drift_in_words(drift), node=drift.node)

    def note_telemetry(self, snapshot: Snapshot, figures: GpuFigures | None) -> None:
        """Remember what the GPUs of running jobs say of themselves."""
        self._clocks.note(snapshot, figures)

    def corrections(self, cluster: Cluster) -> Corrections:
        """How fast the GPUs are for policies: as jobs and their clocks show; and what telemetry reads now."""
        found = self.watch.corrections.with_clocks(self._clocks.slowed, cluster)
        return replace(found, figures=self._clocks.figures) if self._clocks.figures else found

    def _whole(self, job: LiveJob) -> LiveJob:
        """A job that ended, with the place and times that were last seen: some clusters forget them at the end."""
        if job.state in ENDED and (gpu_pace := self._clocks.ended(job.id)) is not None and self.speeds.learns:
            job = replace(job, gpu_pace=gpu_pace)
        before = self._known.get(job.id)
        if before is None:
            return job
        parts = job.parts or before.parts
        started = job.started_s if job.started_s is not None else before.started_s
        return replace(job, parts=parts, started_s=started, decision=job.decision or before.decision)

    def _missed(self, snapshot: Snapshot, heard: Heard) -> None:
        """Report jobs that are gone without an end; remember the jobs that are there."""
        there = {job.id: job for job in snapshot.jobs}
        gone = [id for id, job in self._known.items() if id not in there and job.managed and job.state not in ENDED]
        for id in gone:  # nobody will see them end
            self.carried.pop(id, None)
            self.expected.pop(id, None)
            self.stopped.discard(id)
            self._clocks.ended(id)
        if gone:
            names = ", ".join(gone[:MOST_NAMED]) + (" …" if len(gone) > MOST_NAMED else "")
            self._notes.tell(
                heard, snapshot.time_s, "vanished", f"{len(gone)} jobs have disappeared without a known end: {names}."
            )
        self._known = {
            id: self._whole(job) if not job.parts and job.state in PLACES else job for id, job in there.items()
        }

    def note_stopped(self, before: LiveJob, snapshot: Snapshot) -> None:
        """Note that we stopped a job: all its work is kept."""
        self.stopped.add(before.id)
        self._carry_stretch(before, snapshot, 0.0)

    def carry(self, snapshot: Snapshot, before_it: Scene | None, ended: Collection[str] = ()) -> None:
        """Note what a run left behind when a running job waits again.

        Of jobs that we stopped at once it is noted already. `ended` are jobs whose stop is over now: all their work is
        kept.
        """
        stopped, self.stopped = self.stopped, set()
        if before_it is None:
            return
        for job in snapshot.jobs:
            if job.state is not JobState.WAITING or not job.starts or job.id in stopped:
                continue
            j = before_it.index.get(job.id)
            before = before_it.live[j] if j is not None else None
            if before is not None and before.state in PLACES:
                self._carry_stretch(before, snapshot, 0.0 if job.id in ended else job.job.checkpoint)

    def _carry_stretch(self, before: LiveJob, snapshot: Snapshot, step: float | None) -> None:
        """Add the run that ended now. Its work is kept in steps of this size; 0: all of it, None: nothing."""
        if before.started_s is None:
            return
        ran = max(0.0, snapshot.time_s - before.started_s)
        since_s = before.started_s + start_cost_s(before, self._restart_s)
        speed = self.speeds.pace(before.job, before.parts, snapshot.cluster, self.watch.corrections)
        worked = max(0.0, snapshot.time_s - since_s) * speed
        known = self.carried.get(before.id, Carried())
        if step == 0.0:
            saved = known.saved + worked
        else:
            saved = known.saved if not step else max(known.saved, (known.saved + worked) // step * step)
        with self._lock:
            self.carried[before.id] = Carried(saved, known.held_s + ran)
