"""What a snapshot says of nodes and pods, and how the copy is kept through faults."""

from typing import Any

import pytest
from tests.kubernetes.world import A100, T4, World, eventually

from adlro.backends.kubernetes.client import MERGE
from adlro.core.errors import BackendError
from adlro.core.ports import JobState, Setback


def test_nodes_become_sites_of_the_model_that_their_labels_name(world: World) -> None:
    world.node("a", gpus=8, product=A100)
    world.node("b", gpus=2, product=T4)
    world.node("c", gpus=0, product="")
    cluster = world.backend().read().cluster
    groups = {node.name: [(group.model, group.count) for group in node.gpus] for node in cluster.nodes}
    assert groups == {"a": [("a100-sxm4-80gb", 8)], "b": [("t4", 2)], "c": []}
    assert [(node.cpus, node.memory_gb) for node in cluster.nodes] == [(64.0, 256.0)] * 3


def test_an_unknown_product_counts_as_unknown_with_a_note(world: World) -> None:
    world.node("a", product="NVIDIA-Z9000", labels={"nvidia.com/gpu.memory": "24576"})
    snapshot = world.backend().read()
    assert snapshot.cluster.models["unknown"].memory_gb == 24.0
    assert any("'NVIDIA-Z9000' is not in the catalogue" in note for note in snapshot.notes)


def test_two_unknown_products_and_nodes_without_any_label_are_kinds_of_gpu_of_their_own(world: World) -> None:
    world.node("a", product="NVIDIA-Z9000", labels={"nvidia.com/gpu.memory": "24576"})
    world.node("b", product="Fancy-Card", labels={"nvidia.com/gpu.memory": "a-lot"})
    world.node("c", product="")
    snapshot = world.backend().read()
    assert {node.gpus[0].model for node in snapshot.cluster.nodes} == {"unknown", "unknown@2", "unknown@3"}
    assert sorted(model.memory_gb for model in snapshot.cluster.models.values()) == [16.0, 16.0, 24.0]
    assert len(snapshot.notes) == 3
    assert "its labels name no GPU product" in " ".join(snapshot.notes)


def test_an_unknown_product_is_taken_for_the_model_of_like_name_and_memory(world: World) -> None:
    world.node("a", product="NVIDIA-A100-SXM4-80GB-LC", labels={"nvidia.com/gpu.memory": "81920"})
    snapshot = world.backend().read()
    assert list(snapshot.cluster.models) == ["a100-sxm4-80gb"]
    assert any("taken for a100-sxm4-80gb" in note for note in snapshot.notes)


def test_a_product_of_the_config_has_the_model_that_is_named_there(world: World) -> None:
    world.node("a", product="Lab-Card")
    assert list(world.backend(products={"Lab-Card": "t4"}).read().cluster.models) == ["t4"]


def test_amd_gpus_are_read_by_the_labels_of_their_labeller(world: World) -> None:
    world.node("a", product="", resource="amd.com/gpu", labels={"amd.com/gpu.product-name": "AMD_Instinct_MI250X"})
    assert list(world.backend().read().cluster.models) == ["mi250x"]


def test_a_pod_of_our_scheduler_waits_for_us_and_another_one_does_not(world: World) -> None:
    world.node("a")
    world.pod(
        "ours",
        gpus=2,
        cpu="4",
        memory="8Gi",
        labels={"adlro.io/family": "simulation"},
        annotations={"adlro.io/limit": "2h"},
    )
    world.pod("theirs", scheduler="default-scheduler")
    backend = world.backend()
    ours, theirs = world.seen(backend, "ours"), world.seen(backend, "theirs")
    assert (ours.state, ours.managed, ours.job.gpus, ours.job.cpus, ours.job.memory_gb) == (
        JobState.WAITING,
        True,
        2,
        4,
        8,
    )
    assert (ours.job.family, ours.job.limit_s, ours.job.user) == ("simulation", 7200.0, world.namespace)
    assert ours.job.models == {"a100-sxm4-80gb"}
    assert (theirs.state, theirs.managed, theirs.setback) == (JobState.WAITING, False, Setback.NONE)


def test_a_pod_runs_and_ends_as_its_status_says(world: World) -> None:
    world.node("a")
    world.pod("p", node="a", gpus=2)
    backend = world.backend()
    assert world.seen(backend, "p").state is JobState.PLACED
    world.runs("p")
    running = world.seen(backend, "p", lambda job: job.state is JobState.RUNNING)
    assert [(part.node, part.model, part.count) for part in running.parts] == [("a", "a100-sxm4-80gb", 2)]
    assert running.started_s is not None
    world.runs("p", "Failed", exit_code=137)
    ended = world.seen(backend, "p", lambda job: job.state is JobState.FAILED)
    assert (ended.exit_code, ended.signal) == (137, 9)
    world.delete("p")
    eventually(lambda: world.id("p") not in backend._reader.pods)
    assert world.seen(backend, "p").state is JobState.FAILED


