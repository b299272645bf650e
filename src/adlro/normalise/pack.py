"""Records become tables: the only bridge from names to numbers, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.errors import ConfigError
from adlro.core.jobs import JobNames, amounts_of, check_job, job_rows
from adlro.core.memory import release_temporaries
from adlro.core.plan import Plan, empty_view, fill_kind
from adlro.core.records import CPU_ONLY, Disturbance, Job, SpeedOf
from adlro.core.rules import best_rate, fits, portion
from adlro.core.tables import (
    DOWN,
    FUTURE,
    NOBODY,
    NOT_ASKED,
    REFUSED,
    SHAPE,
    SPEED,
    UP,
    Floats,
    Ints,
    Jobs,
    Table,
    View,
    records,
)

MOST_TO_TABULATE = 10_000_000


# ---- jobs --------------------------------------------------------------------------------------------------------


def pack_jobs(jobs: Sequence[Job]) -> Jobs:
    """A table of these jobs in submit order (equal times keep their order)."""
    for job in jobs:
        check_job(job)
    names = JobNames()
    table, work = job_rows(sorted(jobs, key=lambda job: job.submit_s), names)
    return names.jobs(table, work)


def unpack_job(jobs: Jobs, j: int) -> Job:
    """The record of one row."""
    row = jobs.table[j]
    return Job(
        family=jobs.families[row.family],
        work=float(jobs.work[j]),
        models=jobs.allowed[row.allowed],
        user=jobs.users[row.user],
        name=jobs.names[row.group] if jobs.names else "",
        sizes=",".join(str(size) for size in jobs.sizes[row.sizes]),
        **amounts_of(row),
    )


# ---- the view ----------------------------------------------------------------------------------------------------


def pack(plan: Plan, jobs: Jobs, speed: SpeedOf) -> View:
    """A fresh view: the cluster empty, every job still to come, those that can never run marked as refused.

    `jobs.allowed` must name models as the cluster does. The kinds and shapes are written into the table of jobs, and
    that all of them may be stopped.
    """
    asked = with_sizes(jobs.table, jobs.sizes)
    rate, width = number_kinds(plan, replace(jobs, table=asked), speed)
    demands = number_demands(asked)
    shapes = name_shapes(jobs.table, asked)
    jobs.table.stoppable = 1
    count = len(jobs)
    view = empty_view(
        plan,
        jobs.table,
        rate,
        width,
        demands=demands,
        spread=spread_of(asked, width, demands),
        home=_home_of(plan, replace(jobs, table=asked), len(rate)),
        users=len(jobs.users),
        shapes=shapes,
    )
    release_temporaries(count)
    if len(shapes):
        judge_shapes(view._replace(jobs=asked))
    mark_refused(view)
    return view


def with_sizes(table: Table, sizes: Sequence[tuple[int, ...]]) -> Table:
    """The jobs as they are, followed by each size of those that can be resized: for jobs alike only once.

    Without such jobs it is the table itself.
    """
    elastic = np.flatnonzero([len(some) > 0 for some in sizes])
    rows = np.flatnonzero(np.isin(table.sizes, elastic)) if len(elastic) else np.zeros(0, np.int64)
    table.first_shape = table.shapes = 0
    if not len(rows):
        return table
    alike = ("sizes", "family", "allowed", "gpus", "share", "cpus", "memory", "gpu_memory")
    of_rows = np.asarray(table)[rows]
    _, firsts, group = np.unique(of_rows[list(alike)], return_index=True, return_inverse=True)
    more: list[Any] = []
    first, count = np.zeros((2, len(firsts)), np.int64)
    for number, at in enumerate(firsts):
        job = of_rows[at]
        gpus = sorted({*sizes[job["sizes"]], int(job["gpus"])})
        first[number], count[number] = len(more), len(gpus)
        for size in gpus:
            row = job.copy()
            row["gpus"] = size
            for name in ("cpus", "memory"):
                row[name] = portion(int(job[name]), size, int(job["gpus"]))
            more.append(row)
    table["first_shape"][rows], table["shapes"][rows] = first[group.ravel()], count[group.ravel()]
    return np.concatenate([np.asarray(table), np.array(more, table.dtype)]).view(np.recarray)


def name_shapes(table: Table, asked: Table) -> Table:
    """The table of shapes, from rows that have been numbered; the jobs themselves get their kinds and demands."""
    count = len(table)
    shapes = records(SHAPE, len(asked) - count)
    for name in SHAPE.names or ():
        shapes[name] = asked[name][count:]
    if asked is not table:
        table.kind, table.demand = asked.kind[:count], asked.demand[:count]
    return shapes


@compiled
def judge_shapes(view: View) -> None:
    """Find how fast each demand of these jobs can run here at best."""
    for j in range(len(view.jobs)):
        demand = view.jobs[j].demand
        if view.fastest[demand] == NOT_ASKED:
            view.fastest[demand] = best_rate(view, j)


def pack_believed(plan: Plan, jobs: Jobs, known: View, rate: Floats, kind: Ints | None = None) -> View:
    """A fresh view of jobs of which policies believe these rates [K, H]. Where a job may run is as in the known view.

    `kind` [J] says which jobs are alike: they must have one demand in the known view. Without it each job is a kind of
    its own, so that kinds say nothing about who is alike. No job can be resized. The kinds are written into the table
    of jobs, which must not be that of the known view.
    """
    mine = np.arange(len(jobs), dtype=np.int32) if kind is None else kind
    firsts = np.zeros(len(rate), np.int64)
    firsts[mine[::-1]] = np.arange(len(jobs))[::-1]
    jobs.table.kind = jobs.table.demand = mine
    jobs.table.first_shape = jobs.table.shapes = 0
    width = np.ascontiguousarray(known.width[known.jobs["kind"][firsts]])
    view = empty_view(
        plan,
        jobs.table,
        np.ascontiguousarray(rate),
        width,
        demands=max(1, len(rate)),
        spread=spread_of(jobs.table, width, max(1, len(rate))),
        home=_home_of(plan, jobs, len(rate)),
        users=len(jobs.users),
    )
    mark_refused(view)
    return view


@compiled_alone
def mark_possible(view: View, possible: npt.NDArray[np.bool_]) -> None:
    """Mark for each job the forms at which it fits on the empty cluster [J, H]. Call it before anything runs."""
    for j in range(len(view.jobs)):
        kind = view.jobs[j].kind
        for h in range(len(view.forms)):
            s = view.form_sites[view.forms[h].first_site]
            if view.width[kind, h] > 1:
                s = view.pools[view.forms[h].pool].anchor
            possible[j, h] = fits(view, j, s)


@compiled
def mark_refused(view: View) -> None:
    """Find how fast each demand can run here at best, mark the jobs that never can, and set all rows to nothing."""
    for j in range(len(view.jobs)):
        demand = view.jobs[j].demand
        if view.fastest[demand] == NOT_ASKED:
            view.fastest[demand] = best_rate(view, j)
        run = view.runs[j]
        run.site = NOBODY
        run.parts = NOBODY
        run.slot = NOBODY
        run.state = FUTURE if view.fastest[demand] > 0.0 else REFUSED


def number_kinds(plan: Plan, jobs: Jobs, speed: SpeedOf) -> tuple[Floats, Ints]:
    """Give jobs that run alike the same kind; how fast each kind runs on each form, and over how many nodes."""
    table = jobs.table
    sizes = np.unique([form.gpu_memory for form in plan.form_records])
    level = np.searchsorted(sizes, table.gpu_memory).astype(np.int64)
    columns = [table.family, table.gpus, table.share, table.allowed, level]
    key = np.zeros(len(table), np.int64)
    for column in columns:
        numbers, count = renumbered(column)
        key = renumbered(key * count + numbers)[0]
    table.kind = key
    firsts = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    firsts[key[::-1]] = np.arange(len(key))[::-1]
    rate = np.zeros((max(1, len(firsts)), len(plan.forms)))
    width = np.zeros(rate.shape, np.int32)
    for k, j in enumerate(firsts):
        row = table[j]
        allowed = jobs.allowed[row.allowed]
        fill_kind(plan, row, jobs.families[row.family], allowed, speed, rate[k], width[k])
    return rate, width


def number_demands(table: Table) -> int:
    """Give jobs that need exactly the same the same demand; how many demands there are."""
    key = table.kind.astype(np.int64)
    for column in (table.cpus, table.memory, table.gpu_memory):
        # Numbered anew after each column, so that the products stay small.
        numbers, count = renumbered(column)
        key = renumbered(key * count + numbers)[0]
    table.demand = key
    return int(key.max(initial=0)) + 1


def spread_of(table: Table, width: Ints, demands: int) -> Ints:
    """1 for each demand that may take several nodes somewhere."""
    spread = np.zeros(demands, np.int32)
    wide = np.asarray((width > 1).any(axis=1))
    spread[table.demand[wide[table.kind]]] = 1
    return spread


def renumbered(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """The same values as 0, 1, 2 … in their order, and how many there are."""
    largest = int(values.max(initial=0))
    if largest > MOST_TO_TABULATE:
        known, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), len(known)
    present = np.zeros(largest + 1, bool)
    present[values] = True
    return (np.cumsum(present) - 1)[values], max(1, int(np.count_nonzero(present)))


def _home_of(plan: Plan, jobs: Jobs, kinds: int) -> Ints:
    """Where the cluster's own map sends each kind: 1 everywhere for a family that it does not name."""
    home = np.ones((kinds, len(plan.forms)), np.int32)
    for family, models in plan.cluster.affinity.items():
        if family in jobs.families:
            mine = np.unique(jobs.table.kind[jobs.table.family == jobs.families.index(family)])
            home[mine] = [form.model in models for form in plan.form_records]
    return home


