"""Run a command as another user without trusting it: that user can stop the process, or write through it."""

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Final

from adlro.core.accounts import Account
from adlro.core.errors import BackendError

MOST_OUTPUT: Final = 65_536
"""A command that prints more bytes than this is ended."""


def run_as(
    account: Account, command: Sequence[str], stdin: str, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, bytes, bytes]:
    """The exit code and the two outputs of a command that ran with the uid, the gid and the groups of an account.

    It starts in /, in a session of its own, with a umask that keeps its files private. One that does not end in time,
    or prints too much, is killed: BackendError. Raises OSError if it cannot be started as that user.
    """
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            list(command),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **account.environment},
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            umask=0o077,
            start_new_session=True,
        )
    with process:
        try:
            out, err = _outputs(process, command[0], time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            process.kill()
            raise
    return process.returncode, out, err


def _outputs(process: subprocess.Popen[bytes], name: str, until: float, timeout_s: float) -> tuple[bytes, bytes]:
    """What a process prints until it ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    found = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    out, err = found.values()
    with selectors.DefaultSelector() as selector:
        for pipe in found:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready and time.monotonic() >= until:
                raise BackendError(f"{name} has not answered for {timeout_s:g} s; is slurmctld up?")
            for key, _ in ready:
                data = os.read(key.fd, 4096)
                found[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if sum(map(len, found.values())) > MOST_OUTPUT:
                raise BackendError(f"{name} prints more than {MOST_OUTPUT} bytes.")
    try:
        process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise BackendError(f"{name} has not ended in {timeout_s:g} s.") from None
    return bytes(out), bytes(err)
