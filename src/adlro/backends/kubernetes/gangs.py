"""Gangs: pods that start all or none. A PodGroup says how many belong together, or a label of ours does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.pods import GANG_SIZE, Pod

_LOOSE: Final = -1
"""The size of a group whose pods start one by one."""


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
        return gang_id(self.pods[0])

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
        self._groups_in: dict[tuple[str, str], dict[str, int]] = {}  # by Workload: the sizes of its groups

    def put(self, raw: Raw) -> None:
        """Take in a PodGroup of either API."""
        spec = raw.get("spec") or {}
        gang = (spec.get("policy") or spec.get("schedulingPolicy") or {}).get("gang") or {}
        least = spec.get("minMember") or gang.get("minCount") or 0
        self._least[_key(raw)] = int(least) or (_LOOSE if _is_basic(spec.get("schedulingPolicy")) else 0)

    def drop(self, raw: Raw) -> None:
        """A PodGroup is gone."""
        self._least.pop(_key(raw), None)

    def put_workload(self, raw: Raw) -> None:
        """Take in a Workload, which has groups of its own."""
        self._groups_in[_key(raw)] = {
            str(each.get("name", "")): int(((each.get("policy") or {}).get("gang") or {}).get("minCount") or 0)
            or (_LOOSE if _is_basic(each.get("policy")) else 0)
            for each in (raw.get("spec") or {}).get("podGroups") or ()
        }

    def drop_workload(self, raw: Raw) -> None:
        """A Workload is gone."""
        self._groups_in.pop(_key(raw), None)

    def least(self, pod: Pod) -> int:
        """How many pods of its group must start together; 0: it is not said."""
        workload, group = pod.workload
        if workload:
            return self._groups_in.get((pod.namespace, workload), {}).get(group, 0)
        return self._least.get((pod.namespace, pod.gang), 0)

    def is_loose(self, pod: Pod) -> bool:
        """Whether the pods of its group start one by one (the policy "basic")."""
        return not pod.gang_size and self.least(pod) == _LOOSE


def _is_basic(policy: Raw | None) -> bool:
    return bool(policy) and "basic" in (policy or {})


def _key(raw: Raw) -> tuple[str, str]:
    meta: Mapping[str, str] = raw["metadata"]
    return meta.get("namespace", "default"), meta["name"]


def gang_id(pod: Pod) -> str:
    """The id of a pod's gang as a job."""
    return f"{pod.namespace}.{pod.gang}"


def gangs_of(pods: Iterable[Pod], groups: Groups, scheduler: str) -> dict[str, Gang]:
    """The gangs of pods that are ours to place, by id."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        if pod.gang and pod.scheduler == scheduler and not groups.is_loose(pod):
            found.setdefault((pod.namespace, pod.gang), []).append(pod)
    gangs = {}
    for (namespace, name), members in found.items():
        members.sort(key=lambda pod: (pod.created_s, pod.name))
        size = max(pod.gang_size for pod in members) or groups.least(members[0])
        gang = Gang(namespace, name, size, tuple(members))
        gangs[gang.id] = gang
    return gangs
