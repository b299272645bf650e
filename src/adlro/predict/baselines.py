"""Baselines for predictors: the user's limit, the last two jobs, the running median, and LightGBM."""

import math
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from adlro.core.tables import Floats, Table
from adlro.core.units import DAY_S
from adlro.predict.following import P50, SHORTEST_S, UNKNOWN_S, Events

_LEAST_JOBS: Final = 50
"""LightGBM needs at least this many jobs to learn from."""

_ROUNDS: Final = 100
LIGHTGBM: Final = {"objective": "l1", "verbose": -1, "num_threads": 1, "seed": 0, "deterministic": True}


def limit_of(traits: Table) -> Floats:
    """The limit of each job; a default for jobs without one."""
    return np.where(np.isfinite(traits["limit"]), np.maximum(traits["limit"], SHORTEST_S), UNKNOWN_S)


def points(middle: Floats) -> Floats:
    """Predictions without an interval."""
    out = np.full((len(middle), 3), np.nan)
    out[:, P50] = np.maximum(middle, SHORTEST_S)
    return out


@final
@dataclass(frozen=True, slots=True)
class Limit:
    """Predicts the user's time limit."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """The limit of each job."""
        return points(limit_of(traits))


@final
@dataclass(frozen=True, slots=True)
class LastTwo:
    """Predicts the mean of the user's last two jobs, at most the limit (Tsafrir, Etsion and Feitelson 2007)."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """The prediction of each job, in the order of the events."""
        limit, user = limit_of(traits), traits["user"].tolist()
        capped = np.isfinite(traits["limit"])
        latest: dict[int, list[float]] = {}
        middle = limit.copy()
        for event in events.tolist():
            if event < 0:
                latest[user[~event]] = [*latest.get(user[~event], [])[-1:], float(seconds[~event])]
            elif known := latest.get(user[event]):
                mean = sum(known) / len(known)
                middle[event] = min(mean, limit[event]) if capped[event] else mean
        return points(middle)


@final
@dataclass(frozen=True, slots=True)
class RunningMedian:
    """Predicts the median of all ended jobs of the user, at most the limit."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """The prediction of each job, in the order of the events."""
        from bisect import insort

        limit, user = limit_of(traits), traits["user"].tolist()
        capped = np.isfinite(traits["limit"])
        ended: dict[int, list[float]] = {}
        middle = limit.copy()
        for event in events.tolist():
            if event < 0:
                insort(ended.setdefault(user[~event], []), float(seconds[~event]))
            elif known := ended.get(user[event]):
                value = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2.0
                middle[event] = min(value, limit[event]) if capped[event] else value
        return points(middle)


@final
@dataclass(frozen=True, slots=True)
class LightGbm:
    """Gradient-boosted trees on the same fields, trained again at the first job of each day on all ended jobs."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """The prediction of each job, in the order of the events."""
        import lightgbm

        fields, length = columns(traits), np.log(np.maximum(seconds, SHORTEST_S))
        middle = limit_of(traits)
        ended: list[int] = []
        day_rows: list[int] = []
        day, trees = -math.inf, None

        def predict_day() -> None:
            if trees is not None and day_rows:
                middle[day_rows] = np.exp(trees.predict(fields[day_rows]))

        for event in events.tolist():
            if event < 0:
                ended.append(~event)
                continue
            if traits["submit"][event] // DAY_S > day:
                predict_day()
                day_rows = []
                day = traits["submit"][event] // DAY_S
                trees = self.trained(lightgbm, fields, length, ended)
            day_rows.append(event)
        predict_day()
        return points(middle)

    def trained(self, lightgbm: Any, fields: Floats, length: Floats, rows: list[int]) -> Any:
        """Trees for the logarithm of the runtime, or None while there are too few jobs."""
        if len(rows) < _LEAST_JOBS:
            return None
        data = lightgbm.Dataset(fields[rows], length[rows], categorical_feature=[0, 1, 2, 3], params={"verbose": -1})
        return lightgbm.train(dict(LIGHTGBM), data, _ROUNDS)


def columns(traits: Table) -> Floats:
    """The fields as numbers [n, 12]; the first four, user, group, family and models, are names."""
    limit = np.where(np.isfinite(traits["limit"]), np.log(np.maximum(traits["limit"], SHORTEST_S)), np.nan)
    submit = traits["submit"]
    return np.column_stack(
        [
            np.unique(traits["user"], return_inverse=True)[1],
            np.unique(traits["group"], return_inverse=True)[1],
            np.unique(traits["family"], return_inverse=True)[1],
            np.unique(traits["models"], return_inverse=True)[1],
            np.log1p(traits["gpus"]),
            limit,
            traits["cpus"],
            traits["memory"],
            traits["gpu_memory"],
            traits["priority"],
            submit / 3600.0 % 24.0,
            submit // DAY_S % 7.0,
        ]
    ).astype(np.float64)
