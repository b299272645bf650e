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

from adlro.measure.drawing import DARK, NARROW, VARIABLES, WIDE, Figure, inline
from adlro.measure.numbers import number, unit_for
from adlro.measure.plots import figures
from adlro.measure.plots_policies import Detail, Result, row_name
from adlro.measure.report_answer import answer, subtitle, unit_of
from adlro.measure.report_table import ranking

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

_SETTINGS: Final = {
    "jobs": "{} jobs", "estimates": "estimates: {}", "estimate_sigma": "error of estimates (sigma): {}",
    "restart_s": "starting again costs {} s", "kill_at_limit": "jobs end at their limit: {}",
    "mtbf_h": "nodes fail every {} h", "repair_h": "and are back after {} h",
    "wear_per_day": "GPUs lose {} of their speed a day",
    "thermal_room_c": "GPUs lower their clocks when hot, in air of {} C",
    "slow_gpus": "{} of the GPUs are slow", "slow_speed": "with {} of their speed",
    "measured_pace": "policies see measured paces: {}",
    "disturbances": "disturbances: {}", "load": "load set to {}",
    "weights": "jobs count by their priority",
    "speeds": "speeds: {}",
}  # fmt: skip
"""The settings of a result in words."""

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
        section("ranking", "Ranking", ranking(result, detail), _shown(drawn, "differences")),
        section("jct", "Completion times", _shown(drawn, "jct"), _shown(drawn, "jct-curves")),
        section("gpus", "On the GPUs", closely(detail), *on_gpus(drawn)),
        section("queue", "The queue", _shown(drawn, "queue", titled=False) or NOBODY_WAITED),
        section("waits", "Who waits", *who_waits(drawn, detail)),
        section("regression", "What completion time depends on", _regression(drawn, detail)),
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


def _shown(drawn: Mapping[str, Figure], name: str, titled: bool = True) -> str:
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


# ---- the rest ----------------------------------------------------------------------------------------------------


NOBODY_WAITED: Final = '<p class="note">No job waited under either policy: there was always room.</p>'


def closely(detail: Detail) -> str:
    """Which runs the figures show, and why."""
    return f'<p class="note">{escape(detail["shown"]["why"])}</p>'


def on_gpus(drawn: Mapping[str, Figure]) -> list[str]:
    """What ran where and how busy the GPUs were, if any GPU was used."""
    found = [_shown(drawn, "gantt"), _shown(drawn, "utilisation")]
    return found if any(found) else ['<p class="note">No job held a GPU in these runs.</p>']


def who_waits(drawn: Mapping[str, Figure], detail: Detail) -> list[str]:
    """Waits by user and by size, as figures and as tables."""
    parts = []
    if "waits-user" in drawn:
        parts += [_shown(drawn, "waits-user"), waits_table(detail, "by_user", "user")]
    else:
        parts.append('<p class="note">All jobs belong to one user, so there is nothing to compare between users.</p>')
    if "waits-size" not in drawn:
        return [NOBODY_WAITED]
    return [*parts, _shown(drawn, "waits-size"), waits_table(detail, "by_size", "GPUs")]


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


def _regression(drawn: Mapping[str, Figure], detail: Detail) -> str:
    """The regression, or why there is none."""
    if "regression" in drawn:
        return _shown(drawn, "regression", titled=False)
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
    may_lack = ("estimate_sigma", "wear_per_day", "slow_gpus", "measured_pace")
    without = {key for key in may_lack if not result["settings"].get(key)}
    without |= {"slow_speed"} if "slow_gpus" in without else set()
    without |= {"weights"} if result["settings"].get("weights") == "equal" else set()
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
    return _SETTINGS.get(key, f"{key.replace('_', ' ')}: {{}}").format(text)


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