def test_a_pod_that_is_deleted_while_it_waits_was_cancelled(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    world.delete("p")
    world.seen(backend, "p", lambda job: job.state is JobState.CANCELLED)


def test_pods_of_a_daemon_set_take_room_and_are_no_jobs(world: World) -> None:
    world.node("a", cpu="8")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1", "controller": True}
    body = world.pod("other", gpus=0, cpu="1", node="a")
    world.api.ask(
        "PATCH", world.path("other"), None, {"metadata": {"ownerReferences": [owner]}}, "application/merge-patch+json"
    )
    assert body["metadata"]["name"] == "other"
    backend = world.backend()
    snapshot = backend.read()
    assert [node.cpus for node in snapshot.cluster.nodes] == [7.0]
    assert snapshot.jobs == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"spec": {"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]}}, "disk-pressure"),
    ],
)
def test_a_node_that_takes_no_pods_is_down_with_the_reason(world: World, change: dict[str, object], why: str) -> None:
    world.node("a")
    world.change_node("a", change)
    assert dict(world.backend().read().down) == {"a": why}


# ---- what a pod demands ----------------------------------------------------------------------------------------------


def test_nodes_of_one_model_are_several_pools_where_a_pod_may_use_some_of_them_only(world: World) -> None:
    for name, zone in (("a", "east"), ("b", "east"), ("c", "west")):
        world.node(name, labels={"zone": zone})
    world.pod("anywhere")
    world.pod("west", nodeSelector={"zone": "west"})
    backend = world.backend()
    assert world.seen(backend, "anywhere").job.models == {"a100-sxm4-80gb", "a100-sxm4-80gb@2"}
    assert world.seen(backend, "west").job.models == {"a100-sxm4-80gb@2"}
    cluster = backend.read().cluster
    assert {node.name: node.gpus[0].model for node in cluster.nodes}["c"] == "a100-sxm4-80gb@2"
    assert {model.name for model in cluster.models.values()} == {"a100-sxm4-80gb"}


def test_a_pod_that_needs_more_gpus_than_a_node_of_a_model_has_may_not_use_that_model(world: World) -> None:
    world.node("a", gpus=8, product=A100)
    world.node("b", gpus=2, product=T4)
    world.node("c", gpus=2, product=T4)
    world.pod("p", gpus=4)
    assert world.seen(world.backend(), "p").job.models == {"a100-sxm4-80gb"}


NOT_PLACED: dict[str, tuple[dict[str, Any], str]] = {
    "mig": ({"gpus": 0, "more": {"nvidia.com/mig-1g.5gb": "1"}}, "MIG slices"),
    "too many GPUs": ({"gpus": 16}, "Insufficient nvidia.com/gpu. Nearest: a (it has 4 nvidia.com/gpu of 16"),
    "a selector": ({"nodeSelector": {"no": "where"}}, "1 node(s) didn't match Pod's node affinity/selector"),
    "spread": (
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"a": "b"}},
                }
            ]
        },
        "topology spread",
    ),
    "pod affinity": (
        {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
                    ]
                }
            }
        },
        "pod affinity",
    ),
    "a volume": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]},
        "claim 'none' does not exist",
    ),
    "another resource": ({"more": {"example.com/fpga": "1"}}, "Insufficient example.com/fpga"),
    "memory": ({"memory": "1Ti"}, "Insufficient memory"),
}


@pytest.mark.parametrize("case", NOT_PLACED)
def test_a_pod_that_we_do_not_place_is_refused_with_a_reason(world: World, case: str) -> None:
    spec, why = NOT_PLACED[case]
    world.node("a")
    world.pod("p", **spec)
    job = world.seen(world.backend(), "p")
    assert (job.managed, job.setback) == (False, Setback.UNPLACEABLE)
    assert why in job.reason


def test_a_taint_keeps_a_pod_away_unless_it_is_tolerated(world: World) -> None:
    world.node("a", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}])
    world.pod("no")
    world.pod("yes", tolerations=[{"key": "team", "operator": "Exists"}])
    backend = world.backend()
    assert "untolerated taint {team: red}" in world.seen(backend, "no").reason
    assert world.seen(backend, "yes").managed


def test_a_volume_of_one_zone_binds_its_pod_to_the_nodes_there(world: World) -> None:
    for name, zone in (("a", "east"), ("b", "west")):
        world.node(name, labels={"topology.kubernetes.io/zone": zone})
    terms = [{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["west"]}]}]
    world.api.ask("POST", "/api/v1/persistentvolumes", None, {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "vol"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "x", "volumeHandle": "y"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    })  # fmt: skip
    world.api.ask("POST", f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims", None, {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"volumeName": "vol", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })  # fmt: skip
    world.pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}])
    backend = world.backend()
    job = world.seen(backend, "p", lambda each: each.managed)
    models = {node.name: node.gpus[0].model for node in backend.read().cluster.nodes}
    assert job.job.models == {models["b"]} != {models["a"]}


