"""A live Slurm's own words → our records: nodes of `scontrol show node` or `sinfo`, jobs of `squeue`.

Text of any version, and the JSON of 22.05 (plain values) and of 24.11 ({"set", "infinite", "number"}).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from adlro.backends.slurm.fields import number_in, pairs_in, parsed, told_in, unix_in, without_errors, words_of
from adlro.core.errors import TelemetryError
from adlro.core.records import GpuModel, Gpus, Link, Node
from adlro.ingest.host_lists import INDEX_TYPE, gpus_in, hosts_in

SINFO_FORMAT: Final = "%n|%c|%m|%G|%T|%f|%R"
"""`sinfo --noheader --Node --format=…`: what `read_nodes` reads as text besides `scontrol show node`."""

_DOWN: Final = frozenset(
    [
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "ERROR",
        "FAIL",
        "FAILING",
        "INVAL",
        "INVALID_REG",
        "MAINT",
        "NOT_RESPONDING",
        "POWERED_DOWN",
        "UNKNOWN",
        "UNREGISTERED",
    ]
)
"""States in which a node takes no jobs. UNREGISTERED is our word: slurmctld has not heard from it since its own start.
Slurm 22.05 would start jobs there, and without their GPUs.
"""
PCIE: Final = Link("pcie", 32.0)
MOST_PRIORITY: Final = 4_294_967_295.0
"""Slurm's priorities are whole numbers of 32 bits; ours go from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm tells it. `gres` has (type, how many) for each kind of GPU; "" is a GPU without a type."""

    name: str
    cpus: float
    memory_mib: float
    gres: tuple[tuple[str, int], ...]
    state: tuple[str, ...]
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    reason: str = ""
    used: tuple[tuple[str, int], ...] = ()  # GPUs that Slurm counts as used, like `gres`

    @property
    def is_up(self) -> bool:
        """Whether it takes jobs."""
        return not _DOWN & {word.rstrip("*~#$@^!%-") for word in self.state}


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """Nodes that Slurm keeps for somebody for a time. Times are seconds since 1970."""

    name: str
    nodes: tuple[str, ...]
    start_unix: float
    end_unix: float
    cpus: int | None = None  # how many CPUs of its nodes it has; None: Slurm does not say


# ---- nodes -------------------------------------------------------------------------------------------------------


def read_nodes(text: str, where: str) -> list[SlurmNode]:
    """The nodes in the output of `scontrol show node` (text or JSON), of `sinfo --json`, or of sinfo in our format."""
    start = text.lstrip()[:1]
    if start == "{":
        return nodes_in(parsed(text, where), where)
    elif "NodeName=" in text:
        nodes = [_node_of_block(block, where) for block in re.split(r"(?m)^(?=NodeName=)", text) if block.strip()]
    else:
        nodes = [_node_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    return _unique(nodes, where)


def nodes_in(answer: Any, where: str) -> list[SlurmNode]:
    """The nodes in an answer of `sinfo --json` (22.05), `scontrol show nodes --json` or slurmrestd."""
    return _unique(list(_nodes_of_json(without_errors(answer, where), where)), where)


def _unique(nodes: Iterable[SlurmNode], where: str) -> list[SlurmNode]:
    """Each node once: sinfo has a line for each of its partitions."""
    unique = {node.name: node for node in nodes}
    if not unique:
        raise TelemetryError(f"{where}: there are no nodes in it; expected the output of 'scontrol show node'.")
    return list(unique.values())


def version_in(answer: Any) -> tuple[int, int] | None:
    """The generation of the Slurm that gave this answer: (22, 5); None if it does not say."""
    meta = answer.get("meta") if isinstance(answer, dict) else None
    told = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, dict) else None
    found = re.match(r"(\d+)\.(\d+)", str(told.get("release"))) if isinstance(told, dict) else None
    return (int(found[1]), int(found[2])) if found else None


def _nodes_of_json(answer: Mapping[str, Any], where: str) -> Iterator[SlurmNode]:
    if "nodes" not in answer and isinstance(answer.get("sinfo"), list):
        raise TelemetryError(
            f"{where}: 'sinfo --json' of this version groups nodes; use 'scontrol show nodes --json' instead."
        )
    nodes = answer.get("nodes")
    if not isinstance(nodes, list):
        raise TelemetryError(f"{where}: no 'nodes' in this JSON; expected 'scontrol show nodes --json'.")
    for node in nodes:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            raise TelemetryError(f"{where}: a node without a name in this JSON; expected 'scontrol show nodes --json'.")
        yield SlurmNode(
            name=node["name"],
            cpus=number_in(node.get("effective_cpus")) or number_in(node.get("cpus")) or 0.0,
            memory_mib=(number_in(node.get("real_memory")) or 0.0) - (number_in(node.get("specialized_memory")) or 0.0),
            gres=gpus_in(str(node.get("gres") or "")),
            state=tuple(
                word.upper()
                for word in [*words_of(node.get("state")), *words_of(node.get("state_flags")), *_unregistered(node)]
            ),
            features=tuple(words_of(node.get("features"))),
            partitions=tuple(words_of(node.get("partitions"))),
            reason=str(node.get("reason") or ""),
            used=gpus_in(str(node.get("gres_used") or "")),
        )


def _unregistered(node: Mapping[str, Any]) -> list[str]:
    """A word for a node that slurmctld has not heard from since it was started."""
    return ["unregistered"] if number_in(node.get("slurmd_start_time")) == 0 else []


