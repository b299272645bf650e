"""Commands that run as another user: with that user's rights, and never longer or louder than they may."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.accounts import temporary_account

from adlro.backends.slurm.as_user import MOST_OUTPUT, run_as
from adlro.backends.slurm.commands import Commands
from adlro.core.accounts import Account
from adlro.core.errors import BackendError

PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def ann() -> Iterator[Account]:
    with temporary_account() as account:
        yield account


def sh(account: Account, script: str, stdin: str = "", timeout_s: float = 20.0) -> tuple[int, bytes, bytes]:
    return run_as(account, ["/bin/sh", "-c", script], stdin, PATH, timeout_s)


def test_it_has_the_users_rights_and_nothing_of_our_process(ann: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADLRO_TOKEN", "geheim")
    script = "id -u; id -g; id -G; pwd; umask; echo $HOME $USER; env | grep -c geheim; ls /proc/self/fd | wc -l"
    code, out, err = sh(ann, script)
    uid, gid, groups, folder, mask, words, secrets, files = out.decode().splitlines()
    assert (int(uid), int(gid), {int(each) for each in groups.split()}) == (ann.uid, ann.gid, set(ann.groups))
    assert (folder, mask, words, secrets) == ("/", "0077", f"{ann.home} {ann.name}", "0")
    assert int(files) <= 5  # the three, and those of the listing
    assert (code, err) == (0, b"")


def test_its_input_comes_whole_and_its_exit_code_and_outputs_are_told(ann: Account) -> None:
    assert sh(ann, "wc -c; echo no >&2; exit 3", "x" * 200_000) == (3, b"200000\n", b"no\n")


def test_one_that_prints_without_end_is_ended(ann: Account) -> None:
    with pytest.raises(BackendError, match=f"more than {MOST_OUTPUT} bytes"):
        sh(ann, "yes")


def test_one_that_its_user_stops_is_ended_in_time(ann: Account) -> None:
    began = time.monotonic()
    with pytest.raises(BackendError, match="has not answered"):
        sh(ann, "kill -STOP $$", timeout_s=0.5)
    with pytest.raises(BackendError, match="has not ended"):
        sh(ann, "exec >&- 2>&-; sleep 60", timeout_s=0.5)
    assert time.monotonic() - began < 10


def test_a_program_that_is_not_there_is_told_as_of_ourselves(ann: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", PATH["PATH"])
    with pytest.raises(BackendError, match="sbatch-of-nobody is not installed"):
        Commands().run(["sbatch-of-nobody"], account=ann)


def test_groups_that_cannot_be_had_are_an_error(ann: Account) -> None:
    with pytest.raises(BackendError, match="cannot be run"):
        Commands().run(["true"], account=replace(ann, groups=tuple(range(70_000))))
