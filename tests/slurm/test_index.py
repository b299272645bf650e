"""A site on which each GPU has a type of its own: a device is chosen by its index, and Slurm itself keeps to it."""

from tests.slurm.driving import RADEON, SAY_WHERE, TURING, VOLTA, Driven, options_of
from tests.slurm.lab import slurm_version

from adlro.backends.slurm.backend import slurm_backend
from adlro.core.ports import ENDED, JobState, Part


def test_a_job_gets_the_devices_that_were_chosen(by_index: Driven) -> None:
    name = by_index.submit(f"{SAY_WHERE}; sleep 1", gpus=2)
    by_index.place(name, Part("volta1", VOLTA, 2, (1, 3)))
    assert by_index.until(name, JobState.RUNNING).parts == (Part("volta1", VOLTA, 2, (1, 3)),)
    assert by_index.until(name, *ENDED).parts == (Part("volta1", VOLTA, 2, (1, 3)),)
    assert by_index.output(name).split() == ["volta1", "1,3"]


def test_without_an_index_slurm_chooses_the_devices(by_index: Driven) -> None:
    name = by_index.submit(f"{SAY_WHERE}; sleep 0.5", gpus=2)
    by_index.place(name, Part("radeon0", RADEON, 2))
    assert by_index.until(name, JobState.RUNNING).parts == (Part("radeon0", RADEON, 2, (0, 1)),)


def test_two_jobs_for_one_device_run_one_after_the_other(by_index: Driven) -> None:
    first, second = by_index.submit("sleep 1.5"), by_index.submit(SAY_WHERE)
    by_index.place(first, Part("turing0", TURING, 1, (2,)))
    by_index.until(first, JobState.RUNNING)
    by_index.place(second, Part("turing0", TURING, 1, (2,)))
    placed = by_index.job(second)
    assert (placed.state, placed.parts) == (JobState.PLACED, (Part("turing0", TURING, 1, (2,)),))
    ended = by_index.until(second, *ENDED)
    assert by_index.output(second).split() == ["turing0", "2"]
    assert ended.started_s is not None
    assert ended.started_s >= (by_index.job(first).ended_s or 0.0)


def test_a_job_that_is_moved_to_other_devices_lets_go_of_the_first(by_index: Driven) -> None:
    """Slurm would add the new types to the old ones, and give the job four GPUs."""
    name = by_index.submit(f"{SAY_WHERE}; sleep 2", gpus=2, restartable=True)
    by_index.place(name, Part("volta1", VOLTA, 2, (1, 3)))
    by_index.until(name, JobState.RUNNING)
    assert by_index.order(name).done
    waits = by_index.until(name, JobState.WAITING)
    assert (waits.job.gpus, waits.managed) == (2, True)
    if slurm_version() < (24, 11):  # such a Slurm cannot change the model of a type that was asked for once
        assert waits.job.models == {VOLTA}
        there = Part("volta0", VOLTA, 2, (0, 2))
    else:
        assert not waits.job.models
        there = Part("radeon0", RADEON, 2, (0, 2))
    by_index.place(name, there)
    assert by_index.until(name, JobState.RUNNING).parts == (there,)
    by_index.until(name, *ENDED)
    assert by_index.output(name).split()[-2:] == [there.node, "0,2"]


def test_a_daemon_that_died_before_it_placed_a_job_leaves_its_gpus_known(by_index: Driven) -> None:
    """Between taking the request without types away and asking with types, the job asks for no GPUs."""
    name = by_index.submit(SAY_WHERE, gpus=2)
    by_index.lab.run(
        "scontrol", "update", f"JobId={name}", "TresPerNode=", "Comment=adlro:held", "AdminComment=adlro:gpus=2"
    )
    job = by_index.job(name)
    assert (job.job.gpus, job.managed, job.state) == (2, True, JobState.WAITING)
    by_index.place(name, Part("radeon0", RADEON, 2))
    assert by_index.until(name, *ENDED).state is JobState.FINISHED
    assert by_index.output(name).split() == ["radeon0", "0,1"]


def test_without_the_command_line_the_node_is_chosen_and_the_answer_says_so(by_index: Driven) -> None:
    by_index.backend = slurm_backend(options_of(by_index.lab, "socket-only"))
    assert not by_index.backend.can_stop
    name = by_index.submit(SAY_WHERE)
    by_index.read()
    answer = by_index.order(name, Part("volta1", VOLTA, 1, (3,)))
    assert (answer.done, answer.said.startswith("by node only")) == (True, True)
    assert by_index.until(name, *ENDED).parts[0].node == "volta1"
    assert "needs Slurm's commands" in by_index.order(name).said
