"""Slurm's jobs and nodes → a snapshot: whose jobs they are, where they run, and what ADLRO noted in their comments.

A job's comment is the one memory that lives as long as the job does. Ours are words that begin with `adlro:`; what
else stands there is the user's and stays.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from adlro.backends.slurm.comments import (
    DEFAULT_PRIORITY,
    IN_COMMENT,
    PROVEN,
    USER_HELD,
    number_of,
    said_in,
    stop_in,
    words_in,
)
from adlro.backends.slurm.models import PATIENCE_S, ClusterLook, is_in, models_for
from adlro.backends.slurm.nodes import NamedNode, Naming, Reserved, down_of
from adlro.backends.slurm.parse_jobs import SlurmJob, job_of
from adlro.backends.slurm.places import parts_of, whole_in
from adlro.backends.slurm.resizing import as_asked, sizes_here
from adlro.backends.slurm.told import ReportedJob, is_held, is_held_for_us, waits_for_us
from adlro.catalogue.speeds import UNKNOWN_FAMILY
from adlro.core.ports import JobState, LiveJob, Setback
from adlro.core.records import Job
from adlro.ingest.host_lists import hosts_in, whole_numbers

MOST_TASKS: Final = 1000
"""How many tasks of one waiting array are looked at; the others follow when these have started."""

_ENDS: Final = {
    "COMPLETED": JobState.FINISHED,
    "CANCELLED": JobState.CANCELLED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "PREEMPTED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "REVOKED": JobState.CANCELLED,
}
ENDED_BY_ITSELF: Final = frozenset(["COMPLETED", "FAILED"])
"""Ends of a job that was told to stop, after which it is put back: many jobs end after their last checkpoint."""

RUNS: Final = frozenset(["RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"])
TASK_LIMIT: Final = "JobArrayTaskLimit"
CLOSED: Final = frozenset(["JobHeldAdmin", TASK_LIMIT, "SpecialExit"])
"""Holds that we may not end: an administrator's, an array's own limit, one that a job asked for when it ended."""

NEVER_STARTS: Final = re.compile(
    r"BadConstraints|Partition(Node|Time)Limit|Invalid(Account|QOS)|AccountNotAllowed|.*PerJob"
)
"""Reasons for which Slurm starts a job nowhere, whoever places it."""

_LIMITS: Final = ("QOS", "Assoc", "Licenses", "Max", TASK_LIMIT)
"""Reasons of a limit of a user, an account, a QOS, a licence or an array: the job starts nowhere until that changes."""

LOST_ITS_PLACE: Final = re.compile(r"NodeDown|PartitionDown|PartitionInactive|JobLaunchFailure|Reservation")
"""Reasons for which a job that was released to a place will not start there."""

STARTING_S: Final = 5.0
"""Slurm looks for backfill every bf_interval seconds, and needs a moment more until it has started a job."""

KEPT_FOR_OTHERS: Final = re.compile(r"Priority$|Resources$|ReqNodeNotAvail")
"""What Slurm says of a job whose GPUs it keeps for another job. ReqNodeNotAvail is also said of nodes that are up: they
belong to a partition in which a job waits. When Slurm has looked for backfill and still says so, its plan is not ours,
and the job is Slurm's to place.
"""


def told_of(
    jobs: Sequence[SlurmJob],
    sites: Mapping[str, NamedNode],
    naming: Naming,
    now_s: float,
    keeps_types: bool,
    reserved: Mapping[str, Reserved] | None = None,
    patience_s: float = PATIENCE_S,
) -> tuple[list[ReportedJob], list[str]]:
    """All jobs, and what is odd about some of them.

    `keeps_types`: this Slurm cannot change a GPU type that was set. `patience_s`: how long it takes Slurm to look for
    backfill.
    """
    look = ClusterLook(
        sites, frozenset(down_of(sites, reserved)), reserved or {}, naming, now_s, keeps_types, patience_s
    )
    told: list[ReportedJob] = []
    busy = _tasks_at_work(jobs)
    for job in without_met_dependencies(jobs):
        if not is_in(job, naming) and not job.node_list and not waits_for_us(job):
            continue
        for each, is_task in _tasks(job, busy, look.notes):
            told.append(_told(each, is_task, look))
    return told, look.notes


DEPENDENCY: Final = re.compile(r"(afterok|afterany|afternotok):(\d+)(?:\((?:un)?fulfilled\))?")


def without_met_dependencies(jobs: Sequence[SlurmJob]) -> Iterator[SlurmJob]:
    """The same jobs; a dependency on jobs that have all ended as it wants is left out.

    Slurm looks at the dependencies of held jobs only every sched_interval (60 s), and does not tell that they have
    changed. Once such a job is released it looks at once. What is not as simple (arrays, singleton) is left to Slurm.
    """
    by_id = {job.id: job for job in jobs}
    for job in jobs:
        clauses = job.dependency.split(",") if job.dependency else []
        is_met = bool(clauses) and all(_is_met(clause, by_id) for clause in clauses)
        yield replace(job, dependency="") if is_met else job


def _is_met(clause: str, by_id: Mapping[str, SlurmJob]) -> bool:
    """Whether one condition of a dependency is met, as far as we can tell."""
    found = DEPENDENCY.fullmatch(clause.strip())
    parent = by_id.get(found[2]) if found else None
    if found is None or parent is None or parent.array or parent.is_het:
        return False
    if parent.state not in _ENDS or "COMPLETING" in parent.states:
        return False
    return found[1] == "afterany" or (found[1] == "afterok") == (parent.state == "COMPLETED")


def _tasks_at_work(jobs: Sequence[SlurmJob]) -> dict[str, int]:
    """For each array, how many of its tasks run or were let go to a place. A task that was given back and waits does
    not count: Slurm may keep it waiting for long."""
    count: dict[str, int] = {}
    for job in jobs:
        waits = job.state == "PENDING" and (is_held(job) or not job.required_nodes)
        if job.task is not None and job.state not in _ENDS and not waits:
            count[job.array] = count.get(job.array, 0) + 1
    return count


def _tasks(job: SlurmJob, busy: Mapping[str, int], notes: list[str]) -> Iterator[tuple[SlurmJob, bool]]:
    """The job itself; for an array, each waiting task. Their names are those that scontrol accepts: 12_3."""
    if job.task is not None:
        is_full = 0 < job.at_once <= busy.get(job.array, 0) and job.state == "PENDING" and is_held(job)
        reason = TASK_LIMIT if is_full else job.reason
        yield replace(job, id=f"{job.array}_{job.task}", reason=reason), True
        return
    if not job.array or not job.tasks or job.state != "PENDING":
        yield job, False
        return
    listed, _, limit = job.tasks.partition("%")
    tasks = whole_numbers(listed)
    if not tasks:
        notes.append(f"array {job.array}: its tasks '{job.tasks[:40]}' cannot be read; it is left to Slurm")
        yield replace(job, special="its list of tasks cannot be read"), False
        return
    if len(tasks) > MOST_TASKS:
        notes.append(f"array {job.array}: {len(tasks)} tasks wait; {MOST_TASKS} are looked at")
    room = max(int(limit) - busy.get(job.array, 0), 0) if limit.isdigit() else len(tasks)
    for position, task in enumerate(tasks[:MOST_TASKS]):
        reason = job.reason if position < room else TASK_LIMIT
        yield replace(job, id=f"{job.array}_{task}", task=task, reason=reason), True


def _told(job: SlurmJob, is_task: bool, look: ClusterLook) -> ReportedJob:
    words = _proven(words_in(job.comment), job)
    stands = _standing(job, words, look)
    state = stands.state
    models: frozenset[str] = frozenset()
    if state is JobState.WAITING:  # also of jobs that are not ours: who looks on wants to know where they could go
        verdict = models_for(job, words, look)
        models = verdict.models
        if verdict.problem and stands.managed and verdict.is_for_good:
            stands = JobStanding(state, False, verdict.problem, Setback.UNPLACEABLE)
        elif verdict.problem and stands.setback is Setback.NONE:
            stands = JobStanding(state, False, verdict.problem)
    ran = state in (JobState.RUNNING, *_ENDS.values()) and job.start_unix is not None
    return ReportedJob(
        LiveJob(
            id=job.id,
            job=_job(job, words, models, look),
            state=state,
            parts=parts_of(job, state, words, look.sites),
            started_s=job.start_unix if ran else None,
            ended_s=job.end_unix if state in _ENDS.values() else None,
            starts=job.restarts + (1 if ran else 0),
            managed=stands.managed,
            exit_code=job.exit_code if state in _ENDS.values() else None,
            signal=job.signal if state in _ENDS.values() else None,
            reason=stands.reason,
            decision=words.get("decision", ""),
            partition=job.partition,
            qos=job.qos,
            setback=stands.setback,
            is_stopping=stands.is_stopping,
        ),
        job,
        words,
        is_task,
        _together(job) if is_task and job.tasks else job.id,
        stands.is_kept_out,
    )


def _together(job: SlurmJob) -> str:
    """The waiting tasks of one record, as one name; the whole array if Slurm has shortened the list with dots."""
    listed = job.tasks.partition("%")[0]
    return job.array if "..." in listed else f"{job.array}_[{listed}]"


@dataclass(frozen=True, slots=True)
class JobStanding:
    """The state of a job, whether it is ours to place, and Slurm's reason."""

    state: JobState
    managed: bool
    reason: str = ""
    setback: Setback = Setback.NONE
    is_kept_out: bool = False  # Slurm keeps its GPUs for another job
    is_stopping: bool = False  # we told it to stop


