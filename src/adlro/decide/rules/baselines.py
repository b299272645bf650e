"""The classic rules that never stop a job. docs/policies.md defines each one exactly."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled
from adlro.core.policy import NEVER, Policy
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import best_runtime, fits, gpu_share, in_queue, lowest_number, portion, seen
from adlro.core.tables import MIX_ROWS, NOBODY, Choice, Floats, Ints, View
from adlro.decide.choosing import (
    Pair,
    anywhere,
    first_hopeful,
    first_spot,
    first_that_fits,
    head_or_nobody,
    hopeless,
    largest_key_first,
    shortest,
    shortest_pair,
    start_or_wait,
)

PICKY: Final = 0.5
"""sjf-picky only uses sites with at least this share of the job's best speed."""

LEHMER_FACTOR: Final = 48271
LEHMER_PRIME: Final = 2147483647

MOST_FAMILIES: Final = 62
"""static-affinity keeps one bit for each family that waits; with more families than this, some share a bit."""


# ---- scores of sites ---------------------------------------------------------------------------------------------


@compiled
def shortest_if_fast(view: View, j: int, s: int, pair: Pair) -> float:
    """Where it ends soonest, but not at sites that are much slower than its best."""
    if pair.runtime_s * PICKY > pair.best_s:
        return NEVER
    return -pair.runtime_s


@compiled
def tightest(view: View, j: int, s: int, pair: Pair) -> float:
    """Where the least is left over."""
    return -pair.leftover


@compiled
def at_home(view: View, j: int, s: int, pair: Pair) -> float:
    """The first site that the fixed map allows."""
    return 0.0 if pair.home else NEVER


# ---- keys of jobs ------------------------------------------------------------------------------------------------


@compiled
def f1_key(view: View, j: int) -> float:
    """F1 of Carastan-Santos and de Camargo."""
    job = view.jobs[j]
    runtime = max(best_runtime(view, j), 1.0)
    return -(math.log10(runtime) * gpu_share(view, j) + 870.0 * math.log10(max(job.submit, 1.0)))


@compiled
def wfp3_key(view: View, j: int) -> float:
    """WFP3 of Tang et al."""
    waited = view.clock[0].now - view.jobs[j].submit
    return (waited / max(best_runtime(view, j), 1.0)) ** 3 * gpu_share(view, j)


@compiled
def unicep_key(view: View, j: int) -> float:
    """UNICEP of Tang et al."""
    waited = view.clock[0].now - view.jobs[j].submit
    return waited / (max(math.log2(gpu_share(view, j)), 1.0) * max(best_runtime(view, j), 1.0))


@compiled
def qssf_key(view: View, j: int) -> float:
    """Least expected GPU time, from past jobs of the same user and name, else the same user, else everybody."""
    job = view.jobs[j]
    group = view.groups[job.group]
    if group.finished > 0.0:
        return -group.log_work / group.finished
    user = view.users[job.user]
    if user.finished > 0.0:
        return -user.log_work / user.finished
    clock = view.clock[0]
    if clock.finished > 0.0:
        return -clock.log_work / clock.finished
    return 0.0


# ---- the policies ------------------------------------------------------------------------------------------------


@compiled
def random(view: View) -> Choice:
    """A legal pair chosen at random, all with equal probability."""
    clock = view.clock[0]
    chosen = NOBODY
    site = NOBODY
    count = 0
    for q in range(first_hopeful(view), seen(view)):
        j = in_queue(view, q)
        if hopeless(view, j):
            continue
        before = count
        for s in range(len(view.sites)):
            if fits(view, j, s):
                # Reservoir sampling: each pair seen so far has been kept with equal probability.
                count += 1
                clock.random = clock.random * LEHMER_FACTOR % LEHMER_PRIME
                if clock.random % count == 0:
                    chosen = j
                    site = s
        if count == before:
            view.demands[view.jobs[j].demand].tried = clock.version
    return start_or_wait(chosen, site)


@compiled
def fcfs(view: View) -> Choice:
    """The head of the queue on the first free GPUs of any model; if it does not fit, all jobs wait."""
    return head_or_nobody(view, anywhere)


