"""Each policy on a case small enough for paper, in which it does something else than its neighbour.

Where nothing is said of speed it is 1, so a job of work w on g GPUs takes w / g seconds.
"""

from collections import Counter

import pytest
from tests.decide.conftest import Case, Fate, play, run

from adlro.core.records import Disturbance
from adlro.core.tables import STARTED
from adlro.decide.catalogue import find_policy
from adlro.experiment.instance import draw, play_out
from adlro.experiment.scenario import load_scenario

V100, T4 = "v100", "t4"
SLOW_T4 = {"any": {V100: 1.0, T4: 0.25}}
HALF_T4 = {"any": {V100: 1.0, T4: 0.5}}

# ---- random, fcfs, fcfs-first-fit --------------------------------------------------------------------------------


def test_random_takes_each_legal_pair_as_often_and_fcfs_always_the_first() -> None:
    # 2 jobs × 2 sites: of 400 seeds each pair comes first about 100 times, give or take 5 · sqrt(400 · 3/16) = 43.
    case = Case([(V100, 1), (T4, 1)], [(0, 10), (0, 10)])
    first = Counter(play(case, "random", seed).events[0][2:] for seed in range(400))
    assert len(first) == 4
    assert all(57 < count < 143 for count in first.values())
    assert {play(case, "fcfs", seed).events[0][2:] for seed in range(3)} == {(0, (0, (0,)))}


BLOCKED_HEAD = Case([(V100, 2)], [(0, 10), (0, 8, 2), (0, 5)])


def test_fcfs_lets_all_wait_behind_a_blocked_head() -> None:
    # Job 1 needs both GPUs, so it waits for job 0 (10), runs 4 s; job 2 could run at once and waits for job 1 (14).
    assert run(BLOCKED_HEAD, "fcfs") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 14), 2: Fate(14, 0, 19)}


def test_first_fit_starts_who_fits_past_a_blocked_head() -> None:
    # Job 2 takes the free GPU at 0; job 1 still starts at 10, because job 2 has ended at 5.
    assert run(BLOCKED_HEAD, "fcfs-first-fit") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 14), 2: Fate(0, 0, 5)}


@pytest.mark.parametrize("policy", ["fcfs", "fcfs-first-fit"])
def test_submit_order_takes_the_first_site_even_if_it_is_slow(policy: str) -> None:
    # The T4 is site 0: 10 / 0.25 = 40 s.
    assert run(Case([(T4, 1), (V100, 1)], [(0, 10)], SLOW_T4), policy) == {0: Fate(0, 0, 40)}


# ---- static-affinity ---------------------------------------------------------------------------------------------

RED_BLUE = {"red": {V100: 1.0, T4: 0.25}, "blue": {V100: 1.0, T4: 1.0}}
RED, BLUE = {"family": "red"}, {"family": "blue"}


def test_each_family_goes_where_it_gains_most_and_waits_for_it() -> None:
    # Against the average GPU: red 1/0.625 = 1.6 on V100 and 0.4 on T4, blue 1 on both. Each model takes ceil(2/2) = 1
    # family: red → V100, blue → T4. So the second blue waits for the T4 (10), and red has the V100 at once.
    case = Case([(V100, 1), (T4, 1)], [(0, 10, 1, BLUE), (0, 10, 1, BLUE), (0, 10, 1, RED)], RED_BLUE)
    assert run(case, "static-affinity") == {0: Fate(0, 1, 10), 1: Fate(10, 1, 20), 2: Fate(0, 0, 10)}
    assert run(case, "fcfs") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 10), 2: Fate(10, 0, 20)}


def test_a_job_that_waits_for_its_home_blocks_its_own_family_only() -> None:
    # On 2 T4: job 0 to 10, the blue gang waits for it and runs 4 s, blue job 2 waits for the gang; red does not.
    jobs = [(0, 10, 1, BLUE), (0, 8, 2, BLUE), (0, 5, 1, BLUE), (0, 5, 1, RED)]
    fates = run(Case([(V100, 2), (T4, 2)], jobs, RED_BLUE), "static-affinity")
    assert fates == {0: Fate(0, 1, 10), 1: Fate(10, 1, 14), 2: Fate(14, 1, 19), 3: Fate(0, 0, 5)}


def test_the_operators_map_comes_before_ours() -> None:
    # The contrary of our map: red pays 10 / 0.25 = 40 s on the T4.
    jobs = [(0, 10, 1, BLUE), (0, 10, 1, RED)]
    case = Case([(V100, 1), (T4, 1)], jobs, RED_BLUE, affinity={"red": (T4,), "blue": (V100,)})
    assert run(case, "static-affinity") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 40)}


