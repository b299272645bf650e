"""Jobs with habits: three users, of whom each runs two programs, with a limit and a size that go with them."""

from collections.abc import Callable
from typing import Final

import numpy as np

from adlro.core.tables import JOB, Jobs, records
from adlro.predict.baselines import LastTwo, LightGbm, Limit, RunningMedian
from adlro.predict.following import Predictor
from adlro.predict.habits import Habits
from adlro.predict.memory import Memory

METHODS: Final[dict[str, Callable[[], Predictor]]] = {
    "habits": lambda: Habits.new(1 << 10),
    "memory": lambda: Memory.new(256),
    "limit": Limit,
    "last-two": LastTwo,
    "running-median": RunningMedian,
    "lightgbm": LightGbm,
}


def jobs_of(count: int, noise: float = 0.1, seed: int = 0) -> Jobs:
    """So many jobs; the program decides how long each runs, up to a noise."""
    rng = np.random.Generator(np.random.PCG64(seed))
    table = records(JOB, count)
    group = rng.integers(0, 6, count)
    table["submit"] = np.cumsum(rng.exponential(300.0, count))
    table["group"], table["user"] = group, group // 2
    table["gpus"], table["share"] = 1 + group % 2, 1000
    table["limit"] = np.where(group % 2, 7200.0, 36_000.0)
    table["priority"], table["checkpoint"] = 0.5, np.inf
    typical = np.array([60.0, 3600.0, 240.0, 600.0, 20_000.0, 30.0])
    work = typical[group] * np.exp(rng.normal(0.0, noise, count)) * table["gpus"]
    table["estimate"] = work
    names = ("sort", "train", "sort", "render", "train", "probe")
    return Jobs(table, work, ("uniform",), ("ann", "bob", "cyd"), names)
