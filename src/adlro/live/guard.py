"""The guard:

the policy decides as long as it behaves; otherwise the fallback decides, and an alarm says why.

Reasons: an answer that is illegal or not a number, an error, a decision over its time budget, a stale snapshot, missing
telemetry, and a policy that would have been worse than the fallback over the last window.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from adlro.core.copying import copied
from adlro.core.driver import Driver, truth_from_here
from adlro.core.errors import AdlroError
from adlro.core.occupancy import close_nodes
from adlro.core.policy import Policy
from adlro.core.ports import PLACES, Part
from adlro.core.remembering import Remembers
from adlro.core.rules import dequeue
from adlro.core.tables import RESIZE, RUNNING, START, STOP, WAIT, Choice, Ints, View
from adlro.decide.stops import innermost, with_stop_rule
from adlro.decide.wrappers import Bounded, nodes_of, without_starvation
from adlro.live.limits import Limits
from adlro.live.scene import Scene, log_length, prepare_policy
from adlro.live.service import Alternative
from adlro.live.session import Session
from adlro.live.stops import StopLedger

GRACE: Final = 2.0
"""A policy that does not answer is given up after the longest turn plus this many times its time for one decision."""

_LONGEST: Final = 4.0
"""On a busy machine the decisions of a turn may take this many times their processor-time budget."""

STARVATION_GUARD: Final = "starvation guard"


@dataclass(frozen=True, slots=True)
class Chosen:
    """One choice, and the alternatives that the job had."""

    verb: int
    job: int
    parts: tuple[Part, ...]
    by: str  # a policy's name, or the starvation guard
    alternatives: tuple[Alternative, ...] = ()
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Reservations:
    """What is kept for jobs that have waited too long, and the jobs for which nothing can be kept."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job id -> names of nodes
    hopeless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of asking: the choices in order, who made them, and the view after them."""

    chosen: tuple[Chosen, ...]
    by: str
    view: View
    kept: Reservations = field(default_factory=Reservations)
    is_cut: bool = False  # time was over before everybody had been asked for
    tripped: tuple[str, str] | None = None  # kind and words, if the guard stepped in just now
    is_guarded: bool = False  # the fallback decided
    is_back: bool = False  # the policy decides again after the fallback did
    until_s: float = math.inf  # it waits until then, unless something changes; seconds since 1970


Explain = Callable[[View, int, int], tuple[tuple[Alternative, ...], float | None]]
"""`explain(view, job, site)` before a start: the alternatives of the job, and the score of the choice."""

Check = Callable[[View], str]
"""`check(view)` before a policy is asked: what is wrong with its scores; "" if nothing is."""


def no_explanation(view: View, j: int, s: int) -> tuple[tuple[Alternative, ...], float | None]:
    """An empty explanation."""
    return (), None


@dataclass(slots=True)
class Turn:
    """What a policy did in a turn so far; another thread fills it."""

    chosen: list[Chosen] = field(default_factory=list)
    fault: tuple[str, str] | None = None
    until: float = math.inf  # in the view's time
    is_cut: bool = False
    is_over: bool = False


@final
class Guarded:
    """A policy with a fallback. Time is the caller's monotonic clock."""

    def __init__(
        self,
        policy: Policy,
        fallback: Policy,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.fallback = fallback
        self.limits = limits
        self.stops = StopLedger(limits.preempt)
        self._monotonic = monotonic
        self._until = -math.inf
        self._reason: tuple[str, str] | None = None
        self._stuck: threading.Thread | None = None
        self._was_guarded = False
        self._kept: Mapping[str, tuple[str, ...]] = {}
        self._waits: tuple[float, frozenset[tuple[str, bool]]] | None = None
        self._sessions: dict[str, Session] = {}

    @property
    def reason(self) -> tuple[str, str] | None:
        """Why the fallback decides now: kind and words; None if the policy does."""
        return self._reason if self._was_guarded else None

    def use(self, policy: Policy) -> None:
        """Use another policy from now on; what the last one did is forgotten."""
        self.policy = policy
        self._until = -math.inf
        self._stuck = None
        self._waits = None
        self._sessions.clear()

    def session_of(self, policy: Policy) -> Session:
        """The session of the policy or the fallback, inside the bounds that apply to every policy here."""
        if policy.name not in self._sessions:
            bounded = policy
            if policy.preemptive:
                bounded = with_stop_rule(bounded, self.stops)
            if self.limits.guard.max_wait_s > 0.0:
                bounded = without_starvation(bounded, self.limits.guard.max_wait_s)
            self._sessions[policy.name] = Session(bounded)
        return self._sessions[policy.name]

    def trip(self, kind: str, words: str) -> None:
        """Let the fallback decide for a while."""
        self._until = self._monotonic() + self.limits.guard.guarded_s
        self._reason = (kind, words)

    def decide(
        self,
        scene: Scene,
        held: frozenset[int] = frozenset(),
        can_stop: bool = True,
        unfit: tuple[str, str] | None = None,
        explain: Explain = no_explanation,
        check: Check = lambda view: "",
        seed: int = 0,
    ) -> Decided:
        """All choices of this turn.

        The policy is not asked about `held` jobs; `unfit` says why it may not decide now.
        """
        before = self._reason if self._was_guarded else None
        tripped = None
        if self._stuck is not None and not self._stuck.is_alive():
            self._stuck = None
        if unfit is not None:
            self._reason = unfit
            is_guarded = True
        else:
            is_guarded = self._monotonic() < self._until or self._stuck is not None
        if not is_guarded and (self._still_waits(scene, held) or self._waits_for_stops()):
            view = self._view_of(scene, self.policy, held, seed)
            close_nodes(view, nodes_named(scene, self._kept))
            until_s = self._waits[0] if self._waits is not None else math.inf
            return Decided((), self.policy.name, view, Reservations(self._kept), until_s=until_s)
        self._waits = None
        if not is_guarded:
            decided = self._ask(scene, self.policy, held, can_stop, explain, check, seed)
            if isinstance(decided, Decided):
                is_back, self._was_guarded, self._reason = self._was_guarded, False, None
                if decided.until_s < math.inf and not decided.is_cut:
                    self._waits = decided.until_s, standing_after(scene, decided.chosen, held)
                return self._remembered(decided, False, None, is_back)
            tripped = decided
            self.trip(*decided)
        elif self._reason is not None and (before is None or before[0] != self._reason[0]):
            tripped = self._reason
        self._was_guarded = True
        decided = self._ask(scene, self.fallback, held, can_stop, explain, lambda view: "", seed)
        if not isinstance(decided, Decided):
            # Even the fallback failed: nobody decides, and the words of both are told.
            words = f"{tripped[1] if tripped else ''} The fallback also failed: {decided[1]}".strip()
            nothing = Decided((), self.fallback.name, copied(scene.view))
            return self._remembered(nothing, True, (decided[0], words), False)
        return self._remembered(decided, True, tripped, False)

    def _remembered(
        self, decided: Decided, is_guarded: bool, tripped: tuple[str, str] | None, is_back: bool
    ) -> Decided:
        """The same result, with what the guard did; reservations are remembered."""
        self._kept = decided.kept.nodes
        return replace(decided, tripped=tripped, is_guarded=is_guarded, is_back=is_back)

    def _still_waits(self, scene: Scene, held: frozenset[int]) -> bool:
        """Whether the policy waits for a time in the future, and nothing has changed since."""
        if self._waits is None or scene.snapshot.time_s >= self._waits[0]:
            return False
        return standing_after(scene, (), held) == self._waits[1]

    def _waits_for_stops(self) -> bool:
        """Whether the policy plans several steps at once, and jobs that it has stopped hold their GPUs still.

        What it planned for these GPUs would come to nothing: it is asked again when they are free.
        """
        session = self._sessions.get(self.policy.name)
        return session is not None and self.stops.is_busy and isinstance(innermost(session.choose), Remembers)

    def undo(self) -> None:
        """Let the policy forget this turn, because its starts must wait for jobs that it has stopped."""
        self._waits = None
        for session in self._sessions.values():
            session.undo()

    def _view_of(self, scene: Scene, policy: Policy, held: frozenset[int], seed: int) -> View:
        """A copy of the scene's view to decide on."""
        view = copied(scene.view)
        prepare_policy(view, policy, seed)
        for j in sorted(held):
            dequeue(view, j)
        return view

    def _ask(
        self,
        scene: Scene,
        policy: Policy,
        held: frozenset[int],
        can_stop: bool,
        explain: Explain,
        check: Check,
        seed: int,
    ) -> Decided | tuple[str, str]:
        """All choices of a policy now, or its fault: kind and words."""
        view = self._view_of(scene, policy, held, seed)
        turn = Turn()
        session = self.session_of(policy)
        self.stops.begin(scene, view, can_stop)
        asking = Asking(scene, view, policy, session, self._kept, self.stops, explain, check, seed, self.limits)
        thread = threading.Thread(target=asking.ask_all, args=(turn,), name=f"policy {policy.name}", daemon=True)
        thread.start()
        thread.join(_LONGEST * self.limits.decide_s + GRACE * self.limits.decision_s)
        if not turn.is_over:
            if policy is self.policy:
                self._stuck = thread
            return "slow", f"policy {policy.name} did not answer within {self.limits.decision_s:g} s."
        if turn.fault is not None:
            return turn.fault
        session.keep(scene, view)
        kept = kept_by_name(scene, session.choose)
        close_nodes(view, nodes_named(scene, kept.nodes))
        return Decided(tuple(turn.chosen), policy.name, view, kept, turn.is_cut, until_s=scene.time_s(turn.until))


@final
class Asking:
    """One policy, asked for one turn on a view of its own."""

    def __init__(
        self,
        scene: Scene,
        view: View,
        policy: Policy,
        session: Session,
        kept: Mapping[str, tuple[str, ...]],
        stops: StopLedger,
        explain: Explain,
        check: Check,
        seed: int,
        limits: Limits,
    ) -> None:
        self._scene, self._view, self._policy, self._session, self._kept = scene, view, policy, session, kept
        self._stops, self._explain, self._check, self._limits = stops, explain, check, limits
        work = np.maximum(view.jobs["estimate"].astype(np.float64), 1.0)
        truth = truth_from_here(view, work, log_length(view) + 8 * len(view.jobs), policy.preemptive)
        self._driver = Driver(view, truth, session.for_turn(scene, view), seed)

    def ask_all(self, turn: Turn) -> None:
        """Ask until the policy waits, the time is over, or it makes a fault. An error of the policy is a fault too."""
        try:
            with np.errstate(all="ignore"):
                self._ask_all(turn)
        except AdlroError as error:
            turn.fault = "policy", str(error)
        except Exception as error:
            turn.fault = "policy", f"policy {self._policy.name} failed: {type(error).__name__}: {error}"
        turn.is_over = True

    def _ask_all(self, turn: Turn) -> None:
        """As ask_all, and may raise."""
        policy, view = self._policy, self._view
        began, began_work = time.perf_counter(), time.thread_time()
        if wrong := self._check(view):
            turn.fault = "nan", wrong
            return
        self._driver.make()
        if isinstance(self._session.choose, Bounded):
            self._session.choose.keep(numbered(self._scene, self._kept))
        while self._driver.is_asked:
            asked = time.perf_counter()
            if (
                time.thread_time() - began_work > self._limits.decide_s
                or asked - began > _LONGEST * self._limits.decide_s
            ):
                turn.is_cut = True
                return
            choice = self._driver.ask()
            seconds = time.perf_counter() - asked
            if seconds > self._limits.decision_s:
                allowed = f"{self._limits.decision_s:g} s are allowed"
                turn.fault = "slow", f"a decision of policy {policy.name} took {seconds:.2f} s; {allowed}."
                return
            if math.isnan(choice.until):
                turn.fault = "nan", f"policy {policy.name} answered NaN as a time."
                return
            if choice.verb == WAIT:
                self._driver.apply(choice)
                turn.until = choice.until if choice.until > view.clock[0].now else math.inf
                return
            if not self._do(choice, turn):
                return

    def _do(self, choice: Choice, turn: Turn) -> bool:
        """Apply a choice to the view and record it; False if the policy is not asked again."""
        view, policy = self._view, self._policy
        known = 0 <= choice.job < len(view.jobs)
        stops = choice.verb == STOP and known and view.runs[choice.job].state == RUNNING
        if stops and not self._stops.is_chosen(choice.job):
            return False  # a policy that should stop no jobs. It would get the same question again: it is done
        explained: tuple[tuple[Alternative, ...], float | None] = ((), None)
        if choice.verb == START and known and 0 <= choice.site < len(view.sites):
            explained = self._explain(view, choice.job, choice.site)
        illegal = int(view.clock[0].illegal)
        self._driver.truth.progress[0].events = 0  # nobody reads this log
        if self._driver.apply(choice):
            if choice.verb == RESIZE:
                return True  # the start that follows has that many GPUs; without one nothing happens
            parts = self._scene.parts_of(view, choice.job) if choice.verb == START else ()
            choose = self._session.choose
            by = STARVATION_GUARD if isinstance(choose, Bounded) and choose.is_overdue else policy.name
            turn.chosen.append(Chosen(choice.verb, choice.job, parts, by, *explained))
            return True
        if view.clock[0].illegal > illegal:
            turn.fault = "illegal", f"policy {policy.name} made an illegal choice: {_in_words(choice)}."
        return False


def standing_after(scene: Scene, chosen: Sequence[Chosen], held: frozenset[int]) -> frozenset[tuple[str, bool]]:
    """Which jobs hold a place after these choices, which jobs are not asked about, and which nodes are down."""
    there = {job.id: job.state in PLACES for job in scene.live}
    for each in chosen:
        there[scene.live[each.job].id] = each.verb == START
    aside = {(f"held {scene.live[j].id}", True) for j in held}
    down = {(f"down {node}", True) for node in scene.snapshot.down}
    return frozenset((*there.items(), *aside, *down))


def numbered(scene: Scene, kept: Mapping[str, tuple[str, ...]]) -> dict[int, tuple[int, ...]]:
    """The reservations with numbers instead of names of jobs and nodes; unknown names are left out."""
    numbers = {node.name: n for n, node in enumerate(scene.plan.cluster.nodes)}
    return {
        scene.index[id]: tuple(numbers[name] for name in names)
        for id, names in kept.items()
        if id in scene.index and all(name in numbers for name in names)
    }


def nodes_named(scene: Scene, kept: Mapping[str, tuple[str, ...]]) -> Ints:
    """The numbers of all reserved nodes."""
    return nodes_of(numbered(scene, kept))


def kept_by_name(scene: Scene, choose: Any) -> Reservations:
    """The reservations of a policy for jobs that have waited too long, by name."""
    if not isinstance(choose, Bounded):
        return Reservations()
    names = [node.name for node in scene.plan.cluster.nodes]
    return Reservations(
        {scene.live[j].id: tuple(names[n] for n in nodes) for j, nodes in choose.kept.nodes.items()},
        tuple(scene.live[j].id for j in choose.kept.hopeless),
    )


def _in_words(choice: Choice) -> str:
    """A choice as text for the log."""
    if choice.verb == RESIZE:
        return f"resize job {choice.job} to {choice.site} GPUs, which it may not have"
    verb = {START: "start", STOP: "stop", WAIT: "wait"}.get(choice.verb, f"verb {choice.verb}")
    return f"{verb} job {choice.job} at site {choice.site}"
