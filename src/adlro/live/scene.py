"""A snapshot as the tables that policies see: the same rules, policies and engine decide live as in the simulator.

A scene is one snapshot as tables: running jobs stand where they stand, waiting ones are in the queue in the order of
their first submission, and the truth is made of estimates. Times in it are seconds since the first submission that is
still there (`epoch_s`), as in a run that began then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Any, Final, cast, final

import numpy as np
import numpy.typing as npt

from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import speed_of
from adlro.core.compiled import compiled, compiled_alone
from adlro.core.engine import LIVE, PROGRESS, Truth, rise, set_end
from adlro.core.errors import CatalogueError
from adlro.core.jobs import JobNames, job_rows, wrong_with
from adlro.core.policy import Policy
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Part, Snapshot
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Job, Placing, Speed, SpeedOf
from adlro.core.rules import (
    add_free,
    count_bits,
    largest_open_share,
    note_release,
    portion,
    refresh,
    shared_gpu,
    work_done,
    work_left,
)
from adlro.core.tables import (
    DISTURBANCE,
    EVENT,
    FOREVER,
    JOB,
    MANY_STARTS,
    NOBODY,
    QUEUED,
    REFUSED,
    RUNNING,
    Floats,
    Ints,
    Jobs,
    Table,
    View,
    records,
)
from adlro.normalise.pack import Plan, mib, pack, plan_cluster
from adlro.predict.following import TRAIT, text_hash, tokens_of

UNKNOWN_FAMILY: Final = "uniform"
"""The family whose speeds a job gets whose own family is not in the catalogue."""

SPARE_ROWS: Final = 1024
"""Rows of jobs that are gone are kept until there are more of them than of live jobs, and than this."""


Masks = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Corrections:
    """What measured speeds say about expected ones: factors, 1 where nothing is known."""

    families: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by (family, model); "": every family
    gpus: Mapping[tuple[str, int], float] = field(default_factory=dict)  # by node and number on the node
    sites: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by node and model: all such GPUs there

    def of(self, family: str, model: str) -> float:
        """The factor of a family on a model."""
        if not self.families:
            return 1.0
        return self.families.get(("", model), 1.0) * self.families.get((family, model), 1.0)

    def by_node(self, cluster: Cluster) -> dict[str, tuple[float, ...]]:
        """For each node with a factor, those of all its GPUs in their order."""
        named = {node for node, _ in self.gpus} | {node for node, _ in self.sites}
        found = {}
        for node in cluster.nodes:
            if node.name in named:
                models = [group.model for group in node.gpus for _ in range(group.count)]
                found[node.name] = tuple(self.of_gpu(node.name, model, number) for number, model in enumerate(models))
        return found

    def of_gpu(self, node: str, model: str, number: int) -> float:
        """The factor of one GPU."""
        return self.gpus.get((node, number), 1.0) * self.sites.get((node, model), 1.0)

    def of_part(self, part: Part) -> float:
        """The factor of the slowest GPU of a part."""
        if not part.indices:
            return self.sites.get((part.node, part.model), 1.0)
        return min(self.of_gpu(part.node, part.model, number) for number in part.indices)


@dataclass(frozen=True, slots=True)
class Carried:
    """What an earlier stretch of a job left behind: work that was kept, and seconds for which it held GPUs."""

    saved: float = 0.0
    held_s: float = 0.0


Predict = Callable[[Table, Table, Floats], Floats]
"""`predict(traits, jobs, scale)`: p10, p50 and p90 of the work of each job [J, 3], in GPU-seconds on the reference
model. `scale` is how much faster than the reference model one GPU may be for the job, at least 1."""


Remind = Callable[[View, Sequence[str], Sequence[tuple[str, str]], float], None]
"""`remind(view, users, groups, time_s)`: write down in the view what users had and how long past jobs of a user and
name were, for policies that look at it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One snapshot as tables. The view is never changed: who decides or plays forward takes a copy."""

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
    notes: tuple[str, ...] = ()  # what could not be taken as it was said
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
        """GPUs of a site by their mask; which of them is said only where that is known."""
        site = self.plan.sites[s]
        node = self.plan.cluster.nodes[int(site.node)].name
        if gpus == 0:
            return Part(node, CPU_ONLY, 0)
        first = self.first_on_node(s)
        numbers = tuple(first + g for g in range(int(site.gpus)) if mask >> g & 1)
        return Part(node, self.plan.models[int(site.model)], len(numbers), numbers if self.exact[s] else ())

    def first_on_node(self, s: int) -> int:
        """The number that a site's first GPU has on its node."""
        site = self.plan.sites[s]
        return int(site.first_gpu - self.plan.sites[self.plan.nodes[int(site.node)].first_site].first_gpu)


