"""`adlro predict`: how long a job will run, and how well that can be known on a trace (docs/prediction.md)."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.lists import Json
from adlro.cli.options import ReadingOptions, spread_into_flags
from adlro.cli.output import print_json, progress, say, show_list, stdout
from adlro.cli.trace import check_picture, length
from adlro.core.errors import UsageError

if TYPE_CHECKING:
    from adlro.predict.evaluate import Prediction

_WIDTH = 720


@spread_into_flags
def predict(
    evaluate: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Predict every job of a trace from the jobs that had ended by then, and print the errors.",
        ),
    ] = None,
    history: Annotated[
        str | None, typer.Option(metavar="FILE", help="A trace of finished jobs to learn from, for example of sacct.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The job to predict, a TOML file with user, name, gpus, limit_s, …: docs/prediction.md.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="habits, memory, limit, last-two, running-median or lightgbm. Default: habits for a job, all of them "
            "to evaluate; separate several with commas.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot how many pairs a hypervector can hold, to a .svg or .png file."),
    ] = None,
    as_json: Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Predict how long a job will run, with an interval and similar past jobs; or evaluate predictions on a trace."""
    if plot is not None:
        check_picture(plot)
    if (evaluate is None) == (history is None) and not (evaluate is None and plot is not None):
        raise UsageError("expected --evaluate TRACE, or --history FILE with --job FILE, or --plot FILE.")
    if (history is None) != (job is None):
        raise UsageError(
            "--history FILE and --job FILE must be given together: predictions for the job are learnt from the history."
        )
    if evaluate is not None:
        evaluated(evaluate, method, as_json, reading)
    elif history is not None and job is not None:
        _predicted(history, job, method, as_json, reading)
    if plot is not None:
        _drawn(plot)


def evaluated(path: str, method: str | None, as_json: bool, reading: ReadingOptions) -> None:
    """Print how well the methods predict the jobs of a trace."""
    from adlro.experiment.traces import read_trace
    from adlro.predict import evaluate as prediction

    if method is None:
        methods = [one for one in prediction.METHODS if prediction.available(one)]
        for one in prediction.METHODS:
            if not prediction.available(one):
                say(f"{one.name} is left out: the package {one.package} is not installed.")
    else:
        methods = [prediction.find_method(name.strip()) for name in method.split(",")]
    jobs, report = read_trace(path, reading.options())
    with progress(f"Predicting {len(jobs):,} jobs", len(methods)) as tell:
        found = prediction.evaluate(jobs, methods, tell)
    if as_json:
        print_json(prediction.evaluation_json(found, report.file, len(jobs)))
        return
    stdout().print(f"{report.file}: {len(jobs):,} jobs, each predicted from those that had ended by then", markup=False)
    show_list(
        (
            ("method", "name"),
            ("median relative error", "right"),
            ("mean log error", "right"),
            ("in p10–p90", "right"),
            ("CPU s", "right"),
        ),
        [row(name, values) for name, values in found.items()],
    )


def row(name: str, values: dict[str, Any]) -> tuple[str, ...]:
    """A method's line."""
    covered = values["interval_coverage"]
    return (
        name,
        f"{values['median_relative_error']:.1%}",
        f"{values['mean_log_error']:.3f}",
        "—" if covered is None else f"{covered:.1%}",
        f"{values['seconds']:.2f}",
    )


def _predicted(history: str, job: str, method: str | None, as_json: bool, reading: ReadingOptions) -> None:
    """Print the prediction of one job."""
    from adlro.core.toml import read_text
    from adlro.experiment.traces import read_trace
    from adlro.predict import evaluate as prediction

    chosen = prediction.find_method(method or prediction.DEFAULT)
    asked = prediction.read_job(read_text(job, "job file"), job)
    jobs, _report = read_trace(history, reading.options())
    found = prediction.predict_one(jobs, asked, chosen)
    if as_json:
        print_json(asdict(found))
    else:
        show_prediction(found)


def show_prediction(found: "Prediction") -> None:
    """A prediction for people."""
    console = stdout()
    interval = ""
    if found.p10_s is not None and found.p90_s is not None:
        interval = f"; eight in ten such jobs run {length(found.p10_s)} to {length(found.p90_s)}"
    console.print(f"It will run about {length(found.p50_s)}{interval}.", markup=False)
    if not found.like:
        console.print("No job had ended by then: this is its limit, or a guess where it has none.", markup=False)
        return
    console.print(f"Method {found.method}, from {found.learnt:,} finished jobs. Most like it are:", markup=False)
    show_list(
        (
            ("user", "name"),
            ("name", "left"),
            ("GPUs", "right"),
            ("requested", "right"),
            ("ran", "right"),
            ("similarity", "right"),
        ),
        [
            (
                one.user,
                one.name,
                str(one.gpus),
                "—" if one.limit_s is None else length(one.limit_s),
                length(one.runtime_s),
                f"{one.similarity:.2f}",
            )
            for one in found.like
        ],
    )


def _drawn(path: Path) -> None:
    """Draw the accuracy of unbinding to a file."""
    from adlro.measure.drawing import png, svg
    from adlro.measure.plots_unbinding import unbinding_figure
    from adlro.predict.evaluate import unbinding_table

    figure = unbinding_figure(unbinding_table())
    path.write_bytes(png(figure, _WIDTH) if path.suffix == ".png" else svg(figure, _WIDTH).encode())
    say(f"{figure.caption} Wrote {path}.")
