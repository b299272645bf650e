"""AlloX on small cases by hand: which GPU, which order, and what it does with gangs and shares."""

from tests.decide.two_models import ADA, BELL, cluster_of, finishes, run, speed, starts

from adlro.core.plan import plan_cluster
from adlro.core.records import Disturbance, Job
from adlro.decide.rules.allox import POLICIES, machines
from adlro.decide.rules.baselines import POLICIES as BASELINES
from adlro.normalise.pack import pack, pack_jobs

ALLOX = POLICIES[0]
FCFS = next(policy for policy in BASELINES if policy.name == "fcfs")
ONE_OF_EACH = cluster_of({ADA: 1}, {BELL: 1})


def test_the_least_sum_of_completion_times_beats_submit_order() -> None:
    # In order: 0 on ada (100 s), 1 on bell (400 s). Matched: 0 on bell (200 s), 1 on ada (100 s).
    jobs = [Job("half", 100.0), Job("ada", 100.0)]
    assert finishes(run(FCFS, ONE_OF_EACH, jobs)) == {0: 100.0, 1: 400.0}
    assert sorted(starts(run(ALLOX, ONE_OF_EACH, jobs))) == [(0.0, 0, 1), (0.0, 1, 0)]


def test_a_job_waits_for_a_fast_gpu_while_a_slow_one_is_free() -> None:
    # On bell it would end at 400 s, after the other on ada at 30 + 100 s.
    ran = run(ALLOX, ONE_OF_EACH, [Job("ada", 30.0), Job("ada", 100.0)])
    assert starts(ran) == [(0.0, 0, 0), (30.0, 1, 0)]


def test_the_shortest_job_is_first_on_one_gpu() -> None:
    ran = run(ALLOX, cluster_of({ADA: 1}), [Job("same", work) for work in (300.0, 100.0, 200.0)])
    assert finishes(ran) == {1: 100.0, 2: 300.0, 0: 600.0}


def test_a_gang_counts_with_all_its_gpus_and_starts_when_they_are_free() -> None:
    # 60 s on 4 GPUs are 240 s of one: four single jobs of 100 s come first. At 100 s there is a GPU for everybody, and
    # the three that were submitted before the gang leave it too few.
    jobs = [*(Job("same", 100.0) for _ in range(7)), Job("same", 240.0, gpus=4)]
    ran = run(ALLOX, cluster_of({ADA: 4}), jobs)
    assert sorted(finishes(ran).values()) == [100.0] * 4 + [200.0] * 3 + [260.0]
    assert finishes(ran)[7] == 260.0


def test_a_share_joins_a_gpu_that_is_partly_used() -> None:
    ran = run(ALLOX, cluster_of({ADA: 1}), [Job("same", 50.0, share=500), Job("same", 50.0, submit_s=10.0, share=500)])
    assert starts(ran) == [(0.0, 0, 0), (10.0, 1, 0)]


def test_a_gang_whose_nodes_are_down_holds_no_gpu_that_another_could_have() -> None:
    jobs = [Job("same", 2.0, gpus=2), Job("same", 100.0)]
    ran = run(ALLOX, cluster_of({ADA: 1}, {ADA: 1}), jobs, disturbances=[Disturbance(0.0, "down", "n1")])
    assert finishes(ran) == {1: 100.0}


def test_a_job_without_gpus_starts_at_once_beside_the_matched_ones() -> None:
    ran = run(ALLOX, cluster_of({ADA: 1}), [Job("same", 10.0), Job("same", 10.0, gpus=0), Job("same", 10.0)])
    assert sorted(starts(ran)) == [(0.0, 0, 0), (0.0, 1, 0), (10.0, 2, 0)]


def test_no_more_gpus_of_a_pool_are_matched_than_there_are_jobs() -> None:
    jobs = pack_jobs([Job("same", 1.0)])
    view = pack(plan_cluster(cluster_of({ADA: 4}, {BELL: 2})), jobs, speed)
    pool, ready = machines(view, 3)
    assert pool.tolist() == [0, 0, 0, 1, 1]
    assert ready.tolist() == [0.0] * 5
