"""Jobs drawn from a workload file: vectorised, the same for the same seed, and each aspect from its own stream.

What a name (a user's recurring job) asks for is drawn once and shared by all jobs of that name; their durations are
alike, not equal. Because names are drawn from the mix, the mix of jobs is the one in the file.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.errors import UsageError
from adlro.core.jobs import job_table
from adlro.core.memory import release_temporaries
from adlro.core.records import WHOLE_GPU
from adlro.core.schema import Property
from adlro.core.sizes import sizes_of
from adlro.core.tables import Floats, Ints, Jobs, Table
from adlro.core.units import DAY_S, MIB_PER_GB
from adlro.ingest.workload_file import (
    IN_FAMILIES,
    Arrivals,
    Duration,
    JobClass,
    Priorities,
    Surge,
    Users,
    Workload,
    WorkloadPart,
)

WEEK_S: Final = 7 * DAY_S

# Streams are numbered by their place here: append, never reorder, or every seed gives other jobs.
ASPECTS: Final = (
    "arrivals",
    "bursts",
    "spread",
    "names",
    "mix",
    "users",
    "durations",
    "scatter",
    "guesses",
    "priorities",
    "surge",
)
BASE: Final = 0
SURGE: Final = 1

VARIANT = np.dtype(
    [
        ("weight", "f8"),  # chance; all together 1
        ("units", "f8"),  # work done in a second on the reference model: gpus · share/1000, 1 without GPUs
        ("checkpoint_s", "f8"),
        ("limit_factor", "f8"),
        ("part", "i4"),  # place in Workload.families: whose duration it has
    ],
    align=True,
)
"""How often a combination of family, gang, share and models is drawn, and the other properties of its jobs."""


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """All combinations that a workload can draw, with the names behind the numbers."""

    variants: Table  # VARIANT [V]
    demands: Table  # JOB [V] what jobs of each variant ask for
    families: tuple[str, ...]
    allowed: tuple[frozenset[str], ...]
    sizes: tuple[tuple[int, ...], ...]


class Drawn(NamedTuple):
    """The random draws, before they become a table."""

    submit: Floats  # [J]
    group: Ints  # [J]
    normal: Floats  # [J] where the duration lies in its distribution, as a standard normal
    guess: Floats  # [J] the error of a guess, as a standard normal
    priority: npt.NDArray[np.float32]  # [J]
    variant: Ints  # [groups]
    user: Ints  # [groups]


def generate(workload: Workload, seed: int, jobs: int | None = None) -> Jobs:
    """Jobs drawn from a workload, in submit order; a surge adds jobs to the requested number."""
    count = workload.jobs if jobs is None else jobs
    if count < 1:
        raise UsageError(f"{count} jobs asked for; expected a whole number from 1.")
    if seed < 0:
        raise UsageError(f"the seed is {seed}; expected a whole number from 0.")
    mix = mix_of(workload)
    submit = _arrival_times(workload.arrivals, seed, count)
    drawn = _draw(workload, mix.variants["weight"], submit, seed, BASE)
    if workload.surge is not None:
        drawn = _merged(drawn, _draw_surge(workload, workload.surge, mix, count, seed))
    table = _tabulate(workload, mix, drawn)
    del submit, drawn
    release_temporaries(count)
    return table


def long_run_load(workload: Workload, gpus: int) -> float:
    """Long-run GPU-seconds on the reference model submitted per second and GPU; without the surge."""
    if workload.arrivals.process == "all-at-once":
        return float("inf")
    mix = mix_of(workload)
    means = np.array([mean_duration(part.duration) for part in workload.families])
    on_gpus = mix.variants[mix.demands["gpus"] > 0]
    work = float(np.sum(on_gpus["weight"] * on_gpus["units"] * means[on_gpus["part"]]))
    return work / workload.arrivals.mean_interarrival_s / gpus


def one_of_each(workload: Workload) -> tuple[Jobs, Floats]:
    """One job of each kind that the workload can draw, with its mean duration, and the probability of each kind."""
    mix = mix_of(workload)
    variants = mix.variants
    means = np.array([mean_duration(part.duration) for part in workload.families])
    work = means[variants["part"]] * variants["units"]
    zeros = np.zeros(len(work))
    amounts = {"estimate": work, "priority": zeros, "limit_s": zeros, "checkpoint": zeros}
    table = job_table(work, amounts, {}, (mix.demands, np.arange(len(work))))
    return Jobs(table, work, mix.families, ("",), (), mix.allowed, mix.sizes), np.array(variants["weight"])


def mean_duration(duration: Duration) -> float:
    """Mean duration in seconds within the bounds, computed from the quantiles of the distribution."""
    normal = np.linspace(-9.0, 9.0, 20_001)
    chance = np.exp(-0.5 * normal**2)
    return float(np.sum(durations_at(duration, normal) * chance) / np.sum(chance))


def durations_at(duration: Duration, normal: Floats) -> Floats:
    """Durations in seconds at quantiles that are given as standard normal values."""
    seconds: Floats
    match duration.distribution:
        case "lognormal":
            seconds = duration.median_s * np.exp(duration.sigma * normal)
        case "weibull":
            seconds = duration.scale_s * exponential_at(normal) ** (1 / duration.shape)
        case "exponential":
            seconds = duration.mean_s * exponential_at(normal)
        case "fixed":
            seconds = np.full(len(normal), duration.value_s)
        case "loguniform":
            seconds = _piecewise(duration, chance_at(normal))
        case "quantiles":
            seconds = np.exp(np.interp(chance_at(normal), duration.at, np.log(duration.seconds)))
    return np.clip(seconds, duration.min_s, duration.max_s, out=seconds)


def chance_at(normal: Floats) -> Floats:
    """The probability that a standard normal value is below each of these."""
    from scipy.special import ndtr  # the import takes a third of a second, and most workloads do not need it

    found: Floats = ndtr(normal)
    return found


def exponential_at(normal: Floats) -> Floats:
    """Values of the exponential distribution with mean 1 at the same quantiles."""
    from scipy.special import log_ndtr

    found: Floats = -log_ndtr(-normal)
    return found


def _piecewise(duration: Duration, chance: Floats) -> Floats:
    """Seconds at the given probabilities: first the piece, then the position within it."""
    weights = np.array([piece.weight for piece in duration.pieces])
    low = np.log([piece.low_s for piece in duration.pieces])
    high = np.log([piece.high_s for piece in duration.pieces])
    ends = _cumulative(weights)
    weights = weights / weights.sum()
    piece = np.searchsorted(ends, np.minimum(chance, np.nextafter(1, 0)), side="right")
    within = (chance - (ends - weights)[piece]) / weights[piece]
    seconds: Floats = np.exp(low[piece] + within * (high - low)[piece])
    return seconds


def mix_of(workload: Workload) -> WorkloadMix:
    """Every combination that the workload can draw, with its probability."""
    families: dict[str, int] = {}
    allowed: dict[frozenset[str], int] = {frozenset(): 0}
    sizes: dict[tuple[int, ...], int] = {(): 0}
    rows: list[tuple[float | int, ...]] = []
    amounts: dict[str, list[float]] = {}
    numbers: dict[str, list[int]] = {"family": [], "allowed": [], "sizes": []}
    whole = sum(part.weight for part in workload.families)
    for number, part in enumerate(workload.families):
        classes = part.classes or _classes(part)
        total = sum(row.seen for row in classes)
        same = {each.name: at_least(each, getattr(part, each.name)) for each in IN_FAMILIES}
        checkpoint_s = np.inf if part.checkpoint_s is None else part.checkpoint_s
        limit_factor = np.inf if part.limit_factor is None else part.limit_factor
        for family in part.family:
            family_number = families.setdefault(family, len(families))
            for row in classes:
                models = frozenset(row.models.split("|")) if row.models else frozenset()
                share = WHOLE_GPU if row.gpus == 0 else row.share
                rows.append(
                    (
                        part.weight / whole / len(part.family) * row.seen / total,
                        row.gpus * share / WHOLE_GPU if row.gpus else 1.0,
                        checkpoint_s,
                        limit_factor,
                        number,
                    )
                )
                demand = same | {
                    "gpus": row.gpus, "share": share, "cpus": row.cpu_milli / 1000,
                    "memory_gb": row.memory_mib / MIB_PER_GB,
                }  # fmt: skip
                if not row.gpus:
                    demand["gpu_memory_gb"] = 0.0
                for name, amount in demand.items():
                    amounts.setdefault(name, []).append(amount)
                numbers["family"].append(family_number)
                numbers["allowed"].append(allowed.setdefault(models, len(allowed)))
                own = sizes_of(part.sizes) if row.gpus else ()
                numbers["sizes"].append(sizes.setdefault(own, len(sizes)))
    variants = np.array(rows, VARIANT).view(np.recarray)
    table = job_table(np.zeros(len(rows)), amounts, numbers)
    return WorkloadMix(variants, table, tuple(families), tuple(allowed), tuple(sizes))


def at_least(each: Property, amount: float | None) -> float:
    """The amount, rounded up to whole units of the table; NaN if none is given."""
    if amount is None:
        return np.nan
    return float(np.ceil(amount * each.scale) / each.scale) if each.scale != 1 else amount


def _classes(part: WorkloadPart) -> list[JobClass]:
    """The classes that `gpus`, `share` and the amounts per GPU describe; a count is a weight here."""
    classes = []
    shares = sum(part.share.values())
    for gpus, weight in part.gpus.items():
        for share, share_weight in part.share.items() if gpus == 1 else [(WHOLE_GPU, shares)]:
            used = gpus * share / WHOLE_GPU
            classes.append(
                JobClass(
                    gpus=gpus,
                    share=share,
                    cpu_milli=int(np.ceil(part.cpus_per_gpu * 1000 * used)),
                    memory_mib=int(np.ceil(part.memory_gb_per_gpu * MIB_PER_GB * used)),
                    models="|".join(part.models),
                    seen=weight * share_weight / shares,
                )
            )
    return classes


def _draw(workload: Workload, weights: Floats, submit: Floats, seed: int, block: int) -> Drawn:
    """Draw everything for jobs submitted at these times."""
    count = len(submit)
    group = _groups(workload.users, count, _stream(seed, block, "names"))
    names = int(group.max(initial=-1)) + 1
    scatter = workload.users.scatter
    # Two normals that add up to a standard normal: the durations keep the distribution in the file.
    normal = _stream(seed, block, "durations").standard_normal(names)[group]
    normal *= np.sqrt(1 - scatter**2)
    normal += scatter * _stream(seed, block, "scatter").standard_normal(count)
    popularity = np.arange(1.0, workload.users.count + 1) ** -workload.users.zipf
    return Drawn(
        submit=submit,
        group=group,
        normal=normal,
        guess=_stream(seed, block, "guesses").standard_normal(count),
        priority=_draw_priorities(workload.priorities, count, _stream(seed, block, "priorities")),
        variant=_pick(weights, names, _stream(seed, block, "mix")),
        user=_pick(popularity, names, _stream(seed, block, "users")),
    )


def _draw_surge(workload: Workload, surge: Surge, mix: WorkloadMix, count: int, seed: int) -> Drawn:
    """Draw the jobs of a surge: all of its family, with names of their own."""
    weights = np.where(mix.demands["family"] == mix.families.index(surge.family), mix.variants["weight"], 0.0)
    mean_interarrival_s = workload.arrivals.mean_interarrival_s
    extra_rate = (surge.rate_factor - 1) * weights.sum() / mean_interarrival_s
    start = surge.start_s
    if start is None:
        start = (surge.start_fraction or 0.0) * count * mean_interarrival_s
    rng = _stream(seed, SURGE, "surge")
    submit = start + surge.duration_s * np.sort(rng.random(rng.poisson(extra_rate * surge.duration_s)))
    return _draw(workload, weights, submit, seed, SURGE)


def _merged(base: Drawn, extra: Drawn) -> Drawn:
    """Both lists as one, in submit order; jobs of the first come first at equal times."""
    submit = np.concatenate((base.submit, extra.submit))
    order = np.argsort(submit, kind="stable")
    return Drawn(
        submit=submit[order],
        group=np.concatenate((base.group, extra.group + np.int32(len(base.variant))))[order],
        normal=np.concatenate((base.normal, extra.normal))[order],
        guess=np.concatenate((base.guess, extra.guess))[order],
        priority=np.concatenate((base.priority, extra.priority))[order],
        variant=np.concatenate((base.variant, extra.variant)),
        user=np.concatenate((base.user, extra.user)),
    )


def _tabulate(workload: Workload, mix: WorkloadMix, drawn: Drawn) -> Jobs:
    """The table of jobs from the draws."""
    variants, variant = mix.variants, drawn.variant[drawn.group]
    duration_s = _durations(workload, variants["part"][variant], drawn.normal)
    units = variants["units"][variant]
    guess_s = duration_s * np.exp(workload.estimates.sigma * drawn.guess)
    limit_s = variants["limit_factor"][variant] * guess_s
    told_s = {"limit": limit_s, "predicted": 0.0}.get(workload.estimates.source, guess_s)  # 0: nothing before a run
    work: Floats = np.multiply(duration_s, units, out=duration_s)
    amounts = {
        "submit_s": drawn.submit, "priority": drawn.priority, "limit_s": limit_s, "estimate": told_s * units,
        "checkpoint": variants["checkpoint_s"][variant] * units,
    }  # fmt: skip
    who = {"group": drawn.group, "user": drawn.user[drawn.group]}
    table = job_table(work, amounts, who, (mix.demands, variant))
    users = tuple(f"user{number}" for number in range(workload.users.count))
    return Jobs(table, work, mix.families, users, _names(drawn.user), mix.allowed, mix.sizes)


def _durations(workload: Workload, part: Ints, normal: Floats) -> Floats:
    """Durations in seconds, each from the distribution of its part of the mix."""
    if len(workload.families) == 1:
        return durations_at(workload.families[0].duration, normal)
    seconds = np.empty(len(normal))
    for number, family in enumerate(workload.families):
        rows = np.flatnonzero(part == number)
        seconds[rows] = durations_at(family.duration, normal[rows])
    return seconds


def _groups(users: Users, count: int, rng: np.random.Generator) -> Ints:
    """A number for each job's user and name: a new one, or one of those before it, all equally likely."""
    whether, which = rng.random((count, 2)).T
    new = whether >= users.recurrence
    new[:1] = True
    known = np.cumsum(new, dtype=np.int32)
    again = (which * known).astype(np.int32)
    return np.where(new, known - np.int32(1), again)


