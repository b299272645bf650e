"""The extender answers kube-scheduler in its own words, ranks nodes by speed, and says why a node is left out."""

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.world import A100, T4, World, eventually

from adlro.backends.kubernetes.backend import Kubernetes, products_of
from adlro.backends.kubernetes.binding import Binder
from adlro.backends.kubernetes.extender import Extender, ExtenderServer
from adlro.backends.kubernetes.extending import extending
from adlro.backends.kubernetes.lab import ControlPlane
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.catalogue.speeds import speed_of

Raw = dict[str, Any]


def extender_of(backend: Kubernetes) -> Extender:
    return Extender(backend._reader, products_of(KubernetesOptions()), speed_of, Binder(backend._api, 1))


@pytest.fixture
def backend(world: World) -> Kubernetes:
    """A copy of a cluster with two models and a node without GPUs."""
    world.node("fast", product=A100)
    world.node("slow", product=T4)
    world.node("cpu", gpus=0, product="")
    return world.backend()


@pytest.fixture
def ask(backend: Kubernetes) -> Iterator[Any]:
    """Sends requests as kube-scheduler does."""
    extender = extender_of(backend)
    server = ExtenderServer(extender.answer, "127.0.0.1", 0)
    server.start()
    connection = http.client.HTTPConnection(f"{server.address[0]}:{server.address[1]}", timeout=30)

    def send(verb: str, body: object) -> tuple[int, Any]:
        connection.request("POST", f"/extender/v1/{verb}", json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    yield send
    connection.close()
    server.close()
    assert extender._binder is not None
    extender._binder.close()


def pod(gpus: int = 1, **spec: Any) -> Raw:
    """A pod as kube-scheduler sends it."""
    asks = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "c", "image": "x", "resources": {"limits": asks, "requests": asks}}
    meta = {"name": "p", "namespace": "default", "uid": "1", "labels": {"adlro.io/family": "learning"}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}, "status": {"phase": "Pending"}}


NAMES = ["fast", "slow", "cpu"]


def test_nodes_without_the_gpus_are_left_out_with_the_reason(ask: Any) -> None:
    status, found = ask("filter", {"Pod": pod(), "Nodes": None, "NodeNames": NAMES})
    assert status == 200
    assert (found["NodeNames"], found["Nodes"], found["Error"]) == (["fast", "slow"], None, "")
    assert found["FailedAndUnresolvableNodes"] == {"cpu": "Insufficient nvidia.com/gpu"}


def test_the_fastest_model_has_the_best_score(ask: Any) -> None:
    _, found = ask("prioritize", {"Pod": pod(), "Nodes": None, "NodeNames": NAMES})
    scores = {each["Host"]: each["Score"] for each in found}
    assert scores["fast"] == 10 > scores["slow"] > scores["cpu"] == 0


