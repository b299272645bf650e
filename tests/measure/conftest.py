"""Runs written down by hand: nodes a and b with 2 V100 each (sites 0 and 1), node c with 2 T4 of half the speed (2)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from adlro.core.records import Cluster, GpuModel, Gpus, Link, Node
from adlro.core.run import Run
from adlro.core.tables import EVENT, JOB, NOBODY, Jobs, records

MODELS = ("v100", "v100", "t4")
LINK = Link("pcie", 32.0)
CLUSTER = Cluster(
    name="tiny",
    summary="",
    nodes=tuple(Node(name, 8.0, 64.0, (Gpus(model, 2),), LINK) for name, model in zip("abc", MODELS, strict=True)),
    network=LINK,
    models={
        "v100": GpuModel("v100", "V100", "nvidia", "volta", 16.0, 900.0, 300.0, 32.0),
        "t4": GpuModel("t4", "T4", "nvidia", "turing", 16.0, 320.0, 70.0, 32.0),
    },
)
SPEED = (1.0, 0.5)  # by shape


def build(
    jobs: Sequence[dict[str, Any]] = (), events: Sequence[tuple[Any, ...]] = (), unfinished: int = 0, **more: Any
) -> Run:
    """A run of jobs (submit, work, gpus, share, user, priority) and events (time, what, job, site, mask, value)."""
    table = records(JOB, len(jobs))
    kinds: dict[tuple[int, int], int] = {}
    for row, job in zip(table, jobs, strict=True):
        row.submit, row.user = job.get("submit", 0.0), job.get("user", 0)
        row.gpus, row.share, row.limit = job.get("gpus", 1), job.get("share", 1000), np.inf
        row.priority = job.get("priority", 0.5)
        row.kind = kinds.setdefault((int(row.gpus), int(row.share)), len(kinds))
    log = records(EVENT, len(events))
    for number, event in enumerate(events):
        time, what, whose, site, mask, value = event + (NOBODY, NOBODY, 0, 0.0)[len(event) - 2 :]
        log[number] = (time, mask, whose, site, value, what)
    rates = [[(gpus * share / 1000 if gpus else 1.0 / speed) * speed for speed in SPEED] for gpus, share in kinds]
    return Run(
        cluster=CLUSTER,
        jobs=Jobs(table, np.array([job["work"] for job in jobs], np.float64), ("data",), ("ann", "bob", "cy")),
        events=log,
        rate=np.array(rates, np.float64).reshape(len(kinds), len(SPEED)),
        site_form=np.array([0, 0, 1], np.int32),
        site_model=MODELS,
        site_gpus=np.array([2, 2, 2], np.int32),
        site_node=np.array([0, 1, 2], np.int32),
        policy="by-hand",
        seed=7,
        unfinished=unfinished,
        refusals=more.get("refusals", {}),
        illegal=more.get("illegal", 0),
    )


@pytest.fixture(name="build")
def build_run() -> Callable[..., Run]:
    """The function that builds a run by hand."""
    return build
