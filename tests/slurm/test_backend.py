"""The back end on a real Slurm: over slurmrestd's socket, with tokens, and with the commands alone."""

import time

import pytest
from tests.slurm.driving import RADEON, SAY_WHERE, TURING, VOLTA, Driven, options_of

from adlro.backends.slurm.backend import slurm_backend
from adlro.core.errors import BackendError
from adlro.core.ports import ENDED, JobState, Order, Part, Setback
from adlro.core.records import CPU_ONLY, WHOLE_GPU


def test_the_cluster_is_read_with_its_models(driven: Driven) -> None:
    snapshot = driven.read()
    found = {node.name: [(gpus.model, gpus.count) for gpus in node.gpus] for node in snapshot.cluster.nodes}
    assert found == {"volta0": [(VOLTA, 4)], "volta1": [(VOLTA, 4)], "turing0": [(TURING, 4)], "radeon0": [(RADEON, 4)]}
    assert set(snapshot.cluster.models) == {VOLTA, TURING, RADEON}
    assert not snapshot.down
    assert not snapshot.notes


def test_a_job_is_held_until_it_is_placed_and_runs_where_it_was_put(driven: Driven) -> None:
    before_s = time.time()
    name = driven.submit(f"{SAY_WHERE}; sleep 1; exit 3", gpus=2, name="it's; $(mine)", user="ada", estimate=40.0)
    job = driven.job(name)
    assert (job.state, job.managed, job.starts, job.decision) == (JobState.WAITING, True, 0, "")
    assert (job.job.gpus, job.job.family, job.job.user, job.job.name) == (2, "learning", "ada", "it's; $(mine)")
    assert job.job.estimate == 40.0
    driven.place(name, Part("radeon0", RADEON, 2))
    assert driven.job(name).state in (JobState.PLACED, JobState.RUNNING)
    running = driven.until(name, JobState.RUNNING)
    assert running.decision == "d1"
    assert [(part.node, part.model, part.count, len(part.indices)) for part in running.parts] == [
        ("radeon0", RADEON, 2, 2)
    ]
    ended = driven.until(name, *ENDED)
    assert (ended.state, ended.exit_code, ended.starts) == (JobState.FAILED, 3, 1)
    assert ended.parts == running.parts  # Slurm itself has forgotten the devices by now
    assert ended.started_s is not None
    assert ended.ended_s is not None
    assert int(before_s) <= ended.started_s <= ended.ended_s <= time.time() + 1  # Slurm tells whole seconds
    node, devices = driven.output(name).split()
    assert node == "radeon0"
    assert tuple(map(int, devices.split(","))) == running.parts[0].indices


def test_an_order_that_is_carried_out_twice_starts_a_job_once(by_socket: Driven) -> None:
    driven = by_socket
    name = driven.submit("sleep 20")
    driven.read()
    order = Order(name, "d1", (Part("volta0", VOLTA, 1),))
    assert [answer.done for answer in driven.backend.act([order, order])] == [True, True]
    running = driven.until(name, JobState.RUNNING)
    assert [answer.done for answer in driven.backend.act([order])] == [True]
    other = driven.order(name, Part("volta1", VOLTA, 1))
    assert (other.done, other.said) == (True, "it is there already") or not other.done
    assert driven.job(name).parts == running.parts


def test_a_cancelled_job_is_told_as_cancelled_whether_it_waited_or_ran(driven: Driven) -> None:
    waiting, running = driven.submit("sleep 60"), driven.submit("sleep 60")
    driven.place(running, Part("turing0", TURING, 1))
    driven.until(running, JobState.RUNNING)
    driven.backend.cancel(waiting)
    driven.backend.cancel(running)
    assert driven.until(waiting, *ENDED).state is JobState.CANCELLED
    assert driven.until(running, *ENDED).state is JobState.CANCELLED
    driven.backend.cancel(running)  # once more does no harm
    with pytest.raises(BackendError, match="no job 999999"):
        driven.backend.cancel("999999")


def test_a_job_that_is_placed_again_right_after_its_requeue_runs(driven: Driven) -> None:
    name = driven.submit("sleep 1")
    driven.place(name, Part("turing0", TURING, 1))
    driven.until(name, JobState.RUNNING)
    driven.lab.run("scontrol", "requeue", name)
    driven.when(name, lambda job: job.state is JobState.WAITING and job.managed, "waiting again", 20)
    driven.place(name, Part("turing0", TURING, 1))
    assert driven.until(name, *ENDED, seconds=30).state is JobState.FINISHED


