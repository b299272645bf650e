"""An exporter's own page: the Prometheus text format, read by Prometheus' own library."""

import math
import time
from collections.abc import Iterable
from typing import Final, SupportsFloat
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from adlro.core.errors import TelemetryError
from adlro.core.telemetry import Readings
from adlro.ingest.telemetry.fetch import USUAL_LIMITS, FetchLimits, check_url, get, shown
from adlro.ingest.telemetry.series import Collector, series_of

ACCEPT: Final = "text/plain; version=0.0.4, text/plain; q=0.5"
BAD_LINE: Final = "a line that is not in the text format"


def scrape_exporter(url: str, limits: FetchLimits = USUAL_LIMITS) -> Readings:
    """What an exporter says just now."""
    address = check_url(url)
    body = get(address, ACCEPT, limits)
    now_s = time.time()
    text = body.decode("utf-8", errors="replace")
    if text.lstrip()[:1] == "<" or "\0" in text:
        raise TelemetryError(f"{shown(url)}: expected Prometheus' text format, found a web page or binary data.")
    return read_exposition(text, shown(url), now_s, urlsplit(address).hostname or "")


def read_exposition(text: str, source: str, now_s: float, default_node: str = "") -> Readings:
    """The readings in a page of an exporter. Good lines are kept whatever stands beside them, bad ones are counted.

    A sample without a time of its own was true when the page was made: now.
    """
    collector = Collector(source, default_node)
    lines = [line for line in text.split("\n") if line.strip()]
    samples = [line for line in lines if not line.lstrip().startswith("#")]
    ours = [line for line in samples if series_of(_name(line)) is not None]
    collector.lost["not a series of ours"] += len(samples) - len(ours)
    try:
        families = list(text_string_to_metric_families("\n".join(ours) + "\n"))
    except Exception:  # the library raises whatever its code happens to run into
        families = []
        for line in ours:
            families += _one_by_one(line, collector)
    _take(families, collector, now_s)
    return collector.readings(now_s)


def _one_by_one(line: str, collector: Collector) -> list[Metric]:
    """The sample of one line, or a bad line more."""
    try:
        return list(text_string_to_metric_families(line + "\n"))
    except Exception:
        collector.lost[BAD_LINE] += 1
        return []


def _take(families: Iterable[Metric], collector: Collector, now_s: float) -> None:
    for family in families:
        for sample in family.samples:
            time_s = now_s if sample.timestamp is None else as_float(sample.timestamp)
            collector.add(sample.name, sample.labels, [(time_s, as_float(sample.value))])


def as_float(number: SupportsFloat) -> float:
    """A number as a float; a whole number that is too large for one is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _name(line: str) -> str:
    """The name at the beginning of a sample's line."""
    return line.lstrip().partition("{")[0].partition(" ")[0].partition("\t")[0]
