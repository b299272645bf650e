"""Whom the API lets in, what it shows to whom, and how much of anything it takes."""

import logging
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.accounts import temporary_account
from tests.api.api_server import TOKENS, Client, Place, client_for, serving
from tests.api.fake_service import FakeService
from tests.daemon.daemons import made_daemon
from tests.parts import program

from adlro.api.app import make_app
from adlro.api.security import MOST_BUCKETS, Buckets
from adlro.api.server import make_server
from adlro.api.settings import ApiSettings
from adlro.api.tokens import KeptToken, hash_of
from adlro.core.accounts import Owners
from adlro.core.errors import BackendError, ConfigError
from adlro.core.ports import JobState
from adlro.live.service import NOT_READY, Alarm, Mention, reason_for_all

V1 = "/api/v1"
TOKENED = ApiSettings(port=0, rate_per_s=10_000, burst=10_000)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with serving(settings=TOKENED) as place:
        yield place


# ---- who -------------------------------------------------------------------------------------------------------------


def test_without_a_token_only_what_is_open_answers(place: Place) -> None:
    for path in ("/healthz", "/readyz", f"{V1}/openapi.json"):
        assert place.ask(path).status == 200
    for path in ("/metrics", *(f"{V1}/{name}" for name in ("state", "jobs", "me", "events", "nothing"))):
        answer = place.ask(path)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json["error"]["expected"] == "Bearer adlro_…"


@pytest.mark.parametrize("given", ["Bearer", "Bearer ", "Bearer adlro_nobody", "Basic YW5uOng=", "adlro_ann", "\xff"])
def test_a_token_that_does_not_count_lets_nobody_in(place: Place, given: str) -> None:
    assert place.ask(f"{V1}/me", headers={"Authorization": given}).status == 401


def test_why_it_is_not_ready_is_told_to_those_who_may_know(service: FakeService) -> None:
    service.ready = (False, "slurmctld at 10.0.0.5 does not answer")
    with serving(service, TOKENED) as place:
        assert place.ask("/readyz").json == {"ready": False, "why": "not ready"}
        assert "10.0.0.5" in place.ask("/readyz", name="eve").json["why"]


@pytest.mark.parametrize("details", ["", ".", ": slurmctld at 10.0.0.5 does not answer"])
@pytest.mark.parametrize("reason", sorted(NOT_READY))
def test_everybody_is_told_the_reason_for_not_being_ready_and_only_some_the_details(
    service: FakeService, reason: str, details: str
) -> None:
    service.ready = (False, reason + details)
    app = make_app(service, TOKENED, tokens=lambda: TOKENS)
    assert Client(app, {}).get("/readyz").json() == {"ready": False, "why": reason}
    known = Client(app, {"Authorization": "Bearer adlro_eve"}).get("/readyz")
    assert known.json() == {"ready": False, "why": reason + details}


def test_every_reason_of_the_daemon_can_be_told_to_everybody() -> None:
    daemon, made = made_daemon()
    assert reason_for_all(daemon.is_ready()[1]) == "the daemon is starting"
    made.wrong = BackendError("slurmrestd does not answer at /run/secret.sock.")
    daemon.tick()
    assert reason_for_all(daemon.is_ready()[1]) == "the cluster or the store cannot be opened"
    made.wrong = None
    daemon.tick()
    made.backend.is_gone = True
    daemon.tick()
    assert reason_for_all(daemon.is_ready()[1]) == "the cluster cannot be read"
    daemon.close()
    assert reason_for_all(daemon.is_ready()[1]) == "the daemon has ended"


def test_probes_are_answered_however_much_is_asked_from_the_same_address(service: FakeService) -> None:
    app = make_app(service, TOKENED.model_copy(update={"rate_per_s": 0.001, "burst": 2}), tokens=lambda: TOKENS)
    client = Client(app, {})
    assert [client.get("/").status_code for _ in range(3)] == [404, 404, 429]
    assert {client.get(path).status_code for path in ("/readyz", "/healthz") * 5} == {200}


def test_while_there_are_no_tokens_nobody_is_let_in_and_is_told_how_to_make_one(service: FakeService) -> None:
    app = make_app(service, ApiSettings())
    answer = Client(app, {}).get(f"{V1}/state")
    assert answer.status_code == 401
    assert "adlro token add" in answer.json()["error"]["do"]


