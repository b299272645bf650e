"""What the daemon remembers beyond a crash: SQLite in one file, or PostgreSQL by its address.

All of it can be lost and rebuilt from the cluster; so a damaged file is kept aside, and an empty one takes its place.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Final, final

from adlro.core.errors import StoreError
from adlro.core.ports import Answer, LiveJob
from adlro.core.units import DAY_S
from adlro.daemon.keep import Keep
from adlro.daemon.store_history import (
    FILL_IN,
    INSERT_POINTS,
    INSERT_RAN_ON,
    SELECT_POINTS,
    THIN,
    THINNING,
    TO_THIN,
    nodes_of_job,
    thinned,
    where,
)
from adlro.daemon.store_rows import (
    Connection,
    RecordT,
    chunks,
    ended_at,
    json_of,
    marks,
    migrate,
    readable,
    records_of_rows,
    storable,
)
from adlro.daemon.store_sqlite import IN_MEMORY, AwayError, BrokenError, SqliteConnection, prepare_file, set_aside
from adlro.live.history import FIGURES, figures_of, finite, summed
from adlro.live.service import Alarm, Compared, Decision, HistoryQuery, Tick, Usage

PRUNE_EVERY: Final = 500
"""Turns between two looks for what is old."""

PRUNED_AT_ONCE: Final = 5000
"""Rows of a table that one look forgets at most: a clock that jumped for a moment cannot empty it."""

MOST_OWED: Final = 10_000
"""Writings that are kept while the database cannot be written; then the oldest are lost."""


Open = Callable[[bool], Connection]
"""A connection to the database: True for the one that writes."""


def open_store(url: str, keep: Keep | None = None, clock: Callable[[], float] = time.time) -> "Store":
    """The store at an address: sqlite:PATH (also sqlite:///PATH, or the path alone), sqlite::memory:, postgresql://…"""
    keep = keep or Keep()
    if url.startswith(("postgresql://", "postgres://")):
        from adlro.daemon.store_postgres import PostgresConnection

        return Store(lambda is_writer: PostgresConnection(url, is_writer), None, keep, clock)
    path = sqlite_path(url)
    if path is None:
        only = SqliteConnection(IN_MEMORY, is_writer=True)
        return Store(lambda is_writer: only, None, keep, clock)
    return Store(lambda is_writer: SqliteConnection(str(path), is_writer), path, keep, clock)


def sqlite_path(url: str) -> Path | None:
    """The file that an address names; None: in memory."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme != "sqlite":
        if re.match(r"[a-z][a-z0-9+]+:", url):
            raise StoreError(f"the store '{scheme}:' is not supported; expected sqlite:PATH or postgresql://HOST/NAME.")
        rest = url
    if rest == IN_MEMORY:
        return None
    rest = rest.removeprefix("//") if rest.startswith("///") else rest
    if not rest or rest.startswith("//"):
        raise StoreError(f"'{url}' has no path; expected sqlite:PATH, as in sqlite:/var/lib/adlro/adlro.db.")
    return Path(rest).expanduser()


@final
class Store:
    """The memory (service.Memory). One thread writes; reading is for all of them.

    `notes` tells what happened to the file, each once: the daemon makes alarms of them.
    """

    def __init__(self, connect: Open, path: Path | None, keep: Keep, clock: Callable[[], float]) -> None:
        self._connect, self._path, self._keep, self._clock = connect, path, keep, clock
        self.notes: list[str] = []
        self._seen: dict[str, tuple[float, str]] = {}
        self._ended: dict[str, float | None] = {}
        self._owed: deque[tuple[str, Sequence[tuple[Any, ...]]]] = deque(maxlen=MOST_OWED)
        self._point_s: float | None = None  # the moment of the latest point, by the cluster's clock
        self._open()
        with suppress(StoreError):  # on a full disk we can read at least
            self._fill_in()
            self._prune()

    @property
    def path(self) -> Path | None:
        """The file it is in; None if it is in memory or on a server."""
        return self._path

    def close(self) -> None:
        """Let go of the database."""
        self._reader.close()
        self._writer.close()

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._path is not None:
            prepare_file(self._path)
        try:
            self._begin()
        except BrokenError:
            self._set_aside()
            self._begin()

    def _begin(self) -> None:
        self._writer = self._connect(True)
        try:
            migrate(self._writer)
            self._reader = self._connect(False)
            self._numbers = {
                table: int(self._writer.rows(f"SELECT coalesce(max(number), 0) FROM {table}")[0][0])
                for table in ("decisions", "ended", "ticks", "alarms", "points")
            }
        except BaseException:
            self._writer.close()
            raise
        self._turns = 0
        self._broken: BrokenError | None = None

    def _set_aside(self) -> None:
        """Keep the broken file under another name; the next opening makes an empty one."""
        if self._path is None:
            raise StoreError("the store in memory is damaged.")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        aside = set_aside(self._path, stamp)
        prepare_file(self._path)
        self.notes.append(f"the store {self._path} was damaged: it is kept as {aside.name}, and begun anew.")

    def _rebuild(self, error: BrokenError) -> StoreError:
        """Begin anew after a file broke under us. What was just written is lost, but for the submit times."""
        self._reader.close()
        self._writer.close()
        self._set_aside()
        self._begin()
        self._ended.clear()
        seen, self._seen = self._seen, {}
        self._note([(id, submit_s, owner) for id, (submit_s, owner) in seen.items()])
        return StoreError(f"{error} {self.notes[-1]}")

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of the writer. A file that turns out to be broken is begun anew, and this writing failed."""
        try:
            if self._broken is not None:
                raise self._broken
            with self._writer.transaction():
                yield self._writer
        except BrokenError as error:
            raise self._rebuild(error) from error

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def first_seen(self, jobs: Sequence[LiveJob]) -> Mapping[str, float]:
        """Note jobs that are new; by id the submit time under which each was first noted.

        A number that another user had before is a new job: clusters begin again at 1 some day.
        """
        unknown = [job for job in jobs if (known := self._seen.get(job.id)) is None or known[1] != job.job.user]
        if unknown:
            self._look_up([job.id for job in unknown])
            new = [
                (job.id, job.job.submit_s, job.job.user)
                for job in unknown
                if (known := self._seen.get(job.id)) is None or known[1] != job.job.user
            ]
            if new:
                self._note(new)
        found = {job.id: self._seen[job.id][0] for job in jobs}
        if len(self._seen) > 2 * len(found) + 10_000:
            self._seen = {id: self._seen[id] for id in found}
        return found

    def _look_up(self, ids: Sequence[str]) -> None:
        """Take submit times that were noted in a life before into the memory of this one."""
        for some in chunks(ids):
            rows = self._read(f"SELECT id, submit_s, owner FROM seen WHERE id IN ({marks(some)})", some)
            self._seen.update({id: (submit_s, owner) for id, submit_s, owner in rows})

    def _note(self, new: Sequence[tuple[str, float, str]]) -> None:
        now = self._clock()
        with self._writing() as writer:
            writer.many(
                "INSERT INTO seen (id, submit_s, owner, noted_s) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "submit_s = excluded.submit_s, owner = excluded.owner, noted_s = excluded.noted_s",
                [(id, submit_s, readable(owner), now) for id, submit_s, owner in new],
            )
        self._seen.update({id: (submit_s, owner) for id, submit_s, owner in new})

    def ended(self, jobs: Sequence[LiveJob]) -> None:
        """Write down jobs that ended, once each; one that ran and ended again replaces what was known of it."""
        new = [job for job in jobs if job.id not in self._ended or self._ended[job.id] != job.ended_s]
        if not new:
            return
        now = self._clock()
        numbered = list(self._numbered("ended", new))
        columns = ("number", "ended_s", "noted_s", "body", "owner", "queue", "state", "gpu_s", "waited_s", "ran_s")
        self._write(
            f"INSERT INTO ended (id, {', '.join(columns)}) VALUES (?, {marks(columns)}) "
            f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in columns)} "
            "WHERE excluded.ended_s > ended.ended_s",
            [
                (job.id, number, ended_at(job, now), now, json_of(job), *map(storable, figures_of(job)))
                for number, job in numbered
            ],
        )
        # Rows whose number is in `ended` no more, or never came there, are passed over and forgotten later.
        self._write(
            INSERT_RAN_ON,
            [
                (number, readable(node), ended_at(job, now), gpu_s)
                for number, job in numbered
                for node, gpu_s in nodes_of_job(job)
            ],
        )
        if len(self._ended) > 2 * len(jobs) + 10_000:
            self._ended = {}
        self._ended.update({job.id: job.ended_s for job in jobs})

    def history(self, limit: int) -> Sequence[LiveJob]:
        """The latest jobs that ended, the oldest first."""
        rows = self._read("SELECT body FROM ended ORDER BY ended_s DESC, number DESC LIMIT ?", [limit])
        return records_of_rows(LiveJob, reversed(rows))

    def job(self, id: str) -> LiveJob | None:
        """A job that ended, if it is remembered."""
        found = records_of_rows(LiveJob, self._read("SELECT body FROM ended WHERE id = ?", [readable(id)]))
        return found[0] if found else None

    def past(self, asked: HistoryQuery, before_s: float | None = None, limit: int = 100) -> Sequence[LiveJob]:
        """Jobs that ended before a moment (None: now), the latest first."""
        tables, conditions, values = where(asked)
        if before_s is not None:
            conditions.append("e.ended_s < ?")
            values.append(before_s)
        sql = f"SELECT e.body FROM {tables} WHERE {' AND '.join(conditions) or '1 = 1'} "
        sql += "ORDER BY e.ended_s DESC, e.number DESC LIMIT ?"
        return records_of_rows(LiveJob, self._read(sql, [*map(storable, values), max(limit, 0)]))

    def usage(self, asked: HistoryQuery, since_s: float, until_s: float, step_s: float) -> Usage:
        """What jobs that ended between two moments used, in total and in stretches of `step_s`."""
        tables, conditions, values = where(asked)
        conditions += ["e.ended_s >= ?", "e.ended_s <= ?", "e.owner IS NOT NULL"]
        gpu_s = "r.gpu_s" if asked.node else "e.gpu_s"
        sql = f"SELECT e.ended_s, {gpu_s}, e.waited_s, e.ran_s, e.state FROM {tables} WHERE {' AND '.join(conditions)}"
        rows = self._read(sql, [*map(storable, values), since_s, until_s])
        return summed(rows, since_s, until_s, step_s)

    def _fill_in(self) -> None:
        """Fill in what an older version did not write down about jobs that ended."""
        sql = "SELECT number, ended_s, body FROM ended WHERE owner IS NULL AND number > ? ORDER BY number LIMIT ?"
        last = -1
        while rows := self._writer.rows(sql, [last, PRUNED_AT_ONCE]):
            last = rows[-1][0]
            known = [(row, job) for row in rows for job in records_of_rows(LiveJob, [(row[2],)])]
            with self._writing() as writer:
                writer.many(FILL_IN, [(*map(storable, figures_of(job)), row[0]) for row, job in known])
                writer.many(
                    INSERT_RAN_ON,
                    [
                        (row[0], readable(node), row[1], gpu_s)
                        for row, job in known
                        for node, gpu_s in nodes_of_job(job)
                    ],
                )

    # ---- the measured history ----------------------------------------------------------------------------------------

    def keep_points(self, points: Sequence[Compared]) -> None:
        """Write down points of the measured history."""
        now = self._clock()
        self._write(
            INSERT_POINTS,
            [
                (number, now, each.time_s, *(finite(getattr(each, name)) for name in FIGURES))
                for number, each in self._numbered("points", [each for each in points if isfinite(each.utilisation)])
            ],
        )
        if points:
            self._point_s = points[-1].time_s

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        """The measured history between two moments, the oldest first; the older the coarser."""
        return [Compared(*row) for row in reversed(self._read(SELECT_POINTS, [since_s, until_s]))]

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def intend(self, decisions: Sequence[Decision]) -> None:
        """Write decisions down before they are acted on."""
        now = self._clock()
        self._write(
            # An id that comes again, after a clock was set back, is the new decision and not yet answered.
            "INSERT INTO decisions (number, id, noted_s, job, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET number = excluded.number, noted_s = excluded.noted_s, job = excluded.job, body = excluded.body, "
            "done = NULL, said = NULL",
            [
                (number, decision.id, now, decision.job, json_of(decision))
                for number, decision in self._numbered("decisions", decisions)
            ],
        )

    def answered(self, decisions: Sequence[Decision], answers: Sequence[Answer]) -> None:
        """Write down what was said to them: an answer for each, in their order."""
        if len(decisions) != len(answers):
            raise StoreError(f"{len(answers)} answers to {len(decisions)} decisions; expected one for each.")
        self._write(
            "UPDATE decisions SET done = ?, said = ? WHERE id = ?",
            [
                (int(answer.done), readable(answer.said), decision.id)
                for decision, answer in zip(decisions, answers, strict=True)
            ],
        )

    def unanswered(self) -> Sequence[Decision]:
        """Decisions that were intended and have no answer, the oldest first."""
        return records_of_rows(Decision, self._read("SELECT body FROM decisions WHERE done IS NULL ORDER BY number"))

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        """Decisions, the latest first; `before` is the id of a decision. None, if there is no such decision."""
        conditions, values = ["1 = 1"], []
        if job:
            conditions.append("job = ?")
            values.append(readable(job))
        if before:
            conditions.append("number < (SELECT number FROM decisions WHERE id = ?)")
            values.append(readable(before))
        sql = f"SELECT body FROM decisions WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return records_of_rows(Decision, self._read(sql, [*values, max(limit, 0)]))

    def answer_to(self, decision: str) -> Answer | None:
        """What was said to a decision; None: nothing, or there is no such decision."""
        sql = "SELECT job, done, said FROM decisions WHERE id = ? AND done IS NOT NULL"
        rows = self._read(sql, [readable(decision)])
        return Answer(rows[0][0], bool(rows[0][1]), rows[0][2]) if rows else None

    # ---- turns and alarms --------------------------------------------------------------------------------------------

    def ticked(self, tick: Tick) -> None:
        """Write down a turn with its alarms; its decisions are written down already."""
        bare = replace(tick, decisions=(), answers=(), alarms=())
        self.alarmed(tick.alarms)
        self._write(
            "INSERT INTO ticks (number, noted_s, body) VALUES (?, ?, ?)",
            [(number, self._clock(), json_of(each)) for number, each in self._numbered("ticks", [bare])],
        )
        self._turns += 1
        if self._turns % PRUNE_EVERY == 0:
            self._prune()

    def alarmed(self, alarms: Sequence[Alarm]) -> None:
        """Write down alarms."""
        now = self._clock()
        self._write(
            "INSERT INTO alarms (number, noted_s, kind, body) VALUES (?, ?, ?, ?)",
            [(number, now, alarm.kind, json_of(alarm)) for number, alarm in self._numbered("alarms", alarms)],
        )

    def ticks(self, limit: int) -> Sequence[Tick]:
        """The latest turns, the latest last, without their decisions and alarms."""
        return records_of_rows(
            Tick, reversed(self._read("SELECT body FROM ticks ORDER BY number DESC LIMIT ?", [limit]))
        )

    def alarms(self, limit: int) -> Sequence[Alarm]:
        """The latest alarms, the latest last."""
        return records_of_rows(
            Alarm, reversed(self._read("SELECT body FROM alarms ORDER BY number DESC LIMIT ?", [limit]))
        )

    # ---- small things ------------------------------------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """A small value by its name."""
        rows = self._read("SELECT value FROM kept WHERE key = ?", [key])
        return rows[0][0] if rows else None

    def put(self, key: str, value: str) -> None:
        """Keep a small value."""
        with self._writing() as writer:
            writer.rows(
                "INSERT INTO kept (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [key, readable(value)],
            )

    # ---- within ------------------------------------------------------------------------------------------------------

    def _numbered(self, table: str, new: Sequence[RecordT]) -> Iterator[tuple[int, RecordT]]:
        """New records with the numbers that follow in their table."""
        first = self._numbers[table] + 1
        self._numbers[table] += len(new)
        return enumerate(new, first)

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for each row, after those that are owed from when the database could not be written."""
        if rows:
            self._owed.append((sql, rows))
        if not self._owed:
            return
        try:
            with self._writing() as writer:
                for statement, values in self._owed:
                    writer.many(statement, values)
        except AwayError:
            raise
        except StoreError:
            self._owed.clear()  # one of them may be what is wrong
            raise
        self._owed.clear()

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What the database answers. A file that is found broken here is begun anew by the next one who writes."""
        try:
            return self._reader.rows(sql, values)
        except BrokenError as error:
            self._broken = error
            raise

    def _prune(self) -> None:
        """Forget what is too much, and some of what is old."""
        oldest = self._clock() - self._keep.days * DAY_S
        most = {
            "decisions": self._keep.decisions,
            "ended": self._keep.jobs,
            "ticks": self._keep.ticks,
            "alarms": self._keep.alarms,
            "points": self._keep.points,
        }
        with self._writing() as writer:
            for table, rows in most.items():
                writer.rows(f"DELETE FROM {table} WHERE number <= ?", [self._numbers[table] - rows])
                writer.rows(
                    f"DELETE FROM {table} WHERE number IN "
                    f"(SELECT number FROM {table} WHERE noted_s < ? ORDER BY number LIMIT ?)",
                    [oldest, PRUNED_AT_ONCE],
                )
            writer.rows("DELETE FROM ran_on WHERE number NOT IN (SELECT number FROM ended)")
            if self._point_s is not None:
                for age_s, span_s in THINNING:
                    before_s = (self._point_s - age_s) // span_s * span_s  # only whole stretches
                    kept, gone = thinned(writer.rows(TO_THIN, [span_s, before_s]), span_s)
                    writer.many(THIN, kept)
                    writer.many("DELETE FROM points WHERE number = ?", gone)
            if self._seen:  # before the first look at the cluster nobody knows which of them still wait
                sql = "SELECT id FROM seen WHERE noted_s < ? ORDER BY noted_s LIMIT ?"
                old = [row for row in writer.rows(sql, [oldest, PRUNED_AT_ONCE]) if row[0] not in self._seen]
                writer.many("DELETE FROM seen WHERE id = ?", old)
        self._writer.shrink()
