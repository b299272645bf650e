"""Claims and moves: cases by hand, and a second computation of who is stopped and what that costs, in plain Python."""

from typing import Any

import numpy as np
import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.core.policy import Choose, Policy
from adlro.core.tables import NOBODY, RUNNING, Choice, View
from adlro.decide.checkpoint import with_stops
from adlro.decide.network.greedy_q import ROWS, new_mind, shipped
from adlro.decide.network.inference import Weights
from adlro.decide.network.stopping_q import start_claim_or_move
from adlro.decide.outlook import Outlook
from adlro.decide.rules.claiming import CLAIMED, HOPE, Claims, new_claims
from adlro.decide.rules.eft_claiming import new_pending
from adlro.decide.rules.timelines import MOST_STARTS

V100, T4 = "v100", "t4"
HALF_T4 = {"any": {V100: 1.0, T4: 0.5}}


def test_a_short_job_takes_the_place_of_a_long_one() -> None:
    # At 20 job 1 would end at 1010, and at 30 with a stop; job 0 loses 10/4 + 5 · (1 + 1). It goes on at 30 and pays 5.
    case = Case([(V100, 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert run(case, "eft-claiming") == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


def test_nobody_is_stopped_who_would_end_before_the_other_job_and_a_restart() -> None:
    case = Case([(V100, 1)], [(0, 50), (20, 10)], restart_s=20.0)
    assert run(case, "eft-claiming") == {0: Fate(0, 0, 50), 1: Fate(50, 0, 60)}


@pytest.mark.parametrize(("restart_s", "stops"), [(9.0, 1), (10.0, 0)])
def test_a_claim_must_bring_more_than_it_costs(restart_s: float, stops: int) -> None:
    # As under `plan`: the gang gains 40, the two others lose 20/4 + 1.5 restarts each: together 37 or 40.
    case = Case([(V100, 2)], [(0, 100), (0, 100), (60, 40, 2)], restart_s=restart_s)
    fates = run(case, "eft-claiming")
    assert [fates[job].stops for job in range(3)] == [stops, stops, 0]
    assert fates[2].start == (60 if stops else 100)


def test_nobody_takes_the_gpus_that_a_claim_has_cleared_before_the_job_starts() -> None:
    # Job 3 waits for one GPU and would fit after the first stop. The gang, which gains most, gets both.
    case = Case([(V100, 2)], [(0, 4000), (0, 4000), (60, 40, 2), (60, 3000)], restart_s=1.0)
    fates = run(case, "eft-claiming")
    assert (fates[2].start, fates[2].finish) == (60, 80)
    assert fates[3].start > 60


def test_a_gang_over_two_nodes_takes_the_places_of_as_many_jobs_as_it_needs() -> None:
    case = Case([(V100, 2), (V100, 2)], [(0, 1000), (0, 4000, 2), (10, 30, 3)], restart_s=1.0)
    assert run(case, "eft-claiming") == {0: Fate(0, 0, 1000), 1: Fate(0, 1, 2011, stops=1), 2: Fate(10, 1, 20)}


def test_a_job_moves_to_a_faster_gpu_that_comes_free_though_nobody_waits() -> None:
    # Job 1 takes the T4, where it would end at 400. At 100 it has 150 left: 5 + 150 on the V100.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], HALF_T4, restart_s=5.0)
    assert run(case, "eft-claiming") == {0: Fate(0, 0, 100), 1: Fate(0, 0, 255, stops=1)}


def test_a_move_must_gain_more_than_a_restart_beyond_the_one_it_pays() -> None:
    # It would end 150 sooner without the restarts: 75 twice is not less.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], HALF_T4, restart_s=75.0)
    assert run(case, "eft-claiming")[1] == Fate(0, 1, 400)


def test_no_job_is_stopped_more_often_than_the_bound() -> None:
    short = [(100.0 * number, 10) for number in range(1, MOST_STARTS + 6)]
    fates = run(Case([(V100, 1)], [(0, 100_000), *short], restart_s=1.0), "eft-claiming")
    assert fates[0].stops == MOST_STARTS


@pytest.mark.parametrize("seed", range(4))
def test_where_no_job_may_be_stopped_it_is_eft_reserving(seed: int) -> None:
    case = mixed_case(seed)
    assert run(case, "eft-claiming+stops(0)", seed) == run(case, "eft-reserving", seed)


@pytest.mark.parametrize("seed", range(4))
def test_at_one_moment_no_job_is_stopped_after_it_was_started(seed: int) -> None:
    started: dict[int, float] = {}
    for time, what, job, _ in play(mixed_case(seed), "eft-claiming", seed).events:
        assert what != "illegal"
        if what == "start":
            started[job] = time
        elif what == "stop":
            assert started[job] < time


# ---- a second computation ----------------------------------------------------------------------------------------


def left_of(view: View, j: int) -> float:
    """Estimated work left."""
    job, run, now = view.jobs[j], view.runs[j], float(view.clock[0].now)
    done = float(run.done)
    if run.state == RUNNING:
        cost = float(view.clock[0].restart) if run.starts > 1 else float(job.start)
        done = run.saved + max(0.0, now - run.started - cost) * view.rate[job.kind, view.sites[run.site].form]
    estimate = float(job.estimate)
    while 0 < done >= estimate:
        estimate *= 2.0
    return float(estimate - done)


def rest_of(view: View, v: int) -> float:
    """Seconds until a running job is expected to end."""
    run, now = view.runs[v], float(view.clock[0].now)
    rate = view.rate[view.jobs[v].kind, view.sites[run.site].form]
    return float(max(now, run.since) - now + left_of(view, v) / rate)


def cheapest(view: View, outlook: Outlook, j: int, p: int, finish: float) -> tuple[float, float] | None:
    """Gain and loss of the best claim of job j in pool p on one node, tried site by site; None if there is none."""
    job, now, restart = view.jobs[j], float(view.clock[0].now), float(view.clock[0].restart)
    pressure = float(view.clock[0].queued) / len(view.gpus)
    found: list[tuple[float, float, float]] = []
    pool = view.pools[p]
    for s in view.pool_sites[pool.first_site : pool.first_site + pool.sites]:
        site, node = view.sites[s], view.nodes[view.sites[s].node]
        rate = view.rate[job.kind, site.form]
        if not node.up or view.width[job.kind, site.form] != 1 or rate <= 0:
            continue
        seconds = (restart if view.runs[j].starts else float(job.start)) + left_of(view, j) / rate
        here: dict[int, int] = {}
        for v in view.running[: view.clock[0].running].tolist():
            other, state = view.jobs[v], view.runs[v]
            may = other.stoppable and other.share == 1000 and state.started < now and state.starts <= MOST_STARTS
            if not (may and other.gpus > 0 and rest_of(view, v) > seconds + restart):
                continue
            masks = {int(state.site): int(state.mask)}
            part = int(state.parts)
            while part != NOBODY:
                masks[int(view.parts[part].site)] = int(view.parts[part].mask)
                part = int(view.parts[part].next)
            if s in masks:
                here[v] = masks[s].bit_count()

        def loses(v: int, seconds: float = seconds) -> float:
            return 0.25 * seconds + restart * (1 + pressure * int(view.jobs[v].gpus))

        def room(stopped: list[int], here: dict[int, int] = here, site: Any = site, node: Any = node) -> bool:
            parts = [(view.jobs[v], here[v]) for v in stopped]
            gpus = int(site.free_gpus) + sum(held for _, held in parts)
            cpus = int(node.free_cpus) + sum(-(-int(each.cpus) * held // int(each.gpus)) for each, held in parts)
            memory = int(node.free_memory) + sum(-(-int(each.memory) * held // int(each.gpus)) for each, held in parts)
            return bool(gpus >= job.gpus and cpus >= job.cpus and memory >= job.memory)

        stopped: list[int] = []
        while not room(stopped):
            order = [v for v in here if v not in stopped]
            if not order:
                break
            first = min(loses(v) / min(int(job.gpus), here[v]) for v in order)
            gpus = range(site.first_gpu, site.first_gpu + site.gpus)
            held = [int(view.gpus[g].holder) for g in gpus if view.gpus[g].free_share < 1000]
            order.sort(key=held.index)
            stopped.append(next(v for v in order if loses(v) / min(int(job.gpus), here[v]) == first))
        if not stopped or not room(stopped):
            continue
        for v in reversed(stopped.copy()):
            if room([each for each in stopped if each != v]):
                stopped.remove(v)
        freed = sum(int(view.jobs[v].gpus) for v in stopped)
        idle = max(0, freed - max(0, int(job.gpus) - int(site.free_gpus)))
        loss = pressure * idle * seconds + sum(map(loses, stopped))
        gain = finish - seconds
        if stopped and gain > HOPE * loss:
            found.append((gain - HOPE * loss, gain, loss))
    return max(found)[1:] if found else None


def compare_claims(view: View, outlook: Outlook, claims: Claims) -> int:
    """Check every pair on one node of a job on whole GPUs; returns the number of claims."""
    count = 0
    for w in range(outlook.counts[0]):
        j = int(outlook.rows[w])
        for p in range(len(view.pools)):
            wide = view.width[view.jobs[j].kind, view.sites[view.pools[p].anchor].form] > 1
            if wide or view.jobs[j].share < 1000 or outlook.spot[w, p] != NOBODY or not np.isfinite(outlook.run[w, p]):
                continue
            expected = cheapest(view, outlook, j, p, float(outlook.finish[w]))
            assert (claims.place[w, p] != NOBODY) == (expected is not None)
            if expected is not None:
                assert (claims.gain[w, p], claims.loss[w, p]) == pytest.approx(expected)
                count += 1
    return count


@pytest.mark.parametrize("seed", range(3))
def test_claims_are_those_of_a_second_computation(seed: int) -> None:
    case = mixed_case(seed, 40)
    seen = [0]

    def make(view: View, seed: int) -> Choose:
        weights = Weights(**with_stops({k: v for k, v in shipped()._asdict().items() if k != "claim"}, 0.1))
        mind, claims, pending = new_mind(view, weights, ROWS), new_claims(view, ROWS), new_pending(view)

        def choose(shown: View) -> Choice:
            claims.counts.fill(-7)
            choice = start_claim_or_move(shown, mind, claims, pending)
            if claims.counts[CLAIMED] >= 0 and shown.clock[0].window == 0:
                seen[0] += compare_claims(shown, mind.outlook, claims)
            return choice

        return choose

    play(
        Case(case.nodes, case.jobs, case.speeds, restart_s=case.restart_s),
        Policy("checked", "", make=make, preemptive=True, heeds_marks=True),
    )
    assert seen[0] > 5
