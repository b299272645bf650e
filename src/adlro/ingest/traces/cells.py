"""Separated values: pieces of text become columns, and cells become numbers, times and labels, all rows at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from adlro.core.tables import Floats
from adlro.core.units import DAY_S
from adlro.ingest.traces.rows import CodeColumn, Labels, Mask, nothing
from adlro.ingest.traces.source import TraceFile, pieces

NOT_KNOWN: Final = ["", "NA", "N/A", "NULL", "null", "None", "nan", "NaN", "Unknown", "None assigned"]
NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"
SEPARATORS: Final = (",", ";", "\t", "|")
COMMENT: Final = "#"
FALLBACK: Final = "latin-1"
"""How a line is read that is not UTF-8. Every byte is a letter in it, so that different names stay different."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is laid out: what separates its cells, the names of its columns, and where its rows begin."""

    separator: str
    names: tuple[str, ...]
    rows_from: int = 1  # lines before the first row, the header among them; blank ones do not count


@final
@dataclass(slots=True)
class Writing:
    """How the bytes of a file become lines of text; lines are counted whose encoding had to be guessed."""

    encoding: str | None = None  # None: UTF-8, and FALLBACK for a line that is not
    comment: str = ""  # lines that begin with it are left out; "": none are
    guessed: int = 0

    def clean(self, piece: bytes) -> bytes:
        """The piece as valid UTF-8 without blank lines and comments, which count as no line anywhere."""
        if self.encoding is not None:
            piece = piece.decode(self.encoding, "replace").encode()
        elif not is_utf8(piece):
            piece = b"\n".join(map(self._in_utf8, piece.split(b"\n")))
        piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b" ")
        comment = self.comment.encode()
        if comment or b"\n\n" in piece or b"\n " in piece or piece[:1].isspace():
            lines = (line for line in piece.split(b"\n") if line.strip())
            piece = b"".join(line + b"\n" for line in lines if not comment or not line.startswith(comment))
        return piece

    def _in_utf8(self, line: bytes) -> bytes:
        if is_utf8(line):
            return line
        self.guessed += 1
        return line.decode(FALLBACK).encode()


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@final
class Columns(dict[str, Any]):
    """Columns by name; it remembers which of them were read."""

    def __init__(self, columns: dict[str, Any], read: set[str] | None = None) -> None:
        super().__init__(columns)
        self.read = set[str]() if read is None else read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The column of that name, if there is one."""
        self.read.add(name)
        return super().get(name, default)


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
        """The first of these columns that exists."""
        return next((name for name in names if name in self.columns), None)

    def number(self, name: str | None) -> Floats:
        """A column of numbers; NaN for empty cells, for text that is not a number, and for a missing column."""
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
        """A column of texts; `parse` turns each distinct text into a number."""
        labels = self.labels(name)
        if labels is None:
            return nothing(len(self))
        return np.array([parse(text) for text in labels.texts], np.float64)[labels.codes]

    def reworded(self, name: str | None, word: Callable[[str], str]) -> Labels | None:
        """A column of labels with each distinct text replaced."""
        labels = self.labels(name)
        return None if labels is None else Labels(labels.codes, tuple(word(text) for text in labels.texts))

    def is_in(self, name: str, words: Sequence[str]) -> Mask:
        """Which rows have one of these words in the column."""
        labels = self.labels(name)
        if labels is None:
            return np.zeros(len(self), bool)
        return np.array([text in words for text in labels.texts], bool)[labels.codes]


def as_floats(column: Any) -> Floats:
    """A pyarrow column of numbers; NaN for null."""
    import pyarrow
    import pyarrow.compute as pc

    found: Floats = pc.fill_null(pc.cast(column, pyarrow.float64(), safe=False), float("nan")).to_numpy(
        zero_copy_only=False
    )
    return found


def header_of(head: bytes, separator: str) -> list[str]:
    """The names in the first line that is not blank."""
    return column_names_in(next(iter(text_lines(head)), ""), separator)


def layout_of(head: bytes, needs: Sequence[str], separator: str) -> Layout:
    """How a table is written whose header has all of these names, by its usual separator or another.

    The header may follow lines that begin with #. If no line has all the names, it is the one that has most of them.
    """
    lines = text_lines(head)
    after = next((place for place, line in enumerate(lines) if not line.startswith(COMMENT)), 0)
    best, most = Layout(separator, ()), -1
    for place in dict.fromkeys((0, after)):
        for each in dict.fromkeys((separator, *SEPARATORS)):
            names = column_names_in(lines[place] if lines else "", each)
            if (found := len(set(needs) & set(names))) > most:
                best, most = Layout(each, tuple(names), place + 1), found
    return best


def guessed_layout(head: bytes, comments: Sequence[str] = (COMMENT, "%", "//")) -> Layout:
    """How a table of no known format seems to be laid out: the separator that cuts its first lines most evenly."""
    lines = text_lines(head)
    before = next((place for place, line in enumerate(lines) if not line.startswith(tuple(comments))), 0)
    best, most = Layout(",", tuple(column_names_in(lines[before] if lines else "", ",")), before + 1), 1
    for each in SEPARATORS:
        names = column_names_in(lines[before] if lines else "", each)
        data = [line for line in lines[before + 1 :] if not line.startswith(tuple(comments))][:20]
        rows = [len(column_names_in(line, each)) for line in data]
        if len(names) > most and all(count == len(names) for count in rows[:-1]):
            best, most = Layout(each, tuple(names), before + 1), len(names)
    return best


def text_lines(head: bytes) -> list[str]:
    """The lines at the beginning of a file that are not blank; the last one may be cut."""
    return Writing().clean(head[: head.rfind(b"\n") + 1] or head).decode("utf-8", "replace").splitlines()


def column_names_in(line: str, separator: str) -> list[str]:
    """The cells of a header."""
    import csv

    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def read_cells(
    source: TraceFile, layout: Layout, writing: Writing | None = None, read: set[str] | None = None
) -> Iterator[Cells]:
    """The cells of a file, piece by piece; `read` gets the names of the columns that are read."""
    writing, read = writing or Writing(), set[str]() if read is None else read
    line, left = 0, layout.rows_from
    for piece in pieces(source):
        text = writing.clean(piece)
        while left and text:  # the header, and what stands before it
            _header, _, text = text.partition(b"\n")
            line, left = line + 1, left - 1
        if text:
            cells = _parse(text, layout.separator, layout.names, line, read)
            line += len(cells) + len(cells.broken)
            yield cells


def _parse(text: bytes, separator: str, names: Sequence[str], before: int, read: set[str]) -> Cells:
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
    columns = Columns({name: _one(table.column(name)) for name in names}, read)
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
    """Seconds of a duration as Slurm writes it: minutes, minutes:seconds, hours:…, days-hours…; NaN if invalid."""
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
