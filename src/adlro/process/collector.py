"""Keep Python's garbage collector from scanning all objects in the middle of a turn or an answer."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (5_000, 4, 1_000_000)
"""New objects for a look at the new ones, such looks for one at those somewhat older, and such for one at all."""

COLLECT_EVERY_S: Final = 300.0

_counting = threading.Lock()
_paused = 0
"""How many threads have paused the collector."""


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
            gc.unfreeze()
            gc.collect()
            due_s = time.monotonic() + COLLECT_EVERY_S

    try:
        yield collect
    finally:
        gc.set_threshold(*before)


@contextmanager
def paused_collector(are_kept: bool = False) -> Iterator[None]:
    """Make very many objects at once without the collector, which would look through them again and again.

    If they `are_kept`, they are frozen: the collector passes over them until `unhurried_collector` looks through all
    objects. Those that nobody holds any more are freed at once all the same, unless they form a ring.
    """
    global _paused
    if are_kept:
        gc.collect(1)  # rings that others have left among the new objects are not frozen
    with _counting:
        _paused += 1
        gc.disable()
    try:
        yield
    finally:
        if are_kept:
            gc.freeze()
        with _counting:
            _paused -= 1
            if not _paused:
                gc.enable()
