"""Requests by route, method and status on the page for Prometheus."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.api_server import client_for
from tests.api.fake_service import FakeService

from adlro.api.metrics import SECONDS, Requests

V1 = "/api/v1"
Page = dict[tuple[str, ...], float]


def read(text: str) -> Page:
    """Values by the name of the sample and the values of its labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_answer_counts_under_its_route_also_one_that_is_kept_and_one_that_is_refused() -> None:
    service = FakeService()
    client = client_for(service, metrics=b"adlro_up 1\n")
    ids = list(service.jobs)[:3]
    for id in ids:
        client.get(f"{V1}/jobs/{id}")
        client.get(f"{V1}/jobs/{id}/why")
        client.get(f"{V1}/jobs/{id}/why")
    client.get(f"{V1}/jobs/none")
    client.get(f"{V1}/jobs?limit=none")
    client.post(f"{V1}/jobs", json={"job": {"family": "learning"}})
    client.get(f"{V1}/jobs", headers={"Host": "elsewhere.example"})
    page = read(client.get("/metrics").text)
    found = {key[1:]: value for key, value in page.items() if key[0] == "adlro_api_requests_total"}
    assert found == {
        (f"{V1}/jobs/{{id}}", "GET", "200"): 3.0,
        (f"{V1}/jobs/{{id}}", "GET", "404"): 1.0,
        (f"{V1}/jobs/{{id}}/why", "GET", "200"): 6.0,
        (f"{V1}/jobs", "GET", "422"): 1.0,
        (f"{V1}/jobs", "GET", "421"): 1.0,
        (f"{V1}/jobs", "POST", "201"): 1.0,
    }
    assert page["adlro_api_request_seconds_count", f"{V1}/jobs/{{id}}/why", "GET"] == 6.0
    assert 0.0 < page["adlro_api_request_seconds_sum", f"{V1}/jobs/{{id}}/why", "GET"] < 60.0


def test_what_is_asked_cannot_add_series() -> None:
    client = client_for(FakeService(), metrics=b"adlro_up 1\n")
    for number in range(30):
        client.get(f"{V1}/jobs/{number}")
        client.get(f"/no/such/{number}")
        client.request(f"MADEUP{number}", f"{V1}/state")
    page = client.get("/metrics").text
    routes = set(re.findall(r'route="([^"]*)",method="([^"]*)"', page))
    assert routes == {(f"{V1}/jobs/{{id}}", "GET"), ("other", "GET"), (f"{V1}/state", "other")}


@pytest.mark.parametrize(("seconds", "bound"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.0025"), (99.0, "+Inf")])
def test_a_time_counts_in_all_buckets_from_its_own_on(seconds: float, bound: str) -> None:
    requests = Requests()
    requests.note("GET", "/x", 200, seconds)
    page = read(requests.page())
    bounds = [*map(str, SECONDS), "+Inf"]
    counts = [page["adlro_api_request_seconds_bucket", "other", "GET", each] for each in bounds]
    assert counts == [0.0] * bounds.index(bound) + [1.0] * (len(bounds) - bounds.index(bound))
    assert page["adlro_api_request_seconds_sum", "other", "GET"] == seconds
