"""Evictions: pods end through the Eviction API, so that PodDisruptionBudgets and grace periods hold.

Two kinds of pods are evicted: those of a job that a policy stops, which go on when their owner creates them again, and
the bound pods of a gang whose rest finds no place.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, final

from adlro.backends.kubernetes.client import MERGE, Api, ApiError
from adlro.backends.kubernetes.gangs import Gang
from adlro.backends.kubernetes.pods import Pod
from adlro.backends.kubernetes.returning import can_return
from adlro.core.ports import NOT_RESTARTABLE
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

_RETRY_S: Final = 10.0
_TOO_MANY: Final = 429
"""The server's answer when a PodDisruptionBudget says no."""


@final
class Evicting:
    """Evicts pods."""

    def __init__(self, api: Api, timeout_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._timeout_s, self._monotonic = api, timeout_s, monotonic
        self._since: dict[str, float] = {}
        self._versions = ["v1", "v1beta1"]

    def end_partial(self, gangs: Iterable[Gang]) -> Iterator[str]:
        """Evict what is bound of gangs that have been bound in part for too long; a line for each pod.

        So no two gangs wait for each other for ever.
        """
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

    def stop(self, pods: Sequence[Pod], evicted: set[str]) -> str:
        """Evict the pods of one job, and add their uids to `evicted`; why nothing happened, in words.

        The server checks all evictions before the first. If a budget says no all the same after some pods were evicted,
        the rest is tried again by the order that is repeated while the job is stopping.
        """
        left = [pod for pod in pods if pod.uid not in evicted and not pod.is_leaving]
        if len(left) > 1:
            for pod in left:
                if said := self.evict(pod, dry=True):
                    return said
        for number, pod in enumerate(left):
            evicted.add(pod.uid)  # before the watch tells that it is gone
            if said := self.evict(pod):
                evicted.discard(pod.uid)
                return "" if number or len(left) < len(pods) else said
        return ""

    def nominate(self, pod: Pod, node: str) -> None:
        """Show on a waiting pod for which node others end. Only a remark: a failure is logged."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        try:
            body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
            self._api.ask("PATCH", path, None, body, MERGE)
        except ApiError as error:
            log.warning("a pod's nominated node could not be shown", extra={"pod": pod.key, "why": str(error)})

    def evict(self, pod: Pod, dry: bool = False) -> str:
        """Evict a pod; why not, in words. Its own grace period holds."""
        for version in list(self._versions):
            options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry else {})}
            body = {
                "apiVersion": f"policy/{version}", "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options,
            }  # fmt: skip
            try:
                self._api.ask("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", None, body)
            except ApiError as error:
                if error.status == 404 and "could not find the requested resource" in str(error):
                    continue  # this version of the Eviction API is not served
                if error.status in (400, 415) and version == self._versions[0] and len(self._versions) > 1:
                    self._versions.remove(version)  # a server before 1.22 knows v1beta1 only
                    continue
                if error.status == _TOO_MANY:
                    return f"a PodDisruptionBudget protects {pod.name}: {error}"
                return "" if error.status == 404 else str(error)
            return ""
        return "the server has no Eviction API"


def why_not_stopped(pods: Sequence[Pod], scheduler: str, takers: Sequence[Pod], most_waiting: int) -> str:
    """Why the pods of a running job may not be evicted; "" if they may.

    `takers` are the pods that the job makes room for; none: it is not known which. Then `most_waiting`, the highest
    priority of the pods that wait and may preempt, must be enough.
    """
    if any(pod.scheduler != scheduler for pod in pods):
        return "it is not ours to stop"
    if not all(pod.is_restartable for pod in pods):
        return NOT_RESTARTABLE
    alone = next((pod for pod in pods if not can_return(pod)), None)
    if alone is not None:
        return f"nothing would create its pod {alone.name} again: it has no owner such as a Job"
    meek = next((pod for pod in takers if not pod.can_preempt), None)
    if meek is not None:
        return f"{meek.name}, which it would make room for, has preemptionPolicy: Never"
    highest = max(pod.priority for pod in pods)
    theirs = min((pod.priority for pod in takers), default=most_waiting)
    if highest > theirs:
        who = takers[0].name if takers else "all that waits"
        return f"its priority ({highest}) is higher than that of {who}"
    return ""
