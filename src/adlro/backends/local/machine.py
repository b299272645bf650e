"""This machine as a cluster of one node: the GPUs that its drivers tell of or that are declared, cores and memory."""

import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adlro.core.errors import ConfigError, TelemetryError
from adlro.core.records import Cluster, GpuModel, Gpus, Link, Node
from adlro.core.telemetry import GpuSeen, ModelOf, TelemetryReader
from adlro.ingest.telemetry.amd import scrape_amdsmi
from adlro.ingest.telemetry.names import explain_unknown
from adlro.ingest.telemetry.nvml import scrape_nvml

DRIVERS: Final[tuple[TelemetryReader, ...]] = (scrape_nvml, scrape_amdsmi)
"""Whom to ask for GPUs."""

ROOT: Final = Path("/")
KIB_PER_GB: Final = 1 << 20
NO_NETWORK: Final = Link("none", 1.0)
DECLARED: Final = re.compile(r"(?P<model>[^:]+)(?::(?P<count>[0-9]+))?")
_MOST_GPUS: Final = 62
"""GPUs of one model on a node, as many as the rules can number."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: a cluster of one node, and by which number its driver knows each GPU of that node."""

    cluster: Cluster
    driver_numbers: tuple[int, ...]
    has_gpus: bool  # else they are stand-ins: declared, and not there
    notes: tuple[str, ...] = ()


def this_machine(
    model_of: ModelOf,
    declared: str = "",
    known: Iterable[str] = (),
    drivers: Sequence[TelemetryReader] = DRIVERS,
    root: Path = ROOT,
) -> Machine:
    """This machine with the GPUs that its drivers tell of, or with stand-ins declared as in "v100:4,t4:2".

    `known` are the names of the catalogue, for the message about a GPU that is not in it.
    """
    if declared:
        groups = declared_gpus(declared, model_of)
        numbers: tuple[int, ...] = ()
        notes: tuple[str, ...] = ("its GPUs are declared stand-ins",)
    else:
        groups, numbers, notes = found_gpus(model_of, known, drivers)
    models = {model.name: model for model, _ in groups}
    gpus = tuple(Gpus(model.name, count) for model, count in groups)
    name = socket.gethostname().partition(".")[0] or "localhost"
    link = Link("pcie", min((model.pcie_gb_s for model, _ in groups), default=NO_NETWORK.gb_s))
    node = Node(name, cores(root), memory_gb(root), gpus, link)
    return Machine(Cluster(name, "this machine", (node,), NO_NETWORK, models), numbers, bool(numbers), notes)


def machine_of(cluster: Cluster, drivers: Sequence[TelemetryReader] = DRIVERS) -> Machine:
    """This machine as a cluster file describes it; its GPUs are there if the drivers tell of as many."""
    if len(cluster.nodes) != 1:
        raise ConfigError(
            f"the cluster {cluster.name!r} has {len(cluster.nodes)} nodes; expected one, which is this machine. "
            "Leave the others out of a copy of the file."
        )
    seen = sum(len(gpus) for gpus, _ in asked(drivers))
    there = seen >= cluster.gpu_count > 0
    return Machine(cluster, (), there, () if there else ("its GPUs are declared stand-ins",))


def found_gpus(
    model_of: ModelOf, known: Iterable[str], drivers: Sequence[TelemetryReader]
) -> tuple[list[tuple[GpuModel, int]], tuple[int, ...], tuple[str, ...]]:
    """The models with their counts, the driver's number of each GPU in that order, and what the drivers said."""
    by_model: dict[str, list[int]] = {}
    models: dict[str, GpuModel] = {}
    notes: list[str] = []
    for gpus, said in asked(drivers):
        notes += [said] if said else []
        for gpu in gpus:
            model = model_of(gpu.name)
            if model is None:
                raise ConfigError(explain_unknown(gpu.name, known))
            models[model.name] = model
            by_model.setdefault(model.name, []).append(gpu.index)
    groups = [(models[name], len(numbers)) for name, numbers in by_model.items()]
    return groups, tuple(number for numbers in by_model.values() for number in numbers), tuple(notes)


def asked(drivers: Sequence[TelemetryReader]) -> list[tuple[tuple[GpuSeen, ...], str]]:
    """What each driver tells: its GPUs by number, or why it tells nothing."""
    found: list[tuple[tuple[GpuSeen, ...], str]] = []
    for look in drivers:
        try:
            found.append((tuple(sorted(look().gpus, key=lambda gpu: gpu.index)), ""))
        except TelemetryError as error:
            found.append(((), str(error)))
    return found


def declared_gpus(text: str, model_of: ModelOf) -> list[tuple[GpuModel, int]]:
    """The stand-ins that a text like "v100:4,t4" declares; a model alone is one GPU."""
    counts: dict[str, int] = {}
    models: dict[str, GpuModel] = {}
    for item in text.split(","):
        match = DECLARED.fullmatch(item.strip())
        count = int(match["count"] or 1) if match else 0
        if match is None or not 1 <= count <= _MOST_GPUS:
            raise ConfigError(
                f"--gpus is {text!r}: {item.strip()!r} is not a GPU model and a number from 1 to {_MOST_GPUS}; "
                "expected, for example, v100:4,t4:2."
            )
        model = model_of(match["model"].strip())
        if model is None:
            raise ConfigError(
                f"--gpus is {text!r}: there is no GPU model {match['model'].strip()!r}. 'adlro gpus' lists the models."
            )
        models[model.name] = model
        counts[model.name] = counts.get(model.name, 0) + count
    return [(models[name], count) for name, count in counts.items()]


def cores(root: Path = ROOT) -> float:
    """The cores that this process may use: those it is let on, or fewer if its control group gets less time."""
    allowed = float(len(os.sched_getaffinity(0)))
    words = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        return min(allowed, int(words[0]) / int(words[1]))
    quota, period = (
        _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        _text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    )
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return min(allowed, int(quota) / int(period))
    return allowed


def memory_gb(root: Path = ROOT) -> float:
    """The memory of this machine, or less if the control group of this process may hold less."""
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        raise ConfigError(f"{root / 'proc/meminfo'} has no MemTotal; describe this machine in a cluster file.")
    total = int(match[1]) / KIB_PER_GB
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        bound = _text(root / file)
        if bound.isdigit():
            total = min(total, int(bound) / (KIB_PER_GB * 1024))
    return total


def _text(path: Path) -> str:
    """The text of a small file of the kernel; nothing if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