def _standing(job: SlurmJob, words: Mapping[str, str], look: ClusterLook) -> JobStanding:
    """The state of a job."""
    ours = "decision" in words
    reason = "" if job.reason == "None" else job.reason
    if "COMPLETING" in job.states or job.state == "COMPLETING":
        return JobStanding(JobState.RUNNING, ours, "Completing")  # its GPUs are not free yet
    is_stopping = ours and bool(stop_in(words, job.restarts))
    if is_stopping and job.state in ENDED_BY_ITSELF:
        return JobStanding(JobState.RUNNING, True, "it ended after its signal", is_stopping=True)
    if job.state in _ENDS:
        return JobStanding(_ENDS[job.state], ours, reason)
    if job.state in RUNS:
        return JobStanding(JobState.RUNNING, ours, "Stopping" if is_stopping else reason, is_stopping=is_stopping)
    if job.state == "CONFIGURING":
        return JobStanding(JobState.PLACED, ours, job.reason)
    if job.state != "PENDING":
        return JobStanding(JobState.WAITING, False, job.state)
    if is_held(job):
        return _held(job, words, look.now_s)
    if not ours or not job.required_nodes:
        return JobStanding(JobState.WAITING, False, job.reason)  # Slurm will place it
    return _let_go(job, words, look)


