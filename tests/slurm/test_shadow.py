"""The shadow beside a real Slurm that schedules itself."""

import time
from pathlib import Path

from tests.slurm.lab import Lab

from adlro.backends.shadow.record import read_record, shadowed
from adlro.backends.shadow.report import replay_report
from adlro.backends.slurm.backend import slurm_backend
from adlro.backends.slurm.options import FamilyPatternTable, SlurmOptions
from adlro.core.ports import JobState
from adlro.daemon.store import open_store
from adlro.live.turn import Orchestrator

JOBS = 40
LONGEST_S = 90.0


def test_beside_a_real_slurm_every_job_is_recorded_replayed_and_left_alone(lab: Lab, tmp_path: Path) -> None:
    options = SlurmOptions(
        rest=f"unix:{lab.socket}",
        conf=lab.environment["SLURM_CONF"],
        families=[FamilyPatternTable(pattern="^train", family="learning")],
    )
    path = tmp_path / "shadow.jsonl"
    shadow = shadowed(slurm_backend(options), path)
    store = open_store("sqlite::memory:")
    daemon = Orchestrator(shadow, store)
    daemon.tick()
    time.sleep(1.1)  # Slurm tells whole seconds: a start in that of the first look would count as one before it
    ids = []
    for number in range(JOBS):
        gpus, name = 1 + number % 4, ("train", "prepare")[number % 2]
        asks = (f"--gres=gpu:{gpus}", f"--job-name={name}", "--time=5", "--mem=500")
        ids.append(lab.sbatch(f"sleep {1 + number % 3}", *asks))
        daemon.tick()
    end = time.monotonic() + LONGEST_S
    while lab.run("squeue", "--noheader", "--states=PD,R,CG", "--jobs", ",".join(ids)).strip():
        assert time.monotonic() < end, "the jobs did not end"
        daemon.tick()
        time.sleep(0.2)
    daemon.tick()
    wishes = len(store.decisions(limit=10 * JOBS))
    shadow.close()
    store.close()
    for line in lab.run(
        "squeue", "--noheader", "--states=all", "--jobs", ",".join(ids), "--format=%i|%T|%k|%n|%f"
    ).split():
        assert line.split("|")[1:] == ["COMPLETED", "(null)", "", "(null)"], "we touched a job"

    record = read_record(path)
    ours = [job for job in record.jobs if job.id in ids]
    assert len(ours) == JOBS
    assert {job.state for job in ours} == {JobState.FINISHED}
    assert all(sum(part.count for part in job.parts) == job.job.gpus for job in ours)
    assert len(record.fates) == wishes
    found = replay_report(record, others=["fcfs"])
    assert found.jobs.compared >= JOBS
    assert abs(found.calibration.error) < 0.05
    assert found.agreement.moments > 0
