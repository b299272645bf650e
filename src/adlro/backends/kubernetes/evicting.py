"""Evictions: pods end through the Eviction API, so that PodDisruptionBudgets hold."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

from adlro.backends.kubernetes.client import Api, ApiError
from adlro.backends.kubernetes.gangs import Gang
from adlro.backends.kubernetes.pods import Pod

_RETRY_S: Final = 10.0


@final
class Evicting:
    """Evicts the bound pods of gangs whose rest finds no place, so that no two gangs wait for each other for ever."""

    def __init__(self, api: Api, timeout_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._timeout_s, self._monotonic = api, timeout_s, monotonic
        self._since: dict[str, float] = {}
        self._versions = ["v1", "v1beta1"]

    def end_partial(self, gangs: Iterable[Gang]) -> Iterator[str]:
        """Evict what is bound of gangs that have been bound in part for too long; a line for each pod."""
        partial = {gang.id: gang for gang in gangs if gang.waiting and any(not p.is_leaving for p in gang.standing)}
        self._since = {id: at for id, at in self._since.items() if id in partial}
        for id, gang in partial.items():
            since = self._since.setdefault(id, self._monotonic())
            if self._monotonic() - since < self._timeout_s:
                continue
            self._since[id] = self._monotonic() - self._timeout_s + _RETRY_S
            for pod in gang.standing:
                said = self.evict(pod)
                yield f"pod {pod.key} of the gang '{gang.name}', which was bound in part, " + (
                    f"could not be evicted: {said}" if said else "was evicted"
                )

    def evict(self, pod: Pod) -> str:
        """Evict a pod; why not, in words. 429 means that a PodDisruptionBudget says no."""
        for version in list(self._versions):
            body = {
                "apiVersion": f"policy/{version}", "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            }  # fmt: skip
            try:
                self._api.ask("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", None, body)
            except ApiError as error:
                if error.status == 404 and "could not find the requested resource" in str(error):
                    continue  # this version of the Eviction API is not served
                if error.status in (400, 415) and version == self._versions[0] and len(self._versions) > 1:
                    self._versions.remove(version)  # a server before 1.22 knows v1beta1 only
                    continue
                return "" if error.status == 404 else str(error)
            return ""
        return "the server has no Eviction API"
