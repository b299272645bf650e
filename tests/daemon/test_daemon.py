"""The daemon: turns, events, submissions, its config, its end, and who leads."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from tests.daemon.daemons import FLAGS, Made, a_job, made_daemon, new_parts, until
from tests.daemon.postgres import cut_all, new_database, postgres_server

from adlro.backends.slurm.orders import Handing, Slurm
from adlro.backends.slurm.ways import ClusterReader, KnownJob
from adlro.catalogue.clusters import load_cluster
from adlro.core.accounts import Account
from adlro.core.errors import AccountError, BackendError, CatalogueError, StoreError
from adlro.core.ports import Backend, JobState, Snapshot, Submission
from adlro.core.records import Job
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.fence import Fenced
from adlro.daemon.leader import Alone, FileLock, PostgresLock
from adlro.daemon.store import open_store
from adlro.live.news import KEPT_EVENTS
from adlro.live.service import Event, Service


def kinds(events: object) -> list[str]:
    assert isinstance(events, list)
    return [event.kind for event in events]


def after_now(daemon: Daemon) -> int:
    """The number of the latest event."""
    events = daemon.events(0, 0.0)
    return events[-1].number if events else 0


@contextmanager
def running(daemon: Daemon) -> Iterator[threading.Thread]:
    """The daemon in a thread of its own, until the end of the block."""
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield thread
    finally:
        daemon.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


# ---- turns and answers -------------------------------------------------------------------------------------------


def test_it_is_a_service() -> None:
    daemon, _ = made_daemon()
    service: Service = daemon
    assert service.is_ready() == (False, "the daemon is starting.")
    daemon.close()


def test_before_its_first_turn_it_says_that_it_is_not_ready() -> None:
    daemon, _ = made_daemon()
    with pytest.raises(BackendError, match="not ready: the daemon is starting"):
        daemon.state()
    daemon.close()


def test_a_job_that_is_handed_in_is_known_at_once_and_started_by_the_next_turn() -> None:
    daemon, made = made_daemon()
    daemon.tick()
    id = daemon.submit(Submission(a_job()))
    known = daemon.job(id)
    assert known is not None
    assert known.state is JobState.WAITING
    assert known.job.submit_s == made.backend.now_s
    daemon.tick()
    known = daemon.job(id)
    assert known is not None
    assert known.state is JobState.RUNNING
    assert [made.job for made in daemon.decisions()] == [id]
    daemon.close()


def test_a_job_that_ended_long_ago_is_found_in_the_memory() -> None:
    daemon, made = made_daemon()
    daemon.tick()
    id = daemon.submit(Submission(a_job()))
    daemon.tick()
    made.backend.wait(200)
    daemon.tick()
    del made.backend.jobs[id]
    daemon.tick()
    found = daemon.job(id)
    assert found is not None
    assert found.state is JobState.FINISHED
    assert daemon.job("nobody") is None
    daemon.close()


def test_what_happens_is_told_in_order_and_each_thing_once() -> None:
    daemon, made = made_daemon()
    daemon.tick()
    start = after_now(daemon)
    one, two = daemon.submit(Submission(a_job())), daemon.submit(Submission(a_job("bob")))
    daemon.tick()
    daemon.cancel(two)
    daemon.tick()
    made.backend.wait(200)
    daemon.tick()
    events = daemon.events(start, 0.0)
    told = [(event.kind, event.data.get("job")) for event in events if event.kind != "tick"]
    assert told == [
        ("submitted", one), ("submitted", two), ("decided", one), ("decided", two), ("started", one), ("started", two),
        ("cancelled", two), ("ended", one),
    ]  # fmt: skip
    assert [event.number for event in events] == list(range(start + 1, start + 1 + len(events)))
    assert {event.data["user"] for event in events if event.kind in ("submitted", "started", "ended")} == {"ada", "bob"}
    daemon.close()


def test_a_job_that_somebody_else_handed_in_is_told_too_but_not_those_that_were_there_at_the_start() -> None:
    daemon, made = made_daemon()
    made.backend.submit(Submission(a_job()))
    daemon.tick()
    assert "submitted" not in kinds(daemon.events(0, 0.0))
    made.backend.submit(Submission(a_job()))
    daemon.tick()
    assert kinds(daemon.events(0, 0.0)).count("submitted") == 1
    daemon.close()


def test_who_listens_is_woken_by_the_next_event() -> None:
    daemon, _ = made_daemon()
    daemon.tick()
    start = after_now(daemon)
    heard: list[Event] = []
    listener = threading.Thread(target=lambda: heard.extend(daemon.events(start, 60.0)))
    listener.start()
    daemon.submit(Submission(a_job()))
    listener.join(timeout=30)
    assert kinds(heard) == ["submitted"]
    daemon.close()


def test_who_listens_hears_nothing_when_nothing_happens_and_is_let_go_when_the_daemon_ends() -> None:
    daemon, _ = made_daemon()
    daemon.tick()
    assert daemon.events(after_now(daemon), 0.01) == []
    listener = threading.Thread(target=lambda: daemon.events(after_now(daemon), 30.0))
    listener.start()
    daemon.close()
    listener.join(timeout=20)
    assert not listener.is_alive()


def test_numbers_of_events_go_on_growing_over_a_restart_and_a_number_of_another_life_gives_all() -> None:
    first, _ = made_daemon()
    first.tick()
    last = after_now(first)
    first.close()
    second, _ = made_daemon()
    second.tick()
    assert second.events(last, 0.0), "a listener from before hears the new life"
    assert second.events(last + 10**15, 0.0)
    second.close()


def test_old_events_are_forgotten() -> None:
    daemon, _ = made_daemon()
    daemon.tick()
    for _ in range(KEPT_EVENTS + 10):
        daemon._emit("tick", {})
    assert len(daemon.events(0, 0.0)) == KEPT_EVENTS
    assert len(daemon.events(after_now(daemon) - 3, 0.0)) == 3
    daemon.close()


def test_questions_go_to_the_orchestrator() -> None:
    from adlro.live.service import WhatIf

    daemon, _ = made_daemon()
    daemon.tick()
    why = daemon.why("1")
    assert why is not None
    assert why.text == "it waits"
    assert daemon.what_if(WhatIf()).text == "it would be worse"
    daemon.close()


def test_a_turn_that_breaks_off_is_an_alarm_and_the_next_one_comes() -> None:
    daemon, made = made_daemon()
    daemon.tick()
    made.deciders[-1].bug = ZeroDivisionError("by a fault")
    assert daemon.tick() is None
    made.deciders[-1].bug = None
    assert daemon.tick() is not None
    assert [(a.kind, a.text) for a in daemon.state().alarms] == [
        ("fault", "a turn failed: ZeroDivisionError: by a fault")
    ]
    assert [a.kind for a in made.stores[-1].alarms(10)] == ["fault"]
    daemon.close()


def test_a_fault_in_telling_does_not_end_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, _ = made_daemon()

    def broken(state: object) -> None:
        raise KeyError("no such label")

    monkeypatch.setattr(daemon.metrics_page, "show", broken)
    assert daemon.tick() is None
    monkeypatch.undo()
    assert daemon.tick() is not None
    assert "adlro_failed_ticks_total 1.0" in daemon.metrics()
    daemon.close()


def test_a_cluster_that_does_not_answer_makes_it_unready_and_its_return_ready() -> None:
    daemon, made = made_daemon()
    daemon.tick()
    assert daemon.is_ready() == (True, "ready")
    made.backend.is_gone = True
    daemon.tick()
    assert daemon.is_ready() == (False, "the cluster cannot be read: the stand-in does not answer.")
    made.backend.is_gone = False
    daemon.tick()
    assert daemon.is_ready()[0]
    daemon.close()


def test_a_reading_that_is_old_makes_it_unready() -> None:
    daemon, _ = made_daemon()
    daemon.tick()
    running = daemon._running
    assert running is not None
    running.backend.read_s -= 1000
    assert daemon.is_ready()[0] is False
    assert "1000 s old" in daemon.is_ready()[1]
    daemon.close()


# ---- policies and the config -------------------------------------------------------------------------------------


def test_a_policy_can_be_switched_and_one_that_is_not_there_cannot() -> None:
    daemon, _ = made_daemon()
    daemon.tick()
    daemon.use_policy("sjf")
    with pytest.raises(CatalogueError):
        daemon.use_policy("nonsense")
    assert daemon.state().policy == "sjf"
    assert kinds(daemon.events(0, 0.0))[-1] == "policy"
    daemon.close()


def test_a_switch_outlives_a_restart_but_not_a_change_of_the_config(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/a.db"
    daemon, _ = made_daemon(store_url=url)
    daemon.tick()
    daemon.use_policy("sjf")
    daemon.tick()
    daemon.close()
    again, _ = made_daemon(store_url=url)
    again.tick()
    assert again.state().policy == "sjf"
    again.close()
    store = open_store(url)
    store.put("policy", json.dumps({"name": "sjf", "instead_of": "another"}))
    store.close()
    changed, _ = made_daemon(store_url=url)
    changed.tick()
    assert changed.state().policy == "fcfs"
    changed.close()


def with_file(path: Path, made: Made) -> Daemon:
    return Daemon(
        load_config(path, {"policy.fallback": "fcfs"}), made.build, path=path, flags={"policy.fallback": "fcfs"}
    )


def test_a_reload_counts_with_the_next_turn(tmp_path: Path) -> None:
    file = tmp_path / "adlro.toml"
    file.write_text('tick_s = 9\n[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)
    daemon.tick()
    file.write_text('tick_s = 3\n[policy]\nname = "sjf"\n')
    daemon.reload()
    assert daemon.config.tick_s == 9
    daemon.tick()
    assert daemon.config.tick_s == 3
    assert daemon.state().policy == "sjf"
    assert len(made.deciders) == 1, "another policy needs no other orchestrator"
    daemon.close()


def test_a_reload_of_the_guard_makes_another_orchestrator_and_keeps_the_policy_that_was_switched_to(
    tmp_path: Path,
) -> None:
    file = tmp_path / "adlro.toml"
    file.write_text('[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)
    daemon.tick()
    daemon.use_policy("sjf")
    file.write_text('[policy]\nname = "fcfs"\nbudget_ms = 100\n[guard]\nmax_wait_s = 60\n')
    daemon.reload()
    daemon.tick()
    assert len(made.deciders) == 2
    assert made.closed == ["orchestrator"], "the one before was let go"
    assert len(made.stores) == 1, "the store stays open"
    assert daemon.state().policy == "sjf"
    daemon.close()


def test_a_reload_with_other_weights_makes_another_orchestrator(tmp_path: Path) -> None:
    file = tmp_path / "adlro.toml"
    file.write_text('[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)
    daemon.tick()
    file.write_text('[policy]\nname = "fcfs"\nweights = "priority"\n')
    daemon.reload()
    daemon.tick()
    assert len(made.deciders) == 2
    assert daemon.config.policy.weights == "priority"
    daemon.close()


@pytest.mark.parametrize(
    "text",
    [
        '[policy]\nname = "nonsense"\n', "tick_s = 0", "not toml", '[polcy]\nname = "x"',
        '[preempt]\ntell = "mail"\n',
    ],
)  # fmt: skip
def test_a_config_that_is_wrong_is_an_alarm_and_the_old_one_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "adlro.toml"
    file.write_text('tick_s = 9\n[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)
    daemon.tick()
    file.write_text(text)
    daemon.reload()
    assert daemon.tick() is not None
    assert daemon.config.tick_s == 9
    assert daemon.state().policy == "fcfs"
    (alarm,) = daemon.state().alarms
    assert alarm.kind == "config"
    assert "the old config stays" in alarm.text
    daemon.close()


def test_what_cannot_change_at_once_is_told(tmp_path: Path) -> None:
    file = tmp_path / "adlro.toml"
    file.write_text('[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)
    daemon.tick()
    file.write_text('[policy]\nname = "fcfs"\n[api]\nport = 99\n')
    daemon.reload()
    daemon.tick()
    assert [a.text for a in daemon.state().alarms] == ["changes in [api] take effect after a restart."]
    daemon.close()


# ---- life and death ----------------------------------------------------------------------------------------------


def test_it_turns_until_it_is_stopped_and_lets_go_of_everything() -> None:
    daemon, made = made_daemon()
    with running(daemon):
        until(lambda: daemon.is_leader and made.deciders[-1].number >= 3)
    assert made.closed == ["orchestrator"]
    with pytest.raises(StoreError):
        made.stores[-1].get("a")
    assert daemon.is_ready() == (False, "the daemon has ended.")


def test_a_submission_is_decided_at_once_and_not_after_a_long_wait() -> None:
    daemon, _ = made_daemon(tick_s=600.0)
    with running(daemon):
        until(lambda: daemon.is_ready()[0])
        id = daemon.submit(Submission(a_job()))
        until(lambda: daemon.decisions(job=id))


def test_a_turn_whose_time_was_over_goes_on_at_once_and_one_that_decided_nothing_does_not() -> None:
    daemon, made = made_daemon(tick_s=600.0)
    with running(daemon):
        until(lambda: daemon.is_ready()[0])
        decider = made.deciders[-1]
        decider.cut_for = 3
        for _ in range(2):
            daemon.submit(Submission(a_job()))
        until(lambda: decider.number >= 4)
        number = decider.number
        decider.cut_for = 1000  # cut, but nothing is decided: it would be the same again
        daemon.reload()
        until(lambda: decider.number > number)
        number = decider.number
        time.sleep(0.6)
        assert decider.number == number


def test_many_submissions_do_not_make_as_many_turns() -> None:
    daemon, made = made_daemon(tick_s=600.0)
    with running(daemon):
        until(lambda: daemon.is_ready()[0])
        for _ in range(200):
            daemon.submit(Submission(a_job()))
        until(lambda: len(daemon.decisions(limit=500)) == 200)
        assert made.deciders[-1].number < 20


def waited(daemon: Daemon, seconds: float) -> float:
    """How long it waits for its next turn after one that took no time."""
    began = time.monotonic()
    daemon._wait(began, seconds)
    return time.monotonic() - began


def test_a_change_in_the_cluster_ends_the_wait_and_no_change_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.daemon.daemon.PROBE_S", 0.05)
    daemon, made = made_daemon()
    daemon.tick()
    answers = iter([False, False, True])
    monkeypatch.setattr(made.backend, "has_changed", lambda: next(answers), raising=False)
    assert 0.15 <= waited(daemon, 30.0) < 10.0
    monkeypatch.setattr(made.backend, "has_changed", lambda: False)
    assert waited(daemon, 0.4) >= 0.4
    daemon.close()


def test_a_back_end_that_is_told_of_changes_does_not_make_jobs_wait_for_the_pause_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adlro.daemon.pacing.LEAST_PAUSE_S", 20.0)
    daemon, made = made_daemon()
    daemon.tick()
    monkeypatch.setattr(made.backend, "has_changed", lambda: True, raising=False)
    monkeypatch.setattr(made.backend, "probe_s", 0.01, raising=False)
    assert waited(daemon, 30.0) < 10.0
    daemon.close()


def test_a_cluster_that_does_not_answer_is_not_asked_again_before_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adlro.daemon.daemon.PROBE_S", 0.02)
    daemon, made = made_daemon()
    daemon.tick()
    asked: list[float] = []

    def fail() -> bool:
        asked.append(time.monotonic())
        raise BackendError("slurmctld does not answer.")

    monkeypatch.setattr(made.backend, "has_changed", fail, raising=False)
    assert waited(daemon, 0.3) >= 0.3
    assert len(asked) == 1
    made.backend.is_gone = True
    daemon.tick()
    waited(daemon, 0.1)
    assert len(asked) == 1  # the turn could not read it either
    daemon.close()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), KeyError("a fault of ours")])
def test_no_error_of_asking_whether_anything_has_changed_ends_the_daemon(error: Exception) -> None:
    class Failing:
        trouble = ""

        def has_changed(self) -> bool:
            raise error

    assert Fenced(cast(Backend, Failing()), Alone()).has_changed() is None


# ---- submissions -----------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What a command came to."""

    out: str
    code: int = 0
    said: str = ""


