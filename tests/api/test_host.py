"""The API in a process of its own: what it is told and asked, how it ends, and that turns go on without it."""

import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.api.fake_service import FakeService, large_cluster
from tests.daemon.daemons import made_daemon, until
from tests.daemon.processes import served

from adlro.api.door import listening
from adlro.api.host import MOST_LATE, ApiHost, ApiSession
from adlro.api.link import (
    SERVICE_CALLS,
    Answered,
    Call,
    DaemonFaultError,
    Failed,
    ProcessLink,
    StateUpdate,
    job_changes,
    packed,
    snapshot_with,
    state_changes,
    state_with,
)
from adlro.api.process import DAEMON_SILENT_S, Copy, kept_for
from adlro.api.settings import ApiSettings
from adlro.core.errors import BackendError, CatalogueError, ConfigError
from adlro.core.ports import JobState, LiveJob, Snapshot, Submission
from adlro.core.records import Job
from adlro.live.service import Compared, Decision, Event, Service, State, Tick

OPEN = ApiSettings(port=0, auth="off", rate_per_s=10_000, burst=10_000)
QUICK = '[policy]\nname = "fcfs"\nfallback = "fcfs"\n[simulated]\ncluster = "paper16"\n[api]\nauth = "off"\n'


@contextmanager
def hosted(service: Service) -> Iterator[tuple[ApiHost, str, list[str]]]:
    """A process that answers for a service, its address, and the alarms about it."""
    alarms: list[str] = []
    listener = listening("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    policies = [{"name": "fcfs", "summary": "", "preemptive": False, "resizes": False, "weighs": False, "needs": []}]
    more = {"metrics": lambda: "adlro_up 1\n", "policies": lambda: policies}
    host = ApiHost(service, OPEN, lambda: listener, more, alarms.append)
    host.start()
    try:
        yield host, address, alarms
    finally:
        host.close()
        listener.close()


def ask(address: str, method: str = "GET", body: object = None, seconds: float = 60.0) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# ---- the whole of it -------------------------------------------------------------------------------------------------


def test_the_process_answers_as_the_service_would() -> None:
    service = FakeService()
    with hosted(service) as (host, address, alarms):
        assert ask(f"{address}/healthz") == (200, {"ok": True})
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        v1 = f"{address}/api/v1"
        status, state = ask(f"{v1}/state")
        assert (status, state["tick"]["number"]) == (200, service.number)
        waiting = service.one(JobState.WAITING).id
        assert ask(f"{v1}/jobs/{waiting}/why")[1]["dominant"] == "resources"
        assert ask(f"{v1}/decisions?limit=3")[1]["decisions"][0]["id"] == service.log[-1].id
        status, made = ask(f"{v1}/jobs", "POST", {"job": {"family": "learning", "gpus": 2}})
        assert status == 201
        assert service.jobs[made["id"]].job.gpus == 2
        assert ask(f"{v1}/jobs/{made['id']}")[1]["state"] == "waiting"
        assert ask(f"{v1}/jobs/{made['id']}", "DELETE")[0] == 200
        assert service.jobs[made["id"]].state is JobState.CANCELLED
        assert [each["name"] for each in ask(f"{v1}/policies")[1]["policies"]] == ["fcfs"]
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as page:
            text = page.read().decode()
        assert text.startswith("adlro_up 1\n")
        assert 'adlro_api_requests_total{route="/api/v1/jobs/{id}",method="DELETE",status="200"} 1.0\n' in text
        service.turn()
        until(lambda: ask(f"{v1}/state")[1]["tick"]["number"] == service.number)
        assert not alarms
        assert host.pid is not None


def test_errors_of_the_daemon_are_those_of_the_api() -> None:
    service = FakeService()
    with hosted(service) as (_, address, _):
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        status, told = ask(f"{address}/api/v1/jobs", "POST", {"job": {"family": "none"}})
        assert status == 409
        assert "no family 'none'" in told["error"]["what"]
        service.broken = KeyError("a secret of a user")
        status, told = ask(f"{address}/api/v1/jobs/{service.one(JobState.WAITING).id}/why")
        assert status == 500
        assert "secret" not in json.dumps(told)


def test_a_stream_hears_what_happens_in_the_daemon() -> None:
    service = FakeService()
    with hosted(service) as (_, address, _):
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        with urllib.request.urlopen(f"{address}/api/v1/events", timeout=60) as stream:
            assert stream.readline() == b": still here\n"
            service.happen("policy", {"name": "sjf"})
            lines = [stream.readline() for _ in range(4)]
        assert b"event: policy\n" in lines


def test_a_process_that_dies_is_started_again_with_an_alarm() -> None:
    service = FakeService()
    with hosted(service) as (host, address, alarms):
        assert ask(f"{address}/healthz")[0] == 200
        first = host.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: alarms)
        assert "was ended by SIGKILL" in alarms[0]
        assert ask(f"{address}/healthz")[0] == 200, "the port was kept: who comes meanwhile waits"
        assert host.pid not in (None, first)
        until(lambda: ask(f"{address}/api/v1/state")[0] == 200)


