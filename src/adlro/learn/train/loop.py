"""The training loop: environments step on the CPU while the network learns. It yields progress records.

Environments come in groups that take turns. In its turn, the results of the group's last step are stored, the network
chooses the next actions, and the group steps on its own threads. Meanwhile the network learns and the next group has
its turn. On the CPU the result only depends on the config and the seed: the order of turns is fixed, and each
environment has its own random numbers.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from adlro.core.errors import CheckpointError, ConfigError, UsageError
from adlro.decide.checkpoint import Arrays
from adlro.learn.train.checkpoint import check_size
from adlro.learn.train.config import TrainConfig
from adlro.learn.train.evaluate import Marks, Sheet, play_evaluation
from adlro.learn.train.network import MASKED_Q
from adlro.learn.train.presets import Preset, begun_with, draw_of
from adlro.learn.train.replay import Ring, Sights
from adlro.learn.train.scales import with_scales
from adlro.learn.train.update import (
    DivergedError,
    Learner,
    check_finite,
    judging,
    make_learner,
    rate_at,
    recorded,
    update,
)
from adlro.learn.worlds.envs import Worlds

LONGEST_TEXT: Final = 100_000
"""Bytes reserved for the provenance of a checkpoint."""


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """A record of the training at the end of a round; means are over the time since the previous record."""

    round: int
    steps: int
    episodes: int
    seconds: float
    done: float  # share of the training that is done, 0 to 1
    steps_per_s: float
    episodes_per_s: float
    waited: float  # share of the time in which the network waited for environments
    episode_return: float | None  # mean sum of rewards of the episodes that ended
    jct: float | None  # their mean completion time, in units of their worlds
    agreed: float  # share of actions that equal the rule's
    epsilon: float  # mean share of explored actions
    loss: float | None
    rate: float
    marks: Marks | None  # of the evaluation, if there was one
    is_best: bool
    is_last: bool
    state_is_due: bool


@dataclass(slots=True)
class Tally:
    """Sums since the last record. Mutable; owned by the training."""

    steps: int = 0
    episodes: int = 0
    returns: float = 0.0
    scores: float = 0.0
    agreed: int = 0
    losses: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class TrainingState:
    """A training in progress. Mutable; owned by the caller of `rounds`."""

    preset: Preset
    config: TrainConfig
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
    host_actions: list[Tensor]  # where the environments read their actions
    actions: list[Tensor | None]  # the same on the device; None before the first turn
    returns: list[Any]  # [environments of a group] sum of rewards of the episode so far
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
    start: "StartNetwork | None" = None


@dataclass(frozen=True, slots=True)
class StartNetwork:
    """The network that a training starts from, instead of random weights."""

    arrays: Arrays
    provenance: dict[str, Any]


# ---- the beginning -----------------------------------------------------------------------------------------------


def begin_training(
    preset: Preset,
    config: TrainConfig,
    worlds: Worlds,
    exam: tuple[Sheet, ...],
    seed: int,
    device: torch.device,
    threads: int,
    start: StartNetwork | None = None,
) -> TrainingState:
    """A training before its first round."""
    if not (config.steps or config.episodes or config.minutes):
        raise UsageError("the training has no limit. Pass --steps, --episodes or --minutes.")
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
        take_over(network, preset, config, start)
    check_size(preset.arrays_of(network), LONGEST_TEXT, f"preset {preset.name}")
    check_clusters(preset, worlds, exam)
    generator = torch.Generator(device)
    generator.manual_seed(seed)
    real = torch.bfloat16 if device.type == "cuda" and config.mixed else torch.float32
    learner = make_learner(network, config, device)
    ring = Ring(config.memory, batches[0].seen, config.groups, device, real)
    if device.type == "cuda" and config.compile:
        compile_network(learner, ring, {size, config.batch})
    return TrainingState(
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


def check_clusters(preset: Preset, worlds: Worlds, exam: tuple[Sheet, ...]) -> None:
    """Raise an error if the evaluation has clusters of another size and the network supports only one size."""
    sizes = [sorted(set(each.info.gpus.tolist())) for each in (worlds, *(sheet.worlds for sheet in exam))]
    if not preset.any_cluster and any(each != sizes[0] for each in sizes):
        found = next(each for each in sizes if each != sizes[0])
        raise ConfigError(
            f"preset {preset.name}: worlds with {', '.join(map(str, sizes[0]))} GPUs to learn in, and with "
            f"{', '.join(map(str, found))} to be evaluated in; expected the same number."
        )


def take_over(network: nn.Module, preset: Preset, config: TrainConfig, start: StartNetwork) -> None:
    """Copy the weights that the training starts from into the network."""
    try:
        network.load_state_dict(preset.network_of(begun_with(config, start.arrays)).state_dict())
    except (RuntimeError, TypeError, KeyError, ValueError):
        raise CheckpointError(
            f"--from: the checkpoint does not fit a training of the preset {preset.name!r}: arrays are missing or have "
            "another shape. Was it trained for another cluster?"
        ) from None


def compile_step(preset: Preset, config: TrainConfig, worlds: Worlds) -> None:
    """Compile the environment step before the training's clock starts."""
    batch = preset.make_batch(config, worlds, 1, 0, 1)
    preset.step(batch, np.zeros(1, np.int32))


