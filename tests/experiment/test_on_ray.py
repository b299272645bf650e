"""Runs on a Ray cluster: the same answer as here, also when processes and nodes are lost on the way."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray_cluster import ADDRESS, LONGEST_S, ROOT, Cluster, ray_cluster, surroundings

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


def test_a_comparison_on_ray_is_byte_for_byte_that_of_one_machine(cluster: Cluster) -> None:
    own = ROOT / "examples" / "own_policy.py"
    words = [*COMPARE, "--seeds", "5", "-p", f"fcfs,sjf,sjf+starvation(3600),{own}:largest_gang"]
    assert cluster.run(cluster.python(*words, "--ray", ADDRESS)) == here(*words)


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
