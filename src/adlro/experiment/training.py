"""Training from Python and from the command line: its start, and its result."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adlro.core.errors import UsageError
from adlro.core.policy import Policy
from adlro.core.records import Cluster
from adlro.experiment.conditions import DEFAULT_CLUSTER, DEFAULT_JOBS

if TYPE_CHECKING:  # these import PyTorch
    from pandas import DataFrame

    from adlro.learn.train.config import TrainConfig
    from adlro.learn.train.run import Listener, TrainSetup
    from adlro.learn.worlds.envs import Worlds

EXAM_SEEDS: Final = 5_000
"""Worlds of the evaluation are drawn with seeds from here on; those of a training with the seed that was given."""

_FOLDER: Final = "training"

MEASURABLE: Final = 0.5
"""Percent of the mean completion time that an evaluation set can tell apart."""


@dataclass(frozen=True, slots=True, repr=False)
class Training:
    """What came of a training: its folder, its networks and how they did."""

    preset: str
    seed: int
    folder: Path
    best: Path  # the checkpoint that did best on the evaluation set
    last: Path
    steps: int
    episodes: int
    seconds: float
    best_jct_against_rule: float | None  # mean JCT of the best network over that of the rule eft-reserving
    evaluation: dict[str, Any] | None  # of the last network
    config: dict[str, Any]

    def policy(self, name: str | None = None) -> Policy:
        """The best network as a policy."""
        from adlro.experiment.policies import policy

        return policy(self.best, name=name)

    def log(self) -> list[dict[str, Any]]:
        """The records of the training, in order (docs/training.md)."""
        from adlro.learn.train.run import LOG

        return [json.loads(line) for line in (self.folder / LOG).read_text(encoding="utf-8").splitlines()]

    def to_pandas(self) -> "DataFrame":
        """The records of the training as a DataFrame with a row for each."""
        from adlro.experiment.frames import need

        return need("pandas", "to_pandas()").json_normalize(self.log())

    def gained(self) -> str:
        """What the training has gained, in words: against the rule that a new network of the preset adlro follows."""
        found = self.best_jct_against_rule
        if found is None:
            return "Nobody knows what was gained: the training ended before its first evaluation."
        change = 100 * (found - 1)
        start = ", which a network follows before it has learnt anything" if self.preset == "adlro" else ""
        rule = f"the rule eft-reserving{start}"
        if change < -MEASURABLE:
            return (
                f"What was gained: mean completion times are {-change:.1f} % shorter than with {rule}. The best "
                "network was chosen on the same evaluation set, so expect a little less on other jobs."
            )
        if change <= MEASURABLE:
            return (
                f"Nothing was gained that can be measured: mean completion times differ by less than {MEASURABLE:g} % "
                f"from {rule}. Train longer (--steps, --minutes), or use the policy adlro, which has been trained."
            )
        return (
            f"Nothing was gained: mean completion times are {change:.1f} % longer than with {rule}. Train longer "
            "(--steps, --minutes), or use the policy adlro, which has been trained."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values: an entry of what `adlro train --json` prints."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    def __repr__(self) -> str:
        found = self.best_jct_against_rule
        result = "not evaluated" if found is None else f"best mean JCT {100 * (found - 1):+.1f} % against eft-reserving"
        return (
            f"Training of {self.preset}, seed {self.seed}: {self.steps:,} steps, {self.episodes:,} episodes in "
            f"{self.seconds:.0f} s; {result}; the best network is {self.best}"
        )


def train(
    out: str | Path = _FOLDER,
    *,
    preset: str = "adlro",
    steps: int | None = None,
    episodes: int | None = None,
    minutes: float | None = None,
    quick: bool = False,
    seed: int = 0,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    resume: str | Path | None = None,
    start: str | Path | None = None,
    worlds: str | Path | None = None,
    cluster: Any = None,
    jobs: Any = None,
    device: str = "auto",
    threads: int | None = None,
    ray: str | None = None,
    progress: "Listener | None" = None,
) -> Training:
    """Train a network, and write its checkpoints, state and log into the folder `out` (docs/training.md).

    `preset` is the agent: adlro, or the paper's (paper). It ends after `steps`, `episodes` or `minutes`; `quick` is a
    small network in a few minutes. `config` is a TOML file with options and `settings` are single ones, as in
    {"worlds": 4}. `resume` goes on with the training of a folder. `start` is a checkpoint to begin with, or "adlro".

    Without `worlds` (an .npz file) and `cluster` it learns on clusters drawn at random. `cluster` and `jobs` are what
    `adlro.compare` takes. `device` is cpu, cuda or auto. With `ray` (an address, "auto" or "local") the environments
    run on the nodes of a Ray cluster, and the network learns here (docs/ray.md). `progress(record, files)` is told
    each record of the log, and which files were written.
    """
    options = {key: value for key, value in locals().items() if key not in ("progress", "ray")}
    return run_training(plan_training(**options), progress or (lambda _record, _files: None), ray)


@dataclass(frozen=True, slots=True)
class Planned:
    """A training that can begin: what it begins with, where, and on what."""

    setup: "TrainSetup"
    folder: Path
    device: Any
    threads: int
    resume: bool


def plan_training(
    out: str | Path,
    *,
    preset: str,
    steps: int | None,
    episodes: int | None,
    minutes: float | None,
    quick: bool,
    seed: int,
    config: str | Path | None,
    settings: Mapping[str, Any] | Sequence[str],
    resume: str | Path | None,
    start: str | Path | None,
    worlds: str | Path | None,
    cluster: Any,
    jobs: Any,
    device: str,
    threads: int | None,
    tell: Callable[[str], None] = lambda _line: None,
) -> Planned:
    """Check everything and draw the worlds; the arguments are those of `train`. `tell` is told what takes time."""
    need_pytorch()
    from adlro.learn.train.run import find_device, read_setup

    words = settings_of(settings)
    if resume is not None:
        refuse_with_resume(
            config=config, set=words, worlds=worlds, cluster=cluster, quick=quick, steps=steps, episodes=episodes,
            minutes=minutes, **{"from": start}, workload=jobs, preset=preset != "adlro", seed=seed,
            out=Path(out) != Path(_FOLDER),
        )  # fmt: skip
    refuse_places(worlds, cluster, jobs)
    where, count = find_device(device), threads or os.cpu_count() or 1
    if resume is not None:
        return Planned(read_setup(Path(resume)), Path(resume), where, count, True)
    refuse_trained(Path(out))
    setup = _setup_of(
        preset, None if config is None else Path(config), words, quick, steps, episodes, minutes, start, seed,
        None if worlds is None else Path(worlds), cluster, jobs, tell,
    )  # fmt: skip
    return Planned(setup, Path(out), where, count, False)


def need_pytorch() -> None:
    """Say how to get PyTorch if it is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError("training needs PyTorch: pip install 'adlro[learn]'.") from None


