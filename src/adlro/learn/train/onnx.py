"""Exports the network as an ONNX file, for programs without our code and without PyTorch.

The inputs have the names of the arrays of the batch's `seen`, in single precision (bytes for marks). The output is q,
very negative for illegal actions. The number of states is dynamic, and so are rows and pools if the network allows it.
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from adlro.core.errors import CheckpointError, UsageError
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.network.planes import PAIR_PLANES, POOL_PLANES, ROW_PLANES, WHOLE_PLANES
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


def export_onnx(checkpoint: Path, target: Path) -> None:
    """Write the network of a checkpoint as ONNX."""
    provenance = read_arrays(checkpoint)[1]
    if provenance.get("preset") != "adlro":
        raise CheckpointError(
            f"{checkpoint}: its preset is {provenance.get('preset')!r}; only 'adlro' can be exported as ONNX."
        )
    arrays = read_weights(checkpoint)[0]._asdict()
    network = find_preset("adlro").network_of(arrays)
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
            tuple(_example()),
            input_names=list(Sight._fields),
            output_names=["q"],
            dynamic_shapes=(tuple(open_axes()),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    model = program.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = "adlro", json.dumps(provenance)
    onnx.checker.check_model(model)
    target.write_bytes(model.SerializeToString())


def _example() -> Sight:
    """Observations of the smallest size that defines all axes."""
    random = np.random.default_rng(0)

    def real(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    def marks(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.uint8)

    return Sight(
        real(_STATES, _ROWS, len(ROW_PLANES)),
        real(_STATES, POOLS, len(POOL_PLANES)),
        real(_STATES, _ROWS, POOLS, len(PAIR_PLANES)),
        real(_STATES, len(WHOLE_PLANES)),
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