def test_a_family_that_the_operators_map_leaves_out_goes_where_it_gains_most() -> None:
    # Red is sent to the T4. Green gains 1/0.75 on the V100 and 0.5/0.75 on the T4: all green jobs wait for the V100.
    green = {"family": "green"}
    speeds = {**RED_BLUE, "green": {V100: 1.0, T4: 0.5}}
    jobs = [(0, 10, 1, green), (0, 10, 1, green), (0, 10, 1, RED)]
    case = Case([(V100, 1), (T4, 1)], jobs, speeds, affinity={"red": (T4,)})
    assert run(case, "static-affinity") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 20), 2: Fate(0, 1, 40)}


@pytest.mark.parametrize("unable", [{"models": frozenset({T4})}, {"cpus": 16.0}], ids=["model", "cores"])
def test_a_job_that_could_never_run_at_home_runs_anywhere(unable: dict[str, object]) -> None:
    # Red is at home on the V100 (8 cores). Job 1 may not or cannot run there: it has the T4 (40 s), beside job 0.
    jobs = [(0, 10, 1, RED), (0, 10, 1, {**RED, **unable}), (0, 10, 1, BLUE)]
    fates = run(Case([(V100, 1, 8.0), (T4, 2, 32.0)], jobs, RED_BLUE), "static-affinity")
    assert fates == {0: Fate(0, 0, 10), 1: Fate(0, 1, 40), 2: Fate(0, 1, 10)}


def test_jobs_without_gpus_do_not_change_the_map_and_need_no_home() -> None:
    # As in the first case red → V100, blue → T4. Jobs without GPUs are as fast everywhere: red has no less to gain on
    # the V100 for it. Theirs is the first node with cores, here the third: 2 cores are not enough.
    jobs = [(0, 10, 1, BLUE), (0, 10, 1, RED), (0, 10, 0, {**RED, "cpus": 8.0}), (0, 10, 0, {**BLUE, "cpus": 2.0})]
    fates = run(Case([(V100, 1, 2.0), (T4, 1, 2.0), ("none", 0, 8.0)], jobs, RED_BLUE), "static-affinity")
    assert fates == {0: Fate(0, 1, 10), 1: Fate(0, 0, 10), 2: Fate(0, 2, 10), 3: Fate(0, 0, 10)}


def test_on_the_papers_cluster_the_map_is_as_documented() -> None:
    instance = draw(load_scenario("paper16", "paper", 300), 0)
    ran = play_out(instance, instance.view, find_policy("static-affinity"))
    homes: dict[str, set[str]] = {}
    for event in ran.events[ran.events.what == STARTED]:
        job = instance.jobs.table[event.job]
        if job.gpus <= 4:  # who needs more has room on the V100s only
            homes.setdefault(instance.jobs.families[job.family], set()).add(ran.site_model[event.site])
    v100 = "v100-sxm2-16gb"
    assert homes == {"simulation": {v100}, "learning": {v100, "t4"}, "data": {"mi50"}}


# ---- by estimate -------------------------------------------------------------------------------------------------


def test_sjf_starts_the_shortest_first() -> None:
    # On one GPU: 5, then 5 + 10; in submit order the short one would end at 15.
    case = Case([(V100, 1)], [(0, 10), (0, 5)])
    assert run(case, "sjf") == {0: Fate(5, 0, 15), 1: Fate(0, 0, 5)}
    assert run(case, "fcfs") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 15)}


def test_sjf_takes_the_slow_gpu_and_sjf_picky_waits_for_the_fast_one() -> None:
    # Job 1 on the T4: 12 / 0.25 = 48 s > 2 · 12 s. So the picky one waits for the V100: 10 + 12.
    case = Case([(V100, 1), (T4, 1)], [(0, 10), (0, 12)], SLOW_T4)
    assert run(case, "sjf") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 48)}
    assert run(case, "sjf-picky") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 22)}


def test_twice_the_best_runtime_is_just_good_enough_for_sjf_picky() -> None:
    # 12 / 0.5 = 24 s = 2 · 12 s.
    case = Case([(V100, 1), (T4, 1)], [(0, 10), (0, 12)], HALF_T4)
    assert run(case, "sjf-picky") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 24)}


