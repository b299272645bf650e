"""A workload file is read as it says, and refused with one clear line when it cannot be meant."""

import re
from pathlib import Path

import pytest

from adlro.core.errors import ConfigError
from adlro.ingest.synthetic import generate
from adlro.ingest.workload_file import (
    Arrivals,
    Duration,
    Estimates,
    Piece,
    Priorities,
    Surge,
    Users,
    Workload,
    WorkloadPart,
    load_workload,
)

ARRIVALS = 'arrivals = { process = "poisson" }'
DURATION = 'duration = { distribution = "fixed", value_s = 60 }'


def workload(top: str = "", family: str = "", arrivals: str = ARRIVALS, duration: str = DURATION) -> Workload:
    text = f'name = "mine"\n{arrivals}\n{top}\n[[families]]\nfamily = "learning"\n{duration}\n{family}'
    return load_workload(text, "mine.toml")


def test_a_workload_needs_only_a_name_arrivals_and_a_family_with_a_duration() -> None:
    read = workload()
    assert read.jobs == 1000
    assert read.arrivals.mean_interarrival_s == 300
    assert read.families[0].gpus == {1: 1.0}
    assert read.estimates.source == "oracle"


def test_a_family_may_be_one_name_or_a_list_of_them() -> None:
    assert workload().families[0].family == ["learning"]
    text = f'name = "n"\n{ARRIVALS}\n[[families]]\nfamily = ["a", "b"]\n{DURATION}'
    assert load_workload(text, "n.toml").families[0].family == ["a", "b"]


def test_a_workload_cannot_be_changed_after_it_was_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        workload().jobs = 3


BAD_FAMILY = {
    "gpus = { 0 = 1.0 }": "'0' is not a number of GPUs; expected a whole number from 1 to 4096",
    "gpus = { two = 1.0 }": "'two' is not a number of GPUs",
    "gpus = { 1 = -0.5 }": "greater than or equal to 0",
    "gpus = { 1 = 0, 2 = 0 }": "nothing in gpus has a weight",
    "share = { 1001 = 1 }": "expected a whole number from 1 to 1000",
    "weight = -1": "expected a number from 0",
    "weight = 0": "nothing in families has a weight",
    "wieght = 1": "Did you mean 'weight'",
    "cpus_per_gpu = -1": "expected a number from 0 to 1024",
    "checkpoint_s = -1": "expected a number from 0",
    "limit_factor = 0": "expected a number above 0",
    "models = 'T4'": "expected a list",
    "classes = [[2, 500, 1000, 1000, '', 1]]": "asks for 500/1000 of 2 GPUs",
    "classes = [[1, 0, 1000, 1000, '', 1]]": "asks for 0/1000 of a GPU",
    "classes = [[1, 1000, 1000, 1000, '', 0]]": "nothing in classes has a weight",
    "classes = [[1, 1000, 1000, 1000, '', 1]]\ngpus = { 2 = 1 }": "classes replace gpus",
}


