"""The training: environments that step on the CPU while the network learns, told as records that somebody may watch.

Environments come in groups that take turns. A turn: what came of the group's last step is written down, the network
chooses its next actions, the group steps on threads of its own, and meanwhile the network learns and the next group has
its turn. On the CPU the result depends on the config and the seed alone: the turns come in a fixed order, and each
environment has its own chance.

`python -m adlro.learn.train --worlds FILE` trains on a machine that has PyTorch and Numba but not all that the command
`adlro train` wants.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from adlro import __version__
from adlro.core.errors import AdlroError, CheckpointError, ConfigError, UsageError
from adlro.decide.checkpoint import Arrays, read_arrays
from adlro.learn.checkpoint import BEST, LAST, STATE, read_state, write_checkpoint, write_state
from adlro.learn.config import Config, altered, read_config, with_settings
from adlro.learn.envs import Worlds
from adlro.learn.evaluate import Marks, Sheet, evaluate, make_exam
from adlro.learn.presets import NAMES, QUICK, Preset, draw_of, find_preset
from adlro.learn.replay import Ring, Sights, as_bytes
from adlro.learn.scales import with_scales
from adlro.learn.update import (
    DivergedError,
    Learner,
    check_weights,
    judging,
    make_learner,
    rate_at,
    recorded,
    update,
)
from adlro.learn.world_file import load_worlds, save_worlds

NEVER: Final = -1e9
"""Below every judgement of an action that may be."""

CURVE: Final = 200
"""Points of the training curve that a checkpoint keeps, at most."""

SCRATCH: Final = ("events", "worlds")
"""Arrays of a batch that say nothing between two steps, or never change."""

SETUP: Final = "training.json"
START: Final = "start.safetensors"
LOG: Final = "log.jsonl"


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a training at the end of a round; means are over the time since the record before."""

    round: int
    steps: int
    episodes: int
    seconds: float
    done: float  # which part of the training, 0 to 1
    steps_per_s: float
    episodes_per_s: float
    waited: float  # share of the time in which the network waited for environments
    episode_return: float | None  # mean sum of rewards of the episodes that ended
    jct: float | None  # their mean completion time, in units of their worlds
    agreed: float  # share of actions that were the rule's own
    epsilon: float  # mean share of explored actions
    loss: float | None
    rate: float
    marks: Marks | None  # of the evaluation, if there was one
    is_best: bool
    is_last: bool
    state_is_due: bool


@dataclass(slots=True)
class Tally:
    """Sums since the last record. State that changes, owned by the training."""

    steps: int = 0
    episodes: int = 0
    returns: float = 0.0
    scores: float = 0.0
    agreed: int = 0
    losses: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class Training:
    """A training under way. State that changes; whoever runs `rounds` owns it."""

    preset: Preset
    config: Config
    seed: int
    device: torch.device
    threads: int
    worlds: Worlds
    exam: tuple[Sheet, ...]
    batches: list[Any]  # one for each group
    learner: Learner
    ring: Ring
    generator: torch.Generator
    epsilon: Tensor  # [groups, environments of a group]
    host_actions: list[Tensor]  # where the environments read what to do
    actions: list[Tensor | None]  # the same on the device; None before the first turn
    returns: list[Any]  # [environments of a group] rewards of the episode so far
    loss: Tensor  # sum of losses since the last record
    tally: Tally = field(default_factory=Tally)
    round: int = 0
    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    best: float = float("inf")
    curve: list[list[float]] = field(default_factory=list)
    last_marks: Marks | None = None
    start: "Start | None" = None


@dataclass(frozen=True, slots=True)
class Start:
    """The network that a training begins with, in place of chance."""

    arrays: Arrays
    provenance: dict[str, Any]


# ---- the beginning -----------------------------------------------------------------------------------------------


