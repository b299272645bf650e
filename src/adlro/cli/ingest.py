"""The command that looks at a live cluster: `adlro ingest` (docs/telemetry.md)."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adlro import __version__
from adlro.cli.asking import printable
from adlro.cli.lists import Json
from adlro.cli.options import spread_into_flags
from adlro.cli.output import print_json, say, stdout
from adlro.core.errors import TelemetryError, UsageError
from adlro.measure.json_text import without_nan
from adlro.measure.text import plain_table

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType
    from rich.text import Text

    from adlro.core.records import GpuModel
    from adlro.core.telemetry import Readings, TelemetryReader
    from adlro.normalise.telemetry import Telemetry


MOST_LINES: Final = 200
"""Lines of a table; beyond that there is --json."""

_MISSING: Final = "–"
_HOT: Final = 0.9
"""Temperatures above this level are coloured."""


@dataclass(frozen=True, slots=True)
class TelemetryFlags:
    """The telemetry source to read; exactly one."""

    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", help="Read a Prometheus server, http://HOST:9090.")
    ] = None
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="URL", help="Read one exporter, http://HOST:9400/metrics.")
    ] = None
    nvml: Annotated[bool, typer.Option("--nvml", help="Read the NVIDIA GPUs of this machine.")] = False
    amdsmi: Annotated[bool, typer.Option("--amdsmi", help="Read the AMD GPUs of this machine.")] = False
    slurm: Annotated[
        Path | None,
        typer.Option(
            "--slurm", metavar="FILE", help="Read the output of 'scontrol show node' and print a cluster file."
        ),
    ] = None
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--types",
            metavar="TYPE=MODEL",
            help="With --slurm: the GPU model of a GRES type, as in turing=t4 (repeatable).",
        ),
    ] = None

    def chosen(self) -> str:
        """The name of the only source that is given."""
        sources = {
            "prometheus": self.prometheus, "metrics": self.metrics, "nvml": self.nvml or None,
            "amdsmi": self.amdsmi or None, "slurm": self.slurm,
        }  # fmt: skip
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise UsageError(
                "expected exactly one source: --prometheus URL, --metrics URL, --nvml, --amdsmi or --slurm FILE. "
                "See 'adlro ingest --help'."
            )
        return given[0]


@spread_into_flags
def ingest(
    *,
    source: TelemetryFlags,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", "-c", metavar="FILE", help="The GPUs to expect; GPUs that report nothing are shown as missing."
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="One line per GPU instead of one per node.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="S", min=0.1, help="Seconds between two readings.")] = 15.0,
    looks: Annotated[
        int, typer.Option("--looks", metavar="N", min=0, help="End --watch after N readings; 0: never.")
    ] = 0,
    oldest: Annotated[
        float, typer.Option("--max-age", metavar="S", min=1.0, help="Older values count as missing, in seconds.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, help="Time limit of one request, in seconds.")
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Show what the GPUs of a live cluster report, scaled to 0 to 1, and what is missing and why."""
    kind = source.chosen()
    if source.slurm is not None:
        show_slurm(source.slurm, as_json, source.types)
        return
    from adlro.ingest.telemetry.catalogue import open_telemetry

    look = open_telemetry(kind, source.prometheus or source.metrics or "", timeout, oldest)
    pictures = watched(look, cluster, oldest, every, looks if watch else 1)
    if as_json:
        print_pictures(pictures, watch)
    else:
        show_pictures(pictures, each, watch)


def print_pictures(pictures: Iterator[tuple["Telemetry", "Readings"]], watch: bool) -> None:
    """Print each picture as JSON."""
    for number, (picture, readings) in enumerate(pictures):
        found = as_dict(picture, readings)
        if watch:  # one line for each look, for programs that read line by line
            print(json.dumps(without_nan(found), ensure_ascii=False, allow_nan=False), flush=True)
        elif number == 0:
            print_json(found | {"version": __version__, "command": _command()})


def show_pictures(pictures: Iterator[tuple["Telemetry", "Readings"]], each: bool, watch: bool) -> None:
    """Print each picture as a table; on a terminal, --watch shows the latest one in place."""
    if watch and sys.stdout.isatty():
        from rich.live import Live

        with Live(console=stdout(), screen=True, auto_refresh=False) as live:
            for picture, readings in pictures:
                live.update(_shown(picture, readings, each), refresh=True)
    else:
        for picture, readings in pictures:
            stdout().print(_shown(picture, readings, each))