class Stopped:
    """Slurm's commands, with an sbatch that its user has stopped until `go`; `late` makes it fail then."""

    def __init__(self, late: bool = False) -> None:
        self.began, self.go, self.late = threading.Event(), threading.Event(), late

    def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
        if command[0] != "sbatch":
            return Ran("Slurmctld(primary) at here is UP\nSlurmUser = slurm(64030)")
        self.began.set()
        assert self.go.wait(60)
        if self.late:
            raise BackendError("sbatch has not answered for 30 s; is slurmctld up?")
        return Ran("17")


class Empty:
    """A reader of a Slurm without jobs."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0.0, load_cluster("paper16"), ())

    def read(self) -> Snapshot:
        return self.snapshot

    def all_told(self) -> Sequence[KnownJob]:
        return ()


@contextmanager
def submitted_as_user(commands: Stopped, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fenced, list[object]]]:
    """A back end with an sbatch of a user under way, and what comes of it once that has ended."""
    ann = Account("ann", 1000, 1000, (1000,), "/tmp/ann", "/bin/sh")
    monkeypatch.setattr("adlro.backends.slurm.orders.account_of", lambda user, least: ann)
    monkeypatch.setattr("adlro.backends.slurm.orders.HUNG_S", 0.0)
    fenced = Fenced(Slurm(cast(ClusterReader, Empty()), None, commands, Handing("user")), Alone())
    came: list[object] = []

    def submit() -> None:
        try:
            came.append(fenced.submit(Submission(Job("any", 1.0, user="ann"), ("true",))))
        except BackendError as error:
            came.append(error)

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    assert commands.began.wait(60)
    yield fenced, came
    commands.go.set()
    thread.join()


def test_turns_go_on_while_a_user_has_stopped_the_own_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    with submitted_as_user(Stopped(), monkeypatch) as (fenced, came):
        reading = threading.Thread(target=fenced.read, daemon=True)
        reading.start()
        reading.join(30)
        assert fenced.latest is not None
        assert not came
    assert came == ["17"]


def test_a_user_whose_sbatch_hung_waits_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with submitted_as_user(Stopped(late=True), monkeypatch) as (fenced, came):
        pass
    assert "The job is not in the queue. Submit it again" in str(came[0])
    with pytest.raises(AccountError, match="hung while Slurm was up"):
        fenced.submit(Submission(Job("any", 1.0, user="ann"), ("true",)))


def test_asking_whether_anything_has_changed_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.daemon.daemon.PROBE_S", 0.01)
    daemon, made = made_daemon()
    daemon.tick()
    asked: list[float] = []

    def slow() -> bool:
        asked.append(time.monotonic())
        time.sleep(0.01)
        return False

    monkeypatch.setattr(made.backend, "has_changed", slow, raising=False)
    waited(daemon, 0.9)
    assert 2 <= len(asked) <= 5  # every 10 ms / 4 %, and not every 10 ms
    daemon.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_turn(number: signal.Signals) -> None:
    from adlro.daemon.daemon import obeying_signals

    daemon, made = made_daemon(tick_s=600.0)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), number)).start()
    with obeying_signals(daemon):
        daemon.run()
    assert made.closed == ["orchestrator"]


def test_a_connection_that_the_other_side_closed_does_not_end_the_daemon() -> None:
    from adlro.daemon.daemon import obeying_signals

    daemon, _ = made_daemon(tick_s=600.0)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as the command line sets it
    try:
        with obeying_signals(daemon):
            ours, other = socket.socketpair()
            other.close()
            with ours, pytest.raises(BrokenPipeError):  # with SIGPIPE as it was, this process would be gone
                ours.send(b"GET /jobs")
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    finally:
        daemon.close()
        signal.signal(signal.SIGPIPE, before)


def test_a_hang_up_reads_the_config_again(tmp_path: Path) -> None:
    from adlro.daemon.daemon import obeying_signals

    file = tmp_path / "adlro.toml"
    file.write_text('tick_s = 600\n[policy]\nname = "fcfs"\n')
    made = new_parts()
    daemon = with_file(file, made)

    def change() -> None:
        until(lambda: daemon.is_ready()[0])
        file.write_text('tick_s = 500\n[policy]\nname = "sjf"\n')
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: daemon.config.tick_s == 500)
        daemon.stop()

    thread = threading.Thread(target=change)
    thread.start()
    with obeying_signals(daemon):
        daemon.run()
    thread.join()
    assert daemon.config.policy.name == "sjf"


def test_systemd_hears_that_it_is_ready_alive_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(address)
        inbox.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "150000")
        daemon, _ = made_daemon(tick_s=600.0)
        heard: list[str] = []
        with running(daemon):
            while heard.count("WATCHDOG=1") < 4:  # alive also between two turns
                heard.append(inbox.recv(4096).decode())
        while heard[-1] != "STOPPING=1":
            heard.append(inbox.recv(4096).decode())
    assert heard.index("READY=1") < heard.index("WATCHDOG=1")


# ---- who leads ---------------------------------------------------------------------------------------------------


def test_a_standby_touches_nothing_and_takes_over_at_once_when_the_leader_is_gone(tmp_path: Path) -> None:
    first, first_made = made_daemon(leadership=FileLock(tmp_path / "lock"))
    second, second_made = made_daemon(leadership=FileLock(tmp_path / "lock"))
    first.tick()
    with running(second):
        until(lambda: "leads" in second.is_ready()[1])
        assert second_made.stores == []
        with pytest.raises(BackendError, match=rf"a standby: process {os.getpid()} on .* leads"):
            second.submit(Submission(a_job()))
        assert "adlro_leader 0.0" in second.metrics()
        first.close()
        until(lambda: second.is_ready()[0])
        assert "adlro_leader 1.0" in second.metrics()
    assert len(first_made.stores) == len(second_made.stores) == 1


def test_a_leader_that_loses_its_lock_acts_no_more_and_stands_by(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    daemon, made = made_daemon(leadership=FileLock(lock))
    daemon.tick()
    lock.unlink()
    with pytest.raises(BackendError, match="is not the leader any more"):
        daemon.submit(Submission(a_job()))
    other = FileLock(lock)
    assert other.take()
    assert daemon.tick() is None
    assert not daemon.is_leader
    assert made.closed == ["orchestrator"]
    other.release()
    assert daemon.tick() is not None
    daemon.close()


def test_a_cluster_that_is_away_at_the_start_is_waited_for_but_a_wrong_store_is_an_error() -> None:
    daemon, made = made_daemon()
    made.wrong = BackendError("slurmrestd does not answer.")
    assert daemon.tick() is None
    assert daemon.is_ready() == (False, "the cluster or the store cannot be opened: slurmrestd does not answer.")
    made.wrong = None
    assert daemon.tick() is not None
    daemon.close()
    wrong, _ = made_daemon(store_url="mysql://somewhere")
    with pytest.raises(StoreError, match="expected sqlite"):
        wrong.tick()
    wrong.close()


def test_with_postgresql_a_leader_whose_server_goes_stands_by_and_leads_again_when_it_is_back() -> None:
    with postgres_server() as server:
        url = new_database(server)
        daemon, made = made_daemon(leadership=PostgresLock(url), store_url=url)
        daemon.tick()
        daemon.submit(Submission(a_job()))
        daemon.tick()
        assert len(daemon.decisions()) == 1
        cut_all(server)
        assert daemon.tick() is not None, "the server is there: it leads again at once"
        assert len(daemon.decisions()) == 1
    assert daemon.tick() is None
    assert "cannot connect" in daemon.is_ready()[1]
    assert not daemon.is_leader
    daemon.close()
    assert made.closed == ["orchestrator"] * 2


def test_what_happened_to_the_store_is_an_alarm(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("this is no database at all, but a letter " * 10)
    daemon, made = made_daemon(store_url=f"sqlite:{tmp_path}/a.db")
    daemon.tick()
    assert [a.kind for a in daemon.state().alarms] == ["store"]
    assert "begun anew" in made.stores[-1].alarms(5)[0].text
    assert FLAGS["tick_s"] == daemon.config.tick_s
    daemon.close()
