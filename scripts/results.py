"""The comparisons behind docs/results/: run them again, print their tables as Markdown.

    python scripts/results.py                     # what there is
    python scripts/results.py philly              # one of them, a minute to half an hour
    python scripts/results.py philly --show       # only the commands that it runs
    python scripts/results.py all --keep out/     # all of them; what is in out/ already is not run again
    python scripts/results.py all --slow none     # without the policies that take long
    python scripts/results.py philly --keep out/ --write      # put the table into its page of docs/results/ too

Traces are looked for in ../shared/traces, or in the folder that ADLRO_TRACES names. Every table is made from the JSON
of `adlro compare --json`. Slow policies are run apart from the others, each under a time limit: they meet the same
jobs, so their values stand beside the others', and the tests are computed over all of them together.
"""

import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from adlro.decide.catalogue import policies
from adlro.experiment.compare import over_seeds
from adlro.measure.numbers import MISSING, change, mean_count, number, percent, unit_for
from adlro.measure.statistics import Against, against, mean_intervals

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ROOT / "docs/results"
TRACES: Final = os.environ.get("ADLRO_TRACES", "../shared/traces")

PHILLY: Final = "philly/philly_until_2017-10-31.csv.xz"
OPENB: Final = "alibaba_gpu_v2023/openb_pod_list_gpuspec33_until_12000000s.csv.xz"
SUPERCLOUD: Final = "mit_supercloud_2021/slurm-log-queueing-clean_until_2021-03-04.csv.xz"
KTH: Final = "kth_sp2_1996/kth_sp2_until_20736000s.swf.xz"
SIA: Final = {
    mix: tuple(f"sia_workloads/{mix}/workload-{index}.csv" for index in range(1, last + 1))
    for mix, last in (("philly", 6), ("saturn", 7), ("newtrace", 7))
}

SIA_SLOWDOWNS: Final = {"sia/cifar10": 1.8} | dict.fromkeys(
    ("sia/imagenet", "sia/yolov3", "sia/bert", "sia/deepspeech2"), 1.2
)
"""By how much Sia's simulator slows its jobs, to match what its authors saw on real machines (simulator_config.py)."""

SLOWED_POLICIES: Final = ("fcfs-easy", "srtf", "eft-reserving", "gavel-maxmin", "gavel-maxsum", "gavel-makespan")

APART: Final = tuple(policy.name for policy in policies() if policy.name.startswith("adlro") or policy.resizes)
"""They have pages of their own, docs/results/learned.md and elastic.md; here they run only if --slow names them."""

SLOW: Final = (
    *(policy.name for policy in policies() if policy.name.startswith(("gavel-", "allox", "lookahead-"))),
    *APART,
)
"""Those that solve programs, or play forward, at every decision."""

MEASURES: Final = ("jct_mean_s", "jct_p95_s", "wait_mean_s", "utilisation", "effective_utilisation", "refused",
                   "unfinished", "preemptions")  # fmt: skip

