"""Statistics by hand, against the libraries, and on worlds where the truth is known."""

import json
import re
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.cli.app import run
from adlro.core.errors import UsageError
from adlro.core.tables import Floats
from adlro.experiment.instance import draw, offered_load
from adlro.experiment.scenario import load_scenario
from adlro.measure.statistics import (
    LEVEL,
    MOST_RESAMPLED,
    Against,
    Observation,
    against,
    cliffs_delta,
    fewest_seeds,
    holm,
    interval_of_mean,
    interval_of_ratio,
    mean_intervals,
    regress,
    verdict,
    wilcoxon_p,
)

WORLDS = 500
SEEDS = 12
POLICIES = ("base", "one", "two", "three")


def array(*values: float) -> Floats:
    return np.array(values, np.float64)


def one_measure(**policies: Sequence[float | None]) -> dict[str, dict[str, Sequence[float | None]]]:
    return {name: {"jct": values} for name, values in policies.items()}


def found_against(ours: Sequence[float | None], base: Sequence[float | None]) -> Against | None:
    return against(one_measure(base=base, ours=ours), "base")["ours"]["jct"]


def certainly(found: Against | None) -> Against:
    assert found is not None
    return found


def worlds(planted: float, seed: int) -> dict[str, dict[str, list[float | None]]]:
    """Many worlds, each a measure: policies with log-normal JCTs that rise and fall together from seed to seed.

    The policy "one" is shorter by the planted share; the others are as good as the baseline.
    """
    rng = np.random.default_rng(seed)
    shared = rng.lognormal(0.0, 0.5, (WORLDS, SEEDS))
    values = {name: 100.0 * shared * rng.lognormal(0.0, 0.02, shared.shape) for name in POLICIES}
    values["one"] *= 1.0 - planted
    return {name: {str(world): row.tolist() for world, row in enumerate(table)} for name, table in values.items()}


def share_called_different(planted: float, policies: Sequence[str]) -> float:
    """In how many worlds at least one of these policies is called different from the baseline."""
    found = against(worlds(planted, 7), "base")
    return float(np.mean([any(certainly(found[p][str(w)]).significant for p in policies) for w in range(WORLDS)]))


# ---- tests of the tests ------------------------------------------------------------------------------------------


def test_without_a_true_difference_false_alarms_are_no_more_frequent_than_stated() -> None:
    slack = 3 * (LEVEL * (1 - LEVEL) / WORLDS) ** 0.5
    assert share_called_different(0.0, ["one", "two", "three"]) <= LEVEL + slack


def test_a_planted_difference_of_5_percent_is_found_and_no_other() -> None:
    assert share_called_different(0.05, ["one"]) > 0.95
    slack = 3 * (LEVEL * (1 - LEVEL) / WORLDS) ** 0.5
    assert share_called_different(0.05, ["two", "three"]) <= LEVEL + slack


def test_intervals_of_differences_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    interval = interval_of_mean(rng.exponential(1.0, (WORLDS, 30)))
    inside = np.mean((interval[:, 0] <= 1.0) & (interval[:, 1] >= 1.0))
    assert 0.90 <= inside <= 0.98  # a bootstrap of 30 skewed values is known to fall a little short of 95 %


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_cliffs_delta_counts_pairs_above_less_pairs_below() -> None:
    assert cliffs_delta(array(1, 2, 3), array(4, 5)) == -1.0
    assert cliffs_delta(array(4, 5), array(1, 2, 3)) == 1.0
    assert cliffs_delta(array(1, 2), array(1, 2)) == 0.0
    # Of the pairs of 1, 3, 3 with 2, 3 two are above (3 > 2 twice), two below (1 < 2, 1 < 3) and two equal.
    assert cliffs_delta(array(1, 3, 3), array(2, 3)) == 0.0
    assert cliffs_delta(array(3, 3, 3, 1), array(2, 2)) == 0.5


def test_holm_multiplies_the_smallest_p_by_all_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_is_that_of_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    p = np.random.default_rng(1).uniform(0, 0.2, 15).round(2).tolist()  # rounded, so that some are equal
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())


