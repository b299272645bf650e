"""Mean JCT of Gavel's experiment in our simulator, beside the numbers that its own simulator prints: docs/gavel.md.

    python scripts/gavel_check.py --list gavel --seeds 10     # the lists that its own generator draws, seeds 0 to 9
    python scripts/gavel_check.py --list ours --seeds 10      # our generator

Jobs 0 to 499 are measured; others go on arriving until they are done. Estimates are exact, stopping costs nothing.
"""

import argparse
import math
import random
from dataclasses import replace

import numpy as np

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.catalogue.workloads import workload_text
from adlro.core.plan import plan_cluster
from adlro.core.policy import Choose, Policy, waiting
from adlro.core.records import Job
from adlro.core.tables import DONE, FINISHED, Choice, Jobs, View
from adlro.decide.rules import allox, baselines, gavel
from adlro.ingest.synthetic import generate
from adlro.ingest.workload_file import load_workload
from adlro.normalise.pack import pack, pack_jobs
from adlro.simulation.simulator import SimulationSettings, simulate

MEASURED = 500
MEAN_GAP_S = 600.0
BATCHES = {
    "resnet-18": (16, 32, 64, 128, 256),
    "resnet-50": (16, 32, 64, 128),
    "transformer": (16, 32, 64, 128, 256),
    "lm": (5, 10, 20, 40, 80),
    "recommendation": (512, 1024, 2048, 4096, 8192),
}
TEMPLATES = [f"gavel/{name}-b{batch}" for name, batches in BATCHES.items() for batch in batches] + [
    "gavel/a3c",
    "gavel/cyclegan",
]
CATALOGUE = {policy.name: policy for policy in (*baselines.POLICIES, *gavel.POLICIES, *allox.POLICIES)}


def gavels_jobs(seed: int, count: int) -> Jobs:
    """The list that Gavel's generator draws with this seed, by the description in docs/gavel.md."""
    gaps, draws = random.Random(seed + 3), random.Random(seed + 2)
    jobs, submit_s = [], 0.0
    for number in range(count):
        if number:
            submit_s += -MEAN_GAP_S * math.log(1.0 - gaps.random())
        draws.uniform(0, 1)  # the size of a gang, which is not used
        exponent = draws.uniform(3, 4) if draws.random() >= 0.8 else draws.uniform(1.5, 3)
        jobs.append(Job(draws.choice(TEMPLATES), 60 * 10**exponent, submit_s, checkpoint=0.0))
    return pack_jobs(jobs)


def our_jobs(seed: int, count: int) -> Jobs:
    """The jobs of our workload `gavel`, the first one at time 0 as in Gavel."""
    jobs = generate(load_workload(*workload_text("gavel")), seed, count)
    jobs.table.submit -= jobs.table.submit[0]
    return jobs


def until_measured(policy: Policy) -> Policy:
    """The policy up to the moment when all measured jobs are done: what comes after does not matter and costs time."""
    make = policy.make
    if make is None:
        return policy

    def made(view: View, seed: int) -> Choose:
        choose = make(view, seed)

        def ask(view: View) -> Choice:
            return waiting() if (view.runs.state[:MEASURED] == FINISHED).all() else choose(view)

        return ask

    return replace(policy, make=made)


def mean_jct(policy: Policy, jobs: Jobs, restart_s: float) -> float:
    """Mean of finish − submit over the measured jobs, in seconds."""
    view = pack(plan_cluster(load_cluster("gavel108")), jobs, speed_of)
    events = simulate(view, jobs.work, until_measured(policy), SimulationSettings(restart_s=restart_s)).events
    ends = events[(events.what == DONE) & (events.job < MEASURED)]
    assert len(ends) == MEASURED
    assert ends.time.max() < jobs.table.submit[-1], "arrivals ended before the measured jobs: draw more jobs"
    return float(ends.time.mean() - jobs.table.submit[:MEASURED].mean())


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description="Gavel's experiment in our simulator")
    parser.add_argument("--list", choices=("gavel", "ours"), default="gavel", help="whose generator draws the jobs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=12000, help="jobs drawn; 500 are measured")
    parser.add_argument("--policies", default="fcfs,gavel-maxmin")
    parser.add_argument("--restart", type=float, default=0.0, help="seconds that a job loses when it starts again")
    options = parser.parse_args()
    draw = gavels_jobs if options.list == "gavel" else our_jobs
    for name in options.policies.split(","):
        drawn = (draw(seed, options.jobs) for seed in range(options.seeds))
        means = [mean_jct(CATALOGUE[name], jobs, options.restart) for jobs in drawn]
        error = np.std(means, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        print(f"{name:24} mean {np.mean(means):9,.0f} s ± {error:5,.0f}   " + " ".join(f"{m:,.0f}" for m in means))


if __name__ == "__main__":
    main()