# ---- putting jobs where they stand -------------------------------------------------------------------------------


@compiled
def hold_share(view: View, j: int, s: int, mask: int) -> int:
    """Hold a share of the GPU that the mask names, or of the one that the rules would take; 0 if no GPU has it."""
    job = view.jobs[j]
    site = view.sites[s]
    chosen = NOBODY
    for g in range(site.gpus):
        if mask >> g & 1 and view.gpus[site.first_gpu + g].free_share >= job.share:
            chosen = g
    if chosen == NOBODY:
        chosen = shared_gpu(view, j, s)
    for g in range(site.gpus):
        if chosen == NOBODY and site.free_mask >> g & 1:
            chosen = g
    if chosen == NOBODY:
        return 0
    if site.free_mask >> chosen & 1:
        site.free_mask &= ~(1 << chosen)
        add_free(view, s, -1)
    gpu = view.gpus[site.first_gpu + chosen]
    gpu.free_share -= job.share
    gpu.free_memory -= job.gpu_memory
    site.free_share -= job.share
    site.open_share = largest_open_share(view, s)
    return 1 << chosen


@compiled
def hold_gpus(view: View, s: int, mask: int, count: int) -> int:
    """Hold these GPUs as far as they are free, and others in their place; those that were there to hold."""
    site = view.sites[s]
    taken = mask & site.free_mask
    missing = count - count_bits(taken)
    for g in range(site.gpus):
        if missing > 0 and (site.free_mask & ~taken) >> g & 1:
            taken |= 1 << g
            missing -= 1
    for g in range(site.gpus):
        if taken >> g & 1:
            view.gpus[site.first_gpu + g].free_share = 0
    held = count_bits(taken)
    site.free_mask &= ~taken
    site.free_share -= held * WHOLE_GPU
    add_free(view, s, -held)
    return taken


@compiled_alone
def stand(view: View, rows: Ints, firsts: Ints, sites: Ints, masks: Masks, counts: Ints, masked: bool) -> None:
    """Let jobs hold their parts: those whose GPUs are all named if `masked`, else the others.

    The parts of row r are those from firsts[r] to the one before firsts[r + 1]. They are taken as `rules.release` gives
    them back. A job on a share of a GPU that nobody has is left out: its run keeps no site.
    """
    clock = view.clock[0]
    for r in range(len(rows)):
        named = True
        for i in range(firsts[r], firsts[r + 1]):
            named = named and (counts[i] == 0 or masks[i] != 0)
        if named != masked:
            continue
        j = rows[r]
        job = view.jobs[j]
        run = view.runs[j]
        alone = firsts[r + 1] - firsts[r] == 1 and view.width[job.kind, view.sites[sites[firsts[r]]].form] == 1
        tail = NOBODY
        for i in range(firsts[r], firsts[r + 1]):
            s = sites[i]
            node = view.nodes[view.sites[s].node]
            mask = np.int64(0)
            if job.share < WHOLE_GPU:
                mask = np.int64(hold_share(view, j, s, masks[i]))
                if mask == 0:
                    continue
            elif counts[i] > 0:
                mask = np.int64(hold_gpus(view, s, masks[i], counts[i]))
            if alone or job.gpus == 0:
                node.free_cpus -= job.cpus
                node.free_memory -= job.memory
            else:
                held = count_bits(mask)  # type: ignore[arg-type]
                node.free_cpus -= portion(job.cpus, held, job.gpus)
                node.free_memory -= portion(job.memory, held, job.gpus)
            node.jobs += 1
            if run.site == NOBODY:
                run.site = s
                run.mask = mask
            elif clock.free_part != NOBODY:
                p = clock.free_part
                clock.free_part = view.parts[p].next
                view.parts[p].site = s
                view.parts[p].mask = mask
                view.parts[p].next = NOBODY
                if tail == NOBODY:
                    run.parts = p
                else:
                    view.parts[tail].next = p
                tail = p
            refresh(view, view.sites[s].node)
        if run.site != NOBODY:
            run.state = RUNNING
            view.running[clock.running] = j
            clock.running += 1


