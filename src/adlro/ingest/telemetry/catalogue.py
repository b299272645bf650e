"""Every source of telemetry by name. A new one needs its file, a line here, and a section in docs/telemetry.md.

The name is the key in `[telemetry]` of the daemon's config. The files are imported when their source is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from adlro.core.telemetry import Readings
from adlro.ingest.telemetry.fetch import Limits, check_url

Look = Callable[[], Readings]
"""What to call for one look at a source."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source. `open` gets its address ("" if it needs none), limits, and how old a value may be, in seconds."""

    name: str
    sentence: str
    needs_address: bool
    open: Callable[[str, Limits, float], Look]


def open_prometheus(address: str, limits: Limits, max_age_s: float) -> Look:
    """A Prometheus server: the last stretch of each series."""
    from adlro.ingest.telemetry.prometheus import scrape_prometheus

    server = check_url(address)
    return lambda: scrape_prometheus(server, limits, stretch_s=2 * max_age_s)


def open_exporter(address: str, limits: Limits, max_age_s: float) -> Look:
    """The page of one exporter."""
    from adlro.ingest.telemetry.exposition import scrape_exporter

    page = check_url(address)
    return lambda: scrape_exporter(page, limits)


def open_nvml(address: str, limits: Limits, max_age_s: float) -> Look:
    """NVIDIA's driver in this machine."""
    from adlro.ingest.telemetry.nvml import scrape_nvml

    return scrape_nvml


def open_amdsmi(address: str, limits: Limits, max_age_s: float) -> Look:
    """AMD's driver in this machine."""
    from adlro.ingest.telemetry.amd import scrape_amdsmi

    return scrape_amdsmi


SOURCES: Final[Mapping[str, Source]] = {
    source.name: source
    for source in (
        Source("prometheus", "A Prometheus server, http://HOST:9090.", True, open_prometheus),
        Source("metrics", "One exporter, http://HOST:9400/metrics.", True, open_exporter),
        Source("nvml", "The NVIDIA GPUs of this machine.", False, open_nvml),
        Source("amdsmi", "The AMD GPUs of this machine.", False, open_amdsmi),
    )
}


def open_source(name: str, address: str, timeout_s: float, max_age_s: float) -> Look:
    """What to call for one look at the source of this name."""
    return SOURCES[name].open(address, Limits(seconds=timeout_s), max_age_s)