def find_device(name: str) -> torch.device:
    """The device of this name; auto: a GPU if there is one. ROCm's GPUs are called cuda too."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device is {name!r}; expected auto, cpu or cuda (which means ROCm as well).")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError(
            "--device cuda: PyTorch sees no GPU. Install its build for CUDA or ROCm, or pass --device cpu."
        )
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def begin(
    preset: Preset,
    config: Config,
    worlds: Worlds,
    exam: tuple[Sheet, ...],
    seed: int,
    device: torch.device,
    threads: int,
    start: Start | None = None,
) -> Training:
    """A training before its first round."""
    if not (config.steps or config.episodes or config.minutes):
        raise UsageError("the training has no end: pass --steps, --episodes or --minutes.")
    torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        torch.set_num_threads(config.learner_threads)
    if preset.prior is not None and config.shaped and config.scaled:
        worlds = with_scales(worlds, draw_of(config), config.most, config.rows, seed, threads)
    size = config.environments // config.groups
    seeds = np.random.default_rng(seed).integers(1, 2**62, config.groups).tolist()
    batches = [preset.make_batch(config, worlds, size, each, threads) for each in seeds]
    compile_step(preset, config, worlds)
    if device.type == "cuda":
        batches = [pinned(batch) for batch in batches]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = preset.make_network(config, batches[0])
    if start is not None:
        take_over(network, preset, start)
    generator = torch.Generator(device)
    generator.manual_seed(seed)
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    learner = make_learner(network, config, device)
    ring = Ring(config.memory, batches[0].seen, config.groups, device, half)
    if device.type == "cuda" and config.compile:
        compile_network(learner, ring, {size, config.batch})
    return Training(
        preset=preset,
        config=config,
        seed=seed,
        device=device,
        threads=threads,
        worlds=worlds,
        exam=exam,
        batches=batches,
        learner=learner,
        ring=ring,
        generator=generator,
        epsilon=shares_explored(config, seed).to(device),
        host_actions=[torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in seeds],
        actions=[None for _ in seeds],
        returns=[np.zeros(size, np.float32) for _ in seeds],
        loss=torch.zeros((), device=device),
        start=start,
    )


def take_over(network: nn.Module, preset: Preset, start: Start) -> None:
    """Give the network the weights that a training begins with."""
    try:
        network.load_state_dict(preset.network_of(start.arrays).state_dict())
    except (RuntimeError, TypeError, KeyError, ValueError):
        raise CheckpointError(
            f"--from: no network that a training of {preset.name!r} could begin with here: arrays are missing or have "
            "another shape. Was it trained for another cluster?"
        ) from None


SHAPE: Final = ("channels", "layers", "trust", "dueling")
"""Options that say what network it is; with --from they are the checkpoint's."""


def read_start(path: Path, preset: str, config: Config) -> tuple[Start, Config]:
    """A checkpoint to begin with, and the config with the shape of its network."""
    arrays, provenance = read_arrays(path)
    if provenance.get("preset") != preset:
        raise CheckpointError(f"{path}: of the preset {provenance.get('preset')!r}; expected one of {preset!r}.")
    of_it = provenance.get("config")
    shape = {name: of_it[name] for name in SHAPE if name in of_it} if isinstance(of_it, dict) else {}
    return Start(arrays, provenance), altered(config, shape, str(path))


def compile_step(preset: Preset, config: Config, worlds: Worlds) -> None:
    """Compile the step now, before the clock of the training runs."""
    batch = preset.make_batch(config, worlds, 1, 0, 1)
    preset.step(batch, np.zeros(1, np.int32))


def compile_network(learner: Learner, ring: Ring, sizes: set[int]) -> None:
    """Compile the network now too, to judge and to learn, for batches of these sizes."""
    for size in sizes:
        sights = tuple(each.flatten(0, 1)[:size] for each in ring.sights)
        with torch.no_grad():
            learner.judge(learner.average, sights)
        learner.judge(learner.network, sights).sum().backward()  # type: ignore[no-untyped-call]
    learner.optimiser.zero_grad(set_to_none=True)


def pinned(batch: Any) -> Any:
    """The same batch, which shows itself in memory that a GPU reads at once."""

    def moved(arrays: Any) -> Any:
        return type(arrays)(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))

    return replace(batch, seen=moved(batch.seen), came=moved(batch.came))


def shares_explored(config: Config, seed: int) -> Tensor:
    """The share of explored actions in every environment: from low to high in equal ratios, in no order.

    In order, the environments that explore most would all be on one thread; there steps take longest.
    """
    low, high = max(config.explore_low, 1e-4), max(config.explore_high, 1e-4)
    shares = np.geomspace(low, high, config.environments) if config.explore_high > 0 else np.zeros(config.environments)
    mixed = np.random.default_rng(seed).permutation(shares)
    return torch.from_numpy(mixed).float().view(config.groups, -1)