@compiled_alone
def close_nodes(view: View, nodes: Ints) -> None:
    """Let nodes take no more jobs; what runs there goes on."""
    for n in nodes:
        view.nodes[n].up = 0
        refresh(view, n)


@compiled_alone
def open_nodes(view: View, nodes: Ints) -> None:
    """Let nodes take jobs again."""
    for n in nodes:
        view.nodes[n].up = 1
        note_release(view, n)
        refresh(view, n)


# ---- copies to decide and to play forward on ---------------------------------------------------------------------


def copied(view: View) -> View:
    """A view that may be changed; what no run ever changes is shared."""
    changing = (
        "runs", "sites", "nodes", "gpus", "forms", "pools", "parts", "users", "groups", "open", "clock", "queue",
        "running", "released", "tried", "idle", "spare", "home", "mix",
    )  # fmt: skip
    return view._replace(**{name: getattr(view, name).copy() for name in changing})


def truth_of(view: View, work: Floats, preemptive: bool, events: int) -> Truth:
    """What will come true in this view: its running jobs end when they have done this work."""
    count = len(view.jobs)
    truth = Truth(
        work=work,
        live=records(LIVE, count + 1),
        heap=np.zeros(count + 1, np.int32),
        factor=np.ones(max(1, len(view.gpus))),
        disturbances=records(DISTURBANCE, 0),
        events=records(EVENT, events),
        progress=records(PROGRESS, 1),
    )
    progress = truth.progress[0]
    progress.free_slot = NOBODY
    progress.asked_when_none_waits = preemptive
    progress.deciding = 1
    set_ends(view, truth)
    return truth


@compiled_alone
def set_ends(view: View, truth: Truth) -> None:
    """Know when each running job ends."""
    progress = truth.progress[0]
    for i in range(view.clock[0].running):
        j = view.running[i]
        view.runs[j].slot = i
        live = truth.live[i]
        live.job = j
        live.place = i
        set_end(view, truth, j)
        truth.heap[i] = i
        live.heap = i
        progress.ending += 1
        rise(truth, i)
    progress.slots = view.clock[0].running


@compiled_alone
def expected_work(view: View, work: Floats, done: Floats) -> None:
    """Of each job, the work that it is expected to come to, and what of it is done now."""
    for j in range(len(view.jobs)):
        done[j] = work_done(view, j)
        work[j] = done[j] + work_left(view, j)


def log_length(view: View) -> int:
    """Events for which a log needs room, so that the engine does not stop at once."""
    return len(view.jobs) + 3 * len(view.sites) + 4096


def prepare(view: View, policy: Policy, seed: int = 0) -> None:
    """Give a policy what it needs in a view, as the simulator does."""
    view.clock[0].random = seed * 7919 % 2147483646 + 1
    if policy.prepare is not None:
        policy.prepare(view)


# ---- the scenes --------------------------------------------------------------------------------------------------


