"""The network's inputs: numbers for each waiting job, each pool of GPUs, each pair of them, and the whole cluster.

All follow from the outlook. Times are logarithms, in units of the typical runtime of the waiting jobs. Counts are
logarithms or shares. So one network works for clusters of any size and jobs of any length. No plane names a GPU model
or a family: only how fast the job runs there matters.
"""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import gpu_share, most_free_on
from adlro.core.tables import FOREVER, NOBODY, View
from adlro.decide.outlook import HEAD, IDLE, Outlook, quick_log

Singles = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

ROW_PLANES: Final = (
    "runtime at its fastest",
    "GPUs",
    "share of the cluster",
    "share of a GPU",
    "age",
    "priority",
    "jobs alike",
    "time to its earliest end",
    "fits somewhere now",
    "over several nodes",
    "is the head",
)
POOL_PLANES: Final = (
    "free share",
    "free GPUs",
    "GPUs",
    "share of the cluster",
    "largest free part of a node",
    "time to the next release",
    "time until half is free",
    "jobs that would end first here",
    "nodes down",
    "speed for the waiting jobs",
)
PAIR_PLANES: Final = (
    "runtime here",
    "slower than at its fastest",
    "wait until it fits",
    "end here against its earliest end",
    "fits now",
    "GPUs left over on the node",
    "breaks an idle node",
    "delay of the head",
    "wise by the rule",
    "ends first here",
    "like good ones of the past",
)
LIKENESS: Final = 10
"""The pair plane that `past.py` writes, for networks that were trained with it; 0 for the others."""

WHOLE_PLANES: Final = (
    "queue length",
    "jobs running",
    "free share",
    "backlog",
    "rows in use",
    "wait and end of the head",
    "legal pairs",
    "pools",
)

ROW_STOP_PLANES: Final = (
    "may be stopped",
    "runs now",
    "ran before",
    "share of its work done",
    "GPU time held",
    "restart",
    "stops left",
)
PAIR_STOP_PLANES: Final = (
    "is a claim or a move",
    "gain",
    "loss of the others",
    "gain less loss",
    "jobs stopped",
    "GPUs freed and not used",
    "least time left of a stopped job",
)
WHOLE_STOP_PLANES: Final = (
    "share of running jobs that may be stopped",
    "restart",
    "load of the last arrivals",
    "claims and moves",
)
"""Further planes, of networks that may stop and move jobs (`stop_planes.py`). They come after the others."""

CLAIM: Final = len(PAIR_PLANES)
"""The pair plane that says that a pair is a claim or a move."""

FAR: Final = 4.0
"""Upper bound of logarithms."""

FARTHEST: Final = 7.0
"""Upper bound of logarithms of ratios: in real traces some jobs are a thousand times as long as the usual ones."""


MOST_QUEUED: Final = 64
MOST_ALIKE: Final = 16
LONGEST_BACKLOG: Final = 1.5
OLDEST: Final = 2.0
"""Upper bounds of queue inputs, for queues that grow for days. Training episodes end long before that."""


class Planes(NamedTuple):
    """The observation. W rows, P pools."""

    rows: Singles  # [W, ROW_PLANES]
    pools: Singles  # [P, POOL_PLANES]
    pairs: Singles  # [W, P, PAIR_PLANES]
    whole: Singles  # [WHOLE_PLANES]
    prior: Singles  # [W, P] the rule's score
    present: Bytes  # [W, P] 1 if the pair exists, legal or not
    legal: Bytes  # [W, P] 1 if the pair may start now


def make_planes(rows: int, pools: int, stops: bool = False) -> Planes:
    """An empty observation; with `stops` for a network that may stop jobs."""
    return new_planes(rows, pools, stops)


