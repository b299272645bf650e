"""Worlds in a file, so that a machine that only trains does not need the code that made them."""

import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError
from adlro.core.tables import FORM, GPU, JOB, NODE, PART, POOL, SITE
from adlro.learn.worlds.envs import WORLD, Worlds

RECORDS: Final = {
    "info": WORLD, "jobs": JOB, "sites": SITE, "nodes": NODE, "gpus": GPU, "forms": FORM, "pools": POOL, "parts": PART,
}  # fmt: skip


def save_worlds(path: Path, worlds: Worlds) -> None:
    """Write worlds to an .npz file."""
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in worlds._asdict().items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def with_columns(array: Any, dtype: "np.dtype[Any]", name: str) -> Any:
    """The records with our columns in our order. NumPy's file format loses their alignment."""
    columns = dtype.names or ()
    if set(array.dtype.names or ()) != set(columns):
        raise ValueError(f"'{name}' has other columns")
    if array.dtype.names == columns and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    ours = np.zeros(array.shape, dtype)
    for column in columns:
        ours[column] = array[column]
    return ours


def load_worlds(path: Path) -> Worlds:
    """The worlds of an .npz file."""
    found = {}
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise ValueError("it is a single array")
        with opened as file:
            for name in Worlds._fields:
                array = np.ascontiguousarray(file[name])
                if name in RECORDS:
                    array = with_columns(array, RECORDS[name], name).view(np.recarray)
                found[name] = array
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(
            f"{path}: not a file of worlds of this version ({error}). Make it again: adlro train writes worlds.npz."
        ) from None
    return Worlds(**found)
