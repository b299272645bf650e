"""AMD's GPUs in this machine, through its driver's library (AMD SMI)."""

import socket
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from adlro.core.errors import TelemetryError
from adlro.core.telemetry import GpuSeen, Readings
from adlro.ingest.telemetry.series import Collector


def load_amdsmi() -> Any:
    """AMD's Python module, initialised; one clear error line where the module or the library is missing."""
    try:
        with redirect_stdout(StringIO()):  # it prints a line about a missing library, then raises some other error
            import amdsmi
    except ImportError:
        raise TelemetryError(
            "AMD SMI: the package amdsmi is not installed: pip install 'adlro[amdsmi]', in the version of your ROCm."
        ) from None
    except Exception as error:
        raise TelemetryError(_no_driver(error)) from None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise TelemetryError(_no_driver(error)) from None
    return amdsmi


def _no_driver(error: Exception) -> str:
    what = " ".join(str(error).split()).strip("'")
    return (
        f"AMD SMI: no AMD driver or library answers on this machine ({what}). Run this where 'amd-smi' works, "
        "or read an exporter with --metrics URL."
    )


def scrape_amdsmi(amdsmi: Any = None) -> Readings:
    """The current figures of this machine's GPUs; figures that a GPU does not have are counted."""
    library = load_amdsmi() if amdsmi is None else amdsmi
    try:
        return _scrape(library)
    except library.AmdSmiException as error:
        what = " ".join(str(error).split())
        raise TelemetryError(f"AMD SMI: the driver failed ({what}). 'amd-smi' may say more.") from None
    finally:
        library.amdsmi_shut_down()


def _scrape(amdsmi: Any) -> Readings:
    collector, node = Collector("amdsmi"), socket.gethostname().partition(".")[0]
    for index, device in enumerate(amdsmi.amdsmi_get_processor_handles()):
        name = str(amdsmi.amdsmi_get_gpu_asic_info(device).get("market_name", ""))
        gpu = GpuSeen(node, index, str(amdsmi.amdsmi_get_gpu_device_uuid(device)), name)
        _read(amdsmi, device, gpu, collector)
    return collector.readings(time.time())


def _read(amdsmi: Any, device: Any, gpu: GpuSeen, collector: Collector) -> None:
    """Every figure of one GPU."""
    sensors, figure_of, clocks = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric, amdsmi.AmdSmiClkType

    def temperature(sensor: Any, what: Any = figure_of.CURRENT) -> Any:
        return amdsmi.amdsmi_get_temp_metric(device, sensor, what)

    def power() -> Any:
        told = amdsmi.amdsmi_get_power_info(device)
        current = told.get("current_socket_power")
        return told["average_socket_power"] if current in (None, "N/A", 0) else current

    figures: dict[str, Callable[[], Any]] = {
        "utilisation": lambda: amdsmi.amdsmi_get_gpu_activity(device)["gfx_activity"] / 100,
        "memory_busy": lambda: amdsmi.amdsmi_get_gpu_activity(device)["umc_activity"] / 100,
        "temperature": lambda: temperature(sensors.HOTSPOT),
        "temperature_limit": lambda: temperature(sensors.HOTSPOT, figure_of.CRITICAL),
        "memory_temperature": lambda: temperature(sensors.VRAM),
        "memory_used": lambda: amdsmi.amdsmi_get_gpu_vram_usage(device)["vram_used"],
        "memory_total": lambda: amdsmi.amdsmi_get_gpu_vram_usage(device)["vram_total"],
        "power": power,
        "sm_clock": lambda: amdsmi.amdsmi_get_clock_info(device, clocks.GFX)["clk"],
        "sm_clock_max": lambda: amdsmi.amdsmi_get_clock_info(device, clocks.GFX)["max_clk"],
        "memory_clock": lambda: amdsmi.amdsmi_get_clock_info(device, clocks.MEM)["clk"],
        "memory_clock_max": lambda: amdsmi.amdsmi_get_clock_info(device, clocks.MEM)["max_clk"],
        "ecc_corrected": lambda: amdsmi.amdsmi_get_gpu_total_ecc_count(device)["correctable_count"],
        "ecc_uncorrected": lambda: amdsmi.amdsmi_get_gpu_total_ecc_count(device)["uncorrectable_count"],
    }
    for metric, figure in figures.items():
        try:
            collector.put(gpu, metric, float(figure()), time.time())
        except (amdsmi.AmdSmiException, TypeError, ValueError, KeyError):  # "N/A" stands for what it does not have
            collector.lost[f"AMD SMI does not tell {metric}"] += 1
