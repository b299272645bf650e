"""Wrappers around policies: a bound on waiting, a minimum run time before a stop, and a bound on stops.

With `sjf+starvation(3600)` no job waits longer than an hour under sjf, as far as the hardware allows: nodes are
reserved for a job that is about to exceed it. `srtf+least-run(300)` is srtf, but stops no job before it has run for
five minutes; `srtf+stops(10)` stops no job more than ten times (stops.py). They can be combined. A live cluster
has such bounds too, by its settings (live/guard.py).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.copying import copied, imagined
from adlro.core.driver import made
from adlro.core.errors import CatalogueError
from adlro.core.occupancy import close_nodes
from adlro.core.policy import Choose, Policy, starting, waiting
from adlro.core.remembering import Remembered, Remembers
from adlro.core.rules import fits, in_queue, next_part, runtime
from adlro.core.tables import FOREVER, NOBODY, RUNNING, STOP, Choice, Ints, View
from adlro.decide.rules.reserving import reserve
from adlro.decide.stops import STOPS, with_few_stops

MOST_KEPT: Final = 16
"""Maximum number of jobs with reserved nodes: those that have waited longest."""

LOOKED_AT: Final = 64
"""Number of jobs at the head of the queue that are considered."""

EARLIEST: Final = 0.5
"""Nodes are not reserved for a job before it has waited for this share of the bound."""

SAFETY: Final = 2.0
"""Nodes are reserved when the expected wait for them times SAFETY reaches the time left.

Estimates can be wrong. Until then other jobs may start there.
"""

STARVATION: Final = "starvation"
LEAST_RUN: Final = "least-run"
WRAPPED: Final = re.compile(rf"(.+)\+({STARVATION}|{LEAST_RUN}|{STOPS})\(([^()]*)\)")
"""A name that ends with a wrapper: the inner policy, the wrapper, its number."""


# ---- by name -----------------------------------------------------------------------------------------------------


def unwrapped(name: str) -> tuple[str, str, float] | None:
    """The inner policy, the wrapper and its number, if the name ends with a wrapper; otherwise None."""
    found = WRAPPED.fullmatch(name)
    if found is None:
        return None
    inner, wrapper, text = found.groups()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if wrapper == STOPS and not (number >= 0.0 and number.is_integer()):
        raise CatalogueError(
            f"policy {name!r}: {STOPS}({text}) needs a whole number from 0, as in {inner}+{STOPS}(10)."
        )
    if wrapper != STOPS and not 0.0 < number < math.inf:
        raise CatalogueError(
            f"policy {name!r}: {wrapper}({text}) needs a number of seconds above 0, as in {inner}+{wrapper}(3600)."
        )
    if wrapper == LEAST_RUN and f"+{STOPS}(" in inner:  # stops that come to nothing would count
        raise CatalogueError(f"policy {name!r}: write +{LEAST_RUN} before +{STOPS}.")
    return inner, wrapper, number


def wrapped(policy: Policy, wrapper: str, number: float) -> Policy:
    """A policy inside one of the wrappers."""
    if wrapper == STOPS:
        return with_few_stops(policy, number)
    return without_starvation(policy, number) if wrapper == STARVATION else with_least_run(policy, number)


# ---- minimum run time --------------------------------------------------------------------------------------------


def with_least_run(policy: Policy, seconds: float) -> Policy:
    """The same policy, but it stops no job before `seconds` of its current stretch; it waits until then."""
    return replace(
        policy,
        name=f"{policy.name}+{LEAST_RUN}({seconds:g})",
        summary=f"{policy.summary}; a job runs at least {seconds:g} s before it is stopped",
        choose=None,
        make=lambda view, seed: LeastRun(policy.choose or made(policy, view, seed), seconds),
    )


@final
class LeastRun:
    """Asks the inner policy, and waits if that would stop a job too early."""

    def __init__(self, base: Choose, seconds: float) -> None:
        self.base, self._seconds = base, seconds

    def __call__(self, view: View) -> Choice:
        """The inner policy's choice, unless it would stop a job too early."""
        choice = self.base(view)
        if choice.verb == STOP and 0 <= choice.job < len(view.jobs) and view.runs[choice.job].state == RUNNING:
            until = float(view.runs[choice.job].started) + self._seconds
            if until > view.clock[0].now:
                return waiting(until)
        return choice

    def remembered(self) -> Remembered:
        """The memory of the inner policy."""
        return self.base.remembered() if isinstance(self.base, Remembers) else Remembered()

    def recall(self, view: View, kept: Remembered) -> bool:
        """Restore the memory of the inner policy."""
        return self.base.recall(view, kept) if isinstance(self.base, Remembers) else True


# ---- bound on waiting --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """Reserved nodes by job, jobs that start now, and jobs for which no nodes can be reserved."""

    nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    starting: tuple[tuple[int, int], ...] = ()  # (job, site)
    hopeless: tuple[int, ...] = ()


def without_starvation(policy: Policy, max_wait_s: float) -> Policy:
    """The same policy with a bound on waiting, as far as the hardware allows."""
    return replace(
        policy,
        name=f"{policy.name}+{STARVATION}({max_wait_s:g})",
        summary=f"{policy.summary}; nodes are kept for a job before it has waited {max_wait_s:g} s",
        choose=None,
        make=lambda view, seed: Bounded(policy.choose or made(policy, view, seed), max_wait_s),
    )