def test_a_process_that_hangs_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    with hosted(service) as (host, address, alarms):
        assert ask(f"{address}/healthz")[0] == 200
        first = host.pid
        assert first is not None
        monkeypatch.setattr("adlro.api.host.API_SILENT_S", 3.0)
        os.kill(first, signal.SIGSTOP)
        until(lambda: alarms)
        assert "did not answer" in alarms[0]
        monkeypatch.setattr("adlro.api.host.API_SILENT_S", 30.0)
        assert ask(f"{address}/healthz")[0] == 200


def with_all_jobs_changed(service: FakeService) -> None:
    """Change every job, so that what is told next does not fit in the buffer of a socket."""
    was = service.latest
    jobs = tuple(replace(job, starts=job.starts + 1, reason=job.id * 200) for job in was.snapshot.jobs)
    service.latest = replace(was, snapshot=replace(was.snapshot, jobs=jobs))
    assert len(packed(state_changes(was, service.latest))) > 1_000_000


def test_a_process_that_hangs_before_it_has_read_a_large_message_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(large_cluster(20), 3000)
    with hosted(service) as (host, address, alarms):
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        first = host.pid
        assert first is not None
        monkeypatch.setattr("adlro.api.host.API_SILENT_S", 3.0)
        os.kill(first, signal.SIGSTOP)
        with_all_jobs_changed(service)
        until(lambda: alarms)
        assert "did not answer" in alarms[0]
        monkeypatch.setattr("adlro.api.host.API_SILENT_S", 30.0)
        assert ask(f"{address}/healthz")[0] == 200


def test_a_process_that_hangs_holds_up_no_end_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.host.STOP_S", 0.5)
    service = FakeService(large_cluster(20), 3000)
    with hosted(service) as (host, address, _):
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        first = host.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with_all_jobs_changed(service)
        time.sleep(1.0)
        closing = threading.Thread(target=host.close, daemon=True)
        closing.start()
        closing.join(30)
        try:
            assert not closing.is_alive()
        finally:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)


