"""What the daemon's process and the API's say to each other: records, over two pairs of sockets.

On one link the daemon tells its state, its events and whether it is ready, each time only what has changed. On the
other the API asks everything else by the name of a method of `Service`. Both run as the same user, from the same files:
what comes is trusted.
"""

import io
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, final

from adlro.api.pace import breathe
from adlro.api.settings import ApiSettings
from adlro.core.ports import LiveJob, Snapshot
from adlro.live.service import Event, Service, State

SERVICE_CALLS: Final = frozenset(name for name, value in vars(Service).items() if callable(value) and name[0] != "_")
"""What the API may ask: every method of the protocol."""

METRICS_QUESTION: Final = "metrics"
POLICIES_QUESTION: Final = "policies"
"""And what the daemon gives besides."""

OTHER_VERSION: Final = 3
"""The exit code of an API process whose files are of another version than the daemon that started it."""

_HEAD: Final = struct.Struct("!Q")
BUFFER: Final = 65_536
_PIECE: Final = 250
"""Records that are pickled in one go."""


# ---- messages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first thing that the API hears: how it is to answer. Passwords are in it, so it is no command line."""

    settings: ApiSettings
    log_level: int
    secrets: tuple[str, ...]
    dashboard: Path


@dataclass(frozen=True, slots=True)
class Call:
    """The API asks."""

    number: int
    name: str
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """The daemon's answer to a call."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The error that a call came to."""

    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Beat:
    """The API is alive."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The API is to end."""


@dataclass(frozen=True, slots=True)
class JobChanges:
    """How the jobs of a snapshot differ from those of the one before. `order` is left out where it follows."""

    changed: tuple[LiveJob, ...]
    gone: tuple[str, ...]
    order: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Entries:
    """How a mapping differs from the one before."""

    changed: Mapping[str, Any]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """What the daemon tells by itself; None where nothing has changed. `state` has the fields that did, by name."""

    ready: tuple[bool, str]
    log_level: int
    state: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None
    no_state: Exception | None = None
    events: tuple[Event, ...] = ()
    is_whole: bool = False  # the state is told whole: what was told before does not count


class DaemonFaultError(Exception):
    """A mistake of the daemon while it answered; its log says where."""


# ---- the wire --------------------------------------------------------------------------------------------------------


class _Records(dict[type, Callable[[Any], Any]]):
    """How records are pickled: as their class and values. Python's way for frozen ones with slots takes ten times."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if not is_dataclass(kind) or any(not each.init or each.kw_only for each in fields(kind)):
            raise KeyError(kind)
        names = [each.name for each in fields(kind)]
        if len(names) > 1:
            values = attrgetter(*names)
            found: Callable[[Any], Any] = lambda record: (kind, values(record))  # noqa: E731
        else:
            found = lambda record: (kind, tuple(getattr(record, name) for name in names))  # noqa: E731
        self[kind] = found
        return found


_RECORDS: Final = _Records()


def pickled(value: object) -> bytes:
    """A value as bytes."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _RECORDS
    pickler.dump(value)
    return out.getvalue()


def packed(message: object) -> bytes:
    """A message as bytes, with its length before it."""
    body = pickled(message)
    return _HEAD.pack(len(body)) + body


# Long parts are pickled in pieces, so that whoever reads them can breathe in between.


def _in_pieces(jobs: JobChanges) -> tuple[Callable[..., JobChanges], tuple[Any, ...]]:
    pieces = (jobs.changed[at : at + _PIECE] for at in range(0, len(jobs.changed), _PIECE))
    return _jobs_of, (jobs.gone, jobs.order, *map(pickled, pieces))


def _jobs_of(gone: tuple[str, ...], order: tuple[str, ...] | None, *pieces: bytes) -> JobChanges:
    return JobChanges(tuple(job for piece in pieces for job in _unpickled(piece)), gone, order)


def _entries_in_pieces(entries: Entries) -> tuple[Callable[..., Entries], tuple[Any, ...]]:
    all_of_them = list(entries.changed.items())
    pieces = (all_of_them[at : at + _PIECE] for at in range(0, len(all_of_them), _PIECE))
    return _entries_of, (entries.gone, *map(pickled, pieces))


def _entries_of(gone: tuple[str, ...], *pieces: bytes) -> Entries:
    return Entries(dict(entry for piece in pieces for entry in _unpickled(piece)), gone)


def _unpickled(piece: bytes) -> Any:
    breathe()
    return pickle.loads(piece)


