"""The daemon's memory in PostgreSQL: the same statements, over a connection that comes back by itself."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

from adlro.core.errors import StoreError
from adlro.daemon.store_sqlite import AwayError
from adlro.process.logs import without_secrets

if TYPE_CHECKING:
    import psycopg

CONNECT_S: Final = 5
STATEMENT_MS: Final = 10_000
"""The longest that one statement may take: a turn must not hang on a server that does not answer."""

MIGRATING: Final = 0x61646C_01
"""Number of the advisory lock while tables are made."""


def connect_to_postgres(url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """A connection that commits each statement unless told otherwise."""
    try:
        import psycopg
    except ImportError:
        raise StoreError(
            "a PostgreSQL store needs the package psycopg: pip install 'adlro[postgres]', or use a SQLite file."
        ) from None
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
        )
        # The server lets go of the lock of a machine that is gone, after as long as we give it (docs/daemon.md).
        for setting in (
            f"statement_timeout = {STATEMENT_MS}",
            "tcp_keepalives_idle = 5",
            "tcp_keepalives_interval = 2",
            "tcp_keepalives_count = 3",
        ):
            connection.execute(f"SET {setting}".encode())
        return connection
    except psycopg.Error as error:
        raise AwayError(
            f"{without_secrets(url)}: cannot connect: {_in_one_line(error)} Check the server and the address."
        ) from None


@final
class PostgresConnection:
    """One connection, made again at the next call when it was lost."""

    def __init__(self, url: str, is_writer: bool) -> None:
        self.path, self._is_writer = without_secrets(url), is_writer
        self._url = url
        self._lock = threading.RLock()
        self._connection = connect_to_postgres(url)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; what it answers."""
        with self._lock, self._told():
            cursor = self._live().execute(_ours(sql), [_plain(value) for value in values])
            return cursor.fetchall() if cursor.description else []

    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        with self._lock, self._told(), self._live().cursor() as cursor:
            cursor.executemany(_ours(sql), [[_plain(value) for value in row] for row in values])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        with self._lock, self._told(), self._live().transaction():
            yield

    def tables(self) -> set[str]:
        """The names of the tables there are."""
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        return {name for (name,) in self.rows(sql)}

    def alone(self) -> None:
        """Keep others from making tables until this transaction ends."""
        self.rows("SELECT pg_advisory_xact_lock(?)", [MIGRATING])

    def shrink(self) -> None:
        """Nothing to do: the server does it by itself."""

    def close(self) -> None:
        """Let go of the server."""
        with self._lock:
            self._connection.close()

    def _live(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """The connection, made anew if it was lost."""
        if self._connection.closed:
            self._connection = connect_to_postgres(self._url)
        return self._connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong, in our words."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            kind = StoreError
            if isinstance(error, psycopg.OperationalError):
                kind = AwayError
                with suppress(psycopg.Error):
                    self._connection.close()
            raise kind(f"{self.path}: {_in_one_line(error)}") from error


def _ours(sql: str) -> Any:
    """The statement with PostgreSQL's sign for a value; ours have no other question marks. Any: it is no literal."""
    return sql.replace("?", "%s")


def _plain(value: Any) -> Any:
    """A text without the one sign that PostgreSQL cannot keep."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."
