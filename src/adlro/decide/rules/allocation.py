"""Shares of time from linear programs, and the rounds that realise them: pure functions on matrices.

Axes: J jobs, K GPU models, M machines. `throughput` [J, K] is work per second of the whole job on a model, 0 if it
cannot run there; `gpus` [J] is its number of GPUs (with fractions); `capacity` [K] is the number of GPUs of each model.
The result, shares [J, K], is the fraction of time that a job should spend on a model. A job's shares sum to at most 1,
and no model exceeds its capacity. The programs are those of Gavel (Narayanan et al., OSDI 2020), see docs/gavel.md; the
matching is that of AlloX (Le et al., EuroSys 2020).
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csc_array

from adlro.core.tables import NOBODY, Floats, Ints

_LEAST_WEIGHT: Final = 1e-3
"""Lower bound of weights: max-min divides by them, and a job of weight 0 would never run."""

NEWCOMER: Final = 1e9
"""Priority, per unit of share, of a job that has received nothing yet: above all others, still ordered by share."""

SLACK: Final = 1e-9
"""A very small number.

The second program may lower the least share by it, so that rounding does not make it infeasible. Each of several equal
jobs counts as longer than the one before by it.
"""

PROGRAMS_KEPT: Final = 4096
"""Number of solver results that are cached: on a trace the same groups of jobs occur again and again."""

SPREAD_STEPS: Final = 20
"""Number of scaling steps in `spread`. One step is exact if no job is bound to a model."""


def max_min(throughput: Floats, gpus: Floats, capacity: Floats, weight: Floats) -> Floats:
    """Shares that maximise the lowest normalised throughput, then use what is left.

    The throughput of a job is divided by its weight and by what it would get from an equal share of every model, and
    multiplied by its GPUs: of two equally fast jobs, the one with fewer GPUs gets more time.
    """
    speed = _where_it_runs(throughput, gpus, capacity)
    equal = speed @ capacity / max(float(capacity.sum()), 1.0)
    scale = gpus / (np.maximum(weight, _LEAST_WEIGHT) * np.where(equal > 0, equal, 1.0))
    return _raise_the_least(speed * scale[:, None], speed, gpus, capacity)


def min_makespan(throughput: Floats, gpus: Floats, capacity: Floats, work_left: Floats) -> Floats:
    """Shares that minimise the time at which the last of these jobs ends, then use what is left."""
    speed = _where_it_runs(throughput, gpus, capacity) * (work_left > 0)[:, None]
    return _raise_the_least(speed / np.where(work_left > 0, work_left, 1.0)[:, None], speed, gpus, capacity)


def max_sum(throughput: Floats, gpus: Floats, capacity: Floats, weight: Floats) -> Floats:
    """Shares that maximise the weighted sum of throughputs, each relative to the job's best model.

    Dividing by the best throughput makes jobs comparable in any unit; a gang counts as one job (pass `weight * gpus` to
    count GPUs). Of equal jobs the earlier ones get all their time, instead of a part for each. This does not change the
    sum and saves restarts.
    """
    speed = _where_it_runs(throughput, gpus, capacity)
    best = speed.max(axis=1, initial=0.0)
    gain = speed * (np.maximum(weight, _LEAST_WEIGHT) / np.where(best > 0, best, 1.0))[:, None]
    shares = _without_gpus(speed, gpus)
    for alike, share, order in _solve_sum(gain, gpus, capacity):
        ends = np.cumsum(len(alike) * share[order])
        place = np.arange(len(alike))[:, None]
        # Put all the time of these jobs on one line, the best model first. Each job in turn gets a piece of length 1.
        cut = np.minimum(place + 1, ends) - np.maximum(place, np.concatenate(([0.0], ends[:-1])))
        shares[alike[:, None], order] = np.maximum(cut, 0.0)
    return _feasible(shares, gpus, capacity)


def agnostic(throughput: Floats) -> Floats:
    """A throughput of 1 on every model where a job runs: what a policy assumes that ignores models."""
    return (throughput > 0).astype(np.float64)


def spread(shares: Floats, throughput: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """The same time for each job, spread over all models where it runs by their number of GPUs, within capacity.

    For a policy that ignores models all distributions of a job's time are equal. A solver returns any of them and could
    leave a job on the slowest model for good. Scaling models and jobs in turn converges to the most even one.
    """
    time = shares.sum(axis=1)
    even = np.where(throughput > 0, capacity, 0.0)
    for _ in range(SPREAD_STEPS):
        even *= (time / np.maximum(even.sum(axis=1), np.finfo(np.float64).tiny))[:, None]
        used = gpus @ even
        even *= np.minimum(1.0, capacity / np.where(used > 0, used, 1.0))
    return _feasible(even, gpus, capacity)


def round_priorities(shares: Floats, received: Floats) -> Floats:
    """How far each job is behind its share on each model: share / fraction of the model's time received so far. [J, K]

    `received` [J, K] is in seconds. Jobs that have received nothing come first, ordered by share. Gavel starts counting
    at half a round instead of 0, which softens this.
    """
    total = received.sum(axis=0)
    fraction = received / np.where(total > 0, total, 1.0)
    return shares / np.maximum(fraction, 1 / NEWCOMER)


def by_priority(priority: Floats, throughput: Floats, *, fill: bool = True) -> tuple[Ints, Ints]:
    """Jobs and models of the pairs that can run, by descending priority; without `fill`, only priorities above 0.

    Ties go to the model closest to the job's best, then to the earlier job.
    """
    best = np.maximum(throughput.max(axis=1, initial=0.0), np.finfo(np.float64).tiny)
    jobs, models = np.nonzero(throughput > 0 if fill else (throughput > 0) & (priority > 0))
    order = np.lexsort((models, jobs, -throughput[jobs, models] / best[jobs], -priority[jobs, models]))
    return jobs[order].astype(np.int32), models[order].astype(np.int32)


def pick_round(priority: Floats, gpus: Floats, free: Floats, throughput: Floats, *, fill: bool = True) -> Ints:
    """The model on which each job runs in the next round, or NOBODY, by descending priority while GPUs last. [J]

    With `fill`, GPUs that no job with a share wants go to jobs without a share that can run there, so that no GPU is
    idle while jobs wait.
    """
    return pick_in_order(by_priority(priority, throughput, fill=fill), gpus, free)


def pick_in_order(pairs: tuple[Ints, Ints], gpus: Floats, free: Floats) -> Ints:
    """The model of each job's first pair that still has enough GPUs, or NOBODY. [J]"""
    choice = np.full(len(gpus), NOBODY, dtype=np.int32)
    left = free.tolist()
    needs = gpus.tolist()
    placed = [False] * len(needs)
    for job, model in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True):
        if not placed[job] and needs[job] <= left[model] + SLACK:
            placed[job] = True
            left[model] -= needs[job]
            choice[job] = model
    return choice


