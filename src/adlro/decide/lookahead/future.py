"""Future jobs: none, or the true future, as an upper bound."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from adlro.core.tables import (
    Floats,
    Ints,
    View,
)


class Future(NamedTuple):
    """Jobs that will arrive: their rows in the trace and their times."""

    jobs: Ints
    times: Floats


Foresee: TypeAlias = Callable[[View], Future]

NOTHING: Final = Future(np.empty(0, np.int32), np.empty(0))


def nothing_comes(view: View) -> Future:
    """No future jobs: all that a real policy can know."""
    return NOTHING


def clairvoyant(jobs: int) -> Foresee:
    """The true future: the next jobs of the trace. No real policy can know them."""

    def foresee(view: View) -> Future:
        first = int(view.clock[0].arrived)
        coming = np.arange(first, min(first + jobs, len(view.jobs)), dtype=np.int32)
        coming = coming[view.fastest[view.jobs.demand[coming]] > 0.0]
        return Future(coming, np.ascontiguousarray(view.jobs.submit[coming]))

    return foresee
