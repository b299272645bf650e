"""What the learned policies reach, against every baseline: the tables of docs/results/learned.md.

    python scripts/learned.py paper16 --first-seed 7000 --seeds 12      # one set, on seeds to tune on
    python scripts/learned.py all --keep out/                           # the final tables, on seeds not used yet
    python scripts/learned.py all --keep out/ --at-once 8               # the same where there are cores for it
    python scripts/learned.py all --keep out/ --short                   # a line for each place

Each row is made from `adlro compare --json`; what is in the folder of --keep is not run again. The policy that a
learned one has to beat is the best of the baselines on these very jobs, chosen by its mean: a harder measure than any
rule chosen beforehand. Tests are paired, over seeds or windows, with Holm's correction over all policies compared.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from adlro.measure.statistics import against, holm
from adlro.measure.statistics import compared as compared_rows

ROOT: Final = Path(__file__).parent.parent
TRACES: Final = os.environ.get("ADLRO_TRACES", "../shared/traces")

SUPERCLOUD: Final = "mit_supercloud_2021/slurm-log-queueing-clean_until_2021-03-04.csv.xz"

KEEPING: Final = (
    "random", "fcfs", "fcfs-first-fit", "static-affinity", "fcfs-easy", "sjf", "sjf-picky", "f1", "wfp3", "unicep",
    "multifactor", "eft", "qssf", "best-fit", "fgd",
)  # fmt: skip
"""The baselines that never stop a job."""

STOPPING: Final = ("srtf", "srsf", "las", "tiresias")
"""The baselines that stop jobs and need no solver."""

OURS: Final = ("eft-reserving", "lookahead-sjf-picky", "lookahead-eft-reserving", "adlro", "adlro-lookahead")


@dataclass(frozen=True, slots=True)
class Place:
    """One set of jobs on one cluster."""

    title: str
    options: str
    seeds: int = 30  # 0: windows of a trace
    stopping: bool = False
    clairvoyant: bool = False
    ours: tuple[str, ...] = OURS
    names: tuple[str, ...] = ()  # the policies to compare, instead of the baselines and ours


def paper16(load: float, estimates: str) -> Place:
    """The paper's cluster at a load, with these estimates."""
    return Place(
        f"paper16, load {load:g}, {estimates}",
        f"-c paper16 -w paper --load {load:g} --estimates {estimates}",
        stopping=True,
        clairvoyant=estimates == "oracle",
    )


def saturated(estimates: str) -> Place:
    """The paper's cluster where nobody keeps up."""
    return replace(paper16(2.0, estimates), clairvoyant=False, ours=("eft-reserving", "adlro", "adlro-lookahead"))


def elsewhere(estimates: str, ahead: bool = False) -> tuple[Place, ...]:
    """Clusters and jobs that no network of ours was trained on; with look-ahead, which takes long, fewer of them."""
    told = f"--estimates {estimates}"
    trace = f"--families hash:gavel --windows {10 if ahead else 30} --jobs 800 --load 0.9 {told}"
    title = f"with look-ahead, {estimates}" if ahead else estimates
    ours = OURS if ahead else ("eft-reserving", "adlro")
    places = (
        Place(f"gavel108, {title}", f"-c gavel108 -w gavel --load 0.9 {told}", ours=ours),
        Place(f"sia64, {title}", f"-c sia64 -w sia-philly {told}", 30 if ahead else 130, ours=ours),
        Place(
            f"Philly windows on gavel108, {title}",
            f"-c gavel108 -w {TRACES}/philly/philly_until_2017-10-31.csv.xz --window 609:1382 {trace}",
            0,
            ours=ours,
        ),
        Place(
            f"MIT SuperCloud windows, {title}",
            f"-c examples/supercloud.toml -w {TRACES}/{SUPERCLOUD} --window 0.5:1 {trace}",
            0,
            ours=ours,
        ),
    )
    large = Place(
        f"512 GPUs of unseen models, {title}",
        f"-c examples/unseen512.toml -w paper --jobs 3000 --load 0.9 {told}",
        ours=ours,
    )
    return places if ahead else (*places, large)


