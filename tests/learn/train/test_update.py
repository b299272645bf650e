"""One update of the network: every number here is computed by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adlro.learn.train.config import TrainConfig, altered
from adlro.learn.train.replay import Ring, Samples, Sights
from adlro.learn.train.update import (
    DivergedError,
    Learner,
    approach,
    check_finite,
    descend,
    frozen_copy,
    judging,
    leaves,
    make_learner,
    mapped,
    rate_at,
    set_rate,
    update,
)
from adlro.learn.worlds.envs import Came

CPU = torch.device("cpu")
BEFORE, AFTER = 0, 1  # the two states


class Table(nn.Module):
    """Q of each action in each state, as weights: what is seen is the number of the state."""

    def __init__(self, q: list[list[float]]) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor(q))

    def forward(self, sights: Sights) -> Tensor:
        """Q [N, actions]."""
        return self.q[sights[0].long()]


def options(**values: Any) -> TrainConfig:
    """The default config with other values."""
    return altered(TrainConfig(), values, "the test")


def learner_of(q: list[list[float]], target: list[list[float]] | None = None) -> Learner:
    """A learner whose step is the gradient itself: plain descent at the rate 1."""
    network = Table(q)
    slow = frozen_copy(network if target is None else Table(target))
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    return Learner(network, slow, frozen_copy(network), optimiser, judging(False, False))


def samples(
    action: list[int], gain: list[float], discount: list[float] | None = None, weight: list[float] | None = None
) -> Samples:
    """Samples from BEFORE to AFTER; of full weight and at the end of their episode if nothing else is said."""
    count = len(action)
    return Samples(
        (torch.full((count,), BEFORE),),
        torch.tensor(action),
        torch.tensor(gain),
        torch.tensor(discount or [0.0] * count),
        (torch.full((count,), AFTER),),
        torch.arange(count),
        torch.tensor(weight or [1.0] * count),
    )


def table(network: nn.Module) -> list[list[float]]:
    """Q as it is now."""
    return next(network.parameters()).tolist()


def near(expected: Any) -> Any:
    """Equal but for rounding."""
    return pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_goal_is_the_gain_and_the_discounted_value_of_what_comes_after() -> None:
    learner = learner_of([[1.0, 2.0], [9.0, 9.0]], target=[[7.0, 7.0], [4.0, 4.0]])
    loss, error = descend(learner, samples([0, 1], [3.0, -3.0], [0.5, 0.25]), options(bend=1.0))
    # Goals: 3 + 0.5 · 4 = 5 and −3 + 0.25 · 4 = −2; Q is 1 and 2.
    assert error.tolist() == near([4.0, 4.0])
    assert float(loss) == near(3.5)
    assert not loss.requires_grad
    assert not error.requires_grad
    # Q goes towards its goal, up or down, and only where something was done.
    assert table(learner.network) == [near([1.5, 1.5]), [9.0, 9.0]]
    assert table(learner.target) == [[7.0, 7.0], [4.0, 4.0]]


@pytest.mark.parametrize(("gain", "wrong_by"), [(3.0, 2.0), (-3.0, 4.0)])
def test_a_gain_counts_with_its_sign(gain: float, wrong_by: float) -> None:
    learner = learner_of([[1.0, 0.0], [0.0, 0.0]])
    _, error = descend(learner, samples([0], [gain]), options())
    assert error.tolist() == near([wrong_by])
    after = table(learner.network)[BEFORE][0]
    assert after > 1.0 if gain > 1.0 else after < 1.0


@pytest.mark.parametrize(
    ("wrong_by", "bend", "loss", "slope"),
    [
        (0.5, 1.0, 0.125, 0.5),  # half its square
        (3.0, 1.0, 2.5, 1.0),  # as it is, less half the bend
        (1.0, 2.0, 0.25, 0.5),  # the same with the bend elsewhere
        (3.0, 2.0, 2.0, 1.0),
        (2.0, 2.0, 1.0, 1.0),  # at the bend both are the same
    ],
)
def test_small_errors_count_squared_and_large_ones_as_they_are(
    wrong_by: float, bend: float, loss: float, slope: float
) -> None:
    for sign in (1.0, -1.0):
        learner = learner_of([[0.0, 0.0], [0.0, 0.0]])
        found, error = descend(learner, samples([1], [sign * wrong_by]), options(bend=bend))
        assert float(found) == near(loss)
        assert error.tolist() == near([wrong_by])
        assert table(learner.network)[BEFORE] == near([0.0, sign * slope])


def test_a_weight_scales_what_a_sample_counts_but_not_how_wrong_it_was() -> None:
    learner = learner_of([[0.0, 0.0], [0.0, 0.0]])
    given = samples([0, 1], [0.5, 3.0], weight=[1.0, 0.2])
    loss, error = descend(learner, given, options(bend=1.0))
    assert float(loss) == near((1.0 * 0.125 + 0.2 * 2.5) / 2)
    assert error.tolist() == near([0.5, 3.0])
    assert table(learner.network)[BEFORE] == near([0.5 / 2, 0.2 / 2])


@pytest.mark.parametrize(("double", "value"), [(True, 1.0), (False, 3.0)])
def test_with_double_the_network_chooses_and_the_target_values(double: bool, value: float) -> None:
    # The network finds action 0 best afterwards, the target action 1.
    learner = learner_of([[0.0, 0.0], [5.0, 2.0]], target=[[0.0, 0.0], [1.0, 3.0]])
    _, error = descend(learner, samples([0], [10.0], [0.5]), options(double=double))
    assert error.tolist() == near([10.0 + 0.5 * value])


@pytest.mark.parametrize("double", [True, False])
def test_after_the_end_of_an_episode_nothing_counts(double: bool) -> None:
    learner = learner_of([[0.0, 0.0], [5.0, 2.0]], target=[[0.0, 0.0], [1e6, -1e6]])
    loss, error = descend(learner, samples([0], [0.5], [0.0]), options(double=double))
    assert error.tolist() == near([0.5])
    assert float(loss) == near(0.125)


@pytest.mark.parametrize(
    ("clip", "step"),
    [
        (2.5, [1.5, 2.0]),  # half as long and in the same direction
        (10.0, [3.0, 4.0]),  # short enough
        (0.0, [3.0, 4.0]),  # any length
    ],
)
def test_a_gradient_is_no_longer_than_the_clip(clip: float, step: list[float]) -> None:
    learner = learner_of([[0.0, 0.0], [0.0, 0.0]])
    loss, _ = descend(learner, samples([0, 1], [9.0, 9.0], weight=[6.0, 8.0]), options(clip=clip))
    assert table(learner.network)[BEFORE] == near(step)
    assert float(loss) == near((6.0 + 8.0) * 8.5 / 2)


def test_a_gradient_is_forgotten_after_its_step() -> None:
    learner = learner_of([[0.0, 0.0], [0.0, 0.0]])
    descend(learner, samples([0], [9.0]), options())
    descend(learner, samples([1], [9.0]), options())
    assert table(learner.network)[BEFORE] == near([1.0, 1.0])


def test_updates_on_one_batch_lead_to_its_goals() -> None:
    config = options(rate=0.05, target_share=0.0)
    learner = make_learner(Table([[0.0, 0.0], [0.0, 2.0]]), config, CPU)
    given = samples([0, 1], [1.0, -3.0], [0.0, 0.5])
    losses = [float(update(learner, given, config, config.rate)[0]) for _ in range(300)]
    assert losses[0] == near((0.5 + 1.5) / 2)
    assert losses[1] < losses[0]
    assert losses[-1] < 1e-3
    assert table(learner.network)[BEFORE] == pytest.approx([1.0, -2.0], abs=0.05)


def test_a_learner_begins_with_three_networks_that_are_equal_and_apart() -> None:
    learner = make_learner(Table([[1.0, 2.0], [3.0, 4.0]]), options(rate=0.25), CPU)
    assert [group["lr"] for group in learner.optimiser.param_groups] == [0.25]
    assert learner.updates == 0
    with torch.no_grad():
        next(learner.network.parameters()).zero_()
    for slow in (learner.target, learner.average):
        assert table(slow) == [[1.0, 2.0], [3.0, 4.0]]
        assert not any(each.requires_grad for each in slow.parameters())
    assert learner.target is not learner.average


def test_the_target_moves_by_its_share_when_it_is_due_and_the_average_each_time() -> None:
    learner = learner_of([[0.0], [0.0]])
    config = options(target_every=3, target_share=0.25, average=0.5)
    targets, averages, errors = [], [], []
    for count in range(1, 7):
        _, error = update(learner, samples([0], [100.0]), config, 1.0)
        assert learner.updates == count
        assert table(learner.network)[BEFORE] == near([float(count)])  # far from its goal each step is 1
        targets.append(table(learner.target)[BEFORE][0])
        averages.append(table(learner.average)[BEFORE][0])
        errors.append(float(error))
    assert targets == near([0.0, 0.0, 0.75, 0.75, 0.75, 2.0625])
    assert averages == near([0.5, 1.25, 2.125, 3.0625, 4.03125, 5.015625])
    assert errors == near([100.0, 99.0, 98.0, 97.0, 96.0, 95.0])


def test_a_target_that_takes_over_everything_is_the_network() -> None:
    learner = learner_of([[0.0], [0.0]])
    update(learner, samples([0], [100.0]), options(target_share=1.0, average=1.0), 1.0)
    assert table(learner.target) == table(learner.average) == table(learner.network) == [[1.0], [0.0]]


def test_a_step_is_as_long_as_its_rate() -> None:
    learner = learner_of([[0.0], [0.0]])
    update(learner, samples([0], [100.0]), options(rate=7.0), 0.25)
    assert table(learner.network)[BEFORE] == near([0.25])


@pytest.mark.parametrize(
    ("updates", "done", "rate"),
    [
        (0, 0.0, 0.0025),  # the first of the four updates in which it rises
        (1, 0.0, 0.005),
        (2, 0.0, 0.0075),
        (3, 0.0, 0.01),
        (1000, 0.0, 0.01),
        (1000, 1 / 3, 0.00775),  # cos 60° = 0.5: three quarters of the way down are left
        (1000, 0.5, 0.0055),
        (1000, 1.0, 0.001),
        (1, 0.5, 0.00275),  # both at once
    ],
)
def test_the_rate_rises_and_falls_along_a_cosine(updates: int, done: float, rate: float) -> None:
    assert rate_at(options(rate=0.01, rate_warm_up=3, rate_end=0.1), updates, done) == near(rate)


def test_a_rate_may_be_whole_at_once_stay_or_end_at_nothing() -> None:
    assert rate_at(options(rate=0.01, rate_warm_up=0), 0, 0.0) == near(0.01)
    assert rate_at(options(rate=0.01, rate_end=1.0), 1000, 1.0) == near(0.01)
    assert rate_at(options(rate=0.01, rate_end=0.0), 1000, 1.0) == pytest.approx(0.0, abs=1e-12)


def test_a_slow_copy_goes_a_share_of_the_way() -> None:
    network = Table([[1.0, -2.0], [8.0, 0.0]])
    slow = frozen_copy(Table([[3.0, 2.0], [0.0, 0.0]]))
    approach(slow, network, 0.25)
    assert table(slow) == [near([2.5, 1.0]), near([2.0, 0.0])]
    assert table(network) == [[1.0, -2.0], [8.0, 0.0]]
    approach(slow, network, 0.0)
    assert table(slow) == [near([2.5, 1.0]), near([2.0, 0.0])]
    approach(slow, network, 1.0)
    assert table(slow) == table(network)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_stop_a_training_and_are_named(number: float) -> None:
    network = nn.ModuleDict({"sound": Table([[1.0, 2.0]]), "broken": Table([[1.0, 2.0]])})
    check_finite(network, "in round 7")
    with torch.no_grad():
        next(network["broken"].parameters())[0, 1] = number
    with pytest.raises(DivergedError, match=r"diverged in round 7: the weights 'broken\.q' are not finite.*smaller"):
        check_finite(network, "in round 7")


def test_a_rate_is_set_in_all_groups_and_in_place_where_it_is_a_tensor() -> None:
    plain = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))]}])
    set_rate(plain, 0.125)
    assert [group["lr"] for group in plain.param_groups] == [0.125, 0.125]
    on_device = torch.tensor(1.0)
    set_rate(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=on_device), 0.125)
    assert float(on_device) == 0.125


def test_the_tensors_of_samples_are_found_in_order_and_mapped_one_by_one() -> None:
    given = samples([0, 1], [1.0, 2.0])
    assert [id(each) for each in leaves(given)] == [
        id(each) for each in (given.before[0], *given[1:4], given.after[0], *given[5:])
    ]
    twice = mapped(given, lambda each: each * 2)
    assert isinstance(twice, Samples)
    assert twice.gain.tolist() == [2.0, 4.0]
    assert twice.after[0].tolist() == [2 * AFTER, 2 * AFTER]


def test_each_environment_learns_from_its_own_rewards_and_ends() -> None:
    """Two environments side by side in the ring: one gains and goes on, one loses and ends at its second step."""
    rewards = np.array([[1.0, -1.0], [2.0, -2.0], [4.0, -4.0], [8.0, -8.0]], np.float32)
    ends = np.array([[0, 0], [0, 1], [0, 0], [0, 0]], np.uint8)
    sight = (np.array([0, 1], np.uint8),)  # the state is the number of the environment
    ring = Ring(8, sight, 1, CPU, torch.float32)
    for reward, end in zip(rewards, ends, strict=True):
        ring.see(0, sight)
        ring.did(
            0, torch.zeros(2, dtype=torch.int64), Came(reward, reward, end, end, reward, np.ones_like(reward)), 100.0
        )
    assert list(ring.rounds(3)) == [0]
    drawn = ring.sample(50, 3, 0.5, torch.Generator().manual_seed(0))
    second = drawn.before[0] == 1
    assert set(second.tolist()) == {False, True}
    assert torch.equal(drawn.gain, torch.where(second, -1.0 - 0.5 * 2.0, 1.0 + 0.5 * 2.0 + 0.25 * 4.0))
    assert torch.equal(drawn.discount, torch.where(second, 0.0, 0.125))
    learner = learner_of([[0.0], [0.0]], target=[[16.0], [16.0]])
    _, error = descend(learner, drawn, options())
    assert torch.equal(error, torch.where(second, 2.0, 3.0 + 0.125 * 16.0))
    (first,), (other,) = table(learner.network)
    assert first > 0.0 > other
