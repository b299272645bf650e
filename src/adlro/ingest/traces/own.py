"""Our own table, CSV or Parquet: the fields of a job as columns. What `adlro trace convert` writes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError, UsageError
from adlro.core.records import WHOLE_GPU, Job
from adlro.core.schema import properties_of
from adlro.core.sizes import wrong_with_sizes
from adlro.core.tables import FOREVER, Floats, Jobs
from adlro.core.toml import nearest
from adlro.ingest.traces.cells import Cells, as_floats
from adlro.ingest.traces.rows import Labels, Mask, Rows, nothing
from adlro.ingest.traces.source import TraceFile, available_memory, check_memory
from adlro.ingest.traces.tabulate import Trace

NEEDED: Final = ("submit_s", "work", "gpus")
_AMOUNTS: Final = {each.name: each for each in properties_of(Job) if each.is_number}
NUMBERS: Final = (*NEEDED, *(name for name in _AMOUNTS if name not in NEEDED))
TEXTS: Final = ("family", "user", "name", "models", "sizes")
COLUMNS: Final = (*NUMBERS, *TEXTS)

READ_APART: Final = frozenset((*NEEDED, "share", "limit_s", "estimate"))
"""Columns that rows of every format have under their own names."""

PARQUET_BATCH: Final = 1 << 18


def read_own(cells: Cells) -> Rows:
    """A table of jobs: `submit_s`, `work` and `gpus` are required, the rest is optional."""
    numbers = {name: cells.number(name) for name in NUMBERS if cells.has(name)}
    texts = {name: cells.labels(name) for name in TEXTS}
    return _rows(cells.line, numbers, texts, cells.columns.get("id"))


def read_own_parquet(source: TraceFile, column: str | None = None) -> Trace:
    """The same table as Parquet; `column` is one more column that the caller asks for."""
    if source.packing:
        raise TraceError(
            f"'{source.path}' is compressed Parquet (.{source.packing}); expected plain Parquet. Decompress it."
        )
    return Trace(_parquet_parts(source, column), [], clock=lambda: None)


def _parquet_parts(source: TraceFile, column: str | None) -> Iterator[Rows]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source.path) as file:
            names = set(file.schema_arrow.names)
            if missing := [name for name in NEEDED if name not in names]:
                raise TraceError(
                    f"'{source.path}' has no column {missing[0]!r}; ADLRO's own table needs {', '.join(NEEDED)}."
                )
            if column not in (None, "user", "name", *names):
                raise UsageError(
                    f"--families: '{source.path}' has no column '{column}'.{nearest(str(column), names)} "
                    f"Its columns are {', '.join(file.schema_arrow.names)}."
                )
            check_memory(source, file.metadata.num_rows, available_memory())
            wanted = [name for name in dict.fromkeys((*COLUMNS, "id", column)) if name in names]
            before = 0
            for batch in file.iter_batches(PARQUET_BATCH, columns=wanted):
                rows = batch_rows(batch, before)
                yield replace(rows, column=labels_of(batch.column(column))) if column in names else rows
                before += len(batch)
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        raise TraceError(f"'{source.path}' is damaged Parquet, or not ADLRO's own table: {said}.") from None


def batch_rows(batch: Any, before: int) -> Rows:
    """Rows of a pyarrow batch of our own table, of which so many came before."""
    import pyarrow

    names = batch.schema.names
    line = before + 1 + np.arange(len(batch), dtype=np.int64)
    numbers = {name: as_floats(batch.column(name)) for name in NUMBERS if name in names}
    texts = {name: labels_of(batch.column(name)) if name in names else None for name in TEXTS}
    ids = pyarrow.compute.cast(batch.column("id"), "string") if "id" in names else None
    return _rows(line, numbers, texts, ids)


def labels_of(column: Any) -> Labels:
    """A pyarrow column of texts, numbered."""
    import pyarrow
    import pyarrow.compute as pc

    # Numbered when all batches are joined; here every row is a text of its own.
    return Labels(np.arange(len(column), dtype=np.int64), pc.fill_null(pc.cast(column, pyarrow.string()), ""))


def _rows(line: Any, numbers: dict[str, Floats], texts: dict[str, Labels | None], ids: Any) -> Rows:
    """Columns as rows; work becomes a duration, as in every reader."""
    count = len(line)
    gpus, share = numbers.get("gpus", nothing(count)), numbers.get("share")
    part = np.ones(count) if share is None else np.where(np.isnan(share), 1.0, share / WHOLE_GPU)
    units = np.where(gpus > 0, gpus * part, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        duration = numbers.get("work", nothing(count)) / units
    limit, estimate = numbers.get("limit_s"), numbers.get("estimate")
    return Rows(
        line=line, submit=numbers.get("submit_s", nothing(count)), duration=duration, gpus=gpus,
        share=None if share is None else np.where(np.isnan(share), WHOLE_GPU, share), limit=limit, estimate=estimate,
        given={name: column for name, column in numbers.items() if name not in READ_APART},
        user=texts["user"], name=texts["name"], models=texts["models"], family=texts["family"],
        sizes=texts["sizes"], id=ids, bad=_wrong_sizes(texts["sizes"], gpus, part),
    )  # fmt: skip


def _wrong_sizes(sizes: Labels | None, gpus: Floats, part: Floats) -> dict[str, Mask]:
    """Rows with sizes that cannot be read, or that only a job on whole GPUs may have."""
    if sizes is None:
        return {}
    texts = sizes.texts.to_pylist() if hasattr(sizes.texts, "to_pylist") else list(sizes.texts)
    known = {text: bool(text) and bool(wrong_with_sizes(text)) for text in set(texts)}
    wrong = np.array([known[text] for text in texts], bool)[sizes.codes]
    named = np.array([bool(text) for text in texts], bool)[sizes.codes]
    return {
        "sizes are no numbers of GPUs": wrong,
        "sizes of a job without whole GPUs": named & ((gpus < 1) | (part < 1)),
    }


def write_own(jobs: Jobs, path: str) -> None:
    """Write jobs as our own table; the file's suffix selects .csv or .parquet."""
    import pyarrow
    from pyarrow import csv, parquet

    where = Path(path)
    table = pyarrow.table(_columns(jobs))
    try:
        if where.suffix == ".parquet":
            parquet.write_table(table, where, compression="zstd")
        else:
            csv.write_csv(table, where, csv.WriteOptions(quoting_style="needed"))
    except OSError as error:
        raise TraceError(f"cannot write '{path}': {error.strerror or error}.") from None


def _columns(jobs: Jobs) -> dict[str, Any]:
    """The columns of our own table as pyarrow arrays; empty where a job has no value."""
    import pyarrow

    table = jobs.table

    def number(values: Any) -> Any:
        values = np.ascontiguousarray(values, np.float64)
        return pyarrow.array(values, mask=values == FOREVER)

    def text(codes: Any, texts: Any) -> Any:
        return pyarrow.DictionaryArray.from_arrays(np.ascontiguousarray(codes), pyarrow.array(texts, "string")).cast(
            "string"
        )

    models = ["|".join(sorted(models)) for models in jobs.allowed]
    names = jobs.names or ("",) * (int(table["group"].max(initial=0)) + 1)
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        each = _AMOUNTS[name]
        values = jobs.work if name == "work" else each.from_table(table[each.column])
        columns[name] = pyarrow.array(np.ascontiguousarray(values)) if each.kind is int else number(values)
    return columns | {
        "family": text(table["family"], jobs.families),
        "user": text(table["user"], jobs.users),
        "name": text(table["group"], names),
        "models": text(table["allowed"], models),
        "sizes": text(table["sizes"], [",".join(map(str, sizes)) for sizes in jobs.sizes]),
    }
