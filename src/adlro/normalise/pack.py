"""Records become tables: the only bridge from names to numbers, and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled
from adlro.core.errors import ConfigError
from adlro.core.jobs import JobNames, amounts_of, check_job, job_rows
from adlro.core.memory import release_temporaries
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Disturbance, Job, Link, Node, Placing, SpeedOf
from adlro.core.rules import BITS_PER_WORD, best_rate
from adlro.core.tables import (
    CLOCK,
    DOWN,
    FORM,
    FUTURE,
    GPU,
    GROUP,
    MIX_COLUMNS,
    MIX_ROWS,
    NOBODY,
    NODE,
    OFFER,
    PART,
    POOL,
    RECENT,
    REFUSED,
    RUN,
    SITE,
    SPEED,
    UP,
    USER,
    Floats,
    Ints,
    Jobs,
    Numbers,
    Table,
    View,
    records,
)

MIB_PER_GB = 1024
NOT_ASKED = -1.0
MOST_TO_TABULATE = 10_000_000
MOST_GPUS_ON_A_SITE = 62  # a mask of GPUs is one 64-bit number


class Form(NamedTuple):
    """What makes two sites alike: the GPUs, the node around them, and what else stands in that node."""

    model: str
    gpus: int
    cpus: int
    memory: int
    gpu_memory: int
    link: Link
    neighbours: tuple[tuple[str, int], ...]
    factors: tuple[float, ...] = ()
    """Speed factors of its GPUs, the least first, where they are known to differ from 1; none: all are 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster as tables, before any job: what every view of it is copied from."""

    cluster: Cluster
    sites: Table
    nodes: Table
    gpus: Table
    forms: Table
    pools: Table
    idle: Ints
    form_sites: Ints
    pool_sites: Ints
    form_records: tuple[Form, ...]
    models: tuple[str, ...]


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
        **amounts_of(row),
    )


def mib(gigabytes: float) -> int:
    """Whole MiB."""
    return round(gigabytes * MIB_PER_GB)


# ---- the cluster -------------------------------------------------------------------------------------------------


def plan_cluster(cluster: Cluster, factors: Mapping[str, Sequence[float]] | None = None) -> Plan:
    """Number the sites, forms and pools of a cluster, all empty and up.

    `factors` has, by node, the measured speed factor of each of its GPUs in their order: sites that differ in them are
    not alike, and have forms of their own.
    """
    rows = [(n, node, model, count) for n, node in enumerate(cluster.nodes) for model, count in groups_of(node)]
    sites, nodes = records(SITE, len(rows)), records(NODE, len(cluster.nodes))
    forms, models = Numbers(), Numbers()
    first_gpu, first_on_node, factors = 0, 0, factors or {}
    for row, node in zip(nodes, cluster.nodes, strict=True):
        row.cpus = row.free_cpus = round(node.cpus * 1000)
        row.memory = row.free_memory = mib(node.memory_gb)
        row.first_site, row.up = NOBODY, 1
    for s, (n, node, model, count) in enumerate(rows):
        if count > MOST_GPUS_ON_A_SITE:
            raise ConfigError(f"node {node.name!r} has {count} {model} GPUs; expected at most {MOST_GPUS_ON_A_SITE}.")
        site = sites[s]
        site.node, site.gpus, site.free_gpus, site.free_share = n, count, count, count * WHOLE_GPU
        site.free_mask, site.first_gpu, site.slot, site.up = (1 << count) - 1, first_gpu, NOBODY, 1
        site.model = site.pool = models.number(model)
        gpu_memory = mib(cluster.models[model].memory_gb) if count else 0
        if nodes[n].first_site == NOBODY:
            nodes[n].first_site, first_on_node = s, 0
        form = Form(
            model, count, int(nodes[n].cpus), int(nodes[n].memory), gpu_memory, node.link, tuple(groups_of(node)),
            known_factors(factors.get(node.name, ()), first_on_node, count),
        )  # fmt: skip
        site.form = forms.number(form)
        first_gpu += count
        first_on_node += count
        nodes[n].sites += 1
    gpus = records(GPU, max(1, first_gpu))
    for site in sites:
        mine = slice(site.first_gpu, site.first_gpu + site.gpus)
        gpus.free_share[mine] = WHOLE_GPU
        gpus.free_memory[mine] = gpus.memory[mine] = forms.things[site.form].gpu_memory
    form_table, idle, form_sites = form_tables(sites, forms.things)
    pools, pool_sites = pool_tables(sites, len(models.things))
    return Plan(
        cluster, sites, nodes, gpus, form_table, pools, idle, form_sites, pool_sites,
        tuple(forms.things), tuple(models.things),
    )  # fmt: skip


def known_factors(factors: Sequence[float], first: int, count: int) -> tuple[float, ...]:
    """The speed factors of a site's GPUs, the least first; none if all are 1."""
    mine = [float(factor) for factor in factors[first : first + count]]
    mine += [1.0] * (count - len(mine))
    return () if all(factor == 1.0 for factor in mine) else tuple(sorted(mine))


