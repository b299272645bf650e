"""The table of the report: every policy with its measures."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from adlro.measure.drawing import clean
from adlro.measure.numbers import MISSING, change, mean_count, number, percent, unit_for
from adlro.measure.plots_policies import Detail, Result, ranked
from adlro.measure.report_answer import finishers, several, signed, unit_of
from adlro.measure.statistics import LEVEL

_MARKS: Final = {
    "different": ("✱", "shown to differ"),
    "no difference shown": ("○", "no difference shown"),
    "too few seeds": ("?", "too few seeds to tell"),
}
"""A mark and its words for each verdict."""

_SECONDS: Final = ("jct_mean_s", "jct_p50_s", "jct_p95_s", "jct_p99_s", "wait_mean_s")
"""Times in the table; all in one unit."""

REPORT_COLUMNS: Final = (
    ("jct_mean_s", "mean JCT", "mean completion time: submission to finish, of finished jobs"),
    ("against", "against baseline", "change of the mean completion time"),
    ("jct_p50_s", "median", "median completion time, mean over the runs"),
    ("jct_p95_s", "p95", "95th percentile of completion time, mean over the runs"),
    ("jct_p99_s", "p99", "99th percentile of completion time, mean over the runs"),
    ("wait_mean_s", "wait", "mean time from submission to the first start"),
    ("throughput_per_h", "jobs/h", "finished jobs per hour of the makespan"),
    ("utilisation", "util. %", "GPU-seconds held, of those there were"),
    ("effective_utilisation", "eff. %", "the same, counted in work done at the best speed"),
    ("jain_users", "fairness", "Jain's index over users: 1 is all alike"),
    ("energy_kwh", "kWh", "energy of the GPUs"),
    ("preemptions", "stops", "times that a running job was stopped"),
    ("hyperscore", "Hyper­Score", "the paper's score of several measures, from 100 to 200"),
    ("unfinished", "unfin.", "jobs that were not finished at the end"),
    ("refused", "refused", "jobs that can never run on this cluster"),
)
"""The measures in the ranking: key, heading, what it is."""

COUNTS_OF_LOSS: Final = ("unfinished", "refused")
"""Columns that are left out if they are 0 everywhere."""

MORE_IS_BETTER: Final = {"throughput_per_h", "effective_utilisation", "jain_users", "hyperscore"}
NEITHER: Final = {"against", "utilisation", "preemptions", "unfinished", "refused"}


def ranking(result: Result, detail: Detail) -> str:
    """The policies by mean completion time, with intervals and marks."""
    policies, base = result["policies"], result["baseline"]
    order = ranked(result)
    seconds, unit = unit_for([policies[name]["jct_mean_s"] for name in order])
    values = {key: [value_of(policies[name], key) for name in order] for key, _, _ in REPORT_COLUMNS}
    columns = [
        column
        for column in REPORT_COLUMNS
        if (
            any(values[column[0]])
            if column[0] in COUNTS_OF_LOSS
            else any(each is not None for each in values[column[0]])
        )
    ]
    best = {key: _best_of(result, key) for key, _, _ in columns}
    heads = []
    for key, heading, meaning in columns:
        text = f"{heading}, {unit}" if key in _SECONDS else f"against {clean(base)}" if key == "against" else heading
        first = ' data-first="descending"' if key in MORE_IS_BETTER else ""
        heads.append(f'<th scope="col" data-key="{key}"{first} title="{escape(meaning)}">{escape(text)}</th>')
    rows = []
    for name in order:
        kind = "chosen" if name == detail["shown"]["policy"] else "baseline" if name == base else ""
        cells = [_cell(policies[name], key, seconds, unit, best[key]) for key, _, _ in columns]
        rows.append(
            f'<tr data-policy="{escape(name)}" class="{kind}"><th scope="row" data-value="{escape(name)}" '
            f'title="{escape(name)}">{escape(clean(name, 40))}</th>{"".join(cells)}</tr>'
        )
    used = {
        each["jct_mean_s"]["verdict"] for name in order if (each := policies[name]["against"]) and each["jct_mean_s"]
    }
    marks = "; ".join(f"{mark} {words}" for verdict, (mark, words) in _MARKS.items() if verdict in used)
    note = (
        f"Means over {several(len(result['seeds']), unit_of(result))}, best first; small: 95 % intervals. "
        + (f"{marks} (compared with {base}, {100 * LEVEL:.0f} % level, Holm). " if marks else "")
        + ("" if any(values["unfinished"]) else "Every policy finished all jobs that can run. ")
        + "Press a heading to sort by it."
    )
    return (
        f'<p class="note">{escape(note)}</p>\n<div class="scroll" tabindex="0" role="region" '
        'aria-label="Ranking, scrolls sideways">\n<table class="sortable" id="ranking-table">\n'
        "<caption>Policies by mean completion time (JCT)</caption>\n<thead><tr>"
        f'<th scope="col" data-key="policy">policy</th>{"".join(heads)}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table>\n</div>"
    )


def value_of(policy: Mapping[str, Any], key: str) -> float | None:
    """The number of a cell, as it stands in the JSON."""
    if key == "hyperscore":
        return policy["hyperscore"]["score"] if policy.get("hyperscore") else None
    if key == "against":
        found = (policy["against"] or {}).get("jct_mean_s")
        return found["relative"] if found else None
    value: float | None = policy[key]
    return value


def _best_of(result: Result, key: str) -> float | None:
    """The best number of a column, if one can be better than another."""
    known = [value for name in finishers(result) if (value := value_of(result["policies"][name], key)) is not None]
    if key in NEITHER or len(known) < 2 or min(known) == max(known):
        return None
    return max(known) if key in MORE_IS_BETTER else min(known)


def _cell(policy: Mapping[str, Any], key: str, seconds: float, unit: str, best: float | None) -> str:
    """A number of a policy: as text, and exactly as an attribute."""
    value = value_of(policy, key)
    text = displayed(key, value, seconds)
    small = ""
    if key == "against" and value is not None:
        found = policy["against"]["jct_mean_s"]
        mark, words = _MARKS[found["verdict"]]
        text = f'{text} <span title="{words}">{mark}</span>'
        if found["interval"]:
            low, high = (signed(number(edge, seconds)) for edge in found["interval"])
            small = f"<small>{low} … {high} {unit}</small>"
    elif key == "jct_mean_s" and value is not None and policy["interval"][key]:
        low, high = policy["interval"][key]
        small = f"<small>{number(low, seconds)} – {number(high, seconds)}</small>"
    exact = "" if value is None else repr(value)
    emphasis = ' class="best"' if best is not None and value == best and not policy["unfinished"] else ""
    return f'<td data-key="{key}" data-value="{exact}"{emphasis}>{text}{small}</td>'


def displayed(key: str, value: float | None, seconds: float) -> str:
    """A number of the table as text."""
    if value is None:
        return MISSING
    if key in _SECONDS:
        return number(value, seconds)
    if key == "against":
        return change(1 + value, 1.0)
    if key in ("utilisation", "effective_utilisation"):
        return percent(value)
    if key == "hyperscore":
        return f"{value:.2f}"
    if key == "preemptions":
        return f"{value:,.0f}"
    return mean_count(value) if key in COUNTS_OF_LOSS else number(value)
