"""The commands that look at recorded traces: `adlro trace describe`, `convert`, `map`, `formats` (docs/traces.md)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adlro.cli.lists import Json
from adlro.cli.options import ReadingOptions, spread_into_flags
from adlro.cli.output import print_json, say, show_list, stderr, stdout
from adlro.core.errors import UsageError
from adlro.core.units import DAY_S, HOUR_S
from adlro.measure.text import plain_table

if TYPE_CHECKING:
    from adlro.core.tables import Jobs
    from adlro.ingest.traces.tabulate import TraceReport

_BAR: Final = 40
_MOST_MODELS: Final = 8
SUFFIXES: Final = (".csv", ".parquet")
PICTURES: Final = (".svg", ".png")
_ALWAYS_SHOWN: Final = ("submit", "duration_s", "gpus")
"""What every job needs: shown even where no row has it."""

app = typer.Typer(
    help="Describe or convert a recorded trace. A trace can also be the --workload of other commands.",
    no_args_is_help=True,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A trace, plain or compressed (.xz, .gz, .zst).")]
EstimatesRule = Annotated[
    str | None,
    typer.Option(
        "--estimates",
        metavar="RULE",
        help="user (the requested time) or oracle (the truth). Default: user, if the trace has requested times.",
    ),
]


@app.command()
def formats(as_json: Json = False) -> None:
    """List the formats that are recognised."""
    from adlro.ingest.traces.catalogue import FORMATS

    if as_json:
        print_json([{"name": format_.name, "summary": format_.summary} for format_ in FORMATS])
    else:
        show_list((("format", "name"), ("what it is", "text")), [(one.name, one.summary) for one in FORMATS])


@app.command()
@spread_into_flags
def describe(
    file: File,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Also print the offered load on this cluster.")
    ] = None,
    estimates: EstimatesRule = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also plot the trace, to a .svg or .png file.")
    ] = None,
    as_json: Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show what is in a trace: jobs, arrivals, sizes, durations, users, load, estimates, and what was left out."""
    from adlro.catalogue.clusters import load_cluster
    from adlro.experiment.scenario import named_as_in, nowhere_allowed
    from adlro.experiment.traces import read_history
    from adlro.ingest.traces.describe import describe_trace as in_numbers

    options = reading.options(source_of(estimates))
    if plot is not None:
        check_picture(plot)
    where = load_cluster(cluster) if cluster else None
    jobs, _on_the_reference, report = read_history(file, options)
    gpus: Counter[str] = Counter()
    if where is not None:
        if lost := nowhere_allowed(where, jobs):
            report = replace(report, warnings=(*report.warnings, lost))
        jobs = named_as_in(where, jobs)
        for node in where.nodes:
            for group in node.gpus:
                gpus[group.model] += group.count
    found = in_numbers(jobs, report, gpus or None) | {"cluster": where.name if where else None}
    if as_json:
        print_json(found)
    else:
        show_trace(found, report)
    if plot is not None:
        draw_trace(found, jobs, plot)
        say(f"Wrote {plot}.")


@app.command()
@spread_into_flags
def convert(
    file: File,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write, .csv or .parquet.")],
    estimates: EstimatesRule = None,
    as_json: Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Write a trace as a table in ADLRO's own format, which is faster to read and contains families and estimates."""
    from adlro.experiment.traces import read_trace
    from adlro.ingest.traces.own import write_own

    where = Path(out)
    if where.suffix not in SUFFIXES:
        raise UsageError(f"cannot write '{out}'; expected a name that ends in .csv or .parquet.")
    if where.is_dir() or not where.absolute().parent.is_dir():
        raise UsageError(f"cannot write '{out}'; expected a file in a folder that exists.")
    if where.exists() and Path(file).exists() and where.samefile(file):
        raise UsageError(f"'{out}' is the trace itself; give the table another name.")
    options = reading.options(source_of(estimates))
    jobs, report = read_trace(file, options)
    write_own(jobs, out)
    if as_json:
        print_json(asdict(report) | {"written": out})
    else:
        for line in account(report):
            stdout().print(line, markup=False)
        say(f"Wrote {out}.")


@app.command("map")
def propose_map(
    file: File,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="FILE", help="Check this map instead of proposing one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Propose a map of the columns of your own table, and show its first rows as they are understood.

    The map goes to the standard output: adlro trace map jobs.csv > map.toml
    """
    from adlro.experiment.traces import columns_in
    from adlro.ingest.traces.column_map import read_column_map
    from adlro.ingest.traces.propose import as_toml, first_rows, propose
    from adlro.ingest.traces.source import open_trace

    source = open_trace(file)
    found = None if columns else propose(source)
    text = "" if found is None else as_toml(found, source.name)
    is_whole = found is None or not found.missing
    known = columns_in(columns) if columns else read_column_map(text, "the proposal") if is_whole else None
    rows = [] if known is None else list(first_rows(source, known))
    if as_json:
        proposal = None if found is None else found.as_dict() | {"missing": found.missing, "not_used": found.other}
        print_json({"map": proposal, "rows": rows})
        return
    print(text, end="")
    show_rows(rows)
    if found is not None and found.missing:
        say(
            f"adlro: '{file}': no column looks like {' or '.join(found.missing)}. Complete the map, then check it: "
            "adlro trace map FILE --columns MAP"
        )


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Say how the first rows of a table are understood, on the standard error: the map may go to a file."""
    from rich.text import Text

    keys = [
        key for key in (rows[0] if rows else ()) if key in _ALWAYS_SHOWN or any(row[key] is not None for row in rows)
    ]
    if keys:
        table = plain_table()
        for key in keys:
            table.add_column(key, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell_text(row[key])) for key in keys))
        say("\nThe first rows, as understood:")
        stderr().print(table)


