"""What predictors see, and when: nothing of a job's own end before it has ended."""

import numpy as np
import pytest
from tests.predict.past import METHODS, jobs_of

from adlro.core.tables import Jobs
from adlro.predict.following import TRAIT, Predictor, as_they_came, seconds_of, traits_of


def test_a_job_is_learnt_before_the_first_submission_after_its_end_and_in_the_order_of_the_ends() -> None:
    submit, seconds = np.array([0.0, 1.0, 5.0, 9.0]), np.array([6.5, 2.0, 1.0, 1.0])
    assert as_they_came(submit, seconds).tolist() == [0, 1, ~1, 2, ~2, ~0, 3, ~3]


def test_an_end_at_the_moment_of_a_submission_is_known() -> None:
    assert as_they_came(np.array([0.0, 5.0]), np.array([5.0, 5.0])).tolist() == [0, ~0, 1, ~1]


def test_a_job_that_takes_no_time_is_predicted_before_it_is_learnt() -> None:
    assert as_they_came(np.array([3.0]), np.array([0.0])).tolist() == [0, ~0]


def test_a_wait_before_the_start_delays_what_is_learnt() -> None:
    events = as_they_came(np.array([0.0, 5.0]), np.array([4.0, 4.0]), np.array([2.0, 0.0]))
    assert events.tolist() == [0, 1, ~0, ~1]


def test_traits_hold_neither_work_nor_estimate() -> None:
    jobs = jobs_of(50)
    before = traits_of(jobs)
    jobs.table["estimate"] = 12345.0
    other = Jobs(jobs.table, jobs.work * 3, jobs.families, jobs.users, jobs.names, jobs.allowed)
    assert traits_of(other).tobytes() == before.tobytes()
    assert not {"work", "estimate"} & set(TRAIT.names or ())


def test_a_user_is_the_same_whatever_his_number() -> None:
    one, other = jobs_of(20), jobs_of(20)
    renamed = Jobs(other.table, other.work, other.families, (*other.users, "more"), other.names, other.allowed)
    assert traits_of(one).tobytes() == traits_of(renamed).tobytes()


@pytest.mark.parametrize("name", METHODS)
def test_no_method_reads_the_end_of_a_job_that_has_not_ended(name: str) -> None:
    jobs = jobs_of(400)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    events = as_they_came(traits["submit"], seconds)
    half = len(events) // 2
    open_jobs = sorted(set(range(400)) - {~event for event in events[:half].tolist() if event < 0})
    changed = seconds.copy()
    changed[open_jobs] = 77_777.0
    one, other = (METHODS[name]().follow(traits, truth, events[:half]) for truth in (seconds, changed))
    predicted = sorted(event for event in events[:half].tolist() if event >= 0)
    assert len(predicted) > 100
    np.testing.assert_array_equal(one[predicted], other[predicted])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_predicts_every_job_with_quantiles_in_order(name: str) -> None:
    jobs = jobs_of(300)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    predictor: Predictor = METHODS[name]()
    out = predictor.follow(traits, seconds, as_they_came(traits["submit"], seconds))
    assert np.isfinite(out[:, 1]).all()
    assert (out[:, 1] >= 1.0).all()
    if np.isfinite(out[:, 0]).any():
        assert (out[:, 0] <= out[:, 1]).all()
        assert (out[:, 1] <= out[:, 2]).all()
