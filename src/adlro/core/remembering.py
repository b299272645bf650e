"""The memory of a policy in plain Python, in a form that does not depend on one view."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from adlro.core.tables import Choice, View


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a policy remembers between moments, so that it can continue in another view or after a restart.

    Jobs and times are separate because they have other numbers in the new view. A job that no longer exists gets a
    number below NOBODY there. Only numbers and lists of numbers.
    """

    jobs: tuple[int, ...] = ()  # rows of View.jobs
    by_job: Mapping[str, list[Any]] = field(default_factory=dict)  # lists by name, each as long as `jobs`
    times: Mapping[str, float] = field(default_factory=dict)  # by name, on the clock of the view
    rest: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Remembers(Protocol):
    """A `choose` function with memory, which it can hand over."""

    def __call__(self, view: View) -> Choice:
        """The choice now."""

    def remembered(self) -> Remembered:
        """Everything that later choices may need."""

    def recall(self, view: View, kept: Remembered) -> bool:
        """Continue with this memory. Returns False, and takes over nothing, if it does not fit this view."""
