"""Writes the files of a training: checkpoints (weights and their provenance), and the state for resuming.

Both are safetensors files, which contain arrays and text and no code. Each file is written under another name and then
renamed, so that a process killed while writing leaves the previous file intact.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from adlro.core.errors import CheckpointError
from adlro.decide.checkpoint import (
    KEY,
    LARGEST,
    STOPS_PART,
    WITHOUT_STOPS,
    Arrays,
    format_of,
    may_stop,
    read_arrays,
)

STATE: Final = "state.safetensors"
BEST: Final = "best.safetensors"
LAST: Final = "last.safetensors"

_STATE_FORMAT: Final = WITHOUT_STOPS
"""The format of saved states. A state of a training in which no job is stopped is as it was in this format."""


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], provenance: Mapping[str, Any]) -> None:
    """Write the weights of a network and their provenance. Refuses NaN and infinite weights."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"{path}: not written, because '{name}' has NaN or infinite values.")
    text = json.dumps({"format": format_of(arrays), **provenance}, allow_nan=False)
    check_size(arrays, len(text), str(path))
    _put(path, arrays, {KEY: text})


def write_both(path: Path, starts: Path, stops: Path) -> None:
    """Write two checkpoints of preset adlro into one: the network that never stops jobs, and the one that may."""
    (calm, about), (bold, about_bold) = read_arrays(starts), read_arrays(stops)
    if may_stop(calm) or not may_stop(bold):
        raise CheckpointError(
            f"{starts}, {stops}: expected a network that never stops jobs, and one that may. Exchange the two?"
        )
    arrays = calm | {STOPS_PART + name: array for name, array in bold.items()}
    write_checkpoint(path, arrays, about | {"stops": about_bold})


def check_size(arrays: Mapping[str, np.ndarray[Any, Any]], text: int, where: str) -> None:
    """Raise an error if a network is too large for a checkpoint with a text of this many bytes."""
    size = sum(array.nbytes for array in arrays.values()) + text + 4096
    if size > LARGEST:
        raise CheckpointError(
            f"{where}: a checkpoint would have {size:,} bytes; expected at most {LARGEST:,}. Use fewer channels, or, "
            "for the preset paper, which has weights for each GPU, a smaller cluster."
        )


def write_state(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], told: Mapping[str, Any]) -> None:
    """Write the complete state of a training."""
    _put(path, arrays, {KEY: json.dumps({"state": _STATE_FORMAT, **told})})


def read_state(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read the complete state of a training."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected the folder of a training with a saved state.")
    try:
        with safe_open(path, framework="numpy") as file:
            told = json.loads((file.metadata() or {}).get(KEY, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a saved state of a training ({str(error).splitlines()[0]}).") from None
    if not isinstance(told, dict) or told.get("state") != _STATE_FORMAT:
        raise CheckpointError(f"{path}: not a saved state of this version. Start a new training.")
    return arrays, told


def _put(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], metadata: dict[str, str]) -> None:
    """Write a file completely or not at all."""
    beside = path.with_name(path.name + ".new")
    beside.touch()
    mode = beside.stat().st_mode  # as the user's other files: the library's own mode excludes everybody else
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, beside, metadata)
    beside.chmod(mode)
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)
