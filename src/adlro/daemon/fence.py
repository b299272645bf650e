"""A back end that takes orders from the leader only."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from adlro.core.errors import BackendError
from adlro.core.ports import (
    Answer,
    Backend,
    KeepsOutput,
    Leadership,
    Order,
    Output,
    Snapshot,
    Submission,
    SubmitsAside,
)
from adlro.process.logs import LOGGER

if TYPE_CHECKING:  # it imports the compiler, which tests of the daemon do without
    pass


log = logging.getLogger(LOGGER)


@final
class Fenced:
    """A back end that one thread calls at a time, and that only the leader may change.

    Submissions that a user can delay (`SubmitsAside`) run beside other calls.
    """

    def __init__(self, backend: Backend, leadership: Leadership) -> None:
        self._backend, self._leadership = backend, leadership
        self._lock = threading.Lock()
        self.read_s = float("-inf")
        """When it was last read whole, by the monotonic clock."""
        self.trouble = ""
        self.latest: Snapshot | None = None

    @property
    def name(self) -> str:
        """The name of the back end."""
        return self._backend.name

    @property
    def can_stop(self) -> bool:
        """Whether orders to stop are carried out."""
        return self._backend.can_stop

    @property
    def places_gpus(self) -> bool:
        """Whether jobs get the GPUs that orders name."""
        return self._backend.places_gpus

    @property
    def can_resize(self) -> bool:
        """Whether jobs can start with another number of GPUs."""
        return self._backend.can_resize

    @property
    def can_annotate(self) -> bool:
        """Whether users see what `annotate` is given."""
        return self._backend.can_annotate

    @property
    def probe_s(self) -> float:
        """How often it may be asked whether anything has changed, if it says so."""
        return float(getattr(self._backend, "probe_s", float("inf")))

    def has_changed(self) -> bool | None:
        """Whether anything has changed since the latest reading; None if the back end cannot tell."""
        probe = getattr(self._backend, "has_changed", None)
        if probe is None or self.trouble:
            return None
        with self._lock:
            try:
                return bool(probe())
            except BackendError as error:
                log.debug("the cluster does not say whether it has changed", extra={"why": str(error)})
                return None
            except Exception:  # a fault of ours: it must not end the daemon, and the next turn reads everything
                log.exception("the back end failed when it was asked whether anything has changed")
                return None

    def read(self) -> Snapshot:
        """The cluster now."""
        with self._lock:
            try:
                snapshot = self._backend.read()
            except BackendError as error:
                self.trouble = str(error)
                raise
            self.trouble, self.read_s, self.latest = "", time.monotonic(), snapshot
            return snapshot

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out orders, as long as we lead."""
        with self._lock:
            self._check()
            return self._backend.act(orders)

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Hand jobs to the cluster's own scheduler, as long as we lead."""
        with self._lock:
            self._check()
            return self._backend.give_back(reasons)

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Show users a line about each job, as long as we lead."""
        with self._lock:
            self._check()
            self._backend.annotate(lines)

    def submit(self, submission: Submission) -> str:
        """Submit a job. Turns do not wait for it where its user could delay it."""
        with self._lock:
            self._check()
            if not isinstance(self._backend, SubmitsAside):
                return self._backend.submit(submission)
        return self._backend.submit_aside(submission, self._lock)

    def cancel(self, job: str) -> None:
        """End a job."""
        with self._lock:
            self._check()
            self._backend.cancel(job)

    def output(self, job: str) -> Output | None:
        """The end of a job's output, where the back end keeps it. It waits for no other call."""
        return self._backend.output(job) if isinstance(self._backend, KeepsOutput) else None

    def close(self) -> None:
        """Close the back end."""
        with self._lock:
            self._backend.close()

    def _check(self) -> None:
        if not self._leadership.holds():
            raise BackendError("this daemon is not the leader any more: another one decides for the cluster.")
