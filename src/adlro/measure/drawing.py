"""How figures are drawn with Matplotlib: colours, letters, layout, and the files and elements that come of it.

Every figure is laid out in pixels (72 to the inch, so a point is a pixel). It is drawn in the colours of a light page;
`themed` turns those into CSS variables, so that one drawing suits a dark page too. Matplotlib is imported when the
first figure is drawn, because it takes as long to load as a short comparison.
"""

import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adlro.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDE: Final = 880
NARROW: Final = 344
"""Widths of the drawings in pixels; a page shows the wide one a little larger."""

PNG_DPI: Final = 144

INK, QUIET, GRID, LANE, PAGE = "#1f2328", "#59636e", "#d5dae0", "#eceff3", "#fefefe"
BASELINE, CHOSEN, REST = "#6b7684", "#7b3fb5", "#b4bcc6"
FAMILIES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8410", "#878d96")
"""After Okabe and Ito: told apart with any kind of colour vision. Yellow is darker, to be seen on white;
the last is for the rest of many."""

VARIABLES: Final = {
    INK: "--ink", QUIET: "--quiet", GRID: "--grid", LANE: "--lane", PAGE: "--page",
    BASELINE: "--baseline", CHOSEN: "--chosen", REST: "--rest",
} | {colour: f"--f{place}" for place, colour in enumerate(FAMILIES)}  # fmt: skip
"""The CSS variable for each colour."""

DARK: Final = {
    "--ink": "#e8edf3", "--quiet": "#9da7b3", "--grid": "#323a45", "--lane": "#1b222b", "--page": "#0f141a",
    "--baseline": "#a3aebb", "--chosen": "#bd93f9", "--rest": "#4d5763",
    "--f0": "#4a9fd8", "--f1": "#f0b23a", "--f2": "#35bf95", "--f3": "#e29bc3", "--f4": "#8accf2", "--f5": "#f0824a",
    "--f6": "#c4bb3c", "--f7": "#87919d",
}  # fmt: skip
"""The same on a dark page."""

LONGEST_LABEL: Final = 22

