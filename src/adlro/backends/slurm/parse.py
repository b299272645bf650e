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
from adlro.ingest.host_lists import hosts_in, whole_numbers

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
        "UNREGISTERED",
    ]
)
"""States in which a node takes no jobs. UNREGISTERED is our word: slurmctld has not heard from it since its own start.
Slurm 22.05 would start jobs there, and without their GPUs.
"""

MIB_PER: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1.0}
PCIE: Final = Link("pcie", 32.0)
MOST_PRIORITY: Final = 4_294_967_295.0
"""Slurm's priorities are whole numbers of 32 bits; ours go from 0 to 1."""

_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_]*)=")
_GPUS: Final = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([^:,()=/]+))?[:=](\d+)(?:\([^)]*\))?(?=,|$)")
_DEVICES: Final = re.compile(r"gpu(?::([^:,()=/]+))?:\d+\(IDX:([\d,-]*)\)")
INDEX_TYPE: Final = re.compile(r"_\d+$")


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
    states: tuple[str, ...] = ()  # the state and its flags, as newer versions tell them
    reason: str = ""
    description: str = ""  # more about the reason, where Slurm has more to say
    comment: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    end_unix: float | None = None
    required_nodes: str = ""
    excluded_nodes: str = ""
    features: str = ""
    dependency: str = ""
    per_node: str = ""  # the generic resources asked for on each node, in Slurm's words
    per_job: str = ""
    detail: tuple[str, ...] = ()  # the devices on each of its nodes, while it runs
    array: str = ""  # the array that it is a task of …
    task: int | None = None
    tasks: str = ""  # … or the tasks of an array that still wait together: 1,3,7-9%2
    at_once: int = 0  # of an array, how many tasks may run at a time; 0: no limit, or Slurm does not say
    reservation: str = ""
    is_het: bool = False  # a part of a heterogeneous job
    may_requeue: bool = True
    special: str = ""  # what it asks for beyond nodes, GPUs, CPUs and memory, in words; "" if nothing
    account: str = ""
    qos: str = ""
    admin_comment: str = ""  # only operators of Slurm can write it


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
        return nodes_in(_parsed(text, where), where)
    elif "NodeName=" in text:
        nodes = [_node_of_block(block, where) for block in re.split(r"(?m)^(?=NodeName=)", text) if block.strip()]
    else:
        nodes = [_node_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    return _unique(nodes, where)


def nodes_in(answer: Any, where: str) -> list[SlurmNode]:
    """The nodes in an answer of `sinfo --json` (22.05), `scontrol show nodes --json` or slurmrestd."""
    return _unique(list(_nodes_of_json(_without_errors(answer, where), where)), where)


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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TelemetryError(f"{where}: this is not JSON: {error}.") from None


def _without_errors(answer: Any, where: str) -> dict[str, Any]:
    """Slurm's JSON, if it reports no errors: with its controller down it exits with 0 and an empty list."""
    if not isinstance(answer, dict):
        raise TelemetryError(f"{where}: this JSON is no object; expected an answer of Slurm.")
    errors = answer.get("errors")
    if errors:
        first = errors[0] if isinstance(errors, list) else errors
        words = (first.get("error"), first.get("description")) if isinstance(first, dict) else (first,)
        said = ": ".join(str(word) for word in words if word)
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
            cpus=_number(node.get("effective_cpus")) or _number(node.get("cpus")) or 0.0,
            memory_mib=(_number(node.get("real_memory")) or 0.0) - (_number(node.get("specialized_memory")) or 0.0),
            gres=gpus_in(str(node.get("gres") or "")),
            state=tuple(
                word.upper()
                for word in [*_words(node.get("state")), *_words(node.get("state_flags")), *_unregistered(node)]
            ),
            features=tuple(_words(node.get("features"))),
            partitions=tuple(_words(node.get("partitions"))),
            reason=str(node.get("reason") or ""),
            used=gpus_in(str(node.get("gres_used") or "")),
        )


