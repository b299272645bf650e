"""Slurm's jobs, as `squeue` and slurmrestd show them → records of its own words, and those → our jobs."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from adlro.backends.slurm.fields import (
    devices_in,
    mib_in,
    number_in,
    parsed,
    seconds_in,
    told_in,
    unix_in,
    without_errors,
    words_of,
)
from adlro.backends.slurm.parse import MOST_PRIORITY
from adlro.core.errors import TelemetryError
from adlro.core.records import GpuModel, Job
from adlro.ingest.host_lists import INDEX_TYPE, gpus_in

SQUEUE_FORMAT: Final = "%i|%u|%j|%T|%P|%D|%C|%m|%b|%l|%V|%S|%N|%Q"
"""`squeue --noheader --format=…`: what `read_jobs` reads as text."""


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
    start_unix: float | None  # of a waiting job, when Slurm plans to start it
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
    rigid: str = ""  # why Slurm cannot give it another number of GPUs, in words; "" if it can
    memory_is_per_node: bool = False  # else it follows from the cores
    begin_unix: float | None = None  # it does not start before this time: what --begin asked for, or a delay of Slurm's
    planned_nodes: str | None = None  # where Slurm plans to start it, while it waits; None: Slurm does not say


def read_jobs(text: str, where: str) -> list[SlurmJob]:
    """The jobs in the output of `squeue --json`, or of squeue in our format."""
    if text.lstrip()[:1] == "{":
        return jobs_in(parsed(text, where), where)
    return [_job_of_line(line, where, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]


def jobs_in(answer: Any, where: str) -> list[SlurmJob]:
    """The jobs in an answer of `squeue --json`, `scontrol show jobs --json` or slurmrestd."""
    jobs = without_errors(answer, where).get("jobs")
    if number_in(answer.get("last_update")) == 0:
        raise TelemetryError(f"{where}: Slurm reports no jobs and no time of the reading. Is slurmctld running?")
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise TelemetryError(f"{where}: no 'jobs' in this JSON; expected 'squeue --json'.")
    return [_job_of_json(job) for job in jobs]


def _job_of_json(job: Mapping[str, Any]) -> SlurmJob:
    nodes = max(int(number_in(job.get("node_count")) or 1), 1)
    gres = _gres_of(job, nodes)
    gpus = sum(count for _, count in gres)
    each_cpu = sum(count for _, count in gpus_in(str(job.get("cpus_per_tres") or "")))
    each_mib = sum(count for _, count in gpus_in(str(job.get("memory_per_tres") or "")))
    cpus = max(number_in(job.get("cpus")) or 0.0, float(each_cpu * gpus))  # of a waiting job Slurm tells one task's
    per_node, per_cpu = number_in(job.get("memory_per_node")), number_in(job.get("memory_per_cpu"))
    limit_min = number_in(job.get("time_limit"))
    states = tuple(word.upper() for word in words_of(job.get("job_state"))) or ("UNKNOWN",)
    code, signal = _exit(job.get("exit_code"))
    task = number_in(job.get("array_task_id"))
    array = int(number_in(job.get("array_job_id")) or 0)
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
        submit_unix=number_in(job.get("submit_time")) or None,
        start_unix=number_in(job.get("start_time")) or None,
        begin_unix=number_in(job.get("eligible_time")) or None,
        node_list=str(job.get("nodes") or ""),
        priority=number_in(job.get("priority")) or 0.0,
        states=states,
        reason=str(job.get("state_reason") or ""),
        description=str(job.get("state_description") or ""),
        comment=str(job.get("comment") or ""),
        exit_code=code,
        signal=signal,
        restarts=int(number_in(job.get("restart_cnt")) or 0),
        end_unix=number_in(job.get("end_time")) or None,
        required_nodes=",".join(words_of(job.get("required_nodes"))),
        excluded_nodes=",".join(words_of(job.get("excluded_nodes"))),
        features=str(job.get("features") or ""),
        dependency=str(job.get("dependency") or ""),
        per_node=str(job.get("tres_per_node") or ""),
        per_job=str(job.get("tres_per_job") or ""),
        detail=tuple(str(line) for line in job.get("gres_detail") or ()),
        array=str(array) if array else "",
        task=None if task is None or not array else int(task),
        tasks=str(job.get("array_task_string") or "") if task is None else "",
        at_once=int(number_in(job.get("array_max_tasks")) or 0),
        reservation=str(job.get("resv_name") or ""),
        is_het=bool(number_in(job.get("het_job_id"))),
        may_requeue=job.get("requeue") is not False,
        special=", ".join(_special(job, nodes)),
        account=str(job.get("account") or ""),
        qos=str(job.get("qos") or ""),
        admin_comment=str(job.get("admin_comment") or ""),
        rigid=_rigid(job, nodes),
        memory_is_per_node=bool(per_node),
        planned_nodes=str(job["scheduled_nodes"] or "") if "scheduled_nodes" in job else None,
    )


SHARED_ALL_RIGHT: Final = frozenset(["", "shared", "oversubscribe"])
"""Values of `shared` with which a job may have neighbours on its nodes. Others are --exclusive and its kinds."""

BINDING: Final = ("sockets_per_node", "cores_per_socket", "threads_per_core", "tasks_per_core", "tasks_per_socket")
SET_ASIDE: Final = ("core_spec", "thread_spec")
CORE_SPEC_UNSET: Final = 32_766
"""What 24.11 writes where no thread is set aside."""


def _special(job: Mapping[str, Any], nodes: int) -> Iterator[str]:
    """The requests of a job that our rules do not cover: such a job is Slurm's to place."""
    for key, option in (("tres_per_task", "--gpus-per-task"), ("tres_per_socket", "--gpus-per-socket")):
        if job.get(key):
            yield f"it asks for {option}"
    shared = {word.lower() for word in words_of(job.get("shared"))}
    if shared - SHARED_ALL_RIGHT:
        yield "it asks for nodes of its own (--exclusive)"
    if (number_in(job.get("max_nodes")) or 0) > nodes:
        yield "it asks for a range of nodes"
    if job.get("contiguous") is True:
        yield "it asks for neighbouring nodes (--contiguous)"
    if job.get("licenses"):
        yield "it asks for licences"
    if job.get("burst_buffer"):
        yield "it asks for a burst buffer"
    if any(0 < (number_in(job.get(key)) or 0) < CORE_SPEC_UNSET for key in SET_ASIDE):
        yield "it asks for cores for the system (--core-spec)"
    if any(number_in(job.get(key)) for key in BINDING):
        yield "it asks for a layout of sockets, cores or threads"
    if "GRES_ENFORCE_BIND" in words_of(job.get("flags")):
        yield "it binds GPUs to cores (--gres-flags)"


