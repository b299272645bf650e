"""Who holds what on a cluster, and what fits where, by name: the rules (`rules.py`) for callers without a View.

Back ends check each order with `Occupancy` before they carry it out. It keeps a View and asks the rules, so it never
accepts an order that the rules refuse. `stand` places the running jobs of a snapshot, for live views.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, final

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.plan import Plan, empty_view, fill_kind, gpu_numbers, plan_cluster
from adlro.core.ports import Part
from adlro.core.records import CPU_ONLY, MODELLED, WHOLE_GPU, Cluster, Job, Placing, Speed, SpeedOf
from adlro.core.rules import (
    count_bits,
    fits_at,
    gpus_to_take,
    hold_part,
    lowest_bits,
    lowest_number,
    note_release,
    pace_held,
    portion,
    refresh,
    release_part,
    shape_of_size,
    shared_gpu,
    take_shape,
)
from adlro.core.schema import fill_row
from adlro.core.tables import JOB, NOBODY, RUNNING, Ints, Masks, View, records

# ---- compiled: the rules applied to parts ----------------------------------------------------------------------


@compiled
def gpus_that_stand(view: View, j: int, s: int, count: int, mask: int) -> int:
    """The GPUs held by a job that already runs here: those of `mask` that are free, and other free ones for the rest.

    The cluster may have placed the job against our rules. 0 if no GPU has the job's share free.
    """
    job = view.jobs[j]
    site = view.sites[s]
    if job.share == WHOLE_GPU:
        taken = mask & site.free_mask
        others = site.free_mask & ~taken
        return taken | lowest_bits(others, min(count - count_bits(taken), count_bits(others)))
    if mask and view.gpus[site.first_gpu + lowest_number(mask)].free_share >= job.share:
        return mask
    if shared_gpu(view, j, s) == NOBODY and site.free_mask == 0:
        return 0
    return gpus_to_take(view, j, s, 1)


@compiled
def stand_at(view: View, j: int, s: int, count: int, mask: int, is_whole: bool) -> int:
    """Let a job hold one part; returns the GPUs held, as a mask.

    With `is_whole` the part is the whole job, with all its cores and memory. Returns NOBODY, and holds nothing, if the
    job needs a share that no GPU has free.
    """
    job = view.jobs[j]
    held = np.int64(0)
    if count > 0:
        held = np.int64(gpus_that_stand(view, j, s, count, mask))
        if held == 0 and job.share < WHOLE_GPU:
            return NOBODY
    if is_whole:
        hold_part(view, j, s, held, job.cpus, job.memory)  # type: ignore[arg-type]
    else:
        many = count_bits(held)  # type: ignore[arg-type]
        hold_part(view, j, s, held, portion(job.cpus, many, job.gpus), portion(job.memory, many, job.gpus))  # type: ignore[arg-type]
    return held  # type: ignore[return-value]


@compiled_alone
def stand(view: View, rows: Ints, firsts: Ints, sites: Ints, masks: Masks, counts: Ints, masked: bool) -> None:
    """Let running jobs hold their parts: with `masked` the jobs whose GPUs are all known, otherwise the others.

    The parts of row r are firsts[r] to firsts[r + 1] - 1. `rules.release` can release them. A job whose share fits on
    no GPU is skipped: its run gets no site.
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
            held = stand_at(view, j, sites[i], counts[i], masks[i], alone or job.gpus == 0)
            if held == NOBODY:
                continue
            if run.site == NOBODY:
                run.site = sites[i]
                run.mask = held
            elif clock.free_part != NOBODY:
                p = clock.free_part
                clock.free_part = view.parts[p].next
                view.parts[p].site = sites[i]
                view.parts[p].mask = held
                view.parts[p].next = NOBODY
                if tail == NOBODY:
                    run.parts = p
                else:
                    view.parts[tail].next = p
                tail = p
        if run.site != NOBODY:
            run.pace = pace_held(view, j)
            run.state = RUNNING
            view.running[clock.running] = j
            clock.running += 1


