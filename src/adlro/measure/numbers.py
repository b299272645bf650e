"""How numbers are written for people, the same on the terminal and in the report."""

from collections.abc import Sequence
from typing import Final

MISSING: Final = "–"

_UNITS: Final = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))


def unit_for(values: Sequence[float | None]) -> tuple[float, str]:
    """The unit of time, as seconds and by name, in which the least of these values has one to three digits."""
    least = min((value for value in values if value), default=0.0)
    fitting = [(seconds, name) for seconds, name in _UNITS if least >= 2 * seconds]
    return fitting[-1] if fitting else _UNITS[0]


def number(value: float | None, unit: float = 1.0) -> str:
    """A number with three digits, or more if it is large."""
    if value is None:
        return MISSING
    value /= unit
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """A share in percent, without the sign."""
    return MISSING if share is None else f"{100 * share:.1f}"


def change(value: float | None, base: float | None) -> str:
    """Relative change in percent, with its sign."""
    return MISSING if value is None or not base else f"{100 * (value / base - 1):+.1f} %".replace("-", "−")


def mean_count(value: float | None) -> str:
    """A mean count."""
    return MISSING if value is None else f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
