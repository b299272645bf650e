"""A comparison as one HTML page that needs nothing else: no network, no other file, no framework.

Everything in it comes from two files: what `adlro compare --json` prints, and the detail beside it. Text of users
(names of policies, users, traces, files) passes through `html.escape`; the page's own rules (CSP) allow no script but
ours.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, Final

from adlro.measure.drawing import DARK, NARROW, VARIABLES, WIDE, Figure, clean, inline
from adlro.measure.numbers import MISSING, change, counted, number, percent, unit_for
from adlro.measure.plots import Detail, Result, figures, ranked, row_name
from adlro.measure.statistics import LEVEL, against, fewest_seeds

MARKS: Final = {
    "different": ("✱", "shown to differ"),
    "no difference shown": ("○", "no difference shown"),
    "too few seeds": ("?", "too few seeds to tell"),
}
"""A mark and its words for each verdict."""

SECONDS: Final = ("jct_mean_s", "jct_p50_s", "jct_p95_s", "jct_p99_s", "wait_mean_s")
"""Times in the table; all in one unit."""

COLUMNS: Final = (
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

DEFINITIONS: Final = (
    ("JCT", "job completion time: from submission to finish, of the jobs that finished"),
    ("wait", "from submission to the first start, of the jobs that started"),
    ("p95, p99", "95 or 99 of 100 jobs took no longer; in the table the mean over the runs"),
    ("jobs/h", "finished jobs, by the hours from the first submission to the last moment a job held a GPU"),
    ("utilisation", "GPU-seconds held, of the GPU-seconds there were in that time"),
    ("effective utilisation", "GPU-seconds that the work would have taken on each job's fastest GPUs, of the same"),
    ("fairness", "Jain's index of the users' mean slowdown: 1 if all fare alike, 1/n if one of n has all"),
    ("energy", "of the GPUs: datasheet power while held, 15 % of it while idle"),
    ("interval", "95 %, over seeds or windows: Student's t for means, BCa bootstrap for differences"),
    ("shown to differ", "Wilcoxon's signed-rank test on paired runs, after Holm's correction, at the 5 % level"),
    ("HyperScore", "100 · [1 + σ(5 · ln V − ln 2)^2.1], V from the measures as shares of the best policy's"),
)

SETTINGS: Final = {
    "jobs": "{} jobs", "estimates": "estimates: {}", "estimate_sigma": "error of estimates (sigma): {}",
    "restart_s": "starting again costs {} s", "kill_at_limit": "jobs end at their limit: {}",
    "mtbf_h": "nodes fail every {} h", "repair_h": "and are back after {} h",
    "wear_per_day": "GPUs lose {} of their speed a day", "disturbances": "disturbances: {}", "load": "load set to {}",
}  # fmt: skip
"""What the settings of a result mean."""

PAGE_FILES: Final = resources.files("adlro.measure") / "page"
STYLE: Final = (PAGE_FILES / "style.css").read_text(encoding="utf-8")
SCRIPT: Final = (PAGE_FILES / "sort.js").read_text(encoding="utf-8")


def build_page(result: Result, detail: Detail) -> str:
    """The whole page."""
    drawn = {figure.name: figure for figure in figures(result, detail)}
    title = f"{result['workload']} on {result['cluster']}: which policy served users best?"
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    sections = [
        section("ranking", "Ranking", ranking(result, detail), shown(drawn, "differences")),
        section("jct", "Completion times", shown(drawn, "jct"), shown(drawn, "jct-curves")),
        section("gpus", "On the GPUs", closely(detail), *on_gpus(drawn)),
        section("queue", "The queue", shown(drawn, "queue", titled=False) or NOBODY_WAITED),
        section("waits", "Who waits", *who_waits(drawn, detail)),
        section("regression", "What completion time depends on", regression(drawn, detail)),
        section("origin", "Where this comes from", origin(result, detail)),
    ]
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(rules)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="generator" content="adlro {escape(str(result["version"]))}">',
        f"<title>{escape(title)}</title>",
        f"<style>{colours()}{STYLE}</style>",
        "</head>",
        "<body>",
        "<header>",
        "<h1>Which policy served users best?</h1>",
        f'<p class="sub">{escape(subtitle(result))}</p>',
        "</header>",
        "<main>",
        answer(result, detail),
        *sections,
        "</main>",
        f"<footer>Made by adlro {escape(str(result['version']))}. This file needs no network.</footer>",
        f"<script>{SCRIPT}</script>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


def colours() -> str:
    """The colours of the page, light and dark."""
    light = "".join(f"{variable}:{colour};" for colour, variable in VARIABLES.items()) + "--best:#1a7f37;"
    dark = "".join(f"{variable}:{colour};" for variable, colour in DARK.items()) + "--best:#4ac26b;"
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def section(name: str, heading: str, *parts: str) -> str:
    """A part of the page with its heading."""
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(heading)}</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def shown(drawn: Mapping[str, Figure], name: str, titled: bool = True) -> str:
    """A figure in both widths with its caption, or nothing; with a heading unless its section has the same."""
    if name not in drawn:
        return ""
    figure = drawn[name]
    title = f"<h3>{escape(figure.title)}</h3>\n" if titled else ""
    return (
        f'{title}<figure id="figure-{name}">\n'
        f'<div role="img" aria-label="{escape(figure.title)}. {escape(figure.alt)}">\n'
        f'<div class="wide">{inline(figure, WIDE)}</div>\n<div class="narrow">{inline(figure, NARROW)}</div>\n</div>\n'
        f"<figcaption>{escape(figure.caption)}</figcaption>\n</figure>"
    )


# ---- the answer --------------------------------------------------------------------------------------------------


def unit_of(result: Result) -> str:
    """What is repeated: seeds, or windows of a trace."""
    return "window" if result.get("windows") else "seed"


def several(count: int, word: str) -> str:
    """A number with its noun."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def subtitle(result: Result) -> str:
    """What was compared on what."""
    jobs = (result.get("settings") or {}).get("jobs")
    parts = [f"{result['workload']} on {result['cluster']}"]
    parts += [several(len(result["policies"]), "policy").replace("policys", "policies")]
    parts += [several(len(result["seeds"]), unit_of(result))]
    if jobs:
        parts.append(several(jobs, "job") if len(result["seeds"]) == 1 else f"up to {several(jobs, 'job')} in each")
    return " · ".join(parts)


