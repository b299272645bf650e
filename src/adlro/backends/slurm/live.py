"""Read a running Slurm: over slurmrestd or with its commands, behind one interface, and one reader for all of ADLRO.

slurmrestd is asked with `update_time`, so that a cluster in which nothing happened costs a millisecond. Nothing here
takes an error for an empty cluster: Slurm's commands exit with 0 and an empty list when slurmctld is down.
"""

import http.client
import json
import math
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar, final
from urllib.parse import urlsplit

from adlro.backends.slurm.as_user import run_as
from adlro.backends.slurm.jobs import (
    PATIENCE_S,
    RUNS,
    STARTING_S,
    UNIFORM,
    Devices,
    Naming,
    Site,
    Told,
    cluster_of,
    down_of,
    reserved_nodes,
    sites_of,
    told_of,
)
from adlro.backends.slurm.parse import (
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    jobs_in,
    nodes_in,
    read_jobs,
    read_nodes,
    read_reservations,
    reservations_in,
    version_in,
)
from adlro.core.accounts import Account
from adlro.core.errors import BackendError, TelemetryError
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Part, Setback, Snapshot
from adlro.core.records import Job

TIMEOUT_S: Final = 30.0
"""Slurm itself gives up on its controller after about 9 s; a large queue takes a second to be written down."""

KNOWN_API: Final = 42
"""The newest v0.0.N that was tried; a newer slurmrestd speaks this one too."""

REREAD_S: Final = 60.0
"""However often the answer is "not modified", after so long everything is read anew."""

HANGS_S: Final = 10.0
"""A slurmrestd that let a question time out is not asked for so long; the command line is used at once instead."""

PROBE_S: Final = 2.0
"""Then it is asked whether it answers again, and is not waited for longer than this."""

DEPENDENT_S: Final = 10.0
"""After so long, if a job waits for others: Slurm does not tell when it finds that a dependency is met."""

MARGIN_S: Final = 10
"""How far this machine's clock may be ahead of that of a slurmctld which does not tell its own (22.05)."""

SAME_S: Final = 10.0
"""For so long an unchanged answer means an unchanged snapshot; later, a job may have waited too long in its place."""

KEPT_S: Final = 900.0
"""How long a job that vanished from Slurm's answers is told as ended."""

LEAK_S: Final = 15.0
"""GPUs that no job has must be counted as used for so long before they count as leaked."""

FORGOTTEN_S: Final = 20.0
"""A job that slurmctld forgot to have started is not placed for so long. Its script still runs: slurmctld ends that run
when the node registers (5 s later in the lab). Who starts the job again before has it twice, and Slurm drains the node
("Duplicate jobid").
"""

NODES_SHARE: Final = 0.01
NODES_S: Final = 4.0
"""Nodes can only be read whole: whether they changed is asked this seldom, and for this share of the time at most."""

CONFIG_S: Final = 600.0
"""Slurm's config is read again after so long."""

MOST_NOTES: Final = 50


