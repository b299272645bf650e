"""The measures of a run, each defined once; docs/metrics.md states them in words and formulas."""

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.core.heat import IDLE_POWER
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import fill_weights
from adlro.core.run import Run
from adlro.core.tables import (
    DONE,
    EVENT_NAMES,
    FAILED,
    OVERRAN,
    STARTED,
    STOPPED,
    TURNED_AWAY,
    Floats,
    Table,
)
from adlro.measure.events import outages, stretches
from adlro.measure.sizes import at_best, kinds_held

SHORTEST_RUNTIME_S: Final = 10.0
"""A job counts as at least this long in slowdown and fairness, so that very short jobs do not dominate the mean."""

MOMENTS: Final = 1024
"""At how many moments fragmentation is sampled; a run with fewer changes is measured exactly."""

PRIORITY_CLASSES: Final = 4
"""Into how many classes of equal width priorities are divided."""

JOULES_PER_KWH: Final = 3.6e6
SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a run is judged by. None: there was nothing to measure it on."""

    jobs: int
    finished: int
    killed: int
    unfinished: int
    refused: int
    jct_mean_s: float | None
    jct_weighted_mean_s: float | None
    jct_p50_s: float | None
    jct_p95_s: float | None
    jct_p99_s: float | None
    wait_mean_s: float | None
    wait_p95_s: float | None
    wait_p99_s: float | None
    wait_priority_1_s: float | None
    wait_priority_2_s: float | None
    wait_priority_3_s: float | None
    wait_priority_4_s: float | None
    bounded_slowdown_mean: float | None
    makespan_s: float | None
    throughput_per_h: float | None
    utilisation: float | None
    effective_utilisation: float | None
    idle_gpu_s: float | None
    fragmentation: float | None
    jain_users: float | None
    finish_time_fairness_mean: float | None
    finish_time_fairness_max: float | None
    energy_kwh: float | None
    preemptions: int
    most_stops: int
    failures: int
    work_lost: float
    illegal: int
    throttled: float | None = None
    hottest_c: float | None = None

    @property
    def placement_efficiency(self) -> float | None:
        """Effective utilisation over utilisation: how fast the GPUs that jobs held were, against their best ones."""
        return _ratio(self.effective_utilisation or 0.0, self.utilisation) if self.utilisation else None

    def as_dict(self) -> dict[str, int | float | None]:
        """The measures by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Finished:
    """The finished jobs in the order of their ends. F of them."""

    job: npt.NDArray[np.int32]  # [F]
    jct: Floats  # [F] s
    best: Floats  # [F] s alone at its fastest placing and size on this cluster


@dataclass(frozen=True, slots=True)
class _Use:
    """What jobs held of the cluster between the first submission and the last moment a job held anything."""

    begin: float
    end: float
    capacity: float  # GPU-seconds
    allocated: Floats  # [S] GPU-seconds


def measure(run: Run) -> Metrics:
    """All measures of a finished run."""
    events = run.events
    counts = np.bincount(events["what"], minlength=len(EVENT_NAMES))
    held = stretches(run)
    done = _finished(run)
    use = _use(run, held) if len(held) else None
    makespan = use.end - use.begin if use else None
    allocated = float(use.allocated.sum()) if use else 0.0
    effective = _effective_gpu_s(run, held, done)
    fragmentation = _fragmentation(run, held, use) if use else None
    waited, wait = _waits(run, held)
    wait_p95, wait_p99 = _percentiles(wait, 95, 99)
    by_priority = _by_priority(run, waited, wait)
    del held  # the largest table here; what follows needs room of its own
    fairness_mean, fairness_max = _finish_time_fairness(run, done)
    slowdown = _slowdown(done)
    p50, p95, p99 = _percentiles(done.jct, 50, 95, 99)
    return Metrics(
        jobs=len(run.jobs),
        finished=len(done.job),
        killed=int(counts[OVERRAN]),
        unfinished=run.unfinished,
        refused=int(counts[TURNED_AWAY]),
        jct_mean_s=_mean(done.jct),
        jct_weighted_mean_s=_weighted_mean(run, done),
        jct_p50_s=p50,
        jct_p95_s=p95,
        jct_p99_s=p99,
        wait_mean_s=_mean(wait),
        wait_p95_s=wait_p95,
        wait_p99_s=wait_p99,
        wait_priority_1_s=by_priority[0],
        wait_priority_2_s=by_priority[1],
        wait_priority_3_s=by_priority[2],
        wait_priority_4_s=by_priority[3],
        bounded_slowdown_mean=_mean(slowdown),
        makespan_s=makespan,
        throughput_per_h=_ratio(len(done.job) * SECONDS_PER_HOUR, makespan),
        utilisation=_ratio(allocated, use.capacity) if use else None,
        effective_utilisation=_ratio(effective, use.capacity) if use else None,
        idle_gpu_s=use.capacity - allocated if use else None,
        fragmentation=fragmentation,
        jain_users=_jain_users(run, done, slowdown),
        finish_time_fairness_mean=fairness_mean,
        finish_time_fairness_max=fairness_max,
        energy_kwh=_energy_kwh(run, use) if use else None,
        preemptions=int(counts[STOPPED]),
        most_stops=int(np.bincount(events["job"][events["what"] == STOPPED], minlength=1).max()),
        failures=int(counts[FAILED]),
        work_lost=float(events["value"][events["what"] == FAILED].sum(dtype=np.float64)),
        illegal=run.illegal,
        throttled=_throttled(run, use) if use else None,
        hottest_c=float(run.heat.hottest.max()) if run.heat is not None and len(run.heat) else None,
    )


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _percentiles(values: Floats, *percents: int) -> tuple[float | None, ...]:
    """Percentiles, linear between the two nearest values."""
    if not len(values):
        return (None,) * len(percents)
    return tuple(float(value) for value in np.percentile(values, percents))


