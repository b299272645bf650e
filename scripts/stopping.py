"""What stopping and moving jobs brings: the tables of docs/results/stopping.md.

    python scripts/stopping.py oracle --keep out/                  # one set; what is in out/ is not run again
    python scripts/stopping.py oracle noisy dear --keep out/ --at-once 8
    python scripts/stopping.py oracle --first-seed 100 --seeds 12  # on seeds to tune on
    python scripts/stopping.py all --keep out/ --write             # put the tables into docs/results/stopping.md too
    python scripts/stopping.py oracle --keep out/ --policy my.safetensors --only sia64   # one more policy

What is in the folder of --keep is not run again. A policy that a kept comparison lacks is run alone, on the same jobs,
and added to it; the tables then have a column and rows for it.

Each row is made from `adlro compare --json`. A policy is compared with the best of srtf, srsf, las and tiresias on
these very jobs, chosen by its mean. Tests are paired, over seeds or windows; Holm's correction goes over the places of
a column.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from adlro.measure.statistics import compared as compared_rows
from adlro.measure.statistics import holm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.learned import ROOT, STOPPING, SUPERCLOUD, TRACES, Place, compared, is_kept, mean_of, shown_as

PLAN: Final = "plan"
CORRECTED: Final = "adlro-plan"
NETWORK: Final = "adlro-preemptive"
AHEAD: Final = "adlro-preemptive-lookahead"
NAMES: Final = (*STOPPING, "adlro", PLAN, CORRECTED, NETWORK)
DEAREST_S: Final = 1800
"""At this cost of a restart `las` is left out: it stops so often that a run does not end in half an hour."""
GAVEL: Final = ("gavel-maxmin", "gavel-maxsum", "gavel-makespan")
BY_PRIORITY: Final = (
    "fcfs", "fcfs-easy", "sjf", "sjf-picky", "multifactor", "eft", "eft-reserving", *NAMES,
)  # fmt: skip
SMALL: Final = ("paper16, load 0.7", "paper16, load 0.9", "paper16, load 1.1", "sia64")
"""Places on which `lookahead-plan`, which knows no bound, is quick enough."""
LARGE: Final = (
    "gavel108", "512 GPUs of unseen models", "Philly, hours 609 to 1382 *", "Philly, hours 0 to 609",
    "MIT SuperCloud, second half *", "KTH *", "MetaCentrum", "NASA",
)  # fmt: skip
STOPPED_BEST: Final = ("srtf", "srsf", "tiresias")
BOUND: Final = "+stops(10)"
"""The budget of a live cluster as it ships: no job is stopped more than ten times."""
COLUMNS: Final = (
    "place", "policy", "against", "mean JCT", "95 % interval", "better on", "worst run", "p (Holm)", "stops a job",
    "most stops", "wait p99, h", "of `srtf`",
)  # fmt: skip
PHILLY: Final = "philly/philly_until_2017-10-31.csv.xz"
WINDOWED: Final = "--families hash:gavel --jobs 800 --load 0.9"
PAGE: Final = ROOT / "docs" / "results" / "stopping.md"


def place(title: str, options: str, seeds: int = 0) -> Place:
    """One set of jobs on one cluster, for these policies."""
    return Place(title, options, seeds, names=NAMES)


def seeded(more: str, seeds: int = 20) -> list[Place]:
    """The places with jobs drawn at random."""
    paper = "-c paper16 -w paper --load"
    large = f"-c examples/unseen512.toml -w paper --jobs 3000 --load 0.9 {more}"
    return [
        *(place(f"paper16, load {load:g}", f"{paper} {load:g} {more}", seeds) for load in (0.7, 0.9, 1.1)),
        place("gavel108", f"-c gavel108 -w gavel --load 0.9 {more}", 10),
        place("sia64", f"-c sia64 -w sia-philly {more}", 2 * seeds),
        place("512 GPUs of unseen models", large, 3),
    ]


def traced(more: str) -> list[Place]:
    """The places with windows of traces. The policies were tuned on those marked with a star."""
    philly = f"-c gavel108 -w {TRACES}/{PHILLY} {WINDOWED} {more}"
    cloud = f"-c examples/supercloud.toml -w {TRACES}/{SUPERCLOUD} {WINDOWED} {more}"
    kth = f"-c examples/kth_sp2.toml -w {TRACES}/kth_sp2_1996/kth_sp2_until_20736000s.swf.xz {more}"
    centrum = f"-c examples/metacentrum.toml -w {TRACES}/metacentrum_wagap_2013/wagap-2013.swf.xz --load 0.9 {more}"
    nasa = f"-c examples/nasa_ipsc.toml -w {TRACES}/nasa_ipsc_1993/NASA-iPSC-1993-3.1-cln.swf.xz --load 0.9 {more}"
    return [
        place("Philly, hours 609 to 1382 *", f"{philly} --window 609:1382 --windows 10"),
        place("Philly, hours 0 to 609", f"{philly} --window 0:609 --windows 10"),
        place("MIT SuperCloud, second half *", f"{cloud} --window 0.5:1 --windows 8"),
        place("KTH *", f"{kth} --windows 16"),
        place("MetaCentrum", f"{centrum} --windows 8"),
        place("NASA", f"{nasa} --windows 12"),
    ]


def some(places: list[Place], titles: tuple[str, ...], names: tuple[str, ...], seeds: int = 1000) -> list[Place]:
    """Those with these titles, for these policies, with at most so many seeds."""
    chosen = [each for each in places if each.title in titles]
    return [replace(each, names=names, seeds=min(each.seeds, seeds)) for each in chosen]


def dear(restart_s: int) -> list[Place]:
    """Some of the places where a restart costs more."""
    more = f"--estimates oracle --restart-s {restart_s}"
    titles = ("paper16, load 0.9", "sia64", "Philly, hours 0 to 609", "KTH *")
    names = tuple(name for name in NAMES if name != "las" or restart_s < DEAREST_S)
    return [
        replace(each, title=f"{each.title}, restart {restart_s} s")
        for each in some([*seeded(more), *traced(more)], titles, names)
    ]


def exact() -> list[Place]:
    """All places, with exact estimates."""
    return [*seeded("--estimates oracle"), *traced("--estimates oracle")]


SETS: Final[dict[str, list[Place]]] = {
    "oracle": exact(),
    "noisy": [*seeded("--estimates noisy:0.5"), *traced("--estimates noisy:0.5")],
    "predicted": traced("--estimates predicted"),
    "dear": dear(300),
    "dearest": dear(DEAREST_S),
    "ahead": [
        *some(exact(), SMALL, (*STOPPED_BEST, PLAN, NETWORK, "lookahead-plan", AHEAD), 10),
        *some(exact(), LARGE, (*STOPPED_BEST, PLAN, NETWORK, AHEAD), 10),
    ],
    "bounded": [
        replace(each, names=(*(f"{name}{BOUND}" for name in NAMES if name != "adlro"), "adlro", "srtf", PLAN, NETWORK))
        for each in exact()
    ],
    "gavel": some(exact(), ("paper16, load 0.9", "gavel108"), (*STOPPING, *GAVEL, PLAN, NETWORK), 3),
    "weights": [
        replace(place(f"{each.title}, {weights}", f"{each.options} --weights {weights}", each.seeds), names=BY_PRIORITY)
        for each in some(exact(), ("paper16, load 0.9",), BY_PRIORITY)
        for weights in ("equal", "priority")
    ],
}
TITLES: Final = {
    "oracle": "Exact estimates, restart 30 s",
    "noisy": "Estimates with a log-normal error (sigma 0.5), restart 30 s",
    "predicted": "Predicted estimates, restart 30 s",
    "dear": "Where a restart costs more, exact estimates",
    "dearest": "Where a restart costs half an hour, exact estimates",
    "ahead": "With look-ahead, exact estimates, restart 30 s",
    "bounded": "No job is stopped more than ten times, exact estimates, restart 30 s",
    "gavel": "Beside Gavel's policies, exact estimates, restart 30 s",
    "weights": "Where priority counts",
}
FIRST_SEED: Final = 5_000_000


def values(found: dict[str, Any], policy: str, measure: str = "jct_mean_s") -> Any:
    """A measure of a policy by seed or window, as one row."""
    return np.array([found["policies"][policy]["per_seed"][measure]])


def bound_of(policy: str) -> str:
    """The wrapper that bounds how often the policy stops a job; empty if it has none."""
    return BOUND if policy.endswith(BOUND) else ""


def signed(text: str) -> str:
    """The text with proper minus signs."""
    return text.replace("| -", "| −").replace("to -", "to −")


def means(results: list[tuple[Place, dict[str, Any]]]) -> Iterator[str]:
    """The mean JCT of every policy in every place."""
    names = list(dict.fromkeys(name for each, _ in results for name in each.names))
    yield "| place | runs | " + " | ".join(f"`{each}`" for each in names) + " |"
    yield "|---|--:|" + "--:|" * len(names)
    for each, found in results:
        hours = {name: mean_of(found, name) / 3600 for name in names if name in found["policies"]}
        best = min(hours.values())
        told = {name: f"**{value:.3f}**" if value == best else f"{value:.3f}" for name, value in hours.items()}
        cells = (told.get(name, "–") for name in names)
        yield f"| {each.title} | {values(found, PLAN).size} | " + " | ".join(cells) + " |"


def differences(results: list[tuple[Place, dict[str, Any]]], pairs: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Each policy against another: the change of the mean, its interval and test, and what it costs single jobs."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---|---|---|" + "--:|" * (len(COLUMNS) - 3)
    for ours, other in pairs:
        rows, changes = [], []
        for each, found in results:
            if not {ours, other} - {"best"} <= found["policies"].keys():
                continue
            theirs = other
            if other == "best":
                named = [f"{name}{bound_of(ours)}" for name in (*STOPPING, *GAVEL)]
                rules = [name for name in found["policies"] if name in named]
                theirs = min(rules, key=lambda name: mean_of(found, name))
            one, two = values(found, ours), values(found, theirs)
            rows.append((each, theirs, one, two, compared_rows(one, two, ["JCT"])[0], found))
            changes.append(one.mean() / two.mean() - 1)
        if not rows:
            continue
        corrected = holm([float(row[4].wilcoxon_p_holm or 0.0) for row in rows])
        for (each, theirs, one, two, difference, found), p in zip(rows, corrected, strict=True):
            jobs = values(found, ours, "finished").mean()
            late = [mean_of(found, name, "wait_p99_s") / 3600 for name in (ours, f"srtf{bound_of(ours)}")]
            cells = [
                each.title, f"`{ours}`", f"`{theirs}`", f"{100 * (one.mean() / two.mean() - 1):+.1f} %",
                f"{100 * (difference.relative_low or 0.0):+.1f} to {100 * (difference.relative_high or 0.0):+.1f}",
                f"{np.count_nonzero(one < two)} of {one.size}", f"{(one / two).max():.2f}",
                "< 0.001" if p < 0.001 else f"{p:.3f}", f"{values(found, ours, 'preemptions').mean() / jobs:.2f}",
                f"{values(found, ours, 'most_stops').max()}", *(f"{hours:.2f}" for hours in late),
            ]  # fmt: skip
            yield signed(f"| {' | '.join(cells)} |")
        yield signed(
            f"| *mean of places* | `{ours}` | {other} | {100 * fmean(changes):+.1f} %" + " |" * (len(COLUMNS) - 3)
        )


def by_priority(results: list[tuple[Place, dict[str, Any]]]) -> Iterator[str]:
    """Weighted and plain mean JCT, and the mean waits of the four classes of priority."""
    yield "| policy | weights | weighted mean JCT, h | mean JCT, h | mean waits by priority, min |"
    yield "|---|---|--:|--:|--:|"
    for name in BY_PRIORITY:
        for each, found in results:
            waits = (mean_of(found, name, f"wait_priority_{number}_s") / 60 for number in range(1, 5))
            hours = (mean_of(found, name, f"jct_{kind}mean_s") / 3600 for kind in ("weighted_", ""))
            weighted, plain = (f"{value:.3f}" for value in hours)
            cells = [f"`{name}`", each.title.split()[-1], weighted, plain, " / ".join(f"{wait:.0f}" for wait in waits)]
            yield f"| {' | '.join(cells)} |"


def table(name: str, results: list[tuple[Place, dict[str, Any]]], further: Sequence[str] = ()) -> str:
    """The tables of one set; `further` policies have rows of their own."""
    against = [(PLAN, "best"), (NETWORK, "best"), (NETWORK, PLAN), (NETWORK, "adlro"), (CORRECTED, PLAN)]
    if name == "ahead":
        against = [(AHEAD, "best"), (AHEAD, PLAN), (AHEAD, NETWORK), (AHEAD, "lookahead-plan")]
    elif name == "bounded":
        bounded = f"{NETWORK}{BOUND}"
        against = [(f"{PLAN}{BOUND}", "best"), (bounded, "best"), (bounded, f"{PLAN}{BOUND}"), (bounded, NETWORK)]
    elif name == "gavel":
        against = against[:2]
    against += [(ours, other) for ours in further for other in ("best", PLAN, NETWORK)]
    if not results:
        return ""
    lines = [f"### {TITLES[name]}", "", "Mean JCT in hours:", "", *means(results), "", *differences(results, against)]
    if name == "weights":
        lines = [f"### {TITLES[name]}", "", *by_priority(results)]
    return "\n".join(lines) + "\n"


def write(tables: dict[str, str]) -> None:
    """Put the tables into the page, each between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        first, last = f"<!-- table: {name} -->\n", f"<!-- end of table: {name} -->\n"
        before, _, rest = text.partition(first)
        _, found, after = rest.partition(last)
        if not found:
            sys.exit(f"{PAGE}: expected the lines {first.strip()!r} and {last.strip()!r} around a table. Add them.")
        text = f"{before}{first}\n{lines}\n{last}{after}"
    PAGE.write_text(text, encoding="utf-8")


