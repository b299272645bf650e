"""The expected runtime: the mean over similar jobs, including those that still run.

A policy that orders jobs by length needs the mean, not the median: one long job mistaken for a short one makes all
others wait. The jobs that have ended are the shorter ones of those that were started, so running jobs must count too.

A cascade of keys goes from all jobs over the limit, the user and the name to all of these together. Each key stores the
share of their limits that its jobs ran, and at each level

    share = (sum of shares, over jobs that ended and jobs that run, + PRIOR · share one level up) / (ended + PRIOR)

This is how a rate is estimated when some have not ended. All state is in arrays of fixed size.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.tables import NOBODY, Floats, Table
from adlro.predict.following import NO_LIMIT, SHORTEST_S, Events
from adlro.predict.habits import Codes, Counts, find, mixed, place_for_key

LEVELS: Final = 6
PRIOR: Final = 6.0
"""The value of the level above counts as much as this many jobs of the key itself."""

DECAY: Final = 0.995
"""The weight of a job is multiplied by this with every later job of its key."""

NO_LIMIT_S: Final = 3600.0
"""Used as the limit of jobs without one; their share of it is learnt at the first level."""


class ExpectedState(NamedTuple):
    """What has been learnt, and what runs. Axes: L levels, K keys."""

    tags: Codes  # [L, K] 0: free
    times: Counts  # [L, K] 0: new
    touched: Counts  # [L, K] number of jobs learnt when it last changed
    share: Floats  # [L, K] decaying sum of the shares of jobs that ended …
    ended: Floats  # [L, K] … and of their number
    pace: Floats  # [L, K] sum of 1 / limit of running jobs …
    since: Floats  # [L, K] … and of their start / limit, so that their share so far is now · pace − since
    learnt: Counts  # [1]
    key: Codes  # [L] keys of the current job


@compiled
def _whole(job: Table) -> float:
    """The seconds that shares refer to: the job's limit."""
    return max(job.limit, SHORTEST_S) if job.limit < NO_LIMIT else NO_LIMIT_S


@compiled
def _set_keys(key: Codes, job: Table) -> None:
    """Fill in the key of a job at each level."""
    user, group, gpus = np.uint64(job.user), np.uint64(job.group), np.uint64(job.gpus + 1)
    limit = np.uint64(job.limit + 1.0) if job.limit < NO_LIMIT else np.uint64(0)
    one = np.uint64(1)
    key[0] = mixed(one, np.uint64(0 if limit == 0 else 2))
    key[1] = mixed(np.uint64(3), limit)
    key[2] = user
    key[3] = mixed(user, limit)
    key[4] = group
    key[5] = mixed(mixed(group, gpus), limit)
    for level in range(LEVELS):
        key[level] |= one  # 0 means an empty slot


@compiled
def expect(state: ExpectedState, job: Table, now: float) -> float:
    """The expected seconds of a job, from what is known now."""
    _set_keys(state.key, job)
    share = 1.0
    for level in range(LEVELS):
        place = find(state.tags, level, state.key[level])
        if place != NOBODY:
            running = max(0.0, now * state.pace[level, place] - state.since[level, place])
            seen = state.share[level, place] + running
            share = (seen + PRIOR * share) / (state.ended[level, place] + PRIOR)
    return max(share * _whole(job), SHORTEST_S)


@compiled
def _place_of(state: ExpectedState, level: int) -> int:
    """The slot of the current key; a new key is empty."""
    place = place_for_key(state.tags, state.times, state.touched, level, state.key[level])
    if state.times[level, place] == 0:
        state.times[level, place] = 1
        state.touched[level, place] = state.learnt[0]
        state.share[level, place] = 0.0
        state.ended[level, place] = 0.0
        state.pace[level, place] = 0.0
        state.since[level, place] = 0.0
    return place


@compiled
def count(state: ExpectedState, job: Table, speed: float, moment: float) -> None:
    """Count the time of a job from `moment` on, at this speed; the same call with −speed undoes it.

    If it has run before, the moment lies earlier by that time.
    """
    _set_keys(state.key, job)
    pace = speed / _whole(job)
    for level in range(LEVELS):
        place = _place_of(state, level)
        state.pace[level, place] += pace
        state.since[level, place] += pace * moment


@compiled
def learn_runtime(state: ExpectedState, job: Table, seconds: float) -> None:
    """Learn the runtime of a job that has ended."""
    _set_keys(state.key, job)
    state.learnt[0] += 1
    share = max(seconds, SHORTEST_S) / _whole(job)
    for level in range(LEVELS):
        place = _place_of(state, level)
        state.touched[level, place] = state.learnt[0]
        state.share[level, place] = state.share[level, place] * DECAY + share
        state.ended[level, place] = state.ended[level, place] * DECAY + 1.0


@compiled_alone
def follow(state: ExpectedState, traits: Table, seconds: Floats, events: Events, out: Floats) -> None:
    """Predict and learn, event by event, as if every job started when it was submitted."""
    for event in events:
        if event >= 0:
            now = traits[event].submit
            out[event] = expect(state, traits[event], now)
            count(state, traits[event], 1.0, now)
        else:
            j = ~event
            if not math.isnan(out[j]):  # NaN: submitted before we began
                count(state, traits[j], -1.0, traits[j].submit)
            learn_runtime(state, traits[j], seconds[j])


def empty(keys: int) -> ExpectedState:
    """An empty state with room for `keys` keys at each level."""
    return ExpectedState(
        tags=np.zeros((LEVELS, keys), np.uint64),
        times=np.zeros((LEVELS, keys), np.int64),
        touched=np.zeros((LEVELS, keys), np.int64),
        share=np.zeros((LEVELS, keys)),
        ended=np.zeros((LEVELS, keys)),
        pace=np.zeros((LEVELS, keys)),
        since=np.zeros((LEVELS, keys)),
        learnt=np.zeros(1, np.int64),
        key=np.zeros(LEVELS, np.uint64),
    )