@compiled_alone
def take_sizes(view: View, rows: Ints, gpus: Ints) -> None:
    """Let jobs that run with another of their sizes than they asked for have that size."""
    for i in range(len(rows)):
        e = shape_of_size(view, rows[i], gpus[i])
        if e != NOBODY:
            take_shape(view, rows[i], e)


@compiled_alone
def close_nodes(view: View, nodes: Ints) -> None:
    """Close nodes to new jobs; running jobs continue."""
    for n in nodes:
        view.nodes[n].up = 0
        refresh(view, n)


@compiled_alone
def open_nodes(view: View, nodes: Ints) -> None:
    """Open nodes to new jobs again."""
    for n in nodes:
        view.nodes[n].up = 1
        note_release(view, n)
        refresh(view, n)


@compiled_alone
def may_start_at(view: View, sites: Ints, counts: Ints, masks: Masks) -> bool:
    """Whether job 0 may start on these parts. If so, each mask of 0 is replaced by the GPUs that it would take."""
    if not fits_at(view, 0, sites, counts, masks):
        return False
    for i in range(len(sites)):
        if masks[i] == 0 and counts[i] > 0:
            masks[i] = gpus_to_take(view, 0, sites[i], counts[i])
    return True


@compiled_alone
def hold_all(view: View, sites: Ints, counts: Ints, masks: Masks) -> None:
    """Let job 0 hold these parts (`stand_at`). `masks` is overwritten with the GPUs held, NOBODY if none."""
    for i in range(len(sites)):
        masks[i] = stand_at(view, 0, sites[i], counts[i], masks[i], counts[i] >= view.jobs[0].gpus)


@compiled_alone
def release_all(view: View, sites: Ints, counts: Ints, masks: Masks) -> None:
    """Release what `hold_all` let job 0 hold."""
    job = view.jobs[0]
    for i in range(len(sites)):
        if masks[i] == NOBODY:
            continue
        if counts[i] >= job.gpus:
            release_part(view, 0, sites[i], masks[i], job.cpus, job.memory)
        else:
            many = count_bits(masks[i])
            cpus, memory = portion(job.cpus, many, job.gpus), portion(job.memory, many, job.gpus)
            release_part(view, 0, sites[i], masks[i], cpus, memory)


# ---- names -------------------------------------------------------------------------------------------------------


@final
class Places:
    """The sites of a plan, by node name and model. A node numbers its GPUs through all its groups."""

    def __init__(self, plan: Plan) -> None:
        self._site: dict[tuple[str, str], int] = {}
        self._gpus: list[int] = plan.sites["gpus"].tolist()
        self._first: list[int] = []  # [S] number of the site's first GPU on its node
        names = [node.name for node in plan.cluster.nodes]
        for s, site in enumerate(plan.sites):
            self._site.setdefault((names[site.node], plan.models[site.model]), s)
            self._site.setdefault((names[site.node], CPU_ONLY), s)
            self._first.append(gpu_numbers(plan, s, 1)[0] if site.gpus else 0)

    def site_of(self, part: Part) -> int | None:
        """The site of a part, or None if the cluster does not have it."""
        return self._site.get((part.node, part.model))

    def mask_of(self, part: Part, s: int) -> int:
        """The GPUs of the site that the part names, one bit each. Numbers outside the site are ignored."""
        mask = 0
        for number in part.indices:
            if 0 <= number - self._first[s] < self._gpus[s]:
                mask |= 1 << (number - self._first[s])
        return mask


class Held(NamedTuple):
    """What a job holds: its parts as sites, counts and masks."""

    job: Job
    parts: tuple[Part, ...]
    sites: Ints
    counts: Ints
    masks: Masks


@dataclass(frozen=True, slots=True)
class JobKind:
    """How jobs of a kind run, by form: work per second and number of nodes."""

    rate: Any
    width: Any