def test_each_role_may_do_what_the_ones_before_it_may_and_no_more(service: FakeService) -> None:
    def statuses(name: str) -> list[int]:
        client = client_for(service, name)
        return [
            client.get(f"{V1}/state").status_code,
            client.post(f"{V1}/jobs", json={"job": {"family": "learning"}}).status_code,
            client.post(f"{V1}/what-if", json={}).status_code,
            client.put(f"{V1}/policies/current", json={"name": "sjf"}).status_code,
        ]

    assert statuses("eve") == [200, 403, 403, 403]
    assert statuses("ann") == [200, 201, 200, 403]
    assert statuses("root") == [200, 201, 200, 200]


def test_a_role_is_checked_before_what_was_sent(service: FakeService) -> None:
    assert client_for(service, "eve").post(f"{V1}/jobs", json={"rubbish": 1}).status_code == 403


# ---- whose -----------------------------------------------------------------------------------------------------------


def test_a_job_belongs_to_the_token_and_only_an_operator_may_name_another(service: FakeService) -> None:
    def submit(name: str, user: str) -> Any:
        return client_for(service, name).post(f"{V1}/jobs", json={"job": {"family": "learning", "user": user}})

    assert service.jobs[submit("ann", "").json()["id"]].job.user == "ann"
    assert service.jobs[submit("ann", "ann").json()["id"]].job.user == "ann"
    assert submit("ann", "bob").status_code == 403
    assert service.jobs[submit("root", "bob").json()["id"]].job.user == "bob"


def test_only_an_operator_may_choose_a_priority(service: FakeService) -> None:
    def submit(name: str, priority: float) -> Any:
        wish = {"job": {"family": "learning", "priority": priority}}
        return client_for(service, name).post(f"{V1}/jobs", json=wish)

    for priority in (1.0, 0.0):
        answer = submit("ann", priority)
        assert (answer.status_code, answer.json()["error"]["where"]) == (403, "body.job.priority")
        assert "ask an operator" in answer.json()["error"]["do"]
    assert service.jobs[submit("ann", 0.5).json()["id"]].job.priority == 0.5
    assert service.jobs[submit("root", 0.9).json()["id"]].job.priority == 0.9


@pytest.mark.parametrize("user", ["0", "00", "1000", "-0", "+0", "a/b", "a b", "0\n"])
def test_a_user_given_as_a_number_is_refused_to_an_operator_too(service: FakeService, user: str) -> None:
    before = set(service.jobs)
    answer = client_for(service, "root").post(f"{V1}/jobs", json={"job": {"family": "learning", "user": user}})
    assert (answer.status_code, answer.json()["error"]["where"]) == (422, "body.job.user")
    assert answer.json()["error"]["expected"].startswith("a login name")
    assert set(service.jobs) == before


def test_a_token_of_an_old_file_whose_name_is_a_number_may_do_nothing(service: FakeService) -> None:
    before = dict(service.jobs)
    for role in ("viewer", "user", "operator"):
        kept = [KeptToken("0", role, hash_of("adlro_old"), 0.0)]
        client = Client(make_app(service, ApiSettings(), tokens=lambda: kept), {"Authorization": "Bearer adlro_old"})  # noqa: B023
        for answer in (
            client.get(f"{V1}/state"),
            client.post(f"{V1}/jobs", json={"job": {"family": "learning"}}),
            client.post(f"{V1}/jobs", json={"job": {"family": "learning", "user": "ann"}}),
            client.delete(f"{V1}/jobs/{next(iter(before))}"),
        ):
            assert answer.status_code == 403
            assert answer.json()["error"]["what"] == "the name of this token is '0'"
            assert "adlro token remove" in answer.json()["error"]["do"]
    assert service.jobs == before


def test_where_jobs_run_as_their_users_a_job_needs_an_account_that_is_no_system_account(service: FakeService) -> None:
    settings, before = ApiSettings(owners=Owners(are_accounts=True)), set(service.jobs)

    def submit(name: str, user: str) -> Any:
        wish = {"job": {"family": "learning", "user": user}}
        return client_for(service, name, settings).post(f"{V1}/jobs", json=wish)

    for name, user, word in [
        ("root", "root", "its uid is 0"),
        ("root", "", "its uid is 0"),
        ("root", "nobody", "belong to services"),
        ("root", "no-such-login", "no account 'no-such-login'"),
        ("ann", "", "no account 'ann'"),
    ]:
        answer = submit(name, user)
        assert (answer.status_code, answer.json()["error"]["where"]) == (403, "body.job.user")
        assert word in answer.json()["error"]["what"]
    assert set(service.jobs) == before
    with temporary_account() as account:
        assert service.jobs[submit("root", account.name).json()["id"]].job.user == account.name


