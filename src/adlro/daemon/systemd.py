"""What systemd is told: that we are ready, what we do, and that we are alive."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, final

_PATIENCE_S: Final = 120.0
"""How much longer systemd shall wait, counted from each time it is told."""


@final
class Systemd:
    """The socket of systemd's notifications; where there is none, nothing is told."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = os.environ.get("WATCHDOG_USEC", "")
        seconds = int(text) / 1e6 if watched and text.isdigit() else 0.0
        self.alive_every_s: float | None = seconds / 3 if seconds else None
        """How often it wants to hear that we are alive; None: never."""

    def tell(self, *lines: str) -> None:
        """Send lines like READY=1. Who does not listen is not told."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.sendto("\n".join(lines).encode(), self._address)

    def alive(self) -> None:
        """Keep the watchdog quiet."""
        if self.alive_every_s is not None:
            self.tell("WATCHDOG=1")

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While something long goes on: keep the watchdog quiet, and a start from timing out."""
        if not self._address:
            yield
            return
        over = threading.Event()
        every_s = min(self.alive_every_s or _PATIENCE_S / 4, _PATIENCE_S / 4)

        def keep_telling() -> None:
            while True:
                self.tell(f"EXTEND_TIMEOUT_USEC={_PATIENCE_S * 1e6:.0f}")
                self.alive()
                if over.wait(every_s):
                    return

        thread = threading.Thread(target=keep_telling, name="systemd", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
