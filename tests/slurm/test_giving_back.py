"""What ADLRO cannot place as well as Slurm goes back to Slurm at once; nobody else's hold is touched."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from tests.slurm.driving import options_of
from tests.slurm.lab import Lab, running

from adlro.backends.slurm.backend import give_back, slurm_backend
from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.ways import CommandWay, RefusedError
from adlro.core.ports import JobState, LiveJob, Order
from adlro.daemon.store import open_store
from adlro.live.service import Alarm
from adlro.live.turn import Orchestrator

OURS = ("--hold", "--comment=my own words adlro:held")
SHAPES: Mapping[str, tuple[str, ...]] = {
    "each task": ("--ntasks=2", "--gpus-per-task=1"),
    "each socket": ("--gpus-per-socket=1", "--sockets-per-node=1"),
    "more than one model has": ("--gpus=10",),
    "two nodes without GPUs": ("--nodes=2",),
    "nodes of its own": ("--exclusive", "--gres=gpu:1"),
    "a range of nodes": ("--nodes=1-3", "--gres=gpu:1"),
    "neighbours": ("--contiguous", "--gres=gpu:1"),
    "not on one node": ("--exclude=volta1", "--gres=gpu:1"),
    "a named node": ("--nodelist=volta1", "--gres=gpu:1"),
}


@pytest.fixture(scope="module")
def plain_lab() -> Iterator[Lab]:
    """A Slurm of its own, with a second partition."""
    with running(Lab(jwt=True, conf=["PartitionName=other Nodes=volta0,volta1 MaxTime=INFINITE State=UP"])) as started:
        yield started


class Living:
    """An orchestrator on a lab, with what it told."""

    def __init__(self, lab: Lab, way: str = "socket", **options: object) -> None:

        self.lab = lab
        self.backend = slurm_backend(options_of(lab, way).model_copy(update=options))
        self.store = open_store("sqlite::memory:")
        self.orchestrator = Orchestrator(self.backend, self.store, "fcfs-first-fit", "fcfs-first-fit")
        self.alarms: list[Alarm] = []
        self.decided: list[str] = []

    def __enter__(self) -> "Living":
        return self

    def __exit__(self, *_: object) -> None:
        self.lab.run("scancel", "--user=root")
        self.lab.wait(lambda: not self.lab.run("squeue", "--noheader").strip(), "an empty queue")
        with closing(self.backend), closing(self.store):
            pass

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            tick = self.orchestrator.tick()
            self.alarms += tick.alarms
            self.decided += [each.job for each in tick.decisions]

    def job(self, name: str) -> LiveJob:
        return next(job for job in self.orchestrator.state().snapshot.jobs if job.id == name)

    def says(self, name: str) -> str:
        """State, reason and comment of a job, as a user sees them."""
        return self.lab.run("squeue", "--noheader", "--states=all", f"--jobs={name}", "--format=%T %r %k").strip()

    def until(self, name: str, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.says(name):
            assert time.monotonic() < end, self.says(name)
            time.sleep(0.2)
            self.turn()


@pytest.mark.parametrize("way", ["socket", "commands"])
def test_a_request_that_we_have_no_words_for_is_slurms_after_one_turn_and_runs(plain_lab: Lab, way: str) -> None:
    with Living(plain_lab, way) as living:
        names = {shape: plain_lab.sbatch("sleep 0.2", *OURS, *asked) for shape, asked in SHAPES.items()}
        living.turn()
        for shape, name in names.items():
            assert "JobHeld" not in living.says(name), shape
            assert "adlro:released=" in living.says(name), shape
            assert "my own words [adlro: given back to Slurm: " in living.says(name), shape
        told = {alarm.job for alarm in living.alarms if alarm.kind == "given-back"}
        assert told == set(names.values())
        assert not living.decided
        for name in names.values():
            living.until(name, "COMPLETED", 40)


def test_a_hold_of_the_user_stays_whatever_we_do(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        held = plain_lab.sbatch("sleep 0.2", "--hold", "--gres=gpu:1")
        said = plain_lab.sbatch("sleep 0.2", "--hold", "--gres=gpu:1", "--comment=adlro:userheld")
        placed = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:4", "--constraint=radeon")
        behind = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:4", "--constraint=radeon")
        living.turn(2)
        living.until(placed, "RUNNING")
        assert living.decided == [placed]
        plain_lab.run(
            "scontrol", "update", f"JobId={behind}", "Comment=adlro:held adlro:userheld"
        )  # as the plugin does
        plain_lab.run("scancel", placed)
        living.turn(3)
        give_back(options_of(plain_lab, "commands"), time.time())  # release-all
        for name in (held, said, behind):
            assert living.says(name).startswith("PENDING JobHeldUser"), name


def test_a_job_that_its_user_holds_after_we_placed_it_is_not_let_go_again(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        first = plain_lab.sbatch("sleep 30", "--gres=gpu:4", "--nodelist=radeon0")
        plain_lab.wait(lambda: "RUNNING" in living.says(first), "the first runs")
        name = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:1")
        snapshot = living.backend.read()
        part = next(node.gpus[0] for node in snapshot.cluster.nodes if node.name == "radeon0")
        from adlro.core.ports import Order, Part

        (answer,) = living.backend.act([Order(name, "d1", (Part("radeon0", part.model, 1),))])
        assert answer.done
        plain_lab.run("scontrol", "uhold", name)
        plain_lab.run("scancel", first)
        living.turn(3)
        assert living.says(name).startswith("PENDING JobHeldUser")
        assert not living.job(name).managed


def test_a_job_that_was_moved_to_another_partition_is_slurms(plain_lab: Lab) -> None:
    with Living(plain_lab, partitions=["gpu"]) as living:
        blocker = plain_lab.sbatch("sleep 30", "--gres=gpu:4", "--nodelist=radeon0")
        plain_lab.wait(lambda: "RUNNING" in living.says(blocker), "the blocker runs")
        name = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=radeon|volta", "--begin=now+1hour")
        living.turn()
        plain_lab.run("scontrol", "update", f"JobId={name}", "Partition=other", "StartTime=now")
        living.turn()
        assert any(alarm.job == name and "partition other" in alarm.text for alarm in living.alarms)
        living.until(name, "COMPLETED")
        assert name not in living.decided


def test_a_reserved_node_is_not_free(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        reserve = ("scontrol", "create", "reservation", "users=root", "duration=60")
        plain_lab.run(*reserve, "reservationname=now", "starttime=now", "nodes=radeon0")
        plain_lab.run(*reserve, "reservationname=later", "starttime=now+2hours", "nodes=turing0")
        try:
            waits = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=radeon", "--time=10")
            long = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=turing", "--time=600")
            short = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=turing", "--time=10")
            living.turn(3)
            living.until(short, "COMPLETED")
            assert living.decided == [short]
            assert "reserved (now)" in living.orchestrator.state().snapshot.down["radeon0"]
            assert "reserved (later) from" in living.job(long).reason
            plain_lab.run("scontrol", "delete", "reservationname=now")
            plain_lab.run("scontrol", "delete", "reservationname=later")
            living.until(waits, "COMPLETED")
            living.until(long, "COMPLETED")
        finally:
            for name in ("now", "later"):
                if name in plain_lab.run("scontrol", "show", "reservation"):
                    plain_lab.run("scontrol", "delete", f"reservationname={name}")


def test_a_node_that_one_job_has_for_itself_takes_no_others(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        alone = plain_lab.sbatch("sleep 30", "--exclusive", "--gres=gpu:1", "--nodelist=radeon0")
        plain_lab.wait(lambda: "RUNNING" in living.says(alone), "the exclusive job runs")
        name = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=radeon")
        living.turn(4)
        assert not living.decided
        plain_lab.run("scancel", alone)
        living.until(name, "COMPLETED")


def test_nodes_of_a_job_without_gpus_are_not_free_either(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        wide = plain_lab.sbatch("sleep 30", "--nodes=2", "--ntasks=32", "--constraint=volta", "--mem-per-cpu=10")
        plain_lab.wait(lambda: "RUNNING" in living.says(wide), "the wide job runs")
        name = plain_lab.sbatch("sleep 0.2", *OURS, "--gres=gpu:1", "--constraint=volta")
        living.turn(4)
        assert not living.decided
        plain_lab.run("scancel", wide)
        living.until(name, "COMPLETED")


def test_jobs_are_placed_around_gpus_that_slurm_keeps_for_its_own_job(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        for node in ("volta0", "volta1"):
            living.until(plain_lab.sbatch("sleep 60", "--gres=gpu:2", f"--nodelist={node}", "--time=2"), "RUNNING")
        wide = plain_lab.sbatch("sleep 1", "--partition=other", "--gres=gpu:4", "--nodelist=volta0", "--time=10")
        plain_lab.wait(lambda: "PENDING Resources" in living.says(wide), "Slurm's own job waits for the whole node")
        ours = ("--gres=gpu:1", "--constraint=volta", "--time=30")
        first = plain_lab.sbatch("sleep 60", *OURS, *ours)
        living.until(first, "adlro:released")
        living.until(first, "RUNNING")  # on volta1: Slurm keeps volta0
        names = [plain_lab.sbatch("sleep 60", *OURS, *ours) for _ in range(3)]
        living.until(names[0], "RUNNING")
        living.turn(2)
        kept = [job.parts for job in living.orchestrator.state().snapshot.jobs if job.id.startswith("kept@volta0")]
        assert [part.count for parts in kept for part in parts] == [2]
        assert not set(names[1:]) & set(living.decided)  # they wait; nobody sends them to volta0
        plain_lab.run("scancel", wide)
        for name in names[1:]:
            living.until(name, "RUNNING")


def test_a_user_sees_in_squeue_what_the_job_waits_for_and_when_it_may_start(plain_lab: Lab) -> None:
    with Living(plain_lab) as living:
        first = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:4", "--constraint=radeon", "--time=10")
        second = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:4", "--constraint=radeon", "--time=10")
        array = plain_lab.sbatch("sleep 30", *OURS, "--gres=gpu:4", "--constraint=radeon", "--time=10", "--array=1-3")
        living.turn(2)
        assert living.says(second).startswith("PENDING JobHeldUser my own words [adlro: waits for 4 mi50")
        assert "start about" in living.says(second)
        assert living.says(second).endswith("] adlro:held")
        assert living.job(second).managed
        living.until(first, "RUNNING")
        assert "[adlro:" not in living.says(first)
        lines = plain_lab.run("squeue", "--noheader", f"--jobs={array}", "--format=%i").split()
        assert lines == [f"{array}_[1-3]"]  # still one record


@pytest.fixture(scope="module")
def limited_lab() -> Iterator[Lab]:
    """A Slurm with accounts, in which root may hold four GPUs at a time with the QOS `small`."""
    with running(Lab(dbd=True)) as started:
        started.run("sacctmgr", "--immediate", "add", "qos", "small", "set", "MaxTRESPerUser=gres/gpu=4")
        started.run("sacctmgr", "--immediate", "add", "qos", "tiny", "set", "MaxTRESPerJob=gres/gpu=1")
        started.run("sacctmgr", "--immediate", "modify", "user", "root", "set", "qos+=small,tiny")
        yield started


def test_a_job_over_its_limit_is_decided_once_and_leaves_its_gpus_to_others(limited_lab: Lab) -> None:
    with Living(limited_lab) as living:
        small = ("--qos=small", "--time=5")
        first = limited_lab.sbatch("sleep 60", *OURS, *small, "--gres=gpu:2")
        living.until(first, "RUNNING")
        over = limited_lab.sbatch("sleep 0.2", *OURS, *small, "--gres=gpu:4")
        also = limited_lab.sbatch("sleep 0.2", *OURS, *small, "--gres=gpu:4")
        ones = [limited_lab.sbatch("sleep 60", *OURS, "--gres=gpu:1", "--time=5") for _ in range(12)]
        for name in ones:
            living.until(name, "RUNNING", 30)
        assert living.decided.count(over) == 1  # it came in the same turn as the other one
        assert living.decided.count(also) <= 1
        alarms = [alarm.text for alarm in living.alarms if alarm.kind == "limit" and alarm.job == over]
        assert len(alarms) == 1
        assert "QOSMaxGRESPerUser" in alarms[0]
        assert living.says(over).startswith("PENDING JobHeldUser")  # held again, and pinned nowhere
        why = living.orchestrator.why(over)
        assert why is not None
        assert "QOSMaxGRESPerUser" in why.text
        limited_lab.run("scancel", first, *ones)
        living.until(over, "COMPLETED", 40)
        living.until(also, "COMPLETED", 40)


def test_a_job_that_its_qos_never_lets_start_is_slurms(limited_lab: Lab) -> None:
    with Living(limited_lab) as living:
        name = limited_lab.sbatch("sleep 0.2", *OURS, "--qos=tiny", "--gres=gpu:2", "--time=5")
        living.until(name, "adlro:released", 20)
        assert living.decided.count(name) <= 1
        assert "JobHeld" not in living.says(name)


def word_of(lab: Lab, name: str, word: str) -> str:
    """What `scontrol show job` says after a word."""
    found = re.search(rf"\b{word}=(\S*)", lab.run("scontrol", "show", "job", name))
    assert found, word
    return found[1]


def test_a_job_that_is_held_again_waits_for_us_at_once_and_keeps_its_age_and_its_record(limited_lab: Lab) -> None:
    with Living(limited_lab) as living:
        small = ("--qos=small", "--time=5")
        first = limited_lab.sbatch("sleep 60", *OURS, *small, "--gres=gpu:4", "--constraint=turing")
        living.until(first, "RUNNING")
        over = limited_lab.sbatch("sleep 0.2", *OURS, *small, "--gres=gpu:1")
        submitted = word_of(limited_lab, over, "SubmitTime")
        living.turn()
        assert living.decided == [first, over]
        submit_s = living.job(over).job.submit_s
        living.until(over, "JobHeldUser")
        assert [alarm.kind for alarm in living.alarms if alarm.job == over] == ["limit"]
        living.turn()  # Slurm may still tell when it planned to start it
        assert (living.job(over).state, living.job(over).managed) == (JobState.WAITING, True)
        assert living.job(over).job.submit_s == submit_s
        assert word_of(limited_lab, over, "ReqNodeList") == "(null)"
        limited_lab.run("scancel", first)
        living.until(over, "COMPLETED", 40)
        limited_lab.wait(lambda: states_in_records(limited_lab).get(over) == "COMPLETED", "slurmdbd knows its end", 30)
        (row,) = (row for row in limited_lab.sacct("JobID", "Submit", "Eligible", "Start") if row["JobID"] == over)
        assert row["Submit"] == submitted
        assert submitted <= row["Eligible"] <= row["Start"]


def test_the_time_at_which_a_user_wants_a_job_to_begin_outlasts_a_withdrawal(limited_lab: Lab) -> None:
    with Living(limited_lab) as living:
        small = ("--qos=small", "--time=5", "--gres=gpu:4")
        first = limited_lab.sbatch("sleep 60", *OURS, *small)
        living.until(first, "RUNNING")
        placed = limited_lab.sbatch("sleep 0.2", *OURS, *small)
        living.turn()
        assert living.decided == [first, placed]
        limited_lab.wait(lambda: "QOSMaxGRESPerUser" in living.says(placed), "Slurm does not start it")
        limited_lab.run("scontrol", "update", f"JobId={placed}", "StartTime=now+1hour")  # as its user may
        later = word_of(limited_lab, placed, "EligibleTime")
        living.backend.read()
        (answer,) = living.backend.act([Order(placed, "")])
        assert answer.done, answer
        assert living.says(placed).startswith("PENDING JobHeldUser")
        assert word_of(limited_lab, placed, "EligibleTime") == later
        limited_lab.run("scancel", first)
        living.turn(2)
        assert (living.job(placed).managed, living.job(placed).reason) == (False, "BeginTime")


def test_a_job_that_begins_while_it_is_withdrawn_is_not_held_and_has_its_record(limited_lab: Lab) -> None:
    """Many are let go at once and withdrawn one after the other, while Slurm starts them."""
    commands = CommandWay(Commands(limited_lab.environment["SLURM_CONF"]))
    with Living(limited_lab) as living:
        began, held = list[str](), list[str]()
        for _ in range(6):
            names = [limited_lab.sbatch("sleep 0.3", "--hold", "--time=1") for _ in range(16)]
            limited_lab.run("scontrol", "release", ",".join(names))
            before = len(held)
            for name in names:
                try:
                    commands.withdraw(name, "adlro:held adlro:decision=d1", "adlro:held", 0)
                    held.append(name)
                except RefusedError:
                    began.append(name)
            told = [(name, living.says(name)) for name in names]
            assert all(said.startswith("PENDING JobHeldUser") for name, said in told if name in held), told
            assert not any("JobHeld" in said for name, said in told if name in began), told
            if before < len(held) < before + len(names):
                break  # Slurm started some of them in between
        assert began
        expected = dict.fromkeys(began, "COMPLETED")
        limited_lab.wait(lambda: expected.items() <= states_in_records(limited_lab).items(), "their records", 30)


def states_in_records(lab: Lab) -> dict[str, str]:
    """The state of each job in slurmdbd, which learns of it some seconds later."""
    return {row["JobID"]: row["State"] for row in lab.sacct("JobID", "State")}
