"""What the daemon must know of a back end to open it: a `Kind`, in the kind.py of each folder; see catalogue.py.

A kind.py is imported with the config, so it is light: what it needs to open its back end it imports when it does.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, final

from adlro.core.accounts import Owners
from adlro.core.ports import Backend, Leadership, Snapshot
from adlro.core.toml import Schema

Options = TypeVar("Options", bound=Schema)

Levels = Mapping[str, Mapping[str, float | None]]
"""By "node/index" the features of docs/telemetry.md, from 0 to 1; None: missing."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open back end, its clock, and made-up telemetry if its GPUs do not exist."""

    backend: Backend
    clock: Callable[[], float] = time.time
    telemetry: Callable[[Snapshot], Levels] | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """What the config says to every back end, beside the back end's own table."""

    has_api: bool
    has_tokens: bool
    """Whether the API asks for tokens."""
    min_uid: int
    """The lowest uid that jobs may run as; 0 is UID_MIN of /etc/login.defs."""
    file_of: Callable[[str, str], Path]
    """The path of a file: of this name beside the store, or the path that the config names."""
    others: tuple[str, ...]
    """The other back ends of the catalogue."""
    watched: Callable[[str], Opened]
    """Opens the back end of this name so that nobody can submit through it: for a shadow."""


@final
@dataclass(frozen=True)
class Kind(Generic[Options]):
    """One kind of back end: its table in the config, and the functions that open and check it."""

    name: str
    """Its name in the config (`backend.kind`); its table has the same name."""
    summary: str
    options: type[Options]
    open: Callable[[Options, Site], Opened]
    owners: Callable[[Options, Site], Owners] = lambda options, site: Owners(min_uid=site.min_uid)
    """Which users' jobs the daemon accepts, and which accounts they run as."""
    check: Callable[[Options, Site], None] = lambda options, site: None
    """Raise ConfigError for wrong options that would otherwise be noticed only later."""
    for_shadow: Callable[[Options], Options] = lambda options: options
    """The options without the right to submit jobs."""
    leadership: Callable[[Options], Leadership | None] = lambda options: None
    """The lock by which several daemons choose who leads, where the cluster itself has one; None: the store's."""
    ends_with_daemon: bool = False
    """Whether the cluster is inside the daemon's process: then it needs no file, and nobody else schedules it."""
