"""Jobs and pools as matrices: what the policies with a solver read from the view, in a few calls for all jobs.

Axes: J jobs asked about, P pools, H forms. Each call from Python into compiled code passes the whole View, which costs
more than the computation for one job. So everything here handles all jobs at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled
from adlro.core.copying import CLUSTER, LISTS, copied
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import fits, fits_across, fits_on_node, in_queue, release, restart_cost, seen, take, work_left
from adlro.core.tables import NOBODY, Floats, Ints, View

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


def waiting_jobs(view: View) -> Indices:
    """The jobs of the queue that a policy sees, in submit order."""
    head = int(view.clock[0].head)
    return view.queue[head : head + seen(view)].astype(np.int64)


def demand_of(view: View, jobs: Indices) -> Demand:
    """What these jobs need, and the GPUs that are up."""
    sites, forms = view.sites, view.forms
    up = view.nodes.up[sites.node] != 0
    capacity = np.bincount(sites.pool[up], sites.gpus[up], len(view.pools)).astype(np.float64)
    there = np.bincount(sites.form[up], minlength=len(forms)) > 0
    kind = view.jobs.kind[jobs]
    rate = np.where((view.width[kind] > 0) & there, view.rate[kind], 0.0)
    throughput = np.zeros((len(jobs), len(view.pools)))
    for form, pool in enumerate(forms.pool.tolist()):
        np.maximum(throughput[:, pool], rate[:, form], out=throughput[:, pool])
    left = np.empty(len(jobs))
    fill_left(view, jobs, left)
    gpus = view.jobs.gpus[jobs] * (view.jobs.share[jobs] / WHOLE_GPU)
    return Demand(jobs, gpus, throughput, left, capacity)


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
        rate = view.rate[job.kind, site.form]
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
def seat(view: View, stays: Ints, jobs: Ints, pools: Ints, seats: Ints, order: Ints) -> int:
    """Release the jobs that do not stay, then start the listed jobs where they fit in their pool.

    The list may contain a job several times: the first pool with room counts. Fills in the site of each job that is
    started, and those jobs in order; returns their number.
    """
    for i in range(len(stays)):
        seats[i] = NOBODY
        if view.runs[i].site != NOBODY and stays[i] == 0:
            release(view, i)
    count = 0
    for entry in range(len(jobs)):
        i = jobs[entry]
        if stays[i] != 0 or seats[i] != NOBODY:
            continue
        s = site_in_pool(view, i, pools[entry])
        if s != NOBODY:
            take(view, i, s)
            seats[i] = s
            order[count] = i
            count += 1
    return count


def copy_for(view: View, jobs: Indices) -> View:
    """A view to try placements on, in which job i is `jobs[i]`. It has its own copy of what placing changes."""
    own = copied(view, (*CLUSTER, *LISTS, "demands"))
    return own._replace(jobs=view.jobs[jobs].view(np.recarray), runs=view.runs[jobs].view(np.recarray))
