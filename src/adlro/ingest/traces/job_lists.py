"""Job lists of papers, tied to measured families: Sia's (application, GPUs, batch) and Gavel's (type, steps)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from adlro.ingest.traces.cells import Cells, Layout, read_cells
from adlro.ingest.traces.rows import Labels, Rows
from adlro.ingest.traces.source import TraceFile
from adlro.ingest.traces.tabulate import Trace

SIA_SECONDS: Final = {
    ("bert", 6, 384): 731, ("bert", 8, 384): 580, ("bert", 12, 384): 366, ("bert", 16, 384): 290,
    ("cifar10", 4, 2048): 405, ("cifar10", 6, 2048): 376, ("cifar10", 8, 2048): 372, ("cifar10", 8, 4096): 256,
    ("cifar10", 10, 4096): 244, ("cifar10", 12, 4096): 238, ("cifar10", 16, 4096): 235,
    ("deepspeech2", 6, 320): 1541, ("deepspeech2", 8, 320): 1226, ("deepspeech2", 12, 640): 969,
    ("imagenet", 10, 1600): 24147, ("imagenet", 12, 3200): 19291, ("imagenet", 14, 3200): 17329,
    ("yolov3", 4, 64): 4754,
}  # fmt: skip
"""Seconds on V100s by application, GPUs and batch size, communication apart.

Iterations to the last epoch at that batch size, times the measured step of one V100 with its part of the batch (Sia's
validation and placements tables); two steps where that part does not fit. The workload sia-philly has the same values.
"""

GAVEL_COLUMNS: Final = (
    "job_type", "command", "directory", "steps_argument", "needs_data", "steps", "gpus", "weight", "slo", "arrival",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredFamilies:
    """What job lists need to know about the measured families; the caller that composes the stages passes it in."""

    family_of: Callable[[str], str | None]  # our name for a name in a measured table; None: there is none
    rate_of: Callable[[str], float | None]  # steps per second on one GPU of the reference model


def read_sia(cells: Cells, measured: MeasuredFamilies) -> Rows:
    """Sia's lists: durations from the measured tables, for the combinations that its lists hold."""
    application = cells.labels("application") or Labels(np.zeros(len(cells), np.int64), ("",))
    gpus, batch = cells.number("num_replicas"), cells.number("batch_size")
    names = [application.texts[code] for code in application.codes]
    keys = zip(names, np.nan_to_num(gpus).tolist(), np.nan_to_num(batch).tolist(), strict=True)
    seconds = np.array([SIA_SECONDS.get(key, np.nan) for key in keys], np.float64)  # 6.0 finds 6
    families = tuple(measured.family_of(text) or "" for text in application.texts)
    return Rows(
        line=cells.line,
        submit=cells.number("time"),
        duration=seconds,
        gpus=gpus,
        given={"checkpoint": np.zeros(len(cells))},
        name=application,
        family=Labels(application.codes, families),
        id=cells.columns["name"],
        bad={"application, GPUs and batch size not in the measured tables": np.isnan(seconds)},
    )


def is_gavel(head: bytes) -> bool:
    """Whether the first line has ten cells between tabs, the last five of them numbers."""
    cells = head.lstrip().split(b"\n")[0].strip(b"\r").split(b"\t")
    try:
        return len(cells) == len(GAVEL_COLUMNS) and all(abs(float(cell)) >= 0 for cell in cells[5:])
    except ValueError:
        return False


def read_gavel(source: TraceFile, measured: MeasuredFamilies) -> Trace:
    """Gavel's lists. The commands in them are ignored: they are foreign text."""
    broken: list[int] = []
    return Trace(_gavel_parts(source, measured, broken), broken, clock=lambda: None)


def _gavel_parts(source: TraceFile, measured: MeasuredFamilies, broken: list[int]) -> Iterator[Rows]:
    for cells in read_cells(source, Layout("\t", GAVEL_COLUMNS, rows_from=0)):
        broken += cells.broken
        kind = cells.labels("job_type") or Labels(np.zeros(len(cells), np.int64), ("",))
        families = [measured.family_of(text) for text in kind.texts]
        rates = [measured.rate_of(family) if family else None for family in families]
        rate = np.array([value or np.nan for value in rates], np.float64)[kind.codes]
        gpus, steps = cells.number("gpus"), cells.number("steps")
        with np.errstate(divide="ignore", invalid="ignore"):
            # The work is steps / rate, whatever the number of GPUs: how well they scale is in the speeds.
            duration = steps / rate / np.where(gpus > 0, gpus, 1)
        yield Rows(
            line=cells.line,
            submit=cells.number("arrival"),
            duration=duration,
            gpus=np.where(gpus == 0, -1.0, gpus),
            given={"checkpoint": np.zeros(len(cells))},
            name=kind,
            family=Labels(kind.codes, tuple(family or "" for family in families)),
            bad={"job type not in the measured tables": np.isnan(rate)},
        )
