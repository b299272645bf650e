"""A scenario in the compiled simulator, told in the words of the reference, and plain compiled policies to drive it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import numpy.typing as npt
from tests import reference
from tests.reference import Answer, Event, Sight
from tests.strategies import Scenario

from adlro.core.compiled import compiled, widened
from adlro.core.engine import LOG_FULL, Truth, play
from adlro.core.plan import Plan, plan_cluster
from adlro.core.policy import Policy
from adlro.core.records import Disturbance
from adlro.core.rules import best_runtime, fits, in_queue, runtime, seen
from adlro.core.tables import (
    DOWN,
    EVENT,
    EVENT_NAMES,
    FAILED,
    FOREVER,
    ILLEGAL,
    NOBODY,
    QUEUED,
    RESIZED,
    RUNNING,
    SPEED,
    SPREAD,
    START,
    STARTED,
    UP,
    WAIT,
    Choice,
    Jobs,
    Table,
    View,
    records,
)
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import Outcome, SimulationSettings, prepare
from adlro.simulation.simulator import simulate as simulate_compiled

# ---- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of the compiled simulator and what it left behind."""

    plan: Plan
    jobs: Jobs
    view: View
    outcome: Outcome

    @property
    def events(self) -> list[Event]:
        """The log in the reference's words."""
        return [tell(event) for event in self.outcome.events]


def settings_of(scenario: Scenario) -> SimulationSettings:
    """The scenario's options as the compiled simulator takes them."""
    options = scenario.options
    return SimulationSettings(restart_s=options.restart_s, kill_at_limit=options.kill_at_limit, window=options.window)


def run_compiled(scenario: Scenario, policy: Policy, seed: int = 0, weights: str = "equal") -> Ran:
    """Run a scenario to its end in the compiled simulator."""
    settings = replace(settings_of(scenario), weights=weights)
    plan, jobs = plan_cluster(scenario.cluster, by_site=scenario.options.measured), pack_jobs(scenario.jobs)
    view = pack(plan, jobs, scenario.speed)
    disturbances = pack_disturbances(plan, scenario.disturbances)
    return Ran(plan, jobs, view, simulate_compiled(view, jobs.work, policy, settings, disturbances, seed))


def run_with_log_of(scenario: Scenario, policy: Policy, rows: int) -> Ran:
    """The same with a log that has this many rows at first, and just one more whenever it is full."""
    plan, jobs = plan_cluster(scenario.cluster), pack_jobs(scenario.jobs)
    view = pack(plan, jobs, scenario.speed)
    disturbances = pack_disturbances(plan, scenario.disturbances)
    truth = prepare(view, jobs.work, policy, settings_of(scenario), disturbances, 0)
    truth = truth._replace(events=records(EVENT, rows))
    assert policy.choose is not None
    while play(view, truth, policy.choose) == LOG_FULL:
        truth = with_one_more_row(truth)
    events: Table = truth.events[: truth.progress[0].events]  # type: ignore[assignment]
    return Ran(plan, jobs, view, Outcome(events, int(view.clock[0].queued), int(view.clock[0].illegal)))


def with_one_more_row(truth: Truth) -> Truth:
    """The same truth with room for one more event."""
    longer = records(EVENT, len(truth.events) + 1)
    longer[: len(truth.events)] = truth.events
    return truth._replace(events=longer)


def tell(event: Table) -> Event:
    """One event in the words of the reference."""
    what, site, mask = int(event.what), int(event.site), int(event.mask)
    detail: tuple[object, ...] = ()
    if what in (STARTED, SPREAD):
        detail = (site, gpus_in(mask))
    elif what == FAILED:
        detail = (float(event.value),)
    elif what == ILLEGAL:
        detail = (mask, site)
    elif what in (DOWN, UP):
        detail = (site,)
    elif what == SPEED:
        detail = (site, gpus_in(mask), float(event.value))
    elif what == RESIZED:
        detail = (int(event.value),)
    return (float(event.time), EVENT_NAMES[what], int(event.job), detail)


def gpus_in(mask: int) -> tuple[int, ...]:
    """The GPUs that a mask names."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def disagreement(compiled_events: Sequence[Event], reference_events: Sequence[Event]) -> str:
    """Where two logs first differ, with what came before; nothing if they agree."""
    for number in range(max(len(compiled_events), len(reference_events))):
        mine, theirs = compiled_events[number : number + 1], reference_events[number : number + 1]
        if not (mine and theirs and alike(mine[0], theirs[0])):
            before = "\n".join(f"  both       {event}" for event in reference_events[:number])
            return f"\n{before}\n  compiled   {mine}\n  reference  {theirs}"
    return ""


def alike(one: Event, other: Event) -> bool:
    """Whether two events are the same, but for the last digits: times to 1e-9, amounts (kept in 32 bits) to 1e-6."""
    return (
        one[1:3] == other[1:3]
        and math.isclose(one[0], other[0], rel_tol=1e-9)
        and len(one[3]) == len(other[3])
        and all(
            math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) if isinstance(a, float) and isinstance(b, float) else a == b
            for a, b in zip(one[3], other[3], strict=True)
        )
    )


# ---- policies, each the plainest compiled form of its namesake in the reference -------------------------------------


@compiled
def first_site(view: View, j: int) -> int:
    """The lowest site where the job may start."""
    for s in range(len(view.sites)):
        if fits(view, j, s):
            return s
    return NOBODY


@compiled
def start(j: int, s: int) -> Choice:
    """Start the job there, or wait if there is nobody or nowhere."""
    if s == NOBODY:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    return Choice(START, widened(j), widened(s), FOREVER)


@compiled
def fcfs(view: View) -> Choice:
    """The head of the queue at its lowest site; while it does not fit, nobody starts."""
    return start(in_queue(view, 0), first_site(view, in_queue(view, 0)))


@compiled
def first_fit(view: View) -> Choice:
    """The first job of the queue that fits anywhere, at its lowest site."""
    for q in range(seen(view)):
        s = first_site(view, in_queue(view, q))
        if s != NOBODY:
            return start(in_queue(view, q), s)
    return start(NOBODY, NOBODY)


@compiled
def least_runtime(view: View, picky: bool) -> Choice:
    """The pair with the least estimated runtime; if picky, only where it is at most twice the job's best."""
    chosen, site, least = NOBODY, NOBODY, FOREVER
    for q in range(seen(view)):
        j = in_queue(view, q)
        for s in range(len(view.sites)):
            length = runtime(view, j, s)
            if picky and length > 2.0 * best_runtime(view, j):
                continue
            if length < least and fits(view, j, s):
                chosen, site, least = j, s, length
    return start(chosen, site)


