"""A second simulator in plain Python, written from docs/semantics.md alone: slow, plain, with its own arithmetic.

The compiled simulator must agree with it on every event. It shares only the vocabulary (records, names of verbs) with
the package. The state and its rules are in reference_world.py; here are the run, and small policies to drive both
simulators.
"""

import math
import random
from collections.abc import Callable, Sequence, Sized
from copy import deepcopy
from typing import Final, Protocol, TypeAlias

from tests.reference_heat import Heat
from tests.reference_world import ENDED, FUTURE, QUEUED, Event, Options, Room, World, free_gpus, give

from adlro.core.records import WHOLE_GPU, Cluster, Disturbance, Job, SpeedOf
from adlro.core.tables import NOBODY, RESIZE, START, STOP, WAIT

__all__ = [
    "Answer",
    "Event",
    "Options",
    "Policy",
    "Sight",
    "World",
    "always_wait",
    "fcfs",
    "fcfs_easy",
    "fcfs_first_fit",
    "random_choices",
    "simulate",
    "sjf",
    "sjf_picky",
    "srtf",
]

UNKNOWN_VERB: Final = 7

PATIENCE: Final = 100
"""How many wake-ups in a row a policy may let pass when nothing else will happen."""

Answer: TypeAlias = tuple[int, int, int, float]
"""What a policy says: verb, job, site, until."""

NOTHING: Final[Answer] = (WAIT, NOBODY, NOBODY, math.inf)

Policy: TypeAlias = Callable[[World], Answer]


def simulate(
    cluster: Cluster,
    jobs: Sequence[Job],
    speed: SpeedOf,
    policy: Policy,
    options: Options = Options(),  # noqa: B008 - frozen
    disturbances: Sequence[Disturbance] = (),
    preemptive: bool = False,
    heat: Heat | None = None,
) -> list[Event]:
    """Run the jobs to the end and return what happened: (time, name, job, detail), in order."""
    world = World(cluster, jobs, speed, options)
    ahead = sorted(disturbances, key=lambda disturbance: disturbance.time_s)
    patience = PATIENCE
    while any(run.state != ENDED for run in world.runs):
        hot = heat.follow(world, change_speed) if heat is not None else math.inf
        happens = next_happening(world, ahead)
        if happens < math.inf:
            patience = PATIENCE
        elif world.wake < math.inf and patience > 0:
            patience -= 1
        else:
            break
        world.now = min(happens, world.wake, hot)
        if world.wake <= world.now:
            world.wake = math.inf
        end_jobs(world)
        while ahead and ahead[0].time_s <= world.now:
            disturb(world, ahead.pop(0))
        submit_jobs(world)
        starts = sum(run.starts for run in world.runs)
        ask(world, policy, preemptive)
        if sum(run.starts for run in world.runs) > starts:
            patience = PATIENCE
    if heat is not None:
        heat.follow(world, change_speed)
    return world.events


def next_happening(world: World, ahead: list[Disturbance]) -> float:
    """The next time at which a job ends or arrives or a disturbance comes."""
    times = [disturbance.time_s for disturbance in ahead]
    times += [min(world.runs[job].end, world.runs[job].limit) for job in world.running]
    times += [job.submit_s for job, run in zip(world.jobs, world.runs, strict=True) if run.state == FUTURE]
    return min(times, default=math.inf)


def end_jobs(world: World) -> None:
    """End the jobs whose time has come: killed only if the limit is before the end."""
    for job in world.running:
        run = world.runs[job]
        if min(run.end, run.limit) <= world.now:
            name = "kill" if run.limit < run.end else "finish"
            world.leave(job, ENDED)
            world.log(name, job)


def disturb(world: World, disturbance: Disturbance) -> None:
    """Let one disturbance happen; one that changes nothing (down for a node that is down) is not logged."""
    node = [node.name for node in world.cluster.nodes].index(disturbance.node)
    if disturbance.what == "down" and world.room.up[node]:
        world.room.up[node] = False
        world.log("down", NOBODY, node)
        for job in world.running:
            if any(world.sites[part.site].node == node for part in world.runs[job].parts):
                world.fail(job)
    elif disturbance.what == "up" and not world.room.up[node]:
        world.room.up[node] = True
        world.log("up", NOBODY, node)
    elif disturbance.what == "speed":
        # The number of a GPU counts through the node's groups in order.
        gpus = [(site, gpu) for site, s in enumerate(world.sites) if s.node == node for gpu in range(s.gpus)]
        site, gpu = gpus[disturbance.gpu]
        world.worn[site][gpu] = disturbance.factor
        change_speed(world, site, gpu)


