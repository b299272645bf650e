"""The paper's HyperScore (section 7): one number for a policy. docs/statistics.md has a worked example."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Final, Self

from annotated_types import Ge
from pydantic import model_validator

from adlro.core.errors import UsageError
from adlro.core.toml import Schema, parse_toml
from adlro.measure.metrics import Metrics

BETA: Final = 5.0
GAMMA: Final = -math.log(2.0)
KAPPA: Final = 2.1
"""The published constants."""

MEASURED_BY: Final = {
    "completion_time": ("jct_mean_s", -1),
    "throughput": ("throughput_per_h", 1),
    "efficiency": ("placement_efficiency", 1),
    "utilisation": ("effective_utilisation", 1),
    "fairness": ("jain_users", 1),
    "energy": ("energy_kwh", -1),
}
"""The measure of each part of the value, and whether more (1) or less (-1) is better.

Utilisation is the effective one: a slow GPU is well utilised too. When all jobs finish, it is a constant over the
makespan, as throughput is, so both say the same. Efficiency does not depend on the makespan.
"""

ScoreWeight = Annotated[float, Ge(0)]


class ScoreWeights(Schema):
    """The weight of each part; only proportions matter, and a part that is left out does not count."""

    completion_time: ScoreWeight = 0.0
    throughput: ScoreWeight = 0.0
    efficiency: ScoreWeight = 0.0
    utilisation: ScoreWeight = 0.0
    fairness: ScoreWeight = 0.0
    energy: ScoreWeight = 0.0

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        if not any(getattr(self, part) for part in MEASURED_BY):
            raise ValueError(f"every weight is 0; expected one above 0 among {', '.join(MEASURED_BY)}")
        return self

    def shares(self) -> dict[str, float]:
        """The weights by part, scaled to the sum 1."""
        total = math.fsum(getattr(self, part) for part in MEASURED_BY)
        return {part: getattr(self, part) / total for part in MEASURED_BY}


EQUAL: Final = ScoreWeights(completion_time=1.0, throughput=1.0, efficiency=1.0, fairness=1.0, energy=1.0)
"""The default weights: the paper names none, so all are equal. Utilisation would count throughput twice."""


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """The HyperScore of a policy, and its parts."""

    score: float
    value: float  # V, above 0 and up to 1
    parts: dict[str, float]  # each as a share of the best policy's, above 0 and up to 1; those that count


def read_score_weights(text: str, where: str) -> ScoreWeights:
    """The weights of a TOML text; `where` is the file's name for the error message."""
    return parse_toml(text, where, ScoreWeights)


def hyperscore(value: float) -> float:
    """100 · [1 + σ(β · ln V + γ)^κ] for a value V above 0 and up to 1."""
    if not 0.0 < value <= 1.0:
        raise UsageError(
            f"V is {value:g}; expected a number above 0 and up to 1. "
            "Give each measure relative to the best one (docs/statistics.md)."
        )
    power = math.exp(BETA * math.log(value) + GAMMA)  # never large: the exponent is at most γ
    return 100.0 * (1.0 + math.pow(power / (1.0 + power), KAPPA))


def scores(metrics: Mapping[str, Sequence[Metrics]], weights: ScoreWeights = EQUAL) -> dict[str, PolicyScore | None]:
    """The score of each policy, against the best on each seed.

    None for a policy that left jobs unfinished or lacks a measure that counts: it has no score, and is nobody's best.
    """
    shares = {part: share for part, share in weights.shares().items() if share > 0}
    found: dict[str, PolicyScore | None] = dict.fromkeys(metrics)
    eligible = {name: results for name, results in metrics.items() if is_eligible(results, shares)}
    if not eligible:
        return found
    logs = {part: log_ratios(eligible, *MEASURED_BY[part]) for part in shares}
    for name in eligible:
        # A sum of negative numbers that rounding may lift a hair above 0.
        log_value = min(0.0, math.fsum(share * logs[part][name] for part, share in shares.items()))
        value = math.exp(log_value)
        parts = {part: math.exp(logs[part][name]) for part in shares}
        found[name] = PolicyScore(hyperscore(value), value, parts) if value > 0 else None
    return found


def is_eligible(results: Sequence[Metrics], shares: Mapping[str, float]) -> bool:
    """Whether the policy finished what it began on every seed, and every measure that counts is there and above 0."""
    measures = [MEASURED_BY[part][0] for part in shares]
    return bool(results) and all(
        not metrics.unfinished and all((getattr(metrics, measure) or 0.0) > 0 for measure in measures)
        for metrics in results
    )


def log_ratios(metrics: Mapping[str, Sequence[Metrics]], measure: str, sign: int) -> dict[str, float]:
    """By policy: the mean over seeds of ln(share of the best), at most 0."""
    logs = {
        name: [sign * math.log(getattr(result, measure)) for result in results] for name, results in metrics.items()
    }
    best = [max(seed) for seed in zip(*logs.values(), strict=True)]
    return {name: fmean(own - top for own, top in zip(values, best, strict=True)) for name, values in logs.items()}
