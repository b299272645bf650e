"""Tables as text: columns close together, and names that fit."""

from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.table import Table

GAP: Final = 2
"""Columns of space between two columns of a table."""


def plain_table(header: bool = True) -> Table:
    """A table without a frame, in which columns stand close together."""
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0), show_header=header)


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name cut in the middle to fit this many columns; two names never become the same."""
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
    """As much of the text as fits into this many columns."""
    if cell_len(text) <= width:
        return text
    return chop_cells(text, width)[0] if width > 1 else text[:width] if cell_len(text[:width]) <= width else ""
