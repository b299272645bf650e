"""Checkpoints: what is written is read again, without PyTorch; what is none is refused in one line."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.learn.small import small_training

from adlro.core.errors import CheckpointError
from adlro.decide.checkpoint import FORMAT, KEY, LARGEST, WITHOUT_STOPS, read_arrays, read_weights, with_stops
from adlro.decide.network.greedy_q import shipped_path
from adlro.learn.train.checkpoint import read_state, write_both, write_checkpoint, write_state
from adlro.learn.train.network import PairNetwork, weights_of
from adlro.learn.train.state import provenance

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from adlro.decide.checkpoint import read_weights
print(read_weights(Path(sys.argv[1]))[0].own.shape)
"""


def arrays(channels: int = 8) -> dict[str, Any]:
    """The arrays of a network."""
    return weights_of(PairNetwork(channels, 2))._asdict()


def written(path: Path, changed: dict[str, Any] | None = None, **about: Any) -> Path:
    """A checkpoint with some things otherwise than they should be."""
    text = json.dumps({"format": FORMAT, "preset": "adlro"} | about)
    save_file(arrays() | (changed or {}), path, {KEY: text})
    return path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path, given = tmp_path / "a.safetensors", arrays()
    write_checkpoint(path, given, {"preset": "adlro", "seed": 7})
    weights, about = read_weights(path)
    assert about == {"format": WITHOUT_STOPS, "preset": "adlro", "seed": 7}
    assert all(np.array_equal(getattr(weights, name), given[name]) for name in given)
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_one_file_has_the_weights_for_worlds_with_and_without_stops(tmp_path: Path) -> None:
    starts, stops, both = (tmp_path / f"{name}.safetensors" for name in ("starts", "stops", "both"))
    calm = {name: array for name, array in arrays().items() if name != "claim"}
    bold = with_stops({name: array + 1.0 for name, array in calm.items()}, 0.1)
    write_checkpoint(starts, calm, {"preset": "adlro", "seed": 1})
    write_checkpoint(stops, bold, {"preset": "adlro", "seed": 2})
    write_both(both, starts, stops)
    for is_second, given, seed in ((False, calm, 1), (True, bold, 2)):
        found, about = read_arrays(both, is_second)
        assert about["seed"] == seed
        assert found.keys() == given.keys()
        assert all(np.array_equal(found[name], given[name]) for name in given)
    with pytest.raises(CheckpointError, match="never stops jobs"):
        write_both(both, stops, starts)
    with pytest.raises(CheckpointError, match="no second set"):
        read_arrays(starts, stops=True)


