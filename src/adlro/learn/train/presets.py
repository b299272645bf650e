"""The two agents of the one training loop: their observations, their actions and their network."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor, nn

from adlro.core.errors import CatalogueError
from adlro.core.tables import Ints
from adlro.decide.checkpoint import Arrays, may_stop, with_stops
from adlro.decide.network.inference import Weights
from adlro.decide.network.paper_q import PaperWeights
from adlro.learn.train.config import TrainConfig
from adlro.learn.train.network import PairNetwork, network_of, prior_of, weights_of
from adlro.learn.worlds.batch import make_batch, step
from adlro.learn.worlds.envs import Draw, Worlds


@dataclass(frozen=True, slots=True)
class Preset:
    """What is specific to one agent. Everything else is the same loop with other config values.

    A batch has `seen` (a tuple of arrays [B, …]; the last one says which actions are legal), `came`, `count` and
    `actions`.
    """

    name: str
    summary: str
    config: TrainConfig
    make_batch: Callable[[TrainConfig, Worlds, int, int, int], Any]  # config, worlds, count, seed, threads
    step: Callable[[Any, Ints], None]
    make_network: Callable[[TrainConfig, Any], nn.Module]  # config, one batch
    arrays_of: Callable[[nn.Module], Arrays]
    network_of: Callable[[Arrays], nn.Module]
    prior: Callable[[tuple[Tensor, ...]], Tensor] | None  # the rule's prior of every action
    any_cluster: bool  # whether one network works for clusters of all sizes


def draw_of(config: TrainConfig) -> Draw:
    """How episodes are drawn."""
    return Draw(
        load_low=config.load_low,
        load_high=config.load_high,
        backlog=config.backlog,
        burst=config.burst,
        sigma=config.sigma,
        jitter=config.jitter,
        failures=config.failures,
        shaped=config.shaped,
        similar=config.similar,
        jobs=config.jobs,
        ahead=config.ahead,
        stops=config.stops,
        restart=config.restart,
    )


def make_pair_batch(config: TrainConfig, worlds: Worlds, count: int, seed: int, threads: int) -> Any:
    """Environments with observations of (job, pool) pairs."""
    pools = worlds.pools.shape[1]
    return make_batch(worlds, count, config.most, config.rows, pools, draw_of(config), seed, threads)


def make_pair_network(config: TrainConfig, batch: Any) -> nn.Module:
    """The network over (job, pool) pairs."""
    return PairNetwork(config.channels, config.layers, config.trust, config.dueling, config.stops > 0, config.boldness)


def pair_arrays(network: Any) -> Arrays:
    """The arrays of the network over pairs, with the names of the compiled code."""
    return {name: array for name, array in weights_of(network)._asdict().items() if array.size or name != "claim"}


def pair_network(arrays: Arrays) -> nn.Module:
    """The network over pairs with these arrays."""
    return network_of(Weights(**arrays))


def begun_with(config: TrainConfig, arrays: Arrays) -> Arrays:
    """The arrays that a training starts from: with inputs for stopping jobs, if it needs them and they have none."""
    return with_stops(arrays, config.boldness) if config.stops > 0 and not may_stop(arrays) else arrays


ADLRO: Final = Preset(
    name="adlro",
    summary="Q over (job, pool) pairs on any cluster, rewarded for what it gains over the rule eft-reserving",
    config=TrainConfig(),
    make_batch=make_pair_batch,
    step=step,
    make_network=make_pair_network,
    arrays_of=pair_arrays,
    network_of=pair_network,
    prior=prior_of,
    any_cluster=True,
)

QUICK: Final = {
    "steps": 0, "minutes": 1.5, "environments": 64, "batch": 128, "channels": 32, "layers": 1, "worlds": 24,
    "evaluate_every": 400, "checkpoint_every": 400, "exam_environments": 8, "exam_jobs": 128, "rate": 5e-4,
    "trust": 1.0, "explore_prior": 0.5, "horizon": 8, "learner_threads": 1,
}  # fmt: skip
"""What --quick changes: a few minutes on two CPU cores. That is too short to learn what the rule knows.

So the training starts from the rule. It learns on one thread: two are a third faster on an idle machine, but ten times
slower on a busy one, because PyTorch's threads wait for each other after every operation.
"""

PRESET_NAMES: Final = ("adlro", "paper")


def find_preset(name: str) -> Preset:
    """The preset with this name."""
    if name == "adlro":
        return ADLRO
    if name == "paper":
        return paper()
    raise CatalogueError(f"there is no preset {name!r}; expected {' or '.join(PRESET_NAMES)}.")


def paper() -> Preset:
    """The agent of the paper's section 4: the same loop with everything beyond plain deep Q-learning switched off."""
    from adlro.learn.paper.envs import make_paper_batch, node_sizes, step_paper
    from adlro.learn.paper.network import PaperNetwork, line_grid, node_grid, paper_network_of, paper_weights_of

    def make(config: TrainConfig, worlds: Worlds, count: int, seed: int, threads: int) -> Any:
        return make_paper_batch(
            worlds, count, config.jobs, draw_of(config), config.idle_weight, seed, threads, config.rows, config.sizes,
            config.keeps, config.gamma if config.timed else 1.0, config.averaged,
        )  # fmt: skip

    def make_network(config: TrainConfig, batch: Any) -> nn.Module:
        grid = node_grid(node_sizes(batch.worlds)) if config.grid else line_grid(batch.seen.use.shape[1])
        return PaperNetwork(grid, sizes=config.sizes, keeps=config.keeps)

    def arrays_of(network: Any) -> Arrays:
        return paper_weights_of(network)._asdict()

    return Preset(
        name="paper",
        summary="the paper's agent: a CNN over the utilisation of the GPUs of one cluster",
        config=replace(
            TrainConfig(), rows=64, steps=0, episodes=1_000_000, jobs=128, worlds=8, paper_share=1.0, load_low=2.0,
            load_high=2.0, backlog=0, burst=0.0, sigma=0.0, failures=0.0, shaped=False, timed=True, averaged=True,
            idle_weight=0.9, mixed=False, double=True, dueling=False, trust=0.0, horizon=8, gamma=0.97, rate=1e-4,
            rate_warm_up=0, rate_end=0.1, limit=1e6, average=0.002, target_share=0.01, target_every=1,
            explore_low=0.005, explore_high=0.1, explore_until=0.3, explore_prior=0.0, worst=0.0, loss_limit=1e9,
            exam_environments=64, exam_jobs=256,
        ),
        make_batch=make,
        step=step_paper,
        make_network=make_network,
        arrays_of=arrays_of,
        network_of=lambda arrays: paper_network_of(PaperWeights(**arrays)),
        prior=None,
        any_cluster=False,
    )  # fmt: skip
