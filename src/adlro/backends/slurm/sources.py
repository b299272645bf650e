"""Where readings of Slurm come from: slurmrestd or its commands, behind one interface.

slurmrestd is asked with `update_time`, so that a cluster in which nothing happened costs a millisecond. Nothing here
takes an error for an empty cluster: Slurm's commands exit with 0 and an empty list when slurmctld is down.
"""

import http.client
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar, final

from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.parse import (
    SlurmNode,
    SlurmReservation,
    nodes_in,
    read_nodes,
    read_reservations,
    reservations_in,
    version_in,
)
from adlro.backends.slurm.parse_jobs import SlurmJob, jobs_in, read_jobs
from adlro.backends.slurm.rest import Rest
from adlro.core.errors import BackendError, TelemetryError

REREAD_S: Final = 60.0
"""However often the answer is "not modified", after so long everything is read anew."""

DEPENDENT_S: Final = 10.0
"""After so long, if a job waits for others: Slurm does not tell when it finds that a dependency is met."""

MARGIN_S: Final = 10
"""How far this machine's clock may be ahead of that of a slurmctld which does not tell its own (22.05)."""

NODES_SHARE: Final = 0.01
NODES_S: Final = 4.0
"""Nodes can only be read whole: whether they changed is asked this seldom, and for this share of the time at most."""


class SlurmSource(Protocol):
    """Where jobs and nodes come from."""

    @property
    def what(self) -> str:
        """What it is, in a word or two."""

    def jobs(self) -> list[SlurmJob]:
        """All jobs that Slurm still knows. Raises BackendError."""

    def nodes(self) -> list[SlurmNode]:
        """All nodes. Raises BackendError."""

    def reservations(self) -> list[SlurmReservation]:
        """All reservations that are not over. Raises BackendError."""

    def version(self) -> tuple[int, int] | None:
        """The generation of Slurm, if it is known yet."""

    def has_changed(self) -> bool:
        """Whether a job or a node has changed since both were read, asked cheaply. Raises BackendError."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CachedAnswer(Generic[_T]):
    """An answer, and what is needed to ask whether it is still true."""

    value: _T
    update_time: int
    read_at: float  # by the clock that never jumps
    offset: float  # between that and the clock on the wall


@final
class RestSource:
    """Jobs and nodes over slurmrestd; what has not changed is not read again."""

    what: Final = "slurmrestd"

    def __init__(
        self, rest: Rest, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Clocks are passed in by tests."""
        self._rest, self._clock, self._monotonic = rest, clock, monotonic
        self._jobs: CachedAnswer[list[SlurmJob]] | None = None
        self._nodes: CachedAnswer[list[SlurmNode]] | None = None
        self._version: tuple[int, int] | None = None
        self._whole: set[str] = set()  # what can only be read whole
        self._nodes_from = -math.inf  # when nodes may be asked for whether they changed

    def jobs(self) -> list[SlurmJob]:
        """All jobs that Slurm still knows."""
        before = self._jobs
        if before is not None and self._monotonic() - before.read_at > DEPENDENT_S:
            before = None if any(job.dependency and job.state == "PENDING" for job in before.value) else before
        self._jobs = self._read("/jobs", before, jobs_in)
        return self._jobs.value

    def nodes(self) -> list[SlurmNode]:
        """All nodes."""
        self._nodes = self._read("/nodes", self._nodes, nodes_in)
        return self._nodes.value

    def reservations(self) -> list[SlurmReservation]:
        """All reservations that are not over. There are few: they are read whole."""
        status, answer = self._rest.ask("GET", "/reservations")
        try:
            found = reservations_in(answer, f"slurmrestd at {self._rest.address}")
        except TelemetryError as error:
            raise BackendError(str(error)) from None
        if status != http.HTTPStatus.OK:
            raise BackendError(f"slurmrestd at {self._rest.address} answers {status} to /reservations.")
        return found

    def version(self) -> tuple[int, int] | None:
        """The generation of Slurm, once it has answered."""
        return self._version

    def has_changed(self) -> bool:
        """Whether a job or a node has changed. An answer with news is kept: it is not fetched again by the reading."""
        before, nodes = self._jobs, self._nodes
        if before is None or nodes is None:
            return False
        self._jobs = self._news("/jobs", before, jobs_in)
        if self._jobs.value is not before.value:
            return True
        began = self._monotonic()
        if began < self._nodes_from:
            return False
        self._nodes = self._news("/nodes", nodes, nodes_in)
        self._nodes_from = began + max(NODES_S, (self._monotonic() - began) / NODES_SHARE)
        return self._nodes.value is not nodes.value

    def _news(self, path: str, before: CachedAnswer[_T], read: Callable[[Any, str], _T]) -> CachedAnswer[_T]:
        """The answer now. A new one that says the same as the one before keeps its value.

        The margin for clocks that differ is left out: a change that is missed for it is seen at the next reading, and
        with it every change would be news for ten seconds.
        """
        asked = replace(before, update_time=max(before.update_time, int(before.read_at + before.offset)))
        found = self._read(path, asked, read)
        if found is asked:
            return before
        return replace(found, value=before.value) if found.value == before.value else found

    def _read(self, path: str, before: CachedAnswer[_T] | None, read: Callable[[Any, str], _T]) -> CachedAnswer[_T]:
        """The answer now; the one before if Slurm says that nothing has changed since."""
        wall, at = self._clock(), self._monotonic()
        if before is not None and (at - before.read_at > REREAD_S or abs(wall - at - before.offset) > 1):
            before = None  # old, or a clock was set: its time cannot be trusted
        if before is not None and path not in self._whole:
            status, answer = self._rest.ask("GET", f"{path}?update_time={before.update_time}")
            if status == http.HTTPStatus.NOT_MODIFIED or _says_unchanged(answer):
                return before
            if status != http.HTTPStatus.OK:
                self._whole.add(path)  # both generations fail so at /nodes, where partitions have not changed
                status, answer = self._rest.ask("GET", path)
        else:
            status, answer = self._rest.ask("GET", path)
        where = f"slurmrestd at {self._rest.address}"
        try:
            found = read(answer, where)
        except TelemetryError as error:
            raise BackendError(str(error)) from None
        if status != http.HTTPStatus.OK:
            raise BackendError(f"{where} answers {status} to {path}.")
        self._version = version_in(answer) or self._version
        return CachedAnswer(found, _told_at(answer) or int(wall) - MARGIN_S, at, wall - at)


