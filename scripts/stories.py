"""The paper's two stories as tables: a saturated cluster, and a surge of machine-learning jobs.

    python scripts/stories.py                          # both tables, on 20 seeds from 9,100,000 on
    python scripts/stories.py --seeds 4 --write        # few seeds; put the tables into docs/results/learned.md

Saturation: `paper16` at loads 1.1 and 2, where jobs arrive faster than FCFS finishes them. Surge: the workload
`paper-surge`, mean completion times by family and by the period in which jobs were submitted, and how long after the
surge the queue is back to what it was.
"""

import argparse
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np

from adlro.core.run import Run
from adlro.core.tables import DONE, Jobs
from adlro.decide.catalogue import find_policy
from adlro.experiment.instance import draw, play_out
from adlro.experiment.scenario import Scenario, load_scenario
from adlro.ingest.workload_file import Workload
from adlro.measure.metrics import Metrics, measure
from adlro.measure.statistics import against

POLICIES: Final = ("fcfs", "static-affinity", "random", "fcfs-easy", "sjf", "adlro", "paper-dqn")
LOADS: Final = (1.1, 2.0)
PAGE: Final = Path(__file__).parent.parent / "docs/results/learned.md"
PERIODS: Final = ("before", "during", "after")
BEFORE_S: Final = 12 * 3600.0
"""How long before the surge the usual number of jobs in the system is taken from."""


def runs_of(scenario: Scenario, seeds: range) -> dict[str, list[Run]]:
    """Every policy on every seed."""
    found: dict[str, list[Run]] = {name: [] for name in POLICIES}
    for seed in seeds:
        for name in POLICIES:
            instance = draw(scenario, seed)
            found[name].append(play_out(instance, instance.view, find_policy(name)))
    return found


# ---- saturation --------------------------------------------------------------------------------------------------


def saturation(seeds: range) -> list[str]:
    """Throughput, completion times and utilisation where the cluster is saturated."""
    lines = [
        "| load | policy | mean JCT, h | against `fcfs` | `static-affinity` | `random` | jobs/h | against `fcfs` "
        "| `static-affinity` | `random` | util., % |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for load in LOADS:
        runs = runs_of(load_scenario("paper16", "paper", load=load), seeds)
        values = {name: _columns([measure(run) for run in each]) for name, each in runs.items()}
        for name in POLICIES:
            mine = values[name]
            cells = [f"{load:g}", f"`{name}`"]
            for measured, unit in (("jct_mean_s", 3600.0), ("throughput_per_h", 1.0)):
                cells.append(f"{fmean(mine[measured]) / unit:.3g}")
                cells += [_change(values, name, other, measured) for other in ("fcfs", "static-affinity", "random")]
            cells.append(f"{100 * fmean(mine['utilisation']):.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _columns(results: list[Metrics]) -> dict[str, list[float]]:
    """The values of each measure, by seed."""
    names = ("jct_mean_s", "throughput_per_h", "utilisation")
    return {name: [float(getattr(each, name)) for each in results] for name in names}


def _change(values: dict[str, dict[str, list[float]]], name: str, other: str, measured: str) -> str:
    """The change of a mean against another policy, with a mark if the test shows no difference at 1 %."""
    if name == other:
        return ""
    mine, theirs = values[name][measured], values[other][measured]
    ratio = fmean(mine) / fmean(theirs) - 1.0
    found = against({"a": {"x": mine}, "b": {"x": theirs}}, "b")["a"]["x"]
    p = None if found is None else found.wilcoxon_p_holm
    return f"{100 * ratio:+.1f} %{'' if p is not None and p < 0.01 else ' ?'}".replace("-", "−")


# ---- the surge ---------------------------------------------------------------------------------------------------


def surge(seeds: range) -> list[str]:
    """Completion times by family and period, and the hours until the queue is as before."""
    scenario = load_scenario("paper16", "paper-surge")
    workload = scenario.workload
    assert isinstance(workload, Workload)
    assert workload.surge is not None
    begin = (workload.surge.start_fraction or 0.0) * workload.jobs * (workload.arrivals.mean_interarrival_s or 0.0)
    end = begin + workload.surge.duration_s
    runs = runs_of(scenario, seeds)
    families = runs[POLICIES[0]][0].jobs.families
    heads = [f"{family}, {period}" for family in families for period in PERIODS]
    lines = [
        f"| policy | {' | '.join(heads)} | most in the system | back to usual after, h |",
        f"|---|{'--:|' * (len(heads) + 2)}",
    ]
    for name, each in runs.items():
        means = [by_family_and_period(run, begin, end) for run in each]
        cells = [f"{np.nanmean([m[f][p] for m in means]) / 60:.0f}" for f in range(len(families)) for p in range(3)]
        peaks, backs = zip(*(recovery(run, begin, end) for run in each), strict=True)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {fmean(peaks):.0f} | {median(backs) / 3600:.1f} |")
    return lines


def by_family_and_period(run: Run, begin: float, end: float) -> list[list[float]]:
    """Mean completion time of the jobs of each family, by when they were submitted."""
    table = run.jobs.table
    ends = finish_times(run, run.jobs)
    jct = ends - table["submit"]
    period = np.digitize(table["submit"], [begin, end])
    return [
        [
            float(np.nanmean(jct[(table["family"] == f) & (period == p)]))
            if ((table["family"] == f) & (period == p)).any()
            else float("nan")
            for p in range(3)
        ]
        for f in range(len(run.jobs.families))
    ]


def finish_times(run: Run, jobs: Jobs) -> np.ndarray:
    """When each job finished; NaN for one that did not."""
    ends = np.full(len(jobs), np.nan)
    done = run.events["what"] == DONE
    ends[run.events["job"][done]] = run.events["time"][done]
    return ends


def recovery(run: Run, begin: float, end: float) -> tuple[float, float]:
    """The most jobs in the system during and after the surge, and seconds from its end until there are as few as usual.

    Usual is the mean number in the system in the hours before the surge.
    """
    came = np.sort(run.jobs.table["submit"])
    gone = np.sort(finish_times(run, run.jobs))
    times = np.unique(np.concatenate((came, gone[~np.isnan(gone)])))
    inside = np.searchsorted(came, times, "right") - np.searchsorted(gone, times, "right")
    lengths = np.diff(times, append=times[-1])
    before = (times >= begin - BEFORE_S) & (times < begin)
    usual = float((inside[before] * lengths[before]).sum() / max(1e-9, lengths[before].sum()))
    after = times >= end
    back = times[after & (inside <= usual)]
    return float(inside[times >= begin].max()), float(back[0] - end if len(back) else times[-1] - end)


# ---- the page ----------------------------------------------------------------------------------------------------


def put(name: str, lines: list[str]) -> None:
    """Put a table between its marks in the page."""
    text = PAGE.read_text(encoding="utf-8")
    first, last = f"<!-- story: {name} -->", f"<!-- end of story: {name} -->"
    begin, end = text.index(first) + len(first), text.index(last)
    PAGE.write_text(text[:begin] + "\n\n" + "\n".join(lines) + "\n\n" + text[end:], encoding="utf-8")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", nargs="*", help="saturation, surge; default: both")
    parser.add_argument("--first-seed", type=int, default=9_100_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results/learned.md")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for name in given.stories or ["saturation", "surge"]:
        lines = saturation(seeds) if name == "saturation" else surge(seeds)
        print("\n".join(lines), flush=True)
        if given.write:
            put(name, lines)


if __name__ == "__main__":
    main()
