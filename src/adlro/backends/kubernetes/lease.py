"""Who leads, by a Lease of the cluster: one replica holds it and renews it, another takes it when it is not renewed.

The clocks of two machines are never compared. A Lease of another replica counts as expired when *we* have seen it
unchanged for its whole duration, by our own monotonic clock.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, final

from adlro.backends.kubernetes.client import Api, ApiError, Raw
from adlro.backends.kubernetes.telling import micro
from adlro.core.errors import BackendError
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

DURATION_S: Final = 15.0
RENEW_WITHIN_S: Final = 10.0
_ASK_S: Final = 1.0
"""A standby looks at the Lease of another one at most so often."""

_RETRY_S: Final = 2.0
"""As kube-scheduler: others wait for so long, we stop to act after so long without a renewal, and renew so often."""


@final
class LeaseLock:
    """A Lease. Its thread renews it while we lead."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str = "",
        duration_s: float = DURATION_S,
        within_s: float = RENEW_WITHIN_S,
        retry_s: float = _RETRY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._folder = api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace, self._name = namespace, name
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._duration_s, self._within_s, self._retry_s = duration_s, within_s, retry_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._renewed: float | None = None  # when the latest renewal that succeeded was sent
        self._version = ""
        self._transitions = 0
        self._seen: tuple[str, float] = ("", 0.0)  # version of another's Lease, and when we first saw it
        self._holder = ""
        self._asked = float("-inf")
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        """Lead if nobody else does, at once; whether we lead now."""
        if self.holds():
            return True
        if self._seen[0] and self._monotonic() - self._asked < _ASK_S:
            return False
        self._asked = self._monotonic()
        self._stop_renewing()
        with self._lock:
            began = self._monotonic()
            try:
                self._acquire()
            except ApiError as error:
                if error.status != 409:  # another one was faster
                    raise
                return False
            if not self._version:
                return False
            self._renewed = began
        self._ending.clear()
        self._thread = threading.Thread(target=self._renew_on, name="lease", daemon=True)
        self._thread.start()
        return True

    def holds(self) -> bool:
        """Whether we still lead: the latest renewal is young enough."""
        renewed = self._renewed
        return renewed is not None and self._monotonic() - renewed < self._within_s

    def holder(self) -> str:
        """Who leads, as the Lease says."""
        return self._holder or "another replica"

    def release(self) -> None:
        """Let the next one lead at once."""
        self._stop_renewing()
        with self._lock:
            had, self._renewed = self._renewed is not None, None
            if had and self._version:
                try:
                    self._write("PUT", f"{self._folder}/{self._name}", self._spec("", 1.0))
                except BackendError as error:
                    log.info("the lease could not be released; it expires", extra={"why": str(error)})
            self._version = ""
        self._api.close()

    def _stop_renewing(self) -> None:
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _acquire(self) -> None:
        """Write ourselves into the Lease if it is free; the version is empty if it is not."""
        self._version = ""
        try:
            lease = self._api.get(f"{self._folder}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._write("POST", self._folder, self._spec(self.identity, self._duration_s))
            return
        spec, version = lease.get("spec") or {}, str(lease["metadata"]["resourceVersion"])
        self._holder = str(spec.get("holderIdentity") or "")
        self._transitions = int(spec.get("leaseTransitions") or 0)
        if self._holder and self._holder != self.identity:
            if self._seen[0] != version:
                self._seen = version, self._monotonic()  # it is alive
            if self._monotonic() - self._seen[1] < float(spec.get("leaseDurationSeconds") or self._duration_s):
                return
        if self._holder != self.identity:
            self._transitions += 1
        self._seen, self._version = ("", 0.0), version
        try:
            self._write("PUT", f"{self._folder}/{self._name}", self._spec(self.identity, self._duration_s))
        except BaseException:
            self._version = ""
            raise
        self._holder = self.identity

    def _renew_on(self) -> None:
        """Renew until the end, or until we have lost it."""
        while not self._ending.wait(self._retry_s):
            began = self._monotonic()
            try:
                with self._lock:
                    if self._renewed is None:
                        return
                    self._write("PUT", f"{self._folder}/{self._name}", self._spec(self.identity, self._duration_s))
                    self._renewed = began
            except ApiError as error:
                log.warning("the lease could not be renewed", extra={"why": str(error)})
                if error.status == 409 and not self._is_still_ours():
                    self._renewed = None
                    return
            except BackendError as error:
                log.warning("the lease could not be renewed", extra={"why": str(error)})

    def _is_still_ours(self) -> bool:
        """After a conflict: whether the Lease still names us; its new version is remembered."""
        try:
            lease = self._api.get(f"{self._folder}/{self._name}")
        except BackendError:
            return True  # not known: time decides
        self._version = str(lease["metadata"]["resourceVersion"])
        return (lease.get("spec") or {}).get("holderIdentity") == self.identity

    def _spec(self, holder: str, duration_s: float) -> dict[str, Any]:
        now = micro(time.time())
        return {
            "holderIdentity": holder, "leaseDurationSeconds": max(1, round(duration_s)), "acquireTime": now,
            "renewTime": now, "leaseTransitions": self._transitions,
        }  # fmt: skip

    def _write(self, method: str, path: str, spec: Raw) -> None:
        meta: dict[str, str] = {"name": self._name, "namespace": self._namespace}
        if method == "PUT":
            meta["resourceVersion"] = self._version
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        found = self._api.ask(method, path, None, body)
        self._version = str(found["metadata"]["resourceVersion"])
