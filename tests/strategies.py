"""Random small clusters, jobs, speeds, options and disturbances for hypothesis.

All numbers are exact in binary: times are multiples of 1/8, speeds and wear are powers of two, and whatever is divided
by 3 (a gang of 3 or 6, a share of 3/4) is a multiple of 3. So two right simulators compute the same times and the same
ties, whatever the order of their sums.
"""

from dataclasses import dataclass, replace
from functools import partial

from hypothesis import strategies as st
from tests.reference import Options

from adlro.core.records import (
    MEASURED,
    WHOLE_GPU,
    Cluster,
    Disturbance,
    GpuModel,
    Gpus,
    Job,
    Link,
    Node,
    Placing,
    Speed,
    SpeedOf,
)

MODEL_NAMES = ("ada", "bell", "curie")
FAMILIES = ("fluids", "vision")
SLOW_LINK_GB_S = 16.0
SPEEDS = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run is made of, but the policy."""

    cluster: Cluster
    jobs: list[Job]
    speed: SpeedOf
    options: Options
    disturbances: list[Disturbance]


def gpu_model(name: str, memory_gb: float = 16.0) -> GpuModel:
    """A GPU model of which only the name and the memory matter."""
    return GpuModel(name, name, "nobody", "none", memory_gb, 512.0, 256.0, 32.0)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """1 to 6 nodes with up to 4 GPUs of each of at most 3 models, or with none."""
    names = MODEL_NAMES[: draw(st.integers(1, len(MODEL_NAMES)))]
    models = {name: gpu_model(name, draw(st.sampled_from((8.0, 16.0)))) for name in names}
    groups = st.builds(Gpus, model=st.sampled_from(names), count=st.integers(1, 4))
    some_gpus = st.lists(groups, min_size=1, max_size=2, unique_by=lambda gpus: gpus.model).map(tuple)
    node = st.builds(
        Node,
        name=st.just(""),
        cpus=st.sampled_from((4.0, 8.0, 16.5)),
        memory_gb=st.sampled_from((16.0, 32.0, 64.125)),
        gpus=st.sampled_from((True, True, True, False)).flatmap(
            lambda any_gpus: some_gpus if any_gpus else st.just(())
        ),
        link=st.sampled_from((Link("pcie", SLOW_LINK_GB_S), Link("nvlink", 128.0))),
    )
    nodes = tuple(replace(draw(node), name=f"n{index}") for index in range(draw(st.integers(1, 6))))
    return Cluster("small", "drawn at random", nodes, Link("ethernet", 8.0), models)


@st.composite
def jobs(draw: st.DrawFn, cluster: Cluster) -> Job:
    """One job: a gang (often wider than a node), a share of a GPU, or no GPU; sometimes one that can never run."""
    pools = [sum(g.count for n in cluster.nodes for g in n.gpus if g.model == name) for name in cluster.models]
    sizes = [gpus for gpus in (1, 2, 3, 4, 6, 8) if gpus <= max(pools)]
    gpus = draw(st.sampled_from((1, *sizes, *sizes, *sizes, 0, 8)))
    share = draw(st.sampled_from((WHOLE_GPU, 125, 250, 500, 750))) if gpus == 1 else WHOLE_GPU
    elastic = gpus in (1, 2, 4, 8) and share == WHOLE_GPU
    other_sizes = draw(st.sampled_from(("", "", "1,2,4", "1,2", "2,8", "4"))) if elastic else ""
    unit = 3.0 if gpus % 3 == 0 or share == 750 else 1.0
    amounts = st.integers(0, 48).map(lambda count: unit * count)
    eighths = st.integers(0, 36).map(lambda count: count / 8)
    some_models = st.frozensets(st.sampled_from((*cluster.models, *MODEL_NAMES, "absent")), min_size=1, max_size=3)
    return Job(
        family=draw(st.sampled_from(FAMILIES)),
        work=draw(amounts),
        submit_s=draw(st.integers(0, 24)) / 2,
        gpus=gpus,
        share=share,
        cpus=draw(st.just(0.0) | eighths.map(lambda cores: cores * max(1, gpus // 2))),
        memory_gb=draw(st.just(0.0) | eighths.map(lambda gb: gb * 4)),
        gpu_memory_gb=draw(st.sampled_from((0.0, 0.0, 2.125, 4.0, 4.0, 8.0, 8.0, 12.0))),
        models=draw(st.just(frozenset[str]()) | st.just(frozenset[str](MODEL_NAMES)) | some_models),
        limit_s=draw(st.none() | st.integers(1, 40).map(lambda count: count / 2)),
        estimate=draw(st.none() | amounts),
        checkpoint=draw(st.none() | st.just(0.0) | st.integers(1, 8).map(lambda count: unit * count)),
        sizes=other_sizes,
        start_s=draw(st.sampled_from((0.0, 0.0, 0.0, 0.5, 3.0))),
        restart_s=draw(st.sampled_from((None, None, None, 0.0, 1.25))),
    )


def tabled_speed(
    table: dict[tuple[str, str], float], across_nodes: float, over_slow_link: float, family: str, placing: Placing
) -> Speed:
    """The speed from a table by family and model, less over several nodes and over a slow link."""
    assert placing.model is not None
    value = table[family, placing.model.name]
    if placing.nodes > 1:
        value *= across_nodes
    if placing.gpus > 1 and placing.link.gb_s <= SLOW_LINK_GB_S:
        value *= over_slow_link
    return Speed(value, MEASURED)


@st.composite
def speeds(draw: st.DrawFn) -> SpeedOf:
    """A speed for each family and model, 0 now and then; crossing nodes and a slow link may cost half of it."""
    values = st.sampled_from((*SPEEDS, *SPEEDS, *SPEEDS, 0.0))
    table = {(family, name): draw(values) for family in FAMILIES for name in MODEL_NAMES}
    halves = st.sampled_from((0.5, 1.0))
    return partial(tabled_speed, table, draw(halves), draw(halves))


def options() -> st.SearchStrategy[Options]:
    """Restart costs, limits that kill, windows."""
    return st.builds(
        Options,
        restart_s=st.sampled_from((0.0, 0.5, 2.0)),
        kill_at_limit=st.booleans(),
        window=st.sampled_from((0, 0, 1, 2, 3)),
    )


@st.composite
def disturbances(draw: st.DrawFn, cluster: Cluster) -> list[Disturbance]:
    """Nodes that go down and mostly come back, GPUs that wear; some change nothing, many share a moment."""
    times = st.integers(0, 60).map(lambda count: count / 2)
    found: list[Disturbance] = []
    for what in draw(st.lists(st.sampled_from(("outage", "outage", "speed", "speed", "down", "up")), max_size=6)):
        node, time_s = draw(st.sampled_from(cluster.nodes)), draw(times)
        gpus = sum(group.count for group in node.gpus)
        if what == "outage":
            back_s = time_s + draw(st.sampled_from((0.0, 0.5, 4.0, 16.0)))
            found += [Disturbance(time_s, "down", node.name), Disturbance(back_s, "up", node.name)]
        elif what != "speed":
            found.append(Disturbance(time_s, what, node.name))
        elif gpus:
            gpu, factor = draw(st.integers(0, gpus - 1)), draw(st.sampled_from(SPEEDS))
            found.append(Disturbance(time_s, what, node.name, gpu, factor))
    return found


@st.composite
def scenarios(draw: st.DrawFn, most_jobs: int = 16) -> Scenario:
    """A random run, but the policy."""
    cluster = draw(clusters())
    submitted = [draw(jobs(cluster)) for _ in range(draw(st.integers(1, most_jobs)))]
    return Scenario(cluster, submitted, draw(speeds()), draw(options()), draw(disturbances(cluster)))


@st.composite
def wide_scenarios(draw: st.DrawFn) -> Scenario:
    """A run on up to 40 nodes of 1 to 3 GPUs of one model, with gangs over many of them and some jobs on one GPU."""
    sizes = draw(st.lists(st.sampled_from((1, 1, 2, 3)), min_size=33, max_size=40))
    link = Link("pcie", SLOW_LINK_GB_S)
    nodes = tuple(
        Node(f"n{n}", float(draw(st.sampled_from((4, 8)))), 64.0, (Gpus("ada", size),), link)
        for n, size in enumerate(sizes)
    )
    cluster = Cluster("wide", "drawn at random", nodes, Link("ethernet", 8.0), {"ada": gpu_model("ada")})
    gangs = st.sampled_from((1, 4, 8, 16, 32, 64))
    submitted = [
        Job(
            "any",
            work=64.0 * draw(st.integers(1, 16)),
            submit_s=draw(st.integers(0, 24)) / 2,
            gpus=min(gpus := draw(gangs), 32),
            cpus=float(draw(st.sampled_from((0, 0, 1, 2)))) * min(gpus, 32),
            estimate=draw(st.none() | st.integers(1, 16).map(lambda count: 64.0 * count)),
        )
        for _ in range(draw(st.integers(4, 14)))
    ]
    speed = partial(tabled_speed, {("any", "ada"): 1.0}, 0.5, 1.0)
    return Scenario(cluster, submitted, speed, draw(options()), draw(disturbances(cluster)))