@pytest.mark.parametrize("line", BAD_FAMILY)
def test_a_bad_line_of_a_family_is_refused_with_what_was_expected(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^mine\.toml: ") as refused:
        workload(family=line)
    assert BAD_FAMILY[line] in str(refused.value)
    assert "\n" not in str(refused.value)


BAD_DURATION = {
    'distribution = "lognormal", median_s = 60, sigma = -0.1': "expected a number from 0 to 5",
    'distribution = "lognormal", median_s = 0, sigma = 1': "expected a number above 0",
    'distribution = "lognormal", median_s = inf, sigma = 1': "is inf; expected",
    'distribution = "lognormal", median_s = 60': "sigma is missing; a lognormal distribution needs median_s and sigma",
    'distribution = "lognormal", median_s = 60, sigma = 1, shape = 2': "shape has no meaning",
    'distribution = "lognormale", median_s = 60, sigma = 1': "Did you mean 'lognormal'",
    'distribution = "weibull", scale_s = 60, shape = 0': "expected a number from 0.1 to 20",
    'distribution = "fixed", value_s = "60"': "expected a number above 0",
    'distribution = "fixed", value_s = 60, min_s = 9, max_s = 8': "expected min_s <= max_s",
    'distribution = "loguniform", pieces = [{ low_s = 9, high_s = 8 }]': "expected low_s <= high_s",
    'distribution = "loguniform", pieces = []': "nothing in pieces has a weight",
    'distribution = "quantiles", at = [0, 0.5], seconds = [1, 2]': "expected values that rise from 0 to 1",
    'distribution = "quantiles", at = [0, 1], seconds = [2, 1]': "expected values that do not fall",
    'distribution = "quantiles", at = [0, 1], seconds = [2]': "expected equal numbers",
}


@pytest.mark.parametrize("line", BAD_DURATION)
def test_a_bad_duration_is_refused_with_what_was_expected(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        workload(duration=f"duration = {{ {line} }}")
    assert BAD_DURATION[line] in str(refused.value)


BAD_TOP = {
    "jobs = 0": "'jobs' is 0; expected a whole number from 1 to 100000000",
    "jobs = 1.5": "expected a whole number",
    "priorities = { values = [0.5, 2.0] }": "less than or equal to 1",
    "priorities = { values = [0.5], weights = [1, 2] }": "2 weights for 1 values",
    "priorities = { values = [0.5], beta = [1, 2] }": "exclude each other",
    "users = { count = 0 }": "expected a whole number from 1",
    "users = { recurrence = 1.0 }": "expected a number from 0 below 1",
    'estimates = { source = "guess" }': "expected 'oracle' or 'lognormal' or 'limit'",
    "estimates = { sigma = 0.5 }": "an oracle has no error",
    'estimates = { source = "limit" }': "'learning' has no limit_factor",
    'surge = { family = "data", start_s = 0, duration_s = 1, rate_factor = 2 }': "expected one of learning",
    'surge = { family = "learning", duration_s = 1, rate_factor = 2 }': "either start_fraction (0 to 1) or start_s",
    'surge = { family = "learning", start_s = 0, duration_s = 1, rate_factor = 0.5 }': "expected a number from 1",
}


@pytest.mark.parametrize("line", BAD_TOP)
def test_a_bad_line_at_the_top_is_refused_with_what_was_expected(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        workload(top=line)
    assert BAD_TOP[line] in str(refused.value)


BAD_ARRIVALS = {
    'process = "poison"': "Did you mean 'poisson'",
    'process = "poisson", mean_interarrival_s = 0': "expected a number above 0",
    'process = "poisson", day_swing = 0.5': "day_swing has no meaning for process = 'poisson'",
    'process = "diurnal", day_swing = 1.5': "expected a number from 0 to 1",
    'process = "bursty", burst_size_mean = 0.5': "expected a number from 1",
    'process = "all-at-once", mean_interarrival_s = 5': "remove it",
}


@pytest.mark.parametrize("line", BAD_ARRIVALS)
def test_bad_arrivals_are_refused_with_what_was_expected(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        workload(arrivals=f"arrivals = {{ {line} }}")
    assert BAD_ARRIVALS[line] in str(refused.value)


def test_a_surge_is_refused_where_all_jobs_come_at_once() -> None:
    with pytest.raises(ConfigError, match="a surge needs jobs that arrive over time"):
        workload(
            top='surge = { family = "learning", start_s = 0, duration_s = 1, rate_factor = 2 }',
            arrivals='arrivals = { process = "all-at-once" }',
        )


def test_the_example_in_the_documentation_can_be_read_and_sets_every_section() -> None:
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    read = load_workload(example, "docs/workloads.md")
    assert read.model_fields_set == set(Workload.model_fields)


def test_every_key_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    sections = (Workload, Arrivals, WorkloadPart, Duration, Piece, Priorities, Users, Estimates, Surge)
    missing = [key for section in sections for key in section.model_fields if not re.search(rf"`.*\b{key}\b.*`", page)]
    assert missing == []


def test_of_predicted_estimates_nothing_is_told_beforehand_and_limits_are_those_of_guesses() -> None:
    predicted = workload('estimates = { source = "predicted", sigma = 0.5 }', "limit_factor = 2.0")
    guessed = workload('estimates = { source = "lognormal", sigma = 0.5 }', "limit_factor = 2.0")
    asked, other = (generate(each, 0, 20).table for each in (predicted, guessed))
    assert asked["estimate"].tolist() == [0.0] * 20
    assert asked["limit"].tolist() == other["limit"].tolist()
