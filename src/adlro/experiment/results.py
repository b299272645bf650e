"""Results as plain values, ready for JSON (docs/json.md): the numbers, and what they were made with."""

import platform
from dataclasses import asdict
from typing import Any

import numba
import numpy

from adlro import __version__
from adlro.catalogue.speeds import own_table
from adlro.core.run import Run
from adlro.experiment.compare import Comparison, metric_names, over_seeds, regrets
from adlro.experiment.scenario import Recorded, Scenario
from adlro.experiment.tables import refused_by_reason, table_1
from adlro.measure.bounds import Bounds
from adlro.measure.hyperscore import scores
from adlro.measure.metrics import Metrics
from adlro.measure.statistics import Against, against, mean_intervals, regressions


def comparison_as_dict(comparison: Comparison) -> dict[str, Any]:
    """A comparison with its statistics and its origin."""
    per_seed = comparison.per_seed(metric_names())
    bootstrap = mean_intervals(per_seed)
    differences = against(per_seed, comparison.baseline)
    scored = scores(comparison.metrics, comparison.weights)
    policies: dict[str, Any] = {}
    for name, values in per_seed.items():
        means = {key: over_seeds(each) for key, each in values.items()}
        score = scored[name]
        policies[name] = {key: mean.value for key, mean in means.items()} | {
            "interval": {key: None if mean.low is None else [mean.low, mean.high] for key, mean in means.items()},
            "bootstrap": bootstrap[name],
            "against": against_as_dict(differences[name]) if name in differences else None,
            "hyperscore": asdict(score) if score else None,
            "per_seed": values,
        }
    found: dict[str, Any] = {
        "cluster": comparison.scenario.cluster.name,
        "workload": comparison.scenario.workload.name,
        "seeds": list(comparison.seeds),
        "load": list(comparison.load),
        "baseline": comparison.baseline,
        "hyperscore_weights": comparison.weights.shares(),
        "policies": policies,
    }
    if comparison.is_the_papers:
        found["table_1"] = table_1(comparison)
    if comparison.known is not None:
        found["regret"] = {name: asdict(each) for name, each in regrets(comparison).items()}
    if comparison.with_regression:
        by_policy = regressions(comparison.metrics, comparison.load)
        found["regression"] = {name: asdict(each) for name, each in by_policy.items()}
    return found | _provenance(comparison.scenario, comparison.command)


def against_as_dict(differences: dict[str, Against | None]) -> dict[str, Any]:
    """The differences of a policy to the baseline, by measure."""
    return {
        key: None
        if each is None
        else {
            "difference": each.difference,
            "interval": None if each.low is None else [each.low, each.high],
            "relative": each.relative,
            "relative_interval": None if each.relative_low is None else [each.relative_low, each.relative_high],
            "wilcoxon_p": each.wilcoxon_p,
            "wilcoxon_p_holm": each.wilcoxon_p_holm,
            "t_p": each.t_p,
            "cliffs_delta": each.cliffs_delta,
            "significant": each.significant,
            "verdict": each.verdict,
        }
        for key, each in differences.items()
    }


def simulation_as_dict(
    scenario: Scenario, run: Run, metrics: Metrics, bounds: Bounds, events: str | None, command: str
) -> dict[str, Any]:
    """One run with its measures and its origin; `events` is the file that its events were written to."""
    return (
        {"cluster": scenario.cluster.name, "workload": scenario.workload.name, "policy": run.policy, "seed": run.seed}
        | metrics.as_dict()
        | {"lower_bounds": asdict(bounds), "refusals": refused_by_reason(run), "events": events}
        | _provenance(scenario, command)
    )


def _provenance(scenario: Scenario, command: str) -> dict[str, Any]:
    """What a result was made with, so that it can be reproduced."""
    hazards, workload = scenario.hazards, scenario.workload
    return {
        "trace": asdict(workload.report) if isinstance(workload, Recorded) else None,
        "windows": [asdict(window) for window in scenario.windows] or None,
        "settings": {"jobs": scenario.jobs or scenario.workload.jobs}
        | {"estimates": scenario.workload.estimates.source, "estimate_sigma": scenario.workload.estimates.sigma}
        | asdict(scenario.settings)
        | {"mtbf_h": hazards.mtbf_h, "repair_h": hazards.repair_h, "wear_per_day": hazards.wear_per_day}
        | {"thermal_room_c": hazards.room_c, "slow_gpus": hazards.slow_gpus, "slow_speed": hazards.slow_speed}
        | {"measured_pace": scenario.measured_pace}
        | {"disturbances": hazards.source, "load": scenario.load, "speeds": scenario.speeds}
        | {"speed_table": own_table(scenario.speed)},
        "version": __version__,
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__, "numba": numba.__version__},
        "command": command,
    }
