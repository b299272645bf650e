"""Small clusters of two GPU models, and runs on them told as who started where and when."""

from collections.abc import Sequence

from tests.both import Ran, run_compiled
from tests.reference import Options
from tests.strategies import Scenario, gpu_model

from adlro.core.policy import Policy
from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed

ADA, BELL = "ada", "bell"

SPEEDS = {
    "same": {ADA: 1.0, BELL: 1.0},
    "ada": {ADA: 1.0, BELL: 0.25},
    "bell": {ADA: 0.25, BELL: 1.0},
    "half": {ADA: 1.0, BELL: 0.5},
    "less": {ADA: 1.0, BELL: 0.4},
}
"""Speed by family: two that each have their model, two that lose more or less on the second one."""


def cluster_of(*groups: dict[str, int]) -> Cluster:
    """A cluster with one node for each mapping of model to count."""
    link = Link("pcie", 32.0)
    nodes = tuple(
        Node(f"n{i}", 8.0, 64.0, tuple(Gpus(model, count) for model, count in group.items()), link)
        for i, group in enumerate(groups)
    )
    return Cluster("hand", "", nodes, link, {ADA: gpu_model(ADA), BELL: gpu_model(BELL)})


def speed(family: str, placing: Placing) -> Speed:
    """The speed by family and model."""
    return Speed(SPEEDS[family][placing.model.name] if placing.model else 1.0, MEASURED)


def run(
    policy: Policy,
    cluster: Cluster,
    jobs: list[Job],
    restart_s: float = 0.0,
    disturbances: Sequence[Disturbance] = (),
) -> Ran:
    """Run the jobs to their end."""
    return run_compiled(Scenario(cluster, jobs, speed, Options(restart_s=restart_s), list(disturbances)), policy)


def starts(ran: Ran) -> list[tuple[float, int, int]]:
    """When each job was started, which, and at which site."""
    return [(time, job, int(str(detail[0]))) for time, what, job, detail in ran.events if what == "start"]


def finishes(ran: Ran) -> dict[int, float]:
    """When each job finished."""
    return {job: time for time, what, job, _ in ran.events if what == "finish"}


def stops(ran: Ran) -> list[tuple[float, int]]:
    """When which job was stopped."""
    return [(time, job) for time, what, job, _ in ran.events if what == "stop"]