def _node_of_block(block: str, where: str) -> SlurmNode:
    values = pairs_in(block)
    try:
        return SlurmNode(
            name=values["NodeName"],
            cpus=float(values["CPUTot"]),
            memory_mib=float(values["RealMemory"]),
            gres=gpus_in(told_in(values.get("Gres", ""))),
            state=tuple(values.get("State", "UNKNOWN").upper().split("+")),
            features=tuple(words_of(told_in(values.get("AvailableFeatures", "")))),
            partitions=tuple(words_of(told_in(values.get("Partitions", "")))),
            reason=told_in(values.get("Reason", "")),
        )
    except (KeyError, ValueError) as error:
        name = values.get("NodeName", "?")
        raise TelemetryError(
            f"{where}: node '{name}' has no valid {error}; expected the output of 'scontrol show node'."
        ) from None


def _node_of_line(line: str, where: str, number: int) -> SlurmNode:
    cells = line.strip().split("|")
    try:
        name, cpus, memory, gres, state, features, partition = cells
        return SlurmNode(
            name,
            float(cpus.rstrip("+")),
            float(memory.rstrip("+")),
            gpus_in(told_in(gres)),
            tuple(word.upper() for word in re.split(r"[+]", state)),
            tuple(words_of(told_in(features))),
            (partition,),
        )
    except ValueError:
        raise TelemetryError(
            f"{where}:{number}: expected 'scontrol show node', its JSON, or sinfo --noheader --Node "
            f"--format='{SINFO_FORMAT}'; found {line.strip()[:60]!r}."
        ) from None


def node_records(
    found: Iterable[SlurmNode], model_of: Callable[[str], GpuModel | None]
) -> tuple[list[Node], list[str]]:
    """Our records of Slurm's nodes, and a line for each GPU type that the catalogue does not have."""
    nodes, problems = [], {}
    for node in found:
        counts: dict[str, int] = {}
        for word, count in node.gres:
            model = model_at(word, node.features, model_of)
            if model is None:
                problems[word] = (
                    f"node '{node.name}': the GPU type '{word or '(none)'}' is not in the catalogue, and was left out. "
                    f"Name its model with --types {word}=MODEL; 'adlro gpus' lists the models."
                )
            else:
                counts[model.name] = counts.get(model.name, 0) + count
        gpus = tuple(Gpus(model, count) for model, count in counts.items())
        nodes.append(Node(node.name, node.cpus, node.memory_mib * 1024**2 / 1e9, gpus, PCIE))
    return nodes, list(problems.values())


def model_at(word: str, features: Iterable[str], model_of: Callable[[str], GpuModel | None]) -> GpuModel | None:
    """The model of a GPU type, by the type (with or without an index), else by a feature of its node."""
    names = (word, INDEX_TYPE.sub("", word), *features)
    return next(filter(None, map(model_of, names)), None)


def cluster_toml(nodes: Iterable[Node], name: str = "slurm") -> str:
    """A cluster file with these nodes. The network and the links are guesses of ours, which the file says."""
    lines = [
        "# From Slurm. It does not tell how GPUs and nodes are joined: put link and [network] right.",
        f"name = {json.dumps(name)}",
        "",
        "[network]",
        'kind = "ethernet-10g"',
        "gb_s = 2.5",
    ]
    for node in nodes:
        gpus = ", ".join(f"{{model = {json.dumps(gpus.model)}, count = {gpus.count}}}" for gpus in node.gpus)
        lines += ["", "[[nodes]]", f"name = {json.dumps(node.name)}"]
        lines += [f"gpus = [{gpus}]"] if gpus else []
        lines += [f"cpus = {node.cpus:g}", f"memory_gb = {node.memory_gb:.1f}", 'link = "pcie"']
    return "\n".join(lines) + "\n"


# ---- reservations ------------------------------------------------------------------------------------------------


def read_reservations(text: str, where: str) -> list[SlurmReservation]:
    """The reservations in the output of `scontrol show reservation --oneliner`."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        if line.lower().startswith("no reservations"):
            continue
        values = pairs_in(line) if "ReservationName=" in line else {}
        if not values:
            raise TelemetryError(f"{where}: expected 'scontrol show reservation'; found {line.strip()[:60]!r}.")
        cpus = re.search(r"(?:^|,)cpu=(\d+)", values.get("TRES", ""))
        found.append(
            SlurmReservation(
                values["ReservationName"],
                hosts_in(told_in(values.get("Nodes", ""))),
                unix_in(values.get("StartTime", "")) or 0.0,
                unix_in(values.get("EndTime", "")) or math.inf,
                int(cpus[1]) if cpus else None,
            )
        )
    return found


def reservations_in(answer: Any, where: str) -> list[SlurmReservation]:
    """The reservations in an answer of slurmrestd."""
    found = without_errors(answer, where).get("reservations")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TelemetryError(f"{where}: no 'reservations' in this JSON; expected an answer to /reservations.")
    return [_reservation_of_json(each) for each in found]


def _reservation_of_json(told: Mapping[str, Any]) -> SlurmReservation:
    cpus = re.search(r"(?:^|,)cpu=(\d+)", str(told.get("tres") or ""))
    return SlurmReservation(
        str(told.get("name") or ""),
        hosts_in(",".join(words_of(told.get("node_list")))),
        number_in(told.get("start_time")) or 0.0,
        number_in(told.get("end_time")) or math.inf,
        int(cpus[1]) if cpus else None,
    )