LARGE: Final = Place(
    "512 GPUs of unseen models, with look-ahead, oracle",
    "-c examples/unseen512.toml -w paper --jobs 3000 --load 0.9 --estimates oracle",
    3,
    ours=("adlro", "lookahead-sjf-picky", "adlro-lookahead"),
)
"""Look-ahead on so many GPUs takes minutes for each run: three seeds."""

SETS: Final[dict[str, tuple[Place, ...]]] = {
    "elsewhere": elsewhere("oracle"),
    "elsewhere-noisy": elsewhere("noisy:0.5"),
    "saturated": (saturated("oracle"), saturated("noisy:0.5")),
    "paper16": tuple(paper16(load, "oracle") for load in (0.7, 0.9, 1.1)),
    "paper16-noisy": tuple(paper16(load, "noisy:0.5") for load in (0.7, 0.9, 1.1)),
    "elsewhere-ahead": elsewhere("oracle", ahead=True),
    "elsewhere-ahead-noisy": elsewhere("noisy:0.5", ahead=True),
    "large": (LARGE,),
}


def kept_file(place: Place, given: argparse.Namespace, of_set: str = "") -> Path:
    """The file in which a comparison is kept."""
    title = f"{of_set} {place.title}".strip()
    name = title.replace(" ", "-").replace(",", "").replace(":", "").replace("*", "tuned")
    return Path(given.keep / f"{name}.json")


def is_kept(place: Place, given: argparse.Namespace, of_set: str = "") -> bool:
    """Whether a comparison has been run before."""
    return kept_file(place, given, of_set).exists()


