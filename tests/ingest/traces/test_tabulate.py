"""Bad rows, order, families, estimates, windows, memory: the rules that hold for every format."""

from pathlib import Path

import numpy as np
import pytest
from tests.ingest.traces.samples import OPENB, OWN, PHILLY, SWF

from adlro.core.errors import TraceError, UsageError
from adlro.core.tables import Jobs
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import run_comparison as compare_policies
from adlro.experiment.instance import draw
from adlro.experiment.scenario import load_scenario
from adlro.experiment.traces import read_trace
from adlro.ingest.traces import source
from adlro.ingest.traces.cells import clock_time
from adlro.ingest.traces.describe import describe_trace
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def philly(*rows: str, good: int = 0) -> str:
    """Rows of Philly, and so many good ones, a minute apart."""
    made = [f"2017-10-10 {i // 60 % 24:02d}:{i % 60:02d}:00,60.0,1,60.0,vc{i % 5}" for i in range(good)]
    return HEADER + "".join(f"{row}\n" for row in [*made, *rows])


def read(folder: Path, text: str, options: TraceOptions | None = None) -> tuple[Jobs, TraceReport]:
    path = folder / "trace.csv"
    path.write_text(text)
    return read_trace(str(path), options or TraceOptions())


def test_bad_rows_are_counted_by_reason_and_left_out(tmp_path: Path) -> None:
    text = philly(
        "2017-10-11 00:00:00,-5,1,0,a", "2017-10-11 00:00:00,,1,0,a", "yesterday,5,1,0,a",
        "2017-10-11 00:00:00,5,0,0,a", "2017-10-11 00:00:00,5,1.5,0,a", "2017-10-11 00:00:00,5,1",
        good=194,
    )  # fmt: skip
    jobs, report = read(tmp_path, text)
    assert (report.rows, report.kept, len(jobs)) == (200, 194, 194)
    assert report.dropped == {
        "wrong number of cells": 1,
        "negative duration": 1,
        "duration missing or no number": 1,
        "submit time missing or no number": 1,
        "impossible size": 2,
    }


def test_more_than_5_percent_bad_stops_with_three_lines_quoted(tmp_path: Path) -> None:
    text = philly("2017-10-11 00:00:00,-5,1,0,a", *["2017-10-11 00:00:00,oops,1,0,b"] * 10, good=100)
    with pytest.raises(TraceError, match=r"11 of 111 rows are bad.*row 103 .*oops.*row 104 .*row 105 .*--skip-bad"):
        read(tmp_path, text)
    assert read(tmp_path, text, TraceOptions(skip_bad_rows=True))[1].kept == 100


def test_the_quoted_line_is_the_one_meant_even_after_blank_and_broken_lines(tmp_path: Path) -> None:
    text = HEADER + "\n\nshort,row\n\n2017-10-11 00:00:00,-7,1,0,a\n2017-10-11 00:00:00,7,1,0,a\n"
    with pytest.raises(
        TraceError, match=r"row 2 \(wrong number of cells\): 'short,row'; row 3 \(negative.*: '2017-10-11 00:00:00,-7"
    ):
        read(tmp_path, text)


def test_exactly_5_percent_bad_goes_on(tmp_path: Path) -> None:
    text = philly(*["2017-10-11 00:00:00,-5,1,0,a"] * 5, good=95)
    assert read(tmp_path, text)[1].dropped == {"negative duration": 5}


def test_an_id_seen_before_is_dropped(tmp_path: Path) -> None:
    twice = SWF + "  4 40 1 30 8 -1 -1 8 20 -1 1 12 1 7 -1 -1 -1 -1\n"
    jobs, report = read(tmp_path, twice, TraceOptions(skip_bad_rows=True))
    assert report.dropped == {"id seen before": 1}
    assert len(jobs) == 3