# ---- rounds ------------------------------------------------------------------------------------------------------


def rounds(training: Training) -> Iterator[Progress]:
    """Train until a limit is reached, with a record now and then. Raises DivergedError rather than give a bad one."""
    config = training.config
    pending: list[Future[None] | None] = [None] * config.groups
    before, counted = training.seconds, time.monotonic()
    done = part_done(training)
    with ThreadPoolExecutor(config.groups) as pool:
        while done < 1.0:
            for group in range(config.groups):
                began = time.monotonic()
                wait_for(pending, group)
                training.tally.waited_s += time.monotonic() - began
                turn(training, group, done)
                pending[group] = pool.submit(
                    training.preset.step, training.batches[group], training.host_actions[group].numpy()
                )
                learn(training, done)
            training.round += 1
            counted = take_time(training, counted)
            done = part_done(training)
            due = Due(training, done >= 1.0)
            if not due.anything:
                continue
            for group in range(config.groups):  # a record is of complete rounds
                wait_for(pending, group)
            check_loss(training)
            passed = training.seconds - before  # without the evaluation: speed is that of learning
            marks = examine(training) if due.marks else None
            is_best = marks is not None and marks.against_rule < training.best
            counted = take_time(training, counted)
            if marks is not None:
                training.best = min(training.best, marks.against_rule)
                training.last_marks = marks
                training.curve.append([training.steps, round(training.seconds, 1), marks.against_rule])
            record = told(training, passed, done, marks, is_best, due.state)
            training.tally, training.loss = Tally(), torch.zeros_like(training.loss)
            yield record
            counted = take_time(training, counted)
            before = training.seconds


def take_time(training: Training, since: float) -> float:
    """Add the time that passed to the training's; what the time is now."""
    now = time.monotonic()
    training.seconds += now - since
    return now


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done at the end of a round."""

    training: Training
    is_last: bool

    def every(self, rounds: int) -> bool:
        """Whether it is time for something that is done every so many rounds."""
        return self.is_last or (rounds > 0 and self.training.round % rounds == 0)

    @property
    def marks(self) -> bool:
        """Whether the network is evaluated."""
        return self.every(self.training.config.evaluate_every)

    @property
    def state(self) -> bool:
        """Whether the state is written."""
        return self.training.config.checkpoint_every > 0 and self.every(self.training.config.checkpoint_every)

    @property
    def anything(self) -> bool:
        """Whether there is a record."""
        return self.marks or self.state or self.every(self.training.config.report_every)


def part_done(training: Training) -> float:
    """Which part of the training is done, by the limit that will be reached first."""
    config = training.config
    parts = [
        training.steps / config.steps if config.steps else 0.0,
        training.episodes / config.episodes if config.episodes else 0.0,
        training.seconds / 60.0 / config.minutes if config.minutes else 0.0,
    ]
    return min(1.0, max(parts))


def wait_for(pending: list[Future[None] | None], group: int) -> None:
    """Wait until a group's step is complete."""
    step = pending[group]
    if step is not None:
        step.result()
        pending[group] = None


def turn(training: Training, group: int, done: float) -> None:
    """Write down what came of a group's last step, and choose what it does next."""
    ring, batch, taken = training.ring, training.batches[group], training.actions[group]
    if taken is not None:
        ring.did(group, taken, batch.came, training.config.limit)
        count(training, group)
    sights = ring.see(group, batch.seen)
    with torch.no_grad():
        q = judged(training, sights)
        action = explored(training, group, sights, q.argmax(1), done)
    training.actions[group] = action
    training.host_actions[group].copy_(action.int(), non_blocking=True)  # across as it is: else the copy waits
    if training.device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def judged(training: Training, sights: Sights) -> Tensor:
    """Q of what is seen now."""
    learner = training.learner
    if not (training.config.graphs and training.device.type == "cuda"):
        return learner.judge(learner.network, sights)
    if learner.act is None:
        learner.act = recorded(lambda seen: learner.judge(learner.network, seen), sights)
    return learner.act(sights)


