"""Compare ADLRO with kube-scheduler's default: the same pods, on a real API server each, with simulated kubelets.

usage: python scripts/kubernetes_compare.py [--seeds 4] [--jobs 300] [--speed 60] [--load 0.7]

Each run has a control plane of its own (scripts/control_plane.sh builds it), 8 nodes with 8 GPUs each (2 A100, 4 V100,
2 T4), and jobs of the workload `paper`, one pod each. A simulated kubelet lets a bound pod run as long as its work
takes on its GPUs at the speeds of the catalogue, `--speed` times as fast as the clock. Pods say the estimate of their
work, scaled in the same way; kube-scheduler has no use for it. Its back-off is set to 1 s, the least, so that fast time
does not slow it down. `--load 1` would fill all GPUs if every job ran on the average GPU.
"""

import argparse
import heapq
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adlro.backends.kubernetes.client import Api
from adlro.backends.kubernetes.lab import why_no_control_plane
from adlro.backends.kubernetes.pools import PCIE_LINK, PLAIN_NETWORK
from adlro.bench_kubernetes import BenchCluster, BoundPods, bench_cluster, node_body, pod_body
from adlro.catalogue.gpus import find_gpu
from adlro.catalogue.speeds import speed_of
from adlro.core.records import Placing
from adlro.experiment.instance import load_jobs

MODELS = {"NVIDIA-A100-SXM4-80GB": "a100-sxm4-80gb", "Tesla-V100-SXM2-16GB": "v100-sxm2-16gb", "Tesla-T4": "t4"}
NODES = {"NVIDIA-A100-SXM4-80GB": 2, "Tesla-V100-SXM2-16GB": 4, "Tesla-T4": 2}
GPUS = 8
WORKLOAD = "paper"
PODS = "/api/v1/namespaces/default/pods"
SCHEDULERS = {"kube-scheduler": "default-scheduler", "adlro": "adlro"}
RESAMPLES = 10_000


@dataclass(frozen=True)
class Drawn:
    """A job: when it comes (s), what it asks for, and how long it takes on each product (s)."""

    name: str
    submit_s: float
    gpus: int
    family: str
    estimate: float
    runs_s: dict[str, float]


def drawn(seed: int, count: int, load: float) -> list[Drawn]:
    """Jobs of the workload, arriving so fast that this cluster is loaded to `load` on average."""
    jobs = load_jobs(WORKLOAD, seed, count)
    families = [jobs.families[int(row)] for row in jobs.table.family]
    models = {product: find_gpu(name) for product, name in MODELS.items()}
    found, capacity = [], []
    for row, family in enumerate(families):
        gpus, work = int(jobs.table.gpus[row]), float(jobs.work[row])
        speeds = {
            product: speed_of(family, Placing(model, gpus, 1, PCIE_LINK, PLAIN_NETWORK)).value
            for product, model in models.items()
        }
        runs = {product: work / (gpus * speed) for product, speed in speeds.items()}
        capacity.append(GPUS * sum(NODES[product] * speed for product, speed in speeds.items()))
        estimate = float(jobs.table.estimate[row])
        found.append(Drawn(f"job{row}", float(jobs.table.submit[row]), gpus, family, estimate, runs))
    span = float(np.sum(jobs.work)) / float(np.mean(capacity)) / load
    last = max(job.submit_s for job in found) or 1.0
    return [
        Drawn(job.name, job.submit_s * span / last, job.gpus, job.family, job.estimate, job.runs_s) for job in found
    ]


def run(scheduler: str, jobs: list[Drawn], speed: float) -> dict[str, float]:
    """The time in the system of each job (s of simulated time), under one scheduler."""
    with bench_cluster() as cluster, TemporaryDirectory() as folder:
        products = [product for product, count in NODES.items() for _ in range(count)]
        product_of = {f"n{number}": product for number, product in enumerate(products)}
        for name, product in product_of.items():
            cluster.node(node_body(name, product))
        process = started(scheduler, cluster, Path(folder))
        bound = BoundPods(cluster)
        try:
            cluster.pods([pod_body("warm", 1, SCHEDULERS[scheduler])])
            bound.wait(lambda: "warm" in bound.at)
            cluster.ends("warm")
            return played(cluster, bound, scheduler, jobs, product_of, speed)
        finally:
            bound.close()
            if process is not None:
                process.kill()
                process.wait()


