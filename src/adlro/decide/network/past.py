"""A memory of good placements: how similar jobs did recently on these GPUs.

A placement is good if the job's time in the system, relative to its best runtime, was below the usual value. It is
stored by the job's family, gang size and length, and by the pool where it ran. A pair is judged by similar placements:
the same pool and family, and an equal or neighbouring gang size and length. A hypervector memory (a bundle of job ⊗
pool, in which similar levels have similar vectors) gives the same answer in the limit of many dimensions. Here it is
computed exactly and in a few steps, because the network needs it at every decision.

Policies only see a view, so ends are detected by comparing the running jobs with those at the last decision.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.tables import FINISHED, Floats, Ints, View
from adlro.decide.network.planes import LIKENESS, Planes
from adlro.decide.outlook import Outlook

GANGS: Final = 6
"""Classes of gang size: 1, 2, 4 … GPUs."""

LENGTHS: Final = 6
OCTAVES: Final = 3.0
"""Classes of length, a factor of 8 apart: below 8 s, 64 s, 512 s, 4096 s, 9 h, and longer."""

NEXT_TO: Final = 0.5
"""Similarity of two neighbouring classes of gang size or length."""

KEPT: Final = 0.98
"""Decay of a memory with each further one of its kind."""

USUAL_RATE: Final = 1.0 / 64.0

# Indices in Past.state.
WATCHED: Final = 0
USUAL: Final = 1
ENDS: Final = 2


class Past(NamedTuple):
    """The memory. F families, P pools."""

    good: Floats  # [F * GANGS * LENGTHS, P] sum of similarity × (1 if good, −1 if not)
    weight: Floats  # [F * GANGS * LENGTHS, P] sum of similarity
    jobs: Ints  # [J or fewer] jobs that ran at the last decision …
    pools: Ints  # … and their pools
    state: Floats  # [3] number of jobs watched, usual logarithm of the slowdown, number of ends learnt


@compiled_allocating
def new_past(view: View) -> Past:
    """An empty memory."""
    families = 1
    for j in range(len(view.jobs)):
        families = max(families, view.jobs[j].family + 1)
    cells = families * GANGS * LENGTHS
    pools = len(view.pools)
    return Past(
        np.zeros((cells, pools), np.float64),
        np.zeros((cells, pools), np.float64),
        np.zeros(len(view.running), np.int32),
        np.zeros(len(view.running), np.int32),
        np.zeros(3, np.float64),
    )


@compiled
def forget(past: Past) -> None:
    """Forget everything."""
    for c in range(past.good.shape[0]):
        for p in range(past.good.shape[1]):
            past.good[c, p] = 0.0
            past.weight[c, p] = 0.0
    for i in range(len(past.state)):
        past.state[i] = 0.0


@compiled
def gang_of(gpus: int) -> int:
    """The class of a gang size: its logarithm."""
    gang = 0
    while gpus > 1 and gang < GANGS - 1:
        gpus = (gpus + 1) // 2
        gang += 1
    return gang


@compiled
def length_of(seconds: float) -> int:
    """The class of a runtime (s)."""
    return min(LENGTHS - 1, int(math.log2(max(seconds, 1.0)) / OCTAVES))


@compiled
def notice_ends(view: View, past: Past) -> None:
    """Learn from the jobs that have ended since the last decision, and record which jobs run now."""
    for i in range(int(past.state[WATCHED])):
        j = past.jobs[i]
        if view.runs[j].state == FINISHED:
            remember(view, past, j, past.pools[i])
    running = min(view.clock[0].running, len(past.jobs))
    for i in range(running):
        j = view.running[i]
        past.jobs[i] = j
        past.pools[i] = view.sites[view.runs[j].site].pool
    past.state[WATCHED] = running


@compiled
def remember(view: View, past: Past, j: int, p: int) -> None:
    """Remember how a job that ended did on a pool."""
    job = view.jobs[j]
    run = view.runs[j]
    brief = job.estimate / max(view.fastest[job.demand], 1e-9)  # from the original estimate, not from the work left
    end = run.started + run.held if run.starts == 1 else view.clock[0].now
    stretch = math.log(max((end - job.submit) / max(brief, 1.0), 1e-3))
    ends = past.state[ENDS] + 1.0
    past.state[ENDS] = ends
    past.state[USUAL] += (stretch - past.state[USUAL]) * max(USUAL_RATE, 1.0 / ends)
    worth = 1.0 if stretch <= past.state[USUAL] else -1.0
    gang = gang_of(job.gpus)
    length = length_of(brief)
    for g in range(max(0, gang - 1), min(GANGS, gang + 2)):
        for n in range(max(0, length - 1), min(LENGTHS, length + 2)):
            like = (1.0 if g == gang else NEXT_TO) * (1.0 if n == length else NEXT_TO)
            c = (job.family * GANGS + g) * LENGTHS + n
            past.good[c, p] = KEPT * past.good[c, p] + like * worth
            past.weight[c, p] = KEPT * past.weight[c, p] + like


@compiled
def observe_past(view: View, outlook: Outlook, past: Past, planes: Planes) -> None:
    """Write how similar each pair is to good placements: from −1 to 1, and 0 if nothing is known."""
    pools = min(len(view.pools), planes.pools.shape[0])
    for w in range(outlook.counts[0]):
        job = view.jobs[outlook.rows[w]]
        c = (job.family * GANGS + gang_of(job.gpus)) * LENGTHS + length_of(outlook.brief[w])
        for p in range(pools):
            if planes.present[w, p] != 0:
                planes.pairs[w, p, LIKENESS] = past.good[c, p] / (1.0 + past.weight[c, p])
