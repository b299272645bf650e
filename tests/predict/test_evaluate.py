"""Predictions put together: the evaluation's numbers, one job against a history, and the figure."""

import importlib.util

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.core.errors import ConfigError, UsageError
from adlro.measure.drawing import svg
from adlro.measure.plots_unbinding import unbinding_figure
from adlro.predict import evaluate as prediction
from adlro.predict.following import seconds_of, traits_of


def test_the_errors_are_those_of_a_sum_by_hand() -> None:
    predicted = np.array([[5.0, 10.0, 20.0], [50.0, 100.0, 110.0], [1.0, 2.0, 3.0]])
    found = prediction.prediction_errors(predicted, np.array([20.0, 200.0, 0.0]))
    assert found["median_relative_error"] == pytest.approx(0.5)
    assert found["mean_log_error"] == pytest.approx(np.log(2.0))
    assert found["interval_coverage"] == pytest.approx(2 / 3)


def test_a_method_without_an_interval_has_no_coverage() -> None:
    found = prediction.prediction_errors(np.array([[np.nan, 10.0, np.nan]]), np.array([10.0]))
    assert found["interval_coverage"] is None


def test_habits_predict_jobs_that_have_habits_better_than_every_simple_method() -> None:
    methods = [prediction.find_method(name) for name in ("habits", "limit", "last-two", "running-median")]
    found = prediction.evaluate(jobs_of(1500), methods)
    for measure in ("median_relative_error", "mean_log_error"):
        values = {name: row[measure] or 0.0 for name, row in found.items()}
        assert min(values, key=values.__getitem__) == "habits"


def test_one_job_is_predicted_from_jobs_of_the_same_user_and_program() -> None:
    history = jobs_of(500)
    asked = prediction.AskedJob(user="ann", name="train", gpus=2, limit_s=7200.0)
    for method in ("habits", "memory"):
        found = prediction.predict_one(history, asked, prediction.find_method(method))
        assert found.learnt == 500
        assert found.p50_s == pytest.approx(3600.0, rel=0.2)
        assert found.p10_s is not None
        assert found.p90_s is not None
        assert found.p10_s <= found.p50_s <= found.p90_s
        assert [(one.user, one.name, one.gpus) for one in found.like] == [("ann", "train", 2)] * 5


def test_a_job_asked_for_in_the_past_is_predicted_from_what_had_ended_by_then() -> None:
    history = jobs_of(500)
    end = traits_of(history)["submit"] + seconds_of(history)
    moment = float(np.median(end))
    asked = prediction.AskedJob(user="ann", name="train", gpus=2, submit_s=moment)
    found = prediction.predict_one(history, asked, prediction.find_method("habits"))
    assert found.learnt == np.count_nonzero(end <= moment)
    assert all(one.submit_s + one.runtime_s <= moment for one in found.like)


def test_what_is_seen_of_an_asked_job_is_what_is_seen_of_the_same_job_in_a_trace() -> None:
    history = jobs_of(1)
    row = history.table[0]
    asked = prediction.AskedJob(
        user=history.users[row.user], name=history.names[row.group], gpus=int(row.gpus), limit_s=float(row.limit)
    )
    assert prediction.traits_of_one(asked, float(row.submit)).tobytes() == traits_of(history).tobytes()


def test_an_unknown_method_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="Did you mean 'habits'"):
        prediction.find_method("habit")


def test_a_method_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package lightgbm"):
        prediction.find_method("lightgbm")


def test_a_misspelt_key_of_a_job_is_named() -> None:
    with pytest.raises(ConfigError, match=r"job\.toml: unknown key 'gpu'\. Did you mean 'gpus'"):
        prediction.read_job("gpu = 1\n", "job.toml")


def test_the_figure_of_unbinding_is_drawn() -> None:
    table = {size: [(1, 1.0), (8, 0.9), (64, 0.2)] for size in prediction.DIMENSIONS_TRIED}
    assert "pairs of role and filler" in svg(unbinding_figure(table), 720)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit_s = nan", "'limit_s' is nan; expected a number above 0"),
        ("limit_s = -5", "'limit_s' is -5; expected a number above 0"),
        ('limit_s = "2h"', "'limit_s' is '2h'; expected a number above 0 .* in seconds, as in limit_s = 7200"),
        ("submit_s = -1", "'submit_s' is -1; expected a number from 0"),
        ("submit_s = inf", "'submit_s' is inf; expected a number from 0"),
        ("models = 3", "'models' is 3; expected a list"),
    ],
)
def test_a_wrong_amount_of_an_asked_job_says_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prediction.read_job(text, "job.toml")
