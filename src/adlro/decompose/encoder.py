"""Hypervectors: a job, or the state of a GPU, as one long vector of +1 and −1 that can be compared and taken apart.

A role (user, GPU model, …) is bound to its filler by the product of their vectors; a thing is the sign of the sum of
its bound pairs. Binding again with the role undoes it, up to noise, and the most similar known filler is the answer.
Texts have random vectors that depend on nothing but the text. Numbers have level vectors: near numbers are alike.
Hours and weekdays have circular ones: 23 h is as near to 0 h as 1 h is.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.core.tables import Floats, Table
from adlro.decompose.following import TOKENS, text_hash

Vector = npt.NDArray[np.int8]
"""[D], or [n, D] for several; each entry is +1 or −1."""

DIMENSIONS: Final = 1024
LEVELS: Final = 32
"""Steps of a number's scale."""

HOURS: Final = 24
WEEKDAYS: Final = 7
DAY_S: Final = 86_400.0
CHUNK: Final = 4096

PARTS: Final[Mapping[str, int]] = {
    "user": 5,
    "name": 2,
    **{f"word {place}": 1 for place in range(TOKENS)},
    "family": 1,
    "models": 1,
    "gang": 1,
    "same gang": 2,
    "time": 2,
    "same time": 2,
    "cpus": 1,
    "memory": 1,
    "gpu_memory": 1,
    "priority": 1,
    "hour": 1,
    "weekday": 1,
}
"""Roles of a job and how often each is added: who and what tells more of a runtime than when."""


@cache
def item(text: str, dimensions: int = DIMENSIONS) -> Vector:
    """The vector of a text."""
    return numbered_item(text_hash(text), dimensions)


def numbered_item(number: int, dimensions: int = DIMENSIONS) -> Vector:
    """The vector of a text of which only the hash is known."""
    bits = np.random.Generator(np.random.PCG64(int(number))).integers(0, 2, dimensions, dtype=np.int8)
    return _fixed(2 * bits - 1)


@cache
def levels(role: str, count: int = LEVELS, dimensions: int = DIMENSIONS) -> Vector:
    """Vectors [count, D] of the steps of a scale: the first and the last have nothing in common, neighbours much."""
    turn_at = np.random.Generator(np.random.PCG64(text_hash(f"levels {role}"))).permutation(dimensions)
    low, high = item(f"low {role}", dimensions), item(f"high {role}", dimensions)
    share = np.linspace(0.0, 1.0, count)[:, None]
    return _fixed(np.where(turn_at[None, :] < share * dimensions, high, low))


@cache
def circle(role: str, count: int, dimensions: int = DIMENSIONS) -> Vector:
    """Vectors [count, D] of the steps of a circle: alike by the shorter way round, opposite steps have least."""
    turn_at = np.random.Generator(np.random.PCG64(text_hash(f"circle {role}"))).permutation(dimensions) / dimensions
    base, other = item(f"low {role}", dimensions), item(f"high {role}", dimensions)
    angle = np.arange(count)[:, None] / count
    # An entry is `other` on half of the circle that begins at its own angle.
    return _fixed(np.where((angle - turn_at[None, :]) % 1.0 < 0.5, other, base))


def _fixed(vector: npt.NDArray[np.integer]) -> Vector:
    """The vector as one that nobody changes: it is shared."""
    made = vector.astype(np.int8)
    made.flags.writeable = False
    return made


def bind(one: Vector, other: Vector) -> Vector:
    """Role and filler as one vector unlike both; binding with either again gives the other."""
    return one * other


def bundle(vectors: Vector) -> Vector:
    """The vector that is like all of these [n, D]: by majority, and by a fixed coin where there is none."""
    total = vectors.sum(axis=0, dtype=np.int32)
    return np.where(total == 0, item("coin", len(total)), np.sign(total)).astype(np.int8)


def similarity(one: Vector, others: Vector) -> Floats:
    """Cosine of a vector with each of the others: 1 for the same, about 0 for strangers."""
    return np.asarray(others.astype(np.int32) @ one.astype(np.int32) / one.shape[-1], np.float64)


def step_of(value: float, steps: int = LEVELS) -> int:
    """The step of a share of 0 to 1."""
    return int(min(max(value, 0.0), 1.0) * (steps - 1) + 0.5)


