"""What fails around the daemon: the controller, slurmrestd, a node. Nothing is lost, and nothing runs twice."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from tests.slurm.driving import VOLTA, Driven, options_of
from tests.slurm.lab import Lab, running

from adlro.backends.slurm import rest
from adlro.backends.slurm.backend import slurm_backend
from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.rest import Rest
from adlro.core.errors import BackendError
from adlro.core.ports import ENDED, Answer, Backend, JobState, Order, Part
from adlro.daemon.store import open_store
from adlro.live.turn import Orchestrator


@pytest.fixture(scope="module")
def frail() -> Iterator[Lab]:
    """A Slurm of which parts are ended in these tests."""
    with running(Lab()) as started:
        yield started


@pytest.fixture
def on_frail(frail: Lab) -> Iterator[Driven]:
    with Driven(frail, "socket") as backend:
        yield backend


def until_there(file: Path) -> str:
    """A script that runs until a file exists: as long as a test needs it, on any machine."""
    return f"while [ ! -e {file} ]; do sleep 0.1; done"


def test_a_controller_that_is_down_is_an_error_over_every_way_and_all_is_there_afterwards(on_frail: Driven) -> None:
    lab = on_frail.lab
    go = lab.folder / "jobs" / "go-on"
    runs, held = on_frail.submit(until_there(go)), on_frail.submit("sleep 0.5")
    on_frail.place(runs, Part("volta0", VOLTA, 1))
    on_frail.until(runs, JobState.RUNNING)
    on_frail.read()
    lab.wait_until_saved()
    lab.kill("slurmctld")
    try:
        assert_is_an_error_everywhere(on_frail, held)
    finally:
        lab.start_controller()
    lab.wait(lambda: len(lab.node_states()) == 4, "the controller")
    on_frail.place(held, Part("volta1", VOLTA, 1))
    assert on_frail.until(held, *ENDED).state is JobState.FINISHED
    assert on_frail.job(runs).state is JobState.RUNNING
    go.touch()
    ended = on_frail.until(runs, *ENDED, seconds=40)
    assert (ended.state, ended.starts, ended.decision) == (JobState.FINISHED, 1, "d1")


def assert_is_an_error_everywhere(driven: Driven, held: str) -> None:
    for way in ("socket-only", "commands"):
        with (
            closing(slurm_backend(options_of(driven.lab, way))) as backend,
            pytest.raises(BackendError, match=r"Is slurmctld running|contact slurm controller"),
        ):
            backend.read()
    with pytest.raises(BackendError, match="slurmctld"):
        driven.backend.act([Order(held, "d9", (Part("volta1", VOLTA, 1),))])


CONFIG = ["scontrol", "show", "config"]


class Counted:
    """How often slurmrestd answered, and which commands of Slurm's were run, since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered: list[str] = []
        self.commands: list[str] = []
        self.longest_s = 0.0
        ask, run = Rest.ask, Commands.run

        def asked(rest: Rest, method: str, path: str, *more: Any, **named: Any) -> tuple[int, Any]:
            began = time.monotonic()
            try:
                answer = ask(rest, method, path, *more, **named)
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answered.append(f"{method} {path.partition('?')[0].rpartition('/')[0] or path.partition('?')[0]}")
            return answer

        def ran(commands: Commands, command: Sequence[str], *more: Any) -> Any:
            if list(command) != CONFIG:  # slurmrestd does not tell the config: it is read with scontrol, now and then
                self.commands.append(command[0])
            return run(commands, command, *more)

        monkeypatch.setattr(Rest, "ask", asked)
        monkeypatch.setattr(Commands, "run", ran)

    def since(self) -> tuple[list[str], list[str]]:
        """What slurmrestd answered and what was run, since this was asked last."""
        answered, commands = self.answered, self.commands
        self.answered, self.commands, self.longest_s = [], [], 0.0
        return answered, commands


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_a_slurmrestd_that_answered_and_is_killed_is_replaced_by_the_commands_until_it_is_back(
    frail: Lab, counted: Counted, tmp_path: Path
) -> None:
    with Driven(frail, "socket") as driven, closing(open_store(f"sqlite:{tmp_path}/adlro.db")) as store:
        daemon = Orchestrator(driven.backend, store, policy="fcfs-first-fit")
        first = driven.submit("sleep 0.2")
        turn_until_ended(daemon, driven, first)
        answered, commands = counted.since()
        assert {"GET /jobs", "GET /nodes", "POST /job"} <= set(answered)
        assert commands == []  # all of it went over slurmrestd: reading, handing in, placing

        frail.kill("slurmrestd")
        try:
            second = driven.submit("sleep 0.2")
            notes = turn_until_ended(daemon, driven, second)
            answered, commands = counted.since()
            assert answered == []
            assert {"squeue", "sinfo", "sbatch", "scontrol"} <= set(commands)
            assert all("slurmrestd was not used" in note for note in notes)
            assert notes
        finally:
            frail.start_rest()

        third = driven.submit("sleep 0.2")
        notes = turn_until_ended(daemon, driven, third)
        answered, commands = counted.since()
        assert {"GET /jobs", "GET /nodes", "POST /job"} <= set(answered)
        assert (commands, notes) == ([], [])


def turn_until_ended(daemon: Orchestrator, driven: Driven, job: str) -> list[str]:
    """Take turns until a job has ended well; what the turns noted of slurmrestd."""
    end, notes = time.monotonic() + 60, []
    while True:
        daemon.tick()
        snapshot = daemon.state().snapshot
        notes += [note for note in snapshot.notes if "slurmrestd" in note]
        found = [each for each in snapshot.jobs if each.id == job]
        if found and found[0].state in ENDED:
            assert found[0].state is JobState.FINISHED
            return notes
        assert time.monotonic() < end, found
        time.sleep(0.1)


