"""The local back end: real processes under real runners, killed at every point where that could hurt."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.strategies import gpu_model

from adlro.backends.local import backend as local
from adlro.backends.local.backend import Local
from adlro.backends.local.spool import SHOWN_BYTES, leftovers, write_record
from adlro.core.errors import BackendError, ConfigError
from adlro.core.ports import ENDED, Backend, JobState, KeepsOutput, LiveJob, Order, Part, Submission
from adlro.core.records import CPU_ONLY, Cluster, Gpus, Job, Link, Node

GREEN, RED = "green", "red"
LINK = Link("pcie", 32.0)
PATIENCE_S = 20.0
T = TypeVar("T")

CLUSTER = Cluster(
    "here",
    "two GPUs of one vendor and two of another",
    (Node("n0", 8.0, 64.0, (Gpus(GREEN, 2), Gpus(RED, 2)), LINK),),
    LINK,
    {
        GREEN: replace(gpu_model(GREEN), vendor="NVIDIA"),
        RED: replace(gpu_model(RED), vendor="AMD"),
    },
)


class Bench:
    """A local back end over a spool in a folder of the test; all that it started is ended with the test."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.spool = folder / "spool"
        self.options: dict[str, object] = {"grace_s": 0.3, **options}
        self.backend = self.open()

    def open(self, **options: object) -> Local:
        """A daemon's view of the spool."""
        self.options |= options
        self.backend = Local(CLUSTER, self.spool, **self.options)  # type: ignore[arg-type]
        return self.backend

    def restart(self, **options: object) -> Local:
        """The daemon is killed, and another one comes."""
        self.backend.close()
        return self.open(**options)

    def submit(self, *command: str, environment: dict[str, str] | None = None, **what: object) -> str:
        """Hand a command in."""
        job = Job("any", 1.0, **what)  # type: ignore[arg-type]
        return self.backend.submit(Submission(job, command, "", environment or {}))

    def sh(self, script: str, **what: object) -> str:
        """Hand in a script of the shell that the test wrote."""
        return self.submit("/bin/sh", "-c", script, **what)  # type: ignore[arg-type]

    def start(self, job: str, model: str = GREEN, *indices: int, decision: str = "d") -> str:
        """Order a start; what was said, "" if it was done."""
        needs = self.job(job).job.gpus
        part = Part("n0", model if needs else CPU_ONLY, needs, indices)
        answer = self.backend.act([Order(job, decision, (part,))])[0]
        return "" if answer.done else answer.said

    def job(self, job: str) -> LiveJob:
        """One job as it is now."""
        return {live.id: live for live in self.backend.read().jobs}[job]

    def until(self, job: str, *states: JobState) -> LiveJob:
        """Wait until a job is so."""
        return until(lambda: live if (live := self.job(job)).state in states else None)

    def run(self, job: str, model: str = GREEN) -> LiveJob:
        """Start a job and wait for its end."""
        assert self.start(job, model) == ""
        return self.until(job, *ENDED)

    def output(self, job: str) -> str:
        """What it wrote."""
        found = self.backend.output(job)
        assert found is not None
        return found.out

    def file(self, job: str, name: str, run: int = 1) -> dict[str, int]:
        """A file of a start, once it is there."""
        path = self.spool / "jobs" / job / f"run-{run}" / name
        until(path.exists)
        return json.loads(path.read_text())


def until(condition: Callable[[], T | None]) -> T:
    """Wait for something to be true, and return it."""
    last = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < last, "it did not come about"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for live in bench.backend.read().jobs:
        bench.backend.cancel(live.id)
    until(lambda: all(live.state in ENDED for live in bench.backend.read().jobs))
    until(lambda: bench.backend.read().time_s and not bench.backend._runners)
    bench.backend.close()


