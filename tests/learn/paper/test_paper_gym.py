"""The paper's task in Gymnasium: its spaces, its reward with λ, and episodes that repeat."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import adlro  # noqa: F401  (registers the environments)
from adlro.core.errors import ConfigError
from adlro.learn.gym import BAR, CELL, FREE_CELL, LEGAL


def made(**options: Any) -> Any:
    return gymnasium.make("adlro/Paper-v0", jobs=12, rows=6, **options).unwrapped


def played(env: Any, seed: int) -> list[float]:
    """The rewards of an episode in which the first legal action is taken each time."""
    seen, info = env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        assert env.observation_space.contains(seen)
        assert info["action_mask"].astype(bool).tolist() == env.action_masks().tolist()
        seen, reward, over, _, info = env.step(np.int64(np.flatnonzero(info["action_mask"])[0]))
        rewards.append(reward)
    assert info["mean_jct"] > 0
    return rewards


def test_the_weight_of_idle_time_changes_the_reward_and_nothing_else() -> None:
    low, high = made(lam=0.1), made(lam=0.9)
    assert low.action_space.n == 6 * 16
    one, two = played(low, 3), played(high, 3)
    assert len(one) == len(two)
    assert sum(two) < sum(one) < 0
    assert played(low, 3) == one
    low.close()
    high.close()


def test_a_weight_outside_the_papers_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="lambda is 1"):
        made(lam=1.0)


def test_a_picture_shows_legal_assignments_in_green_and_free_gpus_as_bars() -> None:
    env = made(render_mode="rgb_array")
    env.reset(seed=3)
    image = env.render()
    gpus = len(env.action_masks()) // 6
    assert image.shape == (6 * CELL + BAR + 1, gpus * CELL + 1, 3)
    middles = image[CELL // 2 : 6 * CELL : CELL, CELL // 2 :: CELL]
    np.testing.assert_array_equal((middles == LEGAL).all(axis=2), env.action_masks().reshape(6, gpus))
    assert (image[-2, CELL // 2 :: CELL] == FREE_CELL).all()  # nothing runs yet
    first = int(np.flatnonzero(env.action_masks())[0])
    env.step(np.int64(first))
    assert not (env.render()[-2, CELL // 2 :: CELL] == FREE_CELL).all()
    assert made().render() is None
