"""Gavel's policies (Narayanan et al., OSDI 2020): a linear program and rounds of six minutes.

The program gives the fraction of time that each job should spend on each GPU model, and the rounds realise it.
docs/gavel.md lists the differences from Gavel's simulator.

A round begins when the last one is over, or with the first job after an idle time. Jobs are stopped, moved and started
only then: a job that arrives during a round waits for its end, and GPUs that become free during it stay free. Jobs
without GPUs start at once and are never stopped.

Only what has changed is computed in a round: a linear program that was solved before is not solved again
(allocation.py), and jobs and nodes that have not changed are not read again.
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
"""Seconds of every pool credited to a new job, as in Gavel. Otherwise its first second would decide."""

MEMORY_S: Final = 1920.0
"""Time constant in s: received time decays to 1/e after it.

Gavel computes a new allocation after this time at the earliest, and then forgets all received time. We compute one
whenever a job has come or gone; forgetting everything then could starve jobs with a small share.
"""


class Round(NamedTuple):
    """What the next round needs to know about a round."""

    began: float
    jobs: Indices  # [J] all jobs of the allocation, in submit order
    capacity: Floats  # [P]
    shares: Floats  # [J, P] fractions of time
    received: Floats  # [J, P] seconds, up to the start of the round
    pool: Ints  # [J] the pool where each runs in this round, or NOBODY
    demand: Demand | None = None  # input of the program; None if unknown
    up: Ints | None = None  # [N] which nodes were up


class Seating(NamedTuple):
    """Which job runs where in a round."""

    stays: Ints  # [J] 1 for jobs that continue where they run
    seats: Ints  # [J] site of a job that starts, or NOBODY
    order: Ints  # the jobs that start, in this order


def rounds_of(objective: Objective, aware: bool = True) -> Callable[[View, int], Choose]:
    """How a policy with this objective is made for a run. If not `aware`, it treats all models as equal."""

    return lambda view, seed: Rounds(objective, aware)


@final
class Rounds:
    """The rounds of one run."""

    def __init__(self, objective: Objective, aware: bool) -> None:
        self._objective, self._aware = objective, aware
        self._last: Round | None = None
        self._ahead: list[Choice] = []  # actions still to be made at this moment; the last is next
        self._moment = -math.inf
        self._reader: ViewReader | None = None

    def __call__(self, view: View) -> Choice:
        """The next start or stop of this round; after these, wait until the round is over."""
        reader = self._reader
        if reader is None or view is not reader.view:
            reader = self._reader = ViewReader(view)
        now = reader.now
        if now > self._moment:
            self._moment, self._ahead = now, []  # actions left over from an earlier moment are not valid now
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
        """Continue with the last round, if the number of GPU models has not changed."""
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
    """Begin a round now: read the view, solve the program unless the last shares still hold, and place the jobs.

    Returns the round and the actions in order; does not change the view. Without `last` it is the first round.
    """
    from adlro.decide.rules import allocation  # imported here: SciPy loads slowly and most commands do not need it

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
    """The fraction of time that each job should spend on each pool. [J, P]"""
    from adlro.decide.rules import allocation

    _, gpus, throughput, left, capacity = demand
    if objective == "maxmin":
        return allocation.max_min(throughput, gpus, capacity, np.ones(len(gpus)))
    if objective == "maxsum":
        # A gang counts as many times as it has GPUs; otherwise it would never run beside single jobs.
        return allocation.max_sum(throughput, gpus, capacity, gpus)
    return allocation.min_makespan(throughput, gpus, capacity, left)


def _demand_now(view: View, jobs: Indices, up: Ints, objective: Objective, aware: bool, last: Round | None) -> Demand:
    """What these jobs need: reused from the last round if jobs and nodes have not changed. Work left does change."""
    from adlro.decide.rules import allocation

    if last is not None and last.demand is not None and last.up is not None and objective != "makespan":  # noqa: SIM102
        if np.array_equal(last.jobs, jobs) and np.array_equal(last.up, up):
            return last.demand
    demand = demand_of(view, jobs)
    if aware:
        return demand
    return demand._replace(throughput=allocation.agnostic(demand.throughput) * demand.gpus[:, None])


def _shares_hold(last: Round, demand: Demand, objective: Objective) -> bool:
    """Whether the program equals that of the last round. For the makespan it changes with the work done."""
    if objective == "makespan":
        return False
    if demand is last.demand:
        return True
    return np.array_equal(last.jobs, demand.jobs) and np.array_equal(last.capacity, demand.capacity)


def _received(last: Round | None, demand: Demand, now: float) -> Floats:
    """Seconds that each job has received of each pool, decayed. [J, P]"""
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
    """The time received after `elapsed` more seconds, during which each job ran as in this round. [J, P]"""
    kept = received.copy()
    served = np.flatnonzero(last.pool != NOBODY)
    kept[served, last.pool[served]] += elapsed
    return kept * math.exp(-elapsed / MEMORY_S)


def _seat(reader: ViewReader, demand: Demand, pick: Ints, current: Ints, pairs: tuple[Ints, Ints]) -> Seating:
    """Place the picked jobs, then fill what is left by descending priority. Jobs that stay on their pool do not move.

    Exception: if a larger job finds no room because of them, the smaller jobs of its pool are placed again after it.
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
    """Place the jobs on a copy of the view, the largest first. Also returns those not placed on their picked pool."""
    picked = np.flatnonzero((pick != NOBODY) & ~stays)
    picked = picked[np.argsort(-demand.gpus[picked], kind="stable")]
    staying = stays.astype(np.int32)
    jobs = np.concatenate((picked, pairs[0])).astype(np.int32)
    pools = np.concatenate((pick[picked], pairs[1])).astype(np.int32)
    seats, order = reader.seats(demand.jobs, staying, jobs, pools)
    return Seating(staying, seats, order), picked[reader.pool_of(seats[picked]) != pick[picked]]


def _policy(objective: Objective, aware: bool, summary: str) -> Policy:
    """One policy of the catalogue."""
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
