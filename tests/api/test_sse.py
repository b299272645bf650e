"""Events as a stream: none lost, none twice, resumed where it broke off, and an end to it when nobody listens."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.api.api_server import TOKENS, Place, client_for, serving
from tests.api.fake_service import FakeService

from adlro.api.app import make_app
from adlro.api.server import make_server
from adlro.api.settings import ApiSettings
from adlro.core.ports import JobState

SETTINGS = ApiSettings(port=0, auth="off", heartbeat_s=0.2)
EVENTS = "/api/v1/events"


@contextmanager
def listening(place: Place, query: str = "", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """A stream that is open, past its first line."""
    connection = place.connect()
    connection.request("GET", EVENTS + query, headers=headers)
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.readline() == b": still here\n"
    try:
        yield answer
    finally:
        answer.close()
        connection.close()


def take(stream: http.client.HTTPResponse, count: int) -> list[dict[str, Any]]:
    """The next events of a stream."""
    found: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    while len(found) < count:
        line = stream.readline().decode().rstrip("\n")
        if line == "" and "data" in fields:
            record = json.loads(fields["data"])
            assert (str(record["number"]), record["kind"]) == (fields["id"], fields["event"])
            found.append(record)
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    return found


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


def test_a_listener_hears_what_happens_from_now_on(service: FakeService) -> None:
    before = len(service.events_seen)
    with serving(service, SETTINGS) as place, listening(place) as stream:
        service.happen("policy", {"policy": "sjf"})
        service.turn()
        heard = take(stream, 2)
        assert [event["number"] for event in heard] == [before + 1, before + 2]
        assert heard[0]["data"] == {"policy": "sjf"}


def test_a_stream_that_broke_off_goes_on_after_the_last_id(service: FakeService) -> None:
    with serving(service, SETTINGS) as place:
        for query, headers in (("", {"Last-Event-ID": "3"}), ("?after=3", {}), ("?after=1", {"Last-Event-ID": "3"})):
            with listening(place, query, **headers) as stream:
                wanted = len(service.events_seen) - 3
                assert [event["number"] for event in take(stream, wanted)] == list(range(4, 4 + wanted))


def test_many_listeners_all_hear_everything_once_and_in_order(service: FakeService) -> None:
    with serving(service, SETTINGS) as place, listening(place) as one, listening(place) as two:
        first = len(service.events_seen) + 1
        for n in range(300):
            service.happen("tick", {"tick": n})
        for stream in (one, two):
            assert [event["number"] for event in take(stream, 300)] == list(range(first, first + 300))


def test_who_is_far_behind_gets_the_rest_from_the_daemon(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.api.events.MOST_EVENTS_KEPT", 5)
    with serving(service, SETTINGS) as place, listening(place) as stream:
        first = len(service.events_seen) + 1
        with service.lock:
            for n in range(50):
                service.happen("tick", {"tick": n})
        assert [event["number"] for event in take(stream, 50)] == list(range(first, first + 50))


def test_numbers_that_began_anew_are_noticed(service: FakeService) -> None:
    with serving(service, SETTINGS) as place, listening(place, "?after=9999999") as stream:
        assert take(stream, 1)[0]["number"] == 1


def test_a_user_hears_all_of_his_own_jobs_and_of_others_only_that_something_happened(service: FakeService) -> None:
    settings = SETTINGS.model_copy(update={"auth": "tokens", "stream_s": 0.1})
    own, others = service.one(JobState.WAITING, "ann").id, service.one(JobState.WAITING, "bob").id
    last = len(service.events_seen)
    service.happen("decided", {"job": own, "reason": "why"})
    service.happen("decided", {"job": others, "reason": "why"})
    service.happen("submitted", {"job": "2000", "user": "ann", "name": "new"})
    service.happen("submitted", {"job": "2001", "user": "bob", "name": "new"})
    service.happen("alarm", {"kind": "down", "text": "a node is down", "job": "", "node": "volta0"})
    said = client_for(service, "ann", settings).get(f"{EVENTS}?after={last}").text
    heard = [json.loads(line.removeprefix("data: "))["data"] for line in said.splitlines() if line.startswith("data")]
    assert heard == [
        {"job": own, "reason": "why"},
        {"job": others},
        {"job": "2000", "user": "ann", "name": "new"},
        {"job": "2001"},
        {"kind": "down", "text": "a node is down", "node": "volta0"},
    ]


def test_a_silent_stream_shows_that_it_is_alive(service: FakeService) -> None:
    with serving(service, SETTINGS) as place, listening(place) as stream:
        assert stream.readline() == b"\n"
        assert stream.readline() == b": still here\n"


def test_a_listener_who_has_gone_is_noticed_and_nobody_asks_the_daemon_any_more(service: FakeService) -> None:
    with serving(service, SETTINGS) as place:
        listeners = place.app.state.listeners
        with listening(place), listening(place):
            until(lambda: listeners.count == 2)
        until(lambda: listeners.count == 0)
        until(lambda: listeners._asking is None or listeners._asking.done())


def test_listeners_do_not_hold_up_other_questions(service: FakeService) -> None:
    with serving(service, SETTINGS.model_copy(update={"most_streams": 100})) as place:
        connections = [place.connect() for _ in range(60)]
        for connection in connections:
            connection.request("GET", EVENTS)
            assert connection.getresponse().status == 200
        assert place.ask("/api/v1/jobs/1001/why").status == 200
        assert place.ask("/readyz").status == 200
        for connection in connections:
            connection.close()


def test_there_is_a_bound_to_listeners(service: FakeService) -> None:
    with serving(service, SETTINGS.model_copy(update={"most_streams": 1})) as place, listening(place):
        answer = place.ask(EVENTS)
        assert (answer.status, answer.headers["retry-after"]) == (503, "30")


def test_a_stream_ends_after_its_time(service: FakeService) -> None:
    answer = client_for(service, settings=SETTINGS.model_copy(update={"stream_s": 0.05})).get(f"{EVENTS}?after=0")
    assert answer.text.count("event: ") == len(service.events_seen)


def test_a_stream_ends_when_its_token_is_removed(service: FakeService) -> None:
    import threading

    settings = SETTINGS.model_copy(update={"auth": "tokens", "heartbeat_s": 0.05})
    tokens = list(TOKENS)
    server = make_server(make_app(service, settings, tokens=lambda: tokens), settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        place = Place(server.servers[0].sockets[0].getsockname()[1], None)
        with listening(place, Authorization="Bearer adlro_ann") as stream:
            tokens.clear()
            assert b"event" not in stream.read()
    finally:
        server.should_exit = True
        thread.join(timeout=60)


def test_a_number_that_is_none_is_refused(service: FakeService) -> None:
    client = client_for(service)
    assert client.get(EVENTS, headers={"Last-Event-ID": "x"}).status_code == 422
    assert client.get(f"{EVENTS}?after=-1").status_code == 422
