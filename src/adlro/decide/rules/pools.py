"""Jobs and pools as matrices: what the policies with a solver read from the view, in a few calls for all jobs.

Axes: J jobs asked about, P pools, H forms. Each call from Python into compiled code passes the whole View, which costs
more than the computation for one job. So everything here handles all jobs at once.
"""

from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled
from adlro.core.copying import CLUSTER, LISTS, copied, copy_cluster, copy_lists
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import (
    fits,
    fits_across,
    fits_on_node,
    in_queue,
    rate_on,
    rate_there,
    release,
    restart_cost,
    restart_of,
    seen,
    shape_of_size,
    take,
    take_shape,
    work_left,
)
from adlro.core.tables import JOB, NOBODY, RUN, Floats, Ints, View, records

Indices = npt.NDArray[np.int64]


class Demand(NamedTuple):
    """What these jobs need, and what the pools can give."""

    jobs: Indices  # [J] rows of View.jobs, in submit order
    gpus: Floats  # [J] with fractions
    throughput: Floats  # [J, P] work per second on the best form of the pool; 0 if it cannot run there
    left: Floats  # [J] estimated work left
    capacity: Floats  # [P] GPUs on nodes that are up


class PoolSpot(NamedTuple):
    """A job and a site where it may start; both are NOBODY if there is none."""

    job: int
    site: int


def demand_of(view: View, jobs: Indices) -> Demand:
    """What these jobs need, and the GPUs that are up."""
    sites, forms = view.sites, view.forms
    up = view.nodes.up[sites.node] != 0
    capacity = np.bincount(sites.pool[up], sites.gpus[up], len(view.pools)).astype(np.float64)
    there = np.bincount(sites.form[up], minlength=len(forms)) > 0
    kind = view.jobs.kind[jobs]
    rates = view.rate[kind]
    if view.clock[0].paced:
        fill_rates(view, jobs, rates)
    rate = np.where((view.width[kind] > 0) & there, rates, 0.0)
    throughput = np.zeros((len(jobs), len(view.pools)))
    for form, pool in enumerate(forms.pool.tolist()):
        np.maximum(throughput[:, pool], rate[:, form], out=throughput[:, pool])
    left = np.empty(len(jobs))
    fill_left(view, jobs, left)
    gpus = view.jobs.gpus[jobs] * (view.jobs.share[jobs] / WHOLE_GPU)
    return Demand(jobs, gpus, throughput, left, capacity)


@compiled
def fill_rates(view: View, jobs: Indices, rates: Floats) -> None:
    """Fill in the rate of each job on each form, with the measured pace of its GPUs. [J, H]"""
    for i in range(len(jobs)):
        for h in range(len(view.forms)):
            rates[i, h] = rate_on(view, jobs[i], h)


@compiled
def fill_left(view: View, jobs: Indices, left: Floats) -> None:
    """Fill in the estimated work left of each job."""
    for i in range(len(jobs)):
        left[i] = work_left(view, jobs[i])


@compiled
def fill_restart(view: View, jobs: Indices, restart: Floats) -> None:
    """Fill in the seconds that each job would lose to its restart, if it started now."""
    for i in range(len(jobs)):
        restart[i] = restart_cost(view, jobs[i])


@compiled
def site_in_pool(view: View, j: int, p: int) -> int:
    """The site of the pool where the job may start now: the fastest, then the least leftover; NOBODY if none."""
    job = view.jobs[j]
    pool = view.pools[p]
    if job.share == WHOLE_GPU and pool.free_gpus < job.gpus:
        return NOBODY
    anchor = view.sites[pool.anchor]
    width = view.width[job.kind, anchor.form]
    best = NOBODY
    if width > 1:
        if fits_across(view, j, pool.anchor, width):
            best = pool.anchor
        return best
    best_rate = 0.0
    best_left = 0
    for i in range(pool.first_site, pool.first_site + pool.sites):
        s = view.pool_sites[i]
        site = view.sites[s]
        rate = rate_there(view, j, s)
        left = site.free_share
        if rate < best_rate or (rate == best_rate and best != NOBODY and left >= best_left):
            continue
        if view.width[job.kind, site.form] == 1 and fits_on_node(view, j, s):
            best = s
            best_rate = rate
            best_left = left
    return best


@compiled
def fill_fitting(view: View, jobs: Indices, there: Ints) -> None:
    """Fill in 1 for each job and pool where it may start now. [J, P]"""
    for i in range(len(jobs)):
        for p in range(len(view.pools)):
            there[i, p] = 1 if site_in_pool(view, jobs[i], p) != NOBODY else 0


@compiled
def first_without_gpus(view: View) -> PoolSpot:
    """The first waiting job without GPUs that fits, at its first such site: making it wait helps nobody."""
    job = NOBODY
    site = NOBODY
    for q in range(seen(view)):
        j = in_queue(view, q)
        if view.jobs[j].gpus == 0:
            for s in range(len(view.sites)):
                if fits(view, j, s):
                    job = j
                    site = s
                    break
            if site != NOBODY:
                break
    return PoolSpot(job, site)


