"""What a learner of speeds sees of a job and of a GPU: their parts, each bound to its role, as hypervectors.

A job's parts are its user, the words of its name, its GPUs, cores, memory, GPU memory, limit and the hour of its
submission; never its family. A GPU's parts are its model, vendor, generation, memory, bandwidth, tensor units and link.
A part that is missing adds nothing. Unbinding a past job's vector with a role tells whether it had the same part.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from adlro.core.records import GpuModel
from adlro.core.tables import Floats
from adlro.core.units import DAY_S
from adlro.predict.encoder import HOURS, Vector, Words, bind, circle, item, levels, packed_bits, step_of
from adlro.predict.following import NO_LIMIT

LONG: Final = 2048
"""Entries of these vectors: twice those of runtimes, because small similarities count here."""

_STEPS: Final = 32
_MOST_WORDS: Final = 6
_A_WORD: Final = re.compile(r"[a-z]+[0-9]*|[0-9]+")

_JOB_WEIGHTS: Final = {
    "user": 0.7,
    "word": 1.4,
    "gpus": 0.9,
    "gang": 0.6,
    "cpus": 0.25,
    "memory": 0.25,
    "gpu_memory": 0.35,
    "limit": 0.35,
    "hour": 0.15,
}
"""The roles of a job and their weights; all words of a name share one weight. Two equal parts make two vectors similar
by the square of the weight."""

_NUMBER_WEIGHT: Final = 0.2
"""Of a word that is only a number: it mostly counts the jobs."""

_GPU_WEIGHTS: Final = {
    "model": 1.4, "vendor": 0.7, "generation": 0.7, "memory": 0.5, "bandwidth": 0.7, "tensor": 0.9, "link": 0.3,
}  # fmt: skip


class JobParts(NamedTuple):
    """The parts of one job."""

    user: str = ""
    name: str = ""
    gpus: int = 0
    cpus: float = 0.0
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0
    limit_s: float = math.inf
    submit_s: float = 0.0


@lru_cache(maxsize=65536)
def name_words(name: str) -> tuple[str, ...]:
    """The different words of a name, the first ones: train-resnet18-b32 has train, resnet18 and b32."""
    return tuple(dict.fromkeys(_A_WORD.findall(name.lower())))[:_MOST_WORDS]


def fillers_of(parts: JobParts) -> Iterator[tuple[str, str, Vector, float]]:
    """Role, value in words, vector and weight of each part that the job has."""
    if parts.user:
        yield "user", parts.user, item(f"user {parts.user}", LONG), _JOB_WEIGHTS["user"]
    words = name_words(parts.name)
    said = max(1, sum(not word.isdigit() for word in words))
    for word in words:
        weight = _NUMBER_WEIGHT if word.isdigit() else _JOB_WEIGHTS["word"] / math.sqrt(said)
        yield "word", word, item(f"word {word}", LONG), weight
    if parts.gpus:
        yield "gpus", str(parts.gpus), item(f"gpus {parts.gpus}", LONG), _JOB_WEIGHTS["gpus"]
        yield "gang", str(parts.gpus), _level("gang", math.log1p(parts.gpus) / math.log(1025.0)), _JOB_WEIGHTS["gang"]
    for role, amount, most in (
        ("cpus", parts.cpus, 1024.0),
        ("memory", parts.memory_gb, 16384.0),
        ("gpu_memory", parts.gpu_memory_gb, 512.0),
    ):
        if amount > 0.0:
            yield role, f"{amount:g}", _level(role, math.log1p(amount) / math.log1p(most)), _JOB_WEIGHTS[role]
    if 0.0 < parts.limit_s < NO_LIMIT:
        share = math.log(max(parts.limit_s, 60.0) / 60.0) / math.log(14_400.0)
        yield "limit", f"{parts.limit_s:g} s", _level("limit", share), _JOB_WEIGHTS["limit"]
    hour = int(parts.submit_s % DAY_S / DAY_S * HOURS) % HOURS
    yield "hour", str(hour), circle("hour", HOURS, LONG)[hour], _JOB_WEIGHTS["hour"]


def _level(role: str, share: float) -> Vector:
    """The vector of a number on the scale of a role."""
    found: Vector = levels(role, _STEPS, LONG)[step_of(share, _STEPS)]
    return found


def job_vectors(jobs: Sequence[JobParts]) -> Words:
    """The jobs as hypervectors, 64 entries in each integer [n, LONG/64]."""
    out = np.zeros((len(jobs), LONG), np.int8)
    for row, parts in enumerate(jobs):
        total = np.zeros(LONG)
        for role, _, vector, weight in fillers_of(parts):
            total += weight * (_role(role) * vector)
        out[row] = _signs(total)
    return packed_bits(out)


def gpu_fillers(model: GpuModel) -> Iterator[tuple[str, Vector]]:
    """Role and vector of each part of a GPU model."""
    yield "model", item(f"gpu {model.name}", LONG)
    yield "vendor", item(f"vendor {model.vendor}", LONG)
    if model.launch_year:
        yield "generation", _level("generation", (model.launch_year - 2012) / 16)
    yield "memory", _level("gpu memory", math.log2(max(model.memory_gb, 1.0)) / 9)
    yield "bandwidth", _level("bandwidth", math.log(max(model.memory_bandwidth_gb_s, 100.0) / 100.0) / math.log(100.0))
    yield "tensor", item("tensor units" if model.fp16_tensor_tflops else "no tensor units", LONG)
    if model.link_type:
        yield "link", item(f"link {model.link_type}", LONG)


def gpu_vectors(models: Sequence[GpuModel]) -> Words:
    """GPU models as hypervectors [n, LONG/64]."""
    out = np.zeros((len(models), LONG), np.int8)
    for row, model in enumerate(models):
        total = np.zeros(LONG)
        for role, vector in gpu_fillers(model):
            total += _GPU_WEIGHTS[role] * (_role(f"gpu {role}") * vector)
        out[row] = _signs(total)
    return packed_bits(out)


def same_parts(parts: JobParts, past: Vector) -> list[tuple[str, str, float]]:
    """The parts that a past job probably had too: role, value, and how clearly unbinding its vector shows it."""
    found = []
    for role, value, vector, _ in fillers_of(parts):
        clear = float(bind(past, _role(role)).astype(np.int32) @ vector.astype(np.int32)) / LONG
        if clear > _CLEARLY:
            found.append((role, value, clear))
    return sorted(found, key=lambda each: -each[2])


_CLEARLY: Final = 5.0 / math.sqrt(LONG)
"""Five standard deviations of the similarity of unrelated vectors."""


@lru_cache(maxsize=64)
def _role(role: str) -> Vector:
    return item(f"role {role}", LONG)


def _signs(total: Floats) -> Vector:
    """The sign of each entry, ties broken by a fixed random vector."""
    return np.where(np.abs(total) < 1e-9, item("coin", LONG), np.sign(total)).astype(np.int8)
