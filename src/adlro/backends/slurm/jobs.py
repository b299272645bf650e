"""Slurm's jobs and nodes → a snapshot: whose jobs they are, where they run, and what ADLRO noted in their comments.

A job's comment is the one memory that lives as long as the job does. Ours are words that begin with `adlro:`; what
else stands there is the user's and stays.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from adlro.backends.slurm.parse import (
    INDEX_TYPE,
    PCIE,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    devices_in,
    gpus_in,
    job_of,
    model_at,
)
from adlro.core.ports import RESERVED, JobState, LiveJob, Part, Setback
from adlro.core.records import CPU_ONLY, Cluster, GpuModel, Gpus, Job, Link, Node
from adlro.core.schema import properties_of, property_of
from adlro.ingest.host_lists import hosts_in, whole_numbers

ModelOf = Callable[[str], GpuModel | None]

HELD: Final = "held"
"""The word of a job that waits for us: adlro:held. job_submit.lua writes it."""

USER_HELD: Final = "userheld"
"""The word of a job that its user holds: adlro:userheld. job_submit.lua writes it; the hold is the user's to end."""

MARKS: Final = frozenset([HELD, USER_HELD])
"""Words without a value."""

RELEASED: Final = "released"
"""The word of a job that was given back to Slurm, with the moment: adlro:released=1794725489."""

PROVEN: Final = ("gpus", "submit")
"""Words that count only in the admin comment: GPUs that ADLRO has taken out of a request, and the first submission."""

DEFAULT_PRIORITY: Final[float] = property_of(Job, "priority").default
IN_COMMENT: Final = tuple(each for each in properties_of(Job) if each.in_comment)
"""What a job asks for that Slurm has no field for: a word of its comment says it."""

UNIFORM: Final = "uniform"
MOST_TASKS: Final = 1000
"""Tasks of one waiting array that are looked at; the others come when these have started."""

