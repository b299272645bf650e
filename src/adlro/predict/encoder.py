"""Hypervectors: a job, or the state of a GPU, as one long vector of +1 and −1 that can be compared and decoded.

A role (user, GPU model, …) is bound to its filler by the product of their vectors. A thing is the sign of the sum of
its bound pairs. Binding again with the role undoes it, up to noise; the most similar known filler is the answer. The
vector of a text is random and depends only on the text. Numbers have level vectors: close numbers have similar vectors.
Hours and weekdays have circular vectors: 23 h is as close to 0 h as 1 h is.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.tables import Floats, Table
from adlro.core.units import DAY_S
from adlro.predict.following import text_hash

Vector = npt.NDArray[np.int8]
"""[D], or [n, D] for several; each entry is +1 or −1."""

Words = npt.NDArray[np.uint64]
"""The same with 64 entries in each integer, [D/64] or [n, D/64]; bit 1 is +1."""

DIMENSIONS: Final = 1024
_LEVELS: Final = 32
"""Number of levels of a number's scale."""

HOURS: Final = 24
_WEEKDAYS: Final = 7

WEIGHTS: Final[Mapping[str, int]] = {
    "user": 5,
    "name": 2,
    "word": 1,
    "family": 1,
    "models": 1,
    "same gang": 2,
    "same time": 2,
    "gang": 1,
    "time": 2,
    "cpus": 1,
    "memory": 1,
    "gpu_memory": 1,
    "priority": 1,
    "hour": 1,
    "weekday": 1,
}
"""The roles of a job, and how often each is added: who and what says more about a runtime than when.

The fillers of the first seven are items, of the next six levels, and of the last two circles. A name has several words,
and each is added with the same role, because a word means the same at every position. An equal size or limit says more
than a similar one, so these also have an item in addition to their level.
"""

ITEMS: Final = 7
SCALES: Final = len(WEIGHTS) - ITEMS
_WORD: Final = list(WEIGHTS).index("word")
PLANES: Final = 5
"""Bits of a counter of entries: the sum of all weights is below 32."""

_LONGEST_S: Final = 864_000.0
_SHORTEST_S: Final = 60.0
_MOST_GPUS: Final = 1e4
_MOST: Final = 1e7
"""Ends of the scales: one minute and ten days, thousandths of a core, MiB."""


@compiled
def mixed_word(number: Any, place: int) -> Any:
    """The 64 entries at index `place` of the item of a number: bits that depend only on the two.

    It uses no products or sums, because uncompiled code would warn when they overflow.
    """
    h = np.uint64(number) ^ (np.uint64(place + 1) << np.uint64(40)) ^ np.uint64(0x9E3779B97F4A7C15)
    for _ in range(6):
        h ^= h << np.uint64(13)
        h ^= h >> np.uint64(7)
        h ^= h << np.uint64(17)
        turned = (h << np.uint64(9)) | (h >> np.uint64(55))
        h ^= ~turned & ((h << np.uint64(30)) | (h >> np.uint64(34)))
    return h


@compiled_alone
def fill_item(number: Any, words: Words) -> None:
    """Fill in the item of a number."""
    for place in range(len(words)):
        words[place] = mixed_word(number, place)


@cache
def item(text: str, dimensions: int = DIMENSIONS) -> Vector:
    """The vector of a text."""
    return numbered_item(text_hash(text), dimensions)


