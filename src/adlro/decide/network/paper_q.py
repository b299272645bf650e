"""The paper's agent (its section 4): what it sees, which assignments are legal, and its network without PyTorch.

State: how much of each GPU is in use, the queue length, and the priority and the type of a job. Action: assign this job
to one of the n GPUs. The network judges every waiting job in the same way, one after the other, and the best pair of a
job and a GPU starts. It has one output for each GPU, so it only works on clusters with as many GPUs as in its training.

An action names a GPU, but the rules start jobs at sites (the GPUs of one model on one node) and take their lowest free
GPUs. So the action means the site of its GPU, and for a gang over several nodes the anchor of its pool. It is legal if
`rules.fits` allows it there and the named GPU has room: wholly free, or for a share of a GPU with enough left. The GPUs
of a site are alike, so nothing is lost. There is no action for waiting; if nothing is legal, time moves on.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled, compiled_alone, widened
from adlro.core.errors import CheckpointError, PolicyError
from adlro.core.policy import Choose, Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import fits, in_queue, seen
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, Ints, View
from adlro.decide.outlook import start_without_gpu

_Singles = npt.NDArray[np.float32]
_Bytes = npt.NDArray[np.uint8]

WINDOW: Final = 64
"""Waiting jobs that the agent judges in training, in submit order. Later ones only count in the queue length.

It does not see jobs without GPUs.
"""

MOST_JUDGED: Final = 1024
"""The same for decisions. It is larger because under load, gangs that do not fit gather at the head of the queue."""

CROWD: Final = 8
"""The queue length at which the input is 0.5."""

TYPES: Final = 8
"""Columns for the job type: the families in the order of the workload. The last one is for all others."""

REACH: Final = 3
"""Width of the convolutions: GPUs that they see at once."""


class PaperSeen(NamedTuple):
    """Observations. B environments, n GPUs, the first W waiting jobs."""

    use: _Singles  # [B, n] share of each GPU in use; 1 while its node is down
    queue: _Singles  # [B, 1] waiting jobs, q / (q + CROWD)
    jobs: _Singles  # [B, W, 1 + TYPES] priority and type; 0 if there is no job
    legal: _Bytes  # [B, W * n] which assignments are legal: job by job, GPU by GPU


class PaperWeights(NamedTuple):
    """The weights of a network for n GPUs, with C channels and H hidden units."""

    near: _Singles  # [REACH, C] first convolution, from the share in use
    near_bias: _Singles  # [C]
    far: _Singles  # [REACH, C, C] second convolution: from, to
    far_bias: _Singles  # [C]
    full: _Singles  # [C * n + 1 + 1 + TYPES, H]
    full_bias: _Singles  # [H]
    action: _Singles  # [H, n]
    action_bias: _Singles  # [n]


class PaperMind(NamedTuple):
    """The arrays for decisions, kept between decisions."""

    weights: PaperWeights
    rows: Ints  # [W]
    use: _Singles  # [n]
    queue: _Singles  # [1]
    jobs: _Singles  # [W, 1 + TYPES]
    legal: _Bytes  # [W * n]
    first: _Singles  # [n, C]
    second: _Singles  # [n, C]
    shared: _Singles  # [H] the part of the hidden layer that all jobs share
    hidden: _Singles  # [H]
    q: _Singles  # [W * n]


# ---- observations ------------------------------------------------------------------------------------------------


@compiled
def window(view: View, rows: Ints) -> int:
    """Find the first waiting jobs that need a GPU, and fill up with NOBODY; returns how many they are."""
    count = 0
    for q in range(seen(view)):
        if count == len(rows):
            break
        j = in_queue(view, q)
        if view.jobs[j].gpus > 0:
            rows[count] = j
            count += 1
    for w in range(count, len(rows)):
        rows[w] = NOBODY
    return count


@compiled
def target(view: View, j: int, s: int) -> int:
    """The site where a job assigned to a GPU of this site starts: this one, or for a wide gang its pool's anchor."""
    site = view.sites[s]
    if view.width[view.jobs[j].kind, site.form] > 1:
        return widened(view.pools[site.pool].anchor)
    return widened(s)