def compile_network(learner: Learner, ring: Ring, sizes: set[int]) -> None:
    """Compile the network too, for acting and learning, with batches of these sizes."""
    for size in sizes:
        sights = tuple(each.flatten(0, 1)[:size] for each in ring.sights)
        with torch.no_grad():
            learner.judge(learner.average, sights)
        learner.judge(learner.network, sights).sum().backward()  # type: ignore[no-untyped-call]
    learner.optimiser.zero_grad(set_to_none=True)


def pinned(batch: Any) -> Any:
    """The same batch with its observations in pinned memory, which a GPU can read directly."""

    def moved(arrays: Any) -> Any:
        return type(arrays)(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))

    return replace(batch, seen=moved(batch.seen), came=moved(batch.came))


def shares_explored(config: TrainConfig, seed: int) -> Tensor:
    """The share of explored actions in every environment: from low to high in equal ratios, in random order.

    If they were sorted, one thread would have all environments that explore most, and steps there take longest.
    """
    low, high = max(config.explore_low, 1e-4), max(config.explore_high, 1e-4)
    shares = np.geomspace(low, high, config.environments) if config.explore_high > 0 else np.zeros(config.environments)
    mixed = np.random.default_rng(seed).permutation(shares)
    return torch.from_numpy(mixed).float().view(config.groups, -1)


# ---- rounds ------------------------------------------------------------------------------------------------------


def rounds(training: TrainingState) -> Iterator[TrainProgress]:
    """Train until a limit is reached, and yield records. Raises DivergedError instead of a bad record."""
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
                _update_network(training, done)
            training.round += 1
            counted = take_time(training, counted)
            done = part_done(training)
            due = Due(training, done >= 1.0)
            if not due.anything:
                continue
            for group in range(config.groups):  # a record covers complete rounds
                wait_for(pending, group)
            check_loss(training)
            passed = training.seconds - before  # without the evaluation, so that the speed is that of learning
            marks = examine(training) if due.marks else None
            is_best = marks is not None and marks.against_rule < training.best
            counted = take_time(training, counted)
            if marks is not None:
                training.best = min(training.best, marks.against_rule)
                training.last_marks = marks
                training.curve.append([training.steps, round(training.seconds, 1), marks.against_rule])
            record = _told(training, passed, done, marks, is_best, due.state)
            training.tally, training.loss = Tally(), torch.zeros_like(training.loss)
            yield record
            counted = take_time(training, counted)
            before = training.seconds


def take_time(training: TrainingState, since: float) -> float:
    """Add the elapsed time to the training's; returns the current time."""
    now = time.monotonic()
    training.seconds += now - since
    return now


@dataclass(frozen=True, slots=True)
class Due:
    """What is due at the end of a round."""

    training: TrainingState
    is_last: bool

    def every(self, rounds: int) -> bool:
        """Whether something that happens every `rounds` rounds is due."""
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


def part_done(training: TrainingState) -> float:
    """The share of the training that is done, by the limit that will be reached first."""
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