# ---- why a job is refused, and what befalls the cluster ----------------------------------------------------------


def refusals(plan: Plan, jobs: Jobs, view: View) -> dict[int, str]:
    """For each refused job, why no site of the empty cluster could take it."""
    return {int(j): why_refused(plan, jobs, view, int(j)) for j in np.flatnonzero(view.runs.state == REFUSED)}


def why_refused(plan: Plan, jobs: Jobs, view: View, j: int) -> str:
    """The first thing that this cluster lacks for the job."""
    job = jobs.table[j]
    if job.gpus and (why := why_no_model(plan, job, jobs.allowed[job.allowed], jobs.families[job.family], view)):
        return why
    cpus, memory = max(plan.nodes.cpus) / 1000, max(plan.nodes.memory)
    if job.cpus / 1000 > cpus and max(view.width[job.kind]) <= 1:
        return f"needs {job.cpus / 1000:g} CPU cores on one node; the largest has {cpus:g}"
    if job.memory > memory and max(view.width[job.kind]) <= 1:
        return f"needs {job.memory} MiB of memory on one node; the largest has {memory}"
    where = "no node has" if max(view.width[job.kind]) <= 1 else "the fewest nodes with so many GPUs do not have"
    return f"needs {job.gpus} GPUs, {job.cpus / 1000:g} cores and {job.memory} MiB together; {where} them all"


