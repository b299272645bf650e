"""Figures that compare policies: differences, distributions, curves, waits, the regression."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adlro.measure.detail import QUANTILES
from adlro.measure.drawing import (
    BASELINE,
    CHOSEN,
    FAMILIES,
    GRID,
    INK,
    LONGEST_LABEL,
    PAGE,
    QUIET,
    REST,
    WIDE,
    Figure,
    canvas_of,
    clean,
    few_ticks,
    key,
    key_lines,
    panel,
)
from adlro.measure.numbers import number, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


_BETTER, WORSE = FAMILIES[0], FAMILIES[5]

Result = Mapping[str, Any]
"""What `adlro compare --json` prints."""

Detail = Mapping[str, Any]


def ranked(result: Result) -> list[str]:
    """The policies by mean JCT, best first; policies that left jobs unfinished come last: their times say little."""
    policies = result["policies"]

    def place(name: str) -> tuple[bool, bool, float]:
        jct = policies[name]["jct_mean_s"]
        return jct is None, bool(policies[name]["unfinished"]), jct or 0.0

    return sorted(policies, key=place)


def colour_of(detail: Detail, policy: str) -> str:
    """The colour of a policy: two stand out."""
    shown = detail["shown"]
    return CHOSEN if policy == shown["policy"] else BASELINE if policy == shown["baseline"] else REST


def two_policies(detail: Detail) -> list[str]:
    """The baseline and the chosen policy, each once."""
    return list(dict.fromkeys((detail["shown"]["baseline"], detail["shown"]["policy"])))


def differences(result: Result) -> Figure | None:
    """Each policy's mean JCT against the baseline's, with the interval of the difference."""
    base = result["baseline"]
    rows = []
    for name in ranked(result):
        found = (result["policies"][name]["against"] or {}).get("jct_mean_s")
        if found and found["interval"]:
            rows.append((name, found["difference"], *found["interval"], found["significant"]))
    if not rows:
        return None
    seconds, unit = unit_for([max(abs(row[1]) for row in rows) / 4])

    def draw(width: int) -> "Canvas":
        left = label_width([name for name, *_ in rows], width)
        height = 20 * len(rows) + 8
        canvas = canvas_of(width, height + 58)
        axes = panel(canvas, left, 8, width - left - 16, height)
        axes.axvline(0, color=BASELINE, lw=1.5)
        axes.grid(axis="x")
        for row, (_, value, low, high, significant) in enumerate(rows):
            colour = (_BETTER if value < 0 else WORSE) if significant else QUIET
            axes.plot([low / seconds, high / seconds], [row, row], color=colour, lw=2, solid_capstyle="butt")
            axes.plot(value / seconds, row, "o", ms=7, mec=colour, mfc=colour if significant else PAGE, mew=1.6)
        name_rows(axes, [name for name, *_ in rows])
        few_ticks(axes, x=9 if width == WIDE else 4)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:+,g}".replace("-", "−") if value else "0")
        axes.set_xlabel(f"mean JCT against {clean(base)}, {unit}" + ("; left is better" if width == WIDE else ""))
        return canvas

    sure = sum(row[-1] for row in rows)
    return Figure(
        "differences", "Difference to the baseline",
        f"Mean completion time against {base}, with the 95 % interval of the difference. Full dots: shown to differ; "
        "hollow dots: no difference shown, or too few runs to tell.",
        f"{len(rows)} policies against {base}; {sure} of them are shown to differ.",
        draw,
    )  # fmt: skip


def label_width(names: Sequence[str], width: int) -> float:
    """Room for names at the left, in pixels."""
    longest = LONGEST_LABEL if width == WIDE else 16
    return min(24 + 6.6 * max((len(clean(name, longest)) for name in names), default=0), 0.46 * width)


def name_rows(axes: "Axes", names: Sequence[str], longest: int | None = None) -> None:
    """Names beside the rows, the first at the top."""
    wide = axes.bbox.width > 400
    axes.set_yticks(range(len(names)), [clean(name, longest or (LONGEST_LABEL if wide else 16)) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", labelsize=11 if wide else 10)


def at_level(quantiles: Sequence[float], level: float) -> float:
    """The completion time at this level."""
    return quantiles[min(len(quantiles) - 1, int(level * QUANTILES))]


def distributions(result: Result, detail: Detail) -> Figure | None:
    """Completion times by policy: the middle half, from the 5th to the 95th percentile, median, mean, 99th."""
    rows = [name for name in ranked(result) if detail["jct"].get(name, {}).get("quantiles_s")]
    if not rows:
        return None
    times = {name: detail["jct"][name]["quantiles_s"] for name in rows}
    seconds, unit = unit_for([at_level(each, 0.5) for each in times.values()])

    def draw(width: int) -> "Canvas":
        left = label_width(rows, width)
        height = 22 * len(rows) + 8
        canvas = canvas_of(width, height + 84)
        axes = panel(canvas, left, 34, width - left - 16, height)
        axes.grid(axis="x")
        for row, name in enumerate(rows):
            colour = colour_of(detail, name)
            p5, p25, p50, p75, p95, p99 = (
                at_level(times[name], p) / seconds for p in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
            )
            axes.plot([p5, p95], [row, row], color=colour, lw=2, solid_capstyle="butt")
            axes.barh(row, max(p75 - p25, 1e-9), left=p25, height=0.56, color=colour, lw=0)
            axes.plot([p50, p50], [row - 0.28, row + 0.28], color=PAGE, lw=2.5, solid_capstyle="butt")
            axes.plot(p95, row, "|", ms=9, mew=2, color=colour)
            axes.plot(p99, row, "d", ms=6, color=colour, mew=0)
            mean = result["policies"][name]["jct_mean_s"]
            if mean is not None:
                axes.plot(mean / seconds, row, "o", ms=6, mfc=PAGE, mec=INK, mew=1.3)
        logarithmic(axes, [at_level(each, 0.05) for each in times.values()], [each[-4] for each in times.values()])
        name_rows(axes, rows)
        axes.set_xlabel(f"JCT, {unit}")
        parts = (
            ["bar: middle half", "line: 5–95 %", "◆ 99 %", "○ mean"]
            if width == WIDE
            else ["bar 25–75 %", "line 5–95 %", "◆ 99 %", "○ mean"]
        )
        canvas.text(8 / width, 1 - 14 / (height + 84), " · ".join(parts), fontsize=10.5, color=QUIET, va="center")
        return canvas

    return Figure(
        "jct", "By policy",
        "Completion times (submission to finish) of all finished jobs of all runs together: bar from the 25th to the "
        "75th percentile with the median, line from the 5th to the 95th, diamond at the 99th, circle at the mean.",
        "; ".join(
            f"{name}: median {number(at_level(times[name], 0.5), seconds)}, 95th percentile "
            f"{number(at_level(times[name], 0.95), seconds)} {unit}" for name in rows
        ),
        draw,
    )  # fmt: skip


def logarithmic(axes: "Axes", low: Sequence[float], high: Sequence[float]) -> None:
    """A logarithmic scale if values differ much, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    if min(low) > 0 and max(high) / min(low) > 30:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        decades = max(high) / min(low)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 3000 else (1.0,), numticks=9))
        axes.xaxis.set_major_formatter(lambda value, _: _plain(value))
    else:
        axes.set_xlim(left=0)


