"""Gangs: pods that start all or none. A PodGroup says how many belong together, or a label of ours does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.pods import GANG_SIZE, Pod


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of one gang that are there."""

    namespace: str
    name: str
    size: int
    pods: tuple[Pod, ...]

    @property
    def id(self) -> str:
        """Its id as a job."""
        return f"{self.namespace}.{self.name}"

    @property
    def waiting(self) -> tuple[Pod, ...]:
        """Those that somebody has to find nodes for."""
        return tuple(pod for pod in self.pods if pod.waits)

    @property
    def standing(self) -> tuple[Pod, ...]:
        """Those that take room."""
        return tuple(pod for pod in self.pods if pod.holds_room)

    @property
    def ended(self) -> tuple[Pod, ...]:
        """Those that succeeded or failed."""
        return tuple(pod for pod in self.pods if pod.phase in ("Succeeded", "Failed"))

    @property
    def incomplete(self) -> str:
        """Why it cannot start yet, in words; "" if all of it is there."""
        if not self.size:
            return f"the size of its gang '{self.name}' is not known: set {GANG_SIZE}, or create its PodGroup"
        there = len(self.pods)
        return f"its gang '{self.name}' has {there} of {self.size} pods" if there < self.size else ""


@final
class Groups:
    """The PodGroups of the cluster: by namespace and name, how many pods must start together."""

    def __init__(self) -> None:
        self._least: dict[tuple[str, str], int] = {}

    def put(self, raw: Raw) -> None:
        """Take in a PodGroup of either API."""
        spec = raw.get("spec") or {}
        gang = (spec.get("policy") or spec.get("schedulingPolicy") or {}).get("gang") or {}
        least = spec.get("minMember") or gang.get("minCount") or 0
        self._least[_key(raw)] = int(least)

    def drop(self, raw: Raw) -> None:
        """A PodGroup is gone."""
        self._least.pop(_key(raw), None)

    def least(self, namespace: str, name: str) -> int:
        """How many pods must start together; 0: it is not said."""
        return self._least.get((namespace, name), 0)


def _key(raw: Raw) -> tuple[str, str]:
    meta: Mapping[str, str] = raw["metadata"]
    return meta.get("namespace", "default"), meta["name"]


def gangs_of(pods: Iterable[Pod], groups: Groups, scheduler: str) -> dict[str, Gang]:
    """The gangs of pods that are ours to place, by id."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        if pod.gang and pod.scheduler == scheduler:
            found.setdefault((pod.namespace, pod.gang), []).append(pod)
    gangs = {}
    for (namespace, name), members in found.items():
        members.sort(key=lambda pod: (pod.created_s, pod.name))
        size = max(pod.gang_size for pod in members) or groups.least(namespace, name)
        gang = Gang(namespace, name, size, tuple(members))
        gangs[gang.id] = gang
    return gangs
