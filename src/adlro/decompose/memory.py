"""The associative memory: finished jobs as hypervectors with their runtimes, and the most similar of them on request.

It learns in one pass, keeps so many jobs and no more, and forgets the oldest. What it recalls is also the reason for
a prediction: like these jobs, which ran so long.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.errors import UsageError
from adlro.core.tables import NOBODY, Floats, Table
from adlro.decompose.encoder import DIMENSIONS, encode_jobs
from adlro.decompose.following import P10, P50, P90, SHORTEST_S, UNKNOWN_S, Events

CAPACITY: Final = 4096
NEIGHBOURS: Final = 16
WIDTH: Final = 0.02
"""Jobs that are less similar than the nearest by this share of all entries count a third of it."""

QUANTILE_RATE: Final = 0.05
LEAST_SPREAD: Final = 0.05

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


class State(NamedTuple):
    """The jobs that are remembered, newest over oldest. Axes: C jobs, W words of 64 entries."""

    vectors: Words  # [C, W]
    length: Floats  # [C] log seconds
    number: Counts  # [C] what its teacher called the job
    learnt: Counts  # [1] how many jobs were learnt
    edges: Floats  # [2] what is added to the quantiles of the neighbours, in their spread


@compiled
def ones(word: int) -> int:
    """How many bits of a word are set."""
    x = np.uint64(word)
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    x = x + (x >> np.uint64(8))
    x = x + (x >> np.uint64(16))
    x = x + (x >> np.uint64(32))
    return np.int64(x & np.uint64(0x7F))  # type: ignore[return-value]


@compiled
def recall(state: State, vectors: Words, j: int, rows: Counts, distance: Counts) -> int:
    """The remembered jobs most like job j, nearest first and newest first among equals; returns how many."""
    capacity, words = state.vectors.shape
    known = min(state.learnt[0], capacity)
    most, found = len(rows), 0
    for back in range(1, known + 1):
        row = (state.learnt[0] - back) % capacity
        apart = np.int64(0)
        for word in range(words):
            apart += ones(state.vectors[row, word] ^ vectors[j, word])
        if found == most and apart >= distance[most - 1]:
            continue
        i = found if found < most else most - 1
        found = min(found + 1, most)
        while i > 0 and distance[i - 1] > apart:
            distance[i], rows[i] = distance[i - 1], rows[i - 1]
            i -= 1
        distance[i], rows[i] = apart, row
    return found


@compiled
def learn(state: State, vectors: Words, j: int, number: int, seconds: float) -> None:
    """Remember a job in the place of the oldest."""
    row = state.learnt[0] % len(state.length)
    for word in range(state.vectors.shape[1]):
        state.vectors[row, word] = vectors[j, word]
    state.length[row] = math.log(max(seconds, SHORTEST_S))
    state.number[row] = number
    state.learnt[0] += 1


@compiled
def quantile(values: Floats, weights: Floats, count: int, share: float) -> float:
    """The value below which this share of the weights lies; values are in order."""
    total = 0.0
    for i in range(count):
        total += weights[i]
    below = 0.0
    for i in range(count):
        below += weights[i]
        if below >= share * total:
            return values[i]
    return values[count - 1]


@compiled
def guess(
    state: State, vectors: Words, j: int, limit: float, rows: Counts, distance: Counts, values: Floats,
    weights: Floats, told: Floats,
) -> None:  # fmt: skip
    """The quantiles of the neighbours' runtimes, as logarithms, and their spread in the fourth place."""
    found = recall(state, vectors, j, rows, distance)
    has_limit = limit < 1e12
    if found == 0:
        middle = math.log(max(limit, SHORTEST_S)) if has_limit else math.log(UNKNOWN_S)
        told[j, 0], told[j, 1], told[j, 2], told[j, 3] = middle - 1.0, middle, middle + 1.0, 1.0
        return
    scale = WIDTH * 64 * state.vectors.shape[1]
    for k in range(found):
        value, weight = state.length[rows[k]], math.exp(-(distance[k] - distance[0]) / scale) / (1.0 + 0.1 * k)
        i = k
        while i > 0 and values[i - 1] > value:
            values[i], weights[i] = values[i - 1], weights[i - 1]
            i -= 1
        values[i], weights[i] = value, weight
    low, middle = quantile(values, weights, found, 0.1), quantile(values, weights, found, 0.5)
    high = quantile(values, weights, found, 0.9)
    if has_limit:
        middle = min(middle, math.log(max(limit, SHORTEST_S)))
    told[j, 0], told[j, 1], told[j, 2] = min(low, middle), middle, max(high, middle)
    told[j, 3] = max(0.5 * (high - low), LEAST_SPREAD)


