"""The commands that make networks: train, export."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.lists import Json
from adlro.cli.options import spread_into_flags
from adlro.cli.output import print_json, progress, say, say_if_it_compiles, stderr
from adlro.core.errors import UsageError

if TYPE_CHECKING:  # these import PyTorch
    from adlro.experiment.training import Planned, Training
    from adlro.learn.train.loop import TrainProgress
    from adlro.learn.train.run import Listener

_LIMITS = "How long"
MACHINE = "The machine"


@dataclass(frozen=True, slots=True)
class TrainingLimits:
    """How long a training takes."""

    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Total environment steps.", rich_help_panel=_LIMITS),
    ] = None
    episodes: Annotated[
        int | None, typer.Option("--episodes", metavar="N", min=1, help="Total episodes.", rich_help_panel=_LIMITS)
    ] = None
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Minutes of training.", rich_help_panel=_LIMITS)
    ] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network in a few minutes, on a CPU.", rich_help_panel=_LIMITS)
    ] = False


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """Where a training gets its options, its first network and its worlds from."""

    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with options (docs/training.md).")
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one option (repeatable).")
    ] = None
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Continue the training in this folder.")
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Start from the network of a checkpoint; 'adlro' and 'adlro-preemptive' ship.",
        ),
    ] = None
    worlds: Annotated[
        Path | None, typer.Option("--worlds", metavar="FILE", help="Train in the worlds of this .npz file.")
    ] = None
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Train on this cluster only.")
    ] = None
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", metavar="NAME", help="Its workload or trace. Default: paper.")
    ] = None


@dataclass(frozen=True, slots=True)
class TrainingMachine:
    """Where a training runs."""

    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="cpu, cuda (also for ROCm), or auto: a GPU if there is one.",
            rich_help_panel=MACHINE,
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            max=1024,
            help="Threads for environments. Default: one per core.",
            rich_help_panel=MACHINE,
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="WHERE",
            help="Run the environments on a Ray cluster: HOST:PORT, auto or local (docs/ray.md).",
            rich_help_panel=MACHINE,
        ),
    ] = None


@spread_into_flags
def train(
    *,
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="Preset: adlro, or paper (the paper's agent).")
    ] = "adlro",
    limits: TrainingLimits,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for checkpoints, state and log.")
    ] = Path("training"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")] = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="K", min=1, help="Train K times, with this seed and the following ones.")
    ] = 1,
    source: TrainingInput,
    machine: TrainingMachine,
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
    from adlro.experiment.training import need_pytorch, refuse_trained, refuse_with_resume

    need_pytorch()
    if source.resume is not None:
        refuse_with_resume(seeds=seeds > 1)
    if onnx is not None:
        check_onnx(onnx, seeds)
    folders = {each: out if seeds == 1 else out / f"seed-{each}" for each in range(seed, seed + seeds)}
    for folder in folders.values() if source.resume is None else ():
        refuse_trained(folder)
    say_if_it_compiles()
    results = []
    for each, folder in folders.items():
        planned = plan_one(folder, preset, each, limits, source, machine)
        results.append(one_training(planned, tensorboard, machine.ray).as_dict())
    if onnx is not None:
        from adlro.learn.train.onnx import export_onnx

        export_onnx(Path(results[0]["best"]), onnx)
        say(f"Wrote {onnx}.")
    if as_json:
        print_json({"trainings": results})


def plan_one(
    folder: Path, preset: str, seed: int, limits: TrainingLimits, source: TrainingInput, machine: TrainingMachine
) -> "Planned":
    """Check the options of one training, and draw its worlds."""
    from adlro.experiment.training import plan_training

    return plan_training(
        folder, preset=preset, steps=limits.steps, episodes=limits.episodes, minutes=limits.minutes,
        quick=limits.quick, seed=seed, config=source.config, settings=source.settings or (), resume=source.resume,
        start=source.start, worlds=source.worlds, cluster=source.cluster, jobs=source.workload, device=machine.device,
        threads=machine.threads, tell=say,
    )  # fmt: skip


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint of adlro train; 'adlro', 'adlro-preemptive' and 'paper-dqn' ship.",
        ),
    ],
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write.")],
) -> None:
    """Write a trained network as ONNX: docs/training.md."""
    from adlro.experiment.training import need_pytorch

    need_pytorch()
    from adlro.decide.network.greedy_q import shipped_path
    from adlro.decide.network.paper_q import paper_shipped_path
    from adlro.learn.train.onnx import export_onnx

    check_onnx(onnx)
    shipped = {"adlro": shipped_path, "adlro-preemptive": shipped_path, "paper-dqn": paper_shipped_path}
    path = shipped[checkpoint]() if checkpoint in shipped else Path(checkpoint)
    export_onnx(path, onnx, stops=checkpoint == "adlro-preemptive")
    say(f"Wrote {onnx}.")


def check_onnx(path: Path, seeds: int = 1) -> None:
    """Refuse what cannot be written as ONNX, before the training begins."""
    if seeds > 1:
        raise UsageError(
            "--onnx works with one seed only. After training: adlro export DIR/best.safetensors --onnx FILE."
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--onnx: cannot write '{path}'; expected a file in a folder that exists.")


def one_training(planned: "Planned", tensorboard: bool, ray: str | None) -> "Training":
    """Train once, and show progress."""
    from adlro.experiment.training import run_training
    from adlro.learn.train.checkpoint import STATE

    setup, folder = planned.setup, planned.folder
    if planned.resume and not (folder / STATE).exists():
        say(f"{folder} contains no saved state: the training starts again from the beginning.")
    curves = Curves(folder) if tensorboard else nullcontext()
    with progress(f"Training {setup.preset}, seed {setup.seed}, on {planned.device}", 1000) as tell, curves as draw:
        training = run_training(planned, listener_of(tell, draw), ray)
    say(f"The best network is {training.best}. {training.gained()}")
    return training


def listener_of(tell: Any, draw: Any) -> "Listener":
    """The receiver of progress: a line for each evaluation, the bar on a terminal, TensorBoard."""
    from adlro.learn.train.run import progress_line

    on_terminal = stderr().is_terminal

    def listen(record: "TrainProgress", written: Sequence[str]) -> None:
        line = progress_line(record)
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

    def __call__(self, record: "TrainProgress") -> None:
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
