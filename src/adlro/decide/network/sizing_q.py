"""The learned policy that resizes jobs, and those of users' own such networks (`sizing_net.py`)."""

from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from adlro.core.errors import CheckpointError
from adlro.core.policy import Choose, Policy
from adlro.core.tables import View
from adlro.decide.checkpoint import Arrays, read_arrays
from adlro.decide.network.sizing_net import JOB_INPUTS, SIZE_INPUTS, SizingWeights, learned_sizing
from adlro.decide.rules.elastic import SizingRounds

ELASTIC: Final = "elastic"
"""The preset of such a network, in its provenance."""


def sizing_weights(arrays: Arrays, where: str) -> SizingWeights:
    """The weights in these arrays of a checkpoint."""
    hidden = arrays["bias"].size if "bias" in arrays else 0
    shapes = (len(JOB_INPUTS), hidden), (len(SIZE_INPUTS), hidden), (hidden,), (hidden,)
    for name, shape in zip(SizingWeights._fields, shapes, strict=True):
        if name not in arrays:
            raise CheckpointError(f"{where}: '{name}' is missing; expected a checkpoint of the preset '{ELASTIC}'.")
        if arrays[name].shape != shape:
            raise CheckpointError(f"{where}: '{name}' has the shape {arrays[name].shape}; expected {shape}.")
    return SizingWeights(*(arrays[name].astype(np.float64) for name in SizingWeights._fields))


@cache
def shipped_weights() -> SizingWeights:
    """The weights that ship."""
    with resources.as_file(resources.files("adlro.decide") / "checkpoints" / "adlro-elastic.safetensors") as path:
        return sizing_weights(read_arrays(path)[0], str(path))


def _policy(name: str, summary: str, make: Callable[[View, int], Choose]) -> Policy:
    """A policy of such a network."""
    return Policy(
        name, summary, make=make, preemptive=True, heeds_marks=True, needs=("estimate", "rates"), resizes=True
    )


def _rounds(weights: SizingWeights, view: View) -> Choose:
    """The rounds of one run, with this network."""
    return SizingRounds(view, partial(learned_sizing, weights=weights))


def sizing_policy(weights: SizingWeights, path: Path) -> Policy:
    """The policy of a user's own network that resizes jobs, named after its file."""
    summary = f"the network of {path.name}, which resizes jobs"
    return _policy(path.stem, summary, lambda view, seed: _rounds(weights, view))


POLICIES: Final = (
    _policy(
        "adlro-elastic",
        "learned: resizes jobs in rounds of 1 min as rank-elastic does, with values that a network corrects",
        lambda view, seed: _rounds(shipped_weights(), view),
    ),
)
