"""The associative memory: finished jobs as hypervectors with their runtimes, and a search for the most similar ones.

It learns in one pass, keeps a fixed number of jobs, and forgets the oldest. The jobs that it finds also explain a
prediction: similar jobs ran this long.

A large memory is not searched completely. The vectors of two jobs of one user, or of one user and name, are closer than
those of unrelated jobs. So jobs are chained by both, newest first, and a search looks at the first jobs of each chain
and at the newest of all.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.errors import UsageError
from adlro.core.tables import NOBODY, Floats, Table
from adlro.predict.encoder import DIMENSIONS, Words, encode_jobs
from adlro.predict.following import NO_LIMIT, P10, P50, P90, SHORTEST_S, UNKNOWN_S, Events
from adlro.predict.habits import Codes, Counts, find, place_for_key

CAPACITY: Final = 100_000
NEIGHBOURS: Final = 32
_WIDTH: Final = 0.04
"""A job whose distance exceeds that of the nearest by this share of all entries has weight 1/e."""

_QUANTILE_RATE: Final = 0.05
_LEAST_SPREAD: Final = 0.05
_BEYOND: Final = 0.085
"""Share of the jobs beyond each edge of the interval. The promise is 0.1, but long jobs are learnt late."""

CHAINS: Final = 2
"""By user, and by user and name."""

SEARCHED: Final = 512
"""Number of jobs of each chain, and of the newest, in a search.

A memory that is not larger than the three together is searched completely.
"""

NO_JOB: Final = 0
"""Jobs are numbered from 1 in the order in which they were learnt."""


class MemoryState(NamedTuple):
    """The stored jobs; new ones overwrite the oldest. Axes: C jobs, W words of 64 entries, K keys of a chain."""

    vectors: Words  # [C, W]
    length: Floats  # [C] log seconds
    number: Counts  # [C] the caller's number of the job
    before: Counts  # [CHAINS, C] the job learnt before it in its chain; NO_JOB: none
    tags: Codes  # [CHAINS, K] user, or user and name; 0: empty
    newest: Counts  # [CHAINS, K] the newest job of the chain
    touched: Counts  # [CHAINS, K] number of jobs learnt when that was learnt
    learnt: Counts  # [1] number of jobs learnt
    edges: Floats  # [2] added to the quantiles of the neighbours, in units of their spread


@compiled
def ones(word: int) -> int:
    """Number of bits set in a word."""
    x = np.uint64(word)
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    x = x + (x >> np.uint64(8))
    x = x + (x >> np.uint64(16))
    x = x + (x >> np.uint64(32))
    return np.int64(x & np.uint64(0x7F))  # type: ignore[return-value]


@compiled
def chain_key(job: Table, chain: int) -> Any:
    """The key that a job shares with the others in a chain."""
    return (job.user if chain == 0 else job.group) | np.uint64(1)  # 0 means an empty slot


@compiled
def _compare(
    state: MemoryState, words: Words, which: int, found: int, most: int, jobs: Counts, distance: Counts
) -> int:
    """Add a stored job to the nearest ones if it is one of them; returns their new number."""
    row = (which - 1) % len(state.length)
    apart = np.int64(0)
    for word in range(len(words)):
        apart += ones(state.vectors[row, word] ^ words[word])
    if found == most and (apart > distance[most - 1] or (apart == distance[most - 1] and which <= jobs[most - 1])):
        return found
    for i in range(found):
        if jobs[i] == which:  # already found in another chain
            return found
    i = found if found < most else most - 1
    while i > 0 and (distance[i - 1] > apart or (distance[i - 1] == apart and jobs[i - 1] < which)):
        distance[i], jobs[i] = distance[i - 1], jobs[i - 1]
        i -= 1
    distance[i], jobs[i] = apart, which
    return min(found + 1, most)


@compiled
def recall(state: MemoryState, words: Words, job: Table, jobs: Counts, distance: Counts) -> int:
    """The stored jobs most similar to this one, nearest first, ties newest first; returns their number."""
    learnt, most = state.learnt[0], len(jobs)
    oldest = max(learnt - len(state.length), 0) + 1
    found = 0
    few = learnt - oldest + 1 <= (CHAINS + 1) * SEARCHED
    for which in range(learnt, max(oldest, learnt - SEARCHED + 1) - 1 if not few else oldest - 1, -1):
        found = _compare(state, words, which, found, most, jobs, distance)
    if few:
        return found
    for chain in range(CHAINS):
        place = find(state.tags, chain, chain_key(job, chain))
        if place == NOBODY:
            continue
        which = state.newest[chain, place]
        for _ in range(SEARCHED):
            if which < oldest:
                break
            found = _compare(state, words, which, found, most, jobs, distance)
            which = state.before[chain, (which - 1) % len(state.length)]
    return found


@compiled
def learn_runtime(state: MemoryState, words: Words, job: Table, number: int, seconds: float) -> None:
    """Store a job in place of the oldest."""
    row = state.learnt[0] % len(state.length)
    for word in range(len(words)):
        state.vectors[row, word] = words[word]
    state.length[row] = math.log(max(seconds, SHORTEST_S))
    state.number[row] = number
    state.learnt[0] += 1
    for chain in range(CHAINS):
        place = place_for_key(state.tags, state.newest, state.touched, chain, chain_key(job, chain))
        state.before[chain, row] = state.newest[chain, place]
        state.newest[chain, place] = state.learnt[0]
        state.touched[chain, place] = state.learnt[0]


@compiled
def quantile(values: Floats, weights: Floats, count: int, share: float) -> float:
    """The value below which this share of the weights lies. The values are sorted."""
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
    state: MemoryState, words: Words, j: int, job: Table, jobs: Counts, distance: Counts, values: Floats,
    weights: Floats, told: Floats,
) -> None:  # fmt: skip
    """The quantiles of the neighbours' runtimes, as logarithms, and as the fourth value their spread."""
    found = recall(state, words, job, jobs, distance)
    limit = job.limit
    has_limit = limit < NO_LIMIT
    if found == 0:
        middle = math.log(max(limit, SHORTEST_S)) if has_limit else math.log(UNKNOWN_S)
        told[j, 0], told[j, 1], told[j, 2], told[j, 3] = middle - 1.0, middle, middle + 1.0, 1.0
        return
    scale = _WIDTH * 64 * state.vectors.shape[1]
    for k in range(found):
        value = state.length[(jobs[k] - 1) % len(state.length)]
        weight = math.exp(-(distance[k] - distance[0]) / scale) / (1.0 + 0.1 * k)
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
    told[j, 3] = max(0.5 * (high - low), _LEAST_SPREAD)


