"""Predictions during a run: a job is predicted when it is submitted, and learnt only when it has ended.

It only learns what could be measured, from the event log: when a job started and ended, and how fast its site is. It
never reads the true work, or anything about jobs that are still to come.

For waiting jobs, policies get the expected runtime. For running jobs the estimate grows with time: runtimes have long
tails, so the longer a job has run, the longer it will still run. docs/prediction.md has the measurements.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np
from numba import types

from adlro.core.compiled import compiled, compiled_alone, compiled_with
from adlro.core.engine import TRUTH_TYPE, Truth, disturb, drive, unheated
from adlro.core.policy import CHOOSE_TYPE, FLOATS, FLOATS_2D, VIEW_TYPE, Choose, table_type
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import in_queue, start_cost
from adlro.core.tables import DONE, FAILED, OVERRAN, REFUSED, STARTED, STOPPED, Floats, Table, View
from adlro.predict import expected, habits
from adlro.predict.following import NO_LIMIT, SHORTEST_S, TRAIT

MEDIAN: Final = 0.1
LIMIT: Final = 0.2
"""Weights of the habit median and of the limit in the geometric mean with the expected runtime.

A job without a limit uses the longest limit seen so far. If there is none, the mean has two terms.
"""

_LATE: Final = 3.5
"""A running job is expected to need as long again as it has run plus its first prediction (Pareto with exponent 2).

