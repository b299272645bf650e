"""The arrays of many simulated clusters side by side: worlds, environments, observations and results of a step.

Also converts one of them to the View and Truth that the simulator and policies use.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from adlro.core.compiled import compiled
from adlro.core.copying import copy_cluster, copy_lists, copy_queue
from adlro.core.engine import LIVE, PROGRESS, Truth, copy_truth
from adlro.core.tables import (
    CLOCK,
    DEMAND,
    DISTURBANCE,
    EVENT,
    FORM,
    GPU,
    GROUP,
    HEAT,
    JOB,
    MIX_COLUMNS,
    MIX_ROWS,
    NOBODY,
    NODE,
    OFFER,
    PART,
    POOL,
    RECENT,
    RUN,
    SHAPE,
    SITE,
    USER,
    Floats,
    Ints,
    View,
)
from adlro.decide.network.past import GANGS, LENGTHS, Past
from adlro.decide.network.planes import Bytes, Planes, Singles, make_planes
from adlro.decide.outlook import Outlook
from adlro.decide.rules.claiming import Claims

Tables: TypeAlias = Any
"""Records in an array with two axes: environments or worlds, then their rows. NumPy has no type for this."""

WORLD = np.dtype(
    [
        ("gap", "f8"),  # mean s between two arrivals at load 1
        ("unit", "f8"),  # typical runtime in s
        ("scale", "f8"),  # s by which shaped rewards are divided
        ("crowd", "f8"),  # number of jobs that fill the cluster
        ("sites", "i4"),
        ("nodes", "i4"),
        ("gpus", "i4"),
        ("forms", "i4"),
        ("pools", "i4"),
        ("menu", "i4"),  # number of jobs on the menu
        ("in_order", "i4"),  # 1 if the menu is a recorded trace, whose jobs arrive in order
    ],
    align=True,
)
"""The single values of a world."""

_STATE = np.dtype(
    [
        ("random", "u8"),
        ("cost", "f8"),  # the rule's cost from here on for the jobs before `limit`, if known
        ("raw", "f8"),  # job time since the last decision, s
        ("episode_cost", "f8"),  # sum of completion times so far, s
        ("world", "i4"),
        ("jobs", "i4"),
        ("known", "i4"),  # 1 if `cost` is known
        ("limit", "i4"),
        ("arrived", "i4"),  # arrivals counted in the job time so far
        ("finished", "i4"),  # number of episodes that have ended
        ("steps", "i4"),  # number of steps in this episode
    ],
    align=True,
)
"""The single values of an environment."""


class Worlds(NamedTuple):
    """All worlds, padded to one size. N worlds."""

    info: Tables  # WORLD [N]
    jobs: Tables  # JOB [N, M] the menu
    work: Floats  # [N, M]
    sites: Tables
    nodes: Tables
    gpus: Tables
    forms: Tables
    pools: Tables
    parts: Tables
    bits: Ints
    form_sites: Ints
    pool_sites: Ints
    spare: Ints  # [N, P, L]
    rate: Floats  # [N, K, H]
    width: Ints  # [N, K, H]
    fastest: Floats  # [N, D]
    spread: Ints  # [N, D]
    home: Ints  # [N, K, H]


class Envs(NamedTuple):
    """The state of all environments, followed by spare rows for playing ahead: for each thread one of APART rows."""

    state: Tables  # _STATE [B]
    jobs: Tables
    runs: Tables
    sites: Tables
    nodes: Tables
    gpus: Tables
    forms: Tables
    pools: Tables
    parts: Tables
    users: Tables
    groups: Tables
    open: Tables
    clock: Tables
    queue: Ints
    running: Ints
    released: Ints
    demands: Tables
    bits: Ints
    spare: Ints
    mix: Floats
    bandwidth: Floats
    shapes: Tables  # SHAPE [0]: jobs are never resized here
    work: Floats
    live: Tables
    heap: Ints
    factor: Floats
    disturbances: Tables
    events: Tables
    progress: Tables
    heat: Tables  # no rows
    good: Floats  # [B, cells, P] this and the next four: the memory of good placements
    weight: Floats
    watched: Ints
    watched_pools: Ints
    past: Floats


class Foreseen(NamedTuple):
    """The outlook of every environment."""

    gpu_free: Floats
    ready: Floats
    rows: Ints
    alike: Ints
    brief: Floats
    finish: Floats
    goal: Ints
    spot: Ints
    run: Floats
    wait: Floats
    delay: Floats
    prior: Floats
    counts: Ints
    unit: Floats
    demand: Ints
    awaited: Ints
    times: Floats
    known: Ints
    next_end: Floats
    middle: Floats
    claims: Claims  # each of its arrays with one more axis: the environments


class Seen(NamedTuple):
    """The observations of all environments. B environments, W rows, P pools."""

    rows: Singles  # [B, W, ROW_PLANES]
    pools: Singles  # [B, P, POOL_PLANES]
    pairs: Singles  # [B, W, P, PAIR_PLANES]
    whole: Singles  # [B, WHOLE_PLANES]
    prior: Singles  # [B, W, P]
    present: Bytes  # [B, W, P]
    legal: Bytes  # [B, W * P + 1] which actions are legal; the last one is waiting


class Came(NamedTuple):
    """The results of a step."""

    reward: Singles  # [B]
    raw: Singles  # [B] minus the job time until the next decision, in units of the world's typical runtime
    done: Bytes  # [B] 1 if the episode ended; the observation then belongs to the next one
    agreed: Bytes  # [B] 1 if the choice was the rule's own
    score: Singles  # [B] if the episode ended: its mean completion time in units of the world's typical runtime
    span: Singles  # [B] what the discount counts: 1 for each decision, or the time until the next one


def came_for(count: int) -> Came:
    """Room for the results of this many environments."""
    single, byte = np.float32, np.uint8
    zeros = np.zeros
    return Came(
        zeros(count, single), zeros(count, single), zeros(count, byte), zeros(count, byte), zeros(count, single),
        np.ones(count, single),
    )  # fmt: skip


class Draw(NamedTuple):
    """How an episode is drawn."""

    load_low: float
    load_high: float
    backlog: int  # maximum number of jobs at the start on SMALL GPUs; grows with the GPUs, up to half of all jobs
    burst: float  # share of episodes with bursts of arrivals
    sigma: float  # largest standard deviation of the logarithm of estimates
    jitter: float  # standard deviation of the logarithm of a job's work around the menu's
    failures: float  # share of episodes in which nodes fail
    shaped: bool
    similar: bool = False  # whether the memory of good placements is shown
    jobs: int = 0  # minimum jobs of an episode; more if more fill the cluster; 0: as many as there is room for
    ahead: int = 0  # future jobs that a choice is judged by, plus one for every four GPUs; 0: the whole episode
    stops: float = 0.0  # share of episodes in which jobs may be stopped; above 0, claims and moves are actions too
    restart: float = 1800.0  # largest cost of a restart in these, s


# ---- one of many environments ------------------------------------------------------------------------------------


@compiled
def view_of(worlds: Worlds, envs: Envs, b: int, row: int, limit: int = NOBODY) -> View:
    """The view of an environment, with its state from `row`: its own row, or a spare one for playing ahead.

    With `limit`, only the first `limit` jobs arrive.
    """
    n = envs.state[b].world
    info = worlds.info[n]
    return View(
        envs.jobs[b, : envs.state[b].jobs if limit == NOBODY else limit],
        envs.runs[row],
        envs.sites[row, : info.sites],
        envs.nodes[row, : info.nodes],
        envs.gpus[row, : info.gpus],
        envs.forms[row, : info.forms],
        envs.pools[row, : info.pools],
        envs.parts[row],
        envs.users[row],
        envs.groups[row],
        envs.open[row],
        envs.clock[row],
        envs.demands[row],
        envs.shapes,
        envs.queue[row],
        envs.running[row],
        envs.released[row],
        worlds.spread[n],
        envs.bits[row],
        worlds.form_sites[n],
        worlds.pool_sites[n],
        worlds.rate[n],
        worlds.width[n],
        envs.spare[row],
        worlds.fastest[n],
        worlds.home[n],
        envs.mix,
    )


@compiled
def truth_of(worlds: Worlds, envs: Envs, b: int, row: int) -> Truth:
    """The truth of an environment, which only the simulator sees."""
    return Truth(
        envs.work[b],
        envs.live[row],
        envs.heap[row],
        envs.factor[row],
        envs.disturbances[b],
        envs.events[row],
        envs.progress[row],
        envs.heat,
        worlds.rate[envs.state[b].world],
        envs.bandwidth,
    )


@compiled
def past_of(envs: Envs, b: int) -> Past:
    """The memory of good placements of an environment."""
    return Past(envs.good[b], envs.weight[b], envs.watched[b], envs.watched_pools[b], envs.past[b])


@compiled
def outlook_of(foreseen: Foreseen, row: int) -> Outlook:
    """The outlook stored in a row."""
    return Outlook(
        foreseen.gpu_free[row],
        foreseen.ready[row],
        foreseen.rows[row],
        foreseen.alike[row],
        foreseen.brief[row],
        foreseen.finish[row],
        foreseen.goal[row],
        foreseen.spot[row],
        foreseen.run[row],
        foreseen.wait[row],
        foreseen.delay[row],
        foreseen.prior[row],
        foreseen.counts[row],
        foreseen.unit[row],
        foreseen.demand[row],
        foreseen.awaited[row],
        foreseen.times[row],
        foreseen.known[row],
        foreseen.next_end[row],
        foreseen.middle[row],
    )


@compiled
def planes_of(seen: Seen, b: int) -> Planes:
    """The observation of one environment."""
    rows, pools = seen.present.shape[1:]
    legal = seen.legal[b, : rows * pools].reshape((rows, pools))
    return Planes(seen.rows[b], seen.pools[b], seen.pairs[b], seen.whole[b], seen.prior[b], seen.present[b], legal)


@compiled
def copy_state(worlds: Worlds, envs: Envs, source: int, target: int, limit: int) -> None:
    """Copy everything that changes during a run to another row, for the first `limit` jobs. The log is not copied."""
    view, other = view_of(worlds, envs, source, source), view_of(worlds, envs, source, target)
    for i in range(limit):
        other.runs[i] = view.runs[i]
    copy_cluster(view, other)
    copy_lists(view, other)
    copy_queue(view, other)
    copy_truth(truth_of(worlds, envs, source, source), truth_of(worlds, envs, source, target))


@compiled
def copy_world(worlds: Worlds, envs: Envs, b: int) -> None:
    """Reset an environment to the empty cluster of its world."""
    n = envs.state[b].world
    info = worlds.info[n]
    view = view_of(worlds, envs, b, b)
    empty = View(
        view.jobs,
        view.runs,
        worlds.sites[n, : info.sites],
        worlds.nodes[n, : info.nodes],
        worlds.gpus[n, : info.gpus],
        worlds.forms[n, : info.forms],
        worlds.pools[n, : info.pools],
        worlds.parts[n],
        view.users,
        view.groups,
        view.open,
        view.clock,
        view.demands,
        view.shapes,
        view.queue,
        view.running,
        view.released,
        view.spread,
        worlds.bits[n],
        view.form_sites,
        view.pool_sites,
        view.rate,
        view.width,
        worlds.spare[n],
        view.fastest,
        view.home,
        view.mix,
    )
    copy_cluster(empty, view)


# ---- empty arrays ------------------------------------------------------------------------------------------------


def _table(dtype: np.dtype[Any], *shape: int) -> Tables:
    """Records in an array of any shape."""
    return np.zeros(shape, dtype).view(np.recarray)


def envs_for(worlds: Worlds, count: int, total: int, jobs: int, seed: int, similar: bool = False) -> Envs:
    """Arrays for `count` environments of `jobs` jobs each, with `total` rows for state that changes in a run."""
    sites, nodes, gpus, pools = (each.shape[1] for each in (worlds.sites, worlds.nodes, worlds.gpus, worlds.pools))
    cells = (int(worlds.jobs["family"].max(initial=0)) + 1) * GANGS * LENGTHS if similar else 0
    envs = Envs(
        state=_table(_STATE, count),
        jobs=_table(JOB, count, jobs),
        runs=_table(RUN, total, jobs),
        sites=_table(SITE, total, sites),
        nodes=_table(NODE, total, nodes),
        gpus=_table(GPU, total, gpus),
        forms=_table(FORM, total, worlds.forms.shape[1]),
        pools=_table(POOL, total, worlds.pools.shape[1]),
        parts=_table(PART, total, worlds.parts.shape[1]),
        users=_table(USER, total, 1),
        groups=_table(GROUP, total, 1),
        open=_table(OFFER, total, sites + 1),
        clock=_table(CLOCK, total, 1),
        queue=np.zeros((total, 2 * jobs + 2), np.int32),
        running=np.zeros((total, jobs + 1), np.int32),
        released=np.zeros((total, RECENT), np.int32),
        demands=_table(DEMAND, total, worlds.fastest.shape[1]),
        bits=np.zeros((total, worlds.bits.shape[1]), np.int32),
        spare=np.zeros((total, *worlds.spare.shape[1:]), np.int32),
        mix=np.zeros((MIX_ROWS, MIX_COLUMNS)),
        bandwidth=np.zeros((0, 0)),
        shapes=_table(SHAPE, 0),
        work=np.zeros((count, jobs)),
        live=_table(LIVE, total, jobs + 1),
        heap=np.zeros((total, jobs + 1), np.int32),
        factor=np.ones((total, gpus)),
        disturbances=_table(DISTURBANCE, count, 8),
        events=_table(EVENT, total, 4 * (gpus + 2 * sites + 16)),
        progress=_table(PROGRESS, total, 1),
        heat=_table(HEAT, 0),
        good=np.zeros((count, cells, pools)),
        weight=np.zeros((count, cells, pools)),
        watched=np.zeros((count, jobs + 1), np.int32),
        watched_pools=np.zeros((count, jobs + 1), np.int32),
        past=np.zeros((count, 3)),
    )
    envs.state["random"] = np.random.default_rng(seed).integers(1, 2**63, count, np.uint64)
    return envs


def _claims_for(total: int, rows: int, worlds: Worlds) -> Claims:
    """Room for the claims and moves of `total` rows of environments."""
    gpus, sites, pools = worlds.gpus.shape[1], worlds.sites.shape[1], worlds.pools.shape[1]
    pairs = total, rows, pools
    return Claims(
        free=np.zeros((total, gpus)),
        holder=np.zeros((total, gpus), np.int32),
        order=np.zeros((total, gpus + 1), np.int32),
        keys=np.zeros((total, gpus + 1)),
        victims=np.zeros((total, gpus + 1), np.int32),
        have=np.zeros((total, sites), np.int32),
        levels=np.zeros((total, 1, worlds.spare.shape[2]), np.int32),
        effort=np.zeros((total, 2), np.int32),  # one is used; rows of 8 bytes are far enough apart for threads
        pressure=np.zeros((total, 1)),
        place=np.zeros(pairs, np.int32),
        gain=np.zeros(pairs),
        loss=np.zeros(pairs),
        stopped=np.zeros(pairs, np.int32),
        idle=np.zeros(pairs, np.int32),
        rest=np.zeros(pairs),
        counts=np.zeros((total, 5), np.int32),
    )


def foreseen_for(total: int, rows: int, worlds: Worlds, stops: bool = False) -> Foreseen:
    """Outlooks for `total` rows of environments."""
    pools = worlds.pools.shape[1]
    return Foreseen(
        np.zeros((total, worlds.gpus.shape[1])),
        np.zeros((total, *worlds.spare.shape[1:])),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows)),
        np.zeros((total, rows)),
        np.zeros((total, rows), np.int32),
        np.zeros((total, rows, pools), np.int32),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, rows, pools)),
        np.zeros((total, 5), np.int32),
        np.zeros((total, 1)),
        np.zeros((total, rows), np.int32),
        np.zeros((total, pools), np.int32),
        np.zeros((total, worlds.sites.shape[1])),
        np.zeros((total, 0), np.int32),
        np.zeros((total, 0)),
        np.zeros((total, 0)),
        _claims_for(total if stops else 0, rows, worlds),
    )


def seen_for(count: int, rows: int, pools: int, stops: bool = False) -> Seen:
    """Empty observations."""
    one = make_planes(rows, pools, stops)

    def many(array: Any) -> Any:
        return np.zeros((count, *array.shape), array.dtype)

    return Seen(
        many(one.rows),
        many(one.pools),
        many(one.pairs),
        many(one.whole),
        many(one.prior),
        many(one.present),
        np.zeros((count, rows * pools + 1), np.uint8),
    )