def test_a_job_that_was_put_back_and_is_held_again_keeps_no_node_until_it_is_placed(by_socket: Driven) -> None:
    name = by_socket.submit("sleep 1")
    by_socket.place(name, Part("turing0", TURING, 1))
    by_socket.until(name, JobState.RUNNING)
    by_socket.lab.run("scontrol", "requeue", name)
    waits = by_socket.when(name, lambda job: job.state is JobState.WAITING, "waiting again", 20)
    assert waits.setback is Setback.PUT_BACK  # Slurm would start it on turing0, where others may be placed
    assert by_socket.order(name).done
    assert by_socket.lab.run("squeue", "--noheader", "--format=%r|%n", f"--jobs={name}").strip() == "JobHeldUser|"
    held = by_socket.job(name)
    assert (held.managed, held.setback, held.starts) == (True, Setback.NONE, 1)
    by_socket.place(name, Part("volta0", VOLTA, 1))
    done = by_socket.until(name, *ENDED, seconds=30)
    assert (done.state, done.parts[0].node) == (JobState.FINISHED, "volta0")


def test_a_stopped_job_waits_again_with_its_first_submit_time_and_runs_elsewhere(driven: Driven) -> None:
    assert driven.backend.can_stop
    name = driven.submit("sleep 1.5", restartable=True)
    first = driven.job(name).job.submit_s
    driven.place(name, Part("turing0", TURING, 1))
    driven.until(name, JobState.RUNNING)
    assert driven.order(name).done
    waits = driven.until(name, JobState.WAITING)
    assert (waits.managed, waits.starts) == (True, 1)
    assert driven.order(name).said == "it waits already"
    driven.place(name, Part("volta0", VOLTA, 1))
    done = driven.until(name, *ENDED)
    assert (done.state, done.starts, done.parts[0].node) == (JobState.FINISHED, 2, "volta0")
    assert done.job.submit_s == first
    fresh = slurm_backend(options_of(driven.lab, "commands"))  # a daemon that was started anew
    (again,) = (job for job in fresh.read().jobs if job.id == name)
    assert again.job.submit_s == first


def test_each_task_of_an_array_is_placed_by_itself(driven: Driven) -> None:
    array = driven.lab.sbatch(
        "sleep 1", "--hold", "--array=1-7:2%2", "--gres=gpu:1", "--comment=mine adlro:held adlro:family=data"
    )
    names = [f"{array}_{task}" for task in (1, 3, 5, 7)]
    jobs = {job.id: job for job in driven.read().jobs if job.id.startswith(f"{array}_")}
    assert [jobs[name].managed for name in names] == [True, True, False, False]  # %2: two at a time
    assert jobs[names[0]].job.family == "data"
    assert driven.order(names[0], Part("volta0", VOLTA, 1)).done
    assert driven.order(names[1], Part("radeon0", RADEON, 1)).done
    assert driven.until(names[0], JobState.RUNNING).parts[0].node == "volta0"
    assert driven.until(names[1], JobState.RUNNING).parts[0].node == "radeon0"
    assert {job.id: job.state for job in driven.read().jobs if job.id in names[2:]} == dict.fromkeys(
        names[2:], JobState.WAITING
    )
    assert driven.until(names[0], *ENDED).state is JobState.FINISHED
    assert "mine" in driven.lab.run("scontrol", "show", "job", names[0])


def test_what_is_not_held_for_us_only_takes_room(by_socket: Driven) -> None:
    theirs = by_socket.lab.sbatch("sleep 20", "--gres=gpu:3", "--nodelist=volta0")
    users_hold = by_socket.lab.sbatch("sleep 20", "--gres=gpu:1", "--hold")
    begins = by_socket.lab.sbatch("sleep 1", "--gres=gpu:1", "--hold", "--begin=now+600", "--comment=adlro:held")
    depends = by_socket.lab.sbatch(
        "sleep 1", "--gres=gpu:1", "--hold", f"--dependency=afterok:{theirs}", "--comment=adlro:held"
    )
    running = by_socket.until(theirs, JobState.RUNNING)
    assert (running.managed, running.parts[0].count) == (False, 3)
    for name in (users_hold, begins, depends):
        assert (by_socket.job(name).state, by_socket.job(name).managed) == (JobState.WAITING, False)
        assert not by_socket.order(name, Part("volta1", VOLTA, 1)).done
    assert not by_socket.order(theirs).done
    ours = by_socket.lab.sbatch("sleep 1", "--gres=gpu:1", "--hold", "--comment=adlro:held")
    by_socket.lab.run("scontrol", "hold", ours)  # by an administrator: not ours to end
    assert not by_socket.job(ours).managed


