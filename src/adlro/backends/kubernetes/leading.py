"""The label of the pod that leads, by which a Service sends requests to the leader and not to a standby."""

import logging
import os
from typing import Final, final

from adlro.backends.kubernetes.client import MERGE, Api, ApiError
from adlro.backends.kubernetes.pods import OUR_PREFIX
from adlro.core.errors import BackendError, ConfigError
from adlro.core.ports import Leadership
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

LEADER_LABEL: Final = OUR_PREFIX + "leader"
OWN_POD: Final = "ADLRO_POD"
"""Environment variable: NAMESPACE/NAME of the pod that we run in. Without it no pod is labelled."""


@final
class LabelledLead:
    """A lock whose holder labels its own pod. A label that cannot be written is no reason not to lead."""

    def __init__(self, lock: Leadership, api: Api, pod: str) -> None:
        namespace, _, name = pod.partition("/")
        if not namespace or not name or "/" in name:
            raise ConfigError(f"{OWN_POD} is {pod!r}; expected NAMESPACE/NAME of this pod.")
        self._lock, self._api = lock, api
        self._path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self._is_shown: bool | None = None  # None: what the pod shows is from before our start

    def take(self) -> bool:
        """Lead if nobody else does; whether we lead now."""
        leads = self._lock.take()
        self._show(leads)
        return leads

    def holds(self) -> bool:
        """Whether we still lead."""
        return self._lock.holds()

    def holder(self) -> str:
        """Who leads."""
        return self._lock.holder()

    def release(self) -> None:
        """Let the next one lead; before that, stop being found as the leader."""
        if self._is_shown:
            self._show(False)
        self._lock.release()
        self._api.close()

    def _show(self, leads: bool) -> None:
        """Set the label, or remove it."""
        if leads == self._is_shown:
            return
        try:
            labels = {"metadata": {"labels": {LEADER_LABEL: "true" if leads else None}}}
            self._api.ask("PATCH", self._path, None, labels, MERGE)
        except BackendError as error:
            log.warning("the label of the leader's pod could not be changed", extra={"why": str(error)})
            if not isinstance(error, ApiError):
                return  # no answer: try again
        self._is_shown = leads


def own_pod() -> str:
    """The pod that we run in, as the environment says; "" if it does not."""
    return os.environ.get(OWN_POD, "")
