"""The sizes of a job as users write them."""

import pytest

from adlro.core.errors import ConfigError
from adlro.core.jobs import check_job
from adlro.core.records import Job
from adlro.core.sizes import sizes_of


@pytest.mark.parametrize(
    ("text", "sizes"), [("", ()), ("4", (4,)), ("8,1,2", (1, 2, 8)), ("2-4", (2, 3, 4)), ("1, 4-5,4", (1, 4, 5))]
)
def test_a_list_and_a_range_name_sizes_in_order(text: str, sizes: tuple[int, ...]) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["x", "1,,2", "0-3", "4-2", "-2", "1.5", "9999", "1-99999999"])
def test_sizes_that_mean_nothing_are_an_error_that_says_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"sizes is '.*'; expected numbers of GPUs from 1 to 4096, as in 1,2,4,8"):
        check_job(Job("any", sizes=text))


@pytest.mark.parametrize("job", [Job("any", gpus=0, sizes="1"), Job("any", share=500, sizes="1,2")])
def test_only_jobs_on_whole_gpus_have_sizes(job: Job) -> None:
    with pytest.raises(ConfigError, match="expected none for a job without whole GPUs"):
        check_job(job)
