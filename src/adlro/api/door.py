"""Who may hold a connection to the API, and for how long. A client that sends no request cannot keep others out.

Connections are counted when they are accepted, before TLS. A connection counts as idle until a whole request head has
arrived, and again after its answer. When a limit is reached the connection that has been idle longest is closed for
the new one; where none is idle the new one is refused.
"""

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from adlro.api.settings import ApiSettings

RESERVED_CONNECTIONS: Final = 32
"""Connections from this machine that are accepted beyond the limit: probes of the daemon come from here."""

SPARE_FILES: Final = 128
"""Open files that the process needs besides its connections."""

_AT_ONCE: Final = 32
"""Connections that are accepted before the ones that are there are looked at again."""

PAUSE_S: Final = 0.5
"""How long nobody is accepted when the system has no more room, and no connection is idle."""

STUCK_S: Final = 30.0
"""How long a client may leave an answer unread."""

TELL_EVERY_S: Final = 10.0

NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\nContent-Type: application/json\r\n"
)
BUSY_BODY: Final = (
    b'{"error":{"what":"too many connections","where":"","expected":"","do":"Close some, and ask again."}}'
)

log = logging.getLogger("adlro.api")


@final
class Guest:
    """One connection, from the moment it was accepted."""

    __slots__ = ("address", "is_local", "leave")

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_local = is_loopback(address)
        self.leave: Callable[[], object] = lambda: None
        """Ends the connection at once."""


