"""The heart of the daemon: read the cluster, decide, act, read back. It owns no truth about the cluster.

Every turn begins with a snapshot and ends with one. A crash loses nothing: decisions were recorded before they were
acted on, and the next snapshot shows which were carried out.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, final

import numpy as np

from adlro.catalogue.speeds import speed_of
from adlro.core.errors import AdlroError, BackendError, CatalogueError, StoreError
from adlro.core.learned import KNOWN_SPEEDS, JobSpeeds, LearnedTable
from adlro.core.policy import Policy
from adlro.core.ports import Backend, JobState, LiveJob, Snapshot
from adlro.core.records import SpeedOf
from adlro.core.tables import QUEUED, REFUSED, START
from adlro.decide.catalogue import find_policy
from adlro.decide.stops import without_stops
from adlro.live.believed import LiveSpeeds
from adlro.live.clocks import GpuFigures
from adlro.live.compared import ComparedTimes, ComparisonWindow
from adlro.live.corrections import Corrections
from adlro.live.explain import Standing, explain_job
from adlro.live.explain_start import Explaining, Judge, why_started
from adlro.live.explain_stop import why_stopped, with_stop
from adlro.live.first_ask import warm_up
from adlro.live.foresee import Foresight, changed_snapshot
from adlro.live.guard import Chosen, Decided, Guarded
from adlro.live.limits import Limits
from adlro.live.orders import Orders
from adlro.live.predicting import MeasuredJob
from adlro.live.scene import Scene, Scenes
from adlro.live.seen import MOST_NAMED, SeenJobs
from adlro.live.service import (
    DaemonMemory,
    Decision,
    State,
    Tick,
    WhatIf,
    WhatIfAnswer,
    Why,
)
from adlro.live.session import KeptSession
from adlro.live.showing import History, Lines, Starts
from adlro.live.stopping import Stopper
from adlro.live.telling import Heard, Notes
from adlro.normalise.pack import why_refused
from adlro.simulation.simulator import SimulationSettings

WARM: Final[dict[int, Policy]] = {}
"""Policies that have been asked once in this process. They are kept, so that an id() is not used again."""


@dataclass(frozen=True, slots=True)
class TurnSettings(Limits):
    """How the orchestrator works: the limits of the guard, and the rest. All times are seconds."""

    compare_s: float = 60.0
    """How often they are held against each other."""
    history: int = 10_000
    """Jobs of the past that are learnt from at the start."""
    starts_s: float = 0.15
    """Time for the predicted starts of one turn."""
    what_if_s: float = 0.7
    """Time for the answer to a question."""
    explained: int = 64
    """Choices of a turn whose alternatives are written down."""
    alike: int = 16
    """Choices of a turn for which past jobs alike are looked up."""
    annotated: int = 12
    """Waiting jobs whose line in the cluster's own queue is brought up to date in one turn."""
    annotate_s: float = 60.0
    """How long such a line stands at least."""
    kept_alarms: int = 200
    kept_history: int = 1440
    history_s: float = 60.0
    """How often a point of the history is kept, by the cluster's clock."""
    speeds: str = KNOWN_SPEEDS
    """What policies know about the speeds of jobs (docs/speeds.md)."""
    speed: SpeedOf = speed_of
    """The table of speeds."""
    weights: str = SimulationSettings().weights
    """What jobs count by (docs/policies.md#weights)."""


