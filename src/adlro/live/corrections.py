"""Speeds as they were measured on this cluster: factors on what the catalogue says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adlro.catalogue.speeds import for_every_family
from adlro.core.ports import Part
from adlro.core.records import Cluster, Placing, Speed, SpeedOf
from adlro.live.clocks import GpuFigures


@dataclass(frozen=True, slots=True)
class Corrections:
    """Speed corrections from measurements: factors, 1 where nothing is known."""

    families: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by (family, model); "": every family
    gpus: Mapping[tuple[str, int], float] = field(default_factory=dict)  # by node and number on the node
    sites: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by node and model: all such GPUs there
    figures: GpuFigures = field(default_factory=dict)  # what telemetry says of each GPU now; no factors

    def of(self, family: str, model: str) -> float:
        """The factor of a family on a model."""
        if not self.families:
            return 1.0
        return self.families.get(("", model), 1.0) * self.families.get((family, model), 1.0)

    def by_node(self, cluster: Cluster) -> dict[str, tuple[float, ...]]:
        """For each node with a correction, the factors of all its GPUs in order."""
        named = {node for node, _ in self.gpus} | {node for node, _ in self.sites}
        found = {}
        for node in cluster.nodes:
            if node.name in named:
                models = [group.model for group in node.gpus for _ in range(group.count)]
                found[node.name] = tuple(self.of_gpu(node.name, model, number) for number, model in enumerate(models))
        return found

    def of_gpu(self, node: str, model: str, number: int) -> float:
        """The factor of one GPU."""
        return self.gpus.get((node, number), 1.0) * self.sites.get((node, model), 1.0)

    def with_clocks(self, slowed: Mapping[tuple[str, int], float], cluster: Cluster) -> "Corrections":
        """The same, where each of these GPUs has at most the pace that its clock shows.

        What jobs showed has the clock in it already, so the two are not multiplied.
        """
        if not slowed:
            return self
        gpus = dict(self.gpus)
        for node in cluster.nodes:
            models = [group.model for group in node.gpus for _ in range(group.count)]
            for number, model in enumerate(models):
                pace = slowed.get((node.name, number))
                if pace is not None and pace < self.of_gpu(node.name, model, number):
                    gpus[node.name, number] = pace / self.sites.get((node.name, model), 1.0)
        return replace(self, gpus=gpus)

    def of_part(self, part: Part) -> float:
        """The factor of the slowest GPU of a part."""
        if not part.indices:
            return self.sites.get((part.node, part.model), 1.0)
        return min(self.of_gpu(part.node, part.model, number) for number in part.indices)


def corrected(speed: SpeedOf, corrections: Corrections) -> SpeedOf:
    """The measured speeds; a family that is not in the catalogue has the same speed on every model."""
    expected = for_every_family(speed)

    def speed_here(family: str, at: Placing) -> Speed:
        found = expected(family, at)
        factor = corrections.of(family, at.model.name) if at.model is not None else 1.0
        return found if factor == 1.0 else Speed(found.value * factor, found.source, found.detail)

    return speed_here


def same_gpus(one: Corrections, other: Corrections) -> bool:
    """Whether two sets of corrections agree on every GPU."""
    return one.gpus == other.gpus and one.sites == other.sites
