"""Orders become bindings: once, all of a gang or none, never where a node cannot take the pod, also through faults."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kubernetes.world import T4, World, eventually

from adlro.backends.kubernetes.backend import Kubernetes
from adlro.backends.kubernetes.binding import BindOutcome
from adlro.backends.kubernetes.client import ApiError
from adlro.backends.kubernetes.seating import Seat
from adlro.core.errors import BackendError
from adlro.core.ports import JobState, Order, Part, Setback


def test_a_pod_is_bound_with_its_gpus_and_the_decision(world: World) -> None:
    world.node("a")
    world.pod("p", gpus=2)
    backend = world.backend()
    world.seen(backend, "p")
    assert world.order(backend, "p", ("a", 2), decision="0042").done
    pod = world.get("p")
    assert pod["spec"]["nodeName"] == "a"
    assert pod["metadata"]["annotations"]["adlro.io/decision"] == "0042"
    assert pod["metadata"]["annotations"]["adlro.io/gpus"] == "0,1"


def test_a_bound_pod_counts_as_placed_before_the_watch_tells_of_it(world: World) -> None:
    world.node("a")
    world.pod("p", gpus=2)
    backend = world.backend()
    world.seen(backend, "p")
    if world.fake is not None:
        world.fake.fail("WATCH", "pods", 500, times=3, delay_s=0.2)
        world.fake.cut_watches()
    assert world.order(backend, "p", ("a", 2)).done
    job = world.job(backend, "p")
    assert job is not None
    assert (job.state, job.decision) == (JobState.PLACED, "d-1")
    assert [(part.node, part.indices) for part in job.parts] == [("a", (0, 1))]
    world.runs("p")
    world.seen(backend, "p", lambda each: each.state is JobState.RUNNING and each.decision == "d-1")


def test_the_second_of_two_pods_gets_other_gpus(world: World) -> None:
    world.node("a", gpus=3)
    world.pod("p", gpus=2)
    world.pod("q", gpus=1)
    backend = world.backend()
    world.seen(backend, "p")
    world.seen(backend, "q")
    assert world.order(backend, "p", ("a", 2)).done
    assert world.order(backend, "q", ("a", 1)).done
    assert world.get("q")["metadata"]["annotations"]["adlro.io/gpus"] == "2"


def test_an_order_that_is_given_twice_is_carried_out_once(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    assert world.order(backend, "p", ("a", 1)).done
    before = world.get("p")["metadata"]["resourceVersion"]
    assert world.order(backend, "p", ("a", 1)).done
    assert world.get("p")["metadata"]["resourceVersion"] == before


def test_a_node_is_never_filled_beyond_what_it_has(world: World) -> None:
    world.node("a", gpus=4)
    for name in ("p", "q", "r"):
        world.pod(name, gpus=2)
    backend = world.backend()
    for name in ("p", "q", "r"):
        world.seen(backend, name)
    model = backend.read().cluster.nodes[0].gpus[0].model
    answers = backend.act([Order(world.id(name), "d", (Part("a", model, 2),)) for name in ("p", "q", "r")])
    assert [answer.done for answer in answers] == [True, True, False]
    assert "Insufficient nvidia.com/gpu (free: 0 nvidia.com/gpu)" in answers[2].said


def test_a_pod_goes_to_another_node_of_its_pool_where_the_ordered_one_cannot_take_it(world: World) -> None:
    world.node("a", more={"example.com/nic": "1"})
    world.node("b", more={"example.com/nic": "1"})
    world.pod("holds", gpus=0, node="a", more={"example.com/nic": "1"})
    world.pod("p", more={"example.com/nic": "1"})
    backend = world.backend()
    world.seen(backend, "p")
    assert world.order(backend, "p", ("a", 1)).done
    assert world.node_of("p") == "b"


def test_two_pods_with_one_host_port_are_never_on_one_node(world: World) -> None:
    world.node("a")
    port = {"ports": [{"containerPort": 9, "hostPort": 9000}]}
    world.pod("p", container=port)
    world.pod("q", container=port)
    backend = world.backend()
    world.seen(backend, "p")
    world.seen(backend, "q")
    assert world.order(backend, "p", ("a", 1)).done
    answer = world.order(backend, "q", ("a", 1))
    assert not answer.done
    assert "free ports" in answer.said


REPELS: dict[str, Any] = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
            ]
        }
    }
}


def test_pods_that_repel_each_other_are_kept_apart_in_both_directions(world: World) -> None:
    world.node("a")
    world.pod("p", labels={"app": "x"}, **REPELS)
    world.pod("q", labels={"app": "x"})
    world.pod("r", labels={"app": "y"}, **REPELS)
    backend = world.backend()
    for name in ("p", "q", "r"):
        world.seen(backend, name)
    assert world.order(backend, "p", ("a", 1)).done
    assert "existing pods anti-affinity" in world.order(backend, "q", ("a", 1)).said
    assert "pod anti-affinity" in world.order(backend, "r", ("a", 1)).said


def test_a_pod_without_gpus_goes_where_it_is_accepted(world: World) -> None:
    world.node("a", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    world.node("b", gpus=0, product="")
    world.pod("p", gpus=0)
    backend = world.backend()
    world.seen(backend, "p")
    assert world.order(backend, "p", ("a", 0)).done
    assert world.node_of("p") == "b"


def test_a_pod_that_another_scheduler_binds_first_is_left_to_it(world: World) -> None:
    world.node("a")
    world.node("b")
    pod = world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    for watch in backend._reader._needed:  # our copy does not hear of it
        watch.stop()
    theirs = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "b"}}
    world.api.ask("POST", f"{world.path('p')}/binding", None, theirs)
    answer = world.order(backend, "p", ("a", 1))
    assert not answer.done
    assert "another scheduler bound it to b first" in answer.said
    assert world.get("p")["metadata"]["uid"] == pod["metadata"]["uid"]
    assert world.node_of("p") == "b"


def test_a_pod_that_is_gone_is_an_answer_and_no_error(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    for watch in backend._reader._needed:
        watch.stop()
    world.delete("p")
    answer = world.order(backend, "p", ("a", 1))
    assert (answer.done, answer.said) == (False, "the pod is gone")


def test_a_pod_that_was_replaced_by_one_of_its_name_is_not_bound_by_the_old_order(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    for watch in backend._reader._needed:
        watch.stop()
    world.delete("p")
    world.pod("p")
    if world.fake is None:
        pytest.skip("servers before 1.21 do not check the uid of a Binding")
    assert not world.order(backend, "p", ("a", 1)).done
    assert world.node_of("p") == ""


@pytest.mark.fake_only
@pytest.mark.parametrize("status", [429, 500])
def test_a_busy_server_is_asked_to_bind_again(world: World, status: int) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    world.faults.fail("POST", "binding", status, times=2)
    assert world.order(backend, "p", ("a", 1)).done


@pytest.mark.fake_only
def test_a_lost_answer_to_a_binding_is_looked_up(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    world.faults.fail("POST", "binding", 0, times=1, after=True)
    assert world.order(backend, "p", ("a", 1)).done
    assert world.node_of("p") == "a"


@pytest.mark.fake_only
def test_a_server_that_is_gone_is_an_error_and_the_room_stays_taken(world: World) -> None:
    world.node("a", gpus=1)
    world.pod("p")
    world.pod("q")
    backend = world.backend()
    world.seen(backend, "p")
    world.seen(backend, "q")
    world.faults.fail("POST", "binding", 0, times=2)
    world.faults.fail("GET", "pods/p", 0, times=2)
    with pytest.raises(BackendError, match="does not answer"):
        world.order(backend, "p", ("a", 1))
    assert "Insufficient" in world.order(backend, "q", ("a", 1)).said


@pytest.mark.fake_only
def test_an_assumption_that_nobody_confirms_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    pod = backend._reader.pods[world.seen(backend, "p").id]
    monkeypatch.setattr("adlro.backends.kubernetes.reader.ASSUMED_S", 0.05)
    backend._reader.assume(pod, "a", {"decision": "x"})
    assert world.seen(backend, "p").state is JobState.PLACED
    job = world.seen(backend, "p", lambda each: each.state is JobState.WAITING)
    assert job.decision == ""


# ---- gangs -----------------------------------------------------------------------------------------------------------


def gang(world: World, name: str, size: int, gpus: int = 2, there: int | None = None) -> None:
    labels = {"adlro.io/gang": name}
    for number in range(size if there is None else there):
        world.pod(f"{name}-{number}", gpus=gpus, labels=labels, annotations={"adlro.io/gang-size": str(size)})


def bound(world: World, name: str) -> list[str]:
    return [
        node
        for pod in world.pods()
        if pod["metadata"]["labels"].get("adlro.io/gang") == name and (node := pod["spec"].get("nodeName"))
    ]


def test_a_gang_is_one_job_and_waits_until_all_of_it_is_there(world: World) -> None:
    world.node("a", gpus=8)
    gang(world, "g", 3, there=2)
    backend = world.backend()
    job = world.seen(backend, "g", lambda each: "2 of 3 pods" in each.reason)
    assert (job.managed, job.setback) == (False, Setback.UNPLACEABLE)
    world.pod("g-2", gpus=2, labels={"adlro.io/gang": "g"}, annotations={"adlro.io/gang-size": "3"})
    whole = world.seen(backend, "g", lambda each: each.managed)
    assert (whole.job.gpus, whole.job.cpus) == (6, 3.0)


def test_a_gang_is_bound_on_the_ordered_nodes_and_is_one_job_there(world: World) -> None:
    world.node("a", gpus=4)
    world.node("b", gpus=4)
    gang(world, "g", 4)
    backend = world.backend()
    world.seen(backend, "g", lambda each: each.managed)
    assert world.order(backend, "g", ("a", 4), ("b", 4)).done
    assert sorted(bound(world, "g")) == ["a", "a", "b", "b"]
    for number in range(4):
        world.runs(f"g-{number}")
    job = world.seen(backend, "g", lambda each: each.state is JobState.RUNNING)
    assert sorted((part.node, part.count) for part in job.parts) == [("a", 4), ("b", 4)]
    for number in range(4):
        world.runs(f"g-{number}", "Succeeded")
    world.seen(backend, "g", lambda each: each.state is JobState.FINISHED)


def test_a_gang_of_which_one_pod_finds_no_place_is_not_bound_at_all(world: World) -> None:
    world.node("a", gpus=4)
    world.node("b", gpus=4)
    world.node("t", gpus=8, product=T4)
    gang(world, "g", 3, gpus=3)  # of 8 free GPUs, one pod would have to be split
    backend = world.backend()
    world.seen(backend, "g", lambda each: each.managed)
    answer = world.order(backend, "g", ("a", 4), ("b", 4))
    assert not answer.done
    assert "Insufficient" in answer.said
    assert bound(world, "g") == []


@pytest.mark.fake_only
def test_a_gang_of_which_the_server_refuses_one_pod_is_not_bound_at_all(world: World) -> None:
    world.node("a", gpus=8)
    gang(world, "g", 3)
    backend = world.backend()
    world.seen(backend, "g", lambda each: each.managed)
    world.faults.fail("POST", "g-1/binding", 403, times=1)
    answer = world.order(backend, "g", ("a", 6))
    assert not answer.done
    assert "none of its pods was bound" in answer.said
    assert bound(world, "g") == []
    assert world.order(backend, "g", ("a", 6)).done


@pytest.mark.fake_only
def test_what_is_left_of_a_gang_that_was_bound_in_part_goes_to_the_same_model(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("a", gpus=8)
    world.node("t", gpus=8, product=T4)
    gang(world, "g", 2)
    backend = world.backend()
    world.seen(backend, "g", lambda each: each.managed)
    whole = backend._binder.bind

    def refuse_the_second(seats: Sequence[Seat], dry: bool = False) -> list[BindOutcome]:
        if not dry:
            world.faults.fail("POST", "g-1/binding$", 403, times=1)
        return whole(seats, dry)

    monkeypatch.setattr(backend._binder, "bind", refuse_the_second)
    answer = world.order(backend, "g", ("a", 4))
    assert "1 of 2 pods were bound" in answer.said
    rest = world.seen(backend, "g", lambda each: each.state is JobState.WAITING)
    assert (rest.job.gpus, set(rest.job.models), rest.managed) == (2, {"a100-sxm4-80gb"}, True)
    monkeypatch.setattr(backend._binder, "bind", whole)
    assert world.order(backend, "g", ("a", 2)).done
    assert bound(world, "g") == ["a", "a"]


def test_a_gang_that_stays_bound_in_part_is_evicted_after_its_time(world: World) -> None:
    world.node("a", gpus=4)
    labels, size = {"adlro.io/gang": "g"}, {"adlro.io/gang-size": "2"}
    world.pod("g-0", gpus=4, labels=labels, annotations=size, node="a")
    world.pod("g-1", gpus=4, labels=labels, annotations=size)
    backend = world.backend(gang_timeout_s=0.05)
    world.seen(backend, "g")

    def is_gone() -> bool:
        backend.annotate({})
        return [pod["metadata"]["name"] for pod in world.pods()] == ["g-1"]

    eventually(is_gone)


@pytest.mark.fake_only
def test_a_disruption_budget_protects_the_pods_of_a_gang(world: World) -> None:
    world.node("a", gpus=4)
    labels, size = {"adlro.io/gang": "g"}, {"adlro.io/gang-size": "2"}
    world.api.ask("POST", f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets", None, {
        "metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": labels}}, "status": {"disruptionsAllowed": 0},
    })  # fmt: skip
    world.pod("g-0", gpus=4, labels=labels, annotations=size, node="a")
    world.pod("g-1", gpus=4, labels=labels, annotations=size)
    backend = world.backend(gang_timeout_s=0.01)
    world.seen(backend, "g")
    backend.annotate({})
    time.sleep(0.02)
    backend.annotate({})
    assert any("eviction" in path for _, path in world.faults.requests)
    assert len(world.pods()) == 2


GROUPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "the coscheduling plugin's": (
        "scheduling.x-k8s.io/v1alpha1",
        {"podgroups": {"minMember": 2}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    ),
    "its older label": (
        "scheduling.x-k8s.io/v1alpha1",
        {"podgroups": {"minMember": 2}},
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
    ),
    "that of Kubernetes 1.36": (
        "scheduling.k8s.io/v1alpha2",
        {"podgroups": {"schedulingPolicy": {"gang": {"minCount": 2}}}},
        {"schedulingGroup": {"podGroupName": "g"}},
    ),
    "that of Kubernetes 1.37": (
        "scheduling.k8s.io/v1alpha3",
        {"podgroups": {"schedulingPolicy": {"gang": {"minCount": 2}}}},
        {"schedulingGroup": {"podGroupName": "g"}},
    ),
    "a Workload of Kubernetes 1.35": (
        "scheduling.k8s.io/v1alpha1",
        {"workloads": {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 2}}}]}},
        {"workloadRef": {"name": "g", "podGroup": "workers"}},
    ),
}


@pytest.mark.fake_only
@pytest.mark.parametrize("case", GROUPS)
def test_the_size_of_a_gang_may_come_from_a_pod_group(world: World, case: str) -> None:
    version, objects, of_pod = GROUPS[case]
    world.faults.served = {version.partition("/")[0]}
    world.node("a", gpus=8)
    ((plural, spec),) = objects.items()
    path = f"/apis/{version}/namespaces/{world.namespace}/{plural}"
    world.pod("w-0", gpus=1, **of_pod)
    backend, id = world.backend(), "g-workers" if plural == "workloads" else "g"
    assert "size of its gang" in world.seen(backend, id).reason
    world.api.ask("POST", path, None, {"metadata": {"name": "g"}, "spec": spec})
    world.pod("w-1", gpus=1, **of_pod)
    fresh = world.backend()  # one that finds the group when it begins
    assert world.seen(fresh, id, lambda each: each.managed).job.gpus == 2


@pytest.mark.fake_only
def test_pods_of_a_group_with_the_basic_policy_start_one_by_one(world: World) -> None:
    world.faults.served = {"scheduling.k8s.io"}
    world.node("a", gpus=8)
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{world.namespace}/podgroups"
    world.api.ask("POST", path, None, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}})
    for number in range(2):
        world.pod(f"w-{number}", schedulingGroup={"podGroupName": "g"})
    backend = world.backend()
    assert world.seen(backend, "w-0").managed
    assert world.order(backend, "w-1", ("a", 1)).done


def test_two_gangs_that_hold_half_of_a_cluster_each_do_not_wait_for_each_other_for_ever(world: World) -> None:
    world.node("a", gpus=4)
    size = {"adlro.io/gang-size": "2"}
    for name in ("g", "h"):  # as two schedulers, or a fault between two bindings, may leave them
        world.pod(f"{name}-0", gpus=2, labels={"adlro.io/gang": name}, annotations=size, node="a")
        world.pod(f"{name}-1", gpus=2, labels={"adlro.io/gang": name}, annotations=size)
    backend = world.backend(gang_timeout_s=0.05)
    world.seen(backend, "g")

    def one_stands() -> bool:
        backend.annotate({})
        there = {pod["metadata"]["name"] for pod in world.pods()}
        for name in {"g-0", "h-0"} - there:  # their owners create them again
            labels = {"adlro.io/gang": name[0]}
            world.pod(name, gpus=2, labels=labels, annotations=size)
        for name in ("g", "h"):
            job = world.job(backend, name)
            if job is not None and job.state is JobState.WAITING and job.managed and job.job.gpus == 4:
                world.order(backend, name, ("a", 4))
        return any(len(bound(world, name)) == 2 for name in ("g", "h"))

    eventually(one_stands)


# ---- what users see --------------------------------------------------------------------------------------------------


def condition(world: World, name: str) -> dict[str, str]:
    found = world.get(name).get("status", {}).get("conditions") or []
    return next((each for each in found if each["type"] == "PodScheduled"), {})


def test_a_waiting_pod_says_why_and_when_it_will_start(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    line = "waits for 1 a100; start about 14:20 (13:50-16:10) CET"
    backend.annotate({world.id("p"): line})
    assert condition(world, "p") | {"lastProbeTime": None, "lastTransitionTime": ""} == {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": line,
        "lastProbeTime": None, "lastTransitionTime": "",
    }  # fmt: skip
    (event,) = world.events()
    assert (event["note"], event["regarding"]["name"], event["type"]) == (line, "p", "Warning")


def test_an_event_is_written_once_for_each_reason(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    for line in ("waits for room; start about 14:20", "waits for room; start about 14:30", "waits behind others"):
        backend.annotate({world.id("p"): line})
    assert sorted(event["note"] for event in world.events()) == [
        "waits behind others",
        "waits for room; start about 14:20",
    ]
    assert condition(world, "p")["message"] == "waits behind others"


@pytest.mark.fake_only
def test_events_are_limited_in_their_rate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.backends.kubernetes.telling.PER_S", 0.0)
    world.node("a")
    for number in range(60):
        world.pod(f"p{number}")
    backend = world.backend()
    eventually(lambda: len(backend.read().jobs) == 60)
    backend.annotate({world.id(f"p{number}"): "waits" for number in range(60)})
    assert len(world.events()) == 50
    assert backend._telling.dropped > 0


def test_a_pod_that_cannot_be_placed_is_told_why(world: World) -> None:
    world.node("a")
    world.pod("p", gpus=16)
    backend = world.backend()
    job = world.seen(backend, "p")
    (answer,) = backend.give_back({job.id: job.reason})
    assert (answer.done, answer.is_final) == (False, True)
    assert condition(world, "p")["message"].startswith("ADLRO cannot place it: 0/1 nodes are available: 1 Insufficient")


def test_jobs_are_neither_submitted_nor_cancelled_here(world: World) -> None:
    backend = world.backend()
    with pytest.raises(BackendError, match="kubectl"):
        backend.cancel("default.p")


# ---- many at once ----------------------------------------------------------------------------------------------------


def test_two_schedulers_that_bind_the_same_pods_bind_each_once(world: World) -> None:
    for number in range(4):
        world.node(f"n{number}", gpus=8)
    for number in range(24):
        world.pod(f"p{number}")
    one, other = world.backend(), world.backend()
    eventually(lambda: all(sum(job.managed for job in each.read().jobs) == 24 for each in (one, other)))
    model = one.read().cluster.nodes[0].gpus[0].model
    done: list[str] = []

    def act(backend: Kubernetes, shift: int) -> None:
        orders = [Order(world.id(f"p{n}"), f"d{shift}", (Part(f"n{(n + shift) % 4}", model, 1),)) for n in range(24)]
        done.extend(answer.job for answer in backend.act(orders) if answer.done and not answer.said)

    threads = [threading.Thread(target=act, args=(backend, shift)) for shift, backend in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(pod["spec"].get("nodeName") for pod in world.pods())
    assert sorted(done) == sorted({world.id(f"p{n}") for n in range(24)})


def test_the_server_refuses_a_second_binding(world: World) -> None:
    world.node("a")
    world.pod("p", node="a")
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "a"}}
    with pytest.raises(ApiError) as error:
        world.api.ask("POST", f"{world.path('p')}/binding", None, body)
    assert error.value.status == 409