def groups_of(node: Node) -> list[tuple[str, int]]:
    """The GPU groups of a node; a node without GPUs is one group of none."""
    return [(group.model, group.count) for group in node.gpus if group.count] or [(CPU_ONLY, 0)]


def form_tables(sites: Table, forms: Sequence[Form]) -> tuple[Table, Ints, Ints]:
    """The forms, a bit for each idle site (all of them), and the sites by form."""
    table = records(FORM, len(forms))
    order = np.argsort(sites.form, kind="stable").astype(np.int32)
    words: list[int] = []
    first = 0
    for h, (row, form) in enumerate(zip(table, forms, strict=True)):
        count = int(np.count_nonzero(sites.form == h))
        row.gpus, row.cpus, row.memory, row.gpu_memory = form.gpus, form.cpus, form.memory, form.gpu_memory
        row.sites = row.idle_sites = count
        row.first_site, row.first_word = first, len(words)
        row.words = -(-count // BITS_PER_WORD)
        for rank in range(count):
            sites[order[first + rank]].rank = rank
        row.model = row.pool = sites[order[first]].model
        full, rest = divmod(count, BITS_PER_WORD)
        words += [(1 << BITS_PER_WORD) - 1] * full + ([(1 << rest) - 1] if rest else [])
        first += count
    return table, np.array(words, np.int32), order


def pool_tables(sites: Table, models: int) -> tuple[Table, Ints]:
    """The pools and the sites by pool."""
    table = records(POOL, models)
    order = np.argsort(sites.pool, kind="stable").astype(np.int32)
    first = 0
    for p, row in enumerate(table):
        members = sites.pool == p
        row.model, row.sites, row.first_site = p, int(np.count_nonzero(members)), first
        row.gpus = row.free_gpus = int(sites.gpus[members].sum())
        row.largest = int(sites.gpus[members].max())
        row.anchor = order[first]
        first += row.sites
    return table, order


# ---- the view ----------------------------------------------------------------------------------------------------


def pack(plan: Plan, jobs: Jobs, speed: SpeedOf) -> View:
    """A fresh view: the cluster empty, every job still to come, those that can never run marked as refused.

    `jobs.allowed` must name models as the cluster does. The kinds are written into the table of jobs.
    """
    rate, width = number_kinds(plan, jobs, speed)
    demands = number_demands(jobs.table)
    parts = records(PART, max(1, len(plan.gpus)))
    parts.next = np.arange(1, len(parts) + 1)
    parts[-1].next = NOBODY
    count = len(jobs)
    view = View(
        jobs=jobs.table,
        runs=records(RUN, count),
        sites=plan.sites.copy(),
        nodes=plan.nodes.copy(),
        gpus=plan.gpus.copy(),
        forms=plan.forms.copy(),
        pools=plan.pools.copy(),
        parts=parts,
        users=records(USER, max(1, len(jobs.users))),
        groups=records(GROUP, int(jobs.table.group.max(initial=0)) + 1),
        open=records(OFFER, len(plan.sites) + 1),
        clock=records(CLOCK, 1),
        queue=np.zeros(2 * count + 2, np.int32),
        running=np.zeros(count + 1, np.int32),
        released=np.zeros(RECENT, np.int32),
        tried=np.full(demands, NOBODY, np.int32),
        spread=spread_of(jobs.table, width, demands),
        idle=plan.idle.copy(),
        form_sites=plan.form_sites,
        pool_sites=plan.pool_sites,
        rate=rate,
        width=width,
        spare=spare_of(plan),
        fastest=np.full(demands, NOT_ASKED),
        home=home_of(plan, jobs, len(rate)),
        mix=np.zeros((MIX_ROWS, MIX_COLUMNS)),
    )
    release_temporaries(count)
    mark_refused(view)
    return view


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
        if row.gpus == 0:
            rate[k], width[k] = 1.0, 1
            continue
        allowed = jobs.allowed[row.allowed]
        for p in range(len(plan.pools)):
            name = plan.models[p]
            if name != CPU_ONLY and (not allowed or name in allowed):
                fill_pool(plan, p, row, jobs.families[row.family], speed, rate[k], width[k])
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


def spare_of(plan: Plan) -> Ints:
    """For each pool, how many sites have so many GPUs free: all of theirs."""
    spare = np.zeros((len(plan.pools), int(plan.sites.gpus.max(initial=0)) + 1), np.int32)
    np.add.at(spare, (plan.sites.pool, plan.sites.gpus), 1)
    return spare


def renumbered(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """The same values as 0, 1, 2 … in their order, and how many there are."""
    largest = int(values.max(initial=0))
    if largest > MOST_TO_TABULATE:
        known, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), len(known)
    present = np.zeros(largest + 1, bool)
    present[values] = True
    return (np.cumsum(present) - 1)[values], max(1, int(np.count_nonzero(present)))


def home_of(plan: Plan, jobs: Jobs, kinds: int) -> Ints:
    """Where the cluster's own map sends each kind: 1 everywhere for a family that it does not name."""
    home = np.ones((kinds, len(plan.forms)), np.int32)
    for family, models in plan.cluster.affinity.items():
        if family in jobs.families:
            mine = np.unique(jobs.table.kind[jobs.table.family == jobs.families.index(family)])
            home[mine] = [form.model in models for form in plan.form_records]
    return home


def fill_pool(plan: Plan, p: int, job: Any, family: str, speed: SpeedOf, rate: Floats, width: Ints) -> None:
    """How fast a kind runs on the forms of one pool, and over how many nodes."""
    members = [h for h, form in enumerate(plan.form_records) if plan.forms[h].pool == p]
    if plan.form_records[members[0]].gpu_memory < job.gpu_memory:
        return
    nodes = fewest_nodes([(plan.form_records[h].gpus, int(plan.forms[h].sites)) for h in members], int(job.gpus))
    model = plan.cluster.models[plan.models[p]]
    gpus = int(job.gpus)
    amount = gpus * job.share / WHOLE_GPU
    for h in members:
        form = plan.form_records[h]
        if nodes > 1 or (nodes == 1 and form.gpus >= gpus):
            at = Placing(model, gpus, nodes, form.link, plan.cluster.network)
            rate[h] = amount * speed(family, at).value
            if nodes == 1:
                rate[h] *= expected_factor(form.factors, gpus)
            width[h] = nodes if rate[h] > 0.0 else 0
    if nodes > 1:
        slowest = min(rate[h] for h in members)
        if any(plan.form_records[h].factors for h in members):
            least = sorted(
                min(plan.form_records[h].factors, default=1.0) for h in members for _ in range(plan.forms[h].sites)
            )
            slowest *= expected_factor(least, nodes)
        for h in members:
            rate[h], width[h] = slowest, nodes if slowest > 0.0 else 0


def expected_factor(factors: Sequence[float], taken: int) -> float:
    """The speed factor that a job may expect which takes some of these, any as likely as another, and the least counts.

    `factors` are in order, the least first. It is the mean of the time that counts, not of the speed.
    """
    many = len(factors)
    if not 0 < taken <= many:
        return 1.0
    ways = math.comb(many, taken)
    time = sum(math.comb(many - i - 1, taken - 1) / factor for i, factor in enumerate(factors))
    return ways / time


def fewest_nodes(sizes: Sequence[tuple[int, int]], gpus: int) -> int:
    """How many nodes a gang takes when they are empty and the largest come first; 0 if there are not enough."""
    nodes = 0
    for size, count in sorted(sizes, reverse=True):
        needed = -(-gpus // size) if size else count
        taken = min(count, needed)
        nodes, gpus = nodes + taken, gpus - taken * size
        if gpus <= 0:
            return nodes
    return 0


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
