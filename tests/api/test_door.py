"""Who holds connections: half-open ones, slow ones and too many of them keep nobody out."""

import os
import re
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.api.api_server import Place, serving
from tests.daemon.daemons import until
from tests.daemon.processes import served
from tests.parts import program

from adlro.api.door import RESERVED_CONNECTIONS, SPARE_FILES, Guest, Guests, is_loopback, most_connections
from adlro.api.settings import ApiSettings

TOKENED = ApiSettings(port=0, rate_per_s=10_000, burst=10_000)
HALF = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON_S = 8.0  # less than the usual limits of 10 and 20 s, and enough for a busy machine


@contextmanager
def open_files(wanted: int) -> Iterator[None]:
    """Allow this process so many open files for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files; the test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(place: Place, source: str = "127.0.0.1", sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", place.port), timeout=60, source_address=(source, 0))
    made.sendall(sent)
    return made


def heard(connection: socket.socket, seconds: float = 60.0) -> bytes:
    """What comes, with its whole body if it says how long that is; nothing if the connection was closed."""
    connection.settimeout(seconds)
    found = b""
    try:
        while True:
            more = connection.recv(65_536)
            found += more
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if not more or length is None or len(body) >= int(length[1]):
                return found
    except ConnectionError:
        return b""


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


# ---- half-open connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", HALF], ids=["silent", "half a head"])
def test_1500_half_open_connections_keep_nobody_out(sent: bytes) -> None:
    with open_files(4096), serving(settings=TOKENED) as place, ExitStack() as opened:
        for _ in range(1500):
            opened.enter_context(connected(place, sent=sent))
        began = time.monotonic()
        assert place.ask("/readyz").status == 200
        assert place.ask("/api/v1/state", name="ann").status == 200
        assert time.monotonic() - began < SOON_S


def test_they_keep_nobody_out_of_a_daemon_either(tmp_path: Path) -> None:
    config = '[policy]\nname = "fcfs"\nfallback = "fcfs"\n[simulated]\ncluster = "paper16"\n[api]\nauth = "off"\n'
    with open_files(4096), served(tmp_path, config=config) as daemon, ExitStack() as opened:
        port = int(daemon.address.rstrip("/").rpartition(":")[2])
        for number in range(1500):
            # From several addresses, as several attackers would have them.
            source = (f"127.0.0.{2 + number % 5}", 0)
            made = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=source)
            opened.enter_context(made).sendall(HALF)
        began = time.monotonic()
        assert daemon.is_ready()
        assert daemon.ask("api/v1/state")["backend"] == "simulated"
        assert time.monotonic() - began < SOON_S


def test_a_head_that_comes_slowly_is_cut_off() -> None:
    with serving(settings=TOKENED.model_copy(update={"head_s": 0.3})) as place, connected(place, sent=HALF) as slow:
        began = time.monotonic()
        while not is_closed(slow) and time.monotonic() - began < SOON_S:
            time.sleep(0.02)
            try:
                slow.sendall(b"x")
            except ConnectionError:
                break
        assert 0.2 < time.monotonic() - began < SOON_S


def test_a_second_head_that_comes_slowly_is_cut_off_too() -> None:
    with serving(settings=TOKENED.model_copy(update={"head_s": 0.3})) as place, connected(place, sent=WHOLE) as slow:
        assert b"200 OK" in heard(slow)
        slow.sendall(HALF)
        assert heard(slow, SOON_S) == b""


def test_a_body_that_nobody_waits_for_keeps_no_connection() -> None:
    head = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    )
    with serving(settings=TOKENED.model_copy(update={"head_s": 0.3})) as place, connected(place, sent=head) as slow:
        assert b"401" in heard(slow)
        began = time.monotonic()
        while not is_closed(slow) and time.monotonic() - began < SOON_S:
            time.sleep(0.02)
            try:
                slow.sendall(b" ")
            except ConnectionError:
                break
        assert time.monotonic() - began < SOON_S


def test_a_connection_without_a_further_request_is_closed() -> None:
    with (
        serving(settings=TOKENED.model_copy(update={"idle_s": 0.2, "head_s": 20.0})) as place,
        connected(place, sent=WHOLE) as idle,
    ):
        assert b"200 OK" in heard(idle)
        assert heard(idle, SOON_S) == b""


def test_a_stream_lasts_longer_than_all_of_these() -> None:
    settings = TOKENED.model_copy(update={"idle_s": 0.1, "head_s": 0.1, "heartbeat_s": 0.1})
    asks = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer adlro_ann\r\n\r\n"
    with serving(settings=settings) as place, connected(place, sent=asks) as stream:
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            assert heard(stream)


def test_a_tls_handshake_that_never_begins_is_cut_off(tmp_path: Path) -> None:
    openssl = program("openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([openssl, *words.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(cert))
    settings = TOKENED.model_copy(
        update={"tls_cert": str(cert), "tls_key": str(key), "head_s": 0.5, "most_connections": 20}
    )
    with serving(settings=settings, context=context) as place, ExitStack() as opened:
        silent = [opened.enter_context(connected(place)) for _ in range(100)]
        assert place.ask("/readyz").status == 200
        until(lambda: all(is_closed(each) for each in silent))


# ---- too many --------------------------------------------------------------------------------------------------------


def test_one_address_has_so_many_connections_and_others_are_served() -> None:
    with serving(settings=TOKENED.model_copy(update={"most_per_address": 5})) as place, ExitStack() as opened:
        asks = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer adlro_ann\r\n\r\n"
        busy = [opened.enter_context(connected(place, "127.0.0.9", asks)) for _ in range(5)]
        assert all(b"200 OK" in heard(each) for each in busy)
        refused = opened.enter_context(connected(place, "127.0.0.9"))
        assert b"503" in heard(refused)
        assert place.ask("/readyz").status == 200
        busy[0].close()
        until(lambda: b"200 OK" in heard(opened.enter_context(connected(place, "127.0.0.9", WHOLE))))


def test_the_oldest_idle_connection_of_an_address_makes_room_for_a_new_one() -> None:
    with serving(settings=TOKENED.model_copy(update={"most_per_address": 3})) as place, ExitStack() as opened:
        idle = [opened.enter_context(connected(place)) for _ in range(3)]
        new = opened.enter_context(connected(place, sent=WHOLE))
        assert b"200 OK" in heard(new)
        assert [is_closed(each) for each in idle] == [True, False, False]


def guest(address: str, closed: list[str] | None = None) -> Guest:
    made = Guest(address)
    made.leave = lambda: closed.append(address) if closed is not None else None
    return made


def test_when_all_are_busy_only_this_machine_is_let_in() -> None:
    guests = Guests(most=3, most_each=100)
    for number in range(3):
        one = guest(f"10.0.0.{number}")
        assert guests.admit(one)
        guests.note(one, is_idle=False)
    assert not guests.admit(guest("10.0.0.9"))
    for _ in range(RESERVED_CONNECTIONS):
        one = guest("127.0.0.1")
        assert guests.admit(one)
        guests.note(one, is_idle=False)
    assert not guests.admit(guest("127.0.0.1"))
    assert guests.count == 3 + RESERVED_CONNECTIONS


def test_a_connection_that_was_answered_lately_is_closed_after_those_that_wait_longer() -> None:
    closed: list[str] = []
    guests = Guests(most=2, most_each=2)
    first, second = guest("10.0.0.1", closed), guest("10.0.0.2", closed)
    assert guests.admit(first)
    assert guests.admit(second)
    guests.note(first, is_idle=False)
    guests.note(first, is_idle=True)
    assert guests.admit(guest("10.0.0.3", closed))
    assert closed == ["10.0.0.2"]
    guests.left(second)  # it is told again when its connection is gone
    assert guests.count == 2


@pytest.mark.parametrize(
    ("address", "is_own"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("", False)]
)
def test_this_machines_own_addresses_are_known(address: str, is_own: bool) -> None:
    assert is_loopback(address) is is_own


# ---- open files ------------------------------------------------------------------------------------------------------


def test_there_are_never_more_connections_than_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        assert most_connections(1000) == 400 - SPARE_FILES - RESERVED_CONNECTIONS
        assert most_connections(100) == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_without_open_files_to_spare_answers_as_soon_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.door.PAUSE_S", 0.05)
    with serving(settings=TOKENED) as place:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        here = socket.socket()
        idle = connected(place, sent=WHOLE)
        assert b"200 OK" in heard(idle)
        taken = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, hard))
        try:
            spare = []
            try:
                while True:
                    spare.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            here.connect(("127.0.0.1", place.port))
            here.sendall(WHOLE)
            assert b"200 OK" in heard(here), "an idle connection made room"
            assert is_closed(idle)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in spare:
                os.close(number)
            here.close()
            idle.close()
        assert place.ask("/healthz").status == 200
