"""`plan` on cases small enough for paper. Where nothing is said of speed it is 1; T4s have a quarter of it."""

import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.decide.rules.timelines import MOST_STARTS

V100, T4 = "v100", "t4"
SLOW_T4 = {"any": {V100: 1.0, T4: 0.25}}


def test_a_short_job_takes_the_place_of_a_long_one() -> None:
    # At 20 job 1 would end at 1010 without a stop. With it: 30, and a loss of 10/4 + 5 · (1 + 1) for job 0.
    # Job 0 goes on at 30, pays 5 and does its last 980.
    case = Case([(V100, 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert run(case, "plan") == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


def test_nobody_is_stopped_who_would_end_before_the_other_job_and_a_restart() -> None:
    # Job 0 has 30 left at 20. Job 1 takes 10, a restart 20: 30 is not more.
    case = Case([(V100, 1)], [(0, 50), (20, 10)], restart_s=20.0)
    assert run(case, "plan") == {0: Fate(0, 0, 50), 1: Fate(50, 0, 60)}


@pytest.mark.parametrize(("restart_s", "stops"), [(9.0, 1), (10.0, 0)])
def test_a_stop_must_bring_more_than_it_costs(restart_s: float, stops: int) -> None:
    # At 60 both running jobs have 40 left. The gang would end at 80 instead of 120: it gains 40. Each of the two loses
    # 20/4 + 1.5 restarts (one job waits for two GPUs): together 37 or 40.
    case = Case([(V100, 2)], [(0, 100), (0, 100), (60, 40, 2)], restart_s=restart_s)
    fates = run(case, "plan")
    assert [fates[job].stops for job in range(3)] == [stops, stops, 0]
    assert fates[2].start == (60 if stops else 100)


def test_no_more_jobs_are_stopped_than_are_in_the_way() -> None:
    # One GPU is free on the second node, so one of the jobs there is enough; the first node would need two.
    case = Case([(V100, 2), (V100, 3)], [(0, 1000), (0, 1000), (0, 1000), (0, 1000), (10, 20, 2)], restart_s=1.0)
    fates = run(case, "plan")
    assert sum(fate.stops for fate in fates.values()) == 1
    assert fates[4] == Fate(10, 1, 20)


def test_a_gang_over_two_nodes_takes_the_places_of_as_many_jobs_as_it_needs() -> None:
    # Job 1 frees one node, the other is half free already: 3 GPUs together. Job 0 goes on.
    case = Case([(V100, 2), (V100, 2)], [(0, 1000), (0, 4000, 2), (10, 30, 3)], restart_s=1.0)
    assert run(case, "plan") == {0: Fate(0, 0, 1000), 1: Fate(0, 1, 2011, stops=1), 2: Fate(10, 1, 20)}


def test_a_job_runs_on_a_slow_gpu_meanwhile_and_moves_to_the_fast_one() -> None:
    # Job 1 would end at 300 on the V100, which is free from 100 on, and at 800 on the T4. Until 100 it gets a quarter
    # of 100 done on the T4. Then it pays 5 and does its last 175 on the V100: 280.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], SLOW_T4, restart_s=5.0)
    assert run(case, "plan") == {0: Fate(0, 0, 100), 1: Fate(0, 0, 280, stops=1)}


def test_a_move_must_be_worth_the_restart() -> None:
    # A quarter of 100 is less than one restart of 30: job 1 waits for the V100.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], SLOW_T4, restart_s=30.0)
    assert run(case, "plan") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 300)}


def test_a_long_job_leaves_the_fast_gpu_to_those_who_need_it_more() -> None:
    # Blue runs as fast on the T4, red does not. The one blue job is the shortest and would take the V100 as well as
    # the T4: it takes the T4, because the red ones want the V100.
    speeds = {"red": {V100: 1.0, T4: 0.1}, "blue": {V100: 1.0, T4: 0.99}}
    red, blue = {"family": "red"}, {"family": "blue"}
    case = Case([(V100, 1), (T4, 1)], [(0, 100, 1, blue), (0, 200, 1, red), (0, 200, 1, red)], speeds)
    fates = run(case, "plan")
    assert fates[0].site == 1
    assert (fates[1].start, fates[1].site) == (0, 0)


def test_gpus_beside_cores_that_are_taken_are_not_waited_for_idly() -> None:
    # The first node has a free GPU and no cores. Job 1 goes to the other node at once.
    case = Case([(V100, 2, 4), (V100, 1, 4)], [(0, 100, 1, {"cpus": 4.0}), (0, 50, 1, {"cpus": 4.0})])
    assert {fate.start for fate in run(case, "plan").values()} == {0}


def test_a_job_on_a_share_of_a_gpu_is_not_stopped() -> None:
    case = Case([(V100, 1)], [(0, 500, 1, {"share": 500}), (10, 10)])
    assert run(case, "plan")[0].stops == 0


def test_no_job_is_stopped_more_often_than_the_bound() -> None:
    short = [(100.0 * number, 10) for number in range(1, MOST_STARTS + 11)]
    fates = run(Case([(V100, 1)], [(0, 100_000), *short], restart_s=1.0), "plan")
    assert fates[0].stops == MOST_STARTS
    assert all(fate.stops == 0 for job, fate in fates.items() if job)


LONG_OR_SHORT = {"long": {V100: 1.0, T4: 0.0}, "short": {V100: 1.0, T4: 0.1}}
LONG, SHORT = {"family": "long"}, {"family": "short"}


@pytest.mark.parametrize(("budget", "stops"), [("", 2), ("+stops(20)", 2), ("+stops(2)", 1)])
def test_the_last_stop_of_a_budget_is_kept_for_a_job_that_gains_more(budget: str, stops: int) -> None:
    # Job 2 takes 10 on the V100 and 100 on the T4: a stop of job 0 saves it 90, and costs 10/4 + 5 · (1 + 1/2) = 10.
    # Job 0 was stopped once, for job 1, and has 955 left. If that was half of its budget, one more stop also has the
    # price 0.2 · 955/2 = 95.5; if it was a twentieth, 9.55.
    jobs = [(0, 1000, 1, LONG), (20, 10, 1, SHORT), (60, 10, 1, SHORT)]
    fates = run(Case([(V100, 1), (T4, 1)], jobs, LONG_OR_SHORT, restart_s=5.0), f"plan{budget}")
    assert fates[0].stops == stops
    assert (fates[1].site, fates[2].site) == (0, 0 if stops == 2 else 1)


@pytest.mark.parametrize(("waiting", "stops"), [(1, 1), (8, 2)])
def test_a_stop_that_lets_several_jobs_start_is_sooner_worth_its_price(waiting: int, stops: int) -> None:
    # Job 0 holds both V100s and has 1055 left, so its second stop has the price 105.5: too much for one job that saves
    # 90. Eight waiting jobs are 1.33 per GPU, 2.67 for the GPUs of job 0, and the price is 105.5/2.67 = 39.6.
    jobs = [(0, 2200, 2, LONG), (20, 10, 1, SHORT), *[(60, 10, 1, SHORT)] * waiting]
    fates = run(Case([(V100, 2), (T4, 4)], jobs, LONG_OR_SHORT, restart_s=5.0), "plan+stops(2)")
    assert fates[0].stops == stops


@pytest.mark.parametrize("seed", range(6))
def test_at_one_moment_no_job_is_stopped_after_it_was_started(seed: int) -> None:
    started: dict[int, float] = {}
    for time, what, job, _ in play(mixed_case(seed), "plan", seed).events:
        if what == "start":
            started[job] = time
        elif what == "stop":
            assert started[job] < time


def test_with_a_window_of_one_no_job_is_stopped_for_one_that_would_be_out_of_sight() -> None:
    case = Case([(V100, 1)], [(0, 1000), (20, 10)], restart_s=5.0, window=1)
    assert run(case, "plan") == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 1010)}


def test_a_job_that_may_not_be_stopped_waits_for_the_fast_gpu_instead_of_moving_there() -> None:
    # As above, but nobody may be stopped: on the T4 job 1 would stay until 800.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], SLOW_T4, restart_s=5.0)
    assert run(case, "plan+stops(0)") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 300)}


def test_a_job_that_is_hidden_because_it_may_not_be_stopped_holds_its_gpu_until_its_end() -> None:
    # Job 0 is stopped once, for job 1. Job 2 then plans around it: it waits for its end at 1015.
    case = Case([(V100, 1)], [(0, 1000), (20, 10), (40, 10)], restart_s=5.0)
    assert run(case, "plan+stops(1)") == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30), 2: Fate(1015, 0, 1025)}