def finishers(result: Result) -> list[str]:
    """The policies that left no job over, best mean completion time first."""
    return [
        name
        for name in ranked(result)
        if not result["policies"][name]["unfinished"] and result["policies"][name]["jct_mean_s"] is not None
    ]


def answer(result: Result, detail: Detail) -> str:
    """Which policy served users best, by how much, and how sure that is."""
    best = next(iter(finishers(result)), None)
    if best is None:
        lead = "No policy finished all jobs, so none can be called best."
        return f'<div class="answer"><p class="lead">{escape(lead)}</p></div>'
    policies, base = result["policies"], result["baseline"]
    ours, theirs = policies[best], policies[base]
    seconds, unit = unit_for([ours["jct_mean_s"]])
    mean = f"{number(ours['jct_mean_s'], seconds)} {unit}"
    if best == base:
        others = "nothing was compared with it" if len(policies) == 1 else "none of the others was faster on average"
        lead = (
            f"<strong>{escape(best)}</strong>, the baseline, served users best: a job took {mean} on average; {others}."
        )
        if len(policies) > 1 and alike(result):
            lead = (
                f"No policy served users better than another: under all {len(policies)} a job took {mean} on average."
            )
        lines = [close_ones(result, best)] if len(result["seeds"]) > 1 else [one_run(result)]
    else:
        by = change(ours["jct_mean_s"], theirs["jct_mean_s"]).lstrip("−+").replace(" ", "\u00a0")
        lead = (
            f"<strong>{escape(best)}</strong> served users best: a job took {mean} from submission to finish on "
            f"average, <strong>{by} less</strong> than under {escape(base)} "
            f"({number(theirs['jct_mean_s'], seconds)} {unit})."
        )
        lines = [how_sure(result, best), close_ones(result, best)]
    lines += warnings_of(result)
    text = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="answer"><p class="lead">{lead}</p>{text}</div>\n{tiles(result, best)}'


