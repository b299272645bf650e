"""No job waits for ever: one that is about to wait longer than the site allows gets nodes that are kept for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.rules import fits, in_queue, next_part, runtime
from adlro.core.tables import FOREVER, NOBODY, Ints, View
from adlro.decide.rules.reserving import imagined, reserve
from adlro.live.scene import Scene, close_nodes, open_nodes

MOST_KEPT: Final = 16
"""Jobs for which nodes are kept at the same time: the ones that have waited longest."""

LOOKED_AT: Final = 64
"""Jobs at the head of the queue that are looked at."""

EARLIEST: Final = 0.5
"""Nodes are kept for a job when it has waited for this share of the bound at the earliest."""


SAFETY: Final = 2.0
"""Nodes are kept when they are expected to be free within this part of the time that is left: estimates are no promise,
and until then others start there."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept: nodes by the job for which they are, jobs that start at once, and jobs for which none can be."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job id -> names of nodes
    starting: tuple[tuple[int, int], ...] = ()  # (job, site)
    hopeless: tuple[str, ...] = ()


@compiled_alone
def fastest_spot(view: View, j: int) -> int:
    """The site where the job may start now and ends soonest, or NOBODY."""
    chosen = NOBODY
    least = FOREVER
    for s in range(len(view.sites)):
        if fits(view, j, s):
            seconds = runtime(view, j, s)
            if seconds < least:
                least = seconds
                chosen = s
    return widened(chosen)


@compiled_alone
def sites_taken(view: View, j: int, s: int, sites: Ints, counts: Ints) -> int:
    """The sites that a job would take if it started at this one, which it fits, with GPUs on each; how many sites."""
    job = view.jobs[j]
    width = view.width[job.kind, view.sites[s].form]
    if width <= 1:
        sites[0] = s
        counts[0] = job.gpus
        return 1
    needed = job.gpus
    last = NOBODY
    count = 0
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        if last == NOBODY:
            return 0
        sites[count] = last
        counts[count] = min(needed, view.sites[last].free_gpus)
        needed -= counts[count]
        count += 1
    return count


def nodes_for(scene: Scene, view: View, j: int) -> tuple[float, tuple[str, ...]]:
    """When a job would first fit if running jobs end as expected, and the nodes that it would take then."""
    world = imagined(view)
    found = reserve(view, world, j)
    if found.site == NOBODY:
        return FOREVER, ()
    sites, counts = np.zeros(len(view.sites), np.int32), np.zeros(len(view.sites), np.int32)
    many = sites_taken(world, j, int(found.site), sites, counts)
    nodes = dict.fromkeys(scene.plan.cluster.nodes[scene.plan.sites[s].node].name for s in sites[:many])
    return float(found.time), tuple(nodes)


def keep_nodes(scene: Scene, view: View, max_wait_s: float, before: Mapping[str, tuple[str, ...]]) -> Kept:
    """Close the nodes of overdue jobs to all others in the view; which, for whom, and who may start at once.

    What was kept `before` stays kept until its job starts, as long as the nodes are up. A job is overdue when it has
    waited, or would by then have waited, for as long as the site allows.
    """
    if max_wait_s <= 0.0:
        return Kept()
    now = float(view.clock[0].now)
    numbers = {node.name: n for n, node in enumerate(scene.plan.cluster.nodes)}
    nodes: dict[str, tuple[str, ...]] = {}
    starting, hopeless = [], []
    for q in range(min(int(view.clock[0].queued), LOOKED_AT)):
        j = int(in_queue(view, q))
        id = scene.live[j].id
        waited = now - float(view.jobs[j].submit)
        if waited < EARLIEST * max_wait_s or len(nodes) == MOST_KEPT:
            break
        site = int(fastest_spot(view, j))
        if site != NOBODY:
            if waited >= max_wait_s or id in before:
                starting.append((j, site))
            continue
        mine = before.get(id, ())
        if not mine or not all(name in numbers and view.nodes[numbers[name]].up for name in mine):
            time, mine = nodes_for(scene, view, j)
            if waited + SAFETY * (time - now) < max_wait_s:
                continue
            if not mine:
                hopeless.append(id)
                continue
        nodes[id] = mine
        close_nodes(view, np.array([numbers[name] for name in mine], np.int32))
    return Kept(nodes, tuple(starting), tuple(hopeless))


def with_kept_open(scene: Scene, view: View, nodes: Mapping[str, tuple[str, ...]]) -> None:
    """Open kept nodes to all again."""
    numbers = {node.name: n for n, node in enumerate(scene.plan.cluster.nodes)}
    mine = sorted({numbers[name] for names in nodes.values() for name in names})
    open_nodes(view, np.array(mine, np.int32))
