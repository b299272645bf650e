"""AlloX (Le et al., EuroSys 2020): match waiting jobs to places in the queues of GPUs.

The matching minimises the sum of completion times. Whenever a GPU is free, a new matching is computed. Jobs that are
first on a GPU that is free now start. The others wait, possibly for a fast GPU while a slow one is free. AlloX only has
jobs of one GPU. Here a gang counts as one job with its duration times its GPUs, and starts only if all of them are
free; a share of a GPU counts in the same way.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled
from adlro.core.policy import Choose, Policy, starting, waiting
from adlro.core.rules import expected_end
from adlro.core.tables import FOREVER, NOBODY, Choice, Floats, Ints, View
from adlro.decide.rules.pools import (
    Indices,
    ViewReader,
    demand_of,
    fill_fitting,
    fill_restart,
)

_MOST_JOBS: Final = 150
"""Waiting jobs that are matched, in submit order. The time of a matching grows with the cube of their number."""


def make(view: View, seed: int) -> Choose:
    """The policy for one run: one matching at each moment, then its starts one by one."""
    ahead: list[Choice] = []  # starts still to be made at this moment; the last is next
    moment = -math.inf
    reader = ViewReader(view)

    def choose(view: View) -> Choice:
        nonlocal ahead, moment, reader
        if view is not reader.view:
            reader = ViewReader(view)
        now = reader.now
        job, site = reader.first_without_gpus()
        if job != NOBODY:
            ahead = []  # it may have taken what the others need, so they are matched again
            moment = -math.inf
            return starting(job, site)
        if now > moment:
            moment, ahead = now, match(reader)[::-1]
        return ahead.pop() if ahead else waiting()

    return choose


def match(reader: ViewReader) -> list[Choice]:
    """What should start now, by the matching with the least sum of completion times."""
    from adlro.decide.rules import allocation  # imported here: SciPy loads slowly and most commands do not need it

    view = reader.view
    jobs = reader.waiting()[:_MOST_JOBS]
    pool, ready = machines(view, len(jobs))
    if not len(jobs) or not (ready <= 0.0).any():
        return []
    first = allocation.allox(durations(view, jobs)[:, pool], ready)
    now = np.flatnonzero((first != NOBODY) & (ready <= 0.0))
    now = now[np.argsort(first[now], kind="stable")]  # of two that take each other's room, the earlier
    seats, started = reader.seats(jobs, np.zeros(len(jobs), np.int32), first[now], pool[now])
    return [starting(j, s) for j, s in zip(jobs[started].tolist(), seats[started].tolist(), strict=True)]


def durations(view: View, jobs: Indices) -> Floats:
    """GPU time in seconds that each job would take on each pool; inf if it cannot run there. [J, P]"""
    demand = demand_of(view, jobs)
    restart = np.empty(len(jobs))
    fill_restart(view, jobs, restart)
    can = (demand.throughput > 0) & (demand.gpus[:, None] <= demand.capacity)
    if view.clock[0].running == 0:
        # No job will end and make room, so jobs that do not fit now must not block a GPU that others could use.
        can &= fitting(view, jobs)
    seconds = restart[:, None] + demand.left[:, None] / np.where(can, demand.throughput, 1.0)
    return np.where(can, seconds * demand.gpus[:, None], FOREVER)


def fitting(view: View, jobs: Indices) -> npt.NDArray[np.bool_]:
    """Whether each job could start now on each pool. [J, P]"""
    there = np.zeros((len(jobs), len(view.pools)), np.int32)
    fill_fitting(view, jobs, there)
    return there.astype(np.bool_)


def machines(view: View, most: int) -> tuple[Ints, Floats]:
    """The pool of each GPU that is up, and the seconds until it is expected to be free; the first `most` of each pool.

    More are not needed: the GPUs of a pool are equal, and there are at most that many jobs.
    """
    ready = np.zeros(len(view.gpus))
    fill_ready(view, ready)
    pool = np.repeat(view.sites.pool, view.sites.gpus)
    ready = ready[: len(pool)]
    soonest = np.lexsort((ready, pool))
    first = np.searchsorted(pool[soonest], pool[soonest])  # start of its pool
    kept = soonest[(np.arange(len(pool)) - first < most) & (ready[soonest] < FOREVER)]
    return pool[kept], ready[kept]


@compiled
def fill_ready(view: View, ready: Floats) -> None:
    """Fill in for how many seconds each GPU is still held; FOREVER if its node is down, 0 if a share is free."""
    now = view.clock[0].now
    for i in range(view.clock[0].running):
        j = view.running[i]
        seconds = expected_end(view, j) - now
        run = view.runs[j]
        _hold(view, run.site, run.mask, seconds, ready)
        p = run.parts
        while p != NOBODY:
            _hold(view, view.parts[p].site, view.parts[p].mask, seconds, ready)
            p = view.parts[p].next
    for s in range(len(view.sites)):
        site = view.sites[s]
        up = view.nodes[site.node].up != 0
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            if not up:
                ready[g] = FOREVER
            elif view.gpus[g].free_share > 0:
                ready[g] = 0.0


@compiled
def _hold(view: View, s: int, mask: int, seconds: float, ready: Floats) -> None:
    """Record that the GPUs of this mask are held for at least this many seconds."""
    site = view.sites[s]
    for g in range(site.gpus):
        if mask >> g & 1:
            ready[site.first_gpu + g] = max(ready[site.first_gpu + g], seconds)


POLICIES: Final = (
    Policy(
        "allox",
        "matches jobs to GPUs for the least sum of completion times (AlloX); a gang counts as one long job",
        make=make,
        needs=("rates", "estimate"),
    ),
)
