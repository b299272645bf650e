"""Where compiled code is kept between starts, so that each function is compiled once on a machine.

The folder is named after a hash of the sources that compiled code shares, so that an edit (or an upgrade) is never
shadowed by code that was compiled before it. Inside, a function is found by the text of its file: a fresh copy of the
same sources finds it too. A wheel may bring such a folder along (`shipped_folder`); nothing is written there.

Of several processes that need a function one compiles it; the others wait, then load it. Different functions are
compiled side by side.
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
"""In the folder of the cache: a file for each function, locked by who compiles it. A lock ends with its holder."""

_READY: Final = "ready"
"""In the folder of the cache: an empty file for each policy that has run."""

LONGEST_WAIT_S: Final = 900.0
"""A process that waited so long for a lock compiles without it: its holder may be stopped."""

PACKAGE: Final = Path(__file__).resolve().parent.parent

SHIPPED: Final = "machine_code"
"""In the package: the caches that a wheel brings along (`make machine-code`)."""

TEMPORARY: Final = "adlro-compiled-"

CPU_LEVEL: Final = "x86-64-v3"
"""Code is compiled for this kind of processor where it can run, so that machines can share a cache."""

LEVEL_NEEDS: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "cx16", "sahf")

SHARED: Final = (
    "core/compiled.py",
    "core/copying.py",
    "core/engine.py",
    "core/linking.py",
    "core/policy.py",
    "core/records.py",
    "core/rules.py",
    "core/tables.py",
    "decide/choosing.py",
    "decide/lookahead/plans.py",
    "decide/lookahead/ranking.py",
    "decide/network/inference.py",
    "decide/network/paper_q.py",
    "decide/network/past.py",
    "decide/network/planes.py",
    "decide/outlook.py",
    "decide/sorting.py",
    "learn/worlds/batch.py",
    "learn/worlds/envs.py",
    "learn/worlds/episodes.py",
    "predict/expected.py",
    "predict/habits.py",
)
"""Sources whose compiled functions are compiled into those of other files. A function is found by the text of its own
file, which says nothing of what it calls elsewhere."""


# ---- the folder --------------------------------------------------------------------------------------------------


def source_hash() -> str:
    """Hash of all that compiled code of other files depends on: our shared sources, Numba, Python's bytecode."""
    versions = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__}"
    digest = hashlib.sha256(versions.encode())
    for name in sorted(SHARED):
        digest.update(name.encode())
        digest.update((PACKAGE / name).read_bytes())
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


@cache
def shipped_folder() -> Path:
    """Where a wheel brings compiled code for these sources; mostly there is none."""
    return PACKAGE / SHIPPED / source_hash()


def outlasts_this_process() -> bool:
    """Whether compiled code is there at the next start."""
    return not folder_in_use().name.startswith(TEMPORARY)


def is_warm() -> bool:
    """Whether compiled code of an earlier start is there, so that nothing much needs compiling."""
    found = any(any(folder.rglob("*.nbc")) for folder in (folder_in_use(), shipped_folder()))
    return found or bool(numba_config.DISABLE_JIT)


def is_ready(policy: str) -> bool:
    """Whether a policy has run here before, or where the wheel was built, so that all that it needs is compiled."""
    name = quote(policy, safe="")
    found = any((folder / _READY / name).exists() for folder in (folder_in_use(), shipped_folder()))
    return found or bool(numba_config.DISABLE_JIT)


def set_ready(policy: str) -> None:
    """Remember that a policy has run here."""
    with suppress(OSError):
        (folder_in_use() / _READY).mkdir(exist_ok=True)
        (folder_in_use() / _READY / quote(policy, safe="")).touch()


def choose_processor() -> None:
    """Compile for a level of processors that this one belongs to, if there is such a level and nobody chose another."""
    if numba_config.CPU_NAME is None and numba_config.CPU_FEATURES is None:
        has = get_host_cpu_features()
        if all(has.get(feature) for feature in LEVEL_NEEDS):
            numba_config.CPU_NAME, numba_config.CPU_FEATURES = CPU_LEVEL, ""


def set_up() -> None:
    """Tell Numba where compiled code is kept, and for which processors it is compiled."""
    if not numba_config.CACHE_DIR:
        numba_config.CACHE_DIR = str(cache_folder())
    choose_processor()


# ---- the lock ----------------------------------------------------------------------------------------------------