def settings_of(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Options as texts key=value."""
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return list(settings)


def refuse_with_resume(**given: Any) -> None:
    """Refuse what a training that goes on cannot be told any more."""
    for name in (name for name, value in given.items() if value):
        raise UsageError(
            f"--{name} cannot be used with --resume: a training continues with its own settings. Leave it out."
        )


def refuse_places(worlds: Any, cluster: Any, jobs: Any) -> None:
    """Refuse places to learn in that exclude each other."""
    if worlds is not None and cluster is not None:
        raise UsageError("--worlds and --cluster exclude each other. Use one.")
    if jobs is not None and cluster is None:
        raise UsageError("--workload needs --cluster, as in -c paper16.")


def refuse_trained(folder: Path) -> None:
    """Refuse a folder that holds a training already."""
    from adlro.learn.train.run import SETUP

    if (folder / SETUP).exists():
        raise UsageError(
            f"--out: '{folder}' contains a training. Choose another folder, continue with --resume, or remove it."
        )


def _setup_of(
    preset: str,
    file: Path | None,
    settings: Sequence[str],
    quick: bool,
    steps: int | None,
    episodes: int | None,
    minutes: float | None,
    start: str | Path | None,
    seed: int,
    worlds: Path | None,
    cluster: Any,
    jobs: Any,
    tell: Callable[[str], None],
) -> "TrainSetup":
    """What a new training begins with."""
    from adlro.decide.network.greedy_q import shipped_path
    from adlro.learn.train.run import NETWORK_SHAPE, config_of, read_start

    config = config_of(preset, file, settings, quick, steps, episodes, minutes)
    begun = None
    if start is not None:
        for name in {each.partition("=")[0].strip() for each in settings}.intersection(NETWORK_SHAPE):
            raise UsageError(f"--set {name} cannot be used with --from: the checkpoint sets it. Leave it out.")
        ours = str(start) in ("adlro", "adlro-preemptive")
        of = shipped_path() if ours else Path(start)
        begun, config = read_start(of, preset, config, stops=str(start) == "adlro-preemptive")
    place = None if cluster is None else str(cluster) if isinstance(cluster, Path) else cluster
    workload = DEFAULT_JOBS if jobs is None else str(jobs) if isinstance(jobs, Path) else jobs
    return replace(setup_in(preset, config, seed, worlds, place, workload, tell), start=begun)


def setup_in(
    preset: str,
    config: "TrainConfig",
    seed: int,
    worlds: Path | None,
    cluster: str | Cluster | None,
    workload: str | Any,
    tell: Callable[[str], None],
) -> "TrainSetup":
    """What a training begins with: worlds from a file, of one cluster, or drawn; and those of the evaluation."""
    from adlro.learn.train.presets import find_preset
    from adlro.learn.train.run import TrainSetup
    from adlro.learn.worlds.draw import Range, random_worlds, stack, worlds_of
    from adlro.learn.worlds.file import load_worlds

    any_cluster = find_preset(preset).any_cluster
    if worlds is None and seed < EXAM_SEEDS + 8 and seed + config.worlds > EXAM_SEEDS:
        raise UsageError(
            f"--seed {seed}: with {config.worlds} worlds it overlaps with the seeds of the evaluation, which begin at "
            f"{EXAM_SEEDS}. Choose another seed."
        )
    if worlds is not None and not any_cluster:
        learnt = load_worlds(worlds)
        return TrainSetup(preset, config, seed, learnt, learnt, None)
    exam_on = (cluster, workload) if cluster else (DEFAULT_CLUSTER, DEFAULT_JOBS)
    exam_count = min(8, config.exam_environments)
    fixed = stack(worlds_of(*exam_on, exam_count, EXAM_SEEDS))
    drawn: Worlds | None = None
    if any_cluster and not cluster:
        drawn = stack(random_worlds(min(48, config.exam_environments), EXAM_SEEDS))
    if worlds is not None:
        learnt = load_worlds(worlds)
    elif cluster is not None or not any_cluster:
        learnt = stack(worlds_of(*exam_on, min(config.worlds, 8), seed))
    else:
        tell(f"Generating {config.worlds} worlds …")
        of_paper = round(config.paper_share * config.worlds)
        others = random_worlds(config.worlds - of_paper, seed, Range(gpus=(8, config.most_gpus)))
        learnt = stack(worlds_of(DEFAULT_CLUSTER, DEFAULT_JOBS, of_paper, seed) + others)
    return TrainSetup(preset, config, seed, learnt, fixed, drawn)


def run_training(planned: Planned, listener: "Listener", ray: str | None = None) -> Training:
    """Train to the end, with environments here or on a Ray cluster; the listener is told each record."""
    from adlro.learn.train.checkpoint import BEST, LAST
    from adlro.learn.train.run import train_network

    setup, folder = planned.setup, planned.folder
    found = train_network(setup, folder, planned.device, planned.threads, listener, planned.resume, ray)
    return Training(
        preset=setup.preset,
        seed=setup.seed,
        folder=folder,
        best=folder / BEST,
        last=folder / LAST,
        steps=found.steps,
        episodes=found.episodes,
        seconds=found.seconds,
        best_jct_against_rule=found.best,
        evaluation=asdict(found.last_marks) if found.last_marks else None,
        config=setup.config.as_dict(),
    )
