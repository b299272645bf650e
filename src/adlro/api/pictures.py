"""A state prepared for requests: bodies, visibility, and pictures that are made once for each state."""

import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Final

from pydantic_core import to_json

from adlro.api.pace import breathe
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob
from adlro.live.service import State, Who

_MOST_KEPT: Final = 4096
LARGEST_KEPT: Final = 64 * 1024 * 1024
MOST_LISTS: Final = 64
MOST_COSTLY: Final = 16
"""Answers that are kept until the state changes, their bytes, lists of which pages are cut, and answers that are made
anew with every picture because they take long."""

LONG_S: Final = 0.005
LARGE: Final = 1000
"""A picture that takes longer to make, or has more jobs and nodes than this, is made in another thread."""

SELDOM: Final = 10.0
OLDEST_PICTURE_S: Final = 1.0
"""Turns may follow each other closely. A large picture rests for so many times as long as it took, up to a second."""

_PIECE: Final = 100
"""How many records are written as JSON at once; the interpreter is blocked meanwhile."""

WORTH_PACKING: Final = 4096
"""Answers from this many bytes on are compressed for clients that accept it."""


def json_bytes(value: object) -> bytes:
    """A value as JSON: records by the names of their fields; NaN and infinite numbers are null."""
    return to_json(value, inf_nan_mode="null")


def json_in_pieces(value: object) -> bytes:
    """The same as `json_bytes`, piece by piece: other threads run in between."""
    breathe()
    if isinstance(value, Mapping):
        entries = list(value.items())
        if len(entries) > _PIECE:
            pieces = (dict(entries[at : at + _PIECE]) for at in range(0, len(entries), _PIECE))
            return b"{" + b",".join(json_in_a_piece(piece) for piece in pieces) + b"}"
        parts = [json_bytes(str(key)) + b":" + json_in_pieces(each) for key, each in entries]
        return b"{" + b",".join(parts) + b"}"
    if isinstance(value, list | tuple) and len(value) > _PIECE:
        cut = (value[at : at + _PIECE] for at in range(0, len(value), _PIECE))
        return b"[" + b",".join(json_in_a_piece(piece) for piece in cut) + b"]"
    return json_bytes(value)


def json_in_a_piece(value: object) -> bytes:
    """A part of a list or a mapping, without its brackets."""
    breathe()
    return json_bytes(value)[1:-1]


@dataclass(slots=True)
class Body:
    """An answer as it is sent, with a tag that changes with it."""

    plain: bytes
    tag: str = ""
    uses: int = 0  # how often it went out
    _packed: bytes | None = None

    def __post_init__(self) -> None:
        self.tag = f'"{blake2b(self.plain, digest_size=12).hexdigest()}"'

    @property
    def is_packed(self) -> bool:
        """Whether it has been compressed."""
        return self._packed is not None

    @property
    def packed(self) -> bytes:
        """The body, compressed."""
        if self._packed is None:
            self._packed = gzip.compress(self.plain, 1, mtime=0)
        return self._packed


@dataclass(frozen=True, slots=True)
class Eyes:
    """What a requester may see: all jobs, or only those of `name` (none if it is empty)."""

    name: str = ""
    all: bool = False

    def sees(self, live: LiveJob) -> bool:
        """Whether a job may be shown completely."""
        return self.all or (bool(self.name) and live.job.user == self.name)


def eyes_of(who: Who, others: str) -> Eyes:
    """What a requester may see."""
    if who.role == "operator" or others == "shown":
        return Eyes(all=True)
    return Eyes(who.name if who.role == "user" else "")


Address = tuple[str, bytes, Eyes]
"""The request as written, and who sees the answer."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are asked for; an empty field does not filter."""

    states: tuple[str, ...] = ()
    user: str = ""
    model: str = ""
    partition: str = ""
    node: str = ""
    search: str = ""  # in lower case
    sort: str = ""  # one of SORT_KEYS
    is_descending: bool = False


@dataclass(slots=True)
class Picture:
    """A state with its jobs in order, and the answers made of it so far."""

    state: State
    jobs: dict[str, LiveJob]
    also: dict[str, str]  # by another id of a job: its own
    held: list[LiveJob]
    waiting: list[LiveJob]
    ended: list[LiveJob]
    lists: dict[tuple[Eyes, Filter], list[LiveJob]] = field(default_factory=dict)
    bodies: dict[Address, Body] = field(default_factory=dict)
    costly: dict[Address, Callable[["Picture"], object]] = field(
        default_factory=dict
    )  # what took long to make, and how
    size: int = 0  # of the bodies
    touched: set[str] = field(default_factory=set)  # jobs that were submitted or cancelled since

    def keep(self, address: Address, body: Body) -> None:
        """Keep an answer; if there is no room, forget the others."""
        if len(self.bodies) >= _MOST_KEPT or self.size + len(body.plain) > LARGEST_KEPT:
            self.bodies.clear()
            self.size = 0
        self.bodies[address] = body
        self.size += len(body.plain)

    def make(self, address: Address, how: Callable[["Picture"], object], packs: bool) -> Body:
        """Make an answer and keep it, also compressed if `packs` and it is worth it."""
        began = time.thread_time()
        body = Body(json_in_pieces(how(self)))
        if packs and len(body.plain) >= WORTH_PACKING:
            _ = body.packed  # done here, so that the event loop does not wait for it
        self.keep(address, body)
        if time.thread_time() - began > LONG_S and len(self.costly) < MOST_COSTLY:
            self.costly[address] = how
        return body

    def touch(self, job: str) -> None:
        """Note that a job has changed since this picture: answers about it are made again."""
        self.touched.add(job)
        for address in list(self.bodies):  # a copy: other threads keep answers meanwhile
            if f"/jobs/{job}" in address[0]:
                self.bodies.pop(address, None)


def picture_of(state: State) -> Picture:
    """Put the jobs of a state in order: those that hold GPUs, those that wait by predicted start, the latest ended."""
    jobs = state.snapshot.jobs
    starts = state.starts

    def by_start(live: LiveJob) -> tuple[float, float]:
        start = starts.get(live.id)
        middle = start.middle_s if start else None
        return (float("inf") if middle is None else middle, live.job.submit_s)

    by_id = {live.id: live for live in jobs}
    breathe()
    held = sorted((live for live in jobs if live.state in PLACES), key=lambda live: live.started_s or float("inf"))
    breathe()
    waiting = sorted((live for live in jobs if live.state is JobState.WAITING), key=by_start)
    breathe()
    ended = sorted((live for live in jobs if live.state in ENDED), key=lambda live: -(live.ended_s or 0.0))
    breathe()
    also = {name: live.id for live in jobs if live.also for name in live.also}
    return Picture(state, by_id, also, held, waiting, ended)


def is_same(one: State, other: State) -> bool:
    """Whether two states consist of the same objects, by identity."""
    return one is other or all(
        getattr(one, each.name) is getattr(other, each.name)
        or (isinstance(getattr(one, each.name), str | bool) and getattr(one, each.name) == getattr(other, each.name))
        for each in fields(State)
    )


def is_large(state: State) -> bool:
    """Whether a picture of a state, or an answer made of it, probably takes long to make."""
    return len(state.snapshot.jobs) + len(state.snapshot.cluster.nodes) > LARGE