def _finished(run: Run) -> _Finished:
    """The finished jobs, with their JCT and their best possible runtime."""
    rows = np.flatnonzero(run.events["what"] == DONE)
    job = run.events["job"][rows]
    jct = run.events["time"][rows]
    jct -= run.jobs.table["submit"][job]
    best = run.jobs.work[job]
    possible = at_best(run)
    best /= possible.fastest[possible.row[job]]
    return _Finished(job, jct, best)


def _weighted_mean(run: Run, done: _Finished) -> float | None:
    """The mean JCT in which each job counts by its priority (`rules.weight_at`); the plain one if all are equal."""
    priority = run.jobs.table["priority"][done.job]
    if not len(priority) or (priority == priority[0]).all():
        return _mean(done.jct)
    weight = weights_at(priority)
    return float(weight @ done.jct / weight.sum())


def weights_at(priority: npt.NDArray[np.float32]) -> Floats:
    """What jobs of these priorities count (`rules.weight_at`)."""
    weight = np.empty(len(priority))
    fill_weights(np.ascontiguousarray(priority, np.float32), weight)
    return weight


def _by_priority(run: Run, waited: npt.NDArray[np.int32], wait: Floats) -> list[float | None]:
    """The mean wait of the jobs of each quarter of the priorities, the lowest first; a bound is in the lower one."""
    quarter = priority_class(run.jobs.table["priority"][waited])
    return [_mean(wait[quarter == each]) for each in range(1, PRIORITY_CLASSES + 1)]