def allox(duration: Floats, ready: Floats) -> Ints:
    """The job that each machine should run next, or NOBODY, to minimise the sum of completion times. [M]

    `duration` [J, M] is the seconds of a job on a machine (one GPU), inf if it cannot run there; `ready` [M] is the
    seconds until a machine is free. The k-th last job of a machine delays k jobs, including itself, so it costs k *
    duration. The time that a job has already waited is the same for every placement and can be left out. AlloX only has
    jobs of one GPU; for gangs pass duration * gpus, their GPU time, which is our extension.
    """
    first = np.full(duration.shape[1], NOBODY, dtype=np.int32)
    jobs = np.flatnonzero(np.isfinite(duration).any(axis=1))
    if not len(jobs):
        return first
    # Of equal jobs the earlier one counts as slightly shorter, so that it goes first.
    duration = duration[jobs] * (1.0 + SLACK * np.arange(len(jobs)))[:, None]
    count, machines = duration.shape
    # A place that nobody takes has price 0 in the matching, and later places only cost more. So if the last place of
    # every machine stays empty, more places would not help; otherwise try twice as many.
    places = min(count, -(-count // machines) + 1)
    while True:
        job, machine, place, forbidden = _match(duration, ready, places)
        if places == count or (not forbidden and int(place.max()) < places - 1):
            break
        places = min(count, 2 * places)
    # Places count from the end, so the job that runs first has the largest place; the last write wins.
    order = np.argsort(place, kind="stable")
    first[machine[order]] = jobs[job[order]]
    return first


def _match(duration: Floats, ready: Floats, places: int) -> tuple[Any, Any, Any, bool]:
    """Job, machine and place from the end of each matched pair, and whether a job got one where it cannot run."""
    can = np.isfinite(duration)
    worst = (float(duration[can].max()) * places + float(ready.max(initial=0.0))) * (len(duration) + 1) + 1.0
    times = np.arange(1, places + 1)[None, :, None]
    cost = np.where(can, duration, 0.0)[:, None, :] * times + ready
    cost = np.where(can[:, None, :], cost, worst).reshape(len(duration), -1)
    job, column = linear_sum_assignment(cost)
    place, machine = np.divmod(column, duration.shape[1])
    return job, machine, place, not bool(can[job, machine].all())


def _where_it_runs(throughput: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """Throughput, set to 0 on models with fewer GPUs than the job needs: a gang needs all its GPUs."""
    return np.where(gpus[:, None] <= capacity, throughput, 0.0)


def _without_gpus(speed: Floats, gpus: Floats) -> Floats:
    """Shares that only serve jobs without GPUs: they use no capacity, so each gets all its time on its best model."""
    shares = np.zeros_like(speed)
    if speed.size:
        served = np.flatnonzero((gpus <= 0) & (speed.max(axis=1) > 0))
        shares[served, speed[served].argmax(axis=1)] = 1.0
    return shares


def _alike(gain: Floats, gpus: Floats) -> list[npt.NDArray[np.intp]]:
    """Groups of jobs that are equal to the program. Jobs without GPUs, and jobs that run nowhere, are in no group.

    Averaging the shares of equal jobs changes neither the minimum nor the sum, so one block of variables is enough for
    each group.
    """
    groups: dict[bytes, list[int]] = {}
    rows = np.ascontiguousarray(np.column_stack((gain, gpus)))
    for job in np.flatnonzero((gain > 0).any(axis=1) & (gpus > 0)).tolist():
        groups.setdefault(rows[job].tobytes(), []).append(job)
    return [np.array(jobs) for jobs in groups.values()]


def _raise_the_least(gain: Floats, speed: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """Shares x that maximise min_j sum_k gain_jk x_jk, and then the sum over all jobs under that condition.

    The first program is solved for y = x / least and s = 1 / least: minimise s with gain y >= 1 and all limits times s.
    The optimum is the same, and the dual simplex can start at once: 3 ms instead of 8 ms for 100 different jobs.
    """
    shares = _without_gpus(speed, gpus)
    alike = _alike(gain, gpus)
    if not alike:
        return shares
    heads = np.array([jobs[0] for jobs in alike])
    size = np.array([len(jobs) for jobs in alike], dtype=np.float64)
    share = _fullest(gain[heads].tobytes(), size.tobytes(), gpus[heads].tobytes(), capacity.tobytes())
    for jobs, row in zip(alike, share, strict=True):
        shares[jobs] = row
    return _feasible(shares, gpus, capacity)


@lru_cache(maxsize=PROGRAMS_KEPT)
def _fullest(gains: bytes, sizes: bytes, gpus_each: bytes, capacities: bytes) -> Floats:
    """The shares of one job of each group after both programs. [groups, K]

    The arguments are arrays as bytes, so that results can be cached.
    """
    size, gpus, capacity = (np.frombuffer(column) for column in (sizes, gpus_each, capacities))
    gain = np.frombuffer(gains).reshape(len(size), len(capacity))
    # The shares do not depend on the unit of gain, but the solver's tolerances do.
    gain = gain / gain.max(axis=1).min()
    rows, models = np.nonzero(gain)
    groups, kinds = gain.shape
    limits = np.concatenate((np.ones(groups), capacity))
    matrix = _columns(gain, rows, models, size * gpus)
    scaled = _append(matrix, -limits)
    cost = np.zeros(len(rows) + 1)
    cost[-1] = 1.0
    solved = _solve(cost, scaled, np.concatenate((np.zeros(groups + kinds), -np.ones(groups))))
    if solved is None:  # impossible: giving every group a little of a model on which it runs is feasible
        raise AssertionError("the program of the least share has no solution")
    variables = solved[:-1] / solved[-1]
    least = (1.0 - SLACK) / solved[-1]
    fuller = _solve(-gain[rows, models] * size[rows], matrix, np.concatenate((limits, np.full(groups, -least))))
    share = np.zeros_like(gain)
    share[rows, models] = variables if fuller is None else fuller
    share.flags.writeable = False
    return share


def _solve_sum(gain: Floats, gpus: Floats, capacity: Floats) -> list[tuple[Any, Floats, Any]]:
    """For each group of equal jobs: the jobs, the mean share of one job, and the models from best to worst."""
    alike = _alike(gain, gpus)
    if not alike:
        return []
    heads = np.array([jobs[0] for jobs in alike])
    size = np.array([len(jobs) for jobs in alike], dtype=np.float64)
    gain = gain[heads]
    rows, models = np.nonzero(gain)
    matrix = _columns(gain, rows, models, size * gpus[heads])[: len(heads) + len(capacity)]
    solved = _solve(-gain[rows, models] * size[rows], matrix, np.concatenate((np.ones(len(heads)), capacity)))
    if solved is None:  # impossible: x = 0 is feasible and the shares are bounded
        raise AssertionError("the program of the sum has no solution")
    share = np.zeros_like(gain)
    share[rows, models] = solved
    return list(zip(alike, share, np.argsort(-gain, axis=1, kind="stable"), strict=True))


def _columns(gain: Floats, rows: Any, models: Any, load: Floats) -> Any:
    """One column for each (group, model): its time in the group, its GPUs on the model, minus its gain in the group."""
    groups, kinds = gain.shape
    index = np.stack((rows, groups + models, groups + kinds + rows), axis=1)
    value = np.stack((np.ones(len(rows)), load[rows], -gain[rows, models]), axis=1)
    start = np.arange(len(rows) + 1) * 3
    return csc_array((value.ravel(), index.ravel(), start), shape=(2 * groups + kinds, len(rows)))


def _append(matrix: Any, column: Floats) -> Any:
    """The matrix with one more column; missing rows are 0."""
    return csc_array(
        (
            np.concatenate((matrix.data, column)),
            np.concatenate((matrix.indices, np.arange(len(column)))),
            np.append(matrix.indptr, len(matrix.data) + len(column)),
        ),
        shape=(matrix.shape[0], matrix.shape[1] + 1),
    )


def _solve(cost: Floats, matrix: Any, limits: Floats) -> Floats | None:
    """The v >= 0 with the lowest cost and matrix v <= limits, by HiGHS; None if there is none.

    `milp` without integer variables solves a linear program, and spends 1 ms less on checks in Python than `linprog`.
    There is nothing to presolve.
    """
    rows = LinearConstraint(matrix, -np.inf, limits)
    result = milp(cost, constraints=rows, bounds=Bounds(0.0, np.inf), options={"presolve": False})
    return np.maximum(result.x, 0.0) if result.status == 0 else None


def _feasible(shares: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """The shares without the solver's rounding errors: no job above 1, no model above its capacity."""
    shares = shares / np.maximum(shares.sum(axis=1), 1.0)[:, None]
    used = gpus @ shares
    return shares * np.where(used > capacity, capacity / np.where(used > 0, used, 1.0), 1.0)