def numbered_item(number: int, dimensions: int = DIMENSIONS) -> Vector:
    """The vector of a text, given by its hash."""
    words = np.zeros(dimensions // 64, np.uint64)
    fill_item(np.uint64(number), words)
    return _fixed(unpacked(words))


def packed_bits(vectors: Vector) -> Words:
    """Pack vectors [.., D] with 64 entries in each integer [.., D/64]."""
    return np.packbits(vectors > 0, axis=-1, bitorder="little").view(np.uint64)


def unpacked(words: Words) -> Vector:
    """The inverse of `packed_bits`."""
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


@cache
def levels(role: str, count: int = _LEVELS, dimensions: int = DIMENSIONS) -> Vector:
    """Vectors [count, D] of the levels of a scale. Neighbours are similar; the first and the last are unrelated."""
    turn_at = np.random.Generator(np.random.PCG64(text_hash(f"levels {role}"))).permutation(dimensions)
    low, high = item(f"low {role}", dimensions), item(f"high {role}", dimensions)
    share = np.linspace(0.0, 1.0, count)[:, None]
    return _fixed(np.where(turn_at[None, :] < share * dimensions, high, low))


@cache
def circle(role: str, count: int, dimensions: int = DIMENSIONS) -> Vector:
    """Vectors [count, D] of the steps of a circle, similar by the shorter way round; opposite steps differ most."""
    turn_at = np.random.Generator(np.random.PCG64(text_hash(f"circle {role}"))).permutation(dimensions) / dimensions
    base, other = item(f"low {role}", dimensions), item(f"high {role}", dimensions)
    angle = np.arange(count)[:, None] / count
    # An entry is `other` on the half of the circle that begins at its own angle.
    return _fixed(np.where((angle - turn_at[None, :]) % 1.0 < 0.5, other, base))


def as_torch_hd(vector: Vector) -> Any:
    """The same vector as a tensor of torch-hd (multiply, add, permute), if torch-hd is installed (extra `hd`)."""
    import torch
    import torchhd

    return torch.tensor(np.array(vector)).float().as_subclass(torchhd.MAPTensor)


def _fixed(vector: npt.NDArray[np.integer]) -> Vector:
    """The vector, made read-only because it is shared."""
    made = vector.astype(np.int8)
    made.flags.writeable = False
    return made


def bind(one: Vector, other: Vector) -> Vector:
    """Role and filler as one vector that is unlike both; binding it with one of them again gives the other."""
    return one * other


def bundle(vectors: Vector) -> Vector:
    """The vector that is similar to all of these [n, D]: by majority, with ties broken by a fixed random vector."""
    total = vectors.sum(axis=0, dtype=np.int32)
    return np.where(total == 0, item("coin", len(total)), np.sign(total)).astype(np.int8)


def similarity(one: Vector, others: Vector) -> Floats:
    """Cosine of a vector with each of the others: 1 for equal vectors, about 0 for unrelated ones."""
    return np.asarray(others.astype(np.int32) @ one.astype(np.int32) / one.shape[-1], np.float64)


def step_of(value: float, steps: int = _LEVELS) -> int:
    """The step of a number from 0 to 1."""
    return int(min(max(value, 0.0), 1.0) * (steps - 1) + 0.5)


# ---- the state of a GPU: encoding and decoding ---------------------------------------------------------------------

UTILISATION_STEPS: Final = 11
PRIORITY_STEPS: Final = 5


def encode_state(model: str, utilisation: float, priority: float, more: Mapping[str, str] | None = None) -> Vector:
    """The state of a GPU: its model, utilisation and the priority of its work, each from 0 to 1, and other facts."""
    pairs = [
        bind(item("role model"), item(model)),
        bind(
            item("role utilisation"), levels("utilisation", UTILISATION_STEPS)[step_of(utilisation, UTILISATION_STEPS)]
        ),
        bind(item("role priority"), levels("priority", PRIORITY_STEPS)[step_of(priority, PRIORITY_STEPS)]),
    ]
    pairs += [bind(item(f"role {role}"), item(filler)) for role, filler in (more or {}).items()]
    return bundle(np.array(pairs))


def decode_state(vector: Vector, models: Sequence[str]) -> tuple[str, float, float]:
    """Model, utilisation and priority of an encoded state, each by unbinding and finding the most similar filler."""
    known = np.array([item(model) for model in models])
    model = int(similarity(bind(vector, item("role model")), known).argmax())
    used = similarity(bind(vector, item("role utilisation")), levels("utilisation", UTILISATION_STEPS)).argmax()
    priority = similarity(bind(vector, item("role priority")), levels("priority", PRIORITY_STEPS)).argmax()
    return models[model], float(used) / (UTILISATION_STEPS - 1), float(priority) / (PRIORITY_STEPS - 1)


def unbinding_accuracy(bundled: int, dimensions: int, fillers: int = 64, trials: int = 50, seed: int = 0) -> float:
    """The share of fillers that are decoded correctly from vectors of `bundled` bound pairs."""
    rng = np.random.Generator(np.random.PCG64(seed))
    known = np.array([item(f"filler {number}", dimensions) for number in range(fillers)])
    roles = np.array([item(f"role {number}", dimensions) for number in range(bundled)])
    right = 0
    for _ in range(trials):
        chosen = rng.integers(0, fillers, bundled)
        whole = bundle(roles * known[chosen])
        found = ((roles * whole).astype(np.int32) @ known.T.astype(np.int32)).argmax(axis=1)
        right += int(np.count_nonzero(found == chosen))
    return right / (trials * bundled)


# ---- jobs ----------------------------------------------------------------------------------------------------------


class Codebook(NamedTuple):
    """The vectors that jobs are encoded with. Axes: R roles, W words of 64 entries."""

    roles: Words  # [R, W]
    weights: npt.NDArray[np.int64]  # [R]
    scales: Words  # [SCALES, _LEVELS, W] vectors of the steps, for the roles from ITEMS on
    coin: Words  # [W] breaks ties if there is no majority


@cache
def codebook(dimensions: int = DIMENSIONS) -> Codebook:
    """The vectors that jobs are encoded with, for this number of entries."""
    scales = np.zeros((SCALES, _LEVELS, dimensions // 64), np.uint64)
    for place, role in enumerate(list(WEIGHTS)[ITEMS:]):
        match role:
            case "hour":
                steps = circle(role, HOURS, dimensions)
            case "weekday":
                steps = circle(role, _WEEKDAYS, dimensions)
            case _:
                steps = levels(role, _LEVELS, dimensions)
        scales[place, : len(steps)] = packed_bits(steps)
    return Codebook(
        packed_bits(np.array([item(f"role {role}", dimensions) for role in WEIGHTS])),
        np.array(list(WEIGHTS.values()), np.int64),
        scales,
        packed_bits(item("coin", dimensions)),
    )


def encode_jobs(traits: Table, dimensions: int = DIMENSIONS) -> Words:
    """Jobs as hypervectors, with 64 entries in each integer [n, D/64]; bit 1 is +1."""
    out = np.zeros((len(traits), dimensions // 64), np.uint64)
    fill_jobs(traits, codebook(dimensions), np.zeros((PLANES, out.shape[1]), np.uint64), out)
    return out


@compiled_alone
def fill_jobs(traits: Table, book: Codebook, planes: Words, out: Words) -> None:
    """Fill in the vectors of these jobs."""
    for j in range(len(traits)):
        job = traits[j]
        planes[:, :] = np.uint64(0)
        total = 0
        for role in range(ITEMS):
            if role == _WORD:
                for token in job.tokens:
                    if token != 0:  # a missing word adds nothing
                        add_item(planes, book, role, token)
                        total += book.weights[role]
            else:
                add_item(planes, book, role, filler(job, role))
                total += book.weights[role]
        for scale in range(SCALES):
            step = step_on(job, scale)
            for w in range(out.shape[1]):
                bound = ~(book.scales[scale, step, w] ^ book.roles[ITEMS + scale, w])
                add(planes, w, bound, book.weights[ITEMS + scale])
            total += book.weights[ITEMS + scale]
        for w in range(out.shape[1]):
            out[j, w] = majority(planes, w, total, book.coin[w])


@compiled
def filler(job: Table, role: int) -> Any:
    """The number of the filler of a role of a job."""
    if role == 0:
        return job.user
    if role == 1:
        return job.name
    if role == 3:
        return job.family
    if role == 4:
        return job.models
    if role == 5:
        return np.uint64(job.gpus)
    return np.uint64(min(job.limit, 1e15))


@compiled
def step_on(job: Table, scale: int) -> int:
    """The step of a job on a scale. Sizes and times use logarithmic scales."""
    if scale == 6:
        return int(job.submit % DAY_S / DAY_S * HOURS) % HOURS
    if scale == 7:
        return int(job.submit // DAY_S) % _WEEKDAYS
    if scale == 0:
        share = math.log1p(float(job.gpus)) / math.log1p(_MOST_GPUS)
    elif scale == 1:  # no limit is the upper end
        seconds = min(max(job.limit, _SHORTEST_S), _LONGEST_S)
        share = math.log(seconds / _SHORTEST_S) / math.log(_LONGEST_S / _SHORTEST_S)
    elif scale == 2:
        share = math.log1p(float(job.cpus)) / math.log1p(_MOST)
    elif scale == 3:
        share = math.log1p(float(job.memory)) / math.log1p(_MOST)
    elif scale == 4:
        share = math.log1p(float(job.gpu_memory)) / math.log1p(_MOST)
    else:
        share = float(job.priority)
    return int(min(max(share, 0.0), 1.0) * (_LEVELS - 1) + 0.5)


@compiled
def add_item(planes: Words, book: Codebook, role: int, number: Any) -> None:
    """Add the item of a number, bound to its role."""
    for w in range(planes.shape[1]):
        add(planes, w, ~(mixed_word(number, w) ^ book.roles[role, w]), book.weights[role])


@compiled
def add(planes: Words, w: int, bits: Any, times: int) -> None:
    """Count 64 entries `times` times: plane k holds bit k of each of the 64 counters."""
    for _ in range(times):
        carry = bits
        for k in range(PLANES):
            both = planes[k, w] & carry
            planes[k, w] ^= carry
            carry = both


@compiled
def majority(planes: Words, w: int, total: int, coin: Any) -> Any:
    """Bits whose count is more than half of the total; if it is exactly half, the bits of the coin."""
    half = total // 2
    above = np.uint64(0)
    equal = ~np.uint64(0)
    for back in range(PLANES):
        k = PLANES - 1 - back
        if half >> k & 1:
            equal &= planes[k, w]
        else:
            above |= equal & planes[k, w]
            equal &= ~planes[k, w]
    # If the total is odd, half is rounded down, so a count equal to it is below half.
    return above | (equal & coin) if total % 2 == 0 else above