@compiled_alone
def follow(
    state: MemoryState, vectors: Words, traits: Table, seconds: Floats, events: Events, jobs: Counts, distance: Counts,
    values: Floats, weights: Floats, told: Floats, out: Floats,
) -> None:  # fmt: skip
    """Predict and learn, event by event."""
    for event in events:
        j = event if event >= 0 else ~event
        if event >= 0 or math.isnan(told[j, 1]):
            guess(state, vectors[j], j, traits[j], jobs, distance, values, weights, told)
        low = told[j, 0] + state.edges[0] * told[j, 3]
        high = told[j, 2] + state.edges[1] * told[j, 3]
        if event >= 0:
            out[j, P10] = max(math.exp(min(low, told[j, 1])), SHORTEST_S)
            out[j, P50] = max(math.exp(told[j, 1]), SHORTEST_S)
            out[j, P90] = max(math.exp(max(high, told[j, 1])), SHORTEST_S)
        else:
            length = math.log(max(seconds[j], SHORTEST_S))
            state.edges[0] += _QUANTILE_RATE * (_BEYOND - (1.0 if length < low else 0.0))
            state.edges[1] += _QUANTILE_RATE * ((1.0 if length > high else 0.0) - _BEYOND)
            learn_runtime(state, vectors[j], traits[j], j, seconds[j])


@compiled_alone
def _remember(state: MemoryState, vectors: Words, traits: Table, seconds: Floats, order: Counts) -> None:
    """Store jobs in this order, without adjusting the interval."""
    for j in order:
        learn_runtime(state, vectors[j], traits[j], j, seconds[j])


