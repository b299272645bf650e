"""Compilation stands at the edge: `@compiled` functions are plain Python that Numba compiles on first use.

The result is cached in a folder named after a hash of the sources that compiled code shares, so that an edit (or an
upgrade) is never shadowed by code that was compiled before it. Under NUMBA_DISABLE_JIT=1 everything runs uncompiled.

Of several processes on an empty cache one compiles at a time; the others wait, then load what it compiled.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import IO, Any, Final, ParamSpec, TypeVar, cast, final

import numba
import numpy as np
from numba.core import config as numba_config
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")

CACHES_KEPT: Final = 4

LOCK_FILE: Final = "compiling.lock"
"""In the folder of the cache; who compiles holds it. It is released when its holder dies."""

LONGEST_WAIT_S: Final = 900.0
"""A process that waited so long for the lock compiles without it: its holder may be stopped."""

FUNCTIONS_HELD: Final = 8192
"""Functions that Numba has read from the cache and keeps hold of. Its own 128 are fewer than we have."""


SHARED: Final = (
    "core/compiled.py",
    "core/copying.py",
    "core/engine.py",
    "core/policy.py",
    "core/records.py",
    "core/rules.py",
    "core/tables.py",
    "decide/choosing.py",
    "decide/network/inference.py",
    "decide/network/paper_q.py",
    "decide/network/past.py",
    "decide/network/planes.py",
    "decide/outlook.py",
    "learn/worlds/batch.py",
    "learn/worlds/envs.py",
    "learn/worlds/episodes.py",
    "predict/expected.py",
    "predict/habits.py",
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


TEMPORARY: Final = "adlro-compiled-"


def cache_folder() -> Path:
    """Where compiled code is kept between starts; a temporary folder if the user's cache cannot be written."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adlro" / "compiled"
    folder = root / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        forget_old_caches(root)
    except OSError:
        return Path(tempfile.mkdtemp(prefix=TEMPORARY))
    return folder


