"""The replay memory, on the device: a ring of rounds. A round is one step of all environments.

Environments come in groups that take turns, so while one group is written the others may be a round behind.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlro.learn.worlds.envs import Came

LEAST_SURPRISE: Final = 0.05
"""Lowest priority, so that every transition can still be drawn."""

Sights = tuple[Tensor, ...]
"""Observations as tensors, in the order of the batch's `seen`; the last one says which actions are legal."""


class Samples(NamedTuple):
    """Transitions over several steps. N samples."""

    before: Sights
    action: Tensor  # [N]
    gain: Tensor  # [N] discounted sum of rewards until `after`
    discount: Tensor  # [N] weight of the value of `after`; 0 if the episode ended before
    after: Sights
    place: Tensor  # [N] index of each in the ring
    weight: Tensor  # [N] importance weight: lower if it is drawn more often than others


class Ring:
    """The latest rounds of all environments. Mutable; owned by the training loop."""

    def __init__(self, length: int, seen: Sequence[Any], groups: int, device: torch.device, real: torch.dtype) -> None:
        self.length, self.groups, self.device = length, groups, device
        self.size = len(seen[0])  # environments of one group
        self.round = [0] * groups  # current round of each group
        shape = length, groups * self.size
        self.sights: Sights = tuple(
            torch.zeros((*shape, *each.shape[1:]), dtype=kind_of(each.dtype.kind, real), device=device) for each in seen
        )
        self.action = torch.zeros(shape, dtype=torch.int64, device=device)
        self.reward = torch.zeros(shape, device=device)
        self.done = torch.zeros(shape, device=device)
        self.span = torch.ones(shape, device=device)
        self.surprise = torch.ones(shape, device=device)  # latest error of the network on each transition

    def place(self, group: int) -> tuple[int, slice]:
        """The index of a group's current round."""
        return self.round[group] % self.length, slice(group * self.size, (group + 1) * self.size)

    def see(self, group: int, seen: Sequence[Any]) -> Sights:
        """Store a group's current observations, and return them on the device."""
        place = self.place(group)
        for kept, new in zip(self.sights, seen, strict=True):
            # Copy first, then convert to half precision: a copy that does both would convert on the CPU.
            kept[place].copy_(torch.from_numpy(new).to(self.device, non_blocking=True))
        return tuple(each[place] for each in self.sights)

    def did(self, group: int, action: Tensor, came: Came, limit: float) -> None:
        """Store a group's actions and their results; its round is complete."""
        place = self.place(group)
        self.action[place] = action
        self.reward[place] = torch.from_numpy(came.reward).to(self.device, non_blocking=True).clamp(-limit, limit)
        self.done[place] = torch.from_numpy(came.done).to(self.device, non_blocking=True).float()
        self.span[place] = torch.from_numpy(came.span).to(self.device, non_blocking=True)
        self.surprise[place] = self.surprise.amax()  # not sampled yet
        self.round[group] += 1

    def rounds(self, horizon: int) -> range:
        """The rounds in which a sample may begin: all groups have its last step, and nothing is overwritten."""
        return range(max(0, max(self.round) - self.length + 1), min(self.round) - horizon)

    def sample(
        self, count: int, horizon: int, gamma: float, generator: torch.Generator, priority: float = 0.0
    ) -> Samples:
        """Draw `count` transitions over `horizon` steps: uniformly, or in proportion to error ** priority.

        Transitions that are drawn more often get a lower weight, so that the mean is unbiased (importance sampling).
        """
        within, width = self.rounds(horizon), self.action.shape[1]
        options: Any = {"generator": generator, "device": self.device}
        if priority > 0.0:
            rounds = torch.arange(within.start, within.stop, device=self.device)
            likely = self.surprise[rounds % self.length].flatten() ** priority
            drawn = torch.multinomial(likely, count, replacement=True, generator=generator)
            time, where = rounds[drawn // width], drawn % width
            weight = likely[drawn].reciprocal()
            weight /= weight.amax()
        else:
            time = torch.randint(within.start, within.stop, (count,), **options)
            where = torch.randint(0, width, (count,), **options)
            weight = torch.ones(count, device=self.device)
        steps = (time[:, None] + torch.arange(horizon, device=self.device)) % self.length  # [N, horizon]
        reward = self.reward[steps, where[:, None]]
        going_on = (gamma ** self.span[steps, where[:, None]] * (1.0 - self.done[steps, where[:, None]])).cumprod(1)
        counts = torch.cat([torch.ones_like(going_on[:, :1]), going_on[:, :-1]], 1)
        first = time % self.length * width + where
        last = (time + horizon) % self.length * width + where
        flat = [each.flatten(0, 1) for each in self.sights]
        return Samples(
            tuple(each[first] for each in flat),
            self.action.flatten()[first],
            (counts * reward).sum(1),
            going_on[:, -1],
            tuple(each[last] for each in flat),
            first,
            weight,
        )

    def was_wrong_by(self, samples: Samples, error: Tensor) -> None:
        """Remember the network's errors on these samples."""
        self.surprise.view(-1)[samples.place] = error + LEAST_SURPRISE

    def numbers(self) -> dict[str, Tensor]:
        """Everything except the observations."""
        return {
            "action": self.action,
            "reward": self.reward,
            "done": self.done,
            "span": self.span,
            "surprise": self.surprise,
        }

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything, for a file."""
        kept = {f"sight{n}": each for n, each in enumerate(self.sights)}
        kept |= self.numbers()
        found = {name: tensor_bytes(each) for name, each in kept.items()}
        return found | {"round": np.array(self.round)}

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Restore everything from arrays."""
        kept = {f"sight{n}": each for n, each in enumerate(self.sights)}
        for name, each in (kept | self.numbers()).items():
            each.copy_(torch.from_numpy(arrays[name]).view(each.dtype).view(each.shape))
        self.round = arrays["round"].tolist()


def tensor_bytes(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The bytes of a tensor: NumPy has no bfloat16."""
    return tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()


def kind_of(kind: str, real: torch.dtype) -> torch.dtype:
    """The type in which an array is stored on the device."""
    return real if kind == "f" else torch.uint8