def _held(job: SlurmJob, words: Mapping[str, str], now_s: float) -> JobStanding:
    """A waiting job that is held, by us or by others."""
    if USER_HELD in words:
        return JobStanding(JobState.WAITING, False, "held by its user")
    if not is_held_for_us(job, words) or job.reason in CLOSED or "SPECIAL_EXIT" in job.states:
        return JobStanding(JobState.WAITING, False, job.reason)
    if job.dependency:
        return JobStanding(JobState.WAITING, False, f"Dependency {job.dependency}")
    if not job.restarts and job.begin_unix is not None and job.begin_unix > now_s:
        return JobStanding(JobState.WAITING, False, "BeginTime")
    if "decision" in words and NEVER_STARTS.match(job.reason):
        return JobStanding(JobState.WAITING, False, f"Slurm says {job.reason}", Setback.UNPLACEABLE)
    return JobStanding(JobState.WAITING, True, job.reason)


def _let_go(job: SlurmJob, words: Mapping[str, str], look: ClusterLook) -> JobStanding:
    """The state of a job that we placed and that has not begun."""
    why = job.description or job.reason
    said = f"Slurm says {why}"
    if job.restarts > whole_in(words.get("restarts", "0")):
        return JobStanding(JobState.WAITING, True, f"{job.reason}: put back after it began", Setback.PUT_BACK)
    if not is_in(job, look.naming):
        return JobStanding(JobState.WAITING, False, f"it was moved to partition {job.partition}", Setback.UNPLACEABLE)
    if NEVER_STARTS.match(job.reason):
        return JobStanding(JobState.WAITING, False, said, Setback.UNPLACEABLE)
    if job.reason.startswith(_LIMITS):
        return JobStanding(JobState.WAITING, True, said, Setback.LIMIT)
    if look.down & set(hosts_in(job.required_nodes)) or LOST_ITS_PLACE.match(why):
        return JobStanding(JobState.WAITING, True, said, Setback.PLACE)
    waited_s = look.now_s - number_of(words.get("placed"), look.now_s)
    if waited_s > look.patience_s and KEPT_FOR_OTHERS.match(job.reason):
        text = f"{said} for {waited_s:.0f} s: it keeps the GPUs for another job"
        return JobStanding(JobState.WAITING, False, text, Setback.UNPLACEABLE, is_kept_out=True)
    if waited_s > max(PATIENCE_S, look.patience_s):
        return JobStanding(JobState.WAITING, True, f"{said} for {waited_s:.0f} s", Setback.PLACE)
    return JobStanding(JobState.PLACED, True, job.reason)