def test_a_user_cancels_only_jobs_of_his_own(service: FakeService) -> None:
    others, own = service.one(JobState.WAITING, "bob").id, service.one(JobState.WAITING, "ann").id
    ann = client_for(service, "ann")
    assert ann.delete(f"{V1}/jobs/{others}").status_code == 403
    assert service.jobs[others].state is JobState.WAITING
    assert ann.delete(f"{V1}/jobs/{own}").status_code == 200
    assert client_for(service, "eve").delete(f"{V1}/jobs/{others}").status_code == 403
    assert client_for(service, "root").delete(f"{V1}/jobs/{others}").status_code == 200


def test_a_user_asks_only_about_other_wishes_of_own_jobs(service: FakeService) -> None:
    others, own = service.one(JobState.WAITING, "bob").id, service.one(JobState.WAITING, "ann").id
    ann = client_for(service, "ann")

    def status(job: str) -> int:
        return ann.post(f"{V1}/what-if", json={"change": [{"job": job, "gpus": 1, "models": ["t4"]}]}).status_code

    assert [status(others), status(own), status("nobodys")] == [403, 200, 404]


def test_nothing_that_others_may_read_tells_whose_a_job_is(service: FakeService) -> None:
    """Every name is one that occurs nowhere else, so that any leak is seen, whatever answer it is in."""
    secret = "zzsecret"
    for id, live in service.jobs.items():
        if live.job.user != "ann":
            job = replace(live.job, user=f"{secret}-user", name=f"{secret}-name")
            service.jobs[id] = replace(live, job=job, reason=f"{secret}-reason")
    others = next(live for live in service.jobs.values() if live.job.user != "ann")
    service.log = [
        replace(
            decision,
            reason=decision.reason if service.jobs[decision.job].job.user == "ann" else f"{secret}-why",
            like=tuple(replace(one, user=f"{secret}-user", name=f"{secret}-name") for one in decision.like),
            mentions=(Mention(others.id, f"{secret}-name", f"{secret}-user"),),
        )
        for decision in service.log
    ]
    service.alarms.append(Alarm(1.0, "starvation", f"{secret} waits", job=others.id))
    service.happen("submitted", {"job": others.id, "user": f"{secret}-user", "name": f"{secret}-name"})
    service.happen("alarm", {"kind": "starvation", "text": f"{secret} waits", "job": others.id})
    service.happen("tick", {"tick": 1, "decisions": [f"{secret}"], "more": f"{secret}"})
    service.turn()
    settings = TOKENED.model_copy(update={"stream_s": 0.2, "auth": "tokens"})
    paths = [
        *(f"/{name}" for name in ("state?ended=1000&waiting=1000", "cluster", "jobs?limit=1000", "alarms", "history")),
        *("/decisions?limit=1000", f"/decisions?job={others.id}", f"/jobs/{others.id}", f"/jobs/{others.id}/why"),
        *("/events?after=0", "/drifts", "/policies", f"/jobs?user={secret}-user"),
        *(f"/jobs/{live.id}/why" for live in service.jobs.values() if live.job.user == "ann"),
        *(f"/jobs?search={secret}", "/jobs?sort=user&limit=1000", "/jobs?sort=name&order=desc&limit=1000"),
        *("/past", f"/past?user={secret}-user", f"/usage?user={secret}-user", f"/jobs/{others.id}/output"),
    ]
    for name in ("ann", "eve"):
        client = client_for(service, name, settings)
        for path in paths:
            assert secret not in client.get(V1 + path).text, path
        assert client.get(f"{V1}/jobs?user={secret}-user").json()["total"] == 0
        assert client.get(f"{V1}/jobs/{others.id}").json()["is_hidden"] is True
        assert client.get(f"{V1}/jobs/{others.id}/why").status_code == 403
    assert secret in client_for(service, "root", settings).get(f"{V1}/events?after=0").text
    assert secret in client_for(service, "root").get(f"{V1}/jobs?limit=1000").text
    shown = client_for(service, "eve", settings.model_copy(update={"others": "shown"}))
    assert secret in shown.get(f"{V1}/jobs?limit=1000").text


def test_a_user_sees_his_own_jobs_whole(service: FakeService) -> None:
    ann = client_for(service, "ann")
    page = ann.get(f"{V1}/jobs?user=ann&limit=1000").json()
    assert page["total"] == sum(live.job.user == "ann" for live in service.jobs.values()) > 0
    assert all(job["job"]["name"] for job in page["jobs"])
    assert not any(job["is_hidden"] for job in page["jobs"])
    own = page["jobs"][0]["id"]
    assert ann.get(f"{V1}/jobs/{own}/why").status_code == 200
    assert ann.get(f"{V1}/me").json() == {"name": "ann", "role": "user", "sees": "own"}


