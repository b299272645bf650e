"""What every test stands on: the same examples each time, and no network."""

import ipaddress
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# One thread for PyTorch and BLAS, before anybody imports them: several processes of tests share the cores, and threads
# that wait for each other there take four times the processor time. Training sets its own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nothing here may depend on chance or on how busy the machine is; `pytest --hypothesis-profile=explore` looks further.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile("ci")

OUTWARD = {"socket.connect", "socket.getaddrinfo", "socket.sendmsg", "socket.sendto"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a real Slurm begin first: they mostly wait, and others run beside them. At the end nobody would."""
    items.sort(key=lambda item: "tests/slurm/" not in str(item.path))


def is_local(host: object) -> bool:
    """Whether a host is this machine. Nothing at all (any interface) is."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        return False


def refuse_network(event: str, args: tuple[object, ...]) -> None:
    """Fail the test that reaches out of this machine. Not an OSError, which the code under test might well catch."""
    if event not in OUTWARD:
        return
    address = args[0] if event == "socket.getaddrinfo" else args[1]
    host = address[0] if isinstance(address, tuple) else address
    is_file = event != "socket.getaddrinfo" and not isinstance(address, tuple)
    if not is_file and not is_local(host):
        pytest.fail(
            f"The test reaches for {host!r}; tests may only talk to this machine. Give it a server on 127.0.0.1."
        )


# An audit hook sees every socket, however it was made; it stays until the process ends, and so does our rule.
sys.addaudithook(refuse_network)
