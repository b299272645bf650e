"""What a soak sees: its own reading of Slurm by `squeue` and `scontrol`, never through ADLRO, and what must not be.

A GPU idles if it was free at every look for some time, while a job waited all that time that may run and fits into what
was free all that time. In doubt a job does not fit, or may not run.

A node that Slurm plans for a waiting job of its own is not free: Slurm starts no job there that would delay its plan,
whoever asks. Such waits are counted separately. So are waits that the policy chose: they end when ADLRO lets the job
go, or no longer says that it is the policy's choice.
"""

import re
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scripts.soak_jobs import BY_NAME, LIMITED, PARTITION, Free, Wish, fits
from tests.slurm.lab import Lab

from adlro.ingest.host_lists import hosts_in

FIELDS: Final = (
    "number",
    "array",
    "task",
    "name",
    "state",
    "reason",
    "priority",
    "partition",
    "nodes",
    "after",
    "qos",
    "pins",
    "planned",
)
FORMAT: Final = "%A|%F|%K|%j|%T|%r|%Q|%P|%N|%E|%q|%n|%Y"
LONGEST_S: Final = 180.0
"""How far back is looked for GPUs that idle."""
FORGOTTEN_S: Final = 40.0
"""For so long after a kill of slurmctld a job that ran before may wait: ADLRO keeps it for 20 s after it saw that."""
CLOSED: Final = re.compile(r"DRAIN|DOWN|FAIL|NOT_RESPONDING|MAINT|RESERVED|UNKNOWN|FUTURE|REBOOT|POWER|INVAL")
NEVER_MET: Final = "DependencyNeverSatisfied"
AT_WORK: Final = ("RUNNING", "COMPLETING", "CONFIGURING")
NOT_YET: Final = (
    "BeginTime",
    "JobHeldAdmin",
    NEVER_MET,
    "JobArrayTaskLimit",
    "Dependency",
    "Cleaning",
)
"""Reasons for which a job may not run that are nobody's here to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job of `squeue` that has not ended."""

    number: str
    array: str
    task: str
    name: str
    state: str
    reason: str
    priority: int
    partition: str
    nodes: str
    after: str
    qos: str
    pins: str = ""
    planned: str = ""  # where Slurm plans to start it

    @property
    def key(self) -> str:
        """Which of the soak's jobs it is: its name, and the task of an array."""
        return f"{self.name}_{self.task}" if self.task.isdigit() else self.name

    @property
    def is_pinned(self) -> bool:
        """Whether it may start on named nodes only."""
        return bool(self.pins.strip("()nul"))

    @property
    def keeps(self) -> frozenset[str]:
        """The nodes that Slurm plans for it while it waits for Slurm, not for ADLRO. Slurm starts no other job there
        that would delay it."""
        is_adlros = self.is_held or (self.is_pinned and self.partition == PARTITION)
        if self.state != "PENDING" or is_adlros or self.planned in ("", "(null)"):
            return frozenset()
        return frozenset(hosts_in(self.planned))

    @property
    def can_never_run(self) -> bool:
        """Whether its dependency can never be met. A slurmctld that came back from a kill says JobHeldAdmin of such a
        job if it is held, and says of the dependency that it failed."""
        return self.state == "PENDING" and (self.reason == NEVER_MET or "(failed)" in self.after)

    @property
    def is_held(self) -> bool:
        """Whether it waits for somebody to let it go."""
        return self.state == "PENDING" and (self.priority == 0 or self.reason.startswith("JobHeld"))