def _unregistered(node: Mapping[str, Any]) -> list[str]:
    """A word for a node that slurmctld has not heard from since it was started."""
    return ["unregistered"] if _number(node.get("slurmd_start_time")) == 0 else []


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
            reason=_told(values.get("Reason", "")),
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
        values = _pairs(line) if "ReservationName=" in line else {}
        if not values:
            raise TelemetryError(f"{where}: expected 'scontrol show reservation'; found {line.strip()[:60]!r}.")
        cpus = re.search(r"(?:^|,)cpu=(\d+)", values.get("TRES", ""))
        found.append(
            SlurmReservation(
                values["ReservationName"],
                hosts_in(_told(values.get("Nodes", ""))),
                _unix(values.get("StartTime", "")) or 0.0,
                _unix(values.get("EndTime", "")) or math.inf,
                int(cpus[1]) if cpus else None,
            )
        )
    return found


def reservations_in(answer: Any, where: str) -> list[SlurmReservation]:
    """The reservations in an answer of slurmrestd."""
    found = _without_errors(answer, where).get("reservations")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TelemetryError(f"{where}: no 'reservations' in this JSON; expected an answer to /reservations.")
    return [_reservation_of_json(each) for each in found]


def _reservation_of_json(told: Mapping[str, Any]) -> SlurmReservation:
    cpus = re.search(r"(?:^|,)cpu=(\d+)", str(told.get("tres") or ""))
    return SlurmReservation(
        str(told.get("name") or ""),
        hosts_in(",".join(_words(told.get("node_list")))),
        _number(told.get("start_time")) or 0.0,
        _number(told.get("end_time")) or math.inf,
        int(cpus[1]) if cpus else None,
    )


# ---- jobs --------------------------------------------------------------------------------------------------------


def read_jobs(text: str, where: str) -> list[SlurmJob]:
    """The jobs in the output of `squeue --json`, or of squeue in our format."""
    if text.lstrip()[:1] == "{":
        return jobs_in(_parsed(text, where), where)
    return [_job_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]


def jobs_in(answer: Any, where: str) -> list[SlurmJob]:
    """The jobs in an answer of `squeue --json`, `scontrol show jobs --json` or slurmrestd."""
    jobs = _without_errors(answer, where).get("jobs")
    if _number(answer.get("last_update")) == 0:
        raise TelemetryError(f"{where}: Slurm tells no jobs and no time at which it looked. Is slurmctld running?")
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise TelemetryError(f"{where}: no 'jobs' in this JSON; expected 'squeue --json'.")
    return [_job_of_json(job) for job in jobs]


def _job_of_json(job: Mapping[str, Any]) -> SlurmJob:
    nodes = max(int(_number(job.get("node_count")) or 1), 1)
    gres = _gres_of(job, nodes)
    gpus = sum(count for _, count in gres)
    each_cpu = sum(count for _, count in gpus_in(str(job.get("cpus_per_tres") or "")))
    each_mib = sum(count for _, count in gpus_in(str(job.get("memory_per_tres") or "")))
    cpus = max(_number(job.get("cpus")) or 0.0, float(each_cpu * gpus))  # of a waiting job Slurm tells one task's
    per_node, per_cpu = _number(job.get("memory_per_node")), _number(job.get("memory_per_cpu"))
    limit_min = _number(job.get("time_limit"))
    states = tuple(word.upper() for word in _words(job.get("job_state"))) or ("UNKNOWN",)
    code, signal = _exit(job.get("exit_code"))
    task = _number(job.get("array_task_id"))
    array = int(_number(job.get("array_job_id")) or 0)
    return SlurmJob(
        id=str(job.get("job_id", "")),
        user=str(job.get("user_name") or ""),
        name=str(job.get("name") or ""),
        state=states[0],
        partition=str(job.get("partition") or ""),
        nodes=nodes,
        cpus=cpus,
        memory_mib=float(each_mib * gpus) or (per_node * nodes if per_node else (per_cpu or 0.0) * cpus),
        gres=gres,
        limit_s=None if limit_min is None else limit_min * 60,
        submit_unix=_number(job.get("submit_time")) or None,
        start_unix=_number(job.get("start_time")) or None,
        node_list=str(job.get("nodes") or ""),
        priority=_number(job.get("priority")) or 0.0,
        states=states,
        reason=str(job.get("state_reason") or ""),
        description=str(job.get("state_description") or ""),
        comment=str(job.get("comment") or ""),
        exit_code=code,
        signal=signal,
        restarts=int(_number(job.get("restart_cnt")) or 0),
        end_unix=_number(job.get("end_time")) or None,
        required_nodes=",".join(_words(job.get("required_nodes"))),
        excluded_nodes=",".join(_words(job.get("excluded_nodes"))),
        features=str(job.get("features") or ""),
        dependency=str(job.get("dependency") or ""),
        per_node=str(job.get("tres_per_node") or ""),
        per_job=str(job.get("tres_per_job") or ""),
        detail=tuple(str(line) for line in job.get("gres_detail") or ()),
        array=str(array) if array else "",
        task=None if task is None or not array else int(task),
        tasks=str(job.get("array_task_string") or "") if task is None else "",
        at_once=int(_number(job.get("array_max_tasks")) or 0),
        reservation=str(job.get("resv_name") or ""),
        is_het=bool(_number(job.get("het_job_id"))),
        may_requeue=job.get("requeue") is not False,
        special=", ".join(_special(job, nodes)),
        account=str(job.get("account") or ""),
        qos=str(job.get("qos") or ""),
        admin_comment=str(job.get("admin_comment") or ""),
    )