def _plain(value: float) -> str:
    """A tick's number without an exponent."""
    return f"{value:,.0f}" if value >= 1 else f"{value:.3g}"


def curves(detail: Detail) -> Figure | None:
    """The share of jobs done within a time, for every policy; two stand out."""
    times = {name: each["quantiles_s"] for name, each in detail["jct"].items() if each["quantiles_s"]}
    if not times:
        return None
    seconds, unit = unit_for([at_level(each, 0.5) for each in times.values()])
    shown = [name for name in two_policies(detail) if name in times]

    def draw(width: int) -> "Canvas":
        entries = [(name, colour_of(detail, name)) for name in shown]
        entries += [("the others", REST)] if len(times) > len(shown) else []
        top = 18 * key_lines(entries, width - 60) + 10
        height = 260 if width == WIDE else 220
        canvas = canvas_of(width, top + height + 46)
        axes = panel(canvas, 48, top, width - 64, height)
        axes.grid()
        levels = [100 * (place + 0.5) / QUANTILES for place in range(QUANTILES)]
        for name in sorted(times, key=lambda each: each in shown):
            stands_out = name in shown
            axes.plot(
                [value / seconds for value in times[name]], levels, color=colour_of(detail, name),
                lw=2.6 if stands_out else 1, solid_joinstyle="round",
            )  # fmt: skip
        axes.set_ylim(0, 100)
        logarithmic(
            axes, [max(at_level(each, 0.01), 1e-9) for each in times.values()], [each[-1] for each in times.values()]
        )
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        few_ticks(axes, y=5)
        axes.set_xlabel(f"JCT, {unit}")
        key(canvas, entries, 8, 4, width - 60)
        return canvas

    return Figure(
        "jct-curves", "How many jobs were done by when",
        "The share of finished jobs whose completion time is at most so long, all runs together. Further left and up "
        "is better; where two curves cross, one policy serves short jobs and the other long ones.",
        f"Cumulative distribution of completion times under {' and '.join(shown)}; the values are in the figure above.",
        draw,
    )  # fmt: skip


