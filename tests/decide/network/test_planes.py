"""What the network sees: finite, within its bounds, and told in the units that it was trained on."""

import math

import numpy as np
import pytest
from tests.decide.conftest import Case
from tests.decide.test_outlook import HALF_T4, T4, V100, looked, row_of

from adlro.decide.network.planes import (
    FAR,
    FARTHEST,
    LONGEST_BACKLOG,
    MOST_ALIKE,
    MOST_QUEUED,
    OLDEST,
    PAIR_PLANES,
    POOL_PLANES,
    ROW_PLANES,
    WHOLE_PLANES,
    Planes,
    cut_off,
    log_of_count,
    log_of_more,
    make_planes,
    observe,
)
from adlro.decide.outlook import quick_log

CASE = Case([(V100, 4), (V100, 2), (T4, 2)], [(0, 10), (0, 16, 2), (0, 4), (0, 30, 3)], HALF_T4)


def observed(rows: int = 5, pools: int = 3) -> Planes:
    view, outlook = looked(CASE, [(0, 0), (1, 0)])
    planes = make_planes(rows, pools)
    planes.pools[:] = 9.0
    planes.present[:] = planes.legal[:] = 1
    observe(view, outlook, planes)
    return planes


def test_the_quick_logarithm_is_right_within_a_billionth() -> None:
    xs = [1.0, 2.0, 0.5, math.sqrt(2.0), 1e-3, *np.exp(np.random.default_rng(0).uniform(-30.0, 30.0, 2000)).tolist()]
    assert max(abs(quick_log(x) - math.log(x)) for x in xs) < 1e-9
    assert quick_log(1.0) == 0.0


def test_a_job_a_thousand_times_as_long_is_told_from_one_a_hundred_times() -> None:
    assert cut_off(math.log(1000.0)) - cut_off(math.log(100.0)) == pytest.approx(math.log(10.0))


def test_a_time_of_0_or_without_end_is_cut_off() -> None:
    assert cut_off(quick_log(0.0) - quick_log(10.0)) == -FAR
    assert cut_off(quick_log(math.inf) - quick_log(10.0)) == FARTHEST
    assert cut_off(quick_log(0.0) - quick_log(0.0)) == 0.0
    assert log_of_more(math.inf) == FAR
    assert log_of_more(0.0) == 0.0


@pytest.mark.parametrize("count", [0, 1, 7, 255, 256, 1000, 2979, 2980, 10**6])
def test_counts_are_told_alike_from_the_table_and_computed(count: int) -> None:
    assert log_of_count(count) == pytest.approx(log_of_more(float(count)), abs=1e-9)


def test_pairs_are_told_in_logarithms_of_the_typical_runtime() -> None:
    view, outlook = looked(CASE, [(0, 0), (1, 0)])
    planes = observed()
    unit = float(outlook.unit[0])
    w = row_of(outlook, 3)  # 10 s on 3 V100s from 8 on; the T4s are too few
    pair = dict(zip(PAIR_PLANES, planes.pairs[w, 0].tolist(), strict=True))
    assert pair["runtime here"] == pytest.approx(math.log(10 / unit), abs=1e-6)
    assert pair["wait until it fits"] == pytest.approx(0.5 * math.log(1 + 8 / unit), abs=1e-6)
    assert pair["slower than at its fastest"] == 0.0
    assert pair["end here against its earliest end"] == pytest.approx(0.0, abs=1e-7)
    assert pair["fits now"] == 0.0
    assert planes.present[w].tolist() == [1, 0, 0]
    short = row_of(outlook, 2)
    pair = dict(zip(PAIR_PLANES, planes.pairs[short, 1].tolist(), strict=True))
    assert pair["slower than at its fastest"] == pytest.approx(math.log(2.0), abs=1e-6)
    assert pair["fits now"] == 1.0
    assert pair["GPUs left over on the node"] == 0.5
    assert pair["breaks an idle node"] == 1.0
    assert len(view.pools) == 2


def test_what_is_not_there_is_marked_and_what_is_there_is_within_bounds() -> None:
    planes = observed()
    assert planes.present.sum() == 3
    assert planes.legal.sum() == 2
    assert (planes.legal <= planes.present).all()
    assert not planes.pools[2].any(), "there are two pools"
    for array in (planes.rows[:2], planes.pools, planes.pairs[:2], planes.whole, planes.prior[:2]):
        assert np.isfinite(array).all()
        assert np.abs(array).max() <= FARTHEST


def test_pools_tell_of_free_gpus_and_the_next_release() -> None:
    _, outlook = looked(CASE, [(0, 0), (1, 0)])
    plane = dict(zip(POOL_PLANES, observed().pools[0].tolist(), strict=True))
    assert plane["free share"] == 0.5  # 3 of 6
    assert plane["GPUs"] == pytest.approx(0.5 * math.log(7.0))
    assert plane["time to the next release"] == pytest.approx(0.5 * math.log(1 + 8 / float(outlook.unit[0])), abs=1e-6)
    assert plane["nodes down"] == 0.0


@pytest.mark.parametrize("waiting", [3, 40, 200, 400])
def test_a_long_queue_of_old_jobs_is_told_up_to_what_a_training_shows(waiting: int) -> None:
    view, outlook = looked(Case([(V100, 2)], [(0, 1.0)] * (waiting + 1), {"any": {V100: 1.0}}), [(0, 0)])
    view.clock[0].now = 10.0 * waiting
    planes = make_planes(5, 3)
    observe(view, outlook, planes)
    row = dict(zip(ROW_PLANES, planes.rows[0].tolist(), strict=True))
    whole = dict(zip(WHOLE_PLANES, planes.whole.tolist(), strict=True))
    assert row["jobs alike"] == pytest.approx(log_of_count(min(waiting - 1, MOST_ALIKE)))
    assert row["age"] == pytest.approx(min(log_of_more(10.0 * waiting), OLDEST), rel=1e-5)
    assert whole["queue length"] == pytest.approx(log_of_count(min(waiting, MOST_QUEUED)))
    assert whole["backlog"] == pytest.approx(min(log_of_more(waiting / 2.0), LONGEST_BACKLOG), rel=1e-5)


def test_each_plane_has_a_name() -> None:
    planes = observed()
    assert planes.rows.shape[1] == len(ROW_PLANES)
    assert planes.whole.shape == (len(WHOLE_PLANES),)
