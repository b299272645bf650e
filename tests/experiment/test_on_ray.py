"""Runs on a Ray cluster: the same answer as here, also when processes and nodes are lost on the way."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learn.small import SMALL
from tests.ray_cluster import ADDRESS, LONGEST_S, ROOT, Cluster, ray_cluster, surroundings

from adlro.decide.checkpoint import read_arrays
from adlro.learn.train.checkpoint import LAST

COMPARE = ("-m", "adlro", "compare", "--jobs", "40", "--json")

HELD = '''
import os, time
from pathlib import Path
from adlro.core.policy import starting, waiting
from adlro.decide.choosing import legal_pairs

FOLDER = Path({folder!r})
BEGUN = set()

def held(view):
    """First come, first served; each run waits until the test lets it go on."""
    work = float(view.jobs.estimate[:40].sum())  # tells the seed
    if work not in BEGUN and view.clock[0].arrived < 10:
        BEGUN.add(work)
        (FOLDER / f"{{work!r}}-{{os.getpid()}}-{{os.getppid()}}-{{time.monotonic_ns()}}").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
    pairs, _ = legal_pairs(view)
    return starting(*pairs[0]) if len(pairs) else waiting()
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as up:
        yield up


def here(*words: str) -> str:
    """What a command prints on this machine, without Ray."""
    ended = subprocess.run([sys.executable, *words], env=surroundings(), cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


DRIVER = """
import json, os, signal, subprocess, sys
from contextlib import nullcontext
from pathlib import Path
import adlro
from adlro.experiment.on_ray import RayCluster

jobs, folder, ray = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None

class Ended(Exception):
    pass

def listen(record, written):
    if not ray:
        return
    if record.round == 4:  # a process with environments is lost
        lost = subprocess.run(["pgrep", "-f", "^ray::Slice"], capture_output=True, text=True).stdout.split()[0]
        os.kill(int(lost), signal.SIGKILL)
    if record.round == 9:  # the training is ended, and resumed
        (folder / "ended").touch()
        raise Ended

with RayCluster(ray) if ray else nullcontext():  # one connection for all: the nodes keep their processes
    found = adlro.compare(**jobs["compare"], ray=ray)
    adlro.sweep(jobs["sweep"], folder / "sweep.parquet", ray=ray)
    try:
        adlro.train(folder / "training", ray=ray, progress=listen, **jobs["train"])
    except Ended:
        adlro.train(resume=folder / "training", ray=ray)
print(json.dumps(found.as_dict() | {"times": [each[0] for each in found.times.values()]}))
"""

OWN = str(ROOT / "examples" / "own_policy.py")
JOBS: dict[str, Any] = {
    "compare": {
        "policies": ["fcfs", "sjf", "sjf+starvation(3600)", f"{OWN}:largest_gang"], "seeds": 5, "job_count": 40,
    },
    "sweep": {"seeds": 3, "runs": {"load": [0.7, 1.1], "policy": ["fcfs", "sjf"], "jobs": 20}},
    "train": {
        "cluster": "paper16", "steps": 96, "device": "cpu", "threads": 1,
        "settings": {
            **{name: value for name, value in SMALL.items() if name not in ("steps", "episodes")},
            "worlds": 2, "environments": 8, "report_every": 1, "checkpoint_every": 3,
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A comparison, a sweep and a training on this machine: their folder, and the process, which may still be at it."""
    folder = tmp_path_factory.mktemp("here")
    words = [sys.executable, "-c", DRIVER, json.dumps(JOBS), str(folder)]
    with (
        (folder / "compared.json").open("w") as told,
        (folder / "said").open("w") as said,
        subprocess.Popen(words, env=surroundings(), cwd=ROOT, stdout=told, stderr=said, text=True) as process,
    ):
        try:
            yield folder, process
        finally:
            process.kill()


# The run on this machine begins first: it goes on while the nodes of Ray start, which mostly wait.
@pytest.fixture(scope="module")
def both(
    alone: tuple[Path, "subprocess.Popen[str]"], cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The same comparison, sweep and training on Ray and here: two folders with what came of them."""
    folder = tmp_path_factory.mktemp("ray")
    words = ["-c", DRIVER, json.dumps(JOBS), str(folder), ADDRESS]
    (folder / "compared.json").write_text(cluster.run(cluster.python(*words)))
    assert alone[1].wait(LONGEST_S) == 0, (alone[0] / "said").read_text()[-3000:]
    return folder, alone[0]


def test_a_comparison_on_ray_is_byte_for_byte_that_of_one_machine(both: tuple[Path, Path]) -> None:
    on_ray, alone = ((folder / "compared.json").read_bytes() for folder in both)
    assert on_ray == alone
    assert json.loads(alone)["policies"]["largest_gang"]["jct_mean_s"] > 0


def test_a_sweep_on_ray_has_the_table_of_one_machine(both: tuple[Path, Path]) -> None:
    on_ray, alone = ((folder / "sweep.parquet").read_bytes() for folder in both)
    assert on_ray == alone


def test_a_training_with_environments_on_ray_learns_what_one_machine_learns(both: tuple[Path, Path]) -> None:
    assert (both[0] / "ended").exists()  # it lost a process and was resumed on the way
    on_ray, alone = (read_arrays(folder / "training" / LAST) for folder in both)
    assert on_ray[0].keys() == alone[0].keys()
    assert all(np.array_equal(on_ray[0][name], alone[0][name]) for name in alone[0])
    assert on_ray[1]["steps"] == alone[1]["steps"] >= 96


def test_a_lost_process_and_a_lost_node_cost_only_the_runs_that_they_were_doing(
    cluster: Cluster, tmp_path: Path
) -> None:
    policy = tmp_path / "held.py"
    policy.write_text(HELD.format(folder=str(tmp_path)))
    words = [*COMPARE, "--seeds", "7", "-p", f"{policy}:held,sjf"]
    driver = subprocess.Popen(
        cluster.python(*words, "--ray", "auto"), env=surroundings({"RAY_ADDRESS": ADDRESS}), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with driver:
        until = time.monotonic() + LONGEST_S
        while len(begun := runs_in(tmp_path)) < 3:  # one on each node
            assert time.monotonic() < until
            assert driver.poll() is None, driver.stderr.read() if driver.stderr else ""
            time.sleep(0.05)
        head, lone, lost = sorted(begun, key=lambda run: run["node"])
        cluster.kill(lone["process"])
        cluster.kill(lost["node"], *cluster.children(lost["node"]))
        (tmp_path / "go").touch()
        found, said = driver.communicate(timeout=LONGEST_S)
    assert driver.returncode == 0, said
    times = Counter(run["seed"] for run in runs_in(tmp_path))
    assert times == {seed: 2 if seed in (lone["seed"], lost["seed"]) else 1 for seed in times}
    assert (len(times), times[head["seed"]]) == (7, 1)
    assert found == here(*words)


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """The runs of the policy `held` that have begun: their seed, process and node (its raylet)."""
    files = [file.name.split("-") for file in folder.iterdir() if file.name.count("-") == 3]
    return [{"seed": seed, "process": int(process), "node": int(node)} for seed, process, node, _ in files]
