"""The Q-network over (job, pool) pairs in PyTorch, for training."""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from adlro.decide.network.inference import Weights
from adlro.decide.network.planes import (
    CLAIM,
    LIKENESS,
    PAIR_PLANES,
    PAIR_STOP_PLANES,
    POOL_PLANES,
    ROW_PLANES,
    ROW_STOP_PLANES,
    WHOLE_PLANES,
    WHOLE_STOP_PLANES,
    Singles,
)
from adlro.decide.outlook import IDLE

MASKED_Q = -1e9
"""The Q of illegal actions: below every Q of a legal one."""


class Sight(NamedTuple):
    """A batch of observations as tensors. B states, W rows, P pools, A = W * P + 1 actions."""

    rows: Tensor  # [B, W, ROW_PLANES]
    pools: Tensor  # [B, P, POOL_PLANES]
    pairs: Tensor  # [B, W, P, PAIR_PLANES]
    whole: Tensor  # [B, WHOLE_PLANES]
    prior: Tensor  # [B, W, P]
    present: Tensor  # [B, W, P]
    legal: Tensor  # [B, A]


class PairNetwork(nn.Module):
    """Q over (job, pool) pairs and waiting, with weights that all pairs share (1 × 1 convolutions over the planes)."""

    def __init__(
        self,
        channels: int = 64,
        layers: int = 2,
        trust: float = 1.0,
        dueling: bool = True,
        stops: bool = False,
        boldness: float = 0.0,
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.stops = stops
        more = 1 if stops else 0
        self.row = nn.Linear(len(ROW_PLANES) + more * len(ROW_STOP_PLANES), channels)
        self.pool = nn.Linear(len(POOL_PLANES), channels, bias=False)
        self.pair = nn.Linear(len(PAIR_PLANES) + more * len(PAIR_STOP_PLANES), channels, bias=False)
        self.whole = nn.Linear(len(WHOLE_PLANES) + more * len(WHOLE_STOP_PLANES), channels, bias=False)
        self.own = nn.ModuleList(nn.Linear(channels, channels) for _ in range(layers))
        self.along = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(layers))
        self.across = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(layers))
        self.common = nn.ModuleList(nn.Linear(2 * channels, channels, bias=False) for _ in range(layers))
        self.advantage = nn.Linear(channels, 1, bias=False)
        self.hidden = nn.Linear(2 * channels, channels)
        self.waiting = nn.Linear(channels, 1)
        self.value = nn.Linear(channels, 1)
        self.trust: Tensor
        self.register_buffer("trust", torch.tensor([trust]))
        with torch.no_grad():
            self.pair.weight[:, LIKENESS] = 0.0  # stays 0 unless the plane is shown
        lasts = [self.advantage, self.waiting, self.value]
        if stops:
            self.claim = nn.Linear(channels, 1, bias=False)
            self.boldness: Tensor
            self.register_buffer("boldness", torch.tensor([boldness]))
            lasts.append(self.claim)
        for last in lasts:  # the network starts equal to the prior
            nn.init.zeros_(last.weight)
            if last.bias is not None:
                nn.init.zeros_(last.bias)

    def forward(self, seen: tuple[Tensor, ...]) -> Tensor:
        """Q of every action; MASKED_Q for illegal actions."""
        sight = Sight(*seen)
        present = sight.present.unsqueeze(-1).to(sight.pairs.dtype)  # [B, W, P, 1]
        # A move may be made, but is not present: the other pairs do not hear of it.
        is_pair = torch.maximum(present, self.legal_pairs(sight).to(present.dtype)) if self.stops else present
        x = self.row(sight.rows).unsqueeze(2) + self.pool(sight.pools).unsqueeze(1) + self.pair(sight.pairs)
        x = torch.relu(x + self.whole(sight.whole)[:, None, None]) * is_pair
        in_row = present.sum(2).clamp(min=1.0)
        in_column = present.sum(1).clamp(min=1.0)
        for own, along, across, common in zip(self.own, self.along, self.across, self.common, strict=True):
            told = x * present if self.stops else x
            heard = own(x) + along(told.sum(2) / in_row).unsqueeze(2) + across(told.sum(1) / in_column).unsqueeze(1)
            x = (x + torch.relu(heard + common(self.of_all(told, present))[:, None, None])) * is_pair
        hidden = torch.relu(self.hidden(self.of_all(x * present if self.stops else x, present)))
        pairs = self.advantage(x).squeeze(-1) + self.trust * sight.prior
        waiting = self.waiting(hidden) + self.trust * IDLE
        if self.stops:
            judged = waiting.unsqueeze(1) + self.boldness * (sight.prior - IDLE)
            pairs = torch.where(sight.pairs[..., CLAIM] > 0, self.claim(x).squeeze(-1) + judged, pairs)
        q = torch.cat([pairs.flatten(1), waiting], 1).float()
        legal = sight.legal.bool()
        if self.dueling:
            count = legal.sum(1, keepdim=True).clamp(min=1)
            q = q - q.masked_fill(~legal, 0.0).sum(1, keepdim=True) / count + self.value(hidden).float()
        return q.masked_fill(~legal, MASKED_Q)

    @staticmethod
    def legal_pairs(sight: Sight) -> Tensor:
        """Which pairs are legal, in the form of the planes."""
        return sight.legal[:, :-1].reshape(sight.prior.shape).unsqueeze(-1)

    @staticmethod
    def of_all(x: Tensor, present: Tensor) -> Tensor:
        """Mean and maximum over all present pairs."""
        count = present.sum((1, 2)).clamp(min=1.0)
        return torch.cat([x.sum((1, 2)) / count, x.amax((1, 2))], -1)