def how_sure(result: Result, best: str) -> str:
    """Whether the best policy is shown to differ from the baseline, with the interval."""
    found = result["policies"][best]["against"]["jct_mean_s"]
    seeds, word = len(result["seeds"]), unit_of(result)
    compared = len(result["policies"]) - 1
    if found["interval"] is None:
        return one_run(result)
    seconds, unit = unit_for([abs(found["difference"])])
    low, high = (signed(number(edge, seconds)) for edge in found["interval"])
    interval = f"The difference lies between {low} and {high} {unit} (95 % interval over {several(seeds, word)})."
    if found["verdict"] == "too few seeds":
        need = fewest_seeds(compared)
        needed = f"{several(compared, 'comparison')} need{'s' if compared == 1 else ''} {need}"
        return f"How sure? {interval} That is too few to call it significant: {needed}."
    p = found["wilcoxon_p_holm"]
    test = f"Wilcoxon's signed-rank test, p = {p:.2g} after Holm's correction for {several(compared, 'comparison')}"
    if found["significant"]:
        return f"How sure? <strong>Significant</strong> ({test}). {interval}"
    return f"How sure? <strong>Not shown</strong>: it may be chance ({test}). {interval} More {word}s may tell."


def one_run(result: Result) -> str:
    """That one run does not say how sure a difference is, and what would."""
    if len(result["policies"]) == 1:
        return ""
    need = fewest_seeds(len(result["policies"]) - 1)
    what = f"cut the trace with --windows {need} or more" if result.get("trace") else f"take {need} seeds or more"
    return f"How sure? One {unit_of(result)} cannot tell, for there is no spread to judge by: {what}."


def alike(result: Result) -> bool:
    """Whether all policies came to the same mean completion time."""
    found = [each["jct_mean_s"] for each in result["policies"].values()]
    return None not in found and max(found) - min(found) <= 1e-4 * max(found)


def close_ones(result: Result, best: str) -> str:
    """Which other policies may be as good as the best."""
    per_seed = {name: {"jct": each["per_seed"]["jct_mean_s"]} for name, each in result["policies"].items()}
    per_seed = {name: per_seed[name] for name in finishers(result)}
    if len(per_seed) < 2 or len(result["seeds"]) < 2:
        return ""
    found = {name: each["jct"] for name, each in against(per_seed, best).items()}
    close = [name for name in found if (each := found[name]) and each.verdict == "no difference shown"]
    if any(each and each.verdict == "too few seeds" for each in found.values()):
        return ""
    if not close:
        return f"Every other policy is shown to be slower than {escape(best)}."
    names = ", ".join(f"{escape(name)} ({change_of(result, name, best)})" for name in close[:6])
    more = f" and {len(close) - 6} more" if len(close) > 6 else ""
    return f"Not shown to differ from {escape(best)}: {names}{more}."


def change_of(result: Result, name: str, base: str) -> str:
    """The change of the mean completion time."""
    return change(result["policies"][name]["jct_mean_s"], result["policies"][base]["jct_mean_s"])


