"""Results as DataFrames. pandas is imported only here, and only when a frame is asked for."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from adlro.core.errors import UsageError
from adlro.core.run import Run
from adlro.core.tables import DONE, OVERRAN, STARTED, TURNED_AWAY
from adlro.experiment.compare import Comparison, metric_names, over_seeds
from adlro.measure.events import log_lines
from adlro.measure.statistics import against

if TYPE_CHECKING:
    from pandas import DataFrame


def need(package: str, what: str) -> Any:
    """An optional package, or an error that says how to get it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(f"{what} needs {package}, which is not installed. Run: pip install {package}") from None


def of_runs(comparison: Comparison) -> "DataFrame":
    """A row for each policy and seed: policy, seed (or window), offered load, and every measure."""
    pandas = need("pandas", "to_pandas()")
    rows = [
        {"policy": name, comparison.over: seed, "load": load} | metrics.as_dict()
        for name, results in comparison.metrics.items()
        for seed, load, metrics in zip(comparison.seeds, comparison.load, results, strict=True)
    ]
    return pandas.DataFrame(rows)


def of_policies(comparison: Comparison) -> "DataFrame":
    """A row for each policy: the mean of every measure, and how its mean JCT compares with the baseline's.

    `jct_low_s` and `jct_high_s` are the 95 % interval of the mean JCT; `change` is its relative difference to the
    baseline, `p_holm` the corrected p value of that difference, `verdict` what it comes to (docs/statistics.md).
    """
    pandas = need("pandas", "to_pandas()")
    per_seed = comparison.per_seed(metric_names())
    differences = against(comparison.per_seed(["jct_mean_s"]), comparison.baseline)
    rows = []
    for name, values in per_seed.items():
        means = {key: over_seeds(each) for key, each in values.items()}
        jct = means["jct_mean_s"]
        found = differences.get(name, {}).get("jct_mean_s")
        rows.append(
            {"policy": name, "jct_mean_s": jct.value, "jct_low_s": jct.low, "jct_high_s": jct.high}
            | {"change": found.relative if found else None, "p_holm": found.wilcoxon_p_holm if found else None}
            | {"verdict": found.verdict if found else None}
            | {key: mean.value for key, mean in means.items() if key != "jct_mean_s"}
        )
    return pandas.DataFrame(rows).set_index("policy")


def of_events(run: Run) -> "DataFrame":
    """A row for each event of a run, in time order; columns that an event does not have are missing."""
    pandas = need("pandas", "to_pandas()")
    lines = log_lines(run)
    next(lines)  # what run it is
    return pandas.DataFrame(list(lines))


def of_jobs(run: Run) -> "DataFrame":
    """A row for each job: what was asked for, when and where it first started, and how it ended."""
    pandas = need("pandas", "to_pandas()")
    return pandas.DataFrame(list(_job_rows(run)))


def _job_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Each job of a run with its times in seconds; nan for what never happened."""
    jobs, events = run.jobs, run.events
    count = len(jobs)
    start, end = np.full(count, np.nan), np.full(count, np.nan)
    site = np.full(count, -1)
    state = np.full(count, "unfinished", object)
    for what, word in ((DONE, "finished"), (OVERRAN, "killed"), (TURNED_AWAY, "refused")):
        rows = events[events["what"] == what]
        state[rows["job"]] = word
        if what != TURNED_AWAY:
            end[rows["job"]] = rows["time"]
    starts = events[events["what"] == STARTED][::-1]  # the first start is written last, and stays
    start[starts["job"]], site[starts["job"]] = starts["time"], starts["site"]
    for j in range(count):
        row = jobs.table[j]
        at = int(site[j])
        yield {
            "job": j,
            "name": jobs.names[row.group] if jobs.names else "",
            "user": jobs.users[row.user],
            "family": jobs.families[row.family],
            "gpus": int(row.gpus),
            "work": float(jobs.work[j]),
            "submit_s": float(row.submit),
            "start_s": start[j],
            "end_s": end[j],
            "wait_s": start[j] - row.submit,
            "jct_s": end[j] - row.submit if state[j] == "finished" else np.nan,
            "state": state[j],
            "node": run.cluster.nodes[run.site_node[at]].name if at >= 0 else "",
            "model": run.site_model[at] if at >= 0 else "",
        }
