"""One of several replicas leads, by a Lease: the next one takes over when the leader lets go, dies or is cut off."""

import time
from collections.abc import Callable

import pytest
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import Api
from adlro.backends.kubernetes.kind import lease_of
from adlro.backends.kubernetes.lease import LeaseLock
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.errors import BackendError


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def replica(world: World, request: pytest.FixtureRequest) -> Callable[..., LeaseLock]:
    """Makes replicas; they let go at the end."""

    def make(clock: Callable[[], float] = time.monotonic, retry_s: float = 60.0) -> LeaseLock:
        lock = LeaseLock(Api(world.server, 2.0), world.namespace, "adlro", retry_s=retry_s, monotonic=clock)
        request.addfinalizer(lock.release)
        return lock

    return make


def test_only_one_of_two_leads_and_the_other_one_knows_who(replica: Callable[..., LeaseLock]) -> None:
    one, other = replica(), replica()
    assert one.take()
    assert one.holds()
    assert not other.take()
    assert other.holder() == one.identity


def test_the_next_one_leads_as_soon_as_the_leader_lets_go(replica: Callable[..., LeaseLock]) -> None:
    one, other = replica(), replica()
    assert one.take()
    one.release()
    assert not one.holds()
    assert other.take()


def test_a_leader_that_dies_is_replaced_after_the_duration_of_its_lease(replica: Callable[..., LeaseLock]) -> None:
    clock = Clock()
    one, other = replica(), replica(clock)
    assert one.take()
    assert not other.take()
    clock.now += 14.0
    assert not other.take()
    clock.now += 2.0
    assert other.take()


def test_a_leader_that_does_not_renew_stops_to_lead_before_others_may(replica: Callable[..., LeaseLock]) -> None:
    clock = Clock()
    one = replica(clock)
    assert one.take()
    clock.now += 9.0
    assert one.holds()
    clock.now += 2.0
    assert not one.holds()


def test_a_clock_that_is_wrong_on_another_machine_does_not_matter(
    world: World, replica: Callable[..., LeaseLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replica()
    with monkeypatch.context() as patch:
        patch.setattr("adlro.backends.kubernetes.lease.micro", lambda time_s: "2001-01-01T00:00:00.000000Z")
        assert one.take()
    assert not replica().take()


def test_a_leader_renews_its_lease(world: World, replica: Callable[..., LeaseLock]) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/adlro"
    one = replica(retry_s=0.02)
    assert one.take()
    before = world.api.get(path)["metadata"]["resourceVersion"]
    eventually(lambda: world.api.get(path)["metadata"]["resourceVersion"] != before)
    assert one.holds()


def test_a_leader_whose_lease_another_one_took_leads_no_more(world: World, replica: Callable[..., LeaseLock]) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/adlro"
    one = replica(retry_s=0.05)
    assert one.take()
    world.api.ask("PATCH", path, None, {"spec": {"holderIdentity": "thief"}}, "application/merge-patch+json")
    eventually(lambda: not one.holds())


@pytest.mark.fake_only
def test_a_server_that_is_gone_is_an_error_when_nobody_leads_yet(
    world: World, replica: Callable[..., LeaseLock]
) -> None:
    world.faults.fail("GET", "leases", 500, times=1)
    with pytest.raises(BackendError):
        replica().take()


@pytest.mark.fake_only
def test_the_config_names_the_lease(world: World) -> None:
    lock = lease_of(KubernetesOptions(server=world.faults.url, lease="ops/leader"))
    assert lock is not None
    assert lock.take()
    assert ("POST", "/apis/coordination.k8s.io/v1/namespaces/ops/leases") in world.faults.requests
    lock.release()
    assert lease_of(KubernetesOptions(server=world.faults.url)) is None