def test_sjf_goes_by_the_estimate_and_not_by_the_truth() -> None:
    # Estimated at 1 s and 2 s, in truth 20 s and 2 s.
    case = Case([(V100, 1)], [(0, 20, 1, {"estimate": 1.0}), (0, 2, 1, {"estimate": 2.0})])
    assert run(case, "sjf") == {0: Fate(0, 0, 20), 1: Fate(20, 0, 22)}


def test_f1_weighs_the_submission_far_more_than_the_length() -> None:
    # At 100: job 1 has 3 + 870 · log10(10) = 873, job 2 has 1 + 870 · log10(11) = 907. So the long one goes first.
    case = Case([(V100, 1)], [(0, 100), (10, 1000), (11, 10)])
    assert run(case, "f1") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 1100), 2: Fate(1100, 0, 1110)}
    assert run(case, "sjf") == {0: Fate(0, 0, 100), 1: Fate(110, 0, 1110), 2: Fate(100, 0, 110)}


def test_f1_counts_the_length_with_the_gpus() -> None:
    # Submitted at 0 and 1, both count as 1 s: log10(50) · 2 = 3.4 for the gang against log10(1000) · 1 = 3.
    case = Case([(V100, 2)], [(0, 20, 2), (0, 100, 2), (1, 1000)])
    assert run(case, "f1") == {0: Fate(0, 0, 10), 1: Fate(1010, 0, 1060), 2: Fate(10, 0, 1010)}
    assert run(case, "sjf") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 60), 2: Fate(60, 0, 1060)}


def test_wfp3_prefers_who_has_waited_long_for_a_short_run() -> None:
    # At 10: (10 / 100)³ = 0.001 against (2 / 4)³ = 0.125.
    case = Case([(V100, 1)], [(0, 10), (0, 100), (8, 4)])
    assert run(case, "wfp3") == {0: Fate(0, 0, 10), 1: Fate(14, 0, 114), 2: Fate(10, 0, 14)}


GANG_CAME_LATER = Case([(V100, 2)], [(0, 20, 2), (0, 100), (5.5, 100, 2)])


def test_wfp3_prefers_a_gang() -> None:
    # At 10: (10 / 100)³ · 1 = 0.001 against (4.5 / 50)³ · 2 = 0.00146. The gang goes first, to 60.
    assert run(GANG_CAME_LATER, "wfp3") == {0: Fate(0, 0, 10), 1: Fate(60, 0, 160), 2: Fate(10, 0, 60)}


def test_unicep_does_not_prefer_a_gang() -> None:
    # At 10: 10 / 100 = 0.1 against 4.5 / (max(1, log2 2) · 50) = 0.09. The gang waits until 110.
    assert run(GANG_CAME_LATER, "unicep") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 110), 2: Fate(110, 0, 160)}


def test_unicep_divides_by_the_logarithm_of_the_gpus() -> None:
    # At 10: 10 / 100 = 0.1 against 6 / (log2 4 · 40) = 0.075; without the logarithm it would be 0.15.
    case = Case([(V100, 4)], [(0, 40, 4), (0, 100), (4, 160, 4)])
    assert run(case, "unicep") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 110), 2: Fate(110, 0, 150)}


def test_qssf_learns_from_finished_jobs_of_the_same_name_then_user_then_all() -> None:
    # At 0 and 10 nothing tells the jobs apart: submit order. At 110 are known ann/a: 10, bob/b: 100.
    # 110: ann/a and, by user, ann/c: 10 → job 3. 150: ann/c by user √(10 · 40) = 20, eve by all ∛(10 · 100 · 40) = 34,
    # bob/b 100 → job 4. 152: eve by all ∜(10 · 100 · 40 · 2) = 17, bob/b 100 → job 5, then job 2.
    ann, bob, eve = ({"user": user, "name": name} for user, name in (("ann", "a"), ("bob", "b"), ("eve", "e")))
    jobs = [(0, 10, 1, ann), (0, 100, 1, bob), (50, 1, 1, bob), (60, 40, 1, ann), (70, 2, 1, {**ann, "name": "c"})]
    case = Case([(V100, 1)], [*jobs, (80, 5, 1, eve)])
    starts = {0: 0, 1: 10, 3: 110, 4: 150, 5: 152, 2: 157}
    assert {job: fate.start for job, fate in run(case, "qssf").items()} == starts
    by_length = [job for _, job in sorted((fate.start, job) for job, fate in run(case, "sjf").items())]
    assert by_length == [0, 1, 2, 4, 5, 3]


# ---- where -------------------------------------------------------------------------------------------------------


