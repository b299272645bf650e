"""Compilation: `@compiled` functions are plain Python that Numba compiles on first use.

The result is cached on disk (`code_cache.py`). Functions that are only called from compiled code are not compiled
separately, but as parts of their callers (`linking.py`). With NUMBA_DISABLE_JIT=1 everything runs uncompiled.
"""

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
import numba.experimental.function_type
import numpy as np
from numba.core import config as numba_config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from adlro.core.code_cache import CodeCache, MissingError, set_up
from adlro.core.linking import Compiler, link

P = ParamSpec("P")
R = TypeVar("R")

FUNCTIONS_HELD: Final = 8192
"""Number of functions loaded from the cache that Numba keeps in memory. Its default of 128 is too small for us."""

set_up()

# Numba imports numba.experimental.function_type when a function is first passed as a value, and the module then adds
# to a table of types. A thread that looks up a type at that moment fails ("dictionary changed size during iteration").
# So it is imported above, before there are threads.

_DISPATCHER: Final = cast(Any, Dispatcher)
_DISPATCHER._recent = deque(_DISPATCHER._recent, maxlen=max(FUNCTIONS_HELD, numba_config.FUNCTION_CACHE_SIZE))


def is_compiled(thing: object) -> bool:
    """Whether this is a compiled function."""
    return isinstance(thing, Dispatcher)


def _jitted(function: Callable[..., Any], cached: bool = True, **options: Any) -> Any:
    """The compiled function. It takes its cache lock if the cache does not contain it."""
    found: Any = numba.njit(pipeline_class=Compiler, nogil=True, error_model="numpy", **options)(function)
    if not is_compiled(found):
        return found  # with NUMBA_DISABLE_JIT=1
    if cached:
        cache = found._cache = CodeCache(function)
        compile_now = found.compile

        def compile_or_load(signature: Any) -> Any:
            try:
                return compile_now(signature)
            except MissingError:
                with global_compiler_lock, cache.lock:
                    return compile_now(signature)  # it checks the cache again: another process may have compiled it

        found.compile = compile_or_load
    link(found)
    return found


# Functions take a whole View, about twenty arrays. Counting references to each of them at every call would cost more
# than the work itself (measured: seven times), so reference counting is off and calls are inlined. Functions compiled
# like this must not create arrays; use `compiled_allocating` for those that do.
UNCOUNTED: Final = {"_nrt": False}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function on first use and cache the result. It may read and write arrays, but not create them."""
    return cast(Callable[P, R], _jitted(function, forceinline=True, **UNCOUNTED))


def compiled_alone(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function without inlining it: for calls from Python, and for long functions with several callers."""
    return cast(Callable[P, R], _jitted(function, **UNCOUNTED))


def compiled_allocating(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that creates arrays."""
    return cast(Callable[P, R], _jitted(function, forceinline=True))


def compiled_here(function: Callable[P, R], allocating: bool = False) -> Callable[P, R]:
    """Compile a function that closes over other functions. It cannot be cached and is compiled at every start."""
    counting = {} if allocating else UNCOUNTED
    return cast(Callable[P, R], _jitted(function, cached=False, forceinline=True, **counting))


@compiled
def widened(index: int) -> int:
    """An index as a 64-bit integer: tables store 32 bits, and compiled code needs one type everywhere."""
    return np.int64(index)  # type: ignore[return-value]


def compiled_with(signature: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile for one signature, so that passing another first-class function does not compile it again.

    Unlike Numba's eager compilation it waits for the first call, so commands that simulate nothing start at once.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @cache
        def form() -> Callable[P, R]:
            found = _jitted(function, **UNCOUNTED)
            if is_compiled(found):
                found.compile(signature)
                found.disable_compile()
            return cast(Callable[P, R], found)

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return form()(*args, **kwargs)

        call.__doc__, call.__name__ = function.__doc__, function.__name__
        call.form = form  # type: ignore[attr-defined]
        return call

    return decorate


def compiled_form(function: Callable[P, R]) -> Callable[P, R]:
    """What Numba compiles of a function: itself, except for those of `compiled_with`."""
    return cast(Callable[P, R], function.form()) if hasattr(function, "form") else function
