"""The demo cluster, and simulated clusters in general: their nodes, jobs and disturbances."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Final

import numpy as np

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.entries import arriving
from adlro.backends.simulated.heating import Heating
from adlro.catalogue.clusters import load_cluster, parse_cluster
from adlro.catalogue.speeds import bandwidth_used, speed_of
from adlro.core.ports import JobState, LiveJob, Snapshot, Submission
from adlro.core.records import WHOLE_GPU, Cluster, Disturbance, GpuModel, Job
from adlro.core.tables import Jobs
from adlro.core.units import DAY_S, HOUR_S
from adlro.experiment.instance import cold_gpus, jobs_of
from adlro.experiment.scenario import Recorded, find_workload, load_scenario, named_as_in
from adlro.ingest.synthetic import generate
from adlro.normalise.pack import unpack_job

_CLUSTER: Final = """
name = "demo32"
summary = "The paper's cluster twice: 16 Volta (V100), 8 Turing (T4), 8 AMD Radeon (Instinct MI50), 4 per node"

[network]
kind = "infiniband-edr"
gb_s = 25

[[nodes]]
name = "volta"
count = 4
gpu = "v100-sxm2-16gb"
gpus = 4
cpus = 32
memory_gb = 256
link = "nvlink"

[[nodes]]
name = "turing"
count = 2
gpu = "t4"
gpus = 4
cpus = 32
memory_gb = 256
link = "pcie"

[[nodes]]
name = "radeon"
count = 2
gpu = "mi50"
gpus = 4
cpus = 32
memory_gb = 256
link = "xgmi"
"""

WORKLOAD: Final = "paper"
MEAN_INTERARRIVAL_S: Final = 130.0
"""With this, most GPUs are busy and some jobs wait under a good policy."""

WAITING_AT_FIRST: Final = 40
MOST_WAITING: Final = 120
BLOCK: Final = 500
QUARTER_S: Final = 900.0
LIMIT_FACTOR: Final = 8.0
"""How much more time the demo's users ask for than they need, on the reference model."""

WORN: Final = 0.65

ERROR: Final = 0.15
"""Spread of the logarithm of the users' estimates."""

_GROUPS: Final = (
    "astro", "climate", "fluids", "genome", "geo", "imaging", "language", "materials", "neuro", "optics",
    "physics", "plasma", "proteins", "robotics", "speech", "storms", "surveys", "traffic", "vision", "waves",
)  # fmt: skip
"""The owners of the jobs: accounts of groups."""

TITLES: Final[Mapping[str, tuple[str, ...]]] = {
    "simulation": ("turbulence", "relaxation", "lattice", "transport", "n-body", "ocean", "mesh"),
    "learning": ("train", "finetune", "distil", "sweep", "pretrain", "detect"),
    "data": ("tokenise", "join", "resample", "index", "filter", "archive"),
}

MADE_UP: Final = ("utilisation", "temperature", "memory", "power", "bandwidth")
"""The telemetry of a GPU of the demo."""

IDLE_HEAT: Final = 0.34
WARM_UP_S: Final = 240.0
_BUSY: Final[Mapping[str, float]] = {"simulation": 0.93, "learning": 0.86, "data": 0.64}
"""How much of the time a GPU is busy under a family; made up, as all figures of the demo."""


def demo_cluster() -> Cluster:
    """The cluster of the demo."""
    return parse_cluster(_CLUSTER, "the demo's cluster")


def demo_backend(
    speed: float = 60.0, seed: int = 0, clock: Callable[[], float] | None = None, room_c: float | None = None
) -> Simulated:
    """A cluster with a queue from the start, endless jobs, a node that fails and one that wears.

    With `room_c`, its GPUs become hot, in a room of this temperature.
    """
    cluster = demo_cluster()
    return Simulated(
        cluster,
        speed_of,
        speed=speed,
        clock=clock,
        arrivals=demo_arrivals(cluster, seed),
        disturbances=demo_disturbances(cluster, seed),
        restart_s=30.0,
        keep_ended_s=2 * HOUR_S,
        most_waiting=MOST_WAITING,
        heating=heating_of(cluster, room_c, seed),
    )


