"""Small trainings that tests share: the paper's cluster, few environments, a narrow network."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from adlro.learn.train.config import TrainConfig, altered
from adlro.learn.train.evaluate import make_exam
from adlro.learn.train.loop import TrainingState, begin_training, rounds
from adlro.learn.train.presets import Preset, find_preset
from adlro.learn.worlds.draw import stack, worlds_of
from adlro.learn.worlds.envs import Worlds
from adlro.learn.worlds.file import save_worlds

SMALL: dict[str, Any] = {
    "steps": 0, "episodes": 0, "environments": 8, "jobs": 12, "batch": 16, "memory": 16, "channels": 8, "layers": 1,
    "warm_up": 2, "report_every": 5, "evaluate_every": 0, "checkpoint_every": 0, "exam_environments": 2,
    "exam_jobs": 12, "learner_threads": 1, "worst": 0.0,
}  # fmt: skip


@cache
def small_worlds() -> Worlds:
    """Two worlds of the paper's cluster."""
    return stack(worlds_of("paper16", "paper", 2, 0))


def world_file(folder: Path) -> Path:
    """The same in a file."""
    path = folder / "some.npz"
    save_worlds(path, small_worlds())
    return path


def small_config(preset: Preset, **values: Any) -> TrainConfig:
    """A preset made small."""
    return altered(preset.config, SMALL | values, "the test")


def small_training(name: str = "adlro", threads: int = 2, seed: int = 0, **values: Any) -> TrainingState:
    """A small training before its first round."""
    preset = find_preset(name)
    config = small_config(preset, **values)
    exam = make_exam(preset, config, small_worlds(), None, 1)
    return begin_training(preset, config, small_worlds(), exam, seed, torch.device("cpu"), threads)


def trained(training: TrainingState) -> dict[str, Any]:
    """The arrays of the network after all rounds."""
    for _ in rounds(training):
        pass
    return training.preset.arrays_of(training.learner.average)
