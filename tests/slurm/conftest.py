"""A real Slurm for the tests of this folder, and its back end over each of the three ways."""

from collections.abc import Iterator

import pytest
from tests.slurm.driving import Driven
from tests.slurm.lab import Lab, running

WAYS = ("socket", "token", "commands")


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests that start a real Slurm."""
    config.addinivalue_line("markers", "slurm: starts a real Slurm on this machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder start one; those of one lab stay in one process."""
    for item in items:
        if "tests/slurm/" in str(item.path):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A Slurm of four nodes with four GPUs each, one type for all GPUs of a node."""
    with running(Lab(jwt=True)) as started:
        yield started


@pytest.fixture(scope="session")
def index_lab() -> Iterator[Lab]:
    """The same, with a type for each GPU."""
    with running(Lab(index_types=True)) as started:
        yield started


@pytest.fixture(params=WAYS)
def driven(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Driven]:
    """The back end over one of the ways; the queue is empty afterwards."""
    with Driven(lab, request.param) as backend:
        yield backend


@pytest.fixture
def by_socket(lab: Lab) -> Iterator[Driven]:
    """The back end over slurmrestd's socket, with the command line behind it."""
    with Driven(lab, "socket") as backend:
        yield backend


@pytest.fixture
def by_index(index_lab: Lab) -> Iterator[Driven]:
    """The same on the Slurm with a type for each GPU."""
    with Driven(index_lab, "socket") as backend:
        yield backend