def test_an_answer_kept_for_one_reader_is_not_given_to_another(service: FakeService) -> None:
    settings = ApiSettings()
    app = make_app(service, settings, tokens=lambda: TOKENS)
    texts = {
        name: Client(app, {"Authorization": f"Bearer adlro_{name}"}).get(f"{V1}/jobs?limit=1000").text
        for name in ("root", "ann", "bob", "eve")
    }
    assert '"user":"ann"' in texts["ann"]
    assert '"user":"ann"' not in texts["bob"]
    assert '"user":"chen"' not in texts["ann"]
    assert '"user":"chen"' in texts["root"]
    assert '"user":"ann"' not in texts["eve"]


# ---- how much --------------------------------------------------------------------------------------------------------


def test_who_asks_too_often_is_told_when_to_come_back(service: FakeService) -> None:
    with serving(service, ApiSettings(port=0, rate_per_s=0.5, burst=3)) as place:
        assert [place.ask(f"{V1}/me", name="ann").status for _ in range(4)] == [200, 200, 200, 429]
        answer = place.ask(f"{V1}/me", name="ann")
        assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert place.ask(f"{V1}/me", name="bob").status == 200
        assert [place.ask(f"{V1}/me").status for _ in range(4)] == [401, 401, 401, 429]


def test_a_question_played_forward_counts_for_many(service: FakeService) -> None:
    client = client_for(service, "ann", ApiSettings(rate_per_s=1, burst=25))
    statuses = [client.post(f"{V1}/what-if", json={}).status_code for _ in range(2)]
    assert statuses == [200, 429]


def test_a_question_of_the_store_counts_for_several(service: FakeService) -> None:
    client = client_for(service, "ann", ApiSettings(rate_per_s=0.01, burst=25))
    assert [client.get(f"{V1}/usage?steps={steps}").status_code for steps in (1, 2, 3)] == [200, 200, 429]
    assert client.get(f"{V1}/past").status_code == 200
    assert client.get(f"{V1}/me").status_code == 429


