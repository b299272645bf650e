"""The report of a shadow: calibration, policies against what happened, jobs that change, doubts."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from adlro.backends.shadow.priorities import WeightEffect, weight_effect
from adlro.backends.shadow.record import Record
from adlro.backends.shadow.replay import (
    FEWEST_JOBS,
    FEWEST_PAIRS,
    FEWEST_RUNS,
    HAPPENED,
    JOBS_IN_BLOCK,
    MOST_ERROR,
    MOST_OFF,
    MOST_REPLAY_BLOCKS,
    MOST_SET_ASIDE,
    MOST_SPEED_ERROR,
    MOST_UNFINISHED,
    MOST_UNWATCHED,
    NOT_MODELLED,
    OFF_S,
    SHORT_S,
    SHOWN,
    UNIFORM_REMARK,
    Agreement,
    OnStep,
    ReplayTimes,
    happened,
    in_system,
    under,
)
from adlro.backends.shadow.sizes import ResizeEffect, resize_effect
from adlro.backends.shadow.stops import StopEffect, stop_effect
from adlro.backends.shadow.tables import SHORTEST_RUN_S, Prepared, prepared
from adlro.catalogue.speeds import UNKNOWN_FAMILY
from adlro.core.policy import Policy
from adlro.core.ports import JobState
from adlro.core.records import CPU_ONLY
from adlro.core.tables import NOBODY, Floats
from adlro.decide.catalogue import find_policy
from adlro.decide.stops import without_stops
from adlro.measure.statistics import against
from adlro.simulation.simulator import BY_PRIORITY, SimulationSettings, counts_by_priority


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of jobs of each kind."""

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
    """What became of our planned starts while the shadow ran beside the cluster."""

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
    """The result of a shadow."""

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
    weights: str  # what jobs count by
    stopping: StopEffect | None  # what stopping jobs would have brought; None if the policy stops none
    resizing: ResizeEffect | None  # what other numbers of GPUs would have brought; None if the policy resizes none
    weighing: WeightEffect | None  # what counting by priority would have brought; None if all jobs count the same
    not_modelled: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]  # reasons not to trust the comparison

    @property
    def is_trusted(self) -> bool:
        """Whether the comparison can be trusted, apart from what is not modelled."""
        return not self.doubts

    def as_json(self) -> dict[str, Any]:
        """The report in the form that --json promises."""
        return asdict(self) | {"trusted": self.is_trusted}


def replay_report(
    record: Record,
    policy: str = "adlro",
    others: Sequence[str] = ("fcfs-first-fit", "fcfs", "fcfs-easy"),
    estimates: str = "predicted",
    on_step: OnStep = lambda what, done: None,
    weights: str = SimulationSettings().weights,
) -> Report:
    """Replay a record and sum up. `weights` is what jobs count by, for the policies that know weights."""
    asked = find_policy(policy)
    wanted = [asked, *(find_policy(name) for name in dict.fromkeys(others) if name != policy)]
    on_step("as it happened", 0)
    made = prepared(record, estimates)
    truth, agreement = happened(made, asked, weights)
    times: dict[str, ReplayTimes] = {HAPPENED: truth}
    for done, each in enumerate(wanted, 1):
        on_step(each.name, done)
        times[each.name] = under(made, each, weights)
    without, done = without_stops(asked), len(wanted)
    if asked.preemptive:
        on_step(without.name, done := done + 1)
        times[without.name] = under(made, without, weights)
    fixed, equal = f"{policy}, same sizes", f"{policy}, equal weights"
    if asked.resizes:
        on_step(fixed, done := done + 1)
        add_other(times, fixed, made, prepared(record, estimates, same_sizes=True), asked, weights)
    is_weighed = counts_by_priority(made.view, weights)
    if is_weighed:
        on_step(equal, done := done + 1)
        times[equal] = under(made, asked)
    on_step("on the same models", done + 1)
    add_other(times, f"{policy}, same models", made, prepared(record, estimates, same_models=True), asked, weights)
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
        stopping=stop_effect(made, policy, times[policy], times[without.name], over, SimulationSettings().restart_s)
        if asked.preemptive
        else None,
        weights=weights,
        resizing=resize_effect(made, policy, times[policy], times[fixed]) if fixed in times else None,
        weighing=weight_effect(made, policy, truth, times[equal], times[policy]) if is_weighed else None,
        not_modelled=NOT_MODELLED,
        notes=(*record.notes, *remarks(made, weights)),
        doubts=tuple(doubts(record, counted, calibration, speeds)),
    )


