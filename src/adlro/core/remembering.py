"""What a policy in plain Python keeps from one moment to the next, in a form that outlives the view it was made for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from adlro.core.tables import Choice, View


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a policy keeps from one moment to the next, so that it can go on in another view, or after a restart.

    Jobs and times are kept apart from the rest because both are counted anew there. A job that is gone has a number
    below NOBODY there. Only numbers, and lists of them.
    """

    jobs: tuple[int, ...] = ()  # rows of View.jobs
    by_job: Mapping[str, list[Any]] = field(default_factory=dict)  # a list by name, as long as `jobs`
    times: Mapping[str, float] = field(default_factory=dict)  # by name, in the time of the view
    rest: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Remembers(Protocol):
    """A `choose` that keeps something between moments, and can hand it on."""

    def __call__(self, view: View) -> Choice:
        """The choice now."""

    def remembered(self) -> Remembered:
        """All that a later moment may need."""

    def recall(self, view: View, kept: Remembered) -> bool:
        """Go on with what was kept; False if it does not suit this view, and nothing is taken over."""
