"""A cluster for each test: on the fake server, or with ADLRO_KUBERNETES=real on the control plane of the lab."""

import os
from collections.abc import Iterator

import pytest
from tests.kubernetes.fake_server import fake_server
from tests.kubernetes.world import World

from adlro.backends.kubernetes.credentials import door_of
from adlro.backends.kubernetes.lab import ControlPlane, control_plane_up
from adlro.backends.kubernetes.options import KubernetesOptions

IS_REAL = os.environ.get("ADLRO_KUBERNETES") == "real"


def pytest_configure(config: pytest.Config) -> None:
    """The markers of tests that only one of the two servers can run."""
    config.addinivalue_line("markers", "fake_only: needs faults that only the fake server has")
    config.addinivalue_line("markers", "real_only: needs a real control plane")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need faults of the fake are skipped on a real server, and the other way round."""
    for item in items:
        if IS_REAL and item.get_closest_marker("fake_only"):
            item.add_marker(pytest.mark.skip(reason="a real server has no faults at will"))
        if not IS_REAL and item.get_closest_marker("real_only"):
            item.add_marker(pytest.mark.skip(reason="make test-kubernetes runs it on a real control plane"))


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The real control plane of this session."""
    with control_plane_up() as plane:
        yield plane


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """An empty cluster."""
    if IS_REAL:
        plane: ControlPlane = request.getfixturevalue("control_plane")
        found = World(door_of(KubernetesOptions(kubeconfig=str(plane.kubeconfig))), None)
        found.clear()
        yield found
        found.close()
        return
    with fake_server() as fake:
        found = World(door_of(KubernetesOptions(server=fake.url)), fake)
        yield found
        found.close()
