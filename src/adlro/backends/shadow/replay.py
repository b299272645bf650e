"""A record played again: as it happened, to see whether the simulator may be believed, and under other policies.

docs/shadow.md says what each number means, and what none of them can tell.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from adlro.backends.shadow.dry_run import could_start
from adlro.backends.shadow.record import Record
from adlro.catalogue.families import find_family
from adlro.catalogue.speeds import speed_of
from adlro.core.copying import copied
from adlro.core.driver import Driver
from adlro.core.engine import Truth
from adlro.core.errors import CatalogueError, StoreError, UsageError
from adlro.core.plan import Plan, plan_cluster
from adlro.core.policy import Policy, starting, waiting
from adlro.core.ports import ENDED, JobState, LiveJob
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Job
from adlro.core.rules import fits
from adlro.core.tables import DONE, NOBODY, QUEUED, REFUSED, START, STARTED, Choice, Floats, Ints, Jobs, View
from adlro.decide.catalogue import find_policy
from adlro.experiment.scenario import named_as_in
from adlro.measure.statistics import against
from adlro.normalise.pack import pack, pack_jobs
from adlro.predict.following import P50, as_they_came, traits_of
from adlro.predict.habits import Habits
from adlro.simulation.simulator import Settings, prepare

HAPPENED: Final = "as it happened"

MOST_ERROR: Final = 0.05
"""Relative error of the mean JCT, replayed as it happened, up to which the comparison may be believed."""

MOST_OFF: Final = 0.10
"""Share of jobs that may be off in that replay: by more than this share of their JCT, and a minute."""

MOST_UNFINISHED: Final = 0.25
"""Share of the jobs that may not have ended."""

MOST_UNWATCHED: Final = 0.10
MOST_SET_ASIDE: Final = 0.10
FEWEST_JOBS: Final = 30
OFF_S: Final = 60.0
SHORT_S: Final = 60.0
"""Schedulers look at the queue every few seconds to half a minute; the simulator starts a job at once."""

JOBS_IN_BLOCK: Final = 10
MOST_BLOCKS: Final = 30
"""Jobs of one queue are not independent: intervals come from blocks of consecutive jobs, so many at most."""

SHOWN: Final = 10
FEWEST_RUNS: Final = 3
"""Runs of the same user's job of one name and size on a model, from which its speed there is told."""

FEWEST_PAIRS: Final = 3
MOST_SPEED_ERROR: Final = 0.5
"""How far the speed table may be off, in the median of at least so many cases."""

ALIKE: Final = (
    "every job is of the family 'uniform', which runs alike on all GPU models: where a job is better placed cannot be "
    "told. Give families with a map (docs/traces.md)"
)

SHORTEST_S: Final = 1e-3
KNOWN_LEAST: Final = 0.1
"""A job that has run longer than predicted is taken to need this share of the prediction still."""

GOES_ON: Final = 1.5
"""A job that had not ended is taken to run at least this many times as long as it had."""

ESTIMATES: Final = ("predicted", "limit", "oracle")
UNIFORM: Final = "uniform"

NOT_MODELLED: Final = (
    "partitions, quality of service, fair share, limits of users and accounts, reservations, licences and features: "
    "in the replay a job may take any free GPU of the models that its request allows",
    "dependencies, begin times, holds and array limits: in the replay a job may start as soon as it is submitted",
    "GPU memory that a job needs and its request does not name (the line 'same models' does without such moves)",
    "users who would have done something else, had their jobs ended at another time",
    "what starting a job costs beyond its measured runtime, and jobs that slow each other down",
    "runs before a requeue (only the last one counts), and nodes that were down (they are up in the replay)",
)

Bools = npt.NDArray[np.bool_]
Sites = Mapping[tuple[str, str], int]
OnStep = Callable[[str, int], None]


