"""Observations by chance, and networks that are not at their beginning."""

from typing import Any

import numpy as np
import torch

from adlro.decide.network.planes import (
    CLAIM,
    PAIR_PLANES,
    PAIR_STOP_PLANES,
    POOL_PLANES,
    ROW_PLANES,
    ROW_STOP_PLANES,
    WHOLE_PLANES,
    WHOLE_STOP_PLANES,
)
from adlro.learn.train.network import PairNetwork, Sight


def observations(states: int, rows: int, pools: int, inside: Sight | None = None, stops: bool = False) -> Sight:
    """Observations by chance, as arrays; or given ones with rows and pools added that are not there.

    With `stops`, some legal pairs are claims, and others moves, which are not present.
    """
    more = 1 if stops else 0
    random = np.random.default_rng(states + rows + pools)

    def real(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    present = (random.random((states, rows, pools)) < 0.7).astype(np.uint8)
    present[:, 0, 0] = 1
    legal = present * (random.random(present.shape) < 0.5).astype(np.uint8)
    found: list[Any] = [
        real(states, rows, len(ROW_PLANES) + more * len(ROW_STOP_PLANES)),
        real(states, pools, len(POOL_PLANES)),
        real(states, rows, pools, len(PAIR_PLANES) + more * len(PAIR_STOP_PLANES)),
        real(states, len(WHOLE_PLANES) + more * len(WHOLE_STOP_PLANES)),
        real(states, rows, pools),
        present,
        legal,
    ]
    if stops:
        kinds = random.integers(0, 3, present.shape)  # 0: a start, 1: a claim, 2: a move
        found[2][..., CLAIM] = kinds > 0
        found[5] = present * (kinds < 2)
        found[5][:, 0, 0] = 1
        found[6] = np.where(kinds == 2, random.random(present.shape) < 0.5, found[6]).astype(np.uint8)
    if inside is not None:
        w, p = inside.present.shape[1:]
        found[3] = inside.whole
        found[5][:], found[6][:] = 0, 0
        found[0][:, :w], found[1][:, :p] = inside.rows, inside.pools
        kept = inside.pairs, inside.prior, inside.present, inside.legal[:, :-1].reshape(states, w, p)
        for at, each in zip((2, 4, 5, 6), kept, strict=True):
            found[at][:, :w, :p] = each
    found[6] = np.concatenate([found[6].reshape(states, -1), np.ones((states, 1), np.uint8)], 1)
    return Sight(*found)


def stirred(channels: int, layers: int, stops: bool = False) -> PairNetwork:
    """A network whose last layers are not zero."""
    torch.manual_seed(channels + layers)
    network = PairNetwork(channels, layers, stops=stops, boldness=0.3)
    with torch.no_grad():
        for last in (network.advantage, network.waiting, network.value, *([network.claim] if stops else [])):
            last.weight.normal_(0.0, 0.5)
    return network
