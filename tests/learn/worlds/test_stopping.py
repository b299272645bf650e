"""Environments in which jobs may be stopped: the rule's runs, rewards against it, and episodes without stops."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from adlro.core.driver import Driver
from adlro.core.tables import DONE
from adlro.decide.catalogue import find_policy
from adlro.decide.network.planes import CLAIM, ROW_PLANES
from adlro.decide.rules.claiming import MOVES
from adlro.decide.rules.timelines import MOST_STARTS
from adlro.learn.train.evaluate import _plain
from adlro.learn.train.scales import by_the_rule
from adlro.learn.worlds.batch import BY_CHANCE, Batch, make_batch, step
from adlro.learn.worlds.draw import random_worlds, stack, worlds_of
from adlro.learn.worlds.envs import Draw, Worlds, truth_of, view_of

STOPS = Draw(
    0.7, 1.3, backlog=6, burst=0.3, sigma=0.4, jitter=0.3, failures=0.0, shaped=False, stops=1.0, restart=600.0
)
JOBS, COUNT = 24, 6


@cache
def some_worlds() -> Worlds:
    return stack([*worlds_of("paper16", "paper", 1, 0), *random_worlds(2, 7)])


def batch_of(draw: Draw, seed: int) -> Batch:
    worlds = some_worlds()
    return make_batch(worlds, COUNT, JOBS, 12, worlds.pools.shape[1], draw, seed, 1)


def costs_of(batch: Batch, name: str) -> list[float]:
    """The sum of completion times of each episode under a policy, played from the first decision on."""
    costs = []
    for b in range(COUNT):
        view: Any = _plain(view_of)(batch.worlds, batch.envs, b, b)
        truth: Any = _plain(truth_of)(batch.worlds, batch.envs, b, b)
        driver = Driver(view, truth, find_policy(name))
        driver.run()
        events: Any = driver.truth.events[: driver.truth.progress[0].events]
        ended = events[events.what == DONE]
        assert len(ended) == JOBS
        assert view.clock[0].illegal == 0
        costs.append(float((ended.time - view.jobs.submit[ended.job]).sum()))
    return costs


def units_of(batch: Batch) -> Any:
    return batch.worlds.info.unit[batch.envs.state.world].copy()


@pytest.mark.parametrize("seed", range(3))
def test_stepped_by_the_rule_an_episode_is_the_run_of_eft_claiming(seed: int) -> None:
    costs = costs_of(batch_of(STOPS, seed), "eft-claiming")
    batch = batch_of(STOPS, seed)
    units, left, claims = units_of(batch), set(range(COUNT)), 0
    while left:
        actions = by_the_rule(batch.seen)
        pairs = batch.seen.pairs.reshape(COUNT, -1, batch.seen.pairs.shape[-1])
        claims += sum(action < pairs.shape[1] and pairs[b, action, CLAIM] > 0 for b, action in enumerate(actions))
        step(batch, actions)
        assert batch.came.agreed.all()
        for b in [b for b in left if batch.came.done[b]]:
            assert float(batch.came.score[b]) * JOBS * units[b] == pytest.approx(costs[b], rel=1e-5)
            left.remove(b)
    assert claims > 0


def test_shaped_rewards_sum_to_what_was_gained_over_the_rule_that_stops_jobs() -> None:
    how = STOPS._replace(shaped=True)
    costs = costs_of(batch_of(how, 3), "eft-claiming")
    batch = batch_of(how, 3)
    units, sums, left = units_of(batch), np.zeros(COUNT), set(range(COUNT))
    random = np.random.default_rng(0)
    while left:
        actions = np.where(random.random(COUNT) < 0.5, by_the_rule(batch.seen), BY_CHANCE).astype(np.int32)
        step(batch, actions)
        assert (batch.came.reward[batch.came.agreed != 0] == 0.0).all()
        for b in sorted(left):
            sums[b] += batch.came.reward[b] * units[b]
            if batch.came.done[b]:
                gained = costs[b] - float(batch.came.score[b]) * JOBS * units[b]
                assert sums[b] == pytest.approx(gained, abs=1e-4 * costs[b])
                left.remove(b)


def test_where_no_job_may_be_stopped_an_episode_is_as_in_environments_without_stops() -> None:
    never, without = batch_of(STOPS._replace(stops=1e-300), 5), batch_of(STOPS._replace(stops=0.0), 5)
    assert never.seen.rows.shape[1] == without.seen.rows.shape[1] + MOVES
    assert costs_of(batch_of(STOPS._replace(stops=1e-300), 5), "eft-claiming") == costs_of(
        batch_of(STOPS._replace(stops=0.0), 5), "eft-reserving"
    )
    left = set(range(COUNT))
    rows, pools = without.seen.present.shape[1:]
    while left:
        some = sorted(left)
        assert np.array_equal(never.seen.present[some, :rows], without.seen.present[some])
        assert np.array_equal(never.seen.legal[some, : rows * pools], without.seen.legal[some, :-1])
        for b in some:  # rows that are not in use keep what was there before
            used = without.seen.present[b].any(1)
            assert np.array_equal(never.seen.rows[b, :rows][used, : len(ROW_PLANES)], without.seen.rows[b][used])
            assert not never.seen.rows[b, :rows][used, len(ROW_PLANES)].any()
        step(never, by_the_rule(never.seen))
        step(without, by_the_rule(without.seen))
        for b in [b for b in left if never.came.done[b]]:
            assert without.came.done[b]
            assert never.came.score[b] == without.came.score[b]
            left.remove(b)


def test_by_chance_no_job_is_stopped_more_often_than_the_bound_and_restarts_differ() -> None:
    batch = batch_of(STOPS._replace(stops=0.75, restart=1800.0), 4)
    restarts, may, stopped, moved = set(), set(), False, False
    actions = np.empty(COUNT, np.int32)
    for _ in range(400):
        actions[:] = BY_CHANCE
        step(batch, actions)
        assert batch.envs.runs["starts"].max() <= MOST_STARTS + 1
        assert batch.envs.clock["illegal"].max() == 0
        restarts |= set(batch.envs.clock["restart"][:COUNT, 0].tolist())
        may |= set(batch.envs.jobs["stoppable"][:, 0].tolist())
        stopped |= bool((batch.envs.runs["starts"][:COUNT] > 1).any())
        legal = batch.seen.legal[:, :-1].reshape(batch.seen.present.shape)
        moved |= bool((legal > batch.seen.present).any())
        assert (np.abs(batch.seen.pairs) <= 7.0).all()
    assert may == {0, 1}
    assert 0.0 in restarts
    assert all(0.0 <= cost <= 1800.0 for cost in restarts)
    assert len(restarts) > 4
    assert stopped
    assert moved
