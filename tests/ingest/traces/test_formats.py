"""Every format: recognised by content, read as written down by hand, and never anything but an answer or one line."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ingest.traces.samples import EXPECTED, GAVEL, OPENB, OWN, PHILLY, SACCT, SAMPLES, SWF

from adlro.core.errors import AdlroError, TraceError, UsageError
from adlro.core.tables import Jobs
from adlro.experiment.instance import load_jobs
from adlro.experiment.traces import read_trace, reference_rate
from adlro.ingest.traces.catalogue import FORMATS
from adlro.ingest.traces.own import write_own
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport

AS_IT_IS = TraceOptions()


def read(folder: Path, text: str | bytes, options: TraceOptions = AS_IT_IS) -> tuple[Jobs, TraceReport]:
    path = folder / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(str(path), options)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_recognised_and_read_as_written_down_by_hand(name: str, tmp_path: Path) -> None:
    jobs, report = read(tmp_path, SAMPLES[name])
    assert report.format == name
    assert report.dropped == {}
    for column, values in EXPECTED[name].items():
        found = jobs.work if column == "work" else jobs.table[column]
        assert found.tolist() == pytest.approx(values), column


def test_every_format_has_a_sample() -> None:
    assert {one.name for one in FORMATS} == {*SAMPLES, "parquet"}


def test_gavel_work_is_steps_over_the_measured_rate_and_its_commands_are_not_kept(tmp_path: Path) -> None:
    jobs, _report = read(tmp_path, GAVEL)
    rate = reference_rate("gavel/resnet-18-b128")
    assert rate
    assert jobs.work[0] == pytest.approx(3600 / rate)
    assert set(jobs.families) == {"gavel/resnet-18-b128", "gavel/a3c"}
    assert "rm -rf" not in repr(jobs)


def test_openb_keeps_types_and_makes_quality_of_service_a_priority(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, OPENB)
    assert [jobs.allowed[row] for row in jobs.table["allowed"]] == [frozenset(), {"T4", "P100"}, frozenset()]
    assert jobs.table["priority"].tolist() == pytest.approx([0.9, 0.25, 0.5])
    assert report.set_aside == {"never scheduled": 1}


def test_sacct_sets_steps_and_jobs_that_never_ran_aside(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, SACCT)
    assert report.set_aside == {"job step": 1, "never started": 1, "not finished": 1}
    assert [jobs.allowed[row] for row in jobs.table["allowed"]] == [{"a100"}, frozenset()]
    assert [jobs.users[row] for row in jobs.table["user"]] == ["ann", "bob"]
    assert jobs.table["memory"].tolist() == [65_536, 512]


def test_the_clock_of_an_swf_log_is_unix_time_where_the_header_or_the_times_tell(tmp_path: Path) -> None:
    assert read(tmp_path, SWF)[1].start_unix == 1_000_000_000
    later = (
        SWF.replace("  1   0 ", "  1 1641021254 ")
        .replace("  2  10 ", "  2 1641021264 ")
        .replace("3  20", "3 1641021266")
    )
    later = later.replace("4  30", "4 1641021284").replace("UnixStartTime: 1000000000", "UnixStartTime: 0")
    assert read(tmp_path, later)[1].start_unix == 1_641_021_254
    assert read(tmp_path, SWF.replace("UnixStartTime", "Unknown"))[1].start_unix is None


def test_odd_numbers_in_an_swf_log_are_read_too(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, SWF.replace("  50 -1", "  5e1 -1"))
    assert jobs.work.tolist() == [400, 100, 240]
    assert report.dropped == {}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packing", ["xz", "gz", "zst"])
def test_a_packed_file_reads_like_the_plain_one_and_a_truncated_one_is_refused(
    name: str, packing: str, tmp_path: Path
) -> None:
    data = SAMPLES[name].encode()
    pack: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "gz": gzip.compress, "zst": zstd}
    packed = pack[packing](data)
    assert read(tmp_path, packed)[0].work.tolist() == read(tmp_path, data)[0].work.tolist()
    with pytest.raises(TraceError, match="damaged or truncated"):
        read(tmp_path, packed[: len(packed) * 2 // 3])


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))


def test_our_own_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    drawn = load_jobs("openb-like", 0, 300)
    for name in ("table.csv", "table.parquet"):
        write_own(drawn, str(tmp_path / name))
        back, report = read_trace(str(tmp_path / name), AS_IT_IS)
        assert report.kept == 300
        assert report.families == "as in the trace"
        first = drawn.table["submit"][0]
        assert np.allclose(back.table["submit"], drawn.table["submit"] - first)
        assert np.allclose(back.work, drawn.work)
        for column in ("gpus", "share", "cpus", "memory", "gpu_memory", "priority", "estimate", "limit", "checkpoint"):
            assert np.allclose(back.table[column], drawn.table[column]), column
        for texts, column in (("families", "family"), ("users", "user"), ("allowed", "allowed")):
            mine, theirs = getattr(back, texts), getattr(drawn, texts)
            assert [mine[i] for i in back.table[column]] == [theirs[i] for i in drawn.table[column]]


def test_the_format_can_be_said_and_a_wrong_one_is_one_line(tmp_path: Path) -> None:
    assert read(tmp_path, PHILLY, TraceOptions(format="philly"))[1].format == "philly"
    with pytest.raises(TraceError, match="no column 'name'"):
        read(tmp_path, PHILLY, TraceOptions(format="openb"))
    with pytest.raises(UsageError, match="Did you mean 'philly'"):
        read(tmp_path, PHILLY, TraceOptions(format="phily"))
    for one in FORMATS:  # whatever is said, the answer is jobs or one line
        for text in (PHILLY, SWF, GAVEL, OWN):
            with_any_format(tmp_path, text.encode(), one.name)


def jobs_or_line(folder: Path, data: bytes, options: TraceOptions) -> Jobs | str:
    """The jobs, or what is said instead."""
    try:
        return read(folder, data, options)[0]
    except AdlroError as error:
        return str(error)


def with_any_format(folder: Path, data: bytes, name: str | None = None) -> None:
    answer = jobs_or_line(folder, data, TraceOptions(format=name))
    if isinstance(answer, str):
        assert "\n" not in answer
        return
    jobs = answer
    assert len(jobs) > 0
    assert np.isfinite(jobs.work).all()
    assert (jobs.work >= 0).all()
    assert (np.diff(jobs.table["submit"]) >= 0).all()


@settings(max_examples=60)
@given(data=st.binary(max_size=300), name=st.sampled_from([None, *(one.name for one in FORMATS)]))
def test_random_bytes_give_an_answer_or_one_line(
    data: bytes, name: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with_any_format(tmp_path_factory.getbasetemp(), data, name)


EDITS = st.one_of(
    st.sampled_from(
        ["", "-1", "1e308", "-1e400", "nan", "inf", ",", "|", "\t", "\n", '"', "\x00", "é", "\ud7ff", "[]", "0"]
    ),
    st.text(max_size=5),
)


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(SAMPLES)), at=st.floats(0, 1), cut=st.integers(0, 12), put=EDITS, skip=st.booleans())
def test_an_edited_sample_gives_an_answer_or_one_line(
    name: str, at: float, cut: int, put: str, skip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = SAMPLES[name]
    place = int(at * len(text))
    edited = text[:place] + put + text[place + cut :]
    answer = jobs_or_line(tmp_path_factory.getbasetemp(), edited.encode(), TraceOptions(skip_bad_rows=skip))
    assert "\n" not in answer if isinstance(answer, str) else len(answer)


@settings(max_examples=60)
@given(at=st.floats(0, 1), byte=st.integers(0, 255), length=st.floats(0.5, 1))
def test_edited_parquet_gives_an_answer_or_one_line(
    at: float, byte: int, length: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    good = folder / "good.parquet"
    if not good.exists():
        write_own(load_jobs("paper", 0, 20), str(good))
    data = bytearray(good.read_bytes())
    data[int(at * (len(data) - 1))] = byte
    with_any_format(folder, bytes(data[: len(data) if length > 0.75 else int(length * len(data))]))