def _proven(words: Mapping[str, str], job: SlurmJob) -> dict[str, str]:
    """Words of a comment; those that could give a user GPUs or age count only from where users cannot write."""
    ours = words_in(job.admin_comment)
    others = {name: value for name, value in words.items() if name not in PROVEN}
    return others | {name: ours[name] for name in PROVEN if name in ours}


def _job(job: SlurmJob, words: Mapping[str, str], models: frozenset[str], look: ClusterLook) -> Job:
    """Our record of the submission: Slurm's fields, completed by our words."""
    naming, family = look.naming, words.get("family", "")
    if family and not naming.is_family(family):
        look.notes.append(f"job {job.id}: there is no family '{family[:40]}'; it counts as {UNKNOWN_FAMILY}")
        family = UNKNOWN_FAMILY
    found = family or next((rule.family for rule in naming.families if rule.fits(job)), UNKNOWN_FAMILY)
    submit = job.submit_unix or 0.0
    if job.restarts:  # a requeue overwrites the time; before one, nobody but Slurm is believed
        submit = min(submit, number_of(words.get("submit"), submit))
    estimate = number_of(words.get("estimate"), 0.0)
    ours = job_of(job, naming.model_of, found)
    asked = frozenset[str]() if "bound" in words else ours.models  # bound: the types are our choice, not its wish
    named = frozenset(words["models"].split("+")) if words.get("models") else frozenset()
    # Without our plugin a user can write any comment. So these two count only if Slurm says that the job comes from an
    # account that submits for others, and a priority also where only operators can write it.
    is_for_others = job.user in naming.submitters
    priority = words_in(job.admin_comment).get("priority") or (words.get("priority") if is_for_others else None)
    said = {each.name: said_in(words, each) for each in IN_COMMENT}
    said["sizes"] = sizes_here(job, words, look) if said["sizes"] and said["restartable"] else ""
    return replace(
        ours,
        work=0.0,
        submit_s=submit,
        **as_asked(ours, words),
        **said,
        models=(models & named if models else named) if named else models or asked,
        priority=min(max(number_of(priority, DEFAULT_PRIORITY), 0.0), 1.0),
        user=(words.get("user") if is_for_others else "") or job.user,
        estimate=estimate if estimate > 0 else None,
    )
