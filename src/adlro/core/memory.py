"""Returns unused memory to the operating system."""

import ctypes
import ctypes.util
from functools import cache
from typing import Any, Final

MANY_ROWS: Final = 100_000
"""Below this number of rows the call is not worth its cost."""


@cache
def _trim() -> Any:
    """The C library's malloc_trim, or None if it has none."""
    try:
        return ctypes.CDLL(ctypes.util.find_library("c")).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def release_temporaries(rows: int) -> None:
    """Return the memory of temporary arrays after a table with this many rows was made.

    The C library keeps freed blocks of a few MB: 60 MB of the 400 MB that we allow for a million jobs.
    """
    trim = _trim() if rows >= MANY_ROWS else None
    if trim is not None:
        trim(0)