@final
class Guests:
    """All connections: by address, and those that are idle, the longest first."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._by_address: dict[str, dict[Guest, bool]] = {}  # whether each is idle, in the order in which it became so
        self._idle: dict[Guest, None] = {}
        self.count = 0

    def admit(self, guest: Guest) -> bool:
        """Count a new connection; one that is idle is closed for it if need be. False: there is no room."""
        same = self._by_address.get(guest.address, {})
        if len(same) >= self._most_each and not self._close(next((one for one, idle in same.items() if idle), None)):
            return False
        limit = self._most + (RESERVED_CONNECTIONS if guest.is_local else 0)
        if self.count >= limit and not self.close_oldest():
            return False
        self._by_address.setdefault(guest.address, {})[guest] = True
        self._idle[guest] = None
        self.count += 1
        return True

    def note(self, guest: Guest, is_idle: bool) -> None:
        """A connection has a request to answer, or waits for one again."""
        same = self._by_address.get(guest.address)
        if same is None or guest not in same or same[guest] is is_idle:
            return
        del same[guest]  # the latest stands last
        same[guest] = is_idle
        if is_idle:
            self._idle[guest] = None
        else:
            del self._idle[guest]

    def left(self, guest: Guest) -> None:
        """A connection has ended."""
        same = self._by_address.get(guest.address)
        if same is None or guest not in same:
            return
        del same[guest]
        if not same:
            del self._by_address[guest.address]
        self._idle.pop(guest, None)
        self.count -= 1

    def close_oldest(self) -> bool:
        """Close the connection that has been idle longest; False if none is."""
        return self._close(next(iter(self._idle), None))

    def _close(self, guest: Guest | None) -> bool:
        if guest is None:
            return False
        self.left(guest)
        guest.leave()
        return True


@final
class Visit(H11Protocol):
    """HTTP on one connection, with a time for each thing that a client may be slow with."""

    def __init__(self, guest: Guest, guests: Guests, head_s: float, config: Config, server_state: ServerState) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._guest, self._guests, self._head_s = guest, guests, head_s
        self._until_head: asyncio.TimerHandle | None = None
        self._until_read: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection stands; a request must come now."""
        super().connection_made(transport)
        self._guest.leave = transport.abort
        self._until_head = self.loop.call_later(self._head_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._guests.left(self._guest)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """An answer is written."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        self._guests.note(self._guest, is_idle=True)  # when there is no room, who does not read goes first
        if self._until_read is None:
            self._until_read = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._look()
        if self._until_read is not None:
            self._until_read.cancel()
            self._until_read = None

    def _look(self) -> None:
        """Note whether a request is being answered; what has come of the next one must be whole in time."""
        cycle: Any = self.cycle  # None before the first request
        is_idle = cycle is None or cycle.response_complete
        self._guests.note(self._guest, is_idle)
        begun = self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
        if not is_idle or (not begun and cycle is not None):
            if self._until_head is not None:
                self._until_head.cancel()
                self._until_head = None
        elif self._until_head is None and not self.transport.is_closing():
            self._until_head = self.loop.call_later(self._head_s, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._until_head, self._until_read):
            if timer is not None:
                timer.cancel()
        self._until_head = self._until_read = None


@final
class Door:
    """Accepts connections on listening sockets; to uvicorn it is one of its servers."""

    def __init__(
        self, sockets: Sequence[socket.socket], config: Config, state: ServerState, settings: ApiSettings
    ) -> None:
        self.sockets = tuple(sockets)
        self._config, self._state, self._head_s = config, state, settings.head_s
        most = most_connections(settings.most_connections)
        self._guests = Guests(most, min(settings.most_per_address, most))
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[Any]] = set()
        self._is_open = True
        self._told_s = -TELL_EVERY_S

    def open(self) -> None:
        """Accept from now on."""
        for listener in self.sockets:
            listener.setblocking(False)
            listener.listen(self._config.backlog)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept nobody any more; those who are there stay."""
        self._is_open = False
        for listener in self.sockets:
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener)
                listener.close()
        for task in self._coming:
            task.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _accept(self, listener: socket.socket) -> None:
        """Accept those who wait, some at a time."""
        for number in range(_AT_ONCE):
            try:
                connection, name = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if number:
                    return  # the system says so also when nobody waits; if somebody does, we are called again
                self._tell("no room for another connection", reason=error.strerror)
                if not self._guests.close_oldest():
                    self._rest(listener)
                return
            guest = Guest(name[0] if isinstance(name, tuple) else "")
            if self._guests.admit(guest):
                self._welcome(connection, guest)
            else:
                self._tell("a connection was refused: too many are open", address=guest.address)
                refuse(connection, self._config.ssl is None)

    def _welcome(self, connection: socket.socket, guest: Guest) -> None:
        """Speak HTTP with a connection that was accepted, after TLS where we have it."""
        connection.setblocking(False)
        secure: ssl.SSLContext | None = self._config.ssl
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: Visit(guest, self._guests, self._head_s, self._config, self._state),
                connection,
                ssl=secure,
                ssl_handshake_timeout=self._head_s if secure else None,
            )
        )
        guest.leave = task.cancel
        self._coming.add(task)
        task.add_done_callback(lambda task: self._came(task, guest, connection))

    def _came(self, task: asyncio.Task[Any], guest: Guest, connection: socket.socket) -> None:
        """A connection stands, or came to nothing: the client left, or its TLS was wrong."""
        self._coming.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._guests.left(guest)
            connection.close()

    def _rest(self, listener: socket.socket) -> None:
        """Accept nobody for a moment."""
        self._loop.remove_reader(listener)

        def again() -> None:
            if self._is_open:
                self._loop.add_reader(listener, self._accept, listener)

        self._loop.call_later(PAUSE_S, again)

    def _tell(self, text: str, **more: object) -> None:
        """Warn, but not for each of a thousand connections."""
        now = time.monotonic()
        if now - self._told_s >= TELL_EVERY_S:
            self._told_s = now
            log.warning(text, extra={"open": self._guests.count, **more})


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Connections inherit it. Without it the second half of an answer waits for the reader's acknowledgement: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def refuse(connection: socket.socket, is_plain: bool) -> None:
    """Say that there are too many, where that can be said, and close."""
    with connection, suppress(OSError):
        connection.setblocking(False)
        if is_plain:
            connection.send(_BUSY + b"Content-Length: %d\r\n\r\n" % len(BUSY_BODY) + BUSY_BODY)
            connection.shutdown(socket.SHUT_WR)


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def most_connections(wanted: int) -> int:
    """So many connections, or as many as this process may have open files for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    most = max(1, min(wanted, limit - SPARE_FILES - RESERVED_CONNECTIONS))
    if most < wanted:
        log.warning("fewer connections than configured: too few open files are allowed", extra={"most": most})
    return most


def raise_open_files() -> None:
    """Allow this process as many open files as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
