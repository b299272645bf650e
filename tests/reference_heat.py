"""Heat in plain Python, from docs/semantics.md: a second account of what core/heat.py computes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.reference_world import World

IDLE, OWN, NEAR, INERTIA, LEAST = 0.15, 45.0, 15.0, 120.0, 0.3


@dataclass(slots=True)
class Gpu:
    """One GPU: temperatures in C, power as a share of its TDP."""

    limit: float
    resistance: float
    room: float
    temperature: float = math.nan
    goal: float = math.nan
    power: float = IDLE
    clock: float = 1.0
    use: float = 0.0
    throttled: bool = False
    hits: float = math.inf
    power_s: float = 0.0  # its power, summed over time

    def __post_init__(self) -> None:
        self.temperature = self.goal = self.room + OWN * self.resistance * IDLE + NEAR * IDLE


@dataclass(slots=True)
class Heat:
    """The GPUs of all nodes, in the order of the sites."""

    gpus: list[Gpu]
    now: float = 0.0
    seen: list[tuple[float, ...]] = field(default_factory=list)

    def follow(self, world: World, change_speed: Callable[[World, int, int], None]) -> float:
        """Bring all GPUs to the world's time; returns when the next one reaches its limit."""
        places = [(site, gpu) for site, s in enumerate(world.sites) for gpu in range(s.gpus)]
        passed = world.now - self.now
        self.now = world.now
        nodes: dict[int, list[int]] = {}
        for number, (gpu, (site, index)) in enumerate(zip(self.gpus, places, strict=True)):
            gpu.power_s += gpu.power * passed
            gpu.temperature = gpu.goal + (gpu.temperature - gpu.goal) * math.exp(-passed / INERTIA)
            if gpu.hits <= world.now:
                gpu.throttled, gpu.temperature = True, gpu.limit
            gpu.use = 1.0 - world.room.share[site][index] / 1000
            nodes.setdefault(world.sites[site].node, []).append(number)
        for numbers in nodes.values():
            self._settle([self.gpus[number] for number in numbers])
        for gpu, (site, index) in zip(self.gpus, places, strict=True):
            if not math.isclose(gpu.clock, world.clocks[site][index], rel_tol=1e-12):
                world.clocks[site][index] = gpu.clock
                change_speed(world, site, index)
        return min(gpu.hits for gpu in self.gpus)

    def _settle(self, node: list[Gpu]) -> None:
        """Find the powers that agree with the air that they warm: try each power where a clip begins or ends."""

        def at(mean: float) -> list[float]:
            powers = []
            for gpu in node:
                full, least = IDLE + (1 - IDLE) * gpu.use, IDLE + (1 - IDLE) * gpu.use * LEAST**2
                wanted = (gpu.limit - gpu.room - NEAR * mean) / (OWN * gpu.resistance)
                powers.append(min(max(wanted, least), full) if gpu.throttled else full)
            return powers

        low, high = 0.0, 1.0
        while high - low > 1e-15:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if sum(at(middle)) / len(node) > middle else (low, middle)
        powers = at(high)
        air = NEAR * sum(powers) / len(node)
        for gpu, power in zip(node, powers, strict=True):
            full = IDLE + (1 - IDLE) * gpu.use
            gpu.power = power
            gpu.throttled = power < full
            gpu.clock = math.sqrt((power - IDLE) / ((1 - IDLE) * gpu.use)) if gpu.throttled else 1.0
            gpu.goal = gpu.room + air + OWN * gpu.resistance * power
            gpu.hits = math.inf
            if not gpu.throttled and gpu.use > 0 and gpu.goal > gpu.limit + 1e-6:
                ratio = (gpu.goal - gpu.temperature) / (gpu.goal - gpu.limit)
                gpu.hits = self.now + INERTIA * math.log(max(1.0, ratio))
