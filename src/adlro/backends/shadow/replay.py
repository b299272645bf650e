"""Play a record again:

as it happened, to check whether the simulator can be trusted, and under other policies.

docs/shadow.md says what each number means, and what none of them can show.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from adlro.backends.shadow.tables import Prepared
from adlro.core.copying import copied
from adlro.core.driver import Driver
from adlro.core.engine import Truth
from adlro.core.policy import Policy, starting, waiting
from adlro.core.rules import fits
from adlro.core.tables import DONE, QUEUED, SPREAD, START, STARTED, STOPPED, Choice, Floats, Ints, View
from adlro.simulation.simulator import SimulationSettings, prepare

HAPPENED: Final = "as it happened"

MOST_ERROR: Final = 0.05
"""The comparison is trusted up to this relative error of the mean JCT in the replay of what happened."""

MOST_OFF: Final = 0.10
"""Share of jobs that may be off in that replay: by more than this share of their JCT, and a minute."""

MOST_UNFINISHED: Final = 0.25
"""The comparison is trusted up to this share of jobs that have not ended."""

MOST_UNWATCHED: Final = 0.10
MOST_SET_ASIDE: Final = 0.10
FEWEST_JOBS: Final = 30
OFF_S: Final = 60.0
SHORT_S: Final = 60.0
"""Schedulers look at the queue every few seconds to half a minute; the simulator starts a job at once."""

JOBS_IN_BLOCK: Final = 10
MOST_REPLAY_BLOCKS: Final = 30
"""Jobs of one queue are not independent: intervals come from at most this many blocks of consecutive jobs."""

SHOWN: Final = 10
FEWEST_RUNS: Final = 3
"""Runs of the same user's job of one name and size on a model, from which its speed there is told."""

FEWEST_PAIRS: Final = 3
MOST_SPEED_ERROR: Final = 0.5
"""How far the speed table may be off, in the median of at least so many cases."""

UNIFORM_REMARK: Final = (
    "every job is of the family 'uniform', which runs alike on all GPU models: where a job is better placed cannot be "
    "told. Give families with a map (docs/traces.md)"
)

NOT_MODELLED: Final = (
    "partitions, quality of service, fair share, limits of users and accounts, reservations, licences and features: "
    "in the replay a job may take any free GPU of the models that its request allows",
    "dependencies, begin times, holds and array limits: in the replay a job may start as soon as it is submitted",
    "GPU memory that a job needs and its request does not name (the line 'same models' does without such moves)",
    "users who would have done something else, had their jobs ended at another time",
    "what starting a job costs beyond its measured runtime, and jobs that slow each other down",
    "runs before a requeue (only the last one counts), and nodes that were down (they are up in the replay)",
)
OnStep = Callable[[str, int], None]


