"""Stopping running jobs on a live cluster: which may be stopped now, which were, and how long that took.

A job may be stopped only if its user marked it as restartable, and as far as the budgets reach. What was stopped is
remembered over restarts of the daemon and changes of the policy.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, final

from adlro.core.ports import PLACES, JobState, LiveJob, Snapshot
from adlro.core.tables import ALL_SPENT, View
from adlro.core.units import HOUR_S
from adlro.decide.stops import StopBudget, StopCounts, spent_of
from adlro.live.limits import PreemptTable
from adlro.live.scene import Scene
from adlro.live.service import Decision, Stopping

REFUSED_S: Final = 600.0
"""A job whose stop was refused is not stopped for so long."""

LONGEST_STOP_S: Final = 3600.0
"""A stop that takes longer than this holds up other stops no more."""

MEASURED_STOPS: Final = 64
"""Stops of which it is remembered how long they took."""

SPARE_JOBS: Final = 1000


@dataclass(frozen=True, slots=True)
class StopUnderWay:
    """A stop that was ordered, and has not been seen to be over."""

    time_s: float
    user: str


@final
class StopLedger:
    """A rule for stops (decide.stops.StopRule) on the jobs of a scene. One thread uses it."""

    def __init__(self, table: PreemptTable) -> None:
        self.table = table
        self._counts = StopCounts[str](StopBudget(table.per_job, table.per_user_hour, table.per_hour))
        self._under_way: dict[str, StopUnderWay] = {}
        self._took_s: deque[float] = deque(maxlen=MEASURED_STOPS)
        self._refused: dict[str, float] = {}  # until when a job is left alone, whose stop was refused
        self._scene: Scene | None = None
        self._can_stop = False
        self._waits_for = ""  # a job that is stopping: no other is stopped meanwhile
        self._chosen: list[int] = []  # rows that were stopped in this turn
        self.ran_out = False
        """Whether a budget was used up in this turn, after a job was stopped."""

    # ---- a turn ----------------------------------------------------------------------------------------------------

    def look(self, snapshot: Snapshot) -> list[str]:
        """Learn from a snapshot which stops are over: jobs that waited again, ended or left. Returns their ids."""
        there = {job.id: job for job in snapshot.jobs}
        over = [id for id, stop in self._under_way.items() if is_over(there.get(id), stop, snapshot.time_s)]
        for id in over:
            took_s = snapshot.time_s - self._under_way.pop(id).time_s
            if took_s < LONGEST_STOP_S:
                self._took_s.append(max(0.0, took_s))
        self._waits_for = next((job.id for job in snapshot.jobs if job.is_stopping), next(iter(self._under_way), ""))
        if len(self._counts.by_job) > 2 * len(there) + SPARE_JOBS:
            self._counts.by_job = {id: count for id, count in self._counts.by_job.items() if id in there}
        self._refused = {id: until for id, until in self._refused.items() if until > snapshot.time_s}
        return over

    @property
    def is_busy(self) -> bool:
        """Whether a job is stopping."""
        return bool(self._waits_for)

    def begin(self, scene: Scene, view: View, can_stop: bool) -> None:
        """Begin to choose for a scene and tell its view who may be stopped; `can_stop`: the back end can stop jobs."""
        self._scene, self._can_stop, self._chosen, self.ran_out = scene, can_stop, [], False
        view.jobs.stoppable[:] = 0
        if self.table.is_on and can_stop:
            view.jobs.stoppable[: len(scene.live)] = [not self._never(job) for job in scene.live]
            most, counts = self.table.per_job, self._counts.by_job
            view.jobs.spent[: len(scene.live)] = [spent_of(counts.get(job.id, 0), most) for job in scene.live]
            view.jobs.stoppable[view.jobs.spent == ALL_SPENT] = 0

    def may_stop(self, view: View, j: int) -> bool:
        """Whether this running job of the scene may be stopped now."""
        return not self.why_not(j)

    def note_stop(self, view: View, j: int) -> None:
        """Remember that this job is stopped in this turn."""
        self._chosen.append(j)

    def spent(self, view: View) -> Mapping[int, int]:
        """None: the view says what is used up."""
        return {}

    def is_chosen(self, j: int) -> bool:
        """Whether the stop of this job was allowed and counted in this turn."""
        return j in self._chosen

    def why_not(self, j: int) -> str:
        """Why a running job may not be stopped now; "" if it may."""
        assert self._scene is not None
        job, now_s = self._scene.live[j], self._scene.snapshot.time_s
        if why := self._never(job):
            return why
        if now_s - (now_s if job.started_s is None else job.started_s) < self.table.least_run_s:
            return f"it has not run for {self.table.least_run_s:g} s yet"
        if self._waits_for:
            return f"job {self._waits_for} is being stopped, and others are stopped only after that"
        if job.id in self._refused:
            return "the cluster refused to stop it a short time ago"
        return self._with_chosen(job, now_s)

    def _never(self, job: LiveJob) -> str:
        """Why this job may not be stopped, however few stops there were."""
        if not self.table.is_on:
            return "stopping is switched off ([preempt] is_on)"
        if not self._can_stop:
            return "this back end cannot stop jobs"
        if not job.managed:
            return "ADLRO does not place it"
        if not job.job.restartable:
            return "it is not marked as restartable"
        # One that waits in the snapshot was started in this turn: then the policy takes that back.
        return "it was let go to its place, and has not begun" if job.state is JobState.PLACED else ""

    def _with_chosen(self, job: LiveJob, now_s: float) -> str:
        """The budget that is used up, if the stops of this turn count too; "" if none is."""
        assert self._scene is not None
        others = [self._scene.live[j] for j in self._chosen]
        for other in others:
            self._counts.add(other.id, other.job.user, now_s)
        found = self._counts.used_up(job.id, job.job.user, now_s)
        for other in reversed(others):
            self._counts.take_back(other.id, other.job.user)
        self.ran_out = self.ran_out or bool(found and others)
        return found

    # ---- what became of it -----------------------------------------------------------------------------------------

    def count(self, decisions: Sequence[Decision], scene: Scene) -> None:
        """Count stops that are about to be ordered: before they are, so that a crash forgets none."""
        for decision in decisions:
            user = scene.live[scene.index[decision.job]].job.user
            self._counts.add(decision.job, user, decision.time_s)
            self._under_way[decision.job] = StopUnderWay(decision.time_s, user)

    def take_back(self, id: str) -> None:
        """Uncount a stop that was not carried out."""
        if (stop := self._under_way.pop(id, None)) is not None:
            self._counts.take_back(id, stop.user)

    def refuse(self, id: str, time_s: float) -> None:
        """Note that the cluster refused a stop: the job is left alone for a while."""
        self.take_back(id)
        self._refused[id] = time_s + REFUSED_S

    def finish(self, id: str) -> None:
        """Note that a stop was over at once."""
        self._under_way.pop(id, None)

    # ---- what is known ---------------------------------------------------------------------------------------------

    @property
    def took_s(self) -> float | None:
        """The median time from a stop to its end, by the latest stops; None before the first."""
        return median(self._took_s) if self._took_s else None

    @property
    def restart_s(self) -> float:
        """What stopping and restarting costs a job, as policies are told."""
        return self.table.restart_s + (self.took_s or 0.0)

    @property
    def under_way(self) -> dict[str, StopUnderWay]:
        """The stops that were ordered, and have not been seen to be over, by job."""
        return dict(self._under_way)

    def stops_of(self, id: str) -> int:
        """How often a job was stopped."""
        return self._counts.by_job.get(id, 0)

    def shown(self, snapshot: Snapshot) -> Stopping:
        """The state, to be shown."""
        self._counts.forget_before(snapshot.time_s - HOUR_S)
        table = self.table
        return Stopping(
            is_on=table.is_on,
            restartable=sum(job.state is JobState.RUNNING and job.job.restartable for job in snapshot.jobs),
            last_hour=len(self._counts.recent),
            per_hour=table.per_hour,
            per_user_hour=table.per_user_hour,
            per_job=table.per_job,
            under_way=tuple(job.id for job in snapshot.jobs if job.is_stopping),
            took_s=self.took_s,
            restart_s=self.restart_s,
        )

    # ---- over a restart --------------------------------------------------------------------------------------------

    def as_text(self) -> str:
        """All of it as text; "" if there was no stop yet."""
        counts = self._counts
        if not counts.by_job:
            return ""
        under_way = {id: [stop.time_s, stop.user] for id, stop in self._under_way.items()}
        found = {"by_job": counts.by_job, "recent": list(counts.recent), "under_way": under_way}
        return json.dumps(found | {"took_s": list(self._took_s)})

    def resume(self, text: str) -> bool:
        """Go on from the text of `as_text`; False if it cannot be read."""
        try:
            found = json.loads(text)
            by_job = {str(id): int(count) for id, count in found["by_job"].items()}
            recent = [(float(time_s), str(user)) for time_s, user in found["recent"]]
            under_way = {str(id): StopUnderWay(float(at), str(user)) for id, (at, user) in found["under_way"].items()}
            took_s = [float(seconds) for seconds in found["took_s"]]
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        self._counts.by_job.update(by_job)
        self._counts.recent.extend(recent)
        self._under_way.update(under_way)
        self._took_s.extend(took_s)
        return True


def is_over(job: LiveJob | None, stop: StopUnderWay, now_s: float) -> bool:
    """Whether a job that was told to stop holds its place no more, or was started again since."""
    if job is None or job.state not in PLACES or now_s - stop.time_s > LONGEST_STOP_S:
        return True
    return not job.is_stopping and job.started_s is not None and job.started_s > stop.time_s