def warnings_of(result: Result) -> list[str]:
    """What makes the answer less than it seems."""
    policies = result["policies"]
    lines = []
    base = policies[result["baseline"]]
    if base["wait_mean_s"] is not None and base["jct_mean_s"] and base["wait_mean_s"] < 0.01 * base["jct_mean_s"]:
        lines.append(
            f"Jobs hardly waited under {escape(result['baseline'])}: the cluster was not full, so there was little to "
            "decide."
        )
    left = [name for name in policies if policies[name]["unfinished"]]
    if left:
        lines.append(f"Left jobs unfinished, and so ranked last: {escape(', '.join(left))}.")
    refused = max((each["refused"] or 0.0 for each in policies.values()), default=0.0)
    if refused:
        each = "" if len(result["seeds"]) == 1 else f" of a {unit_of(result)}, on average,"
        lines.append(
            f"{counted(refused)} jobs{each} can never run on this cluster and were refused; the reasons are below."
        )
    illegal = [name for name in policies if policies[name]["illegal"]]
    if illegal:
        lines.append(f"Illegal choices were made by {escape(', '.join(illegal))}.")
    return lines


def tiles(result: Result, best: str) -> str:
    """Four numbers of the best policy beside the baseline's."""
    ours, theirs = result["policies"][best], result["policies"][result["baseline"]]
    cells = []
    for key, label in (
        ("jct_mean_s", "mean completion time"), ("jct_p95_s", "slowest 5 % take at least"),
        ("wait_mean_s", "mean wait"), ("effective_utilisation", "effective utilisation"),
    ):  # fmt: skip
        value, base = ours[key], theirs[key]
        if key.endswith("_s"):
            seconds, unit = unit_for([value, base])
            shown_value, shown_base = f"{number(value, seconds)} {unit}", f"{number(base, seconds)} {unit}"
        else:
            shown_value, shown_base = f"{percent(value)} %", f"{percent(base)} %"
        beside = "" if best == result["baseline"] else f"<small>{escape(result['baseline'])}: {shown_base}</small>"
        cells.append(f'<div class="tile"><dt>{label}</dt><dd>{shown_value}{beside}</dd></div>')
    return f'<dl class="tiles">{"".join(cells)}</dl>'


# ---- the table ---------------------------------------------------------------------------------------------------


