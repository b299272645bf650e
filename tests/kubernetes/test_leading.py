"""The pod that leads has a label, by which a Service finds it."""

import pytest
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import Api, ApiError
from adlro.backends.kubernetes.kind import lease_of
from adlro.backends.kubernetes.leading import LEADER_LABEL, LabelledLead
from adlro.backends.kubernetes.lease import LeaseLock
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.errors import ConfigError


def labelled(world: World, pod: str) -> LabelledLead:
    lock = LeaseLock(Api(world.server, 2.0), world.namespace, "adlro", retry_s=60.0)
    return LabelledLead(lock, Api(world.server, 2.0), f"{world.namespace}/{pod}")


def leaders(world: World) -> list[str]:
    return [each["metadata"]["name"] for each in world.pods() if LEADER_LABEL in each["metadata"].get("labels", {})]


def test_only_the_pod_that_leads_has_the_label_and_it_moves_with_the_lead(world: World) -> None:
    world.pod("adlro-0")
    world.pod("adlro-1", labels={LEADER_LABEL: "true"})  # it led, was killed, and starts again as a standby
    one, other = labelled(world, "adlro-0"), labelled(world, "adlro-1")
    assert one.take()
    assert not other.take()
    assert leaders(world) == ["adlro-0"]
    one.release()
    assert leaders(world) == []
    eventually(other.take)
    assert leaders(world) == ["adlro-1"]
    other.release()


@pytest.mark.fake_only
def test_a_label_that_may_not_be_written_does_not_keep_a_daemon_from_leading(world: World) -> None:
    world.faults.denied.add("patch pods")
    world.pod("adlro-0")
    one = labelled(world, "adlro-0")
    assert one.take()
    assert one.holds()
    assert leaders(world) == []
    one.release()


@pytest.mark.fake_only
def test_the_environment_names_the_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    options = KubernetesOptions(server=world.faults.url, lease="default/adlro")
    assert isinstance(lease_of(options), LeaseLock)
    monkeypatch.setenv("ADLRO_POD", "default/adlro-0")
    assert isinstance(lease_of(options), LabelledLead)
    monkeypatch.setenv("ADLRO_POD", "adlro-0")
    with pytest.raises(ConfigError, match="expected NAMESPACE/NAME"):
        lease_of(options)


def test_a_pod_that_is_not_there_is_no_reason_not_to_lead(world: World) -> None:
    with pytest.raises(ApiError):
        world.get("nobody")
    one = labelled(world, "nobody")
    assert one.take()
    one.release()
