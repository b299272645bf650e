"""Figures of one run on its cluster: who held which GPU when, utilisation, the queue."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from adlro.measure.detail import OTHER
from adlro.measure.drawing import (
    FAMILIES,
    INK,
    LANE,
    PAGE,
    WIDE,
    Figure,
    canvas_of,
    few_ticks,
    groups,
    heading,
    key,
    key_lines,
    model_labels,
    model_margin,
    panel,
    time_unit,
)
from adlro.measure.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
from adlro.measure.plots_policies import Detail, colour_of, two_policies

MANY_SHAPES: Final = 5000
"""A chart with more bars than this is a bitmap inside its SVG; a browser would be slow with so many."""

MAP: Final = "cividis"


def gantt(detail: Detail) -> Figure | None:
    """Which job ran where: the baseline above, the chosen policy below."""
    rows = detail["gantt"]["rows"]
    if not rows or not any(detail["gantt"]["bars"].values()):
        return None
    begin, end = detail["gantt"]["window_s"]
    zero = detail["time_s"][0]
    seconds, unit = time_unit(end - zero)
    colours = dict(enumerate(family_colours(detail["families"])))
    entries = list(zip(without_prefix(detail["families"]), colours.values(), strict=True))
    shown = two_policies(detail)
    models = [row["model"] for row in rows]

    def draw(width: int) -> "Canvas":
        left = model_margin(models, [1] * len(rows))
        inner = width - left - 12
        top = 18 * key_lines(entries, width - 16) + 30
        row_px = max(2.6, min(11.0, 330 / len(rows)))
        height = max(row_px * len(rows), 60.0, 13.0 * len(groups(models)))
        canvas = canvas_of(width, top + len(shown) * (height + 34) + 14)
        key(canvas, entries, 8, 4, width - 16)
        for place, name in enumerate(shown):
            axes = panel(canvas, left, top + place * (height + 34), inner, height)
            heading(axes, name, colour_of(detail, name) if len(shown) > 1 else INK)
            axes.set_xlim((begin - zero) / seconds, (end - zero) / seconds)
            axes.set_ylim(len(rows), 0)
            lanes(axes, rows, row_px)
            paint(axes, detail["gantt"]["bars"][name], colours, zero, seconds, row_px)
            model_labels(axes, models, [1] * len(rows), height)
            few_ticks(axes, x=9 if width == WIDE else 5)
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
            if place < len(shown) - 1:
                axes.tick_params(labelbottom=False, length=0)
            else:
                axes.set_xlabel(f"{unit} since the first submission", labelpad=2)
        return canvas

    total = detail["gantt"]["gpus"]
    which = (
        f"all {total:,} GPUs"
        if len(rows) == total
        else f"{len(rows)} of {total:,} GPUs (of each model the nodes that both runs used most)"
    )
    whole = (begin, end) == tuple(detail["time_s"])
    when = "the whole run" if whole else "the part in which most happens, marked in the figures below"
    return Figure(
        "gantt", "Which GPU ran what",
        f"One row for each GPU, one bar for each job, coloured by family; gangs on neighbouring GPUs are one bar. "
        f"Shown: {which}, {when}.",
        f"Gantt chart of {which} under {' (above) and '.join(shown)}{' (below)' if len(shown) > 1 else ''}.",
        draw,
    )  # fmt: skip


def family_colours(families: Sequence[str]) -> list[str]:
    """A colour for each family; the rest of many is grey."""
    return [
        FAMILIES[-1] if name == OTHER and place == len(families) - 1 else FAMILIES[place]
        for place, name in enumerate(families)
    ]


def without_prefix(families: Sequence[str]) -> list[str]:
    """The names without a first part that all have, as gavel/ or sia/."""
    first = {name.partition("/")[0] for name in families if name != OTHER}
    if len(first) != 1 or not all("/" in name for name in families if name != OTHER):
        return list(families)
    return [name.partition("/")[2] or name for name in families]


def lanes(axes: "Axes", rows: Sequence[Mapping[str, str]], row_px: float) -> None:
    """What is free, with a gap between models and a thin one between nodes."""
    from matplotlib.patches import Rectangle

    low, high = axes.get_xlim()
    axes.add_patch(Rectangle((low, 0), high - low, len(rows), color=LANE, lw=0, zorder=0))
    for row in range(1, len(rows)):
        if rows[row]["model"] != rows[row - 1]["model"]:
            axes.axhline(row, color=PAGE, lw=min(3.5, 0.5 * row_px), zorder=3)
        elif rows[row].get("node") != rows[row - 1].get("node") and len(rows) <= 64:
            axes.axhline(row, color=PAGE, lw=1.6, zorder=3)


def paint(
    axes: "Axes",
    bars: Sequence[Sequence[float]],
    colours: Mapping[int, str],
    zero: float,
    seconds: float,
    row_px: float,
) -> None:
    """The bars of one run, all of a family as one shape."""
    from matplotlib.collections import PolyCollection

    low, high = axes.get_xlim()
    least = (high - low) / 1200  # a job of a second must not vanish
    shapes: dict[tuple[int, bool], list[list[tuple[float, float]]]] = {}
    for start, end, top, count, offset, share, family in bars:
        x0, x1 = (start - zero) / seconds, (end - zero) / seconds
        x1 = max(x1, x0 + least)
        y1 = top + count - offset / 1000
        y0 = top if count > 1 else y1 - share / 1000
        # The line around a narrow bar would hide it.
        has_edge = x1 - x0 > 3 * least and share * row_px > 2500
        shapes.setdefault((int(family), has_edge), []).append([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    for (family, has_edge), corners in sorted(shapes.items()):
        axes.add_collection(
            PolyCollection(
                corners, facecolors=colours[family], edgecolors=PAGE if has_edge else "none", zorder=2,
                linewidths=(0.8 if row_px > 5 else 0.4) if has_edge else 0, rasterized=len(bars) > MANY_SHAPES,
            ),
            autolim=False,
        )  # fmt: skip


def heat(detail: Detail) -> Figure | None:
    """How much of each GPU was held when."""
    rows = detail["heat"]["rows"]
    if not any(any(row) for table in detail["heat"]["per_mille"].values() for row in table):
        return None
    models = [row["model"] for row in rows]
    sizes = [row["gpus"] for row in rows]
    zero, end = detail["time_s"]
    seconds, unit = time_unit(end - zero)
    shown = two_policies(detail)

    def draw(width: int) -> "Canvas":
        import numpy as np

        left = model_margin(models, sizes)
        inner = width - left - 12
        row_px = max(1.6, min(9.0, 240 / len(rows)))
        height = max(row_px * len(rows), 60.0, 13.0 * len(groups(models)))
        canvas = canvas_of(width, 66 + len(shown) * (height + 34) + 14)
        image = None
        for place, name in enumerate(shown):
            axes = panel(canvas, left, 66 + place * (height + 34), inner, height)
            heading(axes, name, colour_of(detail, name) if len(shown) > 1 else INK)
            values = np.array(detail["heat"]["per_mille"][name]) / 10
            image = axes.imshow(
                values, cmap=MAP, vmin=0, vmax=100, aspect="auto", interpolation="nearest",
                extent=(0, (end - zero) / seconds, len(rows), 0),
            )  # fmt: skip
            for _, row, _ in groups(models)[1:]:
                axes.axhline(row, color=PAGE, lw=min(2.5, 0.5 * row_px))
            model_labels(axes, models, sizes, height)
            few_ticks(axes, x=9 if width == WIDE else 5)
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
            mark_window(axes, detail, seconds)
            if place < len(shown) - 1:
                axes.tick_params(labelbottom=False, length=0)
            else:
                axes.set_xlabel(f"{unit} since the first submission", labelpad=2)
        bar = panel(canvas, left, 8, min(260, inner - 24), 9)
        assert image is not None
        canvas.colorbar(image, cax=bar, orientation="horizontal", ticks=[0, 50, 100])
        bar.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        bar.tick_params(labelsize=10, length=0)
        bar.spines["outline"].set_visible(False)
        return canvas

    total = sum(sizes)
    what = (
        "a row is a GPU"
        if total == len(rows)
        else f"a row is a block of about {round(total / len(rows))} GPUs of one model"
    )
    return Figure(
        "utilisation", "How busy the GPUs were",
        f"The share of each GPU that was held, over the whole run; {what}. Busy is not the same as useful: a job on "
        "a slow GPU keeps it busy for longer.",
        "Heat map of utilisation by GPU and time. Mean over the whole time: " + "; ".join(
            f"{name} {_mean_of(detail['heat']['per_mille'][name], sizes) / 10:.0f} %" for name in shown
        ) + ".",
        draw,
    )  # fmt: skip


def _mean_of(table: Sequence[Sequence[float]], weights: Sequence[int]) -> float:
    """The mean of a table whose rows have weights."""
    rows = [sum(row) / len(row) for row in table]
    return sum(row * weight for row, weight in zip(rows, weights, strict=True)) / sum(weights)


def mark_window(axes: "Axes", detail: Detail, seconds: float) -> None:
    """A line above the time that the Gantt chart shows, where that is not all."""
    zero = detail["time_s"][0]
    if list(detail["gantt"]["window_s"]) == list(detail["time_s"]) or not detail["gantt"]["rows"]:
        return
    begin, end = ((edge - zero) / seconds for edge in detail["gantt"]["window_s"])
    axes.plot(
        [begin, end], [1.0, 1.0], transform=axes.get_xaxis_transform(), color=FAMILIES[5], lw=4, clip_on=False,
        solid_capstyle="butt", zorder=5,
    )  # fmt: skip


def queue_over_time(detail: Detail) -> Figure | None:
    """How many jobs waited when."""
    shown = two_policies(detail)
    zero, end = detail["time_s"]
    seconds, unit = time_unit(end - zero)
    lengths = detail["queue"]
    if not any(max(lengths[name]) > 0 for name in shown):
        return None

    def draw(width: int) -> "Canvas":
        entries = [(name, colour_of(detail, name)) for name in shown]
        top = 18 * key_lines(entries, width - 16) + 12
        height = 220 if width == WIDE else 180
        canvas = canvas_of(width, top + height + 44)
        axes = panel(canvas, 48, top, width - 64, height)
        axes.grid(axis="y")
        for name in shown:
            values = lengths[name]
            edges = [(end - zero) / seconds * place / len(values) for place in range(len(values) + 1)]
            colour = colour_of(detail, name)
            axes.stairs(values, edges, color=colour, fill=True, alpha=0.22, lw=0)
            axes.stairs(values, edges, color=colour, lw=1.8)
        axes.set_xlim(0, (end - zero) / seconds)
        axes.set_ylim(bottom=0)
        mark_window(axes, detail, seconds)
        few_ticks(axes, x=9 if width == WIDE else 5, y=5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:.1f}")
        axes.set_xlabel(f"{unit} since the first submission")
        key(canvas, entries, 8, 4, width - 16)
        return canvas

    peaks = "; ".join(f"{name} up to {max(lengths[name]):,.0f}" for name in shown)
    means = "; ".join(f"{name} {number(sum(lengths[name]) / len(lengths[name]))}" for name in shown)
    return Figure(
        "queue", "How long the queue was",
        f"Jobs that were submitted and held no GPU, new ones and stopped ones. Mean over the run: {means}.",
        f"Length of the queue in time: {peaks}.",
        draw,
    )  # fmt: skip