def test_reading_needs_no_pytorch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(written(tmp_path / "a.safetensors"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "(2, 8, 8)"


def test_a_checkpoint_says_where_it_comes_from() -> None:
    about = provenance(small_training(steps=10))
    assert about["config"]["channels"] == 8
    assert set(about["versions"]) == {"adlro", "torch", "numpy", "python"}
    assert {"preset", "seed", "steps", "episodes", "seconds", "curve", "evaluation"} <= set(about)


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    good = written(tmp_path / "good.safetensors").read_bytes()
    path = tmp_path / "bad.safetensors"
    for content in (b"", b"hello", good[: len(good) // 2], good[:-1], b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"bad\.safetensors: not a checkpoint, or truncated \(.*\)") as caught:
            read_weights(path)
        assert "\n" not in str(caught.value)


def test_a_file_of_other_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(arrays(), path)
    with pytest.raises(CheckpointError, match="it has arrays, but no format"):
        read_weights(path)


@pytest.mark.parametrize(
    ("changed", "about", "told"),
    [
        ({}, {"format": FORMAT + 1}, f"newer than ours, {FORMAT}. Upgrade adlro"),
        ({}, {"format": 0}, f"older than ours, {FORMAT}. Train again"),
        ({}, {"preset": "paper"}, "its preset is 'paper'; expected 'adlro'"),
        ({"first": np.full(8, np.nan, np.float32)}, {}, "'first' has NaN or infinite values"),
        ({"own": np.zeros((2, 8, 9), np.float32)}, {}, r"'own' has the shape \(2, 8, 9\); expected \(2, 8, 8\)"),
        ({"row": np.zeros((3, 8), np.float32)}, {}, "'row' has the shape"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Any], about: dict[str, Any], told: str
) -> None:
    with pytest.raises(CheckpointError, match=told):
        read_weights(written(tmp_path / "a.safetensors", changed, **about))


def test_only_a_network_that_may_stop_jobs_needs_the_new_format(tmp_path: Path) -> None:
    plain = {name: array for name, array in read_arrays(shipped_path())[0].items() if name != "claim"}
    write_checkpoint(tmp_path / "a.safetensors", plain, {"preset": "adlro"})
    write_checkpoint(tmp_path / "b.safetensors", with_stops(plain, 0.2), {"preset": "adlro"})
    weights, told = read_weights(tmp_path / "a.safetensors")
    assert (told["format"], weights.claim.size, len(weights.pair)) == (WITHOUT_STOPS, 0, 11)
    weights, told = read_weights(tmp_path / "b.safetensors")
    assert (told["format"], weights.claim.size, len(weights.pair)) == (FORMAT, 65, 18)
    assert weights.claim[-1] == np.float32(0.2)


def test_a_missing_array_or_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"first": np.zeros(8, np.float32)}, path, {KEY: json.dumps({"format": FORMAT, "preset": "adlro"})})
    with pytest.raises(CheckpointError, match="'row' is missing"):
        read_weights(path)
    with pytest.raises(CheckpointError, match="no such file"):
        read_arrays(tmp_path / "none.safetensors")


def test_weights_that_are_no_numbers_or_too_many_are_never_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match="not written, because 'first'"):
        write_checkpoint(path, arrays() | {"first": np.full(8, np.inf, np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"would have .* bytes"):
        write_checkpoint(path, {"x": np.zeros(LARGEST // 4, np.float32)}, {})
    assert not path.exists()


def test_the_default_network_fits_into_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, weights_of(PairNetwork())._asdict(), {"preset": "adlro", "curve": [[1.0, 2.0, 3.0]] * 200})
    assert path.stat().st_size < LARGEST


def test_a_state_is_read_again_and_a_checkpoint_is_none(tmp_path: Path) -> None:
    write_state(tmp_path / "s.safetensors", {"x": np.arange(3)}, {"round": 4})
    found, told = read_state(tmp_path / "s.safetensors")
    assert found["x"].tolist() == [0, 1, 2]
    assert told["round"] == 4
    with pytest.raises(CheckpointError, match="not a saved state of"):
        read_state(written(tmp_path / "c.safetensors"))


def half_written(arrays: dict[str, Any], path: Path, metadata: dict[str, str]) -> None:
    """Write as the library does, but only half of it: the disk is full."""
    save_file(arrays, path, metadata)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_state_that_was_half_written_leaves_the_one_before_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.safetensors"
    write_state(path, {"x": np.arange(100)}, {"round": 4})
    with monkeypatch.context() as patched:
        patched.setattr("adlro.learn.train.checkpoint.save_file", half_written)
        with pytest.raises(OSError, match="No space left"):
            write_state(path, {"x": np.zeros(100)}, {"round": 5})
    found, told = read_state(path)
    assert found["x"].tolist() == list(range(100))
    assert told["round"] == 4
    write_state(path, {"x": np.zeros(100)}, {"round": 6})
    found, told = read_state(path)
    assert not found["x"].any()
    assert told["round"] == 6
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_that_was_half_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, given = tmp_path / "a.safetensors", arrays()
    write_checkpoint(path, given, {"preset": "adlro", "seed": 7})
    monkeypatch.setattr("adlro.learn.train.checkpoint.save_file", half_written)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(path, arrays(), {"preset": "adlro", "seed": 8})
    weights, about = read_weights(path)
    assert about["seed"] == 7
    assert all(np.array_equal(getattr(weights, name), given[name]) for name in given)


def test_a_file_is_put_in_its_place_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.safetensors"
    write_state(path, {"x": np.arange(3)}, {"round": 4})

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_state(path, {"x": np.arange(3)}, {"round": 5})
    assert read_state(path)[1]["round"] == 4