def heating_of(cluster: Cluster, room_c: float | None, seed: int) -> Heating | None:
    """The heat of a cluster in a room of this temperature; None without one."""
    return None if room_c is None else Heating(cluster, cold_gpus(cluster, room_c, seed))


def simulated_backend(
    cluster: str,
    workload: str | None,
    speed: float = 60.0,
    seed: int = 0,
    load: float | None = None,
    clock: Callable[[], float] | None = None,
    room_c: float | None = None,
) -> Simulated:
    """A simulated cluster by name or file, with the jobs of a workload or trace, or only submitted ones.

    With `room_c`, its GPUs become hot, in a room of this temperature.
    """
    if workload is None:
        alone = load_cluster(cluster)
        heating = heating_of(alone, room_c, seed)
        return Simulated(alone, speed_of, speed=speed, clock=clock, restart_s=30.0, heating=heating)
    scenario = load_scenario(cluster, workload, load=load)
    if isinstance(scenario.workload, Recorded):
        table = jobs_of(scenario.workload, seed, None)
    else:
        table = generate(scenario.workload, seed)
    table = named_as_in(scenario.cluster, table)
    first_s = float(table.table["submit"][0]) if len(table) else 0.0
    jobs = (replace(job, submit_s=job.submit_s - first_s) for job in rows(table))
    return Simulated(
        scenario.cluster, speed_of, speed=speed, clock=clock, arrivals=arriving(jobs), restart_s=30.0,
        heating=heating_of(scenario.cluster, room_c, seed),
    )  # fmt: skip


def rows(jobs: Jobs) -> Iterator[Job]:
    """The jobs of a table as records, one by one."""
    return (unpack_job(jobs, j) for j in range(len(jobs)))


def demo_arrivals(cluster: Cluster, seed: int) -> Iterator[Submission]:
    """Endless jobs of the paper's families; the first ones arrive at the start."""
    drawn = drawn_jobs(cluster, seed)
    early = list(islice(drawn, WAITING_AT_FIRST))
    opening_s = early[-1].submit_s
    yield from arriving(replace(job, submit_s=0.0) for job in early)
    yield from arriving(replace(job, submit_s=job.submit_s - opening_s) for job in drawn)


def drawn_jobs(cluster: Cluster, seed: int) -> Iterator[Job]:
    """Jobs drawn in blocks: within a block names recur, and jobs of one name are alike."""
    workload = find_workload(WORKLOAD)
    arrivals = workload.arrivals.model_copy(update={"mean_interarrival_s": MEAN_INTERARRIVAL_S})
    workload = workload.model_copy(update={"arrivals": arrivals})
    begin_s = 0.0
    for block in count():
        table = named_as_in(cluster, generate(workload, seed + block, BLOCK))
        errors = np.random.default_rng((seed, block)).normal(0.0, ERROR, len(table))
        for job, error in zip(rows(table), errors.tolist(), strict=True):
            yield dressed(replace(job, submit_s=begin_s + job.submit_s), block, math.exp(error))
        begin_s += float(table.table["submit"][-1])


def dressed(job: Job, block: int, error: float) -> Job:
    """A drawn job as a user would hand it in: a name to recognise, and a generous limit.

    One group in three says nothing of its work; the others err, and some of them always say too much.
    """
    number = int(job.name.removeprefix("name"))
    user = int(job.user.removeprefix("user")) % len(_GROUPS)
    titles = TITLES[job.family]
    name = f"{titles[(number + user) % len(titles)]}-{block * BLOCK + number + 1}"
    seconds = job.work / max(1.0, job.gpus * job.share / WHOLE_GPU)
    limit_s = math.ceil(LIMIT_FACTOR * seconds / QUARTER_S) * QUARTER_S
    estimate = None if user % 3 == 2 else round(job.work * error * (1.0 + user % 4 / 4))
    return replace(job, user=_GROUPS[user], name=name, limit_s=limit_s, estimate=estimate)


