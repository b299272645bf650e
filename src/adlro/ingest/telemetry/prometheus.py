"""A Prometheus server, asked by its HTTP API.

An instant query stamps every value with the moment of asking, and goes on giving the last value for minutes after a
series has stopped. So we ask for the last stretch of each series instead: that has the times at which it was scraped.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from adlro.core.errors import TelemetryError
from adlro.core.telemetry import Readings
from adlro.ingest.telemetry.fetch import USUAL_LIMITS, FetchLimits, check_url, get, shown
from adlro.ingest.telemetry.series import Collector, series_of, wanted_names

STRETCH_S: Final = 120.0
"""How far back a series is read: long enough to see that it has stopped, and how far a counter has come."""

SKEW_S: Final = 5.0
"""How far the server's clock may be from ours before we say so."""

BAD_SERIES: Final = "a series that is not as the API says"
BAD_SAMPLE: Final = "a sample that is no pair of a time and a number"


def scrape_prometheus(url: str, limits: FetchLimits = USUAL_LIMITS, stretch_s: float = STRETCH_S) -> Readings:
    """What a Prometheus server knows of GPUs: the last stretch of every series that we use."""
    base, collector = check_url(url), Collector(shown(url))
    found = ask(base, f'group by (__name__) ({{__name__=~"{wanted_names()}"}})', limits)
    here_s = time.time()
    names = {str(entry["metric"].get("__name__", "")) for entry in well_formed(found, collector)}
    now_s = server_time(base, limits)
    for name in sorted(names):
        if series_of(name) is not None:
            take_samples(ask(base, f"{name}[{max(round(stretch_s), 1)}s]", limits), collector)
    if abs(now_s - here_s) > SKEW_S + limits.seconds:
        collector.notes.append(
            f"the clock of {shown(url)} is {abs(now_s - here_s):.0f} s {'ahead' if now_s > here_s else 'behind'}; "
            "ages are counted by its clock."
        )
    return collector.readings(now_s)


def server_time(base: str, limits: FetchLimits) -> float:
    """The moment by the server's clock, by which it stamps what it scrapes."""
    answer = ask(base, "time()", limits)
    try:
        return float(answer["result"][1])
    except (KeyError, IndexError, TypeError, ValueError):
        raise TelemetryError(f"{shown(base)}: it does not answer as Prometheus does. Check the address.") from None


def ask(base: str, query: str, limits: FetchLimits) -> dict[str, Any]:
    """The data of the answer to one query."""
    url, _, own = base.partition("?")
    where = f"{url.rstrip('/')}/api/v1/query{'?' + own if own else ''}"
    # As a form: the list of names is longer than some servers take in an address.
    return parse_answer(get(where, "application/json", limits, urlencode({"query": query}).encode()), shown(base))


def parse_answer(body: bytes, where: str) -> dict[str, Any]:
    """The `data` of an answer of the API, if the query succeeded."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        looks = "a web page" if body.lstrip()[:1] == b"<" else f"{len(body):,} bytes of something else"
        raise TelemetryError(
            f"{where}: expected JSON from Prometheus' API, found {looks}. Check the address."
        ) from None
    if not isinstance(answer, dict) or answer.get("status") != "success" or not isinstance(answer.get("data"), dict):
        said = answer.get("error") if isinstance(answer, dict) else None
        what = f"the query failed: {' '.join(str(said).split())[:200]}" if said else "this is not an answer of its API"
        raise TelemetryError(f"{where}: {what}.")
    return answer["data"]


def take_samples(data: Mapping[str, Any], collector: Collector) -> None:
    """Put the samples of an answer (vector or matrix) into the collector; what is malformed is counted."""
    for entry in well_formed(data, collector):
        labels = entry["metric"]
        told = entry["values"] if "values" in entry else [entry.get("value")]
        if not isinstance(told, list):
            collector.lost[BAD_SERIES] += 1
            continue
        samples = []
        for pair in told:
            try:
                stamp, text = pair
                samples.append((float(stamp), float(text)))
            except (TypeError, ValueError, OverflowError):
                collector.lost[BAD_SAMPLE] += 1
        collector.add(labels.get("__name__", ""), labels, samples)


def well_formed(data: Mapping[str, Any], collector: Collector) -> Iterator[dict[str, Any]]:
    """The entries of an answer that have labels, all of them texts."""
    result = data.get("result")
    if not isinstance(result, list):
        collector.lost[BAD_SERIES] += 1
        return
    for entry in result:
        labels = entry.get("metric") if isinstance(entry, dict) else None
        if isinstance(labels, dict) and all(type(value) is str for value in labels.values()):
            yield entry
        else:
            collector.lost[BAD_SERIES] += 1