@compiled
def fill_with_gpus(view: View, jobs: Indices, with_running: bool) -> int:
    """Fill in the waiting jobs with GPUs that a policy sees, and the running ones if asked; returns their number."""
    count = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        if view.jobs[j].gpus > 0:
            jobs[count] = j
            count += 1
    if with_running:
        for i in range(view.clock[0].running):
            j = view.running[i]
            if view.jobs[j].gpus > 0:
                jobs[count] = j
                count += 1
    return count


@compiled
def seat(
    view: View, own: View, members: Indices, stays: Ints, jobs: Ints, pools: Ints, seats: Ints, order: Ints
) -> int:
    """Release the members that do not stay, then start the listed ones where they fit in their pool, all on a copy.

    The list may name a member more than once: the first pool with room counts. Fills in the site of each member that
    is started, and these members in their order; returns their number.
    """
    copy_cluster(view, own)
    copy_lists(view, own)
    for d in range(len(view.demands)):
        own.demands[d] = view.demands[d]
    for i in range(len(members)):
        own.jobs[i] = view.jobs[members[i]]
        own.runs[i] = view.runs[members[i]]
    for i in range(len(stays)):
        seats[i] = NOBODY
        if own.runs[i].site != NOBODY and stays[i] == 0:
            release(own, i)
    count = 0
    for entry in range(len(jobs)):
        i = jobs[entry]
        if stays[i] != 0 or seats[i] != NOBODY:
            continue
        s = site_in_pool(own, i, pools[entry])
        if s != NOBODY:
            take(own, i, s)
            seats[i] = s
            order[count] = i
            count += 1
    return count


@compiled
def fill_restarts(view: View, jobs: Indices, restart: Floats) -> None:
    """Fill in the seconds that each restart costs these jobs; for one that has never run, its first start."""
    for i in range(len(jobs)):
        restart[i] = restart_of(view, jobs[i]) if view.runs[jobs[i]].starts > 0 else view.jobs[jobs[i]].start


@compiled
def seat_sized(
    view: View, own: View, members: Indices, stays: Ints, jobs: Ints, pools: Ints, sizes: Ints, taken: Ints, seats: Ints
) -> int:
    """Release the members that do not stay, then start the listed ones with these sizes where they fit, on a copy.

    The list may name a member more than once: its first entry with room counts. Fills in the entries that were seated,
    in order, and their sites; returns their number.
    """
    copy_cluster(view, own)
    copy_lists(view, own)
    for i in range(len(members)):
        own.jobs[i] = view.jobs[members[i]]
        own.runs[i] = view.runs[members[i]]
    for i in range(len(members)):
        if own.runs[i].site != NOBODY and stays[i] == 0:
            release(own, i)
    count = 0
    for entry in range(len(jobs)):
        i = jobs[entry]
        if own.runs[i].site != NOBODY:
            continue
        e = shape_of_size(own, i, sizes[entry])
        if e != NOBODY:
            take_shape(own, i, e)
        s = site_in_pool(own, i, pools[entry])
        if s != NOBODY:
            take(own, i, s)
            taken[count] = entry
            seats[count] = s
            count += 1
    return count


@final
class ViewReader:
    """Reads one view many times, and tries placements on a copy of it.

    Columns are looked up once, because finding a column in a table takes longer than using it.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self._clock, self._up, self._site = view.clock.now, view.nodes.up, view.runs.site
        self._pool: Ints = view.sites.pool
        self._room = np.empty(len(view.jobs) + 1, np.int64)
        self._fill = quick_call(fill_with_gpus, view)
        self._rows = 0
        self.first_without_gpus = quick_call(first_without_gpus, view)

    @property
    def now(self) -> float:
        """The time."""
        return float(self._clock.item())

    def up(self) -> Ints:
        """Which nodes are up now."""
        return self._up.copy()

    def waiting(self) -> Indices:
        """The waiting jobs with GPUs that a policy sees, in submit order."""
        return np.sort(self._room[: self._fill(self._room, False)])

    def jobs(self) -> tuple[Indices, Ints]:
        """The same together with the running jobs; and the pool where each runs, or NOBODY."""
        jobs = np.sort(self._room[: self._fill(self._room, True)])
        return jobs, self.pool_of(self._site[jobs])

    def pool_of(self, sites: Ints) -> Ints:
        """The pool of each of these sites; NOBODY for NOBODY."""
        return np.where(sites != NOBODY, self._pool[sites], np.int32(NOBODY))

    def seats(self, members: Indices, stays: Ints, jobs: Ints, pools: Ints) -> tuple[Ints, Ints]:
        """The site of each member that gets one, and these members in their order: see `seat`."""
        if len(members) > self._rows:
            self._rows = 2 * len(members)
            own = copied(self.view, (*CLUSTER, *LISTS, "demands"))
            own = own._replace(jobs=records(JOB, self._rows), runs=records(RUN, self._rows))
            self._seat = quick_call(seat, self.view, own)
        seats, order = np.empty((2, len(members)), np.int32)
        count = self._seat(members, stays, jobs, pools, seats, order) if len(members) else 0
        return seats, order[:count]