@compiled
def fcfs_first_fit(view: View) -> Choice:
    """The first job that fits, at the first site where it fits."""
    return first_that_fits(view, anywhere)


@compiled
def has_home(view: View, j: int) -> bool:
    """Whether the models that the map allows have enough large nodes for the job when they are empty."""
    job = view.jobs[j]
    whole = max(job.gpus, 1)
    for p in range(len(view.pools)):
        able = 0
        width = 1
        for h in range(len(view.forms)):
            form = view.forms[h]
            if form.pool != p or view.home[job.kind, h] == 0 or view.width[job.kind, h] == 0:
                continue
            width = view.width[job.kind, h]
            part = max(min(form.gpus, job.gpus), 1)
            if form.cpus >= portion(job.cpus, part, whole) and form.memory >= portion(job.memory, part, whole):
                able += form.sites
        if able >= width:
            return True
    return False


@compiled
def static_affinity(view: View) -> Choice:
    """In submit order, each job on the models that the map gives its family. If it must wait, so must its family."""
    waiting = 0
    for q in range(seen(view)):
        j = in_queue(view, q)
        bit = 1 << (view.jobs[j].family % MOST_FAMILIES)
        if waiting & bit:
            continue
        site = NOBODY
        if not hopeless(view, j):
            site = first_spot(view, j, at_home).site if has_home(view, j) else first_spot(view, j, anywhere).site
        if site != NOBODY:
            return start_or_wait(j, site)
        waiting |= bit
    return start_or_wait(NOBODY, NOBODY)


@compiled
def sjf(view: View) -> Choice:
    """The pair with the shortest estimated runtime."""
    return shortest_pair(view, shortest)


@compiled
def sjf_picky(view: View) -> Choice:
    """The pair with the shortest estimated runtime among sites with at least half of the job's best speed."""
    return shortest_pair(view, shortest_if_fast)


@compiled
def f1(view: View) -> Choice:
    """By F1, at the site where it ends soonest."""
    return largest_key_first(view, f1_key, shortest)


@compiled
def wfp3(view: View) -> Choice:
    """By WFP3, at the site where it ends soonest."""
    return largest_key_first(view, wfp3_key, shortest)


@compiled
def unicep(view: View) -> Choice:
    """By UNICEP, at the site where it ends soonest."""
    return largest_key_first(view, unicep_key, shortest)


@compiled
def qssf(view: View) -> Choice:
    """By predicted GPU time, at the site where it ends soonest."""
    return largest_key_first(view, qssf_key, shortest)


@compiled
def best_fit(view: View) -> Choice:
    """The first job that fits, at the site where the least is left over."""
    return first_that_fits(view, tightest)


# ---- fgd ---------------------------------------------------------------------------------------------------------


@compiled
def less_unusable(
    view: View, s: int, extra_gpus: int, extra_share: int, from_gpu: int, extra_cpus: int, partly_used: int
) -> float:
    """By how much the free GPU share that the usual mix cannot use would shrink, if a job took this much at the site.

    `partly_used` has one bit for each GPU that is partly free. The sums before and after are computed side by side,
    which is faster than one after the other: each addition has to wait for the previous one of the same sum.
    """
    site = view.sites[s]
    cpus = view.nodes[site.node].free_cpus
    whole = site.free_gpus
    free = site.free_share
    whole_after = whole - extra_gpus
    if from_gpu != NOBODY:
        partly_used |= 1 << from_gpu
        if view.gpus[site.first_gpu + from_gpu].free_share == WHOLE_GPU:
            whole_after -= 1
    # Convert to floats once: converting in each step would take longer than the rest of it.
    room, room_after = float(whole * WHOLE_GPU), float(whole_after * WHOLE_GPU)
    some, some_after = float(free), float(free - extra_gpus * WHOLE_GPU - extra_share)
    rest, rest_after = some - room, some_after - room_after
    enough, enough_after = float(cpus), float(cpus - extra_cpus)
    before = 0.0
    after = 0.0
    for m in range(MIX_ROWS):
        need = view.mix[m, 0]
        cores = view.mix[m, 1]
        often = view.mix[m, 2]
        if often == 0.0:
            break
        # Conditional values instead of branches: the processor could not predict these.
        is_share = need < WHOLE_GPU
        lost = 0.0 if is_share else (some if room < need else rest)
        lost_after = 0.0 if is_share else (some_after if room_after < need else rest_after)
        before += often * (some if cores > enough else lost)
        after += often * (some_after if cores > enough_after else lost_after)
        if is_share and partly_used != 0:
            left_over = partly_used
            while left_over != 0:
                g = lowest_number(left_over)
                left_over &= left_over - 1
                left = float(view.gpus[site.first_gpu + g].free_share)
                left_after = left - (extra_share if g == from_gpu else 0)
                before += often * (left if cores <= enough and 0.0 < left < need else 0.0)
                after += often * (left_after if cores <= enough_after and 0.0 < left_after < need else 0.0)
    return before - after