# ---- the state of a GPU: encoded, and taken apart ------------------------------------------------------------------

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
    """Model, utilisation and priority of an encoded state, each by unbinding and looking for the most similar."""
    known = np.array([item(model) for model in models])
    model = int(similarity(bind(vector, item("role model")), known).argmax())
    used = similarity(bind(vector, item("role utilisation")), levels("utilisation", UTILISATION_STEPS)).argmax()
    priority = similarity(bind(vector, item("role priority")), levels("priority", PRIORITY_STEPS)).argmax()
    return models[model], float(used) / (UTILISATION_STEPS - 1), float(priority) / (PRIORITY_STEPS - 1)


def unbinding_accuracy(bundled: int, dimensions: int, fillers: int = 64, trials: int = 50, seed: int = 0) -> float:
    """The share of fillers that come back right from vectors of so many bound pairs."""
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


def encode_jobs(traits: Table, dimensions: int = DIMENSIONS) -> npt.NDArray[np.uint64]:
    """Jobs as hypervectors, 64 entries to a number [n, D/64]: bit 1 is +1."""
    count = len(traits)
    parts = [_part(role, traits, dimensions) for role in PARTS]
    out = np.zeros((count, dimensions // 64), np.uint64)
    coin = item("coin", dimensions)
    for begin in range(0, count, CHUNK):
        rows = slice(begin, begin + CHUNK)
        total = np.zeros((len(traits[rows]), dimensions), np.int8)
        for (bound, codes), weight in zip(parts, PARTS.values(), strict=True):
            total += np.int8(weight) * bound[codes[rows]]
        bits = np.where(total == 0, coin, total) > 0
        out[rows] = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    return out


def _part(role: str, traits: Table, dimensions: int) -> tuple[Vector, npt.NDArray[np.intp]]:
    """The bound vectors of a role [k, D], and which of them each job has."""
    match role:
        case "hour":
            known = circle(role, HOURS, dimensions)
            codes = (traits["submit"] % DAY_S / DAY_S * HOURS).astype(np.intp) % HOURS
        case "weekday":
            known = circle(role, WEEKDAYS, dimensions)
            codes = (traits["submit"] // DAY_S).astype(np.intp) % WEEKDAYS
        case "gang" | "time" | "cpus" | "memory" | "gpu_memory" | "priority":
            known = levels(role, LEVELS, dimensions)
            codes = _steps(role, traits)
        case _ if role.startswith("word "):
            # A word is the same wherever it stands in the name: all have one role. No word adds nothing.
            numbers, codes = np.unique(traits["tokens"][:, int(role.removeprefix("word "))], return_inverse=True)
            rows = [numbered_item(number, dimensions) * np.int8(number != 0) for number in numbers]
            known, role = np.array(rows, np.int8).reshape(-1, dimensions), "word"
        case _:
            # The same size or limit says more than a near one: it has a vector of its own besides its level.
            field = {"same gang": "gpus", "same time": "limit"}.get(role, role)
            values = traits[field] if field != "limit" else np.minimum(traits[field], 1e15)
            numbers, codes = np.unique(values.astype(np.uint64), return_inverse=True)
            known = np.array([numbered_item(number, dimensions) for number in numbers], np.int8)
            known = known.reshape(-1, dimensions)
    return known * item(f"role {role}", dimensions), codes


def _steps(role: str, traits: Table) -> npt.NDArray[np.intp]:
    """The step of each job on the scale of a role; sizes and times are on scales of their logarithm."""
    if role == "priority":
        share = traits["priority"].astype(np.float64)
    elif role == "time":  # a minute to ten days; no limit is the far end
        seconds = np.minimum(np.maximum(traits["limit"], 60.0), 864_000.0)
        share = np.log(seconds / 60.0) / np.log(14_400.0)
    else:
        field, most = {"gang": ("gpus", 1e4), "cpus": ("cpus", 1e7)}.get(role, (role, 1e7))
        share = np.log1p(traits[field].astype(np.float64)) / np.log1p(most)
    return np.asarray(np.clip(share, 0.0, 1.0) * (LEVELS - 1) + 0.5).astype(np.intp)