def test_best_fit_leaves_the_large_hole_open() -> None:
    # Job 0 takes 2 of 2 and not 2 of 4, so the gang of 4 starts at once; first-fit makes it wait until 10.
    case = Case([(V100, 4), (V100, 2)], [(0, 20, 2), (0, 20, 4)])
    assert run(case, "best-fit") == {0: Fate(0, 1, 10), 1: Fate(0, 0, 5)}
    assert run(case, "fcfs-first-fit") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 15)}


def share(thousandths: int, cpus: float = 0.0) -> dict[str, object]:
    """A part of a GPU."""
    return {"share": thousandths, "cpus": cpus}


def test_fgd_leaves_no_rest_that_nobody_can_use_and_best_fit_does() -> None:
    # After job 0 GPU 0 has 600 free. There job 1 would leave 100, which neither size (400, 500) could use: +100. On
    # site 1 it leaves 500, which both can use: +0. Best-fit leaves 100 rather than 500.
    case = Case([(V100, 1), (V100, 1)], [(0, 4, 1, share(400)), (0, 5, 1, share(500))])
    assert run(case, "fgd") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 10)}
    assert run(case, "best-fit") == {0: Fate(0, 0, 10), 1: Fate(0, 0, 10)}


def test_fgd_keeps_gpus_whole_if_whole_ones_are_usual() -> None:
    # As before, with a whole GPU as every third size: site 0 has 600/3 unusable before and 100 after: −100; site 1 has
    # 0 before and 500/3 after: +167. Now site 0 is better, and the whole job has site 1.
    case = Case([(V100, 1), (V100, 1)], [(0, 4, 1, share(400)), (0, 5, 1, share(500)), (0, 7)])
    assert run(case, "fgd") == {0: Fate(0, 0, 10), 1: Fate(0, 0, 10), 2: Fate(0, 1, 7)}


def test_fgd_uses_up_first_what_lacks_cores_for_the_usual_jobs() -> None:
    # Of the two sizes one needs 4 cores. On node 1 (2 cores) both GPUs are unusable for it; job 0 makes that one: −500.
    # On node 0 it changes nothing: 0. Best-fit sees no difference (1 GPU left) and takes site 0.
    case = Case([(V100, 2, 8.0), (V100, 2, 2.0)], [(0, 10, 1, {"cpus": 1.0}), (1, 10, 1, {"cpus": 4.0})])
    assert run(case, "fgd") == {0: Fate(0, 1, 10), 1: Fate(1, 0, 11)}
    assert run(case, "best-fit") == {0: Fate(0, 0, 10), 1: Fate(1, 0, 11)}


# ---- EASY --------------------------------------------------------------------------------------------------------


def test_easy_backfills_who_ends_in_time_and_holds_back_who_would_delay_the_head() -> None:
    # Job 0 ends at 10; then the head needs all 4 GPUs. Job 2 would end at 20 and waits; job 3 ends at 10 and need not.
    case = Case([(V100, 4)], [(0, 20, 2), (0, 16, 4), (0, 20), (0, 10)])
    assert run(case, "fcfs-easy") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 14), 2: Fate(14, 0, 34), 3: Fate(0, 0, 10)}
    # First-fit starts both at once, and the head waits for job 2.
    assert run(case, "fcfs-first-fit") == {0: Fate(0, 0, 10), 1: Fate(20, 0, 24), 2: Fate(0, 0, 20), 3: Fate(0, 0, 10)}
    # Without backfilling job 3 waits too.
    assert run(case, "fcfs")[3] == Fate(14, 0, 24)


def test_easy_backfills_gpus_that_the_head_can_spare() -> None:
    # At 10 the head takes 3 of 4 GPUs. Job 2 (to 20) may have the fourth; job 3 would take one of the three.
    case = Case([(V100, 4)], [(0, 20, 2), (0, 30, 3), (0, 20), (0, 20)])
    assert run(case, "fcfs-easy") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 20), 2: Fate(0, 0, 20), 3: Fate(20, 0, 40)}


def test_easy_counts_cores_too() -> None:
    # GPUs are plenty, but the head needs all 8 cores at 10: job 2 (4 cores, to 20) would delay it, job 3 (none) not.
    cores = [{"cpus": cpus} for cpus in (4.0, 8.0, 4.0, 0.0)]
    jobs = [(0, 10, 1, cores[0]), (0, 10, 1, cores[1]), (0, 20, 1, cores[2]), (0, 20, 1, cores[3])]
    fates = run(Case([(V100, 4, 8.0)], jobs), "fcfs-easy")
    assert fates == {0: Fate(0, 0, 10), 1: Fate(10, 0, 20), 2: Fate(20, 0, 40), 3: Fate(0, 0, 20)}