@compiled
def partly_used_gpus(view: View, s: int) -> int:
    """One bit for each GPU of the site that is partly free."""
    site = view.sites[s]
    found = 0
    if site.open_share > 0:
        for g in range(site.gpus):
            if 0 < view.gpus[site.first_gpu + g].free_share < WHOLE_GPU:
                found |= 1 << g
    return found


@compiled
def least_fragmenting(view: View, j: int, s: int, pair: Pair) -> float:
    """Where the share that the usual mix cannot use grows least."""
    job = view.jobs[j]
    partly_used = partly_used_gpus(view, s)
    if job.share == WHOLE_GPU:
        return less_unusable(view, s, job.gpus, 0, NOBODY, job.cpus, partly_used)
    site = view.sites[s]
    best = NEVER
    was_free = False
    for g in range(site.gpus):
        gpu = view.gpus[site.first_gpu + g]
        is_free = gpu.free_share == WHOLE_GPU
        if is_free and was_free:
            continue  # a second free GPU gives the same result if no partly used one is between them
        if gpu.free_share >= job.share and gpu.free_memory >= job.gpu_memory:
            best = max(best, less_unusable(view, s, 0, job.share, g, job.cpus, partly_used))
        if is_free or gpu.free_share > 0:
            was_free = is_free
    return best


@compiled
def fgd(view: View) -> Choice:
    """The first job that fits, where fragmentation grows least for the usual mix of demands."""
    return first_that_fits(view, least_fragmenting)


def learn_mix(view: View) -> None:
    """Store the usual mix of demands, the most frequent sizes in the workload, unless it is already stored."""
    jobs = view.jobs[view.jobs.gpus > 0]
    if not len(jobs) or view.mix[0, 2] > 0.0:
        return
    demand = jobs.gpus.astype(np.int64) * jobs.share
    write_mix(view, *np.unique(np.stack([demand, jobs.cpus], axis=1), axis=0, return_counts=True))


