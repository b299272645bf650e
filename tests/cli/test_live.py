"""`adlro queue`, `submit`, `why`, `cancel`, `top`, `token`: what they print, and what they say when it goes wrong."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.api.api_server import Place, serving
from tests.api.fake_service import FakeService, large_cluster

from adlro.api.settings import ApiSettings
from adlro.catalogue.speeds import read_speed_table
from adlro.cli.app import run
from adlro.cli.asking import DaemonClient, Where
from adlro.cli.live import predicted, seconds, short, start_in_words
from adlro.cli.output import fitted
from adlro.core.errors import BackendError, UsageError
from adlro.core.ports import JobState
from adlro.live.service import Stopping
from adlro.measure.text import shortened

WIDTH = 80


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def place(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A daemon that the commands find by the environment."""
    with serving(service, ApiSettings(port=0, auth="off")) as place:
        monkeypatch.setenv("ADLRO_URL", place.url)
        monkeypatch.delenv("ADLRO_TOKEN", raising=False)
        yield place


@pytest.fixture
def guarded(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """One that wants tokens."""
    with serving(service, ApiSettings(port=0)) as place:
        monkeypatch.setenv("ADLRO_URL", place.url)
        monkeypatch.delenv("ADLRO_TOKEN", raising=False)
        yield place


# ---- queue -----------------------------------------------------------------------------------------------------------


def test_the_queue_has_a_line_for_each_job_with_its_place_or_predicted_start(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "--limit", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    live = [job for job in service.jobs.values() if job.state in ("running", "placed", "waiting")]
    assert {line.split()[0] for line in lines[1:]} == {job.id for job in live}
    running = service.one(JobState.RUNNING)
    line = next(line for line in lines if line.startswith(running.id))
    assert f"{running.parts[0].node}[" in line
    assert any("in " in line and "–" in line for line in lines if "waiting" in line)
    assert any("not predicted yet" in line for line in lines)


def test_the_queue_as_json_is_the_answer_of_the_api_and_nothing_else(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "--json", "--user", "ann", "--state", "waiting"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == place.ask("/api/v1/jobs?state=waiting&user=ann&limit=50").json


def test_the_queue_tells_that_there_are_more(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "--limit", "3", "--offset", "2"]) == 0
    assert "Jobs 3 to 5 of " in capsys.readouterr().out
    assert run(["queue", "--user", "nobody"]) == 0
    assert capsys.readouterr().out == "No jobs.\n"


def test_what_others_call_their_jobs_cannot_move_the_cursor(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    id, live = next(iter(service.jobs.items()))
    service.jobs[id] = replace(live, job=replace(live.job, name="\x1b[2J[red]x[/red]\r\n", user="[b]"))
    service.turn()
    assert run(["queue", "--state", "all", "--limit", "1000"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(id))
    assert "\x1b" not in line
    assert "[2J[red]x[/red]" in line
    assert "[b]" in line


# ---- speeds ----------------------------------------------------------------------------------------------------------


def test_what_a_daemon_has_learnt_is_shown_as_a_table_as_json_and_as_a_speed_table(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["speeds", "--live"]) == 0
    shown = capsys.readouterr().out
    assert "train resnet" in shown
    assert "0.67 (0.61–0.73) 20" in shown
    assert run(["speeds", "--live", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == place.ask("/api/v1/speeds").json
    assert run(["speeds", "--live", "--csv"]) == 0
    rates = read_speed_table(capsys.readouterr().out, "out")
    first, second, *_ = service.cluster.models
    assert rates["found/train-resnet", first][False][1] == 1.0
    assert rates["found/train-resnet", second][False][1] == pytest.approx(2 / 3)


def test_the_speeds_of_a_job_name_past_jobs_without_moving_the_cursor(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    id = next(iter(service.jobs))
    found = service.speeds(id)
    assert found is not None
    hostile = replace(found, because=(replace(found.because[0], name="\x1b[2J[red]x[/red]", user="[b]"),))
    monkeypatch.setattr(service, "speeds", lambda job: hostile)
    assert run(["speeds", "--live", "--job", id]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[2J[red]x[/red]" in shown
    assert "[b]" in shown
    assert run(["speeds", "--live", "--job", "none"]) == 2
    assert "there is no job none" in capsys.readouterr().err


# ---- why -------------------------------------------------------------------------------------------------------------


def test_why_a_job_waits_is_said_in_words_with_its_start(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = next(j for j in service.jobs.values() if j.state is JobState.WAITING and j.job.gpus < 8)
    assert run(["why", waiting.id]) == 0
    said = capsys.readouterr().out
    assert f"Job {waiting.id}, waiting (resources): It needs" in said
    assert "Rule: What fits where" in said
    assert "It is predicted to start in " in said
    assert re.search(r"It is predicted to start in [\d.]+ \w+, at .*\d\d:\d\d \w+ \(most likely .* to .*\)\.", said)
    assert "expected to start before it." in said
    assert "GPUs are free on the emptiest node" in said


def test_a_start_that_is_not_foreseen_is_not_made_up(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    large = next(j for j in service.jobs.values() if j.state is JobState.WAITING and j.job.gpus == 8)
    assert run(["why", large.id]) == 0
    assert "cannot be predicted yet" in capsys.readouterr().out


def test_why_a_job_runs_there_shows_the_other_places(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["why", service.one(JobState.RUNNING).id]) == 0
    said = capsys.readouterr().out
    assert "Decided by adlro in turn " in said
    assert "chosen" in said
    assert "Similar past jobs: " in said


def test_scores_are_shown_only_on_request(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    id = service.one(JobState.RUNNING).id
    assert run(["why", id]) == 0
    assert "score" not in re.sub(r"Decided by .*", "", capsys.readouterr().out)
    assert run(["why", id, "--scores"]) == 0
    assert re.search(r"GPU +score +would run", capsys.readouterr().out)


def test_a_start_that_should_have_been_is_expected_any_moment_and_never_ago() -> None:
    late = {"middle_s": 66.0, "low_s": 50.0, "high_s": 90.0}
    assert predicted(late, 100.0) == "any moment"
    assert start_in_words(late, 100.0) == "It is predicted to start any moment."
    late["high_s"] = 160.0
    assert predicted(late, 100.0) == "any moment (now–1.0m)"
    assert predicted({"middle_s": 160.0, "low_s": 90.0, "high_s": 400.0}, 100.0) == "in 1.0m (now–5.0m)"


def test_in_shadow_mode_jobs_would_start(
    service: FakeService, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.latest = replace(service.latest, backend="shadow")
    id = next(id for id, start in service.latest.starts.items() if start.middle_s is not None)
    for words, said in ((["queue"], "would start in "), (["top"], "would start in "), (["why", id], "It would start ")):
        assert run(words) == 0
        assert said in capsys.readouterr().out


def test_why_as_json_is_the_answer_of_the_api(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    id = service.one(JobState.WAITING).id
    assert run(["why", id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == place.ask(f"/api/v1/jobs/{id}/why").json


# ---- submit, cancel --------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_with_its_command_word_by_word(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpus", "2", "--family", "learning", "--limit", "2h", "--name", "x", "--models", "t4, mi50"]
    command = ["python", "train.py", "--epochs", "3", "a b", "$HOME", ";"]
    assert run(["submit", *words, "--env", "A=b=c", "--json", "--", *command]) == 0
    id = json.loads(capsys.readouterr().out)["id"]
    job = service.jobs[id].job
    assert (job.gpus, job.family, job.limit_s, job.name) == (2, "learning", 7200.0, "x")
    assert job.models == frozenset({"t4", "mi50"})
    assert not job.restartable
    assert service.commands[id] == tuple(command)


def test_a_job_that_is_submitted_as_restartable_has_the_mark(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", "--family", "data", "--restartable", "--json", "--", "true"]) == 0
    assert service.jobs[json.loads(capsys.readouterr().out)["id"]].job.restartable


def test_submit_tells_the_id_and_what_to_ask_next(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--family", "data"]) == 0
    assert "`adlro why 1061` says when it is predicted to start, or why it cannot." in capsys.readouterr().out


def test_a_job_is_cancelled_once(service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    id = service.one(JobState.RUNNING).id
    assert run(["cancel", id]) == 0
    assert capsys.readouterr().out == f"Job {id} is cancelled.\n"
    assert service.jobs[id].state is JobState.CANCELLED
    assert run(["cancel", id]) == 2
    assert "has ended already: cancelled" in capsys.readouterr().err


TIMES = {
    "2h": 7200, "90m": 5400, "90min": 5400, "1d12h": 129_600, "1.5h": 5400, "45": 45, "30s": 30,
    "1:30": 5400, "1:30:10": 5410, "2-00:00:00": 172_800, "2-01:00": 176_400,
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TIMES.items())
def test_a_time_limit_can_be_written_as_people_do(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "x", "2 hours", "-1", "0", "nan", "inf", "1:2:3:4", "h2", "1e300"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time"):
        seconds(text)


def test_lengths_of_time_are_short() -> None:
    assert [short(s) for s in (-5, 0, 59, 60, 599, 3600, 36_000, 86_400, 8_640_000)] == [
        "0s", "0s", "59s", "1.0m", "10m", "1.0h", "10h", "1.0d", "100d",
    ]  # fmt: skip


# ---- errors ----------------------------------------------------------------------------------------------------------


def failure(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command that fails, and its one line."""
    code = run(words)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("adlro: ")
    assert told.err.count("\n") == 1
    return code, told.err


@pytest.mark.parametrize("words", [["queue"], ["why", "1"], ["cancel", "1"], ["submit"], ["top"], ["queue", "--json"]])
def test_a_daemon_that_does_not_run_is_one_line_that_says_what_to_start(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADLRO_URL", "http://127.0.0.1:1")
    code, line = failure(words, capsys)
    assert code == 1
    assert "no daemon answers at http://127.0.0.1:1. Start one with `adlro serve`" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["why", "77777"], "there is no job 77777. `adlro queue` lists them."),
        (["why", "../../etc"], "is not a job id"),
        (["why", "p" * 254, "-n", "n" * 66], "is not a job id"),
        (["why", "p" * 253, "-n", "n" * 63], "there is no job n"),
        (["submit", "--family", "knitting"], "no family 'knitting'"),
        (["submit", "--family", "data", "--gpus", "2", "--share", "0.5"], "a share of a GPU for a job of 2 GPUs"),
        (["submit", "--family", "data", "--limit", "soon"], "--limit is 'soon'"),
        (["submit", "--family", "data", "--env", "x"], "--env is 'x'; expected KEY=VALUE"),
        (["queue", "--state", "asleep"], "--state is 'asleep'"),
        (["queue", "--url", "localhost"], "--url is 'localhost'"),
        (["queue", "--url", "ftp://x"], "expected http://HOST:PORT"),
    ],
)
def test_a_mistake_is_one_line(place: Place, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, line = failure(words, capsys)
    assert code == 2
    assert said in line


def test_a_cluster_that_does_not_answer_is_told_in_the_daemons_words(
    service: FakeService, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    service.gone()
    code, line = failure(["submit", "--family", "data"], capsys)
    assert code == 1
    assert "slurmrestd does not answer" in line


def test_a_token_is_taken_from_the_environment_and_its_lack_is_told(
    service: FakeService,
    guarded: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, line = failure(["queue"], capsys)
    assert code == 1
    assert "a token is needed" in line
    assert "ADLRO_TOKEN" in line
    monkeypatch.setenv("ADLRO_TOKEN", "adlro_ann")
    assert run(["queue", "--limit", "1000"]) == 0
    others = next(job for job in service.jobs.values() if job.state is JobState.WAITING and job.job.user != "ann")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(others.id))
    assert line.split()[1:3] == ["–", "–"]
    code, line = failure(["cancel", others.id], capsys)
    assert "is another's" in line
    monkeypatch.setenv("ADLRO_TOKEN", "adlro_\nx")
    assert "ADLRO_TOKEN is not a token" in failure(["queue"], capsys)[1]


def test_something_else_on_the_port_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    import http.server
    import threading

    class Else(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Else) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            code, line = failure(["queue", "--url", f"http://127.0.0.1:{other.server_port}"], capsys)
        finally:
            other.shutdown()
            thread.join()
    assert code == 1
    assert "not as an adlro daemon does" in line


def test_a_connection_that_the_daemon_closed_is_opened_again(place: Place) -> None:
    daemon = DaemonClient(Where(place.url))
    daemon.get("/me")
    assert daemon._connection is not None
    assert daemon._connection.sock is not None
    daemon._connection.sock.close()
    with pytest.raises(BackendError):
        daemon.get("/me")
    assert daemon.get("/me").value["role"] == "operator"
    daemon.close()


# ---- top -------------------------------------------------------------------------------------------------------------


def test_top_without_a_terminal_is_one_picture_of_at_most_80_columns(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 50
    text = "\n".join(lines)
    assert "7 run, 50 wait" in lines[0]
    assert "radeon  mi50" in text
    assert "××××  down: drained" in text
    assert "! " in text
    assert "71% of its speed" in text


def test_top_says_how_many_stops_there_were_and_how_long_one_takes(
    place: Place, service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = Stopping(True, 9, 3, 100, 20, 10, (), took_s=41.6, restart_s=71.6)
    with service.lock:
        service.latest = replace(service.latest, stopping=stopping)
    assert run(["top"]) == 0
    assert "3 of 100 stops in the last hour, 0 under way; a stop takes 42 s" in capsys.readouterr().out


def test_top_as_json_is_the_state(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == place.ask("/api/v1/state").json


def test_top_of_a_large_cluster_shows_models_instead_of_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeService(large_cluster(50), jobs=300), ApiSettings(port=0, auth="off")) as place:
        monkeypatch.setenv("ADLRO_URL", place.url)
        assert run(["top", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("v100-sxm2-16gb") and " in use" in line for line in lines)


def on_terminal(words: list[str], url: str, keys: bytes = b"", until: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal of 80 columns and 24 lines; keys are pressed once `until` is on it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    program = "import sys; from adlro.cli.app import run; sys.exit(run(sys.argv[1:]))"
    env = {**os.environ, "ADLRO_URL": url, "TERM": "xterm-256color", "NO_COLOR": "1"}
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True
    )
    shown = b""
    end = time.monotonic() + 60
    try:
        while process.poll() is None:
            assert time.monotonic() < end, shown.decode(errors="replace")
            if select.select([master], [], [], 0.05)[0]:
                shown += os.read(master, 65536)
                if keys and until in shown:
                    os.write(master, keys)
                    keys = b""
        while select.select([master], [], [], 0)[0]:
            shown += os.read(master, 65536)
        assert termios.tcgetattr(slave) == before
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)
        os.close(slave)
    return process.returncode, shown.decode(errors="replace")


def test_top_on_a_terminal_ends_with_q_and_leaves_the_terminal_as_it_was(place: Place) -> None:
    code, shown = on_terminal(["top", "--every", "0.2"], place.url, b"q", b"predicted start")
    assert code == 0
    assert "\x1b[?1049h" in shown
    assert shown.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))


def test_tables_fit_80_columns_whatever_jobs_and_nodes_are_called(service: FakeService) -> None:
    for id, live in service.jobs.items():
        parts = tuple(replace(part, node="a-node-with-a-very-long-name-0001") for part in live.parts)
        job = replace(live.job, name="a name that does not end " * 5, user="somebody.with.a.long.name")
        service.jobs[id] = replace(live, job=job, parts=parts)
    service.turn()
    with serving(service, ApiSettings(port=0, auth="off")) as place:
        code, shown = on_terminal(["queue"], place.url)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert max(len(line) for line in plain.splitlines()) <= WIDTH
    assert "…" in plain


def test_names_are_cut_in_the_middle_and_two_never_become_the_same() -> None:
    names = [f"experiment-with-a-long-name-{n:03d}" for n in range(200)]
    cut = shortened([*names, "short"], 16)
    assert cut["short"] == "short"
    assert cut[names[7]] == "experime…ame-007"
    assert len(set(cut.values())) == len(cut)
    assert max(map(len, cut.values())) <= 16


@given(st.lists(st.text(max_size=60), max_size=30), st.integers(8, 30))
def test_whatever_names_there_are_they_fit_and_differ(names: list[str], width: int) -> None:
    cut = shortened(names, width)
    assert set(cut) == set(names)
    assert len(set(cut.values())) == len(cut)
    assert all(cell_len(text) <= width for text in cut.values())


def test_a_table_gives_way_where_it_may() -> None:
    rows = [("1", "a" * 50, "keep this whole"), ("2", "a" * 49 + "b", "x")]
    found = fitted(("id", "name", "rest"), rows, 40, {1: (8, 60)})
    assert [row[2] for row in found] == ["keep this whole", "x"]
    assert found[0][1] != found[1][1]
    assert sum(max(len(row[c]) for row in found) for c in range(3)) + 4 <= 40


def test_nodes_and_models_that_begin_alike_are_told_apart_in_top(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeService()
    nodes = tuple(
        replace(node, name=f"gpu-partition-of-the-north-{n}.example.org")
        for n, node in enumerate(service.cluster.nodes)
    )
    snapshot = service.latest.snapshot
    snapshot = replace(snapshot, cluster=replace(snapshot.cluster, nodes=nodes), jobs=(), down={})
    service.latest = replace(service.latest, snapshot=snapshot)
    with serving(service, ApiSettings(port=0, auth="off")) as place:
        monkeypatch.setenv("ADLRO_URL", place.url)
        assert run(["top", "--once"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".example.org" in line]
    assert len({line.split()[0] for line in lines}) == len(nodes)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_are_added_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "tokens.json")]
    assert run(["token", "list", *file]) == 0
    assert "No tokens" in capsys.readouterr().out
    assert run(["token", "add", "ann", *file]) == 0
    token = capsys.readouterr().out.strip().removeprefix("export ADLRO_TOKEN=")
    assert token.startswith("adlro_")
    assert run(["token", "add", "root", "--role", "operator", "--json", *file]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"name", "role", "token"}
    assert run(["token", "list", "--json", *file]) == 0
    listed = capsys.readouterr().out
    assert [(one["name"], one["role"]) for one in json.loads(listed)] == [("ann", "user"), ("root", "operator")]
    assert token not in listed
    assert run(["token", "remove", "ann", *file]) == 0
    capsys.readouterr()
    assert run(["token", "list", *file]) == 0
    assert "ann" not in capsys.readouterr().out


def test_a_number_a_system_account_and_a_user_without_an_account_get_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "adlro.toml"
    config.write_text('[backend]\nkind = "slurm"\n[slurm]\nsubmit_as = "user"\n')
    file = ["--file", str(tmp_path / "tokens.json")]
    for words, said in [
        (["0"], "'0' is not a user name; expected a login name"),
        (["00", "--role", "operator"], "'00' is not a user name"),
        (["root"], "jobs may not run as 'root': its uid is 0"),
        (["no-such-login", "--config", str(config)], "no account 'no-such-login' on this machine"),
    ]:
        assert said in failure(["token", "add", *words, *file], capsys)[1]
    assert not (tmp_path / "tokens.json").exists()


def test_a_mistake_with_tokens_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "tokens.json")]
    assert failure(["token", "add", "ann", "--role", "boss", *file], capsys)[0] == 2
    assert failure(["token", "remove", "ann", *file], capsys)[0] == 2
    (tmp_path / "tokens.json").write_text("{}")
    assert "not a token file" in failure(["token", "list", *file], capsys)[1]


def test_without_a_file_tokens_are_where_the_daemon_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert run(["token", "add", "ann"]) == 0
    assert (tmp_path / "tokens.json").is_file()
    config = tmp_path / "adlro.toml"
    config.write_text(f'[api]\ntokens = "{tmp_path}/other.json"\n')
    assert run(["token", "add", "ann", "--config", str(config)]) == 0
    assert (tmp_path / "other.json").is_file()
