"""What commands print and where: results on stdout, progress and errors on stderr, JSON without any other text."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal

from rich.cells import cell_len
from rich.console import Console

from adlro.measure.json_text import json_text
from adlro.measure.text import GAP, plain_table, shortened

PIPED_WIDTH: Final = 400
"""A pipe has no width; this is wide enough for every line."""

LINE_EVERY_S: Final = 10.0
"""How often progress is told where it cannot be drawn."""


def stdout() -> Console:
    """Where results go."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def stderr() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPED_WIDTH, highlight=False)


def say(line: str) -> None:
    """Print one line for the user on stderr; it never becomes part of a result."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    print(json_text(value))


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


@contextmanager
def progress_of_runs() -> Iterator[Callable[[str, int, int], None]]:
    """Show how runs go; gives a function that is told what is being done, how many runs are done, and of how many.

    Nothing is shown before it is first told something: until then arguments are checked.
    """
    with ExitStack() as stack:
        shown: list[Callable[[str, int], None]] = []

        def tell(what: str, done: int, total: int) -> None:
            if shown:
                shown[0](what, done)
                return
            say_if_it_compiles()
            shown.append(stack.enter_context(progress(what, total if total > 1 else None)))

        yield tell


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
    from adlro.core.code_cache import is_warm

    if not is_warm():
        say(
            "First start: compiling the simulator and the policies. It takes ten seconds or so, with many policies a "
            "minute. Later starts are fast."
        )
