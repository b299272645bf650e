"""Repeated calls of a compiled function from Python with the same tables.

At every call Numba works out the types of all arguments. For a View of 26 tables this takes 3 to 4 µs, ten times as
long as the call itself, and more than many decisions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from adlro.core.compiled import compiled_form, is_compiled
from adlro.core.linking import is_part

_R = TypeVar("_R")


def quick_call(function: Callable[..., _R], *tables: Any) -> Callable[..., _R]:
    """The function with these first arguments. Numba checks types in the first call only.

    So the other arguments must have the same types in every call.
    """
    entry: Callable[..., _R] | None = None

    def call(*rest: Any) -> _R:
        nonlocal entry
        if entry is not None:
            return entry(*rest)
        answer = function(*tables, *rest)
        entry = partial(_entry_point(function), *tables)
        return answer

    return call


def _entry_point(function: Any) -> Callable[..., Any]:
    """The machine code of a function that has just been called; the function itself if it has several."""
    function = compiled_form(function)
    if is_compiled(function):
        known = list(function.overloads.values())
        if len(known) == 1 and not is_part(known[0]):
            found: Callable[..., Any] = known[0].entry_point
            return found
    return function