def _rigid(job: Mapping[str, Any], nodes: int) -> str:
    """Why a job cannot be given another number of GPUs, in words (tried on Slurm 22.05: docs/slurm.md)."""
    if gpus_in(str(job.get("tres_per_job") or "")):
        return "it asks for its GPUs in all (--gpus): Slurm would spread another number over other nodes"
    if nodes > 1:
        return "it asks for several nodes"
    if (number_in(job.get("tasks")) or 1) > 1:
        return "it asks for several tasks"
    if job.get("cpus_per_tres") or job.get("memory_per_tres"):
        return "it asks for cores or memory by GPU, which Slurm does not count again"
    return "it is a task of an array" if number_in(job.get("array_job_id")) else ""


def _gres_of(job: Mapping[str, Any], nodes: int) -> tuple[tuple[str, int], ...]:
    """The GPUs of the whole job: those it holds, else those asked for in all, for each task, or on each node."""
    held: dict[str, int] = {}
    for word, devices in (found for line in job.get("gres_detail") or () for found in devices_in(str(line))):
        held[word] = held.get(word, 0) + len(devices)
    if held:
        return tuple(held.items())
    tasks = max(int(number_in(job.get("tasks")) or 1), 1)
    for key, times in (("tres_per_job", 1), ("tres_per_task", tasks), ("tres_per_node", nodes)):
        if found := gpus_in(str(job.get(key) or "")):
            return tuple((word, count * times) for word, count in found)
    return ()


def _exit(value: Any) -> tuple[int | None, int | None]:
    """The exit code and the signal: 22.05 tells the status of wait(2), 24.11 both in words."""
    if isinstance(value, dict):
        found = value.get("signal")
        number = found.get("signal_id", found.get("id")) if isinstance(found, dict) else None
        signal = number_in(number)
        code = number_in(value.get("return_code"))
        return None if code is None else int(code), int(signal) if signal else None
    status = number_in(value)
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
            mib_in(memory) * int(nodes),
            tuple((word, count * int(nodes)) for word, count in gpus_in(told_in(gres))),
            seconds_in(limit),
            unix_in(submit),
            unix_in(start),
            places,
            float(priority),
        )
    except ValueError:
        raise TelemetryError(
            f"{where}:{number}: expected 'squeue --json' or squeue --noheader --format='{SQUEUE_FORMAT}'; "
            f"found {line.strip()[:60]!r}."
        ) from None


def job_of(job: SlurmJob, model_of: Callable[[str], GpuModel | None], family: str = "") -> Job:
    """Our record of a submission. Its work is NaN: nobody knows the work of a live job."""
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