def waits(detail: Detail, by: str) -> Figure | None:
    """Mean wait of each group of jobs under both policies."""
    rows = detail["waits"][by]
    if by == "by_user" and len(rows) < 2:
        return None
    names = [row_name(row, detail["waits"]["users"] - len(rows) + 1) for row in rows]
    shown = two_policies(detail)
    known = [value for row in rows for value in row["wait_s"].values() if value is not None]
    if not any(known):
        return None
    seconds, unit = unit_for([max(known) / 8])

    def draw(width: int) -> "Canvas":
        entries = [(name, colour_of(detail, name)) for name in shown]
        labels = [
            f"{clean(name, 16 if width == WIDE else 12)} ({row['jobs']:,})"
            for name, row in zip(names, rows, strict=True)
        ]
        left = min(24 + 6.4 * max(map(len, labels)), 0.5 * width)
        top = 18 * key_lines(entries, width - 16) + 14
        height = 20 * len(rows) + 8
        canvas = canvas_of(width, top + height + 46)
        axes = panel(canvas, left, top, width - left - 20, height)
        axes.grid(axis="x")
        for place, row in enumerate(rows):
            values = [row["wait_s"][name] for name in shown]
            some = [value / seconds for value in values if value is not None]
            if some:
                axes.plot([min(some), max(some)], [place, place], color=GRID, lw=3)
            for name, value in zip(shown, values, strict=True):
                if value is not None:
                    axes.plot(
                        value / seconds, place, "o", ms=8, color=colour_of(detail, name), mec=PAGE, mew=1, clip_on=False
                    )
        name_rows(axes, labels, 40)
        axes.set_xlim(left=-0.02 * max(known) / seconds)
        few_ticks(axes, x=9 if width == WIDE else 4)
        axes.set_xlabel(f"mean wait, {unit}")
        key(canvas, entries, 8, 4, width - 16)
        return canvas

    whom = "user" if by == "by_user" else "size"
    what = "the users with the most jobs" if by == "by_user" else "the number of GPUs a job asks for"
    return Figure(
        f"waits-{whom}", f"Who waits, by {whom}",
        f"Mean wait from submission to the first start, by {what}; the number of jobs stands in brackets.",
        "; ".join(
            f"{name}: " + ", ".join(f"{policy} {number(row['wait_s'][policy], seconds)} {unit}" for policy in shown)
            for name, row in zip(names[:6], rows, strict=False)
        ),
        draw,
    )  # fmt: skip


def row_name(row: Mapping[str, Any], others: int) -> str:
    """The name of a group of jobs; a user may have none, and the last group is everybody else."""
    if row["name"] is None:
        return f"{others:,} others"
    return row["name"] or "(no name)"


def regression(detail: Detail) -> Figure | None:
    """Completion times that the regression expects against the real ones, and what is left over."""
    found: Mapping[str, Any] = detail["regression"]
    if not found:
        return None
    shown = [name for name in two_policies(detail) if name in found]
    pairs = {
        name: [(fit, fit + rest, rest) for fit, rest in zip(each["fitted"], each["residuals"], strict=True)]
        for name, each in found.items()
    }
    seconds, unit = unit_for([fit for name in shown or pairs for fit, _, _ in pairs[name] if fit > 0])

    def draw(width: int) -> "Canvas":
        entries = [(name, colour_of(detail, name)) for name in shown]
        entries += [("the others", REST)] if len(found) > len(shown) else []
        top = 18 * key_lines(entries, width - 16) + 28
        wide = width == WIDE
        side = (width - 3 * 60) / 2 if wide else width - 72
        height = 260 if wide else 210
        canvas = canvas_of(width, top + height + 46 if wide else top + 2 * height + 46 + 68)
        left = panel(canvas, 60, top, side, height)
        right = (
            panel(canvas, 60 + side + 60, top, side, height)
            if wide
            else panel(canvas, 60, top + height + 68, side, height)
        )
        for name in sorted(pairs, key=lambda each: each in shown):
            style: dict[str, Any] = {"color": colour_of(detail, name), "ls": "", "marker": "o", "mew": 0}
            style |= {"ms": 6} if name in shown else {"ms": 3.5}
            left.plot(
                [fit / seconds for fit, _, _ in pairs[name]], [real / seconds for _, real, _ in pairs[name]], **style
            )
            right.plot(
                [fit / seconds for fit, _, _ in pairs[name]], [rest / seconds for _, _, rest in pairs[name]], **style
            )
        low, high = left.get_xlim()
        left.plot([low, high], [low, high], color=QUIET, lw=1, ls="--", scalex=False, scaley=False)
        right.axhline(0, color=QUIET, lw=1, ls="--")
        for axes, text in ((left, f"actual mean JCT, {unit}"), (right, f"residual, {unit}")):
            axes.grid()
            few_ticks(axes, x=6 if wide else 4, y=5)
            axes.set_title(text, loc="left", fontsize=11, color=QUIET, pad=7)
            axes.set_xlabel(f"fitted mean JCT, {unit}")
        key(canvas, entries, 8, 4, width - 16)
        return canvas

    fits = ", ".join(f"{name} R² = {found[name]['r_squared']:.2f}" for name in shown)
    return Figure(
        "regression", "What completion time depends on",
        "Mean completion time of each run, explained by utilisation, queue length and load (least squares, by policy): "
        f"{fits}. Dots on the dashed line are explained; a pattern in the residuals means that a straight line is "
        "too simple.",
        f"Fitted against actual mean completion time, and residuals: {fits}.",
        draw,
    )  # fmt: skip
