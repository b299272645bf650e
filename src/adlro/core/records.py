"""The vocabulary: one frozen record for each thing that has a name. Plural forms are tables (tables.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

WHOLE_GPU: Final = 1000
"""A GPU is shared in thousandths, so that shares add up exactly."""

CPU_ONLY: Final = "cpu"
"""The model name of a site without GPUs."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One kind of GPU, with its datasheet. None means that the figure is not known, never zero."""

    name: str
    title: str
    vendor: str
    architecture: str
    memory_gb: float
    memory_bandwidth_gb_s: float
    tdp_w: float
    pcie_gb_s: float
    form_factor: str = ""
    launch_year: int | None = None
    fp64_tflops: float | None = None
    fp32_tflops: float | None = None
    fp16_vector_tflops: float | None = None
    fp16_tensor_tflops: float | None = None
    link_type: str | None = None
    link_gb_s: float | None = None
    memory_type: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    cells_without_a_page: tuple[str, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """Every word that means this model, in lower case."""
        return frozenset(word.lower() for word in (self.name, self.title, *self.aliases))


@dataclass(frozen=True, slots=True)
class Link:
    """What joins GPUs: inside a node (nvlink, xgmi, pcie) or between nodes (a network). Both directions summed."""

    kind: str
    gb_s: float


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of one model on one node: what becomes a site."""

    model: str
    count: int


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: CPU cores and memory that its GPUs share, and the link between those GPUs."""

    name: str
    cpus: float
    memory_gb: float
    gpus: tuple[Gpus, ...]
    link: Link


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, the network between them, and the datasheet of every GPU model in them.

    `affinity` is the operator's fixed map from job families to models, if there is one (policy static-affinity).
    """

    name: str
    summary: str
    nodes: tuple[Node, ...]
    network: Link
    models: dict[str, GpuModel]
    affinity: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        """How many GPUs there are."""
        return sum(gpus.count for node in self.nodes for gpus in node.gpus)


@dataclass(frozen=True, slots=True)
class Job:
    """What a user submits. It gets all its GPUs or none, all of one model.

    `work` is the truth: GPU-seconds on the reference model. `estimate` is what policies may know of it, in the same
    unit. `cpus` and `memory_gb` are for the whole job, `gpu_memory_gb` for each GPU.
    """

    family: str
    work: float
    submit_s: float = 0.0
    gpus: int = 1
    share: int = WHOLE_GPU
    cpus: float = 0.0
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0
    models: frozenset[str] = frozenset()
    priority: float = 0.5
    user: str = ""
    name: str = ""
    limit_s: float | None = None
    estimate: float | None = None
    checkpoint: float | None = None


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a job of a family would run, as far as its speed depends on it."""

    model: GpuModel | None
    gpus: int
    nodes: int
    link: Link
    network: Link


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one GPU of the job, against one GPU of the reference model alone; 0 means that it does not run there."""

    value: float
    source: str
    detail: str = field(default="")


MEASURED: Final = "measured"
MODELLED: Final = "modelled"

SpeedOf = Callable[[str, Placing], Speed]
"""Speed of a family at a placing; who composes the stages passes one in."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that happens to the hardware: a node goes down or comes back, or a GPU changes its speed."""

    time_s: float
    what: str
    node: str
    gpu: int = 0
    factor: float = 1.0
