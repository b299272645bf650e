"""What an administrator does: set it up, look what is missing, and give the queue back when the daemon is dead."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from tests.slurm.driving import RADEON, VOLTA, Driven, options_of
from tests.slurm.lab import MACHINES, Lab, running
from typer.testing import CliRunner

from adlro.cli.slurm import app
from adlro.core.ports import ENDED, JobState, Part
from adlro.serve.slurm import SlurmOptions, check, features_of, setup, slurm_parts

A_USER = "nobody"
"""Somebody who is not the daemon."""


@pytest.fixture(scope="module")
def set_up() -> Iterator[Lab]:
    """A Slurm with the plugin that we ship, and a type for each GPU."""
    files = setup(SlurmOptions(partitions=("gpu",)), {}, user="slurm", uid=os.geteuid(), ready="x")
    lua = files[0].text.replace("local TYPES = {}", 'local TYPES = { ["v100"] = "volta", ["mi50"] = "radeon" }')
    conf = ("PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP",)
    with running(Lab(MACHINES, index_types=True, lua=lua, conf=conf)) as started:
        yield started


@pytest.fixture
def on_set_up(set_up: Lab) -> Iterator[Driven]:
    with Driven(set_up, "socket") as backend:
        yield backend


def command(lab: Lab, *words: str) -> tuple[int, str]:
    """What `adlro slurm …` comes to on a lab."""
    done = CliRunner().invoke(app, [*words, "--conf", lab.environment["SLURM_CONF"]])
    return done.exit_code, done.stdout


def test_the_plugin_holds_and_marks_jobs_of_our_partition_only(on_set_up: Driven) -> None:
    lab = on_set_up.lab
    ours = lab.sbatch("sleep 1", "--gres=gpu:1", "--comment=mine adlro:family=data")
    other = lab.sbatch("sleep 1", "--gres=gpu:1", "--partition=other")
    shape = lab.sbatch("sleep 1", "--gres=gpu:1", "--nodes=2")
    job = on_set_up.job(ours)
    assert (job.state, job.managed, job.job.family) == (JobState.WAITING, True, "data")
    assert not on_set_up.job(other).managed
    assert on_set_up.until(shape, *ENDED).state is JobState.FINISHED  # left to Slurm, not held for ever
    on_set_up.place(ours, Part("radeon0", RADEON, 1, (2,)))
    assert on_set_up.until(ours, *ENDED).parts == (Part("radeon0", RADEON, 1, (2,)),)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a job in as somebody else")
def test_the_plugin_keeps_users_from_placing_their_jobs_themselves(on_set_up: Driven) -> None:
    lab = on_set_up.lab
    ours = lab.sbatch("sleep 1", "--gres=gpu:1", "--comment=mine adlro:decision=7 adlro:family=data", user=A_USER)
    job = on_set_up.job(ours)
    assert (job.state, job.managed, job.decision, job.job.family) == (JobState.WAITING, True, "", "data")
    for wish in ("ReqNodeList=volta0", "Comment=adlro:decision=1", "Priority=1000"):
        with pytest.raises(AssertionError, match="scontrol"):  # the owner may not choose where and when it starts
            lab.run("scontrol", "update", f"JobId={ours}", wish, user=A_USER)
    lab.run("scontrol", "update", f"JobId={ours}", "TimeLimit=5", user=A_USER)


def test_the_plugin_goes_by_slurms_default_where_a_job_names_no_partition() -> None:
    """Ours is a small partition beside the default: jobs that name none must not wait for us."""
    files = setup(SlurmOptions(partitions=("canary",)), {}, user="slurm", uid=1234, ready="x")
    assert "[0] = true, [1234] = true }" in files[0].text
    conf = ("PartitionName=canary Nodes=volta0 MaxTime=INFINITE State=UP",)
    with running(Lab(lua=files[0].text, conf=conf)) as small, Driven(small, "socket") as backend:
        theirs, ours = small.sbatch("sleep 0.1", "--gres=gpu:1"), small.sbatch("sleep 0.1", "--partition=canary")
        assert backend.until(theirs, *ENDED).state is JobState.FINISHED
        assert (backend.job(ours).state, "adlro:held" in small.run("squeue", "--format=%k")) == (JobState.WAITING, True)
        small.run("scancel", ours)


def test_the_plugin_makes_a_type_a_feature_where_each_device_has_its_own(on_set_up: Driven) -> None:
    name = on_set_up.lab.sbatch("sleep 1", "--gres=gpu:v100:2")
    job = on_set_up.job(name)
    assert (job.job.gpus, set(job.job.models), job.managed) == (2, {VOLTA}, True)
    on_set_up.place(name, Part("volta1", VOLTA, 2, (0, 3)))
    assert on_set_up.until(name, *ENDED).parts == (Part("volta1", VOLTA, 2, (0, 3)),)


def test_release_all_gives_the_queue_back_with_the_daemon_dead_and_twice_does_no_harm(on_set_up: Driven) -> None:
    lab = on_set_up.lab
    blocker = on_set_up.submit("sleep 30", gpus=4)
    on_set_up.place(blocker, Part("volta0", VOLTA, 4))
    on_set_up.until(blocker, JobState.RUNNING)
    held = lab.sbatch("sleep 0.2", "--gres=gpu:1", "--comment=mine")
    array = lab.sbatch("sleep 0.2", "--gres=gpu:1", "--array=1-3")
    pinned = on_set_up.submit("sleep 0.2")
    on_set_up.place(pinned, Part("volta0", VOLTA, 1))  # which is full: it would wait for half a minute
    cut = on_set_up.submit("sleep 0.2", gpus=2)
    lab.run("scontrol", "update", f"JobId={cut}", "TresPerNode=", "Comment=adlro:held adlro:gpus=2")
    code, out = command(lab, "release-all", "--json")
    given = json.loads(out)["jobs"]
    assert code == 0, out
    assert {job["job"] for job in given} == {held, f"{array}_[1-3]", pinned, cut}
    assert all(job["done"] for job in given)
    for name in (held, f"{array}_1", f"{array}_3", pinned, cut):
        ended = on_set_up.until(name, *ENDED)
        assert (ended.state, ended.parts[0].node != "volta0") == (JobState.FINISHED, True)
    assert on_set_up.job(cut).parts[0].count == 2
    assert on_set_up.job(blocker).state is JobState.RUNNING
    assert "mine" in lab.run("scontrol", "show", "job", held)
    assert json.loads(command(lab, "release-all", "--json")[1])["jobs"] == []


def test_release_all_leaves_the_queue_alone_while_the_daemon_answers(
    on_set_up: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adlro.serve import slurm

    held = on_set_up.lab.sbatch("sleep 0.2", "--gres=gpu:1")
    monkeypatch.setattr(slurm, "is_answered", lambda url: True)
    code, out = command(on_set_up.lab, "release-all", "--unless-ready", "http://127.0.0.1:1/readyz")
    assert (code, "nothing was given back" in out) == (0, True)
    assert on_set_up.job(held).state is JobState.WAITING
    monkeypatch.setattr(slurm, "is_answered", lambda url: False)
    command(on_set_up.lab, "release-all", "--unless-ready", "http://127.0.0.1:1/readyz")
    assert on_set_up.until(held, *ENDED).state is JobState.FINISHED


def verdicts(lab: Lab, way: str) -> dict[str, str]:
    """The worst verdict for each thing that was looked at."""
    order: Sequence[str] = ("good", "odd", "missing")
    found: dict[str, str] = {}
    for finding in check(options_of(lab, way)):
        found[finding.what] = max(found.get(finding.what, "good"), finding.verdict, key=order.index)
    return found


def test_check_finds_nothing_missing_where_all_is_there(set_up: Lab) -> None:
    found = verdicts(set_up, "socket")
    assert set(found.values()) == {"good"}, found
    code, out = command(set_up, "check", "--json")
    assert (code, json.loads(out)["ready"]) == (0, True)


def test_check_says_in_words_what_is_missing(lab: Lab) -> None:
    findings = {finding.what: finding for finding in check(options_of(lab, "socket"), lambda name: None)}
    assert findings["commands"].verdict == "odd"
    assert "--comment=adlro:held" in findings["JobSubmitPlugins"].text
    silent = check(replace(options_of(lab, "socket-only"), rest="unix:/nowhere/rest.sock"))
    assert {finding.what for finding in silent if finding.verdict == "missing"} == {"slurmrestd", "slurmctld"}
    code, out = command(lab, "check")
    assert code == 0, out
    assert "JobSubmitPlugins" in out


def test_install_prints_every_file_with_this_sites_names_and_how_to_undo_it(set_up: Lab) -> None:
    code, out = command(set_up, "install", "--dry-run", "--daemon", "root")
    assert code == 0
    assert '["gpu"] = true' in out
    assert '["v100"] = "volta"' in out
    assert '["mi50"] = "amd"' in out
    for word in ("JobSubmitPlugins=lua", "adlro-release.timer", "release-all", "to undo it", "--unless-ready"):
        assert word in out
    assert "@" not in "".join(line for line in out.splitlines() if "adlro" in line and "ExecStart" in line)


def test_a_site_with_one_type_for_all_gpus_of_a_node_needs_no_features(lab: Lab, set_up: Lab) -> None:
    for site, expected in ((lab, set[str]()), (set_up, {"v100", "t4", "mi50"})):
        with closing(slurm_parts(options_of(site, "socket"))) as parts:
            parts.reader.read()
            assert set(features_of(parts.reader.sites)) == expected