@final
class Scenes:
    """Makes scenes from snapshots, and keeps between them what does not change: rows of jobs, the plan, rates."""

    def __init__(self, speed: SpeedOf = speed_of, restart_s: float = 30.0) -> None:
        self._speed = speed
        self._restart_s = restart_s
        self._lock = Lock()
        self._forget()
        self._plan: Plan | None = None
        self._planned: tuple[Cluster, Corrections] | None = None
        self._site_of: dict[tuple[str, str], int] = {}
        self._first_of: dict[tuple[str, str], int] = {}

    def _forget(self) -> None:
        """Begin anew with the rows of jobs."""
        self._row: dict[str, int] = {}
        self._records: list[Job] = []
        self._table = np.zeros(SPARE_ROWS, JOB)
        self._traits = np.zeros(SPARE_ROWS, TRAIT)
        self._names = JobNames()

    def scene(
        self,
        snapshot: Snapshot,
        predict: Predict,
        submitted: Mapping[str, float] | None = None,
        corrections: Corrections = Corrections(),  # noqa: B008  (frozen)
        carried: Mapping[str, Carried] | None = None,
        coming: bool = False,
        remind: Remind | None = None,
    ) -> Scene:
        """The tables of a snapshot. `submitted` has first submissions where they are known better than the back end.

        With `coming`, jobs that are submitted after the snapshot come then; else they count as submitted now.
        """
        with self._lock:
            scene = self._scene(snapshot, predict, submitted or {}, corrections, carried or {}, coming)
            if remind is not None:
                remind(scene.view, self._names.users.things, self._names.groups.things, snapshot.time_s)
            return scene

    def _scene(
        self,
        snapshot: Snapshot,
        predict: Predict,
        submitted: Mapping[str, float],
        corrections: Corrections,
        carried: Mapping[str, Carried],
        coming: bool,
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
        epoch_s = float(min(given[0], snapshot.time_s)) if len(live) else snapshot.time_s
        rows = rows[order]
        table = cast(Table, self._table[rows].view(np.recarray))
        table.submit = given - epoch_s
        traits = cast(Table, self._traits[rows].view(np.recarray))
        jobs = self._names.jobs(table, np.zeros(len(live)))
        view = pack(plan, jobs, corrected(self._speed, corrections))
        view.clock[0].now = snapshot.time_s - epoch_s
        view.clock[0].restart = self._restart_s
        view.clock[0].wake = FOREVER
        units = np.where(table.gpus > 0, table.gpus * (table.share / WHOLE_GPU), 1.0)
        scale = np.maximum(1.0, np.round(np.maximum(view.fastest[table.demand], 0.0) / units, 1))
        predicted = predict(traits, table, scale)
        table.estimate = predicted[:, 1]
        view, exact = self._place(snapshot, plan, view, live, carried, epoch_s, notes)
        self._queue(view, live, given, snapshot.time_s)
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
        plan = plan_cluster(cluster, corrections.by_node(cluster))
        self._site_of, self._first_of = {}, {}
        for s, site in enumerate(plan.sites):
            node = plan.nodes[site.node]
            key = (cluster.nodes[site.node].name, plan.models[site.model])
            self._site_of.setdefault(key, s)
            self._site_of.setdefault((key[0], CPU_ONLY), s)
            self._first_of.setdefault(key, int(site.first_gpu - plan.sites[node.first_site].first_gpu))
        if known is None or known[0].models != cluster.models:
            self._forget()  # allowed models are called as this cluster calls them
        self._plan, self._planned = plan, (cluster, corrections)
        return plan

    def _known(self, snapshot: Snapshot, notes: list[str]) -> tuple[list[LiveJob], Ints]:
        """The jobs that wait or run, and their rows; those that no cluster could mean are left out, with a note."""
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
        runs, gpus_at = view.runs.view(np.ndarray), plan.sites["gpus"].tolist()
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
                s = self._site_of.get((part.node, part.model))
                if s is None:
                    notes.append(f"job {job.id} stands on {part.node} ({part.model}), which the cluster does not have")
                    continue
                first = self._first_of.get((part.node, part.model), 0)
                mask = 0
                for number in part.indices:
                    if 0 <= number - first < gpus_at[s]:
                        mask |= 1 << (number - first)
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
            since[j] = started + (self._restart_s if begun[j] > 1 else 0.0)
        if not rows:
            return view, exact
        placed = np.array(rows, np.int32)
        at = np.array(sites, np.int32)
        view = able_there(view, placed, at[np.array(firsts[:-1])])
        places = (
            placed, np.array(firsts, np.int32), at, np.array(masks, np.int64), np.array(counts, np.int32),
        )  # fmt: skip
        stand(view, *places, True)
        stand(view, *places, False)
        for j in placed[view.runs.site[placed] == NOBODY]:
            notes.append(f"job {live[j].id} holds a share of a GPU that others hold already")
        return view, exact

    def _queue(self, view: View, live: Sequence[LiveJob], submit_s: Floats, now_s: float) -> None:
        """Put the waiting jobs that are ours to place in the queue."""
        waits = np.array([job.state is JobState.WAITING and job.managed for job in live], np.bool_)
        there = submit_s <= now_s
        waiting = np.flatnonzero(waits & there & (view.runs.state != REFUSED)).astype(np.int32)
        view.runs.state[waiting] = QUEUED
        view.queue[: len(waiting)] = waiting
        view.clock[0].queued = len(waiting)
        view.clock[0].arrived = int(np.count_nonzero(there))


def by_node(job: LiveJob) -> Iterator[LiveJob]:
    """A job; one without GPUs that stands on several nodes, which the rules do not know, as one job on each of them."""
    if job.job.gpus or len(job.parts) < 2 or job.state not in PLACES:
        yield job
        return
    share = 1.0 / len(job.parts)
    each = replace(job.job, cpus=job.job.cpus * share, memory_gb=job.job.memory_gb * share)
    for number, part in enumerate(job.parts):
        yield replace(job, id=f"{job.id}@{part.node}" if number else job.id, job=each, parts=(part,))


def able_there(view: View, placed: Ints, at: Ints) -> View:
    """The view with a rate for every job where it stands, also where our rules would never have let it start."""
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


def corrected(speed: SpeedOf, corrections: Corrections) -> SpeedOf:
    """Speeds as they were measured to be; a family that the catalogue does not know runs alike everywhere."""

    def speed_here(family: str, at: Placing) -> Speed:
        try:
            found = speed(family, at)
        except CatalogueError:
            found = speed(UNKNOWN_FAMILY, at)
        factor = corrections.of(family, at.model.name) if at.model is not None else 1.0
        return found if factor == 1.0 else Speed(found.value * factor, found.source, found.detail)

    return speed_here


def model_name(word: str, cluster: Cluster) -> str:
    """A GPU model as the cluster calls it; a word that it does not know stays as it is."""
    if word in cluster.models:
        return word
    try:
        return find_gpu(word, cluster.models).name
    except CatalogueError:
        return word


def same_gpus(one: Corrections, other: Corrections) -> bool:
    """Whether they agree on every GPU."""
    return one.gpus == other.gpus and one.sites == other.sites


def trait_of(job: Job) -> tuple[Any, ...]:
    """What predictors see of a job: a row of TRAIT."""
    group, name, tokens = hashes(job.user, job.name)
    return (
        job.submit_s, FOREVER if job.limit_s is None else job.limit_s, one_hash(job.user), group, name,
        one_hash(job.family), one_hash("|".join(sorted(job.models))), job.gpus, round(job.cpus * 1000),
        mib(job.memory_gb), mib(job.gpu_memory_gb), job.priority, tokens,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def hashes(user: str, name: str) -> tuple[int, int, tuple[int, ...]]:
    """The numbers under which predictors know a user's job of this name: group, name and words."""
    return text_hash(f"{user}\0{name}"), text_hash(name), tuple(tokens_of(name))


@lru_cache(maxsize=65536)
def one_hash(text: str) -> int:
    """`text_hash`, remembered."""
    return text_hash(text)


def as_said(traits: Table, jobs: Table, scale: Floats) -> Floats:
    """What submitters say of the work, or ten minutes where they say nothing; without an interval."""
    units = np.where(jobs.gpus > 0, jobs.gpus * (jobs.share / WHOLE_GPU), 1.0)
    said = np.where(jobs.estimate > 0.0, jobs.estimate, 600.0 * units)
    return np.repeat(said[:, None], 3, axis=1)


def gpu_units(job: Job) -> float:
    """How many GPUs' worth of work a job does in a second on the reference model; 1 without GPUs."""
    return job.gpus * job.share / WHOLE_GPU if job.gpus else 1.0
