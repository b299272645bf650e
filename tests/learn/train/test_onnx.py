"""ONNX: three ways to compute the same network agree, and whoever asks for what cannot be exported is told."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from tests.learn.observations import observations, stirred

from adlro.core.errors import CheckpointError
from adlro.decide.network.inference import forward, new_scratch
from adlro.decide.network.paper_state import PaperSeen
from adlro.decide.network.planes import Planes
from adlro.learn.paper.network import PaperNetwork, line_grid, node_grid, paper_weights_of
from adlro.learn.train.checkpoint import write_checkpoint
from adlro.learn.train.network import PairNetwork, Sight, weights_of
from adlro.learn.train.onnx import export_onnx


@pytest.fixture(scope="module", params=[False, True], ids=["starts", "stops"])
def network(request: pytest.FixtureRequest) -> PairNetwork:
    return stirred(16, 2, request.param)


@pytest.fixture(scope="module")
def session(network: PairNetwork, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("onnx")
    write_checkpoint(folder / "a.safetensors", weights_of(network)._asdict(), {"preset": "adlro"})
    export_onnx(folder / "a.safetensors", folder / "a.onnx")
    return onnxruntime.InferenceSession(folder / "a.onnx", providers=["CPUExecutionProvider"])


def by_compiled_code(network: PairNetwork, sight: Sight, b: int) -> Any:
    """Q by the network that needs no library, with its value of the state."""
    rows, pools = sight.prior.shape[1:]
    legal = np.asarray(sight.legal)[b]
    seen: list[Any] = [np.asarray(each)[b] for each in sight[:-1]]
    planes = Planes(*[*seen, legal[:-1].reshape(rows, pools).copy()])
    q = np.zeros(rows * pools + 1)
    value = forward(planes, rows, weights_of(network), new_scratch(rows, pools, 16), q)
    return np.where(legal > 0, q - q[legal > 0].mean() + value, -1e9)


@pytest.mark.parametrize(("states", "rows", "pools"), [(40, 16, 6), (1, 1, 1), (7, 32, 3)])
def test_pytorch_onnx_and_compiled_code_choose_the_same(
    network: PairNetwork, session: Any, states: int, rows: int, pools: int
) -> None:
    sight = observations(states, rows, pools, stops=network.stops)
    arrays = {name: np.asarray(each) for name, each in sight._asdict().items()}
    by_onnx = session.run(None, arrays)[0]
    with torch.no_grad():
        by_pytorch = network(tuple(torch.from_numpy(each) for each in arrays.values())).numpy()
    compiled = np.stack([by_compiled_code(network, sight, b) for b in range(states)])
    legal = arrays["legal"] > 0
    assert np.allclose(by_onnx[legal], by_pytorch[legal], atol=1e-4)
    assert np.allclose(compiled[legal], by_pytorch[legal], atol=1e-4)
    assert by_onnx.argmax(1).tolist() == by_pytorch.argmax(1).tolist() == compiled.argmax(1).tolist()


@pytest.mark.parametrize("grid", [line_grid(6), node_grid([2, 4])], ids=["in a row", "on a grid"])
def test_the_papers_network_gives_the_same_q_in_onnx(grid: np.ndarray, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = PaperNetwork(grid, 4, 8)
    write_checkpoint(tmp_path / "a.safetensors", paper_weights_of(network)._asdict(), {"preset": "paper"})
    export_onnx(tmp_path / "a.safetensors", tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    random = np.random.default_rng(2)
    for states, rows in ((1, 3), (5, 64)):
        legal = random.integers(0, 2, (states, rows * 6)).astype(np.uint8)
        shapes = (states, 6, 2), (states, 14), (states, rows, 14)
        use, queue, jobs = (random.random(shape).astype(np.float32) for shape in shapes)
        seen = PaperSeen(use, queue, jobs, legal)
        by_onnx = session.run(None, seen._asdict())[0]
        with torch.no_grad():
            by_pytorch = network(tuple(map(torch.from_numpy, seen))).numpy()
        assert np.allclose(by_onnx, by_pytorch, atol=1e-4)


def test_a_checkpoint_of_another_kind_is_not_exported(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"near": np.zeros(3, np.float32)}, {"preset": "other"})
    with pytest.raises(CheckpointError, match="its preset is 'other'; expected adlro or paper"):
        export_onnx(tmp_path / "a.safetensors", tmp_path / "a.onnx")
