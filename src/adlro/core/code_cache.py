"""The cache of compiled code on disk: each function is compiled once on a machine.

The folder's name contains a hash of the sources that compiled code shares, so code from before an edit or an upgrade is
never used. Inside the folder, functions are found by the text of their file, so a fresh copy of the same sources finds
them too. A wheel may ship such a folder (`shipped_folder`); it is read-only.

If several processes need the same function, one compiles it and the others wait and load it. Different functions are
compiled in parallel.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import IO, Any, Final, final
from urllib.parse import quote

import llvmlite
import numba
from llvmlite.binding import get_host_cpu_features
from numba.core import config as numba_config
from numba.core import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.runtime import rtsys

from adlro.core.linking import is_inside, is_part

CACHES_KEPT: Final = 4

LOCKS: Final = "locks"
"""Subfolder of the cache: one file for each function, locked by the process that is compiling it."""

_READY: Final = "ready"
"""Subfolder of the cache: one empty file for each policy that has run."""

LONGEST_WAIT_S: Final = 900.0
"""After this many seconds without the lock a process compiles anyway: the process that holds it may be suspended."""

PACKAGE: Final = Path(__file__).resolve().parent.parent

SHIPPED: Final = "machine_code"
"""Folder of the package with the caches that a wheel ships (`make machine-code`)."""

TEMPORARY: Final = "adlro-compiled-"

CPU_LEVEL: Final = "x86-64-v3"
"""The target processor level, if this machine supports it. One level for all lets machines share a cache."""

LEVEL_NEEDS: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "cx16", "sahf")

SHARED: Final = (
    "core/compiled.py",
    "core/copying.py",
    "core/engine.py",
    "core/heat.py",
    "core/linking.py",
    "core/policy.py",
    "core/readings.py",
    "core/records.py",
    "core/rules.py",
    "core/tables.py",
    "decide/choosing.py",
    "decide/checkpoints/adlro-plan.safetensors",
    "decide/lookahead/plans.py",
    "decide/lookahead/ranking.py",
    "decide/network/corrected_plan.py",
    "decide/network/greedy_q.py",
    "decide/network/inference.py",
    "decide/network/paper_q.py",
    "decide/network/paper_state.py",
    "decide/network/past.py",
    "decide/network/planes.py",
    "decide/network/readings.py",
    "decide/network/sizing_net.py",
    "decide/network/stop_planes.py",
    "decide/network/stopping_q.py",
    "decide/outlook.py",
    "decide/rules/claiming.py",
    "decide/rules/claims.py",
    "decide/rules/corrections.py",
    "decide/rules/eft_claiming.py",
    "decide/rules/elastic.py",
    "decide/rules/exchanges.py",
    "decide/rules/plan.py",
    "decide/rules/pools.py",
    "decide/rules/preemptive.py",
    "decide/rules/sizing.py",
    "decide/rules/timelines.py",
    "decide/sorting.py",
    "learn/worlds/batch.py",
    "learn/worlds/envs.py",
    "learn/worlds/episodes.py",
    "learn/worlds/stopping.py",
    "predict/expected.py",
    "predict/habits.py",
    "predict/memory.py",
)
"""Sources with compiled functions that are compiled into functions of other files.

