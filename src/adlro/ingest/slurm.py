"""A live Slurm's own words → our records: nodes of `scontrol show node` or `sinfo`, jobs of `squeue`.

Text of any version, and the JSON of 22.05 (plain values) and of 24.11 ({"set", "infinite", "number"}).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from adlro.core.errors import TelemetryError
from adlro.core.records import GpuModel, Gpus, Job, Link, Node

SINFO_FORMAT: Final = "%n|%c|%m|%G|%T|%f|%R"
"""`sinfo --noheader --Node --format=…`: what `read_nodes` reads as text besides `scontrol show node`."""

SQUEUE_FORMAT: Final = "%i|%u|%j|%T|%P|%D|%C|%m|%b|%l|%V|%S|%N|%Q"
"""`squeue --noheader --format=…`: what `read_jobs` reads as text."""

DOWN: Final = frozenset(
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
    ]
)
"""States in which a node takes no jobs."""

MIB_PER: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1.0}
PCIE: Final = Link("pcie", 32.0)
MOST_PRIORITY: Final = 4_294_967_295.0
"""Slurm's priorities are whole numbers of 32 bits; ours go from 0 to 1."""

_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_]*)=")
_GPUS: Final = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([^:,()=/]+))?[:=](\d+)(?:\([^)]*\))?(?=,|$)")
_INDEX: Final = re.compile(r"_\d+$")


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

    @property
    def is_up(self) -> bool:
        """Whether it takes jobs."""
        return not DOWN & {word.rstrip("*~#$@^!%-") for word in self.state}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm tells it. Times are seconds since 1970; None: not set."""

    id: str
    user: str
    name: str
    state: str
    partition: str
    nodes: int
    cpus: float
    memory_mib: float
    gres: tuple[tuple[str, int], ...]
    limit_s: float | None
    submit_unix: float | None
    start_unix: float | None
    node_list: str
    priority: float


# ---- nodes -------------------------------------------------------------------------------------------------------


def read_nodes(text: str, where: str) -> list[SlurmNode]:
    """The nodes in the output of `scontrol show node` (text or JSON), of `sinfo --json`, or of sinfo in our format."""
    start = text.lstrip()[:1]
    if start == "{":
        nodes = list(_nodes_of_json(_answer(text, where), where))
    elif "NodeName=" in text:
        nodes = [_node_of_block(block, where) for block in re.split(r"(?m)^(?=NodeName=)", text) if block.strip()]
    else:
        nodes = [_node_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not nodes:
        raise TelemetryError(f"{where}: there are no nodes in it; expected the output of 'scontrol show node'.")
    unique = {node.name: node for node in nodes}  # sinfo has a line for each partition of a node
    return list(unique.values())


def _answer(text: str, where: str) -> dict[str, Any]:
    """Slurm's JSON, if it reports no errors: with its controller down it exits with 0 and an empty list."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TelemetryError(f"{where}: this is not JSON: {error}.") from None
    errors = answer.get("errors")
    if errors:
        first = errors[0] if isinstance(errors, list) else errors
        said = first.get("error") or first.get("description") if isinstance(first, dict) else first
        raise TelemetryError(f"{where}: Slurm reports an error: {said}. Is slurmctld running?")
    return answer


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
            cpus=_number(node.get("cpus")) or 0.0,
            memory_mib=_number(node.get("real_memory")) or 0.0,
            gres=gpus_in(str(node.get("gres") or "")),
            state=tuple(word.upper() for word in [*_words(node.get("state")), *_words(node.get("state_flags"))]),
            features=tuple(_words(node.get("features"))),
            partitions=tuple(_words(node.get("partitions"))),
        )


