"""The paper's state and actions (its section 4): what its agent sees, which assignments are legal, what they mean.

State: for each GPU how much of it is taken and how much works, the queue length, how many jobs of each type and size
wait, and for each waiting job its priority, its type and, as an option, how many GPUs it asks for. Action: assign a
waiting job to one of the n GPUs.

An action names a GPU, but the rules start jobs at sites (the GPUs of one model on one node) and take their lowest free
GPUs. So the action means the site of its GPU, and for a gang over several nodes the anchor of its pool. It starts the
job if `rules.fits` allows it there and the named GPU has room: wholly free, or for a share of a GPU with enough left.
The GPUs of a site are alike, so nothing is lost.

As an option, a gang over several nodes may also be assigned to GPUs that are busy: it waits for them, and nobody else
starts there until it has started ("kept" below). Without this, such gangs rarely find enough free GPUs at once. The
action names the first GPU of the pool. It is offered only beside starts, so nothing is kept for want of a choice.

There is no action for waiting; if no start is legal, time moves on.
"""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, widened
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import fits, in_queue, seen
from adlro.core.tables import FOREVER, NOBODY, QUEUED, START, WAIT, Choice, Ints, View

_Singles = npt.NDArray[np.float32]
_Bytes = npt.NDArray[np.uint8]

WINDOW: Final = 64
"""Waiting jobs that the agent judges in training, in submit order. Later ones only count in the queue length.

It does not see jobs without GPUs.
"""

MOST_JUDGED: Final = 1024
"""The same for decisions. It is larger because under load, gangs that do not fit gather at the head of the queue."""

CROWD: Final = 8
"""The queue length at which the input is 0.5."""

COUNTED: Final = 1023
"""The number of waiting jobs of a type or size at which its input is 1, on a logarithmic scale."""

TYPES: Final = 8
"""Columns for the job type: the families in the order of the workload. The last one is for all others."""

SIZES: Final = 5
"""Columns for the number of GPUs: 1, 2, up to 4, up to 8, more."""

CHANNELS_IN: Final = 2
"""What is known about a GPU: the share that is taken, and the share that works."""


class PaperSeen(NamedTuple):
    """Observations. B environments, n GPUs, the first W waiting jobs."""

    use: _Singles  # [B, n, CHANNELS_IN] share of each GPU that is taken, kept or down; share that jobs run on
    queue: _Singles  # [B, 1 + TYPES or 1 + TYPES + SIZES] waiting jobs, q / (q + CROWD); how many of each type and size
    jobs: _Singles  # [B, W, 1 + TYPES or 1 + TYPES + SIZES] priority, type and size; 0 if there is no job
    legal: _Bytes  # [B, W * n] which assignments are legal: job by job, GPU by GPU


# ---- what an action means ----------------------------------------------------------------------------------------


@compiled
def target(view: View, j: int, s: int) -> int:
    """The site where a job assigned to a GPU of this site starts: this one, or for a wide gang its pool's anchor."""
    site = view.sites[s]
    if view.width[view.jobs[j].kind, site.form] > 1:
        return widened(view.pools[site.pool].anchor)
    return widened(s)


@compiled
def site_of(view: View, g: int) -> int:
    """The site of a GPU."""
    s = 0
    while g >= view.sites[s].first_gpu + view.sites[s].gpus:
        s += 1
    return s


