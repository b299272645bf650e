"""Options that several commands share, each written once: records whose fields are flags."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from adlro.core.errors import UsageError

if TYPE_CHECKING:
    from adlro.experiment.public import TraceJobs
    from adlro.ingest.traces.tabulate import TraceOptions

_WORLD: Final = "Conditions"
TRACE: Final = "Traces (docs/traces.md)"


def spread_into_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one flag for each field of its record parameters."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    taken: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            shown.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        record = hints[name]
        kinds = get_type_hints(record, include_extras=True)
        for each in fields(record):
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            shown.append(
                inspect.Parameter(
                    each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=flag(each, kinds[each.name])
                )
            )
        taken[name] = (record, [each.name for each in fields(record)])

    @wraps(command)
    def gathered(**given: Any) -> None:
        for name, (record, flags) in taken.items():
            given[name] = record(**{flag: given.pop(flag) for flag in flags})
        command(**given)

    # Typer reads both.
    gathered.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return gathered


def flag(each: "Field[Any]", kind: Any) -> Any:
    """The type of a field with its flag; a field that says its flag itself stays as it is."""
    if "help" not in each.metadata:
        return kind
    names = [f"--{each.name.replace('_', '-')}"] if kind is bool else []
    return Annotated[kind, typer.Option(*names, rich_help_panel=_WORLD, **each.metadata)]


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How a trace is read, except for its estimates."""

    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of the trace (adlro trace formats). Default: recognised by content.",
            rich_help_panel=TRACE,
        ),
    ] = None
    families: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="How jobs get their family: uniform, hash:sia, hash:gavel, the name of one family, column:NAME, or a "
            "TOML file that maps the values of a column. Default: as in the trace, else uniform.",
            rich_help_panel=TRACE,
        ),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT=X",
            help="For a trace that counts processors or nodes: GPUs for each of them, as in processors=0.125.",
            rich_help_panel=TRACE,
        ),
    ] = None
    skip_bad_rows: Annotated[
        bool,
        typer.Option(
            "--skip-bad-rows", help="Skip bad rows, even if more than 5 % of the rows are bad.", rich_help_panel=TRACE
        ),
    ] = False
    scale_load: Annotated[
        float, typer.Option(metavar="X", help="Jobs arrive X times as fast.", rich_help_panel=TRACE)
    ] = 1.0
    window: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO",
            help="Only jobs submitted in these hours after the first job, or fractions of the span, as in 0.25:0.5.",
            rich_help_panel=TRACE,
        ),
    ] = None
    sample: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Keep only this fraction of the jobs, chosen at random (always the same ones).",
            rich_help_panel=TRACE,
        ),
    ] = 1.0

    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file that says what the columns of your own table mean; 'adlro trace map' proposes one.",
            rich_help_panel=TRACE,
        ),
    ] = None
    ran_on: Annotated[
        str | None,
        typer.Option(
            "--ran-on",
            metavar="WHERE",
            help="On which GPUs the jobs ran: a GPU model, a cluster (its nodes are known by their names), or a TOML "
            "file with a map of GPU types and nodes. Default: as the trace says, else on the reference model.",
            rich_help_panel=TRACE,
        ),
    ] = None

    def options(self, estimates: str | None = None) -> "TraceOptions":
        """The options as the readers' record."""
        from adlro.ingest.traces.tabulate import TraceOptions

        return TraceOptions(
            format=self.format_name, families=self.families, estimates=estimates,
            gpus_per_unit=gpus_per_unit(self.unit), skip_bad_rows=self.skip_bad_rows, scale_load=self.scale_load,
            window=self.window, sample=self.sample, columns=self.columns, ran_on=self.ran_on,
        )  # fmt: skip

    def jobs(self, workload: str) -> "TraceJobs":
        """The jobs of a workload or a trace, read with these options."""
        from adlro.experiment.public import TraceJobs

        return TraceJobs(workload, self.options())


Windows = Annotated[
    int | None,
    typer.Option(
        "--windows",
        metavar="N",
        min=1,
        max=100_000,
        help="Cut the trace into N windows with equal numbers of jobs, which take the place of seeds.",
        rich_help_panel=TRACE,
    ),
]


RAY: Final = "--ray"

Ray = Annotated[
    str | None,
    typer.Option(
        RAY,
        metavar="WHERE",
        help="Execute the runs on a Ray cluster: its address (HOST:PORT), auto (the cluster of this node), or local "
        "(start Ray on this machine). The results are the same: docs/ray.md.",
    ),
]


def gpus_per_unit(text: str | None) -> float:
    """The X of processors=X."""
    if text is None:
        return 1.0
    what, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if what not in ("processors", "nodes") or not value > 0:
        raise UsageError(
            f"--unit is {text!r}; expected processors=X or nodes=X, with X GPUs for each, as in processors=0.125."
        )
    return value