def _node_of_block(block: str, where: str) -> SlurmNode:
    values = _pairs(block)
    try:
        return SlurmNode(
            name=values["NodeName"],
            cpus=float(values["CPUTot"]),
            memory_mib=float(values["RealMemory"]),
            gres=gpus_in(_told(values.get("Gres", ""))),
            state=tuple(values.get("State", "UNKNOWN").upper().split("+")),
            features=tuple(_words(_told(values.get("AvailableFeatures", "")))),
            partitions=tuple(_words(_told(values.get("Partitions", "")))),
        )
    except (KeyError, ValueError) as error:
        name = values.get("NodeName", "?")
        raise TelemetryError(
            f"{where}: node '{name}' lacks a good {error}; expected the output of 'scontrol show node'."
        ) from None


def _node_of_line(line: str, where: str, number: int) -> SlurmNode:
    cells = line.strip().split("|")
    try:
        name, cpus, memory, gres, state, features, partition = cells
        return SlurmNode(
            name,
            float(cpus.rstrip("+")),
            float(memory.rstrip("+")),
            gpus_in(_told(gres)),
            tuple(word.upper() for word in re.split(r"[+]", state)),
            tuple(_words(_told(features))),
            (partition,),
        )
    except ValueError:
        raise TelemetryError(
            f"{where}:{number}: expected 'scontrol show node', its JSON, or sinfo --noheader --Node "
            f"--format='{SINFO_FORMAT}'; found {line.strip()[:60]!r}."
        ) from None


def nodes_of(found: Iterable[SlurmNode], model_of: Callable[[str], GpuModel | None]) -> tuple[list[Node], list[str]]:
    """Our records of Slurm's nodes, and a line for each GPU type that the catalogue does not have."""
    nodes, problems = [], {}
    for node in found:
        counts: dict[str, int] = {}
        for word, count in node.gres:
            model = next(filter(None, map(model_of, filter(None, (word, _INDEX.sub("", word), *node.features)))), None)
            if model is None:
                problems[word] = (
                    f"node '{node.name}': the GPU type '{word or '(none)'}' is not in the catalogue, and was left out. "
                    "Give the type or a feature of the node a name that 'adlro gpus' lists."
                )
            else:
                counts[model.name] = counts.get(model.name, 0) + count
        gpus = tuple(Gpus(model, count) for model, count in counts.items())
        nodes.append(Node(node.name, node.cpus, node.memory_mib * 1024**2 / 1e9, gpus, PCIE))
    return nodes, list(problems.values())


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


# ---- jobs --------------------------------------------------------------------------------------------------------


def read_jobs(text: str, where: str) -> list[SlurmJob]:
    """The jobs in the output of `squeue --json`, or of squeue in our format."""
    if text.lstrip()[:1] == "{":
        jobs = _answer(text, where).get("jobs")
        if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
            raise TelemetryError(f"{where}: no 'jobs' in this JSON; expected 'squeue --json'.")
        return [_job_of_json(job) for job in jobs]
    return [_job_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]


def _job_of_json(job: Mapping[str, Any]) -> SlurmJob:
    nodes = max(int(_number(job.get("node_count")) or 1), 1)
    cpus = _number(job.get("cpus")) or 0.0
    per_node, per_cpu = _number(job.get("memory_per_node")), _number(job.get("memory_per_cpu"))
    limit_min = _number(job.get("time_limit"))
    return SlurmJob(
        id=str(job.get("job_id", "")),
        user=str(job.get("user_name") or ""),
        name=str(job.get("name") or ""),
        state=(_words(job.get("job_state")) or ["UNKNOWN"])[0].upper(),
        partition=str(job.get("partition") or ""),
        nodes=nodes,
        cpus=cpus,
        memory_mib=per_node * nodes if per_node else (per_cpu or 0.0) * cpus,
        gres=_gres_of(job, nodes),
        limit_s=None if limit_min is None else limit_min * 60,
        submit_unix=_number(job.get("submit_time")) or None,
        start_unix=_number(job.get("start_time")) or None,
        node_list=str(job.get("nodes") or ""),
        priority=_number(job.get("priority")) or 0.0,
    )


def _gres_of(job: Mapping[str, Any], nodes: int) -> tuple[tuple[str, int], ...]:
    """The GPUs of the whole job: asked for in all, or on each node."""
    whole = gpus_in(str(job.get("tres_per_job") or ""))
    return whole or tuple((word, count * nodes) for word, count in gpus_in(str(job.get("tres_per_node") or "")))


