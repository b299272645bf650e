"""Requests in the words of a real kube-scheduler are answered in the form that it accepts.

`extender_requests.json` is a sample of our own. What a real one of version 1.20 sent is replayed where it is at hand.
"""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.test_extender import extender_of
from tests.kubernetes.world import A100, V100, World

from adlro.backends.kubernetes.extender import ExtenderServer

Raw = dict[str, Any]

SAMPLE = Path(__file__).parent / "extender_requests.json"
RECORDED = Path(__file__).parents[3] / "shared" / "kubernetes"
FILES = [SAMPLE, *(RECORDED / f"extender-recorded-cache-{capable}.json" for capable in ("true", "false"))]
MOST = 10
"""The best score that kube-scheduler takes."""


def offered(asked: Raw) -> list[str]:
    """The names of the nodes in a request."""
    if asked["Nodes"] is not None:
        return [each["metadata"]["name"] for each in asked["Nodes"]["items"]]
    return list(asked["NodeNames"])


@pytest.fixture
def connection(world: World) -> Iterator[http.client.HTTPConnection]:
    """A connection to an extender whose cluster has the nodes of the requests."""
    for name, product in (("h100-0", "NVIDIA-H100-80GB-HBM3"), ("a100-0", A100), ("v100-0", V100)):
        world.node(name, gpus=8, product=product)
    extender = extender_of(world.backend())
    server = ExtenderServer(extender.answer, "127.0.0.1", 0)
    server.start()
    opened = http.client.HTTPConnection(f"{server.address[0]}:{server.address[1]}", timeout=30)
    yield opened
    opened.close()
    server.close()
    assert extender._binder is not None
    extender._binder.close()


def check_filter(asked: Raw, found: Raw) -> None:
    assert set(found) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert found["Error"] == ""
    failed = found["FailedNodes"] | found["FailedAndUnresolvableNodes"]
    assert failed == {}  # each of them has such GPUs
    if asked["Nodes"] is None:
        assert (found["NodeNames"], found["Nodes"]) == (asked["NodeNames"], None)
    else:
        assert (found["Nodes"], found["NodeNames"]) == (asked["Nodes"], None)  # as they came, whatever else is in them


def check_prioritize(asked: Raw, found: list[Raw]) -> None:
    assert all(set(each) == {"Host", "Score"} and type(each["Score"]) is int for each in found)
    assert [each["Host"] for each in found] == offered(asked)
    scores = {each["Host"]: each["Score"] for each in found}
    ranked = [scores[name] for name in ("h100-0", "a100-0", "v100-0") if name in scores]
    assert MOST == ranked[0] == max(ranked)
    assert ranked == sorted(ranked, reverse=True)
    assert 0 < ranked[-1] < MOST


def check_preempt(asked: Raw, found: Raw) -> None:
    assert found == {"NodeNameToMetaVictims": asked["NodeNameToMetaVictims"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_kube_scheduler_sends_is_answered_in_its_own_form(
    world: World, connection: http.client.HTTPConnection, path: Path
) -> None:
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    for verb, asked in json.loads(path.read_text()):
        if verb == "bind":
            asked["PodUID"] = world.pod(asked["PodName"], scheduler="adlro-ext")["metadata"]["uid"]
        connection.request("POST", f"/extender/v1/{verb}", json.dumps(asked), {"Content-Type": "application/json"})
        response = connection.getresponse()
        found = json.loads(response.read())
        assert response.status == 200, found
        match verb:
            case "filter":
                check_filter(asked, found)
            case "prioritize":
                check_prioritize(asked, found)
            case "preempt":
                check_preempt(asked, found)
            case "bind":
                assert found == {"Error": ""}
                assert world.node_of(asked["PodName"]) == asked["Node"]
            case _:
                pytest.fail(f"{verb} is no verb of kube-scheduler")
