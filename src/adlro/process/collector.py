"""Python's garbage collector, kept from looking through all objects in the middle of a turn or of an answer."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (5_000, 4, 1_000_000)
"""New objects for a look at the new ones, such looks for one at those somewhat older, and such for one at all."""

COLLECT_EVERY_S: Final = 300.0


@contextmanager
def unhurried_collector() -> Iterator[Callable[[], None]]:
    """Look through all objects only where the function that is given is called, and every few minutes at most.

    With 10,000 jobs that takes a tenth of a second, and Python would do it in every turn.
    """
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    due_s = time.monotonic() + COLLECT_EVERY_S

    def collect() -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            gc.collect()
            due_s = time.monotonic() + COLLECT_EVERY_S

    try:
        yield collect
    finally:
        gc.set_threshold(*before)
