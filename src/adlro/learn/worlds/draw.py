"""Worlds to train in: random clusters and menus of jobs over a wide range, or a given cluster and workload.

Clusters are planned and jobs are packed as for a run. Then all worlds are padded to one size, so that one compiled
function steps them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from adlro.catalogue.families import families
from adlro.catalogue.gpus import gpu_models
from adlro.catalogue.speeds import speed_of
from adlro.core.errors import TraceError
from adlro.core.plan import Plan, plan_cluster
from adlro.core.records import WHOLE_GPU, Cluster, Gpus, Link, Node, Placing, Speed
from adlro.core.tables import FORM, GPU, JOB, NODE, PART, POOL, REFUSED, SITE, Jobs, Table, View
from adlro.ingest.synthetic import generate
from adlro.ingest.workload_file import Workload
from adlro.learn.worlds.envs import WORLD, Worlds
from adlro.normalise.pack import pack

_MENU: Final = 512
"""Number of jobs on the menu of a random world."""

_MOST_NODES: Final = 96

Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class DrawnWorld:
    """One world before padding: the cluster, its view with the menu of jobs, and their true work."""

    plan: Plan
    view: View
    jobs: Jobs
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The range from which random worlds are drawn."""

    gpus: tuple[int, int] = (8, 256)
    models: tuple[int, int] = (1, 6)
    one_model: float = 0.2  # share of clusters with a single model, whatever `models` says: most real ones have few
    gangs: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 32)
    mostly_one: float = 0.3  # share of workloads with mostly single-GPU jobs, like most real logs
    giants: float = 0.0  # share of workloads in which a few jobs are much longer than the others
    speed_error: float = 0.35  # standard deviation of the logarithm of a speed's factor to the catalogue's


def random_worlds(count: int, seed: int, within: Range = Range()) -> list[DrawnWorld]:  # noqa: B008  (frozen)
    """Draw `count` worlds at random; the same seed gives the same worlds."""
    found: list[DrawnWorld] = []
    random = np.random.default_rng(seed)
    while len(found) < count:
        world = random_world(random, within)
        if np.count_nonzero(world.view.runs.state != REFUSED) >= _MENU // 2:
            found.append(world)
    return found


def random_world(random: Random, within: Range) -> DrawnWorld:
    """A cluster of a few GPU models in a few kinds of nodes, and jobs of a few families in gangs of several sizes."""
    plan = plan_cluster(random_cluster(random, within))
    jobs = generate(random_workload(random, plan, within), int(random.integers(2**31)), _MENU)
    return make_world(plan, jobs, wrong_by(random, within.speed_error))


def make_world(
    plan: Plan, jobs: Jobs, speed: Callable[[str, Placing], Speed] = speed_of, in_order: bool = False
) -> DrawnWorld:
    """A world with a given cluster and given jobs."""
    return DrawnWorld(plan, pack(plan, jobs, speed), jobs, in_order)


def worlds_of(cluster: str | Cluster, workload: str | Any, count: int, seed: int) -> list[DrawnWorld]:
    """Worlds with a given cluster, each with other jobs of a workload. A trace gives one world."""
    from adlro.experiment.instance import draw
    from adlro.experiment.scenario import load_scenario

    scenario = load_scenario(cluster, workload, None)
    if not scenario.varies:
        instance = draw(scenario, 0)
        return [DrawnWorld(scenario.plan, instance.view, instance.jobs, True)]
    scenario = load_scenario(cluster, workload, _MENU)
    drawn = [draw(scenario, each) for each in range(seed, seed + count)]
    return [DrawnWorld(scenario.plan, instance.view, instance.jobs) for instance in drawn]


