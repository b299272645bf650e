"""Exchanges under `plan`, on cases small enough for paper: where all can start, models are shared out by speed alone.

Red runs at a tenth of its speed on a T4, blue at four fifths of it.
"""

import pytest
from tests.decide.conftest import Case, Fate, play, run

from adlro.decide.rules.timelines import MOST_STARTS

V100, T4 = "v100", "t4"
SPEEDS = {"red": {V100: 1.0, T4: 0.1}, "blue": {V100: 1.0, T4: 0.8}}
RED, BLUE = {"family": "red"}, {"family": "blue"}


def test_a_job_leaves_the_fast_gpu_to_a_longer_one_that_loses_more_on_the_slow_one() -> None:
    # At 10 blue has 990 left. It pays 1 and takes 990 / 0.8 on the T4. Red, which is longer, never waits.
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (10, 2000, 1, RED)], SPEEDS, restart_s=1.0)
    assert run(case, "plan") == {0: Fate(0, 1, 1248.5, stops=1), 1: Fate(10, 0, 2010)}


def test_the_exchange_ends_with_the_shorter_of_the_two() -> None:
    # Red ends at 510. Until then blue has done 10 + 499 · 0.8 = 409.2; it goes back, pays 1 and does its last 590.8.
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (10, 500, 1, RED)], SPEEDS, restart_s=1.0)
    fates = run(case, "plan")
    assert fates[1] == Fate(10, 0, 510)
    assert (fates[0].site, fates[0].stops) == (0, 2)
    assert fates[0].finish == pytest.approx(1101.8)


GANG_WAITS = [(0, 1000, 1, BLUE), (1, 100, 1, BLUE), (1, 100, 1, BLUE), (5, 9000, 2, BLUE), (10, 2000, 1, RED)]
"""Jobs 1 and 2 hold two of three T4s until 126. The gang waits for them; red runs on the third T4 meanwhile."""


def test_two_running_jobs_exchange_their_models() -> None:
    # At 126 the gang starts and nobody waits any more. Job 0 has 874 left, pays 1 and takes 874 / 0.8 on the T4. Red
    # has done a tenth of 116; it pays 1 and does the rest on the V100.
    fates = run(Case([(V100, 1), (T4, 1), (T4, 1), (T4, 1)], GANG_WAITS, SPEEDS, restart_s=1.0), "plan")
    assert (fates[0].stops, fates[4].stops) == (1, 1)
    assert fates[0].finish == pytest.approx(1219.5)
    assert fates[4].finish == pytest.approx(2115.4)
    assert fates[4].site == 0


@pytest.mark.parametrize(("of_second", "stops"), [(0.77, 0), (0.75, 1)])
def test_an_exchange_must_bring_more_than_the_charge(of_second: float, stops: int) -> None:
    # The product of the speeds grows by ln(0.8 / 0.77) = 0.038 or ln(0.8 / 0.75) = 0.065; the charge of the one that
    # is stopped is 0.05 + 2 · 1 / 990 = 0.052.
    speeds = {**SPEEDS, "red": {V100: 1.0, T4: of_second}}
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (10, 2000, 1, RED)], speeds, restart_s=1.0)
    first = run(case, "plan")[0]
    assert (first.stops > 0) == bool(stops)


@pytest.mark.parametrize(("budget", "stops"), [("", 3), ("+stops(40)", 3), ("+stops(4)", 2)])
def test_a_job_that_has_used_up_much_of_its_budget_is_charged_more(budget: str, stops: int) -> None:
    # Job 0 leaves the V100 for job 1, which runs nowhere else, and comes back. For job 2 the product of the speeds
    # would grow by ln(0.8 / 0.6) = 0.29. If 2 of 4 stops are used up, the charge is 1.25/4 and more.
    speeds = {**SPEEDS, "red": {V100: 1.0, T4: 0.6}, "picky": {V100: 1.0, T4: 0.0}}
    jobs = [(0, 1000, 1, BLUE), (10, 40, 1, {"family": "picky"}), (200, 2000, 1, RED)]
    fates = run(Case([(V100, 1), (T4, 1)], jobs, speeds, restart_s=1.0), f"plan{budget}")
    assert fates[0].stops == stops


def test_of_waiting_jobs_the_one_that_loses_more_on_the_slow_gpu_gets_the_fast_one() -> None:
    # Nobody has run yet, so nothing is charged, and nobody has to be stopped.
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (0, 1300, 1, RED)], SPEEDS, restart_s=1.0)
    assert run(case, "plan") == {0: Fate(0, 1, 1250), 1: Fate(0, 0, 1300)}


def test_models_are_not_shared_out_while_a_gang_over_several_nodes_waits() -> None:
    # Job 4 comes at 10. Job 0 stays on the V100 until the gang has started, at 126.
    events = play(Case([(V100, 1), (T4, 1), (T4, 1), (T4, 1)], GANG_WAITS, SPEEDS, restart_s=1.0), "plan").events
    assert [time for time, what, job, _ in events if what == "stop" and job == 0] == [126]


def test_models_are_not_shared_out_while_a_job_waits_that_runs_for_less_than_ten_restarts() -> None:
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (10, 2000, 1, RED)], SPEEDS, restart_s=250.0)
    assert run(case, "plan")[0] == Fate(0, 0, 1000)


def test_models_are_not_shared_out_while_a_job_waits_that_may_not_be_stopped_again() -> None:
    # Red waits for the V100 instead of starting on the T4, where it would stay.
    case = Case([(V100, 1), (T4, 1)], [(0, 1000, 1, BLUE), (10, 2000, 1, RED)], SPEEDS, restart_s=1.0)
    assert run(case, "plan+stops(0)") == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 3000)}


def test_a_job_is_exchanged_less_and_less() -> None:
    # Ten thousand seconds of pink against many short jobs that lose a little more: ln(0.9 / 0.6) = 0.41 is more than
    # 0.05 + 0.0005 · n² for its first 26 restarts.
    speeds = {"pink": {V100: 1.0, T4: 0.9}, "grey": {V100: 1.0, T4: 0.6}}
    short = [(100.0 * number, 50, 1, {"family": "grey"}) for number in range(1, 41)]
    case = Case([(V100, 1), (T4, 1)], [(0, 10_000, 1, {"family": "pink"}), *short], speeds, restart_s=0.01)
    fates = run(case, "plan")
    assert 20 < fates[0].stops < 30 < MOST_STARTS
    assert (fates[1].site, fates[40].site) == (0, 1)