class Odd:
    """A record that cannot be read where it arrives, as one whose fields have changed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_process_that_cannot_read_a_message_ends_and_is_started_again() -> None:
    service = FakeService()
    with hosted(service) as (host, address, alarms):
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        first = host.pid
        service.latest = replace(service.latest, policy=cast(Any, Odd()))
        until(lambda: alarms)
        assert "ended with exit code 1" in alarms[0]
        service.latest = replace(service.latest, policy="sjf")
        until(lambda: ask(f"{address}/readyz")[0] == 200 and ask(f"{address}/api/v1/state")[1]["policy"] == "sjf")
        assert host.pid not in (None, first)


def test_a_process_of_another_version_is_not_used_and_the_alarm_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adlro.api.host.__version__", "0.0.1")
    with hosted(FakeService()) as (_, _, alarms):
        until(lambda: alarms)
        assert "another version of ADLRO" in alarms[0]
        assert "restart the daemon" in alarms[0]


def test_a_port_that_cannot_be_opened_is_an_alarm_and_is_tried_again() -> None:
    alarms: list[str] = []
    tries: list[int] = []
    listener = listening("127.0.0.1", 0)

    def listen() -> socket.socket:
        tries.append(1)
        if len(tries) < 4:
            raise ConfigError("the API cannot answer on here:80: Permission denied.")
        return listener

    host = ApiHost(FakeService(), OPEN, listen, {}, alarms.append)
    host.start()
    try:
        assert ask(f"http://127.0.0.1:{listener.getsockname()[1]}/healthz")[0] == 200
        assert len(tries) == 4
        assert len(alarms) == 1
        assert "Permission denied" in alarms[0]
    finally:
        host.close()
        listener.close()


def test_a_process_that_cannot_be_started_is_an_alarm_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*what: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("adlro.api.host.spawn", no_more)
        with hosted(FakeService()) as (_, address, alarms):
            until(lambda: alarms)
            assert "cannot be started ([Errno 11] Resource temporarily unavailable)" in alarms[0]
            patch.undo()
            assert ask(f"{address}/healthz")[0] == 200


def test_turns_go_on_while_the_api_is_dead_and_its_death_is_an_alarm_of_the_daemon() -> None:
    from adlro.daemon.opening import answering

    daemon, made = made_daemon(api_auth="off", api_port=0)
    with answering(daemon, daemon.config) as address:
        thread = threading.Thread(target=daemon.run)
        thread.start()
        try:
            until(lambda: ask(f"{address}readyz")[0] == 200)
            (child,) = children_of(os.getpid())
            os.kill(child, signal.SIGKILL)
            before = made.deciders[-1].number
            until(lambda: [alarm for alarm in daemon.state().alarms if alarm.kind == "api"])
            assert made.deciders[-1].number > before
            until(lambda: ask(f"{address}readyz")[0] == 200)
            assert [each["kind"] for each in ask(f"{address}api/v1/alarms")[1]["alarms"]] == ["api"]
        finally:
            daemon.stop()
            thread.join()
    assert not children_of(os.getpid())


def children_of(parent: int) -> list[int]:
    """The API's processes that this process has."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_api = entry.name.isdigit() and b"adlro.api.process" in (entry / "cmdline").read_bytes()
            if is_api and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_the_daemon_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path, config=QUICK) as daemon:
        (child,) = children_of(daemon.process.pid)
        daemon.process.send_signal(number)
        code = daemon.process.wait(timeout=60)
        assert code == (-number if number is signal.SIGKILL else 0)
        until(lambda: not Path(f"/proc/{child}").exists())


def test_signals_to_all_processes_of_a_terminal_or_a_unit_are_the_daemons(tmp_path: Path) -> None:
    with served(tmp_path, config=QUICK) as daemon:
        (child,) = children_of(daemon.process.pid)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child, number)
        time.sleep(0.2)
        assert daemon.is_ready()
        assert children_of(daemon.process.pid) == [child]
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(timeout=60) == 0
        until(lambda: not Path(f"/proc/{child}").exists())


def test_the_process_imports_neither_numpy_nor_a_compiler() -> None:
    code = "import sys, adlro.api.process; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "torch", "scipy"} & set(found.stdout.split())


# ---- what is told ----------------------------------------------------------------------------------------------------


def a_job(id: str, **more: Any) -> LiveJob:
    return LiveJob(id, Job("learning", 60.0, user="ada"), JobState.WAITING, **more)


def as_told(state: State) -> State:
    """A state without the decisions of its tick, which the API does not show."""
    assert state.tick is not None
    return replace(state, tick=replace(state.tick, decisions=(), answers=()))


class Placing(FakeService):
    """A service whose states have the decisions that placed jobs; it keeps all its states by number."""

    def __init__(self) -> None:
        self.made: dict[int, State] = {}
        super().__init__(large_cluster(20), 300)

    def state(self) -> State:
        with self.lock:
            return super().state()

    def turn(self) -> Tick:
        with self.lock:
            tick = super().turn()
            placed = {one.job: one for one in self.log if self.jobs[one.job].state is not JobState.WAITING}
            self.latest = replace(self.latest, placed=placed)
            self.made[self.number] = as_told(self.latest)
            return tick


def test_only_what_has_changed_is_told_and_the_copy_is_the_same() -> None:
    service = Placing()
    known, copied = None, None
    for _ in range(12):
        state = service.state()
        changes, snapshot = pickle.loads(packed(state_changes(known, state))[8:])
        copied = state_with(copied, changes, snapshot)
        assert copied == as_told(state)
        if known is not None:
            assert len(snapshot["jobs"].changed) < 150
            assert len(changes["placed"].changed if "placed" in changes else ()) < 150
            assert "cluster" not in snapshot
        known = state
        service.turn()
    assert state_changes(known, cast(Any, known)) == ({}, None)


def test_a_copy_is_always_one_state_of_the_daemon_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.host.LEAST_S", 0.0)
    service = Placing()
    seen = set()
    with linked(service) as copy:
        until(lambda: copy.is_ready()[0])
        for _ in range(40):
            number = service.turn().number - 1
            until(lambda: copy.state().tick != service.made[number].tick)  # noqa: B023  (it is called here)
            state = copy.state()
            assert state.tick is not None
            assert state == service.made[state.tick.number]
            seen.add(state.tick.number)
    assert len(seen) > 5


