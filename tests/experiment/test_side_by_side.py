"""Processes that compile policies beside us: they get the right ones, fail without a word, and end with us."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from adlro.core import code_cache
from adlro.core.policy import Policy, waiting
from adlro.decide.catalogue import find_policy
from adlro.experiment import side_by_side

OWN = Policy("own", "waits", choose=lambda view: waiting())


def test_policies_that_are_not_ready_are_shared_out_from_the_last_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Sequence[str]] = []

    def started(names: Sequence[str]) -> "subprocess.Popen[bytes]":
        given.append(names)
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    monkeypatch.setattr(side_by_side, "started", started)
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 3)
    monkeypatch.setattr(side_by_side, "is_ready", lambda name: name == "fcfs")
    policies = [*map(find_policy, ["fcfs", "sjf", "srtf", "adlro"]), OWN]
    with side_by_side.compiled_side_by_side(policies):
        assert given == [["adlro", "sjf"], ["srtf"]]


def test_a_policy_is_ready_once_it_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "folder_in_use", lambda: tmp_path)
    name = "sjf+starvation(3600)/.."
    assert not code_cache.is_ready(name)
    code_cache.set_ready(name)
    assert code_cache.is_ready(name)
    assert not code_cache.is_ready("sjf")


def test_a_helper_that_fails_is_not_noticed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    helper = side_by_side.started(["no-such-policy"])
    assert helper.wait(60) != 0
    helper.communicate()
    assert capfd.readouterr() == ("", "")


def test_a_helper_ends_when_its_parent_is_killed() -> None:
    parent = (
        "import time\n"
        "from adlro.experiment import side_by_side\n"
        "print(side_by_side.started(['adlro-lookahead']).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())
        watched = os.pidfd_open(helper)
        process.kill()
    ended, _, _ = select.select([watched], [], [], 60)
    os.close(watched)
    if not ended:
        os.kill(helper, signal.SIGKILL)
    assert ended
