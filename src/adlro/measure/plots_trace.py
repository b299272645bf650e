"""A trace in one figure: when jobs come, how many GPUs they have, how long they run, what they ask of which models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from adlro.core.tables import Floats
from adlro.measure.drawing import CHOSEN, FAMILIES, QUIET, Figure, canvas_of, clean, heading, panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH: Final = 960
_BAR: Final = FAMILIES[0]
POINTS: Final = 401
_MOST_MODELS: Final = 8
LONGEST_MODELS: Final = 26
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
TIMES: Final = ((1.0, "1 s"), (60.0, "1 min"), (3600.0, "1 h"), (86_400.0, "1 d"), (864_000.0, "10 d"))
"""Where a time axis has its marks."""

MARGIN_LEFT, MARGIN_TOP, GAP_X, GAP_Y, HEIGHT = 56, 66, 66, 62, 190


def trace_figure(found: Mapping[str, Any], durations_s: Floats, used: Floats | None) -> Figure:
    """The figure of a trace in numbers, its jobs' durations, and the shares of the requested time that they used."""
    report, duration = found["report"], found["duration_s"]
    asked = found["estimates"]
    alt = (
        f"{found['jobs']:,} jobs; half run less than {duration['p50']:,.0f} s, one in a hundred more than "
        f"{duration['p99']:,.0f} s"
    )
    alt += f"; half use less than {asked['used_of_requested']['p50']:.0%} of the requested time." if asked else "."
    title = f"{clean(report['file'], 60)}: {found['jobs']:,} jobs in {found['span_s'] / 86_400:,.1f} days"

    def draw(width: int) -> "Canvas":
        return _drawn(width, title, found, durations_s, used)

    return Figure("trace", title, f"Families: {report['families']}; estimates: {report['estimates']}.", alt, draw)


def _drawn(width: int, title: str, found: Mapping[str, Any], durations_s: Floats, used: Floats | None) -> "Canvas":
    """Six panels, three beside each other where there is room."""
    beside = 3 if width >= 800 else 1
    each = (width - MARGIN_LEFT - 16 - (beside - 1) * GAP_X) / beside
    rows = 6 // beside
    canvas = canvas_of(width, MARGIN_TOP + rows * HEIGHT + (rows - 1) * GAP_Y + 46)
    canvas.text(16 / width, 1 - 24 / (canvas.get_figheight() * 72), title, fontsize=14, fontweight="bold", va="center")
    places = [
        panel(
            canvas,
            MARGIN_LEFT + (i % beside) * (each + GAP_X),
            MARGIN_TOP + (i // beside) * (HEIGHT + GAP_Y),
            each,
            HEIGHT,
        )
        for i in range(6)
    ]
    arrivals = found["arrivals"]
    clock = arrivals["clock"]
    _bars(
        places[0],
        [str(hour) for hour in range(24)],
        arrivals["by_hour"],
        f"Jobs an hour, by hour{' (UTC)' if clock == 'UTC' else ''}",
        6,
    )
    days = DAYS if clock == "UTC" else tuple(f"day {number}" for number in range(1, 8))
    _bars(places[1], days, arrivals["by_weekday"], "Jobs an hour, by weekday")
    sizes = found["sizes"]
    _bars(places[2], [row["gpus"] for row in sizes], [row["jobs"] for row in sizes], "Jobs by number of GPUs")
    _durations(places[3], durations_s)
    _models(places[4], found)
    _accuracy(places[5], used)
    return canvas


def _bars(axes: "Axes", labels: Sequence[str], values: Sequence[float], title: str, every: int = 1) -> None:
    """A bar for each value, with a label under every so many of them."""
    axes.bar(range(len(values)), values, color=_BAR, width=0.8)
    shown = [label.replace("part of 1", "<1") for label in labels[::every]]
    long = max(map(len, shown)) * len(shown) > 48
    axes.set_xticks(range(0, len(values), every), shown, fontsize=9 if long else 11)
    if long:
        axes.tick_params(axis="x", rotation=45)
    axes.yaxis.set_major_formatter(_with_commas)
    axes.grid(axis="y")
    heading(axes, title)


def _durations(axes: "Axes", durations_s: Floats) -> None:
    """How many jobs run no longer than so long."""
    chance = np.linspace(0.0, 1.0, POINTS)
    at = np.maximum(np.quantile(durations_s, chance), 1.0)
    axes.step(at, 100 * chance, where="post", color=_BAR, linewidth=2)
    high = float(at[-1]) * 1.2
    axes.set_xscale("log")
    axes.set_xlim(1.0, max(high, 10.0))
    marks = [(seconds, name) for seconds, name in TIMES if seconds <= max(high, 10.0)]
    axes.set_xticks([seconds for seconds, _name in marks], [name for _seconds, name in marks])
    axes.minorticks_off()
    _share_axis(axes)
    heading(axes, "Jobs that run no longer, %")


def _models(axes: "Axes", found: Mapping[str, Any]) -> None:
    """What is asked of which GPU models, and the load that this alone puts on them."""
    rows = found["demand_by_models"][:_MOST_MODELS]
    axes.barh(range(len(rows)), [row["gpu_hours"] for row in rows], color=_BAR, height=0.7)
    axes.set_yticks([])
    axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
    most = max([row["gpu_hours"] for row in rows], default=0.0) or 1.0
    axes.set_xlim(0, 1.9 * most)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(_with_commas)
    for place, row in enumerate(rows):
        load = "" if row["load_per_gpu"] is None else f", load {row['load_per_gpu']:.2g}"
        text = f"{clean(row['models'].replace(' | ', '|'), LONGEST_MODELS)}{load}"
        axes.text(row["gpu_hours"] + 0.02 * most, place, text, fontsize=9, va="center_baseline")
    against = f" (load on {clean(found['cluster'], 12)})" if found["cluster"] else ""
    heading(axes, f"GPU-hours by models{against}")


def _accuracy(axes: "Axes", used: Floats | None) -> None:
    """How many jobs use no more than so much of the time that was requested for them."""
    heading(axes, "Jobs that use no more of their limit, %")
    if used is None or not len(used):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no requested times", color=QUIET, ha="center", va="center", transform=axes.transAxes)
        return
    chance = np.linspace(0.0, 1.0, POINTS)
    axes.step(np.quantile(used, chance), 100 * chance, where="post", color=_BAR, linewidth=2)
    axes.axvline(1.0, color=CHOSEN, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1.25)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "¼", "½", "¾", "all of it"))
    _share_axis(axes)


def _share_axis(axes: "Axes") -> None:
    """From 0 to 100 %."""
    axes.set_ylim(0, 102)
    axes.set_yticks((0, 25, 50, 75, 100))
    axes.grid(axis="both")


def _with_commas(value: float, _place: float) -> str:
    """A number at an axis."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:g}"