RC: Final[Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "adlro", "text.parse_math": False, "figure.dpi": 72, "font.size": 11,
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "axes.unicode_minus": True,
    "text.color": INK, "axes.labelcolor": QUIET, "axes.edgecolor": GRID, "xtick.color": QUIET, "ytick.color": QUIET,
    "xtick.labelcolor": QUIET, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 1.0, "xtick.major.size": 3, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "axes.facecolor": "none", "figure.facecolor": "none", "grid.color": GRID, "grid.linewidth": 1.0,
    "axes.axisbelow": True, "legend.frameon": False, "path.simplify": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that can be drawn at any width."""

    name: str  # of its files
    title: str
    caption: str
    alt: str  # what somebody should know who cannot see it
    draw: Callable[[int], "Canvas"]

    def save(self, file: str | Path, width: int = WIDE) -> Path:
        """Write the figure to a file that ends in .svg or .png."""
        path = Path(file)
        if path.suffix not in (".svg", ".png"):
            raise UsageError(f"cannot write the figure '{self.name}' to '{path}'; expected a name in .svg or .png.")
        path.write_bytes(rendered(self, width, path.suffix[1:]))
        return path

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return png(self, WIDE)


# ---- drawing to files --------------------------------------------------------------------------------------------


def svg(figure: Figure, width: int) -> str:
    """The figure as an SVG file; the same figure gives the same text."""
    return rendered(figure, width, "svg").decode()


def png(figure: Figure, width: int) -> bytes:
    """The figure as a PNG file, on white."""
    return rendered(figure, width, "png")


def rendered(figure: Figure, width: int, kind: str) -> bytes:
    """The bytes of a file, without the date on which it was drawn."""
    out = io.BytesIO()
    with drawing():
        canvas = figure.draw(width)
        if kind == "svg":
            plain = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            canvas.savefig(out, format="svg", dpi=PNG_DPI, metadata=plain)
        else:
            canvas.savefig(out, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return out.getvalue()


@contextmanager
def drawing() -> Iterator[None]:
    """Our settings of Matplotlib, whatever the user's own file says."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        # A user may be called 李: a browser has the letter, Matplotlib's own font has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        yield


def inline(figure: Figure, width: int) -> str:
    """The figure as an SVG element for an HTML page: in the page's colours and letters, with ids of its own."""
    text = svg(figure, width)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    prefix = f"{figure.name}-{width}-"
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', text)
    text = re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans', sans-serif", r"\1inherit", text)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*pt"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", text, count=1)
    return themed(text).replace("<svg", '<svg aria-hidden="true" focusable="false"', 1).strip()


def themed(text: str) -> str:
    """A drawing with CSS variables for the colours of the page."""
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text


# ---- layout ------------------------------------------------------------------------------------------------------


def canvas_of(width: int, height: float) -> "Canvas":
    """An empty drawing of so many pixels."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width / 72, height / 72))


def panel(canvas: "Canvas", left: float, top: float, width: float, height: float) -> "Axes":
    """Axes at this place, in pixels from the upper left corner."""
    full_w, full_h = canvas.get_figwidth() * 72, canvas.get_figheight() * 72
    return canvas.add_axes((left / full_w, 1 - (top + height) / full_h, width / full_w, height / full_h))


def heading(axes: "Axes", text: str, colour: str = INK) -> None:
    """A line above the upper left corner of the axes."""
    axes.set_title(clean(text, 60), loc="left", fontsize=12, color=colour, fontweight="bold", pad=7)


def clean(text: str, longest: int = LONGEST_LABEL) -> str:
    """A name of anybody's making as one short line of letters that can be written."""
    line = "".join(letter if unicodedata.category(letter)[0] != "C" else "�" for letter in " ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def key(canvas: "Canvas", entries: Sequence[tuple[str, str]], left: float, top: float, width: float) -> None:
    """What the colours mean: squares and names in lines, from this place on."""
    full_w, full_h = canvas.get_figwidth() * 72, canvas.get_figheight() * 72
    from matplotlib.patches import Rectangle

    x, y = left, top
    for name, colour in entries:
        label = clean(name)
        takes = 22 + 7.0 * len(label)
        if x > left and x + takes > left + width:
            x, y = left, y + 18
        canvas.add_artist(Rectangle((x / full_w, 1 - (y + 11) / full_h), 11 / full_w, 11 / full_h, color=colour, lw=0))
        canvas.text((x + 16) / full_w, 1 - (y + 5.5) / full_h, label, fontsize=11, va="center_baseline", color=INK)
        x += takes + 8


def key_lines(entries: Sequence[tuple[str, str]], width: float) -> int:
    """How many lines the key takes."""
    lines, x = 1, 0.0
    for name, _ in entries:
        takes = 22 + 7.0 * len(clean(name))
        if x and x + takes > width:
            lines, x = lines + 1, 0.0
        x += takes + 8
    return lines


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds in the unit of a time axis, and its name."""
    for seconds, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if span_s >= 4 * seconds:
            return seconds, name
    return 1.0, "seconds"


def few_ticks(axes: "Axes", x: int = 0, y: int = 0, whole: bool = False) -> None:
    """At most so many numbers on the axes."""
    from matplotlib.ticker import MaxNLocator

    if x:
        axes.xaxis.set_major_locator(MaxNLocator(x, steps=[1, 2, 5, 10]))
    if y:
        axes.yaxis.set_major_locator(MaxNLocator(y, steps=[1, 2, 5, 10], integer=whole))


def short_models(models: Sequence[str]) -> dict[str, str]:
    """The part of each model's name before the first hyphen, where that tells them apart."""
    names = {model: model.partition("-")[0] for model in models}
    shared = {short for short in names.values() if list(names.values()).count(short) > 1}
    return {model: clean(model if short in shared else short, 15) for model, short in names.items()}


def groups(models: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of equal models: name, first row, rows."""
    found: list[tuple[str, int, int]] = []
    for row, model in enumerate(models):
        if found and found[-1][0] == model:
            found[-1] = (model, found[-1][1], found[-1][2] + 1)
        else:
            found.append((model, row, 1))
    return found


def model_labels(axes: "Axes", models: Sequence[str], counts: Sequence[int], height: float) -> None:
    """Beside the rows the model of each group and how many GPUs it has, none above another."""
    row_px = height / max(1, len(models))
    wanted = [(row + rows / 2) * row_px for _, row, rows in groups(models)]
    for text, y in zip(model_texts(models, counts), apart(wanted, 13.0, height), strict=True):
        axes.annotate(
            text, (0, 1 - y / height), xycoords="axes fraction", xytext=(-7, 0), textcoords="offset points",
            ha="right", va="center", fontsize=10, color=INK, annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks([])


def model_texts(models: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The label of each group of rows."""
    short = short_models(list(dict.fromkeys(models)))
    return [f"{short[model]} × {sum(counts[row : row + rows]):,}" for model, row, rows in groups(models)]


def model_margin(models: Sequence[str], counts: Sequence[int]) -> float:
    """Room for those labels, in pixels."""
    return 16 + 6.3 * max(map(len, model_texts(models, counts)))


def apart(wanted: Sequence[float], least: float, height: float) -> list[float]:
    """The places, moved as far as needed for a distance between them, inside the height where possible."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + least) if places else place)
    limit = height
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], limit)
        limit = places[index] - least
    return places
