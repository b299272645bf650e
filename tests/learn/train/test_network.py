"""The network over (job, pool) pairs: how it begins, and what it does not depend on."""

import numpy as np
import torch
from tests.learn.observations import observations, stirred
from tests.learn.small import small_training

from adlro.decide.checkpoint import with_stops
from adlro.decide.network.inference import Weights
from adlro.decide.network.planes import CLAIM, PAIR_PLANES, ROW_PLANES, WHOLE_PLANES
from adlro.decide.outlook import IDLE
from adlro.learn.train.network import MASKED_Q, PairNetwork, Sight, network_of, prior_of, weights_of
from adlro.learn.train.presets import find_preset, pair_arrays


def tensors(sight: Sight) -> Sight:
    """Arrays as tensors."""
    return Sight(*(torch.from_numpy(np.asarray(each)) for each in sight))


def test_it_begins_as_the_rules_judgement() -> None:
    sight = tensors(observations(20, 6, 4))
    q = PairNetwork(8, 2, dueling=False)(sight)
    legal = sight.legal.bool()
    assert torch.allclose(q[legal], prior_of(sight)[legal])
    assert torch.equal(prior_of(sight)[:, -1], torch.full((20,), IDLE))
    assert bool((q[~legal] == MASKED_Q).all())


def test_without_trust_it_begins_knowing_nothing() -> None:
    sight = tensors(observations(20, 6, 4))
    assert bool((PairNetwork(8, 2, trust=0.0)(sight)[sight.legal.bool()] == 0.0).all())


def test_advantages_are_centred_on_the_legal_actions() -> None:
    sight = tensors(observations(20, 6, 4))
    network = stirred(8, 2)
    with torch.no_grad():
        network.value.weight.zero_()
        network.value.bias.fill_(3.0)
        q, legal = network(sight), sight.legal.bool()
    assert torch.allclose(q.masked_fill(~legal, 0.0).sum(1) / legal.sum(1), torch.tensor(3.0), atol=1e-5)


def test_pairs_that_are_not_there_change_nothing() -> None:
    small, network = observations(5, 6, 3), stirred(8, 2)
    wide = observations(5, 9, 5, inside=small)
    with torch.no_grad():
        q, q_wide = network(tensors(small)), network(tensors(wide))
    pairs = q_wide[:, :-1].view(5, 9, 5)[:, :6, :3].reshape(5, -1)
    assert torch.allclose(torch.cat([pairs, q_wide[:, -1:]], 1), q, atol=1e-5)


def test_weights_taken_out_and_put_back_give_the_same_q() -> None:
    for layers in (0, 2):
        network, sight = stirred(8, layers), tensors(observations(5, 6, 3))
        with torch.no_grad():
            assert torch.equal(network_of(weights_of(network))(sight), network(sight))


def test_a_network_that_learns_to_stop_begins_as_the_one_it_comes_from() -> None:
    network, sight = stirred(8, 2), tensors(observations(9, 6, 3, stops=True))
    more = network_of(Weights(**with_stops(pair_arrays(network), 0.3)), dueling=False)
    starts = network_of(weights_of(network), dueling=False)
    legal = sight.legal.clone()
    shown = sight.pairs[..., CLAIM] > 0
    legal[:, :-1] *= ~shown.flatten(1)
    plain = sight._replace(
        rows=sight.rows[..., : len(ROW_PLANES)],
        pairs=sight.pairs[..., : len(PAIR_PLANES)],
        whole=sight.whole[..., : len(WHOLE_PLANES)],
        legal=legal,
    )
    with torch.no_grad():
        q, before = more(sight), starts(plain)
    assert torch.allclose(q[legal.bool()], before[legal.bool()], atol=1e-5)
    judged = q[:, -1:] + 0.3 * (sight.prior.flatten(1) - IDLE)
    claims = shown.flatten(1) & sight.legal[:, :-1].bool()
    assert torch.allclose(q[:, :-1][claims], judged[claims], atol=1e-5)
    assert int(claims.sum()) > 20


def test_the_papers_network_put_back_gives_the_same_q() -> None:
    preset = find_preset("paper")
    training = small_training("paper", steps=1, memory=16)
    sights = tuple(torch.from_numpy(each) for each in training.batches[0].seen)
    network = training.learner.network
    with torch.no_grad():
        assert torch.equal(preset.network_of(preset.arrays_of(network))(sights), network(sights))
