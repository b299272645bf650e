"""Predictions while a run goes on: a job is guessed when it is submitted, and learnt when it has ended, not before.

What is learnt is what anybody could have measured, from the log of events alone: when a job began and ended, and how
fast the place is where it stood. Its true work is never read, nor is anything of a job that is still to come.

Policies are told the expected runtime of a job that waits. Of a job that runs they are told more with time: runtimes
have long tails, and the longer a job has run the longer it will still run. docs/prediction.md has what was measured.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np
from numba import types

from adlro.core.compiled import compiled, compiled_alone, compiled_with
from adlro.core.engine import TRUTH_TYPE, Truth, disturb, drive
from adlro.core.policy import CHOOSE_TYPE, FLOATS, FLOATS_2D, VIEW_TYPE, Choose, table_type
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import in_queue
from adlro.core.tables import DONE, FAILED, OVERRAN, REFUSED, STARTED, STOPPED, Floats, Table, View
from adlro.predict import expected, habits
from adlro.predict.following import NO_LIMIT, SHORTEST_S, TRAIT

MEDIAN: Final = 0.1
LIMIT: Final = 0.2
"""What is told is the geometric mean of the expected runtime, the median by habits and the limit, with these weights of
the last two. For a job without a limit the longest stands that anybody gave so far; if nobody did there is no third."""

_LATE: Final = 3.5
"""A job is expected to run on for as long as it has run and was expected to (a Pareto law with the exponent 2). 95 % of
such jobs end in so many times that: who may not stop jobs and asks when a place is free is told this end. Told the
mean, he would keep GPUs idle for jobs that do not end."""

ANEW: Final = 0.1
"""Of a job that runs, policies are told anew when it has run on for this share of what it ran and was expected to."""

AT_A_LOOK: Final = 16
"""Waiting jobs that are guessed anew at each look, in turn: what has ended since they came is worth knowing."""

EVENTS_READ: Final = 0
ARRIVED: Final = 1
TURN: Final = 2
"""Places in Online.counts."""


class Online(NamedTuple):
    """A predictor in a run: what it has learnt, and what it has seen of each job. Seconds of work are on the reference
    model."""

    traits: Table  # TRAIT [J]
    state: habits.HabitState
    told: habits.PendingGuesses
    scratch: habits.GuessScratch
    means: expected.ExpectedState
    longest: Floats  # [1] s, the longest limit of a job that has come; 0: nobody gave one
    said: Floats  # [J] s that the job was said to run when it was submitted
    began: Floats  # [J] when the work of this stretch began; NaN: it never did
    speed: Floats  # [J] seconds of work that it does in one second where it stands
    worked: Floats  # [J] seconds of work that were seen done and kept, up to `began`
    due: Floats  # [J] when policies are told anew how long it will run
    counts: habits.Counts  # [3] events read, jobs that have arrived, whose turn it is in the queue


@compiled
def _units_of(view: View, j: int) -> float:
    """GPUs of a job, with fractions: its work is so many times its seconds. A job without GPUs counts as one."""
    job = view.jobs[j]
    return job.gpus * (job.share / WHOLE_GPU) if job.gpus > 0 else 1.0


@compiled
def blended(mean_s: float, middle: float, limit_s: float) -> float:
    """Seconds that policies are told of a job that has not run: the only place that weighs what is known of it.

    The geometric mean of the expected runtime, the median by habits (its logarithm) and the limit; 0: there is none.
    """
    mean = math.log(mean_s)
    told = (1.0 - MEDIAN) * mean + MEDIAN * middle
    if limit_s > 0.0:
        told += LIMIT * (math.log(limit_s) - mean)
    return max(math.exp(told), SHORTEST_S)


@compiled
def welcome(view: View, online: Online, j: int) -> None:
    """Guess how long a job will run that has not run yet, and tell."""
    job = online.traits[j]
    habits.guess(online.state, online.told, online.scratch, j, job)
    mean_s = expected.expect(online.means, job, view.clock[0].now)
    limit = max(job.limit, SHORTEST_S) if job.limit < NO_LIMIT else online.longest[0]
    online.longest[0] = max(online.longest[0], limit)
    online.said[j] = blended(mean_s, online.told.middle[j], limit)
    view.jobs[j].estimate = online.said[j] * _units_of(view, j)


@compiled_alone
def tell_live(
    means: expected.ExpectedState, traits: Table, middle: Floats, longest: Floats, now: float, seconds: Floats
) -> None:
    """As `welcome`, for jobs of a live cluster: seconds of work of each, from the logarithm of its median by habits."""
    for j in range(len(traits)):
        limit = max(traits[j].limit, SHORTEST_S) if traits[j].limit < NO_LIMIT else longest[0]
        longest[0] = max(longest[0], limit)
        seconds[j] = blended(expected.expect(means, traits[j], now), middle[j], limit)


@compiled_alone
def learn_live(means: expected.ExpectedState, traits: Table, seconds: Floats) -> None:
    """Learn how long jobs of a live cluster ran that have ended, in this order."""
    for j in range(len(traits)):
        expected.learn_runtime(means, traits[j], seconds[j])


@compiled_alone
def count_live(means: expected.ExpectedState, traits: Table, speeds: Floats, moments: Floats) -> None:
    """Count the time of jobs that run on a live cluster; with negative speeds, take it back."""
    for j in range(len(traits)):
        expected.count(means, traits[j], speeds[j], moments[j])


@compiled
def tell_left(view: View, online: Online, j: int, ran: float, times: float) -> None:
    """Tell how long a job will run that has run already; not beyond its limit, as long as it is within it."""
    seconds = ran + times * (online.said[j] + ran)
    limit = view.jobs[j].limit
    if ran < limit:
        seconds = min(seconds, limit)
    view.jobs[j].estimate = seconds * _units_of(view, j)


@compiled
def beginning(online: Online, j: int) -> float:
    """When the job would have begun, had it done all its work at the speed that it has now."""
    return online.began[j] - online.worked[j] / online.speed[j]


@compiled
def _begin(view: View, online: Online, j: int, s: int, time: float) -> None:
    """A job has been started: its time counts from now on."""
    started_before = not math.isnan(online.began[j])
    online.began[j] = time + (view.clock[0].restart if started_before else 0.0)
    online.speed[j] = view.rate[view.jobs[j].kind, view.sites[s].form] / _units_of(view, j)
    online.due[j] = time
    expected.count(online.means, online.traits[j], online.speed[j], beginning(online, j))


@compiled
def pause(online: Online, j: int, time: float) -> None:
    """A job runs no longer: what it has done counts."""
    expected.count(online.means, online.traits[j], -online.speed[j], beginning(online, j))
    online.worked[j] += max(0.0, time - online.began[j]) * online.speed[j]


@compiled
def _look(view: View, truth: Truth, online: Online) -> None:
    """Learn from jobs that have ended since the last look, guess those that have come, and tell of those that run."""
    counts, now = online.counts, view.clock[0].now
    while counts[EVENTS_READ] < truth.progress[0].events:
        event = truth.events[counts[EVENTS_READ]]
        counts[EVENTS_READ] += 1
        j = event.job
        if event.what == STARTED:
            _begin(view, online, j, event.site, event.time)
        elif event.what == STOPPED or event.what == FAILED:
            pause(online, j, event.time)
            if event.what == FAILED:
                online.worked[j] = max(0.0, online.worked[j] - event.value / _units_of(view, j))
            tell_left(view, online, j, online.worked[j], 1.0)
        elif event.what == DONE or event.what == OVERRAN:
            pause(online, j, event.time)
            habits.learn_runtime(online.state, online.told, online.scratch, j, online.traits[j], online.worked[j])
            expected.learn_runtime(online.means, online.traits[j], online.worked[j])
    while counts[ARRIVED] < view.clock[0].arrived:
        j = counts[ARRIVED]
        counts[ARRIVED] += 1
        if view.runs[j].state != REFUSED:
            welcome(view, online, j)
    for _ in range(min(AT_A_LOOK, view.clock[0].queued)):
        j = in_queue(view, counts[TURN] % view.clock[0].queued)
        counts[TURN] += 1
        if math.isnan(online.began[j]):
            welcome(view, online, j)
    # Who may stop jobs weighs what is left of one against another; who may not asks when a place is free.
    times = _LATE if truth.progress[0].asked_when_none_waits == 0 else 1.0
    for i in range(view.clock[0].running):
        j = view.running[i]
        if online.due[j] <= now:
            ran = online.worked[j] + max(0.0, now - online.began[j]) * online.speed[j]
            tell_left(view, online, j, ran, times)
            online.due[j] = now + ANEW * (online.said[j] + ran) / online.speed[j]


CODES = types.Array(types.uint64, 1, "C")
CODES_2D = types.Array(types.uint64, 2, "C")
COUNTS = types.Array(types.int64, 1, "C")
COUNTS_2D = types.Array(types.int64, 2, "C")
FLOATS_3D = types.Array(types.float64, 3, "C")

HABITS_TYPE = types.NamedTuple(
    [
        *[CODES_2D, COUNTS_2D, COUNTS_2D, FLOATS_3D, FLOATS_3D, FLOATS_2D],
        *[CODES_2D, COUNTS_2D, COUNTS_2D, FLOATS_2D, FLOATS_2D, FLOATS],
        *[FLOATS_2D, FLOATS_2D, FLOATS, COUNTS],
    ],
    habits.HabitState,
)
ONLINE_TYPE = types.NamedTuple(
    [
        table_type(TRAIT),
        HABITS_TYPE,
        types.NamedTuple([FLOATS_2D, COUNTS_2D, FLOATS, FLOATS], habits.PendingGuesses),
        types.NamedTuple([CODES, FLOATS, FLOATS], habits.GuessScratch),
        types.NamedTuple([CODES_2D, COUNTS_2D, COUNTS_2D, *[FLOATS_2D] * 4, COUNTS, CODES], expected.ExpectedState),
        *[FLOATS] * 6,
        COUNTS,
    ],
    Online,
)


@compiled_with(types.int64(VIEW_TYPE, TRUTH_TYPE, CHOOSE_TYPE, ONLINE_TYPE))
def _play(view: View, truth: Truth, choose: Choose, online: Online) -> int:
    """As engine.play, with a look before the first choice at each moment."""
    return drive(view, truth, choose, _look, online, disturb)


@compiled_with(types.void(VIEW_TYPE, TRUTH_TYPE, ONLINE_TYPE))
def look_once(view: View, truth: Truth, online: Online) -> None:
    """As look, for Python."""
    _look(view, truth, online)


@final
@dataclass(frozen=True, slots=True)
class Predicting:
    """Plays one run in which policies are told what is predicted. The jobs of the view must be the run's own."""

    online: Online

    @classmethod
    def new(cls, traits: Table) -> "Predicting":
        """A player for a run of these jobs that has learnt nothing."""
        count = len(traits)
        keys = 1 << min(16, max(6, (2 * count - 1).bit_length()))
        return cls(
            Online(
                traits, habits.empty(keys), habits.nothing_told(count), habits.room_to_work(), expected.empty(keys),
                np.zeros(1), np.zeros(count), np.full(count, np.nan), np.zeros(count), np.zeros(count),
                np.zeros(count), np.zeros(3, np.int64),
            )
        )  # fmt: skip

    def play(self, view: View, truth: Truth, choose: Choose) -> int:
        """As engine.play, with a look before the first choice at each moment."""
        return _play(view, truth, choose, self.online)

    def look(self, view: View, truth: Truth) -> None:
        """Learn what has ended, and tell what is predicted of jobs that have come and of those that run."""
        look_once(view, truth, self.online)
