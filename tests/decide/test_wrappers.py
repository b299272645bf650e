"""Wrappers: a bound on waiting, a least time to run, and how they are named."""

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
