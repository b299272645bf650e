"""The simulator: a policy on a cluster from the first job to the last.

Compiled policies are played by `engine.play`; those in plain Python are asked step by step, by the same engine.
Whoever must see what happens before policies decide, as a predictor does, plays the run in the engine's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from adlro.core.engine import LIVE, LOG_FULL, OVER, PROGRESS, Truth, advance, apply, log_is_full, play
from adlro.core.errors import PolicyError
from adlro.core.policy import Choose, Policy
from adlro.core.tables import (
    DISTURBANCE,
    EVENT,
    FOREVER,
    NOBODY,
    Choice,
    Floats,
    Table,
    View,
    records,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How strict the world is."""

    restart_s: float = 30.0
    kill_at_limit: bool = False
    window: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: the log, and what was left."""

    events: Table  # EVENT
    unfinished: int
    illegal: int


class Player(Protocol):
    """Plays one run, and sees what has happened before the first choice at each moment."""

    def play(self, view: View, truth: Truth, choose: Choose) -> int:
        """As engine.play, with a look before the first choice at each moment."""

    def look(self, view: View, truth: Truth) -> None:
        """See what has happened; it may change what policies are told of the jobs, and nothing else."""


def simulate(
    view: View,
    work: Floats,
    policy: Policy,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    disturbances: Sequence[tuple[float, int, int, int, float]] = (),
    seed: int = 0,
    player: Player | None = None,
) -> Outcome:
    """Run a policy on a freshly packed view to the end, and return everything that happened."""
    truth = prepare(view, work, policy, settings, disturbances, seed)
    if policy.choose is not None:
        playing = play if player is None else player.play
        while playing(view, truth, policy.choose) == LOG_FULL:
            truth = with_longer_log(truth)
    else:
        assert policy.make is not None
        choose = policy.make(view, seed)
        while (status := advance(view, truth)) != OVER:
            if status == LOG_FULL or log_is_full(view, truth):
                truth = with_longer_log(truth)
                continue
            if player is not None and truth.progress[0].choices == 0:
                player.look(view, truth)
            going_on = apply(view, truth, checked(choose(view), policy.name))
            if going_on and view.clock[0].queued == 0 and not policy.preemptive:
                truth.progress[0].deciding = 0
    clock, progress = view.clock[0], truth.progress[0]
    events = cast(Table, truth.events[: progress.events])
    return Outcome(events, int(clock.queued + clock.running), int(clock.illegal))


def checked(answer: Choice, name: str) -> Choice:
    """The answer of a policy in plain Python, with exactly the types that the compiled code was compiled for."""
    try:
        verb, job, site, until = answer
        return Choice(int(verb), int(job), int(site), float(until))
    except (TypeError, ValueError, OverflowError):
        raise PolicyError(f"policy {name!r} answered {answer!r}; expected a Choice(verb, job, site, until).") from None


def prepare(
    view: View,
    work: Floats,
    policy: Policy,
    settings: Settings,
    disturbances: Sequence[tuple[float, int, int, int, float]],
    seed: int,
) -> Truth:
    """Set the clock, give the policy what it needs, and make the tables that it may not see."""
    clock = view.clock[0]
    clock.restart, clock.window = settings.restart_s, settings.window
    clock.wake = FOREVER
    clock.random = seed * 7919 % 2147483646 + 1
    if policy.prepare is not None:
        policy.prepare(view)
    jobs = len(view.jobs)
    happening = records(DISTURBANCE, len(disturbances))
    for row, (time, what, node, gpu, factor) in zip(happening, sorted(disturbances, key=first), strict=True):
        row.time, row.what, row.node, row.gpu, row.factor = time, what, node, gpu, factor
    truth = Truth(
        work=work,
        live=records(LIVE, jobs + 1),
        heap=np.zeros(jobs + 1, np.int32),
        factor=np.ones(max(1, len(view.gpus))),
        disturbances=happening,
        # Two events for each job and a few more; memory that is never written is never used.
        events=records(EVENT, 3 * jobs + 2 * len(view.sites) + 1024),
        progress=records(PROGRESS, 1),
    )
    progress = truth.progress[0]
    progress.free_slot = NOBODY
    progress.kill = settings.kill_at_limit
    progress.asked_when_none_waits = policy.preemptive
    return truth


def first(row: tuple[float, int, int, int, float]) -> float:
    """The time of a disturbance."""
    return row[0]


def with_longer_log(truth: Truth) -> Truth:
    """The same truth with room for twice as many events."""
    longer = records(EVENT, 2 * len(truth.events) + 2 * len(truth.live))
    longer[: len(truth.events)] = truth.events
    return truth._replace(events=longer)
