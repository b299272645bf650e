"""Wrappers: a bound on waiting, a least time to run, a bound on stops, and how they are named."""

import pytest
from tests.decide.conftest import Case, run

from adlro.core.errors import CatalogueError
from adlro.decide.catalogue import find_policy

STREAM = Case(
    [("v100", 4)],
    [(0.0, 400.0, 4), (1.0, 4000.0, 4), *((float(at), 100.0) for at in range(2, 4000, 25))],
)
"""A gang of all GPUs behind another, and small jobs that always fill the gaps."""


def test_a_wide_gang_that_starves_under_sjf_starts_within_the_bound() -> None:
    assert run(STREAM, "sjf")[1].start > 3000.0
    assert run(STREAM, "sjf+starvation(1500)")[1].start <= 1500.0


def test_a_bound_that_nobody_reaches_changes_nothing() -> None:
    assert run(STREAM, "sjf+starvation(1000000)") == run(STREAM, "sjf")


def test_a_job_is_not_stopped_before_it_ran_its_least_time() -> None:
    case = Case([("v100", 1)], [(0.0, 100.0), (10.0, 5.0)])
    assert run(case, "srtf")[1].start == 10.0
    assert run(case, "srtf+least-run(30)")[1].start == 30.0
    assert run(case, "srtf+least-run(30)")[0].stops == 1


def test_wrappers_join_and_the_name_says_so() -> None:
    policy = find_policy("srtf+least-run(30)+starvation(3600)")
    assert policy.name == "srtf+least-run(30)+starvation(3600)"
    assert policy.preemptive
    assert policy.needs == find_policy("srtf").needs


@pytest.mark.parametrize("seconds", ["", "soon", "0", "-5", "nan", "inf"])
def test_a_wrapper_without_a_number_of_seconds_is_refused_in_words(seconds: str) -> None:
    with pytest.raises(CatalogueError, match=r"needs a number of seconds above 0, as in sjf\+starvation\(3600\)"):
        find_policy(f"sjf+starvation({seconds})")


def test_an_unknown_wrapper_is_no_policy() -> None:
    with pytest.raises(CatalogueError, match=r"NAME\+starvation\(SECONDS\)"):
        find_policy("sjf+hurry(3)")


SHORT_ONES = Case([("v100", 1)], [(0.0, 100.0), (10.0, 5.0), (20.0, 5.0), (30.0, 5.0)])
"""A long job, and three short ones for each of which srtf stops it."""


@pytest.mark.parametrize(("most", "stops"), [(0, 0), (1, 1), (2, 2), (10, 3)])
def test_a_job_is_stopped_no_more_often_than_its_budget(most: int, stops: int) -> None:
    assert run(SHORT_ONES, "srtf")[0].stops == 3
    assert run(SHORT_ONES, f"srtf+stops({most})")[0].stops == stops


def test_a_budget_that_nobody_reaches_changes_nothing() -> None:
    assert run(SHORT_ONES, "srtf+stops(3)") == run(SHORT_ONES, "srtf")


def test_another_job_is_stopped_in_the_place_of_one_whose_budget_is_used_up() -> None:
    # The longest is stopped at 10, and may not be stopped again; at 20 the other one is.
    case = Case([("v100", 2)], [(0.0, 400.0), (0.0, 300.0), (10.0, 5.0), (20.0, 5.0)])
    plain, bounded = run(case, "srtf"), run(case, "srtf+stops(1)")
    assert (plain[0].stops, plain[1].stops) == (2, 0)
    assert (bounded[0].stops, bounded[1].stops) == (1, 1)
    assert [bounded[j].start for j in (2, 3)] == [10.0, 20.0]


def test_a_job_that_may_not_be_stopped_does_not_keep_others_from_free_gpus() -> None:
    # The shortest waits for the v100, which it may not take; the one behind it starts on the free t4.
    case = Case([("v100", 2), ("t4", 1)], [(0.0, 900.0, 2), (10.0, 4.0, 2), (20.0, 50.0)])
    assert run(case, "srtf+stops(0)")[2].start == 20.0
    assert run(case, "srtf+stops(0)")[1].start == run(case, "srtf+stops(0)")[0].finish


@pytest.mark.parametrize("name", ["gavel-maxmin", "las", "tiresias"])
def test_every_policy_that_stops_jobs_ends_without_stops(name: str) -> None:
    ran = run(SHORT_ONES, f"{name}+stops(0)")
    assert [ran[j].stops for j in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("number", ["", "few", "-1", "1.5", "nan", "inf"])
def test_a_budget_that_is_no_whole_number_is_refused_in_words(number: str) -> None:
    with pytest.raises(CatalogueError, match=r"needs a whole number from 0, as in srtf\+stops\(10\)"):
        find_policy(f"srtf+stops({number})")


def test_a_least_run_around_a_budget_is_refused_because_stops_that_come_to_nothing_would_count() -> None:
    with pytest.raises(CatalogueError, match=r"write \+least-run before \+stops"):
        find_policy("srtf+stops(1)+least-run(30)")
    assert find_policy("srtf+least-run(30)+stops(1)").preemptive
