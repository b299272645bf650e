"""What the policies that resize jobs share: the configurations of the jobs, the seats for them, and the rounds.

A configuration is a pool and a number of GPUs that a job can run with there. A policy chooses at most one for each job;
the rest is done here: jobs whose configuration is new are stopped, resized and started, the others stay where they are.

Configurations that fill nodes well: up to the GPUs of the pool's largest node a power of two or the whole node, beyond
it whole nodes (as in Sia, SOSP 2023). A job that has none of these may have any of its sizes. So the chosen
configurations fit whenever their GPUs do, if need be by moving smaller jobs.

Axes: J jobs, C configurations of all jobs (by job), P pools.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled_allocating
from adlro.core.copying import CLUSTER, LISTS, copied
from adlro.core.policy import Choose, resizing, starting, stopping, waiting
from adlro.core.records import WHOLE_GPU
from adlro.core.remembering import Remembered
from adlro.core.tables import JOB, NOBODY, RUN, RUNNING, Choice, Floats, Ints, View, records
from adlro.decide.rules.pools import Indices, ViewReader, fill_left, fill_restarts, seat_sized

SIZING_ROUND_S: Final = 60.0
"""Seconds of a round, as in Sia."""


class SizingProblem(NamedTuple):
    """What a policy that resizes jobs decides on."""

    jobs: Indices  # [J] rows of View.jobs, in submit order
    left: Floats  # [J] estimated work left
    restart: Floats  # [J] s that a change costs the job
    age: Floats  # [J] s since its submission
    starts: Floats  # [J] how often it was started
    now: Ints  # [J] the configuration in which it runs, or NOBODY; an index of the lists below
    most: Floats  # [J] the most GPUs that it has run with
    restarting: npt.NDArray[np.bool_]  # [J] whether it runs, but still pays for its start
    stoppable: npt.NDArray[np.bool_]  # [J] whether it may be stopped, once it runs
    owner: Ints  # [C] index of the job
    pool: Ints  # [C]
    gpus: Floats  # [C] with fractions
    size: Ints  # [C] number of GPUs
    rate: Floats  # [C] work per second
    capacity: Floats  # [P] GPUs on nodes that are up

    @property
    def changes(self) -> npt.NDArray[np.bool_]:
        """Whether each configuration differs from that in which the job runs."""
        return self.now[self.owner] != np.arange(len(self.owner))


Sizing: TypeAlias = Callable[[SizingProblem], Ints]
"""Chooses a configuration, or NOBODY, for each job."""


def packs_well(gpus: int, node: int) -> bool:
    """Whether jobs of this size fill nodes of so many GPUs without gaps."""
    return gpus % node == 0 if gpus >= node else gpus & (gpus - 1) == 0


class Configurations:
    """The configurations of the jobs of one view."""

    def __init__(self, view: View) -> None:
        self.view = view
        pools = len(view.pools)
        self._rate = np.zeros((len(view.rate), pools))  # by kind and pool: on the fastest form
        able = np.where(view.width > 0, view.rate, 0.0)
        for form, pool in enumerate(view.forms.pool.tolist()):
            np.maximum(self._rate[:, pool], able[:, form], out=self._rate[:, pool])
        self._largest = view.pools.largest.tolist()
        self._known: dict[tuple[int, int], tuple[Ints, Ints, Floats, Floats]] = {}
        self._readings = 0

    def of(self, j: int) -> tuple[Ints, Ints, Floats, Floats]:
        """Pool, size, GPUs (with fractions) and rate of each configuration of a job, by size and then by pool."""
        job = self.view.jobs[j]
        if self._readings != self.view.clock[0].readings:
            self._readings = int(self.view.clock[0].readings)
            self._known.clear()
        key = (int(job.first_shape), int(job.shapes)) if job.shapes else (-1 - int(job.kind), int(job.share))
        if key not in self._known:
            if job.shapes:
                shapes = self.view.shapes[job.first_shape : job.first_shape + job.shapes]
                options = list(zip(shapes["gpus"].tolist(), shapes["kind"].tolist(), strict=True))
                # A size at which it fits nowhere on the empty cluster cannot be chosen.
                able = (self.view.fastest[shapes["demand"]] > 0.0).tolist()
                options = [option for option, possible in zip(options, able, strict=True) if possible]
            else:
                options = [(int(job.gpus), int(job.kind))]
            found = [
                (p, size, size * int(job.share) / WHOLE_GPU, float(self._rate[kind, p]) * self._pace(p, size))
                for size, kind in options
                for p in range(len(self._largest))
                if self._rate[kind, p] > 0.0
            ]
            neat = [each for each in found if packs_well(each[1], max(1, self._largest[each[0]]))]
            pool, size, gpus, rate = zip(*(neat or found), strict=True)
            self._known[key] = (np.array(pool, np.int32), np.array(size, np.int32), np.array(gpus), np.array(rate))
        return self._known[key]

    def _pace(self, p: int, size: int) -> float:
        """The measured pace of so many GPUs of a pool; 1 where it is not seen."""
        if self._readings == 0:
            return 1.0
        view, pool = self.view, self.view.pools[p]
        if size > pool.largest:
            return float(pool.pace)
        sites = view.sites[view.pool_sites[pool.first_site : pool.first_site + pool.sites]]
        first = sites["first_gpu"][sites["gpus"] >= size]
        return float(view.gpus.pace[first + view.gpus.order[first + size - 1]].max()) if size and len(first) else 1.0


@final
class SizingRounds:
    """The rounds of one run: at the start of each, every job gets a configuration or none, and keeps it."""

    def __init__(self, view: View, sizing: Sizing) -> None:
        self._sizing = sizing
        self._reader = ViewReader(view)
        self._configurations = Configurations(view)
        self._began = -math.inf
        self._ahead: list[Choice] = []  # actions still to be made at this moment; the last is next
        self._moment = -math.inf
        self._rows = 0
        self._most: dict[int, float] = {}  # by job, the most GPUs that it has run with

    def __call__(self, view: View) -> Choice:
        """The next action of this round; after these, wait until the round is over."""
        if view is not self._reader.view:
            self._reader, self._configurations, self._rows = ViewReader(view), Configurations(view), 0
        now = self._reader.now
        if now > self._moment:
            if self._ahead:  # a stop was not allowed: what is left of the round is not valid any more
                self._began = -math.inf
            self._moment, self._ahead = now, []
        if self._ahead:
            return self._ahead.pop()
        job, site = self._reader.first_without_gpus()
        if job != NOBODY:
            return starting(job, site)
        if now >= self._began + SIZING_ROUND_S:
            self._began, self._ahead = now, self._solve()[::-1]
        return self._ahead.pop() if self._ahead else waiting(self._began + SIZING_ROUND_S)

    def remembered(self) -> Remembered:
        """When the round began, unless it could not be finished; and the most GPUs that each job has run with."""
        times = {} if self._ahead or self._began == -math.inf else {"began": self._began}
        return Remembered(tuple(self._most), {"most": list(self._most.values())}, times)

    def recall(self, view: View, kept: Remembered) -> bool:
        """Go on with that round."""
        self._began = kept.times.get("began", -math.inf)
        most = kept.by_job.get("most", [])
        self._most = {j: float(gpus) for j, gpus in zip(kept.jobs, most, strict=True) if j >= 0}
        return True

    def _solve(self) -> list[Choice]:
        """The actions of a round that begins now."""
        problem = self.problem()
        if not len(problem.jobs):
            return []
        pick = self._sizing(problem)
        stays, taken, seats = self._seat(problem, pick)
        view = self._reader.view
        states = view.runs.state[problem.jobs]
        choices = [stopping(int(j)) for j in problem.jobs[(states == RUNNING) & ~stays]]
        for (i, _, size), s in zip(taken, seats, strict=True):
            j = int(problem.jobs[i])
            if view.jobs[j].gpus != size:
                choices.append(resizing(j, size))
            choices.append(starting(j, s))
        return choices

    def problem(self) -> SizingProblem:
        """What is to be decided now. Jobs that may not be stopped stay as they are: their GPUs are not there."""
        view = self._reader.view
        jobs, current = self._reader.jobs()
        sites = view.sites
        up = view.nodes.up[sites.node] != 0
        capacity = np.bincount(sites.pool[up], sites.gpus[up], len(view.pools)).astype(np.float64)
        fixed = (current != NOBODY) & (view.jobs.stoppable[jobs] == 0)
        if fixed.any():
            rows = jobs[fixed]
            shares = np.where(up[view.runs.site[rows]], view.jobs.gpus[rows] * view.jobs.share[rows] / WHOLE_GPU, 0.0)
            capacity -= np.bincount(current[fixed], shares, len(view.pools))
            jobs, current = jobs[~fixed], current[~fixed]
        left, restart = np.empty(len(jobs)), np.empty(len(jobs))
        fill_left(view, jobs, left)
        fill_restarts(view, jobs, restart)
        lists = [self._configurations.of(int(j)) for j in jobs]
        counts = np.array([len(each[0]) for each in lists], np.int64)
        owner = np.repeat(np.arange(len(jobs), dtype=np.int32), counts)
        pool, size, gpus, rate = (
            np.concatenate([each[k] for each in lists]) if lists else np.zeros(0, np.int32) for k in range(4)
        )
        held = view.jobs.gpus[jobs]
        now = np.full(len(jobs), NOBODY, np.int32)
        mine = np.flatnonzero((pool == current[owner]) & (size == held[owner]))
        now[owner[mine]] = mine
        for i in np.flatnonzero(current != NOBODY).tolist():
            self._most[int(jobs[i])] = max(self._most.get(int(jobs[i]), 0.0), float(held[i]))
        most = np.array([self._most.get(j, 0.0) for j in jobs.tolist()])
        restarting = (current != NOBODY) & (view.runs.since[jobs] > self._reader.now)
        return SizingProblem(
            jobs, left, restart, self._reader.now - view.jobs.submit[jobs], view.runs.starts[jobs].astype(np.float64),
            now, most, restarting, view.jobs.stoppable[jobs] != 0, owner, pool.astype(np.int32),
            gpus.astype(np.float64), size.astype(np.int32), rate.astype(np.float64), capacity,
        )  # fmt: skip

    def _seat(
        self, problem: SizingProblem, pick: Ints
    ) -> tuple[npt.NDArray[np.bool_], list[tuple[int, int, int]], list[int]]:
        """Who stays, the (member, pool, size) that start, in order, and their sites.

        Jobs that keep their configuration stay. If one that should start finds no room because of them, the smaller
        ones of its pool are placed again after it, if that seats more GPUs.
        """
        stays = (problem.now != NOBODY) & (pick == problem.now)
        first = self._seat_once(problem, pick, stays)
        missed = self._missed(problem, pick, stays, first)
        if not len(missed):
            return stays, *first
        largest = np.zeros(len(problem.capacity))
        np.maximum.at(largest, problem.pool[pick[missed]], problem.gpus[pick[missed]])
        chosen = np.maximum(pick, 0)
        in_the_way = stays & (problem.gpus[chosen] < largest[problem.pool[chosen]])
        if not in_the_way.any():
            return stays, *first
        others = stays & ~in_the_way
        second = self._seat_once(problem, pick, others)
        missed_now = self._missed(problem, pick, others, second)
        if problem.gpus[pick[missed_now]].sum() < problem.gpus[pick[missed]].sum():
            return others, *second
        return stays, *first

    @staticmethod
    def _missed(
        problem: SizingProblem,
        pick: Ints,
        stays: npt.NDArray[np.bool_],
        seated: tuple[list[tuple[int, int, int]], list[int]],
    ) -> Indices:
        """The jobs that did not get the configuration that was chosen for them."""
        got = {(i, pool, size) for i, pool, size in seated[0]}
        wanting = np.flatnonzero((pick != NOBODY) & ~stays)
        return np.array(
            [i for i in wanting.tolist() if (i, int(problem.pool[pick[i]]), int(problem.size[pick[i]])) not in got],
            np.int64,
        )

    def _seat_once(
        self, problem: SizingProblem, pick: Ints, stays: npt.NDArray[np.bool_]
    ) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Seat the jobs that do not stay, the largest first; one that finds no room takes the best that has room."""
        wanting = np.flatnonzero((pick != NOBODY) & ~stays)
        wanting = wanting[np.argsort(-problem.gpus[pick[wanting]], kind="stable")]
        entries = pick[wanting].tolist()
        for i in wanting.tolist():
            own = np.flatnonzero(problem.owner == i)
            other = own[(problem.gpus[own] <= problem.gpus[pick[i]]) & (own != pick[i])]
            if problem.now[i] != NOBODY:
                entries.append(int(problem.now[i]))
            entries += other[np.argsort(-problem.rate[other], kind="stable")].tolist()
        if not entries:
            return [], []
        listed = np.array(entries, np.int64)
        jobs, pools, sizes = problem.owner[listed], problem.pool[listed], problem.size[listed]
        if len(problem.jobs) > self._rows:
            self._rows = 2 * len(problem.jobs)
            own_view = copied(self._reader.view, (*CLUSTER, *LISTS))
            own_view = own_view._replace(jobs=records(JOB, self._rows), runs=records(RUN, self._rows))
            self._place = quick_call(seat_sized, self._reader.view, own_view)
        taken, seats = np.empty((2, len(listed)), np.int32)
        count = self._place(problem.jobs, stays.astype(np.int32), jobs, pools, sizes, taken, seats)
        found = [(int(jobs[e]), int(pools[e]), int(sizes[e])) for e in taken[:count]]
        return found, seats[:count].tolist()


