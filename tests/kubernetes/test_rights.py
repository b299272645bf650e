"""The rights in deploy/kubernetes are those that are used: no request needs more, and none is given in vain."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from tests.kubernetes.charts import rights_of
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import Api, right_of
from adlro.backends.kubernetes.leading import LabelledLead
from adlro.backends.kubernetes.lease import LeaseLock
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.opening import leadership_for, open_parts
from adlro.live.service import reason_for_all

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
READING = {
    f"{verb} {resource}"
    for verb in ("list", "watch")
    for resource in (
        "nodes", "pods", "persistentvolumeclaims", "persistentvolumes", "csinodes.storage.k8s.io",
        "podgroups.scheduling.x-k8s.io", "podgroups.scheduling.k8s.io",
        "workloads.scheduling.k8s.io",
    )
}  # fmt: skip


def given(file: str) -> set[str]:
    """The rights of a manifest, as "verb resource"."""
    return rights_of(list(yaml.safe_load_all((FOLDER / file).read_text())))


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
    lock = LabelledLead(
        LeaseLock(Api(world.server), world.namespace, "adlro"), Api(world.server), f"{world.namespace}/p"
    )
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


# ---- rights that are missing -----------------------------------------------------------------------------------------


@pytest.fixture
def daemon(world: World, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on the fake server that a test ticks by hand."""
    flags = {
        "backend.kind": "kubernetes", "kubernetes.server": world.faults.url, "policy.name": "fcfs-first-fit",
        "store.url": f"sqlite:{tmp_path}/adlro.db", "api.is_on": False,
    }  # fmt: skip
    config = load_config(None, flags)
    made = Daemon(config, open_parts, leadership_for(config))
    yield made
    made.close()


@pytest.mark.fake_only
def test_a_right_that_placing_needs_is_named_in_health_alarm_and_log_and_its_return_too(
    world: World, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    world.node("a", gpus=4)
    world.pod("p")
    world.faults.denied.add("create pods/binding")
    eventually(
        lambda: daemon.tick() is not None and daemon.is_ready() == (False, "rights are missing: create pods/binding")
    )
    said = "the right to create pods/binding is missing; grant it to the daemon's account."
    assert said in [alarm.text for alarm in daemon.state().alarms]
    assert said in caplog.text
    assert reason_for_all(daemon.is_ready()[1]) == "rights are missing"
    world.faults.denied.clear()
    world.pod("q")
    eventually(lambda: daemon.tick() is not None and daemon.is_ready() == (True, "ready"))
    assert sum(alarm.text == said for alarm in daemon.state().alarms) == 1


@pytest.mark.fake_only
def test_a_right_that_only_shows_reasons_is_named_and_the_daemon_stays_ready(world: World, daemon: Daemon) -> None:
    world.node("a", gpus=1)
    world.pod("huge", gpus=64)
    world.faults.denied.add("create events")
    told = (True, "ready, without the rights to create events.events.k8s.io")
    eventually(lambda: daemon.tick() is not None and daemon.is_ready() == told)
    texts = [alarm.text for alarm in daemon.state().alarms]
    assert "the right to create events.events.k8s.io is missing; grant it to the daemon's account." in texts


@pytest.mark.fake_only
def test_without_the_right_to_list_pods_the_daemon_says_so_instead_of_reading_half_a_cluster(
    world: World, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.backends.kubernetes.backend.FIRST_LIST_S", 0.3)
    world.faults.denied.add("list pods")
    daemon.tick()
    ready, why = daemon.is_ready()
    assert not ready
    assert "the right to list pods is missing" in why
