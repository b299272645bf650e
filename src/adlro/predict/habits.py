"""Runtimes from habits: how long jobs with the same user, name, size or limit ran before, and which of these to trust.

Every level (user and name and size and limit; user and limit; user; …) stores the latest runtimes of each of its keys.
Each level makes three guesses: the last runtime, the median of the recent ones, and a moving average. The weight of a
guess depends on its recent errors, for this user and overall; the prediction is the weighted median. The interval is
the prediction plus and minus two widths that follow the errors, so that it has the promised coverage. All state is in
arrays of fixed size: new keys replace old ones, and compiled code can update it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.errors import UsageError
from adlro.core.tables import NOBODY, Floats, Table
from adlro.predict.following import NO_LIMIT, P10, P50, P90, SHORTEST_S, UNKNOWN_S, Events

_LEVELS: Final = 12
RELATIVE: Final = 9
"""From this level on the share of the limit is stored, not the runtime."""

GUESSES: Final = 3
_LIMIT: Final = _LEVELS * GUESSES
"""After the guesses of the levels there is one more: that the job runs up to its limit."""

EXPERTS: Final = _LIMIT + 1
_RECENT: Final = 16
"""Number of runtimes stored for a key."""

AGES: Final = 5
"""Age classes of keys: with 1, 2, up to 4, up to 16 and more runtimes. Their guesses have different errors."""

PROBES: Final = 8
_USERS: Final = 4096

LEAST_ERROR: Final = 0.02
"""The weight of a guess is (mean error + this) to the power of −4: half the error gives sixteen times the weight."""

USER_DECAY: Final = 0.98
OVERALL_DECAY: Final = 0.999
_PRIOR: Final = 10.0
"""The overall error of a guess counts as much as this many jobs of the user."""

LARGEST_ERROR: Final = 3.0
SPREAD_RATE: Final = 0.05
_QUANTILE_RATE: Final = 0.02
_BEYOND: Final = 0.09
"""Share of the jobs beyond each edge of the interval.