A function is found by the text of its own file, and that text does not show changes in what it calls elsewhere.
"""


# ---- the folder --------------------------------------------------------------------------------------------------


def source_hash() -> str:
    """Hash of everything that compiled code of other files depends on: shared sources, Numba, Python's bytecode."""
    versions = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__}"
    digest = hashlib.sha256(versions.encode())
    for name in sorted(SHARED):
        digest.update(name.encode())
        digest.update((PACKAGE / name).read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """The cache folder of this user; a temporary folder if that one is not writable."""
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
    """Delete all caches except those of the latest few versions of the sources."""
    by_age = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in by_age[CACHES_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def folder_in_use() -> Path:
    """The folder in which this process stores compiled code."""
    return Path(str(numba_config.CACHE_DIR))


@cache
def shipped_folder() -> Path:
    """The folder in which a wheel ships compiled code for these sources. Usually it does not exist."""
    return PACKAGE / SHIPPED / source_hash()


def outlasts_this_process() -> bool:
    """Whether the compiled code is still there at the next start."""
    return not folder_in_use().name.startswith(TEMPORARY)


def is_warm() -> bool:
    """Whether there is compiled code from an earlier start, so that little has to be compiled."""
    found = any(any(folder.rglob("*.nbc")) for folder in (folder_in_use(), shipped_folder()))
    return found or bool(numba_config.DISABLE_JIT)


def is_ready(policy: str) -> bool:
    """Whether the policy has run here, or where the wheel was built, so that all its functions are compiled."""
    name = quote(policy, safe="")
    found = any((folder / _READY / name).exists() for folder in (folder_in_use(), shipped_folder()))
    return found or bool(numba_config.DISABLE_JIT)


def set_ready(policy: str) -> None:
    """Record that a policy has run here."""
    with suppress(OSError):
        (folder_in_use() / _READY).mkdir(exist_ok=True)
        (folder_in_use() / _READY / quote(policy, safe="")).touch()


def choose_processor() -> None:
    """Compile for CPU_LEVEL if this processor supports it and the user has not chosen another target."""
    if numba_config.CPU_NAME is None and numba_config.CPU_FEATURES is None:
        has = get_host_cpu_features()
        if all(has.get(feature) for feature in LEVEL_NEEDS):
            numba_config.CPU_NAME, numba_config.CPU_FEATURES = CPU_LEVEL, ""


def set_up() -> None:
    """Tell Numba where to store compiled code and for which processor to compile."""
    if not numba_config.CACHE_DIR:
        numba_config.CACHE_DIR = str(cache_folder())
    choose_processor()


# ---- the lock ----------------------------------------------------------------------------------------------------


@final
class CompileLock:
    """A re-entrant lock between processes. Its holder also holds Numba's compiler lock, so only one thread has it.

    On file systems without locks it does nothing.
    """

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._depth = 0
        self._file: IO[bytes] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds it."""
        return self._depth > 0

    def __enter__(self) -> None:
        """Wait until no other process compiles this function."""
        if not self._depth:
            self._file = self._taken()
        self._depth += 1
        HELD_LOCKS.add(self)

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            HELD_LOCKS.discard(self)
            if self._file is not None:
                with self._file as file, suppress(OSError):
                    self._file = None
                    fcntl.flock(file, fcntl.LOCK_UN)  # close() is not enough: a child may have inherited the file

    def _taken(self) -> IO[bytes] | None:
        """The locked file, or None if locking is not possible."""
        try:
            path = self._path()
            path.parent.mkdir(exist_ok=True)
            file = path.open("ab")
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

    def forget(self) -> None:
        """In a child process: the parent holds the lock. Closing the file here does not release it."""
        self._depth, file, self._file = 0, self._file, None
        if file is not None:
            file.close()


HELD_LOCKS: Final[set[CompileLock]] = set()
"""The locks that this process holds."""


def forget_locks() -> None:
    """In a child process: drop the locks inherited from the parent."""
    while HELD_LOCKS:
        HELD_LOCKS.pop().forget()


os.register_at_fork(after_in_child=forget_locks)


# ---- the cache of a function -------------------------------------------------------------------------------------


@final
class ByText(_CacheLocator):  # type: ignore[misc]
    """Finds a function by the text of its file, independent of the file's path and date."""

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        self._py_file = str(path)
        self._line = function.__code__.co_firstlineno
        name = path.relative_to(PACKAGE).as_posix().replace("/", ".") if path.is_relative_to(PACKAGE) else path.name
        self._folder = f"{name.removesuffix('.py')}-{hash_of_file(path)}"

    def get_cache_path(self) -> str:
        """The folder for the functions of this file: its name and a hash of its text."""
        return str(folder_in_use() / self._folder)

    def get_source_stamp(self) -> str:
        """Empty, because the folder's name already depends on the text."""
        return ""

    def get_disambiguator(self) -> str:
        """Distinguishes functions that have the same name in one file."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "ByText | None":
        """A locator for functions of our files. For code typed into an interpreter Numba's own locators are used."""
        path = Path(py_file).resolve()
        if not path.is_file():
            return None
        found = cls(py_func, path)
        try:
            found.ensure_cache_path()
        except OSError:
            return None
        return found


@cache
def hash_of_file(path: Path) -> str:
    """Hash of a file's text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class CacheByText(CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's cache of compiled functions, which tries our locator first."""

    _locator_classes = (ByText, *CompileResultCacheImpl._locator_classes)


class FunctionCacheByText(FunctionCache):  # type: ignore[misc]
    """The cache of one function."""

    _impl_class = CacheByText


class MissingError(Exception):
    """A function is not in the cache, and this process does not hold the lock."""


@final
class CodeCache:
    """The cache of one function. Compiling requires the lock; results that no other process could use are not written.

    Parts are not cached, because the wholes contain them (`linking.py`). Functions that take functions as values are
    not cached either: every process that compiles would read, keep and write them again.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._opened: Any = None
        self.lock = CompileLock(lambda: folder_in_use() / LOCKS / f"{function.__module__}.{function.__qualname__}")

    @property
    def _cache(self) -> Any:
        """Opened on first use: most functions are parts, and opening takes time."""
        if self._opened is None:
            self._opened = FunctionCacheByText(self._function)
        return self._opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function for these types, or None if it must be compiled now."""
        if is_inside() or not _can_be_shared(signature):
            return None
        rtsys.initialize(context)
        found = loaded(self._cache, signature, context) or self._shipped(signature, context)
        if found is None and not self.lock.is_held:
            raise MissingError
        return found

    def _shipped(self, signature: Any, context: Any) -> Any:
        """The compiled function for these types from the wheel, or None."""
        if not shipped_folder().is_dir():
            return None
        cache = FunctionCacheByText(self._function)
        base = cache._impl.filename_base
        path = shipped_folder() / Path(cache.cache_path).name
        cache._cache_file = IndexDataCacheFile(cache_path=str(path), filename_base=base, source_stamp="")
        return loaded(cache, signature, context)

    def save_overload(self, signature: Any, compile_result: Any) -> None:
        """Write a compiled function to the cache."""
        if not is_part(compile_result) and _can_be_shared(signature):
            with self.lock:
                self._cache.save_overload(signature, compile_result)


def loaded(cache: Any, signature: Any, context: Any) -> Any:
    """What a cache has for these types, or None.

    Numba's own `load_overload` would first load everything that a compilation needs, which takes 0.2 s.
    """
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


def is_lasting(of: Any) -> bool:
    """Whether a type means the same in another process. The type of a function passed as a value does not."""
    if isinstance(of, types.BaseTuple):  # type: ignore[attr-defined]
        return all(is_lasting(each) for each in of)
    return not isinstance(of, types.WeakType)


def _can_be_shared(signature: Any) -> bool:
    return all(is_lasting(each) for each in getattr(signature, "args", signature))