def explored(training: Training, group: int, sights: Sights, greedy: Tensor, done: float) -> Tensor:
    """The greedy actions, some replaced by chance: evenly, or by the rule's judgement (softmax, by Gumbel's trick)."""
    config, legal = training.config, sights[-1].bool()
    options: Any = {"device": training.device, "generator": training.generator}
    judged = -torch.log(-torch.log(torch.rand(legal.shape, **options).clamp_(1e-9, 1 - 1e-7)))
    if training.preset.prior is not None and config.explore_prior > 0:
        by_prior = torch.rand((len(legal), 1), **options) < config.explore_prior
        judged += training.preset.prior(sights) * by_prior
    by_chance = judged.masked_fill(~legal, NEVER).argmax(1)
    return torch.where(torch.rand(len(legal), **options) < epsilon_at(training, group, done), by_chance, greedy)


def epsilon_at(training: Training, group: int, done: float) -> Tensor:
    """The share of explored actions of each environment of a group."""
    falling = max(0.0, 1.0 - done / training.config.explore_until) if training.config.explore_until > 0 else 0.0
    epsilon = training.epsilon[group]
    return epsilon + falling * (1.0 - epsilon) if falling > 0 else epsilon


def count(training: Training, group: int) -> None:
    """Count what came of a group's step."""
    came, returns, tally = training.batches[group].came, training.returns[group], training.tally
    returns += came.reward
    ended = came.done > 0
    episodes = int(np.count_nonzero(ended))
    if episodes:
        tally.returns += float(returns[ended].sum())
        tally.scores += float(came.score[ended].sum())
        returns[ended] = 0.0
    tally.agreed += int(np.count_nonzero(came.agreed))
    tally.steps += len(ended)
    tally.episodes += episodes
    training.steps += len(ended)
    training.episodes += episodes


def learn(training: Training, done: float) -> None:
    """Update the network from what is remembered, if that is enough."""
    config, ring = training.config, training.ring
    if len(ring.rounds(config.horizon)) < config.warm_up:
        return
    for _ in range(config.updates):
        training.rate = rate_at(config, training.learner.updates, done)
        samples = ring.sample(config.batch, config.horizon, config.gamma, training.generator, config.priority)
        loss, error = update(training.learner, samples, config, training.rate)
        training.loss += loss
        if config.priority > 0.0:
            ring.was_wrong_by(samples, error)
        training.tally.losses += 1


def check_loss(training: Training) -> None:
    """Stop a training whose loss is no number or explodes."""
    when = f"in round {training.round:,}"
    loss = float(training.loss) / max(1, training.tally.losses)
    if not loss <= training.config.loss_limit:
        raise DivergedError(
            f"training diverged {when}: the loss is {loss:.3g}, above {training.config.loss_limit:g}. "
            "The checkpoints before it are kept; try a smaller rate."
        )
    check_weights(training.learner.network, when)
    check_weights(training.learner.average, when)


def examine(training: Training) -> Marks:
    """Evaluate the averaged weights."""
    marks = evaluate(training.preset, training.exam, greedy(training), training.threads)
    worst = training.config.worst
    if not (marks.against_rule <= worst or worst == 0):
        raise DivergedError(
            f"training diverged in round {training.round:,}: its completion times are {marks.against_rule:.2f} times "
            f"those of eft-reserving, above {worst:g}. The checkpoints before it are kept; try a smaller rate."
        )
    return marks


def greedy(training: Training) -> Callable[[Any], Any]:
    """What the averaged network thinks best; not compiled, or each size of an evaluation would take its time."""
    learner, real = training.learner, training.ring.sights[0].dtype
    judge = judging(training.device.type == "cuda", compiled=False)

    def act(batch: Any) -> Any:
        sights = tuple(
            torch.from_numpy(each).to(training.device).to(real if each.dtype.kind == "f" else torch.uint8)
            for each in batch.seen
        )
        with torch.no_grad():
            return judge(learner.average, sights).argmax(1).cpu().numpy()

    return act