@dataclass(frozen=True, slots=True)
class Look:
    """One look at Slurm."""

    at_s: float
    rows: tuple[Row, ...]
    free: Mapping[str, Free]
    states: Mapping[str, str]
    leaked: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which no job has a CPU and Slurm counts GPUs as used, with those GPUs."""
    kept: frozenset[str] = frozenset()
    """Nodes that Slurm plans for waiting jobs of its own."""

    @property
    def open(self) -> Mapping[str, Free]:
        """What is free on the nodes that Slurm does not keep."""
        return {name: room for name, room in self.free.items() if name not in self.kept}


def look(lab: Lab, at_s: float) -> Look | None:
    """The cluster now; None while the controller does not answer."""
    try:
        squeue = _said(lab, "squeue", "--noheader", "--array", "--all", f"--format={FORMAT}")
        nodes = _said(lab, "scontrol", "--details", "--oneliner", "show", "nodes")
    except (subprocess.SubprocessError, OSError):
        return None
    rows = []
    for line in squeue.splitlines():
        words = dict(zip(FIELDS, line.split("|"), strict=True))
        rows.append(Row(**{**words, "priority": int(words["priority"])}))  # type: ignore[arg-type]
    free, states, leaked = {}, {}, {}
    for line in nodes.splitlines():
        told = dict(re.findall(r"(\w+)=(\S*)", line))
        states[told["NodeName"]] = told["State"]
        free[told["NodeName"]] = _free(told)
        if told["CPUAlloc"] == "0" and "IDX:" in told.get("GresUsed", "") and "IDX:N/A" not in told["GresUsed"]:
            leaked[told["NodeName"]] = told["GresUsed"]
    return Look(at_s, tuple(rows), free, states, leaked) if free else None


def _said(lab: Lab, *command: str) -> str:
    done = subprocess.run(command, env=lab.environment, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout


def _free(told: Mapping[str, str]) -> Free:
    """What is free on a node of `scontrol show node`; nothing if it takes no jobs."""
    machine = BY_NAME[told["NodeName"]]
    if CLOSED.search(told["State"]):
        return Free(frozenset(), 0, 0, False)
    used: set[int] = set()
    found = re.search(r"IDX:([\d,-]+)", told.get("GresUsed", ""))
    for part in found[1].split(",") if found else ():
        low, _, high = part.partition("-")
        used |= set(range(int(low), int(high or low) + 1))
    busy = int(told["CPUAlloc"])
    return Free(
        frozenset(range(machine.gpus)) - used,
        machine.cpus - busy,
        machine.memory_mib - int(told["AllocMem"]),
        busy == 0 and not used,
    )


@dataclass(slots=True)
class Job:
    """What became of a wish so far."""

    wish: Wish
    number: str = ""
    said: str = ""  # by sbatch, when it refused
    submitted_s: float | None = None
    let_go_s: float | None = None  # when its user let it go
    cancelled_s: float | None = None
    put_back_s: list[float] = field(default_factory=list)
    ran_s: float | None = None  # first seen to run


@dataclass(frozen=True, slots=True)
class Idle:
    """GPUs that stood idle while a job waited that could have had them."""

    job: str
    shape: str
    seconds: float
    until_s: float
    held: bool
    reason: str
    partition: str
    row: str
    free: str
    is_pinned: bool = False  # ADLRO let it go to named nodes


@dataclass(slots=True)
class Watch:
    """Keeps the looks of the last minutes and finds what must not be."""

    jobs: Mapping[str, Job]
    limit: int  # of the QOS now
    reserved: set[str] = field(default_factory=set)
    calm_since_s: float = 0.0
    back_s: float = float("-inf")  # when slurmctld last came back after a kill
    looks: deque[Look] = field(default_factory=deque)
    since: dict[str, float] = field(default_factory=dict)  # since when each job may run, without a break
    held_since: dict[str, float] = field(default_factory=dict)
    idle: dict[str, Idle] = field(default_factory=dict)  # the longest of each job
    idle_or_kept: dict[str, Idle] = field(default_factory=dict)  # the same, also on nodes that Slurm keeps
    kept_looks: int = 0  # looks at which Slurm kept a node
    longest_held: dict[str, Idle] = field(default_factory=dict)
    chose: Callable[[Row], bool] = lambda row: False
    """Asks whether the policy chose that a held job waits."""
    ask_s: float = float("inf")  # a GPU that idles so long beside a held job is asked for
    chosen: dict[str, Idle] = field(default_factory=dict)  # the longest that the policy chose
    chosen_s: dict[str, float] = field(default_factory=dict)  # until when the policy's choice is known
    by_choice: set[str] = field(default_factory=set)  # held jobs whose last answer was the policy's choice
    _chosen_from: dict[str, float] = field(default_factory=dict)
    released_for_users: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, set[str]] = field(default_factory=dict)

    def upset(self, at_s: float) -> None:
        """Something was done to the cluster: idleness is counted from here."""
        self.calm_since_s = max(self.calm_since_s, at_s)

    def see(self, now: Look) -> None:
        """Take in a look."""
        open_free = {name: room for name, room in now.free.items() if name not in self.reserved}
        kept = frozenset(node for row in now.rows for node in row.keeps)
        now = Look(now.at_s, now.rows, open_free, now.states, kept=kept)
        self.kept_looks += bool(kept)
        self.looks.append(now)
        while self.looks and self.looks[0].at_s < now.at_s - LONGEST_S:
            self.looks.popleft()
        may = {row.key: row for row in now.rows if self._may_run(row, now)}
        self.since = {key: self.since.get(key, now.at_s) for key in may}
        self._end_choices(may, now)
        fit = {key for key, row in may.items() if row.is_held and fits(self.jobs[row.name].wish.need, now.open)}
        for row in now.rows:
            self._see_row(row, now)
        idle = {key: self._idle_s(key, row, now, lambda each: each.open) for key, row in may.items()}
        for key, row in may.items():
            if idle[key] > self.ask_s and row.is_held:
                self._ask(key, row, now, idle)
        self.held_since = {
            key: max(self.held_since.get(key, now.at_s), self.calm_since_s, self.chosen_s.get(key, 0.0)) for key in fit
        }
        for key, row in may.items():
            self._keep(self.idle, key, row, now, idle[key])
            self._keep(self.idle_or_kept, key, row, now, self._idle_s(key, row, now, lambda each: each.free))
            if key in self.held_since:
                self._keep(self.longest_held, key, row, now, now.at_s - self.held_since[key])

    def _end_choices(self, may: Mapping[str, Row], now: Look) -> None:
        """The policy chose to wait until ADLRO let the job go: the time from then on is Slurm's."""
        for key in self.by_choice & may.keys():
            if not may[key].is_held and len(self.looks) > 1:
                self._choose(key, may[key], now, self.looks[-2].at_s)
        self.by_choice = {key for key in self.by_choice if key in may and may[key].is_held}

    def _ask(self, key: str, row: Row, now: Look, idle: dict[str, float]) -> None:
        """Ask whether the policy chose that a job waits; if so, its time is counted from zero again."""
        self.by_choice.discard(key)
        if self.chose(row):
            self.by_choice.add(key)
            self._choose(key, row, now, now.at_s)
            idle[key] = 0.0

    def _choose(self, key: str, row: Row, now: Look, until_s: float) -> None:
        """Note that a job waited until now because the policy chose so."""
        begin_s = now.at_s - self._idle_s(key, row, now, lambda each: each.open)
        if begin_s > self.chosen_s.get(key, -1.0):  # else the choice that is known already goes on
            self._chosen_from[key] = begin_s
        self._keep(self.chosen, key, row, replace(now, at_s=until_s), until_s - self._chosen_from[key])
        self.chosen_s[key] = until_s

    def _see_row(self, row: Row, now: Look) -> None:
        job = self.jobs.get(row.name)
        if job is None:
            return
        self.reasons.setdefault(row.name, set()).add(f"{row.state} {row.reason}")
        if row.state in ("RUNNING", "COMPLETING") and job.ran_s is None:
            job.ran_s = now.at_s
        is_closed = job.wish.is_held and job.let_go_s is None
        if is_closed and not row.is_held and row.name not in self.released_for_users:
            self.released_for_users[row.name] = f"{row.state} {row.reason} on {row.nodes or 'no node'}"

    def _may_run(self, row: Row, now: Look) -> bool:
        """Whether nothing but a place, or ADLRO, keeps a job from running."""
        job = self.jobs.get(row.name)
        if job is None or row.state != "PENDING" or row.partition != PARTITION or job.cancelled_s is not None:
            return False
        wish = job.wish
        if wish.is_held and job.let_go_s is None:
            return False
        if job.ran_s is not None and now.at_s - self.back_s < FORGOTTEN_S:
            return False  # slurmctld may have forgotten that it runs; nobody should start it before that run is over
        if row.after not in ("", "(null)") or row.reason in NOT_YET:
            return False
        if wish.begin_s and now.at_s < (job.submitted_s or 0.0) + wish.begin_s + 1:
            return False
        running = [other for other in now.rows if other.state in AT_WORK]
        if wish.at_once and row not in _next_tasks(row.name, wish.at_once, now.rows):
            return False
        if row.qos == LIMITED:
            used = sum(self.jobs[other.name].wish.need.gpus for other in running if other.qos == LIMITED)
            return used + wish.need.gpus <= self.limit
        return True

    def _idle_s(self, key: str, row: Row, now: Look, room_of: Callable[[Look], Mapping[str, Free]]) -> float:
        """For how long a job has waited beside the same free GPUs."""
        wish = self.jobs[row.name].wish
        begin = max(self.since[key], self.calm_since_s, self.chosen_s.get(key, 0.0))
        room: Mapping[str, Free] | None = None
        oldest = now.at_s
        for each in reversed(self.looks):
            if each.at_s < begin:
                break
            room = room_of(each) if room is None else _both(room, room_of(each))
            if not fits(wish.need, room):
                break
            oldest = each.at_s
        return now.at_s - oldest

    def _keep(self, where: dict[str, Idle], key: str, row: Row, now: Look, seconds: float) -> None:
        if seconds > (where[key].seconds if key in where else 0.0):
            shape = self.jobs[row.name].wish.shape
            free = " ".join(f"{name}:{len(room.gpus)}" for name, room in now.free.items())
            line = f"{row.number} {key} {row.state} {row.reason} priority={row.priority} {row.partition} {row.qos}"
            line += f" pinned to {row.pins}" if row.is_pinned else ""
            where[key] = Idle(
                key, shape, round(seconds, 1), now.at_s, row.is_held, row.reason, row.partition, line, free,
                row.is_pinned,
            )  # fmt: skip


