"""Small cases by hand: nodes as (model, GPUs), jobs as (submit, work, GPUs), and what became of each job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from tests.both import Ran, run_compiled
from tests.reference import Options
from tests.strategies import Scenario, gpu_model

from adlro.core.policy import Policy
from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed
from adlro.decide.catalogue import find_policy

ANY = "any"
CORES = 64.0

SpeedTable = Mapping[str, Mapping[str, float]]


class Fate(NamedTuple):
    """What became of a job: its first start, the site of its last one, its finish, and how often it was stopped."""

    start: float
    site: int
    finish: float
    stops: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster of one node for each (model, GPUs) or (model, GPUs, cores), and what it is to do.

    A job is (submit, work), (submit, work, GPUs) or (submit, work, GPUs, more fields of Job). Speed is 1 where the
    table (family → model → speed) says nothing, and crossing nodes is free.
    """

    nodes: Sequence[tuple[str, int] | tuple[str, int, float]]
    jobs: Sequence[tuple[Any, ...]]
    speeds: SpeedTable = field(default_factory=dict)
    affinity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    restart_s: float = 0.0
    window: int = 0
    disturbances: Sequence[Disturbance] = ()
    weights: str = "equal"


def run(case: Case, policy: str | Policy, seed: int = 0) -> dict[int, Fate]:
    """What the policy makes of each job that finishes, by submit order."""
    ran = play(case, policy, seed)
    starts: dict[int, list[tuple[float, int]]] = {}
    finished: dict[int, float] = {}
    stops: dict[int, int] = {}
    for time, what, job, detail in ran.events:
        if what == "start":
            starts.setdefault(job, []).append((time, int(str(detail[0]))))
        elif what == "finish":
            finished[job] = time
        elif what == "stop":
            stops[job] = stops.get(job, 0) + 1
    return {
        job: Fate(starts[job][0][0], starts[job][-1][1], finished[job], stops.get(job, 0)) for job in sorted(finished)
    }


def play(case: Case, policy: str | Policy, seed: int = 0) -> Ran:
    """The whole run."""
    return run_compiled(
        scenario_of(case), find_policy(policy) if isinstance(policy, str) else policy, seed, case.weights
    )


def scenario_of(case: Case) -> Scenario:
    """The case in the words of the simulators."""
    link = Link("pcie", 32.0)
    nodes = tuple(
        Node(f"n{number}", node[2] if len(node) == 3 else CORES, 256.0, (Gpus(node[0], node[1]),), link)
        for number, node in enumerate(case.nodes)
    )
    models = {model: gpu_model(model) for model, *_ in case.nodes}
    cluster = Cluster("hand", "", nodes, link, models, dict(case.affinity))
    options = Options(restart_s=case.restart_s, window=case.window)
    jobs = [job_of(*job) for job in case.jobs]
    return Scenario(cluster, jobs, partial(tabled, case.speeds), options, list(case.disturbances))


def job_of(submit_s: float, work: float, gpus: int = 1, more: Mapping[str, Any] | None = None) -> Job:
    """A job from its short form."""
    return Job(**{"family": ANY, **(more or {})}, submit_s=submit_s, work=work, gpus=gpus)


def tabled(speeds: SpeedTable, family: str, placing: Placing) -> Speed:
    """The speed that the table names, else 1."""
    assert placing.model is not None
    return Speed(speeds.get(family, {}).get(placing.model.name, 1.0), MEASURED)


# ---- at random ---------------------------------------------------------------------------------------------------

MIXED = (("ada", 4, 16.0), ("ada", 4, 16.0), ("bell", 2, 16.0), ("bell", 4, 16.0), ("none", 0, 16.0))
MIXED_SPEEDS = {"fluids": {"ada": 1.0, "bell": 0.25}, "vision": {"ada": 1.0, "bell": 0.5}, "tables": {"ada": 0.5}}


def mixed_case(seed: int, jobs: int = 24) -> Case:
    """A busy cluster of two models, with gangs, shares, jobs without GPUs, allowed models, outages and a window of 3.

    Estimates are wrong by up to a factor of two either way. One job in some twenty can never run and is refused.
    """
    source = Random(seed)
    submitted = []
    at = 0.0
    for number in range(jobs):
        at += source.choice((0.0, source.expovariate(1 / 20)))
        gpus = source.choice((0, 1, 1, 1, 1, 2, 2, 3, 4, 6, 8, source.choice((1, 9))))
        work = source.uniform(50, 1500) * max(gpus, 1)
        more: dict[str, Any] = {
            "family": source.choice(tuple(MIXED_SPEEDS)),
            "share": source.choice((1000, 1000, 250, 500)) if gpus == 1 else 1000,
            "cpus": source.choice((0.0, 1.0, 2.0)) * max(gpus, 1) if gpus < 8 else 4.0,
            "memory_gb": source.choice((0.0, 16.0, 100.0)),
            "gpu_memory_gb": source.choice((0.0, 4.0, 12.0)),
            "models": frozenset(source.choice(((), (), (), ("ada",), ("bell",), ("ada", "absent")))),
            "priority": source.random(),
            "user": source.choice(("", "ann", "bob")),
            "name": source.choice(("train", "test")),
            "estimate": work * source.uniform(0.5, 2.0),
            "checkpoint": source.choice((None, 0.0, 100.0)),
        }
        if number % 5 == 0:
            more["estimate"] = work
        submitted.append((at, work, gpus, more))
    outages = []
    for node in range(3):
        down = source.uniform(0.0, 2000.0)
        outages += [Disturbance(down, "down", f"n{node}"), Disturbance(down + 500.0, "up", f"n{node}")]
    worn = Disturbance(source.uniform(0.0, 2000.0), "speed", "n1", source.randrange(4), 0.5)
    return Case(
        nodes=MIXED,
        jobs=submitted,
        speeds=MIXED_SPEEDS,
        restart_s=20.0,
        window=source.choice((0, 3)),
        disturbances=[*outages, worn],
    )