The promise is 0.1. But jobs that run longer than expected are learnt later than others, so the learnt jobs always look
slightly better than the truth.
"""

FIRST_STEPS: Final = 4.0
"""The edges of the interval move faster at first: by this divided by the number of jobs learnt."""

_LEAST_SPREAD: Final = 0.05
AVERAGE_RATE: Final = 0.1

Codes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


class HabitState(NamedTuple):
    """Everything that has been learnt. Axes: L levels, K keys, E guesses, A ages, U users."""

    tags: Codes  # [L, K] 0: free
    times: Counts  # [L, K] number of runtimes learnt
    touched: Counts  # [L, K] number of jobs learnt when it last changed
    recent: Floats  # [L, K, _RECENT] logarithms of seconds, or of the share of the limit
    ordered: Floats  # [L, K, _RECENT] the same in ascending order
    average: Floats  # [L, K]
    people: Codes  # [1, U]
    met: Counts  # [1, U]
    met_at: Counts  # [1, U]
    user_error: Floats  # [U, E] decaying sums of errors …
    user_weight: Floats  # [U, E] … and of their number
    spread: Floats  # [U] mean error of the prediction
    error: Floats  # [E, A]
    weight: Floats  # [E, A]
    edges: Floats  # [2] edges of the interval, in units of the spread
    learnt: Counts  # [1]


class PendingGuesses(NamedTuple):
    """The guesses for each job at its submission, kept until it ends."""

    guess: Floats  # [J, E] NaN: none
    age: Counts  # [J, L + 1]
    middle: Floats  # [J] the prediction; NaN: none yet
    spread: Floats  # [J]


class GuessScratch(NamedTuple):
    """Scratch arrays."""

    key: Codes  # [L]
    value: Floats  # [E]
    trust: Floats  # [E]


@compiled
def mixed(hash_: Any, value: Any) -> Any:
    """The hash combined with one more value."""
    h = np.uint64(hash_) ^ np.uint64(value)
    h ^= h << np.uint64(13)  # shifts only: uncompiled code would warn when a product overflows
    h ^= h >> np.uint64(7)
    h ^= h << np.uint64(17)
    return h


@compiled
def _set_keys(key: Codes, job: Table) -> None:
    """Fill in the key of a job at each level."""
    user, group, gpus = np.uint64(job.user), np.uint64(job.group), np.uint64(job.gpus + 1)
    limit = np.uint64(job.limit + 1.0) if job.limit < NO_LIMIT else np.uint64(0)
    cpus, memory = np.uint64(job.cpus), np.uint64(job.memory)
    one = np.uint64(1)
    key[0] = mixed(mixed(mixed(mixed(group, gpus), limit), cpus), memory)
    key[1] = mixed(group, gpus)
    key[2] = mixed(group, limit)
    key[3] = group
    key[4] = mixed(user, gpus)
    key[5] = mixed(user, limit)
    key[6] = user
    key[7] = mixed(mixed(one, gpus), limit)
    key[8] = one
    key[9] = mixed(group, gpus)
    key[10] = user
    key[11] = limit
    for level in range(_LEVELS):
        key[level] |= one  # 0 means an empty slot


@compiled
def find(tags: Codes, level: int, key: int) -> int:
    """The slot of a key, or NOBODY."""
    size = np.uint64(tags.shape[1] - 1)
    for probe in range(PROBES):
        place = np.int64(((np.uint64(key) >> np.uint64(8)) + np.uint64(probe)) & size)
        if tags[level, place] == key:
            return place  # type: ignore[return-value]
    return NOBODY


@compiled
def place_for_key(tags: Codes, count: Counts, touched: Counts, level: int, key: int) -> int:
    """The slot of a key. A new key takes an empty slot, or that of the key that has not learnt for the longest time."""
    size = np.uint64(tags.shape[1] - 1)
    oldest = np.int64(NOBODY)
    for probe in range(PROBES):
        place = np.int64(((np.uint64(key) >> np.uint64(8)) + np.uint64(probe)) & size)
        if tags[level, place] == key:
            return place  # type: ignore[return-value]
        if oldest == NOBODY or touched[level, place] < touched[level, oldest]:
            oldest = place
    tags[level, oldest] = key
    count[level, oldest] = 0
    return oldest  # type: ignore[return-value]


@compiled
def age_of(count: int) -> int:
    """The age class of a key with this many runtimes."""
    if count <= 2:
        return count - 1
    return 2 if count <= 4 else 3 if count <= 16 else 4


@compiled
def median(values: Floats, count: int) -> float:
    """The median of the first `count` values, which are sorted."""
    half = count // 2
    return values[half] if count % 2 else 0.5 * (values[half - 1] + values[half])


@compiled
def replaced(values: Floats, count: int, old: float, new: float) -> None:
    """Insert a value into `count` sorted values; if they are full, in place of an old one."""
    at = count
    if count == _RECENT:
        at = 0
        while values[at] != old:
            at += 1
        while at + 1 < _RECENT and values[at + 1] < new:
            values[at] = values[at + 1]
            at += 1
    while at > 0 and values[at - 1] > new:
        values[at] = values[at - 1]
        at -= 1
    values[at] = new


@compiled
def weigh(state: HabitState, scratch: GuessScratch, user: int, expert: int, age: int, value: float, used: int) -> float:
    """The weight of a guess, from its past errors. The guess is added to the scratch arrays."""
    mean = state.error[expert, age] / state.weight[expert, age]
    if user != NOBODY:
        mean = (state.user_error[user, expert] + _PRIOR * mean) / (state.user_weight[user, expert] + _PRIOR)
    squared = (mean + LEAST_ERROR) * (mean + LEAST_ERROR)
    trust = 1.0 / (squared * squared)
    scratch.value[used] = value
    scratch.trust[used] = trust
    return trust


@compiled
def weighted_median(scratch: GuessScratch, used: int, total: float) -> float:
    """The smallest value that has half of the weight at or below it. A few passes cost less than sorting."""
    low, high = -math.inf, math.inf
    middle = math.nan
    for i in range(used):
        pivot = scratch.value[i]
        if not low < pivot < high:
            continue
        below, there = 0.0, 0.0
        for k in range(used):
            trust = scratch.trust[k]
            below += trust if scratch.value[k] < pivot else 0.0
            there += trust if scratch.value[k] == pivot else 0.0
        middle = pivot
        if below >= total / 2.0:
            high = pivot
        elif below + there < total / 2.0:
            low = pivot
        else:
            break
    return middle


@compiled
def guess(state: HabitState, told: PendingGuesses, scratch: GuessScratch, j: int, job: Table) -> None:
    """The guesses of all levels for a job, and the prediction from them."""
    _set_keys(scratch.key, job)
    user = find(state.people, 0, scratch.key[6])
    has_limit = job.limit < NO_LIMIT
    log_limit = math.log(max(job.limit, SHORTEST_S)) if has_limit else 0.0
    total, used = 0.0, 0
    for level in range(_LEVELS):
        for expert in range(level * GUESSES, (level + 1) * GUESSES):
            told.guess[j, expert] = np.nan
        place = find(state.tags, level, scratch.key[level])
        if place == NOBODY or (level >= RELATIVE and not has_limit):
            continue
        count = state.times[level, place]
        age = age_of(count)
        told.age[j, level] = age
        base = log_limit if level >= RELATIVE else 0.0
        first = level * GUESSES
        told.guess[j, first] = base + state.recent[level, place, (count - 1) % _RECENT]
        told.guess[j, first + 1] = base + median(state.ordered[level, place], min(count, _RECENT))
        told.guess[j, first + 2] = base + state.average[level, place]
        for expert in range(first, first + GUESSES):
            total += weigh(state, scratch, user, expert, age, told.guess[j, expert], used)
            used += 1
    told.guess[j, _LIMIT] = np.nan
    if has_limit:
        told.guess[j, _LIMIT] = log_limit
        total += weigh(state, scratch, user, _LIMIT, 0, log_limit, used)
        used += 1
    middle = weighted_median(scratch, used, total) if used > 0 else math.log(UNKNOWN_S)
    told.middle[j] = min(middle, log_limit) if has_limit else middle
    told.spread[j] = max(state.spread[user], _LEAST_SPREAD) if user != NOBODY else 1.0


@compiled
def learn_runtime(
    state: HabitState, told: PendingGuesses, scratch: GuessScratch, j: int, job: Table, seconds: float
) -> None:
    """Compare the guesses for a job that has ended with its runtime, then store the runtime."""
    length = math.log(max(seconds, SHORTEST_S))
    _set_keys(scratch.key, job)
    state.learnt[0] += 1
    user = place_for_key(state.people, state.met, state.met_at, 0, scratch.key[6])
    if state.met[0, user] == 0:
        state.spread[user] = 1.0
        for expert in range(EXPERTS):
            state.user_error[user, expert] = 0.0
            state.user_weight[user, expert] = 0.0
    state.met[0, user] += 1
    state.met_at[0, user] = state.learnt[0]
    for expert in range(EXPERTS):
        if not math.isnan(told.guess[j, expert]):
            error = min(abs(told.guess[j, expert] - length), LARGEST_ERROR)
            age = told.age[j, expert // GUESSES]
            state.error[expert, age] = state.error[expert, age] * OVERALL_DECAY + error
            state.weight[expert, age] = state.weight[expert, age] * OVERALL_DECAY + 1.0
            state.user_error[user, expert] = state.user_error[user, expert] * USER_DECAY + error
            state.user_weight[user, expert] = state.user_weight[user, expert] * USER_DECAY + 1.0
    off = length - told.middle[j]
    # Each edge moves so that in the long run this share of the jobs is beyond it, whatever the distribution of errors.
    rate = max(_QUANTILE_RATE, FIRST_STEPS / (state.learnt[0] + 10.0))
    state.edges[0] += rate * (_BEYOND - (1.0 if off / told.spread[j] < state.edges[0] else 0.0))
    state.edges[1] += rate * ((1.0 if off / told.spread[j] > state.edges[1] else 0.0) - _BEYOND)
    state.spread[user] += SPREAD_RATE * (min(abs(off), LARGEST_ERROR + 1.0) - state.spread[user])
    has_limit = job.limit < NO_LIMIT
    for level in range(_LEVELS):
        if level >= RELATIVE and not has_limit:
            continue
        value = length - math.log(max(job.limit, SHORTEST_S)) if level >= RELATIVE else length
        place = place_for_key(state.tags, state.times, state.touched, level, scratch.key[level])
        count = state.times[level, place]
        replaced(state.ordered[level, place], min(count, _RECENT), state.recent[level, place, count % _RECENT], value)
        state.recent[level, place, count % _RECENT] = value
        before = value if count == 0 else state.average[level, place]
        state.average[level, place] = before + (value - before) * max(AVERAGE_RATE, 1.0 / (count + 1.0))
        state.times[level, place] = count + 1
        state.touched[level, place] = state.learnt[0]


@compiled_alone
def follow(
    state: HabitState,
    told: PendingGuesses,
    scratch: GuessScratch,
    traits: Table,
    seconds: Floats,
    events: Events,
    out: Floats,
) -> None:
    """Predict and learn, event by event."""
    for event in events:
        if event >= 0:
            guess(state, told, scratch, event, traits[event])
            middle, spread = told.middle[event], told.spread[event]
            low = middle + min(state.edges[0], 0.0) * spread
            high = middle + max(state.edges[1], 0.0) * spread
            out[event, P10] = max(math.exp(low), SHORTEST_S)
            out[event, P50] = max(math.exp(middle), SHORTEST_S)
            out[event, P90] = max(math.exp(high), SHORTEST_S)
        else:
            j = ~event
            if math.isnan(told.middle[j]):  # submitted before we began
                guess(state, told, scratch, j, traits[j])
            learn_runtime(state, told, scratch, j, traits[j], seconds[j])


def empty(keys: int) -> HabitState:
    """An empty state with room for `keys` keys at each level."""
    return HabitState(
        tags=np.zeros((_LEVELS, keys), np.uint64),
        times=np.zeros((_LEVELS, keys), np.int64),
        touched=np.zeros((_LEVELS, keys), np.int64),
        recent=np.zeros((_LEVELS, keys, _RECENT)),
        ordered=np.zeros((_LEVELS, keys, _RECENT)),
        average=np.zeros((_LEVELS, keys)),
        people=np.zeros((1, _USERS), np.uint64),
        met=np.zeros((1, _USERS), np.int64),
        met_at=np.zeros((1, _USERS), np.int64),
        user_error=np.zeros((_USERS, EXPERTS)),
        user_weight=np.zeros((_USERS, EXPERTS)),
        spread=np.ones(_USERS),
        error=np.ones((EXPERTS, AGES)),
        weight=np.ones((EXPERTS, AGES)),
        edges=np.array([-1.0, 1.0]),
        learnt=np.zeros(1, np.int64),
    )


def nothing_told(count: int) -> PendingGuesses:
    """Arrays for the guesses of `count` jobs."""
    return PendingGuesses(
        np.empty((count, EXPERTS)), np.zeros((count, _LEVELS + 1), np.int64), np.full(count, np.nan), np.ones(count)
    )


def room_to_work() -> GuessScratch:
    """Scratch arrays for one guess at a time."""
    return GuessScratch(np.zeros(_LEVELS, np.uint64), np.zeros(EXPERTS), np.zeros(EXPERTS))


@final
@dataclass(frozen=True, slots=True)
class Habits:
    """The default predictor."""

    state: HabitState

    @classmethod
    def new(cls, keys: int = 1 << 16) -> "Habits":
        """A predictor that has learnt nothing; `keys` is a power of two."""
        return cls(empty(keys))

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """Predict and learn in this order; p10, p50 and p90 in s, NaN for jobs that were not predicted."""
        count = len(traits)
        out = np.full((count, 3), np.nan)
        follow(self.state, nothing_told(count), room_to_work(), traits, seconds, events, out)
        return out

    def save(self, path: Path) -> None:
        """Write everything that was learnt to a file."""
        with path.open("wb") as file:
            np.savez_compressed(file, **self.state._asdict())

    @classmethod
    def load(cls, path: Path) -> "Habits":
        """Read a predictor from a file."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls(HabitState(**{name: found[name] for name in HabitState._fields}))
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"cannot read the habits in '{path}': {error}. Save them again.") from None