@compiled
def assignment(view: View, rows: Ints, kept: Ints, action: int) -> Choice:
    """What an action means: a start, or WAIT after GPUs have been kept for the job (written into `kept`)."""
    j = widened(rows[action // len(view.gpus)])
    s = target(view, j, site_of(view, action % len(view.gpus)))
    if len(kept) == 0 or fits(view, j, s):
        return Choice(START, j, s, FOREVER)
    _keep(view, kept, j, s)
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)


# ---- GPUs that are kept for a job --------------------------------------------------------------------------------


@compiled
def _keep(view: View, kept: Ints, j: int, s: int) -> None:
    """Keep GPUs for a gang over several nodes: those sites of the pool with most free GPUs."""
    width = view.width[view.jobs[j].kind, view.sites[s].form]
    pool = view.pools[view.sites[s].pool]
    for _ in range(width):
        chosen = NOBODY
        for i in range(pool.sites):
            t = view.pool_sites[pool.first_site + i]
            if _can_be_kept(view, kept, t) and (
                chosen == NOBODY or view.sites[t].free_gpus > view.sites[chosen].free_gpus
            ):
                chosen = t
        if chosen != NOBODY:
            kept[chosen] = j


@compiled
def _can_be_kept(view: View, kept: Ints, s: int) -> bool:
    """Whether the site is up and nobody's."""
    return kept[s] == NOBODY and view.nodes[view.sites[s].node].up != 0


@compiled
def start_due(view: View, kept: Ints) -> Choice:
    """Start the job that GPUs were kept for, if it fits by now; WAIT if there is none. Drops what is obsolete.

    GPUs are no longer kept if the job waits no more, if a node of them is down, or if all of them are free and the job
    still does not fit.
    """
    for s in range(len(kept)):
        j = kept[s]
        if j == NOBODY:
            continue
        if view.runs[j].state == QUEUED:
            t = target(view, j, s)
            if fits(view, j, t):
                _let_go(kept, j)
                return Choice(START, widened(j), t, FOREVER)
            if not _is_hopeless(view, kept, j):
                continue
        _let_go(kept, j)
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)


@compiled
def _is_hopeless(view: View, kept: Ints, j: int) -> bool:
    """Whether keeping does not help: a node is down, or all GPUs kept for the job are free."""
    all_free = True
    for s in range(len(kept)):
        if kept[s] == j:
            site = view.sites[s]
            if view.nodes[site.node].up == 0:
                return True
            all_free = all_free and site.free_gpus == site.gpus
    return all_free


@compiled
def _let_go(kept: Ints, j: int) -> None:
    """Keep nothing for the job any more."""
    for s in range(len(kept)):
        if kept[s] == j:
            kept[s] = NOBODY


@compiled
def _is_promised(kept: Ints, j: int) -> bool:
    """Whether GPUs are kept for the job."""
    for s in range(len(kept)):
        if kept[s] == j:
            return True
    return False


@compiled
def _free_to_keep(view: View, kept: Ints, p: int) -> int:
    """Number of sites of a pool that can be kept."""
    pool = view.pools[p]
    count = 0
    for i in range(pool.sites):
        if _can_be_kept(view, kept, view.pool_sites[pool.first_site + i]):
            count += 1
    return count


# ---- legal actions -----------------------------------------------------------------------------------------------


@compiled
def window(view: View, rows: Ints, kept: Ints) -> int:
    """Find the first waiting jobs that need a GPU and are promised none, and fill up with NOBODY; returns how many."""
    count = 0
    for q in range(seen(view)):
        if count == len(rows):
            break
        j = in_queue(view, q)
        if view.jobs[j].gpus > 0 and not _is_promised(kept, j):
            rows[count] = j
            count += 1
    for w in range(count, len(rows)):
        rows[w] = NOBODY
    return count


@compiled
def mark(view: View, rows: Ints, kept: Ints, legal: _Bytes) -> int:
    """Mark the legal assignments of the jobs in the window; returns their number, 0 if nothing can start.

    `start_due` has been called before. If `kept` is empty, GPUs are never kept.
    """
    for a in range(len(legal)):
        legal[a] = 0
    waiting = window(view, rows, kept)
    count = _mark_starts(view, rows, kept, legal, waiting)
    if count > 0 and len(kept) > 0:
        count += _mark_kept(view, rows, kept, legal, waiting)
    return count


