"""The state of the second simulator (reference.py): what fits where, how fast it runs, and what a policy may ask."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Job, Link, Placing, SpeedOf

FUTURE: Final = "future"
QUEUED: Final = "queued"
RUNNING: Final = "running"
ENDED: Final = "ended"

Event: TypeAlias = tuple[float, str, int, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run may be told: seconds lost at each restart, whether limits kill, how much of the queue is seen.

    With `measured`, policies see the measured pace of each GPU.
    """

    restart_s: float = 0.0
    kill_at_limit: bool = False
    window: int = 0
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """The GPUs of one model on one node."""

    node: int
    model: str
    gpus: int
    gpu_memory: int  # MiB of each GPU
    link: Link


@dataclass(frozen=True, slots=True)
class Need:
    """What a job asks for, in whole numbers: thousandths of a GPU and of a core, MiB."""

    gpus: int
    share: int
    cpus: int
    memory: int
    gpu_memory: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a job holds at one site; a gang over several nodes has several."""

    site: int
    gpus: tuple[int, ...]
    share: int  # thousandths of each of those GPUs
    gpu_memory: int  # MiB of each of those GPUs
    cpus: int
    memory: int


@dataclass(slots=True)
class Room:
    """What is free."""

    up: list[bool]  # [N]
    cpus: list[int]  # [N]
    memory: list[int]  # [N]
    share: list[list[int]]  # [S][GPU of the site]
    gpu_memory: list[list[int]]  # [S][GPU of the site]


@dataclass(slots=True)
class Run:
    """How a job stands."""

    state: str = FUTURE
    parts: list[Part] = field(default_factory=list)
    rate: float = 0.0  # work per second, without wear
    done: float = 0.0  # up to `settled`
    saved: float = 0.0  # what a failure cannot take
    held: float = 0.0  # s, stretches before this one
    starts: int = 0
    started: float = 0.0
    settled: float = 0.0
    resumes: float = 0.0
    end: float = math.inf
    limit: float = math.inf  # when its walltime limit is reached


class World:
    """The cluster and its jobs at one moment. Policies read it and use the public methods; only `simulate` moves it."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], speed: SpeedOf, options: Options) -> None:
        self.cluster = cluster
        self.options = options
        self.jobs = sorted(jobs, key=lambda job: job.submit_s)
        self.runs = [Run() for _ in self.jobs]
        self.now = 0.0
        self.wake = math.inf
        self.events: list[Event] = []
        self.sites = sites_of(cluster)
        self.factors = [[1.0] * site.gpus for site in self.sites]  # wear times clock
        self.worn = [[1.0] * site.gpus for site in self.sites]
        self.clocks = [[1.0] * site.gpus for site in self.sites]
        self.paces = [[1.0] * site.gpus for site in self.sites]  # as last measured; all 1 where it is not seen
        self.empty = empty_room(cluster, self.sites)
        self.room = deepcopy(self.empty)
        self.needs = [need_of(job) for job in self.jobs]
        self.asked = list(self.needs)
        self.speed = speed
        # [J][S] nodes that the job takes there (0: never runs there) and work per second
        self.widths: list[list[int]] = [[] for _ in self.jobs]
        self.rates: list[list[float]] = [[] for _ in self.jobs]
        self.possible: list[list[int]] = [[] for _ in self.jobs]
        for job in range(len(self.jobs)):
            self._tabulate(job)

    # What a policy may ask.

    @property
    def waiting(self) -> list[int]:
        """All waiting jobs in order, also those behind the window."""
        return [job for job, run in enumerate(self.runs) if run.state == QUEUED]

    @property
    def queue(self) -> list[int]:
        """The waiting jobs that a policy sees, in order."""
        return self.waiting[: self.options.window or None]

    @property
    def running(self) -> list[int]:
        """The running jobs by index."""
        return [job for job, run in enumerate(self.runs) if run.state == RUNNING]

    def legal(self) -> list[tuple[int, int]]:
        """All (job, site) pairs of the queue that may start now, by job, then site."""
        sites = range(len(self.sites))
        return [(job, site) for job in self.queue for site in sites if self.fits(job, site)]

    def fits(self, job: int, site: int) -> bool:
        """Whether the job may start at this site now."""
        return self.place(self.room, job, site) is not None

    def work_left(self, job: int) -> float:
        """Estimated work left of a job now."""
        record = self.jobs[job]
        estimate = record.work if record.estimate is None else record.estimate
        done = self.known_done(job)
        if done > 0:
            estimate = estimate or 1.0
            while estimate <= done:
                estimate *= 2
        return estimate - done

    def known_done(self, job: int) -> float:
        """Work done up to now as a policy may reckon it: what was there at the start, and the rate without wear."""
        run = self.runs[job]
        if run.state != RUNNING:
            return run.done
        if self.options.measured:
            return self.done(job)
        return run.saved + run.rate * max(0.0, self.now - run.resumes)

    def runtime(self, job: int, site: int) -> float:
        """Estimated runtime of a waiting job if it started at this site."""
        if self.rates[job][site] == 0:
            return math.inf
        return self.start_cost(job) + self.work_left(job) / (self.rates[job][site] * self.pace_there(job, site))

    def pace_there(self, job: int, site: int) -> float:
        """The pace of the GPUs that the job would get at the site now, or of the best ones there."""
        need = self.needs[job]
        if need.gpus == 0:
            return 1.0
        free = self.free_by_pace(self.room, site)
        if self.widths[job][site] > 1 or len(free) < need.gpus:
            return self.pace_when_empty(job, site)
        return min(self.paces[site][gpu] for gpu in free[: need.gpus])

    def pace_when_empty(self, job: int, site: int) -> float:
        """The pace of the fastest GPUs of the site; over several nodes, the mean of the slowest on each site."""
        gpus = self.needs[job].gpus
        if self.widths[job][site] == 1:
            return sorted(self.paces[site], reverse=True)[gpus - 1] if gpus else 1.0
        slowest = [
            min(self.paces[other]) for other, record in enumerate(self.sites) if record.model == self.sites[site].model
        ]
        return sum(slowest) / len(slowest)

    def free_by_pace(self, room: Room, site: int) -> list[int]:
        """The wholly free GPUs of a site, the fastest as measured first."""
        return sorted(free_gpus(room, site), key=lambda gpu: (-self.paces[site][gpu], gpu))

    def start_cost(self, job: int) -> float:
        """Seconds that a start would cost the job now, before it works."""
        record = self.jobs[job]
        if self.runs[job].starts == 0:
            return record.start_s
        return self.options.restart_s if record.restart_s is None else record.restart_s

    def sizes(self, job: int) -> list[int]:
        """The numbers of GPUs that the job may have; none if it cannot be resized."""
        text = self.jobs[job].sizes
        if not text:
            return []
        found = {self.asked[job].gpus}
        for part in text.split(","):
            ends = [int(word) for word in part.split("-")]
            found |= set(range(ends[0], ends[-1] + 1))
        return sorted(found)

    def may_resize(self, job: int, gpus: int) -> bool:
        """Whether the waiting job could run with this many GPUs on the empty cluster, and may."""
        if gpus not in self.sizes(job):
            return False
        now = self.needs[job].gpus
        self._set_size(job, gpus)
        could = bool(self.possible[job])
        self._set_size(job, now)
        return could

    def best_runtime(self, job: int) -> float:
        """Least estimated runtime at any site where it would fit on the empty cluster."""
        return self.start_cost(job) + self.work_left(job) / self.best_rate(job)

    def best_rate(self, job: int) -> float:
        """The best rate at any site where it would fit on the empty cluster."""
        return max(self.rates[job][site] * self.pace_when_empty(job, site) for site in self.possible[job])

    def expected_end(self, job: int) -> float:
        """When a running job should end by its estimate: without wear, or as measured."""
        run = self.runs[job]
        pace = self.wear(job) if self.options.measured else 1.0
        return max(self.now, run.resumes) + self.work_left(job) / (run.rate * pace)

    def place(self, room: Room, job: int, site: int) -> list[Part] | None:
        """What the job would take if it started at this site with this much room; None: it does not fit."""
        need, where, width = self.needs[job], self.sites[site], self.widths[job][site]
        if width == 0:
            return None
        if width > 1:
            return self._spread(room, job, site)
        node = where.node
        if not room.up[node] or room.cpus[node] < need.cpus or room.memory[node] < need.memory:
            return None
        if need.gpus == 0:
            return [Part(site, (), 0, 0, need.cpus, need.memory)]
        if need.share < WHOLE_GPU:
            gpu = shared_gpu(room.share[site], room.gpu_memory[site], need, self.paces[site])
            return None if gpu is None else [Part(site, (gpu,), need.share, need.gpu_memory, need.cpus, need.memory)]
        free = self.free_by_pace(room, site)
        if len(free) < need.gpus:
            return None
        return [Part(site, tuple(sorted(free[: need.gpus])), WHOLE_GPU, where.gpu_memory, need.cpus, need.memory)]

    def _spread(self, room: Room, job: int, anchor: int) -> list[Part] | None:
        """The parts of a gang over several nodes; None: it does not fit."""
        need, model = self.needs[job], self.sites[anchor].model
        pool = [site for site, where in enumerate(self.sites) if where.model == model and room.up[where.node]]
        pool.sort(key=lambda site: (-len(free_gpus(room, site)), site))
        parts: list[Part] = []
        missing = need.gpus
        for site in pool:
            free = self.free_by_pace(room, site)
            count = min(len(free), missing)
            if count == 0:
                break
            cpus = -(-need.cpus * count // need.gpus)
            memory = -(-need.memory * count // need.gpus)
            node = self.sites[site].node
            if room.cpus[node] < cpus or room.memory[node] < memory:
                continue
            gpus = tuple(sorted(free[:count]))
            parts.append(Part(site, gpus, WHOLE_GPU, self.sites[site].gpu_memory, cpus, memory))
            missing -= count
        return parts if missing == 0 and len(parts) == self.widths[job][anchor] else None

    # How the world is laid out.

    def _tabulate(self, job: int) -> None:
        """Width and rate of the job at every site, 0 where it can never run, and where it fits when all is empty."""
        sites = range(len(self.sites))
        found = [(1, 1.0) if self.needs[job].gpus == 0 else self._width_and_rate(job, s, self.speed) for s in sites]
        self.widths[job], self.rates[job] = [width for width, _ in found], [rate for _, rate in found]
        self.possible[job] = [site for site in sites if self.place(self.empty, job, site) is not None]

    def _set_size(self, job: int, gpus: int) -> None:
        """Let the job need this many GPUs, with cores and memory in proportion."""
        asked = self.asked[job]
        cpus, memory = (-(-amount * gpus // asked.gpus) for amount in (asked.cpus, asked.memory))
        self.needs[job] = Need(gpus, asked.share, cpus, memory, asked.gpu_memory)
        self._tabulate(job)

    def _width_and_rate(self, job: int, site: int, speed: SpeedOf) -> tuple[int, float]:
        """How many nodes a GPU job takes there, and its work per second; zeros where it can never run."""
        record, need, where = self.jobs[job], self.needs[job], self.sites[site]
        pool = [index for index, other in enumerate(self.sites) if other.model == where.model]
        width, reached = 0, 0
        for size in sorted((self.sites[index].gpus for index in pool), reverse=True):
            if reached < need.gpus:
                width, reached = width + 1, reached + size
        allowed = not record.models or where.model in record.models
        if reached < need.gpus or not allowed or where.gpu_memory < need.gpu_memory:
            return 0, 0.0
        if width == 1 and where.gpus < need.gpus:
            return 0, 0.0
        if width > 1 and site != pool[0]:
            return 0, 0.0
        links = [where.link] if width == 1 else [self.sites[index].link for index in pool]
        link = min(links, key=lambda link: link.gb_s)
        placing = Placing(self.cluster.models[where.model], need.gpus, width, link, self.cluster.network)
        rate = need.gpus * need.share / WHOLE_GPU * speed(record.family, placing).value
        return (width, rate) if rate > 0 else (0, 0.0)

    # What happens.

    def log(self, name: str, job: int, *detail: object) -> None:
        """Write down an event of now."""
        self.events.append((self.now, name, job, detail))

    def wear(self, job: int) -> float:
        """The least speed factor of the GPUs that a job holds; 1 without GPUs."""
        return min((self.factors[part.site][gpu] for part in self.runs[job].parts for gpu in part.gpus), default=1.0)

    def done(self, job: int) -> float:
        """Work done up to now."""
        run = self.runs[job]
        if run.state != RUNNING:
            return run.done
        return run.done + run.rate * self.wear(job) * max(0.0, self.now - max(run.settled, run.resumes))

    def resize(self, job: int, gpus: int) -> None:
        """Let a waiting job ask for another number of GPUs."""
        self._set_size(job, gpus)
        self.log("resize", job, gpus)

    def start(self, job: int, site: int, parts: list[Part]) -> None:
        """Let a waiting job begin, or go on after its restart cost."""
        run, limit = self.runs[job], self.jobs[job].limit_s
        take(self.room, self.sites, parts)
        run.state, run.parts, run.rate = RUNNING, parts, self.rates[job][site]
        run.started = run.settled = self.now
        run.resumes = self.now + self.start_cost(job)
        run.starts += 1
        run.saved = run.done
        for part in parts:
            for gpu in part.gpus:
                self.read_pace(part.site, gpu)
        self.foresee_end(job)
        run.limit = math.inf
        if self.options.kill_at_limit and limit is not None:
            run.limit = self.now + (limit - run.held)
        for index, part in enumerate(parts):
            self.log("start" if index == 0 else "spread", job, part.site, part.gpus)

    def read_pace(self, site: int, gpu: int) -> None:
        """Measure a GPU that is in use."""
        if self.options.measured:
            self.paces[site][gpu] = self.factors[site][gpu]

    def foresee_end(self, job: int) -> None:
        """Compute the true end of a running job that has just been settled."""
        run = self.runs[job]
        rate = run.rate * self.wear(job)
        left = self.jobs[job].work - run.done
        run.end = max(self.now, run.resumes) + left / rate if rate > 0 else math.inf

    def leave(self, job: int, state: str) -> None:
        """Take a running job off its GPUs, with all its work."""
        run = self.runs[job]
        run.done = self.done(job)
        run.held += self.now - run.started
        give(self.room, self.sites, run.parts)
        run.state, run.parts, run.end, run.limit = state, [], math.inf, math.inf

    def fail(self, job: int) -> None:
        """Throw a running job back to its last checkpoint and into the queue."""
        run, checkpoint = self.runs[job], self.jobs[job].checkpoint
        self.leave(job, QUEUED)
        reached = run.done
        if checkpoint is None:
            kept = 0.0
        elif checkpoint == 0:
            kept = reached
        else:
            kept = math.floor(reached / checkpoint) * checkpoint
        run.done = max(kept, run.saved)
        self.log("fail", job, reached - run.done)


def sites_of(cluster: Cluster) -> list[Site]:
    """The sites in the order of the cluster."""
    sites: list[Site] = []
    for index, node in enumerate(cluster.nodes):
        for gpus in node.gpus:
            memory = round(cluster.models[gpus.model].memory_gb * 1024)
            sites.append(Site(index, gpus.model, gpus.count, memory, node.link))
        if not node.gpus:
            sites.append(Site(index, CPU_ONLY, 0, 0, node.link))
    return sites


def empty_room(cluster: Cluster, sites: list[Site]) -> Room:
    """The room of the empty cluster with every node up."""
    return Room(
        up=[True for _ in cluster.nodes],
        cpus=[round(node.cpus * 1000) for node in cluster.nodes],
        memory=[round(node.memory_gb * 1024) for node in cluster.nodes],
        share=[[WHOLE_GPU] * site.gpus for site in sites],
        gpu_memory=[[site.gpu_memory] * site.gpus for site in sites],
    )


def need_of(job: Job) -> Need:
    """What a job asks for, in whole numbers."""
    cpus, memory = round(job.cpus * 1000), round(job.memory_gb * 1024)
    return Need(job.gpus, job.share, cpus, memory, round(job.gpu_memory_gb * 1024))


def free_gpus(room: Room, site: int) -> list[int]:
    """The wholly free GPUs of a site."""
    return [gpu for gpu, share in enumerate(room.share[site]) if share == WHOLE_GPU]


def shared_gpu(share: list[int], memory: list[int], need: Need, paces: list[float]) -> int | None:
    """The GPU of a site that a share goes to: the fullest partly used one, else the fastest (or first) free one."""
    enough = [gpu for gpu in range(len(share)) if share[gpu] >= need.share and memory[gpu] >= need.gpu_memory]

    def order(gpu: int) -> tuple[bool, int, float, int]:
        is_free = share[gpu] == WHOLE_GPU
        return is_free, share[gpu], -paces[gpu] if is_free else 0.0, gpu

    return min(enough, key=order, default=None)


def take(room: Room, sites: list[Site], parts: list[Part], sign: int = -1) -> None:
    """Take what the parts hold out of the room."""
    for part in parts:
        room.cpus[sites[part.site].node] += sign * part.cpus
        room.memory[sites[part.site].node] += sign * part.memory
        for gpu in part.gpus:
            room.share[part.site][gpu] += sign * part.share
            room.gpu_memory[part.site][gpu] += sign * part.gpu_memory


def give(room: Room, sites: list[Site], parts: list[Part]) -> None:
    """Put what the parts hold back into the room."""
    take(room, sites, parts, sign=1)
