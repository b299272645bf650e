"""NVIDIA's GPUs in this machine, through its driver's library (NVML)."""

import socket
import time
from collections.abc import Callable
from typing import Any

from adlro.core.errors import TelemetryError
from adlro.core.telemetry import GpuSeen, Readings
from adlro.ingest.telemetry.series import Collector

MIB = 1 << 20


def load_nvml() -> Any:
    """NVIDIA's Python module, initialised; one clear error line where the module or the library is missing."""
    try:
        import pynvml
    except ImportError:
        raise TelemetryError("NVML: the package nvidia-ml-py is not installed: pip install 'adlro[nvml]'.") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise TelemetryError(
            f"NVML: no NVIDIA driver answers on this machine ({error}). Run this where 'nvidia-smi' works, "
            "or read an exporter with --metrics URL."
        ) from None
    return pynvml


def scrape_nvml(nvml: Any = None) -> Readings:
    """The current figures of this machine's GPUs; figures that a GPU does not have are counted."""
    library = load_nvml() if nvml is None else nvml
    try:
        return _scrape(library)
    except library.NVMLError as error:
        raise TelemetryError(f"NVML: the driver failed ({error}). 'nvidia-smi' may say more.") from None
    finally:
        library.nvmlShutdown()


def _scrape(nvml: Any) -> Readings:
    collector, node = Collector("nvml"), socket.gethostname().partition(".")[0]
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = GpuSeen(node, index, _text(nvml.nvmlDeviceGetUUID(device)), _text(nvml.nvmlDeviceGetName(device)))
        _read(nvml, device, gpu, collector)
    return collector.readings(time.time())


def _read(nvml: Any, device: Any, gpu: GpuSeen, collector: Collector) -> None:
    """Every figure of one GPU."""

    def ecc(kind: int) -> float:
        return nvml.nvmlDeviceGetTotalEccErrors(device, kind, nvml.NVML_VOLATILE_ECC)

    def reasons() -> float:
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return (newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(device)

    figures: dict[str, Callable[[], float]] = {
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
        "memory_busy": lambda: nvml.nvmlDeviceGetUtilizationRates(device).memory / 100,
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "temperature_limit": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
            device, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / MIB,
        "memory_total": lambda: nvml.nvmlDeviceGetMemoryInfo(device).total / MIB,
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "power_limit": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
        "sm_clock": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "sm_clock_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM),
        "memory_clock": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
        "memory_clock_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_MEM),
        "throttle_reasons": reasons,
        "ecc_corrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    }
    for metric, figure in figures.items():
        try:
            collector.put(gpu, metric, float(figure()), time.time())
        except nvml.NVMLError:  # most often: this model has no such figure
            collector.lost[f"NVML does not tell {metric}"] += 1


def _text(name: str | bytes) -> str:
    """The text; older versions of the module return bytes."""
    return name.decode(errors="replace") if isinstance(name, bytes) else name