def test_what_a_user_asks_for_beyond_gpus_limits_the_models(by_socket: Driven) -> None:
    held = ("--hold", "--comment=adlro:held")
    wishes = {
        "typed": ("--gres=gpu:v100:1",),
        "features": ("--gres=gpu:1", "--constraint=volta|radeon"),
        "half": ("--gres=gpu:1", "--exclude=volta0"),
        "nodes": ("--gres=gpu:1", "--nodelist=volta0"),
        "shape": ("--gres=gpu:2", "--nodes=2"),
        "whole": ("--gres=gpu:4", "--nodes=2"),
        "none": (),
    }
    names = {wish: by_socket.lab.sbatch("sleep 1", *held, *options) for wish, options in wishes.items()}
    snapshot = by_socket.read()
    jobs = {wish: next(job for job in snapshot.jobs if job.id == name) for wish, name in names.items()}
    assert jobs["typed"].job.models == {VOLTA}
    assert jobs["features"].job.models == {VOLTA, RADEON}
    assert [jobs[wish].managed for wish in ("typed", "features", "half", "nodes", "shape", "whole", "none")] == [
        True, True, False, False, False, True, True,
    ]  # fmt: skip
    assert jobs["whole"].job.gpus == 8
    assert all(jobs[wish].setback is Setback.UNPLACEABLE for wish in ("half", "nodes", "shape"))
    assert by_socket.order(names["typed"], Part("volta1", VOLTA, 1)).done
    assert by_socket.order(names["none"], Part("turing0", CPU_ONLY, 0)).done
    assert by_socket.order(names["whole"], Part("volta0", VOLTA, 4), Part("volta1", VOLTA, 4)).done
    assert by_socket.until(names["none"], *ENDED).parts == (Part("turing0", CPU_ONLY, 0),)
    assert {part.node for part in by_socket.until(names["whole"], JobState.RUNNING).parts} == {"volta0", "volta1"}


def test_a_gang_larger_than_a_node_gets_the_nodes_that_were_chosen(driven: Driven) -> None:
    name = driven.submit("sleep 5", gpus=8)
    assert driven.job(name).job.gpus == 8
    driven.place(name, Part("volta0", VOLTA, 4), Part("volta1", VOLTA, 4))
    parts = driven.until(name, JobState.RUNNING).parts
    assert [(part.node, part.count, part.indices) for part in parts] == [
        ("volta0", 4, (0, 1, 2, 3)),
        ("volta1", 4, (0, 1, 2, 3)),
    ]


def test_a_drained_node_is_told_with_its_reason_and_comes_back(driven: Driven) -> None:
    update = ("scontrol", "update", "nodename=turing0")
    driven.lab.run(*update, "state=drain", "reason=new fan")
    try:
        assert "new fan" in driven.read().down["turing0"]
        name = driven.submit("sleep 1")
        driven.place(name, Part("turing0", TURING, 1))
        driven.when(name, lambda job: job.state is JobState.WAITING and job.managed, "waiting again")
    finally:
        driven.lab.run(*update, "state=resume")
    driven.place(name, Part("volta0", VOLTA, 1))
    assert driven.until(name, *ENDED).parts[0].node == "volta0"
    assert not driven.read().down


def test_what_slurm_cannot_do_is_refused_in_one_line(by_socket: Driven) -> None:
    name = by_socket.submit("sleep 1")
    by_socket.read()
    assert "the job needs 1, and names no other sizes" in by_socket.order(name, Part("volta0", VOLTA, 2)).said
    assert "Invalid node name" in by_socket.order(name, Part("nowhere", VOLTA, 1)).said
    assert by_socket.order("777777", Part("volta0", VOLTA, 1)).said == "Slurm does not know this job"
    assert by_socket.job(name).state is JobState.WAITING
    with pytest.raises(BackendError, match="whole GPUs"):
        by_socket.submit("sleep 1", share=WHOLE_GPU // 2)


@pytest.mark.parametrize("way", ["socket", "commands"])
def test_a_job_that_slurm_does_not_take_is_told_in_one_line(by_socket: Driven, way: str) -> None:
    by_socket.backend = slurm_backend(options_of(by_socket.lab, way).model_copy(update={"submit_partition": "nowhere"}))
    with pytest.raises(BackendError, match=r"does not take the job.*partition"):
        by_socket.submit("sleep 1")
    assert not [job for job in by_socket.read().jobs if job.state not in ENDED]


def test_nothing_is_handed_in_where_the_site_does_not_want_it(by_socket: Driven) -> None:
    by_socket.backend = slurm_backend(options_of(by_socket.lab, "socket").model_copy(update={"submit_as": "nobody"}))
    with pytest.raises(BackendError, match="Use sbatch"):
        by_socket.submit("sleep 1")
