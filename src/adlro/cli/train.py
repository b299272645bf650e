"""The commands that make networks: train, export."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.lists import Json
from adlro.cli.output import print_json, progress, say, say_if_it_compiles, stderr
from adlro.core.errors import UsageError

if TYPE_CHECKING:  # these import PyTorch
    from adlro.learn.train.config import Config
    from adlro.learn.train.loop import Progress, Start
    from adlro.learn.train.run import Listener, Setup
    from adlro.learn.worlds.envs import Worlds

LIMITS = "How long"
MACHINE = "The machine"


def train(
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="Preset: adlro, or paper (the paper's agent).")
    ] = "adlro",
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Total environment steps.", rich_help_panel=LIMITS),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", metavar="N", min=1, help="Total episodes.", rich_help_panel=LIMITS)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Minutes of training.", rich_help_panel=LIMITS)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network in a few minutes, on a CPU.", rich_help_panel=LIMITS)
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for checkpoints, state and log.")
    ] = Path("training"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")] = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="K", min=1, help="Train K times, with this seed and the following ones.")
    ] = 1,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with options (docs/training.md).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one option (repeatable)."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Continue the training in this folder.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="Start from the network of a checkpoint; 'adlro' is the one that ships."
        ),
    ] = None,
    worlds: Annotated[
        Path | None, typer.Option("--worlds", metavar="FILE", help="Train in the worlds of this .npz file.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Train on this cluster only.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", metavar="NAME", help="Its workload or trace. Default: paper.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME", help="cpu, cuda (also for ROCm), or auto: a GPU if there is one.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, max=1024, help="Threads for environments. Default: one per core.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write the curves for TensorBoard.")
    ] = False,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="Write the best network as ONNX at the end.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Train a network for the policy `adlro` or the paper's agent (docs/training.md).

    Progress is told against sjf-picky and eft-reserving on a fixed evaluation set. `adlro compare --policies
    DIR/best.safetensors` then compares the network with policies.
    """
    need_pytorch()
    from adlro.decide.network.greedy_q import shipped_path
    from adlro.learn.train.run import SHAPE, config_of, find_device, read_setup, read_start

    if resume is not None:
        given: dict[str, object] = {
            "--seeds": seeds > 1, "--config": config, "--set": settings, "--worlds": worlds, "--cluster": cluster,
            "--quick": quick, "--steps": steps, "--episodes": episodes, "--minutes": minutes, "--from": start,
            "--workload": workload, "--preset": preset != "adlro", "--seed": seed, "--out": out != Path("training"),
        }  # fmt: skip
        for flag in (flag for flag, value in given.items() if value):
            raise UsageError(
                f"{flag} cannot be used with --resume: a training continues with its own settings. Leave it out."
            )
    if onnx is not None:
        check_onnx(onnx, preset, seeds)
    if worlds is not None and cluster is not None:
        raise UsageError("--worlds and --cluster exclude each other. Use one.")
    if workload is not None and cluster is None:
        raise UsageError("--workload needs --cluster, as in -c paper16.")
    where, count = find_device(device), threads or os.cpu_count() or 1
    say_if_it_compiles()
    results = []
    if resume is not None:
        results.append(one_training(read_setup(resume), resume, where, count, tensorboard, True))
    else:
        chosen = config_of(preset, config, settings or (), quick, steps, episodes, minutes)
        begun: Start | None = None
        if start is not None:
            for name in {each.partition("=")[0].strip() for each in settings or ()}.intersection(SHAPE):
                raise UsageError(f"--set {name} cannot be used with --from: the checkpoint sets it. Leave it out.")
            begun, chosen = read_start(shipped_path() if start == "adlro" else Path(start), preset, chosen)
        for each, folder in new_folders(out, seed, seeds).items():
            setup = replace(setup_for(preset, chosen, each, worlds, cluster, workload or "paper"), start=begun)
            results.append(one_training(setup, folder, where, count, tensorboard, False))
    if onnx is not None:
        from adlro.learn.train.onnx import export_onnx

        export_onnx(Path(results[0]["best"]), onnx)
        say(f"Wrote {onnx}.")
    if as_json:
        print_json({"trainings": results})


def new_folders(out: Path, seed: int, seeds: int) -> dict[int, Path]:
    """The folder of the training on each seed; none of them holds one yet."""
    from adlro.learn.train.run import SETUP

    folders = {each: out if seeds == 1 else out / f"seed-{each}" for each in range(seed, seed + seeds)}
    for folder in folders.values():
        if (folder / SETUP).exists():
            raise UsageError(
                f"--out: '{folder}' contains a training. Choose another folder, continue with --resume, or remove it."
            )
    return folders