def test_rows_out_of_order_are_sorted_and_counted_but_not_bad(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, PHILLY)
    assert (report.out_of_order, report.dropped) == (1, {})
    assert jobs.table["submit"].tolist() == [0, 2932]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty after decompression"),
        (b"\x7fELF\x00\x01\x02", "is binary"),
        (b"PAR1 and nothing else", "damaged Parquet"),
        (b"hello world\n", "has an unknown format; it begins with 'hello world'"),
        (b"\x1b[31mred\n", r"begins with '·\[31mred'"),
        (HEADER.encode(), "no jobs in it"),
        (b'{"jobs": 5}', "expected an object with a list"),
        (b'{"jobs": [', "is not the JSON"),
        (b'{"jobs": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_one_clear_line(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TraceError, match=expected):
        read_trace(str(tmp_path / "file"), TraceOptions())


def test_a_directory_and_a_missing_file_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(str(tmp_path), TraceOptions())
    with pytest.raises(TraceError, match="does not exist"):
        read_trace(str(tmp_path / "nothing.swf"), TraceOptions())
    with pytest.raises(TraceError, match=r"cannot read|does not exist"):
        read_trace("a\0b", TraceOptions())


def test_rows_that_would_not_fit_are_refused_with_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "available_memory", lambda: 100 * source.BYTES_PER_ROW)
    with pytest.raises(TraceError, match=r"about 20\d rows, which need .* GiB"):
        read(tmp_path, philly(good=200))
    assert read(tmp_path, philly(good=50))[1].kept == 50


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PIECE", 1 << 12)
    monkeypatch.setattr(source, "LONGEST_TRACE_LINE", 1 << 14)
    with pytest.raises(TraceError, match="has a line of more than"):
        read(tmp_path, philly(good=5) + "x" * (1 << 16))


def test_small_pieces_give_the_same_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = philly("2017-10-11 00:00:00,-5,1,0,a", "short,row", good=300)
    at_once, report = read(tmp_path, text)
    monkeypatch.setattr(source, "PIECE", 100)
    in_pieces, same = read(tmp_path, text)
    assert report == same
    assert at_once.users == in_pieces.users
    assert np.array_equal(at_once.table, in_pieces.table)


def test_estimates_are_the_request_where_there_is_one_unless_told_otherwise(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, SWF)
    assert report.estimates == "limit for 2 of 3 jobs, oracle for the rest"
    assert jobs.table["estimate"].tolist() == [800, 100, 160]
    assert jobs.table["limit"].tolist() == [200, np.inf, 20]
    jobs, report = read(tmp_path, SWF, TraceOptions(estimates="oracle"))
    assert report.estimates == "oracle"
    assert jobs.table["estimate"].tolist() == jobs.work.tolist()


def test_processors_become_as_many_gpus_as_said(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, SWF, TraceOptions(gpus_per_unit=0.25))
    assert jobs.table["gpus"].tolist() == [1, 1, 2]
    assert jobs.work.tolist() == [100, 50, 60]
    assert report.unit == "processor = 0.25 GPU"


def test_a_hash_gives_jobs_of_one_user_the_same_family_and_uses_several(tmp_path: Path) -> None:
    text = philly(good=400)
    jobs, report = read(tmp_path, text, TraceOptions(families="hash:gavel"))
    assert report.families == "hash:gavel"
    by_user = {(int(row["user"]), int(row["family"])) for row in jobs.table}
    assert len(by_user) == 5
    assert len({family for _user, family in by_user}) > 1
    assert all(name.startswith("gavel/") for name in jobs.families)
    again, _report = read(tmp_path, text, TraceOptions(families="hash:gavel"))
    assert np.array_equal(again.table["family"], jobs.table["family"])


def test_a_family_of_our_own_table_is_kept_unless_another_is_asked_for_and_must_be_known(tmp_path: Path) -> None:
    jobs, _report = read(tmp_path, OWN)
    assert [jobs.families[row] for row in jobs.table["family"]] == ["learning", "data"]
    assert read(tmp_path, OWN, TraceOptions(families="simulation"))[0].families == ("simulation",)
    with pytest.raises(TraceError, match=r"no family 'lerning'.*Did you mean 'learning'"):
        read(tmp_path, OWN.replace("learning", "lerning"))


