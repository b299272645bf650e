"""Long work beside a loop that must answer soon: it rests now and then, so that the loop has the interpreter.

Two busy threads of one Python process take turns, and each change takes as long as the system needs to wake the other
one: on a busy machine milliseconds, several times for each request. A thread that rests leaves the loop alone.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

WORK_S: Final = 0.001
REST_S: Final = 0.002

_thread = threading.local()


@contextmanager
def paced() -> Iterator[None]:
    """Let `breathe` pause in this thread."""
    _thread.since = time.thread_time()
    try:
        yield
    finally:
        del _thread.since


def breathe() -> None:
    """Pause for a moment if this thread is paced and has worked for a while."""
    since = getattr(_thread, "since", None)
    if since is not None and time.thread_time() - since > WORK_S:
        time.sleep(REST_S)
        _thread.since = time.thread_time()