def test_a_bucket_fills_again_and_no_more_are_kept_than_there_is_room_for() -> None:
    now = [0.0]
    buckets = Buckets(rate_per_s=2.0, burst=2.0, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    now[0] += 0.5
    assert buckets.take("a") == 0.0
    assert buckets.take("a") == 0.5
    for n in range(MOST_BUCKETS + 10):
        buckets.take(f"address {n}")
    assert len(buckets._levels) == MOST_BUCKETS


def test_a_body_that_is_too_large_is_refused_by_its_length_alone(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as wire:
        wire.sendall(
            f"POST {V1}/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer adlro_ann\r\n"
            "Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n".encode()
        )
        assert b" 413 " in wire.recv(4096).split(b"\r\n")[0]


def test_a_body_in_chunks_is_refused_once_it_is_too_large(place: Place) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as wire:
        wire.sendall(
            f"POST {V1}/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer adlro_ann\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(5):
            wire.sendall(chunk)
        assert b" 413 " in wire.recv(4096).split(b"\r\n")[0]


def test_a_body_that_does_not_come_is_not_waited_for(service: FakeService) -> None:
    with (
        serving(service, TOKENED.model_copy(update={"body_s": 0.1})) as place,
        socket.create_connection(("127.0.0.1", place.port), timeout=30) as wire,
    ):
        wire.sendall(
            f"POST {V1}/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer adlro_ann\r\n"
            "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{".encode()
        )
        assert b" 408 " in wire.recv(4096).split(b"\r\n")[0]


def test_who_is_unknown_is_refused_before_his_body_is_read(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as wire:
        wire.sendall(
            f"POST {V1}/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 1000\r\n\r\n".encode()
        )
        assert b" 401 " in wire.recv(4096).split(b"\r\n")[0]


def test_headers_have_an_end(place: Place) -> None:
    assert place.ask("/healthz", headers={f"X-{n}": "1" for n in range(120)}).status == 431
    assert place.ask("/healthz", headers={"X-Long": "x" * 20_000}).status == 431
    assert place.ask("/healthz", headers={"X-Long": "x" * 60_000}).status in (400, 431)


# ---- from where ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "local host"])
def test_a_name_that_is_not_ours_is_refused(place: Place, host: str) -> None:
    assert place.ask(f"{V1}/me", name="root", headers={"Host": host}).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:8321", "[::1]:8321", "192.0.2.7"])
def test_localhost_and_addresses_are_ours(place: Place, host: str) -> None:
    assert place.ask(f"{V1}/me", name="root", headers={"Host": host}).status == 200


def test_a_name_of_the_configuration_is_ours(service: FakeService) -> None:
    with serving(service, TOKENED.model_copy(update={"hosts": ["gpus.example"]})) as place:
        assert place.ask("/healthz", headers={"Host": "gpus.example"}).status == 200


def test_a_page_of_another_site_can_neither_read_nor_do_anything(service: FakeService) -> None:
    with serving(service, TOKENED.model_copy(update={"auth": "off"})) as place:
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        ):
            assert place.ask(f"{V1}/jobs", "POST", {"job": {"family": "learning"}}, headers).status == 403
            assert place.ask(f"{V1}/state", headers=headers).status == 403
        own = {"Origin": place.url, "Sec-Fetch-Site": "same-origin"}
        assert place.ask(f"{V1}/jobs", "POST", {"job": {"family": "learning"}}, own).status == 201
        answer = place.ask(f"{V1}/jobs", "OPTIONS", headers={"Access-Control-Request-Method": "POST"})
        assert answer.status == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_of_another_page_could_send_is_not_taken(place: Place, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    body = b'{"job": {"family": "learning"}}'
    assert place.ask(f"{V1}/jobs", "POST", body, headers, name="ann").status == 415


# ---- where it binds, TLS ---------------------------------------------------------------------------------------------


def test_by_default_only_this_machine_reaches_it_and_nobody_is_let_in_without_a_token() -> None:
    settings = ApiSettings()
    assert (settings.host, settings.auth) == ("127.0.0.1", "tokens")
    assert settings.is_loopback


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ApiSettings(host="0.0.0.0", auth="off"), "everyone who reaches it would be an operator"),
        (ApiSettings(host="10.0.0.5"), "no tokens"),
        (ApiSettings(host="::"), "no tokens"),
        (ApiSettings(host="gpus.example"), "no tokens"),
        (ApiSettings(tls_cert="cert.pem"), "expected both"),
        (ApiSettings(tls_cert="no.pem", tls_key="no.pem"), "no.pem does not exist"),
    ],
)
def test_what_would_let_in_whom_it_should_not_does_not_start(
    service: FakeService, settings: ApiSettings, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_server(make_app(service, settings), settings)


def test_tokens_do_not_travel_in_the_clear_unless_something_in_front_has_tls(service: FakeService) -> None:
    settings = ApiSettings(host="10.0.0.5")
    with pytest.raises(ConfigError, match="unencrypted"):
        make_server(make_app(service, settings, tokens=lambda: TOKENS), settings)
    behind = settings.model_copy(update={"plain_http": True})
    make_server(make_app(service, behind, tokens=lambda: TOKENS), behind)


def test_with_a_certificate_it_speaks_tls_only(service: FakeService, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(cert))
    with serving(service, TOKENED.model_copy(update={"tls_cert": str(cert), "tls_key": str(key)}), context) as place:
        answer = place.ask(f"{V1}/me", name="ann")
        assert answer.json["name"] == "ann"
        assert "max-age" in answer.headers["strict-transport-security"]
        with pytest.raises((OSError, Exception)):
            replace(place, context=None).ask("/healthz")


# ---- what is written down --------------------------------------------------------------------------------------------


def test_no_secret_and_no_command_gets_into_the_log_but_who_did_what_does(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ann = client_for(service, "ann")
    sent = {"job": {"family": "learning"}, "command": ["x", "--password=hunter2"], "environment": {"KEY": "hunter2"}}
    id = ann.post(f"{V1}/jobs", json=sent).json()["id"]
    ann.delete(f"{V1}/jobs/{id}")
    ann.post(f"{V1}/jobs", json={"job": {"family": "hunter2"}, "command": ["hunter2"]})
    service.broken = RuntimeError("hunter2")
    ann.post(f"{V1}/jobs", json=sent)
    everything = "\n".join(str(vars(record)) for record in caplog.records if not record.name.startswith("httpx"))
    assert "hunter2" not in everything
    assert "adlro_ann" not in everything
    done = [(r.getMessage(), vars(r).get("by"), vars(r).get("job")) for r in caplog.records if r.name == "adlro.api"]
    assert ("job submitted", "ann", id) in done
    assert ("job cancelled", "ann", id) in done


def test_a_server_that_is_told_to_end_does_so_though_somebody_listens(service: FakeService) -> None:
    with serving(service, TOKENED) as place:
        connection = place.connect()
        connection.request("GET", f"{V1}/events", headers={"Authorization": "Bearer adlro_ann"})
        answer = connection.getresponse()
        assert answer.readline() == b": still here\n"
        began = time.monotonic()
    assert time.monotonic() - began < 8  # the next heartbeat of the stream would come after 15 s
    connection.close()
