"""Jobs from a table in memory: the columns of our own table, dates and durations, and what is refused."""

from typing import Any

import pandas
import pyarrow
import pytest

from adlro.core.errors import TraceError, UsageError
from adlro.experiment.traces import read_trace
from adlro.ingest.traces.tabulate import TraceOptions

TABLE: dict[str, list[Any]] = {"submit_s": [0.0, 10.0, 30.0], "gpus": [1, 4, 0], "work": [600.0, 4800.0, 60.0]}


def jobs_of(frame: Any, **options: Any) -> Any:
    return read_trace(frame, TraceOptions(**options))


@pytest.mark.parametrize("kind", [dict, pandas.DataFrame, pyarrow.table], ids=["dict", "pandas", "pyarrow"])
def test_every_kind_of_table_gives_the_same_jobs(kind: Any) -> None:
    jobs, report = jobs_of(kind(TABLE))
    assert jobs.table["submit"].tolist() == [0.0, 10.0, 30.0]
    assert jobs.work.tolist() == [600.0, 4800.0, 60.0]
    assert (report.file, report.format, report.kept) == ("DataFrame", "dataframe", 3)
    assert report.sha256 == jobs_of(TABLE)[1].sha256 != jobs_of(TABLE | {"gpus": [1, 4, 1]})[1].sha256


def test_a_duration_counts_for_every_gpu_and_for_the_share_of_one() -> None:
    table = {"submit_s": [0, 1, 2], "gpus": [1, 4, 0], "duration_s": [100, 100, 100], "share": [500, None, None]}
    assert jobs_of(table)[0].work.tolist() == [50.0, 400.0, 100.0]


def test_dates_and_lengths_of_time_become_seconds() -> None:
    frame = pandas.DataFrame(
        {
            "submit_s": pandas.to_datetime(["2026-01-01 00:00:00", "2026-01-01 01:00:00"]),
            "gpus": [1, 1],
            "duration_s": pandas.to_timedelta(["1min", "1h"]),
        }
    )
    jobs, report = jobs_of(frame)
    assert jobs.table["submit"].tolist() == [0.0, 3600.0]
    assert jobs.work.tolist() == [60.0, 3600.0]
    assert report.start_unix == 1_767_225_600.0


def test_rows_out_of_order_are_sorted_and_columns_that_mean_nothing_are_named() -> None:
    frame = pandas.DataFrame(TABLE | {"submit_s": [30.0, 10.0, 0.0], "colour": ["red"] * 3}, index=[7, 8, 9])
    jobs, report = jobs_of(frame)
    assert jobs.work.tolist() == [60.0, 4800.0, 600.0]
    assert report.notes == ("columns that were not read: colour",)


def test_a_column_may_say_the_family() -> None:
    frame = pandas.DataFrame(TABLE | {"kind": ["data", "learning", "data"]})
    jobs, _ = jobs_of(frame, families="column:kind")
    assert [jobs.families[each] for each in jobs.table["family"]] == ["data", "learning", "data"]
    with pytest.raises(UsageError, match=r"no column 'king'\. Did you mean 'kind'"):
        jobs_of(frame, families="column:king")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"submit_s": [0], "gpus": [1]}, "has no column 'work'.*or duration_s"),
        ({"submit_s": [0], "gpus": ["two"], "work": [1]}, "the column 'gpus' of the DataFrame holds 'two'"),
        (TABLE | {"gpus": [1, 4, -1]}, r"row 3 \(impossible size\): 'submit_s=30.0, work=60.0, gpus=-1.0'"),
        ({"submit_s": [], "gpus": [], "work": []}, "no jobs in it"),
        (3, "the jobs are a int that cannot be read as a table"),
        ({"submit_s": [0, 1], "gpus": [1], "work": [1]}, "cannot be read as a table"),
    ],
)
def test_a_table_that_cannot_be_jobs_is_refused_with_the_reason(table: Any, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        jobs_of(table)


def test_bad_rows_may_be_skipped() -> None:
    jobs, report = jobs_of(TABLE | {"gpus": [1, 4, -1]}, skip_bad_rows=True)
    assert len(jobs) == 2
    assert report.dropped == {"impossible size": 1}


def test_a_format_makes_no_sense_for_a_table() -> None:
    with pytest.raises(UsageError, match="but the jobs are a DataFrame"):
        jobs_of(TABLE, format="swf")