Values = dict[str, dict[str, list[float | None]]]
"""By policy, by measure: its values by seed, window or list."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One comparison of the document."""

    title: str
    options: str
    workloads: Mapping[str, Sequence[str]]  # by mix: shipped names, or traces; several are one repetition each
    only: tuple[str, ...] = ()  # policies; none: all
    leave_out: tuple[str, ...] = ()  # too slow to be tried
    limit_s: int = 600  # for each slow policy on each workload
    apart: bool = True  # slow policies one by one; else all in one command, which is quicker for many short lists
    slowed: Mapping[str, float] = field(default_factory=dict)  # by family, how many times its work counts
    in_hours: bool = False  # for a number to be set beside; else the unit that suits the means
    baseline: str = "fcfs-easy"  # fcfs is so far behind that everything is better


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment came to."""

    values: Values
    load: list[float]
    mix: list[str]  # of every repetition
    jobs: list[int]
    seconds: dict[str, float]  # by slow policy
    left_out: dict[str, str]  # by policy, why


EXPERIMENTS: Final = {
    "paper16": Experiment("The paper's cluster", "-c paper16 --seeds 30", {"paper": ["paper"]}),
    "philly": Experiment(
        "Philly on gavel108",
        "-c gavel108 --families hash:gavel --window 609:1382 --load 0.9 --windows 12",
        {"philly": [PHILLY]},
    ),
    "philly-short": Experiment(
        "The first 500 jobs of each window, with the slow policies",
        "-c gavel108 --families hash:gavel --window 609:1382 --load 0.9 --windows 12 --jobs 500",
        {"philly": [PHILLY]},
    ),
    "openb-recorded": Experiment("openb as recorded", "-c openb --windows 12", {"openb": [OPENB]}, leave_out=SLOW),
    "openb-dense": Experiment("openb 384 times as fast", "-c openb --load 0.9", {"openb": [OPENB]}, leave_out=SLOW),
    "openb-like": Experiment(
        "100,000 pods drawn like openb's", "-c openb --jobs 100000 --load 1 --seeds 10", {"openb": ["openb-like"]},
        only=("fcfs-first-fit", "random", "best-fit", "fgd", "sjf", "unicep"), baseline="fcfs-first-fit",
    ),
    "sia": Experiment("Sia's mixes on sia64", "-c sia64", SIA, apart=False),
    "sia-slowed": Experiment(
        "Sia's Philly mix with Sia's slowdowns, a restart costs 80 s", "-c sia64 --restart-s 80",
        {"philly": SIA["philly"]}, only=SLOWED_POLICIES, apart=False, slowed=SIA_SLOWDOWNS,
        in_hours=True,
    ),
    "sia-slowed-250": Experiment(
        "The same, a restart costs 250 s", "-c sia64 --restart-s 250",
        {"philly": SIA["philly"]}, only=SLOWED_POLICIES, apart=False, slowed=SIA_SLOWDOWNS,
        in_hours=True,
    ),
    "supercloud": Experiment(
        "MIT SuperCloud", "-c examples/supercloud.toml --window 0.58:1 --windows 12 --estimates oracle",
        {"supercloud": [SUPERCLOUD]},
    ),
    "kth-user": Experiment(
        "KTH, users' estimates", "-c examples/kth_sp2.toml --windows 16 --estimates user", {"kth": [KTH]}
    ),
    "kth-oracle": Experiment(
        "KTH, exact estimates", "-c examples/kth_sp2.toml --windows 16 --estimates oracle", {"kth": [KTH]}
    ),
}  # fmt: skip


# ---- running -----------------------------------------------------------------------------------------------------


def chosen(experiment: Experiment) -> tuple[list[str], list[str]]:
    """The policies that are run together, the baseline first, and those that are run alone."""
    names = [policy.name for policy in policies()]
    names = [name for name in names if name in (experiment.only or names) and name not in experiment.leave_out]
    together = [name for name in names if name not in SLOW and name != experiment.baseline]
    return [experiment.baseline, *together], [name for name in names if name in SLOW]


def commands(experiment: Experiment, folder: Path) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Mix, workload, policies and the command that compares them."""
    together, alone = chosen(experiment)
    if not experiment.apart:
        together, alone = [*together, *(name for name in alone if name not in APART)], [*APART]
    groups = [together, *([name] for name in alone)]
    for mix, workloads in experiment.workloads.items():
        for workload in workloads:
            path = f"{TRACES}/{workload}" if "/" in workload else workload
            if experiment.slowed:
                path = str(slowed_copy(path, folder, experiment.slowed))
            for group in groups:
                options = ["-w", path, *shlex.split(experiment.options), "-p", ",".join(group), "--json"]
                yield mix, workload, group, ["compare", *options]


