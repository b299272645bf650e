"""What commands say and where: results on stdout, progress and errors on stderr, JSON without a word beside it."""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table

PIPED_WIDTH: Final = 400
"""A pipe has no width; this one is wide enough for every line of ours."""

GAP: Final = 2
"""Columns of space between two columns of a table."""

LINE_EVERY_S: Final = 10.0
"""How often progress is told where it cannot be drawn."""

NUMBERS: Final = re.compile(r"\[\n[^\[\]{}\"]*\]")


def stdout() -> Console:
    """Where results go."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def stderr() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Say one line to whoever is watching; it never gets into a result."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """A value as JSON. What is not a number is null; a list of numbers stands in one line."""
    text = json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False)
    return NUMBERS.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


def without_nan(value: Any) -> Any:
    """The same value with None for every number that JSON cannot say."""
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_table(header: bool = True) -> Table:
    """A table without a frame, in which columns stand close together."""
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0), show_header=header)


def show_list(columns: tuple[tuple[str, str], ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table with a line for each row; a column is its heading and what it is: name, left, right or text.

    The text is what gives way on a narrow terminal.
    """
    table = plain_table()
    for heading, side in columns:
        side_of_cell: Literal["left", "right"] = "right" if side == "right" else "left"
        table.add_column(
            heading, justify=side_of_cell, no_wrap=side != "text", style="cyan" if side == "name" else None
        )
    for row in rows:
        table.add_row(*row)
    stdout().print(table)


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name as it fits into so many columns: cut in the middle, and never so that two names become the same."""
    known = list(dict.fromkeys(names))
    long = [name for name in known if cell_len(name) > width]
    others = set(known) - set(long)
    for tail in sorted(range(1, width - 1), key=lambda tail: abs(tail - (width - 1) // 2)):
        found = {name: cut_in_the_middle(name, width, tail) for name in long}
        if len({*found.values(), *others}) == len(known):
            return {name: found.get(name, name) for name in known}
    # Names that differ only where nothing is shown: number them.
    found = {}
    for number, name in enumerate(long, 1):
        mark = f"…{number}"
        found[name] = head_of(name, max(width - len(mark), 1)) + mark
    return {name: found.get(name, name) for name in known}


def cut_in_the_middle(name: str, width: int, tail: int) -> str:
    """The name with an ellipsis in the place of its middle; so many of its columns are the end of the name."""
    end = head_of(name[::-1], tail)[::-1]
    return f"{head_of(name, max(width - 1 - cell_len(end), 0))}…{end}"


def head_of(text: str, width: int) -> str:
    """As much of the text as fits into so many columns."""
    if cell_len(text) <= width:
        return text
    return chop_cells(text, width)[0] if width > 1 else text[:width] if cell_len(text[:width]) <= width else ""


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, giving: Mapping[int, tuple[int, int]]
) -> list[tuple[str, ...]]:
    """The rows of a table (plain_table) so that it fits into a width: columns that give way are cut in the middle.

    `giving` has the least and the most columns of text for each column of the table that gives way.
    """
    wide = [
        max([cell_len(heading), *(cell_len(row[c]) for row in rows)]) for c, heading in enumerate(headings)
    ]  # fmt: skip
    for c, (_, most) in giving.items():
        wide[c] = min(wide[c], max(most, cell_len(headings[c])))
    while sum(wide) + GAP * (len(wide) - 1) > width:
        can_give = [c for c, (least, _) in giving.items() if wide[c] > max(least, cell_len(headings[c]))]
        if not can_give:
            break
        wide[max(can_give, key=lambda c: wide[c])] -= 1
    texts = {c: shortened((row[c] for row in rows), wide[c]) for c in giving}
    return [tuple(texts[c][cell] if c in texts else cell for c, cell in enumerate(row)) for row in rows]


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[str, int], None]]:
    """Show that something is under way; gives a function to be told what is being done and how much is done.

    On a terminal a line with a bar (or a spinner), gone in the end. Elsewhere one line at the start, and now and then.
    """
    console = stderr()
    if not console.is_terminal:
        say(f"{what} …")
        yield in_lines(total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = [BarColumn(), MofNCompleteColumn()] if total else []
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), *bar, TimeElapsedColumn(), console=console, transient=True
    ) as display:
        task = display.add_task(what, total=total)
        yield lambda text, done: display.update(task, description=text, completed=done)


def in_lines(total: int | None) -> Callable[[str, int], None]:
    """Progress as a line now and then, for logs."""
    said_at = time.monotonic()

    def tell(text: str, done: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= LINE_EVERY_S:
            said_at = time.monotonic()
            say(f"… {text}" + (f" ({done} of {total})" if total else ""))

    return tell


def say_if_it_compiles() -> None:
    """Tell the user why the first start takes a while."""
    from adlro.core.compiled import is_warm

    if not is_warm():
        say(
            "First start: compiling the simulator and the policies, which takes a minute or two. Later starts are fast."
        )
