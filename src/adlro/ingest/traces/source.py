"""The bytes of a trace: decompressed while they are read, in pieces that end with a line, within the free memory."""

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from adlro.core.errors import TraceError

PIECE: Final = 1 << 22
_HEAD: Final = 1 << 16
LONGEST_TRACE_LINE: Final = 1 << 20

BYTES_PER_ROW: Final = 500
"""Peak memory for one job while a trace becomes a table: measured, and rounded up."""

MAGIC: Final = {b"\xfd7zXZ\x00": "xz", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
PARQUET: Final = b"PAR1"

DAMAGED: Final = (lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """An existing, non-empty file: how it is compressed, and how its content begins."""

    path: str
    packing: str  # "", xz, gz or zst
    size: int  # bytes on disk
    sha256: str
    head: bytes

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return Path(self.path).name


def open_trace(path: str) -> TraceFile:
    """Look at a file; a file that cannot be a trace is refused here, in one line."""
    where = Path(path)
    try:
        if where.is_dir():
            raise TraceError(f"'{path}' is a directory; expected the file of a trace.")
        if not where.is_file():
            what = "is not a plain file" if where.exists() else "does not exist"
            raise TraceError(f"'{path}' {what}; expected the file of a trace.")
        with where.open("rb") as file:
            start = file.read(8)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot read the trace '{path}': {getattr(error, 'strerror', None) or error}.") from None
    if not size:
        raise TraceError(f"'{path}' is empty; expected a trace with at least one job.")
    packing = next((name for magic, name in MAGIC.items() if start.startswith(magic)), "")
    source = TraceFile(path, packing, size, sha256, b"")
    head = next((piece for piece, _read in _blocks(source, _HEAD)), b"")
    if not head.strip():
        raise TraceError(f"'{path}' is empty after decompression; expected a trace with at least one job.")
    if b"\0" in head and not head.startswith(PARQUET):
        raise TraceError(f"'{path}' is binary; expected text (plain, .xz, .gz, .zst) or Parquet.")
    return TraceFile(path, packing, size, sha256, head.removeprefix(b"\xef\xbb\xbf"))


def pieces(source: TraceFile, memory: int | None = None) -> Iterator[bytes]:
    """The decompressed file in pieces that end with a line; refused as soon as its rows will clearly not fit."""
    memory = available_memory() if memory is None else memory
    rest, rows, unpacked, first = b"", 0, 0, True
    for block, read in _blocks(source, PIECE):
        if first:
            block, first = block.removeprefix(b"\xef\xbb\xbf"), False
        rows += block.count(b"\n")
        unpacked += len(block)
        check_memory(source, max(rows, int(rows * source.size / max(1, read))), memory)
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > LONGEST_TRACE_LINE:
            raise TraceError(
                f"'{source.path}' has a line of more than {LONGEST_TRACE_LINE:,} bytes; expected one job a line."
            )
    if rest:
        yield rest + b"\n"


def check_memory(source: TraceFile, rows: int, memory: int) -> None:
    """Refuse a file whose rows would not fit."""
    if rows * BYTES_PER_ROW > memory:
        raise TraceError(
            f"'{source.path}' has about {rows:,} rows, which need {rows * BYTES_PER_ROW / 2**30:,.1f} GiB of memory; "
            f"{memory / 2**30:,.1f} GiB are free. Split the file, or use a machine with more memory."
        )


def read_whole(source: TraceFile, memory: int | None = None) -> bytes:
    """The whole decompressed file, for formats that cannot be read in pieces."""
    memory = available_memory() if memory is None else memory
    found: list[bytes] = []
    length = 0
    for block, read in _blocks(source, PIECE):
        found.append(block)
        length += len(block)
        # Parsed JSON takes up to some twelve times the room of its text.
        expected = 12 * max(length, int(length * source.size / max(1, read)))
        if expected > memory:
            raise TraceError(
                f"'{source.path}' needs about {expected / 2**30:,.1f} GiB of memory as JSON; "
                f"{memory / 2**30:,.1f} GiB are free. Use `sacct --parsable2`, which is read in pieces."
            )
    return b"".join(found)


def quoted(
    source: TraceFile, numbers: Iterable[int], clean: Callable[[bytes], bytes] = lambda piece: piece
) -> dict[int, str]:
    """The lines with these numbers (from 1; blank ones do not count), shortened and safe to print.

    `clean` prepares each piece: it may leave out lines that do not count.
    """
    wanted, found, number = set(numbers), dict[int, str](), 0
    for piece in map(clean, pieces(source)):
        lines = [line for line in piece.split(b"\n") if line.strip()]
        for which in [which for which in wanted if number < which <= number + len(lines)]:
            text = lines[which - number - 1].decode("utf-8", "replace")
            shown = "".join(letter if letter.isprintable() else "·" for letter in text.strip())
            found[which] = shown if len(shown) <= 120 else f"{shown[:119]}…"
        number += len(lines)
    return found


def available_memory() -> int:
    """Bytes that may still be used: what the system has free, or the container's limit if that is less."""
    free = 1 << 40
    try:
        with Path("/proc/meminfo").open() as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, max(0, int(limit) - used)) if limit.isdecimal() else free
    except (OSError, ValueError, StopIteration):
        if free == 1 << 40 and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free


def _blocks(source: TraceFile, size: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of the decompressed file, each with the number of compressed bytes read for it."""
    import pyarrow

    try:
        with Path(source.path).open("rb") as file:
            stream = _unpacked(file, source.packing)
            while block := stream.read(size):
                yield block, file.tell()
    except (*DAMAGED, pyarrow.ArrowException) as error:
        raise TraceError(f"'{source.path}' is a damaged or truncated .{source.packing} file: {_said(error)}.") from None
    except OSError as error:
        if source.packing and error.errno is None:
            raise TraceError(
                f"'{source.path}' is a damaged or truncated .{source.packing} file: {_said(error)}."
            ) from None
        raise TraceError(f"cannot read the trace '{source.path}': {error.strerror or _said(error)}.") from None


def _unpacked(file: BinaryIO, packing: str) -> BinaryIO:
    """A stream of the unpacked bytes."""
    match packing:
        case "xz":
            return cast(BinaryIO, lzma.open(file))
        case "gz":
            return cast(BinaryIO, gzip.open(file))
        case "zst":
            import pyarrow

            return cast(BinaryIO, pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"))
    return file


def _said(error: BaseException) -> str:
    """An error's first line, without an end."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