def priority_class(priority: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The quarter of the priorities that each of them is in, from 1; a bound is in the lower one."""
    return np.clip(np.ceil(priority * PRIORITY_CLASSES).astype(np.int64), 1, PRIORITY_CLASSES)


def _waits(run: Run, held: Table) -> tuple[npt.NDArray[np.int32], Floats]:
    """The jobs that ever started, and first start - submission of each."""
    # Stretches are by job, then by time: a job's first row is its first start.
    first = np.flatnonzero(np.diff(held["job"], prepend=-1))
    wait = held["start"][first]
    job = held["job"][first]
    wait -= run.jobs.table["submit"][job]
    return job, wait


def _slowdown(done: _Finished) -> Floats:
    """Bounded slowdown: JCT over the best runtime of at least SHORTEST_RUNTIME_S, and at least 1. [F]"""
    slowdown = done.jct / np.maximum(done.best, SHORTEST_RUNTIME_S)
    return np.maximum(slowdown, 1.0, out=slowdown)


def _use(run: Run, held: Table) -> _Use:
    """Available and held GPU-seconds, by site."""
    begin, end = float(run.jobs.table["submit"][0]), float(held["end"].max())
    gpu_s = held["end"] - held["start"]
    gpu_s *= np.bitwise_count(held["mask"])
    gpu_s *= run.jobs.table["share"][held["job"]]
    allocated = np.bincount(held["site"], gpu_s, minlength=len(run.site_gpus)) / WHOLE_GPU
    return _Use(begin, end, float(run.site_gpus.sum()) * (end - begin), allocated)


def _effective_gpu_s(run: Run, held: Table, done: _Finished) -> float:
    """GPU-seconds that the work done would have taken at the fastest placing of each job.

    For a job that can be resized: at the size and placing with the fewest GPU-seconds.

    A finished job did its work, no more: what restarts, failures, wear and slow placings cost is not in it. How far any
    other job came is taken from its rates, less what it lost (as if restarts cost nothing).
    """
    table = run.jobs.table
    possible = at_best(run)
    units = table["gpus"] * table["share"]
    if len(run.shapes):
        units = units * (possible.fastest / np.maximum(possible.thrifty.max(axis=1), 1e-300))[possible.row]
    gpu_s = float(done.best @ units[done.job] / WHOLE_GPU)
    other = np.ones(len(table), np.bool_)
    other[done.job] = False
    rows = np.flatnonzero(other[held["job"]] & (held["began"] == STARTED))
    if not len(rows):
        return gpu_s
    failed = np.flatnonzero(run.events["what"] == FAILED)
    job = held["job"][rows]
    work = run.rate[kinds_held(run, held, rows), run.site_form[held["site"][rows]]]
    work *= (held["end"] - held["start"])[rows]
    came = np.bincount(job, work, minlength=len(table))
    came -= np.bincount(run.events["job"][failed], run.events["value"][failed], minlength=len(table))
    job = np.unique(job)
    came = np.clip(came[job], 0.0, run.jobs.work[job]) / possible.fastest[possible.row[job]]
    gpu_s += float(came @ units[job] / WHOLE_GPU)
    return gpu_s


def _throttled(run: Run, use: _Use) -> float | None:
    """The share of GPU time with a lowered clock; None in a run without heat."""
    heat = run.heat
    if heat is None or not len(heat):
        return None
    lowered = float(heat.throttled.sum() + ((heat.clock < 1.0) * np.maximum(0.0, use.end - heat.since)).sum())
    return _ratio(lowered, use.capacity)


def _energy_with_heat(heat: Table, use: _Use) -> float:
    """What the model of heat says that the GPUs drew during the makespan; before it all were idle."""
    joules = heat.energy + heat.power * heat.tdp * (use.end - heat.since) - IDLE_POWER * heat.tdp * use.begin
    return float(joules.sum()) / JOULES_PER_KWH


def _energy_kwh(run: Run, use: _Use) -> float:
    """Energy of the GPUs: TDP while held (in proportion to the share), IDLE_POWER of it otherwise."""
    if run.heat is not None and len(run.heat):
        return _energy_with_heat(run.heat, use)
    tdp = np.array(
        [run.cluster.models[m].tdp_w if n else 0.0 for m, n in zip(run.site_model, run.site_gpus, strict=True)]
    )
    idle = run.site_gpus * (use.end - use.begin) - use.allocated
    return float(tdp @ (use.allocated + IDLE_POWER * idle)) / JOULES_PER_KWH


def _jain_users(run: Run, done: _Finished, slowdown: Floats) -> float | None:
    """Jain's index over users of the mean bounded slowdown of their finished jobs."""
    user = run.jobs.table["user"][done.job]
    jobs = np.bincount(user)
    served = np.flatnonzero(jobs)
    if not len(served):
        return None
    mean = np.bincount(user, slowdown)[served] / jobs[served]
    return float(mean.sum() ** 2 / (len(mean) * (mean @ mean)))


def _finish_time_fairness(run: Run, done: _Finished) -> tuple[float | None, float | None]:
    """Mean and largest ratio of JCT to the runtime on an equal share of the cluster."""
    table = run.jobs.table
    total = float(run.site_gpus.sum())
    needs = table["gpus"][done.job] * table["share"][done.job] / WHOLE_GPU
    # With n jobs in the system each may have total / n GPUs; a job that needs more is that much slower.
    slower = _company(run, done) * needs
    slower /= max(total, 1.0)
    np.maximum(slower, 1.0, out=slower)
    ratio = done.jct / np.maximum(done.best, SHORTEST_RUNTIME_S)
    ratio /= slower
    return (float(ratio.mean()), float(ratio.max())) if len(ratio) else (None, None)


def _company(run: Run, done: _Finished) -> Floats:
    """Mean number of jobs in the system, including the job itself, over the life of each finished job. [F]"""
    what = run.events["what"]
    submit = run.jobs.table["submit"]
    left = np.flatnonzero((what == DONE) | (what == OVERRAN))
    leave = run.events["time"][left]
    came_at = np.searchsorted(leave, submit, "left")
    came_at += np.arange(len(submit))
    left_at = np.searchsorted(submit, leave, "right")
    left_at += np.arange(len(leave))
    present = np.empty(len(submit) + len(leave), np.int32)
    present[came_at] = 1
    present[came_at[run.events["job"][what == TURNED_AWAY]]] = 0
    present[left_at] = -1
    np.cumsum(present, out=present)
    area = np.empty(len(present))
    area[came_at] = submit
    area[left_at] = leave
    area[1:] = np.diff(area)  # since the change before
    area[:1] = 0.0
    area[1:] *= present[:-1]
    np.cumsum(area, out=area)
    mean: Floats = area[left_at[what[left] == DONE]]
    mean -= area[came_at[done.job]]
    np.divide(mean, done.jct, out=mean, where=done.jct > 0)
    return mean


def _fragmentation(run: Run, held: Table, use: _Use) -> float | None:
    """Mean over time of the part of the free GPU capacity that lies in partly used sites, while any is free.

    So an empty cluster is not fragmented, whatever the size of its sites; a site that is down has nothing free.
    """
    sites = np.flatnonzero(run.site_gpus)
    if not len(sites):
        return None
    first_gpu = np.cumsum(run.site_gpus) - run.site_gpus
    down = outages(run)
    moments, weight = _moments(held, down, use)
    used = _used_shares(run, held, moments, first_gpu)
    used[_is_down(run, down, moments)[np.repeat(run.site_node, run.site_gpus)]] = WHOLE_GPU
    site_used = np.add.reduceat(used, first_gpu[sites], axis=0, dtype=np.int32)  # [sites, M]
    site_free = WHOLE_GPU * run.site_gpus[sites, None] - site_used
    free = site_free.sum(axis=0)
    broken = np.sum(site_free, axis=0, where=site_used > 0)
    some = (free > 0) & (weight > 0)
    return float(np.average(broken[some] / free[some], weights=weight[some])) if some.any() else None


def _moments(held: Table, down: Table, use: _Use) -> tuple[Floats, Floats]:
    """Moments to look at the cluster, and the time each stands for: all changes if they are few, else evenly spaced."""
    if 2 * (len(held) + len(down)) <= MOMENTS:
        times = np.concatenate([[use.begin], held["start"], held["end"], down["start"], down["end"]])
        moments = np.unique(times[(times >= use.begin) & (times < use.end)])
        return moments, np.diff(moments, append=use.end)
    edges = np.linspace(use.begin, use.end, MOMENTS + 1, dtype=np.float64)
    return (edges[:-1] + edges[1:]) / 2, np.diff(edges)


def _is_down(run: Run, down: Table, moments: Floats) -> npt.NDArray[np.bool_]:
    """Whether each node is down at each moment. [N, M]"""
    outages_now = np.zeros((len(run.cluster.nodes), len(moments) + 1), np.int32)
    np.add.at(outages_now, (down["node"], np.searchsorted(moments, down["start"])), 1)
    np.subtract.at(outages_now, (down["node"], np.searchsorted(moments, down["end"])), 1)
    return np.cumsum(outages_now, axis=1, out=outages_now)[:, :-1] > 0


def _used_shares(run: Run, held: Table, moments: Floats, first_gpu: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
    """Thousandths of each GPU that are held at each moment. [G, M]"""
    since = np.searchsorted(moments, held["start"])
    until = np.searchsorted(moments, held["end"])
    seen = np.flatnonzero(since < until)
    since, until = since[seen], until[seen]
    mask, site = held["mask"][seen], held["site"][seen]
    share = run.jobs.table["share"][held["job"][seen]].astype(np.int16)
    # What changes at each moment, then summed over time; int16 is enough because a sum is never above a whole GPU.
    used = np.zeros((int(run.site_gpus.sum()), len(moments) + 1), np.int16)
    for bit in range(int(run.site_gpus.max())):
        has = (mask >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        gpu = first_gpu[site[has]] + bit
        np.add.at(used, (gpu, since[has]), share[has])
        np.subtract.at(used, (gpu, until[has]), share[has])
    return np.cumsum(used, axis=1, out=used)[:, :-1]