@compiled_allocating
def new_planes(rows: int, pools: int, stops: bool = False) -> Planes:
    """An empty observation, for compiled code; with `stops` for a network that may stop jobs."""
    more = 1 if stops else 0
    return Planes(
        np.zeros((rows, len(ROW_PLANES) + more * len(ROW_STOP_PLANES)), np.float32),
        np.zeros((pools, len(POOL_PLANES)), np.float32),
        np.zeros((rows, pools, len(PAIR_PLANES) + more * len(PAIR_STOP_PLANES)), np.float32),
        np.zeros(len(WHOLE_PLANES) + more * len(WHOLE_STOP_PLANES), np.float32),
        np.zeros((rows, pools), np.float32),
        np.zeros((rows, pools), np.uint8),
        np.zeros((rows, pools), np.uint8),
    )


LEAST: Final = math.log(0.0183)
"""Lower bound of differences of logarithms."""

COUNT_LOGS: Final = 0.5 * np.log1p(np.arange(256.0))
"""`log_of_more` of small integers, which are the most frequent."""


@compiled
def cut_off(difference: float) -> float:
    """The logarithm of a ratio, as the difference of two logarithms, clipped at both ends."""
    if difference <= LEAST:
        return -FAR
    return min(difference, FARTHEST)


@compiled
def log_of_more(ratio: float) -> float:
    """log(1 + ratio) / 2, clipped; 0 for a ratio of 0."""
    if ratio == 0.0:
        return 0.0
    if ratio >= 2980.0:
        return FAR
    return 0.5 * quick_log(1.0 + ratio)


@compiled
def log_of_count(count: int) -> float:
    """`log_of_more` of an integer."""
    if count < len(COUNT_LOGS):
        return COUNT_LOGS[count]
    return log_of_more(float(count))


@compiled
def clear(marks: Bytes) -> None:
    """Set all marks to 0."""
    flat = marks.reshape(marks.size)
    for i in range(len(flat)):
        flat[i] = 0


@compiled
def observe(view: View, outlook: Outlook, planes: Planes) -> None:
    """Write the observation. The outlook has been filled, and there is a legal pair."""
    rows = outlook.counts[0]
    pools = min(len(view.pools), planes.pools.shape[0])
    unit = outlook.unit[0]
    gpus = 0
    free = 0
    for p in range(len(view.pools)):
        gpus += view.pools[p].gpus
        free += view.pools[p].free_gpus
    observe_pools(view, outlook, planes, pools, unit, gpus)
    clear(planes.present)
    clear(planes.legal)
    work = 0.0
    log_unit = quick_log(unit)
    for w in range(rows):
        observe_row(view, outlook, planes, w, pools, 1.0 / unit, log_unit, gpus)
        work += outlook.brief[w] * gpu_share(view, outlook.rows[w]) * outlook.alike[w]
    clock = view.clock[0]
    head = outlook.counts[HEAD]
    whole = planes.whole
    whole[0] = log_of_count(min(clock.queued, MOST_QUEUED))
    whole[1] = log_of_count(clock.running)
    whole[2] = free / max(gpus, 1)
    whole[3] = min(log_of_more(work / (unit * max(gpus, 1))), LONGEST_BACKLOG)
    whole[4] = rows / planes.rows.shape[0]
    whole[5] = log_of_more(outlook.finish[head] / unit) if head != NOBODY else 0.0
    whole[6] = log_of_count(outlook.counts[1])
    whole[7] = pools / 8.0


