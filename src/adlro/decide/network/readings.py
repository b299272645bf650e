"""What readings of GPUs are worth: a small correction of Q, for planes that the network was not trained with.

The readings of a pair of a job and a site say how much worse the site is than the best of the job's present choices:
its measured pace, how hot its GPUs are, how much of their memory bandwidth is in use, how unsure the believed speed is.
Where nothing is read, all of them are 0, and Q is as without them. docs/policies.md has the definition,
scripts/train_readings.py the training.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled
from adlro.core.errors import CheckpointError
from adlro.core.readings import gauge_at, is_unsure, unsure_of
from adlro.core.rules import pace_at
from adlro.core.tables import FOREVER, NOBODY, Floats, View
from adlro.decide.checkpoint import Arrays, read_arrays
from adlro.decide.outlook import Outlook, quick_log

READINGS: Final = ("slower as measured", "hotter", "less bandwidth left", "less sure")
"""The readings of a pair, each from 0 on; `compare` computes them in this order."""

SITUATIONS: Final = ("always", "length of the job", "jobs waiting")
"""What a reading is multiplied by; `see_situation` computes them in this order."""

WARM_C: Final = 60.0
"""A GPU that is so far below its limit counts as cold."""

MOST_LOG: Final = 3.0
"""Logarithms of ratios are cut off here."""

PRESET: Final = "readings"
"""The preset of such weights, in their provenance."""


class Contrast(NamedTuple):
    """The readings of one pair, in the order of READINGS."""

    slower: float
    hotter: float
    busier: float
    unsure: float


@compiled
def is_read(view: View) -> bool:
    """Whether policies see any reading at all."""
    return view.clock[0].paced != 0 or view.clock[0].metered != 0 or is_unsure(view)


@compiled
def read_of(view: View, j: int, s: int) -> Contrast:
    """What was read at a site where the job may start: logarithm of the pace, warmth, bandwidth in use, spread."""
    pace = pace_at(view, j, s) if view.clock[0].paced != 0 else 1.0
    warmth, used = 0.0, 0.0
    if view.clock[0].metered != 0:
        gauge = gauge_at(view, j, s)
        warmth, used = max(0.0, 1.0 - gauge.headroom / WARM_C), 1.0 - gauge.bandwidth
    log_pace = quick_log(pace) if pace != 1.0 and pace > 0.0 else 0.0
    return Contrast(-log_pace, warmth, used, unsure_of(view, view.jobs[j].kind, view.sites[s].form))


@compiled
def add_worth(view: View, outlook: Outlook, w: int, worth: Floats, bonus: Floats) -> None:
    """Add what the readings are worth to the bonus of each legal pair of a row. [R, S], [W * P]"""
    pools = len(view.pools)
    j = outlook.rows[w]
    slower, hotter, busier, unsure = FOREVER, FOREVER, FOREVER, FOREVER
    choices = 0
    for p in range(pools):
        if outlook.spot[w, p] != NOBODY:
            read = read_of(view, j, outlook.spot[w, p])
            slower, hotter = min(slower, read.slower), min(hotter, read.hotter)
            busier, unsure = min(busier, read.busier), min(unsure, read.unsure)
            choices += 1
    if choices < 2:
        return
    length = min(max(quick_log(outlook.brief[w] / outlook.unit[0]), -MOST_LOG), MOST_LOG)
    waiting = min(quick_log(1.0 + view.clock[0].queued / max(1, len(view.gpus))), MOST_LOG)
    for p in range(pools):
        if outlook.spot[w, p] == NOBODY:
            continue
        read = read_of(view, j, outlook.spot[w, p])
        total = 0.0
        total += (read.slower - slower) * (worth[0, 0] + worth[0, 1] * length + worth[0, 2] * waiting)
        total += (read.hotter - hotter) * (worth[1, 0] + worth[1, 1] * length + worth[1, 2] * waiting)
        total += (read.busier - busier) * (worth[2, 0] + worth[2, 1] * length + worth[2, 2] * waiting)
        total += (read.unsure - unsure) * (worth[3, 0] + worth[3, 1] * length + worth[3, 2] * waiting)
        bonus[w * pools + p] += total


def no_worth() -> Floats:
    """Readings that are worth nothing."""
    return np.zeros((len(READINGS), len(SITUATIONS)))


# ---- the checkpoint that ships -----------------------------------------------------------------------------------


def worth_of_arrays(arrays: Arrays, where: str) -> Floats:
    """The weights in these arrays of a checkpoint."""
    shape = no_worth().shape
    found = arrays.get("worth")
    if found is None or found.shape != shape:
        said = "is missing" if found is None else f"has the shape {found.shape}"
        raise CheckpointError(f"{where}: 'worth' {said}; expected the shape {shape}, of the preset '{PRESET}'.")
    return np.ascontiguousarray(found, np.float64)


@cache
def shipped_worth() -> Floats:
    """What readings are worth to the network that ships."""
    path = Path(str(resources.files("adlro.decide").joinpath("checkpoints", "adlro-readings.safetensors")))
    return worth_of_arrays(read_arrays(path)[0], str(path))
