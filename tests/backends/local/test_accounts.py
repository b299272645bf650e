"""The local back end as root: every job runs as its own user, and nobody reads or changes what is not theirs."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.accounts import temporary_account
from tests.backends.local.test_backend import CLUSTER, GREEN, Bench, is_alive, read, until

from adlro.backends.local.backend import LOCK_FD, RUNNER, Local
from adlro.core.accounts import Account, Owners
from adlro.core.errors import AccountError, BackendError
from adlro.core.ports import ENDED, JobState, Order, Submission
from adlro.core.records import Job


@pytest.fixture(scope="module")
def ann() -> Iterator[Account]:
    with temporary_account() as account:
        yield account


@pytest.fixture(scope="module")
def bob() -> Iterator[Account]:
    with temporary_account() as account:
        yield account


@pytest.fixture
def bench(ann: Account) -> Iterator[Bench]:
    """A spool that users can pass through; pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory(prefix="adlro-local.") as name:
        os.chmod(name, 0o711)
        mask = os.umask(0o022)  # the usual one: our files must not be open for it
        bench = Bench(Path(name), owners=Owners(are_accounts=True))
        yield bench
        os.umask(mask)
        for live in bench.backend.read().jobs:
            bench.backend.cancel(live.id)
        until(lambda: all(live.state in ENDED for live in bench.backend.read().jobs))
        until(lambda: bench.backend.read().time_s and not bench.backend._runners)
        bench.backend.close()


