"""Separated values: pieces of text become columns, and cells become numbers, times and labels, all rows at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from adlro.core.tables import Floats
from adlro.core.units import DAY_S
from adlro.ingest.traces.rows import CodeColumn, Labels, Mask, nothing
from adlro.ingest.traces.source import TraceFile, pieces

NOT_KNOWN: Final = ["", "NA", "N/A", "NULL", "null", "None", "nan", "NaN", "Unknown", "None assigned"]
NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one piece: columns of text by name. Rows with too many or too few cells are not in it."""

    columns: dict[str, Any]  # pyarrow string arrays [R]
    line: CodeColumn  # [R]
    broken: list[int] = field(default_factory=list)  # lines with another number of cells

    def __len__(self) -> int:
        return len(self.line)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def first_of(self, *names: str) -> str | None:
        """The first of these columns that is there."""
        return next((name for name in names if name in self.columns), None)

    def number(self, name: str | None) -> Floats:
        """A column of numbers; nan for what is empty or no number, and for a column that is not there."""
        if name is None or name not in self.columns:
            return nothing(len(self))
        import pyarrow
        import pyarrow.compute as pc

        column = self.columns[name]
        try:
            numbers = pc.cast(column, pyarrow.float64())
        except pyarrow.ArrowInvalid:
            trimmed = pc.utf8_trim_whitespace(column)
            is_number = pc.fill_null(pc.match_substring_regex(trimmed, NUMBER), False)
            numbers = pc.cast(pc.if_else(is_number, trimmed, None), pyarrow.float64())
        return as_floats(numbers)

    def time(self, name: str) -> Floats:
        """A column of times as seconds: Unix seconds, or dates like 2021-03-04 05:06:07 (taken as UTC)."""
        if name not in self.columns:
            return nothing(len(self))
        import pyarrow.compute as pc

        numbers = self.number(name)
        if not np.isnan(numbers).any():
            return numbers
        text = pc.utf8_slice_codeunits(pc.replace_substring(self.columns[name], "T", " "), 0, 19)
        dates = pc.strptime(text, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
        return np.where(np.isnan(numbers), as_floats(pc.cast(dates, "int64")), numbers)

    def labels(self, name: str | None) -> Labels | None:
        """A column of texts, numbered."""
        if name is None or name not in self.columns:
            return None
        import pyarrow.compute as pc

        encoded = pc.fill_null(self.columns[name], "").dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return Labels(codes, tuple(encoded.dictionary.to_pylist()))

    def parsed(self, name: str | None, parse: Callable[[str], float]) -> Floats:
        """A column of texts, each distinct one turned into a number by `parse`."""
        labels = self.labels(name)
        if labels is None:
            return nothing(len(self))
        return np.array([parse(text) for text in labels.texts], np.float64)[labels.codes]

    def reworded(self, name: str | None, word: Callable[[str], str]) -> Labels | None:
        """A column of labels, each distinct one put in other words."""
        labels = self.labels(name)
        return None if labels is None else Labels(labels.codes, tuple(word(text) for text in labels.texts))

    def is_in(self, name: str, words: Sequence[str]) -> Mask:
        """Which rows have one of these words there."""
        labels = self.labels(name)
        if labels is None:
            return np.zeros(len(self), bool)
        return np.array([text in words for text in labels.texts], bool)[labels.codes]


def as_floats(column: Any) -> Floats:
    """A pyarrow column of numbers; nan for null."""
    import pyarrow
    import pyarrow.compute as pc

    found: Floats = pc.fill_null(pc.cast(column, pyarrow.float64(), safe=False), float("nan")).to_numpy(
        zero_copy_only=False
    )
    return found


def header_of(head: bytes, separator: str) -> list[str]:
    """The names in the first line that is not blank."""
    import csv

    lines = head.decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    try:
        return [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
    except csv.Error:
        return []


def read_cells(source: TraceFile, separator: str, names: Sequence[str] | None = None) -> Iterator[Cells]:
    """The cells of a file, piece by piece; its first line gives the names of the columns unless `names` does."""
    line = 0
    for piece in pieces(source):
        text = _clean(piece)
        if names is None:
            names = header_of(text, separator)
            _header, _, text = text.partition(b"\n")
            line = 1
        if text:
            cells = _parse(text, separator, names, line)
            line += len(cells) + len(cells.broken)
            yield cells


def _clean(piece: bytes) -> bytes:
    """The piece as valid UTF-8 without blank lines, which count as no line anywhere."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = piece.decode("utf-8", "replace").encode()
    piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    if b"\n\n" in piece or b"\n " in piece or piece[:1].isspace():
        piece = b"".join(line + b"\n" for line in piece.split(b"\n") if line.strip())
    return piece


def _parse(text: bytes, separator: str, names: Sequence[str], before: int) -> Cells:
    """One piece as cells; `before` lines came before it."""
    import pyarrow
    from pyarrow import csv

    broken: list[int] = []

    def skip(row: Any) -> str:
        broken.append(row.number)
        return "skip"

    table = csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(column_names=list(names), use_threads=False, block_size=max(len(text) + 1, 1024)),
        csv.ParseOptions(delimiter=separator, invalid_row_handler=skip, quote_char=False if separator == "|" else '"'),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pyarrow.string()), null_values=NOT_KNOWN, strings_can_be_null=True
        ),
    ).combine_chunks()
    count = len(table) + len(broken)
    is_whole = np.ones(count, bool)
    is_whole[np.array(broken, np.int64) - 1] = False
    columns = {name: _one(table.column(name)) for name in names}
    return Cells(columns, before + 1 + np.flatnonzero(is_whole), [before + number for number in broken])


def _one(column: Any) -> Any:
    """A column as one array."""
    import pyarrow

    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pyarrow.concat_arrays(column.chunks or [pyarrow.array([], "string")])
    )


def clock_time(text: str) -> float:
    """Seconds of a length of time as Slurm writes it: minutes, minutes:seconds, hours:…, days-hours…; nan if none."""
    days, dash, rest = text.partition("-") if "-" in text else ("0", "", text)
    parts = rest.split(":")
    try:
        numbers = [float(part) for part in parts]
        day = float(days)
    except ValueError:
        return float("nan")
    if len(numbers) > 3 or min(numbers) < 0 or day < 0:
        return float("nan")
    if dash:  # D-H, D-H:M, D-H:M:S
        numbers += [0.0] * (3 - len(numbers))
    elif len(numbers) == 1:
        numbers = [0.0, numbers[0], 0.0]
    elif len(numbers) == 2:
        numbers = [0.0, *numbers]
    return day * DAY_S + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