def test_jobs_in_any_order_that_come_and_go_are_told() -> None:
    pick = random.Random(4)
    cluster = FakeService().cluster
    old = told = Snapshot(0.0, cluster, ())
    for turn in range(60):
        jobs = [job for job in old.jobs if pick.random() < 0.8]
        jobs = [replace(job, starts=turn) if pick.random() < 0.2 else job for job in jobs]
        jobs += [a_job(f"{turn}-{number}") for number in range(pick.randrange(6))]
        if pick.random() < 0.5:
            pick.shuffle(jobs)
        new = Snapshot(float(turn), cluster, tuple(jobs))
        told = snapshot_with(told, {"time_s": new.time_s, "jobs": job_changes(old.jobs, new.jobs)})
        assert told == new
        old = new


def test_a_job_that_is_read_anew_and_is_the_same_is_not_told() -> None:
    old = (a_job("a"), a_job("b"))
    new = (a_job("a"), a_job("b", starts=1))
    changes = job_changes(old, new)
    assert ([job.id for job in changes.changed], changes.gone, changes.order) == (["b"], (), None)


def pair() -> tuple[ProcessLink, ProcessLink]:
    one, other = socket.socketpair()
    return ProcessLink(one), ProcessLink(other)


@contextmanager
def linked(service: Service, hears: bool = True) -> Iterator[Copy]:
    """A copy and the session that tells it and answers it; one that does not hear its news reads answers only."""
    (ours, theirs), (news, heard) = pair(), pair()
    copy = Copy(theirs)
    session = ApiSession(service, {}, ours, news, cast(Any, Ended()))
    threads = [
        threading.Thread(target=target, args=given, daemon=True)
        for target, given in ((session.serve, ()), (hear_all, (theirs, copy)), (hear_all, (heard, copy)))
    ]
    for thread in threads[: 3 if hears else 2]:
        thread.start()
    try:
        yield copy
    finally:
        session.close()
        theirs.close()
        heard.close()
        for thread in threads[: 3 if hears else 2]:
            thread.join(10)


def test_a_daemon_that_is_silent_is_not_ready() -> None:
    now = [0.0]
    link, other = pair()
    copy = Copy(link, lambda: now[0])
    assert copy.is_ready() == (False, "the daemon is starting.")
    copy.hear(StateUpdate((True, "ready"), 30))
    assert copy.is_ready() == (True, "ready")
    now[0] = DAEMON_SILENT_S + 1
    assert copy.is_ready() == (
        False,
        f"the daemon does not answer: nothing was heard of it for {DAEMON_SILENT_S + 1:.0f} s.",
    )
    link.close()
    other.close()


def test_while_the_daemon_has_no_state_it_is_told_why() -> None:
    link, other = pair()
    copy = Copy(link)
    with pytest.raises(BackendError, match="the daemon is starting"):
        copy.state()
    copy.hear(StateUpdate((False, "a standby: x leads."), 30, no_state=BackendError("not ready: a standby: x leads.")))
    with pytest.raises(BackendError, match="x leads"):
        copy.state()
    copy.hear(StateUpdate((True, ""), 30, *state_changes(None, FakeService().state())))
    assert copy.state().backend
    link.close()
    other.close()


def test_a_telling_that_failed_is_made_good_by_the_whole_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.host.TELL_S", 0.05)
    service = FakeService()
    with linked(service) as copy:
        until(lambda: copy.is_ready()[0])
        was = service.latest
        service.latest = replace(was, drifts=cast(Any, lambda: "this cannot be pickled"))
        time.sleep(0.2)
        some = was.snapshot.jobs[5:]
        service.latest = replace(was, snapshot=replace(was.snapshot, jobs=some))
        until(lambda: copy.state() == as_told(service.latest))


def test_events_are_numbered_as_in_the_daemon() -> None:
    link, other = pair()
    copy = Copy(link)
    events = tuple(Event(number, 0.0, "tick", {}) for number in (7, 8, 9))
    copy.hear(StateUpdate((True, ""), 30, events=events))
    assert [event.number for event in copy.events(7, 0.0)] == [8, 9]
    link.close()
    other.close()


# ---- what is asked ---------------------------------------------------------------------------------------------------