# ---- playing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """When each job started and finished in a replay (inf: never), how often it was stopped, and its sizes. [J]"""

    start: Floats
    finish: Floats
    stops: Ints  # how often it was stopped
    more: Ints  # how often it started with more GPUs than it had …
    fewer: Ints  # … and with fewer

    def of(self, rows: Sequence[int]) -> "ReplayTimes":
        """The same of these jobs."""
        return ReplayTimes(self.start[rows], self.finish[rows], self.stops[rows], self.more[rows], self.fewer[rows])


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the policy would have started next, at each moment at which the cluster started something.

    `choice` counts only moments at which more than one job waited.
    """

    moments: int
    same_job: int
    same_model: int  # … and there
    same_node: int  # … and there
    other_job: int
    waits: int
    choice_moments: int
    choice_same_job: int


def happened(
    made: Prepared, asked: Policy, weights: str = SimulationSettings().weights
) -> tuple[ReplayTimes, Agreement]:
    """The record as it happened; a policy is asked beside it what it would do next, each time that something starts."""
    view = copied(made.view)
    settings = SimulationSettings(weights=weights)
    driver = Driver(view, prepare(view, made.jobs.work, asked, settings, (), 0), asked)
    due = [int(j) for j in np.argsort(made.start, kind="stable") if math.isfinite(made.start[j])]
    first, late = 0, list[int]()
    counts: Counter[str] = Counter()
    while driver.advance():
        now = float(view.clock[0].now)
        group = []
        while first < len(due) and made.start[due[first]] <= now:
            group.append(due[first])
            first += 1
        if group and now > 0.0:
            counts.update(compared_choice(made, view, driver.ask(), group))
        late += group
        while driver.is_asked:
            startable = next(((j, s) for j in late for s in _places(made, view, j)), None)
            if startable is None:
                until = made.start[due[first]] if first < len(due) else math.inf
                driver.apply(waiting(float(until)))
            else:
                late.remove(startable[0])
                driver.apply(starting(*startable))
    agreement = Agreement(
        moments=counts["moments"],
        same_job=counts["same job"],
        same_model=counts["same model"],
        same_node=counts["same node"],
        other_job=counts["other job"],
        waits=counts["waits"],
        choice_moments=counts["choice moments"],
        choice_same_job=counts["choice same job"],
    )
    return times_of(made, driver.truth), agreement


def _places(made: Prepared, view: View, j: int) -> list[int]:
    """Where a job may start now: where it ran, or, if it ran on more nodes than it takes here, on others like it."""
    home = int(made.site[j])
    if view.runs[j].state != QUEUED:
        return []
    if fits(view, j, home):
        return [home]
    if len(made.live[j].parts) == 1:
        return []
    pool = view.pools[view.sites[home].pool]
    others = view.pool_sites[pool.first_site : pool.first_site + pool.sites]
    return [int(s) for s in others if fits(view, j, int(s))]


def compared_choice(made: Prepared, view: View, choice: Choice, group: Sequence[int]) -> list[str]:
    """Compare what the policy would start next with what the cluster started: words to count."""
    is_choice = ["choice moments"] if view.clock[0].queued > 1 else []
    found = ["moments", *is_choice]
    if choice.verb != START:
        return [*found, "waits"]
    if choice.job not in group:
        return [*found, "other job"]
    found += ["same job", *(["choice same job"] if is_choice else [])]
    ours, theirs = view.sites[choice.site], view.sites[made.site[choice.job]]
    if ours.pool != theirs.pool:
        return found
    return [*found, "same model", *(["same node"] if ours.node == theirs.node else [])]


def under(made: Prepared, policy: Policy, weights: str = SimulationSettings().weights) -> ReplayTimes:
    """The same jobs under a policy, from the cluster as it stood when the record begins."""
    view = copied(made.view)
    settings = SimulationSettings(weights=weights)
    driver = Driver(view, prepare(view, made.jobs.work, policy, settings, (), 0), policy)
    if made.carried.any():
        driver.advance()
        for j in sorted(np.flatnonzero(made.carried), key=lambda j: made.live[j].started_s or 0.0):
            if fits(view, int(j), int(made.site[j])):
                driver.apply(starting(int(j), int(made.site[j])))
    driver.run()
    return times_of(made, driver.truth)


def times_of(made: Prepared, truth: Truth) -> ReplayTimes:
    """First starts, finishes, stops and sizes in the log."""
    events = truth.events[: truth.progress[0].events]
    start, finish = np.full(len(made.jobs), math.inf), np.full(len(made.jobs), math.inf)
    for times, what in ((start, STARTED), (finish, DONE)):
        rows = events[events["what"] == what]
        np.minimum.at(times, rows["job"], rows["time"])
    stops = np.bincount(events["job"][events["what"] == STOPPED], minlength=len(made.jobs)).astype(np.int32)
    rows = events[(events["what"] == STARTED) | (events["what"] == SPREAD)]  # a gang: its start, then its other nodes
    begins = np.flatnonzero(rows["what"] == STARTED)
    given = np.add.reduceat(np.bitwise_count(rows["mask"]).astype(np.int32), begins) if len(begins) else begins
    job = rows["job"][begins]
    change = given - made.jobs.table["gpus"][job]
    more, fewer = (
        np.bincount(job[is_so], minlength=len(made.jobs)).astype(np.int32) for is_so in (change > 0, change < 0)
    )
    return ReplayTimes(start, finish, stops, more, fewer)


def in_system(made: Prepared, times: ReplayTimes) -> Floats:
    """How long each job that did not run already waited or ran up to the end of the record."""
    end = made.record.end_s - made.record.begin_s
    spent: Floats = (np.minimum(times.finish, end) - made.submit)[~made.carried]
    return spent


def mean_s(values: Floats) -> float:
    """The mean; 0 of nothing."""
    return float(values.mean()) if len(values) else 0.0
