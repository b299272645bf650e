"""What counting jobs by their priorities would have brought in a replay, and to which of them."""

from dataclasses import dataclass

import numpy as np

from adlro.backends.shadow.replay import ReplayTimes, in_system
from adlro.backends.shadow.tables import Prepared
from adlro.core.tables import Floats
from adlro.measure.metrics import PRIORITY_CLASSES, priority_class, weights_at


@dataclass(frozen=True, slots=True)
class PriorityShare:
    """The jobs of a quarter of the priorities, with their mean times in the system up to the end of the record."""

    above: float  # their priorities are above this (the lowest quarter has 0 too) …
    up_to: float  # … and at most this
    jobs: int
    happened_s: float
    equal_s: float  # under the policy, if all jobs counted the same
    weighted_s: float  # under the policy, if jobs counted by their priorities


@dataclass(frozen=True, slots=True)
class WeightEffect:
    """The same policy with and without weights, in the same replay. The means count each job by its weight."""

    policy: str
    happened_s: float
    equal_s: float
    weighted_s: float
    shares: tuple[PriorityShare, ...]  # the lowest priorities first; none without jobs


def weight_effect(
    made: Prepared, policy: str, was: ReplayTimes, equal: ReplayTimes, weighted: ReplayTimes
) -> WeightEffect:
    """Compare a policy that knows weights with itself where all jobs count the same."""
    priority = made.jobs.table["priority"][~made.carried]
    spent = [in_system(made, each) for each in (was, equal, weighted)]
    weight, of = weights_at(priority), priority_class(priority)

    def means(of_job: Floats) -> list[float]:
        return [float(np.average(each, weights=of_job)) if of_job.sum() else 0.0 for each in spent]

    shares = [
        PriorityShare(
            (each - 1) / PRIORITY_CLASSES, each / PRIORITY_CLASSES, int((of == each).sum()), *means(of == each)
        )
        for each in range(1, PRIORITY_CLASSES + 1)
        if (of == each).any()
    ]
    happened_s, equal_s, weighted_s = means(weight)
    return WeightEffect(policy, happened_s, equal_s, weighted_s, tuple(shares))