def _names(user: Ints) -> tuple[str, ...]:
    """name0, name1, ... for each user, in the order in which the groups first appear."""
    if not len(user):
        return ()
    order = np.argsort(user, kind="stable")
    first = np.flatnonzero(np.diff(user[order], prepend=-1))
    rank = np.empty(len(user), np.int64)
    rank[order] = np.arange(len(user)) - np.repeat(first, np.diff(first, append=len(user)))
    words = [f"name{number}" for number in range(int(rank.max()) + 1)]
    return tuple(map(words.__getitem__, rank.tolist()))


def _draw_priorities(priorities: Priorities, count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A priority from 0 to 1 for each job."""
    if priorities.beta:
        a, b = priorities.beta
        return rng.beta(a, b, count).astype(np.float32)
    weights = priorities.weights or [1.0] * len(priorities.values)
    values: npt.NDArray[np.float32] = np.array(priorities.values, np.float32)
    return values[_pick(np.array(weights), count, rng)]


def _arrival_times(arrivals: Arrivals, seed: int, count: int) -> Floats:
    """Submit times in order; the long-run rate is one job per mean_interarrival_s, whatever the process."""
    rng = _stream(seed, BASE, "arrivals")
    match arrivals.process:
        case "poisson":
            return np.cumsum(rng.exponential(arrivals.mean_interarrival_s, count))
        case "diurnal":
            return _diurnal_times(arrivals, np.cumsum(rng.standard_exponential(count)))
        case "bursty":
            sizes = _burst_sizes(arrivals, _stream(seed, BASE, "bursts"), count)
            gaps = rng.exponential(arrivals.mean_interarrival_s * arrivals.burst_size_mean, len(sizes))
            begin = np.repeat(np.cumsum(gaps), sizes)[:count]
            return np.sort(begin + arrivals.burst_spread_s * _stream(seed, BASE, "spread").random(count))
        case "all-at-once":
            return np.zeros(count)


def _diurnal_times(arrivals: Arrivals, expected: Floats) -> Floats:
    """Times at which the expected number of arrivals reaches the given numbers: the inverse of the rate's integral."""
    edges = np.linspace(0.0, WEEK_S, 7 * 24 * 12 + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    rate = 1 + arrivals.day_swing * np.cos(2 * np.pi * (middle / DAY_S - arrivals.peak_hour / 24))
    rate[middle >= 5 * DAY_S] *= arrivals.weekend_factor
    rate /= rate.mean() * arrivals.mean_interarrival_s
    so_far = np.concatenate(([0.0], np.cumsum(rate * np.diff(edges))))
    week, rest = np.divmod(expected, so_far[-1])
    return week * WEEK_S + np.interp(rest, so_far, edges)


def _burst_sizes(arrivals: Arrivals, rng: np.random.Generator, count: int) -> Ints:
    """Geometric sizes of enough bursts for all jobs."""
    sizes = np.empty(0, np.int32)
    bursts = int(count / arrivals.burst_size_mean) + 64
    while sizes.sum() < count:
        sizes = np.append(sizes, rng.geometric(1 / arrivals.burst_size_mean, bursts).astype(np.int32))
    return sizes


def _pick(weights: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Indices drawn with these weights."""
    picked = np.searchsorted(_cumulative(weights), rng.random(count), side="right")
    return picked.astype(np.int32)


def _cumulative(weights: Floats) -> Floats:
    """The cumulative weights, scaled to end at exactly 1."""
    ends: Floats = np.cumsum(weights)
    ends /= ends[-1]
    return ends


def _stream(seed: int, block: int, aspect: str) -> np.random.Generator:
    """A random generator for each aspect, so that changing one leaves the others unchanged."""
    key = (block, ASPECTS.index(aspect))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
