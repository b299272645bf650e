"""A pod of the API as the facts that we use: who, what it asks for, where it stands. The rest is forgotten."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.disks import Attachment, SoleDisk, attachment_of, sole_disks
from adlro.backends.kubernetes.quantities import CPU, PODS, RAM, QuantityError, asked_by_pod
from adlro.backends.kubernetes.wants import HOSTNAME, Requirement, Wants, selector_of, wants_of

OUR_PREFIX: Final = "adlro.io/"
"""The prefix of our labels and annotations."""

GANG: Final = OUR_PREFIX + "gang"
GANG_SIZE: Final = OUR_PREFIX + "gang-size"
GROUP_LABELS: Final = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
"""LabelSet of the coscheduling plugin that name a PodGroup."""
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
RESTARTABLE: Final = "restartable"
"""Our note by which a user marks a pod that goes on from a checkpoint."""

DECISION: Final = "decision"
GPUS: Final = "gpus"
"""Our notes on a pod that is bound: annotations, with the prefix `OUR_PREFIX`."""

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
MIG: Final = "nvidia.com/mig-"
NATIVE: Final = frozenset([CPU, RAM, PODS, "ephemeral-storage"])
BACKGROUND: Final = frozenset(["DaemonSet", "Node"])
"""Owners whose pods belong to a node: they take room there for good, and are not jobs."""

_SUFFIX: Final = re.compile(r"[-.](?:\d+|[a-z0-9]{5,10})$")


@dataclass(frozen=True, slots=True)
class Repels:
    """A required anti-affinity: no pod that it selects may come into the same domain."""

    topology: str
    selector: tuple[Requirement, ...] | None
    namespaces: frozenset[str]  # none: those of the pod that has it
    everywhere: bool = False  # a selector of namespaces, which we do not read: it may mean any of them


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Times are seconds since 1970."""

    uid: str
    namespace: str
    name: str
    version: str
    phase: str
    scheduler: str
    node: str
    created_s: float
    labels: Mapping[str, str]
    notes: Mapping[str, str]  # our annotations, without the prefix, and those that the config names
    asks: Mapping[str, int]
    wants: Wants
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # what Kubernetes says of it
    priority: int = 0
    can_preempt: bool = True
    limit_s: float | None = None
    owner: tuple[str, str] = ("", "")  # kind and name
    image: str = ""
    ports: tuple[tuple[str, str, int], ...] = ()  # host ports: address, protocol, port
    claims: tuple[str, ...] = ()
    attaches: tuple[Attachment, ...] = ()  # for volumes that it names itself
    disks: tuple[SoleDisk, ...] = ()
    repels: tuple[Repels, ...] = ()
    is_leaving: bool = False
    grace_s: float = 30.0
    index: str = ""  # its completion index, if its Job numbers its pods
    nominated: str = ""  # the node on which pods end for it
    gang: str = ""
    gang_size: int = 0  # as its own label says; 0: a PodGroup does
    workload: tuple[str, str] = ("", "")  # the Workload that has its group, and the group
    unsupported: str = ""  # what it asks for and we do not place, in words
    shown: str = ""  # the message of PodScheduled=False
    gpu_resource: str = ""  # the GPU resource that it asks for; "" if none
    gpus: int = 0
    is_restartable: bool = False  # its user says that it goes on from a checkpoint when it is created again

    @property
    def key(self) -> str:
        """Its id: a namespace has no dot, so the first dot ends it."""
        return f"{self.namespace}.{self.name}"

    @property
    def holds_room(self) -> bool:
        """Whether it takes room on its node."""
        return bool(self.node) and self.phase not in ("Succeeded", "Failed")

    @property
    def waits(self) -> bool:
        """Whether somebody has to find it a node."""
        return not self.node and self.phase == "Pending" and not self.is_leaving

    @property
    def job_name(self) -> str:
        """A name that recurring pods share: that of the owner without its number."""
        said = self.notes.get("name")
        if said:
            return said
        name = self.owner[1] or self.labels.get("job-name", "")
        return _SUFFIX.sub("", name) if name else _SUFFIX.sub("", self.name)


