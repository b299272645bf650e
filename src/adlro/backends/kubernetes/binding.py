"""Bindings: the requests that give a pod its node, and what became of them."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.client import Api, ApiError, Raw
from adlro.backends.kubernetes.pods import DECISION, OUR_PREFIX
from adlro.backends.kubernetes.seating import Seat
from adlro.core.errors import BackendError

_AGAIN: Final = frozenset([429, 500, 502, 503, 504])
TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class BindOutcome:
    """What became of a binding: done, refused with a reason, or not known (the server is gone)."""

    seat: Seat
    done: bool
    said: str = ""
    is_known: bool = True


@final
class Binder:
    """Binds pods over a few connections at a time."""

    def __init__(self, api: Api, connections: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api, self._sleep = api, sleep
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="bind")

    def bind(self, seats: Sequence[Seat], dry: bool = False) -> list[BindOutcome]:
        """Bind pods; with `dry` the server only checks whether it would."""
        if len(seats) == 1:
            return [self._bind(seats[0], dry)]
        return list(self._pool.map(lambda seat: self._bind(seat, dry), seats))

    def close(self) -> None:
        """End the connections' threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _bind(self, seat: Seat, dry: bool) -> BindOutcome:
        pause = _FIRST_PAUSE_S
        for attempt in range(TRIES):
            try:
                path = f"/api/v1/namespaces/{seat.pod.namespace}/pods/{seat.pod.name}/binding"
                self._api.ask("POST", path, {"dryRun": "All"} if dry else None, binding_of(seat))
                return BindOutcome(seat, True)
            except ApiError as error:
                if error.status in _AGAIN and attempt < TRIES - 1:
                    self._sleep(min(max(pause, error.retry_s), _LONGEST_PAUSE_S))
                    pause *= 2
                    continue
                if error.status == 409 and not dry:
                    return self._look(seat, str(error))
                gone = "the pod is gone" if error.status == 404 else str(error)
                return BindOutcome(seat, False, gone)
            except BackendError as error:
                return self._look(seat, str(error)) if not dry else BindOutcome(seat, False, str(error), is_known=False)
        raise AssertionError("the last attempt always ends")

    def _look(self, seat: Seat, said: str) -> BindOutcome:
        """What a pod says itself, when the answer to its binding was lost or is a conflict."""
        try:
            pod = self._api.get(f"/api/v1/namespaces/{seat.pod.namespace}/pods/{seat.pod.name}")
        except ApiError as error:
            return BindOutcome(seat, False, "the pod is gone" if error.status == 404 else str(error))
        except BackendError as error:
            return BindOutcome(seat, False, str(error), is_known=False)
        node = (pod.get("spec") or {}).get("nodeName", "")
        notes = pod["metadata"].get("annotations") or {}
        if pod["metadata"].get("uid") != seat.pod.uid:
            return BindOutcome(seat, False, "the pod was replaced by another one of its name")
        if node == seat.node and notes.get(OUR_PREFIX + DECISION) == seat.notes.get(DECISION):
            return BindOutcome(seat, True)
        return BindOutcome(seat, False, f"another scheduler bound it to {node} first" if node else said)


def binding_of(seat: Seat) -> Raw:
    """The Binding of a pod: its annotations are merged into the pod together with the node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": seat.pod.name,
            "namespace": seat.pod.namespace,
            "uid": seat.pod.uid,
            "annotations": {OUR_PREFIX + name: value for name, value in seat.notes.items()},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": seat.node},
    }