def why_no_model(plan: Plan, job: Any, allowed: frozenset[str], family: str, view: View) -> str:
    """What the GPU models of this cluster lack for the job; nothing if one of them would do."""
    pools = [p for p, name in enumerate(plan.models) if name != CPU_ONLY and (not allowed or name in allowed)]
    if not pools:
        only = f"allows only {', '.join(sorted(allowed))}" if allowed else f"needs {job.gpus} GPUs"
        return f"{only}; this cluster has {', '.join(plan.models)}"
    if job.gpus > (most := max(plan.pools[p].gpus for p in pools)):
        return f"needs {job.gpus} GPUs of one model; this cluster has at most {most}"
    memory = {p: max(form.gpu_memory for form in plan.forms if form.pool == p) for p in pools}
    if job.gpu_memory > (most := max(memory.values())):
        return f"needs {job.gpu_memory} MiB on each GPU; this cluster has at most {most}"
    able = [plan.models[p] for p in pools if plan.pools[p].gpus >= job.gpus and memory[p] >= job.gpu_memory]
    if not able:
        return f"needs {job.gpus} GPUs of one model with {job.gpu_memory} MiB each; this cluster has no such model"
    if not view.width[job.kind].any():
        return f"family {family!r} has no speed on {', '.join(able)}"
    return ""


def pack_disturbances(plan: Plan, disturbances: Sequence[Disturbance]) -> list[tuple[float, int, int, int, float]]:
    """Disturbances with numbers for names: time, what, node, GPU and factor."""
    numbers: Mapping[str, int] = {node.name: n for n, node in enumerate(plan.cluster.nodes)}
    verbs = {"down": DOWN, "up": UP, "speed": SPEED}
    rows = []
    for item in disturbances:
        if item.what not in verbs:
            raise ConfigError(f"disturbance at {item.time_s} s: what is {item.what!r}; expected {', '.join(verbs)}.")
        if item.node not in numbers:
            raise ConfigError(
                f"disturbance at {item.time_s} s: no node {item.node!r} in cluster {plan.cluster.name!r}."
            )
        n = numbers[item.node]
        first = plan.sites[plan.nodes[n].first_site].first_gpu
        count = sum(group.count for group in plan.cluster.nodes[n].gpus)
        if item.what == "speed" and not 0 <= item.gpu < count:
            raise ConfigError(
                f"disturbance at {item.time_s} s: node {item.node!r} has no GPU {item.gpu}; it has {count}."
            )
        if item.what == "speed" and not 0.0 < item.factor <= 10.0:
            raise ConfigError(f"disturbance at {item.time_s} s: factor is {item.factor}; expected above 0, to 10.")
        rows.append((item.time_s, verbs[item.what], n, int(first) + item.gpu, item.factor))
    return rows


def with_model_names(jobs: Jobs, names: Mapping[str, str]) -> Jobs:
    """The same jobs with allowed models called as the cluster calls them; unknown names stay as they are."""
    return replace(jobs, allowed=tuple(frozenset(names.get(name, name) for name in models) for models in jobs.allowed))
