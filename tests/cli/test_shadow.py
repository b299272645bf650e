"""`adlro shadow report`: what it prints and refuses."""

import json
from pathlib import Path

import pytest
from tests.backends.shadow.shadow_site import watched

from adlro.backends.shadow.dry_run import Note
from adlro.backends.shadow.record import Journal, Record
from adlro.cli.app import run
from adlro.core.ports import JobState


@pytest.fixture(scope="module")
def record() -> Record:
    return watched(jobs=80)


@pytest.fixture
def file(record: Record, tmp_path: Path) -> Path:
    """The record as a shadow would have written it."""
    begin, end = record.begin_s, record.end_s
    notes = [Note("cluster", begin, cluster=record.cluster), Note("looked", begin)]
    notes += [Note("seen", job.job.submit_s, job.id, job) for job in record.jobs]
    notes += [Note("looked", begin + beat) for beat in range(60, int(end - begin), 60)]
    notes += [Note("wished", begin + 9, record.jobs[0].id, record.jobs[0], "d1", record.jobs[0].parts)]
    for what in ("started", "ended"):
        notes += [Note(what, end, job.id, job) for job in record.jobs if job.state is JobState.FINISHED]
    path = tmp_path / "shadow.jsonl"
    Journal(path).write(notes)
    return path


def test_the_report_in_words_ends_with_whether_it_may_be_trusted(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shadow", "report", "--record", str(file)]) == 0
    said = capsys.readouterr().out
    for words in (
        "80 started and ended within it", "Replayed as it happened", "as it happened", "adlro, same models",
        "Jobs that would gain most", "would gain,", "Not modelled", "The daemon would have started 1 jobs",
    ):  # fmt: skip
        assert words in said
    assert said.splitlines()[-1].endswith("you can trust this comparison.")


def test_the_report_as_json_has_the_promised_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shadow", "report", "--db", str(file.parent / "adlro.db"), "--others", "fcfs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "source", "cluster", "begin_s", "end_s", "unwatched_s", "down_share", "policy", "estimates", "jobs",
        "calibration", "blocks", "lines", "agreement", "wishes", "gain", "lose", "users", "speeds", "stopping",
        "weights", "resizing", "weighing", "not_modelled", "notes", "doubts", "trusted",
    }  # fmt: skip
    assert [line["policy"] for line in found["lines"]] == ["as it happened", "adlro", "fcfs", "adlro, same models"]
    assert found["trusted"] is True
    assert abs(found["calibration"]["error"]) < 0.001


def test_a_report_on_a_policy_that_stops_jobs_names_the_users_and_jobs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shadow", "report", "--record", str(file), "--policy", "srtf", "--others", ""]) == 0
    said = capsys.readouterr().out
    for words in (
        "Stops under srtf",
        "with stops the mean time in the system is",
        "GPU hours lost",
        "0 of 80 jobs are",
    ):
        assert words in said


def test_a_report_with_weights_says_what_priorities_would_have_brought_to_which_jobs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["shadow", "report", "--record", str(file), "--policy", "eft-reserving", "--others", ""]
    assert run([*words, "--weights", "priority"]) == 0
    said = capsys.readouterr().out
    for part in ("eft-reserving, equal weights", "Priorities under eft-reserving", "each job counted by its priority"):
        assert part in said
    assert run(words) == 0
    assert "Priorities under" not in capsys.readouterr().out
    assert run([*words, "--weights", "prio"]) == 2
    assert "expected equal or priority" in capsys.readouterr().err


def test_a_report_on_a_policy_that_resizes_says_how_many_jobs_name_sizes(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shadow", "report", "--record", str(file), "--policy", "rank-elastic", "--others", ""]) == 0
    said = capsys.readouterr().out
    assert "no job would have got another number of GPUs" in said
    assert "0 of 80 jobs name sizes" in said


def test_without_a_word_the_record_of_this_users_daemon_is_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(file.parent))
    (file.parent / "adlro").mkdir()
    file.rename(file.parent / "adlro" / "shadow.jsonl")
    assert run(["shadow", "report", "--others", "", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "shadow.jsonl"


def test_a_history_of_sacct_is_reported_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.backends.shadow.test_record_and_replay import SACCT

    (tmp_path / "sacct.txt").write_text(SACCT)
    assert run(["shadow", "report", "--sacct", str(tmp_path / "sacct.txt"), "--cluster", "paper16"]) == 0
    said = capsys.readouterr().out
    assert "Do not trust this comparison: only" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sacct", "x.txt"], "--sacct needs --cluster FILE"),
        (["--sacct", "x.txt", "--db", "y.db"], "exclude each other"),
        (["--record", "none.jsonl"], "cannot read the shadow record 'none.jsonl'"),
        (["--db", "none/adlro.db"], "there is neither a database"),
        (["--config", "none.toml"], "cannot read the config file"),
    ],
)
def test_what_cannot_be_reported_is_told_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shadow", "report", *words]) in (1, 2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("adlro: ")
    assert said in line
