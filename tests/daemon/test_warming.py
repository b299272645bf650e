"""What is compiled before the first turn: everything that a turn needs, and it is told how far that is."""

import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.daemon.daemons import Made, new_parts, until

from adlro.core.compiled import compiled_here
from adlro.core.errors import CatalogueError
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.warming import Step, StoppedError, TellProgress, Warmed, WarmProgress, hearing_compilations, warm_all
from adlro.live.service import reason_for_all

REAL_LIFE = """
    import gc, sys
    from dataclasses import replace
    from numba.core.dispatcher import Dispatcher
    from adlro.backends.simulated.clock import ByHand
    from adlro.core.ports import Submission
    from adlro.core.records import Job
    from adlro.backends.simulated.demo import demo_backend
    from adlro.live.limits import GuardTable, PreemptTable
    from adlro.live.turn import Orchestrator, TurnSettings
    from adlro.live.service import WhatIf
    from adlro.daemon.store import open_store
    from adlro.daemon.warming import hearing_compilations, warm_daemon

    def there():
        "Every function that was compiled or loaded, with its types."
        found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
        return {(each.py_func.__qualname__, types) for each in found for types in each.overloads}

    policy, fallback = sys.argv[1:]
    done = warm_daemon([policy, fallback])
    assert not done.failed, done.failed
    before, heard = there(), []
    hearing = hearing_compilations(heard.append)
    hearing.__enter__()

    clock = ByHand()
    backend = demo_backend(seed=7, clock=clock)
    job = Job("learning", 900.0, user="ada", name="train")
    wide = replace(job, gpus=12, models=frozenset(["v100-sxm2-16gb"]))
    kinds = (job, wide, replace(job, gpus=0, cpus=2.0), replace(job, share=500), replace(job, limit_s=60.0),
        replace(job, sizes="1,2", restartable=True))
    stopping = PreemptTable(is_on=True, least_run_s=0.0)
    settings = TurnSettings(
        compare_s=0.0, guard=GuardTable(max_wait_s=1500.0), preempt=stopping, weights="priority"
    )
    memory, alarms = open_store("sqlite::memory:"), set()
    ours = Orchestrator(backend, memory, policy, fallback, settings)
    for turn in range(16):
        for each in kinds:
            backend.submit(Submission(each))
        tick = ours.tick()
        assert tick.decided_by == policy or turn, tick.alarms
        alarms |= {alarm.kind for alarm in tick.alarms}
        for live in ours.state().snapshot.jobs:
            ours.why(live.id)
        clock.move(400.0)
        if turn in (3, 6):
            (backend.fail_node if turn == 3 else backend.return_node)("volta1")
    ours.what_if(WhatIf(jobs=(Submission(job), Submission(wide))))
    ours.what_if(WhatIf(remove_nodes=("volta2",), add_nodes=(("a100", 8, 2),), policy=fallback))
    Orchestrator(backend, memory, policy, fallback, settings).tick()
    assert "kept" in alarms, alarms
    print(sorted({name for name, _ in there() - before} | set(heard)))
"""


@pytest.mark.parametrize("policies", [("adlro", "fcfs-first-fit"), ("srtf", "fcfs-first-fit")])
def test_after_it_no_turn_and_no_question_compiles_or_loads_anything(policies: tuple[str, str]) -> None:
    words = [sys.executable, "-c", textwrap.dedent(REAL_LIFE), *policies]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[]\n"


def test_it_tells_every_step_and_goes_on_after_one_that_breaks_off() -> None:
    told: list[WarmProgress] = []

    def fail() -> None:
        raise ValueError("no")

    done = warm_all([Step("one", lambda: None), Step("two", fail), Step("three", lambda: None)], told.append)
    assert [each.words for each in told] == [
        "compiling: 0 of 3 (one)",
        "compiling: 1 of 3 (two)",
        "compiling: 2 of 3 (three)",
        "compiling: 3 of 3",
    ]
    assert done.failed == ("two: ValueError('no')",)
    assert done.compiled == ()


def test_the_name_of_each_function_that_is_compiled_is_told() -> None:
    @compiled_here
    def inner(x: int) -> int:
        return x + 1

    @compiled_here
    def outer(x: int) -> int:
        return inner(x) + 1

    heard: list[str] = []
    with hearing_compilations(heard.append):
        assert outer(1) == 3
    assert heard == ["outer", ""]


def test_who_is_told_to_stop_does_no_further_step() -> None:
    did: list[str] = []
    steps = [Step("one", lambda: did.append("one")), Step("two", lambda: did.append("two"))]
    with pytest.raises(StoppedError):
        warm_all(steps, is_stopping=lambda: bool(did))
    assert did == ["one"]


class Slow:
    """Stands in for compiling: it goes on until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.asked: list[Sequence[str]] = []

    def __call__(self, policies: Sequence[str], tell: TellProgress, is_stopping: Callable[[], bool]) -> Warmed:
        self.asked.append(policies)
        tell(WarmProgress(4, 12, "decisions of adlro", "best_by_q", 3, 20.0))
        self.begun.set()
        while not self.go_on.wait(0.01):
            if is_stopping():
                raise StoppedError
        return Warmed((), (), 0.0)


def warming_daemon(slow: Slow, made: Made | None = None) -> Daemon:
    flags = {"policy.name": "fcfs", "policy.fallback": "sjf", "tick_s": 0.05}
    return Daemon(load_config(None, flags), (made or new_parts()).build, flags=flags, warm=slow)


def test_a_daemon_is_ready_only_when_everything_is_compiled_and_tells_how_far_it_is() -> None:
    slow = Slow()
    daemon = warming_daemon(slow)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        until(slow.begun.is_set)
        assert daemon.is_ready() == (False, "compiling: 4 of 12 (decisions of adlro)")
        assert reason_for_all(daemon.is_ready()[1]) == "compiling: 4 of 12"
        slow.go_on.set()
        until(lambda: daemon.is_ready()[0])
        assert slow.asked == [["fcfs", "sjf"]]
    finally:
        daemon.stop()
        thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_daemon_that_compiles_can_be_stopped() -> None:
    slow, made = Slow(), new_parts()
    daemon = warming_daemon(slow, made)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    until(slow.begun.is_set)
    daemon.stop()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert made.deciders == []


def test_another_policy_is_compiled_before_it_decides_and_one_that_is_not_there_is_refused() -> None:
    slow = Slow()
    slow.go_on.set()
    daemon = warming_daemon(slow)
    daemon.tick()
    daemon.use_policy("sjf")
    assert slow.asked == [["sjf", "sjf"]]
    assert daemon.is_ready() == (True, "ready")
    with pytest.raises(CatalogueError):
        daemon.use_policy("nobody")
    daemon.close()


def test_systemd_is_told_to_wait_and_that_we_are_alive_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(address)
        inbox.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "60000")
        slow = Slow()
        daemon = warming_daemon(slow)
        thread = threading.Thread(target=daemon.run)
        thread.start()
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 4:
            heard.append(inbox.recv(4096).decode())
        assert "READY=1" not in heard
        assert "EXTEND_TIMEOUT_USEC=120000000" in heard
        assert "STATUS=compiling: 4 of 12 (decisions of adlro)" in heard
        slow.go_on.set()
        while "READY=1" not in heard:
            heard.append(inbox.recv(4096).decode())
        daemon.stop()
        thread.join(timeout=60)
    assert not thread.is_alive()