# ---- a record as tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """The jobs of a record, packed for its cluster. J of them, in submit order; times from where it begins."""

    record: Record
    plan: Plan
    live: tuple[LiveJob, ...]
    jobs: Jobs
    view: View  # nobody has used it yet
    site: Ints  # [J] where it ran; NOBODY: it did not
    start: Floats  # [J] when it started, 0 if it ran already; inf: it did not
    end: Floats  # [J] when it ended; inf: not yet
    submit: Floats  # [J] when it was submitted; negative if before
    reshaped: int  # jobs whose request had to be changed so that they may run where they ran
    set_aside: Mapping[str, int]

    @property
    def carried(self) -> Bools:
        """The jobs that ran when the record begins: they take room, and are not compared. [J]"""
        return self.start == 0.0

    @property
    def compared(self) -> Bools:
        """The jobs that started and ended within the record. [J]"""
        return (self.start > 0.0) & np.isfinite(self.end)


def prepared(record: Record, estimates: str = "predicted", same_models: bool = False) -> Prepared:
    """Pack a record; with `same_models` each job may run on nothing but the model that it ran on."""
    if estimates not in ESTIMATES:
        raise UsageError(f"--estimates is {estimates!r}; expected {', '.join(ESTIMATES)}.")
    plan = plan_cluster(record.cluster)
    names = [plan.cluster.nodes[node].name for node in plan.sites["node"]]
    sites = {
        (name, plan.models[model]): s for s, (name, model) in enumerate(zip(names, plan.sites["model"], strict=True))
    }
    for node, first in zip(plan.cluster.nodes, plan.nodes["first_site"], strict=True):
        sites[node.name, CPU_ONLY] = int(first)
    aside = Counter(dict(record.set_aside or {}))
    live = []
    for job in record.jobs:
        if why := unfit(job, record, sites):
            aside[why] += 1
        else:
            live.append(job)
    if not any(job.started_s is not None and job.ended_s is not None for job in live):
        reasons = ", ".join(f"{count} {why}" for why, count in aside.items()) or "nothing has ended yet"
        raise StoreError(f"{record.source}: no job in it can be replayed: {reasons}.")
    live.sort(key=lambda job: max(0.0, job.job.submit_s - record.begin_s))
    live, jobs, view, reshaped = packed(plan, live, record.begin_s, sites, same_models, aside)
    made = Prepared(
        record=record,
        plan=plan,
        live=tuple(live),
        jobs=jobs,
        view=view,
        site=np.array([home_of(plan, view, j, job, sites) for j, job in enumerate(live)], np.int32),
        start=np.maximum(since(record, [job.started_s for job in live]), 0.0),
        end=since(record, [job.ended_s for job in live]),
        submit=since(record, [job.job.submit_s for job in live]),
        reshaped=reshaped,
        set_aside=dict(aside),
    )
    set_work(made, estimates)
    return made


def since(record: Record, times: Sequence[float | None]) -> Floats:
    """Times from where the record begins; inf for those that have not come."""
    return np.array([math.inf if time is None else time - record.begin_s for time in times], np.float64)


def unfit(job: LiveJob, record: Record, sites: Sites) -> str:
    """Why a job cannot be replayed; nothing if it can."""
    if job.started_s is None:
        if job.state in ENDED:
            return "never started"
        return "" if job.state is not JobState.WAITING or could_start(job) else "wait for something else than room"
    if not job.parts:
        return "ran where we cannot tell"
    if any((part.node, part.model) not in sites for part in job.parts):
        return "ran on a node or GPU that the cluster does not have"
    if len({part.model for part in job.parts}) > 1:
        return "ran on two GPU models at once"
    if job.ended_s is not None and job.ended_s <= record.begin_s:
        return "had ended when the record begins"
    return "end before they start" if job.ended_s is not None and job.ended_s < job.started_s else ""


def packed(
    plan: Plan, live: list[LiveJob], begin_s: float, sites: Sites, same_models: bool, aside: Counter[str]
) -> tuple[list[LiveJob], Jobs, View, int]:
    """The jobs as tables. A job that ran although our rules would refuse it asks for less, and is counted."""
    rows = [row_of(job, begin_s, same_models) for job in live]
    jobs, view, wrong = tabled(plan, rows, live, sites)
    reshaped = len(wrong)
    if wrong:
        for j in wrong:
            rows[j] = replace(rows[j], cpus=0.0, memory_gb=0.0, gpu_memory_gb=0.0, models=frozenset(), family=UNIFORM)
        jobs, view, wrong = tabled(plan, rows, live, sites)
    if wrong:
        aside["can never run on this cluster"] += len(wrong)
        kept = [j for j in range(len(live)) if j not in set(wrong)]
        rows, live = [rows[j] for j in kept], [live[j] for j in kept]
        jobs, view, _ = tabled(plan, rows, live, sites)
    return live, jobs, view, reshaped


