"""The record of a shadow as tables that can be played."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.backends.shadow.dry_run import could_start
from adlro.backends.shadow.record import Record
from adlro.catalogue.families import find_family
from adlro.catalogue.speeds import UNKNOWN_FAMILY, speed_of
from adlro.core.errors import CatalogueError, StoreError, UsageError
from adlro.core.plan import Plan, plan_cluster
from adlro.core.ports import ENDED, JobState, LiveJob
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Job
from adlro.core.tables import NOBODY, REFUSED, Floats, Ints, Jobs, View
from adlro.experiment.scenario import named_as_in
from adlro.normalise.pack import pack, pack_jobs
from adlro.predict.following import P50, as_they_came, traits_of
from adlro.predict.habits import Habits

SHORTEST_RUN_S: Final = 1e-3
KNOWN_LEAST: Final = 0.1
"""A job that has run longer than predicted is assumed to need this share of the prediction still."""

GOES_ON: Final = 1.5
"""A job that had not ended is assumed to run at least this many times as long as it had."""

ESTIMATES: Final = ("predicted", "limit", "oracle")

_Bools = npt.NDArray[np.bool_]
Sites = Mapping[tuple[str, str], int]


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
    def carried(self) -> _Bools:
        """The jobs that ran when the record begins: they take room, and are not compared. [J]"""
        return self.start == 0.0

    @property
    def compared(self) -> _Bools:
        """The jobs that started and ended within the record. [J]"""
        return (self.start > 0.0) & np.isfinite(self.end)


def prepared(
    record: Record, estimates: str = "predicted", same_models: bool = False, same_sizes: bool = False
) -> Prepared:
    """Pack a record.

    With `same_models` each job may run on nothing but the model that it ran on, with `same_sizes` with no other number
    of GPUs than it had.
    """
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
    if same_sizes:
        live = [replace(job, job=replace(job.job, sizes="")) for job in live]
    live, jobs, view, reshaped = _packed(plan, live, record.begin_s, sites, same_models, aside)
    made = Prepared(
        record=record,
        plan=plan,
        live=tuple(live),
        jobs=jobs,
        view=view,
        site=np.array([_home_of(plan, view, j, job, sites) for j, job in enumerate(live)], np.int32),
        start=np.maximum(since(record, [job.started_s for job in live]), 0.0),
        end=since(record, [job.ended_s for job in live]),
        submit=since(record, [job.job.submit_s for job in live]),
        reshaped=reshaped,
        set_aside=dict(aside),
    )
    set_work(made, estimates)
    return made


def since(record: Record, times: Sequence[float | None]) -> Floats:
    """Times from the beginning of the record; inf for moments that have not come."""
    return np.array([math.inf if time is None else time - record.begin_s for time in times], np.float64)


def unfit(job: LiveJob, record: Record, sites: Sites) -> str:
    """Why a job cannot be replayed; "" if it can."""
    if job.started_s is None:
        if job.state in ENDED:
            return "never started"
        return "" if job.state is not JobState.WAITING or could_start(job) else "wait for something else than room"
    if not job.parts:
        return "ran on unknown GPUs (a node that the cluster does not have, or one with several GPU models)"
    if any((part.node, part.model) not in sites for part in job.parts):
        return "ran on a node or GPU that the cluster does not have"
    if len({part.model for part in job.parts}) > 1:
        return "ran on two GPU models at once"
    if job.ended_s is not None and job.ended_s <= record.begin_s:
        return "had ended when the record begins"
    return "end before they start" if job.ended_s is not None and job.ended_s < job.started_s else ""


def _packed(
    plan: Plan, live: list[LiveJob], begin_s: float, sites: Sites, same_models: bool, aside: Counter[str]
) -> tuple[list[LiveJob], Jobs, View, int]:
    """The jobs as tables. A job that ran although our rules would refuse it asks for less, and is counted."""
    rows = [row_of(job, begin_s, same_models) for job in live]
    jobs, view, wrong = tabled(plan, rows, live, sites)
    reshaped = len(wrong)
    if wrong:
        for j in wrong:
            rows[j] = replace(
                rows[j], cpus=0.0, memory_gb=0.0, gpu_memory_gb=0.0, models=frozenset(), family=UNKNOWN_FAMILY
            )
        jobs, view, wrong = tabled(plan, rows, live, sites)
    if wrong:
        aside["can never run on this cluster"] += len(wrong)
        kept = [j for j in range(len(live)) if j not in set(wrong)]
        rows, live = [rows[j] for j in kept], [live[j] for j in kept]
        jobs, view, _ = tabled(plan, rows, live, sites)
    return live, jobs, view, reshaped


def tabled(plan: Plan, rows: Sequence[Job], live: Sequence[LiveJob], sites: Sites) -> tuple[Jobs, View, list[int]]:
    """Jobs as tables, and the jobs that our rules would not run at all or not where they ran."""
    jobs = named_as_in(plan.cluster, pack_jobs(rows))
    view = pack(plan, jobs, speed_of)
    return jobs, view, [j for j, job in enumerate(live) if not runs_at_home(plan, view, j, job, sites)]


def row_of(job: LiveJob, begin_s: float, same_models: bool) -> Job:
    """What was requested, replaced by what was given where that is more certain."""
    told = job.job
    gpus = sum(part.count for part in job.parts) if job.parts else told.gpus
    ran_on = frozenset(part.model for part in job.parts if part.count)
    models = told.models | ran_on if told.models else told.models
    try:
        family = find_family(told.family).name
    except CatalogueError:
        family = UNKNOWN_FAMILY
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
    home = _home_of(plan, view, j, job, sites)
    return home == NOBODY or bool(view.rate[view.jobs[j].kind, plan.sites[home].form] > 0.0)


def _home_of(plan: Plan, view: View, j: int, job: LiveJob, sites: Sites) -> int:
    """The site where a job ran; for a gang over several nodes the site that stands for all of them."""
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
    seconds = np.maximum(length * speed, SHORTEST_RUN_S)  # [J] on the reference model
    wait = np.where(is_over, made.end - table["submit"] - seconds, math.inf)
    predicted = Habits.new().follow(traits_of(made.jobs), seconds, as_they_came(table["submit"], seconds, wait))[:, P50]
    limit = np.where(np.isfinite(table["limit"]), table["limit"], math.inf)
    expected = np.minimum(np.maximum(predicted, GOES_ON * seconds), np.maximum(limit * speed, seconds))
    seconds = np.where(is_over, seconds, expected)
    gone = np.where(made.carried, np.maximum(0.0, -began) * speed, 0.0)
    made.jobs.work[:] = np.maximum(seconds - gone, SHORTEST_RUN_S) * units
    told = {"oracle": seconds, "predicted": predicted, "limit": np.where(np.isfinite(limit), limit, predicted)}[
        estimates
    ]
    table["estimate"] = np.maximum(told - gone, KNOWN_LEAST * told) * units
