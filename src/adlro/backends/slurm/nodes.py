"""Slurm's nodes and reservations → sites, our cluster, and which nodes are down."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from adlro.backends.slurm.parse import PCIE, SlurmNode, SlurmReservation, model_at
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.core.ports import RESERVED
from adlro.core.records import Cluster, Gpus, Link, Node
from adlro.core.telemetry import ModelOf
from adlro.ingest.host_lists import INDEX_TYPE

DEFAULT_NETWORK: Final = Link("ethernet-10g", 2.5)


@dataclass(frozen=True, slots=True)
class FamilyPattern:
    """Jobs whose name, partition or comment fits a pattern are of a family."""

    pattern: re.Pattern[str]
    family: str
    field: str = "name"

    def fits(self, job: SlurmJob) -> bool:
        """Whether this job is meant."""
        return self.pattern.search(str(getattr(job, self.field))) is not None


@dataclass(frozen=True, slots=True)
class Naming:
    """How Slurm's words become ours; who composes the stages passes it in."""

    model_of: ModelOf
    is_family: Callable[[str], bool] = lambda name: True
    nearest: Callable[[str], Sequence[str]] = lambda kind: ()  # models that an unknown GPU type may mean
    families: tuple[FamilyPattern, ...] = ()
    partitions: frozenset[str] = frozenset()  # only these, with their nodes; none: all
    links: Mapping[str, Link] = field(default_factory=dict)  # inside a node, by its name
    network: Link = DEFAULT_NETWORK
    name: str = "slurm"
    submitters: frozenset[str] = frozenset()  # accounts that submit jobs of others, and say in a comment whose


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of one model on one node: Slurm's type of each, and its number on the node, in order of our index."""

    types: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def have_types_each(self) -> bool:
        """Whether each device has a type of its own, so that it can be asked for by index."""
        return len(set(self.types)) == len(self.types) and all(INDEX_TYPE.search(word) for word in self.types)


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node with its devices by our model names."""

    node: SlurmNode
    devices: Mapping[str, Devices]


def sites_of(nodes: Sequence[SlurmNode], naming: Naming) -> tuple[dict[str, NamedNode], list[str]]:
    """The nodes that are ours by name, and a line for each GPU type that the catalogue does not have."""
    sites, problems = {}, {}
    for node in nodes:
        if naming.partitions and not naming.partitions & set(node.partitions):
            continue
        found: dict[str, list[tuple[str, int]]] = {}
        number = 0
        for word, count in node.gres:
            model = model_at(word, node.features, naming.model_of)
            if model is None:
                key, (guess, *others) = word or '""', naming.nearest(word) or ("MODEL",)
                also = f" (or {', '.join(others)})" if others else ""
                problems[word] = (
                    f"node {node.name}: the GPU type '{word or '(none)'}' is not in the catalogue; its {count} GPUs "
                    f"are left out. Name its model in ADLRO's config, under [slurm.types]: "
                    f"{key} = \"{guess}\"{also}; 'adlro gpus' lists all models."
                )
            else:
                found.setdefault(model.name, []).extend((word, number + each) for each in range(count))
            number += count
        sites[node.name] = NamedNode(
            node,
            {
                model: Devices(tuple(word for word, _ in pairs), tuple(number for _, number in pairs))
                for model, pairs in found.items()
            },
        )
    return sites, list(problems.values())


def cluster_of(sites: Mapping[str, NamedNode], naming: Naming) -> Cluster:
    """Our record of the nodes. Slurm does not tell how GPUs and nodes are joined: a cluster file does, or a guess."""
    nodes = tuple(
        Node(
            name,
            site.node.cpus,
            site.node.memory_mib * 1024**2 / 1e9,
            tuple(Gpus(model, len(devices.types)) for model, devices in site.devices.items()),
            naming.links.get(name, PCIE),
        )
        for name, site in sites.items()
    )
    models = {
        model: found
        for site in sites.values()
        for model in site.devices
        if (found := naming.model_of(model)) is not None
    }
    return Cluster(naming.name, "a live Slurm", nodes, naming.network, models)


def down_of(sites: Mapping[str, NamedNode], reserved: Mapping[str, "Reserved"] | None = None) -> dict[str, str]:
    """Nodes that take no jobs of ours, and why: those that are down in Slurm's words, and those that are reserved."""
    down = {name: kept.in_words for name, kept in (reserved or {}).items() if kept.is_active and name in sites}
    down |= {
        name: " ".join(filter(None, ["+".join(site.node.state).lower(), site.node.reason]))
        for name, site in sites.items()
        if not site.node.is_up
    }
    return down


@dataclass(frozen=True, slots=True)
class Reserved:
    """A node that Slurm keeps for somebody, now or soon."""

    name: str  # of the reservation
    start_unix: float
    end_unix: float
    is_active: bool

    @property
    def in_words(self) -> str:
        """For people."""
        if self.is_active:
            return f"{RESERVED} ({self.name}) until {_clock(self.end_unix)}"
        return f"{RESERVED} ({self.name}) from {_clock(self.start_unix)}"


def _clock(unix: float) -> str:
    """A moment in this machine's time zone."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %Z") if unix < 1e11 else "further notice"


def reserved_nodes(
    reservations: Sequence[SlurmReservation], sites: Mapping[str, NamedNode], now_s: float
) -> dict[str, Reserved]:
    """The nodes that are reserved whole, each with the first of its reservations that is not over.

    Part of a node (some of its CPUs) is left to Slurm: it knows which part, and refuses what does not fit.
    """
    found: dict[str, Reserved] = {}
    for each in sorted(reservations, key=lambda one: one.start_unix):
        known = [sites[name] for name in each.nodes if name in sites]
        is_part = (
            each.cpus is not None and len(known) == len(each.nodes) and each.cpus < sum(s.node.cpus for s in known)
        )
        if is_part or each.end_unix <= now_s:
            continue
        for name in each.nodes:
            found.setdefault(name, Reserved(each.name, each.start_unix, each.end_unix, each.start_unix <= now_s))
    return found
