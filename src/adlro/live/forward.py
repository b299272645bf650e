"""Play a view forward on a copy: the policy keeps deciding, with the engine and the rules of the simulator."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from scipy.special import ndtr, ndtri

from adlro.core.copying import copied
from adlro.core.driver import Driver, truth_from_here
from adlro.core.engine import Truth
from adlro.core.policy import Policy
from adlro.core.tables import DONE, STARTED, Floats, Table, View
from adlro.live.predicting import TENTH
from adlro.live.scene import Scene, expected_work, log_length, prepare_policy

FEW_EVENTS: Final = 64
"""The clock is read for the first time after this many events."""

ALMOST: Final = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class Played:
    """The result: when each job first started and ended, in the view's time; NaN if that was not reached."""

    start: Floats  # [J]
    end: Floats  # [J]
    is_whole: bool  # played to the end; False if time ran out


def usual_work(view: View) -> tuple[Floats, Floats]:
    """The expected work of each job of a view, and how much of it is done."""
    work, done = np.zeros(len(view.jobs)), np.zeros(len(view.jobs))
    expected_work(view, work, done)
    return work, done


def drawn_work(scene: Scene, view: View, random: np.random.Generator) -> Floats:
    """One random draw of the work of each job from its interval; for a running job, given the work that is done."""
    usual, done = usual_work(view)
    low, middle, high = np.log(np.maximum(scene.predicted, 1e-3)).T
    below, above = np.maximum(middle - low, 1e-3) / TENTH, np.maximum(high - middle, 1e-3) / TENTH
    reached = np.log(np.maximum(done, 1e-9)) - middle
    least = np.where(done > 0.0, ndtr(reached / np.where(reached < 0.0, below, above)), 0.0)
    place = least + (1.0 - least) * random.random(len(done))
    z = ndtri(np.minimum(place, ALMOST))
    work = np.exp(middle + z * np.where(z < 0.0, below, above))
    # A job that has run beyond its interval cannot be drawn: the rule for estimates applies.
    return np.where((least >= ALMOST) | (work <= done), usual, work)


def play_forward(
    view: View,
    work: Floats,
    policy: Policy,
    seconds: float,
    seed: int = 0,
    monotonic: Callable[[], float] = time.perf_counter,
) -> Played:
    """Play a copy of the view until every job has ended, or this many seconds of real time are over."""
    world = copied(view)
    prepare_policy(world, policy, seed)
    driver = Driver(world, truth_from_here(world, work, log_length(world), policy.preemptive), policy, seed)
    truth = driver.truth
    start, end = np.full(len(work), np.nan), np.full(len(work), np.nan)
    until = monotonic() + seconds
    events, few = truth.events, FEW_EVENTS
    while True:
        # Compiled code cannot look at the clock: a short log makes it come back, a longer one while there is time.
        room = int(world.clock[0].running) + 2 * len(world.sites) + 16 + few
        driver.truth = truth._replace(events=cast(Table, events[:room].view(np.recarray)))
        began = monotonic()
        is_over = driver.run_until_full(lambda: monotonic() >= until)
        _note(driver.truth, start, end)
        now = monotonic()
        if is_over or now >= until:
            return Played(start, end, is_over)
        if now - began < (until - now) / 8:
            few = min(2 * few, len(events))
        elif now - began > (until - now) / 2:
            few = max(few // 2, 16)


def _note(truth: Truth, start: Floats, end: Floats) -> None:
    """Take starts and ends from the log, and empty it."""
    count = int(truth.progress[0].events)
    what, job, at = (truth.events[name][:count] for name in ("what", "job", "time"))
    began, ended = what == STARTED, what == DONE
    # Backwards: of several starts of one job the first counts.
    again = ~np.isnan(start)
    first = start.copy()
    first[job[began][::-1]] = at[began][::-1]
    start[:] = np.where(again, start, first)
    end[job[ended]] = at[ended]
    truth.progress[0].events = 0
