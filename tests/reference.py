"""A second simulator in plain Python, written from docs/semantics.md alone: slow, plain, with its own arithmetic.

The compiled simulator must agree with it on every event. It shares only the vocabulary (records, names of verbs) with
the package. The state and its rules are in reference_world.py; here are the run, and small policies to drive both simulators.
"""

import math
import random
from collections.abc import Callable, Sequence, Sized
from copy import deepcopy
from typing import Final, Protocol, TypeAlias

from tests.reference_world import ENDED, FUTURE, QUEUED, Event, Options, Room, World, give, take

from adlro.core.records import Cluster, Disturbance, Job, SpeedOf
from adlro.core.tables import NOBODY, START, STOP, WAIT

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
) -> list[Event]:
    """Run the jobs to the end and return what happened: (time, name, job, detail), in order."""
    world = World(cluster, jobs, speed, options)
    ahead = sorted(disturbances, key=lambda disturbance: disturbance.time_s)
    patience = PATIENCE
    while any(run.state != ENDED for run in world.runs):
        happens = next_happening(world, ahead)
        if happens < math.inf:
            patience = PATIENCE
        elif world.wake < math.inf and patience > 0:
            patience -= 1
        else:
            break
        world.now = min(happens, world.wake)
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
        touched = [j for j in world.running if any(p.site == site and gpu in p.gpus for p in world.runs[j].parts)]
        for job in touched:
            world.runs[job].done, world.runs[job].settled = world.done(job), world.now
        world.factors[site][gpu] = disturbance.factor
        for job in touched:
            world.foresee_end(job)
        world.log("speed", NOBODY, site, (gpu,), disturbance.factor)


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
    """The head first; others only if they do not delay its reservation (EASY backfilling)."""
    first = fcfs(world)
    if first[0] == START or not world.queue:
        return first
    head = world.queue[0]
    time, reserved, room = reservation(world, head)
    for job, site in world.legal():
        if world.now + world.runtime(job, site) <= time:
            return (START, job, site, math.inf)
        beside = deepcopy(room)
        take(beside, world.sites, world.place(world.room, job, site) or [])
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


def srtf(world: World) -> Answer:
    """Least estimated runtime left first, stopping longer jobs for it. Only jobs of width 1 preempt others."""
    legal = world.legal()
    for job in sorted(world.queue, key=lambda job: (world.best_runtime(job), job)):
        pairs = [pair for pair in legal if pair[0] == job]
        if pairs:
            return least_runtime(world, pairs)
        for site in sorted(world.possible[job], key=lambda site: (world.runtime(job, site), site)):
            victim = worst_in_the_way(world, job, site)
            if victim != NOBODY:
                return (STOP, victim, NOBODY, math.inf)
    return NOTHING


def worst_in_the_way(world: World, job: int, site: int) -> int:
    """The running job at this site to stop first so that this one comes to fit; NOBODY if stopping would not do.

    Only jobs with more left than this one would take may be stopped, those with the most left first.
    """
    if world.widths[job][site] > 1:
        return NOBODY
    left = {other: world.time_left(other) for other in world.running}
    there = [other for other in left if any(part.site == site for part in world.runs[other].parts)]
    longer = [other for other in there if left[other] > world.runtime(job, site)]
    longer.sort(key=lambda other: (-left[other], -other))
    room = deepcopy(world.room)
    for other in longer:
        give(room, world.sites, world.runs[other].parts)
        if world.place(room, job, site) is not None:
            return longer[0]
    return NOBODY


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
    for job in sight.queue:
        answers += [(START, job, NOBODY, math.inf), (START, job, sites, math.inf)]
        answers += [(START, job, site, math.inf) for site in range(sites) if not sight.fits(job, site)]
    return answers