def test_the_signed_rank_test_of_a_constant_winner_is_two_in_two_to_the_n() -> None:
    found = certainly(found_against([1.0, 2.1, 3.3, 4.6, 6.0, 7.5], [2.0, 3.3, 4.8, 6.5, 8.5, 11.0]))
    assert found.wilcoxon_p == pytest.approx(2 / 2**6)
    assert found.difference == pytest.approx(-11.6 / 6)
    assert found.relative == pytest.approx(-11.6 / 36.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.difference < found.high < 0
    assert (found.verdict, found.significant) == ("different", True)


def test_rows_with_ties_and_zeros_leave_the_exact_p_of_other_rows_alone() -> None:
    plain, tied, same = array(1, 2, -3, 4, 5, 6), array(1, 1, 1, 1, 0, -1), np.zeros(6)
    together = wilcoxon_p(np.stack([plain, tied, same]))
    assert together[0] == wilcoxon_p(plain[None])[0] == pytest.approx(2 * 5 / 2**6)  # W = 3: {}, 1, 2, 3, 1+2
    assert together[1] == pytest.approx(2 * 6 / 2**5)  # four or five of five signs alike
    assert together[2] == 1.0


def test_holm_is_over_the_policies_of_one_measure() -> None:
    better, base = [9.0, 18.5, 27.0, 37.1, 44.0, 55.7, 61.0, 72.6], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    alone = certainly(found_against(better, base))
    three = against(one_measure(base=base, ours=better, twin=base, other=base[::-1]), "base")
    assert alone.wilcoxon_p_holm == alone.wilcoxon_p == pytest.approx(2 / 2**8)
    assert certainly(three["ours"]["jct"]).wilcoxon_p_holm == pytest.approx(3 * 2 / 2**8)
    assert certainly(three["twin"]["jct"]).verdict == "no difference shown"
    assert "base" not in three


def test_too_few_seeds_is_said_below_the_number_that_could_show_anything() -> None:
    assert [fewest_seeds(policies) for policies in (1, 2, 7)] == [6, 7, 9]
    for policies in (1, 2, 7, 30):
        enough = fewest_seeds(policies)
        assert policies * 2 / 2**enough <= LEVEL < policies * 2 / 2 ** (enough - 1)
    assert verdict(0.001, 5, 1) == "too few seeds"
    assert certainly(found_against([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])).verdict == "too few seeds"


def test_the_same_values_are_no_difference() -> None:
    found = certainly(found_against([1.0, 5.0, 2.0, 7.0, 3.0, 4.0], [1.0, 5.0, 2.0, 7.0, 3.0, 4.0]))
    assert astuple(found) == (0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, "no difference shown", 0.0, 0.0)


def test_the_last_bit_of_a_sum_is_no_difference() -> None:
    base = [0.1 * seed for seed in range(1, 11)]
    assert certainly(found_against([value * (1 - 1e-15) for value in base], base)).verdict == "no difference shown"


def test_a_constant_difference_is_found_without_a_t_test() -> None:
    found = certainly(found_against([float(seed) for seed in range(8)], [seed + 1.0 for seed in range(8)]))
    assert (found.low, found.high, found.t_p, found.verdict) == (-1.0, -1.0, None, "different")


def test_one_seed_has_a_difference_and_nothing_to_judge_it_by() -> None:
    assert astuple(certainly(found_against([3.0], [4.0]))) == (
        -1.0, None, None, -0.25, None, None, None, -1.0, "too few seeds", None, None,
    )  # fmt: skip


def test_a_measure_without_a_value_on_some_seed_has_no_difference_and_no_interval() -> None:
    assert found_against([1.0, None], [1.0, 2.0]) is None
    assert found_against([1.0, 3.0], [None, 2.0]) is None
    assert mean_intervals(one_measure(ours=[1.0, None], one=[2.0])) == {"ours": {"jct": None}, "one": {"jct": None}}


def test_the_interval_of_a_mean_does_not_depend_on_what_else_is_measured() -> None:
    rng = np.random.default_rng(0)
    rows = rng.exponential(1.0, (40, 10))
    together = interval_of_mean(rows)
    assert together[5].tolist() == pytest.approx(interval_of_mean(rows[5:6])[0].tolist())
    assert ((together[:, 0] < rows.mean(axis=1)) & (rows.mean(axis=1) < together[:, 1])).all()


def test_a_constant_has_an_interval_of_no_width() -> None:
    assert interval_of_mean(np.full((1, 5), 3.0)).tolist() == [[3.0, 3.0]]


def test_with_many_seeds_the_interval_goes_on_where_the_bootstrap_ends() -> None:
    values = np.random.default_rng(0).normal(10.0, 1.0, (1, MOST_RESAMPLED + 1))
    few, many = interval_of_mean(values[:, 1:])[0], interval_of_mean(values)[0]
    assert few.tolist() == pytest.approx(many.tolist(), abs=0.02)


# ---- regression --------------------------------------------------------------------------------------------------


def observations(count: int, noise: float = 0.0, queue: float | None = None) -> list[Observation]:
    rng = np.random.default_rng(5)
    rows = []
    for utilisation, length, load in zip(*rng.uniform(0.2, 0.9, (3, count)).tolist(), strict=True):
        length = 10 * length if queue is None else queue
        jct = 100 + 50 * utilisation + 7 * length - 20 * load + noise * rng.normal()
        rows.append(Observation(jct, utilisation, length, load))
    return rows


def test_a_regression_finds_the_coefficients_it_was_made_from() -> None:
    found = regress(observations(20))
    values = {name: each.value for name, each in found.coefficients.items()}
    assert values == pytest.approx({"constant": 100, "utilisation": 50, "queue_length": 7, "load": -20})
    assert (found.observations, found.left_out) == (20, ())
    assert found.r_squared == pytest.approx(1.0)


def test_intervals_of_a_regression_hold_the_truth_and_residuals_are_what_is_left() -> None:
    rows = observations(60, noise=2.0)
    found = regress(rows)
    for name, truth in {"utilisation": 50, "queue_length": 7, "load": -20}.items():
        assert found.coefficients[name].low < truth < found.coefficients[name].high
    assert 0.5 < found.r_squared_adjusted < found.r_squared < 1.0
    sums = [fitted + rest for fitted, rest in zip(found.fitted, found.residuals, strict=True)]
    assert sums == pytest.approx([row.completion_time_s for row in rows])


def test_errors_of_a_regression_are_those_of_hc3() -> None:
    rows = [Observation(row.completion_time_s * (1 + row.load), *astuple(row)[1:]) for row in observations(25, 2.0)]
    design = np.array([(1.0, *astuple(row)[1:]) for row in rows])
    inverse = np.linalg.inv(design.T @ design)
    found = regress(rows)
    leverage = np.einsum("ni,ij,nj->n", design, inverse, design)
    weight = (np.array(found.residuals) / (1 - leverage)) ** 2
    error = np.sqrt(np.diag(inverse @ (design.T * weight) @ design @ inverse))
    reach = [each.high - each.value for each in found.coefficients.values()]
    assert reach == pytest.approx((2.0796138 * error).tolist())  # Student's t with 25 - 4 degrees of freedom, 97.5 %


def test_a_regressor_that_does_not_vary_or_repeats_another_is_left_out() -> None:
    assert regress(observations(20, queue=0.0)).left_out == ("queue_length",)
    twice = [Observation(row.completion_time_s, row.load, row.queue_length, row.load) for row in observations(20)]
    assert regress(twice).left_out == ("load",)


def test_a_regression_on_a_handful_of_seeds_is_refused() -> None:
    with pytest.raises(UsageError, match=r"has 7 seeds .* at least 8.*--seeds"):
        regress(observations(7))


# ---- as `adlro compare` shows them -------------------------------------------------------------------------------

COMPARE = ["compare", "--policies", "fcfs,sjf,srtf", "--jobs", "40"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*COMPARE, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_compare_says_how_sure_each_difference_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--seeds", "8", "--baseline", "sjf", "--regression")
    policies = found["policies"]
    assert found["baseline"] == "sjf"
    assert policies["sjf"]["against"] is None
    difference = policies["fcfs"]["against"]["jct_mean_s"]
    assert difference["difference"] == pytest.approx(policies["fcfs"]["jct_mean_s"] - policies["sjf"]["jct_mean_s"])
    assert difference["interval"][0] <= difference["difference"] <= difference["interval"][1]
    assert difference["significant"] == (difference["wilcoxon_p_holm"] <= LEVEL)
    low, high = policies["sjf"]["bootstrap"]["jct_mean_s"]
    assert low < policies["sjf"]["jct_mean_s"] < high
    assert 100 < policies["srtf"]["hyperscore"]["score"] < 110
    assert set(found["regression"]) == {"fcfs", "sjf", "srtf"}
    assert len(found["regression"]["sjf"]["residuals"]) == len(found["load"]) == 8


def test_the_table_marks_differences_and_says_where_none_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMPARE, "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^sjf .* [−+][\d.]+ % \? ", out, re.MULTILINE)
    assert "? too few seeds: 2 policies against fcfs need at least 7." in out
    assert run(["compare", "--policies", "fcfs,random,srtf", "--seeds", "10", "--jobs", "300"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^srtf .* −[\d.]+ % \* ", out, re.MULTILINE)
    assert "* mean JCT differs from that of fcfs" in out
    assert run(["compare", "--policies", "fcfs,fcfs-easy", "--seeds", "6", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^fcfs-easy .* % · ", out, re.MULTILINE)
    assert "· no difference shown." in out


def test_compare_shows_scores_by_the_users_weights_and_the_regression(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    weights = tmp_path / "weights.toml"
    weights.write_text("completion_time = 3\nenergy = 1\n")
    assert run([*COMPARE, "--seeds", "8", "--hyperscore", str(weights), "--regression"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +Score +× 0\.75 +× 0\.25", out, re.MULTILINE)
    assert "Mean JCT by utilisation, queue length and load" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "sjff"], "the baseline 'sjff' is not among the policies compared. Did you mean 'sjf'?"),
        (["--regression", "--seeds", "3"], "--regression with 3 seeds; expected at least 8"),
        (["--hyperscore", "nowhere.toml"], "cannot read the weights file 'nowhere.toml'"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMPARE, *words]) != 0
    shown = capsys.readouterr()
    assert (shown.out, message in shown.err) == ("", True)


def test_the_offered_load_is_work_at_its_fastest_over_what_the_gpus_can_do_meanwhile() -> None:
    instance = draw(load_scenario("paper16", "paper", 50), 0)
    table = instance.jobs.table
    fastest = instance.view.rate.max(axis=1)
    needed = sum(
        work / fastest[job["kind"]] * job["gpus"] * job["share"] / 1000
        for job, work in zip(table, instance.jobs.work, strict=True)
    )
    assert offered_load(instance) == pytest.approx(needed / (16 * (table["submit"][-1] - table["submit"][0])))


# ---- ratios ------------------------------------------------------------------------------------------------------


def test_no_interval_of_a_ratio_of_times_reaches_below_minus_100_percent() -> None:
    base, ours = [2.0, 3.0, 2.0, 4.0, 90.0, 3.0, 2.0, 5.0], [1.0, 1.5, 1.0, 2.0, 4.0, 1.5, 1.0, 2.5]
    found = certainly(found_against(ours, base))
    assert (found.low or 0.0) / np.mean(base) < -1  # what the difference over a mean that is taken for exact comes to
    low, high = found.relative_low or 0.0, found.relative_high or 0.0
    assert -1 < low <= (found.relative or 0.0) <= high < 0


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    theirs = rng.lognormal(0.0, 0.4, (300, 40))
    ours = 0.8 * theirs * rng.lognormal(0.0, 0.1, theirs.shape) / np.exp(0.005)
    found = interval_of_ratio(ours, theirs)
    assert 0.90 <= np.mean((found[:, 0] <= -0.2) & (found[:, 1] >= -0.2)) <= 0.98


def test_many_seeds_have_the_same_interval_of_a_ratio_by_both_ways() -> None:
    rng = np.random.default_rng(6)
    theirs = rng.lognormal(0.0, 0.4, (1, MOST_RESAMPLED + 1))
    ours = theirs * rng.lognormal(-0.2, 0.3, theirs.shape)
    plain, drawn = interval_of_ratio(ours, theirs)[0], interval_of_ratio(ours[:, 1:], theirs[:, 1:])[0]
    assert plain == pytest.approx(drawn, abs=0.01)


def test_ratios_that_do_not_vary_or_are_not_defined_have_no_width_or_no_interval() -> None:
    same = certainly(found_against([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]))
    assert (same.relative_low, same.relative_high) == pytest.approx((-0.5, -0.5))
    none = certainly(found_against([1.0, 2.0, 3.0], [0.0, 4.0, 6.0]))
    assert (none.relative_low, none.relative_high) == (None, None)
    assert certainly(found_against([1.0], [2.0])).relative_low is None