def test_whole_nodes_of_the_request_are_answered_as_whole_nodes(world: World, ask: Any) -> None:
    items = [dict(world.api.get(f"/api/v1/nodes/{name}")) for name in NAMES]
    _, found = ask("filter", {"Pod": pod(), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
    assert found["NodeNames"] is None
    assert [each["metadata"]["name"] for each in found["Nodes"]["items"]] == ["fast", "slow"]


def test_only_offered_nodes_are_in_an_answer_and_unknown_ones_are_left_to_kube_scheduler(ask: Any) -> None:
    _, found = ask("filter", {"Pod": pod(), "Nodes": None, "NodeNames": ["slow", "new"]})
    assert found["NodeNames"] == ["slow", "new"]
    assert not found["FailedAndUnresolvableNodes"]


def test_a_selector_that_a_node_does_not_meet_is_final(ask: Any) -> None:
    _, found = ask("filter", {"Pod": pod(nodeSelector={"a": "b"}), "Nodes": None, "NodeNames": NAMES})
    assert found["NodeNames"] == []
    assert "affinity/selector" in found["FailedAndUnresolvableNodes"]["fast"]


def test_a_pod_is_bound_where_kube_scheduler_says_and_a_second_time_is_an_error(world: World, ask: Any) -> None:
    uid = world.pod("p", scheduler="adlro-extended")["metadata"]["uid"]
    asked = {"PodName": "p", "PodNamespace": world.namespace, "PodUID": uid, "Node": "slow"}
    assert ask("bind", asked) == (200, {"Error": ""})
    assert world.node_of("p") == "slow"
    _, found = ask("bind", {**asked, "Node": "fast"})
    assert "another scheduler bound it to slow first" in found["Error"]


def test_preemption_keeps_the_victims_of_nodes_where_the_pod_can_run(ask: Any) -> None:
    victims = {"Pods": [{"UID": "7"}], "NumPDBViolations": 0}
    _, found = ask("preempt", {"Pod": pod(), "NodeNameToMetaVictims": {"fast": victims, "cpu": victims}})
    assert found == {"NodeNameToMetaVictims": {"fast": victims}}
    whole = {"fast": {"Pods": [{"metadata": {"uid": "7"}}], "NumPDBViolations": 0}}
    _, found = ask("preempt", {"Pod": pod(), "NodeNameToVictims": whole})
    assert found == {"NodeNameToMetaVictims": {"fast": victims}}


@pytest.mark.parametrize("body", [{}, {"Pod": {}}, [1], {"Pod": {"metadata": {}}, "NodeNames": ["fast"]}])
def test_a_request_that_makes_no_sense_is_a_500_and_the_server_goes_on(ask: Any, body: object) -> None:
    status, found = ask("filter", body)
    assert status == 500
    assert found["Error"]
    assert ask("prioritize", {"Pod": pod(), "Nodes": None, "NodeNames": NAMES})[0] == 200


@pytest.mark.fake_only
def test_the_command_answers_from_a_copy_of_its_own(world: World) -> None:
    world.node("fast", product=A100)
    options = KubernetesOptions(server=world.faults.url)
    with extending(options, "127.0.0.1", 0) as address:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(
            "POST", "/extender/v1/prioritize", json.dumps({"Pod": pod(), "Nodes": None, "NodeNames": ["fast"]})
        )
        assert json.loads(connection.getresponse().read()) == [{"Host": "fast", "Score": 10}]
        connection.close()


def test_an_unknown_verb_is_not_found(ask: Any) -> None:
    assert ask("guess", {"Pod": pod()})[0] == 404


@pytest.mark.fake_only
def test_the_command_goes_on_when_a_client_closes_its_connection(world: World, tmp_path: Path) -> None:
    world.node("a")
    config = tmp_path / "adlro.toml"
    config.write_text(f'[kubernetes]\nserver = "{world.faults.url}"\n')
    command = [sys.executable, "-m", "adlro", "kubernetes", "extender", "--port", "0", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "http://" in line)
            host, port = line.split("http://")[1].split("/")[0].split(":")
            body = json.dumps({"Pod": pod(), "NodeNames": ["n" * 200] * 50_000}).encode()
            with socket.create_connection((host, int(port))) as client:  # it closes before the long answer is written
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                head = f"POST /extender/v1/prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            eventually(lambda: answers(connection) or process.poll() is not None)
            assert process.poll() is None
            assert answers(connection)
            status = Path(f"/proc/{process.pid}/status").read_text()
            ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
            assert ignored >> (signal.SIGPIPE - 1) & 1
            connection.close()
        finally:
            process.kill()


def answers(connection: http.client.HTTPConnection) -> bool:
    """Whether the extender is alive."""
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read() == b'{"status":"ok"}'
    except OSError:
        connection.close()
        return False


@pytest.mark.real_only
@pytest.mark.parametrize("binds", [False, True], ids=["node names", "whole nodes, and it binds"])
def test_kube_scheduler_places_by_speed_and_goes_on_when_the_extender_is_gone(
    world: World, control_plane: ControlPlane, binds: bool
) -> None:
    for number in range(3):
        world.node(f"slow{number}", product=T4)
    world.node("fast", product=A100)
    options = KubernetesOptions(kubeconfig=str(control_plane.kubeconfig))
    try:
        with extending(options, "127.0.0.1", 0, bind=binds) as address:
            one = {
                "urlPrefix": f"http://{address}/extender/v1", "filterVerb": "filter", "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt", "weight": 1000, "ignorable": True, "nodeCacheCapable": not binds,
                "managedResources": [{"name": "nvidia.com/gpu"}], **({"bindVerb": "bind"} if binds else {}),
            }  # fmt: skip
            control_plane.start_scheduler(extenders=[one])
            for name in ("p", "q"):
                world.pod(name, scheduler="default-scheduler")
                eventually(lambda name=name: bool(world.node_of(name)))  # type: ignore[misc]
            assert world.node_of("p") == world.node_of("q") == "fast"
        if not binds:  # nobody else would bind, if the extender does
            world.pod("r", scheduler="default-scheduler")
            eventually(lambda: bool(world.node_of("r")))
    finally:
        control_plane.kill("kube-scheduler")
