"""What the plugin knows of the nodes: their shapes, features and memory, as a table of Lua."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adlro.backends.slurm.nodes import NamedNode
from adlro.backends.slurm.site import SiteNow
from adlro.ingest.host_lists import INDEX_TYPE


def left_to_slurm(partition: Mapping[str, str]) -> str:
    """The setting for which ADLRO leaves all jobs of a partition to Slurm; "" if there is none."""
    share = partition.get("OverSubscribe", "")
    if share == "EXCLUSIVE" or (share.startswith("FORCE") and share not in ("FORCE", "FORCE:1")):
        return f"OverSubscribe={share}"
    return "ExclusiveUser=YES" if partition.get("ExclusiveUser") == "YES" else ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of node. `most` is the largest number of GPUs of one model."""

    cpus: int
    memory_mib: int
    most: int
    gpus: tuple[tuple[str, int], ...]


def partitions_table(partitions: Sequence[str], now: SiteNow) -> dict[str, dict[Shape, int]]:
    """For each of ADLRO's partitions its kinds of nodes, and how many there are of each."""
    table: dict[str, dict[Shape, int]] = {name: {} for name in partitions}
    kinds = features_of(now.nodes)
    for name in partitions:
        if left_to_slurm(now.partitions.get(name, {})):
            continue
        for site in now.nodes.values():
            if name in site.node.partitions:
                shape = shape_of(site, kinds)
                table[name][shape] = table[name].get(shape, 0) + 1
    return table


def shape_of(site: NamedNode, kinds: Iterable[str] = ()) -> Shape:
    """What a job can find on a node, as far as ADLRO knows its GPUs.

    Where each device has a type of its own, users ask for one of `kinds`, which the plugin makes a feature.
    """
    gpus: dict[str, int] = {}
    for devices in site.devices.values():
        for word in devices.types:
            kind = INDEX_TYPE.sub("", word) if devices.have_types_each else word
            if kind and (kind in kinds or not devices.have_types_each):
                gpus[kind] = gpus.get(kind, 0) + 1
    most = max((len(devices.types) for devices in site.devices.values()), default=0)
    return Shape(int(site.node.cpus), int(site.node.memory_mib), most, tuple(sorted(gpus.items())))


def lua_table(table: Mapping[str, Mapping[Shape, int]]) -> str:
    """The table in the syntax of Lua."""
    lines = []
    for name, shapes in table.items():
        lines.append(f'   ["{quotable(name)}"] = {{')
        for shape, count in shapes.items():
            gpus = ", ".join(f'["{quotable(kind)}"] = {many}' for kind, many in shape.gpus)
            lines.append(
                f"      {{nodes = {count}, cpus = {shape.cpus}, memory = {shape.memory_mib}, most = {shape.most}, "
                f"gpus = {{{gpus}}}}},"
            )
        lines.append("   },")
    return "\n" + "\n".join(lines) + "\n"


def common_features(sites: Mapping[str, NamedNode]) -> list[str]:
    """Features that, of each GPU model, all nodes have or none: with them a job asks for models, not for nodes."""
    words = sorted({word for site in sites.values() for word in site.node.features})
    models = {model for site in sites.values() for model in site.devices}

    def splits(word: str, model: str) -> bool:
        return len({word in site.node.features for site in sites.values() if model in site.devices}) > 1

    return [word for word in words if not any(splits(word, model) for model in models)]


def features_of(sites: Mapping[str, NamedNode]) -> dict[str, str]:
    """On a site with a type for each device: what users may ask for, and the node feature that means it."""
    found: dict[str, str] = {}
    for site in sites.values():
        for devices in site.devices.values():
            if not devices.have_types_each:
                continue
            kind = INDEX_TYPE.sub("", devices.types[0])
            others = {
                word
                for other in sites.values()
                if set(other.devices) != set(site.devices)
                for word in other.node.features
            }
            own = [word for word in site.node.features if word not in others]
            if own:
                found[kind] = own[0]
    return found


def memory_per_cpu(partition: str, now: SiteNow) -> int:
    """Memory in MB that each CPU of a partition's nodes can have, rounded down."""
    nodes = [site.node for site in now.nodes.values() if partition in site.node.partitions and site.node.cpus]
    return max(min((int(node.memory_mib / node.cpus) // 100 * 100 for node in nodes), default=2000), 100)


def quotable(name: str) -> str:
    """A name that can stand between quotes."""
    return re.sub(r"[^\w.@-]", "", name)
