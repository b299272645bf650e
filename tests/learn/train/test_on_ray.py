"""Environments on other machines: the network learns what it learns here, also when machines are lost.

Here the other machines are objects of this process. tests/experiment/test_on_ray.py has a real cluster.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.learn.small import small_training, trained

import adlro
from adlro.core.errors import BackendError, UsageError
from adlro.learn.train import on_ray
from adlro.learn.train.loop import TrainingState, rounds
from adlro.learn.train.on_ray import ATTEMPTS, Crew
from adlro.learn.train.state import restore, state_of


class Lost(Exception):  # noqa: N818  (Ray's is called RayActorError)
    pass


class Actor:
    """An actor in this process, which is lost after so many calls."""

    def __init__(self, kind: Any, arguments: tuple[Any, ...], calls: int | None) -> None:
        self.thing, self.left = kind(*arguments), calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Callable[[], Any]:
            if self.left is not None:
                self.left -= 1
            if self.left is not None and self.left < 0:
                return lost
            answer = getattr(self.thing, name)(*arguments)
            copies = pickled(answer)
            return lambda: copies

        return SimpleNamespace(remote=call)


def lost() -> Any:
    raise Lost


def pickled(answer: Any) -> Any:
    """The answer as it arrives: copies that do not change any more."""
    if isinstance(answer, tuple):
        return tuple(map(pickled, answer))
    return np.array(answer) if isinstance(answer, np.ndarray) else answer


class Place:
    """Nodes with these cores; the first actors are lost after so many calls."""

    def __init__(self, cores: list[int], losses: list[int | None] | None = None) -> None:
        self.started: list[Actor] = []
        self.killed: list[Actor] = []
        losses = losses or []

        def start(kind: Any, *arguments: Any) -> Actor:
            calls = losses[len(self.started)] if len(self.started) < len(losses) else None
            self.started.append(Actor(kind, arguments, calls))
            return self.started[-1]

        self.ray: Any = SimpleNamespace(
            nodes=lambda: [{"NodeID": str(n), "Alive": True, "Resources": {"CPU": c}} for n, c in enumerate(cores)],
            put=lambda thing: thing,
            get=lambda answer: answer(),
            kill=lambda actor: self.killed.append(actor),
            remote=lambda kind: SimpleNamespace(
                options=lambda **_: SimpleNamespace(remote=lambda *arguments: start(kind, *arguments))
            ),
            exceptions=SimpleNamespace(RayActorError=Lost, ObjectLostError=Lost),
            util=SimpleNamespace(
                scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
            ),
        )

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def crew(training: TrainingState, place: Place) -> Crew:
    return Crew(training, cast(Any, place))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What is learnt on one machine."""
    training = small_training(steps=120, threads=1)
    found = trained(training)
    assert training.learner.updates > 10
    return found


@pytest.mark.parametrize("cores", [[1], [1, 2], [3, 0, 2, 1]])
def test_the_network_learns_the_same_on_any_number_of_nodes(cores: list[int], alone: dict[str, Any]) -> None:
    training, place = small_training(steps=120, threads=1), Place(cores)
    with crew(training, place):
        assert same(trained(training), alone)
    assert len(place.started) == sum(count > 0 for count in cores)
    assert place.killed == place.started


@pytest.mark.parametrize("every", [3, 1000])
def test_lost_nodes_are_replaced_and_the_network_does_not_notice(
    every: int, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "FETCH_EVERY", every)
    training, place = small_training(steps=120, threads=1), Place([1, 1], [9, 14, 12])
    with crew(training, place):
        assert same(trained(training), alone)
    assert len(place.started) == 5  # two, of which both are lost, and then the third


def test_a_training_on_nodes_can_be_resumed_on_others_and_alone(alone: dict[str, Any]) -> None:
    first = small_training(steps=120, threads=1, checkpoint_every=5)
    with crew(first, Place([1, 1])) as out:
        for record in rounds(first):
            if record.state_is_due and record.round >= 5:
                out.fetch_all()
                break
        arrays, told = state_of(first)
    kept = {name: np.array(array) for name, array in arrays.items()}
    for cores in ([], [2, 1, 1]):
        again = small_training(steps=120, threads=1, checkpoint_every=5)
        restore(again, kept, told)
        if cores:
            with crew(again, Place(cores)):
                assert same(trained(again), alone)
        else:
            assert same(trained(again), alone)


def test_a_slice_that_is_lost_again_and_again_ends_the_training() -> None:
    training = small_training(steps=120, threads=1)
    with (
        crew(training, Place([1], [4, *[0] * 2 * ATTEMPTS])),
        pytest.raises(BackendError, match="lost 8 times in one step"),
    ):
        trained(training)


def test_a_cluster_without_cores_is_refused() -> None:
    with pytest.raises(BackendError, match="no node of the Ray cluster has a core"):
        crew(small_training(steps=120, threads=1), Place([0])).__enter__()


def test_a_cluster_that_cannot_be_reached_leaves_no_folder_that_blocks_the_next_try(tmp_path: Path) -> None:
    out = tmp_path / "training"
    small = {"environments": 8, "jobs": 12, "batch": 16, "worlds": 2, "exam_environments": 2, "exam_jobs": 12}
    with pytest.raises(UsageError, match="no connection to a Ray cluster"):
        adlro.train(out, cluster="paper16", steps=8, ray="nowhere", device="cpu", threads=1, settings=small)
    assert not out.exists()
