"""Where runs are executed: parcels for a cluster, and how work travels. The cluster itself: test_on_ray.py."""

import pickle
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adlro.core.errors import UsageError
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import Runs, judge_run, run_comparison
from adlro.experiment.instance import draw
from adlro.experiment.on_ray import PARTS, Queue, Returned, connect_to_ray, kept_by_ray
from adlro.experiment.places import Group, ThreadPlace
from adlro.experiment.scenario import load_scenario
from adlro.experiment.sending import difference, packed_for_sending, versions


class Adding:
    """A work whose answer is known: the key and the item."""

    def __init__(self) -> None:
        self.prepared: list[int] = []

    def warm_up(self, tell: Any) -> None:
        tell("warming up")

    def prepare(self, key: int) -> int:
        self.prepared.append(key)
        return 10 * key

    def run(self, prepared: int, item: int) -> int:
        return prepared + item


def test_threads_do_every_run_once_and_prepare_each_group_once() -> None:
    work, told = Adding(), list[str]()
    groups = [Group(work, key, (0, 1, 2)) for key in range(9)]
    results = [done.result for done in ThreadPlace(2).spread(groups, told.append)]
    assert results == [10 * key + item for key in range(9) for item in range(3)]
    assert (work.prepared, told) == (list(range(9)), ["warming up"])


def taken(queue: Queue, slots: int, seconds_each: float) -> list[list[Group]]:
    """All parcels of a queue, if each run takes so long."""
    parcels = []
    while queue.left:
        parcel = queue.take(slots)
        parcels.append(parcel)
        runs = sum(len(group.items) for group in parcel)
        list(queue.ended(parcel, Returned([None] * runs, runs * seconds_each)))
    return parcels


@pytest.mark.parametrize("seconds_each", [0.001, 0.1, 20.0])
def test_parcels_hold_every_run_once_in_order(seconds_each: float) -> None:
    work = Adding()
    groups = [Group(work, key, tuple(range(7))) for key in range(40)]
    parcels = taken(Queue(list(groups)), 3, seconds_each)
    runs = [(group.key, item) for parcel in parcels for group in parcel for item in group.items]
    assert runs == [(key, item) for key in range(40) for item in range(7)]


def test_short_runs_go_together_and_long_ones_alone() -> None:
    groups = [Group(Adding(), 0, tuple(range(1000)))]
    short = [sum(len(group.items) for group in parcel) for parcel in taken(Queue(list(groups)), 2, 0.01)]
    long = [sum(len(group.items) for group in parcel) for parcel in taken(Queue(list(groups)), 2, 5.0)]
    assert (short[0], max(short), short[-1]) == (1, 100, 1)  # a second's worth; the last ones are small
    assert max(short[-2 * PARTS :]) == 1
    assert set(long) == {1}


def test_a_process_keeps_the_latest_few() -> None:
    store: OrderedDict[Any, Any] = OrderedDict()
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in (1, 2, 1, 3, 1, 2):
        assert kept_by_ray(store, key, 2, lambda key=key: make(key)) == key
    assert made == [1, 2, 3, 2]


def test_a_policy_that_ships_travels_by_name() -> None:
    assert pickle.loads(packed_for_sending(find_policy("sjf"))) is find_policy("sjf")
    assert len(packed_for_sending(find_policy("adlro"))) < 200


OWN = '''
from adlro.core.compiled import compiled

FACTOR = 2.0

@compiled
def half(x):
    return x / FACTOR

@compiled
def ratio(job, site, pair, now):
    """The pair with the largest ratio."""
    return half(now - job.submit) / max(pair.runtime_s, 1.0)
'''


def test_a_compiled_policy_of_a_user_travels_without_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    scenario = load_scenario("paper16", "paper", 30)
    own = find_policy(f"{file}:ratio")
    (tmp_path / "work").write_bytes(packed_for_sending(Runs(scenario, (own,), 0, False)))
    file.unlink()
    script = (
        "import pickle, sys; runs = pickle.load(open(sys.argv[1], 'rb')); "
        "print(runs.run(runs.prepare(3), 0).metrics.jct_mean_s)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "work")]
    there = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert there == f"{judge_run(draw(scenario, 3), own).jct_mean_s}\n"


def test_versions_that_differ_are_named() -> None:
    here = versions()
    assert difference(here, here) is None
    assert difference(here, replace(here, numpy="1.0")) == f"numpy 1.0 instead of {here.numpy}"
    assert difference(here, replace(here, sources="x")) == f"other source files of adlro {here.adlro}"


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--ray needs Ray, which is not installed. Run: pip install 'adlro\[ray\]'"):
        run_comparison(load_scenario("paper16", "paper", 5), [find_policy("sjf")], [0], ray="auto")


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "Connection refused"), ("head", "not an address")])
def test_an_address_without_a_cluster_is_refused_at_once(address: str, reason: str) -> None:
    with pytest.raises(
        UsageError, match=f"--ray {address}: no connection to a Ray cluster: .*{reason}.* Expected HOST"
    ):
        connect_to_ray(None, address, None)
