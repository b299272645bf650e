"""The size of rewards in each world."""

import numpy as np

from adlro.learn.train.scales import CHANCE, by_the_rule, sizes, with_scales
from adlro.learn.worlds.batch import BY_CHANCE, make_batch, step
from adlro.learn.worlds.draw import random_worlds, stack
from adlro.learn.worlds.envs import Draw

HOW = Draw(0.5, 1.5, backlog=8, burst=0.3, sigma=0.5, jitter=0.2, failures=0.0, shaped=True)


def test_rewards_are_about_as_large_in_one_world_as_in_another() -> None:
    worlds = stack(random_worlds(12, 3))
    scaled = with_scales(worlds, HOW, 32, 12, 1, 2)
    assert (worlds.info.scale == worlds.info.unit).all(), "the worlds that were given are as they were"
    assert scaled.info.scale.max() / scaled.info.scale.min() > 10.0
    batch = make_batch(scaled, 192, 32, 12, worlds.pools.shape[1], HOW, 5, 2)
    random = np.random.default_rng(0)
    found: list[list[float]] = [[] for _ in range(12)]
    for _ in range(64):
        actions = by_the_rule(batch.seen)
        actions[random.random(192) < CHANCE] = BY_CHANCE
        world = batch.envs.state["world"].copy()
        step(batch, actions)
        for n, reward, agreed in zip(world, batch.came.reward, batch.came.agreed, strict=True):
            if not agreed:
                found[n].append(abs(float(reward)))
    seen = np.array([len(each) > 20 for each in found])
    means = np.array([np.mean(each) for each in found])[seen]
    before = means * (scaled.info.scale / worlds.info.unit)[seen]
    assert seen.sum() >= 8
    assert 0.5 < np.median(means) < 2.0
    assert np.log(means).std() < 0.7 * np.log(before).std()


def test_what_agrees_with_the_rule_is_the_rules_own() -> None:
    worlds = stack(random_worlds(3, 3))
    batch = make_batch(worlds, 24, 32, 12, worlds.pools.shape[1], HOW, 5, 1)
    for _ in range(40):
        step(batch, by_the_rule(batch.seen))
        assert (batch.came.agreed == 1).all()


def test_a_world_of_which_little_was_seen_has_the_usual_size() -> None:
    total, seen = np.array([800.0, 800.0, 0.0, 9.0]), np.array([100.0, 100.0, 0.0, 1.0])
    found = sizes(total, seen)
    np.testing.assert_allclose(found, [8.0, 8.0, 8.0, (9.0 + 8.0 * 8.0) / 9.0])
    np.testing.assert_array_equal(sizes(np.zeros(2), np.zeros(2)), [1.0, 1.0])