@compiled_alone
def follow(
    state: State, vectors: Words, limit: Floats, seconds: Floats, events: Events, numbers: Counts, rows: Counts,
    distance: Counts, values: Floats, weights: Floats, told: Floats, out: Floats,
) -> None:  # fmt: skip
    """Predict and learn, one event after another."""
    for event in events:
        j = event if event >= 0 else ~event
        if event >= 0 or math.isnan(told[j, 1]):
            guess(state, vectors, j, limit[j], rows, distance, values, weights, told)
        low = told[j, 0] + state.edges[0] * told[j, 3]
        high = told[j, 2] + state.edges[1] * told[j, 3]
        if event >= 0:
            out[j, P10] = max(math.exp(min(low, told[j, 1])), SHORTEST_S)
            out[j, P50] = max(math.exp(told[j, 1]), SHORTEST_S)
            out[j, P90] = max(math.exp(max(high, told[j, 1])), SHORTEST_S)
        else:
            length = math.log(max(seconds[j], SHORTEST_S))
            state.edges[0] += QUANTILE_RATE * (0.1 - (1.0 if length < low else 0.0))
            state.edges[1] += QUANTILE_RATE * ((1.0 if length > high else 0.0) - 0.1)
            learn(state, vectors, j, numbers[j], seconds[j])


@compiled_alone
def remember(state: State, vectors: Words, seconds: Floats, order: Counts) -> None:
    """Learn jobs in this order, without a word on what they were expected to run."""
    for j in order:
        learn(state, vectors, j, j, seconds[j])


@compiled_alone
def recall_one(state: State, vectors: Words, rows: Counts, distance: Counts) -> int:
    """As recall, for Python."""
    return recall(state, vectors, 0, rows, distance)


@dataclass(frozen=True, slots=True)
class Similar:
    """A remembered job: its number, how similar it is (1: the same) and how long it ran."""

    number: int
    similarity: float
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """The memory as a predictor; `new` makes an empty one."""

    state: State

    @classmethod
    def new(cls, capacity: int = CAPACITY, dimensions: int = DIMENSIONS) -> "Memory":
        """A memory for so many jobs."""
        return cls(
            State(
                vectors=np.zeros((capacity, dimensions // 64), np.uint64),
                length=np.zeros(capacity),
                number=np.full(capacity, NOBODY, np.int64),
                learnt=np.zeros(1, np.int64),
                edges=np.zeros(2),
            )
        )

    def __len__(self) -> int:
        """How many jobs it remembers now."""
        return int(min(self.state.learnt[0], len(self.state.length)))

    @property
    def dimensions(self) -> int:
        """The length of its vectors."""
        return 64 * self.state.vectors.shape[1]

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """Predict and learn in this order; p10, p50 and p90 in s, NaN for a job that was not predicted."""
        count = len(traits)
        out, told = np.full((count, 3), np.nan), np.full((count, 4), np.nan)
        follow(
            self.state, encode_jobs(traits, self.dimensions), np.ascontiguousarray(traits["limit"]), seconds, events,
            np.arange(count), np.zeros(NEIGHBOURS, np.int64), np.zeros(NEIGHBOURS, np.int64), np.zeros(NEIGHBOURS),
            np.zeros(NEIGHBOURS), told, out,
        )  # fmt: skip
        return out

    def remember(self, traits: Table, seconds: Floats, order: Counts) -> None:
        """Learn these jobs for recall only: much faster than to follow, and the interval stays as it is."""
        kept = order[-len(self.state.length) :]
        remember(self.state, encode_jobs(traits, self.dimensions), seconds, kept)

    def like(self, traits: Table, most: int = 5) -> list[Similar]:
        """The remembered jobs most similar to the first of these, most similar first."""
        rows, distance = np.zeros(most, np.int64), np.zeros(most, np.int64)
        found = recall_one(self.state, encode_jobs(traits[:1].view(np.recarray), self.dimensions), rows, distance)
        state = self.state
        return [
            Similar(int(state.number[row]), 1.0 - 2.0 * int(apart) / self.dimensions, math.exp(state.length[row]))
            for row, apart in zip(rows[:found], distance[:found], strict=True)
        ]

    def save(self, path: Path) -> None:
        """Write all that is remembered to a file."""
        with path.open("wb") as file:
            np.savez_compressed(file, **self.state._asdict())

    @classmethod
    def load(cls, path: Path) -> "Memory":
        """What was saved."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls(State(**{name: found[name] for name in State._fields}))
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"cannot read the memory in '{path}': {error}. Save it again.") from None