def forget_old_caches(root: Path) -> None:
    """Keep the caches of the few latest versions of the sources."""
    by_age = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in by_age[CACHES_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def folder_in_use() -> Path:
    """The folder in which this process keeps compiled code."""
    return Path(str(numba_config.CACHE_DIR))


def outlasts_this_process() -> bool:
    """Whether compiled code is there at the next start."""
    return not folder_in_use().name.startswith(TEMPORARY)


def is_warm() -> bool:
    """Whether compiled code of an earlier start is there, so that nothing much needs compiling."""
    folder = folder_in_use()
    return any(folder.rglob("*.nbc")) or bool(numba_config.DISABLE_JIT)


if not numba_config.CACHE_DIR:
    numba_config.CACHE_DIR = str(cache_folder())

_DISPATCHER: Final = cast(Any, Dispatcher)
_DISPATCHER._recent = deque(_DISPATCHER._recent, maxlen=max(FUNCTIONS_HELD, numba_config.FUNCTION_CACHE_SIZE))


class _MissingError(Exception):
    """A function is not in the cache, and we do not hold the lock."""


@final
class CompileLock:
    """A lock between processes, for one thread at a time: whoever takes it holds Numba's own compiler lock.

    It may be taken again by its holder. Where the file system has no locks it does nothing.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._depth = 0
        self._file: IO[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)

    @property
    def is_held(self) -> bool:
        """Whether we hold it."""
        return self._depth > 0

    def __enter__(self) -> None:
        """Wait until nobody else compiles."""
        if not self._depth:
            self._file = self._taken()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """Let the next one compile."""
        self._depth -= 1
        if not self._depth and self._file is not None:
            with self._file as file, suppress(OSError):
                self._file = None
                fcntl.flock(file, fcntl.LOCK_UN)  # a child may have inherited the file: closing is not enough

    def _taken(self) -> IO[bytes] | None:
        """The locked file; None: there is no lock to be had."""
        try:
            file = (self._folder() / LOCK_FILE).open("ab")
        except OSError:
            return None
        waited_s, pause_s = 0.0, 0.005
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if waited_s < LONGEST_WAIT_S:
                    Event().wait(pause_s)
                    waited_s, pause_s = waited_s + pause_s, min(0.1, pause_s * 1.5)
                    continue
            except OSError:
                pass
            except BaseException:
                file.close()
                raise
            file.close()
            return None

    def _forget(self) -> None:
        """In a child: its parent compiles, not we. Closing the file here leaves the parent's lock alone."""
        self._depth, file, self._file = 0, self._file, None
        if file is not None:
            file.close()


COMPILING: Final = CompileLock(folder_in_use)


def is_lasting(of: Any) -> bool:
    """Whether a type means the same in another process. The type of a function that is passed as a value does not."""
    if isinstance(of, types.BaseTuple):  # type: ignore[attr-defined]
        return all(is_lasting(each) for each in of)
    return not isinstance(of, types.WeakType)


@final
class _Cache:
    """Numba's cache of one function. Compiling needs the lock; what no other process could find is not written.

    Numba would write functions passed as values, and read, hold and write them again in every process that compiles:
    with "underlying object has vanished" once they are more than it holds.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function for these types; None if it must be compiled now."""
        if not _can_be_shared(signature):
            return None
        found = self._cache.load_overload(signature, context)
        if found is None and not COMPILING.is_held:
            raise _MissingError
        return found

    def save_overload(self, signature: Any, compiled_function: Any) -> None:
        """Write a compiled function."""
        if _can_be_shared(signature):
            with COMPILING:
                self._cache.save_overload(signature, compiled_function)


def _can_be_shared(signature: Any) -> bool:
    return all(is_lasting(each) for each in getattr(signature, "args", signature))


def is_compiled(thing: object) -> bool:
    """Whether this is a compiled function."""
    return isinstance(thing, Dispatcher)


def _one_at_a_time(function: Any) -> Any:
    """Let a compiled function take the lock when it is not in the cache."""
    if not is_compiled(function):
        return function  # NUMBA_DISABLE_JIT
    compile_now = function.compile

    def compile_or_load(signature: Any) -> Any:
        try:
            return compile_now(signature)
        except _MissingError:
            with global_compiler_lock, COMPILING:
                return compile_now(signature)  # it looks again: another process may have compiled it meanwhile

    function._cache = _Cache(function._cache)
    function.compile = compile_or_load
    return function


# Functions take a whole View, some twenty arrays. Counting references to each at every call would cost more than the
# work itself (measured: seven times), so reference counting is off, and calls are inlined. Functions compiled in this
# way may not create arrays; `compiled_allocating` is for those that must.
FAST: Final = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on first use and cache the result. It may read and write arrays, not create them."""
    return cast(Callable[P, R], _one_at_a_time(numba.njit(forceinline=True, **FAST)(function)))


def compiled_alone(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only Python calls: it is not made to be compiled into others."""
    return cast(Callable[P, R], _one_at_a_time(numba.njit(**FAST)(function)))


def compiled_allocating(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that creates arrays of its own."""
    found = numba.njit(forceinline=True, cache=True, nogil=True, error_model="numpy")(function)
    return cast(Callable[P, R], _one_at_a_time(found))


def compiled_here(function: Callable[P, R], allocating: bool = False) -> Callable[P, R]:
    """Compile a function that closes over others; it cannot be cached, and is compiled anew at each start."""
    counting = {} if allocating else {"_nrt": False}
    return cast(Callable[P, R], numba.njit(forceinline=True, nogil=True, error_model="numpy", **counting)(function))


@compiled
def widened(index: int) -> int:
    """An index as a 64-bit number: compiled code wants one type where the tables have another."""
    return np.int64(index)  # type: ignore[return-value]


def compiled_with(signature: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile for one signature, so that first-class functions can be passed without compiling again for each.

    Unlike Numba's own eager form this waits for the first call: commands that simulate nothing start at once.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        ready: list[Callable[P, R]] = []

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not ready:
                found = _one_at_a_time(numba.njit(**FAST)(function))
                if is_compiled(found):
                    found.compile(signature)
                    found.disable_compile()
                ready.append(found)
            return ready[0](*args, **kwargs)

        call.__doc__, call.__name__ = function.__doc__, function.__name__
        return call

    return decorate
