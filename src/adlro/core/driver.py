"""The run driver: advances the clock, asks the policy, applies its choices, and keeps the log.

All Python code that plays a cluster forward uses it: runs, look-ahead, forecasts, the live guard, replays of a record.
Compiled code has the same verbs (`advance`, `is_asked`, `apply`) and the same loop (`drive`) in `engine.py`.
"""

from collections.abc import Callable
from typing import Final, Protocol, final

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled_alone
from adlro.core.engine import (
    DECIDE,
    LIVE,
    LOG_FULL,
    OVER,
    PROGRESS,
    Truth,
    advance,
    is_asked,
    log_is_full,
    play,
    resume,
    set_asked,
)
from adlro.core.engine import apply as apply_choice
from adlro.core.errors import PolicyError
from adlro.core.heat import next_question_heated, play_heated
from adlro.core.policy import Choose, Policy
from adlro.core.tables import DISTURBANCE, EVENT, HEAT, NOBODY, Choice, Floats, Table, View, records


class Player(Protocol):
    """Plays a run instead of `engine.play`, and sees what has happened before the first choice at each moment."""

    def play(self, view: View, truth: Truth, choose: Choose) -> int:
        """Like `engine.play`, but calls `look` before the first choice at each moment."""

    def look(self, view: View, truth: Truth) -> None:
        """See what has happened. It may change what policies are told about the jobs, and nothing else."""


def never() -> bool:
    """Never stop early."""
    return False


@final
class Driver:
    """One run of a policy on a view. When the log is full, `truth` is replaced by a copy with a longer log."""

    def __init__(self, view: View, truth: Truth, policy: Policy, seed: int = 0, player: Player | None = None) -> None:
        self.view, self.truth, self.policy = view, truth, policy
        self._seed, self._player = seed, player
        self._choose: Choose | None = None

    @property
    def truth(self) -> Truth:
        """What will come true, and the log."""
        return self._truth

    @truth.setter
    def truth(self, truth: Truth) -> None:
        self._truth = truth
        self._next_question = quick_call(next_question_heated if len(truth.heat) else next_question, self.view, truth)
        self._carry_out = quick_call(carry_out, self.view, truth)

    @property
    def is_asked(self) -> bool:
        """Whether the policy has to choose before the clock moves on."""
        return bool(is_asked(self.truth))

    def advance(self) -> bool:
        """Move the clock until the policy is asked; False if the run is over."""
        while (status := self._next_question()) != OVER:
            if status != LOG_FULL:
                return True
            self.truth = with_longer_log(self.truth)
        return False

    def make(self) -> Choose:
        """The function that chooses in this run. For a policy in plain Python it is made once."""
        if self._choose is None:
            self._choose = self.policy.choose or made(self.policy, self.view, self._seed)
        return self._choose

    def ask(self) -> Choice:
        """What the policy chooses now. Nothing is applied."""
        return _checked(self.make()(self.view), self.policy.name)

    def apply(self, choice: Choice) -> bool:
        """Apply a choice; True if it was a start, a stop or a resize and was carried out."""
        if log_is_full(self.view, self.truth):
            self.truth = with_longer_log(self.truth)
        return bool(self._carry_out(choice))

    def run(self) -> None:
        """Play to the end."""
        while not self.run_until_full():
            self.truth = with_longer_log(self.truth)

    def run_until_full(self, stop: Callable[[], bool] = never) -> bool:
        """Play until the run is over (True) or the log is full (False). `stop()` also ends a plain Python policy."""
        heated = len(self.truth.heat) > 0
        if self.policy.choose is not None and not (heated and self._player is not None):
            playing = play_heated if heated else play if self._player is None else self._player.play
            return playing(self.view, self.truth, self.policy.choose) == OVER
        while not stop():
            status = self._next_question()
            if status != DECIDE:
                return status == OVER
            if self._player is not None and self.truth.progress[0].choices == 0:
                self._player.look(self.view, self.truth)
            self._carry_out(self.ask())
        return False


@compiled_alone
def next_question(view: View, truth: Truth) -> int:
    """Like `engine.advance`, but also LOG_FULL if the log might have no room for the answer.

    One call from Python instead of two.
    """
    status = advance(view, truth)
    if status == DECIDE and log_is_full(view, truth):
        return LOG_FULL
    return status


@compiled_alone
def carry_out(view: View, truth: Truth, choice: Choice) -> bool:
    """As `engine.apply`."""
    return apply_choice(view, truth, choice)


def made(policy: Policy, view: View, seed: int) -> Choose:
    """The `choose` function of a policy in plain Python."""
    assert policy.make is not None
    return policy.make(view, seed)


def _checked(answer: Choice, name: str) -> Choice:
    """The answer of a policy in plain Python, converted to exactly the types that compiled code expects."""
    try:
        verb, job, site, until = answer
        return Choice(int(verb), int(job), int(site), float(until))
    except (TypeError, ValueError, OverflowError):
        raise PolicyError(f"policy {name!r} answered {answer!r}; expected a Choice(verb, job, site, until).") from None


NOTHING_HAPPENS: Final = records(DISTURBANCE, 0)
NO_HEAT: Final = records(HEAT, 0)
UNREAD: Final = np.zeros((0, 0))
"""The bandwidth that jobs use, where nobody reads it."""


# ---- the truth of a run ------------------------------------------------------------------------------------------


def new_truth(
    view: View,
    work: Floats,
    events: int,
    preemptive: bool,
    disturbances: Table = NOTHING_HAPPENS,
    heat: Table = NO_HEAT,
    rate: Floats | None = None,
    bandwidth: Floats = UNREAD,
) -> Truth:
    """The data that policies may not see, for jobs with this work. No job runs yet, and the policy is not asked.

    `rate` is how fast jobs really run, if that is not what the view says. `bandwidth` is what they use of the memory
    bandwidth of their GPUs, if policies are to see how much is left.
    """
    count = len(view.jobs)
    truth = Truth(
        work=work,
        live=records(LIVE, count + 1),
        heap=np.zeros(count + 1, np.int32),
        factor=np.ones(max(1, len(view.gpus))),
        disturbances=disturbances,
        events=records(EVENT, events),
        progress=records(PROGRESS, 1),
        heat=heat,
        rate=view.rate if rate is None else rate,
        bandwidth=bandwidth,
    )
    truth.progress[0].free_slot = NOBODY
    truth.progress[0].asked_when_none_waits = preemptive
    if view.clock[0].paced:  # GPUs are expected to go on as they were measured
        truth.factor[: len(view.gpus)] = view.gpus.pace
        truth.progress[0].worn = 1  # so that paces are measured
    return truth


def truth_from_here(view: View, work: Floats, events: int, preemptive: bool) -> Truth:
    """Like `new_truth`, for a view with running jobs: each ends when its work is done. The policy is asked now."""
    truth = new_truth(view, work, events, preemptive)
    go_on(view, truth)
    return truth


@compiled_alone
def go_on(view: View, truth: Truth) -> None:
    """Compute when each running job ends, and ask the policy."""
    for i in range(view.clock[0].running):
        resume(view, truth, view.running[i], i)
    set_asked(view, truth, True)


def with_longer_log(truth: Truth) -> Truth:
    """A copy of the truth with room for twice as many events."""
    longer = records(EVENT, 2 * len(truth.events) + 2 * len(truth.live))
    longer[: len(truth.events)] = truth.events
    return truth._replace(events=longer)
