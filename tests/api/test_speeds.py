"""What the API tells about speeds: to whom, and without the names of others' jobs."""

import json
from dataclasses import replace

import pytest
from tests.api.api_server import client_for
from tests.api.fake_service import FakeService

from adlro.api.settings import ApiSettings
from adlro.core.ports import LiveJob

V1 = "/api/v1"


@pytest.fixture(name="service")
def make_service() -> FakeService:
    return FakeService()


def of_user(service: FakeService, user: str) -> LiveJob:
    id, live = next(iter(service.jobs.items()))
    service.jobs[id] = replace(live, job=replace(live.job, user=user))
    service.turn()
    return service.jobs[id]


def test_the_speeds_of_a_job_have_an_interval_a_source_and_reasons(service: FakeService) -> None:
    found = client_for(service).get(f"{V1}/jobs/{of_user(service, 'ann').id}/speeds").json()
    assert set(found) == {"reference", "speeds", "because"}
    assert found["speeds"][found["reference"]] == {
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
        "jobs": 40,
        "source": "learned",
    }
    assert found["because"][1] == {
        "user": "bob", "name": "secret-plan", "model": list(found["speeds"])[-1], "share": 0.3, "similarity": 0.5,
        "parts": ["word secret", "gpus 2"], "job": "8",
    }  # fmt: skip


def test_a_user_does_not_see_the_names_of_others_jobs_behind_a_belief(service: FakeService) -> None:
    mine = of_user(service, "ann").id
    answer = client_for(service, "ann").get(f"{V1}/jobs/{mine}/speeds")
    own, others = answer.json()["because"]
    assert (own["user"], own["name"], own["parts"]) == ("ann", "train-resnet", ["user ann", "word train", "gpus 2"])
    assert (others["user"], others["name"], others["parts"]) == ("", "", ["gpus 2"])
    assert "secret" not in answer.text
    shown = client_for(service, "ann", ApiSettings(auth="tokens", others="shown"))
    assert "secret-plan" in shown.get(f"{V1}/jobs/{mine}/speeds").text


def test_the_speeds_of_anothers_job_are_refused(service: FakeService) -> None:
    theirs = of_user(service, "bob").id
    for name in ("ann", "eve"):
        assert client_for(service, name).get(f"{V1}/jobs/{theirs}/speeds").status_code == 403
    assert client_for(service).get(f"{V1}/jobs/none/speeds").status_code == 404


def test_the_families_found_are_for_operators_even_where_all_jobs_are_shown(service: FakeService) -> None:
    settings = ApiSettings(auth="tokens", others="shown")
    operator, viewer = (client_for(service, name, settings) for name in ("root", "eve"))
    answer = operator.get(f"{V1}/speeds")
    assert answer.status_code == 200
    assert json.loads(answer.text)["families"][0]["words"] == ["train", "resnet"]
    assert replace(viewer, app=operator.app).get(f"{V1}/speeds").status_code == 403
    assert client_for(service, "ann").get(f"{V1}/speeds").status_code == 403
