"""Which texts are names, and which accounts jobs may run as."""

import os
import pwd
from pathlib import Path

import pytest
from tests.accounts import temporary_account

from adlro.core import accounts
from adlro.core.accounts import Owners, account_of, is_name, login_range, why_not
from adlro.core.errors import AccountError

NUMBERS = ["0", "00", "000000", "1000", "+0", "-0", " 0", "0 ", "0\n", "0.0", "_0", "٠", "０", "²", "4294967296"]
ODD = ["", " ", "-ann", ".ann", "a b", "a/b", "a\nb", "ann\n", "ann\0", "../x", "x" * 65, "zoë", "a,b", "a:b", "$a"]


@pytest.mark.parametrize("text", NUMBERS + ODD)
def test_a_number_or_an_odd_text_is_no_name(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(AccountError, match="is not a user name"):
        account_of(text)
    with pytest.raises(AccountError, match="is not a user name"):
        Owners().account(text)


@pytest.mark.parametrize("text", ["ann", "Ann_B.c-d", "_apt", "x", "3fabian", "ann@example.org", "x" * 64])
def test_a_login_name_is_a_name(text: str) -> None:
    assert is_name(text)


def known(monkeypatch: pytest.MonkeyPatch, **records: tuple[str, int]) -> None:
    """Let this machine have these accounts: what is asked for, the name in the record, and the uid."""

    def find(name: str) -> pwd.struct_passwd:
        found, uid = records[name]
        return pwd.struct_passwd((found, "x", uid, uid, "", "/nowhere", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", find)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid])
    monkeypatch.setattr(accounts, "login_range", lambda: (1000, 60_000))


def test_jobs_never_run_as_root_whatever_its_name_and_whatever_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, root=("root", 0), toor=("toor", 0))
    for name in ("root", "toor"):
        for min_uid in (0, 1, -5):
            with pytest.raises(AccountError, match="its uid is 0"):
                account_of(name, min_uid)


def test_jobs_do_not_run_as_system_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    system = {"daemon": 1, "ann": 999, "slurm": 64_030, "nobody": 65_534, "none": 65_535, "last": 2**32 - 1}
    known(monkeypatch, **{name: (name, uid) for name, uid in system.items()})
    for name in system:
        with pytest.raises(AccountError, match="jobs may not run as"):
            account_of(name)
    assert account_of("ann", min_uid=500).uid == 999


def test_the_name_in_the_record_must_be_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, ANN=("ann", 1000))
    with pytest.raises(AccountError, match="another name of the account 'ann'"):
        account_of("ANN")


def test_an_account_that_is_not_there_is_refused() -> None:
    with pytest.raises(AccountError, match="no account 'nobody-of-this-name'"):
        account_of("nobody-of-this-name")


def test_an_account_whose_groups_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, ann=("ann", 1000))

    def fail(name: str, gid: int) -> list[int]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "getgrouplist", fail)
    with pytest.raises(AccountError, match="groups of 'ann' cannot be read"):
        account_of("ann")


def test_the_range_of_people_is_that_of_login_defs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "login.defs"
    assert login_range(file) == (1000, 60_000)
    file.write_text("# UID_MIN 1\nUID_MIN\t\t 500\nUID_MAX 64000\nSYS_UID_MIN 100\n")
    assert login_range(file) == (500, 64_000)
    file.write_text("UID_MIN 0\nUID_MAX many\n")
    assert login_range(file) == (1, 60_000)
    monkeypatch.setattr(accounts, "login_range", lambda: (1000, 60_000))
    assert [uid for uid in (999, 1000, 60_000, 60_001, 65_535, 65_536) if not why_not(uid)] == [1000, 60_000, 65_536]


def test_an_account_has_its_own_gid_and_all_its_groups() -> None:
    with temporary_account() as account:
        record = pwd.getpwnam(account.name)
        assert (account.uid, account.gid, account.home) == (record.pw_uid, record.pw_gid, record.pw_dir)
        assert len(account.groups) == 2
        assert account.gid in account.groups
        assert 0 not in account.groups


def test_where_jobs_share_one_account_only_its_user_may_have_some() -> None:
    assert Owners(only="ann").account("ann") is None
    with pytest.raises(AccountError, match="'bob' would get that account"):
        Owners(only="ann").account("bob")
    assert Owners().account("bob") is None