def ranking(result: Result, detail: Detail) -> str:
    """The policies by mean completion time, with intervals and marks."""
    policies, base = result["policies"], result["baseline"]
    order = ranked(result)
    seconds, unit = unit_for([policies[name]["jct_mean_s"] for name in order])
    values = {key: [value_of(policies[name], key) for name in order] for key, _, _ in COLUMNS}
    columns = [
        column
        for column in COLUMNS
        if (
            any(values[column[0]])
            if column[0] in COUNTS_OF_LOSS
            else any(each is not None for each in values[column[0]])
        )
    ]
    best = {key: best_of(result, key) for key, _, _ in columns}
    heads = []
    for key, heading, meaning in columns:
        text = f"{heading}, {unit}" if key in SECONDS else f"against {clean(base)}" if key == "against" else heading
        first = ' data-first="descending"' if key in MORE_IS_BETTER else ""
        heads.append(f'<th scope="col" data-key="{key}"{first} title="{escape(meaning)}">{escape(text)}</th>')
    rows = []
    for name in order:
        kind = "chosen" if name == detail["shown"]["policy"] else "baseline" if name == base else ""
        cells = [cell(policies[name], key, seconds, unit, best[key]) for key, _, _ in columns]
        rows.append(
            f'<tr data-policy="{escape(name)}" class="{kind}"><th scope="row" data-value="{escape(name)}" '
            f'title="{escape(name)}">{escape(clean(name, 40))}</th>{"".join(cells)}</tr>'
        )
    used = {
        each["jct_mean_s"]["verdict"] for name in order if (each := policies[name]["against"]) and each["jct_mean_s"]
    }
    marks = "; ".join(f"{mark} {words}" for verdict, (mark, words) in MARKS.items() if verdict in used)
    note = (
        f"Means over {several(len(result['seeds']), unit_of(result))}, best first; small: 95 % intervals. "
        + (f"{marks} (from {base}, {100 * LEVEL:.0f} % level, Holm). " if marks else "")
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


def best_of(result: Result, key: str) -> float | None:
    """The best number of a column, if one can be better than another."""
    known = [value for name in finishers(result) if (value := value_of(result["policies"][name], key)) is not None]
    if key in NEITHER or len(known) < 2 or min(known) == max(known):
        return None
    return max(known) if key in MORE_IS_BETTER else min(known)


def cell(policy: Mapping[str, Any], key: str, seconds: float, unit: str, best: float | None) -> str:
    """A number of a policy: as text, and exactly as an attribute."""
    value = value_of(policy, key)
    text = displayed(key, value, seconds)
    small = ""
    if key == "against" and value is not None:
        found = policy["against"]["jct_mean_s"]
        mark, words = MARKS[found["verdict"]]
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


def signed(text: str) -> str:
    """A number with its sign; nothing has none."""
    if not text.strip("-0.,"):
        return "0"
    return text.replace("-", "−") if text.startswith("-") else f"+{text}"


def displayed(key: str, value: float | None, seconds: float) -> str:
    """A number of the table in letters."""
    if value is None:
        return MISSING
    if key in SECONDS:
        return number(value, seconds)
    if key == "against":
        return change(1 + value, 1.0)
    if key in ("utilisation", "effective_utilisation"):
        return percent(value)
    if key == "hyperscore":
        return f"{value:.2f}"
    if key == "preemptions":
        return f"{value:,.0f}"
    return counted(value) if key in COUNTS_OF_LOSS else number(value)


# ---- the rest ----------------------------------------------------------------------------------------------------


NOBODY_WAITED: Final = '<p class="note">No job waited under either policy: there was always room.</p>'


def closely(detail: Detail) -> str:
    """Which runs the figures show, and why these."""
    return f'<p class="note">{escape(detail["shown"]["why"])}</p>'


def on_gpus(drawn: Mapping[str, Figure]) -> list[str]:
    """What ran where and how busy GPUs were, if any was used."""
    found = [shown(drawn, "gantt"), shown(drawn, "utilisation")]
    return found if any(found) else ['<p class="note">No job held a GPU in these runs.</p>']


def who_waits(drawn: Mapping[str, Figure], detail: Detail) -> list[str]:
    """Waits by user and by size, with the numbers for those who want them."""
    parts = []
    if "waits-user" in drawn:
        parts += [shown(drawn, "waits-user"), waits_table(detail, "by_user", "user")]
    else:
        parts.append('<p class="note">All jobs belong to one user, so there is nothing to compare between users.</p>')
    if "waits-size" not in drawn:
        return [NOBODY_WAITED]
    return [*parts, shown(drawn, "waits-size"), waits_table(detail, "by_size", "GPUs")]


def waits_table(detail: Detail, by: str, word: str) -> str:
    """The numbers of a figure of waits."""
    rows = detail["waits"][by]
    names = list(dict.fromkeys((detail["shown"]["baseline"], detail["shown"]["policy"])))
    known = [value for row in rows for value in row["wait_s"].values() if value]
    seconds, unit = unit_for([max(known, default=0.0) / 8])
    body = []
    for row in rows:
        label = escape(row_name(row, detail["waits"]["users"] - len(rows) + 1))
        cells = "".join(f"<td>{number(row['wait_s'][name], seconds)}</td>" for name in names)
        body.append(f'<tr><th scope="row" title="{label}">{label}</th><td>{row["jobs"]:,}</td>{cells}</tr>')
    heads = "".join(f'<th scope="col">{escape(name)}, {unit}</th>' for name in names)
    return (
        f'<details><summary>The numbers</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Waits by {word}, scrolls sideways"><table><caption>Mean wait by {word}</caption><thead><tr>'
        f'<th scope="col">{word}</th><th scope="col">jobs</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></details>"
    )


def regression(drawn: Mapping[str, Figure], detail: Detail) -> str:
    """The regression, or why there is none."""
    if "regression" in drawn:
        return shown(drawn, "regression", titled=False)
    return f'<p class="note">{escape(detail["no_regression"])}</p>'


def origin(result: Result, detail: Detail) -> str:
    """What the result was made with, what was dropped, and what the words mean."""
    facts: list[tuple[str, str]] = [("command", f"<code>{escape(result['command'])}</code>")]
    seeds = [str(seed) for seed in result["seeds"]]
    few = seeds if len(seeds) <= 12 else [*seeds[:3], "…", seeds[-1]]
    facts.append((f"{unit_of(result)}s", escape(", ".join(few))))
    facts.append(("baseline", escape(result["baseline"])))
    versions = [("adlro", result["version"]), *result["versions"].items()]
    facts.append(("versions", escape(", ".join(f"{name} {version}" for name, version in versions))))
    without = {key for key in ("estimate_sigma", "wear_per_day") if not result["settings"].get(key)}
    without |= {"repair_h"} if result["settings"].get("mtbf_h") is None else set()
    known = {key: value for key, value in result["settings"].items() if value is not None and key not in without}
    settings = [setting(key, value) for key, value in known.items()]
    facts.append(("settings", escape("; ".join(settings))))
    weights = ", ".join(f"{name.replace('_', ' ')} {share:.2f}" for name, share in result["hyperscore_weights"].items())
    facts.append(("HyperScore weights", escape(weights)))
    dropped = ""
    if trace := result.get("trace"):
        facts += trace_facts(trace)
        dropped = reasons(
            "Rows of the trace that were left out", [*trace["dropped"].items(), *trace["set_aside"].items()]
        )
    refused = reasons(
        f"Jobs refused on {unit_of(result)} {detail['shown']['seed']}, because they can never run on this cluster",
        [(each["reason"], each["jobs"]) for each in detail["refusals"]],
    )
    if not dropped and not refused:
        facts.append(("dropped", "nothing: every job was used"))
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in DEFINITIONS)
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts)
    return (
        f'<dl class="facts">{listed}</dl>\n{dropped}\n{refused}\n<h3>What the words mean</h3>\n'
        f'<dl class="facts">{words}</dl>'
    )


