"""The expected runtime: a mean over jobs alike, those that still run counted in."""

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.core.tables import Floats, Table
from adlro.predict import expected
from adlro.predict.expected import DECAY, LEVELS, PRIOR
from adlro.predict.following import Events, as_they_came, seconds_of, traits_of


def expectations(traits: Table, seconds: Floats, events: Events) -> Floats:
    """What was expected of each job, in this order of events."""
    out = np.full(len(traits), np.nan)
    expected.follow(expected.empty(1 << 8), traits, seconds, events, out)
    return out


def alike(count: int, seconds: float = 360.0, limit: float = 3600.0) -> tuple[Table, Floats]:
    """Jobs of one user and program with one limit, a minute apart."""
    jobs = jobs_of(count)
    jobs.table[:] = jobs.table[0]
    jobs.table["limit"], jobs.table["submit"] = limit, 60.0 * np.arange(count)
    return traits_of(jobs), np.full(count, seconds)


def test_with_nothing_seen_it_is_the_limit() -> None:
    traits, seconds = alike(1)
    assert expectations(traits, seconds, np.array([0]))[0] == 3600.0


def test_one_job_that_ran_a_tenth_of_its_limit_moves_each_level_by_its_share() -> None:
    traits, seconds = alike(2)
    out = expectations(traits, seconds, np.array([0, ~0, 1]))
    share = 1.0
    for _ in range(LEVELS):
        share = (0.1 + PRIOR * share) / (1.0 + PRIOR)
    assert out[1] == pytest.approx(3600.0 * share)


def test_many_jobs_that_ran_alike_are_expected_to_go_on_so() -> None:
    traits, seconds = alike(600)
    out = expectations(traits, seconds, as_they_came(traits["submit"], seconds))
    assert out[-1] == pytest.approx(360.0, rel=0.05)
    assert 0.9 < DECAY < 1.0


def test_jobs_that_still_run_raise_what_is_expected_of_the_next() -> None:
    traits, seconds = alike(4)
    ended = expectations(traits, seconds, np.array([0, ~0, 3]))[3]
    traits["submit"][3] = 60.0 + 7200.0
    one_runs = expectations(traits, seconds, np.array([0, 1, ~0, 3]))[3]
    two_run = expectations(traits, seconds, np.array([0, 1, 2, ~0, 3]))[3]
    assert ended < one_runs < two_run


def test_it_learns_the_mean_and_not_the_median() -> None:
    traits, _ = alike(2000)
    seconds = np.where(np.arange(2000) % 10 == 0, 3000.0, 30.0)
    out = expectations(traits, seconds, as_they_came(traits["submit"], seconds))
    assert out[-500:].mean() == pytest.approx(seconds.mean(), rel=0.25)


def test_jobs_without_a_limit_learn_where_they_begin() -> None:
    traits, seconds = alike(600, 50.0, np.inf)
    out = expectations(traits, seconds, as_they_came(traits["submit"], seconds))
    assert out[-1] == pytest.approx(50.0, rel=0.05)


def test_programs_are_told_apart_and_what_ends_leaves_nothing_running() -> None:
    jobs = jobs_of(3000, 0.1)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    state, out = expected.empty(1 << 8), np.full(3000, np.nan)
    expected.follow(state, traits, seconds, as_they_came(traits["submit"], seconds), out)
    late = slice(1000, None)
    assert np.median(np.abs(np.log(out[late] / seconds[late]))) < 0.3
    np.testing.assert_allclose(state.pace, 0.0, atol=1e-9)
