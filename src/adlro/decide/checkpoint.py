"""Reads checkpoints: the weights of a network and their provenance, without the library that trained it.

A checkpoint is a safetensors file: named arrays and a JSON text, and no code. `learn/train/checkpoint.py` writes it.
The one that ships has two sets of weights: one for worlds where no job may be stopped, one for those where jobs may.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from adlro.core.errors import CheckpointError
from adlro.decide.network.inference import Weights
from adlro.decide.network.planes import (
    PAIR_PLANES,
    PAIR_STOP_PLANES,
    POOL_PLANES,
    ROW_PLANES,
    ROW_STOP_PLANES,
    WHOLE_PLANES,
    WHOLE_STOP_PLANES,
)

FORMAT: Final = 4
"""Increased when the network's inputs or its arithmetic change."""

WITHOUT_STOPS: Final = 3
"""The format of networks that never stop a job. They are as before format 4, so earlier versions can read them too."""

KEY: Final = "adlro"
"""Key of the provenance in the file's metadata."""

STOPS_PART: Final = "stops/"
"""What the names of the second set begin with, the weights for worlds where jobs may be stopped."""

LARGEST: Final = 2_000_000
"""Largest size of a checkpoint in bytes."""

Arrays = dict[str, npt.NDArray[Any]]


def read_arrays(path: Path, stops: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a checkpoint by name, and its provenance; with `stops` those of its second set."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected a checkpoint, as `adlro train` writes it.")
    if path.stat().st_size > LARGEST:
        raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes; a checkpoint has at most {LARGEST:,}.")
    try:
        with safe_open(path, framework="numpy") as file:
            provenance = json.loads((file.metadata() or {}).get(KEY, "null"))
            arrays = {name: np.ascontiguousarray(file.get_tensor(name)) for name in sorted(file.keys())}
    except (SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint, or truncated ({str(error).splitlines()[0]}). Train again, or copy it again."
        ) from None
    if not isinstance(provenance, dict) or not isinstance(provenance.get("format"), int):
        raise CheckpointError(
            f"{path}: not a checkpoint of adlro: it has arrays, but no format. Pass a file that `adlro train` wrote."
        )
    if provenance["format"] not in (FORMAT, WITHOUT_STOPS):
        age = "newer" if provenance["format"] > FORMAT else "older"
        raise CheckpointError(
            f"{path}: format {provenance['format']}, {age} than ours, {FORMAT}. "
            f"{'Upgrade adlro.' if age == 'newer' else 'Train again.'}"
        )
    for name, array in arrays.items():
        if not (np.abs(array) <= np.finfo(np.float32).max).all():  # the network computes in single precision
            raise CheckpointError(f"{path}: '{name}' has NaN or infinite values. Train again.")
    about = provenance.pop("stops", None)
    if not stops:
        return {name: array for name, array in arrays.items() if not name.startswith(STOPS_PART)}, provenance
    if not isinstance(about, dict):
        raise CheckpointError(
            f"{path}: it has no second set of weights, for stopping jobs; expected the checkpoint that ships."
        )
    return {
        name.removeprefix(STOPS_PART): array for name, array in arrays.items() if name.startswith(STOPS_PART)
    }, about


def read_weights(path: Path, stops: bool = False) -> tuple[Weights, dict[str, Any]]:
    """The weights of a network over (job, pool) pairs, and their provenance; with `stops` those of the second set."""
    arrays, provenance = read_arrays(path, stops)
    if provenance.get("preset") != "adlro":
        raise CheckpointError(
            f"{path}: its preset is {provenance.get('preset')!r}; expected 'adlro', which works on any cluster."
        )
    channels, layers = arrays["first"].size if "first" in arrays else 0, len(arrays.get("bias", ()))
    for name, shape in shapes(channels, layers, may_stop(arrays)).items():
        if name not in arrays:
            raise CheckpointError(f"{path}: '{name}' is missing; expected a checkpoint of the preset 'adlro'.")
        if arrays[name].shape != shape:
            raise CheckpointError(f"{path}: '{name}' has the shape {arrays[name].shape}; expected {shape}.")
    found = {name: arrays[name].astype(np.float32) for name in Weights._fields if name in arrays}
    return Weights(**found), provenance


def format_of(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    """The format of a checkpoint with these arrays."""
    return FORMAT if may_stop(arrays) else WITHOUT_STOPS


def may_stop(arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether the network with these arrays may stop and move jobs."""
    return "claim" in arrays and arrays["claim"].size > 0


def with_stops(arrays: Arrays, boldness: float) -> Arrays:
    """The arrays of a network that may stop jobs too. It starts jobs as the given one does, whatever else it sees.

    It makes a claim or a move that the rule would make, if no start is better than waiting by more than the rule's
    score times `boldness`.
    """
    channels = arrays["first"].size
    more = {"row": ROW_STOP_PLANES, "pair": PAIR_STOP_PLANES, "whole": WHOLE_STOP_PLANES}
    found = dict(arrays)
    for name, planes in more.items():
        found[name] = np.concatenate([arrays[name], np.zeros((len(planes), channels), np.float32)])
    return found | {"claim": np.append(np.zeros(channels), boldness).astype(np.float32)}


def shapes(channels: int, layers: int, stops: bool = False) -> dict[str, tuple[int, ...]]:
    """The shape of every array of a network."""
    more = 1 if stops else 0
    claim: dict[str, tuple[int, ...]] = {"claim": (channels + 1,)} if stops else {}
    return claim | {
        "row": (len(ROW_PLANES) + more * len(ROW_STOP_PLANES), channels),
        "pool": (len(POOL_PLANES), channels),
        "pair": (len(PAIR_PLANES) + more * len(PAIR_STOP_PLANES), channels),
        "whole": (len(WHOLE_PLANES) + more * len(WHOLE_STOP_PLANES), channels),
        "first": (channels,),
        "own": (layers, channels, channels),
        "along": (layers, channels, channels),
        "across": (layers, channels, channels),
        "common": (layers, 2 * channels, channels),
        "bias": (layers, channels),
        "advantage": (channels,),
        "hidden": (2 * channels, channels),
        "hidden_bias": (channels,),
        "waiting": (channels + 1,),
        "value": (channels + 1,),
        "trust": (1,),
    }
