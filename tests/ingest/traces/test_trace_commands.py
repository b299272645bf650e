"""The commands `adlro trace …`: what they print, write and refuse."""

import json
from pathlib import Path

import pytest
from tests.ingest.traces.samples import OPENB, PHILLY, SWF

from adlro.cli.app import run


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    return str(path)


def test_describe_prints_bars_and_what_was_left_out(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "describe", log, "--cluster", "paper16"]) == 0
    said = capsys.readouterr().out
    assert "swf, 4 rows, 3 jobs kept" in said
    assert "1  set aside: cancelled before it ran" in said
    assert "one processor = 1 GPU" in said
    assert "load per GPU of paper16" in said
    assert "█" in said


def test_describe_as_json_is_nothing_but_json(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "describe", log, "--json", "--families", "hash:sia"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 3
    assert found["report"]["families"] == "hash:sia"
    assert len(found["report"]["sha256"]) == 64


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_what_convert_writes_is_a_workload_with_the_same_jobs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods.csv").write_text(OPENB)
    out = str(tmp_path / name)
    assert run(["trace", "convert", str(tmp_path / "pods.csv"), out, "--families", "learning"]) == 0
    assert run(["trace", "describe", out, "--json"]) == 0
    found = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert found["jobs"] == 3
    assert found["families"] == {"learning": 3}
    assert found["gpu_hours"] == pytest.approx((900 + 46) / 3600)


def test_a_converted_trace_that_starts_late_or_is_cut_keeps_its_stress(log: str, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert run(["trace", "convert", log, str(out), "--scale-load", "2", "--unit", "processors=0.5"]) == 0
    lines = out.read_text().splitlines()
    assert lines[0].startswith('"submit_s"') or lines[0].startswith("submit_s")
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "5", "15"]
    assert [line.split(",")[2] for line in lines[1:]] == ["2", "1", "4"]


def test_what_is_asked_wrongly_ends_with_2_and_a_bad_file_with_1(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "convert", log, str(tmp_path / "out.xlsx")]) == 2
    assert run(["trace", "convert", log, str(tmp_path / "no" / "out.csv")]) == 2
    assert run(["trace", "describe", log, "--unit", "potatoes=1"]) == 2
    assert run(["trace", "describe", log, "--families", "hash:nothing"]) == 2
    assert run(["trace", "describe", log, "--format", "nothing"]) == 2
    assert run(["compare", "-w", log, "-p", "fcfs", "--seeds", "2"]) == 2
    (tmp_path / "itself.csv").write_text(PHILLY)
    assert run(["trace", "convert", str(tmp_path / "itself.csv"), str(tmp_path / "itself.csv")]) == 2
    assert (tmp_path / "itself.csv").read_text() == PHILLY
    assert run(["trace", "describe", str(tmp_path)]) == 1
    assert run(["trace", "convert", str(tmp_path / "nothing.swf"), str(tmp_path / "itself.csv")]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.count("adlro: ") == 9


@pytest.mark.parametrize(("name", "begins"), [("trace.svg", b"<?xml"), ("trace.png", b"\x89PNG")])
def test_describe_draws_what_it_prints(
    name: str, begins: bytes, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / name
    assert run(["trace", "describe", log, "--plot", str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 3
    assert picture.read_bytes().startswith(begins)
    if name.endswith(".svg"):
        assert "log.swf: 3 jobs in 0.0 days" in picture.read_text()
        assert "Jobs by number of GPUs" in picture.read_text()


def test_a_trace_of_one_job_without_a_limit_can_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("submit_s,work,gpus\n0,0,1\n")
    picture = tmp_path / "one.svg"
    assert run(["trace", "describe", str(tmp_path / "one.csv"), "-c", "paper16", "--plot", str(picture)]) == 0
    assert "no requested times" in picture.read_text()


def test_a_picture_that_cannot_be_written_is_refused_before_the_trace_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("trace.pdf", "no/trace.svg"):
        assert run(["trace", "describe", "nothing.swf", "--plot", str(tmp_path / wrong)]) == 2
        assert "--plot: cannot" in capsys.readouterr().err


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "formats", "--json"]) == 0
    assert {"swf", "sacct", "parquet"} <= {row["name"] for row in json.loads(capsys.readouterr().out)}
