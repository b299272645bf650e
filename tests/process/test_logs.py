"""Logs are JSON, one object in each line, and no secret is ever in them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.process.logs import LOGGER, JsonLines, set_up_logs, without_secrets

log = logging.getLogger(LOGGER)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb290In0.c2lnbmF0dXJlLXNlY3JldA"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.level
    handler = set_up_logs("info", secrets=("word-of-the-config",), stream=stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_an_object_with_the_time_the_level_the_text_and_what_was_given(out: io.StringIO) -> None:
    log.info("turn", extra={"number": 7, "policy": "sjf", "parts": [("n0", 2)]})
    (line,) = lines(out)
    assert line["time"].endswith("Z")
    del line["time"]
    assert line == {
        "level": "info", "logger": "adlro", "text": "turn", "number": 7, "policy": "sjf", "parts": [["n0", 2]],
    }  # fmt: skip


def test_a_text_with_line_breaks_stays_one_line(out: io.StringIO) -> None:
    log.warning("a job called %s", 'x\n{"level":"error"}\r\u2028')
    assert len(out.getvalue().rstrip("\n").split("\n")) == 1
    assert lines(out)[0]["text"].startswith("a job called x\n{")


def test_an_error_has_its_traceback_in_the_same_line_and_no_secret_of_it(out: io.StringIO) -> None:
    try:
        raise ValueError(f"Authorization: Bearer {JWT}")
    except ValueError:
        log.exception("it broke")
    (line,) = lines(out)
    assert "ValueError" in line["error"]
    assert "c2lnbmF0" not in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://adlro:hunter22-s3cret@db:5432/adlro",
        "http://me:hunter22-s3cret@prometheus:9090/api",
        "Authorization: Bearer hunter22-s3cret",
        "authorization=Basic hunter22-s3cret==",
        "X-SLURM-USER-TOKEN: hunter22-s3cret",
        '{"token": "hunter22-s3cret"}',
        "GET /v1/events?token=hunter22-s3cret&after=3",
        "password = 'hunter22-s3cret'",
        "SLURM_JWT=hunter22-s3cret",
        "api_key: hunter22-s3cret,",
        "Cookie: hunter22-s3cret",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter22-s3cret\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_hidden_in_texts_values_and_names(out: io.StringIO, text: str) -> None:
    log.info("asked: %s", text)
    log.info("asked", extra={"request": text, "deep": {"list": [text]}})
    assert "hunter22-s3cret" not in out.getvalue()
    assert "***" in out.getvalue()


def test_a_jwt_is_hidden_wherever_it_stands(out: io.StringIO) -> None:
    log.info("the header was %s", JWT)
    log.info("got", extra={"token": JWT, "user_password": "x1y2", "what": {"jwt": ["a", "b"]}})
    assert "eyJ" not in out.getvalue()
    assert "x1y2" not in out.getvalue()


def test_a_secret_of_the_config_is_hidden_without_any_sign_that_it_is_one(out: io.StringIO) -> None:
    log.error("cannot connect as word-of-the-config")
    assert "word-of-the-config" not in out.getvalue()


def test_libraries_log_through_the_same_door(out: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("Bearer hunter22-s3cret")
    assert lines(out)[0]["logger"] == "uvicorn.error"
    assert "hunter22" not in out.getvalue()


def test_an_ordinary_text_is_left_as_it_is() -> None:
    text = "job 12 of ada on volta0: token bucket full? 3 tokens, ratio 1:2, see http://host:9090/x and a@b.org"
    assert without_secrets(text) == text


def test_setting_up_twice_does_not_tell_twice(out: io.StringIO) -> None:
    again = io.StringIO()
    handler = set_up_logs("warning", stream=again)
    log.info("not told")
    log.warning("told")
    assert out.getvalue() == ""
    assert [line["text"] for line in lines(again)] == ["told"]
    logging.getLogger().removeHandler(handler)


def test_a_very_long_text_is_cut(out: io.StringIO) -> None:
    log.info("x" * 1_000_000)
    assert len(out.getvalue()) < 30_000


@given(
    st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'@/,;&}])"), min_size=4)
)
def test_no_password_of_an_address_gets_through(word: str) -> None:
    record = logging.makeLogRecord({"msg": "at %s", "args": (f"postgresql://adlro:{word}@db/x",), "levelname": "INFO"})
    text = json.loads(JsonLines().format(record))["text"]
    assert text == "at postgresql://adlro:***@db/x"


@given(st.text(max_size=200))
def test_every_text_can_be_told(text: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelname": "INFO", "extra_one": text})
    line = JsonLines().format(record)
    assert "\n" not in line
    json.loads(line)