def tabled(plan: Plan, rows: Sequence[Job], live: Sequence[LiveJob], sites: Sites) -> tuple[Jobs, View, list[int]]:
    """Jobs as tables, and those that our rules would not let run, or not where they ran."""
    jobs = named_as_in(plan.cluster, pack_jobs(rows))
    view = pack(plan, jobs, speed_of)
    return jobs, view, [j for j, job in enumerate(live) if not runs_at_home(plan, view, j, job, sites)]


def row_of(job: LiveJob, begin_s: float, same_models: bool) -> Job:
    """What was asked for, with what was given where that is more certain."""
    told = job.job
    gpus = sum(part.count for part in job.parts) if job.parts else told.gpus
    ran_on = frozenset(part.model for part in job.parts if part.count)
    models = told.models | ran_on if told.models else told.models
    try:
        family = find_family(told.family).name
    except CatalogueError:
        family = UNIFORM
    return replace(
        told,
        family=family,
        work=0.0,
        estimate=0.0,
        submit_s=max(0.0, told.submit_s - begin_s),
        gpus=gpus,
        share=told.share if gpus == 1 else WHOLE_GPU,
        models=ran_on if same_models and ran_on else models,
        priority=min(max(told.priority, 0.0), 1.0),
    )


def runs_at_home(plan: Plan, view: View, j: int, job: LiveJob, sites: Sites) -> bool:
    """Whether our rules let a job run, and where it ran if it did."""
    if view.runs[j].state == REFUSED:
        return False
    home = home_of(plan, view, j, job, sites)
    return home == NOBODY or bool(view.rate[view.jobs[j].kind, plan.sites[home].form] > 0.0)


def home_of(plan: Plan, view: View, j: int, job: LiveJob, sites: Sites) -> int:
    """The site where a job ran: of a gang over several nodes the one that stands for all of them."""
    if job.started_s is None:
        return NOBODY
    part = max(job.parts, key=lambda part: part.count)
    home = sites[part.node, part.model]
    site = plan.sites[home]
    is_wide = view.width[view.jobs[j].kind, site.form] > 1
    return int(plan.pools[site.pool].anchor) if is_wide else home


def set_work(made: Prepared, estimates: str) -> None:
    """Write down the work of each job, and what policies are told of it.

    Work is the measured runtime times the speed where it ran. What a job that had not ended will need is not known: it
    is given what was predicted of it when it was submitted, and if it has run longer already, half as much again.
    """
    table, record = made.jobs.table, made.record
    units = np.where(table["gpus"] > 0, table["gpus"] * (table["share"] / WHOLE_GPU), 1.0)
    ran = made.site != NOBODY
    speed = np.ones(len(units))  # [J] of one GPU where it ran
    speed[ran] = (made.view.rate[table["kind"][ran], made.plan.sites["form"][made.site[ran]]]) / units[ran]
    began = np.where(ran, since(record, [job.started_s for job in made.live]), 0.0)
    is_over = np.isfinite(made.end)
    length = np.where(ran, np.where(is_over, made.end, record.end_s - record.begin_s) - began, 0.0)
    seconds = np.maximum(length * speed, SHORTEST_S)  # [J] on the reference model
    wait = np.where(is_over, made.end - table["submit"] - seconds, math.inf)
    predicted = Habits.new().follow(traits_of(made.jobs), seconds, as_they_came(table["submit"], seconds, wait))[:, P50]
    limit = np.where(np.isfinite(table["limit"]), table["limit"], math.inf)
    expected = np.minimum(np.maximum(predicted, GOES_ON * seconds), np.maximum(limit * speed, seconds))
    seconds = np.where(is_over, seconds, expected)
    gone = np.where(made.carried, np.maximum(0.0, -began) * speed, 0.0)
    made.jobs.work[:] = np.maximum(seconds - gone, SHORTEST_S) * units
    told = {"oracle": seconds, "predicted": predicted, "limit": np.where(np.isfinite(limit), limit, predicted)}[
        estimates
    ]
    table["estimate"] = np.maximum(told - gone, KNOWN_LEAST * told) * units