def test_every_method_of_the_protocol_can_be_asked_for_and_nothing_else() -> None:
    assert {"why", "submit", "cancel", "what_if", "decisions", "use_policy", "job"} <= SERVICE_CALLS
    link, other = pair()
    copy = Copy(link)
    assert callable(copy.why)
    with pytest.raises(AttributeError):
        copy.close  # noqa: B018
    link.close()
    other.close()


class Ended:
    """A process that has ended."""

    def wait(self, timeout: float) -> int:
        return 0


class Slow(FakeService):
    """A service whose submissions wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def submit(self, submission: Submission) -> str:
        self.go.wait(60)
        return super().submit(submission)


def test_a_method_that_is_slow_holds_up_no_other() -> None:
    service = Slow()
    with linked(service) as copy:
        asked = [threading.Thread(target=copy.submit, args=(Submission(Job("learning", 1.0)),)) for _ in range(6)]
        for thread in asked:
            thread.start()
        id = service.one(JobState.WAITING).id
        assert copy.job(id) == service.jobs[id]
        assert copy.decisions(limit=1)[0] == service.log[-1]
        assert all(thread.is_alive() for thread in asked)
        with pytest.raises(CatalogueError):
            copy.use_policy("none")
        service.go.set()
        for thread in asked:
            thread.join()


def test_an_answer_does_not_wait_for_a_long_telling() -> None:
    service = FakeService(large_cluster(20), 3000)  # more than a socket takes before it is read
    with linked(service, hears=False) as copy:
        for id in service.jobs:
            assert copy.job(id) == service.jobs[id]
        assert not copy.is_ready()[0]


class SlowStore(FakeService):
    """A service whose store is slow; it counts how many ask it at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.counting = threading.Event(), threading.Lock()
        self.asking = self.most = 0

    def decisions(self, job: str = "", before: str = "", limit: int = 100) -> Sequence[Decision]:
        return self.slowly(super().decisions(job, before, limit))

    def points(self, since_s: float, until_s: float) -> Sequence[Compared]:
        return self.slowly(super().points(since_s, until_s))

    def slowly(self, found: Any) -> Any:
        with self.counting:
            self.asking += 1
            self.most = max(self.most, self.asking)
        self.go.wait(60)
        with self.counting:
            self.asking -= 1
        return found


def test_questions_of_the_store_are_answered_one_at_a_time_and_too_many_are_refused() -> None:
    service = SlowStore()
    with linked(service) as copy:
        came: list[object] = []

        def ask_store(number: int) -> None:
            try:
                came.append(copy.points(0.0, 1.0) if number % 2 else copy.decisions(limit=1))
            except BackendError as error:
                came.append(error)

        asked = [threading.Thread(target=ask_store, args=(number,)) for number in range(MOST_LATE + 4)]
        for thread in asked:
            thread.start()
        until(lambda: len(came) == 3)  # one is answered, MOST_LATE wait
        assert all("too many questions wait for the store" in str(each) for each in came)
        id = service.one(JobState.WAITING).id
        assert copy.job(id) == service.jobs[id]
        service.go.set()
        for thread in asked:
            thread.join()
        assert len(came) == len(asked)
        assert service.most == 1


def hear_all(link: ProcessLink, copy: Copy) -> None:
    try:
        while True:
            copy.hear(link.receive())
    except EOFError:
        pass


def test_an_answer_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.process.CALL_S", 0.05)
    link, other = pair()
    with pytest.raises(BackendError, match="did not answer within"):
        Copy(link).why("1")
    other.close()
    with pytest.raises(BackendError, match="has ended"):
        Copy(link).why("1")
    link.close()


def test_a_question_that_does_not_exist_is_no_danger() -> None:
    (ours, theirs), (news, heard) = pair(), pair()
    session = ApiSession(FakeService(), {}, ours, news, cast(Any, Ended()))
    for name in ("close", "__class__", "fail_if_broken"):
        session._answer(Call(1, name))
        answer = theirs.receive()
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, DaemonFaultError)
    session._answer(Call(2, "job", ("nothing",)))
    assert theirs.receive() == Answered(2, None)
    session.close()
    theirs.close()
    heard.close()


def test_a_page_is_asked_for_again_only_after_a_while() -> None:
    now, asked = [0.0], [0]

    def page() -> int:
        asked[0] += 1
        return asked[0]

    kept = kept_for(1.0, page, lambda: now[0])
    assert [kept(), kept()] == [1, 1]
    now[0] = 1.5
    assert kept() == 2