def test_easy_reserves_the_first_site_that_comes_free_and_the_other_may_be_used() -> None:
    # The head is promised site 0 at 10. Job 3 (100 s) stands beside job 1 on site 1 and is in nobody's way.
    case = Case([(V100, 2), (V100, 2)], [(0, 20, 2), (0, 30), (0, 20, 2), (0, 100)])
    fates = run(case, "fcfs-easy")
    assert fates == {0: Fate(0, 0, 10), 1: Fate(0, 1, 30), 2: Fate(10, 0, 20), 3: Fate(0, 1, 100)}


def test_easy_believes_the_estimates() -> None:
    # Job 0 is expected to end at 10, and job 2 beside it too: it is backfilled. But job 2 takes 30 s, and the head,
    # which needs all 3 GPUs, waits for it; that job 0 ends at 4 helps nobody.
    jobs = [(0, 8, 2, {"estimate": 20.0}), (0, 12, 3), (0, 30, 1, {"estimate": 10.0})]
    assert run(Case([(V100, 3)], jobs), "fcfs-easy") == {0: Fate(0, 0, 4), 1: Fate(30, 0, 34), 2: Fate(0, 0, 30)}


def test_easy_reserves_for_a_gang_over_two_nodes() -> None:
    # The head needs 4 GPUs of two nodes at 10. Job 2 (20 s) would hold one of them, job 3 (10 s) would not.
    case = Case([(V100, 2), (V100, 2)], [(0, 10), (0, 16, 4), (0, 20), (0, 10)])
    fates = run(case, "fcfs-easy")
    assert fates == {0: Fate(0, 0, 10), 1: Fate(10, 0, 14), 2: Fate(14, 0, 34), 3: Fate(0, 0, 10)}


@pytest.mark.parametrize(("work", "start"), [(40, 0), (44, 11)])
def test_easy_backfills_a_gang_over_two_nodes_if_it_ends_in_time(work: float, start: float) -> None:
    # Job 0 holds node 0 until 10, the head needs all three nodes then (1 s). The gang takes work / 4 = 10 or 11 s.
    case = Case([(V100, 2)] * 3, [(0, 20, 2), (0, 6, 6), (0, work, 4)])
    fates = run(case, "fcfs-easy")
    assert (fates[1].start, fates[2].start) == (10, start)


def test_nobody_can_delay_a_head_that_will_not_fit_because_a_node_is_down() -> None:
    # Half of the head's GPUs are down from 0 to 10. Job 1 (30 s) starts at once, and the head after it.
    outage = [Disturbance(0.0, "down", "n1"), Disturbance(10.0, "up", "n1")]
    case = Case([(V100, 2), (V100, 2)], [(0, 8, 4), (0, 30)], disturbances=outage)
    assert run(case, "fcfs-easy") == {0: Fate(30, 0, 32), 1: Fate(0, 0, 30)}


# ---- multifactor -------------------------------------------------------------------------------------------------

BOB = {"user": "bob"}
WEEK_S = 7 * 86400


def test_multifactor_prefers_the_user_who_has_used_less() -> None:
    # At 100 the first user has used all there was: 2000 · 2^(−1·2) = 500 for his next job, 2000 for bob's first.
    case = Case([(V100, 1)], [(0, 100), (1, 10), (2, 10, 1, BOB)])
    assert run(case, "multifactor") == {0: Fate(0, 0, 100), 1: Fate(110, 0, 120), 2: Fate(100, 0, 110)}
    assert run(case, "fcfs-easy") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 110), 2: Fate(110, 0, 120)}


@pytest.mark.parametrize(("priority", "starts"), [(0.0, (100, 110)), (0.5, (110, 100))])
def test_multifactor_adds_size_and_priority_to_the_fair_share(priority: float, starts: tuple[float, float]) -> None:
    # At 100, and less than 1 for age: the gang has 1000 · 4/4 + 500 + 1000 · 1 = 2500; bob's job 1000 · 1/4 + 2000 =
    # 2250 without priority, 2750 with half of it.
    jobs = [(0, 400, 4), (1, 40, 4, {"priority": 1.0}), (2, 10, 1, {**BOB, "priority": priority})]
    fates = run(Case([(V100, 4)], jobs), "multifactor")
    assert (fates[1].start, fates[2].start) == starts