# ---- playing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """When each job started and finished in a replay; inf: never. [J]"""

    start: Floats
    finish: Floats


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


def happened(made: Prepared, asked: Policy) -> tuple[Times, Agreement]:
    """The record as it happened; a policy is asked beside it what it would do next, each time that something starts."""
    view = copied(made.view)
    driver = Driver(view, prepare(view, made.jobs.work, asked, Settings(), (), 0), asked)
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
            startable = next(((j, s) for j in late for s in places(made, view, j)), None)
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


def places(made: Prepared, view: View, j: int) -> list[int]:
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
    """What the policy would start next, against what the cluster started: words to count."""
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


def under(made: Prepared, policy: Policy) -> Times:
    """The same jobs under a policy, from the cluster as it stood when the record begins."""
    view = copied(made.view)
    driver = Driver(view, prepare(view, made.jobs.work, policy, Settings(), (), 0), policy)
    if made.carried.any():
        driver.advance()
        for j in sorted(np.flatnonzero(made.carried), key=lambda j: made.live[j].started_s or 0.0):
            if fits(view, int(j), int(made.site[j])):
                driver.apply(starting(int(j), int(made.site[j])))
    driver.run()
    return times_of(made, driver.truth)


def times_of(made: Prepared, truth: Truth) -> Times:
    """First starts and finishes in the log."""
    events = truth.events[: truth.progress[0].events]
    start, finish = np.full(len(made.jobs), math.inf), np.full(len(made.jobs), math.inf)
    for times, what in ((start, STARTED), (finish, DONE)):
        rows = events[events["what"] == what]
        np.minimum.at(times, rows["job"], rows["time"])
    return Times(start, finish)


