"""The batched environment: the same runs as the simulator's, alone or in company, compiled or not."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from adlro.core.tables import DONE, DOWN, FUTURE, JOB, NOBODY, RUN, STARTED, UP, View, records
from adlro.decide.catalogue import find_policy
from adlro.decide.outlook import IDLE
from adlro.experiment.instance import draw as draw_instance
from adlro.experiment.scenario import load_scenario
from adlro.learn.worlds.batch import BY_CHANCE, Batch, in_parts, make_batch, spare_row, start_all, step
from adlro.learn.worlds.draw import DrawnWorld, make_world, random_worlds, stack
from adlro.learn.worlds.envs import Draw, Seen
from adlro.simulation.simulator import simulate

ROOT = Path(__file__).resolve().parents[3]
PLAIN = Draw(0.9, 0.9, backlog=0, burst=0.0, sigma=0.0, jitter=0.2, failures=0.0, shaped=False)
VARIED = Draw(0.5, 1.5, backlog=6, burst=0.3, sigma=0.5, jitter=0.3, failures=0.0, shaped=False)
FAILING = VARIED._replace(failures=1.0)


@cache
def some_worlds() -> tuple[DrawnWorld, ...]:
    scenario = load_scenario("paper16", "paper", 200)
    return make_world(scenario.plan, draw_instance(scenario, 0).jobs), *random_worlds(4, 7)


def batch_of(draw: Draw, count: int, seed: int = 1, jobs: int = 24, workers: int = 1, which: Any = None) -> Batch:
    worlds = stack([some_worlds()[which]] if isinstance(which, int) else some_worlds())
    return make_batch(worlds, count, jobs, 12, worlds.pools.shape[1], draw, seed, workers)


def rule_action(batch: Batch, b: int) -> int:
    """What the rule would do: the legal pair of the largest prior, unless to wait is better."""
    legal = batch.seen.legal[b, :-1] != 0
    prior = np.where(legal, batch.seen.prior[b].ravel(), -np.inf)
    return int(prior.argmax()) if prior.max() > IDLE else batch.actions - 1


def view_like(batch: Batch, b: int) -> tuple[View, Any, list[tuple[float, int, int, int, float]]]:
    """What the simulator needs for the episode that an environment is at the beginning of."""
    state = batch.envs.state[b]
    fresh = some_worlds()[int(state.world)].view
    jobs = len(batch.envs.jobs[b])
    runs = records(RUN, jobs)
    runs.site = runs.parts = runs.slot = NOBODY
    runs.state = FUTURE
    copies: list[Any] = [array.copy() for array in fresh]
    view = View(*copies)._replace(
        jobs=batch.envs.jobs[b].copy().view(np.recarray),
        runs=runs,
        queue=np.zeros(2 * jobs + 2, np.int32),
        running=np.zeros(jobs + 1, np.int32),
    )
    rows = batch.envs.disturbances[b]
    happening = [(float(d.time), int(d.what), int(d.node), 0, 1.0) for d in rows if np.isfinite(d.time)]
    return view, batch.envs.work[b].copy(), happening


def rules_run(batch: Batch, b: int) -> tuple[list[tuple[int, float, int]], float]:
    """The starts (job, time, site) of the rule in the simulator, and the sum of completion times."""
    view, work, happening = view_like(batch, b)
    outcome = simulate(view, work, find_policy("eft-reserving"), disturbances=happening)
    assert outcome.unfinished == 0
    starts = [(int(e.job), float(e.time), int(e.site)) for e in outcome.events if e.what == STARTED]
    ends = sum(float(e.time - view.jobs[e.job].submit) for e in outcome.events if e.what == DONE)
    return starts, ends


@pytest.mark.parametrize("draw", [PLAIN, VARIED, FAILING], ids=["plain", "varied", "failing"])
@pytest.mark.parametrize("seed", range(8))
def test_stepped_by_the_rule_an_episode_is_the_simulators_run_of_eft_reserving(draw: Draw, seed: int) -> None:
    batch = batch_of(draw, 1, seed)
    expected, cost = rules_run(batch, 0)
    unit = float(batch.worlds.info.unit[batch.envs.state.world[0]])
    starts = []
    pools = batch.seen.pools.shape[1]
    while True:
        action = rule_action(batch, 0)
        if action < batch.actions - 1:
            w, p = divmod(action, pools)
            anchor = int(batch.foreseen.spot[0, w, p])
            starts.append((int(batch.foreseen.rows[0, w]), float(batch.envs.clock.now[0, 0]), anchor))
        step(batch, np.array([action], np.int32))
        assert batch.came.agreed[0]
        if batch.came.done[0]:
            break
    assert [start[:2] for start in starts] == [start[:2] for start in expected]
    assert float(batch.came.score[0]) * 24 * unit == pytest.approx(cost, rel=1e-5)


@pytest.mark.parametrize("draw", [VARIED, FAILING], ids=["varied", "failing"])
def test_shaped_rewards_are_0_where_the_rule_agrees_and_sum_to_what_was_gained_over_it(draw: Draw) -> None:
    batch = batch_of(draw._replace(shaped=True), 6, 3)
    costs = [rules_run(batch, b)[1] for b in range(6)]
    units = batch.worlds.info.unit[batch.envs.state.world]
    sums, left = np.zeros(6), set(range(6))
    random = np.random.default_rng(0)
    agreed = 0
    while left:
        actions = np.array([rule_action(batch, b) if random.random() < 0.5 else BY_CHANCE for b in range(6)], np.int32)
        step(batch, actions)
        assert (batch.came.reward[batch.came.agreed != 0] == 0.0).all()
        agreed += int(batch.came.agreed.sum())
        for b in sorted(left):
            sums[b] += batch.came.reward[b] * units[b]
            if batch.came.done[b]:
                gained = costs[b] - float(batch.came.score[b]) * 24 * units[b]
                assert sums[b] == pytest.approx(gained, abs=1e-4 * costs[b])
                left.remove(b)
    assert agreed > 20


@pytest.mark.parametrize("seed", range(4))
def test_one_departure_from_the_rule_is_rewarded_with_all_that_it_gains(seed: int) -> None:
    batch = batch_of(FAILING._replace(shaped=True), 8, seed)
    costs = [rules_run(batch, b)[1] for b in range(8)]
    units = batch.worlds.info.unit[batch.envs.state.world]
    earned, left = np.zeros(8), set(range(8))
    departed = np.zeros(8, bool)
    steps = 0
    while left:
        actions = np.array([rule_action(batch, b) for b in range(8)], np.int32)
        for b in range(8):
            if not departed[b] and steps >= 2 * b:
                actions[b] = BY_CHANCE
        step(batch, actions)
        steps += 1
        for b in sorted(left):
            if not batch.came.agreed[b]:
                assert not departed[b]
                departed[b] = True
                earned[b] = batch.came.reward[b] * units[b]
            if batch.came.done[b]:
                gained = costs[b] - float(batch.came.score[b]) * 24 * units[b]
                assert earned[b] == pytest.approx(gained, abs=1e-4 * costs[b])
                left.remove(b)
        departed |= np.array([b not in left for b in range(8)])
    assert (earned != 0.0).sum() >= 4


def first_departure(batch: Batch, steps: int) -> list[float]:
    """What the first departures from the rule were rewarded with: one in each environment, after so many steps."""
    for _ in range(steps):
        step(batch, np.array([rule_action(batch, b) for b in range(batch.count)], np.int32))
    actions = [rule_action(batch, b) for b in range(batch.count)]
    for b, rule in enumerate(actions):
        actions[b] = next((a for a in np.flatnonzero(batch.seen.legal[b]).tolist() if a != rule), rule)
    step(batch, np.array(actions, np.int32))
    found: list[float] = batch.came.reward.tolist()
    return found


def limits_of(batch: Batch, ahead: int) -> list[int]:
    """By how many jobs a choice is judged now in each environment: the next multiple of 16."""
    gpus = batch.worlds.info["gpus"][batch.envs.state["world"]]
    until = batch.envs.clock[: batch.count, 0].arrived + ahead + gpus // 4
    return (-(-until // 16) * 16).tolist()


@pytest.mark.parametrize("steps", [0, 3, 9])
def test_a_choice_is_judged_by_the_next_jobs_to_come_as_if_no_others_came(steps: int) -> None:
    shaped = PLAIN._replace(shaped=True)
    judged = batch_of(shaped._replace(ahead=2), 12, 3, jobs=48, which=0)
    for _ in range(steps):
        step(judged, np.array([rule_action(judged, b) for b in range(12)], np.int32))
    limits = limits_of(judged, 2)
    found = first_departure(batch_of(shaped._replace(ahead=2), 12, 3, jobs=48, which=0), steps)
    whole = first_departure(batch_of(shaped, 12, 3, jobs=48, which=0), steps)
    for b, limit in enumerate(limits):
        # The same generators draw the same jobs, so an episode of so many jobs is the beginning of a longer one.
        short = first_departure(batch_of(shaped, 12, 3, jobs=min(48, limit), which=0), steps)
        assert found[b] == pytest.approx(short[b], rel=1e-5, abs=1e-6)
    assert found != whole


def test_all_choices_of_one_limit_are_judged_as_in_an_episode_of_so_many_jobs() -> None:
    shaped = PLAIN._replace(shaped=True)
    judged = batch_of(shaped._replace(ahead=2), 12, 3, jobs=48, which=0)
    short = batch_of(shaped, 12, 3, jobs=16, which=0)
    same = np.array([limit == 16 for limit in limits_of(judged, 2)])
    compared = 0
    for _ in range(12):
        actions = np.array([np.flatnonzero(legal)[-1] for legal in short.seen.legal], np.int32)
        step(judged, actions.copy())
        step(short, actions)
        assert judged.came.reward[same] == pytest.approx(short.came.reward[same], rel=1e-5, abs=1e-5)
        compared += int(np.count_nonzero(short.came.reward[same]))
        same &= np.array([limit == 16 for limit in limits_of(judged, 2)]) & (short.came.done == 0)
    assert compared >= 20


def test_rewards_with_a_limit_that_is_never_reached_are_those_without() -> None:
    one, two = (batch_of(VARIED._replace(shaped=True, ahead=ahead), 6, 3) for ahead in (0, 24))
    for each, other in zip(by_chance(one, 40), by_chance(two, 40), strict=True):
        for array, same in zip(each, other, strict=True):
            np.testing.assert_array_equal(array, same)


def copied(seen: Seen) -> list[Any]:
    there = seen.present[..., None]
    return [seen.rows * there.max(axis=2), seen.pools.copy(), seen.pairs * there, seen.whole.copy(), seen.legal.copy()]


def by_chance(batch: Batch, steps: int = 60) -> list[list[Any]]:
    found = [copied(batch.seen)]
    for _ in range(steps):
        step(batch, np.full(batch.count, BY_CHANCE, np.int32))
        found.append([*copied(batch.seen), batch.came.reward.copy(), batch.came.done.copy()])
    return found


def test_the_number_of_threads_changes_nothing() -> None:
    one, three = (by_chance(batch_of(FAILING, 7, 5, workers=workers)) for workers in (1, 3))
    for a, b in zip(one, three, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("stops", [0.0, 0.5])
def test_threads_play_ahead_on_lines_of_memory_of_their_own(stops: float) -> None:
    batch = batch_of(VARIED._replace(shaped=True, stops=stops), 40, workers=3)
    rows = len(batch.envs.clock)
    every: list[Any] = [*batch.envs, *batch.foreseen[:-1], *batch.foreseen.claims]
    arrays = [each for each in every if len(each) == rows and each.size]
    assert len(arrays) > 30 + (15 if stops else 0)
    spare = [spare_row(batch.count, worker) for worker in range(3)]
    for row, other in pairwise([batch.count - 1, *spare]):
        assert all((other - row - 1) * each.strides[0] >= 64 for each in arrays)
    for _ in range(8):
        step(batch, np.full(batch.count, BY_CHANCE, np.int32))
    written = {row for row in range(batch.count, rows) if batch.envs.clock[row, 0].arrived > 0}
    assert written
    assert written <= set(spare)


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 4, 7, 64, 65])
def test_each_environment_is_in_one_part_of_the_work(count: int, workers: int, turns: int) -> None:
    done: list[int] = []
    with ThreadPoolExecutor(workers) as threads:
        batch: Any = SimpleNamespace(count=count, workers=workers, threads=threads)
        in_parts(batch, lambda first, last, worker: done.extend(range(first, last)), turns)
    assert sorted(done) == list(range(count))


def test_what_fails_on_any_thread_fails_for_the_caller() -> None:
    def work(_first: int, _last: int, worker: int) -> None:
        meet.wait()  # both threads are at work
        if worker == failing:
            raise ValueError(worker)

    for failing in (0, 1):
        meet = Barrier(2, timeout=30.0)
        with ThreadPoolExecutor(2) as threads, pytest.raises(ValueError, match=str(failing)):
            in_parts(cast(Any, SimpleNamespace(count=2, workers=2, threads=threads)), work)


def test_an_environment_goes_the_same_way_alone_as_in_a_batch() -> None:
    together = batch_of(FAILING._replace(shaped=True), 7, 5)
    states = np.random.default_rng(5).integers(1, 2**63, 7, np.uint64)
    all_of_it = by_chance(together)
    for b in (0, 4, 6):
        alone = batch_of(FAILING._replace(shaped=True), 1, 0)
        alone.envs.state["random"][0] = states[b]
        start_all(alone)
        for whole, single in zip(all_of_it, by_chance(alone), strict=True):
            for x, y in zip(whole, single, strict=True):
                np.testing.assert_array_equal(x[b], y[0])


def test_an_episode_that_ends_begins_anew_inside_the_step() -> None:
    batch = batch_of(PLAIN, 4, 2, jobs=6)
    ended = np.zeros(4, int)
    for _ in range(80):
        step(batch, np.full(4, BY_CHANCE, np.int32))
        for b in np.flatnonzero(batch.came.done):
            ended[b] += 1
            assert batch.came.score[b] > 0.0
            assert batch.envs.state.steps[b] == 0
            assert batch.seen.legal[b, :-1].any()
    assert ended.min() >= 2
    assert ended.tolist() == batch.envs.state.finished.tolist()


def test_an_action_that_may_not_be_counts_as_waiting() -> None:
    for wrong in (-1, 10**6, None):
        wrongly, waiting = batch_of(PLAIN, 1, 4), batch_of(PLAIN, 1, 4)
        for _ in range(40):
            illegal = int(np.flatnonzero(wrongly.seen.legal[0, :-1] == 0)[0]) if wrong is None else wrong
            step(wrongly, np.array([illegal], np.int32))
            step(waiting, np.array([waiting.actions - 1], np.int32))
            for x, y in zip(copied(wrongly.seen), copied(waiting.seen), strict=True):
                np.testing.assert_array_equal(x, y)


def test_whoever_always_waits_still_ends_all_jobs() -> None:
    batch = batch_of(PLAIN, 1, 4, jobs=6)
    view, work, _ = view_like(batch, 0)
    least = float((work / view.fastest[view.jobs.demand]).mean())  # every job at its fastest, without any wait
    unit = float(batch.worlds.info.unit[batch.envs.state.world[0]])
    for _ in range(200):
        step(batch, np.array([batch.actions - 1], np.int32))
        if batch.came.done[0]:
            assert float(batch.came.score[0]) * unit > least
            return
    raise AssertionError("the episode does not end")


def test_nodes_fail_and_all_jobs_end() -> None:
    batch = batch_of(FAILING, 8, 11)
    rows = batch.envs.disturbances[0]
    assert {int(row.what) for row in rows} == {DOWN, UP}
    assert (np.diff(rows.time) >= 0.0).all()
    lost = 0
    for _ in range(400):
        step(batch, np.full(8, BY_CHANCE, np.int32))
        lost += int((batch.envs.runs.starts[:8] > 1).sum())
        assert np.isfinite(batch.came.score).all()
    assert batch.envs.state.finished.min() >= 2
    assert lost > 0


def test_a_recorded_trace_keeps_its_order_and_its_gaps() -> None:
    scenario = load_scenario("paper16", "paper", 200)
    jobs = draw_instance(scenario, 0).jobs
    worlds = stack([make_world(scenario.plan, jobs, in_order=True)])
    batch = make_batch(
        worlds, 5, 30, 8, worlds.pools.shape[1], PLAIN._replace(jitter=0.0, load_low=1, load_high=1), 3, 1
    )
    menu = worlds.jobs[0, : worlds.info.menu[0]]
    firsts = set()
    for b in range(5):
        first = int(np.flatnonzero(worlds.work[0] == batch.envs.work[b, 0])[0])
        firsts.add(first)
        np.testing.assert_array_equal(batch.envs.work[b], worlds.work[0, first : first + 30])
        gaps = np.diff(batch.envs.jobs[b].submit)
        np.testing.assert_allclose(gaps, np.diff(menu.submit[first : first + 30]), rtol=1e-6, atol=1e-6)
    assert len(firsts) > 1


def test_half_the_load_doubles_the_gaps() -> None:
    full, half = (batch_of(PLAIN._replace(load_low=x, load_high=x), 1, 9, which=0) for x in (1.0, 0.5))
    np.testing.assert_allclose(2.0 * full.envs.jobs[0].submit, half.envs.jobs[0].submit)


SCRIPT = """
import json
import numpy as np
from tests.learn.worlds.test_batch import tiny
with np.errstate(over="ignore"):
    print(json.dumps(tiny()))
"""


def tiny() -> list[Any]:
    """A few steps of two environments, with failures and the rule played ahead."""
    batch = batch_of(FAILING._replace(shaped=True), 2, 6, jobs=5, which=0)
    found: list[Any] = []
    for _ in range(12):
        step(batch, np.full(2, BY_CHANCE, np.int32))
        found.append([array.tolist() for array in (*copied(batch.seen), batch.came.reward, batch.came.done)])
    return found


def test_uncompiled_code_sees_and_does_the_same() -> None:
    path = os.pathsep.join([str(ROOT), *(folder for folder in sys.path if folder)])
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    for ours, theirs in zip(tiny(), json.loads(answer.stdout), strict=True):
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_the_table_of_jobs_is_the_simulators() -> None:
    assert batch_of(PLAIN, 1).envs.jobs.dtype == JOB
