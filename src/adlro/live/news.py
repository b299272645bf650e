"""The latest events for listeners: numbered, kept for a while, waited for."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from adlro.live.service import Event

KEPT_EVENTS: Final = 10_000


@final
class News:
    """Events in the order of their numbers. One thread adds, any thread asks."""

    def __init__(self, number: int = 0) -> None:
        """`number` is the last number in use."""
        self.number = number
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._changed = threading.Condition()
        self._is_over = False

    def add(self, *events: Event) -> None:
        """Add events with higher numbers than those before, and wake the waiting threads."""
        with self._changed:
            self._take(events)

    def happen(self, kind: str, time_s: float, data: Mapping[str, Any]) -> None:
        """Add an event under the next number."""
        with self._changed:
            self._take([Event(self.number + 1, time_s, kind, data)])

    def _take(self, events: Sequence[Event]) -> None:
        self._events.extend(events)
        if events:
            self.number = events[-1].number
        self._changed.notify_all()

    def since(self, after: int, wait_s: float) -> Sequence[Event]:
        """Events with a number above `after`:

        at once if there are any, else after waiting up to this many seconds.

        An unknown number comes from before a restart: then all kept events are new.
        """
        with self._changed:
            if after > self.number:
                after = 0
            if not self._events or self._events[-1].number <= after:
                if self._is_over:
                    return []
                self._changed.wait(wait_s)
            if not self._events:
                return []
            missed = self._events[-1].number - after
            first = max(0, len(self._events) - missed)
            return [self._events[at] for at in range(first, len(self._events))]

    def close(self) -> None:
        """Wake the waiting threads: no more events come."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