# ---- the report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs there are of each kind."""

    seen: int
    compared: int
    running_at_begin: int
    running_at_end: int
    waiting_at_end: int
    failed: int  # of those compared: ended with an error, at their limit or by hand
    requeued: int  # of those compared: started more than once
    reshaped: int
    set_aside: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well the simulator tells again what happened: mean JCT, and jobs whose JCT is off."""

    happened_s: float
    replayed_s: float
    error: float  # relative
    off: int
    runtime_s: float  # median of the jobs compared


@dataclass(frozen=True, slots=True)
class Line:
    """One policy. `in_system_s` is over all jobs, the rest over those that had ended; None: too few for an interval.

    Only time in the system up to the end of the record is told without bias: what comes after has no new jobs, and
    which jobs had ended by then was the cluster's choice. docs/shadow.md has the figures.
    """

    policy: str
    in_system_s: float  # mean time that a job waited or ran up to the end of the record
    difference_s: float | None  # of it, against what happened, replayed
    low_s: float | None  # the 95 % interval of the difference
    high_s: float | None
    relative: float | None
    verdict: str  # different, no difference shown, too few jobs
    jct_s: float
    jct_relative: float | None
    p95_s: float  # of the JCT
    wait_s: float
    late: int  # jobs that had ended, and would not have by the end of the record: their JCT is told too short


@dataclass(frozen=True, slots=True)
class Changed:
    """A job whose completion would come much sooner (negative) or later."""

    id: str
    user: str
    name: str
    gpus: int
    happened_s: float
    would_s: float
    difference_s: float
    is_late: bool  # it would not have ended by the end of the record: it may lose more


@dataclass(frozen=True, slots=True)
class Affected:
    """A user, by the mean time of their jobs in the system up to the end of the record."""

    user: str
    jobs: int
    happened_s: float
    would_s: float
    difference_s: float


@dataclass(frozen=True, slots=True)
class SpeedCheck:
    """Ratios of runtimes of the same jobs on two models, against those of the speed table."""

    pairs: int
    median_error: float | None  # how many times off, less 1


@dataclass(frozen=True, slots=True)
class Wishes:
    """What became of what we would have started while the shadow ran beside the cluster."""

    made: int
    started: int
    same_model: int
    same_nodes: int
    taken: int
    over: int
    left: int
    down: int
    standing: int
    lead_s: float | None  # median time by which our wish came before the cluster's start


@dataclass(frozen=True, slots=True)
class Report:
    """What a shadow came to."""

    source: str
    cluster: str
    begin_s: float
    end_s: float
    unwatched_s: float
    down_share: float  # of the GPU-seconds, on nodes that took no jobs
    policy: str
    estimates: str
    jobs: Counted
    calibration: Calibration
    blocks: int
    lines: tuple[Line, ...]
    agreement: Agreement
    wishes: Wishes | None
    gain: tuple[Changed, ...]
    lose: tuple[Changed, ...]
    users: tuple[Affected, ...]
    speeds: SpeedCheck
    not_modelled: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]  # why the comparison is not to be trusted; none: it may be

    @property
    def is_trusted(self) -> bool:
        """Whether the comparison may be believed, within what is not modelled."""
        return not self.doubts

    def as_json(self) -> dict[str, Any]:
        """The report in the form that --json promises."""
        return asdict(self) | {"trusted": self.is_trusted}


def report(
    record: Record,
    policy: str = "adlro",
    others: Sequence[str] = ("fcfs-first-fit", "fcfs", "fcfs-easy"),
    estimates: str = "predicted",
    on_step: OnStep = lambda what, done: None,
) -> Report:
    """Replay a record and sum up."""
    asked = find_policy(policy)
    wanted = [asked, *(find_policy(name) for name in dict.fromkeys(others) if name != policy)]
    on_step("as it happened", 0)
    made = prepared(record, estimates)
    truth, agreement = happened(made, asked)
    times: dict[str, Times] = {HAPPENED: truth}
    for done, each in enumerate(wanted, 1):
        on_step(each.name, done)
        times[each.name] = under(made, each)
    on_step("on the same models", len(wanted) + 1)
    alike = prepared(record, estimates, same_models=True)
    place = {(job.id, job.job.submit_s): j for j, job in enumerate(alike.live)}
    order = [place.get((job.id, job.job.submit_s), NOBODY) for job in made.live]
    if NOBODY not in order:
        found = under(alike, asked)
        times[f"{policy}, same models"] = Times(found.start[order], found.finish[order])
    over = np.flatnonzero(made.compared & np.all([np.isfinite(each.finish) for each in times.values()], axis=0))
    calibration = calibrated(
        (made.end - made.submit)[over], (times[HAPPENED].finish - made.submit)[over], made.end[over] - made.start[over]
    )
    counted, speeds = counted_jobs(made, over), checked_speeds(made)
    return Report(
        source=record.source,
        cluster=record.cluster.name,
        begin_s=record.begin_s,
        end_s=record.end_s,
        unwatched_s=record.unwatched_s,
        down_share=record.down_gpu_s / max(1e-9, record.cluster.gpu_count * (record.end_s - record.begin_s)),
        policy=policy,
        estimates=estimates,
        jobs=counted,
        calibration=calibration,
        blocks=blocks_of(int(np.count_nonzero(~made.carried))),
        lines=lines_of(made, times, over),
        agreement=agreement,
        wishes=wishes_of(record),
        **changed_jobs(made, over, times[HAPPENED], times[policy]),
        users=affected_users(made, times[HAPPENED], times[policy]),
        speeds=speeds,
        not_modelled=NOT_MODELLED,
        notes=(*record.notes, *([ALIKE] if knows_no_speeds(made) else [])),
        doubts=tuple(doubts(record, counted, calibration, speeds)),
    )


def counted_jobs(made: Prepared, over: npt.NDArray[np.intp]) -> Counted:
    """How many jobs there are of each kind."""
    running = np.isfinite(made.start) & ~np.isfinite(made.end)
    some = [made.live[j] for j in over]
    return Counted(
        seen=len(made.record.jobs),
        compared=len(over),
        running_at_begin=int(np.count_nonzero(made.carried)),
        running_at_end=int(np.count_nonzero(running)),
        waiting_at_end=int(np.count_nonzero(~np.isfinite(made.start))),
        failed=sum(job.state is not JobState.FINISHED for job in some),
        requeued=sum(job.starts > 1 for job in some),
        reshaped=made.reshaped,
        set_aside=made.set_aside,
    )


def calibrated(real: Floats, replayed: Floats, runtime: Floats) -> Calibration:
    """Hold the replay of what happened against what happened."""
    if not len(real):
        return Calibration(math.nan, math.nan, math.nan, 0, math.nan)
    off = np.abs(replayed - real) > np.maximum(MOST_OFF * real, OFF_S)
    told, was = float(replayed.mean()), float(real.mean())
    return Calibration(was, told, told / was - 1 if was else 0.0, int(np.count_nonzero(off)), float(np.median(runtime)))


def blocks_of(jobs: int) -> int:
    """Into how many blocks so many jobs are cut; 0: too few for an interval."""
    return 0 if jobs < 2 * JOBS_IN_BLOCK else min(MOST_BLOCKS, jobs // JOBS_IN_BLOCK)


def in_system(made: Prepared, times: Times) -> Floats:
    """How long each job that did not run already waited or ran up to the end of the record."""
    end = made.record.end_s - made.record.begin_s
    spent: Floats = (np.minimum(times.finish, end) - made.submit)[~made.carried]
    return spent


def lines_of(made: Prepared, times: Mapping[str, Times], over: npt.NDArray[np.intp]) -> tuple[Line, ...]:
    """A line for each policy, with what happened first."""
    if not len(over):
        return ()
    spent = {name: in_system(made, each) for name, each in times.items()}
    end = made.record.end_s - made.record.begin_s
    base, base_jct = float(spent[HAPPENED].mean()), float((times[HAPPENED].finish - made.submit)[over].mean())
    found: dict[str, Any] = {}
    if blocks := blocks_of(len(spent[HAPPENED])):
        cut = {
            name: {"": [float(part.mean()) for part in np.array_split(each, blocks)]} for name, each in spent.items()
        }
        found = {name: measures[""] for name, measures in against(cut, HAPPENED).items()}
    lines = []
    for name, each in times.items():
        jct = (each.finish - made.submit)[over]
        tested, is_base = found.get(name), name == HAPPENED
        lines.append(
            Line(
                policy=name,
                in_system_s=float(spent[name].mean()),
                difference_s=None if is_base else float(spent[name].mean()) - base,
                low_s=tested.low if tested else None,
                high_s=tested.high if tested else None,
                relative=None if is_base or not base else float(spent[name].mean()) / base - 1,
                verdict=tested.verdict.replace("seeds", "jobs") if tested else "" if is_base else "too few jobs",
                jct_s=float(jct.mean()),
                jct_relative=None if is_base or not base_jct else float(jct.mean()) / base_jct - 1,
                p95_s=float(np.percentile(jct, 95)),
                wait_s=float((each.start - made.submit)[over].mean()),
                late=int(np.count_nonzero(each.finish[over] > end + SHORTEST_S)),
            )
        )
    return tuple(lines)


def changed_jobs(made: Prepared, over: npt.NDArray[np.intp], was: Times, would: Times) -> dict[str, Any]:
    """The jobs for which most would change."""
    end = made.record.end_s - made.record.begin_s
    difference = would.finish[over] - was.finish[over]
    order = np.argsort(difference, kind="stable")

    def job(i: int) -> Changed:
        j = int(over[i])
        live = made.live[j]
        return Changed(
            id=live.id,
            user=live.job.user,
            name=live.job.name,
            gpus=int(made.jobs.table[j].gpus),
            happened_s=float(was.finish[j] - made.submit[j]),
            would_s=float(would.finish[j] - made.submit[j]),
            difference_s=float(difference[i]),
            is_late=bool(would.finish[j] > end + SHORTEST_S),
        )

    return {
        "gain": tuple(job(int(i)) for i in order[:SHOWN] if difference[i] < -SHORTEST_S),
        "lose": tuple(job(int(i)) for i in order[::-1][:SHOWN] if difference[i] > SHORTEST_S),
    }


def affected_users(made: Prepared, was: Times, would: Times) -> tuple[Affected, ...]:
    """All users, from whom gains most in all to whom loses most."""
    before, after = in_system(made, was), in_system(made, would)
    mine: dict[str, list[int]] = defaultdict(list)
    for i, j in enumerate(np.flatnonzero(~made.carried)):
        mine[made.live[j].job.user].append(i)
    found = [
        Affected(
            user, len(some), float(before[some].mean()), float(after[some].mean()), float((after - before)[some].mean())
        )
        for user, some in mine.items()
    ]
    return tuple(sorted(found, key=lambda one: one.difference_s * one.jobs))


def checked_speeds(made: Prepared) -> SpeedCheck:
    """Hold the speed table against jobs of one user, name and size that ran on two models."""
    runs: dict[tuple[Any, ...], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for j, job in enumerate(made.live):
        if job.state is JobState.FINISHED and job.started_s is not None and job.ended_s is not None and job.parts:
            row = made.jobs.table[j]
            rate = float(made.view.rate[row.kind, made.plan.sites[made.site[j]].form])
            if row.gpus:
                key = (int(row.user), int(row.group), int(row.gpus), int(row.family))
                runs[key][job.parts[0].model].append((job.ended_s - job.started_s, rate))
    errors = []
    for by_model in runs.values():
        known = {model: some for model, some in by_model.items() if len(some) >= FEWEST_RUNS}
        for one, other in combinations(known.values(), 2):
            first, second = (median(length for length, _ in some) for some in (one, other))
            if first > 0 and second > 0:
                errors.append(abs(math.log(first / second * one[0][1] / other[0][1])))
    return SpeedCheck(len(errors), math.expm1(median(errors)) if errors else None)


def wishes_of(record: Record) -> Wishes | None:
    """What became of our wishes; None where none could be made."""
    if not record.fates:
        return None
    outcomes = Counter(fate.outcome for fate in record.fates)
    leads = [fate.lead_s for fate in record.fates if fate.lead_s is not None]
    return Wishes(
        made=len(record.fates),
        started=outcomes["started"],
        same_model=sum(fate.same_model for fate in record.fates),
        same_nodes=sum(fate.same_nodes for fate in record.fates),
        taken=outcomes["taken"],
        over=outcomes["over"],
        left=outcomes["left"],
        down=outcomes["down"],
        standing=outcomes["standing"],
        lead_s=median(leads) if leads else None,
    )


def knows_no_speeds(made: Prepared) -> bool:
    """Whether GPU models differ and no job says which family it is of."""
    models = [model for model in made.plan.models if model != CPU_ONLY]
    return len(models) > 1 and set(made.jobs.families) == {UNIFORM}


def doubts(record: Record, jobs: Counted, calibration: Calibration, speeds: SpeedCheck) -> list[str]:
    """Why the comparison is not to be trusted, in words."""
    found = []
    if jobs.compared < FEWEST_JOBS:
        found.append(f"only {jobs.compared} jobs started and ended within it; at least {FEWEST_JOBS} are needed")
    if not abs(calibration.error) <= MOST_ERROR:
        found.append(
            f"the simulator does not tell again what happened: its mean JCT is {calibration.error:+.1%} off, "
            f"and {MOST_ERROR:.0%} are allowed"
        )
    if calibration.off > MOST_OFF * jobs.compared:
        found.append(f"{calibration.off} jobs end at other times in the replay of what happened")
    if calibration.runtime_s < SHORT_S:
        found.append(
            f"half of the jobs run less than {SHORT_S:g} s: the pauses that every scheduler makes count, and replays "
            "have none"
        )
    if speeds.pairs >= FEWEST_PAIRS and (speeds.median_error or 0.0) > MOST_SPEED_ERROR:
        found.append(
            f"the speed table is off by {speeds.median_error:.0%} where jobs ran on two GPU models: believe no line "
            "but 'same models'"
        )
    unfinished = jobs.running_at_end + jobs.waiting_at_end
    if unfinished > MOST_UNFINISHED * (unfinished + jobs.compared):
        found.append(f"{unfinished} jobs had not ended, against {jobs.compared} that had: watch longer")
    lost = sum(count for why, count in jobs.set_aside.items() if why.startswith(("ran ", "can never")))
    if lost > MOST_SET_ASIDE * (lost + jobs.compared):
        found.append(f"{lost} jobs that took room could not be replayed")
    if record.unwatched_s > MOST_UNWATCHED * (record.end_s - record.begin_s):
        found.append(f"nobody watched for {record.unwatched_s / 3600:.1f} h of it")
    return found
