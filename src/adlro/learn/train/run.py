"""A complete training with its folder: its setup, resuming after a kill, and progress messages.

`python -m adlro.learn.train --worlds FILE` trains on a machine that has PyTorch and Numba, but not everything that the
command `adlro train` needs.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from adlro import __version__
from adlro.core.errors import AdlroError, CheckpointError, ConfigError, UsageError
from adlro.decide.checkpoint import may_stop, read_arrays
from adlro.learn.train.checkpoint import BEST, LAST, STATE, read_state, write_checkpoint
from adlro.learn.train.config import TrainConfig, altered, read_train_config, with_settings
from adlro.learn.train.evaluate import make_exam
from adlro.learn.train.loop import StartNetwork, TrainingState, TrainProgress, begin_training, rounds
from adlro.learn.train.presets import PRESET_NAMES, QUICK, find_preset
from adlro.learn.train.state import keep_checkpoints, restore
from adlro.learn.worlds.envs import Worlds
from adlro.learn.worlds.file import load_worlds, save_worlds

if TYPE_CHECKING:
    from adlro.learn.train.on_ray import Crew

SETUP: Final = "training.json"
_START: Final = "start.safetensors"
LOG: Final = "log.jsonl"


@dataclass(frozen=True, slots=True)
class TrainSetup:
    """The setup of a training."""

    preset: str
    config: TrainConfig
    seed: int
    worlds: Worlds
    fixed: Worlds  # for the evaluation at given loads
    drawn: Worlds | None  # for the evaluation on random clusters
    start: StartNetwork | None = None  # the network to start from; None: random weights


Listener = Callable[[TrainProgress, Sequence[str]], None]
"""Receives each record and the names of the files written."""


def write_setup(setup: TrainSetup, folder: Path) -> None:
    """Write the setup of a training, for resuming."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (STATE, LOG, _START, BEST, LAST, "exam-random.npz"):  # left by an earlier training in this folder
        (folder / name).unlink(missing_ok=True)
    for name, worlds in (("worlds", setup.worlds), ("exam-fixed", setup.fixed), ("exam-random", setup.drawn)):
        if worlds is not None:
            save_worlds(folder / f"{name}.npz", worlds)
    about = {"preset": setup.preset, "seed": setup.seed, "config": setup.config.as_dict(), "version": __version__}
    if setup.start is not None:
        write_checkpoint(folder / _START, setup.start.arrays, setup.start.provenance)
    (folder / SETUP).write_text(json.dumps(about, indent=2) + "\n")


def read_setup(folder: Path) -> TrainSetup:
    """The setup of the training in a folder."""
    try:
        about = json.loads((folder / SETUP).read_text())
        preset, seed, values = str(about["preset"]), int(about["seed"]), dict(about["config"])
    except FileNotFoundError:
        raise UsageError(f"--resume: no training in '{folder}'; expected a folder with {SETUP}.") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder / SETUP}: not the settings of a training. Start a new training.") from None
    drawn, start = folder / "exam-random.npz", folder / _START
    return TrainSetup(
        preset,
        altered(find_preset(preset).config, values, str(folder / SETUP)),
        seed,
        load_worlds(folder / "worlds.npz"),
        load_worlds(folder / "exam-fixed.npz"),
        load_worlds(drawn) if drawn.exists() else None,
        StartNetwork(*read_arrays(start)) if start.exists() else None,
    )


NETWORK_SHAPE: Final = ("channels", "layers", "trust", "dueling")
"""Options that define the network; with --from the checkpoint sets them."""


def read_start(path: Path, preset: str, config: TrainConfig, stops: bool = False) -> tuple[StartNetwork, TrainConfig]:
    """A checkpoint to start from (with `stops` its second set), and the config with the shape of its network."""
    arrays, provenance = read_arrays(path, stops)
    if provenance.get("preset") != preset:
        raise CheckpointError(f"{path}: its preset is {provenance.get('preset')!r}; expected {preset!r}.")
    if may_stop(arrays) and config.stops == 0:
        raise CheckpointError(
            f"{path}: its network may stop jobs; expected a training with such episodes. Pass --set stops=0.75."
        )
    of_it = provenance.get("config")
    shape = {name: of_it[name] for name in NETWORK_SHAPE if name in of_it} if isinstance(of_it, dict) else {}
    return StartNetwork(arrays, provenance), altered(config, shape, str(path))


