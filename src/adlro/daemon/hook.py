"""Tells a program of the site that a job was stopped: to mail its user, for example (docs/preemption.md).

The program gets one JSON object on its standard input. No shell reads it, and no turn waits for it.
"""

import json
import os
import queue
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from adlro.core.errors import ConfigError
from adlro.daemon.fence import log

HOOK_S: Final = 30.0
"""How long the program may run; then it is killed, with what it started."""

MOST_UNTOLD: Final = 1000
"""Events that may wait for the program; further ones are dropped."""

CLOSING_S: Final = 2.0
"""How long the daemon waits at its end for events that are still to be told."""


def check_hook(program: str) -> None:
    """Raise ConfigError unless this is "", or a program that only root or the daemon's own account can change."""
    if not program:
        return
    path = Path(program)
    if not path.is_absolute():
        raise ConfigError(f"[preempt] tell is '{program}'; expected the whole path of a program, without arguments.")
    try:
        about = path.stat()
    except OSError as error:
        raise ConfigError(f"[preempt] tell: '{program}' cannot be used: {error.strerror}.") from None
    mode = about.st_mode
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise ConfigError(f"[preempt] tell: '{program}' is no program that the daemon may run. chmod +x it.")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"[preempt] tell: others than its owner can change '{program}'. chmod go-w it.")
    if about.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"[preempt] tell: '{program}' belongs to another account. chown it to root, or to the daemon's."
        )


@final
class StopHook:
    """Runs the program for one event after the other, in a thread of its own. Failures are logged."""

    def __init__(self, timeout_s: float = HOOK_S) -> None:
        self._timeout_s = timeout_s
        self._waiting: queue.Queue[tuple[str, Mapping[str, Any]]] = queue.Queue(MOST_UNTOLD)
        self._thread: threading.Thread | None = None

    def tell(self, program: str, event: Mapping[str, Any]) -> None:
        """Run the program with this event as soon as those before it are told."""
        try:
            self._waiting.put_nowait((program, event))
        except queue.Full:
            log.warning("a stop is not told: the program is too slow", extra={"job": event.get("job", "")})
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stop-hook", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait a moment for events that are still to be told."""
        until = time.monotonic() + CLOSING_S
        while self._waiting.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)

    def _run(self) -> None:
        while True:
            program, event = self._waiting.get()
            try:
                if why := run_hook(program, event, self._timeout_s):
                    log.warning("a stop could not be told", extra={"job": event.get("job", ""), "why": why})
            except Exception:
                log.exception("a stop could not be told")
            finally:
                self._waiting.task_done()


def run_hook(program: str, event: Mapping[str, Any], timeout_s: float) -> str:
    """Run the program with an event on its standard input; returns why that failed, "" if it did not.

    It gets nothing of the daemon's environment, which may hold passwords, but PATH, HOME, USER and TZ.
    """
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TZ") if name in os.environ}
    try:
        check_hook(program)  # it may have changed since the daemon started
        process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment | {"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except (OSError, ConfigError) as error:
        return str(error)
    try:
        process.communicate(json.dumps(event).encode() + b"\n", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{program} was still running after {timeout_s:g} s, and was killed"
    return f"{program} ended with code {process.returncode}" if process.returncode else ""
