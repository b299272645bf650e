"""The HyperScore by hand: the published constants, its limits, and a value made of measures."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from adlro.core.errors import ConfigError, UsageError
from adlro.measure.hyperscore import EQUAL, MEASURED_BY, ScoreWeights, hyperscore, read_score_weights, scores
from adlro.measure.metrics import Metrics

METRICS = Metrics(
    jobs=10, finished=10, killed=0, unfinished=0, refused=0, jct_mean_s=100.0,
    jct_weighted_mean_s=100.0, jct_p50_s=100.0, jct_p95_s=100.0, jct_p99_s=100.0, wait_mean_s=0.0, wait_p95_s=0.0,
    wait_p99_s=0.0, wait_priority_1_s=0.0, wait_priority_2_s=0.0, wait_priority_3_s=0.0, wait_priority_4_s=0.0,
    bounded_slowdown_mean=1.0, makespan_s=1000.0,
    throughput_per_h=36.0, utilisation=0.5, effective_utilisation=0.4, idle_gpu_s=0.0, fragmentation=0.0,
    jain_users=0.8, finish_time_fairness_mean=1.0, finish_time_fairness_max=1.0, energy_kwh=20.0, preemptions=0,
    most_stops=0, failures=0, work_lost=0.0, illegal=0,
)  # fmt: skip


def score_of(weights: ScoreWeights, **policies: list[Metrics]) -> dict[str, float | None]:
    return {name: score.value if score else None for name, score in scores(policies, weights).items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 109.955094),  # σ(−ln 2) = 1/3, and 3^−2.1 = 0.09955094
        (0.5 ** (1 / 5), 103.405360),  # V⁵ = 1/2: σ = 0.5 / 2.5 = 1/5, and 5^−2.1 = 0.03405360
        (0.9, 104.481716),  # V⁵ = 0.59049: σ = 0.59049 / 2.59049 = 0.22794529, and that ^2.1 = 0.04481716
        (0.5, 100.015591),  # V⁵ = 1/32: σ = 1/65, and 65^−2.1 = 0.00015591
    ],
)
def test_the_published_constants_give_the_values_computed_by_hand(value: float, expected: float) -> None:
    assert hyperscore(value) == pytest.approx(expected, abs=1e-6)


def test_the_best_possible_score_is_a_hundred_times_one_and_a_third_to_the_kappa() -> None:
    assert hyperscore(1.0) == pytest.approx(100 * (1 + 3**-2.1), rel=1e-14)


def test_the_score_falls_to_100_as_the_value_falls_to_0() -> None:
    assert hyperscore(1e-3) == pytest.approx(100.0)
    assert hyperscore(5e-324) == 100.0


def test_a_larger_value_has_a_larger_score() -> None:
    values = [step / 100 for step in range(5, 101)]
    found = [hyperscore(value) for value in values]
    assert all(less < more for less, more in pairwise(found))


@pytest.mark.parametrize("value", [0.0, -0.5, 1.0000001, math.nan, math.inf])
def test_a_value_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match=r"V is .*; expected a number above 0 and up to 1"):
        hyperscore(value)


def test_the_value_is_the_weighted_geometric_mean_of_shares_of_the_best() -> None:
    slow = replace(METRICS, jct_mean_s=200.0, energy_kwh=16.0)
    weights = ScoreWeights(completion_time=3.0, energy=1.0)
    assert score_of(weights, best=[METRICS], slow=[slow]) == pytest.approx(
        {"best": (16 / 20) ** 0.25, "slow": (100 / 200) ** 0.75}
    )


def test_the_worked_example_of_the_documentation_is_right() -> None:
    text = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
    b = replace(METRICS, jct_mean_s=200.0, energy_kwh=16.0)
    found = scores({"A": [METRICS], "B": [b]}, read_score_weights("completion_time = 3\nenergy = 1", ""))
    for name, score in found.items():
        assert score is not None
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert f"= {score.value:.4f} |" in row
        assert row.endswith(f"= {score.score:.3f} |")


def test_the_best_is_taken_seed_by_seed() -> None:
    long = replace(METRICS, jct_mean_s=400.0)
    found = score_of(ScoreWeights(completion_time=1.0), one=[METRICS, long], two=[long, METRICS])
    assert found == pytest.approx({"one": 0.5, "two": 0.5})  # best once, and four times the best once


@pytest.mark.parametrize("part", MEASURED_BY)
def test_doing_worse_by_any_part_costs_value(part: str) -> None:
    measure, sign = MEASURED_BY[part]
    measure = "effective_utilisation" if part == "efficiency" else measure  # it is that over utilisation
    worse = replace(METRICS, **{measure: getattr(METRICS, measure) * (0.5 if sign > 0 else 2.0)})
    weights = replace_weight(part)
    assert score_of(weights, good=[METRICS], worse=[worse]) == pytest.approx({"good": 1.0, "worse": 0.5**0.2})


def replace_weight(part: str) -> ScoreWeights:
    """Equal weights of five parts, this one among them."""
    return EQUAL if EQUAL.shares()[part] else EQUAL.model_copy(update={part: 1.0, "efficiency": 0.0})


def test_throughput_and_efficiency_differ_when_all_jobs_finish() -> None:
    # Twice the makespan for the same work, on the fastest GPUs but mostly idle.
    late = replace(METRICS, throughput_per_h=18.0, effective_utilisation=0.2, utilisation=0.25)
    found = scores({"soon": [METRICS], "late": [late]})["late"]
    assert found is not None
    assert found.parts["throughput"] == pytest.approx(0.5)
    assert found.parts["efficiency"] == pytest.approx(1.0)
    both = ScoreWeights(throughput=1.0, utilisation=1.0)
    again = scores({"soon": [METRICS], "late": [late]}, both)["late"]
    assert again is not None
    assert again.parts["throughput"] == pytest.approx(again.parts["utilisation"])


def test_who_leaves_jobs_over_or_lacks_a_measure_has_no_score_and_is_nobodys_best() -> None:
    lazy = replace(METRICS, jct_mean_s=1.0, unfinished=3)
    none = replace(METRICS, jct_mean_s=None)
    assert score_of(EQUAL, good=[METRICS], lazy=[lazy], none=[none]) == {"good": 1.0, "lazy": None, "none": None}
    assert score_of(ScoreWeights(energy=1.0), none=[none]) == {"none": 1.0}
    assert score_of(EQUAL, lazy=[lazy]) == {"lazy": None}


def test_weights_are_read_from_toml_and_only_their_proportions_matter() -> None:
    weights = read_score_weights("completion_time = 3\nenergy = 1", "w.toml")
    assert weights.shares() == {
        "completion_time": 0.75, "throughput": 0.0, "efficiency": 0.0, "utilisation": 0.0, "fairness": 0.0,
        "energy": 0.25,
    }  # fmt: skip
    assert sum(EQUAL.shares().values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"w\.toml: every weight is 0; expected one above 0 among completion_time"),
        ("energy = 0.0", "every weight is 0"),
        ("energy = -1.0", "'energy' is -1.0; expected a number from 0"),
        ("enrgy = 1.0", "unknown key 'enrgy'. Did you mean 'energy'"),
        ("energy = inf", "'energy' is inf"),
        ("energy = ", "this is not TOML"),
    ],
)
def test_weights_that_mean_nothing_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_score_weights(text, "w.toml")
    assert "\n" not in str(refused.value)
