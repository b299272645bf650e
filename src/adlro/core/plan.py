"""A cluster as tables: sites, nodes, GPUs, forms and pools; how many nodes a job takes there, and how fast it runs.

It is in `core` because several modules need it: `normalise` adds jobs to it, and back ends track who holds what with it
(`occupancy.py`).
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
    DEMAND,
    FOREVER,
    FORM,
    GPU,
    GROUP,
    MIX_COLUMNS,
    MIX_ROWS,
    NO_SHAPES,
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
    Masks,
    Numbers,
    Table,
    View,
    records,
)
from adlro.core.units import MIB_PER_GB

MORE_OF_NODES: Final = tuple(each.column for each in stored_in(Node) if each.column not in ("cpus", "memory"))
MOST_GPUS_ON_A_SITE: Final = 62  # a mask of GPUs is one signed 64-bit integer


class Form(NamedTuple):
    """Sites with equal values are alike: their GPUs, the node around them, and the node's other GPUs."""

    model: str
    gpus: int
    cpus: int
    memory: int
    gpu_memory: int
    link: Link
    neighbours: tuple[tuple[str, int], ...]
    factors: tuple[float, ...] = ()
    """Speed factors of its GPUs in ascending order, if any differs from 1; empty if all are 1."""
    more: tuple[float, ...] = ()
    """The other properties of the node, as `Node` declares them."""
    own: int = NOBODY
    """The site, if every site has a form of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster as tables, without jobs: every view of the cluster starts as a copy of it."""

    cluster: Cluster
    sites: Table
    nodes: Table
    gpus: Table
    forms: Table
    pools: Table
    bits: Ints
    form_sites: Ints
    pool_sites: Ints
    form_records: tuple[Form, ...]
    models: tuple[str, ...]


def is_paced(plan: Plan) -> bool:
    """Whether policies see the measured pace of each GPU."""
    return bool(plan.form_records) and plan.form_records[0].own != NOBODY


def mib(gigabytes: float) -> int:
    """GB converted to whole MiB."""
    return round(gigabytes * MIB_PER_GB)


# ---- the cluster -------------------------------------------------------------------------------------------------


def plan_cluster(cluster: Cluster, factors: Mapping[str, Sequence[float]] | None = None, by_site: bool = False) -> Plan:
    """Number the sites, forms and pools of a cluster. All are empty and up.

    `factors` gives, by node name, the measured speed factor of each GPU of the node. Sites with different factors have
    different forms. With `by_site`, every site has a form of its own, and policies see the measured pace of each GPU.
    """
    factors = factors or {}
    nodes = node_table(cluster.nodes)
    forms, models = Numbers(), Numbers()
    columns: list[tuple[int, int, int, int]] = []  # node, GPUs, model and form of each site
    for n, node in enumerate(cluster.nodes):
        first_on_node, groups = 0, tuple(groups_of(node))
        cpus, memory, *more = (nodes[column][n].item() for column in ("cpus", "memory", *MORE_OF_NODES))
        nodes["first_site"][n], nodes["sites"][n] = len(columns), len(groups)
        for model, count in groups:
            if count > MOST_GPUS_ON_A_SITE:
                raise ConfigError(
                    f"node {node.name!r} has {count} {model} GPUs; expected at most {MOST_GPUS_ON_A_SITE}."
                )
            gpu_memory = mib(cluster.models[model].memory_gb) if count else 0
            known = known_factors(factors.get(node.name, ()), first_on_node, count)
            own = len(columns) if by_site else NOBODY
            form = Form(model, count, cpus, memory, gpu_memory, node.link, groups, known, tuple(more), own)
            columns.append((n, count, models.number(model), forms.number(form)))
            first_on_node += count
    sites = site_table(np.array(columns, np.int64).reshape(-1, 4))
    gpus = records(GPU, max(1, int(sites.gpus.sum())))
    gpus.free_share[: sites.gpus.sum()] = WHOLE_GPU
    gpus.pace = gpus.gang = gpus.bandwidth = 1.0
    gpus.headroom = FOREVER
    gpus.order[: sites.gpus.sum()] = np.arange(sites.gpus.sum()) - np.repeat(sites.first_gpu, sites.gpus)
    sizes = np.array([form.gpu_memory for form in forms.things], np.int32)[sites.form]
    gpus.free_memory[: sites.gpus.sum()] = gpus.memory[: sites.gpus.sum()] = np.repeat(sizes, sites.gpus)
    form_table, idle, form_sites = form_tables(sites, forms.things)
    pools, free, pool_sites = pool_tables(sites, len(models.things), len(idle))
    return Plan(
        cluster, sites, nodes, gpus, form_table, pools, np.append(idle, free), form_sites, pool_sites,
        tuple(forms.things), tuple(models.things),
    )  # fmt: skip