@compiled
def observe_pools(view: View, outlook: Outlook, planes: Planes, pools: int, unit: float, gpus: int) -> None:
    """Write the planes of the pools, and 0 for pools that do not exist."""
    now = view.clock[0].now
    for p in range(planes.pools.shape[0]):
        plane = planes.pools[p]
        if p >= pools:
            for i in range(len(plane)):
                plane[i] = 0.0
            continue
        pool = view.pools[p]
        largest = most_free_on(view, p, 1)
        down = 0
        soonest = outlook.ready[p, 0]
        halfway = 0.0
        for i in range(pool.first_site, pool.first_site + pool.sites):
            if len(outlook.middle) > 0:
                middle = outlook.middle[i]
                down += middle == FOREVER
            else:
                site = view.sites[view.pool_sites[i]]
                down += view.nodes[site.node].up == 0
                middle = outlook.gpu_free[site.first_gpu + (site.gpus - 1) // 2] if site.gpus > 0 else now
            halfway += min(max(middle - now, 0.0), 1e9)
        goals = 0
        speed = 0.0
        able = 0
        for w in range(outlook.counts[0]):
            goals += outlook.goal[w] == p
            if outlook.run[w, p] < FOREVER:
                able += 1
                speed += outlook.brief[w] / outlook.run[w, p] if outlook.run[w, p] > 0.0 else 1.0
        plane[0] = pool.free_gpus / max(pool.gpus, 1)
        plane[1] = log_of_count(pool.free_gpus)
        plane[2] = log_of_count(pool.gpus)
        plane[3] = pool.gpus / max(gpus, 1)
        plane[4] = largest / max(pool.largest, 1)
        plane[5] = log_of_more((soonest - now) / unit) if soonest < FOREVER else FAR
        plane[6] = log_of_more(halfway / max(pool.sites, 1) / unit)
        plane[7] = goals / max(outlook.counts[0], 1)
        plane[8] = down / max(pool.sites, 1)
        plane[9] = speed / max(able, 1)


@compiled
def observe_row(
    view: View, outlook: Outlook, planes: Planes, w: int, pools: int, per_unit: float, log_unit: float, gpus: int
) -> None:
    """Write the planes of one job and of its pairs."""
    j = outlook.rows[w]
    job = view.jobs[j]
    kind, needed = job.kind, job.gpus * job.share
    brief, finish, goal = outlook.brief[w], outlook.finish[w], outlook.goal[w]
    log_brief = quick_log(brief)
    log_finish = quick_log(finish)
    fits_now = 0.0
    wide = 0.0
    for p in range(pools):
        run = outlook.run[w, p]
        if run == FOREVER:
            continue
        s, wait, prior = outlook.spot[w, p], outlook.wait[w, p], outlook.prior[w, p]
        left = 0.0
        breaks = 0.0
        delay = 0.0
        if s != NOBODY:
            fits_now = 1.0
            site = view.sites[s]
            if view.width[kind, site.form] > 1:
                wide = 1.0
            else:
                left = (site.free_share - needed) / WHOLE_GPU
                breaks = 1.0 if view.nodes[site.node].jobs == 0 and left > 0.0 else 0.0
                left /= max(site.gpus, 1)
            delay = log_of_more(outlook.delay[w, p] * per_unit)
        log_run = quick_log(run)
        log_end = log_run if wait == 0.0 else quick_log(wait + run)
        planes.present[w, p] = 1
        planes.legal[w, p] = s != NOBODY
        planes.prior[w, p] = prior
        pair = planes.pairs[w, p]
        pair[0] = cut_off(log_run - log_unit)
        pair[1] = cut_off(log_run - log_brief)
        pair[2] = log_of_more(wait * per_unit)
        pair[3] = cut_off(log_end - log_finish) if finish < FOREVER else 0.0
        pair[4] = 1.0 if s != NOBODY else 0.0
        pair[5] = left
        pair[6] = breaks
        pair[7] = delay
        pair[8] = 1.0 if s != NOBODY and prior > IDLE else 0.0
        pair[9] = 1.0 if goal == p else 0.0
        pair[LIKENESS] = 0.0
    row = planes.rows[w]
    row[0] = cut_off(log_brief - log_unit)
    row[1] = log_of_count(job.gpus)
    row[2] = gpu_share(view, j) / max(gpus, 1)
    row[3] = job.share / WHOLE_GPU
    row[4] = min(log_of_more((view.clock[0].now - job.submit) * per_unit), OLDEST)
    row[5] = job.priority
    row[6] = log_of_count(min(outlook.alike[w] - 1, MOST_ALIKE))
    row[7] = cut_off(log_finish - log_unit)
    row[8] = fits_now
    row[9] = wide
    row[10] = 1.0 if outlook.counts[HEAD] == w else 0.0