SHARED_ALL_RIGHT: Final = frozenset(["", "shared", "oversubscribe"])
"""Values of `shared` with which a job may have neighbours on its nodes. Others are --exclusive and its kinds."""

BINDING: Final = ("sockets_per_node", "cores_per_socket", "threads_per_core", "tasks_per_core", "tasks_per_socket")
SET_ASIDE: Final = ("core_spec", "thread_spec")
CORE_SPEC_UNSET: Final = 32_766
"""What 24.11 writes where no thread is set aside."""


def _special(job: Mapping[str, Any], nodes: int) -> Iterator[str]:
    """What a job asks for that our rules have no word for: it is Slurm's to place."""
    for key, option in (("tres_per_task", "--gpus-per-task"), ("tres_per_socket", "--gpus-per-socket")):
        if job.get(key):
            yield f"it asks for {option}"
    shared = {word.lower() for word in _words(job.get("shared"))}
    if shared - SHARED_ALL_RIGHT:
        yield "it asks for nodes of its own (--exclusive)"
    if (_number(job.get("max_nodes")) or 0) > nodes:
        yield "it asks for a range of nodes"
    if job.get("contiguous") is True:
        yield "it asks for neighbouring nodes (--contiguous)"
    if job.get("licenses"):
        yield "it asks for licences"
    if job.get("burst_buffer"):
        yield "it asks for a burst buffer"
    if any(0 < (_number(job.get(key)) or 0) < CORE_SPEC_UNSET for key in SET_ASIDE):
        yield "it asks for cores for the system (--core-spec)"
    if any(_number(job.get(key)) for key in BINDING):
        yield "it asks for a layout of sockets, cores or threads"
    if "GRES_ENFORCE_BIND" in _words(job.get("flags")):
        yield "it binds GPUs to cores (--gres-flags)"


def _gres_of(job: Mapping[str, Any], nodes: int) -> tuple[tuple[str, int], ...]:
    """The GPUs of the whole job: those it holds, else those asked for in all, for each task, or on each node."""
    held: dict[str, int] = {}
    for word, devices in (found for line in job.get("gres_detail") or () for found in devices_in(str(line))):
        held[word] = held.get(word, 0) + len(devices)
    if held:
        return tuple(held.items())
    tasks = max(int(_number(job.get("tasks")) or 1), 1)
    for key, times in (("tres_per_job", 1), ("tres_per_task", tasks), ("tres_per_node", nodes)):
        if found := gpus_in(str(job.get(key) or "")):
            return tuple((word, count * times) for word, count in found)
    return ()


def _exit(value: Any) -> tuple[int | None, int | None]:
    """The exit code and the signal: 22.05 tells the status of wait(2), 24.11 both in words."""
    if isinstance(value, dict):
        found = value.get("signal")
        number = found.get("signal_id", found.get("id")) if isinstance(found, dict) else None
        signal = _number(number)
        code = _number(value.get("return_code"))
        return None if code is None else int(code), int(signal) if signal else None
    status = _number(value)
    return (None, None) if status is None else (int(status) >> 8, (int(status) & 127) or None)


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
    models = {model.name for word, _ in job.gres if word and (model := model_of(INDEX_TYPE.sub("", word))) is not None}
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


def devices_in(detail: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The devices that a job holds on a node: (("v100", (0, 1)),) for gpu:v100:2(IDX:0-1). No type without any."""
    found = ((word or "", whole_numbers(numbers)) for word, numbers in _DEVICES.findall(detail))
    return tuple((word, numbers) for word, numbers in found if numbers)


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