def test_a_job_runs_as_a_process_and_its_output_and_exit_code_are_kept(bench: Bench) -> None:
    backend: Backend = bench.backend
    assert (backend.name, backend.can_stop) == ("local", True)
    job = bench.sh("echo here; echo there >&2", gpus=2)
    assert bench.job(job).state is JobState.WAITING
    done = bench.run(job)
    assert (done.state, done.exit_code, done.signal, done.starts) == (JobState.FINISHED, 0, None, 1)
    assert (done.parts, done.decision, done.reason) == ((Part("n0", GREEN, 2, (0, 1)),), "d", "")
    assert done.job.submit_s <= (done.started_s or 0) <= (done.ended_s or 0) <= time.time()
    assert bench.output(job) == "here\n"
    assert (bench.spool / "jobs" / job / "run-1" / "err").read_text() == "there\n"


def test_a_job_that_names_its_sizes_starts_with_another_number_of_gpus_and_sees_it(bench: Bench) -> None:
    script = "echo $ADLRO_GPU_COUNT $CUDA_VISIBLE_DEVICES; sleep 60"
    job = bench.sh(script, gpus=1, cpus=1.0, sizes="1,2", restartable=True)
    rigid = bench.sh(script, gpus=1, sizes="1,2")
    pair, single = Part("n0", GREEN, 2, (0, 1)), Part("n0", GREEN, 1)
    refused = bench.backend.act([Order(rigid, "d", (pair,))])[0]
    assert "because it is not marked as restartable" in refused.said
    assert bench.backend.act([Order(job, "d", (pair,))])[0].done
    bench.until(job, JobState.RUNNING)
    until(lambda: bench.output(job) == "2 0,1\n")
    bench.restart()
    assert bench.job(job).parts == (pair,)
    assert bench.backend.act([Order(job, "e")])[0].done
    bench.until(job, JobState.WAITING)
    assert bench.backend.act([Order(job, "f", (single,))])[0].done
    bench.until(job, JobState.RUNNING)
    assert sum(part.count for part in bench.job(job).parts) == bench.job(job).job.gpus == 1


