"""What users see of a waiting pod: the condition PodScheduled=False, and FailedScheduling events."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, final

from adlro.backends.kubernetes.client import STRATEGIC, Api, ApiError
from adlro.backends.kubernetes.pods import Pod
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

REPEAT_S: Final = 300.0
"""An event with the same reason is repeated, as one more of its series, at most once in so long."""

BURST: Final = 50
PER_S: Final = 10.0
"""So many pods may be told at once, and so many a second."""

MOST_KNOWN: Final = 50_000
LONGEST_NOTE: Final = 1024


@final
class Telling:
    """Tells users about their waiting pods: each change of the reason once, and not too fast."""

    def __init__(self, api: Api, scheduler: str, host: str, clock: Callable[[], float] = time.time) -> None:
        self._api, self._scheduler, self._host, self._clock = api, scheduler, host, clock
        self._told: dict[str, tuple[str, str, float, int]] = {}  # by uid: the reason, the event's name, when, how often
        self._left, self._at = float(BURST), time.monotonic()
        self.dropped = 0

    def tell(self, pod: Pod, line: str) -> None:
        """Show why a pod waits. Raises BackendError when the server is gone."""
        what = reason_in(line)
        known = self._told.get(pod.uid)
        is_new = known is None or known[0] != what
        if pod.shown == line and not is_new:
            return
        if not self._may():
            self.dropped += 1
            return
        try:
            if pod.shown != line:
                self._condition(pod, line)
            if is_new or (known is not None and self._clock() - known[2] >= REPEAT_S):
                self._event(pod, line, what)
        except ApiError as error:
            if error.status not in (404, 409):  # the pod is gone, or was changed: nobody needs it any more
                log.warning("a pod's reason could not be shown", extra={"pod": pod.key, "why": str(error)})

    def _may(self) -> bool:
        now = time.monotonic()
        self._left, self._at = min(float(BURST), self._left + (now - self._at) * PER_S), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _condition(self, pod: Pod, line: str) -> None:
        now = stamp(self._clock())
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": line[:LONGEST_NOTE],
            "lastProbeTime": None, "lastTransitionTime": now,
        }  # fmt: skip
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        self._api.ask(
            "PATCH", path, None, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}, STRATEGIC
        )

    def _event(self, pod: Pod, line: str, what: str) -> None:
        """Write an event, or count the one that is there once more."""
        now = self._clock()
        known = self._told.get(pod.uid)
        folder = f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events"
        if known is not None and known[0] == what:
            series = {"series": {"count": known[3] + 1, "lastObservedTime": micro(now)}}
            try:
                self._api.ask("PATCH", f"{folder}/{known[1]}", None, series, "application/merge-patch+json")
                self._told[pod.uid] = what, known[1], now, known[3] + 1
                return
            except ApiError as error:
                if error.status != 404:  # events are deleted after an hour
                    raise
        digest = hashlib.sha1(f"{pod.uid}{what}{now}".encode(), usedforsecurity=False).hexdigest()[:16]
        name = f"{pod.name[:230]}.{digest}"
        event = {
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "eventTime": micro(now), "action": "Scheduling", "reason": "FailedScheduling", "type": "Warning",
            "note": line[:LONGEST_NOTE], "reportingController": self._scheduler, "reportingInstance": self._host[:128],
            "regarding": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
                "resourceVersion": pod.version,
            },
        }  # fmt: skip
        self._api.ask("POST", folder, None, event)
        if len(self._told) > MOST_KNOWN:
            self._told.clear()
        self._told[pod.uid] = what, name, now, 1

    def forget_all_but(self, there: Mapping[str, object]) -> None:
        """Forget pods that wait no more."""
        if len(self._told) > 2 * len(there) + 1000:
            self._told = {uid: told for uid, told in self._told.items() if uid in there}


def reason_in(line: str) -> str:
    """The reason in a line, without the predicted start, which changes all the time."""
    return line.partition("; start")[0]


def stamp(time_s: float) -> str:
    """A time as the API writes it, in whole seconds."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro(time_s: float) -> str:
    """A time in microseconds, always with six digits: the server refuses it without."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
