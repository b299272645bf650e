"""The figure of `adlro predict`: how many pairs of role and filler a hypervector can hold."""

from typing import TYPE_CHECKING

from adlro.measure.drawing import CHOSEN, FAMILIES, Figure, canvas_of, few_ticks, heading, key, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def unbinding_figure(table: dict[int, list[tuple[int, float]]]) -> Figure:
    """The accuracy of unbinding against the number of bundled pairs."""
    title = "How many pairs can one hypervector hold?"
    colours = (FAMILIES[0], CHOSEN, FAMILIES[1])

    def draw(width: int) -> "Canvas":
        canvas = canvas_of(width, 360)
        axes = panel(canvas, 60, 66, width - 90, 220)
        for points, colour in zip(table.values(), colours, strict=True):
            axes.plot([x for x, _ in points], [100 * y for _, y in points], color=colour, marker="o", markersize=4)
        axes.set_xscale("log", base=2)
        marks = [x for x, _ in next(iter(table.values())) if x & (x - 1) == 0]
        axes.set_xticks(marks, [str(mark) for mark in marks])
        axes.set_xlabel("pairs of role and filler in one vector")
        axes.set_ylim(0, 105)
        few_ticks(axes, y=5)
        heading(axes, "Fillers found again, of 64 known ones (%)")
        key(canvas, [(f"{size:,} entries", colour) for size, colour in zip(table, colours, strict=True)], 60, 26, width)
        return canvas

    full = ", ".join(
        f"{size:,} entries: {max((x for x, y in points if y >= 0.99), default=0)}" for size, points in table.items()
    )
    return Figure("unbinding", title, f"Pairs that come back with 99 %: {full}.", full, draw)
