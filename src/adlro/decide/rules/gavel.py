"""Gavel's policies (Narayanan et al., OSDI 2020): a linear program says what part of the time each job should spend on
each GPU model, and rounds of six minutes realise it. docs/gavel.md says where ours differs from its simulator.

A round begins when the last one is over, or with the first job after an idle time. Only then are jobs stopped, moved
and started: who arrives in a round waits for its end, and GPUs that fall free in it stay free. Jobs without GPUs start
at once and are never stopped.

Of a round, only what changed is computed: a linear program that was solved before is not solved again (allocation.py),
and jobs and nodes that are as in the last round are not read again.
"""

import math
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from adlro.core.policy import Choose, Policy, starting, stopping, waiting
from adlro.core.remembering import Remembered
from adlro.core.tables import NOBODY, Choice, Floats, Ints, View
from adlro.decide.rules.pools import Demand, Indices, ViewReader, demand_of

Objective: TypeAlias = Literal["maxmin", "maxsum", "makespan"]

ROUND_S: Final = 360.0

HEAD_START_S: Final = ROUND_S / 2
"""What every job counts as having had of every pool when it comes, as in Gavel: else the first second would decide."""

MEMORY_S: Final = 1920.0
"""Time received counts for 1/e of itself after so long.

Gavel makes a new allocation after this time at the earliest, and forgets all time received when it does. We make one
whenever a job has come or gone; forgetting everything then could starve whoever has a small share.
"""


class Round(NamedTuple):
    """One round, as far as the next one needs to know it."""

    began: float
    jobs: Indices  # [J] all that took part in the allocation, in submit order
    capacity: Floats  # [P]
    shares: Floats  # [J, P] of the time
    received: Floats  # [J, P] seconds, up to the beginning of the round
    pool: Ints  # [J] where each runs in this round, or NOBODY
    demand: Demand | None = None  # what the program was made of; None if that is not known
    up: Ints | None = None  # [N] which nodes were up then


class Seating(NamedTuple):
    """Who runs where in a round."""

    stays: Ints  # [J] 1 for jobs that go on where they run
    seats: Ints  # [J] site of a job to be started, or NOBODY
    order: Ints  # the jobs to be started, in this order


def rounds_of(objective: Objective, aware: bool = True) -> Callable[[View, int], Choose]:
    """How a policy with this objective is made for a run; one that is not aware takes all models for alike."""

    return lambda view, seed: Rounds(objective, aware)


@final
class Rounds:
    """Round after round of one run."""

    def __init__(self, objective: Objective, aware: bool) -> None:
        self._objective, self._aware = objective, aware
        self._last: Round | None = None
        self._ahead: list[Choice] = []  # what is still to be done at this moment, the next last
        self._moment = -math.inf
        self._reader: ViewReader | None = None

    def __call__(self, view: View) -> Choice:
        """The next start or stop of this round; after them, wait until it is over."""
        reader = self._reader
        if reader is None or view is not reader.view:
            reader = self._reader = ViewReader(view)
        now = reader.now
        if now > self._moment:
            self._moment, self._ahead = now, []  # what was cut off at an earlier moment has no meaning now
        if self._ahead:
            return self._ahead.pop()
        job, site = reader.first_without_gpus()
        if job != NOBODY:
            return starting(job, site)
        if self._last is None or now >= self._last.began + ROUND_S:
            self._last, choices = solve_round(reader, self._objective, self._aware, self._last)
            self._ahead = choices[::-1]
        return self._ahead.pop() if self._ahead else waiting(self._last.began + ROUND_S)

    def remembered(self) -> Remembered:
        """The last round."""
        last = self._last
        if last is None:
            return Remembered()
        return Remembered(
            tuple(last.jobs.tolist()),
            {name: getattr(last, name).tolist() for name in ("shares", "received", "pool")},
            {"began": last.began},
            {"capacity": last.capacity.tolist()},
        )

    def recall(self, view: View, kept: Remembered) -> bool:
        """Go on with the last round, if the cluster has as many GPU models as then."""
        if "began" not in kept.times:
            return True
        capacity = np.array(kept.rest["capacity"], np.float64)
        if len(capacity) != len(view.pools):
            return False
        count = len(kept.jobs)
        shape = (count, len(capacity))
        shares, received = (np.array(kept.by_job[name]).reshape(shape) for name in ("shares", "received"))
        pool = np.array(kept.by_job["pool"], np.int32)
        jobs = np.array(kept.jobs, np.int64)
        self._last = Round(kept.times["began"], jobs, capacity, shares, received, pool)
        return True


def solve_round(
    reader: ViewReader, objective: Objective, aware: bool = True, last: Round | None = None
) -> tuple[Round, list[Choice]]:
    """Begin a round now: read the view, solve the program if the last shares hold no more, find a seat for each job.

    Returns the round and what is to be done, in order; changes nothing in the view. Without `last` it is the first.
    """
    from adlro.decide.rules import allocation  # here, because SciPy is slow to import and most commands do not need it

    now = reader.now
    jobs, current = reader.jobs()
    up = reader.up()
    demand = _demand_now(reader.view, jobs, up, objective, aware, last)
    if last is not None and _shares_hold(last, demand, objective):
        shares = last.shares
    else:
        shares = allocate(objective, demand)
        if not aware:
            shares = allocation.spread(shares, demand.throughput, demand.gpus, demand.capacity)
    received = _received(last, demand, now)
    priority = allocation.round_priorities(shares, received)
    pairs = allocation.by_priority(priority, demand.throughput)
    pick = allocation.pick_in_order(pairs, demand.gpus, demand.capacity)
    if np.array_equal(pick, current) and NOBODY not in current:
        return Round(now, jobs, demand.capacity, shares, received, current, demand, up), []
    stays, seats, order = _seat(reader, demand, pick, current, pairs)
    stopped = jobs[(current != NOBODY) & (stays == 0)]
    choices = [stopping(j) for j in stopped.tolist()]
    choices += [starting(j, s) for j, s in zip(jobs[order].tolist(), seats[order].tolist(), strict=True)]
    pool = np.where(stays != 0, current, reader.pool_of(seats))
    return Round(now, jobs, demand.capacity, shares, received, pool, demand, up), choices


