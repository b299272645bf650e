"""Records as rows of the store, and the migrations of its tables."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any, Final, Protocol, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from adlro.core.errors import StoreError
from adlro.core.ports import LiveJob

RecordT = TypeVar("RecordT")

_CHUNK: Final = 500
"""Ids in one question; SQLite allows some thousand values in a statement."""


class Connection(Protocol):
    """What a database does for the store; a `?` stands for a value. It raises StoreError and nothing else."""

    path: str

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; what it answers."""

    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing."""

    def tables(self) -> set[str]:
        """The names of the tables there are."""

    def alone(self) -> None:
        """Keep others from making tables until this transaction ends."""

    def shrink(self) -> None:
        """Give back what is free."""

    def close(self) -> None:
        """Let go of it."""


# ---- migrations --------------------------------------------------------------------------------------------------


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Every migration: its number and its statements. Numbers begin at 1 and have no gaps."""
    files = sorted(
        (
            file
            for file in resources.files("adlro.daemon").joinpath("migrations").iterdir()
            if file.name.endswith(".sql")
        ),
        key=lambda file: file.name,
    )
    return tuple((int(file.name.split("_")[0]), file.read_text(encoding="utf-8")) for file in files)


def migrate(connection: Connection, last: int | None = None) -> None:
    """Bring the tables to the newest version, or to `last`; one that is newer than this program is refused."""
    known = migrations()[-1][0]
    with connection.transaction():
        connection.alone()
        there = connection.tables()
        version = int(connection.rows("SELECT version FROM schema_version")[0][0]) if "schema_version" in there else 0
        if version > known:
            raise StoreError(
                f"{connection.path}: it was written by a newer adlro (version {version} of its tables; this one knows "
                f"{known}). Upgrade adlro, or use another store."
            )
        if "schema_version" not in there:
            connection.rows("CREATE TABLE schema_version (version INTEGER NOT NULL)")
            connection.rows("INSERT INTO schema_version (version) VALUES (0)")
        for number, text in migrations():
            if version < number <= (last or known):
                for statement in statements(text):
                    connection.rows(statement)
                connection.rows("UPDATE schema_version SET version = ?", [number])


def statements(text: str) -> list[str]:
    """The statements of a migration. They hold no semicolons and no question marks but their own."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in bare.split(";") if statement.strip()]


# ---- records and rows --------------------------------------------------------------------------------------------


def json_of(record: Any) -> str:
    """A record as JSON, also one with a number that is none, or a name that is no text."""
    try:
        return to_json(record, inf_nan_mode="constants").decode()
    except PydanticSerializationError:
        import json

        return readable(json.dumps(asdict(record), ensure_ascii=False, default=list))


def records_of_rows(kind: type[RecordT], rows: Iterable[tuple[Any, ...]]) -> list[RecordT]:
    """The records of rows of JSON. One that cannot be read any more is left out: the memory may have gaps."""
    found = []
    adapter: TypeAdapter[RecordT] = _adapter(cast(Any, kind))
    for (body,) in rows:
        try:
            found.append(adapter.validate_json(body))
        except ValidationError:
            continue
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def readable(text: str) -> str:
    """A text that every database can keep."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def storable(value: Any) -> Any:
    """A value that every database can keep."""
    return readable(value) if isinstance(value, str) else value


def ended_at(job: LiveJob, now_s: float) -> float:
    """When a job ended; now, if nobody says."""
    return job.ended_s if job.ended_s is not None else now_s


def chunks(items: Sequence[str]) -> Iterable[Sequence[str]]:
    """The items, some at a time."""
    return (items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK))


def marks(items: Sequence[str]) -> str:
    """A question mark for each."""
    return ", ".join("?" * len(items))
