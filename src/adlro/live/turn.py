"""The heart of the daemon: read the cluster, decide, act, read back. It owns no truth about the cluster.

Every turn begins with a snapshot and ends with what was made of it. After a crash nothing is missing: decisions were
written down before they were acted on, and the next snapshot says which of them came true.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, TypeVar, final

import numpy as np

from adlro.core.errors import AdlroError, BackendError, CatalogueError, StoreError
from adlro.core.policy import Policy
from adlro.core.ports import ENDED, PLACES, Answer, Backend, JobState, LiveJob, Order, Part, Setback, Snapshot
from adlro.core.tables import QUEUED, REFUSED, START
from adlro.decide.catalogue import find_policy
from adlro.live.compared import Outcome, Window
from adlro.live.drift import Watch, in_words
from adlro.live.explain import Standing, why
from adlro.live.explain_short import short_reason
from adlro.live.explain_start import Explaining, Judge, why_started
from adlro.live.foresee import Foresight, changed_snapshot
from adlro.live.guard import Chosen, Decided, Guarded
from adlro.live.limits import GuardTable, Limits
from adlro.live.predicting import Measured, Runtimes, measured, pace
from adlro.live.scene import Carried, Corrections, Scene, Scenes
from adlro.live.service import (
    Alarm,
    Compared,
    Decision,
    Foreseen,
    Memory,
    Start,
    State,
    Tick,
    WhatIf,
    Why,
)
from adlro.live.session import Session
from adlro.live.setbacks import Setbacks
from adlro.normalise.pack import why_refused

Telemetry = Mapping[str, Mapping[str, float | None]]
"""By "node/index", as State.telemetry."""

T = TypeVar("T")

LONG_QUEUE: Final = 1000
SELDOM: Final = 9.0
"""Starts of a queue longer than this take at most a tenth of the time: so many times as long they stay as they are."""

WARM: Final[dict[int, Policy]] = {}
"""Policies that have been asked once in this process; each is kept, so that its number stays its own."""

SESSION: Final = "policy_session"
"""Under which name the memory keeps what the policy remembers."""

MOST_NAMED: Final = 5
"""Jobs that one alarm names."""


@dataclass(frozen=True, slots=True)
class Settings(Limits):
    """How the orchestrator works: the limits of the guard, and the rest. All times are seconds."""

    compare_s: float = 60.0
    """How often they are held against each other."""
    restart_s: float = 30.0
    """What a restart costs a job, as policies believe."""
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


@dataclass(slots=True)
class Heard:
    """What one turn has to tell."""

    alarms: list[Alarm] = field(default_factory=list)
    decisions: tuple[Decision, ...] = ()
    answers: tuple[Answer, ...] = ()
    given_back: set[str] = field(default_factory=set)


@final
class Orchestrator:
    """Decides for one cluster. `tick` is called from one thread; all else from any.

    `telemetry` gives the latest figures, or None when they are gone: then the guard lets the fallback decide. `clock`
    is what alarms and ids are stamped with before the first snapshot.
    """

    def __init__(
        self,
        backend: Backend,
        memory: Memory,
        policy: str = "adlro",
        fallback: str = "fcfs-first-fit",
        settings: Settings = Settings(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        telemetry: Callable[[], Telemetry | None] | None = None,
        is_leader: bool = True,
    ) -> None:
        self._backend, self._memory, self._settings = backend, memory, settings
        self._clock, self._monotonic, self._telemetry = clock, monotonic, telemetry
        self._is_leader = is_leader
        self._scenes = Scenes(restart_s=settings.restart_s)
        self._runtimes, self._watch = Runtimes(), Watch()
        self._foresight, self._asked = Foresight(), Foresight(seed=1)
        self._window = Window(settings.guard.window_s)
        self._named = policy
        self._guarded = Guarded(find_policy(policy), find_policy(fallback), settings, monotonic)
        self._fallback = fallback
        self._judge = Judge(policy)
        self._next: tuple[str, Policy, Judge] | None = None
        self._lock = Lock()  # for what other threads read of what a turn changes
        self._asking = Lock()  # one question at a time
        self._asked_scenes = Scenes(restart_s=settings.restart_s)  # a turn does not wait for a question
        self._number = 0
        self._last_id = ""
        self._is_unsettled = True  # decisions of an earlier life, or of a turn that broke off, may be unanswered
        self._has_history = False
        self._learnt: set[tuple[str, float | None]] = set()
        self._known: dict[str, LiveJob] = {}
        self._submitted: dict[str, float] = {}
        self._carried: dict[str, Carried] = {}
        self._stopped: set[str] = set()
        self._expected: dict[str, float] = {}  # work as predicted when the job was started
        self._setbacks = Setbacks(monotonic)
        self._lines: dict[str, tuple[str, float]] = {}  # what users were told of a job, and when
        self._not_taken: set[str] = set()  # jobs that nobody else takes: they stay with us
        self._unchecked: dict[str, Decision] = {}
        self._moved: tuple[float, float] | None = None  # the snapshot's time, and when it last moved
        self._compared_at = self._kept_at = -np.inf
        self._outcome: Outcome | None = None
        latest: Sequence[Alarm] = self._try_memory(self._latest_alarms, [])
        self._alarms: deque[Alarm] = deque(latest, maxlen=settings.kept_alarms)
        self._history: deque[Compared] = deque(maxlen=settings.kept_history)
        self._has_points = False
        self._state: State | None = None
        self._standing: Standing | None = None
        self._explain: Explaining | None = None
        self._by_job: dict[str, Decision] = {}
        self._by_id: tuple[Snapshot | None, Mapping[str, LiveJob]] = None, {}  # of the snapshot that was asked about
        self._foreseen_until = -np.inf
        self._session_text: str | None = None  # what the policy remembers, as it was last written down
        self._wake_s = np.inf

    # ---- what others ask -------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The latest state. Raises BackendError while the cluster has never been read."""
        state = self._state
        if state is None:
            raise BackendError("the cluster has not been read yet. Ask again after the first turn.")
        return state

    def why(self, job: str) -> Why | None:
        """Why a job waits, or runs where it does; None: there is no such job."""
        standing, state = self._standing, self._state
        if standing is None or state is None:
            return None
        known = self._by_id
        if known[0] is not state.snapshot:
            known = self._by_id = state.snapshot, {each.id: each for each in state.snapshot.jobs}
        found = known[1].get(job)
        found = found or self._try_memory(lambda: self._memory.job(job), None)
        if found is None:
            return None
        return why(standing, found, self._decision_of(found))

    def what_if(self, question: WhatIf) -> Foreseen:
        """What would come of it, played forward from the latest snapshot."""
        state = self.state()
        policy = self._guarded.policy
        other = find_policy(question.policy) if question.policy else policy
        snapshot = state.snapshot
        changed, new = changed_snapshot(snapshot, question)
        corrections = self._watch.corrections
        with self._lock:
            submitted, carried = dict(self._submitted), dict(self._carried)
        predict, tell, scenes = self._runtimes.predict, self._runtimes.tell, self._asked_scenes
        with self._asking:
            before = scenes.scene(snapshot, predict, submitted, corrections, carried, tell=tell)
            if changed.cluster is not snapshot.cluster:
                scenes = Scenes(restart_s=self._settings.restart_s)
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
        """When the policy wants to be asked again if nothing changes, by the cluster's clock; inf: it named no time."""
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
        submitted = self._noted(snapshot, heard)
        ended = self._learn(snapshot, heard)
        self._settle(snapshot, now_s, heard)
        self._check_placed(snapshot, heard)
        self._meet_setbacks(snapshot, heard)
        self._carry(snapshot)
        remind = self._runtimes.past.remind if self._looks_back() else None
        scene = self._scenes.scene(
            snapshot, self._runtimes.predict, submitted, self._watch.corrections, self._carried, remind=remind,
            tell=self._runtimes.tell,
        )  # fmt: skip
        for text in scene.notes[len(snapshot.notes) :][:MOST_NAMED]:
            self._tell_once(heard, now_s, "left-out", text)
        decided = self._decide(scene, unfit, heard)
        after = self._act(scene, decided, heard)
        self._compare(snapshot, submitted, ended, heard)
        self._publish(scene, decided, after or snapshot, heard)
        self._annotate(after or snapshot, heard)
        return self._finish(began, now_s, decided.by, snapshot, heard, decided.is_cut)

    def _blind(self, began: float, heard: Heard, said: str) -> Tick:
        """A turn without a snapshot: nothing is decided, and the old picture stays, marked as stale."""
        now_s = self._state.snapshot.time_s if self._state is not None else self._clock()
        self._tell_once(heard, now_s, "backend", f"the cluster cannot be read: {said}")
        if self._state is not None:
            notes = tuple(note for note in self._state.snapshot.notes if not note.startswith("stale:"))
            snapshot = replace(self._state.snapshot, notes=(*notes, f"stale: {said}"))
            self._state = replace(self._state, snapshot=snapshot)
        self._is_unsettled = True
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
            self._memory.ticked(tick)
        except StoreError as error:
            self._tell_once(heard, now_s, "store", f"the store cannot be written: {error}")
            tick = replace(tick, alarms=tuple(heard.alarms))
        self._alarms.extend(tick.alarms)
        if self._state is not None:
            self._state = replace(
                self._state, tick=tick, alarms=tuple(self._alarms), policy=self._named,
                is_guarded=self._guarded.reason is not None, is_leader=self._is_leader,
            )  # fmt: skip
        return tick

    def _tell(self, heard: Heard, time_s: float, kind: str, text: str, job: str = "", node: str = "") -> None:
        """Raise an alarm."""
        heard.alarms.append(Alarm(time_s, kind, text, job, node))

    def _tell_once(self, heard: Heard, time_s: float, kind: str, text: str) -> None:
        """Raise an alarm, unless the same was raised among the latest."""
        if not any(alarm.kind == kind and alarm.text == text for alarm in (*self._alarms, *heard.alarms)):
            self._tell(heard, time_s, kind, text)

    def _try_memory(self, ask: Callable[[], T], instead: T) -> T:
        """What the memory says, or this if it cannot be read."""
        try:
            return ask()
        except StoreError:
            return instead

    def _write(self, heard: Heard, time_s: float, write: Callable[[], T], instead: T) -> T:
        """Write something down; where that fails we go on without, and tell."""
        try:
            return write()
        except StoreError as error:
            self._tell_once(heard, time_s, "store", f"the store cannot be used: {error}")
            return instead

    def _latest_alarms(self) -> Sequence[Alarm]:
        return self._memory.alarms(self._settings.kept_alarms)

    # ---- what came ---------------------------------------------------------------------------------------------------

    def _unfit(self, snapshot: Snapshot, heard: Heard) -> tuple[str, str] | None:
        """Why the policy may not decide on this snapshot; None: it may."""
        now = self._monotonic()
        moved = self._moved
        if moved is None or snapshot.time_s > moved[0]:
            self._moved = (snapshot.time_s, now)
        elif snapshot.time_s < moved[0]:
            self._tell(
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

    def _noted(self, snapshot: Snapshot, heard: Heard) -> Mapping[str, float]:
        """First submissions by job, as the memory knows them or as they were first seen."""
        live = [job for job in snapshot.jobs if job.state not in ENDED]
        new = [job for job in live if job.id not in self._submitted]
        if new:
            nothing: Mapping[str, float] = {}
            found = self._write(heard, snapshot.time_s, lambda: self._memory.first_seen(new), nothing)
            with self._lock:
                for job in new:
                    self._submitted[job.id] = found.get(job.id, job.job.submit_s)
        if len(self._submitted) > 2 * len(snapshot.jobs) + 1000:
            there = {job.id for job in snapshot.jobs}
            self._not_taken &= there
            with self._lock:
                self._submitted = {id: at for id, at in self._submitted.items() if id in there}
        return self._submitted

    def _learn(self, snapshot: Snapshot, heard: Heard) -> list[Measured]:
        """Learn from the jobs that ended since the last turn, and from history at the first; those that are new."""
        if not self._has_history:
            self._has_history = True
            none: Sequence[LiveJob] = []
            past = self._write(heard, snapshot.time_s, lambda: self._memory.history(self._settings.history), none)
            self._take_in(measured(past, snapshot.cluster, self._watch.corrections), None)
            self._learnt.update((job.id, job.ended_s) for job in past)
            made: Sequence[Decision] = []
            made = self._write(heard, snapshot.time_s, lambda: self._memory.decisions(limit=1), made)
            self._last_id = max(self._last_id, made[0].id if made else "")  # ids go on where an earlier life ended
        ended, there = [], set()
        for job in snapshot.jobs:
            if job.state in ENDED:
                there.add((job.id, job.ended_s))
                if (job.id, job.ended_s) not in self._learnt:
                    ended.append(self._whole(job))
        self._missed(snapshot, heard)
        if not ended:
            return []
        self._learnt.update((job.id, job.ended_s) for job in ended)
        if len(self._learnt) > 2 * len(there) + 2 * self._settings.history:
            self._learnt &= there
        self._write(heard, snapshot.time_s, lambda: self._memory.ended(ended), None)
        found = measured(ended, snapshot.cluster, self._watch.corrections, self._expected)
        self._take_in(found, heard)
        for job in ended:
            self._carried.pop(job.id, None)
            self._expected.pop(job.id, None)
        return found

    def _take_in(self, found: Sequence[Measured], heard: Heard | None) -> None:
        """Learn runtimes, and look for speeds that have changed."""
        self._runtimes.learn(found)
        for each in found:
            if each.job.state is JobState.FINISHED:
                drift = self._watch.observe(each)
                if drift is not None and heard is not None:
                    self._tell(heard, each.job.ended_s or 0.0, "drift", in_words(drift), node=drift.node)

    def _whole(self, job: LiveJob) -> LiveJob:
        """A job that ended, with where and when it ran as last seen: some clusters forget that at the end."""
        before = self._known.get(job.id)
        if before is None:
            return job
        parts = job.parts or before.parts
        started = job.started_s if job.started_s is not None else before.started_s
        return replace(job, parts=parts, started_s=started, decision=job.decision or before.decision)

    def _missed(self, snapshot: Snapshot, heard: Heard) -> None:
        """Tell of jobs that are gone without having ended; remember those that are there."""
        there = {job.id: job for job in snapshot.jobs}
        gone = [id for id, job in self._known.items() if id not in there and job.managed and job.state not in ENDED]
        for id in gone:  # nobody will see them end
            self._carried.pop(id, None)
            self._expected.pop(id, None)
            self._stopped.discard(id)
        if gone:
            names = ", ".join(gone[:MOST_NAMED]) + (" …" if len(gone) > MOST_NAMED else "")
            self._tell(
                heard, snapshot.time_s, "vanished", f"{len(gone)} jobs have disappeared without a known end: {names}."
            )
        self._known = {
            id: self._whole(job) if not job.parts and job.state in PLACES else job for id, job in there.items()
        }

    def _carry(self, snapshot: Snapshot) -> None:
        """Remember what a stretch of work left behind, when a job that ran waits again."""
        standing = self._standing
        if standing is None:
            return
        for job in snapshot.jobs:
            if job.state is not JobState.WAITING or not job.starts:
                continue
            j = standing.scene.index.get(job.id)
            before = standing.scene.live[j] if j is not None else None
            if before is None or before.state not in PLACES or before.started_s is None:
                continue
            ran = max(0.0, snapshot.time_s - before.started_s)
            lost = self._settings.restart_s if before.starts > 1 else 0.0
            worked = max(0.0, ran - lost) * pace(before.job, before.parts, snapshot.cluster, self._watch.corrections)
            known = self._carried.get(job.id, Carried())
            step = job.job.checkpoint
            if job.id in self._stopped or step == 0.0:
                saved = known.saved + worked
            else:
                saved = known.saved if not step else max(known.saved, (known.saved + worked) // step * step)
            self._stopped.discard(job.id)
            with self._lock:
                self._carried[job.id] = Carried(saved, known.held_s + ran)

    # ---- what was decided before -------------------------------------------------------------------------------------

    def _settle(self, snapshot: Snapshot, now_s: float, heard: Heard) -> None:
        """Ask the cluster what became of decisions that have no answer: we died, or it was gone, in between."""
        if not self._is_unsettled:
            return
        found = self._write(heard, now_s, self._memory.unanswered, None)
        if found is None:
            return
        self._is_unsettled = False
        if not found:
            return
        there = {job.id: job for job in snapshot.jobs}
        answers = [settled(decision, there.get(decision.job)) for decision in found]
        self._write(heard, now_s, lambda: self._memory.answered(found, answers), None)
        done = sum(answer.done for answer in answers)
        self._tell(heard, now_s, "settled", f"{len(found)} decisions had no answer: {done} of them were carried out.")

    def _check_placed(self, snapshot: Snapshot, heard: Heard) -> None:
        """Hold what was decided against what is there."""
        if not self._unchecked:
            return
        there = {job.id: job for job in snapshot.jobs}
        for id, decision in list(self._unchecked.items()):
            job = there.get(id)
            if job is not None and decision.verb == "start":
                if job.setback is not Setback.NONE:
                    continue  # `_meet_setbacks` knows why
                if job.state is JobState.WAITING:
                    self._refuse(id, "the cluster took the order, and the job waits still", snapshot.time_s, heard)
                elif job.state in PLACES and not stands_as(job, decision):
                    wanted, there_is = in_places(decision.parts), in_places(job.parts)
                    text = f"job {id} was to start on {wanted} and has {there_is}."
                    self._tell(heard, snapshot.time_s, "misplaced", text, id, job.parts[0].node if job.parts else "")
                elif job.state in PLACES:
                    self._setbacks.accept(id)
        self._unchecked.clear()

    def _refuse(self, id: str, said: str, time_s: float, heard: Heard) -> None:
        """An order was not carried out: leave the job alone for a while."""
        again = f"It is tried again after {self._setbacks.refuse(id, said):.0f} s."
        self._tell(heard, time_s, "refused", f"job {id} could not be started: {said}. {again}", id)

    def _meet_setbacks(self, snapshot: Snapshot, heard: Heard) -> None:
        """Give back what we cannot place, hold again what a limit keeps from starting, and tell of both."""
        seen = self._setbacks.look(snapshot)
        for id, said in seen.limits.items():
            text = f"job {id} cannot start now: {said}. It is skipped until that may have changed."
            self._tell(heard, snapshot.time_s, "limit", text, id)
        if seen.withdraw:
            try:
                answers = self._backend.act([Order(id, "") for id in seen.withdraw])
            except BackendError as error:
                answers = []
                self._tell_once(heard, snapshot.time_s, "backend", f"the cluster did not accept the orders: {error}")
            for answer in answers:
                if not answer.done:
                    text = f"job {answer.job} could not be held again: {answer.said}."
                    self._tell_once(heard, snapshot.time_s, "refused", text)
        self._give_back(seen.give_back, snapshot.time_s, heard)

    def _give_back(self, reasons: Mapping[str, str], time_s: float, heard: Heard) -> None:
        """Hand jobs to the cluster's own scheduler, and tell why."""
        new = {id: reason for id, reason in reasons.items() if id not in self._not_taken}
        if not new:
            return
        try:
            answers = self._backend.give_back(new)
        except BackendError as error:
            self._tell_once(heard, time_s, "backend", f"jobs could not be given back: {error}")
            return
        for answer in answers:
            if answer.done:
                heard.given_back.add(answer.job)
                text = f"job {answer.job} was given back to the cluster's own scheduler: {new[answer.job]}."
                self._tell(heard, time_s, "given-back", text, answer.job)
            elif answer.is_final:
                self._not_taken.add(answer.job)
            else:
                text = f"job {answer.job} could not be given back: {answer.said}. It is tried again."
                self._tell_once(heard, time_s, "given-back", text)

    # ---- what is decided now -----------------------------------------------------------------------------------------

    def _decide(self, scene: Scene, unfit: tuple[str, str] | None, heard: Heard) -> Decided:
        """Ask the policy, or the fallback, as the guard says."""
        for policy in (self._guarded.policy, self._guarded.fallback):
            self._warm_up(policy)
        passed = self._setbacks.passed_over({job.id: job for job in scene.live})
        held = {scene.index[id] for id in (*passed, *self._going_back(scene, heard))}
        queued = frozenset(j for j in held if scene.view.runs.state[j] == QUEUED)
        explain = self._explain = Explaining(scene, self._judge, self._settings.explained)
        check = self._judge.check if self._judge.has_network else lambda view: ""
        time_s = scene.snapshot.time_s
        session = self._session(time_s, heard)
        decided = self._guarded.decide(scene, queued, self._backend.can_stop, unfit, explain, check)
        self._wake_s = decided.until_s
        self._keep_session(session, time_s, heard)
        if decided.tripped is not None:
            self._tell(heard, time_s, decided.tripped[0], f"{decided.tripped[1]} {self._fallback} decides.")
        if decided.is_back:
            self._tell(heard, time_s, "back", f"{self._named} decides again.")
        for id in decided.kept.hopeless:
            self._tell_once(heard, time_s, "starving", f"job {id} waits too long, and no node can be reserved for it.")
        if new := [id for id in decided.kept.nodes if self._standing is None or id not in self._standing.kept]:
            for id in new[:MOST_NAMED]:
                nodes = ", ".join(decided.kept.nodes[id])
                self._tell(heard, time_s, "kept", f"job {id} has waited long: {nodes} is reserved for it.", id)
        return decided

    def _session(self, time_s: float, heard: Heard) -> Session:
        """The session of the policy; in the first turn it goes on where an earlier life of the daemon ended."""
        session = self._guarded.session_of(self._guarded.policy)
        if self._session_text is None:
            self._session_text = self._write(heard, time_s, lambda: self._memory.get(SESSION), None) or ""
            if self._session_text:
                session.resume(self._session_text)
        return session

    def _keep_session(self, session: Session, time_s: float, heard: Heard) -> None:
        """Write down what the policy remembers, if that has changed; tell what it has lost."""
        if session.lost:
            self._tell(heard, time_s, "session", f"{self._named} starts again without its memory: {session.lost}.")
            session.lost = ""
        if (text := session.as_text()) != self._session_text:
            self._session_text = text
            self._write(heard, time_s, lambda: self._memory.put(SESSION, text), None)

    def _going_back(self, scene: Scene, heard: Heard) -> Sequence[str]:
        """The jobs of this scene that are not ours any more; those that no node could ever take are given back."""
        never = {
            scene.live[j].id: f"it {why_refused(scene.plan, scene.jobs, scene.view, j)}"
            for j in np.flatnonzero(scene.view.runs.state == REFUSED).tolist()
            if scene.live[j].state is JobState.WAITING and scene.live[j].managed
        }
        self._give_back(never, scene.snapshot.time_s, heard)
        return [id for id in heard.given_back if id in scene.index]

    def _looks_back(self) -> bool:
        """Whether anybody who may decide looks at users and their past."""
        needs = {*self._guarded.policy.needs, *self._guarded.fallback.needs}
        return bool(needs & {"history", "user"})

    def _warm_up(self, policy: Policy) -> None:
        """Let a policy be compiled before its time is taken."""
        which = id(policy.choose or policy.make)
        if which not in WARM:
            WARM[which] = policy
            warm_up(policy, self._judge)

    def _act(self, scene: Scene, decided: Decided, heard: Heard) -> Snapshot | None:
        """Write the decisions down, give the orders, write the answers down, read back; the snapshot after it."""
        if not decided.chosen:
            return None
        time_s = scene.snapshot.time_s
        decisions = self._decisions(scene, decided)
        heard.decisions = decisions
        self._write(heard, time_s, lambda: self._memory.intend(decisions), None)
        orders = [Order(each.job, each.id, each.parts if each.verb == "start" else ()) for each in decisions]
        try:
            answers = self._backend.act(orders)
        except BackendError as error:
            # Some of it may have happened: the next snapshot tells, and only then is anything decided again.
            self._is_unsettled = True
            self._tell_once(heard, time_s, "backend", f"the cluster did not accept the orders: {error}")
            return None
        heard.answers = tuple(answers)
        self._write(heard, time_s, lambda: self._memory.answered(decisions, answers), None)
        for decision, answer in zip(decisions, answers, strict=True):
            if answer.is_final:
                self._give_back({decision.job: answer.said}, time_s, heard)
            if not answer.done:
                self._refuse(decision.job, answer.said or "the cluster gave no reason", time_s, heard)
                continue
            self._unchecked[decision.job] = decision
            if decision.verb == "stop":
                self._stopped.add(decision.job)
            else:
                self._by_job[decision.job] = decision
                self._expected[decision.job] = float(scene.predicted[scene.index[decision.job], 1])
        if len(self._by_job) > 2 * len(scene.live) + 1000:
            self._by_job = {id: made for id, made in self._by_job.items() if id in scene.index}
            self._expected = {id: work for id, work in self._expected.items() if id in scene.index}
        try:
            after = self._backend.read()
        except BackendError as error:
            self._tell_once(heard, time_s, "backend", f"the cluster cannot be read back: {error}")
            return None
        self._known.update((job.id, job) for job in after.jobs if job.state in PLACES)
        self._check_placed(after, heard)
        return after

    def _decisions(self, scene: Scene, decided: Decided) -> tuple[Decision, ...]:
        """Choices as records, with their reasons and predictions."""
        corrections = self._watch.corrections
        started = {chosen.job for chosen in decided.chosen if chosen.verb == START}
        found = []
        for number, chosen in enumerate(decided.chosen):
            found.append(self._decision(scene, chosen, number, corrections, started))
        return tuple(found)

    def _decision(
        self, scene: Scene, chosen: Chosen, number: int, corrections: Corrections, started: Collection[int]
    ) -> Decision:
        """One choice as a record; `started` are all jobs that start in this turn."""
        job = scene.live[chosen.job]
        time_s = scene.snapshot.time_s
        if chosen.verb != START:
            reason = f"{chosen.by} stopped it so that another job can run; it goes on later."
            return Decision(self._id(time_s, number), time_s, self._number, job.id, "stop", (), chosen.by, reason)
        speed = pace(job.job, chosen.parts, scene.plan.cluster, corrections)
        low, middle, high = (scene.predicted[chosen.job] / max(speed, 1e-9)).tolist()
        mine = scene.traits[chosen.job : chosen.job + 1].view(np.recarray)
        like = self._runtimes.like(mine) if number < self._settings.alike else ()
        around = self._explain.around.get(chosen.job) if self._explain is not None else None
        reason, mentions = why_started(scene, chosen, around, middle, started)
        return Decision(
            self._id(time_s, number), time_s, self._number, job.id, "start", chosen.parts, chosen.by, reason,
            middle, low, high, chosen.alternatives, like, mentions,
        )  # fmt: skip

    def _id(self, time_s: float, number: int) -> str:
        """A name for a decision: unique, and later ones sort after earlier ones, also over restarts."""
        found = f"{max(0, round(time_s * 1000)):015d}-{self._number % 1_000_000:06d}-{number:05d}"
        if found <= self._last_id:  # the clock stood still or went back
            stem, _, tail = self._last_id.rpartition("-")
            can_count = tail.isascii() and tail.isdigit() and len(tail) == 5 and tail != "99999"
            found = f"{stem}-{int(tail) + 1:05d}" if can_count else f"{self._last_id}-00001"
        self._last_id = found
        return found

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _compare(
        self, snapshot: Snapshot, submitted: Mapping[str, float], ended: Sequence[Measured], heard: Heard
    ) -> None:
        """Hold the policy against the fallback over the last window, now and then; the guard may step in."""
        self._window.note(snapshot, submitted, ended)
        now = self._monotonic()
        if now - self._compared_at < self._settings.compare_s:
            return
        self._compared_at = now
        policy, fallback = self._guarded.policy, self._guarded.fallback
        found = self._window.compare(
            self._scenes, self._runtimes.predict, policy, fallback, self._watch.corrections, self._settings.decide_s / 2
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
        starts = self._starts(scene, decided)
        held = self._setbacks.passed_over({job.id: job for job in scene.live})
        self._standing = Standing(
            scene, decided.view, self._named, decided.by, starts, decided.kept.nodes, held, decided.is_cut
        )
        self._keep_point(snapshot, heard)
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
            alarms=tuple(self._alarms),
            drifts=self._watch.drifts,
            history=tuple(self._history),
            telemetry=figures or {},
            placed={
                job.id: made
                for job in snapshot.jobs
                if job.state is not JobState.WAITING and (made := self._by_job.get(job.id)) is not None
            },
        )

    def _annotate(self, snapshot: Snapshot, heard: Heard) -> None:
        """Tell users in the cluster's own queue what their jobs wait for: a few each turn, the next to start first."""
        standing, now = self._standing, self._monotonic()
        if standing is None or not self._backend.can_annotate:
            return
        waiting = [
            job
            for job in snapshot.jobs
            if job.state is JobState.WAITING and job.managed and job.id not in heard.given_back
        ]
        if len(self._lines) > 2 * len(waiting) + 1000:
            there = {job.id for job in waiting}
            self._lines = {id: told for id, told in self._lines.items() if id in there}
        due = [job for job in waiting if now - self._lines.get(job.id, ("", -np.inf))[1] >= self._settings.annotate_s]
        due.sort(key=lambda job: self._start_of(standing, job.id))
        lines = {}
        for job in due[: self._settings.annotated]:
            line = short_reason(why(standing, job, None, in_full=False), now_s=snapshot.time_s)
            if line != self._lines.get(job.id, ("", 0.0))[0]:
                lines[job.id] = line
            self._lines[job.id] = line, now
        if lines:
            with suppress(BackendError):  # the next turn tells that the cluster is gone
                self._backend.annotate(lines)

    def _start_of(self, standing: Standing, id: str) -> float:
        """When a job is predicted to start; later than all others if that is not known."""
        start = standing.starts.get(id)
        return start.middle_s if start is not None and start.middle_s is not None else np.inf

    def _keep_point(self, snapshot: Snapshot, heard: Heard) -> None:
        """Keep a point of the history now and then, also beyond a restart."""
        settings, now_s = self._settings, snapshot.time_s
        if not self._has_points:
            self._has_points = True
            since_s = now_s - settings.kept_history * settings.history_s
            none: Sequence[Compared] = []
            self._history.extend(self._try_memory(lambda: self._memory.points(since_s, now_s), none))
            self._kept_at = self._history[-1].time_s if self._history else -np.inf
        if 0.0 <= now_s - self._kept_at < settings.history_s:  # a clock that was set back counts too
            return
        self._kept_at = now_s
        point = self._point(snapshot)
        self._history.append(point)
        self._write(heard, now_s, lambda: self._memory.keep_points([point]), None)

    def _starts(self, scene: Scene, decided: Decided) -> Mapping[str, Start]:
        """The predicted starts; those of a long queue are not foreseen anew every turn."""
        before, began = self._standing, time.perf_counter()
        is_long = decided.view.clock[0].queued > LONG_QUEUE
        if is_long and before is not None and before.starts and began < self._foreseen_until:
            states = decided.view.runs["state"]
            return {
                id: start
                for id, start in before.starts.items()
                if (j := scene.index.get(id)) is not None and states[j] == QUEUED
            }
        starts = self._foresight.starts(scene, decided.view, self._playing(), self._settings.starts_s)
        now = time.perf_counter()
        self._foreseen_until = now + SELDOM * (now - began)
        return starts

    def _playing(self) -> Policy:
        """Who decides as things are."""
        return self._guarded.fallback if self._guarded.reason is not None else self._guarded.policy

    def _point(self, snapshot: Snapshot) -> Compared:
        """One point of the history."""
        found = self._outcome
        measured_s, fallback_s = (found.measured_s, found.fallback_s) if found is not None else (None, None)
        states = [job.state for job in snapshot.jobs]
        running = sum(state in PLACES for state in states)
        waiting = states.count(JobState.WAITING)
        return Compared(snapshot.time_s, utilisation(snapshot), measured_s, fallback_s, waiting, running)

    def _decision_of(self, job: LiveJob) -> Decision | None:
        """The decision that placed a job."""
        made = self._by_job.get(job.id)
        if made is not None and job.state is not JobState.WAITING:
            return made
        if job.state is JobState.WAITING:
            return None
        none: Sequence[Decision] = []
        found = self._try_memory(lambda: self._memory.decisions(job=job.id, limit=10), none)
        return next((decision for decision in found if decision.verb == "start"), None)


def settled(decision: Decision, job: LiveJob | None) -> Answer:
    """What became of a decision without an answer, by the snapshot that was read after it."""
    if job is None:
        return Answer(decision.job, False, "the job is not there any more")
    waits = job.state is JobState.WAITING
    done = waits if decision.verb == "stop" else not waits
    said = "found so after it had no answer" if done else "not carried out: it had no answer"
    return Answer(decision.job, done, said)


def stands_as(job: LiveJob, decision: Decision) -> bool:
    """Whether a job has as many GPUs of the same models on the same nodes as decided.

    Which GPUs of a node they are, and how they are divided over several nodes, does not count: the cluster chooses.
    """
    if not job.parts:
        return True
    if job.job.gpus == 0:
        return {part.node for part in job.parts} == {part.node for part in decision.parts}
    there, wanted = gpus_by_place(job.parts), gpus_by_place(decision.parts)
    return there.keys() == wanted.keys() and sum(there.values()) == sum(wanted.values())


def gpus_by_place(parts: Sequence[Part]) -> dict[tuple[str, str], int]:
    """How many GPUs by node and model."""
    found: dict[tuple[str, str], int] = {}
    for part in parts:
        found[part.node, part.model] = found.get((part.node, part.model), 0) + part.count
    return found


def in_places(parts: Sequence[Part]) -> str:
    """Parts in words."""
    return ", ".join(
        f"{count} {model} on {node}" if count else node for (node, model), count in gpus_by_place(parts).items()
    )


def utilisation(snapshot: Snapshot) -> float:
    """The share of the GPUs that are up and held by jobs."""
    up = sum(group.count for node in snapshot.cluster.nodes if node.name not in snapshot.down for group in node.gpus)
    held = sum(
        part.count * job.job.share / 1000
        for job in snapshot.jobs
        if job.state in PLACES
        for part in job.parts
        if part.node not in snapshot.down
    )
    return min(1.0, held / up) if up else 0.0


def warm_up(policy: Policy, judge: Judge) -> None:
    """Ask a policy once on a small cluster, so that all that is compiled is."""
    from adlro.catalogue.clusters import load_cluster
    from adlro.core.records import Job
    from adlro.live.scene import as_said

    cluster = load_cluster("paper16")
    jobs = tuple(
        LiveJob(f"warm{number}", Job("uniform", 0.0, gpus=number, estimate=60.0), JobState.WAITING)
        for number in (1, 2, 8)
    )
    scene = Scenes().scene(Snapshot(0.0, cluster, jobs), as_said)
    patient = Limits(decide_s=60.0, decision_s=120.0, guard=GuardTable(max_wait_s=1.0))
    guarded = Guarded(policy, policy, patient)
    guarded.decide(scene, explain=Explaining(scene, judge, 8), check=judge.check)