def watched(
    look: "TelemetryReader", cluster_name: str | None, oldest: float, every: float, looks: int
) -> Iterator[tuple["Telemetry", "Readings"]]:
    """One picture for each reading. A source that fails after the first reading leaves gaps, and is read again."""
    from adlro.catalogue.clusters import load_cluster
    from adlro.catalogue.gpus import find_gpu
    from adlro.ingest.telemetry.names import model_of
    from adlro.normalise.telemetry import Freshness, expected_gpus, normalise, with_our_names

    cluster = load_cluster(cluster_name) if cluster_name else None
    expected = expected_gpus(cluster)
    own = cluster.models if cluster else {}

    def model(name: str) -> "GpuModel | None":
        return model_of(name, lambda word: find_gpu(word, own))

    previous: Telemetry | None = None
    reported: set[str] = set()
    done = 0
    while True:
        try:
            readings = with_our_names(look(), expected)
        except TelemetryError as error:
            if previous is None:
                raise
            readings = _nothing(str(error))
        previous = normalise(readings, model, expected, previous, Freshness(oldest))
        report_unknown(previous, own, reported)
        yield previous, readings
        done += 1
        if done == looks:
            return
        time.sleep(every)


def _nothing(error: str) -> "Readings":
    """Empty readings of this moment, for a source that does not answer."""
    from adlro.ingest.telemetry.series import Collector

    empty = Collector("")
    empty.notes.append(f"no answer at this reading: {error}")
    return empty.readings(time.time())


def report_unknown(picture: "Telemetry", own: dict[str, "GpuModel"], reported: set[str]) -> None:
    """Say once for each name that the catalogue does not have it."""
    from adlro.catalogue.gpus import gpu_models
    from adlro.ingest.telemetry.names import explain_unknown

    for name in picture.unknown:
        if name not in reported:
            reported.add(name)
            say(f"adlro: {printable(explain_unknown(name, [*own, *gpu_models()]))}")


def _command() -> str:
    """The command line as typed, but without the credentials in its addresses."""
    import shlex

    from adlro.ingest.telemetry.fetch import shown as without_secrets

    return shlex.join(["adlro", *(without_secrets(word) if "://" in word else word for word in sys.argv[1:])])


# ---- for programs ------------------------------------------------------------------------------------------------


def as_dict(picture: "Telemetry", readings: "Readings") -> dict[str, Any]:
    """The picture as JSON; a gap is null in `levels` and has its reason in `gaps`."""
    from adlro.core.telemetry import METRICS
    from adlro.normalise.telemetry import GPU_FEATURES, REASONS

    gpus = []
    for row, gpu in enumerate(picture.gpus):
        model = picture.models[row]
        raw, level, gap = picture.raw[row].tolist(), picture.level[row].tolist(), picture.gap[row].tolist()
        gpus.append(
            {
                "node": gpu.node,
                "index": gpu.index,
                "uuid": gpu.uuid or None,
                "name": gpu.name or None,
                "model": model.name if model else None,
                "age_s": float(picture.age_s[row]),
                "values": {metric.name: value for metric, value in zip(METRICS, raw, strict=True) if value == value},
                "levels": dict(zip(GPU_FEATURES, level, strict=True)),
                "gaps": {name: REASONS[code] for name, code in zip(GPU_FEATURES, gap, strict=True) if code},
            }
        )
    return {
        "source": readings.source,
        "time_unix": readings.now_s,
        "gpus": gpus,
        "units": {metric.name: metric.unit for metric in METRICS},
        "gaps": picture.gaps(),
        "gaps_by_feature": picture.gaps_by_feature(),
        "readings": dict(picture.rows),
        "lost": {reason: count for reason, count in readings.lost.items() if count},
        "counter_resets": picture.resets,
        "above_range": picture.clipped,
        "unexpected_gpus": picture.unexpected,
        "unknown_names": list(picture.unknown),
        "notes": list(readings.notes),
    }


# ---- for people --------------------------------------------------------------------------------------------------


def _shown(picture: "Telemetry", readings: "Readings", each: bool) -> "RenderableType":
    """The table, and below it what is missing."""
    from rich.console import Group
    from rich.text import Text

    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(readings.now_s))
    title = Text(f"{len(picture.gpus):,} GPUs, {readings.source or 'no answer'}, {when}", "bold")
    return Group(title, _table(picture, each), *map(dim, _remarks(picture, readings)))


def dim(line: str) -> "Text":
    """A line of small print."""
    from rich.text import Text

    return Text(line, "dim")


def _table(picture: "Telemetry", each: bool) -> "RenderableType":
    """A line for each node (means, the hottest temperature, sums of watts), or for each GPU."""
    from rich.text import Text

    groups: dict[tuple[str, str], list[int]] = {}
    for row, gpu in enumerate(picture.gpus):
        model = picture.models[row]
        name = model.name if model else gpu.name or _MISSING
        groups.setdefault((f"{gpu.node}:{gpu.index}" if each else gpu.node, name), []).append(row)
    lines = plain_table()
    lines.add_column("node", no_wrap=True, style="cyan")
    lines.add_column("model", overflow="ellipsis")  # what gives way on a narrow terminal
    for heading in ("GPUs", "busy", "temp", "mem", "bw", "power", "SM/mem MHz", "slow", "errors"):
        lines.add_column(heading, justify="right", no_wrap=True)
    for (node, model_name), rows in list(groups.items())[:MOST_LINES]:
        lines.add_row(Text(printable(node)), Text(printable(model_name)), *_cells(picture, rows))
    if len(groups) > MOST_LINES:
        lines.add_row(Text(f"… and {len(groups) - MOST_LINES:,} more lines: --json has them all"))
    return lines