def test_multifactor_forgets_half_of_the_usage_in_a_week() -> None:
    # The first user had 100 GPU-seconds a week before bob had 60: 50 against 60, so his job goes first:
    # 2000 · 2^(−50/110·2) = 1065 against 2000 · 2^(−60/110·2) = 939. Undecayed it would be 100 against 60.
    jobs = [(0, 100), (WEEK_S, 60, 1, BOB), (WEEK_S + 1, 10, 1, BOB), (WEEK_S + 2, 10)]
    fates = run(Case([(V100, 1)], jobs), "multifactor")
    assert [fates[job].start - WEEK_S for job in (1, 3, 2)] == [0, 60, 70]


def test_a_week_of_waiting_outweighs_a_large_gang() -> None:
    # When job 0 ends after a week: job 1 has 1000 · 1 (age) + 250 (size), job 2 has 0 + 1000. A day earlier it would be
    # 857 + 250: still more; half a week earlier 500 + 250: less.
    for hours, first in ((7 * 24, 1), (6 * 24, 1), (84, 2)):
        end = hours * 3600
        fates = run(Case([(V100, 4)], [(0, 4 * end, 4), (0, 10), (end, 40, 4)]), "multifactor")
        assert fates[first].start == end, hours


def test_multifactor_starts_its_head_at_the_shortest_site_and_backfills_the_first() -> None:
    # The T4 is site 0. Job 0 takes the V100 (10 s). The head needs 2 V100 at 10. Job 2 may have the T4 (8 s) or the
    # free V100 (4 s): backfilled, it takes the first site. EASY in submit order starts even job 0 on the T4.
    case = Case([(T4, 1), (V100, 2)], [(0, 10), (1, 20, 2), (1, 4)], HALF_T4)
    assert run(case, "multifactor") == {0: Fate(0, 1, 10), 1: Fate(10, 1, 20), 2: Fate(1, 0, 9)}
    assert run(case, "fcfs-easy")[0] == Fate(0, 0, 20)


def test_multifactor_holds_back_who_would_delay_its_head() -> None:
    # The gang came last and is the head by its size (1000 against 250). Job 1 would end at 20 + 1, after job 0 (10).
    case = Case([(V100, 4)], [(0, 30, 3), (1, 20), (1, 40, 4)])
    assert run(case, "multifactor") == {0: Fate(0, 0, 10), 1: Fate(20, 0, 40), 2: Fate(10, 0, 20)}
    assert run(case, "fcfs-first-fit")[2] == Fate(21, 0, 31)


# ---- eft ---------------------------------------------------------------------------------------------------------


def test_eft_waits_for_a_busy_fast_gpu_only_if_it_ends_sooner_there() -> None:
    # Job 1: V100 at 10 + 12 = 22, T4 48: it waits. With job 0 until 100: 112 against 48: it does not.
    case = Case([(V100, 1), (T4, 1)], [(0, 10), (0, 12)], SLOW_T4)
    assert run(case, "eft") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 22)}
    assert run(case, "sjf")[1] == Fate(0, 1, 48)
    case = Case([(V100, 1), (T4, 1)], [(0, 100, 1), (1, 12)], SLOW_T4)
    assert run(case, "eft") == {0: Fate(0, 0, 100), 1: Fate(1, 1, 49)}
    assert run(case, "sjf-picky")[1] == Fate(100, 0, 112)


def test_eft_starts_first_who_finishes_first() -> None:
    case = Case([(V100, 1)], [(0, 10), (0, 5)])
    assert run(case, "eft") == {0: Fate(5, 0, 15), 1: Fate(0, 0, 5)}


@pytest.mark.parametrize(("busy_s", "fate"), [(5, Fate(5, 0, 15)), (30, Fate(1, 2, 21))])
def test_eft_foresees_when_a_gang_has_two_nodes(busy_s: float, fate: Fate) -> None:
    # Both V100 nodes are busy until 5 or 30; then the gang takes 40/4 = 10 s there. On the T4s 1 + 40/(4·0.5) = 21.
    jobs = [(0, busy_s * 2, 2), (0, busy_s * 2, 2), (1, 40, 4)]
    assert run(Case([(V100, 2), (V100, 2), (T4, 4)], jobs, HALF_T4), "eft")[2] == fate


def test_eft_does_not_wait_for_a_node_that_could_never_take_the_job() -> None:
    # The node of the V100 has 8 cores, job 0 needs 16.
    case = Case([(V100, 1, 8.0), (T4, 1, 32.0)], [(0, 10, 1, {"cpus": 16.0})], SLOW_T4)
    assert run(case, "eft") == {0: Fate(0, 1, 40)}