def pod_of(raw: Raw, keep: frozenset[str] = frozenset()) -> Pod:
    """The facts of a pod. `keep` names further annotations and labels to keep among the notes."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    unsupported = ""
    try:
        asks = asked_by_pod(spec)
    except QuantityError as error:
        asks, unsupported = {PODS: 1}, str(error)
    others = {name: many for name, many in asks.items() if name not in NATIVE and name not in GPU_RESOURCES}
    ended_s, exit_code, signal = _end(status)
    owner: Mapping[str, Any] = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), {})
    gang, size = _gang(labels, annotations, spec)
    condition: Mapping[str, Any] = next(
        (each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"), {}
    )
    waits_why = condition.get("message", "") if condition.get("status") == "False" else ""
    limit = annotations.get(OUR_PREFIX + "limit", "")
    limit_s = duration_s(limit) if limit else spec.get("activeDeadlineSeconds")
    notes = {
        name[len(OUR_PREFIX) :]: str(value)
        for name, value in (*labels.items(), *annotations.items())
        if name.startswith(OUR_PREFIX)
    }
    for name in keep:
        if found := annotations.get(name) or labels.get(name):
            notes[name] = str(found)
    containers = spec.get("containers") or ()
    volumes = spec.get("volumes") or ()
    gpu_resource = next((name for name in GPU_RESOURCES if asks.get(name)), "")
    return Pod(
        uid=meta.get("uid", ""),
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        version=str(meta.get("resourceVersion", "")),
        phase=status.get("phase", "Pending"),
        scheduler=spec.get("schedulerName") or "default-scheduler",
        node=spec.get("nodeName") or "",
        created_s=time_of(meta.get("creationTimestamp")) or 0.0,
        labels=labels,
        notes=notes,
        asks=asks,
        wants=wants_of(spec, others),
        started_s=_start(status),
        ended_s=ended_s,
        exit_code=exit_code,
        signal=signal,
        reason=status.get("reason", ""),
        priority=int(spec.get("priority") or 0),
        can_preempt=spec.get("preemptionPolicy") != "Never",
        limit_s=float(limit_s) if limit_s else None,
        owner=(owner.get("kind", ""), owner.get("name", "")),
        image=str(containers[0].get("image", "")) if containers else "",
        ports=_host_ports(containers),
        claims=_claims(spec, meta["name"]),
        attaches=tuple(found for each in volumes if (found := attachment_of(each)) is not None),
        disks=sole_disks(volumes),
        repels=_repels(spec),
        is_leaving="deletionTimestamp" in meta,
        grace_s=float(spec.get("terminationGracePeriodSeconds", 30) or 0),
        index=str(annotations.get(COMPLETION_INDEX) or labels.get(COMPLETION_INDEX) or ""),
        nominated=status.get("nominatedNodeName") or "",
        gang=gang,
        gang_size=size,
        workload=_workload(spec),
        unsupported=unsupported or _unsupported(spec, asks),
        shown=waits_why,
        gpu_resource=gpu_resource,
        gpus=asks.get(gpu_resource, 0),
        is_restartable=notes.get(RESTARTABLE) == "true",
    )  # fmt: skip


def bound(pod: Pod, node: str, notes: Mapping[str, str]) -> Pod:
    """The pod as it will be once the server has told of its binding."""
    return replace(pod, node=node, notes={**pod.notes, **notes}, shown="")


def time_of(text: str | None) -> float | None:
    """A time of the API in seconds since 1970; None for none."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def duration_s(text: str) -> float | None:
    """A length of time: "5400", "90m", "1h30m" or "2d" in seconds; None for anything else."""
    if text.replace(".", "", 1).isdigit():
        return float(text) or None
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if found is None or not text:
        return None
    days, hours, minutes, rest = (int(each or 0) for each in found.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + rest) or None


