"""The rights in deploy/kubernetes are those that are used: no request needs more, and none is given in vain."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from tests.kubernetes.world import World

from adlro.backends.kubernetes.client import Api, right_of
from adlro.backends.kubernetes.lease import LeaseLock

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
READING = {
    f"{verb} {resource}"
    for verb in ("list", "watch")
    for resource in (
        "nodes", "pods", "persistentvolumeclaims", "persistentvolumes",
        "podgroups.scheduling.x-k8s.io", "podgroups.scheduling.k8s.io",
        "workloads.scheduling.k8s.io",
    )
}  # fmt: skip


def given(file: str) -> set[str]:
    """The rights of a manifest, as "verb resource"."""
    rules = [
        rule
        for part in yaml.safe_load_all((FOLDER / file).read_text())
        if part["kind"] in ("ClusterRole", "Role")
        for rule in part["rules"]
    ]
    return {
        f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_a_shadow_may_only_read() -> None:
    assert given("shadow.yaml") == READING


@pytest.mark.fake_only
def test_the_scheduler_has_the_rights_that_it_uses_and_no_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a", gpus=4)
    world.pod("p")
    world.pod("lost")
    size = {"adlro.io/gang-size": "2"}
    world.pod("g-0", gpus=1, labels={"adlro.io/gang": "g"}, annotations=size, node="a")
    world.pod("g-1", gpus=4, labels={"adlro.io/gang": "g"}, annotations=size)
    ours = len(world.faults.requests)
    backend = world.backend(gang_timeout_s=0.01)
    for name in ("p", "lost", "g"):
        world.seen(backend, name)
    monkeypatch.setattr("adlro.backends.kubernetes.telling.REPEAT_S", 0.0)
    backend.annotate({world.id("p"): "waits; start about 1"})
    backend.annotate({world.id("p"): "waits; start about 2"})
    world.faults.fail("POST", "lost/binding", 0, times=1, after=True)
    assert world.order(backend, "lost", ("a", 1)).done
    time.sleep(0.02)
    backend.annotate({})
    lock = LeaseLock(Api(world.server), world.namespace, "adlro")
    assert lock.take()
    lock.release()
    used = {
        right_of("WATCH" if "watch=" in path else method, urlsplit(path).path)
        for method, path in world.faults.requests[ours:]
    }
    known = given("scheduler.yaml")
    assert used <= known
    # The fake serves nothing of scheduling.k8s.io here, so nobody watches it.
    assert known - used <= {"watch podgroups.scheduling.k8s.io", "watch workloads.scheduling.k8s.io"}
