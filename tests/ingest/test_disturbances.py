"""Failures, wear and lists of disturbances: the same for every policy, in time order, or refused."""

import numpy as np
import pytest

from adlro.core.errors import ConfigError, UsageError
from adlro.core.records import Disturbance
from adlro.ingest.disturbances import SLOWEST, failures, read_disturbances, wear

NODES = [f"node{number}" for number in range(50)]


def test_nodes_fail_after_the_mean_time_and_are_repaired_after_theirs() -> None:
    found = failures(NODES, mtbf_s=1000, repair_s=100, until_s=100_000, seed=0)
    downs = [item for item in found if item.what == "down"]
    assert len(downs) == pytest.approx(50 * 100_000 / 1100, rel=0.05)
    ups = sum(item.time_s for item in found if item.what == "up")
    assert (ups - sum(item.time_s for item in downs)) / len(downs) == pytest.approx(100, rel=0.05)


def test_every_node_that_goes_down_comes_up_again() -> None:
    found = failures(NODES, mtbf_s=1000, repair_s=500, until_s=5000, seed=1, repair="fixed")
    assert found == sorted(found, key=lambda item: item.time_s)
    for node in NODES:
        mine = [item for item in found if item.node == node]
        assert [item.what for item in mine] == ["down", "up"] * (len(mine) // 2)
        times = [item.time_s for item in mine]
        assert np.allclose(np.subtract(times[1::2], times[::2]), 500)
        assert all(time < 5000 for time in times[::2])


def test_a_node_fails_the_same_whatever_nodes_follow_it() -> None:
    alone = failures(NODES[:1], 1000, 100, 50_000, seed=2)
    assert alone == [item for item in failures(NODES, 1000, 100, 50_000, seed=2) if item.node == "node0"]
    assert alone != failures(NODES[:1], 1000, 100, 50_000, seed=3)


def test_nodes_do_not_fail_together() -> None:
    downs = [item.time_s for item in failures(NODES, 1000, 100, 50_000, seed=2) if item.what == "down"]
    assert len(set(downs)) == len(downs)


def test_wear_slows_every_gpu_step_by_step_and_not_below_the_slowest() -> None:
    found = wear({"a": 2, "b": 1}, drift_per_day=0.24, spread=0.0, step_s=43_200, until_s=86_400 * 5, seed=0)
    mine = [item for item in found if (item.node, item.gpu) == ("a", 1)]
    assert [item.factor for item in mine] == pytest.approx([0.88, 0.76, 0.64, 0.52, SLOWEST])
    assert [item.time_s for item in mine] == [43_200 * step for step in range(1, 6)]
    assert {(item.node, item.gpu) for item in found} == {("a", 0), ("a", 1), ("b", 0)}
    assert found == sorted(found, key=lambda item: item.time_s)


def test_gpus_wear_differently_and_on_average_as_asked() -> None:
    found = wear({"a": 4000}, drift_per_day=0.01, spread=0.5, step_s=86_400, until_s=100_000, seed=0)
    lost = np.array([1 - item.factor for item in found])
    assert lost.mean() == pytest.approx(0.01, rel=0.05)
    assert np.log(lost).std() == pytest.approx(0.5, rel=0.05)
    assert wear({"a": 4}, 0.0, 0.5, 3600, 86_400, seed=0) == []


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(UsageError, match="mtbf_s is 0; expected seconds above 0"):
        failures(NODES, 0, 10, 100, seed=0)
    with pytest.raises(UsageError, match="step_s is -1"):
        wear({"a": 1}, 0.1, 0.1, -1, 100, seed=0)
    with pytest.raises(UsageError, match="expected numbers from 0"):
        wear({"a": 1}, -0.1, 0.1, 10, 100, seed=0)


TOML = """
[[disturbance]]
time_s = 900
what = "up"
node = "n1"

[[disturbance]]
time_s = 60.5
what = "down"
node = "n1"

[[disturbance]]
time_s = 60.5
what = "speed"
node = "n2"
gpu = 3
factor = 0.8
"""
JSON_LINES = """
{"time_s": 900, "what": "up", "node": "n1"}
{"time_s": 60.5, "what": "down", "node": "n1"}

{"time_s": 60.5, "what": "speed", "node": "n2", "gpu": 3, "factor": 0.8}
"""


@pytest.mark.parametrize("text", [TOML, JSON_LINES])
def test_a_list_is_read_from_toml_or_json_lines_and_put_in_order(text: str) -> None:
    assert read_disturbances(text, "list") == [
        Disturbance(60.5, "down", "n1"),
        Disturbance(60.5, "speed", "n2", 3, 0.8),
        Disturbance(900, "up", "n1"),
    ]


def test_an_empty_list_disturbs_nothing() -> None:
    assert read_disturbances("", "list.toml") == []


BAD = {
    '{"time_s": 1, "what": "down", "node": "n"}\n{"time_s": 1,': "list:2: this is not JSON",
    '{"time_s": -1, "what": "down", "node": "n"}': "list:1: 'time_s' is -1; expected a number from 0",
    '{"time_s": 1, "what": "dwn", "node": "n"}': "Did you mean 'down'",
    '{"time_s": 1, "what": "down"}': "list:1: 'node' is missing",
    '{"time_s": 1, "what": "down", "node": null}': "'node' is null; expected a text or a finite number",
    '{"time_s": NaN, "what": "down", "node": "n"}': "'time_s' is NaN",
    '{"time_s": 1, "what": "down", "node": "n"}\n[1]': "list:2: found [1]; expected an object",
    '{"time_s": 1, "what": "down", "node": "n", "gpu": 1}': "gpu belong to 'speed'; 'down' is for the whole node",
    '{"time_s": 1, "what": "speed", "node": "n", "gpu": 1}': "'speed' needs gpu",
    '{"time_s": 1, "what": "speed", "node": "n", "gpu": 1, "factor": 0}': "expected a number above 0 and up to 10",
    '[[disturbance]]\ntime = 1\nwhat = "up"\nnode = "n"': "list: ",
    "[[disturbances]]\ntime_s = 1": "Did you mean 'disturbance'",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_list_is_refused_with_its_place_and_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_disturbances(text, "list")
    assert BAD[text] in str(refused.value)
    assert "\n" not in str(refused.value)