def prior_of(seen: tuple[Tensor, ...]) -> Tensor:
    """The rule's prior of every action; waiting is last."""
    prior = Sight(*seen).prior.flatten(1).float()
    return torch.nn.functional.pad(prior, (0, 1), value=IDLE)


def weights_of(network: PairNetwork) -> Weights:
    """The weights in the form that compiled code needs."""

    def of(layer: nn.Module) -> Singles:
        return np.ascontiguousarray(single(layer.weight).T)

    def vector(*tensors: Any) -> Singles:
        return np.concatenate([single(tensor).ravel() for tensor in tensors])

    def stacked(layers: nn.ModuleList, inputs: int) -> Singles:
        return np.stack([of(layer) for layer in layers]) if len(layers) else np.zeros((0, inputs, channels), np.float32)

    channels = network.row.out_features
    biases = [vector(layer.bias) for layer in network.own]
    return Weights(
        row=of(network.row),
        pool=of(network.pool),
        pair=of(network.pair),
        whole=of(network.whole),
        first=vector(network.row.bias),
        own=stacked(network.own, channels),
        along=stacked(network.along, channels),
        across=stacked(network.across, channels),
        common=stacked(network.common, 2 * channels),
        bias=np.stack(biases) if biases else np.zeros((0, channels), np.float32),
        advantage=vector(network.advantage.weight),
        hidden=of(network.hidden),
        hidden_bias=vector(network.hidden.bias),
        waiting=vector(network.waiting.weight, network.waiting.bias),
        value=vector(network.value.weight, network.value.bias),
        trust=vector(network.trust),
        claim=vector(network.claim.weight, network.boldness) if network.stops else np.zeros(0, np.float32),
    )


def single(tensor: Any) -> Singles:
    """A tensor as an array in single precision."""
    return cast(Singles, tensor.detach().float().cpu().numpy())


def network_of(weights: Weights, dueling: bool = True) -> PairNetwork:
    """The network with these weights."""
    channels, stops = len(weights.first), len(weights.claim) > 0
    network = PairNetwork(channels, len(weights.bias), dueling=dueling, stops=stops)
    values: dict[str, Any] = {
        "row.weight": weights.row.T,
        "row.bias": weights.first,
        "pool.weight": weights.pool.T,
        "pair.weight": weights.pair.T,
        "whole.weight": weights.whole.T,
        "advantage.weight": weights.advantage[None],
        "hidden.weight": weights.hidden.T,
        "hidden.bias": weights.hidden_bias,
        "waiting.weight": weights.waiting[None, :channels],
        "waiting.bias": weights.waiting[channels:],
        "value.weight": weights.value[None, :channels],
        "value.bias": weights.value[channels:],
        "trust": weights.trust,
    }
    if stops:
        values |= {"claim.weight": weights.claim[None, :channels], "boldness": weights.claim[channels:]}
    for n in range(len(weights.bias)):
        values[f"own.{n}.bias"] = weights.bias[n]
        for name in ("own", "along", "across", "common"):
            values[f"{name}.{n}.weight"] = getattr(weights, name)[n].T
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in values.items()})
    return network