def test_eft_does_not_wait_for_free_gpus_beside_cores_that_are_taken() -> None:
    # Job 0 holds all cores of the fast node until 100; its other GPU is free, but of no use to job 1.
    jobs = [(0, 100, 1, {"cpus": 8.0}), (1, 10, 1, {"cpus": 4.0})]
    case = Case([(V100, 2, 8.0), (T4, 1, 8.0)], jobs, HALF_T4)
    assert run(case, "eft") == {0: Fate(0, 0, 100), 1: Fate(1, 1, 21)}


@pytest.mark.parametrize("policy", ["eft", "static-affinity"])
def test_nor_does_a_gang_wait_for_two_nodes_that_could_never_take_it(policy: str) -> None:
    # On two V100 nodes it would need 12 cores each, and they have 8. On the T4s it takes 10 / (4 · 0.25) = 10 s.
    nodes = [(V100, 2, 8.0), (V100, 2, 8.0), (T4, 4, 32.0)]
    case = Case(nodes, [(0, 10, 4, {"cpus": 24.0})], SLOW_T4, affinity={"any": (V100,)})
    assert run(case, policy) == {0: Fate(0, 2, 10)}


# ---- preemptive --------------------------------------------------------------------------------------------------


def test_srtf_stops_the_longer_job_which_pays_the_restart() -> None:
    # At 20 job 0 has 80 left, job 1 10. Job 0 goes on at 30, pays 5, works 80: 115. Sjf lets job 1 wait until 100.
    case = Case([(V100, 1)], [(0, 100), (20, 10)], restart_s=5.0)
    assert run(case, "srtf") == {0: Fate(0, 0, 115, stops=1), 1: Fate(20, 0, 30)}
    assert run(case, "sjf") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 110)}


@pytest.mark.parametrize("submit", [90, 95])
def test_srtf_stops_nobody_who_has_as_little_left(submit: float) -> None:
    # 100 − 90 = 10 is not more than 10.
    assert run(Case([(V100, 1)], [(0, 100), (submit, 10)]), "srtf") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 110)}


def test_srtf_lets_a_stopped_job_run_elsewhere() -> None:
    # At 10: left on a V100 90, 150 − 5 = 145, 10. Job 2 is soonest on the V100: job 0 is stopped there, though job 1
    # has more left. Job 0 (90 < 145) stops job 1 in turn and takes the T4: 10 + 90/0.5 = 190. At 20 job 1 has the V100
    # to itself: 20 + 145.
    case = Case([(T4, 1), (V100, 1)], [(0, 100), (0, 150), (10, 10)], HALF_T4)
    fates = run(case, "srtf")
    assert fates == {0: Fate(0, 0, 190, stops=1), 1: Fate(0, 1, 165, stops=1), 2: Fate(10, 1, 20)}


def test_srsf_counts_the_gpus_and_srtf_does_not() -> None:
    # At 10 job 0 has 50 s left on 1 GPU, job 1 needs 40 s on 2: 40 < 50, but 80 > 50.
    case = Case([(V100, 2)], [(0, 60), (10, 80, 2)])
    assert run(case, "srtf") == {0: Fate(0, 0, 100, stops=1), 1: Fate(10, 0, 50)}
    assert run(case, "srsf") == {0: Fate(0, 0, 60), 1: Fate(60, 0, 100)}


def test_all_who_are_in_the_way_of_a_gang_over_two_nodes_are_stopped() -> None:
    # At 10 jobs 0 and 1 have 90 and 190 s left, the gang needs 10 s on both nodes. Then both go on.
    case = Case([(V100, 2), (V100, 2)], [(0, 200, 2), (0, 400, 2), (10, 40, 4)], restart_s=1.0)
    fates = run(case, "srtf")
    assert fates == {0: Fate(0, 0, 111, stops=1), 1: Fate(0, 1, 211, stops=1), 2: Fate(10, 0, 20)}


def test_for_a_gang_over_two_nodes_no_more_are_stopped_than_it_needs() -> None:
    # Job 1 has most left (190) and is stopped: 1 + 2 GPUs are free, enough for 3. Job 0 goes on.
    case = Case([(V100, 2), (V100, 2)], [(0, 100), (0, 400, 2), (10, 30, 3)])
    fates = run(case, "srtf")
    assert fates == {0: Fate(0, 0, 100), 1: Fate(0, 1, 210, stops=1), 2: Fate(10, 1, 20)}


