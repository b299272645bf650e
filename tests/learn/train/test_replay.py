"""The ring: which transitions come out of it."""

from typing import Any

import numpy as np
import torch

from adlro.learn.train.replay import Ring, Samples
from adlro.learn.worlds.envs import Came

SIZE = 2  # environments of a group


def came(reward: float, done: bool) -> Came:
    """What came of a step, the same in all environments."""
    mark = np.full(SIZE, done, np.uint8)
    numbers = np.full(SIZE, reward, np.float32)
    return Came(numbers, numbers, mark, mark, numbers, np.ones(SIZE, np.float32))


def seen(number: float) -> tuple[Any, ...]:
    """An observation that can be told from others."""
    return np.full((SIZE, 3), number, np.float32), np.ones((SIZE, 2), np.uint8)


def filled(rounds: int, length: int = 8, ends: tuple[int, ...] = ()) -> Ring:
    """A ring of two groups in which round t has the observation t (+ 0.5 in group 1), action t and reward t."""
    ring = Ring(length, seen(0), 2, torch.device("cpu"), torch.float32)
    for t in range(rounds):
        for group in range(2):
            ring.see(group, seen(t + 0.5 * group))
            ring.did(group, torch.full((SIZE,), t), came(float(t), t in ends), 100.0)
    return ring


def drawn(ring: Ring, horizon: int, gamma: float = 0.5) -> Samples:
    """Many samples."""
    return ring.sample(500, horizon, gamma, torch.Generator().manual_seed(0))


def test_a_sample_joins_what_was_seen_with_what_is_seen_so_many_steps_later() -> None:
    found = drawn(filled(7), 3)
    assert torch.equal(found.after[0] - found.before[0], torch.full_like(found.before[0], 3.0))
    assert torch.equal(found.before[0][:, 0].floor().long(), found.action)
    t = found.action.float()
    assert torch.allclose(found.gain, t + 0.5 * (t + 1) + 0.25 * (t + 2))
    assert torch.equal(found.discount, torch.full((500,), 0.125))


def test_nothing_counts_after_the_end_of_an_episode() -> None:
    found = drawn(filled(7, ends=(2,)), 3)
    before_end = found.action == 1
    assert torch.allclose(found.gain[before_end], torch.tensor(1 + 0.5 * 2))
    assert torch.equal(found.discount, torch.where(found.action <= 2, 0.0, 0.125))


def test_rounds_that_are_overwritten_or_not_yet_complete_are_never_drawn() -> None:
    ring = filled(20)
    ring.see(0, seen(20.0))  # group 0 has begun round 20, which takes the place of round 12
    assert sorted(set(drawn(ring, 3).action.tolist())) == [13, 14, 15, 16]
    assert list(ring.rounds(3)) == [13, 14, 15, 16]


def test_rewards_are_cut_off() -> None:
    ring = Ring(8, seen(0), 1, torch.device("cpu"), torch.float32)
    for reward in (-1000.0, 1000.0, 1.0):
        ring.see(0, seen(0))
        ring.did(0, torch.zeros(SIZE), came(reward, False), 20.0)
    assert ring.reward[:3, 0].tolist() == [-20.0, 20.0, 1.0]


def test_a_ring_put_back_draws_the_same() -> None:
    ring = filled(20)
    other = Ring(8, seen(0), 2, torch.device("cpu"), torch.float32)
    other.restore(ring.arrays())
    one, two = drawn(ring, 2), drawn(other, 2)
    assert torch.equal(one.action, two.action)
    assert torch.equal(one.gain, two.gain)
    assert torch.equal(one.discount, two.discount)
    assert torch.equal(one.before[0], two.before[0])
    assert torch.equal(one.after[0], two.after[0])


def test_what_surprised_most_is_drawn_most_and_counts_least() -> None:
    ring = filled(7)
    everything = drawn(ring, 3)
    ring.was_wrong_by(everything, (everything.action == 2).float() * 10.0)
    found = ring.sample(500, 3, 0.5, torch.Generator().manual_seed(0), priority=1.0)
    often = found.action == 2
    assert often.float().mean() > 0.9
    assert found.weight[often].max() < 0.02
    assert torch.equal(found.weight[~often], torch.ones_like(found.weight[~often]))


def test_a_new_round_is_as_likely_as_the_most_surprising_one() -> None:
    ring = filled(7)
    everything = drawn(ring, 3)
    ring.was_wrong_by(everything, torch.full((500,), 10.0))
    ring.see(0, seen(7.0))
    ring.did(0, torch.full((SIZE,), 7), came(7.0, False), 100.0)
    assert float(ring.surprise[7, :SIZE].min()) == float(ring.surprise.max())
