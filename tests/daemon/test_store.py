"""What the daemon remembers: written once, read back the same, kept small, and never in the way."""

import math
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.daemon.postgres import cut_all, new_database, postgres_server
from tests.live.live_records import decision, ended, job, tick

from adlro.core.errors import StoreError
from adlro.core.ports import Answer, LiveJob, Part
from adlro.daemon import store as store_module
from adlro.daemon import store_rows
from adlro.daemon.keep import Keep
from adlro.daemon.store import Store, open_store, sqlite_path
from adlro.daemon.store_rows import Connection, json_of, migrate, migrations, statements
from adlro.daemon.store_sqlite import SqliteConnection
from adlro.live.service import Alarm, Compared, HistoryQuery


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:{tmp_path}/adlro.db"
        case "memory":
            return "sqlite::memory:"
    return new_database(request.getfixturevalue("server"))


@pytest.fixture(params=["sqlite", "postgresql"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that outlives its process."""
    return (
        f"sqlite:{tmp_path}/adlro.db" if request.param == "sqlite" else new_database(request.getfixturevalue("server"))
    )


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "adlro.db"


# ---- records -----------------------------------------------------------------------------------------------------


def test_a_job_keeps_the_submit_time_under_which_it_was_first_noted(store: Store) -> None:
    assert store.first_seen([job("1", submit_s=100.0), job("2", submit_s=150.0)]) == {"1": 100.0, "2": 150.0}
    assert store.first_seen([job("1", submit_s=900.0), job("3", submit_s=7.0)]) == {"1": 100.0, "3": 7.0}


def test_a_number_that_another_user_has_now_is_a_new_job(store: Store) -> None:
    store.first_seen([job("1", user="ada", submit_s=100.0)])
    assert store.first_seen([job("1", user="bob", submit_s=900.0)]) == {"1": 900.0}
    assert store.first_seen([job("1", user="bob", submit_s=950.0)]) == {"1": 900.0}


def test_a_decision_comes_back_as_it_was_written(store: Store) -> None:
    store.intend([decision("a")])
    assert store.decisions() == [decision("a")]


def test_a_decision_without_an_answer_is_found_after_a_crash_and_one_with_it_is_not(store: Store) -> None:
    store.intend([decision("a", "1"), decision("b", "2")])
    store.answered([decision("b", "2")], [Answer("2", False, "the node is gone")])
    assert [d.id for d in store.unanswered()] == ["a"]
    assert store.answer_to("b") == Answer("2", False, "the node is gone")
    assert store.answer_to("a") is None


def test_a_decision_that_is_intended_twice_is_there_once_and_waits_for_its_answer_again(store: Store) -> None:
    store.intend([decision("a", "1")])
    store.answered([decision("a", "1")], [Answer("1", True)])
    store.intend([decision("a", "2"), decision("b")])
    assert [(d.id, d.job) for d in store.decisions()] == [("b", "1"), ("a", "2")]
    assert [d.id for d in store.unanswered()] == ["a", "b"]


def test_decisions_come_latest_first_by_pages_and_by_job(store: Store) -> None:
    store.intend([decision(f"d{n}", of=str(n % 2)) for n in range(10)])
    assert [d.id for d in store.decisions(limit=3)] == ["d9", "d8", "d7"]
    assert [d.id for d in store.decisions(before="d7", limit=2)] == ["d6", "d5"]
    assert [d.id for d in store.decisions(job="1", before="d5")] == ["d3", "d1"]
    assert store.decisions(job="99") == []
    assert store.decisions(before="never made") == []


def test_answers_that_do_not_fit_the_decisions_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="0 answers to 1 decisions"):
        store.answered([decision("a")], [])


def test_a_job_that_ended_is_written_down_once_and_the_history_has_the_oldest_first(store: Store) -> None:
    store.ended([ended("2", 20.0), ended("1", 0.0)])
    store.ended([ended("2", 20.0), ended("1", 0.0), ended("3", 30.0)])
    assert [each.id for each in store.history(10)] == ["1", "2", "3"]
    assert [each.id for each in store.history(2)] == ["2", "3"]
    assert store.job("2") == ended("2", 20.0)
    assert store.job("77") is None


def test_a_job_that_ran_again_is_remembered_by_its_last_end(store: Store) -> None:
    store.ended([ended("1", 10.0)])
    store.ended([replace(ended("1", 99.0), starts=2)])
    store.ended([ended("1", 10.0)])
    assert store.history(10) == [replace(ended("1", 99.0), starts=2)]


def test_a_job_whose_end_has_no_time_is_written_down_once_too(store: Store) -> None:
    gone = replace(ended("1", 10.0), ended_s=None)
    store.ended([gone])
    store.ended([gone])
    assert store.history(10) == [gone]


def test_numbers_that_are_none_and_names_that_are_no_text_come_back(store: Store) -> None:
    odd = replace(decision("a"), runtime_s=math.inf, reason="\0 — ‮ é")
    store.intend([odd])
    back = store.decisions()[0]
    assert back.runtime_s == math.inf
    assert back.reason.endswith("— ‮ é")
    store.ended([ended("s", 5.0, user="\udcff")])
    assert store.job("s") is not None
    assert store.first_seen([job("n", user="a\0b", submit_s=4.0)]) == {"n": 4.0}


def test_a_text_is_never_part_of_a_statement(store: Store) -> None:
    evil = "'; DROP TABLE decisions; --"
    store.intend([decision(evil, of=evil)])
    assert [d.id for d in store.decisions(job=evil)] == [evil]


def test_turns_and_their_alarms_are_written_down(store: Store) -> None:
    alarm = Alarm(300.0, "stale", "the snapshot is old")
    store.ticked(tick(1, alarms=(alarm,)))
    store.ticked(tick(2, alarms=(replace(alarm, text="again"),)))
    assert [a.text for a in store.alarms(10)] == ["the snapshot is old", "again"]
    assert [a.text for a in store.alarms(1)] == ["again"]
    assert [t.number for t in store.ticks(10)] == [1, 2]


def test_small_values_are_kept(store: Store) -> None:
    assert store.get("policy") is None
    store.put("policy", "sjf")
    store.put("policy", "fcfs")
    assert store.get("policy") == "fcfs"


def test_it_is_all_there_after_opening_it_again(lasting: str) -> None:
    first = open_store(lasting)
    first.first_seen([job("1", submit_s=100.0)])
    first.intend([decision("a")])
    first.ended([ended("1", 10.0)])
    first.ticked(tick(1))
    first.close()
    second = open_store(lasting)
    assert second.first_seen([job("1", submit_s=999.0)]) == {"1": 100.0}
    second.intend([decision("b")])
    second.ticked(tick(2))
    second.ended([ended("1", 10.0), ended("2", 20.0)])
    assert [d.id for d in second.decisions()] == ["b", "a"]
    assert [each.id for each in second.history(5)] == ["1", "2"]
    assert second.notes == []
    second.close()


def test_a_record_that_cannot_be_read_any_more_is_left_out(store: Store) -> None:
    store.intend([decision("a"), decision("b")])
    store._writer.rows("UPDATE decisions SET body = ? WHERE id = ?", ['{"id": 5}', "a"])
    assert [d.id for d in store.decisions()] == ["b"]


def test_other_threads_read_while_one_writes(store: Store) -> None:
    problems: list[Exception] = []

    def read() -> None:
        try:
            for _ in range(30):
                store.decisions(limit=5)
                store.alarms(5)
        except Exception as problem:
            problems.append(problem)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(30):
        store.intend([decision(f"d{number}")])
        store.ticked(tick(number))
    for reader in readers:
        reader.join()
    assert problems == []


# ---- bounds ------------------------------------------------------------------------------------------------------


def test_what_is_too_much_is_forgotten_the_oldest_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 10)
    store = open_store(url, Keep(decisions=5, jobs=4, ticks=3, alarms=2), clock=lambda: 1000.0)
    for number in range(20):
        store.intend([decision(f"d{number}")])
        store.ended([ended(str(number), float(number + 10))])
        store.ticked(tick(number, alarms=(Alarm(300.0, "x", str(number)),)))
    assert [d.id for d in store.decisions()] == ["d19", "d18", "d17", "d16", "d15"]
    assert [each.id for each in store.history(10)] == ["16", "17", "18", "19"]
    assert [t.number for t in store.ticks(10)] == [17, 18, 19]
    assert [a.text for a in store.alarms(10)] == ["18", "19"]
    store.close()


def test_what_is_old_is_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    now = 1000.0
    store = open_store(url, Keep(days=1), clock=lambda: now)
    store.first_seen([job("1"), job("2")])
    store.intend([decision("old", time_s=1000.0)])
    now += 2 * 86400
    store.intend([decision("new", time_s=now)])
    store.ticked(tick(1, now))
    assert [d.id for d in store.decisions()] == ["new"]
    assert store.first_seen([job("1", submit_s=500.0)]) == {"1": 100.0}, "it waits still, however long"
    store.close()


def test_a_job_that_waits_longer_than_memory_lasts_keeps_its_submit_time_over_a_restart(file: Path) -> None:
    first = open_store(str(file), Keep(days=1), clock=lambda: 1000.0)
    first.first_seen([job("1", submit_s=100.0)])
    first.close()
    second = open_store(str(file), Keep(days=1), clock=lambda: 1000.0 + 3 * 86400)
    assert second.first_seen([job("1", submit_s=5000.0)]) == {"1": 100.0}
    second.close()


def test_a_clock_that_jumps_ahead_for_a_moment_does_not_empty_the_memory(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    monkeypatch.setattr(store_module, "PRUNED_AT_ONCE", 10)
    now = 1000.0
    store = open_store(url, clock=lambda: now)
    store.intend([decision(f"d{number}", time_s=now) for number in range(50)])
    now += 1000 * 86400
    store.ticked(tick(1, now))
    now = 1001.0
    store.ticked(tick(2, now))
    assert len(store.decisions()) == 40
    store.close()


def test_the_file_does_not_grow_without_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 20)
    store = open_store(str(file), Keep(decisions=200, jobs=200, ticks=200, alarms=200))
    sizes = []
    for number in range(600):
        store.intend([decision(f"{number}-{n}") for n in range(5)])
        store.ticked(tick(number))
        if number % 200 == 199:
            sizes.append(int(store._writer.rows("PRAGMA page_count")[0][0]))
    store.close()
    assert sizes[-1] <= 1.1 * sizes[0]


# ---- the measured history, and what jobs of the past used -----------------------------------------------------------

DAY_S = 86_400.0


def minutes(days: float, until_s: float) -> list[Compared]:
    """A point for each minute of so many days."""
    count = round(days * 1440)
    return [Compared(until_s - 60 * (count - n), n % 2, None if n % 3 else 90.0, None, n, 4) for n in range(count)]


def test_points_of_the_history_survive_opening_the_store_again(lasting: str) -> None:
    given = [Compared(100.0, 0.5, 3.0, 4.0, 7, 8), Compared(160.0, 0.75, None, None)]
    store = open_store(lasting)
    store.keep_points(given)
    store.close()
    store = open_store(lasting)
    assert store.points(0.0, 1e9) == given
    assert store.points(101.0, 1e9) == given[1:]
    assert store.points(0.0, 150.0) == given[:1]
    store.close()


def test_a_point_without_numbers_does_not_harm_the_others(store: Store) -> None:
    store.keep_points([Compared(1.0, math.nan, 1.0, 1.0), Compared(2.0, 0.5, math.inf, math.nan)])
    assert store.points(0.0, 9.0) == [Compared(2.0, 0.5, None, None)]


def test_the_history_gets_coarser_with_age_and_keeps_its_means(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    now = 1_800_000_000.0
    store = open_store(url)
    given = minutes(20, now)
    store.keep_points(given)
    for number in range(20):
        store.ticked(tick(number))
    days = [store.points(now - (day + 1) * DAY_S, now - day * DAY_S - 1) for day in range(20)]
    assert len(days[0]) == 1440
    assert {len(day) for day in days[2:13]} == {144}
    assert {len(day) for day in days[15:19]} == {24}
    assert all(abs(point.utilisation - 0.5) < 0.02 for day in days[2:19] for point in day)
    assert all(point.jct_s == 90.0 and point.fallback_jct_s is None for day in days[2:19] for point in day)
    whole = store.points(0.0, now)
    assert [point.time_s for point in whole] == sorted(point.time_s for point in whole)
    assert sum(point.running == 4 for point in whole) == len(whole)
    assert whole[0].waiting == pytest.approx(29.5)
    store.close()


def test_history_older_than_memory_lasts_is_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    clock = [1000.0]
    store = open_store(url, Keep(days=1.0), clock=lambda: clock[0])
    store.keep_points([Compared(1000.0, 0.5, None, None)])
    clock[0] += 2 * DAY_S
    store.keep_points([Compared(1000.0 + 2 * DAY_S, 0.7, None, None)])
    store.ticked(tick(1))
    assert [point.utilisation for point in store.points(0.0, 1e9)] == [0.7]
    store.close()


def ran(id: str, user: str, ended_s: float, nodes: tuple[str, ...], partition: str = "gpu") -> LiveJob:
    parts = tuple(Part(node, "v100", 2, ()) for node in nodes)
    return replace(ended(id, ended_s, user), parts=parts, partition=partition)


def test_the_past_is_found_by_user_partition_and_node_the_latest_first(store: Store) -> None:
    store.ended([
        ran("1", "ada", 200.0, ("n0",)), ran("2", "bob", 300.0, ("n0", "n1"), "debug"), ran("3", "ada", 400.0, ("n1",)),
    ])  # fmt: skip
    found = {
        asked: [job.id for job in store.past(asked)]
        for asked in (
            HistoryQuery(),
            HistoryQuery(user="ada"),
            HistoryQuery(partition="debug"),
            HistoryQuery(node="n0"),
            HistoryQuery(user="ada", node="n0"),
        )
    }
    assert list(found.values()) == [["3", "2", "1"], ["3", "1"], ["2"], ["2", "1"], ["1"]]
    assert [job.id for job in store.past(HistoryQuery(), before_s=400.0, limit=1)] == ["2"]
    assert store.past(HistoryQuery(user="'; DROP TABLE ended; --")) == []


def test_a_job_that_ran_again_elsewhere_is_found_there_and_no_more_where_it_was(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    store = open_store(url)
    store.ended([ran("1", "ada", 200.0, ("n0",))])
    store.ended([ran("1", "ada", 300.0, ("n1",))])
    assert store.past(HistoryQuery(node="n0")) == []
    assert [job.ended_s for job in store.past(HistoryQuery(node="n1"))] == [300.0]
    store.ticked(tick(1))
    assert store._reader.rows("SELECT node FROM ran_on") == [("n1",)]
    store.close()


def test_usage_counts_gpu_time_and_waiting(store: Store) -> None:
    store.ended(
        [ran("1", "ada", 200.0, ("n0",)), ran("2", "ada", 300.0, ("n0", "n1")), ran("3", "bob", 310.0, ("n1",))]
    )
    ada = store.usage(HistoryQuery(user="ada"), 100.0, 400.0, 100.0)
    assert (ada.jobs, ada.gpu_s, ada.failed) == (2, 10 * 2 + 10 * 4, 0)
    assert ada.waited_s == pytest.approx((90 + 190) / 2)
    assert ada.ran_s == 10.0
    assert [(each.time_s, each.jobs, each.gpu_s) for each in ada.spent] == [
        (100.0, 0, 0.0), (200.0, 1, 20.0), (300.0, 1, 40.0)
    ]  # fmt: skip
    assert store.usage(HistoryQuery(node="n1"), 100.0, 400.0, 300.0).gpu_s == 10 * 2 + 10 * 2
    nobody = store.usage(HistoryQuery(user="carl"), 100.0, 400.0, 100.0)
    assert (nobody.jobs, nobody.waited_s, nobody.waited_p90_s) == (0, None, None)


def test_jobs_that_an_older_version_wrote_are_found_by_user_and_node_too(lasting: str) -> None:
    old = open_connection(lasting)
    migrate(old, last=2)
    job = ran("1", "ada", 200.0, ("n0",))
    row = (1, job.id, job.ended_s, 200.0, json_of(job))
    old.rows("INSERT INTO ended (number, id, ended_s, noted_s, body) VALUES (?, ?, ?, ?, ?)", row)
    old.rows("INSERT INTO ended (number, id, ended_s, noted_s, body) VALUES (2, 'x', 1, 1, 'no job')")
    old.close()
    store = open_store(lasting, clock=lambda: 300.0)
    assert [each.id for each in store.past(HistoryQuery(user="ada", node="n0"))] == ["1"]
    assert store.usage(HistoryQuery(user="ada"), 0.0, 300.0, 300.0).gpu_s == 20.0
    store.close()


# ---- opening -----------------------------------------------------------------------------------------------------


def test_migrations_are_numbered_from_1_without_gaps() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def shape(connection: Connection) -> dict[str, list[str]]:
    """The tables with their columns."""
    is_sqlite = isinstance(connection, SqliteConnection)
    sql = "SELECT name FROM pragma_table_info(?)" if is_sqlite else (
        "SELECT column_name FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position"
    )  # fmt: skip
    return {table: [name for (name,) in connection.rows(sql, [table])] for table in sorted(connection.tables())}


@pytest.mark.parametrize("version", range(1, len(migrations()) + 1))
def test_a_store_of_every_older_version_is_brought_up(
    version: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for kind in ("sqlite", "postgresql"):
        urls = [
            f"sqlite:{tmp_path}/{name}.db" if kind == "sqlite" else new_database(request.getfixturevalue("server"))
            for name in ("old", "new")
        ]
        old = open_connection(urls[0])
        migrate(old, last=version)
        assert old.rows("SELECT version FROM schema_version") == [(version,)]
        old.rows("INSERT INTO kept (key, value) VALUES ('a', 'b')")
        old.close()
        stores = [open_store(each) for each in urls]
        assert stores[0].get("a") == "b"
        assert shape(stores[0]._writer) == shape(stores[1]._writer)
        for store in stores:
            store.close()


def open_connection(url: str) -> Connection:
    if url.startswith("sqlite"):
        return SqliteConnection(str(sqlite_path(url)), is_writer=True)
    from adlro.daemon.store_postgres import PostgresConnection

    return PostgresConnection(url, is_writer=True)


def test_a_migration_that_fails_leaves_the_store_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(str(file)).close()
    broken = (*migrations(), (len(migrations()) + 1, "CREATE TABLE extra (a TEXT); CREATE TABLE kept (b TEXT);"))
    monkeypatch.setattr(store_rows, "migrations", lambda: broken)
    with pytest.raises(StoreError, match="kept"):
        open_store(str(file))
    monkeypatch.undo()
    store = open_store(str(file))
    assert "extra" not in store._writer.tables()
    store.close()


def test_a_store_that_a_newer_program_wrote_is_refused_and_left_alone(lasting: str, tmp_path: Path) -> None:
    store = open_store(lasting)
    store._writer.rows("UPDATE schema_version SET version = 99")
    store.close()
    with pytest.raises(StoreError, match=r"written by a newer adlro \(version 99 .* knows 3\)"):
        open_store(lasting)
    assert not list(tmp_path.glob("*corrupt*"))


def test_statements_are_split_and_comments_left_out() -> None:
    assert statements("-- a; b\nCREATE TABLE a (\n  b TEXT\n);\n\nDROP TABLE c;\n") == [
        "CREATE TABLE a (\n  b TEXT\n)",
        "DROP TABLE c",
    ]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:/var/a.db", "/var/a.db"),
        ("sqlite:///var/a.db", "/var/a.db"),
        ("/var/a.db", "/var/a.db"),
        ("a.db", "a.db"),
        ("sqlite:a.db", "a.db"),
    ],
)
def test_an_address_names_a_file(url: str, path: str) -> None:
    assert str(sqlite_path(url)) == path


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite:", "sqlite://", "sqlite://host/a.db"])
def test_an_address_of_another_kind_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(StoreError, match="expected sqlite:PATH"):
        open_store(url)


def test_a_server_that_is_not_there_is_told_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="cannot connect") as told:
        open_store("postgresql://adlro:hunter22@127.0.0.1:1/adlro")
    assert "hunter22" not in str(told.value)


def test_only_its_owner_can_read_the_file(file: Path) -> None:
    store = open_store(f"sqlite:{file}")
    store.put("a", "b")
    for part in file.parent.glob("adlro.db*"):
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    store.close()


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"\[store\] url"):
        open_store(f"{tmp_path}/file/adlro.db")


# ---- what can happen to it ---------------------------------------------------------------------------------------


def corrupt(file: Path) -> None:
    """Write over the middle of the file."""
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(100)
        raw.write(os.urandom(size - 100))


def test_a_damaged_file_is_kept_aside_and_an_empty_one_takes_its_place(file: Path) -> None:
    first = open_store(str(file))
    first.intend([decision(f"d{n}") for n in range(100)])
    first.close()
    corrupt(file)
    damaged = file.read_bytes()
    store = open_store(str(file), clock=lambda: 1_800_000_000.0)
    assert store.decisions() == []
    store.intend([decision("new")])
    aside = file.with_name("adlro.db.corrupt-20270115T080000Z")
    assert aside.read_bytes() == damaged
    assert store.notes == [f"the store {file} was damaged: it is kept as {aside.name}, and begun anew."]
    store.close()


def test_a_file_that_is_no_database_is_kept_aside_too_and_two_in_one_second_both(file: Path) -> None:
    for text in ("this is not a database, this is a long letter " * 20, "nor is this one " * 50):
        file.write_text(text)
        open_store(str(file), clock=lambda: 0.0).close()
    assert len(list(file.parent.glob("*.corrupt-*"))) == 2


def test_a_file_that_breaks_while_it_is_open_is_begun_anew_and_submit_times_survive(file: Path) -> None:
    store = open_store(str(file))
    store.first_seen([job("1", submit_s=100.0)])
    store.intend([decision(f"d{n}") for n in range(100)])
    store._writer.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    corrupt(file)
    for connection in (store._writer, store._reader):
        connection.rows("PRAGMA cache_size = 0")  # else they may answer by what they read before
    store._writer._connection.execute("PRAGMA shrink_memory")  # type: ignore[attr-defined]
    failed = 0
    for attempt in range(3):
        try:
            store.intend([decision(f"after{attempt}")])
            store.decisions()
        except StoreError:
            failed += 1
    assert failed <= 2
    assert len(store.notes) == 1
    store.intend([decision("at last")])
    assert store.decisions()[0].id == "at last"
    assert store.first_seen([job("1", submit_s=999.0)]) == {"1": 100.0}
    store.close()
    again = open_store(str(file))
    assert again.first_seen([job("1", submit_s=999.0)]) == {"1": 100.0}
    again.close()


def test_a_full_disk_is_told_and_when_there_is_room_again_it_goes_on(file: Path) -> None:
    store = open_store(str(file))
    pages = int(store._writer.rows("PRAGMA page_count")[0][0])
    store._writer.rows(f"PRAGMA max_page_count = {pages + 2}")
    written = 0

    def fill() -> None:
        nonlocal written
        while True:
            store.intend([decision(f"a{written}"), decision(f"b{written}")])
            written += 1

    with pytest.raises(StoreError, match=r"the disk is full\. Free some space"):
        fill()
    assert len(store.decisions(limit=1000)) == 2 * written, "what failed is not half there"
    with pytest.raises(StoreError):
        store.ended([ended("1", 10.0)])
    store._writer.rows("PRAGMA max_page_count = 100000")
    store.intend([decision("room again")])
    assert [d.id for d in store.decisions(limit=3)] == ["room again", f"b{written}", f"a{written}"], "none is lost"
    assert [each.id for each in store.history(5)] == ["1"]
    store.close()


def test_another_who_writes_is_waited_for(file: Path) -> None:
    store = open_store(str(file))
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    release.start()
    store.put("a", "b")
    release.join()
    other.close()
    store.close()


def test_a_lost_connection_to_the_server_comes_back(server: str) -> None:
    url = new_database(server)
    store = open_store(url)
    store.put("a", "b")
    cut_all(server)
    with pytest.raises(StoreError):
        store.put("a", "c")
    store.put("a", "d")
    with pytest.raises(StoreError):
        store.get("a")
    assert store.get("a") == "d"
    store.close()
