"""What exporters call things → what we call them: series to metrics, labels to nodes and GPUs."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from adlro.core.telemetry import EARLIER, METRIC, METRICS, GpuSeen, Readings

PERCENT: Final = 0.01
AMD: Final = "(?:amd_)?"
"""AMD's exporter can be told to begin its names with this."""

_MOST_GPUS: Final = 1024
"""GPUs of one node; a larger number in a label is no index."""


CLOCKS: Final = {"system": "sm_clock", "memory": "memory_clock"}


@dataclass(frozen=True, slots=True)
class Series:
    """Which metric a series is, what its values are multiplied by, and how good a source it is: 0 is best.

    `of_device`: it says the same for every part of a GPU that is split up.
    """

    metric: str
    scale: float = 1.0
    rank: int = 0
    of_device: bool = True


def _part(metric: str, scale: float = 1.0, rank: int = 0) -> Series:
    return Series(metric, scale, rank, of_device=False)


NVIDIA_SERIES: Final[Mapping[str, Series]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _part("utilisation", rank=1),
    "DCGM_FI_DEV_GPU_UTIL": _part("utilisation", PERCENT),
    "DCGM_FI_PROF_SM_ACTIVE": _part("utilisation", rank=2),
    "DCGM_FI_DEV_GPU_TEMP": Series("temperature"),
    "DCGM_FI_DEV_SLOWDOWN_TEMP": Series("temperature_limit"),
    "DCGM_FI_DEV_MEMORY_TEMP": Series("memory_temperature"),
    "DCGM_FI_DEV_FB_USED": _part("memory_used"),
    "DCGM_FI_DEV_FB_FREE": _part("memory_free"),
    "DCGM_FI_DEV_FB_TOTAL": _part("memory_total"),
    "DCGM_FI_PROF_DRAM_ACTIVE": _part("memory_busy"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": _part("memory_busy", PERCENT, rank=1),
    "DCGM_FI_DEV_POWER_USAGE": Series("power"),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": Series("power", rank=1),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Series("power_limit"),
    "DCGM_FI_DEV_SM_CLOCK": Series("sm_clock"),
    "DCGM_FI_DEV_MAX_SM_CLOCK": Series("sm_clock_max"),
    "DCGM_FI_DEV_MEM_CLOCK": Series("memory_clock"),
    "DCGM_FI_DEV_MAX_MEM_CLOCK": Series("memory_clock_max"),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Series("throttle_reasons"),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": Series("throttle_reasons", rank=1),
    "DCGM_FI_DEV_XID_ERRORS": Series("xid"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Series("ecc_corrected"),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": Series("ecc_corrected", rank=1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Series("ecc_uncorrected"),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": Series("ecc_uncorrected", rank=1),
}
"""The fields of NVIDIA's DCGM exporter that we use, with the units of its lists of counters."""

AMD_SERIES: Final[Mapping[str, Series]] = {
    "gpu_gfx_activity": _part("utilisation", PERCENT),
    "gpu_junction_temperature": Series("temperature"),
    "gpu_edge_temperature": Series("temperature", rank=1),
    "gpu_memory_temperature": Series("memory_temperature"),
    "gpu_used_vram": _part("memory_used"),
    "gpu_free_vram": _part("memory_free"),
    "gpu_total_vram": _part("memory_total"),
    "gpu_umc_activity": _part("memory_busy", PERCENT),
    "gpu_package_power": Series("power"),
    "gpu_average_package_power": Series("power", rank=1),
    "gpu_power_usage": Series("power", rank=2),
    "gpu_clock": Series("sm_clock"),
    "gpu_max_clock": Series("sm_clock_max"),
    "gpu_violation_gfx_clock_below_host_limit_total_percentage": Series("throttled", PERCENT),
    "gpu_violation_socket_thermal_residency_percentage": Series("throttled", PERCENT, rank=1),
    "gpu_violation_ppt_residency_percentage": Series("throttled", PERCENT, rank=2),
    "gpu_ecc_correct_total": Series("ecc_corrected"),
    "gpu_ecc_uncorrect_total": Series("ecc_uncorrected"),
}
"""The fields of AMD's device metrics exporter that we use, with the units of its list of metrics."""

NODE_LABELS: Final = ("Hostname", "hostname", "kubernetes_node", "node", "exported_instance", "instance")
INDEX_LABELS: Final = ("gpu", "gpu_id", "gpu_index", "device")
UUID_LABELS: Final = ("UUID", "gpu_uuid", "uuid", "serial_number")
NAME_LABELS: Final = ("modelName", "card_series", "model", "card_model")
"""Where exporters put them, the best first."""

_PORT: Final = re.compile(r"^(.*?):\d+$")
_DIGITS: Final = re.compile(r"^(?:nvidia|amdgpu|card|GPU)?(\d{1,4})$")


def wanted_names() -> str:
    """A regular expression for the names of all series that we use."""
    return "|".join([*NVIDIA_SERIES, *(f"{AMD}{name}" for name in AMD_SERIES)])


def series_of(name: str) -> Series | None:
    """What a series is, if it is one of ours."""
    return NVIDIA_SERIES.get(name) or AMD_SERIES.get(name.removeprefix("amd_"))


def first_label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these labels that says something."""
    for name in names:
        if value := labels.get(name):
            return value
    return ""


def node_of(labels: Mapping[str, str]) -> str:
    """The machine: its name without the exporter's port."""
    host = first_label(labels, NODE_LABELS)
    found = _PORT.match(host)
    return found[1] if found else host


def index_of(labels: Mapping[str, str]) -> int | None:
    """The index of the GPU on its node."""
    for name in INDEX_LABELS:
        found = _DIGITS.match(labels.get(name, ""))
        if found and int(found[1]) < _MOST_GPUS:
            return int(found[1])
    return None


@dataclass(slots=True)
class Collector:
    """Gathers samples into Readings: every sample becomes a row, or is counted as lost with its reason."""

    source: str
    default_node: str = ""
    gpus: dict[tuple[str, int], GpuSeen] = field(default_factory=dict)
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: list[tuple[int, int, float, float, int]] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, labels: Mapping[str, str], samples: list[tuple[float, float]]) -> None:
        """Take the samples (time, value) of one series, the oldest first; of a gauge only the last one is news."""
        series = series_of(name)
        if series is None:
            self.lost["not a series of ours"] += len(samples)
            return
        metric, rank = series.metric, series.rank
        if kind := labels.get("clock_type"):
            clock = CLOCKS.get(kind.lower().removeprefix("gpu_clock_type_"))
            if clock is None:
                self.lost["another clock"] += len(samples)
                return
            metric = f"{clock}_max" if metric.endswith("_max") else clock
            rank = min(int(index) if (index := labels.get("clock_index", "0")).isdecimal() else 0, 9999)
        if not series.of_device and (labels.get("GPU_I_ID") or labels.get("gpu_partition_id", "0") != "0"):
            self.lost["part of a GPU that is split up"] += len(samples)
            return
        place = self.place(labels)
        if place is None:
            self.lost["no node or GPU index in its labels"] += len(samples)
            return
        column, scale = METRIC[metric], series.scale
        if not METRICS[column].counter and len(samples) > 1:
            self.lost[EARLIER] += len(samples) - 1
            samples = samples[-1:]
        for time_s, value in samples:
            self.rows.append((place, column, value * scale, time_s, rank))

    def put(self, gpu: GpuSeen, metric: str, value: float, time_s: float) -> None:
        """Take one figure that is in our unit already."""
        place = self.places.setdefault((gpu.node, gpu.index), len(self.places))
        self.gpus.setdefault((gpu.node, gpu.index), gpu)
        self.rows.append((place, METRIC[metric], value, time_s, 0))

    def place(self, labels: Mapping[str, str]) -> int | None:
        """The row of the GPU that the labels speak of."""
        node, index = node_of(labels) or self.default_node, index_of(labels)
        if not node or index is None:
            return None
        key = (node, index)
        seen = self.gpus.get(key)
        if seen is None or not seen.name or not seen.uuid:
            name, uuid = first_label(labels, NAME_LABELS), first_label(labels, UUID_LABELS)
            if seen is None or (name and not seen.name) or (uuid and not seen.uuid):
                before = seen or GpuSeen(node, index)
                self.gpus[key] = GpuSeen(node, index, before.uuid or uuid, before.name or name)
        return self.places.setdefault(key, len(self.places))

    def readings(self, now_s: float) -> Readings:
        """The table of what was taken."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [(), (), (), (), ()]
        return Readings(
            source=self.source,
            now_s=now_s,
            gpus=tuple(self.gpus[key] for key in self.places),
            gpu=np.array(columns[0], np.int32),
            metric=np.array(columns[1], np.int16),
            value=np.array(columns[2], np.float64),
            time_s=np.array(columns[3], np.float64),
            rank=np.array(columns[4], np.int16),
            lost=dict(self.lost),
            notes=tuple(self.notes),
        )