def change_speed(world: World, site: int, gpu: int) -> None:
    """Let the jobs on a GPU go on at its new speed: its wear times its clock."""
    touched = [j for j in world.running if any(p.site == site and gpu in p.gpus for p in world.runs[j].parts)]
    for job in touched:
        world.runs[job].done, world.runs[job].settled = world.done(job), world.now
    world.factors[site][gpu] = world.worn[site][gpu] * world.clocks[site][gpu]
    if touched:
        world.read_pace(site, gpu)
    for job in touched:
        world.foresee_end(job)
    world.log("speed", NOBODY, site, (gpu,), world.factors[site][gpu])


def submit_jobs(world: World) -> None:
    """Queue the jobs that arrive, or refuse those that could never run."""
    for job, run in enumerate(world.runs):
        if run.state == FUTURE and world.jobs[job].submit_s <= world.now:
            run.state = QUEUED if world.possible[job] else ENDED
            if not world.possible[job]:
                world.log("refuse", job)


def ask(world: World, policy: Policy, preemptive: bool) -> None:
    """Ask the policy and do what it says, until it waits, says something illegal, or has spoken too often."""
    choices, most = 0, 4 * (len(world.waiting) + len(world.running)) + 16
    while world.waiting or (preemptive and world.running):
        world.wake = math.inf
        verb, job, site, until = policy(world)
        choices += 1
        if choices > most:
            return
        if verb == WAIT:
            world.wake = until if until > world.now else math.inf
            return
        exists = job in world.waiting and 0 <= site < len(world.sites)
        parts = world.place(world.room, job, site) if verb == START and exists else None
        if parts is not None:
            world.start(job, site, parts)
        elif verb == STOP and job in world.running:
            world.leave(job, QUEUED)
            world.log("stop", job)
        elif verb == RESIZE and job in world.waiting and world.may_resize(job, site):
            world.resize(job, site)
        else:
            world.log("illegal", job, verb, site)
            return


def always_wait(world: World) -> Answer:
    """Never start anything."""
    return NOTHING


def fcfs(world: World) -> Answer:
    """The head of the queue at its lowest site; while it does not fit, nobody starts."""
    sites = [site for job, site in world.legal() if job == world.queue[0]]
    return (START, world.queue[0], sites[0], math.inf) if sites else NOTHING


def fcfs_first_fit(world: World) -> Answer:
    """The first job of the queue that fits anywhere, at its lowest site."""
    legal = world.legal()
    return (START, *legal[0], math.inf) if legal else NOTHING


def least_runtime(world: World, pairs: list[tuple[int, int]]) -> Answer:
    """Start the pair with the least estimated runtime; ties by job, then site."""
    return (START, *min(pairs, key=lambda pair: (world.runtime(*pair), pair)), math.inf) if pairs else NOTHING


def sjf(world: World) -> Answer:
    """Least estimated runtime first."""
    return least_runtime(world, world.legal())


def sjf_picky(world: World) -> Answer:
    """Least estimated runtime first, only where the job takes at most twice its best runtime."""
    return least_runtime(
        world, [pair for pair in world.legal() if world.runtime(*pair) <= 2 * world.best_runtime(pair[0])]
    )


def fcfs_easy(world: World) -> Answer:
    """The head first; others only if they do not delay its reservation (EASY backfilling, docs/policies.md)."""
    first = fcfs(world)
    if first[0] == START or not world.queue:
        return first
    head = world.queue[0]
    time, reserved, room = reservation(world, head)
    for job, site in world.legal():
        if world.now + world.runtime(job, site) <= time:
            return (START, job, site, math.inf)
        beside = with_counted(world, room, job, site)
        if world.place(beside, head, reserved) is not None:
            return (START, job, site, math.inf)
    return NOTHING


def reservation(world: World, head: int) -> tuple[float, int, Room]:
    """When and where the head would fit as running jobs end by their estimates, and the room there will be then.

    The time is infinite if it would not fit even then (nodes are down): so nobody can delay it.
    """
    room = deepcopy(world.room)
    ends = {job: world.expected_end(job) for job in world.running}
    for time in sorted(set(ends.values())):
        for job in ends:
            if ends[job] == time:
                give(room, world.sites, world.runs[job].parts)
        sites = [site for site in range(len(world.sites)) if world.place(room, head, site) is not None]
        if sites:
            return time, sites[0], room
    return math.inf, NOBODY, room


def with_counted(world: World, room: Room, job: int, site: int) -> Room:
    """That later room, less what the job would take if it started now: so many GPUs, whichever they are.

    A share counts as a whole GPU, unless it would go to a GPU that is shared already.
    """
    less = deepcopy(room)
    for part in world.place(world.room, job, site) or []:
        less.cpus[world.sites[part.site].node] -= part.cpus
        less.memory[world.sites[part.site].node] -= part.memory
        gpus = [gpu for gpu in part.gpus if world.room.share[part.site][gpu] == WHOLE_GPU]
        for gpu in free_gpus(less, part.site)[: len(gpus)]:
            less.share[part.site][gpu] = 0
    return less


