"""The figures of a report, each for a wide and for a narrow page; how they are drawn is in drawing.py."""

from typing import Final

from adlro.measure.drawing import (
    Figure,
)
from adlro.measure.plots_cluster import gantt, heat, queue_over_time
from adlro.measure.plots_policies import Detail, Result, curves, differences, distributions, regression, waits

FIGURE_NAMES: Final = (
    "differences", "jct", "jct-curves", "gantt", "utilisation", "queue", "waits-user", "waits-size", "regression",
)  # fmt: skip
"""The names of all figures, in the order of the report."""


def figures(result: Result, detail: Detail) -> list[Figure]:
    """The figures for which there is something to show, in the order of the report."""
    found = [
        differences(result),
        distributions(result, detail),
        curves(detail),
        gantt(detail),
        heat(detail),
        queue_over_time(detail),
        waits(detail, "by_user"),
        waits(detail, "by_size"),
        regression(detail),
    ]
    return [figure for figure in found if figure]
