"""`adlro predict`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from tests.ingest.traces.samples import SACCT
from tests.predict.past import jobs_of

from adlro.cli.app import run
from adlro.ingest.traces.own import write_own


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = str(tmp_path / "past.csv")
    write_own(jobs_of(200), path)
    return path


def test_the_evaluation_as_json_has_the_promised_keys(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "--evaluate", trace, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"trace", "jobs", "methods"}
    assert (found["trace"], found["jobs"]) == ("past.csv", 200)
    assert {"habits", "memory", "limit", "last-two", "running-median"} <= set(found["methods"])
    for values in found["methods"].values():
        assert set(values) == {"median_relative_error", "mean_log_error", "interval_coverage", "seconds"}


def test_the_evaluation_for_people_has_a_line_for_each_method_asked_for(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", "--evaluate", trace, "--method", "habits,last-two"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["habits", "last-two"]
    assert "%" in lines[2]


def test_a_job_is_predicted_with_its_interval_and_the_jobs_it_is_like(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('user = "ann"\nname = "train"\ngpus = 2\nlimit_s = 7200\n')
    assert run(["predict", "--history", trace, "--job", str(job)]) == 0
    said = capsys.readouterr().out
    assert "It will run about" in said
    assert "eight in ten such jobs run" in said
    assert said.count("ann") == 5
    assert run(["predict", "--history", trace, "--job", str(job), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"method", "learnt", "p10_s", "p50_s", "p90_s", "like"}
    assert set(found["like"][0]) == {"user", "name", "gpus", "submit_s", "limit_s", "runtime_s", "similarity"}


def test_a_job_asked_for_before_any_had_ended_is_said_to_be_a_guess(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text("submit_s = 0.0\nlimit_s = 3600.0\n")
    assert run(["predict", "--history", trace, "--job", str(tmp_path / "job.toml")]) == 0
    said = capsys.readouterr().out
    assert "It will run about 60.0 min" in said
    assert "No job had ended by then" in said


def test_a_history_of_sacct_can_be_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    (tmp_path / "job.toml").write_text('user = "ann"\nname = "train"\ngpus = 2\n')
    assert (
        run(["predict", "--history", str(tmp_path / "sacct.txt"), "--job", str(tmp_path / "job.toml"), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["learnt"] == 2
    assert found["like"][0]["user"] == "ann"


def test_the_picture_of_unbinding_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.predict.evaluate.BUNDLED", (1, 64))
    assert run(["predict", "--plot", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected --evaluate TRACE"),
        (["--history", "x.csv"], "--history FILE and --job FILE must be given together"),
        (["--evaluate", "x.csv", "--history", "y.csv", "--job", "z.toml"], "expected --evaluate TRACE"),
        (["--evaluate", "x.csv", "--method", "habit"], "Did you mean 'habits'"),
        (["--plot", "x.pdf"], "expected a name that ends in .svg or .png"),
    ],
)
def test_what_is_asked_wrongly_ends_with_2_and_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_byte_order_mark_before_toml_is_no_error(tmp_path: Path) -> None:
    from adlro.catalogue.clusters import load_cluster
    from adlro.core.toml import read_text
    from adlro.daemon.config import load_config

    mark = b"\xef\xbb\xbf"
    (tmp_path / "job.toml").write_bytes(mark + b"gpus = 2\n")
    assert read_text(str(tmp_path / "job.toml"), "job file") == "gpus = 2\n"
    cluster = 'name = "one"\nnetwork = { kind = "x", gb_s = 1 }\nnodes = [{ name = "a", cpus = 1, memory_gb = 1 }]\n'
    (tmp_path / "cluster.toml").write_bytes(mark + cluster.encode())
    assert load_cluster(str(tmp_path / "cluster.toml")).name == "one"
    (tmp_path / "adlro.toml").write_bytes(mark)
    load_config(tmp_path / "adlro.toml")
