"""A state made ready for readers: bodies, who sees what, and pictures that are made once for each state."""

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
"""A picture that took longer to make, or that has more jobs and nodes than this, is made aside."""

SELDOM: Final = 10.0
OLDEST_PICTURE_S: Final = 1.0
"""Turns may follow each other closely. A large picture rests for so many times as long as it took, up to a second."""

_PIECE: Final = 100
"""Records that are written as JSON in one go; the interpreter is not free meanwhile."""

WORTH_PACKING: Final = 4096
"""Bytes from which an answer is compressed for those who take it so."""


def json_bytes(value: object) -> bytes:
    """A value as JSON: records by the names of their fields; what is not a number is null."""
    return to_json(value, inf_nan_mode="null")


def json_in_pieces(value: object) -> bytes:
    """The same as `json_bytes`, piece by piece: between two of them other threads have their turn."""
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
    """An answer as it goes out, with a tag that changes when it does."""

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
        """The same, compressed."""
        if self._packed is None:
            self._packed = gzip.compress(self.plain, 1, mtime=0)
        return self._packed


@dataclass(frozen=True, slots=True)
class Eyes:
    """How much one sees: all, or only the jobs of `name` (nobody's if it is empty)."""

    name: str = ""
    all: bool = False

    def sees(self, live: LiveJob) -> bool:
        """Whether a job may be shown whole."""
        return self.all or (bool(self.name) and live.job.user == self.name)


def eyes_of(who: Who, others: str) -> Eyes:
    """What somebody sees."""
    if who.role == "operator" or others == "shown":
        return Eyes(all=True)
    return Eyes(who.name if who.role == "user" else "")


Address = tuple[str, bytes, Eyes]
"""What was asked, as it was written, and who sees the answer."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are asked for; what is empty does not filter."""

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
    held: list[LiveJob]
    waiting: list[LiveJob]
    ended: list[LiveJob]
    lists: dict[tuple[Eyes, Filter], list[LiveJob]] = field(default_factory=dict)
    bodies: dict[Address, Body] = field(default_factory=dict)
    costly: dict[Address, Callable[["Picture"], object]] = field(
        default_factory=dict
    )  # what took long to make, and how
    size: int = 0  # of the bodies
    touched: set[str] = field(default_factory=set)  # jobs that were handed in or cancelled since

    def keep(self, address: Address, body: Body) -> None:
        """Keep an answer, if there is room; else forget the others."""
        if len(self.bodies) >= _MOST_KEPT or self.size + len(body.plain) > LARGEST_KEPT:
            self.bodies.clear()
            self.size = 0
        self.bodies[address] = body
        self.size += len(body.plain)

    def make(self, address: Address, how: Callable[["Picture"], object], packs: bool) -> Body:
        """Make an answer, compressed too if it is worth it and `packs`, and keep it."""
        began = time.thread_time()
        body = Body(json_in_pieces(how(self)))
        if packs and len(body.plain) >= WORTH_PACKING:
            _ = body.packed  # here, so that the event loop has not to wait for it
        self.keep(address, body)
        if time.thread_time() - began > LONG_S and len(self.costly) < MOST_COSTLY:
            self.costly[address] = how
        return body

    def touch(self, job: str) -> None:
        """A job is no longer as this picture shows it: answers about it are made anew."""
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
    return Picture(state, by_id, held, waiting, ended)


def is_same(one: State, other: State) -> bool:
    """Whether two states are made of the same things; it does not look into them."""
    return one is other or all(
        getattr(one, each.name) is getattr(other, each.name)
        or (isinstance(getattr(one, each.name), str | bool) and getattr(one, each.name) == getattr(other, each.name))
        for each in fields(State)
    )


def is_large(state: State) -> bool:
    """Whether a picture of a state, or an answer made of it, probably takes long."""
    return len(state.snapshot.jobs) + len(state.snapshot.cluster.nodes) > LARGE
