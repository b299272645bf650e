"""What is free on nodes: whether a job fits at the place that an order names, and who holds what.

The rules are those of docs/semantics.md, on names: a back end checks an order with them before it carries it out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from adlro.core.ports import Part
from adlro.core.records import WHOLE_GPU, Cluster, GpuModel, Job, Node

MIB_PER_GB: Final = 1024


class Gpu:
    """One GPU: what is free of it, and how fast it still is."""

    __slots__ = ("factor", "free_memory", "free_share", "memory", "model")

    def __init__(self, model: GpuModel) -> None:
        self.model = model.name
        self.memory = self.free_memory = _mib(model.memory_gb)
        self.free_share = WHOLE_GPU
        self.factor = 1.0


class Host:
    """One node: what is free of it, and who holds some of it."""

    __slots__ = ("cpus", "down", "gpus", "holders", "memory", "record")

    def __init__(self, node: Node, models: Mapping[str, GpuModel]) -> None:
        self.record = node
        self.gpus = [Gpu(models[group.model]) for group in node.gpus for _ in range(group.count)]
        self.cpus = round(node.cpus * 1000)
        self.memory = _mib(node.memory_gb)
        self.holders: set[str] = set()
        self.down = ""  # why it takes no jobs; nothing if it does


class Room:
    """The nodes of a cluster with what is free of them. GPUs are numbered through a node, group by group."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.hosts = {node.name: Host(node, cluster.models) for node in cluster.nodes}

    def fit(self, job: Job, parts: tuple[Part, ...]) -> tuple[Part, ...] | str:
        """The parts with their GPUs chosen, or in words why the job cannot run there."""
        if job.gpus == 0:
            return self._fit_without_gpus(job, parts)
        models = {part.model for part in parts}
        counted = sum(part.count for part in parts)
        if len(models) > 1:
            return f"the place has GPUs of {len(models)} models; a job runs on one"
        if counted != job.gpus or any(part.count < 1 for part in parts):
            return f"the place has {counted} GPUs; the job needs {job.gpus}"
        if len({part.node for part in parts}) < len(parts):
            return "the place names a node twice"
        model = parts[0].model
        if model not in self.cluster.models:
            return f"this cluster has no {model}"
        if job.models and model not in job.models:
            return f"the job does not allow {model}"
        found: list[Part] = []
        for part in parts:
            chosen = self._fit_part(job, part)
            if isinstance(chosen, str):
                return chosen
            found.append(chosen)
        return tuple(found)

    def _fit_without_gpus(self, job: Job, parts: tuple[Part, ...]) -> tuple[Part, ...] | str:
        if len(parts) != 1 or parts[0].count:
            return "the job needs no GPU, and one node"
        return self._no_room(job, parts[0]) or parts

    def _fit_part(self, job: Job, part: Part) -> Part | str:
        """One node's part with its GPUs chosen: the lowest numbers, or for a share the tightest."""
        if wrong := self._no_room(job, part):
            return wrong
        gpus = self.hosts[part.node].gpus
        memory, whole = _mib(job.gpu_memory_gb), job.share == WHOLE_GPU

        def is_open(index: int) -> bool:
            gpu = gpus[index]
            return gpu.free_share >= job.share and (gpu.memory if whole else gpu.free_memory) >= memory

        if part.indices:
            if len(set(part.indices)) != part.count:
                return f"{part.count} GPUs asked for on {part.node}, and {len(set(part.indices))} named"
            for index in part.indices:
                if not 0 <= index < len(gpus) or gpus[index].model != part.model:
                    return f"{part.node} has no {part.model} with the number {index}"
                if not is_open(index):
                    return f"GPU {index} of {part.node} is taken"
            return replace(part, indices=tuple(sorted(part.indices)))
        mine = [index for index, gpu in enumerate(gpus) if gpu.model == part.model]
        free = [index for index in mine if is_open(index)]
        if len(free) < part.count:
            small = mine and gpus[mine[0]].memory < memory
            why = f"{memory} MiB on each GPU are asked for" if small else f"{len(free)} of {part.count} GPUs are free"
            return f"{part.node}: {why}"
        if not whole:
            partly = [index for index in free if gpus[index].free_share < WHOLE_GPU]
            free = sorted(partly, key=lambda index: gpus[index].free_share) or free
        return replace(part, indices=tuple(free[: part.count]))

    def _no_room(self, job: Job, part: Part) -> str:
        """Why a node has no room for a part, as far as its cores and memory go; nothing if it has."""
        host = self.hosts.get(part.node)
        if host is None:
            return f"there is no node {part.node!r}"
        if host.down:
            return f"{part.node} takes no jobs: {host.down}"
        cpus, memory = _portion(job, part.count)
        if host.cpus < cpus:
            return f"{part.node} has {host.cpus / 1000:g} cores free; {cpus / 1000:g} are needed"
        if host.memory < memory:
            return f"{part.node} has {host.memory} MiB of memory free; {memory} are needed"
        return ""

    def take(self, holder: str, job: Job, parts: tuple[Part, ...]) -> None:
        """Let a job have these parts, all of whose GPUs are named."""
        self._move(holder, job, parts, 1)

    def release(self, holder: str, job: Job, parts: tuple[Part, ...]) -> None:
        """Give back what a job holds."""
        self._move(holder, job, parts, -1)

    def _move(self, holder: str, job: Job, parts: tuple[Part, ...], sign: int) -> None:
        """Take what the parts amount to off the nodes, or put it back."""
        shared_memory = _mib(job.gpu_memory_gb)
        for part in parts:
            host = self.hosts[part.node]
            cpus, memory = _portion(job, part.count)
            host.cpus -= sign * cpus
            host.memory -= sign * memory
            for index in part.indices:
                gpu = host.gpus[index]
                gpu.free_share -= sign * job.share
                gpu.free_memory -= sign * (gpu.memory if job.share == WHOLE_GPU else shared_memory)
            if sign > 0:
                host.holders.add(holder)
            else:
                host.holders.discard(holder)


def is_at(parts: tuple[Part, ...], asked: tuple[Part, ...]) -> bool:
    """Whether a job is where an order wants it; GPUs that the order does not name may be any."""
    have = {part.node: part for part in parts}
    return len(parts) == len(asked) and all(
        (mine := have.get(part.node)) is not None
        and mine.count == part.count
        and (mine.model == part.model or not part.count)
        and (not part.indices or set(part.indices) == set(mine.indices))
        for part in asked
    )


def _portion(job: Job, gpus: int) -> tuple[int, int]:
    """Thousandths of cores and MiB that go with so many of the job's GPUs."""
    cpus, memory = round(job.cpus * 1000), _mib(job.memory_gb)
    if job.gpus <= 1:
        return cpus, memory
    return -(-cpus * gpus // job.gpus), -(-memory * gpus // job.gpus)


def _mib(gigabytes: float) -> int:
    return round(gigabytes * MIB_PER_GB)
