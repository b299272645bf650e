"""The paper's network (its section 4) without PyTorch, and its policy. `paper_state.py` has its state and actions.

The network judges every waiting job in the same way, one after the other, and the best pair of a job and a GPU is
chosen. It has one output for each GPU, so it only works on clusters with as many GPUs as in its training.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.errors import CheckpointError, PolicyError
from adlro.core.policy import Choose, Policy
from adlro.core.remembering import Remembered
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Ints, View
from adlro.decide.checkpoint import read_arrays
from adlro.decide.network.paper_state import (
    CHANNELS_IN,
    MOST_JUDGED,
    SIZES,
    TYPES,
    WINDOW,
    assignment,
    mark,
    observe,
    start_due,
)
from adlro.decide.outlook import start_without_gpu

_Singles = npt.NDArray[np.float32]
_Bytes = npt.NDArray[np.uint8]

REACH: Final = 3
"""Width of the convolutions: GPUs that they see at once, along each axis of the grid that has more than one cell."""

NO_GPU: Final = -1.0
"""In PaperWeights.grid: a cell without a GPU. It looks like a GPU that is taken and does not work."""


class PaperWeights(NamedTuple):
    """The weights of a network for n GPUs on a grid of R × S cells, with C channels and H hidden units."""

    grid: _Singles  # [R, S] the GPU of each cell: one row with all GPUs, or a row for each node; NO_GPU: none
    keeps: _Singles  # [1] 1 if it may keep GPUs for a gang
    near: _Singles  # [REACH or 1, REACH, CHANNELS_IN, C] first convolution
    near_bias: _Singles  # [C]
    far: _Singles  # [REACH or 1, REACH, C, C] second convolution: from, to
    far_bias: _Singles  # [C]
    full: _Singles  # [C * R * S + 2 * (1 + TYPES (+ SIZES)), H] of the GPUs, of the queue, of the job
    full_bias: _Singles  # [H]
    action: _Singles  # [H, n]
    action_bias: _Singles  # [n]


class PaperMind(NamedTuple):
    """The arrays for decisions, kept between decisions."""

    weights: PaperWeights
    rows: Ints  # [W]
    kept: Ints  # [sites] the job that each site is kept for, or NOBODY; length 0 if the network never keeps GPUs
    use: _Singles  # [n, CHANNELS_IN]
    queue: _Singles  # [1 + TYPES (+ SIZES)]
    jobs: _Singles  # [W, 1 + TYPES (+ SIZES)]
    legal: _Bytes  # [W * n]
    cells: _Singles  # [R, S, CHANNELS_IN]
    first: _Singles  # [R, S, C]
    second: _Singles  # [R, S, C]
    shared: _Singles  # [H] the part of the hidden layer that all jobs share
    hidden: _Singles  # [H]
    q: _Singles  # [W * n]


# ---- the network -------------------------------------------------------------------------------------------------


@compiled
def forward(mind: PaperMind) -> None:
    """Compute Q of every waiting job on every GPU, legal or not: two convolutions over the GPUs, two dense layers."""
    weights = mind.weights
    _lay_out(mind.use, weights.grid, mind.cells)
    _convolve(mind.cells, weights.near, weights.near_bias, mind.first)
    _convolve(mind.first, weights.far, weights.far_bias, mind.second)
    shared, hidden = mind.shared, mind.hidden
    for o in range(len(shared)):
        shared[o] = weights.full_bias[o]
    rows, columns, channels = mind.second.shape
    at = 0
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                add_scaled(mind.second[y, x, c], weights.full[at], shared)
                at += 1
    for i in range(len(mind.queue)):
        add_scaled(mind.queue[i], weights.full[at], shared)
        at += 1
    gpus = len(weights.action_bias)
    for w in range(len(mind.rows)):
        if mind.rows[w] == NOBODY:
            break
        for o in range(len(hidden)):
            hidden[o] = shared[o]
        for i in range(mind.jobs.shape[1]):
            add_scaled(mind.jobs[w, i], weights.full[at + i], hidden)
        q = mind.q[w * gpus : (w + 1) * gpus]
        for g in range(gpus):
            q[g] = weights.action_bias[g]
        for o in range(len(hidden)):
            add_scaled(max(hidden[o], np.float32(0.0)), weights.action[o], q)


@compiled
def _lay_out(use: _Singles, grid: _Singles, cells: _Singles) -> None:
    """Put what is known about each GPU into its cell."""
    for y in range(grid.shape[0]):
        for x in range(grid.shape[1]):
            g = int(grid[y, x])
            cells[y, x, 0] = use[g, 0] if g >= 0 else 1.0
            cells[y, x, 1] = use[g, 1] if g >= 0 else 0.0


@compiled
def _convolve(cells: _Singles, kernel: _Singles, bias: _Singles, result: _Singles) -> None:
    """A convolution over the grid, zero outside it, and the positive part of the result."""
    rows, columns, channels = result.shape
    height, width = kernel.shape[0], kernel.shape[1]
    for y in range(rows):
        for x in range(columns):
            here = result[y, x]
            for c in range(channels):
                here[c] = bias[c]
            for ky in range(height):
                for kx in range(width):
                    at_y, at_x = y + ky - height // 2, x + kx - width // 2
                    if 0 <= at_y < rows and 0 <= at_x < columns:
                        for i in range(cells.shape[2]):
                            add_scaled(cells[at_y, at_x, i], kernel[ky, kx, i], here)
            for c in range(channels):
                here[c] = max(here[c], np.float32(0.0))


@compiled
def add_scaled(x: float, row: _Singles, result: _Singles) -> None:
    """Add x times the row to the result."""
    if x != 0.0:
        for o in range(len(result)):
            result[o] += x * row[o]


# ---- the policy --------------------------------------------------------------------------------------------------


@compiled_alone
def best_assignment(view: View, mind: PaperMind) -> Choice:
    """The legal assignment with the highest Q, or wait if none is legal. A job without GPUs starts at once."""
    free = start_without_gpu(view)
    if free.verb == START:
        return free
    due = start_due(view, mind.kept)
    if due.verb == START:
        return due
    while mark(view, mind.rows, mind.kept, mind.legal) > 0:
        observe(view, mind.rows, mind.kept, mind.use, mind.queue, mind.jobs)
        forward(mind)
        chosen = NOBODY
        best = np.float32(-np.inf)
        for a in range(len(mind.q)):
            if mind.legal[a] != 0 and (chosen == NOBODY or mind.q[a] > best):
                best = mind.q[a]
                chosen = a
        choice = assignment(view, mind.rows, mind.kept, chosen)
        if choice.verb == START:
            return choice
    return Choice(WAIT, NOBODY, NOBODY, FOREVER)


def make_mind(weights: PaperWeights, sites: int, window: int = WINDOW) -> PaperMind:
    """Arrays for decisions with these weights on a cluster with so many sites."""
    channels, gpus, hidden = len(weights.near_bias), gpus_of(weights), len(weights.full_bias)
    single = np.float32
    cells = weights.grid.shape
    features = (len(weights.full) - channels * weights.grid.size) // 2
    return PaperMind(
        PaperWeights(*(np.ascontiguousarray(each, single) for each in weights)),
        np.full(window, NOBODY, np.int32),
        np.full(sites if weights.keeps[0] else 0, NOBODY, np.int32),
        np.zeros((gpus, CHANNELS_IN), single),
        np.zeros(features, single),
        np.zeros((window, features), single),
        np.zeros(window * gpus, np.uint8),
        np.zeros((*cells, CHANNELS_IN), single),
        np.zeros((*cells, channels), single),
        np.zeros((*cells, channels), single),
        np.zeros(hidden, single),
        np.zeros(hidden, single),
        np.zeros(window * gpus, single),
    )


def gpus_of(weights: PaperWeights) -> int:
    """The number of GPUs that the network was made for."""
    return len(weights.action_bias)


def paper_weights(arrays: Mapping[str, npt.NDArray[Any]], where: str) -> PaperWeights:
    """The weights of a checkpoint of preset paper."""
    for name in PaperWeights._fields:
        if name not in arrays:
            raise CheckpointError(
                f"{where}: '{name}' is missing; expected a checkpoint of the preset 'paper' of this version. "
                "Train it again."
            )
    return PaperWeights(*(np.ascontiguousarray(arrays[name], np.float32) for name in PaperWeights._fields))


def check_weights(weights: PaperWeights, name: str) -> None:
    """Raise an error if the shapes do not fit together, or if a weight is NaN or infinite."""
    channels, hidden, gpus = len(weights.near_bias), len(weights.full_bias), gpus_of(weights)
    high = 1 if len(weights.grid) == 1 else REACH
    features = channels * weights.grid.size + 2 * (1 + TYPES)
    features += 2 * SIZES if len(weights.full) == features + 2 * SIZES else 0
    expected = (
        weights.grid.shape,
        (1,),
        (high, REACH, CHANNELS_IN, channels),
        (channels,),
        (high, REACH, channels, channels),
        (channels,),
        (features, hidden),
        (hidden,),
        (hidden, gpus),
        (gpus,),
    )
    for part, array, shape in zip(PaperWeights._fields, weights, expected, strict=True):
        if array.shape != shape:
            raise PolicyError(
                f"policy {name!r}: {part!r} has the shape {array.shape}; expected {shape}. "
                f"The checkpoint is not one of preset paper, or of another version: train it again."
            )
        if not np.isfinite(array).all():
            raise PolicyError(f"policy {name!r}: {part!r} holds what is no number. Take an earlier checkpoint.")
    if sorted(cell for cell in weights.grid.flatten().tolist() if cell != NO_GPU) != list(range(gpus)):
        raise PolicyError(f"policy {name!r}: its grid does not hold each of {gpus} GPUs once: train it again.")


@final
class PaperChooser:
    """The decisions of a network in one run, with the GPUs that it keeps for gangs (core.remembering.Remembers)."""

    def __init__(self, view: View, mind: PaperMind) -> None:
        self._view, self._mind = view, mind

    def __call__(self, view: View) -> Choice:
        """The choice now. In a copy of the view nothing is kept for later."""
        if view is self._view:
            return best_assignment(view, self._mind)
        kept = self._mind.kept.copy()
        choice = best_assignment(view, self._mind)
        self._mind.kept[:] = kept
        return choice

    def remembered(self) -> Remembered:
        """For which jobs which sites are kept."""
        kept = self._mind.kept
        jobs = tuple(sorted({int(j) for j in kept if j != NOBODY}))
        sites = [np.flatnonzero(kept == j).tolist() for j in jobs]
        return Remembered(jobs, {"sites": sites}, rest={"sites": len(kept)})

    def recall(self, view: View, kept: Remembered) -> bool:
        """Go on keeping the same sites, for the jobs that still exist."""
        if kept.rest.get("sites") != len(self._mind.kept):
            return False
        self._mind.kept[:] = NOBODY
        for job, sites in zip(kept.jobs, kept.by_job.get("sites", []), strict=True):
            if job > NOBODY:
                self._mind.kept[sites] = job
        return True


def paper_policy(weights: PaperWeights, name: str) -> Policy:
    """The policy of a trained network of preset paper: the legal assignment with the highest Q."""
    check_weights(weights, name)
    return _policy_by(lambda: weights, name, f"the paper's DQN, trained for {gpus_of(weights)} GPUs")


def _policy_by(weights: Callable[[], PaperWeights], name: str, summary: str) -> Policy:
    """A policy whose weights are loaded when a run begins."""

    def make(view: View, seed: int) -> Choose:
        found = weights()
        expected, gpus = gpus_of(found), sum(int(site.gpus) for site in view.sites)
        if gpus != expected:
            raise PolicyError(
                f"policy {name!r} was trained for a cluster of {expected} GPUs and this one has {gpus}; expected as "
                f"many. Train it for this cluster, or take preset adlro, which works on any."
            )
        return PaperChooser(view, make_mind(found, len(view.sites), MOST_JUDGED))

    return Policy(name, summary, make=make)


# ---- the checkpoint that ships -----------------------------------------------------------------------------------


@cache
def paper_shipped() -> PaperWeights:
    """The weights of the paper's agent that ship with the package."""
    path = paper_shipped_path()
    weights = paper_weights(read_arrays(path)[0], str(path))
    check_weights(weights, PAPER_DQN.name)
    return weights


def paper_shipped_path() -> Path:
    """The path of its checkpoint."""
    return Path(str(resources.files("adlro.decide").joinpath("checkpoints", "paper-dqn.safetensors")))


PAPER_DQN: Final = _policy_by(
    paper_shipped, "paper-dqn", "the paper's own agent, trained for the cluster paper16: only there does it make sense"
)
