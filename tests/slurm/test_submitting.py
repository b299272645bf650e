"""Jobs of the API on a real Slurm: each runs as its own user, with what that user has, or it is not taken."""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.accounts import temporary_account
from tests.slurm.driving import VOLTA, Driven, options_of
from tests.slurm.lab import Lab
from tests.slurm.plugins import NO_RULES, with_plugin

from adlro.backends.slurm.backend import slurm_backend
from adlro.backends.slurm.commands import Commands
from adlro.backends.slurm.ways import CommandWay
from adlro.core.accounts import Account
from adlro.core.errors import AccountError, BackendError, ConfigError
from adlro.core.ports import ENDED, JobState, LiveJob, Part, Submission
from adlro.core.records import Job

PLACE = Part("volta0", VOLTA, 1)


@pytest.fixture(scope="module")
def ann() -> Iterator[Account]:
    with temporary_account() as account:
        yield account


@pytest.fixture(params=["socket", "token", "commands"])
def as_users(lab: Lab, ann: Account, request: pytest.FixtureRequest) -> Iterator[Driven]:
    """The back end with submit_as = "user", over each of the ways."""
    with Driven(lab, request.param) as driven:
        driven.backend.close()
        driven.backend = slurm_backend(options_of(lab, request.param).model_copy(update={"submit_as": "user"}))
        yield driven


def run(driven: Driven, account: Account, *command: str, directory: str = "", **environment: str) -> LiveJob:
    """Hand a command in for a user and run it to its end."""
    wish = Job("learning", 0.0, gpus=1, cpus=1, memory_gb=1, user=account.name)
    name = driven.backend.submit(Submission(wish, command, directory, environment))
    driven.place(name, PLACE)
    return driven.until(name, *ENDED)


def test_a_job_has_the_uid_the_gid_and_the_groups_of_its_user(as_users: Driven, ann: Account) -> None:
    job = run(as_users, ann, "/bin/sh", "-c", "id -u; id -g; id -G; pwd; umask; echo $HOME $USER $MINE", MINE="it's")
    assert (job.state, job.job.user) == (JobState.FINISHED, ann.name)
    file = Path(ann.home) / f"slurm-{job.id}.out"
    uid, gid, groups, folder, mask, words = file.read_text().splitlines()
    assert (int(uid), int(gid), {int(each) for each in groups.split()}) == (ann.uid, ann.gid, set(ann.groups))
    assert (folder, mask, words) == (ann.home, "0022", f"{ann.home} {ann.name} it's")
    told = file.stat()
    assert (told.st_uid, told.st_gid, stat.S_IMODE(told.st_mode)) == (ann.uid, ann.gid, 0o600)
    shown = as_users.lab.run("scontrol", "show", "job", job.id)
    assert f"UserId={ann.name}({ann.uid}) GroupId={ann.name}({ann.gid})" in shown


def test_a_priority_of_the_api_counts_and_one_that_the_user_writes_does_not(as_users: Driven, ann: Account) -> None:
    name = as_users.submit("sleep 1", user=ann.name, priority=0.9)
    assert as_users.job(name).job.priority == 0.9
    as_users.lab.run("scontrol", "update", f"JobId={name}", "Comment=adlro:held adlro:priority=1", user=ann.name)
    assert as_users.job(name).job.priority == 0.9
    own = as_users.lab.sbatch("sleep 1", "--gres=gpu:1", "--hold", "--comment=adlro:held adlro:priority=1 adlro:user=x",
                              user=ann.name)  # fmt: skip
    with pytest.raises(AssertionError):
        as_users.lab.run("scontrol", "update", f"JobId={own}", "AdminComment=adlro:priority=1", user=ann.name)
    found = as_users.job(own).job
    assert (found.priority, found.user) == (0.5, ann.name)


def test_nothing_is_written_where_the_user_may_not_write(by_socket: Driven, ann: Account) -> None:
    by_socket.backend = slurm_backend(options_of(by_socket.lab, "socket").model_copy(update={"submit_as": "user"}))
    closed = by_socket.lab.folder / "closed"
    closed.mkdir(mode=0o755)
    job = run(by_socket, ann, "/bin/echo", "here", directory=str(closed))
    assert job.state is JobState.FAILED
    assert list(closed.iterdir()) == []


