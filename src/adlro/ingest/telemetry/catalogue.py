"""Every source of telemetry by name. A new one needs its file, a line here, and a section in docs/telemetry.md.

The name is the key in `[telemetry]` of the daemon's config. The files are imported when their source is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from adlro.core.telemetry import TelemetryReader
from adlro.ingest.telemetry.fetch import FetchLimits, check_url


@dataclass(frozen=True, slots=True)
class TelemetrySource:
    """A source. `open` gets its address ("" if it needs none), limits, and how old a value may be, in seconds."""

    name: str
    sentence: str
    needs_address: bool
    open: Callable[[str, FetchLimits, float], TelemetryReader]


def open_prometheus(address: str, limits: FetchLimits, max_age_s: float) -> TelemetryReader:
    """A Prometheus server: the last stretch of each series."""
    from adlro.ingest.telemetry.prometheus import scrape_prometheus

    server = check_url(address)
    return lambda: scrape_prometheus(server, limits, stretch_s=2 * max_age_s)


def open_exporter(address: str, limits: FetchLimits, max_age_s: float) -> TelemetryReader:
    """The page of one exporter."""
    from adlro.ingest.telemetry.exposition import scrape_exporter

    page = check_url(address)
    return lambda: scrape_exporter(page, limits)


def open_nvml(address: str, limits: FetchLimits, max_age_s: float) -> TelemetryReader:
    """NVIDIA's driver in this machine."""
    from adlro.ingest.telemetry.nvml import scrape_nvml

    return scrape_nvml


def open_amdsmi(address: str, limits: FetchLimits, max_age_s: float) -> TelemetryReader:
    """AMD's driver in this machine."""
    from adlro.ingest.telemetry.amd import scrape_amdsmi

    return scrape_amdsmi


SOURCES: Final[Mapping[str, TelemetrySource]] = {
    source.name: source
    for source in (
        TelemetrySource("prometheus", "A Prometheus server, http://HOST:9090.", True, open_prometheus),
        TelemetrySource("metrics", "One exporter, http://HOST:9400/metrics.", True, open_exporter),
        TelemetrySource("nvml", "The NVIDIA GPUs of this machine.", False, open_nvml),
        TelemetrySource("amdsmi", "The AMD GPUs of this machine.", False, open_amdsmi),
    )
}


def open_telemetry(name: str, address: str, timeout_s: float, max_age_s: float) -> TelemetryReader:
    """What to call for one look at the source of this name."""
    return SOURCES[name].open(address, FetchLimits(seconds=timeout_s), max_age_s)
