"""Jobs that start with another number of GPUs than they asked for, on a real Slurm."""

import time
from pathlib import Path

from tests.slurm.driving import RADEON, Driven

from adlro.core.ports import JobState, Part
from adlro.daemon.store import open_store
from adlro.live.limits import PreemptTable
from adlro.live.turn import Orchestrator, TurnSettings

STOPPING = TurnSettings(
    starts_s=0.0, compare_s=1e9, decide_s=60.0, decision_s=60.0, preempt=PreemptTable(is_on=True, least_run_s=0.0)
)
SIZES = "adlro:restartable adlro:sizes=1,2,4,8"


def hand_in(driven: Driven, name: str, comment: str, *request: str) -> tuple[str, Path]:
    """Submit a job as a user does; its id, and where it writes its GPUs and cores at each start."""
    file, seen = (driven.lab.folder / "jobs" / f"{name}{end}" for end in (".sh", ".seen"))
    file.write_text(f'#!/bin/sh\necho "$SLURM_GPUS_ON_NODE $SLURM_CPUS_ON_NODE" >> {seen}\nexec sleep 600\n')
    words = f"--comment=adlro:held adlro:models=mi50 {comment}"
    given = ("--parsable", "--hold", f"--chdir={file.parent}", words, *request, str(file))
    return driven.lab.run("sbatch", *given).strip(), seen


def gpus(count: int) -> Part:
    return Part("radeon0", RADEON, count)


def lines_of(seen: Path, count: int) -> list[str]:
    """What a job has written, when it has started this often."""
    end = time.monotonic() + 20
    while not (seen.exists() and len(found := seen.read_text().splitlines()) == count):
        assert time.monotonic() < end, seen.read_text()
        time.sleep(0.05)
    return found


def run_with(driven: Driven, job: str, count: int) -> None:
    """Start a job with this many GPUs, and wait until it runs."""
    driven.place(job, gpus(count))
    found = driven.until(job, JobState.RUNNING)
    assert [part.count for part in found.parts] == [count]
    assert (found.job.gpus, found.job.sizes) == (1, "1,2,4")  # a node has four


def test_a_job_that_names_its_sizes_is_stopped_and_goes_on_with_more_gpus_and_then_with_fewer(
    by_socket: Driven,
) -> None:
    job, seen = hand_in(by_socket, "grows", SIZES, "--gres=gpu:1", "--cpus-per-task=2", "--mem=2000")
    for start, count in enumerate((1, 4, 2), 1):
        run_with(by_socket, job, count)
        assert lines_of(seen, start)[-1] == f"{count} {2 * count}"
        assert by_socket.order(job).done
        by_socket.until(job, JobState.WAITING)
    waits = by_socket.job(job)
    assert (waits.job.gpus, waits.job.cpus, round(waits.job.memory_gb * 1e9 / 1024**2)) == (1, 2.0, 2000)
    run_with(by_socket, job, 1)
    assert lines_of(seen, 4) == ["1 2", "4 8", "2 4", "1 2"]


def test_a_job_keeps_its_number_of_gpus_unless_it_names_sizes_and_is_restartable(by_socket: Driven) -> None:
    for name, comment, said in (
        ("no-sizes", "adlro:restartable", "the job needs 1, and names no other sizes"),
        ("no-mark", "adlro:sizes=1,2,4", "the job needs 1, and names no other sizes"),
        ("other", SIZES, "the job's sizes are 1,2,4"),
    ):
        job, _ = hand_in(by_socket, name, comment, "--gres=gpu:1")
        by_socket.read()
        answer = by_socket.order(job, gpus(3))
        assert (answer.done, answer.said) == (False, f"the place has 3 GPUs; {said}")


def test_a_job_that_asks_for_its_gpus_in_all_keeps_its_number_and_a_note_says_why(by_socket: Driven) -> None:
    job, _ = hand_in(by_socket, "in-all", SIZES, "--gpus=2")
    snapshot = by_socket.read()
    assert by_socket.job(job).job.sizes == ""
    assert [note for note in snapshot.notes if note.startswith(f"job {job} keeps its number of GPUs: it asks for its")]


def test_a_policy_that_resizes_starts_a_job_that_is_alone_with_all_gpus_of_a_node(by_socket: Driven) -> None:
    job, seen = hand_in(by_socket, "alone", f"{SIZES} adlro:estimate=400000", "--gres=gpu:1", "--cpus-per-task=2")
    daemon = Orchestrator(by_socket.backend, open_store("sqlite::memory:"), "rank-elastic", "fcfs", STOPPING)
    tick = daemon.tick()
    assert not tick.alarms
    (made,) = tick.decisions
    assert [part.count for part in made.parts] == [4]
    assert "It gets 4 GPUs, one of its sizes (1,2,4); it asked for 1." in made.reason
    by_socket.until(job, JobState.RUNNING)
    assert lines_of(seen, 1) == ["4 8"]
