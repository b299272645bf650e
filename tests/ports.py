"""Ports for programs that cannot choose a free one themselves."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

LOWEST: Final = 10_000
RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has.

    They lie below those that the system gives to outgoing connections: until the program has started, a connection of
    another test could take one of those.
    """
    highest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    choose = random.SystemRandom()  # processes of pytest-xdist must not choose the same
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = choose.randrange(LOWEST, highest)
            one = stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
