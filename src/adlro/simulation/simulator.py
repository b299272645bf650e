"""The simulator: a policy on a cluster from the first job to the last.

The run driver of core plays it. A predictor, which must see what happens before the policy decides, is its player.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from adlro.core.driver import NO_HEAT, UNREAD, Driver, Player, new_truth
from adlro.core.engine import Truth
from adlro.core.policy import Policy
from adlro.core.tables import DISTURBANCE, FOREVER, Floats, Table, View, records

BY_PRIORITY: Final = "priority"


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How strict the world is."""

    restart_s: float = 30.0
    kill_at_limit: bool = False
    window: int = 0
    weights: str = "equal"  # what jobs count by: "equal" or BY_PRIORITY


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: the log, and what was left."""

    events: Table  # EVENT
    unfinished: int
    illegal: int
    heat: Table = field(default_factory=lambda: NO_HEAT)  # HEAT at the end; no rows in a run without heat


def simulate(
    view: View,
    work: Floats,
    policy: Policy,
    settings: SimulationSettings = SimulationSettings(),  # noqa: B008  (frozen)
    disturbances: Sequence[tuple[float, int, int, int, float]] = (),
    seed: int = 0,
    player: Player | None = None,
    heat: Table = NO_HEAT,
    rate: Floats | None = None,
    bandwidth: Floats = UNREAD,
) -> Outcome:
    """Run a policy on a freshly packed view to the end, and return everything that happened.

    `heat` is written to. `rate` is how fast jobs really run, if that is not what the view says. `bandwidth` is as in
    `new_truth`.
    """
    truth = prepare(view, work, policy, settings, disturbances, seed, heat, rate, bandwidth)
    driver = Driver(view, truth, policy, seed, player)
    driver.run()
    clock, progress = view.clock[0], driver.truth.progress[0]
    events = cast(Table, driver.truth.events[: progress.events])
    return Outcome(events, int(clock.queued + clock.running), int(clock.illegal), driver.truth.heat)


def prepare(
    view: View,
    work: Floats,
    policy: Policy,
    settings: SimulationSettings,
    disturbances: Sequence[tuple[float, int, int, int, float]],
    seed: int,
    heat: Table = NO_HEAT,
    rate: Floats | None = None,
    bandwidth: Floats = UNREAD,
) -> Truth:
    """Set the clock, give the policy what it needs, and make the tables that it may not see."""
    clock = view.clock[0]
    clock.restart, clock.window = settings.restart_s, settings.window
    clock.weighted = counts_by_priority(view, settings.weights)
    clock.wake = FOREVER
    clock.random = seed * 7919 % 2147483646 + 1
    if policy.prepare is not None:
        policy.prepare(view)
    jobs = len(view.jobs)
    happening = records(DISTURBANCE, len(disturbances))
    for row, (time, what, node, gpu, factor) in zip(happening, sorted(disturbances, key=first), strict=True):
        row.time, row.what, row.node, row.gpu, row.factor = time, what, node, gpu, factor
    # Two events for each job and a few more; memory that is never written is never used.
    events = 3 * jobs + 2 * len(view.sites) + 1024
    truth = new_truth(view, work, events, policy.preemptive, happening, heat, rate, bandwidth)
    truth.progress[0].kill = settings.kill_at_limit
    return truth


def counts_by_priority(view: View, weights: str) -> bool:
    """Whether jobs count by their priorities: that is asked for, and any two of them have different ones.

    If none have, weights change nothing, not even by rounding.
    """
    return weights == BY_PRIORITY and len(view.jobs) > 0 and bool((view.jobs.priority != view.jobs.priority[0]).any())


def first(row: tuple[float, int, int, int, float]) -> float:
    """The time of a disturbance."""
    return row[0]