def _start(status: Mapping[str, Any]) -> float | None:
    """When its first container began to run; else when the kubelet took it."""
    began = [
        time_of(kind.get("startedAt"))
        for each in status.get("containerStatuses") or ()
        for kind in (each.get("state") or {}).values()
        if isinstance(kind, Mapping)
    ]
    found = [each for each in began if each is not None]
    if found:
        return min(found)
    return time_of(status.get("startTime")) if status.get("phase") in ("Running", "Succeeded", "Failed") else None


def _end(status: Mapping[str, Any]) -> tuple[float | None, int | None, int | None]:
    """When it ended, with which exit code and signal: those of the container that failed, else of the last."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None, None, None
    ends = [
        ended
        for each in status.get("containerStatuses") or ()
        if (ended := (each.get("state") or {}).get("terminated")) is not None
    ]
    if not ends:
        return None, None, None
    times = [at for each in ends if (at := time_of(each.get("finishedAt"))) is not None]
    worst = max(ends, key=lambda each: each.get("exitCode", 0) != 0)
    code = int(worst.get("exitCode", 0))
    signal = int(worst.get("signal") or (code - 128 if code > 128 else 0)) or None
    return (max(times) if times else None), code, signal


def _claims(spec: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The claims of its volumes. That of an ephemeral volume is named after the pod."""
    volumes = spec.get("volumes") or ()
    named = tuple(each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each)
    return named + tuple(f"{name}-{each['name']}" for each in volumes if "ephemeral" in each)


def _host_ports(containers: Any) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", int(port["hostPort"]))
        for each in containers
        for port in each.get("ports") or ()
        if port.get("hostPort")
    )


def _gang(labels: Mapping[str, str], annotations: Mapping[str, str], spec: Mapping[str, Any]) -> tuple[str, int]:
    """The gang that a pod belongs to, and its size if the pod says it."""
    if name := labels.get(GANG) or annotations.get(GANG):
        size = labels.get(GANG_SIZE) or annotations.get(GANG_SIZE) or ""
        return name, int(size) if size.isdigit() else 0
    for label in GROUP_LABELS:
        if name := labels.get(label):
            return name, 0
    if reference := spec.get("workloadRef"):
        words = (reference.get("name"), reference.get("podGroup"), reference.get("podGroupReplicaKey"))
        return "-".join(filter(None, words)), 0
    return str((spec.get("schedulingGroup") or {}).get("podGroupName") or ""), 0


def _workload(spec: Mapping[str, Any]) -> tuple[str, str]:
    reference = spec.get("workloadRef") or {}
    return str(reference.get("name") or ""), str(reference.get("podGroup") or "")


def _repels(spec: Mapping[str, Any]) -> tuple[Repels, ...]:
    terms = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return tuple(
        Repels(
            each.get("topologyKey", HOSTNAME),
            selector_of(each.get("labelSelector")),
            frozenset(each.get("namespaces") or ()),
            each.get("namespaceSelector") is not None,
        )
        for each in terms or ()
    )


def _unsupported(spec: Mapping[str, Any], asks: Mapping[str, int]) -> str:
    """What a pod asks for that we would place wrongly, in words; "" if nothing."""
    slices = [name for name in asks if name.startswith(MIG)]
    if slices:
        return f"it asks for {slices[0]}, and ADLRO does not place MIG slices"
    if sum(1 for name in GPU_RESOURCES if asks.get(name)) > 1:
        return "it asks for GPUs of two vendors"
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if (affinity.get("podAffinity") or {}).get(required):
        return "it has a required pod affinity, which ADLRO does not support"
    if any(each.get("whenUnsatisfiable") == "DoNotSchedule" for each in spec.get("topologySpreadConstraints") or ()):
        return "it has a topology spread constraint with DoNotSchedule, which ADLRO does not support"
    if spec.get("resourceClaims"):
        return "it has resource claims (dynamic resource allocation), which ADLRO does not support"
    if spec.get("schedulingGates"):
        gates = ", ".join(each.get("name", "") for each in spec["schedulingGates"])
        return f"it is held by scheduling gates: {gates}"
    return ""
