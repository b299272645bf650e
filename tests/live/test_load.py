"""Load: 10,000 waiting jobs on 1,000 nodes. How long a turn takes is measured by `adlro bench --only serve-tick`."""

from random import Random

import pytest
from tests.live.stand_in import Notebook, Obedient, large_cluster

from adlro.core.ports import ENDED, Submission
from adlro.core.records import Job
from adlro.live.turn import Orchestrator

TURNS = 4


@pytest.mark.parametrize("policy", ["adlro", "fcfs-first-fit"])
def test_the_policy_itself_decides_for_ten_thousand_jobs_on_a_thousand_nodes(policy: str) -> None:
    random, backend = Random(3), Obedient(large_cluster(1000))
    backend.seconds = lambda job, parts: (job.job.estimate or 600.0) / job.job.gpus

    def submit(count: int) -> None:
        for _ in range(count):
            job = Job(
                random.choice(["simulation", "learning", "data"]), 0.0, gpus=random.choice([1, 1, 1, 2, 4, 8]),
                cpus=random.choice([0, 1, 2, 4]), user=f"u{random.randrange(40)}", name=f"n{random.randrange(50)}",
                estimate=random.lognormvariate(8, 1),
            )  # fmt: skip
            backend.submit(Submission(job))

    ours = Orchestrator(backend, Notebook(), policy)
    submit(10_000)
    started = 0
    for _ in range(TURNS):
        tick = ours.tick()
        assert tick.decided_by == policy
        assert all(answer.done for answer in tick.answers)
        started += len(tick.decisions)
        backend.wait(30.0)
        for id in [id for id, job in backend.jobs.items() if job.state in ENDED and job.ended_s < backend.now_s - 60]:  # type: ignore[operator]
            del backend.jobs[id]
        submit(10_000 - sum(job.state == "waiting" for job in backend.jobs.values()))
    assert started > 100
    assert len(ours.state().starts) > 8000