def _job_of_line(line: str, where: str, number: int) -> SlurmJob:
    cells = line.strip("\n").split("|")
    try:
        if len(cells) > 14:  # a name may have bars in it
            cells = [*cells[:2], "|".join(cells[2:-11]), *cells[-11:]]
        id_, user, name, state, partition, nodes, cpus, memory, gres, limit, submit, start, places, priority = cells
        return SlurmJob(
            id_.strip(),
            user,
            name,
            state.upper(),
            partition,
            int(nodes),
            float(cpus),
            _mib(memory) * int(nodes),
            tuple((word, count * int(nodes)) for word, count in gpus_in(_told(gres))),
            _seconds(limit),
            _unix(submit),
            _unix(start),
            places,
            float(priority),
        )
    except ValueError:
        raise TelemetryError(
            f"{where}:{number}: expected 'squeue --json' or squeue --noheader --format='{SQUEUE_FORMAT}'; "
            f"found {line.strip()[:60]!r}."
        ) from None


def job_of(job: SlurmJob, model_of: Callable[[str], GpuModel | None], family: str = "") -> Job:
    """Our record of a submission. Its work is not a number: of a live job nobody knows it."""
    models = {model.name for word, _ in job.gres if word and (model := model_of(_INDEX.sub("", word))) is not None}
    return Job(
        family=family,
        work=math.nan,
        submit_s=job.submit_unix or 0.0,
        gpus=sum(count for _, count in job.gres),
        cpus=job.cpus,
        memory_gb=job.memory_mib * 1024**2 / 1e9,
        models=frozenset(models),
        priority=min(job.priority / MOST_PRIORITY, 1.0),
        user=job.user,
        name=job.name,
        limit_s=job.limit_s,
    )


# ---- words and numbers -------------------------------------------------------------------------------------------


def gpus_in(gres: str) -> tuple[tuple[str, int], ...]:
    """The GPUs in a list of generic resources: (("v100", 4),) for gpu:v100:4(S:0-1), gres/gpu:2 or gres:gpu:2."""
    return tuple((word or "", int(count)) for word, count in _GPUS.findall(gres))


def _pairs(block: str) -> dict[str, str]:
    """Key=value of a block of scontrol; a value ends where the next key begins, so it may have spaces in it."""
    found = list(_KEY.finditer(block))
    ends = [match.start() for match in found[1:]] + [len(block)]
    values: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        values.setdefault(match[1], block[match.end() : end].strip())
    return values


def _told(text: str) -> str:
    """A value, or nothing where Slurm says that there is none."""
    return "" if text.strip() in ("(null)", "N/A", "n/a") else text


def _words(value: Any) -> list[str]:
    """A list of words, which some versions write with commas."""
    if isinstance(value, list):
        return [str(word) for word in value]
    return [word for word in str(value or "").split(",") if word]


def _number(value: Any) -> float | None:
    """A number as 22.05 and 24.11 write it; None where it is not set or has no end."""
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in (4_294_967_294, 4_294_967_295) else float(value)


def _mib(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)([KMGT]?)[nc]?", text.strip())
    if not found:
        raise ValueError(text)
    return float(found[1]) * MIB_PER[found[2]]


def _seconds(text: str) -> float | None:
    """[days-]hours:minutes:seconds, or none."""
    if text.strip() in ("UNLIMITED", "NOT_SET", "INVALID", "N/A", ""):
        return None
    days, _, clock = text.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    while len(parts) < 3:
        parts.insert(0, 0)
    return int(days or 0) * 86_400.0 + parts[0] * 3600 + parts[1] * 60 + parts[2]


def _unix(text: str) -> float | None:
    """A time as squeue writes it: in the time zone of this machine."""
    from datetime import datetime

    return None if text.strip() in ("N/A", "Unknown", "") else datetime.fromisoformat(text.strip()).timestamp()
