"""What an administrator does: set it up, look what is missing, and give the queue back when the daemon is dead."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.slurm.driving import RADEON, VOLTA, Driven, options_of
from tests.slurm.lab import MACHINES, Lab, Machine, running
from tests.slurm.plugins import NO_RULES, put, with_plugin
from typer.testing import CliRunner

from adlro.backends.slurm.backend import slurm_backend, slurm_parts
from adlro.backends.slurm.check import check_site
from adlro.backends.slurm.shapes import features_of
from adlro.cli.slurm import app
from adlro.core.errors import UsageError
from adlro.core.ports import ENDED, JobState, Part
from adlro.core.records import Gpus
from adlro.daemon.config import load_config

A_USER = "nobody"
"""Somebody who is not the daemon."""


@pytest.fixture(scope="module")
def set_up() -> Iterator[Lab]:
    """A Slurm with the plugin that we ship, and a type for each GPU."""
    conf = ("PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP",)
    with with_plugin(Lab(MACHINES, index_types=True, lua=NO_RULES, conf=conf), "gpu") as started:
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
def test_the_plugin_takes_words_of_adlros_out_of_users_comments(on_set_up: Driven) -> None:
    lab = on_set_up.lab
    ours = lab.sbatch("sleep 1", "--gres=gpu:1", "--comment=mine adlro:decision=7 adlro:family=data", user=A_USER)
    job = on_set_up.job(ours)
    assert (job.state, job.managed, job.decision, job.job.family) == (JobState.WAITING, True, "", "data")


def test_the_plugin_goes_by_slurms_default_where_a_job_names_no_partition() -> None:
    """Ours is a small partition beside the default: jobs that name none must not wait for us."""
    conf = ("PartitionName=canary Nodes=volta0 MaxTime=INFINITE State=UP",)
    with with_plugin(Lab(lua=NO_RULES, conf=conf), "canary") as small, Driven(small, "socket") as backend:
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
    lab.run("scontrol", "update", f"JobId={cut}", "TresPerNode=", "Comment=adlro:held", "AdminComment=adlro:gpus=2")
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
    from adlro.backends.slurm import backend as slurm

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
    for finding in check_site(options_of(lab, way)):
        found[finding.what] = max(found.get(finding.what, "good"), finding.verdict, key=order.index)
    return found


def test_check_finds_nothing_missing_where_all_is_there(set_up: Lab) -> None:
    found = verdicts(set_up, "socket")
    assert set(found.values()) == {"good"}, found
    code, out = command(set_up, "check", "--json")
    assert (code, json.loads(out)["ready"]) == (0, True)


def test_check_tells_a_plugin_that_is_absent_old_or_for_other_partitions(set_up: Lab) -> None:
    path = Path(set_up.environment["SLURM_CONF"]).with_name("job_submit.lua")
    ours = path.read_text()

    def plugin(*words: str) -> str:
        found = json.loads(command(set_up, "check", "--json", *words)[1])["findings"]
        return next(f"{finding['verdict']}: {finding['text']}" for finding in found if finding["what"] == "plugin")

    try:
        assert plugin("--partition", "gpu") == "good: holds the jobs of gpu"
        assert plugin("--partition", "other").startswith("odd: does not hold the jobs of other")
        path.write_text(ours.replace("nodes = 2", "nodes = 3"))
        assert plugin().startswith("odd: was made for other nodes")
        path.write_text(NO_RULES)
        assert plugin().startswith("odd: job_submit.lua is not ADLRO's")
    finally:
        put(set_up, "job_submit.lua", ours)


def test_check_says_in_words_what_is_missing(lab: Lab) -> None:
    findings = {finding.what: finding for finding in check_site(options_of(lab, "socket"), lambda name: None)}
    assert findings["commands"].verdict == "odd"
    assert "--comment=adlro:held" in findings["JobSubmitPlugins"].text
    silent = check_site(options_of(lab, "socket-only").model_copy(update={"rest": "unix:/nowhere/rest.sock"}))
    assert {finding.what for finding in silent if finding.verdict == "missing"} == {"slurmrestd", "slurmctld"}
    code, out = command(lab, "check")
    assert code == 0, out
    assert "JobSubmitPlugins" in out


def test_install_prints_every_file_with_this_sites_names_and_how_to_undo_it(set_up: Lab) -> None:
    code, out = command(set_up, "install", "--dry-run", "--daemon", "root", "--partition", "gpu")
    assert code == 0
    assert '["gpu"] = {' in out
    assert '{nodes = 2, cpus = 16, memory = 64000, most = 4, gpus = {["v100"] = 4}}' in out
    assert '["v100"] = "volta"' in out
    assert '["mi50"] = "amd"' in out
    for word in ('kind = "slurm"', 'partitions = ["gpu"]', "adlro.service", "adlro-release.timer", "release-all"):
        assert word in out
    for word in ("undo it", "--unless-ready", "LimitNOFILE=65536", "User=root", "serve --config /etc/adlro/adlro.toml"):
        assert word in out
    assert "@" not in "".join(line for line in out.splitlines() if "adlro" in line)


def test_install_asks_for_nothing_that_the_site_has_and_for_nothing_global(lab: Lab, set_up: Lab) -> None:
    """The lab has sched/backfill, its own priorities and a default memory; only the plugin may be missing."""
    has = json.loads(command(set_up, "install", "--dry-run", "--json", "--partition", "gpu")[1])
    assert not any(file["is_diff"] for file in has["files"])
    lacks = json.loads(command(lab, "install", "--dry-run", "--json", "--partition", "gpu")[1])
    (diff,) = (file for file in lacks["files"] if file["is_diff"])
    changed = [line for line in diff["text"].splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert (diff["path"], changed) == (lab.environment["SLURM_CONF"], ["+JobSubmitPlugins=lua"])
    assert not any("DefMem" in note for note in lacks["notes"])


def test_install_refuses_a_partition_that_does_not_exist_and_names_those_that_do(lab: Lab, set_up: Lab) -> None:
    for words in (("install", "--dry-run"), ("release-all",)):
        done = CliRunner().invoke(app, [*words, "--partition", "nosuch", "--conf", set_up.environment["SLURM_CONF"]])
        assert isinstance(done.exception, UsageError)
        assert str(done.exception) == "Slurm has no partition 'nosuch'; it has gpu, other."
    code, out = command(lab, "check", "--partition", "nosuch", "--json")
    findings = {(finding["what"], finding["text"]) for finding in json.loads(out)["findings"]}
    assert (code, ("partitions", "Slurm has no partition 'nosuch'; it has gpu.") in findings) == (1, True)


def test_install_writes_files_that_its_own_steps_put_in_place(lab: Lab, tmp_path: Path) -> None:
    code, out = command(lab, "install", "--write", str(tmp_path), "--partition", "gpu", "--daemon", "root")
    assert code == 0
    names = {"job_submit.lua", "slurm.conf.diff", "adlro.toml", "adlro.service", "adlro-release.service",
             "adlro-release.timer"}  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == names
    copy = tmp_path / "copy.conf"
    copy.write_text(Path(lab.environment["SLURM_CONF"]).read_text())
    lab.run("patch", str(copy), str(tmp_path / "slurm.conf.diff"))
    assert copy.read_text().endswith("JobSubmitPlugins=lua\n")
    assert f"patch {lab.environment['SLURM_CONF']} slurm.conf.diff" in out
    assert load_config(tmp_path / "adlro.toml").slurm.partitions == ["gpu"]


def test_install_keeps_other_plugins_and_finds_them_in_included_files() -> None:
    lab = Lab(conf=("Include more.conf",))
    (lab.folder / "etc" / "more.conf").write_text("JobSubmitPlugins=require_timelimit\n")
    with running(lab):
        found = json.loads(command(lab, "install", "--dry-run", "--json", "--partition", "gpu")[1])
        (diff,) = (file for file in found["files"] if file["is_diff"])
        assert diff["path"] == str(lab.folder / "etc" / "more.conf")
        assert "+JobSubmitPlugins=require_timelimit,lua" in diff["text"]


def test_install_proposes_a_default_memory_for_its_own_partition_only_and_only_where_there_is_none() -> None:
    lab = Lab(conf=("PartitionName=canary Nodes=volta0", "PartitionName=fine Nodes=volta0 DefMemPerCPU=500"))
    conf = Path(lab.environment["SLURM_CONF"])
    conf.write_text(conf.read_text().replace("DefMemPerCPU=1000\n", ""))
    with running(lab):
        out = command(lab, "install", "--dry-run", "--json", "--partition", "canary", "--partition", "fine")[1]
    notes = [note for note in json.loads(out)["notes"] if "DefMem" in note]
    assert len(notes) == 1
    assert "add DefMemPerCPU=4000 to the line PartitionName=canary" in notes[0]
    assert not any(
        "+" in line and "DefMem" in line for file in json.loads(out)["files"] for line in file["text"].split("\n")
    )


def test_a_gpu_type_that_is_not_in_the_catalogue_is_named_in_our_config(tmp_path: Path) -> None:
    machines = (MACHINES[0], Machine("turing0", "turing", "nvidia_gpu_env", "nvidia"))
    with running(Lab(machines)) as lab:
        code, out = command(lab, "check", "--json")
        (text,) = (finding["text"] for finding in json.loads(out)["findings"] if finding["what"] == "GPU types")
        assert code == 1
        assert "in ADLRO's config, under [slurm.types]: turing = \"" in text
        assert "t4" in text
        code, out = command(lab, "check", "--types", "turing=t4", "--json")
        assert (code, "t4" in out) == (0, True)
        command(lab, "install", "--write", str(tmp_path), "--types", "turing=t4")
        config = load_config(tmp_path / "adlro.toml")
        assert config.slurm.types == {"turing": "t4"}
        assert '["turing"] = 4' in (tmp_path / "job_submit.lua").read_text()
        with closing(
            slurm_backend(options_of(lab, "commands").model_copy(update={"types": {"turing": "t4"}}))
        ) as backend:
            found = {node.name: node.gpus for node in backend.read().cluster.nodes}
            assert found["turing0"] == (Gpus("t4", 4),)


def test_a_site_with_one_type_for_all_gpus_of_a_node_needs_no_features(lab: Lab, set_up: Lab) -> None:
    for site, expected in ((lab, set[str]()), (set_up, {"v100", "t4", "mi50"})):
        with closing(slurm_parts(options_of(site, "socket"))) as parts:
            parts.reader.read()
            assert set(features_of(parts.reader.sites)) == expected
