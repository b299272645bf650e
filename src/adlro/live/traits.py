"""What runtime prediction is told of a live job: its traits, and what its submitter said."""

from functools import lru_cache
from typing import Any

import numpy as np

from adlro.core.plan import mib
from adlro.core.records import WHOLE_GPU, Job
from adlro.core.tables import (
    FOREVER,
    Floats,
    Table,
)
from adlro.predict.following import text_hash, tokens_of


def trait_of(job: Job, models: frozenset[str]) -> tuple[Any, ...]:
    """What predictors see of a job: a row of TRAIT."""
    group, name, tokens = hashes(job.user, job.name)
    return (
        job.submit_s, FOREVER if job.limit_s is None else job.limit_s, one_hash(job.user), group, name,
        one_hash(job.family), one_hash("|".join(sorted(models))), job.gpus, round(job.cpus * 1000),
        mib(job.memory_gb), mib(job.gpu_memory_gb), job.priority, tokens,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def hashes(user: str, name: str) -> tuple[int, int, tuple[int, ...]]:
    """The numbers under which predictors know a user's job of this name: group, name and words."""
    return text_hash(f"{user}\0{name}"), text_hash(name), tuple(tokens_of(name))


@lru_cache(maxsize=65536)
def one_hash(text: str) -> int:
    """`text_hash`, remembered."""
    return text_hash(text)


def as_said(traits: Table, jobs: Table, scale: Floats) -> Floats:
    """What submitters say of the work, or ten minutes where they say nothing; without an interval."""
    units = np.where(jobs.gpus > 0, jobs.gpus * (jobs.share / WHOLE_GPU), 1.0)
    said = np.where(jobs.estimate > 0.0, jobs.estimate, 600.0 * units)
    return np.repeat(said[:, None], 3, axis=1)