@compiled
def site_of(view: View, g: int) -> int:
    """The site of a GPU."""
    s = 0
    while g >= view.sites[s].first_gpu + view.sites[s].gpus:
        s += 1
    return s


@compiled
def mark(view: View, rows: Ints, legal: _Bytes) -> int:
    """Mark the legal assignments of the jobs in the window; returns their number. Calls `fits` once for each site."""
    gpus = len(view.gpus)
    for a in range(len(legal)):
        legal[a] = 0
    count = 0
    waiting = window(view, rows)
    for s in range(len(view.sites)):
        site = view.sites[s]
        if site.free_share == 0 or view.nodes[site.node].up == 0:
            continue
        for w in range(waiting):
            j = rows[w]
            whole = view.jobs[j].share == WHOLE_GPU
            if (whole and site.free_gpus == 0) or not fits(view, j, target(view, j, s)):
                continue
            first = w * gpus + site.first_gpu
            for g in range(site.gpus):
                if site.free_mask >> g & 1 or (not whole and _has_room(view, j, site.first_gpu + g)):
                    legal[first + g] = 1
                    count += 1
    return count


@compiled
def _has_room(view: View, j: int, g: int) -> bool:
    """Whether a GPU has enough of its share left for the job."""
    job = view.jobs[j]
    gpu = view.gpus[g]
    return gpu.free_share >= job.share and gpu.free_memory >= job.gpu_memory


@compiled
def observe(view: View, rows: Ints, use: _Singles, queue: _Singles, jobs: _Singles) -> None:
    """Write the observation. `window` has been called before."""
    for s in range(len(view.sites)):
        site = view.sites[s]
        up = view.nodes[site.node].up != 0
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            use[g] = 1.0 - view.gpus[g].free_share / WHOLE_GPU if up else 1.0
    queued = view.clock[0].queued
    queue[0] = queued / (queued + CROWD)
    for w in range(len(rows)):
        row = jobs[w]
        for i in range(len(row)):
            row[i] = 0.0
        if rows[w] != NOBODY:
            job = view.jobs[rows[w]]
            row[0] = job.priority
            row[1 + min(job.family, len(row) - 2)] = 1.0