def as_user(account: Account, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as this user would after a login."""
    return subprocess.run(
        command, capture_output=True, text=True, cwd="/",
        user=account.uid, group=account.gid, extra_groups=account.groups,
    )  # fmt: skip


def test_a_job_has_the_uid_the_gid_and_the_groups_of_its_user(bench: Bench, ann: Account) -> None:
    job = bench.sh("id -u; id -g; id -G; grep -E '^(Cap(Prm|Eff|Amb)|Uid|Gid)' /proc/self/status", user=ann.name)
    assert bench.run(job).state is JobState.FINISHED
    uid, gid, groups, *status = bench.output(job).splitlines()
    assert (int(uid), int(gid)) == (ann.uid, ann.gid)
    assert {int(each) for each in groups.split()} == set(ann.groups)
    found = dict(line.split(":\t") for line in status)
    assert found["Uid"].split() == [str(ann.uid)] * 4
    assert found["Gid"].split() == [str(ann.gid)] * 4
    assert {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}


def test_a_job_cannot_read_the_tokens_the_spool_or_the_jobs_of_others(
    bench: Bench, ann: Account, bob: Account, tmp_path: Path
) -> None:
    tokens = bench.spool.parent / "tokens.json"
    tokens.touch(0o600)
    secret = bench.submit("/bin/echo", "said", environment={"KEY": "geheim"}, user=bob.name)
    assert bench.run(secret).state is JobState.FINISHED
    theirs = bench.spool / "jobs" / secret
    files = [theirs / "job.json", *(theirs / "run-1" / name for name in ("order.json", "out", "lock", "end.json"))]
    assert all(file.exists() for file in files)
    script = "".join(f"cat {file} && echo READ; (: >> {file}) && echo WRITTEN; " for file in [tokens, *files])
    script += f"ls {bench.spool} && echo LISTED; ls {theirs} && echo LISTED; touch {theirs}/stop && echo MADE; "
    script += "for it in /proc/self/fd/*; do readlink $it; done; true"
    job = bench.sh(script, user=ann.name)
    assert bench.run(job).state is JobState.FINISHED
    said = bench.output(job)
    assert not [word for word in ("READ", "WRITTEN", "LISTED", "MADE") if word in said]
    assert str(bench.spool) not in said, "no file of the spool is open in the job"
    environment = as_user(ann, "cat", f"/proc/{os.getpid()}/environ")
    assert environment.returncode != 0


def test_its_output_is_its_users_and_nobody_elses(bench: Bench, ann: Account, bob: Account) -> None:
    job = bench.sh("echo mine; echo also > /dev/stdout", user=ann.name)
    assert bench.run(job).state is JobState.FINISHED
    found = [bench.spool / "jobs" / job / "run-1" / name for name in ("out", "err")]
    for file in found:
        told = file.lstat()
        assert (told.st_uid, told.st_gid, stat.S_IMODE(told.st_mode)) == (ann.uid, ann.gid, 0o600)
    assert as_user(ann, "cat", str(found[0])).stdout == "mine\nalso\n"
    assert as_user(bob, "cat", str(found[0])).returncode != 0
    assert as_user(ann, "rm", "-f", str(found[0])).returncode != 0  # nor replace it by a link


def test_its_environment_and_folder_are_its_users_and_not_the_daemons(
    bench: Bench, ann: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLRO_TOKEN", "secret")
    monkeypatch.setenv("TMPDIR", "/nowhere/of/the/daemon")
    job = bench.sh("pwd; umask; env; touch made", user=ann.name)
    assert bench.run(job).state is JobState.FINISHED
    where, mask, *lines = bench.output(job).splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (where, mask) == (ann.home, "0022")
    assert [seen[name] for name in ("HOME", "USER", "LOGNAME", "SHELL")] == [ann.home, ann.name, ann.name, ann.shell]
    assert "TMPDIR" not in seen
    assert "secret" not in seen.values()
    assert (Path(ann.home) / "made").stat().st_uid == ann.uid


def test_a_folder_that_its_user_may_not_enter_is_not_entered(bench: Bench, ann: Account) -> None:
    with tempfile.TemporaryDirectory() as closed:  # root's, 0700
        wish = Submission(Job("any", 1.0, user=ann.name), ("/bin/touch", "here"), closed)
        ended = bench.run(bench.backend.submit(wish))
        assert (ended.state, ended.exit_code) == (JobState.FAILED, 126)
        assert f"Permission denied: '{closed}'" in ended.reason
        assert list(Path(closed).iterdir()) == []


@pytest.mark.parametrize("user", ["", "0", "00", "root", "daemon", "nobody", "no-such-login", "a b", "../x"])
def test_a_job_of_somebody_who_has_no_account_of_his_own_is_refused(bench: Bench, user: str) -> None:
    with pytest.raises(AccountError):
        bench.sh("id", user=user)
    assert bench.backend.read().jobs == ()


def test_a_job_whose_account_is_gone_waits_and_says_why(bench: Bench) -> None:
    with temporary_account() as gone:
        job = bench.sh("id", user=gone.name)
    assert bench.start(job) == f"there is no account {gone.name!r} on this machine; jobs run as their user."
    assert (bench.job(job).state, bench.job(job).starts) == (JobState.WAITING, 0)


def test_a_job_in_a_spool_of_old_that_has_no_account_does_not_run_as_root(bench: Bench) -> None:
    bench.restart(owners=None)
    old = bench.sh("id", user="0")
    bench.restart(owners=Owners(are_accounts=True))
    assert "is not a user name" in bench.start(old)
    assert bench.job(old).starts == 0


@pytest.mark.parametrize("is_cancel", [True, False])
def test_a_cancel_or_a_stop_ends_all_processes_of_another_user(bench: Bench, ann: Account, is_cancel: bool) -> None:
    files = [Path(ann.home) / name for name in (f"escaped{is_cancel}", f"first{is_cancel}")]
    escaped = f"setsid sh -c 'echo $$ > {files[0]}; sleep 60'"
    job = bench.sh(
        f"trap '' TERM; {escaped} & echo $$ > {files[1]}; sleep 60; sleep 60", user=ann.name, restartable=True
    )
    assert bench.start(job) == ""
    pids = [int(until(lambda file=file: read(file))) for file in files]  # type: ignore[misc]
    assert all(map(is_alive, pids))
    if is_cancel:
        bench.backend.cancel(job)
    else:
        bench.backend.act([Order(job, "s")])
    bench.until(job, JobState.CANCELLED if is_cancel else JobState.WAITING)
    assert not any(map(is_alive, pids))


def test_a_killed_runner_takes_a_job_of_another_user_with_it(bench: Bench, ann: Account) -> None:
    job = bench.sh("sleep 60", user=ann.name)
    assert bench.start(job) == ""
    bench.until(job, JobState.RUNNING)
    pid = bench.file(job, "child.json")["pid"]
    until(lambda: os.stat(f"/proc/{pid}").st_uid == ann.uid)
    os.kill(bench.file(job, "runner.json")["pid"], signal.SIGKILL)
    until(lambda: not is_alive(pid))  # by the kernel: nobody looked
    assert bench.until(job, JobState.WAITING).reason == "its runner was killed, or the machine went down"


def test_the_runner_is_out_of_its_users_reach(bench: Bench, ann: Account) -> None:
    job = bench.sh("kill -9 $PPID || echo no; sleep 0.2", user=ann.name)
    ended = bench.run(job)
    assert (ended.state, bench.output(job)) == (JobState.FINISHED, "no\n")


def test_a_job_whose_account_cannot_be_taken_does_not_run(bench: Bench, ann: Account, tmp_path: Path) -> None:
    """An order for root, or for more groups than the kernel takes, ends before the command."""
    for order in ([0, 0, [0]], [ann.uid, ann.gid, list(range(70_000))]):
        folder = tmp_path / str(order[0])
        folder.mkdir()
        wish = {"command": ["/bin/touch", str(tmp_path / "ran")], "directory": "/", "environment": {}, "mark": "m"}
        limits = {"limit_s": None, "memory": None, "most_memory": None, "grace_s": 1.0, "most_output": 1000}
        (folder / "order.json").write_text(json.dumps(wish | limits | {"account": order}))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        command = [sys.executable, "-I", "-S", str(RUNNER), str(folder)]
        runner = os.posix_spawn(command[0], command, {}, file_actions=[(os.POSIX_SPAWN_DUP2, lock, LOCK_FD)])
        os.close(lock)
        assert os.waitstatus_to_exitcode(os.waitpid(runner, 0)[1]) == 0
        end = json.loads((folder / "end.json").read_text())
        assert (end["why"], end["exit_code"]) == ("command", 126)
        assert "'its account'" in end["said"]
    assert not (tmp_path / "ran").exists()


def test_a_spool_that_others_may_change_is_refused(ann: Account, tmp_path: Path) -> None:
    for name, mode, uid in (("open", 0o777, 0), ("group", 0o770, 0), ("theirs", 0o700, ann.uid)):
        spool = tmp_path / name
        spool.mkdir()
        spool.chmod(mode)
        os.chown(spool, uid, uid)
        with pytest.raises(BackendError, match="others may change"):
            Local(CLUSTER, spool, owners=Owners(are_accounts=True))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BackendError, match="not a folder"):
        Local(CLUSTER, tmp_path / "link", owners=Owners(are_accounts=True))


def test_jobs_of_two_users_run_side_by_side_each_as_its_own(bench: Bench, ann: Account, bob: Account) -> None:
    jobs = {account.name: bench.sh("id -un", user=account.name) for account in (ann, bob)}
    for job in jobs.values():
        assert bench.start(job, GREEN) == ""
    for name, job in jobs.items():
        assert bench.until(job, *ENDED).state is JobState.FINISHED
        assert bench.output(job) == f"{name}\n"