def wanted(name: str, given: argparse.Namespace) -> Iterator[Place]:
    """The places of a set that are asked for, with the further policies."""
    for each in SETS[name]:
        if (not given.kept or is_kept(each, given, name)) and (not given.only or each.title in given.only):
            yield replace(each, names=(*each.names, *(more for more in given.policy if more not in each.names)))


def main() -> None:
    """Run sets of comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=[*SETS, "all"])
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=int, default=1000, help="of each place, at most")
    parser.add_argument("--only", action="append", default=[], metavar="TITLE", help="only this place (repeatable)")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME", help="one more policy in every place (repeatable)"
    )
    parser.add_argument("--at-once", type=int, default=1, help="comparisons that run side by side")
    parser.add_argument("--keep", type=Path, default=None)
    parser.add_argument(
        "--kept", action="store_true", help="run nothing: only the places that are in the folder of --keep"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the page too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given.keep = given.keep or Path(folder)
        given.keep.mkdir(parents=True, exist_ok=True)
        asked = list(SETS) if "all" in given.sets else given.sets
        sets = {name: list(wanted(name, given)) for name in asked}
        with ThreadPoolExecutor(given.at_once) as pool:
            made = {
                (name, each.title): pool.submit(compared, each, given, name) for name in sets for each in sets[name]
            }
            tables = {
                name: table(
                    name,
                    [(each, made[name, each.title].result()) for each in sets[name]],
                    [shown_as(more) for more in given.policy],
                )
                for name in sets
            }
    print(*tables.values(), sep="\n")
    if given.write:
        write(tables)


if __name__ == "__main__":
    main()
