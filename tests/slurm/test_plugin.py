"""What job_submit.lua holds, what it leaves to Slurm, and what it lets users do, on a real Slurm."""

import getpass
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.parts import program
from tests.slurm.lab import MACHINES, Lab, Machine, running
from tests.slurm.plugins import NO_RULES, files_for, plugin_for, put, with_plugin

from adlro.backends.slurm.backend import slurm_backend
from adlro.backends.slurm.options import SlurmOptions
from adlro.backends.slurm.rest import Rest
from adlro.backends.slurm.setup import setup
from adlro.backends.slurm.site import SiteNow
from adlro.core.ports import JobState, Order, Part

A_USER = "nobody"
"""Somebody who is not the daemon."""

LATER = "--begin=now+1hour"
"""A job that Slurm has should not start before the test has looked at it."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit a job as somebody else")

PARTITIONS = (
    "PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP",
    "PartitionName=whole Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE",
    "PartitionName=crowded Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=FORCE:2",
    "PartitionName=forced Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=FORCE:1",
    "Licenses=solver:2",
)


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    lab = Lab(lua=NO_RULES, conf=PARTITIONS)
    with with_plugin(lab, "gpu", "whole", "crowded", "forced"):
        yield lab


@pytest.fixture
def site(started: Lab) -> Iterator[Lab]:
    """A Slurm with our plugin for all partitions but `other`; the queue is empty afterwards."""
    yield started
    for user in (getpass.getuser(), A_USER):
        started.run("scancel", f"--user={user}")
    started.wait(lambda: not started.run("squeue", "--noheader").strip(), "an empty queue")


def told(lab: Lab, job: str) -> tuple[str, bool]:
    """The comment of a waiting job, or of the first record of an array, and whether it is held."""
    lines = lab.run("squeue", "--noheader", "--array-unique", f"--jobs={job}", "--format=%Q|%k").splitlines()
    priority, comment = lines[0].split("|")
    return comment if comment != "(null)" else "", priority == "0"


def comments(lab: Lab, array: str) -> set[str]:
    """The comments of all tasks of an array, or parts of a job."""
    return set(lab.run("squeue", "--noheader", "--array", f"--jobs={array}", "--format=%k").splitlines())


def refused(lab: Lab, *command: str, user: str | None = None) -> str:
    """What Slurm says to a command that it must refuse."""
    done = subprocess.run(
        command, env=lab.environment, input="#!/bin/sh\n", capture_output=True, text=True, cwd=lab.folder, user=user
    )
    assert done.returncode != 0, f"{command} was not refused"
    return done.stderr


# ---- what is held ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-n1",
        "-c16",
        "-N1 -n4 -c2",
        "--mem=64000",
        "--mem-per-cpu=4000 -c16",
        "--gres=gpu:4",
        "--gres=gpu",
        "--gres=gpu:v100:2",
        "--gpus=4",
        "--gpus=t4:1",
        "--gpus-per-node=2",
        "-N1 --gpus-per-node=2 --ntasks-per-node=2",
        "--gpus=2 --cpus-per-gpu=8 --mem-per-gpu=16000",
        "--gpus=8",
        "-N2 --gpus-per-node=4",
        "-N2 -n8 --gres=gpu:v100:4",
        "-N2 --gpus=8",
        "--gres=gpu:1 -C volta",
        "--gres=gpu:1 -C nvidia&turing",
        "--gres=gpu:1 --array=1-3%2",
        "--gres=gpu:1 --time=10 --nice=5 --requeue --signal=B:USR1@30 --begin=now+1hour",
        "--gres=gpu:1 --partition=forced",
        "--gres=gpu:1 --partition=gpu,forced",
    ],
)
def test_what_adlro_can_place_is_marked_and_held(site: Lab, options: str) -> None:
    job = site.sbatch("sleep 1", "--comment=mine", *options.split())
    assert told(site, job) == ("mine adlro:held", True)


@pytest.mark.parametrize(
    "options",
    [
        "--partition=other",
        "--partition=gpu,other",
        "-n2 --gpus-per-task=1",
        "--gpus-per-socket=1 --sockets-per-node=1",
        "-N2",
        "-N1-2",
        "-N1-2 --gres=gpu:4",
        "-n4",
        "-n17",
        "-n2 --gpus=2",
        "-n2 --gres=gpu:1",
        "--gpus=6",
        "--gpus=12",
        "-N2 --gpus-per-node=2",
        "-N2 --gpus=6",
        "--gpus=1 --ntasks-per-gpu=2",
        "--gpus=1 --gres-flags=enforce-binding",
        "--licenses=solver:1",
        "--contiguous",
        "--switches=1",
        "--exclusive",
        "--exclusive=user",
        "--oversubscribe",
        "--partition=whole",
        "--partition=crowded",
        "--nodelist=volta0",
        "--exclude=volta0",
        "--constraint=volta",
        "--gres=gpu:1 --constraint=[volta|turing]",
        "--mem=0",
        "--threads-per-core=1",
        "--spread-job",
        "--priority=100",
    ],
)
def test_what_adlro_cannot_place_as_well_as_slurm_is_left_alone(site: Lab, options: str) -> None:
    job = site.sbatch("sleep 1", "--comment=mine", LATER, *options.split())
    assert told(site, job) == ("mine", False)


def test_a_reservation_and_a_heterogeneous_job_are_left_to_slurm(site: Lab) -> None:
    site.run("scontrol", "create", "reservation", "ReservationName=r", "StartTime=now", "Duration=60", "Users=root",
             "Nodes=radeon0")  # fmt: skip
    try:
        assert told(site, site.sbatch("sleep 1", "--reservation=r", "--comment=mine", LATER)) == ("mine", False)
        site.run("scancel", "--partition=gpu")
    finally:
        site.run("scontrol", "delete", "ReservationName=r")
    het = site.sbatch("sleep 1", "--comment=mine", LATER, ":", "-n1", "--comment=mine", LATER)
    assert comments(site, het) == {"mine"}


def test_an_interactive_job_is_left_to_slurm(site: Lab) -> None:
    assert site.run("srun", "--gres=gpu:1", "--partition=gpu", "hostname")


@pytest.mark.parametrize(
    "options", ["--gres=gpu:5", "--mem=999G", "-c17", "--gpus=17", "--gres=gpu:a100:1", "--gres=gpu:v100:1,gpu:t4:1"]
)
def test_a_request_that_no_node_can_meet_is_refused_at_sbatch_in_slurms_words(site: Lab, options: str) -> None:
    assert "Requested node configuration is not available" in refused(site, "sbatch", "--partition=gpu", options)


def test_the_shapes_of_the_nodes_decide_not_one_number_for_the_cluster() -> None:
    """A node with 8 GPUs beside those with 4, and one without: what one node has is fine, what is more is Slurm's."""
    machines = (*MACHINES[:2], Machine("big0", "t4", "nvidia_gpu_env", "nvidia", 8, 32, 128_000))
    with with_plugin(Lab(machines, lua=NO_RULES), "gpu") as lab:
        for options, is_ours in (
            ("--gpus=6", True),
            ("--gpus=v100:4", True),
            ("--gpus=v100:8", True),  # both nodes, whole
            ("--gpus=v100:6", False),
            ("--gpus=12", False),
            ("-N2 --gpus-per-node=4", False),  # big0 would not be whole
            ("-N2 --gpus-per-node=v100:4", True),
            ("--gpus=v100:1 -c17", None),
            ("--gpus=1 -c17", True),
            ("--gpus=1 -C nvidia", True),
            ("--gpus=1 -C volta", True),
        ):
            if is_ours is None:
                assert "not available" in refused(lab, "sbatch", *options.split())
            else:
                job = lab.sbatch("sleep 1", LATER, *options.split())
                assert (options, told(lab, job)[1]) == (options, is_ours)
                lab.run("scancel", job)