def setting(key: str, value: Any) -> str:
    """A setting in words; one that is not known here by its name in the JSON."""
    text = (
        ("yes" if value else "no")
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
    if key == "window":
        return f"policies see {text} jobs of the queue" if value else "policies see the whole queue"
    return SETTINGS.get(key, f"{key.replace('_', ' ')}: {{}}").format(text)


def trace_facts(trace: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of the trace."""
    used = f"{trace['kept']:,} of {trace['rows']:,} rows became jobs"
    if trace["not_asked_for"]:
        used += f"; {trace['not_asked_for']:,} more lie outside the window or the sample"
    if trace["out_of_order"]:
        used += f"; {trace['out_of_order']:,} were out of order and sorted"
    rules = f"families: {trace['families']}; estimates: {trace['estimates']}; unit: {trace['unit']}"
    rules += f"; load × {trace['scale_load']:g}" if trace["scale_load"] != 1 else ""
    facts = [
        ("trace", f"{escape(trace['file'])} ({escape(trace['format'])})"),
        ("sha256", f"<code>{escape(trace['sha256'])}</code>"),
        ("rows", escape(used)),
        ("rules", escape(rules)),
    ]
    return facts + [("note", escape(note)) for note in trace["notes"]]


def reasons(caption: str, counts: Sequence[tuple[str, int]]) -> str:
    """A table of reasons and numbers, or nothing."""
    if not counts:
        return ""
    rows = "".join(
        f'<tr><td>{escape(reason)}</td><td data-value="{count}">{count:,}</td></tr>' for reason, count in counts
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="reasons">'
        f'<caption>{escape(caption)}</caption><thead><tr><th scope="col">reason</th><th scope="col">number</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )
