"""Draw docs/picture.svg and docs/picture-dark.svg: the same jobs on the same GPUs under two policies.

    python scripts/picture.py

Every bar is a stretch of a real run: paper16, 60 jobs of the workload paper, but one in 200 s instead of 560 s, so that
sixty jobs are enough to make a queue. Prints the means that the README quotes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import numpy as np

from adlro.core.run import Run
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import over_seeds, run_comparison
from adlro.experiment.instance import run_one
from adlro.experiment.scenario import Scenario, load_scenario
from adlro.measure.events import stretches
from adlro.measure.metrics import measure

DOCS: Final = Path(__file__).parent.parent / "docs"

JOBS: Final = 60
MEAN_INTERARRIVAL_S: Final = 200.0
SEED: Final = 5
SEEDS: Final = range(30)
POLICIES: Final = {"fcfs": "in submit order", "sjf": "shortest first"}

TITLES: Final = {"v100-sxm2-16gb": "V100", "t4": "T4", "mi50": "MI50"}
FAMILIES: Final = {"simulation": "simulation", "learning": "learning", "data": "data processing"}

# In the units of the drawing, which is shown at its own size or smaller: hence the large letters.
WIDTH, HEIGHT = 900, 430
LEFT, RIGHT = 74, 722
FIRST_PANEL, PANEL_STEP = 42, 184
ROW, GROUP_GAP, QUEUE_GAP, QUEUE = 7.5, 4.0, 6.0, 26.0


@dataclass(frozen=True, slots=True)
class Colours:
    """What the drawing is painted with, on one kind of page."""

    page: str
    text: str
    quiet: str
    lane: str
    grid: str
    queue: str
    family: tuple[str, str, str]


LIGHT: Final = Colours(
    "#ffffff", "#1f2328", "#59636e", "#eceff3", "#d5dae0", "#9aa4af", ("#2f6fd0", "#e8912d", "#2f9e77")
)
DARK: Final = Colours(
    "#0d1117", "#f0f6fc", "#9da7b3", "#1b222b", "#323a45", "#6e7985", ("#5b9bf5", "#f0a54a", "#45bd92")
)


@dataclass(frozen=True, slots=True)
class Bar:
    """GPUs beside each other that a job held: rows from `top` to `bottom`, times in hours."""

    top: int
    bottom: int
    start_h: float
    end_h: float
    family: str


def busy_scenario() -> Scenario:
    """Sixty jobs of the workload paper on paper16, arriving faster than usual."""
    scenario = load_scenario("paper16", "paper", JOBS)
    arrivals = scenario.workload.arrivals.model_copy(update={"mean_interarrival_s": MEAN_INTERARRIVAL_S})
    return replace(scenario, workload=scenario.workload.model_copy(update={"arrivals": arrivals}))


def bars(run: Run) -> Iterator[Bar]:
    """What every job held, with the rows of a gang drawn as one where they touch."""
    first_row = np.concatenate(([0], np.cumsum(run.site_gpus)))
    model_of_row = np.repeat(np.asarray(run.site_model), run.site_gpus)
    rows_of: dict[tuple[int, float, float], list[int]] = {}
    for held in stretches(run):
        rows = [int(first_row[held.site]) + bit for bit in range(64) if int(held.mask) >> bit & 1]
        rows_of.setdefault((int(held.job), float(held.start), float(held.end)), []).extend(rows)
    for (job, start, end), rows in rows_of.items():
        family = run.jobs.families[run.jobs.table[job].family]
        for top, bottom in touching(sorted(rows), model_of_row.tolist()):
            yield Bar(top, bottom, start / 3600, end / 3600, family)


def touching(rows: list[int], model_of_row: list[str]) -> Iterator[tuple[int, int]]:
    """The first and last row of each block of neighbours of one model."""
    top = rows[0]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is None or following != row + 1 or model_of_row[following] != model_of_row[row]:
            yield top, row
            top = following if following is not None else row


def queue_lengths(run: Run) -> list[tuple[float, int]]:
    """Times in hours at which the number of waiting jobs changes, with the number from then on."""
    starts = {int(held.job): float(held.start) for held in reversed(stretches(run))}
    changes = sorted([(float(time), 1) for time in run.jobs.table.submit] + [(time, -1) for time in starts.values()])
    waiting = np.cumsum([change for _, change in changes])
    return [(time / 3600, int(count)) for (time, _), count in zip(changes, waiting, strict=True)]


# ---- drawing -----------------------------------------------------------------------------------------------------


def box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """A rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'


def words(x: float, y: float, text: str, size: float, fill: str, more: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>{escape(text)}</text>'


END: Final = ' text-anchor="end"'
MIDDLE: Final = ' text-anchor="middle"'
BOLD: Final = ' font-weight="600"'


def at(hours: float, span_h: float) -> float:
    """Where a time lies on the drawing."""
    return LEFT + (RIGHT - LEFT) * hours / span_h


def row_tops(run: Run, top: float) -> tuple[list[float], list[tuple[str, float, float]]]:
    """The upper edge of every GPU's row, and each model with its upper and lower edge."""
    tops: list[float] = []
    groups: list[tuple[str, float, float]] = []
    y = top
    for model, count in zip(run.site_model, run.site_gpus.tolist(), strict=True):
        if groups and groups[-1][0] != model:
            y += GROUP_GAP
        begin = groups.pop()[1] if groups and groups[-1][0] == model else y
        tops += [y + ROW * gpu for gpu in range(count)]
        y += ROW * count
        groups.append((model, begin, y))
    return tops, groups


def panel(run: Run, top: float, span_h: float, most_waiting: int, colours: Colours) -> Iterator[str]:
    """One policy: its GPUs, its queue, and what came of it."""
    tops, groups = row_tops(run, top)
    for model, begin, end in groups:
        yield box(LEFT, begin, RIGHT - LEFT, end - begin, colours.lane)
        yield words(LEFT - 8, (begin + end) / 2 + 6, TITLES[model], 17, colours.quiet, END)
    for bar in bars(run):
        x, end_x = at(bar.start_h, span_h), at(bar.end_h, span_h)
        y, end_y = tops[bar.top], tops[bar.bottom] + ROW
        fill = colours.family[list(FAMILIES).index(bar.family)]
        edge = f' stroke="{colours.page}" stroke-width="1" rx="1.5"'
        yield box(x, y, max(end_x - x, 1.5), end_y - y, fill, edge)
    floor = groups[-1][2] + QUEUE_GAP + QUEUE
    steps = [f"M{at(0, span_h):.1f},{floor:.1f}"]
    for time_h, count in queue_lengths(run):
        steps.append(f"H{at(time_h, span_h):.1f}V{floor - QUEUE * count / most_waiting:.1f}")
    yield f'<path d="{"".join(steps)}V{floor:.1f}Z" fill="{colours.queue}"/>'
    yield words(LEFT - 8, floor - 4, "queue", 17, colours.quiet, END)
    x = RIGHT + 22
    yield words(x, top + 22, run.policy, 28, colours.text, BOLD)
    yield words(x, top + 44, POLICIES[run.policy], 17, colours.quiet)
    yield words(x, top + 80, "mean JCT", 17, colours.quiet)
    yield words(x, top + 112, f"{jct_min(run):.0f} min", 32, colours.text, BOLD)
    yield words(x, floor - 4, f"up to {max(count for _, count in queue_lengths(run))} waiting", 17, colours.quiet)


def jct_min(run: Run) -> float:
    """Mean JCT in minutes; all jobs finish here."""
    return (measure(run).jct_mean_s or 0.0) / 60


def legend(colours: Colours) -> Iterator[str]:
    """What the colours mean."""
    yield words(LEFT, 24, f"The same {JOBS} jobs on 16 GPUs", 20, colours.text, BOLD)
    x = 440.0
    for name, fill in zip(FAMILIES.values(), colours.family, strict=True):
        yield box(x, 11, 15, 15, fill, ' rx="2"')
        yield words(x + 21, 24, name, 17, colours.quiet)
        x += 42 + 8.6 * len(name)


def axis(span_h: float, bottom: float, colours: Colours) -> Iterator[str]:
    """Hours, as lines behind everything and numbers below it."""
    for hour in range(int(span_h) + 1):
        x = at(hour, span_h)
        yield f'<path d="M{x:.1f},{FIRST_PANEL}V{bottom:.1f}" stroke="{colours.grid}" stroke-width="1"/>'
        yield words(x, bottom + 19, f"{hour} h" if hour else "0", 16, colours.quiet, MIDDLE)


def picture(runs: list[Run], colours: Colours) -> str:
    """The whole drawing as SVG."""
    span_h = max(float(run.events["time"][-1]) for run in runs) / 3600
    most_waiting = max(count for run in runs for _, count in queue_lengths(run))
    parts = [box(0, 0, WIDTH, HEIGHT, colours.page, ' rx="6"'), *legend(colours)]
    parts += axis(span_h, HEIGHT - 26, colours)
    for number, run in enumerate(runs):
        parts += panel(run, FIRST_PANEL + PANEL_STEP * number, span_h, most_waiting, colours)
    label = "GPU by GPU, which job ran when: above in submit order, below shortest job first"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img" '
        f'aria-label="{label}">'
    )
    return "\n".join([head, f"<title>{label}</title>", *parts, "</svg>", ""])


def main() -> None:
    """Write both drawings and print what the README says of them."""
    scenario = busy_scenario()
    runs = [run_one(scenario, find_policy(name), SEED) for name in POLICIES]
    for file, colours in (("picture.svg", LIGHT), ("picture-dark.svg", DARK)):
        (DOCS / file).write_text(picture(runs, colours), encoding="utf-8")
    found = run_comparison(scenario, [find_policy(name) for name in POLICIES], SEEDS).metrics
    for run in runs:
        mean = over_seeds([metrics.jct_mean_s for metrics in found[run.policy]])
        values = [value / 60 for value in (mean.value, mean.low, mean.high) if value is not None]
        over = "{:.0f} min ({:.0f} to {:.0f})".format(*values)
        print(f"{run.policy}: mean JCT {jct_min(run):.1f} min on seed {SEED}; {over} over {len(SEEDS)} seeds")


if __name__ == "__main__":
    main()
