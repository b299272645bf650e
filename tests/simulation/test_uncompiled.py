"""The same code runs uncompiled, and the same things happen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.both import PLAIN, looking, run_compiled
from tests.reference import Event, Options, random_choices
from tests.strategies import Scenario, gpu_model

from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "import json; from tests.simulation.test_uncompiled import everything; print(json.dumps(everything()))"


def speed(family: str, placing: Placing) -> Speed:
    """Half over several nodes, and a third for the second model: sums that must be rounded in the same way."""
    assert placing.model is not None
    return Speed({"ada": 1.0, "bell": 1 / 3}[placing.model.name] * (0.7 if placing.nodes > 1 else 1.0), MEASURED)


def scenario() -> Scenario:
    """Everything at once: gangs over nodes, shares, jobs without GPUs, limits, restarts, failures and wear."""
    link = Link("pcie", 32.0)
    groups = [(Gpus("ada", 4),), (Gpus("ada", 2), Gpus("bell", 2)), (Gpus("ada", 4),), ()]
    nodes = tuple(Node(f"n{i}", 8.0, 64.0, gpus, link) for i, gpus in enumerate(groups))
    cluster = Cluster("mixed", "", nodes, link, {name: gpu_model(name) for name in ("ada", "bell")})
    random = np.random.default_rng(3)
    jobs = [
        Job(
            "any",
            work=float(random.lognormal(3.0)),
            submit_s=float(random.uniform(0, 60)),
            gpus=gpus,
            share=int(random.choice([300, 1000])) if gpus == 1 else 1000,
            cpus=float(random.uniform(0, 5)),
            gpu_memory_gb=4.0,
            limit_s=float(random.uniform(5, 60)),
            estimate=float(random.lognormal(3.0)),
            checkpoint=float(random.uniform(1, 5)),
        )
        for gpus in [0, 1, 1, 1, 2, 4, 6, 9] * 4
    ]
    disturbances = [
        Disturbance(20.0, "speed", "n1", 3, 0.9),
        Disturbance(25.0, "down", "n0"),
        Disturbance(40.0, "up", "n0"),
        Disturbance(41.0, "speed", "n2", 1, 0.7),
    ]
    return Scenario(cluster, jobs, speed, Options(restart_s=1.5, kill_at_limit=True), disturbances)


def everything() -> dict[str, list[Event]]:
    """What happens in the scenario, by policy."""
    policies = {name: policy for name, (policy, _) in PLAIN.items()} | {"random": looking(random_choices(1), True)}
    return {name: run_compiled(scenario(), policy).events for name, policy in policies.items()}


def test_uncompiled_code_gives_exactly_the_same_events() -> None:
    path = os.pathsep.join([str(ROOT), *(folder for folder in sys.path if folder)])
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    compiled = everything()
    happened = {event[1] for events in compiled.values() for event in events}
    assert happened == {"start", "spread", "finish", "kill", "stop", "fail", "illegal", "down", "up", "speed"}
    assert json.loads(answer.stdout) == json.loads(json.dumps(compiled))