def node_table(members: Sequence[Node]) -> Table:
    """The nodes, free and up, without their sites. Most nodes are alike; equal ones are computed once."""
    nodes, filled = records(NODE, len(members)), records(NODE, 1)
    known: dict[tuple[float, ...], Any] = {}
    for n, node in enumerate(members):
        key = tuple(getattr(node, each.name) for each in stored_in(Node))
        if key not in known:
            fill_row(filled[0], node)
            known[key] = filled[0].copy()
        np.asarray(nodes)[n] = known[key]
    nodes.free_cpus, nodes.free_memory, nodes.up = nodes.cpus, nodes.memory, 1
    return nodes


def site_table(columns: Masks) -> Table:
    """The sites, all free, from columns of node, number of GPUs, model and form. [S, 4]"""
    sites = records(SITE, len(columns))
    node, gpus, model, form = columns.T
    sites.node, sites.gpus, sites.free_gpus, sites.free_share = node, gpus, gpus, gpus * WHOLE_GPU
    sites.free_mask, sites.first_gpu, sites.slot = (np.int64(1) << gpus) - 1, np.cumsum(gpus) - gpus, NOBODY
    sites.model, sites.pool, sites.form = model, model, form
    return sites


def known_factors(factors: Sequence[float], first: int, count: int) -> tuple[float, ...]:
    """The speed factors of a site's GPUs in ascending order; empty if all are 1."""
    mine = [float(factor) for factor in factors[first : first + count]]
    mine += [1.0] * (count - len(mine))
    return () if all(factor == 1.0 for factor in mine) else tuple(sorted(mine))


def groups_of(node: Node) -> list[tuple[str, int]]:
    """The GPU groups of a node; a node without GPUs has one group of 0 GPUs."""
    return [(group.model, group.count) for group in node.gpus if group.count] or [(CPU_ONLY, 0)]


