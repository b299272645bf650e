"""One leader: two daemons never schedule one cluster. Who does not lead stands by, and takes over when the leader dies.

On one machine (or a file system that they share) the lock of a file; with PostgreSQL an advisory lock of the database.
Both are let go by the system when their holder dies, however it dies.
"""

import fcntl
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from adlro.core.errors import StoreError

if TYPE_CHECKING:
    import psycopg

LEADING: Final = 0x61646C_02
"""Number of the advisory lock; it counts within one database, and a database is for one cluster."""


class Leadership(Protocol):
    """Who leads. Only one of all that share a lock does."""

    def take(self) -> bool:
        """Lead if nobody else does, at once; whether we lead now."""

    def holds(self) -> bool:
        """Whether we still lead; asked before every act."""

    def holder(self) -> str:
        """Who leads, as far as it can be told, in words."""

    def release(self) -> None:
        """Let the next one lead."""


@final
class Alone:
    """Nobody else can lead: a simulated cluster exists in this process only."""

    def take(self) -> bool:
        """We lead."""
        return True

    def holds(self) -> bool:
        """We do."""
        return True

    def holder(self) -> str:
        """Us."""
        return "this daemon"

    def release(self) -> None:
        """Nothing to let go of."""


@final
class FileLock:
    """The lock of a file, in which the leader's process number and machine stand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Lead if nobody else does."""
        if self.holds():
            return True
        self.release()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot open the leader's lock: {error.strerror}. Set another path with [store] lock."
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            os.close(file)
            raise StoreError(
                f"{self.path}: this file system has no locks: {error.strerror}. Set another path with [store] lock."
            ) from None
        self._file = file
        if not self.holds():  # it was deleted while we opened it: another one may lock its successor
            self.release()
            return False
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return True

    def holds(self) -> bool:
        """Whether we hold it, and it still is the file of that name."""
        if self._file is None:
            return False
        try:
            mine, named = os.fstat(self._file), os.stat(self.path)
        except OSError:
            return False
        return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)

    def holder(self) -> str:
        """Who wrote into it last."""
        try:
            words = self.path.read_text(encoding="utf-8", errors="replace").split()
        except OSError:
            words = []
        return f"process {words[0]} on {words[1]}" if len(words) == 2 else "another daemon"

    def release(self) -> None:
        """Let the next one lead. The file stays: who deleted it could let two lead."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@final
class PostgresLock:
    """An advisory lock on a connection of its own: it is gone when the connection is."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()  # those who act, and those who only ask, are different threads
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._leads = False

    def take(self) -> bool:
        """Lead if nobody else does."""
        from adlro.daemon.store_postgres import connect_to_postgres

        with self._lock:
            if self._connection is None or self._connection.closed:
                self._leads, self._connection = False, connect_to_postgres(self._url)
            if not self._leads:
                self._leads = bool(self._ask("SELECT pg_try_advisory_lock(%s)", LEADING))
            return self._leads

    def holds(self) -> bool:
        """Whether the connection that holds it is still there."""
        with self._lock:
            self._leads = self._leads and self._ask("SELECT %s::int", 1) == 1
            return self._leads

    def holder(self) -> str:
        """Who the server says it is."""
        sql = (
            "SELECT 'process ' || pid || ' of ' || coalesce(host(client_addr), 'this machine') FROM pg_stat_activity "
            "JOIN pg_locks USING (pid) WHERE locktype = 'advisory' AND objid = %s AND granted"
        )
        with self._lock:
            return str(self._ask(sql, LEADING) or "another daemon")

    def release(self) -> None:
        """Let the next one lead."""
        with self._lock:
            if self._leads:  # the server notices that a connection is closed a little later only
                self._ask("SELECT pg_advisory_unlock(%s)", LEADING)
            if self._connection is not None:
                self._connection.close()
            self._connection, self._leads = None, False

    def _ask(self, sql: str, value: int) -> Any:
        """The first cell of the answer; None if there is none."""
        import psycopg

        if self._connection is None:
            return None
        try:
            row = self._connection.execute(sql.encode(), [value]).fetchone()
        except psycopg.Error:
            self._connection.close()
            return None
        return row[0] if row else None


def leadership_of(url: str, lock: Path | None) -> Leadership:
    """The lock that goes with a store: that of its server, else of a file; nobody's if all is in memory."""
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresLock(url)
    return FileLock(lock) if lock is not None else Alone()