@compiled
def _mark_starts(view: View, rows: Ints, kept: Ints, legal: _Bytes, waiting: int) -> int:
    """Mark the assignments that start a job. Calls `fits` once for each site."""
    gpus = len(view.gpus)
    count = 0
    for s in range(len(view.sites)):
        site = view.sites[s]
        if site.free_share == 0 or view.nodes[site.node].up == 0 or (len(kept) > 0 and kept[s] != NOBODY):
            continue
        for w in range(waiting):
            j = rows[w]
            whole = view.jobs[j].share == WHOLE_GPU
            if (whole and site.free_gpus == 0) or not fits(view, j, target(view, j, s)):
                continue
            if _might_take_kept(view, kept, j, s):
                continue
            first = w * gpus + site.first_gpu
            for g in range(site.gpus):
                if site.free_mask >> g & 1 or (not whole and _has_room(view, j, site.first_gpu + g)):
                    legal[first + g] = 1
                    count += 1
    return count


@compiled
def _might_take_kept(view: View, kept: Ints, j: int, s: int) -> bool:
    """Whether this is a gang over several nodes in a pool where GPUs are kept for another."""
    site = view.sites[s]
    if len(kept) == 0 or view.width[view.jobs[j].kind, site.form] <= 1:
        return False
    return _free_to_keep(view, kept, site.pool) < view.pools[site.pool].sites


@compiled
def _mark_kept(view: View, rows: Ints, kept: Ints, legal: _Bytes, waiting: int) -> int:
    """Mark the assignments of gangs over several nodes to GPUs that they have to wait for."""
    gpus = len(view.gpus)
    count = 0
    for p in range(len(view.pools)):
        s = view.pools[p].anchor
        site = view.sites[s]
        free = _free_to_keep(view, kept, p)
        for w in range(waiting):
            j = rows[w]
            width = view.width[view.jobs[j].kind, site.form]
            if 1 < width <= free and not fits(view, j, s):
                legal[w * gpus + site.first_gpu] = 1
                count += 1
    return count


@compiled
def _has_room(view: View, j: int, g: int) -> bool:
    """Whether a GPU has enough of its share left for the job."""
    job = view.jobs[j]
    gpu = view.gpus[g]
    return gpu.free_share >= job.share and gpu.free_memory >= job.gpu_memory


# ---- what the agent sees -----------------------------------------------------------------------------------------


@compiled
def observe(view: View, rows: Ints, kept: Ints, use: _Singles, queue: _Singles, jobs: _Singles) -> None:
    """Write the observation. `mark` has been called before."""
    for s in range(len(view.sites)):
        site = view.sites[s]
        up = view.nodes[site.node].up != 0
        taken = not up or (len(kept) > 0 and kept[s] != NOBODY)
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            works = 1.0 - view.gpus[g].free_share / WHOLE_GPU if up else 0.0
            use[g, 0] = 1.0 if taken else works
            use[g, 1] = works
    _count(view, queue)
    for w in range(len(rows)):
        row = jobs[w]
        for i in range(len(row)):
            row[i] = 0.0
        if rows[w] != NOBODY:
            job = view.jobs[rows[w]]
            row[0] = job.priority
            row[1 + min(job.family, TYPES - 1)] = 1.0
            if len(row) > 1 + TYPES:
                row[1 + TYPES + _size_of(job.gpus)] = 1.0


@compiled
def _count(view: View, queue: _Singles) -> None:
    """Write how many jobs wait, and how many of each type and size that need a GPU."""
    for i in range(len(queue)):
        queue[i] = 0.0
    for q in range(seen(view)):
        job = view.jobs[in_queue(view, q)]
        if job.gpus > 0:
            queue[1 + min(job.family, TYPES - 1)] += 1.0
            if len(queue) > 1 + TYPES:
                queue[1 + TYPES + _size_of(job.gpus)] += 1.0
    for i in range(1, len(queue)):
        queue[i] = min(math.log1p(queue[i]) / math.log1p(COUNTED), 1.0)
    queued = view.clock[0].queued
    queue[0] = queued / (queued + CROWD)


@compiled
def _size_of(gpus: int) -> int:
    """The column of a number of GPUs."""
    size = 0
    while size < SIZES - 1 and 1 << size < gpus:
        size += 1
    return size
