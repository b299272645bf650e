"""Readings become numbers from 0 to 1; whatever is wrong with one makes a gap with its reason, and is counted."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.catalogue.gpus import find_gpu
from adlro.core.records import GpuModel
from adlro.core.telemetry import METRIC, METRICS, GpuSeen, Readings
from adlro.normalise.telemetry import FEATURE, GPU_FEATURES, REASONS, Telemetry, normalise

NOW = 1_800_000_000.0
A100 = "a100-sxm4-80gb"

Row = tuple[str, int, str, float, float] | tuple[str, int, str, float, float, int]


def readings(*rows: Row, name: str = A100, now_s: float = NOW) -> Readings:
    """A table from (node, index, metric, value, age in seconds[, rank])."""
    keys = list(dict.fromkeys((row[0], row[1]) for row in rows))
    return Readings(
        "test",
        now_s,
        tuple(GpuSeen(node, index, name=name) for node, index in keys),
        np.array([keys.index((row[0], row[1])) for row in rows], np.int32),
        np.array([METRIC[row[2]] for row in rows], np.int16),
        np.array([row[3] for row in rows], np.float64),
        np.array([now_s - row[4] for row in rows], np.float64),
        np.array([row[5] if len(row) > 5 else 0 for row in rows], np.int16),
    )


def known(name: str) -> GpuModel | None:
    return find_gpu(name) if name in (A100, "mi300x") else None


def look(*rows: Row, previous: Telemetry | None = None, now_s: float = NOW, name: str = A100) -> Telemetry:
    return normalise(readings(*rows, now_s=now_s, name=name), known, previous=previous)


def level(picture: Telemetry, feature: str, row: int = 0) -> float:
    return float(picture.level[row, FEATURE[feature]])


def why(picture: Telemetry, feature: str, row: int = 0) -> str:
    assert np.isnan(picture.level[row, FEATURE[feature]])
    return REASONS[picture.gap[row, FEATURE[feature]]]


def test_figures_are_held_against_the_model_of_the_catalogue() -> None:
    picture = look(
        ("a", 0, "utilisation", 0.5, 0),
        ("a", 0, "temperature", 43.5, 0),
        ("a", 0, "memory_used", 20 * 1024, 0),
        ("a", 0, "memory_bandwidth", 1019.5, 0),
        ("a", 0, "power", 100.0, 0),
    )
    assert level(picture, "utilisation") == 0.5
    assert level(picture, "temperature") == pytest.approx(43.5 / 87)
    assert level(picture, "memory") == pytest.approx(20 / 80)
    assert level(picture, "bandwidth") == pytest.approx(1019.5 / find_gpu(A100).memory_bandwidth_gb_s)
    assert level(picture, "power") == pytest.approx(100 / 400)


def test_what_the_device_says_of_its_own_limits_comes_first() -> None:
    picture = look(
        ("a", 0, "temperature", 45.0, 0),
        ("a", 0, "temperature_limit", 90.0, 0),
        ("a", 0, "memory_used", 10.0, 0),
        ("a", 0, "memory_free", 30.0, 0),
        ("a", 0, "sm_clock", 705.0, 0),
        ("a", 0, "sm_clock_max", 1410.0, 0),
        ("a", 0, "memory_clock", 1593.0, 0),
    )
    assert level(picture, "temperature") == 0.5
    assert level(picture, "memory") == 0.25
    assert level(picture, "sm_clock") == 0.5
    assert why(picture, "memory_clock") == "nothing to scale it by"


def test_an_amd_gpu_has_its_own_throttle_point() -> None:
    assert level(look(("a", 0, "temperature", 50.0, 0), name="mi300x"), "temperature") == 0.5


def test_a_gpu_that_the_catalogue_does_not_know_has_no_ranges_but_is_there() -> None:
    picture = look(("a", 0, "utilisation", 0.5, 0), ("a", 0, "power", 100.0, 0), name="Voodoo 2")
    assert picture.unknown == ("Voodoo 2",)
    assert level(picture, "utilisation") == 0.5
    assert why(picture, "power") == "nothing to scale it by"


@pytest.mark.parametrize(
    ("value", "age", "reason"),
    [
        (0.5, 61.0, "too old"),
        (0.5, 1e9, "too old"),
        (0.5, float("nan"), "too old"),
        (0.5, -6.0, "from the future"),
        (float("nan"), 0.0, "not a number"),
        (float("inf"), 0.0, "not plausible"),
        (-0.1, 0.0, "not plausible"),
        (2.0**63, 0.0, "not plausible"),
    ],
)
def test_a_bad_value_is_a_gap_with_its_reason(value: float, age: float, reason: str) -> None:
    picture = look(("a", 0, "utilisation", value, age))
    assert why(picture, "utilisation") == reason
    assert picture.gaps()[reason] == 1
    assert picture.rows == {reason: 1, "used": 0} or picture.rows == {reason: 1}


def test_a_value_just_young_enough_and_a_clock_just_ahead_are_used() -> None:
    assert level(look(("a", 0, "utilisation", 0.5, 60.0)), "utilisation") == 0.5
    assert level(look(("a", 0, "utilisation", 0.5, -5.0)), "utilisation") == 0.5


def test_an_old_value_never_stands_in_for_a_new_one_that_is_missing() -> None:
    first = look(("a", 0, "utilisation", 0.9, 0))
    later = look(("a", 0, "utilisation", 0.9, 75.0), previous=first, now_s=NOW + 75)
    assert level(first, "utilisation") == 0.9
    assert why(later, "utilisation") == "too old"


def test_a_gpu_that_was_there_before_and_says_nothing_is_silent() -> None:
    first = look(("a", 0, "utilisation", 0.9, 0), ("a", 1, "utilisation", 0.9, 0))
    later = look(("a", 1, "utilisation", 0.8, 0), previous=first)
    rows = {(gpu.node, gpu.index): row for row, gpu in enumerate(later.gpus)}
    assert why(later, "utilisation", rows["a", 0]) == "the expected GPU is silent"
    assert level(later, "utilisation", rows["a", 1]) == 0.8
    assert later.gaps()["the expected GPU is silent"] == len(GPU_FEATURES)


def test_a_gpu_that_is_expected_is_silent_and_one_that_is_not_is_counted() -> None:
    expected = [GpuSeen("a", 0, name=A100), GpuSeen("a", 1, name=A100)]
    picture = normalise(readings(("a", 1, "utilisation", 0.5, 0), ("b", 0, "utilisation", 0.5, 0)), known, expected)
    assert [(gpu.node, gpu.index) for gpu in picture.gpus] == [("a", 0), ("a", 1), ("b", 0)]
    assert why(picture, "utilisation", 0) == "the expected GPU is silent"
    assert picture.unexpected == 1
    assert picture.models[0] == find_gpu(A100)


def test_gpus_that_are_expected_are_silent_even_if_nobody_speaks() -> None:
    picture = normalise(readings(), known, [GpuSeen("a", 0, name=A100)])
    assert picture.gaps() == {"the expected GPU is silent": len(GPU_FEATURES)}


def test_the_past_of_a_figure_is_not_told_as_too_old() -> None:
    picture = look(("a", 0, "ecc_corrected", 1.0, 90), ("a", 0, "ecc_corrected", 2.0, 0))
    assert picture.rows == {"used": 1, "an earlier value of a series": 1}


def test_of_several_readings_the_best_source_wins_and_then_the_latest() -> None:
    picture = look(
        ("a", 0, "memory_busy", 0.1, 30, 0),
        ("a", 0, "memory_busy", 0.2, 10, 0),
        ("a", 0, "memory_busy", 0.2, 10, 0),
        ("a", 0, "memory_busy", 0.9, 0, 1),
    )
    assert level(picture, "bandwidth") == 0.2
    assert picture.rows == {
        "used": 1,
        "told by a better source too": 1,
        "told twice": 1,
        "an earlier value of a series": 1,
    }


def test_a_worse_source_helps_out_when_the_better_one_is_too_old() -> None:
    assert level(look(("a", 0, "memory_busy", 0.1, 90, 0), ("a", 0, "memory_busy", 0.9, 0, 1)), "bandwidth") == 0.9


def test_a_counter_is_its_growth_since_the_last_look() -> None:
    first = look(("a", 0, "ecc_corrected", 1000.0, 0))
    assert why(first, "ecc_corrected") == "a counter seen for the first time"
    second = look(("a", 0, "ecc_corrected", 1025.0, 0), previous=first, now_s=NOW + 15)
    assert level(second, "ecc_corrected") == pytest.approx(0.25)
    assert second.resets == 0


def test_a_counter_that_falls_was_reset_and_counts_from_zero() -> None:
    first = look(("a", 0, "ecc_corrected", 1000.0, 0))
    second = look(("a", 0, "ecc_corrected", 10.0, 0), previous=first, now_s=NOW + 15)
    assert level(second, "ecc_corrected") == pytest.approx(0.1)
    assert second.resets == 1


def test_a_counter_remembers_across_a_gap() -> None:
    first = look(("a", 0, "ecc_uncorrected", 3.0, 0))
    gone = look(("a", 0, "utilisation", 0.5, 0), previous=first, now_s=NOW + 15)
    assert why(gone, "ecc_uncorrected") == "the GPU does not send it"
    back = look(("a", 0, "ecc_uncorrected", 4.0, 0), previous=gone, now_s=NOW + 30)
    assert level(back, "ecc_uncorrected") == 1.0


def test_a_stretch_of_a_counter_tells_its_growth_at_once() -> None:
    rows = [("a", 0, "ecc_corrected", value, age) for value, age in ((5.0, 0), (90.0, 20), (80.0, 40))]
    picture = look(*rows)
    assert level(picture, "ecc_corrected") == pytest.approx(0.15)  # 10, then a reset and 5
    assert picture.resets == 1


def test_the_same_counter_read_again_has_not_grown() -> None:
    first = look(("a", 0, "ecc_corrected", 7.0, 0))
    again = look(("a", 0, "ecc_corrected", 7.0, 15), previous=first, now_s=NOW + 15)
    assert level(again, "ecc_corrected") == 0.0


@pytest.mark.parametrize(("bits", "slowed"), [(0, 0.0), (0x1, 0.0), (0x4, 1.0), (0x8, 1.0), (0x100, 0.0), (0x41, 1.0)])
def test_only_reasons_that_slow_a_gpu_against_its_users_will_count(bits: int, slowed: float) -> None:
    assert level(look(("a", 0, "throttle_reasons", float(bits), 0)), "throttle") == slowed


def test_what_lies_above_its_range_counts_as_1_and_is_told() -> None:
    picture = look(("a", 0, "power", 440.0, 0))
    assert (level(picture, "power"), picture.clipped) == (1.0, 1)


def test_nothing_at_all_is_an_empty_picture() -> None:
    picture = normalise(readings(), known)
    assert (picture.gpus, picture.gaps(), picture.rows) == ((), {}, {})


ROWS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.sampled_from([metric.name for metric in METRICS]),
    st.floats() | st.floats(0, 100),
    st.floats() | st.floats(-10, 100),
    st.integers(0, 2),
)


@given(st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=3))
def test_whatever_arrives_every_reading_is_accounted_for_and_every_level_is_0_to_1_or_a_gap(
    looks: list[list[Row]],
) -> None:
    previous = None
    for number, rows in enumerate(looks):
        given_ = readings(*rows, now_s=NOW + 15 * number)
        picture = normalise(given_, known, [GpuSeen("a", 0, name=A100)], previous)
        assert sum(picture.rows.values()) == len(given_)
        is_gap = np.isnan(picture.level)
        assert ((picture.level >= 0) & (picture.level <= 1) | is_gap).all()
        assert ((picture.gap != 0) == is_gap).all()
        assert sum(picture.gaps().values()) == int(is_gap.sum())
        previous = picture


@given(st.lists(ROWS, min_size=1, max_size=15), st.randoms(use_true_random=False))
def test_the_order_of_readings_does_not_matter(rows: list[Row], random: Random) -> None:
    table = readings(*rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    mixed = replace(
        table, **{name: getattr(table, name)[order] for name in ("gpu", "metric", "value", "time_s", "rank")}
    )
    one, other = normalise(table, known), normalise(mixed, known)
    assert (one.gap == other.gap).all()
    assert one.rows == other.rows