@compiled
def assignment(view: View, rows: Ints, action: int) -> Choice:
    """The choice that an action stands for."""
    j = widened(rows[action // len(view.gpus)])
    return Choice(START, j, target(view, j, site_of(view, action % len(view.gpus))), FOREVER)


# ---- the network -------------------------------------------------------------------------------------------------


@compiled
def forward(mind: PaperMind) -> None:
    """Compute Q of every waiting job on every GPU, legal or not: two convolutions over the GPUs, two dense layers."""
    weights = mind.weights
    gpus, channels = mind.first.shape
    for g in range(gpus):
        here = mind.first[g]
        for c in range(channels):
            here[c] = weights.near_bias[c]
        for k in range(REACH):
            at = g + k - REACH // 2
            if 0 <= at < gpus:
                for c in range(channels):
                    here[c] += mind.use[at] * weights.near[k, c]
        for c in range(channels):
            here[c] = max(here[c], np.float32(0.0))
    for g in range(gpus):
        here = mind.second[g]
        for c in range(channels):
            here[c] = weights.far_bias[c]
        for k in range(REACH):
            at = g + k - REACH // 2
            if 0 <= at < gpus:
                for i in range(channels):
                    add_scaled(mind.first[at, i], weights.far[k, i], here)
    shared, hidden = mind.shared, mind.hidden
    for o in range(len(shared)):
        shared[o] = weights.full_bias[o]
    for c in range(channels):
        for g in range(gpus):
            add_scaled(max(mind.second[g, c], np.float32(0.0)), weights.full[c * gpus + g], shared)
    at = channels * gpus
    add_scaled(mind.queue[0], weights.full[at], shared)
    for w in range(len(mind.rows)):
        if mind.rows[w] == NOBODY:
            break
        for o in range(len(hidden)):
            hidden[o] = shared[o]
        for i in range(mind.jobs.shape[1]):
            add_scaled(mind.jobs[w, i], weights.full[at + 1 + i], hidden)
        q = mind.q[w * gpus : (w + 1) * gpus]
        for g in range(gpus):
            q[g] = weights.action_bias[g]
        for o in range(len(hidden)):
            add_scaled(max(hidden[o], np.float32(0.0)), weights.action[o], q)


@compiled
def add_scaled(x: float, row: _Singles, result: _Singles) -> None:
    """Add x times the row to the result."""
    if x != 0.0:
        for o in range(len(result)):
            result[o] += x * row[o]


# ---- the policy --------------------------------------------------------------------------------------------------


@compiled_alone
def best_assignment(view: View, mind: PaperMind) -> Choice:
    """The legal assignment with the highest Q, or wait if none is legal. A job without GPUs starts at once."""
    free = start_without_gpu(view)
    if free.verb == START:
        return free
    if mark(view, mind.rows, mind.legal) == 0:
        return Choice(WAIT, NOBODY, NOBODY, FOREVER)
    observe(view, mind.rows, mind.use, mind.queue, mind.jobs)
    forward(mind)
    chosen = NOBODY
    best = np.float32(-np.inf)
    for a in range(len(mind.q)):
        if mind.legal[a] != 0 and (chosen == NOBODY or mind.q[a] > best):
            best = mind.q[a]
            chosen = a
    return assignment(view, mind.rows, chosen)


def make_mind(weights: PaperWeights, window: int = WINDOW) -> PaperMind:
    """Arrays for decisions with these weights."""
    channels, gpus = len(weights.near_bias), gpus_of(weights)
    single = np.float32
    return PaperMind(
        PaperWeights(*(np.ascontiguousarray(each, single) for each in weights)),
        np.full(window, NOBODY, np.int32),
        np.zeros(gpus, single),
        np.zeros(1, single),
        np.zeros((window, 1 + TYPES), single),
        np.zeros(window * gpus, np.uint8),
        np.zeros((gpus, channels), single),
        np.zeros((gpus, channels), single),
        np.zeros(len(weights.full_bias), single),
        np.zeros(len(weights.full_bias), single),
        np.zeros(window * gpus, single),
    )


def gpus_of(weights: PaperWeights) -> int:
    """The number of GPUs that the network was made for."""
    return len(weights.action_bias)


def paper_weights(arrays: Mapping[str, npt.NDArray[Any]], where: str) -> PaperWeights:
    """The weights of a checkpoint of preset paper."""
    for name in PaperWeights._fields:
        if name not in arrays:
            raise CheckpointError(f"{where}: '{name}' is missing; this is no checkpoint of the preset 'paper'.")
    return PaperWeights(*(np.ascontiguousarray(arrays[name], np.float32) for name in PaperWeights._fields))


def check_weights(weights: PaperWeights, name: str) -> None:
    """Raise an error if the shapes do not fit together, or if a weight is NaN or infinite."""
    channels, hidden, gpus = len(weights.near_bias), len(weights.full_bias), gpus_of(weights)
    expected = (
        (REACH, channels),
        (channels,),
        (REACH, channels, channels),
        (channels,),
        (channels * gpus + 1 + 1 + TYPES, hidden),
        (hidden,),
        (hidden, gpus),
        (gpus,),
    )
    for part, array, shape in zip(PaperWeights._fields, weights, expected, strict=True):
        if array.shape != shape:
            raise PolicyError(
                f"policy {name!r}: {part!r} has the shape {array.shape}; expected {shape}. "
                f"The checkpoint is not one of preset paper, or of another version: train it again."
            )
        if not np.isfinite(array).all():
            raise PolicyError(f"policy {name!r}: {part!r} holds what is no number. Take an earlier checkpoint.")


def paper_policy(weights: PaperWeights, name: str) -> Policy:
    """The policy of a trained network of preset paper: the legal assignment with the highest Q."""
    check_weights(weights, name)
    expected = gpus_of(weights)

    def make(view: View, seed: int) -> Choose:
        gpus = sum(int(site.gpus) for site in view.sites)
        if gpus != expected:
            raise PolicyError(
                f"policy {name!r} was trained for a cluster of {expected} GPUs and this one has {gpus}; expected as "
                f"many. Train it for this cluster, or take preset adlro, which works on any."
            )
        mind = make_mind(weights, MOST_JUDGED)
        return lambda view: best_assignment(view, mind)

    return Policy(name, f"the paper's DQN, trained for {expected} GPUs", make=make)
