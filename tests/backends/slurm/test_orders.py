"""Orders to a Slurm that a test plays: what is asked of it, and what is not asked again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from tests.backends.slurm.test_reader import NAMING, NOW, VOLTA, Fixed, job, runs

from adlro.backends.slurm.orders import NO_UPDATE, NO_UPDATE_S, Slurm
from adlro.backends.slurm.reader import Reader
from adlro.backends.slurm.ways import CommandWay, RefusedError
from adlro.core.accounts import Account
from adlro.core.ports import Order, Part

SAID = f"Job update not available right now, the {NO_UPDATE}, try again in a bit for job 7"


@dataclass
class Ran:
    """What a command came to."""

    code: int = 0
    said: str = ""
    out: str = ""


class Commands:
    """Slurm's commands: `refused` are the jobs that nobody may update."""

    def __init__(self) -> None:
        self.refused: set[str] = {"7"}
        self.asked: list[str] = []

    def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
        if command[:2] == ["scontrol", "update"]:
            self.asked.append(command[2].removeprefix("JobId="))
            if self.asked[-1] in self.refused:
                return Ran(1, SAID)
        return Ran()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; a test sets it."""
    now = [1000.0]
    monkeypatch.setattr("adlro.backends.slurm.orders.time.monotonic", lambda: now[0])
    return now


def start(id: str) -> Order:
    return Order(id, f"d{id}", (Part("volta0", VOLTA, 1),))


def test_a_job_that_slurm_lets_nobody_update_does_not_hold_up_every_turn(clock: list[float]) -> None:
    commands = Commands()
    cluster = Slurm(Reader([Fixed([job("7"), job("8")])], NAMING, lambda: NOW), None, commands)
    cluster.read()
    stuck, fine = cluster.act([start("7"), start("8")])
    assert (stuck.done, fine.done) == (False, True)
    assert SAID in stuck.said
    assert commands.asked == ["7", "8"]
    for _ in range(3):  # turns that follow: Slurm is not asked, however it would be
        cluster.read()
        cluster.annotate({"7": "waits for a v100"})
        (again,) = cluster.give_back({"7": "refused"})
        assert (again.done, again.said) == (False, SAID)
        assert SAID in cluster.act([start("7")])[0].said
    assert commands.asked == ["7", "8"]


def test_a_job_that_may_be_updated_again_is_placed_after_the_pause(clock: list[float]) -> None:
    commands = Commands()
    cluster = Slurm(Reader([Fixed([job("7")])], NAMING, lambda: NOW), None, commands)
    cluster.read()
    assert not cluster.act([start("7")])[0].done
    clock[0] += NO_UPDATE_S
    assert not cluster.act([start("7")])[0].done  # refused a second time: the pause is twice as long
    assert commands.asked == ["7"] * 2
    clock[0] += NO_UPDATE_S
    assert not cluster.act([start("7")])[0].done
    assert commands.asked == ["7"] * 2
    clock[0] += NO_UPDATE_S
    commands.refused.clear()
    assert cluster.act([start("7")])[0].done
    assert commands.asked == ["7"] * 3


@pytest.mark.parametrize(("took_s", "is_asked_again"), [(3.0, False), (0.1, True)])
def test_a_client_that_gave_up_is_the_same_and_one_that_answers_at_once_is_not(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, took_s: float, is_asked_again: bool
) -> None:
    class Slow(Commands):
        def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
            if command[:2] == ["scontrol", "ping"]:
                return Ran(out="Slurmctld(primary) at here is UP")
            clock[0] += took_s
            return super().run(command, stdin, account)

    monkeypatch.setattr(f"{__name__}.SAID", "Unexpected message received for job 7")
    commands = Slow()
    cluster = Slurm(Reader([Fixed([job("7")])], NAMING, lambda: NOW), None, commands)
    cluster.read()
    assert not cluster.act([start("7")])[0].done
    assert not cluster.act([start("7")])[0].done
    assert commands.asked == ["7"] * (2 if is_asked_again else 1)


def test_another_refusal_is_no_reason_not_to_ask_again(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SAID", "Invalid node name specified")
    commands = Commands()
    cluster = Slurm(Reader([Fixed([job("7")])], NAMING, lambda: NOW), None, commands)
    cluster.read()
    assert not cluster.act([start("7")])[0].done
    assert not cluster.act([start("7")])[0].done
    assert commands.asked == ["7"] * 2


def test_a_job_that_begins_after_all_is_forgotten(clock: list[float]) -> None:
    source, commands = Fixed([job("7")]), Commands()
    cluster = Slurm(Reader([source], NAMING, lambda: NOW), None, commands)
    cluster.read()
    assert not cluster.act([start("7")])[0].done
    source.found = [replace(job("7"), state="RUNNING", states=("RUNNING",), node_list="volta0")]
    cluster.read()
    source.found = [job("7", restarts=1)]
    cluster.read()
    cluster.act([start("7")])
    assert commands.asked == ["7"] * 2


def test_a_job_that_has_begun_is_not_held_again() -> None:
    words: list[str] = []

    class Begun(Commands):
        def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
            words.append(command[1])
            return Ran(1, "Job is no longer pending execution for job 7") if "StartTime" in command[3] else Ran()

    with pytest.raises(RefusedError, match="no longer pending"):
        CommandWay(Begun()).withdraw("7", "marked", "held", 0)
    assert words == ["update"]


@pytest.mark.parametrize(
    ("begin_s", "first", "last"),
    [
        (None, "StartTime=now+10", "StartTime=now"),
        (NOW - 60, "StartTime=now+10", "StartTime=now"),
        (NOW + 4, "StartTime=now+10", "StartTime=now+4"),
        (NOW + 3600, "", ""),  # it cannot begin before the hold
    ],
)
def test_a_withdrawn_job_begins_no_sooner_than_its_user_wants(begin_s: float | None, first: str, last: str) -> None:
    said: list[Sequence[str]] = []

    class Heard(Commands):
        def run(self, command: Sequence[str], stdin: str = "", account: Account | None = None) -> Ran:
            said.append(command[1:])
            return Ran()

    let_go = runs(state="PENDING", states=("PENDING",), reason="QOSMaxGRESPerUser", node_list="", detail=())
    let_go = replace(let_go, start_unix=NOW + 300, begin_unix=begin_s)  # Slurm plans to start it in five minutes
    cluster = Slurm(Reader([Fixed([let_go])], NAMING, lambda: NOW), None, Heard())
    cluster.read()
    assert cluster.act([Order("7", "")])[0].done
    assert [words[0] for words in said] == [*(["update"] if first else []), "update", "uhold", "update"]
    times = [[word for word in words if word.startswith("StartTime")] for words in said]
    assert times == [*([[first]] if first else []), [], [], [last] if last else []]
    assert "ReqNodeList=" in said[-1]
