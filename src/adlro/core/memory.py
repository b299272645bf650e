"""Memory that is no longer used goes back to the system."""

import ctypes
import ctypes.util
from functools import cache
from typing import Any, Final

MANY_ROWS: Final = 100_000
"""Tables with fewer rows leave too little behind to be worth the call."""


@cache
def _trim() -> Any:
    """The C library's function for this, or None where it has none."""
    try:
        return ctypes.CDLL(ctypes.util.find_library("c")).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def release_temporaries(rows: int) -> None:
    """Return what temporary arrays left behind after a table of this many rows was made.

    The C library keeps freed blocks of a few megabytes for itself: 60 MB of the 400 that we allow for a million jobs.
    """
    trim = _trim() if rows >= MANY_ROWS else None
    if trim is not None:
        trim(0)
