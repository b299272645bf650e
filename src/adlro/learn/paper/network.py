"""The paper's Q-network in PyTorch: a CNN over the utilisation of the GPUs, then two fully connected layers."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlro.decide.network.paper_q import NO_GPU, REACH, PaperWeights, gpus_of
from adlro.decide.network.paper_state import CHANNELS_IN, SIZES, TYPES

PAPER_MASKED_Q = -1e9

Grid = npt.NDArray[np.float32]


class PaperNetwork(nn.Module):
    """Q of assigning each waiting job to each of the n GPUs.

    The convolutions run over the grid of GPUs: one row with all of them, in which the GPUs of a node are adjacent, or
    a row for each node. Their output, what waits, and the priority, type and size of a job go through two fully
    connected layers, which all jobs share.
    """

    cells: Tensor  # the GPU of each cell
    empty: Tensor  # which cells have none
    nobody: Tensor  # what such a cell shows

    def __init__(
        self, grid: Grid, channels: int = 16, hidden: int = 256, sizes: bool = True, keeps: bool = True
    ) -> None:
        super().__init__()
        self.grid, self.keeps = grid, keeps
        gpus = int((grid != NO_GPU).sum())
        reach = (1 if len(grid) == 1 else REACH), REACH
        margin = reach[0] // 2, reach[1] // 2
        self.register_buffer("cells", torch.tensor(np.maximum(grid, 0.0)).long().flatten(), persistent=False)
        self.register_buffer("empty", torch.tensor(grid == NO_GPU).flatten(), persistent=False)
        self.register_buffer("nobody", torch.tensor([[1.0], [0.0]]), persistent=False)
        self.near = nn.Conv2d(CHANNELS_IN, channels, reach, padding=margin)
        self.far = nn.Conv2d(channels, channels, reach, padding=margin)
        self.full = nn.Linear(channels * grid.size + 2 * (1 + TYPES + (SIZES if sizes else 0)), hidden)
        self.action = nn.Linear(hidden, gpus)

    def forward(self, sight: tuple[Tensor, ...]) -> Tensor:
        """Q of every action from the observations (in the order of PaperSeen); PAPER_MASKED_Q for illegal actions."""
        use, queue, jobs, legal = sight
        laid = use.to(self.near.weight.dtype)[:, self.cells].transpose(1, 2)  # [B, CHANNELS_IN, cells]
        laid = torch.where(self.empty, self.nobody, laid).reshape(-1, CHANNELS_IN, *self.grid.shape)
        x = torch.relu(self.far(torch.relu(self.near(laid))))
        x = torch.cat([x.flatten(1), queue.to(x.dtype)], 1)
        of_cluster, of_job = self.full.weight[:, : x.shape[1]], self.full.weight[:, x.shape[1] :]
        shared = nn.functional.linear(x, of_cluster, self.full.bias)
        hidden = torch.relu(shared.unsqueeze(1) + nn.functional.linear(jobs.to(x.dtype), of_job))
        q = self.action(hidden).flatten(1)
        return q.masked_fill(legal == 0, PAPER_MASKED_Q)


def line_grid(gpus: int) -> Grid:
    """All GPUs in one row."""
    return np.arange(gpus, dtype=np.float32)[None]


def node_grid(counts: list[int]) -> Grid:
    """A row for each node, from the number of GPUs of each."""
    grid = np.full((len(counts), max(counts)), NO_GPU, np.float32)
    first = 0
    for row, count in zip(grid, counts, strict=True):
        row[:count] = np.arange(first, first + count)
        first += count
    return grid


def paper_weights_of(network: PaperNetwork) -> PaperWeights:
    """The weights in the form that the compiled policy needs."""

    def numbers(tensor: Tensor, *axes: int) -> np.ndarray:
        array = tensor.detach().float().cpu().numpy()
        return np.ascontiguousarray(array.transpose(axes) if axes else array)

    near, far, full, action = network.near, network.far, network.full, network.action
    assert near.bias is not None
    assert far.bias is not None
    return PaperWeights(
        grid=network.grid,
        keeps=np.array([network.keeps], np.float32),
        near=numbers(near.weight, 2, 3, 1, 0),
        near_bias=numbers(near.bias),
        far=numbers(far.weight, 2, 3, 1, 0),
        far_bias=numbers(far.bias),
        full=numbers(full.weight, 1, 0),
        full_bias=numbers(full.bias),
        action=numbers(action.weight, 1, 0),
        action_bias=numbers(action.bias),
    )


def paper_network_of(weights: PaperWeights) -> PaperNetwork:
    """The network with these weights: the inverse of `paper_weights_of`."""
    channels = len(weights.near_bias)
    sizes = len(weights.full) == channels * weights.grid.size + 2 * (1 + TYPES + SIZES)
    network = PaperNetwork(weights.grid, channels, len(weights.full_bias), sizes, bool(weights.keeps[0]))
    assert gpus_of(weights) == network.action.out_features
    values = {
        "near.weight": weights.near.transpose(3, 2, 0, 1),
        "near.bias": weights.near_bias,
        "far.weight": weights.far.transpose(3, 2, 0, 1),
        "far.bias": weights.far_bias,
        "full.weight": weights.full.T,
        "full.bias": weights.full_bias,
        "action.weight": weights.action.T,
        "action.bias": weights.action_bias,
    }
    network.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in values.items()})
    return network