_RECORDS[JobChanges] = _in_pieces
_RECORDS[Entries] = _entries_in_pieces


@final
class ProcessLink:
    """One end of the pair. Any thread sends, one at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._reading = end.makefile("rb", BUFFER)  # so that a small message is one call to the system

    def send(self, message: object) -> None:
        """Send a message whole. Raises OSError when nobody is there any more."""
        frame = packed(message)
        with self._sending:
            self._end.sendall(frame)

    def receive(self) -> Any:
        """The next message. Raises EOFError when nobody is there any more."""
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """The next message as it was pickled. Raises EOFError when nobody is there any more."""
        (length,) = _HEAD.unpack(self._exactly(_HEAD.size))
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        try:
            found = self._reading.read(length)
        except (OSError, ValueError):  # it was closed here
            found = b""
        if len(found) < length:
            raise EOFError
        return found

    def close(self) -> None:
        """Close this end; the other one notices."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # who reads finds the end
        self._reading.close()
        self._end.close()


# ---- what has changed ------------------------------------------------------------------------------------------------

MAPPINGS: Final = ("starts", "telemetry", "placed")
"""Fields of a state that are long mappings."""


def state_changes(old: State | None, new: State) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The fields of a state that have changed, and those of its snapshot (None: none of them).

    The tick is told without its decisions and answers: the API shows none of them, and `placed` has the decisions.
    """
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(State) if each.name != "snapshot"):
        now, was = getattr(new, name), getattr(old, name) if old is not None else None
        if old is not None and (now is was or (name != "tick" and now == was)):
            continue
        if name == "tick" and now is not None:
            now = replace(now, decisions=(), answers=())
        found[name] = entry_changes(was or {}, now) if name in MAPPINGS else now
    if old is not None and new.snapshot is old.snapshot:
        return found, None
    return found, snapshot_changes(old.snapshot if old is not None else None, new.snapshot)


def snapshot_changes(old: Snapshot | None, new: Snapshot) -> Mapping[str, Any]:
    """The fields of a snapshot that have changed; its jobs as Jobs."""
    found: dict[str, Any] = {}
    for name in (each.name for each in fields(Snapshot) if each.name != "jobs"):
        now, was = getattr(new, name), getattr(old, name) if old is not None else None
        if old is None or not (now is was or now == was):
            found[name] = now
    found["jobs"] = job_changes(old.jobs if old is not None else (), new.jobs)
    return found


def job_changes(old: Sequence[LiveJob], new: Sequence[LiveJob]) -> JobChanges:
    """The jobs that are not as they were, those that are gone, and the order unless it is the old one and the new."""
    known = {job.id: job for job in old}
    changed = tuple(job for job in new if (was := known.get(job.id)) is not job and was != job)
    ids = [job.id for job in new]
    there = set(ids)
    gone = tuple(id for id in known if id not in there)
    follows = [id for id in known if id in there] + [job.id for job in changed if job.id not in known]
    return JobChanges(changed, gone, None if follows == ids else tuple(ids))


def entry_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Entries:
    """The entries that are not as they were, and those that are gone."""
    changed = {key: now for key, now in new.items() if (was := old.get(key)) is not now and was != now}
    return Entries(changed, tuple(key for key in old if key not in new))


def state_with(old: State | None, changes: Mapping[str, Any], snapshot: Mapping[str, Any] | None) -> State:
    """A state with the changes that were told."""
    given = dict(changes)
    for name in MAPPINGS:
        if name in given:
            entries: Entries = given[name]
            before = getattr(old, name) if old is not None else {}
            gone = set(entries.gone)
            given[name] = {key: value for key, value in before.items() if key not in gone} | dict(entries.changed)
            breathe()
    if snapshot is not None:
        given["snapshot"] = snapshot_with(old.snapshot if old is not None else None, snapshot)
    return replace(old, **given) if old is not None else State(**given)


def snapshot_with(old: Snapshot | None, changes: Mapping[str, Any]) -> Snapshot:
    """A snapshot with the changes that were told."""
    jobs: JobChanges = changes["jobs"]
    known = {job.id: job for job in old.jobs} if old is not None else {}
    for id in jobs.gone:
        del known[id]
    known.update((job.id, job) for job in jobs.changed)
    listed = tuple(known.values()) if jobs.order is None else tuple(known[id] for id in jobs.order)
    given = {**changes, "jobs": listed}
    return replace(old, **given) if old is not None else Snapshot(**given)