ENDS: Final = {
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
RUNS: Final = frozenset(["RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"])
TASK_LIMIT: Final = "JobArrayTaskLimit"
CLOSED: Final = frozenset(["JobHeldAdmin", TASK_LIMIT, "SpecialExit"])
"""Holds that are not ours to end: an administrator's, an array's own limit, one that a job asked for when it ended."""

NEVER_STARTS: Final = re.compile(
    r"BadConstraints|Partition(Node|Time)Limit|Invalid(Account|QOS)|AccountNotAllowed|.*PerJob"
)
"""Reasons for which Slurm starts a job nowhere, whoever places it."""

LIMITS: Final = ("QOS", "Assoc", "Licenses", "Max", TASK_LIMIT)
"""Reasons of a limit of a user, an account, a QOS, a licence or an array: the job starts nowhere until that changes."""

LAUNCH_FAILED: Final = "launch failed"
"""What Slurm says of a job that it holds because a node could not start it. The reason is JobHeldUser all the same."""

LOST_ITS_PLACE: Final = re.compile(
    r"ReqNodeNotAvail(?!, May be reserved)|NodeDown|PartitionDown|PartitionInactive|JobLaunchFailure|Reservation"
)
"""Reasons for which a job that was let go to a place will not start there. "May be reserved" is said for a moment of
any job whose node another job may get first."""

PATIENCE_S: Final = 35.0
"""A job that has not begun in its place for so long has lost it. By then Slurm has looked for backfill too (bf_interval
is 30 s by default).
"""

STARTING_S: Final = 5.0
"""Slurm looks for backfill every bf_interval seconds, and needs a moment more until it has started a job."""

KEPT_FOR_OTHERS: Final = frozenset(["Priority", "Resources"])
"""What Slurm says of a job whose GPUs it keeps for another job. When it has looked for backfill and still says so, its
plan is not ours, and the job is Slurm's to place.
"""

DEFAULT_NETWORK: Final = Link("ethernet-10g", 2.5)
_OURS: Final = re.compile(r"(?:^|(?<=\s))adlro:([a-z]+)(?:=(\S*))?(?=\s|$)", re.ASCII)
"""Only ASCII spaces part words, as for job_submit.lua: what is one word there must not be two here."""

LONGEST_LINE: Final = 160
_LINE: Final = re.compile(r"\[adlro: [^\]]*\]")
"""What users are told in the comment: [adlro: waits for 4 v100 on one node; start about 14:20]."""


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """Jobs whose name, partition or comment fits a pattern are of a family."""

    pattern: re.Pattern[str]
    family: str
    field: str = "name"

    def fits(self, job: SlurmJob) -> bool:
        """Whether this job is meant."""
        return self.pattern.search(str(getattr(job, self.field))) is not None


@dataclass(frozen=True, slots=True)
class Naming:
    """How Slurm's words become ours; who composes the stages passes it in."""

    model_of: ModelOf
    is_family: Callable[[str], bool] = lambda name: True
    nearest: Callable[[str], Sequence[str]] = lambda kind: ()  # models that an unknown GPU type may mean
    families: tuple[FamilyRule, ...] = ()
    partitions: frozenset[str] = frozenset()  # only these, with their nodes; none: all
    links: Mapping[str, Link] = field(default_factory=dict)  # inside a node, by its name
    network: Link = DEFAULT_NETWORK
    name: str = "slurm"
    submitters: frozenset[str] = frozenset()  # accounts that submit jobs of others, and say in a comment whose


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of one model on one node: Slurm's type of each, and its number on the node, in order of our index."""

    types: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def have_types_each(self) -> bool:
        """Whether each device has a type of its own, so that it can be asked for by index."""
        return len(set(self.types)) == len(self.types) and all(INDEX_TYPE.search(word) for word in self.types)


@dataclass(frozen=True, slots=True)
class Site:
    """A node with its devices by our model names."""

    node: SlurmNode
    devices: Mapping[str, Devices]


@dataclass(frozen=True, slots=True)
class Told:
    """A job as it was last told: what must be known to give orders about it."""

    live: LiveJob
    job: SlurmJob
    words: Mapping[str, str]
    is_task: bool = False  # a task of an array, which an order may have to split off first
    together: str = ""  # the tasks that wait in one record with it, as one name: 12_[3,7]

    @property
    def is_pending(self) -> bool:
        """Whether it waits in Slurm's eyes."""
        return self.job.state == "PENDING"

    @property
    def is_held(self) -> bool:
        """Whether it will not start before it is let go."""
        return self.is_pending and is_held(self.job)

    @property
    def is_pinned(self) -> bool:
        """Whether it may start at named nodes only."""
        return bool(self.job.required_nodes)

    @property
    def restarts(self) -> int:
        """How often it began and was put back."""
        return self.job.restarts

    @property
    def requeued_s(self) -> float:
        """When it was last put back: Slurm overwrites the time of its submission then. 0 if it never was."""
        return (self.job.submit_unix or 0.0) if self.job.restarts else 0.0

    @property
    def asked(self) -> str:
        """The GPUs asked for on each node, in Slurm's words; "" if none are, or if they are asked for otherwise."""
        return ",".join(f"gpu:{word}:{count}" if word else f"gpu:{count}" for word, count in gpus_in(self.job.per_node))

    @property
    def is_per_job(self) -> bool:
        """Whether its GPUs are asked for in all, however many nodes they are on."""
        return bool(gpus_in(self.job.per_job))

    @property
    def may_requeue(self) -> bool:
        """Whether it may be put back once it has begun."""
        return self.job.may_requeue

    @property
    def is_ours_to_give_back(self) -> bool:
        """Whether it waits because of us: held for us, or let go to a place and not begun."""
        if not self.is_pending or not self.words or RELEASED in self.words or self.job.reason == "JobHeldAdmin":
            return False
        return is_held_for_us(self.job, self.words) or (
            not self.is_held and self.is_pinned and "decision" in self.words
        )

    def comment(self, line: str = "", **words: str) -> str:
        """Its comment with these words of ours in place of those of the same name; an empty word is taken away.

        `line` is what users are told.
        """
        return comment_with(self.job.comment, {**self.words, **words}, line)

    def admin_comment(self, **words: str) -> str:
        """Its admin comment with these words of ours, which users cannot write."""
        return comment_with(self.job.admin_comment, words_in(self.job.admin_comment) | words)

    @property
    def line(self) -> str:
        """What users are told in its comment now."""
        found = _LINE.search(self.job.comment)
        return found[0][len("[adlro: ") : -1] if found else ""


def words_in(comment: str) -> dict[str, str]:
    """Our words in a comment: {"decision": "17", "held": "yes"}."""
    words = _OURS.findall(_LINE.sub(" ", comment))
    return {name: value or ("yes" if name in MARKS else "") for name, value in words}


def comment_with(comment: str, words: Mapping[str, str], line: str = "") -> str:
    """A comment with exactly these words of ours and this line for users, and the user's own text before them.

    A mark such as `held` has no value: any value but "" keeps it.
    """
    text = " ".join(re.findall(r"\S+", _OURS.sub(" ", _LINE.sub(" ", comment)), re.ASCII))
    ours = [f"adlro:{name}" if name in MARKS else f"adlro:{name}={value}" for name, value in words.items() if value]
    told = [f"[adlro: {re.sub(r'[^ -Z^-~]', ' ', line)[:LONGEST_LINE]}]"] if line else []
    return " ".join([*([text] if text else []), *told, *ours])


# ---- nodes -------------------------------------------------------------------------------------------------------


def sites_of(nodes: Sequence[SlurmNode], naming: Naming) -> tuple[dict[str, Site], list[str]]:
    """The nodes that are ours by name, and a line for each GPU type that the catalogue does not have."""
    sites, problems = {}, {}
    for node in nodes:
        if naming.partitions and not naming.partitions & set(node.partitions):
            continue
        found: dict[str, list[tuple[str, int]]] = {}
        number = 0
        for word, count in node.gres:
            model = model_at(word, node.features, naming.model_of)
            if model is None:
                key, (guess, *others) = word or '""', naming.nearest(word) or ("MODEL",)
                also = f" (or {', '.join(others)})" if others else ""
                problems[word] = (
                    f"node {node.name}: the GPU type '{word or '(none)'}' is not in the catalogue; its {count} GPUs "
                    f"are left out. Name its model in ADLRO's config, under [slurm.types]: "
                    f"{key} = \"{guess}\"{also}; 'adlro gpus' lists all models."
                )
            else:
                found.setdefault(model.name, []).extend((word, number + each) for each in range(count))
            number += count
        sites[node.name] = Site(
            node,
            {
                model: Devices(tuple(word for word, _ in pairs), tuple(number for _, number in pairs))
                for model, pairs in found.items()
            },
        )
    return sites, list(problems.values())


def cluster_of(sites: Mapping[str, Site], naming: Naming) -> Cluster:
    """Our record of the nodes. Slurm does not tell how GPUs and nodes are joined: a cluster file does, or a guess."""
    nodes = tuple(
        Node(
            name,
            site.node.cpus,
            site.node.memory_mib * 1024**2 / 1e9,
            tuple(Gpus(model, len(devices.types)) for model, devices in site.devices.items()),
            naming.links.get(name, PCIE),
        )
        for name, site in sites.items()
    )
    models = {
        model: found
        for site in sites.values()
        for model in site.devices
        if (found := naming.model_of(model)) is not None
    }
    return Cluster(naming.name, "a live Slurm", nodes, naming.network, models)


def down_of(sites: Mapping[str, Site], reserved: Mapping[str, "Reserved"] | None = None) -> dict[str, str]:
    """Nodes that take no jobs of ours, and why: those that are down in Slurm's words, and those that are reserved."""
    down = {name: kept.in_words for name, kept in (reserved or {}).items() if kept.is_active and name in sites}
    down |= {
        name: " ".join(filter(None, ["+".join(site.node.state).lower(), site.node.reason]))
        for name, site in sites.items()
        if not site.node.is_up
    }
    return down


@dataclass(frozen=True, slots=True)
class Reserved:
    """A node that Slurm keeps for somebody, now or soon."""

    name: str  # of the reservation
    start_unix: float
    end_unix: float
    is_active: bool

    @property
    def in_words(self) -> str:
        """For people."""
        if self.is_active:
            return f"{RESERVED} ({self.name}) until {_clock(self.end_unix)}"
        return f"{RESERVED} ({self.name}) from {_clock(self.start_unix)}"


def _clock(unix: float) -> str:
    """A moment in this machine's time zone."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %Z") if unix < 1e11 else "further notice"


def reserved_nodes(
    reservations: Sequence[SlurmReservation], sites: Mapping[str, Site], now_s: float
) -> dict[str, Reserved]:
    """The nodes that are reserved whole, each with the first of its reservations that is not over.

    Part of a node (some of its CPUs) is left to Slurm: it knows which part, and refuses what does not fit.
    """
    found: dict[str, Reserved] = {}
    for each in sorted(reservations, key=lambda one: one.start_unix):
        known = [sites[name] for name in each.nodes if name in sites]
        is_part = (
            each.cpus is not None and len(known) == len(each.nodes) and each.cpus < sum(s.node.cpus for s in known)
        )
        if is_part or each.end_unix <= now_s:
            continue
        for name in each.nodes:
            found.setdefault(name, Reserved(each.name, each.start_unix, each.end_unix, each.start_unix <= now_s))
    return found


# ---- jobs --------------------------------------------------------------------------------------------------------


def is_held(job: SlurmJob) -> bool:
    """Whether a waiting job will not start before somebody lets it go."""
    return job.priority == 0 or job.reason.startswith("JobHeld")


def is_held_for_us(job: SlurmJob, words: Mapping[str, str]) -> bool:
    """Whether a job is held because ADLRO shall place it. A hold of its user or of an administrator is theirs to end.

    A job that we placed is held again without our mark when its user holds it. Slurm itself holds it when it cannot
    start there; that one is ours too.
    """
    if not is_held(job) or RELEASED in words or USER_HELD in words:
        return False
    is_slurms = not job.reason.startswith("JobHeld") or job.description.startswith(LAUNCH_FAILED)
    return HELD in words or ("decision" in words and is_slurms)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks of nodes. Many jobs have the same, so it is looked up once for each."""

    partition: str
    excluded: str
    features: str
    types: frozenset[str]
    bound: str  # the model that it cannot leave
    has_gpus: bool
    nodes: int
    each: int  # GPUs on each of its nodes, if it must have so many
    on_one: int  # GPUs that must be on one node
    reserved: frozenset[str]  # nodes that are reserved before it would end


@dataclass(frozen=True, slots=True)
class Verdict:
    """The models that a job may get (none: all of them); else why we do not place it now.

    Not `is_for_good`: it only has to wait.
    """

    models: frozenset[str] = frozenset()
    problem: str = ""
    is_for_good: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the cluster, as far as all its jobs share it."""

    sites: Mapping[str, Site]
    down: frozenset[str]
    reserved: Mapping[str, Reserved]
    naming: Naming
    now_s: float
    keeps_types: bool
    patience_s: float = PATIENCE_S
    notes: list[str] = field(default_factory=list)
    answers: dict[Wish, Verdict] = field(default_factory=dict)


def told_of(
    jobs: Sequence[SlurmJob],
    sites: Mapping[str, Site],
    naming: Naming,
    now_s: float,
    keeps_types: bool,
    reserved: Mapping[str, Reserved] | None = None,
    patience_s: float = PATIENCE_S,
) -> tuple[list[Told], list[str]]:
    """All jobs, and what is odd about some of them.

    `keeps_types`: this Slurm cannot change a GPU type that was set. `patience_s`: how long it takes Slurm to look for
    backfill.
    """
    look = Look(sites, frozenset(down_of(sites, reserved)), reserved or {}, naming, now_s, keeps_types, patience_s)
    told: list[Told] = []
    busy = _tasks_at_work(jobs)
    for job in without_met_dependencies(jobs):
        if not _is_in(job, naming) and not job.node_list and not waits_for_us(job):
            continue
        for each, is_task in _tasks(job, busy, look.notes):
            told.append(_told(each, is_task, look))
    return told, look.notes


def waits_for_us(job: SlurmJob) -> bool:
    """Whether a job is held for us, or was let go to a place of ours and has not begun."""
    words = words_in(job.comment)
    was_placed = job.state == "PENDING" and "decision" in words and bool(job.required_nodes) and not is_held(job)
    return was_placed or is_held_for_us(job, words)


def _is_in(job: SlurmJob, naming: Naming) -> bool:
    """Whether a job was submitted to one of our partitions."""
    return not naming.partitions or bool(naming.partitions & set(job.partition.split(",")))


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
    if parent.state not in ENDS or "COMPLETING" in parent.states:
        return False
    return found[1] == "afterany" or (found[1] == "afterok") == (parent.state == "COMPLETED")


def _tasks_at_work(jobs: Sequence[SlurmJob]) -> dict[str, int]:
    """For each array, how many of its tasks have been let go and have not ended."""
    count: dict[str, int] = {}
    for job in jobs:
        if job.task is not None and job.state not in ENDS and not (job.state == "PENDING" and is_held(job)):
            count[job.array] = count.get(job.array, 0) + 1
    return count


def _tasks(job: SlurmJob, busy: Mapping[str, int], notes: list[str]) -> Iterator[tuple[SlurmJob, bool]]:
    """A job; or, of an array, each task that waits. Their names are those that scontrol takes: 12_3."""
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


def _told(job: SlurmJob, is_task: bool, look: Look) -> Told:
    words = _proven(words_in(job.comment), job)
    stands = _standing(job, words, look)
    state = stands.state
    models: frozenset[str] = frozenset()
    if state is JobState.WAITING:  # also of jobs that are not ours: who looks on wants to know where they could go
        verdict = _models_for(job, words, look)
        models = verdict.models
        if verdict.problem and stands.managed and verdict.is_for_good:
            stands = Standing(state, False, verdict.problem, Setback.UNPLACEABLE)
        elif verdict.problem and stands.setback is Setback.NONE:
            stands = Standing(state, False, verdict.problem)
    ran = state in (JobState.RUNNING, *ENDS.values()) and job.start_unix is not None
    return Told(
        LiveJob(
            id=job.id,
            job=_job(job, words, models, look),
            state=state,
            parts=_parts(job, state, words, look.sites),
            started_s=job.start_unix if ran else None,
            ended_s=job.end_unix if state in ENDS.values() else None,
            starts=job.restarts + (1 if ran else 0),
            managed=stands.managed,
            exit_code=job.exit_code if state in ENDS.values() else None,
            signal=job.signal if state in ENDS.values() else None,
            reason=stands.reason,
            decision=words.get("decision", ""),
            partition=job.partition,
            qos=job.qos,
            setback=stands.setback,
        ),
        job,
        words,
        is_task,
        _together(job) if is_task and job.tasks else job.id,
    )


def _together(job: SlurmJob) -> str:
    """The tasks that wait in one record, as one name; the whole array where Slurm has shortened the list with dots."""
    listed = job.tasks.partition("%")[0]
    return job.array if "..." in listed else f"{job.array}_[{listed}]"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands, whether it is ours to place, and Slurm's reason."""

    state: JobState
    managed: bool
    reason: str = ""
    setback: Setback = Setback.NONE


def _standing(job: SlurmJob, words: Mapping[str, str], look: Look) -> Standing:
    """Where a job stands."""
    ours = "decision" in words
    reason = "" if job.reason == "None" else job.reason
    if "COMPLETING" in job.states or job.state == "COMPLETING":
        return Standing(JobState.RUNNING, ours, "Completing")  # its GPUs are not free yet
    if job.state in ENDS:
        return Standing(ENDS[job.state], ours, reason)
    if job.state in RUNS:
        return Standing(JobState.RUNNING, ours, reason)
    if job.state == "CONFIGURING":
        return Standing(JobState.PLACED, ours, job.reason)
    if job.state != "PENDING":
        return Standing(JobState.WAITING, False, job.state)
    if is_held(job):
        return _held(job, words, look.now_s)
    if not ours or not job.required_nodes:
        return Standing(JobState.WAITING, False, job.reason)  # Slurm will place it
    return _let_go(job, words, look)


def _held(job: SlurmJob, words: Mapping[str, str], now_s: float) -> Standing:
    """A waiting job that is held, by us or by others."""
    if USER_HELD in words:
        return Standing(JobState.WAITING, False, "held by its user")
    if not is_held_for_us(job, words) or job.reason in CLOSED or "SPECIAL_EXIT" in job.states:
        return Standing(JobState.WAITING, False, job.reason)
    if job.dependency:
        return Standing(JobState.WAITING, False, f"Dependency {job.dependency}")
    if not job.restarts and job.start_unix is not None and job.start_unix > now_s:
        return Standing(JobState.WAITING, False, "BeginTime")
    if "decision" in words and NEVER_STARTS.match(job.reason):
        return Standing(JobState.WAITING, False, f"Slurm says {job.reason}", Setback.UNPLACEABLE)
    return Standing(JobState.WAITING, True, job.reason)


def _let_go(job: SlurmJob, words: Mapping[str, str], look: Look) -> Standing:
    """A job that we placed and that has not begun."""
    why = job.description or job.reason
    said = f"Slurm says {why}"
    if job.restarts > _whole(words.get("restarts", "0")):
        return Standing(JobState.WAITING, True, f"{job.reason}: put back after it began")
    if not _is_in(job, look.naming):
        return Standing(JobState.WAITING, False, f"it was moved to partition {job.partition}", Setback.UNPLACEABLE)
    if NEVER_STARTS.match(job.reason):
        return Standing(JobState.WAITING, False, said, Setback.UNPLACEABLE)
    if job.reason.startswith(LIMITS):
        return Standing(JobState.WAITING, True, said, Setback.LIMIT)
    if look.down & set(hosts_in(job.required_nodes)) or LOST_ITS_PLACE.match(why):
        return Standing(JobState.WAITING, True, said, Setback.PLACE)
    waited_s = look.now_s - _number(words.get("placed"), look.now_s)
    if waited_s > look.patience_s and job.reason in KEPT_FOR_OTHERS:
        text = f"{said} for {waited_s:.0f} s: it keeps the GPUs for another job"
        return Standing(JobState.WAITING, False, text, Setback.UNPLACEABLE)
    if waited_s > max(PATIENCE_S, look.patience_s):
        return Standing(JobState.WAITING, True, f"{said} for {waited_s:.0f} s", Setback.PLACE)
    return Standing(JobState.PLACED, True, job.reason)


def _proven(words: Mapping[str, str], job: SlurmJob) -> dict[str, str]:
    """Words of a comment, those with which a user could gain GPUs or age only from where users cannot write."""
    ours = words_in(job.admin_comment)
    others = {name: value for name, value in words.items() if name not in PROVEN}
    return others | {name: ours[name] for name in PROVEN if name in ours}


def _job(job: SlurmJob, words: Mapping[str, str], models: frozenset[str], look: Look) -> Job:
    """Our record of the submission, with what our words add to Slurm's."""
    naming, family = look.naming, words.get("family", "")
    if family and not naming.is_family(family):
        look.notes.append(f"job {job.id}: there is no family '{family[:40]}'; it counts as {UNIFORM}")
        family = UNIFORM
    found = family or next((rule.family for rule in naming.families if rule.fits(job)), UNIFORM)
    submit = job.submit_unix or 0.0
    if job.restarts:  # a requeue overwrites the time; before one, nobody but Slurm is believed
        submit = min(submit, _number(words.get("submit"), submit))
    estimate = _number(words.get("estimate"), 0.0)
    ours = job_of(job, naming.model_of, found)
    asked = frozenset[str]() if "bound" in words else ours.models  # bound: the types are our choice, not its wish
    named = frozenset(words["models"].split("+")) if words.get("models") else frozenset()
    # Without our plugin a user can write any comment. So these two count only if Slurm says that the job comes from an
    # account that submits for others, and a priority also where only operators can write it.
    is_for_others = job.user in naming.submitters
    priority = words_in(job.admin_comment).get("priority") or (words.get("priority") if is_for_others else None)
    return replace(
        ours,
        work=0.0,
        submit_s=submit,
        gpus=ours.gpus or _whole(words.get("gpus", "0")),
        **{each.name: each.kind(_number(words.get(each.word), each.default)) for each in IN_COMMENT},
        models=(models & named if models else named) if named else models or asked,
        priority=min(max(_number(priority, DEFAULT_PRIORITY), 0.0), 1.0),
        user=(words.get("user") if is_for_others else "") or job.user,
        estimate=estimate if estimate > 0 else None,
    )


def _models_for(job: SlurmJob, words: Mapping[str, str], look: Look) -> Verdict:
    """The models that a waiting job may get, or why we do not place it."""
    if job.is_het:
        return Verdict(problem="it is part of a heterogeneous job")
    if job.reservation:
        return Verdict(problem=f"it asks for the reservation {job.reservation}")
    if not _is_in(job, look.naming):
        return Verdict(problem=f"it is in partition {job.partition}, where ADLRO places no jobs")
    if job.required_nodes and "decision" not in words:
        return Verdict(problem=f"it names its nodes ({job.required_nodes})")
    if job.special:
        return Verdict(problem=job.special)
    each = sum(count for _, count in gpus_in(job.per_node))
    has_gpus = bool(job.gres) or _whole(words.get("gpus", "0")) > 0
    if job.nodes > 1 and not has_gpus:
        return Verdict(problem=f"it asks for {job.nodes} nodes without GPUs")
    is_bound = "bound" in words  # its types are then those of the devices that we chose, and no wish of its own
    wish = Wish(
        job.partition,
        job.excluded_nodes,
        job.features,
        frozenset() if is_bound else frozenset(word for word, _ in gpus_in(f"{job.per_node},{job.per_job}") if word),
        words["bound"] if is_bound and look.keeps_types else "",
        has_gpus,
        job.nodes,
        each if job.nodes > 1 and "decision" not in words else 0,
        max(each, _whole(words.get("gpus", "0"))) if job.nodes == 1 and not gpus_in(job.per_job) else 0,
        _reserved_for(job, look),
    )
    if wish not in look.answers:
        look.answers[wish] = _models_of(wish, look)
    return look.answers[wish]


def _reserved_for(job: SlurmJob, look: Look) -> frozenset[str]:
    """The nodes that are not reserved now, but will be before the job would have to end."""
    end_s = math.inf if job.limit_s is None else look.now_s + job.limit_s
    return frozenset(name for name, kept in look.reserved.items() if not kept.is_active and kept.start_unix < end_s)


def _models_of(wish: Wish, look: Look) -> Verdict:
    """The models that meet a wish (none: all of them), or what is wrong with it.

    We place by model; a job that may use some nodes of a model but not others has a wish for which we have no word.
    """
    partitions, excluded = set(wish.partition.split(",")), set(hosts_in(wish.excluded))
    able: dict[str, set[str]] = {}  # for each model, the nodes that it may use …
    every: dict[str, set[str]] = {}  # … and all that have it
    large = models_with(wish.on_one, look.sites)
    waits_for = ""
    for name, site in look.sites.items():
        if (has := _has_features(wish.features, site.node.features)) is None:
            return Verdict(problem=f"its constraint '{wish.features}' is more than a choice of features")
        fits = bool(has and partitions & set(site.node.partitions) and name not in excluded)
        for model, devices in site.devices.items() if wish.has_gpus else [(CPU_ONLY, None)]:
            every.setdefault(model, set()).add(name)
            if devices is not None and model not in large:
                continue  # it would have to be split over nodes, and asks for one
            if fits and wish.bound in ("", model) and (devices is None or wish.types <= set(devices.types)):
                if name in wish.reserved:
                    waits_for = waits_for or f"{name} is {look.reserved[name].in_words}, before it would end"
                else:
                    able.setdefault(model, set()).add(name)
    if not able:
        return Verdict(problem=waits_for or "no node can ever take it", is_for_good=not waits_for)
    if any(nodes != every[model] for model, nodes in able.items()):
        others = f": {waits_for}" if waits_for else ""
        return Verdict(problem=f"it may use some nodes and not others that are like them{others}")
    if wish.each:  # of several nodes we choose the fewest: it must want whole ones
        found = (site.devices.get(model) for site in look.sites.values() for model in able)
        if {len(devices.types) for devices in found if devices is not None} != {wish.each}:
            return Verdict(problem=f"it asks for {wish.nodes} nodes with {wish.each} GPUs on each")
    return Verdict(frozenset() if len(able) == len(every) else frozenset(able))


def models_with(gpus: int, sites: Mapping[str, Site]) -> set[str]:
    """The models of which some node has so many GPUs. By the rules, a job that fits on one node waits for one."""
    return {model for site in sites.values() for model, devices in site.devices.items() if len(devices.types) >= gpus}


def _has_features(constraint: str, features: Sequence[str]) -> bool | None:
    """Whether a node with these features meets a constraint of words with & , or |; None: it is more than that."""
    if not constraint:
        return True
    if re.search(r"[()\[\]*]", constraint):
        return None
    return any(all(word in features for word in re.split(r"[&,]", part)) for part in constraint.split("|"))


# ---- places ------------------------------------------------------------------------------------------------------


def _parts(job: SlurmJob, state: JobState, words: Mapping[str, str], sites: Mapping[str, Site]) -> tuple[Part, ...]:
    """Where a job runs or ran, or was let go to."""
    if state is JobState.WAITING:
        return ()
    nodes = hosts_in(job.node_list or (job.required_nodes if state is JobState.PLACED else ""))
    if not nodes:
        return ()
    if len(job.detail) == len(nodes) and any(devices_in(line) for line in job.detail):
        told = zip(nodes, job.detail, strict=True)
        return tuple(part for node, line in told for part in _held_parts(node, line, sites.get(node)))
    return tuple(_asked_parts(job, words, nodes, sites))


def _held_parts(node: str, line: str, site: Site | None) -> Iterator[Part]:
    """The devices that Slurm tells, by our models and our index among those of a model on the node."""
    numbers = [number for _, found in devices_in(line) for number in found]
    for model, devices in site.devices.items() if site else ():
        ours = tuple(devices.numbers.index(number) for number in sorted(numbers) if number in devices.numbers)
        if ours:
            yield Part(node, model, len(ours), ours)


def _asked_parts(
    job: SlurmJob, words: Mapping[str, str], nodes: Sequence[str], sites: Mapping[str, Site]
) -> Iterator[Part]:
    """What it asked for, spread over its nodes: of a job that has not begun, or has ended, Slurm tells no devices."""
    left = sum(count for _, count in job.gres) or _whole(words.get("gpus", "0"))
    if not left:
        yield from (Part(node, CPU_ONLY, 0) for node in nodes)
        return
    types = {word for word, _ in gpus_in(job.per_node) if word}
    for position, node in enumerate(nodes):
        site = sites.get(node)
        if site is None or not site.devices:
            continue
        model, devices = next(
            ((m, d) for m, d in site.devices.items() if types & set(d.types)), next(iter(site.devices.items()))
        )
        count = min(-(-left // (len(nodes) - position)), len(devices.types), left)
        left -= count
        if count:
            asked = tuple(index for index, word in enumerate(devices.types) if word in types)
            yield Part(node, model, count, asked if devices.have_types_each and len(asked) == count else ())


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _number(text: str | None, otherwise: float) -> float:
    try:
        value = float(text or "")
    except ValueError:
        return otherwise
    return value if abs(value) < 1e15 else otherwise