@compiled
def sjf(view: View) -> Choice:
    """Least estimated runtime first."""
    return least_runtime(view, False)


@compiled
def sjf_picky(view: View) -> Choice:
    """Least estimated runtime first, only where the job takes at most twice its best runtime."""
    return least_runtime(view, True)


@compiled
def always_wait(view: View) -> Choice:
    """Never start anything."""
    return start(NOBODY, NOBODY)


def policy_of(choose: Callable[[View], Choice], preemptive: bool = False) -> Policy:
    """A compiled function as a policy."""
    return Policy(choose.__name__, "", choose=choose, preemptive=preemptive)


PLAIN: dict[str, tuple[Policy, reference.Policy]] = {
    "fcfs": (policy_of(fcfs), reference.fcfs),
    "fcfs-first-fit": (policy_of(first_fit), reference.fcfs_first_fit),
    "sjf": (policy_of(sjf), reference.sjf),
    "sjf-picky": (policy_of(sjf_picky), reference.sjf_picky),
    "always-wait": (policy_of(always_wait), reference.always_wait),
}
"""The same policies for both simulators."""


# ---- policies in Python that see either simulator --------------------------------------------------------------------


@compiled
def mark_legal(view: View, legal: npt.NDArray[np.uint8]) -> None:
    """Set legal[j, s] for the jobs that a policy sees."""
    for q in range(seen(view)):
        j = in_queue(view, q)
        for s in range(len(view.sites)):
            legal[j, s] = fits(view, j, s)


class Seen:
    """A view of the compiled simulator, to be looked at like the reference's world."""

    def __init__(self, view: View) -> None:
        clock, states = view.clock[0], view.runs.state
        self.jobs, self.sites, self.now = view.jobs, view.sites, float(clock.now)
        self.waiting: list[int] = view.queue[clock.head : clock.head + clock.queued].tolist()
        self.queue = self.waiting[: int(clock.window) or None]
        self.running: list[int] = sorted(view.running[: clock.running].tolist())
        assert self.waiting == np.flatnonzero(states == QUEUED).tolist()
        assert self.running == np.flatnonzero(states == RUNNING).tolist()
        self._sizes = [
            view.shapes.gpus[job.first_shape : job.first_shape + job.shapes].tolist() if job.shapes else []
            for job in view.jobs
        ]
        self._legal = np.zeros((len(view.jobs), len(view.sites)), np.uint8)
        mark_legal(view, self._legal)

    def legal(self) -> list[tuple[int, int]]:
        """All (job, site) pairs of the queue that may start now, by job, then site."""
        return [(int(job), int(site)) for job, site in np.argwhere(self._legal)]

    def sizes(self, job: int) -> list[int]:
        """The numbers of GPUs that the job may have; none if it cannot be resized."""
        return self._sizes[job]

    def fits(self, job: int, site: int) -> bool:
        """Whether the job, which is in the queue, may start at this site now."""
        return bool(self._legal[job, site])


def looking(choose: Callable[[Sight], Answer], preemptive: bool = False) -> Policy:
    """A policy in plain Python that looks at the view as at the reference's world."""
    return Policy(
        "looking", "", make=lambda view, seed: lambda view: Choice(*choose(Seen(view))), preemptive=preemptive
    )


def roughened(scenario: Scenario, seed: int) -> Scenario:
    """The same with odd numbers: nothing ties, and every sum is rounded."""
    odd = Random(seed)

    def about(value: float | None) -> float | None:
        return None if value is None else value * odd.uniform(0.9, 1.1)

    jobs = [
        replace(
            job,
            work=job.work * odd.uniform(0.9, 1.1),
            submit_s=job.submit_s + odd.random(),
            limit_s=about(job.limit_s),
            estimate=about(job.estimate),
            checkpoint=about(job.checkpoint),
        )
        for job in scenario.jobs
    ]
    disturbances = [
        Disturbance(item.time_s + odd.random(), item.what, item.node, item.gpu, item.factor * odd.uniform(0.9, 1.1))
        for item in scenario.disturbances
    ]
    return replace(scenario, jobs=jobs, disturbances=disturbances)