def export(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of adlro train; 'adlro' is the one that ships.")
    ],
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write.")],
) -> None:
    """Write a trained network as ONNX: docs/training.md."""
    need_pytorch()
    from adlro.decide.network.greedy_q import shipped_path
    from adlro.learn.train.onnx import export_onnx

    check_onnx(onnx)
    export_onnx(shipped_path() if checkpoint == "adlro" else Path(checkpoint), onnx)
    say(f"Wrote {onnx}.")


def check_onnx(path: Path, preset: str = "adlro", seeds: int = 1) -> None:
    """Refuse what cannot be written as ONNX, before anything takes its time."""
    if seeds > 1:
        raise UsageError(
            "--onnx works with one seed only. After training: adlro export DIR/best.safetensors --onnx FILE."
        )
    if preset != "adlro":
        raise UsageError(
            f"--onnx does not work with --preset {preset}: only networks of the preset adlro can be written as ONNX."
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--onnx: cannot write '{path}'; expected a file in a folder that exists.")


def need_pytorch() -> None:
    """Refuse to train without PyTorch, and say how to install it."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError("training needs PyTorch: pip install 'adlro[learn]'.") from None


def setup_for(
    preset: str, config: "Config", seed: int, worlds: Path | None, cluster: str | None, workload: str
) -> "Setup":
    """What a training begins with: worlds from a file, of one cluster, or drawn; and those of the evaluation."""
    from adlro.learn.train.presets import find_preset
    from adlro.learn.train.run import Setup
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
        return Setup(preset, config, seed, learnt, learnt, None)
    exam_on = (cluster, workload) if cluster else ("paper16", "paper")
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
        say(f"Generating {config.worlds} worlds …")
        of_paper = round(config.paper_share * config.worlds)
        others = random_worlds(config.worlds - of_paper, seed, Range(gpus=(8, config.most_gpus)))
        learnt = stack(worlds_of("paper16", "paper", of_paper, seed) + others)
    return Setup(preset, config, seed, learnt, fixed, drawn)


EXAM_SEEDS = 5_000
"""Worlds of the evaluation are drawn with seeds from here on; those of a training with the seed that was given."""


def one_training(
    setup: "Setup", folder: Path, device: Any, threads: int, tensorboard: bool, resume: bool
) -> dict[str, Any]:
    """Train once, tell how it goes, and return what came of it for JSON."""
    from adlro.learn.train.checkpoint import BEST, LAST, STATE
    from adlro.learn.train.run import run

    if resume and not (folder / STATE).exists():
        say(f"{folder} contains no saved state: the training starts again from the beginning.")
    curves = Curves(folder) if tensorboard else nullcontext()
    with progress(f"Training {setup.preset}, seed {setup.seed}, on {device}", 1000) as tell, curves as draw:
        training = run(setup, folder, device, threads, listener_of(tell, draw), resume)
    say(f"The best network is {folder / BEST}.")
    return {
        "preset": setup.preset,
        "seed": setup.seed,
        "folder": str(folder),
        "best": str(folder / BEST),
        "last": str(folder / LAST),
        "steps": training.steps,
        "episodes": training.episodes,
        "seconds": training.seconds,
        "best_jct_against_rule": training.best,
        "evaluation": asdict(training.last_marks) if training.last_marks else None,
        "config": setup.config.as_dict(),
    }


def listener_of(tell: Any, draw: Any) -> "Listener":
    """Who watches: a line for each evaluation, the bar on a terminal, TensorBoard."""
    from adlro.learn.train.run import in_words

    on_terminal = stderr().is_terminal

    def listen(record: "Progress", written: Sequence[str]) -> None:
        line = in_words(record)
        if on_terminal:
            tell(line, int(1000 * record.done))
        if record.marks is not None or not on_terminal:
            say(line + (f"; wrote {', '.join(written)}" if written else ""))
        if draw is not None:
            draw(record)

    return listen


class Curves(AbstractContextManager["Curves"]):
    """The curves of a training for TensorBoard. An open file, with one owner: the command."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("--tensorboard needs TensorBoard: pip install 'adlro[learn]'.") from None
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, record: "Progress") -> None:
        """Add a record."""
        values = asdict(record)
        marks = values.pop("marks")
        if marks is not None:
            values |= {"jct_against_rule": marks["against_rule"], "jct_against_picky": marks["against_picky"]}
        for name, value in values.items():
            if isinstance(value, float):
                self.writer.add_scalar(name, value, record.steps)

    def __exit__(self, *_: object) -> None:
        self.writer.close()
