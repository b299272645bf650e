"""The network that resizes jobs: it corrects the values of `rank-elastic`. docs/policies.md defines it.

The network sees one configuration of one job at a time, beside what it has to know of all jobs. It answers by what
factor the value of `rank-elastic` is too large or too small. The rounds, the seats and the filling are those of all
policies that resize jobs. With all weights 0 it is `rank-elastic`.

Nothing is seen that is past and gone (the age of a job, its starts, what it has done): it does not change what is best
from now on.

Axes: J jobs, C configurations, P pools, H hidden units.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from adlro.core.compiled import compiled_allocating
from adlro.core.tables import NOBODY, Floats, Ints
from adlro.decide.rules.elastic import SizingProblem, fill_greedily, smallest_rates
from adlro.decide.rules.sizing import pool_prices, rank_values, rank_weights, relative_speeds
from adlro.decide.rules.timelines import MOST_STARTS

JOB_INPUTS: Final = (
    "time left", "time left against the others", "rank", "jobs per GPU", "runs", "restart", "weight", "restarting",
    "may be stopped", "may be resized",
)  # fmt: skip
"""What the network sees of a job, in order."""

SIZE_INPUTS: Final = (
    "speedup", "efficiency", "price", "advantage", "change", "restart against runtime", "GPUs", "speedup against now",
    "free soon",
)  # fmt: skip
"""What the network sees of a configuration, in order."""

SOON_S: Final = 120.0
"""GPUs whose jobs end within this time count as free soon."""

MOST_CORRECTION: Final = 3.0
"""The largest logarithm of the factor, either way."""


class SizingWeights(NamedTuple):
    """The weights of the network."""

    job: Floats  # [JOB_INPUTS, H]
    configuration: Floats  # [SIZE_INPUTS, H]
    bias: Floats  # [H]
    answer: Floats  # [H]


@compiled_allocating
def learned_sizing(problem: SizingProblem, weights: SizingWeights) -> Ints:
    """The upgrades with the largest gain per GPU, in the values of `rank-elastic` that the network has corrected."""
    smallest = smallest_rates(problem)
    weight = rank_weights(problem, smallest)
    relative = relative_speeds(problem)
    price = pool_prices(relative)
    value = rank_values(problem, smallest, weight)
    correct_values(problem, weights, smallest, weight, relative, price, value)
    for i in range(len(problem.jobs)):
        if problem.now[i] != NOBODY and problem.starts[i] > MOST_STARTS:
            value[problem.now[i]] *= 1e6  # it is served first, as it is: so every run ends, whatever was learnt
    return fill_greedily(problem, value, price)


@compiled_allocating
def correct_values(
    problem: SizingProblem,
    weights: SizingWeights,
    smallest: Floats,
    weight: Floats,
    relative: Floats,
    price: Floats,
    value: Floats,
) -> None:
    """Multiply each value by the factor of the network."""
    jobs, hidden = len(problem.jobs), len(weights.bias)
    every = max(problem.capacity.sum(), 1.0)
    left = np.log(problem.left / smallest + 1.0)
    usual = left.mean() if jobs else 0.0
    crowd = math.log(max(jobs, 1) / every) + 2.0
    best = np.full(jobs, -np.inf)  # the logarithm of the best rate per GPU
    least, most = np.full(jobs, np.inf), np.zeros(jobs)  # GPUs
    rates, sizes = np.log(problem.rate), np.log(problem.gpus)
    for c in range(len(value)):
        i = problem.owner[c]
        best[i] = max(best[i], rates[c] - sizes[c])
        least[i], most[i] = min(least[i], problem.gpus[c]), max(most[i], problem.gpus[c])
    soon, prices = np.zeros(len(price)), np.log(price)
    for i in range(jobs):
        c = problem.now[i]
        if c != NOBODY and problem.left[i] <= SOON_S * problem.rate[c]:
            soon[problem.pool[c]] += 2 * problem.gpus[c] / max(problem.capacity[problem.pool[c]], 1.0)
    seen, shown = np.empty(len(JOB_INPUTS)), np.empty(len(SIZE_INPUTS))
    of_job, unit = np.empty(hidden), np.empty(hidden)
    last = -1
    for c in range(len(value)):
        i, p = problem.owner[c], problem.pool[c]
        runs = problem.now[i] != NOBODY
        restart = math.log(problem.restart[i] + 1.0)
        if i != last:
            last = i
            seen[0] = (left[i] - 7.5) / 2
            seen[1] = (left[i] - usual) / 2
            seen[2] = (weight[i] * weight[i] + 1.0) / 2 / jobs - 0.5
            seen[3] = crowd
            seen[4] = 0.5 if runs else -0.5
            seen[5] = restart - 4.0
            seen[6] = math.log(weight[i]) - 1.0
            seen[7] = 1.0 if problem.restarting[i] else 0.0
            seen[8] = 0.0 if problem.stoppable[i] else 1.0
            seen[9] = 0.0 if most[i] > least[i] else 1.0
            of_job[:] = weights.bias
            for k in range(len(seen)):
                for h in range(hidden):
                    of_job[h] += seen[k] * weights.job[k, h]
        changes = problem.now[i] != c
        shown[0] = rates[c] - math.log(smallest[i]) - 0.5
        shown[1] = rates[c] - sizes[c] - best[i] + 1.0
        shown[2] = prices[p] + 0.5
        shown[3] = math.log(relative[i, p]) - prices[p]
        shown[4] = 0.5 if changes else -0.5
        shown[5] = (restart - math.log(problem.left[i] / problem.rate[c] + 1.0)) / 2 if changes else 0.0
        shown[6] = (sizes[c] - math.log(every)) / 2 + 1.0
        shown[7] = rates[c] - rates[problem.now[i]] if runs else 0.0
        shown[8] = soon[p]
        unit[:] = of_job
        for k in range(len(shown)):
            for h in range(hidden):
                unit[h] += shown[k] * weights.configuration[k, h]
        factor = 0.0
        for h in range(hidden):
            factor += weights.answer[h] * unit[h] / (1.0 + abs(unit[h]))
        value[c] *= math.exp(min(max(factor, -MOST_CORRECTION), MOST_CORRECTION))
