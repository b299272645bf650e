"""Python's garbage collector, paused while very many objects are made."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from adlro.process import collector
from adlro.process.collector import paused_collector, unhurried_collector


class Ring:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    assert gc.isenabled()


def test_it_is_paused_until_the_last_thread_is_done_also_after_an_error() -> None:
    first, second = paused_collector(), paused_collector()
    first.__enter__()
    assert not gc.isenabled()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"), paused_collector():
        raise ValueError("no")
    assert gc.isenabled()


def test_kept_objects_are_frozen_and_freed_when_nobody_holds_them() -> None:
    with paused_collector(are_kept=True):
        kept = [Ring() for _ in range(100)]
    assert gc.get_freeze_count() >= 100
    for ring in kept:
        ring.me = None  # type: ignore[assignment]
    gone = weakref.ref(kept[0])
    del kept, ring
    assert gone() is None


def test_a_frozen_ring_is_collected_when_all_objects_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "COLLECT_EVERY_S", 0.0)
    with unhurried_collector() as collect:
        with paused_collector(are_kept=True):
            gone = weakref.ref(Ring())
        gc.collect()
        assert gone() is not None
        collect()
        assert gone() is None