def _next_tasks(name: str, at_once: int, rows: Sequence[Row]) -> list[Row]:
    """The tasks of an array for which its limit has room: those that were let go, then in their order. The others wait
    for these. A task that ADLRO gave back to Slurm takes no room: ADLRO may place another one meanwhile."""
    mine = [row for row in rows if row.name == name]
    room = at_once - sum(row.state in AT_WORK for row in mine)
    waiting = [row for row in mine if row.state == "PENDING" and row.reason not in NOT_YET]
    of_slurm = [row for row in waiting if not row.is_held and not row.is_pinned]
    ours = sorted(
        (row for row in waiting if row.is_held or row.is_pinned),
        key=lambda row: (row.is_held, int(row.task) if row.task.isdigit() else 0),
    )
    return [*of_slurm, *ours[:room]] if room > 0 else []


def _both(one: Mapping[str, Free], other: Mapping[str, Free]) -> dict[str, Free]:
    return {name: room & other[name] for name, room in one.items() if name in other}


# ---- what the jobs say -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """A line that a job wrote: that it began or ended, when, and for which time Slurm says that it runs."""

    key: str
    what: str
    at_s: float
    restarts: int
    node: str
    devices: tuple[int, ...]
    number: str


def script_of(wish: Wish, folder: str) -> str:
    """What a job does: stamp, sleep, stamp."""
    line = (
        '$(date +%s.%N) ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME "${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}" '
        "$SLURM_JOB_ID"
    )
    key = f"{wish.name}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"
    file = f"{folder}/{wish.name}.stamps"
    return f"echo {key} began {line} >> {file}\nsleep {wish.seconds}\necho {key} ended {line} >> {file}\n"


def stamps_in(text: str) -> Iterator[Stamp]:
    """The stamps of a file; a line that a kill cut short is left out."""
    for line in text.splitlines():
        words = line.split()
        if len(words) not in (6, 7):
            continue
        key, what, at, restarts, node, *devices, number = words
        found = tuple(map(int, devices[0].split(","))) if devices and devices[0] else ()
        yield Stamp(key, what, float(at), int(restarts), node, found, number)


def runs_of(stamps: Sequence[Stamp]) -> dict[str, list[tuple[Stamp, Stamp | None]]]:
    """For each job or task, its runs: how each began, and how it ended if it came so far."""
    runs: dict[str, list[tuple[Stamp, Stamp | None]]] = {}
    for stamp in stamps:
        mine = runs.setdefault(stamp.key, [])
        if stamp.what == "began":
            mine.append((stamp, None))
            continue
        # The latest run of this node and count that has no end yet: two may overlap.
        for place in reversed(range(len(mine))):
            began, ended = mine[place]
            if ended is None and began.node == stamp.node and began.restarts == stamp.restarts:
                mine[place] = (began, stamp)
                break
    return runs