@final
class Bounded:
    """Asks the inner policy, and hides from it the nodes that are reserved for jobs close to the bound."""

    def __init__(self, base: Choose, max_wait_s: float) -> None:
        self.base, self._max_wait_s = base, max_wait_s
        self._moment = -math.inf
        self._starting: list[tuple[int, int]] = []
        self.kept = Kept()
        self.is_overdue = False
        """Whether the latest choice was made for an overdue job, not by the inner policy."""

    def __call__(self, view: View) -> Choice:
        """Start overdue jobs that fit now; otherwise the inner policy's choice."""
        now = float(view.clock[0].now)
        if now > self._moment:
            self._moment = now
            self.kept = keep_nodes(view, self._max_wait_s, self.kept.nodes)
            self._starting = list(self.kept.starting[::-1])
        self.is_overdue = True
        while self._starting:
            j, s = self._starting.pop()
            if fits(view, j, s):
                return starting(j, s)
        self.is_overdue = False
        if not self.kept.nodes:
            return self.base(view)
        world = copied(view)
        close_nodes(world, nodes_of(self.kept.nodes))
        return self.base(world)

    def keep(self, nodes: Mapping[int, tuple[int, ...]]) -> None:
        """Continue with these reserved nodes, by job. Call it before the first choice."""
        self.kept = Kept(nodes)

    def remembered(self) -> Remembered:
        """The reserved nodes and the memory of the inner policy."""
        inner = self.base.remembered() if isinstance(self.base, Remembers) else Remembered()
        mine = tuple(self.kept.nodes)
        nodes = [list(self.kept.nodes[j]) for j in mine]
        # Our jobs follow those of the inner policy, whose lists have one entry for each of its own jobs only.
        rest = {**inner.rest, "kept_nodes": nodes}
        return Remembered((*inner.jobs, *mine), inner.by_job, inner.times, rest)

    def recall(self, view: View, kept: Remembered) -> bool:
        """Restore the reserved nodes and the memory of the inner policy."""
        rest = dict(kept.rest)
        nodes = rest.pop("kept_nodes", [])
        count = len(kept.jobs) - len(nodes)
        there = {j: tuple(mine) for j, mine in zip(kept.jobs[count:], nodes, strict=True) if j >= 0}
        self.kept = Kept({j: mine for j, mine in there.items() if all(0 <= n < len(view.nodes) for n in mine)})
        inner = Remembered(kept.jobs[:count], kept.by_job, kept.times, rest)
        return self.base.recall(view, inner) if isinstance(self.base, Remembers) else True


def nodes_of(kept: Mapping[int, tuple[int, ...]]) -> Ints:
    """All reserved nodes, each once."""
    return np.array(sorted({n for nodes in kept.values() for n in nodes}), np.int32)


def keep_nodes(view: View, max_wait_s: float, before: Mapping[int, tuple[int, ...]]) -> Kept:
    """Which nodes to reserve for whom, and which jobs may start now. The view is not changed.

    Nodes reserved `before` stay reserved until their job starts, as long as they are up. A job is overdue when it has
    waited, or is expected to wait, for `max_wait_s`.
    """
    queued, now = int(view.clock[0].queued), float(view.clock[0].now)
    if not queued or now - float(view.jobs[in_queue(view, 0)].submit) < EARLIEST * max_wait_s:
        return Kept()
    world = copied(view)
    nodes: dict[int, tuple[int, ...]] = {}
    starts, hopeless = [], []
    for q in range(min(queued, LOOKED_AT)):
        j = int(in_queue(view, q))
        waited = now - float(view.jobs[j].submit)
        if waited < EARLIEST * max_wait_s or len(nodes) == MOST_KEPT:
            break
        site = int(fastest_spot(world, j))
        if site != NOBODY:
            if waited >= max_wait_s or j in before:
                starts.append((j, site))
            continue
        mine = before.get(j, ())
        if not mine or not all(world.nodes[n].up for n in mine):
            time, mine = nodes_for(world, j)
            if waited + SAFETY * (time - now) < max_wait_s:
                continue
            if not mine:
                hopeless.append(j)
                continue
        nodes[j] = mine
        close_nodes(world, np.array(mine, np.int32))
    return Kept(nodes, tuple(starts), tuple(hopeless))


def nodes_for(view: View, j: int) -> tuple[float, tuple[int, ...]]:
    """When a job would first fit if running jobs end as expected, and the nodes that it would take then."""
    world = imagined(view)
    found = reserve(view, world, j)
    if found.site == NOBODY:
        return FOREVER, ()
    sites, counts = np.zeros(len(view.sites), np.int32), np.zeros(len(view.sites), np.int32)
    many = sites_taken(world, j, int(found.site), sites, counts)
    return float(found.time), tuple(dict.fromkeys(int(view.sites[s].node) for s in sites[:many]))


@compiled_alone
def fastest_spot(view: View, j: int) -> int:
    """The site where the job may start now and ends soonest, or NOBODY."""
    chosen = NOBODY
    least = FOREVER
    for s in range(len(view.sites)):
        if fits(view, j, s):
            seconds = runtime(view, j, s)
            if seconds < least:
                least = seconds
                chosen = s
    return widened(chosen)


@compiled_alone
def sites_taken(view: View, j: int, s: int, sites: Ints, counts: Ints) -> int:
    """Fill in the sites that a job would take if it started at `s`, and the GPUs on each; returns their number."""
    job = view.jobs[j]
    width = view.width[job.kind, view.sites[s].form]
    if width <= 1:
        sites[0] = s
        counts[0] = job.gpus
        return 1
    needed = job.gpus
    last = NOBODY
    count = 0
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        if last == NOBODY:
            return 0
        sites[count] = last
        counts[count] = min(needed, view.sites[last].free_gpus)
        needed -= counts[count]
        count += 1
    return count