@compiled_alone
def recall_each(
    state: MemoryState, vectors: Words, traits: Table, jobs: Counts, distance: Counts, found: Counts
) -> None:
    """Like `recall`, for several jobs [n, most]; also fills in the number found for each [n]."""
    for j in range(len(traits)):
        found[j] = recall(state, vectors[j], traits[j], jobs[j], distance[j])


@dataclass(frozen=True, slots=True)
class Similar:
    """A stored job: its number, its similarity (1: equal) and its runtime."""

    number: int
    similarity: float
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """The memory as a predictor; `new` makes an empty one."""

    state: MemoryState

    @classmethod
    def new(cls, capacity: int = CAPACITY, dimensions: int = DIMENSIONS) -> "Memory":
        """An empty memory for `capacity` jobs."""
        keys = 1 << max(6, (capacity - 1).bit_length())
        return cls(
            MemoryState(
                vectors=np.zeros((capacity, dimensions // 64), np.uint64),
                length=np.zeros(capacity),
                number=np.full(capacity, NOBODY, np.int64),
                before=np.zeros((CHAINS, capacity), np.int64),
                tags=np.zeros((CHAINS, keys), np.uint64),
                newest=np.zeros((CHAINS, keys), np.int64),
                touched=np.zeros((CHAINS, keys), np.int64),
                learnt=np.zeros(1, np.int64),
                edges=np.zeros(2),
            )
        )

    def __len__(self) -> int:
        """Number of jobs stored now."""
        return int(min(self.state.learnt[0], len(self.state.length)))

    @property
    def dimensions(self) -> int:
        """The length of its vectors."""
        return 64 * self.state.vectors.shape[1]

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """Predict and learn in this order; p10, p50 and p90 in s, NaN for jobs that were not predicted."""
        count = len(traits)
        out, told = np.full((count, 3), np.nan), np.full((count, 4), np.nan)
        follow(
            self.state, encode_jobs(traits, self.dimensions), traits, seconds, events, np.zeros(NEIGHBOURS, np.int64),
            np.zeros(NEIGHBOURS, np.int64), np.zeros(NEIGHBOURS), np.zeros(NEIGHBOURS), told, out,
        )  # fmt: skip
        return out

    def remember(self, traits: Table, seconds: Floats, order: Counts) -> None:
        """Store these jobs for recall only. It is much faster than `follow` and does not adjust the interval."""
        kept = order[-len(self.state.length) :]
        _remember(self.state, encode_jobs(traits, self.dimensions), traits, seconds, kept)

    def like(self, traits: Table, most: int = 5) -> list[Similar]:
        """The stored jobs most similar to the first of these, most similar first."""
        return self.like_each(traits[:1].view(np.recarray), most)[0]

    def like_each(self, traits: Table, most: int = 5) -> list[list[Similar]]:
        """For each of these jobs the stored jobs most similar to it."""
        count, state = len(traits), self.state
        jobs, distance = np.zeros((count, most), np.int64), np.zeros((count, most), np.int64)
        found = np.zeros(count, np.int64)
        recall_each(state, encode_jobs(traits, self.dimensions), traits, jobs, distance, found)
        rows = (jobs - 1) % len(state.length)
        numbers, seconds = state.number[rows].tolist(), np.exp(state.length[rows]).tolist()
        alike = (1.0 - 2.0 * distance / self.dimensions).tolist()
        return [
            [Similar(*each) for each in zip(numbers[j][:known], alike[j][:known], seconds[j][:known], strict=True)]
            for j, known in enumerate(found.tolist())
        ]

    def save(self, path: Path) -> None:
        """Write everything stored to a file."""
        with path.open("wb") as file:
            np.savez_compressed(file, **self.state._asdict())

    @classmethod
    def load(cls, path: Path) -> "Memory":
        """Read a memory from a file."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls(MemoryState(**{name: found[name] for name in MemoryState._fields}))
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"cannot read the memory in '{path}': {error}. Save it again.") from None