def turn(training: TrainingState, group: int, done: float) -> None:
    """Record the result of a group's last step, and choose its next actions."""
    ring, batch, taken = training.ring, training.batches[group], training.actions[group]
    if taken is not None:
        ring.did(group, taken, batch.came, training.config.limit)
        _count(training, group)
    sights = ring.see(group, batch.seen)
    with torch.no_grad():
        q = judged(training, sights)
        action = explored(training, group, sights, q.argmax(1), done)
    training.actions[group] = action
    training.host_actions[group].copy_(action.int(), non_blocking=True)  # int() first: a converting copy would block
    if training.device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def judged(training: TrainingState, sights: Sights) -> Tensor:
    """Q of the current observations."""
    learner = training.learner
    if not (training.config.graphs and training.device.type == "cuda"):
        return learner.judge(learner.network, sights)
    if learner.act is None:
        learner.act = recorded(lambda seen: learner.judge(learner.network, seen), sights)
    return learner.act(sights)


def explored(training: TrainingState, group: int, sights: Sights, greedy: Tensor, done: float) -> Tensor:
    """The greedy actions, some replaced: uniformly at random, or by softmax of the rule's prior (Gumbel trick)."""
    config, legal = training.config, sights[-1].bool()
    options: Any = {"device": training.device, "generator": training.generator}
    judged = -torch.log(-torch.log(torch.rand(legal.shape, **options).clamp_(1e-9, 1 - 1e-7)))
    if training.preset.prior is not None and config.explore_prior > 0:
        by_prior = torch.rand((len(legal), 1), **options) < config.explore_prior
        judged += training.preset.prior(sights) * by_prior
    by_chance = judged.masked_fill(~legal, MASKED_Q).argmax(1)
    return torch.where(torch.rand(len(legal), **options) < epsilon_at(training, group, done), by_chance, greedy)


def epsilon_at(training: TrainingState, group: int, done: float) -> Tensor:
    """The share of explored actions of each environment of a group."""
    falling = max(0.0, 1.0 - done / training.config.explore_until) if training.config.explore_until > 0 else 0.0
    epsilon = training.epsilon[group]
    return epsilon + falling * (1.0 - epsilon) if falling > 0 else epsilon


def _count(training: TrainingState, group: int) -> None:
    """Add the results of a group's step to the tally."""
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


def _update_network(training: TrainingState, done: float) -> None:
    """Update the network from the replay memory, if it is large enough."""
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


def check_loss(training: TrainingState) -> None:
    """Stop a training whose loss is NaN or explodes."""
    when = f"in round {training.round:,}"
    loss = float(training.loss) / max(1, training.tally.losses)
    if not loss <= training.config.loss_limit:
        raise DivergedError(
            f"training diverged {when}: the loss is {loss:.3g}, above {training.config.loss_limit:g}. "
            "The checkpoints before it are kept; try a smaller rate."
        )
    check_finite(training.learner.network, when)
    check_finite(training.learner.average, when)


def examine(training: TrainingState) -> Marks:
    """Evaluate the averaged weights."""
    marks = play_evaluation(training.preset, training.exam, greedy(training), training.threads)
    worst = training.config.worst
    if not (marks.against_rule <= worst or worst == 0):
        raise DivergedError(
            f"training diverged in round {training.round:,}: its completion times are {marks.against_rule:.2f} times "
            f"those of eft-reserving, above {worst:g}. The checkpoints before it are kept; try a smaller rate."
        )
    return marks


def greedy(training: TrainingState) -> Callable[[Any], Any]:
    """The best actions by the averaged network. It is not compiled, because every batch size would compile again."""
    learner, real = training.learner, training.ring.sights[0].dtype
    judge = judging(training.device.type == "cuda" and training.config.mixed, compiled=False)

    def act(batch: Any) -> Any:
        sights = tuple(
            torch.from_numpy(each).to(training.device).to(real if each.dtype.kind == "f" else torch.uint8)
            for each in batch.seen
        )
        with torch.no_grad():
            return judge(learner.average, sights).argmax(1).cpu().numpy()

    return act


def _told(
    training: TrainingState, seconds: float, done: float, marks: Marks | None, is_best: bool, state_is_due: bool
) -> TrainProgress:
    """A record of the training's current state."""
    tally, passed = training.tally, max(seconds, 1e-9)
    epsilon = [float(epsilon_at(training, group, done).mean()) for group in range(training.config.groups)]
    return TrainProgress(
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