# ---- what is new -----------------------------------------------------------------------------------------------------


def test_what_we_wrote_ourselves_and_what_kubelets_write_for_others_is_no_reason_for_a_turn(world: World) -> None:
    world.node("a")
    world.pod("p")
    world.pod("q", gpus=8)
    backend = world.backend()
    for name in ("p", "q"):
        world.seen(backend, name)
    assert world.order(backend, "p", ("a", 1)).done
    backend.annotate({world.id("q"): "it waits"})
    note = {"metadata": {"annotations": {"example.com/note": "x"}}}
    world.api.ask("PATCH", world.path("p"), None, note, MERGE)

    def has_heard() -> bool:
        told = {name: world.get(name)["metadata"]["resourceVersion"] for name in ("p", "q")}
        return all(backend._reader.pods[world.id(name)].version == told[name] for name in told)

    eventually(has_heard)
    assert backend._reader.pods[world.id("q")].shown
    assert not backend.has_changed()
    world.runs("p")
    eventually(backend.has_changed)


def test_a_pod_that_comes_while_orders_are_carried_out_is_still_new_after_them(world: World) -> None:
    world.node("a")
    world.pod("p")
    backend = world.backend()
    world.seen(backend, "p")
    assert world.order(backend, "p", ("a", 1)).done
    world.pod("q")
    world.seen(backend, "q")  # the snapshot that shows what became of the orders; nobody has decided about q
    assert backend.has_changed()
    backend.read()
    assert not backend.has_changed()


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.fake_only
def test_a_cut_watch_goes_on_where_it_ended(world: World) -> None:
    world.node("a")
    backend = world.backend()
    world.faults.cut_watches()
    world.pod("p")
    world.seen(backend, "p")
    assert all(watch.lists == 1 for watch in backend._reader._needed)


@pytest.mark.fake_only
def test_a_version_that_the_server_has_forgotten_is_listed_again_and_nothing_is_missed(world: World) -> None:
    world.node("a")
    world.pod("gone")
    backend = world.backend()
    world.seen(backend, "gone")
    for watch in backend._reader._needed:
        watch._version = "1"
    world.faults.fail("WATCH", "pods", 410, times=1)
    world.delete("gone")
    world.pod("new")
    world.faults.compact()
    world.faults.cut_watches()
    world.seen(backend, "new")
    world.seen(backend, "gone", lambda job: job.state is JobState.CANCELLED)


@pytest.mark.fake_only
def test_a_busy_server_is_asked_again(world: World) -> None:
    world.faults.fail("GET", "nodes", 500, times=2)
    world.faults.fail("GET", "pods", 429, times=1)
    world.node("a")
    assert [node.name for node in world.backend().read().cluster.nodes] == ["a"]


@pytest.mark.fake_only
def test_a_missing_right_is_named_with_its_verb_and_resource(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.backends.kubernetes.backend.FIRST_LIST_S", 1.0)
    world.faults.denied.add("list pods")
    with pytest.raises(BackendError, match="the right to list pods is missing"):
        world.backend()


@pytest.mark.fake_only
def test_a_copy_that_is_not_up_to_date_is_no_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a")
    backend = world.backend()
    monkeypatch.setattr("adlro.backends.kubernetes.reader.STALE_S", 0.1)
    world.faults.fail("WATCH", "pods", 500, times=1000)

    def is_refused() -> bool:
        world.faults.cut_watches()  # each time: the first watch may still be about to open
        try:
            backend.read()
        except BackendError as error:
            return "/api/v1/pods has not been heard of" in str(error)
        return False

    eventually(is_refused)


@pytest.mark.fake_only
def test_a_long_list_is_read_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.backends.kubernetes.watching._PAGE", 3)
    world.node("a", gpus=8)
    for number in range(8):
        world.pod(f"p{number}")
    assert len(world.backend().read().jobs) == 8
    assert sum("continue=" in path for _, path in world.faults.requests) >= 2


def test_reading_never_writes(world: World) -> None:
    world.node("a")
    world.pod("p")
    world.pod("q", gpus=99)
    backend = world.backend()
    versions = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in world.pods()}
    for _ in range(3):
        backend.read()
    assert {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in world.pods()} == versions
    if world.fake is not None:
        ours = [each for each in world.fake.requests if "limit=" in each[1] or "watch=" in each[1]]
        assert ours
        assert all(method == "GET" for method, path in ours)