def test_a_slurmrestd_that_hangs_holds_up_one_call_and_not_every_one(
    frail: Lab, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 1.5
    options = options_of(frail, "socket").model_copy(update={"timeout_s": limit_s})
    with Driven(frail, "socket") as driven, closing(slurm_backend(options)) as backend:
        names = [driven.submit("sleep 0.2") for _ in range(6)]
        backend.read()
        assert "GET /jobs" in counted.since()[0]
        process = frail.daemons["slurmrestd"]
        process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            orders = [Order(name, f"h{name}", (Part("volta0", VOLTA, 1),)) for name in names[:4]]
            assert all(answer.done for answer in backend.act(orders))
            for _ in range(3):
                assert any("slurmrestd was not used" in note for note in backend.read().notes)
            took_s = time.monotonic() - began
            answered, commands = counted.since()
            assert answered == []
            assert "squeue" in commands
            assert limit_s <= took_s < 2 * limit_s + 2  # one time-out in seven calls, and the commands
        finally:
            process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(rest, "HANGS_S", 2.0)  # the rest of the real pause would only be waited for
        frail.wait(lambda: not backend.read().notes, "slurmrestd is used again")
        assert "GET /jobs" in counted.since()[0]


def test_without_slurmrestd_and_commands_there_is_an_error(on_frail: Driven) -> None:
    on_frail.lab.kill("slurmrestd")
    try:
        with pytest.raises(BackendError, match=r"slurmrestd at unix:.* does not answer"):
            slurm_backend(options_of(on_frail.lab, "socket-only")).read()
    finally:
        on_frail.lab.start_rest()


def test_a_job_whose_node_crashed_is_placed_again_at_once(on_frail: Driven) -> None:
    lab = on_frail.lab
    marks = f"{lab.folder}/jobs/$SLURM_JOB_ID.marks"
    go = lab.folder / "jobs" / "crash-go-on"
    name = on_frail.submit(f"echo began >> {marks}; {until_there(go)}; echo ended >> {marks}")
    first = on_frail.job(name).job.submit_s
    on_frail.place(name, Part("volta0", VOLTA, 1))
    on_frail.until(name, JobState.RUNNING)
    written = lab.folder / "jobs" / f"{name}.marks"
    lab.wait(written.exists, "the script's first line")
    lab.crash("volta0")
    waits = on_frail.when(name, lambda job: job.state is JobState.WAITING, "waiting again", seconds=40)
    assert (waits.managed, waits.starts, waits.job.submit_s) == (True, 1, first)
    assert "volta0" in on_frail.read().down
    on_frail.place(name, Part("volta1", VOLTA, 1))
    began = time.monotonic()
    assert on_frail.until(name, JobState.RUNNING).parts[0].node == "volta1"
    assert time.monotonic() - began < 8  # by itself Slurm would have waited for more than 10 s
    go.touch()
    ended = on_frail.until(name, *ENDED)
    assert (ended.state, ended.starts, ended.job.submit_s) == (JobState.FINISHED, 2, first)
    assert written.read_text().split() == ["began", "began", "ended"]
    lab.start_node("volta0")
    lab.wait(lambda: not on_frail.read().down, "the node is back")


def test_a_submission_whose_answer_got_lost_is_found_and_not_handed_in_twice(
    on_frail: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adlro.backends.slurm.ways import RestWay

    real = RestWay.submit

    def loses_the_answer(way: RestWay, *rest: object) -> str:
        real(way, *rest)  # type: ignore[arg-type]
        raise BackendError("slurmrestd does not answer")

    monkeypatch.setattr(RestWay, "submit", loses_the_answer)
    name = on_frail.submit("sleep 1")
    waiting = [job.id for job in on_frail.read().jobs if job.state is JobState.WAITING]
    assert waiting == [name]


class DiedError(BaseException):
    """The daemon was killed here."""


class Mortal:
    """A back end whose daemon is killed in the middle of a turn: before it acts, or after it acted."""

    def __init__(self, backend: Backend, after: bool) -> None:
        self.backend, self.after = backend, after

    def __getattr__(self, name: str) -> object:
        return getattr(self.backend, name)

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        if self.after:
            self.backend.act(orders)
        raise DiedError


@pytest.mark.parametrize("after", [False, True])
def test_a_daemon_that_is_killed_around_its_orders_loses_no_job_and_starts_none_twice(
    on_frail: Driven, tmp_path: Path, after: bool
) -> None:
    marks = on_frail.lab.folder / "jobs" / f"marks-{after}"
    names = [on_frail.submit(f"echo {number} >> {marks}; sleep 0.5") for number in range(8)]
    store = open_store(f"sqlite:{tmp_path}/adlro.db")
    with pytest.raises(DiedError):
        Orchestrator(cast(Backend, Mortal(on_frail.backend, after)), store, policy="fcfs-first-fit").tick()
    store.close()
    store = open_store(f"sqlite:{tmp_path}/adlro.db")
    assert len(store.unanswered()) == len(names)
    reborn = Orchestrator(on_frail.backend, store, policy="fcfs-first-fit")
    first = reborn.tick()
    assert any(alarm.kind == "settled" for alarm in first.alarms)
    end = time.monotonic() + 60
    while not all(on_frail.job(name).state in ENDED for name in names):
        assert time.monotonic() < end
        reborn.tick()
        time.sleep(0.1)
    assert sorted(marks.read_text().split()) == sorted(str(number) for number in range(8))
    for name in names:
        (*_, made) = store.decisions(job=name)
        job = on_frail.job(name)
        assert (job.state, job.starts) == (JobState.FINISHED, 1)
        assert job.decision in {decision.id for decision in store.decisions(job=name)}
        assert made.verb == "start"
    store.close()
