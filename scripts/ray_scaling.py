"""What a Ray cluster costs and gains, for docs/scale.md: run it on a node of a cluster, as it is and with more nodes.

    python scripts/ray_scaling.py auto [--waiting-only]

It prints: what the driver spends on a parcel of runs, runs that only wait (so that nodes which share cores scale as if
they did not), real runs, and steps of environments for a training.
"""

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from adlro.decide.catalogue import find_policy
from adlro.experiment import on_ray
from adlro.experiment.compare import Runs
from adlro.experiment.on_ray import RayCluster
from adlro.experiment.places import Group, RunPlace, Tell
from adlro.experiment.scenario import load_scenario
from adlro.experiment.sending import packed_for_sending

WAIT_S = 0.25
WAITING_RUNS = 96
EMPTY_RUNS = 1000
SEEDS = 200


@dataclass(frozen=True)
class Waiting:
    """Runs that take their time without a core."""

    seconds: float

    def warm_up(self, tell: Tell) -> None:
        """Nothing to do."""

    def prepare(self, key: int) -> None:
        """Nothing to do."""

    def run(self, prepared: None, item: int) -> None:
        """Wait."""
        time.sleep(self.seconds)


def timed(place: RunPlace, groups: list[Group]) -> tuple[float, float]:
    """Seconds, and seconds of this process' CPU time, for all runs."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in place.spread(groups, lambda _what: None):
        pass
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    """Measure, and print a line for each figure."""
    with RayCluster(sys.argv[1]) as cluster:
        cores = cluster.slots()
        print(f"cores of the cluster: {cores}")
        policies = tuple(find_policy(name) for name in ("fcfs", "sjf", "eft", "srtf"))
        runs = Runs(load_scenario("paper16", "paper"), policies, 0, False)
        waiting = [Group(Waiting(WAIT_S), 0, tuple(range(WAITING_RUNS)))]
        timed(cluster, [Group(Waiting(1.0), 0, tuple(range(3 * cores)))])  # processes start
        took, _ = timed(cluster, waiting)
        ideal = WAITING_RUNS * WAIT_S / cores
        print(f"{WAITING_RUNS} runs that wait {WAIT_S} s: {took:.2f} s, {ideal / took:.3f} of the ideal {ideal:.2f} s")
        if "--waiting-only" in sys.argv:
            return
        size, on_ray.PARCEL_S = on_ray.PARCEL_S, 0.0  # each run travels alone
        took, cpu = timed(cluster, [Group(Waiting(0.0), 0, tuple(range(EMPTY_RUNS)))])
        on_ray.PARCEL_S = size
        print(f"a parcel: {1e3 * took / EMPTY_RUNS:.2f} ms, of them {1e3 * cpu / EMPTY_RUNS:.2f} ms CPU of the driver")
        groups = [Group(runs, seed, (0, 1, 2, 3)) for seed in range(SEEDS)]
        timed(cluster, groups[: 4 * cores])
        took, cpu = timed(cluster, groups)
        count, result = 4 * SEEDS, runs.run(runs.prepare(0), 0)
        print(f"real runs: {count / took:.0f} a second, {1e3 * cpu / count:.3f} ms CPU of the driver for each")
        print(f"the work: {len(packed_for_sending(runs)):,} bytes; a result: {len(packed_for_sending(result)):,} bytes")
        steps_of_environments(cluster)


def steps_of_environments(cluster: RayCluster) -> None:
    """What a step of a slice of environments costs on a node, and its way there and back."""
    from adlro.learn.train.on_ray import Slice
    from adlro.learn.train.presets import find_preset
    from adlro.learn.worlds.draw import random_worlds, stack

    ray: Any = cluster.ray
    preset = find_preset("adlro")
    worlds = stack(random_worlds(4, 0))
    for count in (64, 256, 1024):
        there = ray.remote(num_cpus=1)(Slice).remote("adlro", preset.config, ray.put(worlds), [count], 1)
        here = preset.make_batch(preset.config, worlds, count, 0, 1)
        actions = np.full(count, here.actions - 1, np.int32)  # all wait
        ray.get(there.step.remote(0, 1, actions))
        preset.step(here, actions)
        local, remote = [], []
        for number in range(2, 22):
            begin = time.perf_counter()
            preset.step(here, actions)
            local.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            seen, came = ray.get(there.step.remote(0, number, actions))
            for mine, theirs in zip((*here.seen, *here.came), (*seen, *came), strict=True):
                mine[:] = theirs
            remote.append(time.perf_counter() - begin)
        size = sum(each.nbytes for each in (*here.seen, *here.came)) / count
        print(
            f"{count} environments: {1e3 * min(local):.2f} ms here, {1e3 * min(remote):.2f} ms on a node, "
            f"{size:,.0f} bytes for each environment and step"
        )
        ray.kill(there)


if __name__ == "__main__":
    main()
