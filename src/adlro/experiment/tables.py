"""Results as tables for people: what the commands print, and the `repr` of results in Python."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from adlro.catalogue.speeds import own_table
from adlro.core.learned import KNOWN_SPEEDS
from adlro.core.run import Run
from adlro.experiment.compare import Comparison, Mean, over_seeds, regrets
from adlro.experiment.python_words import reworded
from adlro.experiment.scenario import Recorded
from adlro.measure.bounds import Bounds
from adlro.measure.metrics import Metrics
from adlro.measure.numbers import MISSING, change, mean_count, number, percent, unit_for
from adlro.measure.statistics import Verdict, against, fewest_seeds
from adlro.measure.text import plain_table, shortened

_WIDTH: Final = 110
"""Width of the text of a result, in characters."""

_BEST: Final = "bold green"

_MOST_REASONS: Final = 10

_NARROW: Final = 9
"""Columns of a name over a narrow column."""

_MARKS: Final[dict[Verdict, str]] = {"different": "*", "no difference shown": "·", "too few seeds": "?"}

PAPERS_TABLE_1: Final[tuple[tuple[str, str | None, float | None, float | None, float | None], ...]] = (
    ("FCFS", "fcfs", 25.8, 6.2, 0.581),
    ("Static affinity", "static-affinity", 22.1, 7.5, 0.654),
    ("ADLRO (DQN)", "adlro", 19.5, 9.1, 0.798),
    ("Paper's DQN", "paper-dqn", 19.5, 9.1, 0.798),
)
"""Algorithm, our policy, and as printed: average job completion time, jobs per hour, GPU utilisation.

The paper's agent has two rows: our own network, and the network that the paper describes, if it is compared.
"""

REMARK: Final = (
    "The paper gives completion times in seconds, which is impossible: 16 GPUs at 58.1 % that finish 6.2 jobs an hour "
    "spend 90 GPU-minutes on each job, so a job of 25.8 s would hold 200 GPUs. If the times are minutes, a job holds "
    "about four. The workload is calibrated on the utilisation of the FCFS row alone. Jobs arrive at a fixed rate, so "
    "the throughput of a policy that keeps up is that rate, and no policy can have more."
)

HEAT_ROWS: Final = (("clock lowered", "throttled", "%"), ("hottest GPU", "hottest_c", "C"))
"""Shown only for a run with heat."""

RUN_ROWS: Final = (
    ("mean JCT", "jct_mean_s", "s"),
    ("median JCT", "jct_p50_s", "s"),
    ("JCT, 95th percentile", "jct_p95_s", "s"),
    ("JCT, 99th percentile", "jct_p99_s", "s"),
    ("mean wait", "wait_mean_s", "s"),
    ("wait, 95th percentile", "wait_p95_s", "s"),
    ("mean bounded slowdown", "bounded_slowdown_mean", ""),
    ("makespan", "makespan_s", "s"),
    ("throughput", "throughput_per_h", "jobs/h"),
    ("utilisation", "utilisation", "%"),
    ("effective utilisation", "effective_utilisation", "%"),
    ("fragmentation", "fragmentation", "%"),
    ("fairness over users (Jain)", "jain_users", ""),
    ("finish-time fairness, mean", "finish_time_fairness_mean", ""),
    ("finish-time fairness, worst", "finish_time_fairness_max", ""),
    ("energy", "energy_kwh", "kWh"),
    ("preemptions", "preemptions", ""),
    ("failures", "failures", ""),
    ("work lost", "work_lost", "GPU-s"),
    ("illegal choices", "illegal", ""),
)
"""What `simulate` shows of a run: label, measure, unit."""

COLUMN_KEYS: Final = {
    "jct_mean_s": -1, "jct_p95_s": -1, "wait_mean_s": -1, "throughput_per_h": 1, "utilisation": 0,
    "effective_utilisation": 1, "unfinished": 0, "refused": 0,
}  # fmt: skip
"""The measures in the table: -1 less is better, 1 more is better, 0 neither (a slow GPU is well utilised too)."""


def as_text(lines: Iterable[RenderableType], width: int = _WIDTH) -> str:
    """Lines and tables as plain text, for a `repr`."""
    console = Console(
        file=io.StringIO(), width=width, highlight=False, color_system=None, legacy_windows=False, force_jupyter=False
    )
    for line in lines:
        console.print(line)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return reworded("\n".join(line.rstrip() for line in text.splitlines()))


# ---- compare --------------------------------------------------------------------------------------------------------


def comparison_lines(comparison: Comparison) -> Iterator[RenderableType]:
    """The comparison for people."""
    scenario, count = comparison.scenario, len(comparison.seeds)
    what = f"{scenario.workload.name} on {scenario.cluster.name}"
    repeated = f"{count} {comparison.over}{'s' if count > 1 else ''}"
    each = " each" if scenario.windows else ""
    yield Text(f"{what}, {scenario.jobs or scenario.workload.jobs:,} jobs{each}, {repeated}", "bold")
    found = verdicts(comparison)
    yield comparison_table(comparison, found)
    yield Text(_legend(comparison), "dim")
    if isinstance(scenario.workload, Recorded):
        yield Text(legend_of_trace(comparison, scenario.workload), "dim")
    if found:
        yield Text(legend_of_marks(comparison, found), "dim")
    if own_table(scenario.speed) is not None:
        yield Text(f"Speeds are those of {own_table(scenario.speed)} where it has them.", "dim")
    if comparison.scenario.speeds != KNOWN_SPEEDS:
        yield Text(f"Policies do not know the speeds: {comparison.scenario.speeds} (docs/speeds.md).", "dim")
    for name, regret in regrets(comparison).items():
        if regret.relative is not None and regret.known_jct_mean_s is not None:
            reach = f" ({regret.interval[0]:+.1%} to {regret.interval[1]:+.1%})" if regret.interval else ""
            seconds, unit = unit_for([regret.known_jct_mean_s])
            known = f"{regret.known_jct_mean_s / seconds:.2f} {unit}"
            yield Text(f"{name}: regret {regret.relative:+.1%}{reach} against {known} with known speeds")


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    """By policy: whether its mean JCT is shown to differ from the baseline's; nothing for one without a mean JCT."""
    found = against(comparison.per_seed(["jct_mean_s"]), comparison.baseline)
    return {name: each.verdict for name, measures in found.items() if (each := measures["jct_mean_s"])}


