"""How far a record that is cut short misleads: the two measures of `adlro shadow report` against the whole truth.

    python scripts/shadow_bias.py

A site that schedules itself (`paper16` in the simulator) is watched up to 20, 40, 60 and 80 % of the time that its 600
jobs take. The replay under `adlro` from what was seen is held against the replay with everything known.
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.backends.shadow.shadow_site import watched  # noqa: E402

from adlro.backends.shadow.replay import ReplayTimes, happened, in_system, under  # noqa: E402
from adlro.backends.shadow.tables import Prepared, prepared  # noqa: E402
from adlro.core.tables import Floats  # noqa: E402
from adlro.decide.catalogue import find_policy  # noqa: E402

SITES = ("fcfs-easy", "multifactor", "sjf")
LOADS = (0.7, 0.9)
SEEDS = (3, 4, 5, 6)
CUTS = (0.2, 0.4, 0.6, 0.8)
JOBS = 600


def replays(site: str, load: float, seed: int, until: float) -> tuple[Prepared, ReplayTimes, ReplayTimes]:
    """A record of so much of the time, as it happened and under adlro."""
    made = prepared(watched(site, JOBS, until, load=load, seed=seed))
    return made, happened(made, find_policy("adlro"))[0], under(made, find_policy("adlro"))


def errors() -> Iterator[tuple[float, float]]:
    """For each record, how many points the relative change is off: of the JCT of ended jobs, of time in the system."""
    for site, load, seed in product(SITES, LOADS, SEEDS):
        whole, truth, would = replays(site, load, seed, 1.0)
        place = {job.id: j for j, job in enumerate(whole.live)}
        for cut in CUTS:
            part, seen, told = replays(site, load, seed, cut)
            end = part.record.end_s - part.record.begin_s
            rows = [place[job.id] for job in part.live]
            ended = part.compared
            was = (truth.finish[rows] - part.submit)[ended].mean()
            jct = change((told.finish - part.submit)[ended], was) - change(
                (would.finish[rows] - part.submit)[ended], was
            )
            spent = np.minimum(would.finish[rows], end) - part.submit
            base = in_system(part, seen).mean()
            yield 100 * jct, 100 * (change(in_system(part, told), base) - change(spent, base))


def change(values: Floats, base: float) -> float:
    """The mean against another."""
    return float(values.mean() / base - 1)


def main() -> None:
    """Print both measures in a line each."""
    found = np.array(list(errors()))
    for name, points in zip(("JCT of ended jobs", "time in the system"), found.T, strict=True):
        print(
            f"{name}: {len(points)} records, off by {points.mean():+.1f} points on average, "
            f"{np.abs(points).mean():.1f} without the sign, {np.abs(points).max():.1f} at worst"
        )


if __name__ == "__main__":
    main()
