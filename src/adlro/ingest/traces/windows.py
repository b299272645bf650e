"""A trace cut into windows, played at another pace, or told with errors: what stands in for seeds and other worlds."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from adlro.core.errors import UsageError
from adlro.core.tables import Jobs

_FEWEST_JOBS: Final = 2
"""A window of fewer jobs has no span, and so no load."""


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive jobs of a trace that stand in for a seed."""

    index: int
    first_job: int  # its place among the jobs of the trace, from 0
    jobs: int
    start_s: float  # when the first of them was submitted, from the first job of the trace
    span_s: float  # from there to the last of them


def windows_of(jobs: Jobs, count: int, most: int | None = None) -> tuple[Window, ...]:
    """So many disjoint windows of consecutive jobs, equal but for one job; of each only the first `most` jobs.

    Equal counts, not equal spans: a mean over few jobs swings more than one over many, and tests over windows take
    them for alike. docs/statistics.md says more.
    """
    total = len(jobs)
    if count < 1 or total // count < _FEWEST_JOBS:
        raise UsageError(
            f"{count:,} windows of {total:,} jobs: expected at least {_FEWEST_JOBS} jobs in a window, "
            f"so from 1 to {max(1, total // _FEWEST_JOBS):,} windows."
        )
    if most is not None and most < _FEWEST_JOBS:
        raise UsageError(f"windows of {most} job; expected at least {_FEWEST_JOBS} jobs in a window.")
    submit = jobs.table["submit"]
    edges = [place * total // count for place in range(count + 1)]
    found = []
    for index, (first, end) in enumerate(pairwise(edges)):
        size = end - first if most is None else min(most, end - first)
        start_s = float(submit[first])
        found.append(Window(index, first, size, start_s, float(submit[first + size - 1]) - start_s))
    return tuple(found)


def cut(jobs: Jobs, first: int, count: int) -> Jobs:
    """These consecutive jobs in a table of their own, submitted from time 0 on."""
    some = slice(first, first + count)
    table = jobs.table[some].copy().view(np.recarray)
    table["submit"] -= table["submit"][0]
    return replace(jobs, table=table, work=jobs.work[some].copy())


def slowed(jobs: Jobs, factor: float) -> Jobs:
    """The same jobs with all times between submissions so many times as long."""
    table = jobs.table.copy().view(np.recarray)
    table["submit"] *= factor
    return replace(jobs, table=table)


def misjudged(jobs: Jobs, sigma: float, seed: int) -> Jobs:
    """The same jobs with estimates that miss the true work by a log-normal error, drawn with the seed."""
    table = jobs.table.copy().view(np.recarray)
    rng = np.random.Generator(np.random.PCG64(seed))
    table["estimate"] = jobs.work * np.exp(sigma * rng.standard_normal(len(jobs)))
    return replace(jobs, table=table)
