"""The world of rounds: what happens in it is what happens in the simulator, where nodes do not matter."""

import numpy as np
import pytest
from tests.decide.two_models import ADA, BELL, cluster_of, finishes, run, speed

from adlro.core.plan import plan_cluster
from adlro.core.records import Job
from adlro.decide.network.sizing_net import JOB_INPUTS, SIZE_INPUTS, SizingWeights
from adlro.decide.rules.elastic import Configurations
from adlro.decide.rules.sizing import POLICIES
from adlro.decide.stops import with_few_stops
from adlro.learn.worlds.rounds import Kinds, RoundJobs, mean_completion
from adlro.normalise.pack import pack, pack_jobs

RULE = SizingWeights(np.zeros((len(JOB_INPUTS), 1)), np.zeros((len(SIZE_INPUTS), 1)), np.zeros(1), np.zeros(1))
RANK = POLICIES[0]
CLUSTER = cluster_of({ADA: 4}, {BELL: 4})
RESTART_S = 20.0
JOBS = [
    Job(family, work, submit, sizes="1,2,4", checkpoint=0.0, start_s=RESTART_S)
    for family, work, submit in [
        ("ada", 4000.0, 0.0), ("bell", 900.0, 10.0), ("half", 2500.0, 65.0), ("same", 300.0, 130.0),
        ("ada", 700.0, 140.0), ("less", 5000.0, 500.0), ("bell", 100.0, 9000.0),
    ]
]  # fmt: skip


def world(stoppable: bool = True) -> tuple[RoundJobs, Kinds]:
    """The same jobs on the same cluster as a world of rounds."""
    view = pack(plan_cluster(CLUSTER), pack_jobs(JOBS), speed)
    known = [Configurations(view).of(j) for j in range(len(JOBS))]
    pool, size, _, rate = (np.concatenate([each[k] for each in known]) for k in range(4))
    first = np.cumsum([0, *(len(each[0]) for each in known)])
    count = len(JOBS)
    jobs = RoundJobs(
        np.array([job.submit_s for job in JOBS]), np.arange(count), np.array([job.work for job in JOBS]),
        np.full(count, RESTART_S), np.full(count, stoppable),
    )  # fmt: skip
    return jobs, Kinds(first, pool, size, rate, view.pools.gpus.astype(np.float64))


@pytest.mark.parametrize("stoppable", [True, False])
def test_the_mean_completion_time_is_that_of_a_simulation(stoppable: bool) -> None:
    policy = RANK if stoppable else with_few_stops(RANK, 0)
    ends = finishes(run(policy, CLUSTER, JOBS, restart_s=RESTART_S))
    expected = sum(ends[j] - JOBS[j].submit_s for j in range(len(JOBS))) / len(JOBS)
    assert mean_completion(*world(stoppable), RULE, 1e6) == pytest.approx(expected, abs=1e-6)


def test_a_run_that_is_cut_off_counts_as_long() -> None:
    jobs, kinds = world()
    never = kinds._replace(capacity=np.zeros(2))
    # It is cut off at 9000 + 60 or later; each job counts as if it ended at twice that time.
    assert mean_completion(jobs, never, RULE, 60.0) > 2 * 9000.0 - 1500.0