def sizing_rounds(sizing: Sizing) -> Callable[[View, int], Choose]:
    """How a policy with this way of choosing configurations is made for a run."""
    return lambda view, seed: SizingRounds(view, sizing)


@compiled_allocating
def smallest_rates(problem: SizingProblem) -> Floats:
    """The best rate of each job with the fewest GPUs that it can have. [J]"""
    least, best = np.full(len(problem.jobs), np.inf), np.zeros(len(problem.jobs))
    for c in range(len(problem.owner)):
        least[problem.owner[c]] = min(least[problem.owner[c]], problem.gpus[c])
    for c in range(len(problem.owner)):
        i = problem.owner[c]
        if problem.gpus[c] == least[i]:
            best[i] = max(best[i], problem.rate[c])
    return best


@compiled_allocating
def fill_greedily(problem: SizingProblem, value: Floats, price: Floats) -> Ints:
    """Again and again the upgrade with the largest gain in value per extra GPU, as long as there are GPUs. [J]

    `value` is by configuration (none has the value 0), `price` says what a GPU of each pool counts.
    """
    count = len(problem.jobs)
    chosen = np.full(count, NOBODY, np.int32)
    free = problem.capacity.copy()
    owner, pool, gpus = problem.owner, problem.pool, problem.gpus
    while True:
        best = NOBODY
        most = -np.inf
        for c in range(len(owner)):
            had = chosen[owner[c]]
            gain = value[c]
            room = free[pool[c]]
            extra = gpus[c] * price[pool[c]]
            if had != NOBODY:
                gain -= value[had]
                extra -= gpus[had] * price[pool[had]]
                if pool[had] == pool[c]:
                    room += gpus[had]
            if gain > 1e-12 and gpus[c] <= room + 1e-9 and gain / max(extra, 1e-6) > most:
                most = gain / max(extra, 1e-6)
                best = c
        if best == NOBODY:
            return chosen
        had = chosen[owner[best]]
        if had != NOBODY:
            free[pool[had]] += gpus[had]
        free[pool[best]] -= gpus[best]
        chosen[owner[best]] = best
