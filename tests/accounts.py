"""Accounts of this machine for the length of a test: a login with a home and a group beside its own."""

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.parts import program

from adlro.core.accounts import Account, account_of

PATIENCE_S = 30.0


@contextmanager
def temporary_account() -> Iterator[Account]:
    """A new account; only root can make one, so the test is skipped for others."""
    if os.geteuid() != 0:
        pytest.skip("only root can make an account and run jobs as others")
    name = f"adlro-{secrets.token_hex(4)}"
    home = Path(tempfile.mkdtemp(prefix=f"{name}."))
    try:
        _run("groupadd", f"{name}-lab")
        _run("useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", "--user-group",
             "--groups", f"{name}-lab", name)  # fmt: skip
        account = account_of(name)
        os.chown(home, account.uid, account.gid)
        yield account
    finally:
        _run("userdel", "--force", name, must=False)
        _run("groupdel", f"{name}-lab", must=False)
        shutil.rmtree(home, ignore_errors=True)


def _run(command: str, *words: str, must: bool = True) -> None:
    """Run one to its end. Another test may hold the lock of the user database just now."""
    until = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run([program(command), *words], capture_output=True, text=True)
        if "lock" not in done.stderr or time.monotonic() >= until:
            break
        time.sleep(0.1)
    assert done.returncode == 0 or not must, done.stderr
