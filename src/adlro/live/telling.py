"""What a turn tells: alarms, decisions and answers; and the memory, without which a turn goes on."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, final

from adlro.core.errors import StoreError
from adlro.core.ports import Answer
from adlro.live.service import Alarm, DaemonMemory, Decision

_T = TypeVar("_T")


@dataclass(slots=True)
class Heard:
    """What one turn has to tell."""

    alarms: list[Alarm] = field(default_factory=list)
    decisions: tuple[Decision, ...] = ()
    answers: tuple[Answer, ...] = ()
    given_back: set[str] = field(default_factory=set)


@final
class Notes:
    """The memory and the latest alarms. A memory that cannot be used is told once, and the turn goes on without it."""

    def __init__(self, memory: DaemonMemory, kept_alarms: int) -> None:
        self.memory = memory
        latest: Sequence[Alarm] = self.ask(lambda: memory.alarms(kept_alarms), [])
        self.alarms: deque[Alarm] = deque(latest, maxlen=kept_alarms)

    def tell(self, heard: Heard, time_s: float, kind: str, text: str, job: str = "", node: str = "") -> None:
        """Raise an alarm."""
        heard.alarms.append(Alarm(time_s, kind, text, job, node))

    def tell_once(self, heard: Heard, time_s: float, kind: str, text: str) -> None:
        """Raise an alarm, unless the same was raised among the latest."""
        if not any(alarm.kind == kind and alarm.text == text for alarm in (*self.alarms, *heard.alarms)):
            self.tell(heard, time_s, kind, text)

    def ask(self, ask: Callable[[], _T], instead: _T) -> _T:
        """What the memory says, or this if it cannot be read."""
        try:
            return ask()
        except StoreError:
            return instead

    def write(self, heard: Heard, time_s: float, write: Callable[[], _T], instead: _T) -> _T:
        """Write something down; where that fails we go on without, and tell."""
        try:
            return write()
        except StoreError as error:
            self.tell_once(heard, time_s, "store", f"the store cannot be used: {error}")
            return instead