def find_device(name: str) -> torch.device:
    """The device with this name. "auto": a GPU if there is one. ROCm GPUs are also called cuda."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device is {name!r}; expected auto, cpu or cuda (also for ROCm).")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError(
            "--device cuda: PyTorch finds no GPU. Install its build for CUDA or ROCm, or pass --device cpu."
        )
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def train_network(
    setup: TrainSetup,
    folder: Path | None,
    device: torch.device,
    threads: int,
    listener: Listener,
    resume: bool = False,
    ray: str | None = None,
) -> TrainingState:
    """Train from the beginning, or resume from the state in the folder. Calls the listener and writes what is due.

    With `ray` the environments run on the nodes of that Ray cluster.
    """
    preset = find_preset(setup.preset)
    exam = make_exam(preset, setup.config, setup.fixed, setup.drawn, threads)
    training = begin_training(preset, setup.config, setup.worlds, exam, setup.seed, device, threads, setup.start)
    resumes = folder is not None and resume and (folder / STATE).exists()
    if folder is not None and resumes:
        restore(training, *read_state(folder / STATE))
    with crew_of(training, ray) as crew:
        if folder is not None and not resumes:  # if the Ray cluster cannot be reached, no folder is created
            write_setup(setup, folder)
        for progress in rounds(training):
            if crew is not None and progress.state_is_due:
                crew.fetch_all()
            write_due(training, progress, folder, listener)
    return training


def crew_of(training: TrainingState, ray: str | None) -> "AbstractContextManager[Crew | None]":
    """The Ray cluster that steps the environments, or None if this process does."""
    if ray is None:
        return nullcontext()
    from adlro.experiment.on_ray import RayCluster
    from adlro.learn.train.on_ray import Crew

    return Crew(training, RayCluster(ray))


def write_due(training: TrainingState, progress: TrainProgress, folder: Path | None, listener: Listener) -> None:
    """Write what is due at a record, and call the listener."""
    written: list[str] = []
    if folder is not None:
        write_line(
            folder / LOG, progress
        )  # first: if killed in between and resumed, a line is repeated but none is missing
        written = keep_checkpoints(training, progress, folder)
    listener(progress, written)


def write_line(path: Path, progress: TrainProgress) -> None:
    """Add a record to the log, a line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(progress)) + "\n")


# ---- messages ----------------------------------------------------------------------------------------------------


def progress_line(progress: TrainProgress) -> str:
    """A record as one line of text."""
    words = [
        f"{progress.done:4.0%}",
        f"{progress.steps:,} steps ({progress.steps_per_s:,.0f}/s)",
        f"{progress.episodes:,} episodes ({progress.episodes_per_s:,.1f}/s)",
        f"waited {100 * progress.waited:.0f} %",
        f"ε {progress.epsilon:.3f}",
        f"rate {progress.rate:.2g}",
    ]
    if progress.episode_return is not None:
        words.append(f"return {progress.episode_return:.3g}")
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.4g}")
    if progress.marks is not None:
        words.append(
            f"JCT {in_percent(progress.marks.against_picky)} against sjf-picky, "
            f"{in_percent(progress.marks.against_rule)} against eft-reserving"
            + (" (best so far)" if progress.is_best else "")
        )
    return ", ".join(words)


def in_percent(ratio: float) -> str:
    """A ratio as a change in percent."""
    return f"{100.0 * (ratio - 1.0):+.1f} %".replace("-", "−")


# ---- command line ------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Train with worlds from files; lines of progress go to stderr. `adlro train` has more options."""
    parser = argparse.ArgumentParser(prog="python -m adlro.learn.train", description=main.__doc__)
    parser.add_argument("--preset", choices=PRESET_NAMES, default="adlro")
    parser.add_argument("--worlds", type=Path, help="worlds to learn in (.npz)")
    parser.add_argument("--exam-fixed", type=Path, help="worlds of the evaluation at loads 0.7, 0.9, 1.1 (.npz)")
    parser.add_argument("--exam-random", type=Path, help="worlds of the evaluation on random clusters (.npz)")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path, metavar="DIR")
    parser.add_argument("--config", type=Path, metavar="FILE.toml")
    parser.add_argument("--from", dest="start", type=Path, metavar="FILE", help="a checkpoint to begin with")
    parser.add_argument("--set", action="append", default=[], metavar="key=value")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(words)

    def tell(progress: TrainProgress, written: Sequence[str]) -> None:
        print(
            progress_line(progress) + (f"; wrote {', '.join(written)}" if written else ""), file=sys.stderr, flush=True
        )

    try:
        if given.threads < 1 or given.seed < 0:
            raise UsageError("--threads must be at least 1, and --seed at least 0.")
        setup, folder = _setup_of(given)
        train_network(setup, folder, find_device(given.device), given.threads, tell, given.resume is not None)
    except (AdlroError, OSError) as error:
        print(f"adlro: {error}", file=sys.stderr)
        return 1
    return 0


def _setup_of(given: argparse.Namespace) -> tuple[TrainSetup, Path | None]:
    """The setup that the small command line asks for."""
    if given.resume is not None:
        return read_setup(given.resume), given.resume
    if given.worlds is None:
        raise UsageError("--worlds is missing; expected a file of worlds; `adlro train` writes one (worlds.npz).")
    config = config_of(given.preset, given.config, given.set, given.quick, given.steps, given.episodes, given.minutes)
    fixed = load_worlds(given.exam_fixed or given.worlds)
    drawn = load_worlds(given.exam_random) if given.exam_random else None
    start = None
    if given.start is not None:
        start, config = read_start(given.start, given.preset, config)
    return TrainSetup(given.preset, config, given.seed, load_worlds(given.worlds), fixed, drawn, start), given.out


def config_of(
    preset: str,
    file: Path | None,
    settings: Sequence[str],
    quick: bool,
    steps: int | None,
    episodes: int | None,
    minutes: float | None,
) -> TrainConfig:
    """The preset's config with the given values. A given limit replaces the preset's limits."""
    config = find_preset(preset).config
    if quick:
        config = altered(config, QUICK, "--quick")
    if file is not None:
        config = read_train_config(file, config)
    limits = {"steps": steps, "episodes": episodes, "minutes": minutes}
    if any(limit is not None for limit in limits.values()):
        config = altered(config, {name: limit or 0 for name, limit in limits.items()}, "the limits")
    return with_settings(config, settings)