def _says_unchanged(answer: Any) -> bool:
    """Whether 24.11 says that nothing has changed: with 200, an empty list, and a warning."""
    warnings = answer.get("warnings") if isinstance(answer, dict) else None
    texts = (str(each.get("description")) for each in warnings or () if isinstance(each, dict))
    return any("changes since update_time" in text for text in texts)


def _told_at(answer: Any) -> int:
    """The moment of an answer by Slurm's own clock, where it tells it."""
    told = answer.get("last_update")
    return int(told.get("number") or 0) if isinstance(told, dict) and told.get("set") else 0


@final
class CommandSource:
    """Jobs and nodes with Slurm's commands: every look reads everything."""

    what: Final = "the command line"

    def __init__(self, commands: Commands) -> None:
        """Nothing is run yet."""
        self._commands = commands
        self._outline: str | None = None  # of jobs and nodes, from before they were last read

    def jobs(self) -> list[SlurmJob]:
        """All jobs that Slurm still knows; those that ended must be asked for. Not scontrol: without a controller, that
        of 24.11 says without any error that there are no jobs.
        """
        if self._outline is not None:  # somebody asks for changes
            self._outline = self._outlined()
        return self._read(["squeue", "--states=all", "--json"], read_jobs)

    def nodes(self) -> list[SlurmNode]:
        """All nodes. Later than 22.05, sinfo groups them."""
        new = self._commands.version >= (23, 2)
        return self._read(["scontrol", "show", "nodes", "--json"] if new else ["sinfo", "--json"], read_nodes)

    def reservations(self) -> list[SlurmReservation]:
        """All reservations that are not over."""
        command = ["scontrol", "show", "reservation", "--oneliner"]
        ran = self._commands.run(command)
        if ran.code != 0:
            raise BackendError(f"'{' '.join(command)}' fails: {ran.said}")
        try:
            return read_reservations(ran.out, f"'{' '.join(command)}'")
        except TelemetryError as error:
            raise BackendError(str(error)) from None

    def version(self) -> tuple[int, int] | None:
        """The generation of Slurm."""
        return self._commands.version

    def has_changed(self) -> bool:
        """Whether the states of jobs and nodes are others; a few lines of text are far cheaper than JSON."""
        before, self._outline = self._outline, self._outlined()
        return before != self._outline  # also the first time, when it is not known: the next reading makes sure

    def _outlined(self) -> str:
        """The states of all jobs and nodes, as text."""
        found = []
        for command in (
            ["squeue", "--states=all", "--noheader", "--format=%i %T %r %P %N"],
            ["sinfo", "--Node", "--noheader", "--format=%N %T"],
        ):
            ran = self._commands.run(command)
            if ran.code != 0:
                raise BackendError(f"'{' '.join(command)}' fails: {ran.said}")
            found.append(ran.out)
        return "".join(found)

    def _read(self, command: Sequence[str], read: Callable[[str, str], _T]) -> _T:
        ran = self._commands.run(command)
        if ran.code != 0:
            raise BackendError(f"'{' '.join(command)}' fails: {ran.said}")
        try:
            if not ran.out.lstrip().startswith("{"):
                raise TelemetryError(f"'{' '.join(command)}' does not print JSON, but {ran.said[:60]!r}.")
            return read(ran.out, f"'{' '.join(command)}'")
        except TelemetryError as error:
            raise BackendError(str(error)) from None
