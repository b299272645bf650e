"""The daemon's memory in one SQLite file: who opens it, how it is written, and what a broken file becomes."""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

from adlro.core.errors import StoreError

IN_MEMORY: Final = ":memory:"

BUSY_S: Final = 5.0
"""How long to wait for another writer (a person who looks into it), before giving up."""

LONGEST_WAL: Final = 64 * 1024 * 1024
"""Bytes at which the write-ahead log is cut back."""

_BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_AWAY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

_OURS: Final = ("", "-wal", "-shm")
"""The files of a database, as they are named behind its path."""


class BrokenError(StoreError):
    """The file is no database, or a damaged one."""


class AwayError(StoreError):
    """It cannot be written now; later perhaps it can."""


class FullError(AwayError):
    """There is no room on the disk."""


@final
class SqliteConnection:
    """One connection; `is_writer` tells whether its transactions take the lock of the only writer at once.

    `synchronous` is NORMAL: a killed daemon loses nothing, a machine without power may lose the latest turns. That is
    enough, because the cluster has the truth; FULL would wait for the disk several times in every turn.
    """

    def __init__(self, path: str, is_writer: bool) -> None:
        self.path, self._is_writer = path, is_writer
        self._lock = threading.RLock()
        with self._told():
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            try:
                self._set_up()
            except BaseException:
                self._connection.close()
                raise

    def _set_up(self) -> None:
        run = self._connection.execute
        if self._is_writer:
            run("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file only; it takes effect with the first table
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = NORMAL")
            run(f"PRAGMA journal_size_limit = {LONGEST_WAL}")
            if [row[0] for row in run("PRAGMA quick_check(1)")] != ["ok"]:
                raise BrokenError(f"{self.path}: the database is damaged.")
        else:
            run("PRAGMA query_only = ON")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; what it answers."""
        with self._lock, self._told():
            return self._connection.execute(sql, values).fetchall()

    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        with self._lock, self._told():
            self._connection.executemany(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has ended it already
                    self._connection.execute("ROLLBACK")
                raise

    def tables(self) -> set[str]:
        """The names of the tables there are."""
        return {name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def alone(self) -> None:
        """Nothing to do: a transaction is alone here."""

    def shrink(self) -> None:
        """Give pages that nothing uses back to the disk, some at a time."""
        self.rows("PRAGMA incremental_vacuum(2000)")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong, in our words."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _BROKEN:
                raise BrokenError(f"{self.path}: {error}.") from error
            if code == sqlite3.SQLITE_FULL:
                raise FullError(f"{self.path}: the disk is full. Free some space; then it is written again.") from error
            kind = AwayError if code in _AWAY else StoreError
            raise kind(f"{self.path}: {error}. Check that this user can write the file and its folder.") from error


def prepare_file(path: Path) -> None:
    """Make the folder and an empty file that only we can read: it tells who ran what."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FullError(f"{path}: the disk is full. Free some space, and start again.") from None
        raise StoreError(
            f"{path}: cannot open the store: {error.strerror}. Set a writable path with [store] url."
        ) from None


def set_aside(path: Path, stamp: str) -> Path:
    """Rename a broken database with all its files; its new name."""
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        for end in _OURS:
            part = path.with_name(path.name + end)
            if part.exists():
                part.rename(aside.with_name(aside.name + end))
    except OSError as error:
        raise StoreError(f"{path}: it is damaged, and cannot be renamed: {error.strerror}. Move it away.") from None
    return aside