def alike(family: str, at: Placing) -> Speed:
    """Every family runs equally fast on every GPU model: for callers that do not know the speeds."""
    return Speed(1.0, MODELLED)


MOST_KINDS: Final = 4096


@final
class Occupancy:
    """Who holds what on a cluster. Not thread-safe."""

    def __init__(self, cluster: Cluster, speed: SpeedOf = alike) -> None:
        self.cluster = cluster
        self._speed = speed
        self._plan = plan_cluster(cluster)
        self._places = Places(self._plan)
        self._number = {node.name: n for n, node in enumerate(cluster.nodes)}
        self._models = {name: model.words | {name.lower()} for name, model in cluster.models.items()}
        self._down: dict[str, str] = {}
        self._held: dict[str, Held] = {}
        self._on: dict[str, set[str]] = {node.name: set() for node in cluster.nodes}
        self._kinds: dict[Any, JobKind] = {}
        forms = len(self._plan.forms)
        self._view = empty_view(
            self._plan,
            records(JOB, 1),
            np.zeros((1, forms)),
            np.zeros((1, forms), np.int32),
            demands=1,
            spread=np.zeros(1, np.int32),
            home=np.ones((1, forms), np.int32),
        )

    # ---- what fits ---------------------------------------------------------------------------------------------

    def fit(self, job: Job, parts: tuple[Part, ...]) -> tuple[Part, ...] | str:
        """The parts with their GPUs chosen, or the reason why the job may not start there."""
        if wrong := self._malformed(job, parts):
            return wrong
        self._ask_for(job)
        sites, counts, masks = self._arrays(parts)
        if not may_start_at(self._view, sites, counts, masks):
            return self._why_not(job, parts)
        return tuple(
            replace(part, indices=gpu_numbers(self._plan, int(s), int(mask))) if part.count else part
            for part, s, mask in zip(parts, sites, masks, strict=True)
        )

    def rate(self, job: Job, parts: tuple[Part, ...]) -> float:
        """Work per second of the job there, without wear."""
        s = self._places.site_of(parts[0])
        return float(self._kind(job).rate[self._plan.sites[s].form]) if s is not None else 0.0

    # ---- who holds what ----------------------------------------------------------------------------------------

    @property
    def down(self) -> Mapping[str, str]:
        """The nodes that accept no jobs, with the reason."""
        return self._down

    def has_node(self, node: str) -> bool:
        """Whether the cluster has a node with this name."""
        return node in self._number

    def on(self, node: str) -> frozenset[str]:
        """The holders of anything on a node."""
        return frozenset(self._on[node])

    def holders(self) -> frozenset[str]:
        """Everybody who holds something."""
        return frozenset(self._held)

    def take(self, holder: str, job: Job, parts: tuple[Part, ...]) -> None:
        """Let a job hold these parts even against the rules: it already runs there.

        GPUs that another job holds are replaced by free ones, if there are any. Raises KeyError if the cluster does not
        have such a part.
        """
        for part in parts:
            s = self._places.site_of(part)
            if s is None or len(gpu_numbers(self._plan, s, self._places.mask_of(part, s))) != len(part.indices):
                raise KeyError(part)
        self.stand(holder, job, parts)

    def stand(self, holder: str, job: Job, parts: tuple[Part, ...]) -> None:
        """Like `take`, but parts that the cluster does not have are skipped."""
        self.release(holder)
        known = tuple(part for part in parts if self._places.site_of(part) is not None)
        if not known:
            return
        self._ask_for(on_each_node(job, len(parts)))
        sites, counts, masks = self._arrays(known)
        hold_all(self._view, sites, counts, masks)
        self._held[holder] = Held(job, parts, sites, counts, masks)
        for part in known:
            self._on[part.node].add(holder)

    def release(self, holder: str) -> None:
        """Release everything that this holder has."""
        held = self._held.pop(holder, None)
        if held is None:
            return
        self._ask_for(on_each_node(held.job, len(held.parts)))
        release_all(self._view, held.sites, held.counts, held.masks)
        for part in held.parts:
            if part.node in self._on:
                self._on[part.node].discard(holder)

    def follow(self, now: Iterable[tuple[str, Job, tuple[Part, ...]]]) -> None:
        """Let exactly these jobs hold their parts from now on."""
        wanted = {holder: (job, parts) for holder, job, parts in now}
        for holder, held in list(self._held.items()):
            if wanted.get(holder) != (held.job, held.parts):
                self.release(holder)
        for holder, (job, parts) in wanted.items():
            if holder not in self._held:
                self.stand(holder, job, parts)

    def close(self, node: str, why: str) -> None:
        """Close a node to new jobs; running jobs stay."""
        self._down = {**self._down, node: why}
        close_nodes(self._view, np.array([self._number[node]], np.int32))

    def open(self, node: str) -> None:
        """Open a node to new jobs again."""
        if node in self._down:
            self._down = {name: why for name, why in self._down.items() if name != node}
            open_nodes(self._view, np.array([self._number[node]], np.int32))

    # ---- internals ---------------------------------------------------------------------------------------------

    def _malformed(self, job: Job, parts: tuple[Part, ...]) -> str:
        """What is wrong with these parts even on an empty cluster; "" if nothing is."""
        if job.gpus == 0:
            if len(parts) != 1 or parts[0].count:
                return "the job needs no GPU, and one node"
            return "" if self.has_node(parts[0].node) else f"there is no node {parts[0].node!r}"
        models = {part.model for part in parts}
        counted = sum(part.count for part in parts)
        if len(models) > 1:
            return f"the place has GPUs of {len(models)} models; a job runs on one"
        if counted != job.gpus or any(part.count < 1 for part in parts):
            return f"the place has {counted} GPUs; the job needs {job.gpus}"
        if len({part.node for part in parts}) < len(parts):
            return "the place names a node twice"
        model = parts[0].model
        if model not in self.cluster.models:
            return f"this cluster has no {model}"
        if job.models and not self._allows(job, model):
            return f"the job does not allow {model}"
        return next((wrong for part in parts if (wrong := self._malformed_part(part))), "")

    def _malformed_part(self, part: Part) -> str:
        """What is wrong with one part even on an empty cluster; "" if nothing is."""
        if not self.has_node(part.node):
            return f"there is no node {part.node!r}"
        s = self._places.site_of(part)
        if s is None:
            return f"{part.node}: 0 of {part.count} GPUs are free"
        if part.indices:
            if len(set(part.indices)) != part.count:
                return f"{part.count} GPUs asked for on {part.node}, and {len(set(part.indices))} named"
            strange = set(part.indices) - set(gpu_numbers(self._plan, s, self._places.mask_of(part, s)))
            if strange:
                return f"{part.node} has no {part.model} with the number {min(strange)}"
        return ""

    def _why_not(self, job: Job, parts: tuple[Part, ...]) -> str:
        """Which rule these parts break now, in words."""
        s = self._places.site_of(parts[0])
        assert s is not None
        width = int(self._view.width[0, int(self._plan.sites[s].form)])
        wrong = next((wrong for part in parts if (wrong := self._missing(job, part))), "")
        if not wrong and job.gpus and width == 0:
            wrong = f"family {job.family!r} does not run on {parts[0].model}"
        if not wrong and width != len(parts):
            wrong = f"the place has {len(parts)} nodes; the job takes {width} of this model"
        return wrong or f"the {parts[0].model} GPUs have no room for it now"

    def _missing(self, job: Job, part: Part) -> str:
        """What a node lacks for this part, in words; "" if nothing is found."""
        if part.node in self._down:
            return f"{part.node} takes no jobs: {self._down[part.node]}"
        s = self._places.site_of(part)
        assert s is not None
        site, node = self._view.sites[s], self._view.nodes[self._number[part.node]]
        row, share = self._view.jobs[0], max(1, job.gpus)
        cpus, memory = (portion(int(amount), part.count or 1, share) for amount in (row.cpus, row.memory))
        if node.free_cpus < cpus:
            return f"{part.node} has {node.free_cpus / 1000:g} cores free; {cpus / 1000:g} are needed"
        if node.free_memory < memory:
            return f"{part.node} has {node.free_memory} MiB of memory free; {memory} are needed"
        if not part.count:
            return ""
        gpus: Any = self._view.gpus[site.first_gpu : site.first_gpu + site.gpus]
        if gpus[0].memory < row.gpu_memory:
            return f"{part.node}: {row.gpu_memory} MiB on each GPU are asked for"
        has_room = gpus.free_share >= job.share
        if job.share < WHOLE_GPU:
            has_room &= gpus.free_memory >= row.gpu_memory
        mask = self._places.mask_of(part, s)
        for g, is_free in enumerate(has_room):
            if mask >> g & 1 and not is_free:
                return f"GPU {gpu_numbers(self._plan, s, 1 << g)[0]} of {part.node} is taken"
        free = int(np.count_nonzero(has_room))
        return f"{part.node}: {free} of {part.count} GPUs are free" if free < part.count else ""

    def _allows(self, job: Job, model: str) -> bool:
        """Whether the job allows this model, under any of the model's names."""
        return model in job.models or any(word.strip().lower() in self._models[model] for word in job.models)

    def _kind(self, job: Job) -> JobKind:
        """How fast this job runs on each form."""
        key = (job.family, job.gpus, job.share, job.gpu_memory_gb, job.models)
        if key not in self._kinds:
            if len(self._kinds) == MOST_KINDS:
                self._kinds.clear()
            forms = len(self._plan.forms)
            kind = JobKind(np.zeros(forms), np.zeros(forms, np.int32))
            allowed = [name for name in self.cluster.models if self._allows(job, name)] if job.models else []
            if allowed or not job.models or not job.gpus:
                row = records(JOB, 1)
                self._fill(row, job)
                fill_kind(self._plan, row[0], job.family, allowed, self._speed, kind.rate, kind.width)
            self._kinds[key] = kind
        return self._kinds[key]

    def _ask_for(self, job: Job) -> None:
        """Make this job number 0 of the view, which the rules are asked about."""
        kind = self._kind(job)
        self._view.rate[0], self._view.width[0] = kind.rate, kind.width
        self._fill(self._view.jobs, job)

    def _fill(self, table: Any, job: Job) -> None:
        fill_row(table[0], job)

    def _arrays(self, parts: tuple[Part, ...]) -> tuple[Ints, Ints, Masks]:
        """The sites, counts and masks of parts that the cluster has."""
        sites = [self._places.site_of(part) for part in parts]
        masks = [self._places.mask_of(part, s) for part, s in zip(parts, sites, strict=True) if s is not None]
        counts = [part.count for part in parts]
        return np.array(sites, np.int32), np.array(counts, np.int32), np.array(masks, np.int64)


def on_each_node(job: Job, nodes: int) -> Job:
    """A job as it is on each of its nodes. The rules place a job without GPUs on one node only, so we divide it."""
    if job.gpus or nodes < 2:
        return job
    return replace(job, cpus=job.cpus / nodes, memory_gb=job.memory_gb / nodes)


def is_at(parts: tuple[Part, ...], asked: tuple[Part, ...]) -> bool:
    """Whether a job is where an order wants it. GPUs that the order does not name may be any."""
    have = {part.node: part for part in parts}
    return len(parts) == len(asked) and all(
        (mine := have.get(part.node)) is not None
        and mine.count == part.count
        and (mine.model == part.model or not part.count)
        and (not part.indices or set(part.indices) == set(mine.indices))
        for part in asked
    )
