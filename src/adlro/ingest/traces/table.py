"""A trace that is a table with named columns: read piece by piece, with a word on what was guessed and left out."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from adlro.core.errors import TraceError
from adlro.ingest.traces.cells import FALLBACK, Cells, Layout, Writing, read_cells
from adlro.ingest.traces.rows import Rows
from adlro.ingest.traces.source import TraceFile, quoted
from adlro.ingest.traces.tabulate import Trace

_MOST_NAMED: Final = 20


def read_table(
    source: TraceFile,
    layout: Layout,
    writing: Writing,
    read: Callable[[Cells], Rows],
    column: str | None,
    clock: Callable[[], float | None],
) -> Trace:
    """The rows of a table; `column` is one that is asked for by name."""
    if len(set(layout.names)) < len(layout.names):
        raise TraceError(f"'{source.path}': two columns in its first line have the same name. Rename one.")
    broken: list[int] = []
    used: set[str] = set()

    def parts() -> Iterator[Rows]:
        for cells in read_cells(source, layout, writing, used):
            broken.extend(cells.broken)
            if len(cells):
                yield replace(read(cells), column=cells.labels(column))

    return Trace(
        parts(),
        broken,
        clock=clock,
        columns=layout.names,
        late_notes=lambda: not_read([name for name in layout.names if name not in used]),
        warnings=lambda: guessed(writing),
        quote=lambda numbers: quoted(source, numbers, Writing(writing.encoding, writing.comment).clean),
    )


def not_read(names: list[str]) -> tuple[str, ...]:
    """A note on columns that were not read."""
    shown = ", ".join(name or "(no name)" for name in names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} others" if len(names) > _MOST_NAMED else ""
    return (f"columns that were not read: {shown}{more}",) if names else ()


def guessed(writing: Writing) -> tuple[str, ...]:
    """A warning if lines were not UTF-8 and their encoding had to be guessed."""
    if not writing.guessed:
        return ()
    lines = "1 line is" if writing.guessed == 1 else f"{writing.guessed:,} lines are"
    return (
        f"{lines} not UTF-8 and read as {FALLBACK}, which is a guess. If names look wrong, give the encoding in a map "
        "(--columns)",
    )