def _cells(picture: "Telemetry", rows: list[int]) -> list["RenderableType"]:
    """The figures of some GPUs in one line."""
    from rich.text import Text

    from adlro.core.telemetry import METRIC
    from adlro.normalise.telemetry import FEATURE, SILENT

    def level(feature: str) -> "np.ndarray[Any, Any]":
        return there(picture.level[rows, FEATURE[feature]])

    def raw(metric: str) -> "np.ndarray[Any, Any]":
        return there(picture.raw[rows, METRIC[metric]])

    def percent(values: "np.ndarray[Any, Any]") -> str:
        return f"{100 * values.mean():.0f} %" if len(values) else _MISSING

    def mean(values: "np.ndarray[Any, Any]") -> str:
        return f"{values.mean():.0f}" if len(values) else _MISSING

    silent = sum(bool((picture.gap[row] == SILENT).all()) for row in rows)
    hottest, hot = raw("temperature"), level("temperature")
    slowed, power = level("throttle"), raw("power")
    return [
        f"{len(rows) - silent}/{len(rows)}" if silent else str(len(rows)),
        percent(level("utilisation")),
        Text(f"{hottest.max():.0f} C" if len(hottest) else _MISSING, "red" if len(hot) and hot.max() >= _HOT else ""),
        percent(level("memory")),
        percent(level("bandwidth")),
        f"{power.sum():,.0f} W" if len(power) else _MISSING,
        f"{mean(raw('sm_clock'))}/{mean(raw('memory_clock'))}",
        f"{int((slowed > 0).sum())}" if len(slowed) else _MISSING,
        _errors(picture, rows),
    ]


def _errors(picture: "Telemetry", rows: list[int]) -> "Text":
    """XID codes and uncorrected memory errors; 0 if there are none, a dash if unknown."""
    from rich.text import Text

    from adlro.core.telemetry import METRIC

    xids = there(picture.raw[rows, METRIC["xid"]])
    ecc = there(picture.raw[rows, METRIC["ecc_uncorrected"]])
    words = [f"XID {int(code)}" for code in sorted(set(xids[xids > 0].tolist()))]
    if len(ecc) and ecc.sum() > 0:
        words.append(f"{int(ecc.sum())} ECC")
    if not words:
        return Text("0" if len(xids) or len(ecc) else _MISSING)
    return Text(", ".join(words), "red")


def there(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The values that are numbers."""
    return values[values == values]


def _remarks(picture: "Telemetry", readings: "Readings") -> Iterator[str]:
    """What is missing, what was lost, and what is unusual."""
    cells_of_all = picture.level.size
    gaps = picture.gaps()
    if gaps:
        total = sum(gaps.values())
        yield f"missing: {total:,} of {cells_of_all:,} values"
        by_reason: dict[str, list[str]] = {}
        for feature, reasons in picture.gaps_by_feature().items():
            for reason, count in reasons.items():
                by_reason.setdefault(reason, []).append(f"{feature} {count:,}")
        for reason, features in by_reason.items():
            yield f"  {reason}: {', '.join(features)}"
    aside = Counter(picture.rows) + Counter(readings.lost)
    del aside["used"]
    if aside:
        yield "set aside: " + ", ".join(f"{count:,} × {reason}" for reason, count in aside.items())
    if picture.resets:
        yield f"{picture.resets} counters were reset"
    if picture.clipped:
        yield f"{picture.clipped} values are above their range and count as 1"
    if picture.unexpected:
        yield f"{picture.unexpected} GPUs are not in the cluster file"
    yield from readings.notes


# ---- Slurm -------------------------------------------------------------------------------------------------------


def show_slurm(path: Path, as_json: bool, types: list[str] | None = None) -> None:
    """Print the nodes that Slurm reports as a cluster file."""
    from dataclasses import asdict

    from adlro.backends.slurm.backend import naming_of
    from adlro.backends.slurm.options import SlurmOptions
    from adlro.backends.slurm.parse import cluster_toml, node_records, read_nodes
    from adlro.cli.slurm import types_of

    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    found = read_nodes(text, str(path))
    nodes, problems = node_records(found, naming_of(SlurmOptions(types=types_of(types))).model_of)
    for problem in problems:
        say(f"adlro: {problem}")
    if as_json:
        print_json(
            {
                "slurm_nodes": [asdict(node) for node in found],
                "nodes": [asdict(node) for node in nodes],
                "problems": problems,
                "version": __version__,
                "command": _command(),
            }
        )
    else:
        print(cluster_toml(nodes), end="")
