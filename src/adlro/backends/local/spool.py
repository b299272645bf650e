"""Files and processes of the local back end: records in the spool, locks, outputs, what a dead runner left behind."""

import contextlib
import fcntl
import json
import os
import signal
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from adlro.core.accounts import Account
from adlro.core.errors import BackendError
from adlro.core.ports import (
    Submission,
)
from adlro.core.records import Cluster, Job

PASSED_ON: Final = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""All that a job gets of the daemon's environment: there may be secrets in the rest."""

NOT_FOR_OTHERS: Final = ("HOME", "LOGNAME", "SHELL", "TMPDIR", "USER")
"""What of that describes the daemon's own account: jobs of other accounts get their own."""

SHOWN_BYTES: Final = 64 * 1024
"""How much of the end of each output is shown."""

MARK: Final = "ADLRO_RUN"
"""The variable by which processes of a run are known again."""


def leftovers(child: Mapping[str, Any], mark: str) -> list[int]:
    """The processes that are left of a run: those of the session of its first process, and those that bear its mark.

    A process that only has the number of the first one, and began at another moment, is somebody else's.
    """
    first, ticks = child["pid"], child["ticks"]
    found: dict[int, tuple[str, int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (
                    Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
                found[int(name)] = fields[0], int(fields[3]), int(fields[19])
    is_reused = first in found and found[first][2] != ticks
    left = []
    for pid, (state, session, began) in found.items():
        if state in "ZX":
            continue
        in_session = session == first and began >= ticks and not is_reused
        if in_session or _bears(pid, mark):
            left.append(pid)
    return left


def _bears(pid: int, mark: str) -> bool:
    """Whether a process was made with this mark in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in environment.split(b"\0")


def ending_in_words(end: Mapping[str, Any]) -> str:
    """How a run ended, in words, if nothing else was said of it."""
    if end["why"]:
        return ""
    if end["signal"] is None:
        return f"exit code {end['exit_code']}"
    try:
        return f"signal {end['signal']} ({signal.Signals(end['signal']).name})"
    except ValueError:
        return f"signal {end['signal']}"


def enter_folder(stack: contextlib.ExitStack, path: Path | str, inside: int | None = None) -> int:
    """Open a folder that is no link; it is closed with the stack."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    stack.callback(os.close, folder)
    return folder


def end_of_file(name: str, folder: int) -> tuple[str, int]:
    """The end of a plain file of a folder that has no other name, and the size of all of it; nothing else is read."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return "", 0
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return "", 0
        skipped = max(0, status.st_size - SHOWN_BYTES)
        return os.pread(file, SHOWN_BYTES, skipped).decode("utf-8", "replace"), status.st_size
    finally:
        os.close(file)


def is_locked(lock: Path) -> bool:
    """Whether somebody holds the lock of a run, so that its runner is alive."""
    try:
        file = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return is_taken(file)
    finally:
        os.close(file)


def is_taken(file: int) -> bool:
    """Take the lock of an open file; true if somebody else has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a file whole or not at all, so that it lasts."""
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    made = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(made, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_spool_file(path: Path) -> dict[str, Any] | None:
    """What a file of the spool says; None if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BackendError(f"{path}: its content was changed. Move the folder of that job away.")
    return found


def submission_json(submission: Submission) -> dict[str, Any]:
    """A submission as it is written in the spool."""
    job = asdict(submission.job)
    return {
        "job": job | {"models": sorted(submission.job.models)},
        "command": list(submission.command),
        "directory": submission.directory,
        "environment": dict(submission.environment),
    }


def from_json(record: Mapping[str, Any]) -> Submission:
    """A submission as it was written in the spool."""
    job = Job(**{**record["job"], "models": frozenset(record["job"]["models"])})
    return Submission(job, tuple(record["command"]), record["directory"], record["environment"])


def wrong_with_command(submission: Submission) -> str:
    """What is wrong with what a job shall run; nothing if all is well."""
    command, environment = submission.command, submission.environment
    if not command or not command[0]:
        return "there is no command; expected a program and its arguments"
    texts = [*command, submission.directory, *environment, *environment.values()]
    if any("\0" in text for text in texts):
        return "a text of its command, directory or environment has a zero byte in it"
    if wrong := [name for name in environment if not name or "=" in name]:
        return f"{wrong[0]!r} is no name of a variable"
    if submission.directory and not os.path.isabs(submission.directory):
        return f"the directory {submission.directory!r} is not absolute"
    return ""


def numbers_by_vendor(cluster: Cluster) -> tuple[int, ...]:
    """The number of each GPU of the node among those of its vendor: how drivers count them."""
    counts: dict[str, int] = {}
    numbers = []
    for group in cluster.nodes[0].gpus:
        vendor = cluster.models[group.model].vendor
        for _ in range(group.count):
            numbers.append(counts.get(vendor, 0))
            counts[vendor] = numbers[-1] + 1
    return tuple(numbers)


def passed_on(account: Account | None = None) -> dict[str, str]:
    """What a job gets of the daemon's environment; the account's own values in place of those of the daemon's."""
    found = {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}
    if account is None:
        return found
    return {name: value for name, value in found.items() if name not in NOT_FOR_OTHERS} | account.environment