@final
class CompileLock:
    """A lock between processes, for one thread at a time: whoever takes it holds Numba's own compiler lock.

    It may be taken again by its holder. Where the file system has no locks it does nothing.
    """

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._depth = 0
        self._file: IO[bytes] | None = None

    @property
    def is_held(self) -> bool:
        """Whether we hold it."""
        return self._depth > 0

    def __enter__(self) -> None:
        """Wait until nobody else compiles."""
        if not self._depth:
            self._file = self._taken()
        self._depth += 1
        HELD_LOCKS.add(self)

    def __exit__(self, *_: object) -> None:
        """Let the next one compile."""
        self._depth -= 1
        if not self._depth:
            HELD_LOCKS.discard(self)
            if self._file is not None:
                with self._file as file, suppress(OSError):
                    self._file = None
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child may have inherited the file: closing is not enough

    def _taken(self) -> IO[bytes] | None:
        """The locked file; None: there is no lock to be had."""
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
        """In a child: its parent compiles, not we. Closing the file here leaves the parent's lock alone."""
        self._depth, file, self._file = 0, self._file, None
        if file is not None:
            file.close()


HELD_LOCKS: Final[set[CompileLock]] = set()
"""The locks that this process holds."""


def forget_locks() -> None:
    """In a child: hold no lock."""
    while HELD_LOCKS:
        HELD_LOCKS.pop().forget()


os.register_at_fork(after_in_child=forget_locks)


# ---- the cache of a function -------------------------------------------------------------------------------------


@final
class ByText(_CacheLocator):  # type: ignore[misc]
    """Finds a function by the text of its file, wherever and whenever the file was written."""

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        self._py_file = str(path)
        self._line = function.__code__.co_firstlineno
        name = path.relative_to(PACKAGE).as_posix().replace("/", ".") if path.is_relative_to(PACKAGE) else path.name
        self._folder = f"{name.removesuffix('.py')}-{hash_of_file(path)}"

    def get_cache_path(self) -> str:
        """The folder for the functions of the file: its name, and a hash of its text."""
        return str(folder_in_use() / self._folder)

    def get_source_stamp(self) -> str:
        """Nothing: the text is in the name of the folder."""
        return ""

    def get_disambiguator(self) -> str:
        """What tells functions of one name in one file apart."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "ByText | None":
        """For functions of files; those that were typed into an interpreter are found in Numba's own ways."""
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
    """A hash of a file's text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class CacheByText(CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's cache of compiled functions, with our way of finding them first."""

    _locator_classes = (ByText, *CompileResultCacheImpl._locator_classes)


class FunctionCacheByText(FunctionCache):  # type: ignore[misc]
    """The cache of one function."""

    _impl_class = CacheByText


class MissingError(Exception):
    """A function is not in the cache, and we do not hold the lock."""


@final
class CodeCache:
    """The cache of one function. Compiling needs the lock; what no other process could find is not written.

    Parts are not cached, they are in the wholes. Nor are functions that take functions as values: Numba would write
    them, and read, hold and write them again in every process that compiles.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._opened: Any = None
        self.lock = CompileLock(lambda: folder_in_use() / LOCKS / f"{function.__module__}.{function.__qualname__}")

    @property
    def _cache(self) -> Any:
        """Opened when it is first needed: most functions are parts, and opening takes time."""
        if self._opened is None:
            self._opened = FunctionCacheByText(self._function)
        return self._opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function for these types; None if it must be compiled now."""
        if is_inside() or not _can_be_shared(signature):
            return None
        rtsys.initialize(context)
        found = loaded(self._cache, signature, context) or self._shipped(signature, context)
        if found is None and not self.lock.is_held:
            raise MissingError
        return found

    def _shipped(self, signature: Any, context: Any) -> Any:
        """The same from the wheel."""
        if not shipped_folder().is_dir():
            return None
        cache = FunctionCacheByText(self._function)
        base = cache._impl.filename_base
        path = shipped_folder() / Path(cache.cache_path).name
        cache._cache_file = IndexDataCacheFile(cache_path=str(path), filename_base=base, source_stamp="")
        return loaded(cache, signature, context)

    def save_overload(self, signature: Any, compile_result: Any) -> None:
        """Write a compiled function."""
        if not is_part(compile_result) and _can_be_shared(signature):
            with self.lock:
                self._cache.save_overload(signature, compile_result)


def loaded(cache: Any, signature: Any, context: Any) -> Any:
    """What a cache has for these types, or None.

    As `load_overload` of Numba's cache, which would first load all that a compilation needs: a fifth of a second.
    """
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


def is_lasting(of: Any) -> bool:
    """Whether a type means the same in another process. The type of a function that is passed as a value does not."""
    if isinstance(of, types.BaseTuple):  # type: ignore[attr-defined]
        return all(is_lasting(each) for each in of)
    return not isinstance(of, types.WeakType)


def _can_be_shared(signature: Any) -> bool:
    return all(is_lasting(each) for each in getattr(signature, "args", signature))
