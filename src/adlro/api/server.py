"""The server of the API: its loop, limits on connections, and garbage collection."""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast, final

import uvicorn
from fastapi import FastAPI

from adlro.api.door import Door, listening
from adlro.api.events import Listeners
from adlro.api.settings import ApiSettings
from adlro.process.collector import COLLECT_EVERY_S, unhurried_collector

API_SWITCH_S: Final = 0.0001
"""How long a busy thread of the API's process may keep the interpreter while another waits; Python grants 5 ms."""


@final
class ApiServer(uvicorn.Server):
    """A server with a door of its own, that ends its streams when it is told to end. Signals are the daemon's."""

    def __init__(self, config: uvicorn.Config, settings: ApiSettings) -> None:
        super().__init__(config)
        self._settings = settings

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to end."""
        with unhurried_collector() as collect, quick_switches():
            collecting = asyncio.create_task(collect_now_and_then(collect))
            try:
                await super().serve(sockets)
            finally:
                collecting.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, as the door allows."""
        door = Door(
            sockets or [listening(self.config.host, self.config.port)], self.config, self.server_state, self._settings
        )
        door.open()
        self.servers = cast(Any, [door])
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs us."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: streams first, for they would not."""
        listeners: Listeners = cast(Any, self.config.app).state.listeners
        listeners.close()
        await super().shutdown(sockets)


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let the thread of the API have its turn soon while another is busy."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, API_SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def collect_now_and_then(collect: Callable[[], None]) -> None:
    """Look for rings of objects that nobody holds any more."""
    while True:
        await asyncio.sleep(COLLECT_EVERY_S)
        collect()


def make_server(app: FastAPI, settings: ApiSettings) -> ApiServer:
    """The API on its port. Raises ConfigError where that would let in whom it should not; `run` or `serve` starts it.

    From another thread: `server.should_exit = True` ends it.
    """
    settings.check(settings.auth == "off" or app.state.has_tokens())
    return ApiServer(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            log_level="warning",
            access_log=False,
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=cast(Any, settings.idle_s),  # a fraction works as well
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=32_768,
            ssl_certfile=settings.tls_cert or None,
            ssl_keyfile=settings.tls_key or None,
        ),
        settings,
    )
