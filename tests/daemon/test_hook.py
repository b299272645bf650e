"""The site's own program is told of stops: of which, with what, and that nobody waits for it."""

import json
import os
import time
from pathlib import Path

import pytest
from tests.daemon.daemons import until

from adlro.core.errors import ConfigError
from adlro.core.ports import Submission
from adlro.core.records import Job
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.hook import StopHook, check_hook, run_hook
from adlro.daemon.opening import check_config, open_parts

ONE_GPU = """
name = "one"
[network]
kind = "ethernet-25g"
gb_s = 6.25
[[nodes]]
name = "n"
gpu = "t4"
gpus = 1
cpus = 8
memory_gb = 64
"""
EVENT = {"event": "stop", "job": "7"}


def program(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "tell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def stopped(folder: Path, tell: str) -> Daemon:
    """A daemon that has stopped a long job of ann for a short one of bob."""
    (folder / "one.toml").write_text(ONE_GPU)
    flags = {
        "simulated.cluster": str(folder / "one.toml"), "policy.name": "srtf", "policy.fallback": "fcfs",
        "preempt.is_on": True, "preempt.least_run_s": 0.0, "preempt.tell": tell,
    }  # fmt: skip
    config = load_config(None, flags)
    check_config(config)
    daemon = Daemon(config, open_parts)
    daemon.tick()
    long = Job("uniform", 360_000.0, gpus=1, estimate=360_000.0, user="ann", name="$(id) 'long'", restartable=True)
    daemon.submit(Submission(long))
    daemon.tick()
    daemon.submit(Submission(Job("uniform", 60.0, gpus=1, estimate=60.0, user="bob", name="secret-project")))
    tick = daemon.tick()
    assert tick is not None
    assert [made.verb for made in tick.decisions] == ["stop", "start"]
    return daemon


def test_the_program_hears_who_was_stopped_and_why_and_no_names_of_others(tmp_path: Path) -> None:
    daemon = stopped(
        tmp_path, program(tmp_path, f"cat >> {tmp_path}/heard.part; mv {tmp_path}/heard.part {tmp_path}/heard")
    )
    until(lambda: (tmp_path / "heard").exists())
    daemon.close()
    (line,) = (tmp_path / "heard").read_text().splitlines()
    heard = json.loads(line)
    assert {key: heard[key] for key in ("event", "job", "user", "name", "gpus", "policy")} == {
        "event": "stop", "job": "1", "user": "ann", "name": "$(id) 'long'", "gpus": 1, "policy": "srtf",
    }  # fmt: skip
    assert "job 2" in heard["reason"]
    assert "secret-project" not in line
    assert "bob" not in line


def test_without_the_option_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopHook, "tell", lambda *args: pytest.fail("nobody asked for it"))
    stopped(tmp_path, "").close()


def test_a_program_that_hangs_is_killed_with_what_it_started_and_no_turn_waits_for_it(tmp_path: Path) -> None:
    hook = StopHook(timeout_s=0.5)
    began = time.monotonic()
    hook.tell(program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait"), EVENT)
    assert time.monotonic() - began < 0.4
    until(lambda: (tmp_path / "child").exists() and bool((tmp_path / "child").read_text()))
    hook.close()
    child = int((tmp_path / "child").read_text())
    until(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_program_that_fails_is_told_in_words(tmp_path: Path) -> None:
    assert run_hook(program(tmp_path, "cat > /dev/null; exit 3"), EVENT, 10.0).endswith("ended with code 3")
    assert "was still running after 0.1 s" in run_hook(program(tmp_path, "sleep 60"), EVENT, 0.1)
    assert "cannot be used" in run_hook(str(tmp_path / "nowhere"), EVENT, 10.0)
    assert run_hook(program(tmp_path, "exec 0<&-; exit 0"), EVENT, 10.0) == ""  # it need not read


def test_passwords_in_the_daemons_environment_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    assert run_hook(program(tmp_path, f"cat > /dev/null; env > {tmp_path}/env"), EVENT, 10.0) == ""
    assert "hush" not in (tmp_path / "env").read_text()
    assert f"PATH={os.environ['PATH']}" in (tmp_path / "env").read_text()


@pytest.mark.parametrize(
    ("tell", "mode", "told"),
    [
        ("tell", 0o755, "expected the whole path"),
        ("/bin/mail -s stopped", 0o755, "cannot be used: No such file"),
        ("", 0o644, "is no program that the daemon may run"),
        ("", 0o757, "others than its owner can change"),
        ("", 0o775, "others than its owner can change"),
    ],
)
def test_a_program_that_others_can_change_or_nobody_can_run_is_refused(
    tell: str, mode: int, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_config(load_config(None, {"preempt.tell": tell or program(tmp_path, "true", mode)}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_program_of_another_account_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path, "true")
    check_hook(path)
    os.chown(path, 1, -1)
    with pytest.raises(ConfigError, match="belongs to another account"):
        check_hook(path)


def test_the_default_is_no_program() -> None:
    check_hook("")
    assert load_config(None).preempt.tell == ""
