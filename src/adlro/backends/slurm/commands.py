"""Run Slurm's commands with a time limit, as ourselves or as a user."""

import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.slurm.as_user import run_as
from adlro.backends.slurm.jobs import STARTING_S
from adlro.backends.slurm.models import PATIENCE_S
from adlro.backends.slurm.rest import TIMEOUT_S
from adlro.core.accounts import Account
from adlro.core.errors import BackendError

CONFIG_S: Final = 600.0
"""Slurm's config is read again after this time."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The first line of its error message."""
        return next((line.strip() for line in (self.err or self.out).splitlines() if line.strip()), f"exit {self.code}")


@final
class Commands:
    """Slurm's own commands. Every word is a separate argument: nothing goes through a shell."""

    def __init__(self, conf: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """`conf` is the path of slurm.conf, if it is not where Slurm looks for it."""
        self._timeout_s = timeout_s
        # Not the whole environment: SQUEUE_FORMAT, SBATCH_… and the like would change what is said.
        self._environment = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TZ") if name in os.environ}
        self._environment |= {"LC_ALL": "C.UTF-8", "SLURM_BITSTR_LEN": "0"}  # lists of tasks are not shortened
        if conf or os.environ.get("SLURM_CONF"):
            self._environment["SLURM_CONF"] = conf or os.environ["SLURM_CONF"]
        self._version: tuple[int, int] | None = None

    def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
        """Run a command to its end. One that is not there, or does not end, is a BackendError.

        With an account it runs as that user, with the user's uid, gid and groups.
        """
        try:
            if account is not None:
                code, out, err = run_as(account, command, stdin, self._environment, self._timeout_s)
                return Ran(code, out.decode(errors="replace"), err.decode(errors="replace"))
            done = subprocess.run(
                list(command),
                input=stdin.encode(),
                capture_output=True,
                timeout=self._timeout_s,
                env=self._environment,
                check=False,
            )
        except FileNotFoundError:
            raise BackendError(f"{command[0]} is not installed here; Debian's package is slurm-client.") from None
        except subprocess.TimeoutExpired:
            raise BackendError(f"{command[0]} has not answered for {self._timeout_s:g} s; is slurmctld up?") from None
        except (OSError, ValueError) as error:
            raise BackendError(f"{command[0]} cannot be run: {error}.") from None
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    @property
    def version(self) -> tuple[int, int]:
        """The generation of the installed Slurm: (22, 5)."""
        if self._version is None:
            ran = self.run(["scontrol", "--version"])
            found = re.search(r"(\d+)\.(\d+)", ran.out)
            if not found:
                raise BackendError(f"'scontrol --version' says {ran.said!r}; expected a version of Slurm.")
            self._version = int(found[1]), int(found[2])
        return self._version


@final
class Patience:
    """How long a Slurm takes to look for backfill: bf_interval of its SchedulerParameters, read now and then."""

    def __init__(self, commands: Commands, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read yet."""
        self._commands, self._monotonic = commands, monotonic
        self._seconds, self._until = PATIENCE_S, -math.inf

    def __call__(self) -> float:
        """The seconds; Slurm's default if it does not say."""
        if self._monotonic() >= self._until:
            self._until = self._monotonic() + CONFIG_S
            with suppress(BackendError):
                self._seconds = patience_in(self._commands.run(["scontrol", "show", "config"]).out)
        return self._seconds


def patience_in(config: str) -> float:
    """The seconds in the output of `scontrol show config`."""
    parameters = re.search(r"^SchedulerParameters\s*=\s*(\S*)", config, re.M)
    found = re.search(r"(?:^|,)bf_interval=(\d+)(?:,|$)", parameters[1]) if parameters else None
    return float(found[1]) + STARTING_S if found else PATIENCE_S
