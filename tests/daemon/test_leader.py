"""Two daemons never lead at once, and the next one leads as soon as the first is gone, however it went."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.daemon.daemons import until
from tests.daemon.postgres import new_database, postgres_server

from adlro.core.errors import StoreError
from adlro.core.ports import Leadership
from adlro.daemon.leader import Alone, FileLock, PostgresLock, leadership_of

Lock = Callable[[], Leadership]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["file", "postgresql"])
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lock]:
    made: list[Leadership] = []
    url = new_database(request.getfixturevalue("server")) if request.param == "postgresql" else ""

    def make() -> Leadership:
        made.append(PostgresLock(url) if url else FileLock(tmp_path / "lock"))
        return made[-1]

    yield make
    for each in made:
        each.release()


def test_only_one_of_two_leads(lock: Lock) -> None:
    first, second = lock(), lock()
    assert first.take()
    assert not second.take()
    assert first.holds()
    assert not second.holds()
    assert first.take(), "who leads still leads"


def test_the_second_leads_as_soon_as_the_first_lets_go(lock: Lock) -> None:
    first, second = lock(), lock()
    first.take()
    first.release()
    assert not first.holds()
    assert second.take()
    assert not first.take()


def test_a_standby_can_say_who_leads(lock: Lock) -> None:
    first, second = lock(), lock()
    first.take()
    second.take()
    assert second.holder().startswith("process ")


def test_a_file_that_was_deleted_is_no_lock_any_more(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    first.take()
    (tmp_path / "lock").unlink()
    assert second.take()
    assert not first.holds()
    assert not first.take()
    second.release()


def test_the_file_names_the_leader_and_stays_when_it_is_gone(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.take()
    assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
    lock.release()
    assert (tmp_path / "lock").exists()


def test_a_lock_that_cannot_be_opened_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"\[store\] lock"):
        FileLock(tmp_path / "file" / "lock").take()


def test_a_leader_whose_connection_is_cut_leads_no_more(server: str) -> None:
    import psycopg

    url = new_database(server)
    first, second = PostgresLock(url), PostgresLock(url)
    first.take()
    second.take()
    with psycopg.connect(server, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    until(second.take)
    assert not first.holds()
    assert not first.take()
    for each in (first, second):
        each.release()


def test_the_lock_of_a_process_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from adlro.daemon.leader import FileLock; "
        "lock = FileLock(Path(sys.argv[1])); print(lock.take(), flush=True); time.sleep(60)"
    )
    leader = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    try:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "True\n"
        standby = FileLock(tmp_path / "lock")
        assert not standby.take()
        leader.send_signal(signal.SIGKILL)
        leader.wait(timeout=60)
        assert standby.take()
        standby.release()
    finally:
        leader.kill()
        leader.communicate()


def test_the_lock_goes_with_the_store(tmp_path: Path) -> None:
    assert isinstance(leadership_of("postgresql://host/name", None), PostgresLock)
    assert isinstance(leadership_of("sqlite:/a.db", tmp_path / "lock"), FileLock)
    alone = leadership_of("sqlite::memory:", None)
    assert isinstance(alone, Alone)
    assert alone.take()
    assert alone.holds()
    assert alone.holder() == "this daemon"
    alone.release()