def allocate(objective: Objective, demand: Demand) -> Floats:
    """The part of the time that each job should spend on each pool. [J, P]"""
    from adlro.decide.rules import allocation

    _, gpus, throughput, left, capacity = demand
    if objective == "maxmin":
        return allocation.max_min(throughput, gpus, capacity, np.ones(len(gpus)))
    if objective == "maxsum":
        # A gang counts for as much as the GPUs it takes: else it would never run beside single jobs.
        return allocation.max_sum(throughput, gpus, capacity, gpus)
    return allocation.min_makespan(throughput, gpus, capacity, left)


def _demand_now(view: View, jobs: Indices, up: Ints, objective: Objective, aware: bool, last: Round | None) -> Demand:
    """What these jobs want: as in the last round, if neither they nor the nodes have changed. Work left does change."""
    from adlro.decide.rules import allocation

    if last is not None and last.demand is not None and last.up is not None and objective != "makespan":  # noqa: SIM102
        if np.array_equal(last.jobs, jobs) and np.array_equal(last.up, up):
            return last.demand
    demand = demand_of(view, jobs)
    if aware:
        return demand
    return demand._replace(throughput=allocation.agnostic(demand.throughput) * demand.gpus[:, None])


def _shares_hold(last: Round, demand: Demand, objective: Objective) -> bool:
    """Whether the program would be the one of the last round. That of the makespan changes with the work done."""
    if objective == "makespan":
        return False
    if demand is last.demand:
        return True
    return np.array_equal(last.jobs, demand.jobs) and np.array_equal(last.capacity, demand.capacity)


def _received(last: Round | None, demand: Demand, now: float) -> Floats:
    """Seconds that each job has had of each pool, old ones counting less. [J, P]"""
    if last is None:
        return np.full(demand.throughput.shape, HEAD_START_S)
    kept = _one_more_round(last, last.received, now - last.began)
    if demand is last.demand:
        return kept
    received = np.full(demand.throughput.shape, HEAD_START_S)
    _, before, here = np.intersect1d(last.jobs, demand.jobs, assume_unique=True, return_indices=True)
    received[here] = kept[before]
    return received


def _one_more_round(last: Round, received: Floats, elapsed: float) -> Floats:
    """The time received after so many more seconds in which each job ran where it did in this round. [J, P]"""
    kept = received.copy()
    served = np.flatnonzero(last.pool != NOBODY)
    kept[served, last.pool[served]] += elapsed
    return kept * math.exp(-elapsed / MEMORY_S)


def _seat(reader: ViewReader, demand: Demand, pick: Ints, current: Ints, pairs: tuple[Ints, Ints]) -> Seating:
    """Seat the picked jobs, then fill what is left by falling priority. Who stays on a pool is not moved.

    Unless a larger job finds no room because of it: then the smaller ones of its pool are seated anew, after it.
    """
    stays = (current != NOBODY) & (pick == current)
    first, missed = _seat_once(reader, demand, pick, stays, pairs)
    if not len(missed):
        return first
    largest = np.zeros(len(demand.capacity))
    np.maximum.at(largest, pick[missed], demand.gpus[missed])
    in_the_way = stays & (demand.gpus < largest[pick])
    if not in_the_way.any():
        return first
    second, missed_now = _seat_once(reader, demand, pick, stays & ~in_the_way, pairs)
    return second if demand.gpus[missed_now].sum() < demand.gpus[missed].sum() else first


def _seat_once(
    reader: ViewReader, demand: Demand, pick: Ints, stays: npt.NDArray[np.bool_], pairs: tuple[Ints, Ints]
) -> tuple[Seating, Indices]:
    """Seat the jobs on a copy of the view, the largest first; also those not seated on the pool picked for them."""
    picked = np.flatnonzero((pick != NOBODY) & ~stays)
    picked = picked[np.argsort(-demand.gpus[picked], kind="stable")]
    staying = stays.astype(np.int32)
    jobs = np.concatenate((picked, pairs[0])).astype(np.int32)
    pools = np.concatenate((pick[picked], pairs[1])).astype(np.int32)
    seats, order = reader.seats(demand.jobs, staying, jobs, pools)
    return Seating(staying, seats, order), picked[reader.pool_of(seats[picked]) != pick[picked]]


def _policy(objective: Objective, aware: bool, summary: str) -> Policy:
    """One line of the catalogue."""
    needs = ("rates",) * aware + ("estimate",) * (objective == "makespan")
    name = f"gavel-{objective}" if aware else f"gavel-{objective}-agnostic"
    return Policy(name, summary, make=rounds_of(objective, aware), preemptive=True, needs=needs)


POLICIES: Final = (
    _policy("maxmin", True, "rounds of 6 min; maximises the least normalised throughput of a job (Gavel)"),
    _policy(
        "maxsum", True, "rounds of 6 min; maximises the sum of throughputs relative to each job's best model (Gavel)"
    ),
    _policy("makespan", True, "rounds of 6 min; minimises the makespan of the present jobs (Gavel)"),
    _policy("maxmin", False, "as gavel-maxmin, with all GPU models taken as equal"),
    _policy("maxsum", False, "as gavel-maxsum, with all GPU models taken as equal"),
    _policy("makespan", False, "as gavel-makespan, with all GPU models taken as equal"),
)