def slowed_copy(path: str, folder: Path, factors: Mapping[str, float]) -> Path:
    """The same jobs with more work, by family, as our own table in this folder."""
    copy = (folder / f"slowed-{'-'.join(Path(path).parts[-2:])}").resolve()
    if not copy.exists():
        command = [sys.executable, "-m", "adlro", "trace", "convert", path, str(copy)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        with copy.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            for column in ("work", "estimate"):
                row[column] = str(float(row[column]) * factors[row["family"]])
        with copy.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return copy


def run(command: Sequence[str], limit_s: int) -> dict[str, Any] | None:
    """The JSON of an adlro command and the seconds it took; None if it took longer than the limit."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "adlro", *command], cwd=ROOT, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"adlro {shlex.join(command)}\n{done.stderr.strip().splitlines()[-1]}")
    return {"result": json.loads(done.stdout), "seconds": time.monotonic() - began}


def outcome(name: str, folder: Path, slow: Sequence[str] = SLOW) -> Outcome:
    """Run what is not in the folder yet, of the slow policies only these, and put it together."""
    experiment = EXPERIMENTS[name]
    found = Outcome({}, [], [], [], {}, dict.fromkeys(experiment.leave_out, "not tried"))
    for mix, workload, group, command in commands(experiment, folder):
        tag = "together" if len(group) > 1 else group[0]
        kept = folder / f"{name}_{re.sub(r'[^a-z0-9]+', '-', workload)}_{tag}.json"
        late = kept.with_suffix(".late")
        if group[0] in found.left_out or late.exists():
            found.left_out.setdefault(group[0], late.read_text() if late.exists() else "")
            continue
        if not kept.exists():
            if group[0] in SLOW and group[0] not in slow:
                found.left_out[group[0]] = "not tried"
                continue
            print(f"{name}: {workload}, {tag} …", file=sys.stderr, flush=True)
            result = run(command, experiment.limit_s if group[0] in SLOW else 3600)
            if result is None:
                late.write_text(f"more than {experiment.limit_s / 60:.0f} min")
                found.left_out[group[0]] = late.read_text()
                continue
            kept.write_text(json.dumps(result))
        take(found, json.loads(kept.read_text()), group, mix)
    for policy in list(found.left_out):  # it may have been in time for some lists, but not for all
        found.values.pop(policy, None)
        if policy in APART:
            del found.left_out[policy]
    return found


def take(found: Outcome, kept: dict[str, Any], group: Sequence[str], mix: str) -> None:
    """Add the values of one command."""
    result = kept["result"]
    for policy in group:
        per_seed = result["policies"][policy]["per_seed"]
        mine = found.values.setdefault(policy, {measure: [] for measure in MEASURES})
        for measure in MEASURES:
            mine[measure] += per_seed[measure]
    if group[0] in SLOW:
        found.seconds[group[0]] = found.seconds.get(group[0], 0.0) + kept["seconds"]
    else:
        found.load.extend(result["load"])
        found.mix.extend([mix] * len(result["seeds"]))
        found.jobs.extend(int(count) for count in result["policies"][group[0]]["per_seed"]["jobs"])


# ---- tables ------------------------------------------------------------------------------------------------------


def table(experiment: Experiment, found: Outcome) -> str:
    """The table of an experiment, the best mean JCT first, and what belongs below it."""
    rows = rows_by_mix(experiment, found) if len(experiment.workloads) > 1 else rows_by_seed(experiment, found)
    return "\n".join([*rows, "", *notes(found)])


def rows_by_seed(experiment: Experiment, found: Outcome) -> Iterator[str]:
    """Means over seeds or windows, and differences to the baseline in the unit of the means."""
    means = {policy: {key: over_seeds(each) for key, each in of.items()} for policy, of in found.values.items()}
    intervals = mean_intervals(found.values)
    unit, word = unit_for([of["jct_mean_s"].value for of in means.values()])
    if experiment.in_hours:
        unit, word = 3600.0, "h"
    compared = judged(found.values, experiment.baseline)
    best = min(means, key=lambda name: means[name]["jct_mean_s"].value or 0.0)
    from_best = judged(found.values, best) if len(found.load) > 1 else {}
    base = means[experiment.baseline]["jct_mean_s"].value
    refused = any(of["refused"].value for of in means.values())
    yield (
        f"| policy | mean JCT, {word} | 95 % | against {experiment.baseline} | 95 % | p (Holm) | verdict "
        f"| the best? | p95, {word} | wait, {word} | util., % | eff., % |{' refused |' if refused else ''}"
    )
    yield f"|---|--:|--:|--:|--:|--:|---|---|--:|--:|--:|--:|{'--:|' if refused else ''}"
    rows: dict[tuple[str, ...], list[str]] = {}
    for policy in sorted(means, key=lambda name: means[name]["jct_mean_s"].value or 0.0):
        of, other = means[policy], compared.get(policy)
        jct = of["jct_mean_s"]
        cells = [
            number(jct.value, unit),
            span(intervals[policy]["jct_mean_s"], unit),
            unsigned_zero(change(jct.value, base)) if other else "",
            relative_span(other) if other else "",
            p_value(other.wilcoxon_p_holm) if other else "",
            verdict(other) if other else "baseline",
            as_good(from_best.get(policy)) if from_best else MISSING,
            number(of["jct_p95_s"].value, unit),
            number(of["wait_mean_s"].value, unit),
            percent(of["utilisation"].value),
            percent(of["effective_utilisation"].value),
            *([mean_count(of["refused"].value)] if refused else []),
        ]
        rows.setdefault(tuple(cells), []).append(f"`{policy}`")
    for cells_of, names in rows.items():  # where nobody waits, all come to the same
        yield f"| {', '.join(names)} | {' | '.join(cells_of)} |"


def rows_by_mix(experiment: Experiment, found: Outcome) -> Iterator[str]:
    """Means by mix, and over all lists the ratio to the baseline: mixes differ too much for a mean in hours."""
    logs: Values = {
        policy: {"jct_mean_s": [log(value) if value else None for value in of["jct_mean_s"]]}
        for policy, of in found.values.items()
    }
    compared = judged(logs, experiment.baseline)
    mixes = list(experiment.workloads)
    headings = " | ".join(f"{mix}, h | p95, h" for mix in mixes)
    yield (
        f"| policy | {headings} | against {experiment.baseline} | 95 % | p (Holm) | verdict "
        f"| the best? | util., % | eff., % |"
    )
    yield f"|---|{'--:|' * (2 * len(mixes) + 3)}---|---|--:|--:|"

    def of_mix(policy: str, measure: str, mix: str) -> float | None:
        values = [value for value, its in zip(found.values[policy][measure], found.mix, strict=True) if its == mix]
        return over_seeds(values).value

    def ratio(policy: str) -> float:
        return compared[policy].difference if policy in compared else 0.0

    order = sorted(found.values, key=ratio)
    from_best = judged(logs, order[0])
    for policy in order:
        other = compared.get(policy)
        cells = [
            f"`{policy}`",
            *(
                number(of_mix(policy, measure, mix), 3600.0)
                for mix in mixes
                for measure in ("jct_mean_s", "jct_p95_s")
            ),
            change(exp(other.difference), 1.0) if other else "",
            span_of_ratios(other) if other else "",
            p_value(other.wilcoxon_p_holm) if other else "",
            verdict(other) if other else "baseline",
            as_good(from_best.get(policy)),
            percent(over_seeds(found.values[policy]["utilisation"]).value),
            percent(over_seeds(found.values[policy]["effective_utilisation"]).value),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def judged(values: Values, baseline: str) -> dict[str, Against]:
    """Every other policy against the baseline by mean JCT; the correction is over all of them."""
    only = {policy: {"jct_mean_s": of["jct_mean_s"]} for policy, of in values.items()}
    found = {policy: of["jct_mean_s"] for policy, of in against(only, baseline).items()}
    return {policy: each for policy, each in found.items() if each is not None}


def notes(found: Outcome) -> Iterator[str]:
    """Load, jobs, and who was left out or slow."""
    mixes = dict.fromkeys(found.mix)
    for mix in mixes:
        load = [value for value, its in zip(found.load, found.mix, strict=True) if its == mix]
        jobs = [value for value, its in zip(found.jobs, found.mix, strict=True) if its == mix]
        word = f"{mix}: " if len(mixes) > 1 else ""
        many = f"{min(jobs):,}" if min(jobs) == max(jobs) else f"{min(jobs):,} to {max(jobs):,}"
        digits = 2 if fmean(load) >= 0.1 else 4
        load_text = f"{fmean(load):.{digits}f}"
        if len(load) > 1:
            load_text += f" on average ({min(load):.{digits}f} to {max(load):.{digits}f})"
        yield f"{word}{len(load)} × {many} jobs; offered load {load_text}.".capitalize()
    if found.left_out:
        reasons: dict[str, list[str]] = {}
        for policy, why in found.left_out.items():
            reasons.setdefault(why, []).append(f"`{policy}`")
        told = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
        yield f"Left out: {told}."
    if found.seconds:
        slowest = sorted(found.seconds.items(), key=lambda item: -item[1])
        yield (
            "Seconds for all runs of the slow ones, on a shared core: "
            + ", ".join(f"`{policy}` {seconds:,.0f}" for policy, seconds in slowest if policy not in found.left_out)
            + "."
        )


# ---- cells -------------------------------------------------------------------------------------------------------


def span(interval: tuple[float, float] | None, unit: float) -> str:
    """An interval."""
    return MISSING if interval is None else f"{number(interval[0], unit)} to {number(interval[1], unit)}"


def relative_span(other: Against) -> str:
    """The interval of the ratio to the baseline, in percent."""
    if other.relative_low is None or other.relative_high is None:
        return MISSING
    return f"{100 * other.relative_low:+.1f} to {100 * other.relative_high:+.1f}".replace("-", "−")


def span_of_ratios(other: Against) -> str:
    """The interval of a difference of logarithms, in percent."""
    if other.low is None or other.high is None:
        return MISSING
    return f"{100 * (exp(other.low) - 1):+.1f} to {100 * (exp(other.high) - 1):+.1f}".replace("-", "−")


def unsigned_zero(text: str) -> str:
    """A change that rounds to nothing has no direction."""
    return text[1:] if text in ("+0.0 %", "−0.0 %") else text


def p_value(p: float | None) -> str:
    """A p value with as many digits as anybody needs."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def verdict(other: Against) -> str:
    """What the test says; a difference with its direction."""
    if other.verdict != "different":
        return other.verdict
    return "better" if other.difference < 0 else "worse"


def as_good(other: Against | None) -> str:
    """Whether a policy is shown to differ from the best of the table."""
    if other is None:
        return "best"
    return {"different": "no", "no difference shown": "may be"}.get(other.verdict, MISSING)


# ---- the document ------------------------------------------------------------------------------------------------


def write(name: str, markdown: str) -> None:
    """Put a table between its two marks in the page that has them."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))}
    found = [page for page, text in pages.items() if begin in text and end in text]
    if len(found) != 1:
        raise SystemExit(
            f"{len(found)} pages of docs/results/ have a place for {name}; expected one page with the lines "
            f"{begin} and {end}. Add them where the table should stand."
        )
    before, rest = pages[found[0]].split(begin)
    found[0].write_text(f"{before}{begin}\n{markdown}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description="The comparisons of docs/results/")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(EXPERIMENTS)}, or all")
    parser.add_argument("--keep", metavar="DIR", help="keep the JSON here, and do not run again what is there")
    parser.add_argument(
        "--slow", default="all", metavar="NAMES", help="slow policies to run: all (default), none, names"
    )
    parser.add_argument("--show", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into their pages of docs/results/")
    options = parser.parse_args()
    names = list(EXPERIMENTS) if options.names == ["all"] else options.names
    for name in names:
        if name not in EXPERIMENTS:
            parser.error(f"there is no '{name}'; there are {', '.join(EXPERIMENTS)}")
    plain = [name for name in SLOW if name not in APART]
    slow = plain if options.slow == "all" else options.slow.split(",")
    if not names:
        for name, experiment in EXPERIMENTS.items():
            print(f"{name:16} {experiment.title}: adlro compare {experiment.options}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if options.show:
                for _, _, group, command in commands(EXPERIMENTS[name], folder):
                    if group[0] not in SLOW or group[0] in slow:
                        print(f"adlro {shlex.join(command)}")
                continue
            markdown = table(EXPERIMENTS[name], outcome(name, folder, slow))
            print(f"\n## {EXPERIMENTS[name].title}\n\n{markdown}" if len(names) > 1 else markdown)
            if options.write:
                write(name, markdown)


if __name__ == "__main__":
    main()
