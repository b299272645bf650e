"""The heat of the GPUs of a simulated cluster on its own clock, by the model of `core/heat.py`."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from adlro.core.heat import settle_node, temperature_at
from adlro.core.records import Cluster
from adlro.core.tables import Table


@final
class Heating:
    """How hot each GPU is, and how far it lowers its clock. Times are seconds of the cluster, from 0."""

    def __init__(self, cluster: Cluster, heat: Table) -> None:
        """`heat` has a row for each GPU, node by node; nobody uses them yet."""
        self._heat = heat
        self._rows: dict[str, tuple[int, int]] = {}  # the first row of each node, and how many it has
        first = 0
        for node in cluster.nodes:
            count = sum(group.count for group in node.gpus)
            self._rows[node.name] = first, count
            self.settle(node.name, [0.0] * count, 0.0)
            first += count

    def settle(self, node: str, use: Sequence[float], now: float) -> list[int]:
        """Let the heat of a node follow the shares of its GPUs that jobs hold; the GPUs whose clocks change by it."""
        first, count = self._rows[node]
        if count == 0:
            return []
        rows = self._heat[first : first + count]
        before = rows["clock"].copy()
        rows["use"] = use
        settle_node(self._heat, first, count, now)
        return [int(gpu) for gpu in np.flatnonzero(rows["clock"] != before)]

    def clock(self, node: str, gpu: int) -> float:
        """The clock of a GPU, as a share of its highest."""
        return float(self._heat["clock"][self._rows[node][0] + gpu])

    @property
    def next_s(self) -> float:
        """When a GPU reaches its limit next, as things are."""
        return float(self._heat["reaches"].min(initial=np.inf))

    def due(self, now: float) -> set[str]:
        """The nodes with a GPU that has reached its limit."""
        if self.next_s > now:
            return set()
        reached = self._heat["reaches"] <= now
        return {node for node, (first, count) in self._rows.items() if reached[first : first + count].any()}

    def figures(self, node: str, gpu: int, now: float) -> Mapping[str, float]:
        """What telemetry would show of a GPU: features of docs/telemetry.md, from 0 to 1."""
        g = self._rows[node][0] + gpu
        row = self._heat[g]
        return {
            "temperature": min(1.0, float(temperature_at(self._heat, g, now)) / float(row.limit)),
            "power": float(row.power),
            "sm_clock": float(row.clock),
            "throttle": float(row.held != 0),
        }
