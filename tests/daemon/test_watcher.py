"""What the GPUs of a live cluster say: gaps stay visible, and a source that is gone is told from one with gaps."""

import threading
import time

import pytest
from tests.daemon.daemons import until
from tests.live.stand_in import Watch

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import TelemetryError, UsageError
from adlro.core.telemetry import GpuSeen, Readings
from adlro.daemon.config import load_config
from adlro.daemon.telemetry import Watcher
from adlro.ingest.telemetry.series import Collector
from adlro.normalise.telemetry import expected_gpus

CLUSTER = load_cluster("paper16")


class Source:
    """A source that says what it is told to say."""

    def __init__(self) -> None:
        self.node = "volta0"
        self.is_gone = False
        self.looks = 0

    def look(self) -> Readings:
        self.looks += 1
        if self.is_gone:
            raise TelemetryError("nobody answers.")
        found = Collector("test")
        found.put(GpuSeen(self.node, 1, name="v100-sxm2-16gb"), "utilisation", 0.5, time.time())
        return found.readings(time.time())


@pytest.fixture
def source() -> Source:
    return Source()


def test_a_figure_that_is_there_is_shown_and_one_that_is_not_is_none(source: Source) -> None:
    watcher = Watcher(source.look, lambda: CLUSTER)
    watcher.look()
    levels = watcher.levels()
    assert levels is not None
    assert levels["volta0/1"]["utilisation"] == 0.5
    assert levels["volta0/1"]["power"] is None


def test_a_gpu_of_the_cluster_that_says_nothing_is_there_with_gaps(source: Source) -> None:
    watcher = Watcher(source.look, lambda: CLUSTER)
    watcher.look()
    levels = watcher.levels()
    assert levels is not None
    assert len(levels) == 16
    assert set(levels[f"{CLUSTER.nodes[-1].name}/3"].values()) == {None}


def test_a_domain_behind_a_nodes_name_is_left_off(source: Source) -> None:
    source.node = "volta0.example.org"
    watcher = Watcher(source.look, lambda: CLUSTER)
    watcher.look()
    assert (watcher.levels() or {})["volta0/1"]["utilisation"] == 0.5


def test_a_source_that_fails_leaves_gaps_at_once_and_is_gone_after_a_while(source: Source) -> None:
    clock = Watch()
    watcher = Watcher(source.look, lambda: CLUSTER, max_age_s=60.0, monotonic=clock)
    assert watcher.levels() is None, "it was never asked"
    watcher.look()
    source.is_gone = True
    clock.time = 30.0
    watcher.look()
    assert watcher.trouble == "nobody answers."
    levels = watcher.levels()
    assert levels is not None
    assert set(levels["volta0/1"].values()) == {None}
    clock.time = 61.0
    watcher.look()
    assert watcher.levels() is None
    source.is_gone = False
    watcher.look()
    assert watcher.levels() is not None
    assert watcher.trouble == ""


def test_it_works_before_the_cluster_is_known(source: Source) -> None:
    watcher = Watcher(source.look, lambda: None)
    watcher.look()
    assert set(watcher.levels() or {}) == {"volta0/1"}
    assert expected_gpus(None) == ()


def test_it_looks_in_a_thread_of_its_own_until_it_is_closed(source: Source) -> None:
    watcher = Watcher(source.look, lambda: CLUSTER, every_s=0.01)
    watcher.start()
    until(lambda: source.looks >= 3)
    watcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_a_config_names_the_source() -> None:
    table = load_config(None, {"telemetry.prometheus": "ftp://nowhere"}).telemetry
    assert table.is_on
    with pytest.raises(UsageError, match="expected http"):
        table.open()
    assert not load_config(None).telemetry.is_on
    for flag in ("nvml", "amdsmi", "metrics"):
        value: object = "http://127.0.0.1:9/metrics" if flag == "metrics" else True
        assert callable(load_config(None, {f"telemetry.{flag}": value}).telemetry.open())