def started(scheduler: str, cluster: BenchCluster, folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a scheduler; kube-scheduler ends with its control plane."""
    if scheduler == "adlro":
        command = [sys.executable, "-m", "adlro", "serve", "--config", str(cluster.config(folder))]
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)
    client = {"kubeconfig": str(cluster.plane.kubeconfig), "qps": 1000, "burst": 1000}
    cluster.plane.start_scheduler(podInitialBackoffSeconds=1, podMaxBackoffSeconds=1, clientConnection=client)
    return None


def played(
    cluster: BenchCluster, bound: BoundPods, scheduler: str, jobs: list[Drawn], product_of: dict[str, str], speed: float
) -> dict[str, float]:
    """Create the pods in time, let those that are bound run, and end them; the time in the system of each job."""
    by_name = {job.name: job for job in jobs}
    coming = sorted(jobs, key=lambda job: job.submit_s, reverse=True)
    created: dict[str, float] = {}
    ends: list[tuple[float, str]] = []
    running: set[str] = set()
    took: dict[str, float] = {}
    api, begin = Api(cluster.api.door, 60.0), time.monotonic()
    while len(took) < len(jobs):
        now = time.monotonic()
        while coming and coming[-1].submit_s / speed <= now - begin:
            job = coming.pop()
            created[job.name] = time.monotonic()
            notes = {"family": job.family, "estimate": f"{job.estimate / speed:.3f}"}
            api.ask("POST", PODS, None, pod_body(job.name, job.gpus, SCHEDULERS[scheduler], **notes))
        for name, at in list(bound.at.items()):
            if name in by_name and name not in running:
                running.add(name)
                cluster.ends(name, "Running")
                heapq.heappush(ends, (at + by_name[name].runs_s[product_of[bound.node[name]]] / speed, name))
        while ends and ends[0][0] <= time.monotonic():
            at, name = heapq.heappop(ends)
            cluster.ends(name)
            took[name] = (at - created[name]) * speed
        time.sleep(0.01)
    api.close()
    return took


def interval(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> tuple[float, float, float]:
    """The change of the mean, and its 95 % interval: runs and, in each, jobs are drawn again."""
    random = np.random.default_rng(0)
    whole = np.mean(np.concatenate(ours)) / np.mean(np.concatenate(theirs)) - 1.0
    found = []
    for _ in range(RESAMPLES):
        sums = np.zeros(2)
        for one in random.integers(len(ours), size=len(ours)):
            rows = random.integers(len(ours[one]), size=len(ours[one]))
            sums += ours[one][rows].sum(), theirs[one][rows].sum()
        found.append(sums[0] / sums[1] - 1.0)
    low, high = np.quantile(found, [0.025, 0.975])
    return float(whole), float(low), float(high)


def main() -> None:
    """Run both schedulers on each seed at the same time, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--speed", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--side-by-side", type=int, default=1, help="how many seeds run at the same time")
    options = parser.parse_args()
    if said := why_no_control_plane():
        sys.exit(f"kubernetes_compare.py: {said}.")

    def both(seed: int) -> dict[str, np.ndarray[Any, Any]]:
        jobs = drawn(seed, options.jobs, options.load)
        with ThreadPoolExecutor(len(SCHEDULERS)) as pool:
            took = dict(zip(SCHEDULERS, pool.map(lambda name: run(name, jobs, options.speed), SCHEDULERS), strict=True))
        found = {name: np.array([each[job.name] for job in jobs]) for name, each in took.items()}
        means = ", ".join(f"{name} {each.mean():.0f} s" for name, each in found.items())
        print(f"seed {seed}: {means}: {found['adlro'].mean() / found['kube-scheduler'].mean() - 1:+.1%}", flush=True)
        return found

    with ThreadPoolExecutor(options.side_by_side) as pool:
        found = list(pool.map(both, range(options.seeds)))
    ours, theirs = [each["adlro"] for each in found], [each["kube-scheduler"] for each in found]
    change, low, high = interval(ours, theirs)
    print("\n| scheduler | mean time in the system | median | p95 |\n|---|---|---|---|")
    for name, rows in (("kube-scheduler 1.20", theirs), ("ADLRO", ours)):
        all_rows = np.concatenate(rows)
        middle, late = np.quantile(all_rows, [0.5, 0.95])
        print(f"| {name} | {all_rows.mean():,.0f} s | {middle:,.0f} s | {late:,.0f} s |")
    print(f"\nmean: {change:+.1%} (95 % interval {low:+.1%} to {high:+.1%})")


if __name__ == "__main__":
    main()