def demo_disturbances(cluster: Cluster, seed: int) -> Iterator[Disturbance]:
    """Every day the GPUs of a node run at 65 % for some hours, and another node is away for one.

    The first is one with the cluster's first model, which every policy uses: what happens there is soon seen.
    """
    chance = np.random.default_rng(seed)
    first = [node for node in cluster.nodes if node.gpus[0].model == cluster.nodes[0].gpus[0].model]
    for day in count():
        worn = first[chance.integers(len(first))]
        others = [node for node in cluster.nodes if node is not worn]
        failed = others[chance.integers(len(others))]
        gpus = range(sum(group.count for group in worn.gpus))
        begin_s = day * DAY_S
        yield from (Disturbance(begin_s + 2 * HOUR_S, "speed", worn.name, gpu, WORN) for gpu in gpus)
        yield Disturbance(begin_s + 5 * HOUR_S, "down", failed.name)
        yield Disturbance(begin_s + 6 * HOUR_S, "up", failed.name)
        yield from (Disturbance(begin_s + 18 * HOUR_S, "speed", worn.name, gpu, 1.0) for gpu in gpus)


# ---- what its GPUs would say -------------------------------------------------------------------------------------


def telemetry(backend: Simulated, snapshot: Snapshot) -> dict[str, dict[str, float | None]]:
    """Figures made up from what runs, by "node/index", each from 0 to 1 as in docs/telemetry.md; a GPU of a node that
    is down says nothing. Of a cluster with heat, temperature, power and clocks are those of its heat.
    """
    holders = jobs_by_gpu(snapshot)
    found: dict[str, dict[str, float | None]] = {}
    for node in snapshot.cluster.nodes:
        index = 0
        for group in node.gpus:
            model = snapshot.cluster.models[group.model]
            for _ in range(group.count):
                key = f"{node.name}/{index}"
                if node.name in snapshot.down and not holders.get(key):
                    found[key] = dict.fromkeys(MADE_UP)
                else:
                    jobs = holders.get(key, [])
                    figures = found[key] = _figures(key, jobs, snapshot.time_s, model.memory_gb)
                    figures["bandwidth"] = _bandwidth(backend, jobs, model)
                    figures |= {name: round(value, 3) for name, value in backend.heat_of(node.name, index).items()}
                index += 1
    return found


def jobs_by_gpu(snapshot: Snapshot) -> dict[str, list[LiveJob]]:
    """The jobs that run on each GPU, by "node/index"."""
    found: dict[str, list[LiveJob]] = {}
    for live in snapshot.jobs:
        if live.state is JobState.RUNNING:
            for part in live.parts:
                for index in part.indices:
                    found.setdefault(f"{part.node}/{index}", []).append(live)
    return found


def _figures(key: str, jobs: list[LiveJob], now_s: float, memory_gb: float) -> dict[str, float | None]:
    """The telemetry of one GPU: busy as its jobs are, warmer the longer they run, never quite constant."""
    ripple = math.sin(now_s / 37.0 + sum(map(ord, key)))
    busy = memory = warm = 0.0
    for live in jobs:
        share = live.job.share / WHOLE_GPU
        busy += share * _BUSY.get(live.job.family, 0.8)
        memory += max(live.job.gpu_memory_gb, 0.3 * share * memory_gb) / memory_gb
        warm = max(warm, 1.0 - math.exp(-(now_s - (live.started_s or now_s)) / WARM_UP_S))
    busy = min(1.0, max(0.0, busy * (1.0 + 0.05 * ripple)))
    return {
        "utilisation": round(busy, 3),
        "temperature": round(IDLE_HEAT + 0.45 * busy * warm + 0.01 * ripple, 3),
        "memory": round(min(1.0, memory), 3),
        "power": round(min(1.0, 0.12 + 0.8 * busy), 3),
    }


def _bandwidth(backend: Simulated, jobs: Sequence[LiveJob], model: GpuModel) -> float | None:
    """The share of a GPU's memory bandwidth that its jobs use; None if one of them says nothing of it."""
    total = 0.0
    for live in jobs:
        used = bandwidth_used(live.job.family, model, backend.speed_of_job(live.id))
        if used is None:
            return None
        total += used * live.job.share / WHOLE_GPU
    return round(min(1.0, total), 3)
