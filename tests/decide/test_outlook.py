"""What is foreseen, on clusters small enough for paper; and that the rule which follows from it is sound."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.both import run_compiled
from tests.decide.conftest import Case, Fate, run, scenario_of
from tests.strategies import Scenario, scenarios

from adlro.core.engine import DECIDE, advance, apply
from adlro.core.plan import plan_cluster
from adlro.core.rules import fits, has_room, in_queue
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.decide.outlook import HEAD, IDLE, UNWISE, Outlook, is_worth_a_look, look, make_outlook, wisest
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import SimulationSettings, prepare

V100, T4 = "v100", "t4"
HALF_T4 = {"any": {V100: 1.0, T4: 0.5}}
RULE = "eft-reserving"


def looked(case: Case, starts: Sequence[tuple[int, int]] = (), rows: int = 16) -> tuple[View, Outlook]:
    """The outlook at time 0, once these jobs have started at these sites."""
    scenario = scenario_of(case)
    plan, jobs = plan_cluster(scenario.cluster), pack_jobs(scenario.jobs)
    view = pack(plan, jobs, scenario.speed)
    truth = prepare(
        view, jobs.work, find_policy(RULE), SimulationSettings(), pack_disturbances(plan, scenario.disturbances), 0
    )
    assert advance(view, truth) == DECIDE
    for j, s in starts:
        assert apply(view, truth, Choice(START, j, s, FOREVER))
    outlook = make_outlook(view, rows)
    look(view, outlook)
    return view, outlook


def row_of(outlook: Outlook, j: int) -> int:
    return outlook.rows[: outlook.counts[0]].tolist().index(j)


def test_jobs_that_need_more_gpus_than_any_pool_has_free_are_not_worth_a_look() -> None:
    wide, narrow = (0, 9, 3), (0, 9, 2)
    view, _ = looked(Case([(V100, 4), (T4, 2)], [narrow, wide, wide]), [(0, 0)])
    assert not is_worth_a_look(view)  # 2 are free in each of the pools
    view, _ = looked(Case([(V100, 4), (T4, 2)], [narrow, wide, narrow]), [(0, 0)])
    assert is_worth_a_look(view)
    view, _ = looked(Case([(V100, 1)], [(0, 9, 1, {"share": 500}), (0, 9, 1, {"share": 500})]), [(0, 0)])
    assert is_worth_a_look(view)  # no GPU is free, but half of one is


# ---- when GPUs come free -----------------------------------------------------------------------------------------


def test_gpus_come_free_when_their_jobs_are_expected_to_end() -> None:
    # Site 0 has 4 GPUs: one held to 10, two by a gang (16 / 2) to 8, one free. Site 1 is idle.
    case = Case([(V100, 4), (V100, 2)], [(0, 10), (0, 16, 2), (0, 4), (0, 3, 3)])
    _, outlook = looked(case, [(0, 0), (1, 0)])
    assert outlook.gpu_free.tolist() == [0, 8, 8, 10, 0, 0]
    # So many on one node: 1 and 2 at once (site 1), 3 at 8 (site 0), 4 at 10; the next GPU to come free does so at 8.
    assert outlook.ready[0].tolist() == [8, 0, 0, 8, 10]
    w = row_of(outlook, 3)
    assert outlook.wait[w, 0] == 8
    assert outlook.finish[w] == 9


def test_a_share_holds_its_gpu_until_the_last_job_on_it_ends() -> None:
    half = {"share": 500}
    _, outlook = looked(Case([(V100, 1)], [(0, 5, 1, half), (0, 2, 1, half), (0, 1)]), [(0, 0)])
    assert outlook.gpu_free.tolist() == [10]  # half a GPU does 5 of work in 10 s
    _, outlook = looked(Case([(V100, 2)], [(0, 5, 1, half), (0, 2, 1, half), (0, 1)]), [(0, 0), (1, 0)])
    assert outlook.gpu_free.tolist() == [0, 10]


def test_a_gang_over_nodes_waits_for_its_part_on_each() -> None:
    # 6 GPUs go over two nodes, foreseen as 3 on each: site 0 has them from 8 on, site 1 from 4 on.
    jobs = [(0, 16, 2), (0, 8, 2), (0, 5, 1), (0, 12, 6)]
    _, outlook = looked(Case([(V100, 4), (V100, 4)], jobs), [(0, 0), (1, 1)])
    w = row_of(outlook, 3)
    assert outlook.wait[w, 0] == 8
    assert outlook.counts[HEAD] == w


def test_a_job_that_lacks_cores_waits_for_the_next_release() -> None:
    # One GPU is free but no core: job 0 holds all 8 until 10.
    jobs = [(0, 10, 1, {"cpus": 8.0}), (0, 2, 1, {"cpus": 1.0}), (0, 3)]
    _, outlook = looked(Case([(V100, 2, 8.0)], jobs), [(0, 0)])
    w = row_of(outlook, 1)
    assert outlook.spot[w, 0] == NOBODY
    assert outlook.wait[w, 0] == 10


# ---- rows --------------------------------------------------------------------------------------------------------


def test_of_jobs_that_need_the_same_only_the_shortest_has_a_row() -> None:
    _, outlook = looked(Case([(V100, 2)], [(0, 9), (0, 4), (0, 7), (0, 8, 2), (0, 6, 2)]))
    assert outlook.counts[0] == 2
    assert outlook.rows[:2].tolist() == [4, 1]  # 6 / 2 = 3 s, then 4 s
    assert outlook.alike[:2].tolist() == [2, 3]


def test_the_shortest_have_a_row_when_there_are_more_than_rows() -> None:
    jobs = [(0, 10.0 - n, 1, {"cpus": float(n)}) for n in range(6)]
    _, outlook = looked(Case([(V100, 2)], jobs), rows=3)
    assert outlook.rows.tolist() == [5, 4, 3]


# ---- the rule ----------------------------------------------------------------------------------------------------


def test_the_goal_is_where_a_job_ends_first_its_wait_included() -> None:
    # The V100 is held to 30: job 1 ends at 20 on the T4 (10 / 0.5) and at 40 on the V100.
    _, outlook = looked(Case([(V100, 1), (T4, 1)], [(0, 30), (0, 10)], HALF_T4), [(0, 0)])
    assert outlook.goal[0] == 1
    assert outlook.finish[0] == 20
    assert outlook.wait[0].tolist() == [30, 0]
    assert outlook.run[0].tolist() == [10, 20]


def test_a_start_that_delays_a_blocked_job_with_an_earlier_end_is_unwise() -> None:
    # Job 1 (2 GPUs, 2 s) waits for job 0 until 10, and ends at 12. Job 2 (20 s) on the free GPU would put it off to 20.
    case = Case([(V100, 2)], [(0, 10), (0, 4, 2), (0, 20)])
    view, outlook = looked(case, [(0, 0)])
    w = row_of(outlook, 2)
    assert outlook.counts[HEAD] == row_of(outlook, 1)
    assert outlook.delay[w, 0] == 10
    assert outlook.prior[w, 0] == UNWISE
    assert wisest(view, outlook).verb == WAIT


def test_a_start_that_ends_before_the_blocked_job_could_start_is_wise() -> None:
    view, outlook = looked(Case([(V100, 2)], [(0, 10), (0, 4, 2), (0, 9, 1, {"cpus": 1.0})]), [(0, 0)])
    w = row_of(outlook, 2)
    assert outlook.delay[w, 0] == 0
    assert outlook.prior[w, 0] > IDLE
    assert wisest(view, outlook) == Choice(START, 2, 0, FOREVER)


def test_the_rule_keeps_the_gpu_for_the_blocked_job() -> None:
    # Jobs 1 and 2 come at 1, when job 0 holds one GPU: the gang (job 1) goes first at 10, then job 2 of 20 s.
    fates = run(Case([(V100, 2)], [(0, 10), (1, 4, 2), (1, 20)]), RULE)
    assert fates == {0: Fate(0, 0, 10), 1: Fate(10, 0, 12), 2: Fate(12, 0, 32)}
    assert run(Case([(V100, 2)], [(0, 10), (1, 4, 2), (1, 20)]), "sjf")[2].start == 1


@pytest.mark.parametrize(("speed", "starts"), [(0.5, True), (0.25, False)])
def test_the_rule_takes_a_slower_gpu_unless_waiting_ends_in_less_than_half_the_time(speed: float, starts: bool) -> None:
    # The V100 is held to 5, so job 1 would end there at 15; on the T4 at 20 or 40.
    case = Case([(V100, 1), (T4, 1)], [(0, 5), (0, 10)], {"any": {V100: 1.0, T4: speed}})
    view, outlook = looked(case, [(0, 0)])
    assert (wisest(view, outlook).verb == START) is starts


# ---- at random ---------------------------------------------------------------------------------------------------


@given(scenarios(), st.integers(0, 3))
def test_every_spot_is_legal_and_the_tightest_and_the_rule_chooses_one(scenario: Scenario, waits: int) -> None:
    plan, jobs = plan_cluster(scenario.cluster), pack_jobs(scenario.jobs)
    view = pack(plan, jobs, scenario.speed)
    happening = pack_disturbances(plan, scenario.disturbances)
    truth = prepare(view, jobs.work, find_policy(RULE), SimulationSettings(), happening, 0)
    outlook, part = make_outlook(view), make_outlook(view)
    while advance(view, truth) == DECIDE:
        legal = look(view, outlook)
        assert legal == check_spots(view, outlook)
        assert has_room(view) or legal == 0
        assert is_worth_a_look(view) or legal == 0
        choice = wisest(view, outlook)
        assert choice == first_with_largest_prior(view, outlook)
        assert look(view, part, False) == legal
        assert wisest(view, part) == choice
        if choice.verb == START:
            assert choice.job in [in_queue(view, q) for q in range(view.clock[0].queued)]
            assert fits(view, choice.job, choice.site)
        if waits and choice.verb == START:
            waits -= 1
            choice = Choice(WAIT, NOBODY, NOBODY, FOREVER)
        apply(view, truth, choice)
    assert view.clock[0].illegal == 0


def first_with_largest_prior(view: View, outlook: Outlook) -> Choice:
    """What the rule chooses, by its definition."""
    legal = outlook.spot[: outlook.counts[0]] != NOBODY
    prior = np.where(legal, outlook.prior[: outlook.counts[0]], UNWISE)
    if prior.max(initial=UNWISE) <= IDLE:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    w, p = divmod(int(prior.argmax()), len(view.pools))
    return Choice(START, int(outlook.rows[w]), int(outlook.spot[w, p]), FOREVER)


def check_spots(view: View, outlook: Outlook) -> int:
    """Compare every spot with all legal sites of its pool; how many there are."""
    count = 0
    for w in range(outlook.counts[0]):
        j = int(outlook.rows[w])
        for p in range(len(view.pools)):
            sites = [s for s in range(len(view.sites)) if view.sites[s].pool == p and fits(view, j, s)]
            spot = int(outlook.spot[w, p])
            if outlook.run[w, p] == FOREVER:
                assert spot == NOBODY
                continue
            assert (spot != NOBODY) == bool(sites)
            if spot != NOBODY:
                count += 1
                assert spot in sites
                if view.width[view.jobs[j].kind, view.sites[spot].form] == 1:
                    single = [s for s in sites if view.width[view.jobs[j].kind, view.sites[s].form] == 1]
                    assert view.sites[spot].free_share == min(view.sites[s].free_share for s in single)
    return count


@given(scenarios())
def test_the_rule_makes_no_illegal_choice_and_ends(scenario: Scenario) -> None:
    ran = run_compiled(scenario, find_policy(RULE))
    assert ran.outcome.illegal == 0
    down = any(d.what == "down" for d in scenario.disturbances)
    assert down or ran.outcome.unfinished == 0
    assert np.isfinite(ran.outcome.events.time).all()