def told(
    training: Training, seconds: float, done: float, marks: Marks | None, is_best: bool, state_is_due: bool
) -> Progress:
    """A record of where the training stands."""
    tally, passed = training.tally, max(seconds, 1e-9)
    epsilon = [float(epsilon_at(training, group, done).mean()) for group in range(training.config.groups)]
    return Progress(
        round=training.round,
        steps=training.steps,
        episodes=training.episodes,
        seconds=training.seconds,
        done=done,
        steps_per_s=tally.steps / passed,
        episodes_per_s=tally.episodes / passed,
        waited=min(1.0, tally.waited_s / passed),
        episode_return=tally.returns / tally.episodes if tally.episodes else None,
        jct=tally.scores / tally.episodes if tally.episodes else None,
        agreed=tally.agreed / max(1, tally.steps),
        epsilon=sum(epsilon) / len(epsilon),
        loss=float(training.loss) / tally.losses if tally.losses else None,
        rate=training.rate,
        marks=marks,
        is_best=is_best,
        is_last=done >= 1.0,
        state_is_due=state_is_due,
    )


# ---- what is left behind -----------------------------------------------------------------------------------------


def provenance(training: Training) -> dict[str, Any]:
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


def keep(training: Training, progress: Progress, folder: Path) -> list[str]:
    """Write the checkpoints and the state that are due; the names of what was written."""
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


def state_of(training: Training) -> tuple[Arrays, dict[str, Any]]:
    """All that changes during a training, as arrays and as a record for JSON."""
    learner = training.learner
    arrays: Arrays = {}
    for name, network in networks(learner).items():
        arrays |= {f"{name}.{key}": as_bytes(value) for key, value in network.state_dict().items()}
    moments = learner.optimiser.state_dict()["state"]
    for number, each in moments.items():
        arrays |= {f"optimiser.{number}.{key}": as_bytes(value) for key, value in each.items()}
    arrays |= {f"ring.{name}": array for name, array in training.ring.arrays().items()}
    arrays["generator"] = training.generator.get_state().numpy()
    arrays["loss"] = as_bytes(training.loss)
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


def restore(training: Training, arrays: Arrays, told: dict[str, Any]) -> None:
    """Put a training into a state that was written."""
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
                rows = min(len(array), len(saved))  # the rest is room for threads, of which there may be others now
                array[:rows] = saved[:rows]
            training.returns[group][:] = arrays[f"returns{group}"]
            if f"action{group}" in arrays:
                training.actions[group] = torch.from_numpy(arrays[f"action{group}"]).to(training.device)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the state does not suit this training ({error}): other worlds or another version?"
        ) from None
    learner.updates = told["updates"]
    training.tally = Tally(**told["tally"])
    training.last_marks = Marks(**told["marks"]) if told["marks"] else None
    for name in ("round", "steps", "episodes", "seconds", "rate", "best", "curve"):
        setattr(training, name, told[name])


