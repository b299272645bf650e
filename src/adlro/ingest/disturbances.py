"""What befalls the hardware: drawn from a mean time between failures, from a drift of speed, or read from a list.

Nothing here depends on what is scheduled: every policy meets the same failures and the same wear.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from adlro.core.errors import ConfigError, UsageError
from adlro.core.records import Disturbance
from adlro.core.toml import Schema, parse_toml
from adlro.core.units import DAY_S

SLOWEST: Final = 0.5
"""The least speed factor of wear: a slower GPU would have been replaced."""

# Kinds of streams; 0 and 1 are those of the jobs (synthetic.py), which may be drawn with the same seed.
FAILURES: Final = 2
WEAR: Final = 3
SLOW: Final = 5  # 4 is that of the heat (experiment/instance.py)


class DisturbanceTable(Schema):
    """One [[disturbance]]."""

    time_s: float = Field(ge=0)
    what: Literal["down", "up", "speed"]
    node: str = Field(min_length=1)
    gpu: int = Field(default=0, ge=0)
    factor: float = Field(default=1.0, gt=0, le=10)

    @model_validator(mode="after")
    def _only_a_speed_has_a_factor(self) -> Self:
        extra = sorted({"gpu", "factor"} & self.model_fields_set)
        if self.what == "speed" and len(extra) < 2:
            raise ValueError("'speed' needs gpu (its number on the node, from 0) and factor (above 0, to 10)")
        if self.what != "speed" and extra:
            raise ValueError(f"{' and '.join(extra)} belong to 'speed'; {self.what!r} is for the whole node")
        return self


class DisturbanceFile(Schema):
    """A list of disturbances in TOML."""

    disturbance: list[DisturbanceTable] = Field(default=[])


def failures(
    nodes: Sequence[str],
    mtbf_s: float,
    repair_s: float,
    until_s: float,
    seed: int,
    repair: Literal["exponential", "fixed"] = "exponential",
) -> list[Disturbance]:
    """Nodes that fail before `until_s`, each by itself, after exponential times up; every node comes back."""
    _check_above_0(mtbf_s=mtbf_s, repair_s=repair_s, until_s=until_s)
    found: list[Disturbance] = []
    for number, node in enumerate(nodes):
        rng = _stream(seed, FAILURES, number)
        down_s = rng.exponential(mtbf_s)
        while down_s < until_s:
            up_s = down_s + (rng.exponential(repair_s) if repair == "exponential" else repair_s)
            found += [Disturbance(down_s, "down", node), Disturbance(up_s, "up", node)]
            down_s = up_s + rng.exponential(mtbf_s)
    return _in_order(found)


def wear(
    gpus: Mapping[str, int], drift_per_day: float, spread: float, step_s: float, until_s: float, seed: int
) -> list[Disturbance]:
    """GPUs that lose speed step by step, `drift_per_day` on average; `gpus` is how many each node has.

    A GPU keeps its own drift, log-normal with this `spread` (sigma) around the average; its factor ends at SLOWEST.
    """
    _check_above_0(step_s=step_s, until_s=until_s)
    if drift_per_day < 0 or spread < 0:
        raise UsageError(f"drift_per_day is {drift_per_day:g} and spread {spread:g}; expected numbers from 0.")
    found: list[Disturbance] = []
    for number, (node, count) in enumerate(gpus.items()):
        drifts = drift_per_day * _stream(seed, WEAR, number).lognormal(-(spread**2) / 2, spread, count)
        for gpu, drift in enumerate(drifts):
            found += _steps_down(node, gpu, float(drift), step_s, until_s)
    return _in_order(found)


def slow_gpus(gpus: Mapping[str, int], share: float, seed: int) -> frozenset[tuple[str, int]]:
    """The GPUs that are slow from the start, by node and number: this share of all, rounded, chosen by the seed."""
    drawn: list[tuple[float, str, int]] = []
    if share > 0.0:
        for number, (node, count) in enumerate(gpus.items()):
            lots = _stream(seed, SLOW, number).random(count).tolist()
            drawn += [(lot, node, gpu) for gpu, lot in enumerate(lots)]
    return frozenset((node, gpu) for _, node, gpu in sorted(drawn)[: round(share * len(drawn))])


def _steps_down(node: str, gpu: int, drift_per_day: float, step_s: float, until_s: float) -> Iterator[Disturbance]:
    """The steps of one GPU, until the end or until it is as slow as it gets."""
    factor, step = 1.0, 1
    while drift_per_day > 0 and factor > SLOWEST and step * step_s < until_s:
        factor = max(SLOWEST, 1.0 - drift_per_day * step * step_s / DAY_S)
        yield Disturbance(step * step_s, "speed", node, gpu, factor)
        step += 1


def read_disturbances(text: str, where: str) -> list[Disturbance]:
    """The disturbances of a list, by time: [[disturbance]] tables in TOML, or JSON with one object a line."""
    json_lines = text.lstrip().startswith("{")
    entries = _json_lines(text, where) if json_lines else parse_toml(text, where, DisturbanceFile).disturbance
    return _in_order(Disturbance(entry.time_s, entry.what, entry.node, entry.gpu, entry.factor) for entry in entries)


def _json_lines(text: str, where: str) -> Iterator[DisturbanceTable]:
    """One entry for each non-empty line."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _json_entry(line, f"{where}:{number}")


def _json_entry(line: str, where: str) -> DisturbanceTable:
    """A JSON object of texts and numbers, checked as the same lines in TOML: one check and one set of messages."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is not JSON: {error}. Expected one object a line.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: found {line.strip()}; expected an object with time_s, what and node.")
    for key, value in found.items():
        if not isinstance(value, str | int | float) or value in (np.inf, -np.inf) or value != value:
            raise ConfigError(f"{where}: {key!r} is {json.dumps(value)}; expected a text or a finite number.")
    rows = [f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]
    return parse_toml("\n".join(rows), where, DisturbanceTable)


def _in_order(found: Iterable[Disturbance]) -> list[Disturbance]:
    """Sorted by time; equal times keep their order."""
    return sorted(found, key=lambda disturbance: disturbance.time_s)


def _check_above_0(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 < value < np.inf:
            raise UsageError(f"{name} is {value:g}; expected seconds above 0.")


def _stream(seed: int, kind: int, node: int) -> np.random.Generator:
    """A random generator for each node, so that an added node leaves the others unchanged."""
    if seed < 0:
        raise UsageError(f"the seed is {seed}; expected a whole number from 0.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(kind, node))))