# ---- the two ways ------------------------------------------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str, timeout: float) -> None:
        """The socket at `path`."""
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@final
class Rest:
    """A slurmrestd: at unix:/path, or at http(s)://host:port with a token. One connection, kept open."""

    def __init__(
        self, address: str, user: str = "", token: Callable[[], str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Nothing is asked yet. `token` is called at the start, and again when one has expired."""
        self.address = address
        self._user, self._token, self._timeout_s = user, token, timeout_s
        self._secret = ""
        self._connection: http.client.HTTPConnection | None = None
        self._api = 0
        self._hung_s: float | None = None  # when it last let a question time out, by the clock that never jumps

    @property
    def api(self) -> int:
        """The N of the v0.0.N that is spoken: the newest that both sides know."""
        if not self._api:
            _, answer = self._ask("GET", "/openapi/v3", None, True)
            paths = answer.get("paths") if isinstance(answer, dict) else None
            found = (re.fullmatch(r"/slurm/v0\.0\.(\d+)/jobs/?", str(path)) for path in paths or ())
            numbers = sorted(int(match[1]) for match in found if match)
            if not numbers:
                raise BackendError(f"slurmrestd at {self.address} does not offer /slurm/v0.0.N/jobs; is it slurmrestd?")
            self._api = max((number for number in numbers if number <= KNOWN_API), default=numbers[0])
        return self._api

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, again: bool = True) -> tuple[int, Any]:
        """The status and the JSON of an answer. `again`: asking twice does no harm. No answer is a BackendError."""
        return self._ask(method, f"/slurm/v0.0.{self.api}{path}", body, again)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, again: bool) -> tuple[int, Any]:
        self._check_hangs()
        if not again:
            self.close()  # a connection that the other side has closed would fail after the request was sent
        try:
            status, text = self._exchange(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not again or isinstance(error, TimeoutError | ConnectionRefusedError | FileNotFoundError):
                raise self._silent(error) from None
            try:
                status, text = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as second:
                self.close()
                raise self._silent(second) from None
        if status == http.HTTPStatus.UNAUTHORIZED and self._token:
            self._secret = ""  # it may have expired: ask for a new one, once
            try:
                status, text = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._silent(error) from None
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise BackendError(
                f"slurmrestd at {self.address} refuses access (401). Over a socket it must run as the same user; "
                "over TCP it needs a token of 'scontrol token'."
            )
        if status == http.HTTPStatus.NOT_MODIFIED:
            return status, None
        try:
            return status, json.loads(text)
        except ValueError:
            raise BackendError(
                f"slurmrestd at {self.address} answers {status} to {path}, and not in JSON: {text[:80]!r}."
            ) from None

    def _check_hangs(self) -> None:
        """Raise at once while it hangs: who waits for it at every call holds up every turn."""
        if self._hung_s is None:
            return
        for_s = time.monotonic() - self._hung_s
        if for_s < HANGS_S:
            raise BackendError(f"slurmrestd at {self.address} does not answer: a request timed out {for_s:.0f} s ago.")
        try:
            self._exchange("GET", "/openapi/v3", None, min(PROBE_S, self._timeout_s))
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        finally:
            self.close()  # its time-out is that of the probe
        self._hung_s = None

    def _silent(self, error: Exception) -> BackendError:
        self._hung_s = time.monotonic() if isinstance(error, TimeoutError) else None
        return BackendError(f"slurmrestd at {self.address} does not answer: {_said(error)}.")

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = connection_to(self.address, timeout_s or self._timeout_s)
        headers = {"Accept": "application/json"}
        if self._token is not None:
            self._secret = self._secret or self._token()
            headers["X-SLURM-USER-TOKEN"] = self._secret
            if self._user:
                headers["X-SLURM-USER-NAME"] = self._user
        if body is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def connection_to(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to unix:/path, http://host:port or https://host:port."""
    if address.startswith(("unix:", "/")):
        return UnixConnection(address.removeprefix("unix:"), timeout_s)
    parts = urlsplit(address)
    if parts.scheme == "https" and parts.hostname:
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    if parts.scheme == "http" and parts.hostname:
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    raise BackendError(
        f"'{address}' is not an address of slurmrestd; expected unix:/path, http://host:port or https://…."
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The first line of what it said of its failure."""
        return next((line.strip() for line in (self.err or self.out).splitlines() if line.strip()), f"exit {self.code}")


@final
class Commands:
    """Slurm's own commands. Every word is an argument of its own: nothing goes through a shell."""

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
    """How long a Slurm takes to look for backfill: bf_interval of its SchedulerParameters, asked for now and then."""

    def __init__(self, commands: Commands, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Nothing is asked yet."""
        self._commands, self._monotonic = commands, monotonic
        self._seconds, self._until = PATIENCE_S, -math.inf

    def __call__(self) -> float:
        """The seconds; if Slurm does not say, its default."""
        if self._monotonic() >= self._until:
            self._until = self._monotonic() + CONFIG_S
            with suppress(BackendError):
                self._seconds = patience_in(self._commands.run(["scontrol", "show", "config"]).out)
        return self._seconds


def patience_in(config: str) -> float:
    """The same from what `scontrol show config` prints."""
    parameters = re.search(r"^SchedulerParameters\s*=\s*(\S*)", config, re.M)
    found = re.search(r"(?:^|,)bf_interval=(\d+)(?:,|$)", parameters[1]) if parameters else None
    return float(found[1]) + STARTING_S if found else PATIENCE_S


class Source(Protocol):
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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remembered(Generic[T]):
    """An answer, and what is needed to ask whether it is still true."""

    value: T
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
        self._jobs: Remembered[list[SlurmJob]] | None = None
        self._nodes: Remembered[list[SlurmNode]] | None = None
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

    def _news(self, path: str, before: Remembered[T], read: Callable[[Any, str], T]) -> Remembered[T]:
        """The answer now. A new one that says the same as the one before keeps its value.

        The margin for clocks that differ is left out: a change that is missed for it is seen at the next reading, and
        with it every change would be news for ten seconds.
        """
        asked = replace(before, update_time=max(before.update_time, int(before.read_at + before.offset)))
        found = self._read(path, asked, read)
        if found is asked:
            return before
        return replace(found, value=before.value) if found.value == before.value else found

    def _read(self, path: str, before: Remembered[T] | None, read: Callable[[Any, str], T]) -> Remembered[T]:
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
        return Remembered(found, _told_at(answer) or int(wall) - MARGIN_S, at, wall - at)


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

    def _read(self, command: Sequence[str], read: Callable[[str, str], T]) -> T:
        ran = self._commands.run(command)
        if ran.code != 0:
            raise BackendError(f"'{' '.join(command)}' fails: {ran.said}")
        try:
            if not ran.out.lstrip().startswith("{"):
                raise TelemetryError(f"'{' '.join(command)}' does not print JSON, but {ran.said[:60]!r}.")
            return read(ran.out, f"'{' '.join(command)}'")
        except TelemetryError as error:
            raise BackendError(str(error)) from None


# ---- one reader --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What one source told."""

    jobs: list[SlurmJob]
    nodes: list[SlurmNode]
    reservations: list[SlurmReservation]
    version: tuple[int, int] | None

    def is_as(self, other: "Reading") -> bool:
        """Whether nothing has happened since another reading. Of jobs, the source gives the same list then."""
        return self.jobs is other.jobs and self.nodes == other.nodes and self.reservations == other.reservations


@dataclass(frozen=True, slots=True)
class Before:
    """The last reading, for the case that nothing has happened since."""

    reading: Reading
    snapshot: Snapshot
    odd: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A job that ran, and of which slurmctld knew no more when it was started again: when that was seen, how often."""

    at_s: float
    starts: int


@final
class Leaks:
    """GPUs that Slurm counts as used though no job has them: after a crash of slurmctld some may be.

    Slurm gives them to nobody, so they must not count as free. They are shown as held by a job that is not ours.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._since: dict[tuple[str, str], float] = {}

    def look(self, sites: Mapping[str, Site], jobs: Sequence[LiveJob], now_s: float) -> tuple[list[LiveJob], list[str]]:
        """A stand-in for each leak that lasts, and a line about it. Jobs and nodes are read one after the other, so a
        difference may be a job that began in between.
        """
        held: dict[tuple[str, str], int] = {}
        for job in jobs:
            for part in job.parts if job.state in PLACES else ():
                held[part.node, part.model] = held.get((part.node, part.model), 0) + part.count
        leaks = {
            at: extra
            for name, site in sites.items()
            for model, devices in site.devices.items()
            if (extra := used_of(site, devices) - held.get(at := (name, model), 0)) > 0
        }
        self._since = {at: self._since.get(at, now_s) for at in leaks}
        found, lines = [], []
        for (node, model), count in leaks.items():
            since = self._since[node, model]
            if now_s - since < LEAK_S:
                continue
            books = Job(UNIFORM, 0.0, since, gpus=count, name="used in Slurm's books")
            reason = "Slurm counts these GPUs as used, and no job has them"
            found.append(
                LiveJob(
                    f"leak@{node}/{model}",
                    books,
                    JobState.RUNNING,
                    (Part(node, model, count),),
                    since,
                    managed=False,
                    reason=reason,
                )
            )
            lines.append(
                f"node {node}: Slurm counts {count} {model} as used that no job has. 'scontrol reconfigure' frees them."
            )
        return found, lines


def used_of(site: Site, devices: Devices) -> int:
    """How many of these devices Slurm counts as used."""
    types = set(devices.types)
    return min(sum(count for word, count in site.node.used if word in types), len(devices.types))


@final
class Reader:
    """Snapshots of one Slurm, from the first of its sources that answers.

    It keeps what Slurm forgets: the devices of a job that has ended, the first submission of one that was put back,
    that a job ran when slurmctld was killed before it had saved that, and that a job was there at all, should Slurm
    lose it or drop it before it was seen to end.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        naming: Naming,
        clock: Callable[[], float] = time.time,
        patience: Callable[[], float] = lambda: PATIENCE_S,
    ) -> None:
        """At least one source, the preferred first. `patience` says how long Slurm takes to look for backfill."""
        self._sources, self._naming, self._clock, self._patience = tuple(sources), naming, clock, patience
        self._told: dict[str, Told] = {}
        self._sites: dict[str, Site] = {}
        self._parts: dict[str, tuple[Part, ...]] = {}
        self._first: dict[str, tuple[SlurmJob, float]] = {}
        self._gone: dict[str, LiveJob] = {}
        self._forgotten: dict[str, Forgotten] = {}
        self._leaks = Leaks()
        self._before: Before | None = None
        self._latest: Source | None = None  # who answered last
        self._has_changed = False

    def has_changed(self) -> bool:
        """Whether a job or a node has changed since the latest reading. Raises BackendError."""
        if not self._has_changed and self._latest is not None:
            self._has_changed = self._latest.has_changed()
        return self._has_changed

    def read(self) -> Snapshot:
        """The cluster now. Raises BackendError when no source gives all of it."""
        now = self._clock()
        self._has_changed = False
        reading, notes = self._ask()
        before, patience_s = self._before, self._patience()
        same_s = min(SAME_S, patience_s / 2)
        if before is not None and reading.is_as(before.reading) and 0 <= now - before.at_s < same_s:
            return replace(before.snapshot, time_s=now, notes=tuple([*notes, *before.odd][:MOST_NOTES]))
        sites, problems = sites_of(reading.nodes, self._naming)
        reserved = reserved_nodes(reading.reservations, sites, now)
        keeps_types = reading.version is None or reading.version < (24, 11)
        told, odd = told_of(reading.jobs, sites, self._naming, now, keeps_types, reserved, patience_s)
        lost: list[str] = []
        kept = {each.live.id: self._with_memory(each, now, lost) for each in told}
        lost += self._note_gone(kept, now)
        self._told, self._sites = kept, sites
        live = [each.live for each in kept.values()]
        leaked, leaks = self._leaks.look(sites, live, now)
        live += leaked
        odd += leaks
        snapshot = Snapshot(
            time_s=now,
            cluster=cluster_of(sites, self._naming),
            jobs=tuple(live + [job for job in self._gone.values() if job.id not in kept]),
            down=down_of(sites, reserved),
            notes=tuple([*notes, *lost, *problems, *odd][:MOST_NOTES]),
        )
        self._before = Before(reading, snapshot, (*problems, *odd), now)
        return snapshot

    def told(self, job: str) -> Told | None:
        """A job as it was last read."""
        return self._told.get(job)

    def all_told(self) -> Sequence[Told]:
        """All jobs as they were last read."""
        return tuple(self._told.values())

    @property
    def sites(self) -> Mapping[str, Site]:
        """The nodes with their devices, as they were last read."""
        return self._sites

    def types(self, node: str, model: str) -> tuple[str, ...] | None:
        """Slurm's type for each device of a model on a node, if each has one of its own; None: only how many counts."""
        site = self._sites.get(node)
        devices = site.devices.get(model) if site else None
        return devices.types if devices and devices.have_types_each else None

    def type_of(self, node: str, model: str) -> str:
        """Slurm's type for a model on a node that has others too; "" where the node says it all."""
        site = self._sites.get(node)
        if site is None or len(site.devices) < 2 or model not in site.devices:
            return ""
        return site.devices[model].types[0]

    def _ask(self) -> tuple[Reading, list[str]]:
        """Jobs, nodes and reservations of the first source that gives all of them."""
        notes: list[str] = []
        for source in self._sources:
            try:
                reading = Reading(source.jobs(), source.nodes(), source.reservations(), source.version())
                self._latest = source
                return reading, notes
            except BackendError as error:
                notes.append(f"{source.what} was not used: {error}")
        raise BackendError(" ".join(note.removeprefix(f"{self._sources[0].what} was not used: ") for note in notes[:2]))

    def _with_memory(self, told: Told, now_s: float, notes: list[str]) -> Told:
        """A job with what Slurm has forgotten of it."""
        live = told.live
        before = self._first.get(live.id)
        if before is None or _is_another(before[0], told.job):
            self._first[live.id] = before = told.job, live.job.submit_s
            self._parts.pop(live.id, None)
            self._gone.pop(live.id, None)
            self._forgotten.pop(live.id, None)
        elif _was_forgotten(before[0], told.job):
            earlier = self._forgotten.get(live.id, Forgotten(0.0, 0))
            self._forgotten[live.id] = Forgotten(now_s, earlier.starts + 1)
            notes.append(f"job {live.id} ran on {before[0].node_list}, and slurmctld forgot it: it will begin again")
        live = self._as_forgotten(live, now_s)
        first = min(before[1], live.job.submit_s)
        self._first[live.id] = told.job, first
        if live.state is JobState.RUNNING and any(part.indices for part in live.parts):
            self._parts[live.id] = live.parts
        elif live.state is JobState.RUNNING:  # about to end: the devices are taken back before the job is told as ended
            if _places(self._parts.get(live.id, ())) != _places(live.parts):
                self._parts.pop(live.id, None)
        elif live.state not in ENDED:
            self._parts.pop(live.id, None)
        ends = live.state is JobState.RUNNING or live.state in ENDED
        parts = self._parts.get(live.id, live.parts) if ends else live.parts
        return replace(told, live=replace(live, parts=parts, job=replace(live.job, submit_s=first)))

    def _as_forgotten(self, live: LiveJob, now_s: float) -> LiveJob:
        """A job with the starts that slurmctld forgot; one that it forgot just now is not to be placed yet."""
        forgotten = self._forgotten.get(live.id)
        if forgotten is None:
            return live
        live = replace(live, starts=live.starts + forgotten.starts)
        if live.state is not JobState.WAITING or not live.managed or now_s - forgotten.at_s >= FORGOTTEN_S:
            return live
        reason = "slurmctld forgot that it ran; it is placed again when that run must have ended"
        return replace(live, managed=False, reason=reason, setback=Setback.NONE)

    def _note_gone(self, now: Mapping[str, Told], time_s: float) -> list[str]:
        """Tell of jobs that are in the answers no longer though nobody saw them end."""
        notes = []
        for name, told in self._told.items():
            if name in now:
                continue
            if told.live.state not in ENDED:
                began = told.live.state is JobState.RUNNING
                what = "ran" if began else "waited"
                notes.append(f"job {name} {what} and is in Slurm's answers no longer; how it ended is not known")
                self._gone[name] = replace(
                    told.live,
                    state=JobState.FAILED if began else JobState.CANCELLED,
                    ended_s=time_s,
                    exit_code=None,
                    signal=None,
                    reason="gone from Slurm's answers",
                )
            self._first.pop(name, None)
            self._parts.pop(name, None)
            self._forgotten.pop(name, None)
        self._gone = {name: job for name, job in self._gone.items() if time_s - (job.ended_s or 0.0) < KEPT_S}
        return notes


def _places(parts: Sequence[Part]) -> list[tuple[str, str, int]]:
    """Where a job is, without which devices."""
    return [(part.node, part.model, part.count) for part in parts]


def _is_another(before: SlurmJob, now: SlurmJob) -> bool:
    """Whether a number has been given to another job: slurmctld forgets what it had no time to save."""
    moved = before.submit_unix != now.submit_unix and now.restarts <= before.restarts
    return moved or before.user != now.user or before.name != now.name


def _was_forgotten(before: SlurmJob, now: SlurmJob) -> bool:
    """Whether a job ran and waits with the same restart count: slurmctld was killed before it had saved the start."""
    ran = before.state in RUNS or before.state == "COMPLETING"
    return ran and now.state == "PENDING" and now.restarts == before.restarts


def _said(error: Exception) -> str:
    """What went wrong, in few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