def restore_optimiser(learner: Learner, arrays: Arrays) -> None:
    """Put back what the optimiser remembers of each parameter."""
    state: dict[int, dict[str, Tensor]] = {}
    for number, parameter in enumerate(learner.network.parameters()):
        prefix = f"optimiser.{number}."
        for key in [key for key in arrays if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            value = torch.from_numpy(np.array(arrays[key])).view(torch.float32)
            state.setdefault(number, {})[name] = value.view(()) if name == "step" else value.view(parameter.shape)
    learner.optimiser.load_state_dict({**learner.optimiser.state_dict(), "state": state})


# ---- a whole training, with its folder ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """What a training begins with."""

    preset: str
    config: Config
    seed: int
    worlds: Worlds
    fixed: Worlds  # for the evaluation at given loads
    drawn: Worlds | None  # for the evaluation on random clusters
    start: Start | None = None  # the network to begin with; none: one by chance


Listener = Callable[[Progress, Sequence[str]], None]
"""Is told each record, and which files were written."""


def write_setup(setup: Setup, folder: Path) -> None:
    """Write down what a training begins with, for who resumes it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (STATE, LOG, START):
        (folder / name).unlink(missing_ok=True)
    for name, worlds in (("worlds", setup.worlds), ("exam-fixed", setup.fixed), ("exam-random", setup.drawn)):
        if worlds is not None:
            save_worlds(folder / f"{name}.npz", worlds)
    about = {"preset": setup.preset, "seed": setup.seed, "config": setup.config.as_dict(), "version": __version__}
    if setup.start is not None:
        write_checkpoint(folder / START, setup.start.arrays, setup.start.provenance)
    (folder / SETUP).write_text(json.dumps(about, indent=2) + "\n")


def read_setup(folder: Path) -> Setup:
    """What the training in a folder began with."""
    try:
        about = json.loads((folder / SETUP).read_text())
        preset, seed, values = str(about["preset"]), int(about["seed"]), dict(about["config"])
    except FileNotFoundError:
        raise UsageError(f"--resume: no training in '{folder}'; expected a folder with {SETUP}.") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder / SETUP}: not what a training began with. Train anew.") from None
    drawn, start = folder / "exam-random.npz", folder / START
    return Setup(
        preset,
        altered(find_preset(preset).config, values, str(folder / SETUP)),
        seed,
        load_worlds(folder / "worlds.npz"),
        load_worlds(folder / "exam-fixed.npz"),
        load_worlds(drawn) if drawn.exists() else None,
        Start(*read_arrays(start)) if start.exists() else None,
    )


def run(
    setup: Setup, folder: Path | None, device: torch.device, threads: int, listener: Listener, resume: bool = False
) -> Training:
    """Train from the beginning, or go on from the state in the folder; tell the listener and write what is due."""
    preset = find_preset(setup.preset)
    exam = make_exam(preset, setup.config, setup.fixed, setup.drawn, threads)
    training = begin(preset, setup.config, setup.worlds, exam, setup.seed, device, threads, setup.start)
    if folder is not None and resume and (folder / STATE).exists():
        restore(training, *read_state(folder / STATE))
    elif folder is not None:
        write_setup(setup, folder)
    for progress in rounds(training):
        written = keep(training, progress, folder) if folder is not None else []
        if folder is not None:
            write_line(folder / LOG, progress)
        listener(progress, written)
    return training


def write_line(path: Path, progress: Progress) -> None:
    """Add a record to the log, a line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(progress)) + "\n")


def in_words(progress: Progress) -> str:
    """A record as one line."""
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
    """A ratio as a change."""
    return f"{100.0 * (ratio - 1.0):+.1f} %".replace("-", "−")


def main(words: Sequence[str] | None = None) -> int:
    """Train with worlds from files; lines of progress go to stderr. `adlro train` has more options."""
    parser = argparse.ArgumentParser(prog="python -m adlro.learn.train", description=main.__doc__)
    parser.add_argument("--preset", choices=NAMES, default="adlro")
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

    def tell(progress: Progress, written: Sequence[str]) -> None:
        print(in_words(progress) + (f"; wrote {', '.join(written)}" if written else ""), file=sys.stderr, flush=True)

    try:
        setup, folder = setup_of(given)
        run(setup, folder, find_device(given.device), given.threads, tell, given.resume is not None)
    except AdlroError as error:
        print(f"adlro: {error}", file=sys.stderr)
        return 1
    return 0


def setup_of(given: argparse.Namespace) -> tuple[Setup, Path | None]:
    """What the words of the small command line ask for."""
    if given.resume is not None:
        return read_setup(given.resume), given.resume
    if given.worlds is None:
        raise UsageError("--worlds is missing; expected a file of worlds, as `adlro train` writes it (worlds.npz).")
    config = config_of(given.preset, given.config, given.set, given.quick, given.steps, given.episodes, given.minutes)
    fixed = load_worlds(given.exam_fixed or given.worlds)
    drawn = load_worlds(given.exam_random) if given.exam_random else None
    start = None
    if given.start is not None:
        start, config = read_start(given.start, given.preset, config)
    return Setup(given.preset, config, given.seed, load_worlds(given.worlds), fixed, drawn, start), given.out


def config_of(
    preset: str,
    file: Path | None,
    settings: Sequence[str],
    quick: bool,
    steps: int | None,
    episodes: int | None,
    minutes: float | None,
) -> Config:
    """The preset's config with what was asked for; a limit that is given takes the place of the preset's."""
    config = find_preset(preset).config
    if quick:
        config = altered(config, QUICK, "--quick")
    if file is not None:
        config = read_config(file, config)
    limits = {"steps": steps, "episodes": episodes, "minutes": minutes}
    if any(limit is not None for limit in limits.values()):
        config = altered(config, {name: limit or 0 for name, limit in limits.items()}, "the limits")
    return with_settings(config, settings)


if __name__ == "__main__":
    sys.exit(main())
