"""The paper's agent (its section 4): what it sees, which assignments are legal, and its network without PyTorch.

State: how much of each GPU is in use, how long the queue is, and for each of the first jobs of the queue its priority
and its type. Action: one of those jobs to one of the n GPUs. The head of the network has one output for each, so it
fits clusters with exactly as many GPUs as the one that it was trained for.

An action names a GPU; the rules start jobs at sites (the GPUs of one model on one node) and take their lowest free
GPUs. So the action means the site of its GPU, and for a gang over several nodes the anchor of its pool. It is legal if
`rules.fits` says so there and the named GPU has room: wholly free, or for a share of a GPU with as much left. GPUs of a
site are alike, so that nothing is lost. There is no action to wait; when nothing is legal, time goes on by itself.
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

WINDOW: Final = 8
"""Jobs that the agent sees, in submit order. Those that need no GPU are not its business."""

TYPES: Final = 8
"""Columns of the job type: the families in the order of the workload; the last one is for all that have no column."""

REACH: Final = 3
"""GPUs side by side that a convolution sees at once."""


class PaperSeen(NamedTuple):
    """Observations. B environments, n GPUs, W = WINDOW jobs."""

    use: _Singles  # [B, n] share of each GPU in use; 1 while its node is down
    queue: _Singles  # [B, 1] waiting jobs, q / (q + W)
    jobs: _Singles  # [B, W, 1 + TYPES] priority and type, 0 where there is no job
    legal: _Bytes  # [B, W * n] which assignments may be: job by job, GPU by GPU


class PaperWeights(NamedTuple):
    """The weights of a network for n GPUs, with C channels and H units between the two full layers."""

    near: _Singles  # [REACH, C] first convolution, from the share in use
    near_bias: _Singles  # [C]
    far: _Singles  # [REACH, C, C] second convolution: from, to
    far_bias: _Singles  # [C]
    full: _Singles  # [C * n + 1 + W * (1 + TYPES), H]
    full_bias: _Singles  # [H]
    action: _Singles  # [H, W * n]
    action_bias: _Singles  # [W * n]


class PaperMind(NamedTuple):
    """What a decision works with, kept between decisions."""

    weights: PaperWeights
    rows: Ints  # [W]
    use: _Singles  # [n]
    queue: _Singles  # [1]
    jobs: _Singles  # [W, 1 + TYPES]
    legal: _Bytes  # [W * n]
    first: _Singles  # [n, C]
    second: _Singles  # [n, C]
    hidden: _Singles  # [H]
    q: _Singles  # [W * n]


# ---- what is seen ------------------------------------------------------------------------------------------------


@compiled
def window(view: View, rows: Ints) -> int:
    """Find the first waiting jobs that need a GPU, NOBODY behind them; how many they are."""
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
    """Where a job starts that is assigned to a GPU of this site: here, or the anchor of its pool for a wide gang."""
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
    """Mark the legal assignments of the jobs in the window; how many there are. `fits` is asked once for each site."""
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
    """Whether a GPU has a share left that is enough for the job."""
    job = view.jobs[j]
    gpu = view.gpus[g]
    return gpu.free_share >= job.share and gpu.free_memory >= job.gpu_memory


@compiled
def observe(view: View, rows: Ints, use: _Singles, queue: _Singles, jobs: _Singles) -> None:
    """Write down the state. The window has been found."""
    for s in range(len(view.sites)):
        site = view.sites[s]
        up = view.nodes[site.node].up != 0
        for g in range(site.first_gpu, site.first_gpu + site.gpus):
            use[g] = 1.0 - view.gpus[g].free_share / WHOLE_GPU if up else 1.0
    queued = view.clock[0].queued
    queue[0] = queued / (queued + len(rows))
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
    """What an action means to the rules."""
    j = widened(rows[action // len(view.gpus)])
    return Choice(START, j, target(view, j, site_of(view, action % len(view.gpus))), FOREVER)


# ---- the network -------------------------------------------------------------------------------------------------


@compiled
def forward(mind: PaperMind) -> None:
    """Q of every assignment, legal or not: two convolutions along the GPUs, then two full layers."""
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
    hidden = mind.hidden
    for o in range(len(hidden)):
        hidden[o] = weights.full_bias[o]
    for c in range(channels):
        for g in range(gpus):
            add_scaled(max(mind.second[g, c], np.float32(0.0)), weights.full[c * gpus + g], hidden)
    at = channels * gpus
    add_scaled(mind.queue[0], weights.full[at], hidden)
    columns = mind.jobs.shape[1]
    for w in range(mind.jobs.shape[0]):
        for i in range(columns):
            add_scaled(mind.jobs[w, i], weights.full[at + 1 + w * columns + i], hidden)
    for a in range(len(mind.q)):
        mind.q[a] = weights.action_bias[a]
    for o in range(len(hidden)):
        add_scaled(max(hidden[o], np.float32(0.0)), weights.action[o], mind.q)


@compiled
def add_scaled(x: float, row: _Singles, result: _Singles) -> None:
    """Add x times the row to the result."""
    if x != 0.0:
        for o in range(len(result)):
            result[o] += x * row[o]


# ---- the policy --------------------------------------------------------------------------------------------------


@compiled_alone
def best_assignment(view: View, mind: PaperMind) -> Choice:
    """The legal assignment with the largest Q; a job that needs no GPU starts at once, and nothing legal is a wait."""
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


def make_mind(weights: PaperWeights) -> PaperMind:
    """Room for decisions with these weights."""
    channels, gpus = len(weights.near_bias), gpus_of(weights)
    single = np.float32
    return PaperMind(
        PaperWeights(*(np.ascontiguousarray(each, single) for each in weights)),
        np.full(WINDOW, NOBODY, np.int32),
        np.zeros(gpus, single),
        np.zeros(1, single),
        np.zeros((WINDOW, 1 + TYPES), single),
        np.zeros(WINDOW * gpus, np.uint8),
        np.zeros((gpus, channels), single),
        np.zeros((gpus, channels), single),
        np.zeros(len(weights.full_bias), single),
        np.zeros(WINDOW * gpus, single),
    )


def gpus_of(weights: PaperWeights) -> int:
    """For how many GPUs the network was made."""
    return len(weights.action_bias) // WINDOW


def paper_weights(arrays: Mapping[str, npt.NDArray[Any]], where: str) -> PaperWeights:
    """The weights of a checkpoint of preset paper."""
    for name in PaperWeights._fields:
        if name not in arrays:
            raise CheckpointError(f"{where}: '{name}' is missing; this is no checkpoint of the preset 'paper'.")
    return PaperWeights(*(np.ascontiguousarray(arrays[name], np.float32) for name in PaperWeights._fields))


def check_weights(weights: PaperWeights, name: str) -> None:
    """Refuse weights whose shapes do not belong together, or that are no numbers."""
    channels, hidden, gpus = len(weights.near_bias), len(weights.full_bias), gpus_of(weights)
    expected = (
        (REACH, channels),
        (channels,),
        (REACH, channels, channels),
        (channels,),
        (channels * gpus + 1 + WINDOW * (1 + TYPES), hidden),
        (hidden,),
        (hidden, WINDOW * gpus),
        (WINDOW * gpus,),
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
    """The policy of a trained network of preset paper: the legal assignment with the largest Q."""
    check_weights(weights, name)
    expected = gpus_of(weights)

    def make(view: View, seed: int) -> Choose:
        gpus = sum(int(site.gpus) for site in view.sites)
        if gpus != expected:
            raise PolicyError(
                f"policy {name!r} was trained for a cluster of {expected} GPUs and this one has {gpus}; expected as "
                f"many. Train it for this cluster, or take preset adlro, which works on any."
            )
        mind = make_mind(weights)
        return lambda view: best_assignment(view, mind)

    return Policy(name, f"the paper's DQN, trained for {expected} GPUs", make=make)
