"""Volumes of pods: some nodes only can use a volume, and a node can attach only so many."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, final

from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.disks import NO_DISK, TOO_MANY_VOLUMES, Attachment, attachment_of, by_limit
from adlro.backends.kubernetes.nodes import NodeFacts
from adlro.backends.kubernetes.pods import Pod
from adlro.backends.kubernetes.wants import Requirement, Terms, Wants, terms_of

ZONES: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


@final
class Volumes:
    """The claims and volumes of the cluster."""

    def __init__(self) -> None:
        self._volume_of: dict[tuple[str, str], str] = {}  # by namespace and claim; "": it is not bound
        self._alone: set[tuple[str, str]] = set()  # claims that only one pod may use at a time
        self._terms: dict[str, tuple[Terms, ...]] = {}  # by volume: where it can be used
        self._attached: dict[str, Attachment] = {}  # by volume: what a node has to attach for it
        self.version = 0
        self._has_limits = True

    def put_claim(self, raw: Raw) -> None:
        """Take in a claim."""
        key, spec = (raw["metadata"]["namespace"], raw["metadata"]["name"]), raw.get("spec") or {}
        self._volume_of[key] = spec.get("volumeName", "")
        (self._alone.add if "ReadWriteOncePod" in (spec.get("accessModes") or ()) else self._alone.discard)(key)
        self.version += 1

    def drop_claim(self, raw: Raw) -> None:
        """A claim is gone."""
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        self._volume_of.pop(key, None)
        self._alone.discard(key)
        self.version += 1

    def put_volume(self, raw: Raw) -> None:
        """Take in a volume: its node affinity, and the zone labels of older ones."""
        required = ((raw.get("spec") or {}).get("nodeAffinity") or {}).get("required")
        found = [terms_of(required.get("nodeSelectorTerms") or ())] if required is not None else []
        labels = raw["metadata"].get("labels") or {}
        for zone in ZONES:
            if zone in labels:
                found.append(((Requirement(zone, "In", tuple(labels[zone].split("__"))),),))
        name = raw["metadata"]["name"]
        self._terms[name] = tuple(found)
        if (attached := attachment_of(raw.get("spec") or {})) is not None:
            self._attached[name] = attached
        self.version += 1

    def drop_volume(self, raw: Raw) -> None:
        """A volume is gone."""
        self._terms.pop(raw["metadata"]["name"], None)
        self._attached.pop(raw["metadata"]["name"], None)
        self.version += 1

    def know_limits(self, is_so: bool) -> None:
        """Whether we may read how many volumes each node can attach."""
        if self._has_limits != is_so:
            self._has_limits = is_so
            self.version += 1

    def problem(self, pod: Pod) -> str:
        """Why the volumes of a pod keep it from being placed; "" if they do not."""
        for claim in pod.claims:
            volume = self._volume_of.get((pod.namespace, claim))
            if volume is None:
                return f"its claim '{claim}' does not exist, or ADLRO may not list persistentvolumeclaims"
            if not volume:
                return f"its claim '{claim}' is not bound to a volume yet; ADLRO does not bind volumes"
            if volume not in self._terms:
                return f"the volume '{volume}' of its claim does not exist, or ADLRO may not list persistentvolumes"
        if not self._has_limits and self.attached(pod):
            return "how many volumes a node can attach is not known: ADLRO may not list csinodes.storage.k8s.io"
        return ""

    def lonely(self, pod: Pod) -> frozenset[str]:
        """The claims of a pod that no other pod may use at the same time."""
        return frozenset(claim for claim in pod.claims if (pod.namespace, claim) in self._alone)

    def attached(self, pod: Pod) -> list[Attachment]:
        """What a node has to attach for a pod."""
        if not pod.claims:
            return [*pod.attaches]
        bound = (self._volume_of.get((pod.namespace, claim), "") for claim in pod.claims)
        return [*pod.attaches, *(self._attached[volume] for volume in bound if volume in self._attached)]

    def refusal(self, pod: Pod, node: NodeFacts, there: Iterable[Pod]) -> str:
        """Why a node cannot have the volumes of a pod beside those of the pods that are there; "" if it can."""
        if pod.disks and any(mine.clashes(theirs) for other in there for theirs in other.disks for mine in pod.disks):
            return NO_DISK
        if not (new := self.attached(pod)):
            return ""
        before = [each for other in there for each in self.attached(other)]
        mine, after = by_limit(set(new).difference(before)), by_limit([*before, *new])
        for limit in mine:
            if (most := node.most_attached(limit)) is not None and after[limit] > most:
                return f"{TOO_MANY_VOLUMES} ({limit}: {most})"
        return ""

    def added(self, pod: Pod) -> Wants:
        """What a pod and its volumes demand of a node."""
        more = tuple(
            terms
            for claim in pod.claims
            for terms in self._terms.get(self._volume_of.get((pod.namespace, claim), ""), ())
        )
        attaches = tuple(sorted(by_limit(self.attached(pod)).items()))
        return replace(pod.wants, affinity=pod.wants.affinity + more, attaches=attaches)
