"""Exports the network as an ONNX file, for programs without our code and without PyTorch.

The inputs have the names of the arrays of the batch's `seen`, in single precision (bytes for marks). The output is q,
very negative for illegal actions. The number of states is dynamic, and so are rows and pools if the network allows it.
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from adlro.core.errors import CheckpointError, UsageError
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.network.inference import Weights
from adlro.decide.network.paper_q import gpus_of, paper_weights
from adlro.decide.network.paper_state import CHANNELS_IN, PaperSeen
from adlro.learn.train.network import Sight
from adlro.learn.train.presets import find_preset

_STATES, _ROWS, POOLS = 3, 5, 4
"""Sizes of an example to trace. All differ, so that no axis is mistaken for another."""

OPSET: Final = 18


class ByName(nn.Module):
    """A network that takes its observations as separate inputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *seen: Tensor) -> Tensor:
        """Q of every action."""
        return self.network(seen)


def export_onnx(checkpoint: Path, target: Path, stops: bool = False) -> None:
    """Write the network of a checkpoint as ONNX; with `stops` that of its second set."""
    network, provenance, example, axes = _network_of(checkpoint, stops)
    try:
        import onnx
        import onnxscript  # noqa: F401  (PyTorch needs it)
    except ImportError:
        raise UsageError("ONNX is not installed: pip install 'adlro[learn]'.") from None
    for name in ("onnxscript", "torch.onnx"):  # they log about operators that we do not use
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch and its converter warn about their own code
        program: Any = torch.onnx.export(
            ByName(network).eval(),
            tuple(example),
            input_names=list(example._fields),
            output_names=["q"],
            dynamic_shapes=(tuple(axes),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    model = program.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = "adlro", json.dumps(provenance)
    onnx.checker.check_model(model)
    target.write_bytes(model.SerializeToString())


def _network_of(checkpoint: Path, stops: bool) -> tuple[nn.Module, dict[str, Any], Any, list[dict[int, Any]]]:
    """The network of a checkpoint, its provenance, an example of its inputs, and which of their axes are dynamic."""
    arrays, provenance = read_arrays(checkpoint, stops)
    preset = provenance.get("preset")
    if preset == "adlro":
        weights = read_weights(checkpoint, stops)[0]
        return find_preset(preset).network_of(weights._asdict()), provenance, _example(weights), open_axes()
    if preset != "paper":
        raise CheckpointError(f"{checkpoint}: its preset is {preset!r}; expected adlro or paper.")
    paper = paper_weights(arrays, str(checkpoint))
    network: Any = find_preset(preset).network_of(paper._asdict())
    return network, provenance, _paper_example(gpus_of(paper), network), _paper_axes()


def _paper_example(gpus: int, network: Any) -> PaperSeen:
    """Observations of the paper's agent, of the smallest size that defines all axes."""
    features = (network.full.in_features - network.near.out_channels * network.grid.size) // 2
    shapes = (_STATES, gpus, CHANNELS_IN), (_STATES, features), (_STATES, _ROWS, features), (_STATES, _ROWS * gpus)
    use, queue, jobs = (cast(Any, torch.zeros(shape)) for shape in shapes[:3])
    return PaperSeen(use, queue, jobs, cast(Any, torch.ones(shapes[3]).byte()))


def _paper_axes() -> list[dict[int, Any]]:
    """Which axes are dynamic: states and waiting jobs."""
    free = torch.export.Dim.AUTO
    return [{0: free}, {0: free}, {0: free, 1: free}, {0: free, 1: free}]


def _example(weights: Weights) -> Sight:
    """Observations of the smallest size that defines all axes."""
    random = np.random.default_rng(0)

    def real(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    def marks(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.uint8)

    return Sight(
        real(_STATES, _ROWS, len(weights.row)),
        real(_STATES, POOLS, len(weights.pool)),
        real(_STATES, _ROWS, POOLS, len(weights.pair)),
        real(_STATES, len(weights.whole)),
        real(_STATES, _ROWS, POOLS),
        marks(_STATES, _ROWS, POOLS),
        marks(_STATES, _ROWS * POOLS + 1),
    )


def open_axes() -> list[dict[int, Any]]:
    """Which axes of each input are dynamic: states, rows, pools."""
    free = torch.export.Dim.AUTO
    return [
        {0: free, 1: free},
        {0: free, 1: free},
        {0: free, 1: free, 2: free},
        {0: free},
        {0: free, 1: free, 2: free},
        {0: free, 1: free, 2: free},
        {0: free, 1: free},
    ]
