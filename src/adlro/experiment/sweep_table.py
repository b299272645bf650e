"""The table of a sweep and its journal: rows are written down as they come, and the table is replaced at once."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from adlro.core.errors import UsageError

JOURNAL: Final = ".journal"
"""Ends the name of the journal, which lies beside the table until the sweep is complete."""

Row: TypeAlias = dict[str, Any]
"""A run or a training: what it depends on, and what came of it."""


@final
class SweepJournal:
    """The rows that are done, a line of JSON each, beside the table. An open file, with one owner: the sweep."""

    def __init__(self, table: Path) -> None:
        self.table, self.path = table, Path(f"{table}{JOURNAL}")

    def read(self) -> dict[str, Row]:
        """Every row that is there, by its id. A line that was cut off when the sweep was ended does not count."""
        import pyarrow.parquet

        found: dict[str, Row] = {}
        if self.table.exists():
            try:
                found = {row["id"]: row for row in pyarrow.parquet.read_table(self.table).to_pylist()}
            except (KeyError, OSError, ValueError):
                raise UsageError(f"--out: '{self.table}' is not the table of a sweep. Choose another name.") from None
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                found[row["id"]] = row
        return found

    def __enter__(self) -> "SweepJournal":
        self.file = self.path.open("a", encoding="utf-8")
        if self.file.tell():
            self.file.write("\n")  # after a line that was cut off
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, row: Row) -> None:
        """Write a row down, so that it is there even if this process is killed."""
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def remove(self) -> None:
        """Remove the journal: the table has everything."""
        self.path.unlink(missing_ok=True)


def write_table(path: Path, rows: Sequence[Row], first: Sequence[str], last: Sequence[str]) -> None:
    """Write the table in place of the old one, at once; between `first` and `last` are training settings."""
    import pyarrow
    import pyarrow.parquet

    settings = sorted({name for row in rows for name in row if name.startswith("set.")})
    columns = {name: [row.get(name) for row in rows] for name in (*first, *settings, *last)}
    kept = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    arrays = {name: pyarrow.array(one_type(values)) for name, values in kept.items()}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        pyarrow.parquet.write_table(pyarrow.table(arrays), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def one_type(values: list[Any]) -> list[Any]:
    """The values of a column with one type: numbers of both kinds as floats, anything else mixed as texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1 or not kinds <= {int, float, bool, str}:
        return [None if value is None else json.dumps(value) for value in values]
    return values


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in place of an old one, at once."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
