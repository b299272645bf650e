"""Readings from live GPUs: the metrics with their units, one reading, and a table of readings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adlro.core.records import GpuModel


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity that a GPU reports, in the same unit for every source. A counter only grows, until it is reset."""

    name: str
    unit: str
    what: str
    counter: bool = False


METRICS: Final = (
    Metric("utilisation", "ratio", "share of the time in which the GPU was busy"),
    Metric("temperature", "C", "of the GPU: its die, or its hottest spot where that is all it tells"),
    Metric("temperature_limit", "C", "where the device itself begins to slow down"),
    Metric("memory_temperature", "C", "of the GPU's memory"),
    Metric("memory_used", "MiB", "GPU memory in use"),
    Metric("memory_free", "MiB", "GPU memory not in use"),
    Metric("memory_total", "MiB", "GPU memory there is"),
    Metric("memory_busy", "ratio", "share of the time in which the memory interface was busy"),
    Metric("memory_bandwidth", "GB/s", "data moved to and from GPU memory"),
    Metric("power", "W", "power drawn"),
    Metric("power_limit", "W", "power the device may draw"),
    Metric("sm_clock", "MHz", "clock of the compute units"),
    Metric("sm_clock_max", "MHz", "the highest that clock can be"),
    Metric("memory_clock", "MHz", "clock of the memory"),
    Metric("memory_clock_max", "MHz", "the highest that clock can be"),
    Metric("throttle_reasons", "bits", "why the clocks are lowered, as NVIDIA's bit mask"),
    Metric("throttled", "ratio", "share of the time in which heat or power lowered the clocks"),
    Metric("xid", "code", "NVIDIA's number of the last XID error, 0 for none"),
    Metric("ecc_corrected", "errors", "memory errors that were corrected", counter=True),
    Metric("ecc_uncorrected", "errors", "memory errors that were not corrected", counter=True),
)
METRIC: Final = {metric.name: index for index, metric in enumerate(METRICS)}
"""Index of a metric in tables, by its name."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU as a source knows it; `name` is the driver's name of the model. Unknown fields are empty."""

    node: str
    index: int
    uuid: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one GPU at one moment (seconds since 1970), and its source."""

    node: str
    gpu: int
    metric: str
    value: float
    unit: str
    time_s: float
    source: str
    uuid: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Readings as columns [R], and the GPUs that they are about.

    `gpu` and `metric` are indices into `gpus` and METRICS. If there are several readings of one metric, the one with
    the lower `rank` has the better source. `now_s` is the time of reading, on the clock of the readings. `lost` counts
    readings that arrived but were dropped, by reason.
    """

    source: str
    now_s: float
    gpus: tuple[GpuSeen, ...]
    gpu: NDArray[np.int32]
    metric: NDArray[np.int16]
    value: NDArray[np.float64]
    time_s: NDArray[np.float64]
    rank: NDArray[np.int16]
    lost: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Reading]:
        for g, m, value, time_s in zip(
            self.gpu.tolist(), self.metric.tolist(), self.value.tolist(), self.time_s.tolist(), strict=True
        ):
            gpu, metric = self.gpus[g], METRICS[m]
            yield Reading(gpu.node, gpu.index, metric.name, value, metric.unit, time_s, self.source, gpu.uuid, gpu.name)


TelemetryReader = Callable[[], Readings]
"""A function that reads a telemetry source once."""

ModelOf = Callable[[str], GpuModel | None]
"""A function from a GPU name, as drivers and people write it, to the catalogue's model; None if there is none."""

EARLIER: Final = "an earlier value of a series"
"""A reading was dropped because its series has a later one."""