def test_the_begin_and_the_end_of_a_job_are_changes_until_they_are_read(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = bench.sh(f"while [ ! -e {go} ]; do sleep 0.01; done", gpus=1)
    assert not bench.backend.has_changed()
    assert bench.start(job) == ""
    until(bench.backend.has_changed)
    bench.until(job, JobState.RUNNING)
    assert not bench.backend.has_changed()
    go.touch()
    until(bench.backend.has_changed)
    assert bench.job(job).state is JobState.FINISHED
    assert not bench.backend.has_changed()


def test_a_spool_that_cannot_be_read_is_an_error_of_the_back_end_when_changes_are_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(lock: Path) -> bool:
        raise OSError(24, "Too many open files")

    assert bench.start(bench.sh("sleep 60", gpus=1)) == ""
    with monkeypatch.context() as patch:
        patch.setattr(local, "is_locked", no_more)
        patch.setattr(Path, "exists", lambda self: False)
        with pytest.raises(BackendError, match=r"the spool cannot be read: .*Too many open files"):
            bench.backend.has_changed()


def test_the_end_of_the_output_is_told_with_whose_it_is_also_when_the_job_is_long_over(bench: Bench) -> None:
    assert isinstance(bench.backend, KeepsOutput)
    job = bench.sh(f"head -c {SHOWN_BYTES} /dev/zero | tr '\\0' x; echo end; echo oh >&2", user="ann")
    assert bench.backend.output(job) is None
    bench.run(job)
    found = bench.backend.output(job)
    assert found is not None
    assert (found.job, found.user, found.err, found.err_bytes) == (job, "ann", "oh\n", 3)
    assert (len(found.out), found.out[-6:], found.out_bytes) == (SHOWN_BYTES, "xxend\n", SHOWN_BYTES + 4)
    bench.restart(keep_ended_s=0.0)
    for _ in range(3):
        bench.backend.read()
    assert bench.backend.output(job) == found
    for wrong in ("", "../1", "x", "99", "1/../1", "\u0661"):
        assert bench.backend.output(wrong) is None


@pytest.mark.parametrize("trick", ["symlink", "folder", "hard link", "pipe"])
def test_output_is_never_read_through_a_link_or_a_pipe_that_the_job_put_there(
    bench: Bench, tmp_path: Path, trick: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "out").write_text("secret")
    job = bench.sh("echo here")
    bench.run(job)
    run = bench.spool / "jobs" / job / "run-1"
    (run / "out").unlink()
    match trick:
        case "symlink":
            (run / "out").symlink_to(secret / "out")
        case "folder":
            run.rename(run.with_name("aside"))
            run.symlink_to(secret)
        case "hard link":
            os.link(secret / "out", run / "out")
        case "pipe":
            os.mkfifo(run / "out")
    found = bench.backend.output(job)
    assert found is None or (found.out, found.out_bytes) == ("", 0)


def test_a_job_sees_its_own_gpus_as_its_vendor_numbers_them_and_nothing_of_the_daemon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLRO_TOKEN", "secret")
    green = bench.submit("/usr/bin/env", environment={"MINE": "a b;$(c)"})
    red, none = bench.submit("/usr/bin/env"), bench.submit("/usr/bin/env", gpus=0)
    assert bench.start(green, GREEN, 1) == bench.start(red, RED, 3) == bench.start(none) == ""
    seen = []
    for job in (green, red, none):
        bench.until(job, JobState.FINISHED)
        seen.append(dict(line.split("=", 1) for line in bench.output(job).splitlines()))
    assert seen[0]["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen[0]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen[0]["MINE"] == "a b;$(c)"
    assert seen[1]["ROCR_VISIBLE_DEVICES"] == "1"  # the second of its vendor, though the fourth of the node
    assert "CUDA_VISIBLE_DEVICES" not in seen[1]
    assert seen[2]["CUDA_VISIBLE_DEVICES"] == ""
    assert [each["ADLRO_GPUS"] for each in seen] == ["1", "3", ""]
    assert all("secret" not in each.values() for each in seen)


def test_failures_are_told_by_exit_code_by_signal_or_by_what_could_not_be_run(bench: Bench) -> None:
    coded = bench.run(bench.sh("exit 3"))
    assert (coded.state, coded.exit_code, coded.reason) == (JobState.FAILED, 3, "exit code 3")
    killed = bench.run(bench.sh("kill -9 $$"))
    assert (killed.state, killed.exit_code, killed.signal) == (JobState.FAILED, None, 9)
    assert killed.reason == "signal 9 (SIGKILL)"
    absent = bench.run(bench.submit("no-such-program"))
    assert (absent.state, absent.exit_code) == (JobState.FAILED, 127)
    assert "cannot run it: No such file or directory: 'no-such-program'" in absent.reason
    nowhere = bench.backend.submit(Submission(Job("any", 1.0), ("true",), "/nowhere/at/all"))
    assert "'/nowhere/at/all'" in bench.run(nowhere).reason


def test_text_of_a_user_is_never_given_to_a_shell_nor_used_as_a_path(bench: Bench) -> None:
    job = bench.submit("echo", "$(touch x)", "; exit 3", name="../../$(touch y)", user="`z`")
    assert bench.run(job).state is JobState.FINISHED
    assert bench.output(job) == "$(touch x) ; exit 3\n"
    assert [path.name for path in (bench.spool / "jobs").iterdir()] == ["1"]
    for submission, word in [
        (Submission(Job("any", 1.0)), "no command"),
        (Submission(Job("any", 1.0), ("a\0b",)), "zero byte"),
        (Submission(Job("any", 1.0), ("a",), "b"), "not absolute"),
        (Submission(Job("any", 1.0), ("a",), "", {"A=B": "c"}), "no name of a variable"),
        (Submission(Job("any", 1.0, gpus=-1), ("a",)), "gpus is -1"),
    ]:
        with pytest.raises(ConfigError, match=word):
            bench.backend.submit(submission)


def test_a_job_at_its_limit_is_asked_to_end_and_then_made_to(bench: Bench) -> None:
    polite = bench.sh("trap 'echo bye; exit 0' TERM; while :; do sleep 0.02; done", limit_s=0.3)
    stubborn = bench.submit(
        sys.executable, "-c", "import signal,time;signal.signal(15,signal.SIG_IGN);time.sleep(60)", limit_s=0.5
    )
    assert bench.start(polite) == bench.start(stubborn) == ""
    ended = bench.until(polite, *ENDED)
    assert (ended.state, ended.exit_code, ended.reason) == (JobState.FAILED, 0, "reached its limit of 0.3 s")
    assert bench.output(polite) == "bye\n"
    killed = bench.until(stubborn, *ENDED)
    assert (killed.state, killed.signal) == (JobState.FAILED, 9)
    assert 0.8 <= (killed.ended_s or 0) - (killed.started_s or 0) < 5.0


def test_a_job_that_holds_more_memory_than_it_may_is_ended_with_all_its_processes(bench: Bench) -> None:
    hold = f"{sys.executable} -c 'x = bytearray(60 << 20); import time; time.sleep(60)'"
    job = bench.sh(f"{hold} & setsid {hold} & wait", memory_gb=0.1)  # either alone would be within its limit
    ended = bench.run(job)
    assert (ended.state, ended.signal) == (JobState.FAILED, 9)
    assert "of memory; it may hold 102" in ended.reason
    huge = bench.submit(sys.executable, "-c", "bytearray(4 << 30)", memory_gb=0.5)
    assert bench.run(huge).exit_code == 1  # refused to the job itself, before the machine feels it
    assert "MemoryError" in (bench.spool / "jobs" / huge / "run-1" / "err").read_text()


def test_a_stop_ends_every_process_of_the_job_and_it_waits_again(bench: Bench) -> None:
    escape = "setsid sh -c 'echo $$ > escaped; sleep 60' & sleep 60 & echo $! > child; wait"
    job = bench.sh(escape, restartable=True)
    assert bench.start(job) == ""
    folder = bench.spool / "jobs" / job / "run-1"
    pids = [int(until(lambda name=name: read(folder / name))) for name in ("escaped", "child")]  # type: ignore[misc]
    assert all(map(is_alive, pids))
    answers = bench.backend.act([Order(job, "s"), Order(job, "s"), Order(job, "d2", (Part("n0", GREEN, 1),))])
    assert [(answer.done, answer.is_pending) for answer in answers] == [(True, True), (True, True), (False, False)]
    stopped = bench.until(job, JobState.WAITING)
    assert not stopped.is_stopping
    assert (stopped.starts, stopped.parts, stopped.reason) == (1, (), "stopped")
    assert not any(map(is_alive, pids))
    assert bench.start(job, decision="d3") == ""
    assert bench.until(job, JobState.RUNNING).starts == 2


def test_a_job_that_is_told_to_stop_says_so_until_it_has_ended_also_after_a_restart(bench: Bench) -> None:
    job = bench.sh("trap 'sleep 0.5; exit 0' TERM; echo ready; while :; do sleep 0.05; done", restartable=True)
    assert bench.start(job) == ""
    until(lambda: bench.job(job).state is JobState.RUNNING and bench.output(job))
    bench.backend.act([Order(job, "s")])
    assert bench.job(job).is_stopping
    bench.restart()
    assert bench.job(job).is_stopping
    stopped = bench.until(job, JobState.WAITING)
    assert (stopped.is_stopping, stopped.starts) == (False, 1)


def test_a_running_job_without_the_mark_is_not_stopped(bench: Bench) -> None:
    job = bench.sh("sleep 60")
    bench.start(job)
    bench.until(job, JobState.RUNNING)
    (answer,) = bench.backend.act([Order(job, "s")])
    assert (answer.done, answer.said) == (False, "it is not marked as restartable")
    assert (bench.job(job).state, bench.job(job).is_stopping) == (JobState.RUNNING, False)


def read(path: Path) -> str:
    """The text of a file, once it is there."""
    return path.read_text() if path.exists() else ""


def test_processes_that_a_job_leaves_behind_do_not_outlive_it(bench: Bench) -> None:
    job = bench.sh("sleep 60 & echo $!; exit 0")
    assert bench.run(job).state is JobState.FINISHED
    assert not is_alive(int(bench.output(job)))


def test_a_cancelled_job_is_over_whether_it_waits_or_runs(bench: Bench) -> None:
    waiting, running = bench.sh("sleep 60"), bench.sh("sleep 60")
    bench.start(running)
    bench.until(running, JobState.RUNNING)
    bench.backend.cancel(waiting)
    bench.backend.cancel(running)
    assert bench.job(waiting).state is JobState.CANCELLED
    ended = bench.until(running, *ENDED)
    assert (ended.state, ended.starts) == (JobState.CANCELLED, 1)
    assert not is_alive(bench.file(running, "child.json")["pid"])
    bench.backend.cancel(running)
    assert {live.state for live in bench.restart().read().jobs} == {JobState.CANCELLED}
    with pytest.raises(BackendError, match="no job"):
        bench.backend.cancel("../1")


def test_gpus_and_shares_of_them_are_never_given_twice(bench: Bench) -> None:
    halves = [bench.sh("sleep 60", share=500) for _ in range(3)]
    whole, late = bench.sh("sleep 60"), bench.sh("sleep 60")
    assert [bench.start(job) for job in halves[:2]] == ["", ""]
    assert [bench.job(job).parts[0].indices for job in halves[:2]] == [(0,), (0,)]
    assert bench.start(whole) == ""
    assert bench.start(late) == "n0: 0 of 1 GPUs are free"
    assert bench.start(late, GREEN, 1) == "GPU 1 of n0 is taken"
    bench.restart()
    assert bench.start(halves[2]) == "n0: 0 of 1 GPUs are free"
    bench.backend.cancel(whole)
    bench.until(whole, *ENDED)
    assert bench.start(late) == ""


def test_an_order_given_twice_starts_a_job_once(bench: Bench) -> None:
    job = bench.sh("echo begun; sleep 0.3")
    assert [bench.start(job), bench.start(job), bench.start(job, GREEN, 0)] == ["", "", ""]
    assert "already" in bench.start(job, GREEN, 1)
    assert "already" in bench.start(job, RED)
    assert bench.until(job, *ENDED).starts == 1
    assert bench.start(job) == ""  # this very decision: carried out, and over
    assert bench.start(job, decision="other") == "it is finished already"
    assert bench.output(job) == "begun\n"


def test_output_is_cut_where_it_is_too_long(bench: Bench) -> None:
    bench.restart(most_output=1000)
    job = bench.submit(sys.executable, "-c", "print('x' * 300_000, end='')")
    ended = bench.run(job)
    assert (ended.state, ended.reason) == (JobState.FINISHED, "out: 299000 bytes not kept")
    assert bench.output(job) == "x" * 1000


def test_a_full_disk_costs_the_output_and_not_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bench.submit(sys.executable, "-c", "for _ in range(99): print('x' * 9999)")
    before_the_runner(monkeypatch, lambda folder: (folder / "out").symlink_to("/dev/full"))
    ended = bench.run(job)
    assert (ended.state, ended.exit_code) == (JobState.FINISHED, 0)
    assert ended.reason == "out: 990000 bytes not kept (No space left on device)"


def before_the_runner(monkeypatch: pytest.MonkeyPatch, do: Callable[[Path], None]) -> None:
    """Do something to the folder of a start before its runner is made."""
    spawn = os.posix_spawn

    def doing(path: str, argv: list[str], *rest: object, **more: object) -> int:
        do(Path(argv[-1]))
        return spawn(path, argv, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "posix_spawn", doing)


def test_a_job_whose_start_cannot_be_written_down_does_not_begin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bench.sh("echo begun > ../begun")
    with monkeypatch.context() as patch:
        before_the_runner(patch, lambda folder: (folder / "child.json.tmp").mkdir())
        assert bench.start(job) == ""
        waits = bench.until(job, JobState.WAITING)
    assert (waits.starts, waits.reason) == (0, "its start could not be written down: Is a directory")
    assert not (bench.spool / "jobs" / job / "begun").exists()
    assert bench.run(job).starts == 1


def test_an_end_that_cannot_be_written_down_is_written_when_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.sh("true")
    before_the_runner(monkeypatch, lambda folder: (folder / "end.tmp").mkdir())
    assert bench.start(job) == ""
    until(lambda: not is_alive(bench.file(job, "child.json")["pid"]))
    assert bench.job(job).state is JobState.RUNNING  # it still has its place: nobody knows its end yet
    (bench.spool / "jobs" / job / "run-1" / "end.tmp").rmdir()
    assert bench.until(job, *ENDED).state is JobState.FINISHED


def test_a_full_disk_refuses_submissions_and_starts_in_words_and_takes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.sh("true")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: no_space())
        with pytest.raises(BackendError, match=r"cannot be written: .*No space left"):
            bench.sh("true")
        assert "No space left" in bench.start(job)
        with pytest.raises(BackendError, match="No space left"):
            bench.backend.cancel(job)
    assert [live.id for live in bench.backend.read().jobs] == [job]
    assert bench.run(job).state is JobState.FINISHED
    assert [live.id for live in bench.restart().read().jobs] == [job]
    assert bench.run(bench.sh("true")).state is JobState.FINISHED


def no_space() -> None:
    """What a full disk says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# ---- kill -9, of each in turn ------------------------------------------------------------------------------------


def test_a_killed_job_is_reported_with_its_signal(bench: Bench) -> None:
    for _ in range(5):  # at once, so that some are killed before they have become their command
        job = bench.sh("exec sleep 60")
        bench.start(job)
        os.kill(bench.file(job, "child.json")["pid"], signal.SIGKILL)
        assert (bench.until(job, *ENDED).signal, bench.job(job).starts) == (9, 1)


def test_a_killed_runner_takes_its_job_with_it_and_the_job_waits_again_but_not_for_ever(bench: Bench) -> None:
    job = bench.sh("setsid sleep 60 & echo $! > helper; sleep 60")
    for time_lost in (1, 2, 3):
        assert bench.start(job, decision=f"d{time_lost}") == ""
        pid = bench.file(job, "child.json", time_lost)["pid"]
        helper = int(until(lambda: read(bench.spool / "jobs" / job / f"run-{time_lost}" / "helper")))  # noqa: B023
        os.kill(bench.file(job, "runner.json", time_lost)["pid"], signal.SIGKILL)
        lost = bench.until(job, JobState.WAITING, JobState.FAILED)
        assert not is_alive(pid)
        assert not is_alive(helper)
        assert lost.starts == time_lost
        assert (lost.state is JobState.FAILED) == (time_lost == 3)
    assert "lost 3 times" in bench.job(job).reason
    assert bench.restart().read().jobs[0].state is JobState.FAILED


def test_a_job_outlives_the_daemon_and_is_found_again(bench: Bench) -> None:
    short, long, waiting = bench.sh("sleep 0.2; echo done"), bench.sh("sleep 60", gpus=1), bench.sh("true")
    bench.start(short), bench.start(long)
    before = bench.until(long, JobState.RUNNING)
    bench.backend.close()
    time.sleep(0.5)  # nobody looks
    bench.open()
    after = bench.job(long)
    assert (after.state, after.starts, after.parts) == (JobState.RUNNING, 1, before.parts)
    assert after.started_s == pytest.approx(before.started_s, abs=0.1)
    assert after.decision == "d"
    assert (bench.job(short).state, bench.job(waiting).state) == (JobState.FINISHED, JobState.WAITING)
    assert bench.output(short) == "done\n"
    assert bench.sh("true") == "4"


@pytest.mark.parametrize("point", ["mkdir", "order.json", "before the runner", "after the runner"])
def test_a_daemon_killed_while_it_starts_a_job_leaves_it_waiting_or_running_but_never_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    job = bench.sh("echo begun >> ../begun; sleep 0.2")
    write, spawn = write_record, os.posix_spawn

    def killed_at_write(path: Path, record: dict[str, object]) -> None:
        if path.name == "order.json" and point == "mkdir":
            raise KeyboardInterrupt
        write(path, record)
        if path.name == "order.json" and point == "order.json":
            raise KeyboardInterrupt

    def killed_at_spawn(*what: object, **more: object) -> int:
        if point == "after the runner":
            spawn(*what, **more)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local, "write_record", killed_at_write)
        patch.setattr(os, "posix_spawn", killed_at_spawn)
        with pytest.raises(KeyboardInterrupt):
            bench.start(job)
    bench.restart()
    if point == "after the runner":
        assert bench.job(job).state in (JobState.PLACED, JobState.RUNNING)
        assert bench.start(job) == ""  # the order again: it is there already
    else:
        assert (bench.job(job).state, bench.job(job).starts) == (JobState.WAITING, 0)
        assert bench.start(job, decision="again") == ""
    ended = bench.until(job, *ENDED)
    assert (ended.state, ended.starts) == (JobState.FINISHED, 1)
    assert (bench.spool / "jobs" / job / "begun").read_text() == "begun\n"


DAEMON = """
import sys
from adlro.backends.local.backend import Local
from adlro.core.ports import *
from adlro.core.records import Cluster, Job, Link, Node
link = Link("pcie", 32.0)
backend = Local(Cluster("here", "", (Node("n0", 8.0, 64.0, (), link),), link, {}), sys.argv[1])
print("up", flush=True)
for line in sys.stdin:
    if len(backend.read().jobs) < 12:
        backend.submit(Submission(Job("any", 1.0, gpus=0), ("/bin/sh", "-c", "echo $ADLRO_JOB >> " + sys.argv[2])))
    for live in backend.read().jobs:
        if live.state == "waiting":
            backend.act([Order(live.id, "d", (Part("n0", "cpu", 0),))])
    print("turn", flush=True)
"""


def test_jobs_of_a_daemon_that_is_killed_again_and_again_run_once_each(tmp_path: Path) -> None:
    chance, begun, spool = random.Random(7), tmp_path / "begun", tmp_path / "spool"
    for _ in range(10):
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(spool), str(begun)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "up\n"
        daemon.stdin.write(4 * "\n")
        daemon.stdin.flush()
        for _ in range(chance.randrange(3)):
            assert daemon.stdout.readline() == "turn\n"
        time.sleep(chance.random() * 0.03)
        daemon.kill()
        daemon.wait()
        daemon.stdin.close()
        daemon.stdout.close()
    backend = Local(CLUSTER, spool)
    try:
        for live in backend.read().jobs:
            backend.act([Order(live.id, "last", (Part("n0", CPU_ONLY, 0),))])
        until(lambda: all(job.state in ENDED for job in backend.read().jobs))
        jobs = backend.read().jobs
        assert len(jobs) > 3
        assert {job.state for job in jobs} == {JobState.FINISHED}
        assert [job.starts for job in jobs] == [1] * len(jobs)
        assert sorted(begun.read_text().split(), key=int) == [job.id for job in jobs]
    finally:
        backend.close()


def test_two_daemons_cannot_use_one_spool(bench: Bench) -> None:
    with pytest.raises(BackendError, match="another daemon uses the spool"):
        Local(CLUSTER, bench.spool)


# ---- clocks, numbers that come again, and what is broken ---------------------------------------------------------


def test_a_clock_that_is_set_forwards_or_back_makes_no_job_longer_or_shorter(bench: Bench) -> None:
    wall = {"s": time.time()}
    bench.restart(wall=lambda: wall["s"])
    job = bench.sh("sleep 0.3")
    bench.start(job)
    bench.until(job, JobState.RUNNING)
    before = bench.backend.read().time_s
    wall["s"] -= 7200.0
    assert before <= bench.backend.read().time_s < before + 60
    ended = bench.until(job, *ENDED)
    assert 0.3 <= (ended.ended_s or 0) - (ended.started_s or 0) < 5.0
    again = bench.restart().read().jobs[0]  # now by the clock as it was set
    assert 0.3 <= (again.ended_s or 0) - (again.started_s or 0) < 5.0
    assert again.job.submit_s <= (again.started_s or 0)
    assert (ended.started_s or 0) - (again.started_s or 0) == pytest.approx(7200.0, abs=60)


def test_a_job_that_ran_when_the_machine_went_down_waits_again(bench: Bench) -> None:
    job = bench.sh("exec sleep 60")
    bench.start(job)
    pid = bench.file(job, "child.json")["pid"]
    bench.until(job, JobState.RUNNING)
    bench.backend.close()
    # What a machine that went down leaves: no process, no lock, and files of another boot.
    os.kill(bench.file(job, "runner.json")["pid"], signal.SIGKILL)
    until(lambda: not is_alive(pid))
    file = bench.spool / "jobs" / job / "run-1" / "child.json"
    with somebody_else() as (other, ticks):
        known = {"boot": "another", "pid": other, "ticks": ticks}  # even if all its numbers came again
        file.write_text(json.dumps(json.loads(file.read_text()) | known))
        bench.open()
        assert (bench.job(job).state, bench.job(job).starts) == (JobState.WAITING, 1)
        assert is_alive(other)


@contextmanager
def somebody_else() -> Iterator[tuple[int, int]]:
    """A process of its own session, and when it began in ticks."""
    other = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    try:
        until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n")
        yield other.pid, int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
    finally:
        other.kill()
        other.wait()


def test_a_process_that_only_has_the_number_of_a_job_is_left_alone() -> None:
    with somebody_else() as (pid, ticks):
        assert leftovers({"pid": pid, "ticks": ticks}, "m") == [pid]
        assert leftovers({"pid": pid, "ticks": ticks - 1}, "m") == []


def test_a_spool_that_is_gone_or_broken_is_an_error_and_not_an_empty_machine(tmp_path: Path) -> None:
    backend = Local(CLUSTER, tmp_path / "spool")
    job = backend.submit(Submission(Job("any", 1.0), ("true",)))
    (tmp_path / "spool" / "jobs").rename(tmp_path / "away")
    with pytest.raises(BackendError, match="gone"):
        backend.read()
    (tmp_path / "away").rename(tmp_path / "spool" / "jobs")
    assert len(backend.read().jobs) == 1
    backend.close()
    (tmp_path / "spool" / "jobs" / job / "job.json").write_text("{")
    with pytest.raises(BackendError, match=r"job.json: its content was changed"):
        Local(CLUSTER, tmp_path / "spool")
    with pytest.raises(BackendError, match="2 nodes"):
        Local(replace(CLUSTER, nodes=CLUSTER.nodes * 2), tmp_path / "other")


def test_jobs_that_ended_long_ago_are_shown_twice_and_their_files_go_in_the_end(bench: Bench) -> None:
    now = {"s": time.monotonic()}
    bench.restart(monotonic=lambda: now["s"], keep_ended_s=100.0, keep_files_s=50.0)
    job = bench.sh("true")
    bench.backend.cancel(job)
    now["s"] += 1000.0
    old = time.time() - 1000.0
    os.utime(bench.spool / "jobs" / job, (old, old))
    assert [len(bench.backend.read().jobs) for _ in range(3)] == [1, 1, 0]
    now["s"] += 1000.0
    bench.backend.read()
    assert list((bench.spool / "jobs").iterdir()) == []
    assert bench.sh("true") == "2"  # no number comes twice