def form_tables(sites: Table, forms: Sequence[Form]) -> tuple[Table, Ints, Ints]:
    """The forms, one bit for each idle site (all are idle), and the sites ordered by form."""
    table = records(FORM, len(forms))
    order = np.argsort(sites.form, kind="stable").astype(np.int32)
    counts = np.bincount(sites.form, minlength=len(forms))
    words: list[int] = []
    first = 0
    for h, (row, form) in enumerate(zip(table, forms, strict=True)):
        count = int(counts[h])
        row.gpus, row.cpus, row.memory, row.gpu_memory = form.gpus, form.cpus, form.memory, form.gpu_memory
        row.sites = row.idle_sites = count
        row.first_site, row.first_word = first, len(words)
        row.words = -(-count // BITS_PER_WORD)
        sites.rank[order[first : first + count]] = np.arange(count)
        row.model = row.pool = sites[order[first]].model
        full, rest = divmod(count, BITS_PER_WORD)
        words += [(1 << BITS_PER_WORD) - 1] * full + ([(1 << rest) - 1] if rest else [])
        first += count
    return table, np.array(words, np.int32), order


def pool_tables(sites: Table, models: int, first_word: int) -> tuple[Table, Ints, Ints]:
    """The pools, one bit for each site by its number of free GPUs (all are free), and the sites ordered by pool."""
    table = records(POOL, models)
    order = np.argsort(sites.pool, kind="stable").astype(np.int32)
    words: list[int] = []
    first = 0
    for p, row in enumerate(table):
        members = sites.pool == p
        row.model, row.sites, row.first_site = p, int(np.count_nonzero(members)), first
        row.gpus = row.free_gpus = int(sites.gpus[members].sum())
        row.largest, row.pace = int(sites.gpus[members].max()), 1.0
        row.anchor = order[first]
        row.words = -(-row.sites // BITS_PER_WORD)
        row.first_word = first_word + len(words)
        sites.place[order[first : first + row.sites]] = np.arange(row.sites)
        words.extend([0] * int(row.words * (row.largest + 1)))
        first += row.sites
    bits = np.array(words, np.int32)
    mine = table[sites.pool]
    at = mine["first_word"] - first_word + sites.gpus * mine["words"] + sites.place // BITS_PER_WORD
    np.bitwise_or.at(bits, at, (1 << (sites.place % BITS_PER_WORD)).astype(np.int32))
    return table, bits, order


def gpu_numbers(plan: Plan, s: int, mask: int) -> tuple[int, ...]:
    """The numbers on their node of a site's GPUs, given as a mask. A node numbers its GPUs through all its groups."""
    site = plan.sites[s]
    first = int(site.first_gpu - plan.sites[plan.nodes[site.node].first_site].first_gpu)
    return tuple(first + g for g in range(int(site.gpus)) if mask >> g & 1)


# ---- views of the cluster ----------------------------------------------------------------------------------------


def empty_view(
    plan: Plan,
    jobs: Table,
    rate: Floats,
    width: Ints,
    *,
    demands: int,
    spread: Ints,
    home: Ints,
    users: int = 1,
    shapes: Table = NO_SHAPES,
) -> View:
    """A view of the empty cluster, with jobs that are still to be submitted."""
    parts = records(PART, max(1, len(plan.gpus)))
    parts.next = np.arange(1, len(parts) + 1)
    parts[-1].next = NOBODY
    clock = records(CLOCK, 1)
    clock[0].demand = NOBODY
    clock[0].paced = is_paced(plan)
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
        clock=clock,
        demands=no_demands(demands),
        shapes=shapes,
        queue=np.zeros(2 * count + 2, np.int32),
        running=np.zeros(count + 1, np.int32),
        released=np.zeros(RECENT, np.int32),
        spread=spread,
        bits=plan.bits.copy(),
        form_sites=plan.form_sites,
        pool_sites=plan.pool_sites,
        rate=rate,
        width=width,
        spare=spare_of(plan),
        fastest=np.full(demands, NOT_ASKED),
        home=home,
        mix=np.zeros((MIX_ROWS, MIX_COLUMNS)),
    )


def no_demands(count: int) -> Table:
    """A table of this many demands, with no waiting jobs and nothing known."""
    found = records(DEMAND, count)
    found.tried = found.first = found.last = found.next = found.previous = NOBODY
    return found


def spare_of(plan: Plan) -> Ints:
    """[P, GPUs + 1] number of sites in each pool by their number of free GPUs; all GPUs are free."""
    spare = np.zeros((len(plan.pools), int(plan.sites.gpus.max(initial=0)) + 1), np.int32)
    np.add.at(spare, (plan.sites.pool, plan.sites.gpus), 1)
    return spare


def fill_kind(
    plan: Plan, job: Any, family: str, allowed: Collection[str], speed: SpeedOf, rate: Floats, width: Ints
) -> None:
    """Fill in how fast jobs like this row run on each form, and on how many nodes.

    Only models in `allowed` are filled in; an empty `allowed` means all models.
    """
    if job.gpus == 0:
        rate[:], width[:] = 1.0, 1
        return
    for p, name in enumerate(plan.models):
        if name != CPU_ONLY and (not allowed or name in allowed):
            fill_pool(plan, p, job, family, speed, rate, width)


def fill_pool(plan: Plan, p: int, job: Any, family: str, speed: SpeedOf, rate: Floats, width: Ints) -> None:
    """Fill in how fast a kind runs on the forms of one pool, and on how many nodes."""
    members = [h for h, form in enumerate(plan.form_records) if plan.forms[h].pool == p]
    if plan.form_records[members[0]].gpu_memory < job.gpu_memory:
        return
    nodes = fewest_nodes([(plan.form_records[h].gpus, int(plan.forms[h].sites)) for h in members], int(job.gpus))
    model = plan.cluster.models[plan.models[p]]
    gpus = int(job.gpus)
    amount = gpus * job.share / WHOLE_GPU
    found: dict[Link, float] = {}
    for h in members:
        form = plan.form_records[h]
        if nodes > 1 or (nodes == 1 and form.gpus >= gpus):
            if form.link not in found:
                at = Placing(model, gpus, nodes, form.link, plan.cluster.network)
                found[form.link] = amount * speed(family, at).value
            rate[h] = found[form.link]
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
    """The expected speed factor of a job that takes `taken` of these GPUs at random and runs at the slowest one.

    `factors` are in ascending order. The result averages the run time, not the speed.
    """
    many = len(factors)
    if not 0 < taken <= many:
        return 1.0
    ways = math.comb(many, taken)
    time = sum(math.comb(many - i - 1, taken - 1) / factor for i, factor in enumerate(factors))
    return ways / time


def fewest_nodes(sizes: Sequence[tuple[int, int]], gpus: int) -> int:
    """The fewest empty nodes that give a gang this many GPUs, largest nodes first; 0 if there are not enough."""
    nodes = 0
    for size, count in sorted(sizes, reverse=True):
        needed = -(-gpus // size) if size else count
        taken = min(count, needed)
        nodes, gpus = nodes + taken, gpus - taken * size
        if gpus <= 0:
            return nodes
    return 0
