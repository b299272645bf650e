"""Measure what it is worth to see the measured pace of GPUs: mean JCT with --measured-pace against without.

python scripts/measured_pace.py --policies sjf,eft,plan,adlro,adlro-preemptive --first-seed 100 --seeds 10
python scripts/measured_pace.py --policies adlro --under healthy    # no wear, no heat, no slow GPUs; or one of them
python scripts/train_readings.py none --checkpoint none.safetensors # `adlro` to which readings are worth nothing, and
python scripts/measured_pace.py --policies adlro --against none.safetensors     # what readings add to the pace

The trace of Philly is looked for in ../shared/traces, or in the folder that ADLRO_TRACES names.
"""

import argparse
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

import adlro

TRACES: Final = Path(os.environ.get("ADLRO_TRACES", "../shared/traces"))
PHILLY: Final = TRACES / "philly/philly_until_2017-10-31.csv.xz"

SLOW: Final[dict[str, Any]] = {"slow_gpus": 0.1, "slow_speed": 0.6}
HEAT: Final[dict[str, Any]] = {"thermal": True, "room_c": 35.0}
WEAR: Final[dict[str, Any]] = {"wear_per_day": 0.02}
CONDITIONS: Final = {"all": SLOW | HEAT | WEAR, "slow": SLOW, "heat": HEAT, "wear": WEAR, "healthy": {}}
WORKLOADS: Final = {"paper16": "paper", "gavel108": "gavel", "sia64": "sia-philly"}
PLACES: Final = (*WORKLOADS, "philly")


def mean_jct_h(place: str, policies: list[str], seeds: range, jobs: int, conditions: dict[str, Any]) -> dict[str, Any]:
    """The mean JCT of each policy on each seed, in hours."""
    if place == "philly":
        trace = adlro.trace(PHILLY, families="hash:gavel", window="609:1382")
        found = adlro.compare("gavel108", trace, policies, windows=12, job_count=jobs, load=0.9, **conditions)
    else:
        found = adlro.compare(place, WORKLOADS[place], policies, seeds=list(seeds), job_count=jobs, **conditions)
    return {name: np.array([each.jct_mean_s or np.nan for each in of]) / 3600 for name, of in found.metrics.items()}


def main() -> None:
    """Print one line for each place and policy, and the mean of the places."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--policies", default="sjf,eft,plan,adlro,adlro-preemptive")
    told.add_argument("--places", default=",".join(PLACES))
    told.add_argument("--first-seed", type=int, default=100)
    told.add_argument("--seeds", type=int, default=10)
    told.add_argument("--jobs", type=int, default=500)
    told.add_argument("--under", default="all", choices=CONDITIONS)
    told.add_argument(
        "--against", default="", help="a policy with which the others are compared, all with measured paces"
    )
    given = told.parse_args()
    policies, seeds = given.policies.split(","), range(given.first_seed, given.first_seed + given.seeds)
    against = Path(given.against).stem
    if against:
        policies.append(given.against)
    names = [Path(each).stem if each.endswith(".safetensors") else each for each in policies]
    conditions = CONDITIONS[given.under]
    gains: dict[str, list[float]] = {name: [] for name in names}
    gains |= {f"{name} against {against}": [] for name in names if against and name != against}
    print(
        "| place | policy | unseen, h | measured, h | difference | seeds better |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for place in given.places.split(","):
        blind = mean_jct_h(place, policies, seeds, given.jobs, conditions)
        seeing = mean_jct_h(place, policies, seeds, given.jobs, conditions | {"measured_pace": True})
        pairs = {name: (blind[name], seeing[name]) for name in names}
        if against:
            pairs |= {f"{name} against {against}": (seeing[against], seeing[name]) for name in names if name != against}
        for name, (before, after) in pairs.items():
            gain = float(after.mean() / before.mean() - 1)
            gains[name].append(gain)
            better = f"{int((after < before).sum())} of {len(before)}"
            means = f"{before.mean():.3f} | {after.mean():.3f}"
            logs = 100 * np.log(after / before)
            mean_log = f"{logs.mean():+.2f} ± {logs.std() / len(logs) ** 0.5:.2f} %" if against else ""
            print(f"| {place} | `{name}` | {means} | {gain:+.1%} | {better} | {mean_log}", flush=True)
    for name, each in gains.items():
        print(f"| mean of places | `{name}` | | | {np.mean(each):+.1%} | |", flush=True)


if __name__ == "__main__":
    main()
