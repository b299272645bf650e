"""How soon a turn may follow another one because the cluster has changed."""

import time
from collections.abc import Callable
from typing import Final, final

TURN_SHARE: Final = 0.25
_LONGEST_PAUSE_S: Final = 3.0
"""Early turns (because something changed) take at most this share of the time, or come this far apart."""

LEAST_PAUSE_S: Final = 0.25
"""The least time between two turns, however many jobs are handed in, …"""

_TOLD_PAUSE_S: Final = 0.03
"""… and where the back end is told of each change, so that looking for one costs the cluster nothing."""

MOST_SAVED_S: Final = 1.0


@final
class Pacing:
    """Spreads early turns.

    Where every reading costs the cluster something, each turn is followed by a pause in proportion to its length. Where
    the back end is told of changes, only our own time on the processor counts, and what a quiet cluster left unused is
    saved: a job that comes after a quiet second does not wait for the share of the turn before.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._saved_s, self._at = MOST_SAVED_S, monotonic()

    def spent(self, processor_s: float) -> None:
        """Note a turn that has just ended."""
        now = self._monotonic()
        self._saved_s = min(MOST_SAVED_S, self._saved_s + TURN_SHARE * (now - self._at)) - processor_s
        self._at = now

    def least_s(self, is_told: bool) -> float:
        """The least pause after a turn."""
        return _TOLD_PAUSE_S if is_told else LEAST_PAUSE_S

    def early_s(self, took_s: float, is_told: bool) -> float:
        """The pause after a turn that took so long, until the next one may come because of a change."""
        if is_told:
            return min(max(_TOLD_PAUSE_S, -self._saved_s / TURN_SHARE), _LONGEST_PAUSE_S)
        return max(LEAST_PAUSE_S, min(took_s / TURN_SHARE, _LONGEST_PAUSE_S))