def add_other(
    times: dict[str, ReplayTimes], name: str, made: Prepared, other: Prepared, asked: Policy, weights: str
) -> None:
    """Add the replay of the same jobs with other requests, unless one of them cannot be replayed so."""
    place = {(job.id, job.job.submit_s): j for j, job in enumerate(other.live)}
    order = [place.get((job.id, job.job.submit_s), NOBODY) for job in made.live]
    if NOBODY not in order:
        times[name] = under(other, asked, weights).of(order)


def remarks(made: Prepared, weights: str) -> list[str]:
    """What the record cannot tell, in words."""
    found = [UNIFORM_REMARK] if knows_no_speeds(made) else []
    if weights == BY_PRIORITY and not counts_by_priority(made.view, weights):
        found.append("all jobs of the record have the same priority: weights change nothing")
    return found


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
    """Compare the replay of what happened with what happened."""
    if not len(real):
        return Calibration(math.nan, math.nan, math.nan, 0, math.nan)
    off = np.abs(replayed - real) > np.maximum(MOST_OFF * real, OFF_S)
    told, was = float(replayed.mean()), float(real.mean())
    return Calibration(was, told, told / was - 1 if was else 0.0, int(np.count_nonzero(off)), float(np.median(runtime)))


def blocks_of(jobs: int) -> int:
    """The number of blocks for this many jobs; 0 if they are too few for an interval."""
    return 0 if jobs < 2 * JOBS_IN_BLOCK else min(MOST_REPLAY_BLOCKS, jobs // JOBS_IN_BLOCK)


def lines_of(made: Prepared, times: Mapping[str, ReplayTimes], over: npt.NDArray[np.intp]) -> tuple[Line, ...]:
    """A line for each policy; the first line is what happened."""
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
                late=int(np.count_nonzero(each.finish[over] > end + SHORTEST_RUN_S)),
            )
        )
    return tuple(lines)


def changed_jobs(made: Prepared, over: npt.NDArray[np.intp], was: ReplayTimes, would: ReplayTimes) -> dict[str, Any]:
    """The jobs with the largest changes."""
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
            is_late=bool(would.finish[j] > end + SHORTEST_RUN_S),
        )

    return {
        "gain": tuple(job(int(i)) for i in order[:SHOWN] if difference[i] < -SHORTEST_RUN_S),
        "lose": tuple(job(int(i)) for i in order[::-1][:SHOWN] if difference[i] > SHORTEST_RUN_S),
    }


def affected_users(made: Prepared, was: ReplayTimes, would: ReplayTimes) -> tuple[Affected, ...]:
    """All users, from the largest gain to the largest loss."""
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
    """Compare the speed table with jobs of one user, name and size that ran on two models."""
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
    """What became of our planned starts; None where there can be none."""
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
    return len(models) > 1 and set(made.jobs.families) == {UNKNOWN_FAMILY}


def doubts(record: Record, jobs: Counted, calibration: Calibration, speeds: SpeedCheck) -> list[str]:
    """Reasons not to trust the comparison, in words."""
    found = []
    if jobs.compared < FEWEST_JOBS:
        found.append(f"only {jobs.compared} jobs started and ended within it; at least {FEWEST_JOBS} are needed")
    if not abs(calibration.error) <= MOST_ERROR:
        found.append(
            f"the replay of what happened does not match it: its mean JCT is off by {calibration.error:+.1%}, "
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
