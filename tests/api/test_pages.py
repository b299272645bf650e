"""What the pages ask: jobs sorted and searched, the past, usage, history, output; and that none of it tells secrets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import client_for
from tests.api.fake_service import NOW, FakeService

import adlro.api
from adlro.api.app import make_app
from adlro.api.settings import ApiSettings
from adlro.core.ports import JobState, Output
from adlro.live.service import Compared

V1 = "/api/v1"
SECRET = "zzsecret"


@pytest.fixture(name="service")
def make_service() -> FakeService:
    return FakeService()


@pytest.fixture(name="guarded")
def make_guarded_service(service: FakeService) -> FakeService:
    """Jobs of others have a name and a user that occur nowhere else."""
    for number, (id, live) in enumerate(list(service.jobs.items())):
        if live.job.user != "ann":
            job = replace(live.job, user=f"{SECRET}{number % 7}", name=f"{SECRET}-name{number % 5}")
            service.jobs[id] = replace(live, job=job, reason=f"{SECRET}-reason")
    service.turn()
    return service


# ---- jobs ------------------------------------------------------------------------------------------------------------


def listed(client_name: str, service: FakeService, question: str) -> list[dict[str, Any]]:
    answer = client_for(service, client_name).get(f"{V1}/jobs?limit=1000&{question}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


def test_jobs_are_sorted_both_ways_and_those_without_a_value_come_last(service: FakeService) -> None:
    keys: dict[str, Callable[[Any], Any]] = {
        "gpus": lambda job: job["job"]["gpus"] * job["job"]["share"],
        "submitted": lambda job: job["job"]["submit_s"],
        "started": lambda job: job["started_s"],
        "ended": lambda job: job["ended_s"],
        "user": lambda job: job["job"]["user"],
        "partition": lambda job: job["partition"],
    }
    for sort, key in keys.items():
        for order in ("asc", "desc"):
            values = [key(job) for job in listed("root", service, f"sort={sort}&order={order}")]
            there = [value for value in values if value is not None]
            assert there == sorted(there, reverse=order == "desc"), (sort, order)
            assert values == there + [None] * (len(values) - len(there))
            assert len(there) > 1


def test_names_with_numbers_are_sorted_as_people_count(service: FakeService) -> None:
    for number, id in enumerate(list(service.jobs)[:12]):
        live = service.jobs[id]
        service.jobs[id] = replace(live, job=replace(live.job, name=f"sweep-{12 - number}", user="ann"))
    service.turn()
    found = [job["job"]["name"] for job in listed("root", service, "sort=name&search=sweep-")]
    assert found == [f"sweep-{number}" for number in range(1, 13)]


def test_pages_of_sorted_jobs_join_to_the_whole_list(service: FakeService) -> None:
    whole = [job["id"] for job in listed("root", service, "sort=name&order=desc")]
    client = client_for(service, "root")
    pages = [client.get(f"{V1}/jobs?sort=name&order=desc&limit=7&offset={at}").json() for at in range(0, len(whole), 7)]
    assert [job["id"] for page in pages for job in page["jobs"]] == whole


def test_jobs_are_filtered_by_partition_node_and_text(service: FakeService) -> None:
    for partition in ("gpu", "debug"):
        found = listed("root", service, f"partition={partition}")
        assert {job["partition"] for job in found} == {partition}
        assert len(found) == sum(live.partition == partition for live in service.jobs.values())
    there = {id for id, live in service.jobs.items() if any(part.node == "volta0" for part in live.parts)}
    assert {job["id"] for job in listed("root", service, "node=volta0")} == there
    some = service.one(JobState.WAITING)
    assert some.id in {job["id"] for job in listed("root", service, f"search={some.job.user.upper()}")}
    assert [job["id"] for job in listed("root", service, f"search={some.id}")] == [some.id]
    assert listed("root", service, "search=no such job") == []
    state = client_for(service, "root").get(f"{V1}/state").json()
    assert state["partitions"] == ["debug", "gpu"]


@pytest.mark.parametrize("name", ["ann", "eve"])
def test_neither_a_search_nor_an_order_tells_what_is_hidden(guarded: FakeService, name: str) -> None:
    usual = [job["id"] for job in listed(name, guarded, "") if job["is_hidden"]]
    for sort in ("user", "name"):
        for order in ("asc", "desc"):
            found = listed(name, guarded, f"sort={sort}&order={order}")
            hidden = [job["is_hidden"] for job in found]
            assert hidden == sorted(hidden), "a hidden job stands among those that are shown"
            assert [job["id"] for job in found if job["is_hidden"]] == usual
    for text in (SECRET, f"{SECRET}-name", f"{SECRET}1"):
        assert listed(name, guarded, f"search={text}") == []
    assert len(listed("root", guarded, f"search={SECRET}")) > 10


@pytest.mark.parametrize("name", ["ann", "eve"])
def test_the_past_and_usage_of_others_tell_nothing_of_them(guarded: FakeService, name: str) -> None:
    ended = next(live for live in guarded.jobs.values() if live.state is JobState.FINISHED)
    owner = f"{SECRET}9"
    guarded.jobs[ended.id] = replace(ended, job=replace(ended.job, user=owner, name=f"{SECRET}-name"))
    client = client_for(guarded, name)
    node = ended.parts[0].node
    for path in ("/past", f"/past?node={node}", f"/past?user={owner}", f"/usage?user={owner}", f"/usage?node={node}"):
        assert SECRET not in client.get(V1 + path).text, path
    assert client.get(f"{V1}/past?user={owner}").json() == {"jobs": [], "next": None}
    assert client.get(f"{V1}/usage?user={owner}").json()["jobs"] == 0
    assert client.get(f"{V1}/usage?user={owner}").json()["gpu_s"] == 0
    assert any(job["is_hidden"] for job in client.get(f"{V1}/past?node={node}").json()["jobs"])
    root = client_for(guarded, "root")
    assert [job["id"] for job in root.get(f"{V1}/past?user={owner}").json()["jobs"]] == [ended.id]
    assert root.get(f"{V1}/usage?user={owner}").json()["gpu_s"] > 0


# ---- the past --------------------------------------------------------------------------------------------------------


def test_pages_of_the_past_follow_one_another(service: FakeService) -> None:
    client = client_for(service, "root")
    for number, id in enumerate(id for id, live in list(service.jobs.items()) if live.ended_s is not None):
        service.jobs[id] = replace(service.jobs[id], ended_s=NOW + number)
    first = client.get(f"{V1}/past?limit=2").json()
    second = client.get(f"{V1}/past?limit=2&before={first['next']}").json()
    ends = [job["ended_s"] for page in (first, second) for job in page["jobs"]]
    assert ends == [NOW + 2, NOW + 1, NOW]
    assert second["next"] is None


def test_history_is_cut_to_a_stretch_and_averaged_to_what_is_asked_for(service: FakeService) -> None:
    client = client_for(service, "root")
    assert client.get(f"{V1}/history?limit=7").json()["step_s"] == 0
    assert len(client.get(f"{V1}/history?limit=7").json()["history"]) == 7
    hour = client.get(f"{V1}/history?since={NOW - 3600}&limit=1000").json()
    assert len(hour["history"]) == 60
    assert all(NOW - 3600 <= point["time_s"] <= NOW for point in hour["history"])
    service.compared = [Compared(NOW - 60 * n, 0.5 if n % 2 else 1.0, None, 3.0, n) for n in range(600, 0, -1)]
    coarse = client_for(service, "root").get(f"{V1}/history?since=0&limit=20").json()
    assert 5 <= len(coarse["history"]) <= 20
    assert coarse["step_s"] == 1800
    assert all(0.7 < point["utilisation"] < 0.8 for point in coarse["history"][1:-1])
    assert all(point["jct_s"] is None and point["fallback_jct_s"] == 3.0 for point in coarse["history"])
    fine = client_for(service, "root").get(f"{V1}/history?since=0&step_s=600&limit=1000").json()
    assert len(fine["history"]) in (60, 61)


# ---- output ----------------------------------------------------------------------------------------------------------


def test_output_is_for_the_jobs_user_and_for_operators_even_where_jobs_are_shown_to_all(service: FakeService) -> None:
    own, other = service.one(JobState.RUNNING, "ann"), service.one(JobState.WAITING, "bob")
    for live in (own, other):
        service.outputs[live.id] = Output(live.id, live.job.user, f"out of {live.id}", "", 9, 0)
    settings = ApiSettings(auth="tokens", others="shown")
    for name, job, status in (
        ("ann", own, 200), ("ann", other, 403), ("bob", own, 403), ("eve", own, 403), ("root", own, 200),
        ("root", other, 200),
    ):  # fmt: skip
        for client in (client_for(service, name), client_for(service, name, settings)):
            answer = client.get(f"{V1}/jobs/{job.id}/output")
            assert answer.status_code == status, (name, job.job.user)
            assert (f"out of {job.id}" in answer.text) == (status == 200)
            assert answer.headers["cache-control"] == "no-store"


def test_output_that_the_back_end_has_under_another_user_is_not_shown(service: FakeService) -> None:
    own = service.one(JobState.RUNNING, "ann")
    service.outputs[own.id] = Output(own.id, "bob", "secret", "", 6, 0)
    assert client_for(service, "ann").get(f"{V1}/jobs/{own.id}/output").status_code == 409
    assert client_for(service, "root").get(f"{V1}/jobs/{own.id}/output").status_code == 200


def test_a_job_without_output_is_a_conflict_that_says_where_to_look(service: FakeService) -> None:
    own = service.one(JobState.RUNNING, "ann")
    answer = client_for(service, "ann").get(f"{V1}/jobs/{own.id}/output")
    assert answer.status_code == 409
    assert "only the local back end keeps output" in answer.json()["error"]["do"]
    assert client_for(service, "ann").get(f"{V1}/jobs/nobody/output").status_code == 404


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_every_job_node_user_and_partition_has_an_address_that_finds_the_pages_files(service: FakeService) -> None:
    from tests.api.api_server import Client

    folder = Path(adlro.api.__file__).parent / "dashboard"
    app = make_app(service, ApiSettings(), dashboard=folder, tokens=lambda: ())
    client = Client(app, {})
    top = client.get("/")
    for path in ("/job/1001", "/node/volta0", "/user/ann", "/partition/gpu", "/node/a%2Fb", "/job/..%2F..%2Fetc"):
        deeper = client.get(path)
        assert deeper.status_code == 200
        assert deeper.headers["content-security-policy"] == top.headers["content-security-policy"]
        assert deeper.headers["content-type"] == "text/html; charset=utf-8"
        assert 'src="../main.js"' in deeper.text
        assert 'href="../style.css"' in deeper.text
        assert deeper.text.replace('="../', '="./') == top.text