95 % of such jobs end within this multiple of that time. Policies that cannot stop jobs get this later end, because they
ask when a site becomes free. With the mean they would keep GPUs idle for jobs that do not end.
"""

ANEW: Final = 0.1
"""The estimate of a running job is updated when it has run on for this share of its run time plus first prediction."""

AT_A_LOOK: Final = 16
"""Waiting jobs predicted again at each look, in turn, because jobs that have ended since then give new information."""

EVENTS_READ: Final = 0
ARRIVED: Final = 1
TURN: Final = 2
"""Indices in Online.counts."""


class Online(NamedTuple):
    """A predictor in a run: what it has learnt, and what it has seen of each job.

    Seconds of work are on the reference model.
    """

    traits: Table  # TRAIT [J]
    state: habits.HabitState
    told: habits.PendingGuesses
    scratch: habits.GuessScratch
    means: expected.ExpectedState
    longest: Floats  # [1] s, the longest limit of any job so far; 0: none had one
    said: Floats  # [J] s, the prediction at submission
    began: Floats  # [J] when the work of this stretch began; NaN: it never started
    speed: Floats  # [J] seconds of work per second at its site
    worked: Floats  # [J] seconds of work seen done and kept, up to `began`
    due: Floats  # [J] when its estimate is updated next
    counts: habits.Counts  # [3] events read, jobs arrived, next position of the queue to predict again


@compiled
def _units_of(view: View, online: Online, j: int) -> float:
    """Number of GPUs that a job asked for, with fractions: work divided by seconds. A job without GPUs counts as 1."""
    gpus = online.traits[j].gpus
    return gpus * (view.jobs[j].share / WHOLE_GPU) if gpus > 0 else 1.0


@compiled
def blended(mean_s: float, middle: float, limit_s: float) -> float:
    """The seconds that policies get for a job that has not run: the only place that combines what is known about it.

    The geometric mean of the expected runtime, the habit median (`middle` is its logarithm) and the limit; a limit of 0
    means that there is none.
    """
    mean = math.log(mean_s)
    told = (1.0 - MEDIAN) * mean + MEDIAN * middle
    if limit_s > 0.0:
        told += LIMIT * (math.log(limit_s) - mean)
    return max(math.exp(told), SHORTEST_S)


@compiled
def welcome(view: View, online: Online, j: int) -> None:
    """Predict a job that has not run yet, and set its estimate."""
    job = online.traits[j]
    habits.guess(online.state, online.told, online.scratch, j, job)
    mean_s = expected.expect(online.means, job, view.clock[0].now)
    limit = max(job.limit, SHORTEST_S) if job.limit < NO_LIMIT else online.longest[0]
    online.longest[0] = max(online.longest[0], limit)
    online.said[j] = blended(mean_s, online.told.middle[j], limit)
    view.jobs[j].estimate = online.said[j] * _units_of(view, online, j)


@compiled_alone
def tell_live(
    means: expected.ExpectedState, traits: Table, middle: Floats, longest: Floats, now: float, seconds: Floats
) -> None:
    """Like `welcome`, for jobs of a live cluster: fills in seconds of work from the logarithm of the habit median."""
    for j in range(len(traits)):
        limit = max(traits[j].limit, SHORTEST_S) if traits[j].limit < NO_LIMIT else longest[0]
        longest[0] = max(longest[0], limit)
        seconds[j] = blended(expected.expect(means, traits[j], now), middle[j], limit)


@compiled_alone
def learn_live(means: expected.ExpectedState, traits: Table, seconds: Floats) -> None:
    """Learn the runtimes of jobs of a live cluster that have ended, in this order."""
    for j in range(len(traits)):
        expected.learn_runtime(means, traits[j], seconds[j])


@compiled_alone
def count_live(means: expected.ExpectedState, traits: Table, speeds: Floats, moments: Floats) -> None:
    """Count the time of jobs that run on a live cluster; negative speeds undo it."""
    for j in range(len(traits)):
        expected.count(means, traits[j], speeds[j], moments[j])


@compiled
def tell_left(view: View, online: Online, j: int, ran: float, times: float) -> None:
    """Set the estimate of a job that has already run: at most its limit, unless it has exceeded it."""
    seconds = ran + times * (online.said[j] + ran)
    limit = view.jobs[j].limit
    if ran < limit:
        seconds = min(seconds, limit)
    view.jobs[j].estimate = seconds * _units_of(view, online, j)


@compiled
def beginning(online: Online, j: int) -> float:
    """When the job would have started if it had done all its work at its current speed."""
    return online.began[j] - online.worked[j] / online.speed[j]


@compiled
def _begin(view: View, online: Online, j: int, s: int, time: float) -> None:
    """A job has started: count its time from now on."""
    started_before = not math.isnan(online.began[j])
    online.began[j] = time + start_cost(view, j, 1 if started_before else 0)
    online.speed[j] = view.rate[view.jobs[j].kind, view.sites[s].form] / _units_of(view, online, j)
    online.due[j] = time
    expected.count(online.means, online.traits[j], online.speed[j], beginning(online, j))


@compiled
def pause(online: Online, j: int, time: float) -> None:
    """A job no longer runs: keep the work that it has done."""
    expected.count(online.means, online.traits[j], -online.speed[j], beginning(online, j))
    online.worked[j] += max(0.0, time - online.began[j]) * online.speed[j]


@compiled
def _look(view: View, truth: Truth, online: Online) -> None:
    """Learn from jobs that have ended since the last look, predict new jobs, and update running ones."""
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
                online.worked[j] = max(0.0, online.worked[j] - event.value / _units_of(view, online, j))
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
    # Preemptive policies compare the work left of jobs; the others ask when a site becomes free.
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
    """Like `engine.play`, with a look before the first choice at each moment."""
    return drive(view, truth, choose, _look, online, disturb, unheated)


@compiled_with(types.void(VIEW_TYPE, TRUTH_TYPE, ONLINE_TYPE))
def look_once(view: View, truth: Truth, online: Online) -> None:
    """`_look`, for Python."""
    _look(view, truth, online)


@final
@dataclass(frozen=True, slots=True)
class Predicting:
    """Plays one run in which policies get predicted estimates. The jobs of the view must belong to this run only."""

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
        """Like `engine.play`, with a look before the first choice at each moment."""
        return _play(view, truth, choose, self.online)

    def look(self, view: View, truth: Truth) -> None:
        """Learn from jobs that have ended, and update the estimates of new and running jobs."""
        look_once(view, truth, self.online)