def test_a_feature_that_only_some_nodes_of_a_model_have_is_left_to_slurm() -> None:
    machines = (MACHINES[0], Machine("volta1", "v100", "nvidia_gpu_env", "nvidia,volta,nvme"))
    with with_plugin(Lab(machines, lua=NO_RULES), "gpu") as lab:
        for feature, is_ours in (("volta", True), ("nvme", False), ("volta&nvme", False)):
            job = lab.sbatch("sleep 1", LATER, "--gres=gpu:1", f"--constraint={feature}")
            assert (feature, told(lab, job)[1]) == (feature, is_ours)


# ---- holds of users --------------------------------------------------------------------------------------------------


@as_root
def test_a_users_own_hold_is_marked_as_theirs_and_ends_in_a_hold_of_ours(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", "--hold", "--comment=mine", user=A_USER)
    assert told(site, job) == ("mine adlro:userheld", True)
    site.run("scontrol", "release", job, user=A_USER)
    assert told(site, job) == ("mine adlro:held", True)
    site.run("scontrol", "hold", job, user=A_USER)
    assert told(site, job) == ("mine adlro:userheld", True)
    site.run("scontrol", "release", job)  # an administrator may end it too
    assert told(site, job) == ("mine adlro:held", True)
    assert "denied" in refused(site, "scontrol", "release", job, user=A_USER)
    assert told(site, job) == ("mine adlro:held", True)


@as_root
def test_an_administrators_hold_ends_in_a_hold_of_ours_too(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", user=A_USER)
    site.run("scontrol", "hold", job)
    assert told(site, job) == ("adlro:userheld", True)
    site.run("scontrol", "release", job)
    assert told(site, job) == ("adlro:held", True)
    site.run("scontrol", "release", job)  # who may place jobs may also let them go
    site.wait(lambda: not told_or_gone(site, job), "its end")


@as_root
def test_a_hold_of_a_job_that_is_slurms_has_no_mark(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--exclusive", "--hold", "--comment=mine", user=A_USER)
    assert told(site, job) == ("mine", True)
    site.run("scontrol", "release", job, user=A_USER)
    assert told(site, job)[0] == "mine"


@as_root
def test_a_hold_that_is_said_to_be_adlros_is(site: Lab) -> None:
    """As the daemon submits jobs, and users of a site without the plugin."""
    job = site.sbatch(
        "sleep 1", "--gres=gpu:1", "--hold", "--comment=adlro:held adlro:token=abc adlro:decision=7", user=A_USER
    )
    assert told(site, job) == ("adlro:token=abc adlro:held", True)


@as_root
def test_a_job_that_is_slurms_waits_for_nobody_and_says_nothing_of_adlro(site: Lab) -> None:
    words = "--comment=mine adlro:held adlro:decision=7 adlro:family=data adlro:restartable adlro:signal=B:USR1@9"
    job = site.sbatch("sleep 1", "-n2", "--gpus-per-task=1", "--hold", words, LATER, user=A_USER)
    assert told(site, job) == ("mine adlro:family=data adlro:restartable adlro:signal=B:USR1@9", False)


FORGED = "adlro:held adlro:user=alice adlro:priority=1 adlro:gpus=4 adlro:submit=5 adlro:decision=7 adlro:userheld"
"""What only ADLRO may write."""


@as_root
def test_words_of_adlro_in_a_comment_are_taken_out_in_every_partition(site: Lab) -> None:
    job = site.sbatch("sleep 1", "-p", "other", "--hold", f"--comment=mine {FORGED} adlro:family=data", LATER,
                      user=A_USER)  # fmt: skip
    assert told(site, job) == ("mine adlro:family=data", False)  # a hold for ADLRO would last for ever there
    site.run("scontrol", "update", f"JobId={job}", "Partition=gpu", user=A_USER)
    assert told(site, job) == ("mine adlro:family=data", False)
    here = site.sbatch("sleep 1", "--gres=gpu:1", "--hold", f"--comment={FORGED}", user=A_USER)
    assert told(site, here) == ("adlro:held", True)


@as_root
@pytest.mark.parametrize("options", ["--partition=other", "--exclusive", "--partition=other --hold"])
def test_words_of_adlro_cannot_be_written_into_the_comment_of_slurms_job(site: Lab, options: str) -> None:
    job = site.sbatch("sleep 1", "--comment=mine", LATER, *options.split(), user=A_USER)
    is_held = "--hold" in options
    for comment in (FORGED, f"[adlro: soon] {FORGED}", "[adlro:\tsoon adlro:priority=1 ]"):
        site.run("scontrol", "update", f"JobId={job}", f"Comment=ours  {comment} adlro:models=v100", user=A_USER)
        words, still_held = told(site, job)
        assert [word for word in words.split() if word.startswith("adlro:")] == ["adlro:models=v100"]
        assert still_held == is_held
    site.run("scontrol", "update", f"JobId={job}", "Partition=gpu", user=A_USER)
    site.run("scontrol", "hold", job, user=A_USER)
    site.run("scontrol", "release", job, user=A_USER)
    assert "adlro:held" not in told(site, job)[0]


@as_root
def test_text_of_a_users_own_stays_as_it_is_in_a_comment(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--partition=other", "--comment=two  spaces", LATER, user=A_USER)
    assert told(site, job)[0] == "two  spaces"
    site.run("scontrol", "update", f"JobId={job}", "Comment=three   spaces", user=A_USER)
    assert told(site, job)[0] == "three   spaces"
    site.run("scontrol", "update", f"JobId={job}", "Comment=", user=A_USER)
    assert told(site, job)[0] == ""
    site.run("scontrol", "update", f"JobId={job}", "Comment=by root adlro:decision=7")  # a placer may
    assert told(site, job)[0] == "by root adlro:decision=7"


def test_a_job_that_slurmrestd_hands_in_is_held_like_one_of_sbatch(site: Lab) -> None:
    rest = Rest(f"unix:{site.socket}", "", None, 10)
    wish = {"name": "x", "partition": "gpu", "current_working_directory": "/tmp", "environment": {"A": "b"}}
    try:
        for more, is_ours in (({"gres": "gpu:2"}, True), ({"gpus": "6"}, False)):
            body = {"script": "#!/bin/sh\nsleep 1\n", "job": wish | more}
            status, answer = rest.ask("POST", "/job/submit", body, again=False)
            assert status == 200, answer
            assert (more, has_mark(site, str(answer["job_id"]))) == (more, is_ours)
    finally:
        rest.close()


def has_mark(lab: Lab, job: str) -> bool:
    """Whether the comment of a job, which may run, has a word of ours."""
    return "adlro:held" in lab.run("scontrol", "show", "job", job)


@as_root
def test_a_user_may_hold_a_job_that_was_placed_but_has_not_begun(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", LATER, user=A_USER)
    site.run("scontrol", "update", f"JobId={job}", "ReqNodeList=volta0", "Comment=adlro:decision=7")
    site.run("scontrol", "release", job)
    assert told(site, job) == ("adlro:decision=7", False)
    site.run("scontrol", "hold", job, user=A_USER)
    assert told(site, job) == ("adlro:decision=7 adlro:userheld", True)
    assert "denied" in refused(site, "scontrol", "update", f"JobId={job}", "Comment=adlro:decision=8")
    site.run("scontrol", "release", job, user=A_USER)
    assert told(site, job) == ("adlro:decision=7 adlro:held", True)


@as_root
@as_root
def test_a_placed_job_that_adlro_holds_again_is_adlros_and_no_users(site: Lab) -> None:
    blocker = site.sbatch("sleep 60", "--gres=gpu:4", "--nodelist=radeon0", "--partition=other")
    site.wait(lambda: "RUNNING" in site.run("squeue", "--noheader", "--format=%T", f"--jobs={blocker}"), "a blocker")
    job = site.sbatch("sleep 60", "--gres=gpu:1", user=A_USER)
    backend = slurm_backend(SlurmOptions(rest=f"unix:{site.socket}", conf=site.environment["SLURM_CONF"]))
    with closing(backend):
        backend.read()
        (placed,) = backend.act([Order(job, "d1", (Part("radeon0", "mi50", 1),))])
        assert placed.done, placed
        backend.read()
        (held,) = backend.act([Order(job, "")])
        assert held.done, held
        comment, is_held = told(site, job)
        assert is_held
        assert "adlro:held" in comment
        assert "userheld" not in comment
        assert "decision" not in comment
        (live,) = (each for each in backend.read().jobs if each.id == job)
        assert live.managed
        assert live.state is JobState.WAITING


def test_a_line_for_users_that_comes_too_late_does_not_end_a_users_hold(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", "--hold", user=A_USER)
    site.run("scontrol", "update", f"JobId={job}", "Comment=[adlro: waits for a v100] adlro:held")
    assert told(site, job) == ("adlro:userheld", True)
    site.run("scontrol", "release", job, user=A_USER)
    assert told(site, job) == ("adlro:held", True)


@as_root
def test_each_part_of_an_array_keeps_its_own_words(site: Lab) -> None:
    array = site.sbatch("sleep 1", "--gres=gpu:1", "--array=1-4", LATER, user=A_USER)
    site.run("scontrol", "update", f"JobId={array}_2", "ReqNodeList=volta0", "Comment=adlro:decision=7")
    site.run("scontrol", "hold", f"{array}_3", user=A_USER)
    assert comments(site, array) == {"adlro:held", "adlro:decision=7", "adlro:userheld"}
    site.run("scontrol", "hold", array, user=A_USER)
    assert comments(site, array) == {"adlro:decision=7 adlro:userheld", "adlro:userheld"}
    site.run("scontrol", "release", array, user=A_USER)
    assert comments(site, array) == {"adlro:decision=7 adlro:held", "adlro:held"}
    site.run("scontrol", "update", f"JobId={array}", "Partition=other", user=A_USER)
    words = {comment.partition("=")[0] for comment in comments(site, array)}
    assert words == {"adlro:released", "adlro:decision"}  # what may be pinned waits for the reader


@as_root
@pytest.mark.parametrize("tasks", ["12345", "54321"])
def test_a_hold_of_an_array_keeps_the_comments_of_the_parts_that_it_does_not_mark(site: Lab, tasks: str) -> None:
    array = site.sbatch("sleep 60", "--gres=gpu:1", "--array=1-5", "--comment=mine", user=A_USER)
    comments = ("mine adlro:decision=7", "mine adlro:released=5", "theirs", "mine adlro:held", "mine adlro:held")
    for task, comment in zip(tasks, comments, strict=True):
        site.run("scontrol", "update", f"JobId={array}_{task}", f"Comment={comment}")
    site.run("scontrol", "release", f"{array}_{tasks[0]}")
    site.wait(lambda: "RUNNING" in site.run("squeue", f"--jobs={array}_{tasks[0]}", "--format=%T"), "a running task")
    hold = ["scontrol", "update", f"JobId={array}", "Priority=0"]
    subprocess.run(hold, env=site.environment, capture_output=True, user=A_USER)  # one of them runs
    found = dict(line.split("|") for line in site.run("squeue", "-hr", f"-j{array}", "--format=%K|%k").splitlines())
    expected = (*comments[:3], "mine adlro:userheld", "mine adlro:userheld")
    assert found == dict(zip(tasks, expected, strict=True))


PARTS = """
slurm = {NO_VAL = 4294967294, INFINITE = 4294967295, SUCCESS = 0, ERROR = -1, log_error = print}
dofile(arg[1])
local wish, asked = {}, {comment = ASKED, priority = 0}
setmetatable(wish, {__index = asked, __newindex = function(_, key, value)
   assert(value ~= nil, "Slurm takes no nil for a text")
   asked[key] = value
end})
for _, part in ipairs({{"mine adlro:held", 0}, {"mine adlro:decision=7", 1}, {"theirs", 0}, {nil, 0},
                       {"adlro:released=5", 1}, {"adlro:decision=8", 0}, {"last adlro:held", 0}}) do
   local job = {comment = part[1], job_state = part[2], array_job_id = 12, partition = "gpu", priority = 0}
   local answer = slurm_job_modify(wish, job, {}, 1000)
   print(answer == 0 and (asked.comment or "nil") or "denied")
end
"""
"""What Slurm does for an array: it calls the plugin for each part, in any order, and always with the same wish."""


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("nil", ["mine adlro:userheld", "mine adlro:decision=7", "theirs", "", "adlro:released=5",
                 "adlro:decision=8 adlro:userheld", "last adlro:userheld"]),
        ("'new adlro:priority=1'", ["denied", "denied", "new", "new", "new", "denied", "denied"]),
    ],
)  # fmt: skip
def test_a_change_of_an_array_is_looked_at_for_each_part_anew(tmp_path: Path, asked: str, answers: list[str]) -> None:
    options = SlurmOptions(partitions=["gpu"])
    plugin = setup(options, SiteNow(conf=str(tmp_path / "slurm.conf")), user="slurm", uid=None, ready="")[0].text
    (tmp_path / "job_submit.lua").write_text(plugin)
    (tmp_path / "parts.lua").write_text(PARTS.replace("ASKED", asked))
    command = [program("lua"), str(tmp_path / "parts.lua"), str(tmp_path / "job_submit.lua")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stderr, done.stdout.splitlines()) == ("", answers)


# ---- changes ---------------------------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("user", [A_USER, None])
def test_a_job_that_is_moved_to_another_partition_is_slurms_at_once(site: Lab, user: str | None) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", "--comment=mine", LATER, user=A_USER)
    held = site.sbatch("sleep 1", "--gres=gpu:1", "--hold", user=A_USER)
    within = site.sbatch("sleep 1", "--gres=gpu:1", user=A_USER)
    for name in (job, held):
        site.run("scontrol", "update", f"JobId={name}", "Partition=other", user=user)
    site.run("scontrol", "update", f"JobId={within}", "Partition=forced", user=user)
    comment, is_held = told(site, job)
    assert (comment.startswith("mine adlro:released="), is_held) == (True, False)
    comment, is_held = told(site, held)
    assert (comment.startswith("adlro:released="), is_held) == (True, True)  # the hold is the user's
    assert told(site, within) == ("adlro:held", True)
    site.run("scontrol", "release", held, user=A_USER)
    site.wait(lambda: not told_or_gone(site, held), "its end")


@as_root
def test_a_job_that_may_be_pinned_keeps_its_mark_when_it_is_moved(site: Lab) -> None:
    """Lua cannot take a pin off; the reader gives the job back as a whole."""
    job = site.sbatch("sleep 1", "--gres=gpu:1", user=A_USER)
    site.run("scontrol", "update", f"JobId={job}", "ReqNodeList=volta0", "Comment=adlro:decision=7 adlro:held")
    site.run("scontrol", "update", f"JobId={job}", "Partition=other", user=A_USER)
    assert told(site, job) == ("adlro:decision=7 adlro:held", True)
    refused(site, "scontrol", "update", f"JobId={job}", "NumCPUs=2", user=A_USER)


def told_or_gone(lab: Lab, job: str) -> bool:
    with suppress(AssertionError, IndexError):
        return bool(told(lab, job))
    return False


@as_root
def test_an_owner_who_asks_for_other_resources_gets_them_from_slurm(site: Lab) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", "--comment=mine", LATER, user=A_USER)
    for wish in ("TimeLimit=5", "JobName=x", "Dependency="):
        site.run("scontrol", "update", f"JobId={job}", wish, user=A_USER)
        assert told(site, job) == ("mine adlro:held", True)
    site.run("scontrol", "update", f"JobId={job}", "NumNodes=2", user=A_USER)
    comment, is_held = told(site, job)
    assert (comment.startswith("mine adlro:released="), is_held) == (True, False)


@as_root
@pytest.mark.parametrize(
    "wish", ["ReqNodeList=volta0", "Comment=adlro:decision=1", "Priority=1000", "Nice=3", "Comment=mine"]
)
def test_an_owner_may_not_choose_where_and_when_it_starts(site: Lab, wish: str) -> None:
    job = site.sbatch("sleep 1", "--gres=gpu:1", user=A_USER)
    refused(site, "scontrol", "update", f"JobId={job}", wish, user=A_USER)
    assert told(site, job) == ("adlro:held", True)


@as_root
def test_a_running_job_keeps_its_words_and_its_owner_may_change_the_rest(site: Lab) -> None:
    job = site.sbatch("sleep 30", "--gres=gpu:1", user=A_USER)
    site.run("scontrol", "update", f"JobId={job}", "Comment=adlro:decision=7")
    site.run("scontrol", "release", job)
    site.wait(lambda: "RUNNING" in site.run("squeue", f"--jobs={job}", "--format=%T"), "a running job")
    refused(site, "scontrol", "update", f"JobId={job}", "Comment=x", user=A_USER)
    site.run("scontrol", "update", f"JobId={job}", "JobName=x", user=A_USER)
    assert told(site, job)[0] == "adlro:decision=7"


# ---- when it goes wrong ----------------------------------------------------------------------------------------------


def test_an_error_in_the_plugin_leaves_jobs_to_slurm_and_is_told_in_the_log() -> None:
    with running(Lab(lua=NO_RULES)) as lab:
        plugin = plugin_for(lab, "gpu")
        for head in (
            "local function submit(job, partitions, uid)",
            "local function modify(wish, job, partitions, uid)",
        ):
            assert head in plugin
            plugin = plugin.replace(head, f"{head} error('broken {head[15:21]}')")
        put(lab, "job_submit.lua", plugin)
        job = lab.sbatch("sleep 1", "--comment=mine", LATER)
        lab.run("scontrol", "update", f"JobId={job}", "TimeLimit=5")
        assert told(lab, job) == ("mine", False)
        log = (lab.folder / "log" / "slurmctld.log").read_text()
        assert "adlro: a job left to Slurm:" in log
        assert "broken submit" in log
        assert "broken modify" in log


def test_a_plugin_that_knows_no_nodes_leaves_all_jobs_to_slurm() -> None:
    with running(Lab(lua=NO_RULES)) as lab:
        plugin = plugin_for(lab, "gpu")
        start, end = plugin.index('["gpu"] = {') + len('["gpu"] = {'), plugin.index("\n   },\n}")
        put(lab, "job_submit.lua", plugin[:start] + plugin[end:])
        assert told(lab, lab.sbatch("sleep 1", "--comment=mine", LATER)) == ("mine", False)


def test_a_sites_own_rules_are_called_first_and_stay_as_they_are() -> None:
    rules = """
function slurm_job_submit(job, partitions, uid)
   if job.name == "bad" then slurm.log_user("no bad jobs here") return slurm.ERROR end
   job.comment = "theirs"
   return slurm.SUCCESS
end
function slurm_job_modify(wish, job, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
    with running(Lab(lua=rules)) as lab:
        plugin, chain = (file for file in files_for(lab, "gpu") if "lua" in file.path)
        assert (plugin.name, chain.name) == ("adlro.lua", "job_submit.lua.diff")
        (lab.folder / chain.name).write_text(chain.text)
        put(lab, "adlro.lua", plugin.text)
        lab.run("patch", chain.path, chain.name)
        put(lab, "job_submit.lua", (lab.folder / "etc" / "job_submit.lua").read_text())
        assert told(lab, lab.sbatch("sleep 1")) == ("theirs adlro:held", True)
        assert "no bad jobs here" in refused(lab, "sbatch", "--job-name=bad")
        assert [file.name for file in files_for(lab, "gpu") if "lua" in file.path] == ["adlro.lua"]  # it is chained now
