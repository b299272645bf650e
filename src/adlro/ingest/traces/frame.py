"""Jobs from a table in memory: a DataFrame of pandas or Polars, a table of pyarrow, or a dict of columns.

Its columns are those of our own table (own.py). `duration_s` may stand for `work`, and times may be dates.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError, UsageError
from adlro.core.records import WHOLE_GPU
from adlro.core.toml import nearest
from adlro.ingest.traces.own import COLUMNS, NEEDED, NUMBERS, TEXTS, batch_rows, labels_of
from adlro.ingest.traces.rows import Rows
from adlro.ingest.traces.source import TraceFile
from adlro.ingest.traces.tabulate import Trace

FRAME: Final = "dataframe"
WHERE: Final = "DataFrame"
DURATION: Final = "duration_s"

EXPECTED: Final = "submit_s, gpus, and work (GPU-seconds) or duration_s (seconds)"


def read_frame(frame: Any, column: str | None = None) -> tuple[TraceFile, Trace]:
    """The rows of a table in memory; `column` is one that is asked for by name, and may be any."""
    table = as_table(frame)
    known = table.column_names
    for name in NEEDED:
        if name not in known and not (name == "work" and DURATION in known):
            raise TraceError(
                f"the {WHERE} has no column {name!r}.{nearest(name, known)} Expected {EXPECTED}; its columns are "
                f"{', '.join(known) or 'none'}. Rename yours: docs/python.md lists all that are read."
            )
    if column not in (None, "user", "name", *known):
        raise UsageError(
            f"--families: the {WHERE} has no column '{column}'.{nearest(str(column), known)} "
            f"Its columns are {', '.join(known)}."
        )
    clock = 0.0 if is_date(table.schema.field("submit_s").type) else None
    wanted = [name for name in dict.fromkeys((*COLUMNS, DURATION, "id", column)) if name in known]
    table = in_our_units(table.select(wanted))
    unused = [name for name in known if name not in wanted]
    notes = (f"columns that were not read: {', '.join(unused)}",) if unused else ()
    source = TraceFile(WHERE, "", table.nbytes, sha256_of(table), b"")
    quote = lambda rows: _quoted(table, rows)  # noqa: E731
    return source, Trace(parts(table, column), [], clock=lambda: clock, notes=notes, columns=(), quote=quote)


def as_table(frame: Any) -> Any:
    """The frame as a pyarrow table."""
    import pyarrow

    try:
        if isinstance(frame, dict):
            return pyarrow.table({str(name): pyarrow.array(values) for name, values in frame.items()})
        if type(frame).__module__.partition(".")[0] == "pandas":
            return pyarrow.Table.from_pandas(frame, preserve_index=False)
        return pyarrow.table(frame)
    except (pyarrow.ArrowException, TypeError, ValueError, AttributeError) as error:
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        raise TraceError(
            f"the jobs are a {type(frame).__name__} that cannot be read as a table ({said}); expected a {WHERE} with "
            f"the columns {EXPECTED}."
        ) from None


def is_date(kind: Any) -> bool:
    """Whether a column holds dates."""
    import pyarrow

    return bool(pyarrow.types.is_timestamp(kind))


def in_our_units(table: Any) -> Any:
    """The same table with times as seconds, and with work where it has durations."""
    import pyarrow
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        kind = table.schema.field(name).type
        column = table.column(name)
        if is_date(kind) or pyarrow.types.is_duration(kind):
            exact = pyarrow.timestamp("us", getattr(kind, "tz", None)) if is_date(kind) else pyarrow.duration("us")
            micros = pc.cast(pc.cast(column, exact, safe=False), pyarrow.int64())
            table = table.set_column(place, name, pc.divide(pc.cast(micros, pyarrow.float64(), safe=False), 1e6))
        elif name in (*NUMBERS, DURATION):
            table = table.set_column(place, name, as_numbers(name, column))
    if "work" not in table.column_names:
        gpus = table.column("gpus").to_numpy()
        share = table.column("share").to_numpy() / WHOLE_GPU if "share" in table.column_names else 1.0
        units = np.where(gpus > 0, gpus * np.where(np.isnan(share), 1.0, share), 1.0)
        table = table.append_column("work", pyarrow.array(table.column(DURATION).to_numpy() * units))
    return table.drop_columns([name for name in (DURATION,) if name in table.column_names])


def as_numbers(name: str, column: Any) -> Any:
    """A column as numbers; nan for what is missing. Anything else is refused."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        return pc.fill_null(pc.cast(column, pyarrow.float64(), safe=False), float("nan"))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        shown = next((value for value in column.to_pylist() if not isinstance(value, int | float | None)), None)
        raise TraceError(
            f"the column {name!r} of the {WHERE} holds {shown!r}; expected numbers"
            f"{' or dates' if name == 'submit_s' else ''}. Convert it, as in pandas.to_numeric(df[{name!r}])."
        ) from None


def sha256_of(table: Any) -> str:
    """A fingerprint of the values that are read."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    plain = table.replace_schema_metadata(None).combine_chunks()
    with pyarrow.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def parts(table: Any, column: str | None) -> Iterator[Rows]:
    """The rows of the table, batch by batch."""
    before = 0
    for batch in table.combine_chunks().to_batches():
        rows = batch_rows(batch, before)
        yield replace(rows, column=labels_of(batch.column(column))) if column in table.column_names else rows
        before += len(batch)


def _quoted(table: Any, numbers: Iterable[int]) -> dict[int, str]:
    """Rows by their number from 1, as text."""
    names = [name for name in table.column_names if name in (*NEEDED, *TEXTS)]
    return {
        number: ", ".join(f"{name}={table.column(name)[number - 1].as_py()!r}" for name in names) for number in numbers
    }
