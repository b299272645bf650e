"""The files of a training: checkpoints with their provenance, and its complete state for resuming."""

import platform
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from adlro import __version__
from adlro.core.errors import CheckpointError
from adlro.decide.checkpoint import Arrays
from adlro.learn.train.checkpoint import BEST, LAST, STATE, write_checkpoint, write_state
from adlro.learn.train.evaluate import Marks
from adlro.learn.train.loop import Tally, TrainingState, TrainProgress
from adlro.learn.train.replay import tensor_bytes
from adlro.learn.train.update import Learner

CURVE: Final = 200
"""Maximum number of points of the training curve that a checkpoint keeps."""

SCRATCH: Final = ("events", "worlds")
"""Arrays of a batch that have no meaning between two steps, or never change."""


def provenance(training: TrainingState) -> dict[str, Any]:
    """Where the weights come from."""
    every = max(1, -(-len(training.curve) // CURVE))
    return {
        "preset": training.preset.name,
        "config": training.config.as_dict(),
        "seed": training.seed,
        "steps": training.steps,
        "episodes": training.episodes,
        "seconds": round(training.seconds, 1),
        "device": torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        "versions": {
            "adlro": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "evaluation": asdict(training.last_marks) if training.last_marks else None,
        "curve": training.curve[::-1][::every][::-1],
        **({"from": training.start.provenance} if training.start else {}),
    }


def keep_checkpoints(training: TrainingState, progress: TrainProgress, folder: Path) -> list[str]:
    """Write the checkpoints and the state that are due; returns the names of the files."""
    written = []
    if progress.marks is not None:
        arrays = training.preset.arrays_of(training.learner.average)
        for name in [BEST, LAST] if progress.is_best else [LAST]:
            write_checkpoint(folder / name, arrays, provenance(training))
            written.append(name)
    if progress.state_is_due:
        write_state(folder / STATE, *state_of(training))
        written.append(STATE)
    return written


def state_of(training: TrainingState) -> tuple[Arrays, dict[str, Any]]:
    """Everything that changes during a training, as arrays and as a record for JSON."""
    learner = training.learner
    arrays: Arrays = {}
    for name, network in networks(learner).items():
        arrays |= {f"{name}.{key}": tensor_bytes(value) for key, value in network.state_dict().items()}
    moments = learner.optimiser.state_dict()["state"]
    for number, each in moments.items():
        arrays |= {f"optimiser.{number}.{key}": tensor_bytes(value) for key, value in each.items()}
    arrays |= {f"ring.{name}": array for name, array in training.ring.arrays().items()}
    arrays["generator"] = training.generator.get_state().numpy()
    arrays["loss"] = tensor_bytes(training.loss)
    for group, batch in enumerate(training.batches):
        for name, array in changing(batch):
            arrays[f"group{group}.{name}"] = np.ascontiguousarray(array).view(np.uint8).ravel()
        arrays[f"returns{group}"] = training.returns[group]
        action = training.actions[group]
        if action is not None:
            arrays[f"action{group}"] = action.cpu().numpy()
    counters = ("round", "steps", "episodes", "seconds", "rate", "best", "curve")
    return arrays, {
        "preset": training.preset.name,
        "config": training.config.as_dict(),
        "seed": training.seed,
        "updates": learner.updates,
        "tally": asdict(training.tally),
        "marks": asdict(training.last_marks) if training.last_marks else None,
        **{name: getattr(training, name) for name in counters},
    }


def networks(learner: Learner) -> dict[str, torch.nn.Module]:
    """The networks of a learner by name."""
    return {"network": learner.network, "target": learner.target, "average": learner.average}


def changing(thing: Any, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Every array of a batch that changes, with its name."""
    if isinstance(thing, np.ndarray):
        if thing.size:
            yield path, thing
        return
    names = getattr(thing, "_fields", None) or [each.name for each in fields(thing)] if is_record(thing) else []
    for name in names:
        if name not in SCRATCH:
            yield from changing(getattr(thing, name), f"{path}.{name}")


def is_record(thing: Any) -> bool:
    """Whether this has fields: a named tuple or a dataclass."""
    return hasattr(thing, "_fields") or is_dataclass(thing)


def restore(training: TrainingState, arrays: Arrays, told: dict[str, Any]) -> None:
    """Restore a training from a state that was written."""
    learner = training.learner
    try:
        with torch.no_grad():
            for name, network in networks(learner).items():
                for key, value in network.state_dict().items():
                    value.copy_(torch.from_numpy(arrays[f"{name}.{key}"]).view(value.dtype).view(value.shape))
        restore_optimiser(learner, arrays)
        training.ring.restore({key[5:]: value for key, value in arrays.items() if key.startswith("ring.")})
        training.generator.set_state(torch.from_numpy(arrays["generator"]))
        training.loss = torch.from_numpy(arrays["loss"]).view(torch.float32).view(()).to(training.device)
        for group, batch in enumerate(training.batches):
            for name, array in changing(batch):
                saved = arrays[f"group{group}.{name}"].view(array.dtype).reshape(-1, *array.shape[1:])
                rows = min(len(array), len(saved))  # the other rows are for threads, whose number may have changed
                array[:rows] = saved[:rows]
            training.returns[group][:] = arrays[f"returns{group}"]
            if f"action{group}" in arrays:
                training.actions[group] = torch.from_numpy(arrays[f"action{group}"]).to(training.device)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the saved state does not fit this training ({error}). It has other worlds, or is of another version."
        ) from None
    learner.updates = told["updates"]
    training.tally = Tally(**told["tally"])
    training.last_marks = Marks(**told["marks"]) if told["marks"] else None
    for name in ("round", "steps", "episodes", "seconds", "rate", "best", "curve"):
        setattr(training, name, told[name])


def restore_optimiser(learner: Learner, arrays: Arrays) -> None:
    """Restore what the optimiser remembers about each parameter."""
    state: dict[int, dict[str, Tensor]] = {}
    for number, parameter in enumerate(learner.network.parameters()):
        prefix = f"optimiser.{number}."
        for key in [key for key in arrays if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            value = torch.from_numpy(np.array(arrays[key])).view(torch.float32)
            state.setdefault(number, {})[name] = value.view(()) if name == "step" else value.view(parameter.shape)
    learner.optimiser.load_state_dict({**learner.optimiser.state_dict(), "state": state})
