"""What a pod demands of its node besides room: selectors, affinity, tolerations; and whether a node meets it.

The words of a refusal are those of kube-scheduler where it has some: people search for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from adlro.backends.kubernetes.disks import TOO_MANY_VOLUMES

LabelSet = Mapping[str, str]

HOSTNAME: Final = "kubernetes.io/hostname"
REPELS: Final = frozenset(["NoSchedule", "NoExecute"])
"""Effects of a taint that keep a pod away; PreferNoSchedule is only a wish."""

OWN_TAINTS: Final = "node.kubernetes.io/"
"""Taints by which Kubernetes itself says that a node is not ready, unreachable, cordoned or under pressure."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label, or on the node's name (`is_field`)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    is_field: bool = False

    def holds(self, labels: LabelSet, name: str = "") -> bool:
        """Whether an object with these labels meets it. An operator that we do not know is never met."""
        found = name if self.is_field else labels.get(self.key)
        match self.operator:
            case "In":
                return found is not None and found in self.values
            case "NotIn":
                return found is None or found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return found is not None and self._compares(found)
        return False

    def _compares(self, found: str) -> bool:
        try:
            mine, theirs = int(self.values[0]), int(found)
        except (ValueError, IndexError):
            return False
        return theirs > mine if self.operator == "Gt" else theirs < mine


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that a pod tolerates."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: "Taint") -> bool:
        """Whether it tolerates this taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if not self.key and self.operator != "Exists":
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark of a node that keeps pods away."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value}}}"


Terms = tuple[tuple[Requirement, ...], ...]
"""Alternatives, each a list of conditions that must all hold."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What a pod demands of its node. Pods with equal demands share one object of this kind."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Terms, ...] = ()
    """Each of these must hold in one of its alternatives: the pod's own, and one for each volume."""
    tolerations: tuple[Toleration, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    """Extended resources besides GPUs, and how much of each: a node needs that much in all."""
    attaches: tuple[tuple[str, int], ...] = ()
    """Limits of volumes, and how many volumes of the pod count against each."""


def wants_of(spec: Mapping[str, Any], others: Mapping[str, int]) -> Wants:
    """The demands in the spec of a pod."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    found = Wants(
        tuple(sorted((spec.get("nodeSelector") or {}).items())),
        (terms_of(affinity.get("nodeSelectorTerms") or ()),) if affinity is not None else (),
        tuple(
            Toleration(
                each.get("key") or "",
                each.get("operator") or "Equal",
                each.get("value") or "",
                each.get("effect") or "",
            )
            for each in spec.get("tolerations") or ()
        ),
        tuple(sorted(others.items())),
    )
    return _shared(found)


@lru_cache(maxsize=4096)
def _shared(wants: Wants) -> Wants:
    """The first of equal demands: pods of one template share one object."""
    return wants


def terms_of(raw: Sequence[Mapping[str, Any]]) -> Terms:
    """The alternatives of a node selector. One without conditions matches nothing, and is left out."""
    found = []
    for term in raw:
        conditions = tuple(
            Requirement(each.get("key", ""), each.get("operator", ""), tuple(each.get("values") or ()), is_field)
            for kind, is_field in (("matchExpressions", False), ("matchFields", True))
            for each in term.get(kind) or ()
        )
        if conditions:
            found.append(conditions)
    return tuple(found)


def selector_of(raw: Mapping[str, Any] | None) -> tuple[Requirement, ...] | None:
    """A label selector as conditions; None matches nothing, () everything."""
    if raw is None:
        return None
    exact = tuple(Requirement(key, "In", (str(value),)) for key, value in (raw.get("matchLabels") or {}).items())
    more = tuple(
        Requirement(each.get("key", ""), each.get("operator", ""), tuple(each.get("values") or ()))
        for each in raw.get("matchExpressions") or ()
    )
    return exact + more


def matches(selector: tuple[Requirement, ...] | None, labels: LabelSet) -> bool:
    """Whether labels meet all conditions of a selector."""
    return selector is not None and all(each.holds(labels) for each in selector)


def refusal(
    wants: Wants,
    name: str,
    labels: LabelSet,
    taints: Sequence[Taint],
    allocatable: Mapping[str, int],
    most_attached: Callable[[str], int | None] = lambda limit: None,
) -> str:
    """Why a node does not meet the demands, in kube-scheduler's words; "" if it does."""
    if any(labels.get(key) != value for key, value in wants.selector):
        return "node(s) didn't match Pod's node affinity/selector"
    for terms in wants.affinity:
        if not any(all(each.holds(labels, name) for each in term) for term in terms):
            return "node(s) didn't match Pod's node affinity/selector"
    for taint in taints:
        if taint.effect in REPELS and not any(each.covers(taint) for each in wants.tolerations):
            return f"node(s) had untolerated taint {taint}"
    for resource, many in wants.others:
        if allocatable.get(resource, 0) < many:
            return f"Insufficient {resource}"
    for limit, many in wants.attaches:
        if (most := most_attached(limit)) is not None and many > most:
            return f"{TOO_MANY_VOLUMES} ({limit}: {most})"
    return ""
