"""Slurm accounting: `sacct --parsable2`, `sacct --json`, and the columns of MIT SuperCloud and of NREL Eagle."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from adlro.core.errors import TraceError
from adlro.core.tables import Floats
from adlro.ingest.host_lists import gpus_in, hosts_in
from adlro.ingest.traces.cells import Cells, clock_time
from adlro.ingest.traces.rows import Labels, Rows, first_told
from adlro.ingest.traces.source import TraceFile, read_whole
from adlro.ingest.traces.tabulate import Trace

_NEVER: Final = float("nan")
NO_LIMIT_MIN: Final = 4_294_967_295 - 1  # Slurm's NO_VAL and INFINITE in 32 bits
_MIB_PER: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1.0}
UNFINISHED: Final = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "COMPLETING")

MEMORY: Final = re.compile(r"(?:^|,)mem=([\d.]+)([KMGT]?)")
CPUS: Final = re.compile(r"(?:^|,)cpu=(\d+)")

MIT_MEMORY: Final = re.compile(r"(?:^|,)2=(\d+)")
MIT_GPUS: Final = re.compile(r"(?:^|,)100[12]=(\d+)")


def read_sacct(cells: Cells) -> Rows:
    """`sacct --parsable2`: JobID and Submit, and the other columns of --format."""
    tres = cells.first_of("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
    places, nodes = cells.labels("NodeList"), _nodes_of_each(cells)
    start, end = cells.time("Start"), cells.time("End")
    elapsed = cells.number("ElapsedRaw") if cells.has("ElapsedRaw") else cells.parsed("Elapsed", clock_time)
    limit = cells.number("TimelimitRaw") * 60
    if not cells.has("TimelimitRaw"):
        limit = cells.parsed("Timelimit", clock_time)
    state = cells.reworded("State", lambda text: text.split(" ")[0].rstrip("+"))
    cpus = cells.number(cells.first_of("AllocCPUS", "NCPUS", "ReqCPUS"))
    in_tres = cells.parsed(tres, lambda text: _one(CPUS, text))
    gpus = _gpus_of_each(cells, tres, nodes)
    unfinished = _states(state, len(cells), UNFINISHED)
    elapsed = np.where(np.isnan(elapsed), end - start, elapsed)
    return Rows(
        line=cells.line,
        submit=cells.time("Submit"),
        duration=elapsed,
        gpus=gpus,
        given={"cpus": np.where(np.isnan(cpus), in_tres, cpus), "memory_gb": cells.parsed(tres, memory_gb_in_tres)},
        limit=np.where(limit > 0, limit, _NEVER),
        user=cells.labels(cells.first_of("User", "UID")),
        name=cells.labels(cells.first_of("JobName", "Partition")),
        models=cells.reworded(cells.first_of("ReqTRES"), type_in),
        types=gpu_types(cells),
        places=places,
        nodes=nodes,
        id=cells.columns[cells.first_of("JobIDRaw", "JobID") or "JobID"],
        aside={
            "job step": cells.parsed("JobID", lambda text: "." in text) == 1,
            "never started": _never_started(cells, elapsed, state),
            "not finished": unfinished,
        },
    )


TELL_GPUS: Final = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")


def check_sacct(source: TraceFile, names: Sequence[str]) -> None:
    """Refuse a table that only looks like one of sacct: its GPUs are in columns that sacct does not have."""
    other = [name for name in names if "gpu" in name.lower()]
    if other and not set(TELL_GPUS) & set(names):
        raise TraceError(
            f"'{source.path}' has JobID and Submit as sacct writes them, but GPUs in columns that sacct does not have "
            f"({', '.join(other)}); expected {' or '.join(TELL_GPUS)}. Describe them in a map: `adlro trace map` "
            "proposes one for --columns."
        )


def _never_started(cells: Cells, elapsed: Any, state: Labels | None) -> Any:
    """Jobs that were cancelled or failed while they waited: no start, or no time used."""
    no_start = np.isnan(cells.time("Start")) if cells.has("Start") else np.zeros(len(cells), bool)
    gone = _states(state, len(cells), ("CANCELLED", "PENDING", "DEADLINE", "BOOT_FAIL"))
    return gone & (no_start | (elapsed == 0))


def _states(state: Labels | None, count: int, words: tuple[str, ...]) -> Any:
    if state is None:
        return np.zeros(count, bool)
    return np.array([text in words for text in state.texts], bool)[state.codes]


def read_mit(cells: Cells) -> Rows:
    """MIT SuperCloud. Its ids were rounded and may collide, so equal ids are not repeated rows."""
    limit = cells.number("timelimit")
    tres = cells.first_of("tres_alloc", "tres_req")
    return Rows(
        line=cells.line,
        submit=cells.time("time_submit"),
        duration=cells.time("time_end") - cells.time("time_start"),
        gpus=cells.parsed(tres, lambda text: _one(MIT_GPUS, text, 0.0)),
        given={
            "cpus": cells.number("cpus_req"),
            "memory_gb": cells.parsed(tres, lambda text: _one(MIT_MEMORY, text, 0.0) / 1024),
        },
        limit=np.where((limit > 0) & (limit < NO_LIMIT_MIN), limit * 60, _NEVER),
        user=cells.labels("id_user"),
        name=cells.labels(cells.first_of("job_type", "partition")),
        aside={"never started": cells.number("time_start") == 0},
    )


def read_nrel(cells: Cells) -> Rows:
    """NREL Eagle. The tasks of an array share their id, so equal ids are not repeated rows."""
    run, limit = cells.number("run_time"), cells.number("wallclock_req")
    start = cells.time("start_time")
    return Rows(
        line=cells.line,
        submit=cells.time("submit_time"),
        duration=np.where(np.isnan(run), cells.time("end_time") - start, run),
        gpus=np.nan_to_num(cells.number("gpus_req")),
        given={"cpus": cells.number("processors_req")},  # mem_req is not used: its unit is not documented
        limit=np.where(limit > 0, limit, _NEVER),
        user=cells.labels("user"),
        name=cells.labels("name"),
        aside={"never started": np.isnan(start) & cells.is_in("state", ("CANCELLED", "PENDING"))},
    )


def gpus_in_tres(tres: str) -> float:
    """GPUs in a list of resources; 0 if it names none. Slurm lists them once in all, and once by type."""
    found = gpus_in(tres)
    in_all = [count for word, count in found if not word]
    return float(in_all[0] if in_all else sum(count for _word, count in found))


def types_in(tres: str) -> list[str]:
    """The types of the GPUs in a list of resources, as this site calls them."""
    return list(dict.fromkeys(word for word, _count in gpus_in(tres) if word))


def type_in(tres: str) -> str:
    """The GPU type that a request names, if it names one."""
    types = types_in(tres)
    return types[0] if len(types) == 1 else ""


def _gpus_of_each(cells: Cells, tres: str | None, nodes: Floats) -> Floats:
    """GPUs of each job: as its resources say, or where they name none, as the columns of older versions say."""
    gpus = cells.parsed(tres, gpus_in_tres) if tres and tres != "ReqGRES" else np.zeros(len(cells))
    if cells.has("AllocGRES"):
        return np.where(gpus == 0, cells.parsed("AllocGRES", gpus_in_tres), gpus)
    if cells.has("ReqGRES") and tres != "AllocTRES":  # what is asked of each node
        return np.where(gpus == 0, cells.parsed("ReqGRES", gpus_in_tres) * np.fmax(nodes, 1.0), gpus)
    return gpus


def _nodes_of_each(cells: Cells) -> Floats:
    """How many nodes each job had; nan where the trace does not tell."""
    counted = cells.number(cells.first_of("NNodes", "AllocNodes"))
    listed = cells.parsed("NodeList", lambda text: float(len(hosts_in(text))) or _NEVER)
    return np.where(np.isnan(counted), listed, counted)


def gpu_types(cells: Cells) -> Labels | None:
    """The types of the GPUs that each job had: as allocated, or the one type that it asked for."""
    columns = [name for name in ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES") if cells.has(name)]
    found = None
    for name in columns:
        mine = cells.reworded(name, lambda text: "|".join(types_in(text)))
        found = mine if found is None or mine is None else first_told(found, mine)
    return found


def memory_gb_in_tres(tres: str) -> float:
    """Main memory in a list of resources."""
    found = MEMORY.search(tres)
    try:
        return float(found[1]) * _MIB_PER[found[2]] / 1024 if found else 0.0
    except ValueError:
        return 0.0


def _one(pattern: re.Pattern[str], text: str, otherwise: float = _NEVER) -> float:
    found = pattern.search(text)
    return float(found[1]) if found else otherwise


# ---- JSON --------------------------------------------------------------------------------------------------------


def is_sacct_json(head: bytes) -> bool:
    """Whether the text is one JSON object with a list of jobs."""
    start = head.lstrip()
    return start.startswith(b"{") and (b'"jobs"' in start or b'"meta"' in start)


def read_sacct_json(source: TraceFile) -> Trace:
    """`sacct --json`, which is one document and must fit in memory."""
    try:
        found = json.loads(read_whole(source))
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        raise TraceError(f"'{source.path}' is not the JSON of `sacct --json`: {reason}.") from None
    jobs = found.get("jobs") if isinstance(found, dict) else None
    if not isinstance(jobs, list):
        raise TraceError(f"'{source.path}': expected an object with a list 'jobs', as `sacct --json` writes.")
    broken: list[int] = []
    return Trace(_json_parts(jobs, broken), broken, notes=("row numbers count the jobs of the list",))


def _json_parts(jobs: list[Any], broken: list[int]) -> Iterator[Rows]:
    """The jobs as cells of `sacct --parsable2`, so that there is one reading of them."""
    import pyarrow

    texts: dict[str, list[str | None]] = {name: [] for name in JSON_COLUMNS}
    lines = []
    for number, job in enumerate(jobs, start=1):
        if not isinstance(job, dict):
            broken.append(number)
            continue
        lines.append(number)
        for name, value in _json_cells(job).items():
            texts[name].append(value)
    if lines:
        columns = {name: pyarrow.array(column, pyarrow.string()) for name, column in texts.items()}
        yield read_sacct(Cells(columns, np.array(lines, np.int64)))


JSON_COLUMNS: Final = (
    "JobID", "Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw", "AllocTRES", "ReqTRES", "User", "JobName",
    "State", "NCPUS", "NodeList", "NNodes",
)  # fmt: skip


def _json_cells(job: dict[str, Any]) -> dict[str, str | None]:
    """One job as cells; a start of 0 means that it did not start."""
    time, tres, state = (part if isinstance(part := job.get(key), dict) else {} for key in ("time", "tres", "state"))
    current = state.get("current") if state else job.get("state")
    if isinstance(current, list):
        current = current[0] if current else None
    start = _number(time.get("start"))
    required = job.get("required")
    return {
        "JobID": _text(job.get("job_id")),
        "Submit": _number(time.get("submission")),
        "Start": None if start == "0" else start,
        "End": _number(time.get("end")),
        "ElapsedRaw": _number(time.get("elapsed")),
        "TimelimitRaw": _number(time.get("limit")),
        "AllocTRES": _resources(tres.get("allocated")),
        "ReqTRES": _resources(tres.get("requested")),
        "User": _text(job.get("user")),
        "JobName": _text(job.get("name")),
        "State": _text(current),
        "NCPUS": _number(required.get("CPUs")) if isinstance(required, dict) else None,
        "NodeList": _text(job.get("nodes")),
        "NNodes": _number(job.get("allocation_nodes")),
    }


def _number(value: Any) -> str | None:
    """A number, or Slurm's object around one."""
    if isinstance(value, dict):
        value = None if value.get("infinite") or value.get("set") is False else value.get("number")
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    """A text or number as valid text."""
    if not isinstance(value, str | int):
        return None
    return str(value).encode("utf-8", "replace").decode()


def _resources(found: Any) -> str | None:
    """A list of resources in the form cpu=4,mem=16M,gres/gpu=2."""
    words = []
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict) and isinstance(one.get("type"), str):
            name = f"/{one['name']}" if one.get("name") else ""
            words.append(f"{one['type']}{name}={_number(one.get('count')) or 0}")
    return _text(",".join(words)) if words else None
