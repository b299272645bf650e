"""What a policy is: of the legal (job, site) pairs, which one now, or wait?

A policy is one function `choose(view) -> Choice`. All compiled policies share one signature, so the simulator is
compiled once for all of them. Policies that need a solver or keep state are plain Python: `make(view, seed)` returns
their `choose`. Both kinds are asked in the same way and obey the same rules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import from_dtype, types

from adlro.core.tables import (
    CLOCK,
    DEMAND,
    FOREVER,
    FORM,
    GPU,
    GROUP,
    JOB,
    NOBODY,
    NODE,
    OFFER,
    PART,
    POOL,
    RESIZE,
    RUN,
    SHAPE,
    SITE,
    START,
    STOP,
    USER,
    WAIT,
    Choice,
    View,
)

Choose = Callable[[View], Choice]

NEVER: Final = -np.inf
"""Score of a pair that the policy never chooses: it prefers to wait."""

WAITING: Final = Choice(WAIT, NOBODY, NOBODY, FOREVER)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of the catalogue. It has either `choose` (compiled) or `make` (plain Python).

    `needs` names the data that it needs: estimate, history, user, map, rates. Policies with `preemptive` are also asked
    while jobs run and none waits. Those with `resizes` may change the number of GPUs of a job. Those with `weighs`
    count jobs by their priority, where weights are on. Those with `heeds_marks` stop only jobs with `stoppable`, so no
    running job needs to be hidden from them. `prepare` fills in the data in the
    view before the run begins.
    """

    name: str
    summary: str
    choose: Choose | None = None
    make: Callable[[View, int], Choose] | None = None
    preemptive: bool = False
    heeds_marks: bool = False
    needs: tuple[str, ...] = ()
    prepare: Callable[[View], None] | None = None
    resizes: bool = False
    weighs: bool = False


def starting(j: int, s: int) -> Choice:
    """Start a job at a site."""
    return Choice(START, j, s, FOREVER)


def stopping(j: int) -> Choice:
    """Stop a running job."""
    return Choice(STOP, j, NOBODY, FOREVER)


def resizing(j: int, gpus: int) -> Choice:
    """Let a waiting job ask for another number of GPUs, one of its sizes."""
    return Choice(RESIZE, j, gpus, FOREVER)


def waiting(until: float = FOREVER) -> Choice:
    """Wait for the next event, or until a time (s) if that is sooner."""
    return Choice(WAIT, NOBODY, NOBODY, until)


def table_type(dtype: np.dtype[Any]) -> types.Array:
    """Numba's type of a table of these records."""
    return types.Array(from_dtype(dtype), 1, "C")


INTS = types.Array(types.int32, 1, "C")
FLOATS = types.Array(types.float64, 1, "C")
INTS_2D = types.Array(types.int32, 2, "C")
FLOATS_2D = types.Array(types.float64, 2, "C")

VIEW_TYPE = types.NamedTuple(
    [
        table_type(dtype)
        for dtype in (JOB, RUN, SITE, NODE, GPU, FORM, POOL, PART, USER, GROUP, OFFER, CLOCK, DEMAND, SHAPE)
    ]
    + [INTS] * 7
    + [FLOATS_2D, INTS_2D, INTS_2D, FLOATS, INTS_2D, FLOATS_2D],
    View,
)
CHOICE_TYPE = types.NamedTuple([types.int64, types.int64, types.int64, types.float64], Choice)
CHOOSE_TYPE = types.FunctionType(CHOICE_TYPE(VIEW_TYPE))
"""The one signature of every compiled policy."""