def random_cluster(random: Random, within: Range) -> Cluster:
    """A cluster whose size is drawn evenly on a logarithmic scale."""
    catalogue = gpu_models()
    kinds = int(random.integers(within.models[0], within.models[1] + 1)) if random.random() >= within.one_model else 1
    models = random.choice(list(catalogue), kinds, replace=False)
    wanted = int(np.exp(random.uniform(*np.log(within.gpus))))
    shares = random.dirichlet(np.full(len(models), 1.5))
    nodes: list[Node] = []
    for model, share in zip(models, shares, strict=True):
        on_a_node = int(random.choice((1, 2, 4, 8), p=(0.1, 0.2, 0.4, 0.3)))
        count = max(1, round(share * wanted / on_a_node))
        link = Link("nvlink", 300.0) if random.random() < 0.5 else Link("pcie", 32.0)
        cores, memory = float(random.choice((8.0, 16.0, 16.0, 32.0))), float(random.choice((64.0, 128.0, 128.0)))
        for n in range(min(count, _MOST_NODES // len(models))):
            gpus = (Gpus(str(model), on_a_node),)
            nodes.append(Node(f"{model}-{n}", cores * on_a_node, memory * on_a_node, gpus, link))
    datasheets = {name: catalogue[name] for name in map(str, models)}
    return Cluster("drawn", "drawn at random", tuple(nodes), Link("infiniband-hdr", 25.0), datasheets)


def random_workload(random: Random, plan: Plan, within: Range) -> Workload:
    """One to five families, each with its own gang sizes and lengths."""
    everything = list(families())
    groups = {name: [each for each in everything if each.startswith(name)] for name in ("gavel/", "sia/")}
    groups["plain"] = [each for each in everything if "/" not in each]
    names = groups[str(random.choice(("plain", "plain", "gavel/", "sia/")))] or groups["plain"]
    largest = int(plan.pools.gpus.max())
    sizes = [size for size in within.gangs if size <= largest]
    middle = float(np.exp(random.uniform(np.log(60.0), np.log(7200.0))))
    parts: list[dict[str, Any]] = []
    mostly_one = random.random() < within.mostly_one
    wide = not mostly_one and random.random() < 0.2  # only large gangs, as in lists of training jobs
    even = random.random() < 0.25  # all jobs of a family have about the same length
    apart = float(random.uniform(0.3, 1.6))  # how far apart the lengths of the families are
    # A few jobs hold most of the work, as in the Philly trace. If this is off, it must not use random numbers.
    giants = within.giants > 0 and random.random() < within.giants
    for name in random.choice(names, min(len(names), int(random.integers(1, 6))), replace=False):
        weights = random.dirichlet(np.full(len(sizes), 0.7)) + 1e-3
        if mostly_one:
            weights = 0.15 * weights + 0.85 * np.eye(len(sizes))[0]
        elif wide:
            weights = np.where(np.array(sizes) >= min(4, largest), weights, 1e-9)
        elif random.random() < 0.35:
            weights = np.eye(len(sizes))[0] + 1e-9
        parts.append(
            {
                "family": str(name),
                "weight": float(random.uniform(0.2, 1.0)),
                "gpus": {str(size): float(weight) for size, weight in zip(sizes, weights, strict=True)},
                "duration": {
                    "distribution": "lognormal",
                    "median_s": middle * float(np.exp(random.normal(0.0, apart))),
                    "sigma": float(random.uniform(0.05, 0.3) if even else random.uniform(0.4, 2.4)),
                    "max_s": 7.0 * 86400.0,
                },
                "cpus_per_gpu": float(random.choice((1.0, 4.0, 8.0, 16.0))),
                "memory_gb_per_gpu": float(random.choice((8.0, 32.0, 64.0))),
                "checkpoint_s": 600.0,
            }
        )
    if giants:
        parts += [giant(random, part) for part in parts]
    return Workload.model_validate(
        {
            "name": "drawn",
            "summary": "drawn at random",
            "jobs": _MENU,
            "arrivals": {"process": "poisson", "mean_interarrival_s": 60.0},
            "families": parts,
            "priorities": {"values": [0.25, 0.5, 0.75, 1.0], "weights": [0.3, 0.4, 0.2, 0.1]},
        }
    )


def giant(random: Random, part: dict[str, Any]) -> dict[str, Any]:
    """A part of a family with a few much longer jobs, in gangs of the same sizes."""
    times = float(np.exp(random.uniform(np.log(20.0), np.log(400.0))))
    duration = {**part["duration"], "median_s": times * part["duration"]["median_s"], "sigma": 0.7}
    return {**part, "weight": part["weight"] * float(random.uniform(0.01, 0.08)), "duration": duration}


def wrong_by(random: Random, spread: float) -> Callable[[str, Placing], Speed]:
    """Speeds with a random factor to the catalogue's for each family and model, like GPUs never seen before."""
    factors: dict[tuple[str, str], float] = {}

    def speed(family: str, at: Placing) -> Speed:
        key = family, at.model.name if at.model else ""
        if key not in factors:
            factors[key] = float(np.exp(spread * random.standard_normal()))
        found = speed_of(family, at)
        return Speed(found.value * factors[key], found.source, found.detail)

    return speed


# ---- capacity of a cluster ---------------------------------------------------------------------------------------


def capacity_load(view: View, work: npt.NDArray[np.float64]) -> float:
    """GPU time that the jobs need with the best split over the GPU models, in seconds of the whole cluster.

    This is the shortest time in which the cluster could do all the work if jobs could be divided freely: a linear
    program over the fraction of each kind of job that goes to each pool.
    """
    table, kinds = view.jobs, len(view.rate)
    runs = view.runs.state != REFUSED
    gpus = np.zeros(kinds)
    gpus[table.kind] = table.gpus * table.share / WHOLE_GPU
    needed = np.bincount(table.kind[runs], weights=work[runs], minlength=kinds) * gpus
    pools = view.forms.pool
    rate = np.zeros((kinds, len(view.pools)))
    for h, pool in enumerate(pools):
        rate[:, pool] = np.maximum(rate[:, pool], view.rate[:, h])
    kind, pool = np.nonzero((rate > 0) & (needed[:, None] > 0))
    if not len(kind):
        return 0.0
    of_kind = np.unique(kind, return_inverse=True)[1]
    share = np.arange(len(kind))
    rows, columns = int(of_kind.max()) + 1, len(kind) + 1
    whole = coo_matrix((np.ones(len(kind)), (of_kind, share)), (rows, columns))
    busy = coo_matrix((needed[kind] / rate[kind, pool], (pool, share)), (len(view.pools), columns)).tolil()
    busy[:, -1] = -view.pools.gpus[:, None]
    cost = np.zeros(columns)
    cost[-1] = 1.0
    found = linprog(cost, busy.tocsr(), np.zeros(len(view.pools)), whole.tocsr(), np.ones(rows), method="highs")
    return float(found.fun)


# ---- side by side ------------------------------------------------------------------------------------------------


def stack(worlds: Sequence[DrawnWorld]) -> Worlds:
    """The worlds padded to the size of the largest. Their menus are the jobs that use a GPU there."""
    views = [world.view for world in worlds]
    learnt = [np.flatnonzero((view.runs.state != REFUSED) & (view.jobs.gpus > 0)) for view in views]
    if not all(map(len, learnt)):
        raise TraceError(f"the workload has no job that uses a GPU of {worlds[0].plan.cluster.name}; nothing to learn.")
    most = max(map(len, learnt))

    def rows(dtype: np.dtype[Any], tables: Sequence[Table]) -> Table:
        return padded([np.asarray(each) for each in tables], dtype).view(np.recarray)

    info = np.zeros(len(worlds), WORLD).view(np.recarray)
    menus = np.zeros((len(worlds), most), JOB).view(np.recarray)
    work = np.zeros((len(worlds), most))
    for n, world in enumerate(worlds):
        view, row = world.view, info[n]
        runs = learnt[n]
        menu = view.jobs[runs]
        menus[n, : len(runs)] = menu
        work[n, : len(runs)] = world.jobs.work[runs]
        row.menu, row.in_order = len(runs), world.in_order
        row.gap = capacity_load(view, world.jobs.work) / len(runs)
        row.unit = float(np.exp(np.mean(np.log(np.maximum(world.jobs.work[runs] / view.fastest[menu["demand"]], 1.0)))))
        row.scale = row.unit
        taken = menu["gpus"] * menu["share"] / WHOLE_GPU
        row.crowd = len(view.gpus) / max(float(taken.mean()), 1.0 / WHOLE_GPU)
        row.sites, row.nodes, row.gpus = len(view.sites), len(view.nodes), len(view.gpus)
        row.forms, row.pools = len(view.forms), len(view.pools)
    menus["user"] = menus["group"] = 0
    return Worlds(
        info=info,
        jobs=menus,
        work=work,
        sites=rows(SITE, [view.sites for view in views]),
        nodes=rows(NODE, [view.nodes for view in views]),
        gpus=rows(GPU, [view.gpus for view in views]),
        forms=rows(FORM, [view.forms for view in views]),
        pools=rows(POOL, [view.pools for view in views]),
        parts=rows(PART, [view.parts for view in views]),
        bits=padded([view.bits for view in views], np.dtype(np.int32)),
        form_sites=padded([view.form_sites for view in views], np.dtype(np.int32)),
        pool_sites=padded([view.pool_sites for view in views], np.dtype(np.int32)),
        spare=padded([view.spare for view in views], np.dtype(np.int32)),
        rate=padded([view.rate for view in views], np.dtype(np.float64)),
        width=padded([view.width for view in views], np.dtype(np.int32)),
        fastest=padded([view.fastest for view in views], np.dtype(np.float64)),
        spread=padded([view.spread for view in views], np.dtype(np.int32)),
        home=padded([view.home for view in views], np.dtype(np.int32)),
    )


def padded(arrays: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The arrays stacked, each padded with zeros to the largest."""
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(arrays[0].ndim))
    whole = np.zeros((len(arrays), *shape), dtype)
    for n, array in enumerate(arrays):
        inside: tuple[Any, ...] = (n, *map(slice, array.shape))
        whole[inside] = array
    return whole