def cell_text(value: float | str | None) -> str:
    """A cell for people."""
    from adlro.cli.asking import printable

    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else printable(value)


def source_of(estimates: str | None) -> str | None:
    """What a trace calls these estimates; noisy ones are drawn with a seed, and so belong to a run."""
    return {"user": "limit"}.get(estimates or "", estimates)


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written, before the work begins."""
    if path.suffix not in PICTURES:
        raise UsageError(f"--plot: cannot plot to '{path}'; expected a name that ends in .svg or .png.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: cannot write '{path}'; expected a file in a folder that exists.")


def draw_trace(found: dict[str, Any], jobs: "Jobs", path: Path) -> None:
    """Draw a trace in numbers to a file."""
    from adlro.ingest.traces.describe import durations_s, used_of_requested
    from adlro.measure.drawing import png, svg
    from adlro.measure.plots_trace import WIDTH, trace_figure

    figure = trace_figure(found, durations_s(jobs), used_of_requested(jobs))
    path.write_bytes(png(figure, WIDTH) if path.suffix == ".png" else svg(figure, WIDTH).encode())


# ---- for people --------------------------------------------------------------------------------------------------


def account(report: "TraceReport") -> list[str]:
    """What was read, left out and assumed, as lines."""
    lines = [f"{report.file}: {report.format}, {report.rows:,} rows, {report.kept:,} jobs kept"]
    for reason, count in report.dropped.items():
        lines.append(f"  {count:>9,}  dropped: {reason}")
    for reason, count in report.set_aside.items():
        lines.append(f"  {count:>9,}  set aside: {reason}")
    if report.not_asked_for:
        lines.append(f"  {report.not_asked_for:>9,}  outside the window or the sample")
    if report.out_of_order:
        lines.append(f"  {report.out_of_order:>9,}  out of order: sorted, and kept")
    unit = "" if report.unit == "GPU" else f"; one {report.unit}"
    lines.append(f"  families: {report.families}; estimates: {report.estimates}{unit}")
    lines += [f"  ran on: {report.ran_on}"] if report.ran_on else []
    lines += [f"  {note}" for note in (*report.notes, *report.warnings)]
    return lines


def show_trace(found: dict[str, Any], report: "TraceReport") -> None:
    """Print a trace in numbers and bars."""
    console = stdout()
    for line in account(report):
        console.print(line, markup=False)
    table = plain_table(header=False)
    table.add_column()
    table.add_column()
    for label, text in facts(found):
        table.add_row(label, text)
    console.print(table)
    arrivals = found["arrivals"]
    console.print(f"\nJobs an hour by hour of the day ({arrivals['clock']})", style="bold")
    _bars([f"{hour:02d}" for hour in range(24)], arrivals["by_hour"])
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    if arrivals["clock"] != "UTC":
        days = tuple(f"day {number}" for number in range(1, 8))  # type: ignore[assignment]
    console.print("\nJobs an hour by weekday", style="bold")
    _bars(days, arrivals["by_weekday"])
    console.print("\nJobs by number of GPUs", style="bold")
    _bars([row["gpus"] for row in found["sizes"]], [row["jobs"] for row in found["sizes"]])
    by_models = found["demand_by_models"]
    if len(by_models) > 1 or by_models[0]["models"] != "any":
        console.print("\nDemand by allowed GPU models", style="bold")
        for row in by_models[:_MOST_MODELS]:
            load = "" if row["load_per_gpu"] is None else f"   load {row['load_per_gpu']:.2f}"
            console.print(
                f"  {row['jobs']:>8,} jobs {row['gpu_hours']:>12,.0f} GPU-h{load}   {row['models']}", markup=False
            )


def facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The single numbers with their labels."""
    duration, users, asked = found["duration_s"], found["users"], found["estimates"]
    rows = [
        ("jobs", f"{found['jobs']:,}, {found['gpu_jobs']:,} with GPUs; {found['jobs_per_hour']:,.1f} an hour"),
        ("span", length(found["span_s"])),
        ("duration p50, p90, p99", ", ".join(length(duration[key]) for key in ("p50", "p90", "p99"))),
        ("GPU-hours", f"{found['gpu_hours']:,.0f}; {found['gpus_busy_on_average']:,.1f} GPUs busy on average"),
    ]
    if found["load_per_gpu"] is not None:
        rows.append((f"load per GPU of {found['cluster']}", f"{found['load_per_gpu']:.2f}"))
    if users["count"]:
        most = ", ".join(f"{row['user']} ({row['gpu_hours']:,.0f} GPU-h)" for row in users["most"][:3])
        rows.append(("users", f"{users['count']:,}; most by {most}"))
    if len(found["families"]) > 1:
        rows.append(("families", ", ".join(f"{name} {count:,}" for name, count in found["families"].items())))
    if asked:
        used = asked["used_of_requested"]
        rows.append(
            (
                "used of requested time",
                f"p10 {used['p10']:.0%}, p50 {used['p50']:.0%}, p90 {used['p90']:.0%}; "
                f"{asked['over_the_request']:.1%} ran longer ({asked['jobs']:,} jobs)",
            )
        )
    return rows


def _bars(labels: Sequence[str], values: Sequence[float]) -> None:
    """Print a bar for each value."""
    most = max(values, default=0.0) or 1.0
    width = max(len(label) for label in labels)
    for label, value in zip(labels, values, strict=True):
        number = f"{value:,d}" if isinstance(value, int) else f"{value:,.1f}"
        stdout().print(f"  {label:>{width}}  {'█' * round(_BAR * value / most):<{_BAR}} {number}", markup=False)


def length(seconds: float) -> str:
    """A duration in a suitable unit."""
    for unit, name in ((DAY_S, "d"), (HOUR_S, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.0f} s"