def test_the_daemons_environment_and_limits_stay_with_the_daemon(
    by_socket: Driven, ann: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLRO_TOKEN", "geheim")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    by_socket.backend = slurm_backend(options_of(by_socket.lab, "socket").model_copy(update={"submit_as": "user"}))
    job = run(by_socket, ann, "/usr/bin/env", LINES="\n#SBATCH --comment=forged\n")
    assert job.state is JobState.FINISHED
    said = (Path(ann.home) / f"slurm-{job.id}.out").read_text()
    assert "geheim" not in said
    assert "forged" not in by_socket.lab.run("squeue", "--states=all", f"--jobs={job.id}", "--format=%k")


@pytest.mark.parametrize("user", ["", "0", "00", "+0", "root", "daemon", "nobody", "no-such-login", "0 "])
def test_a_user_given_as_number_or_without_an_account_of_his_own_is_refused(as_users: Driven, user: str) -> None:
    with pytest.raises(AccountError):
        as_users.submit("id", user=user)
    assert not as_users.lab.run("squeue", "--noheader").strip()


def test_a_number_is_refused_where_names_are_labels_too(by_socket: Driven) -> None:
    with pytest.raises(AccountError, match="'00' is not a user name"):
        by_socket.submit("id", user="00")


def test_a_job_does_not_run_as_the_administrator_of_slurm(
    by_socket: Driven, ann: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CommandWay(Commands(by_socket.lab.environment["SLURM_CONF"])).administrator() == os.geteuid()
    by_socket.backend = slurm_backend(options_of(by_socket.lab, "socket").model_copy(update={"submit_as": "user"}))
    monkeypatch.setattr(CommandWay, "administrator", lambda self: ann.uid)
    with pytest.raises(AccountError, match="it is SlurmUser"):
        by_socket.submit("id", user=ann.name)


def test_it_is_not_made_where_jobs_could_not_run_as_their_users(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    by_rest = options_of(lab, "socket-only").model_copy(update={"submit_as": "user"})
    with pytest.raises(ConfigError, match="command_line must be true"):
        slurm_backend(by_rest)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="must be root"):
        slurm_backend(by_rest.model_copy(update={"command_line": True}))


def test_a_user_whose_sbatch_hangs_does_not_keep_others_waiting_again_and_again(
    by_socket: Driven, ann: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_socket.backend = slurm_backend(options_of(by_socket.lab, "socket").model_copy(update={"submit_as": "user"}))

    def hang(self: CommandWay, *what: object) -> str:
        raise BackendError("sbatch has not answered for 30 s.")

    with monkeypatch.context() as patch:
        patch.setattr(CommandWay, "submit", hang)
        patch.setattr("adlro.backends.slurm.orders.HUNG_S", 0.0)
        with pytest.raises(BackendError, match="Submit it again"):
            by_socket.submit("id", user=ann.name)
    with pytest.raises(AccountError, match=r"hung while Slurm was up.*in (600|599) s"):
        by_socket.submit("id", user=ann.name)
    with temporary_account() as bob:
        by_socket.submit("id", user=bob.name)


@pytest.fixture(scope="module")
def plugged(ann: Account) -> Iterator[Lab]:
    """A Slurm with the plugin that we ship, which tells the words of users from ours."""
    conf = (f"PartitionName=staff Nodes=ALL MaxTime=INFINITE State=UP AllowGroups={pwd.getpwuid(0).pw_name}",)
    with with_plugin(Lab(lua=NO_RULES, conf=conf), "gpu") as started:
        yield started


def test_with_the_plugin_a_job_whose_answer_got_lost_is_found_and_not_handed_in_twice(
    plugged: Lab, ann: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driven(plugged, "commands") as driven:
        driven.backend = slurm_backend(options_of(plugged, "commands").model_copy(update={"submit_as": "user"}))
        submit = CommandWay.submit

        def lost(self: CommandWay, *what: object) -> str:
            submit(self, *what)  # type: ignore[arg-type]
            raise BackendError("sbatch has not answered for 30 s.")

        with monkeypatch.context() as patch:
            patch.setattr(CommandWay, "submit", lost)
            job = driven.submit("id -un", user=ann.name)
        assert plugged.run("squeue", "--noheader", "--format=%i %u").split() == [job, ann.name]
        driven.place(job, PLACE)
        assert driven.until(job, *ENDED).state is JobState.FINISHED


def test_a_user_gets_into_no_partition_that_is_closed_to_him(plugged: Lab, ann: Account) -> None:
    with Driven(plugged, "commands") as driven:
        options = options_of(plugged, "commands").model_copy(update={"submit_as": "user", "submit_partition": "staff"})
        driven.backend = slurm_backend(options)
        with pytest.raises(BackendError, match="does not take the job"):
            driven.submit("id", user=ann.name)
