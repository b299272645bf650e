"""Requests to the API, counted and timed by route: the API's part of the page that Prometheus reads.

It is written by hand, because the API's process does not import Prometheus' client. The routes are the templates of the
document (`/api/v1/jobs/{id}`), never paths: how many series there are does not depend on what is asked.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from re import Pattern
from typing import Final, final

from starlette.routing import BaseRoute, Route

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of the histogram; 50 ms is the goal for 99 of 100 answers."""

_OTHER: Final = "other"
DASHBOARD: Final = "dashboard"
"""Addresses that do not exist are one route, the dashboard's files are another."""

NAMED: Final = ("/api/", "/healthz", "/readyz", "/metrics")
"""Where the routes begin that are shown by their templates."""

_METHODS: Final = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])


@dataclass(slots=True)
class AnswerTimes:
    """Times of answers: how many in each bucket (the last is beyond all bounds), and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum_s: float = 0.0


@final
class Requests:
    """Counts requests. One thread notes, any thread asks for the page."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._patterns: list[tuple[Pattern[str], str]] = []
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[tuple[str, str], AnswerTimes] = {}

    def use_routes(self, routes: Sequence[BaseRoute]) -> None:
        """Tell apart the requests to these routes."""
        for route in routes:
            if not isinstance(route, Route):
                continue
            name = route.path if route.path.startswith(NAMED) else DASHBOARD
            if "{" in route.path:
                self._patterns.append((route.path_regex, name))
            else:
                self._exact[route.path] = name

    def route_of(self, path: str) -> str:
        """The route of a path."""
        found = self._exact.get(path)
        return found or next((name for pattern, name in self._patterns if pattern.match(path)), _OTHER)

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request that is answered."""
        route, method = self.route_of(path), method if method in _METHODS else _OTHER
        self._answers[route, method, status] += 1
        times = self._times.setdefault((route, method), AnswerTimes())
        times.counts[bisect_left(SECONDS, seconds)] += 1
        times.sum_s += seconds

    def page(self) -> str:
        """The metrics, in Prometheus' text format."""
        lines = [
            "# HELP adlro_api_requests_total Requests to the API, by route, method and status.",
            "# TYPE adlro_api_requests_total counter",
        ]
        for (route, method, status), count in sorted(self._answers.copy().items()):
            lines.append(
                f'adlro_api_requests_total{{route="{route}",method="{method}",status="{status}"}} {float(count)}'
            )
        lines += [
            "# HELP adlro_api_request_seconds Time from a request's headers to the beginning of its answer.",
            "# TYPE adlro_api_request_seconds histogram",
        ]
        for (route, method), times in sorted(self._times.copy().items()):
            labels = f'route="{route}",method="{method}"'
            sums = list(accumulate(times.counts))
            for bound, count in zip((*map(str, SECONDS), "+Inf"), sums, strict=True):
                lines.append(f'adlro_api_request_seconds_bucket{{{labels},le="{bound}"}} {float(count)}')
            lines.append(f"adlro_api_request_seconds_count{{{labels}}} {float(sums[-1])}")
            lines.append(f"adlro_api_request_seconds_sum{{{labels}}} {times.sum_s}")
        return "\n".join(lines) + "\n"
