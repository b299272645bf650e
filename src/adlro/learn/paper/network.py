"""The paper's Q-network in PyTorch: a CNN over the utilisation of the GPUs, then two fully connected layers."""

import numpy as np
import torch
from torch import Tensor, nn

from adlro.decide.network.paper_q import REACH, TYPES, PaperWeights, gpus_of

PAPER_MASKED_Q = -1e9


class PaperNetwork(nn.Module):
    """Q of assigning each waiting job to each of the n GPUs.

    The convolutions run along the n × 1 matrix of utilisation, in which the GPUs of a node are adjacent. Their output,
    the queue length, and the priority and type of a job go through two fully connected layers, which all jobs share.
    """

    def __init__(self, gpus: int, channels: int = 16, hidden: int = 256) -> None:
        super().__init__()
        self.gpus = gpus
        self.near = nn.Conv1d(1, channels, REACH, padding=REACH // 2)
        self.far = nn.Conv1d(channels, channels, REACH, padding=REACH // 2)
        self.full = nn.Linear(channels * gpus + 1 + 1 + TYPES, hidden)
        self.action = nn.Linear(hidden, gpus)

    def forward(self, sight: tuple[Tensor, ...]) -> Tensor:
        """Q of every action from the observations (in the order of PaperSeen); PAPER_MASKED_Q for illegal actions."""
        use, queue, jobs, legal = sight
        x = torch.relu(self.far(torch.relu(self.near(use.to(self.near.weight.dtype).unsqueeze(1)))))
        x = torch.cat([x.flatten(1), queue.to(x.dtype)], 1)
        of_cluster, of_job = self.full.weight[:, : x.shape[1]], self.full.weight[:, x.shape[1] :]
        shared = nn.functional.linear(x, of_cluster, self.full.bias)
        hidden = torch.relu(shared.unsqueeze(1) + nn.functional.linear(jobs.to(x.dtype), of_job))
        q = self.action(hidden).float().flatten(1)
        return q.masked_fill(legal == 0, PAPER_MASKED_Q)


def paper_weights_of(network: PaperNetwork) -> PaperWeights:
    """The weights in the form that the compiled policy needs."""

    def numbers(tensor: Tensor, *axes: int) -> np.ndarray:
        array = tensor.detach().float().cpu().numpy()
        return np.ascontiguousarray(array.transpose(axes) if axes else array)

    near, far, full, action = network.near, network.far, network.full, network.action
    assert near.bias is not None
    assert far.bias is not None
    return PaperWeights(
        near=numbers(near.weight.squeeze(1), 1, 0),
        near_bias=numbers(near.bias),
        far=numbers(far.weight, 2, 1, 0),
        far_bias=numbers(far.bias),
        full=numbers(full.weight, 1, 0),
        full_bias=numbers(full.bias),
        action=numbers(action.weight, 1, 0),
        action_bias=numbers(action.bias),
    )


def paper_network_of(weights: PaperWeights) -> PaperNetwork:
    """The network with these weights: the inverse of `paper_weights_of`."""
    network = PaperNetwork(gpus_of(weights), len(weights.near_bias), len(weights.full_bias))
    values = {
        "near.weight": weights.near.T[:, None],
        "near.bias": weights.near_bias,
        "far.weight": weights.far.transpose(2, 1, 0),
        "far.bias": weights.far_bias,
        "full.weight": weights.full.T,
        "full.bias": weights.full_bias,
        "action.weight": weights.action.T,
        "action.bias": weights.action_bias,
    }
    network.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in values.items()})
    return network
