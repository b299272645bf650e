"""The vocabulary: one frozen record for each kind of thing. Tables of them are in tables.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from adlro.core.schema import FromUser, about

WHOLE_GPU: Final = 1000
"""Shares of a GPU are in thousandths, so that they add up exactly."""

CPU_ONLY: Final = "cpu"
"""The model name of a site without GPUs."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model and its datasheet. None means unknown, never zero."""

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
        """Every name of this model, in lower case."""
        return frozenset(word.lower() for word in (self.name, self.title, *self.aliases))


@dataclass(frozen=True, slots=True)
class Link:
    """The connection between GPUs: inside a node (nvlink, xgmi, pcie) or between nodes. Sum of both directions."""

    kind: str
    gb_s: float


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of one model on one node, which form a site."""

    model: str
    count: int


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: CPU cores, memory, GPUs, and the link between the GPUs."""

    name: str = field(metadata=about("Name of the node; with a `count` above 1 the nodes are NAME0, NAME1, …"))
    cpus: float = field(
        metadata=about(
            "CPU cores that its jobs share.",
            unit="cores",
            least=0,
            most=100_000,
            dtype="i4",
            scale=1000,
            from_user=FromUser(above=0),
        )
    )
    memory_gb: float = field(
        metadata=about(
            "Memory that its jobs share.",
            unit="GB",
            least=0,
            most=1_000_000,
            dtype="i4",
            scale=1024,
            from_user=FromUser(above=0),
        )
    )
    gpus: tuple[Gpus, ...] = field(metadata=about("Its GPUs: a number of one model, or a list of models and counts."))
    link: Link = field(metadata=about("What joins its GPUs."))


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
        """Number of GPUs."""
        return sum(gpus.count for node in self.nodes for gpus in node.gpus)


@dataclass(frozen=True, slots=True)
class Job:
    """What a user submits. It gets all its GPUs or none, all of one model.

    `work` is the true size: GPU-seconds on the reference model. `estimate` is what policies may know about it, in the
    same unit. New properties are declared here and nowhere else (schema.py).
    """

    family: str = field(metadata=about("The job's family in the speed table: `adlro speeds` lists them."))
    work: float = field(
        default=0.0,
        metadata=about(
            "GPU-seconds on the reference model; seconds for a job without GPUs.",
            unit="GPU-seconds",
            least=0,
            most=1e16,
            from_user=FromUser(most=1e12, words="0: not known."),
        ),
    )
    submit_s: float = field(
        default=0.0, metadata=about("When it was submitted.", unit="seconds", least=0, most=1e11, dtype="f8")
    )
    gpus: int = field(
        default=1,
        metadata=about(
            "Number of GPUs, all of one model; the job gets all of them or none.",
            least=0,
            most=1_000_000,
            dtype="i4",
            from_user=FromUser(most=65_536),
        ),
    )
    share: int = field(
        default=WHOLE_GPU,
        metadata=about("Thousandths of a GPU; below 1000 with one GPU only.", least=1, most=WHOLE_GPU, dtype="i4"),
    )
    cpus: float = field(
        default=0.0,
        metadata=about(
            "CPU cores for the whole job.",
            unit="cores",
            least=0,
            most=1_000_000,
            dtype="i4",
            scale=1000,
            option="N",
        ),
    )
    memory_gb: float = field(
        default=0.0,
        metadata=about(
            "Memory for the whole job.", unit="GB", least=0, most=2_000_000, dtype="i4", scale=1024, option="GB"
        ),
    )
    gpu_memory_gb: float = field(
        default=0.0,
        metadata=about(
            "Memory that each GPU must have.",
            unit="GB",
            least=0,
            most=100_000,
            dtype="i4",
            scale=1024,
            option="GB",
            in_workload=True,
            in_comment=True,
        ),
    )
    models: frozenset[str] = field(
        default=frozenset(), metadata=about("The GPU models that it may run on; empty: all.", empty="any")
    )
    priority: float = field(
        default=0.5,
        metadata=about(
            "How important it is: 1 most, 0 least.",
            least=0,
            most=1,
            dtype="f4",
            from_user=FromUser(words="Only operators may set another value than 0.5."),
            option="X",
        ),
    )
    user: str = field(
        default="",
        metadata=about(
            "Who submitted it.",
            empty="none",
            from_user=FromUser(words="A login name, never a number; only operators may name another user."),
        ),
    )
    name: str = field(default="", metadata=about("Name of the job; jobs that recur share a name.", empty="none"))
    limit_s: float | None = field(
        default=None,
        metadata=about(
            "Walltime limit, after which the job may be ended.",
            unit="seconds",
            least=0,
            most=1e16,
            dtype="f8",
            empty="none",
            from_user=FromUser(above=0, most=1e9),
        ),
    )
    estimate: float | None = field(
        default=None,
        metadata=about(
            "Estimate of `work`, in its unit: what policies see of it.",
            unit="GPU-seconds",
            least=0,
            most=1e16,
            dtype="f8",
            empty="the work",
            from_user=FromUser(most=1e12),
        ),
    )
    checkpoint: float | None = field(
        default=None,
        metadata=about(
            "Work between two checkpoints; 0: no work is ever lost.",
            unit="GPU-seconds",
            least=0,
            most=1e16,
            dtype="f8",
            empty="never",
            from_user=FromUser(most=1e12),
        ),
    )
    restartable: bool = field(
        default=False,
        metadata=about(
            "Whether it may be stopped while it runs, and started again later.",
            from_user=FromUser(words="Mark only jobs that go on from a checkpoint."),
            option="flag",
            in_comment=True,
        ),
    )
    sizes: str = field(
        default="",
        metadata=about(
            "The numbers of GPUs that it can run with, besides `gpus`: a list (1,2,4,8) or a range (1-8). "
            "Cores and memory grow with the GPUs.",
            empty="only `gpus`",
            from_user=FromUser(words="A live cluster resizes only jobs that are restartable."),
            option="SIZES",
            in_comment=True,
        ),
    )
    start_s: float = field(
        default=0.0,
        metadata=about(
            "Time from its first start until it begins to work.",
            unit="seconds",
            least=0,
            most=1e6,
            dtype="f8",
            in_workload=True,
        ),
    )
    restart_s: float | None = field(
        default=None,
        metadata=about(
            "Time from every later start until it continues.",
            unit="seconds",
            least=0,
            most=1e6,
            dtype="f8",
            empty="that of the run",
            in_workload=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a job of a family would run, with everything that its speed depends on."""

    model: GpuModel | None
    gpus: int
    nodes: int
    link: Link
    network: Link


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one GPU of the job relative to one GPU of the reference model; 0 means that it does not run there."""

    value: float
    source: str
    detail: str = field(default="")


MEASURED: Final = "measured"
MODELLED: Final = "modelled"

SpeedOf = Callable[[str, Placing], Speed]
"""Function for the speed of a family at a placing. The code that composes the stages passes one in."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A hardware event: a node goes down or comes back, or a GPU changes its speed."""

    time_s: float
    what: str
    node: str
    gpu: int = 0
    factor: float = 1.0
