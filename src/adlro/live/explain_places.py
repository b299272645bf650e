"""Where a job could run, as part of an explanation: places and what they hold."""

import numpy as np

from adlro.core.compiled import compiled_alone, widened
from adlro.core.ports import Part
from adlro.core.records import CPU_ONLY
from adlro.core.rules import fits, runtime
from adlro.core.tables import FOREVER, NOBODY, Floats, Ints, View
from adlro.decide.outlook import tightest_spot
from adlro.decide.wrappers import sites_taken
from adlro.live.scene import Scene
from adlro.live.service import Mention


@compiled_alone
def fill_places(view: View, j: int, spots: Ints, seconds: Floats) -> None:
    """For each pool, the site where the job would start now and how long it would run; NOBODY: it fits nowhere."""
    job = view.jobs[j]
    for p in range(len(view.pools)):
        spots[p] = NOBODY
        seconds[p] = FOREVER
        pool = view.pools[p]
        for i in range(pool.first_site, pool.first_site + pool.sites):
            s = view.pool_sites[i]
            if view.width[job.kind, view.sites[s].form] > 0:
                seconds[p] = min(seconds[p], runtime(view, j, s))
        if seconds[p] == FOREVER:
            continue
        spots[p] = tightest_spot(view, j, p) if job.gpus > 0 else NOBODY
        if job.gpus == 0:
            for i in range(pool.first_site, pool.first_site + pool.sites):
                if spots[p] == NOBODY and fits(view, j, view.pool_sites[i]):
                    spots[p] = widened(view.pool_sites[i])
        if spots[p] != NOBODY:
            seconds[p] = runtime(view, j, spots[p])


def places_of(view: View, j: int) -> tuple[Ints, Floats]:
    """For each pool, where the job would start now, and seconds that it would run there."""
    spots, seconds = np.zeros(len(view.pools), np.int32), np.zeros(len(view.pools))
    fill_places(view, j, spots, seconds)
    return spots, seconds


def parts_at(scene: Scene, view: View, j: int, s: int) -> tuple[Part, ...]:
    """What the job would take at a site that it fits."""
    sites, counts = np.zeros(len(view.sites), np.int32), np.zeros(len(view.sites), np.int32)
    many = sites_taken(view, j, s, sites, counts)
    names, models = scene.plan.cluster.nodes, scene.plan.models
    node_of, model_of = scene.plan.sites["node"], scene.plan.sites["model"]
    return tuple(
        Part(names[node_of[at]].name, models[model_of[at]] if count else CPU_ONLY, int(count))
        for at, count in zip(sites[:many].tolist(), counts[:many].tolist(), strict=True)
    )


def mention_of(scene: Scene, id: str) -> Mention:
    """The record with which a sentence names a job of the scene."""
    job = scene.live[scene.index[id]].job
    return Mention(id, job.name, job.user)