def comparison_table(comparison: Comparison, found: dict[str, Verdict]) -> Table:
    """One row for each policy; the best value of each column stands out, and each change has its verdict's mark."""
    means = {name: {key: _mean(results, key) for key in COLUMN_KEYS} for name, results in comparison.metrics.items()}
    first = comparison.baseline
    seconds, unit = unit_for([row["jct_mean_s"].value for row in means.values()])
    table = plain_table()
    baseline = shortened([first], _NARROW)[first]
    table.add_column("policy\n", style="cyan", overflow="fold")
    for heading in (
        f"mean JCT\n{unit}", f"against\n{baseline}", f"p95\n{unit}", f"wait\n{unit}", "jobs\n/h", "util.\n%",
        "eff.\n%", "unfin./\nrefused",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    # Who leaves jobs over has good times for the others; that is nothing to be praised for.
    worthy = [row for row in means.values() if not row["unfinished"].value]
    best = {key: _best_of([row[key].value for row in worthy], sign) for key, sign in COLUMN_KEYS.items()}
    for name, row in means.items():
        value = {key: row[key].value for key in COLUMN_KEYS}
        shown = {
            "jct_mean_s": with_reach(row["jct_mean_s"], seconds),
            "jct_p95_s": number(value["jct_p95_s"], seconds),
            "wait_mean_s": number(value["wait_mean_s"], seconds),
            "throughput_per_h": number(value["throughput_per_h"]),
            "utilisation": percent(value["utilisation"]),
            "effective_utilisation": percent(value["effective_utilisation"]),
        }
        praised = {key for key in shown if row in worthy and value[key] is not None and value[key] == best[key]}
        cells = [Text(text, _BEST if key in praised else "") for key, text in shown.items()]
        by = change(value["jct_mean_s"], means[first]["jct_mean_s"].value) if name != first else ""
        cells.insert(1, Text(f"{by} {_MARKS[found[name]]}" if name in found else by))
        table.add_row(name, *cells, f"{mean_count(value['unfinished'])}/{mean_count(value['refused'])}")
    return table


def _legend(comparison: Comparison) -> str:
    """What the columns mean, and which policies should not be trusted."""
    reach = f"± 95 % interval over {comparison.over}s; " if len(comparison.seeds) > 1 else ""
    text = (
        f"JCT: submission to finish, of finished jobs; {reach}wait: until the first start; "
        "eff.: effective utilisation, which counts work done at each job's best speed."
    )
    illegal = [name for name, results in comparison.metrics.items() if any(metrics.illegal for metrics in results)]
    if any(metrics.refused for results in comparison.metrics.values() for metrics in results):
        cluster = comparison.scenario.cluster.name
        text += f" Refused jobs can never run on {cluster}: `adlro simulate` lists the reasons."
    if illegal:
        text += f" These policies made illegal choices: {', '.join(illegal)}."
    return text


def legend_of_trace(comparison: Comparison, trace: Recorded) -> str:
    """The load of the trace on the cluster, and assumptions where the trace says nothing."""
    load = comparison.load
    of_each = " on average by window" if trace.windows else ""
    spread = f"{of_each} ({min(load):.2f} to {max(load):.2f})" if max(load) > min(load) else ""
    report = trace.report
    asked = comparison.scenario.load
    # A mean over windows is not the load of the whole: a busy window is short.
    whole = f"{asked:.2f} over the whole trace, " if asked and trace.windows else ""
    text = f"Offered load {whole}{fmean(load):.2f}{spread}; families: {report.families}; estimates: {report.estimates}"
    if left_out := report.rows - report.kept - report.not_asked_for:
        text += f"; {left_out:,} rows left out"
    if len(load) > 1 and not trace.windows:
        text += ". The jobs are the same on every seed: intervals and marks say nothing about other jobs"
    return f"{text}."


def legend_of_marks(comparison: Comparison, found: dict[str, Verdict]) -> str:
    """What the marks beside the changes mean; those that occur."""
    fewest = fewest_seeds(len(found))
    needed = f"{len(found)} policies against {comparison.baseline} need" if len(found) > 1 else "a comparison needs"
    meaning: dict[Verdict, str] = {
        "different": f"mean JCT differs from that of {comparison.baseline} (Wilcoxon signed-rank, Holm, 5 %)",
        "no difference shown": "no difference shown",
        "too few seeds": f"too few {comparison.over}s: {needed} at least {fewest}"
        + (f" (--windows {max(10, fewest)} cuts the trace)" if not comparison.scenario.varies else ""),
    }
    return "; ".join(f"{_MARKS[each]} {text}" for each, text in meaning.items() if each in found.values()) + "."


# ---- the paper's Table 1 --------------------------------------------------------------------------------------------


def paper_lines(comparison: Comparison) -> Iterator[RenderableType]:
    """The paper's Table 1, if it is the paper's experiment and any of its policies was compared."""
    if comparison.is_the_papers and any(policy in comparison.metrics for _, policy, *_ in PAPERS_TABLE_1):
        yield ""
        yield Text("Table 1, ours", "bold")
        yield table_1_as_table(comparison)
        yield Text(REMARK, "dim")


def table_1(comparison: Comparison) -> list[dict[str, Any]]:
    """The paper's Table 1 with our values beside the printed ones, and our best policy as a row of its own."""
    by_jct = {name: _mean(results, "jct_mean_s").value for name, results in comparison.metrics.items()}
    finished = {name: jct for name, jct in by_jct.items() if jct is not None and not left_over(comparison, name)}
    rows = [row for row in PAPERS_TABLE_1 if row[1] != "paper-dqn" or row[1] in comparison.metrics]
    if finished:
        best = min(finished, key=finished.__getitem__)
        rows.append((f"best here: {best}", best, None, None, None))
    return [
        {
            "algorithm": algorithm,
            "policy": policy if policy in comparison.metrics else None,
            "jct_min": minutes(_mean_of(comparison, policy, "jct_mean_s")),
            "throughput_per_h": _mean_of(comparison, policy, "throughput_per_h"),
            "utilisation": _mean_of(comparison, policy, "utilisation"),
            "paper_jct_min": jct_min,
            "paper_throughput_per_h": per_h,
            "paper_utilisation": utilisation,
        }
        for algorithm, policy, jct_min, per_h, utilisation in rows
    ]


def left_over(comparison: Comparison, name: str) -> bool:
    """Whether the policy left jobs unfinished, so that its completion times mean little."""
    return any(metrics.unfinished for metrics in comparison.metrics[name])


def table_1_as_table(comparison: Comparison) -> Table:
    """Table 1 for people."""
    table = plain_table()
    table.add_column("\n", no_wrap=True)
    for heading in (
        "JCT, min\nours", "\npaper", "jobs/h\nours", "\npaper", "utilisation, %\nours", "\npaper",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in table_1(comparison):
        table.add_row(
            row["algorithm"],
            number(row["jct_min"]), Text(number(row["paper_jct_min"]), "dim"),
            number(row["throughput_per_h"]), Text(number(row["paper_throughput_per_h"]), "dim"),
            percent(row["utilisation"]), Text(percent(row["paper_utilisation"]), "dim"),
        )  # fmt: skip
    return table


# ---- simulate -------------------------------------------------------------------------------------------------------


def run_lines(run: Run, workload: str, metrics: Metrics, bounds: Bounds) -> Iterator[RenderableType]:
    """All measures of one run, how far it is from the bound, and why jobs were refused."""
    yield Text(f"{run.policy}: {workload} on {run.cluster.name}, seed {run.seed}", "bold")
    counts = [f"{metrics.jobs:,} jobs", f"{metrics.finished:,} finished"]
    for name in ("killed", "unfinished", "refused"):
        if number_of := getattr(metrics, name):
            counts.append(f"{number_of:,} {name}")
    table = plain_table(header=False)
    table.add_column()
    table.add_column(justify="right")
    heat_rows = HEAT_ROWS if metrics.hottest_c is not None else ()
    for label, key, unit in (*RUN_ROWS, *heat_rows):
        table.add_row(label, _measured(getattr(metrics, key), unit))
    if bounds.best_s is not None:
        table.add_row("lower bound of mean JCT, any policy", _measured(bounds.best_s, "s"))
    yield Group(Text(", ".join(counts)), table)
    if reasons := refused_by_reason(run):
        yield Text(f"Refused, because such a job can never run on {run.cluster.name}:", "bold")
        for row in reasons[:_MOST_REASONS]:
            yield Text(f"  {row['jobs']:>6,}  {row['reason']}")
        if len(reasons) > _MOST_REASONS:
            rest = sum(row["jobs"] for row in reasons[_MOST_REASONS:])
            yield Text(f"  {rest:>6,}  for {len(reasons) - _MOST_REASONS} other reasons; --json has them all")


def refused_by_reason(run: Run) -> list[dict[str, Any]]:
    """Why jobs were refused, the most frequent reason first."""
    return [{"reason": reason, "jobs": jobs} for reason, jobs in Counter(run.refusals.values()).most_common()]


def _measured(value: float | None, unit: str) -> str:
    """A measure with its unit; times in the unit that suits them."""
    if value is None:
        return MISSING
    if unit == "%":
        return f"{percent(value)} %"
    if unit == "s":
        seconds, name = unit_for([value])
        return f"{number(value, seconds)} {name}"
    return f"{value:,d} {unit}".strip() if isinstance(value, int) else f"{number(value)} {unit}".strip()


# ---- numbers --------------------------------------------------------------------------------------------------------


def _mean(results: Sequence[Metrics], key: str) -> Mean:
    """Mean of a measure over the seeds."""
    return over_seeds([getattr(metrics, key) for metrics in results])


def _mean_of(comparison: Comparison, policy: str | None, key: str) -> float | None:
    """Mean of a measure of a policy; None if it is not in the comparison."""
    return _mean(comparison.metrics[policy], key).value if policy in comparison.metrics else None


def with_reach(of: Mean, unit: float) -> str:
    """A mean ± half of its interval."""
    if of.value is None or of.high is None:
        return number(of.value, unit)
    digits = 0 if of.value / unit >= 100 else 1 if of.value / unit >= 10 else 2
    return f"{of.value / unit:,.{digits}f} ± {(of.high - of.value) / unit:,.{digits}f}"


def minutes(seconds: float | None) -> float | None:
    """Seconds as minutes."""
    return None if seconds is None else seconds / 60


def _best_of(values: Sequence[float | None], sign: int) -> float | None:
    """The best of a column, if one can be better than another."""
    known = [value for value in values if value is not None]
    if not sign or len(known) < 2:
        return None
    return max(known) if sign > 0 else min(known)