def test_nobody_is_stopped_in_vain() -> None:
    # At 10 jobs 0 and 1 have 10 and 100 left; the gang needs 10 s on both GPUs. It may not stop job 0, so it would not
    # help to stop job 1. At 20 job 0 has ended: now job 1 is stopped, and does its last 90 from 30.
    case = Case([(V100, 2)], [(0, 20), (0, 110), (10, 20, 2)])
    assert run(case, "srtf") == {0: Fate(0, 0, 20), 1: Fate(0, 0, 120, stops=1), 2: Fate(20, 0, 30)}


def test_a_job_on_a_share_of_a_gpu_is_not_stopped_nor_its_neighbour_in_vain() -> None:
    case = Case([(V100, 1)], [(0, 50, 1, share(500)), (10, 10)])
    assert run(case, "srtf") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 110)}
    case = Case([(V100, 2)], [(0, 50, 1, share(500)), (0, 100), (10, 20, 2)])
    assert run(case, "srtf") == {0: Fate(0, 0, 100), 1: Fate(0, 0, 100), 2: Fate(100, 0, 110)}


def test_with_a_window_of_one_an_earlier_job_is_not_stopped_and_a_later_one_is() -> None:
    # Stopped, job 0 would be all that the policy sees, and start again: so job 1 waits.
    assert run(Case([(V100, 1)], [(0, 100), (10, 10)], window=1), "srtf") == {0: Fate(0, 0, 100), 1: Fate(100, 0, 110)}
    # At 10 job 0 loses its node, with 40 left. Job 1 (190 left) is stopped for it: it waits behind job 0, out of sight.
    jobs = [(0, 50, 1, {"checkpoint": 0.0}), (0, 200)]
    case = Case([(V100, 1), (V100, 1)], jobs, window=1, disturbances=[Disturbance(10.0, "down", "n0")])
    assert run(case, "srtf") == {0: Fate(0, 1, 50), 1: Fate(0, 1, 240, stops=1)}


def test_las_lets_a_newcomer_in_at_once_and_fcfs_does_not() -> None:
    # At 100 job 0 has had 100 GPU-seconds, job 1 none. Job 0 goes on at 150, pays 5, works 900: 1055.
    case = Case([(V100, 1)], [(0, 1000), (100, 50)], restart_s=5.0)
    assert run(case, "las") == {0: Fate(0, 0, 1055, stops=1), 1: Fate(100, 0, 150)}
    assert run(case, "fcfs") == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 1050)}


TWO_LONG = Case([(V100, 1)], [(0, 1000), (0, 1000)])


def test_las_changes_turns_every_360_s() -> None:
    # 360: 360 against 0, change. 720: 360 against 360, no change. 1080: 360 against 720, change; job 0 has 640 left and
    # is left alone at 1440 (720 against 720): 1720. Then job 1 does its last 280: 2000.
    assert run(TWO_LONG, "las") == {0: Fate(0, 0, 1720, stops=1), 1: Fate(360, 0, 2000, stops=1)}


def test_tiresias_keeps_submit_order_inside_a_queue() -> None:
    # Neither has had 3600 GPU-seconds.
    assert run(TWO_LONG, "tiresias") == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 2000)}


@pytest.mark.parametrize("gpus", [1, 4])
def test_tiresias_demotes_at_3600_gpu_seconds(gpus: int) -> None:
    # Job 0 reaches 3600 GPU-seconds at 3600 s or, on 4 GPUs, at 900 s; job 1 runs 50 s, then job 0 does the rest.
    # Las would have let job 1 in at 100.
    demoted = 3600 / gpus
    case = Case([(V100, gpus)], [(0, 5000, gpus), (100, 50 * gpus, gpus)])
    fates = run(case, "tiresias")
    assert fates[1] == pytest.approx((demoted, 0, demoted + 50, 0), abs=1e-5)
    assert fates[0] == pytest.approx((0, 0, 5000 / gpus + 50, 1), abs=1e-5)
    assert run(case, "las")[1].start == 100


def test_tiresias_stops_a_later_job_for_an_earlier_one() -> None:
    # Job 1 needs both GPUs and cannot stop job 0, so job 2 runs beside it. At 10 job 1 can stop job 2, which then has
    # 20 left: 20 to 40. First-fit would let job 1 wait until 30.
    case = Case([(V100, 2)], [(0, 10), (0, 20, 2), (0, 30)])
    assert run(case, "tiresias") == {0: Fate(0, 0, 10), 1: Fate(10, 0, 20), 2: Fate(0, 0, 40, stops=1)}
    assert run(case, "fcfs-first-fit")[1] == Fate(30, 0, 40)
