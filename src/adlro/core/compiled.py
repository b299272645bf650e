"""Compilation stands at the edge: `@compiled` functions are plain Python that Numba compiles on first use.

The result is cached in a folder named after a hash of the sources that compiled code shares, so that an edit (or an
upgrade) is never shadowed by code that was compiled before it. Under NUMBA_DISABLE_JIT=1 everything runs uncompiled.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core import config as numba_config
from numba.core.dispatcher import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")

CACHES_KEPT: Final = 4


SHARED: Final = (
    "core/compiled.py",
    "core/engine.py",
    "core/policy.py",
    "core/records.py",
    "core/rules.py",
    "core/tables.py",
    "decide/choosing.py",
    "decide/network.py",
    "decide/outlook.py",
    "decide/paper_q.py",
    "decide/past.py",
    "decide/planes.py",
    "decompose/expected.py",
    "decompose/habits.py",
    "learn/batch.py",
    "learn/envs.py",
    "learn/episodes.py",
)
"""Sources whose compiled functions are compiled into those of other files. Numba itself notices changes of the file
that a function stands in, but not of what it calls elsewhere."""


def source_hash() -> str:
    """Hash of everything that compiled code of other files depends on: our shared sources, Numba and Python."""
    digest = hashlib.sha256(f"{sys.version} {numba.__version__}".encode())
    package = Path(__file__).resolve().parent.parent
    for path in sorted(path for pattern in SHARED for path in package.glob(pattern)):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Where compiled code is kept between starts; a temporary folder if the user's cache cannot be written."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adlro" / "compiled"
    folder = root / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        forget_old_caches(root)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="adlro-compiled-"))
    return folder


def forget_old_caches(root: Path) -> None:
    """Keep the caches of the few latest versions of the sources."""
    by_age = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in by_age[CACHES_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def is_warm() -> bool:
    """Whether compiled code of an earlier start is there, so that nothing much needs compiling."""
    folder = Path(str(numba_config.CACHE_DIR))
    return any(folder.rglob("*.nbc")) or bool(numba_config.DISABLE_JIT)


if not numba_config.CACHE_DIR:
    numba_config.CACHE_DIR = str(cache_folder())


# Functions take a whole View, some twenty arrays. Counting references to each at every call would cost more than the
# work itself (measured: seven times), so reference counting is off, and calls are inlined. Functions compiled in this
# way may not create arrays; `compiled_allocating` is for those that must.
FAST: Final = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on first use and cache the result. It may read and write arrays, not create them."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **FAST)(function))


def compiled_alone(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only Python calls: it is not made to be compiled into others."""
    return cast(Callable[P, R], numba.njit(**FAST)(function))


def compiled_allocating(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that creates arrays of its own."""
    return cast(Callable[P, R], numba.njit(forceinline=True, cache=True, nogil=True, error_model="numpy")(function))


def compiled_here(function: Callable[P, R], allocating: bool = False) -> Callable[P, R]:
    """Compile a function that closes over others; it cannot be cached, and is compiled anew at each start."""
    counting = {} if allocating else {"_nrt": False}
    return cast(Callable[P, R], numba.njit(forceinline=True, nogil=True, error_model="numpy", **counting)(function))


@compiled
def widened(index: int) -> int:
    """An index as a 64-bit number: compiled code wants one type where the tables have another."""
    return np.int64(index)  # type: ignore[return-value]


def is_compiled(thing: object) -> bool:
    """Whether this is a compiled function."""
    return isinstance(thing, Dispatcher)


def compiled_with(signature: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile for one signature, so that first-class functions can be passed without compiling again for each.

    Unlike Numba's own eager form this waits for the first call: commands that simulate nothing start at once.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        ready: list[Callable[P, R]] = []

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not ready:
                ready.append(numba.njit(signature, **FAST)(function))
            return ready[0](*args, **kwargs)

        call.__doc__, call.__name__ = function.__doc__, function.__name__
        return call

    return decorate
