"""A snapshot as the tables that policies see: the same rules, policies and engine decide live as in the simulator.

A scene is one snapshot as tables: running jobs stand where they stand, waiting ones are in the queue in the order of
their first submission, and the truth is made of estimates. Times in it are seconds since the first submission in
the first scene (`epoch_s`), as in a run that began then.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, cast, final

import numpy as np
import numpy.typing as npt

from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import speed_of
from adlro.core.compiled import compiled_alone
from adlro.core.errors import CatalogueError
from adlro.core.jobs import JobNames, job_rows, wrong_with
from adlro.core.occupancy import Places, close_nodes, on_each_node, stand, take_sizes
from adlro.core.plan import Plan, gpu_numbers, is_paced, plan_cluster
from adlro.core.policy import Policy
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Part, Snapshot
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Job, SpeedOf
from adlro.core.rules import enqueue_all, renew_paces, work_done, work_left
from adlro.core.tables import (
    FOREVER,
    JOB,
    MANY_STARTS,
    NOBODY,
    REFUSED,
    Floats,
    Ints,
    Jobs,
    Table,
    View,
)
from adlro.decide.rules.baselines import write_mix
from adlro.live.corrections import Corrections, corrected, same_gpus
from adlro.live.gauges import set_gauges
from adlro.measure.metrics import weights_at
from adlro.normalise.pack import pack
from adlro.predict.following import TRAIT, trait_of
from adlro.simulation.simulator import BY_PRIORITY, SimulationSettings, counts_by_priority

SPARE_ROWS: Final = 1024
"""Rows of jobs that are gone are kept until they outnumber the live jobs and this number."""


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Carried:
    """What an earlier run of a job left: work that was kept, and seconds for which it held GPUs."""

    saved: float = 0.0
    held_s: float = 0.0


Believe = Callable[[Plan, Jobs, View, Sequence[Job], Corrections], View]
"""`believe(plan, jobs, known, records, corrections)`: the view with the rates that policies believe in."""


Predict = Callable[[Table, Table, Floats], Floats]
"""`predict(traits, jobs, scale)`: p10, p50 and p90 of the work of each job [J, 3], in GPU-seconds on the reference
model. `scale` is how much faster than the reference model one GPU may be for the job, at least 1."""


TellWork = Callable[[View, Table, Floats, Floats], None]
"""`tell(view, traits, said, middle)`: write down in the view what policies are told of the work of each job; `said` is
what its submitter says (0: nothing), `middle` the median of its work as predicted."""


Remind = Callable[[View, Sequence[str], Sequence[tuple[str, str]], float], None]
"""`remind(view, users, groups, time_s)`: write down in the view what users had and how long past jobs of a user and
name were, for policies that look at it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One snapshot as tables. The view is never changed: deciding or playing forward uses a copy."""

    snapshot: Snapshot
    epoch_s: float  # seconds since 1970 at which the view's time is 0
    plan: Plan
    jobs: Jobs
    view: View
    traits: Table  # TRAIT [J]
    live: tuple[LiveJob, ...]  # [J]
    index: Mapping[str, int]  # job id -> row
    predicted: Floats  # [J, 3] p10, p50 and p90 of the work
    exact: Flags  # [S] which GPUs of the site are held is known for sure
    notes: tuple[str, ...] = ()  # what could not be taken over unchanged
    kept: Mapping[int, int] = field(default_factory=dict)  # node -> the waiting job that it is kept for

    def time_s(self, time: float) -> float:
        """A time of the view in seconds since 1970."""
        return self.epoch_s + time

    def parts_of(self, view: View, j: int) -> tuple[Part, ...]:
        """Where a job stands in a view of this scene."""
        run = view.runs[j]
        if run.site == NOBODY:
            return ()
        found = [self.part(int(run.site), int(run.mask), int(view.jobs[j].gpus))]
        p = int(run.parts)
        while p != NOBODY:
            part = view.parts[p]
            found.append(self.part(int(part.site), int(part.mask), int(view.jobs[j].gpus)))
            p = int(part.next)
        return tuple(found)

    def part(self, s: int, mask: int, gpus: int) -> Part:
        """GPUs of a site by their mask; GPU numbers are given only where they are known."""
        site = self.plan.sites[s]
        node = self.plan.cluster.nodes[int(site.node)].name
        if gpus == 0:
            return Part(node, CPU_ONLY, 0)
        numbers = gpu_numbers(self.plan, s, mask)
        return Part(node, self.plan.models[int(site.model)], len(numbers), numbers if self.exact[s] else ())


# ---- playing forward ---------------------------------------------------------------------------------------------


@compiled_alone
def expected_work(view: View, work: Floats, done: Floats) -> None:
    """The expected work of each job, and how much of it is done now."""
    for j in range(len(view.jobs)):
        done[j] = work_done(view, j)
        work[j] = done[j] + work_left(view, j)


def log_length(view: View) -> int:
    """How many events the log needs room for, so that the engine does not stop at once."""
    return len(view.jobs) + 3 * len(view.sites) + 4096


def prepare_policy(view: View, policy: Policy, seed: int = 0) -> None:
    """Prepare a policy for a view, as the simulator does."""
    view.clock[0].random = seed * 7919 % 2147483646 + 1
    if policy.prepare is not None:
        policy.prepare(view)


# ---- the scenes --------------------------------------------------------------------------------------------------


@final
class Scenes:
    """Makes scenes from snapshots, and keeps between them what does not change: rows of jobs, the plan, rates.

    With `can_resize`, restartable jobs that name sizes may get another number of GPUs. A job that runs with one already
    has it in any case. With `places_gpus`, jobs get the fastest free GPUs of a site as measured, and policies see the
    pace of exactly these; without it the cluster chooses, and they see the mean time over all ways to choose. `weights`
    is what jobs count by.
    """

    def __init__(
        self,
        speed: SpeedOf = speed_of,
        restart_s: float = 30.0,
        believe: Believe | None = None,
        can_resize: bool = False,
        places_gpus: bool = False,
        weights: str = SimulationSettings().weights,
    ) -> None:
        self._speed, self._believe, self._can_resize = speed, believe, can_resize
        self._places_gpus, self._weights = places_gpus, weights
        self._restart_s = restart_s
        self._lock = Lock()
        self._epoch_s = FOREVER  # of the first scene; it never moves on, so that times mean the same in every turn
        self._forget()
        self._plan: Plan | None = None
        self._planned: tuple[Cluster, Corrections] | None = None
        self._places: Places | None = None

    def _forget(self) -> None:
        """Start again without rows of jobs."""
        self._row: dict[str, int] = {}
        self._records: list[Job] = []
        self._table = np.zeros(SPARE_ROWS, JOB)
        self._traits = np.zeros(SPARE_ROWS, TRAIT)
        self._names = JobNames()
        self._sizes: Counter[tuple[int, int]] = Counter()  # thousandths of GPUs and of cores of all jobs that had a row

    def scene(
        self,
        snapshot: Snapshot,
        predict: Predict,
        submitted: Mapping[str, float] | None = None,
        corrections: Corrections = Corrections(),  # noqa: B008  (frozen)
        carried: Mapping[str, Carried] | None = None,
        coming: bool = False,
        remind: Remind | None = None,
        tell: TellWork | None = None,
        restart_s: float | None = None,
    ) -> Scene:
        """The tables of a snapshot.

        `submitted` has first submissions that are known better than the back end knows them.

        With `coming`, jobs that are submitted after the snapshot arrive then; otherwise they count as submitted now.
        `restart_s` is what a stop and a restart cost from now on, where that is known better.
        """
        with self._lock:
            scene = self._scene(snapshot, predict, submitted or {}, corrections, carried or {}, coming, tell)
            if len(scene.view.shapes):
                fixed = [not (self._can_resize and job.job.restartable) for job in scene.live]
                scene.view.jobs.shapes[fixed] = 0
            if restart_s is not None:
                scene.view.clock[0].restart = restart_s
            if remind is not None:
                remind(scene.view, self._names.users.things, self._names.groups.things, snapshot.time_s)
            return scene

    def weights_of(self, jobs: Sequence[LiveJob]) -> Floats | None:
        """What each of these jobs counts; None if all count the same."""
        if self._weights != BY_PRIORITY:
            return None
        return weights_at(np.array([job.job.priority for job in jobs], np.float32))

    def _scene(
        self,
        snapshot: Snapshot,
        predict: Predict,
        submitted: Mapping[str, float],
        corrections: Corrections,
        carried: Mapping[str, Carried],
        coming: bool,
        tell: TellWork | None,
    ) -> Scene:
        plan = self._plan_of(snapshot.cluster, corrections)
        notes = list(snapshot.notes)
        if len(self._row) > 2 * len(snapshot.jobs) + SPARE_ROWS:
            self._forget()
        live, rows = self._known(snapshot, notes)
        given = np.array(
            [submitted.get(job.id, job.job.submit_s) if submitted else job.job.submit_s for job in live], np.float64
        )
        if not coming:
            np.minimum(given, snapshot.time_s, out=given)
        order = np.argsort(given, kind="stable")
        live = [live[i] for i in order]
        given = given[order]
        epoch_s = self._epoch_s = min(self._epoch_s, snapshot.time_s, *given[:1].tolist())
        rows = rows[order]
        table = cast(Table, self._table[rows].view(np.recarray))
        table.submit = given - epoch_s
        traits = cast(Table, self._traits[rows].view(np.recarray))
        jobs = self._names.jobs(table, np.zeros(len(live)))
        view = pack(plan, jobs, corrected(self._speed, corrections))
        if self._believe is not None:
            view = self._believe(plan, jobs, view, [job.job for job in live], corrections)
            table = view.jobs
            jobs = replace(jobs, table=table)
        if is_paced(plan):
            set_paces(view, plan, corrections)
            set_gauges(view, plan, corrections.figures)
        view.clock[0].now = snapshot.time_s - epoch_s
        view.clock[0].restart = self._restart_s
        view.clock[0].wake = FOREVER
        view.clock[0].weighted = counts_by_priority(view, self._weights)
        if self._sizes:
            sizes = sorted(self._sizes)
            write_mix(view, np.array(sizes, np.int64), np.array([self._sizes[size] for size in sizes], np.int64))
        units = np.where(table.gpus > 0, table.gpus * (table.share / WHOLE_GPU), 1.0)
        scale = np.maximum(1.0, np.round(np.maximum(view.fastest[table.demand], 0.0) / units, 1))
        predicted = predict(traits, table, scale)
        said = table.estimate.copy()
        table.estimate = predicted[:, 1]
        view, exact = self._place(snapshot, plan, view, live, carried, epoch_s, notes)
        if tell is not None:
            tell(view, traits, said, predicted[:, 1])
        self._queue(view, live, given, snapshot.time_s)
        if is_paced(plan):
            renew_paces(view)
        names = {node.name: n for n, node in enumerate(plan.cluster.nodes)}
        down = np.array([names[name] for name in snapshot.down if name in names], np.int32)
        close_nodes(view, down)
        return Scene(
            snapshot, epoch_s, plan, jobs, view, traits, tuple(live), {job.id: j for j, job in enumerate(live)},
            predicted, exact, tuple(notes),
        )  # fmt: skip

    def _plan_of(self, cluster: Cluster, corrections: Corrections) -> Plan:
        """The plan of the cluster; the same one as before if nothing changed."""
        known = self._planned
        if self._plan is not None and known is not None and same_gpus(corrections, known[1]):
            if cluster is known[0]:
                return self._plan
            if cluster == known[0]:
                self._planned = (cluster, corrections)
                return self._plan
        factors = corrections.by_node(cluster)
        paced = self._places_gpus and any(factor != 1.0 for of_node in factors.values() for factor in of_node)
        plan = plan_cluster(cluster, by_site=True) if paced else plan_cluster(cluster, factors)
        self._places = Places(plan)
        if known is None or known[0].models != cluster.models:
            self._forget()  # allowed models are called as this cluster calls them
        self._plan, self._planned = plan, (cluster, corrections)
        return plan

    def _known(self, snapshot: Snapshot, notes: list[str]) -> tuple[list[LiveJob], Ints]:
        """The waiting and running jobs with their rows; jobs that no cluster could run are left out, with a note."""
        live: list[LiveJob] = []
        new: dict[str, Job] = {}
        row_of, known = self._row, self._records
        unended = (job for job in snapshot.jobs if job.state not in ENDED)
        for job in (part for whole in unended for part in by_node(whole)):
            row = row_of.get(job.id)
            if row is None or (known[row] is not job.job and known[row] != job.job):
                if wrong := wrong_with(job.job):
                    notes.append(f"job {job.id} is left out: {wrong}")
                    continue
                new[job.id] = job.job
            live.append(job)
        if new:
            self._enter(new, snapshot.cluster)
        return live, np.array([row_of[job.id] for job in live], np.int32)

    def _enter(self, jobs: Mapping[str, Job], cluster: Cluster) -> None:
        """Give jobs their rows."""
        for id, job in jobs.items():
            row = self._row.setdefault(id, len(self._records))
            if row == len(self._records) and job.gpus:
                self._sizes[job.gpus * job.share, round(job.cpus * 1000)] += 1
            self._records[row : row + 1] = [job]
        rows = [self._row[id] for id in jobs]
        if (lacking := len(self._records) - len(self._table)) > 0:
            more = max(lacking, len(self._table))
            self._table = np.concatenate([self._table, np.zeros(more, JOB)])
            self._traits = np.concatenate([self._traits, np.zeros(more, TRAIT)])
        called = [
            replace(job, models=frozenset(model_name(name, cluster) for name in job.models)) if job.models else job
            for job in jobs.values()
        ]
        self._table[rows], _work = job_rows(called, self._names)
        for row, job in zip(rows, called, strict=True):
            self._traits[row] = trait_of(job)

    def _place(
        self,
        snapshot: Snapshot,
        plan: Plan,
        view: View,
        live: Sequence[LiveJob],
        carried: Mapping[str, Carried],
        epoch_s: float,
        notes: list[str],
    ) -> tuple[View, Flags]:
        """Put running and placed jobs where they stand; also, for each site, whether its GPUs are known for sure."""
        exact = np.ones(len(plan.sites), np.bool_)
        rows: list[int] = []
        firsts, masks, counts = [0], list[int](), list[int]()
        sites: list[int] = []
        now = float(view.clock[0].now)
        runs, places = view.runs.view(np.ndarray), self._places
        assert places is not None
        since, began, begun = runs["since"], runs["started"], runs["starts"]
        for j, job in enumerate(live):
            if carry := carried.get(job.id):
                runs["done"][j] = runs["saved"][j] = carry.saved
                runs["held"][j] = carry.held_s
            stands = job.state in PLACES
            if job.starts or stands:
                begun[j] = min(max(job.starts, 1 if stands else 0), MANY_STARTS)
            if not stands:
                continue
            before = len(sites)
            for part in job.parts:
                s = places.site_of(part)
                if s is None:
                    notes.append(f"job {job.id} stands on {part.node} ({part.model}), which the cluster does not have")
                    continue
                mask = places.mask_of(part, s)
                if part.count and not mask:
                    exact[s] = False
                sites.append(s)
                masks.append(mask)
                counts.append(part.count)
            if len(sites) == before:
                if not job.parts:
                    notes.append(f"job {job.id} runs, and where is not known")
                continue
            rows.append(j)
            firsts.append(len(sites))
            started = now if job.started_s is None else min(job.started_s - epoch_s, now)
            began[j] = started
            since[j] = started + start_cost_s(job, self._restart_s)
        if not rows:
            return view, exact
        placed = np.array(rows, np.int32)
        at = np.array(sites, np.int32)
        if len(view.shapes):
            take_sizes(view, placed, np.add.reduceat(np.array(counts, np.int32), firsts[:-1]))
        view = able_there(view, placed, at[np.array(firsts[:-1])])
        parts = (placed, np.array(firsts, np.int32), at, np.array(masks, np.int64), np.array(counts, np.int32))
        stand(view, *parts, True)
        stand(view, *parts, False)
        for j in placed[view.runs.site[placed] == NOBODY]:
            notes.append(f"job {live[j].id} holds a share of a GPU that others hold already")
        return view, exact

    def _queue(self, view: View, live: Sequence[LiveJob], submit_s: Floats, now_s: float) -> None:
        """Put the waiting jobs that are ours to place in the queue."""
        waits = np.array([job.state is JobState.WAITING and job.managed for job in live], np.bool_)
        there = submit_s <= now_s
        waiting = np.flatnonzero(waits & there & (view.runs.state != REFUSED)).astype(np.int32)
        enqueue_all(view, waiting)
        view.clock[0].arrived = int(np.count_nonzero(there))


def set_paces(view: View, plan: Plan, corrections: Corrections) -> None:
    """Write the measured pace of every GPU into the view."""
    known = corrections.by_node(plan.cluster)
    for s, site in enumerate(plan.sites):
        name = plan.cluster.nodes[int(site.node)].name
        if name in known:
            first = int(site.first_gpu)
            numbers = gpu_numbers(plan, s, (1 << int(site.gpus)) - 1)
            view.gpus.pace[first : first + len(numbers)] = [known[name][number] for number in numbers]
    view.clock[0].readings, view.sites.ranked = 1, NOBODY


def start_cost_s(job: LiveJob, restart_s: float) -> float:
    """The time that a job that runs needed for its latest start; `restart_s` if it does not say."""
    if job.starts <= 1:
        return job.job.start_s
    return restart_s if job.job.restart_s is None else job.job.restart_s


def by_node(job: LiveJob) -> Iterator[LiveJob]:
    """The job as one job for each node, if it uses several nodes without GPUs (the rules have no such jobs)."""
    if job.job.gpus or len(job.parts) < 2 or job.state not in PLACES:
        yield job
        return
    each = on_each_node(job.job, len(job.parts))
    for number, part in enumerate(job.parts):
        yield replace(job, id=f"{job.id}@{part.node}" if number else job.id, job=each, parts=(part,))


def able_there(view: View, placed: Ints, at: Ints) -> View:
    """The view with a rate for every job at its place, even where our rules would not have started it."""
    forms, kinds = view.sites.form[at], view.jobs.kind[placed]
    strange = view.rate[kinds, forms] <= 0.0
    if not strange.any():
        return view
    odd = placed[strange]
    units = np.unique(np.where(view.jobs.gpus[odd] > 0, view.jobs.gpus[odd] * view.jobs.share[odd] / WHOLE_GPU, 1.0))
    first = len(view.rate)
    for j in odd:
        job = view.jobs[j]
        unit = job.gpus * job.share / WHOLE_GPU if job.gpus else 1.0
        job.kind = first + int(np.searchsorted(units, unit))
    more = np.repeat(units[:, None], view.rate.shape[1], axis=1)
    return view._replace(
        rate=np.ascontiguousarray(np.vstack([view.rate, more])),
        width=np.ascontiguousarray(np.vstack([view.width, np.ones(more.shape, np.int32)])),
        home=np.ascontiguousarray(np.vstack([view.home, np.ones(more.shape, np.int32)])),
    )


def model_name(word: str, cluster: Cluster) -> str:
    """A GPU model as the cluster calls it; a word that it does not know stays as it is."""
    if word in cluster.models:
        return word
    try:
        return find_gpu(word, cluster.models).name
    except CatalogueError:
        return word


def gpu_units(job: Job) -> float:
    """How many GPUs' worth of work a job does in a second on the reference model; 1 without GPUs."""
    return job.gpus * job.share / WHOLE_GPU if job.gpus else 1.0
