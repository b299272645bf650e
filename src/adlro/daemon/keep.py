"""How much the store remembers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """How much is remembered: days, and most rows of each table."""

    days: float = 90.0
    decisions: int = 200_000
    jobs: int = 200_000
    ticks: int = 50_000
    alarms: int = 10_000
    points: int = 200_000