def srtf(world: World) -> Answer:
    """Least estimated work left at the fastest rate first, stopping jobs with more for it (docs/policies.md)."""
    left = {job: world.work_left(job) / world.best_rate(job) for job in [*world.queue, *world.running]}
    legal = world.legal()
    for job in sorted(world.queue, key=lambda job: (left[job], job)):
        pairs = [pair for pair in legal if pair[0] == job]
        if pairs:
            return least_runtime(world, pairs)
        victim = worst_in_the_way(world, job, left)
        if victim != NOBODY:
            return (STOP, victim, NOBODY, math.inf)
    return NOTHING


def worst_in_the_way(world: World, job: int, left: dict[int, float]) -> int:
    """The running job to stop first so that this one comes to fit; NOBODY if stopping would not do."""
    longer = [other for other in world.running if left[other] > left[job] and world.needs[other].share == WHOLE_GPU]
    before = [other for other in longer if other < job]
    if world.options.window and world.queue.index(job) + len(before) >= world.options.window:
        return NOBODY
    room = deepcopy(world.room)
    for other in longer:
        give(room, world.sites, world.runs[other].parts)
    sites = [site for site in range(len(world.sites)) if world.place(room, job, site) is not None]
    if not sites:
        return NOBODY
    site = min(sites, key=lambda site: (world.runtime(job, site), site))
    where = [site]
    if world.widths[job][site] > 1:
        where = [other for other, record in enumerate(world.sites) if record.model == world.sites[site].model]
    nodes = {world.sites[site].node for site in where}
    there = [j for j in longer if any(world.sites[part.site].node in nodes for part in world.runs[j].parts)]
    return max(there, key=lambda other: (left[other], other), default=NOBODY)


class Sight(Protocol):
    """What a random policy must see: of this simulator or of another."""

    @property
    def now(self) -> float: ...
    @property
    def jobs(self) -> Sized: ...
    @property
    def sites(self) -> Sized: ...
    @property
    def queue(self) -> list[int]: ...
    @property
    def waiting(self) -> list[int]: ...
    @property
    def running(self) -> list[int]: ...
    def legal(self) -> list[tuple[int, int]]: ...
    def sizes(self, job: int) -> list[int]: ...
    def fits(self, job: int, site: int) -> bool: ...


def random_choices(seed: int) -> Callable[[Sight], Answer]:
    """A policy that starts, stops and waits at random, and now and then says something illegal."""
    source = random.Random(seed)

    def choose(sight: Sight) -> Answer:
        legal, running = sight.legal(), sight.running
        dice = source.random()
        if legal and dice < 0.6:
            return (START, *source.choice(legal), math.inf)
        if running and 0.6 <= dice < 0.7:
            return (STOP, source.choice(running), NOBODY, math.inf)
        if 0.7 <= dice < 0.75 and (elastic := [job for job in sight.queue if sight.sizes(job)]):
            job = source.choice(elastic)
            return (RESIZE, job, source.choice(sight.sizes(job)), math.inf)
        if dice > 0.95:
            return source.choice(illegal_answers(sight))
        if dice > 0.8:
            return (WAIT, NOBODY, NOBODY, sight.now + source.randint(-4, 16) / 4)
        return NOTHING

    return choose


def illegal_answers(sight: Sight) -> list[Answer]:
    """Choices that may not be: jobs that do not wait or run, sites where they do not fit, numbers of nothing."""
    count, sites = len(sight.jobs), len(sight.sites)
    answers = [(STOP, NOBODY, NOBODY, math.inf), (STOP, count, NOBODY, math.inf), (START, count, 0, math.inf)]
    answers += [(UNKNOWN_VERB, 0, 0, math.inf), (START, NOBODY, 0, math.inf)]
    answers += [(STOP, job, NOBODY, math.inf) for job in range(count) if job not in sight.running]
    answers += [(START, job, 0, math.inf) for job in range(count) if job not in sight.waiting]
    answers += [(RESIZE, NOBODY, 1, math.inf), (RESIZE, count, 1, math.inf)]
    answers += [(RESIZE, job, 1, math.inf) for job in range(count) if job not in sight.waiting]
    answers += [
        (RESIZE, job, size, math.inf) for job in sight.queue for size in (0, 5, 99) if size not in sight.sizes(job)
    ]
    for job in sight.queue:
        answers += [(START, job, NOBODY, math.inf), (START, job, sites, math.inf)]
        answers += [(START, job, site, math.inf) for site in range(sites) if not sight.fits(job, site)]
    return answers
