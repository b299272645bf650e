"""From a config to the parts of a daemon: back end, store, orchestrator and telemetry."""

import errno
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from adlro.api.settings import ApiSettings
from adlro.backends.kind import Levels, Opened
from adlro.core.errors import ConfigError
from adlro.core.ports import Leadership, Snapshot
from adlro.core.records import Cluster, SpeedOf
from adlro.daemon.config import Config
from adlro.daemon.daemon import Daemon
from adlro.daemon.fence import Fenced
from adlro.daemon.hook import check_hook
from adlro.daemon.keep import Keep
from adlro.daemon.leader import leadership_of
from adlro.daemon.running import Closing, DaemonParts, Decider
from adlro.daemon.store import Store, open_store
from adlro.daemon.store_sqlite import FullError
from adlro.daemon.telemetry import Watcher
from adlro.live.service import DaemonMemory

_IN_MEMORY: Final = "sqlite::memory:"

TURN_SWITCH_S: Final = 0.0002
"""How long a turn may keep the interpreter while a question of the API waits for it; Python grants 5 ms."""

IN_MEMORY_DAYS: Final = 0.25
IN_MEMORY_ROWS: Final = 10_000
"""The most rows of a store in memory: they end with the process, and use its memory."""

SELDOM_S: Final = 60.0
_SOON_S: Final = 10.0
"""How often policies are held against each other, and where a minute of ours is an hour of the cluster's."""


def open_parts(config: Config) -> DaemonParts:
    """Open the store, then the back end; if one of them fails, the other stays closed."""
    memory, notes = open_memory(config)
    try:
        opened = config.open_backend()
    except BaseException:
        memory.close()
        raise
    return DaemonParts(opened.backend, memory, partial(open_orchestrator, opened=opened), opened.clock, notes)


def check_config(config: Config) -> None:
    """Find mistakes that would otherwise appear only when a standby takes over."""
    from adlro.decide.catalogue import find_policy

    config.check_owners()
    for name in (config.policy.name, config.policy.fallback):
        find_policy(name)
    own_speeds(config)
    check_hook(config.preempt.tell)
    if config.telemetry.is_on:
        config.telemetry.open()


def leadership_for(config: Config) -> Leadership:
    """The lock that keeps other daemons off the same cluster; a simulated cluster needs none."""
    if (own := config.kind.leadership(getattr(config, config.kind.name))) is not None:
        return own
    url = config.store_url()
    if config.kind.ends_with_daemon and not config.store.url:
        return leadership_of(_IN_MEMORY, None)
    return leadership_of(url, config.beside_store("adlro.lock", config.store.lock))


def open_memory(config: Config) -> tuple[Store, tuple[str, ...]]:
    """The store, and notes for the operator. On a full disk the daemon continues without one."""
    table = config.store
    keep = Keep(table.keep_days, table.keep_decisions, table.keep_jobs, table.keep_ticks)
    less = Keep(
        min(keep.days, IN_MEMORY_DAYS),
        *(min(rows, IN_MEMORY_ROWS) for rows in (keep.decisions, keep.jobs, keep.ticks, keep.alarms)),
    )
    try:
        url = config.store_url()
        return open_store(url, less if url == _IN_MEMORY else keep), ()
    except FullError as error:
        return open_store(_IN_MEMORY, less), (f"{error} Until then nothing outlasts this process.",)


def open_orchestrator(
    config: Config, backend: Fenced, memory: DaemonMemory, opened: Opened
) -> tuple[Decider, Sequence[Closing]]:
    """An orchestrator by a config, and the telemetry that it looks at."""
    from adlro.live.turn import Orchestrator, TurnSettings

    settings = TurnSettings(
        decision_s=config.policy.budget_ms / 1000,
        guard=config.guard,
        preempt=config.preempt,
        compare_s=_SOON_S if config.kind.ends_with_daemon else SELDOM_S,
        speeds=config.policy.speeds,
        speed=own_speeds(config),
        weights=config.policy.weights,
    )
    levels, watcher = _telemetry(config, backend, opened)
    orchestrator = Orchestrator(
        backend, memory, config.policy.name, config.policy.fallback, settings, opened.clock, telemetry=levels
    )
    if watcher is None:
        return orchestrator, ()
    watcher.start()
    return orchestrator, (watcher,)


def own_speeds(config: Config) -> SpeedOf:
    """The table of speeds, with the site's own table before it if there is one."""
    from adlro.catalogue.speeds import speeds_by

    return speeds_by(config.policy.speed_table)


def _telemetry(
    config: Config, backend: Fenced, opened: Opened
) -> tuple[Callable[[], Levels | None] | None, Watcher | None]:
    """The telemetry from the config's source, or made up by the back end; None if there is none."""
    table, made_up = config.telemetry, opened.telemetry
    if table.is_on:
        watcher = Watcher(table.open(), lambda: _cluster_of(backend.latest), table.every_s, table.max_age_s)
        return watcher.levels, watcher
    if made_up is not None:
        return lambda: made_up(backend.latest) if backend.latest else {}, None
    return None, None


def _cluster_of(snapshot: Snapshot | None) -> Cluster | None:
    return snapshot.cluster if snapshot else None


# ---- the API -----------------------------------------------------------------------------------------------------


@contextmanager
def answering(daemon: Daemon, config: Config) -> Iterator[str]:
    """The API and the dashboard in a process of their own; their address, "" if they are off or come later.

    A standby beside the leader finds its port taken: it answers as soon as the leader is gone.
    """
    if not config.api.is_on:
        yield ""
        return
    from adlro.api.answers import catalogue
    from adlro.api.app import tokens_of
    from adlro.api.host import ApiHost
    from adlro.api.link import METRICS_QUESTION, POLICIES_QUESTION

    settings = config.api_settings()
    settings.check(settings.auth == "off" or bool(tokens_of(settings)()))
    listener = _bound(settings.host, settings.port)
    if listener is None and not is_led(config):
        raise ConfigError(
            f"the API cannot listen on {settings.host}:{settings.port}: another program uses it. Choose another port "
            "with --port N, or any free one with --port 0."
        )

    host = ApiHost(
        daemon,
        settings,
        lambda: listener or _bound(settings.host, settings.port),
        {METRICS_QUESTION: daemon.metrics, POLICIES_QUESTION: catalogue},
        lambda text: daemon.alarm_soon("api", text),
        config.secrets(),
        Path(str(files("adlro.api") / "dashboard")),
    )
    address = _address(listener, settings) if listener else ""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN_SWITCH_S))
    host.start()
    try:
        yield address
    finally:
        host.close()
        sys.setswitchinterval(before)


def is_led(config: Config) -> bool:
    """Whether a daemon leads the cluster of this config now."""
    leadership = leadership_for(config)
    try:
        return not leadership.take()
    finally:
        leadership.release()


def _bound(host: str, port: int) -> socket.socket | None:
    """A listening socket; None if another program uses the port."""
    from adlro.api.door import listening

    try:
        return listening(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise ConfigError(
            f"the API cannot listen on {host}:{port}: {error.strerror}. Check host and port of [api]."
        ) from None


def _address(listener: socket.socket, settings: ApiSettings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.has_tls else 'http'}://{host}:{listener.getsockname()[1]}/"