def test_window_sample_and_load_make_stress_cases(tmp_path: Path) -> None:
    text = philly(good=601)  # ten hours
    assert read(tmp_path, text, TraceOptions(window="0:2"))[1].kept == 120
    assert read(tmp_path, text, TraceOptions(window="0.5:1"))[1].kept == 301
    cut = read(tmp_path, text, TraceOptions(window="1:2"))[0]
    assert cut.table["submit"][0] == 0
    fast = read(tmp_path, text, TraceOptions(scale_load=2.0))[0]
    assert fast.table["submit"][-1] == 18_000
    some = read(tmp_path, text, TraceOptions(sample=0.5))[1]
    assert 240 < some.kept < 360
    assert some.not_asked_for == 601 - some.kept
    for wrong in (
        TraceOptions(window="2:1"),
        TraceOptions(window="a:b"),
        TraceOptions(sample=0),
        TraceOptions(scale_load=-1),
    ):
        with pytest.raises(UsageError, match="expected"):
            read(tmp_path, text, wrong)


def test_describe_counts_what_is_there(tmp_path: Path) -> None:
    found = describe_trace(*read(tmp_path, OPENB), {"t4": 2})
    assert found["jobs"] == 3
    assert found["gpu_hours"] == pytest.approx((900 + 46) / 3600)
    assert found["load_per_gpu"] == pytest.approx((900 + 46) / 60 / 2)
    assert [row["gpus"] for row in found["sizes"]] == ["0", "part of 1", "1"]
    asked = describe_trace(*read(tmp_path, SWF))["estimates"]
    assert asked["jobs"] == 2
    assert asked["over_the_request"] == 0.5
    clock = describe_trace(*read(tmp_path, PHILLY))["arrivals"]  # a Monday, at 6 and 7
    assert [hour for hour, rate in enumerate(clock["by_hour"]) if rate] == [6, 7]
    assert [day for day, rate in enumerate(clock["by_weekday"]) if rate] == [0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("10:30", 630), ("1:00:00", 3600), ("2-0", 172_800), ("1-02:03:04", 93_784), ("00:00:01.5", 1.5)],
)
def test_lengths_of_time_are_read_as_slurm_writes_them(text: str, seconds: float) -> None:
    assert clock_time(text) == seconds
    assert np.isnan(clock_time("UNLIMITED"))


def test_a_trace_is_a_workload_whose_jobs_are_the_same_for_every_seed(tmp_path: Path) -> None:
    (tmp_path / "log.swf").write_text(SWF)
    scenario = load_scenario("paper16", str(tmp_path / "log.swf"))
    assert scenario.workload.jobs == 3
    with pytest.raises(UsageError, match=r"--windows 2 .*--seeds 1"):
        compare_policies(scenario, [find_policy("fcfs")], [0, 1])
    assert np.array_equal(draw(scenario, 0).jobs.table, draw(scenario, 7).jobs.table)
    with pytest.raises(UsageError, match="expected user"):
        load_scenario("paper16", str(tmp_path / "log.swf"), estimates="limit:1")
    assert load_scenario("paper16", str(tmp_path / "log.swf"), jobs=1000).jobs == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1e300,1,1,,", "impossible submit time"),
        ("0,1e300,1,,", "impossible duration"),
        ("0,1,2000000,,", "impossible size"),
        ("0,1,1,inf,", "impossible estimate"),
        ("0,1,1,-1,", "negative estimate"),
        ("0,1,1,,-5", "negative requested time"),
    ],
)
def test_numbers_beyond_reason_are_bad_rows(row: str, reason: str, tmp_path: Path) -> None:
    text = f"submit_s,work,gpus,estimate,limit_s\n0,5,1,,\n{row}\n"
    jobs, report = read(tmp_path, text, TraceOptions(skip_bad_rows=True))
    assert report.dropped == {reason: 1}
    assert len(jobs) == 1


def test_a_request_of_centuries_is_no_limit(tmp_path: Path) -> None:
    jobs, _report = read(tmp_path, "submit_s,work,gpus,limit_s\n0,5,1,1e15\n")
    assert jobs.table["limit"][0] == np.inf
    assert jobs.table["estimate"][0] == 5
