"""All options of a training in one record. Each preset is this record with its own values."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from adlro.core.errors import ConfigError, UsageError

ENDLESS: Final = 0
"""No limit."""


def _option(default: Any, help: str, low: float | None = None, high: float | None = None, open: bool = False) -> Any:
    """A field with its help text and range; `open` excludes the ends of the range."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "open": open})


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a network is trained. A round is one step of every environment."""

    # Duration. The learning rate falls until the first of these limits is reached.
    steps: int = _option(100_000_000, "Total environment steps; 0: no limit.", 0)
    episodes: int = _option(0, "Total episodes; 0: no limit.", 0)
    minutes: float = _option(0.0, "Minutes of training; 0: no limit.", 0)
    # Environments.
    environments: int = _option(8192, "Environments stepped in parallel.", 1, 1_048_576)
    groups: int = _option(2, "Groups of environments that take turns: one steps while the next is acted on.", 1, 8)
    jobs: int = _option(64, "Jobs in an episode.", 1, 100_000)
    most_jobs: int = _option(
        0, "Maximum jobs in an episode, on clusters that `jobs` would not fill; 0: always `jobs`.", 0, 100_000
    )
    rows: int = _option(16, "Waiting jobs that the network sees.", 1, 256)
    load_low: float = _option(0.5, "Smallest offered load of an episode.", 0, None, True)
    load_high: float = _option(1.5, "Largest offered load of an episode.", 0, None, True)
    backlog: int = _option(32, "Maximum jobs that wait when an episode starts, on 16 GPUs; more on more GPUs.", 0)
    burst: float = _option(0.3, "Fraction of episodes whose jobs arrive in bursts.", 0, 1)
    sigma: float = _option(0.7, "Largest error of estimates (sigma of the logarithm).", 0)
    jitter: float = _option(0.2, "Random change of a job's work (sigma of the logarithm).", 0)
    failures: float = _option(0.1, "Fraction of episodes in which nodes fail.", 0, 1)
    stops: float = _option(
        0.0, "Fraction of episodes in which jobs may be stopped; above 0 the network may stop and move jobs.", 0, 1
    )
    restart: float = _option(
        1800.0, "Largest cost of a restart in these episodes, in seconds; drawn for each, 0 in some.", 0
    )
    boldness: float = _option(
        0.1, "Weight of the rule's judgement in Q of claims and moves, for a network that begins without them.", 0
    )
    shaped: bool = _option(
        True, "Reward the gain over the rule eft-reserving, instead of minus the time of jobs in the system."
    )
    ahead: int = _option(
        0, "A choice is judged by this many next jobs, plus one for each four GPUs, in blocks of 16; 0: all.", 0
    )
    scaled: bool = _option(
        True, "Divide shaped rewards by their usual size in each world, so that all worlds count the same."
    )
    similar: bool = _option(False, "Show the network how similar each pair is to placements that turned out well.")
    idle_weight: float = _option(0.5, "Weight of idle GPU time in the paper's reward.", 0, 1, True)
    timed: bool = _option(False, "The paper's agent: discount by time, and shape the reward by the jobs in the system.")
    averaged: bool = _option(
        False, "The paper's agent: weigh the mean idle time of a GPU against the mean completion time, not the sums."
    )
    sizes: bool = _option(True, "The paper's agent sees how many GPUs each job asks for.")
    keeps: bool = _option(True, "The paper's agent may keep GPUs for a gang that does not fit yet.")
    grid: bool = _option(False, "The paper's network sees GPUs on a grid of nodes × GPUs instead of in a row.")
    worlds: int = _option(
        480, "Number of random worlds, if no file of worlds is given; for one cluster at most 8.", 1, 100_000
    )
    most_gpus: int = _option(256, "GPUs of the largest random clusters.", 8, 1024)
    paper_share: float = _option(0.25, "Fraction of these worlds whose cluster is paper16.", 0, 1)
    # The network.
    channels: int = _option(64, "Channels in each layer.", 1, 1024)
    layers: int = _option(2, "Layers in which pairs exchange information.", 0, 16)
    trust: float = _option(0.0, "Weight of the rule's judgement in Q; 0: none.", 0)
    dueling: bool = _option(True, "Dueling network: separate state value and advantages.")
    # Learning.
    batch: int = _option(4096, "Samples in an update.", 1, 4_194_304)
    updates: int = _option(1, "Updates after each group's step.", 0)
    memory: int = _option(64, "Rounds in the replay memory.", 4, 100_000)
    priority: float = _option(0.0, "Prioritised replay: exponent of a sample's last error; 0: uniform.", 0, 1)
    warm_up: int = _option(8, "Rounds before the first update, in addition to the n steps of a sample.", 1)
    horizon: int = _option(4, "Steps of n-step returns.", 1)
    gamma: float = _option(0.97, "Discount factor for the next decision.", 0, 1)
    double: bool = _option(
        True, "Double Q-learning: the trained network chooses the action, the target network gives its value."
    )
    rate: float = _option(1e-3, "Highest learning rate.", 0, None, True)
    rate_warm_up: int = _option(50, "Updates in which the learning rate rises to `rate`.", 0)
    rate_end: float = _option(
        0.02, "Final learning rate as a fraction of `rate`, reached along a cosine; 1: constant.", 0, 1
    )
    clip: float = _option(10.0, "Gradients are clipped to this norm; 0: no clipping.", 0)
    bend: float = _option(1.0, "Huber loss: errors are squared below this value, and linear above it.", 0, None, True)
    limit: float = _option(10.0, "Rewards are clipped to plus and minus this value.", 0, None, True)
    target_share: float = _option(
        0.005, "Fraction of the trained weights that goes into the target network each time.", 0, 1
    )
    target_every: int = _option(1, "Updates between two changes of the target network.", 1)
    average: float = _option(
        0.002, "The same fraction for the averaged weights, which are evaluated and saved; 1: no averaging.", 0, 1
    )
    # Exploration.
    explore_low: float = _option(0.02, "Fraction of random actions in the environment that explores least.", 0, 1)
    explore_high: float = _option(0.4, "The same in the environment that explores most; the others lie between.", 0, 1)
    explore_until: float = _option(0.0, "Fraction of the training during which these fractions fall from 1.", 0, 1)
    explore_prior: float = _option(
        0.0, "Fraction of random actions that are drawn by the rule's judgement instead of uniformly.", 0, 1
    )
    # Evaluation and output.
    report_every: int = _option(50, "Rounds between two progress lines.", 1)
    evaluate_every: int = _option(500, "Rounds between two evaluations; 0: only one at the end.", 0)
    checkpoint_every: int = _option(2000, "Rounds between two saved states to resume from; 0: none are saved.", 0)
    exam_environments: int = _option(48, "Episodes in each part of the evaluation.", 1, 100_000)
    exam_jobs: int = _option(512, "Jobs in an evaluation episode.", 1, 100_000)
    worst: float = _option(
        3.0, "Stop if the mean JCT in the evaluation is more than this many times the rule's; 0: never.", 0
    )
    loss_limit: float = _option(1e4, "Stop if the loss exceeds this value.", 0, None, True)
    # The machine.
    learner_threads: int = _option(2, "CPU threads of the network; results depend on their number.", 1, 256)
    mixed: bool = _option(True, "On a GPU: keep observations in 16 bits, and compute Q in mixed precision.")
    graphs: bool = _option(True, "On a GPU: record an update once and replay it as one CUDA graph.")
    compile: bool = _option(False, "On a GPU: compile the network with torch.compile into fewer kernels.")

    @property
    def most(self) -> int:
        """Jobs of the longest episodes."""
        return max(self.jobs, self.most_jobs)

    def as_dict(self) -> dict[str, Any]:
        """All values by name."""
        return asdict(self)


FIELDS: Final = {each.name: each for each in fields(TrainConfig)}


def altered(config: TrainConfig, values: Mapping[str, Any], where: str) -> TrainConfig:
    """The config with these values, each checked; error messages name `where`."""
    for name, value in values.items():
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, n=1)
            guess = f"Did you mean '{close[0]}'?" if close else "docs/training.md lists the options."
            raise ConfigError(f"{where}: unknown option '{name}'. {guess}")
        _check(name, value, where)
    as_declared: dict[str, Any] = {name: float(value) if is_real(name) else value for name, value in values.items()}
    result = replace(config, **as_declared)
    if result.load_low > result.load_high:
        raise ConfigError(f"{where}: load_low is {result.load_low}, above load_high, {result.load_high}.")
    if result.explore_low > result.explore_high:
        raise ConfigError(f"{where}: explore_low is {result.explore_low}, above explore_high, {result.explore_high}.")
    if result.environments % result.groups:
        raise ConfigError(
            f"{where}: {result.environments} environments cannot be divided into {result.groups} equal groups."
        )
    if result.memory < result.horizon + result.warm_up + 2:
        least = result.horizon + result.warm_up + 2
        raise ConfigError(
            f"{where}: memory is {result.memory}; expected {least} or more, 2 beyond horizon and warm_up together, "
            "otherwise nothing is learnt."
        )
    return result


def is_real(name: str) -> bool:
    """Whether an option is a real number, not an integer."""
    return type(FIELDS[name].default) is float


def _check(name: str, value: Any, where: str) -> None:
    """Raise an error for a value of the wrong type or out of range."""
    each = FIELDS[name]
    kind = type(each.default)
    fits = type(value) is kind or (kind is float and type(value) is int)
    low, high, is_open = (each.metadata[key] for key in ("low", "high", "open"))
    if fits and kind is not bool:
        fits = abs(value) <= 1e300  # neither NaN nor infinite, and a float can hold it
        fits = fits and (low is None or (value > low if is_open else value >= low))
        fits = fits and (high is None or (value < high if is_open else value <= high))
    if not fits:
        raise ConfigError(f"{where}: '{name}' is {_shown(value)}; expected {expected(name)}.")


def _shown(value: Any) -> str:
    """The value as written in TOML."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def expected(name: str) -> str:
    """The values that an option accepts, in words."""
    each = FIELDS[name]
    words = {bool: "true or false", int: "a whole number", float: "a number"}[type(each.default)]
    low, high, is_open = (each.metadata[key] for key in ("low", "high", "open"))
    if low is not None:
        words += f" above {low}" if is_open else f" from {low}"
    if high is not None:
        words += f" and below {high}" if is_open else f" to {high}"
    return words


def read_train_config(path: Path, config: TrainConfig) -> TrainConfig:
    """The config with the values of a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is not TOML: {error}.") from None
    return altered(config, values, str(path))


def with_settings(config: TrainConfig, settings: Iterable[str]) -> TrainConfig:
    """The config with values given as key=value in TOML syntax."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r}; expected key=value, as in --set channels=32.")
        try:
            values[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = text
    return altered(config, values, "--set")