def compared(place: Place, given: argparse.Namespace, of_set: str = "") -> dict[str, Any]:
    """The JSON of one comparison, from the folder of kept ones if it is there; policies that it lacks are run now."""
    names = [*(place.names or (*KEEPING, *(STOPPING if place.stopping else ()), *place.ours))]
    names += ["lookahead-clairvoyant"] if place.clairvoyant else []
    kept = kept_file(place, given, of_set)
    print(f"{place.title} …", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    missing = [name for name in names if shown_as(name) not in found.get("policies", {})]
    if missing and not (found and getattr(given, "kept", False)):
        more = run_policies(place, missing, given, len(found.get("seeds") or ()))
        if found and (found["seeds"], found["windows"]) != (more["seeds"], more["windows"]):
            sys.exit(
                f"{kept}: has other seeds or windows than are asked for now. Ask for the same, or remove the file."
            )
        found = {**more, **found, "policies": {**found.get("policies", {}), **more["policies"]}}
        kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def shown_as(name: str) -> str:
    """The name of a policy in an answer: a checkpoint has the name of its file."""
    return Path(name).stem if name.endswith(".safetensors") else name


def run_policies(place: Place, names: list[str], given: argparse.Namespace, seeds: int = 0) -> dict[str, Any]:
    """Compare these policies in a place, on so many seeds (0: as many as the place and the command line say)."""
    threads = max(1, (os.cpu_count() or 1) // given.at_once)
    words = ["compare", *shlex.split(place.options), "-p", ",".join(names), "--threads", str(threads), "--json"]
    if place.seeds:
        count = seeds or min(place.seeds, given.seeds)
        words += ["--first-seed", str(given.first_seed), "--seeds", str(count)]
    ended = subprocess.run(
        [sys.executable, "-m", "adlro", *words], stdout=subprocess.PIPE, cwd=ROOT, check=True, text=True
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def mean_of(found: dict[str, Any], policy: str, measure: str = "jct_mean_s") -> float:
    """The mean of a measure over seeds or windows."""
    return fmean(found["policies"][policy]["per_seed"][measure])


def show(place: Place, found: dict[str, Any]) -> None:
    """Print the table of one place: every one of ours against the best baseline that keeps jobs running."""
    best = min(KEEPING, key=lambda name: mean_of(found, name))
    values = {name: {"jct_mean_s": each["per_seed"]["jct_mean_s"]} for name, each in found["policies"].items()}
    differences = against(values, best)
    rows = [name for name in found["policies"] if name in (*STOPPING, *OURS, "lookahead-clairvoyant", best, "fcfs")]
    print(f"\n**{place.title}.** Best baseline that keeps jobs running: `{best}`. `{found['command'].strip()}`\n")
    print("| policy | mean JCT, h | against it | 95 % interval | p (Holm) | jobs/h | utilisation |")
    print("|---|---|---|---|---|---|---|")
    for name in sorted(rows, key=lambda name: mean_of(found, name)):
        jct, rate, use = (mean_of(found, name, key) for key in ("jct_mean_s", "throughput_per_h", "utilisation"))
        difference = differences[name]["jct_mean_s"] if name != best else None
        told = "– | – | –"
        if difference is not None and difference.relative_low is not None and difference.relative_high is not None:
            told = f"{100 * (difference.relative or 0.0):+.1f} % | {100 * difference.relative_low:+.1f} … "
            told += f"{100 * difference.relative_high:+.1f} % | {difference.wilcoxon_p_holm:.2g}"
        print(f"| `{name}` | {jct / 3600:.3g} | {told} | {rate:.2f} | {100 * use:.1f} % |")


PAIRS: Final = (
    ("adlro", "best"),
    ("adlro-lookahead", "best"),
    ("adlro", "eft-reserving"),
    ("adlro", "srtf"),
    ("adlro-lookahead", "srtf"),
    ("adlro-lookahead", "lookahead-sjf-picky"),
    ("adlro-lookahead", "lookahead-eft-reserving"),
    ("adlro-lookahead", "lookahead-clairvoyant"),
)
"""Who is held against whom in the short form; `best`: the best baseline that keeps jobs running."""


def show_short(name: str, results: list[tuple[Place, dict[str, Any]]]) -> None:
    """Print a set as one table: a line for each place and pair, with Holm's correction over the lines of a pair."""
    lines = []
    for ours, other in PAIRS:
        of_pair = []
        for place, found in results:
            theirs = min(KEEPING, key=lambda name: mean_of(found, name)) if other == "best" else other
            if ours in found["policies"] and theirs in found["policies"]:
                one, two = (np.array([found["policies"][each]["per_seed"]["jct_mean_s"]]) for each in (ours, theirs))
                of_pair.append((place, ours, theirs, compared_rows(one, two, ["JCT"])[0], one, two))
        corrected = holm([float(each[3].wilcoxon_p_holm or 0.0) for each in of_pair])
        lines += [(*each, p) for each, p in zip(of_pair, corrected, strict=True)]
    print(f"\n**{name}**\n\n| place | policy | against | mean JCT | 95 % interval | better on | p (Holm) |")
    print("|---|---|---|--:|--:|--:|--:|")
    for place, ours, theirs, difference, one, two, p in lines:
        base = two.mean()
        low, high = difference.relative_low or 0.0, difference.relative_high or 0.0
        cells = (
            place.title,
            f"`{ours}`",
            f"`{theirs}`",
            f"{100 * (one.mean() / base - 1):+.1f} %",
            f"{100 * low:+.1f} to {100 * high:+.1f}",
            f"{np.count_nonzero(one < two)} of {one.size}",
            "< 0.001" if p < 0.001 else f"{p:.3f}",
        )
        print(f"| {' | '.join(cells)} |".replace("-0.0 %", "0.0 %").replace("| -", "| −").replace("to -", "to −"))


def main() -> None:
    """Run sets of comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=[*SETS, "all"])
    parser.add_argument("--first-seed", type=int, default=4_000_000)
    parser.add_argument("--seeds", type=int, default=1000, help="of each place, at most")
    parser.add_argument("--at-once", type=int, default=1, help="comparisons that run side by side")
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument("--short", action="store_true", help="one table for each set")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given.keep = given.keep or Path(folder)
        given.keep.mkdir(parents=True, exist_ok=True)
        sets = list(SETS) if "all" in given.sets else given.sets
        with ThreadPoolExecutor(given.at_once) as pool:
            made = {place: pool.submit(compared, place, given) for name in sets for place in SETS[name]}
            for name in sets:
                results = [(place, made[place].result()) for place in SETS[name]]
                if given.short:
                    show_short(name, results)
                    continue
                for place, found in results:
                    show(place, found)


if __name__ == "__main__":
    main()
