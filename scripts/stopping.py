"""What stopping and moving jobs brings: the tables of docs/results/stopping.md.

    python scripts/stopping.py oracle --keep out/                  # one set; what is in out/ is not run again
    python scripts/stopping.py oracle noisy dear --keep out/ --at-once 8
    python scripts/stopping.py oracle --first-seed 100 --seeds 12  # on seeds to tune on

Each row is made from `adlro compare --json`. A rule is compared with the best of srtf, srsf, las and tiresias on these
very jobs, chosen by its mean, and with `adlro`, which stops nobody. Tests are paired, over seeds or windows; Holm's
correction goes over the places of a column.
"""

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from adlro.measure.statistics import compared as compared_rows
from adlro.measure.statistics import holm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.learned import STOPPING, SUPERCLOUD, TRACES, Place, compared, mean_of

PLAN: Final = "plan"
AHEAD: Final = "lookahead-plan"
NAMES: Final = (*STOPPING, "adlro", PLAN, AHEAD)
PHILLY: Final = "philly/philly_until_2017-10-31.csv.xz"
WINDOWED: Final = "--families hash:gavel --jobs 800 --load 0.9"


def place(title: str, options: str, seeds: int = 0, ahead: bool = True) -> Place:
    """One set of jobs on one cluster, for these policies; look-ahead over `plan` takes too long on many GPUs."""
    return Place(title, options, seeds, names=NAMES if ahead else NAMES[:-1])


def seeded(more: str, seeds: int = 30) -> list[Place]:
    """The places with jobs drawn at random."""
    paper = "-c paper16 -w paper --load"
    large = f"-c examples/unseen512.toml -w paper --jobs 3000 --load 0.9 {more}"
    return [
        *(place(f"paper16, load {load:g}", f"{paper} {load:g} {more}", seeds) for load in (0.7, 0.9, 1.1)),
        place("gavel108", f"-c gavel108 -w gavel --load 0.9 {more}", seeds),
        place("sia64", f"-c sia64 -w sia-philly {more}", 4 * seeds),
        place("512 GPUs of unseen models", large, 10, ahead=False),
    ]


def traced(more: str) -> list[Place]:
    """The places with windows of traces. `plan` was tuned on those marked with a star."""
    philly = f"-c gavel108 -w {TRACES}/{PHILLY} {WINDOWED} {more}"
    cloud = f"-c examples/supercloud.toml -w {TRACES}/{SUPERCLOUD} {WINDOWED} {more}"
    kth = f"-c examples/kth_sp2.toml -w {TRACES}/kth_sp2_1996/kth_sp2_until_20736000s.swf.xz {more}"
    centrum = f"-c examples/metacentrum.toml -w {TRACES}/metacentrum_wagap_2013/wagap-2013.swf.xz --load 0.9 {more}"
    nasa = f"-c examples/nasa_ipsc.toml -w {TRACES}/nasa_ipsc_1993/NASA-iPSC-1993-3.1-cln.swf.xz --load 0.9 {more}"
    return [
        place("Philly, hours 609 to 1382 *", f"{philly} --window 609:1382 --windows 30"),
        place("Philly, hours 0 to 609", f"{philly} --window 0:609 --windows 12"),
        place("MIT SuperCloud, second half *", f"{cloud} --window 0.5:1 --windows 30", ahead=False),
        place("MIT SuperCloud, first half", f"{cloud} --window 0:0.5 --windows 12", ahead=False),
        place("KTH *", f"{kth} --windows 16"),
        place("MetaCentrum", f"{centrum} --windows 12", ahead=False),
        place("NASA", f"{nasa} --windows 12"),
    ]


def dear(restart_s: int) -> list[Place]:
    """Some of the places where a restart costs more."""
    more = f"--estimates oracle --restart-s {restart_s}"
    chosen = ("paper16, load 0.9", "sia64", "Philly, hours 0 to 609", "KTH *")
    return [
        Place(f"{each.title}, restart {restart_s} s", each.options, each.seeds, names=each.names)
        for each in (*seeded(more), *traced(more))
        if each.title in chosen
    ]


SETS: Final[dict[str, list[Place]]] = {
    "oracle": [*seeded("--estimates oracle"), *traced("--estimates oracle")],
    "noisy": [*seeded("--estimates noisy:0.5"), *traced("--estimates noisy:0.5")],
    "predicted": traced("--estimates predicted"),
    "dear": [*dear(300), *dear(1800)],
}
FIRST_SEED: Final = 5_000_000


def values(found: dict[str, Any], policy: str, measure: str = "jct_mean_s") -> Any:
    """A measure of a policy by seed or window, as one row."""
    return np.array([found["policies"][policy]["per_seed"][measure]])


def show(name: str, results: list[tuple[Place, dict[str, Any]]]) -> None:
    """Print the tables of one set: the means, then the differences."""
    print(f"\n**{name}** (mean JCT in hours)\n")
    print("| place | runs | " + " | ".join(f"`{each}`" for each in NAMES) + " |\n|---|--:|" + "--:|" * len(NAMES))
    for each, found in results:
        means = (f"{mean_of(found, name) / 3600:.3f}" if name in found["policies"] else "–" for name in NAMES)
        print(f"| {each.title} | {values(found, PLAN).size} | " + " | ".join(means) + " |")
    print("\n| place | policy | against | mean JCT | 95 % interval | better on | worst run | p (Holm) | stops a job |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    for ours, other in ((PLAN, "best"), (PLAN, "adlro"), (AHEAD, "best"), (AHEAD, PLAN)):
        rows, changes = [], []
        for each, found in results:
            theirs = min(STOPPING, key=lambda name: mean_of(found, name)) if other == "best" else other
            if {ours, theirs} <= set(found["policies"]):
                one, two = values(found, ours), values(found, theirs)
                rows.append((each, theirs, one, two, compared_rows(one, two, ["JCT"])[0], found))
                changes.append(one.mean() / two.mean() - 1)
        corrected = holm([float(row[4].wilcoxon_p_holm or 0.0) for row in rows])
        for (each, theirs, one, two, difference, found), p in zip(rows, corrected, strict=True):
            jobs = values(found, ours, "finished").mean()
            cells = [
                each.title, f"`{ours}`", f"`{theirs}`", f"{100 * (one.mean() / two.mean() - 1):+.1f} %",
                f"{100 * (difference.relative_low or 0.0):+.1f} to {100 * (difference.relative_high or 0.0):+.1f}",
                f"{np.count_nonzero(one < two)} of {one.size}", f"{(one / two).max():.2f}",
                "< 0.001" if p < 0.001 else f"{p:.3f}", f"{values(found, ours, 'preemptions').mean() / jobs:.2f}",
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |".replace("| -", "| −").replace("to -", "to −"))
        if changes:
            print(
                f"| *mean of places* | `{ours}` | {other} | {100 * fmean(changes):+.1f} % | | | | | |".replace(
                    "| -", "| −"
                )
            )


def main() -> None:
    """Run sets of comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=[*SETS, "all"])
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=int, default=1000, help="of each place, at most")
    parser.add_argument("--at-once", type=int, default=1, help="comparisons that run side by side")
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given.keep = given.keep or Path(folder)
        given.keep.mkdir(parents=True, exist_ok=True)
        sets = list(SETS) if "all" in given.sets else given.sets
        with ThreadPoolExecutor(given.at_once) as pool:
            made = {
                (name, each.title): pool.submit(compared, each, given, name) for name in sets for each in SETS[name]
            }
            for name in sets:
                show(name, [(each, made[name, each.title].result()) for each in SETS[name]])


if __name__ == "__main__":
    main()
