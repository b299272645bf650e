"""Shares of time from linear programs, and the rounds that realise them: pure functions on matrices.

Axes: J jobs, K GPU models, M machines. `throughput` [J, K] is work per second of the whole job on a model, 0 where it
cannot run; `gpus` [J] what it takes there (shares of a GPU allowed); `capacity` [K] the GPUs of a model. The answer,
shares [J, K], says which part of the time a job should spend on a model: no job gets more than all of its time, no
model gives more than it has. The programs are those of Gavel (Narayanan et al., OSDI 2020), see docs/gavel.md; the
matching is that of AlloX (Le et al., EuroSys 2020).
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csc_array

from adlro.core.tables import NOBODY, Floats, Ints

LEAST_WEIGHT: Final = 1e-3
"""Smaller weights count as this: max-min divides by them, and a job of weight 0 would never run."""

NEWCOMER: Final = 1e9
"""Priority, for a whole share, of who has had nothing yet: above all others, and still in the order of the shares."""

SLACK: Final = 1e-9
"""Next to nothing: what the second program may give up of the least share, so that rounding does not make it
infeasible; and by how much a job counts as longer than the one before it."""

PROGRAMS_KEPT: Final = 4096
"""Answers of the solver that are kept: on a trace the same groups of jobs come together again and again."""

SPREAD_STEPS: Final = 20
"""How often `spread` scales; without jobs bound to a model one step is exact."""


def max_min(throughput: Floats, gpus: Floats, capacity: Floats, weight: Floats) -> Floats:
    """Shares that make the least normalised throughput as large as possible, then use what is left.

    The throughput of a job is divided by its weight and by what it would have under an equal share of every model,
    and multiplied by its GPUs: of two jobs with equal speeds, the one on fewer GPUs gets more time.
    """
    speed = _where_it_runs(throughput, gpus, capacity)
    equal = speed @ capacity / max(float(capacity.sum()), 1.0)
    scale = gpus / (np.maximum(weight, LEAST_WEIGHT) * np.where(equal > 0, equal, 1.0))
    return _raise_the_least(speed * scale[:, None], speed, gpus, capacity)


def min_makespan(throughput: Floats, gpus: Floats, capacity: Floats, work_left: Floats) -> Floats:
    """Shares with which the last of these jobs ends as early as possible, then use what is left."""
    speed = _where_it_runs(throughput, gpus, capacity) * (work_left > 0)[:, None]
    return _raise_the_least(speed / np.where(work_left > 0, work_left, 1.0)[:, None], speed, gpus, capacity)


def max_sum(throughput: Floats, gpus: Floats, capacity: Floats, weight: Floats) -> Floats:
    """Shares that make the weighted sum of throughputs as large as possible, each against the job's best model.

    Dividing by the best throughput makes jobs comparable whatever their unit; a gang counts as one job (pass
    `weight * gpus` to count GPUs). Of jobs alike the earlier ones are served whole rather than all in part, which costs
    nothing in the sum and saves restarts.
    """
    speed = _where_it_runs(throughput, gpus, capacity)
    best = speed.max(axis=1, initial=0.0)
    gain = speed * (np.maximum(weight, LEAST_WEIGHT) / np.where(best > 0, best, 1.0))[:, None]
    shares = _without_gpus(speed, gpus)
    for alike, share, order in _solve_sum(gain, gpus, capacity):
        ends = np.cumsum(len(alike) * share[order])
        place = np.arange(len(alike))[:, None]
        # All the time of these jobs is one line, the best model first; each job in turn cuts off a piece of length 1.
        cut = np.minimum(place + 1, ends) - np.maximum(place, np.concatenate(([0.0], ends[:-1])))
        shares[alike[:, None], order] = np.maximum(cut, 0.0)
    return _feasible(shares, gpus, capacity)


def agnostic(throughput: Floats) -> Floats:
    """The same throughput, 1, on every model where a job runs: what a policy blind to models believes."""
    return (throughput > 0).astype(np.float64)


def spread(shares: Floats, throughput: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """The same time for each job, given on all models where it runs by their number of GPUs, as far as they have room.

    To who takes all models for alike, every way to place a job's time is as good; a solver takes any, and could leave a
    job on the slowest model for good. Scaling models and jobs in turn finds the most even way (in the limit).
    """
    time = shares.sum(axis=1)
    even = np.where(throughput > 0, capacity, 0.0)
    for _ in range(SPREAD_STEPS):
        even *= (time / np.maximum(even.sum(axis=1), np.finfo(np.float64).tiny))[:, None]
        used = gpus @ even
        even *= np.minimum(1.0, capacity / np.where(used > 0, used, 1.0))
    return _feasible(even, gpus, capacity)


def round_priorities(shares: Floats, received: Floats) -> Floats:
    """How far each job is behind its share on each model: share / part of the model's time received so far. [J, K]

    `received` [J, K] is seconds. Whoever has had nothing comes first, in the order of the shares. Gavel starts the
    count at half a round instead of 0, which softens this.
    """
    total = received.sum(axis=0)
    fraction = received / np.where(total > 0, total, 1.0)
    return shares / np.maximum(fraction, 1 / NEWCOMER)


def by_priority(priority: Floats, throughput: Floats, *, fill: bool = True) -> tuple[Ints, Ints]:
    """Jobs and models of the pairs that can run, by falling priority; without `fill`, those with a priority above 0.

    Equal priorities go to the model nearest to the job's best, then to the earlier job.
    """
    best = np.maximum(throughput.max(axis=1, initial=0.0), np.finfo(np.float64).tiny)
    jobs, models = np.nonzero(throughput > 0 if fill else (throughput > 0) & (priority > 0))
    order = np.lexsort((models, jobs, -throughput[jobs, models] / best[jobs], -priority[jobs, models]))
    return jobs[order].astype(np.int32), models[order].astype(np.int32)


def pick_round(priority: Floats, gpus: Floats, free: Floats, throughput: Floats, *, fill: bool = True) -> Ints:
    """The model on which each job runs in the next round, or NOBODY, by falling priority as far as GPUs go. [J]

    With `fill`, GPUs that nobody with a share wants go to jobs that can run there without one, so that none stays idle
    beside a queue.
    """
    return pick_in_order(by_priority(priority, throughput, fill=fill), gpus, free)


def pick_in_order(pairs: tuple[Ints, Ints], gpus: Floats, free: Floats) -> Ints:
    """The model of the first of each job's pairs that still has GPUs for it, or NOBODY. [J]"""
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
    """The job that each machine should run next, or NOBODY, so that the sum of completion times is least. [M]

    `duration` [J, M] is seconds of a job on a machine (one GPU), inf where it cannot run; `ready` [M] seconds until a
    machine is free. A job in the k-th last place of a machine delays k jobs, itself included: it costs k * duration.
    Time already waited is the same wherever a job goes, so it changes nothing. AlloX knows only jobs of one GPU; for
    gangs pass duration * gpus, the machine time they take, which is our extension.
    """
    first = np.full(duration.shape[1], NOBODY, dtype=np.int32)
    jobs = np.flatnonzero(np.isfinite(duration).any(axis=1))
    if not len(jobs):
        return first
    # Of jobs alike the earlier counts as shorter by a hair, so that it goes first.
    duration = duration[jobs] * (1.0 + SLACK * np.arange(len(jobs)))[:, None]
    count, machines = duration.shape
    # A place that nobody takes has price 0 in the matching, and later places only cost more. So if the last place of
    # every machine stays empty, more places would not help; else try twice as many.
    places = min(count, -(-count // machines) + 1)
    while True:
        job, machine, place, forbidden = _match(duration, ready, places)
        if places == count or (not forbidden and int(place.max()) < places - 1):
            break
        places = min(count, 2 * places)
    # The place counts from the end, so the job to run first has the largest; the last write wins.
    order = np.argsort(place, kind="stable")
    first[machine[order]] = jobs[job[order]]
    return first


def _match(duration: Floats, ready: Floats, places: int) -> tuple[Any, Any, Any, bool]:
    """Job, machine and place from the end of each matched pair, and whether a pair had to be one that cannot run."""
    can = np.isfinite(duration)
    worst = (float(duration[can].max()) * places + float(ready.max(initial=0.0))) * (len(duration) + 1) + 1.0
    times = np.arange(1, places + 1)[None, :, None]
    cost = np.where(can, duration, 0.0)[:, None, :] * times + ready
    cost = np.where(can[:, None, :], cost, worst).reshape(len(duration), -1)
    job, column = linear_sum_assignment(cost)
    place, machine = np.divmod(column, duration.shape[1])
    return job, machine, place, not bool(can[job, machine].all())


def _where_it_runs(throughput: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """Throughput, and 0 on a model with fewer GPUs than the job needs: a part of a gang cannot run."""
    return np.where(gpus[:, None] <= capacity, throughput, 0.0)


def _without_gpus(speed: Floats, gpus: Floats) -> Floats:
    """Shares with only those jobs served that need no GPU: they take nothing, so they get all of their best model."""
    shares = np.zeros_like(speed)
    if speed.size:
        served = np.flatnonzero((gpus <= 0) & (speed.max(axis=1) > 0))
        shares[served, speed[served].argmax(axis=1)] = 1.0
    return shares


def _alike(gain: Floats, gpus: Floats) -> list[npt.NDArray[np.intp]]:
    """Jobs that the program cannot tell apart, group by group; jobs without GPUs and jobs that run nowhere are in none.

    Averaging the shares of jobs alike changes neither the least nor the sum, so one block of variables stands for all.
    """
    groups: dict[bytes, list[int]] = {}
    rows = np.ascontiguousarray(np.column_stack((gain, gpus)))
    for job in np.flatnonzero((gain > 0).any(axis=1) & (gpus > 0)).tolist():
        groups.setdefault(rows[job].tobytes(), []).append(job)
    return [np.array(jobs) for jobs in groups.values()]


def _raise_the_least(gain: Floats, speed: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """Shares x that make min_j sum_k gain_jk x_jk largest, and then that sum over all jobs as large as it can still be.

    The first program is solved for y = x / least and s = 1 / least: minimise s with gain y >= 1 and all limits times s.
    It has the same optimum, and lets the dual simplex start at once: 3 ms instead of 8 for 100 different jobs.
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
    """What one job of each group gets by both programs. [groups, K]

    The arguments are arrays as bytes: a program that was solved before is not solved again.
    """
    size, gpus, capacity = (np.frombuffer(column) for column in (sizes, gpus_each, capacities))
    gain = np.frombuffer(gains).reshape(len(size), len(capacity))
    # Shares do not depend on the unit of gain; the solver's tolerances do.
    gain = gain / gain.max(axis=1).min()
    rows, models = np.nonzero(gain)
    groups, kinds = gain.shape
    limits = np.concatenate((np.ones(groups), capacity))
    matrix = _columns(gain, rows, models, size * gpus)
    scaled = _append(matrix, -limits)
    cost = np.zeros(len(rows) + 1)
    cost[-1] = 1.0
    solved = _solve(cost, scaled, np.concatenate((np.zeros(groups + kinds), -np.ones(groups))))
    if solved is None:  # cannot be: giving every group a little of a model on which it runs is feasible
        raise AssertionError("the program of the least share has no solution")
    variables = solved[:-1] / solved[-1]
    least = (1.0 - SLACK) / solved[-1]
    fuller = _solve(-gain[rows, models] * size[rows], matrix, np.concatenate((limits, np.full(groups, -least))))
    share = np.zeros_like(gain)
    share[rows, models] = variables if fuller is None else fuller
    share.flags.writeable = False
    return share


def _solve_sum(gain: Floats, gpus: Floats, capacity: Floats) -> list[tuple[Any, Floats, Any]]:
    """For each group of jobs alike: the jobs, the share of one on the average, and the models from the best down."""
    alike = _alike(gain, gpus)
    if not alike:
        return []
    heads = np.array([jobs[0] for jobs in alike])
    size = np.array([len(jobs) for jobs in alike], dtype=np.float64)
    gain = gain[heads]
    rows, models = np.nonzero(gain)
    matrix = _columns(gain, rows, models, size * gpus[heads])[: len(heads) + len(capacity)]
    solved = _solve(-gain[rows, models] * size[rows], matrix, np.concatenate((np.ones(len(heads)), capacity)))
    if solved is None:  # cannot be: x = 0 is feasible and the shares are bounded
        raise AssertionError("the program of the sum has no solution")
    share = np.zeros_like(gain)
    share[rows, models] = solved
    return list(zip(alike, share, np.argsort(-gain, axis=1, kind="stable"), strict=True))


def _columns(gain: Floats, rows: Any, models: Any, load: Floats) -> Any:
    """One column for each (group, model): its time in the group, its GPUs on the model, less its gain in the group."""
    groups, kinds = gain.shape
    index = np.stack((rows, groups + models, groups + kinds + rows), axis=1)
    value = np.stack((np.ones(len(rows)), load[rows], -gain[rows, models]), axis=1)
    start = np.arange(len(rows) + 1) * 3
    return csc_array((value.ravel(), index.ravel(), start), shape=(2 * groups + kinds, len(rows)))


def _append(matrix: Any, column: Floats) -> Any:
    """The matrix with one more column, whose further rows are 0."""
    return csc_array(
        (
            np.concatenate((matrix.data, column)),
            np.concatenate((matrix.indices, np.arange(len(column)))),
            np.append(matrix.indptr, len(matrix.data) + len(column)),
        ),
        shape=(matrix.shape[0], matrix.shape[1] + 1),
    )


def _solve(cost: Floats, matrix: Any, limits: Floats) -> Floats | None:
    """The v >= 0 of least cost with matrix v <= limits, by HiGHS; None if there is none.

    `milp` without whole numbers is a linear program, and has 1 ms less of checks in Python than `linprog`. There is
    nothing left to presolve.
    """
    rows = LinearConstraint(matrix, -np.inf, limits)
    result = milp(cost, constraints=rows, bounds=Bounds(0.0, np.inf), options={"presolve": False})
    return np.maximum(result.x, 0.0) if result.status == 0 else None


def _feasible(shares: Floats, gpus: Floats, capacity: Floats) -> Floats:
    """The shares without the solver's rounding errors: no job above 1, no model above its GPUs."""
    shares = shares / np.maximum(shares.sum(axis=1), 1.0)[:, None]
    used = gpus @ shares
    return shares * np.where(used > capacity, capacity / np.where(used > 0, used, 1.0), 1.0)
