"""Corrections of `plan`: a small network that changes the numbers of the rule for each job.

`plan` orders jobs by their remaining time, and weighs places, stops and moves with fixed numbers. The network sees each
job beside the others, and answers with factors for these numbers. Without hidden units all factors are 1, and that is
the rule. docs/policies.md has the definition, scripts/train_plan.py the training.
"""

from math import exp, log, tanh
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_allocating
from adlro.core.rules import rate_on, restart_of, weight_of
from adlro.core.tables import FOREVER, RUNNING, Floats, Ints, View
from adlro.decide.rules.preemptive import time_left

INPUTS: Final = (
    "one", "time left", "GPUs", "share of the cluster", "runs", "starts", "age", "age before the first start",
    "waiting jobs", "restart", "pickiness", "free GPUs", "models", "work",
)  # fmt: skip
"""What the network sees of a job; `see` computes them in this order."""

ORDER: Final = 0
EXTERNAL: Final = 1
SETTING_BACK: Final = 2
STICKING: Final = 3
FILLING: Final = 4
MOVING: Final = 5
OUTPUTS: Final = 6
"""Indices of the factors, and their number. They are factors of the remaining time by which jobs are ordered; of the
externality; of what victims lose to this job beside their restarts; of its own restart when it is a victim; of what
filling a gap must be worth; of the restart that a move must gain."""

MOST: Final = 2.5
"""Largest logarithm of a factor."""

POWERS: Final = 5.0
"""Ratios are cut off at so many powers of ten."""

MOST_TIMES: Final = 10.0
"""A job counts in the sum of the work with at most so many times the typical time left."""


class Corrector(NamedTuple):
    """The weights. I inputs, H hidden units (0: the rule as it is), O outputs."""

    first: Floats  # [I, H]
    second: Floats  # [H, O]
    slower: float  # share of its time left that a move to a slower place must gain; FOREVER: no such moves


class Crowd(NamedTuple):
    """What the jobs of a plan have in common."""

    typical_s: float  # geometric mean of their times left, each divided by the job's weight
    waiting: float  # waiting jobs for each GPU, as an input
    free: float  # share of the GPUs that are free
    models: float  # number of GPU models, as an input
    work: float  # their GPUs, by their times left, for each GPU, as an input


@compiled_allocating
def no_corrections() -> Corrector:
    """The rule as it is."""
    return Corrector(np.empty((len(INPUTS), 0)), np.empty((0, OUTPUTS)), FOREVER)


@compiled
def corrects(corrector: Corrector) -> bool:
    """Whether there is a network."""
    return len(corrector.second) > 0


@compiled
def models_of(view: View) -> int:
    """How many GPU models the cluster has."""
    models = 0
    for p in range(len(view.pools)):
        models += view.pools[p].gpus > 0
    return models


@compiled
def log_ratio(ratio: float) -> float:
    """The logarithm of a ratio, from -1 to 1: the powers of ten, divided by POWERS and cut off."""
    return min(1.0, max(-1.0, log(max(ratio, 1e-12)) / (POWERS * 2.302585)))


@compiled
def seconds_left(view: View, j: int) -> float:
    """Its remaining time at its fastest site, at least a second."""
    return max(1.0, time_left(view, j))


@compiled
def weighted_left(view: View, j: int) -> float:
    """The same divided by the job's weight: what orders the jobs of a plan."""
    return seconds_left(view, j) / weight_of(view, j)


@compiled
def crowd_of(view: View, jobs: Ints) -> Crowd:
    """What these jobs have in common."""
    gpus = max(1, len(view.gpus))
    free = 0
    for p in range(len(view.pools)):
        free += view.pools[p].free_gpus
    logs = 0.0
    for i in range(len(jobs)):
        logs += log(weighted_left(view, jobs[i]))
    typical = exp(logs / max(1, len(jobs)))
    work = 0.0
    for i in range(len(jobs)):
        work += min(weighted_left(view, jobs[i]) / typical, MOST_TIMES) * view.jobs[jobs[i]].gpus
    waiting = 0.5 * log(1.0 + view.clock[0].queued / gpus * 4.0)
    return Crowd(typical, waiting, free / gpus, 0.5 * log(1.0 * max(1, models_of(view))), 0.3 * log(1.0 + work / gpus))


@compiled
def pickiness(view: View, j: int) -> float:
    """The logarithm of the job's best rate against its mean rate on all GPUs of the cluster."""
    kind = view.jobs[j].kind
    best = 0.0
    total = 0.0
    for h in range(len(view.forms)):
        if view.width[kind, h] > 0:
            rate = rate_on(view, j, h)
            best = max(best, rate)
            total += rate * view.forms[h].sites * view.forms[h].gpus
    return log(max(1e-6, best * len(view.gpus) / max(total, 1e-12)))


@compiled
def see(view: View, j: int, crowd: Crowd, seen: Floats) -> None:
    """Write what the network sees of a job. [I]"""
    job = view.jobs[j]
    run = view.runs[j]
    left = seconds_left(view, j)
    age = max(0.0, view.clock[0].now - job.submit)
    weight = weight_of(view, j)
    seen[0] = 1.0
    seen[1] = 2.0 * log_ratio(weighted_left(view, j) / crowd.typical_s)
    seen[2] = 0.3 * log(1.0 * job.gpus)
    seen[3] = min(1.0, 4.0 * job.gpus / max(1, len(view.gpus)))
    seen[4] = 1.0 if run.state == RUNNING else 0.0
    seen[5] = 0.4 * log(1.0 + run.starts)
    seen[6] = log_ratio(1.0 + age / left)
    seen[7] = 2.0 * log_ratio(1.0 + age / weight / crowd.typical_s) if run.starts == 0 else 0.0
    seen[8] = crowd.waiting
    seen[9] = log_ratio((1.0 + restart_of(view, j)) / left)
    seen[10] = pickiness(view, j)
    seen[11] = crowd.free
    seen[12] = crowd.models
    seen[13] = crowd.work


@compiled_allocating
def corrections(view: View, jobs: Ints, corrector: Corrector) -> Floats:
    """The factors for each of these jobs. [J', O]"""
    factors = np.ones((len(jobs), OUTPUTS))
    if not corrects(corrector):
        return factors
    crowd = crowd_of(view, jobs)
    seen = np.empty(len(INPUTS))
    layer = np.empty(corrector.first.shape[1])
    for i in range(len(jobs)):
        see(view, jobs[i], crowd, seen)
        for k in range(len(layer)):
            value = 0.0
            for f in range(len(seen)):
                value += seen[f] * corrector.first[f, k]
            layer[k] = tanh(value)
        for o in range(OUTPUTS):
            value = 0.0
            for k in range(len(layer)):
                value += layer[k] * corrector.second[k, o]
            factors[i, o] = exp(min(MOST, max(-MOST, value)))
    return factors