@final
class Orchestrator:
    """Decides for one cluster.

    One thread calls `tick`; any thread may call the rest.

    `telemetry` gives the latest figures, or None when they are missing: then the guard lets the fallback decide.
    `clock` stamps alarms and ids before the first snapshot.
    """

    def __init__(
        self,
        backend: Backend,
        memory: DaemonMemory,
        policy: str = "adlro",
        fallback: str = "fcfs-first-fit",
        settings: TurnSettings = TurnSettings(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        telemetry: Callable[[], GpuFigures | None] | None = None,
        is_leader: bool = True,
    ) -> None:
        self._backend, self._settings = backend, settings
        self._clock, self._monotonic, self._telemetry = clock, monotonic, telemetry
        self._is_leader = is_leader
        self._notes = Notes(memory, settings.kept_alarms)
        self._speeds = LiveSpeeds(settings.speeds, settings.speed)
        self._seen = SeenJobs(self._notes, settings.history, settings.preempt.restart_s, self._speeds)
        self._starts = Starts(settings.starts_s)
        self._lines = Lines(backend, settings.annotated, settings.annotate_s)
        self._history = History(self._notes, settings.kept_history, settings.history_s)
        self._scenes = self._new_scenes()
        self._window = ComparisonWindow(settings.guard.window_s)
        self._compared_at = -np.inf
        self._outcome: ComparedTimes | None = None
        self._named = policy
        self._guarded = Guarded(find_policy(policy), find_policy(fallback), settings, monotonic)
        self._orders = Orders(backend, self._notes, self._guarded.stops, monotonic)
        knows = self._speeds.how == KNOWN_SPEEDS
        self._stopper = Stopper(backend, self._guarded, self._notes, self._orders, self._seen, knows)
        self._fallback = fallback
        self._judge = Judge(policy)
        self._next: tuple[str, Policy, Judge] | None = None
        self._asking = Lock()  # one question at a time
        self._asked = Foresight(seed=1)
        self._asked_scenes = self._new_scenes()  # of its own: turns do not wait
        self._by_id: tuple[Snapshot | None, Mapping[str, LiveJob]] = None, {}  # of the snapshot that was asked about
        self._number = 0
        self._moved: tuple[float, float] | None = None  # the snapshot's time, and when it last moved
        self._state: State | None = None
        self._standing: Standing | None = None
        self._explain: Explaining | None = None
        self._kept_session = KeptSession(self._notes)
        self._wake_s = np.inf

    def _new_scenes(self) -> Scenes:
        """Scenes in which jobs run as policies believe."""
        believe = None if self._speeds.how == KNOWN_SPEEDS else self._speeds.view_of
        given, preempt, backend = self._settings, self._settings.preempt, self._backend
        can_resize = preempt.is_on and backend.can_resize and believe is None
        return Scenes(given.speed, preempt.restart_s, believe, can_resize, backend.places_gpus, given.weights)

    # ---- what others ask -------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The latest state. Raises BackendError while the cluster has never been read."""
        state = self._state
        if state is None:
            raise BackendError("the cluster has not been read yet. Ask again after the first turn.")
        return state

    def why(self, job: str) -> Why | None:
        """Why a job waits, or why it runs where it does; None if there is no such job."""
        standing, state = self._standing, self._state
        if standing is None or state is None or (found := self._job(state, job)) is None:
            return None
        why = explain_job(standing, found, self._orders.decision_of(found))
        if (stop := self._orders.stop_of(found)) is None:
            return why
        stops = self._guarded.stops
        return with_stop(why, found, stop, stops.stops_of(job), stops.table.per_job, state.snapshot.time_s)

    def _job(self, state: State, id: str) -> LiveJob | None:
        """A job of this state, or one that the memory knows."""
        known = self._by_id
        if known[0] is not state.snapshot:
            known = self._by_id = state.snapshot, {each.id: each for each in state.snapshot.jobs}
        return known[1].get(id) or self._notes.ask(lambda: self._notes.memory.job(id), None)

    def speeds(self, job: str) -> JobSpeeds | None:
        """What is believed of a job's speed on each model, and why; None if there is no such job."""
        state = self._state
        found = self._job(state, job) if state is not None else None
        return self._speeds.of_job(found.job, state.snapshot.cluster) if state is not None and found else None

    def learned_speeds(self) -> LearnedTable:
        """The families of jobs that were found here, with their speeds; none unless speeds are learnt."""
        return self._speeds.found()

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """The effect of a change, played forward from the latest snapshot."""
        state = self.state()
        policy = without_stops(self._guarded.policy)
        other = without_stops(find_policy(question.policy)) if question.policy else policy
        snapshot = state.snapshot
        changed, new = changed_snapshot(snapshot, question)
        corrections = self._seen.corrections(snapshot.cluster)
        submitted, carried = self._seen.for_questions()
        predict, tell, scenes = self._seen.runtimes.predict, self._seen.runtimes.tell, self._asked_scenes
        with self._asking:
            before = scenes.scene(snapshot, predict, submitted, corrections, carried, tell=tell)
            if changed.cluster is not snapshot.cluster:
                scenes = self._new_scenes()
            after = scenes.scene(changed, predict, submitted, corrections, carried, tell=tell)
            return self._asked.what_if(before, after, policy, other, new, self._settings.what_if_s)

    def use_policy(self, name: str) -> None:
        """Decide with this policy from the next tick on. Raises CatalogueError if there is none of that name."""
        try:
            found = find_policy(name), Judge(name)
        except CatalogueError:
            raise
        except AdlroError as error:
            raise CatalogueError(str(error)) from error
        self._next = (name, *found)

    @property
    def wake_s(self) -> float:
        """When the policy wants to be asked again if nothing changes, by the cluster's clock; inf: no time named."""
        return self._wake_s

    def lead(self, is_leader: bool) -> None:
        """Say whether this daemon is the one that decides, for the state."""
        self._is_leader = is_leader

    # ---- a turn ----------------------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        """One turn: read, learn from what ended, decide, write down, act, read back. It never raises AdlroError."""
        began = self._monotonic()
        self._number += 1
        heard = Heard()
        if self._next is not None:
            (self._named, policy, self._judge), self._next = self._next, None
            self._guarded.use(policy)
            self._window.clear()
        try:
            snapshot = self._backend.read()
        except BackendError as error:
            return self._blind(began, heard, str(error))
        now_s = snapshot.time_s
        unfit = self._unfit(snapshot, heard)
        submitted = self._seen.noted(snapshot, heard)
        ended = self._seen.learn(snapshot, heard)
        if self._telemetry is not None:
            self._seen.note_telemetry(snapshot, self._telemetry())
        self._orders.resume(now_s, heard)
        self._stopper.resume(self._named, now_s, heard)
        self._orders.settle(snapshot, now_s, heard)
        stopped = self._stopper.look(snapshot, heard)
        self._orders.check_placed(snapshot, heard)
        self._orders.meet_setbacks(snapshot, heard)
        self._seen.carry(snapshot, self._standing.scene if self._standing is not None else None, stopped)
        seen, runtimes = self._seen, self._seen.runtimes
        remind = runtimes.past.remind if self._looks_back() else None
        scene = self._scenes.scene(
            snapshot, runtimes.predict, submitted, seen.corrections(snapshot.cluster), seen.carried, remind=remind,
            tell=runtimes.tell, restart_s=self._guarded.stops.restart_s,
        )  # fmt: skip
        for text in scene.notes[len(snapshot.notes) :][:MOST_NAMED]:
            self._notes.tell_once(heard, now_s, "left-out", text)
        decided = self._decide(scene, unfit, heard)
        after = self._act(scene, decided, heard)
        self._compare(snapshot, submitted, ended, heard)
        self._publish(scene, decided, after or snapshot, heard)
        if self._standing is not None:
            self._lines.annotate(after or snapshot, self._standing, heard.given_back, self._monotonic())
        return self._finish(began, now_s, decided.by, snapshot, heard, decided.is_cut)

    def _blind(self, began: float, heard: Heard, said: str) -> Tick:
        """A turn without a snapshot: nothing is decided, and the old state stays, marked as stale."""
        now_s = self._state.snapshot.time_s if self._state is not None else self._clock()
        self._notes.tell_once(heard, now_s, "backend", f"the cluster cannot be read: {said}")
        if self._state is not None:
            notes = tuple(note for note in self._state.snapshot.notes if not note.startswith("stale:"))
            snapshot = replace(self._state.snapshot, notes=(*notes, f"stale: {said}"))
            self._state = replace(self._state, snapshot=snapshot)
        self._orders.is_unsettled = True
        return self._finish(began, now_s, self._named, None, heard)

    def _finish(
        self, began: float, now_s: float, by: str, snapshot: Snapshot | None, heard: Heard, is_cut: bool = False
    ) -> Tick:
        """Write the turn down, and show it."""
        states = [job.state for job in snapshot.jobs] if snapshot is not None else []
        tick = Tick(
            self._number, now_s, self._named, by, self._monotonic() - began, states.count(JobState.WAITING),
            states.count(JobState.RUNNING) + states.count(JobState.PLACED), heard.decisions, heard.answers,
            tuple(heard.alarms), is_cut,
        )  # fmt: skip
        try:
            self._notes.memory.ticked(tick)
        except StoreError as error:
            self._notes.tell_once(heard, now_s, "store", f"the store cannot be written: {error}")
            tick = replace(tick, alarms=tuple(heard.alarms))
        self._notes.alarms.extend(tick.alarms)
        if self._state is not None:
            self._state = replace(
                self._state, tick=tick, alarms=tuple(self._notes.alarms), policy=self._named,
                is_guarded=self._guarded.reason is not None, is_leader=self._is_leader,
            )  # fmt: skip
        return tick

    # ---- what came ---------------------------------------------------------------------------------------------------

    def _unfit(self, snapshot: Snapshot, heard: Heard) -> tuple[str, str] | None:
        """Why the policy may not decide on this snapshot; None if it may."""
        now = self._monotonic()
        moved = self._moved
        if moved is None or snapshot.time_s > moved[0]:
            self._moved = (snapshot.time_s, now)
        elif snapshot.time_s < moved[0]:
            self._notes.tell(
                heard, snapshot.time_s, "clock", f"the cluster's clock went back by {moved[0] - snapshot.time_s:.0f} s."
            )
            self._moved = (snapshot.time_s, now)
        elif now - moved[1] > self._settings.guard.stale_s:
            return (
                "stale",
                f"the snapshot is {now - moved[1]:.0f} s old; {self._settings.guard.stale_s:g} s are allowed.",
            )
        if self._telemetry is not None and self._telemetry() is None:
            return "telemetry", "telemetry is gone."
        return None

    # ---- what is decided now -----------------------------------------------------------------------------------------

    def _decide(self, scene: Scene, unfit: tuple[str, str] | None, heard: Heard) -> Decided:
        """Ask the policy, or the fallback, as the guard says."""
        for policy in (self._guarded.policy, self._guarded.fallback):
            self._warm_up(policy)
        passed = self._orders.setbacks.passed_over({job.id: job for job in scene.live})
        held = {scene.index[id] for id in (*passed, *self._going_back(scene, heard))}
        queued = frozenset(j for j in held if scene.view.runs.state[j] == QUEUED)
        explain = self._explain = Explaining(scene, self._judge, self._settings.explained)
        check = self._judge.check if self._judge.has_network else lambda view: ""
        time_s = scene.snapshot.time_s
        session = self._guarded.session_of(self._guarded.policy)
        self._kept_session.resume(session, time_s, heard)
        decided = self._guarded.decide(scene, queued, self._backend.can_stop, unfit, explain, check)
        self._wake_s = decided.until_s
        self._kept_session.keep(session, self._named, time_s, heard)
        if decided.tripped is not None:
            self._notes.tell(heard, time_s, decided.tripped[0], f"{decided.tripped[1]} {self._fallback} decides.")
        if decided.is_back:
            self._notes.tell(heard, time_s, "back", f"{self._named} decides again.")
        for id in decided.kept.hopeless:
            self._notes.tell_once(
                heard, time_s, "starving", f"job {id} waits too long, and no node can be reserved for it."
            )
        if new := [id for id in decided.kept.nodes if self._standing is None or id not in self._standing.kept]:
            for id in new[:MOST_NAMED]:
                nodes = ", ".join(decided.kept.nodes[id])
                self._notes.tell(heard, time_s, "kept", f"job {id} has waited long: {nodes} is reserved for it.", id)
        return decided

    def _going_back(self, scene: Scene, heard: Heard) -> Sequence[str]:
        """The jobs of this scene that are no longer ours; jobs that no node could ever take are given back."""
        never = {
            scene.live[j].id: f"it {why_refused(scene.plan, scene.jobs, scene.view, j)}"
            for j in np.flatnonzero(scene.view.runs.state == REFUSED).tolist()
            if scene.live[j].state is JobState.WAITING and scene.live[j].managed
        }
        self._orders.give_back(never, scene.snapshot.time_s, heard)
        return [id for id in heard.given_back if id in scene.index]

    def _looks_back(self) -> bool:
        """Whether a policy that may decide uses the history of users."""
        needs = {*self._guarded.policy.needs, *self._guarded.fallback.needs}
        return bool(needs & {"history", "user"})

    def _warm_up(self, policy: Policy) -> None:
        """Compile a policy before its time is measured."""
        which = id(policy.choose or policy.make)
        if which not in WARM:
            WARM[which] = policy
            warm_up(policy, self._judge)

    def _act(self, scene: Scene, decided: Decided, heard: Heard) -> Snapshot | None:
        """Record the decisions, give the orders, record the answers and read back; returns the snapshot after that."""
        if not decided.chosen:
            return None
        time_s = scene.snapshot.time_s
        done = self._stopper.carry_out(self._decisions(scene, decided), scene, heard)
        if done is None:
            return None
        for decision in done:
            if decision.verb == "start":
                self._seen.expected[decision.job] = float(scene.predicted[scene.index[decision.job], 1])
        self._orders.forget_all_but(scene.index)
        self._seen.forget_all_but(scene.index)
        try:
            after = self._backend.read()
        except BackendError as error:
            self._notes.tell_once(heard, time_s, "backend", f"the cluster cannot be read back: {error}")
            return None
        self._seen.note_placed(after.jobs)
        self._orders.check_placed(after, heard)
        return after

    def _decisions(self, scene: Scene, decided: Decided) -> tuple[Decision, ...]:
        """Choices as records, with their reasons and predictions."""
        corrections = self._seen.corrections(scene.snapshot.cluster)
        started = {chosen.job for chosen in decided.chosen if chosen.verb == START}
        return tuple(
            self._decision(scene, chosen, number, corrections, started)
            if chosen.verb == START
            else self._stop_decision(scene, decided.chosen, number, corrections)
            for number, chosen in enumerate(decided.chosen)
        )

    def _stop_decision(self, scene: Scene, chosen: Sequence[Chosen], number: int, corrections: Corrections) -> Decision:
        """A stop as a record."""
        time_s, job = scene.snapshot.time_s, scene.live[chosen[number].job]
        reason, mentions = why_stopped(scene, chosen, number, corrections, self._speeds.pace)
        id = self._orders.id_of(time_s, self._number, number)
        return Decision(id, time_s, self._number, job.id, "stop", (), chosen[number].by, reason, mentions=mentions)

    def _decision(
        self, scene: Scene, chosen: Chosen, number: int, corrections: Corrections, started: Collection[int]
    ) -> Decision:
        """A start as a record; `started` are all jobs that start in this turn."""
        job = scene.live[chosen.job]
        time_s = scene.snapshot.time_s
        id = self._orders.id_of(time_s, self._number, number)
        speed = self._speeds.pace(job.job, chosen.parts, scene.plan.cluster, corrections)
        low, middle, high = (scene.predicted[chosen.job] / max(speed, 1e-9)).tolist()
        mine = scene.traits[chosen.job : chosen.job + 1].view(np.recarray)
        like = self._seen.runtimes.like(mine) if number < self._settings.alike else ()
        around = self._explain.around.get(chosen.job) if self._explain is not None else None
        reason, mentions = why_started(scene, chosen, around, middle, started)
        return Decision(
            id, time_s, self._number, job.id, "start", chosen.parts, chosen.by, reason,
            middle, low, high, chosen.alternatives, like, mentions,
        )  # fmt: skip

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _compare(
        self, snapshot: Snapshot, submitted: Mapping[str, float], ended: Sequence[MeasuredJob], heard: Heard
    ) -> None:
        """Compare the policy with the fallback over the last window, now and then; the guard may step in."""
        self._window.note(snapshot, submitted, ended)
        now = self._monotonic()
        if now - self._compared_at < self._settings.compare_s:
            return
        self._compared_at = now
        policy, fallback = self._guarded.policy, self._guarded.fallback
        found = self._window.compare(
            self._scenes,
            self._seen.runtimes.predict,
            policy if self._settings.preempt.is_on else without_stops(policy),
            fallback,
            self._seen.corrections(snapshot.cluster),
            self._settings.decide_s / 2,
        )
        self._outcome = found
        if found is None or found.policy_s is None or found.fallback_s is None:
            return
        if found.policy_s > (1.0 + self._settings.guard.worse_by) * found.fallback_s and self._guarded.reason is None:
            words = (
                f"the last {found.jobs} jobs would spend {found.policy_s:.0f} s in the system with {self._named}, "
                f"{found.fallback_s:.0f} s with {self._fallback}."
            )
            self._guarded.trip("worse", words)
            self._window.clear()

    def _publish(self, scene: Scene, decided: Decided, snapshot: Snapshot, heard: Heard) -> None:
        """Make the latest state, for other threads to read."""
        starts = self._starts.predicted(scene, decided, self._standing, without_stops(self._playing()))
        held = self._orders.setbacks.passed_over({job.id: job for job in scene.live})
        self._standing = Standing(
            scene, decided.view, self._named, decided.by, starts, decided.kept.nodes, held, decided.is_cut
        )
        self._history.keep(snapshot, self._outcome, heard)
        figures = self._telemetry() if self._telemetry is not None else None
        self._state = State(
            snapshot=snapshot,
            tick=self._state.tick if self._state is not None else None,
            backend=self._backend.name,
            policy=self._named,
            fallback=self._fallback,
            is_guarded=decided.is_guarded,
            is_leader=self._is_leader,
            starts=starts,
            alarms=tuple(self._notes.alarms),
            drifts=self._seen.watch.drifts,
            stopping=self._guarded.stops.shown(snapshot),
            history=tuple(self._history.points),
            telemetry=figures or {},
            placed={
                job.id: made
                for job in snapshot.jobs
                if job.state is not JobState.WAITING and (made := self._orders.by_job.get(job.id)) is not None
            },
        )

    def _playing(self) -> Policy:
        """The policy that decides at present."""
        return self._guarded.fallback if self._guarded.reason is not None else self._guarded.policy
