"""A cluster as tables: its sites, nodes, GPUs, forms and pools; over how many nodes a job runs there, and how fast.

It stands in core because more than one stage needs it: `normalise` packs jobs on top of it, and back ends keep with it
who holds what (`occupancy.py`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from adlro.core.errors import ConfigError
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Link, Node, Placing, SpeedOf
from adlro.core.rules import BITS_PER_WORD
from adlro.core.schema import fill_row, stored_in
from adlro.core.tables import (
    CLOCK,
    FORM,
    GPU,
    GROUP,
    MIX_COLUMNS,
    MIX_ROWS,
    NOBODY,
    NODE,
    NOT_ASKED,
    OFFER,
    PART,
    POOL,
    RECENT,
    RUN,
    SITE,
    USER,
    Floats,
    Ints,
    Numbers,
    Table,
    View,
    records,
)
from adlro.core.units import MIB_PER_GB

MORE_OF_NODES: Final = tuple(each.column for each in stored_in(Node) if each.column not in ("cpus", "memory"))
MOST_GPUS_ON_A_SITE: Final = 62  # a mask of GPUs is one 64-bit number


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
    more: tuple[float, ...] = ()
    """What else `Node` declares of the node around them."""


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
        fill_row(row, node)
        row.free_cpus, row.free_memory = row.cpus, row.memory
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
            tuple(nodes[n][column].item() for column in MORE_OF_NODES),
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


def gpu_numbers(plan: Plan, s: int, mask: int) -> tuple[int, ...]:
    """The numbers that GPUs of a site, given as a mask, have on their node. A node counts its GPUs group by group."""
    site = plan.sites[s]
    first = int(site.first_gpu - plan.sites[plan.nodes[site.node].first_site].first_gpu)
    return tuple(first + g for g in range(int(site.gpus)) if mask >> g & 1)


# ---- a view of it ------------------------------------------------------------------------------------------------


def empty_view(
    plan: Plan, jobs: Table, rate: Floats, width: Ints, *, demands: int, spread: Ints, home: Ints, users: int = 1
) -> View:
    """The cluster with nothing on it, and jobs of which nothing has happened yet."""
    parts = records(PART, max(1, len(plan.gpus)))
    parts.next = np.arange(1, len(parts) + 1)
    parts[-1].next = NOBODY
    count = len(jobs)
    return View(
        jobs=jobs,
        runs=records(RUN, count),
        sites=plan.sites.copy(),
        nodes=plan.nodes.copy(),
        gpus=plan.gpus.copy(),
        forms=plan.forms.copy(),
        pools=plan.pools.copy(),
        parts=parts,
        users=records(USER, max(1, users)),
        groups=records(GROUP, int(jobs.group.max(initial=0)) + 1),
        open=records(OFFER, len(plan.sites) + 1),
        clock=records(CLOCK, 1),
        queue=np.zeros(2 * count + 2, np.int32),
        running=np.zeros(count + 1, np.int32),
        released=np.zeros(RECENT, np.int32),
        tried=np.full(demands, NOBODY, np.int32),
        spread=spread,
        idle=plan.idle.copy(),
        form_sites=plan.form_sites,
        pool_sites=plan.pool_sites,
        rate=rate,
        width=width,
        spare=spare_of(plan),
        fastest=np.full(demands, NOT_ASKED),
        home=home,
        mix=np.zeros((MIX_ROWS, MIX_COLUMNS)),
    )


def spare_of(plan: Plan) -> Ints:
    """For each pool, how many sites have so many GPUs free: all of theirs."""
    spare = np.zeros((len(plan.pools), int(plan.sites.gpus.max(initial=0)) + 1), np.int32)
    np.add.at(spare, (plan.sites.pool, plan.sites.gpus), 1)
    return spare


def fill_kind(
    plan: Plan, job: Any, family: str, allowed: Collection[str], speed: SpeedOf, rate: Floats, width: Ints
) -> None:
    """How fast jobs like this row run on each form, and over how many nodes; on no other models than those allowed.

    With nothing in `allowed`, on all models.
    """
    if job.gpus == 0:
        rate[:], width[:] = 1.0, 1
        return
    for p, name in enumerate(plan.models):
        if name != CPU_ONLY and (not allowed or name in allowed):
            fill_pool(plan, p, job, family, speed, rate, width)


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