def write_mix(view: View, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
    """Store the most frequent sizes (thousandths of a GPU, of a core) with their frequency; `sizes` are sorted."""
    top = np.argsort(-counts, kind="stable")[:MIX_ROWS]
    view.mix[: len(top), :2] = sizes[top]
    view.mix[: len(top), 2] = counts[top] / counts[top].sum()


# ---- preparation before the run ----------------------------------------------------------------------------------


def keep_history(view: View) -> None:
    """Let the simulator record the work of finished jobs."""
    view.clock[0].learn = 1


def map_families(view: View) -> None:
    """Give models to every family that the operator's map does not name, by comparative advantage.

    A family gets the model on which it gains most relative to the average model. A model's share of the families is at
    most its share of the GPUs. A model without a family goes to the family that loses least on it. A job that could
    never run on its models may run anywhere, and a job without GPUs needs none.
    """
    kinds, firsts = np.unique(view.jobs.kind, return_index=True)  # other kinds are sizes that no job has now
    families, needs_gpus = view.jobs.family[firsts], view.jobs.gpus[firsts] > 0
    named = np.isin(families, families[(view.home[kinds] == 0).any(axis=1)])
    ours, row_of = np.unique(families[needs_gpus & ~named], return_inverse=True)
    mine, first_of_mine = kinds[needs_gpus & ~named], firsts[needs_gpus & ~named]
    pool_of = np.asarray(view.forms.pool)
    speed = np.zeros((len(ours), len(view.pools)))
    for k, first, row in zip(mine, first_of_mine, row_of, strict=True):
        job = view.jobs[first]
        np.maximum.at(speed[row], pool_of, view.rate[k] / (job.gpus * job.share / WHOLE_GPU))
    taken = np.zeros(len(view.pools), np.bool_)
    taken[pool_of[(view.home[kinds[named]] != 0).any(axis=0)]] = True
    home = assign(speed, np.asarray(view.pools.gpus, np.float64), taken)
    view.home[mine] = home[row_of][:, pool_of]
    view.home[kinds[~needs_gpus]] = 1
    forget_impossible_homes(view)


def assign(speed: Floats, gpus: Floats, taken: npt.NDArray[np.bool_]) -> Ints:
    """The home pools of each family, from its speed there and the size of the pools.

    The operator's map has already `taken` some pools for other families; these need no further family.
    """
    families, pools = speed.shape
    total = max(gpus.sum(), 1.0)
    advantage = speed / np.maximum(speed @ gpus / total, 1e-9)[:, None]
    room = np.ceil(gpus * families / total).astype(int)
    home = np.zeros((families, pools), np.int32)
    for flat in np.argsort(-advantage, axis=None, kind="stable"):
        f, p = divmod(int(flat), pools)
        if not home[f].any() and room[p] > 0 and speed[f, p] > 0.0:
            home[f, p] = 1
            room[p] -= 1
    for p in range(pools):
        if gpus[p] > 0 and families and not taken[p] and not home[:, p].any():
            home[int(np.argmax(advantage[:, p])), p] = 1
    return home


def forget_impossible_homes(view: View) -> None:
    """If a kind could never run on its home pools, let it run everywhere."""
    stranded = ~((view.home != 0) & (view.width > 0)).any(axis=1)
    view.home[stranded] = 1


POLICIES: Final = (
    Policy("random", "any legal (job, site) pair, with equal probability", choose=random),
    Policy(
        "fcfs",
        "submit order; the head blocks the queue; first free GPUs of any model (the paper's baseline)",
        choose=fcfs,
    ),
    Policy(
        "fcfs-first-fit",
        "submit order, skipping jobs that do not fit; first free GPUs of any model",
        choose=fcfs_first_fit,
    ),
    Policy(
        "static-affinity",
        "a fixed map from family to GPU models; a job waits for its models (the paper's baseline)",
        choose=static_affinity,
        needs=("map",),
        prepare=map_families,
    ),
    Policy("sjf", "the (job, site) pair with the least estimated runtime", choose=sjf, needs=("estimate",)),
    Policy(
        "sjf-picky",
        "as sjf, but only on sites with at least half of the job's best speed; otherwise waits",
        choose=sjf_picky,
        needs=("estimate",),
    ),
    Policy(
        "f1", "least log10(runtime)*gpus + 870*log10(submit) first (Carastan-Santos)", choose=f1, needs=("estimate",)
    ),
    Policy("wfp3", "largest (wait/runtime)^3*gpus first", choose=wfp3, needs=("estimate",)),
    Policy("unicep", "largest wait/(log2(gpus)*runtime) first", choose=unicep, needs=("estimate",)),
    Policy(
        "qssf",
        "least GPU time first, predicted from similar finished jobs (Helios)",
        choose=qssf,
        needs=("history",),
        prepare=keep_history,
    ),
    Policy(
        "best-fit",
        "submit order, skipping jobs that do not fit; the site with the least share left over",
        choose=best_fit,
    ),
    Policy(
        "fgd",
        "submit order, skipping jobs that do not fit; least growth of unusable GPU share (Alibaba)",
        choose=fgd,
        needs=("mix",),
        prepare=learn_mix,
    ),
)
