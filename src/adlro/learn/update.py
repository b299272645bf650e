"""One update of the network from samples of what it did: deep Q-learning, each of its parts switched by the config."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from adlro.core.errors import AdlroError
from adlro.learn.config import Config
from adlro.learn.replay import Samples, Sights


class DivergedError(AdlroError):
    """A training whose numbers went out of hand; the text says which, and what to do."""


@dataclass(slots=True)
class Learner:
    """The network that is trained, its slow copies and its optimiser. State that changes, owned by the training."""

    network: nn.Module
    target: nn.Module  # values what comes after a sample
    average: nn.Module  # is evaluated and kept
    optimiser: torch.optim.Optimizer
    judge: Callable[[nn.Module, Sights], Tensor]
    updates: int = 0


def make_learner(network: nn.Module, config: Config, device: torch.device) -> Learner:
    """A learner at its beginning."""
    network = network.to(device)
    cuda = device.type == "cuda"
    optimiser = torch.optim.Adam(network.parameters(), lr=config.rate, eps=1e-5, fused=cuda)
    return Learner(network, frozen_copy(network), frozen_copy(network), optimiser, judging(cuda, config.compile))


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy that is not trained itself."""
    return copy.deepcopy(network).requires_grad_(False)


def judging(mixed: bool, compiled: bool) -> Callable[[nn.Module, Sights], Tensor]:
    """How Q is computed: in mixed precision on a GPU (CUDA or ROCm, which answers to the same name)."""

    def call(network: nn.Module, sights: Sights) -> Tensor:
        return network(sights)

    run: Any = torch.compile(call, dynamic=False) if compiled else call

    def judge(network: nn.Module, sights: Sights) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed):
            return run(network, sights)

    return judge


def update(learner: Learner, samples: Samples, config: Config, rate: float) -> tuple[Tensor, Tensor]:
    """Take one step down the gradient and move the slow copies; the loss, and how wrong each sample was.

    Both are returned without waiting for them.
    """
    judge, network = learner.judge, learner.network
    with torch.no_grad():
        after = judge(learner.target, samples.after)
        if config.double:
            best = judge(network, samples.after).argmax(1, keepdim=True)
            value = after.gather(1, best).squeeze(1)
        else:
            value = after.amax(1)
        goal = samples.gain + samples.discount * value
    q = judge(network, samples.before).gather(1, samples.action[:, None]).squeeze(1)
    loss = (samples.weight * F.smooth_l1_loss(q, goal, reduction="none")).mean()
    for group in learner.optimiser.param_groups:
        group["lr"] = rate
    learner.optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if config.clip > 0:
        nn.utils.clip_grad_norm_(network.parameters(), config.clip)
    learner.optimiser.step()
    learner.updates += 1
    if learner.updates % config.target_every == 0:
        approach(learner.target, network, config.target_share)
    approach(learner.average, network, config.average)
    return loss.detach(), (q.detach() - goal).abs()


def approach(slow: nn.Module, network: nn.Module, share: float) -> None:
    """Move the slow copy by a share of the way to the network."""
    with torch.no_grad():
        torch._foreach_lerp_(list(slow.parameters()), list(network.parameters()), share)


def rate_at(config: Config, updates: int, done: float) -> float:
    """The learning rate after so many updates, when this part of the training is done."""
    rise = min(1.0, (updates + 1) / (config.rate_warm_up + 1))
    fall = 0.5 + 0.5 * math.cos(math.pi * done)
    return config.rate * rise * (config.rate_end + (1.0 - config.rate_end) * fall)


def check_weights(network: nn.Module, when: str) -> None:
    """Stop a training whose weights are no numbers."""
    for name, tensor in network.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise DivergedError(
                f"training diverged {when}: the weights '{name}' are not finite. The checkpoints before it are kept; "
                "try a smaller rate."
            )
