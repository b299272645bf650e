"""Runtimes from habits: what repeats is known, old keys make room, and the interval covers what it promises."""

from pathlib import Path

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.core.errors import UsageError
from adlro.predict.following import P10, P50, P90, as_they_came, seconds_of, traits_of
from adlro.predict.habits import PROBES, Habits


def test_programs_that_run_alike_are_told_apart_within_their_noise() -> None:
    jobs = jobs_of(2000)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    out = Habits.new(1 << 10).follow(traits, seconds, as_they_came(traits["submit"], seconds))
    late = slice(500, None)
    assert np.median(np.abs(out[late, P50] - seconds[late]) / seconds[late]) < 0.1


@pytest.mark.parametrize("noise", [0.05, 0.5, 2.0])
def test_eight_in_ten_jobs_lie_in_the_interval_whatever_the_noise(noise: float) -> None:
    jobs = jobs_of(5000, noise)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    out = Habits.new(1 << 10).follow(traits, seconds, as_they_came(traits["submit"], seconds))
    late = slice(1000, None)
    inside = np.mean((out[late, P10] <= seconds[late]) & (seconds[late] <= out[late, P90]))
    assert 0.75 < inside < 0.85


def test_a_program_that_changes_is_followed() -> None:
    jobs = jobs_of(400)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    seconds[200:] /= 20
    out = Habits.new(1 << 10).follow(traits, seconds, as_they_came(traits["submit"], seconds))
    late = slice(320, None)
    assert np.median(np.abs(np.log(out[late, P50] / seconds[late]))) < 0.3


def test_a_prediction_never_exceeds_the_limit() -> None:
    jobs = jobs_of(300)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    seconds *= 1000
    out = Habits.new(1 << 10).follow(traits, seconds, as_they_came(traits["submit"], seconds / 1000))
    assert (out[:, P50] <= traits["limit"] * (1 + 1e-9)).all()


def test_with_nothing_learnt_the_limit_is_the_prediction() -> None:
    jobs = jobs_of(3)
    traits = traits_of(jobs)
    out = Habits.new(16).follow(traits, seconds_of(jobs), np.arange(3))
    np.testing.assert_allclose(out[:, P50], traits["limit"])


def test_more_keys_than_there_is_room_for_replace_the_oldest_ones() -> None:
    jobs = jobs_of(600)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    traits["user"] = traits["group"] = np.arange(1, 601, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    habits = Habits.new(PROBES)
    habits.follow(traits, seconds, ~np.arange(600))
    known = habits.state.touched[6]
    assert sorted(known.tolist()) == list(range(600 - PROBES + 1, 601))


def test_what_was_saved_predicts_the_same(tmp_path: Path) -> None:
    jobs = jobs_of(300)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    habits = Habits.new(1 << 8)
    habits.follow(traits, seconds, as_they_came(traits["submit"], seconds))
    habits.save(tmp_path / "habits.npz")
    again = Habits.load(tmp_path / "habits.npz")
    asked = np.arange(300)
    np.testing.assert_array_equal(again.follow(traits, seconds, asked), habits.follow(traits, seconds, asked))


def test_a_file_that_holds_no_habits_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no arrays")
    with pytest.raises(UsageError, match="cannot read the habits"):
        Habits.load(tmp_path / "x.npz")
