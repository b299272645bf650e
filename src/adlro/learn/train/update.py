"""One update of the network from samples: deep Q-learning, with each extension switched on or off by the config."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from adlro.core.errors import AdlroError
from adlro.learn.train.config import TrainConfig
from adlro.learn.train.replay import Samples, Sights


class DivergedError(AdlroError):
    """The numbers of a training diverged; the message says which, and what to do."""


@dataclass(slots=True)
class Learner:
    """The network, its slow copies and its optimiser. Mutable; owned by the training."""

    network: nn.Module
    target: nn.Module  # gives the value of the state after a sample
    average: nn.Module  # evaluated and saved
    optimiser: torch.optim.Optimizer
    judge: Callable[[nn.Module, Sights], Tensor]
    updates: int = 0
    descend: "Callable[[Samples], tuple[Tensor, Tensor]] | None" = None  # on a GPU, once it is recorded as a CUDA graph
    act: Callable[[Sights], Tensor] | None = None  # the same for Q of the current observations


def make_learner(network: nn.Module, config: TrainConfig, device: torch.device) -> Learner:
    """A new learner."""
    network = network.to(device)
    cuda = device.type == "cuda"
    if cuda and config.graphs:  # a recorded step reads its learning rate from the device
        rate = torch.tensor(config.rate, device=device)
        optimiser = torch.optim.Adam(network.parameters(), lr=rate, eps=1e-5, fused=True, capturable=True)
    else:
        optimiser = torch.optim.Adam(network.parameters(), lr=config.rate, eps=1e-5, fused=cuda)
    judge = judging(cuda and config.mixed, cuda and config.compile)
    return Learner(network, frozen_copy(network), frozen_copy(network), optimiser, judge)


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy that is not trained itself."""
    return copy.deepcopy(network).requires_grad_(False)


def judging(mixed: bool, compiled: bool) -> Callable[[nn.Module, Sights], Tensor]:
    """How Q is computed: in mixed precision on a GPU (CUDA, or ROCm, which uses the same name).

    Compiling fuses many small kernels into a few. They must round like the others: otherwise the maximum of a layer,
    computed again in the backward pass, is not found among its values, and the loss becomes NaN.
    """
    if compiled:
        import torch._inductor.config as inductor

        inductor.emulate_precision_casts = True

    def call(network: nn.Module, sights: Sights) -> Tensor:
        return network(sights)

    run: Any = torch.compile(call, dynamic=False) if compiled else call

    def judge(network: nn.Module, sights: Sights) -> Tensor:
        # No cache: casts of weights must be part of a recorded step.
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed, cache_enabled=False):
            return run(network, sights)

    return judge


def update(learner: Learner, samples: Samples, config: TrainConfig, rate: float) -> tuple[Tensor, Tensor]:
    """Take one gradient step and move the slow copies; returns the loss and the error of each sample.

    Both are returned without waiting for the device.
    """
    set_rate(learner.optimiser, rate)
    if config.graphs and samples.gain.is_cuda:
        if learner.descend is None:
            learner.descend = recorded(lambda kept: descend(learner, kept, config), samples)
        loss, error = learner.descend(samples)
    else:
        loss, error = descend(learner, samples, config)
    learner.updates += 1
    if learner.updates % config.target_every == 0:
        approach(learner.target, learner.network, config.target_share)
    approach(learner.average, learner.network, config.average)
    return loss, error


def descend(learner: Learner, samples: Samples, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Take one gradient step; returns the loss and the error of each sample."""
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
    loss = (samples.weight * F.smooth_l1_loss(q, goal, reduction="none", beta=config.bend)).mean()
    learner.optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if config.clip > 0:
        nn.utils.clip_grad_norm_(network.parameters(), config.clip)
    learner.optimiser.step()
    return loss.detach(), (q.detach() - goal).abs()


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place if a recorded step reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def recorded(function: Callable[[Any], Any], given: Any) -> Callable[[Any], Any]:
    """The function as one CUDA graph.

    Starting its hundreds of small kernels from Python takes longer than running them. Later inputs must have the same
    shapes. The function runs three times before it is recorded.
    """
    kept = mapped(given, torch.clone)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            function(kept)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads copy to the GPU meanwhile; only this thread is recorded.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = function(kept)

    def replay(given: Any) -> Any:
        for old, new in zip(leaves(kept), leaves(given), strict=True):
            old.copy_(new)
        graph.replay()
        return mapped(result, torch.clone)

    return replay


def leaves(tensors: Any) -> list[Tensor]:
    """The tensors in nested tuples."""
    return [tensors] if isinstance(tensors, Tensor) else [leaf for each in tensors for leaf in leaves(each)]


def mapped(tensors: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same nested tuples with a function applied to each tensor."""
    if isinstance(tensors, Tensor):
        return function(tensors)
    found = [mapped(each, function) for each in tensors]
    return type(tensors)(*found) if hasattr(tensors, "_fields") else tuple(found)


def approach(slow: nn.Module, network: nn.Module, share: float) -> None:
    """Move the slow copy towards the network by this share of the difference."""
    with torch.no_grad():
        torch._foreach_lerp_(list(slow.parameters()), list(network.parameters()), share)


def rate_at(config: TrainConfig, updates: int, done: float) -> float:
    """The learning rate after this many updates, at this share of the training."""
    rise = min(1.0, (updates + 1) / (config.rate_warm_up + 1))
    fall = 0.5 + 0.5 * math.cos(math.pi * done)
    return config.rate * rise * (config.rate_end + (1.0 - config.rate_end) * fall)


def check_finite(network: nn.Module, when: str) -> None:
    """Stop a training whose weights are NaN or infinite."""
    for name, tensor in network.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise DivergedError(
                f"training diverged {when}: the weights '{name}' are not finite. The checkpoints before it are kept; "
                "try a smaller rate."
            )
