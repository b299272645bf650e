"""Requests have limits, follow nobody, and keep secrets; what goes wrong is one clear line."""

import time
from base64 import b64encode
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ingest.telemetry.exporters import dcgm_page, says, served

from adlro.core.errors import AdlroError, TelemetryError, UsageError
from adlro.ingest.telemetry.exposition import scrape_exporter
from adlro.ingest.telemetry.fetch import FetchLimits, check_url, get, shown

BRISK = FetchLimits(seconds=0.3)


def test_a_body_of_200_mb_is_refused_at_the_limit_and_not_read_to_its_end() -> None:
    sent = [0]

    def flood(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()  # without a length: only reading shows how long it is
        for _ in range(200):
            request.wfile.write(b"x" * 1_000_000)
            sent[0] += 1_000_000

    with served(flood) as url, pytest.raises(TelemetryError, match=r"larger than 8 MiB, and was refused"):
        get(url, "text/plain", FetchLimits(bytes=8 << 20))
    assert sent[0] < 100_000_000


def test_a_body_that_says_it_is_too_long_is_refused_at_once() -> None:
    with (
        served(says(b"x", Content_Length="200000000")) as url,
        pytest.raises(TelemetryError, match="larger than 64 MiB"),
    ):
        get(url, "text/plain", FetchLimits())


def test_the_usual_limit_is_64_mib() -> None:
    assert FetchLimits().bytes == 64 * 2**20


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    asked: list[str] = []

    def elsewhere(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        says(dcgm_page("a0"))(request)

    with (
        served(elsewhere) as target,
        served(says("", code, Location=f"{target}/metrics")) as url,
        pytest.raises(TelemetryError, match=rf"HTTP {code}\), which is not followed"),
    ):
        scrape_exporter(url)
    assert asked == []


@pytest.mark.parametrize(("code", "word"), [(500, "HTTP 500: out of order"), (503, "HTTP 503"), (404, "HTTP 404")])
def test_an_error_of_the_server_is_told_with_its_words(code: int, word: str) -> None:
    with served(says("out of\norder\x1b[2J", code)) as url, pytest.raises(TelemetryError, match=word) as raised:
        scrape_exporter(url)
    assert "\x1b" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_credentials_are_sent_but_never_shown() -> None:
    got: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        got.append(request.headers["Authorization"])
        says("no", 401)(request)

    with served(answer) as url, pytest.raises(TelemetryError) as raised:
        scrape_exporter(url.replace("http://", "http://me:hunter%40@") + "/metrics?token=hunter")
    assert got == [f"Basic {b64encode(b'me:hunter@').decode()}"]
    assert "hunter" not in str(raised.value)
    assert "HTTP 401" in str(raised.value)


@pytest.mark.parametrize(
    "url", ["ftp://x/y", "file:///etc/passwd", "localhost:9090", "", "http://", "http://a b", "http://x:y"]
)
def test_only_http_and_https_are_addresses(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        check_url(url)


@given(st.text(max_size=30))
def test_no_address_makes_it_crash_and_no_secret_is_shown(text: str) -> None:
    with suppress(UsageError):
        check_url(text)
    assert "s3cret" not in shown(f"http://user:s3cret@{text.replace('@', '')}?s3cret")


def test_nobody_there_is_one_clear_line() -> None:
    with served(says("")) as url:
        pass
    with pytest.raises(TelemetryError, match="no connection: Connection refused"):
        scrape_exporter(url)


def test_a_server_that_does_not_answer_ends_with_the_time_out() -> None:
    def silence(request: BaseHTTPRequestHandler) -> None:
        time.sleep(2)

    with served(silence) as url, pytest.raises(TelemetryError, match=r"no whole answer within 0\.3 s"):
        scrape_exporter(url, BRISK)


def test_a_server_that_trickles_ends_with_the_time_out() -> None:
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(50):
            request.wfile.write(b"x\n")
            time.sleep(0.05)

    with served(trickle) as url, pytest.raises(TelemetryError, match=r"no whole answer within 0\.3 s"):
        scrape_exporter(url, BRISK)


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    with served(says(b"gpu", Content_Length="100")) as url, pytest.raises(AdlroError, match="ended after"):
        scrape_exporter(url)


def test_something_that_is_not_http_is_told() -> None:
    def noise(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\x00\xff garbage\r\n\r\n")

    with served(noise) as url, pytest.raises(TelemetryError, match="not HTTP"):
        scrape_exporter(url)
