"""A node of the API as the facts that we use, and the model of its GPUs by its labels."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from adlro.backends.kubernetes.client import Raw
from adlro.backends.kubernetes.disks import most_attached
from adlro.backends.kubernetes.pods import GPU_RESOURCES, MIG
from adlro.backends.kubernetes.quantities import QuantityError, amounts
from adlro.backends.kubernetes.wants import OWN_TAINTS, REPELS, Taint
from adlro.core.records import GpuModel
from adlro.core.units import MIB_PER_GB

PRODUCT_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia.com/gpu": (
        "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
    ),
    "amd.com/gpu": (
        "amd.com/gpu.product-name", "amd.com/gpu.product", "beta.amd.com/gpu.product-name", "amd.com/gpu.device-id",
        "beta.amd.com/gpu.device-id", "amd.com/gpu.family", "beta.amd.com/gpu.family",
    ),
}  # fmt: skip
"""LabelSet that name the GPUs of a node, the best first: of NVIDIA's feature discovery and of AMD's labeller; then the
labels that GKE, Karpenter and EKS set by themselves."""

MEMORY_LABELS: Final = (
    "nvidia.com/gpu.memory", "amd.com/gpu.vram", "beta.amd.com/gpu.vram", "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
)  # fmt: skip
UNKNOWN_GPU: Final = "unknown"
NEAR: Final = 0.12
"""A model is taken for another one of a like name if their memories differ by less than this fraction."""

_SHARED: Final = re.compile(r"-(?:SHARED|MIG-.*)$", re.I)
_VRAM: Final = re.compile(r"(\d+)\s*(G|M)?i?B?", re.I)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: what pods may use of it, its labels and taints, and why it takes no pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]
    down: str = ""
    drivers: Mapping[str, int | None] = field(default_factory=dict)
    """What its CSINode says: by the limit of a driver, how many volumes it can attach."""

    def most_attached(self, limit: str) -> int | None:
        """How many volumes it can attach that count against a limit; None: there is none."""
        return most_attached(limit, self.allocatable, self.drivers)

    @property
    def gpu_resource(self) -> str:
        """The resource under which its GPUs are asked for; "" if it has none."""
        return next((name for name in GPU_RESOURCES if self.allocatable.get(name)), "")

    @property
    def gpus(self) -> int:
        """How many GPUs pods may ask for."""
        return self.allocatable.get(self.gpu_resource, 0)

    @property
    def slices(self) -> tuple[str, ...]:
        """The MIG resources that it offers."""
        return tuple(name for name in self.allocatable if name.startswith(MIG) and self.allocatable[name])

    @property
    def product(self) -> str:
        """What its labels call its GPUs; "" if they do not."""
        labels = PRODUCT_LABELS.get(self.gpu_resource, ())
        found = next((self.labels[name] for name in labels if self.labels.get(name)), "")
        return _SHARED.sub("", found)

    @property
    def gpu_memory_gb(self) -> float | None:
        """Memory of one GPU by its labels; None if they do not say."""
        for name in MEMORY_LABELS:
            found = _VRAM.match(self.labels.get(name, ""))
            if found:
                many, unit = int(found[1]), (found[2] or "M").upper()
                return float(many) if unit == "G" else many / MIB_PER_GB
        return None


def node_facts_of(raw: Raw) -> NodeFacts:
    """The facts of a node. A quantity that cannot be read counts as nothing."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    taints = tuple(
        Taint(each.get("key", ""), each.get("effect", ""), each.get("value") or "") for each in spec.get("taints") or ()
    )
    try:
        allocatable = amounts(status.get("allocatable") or status.get("capacity"))
    except QuantityError:
        allocatable = {}
    return NodeFacts(
        meta["name"],
        meta.get("labels") or {},
        tuple(each for each in taints if not each.key.startswith(OWN_TAINTS)),
        allocatable,
        _down(spec, status, taints),
    )


def _down(spec: Raw, status: Raw, taints: Iterable[Taint]) -> str:
    """Why a node takes no pods; "" if it does."""
    if spec.get("unschedulable"):
        return "cordoned"
    ready = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        return f"not ready: {ready.get('reason') or ready.get('message') or 'no reason given'}"
    own = next((each for each in taints if each.key.startswith(OWN_TAINTS) and each.effect in REPELS), None)
    return own.key.removeprefix(OWN_TAINTS) if own is not None else ""


def _has_memory(model: GpuModel, memory_gb: float) -> bool:
    """Whether a model has about so much memory."""
    return abs(model.memory_gb - memory_gb) <= NEAR * model.memory_gb


@dataclass(frozen=True, slots=True)
class Products:
    """From product labels to GPU models; who composes the stages passes the functions in."""

    model_of: Callable[[str], GpuModel | None]
    near: Callable[[str], Iterable[GpuModel]]
    """Models with similar names, the likeliest first."""
    reference: GpuModel

    def of(self, node: NodeFacts) -> tuple[GpuModel, str]:
        """The model of a node's GPUs, and a note if that is a guess."""
        product, memory = node.product, node.gpu_memory_gb
        if product:
            plain = product.replace("-", " ").replace("_", " ")
            found = self.model_of(product) or self.model_of(plain)
            if found is not None and (memory is None or _has_memory(found, memory)):
                return found, ""
            like = self._like(plain, memory, found) if memory is not None else None
            if found is not None:
                return like or found, ""  # without one, the label may count a slice of it, or one of its two dies
            if like is not None:
                return like, (
                    f"the GPU product '{product}' is not in the catalogue; it is taken for {like.name}, by its name "
                    f'and memory. Name its model under [kubernetes.products]: "{product}" = "MODEL".'
                )
        said = f"the GPU product '{product}' is not in the catalogue" if product else "its labels name no GPU product"
        return self._unknown(node), (
            f"node {node.name}: {said}; its GPUs count as '{UNKNOWN_GPU}', with the figures of {self.reference.name}. "
            f'Name the model under [kubernetes.products]: "{product or "PRODUCT"}" = "MODEL".'
        )

    def _like(self, name: str, memory_gb: float, found: GpuModel | None) -> GpuModel | None:
        """A model of this name with this memory, as like as can be to the model that the name alone gave."""
        words = name.lower().split()
        like = self.near(name if found is None else found.name)
        return next(
            (each for each in like if each.name.partition("-")[0] in words and _has_memory(each, memory_gb)), None
        )

    def _unknown(self, node: NodeFacts) -> GpuModel:
        memory = node.gpu_memory_gb
        vendor = node.gpu_resource.partition(".")[0].upper()
        return replace(
            self.reference, name=UNKNOWN_GPU, title="unknown GPU", vendor=vendor, aliases=(), source="",
            memory_gb=self.reference.memory_gb if memory is None else memory,
        )  # fmt: skip
