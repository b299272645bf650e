"""What runtime predictors have in common: what they see of a job, and the order in which they predict and learn.

A predictor follows events: a submission, at which it predicts the job, or an end, from which it learns. It sees a job
as a row of TRAIT, which contains neither the job's work nor an estimate of it.
"""

import hashlib
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from adlro.core.records import Job
from adlro.core.schema import stored_in
from adlro.core.tables import Floats, Jobs, Table, records

Events = npt.NDArray[np.int64]
"""Entry j: job j is submitted and predicted. Entry ~j: it has ended and is learnt."""

P10: Final = 0
P50: Final = 1
P90: Final = 2

SHORTEST_S: Final = 1.0
"""Shorter runtimes count as this long: most logs have whole seconds, and a logarithm needs more than 0."""

UNKNOWN_S: Final = 600.0
"""Prediction for a job without a limit while nothing has been learnt."""

NO_LIMIT: Final = 1e12
"""Limits from this value on, and infinite ones, count as no limit."""

TOKENS: Final = 4
"""Number of words of a name that are used: the first ones."""

_WORD: Final = re.compile(r"[a-z]+|[0-9]+")

TRAIT = np.dtype(
    [
        ("submit", "f8"),  # s since the first job
        ("limit", "f8"),  # s; inf: none
        ("user", "u8"),  # hash of the name, the same in every run
        ("group", "u8"),  # hash of user and name
        ("name", "u8"),
        ("family", "u8"),
        ("models", "u8"),  # hash of the allowed models
        ("gpus", "i4"),
        ("cpus", "i4"),  # thousandths of a core
        ("memory", "i4"),  # MiB
        ("gpu_memory", "i4"),  # MiB
        ("priority", "f4"),
        ("tokens", "u8", (TOKENS,)),  # hashes of the words in the name; 0 if there are no more
    ],
    align=True,
)
"""What is known about a job when it is submitted and may affect its runtime."""


class Predictor(Protocol):
    """Predicts runtimes, and learns from jobs that have ended."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """Predict and learn in this order; p10, p50 and p90 in s [J, 3], NaN for jobs that were not predicted.

        `seconds` are the runtimes; the runtime of a job is only read when it is learnt.
        """


AMOUNTS: Final = tuple(each for each in stored_in(Job) if each.column in (TRAIT.names or ()))
"""The columns of TRAIT that are amounts."""


def trait_of(job: Job) -> tuple[Any, ...]:
    """What predictors may see of one job: a row of TRAIT."""
    group, name, tokens = _name_hashes(job.user, job.name)
    models = "|".join(sorted(job.models))
    seen: dict[str, Any] = {each.column: each.stored(getattr(job, each.name)) for each in AMOUNTS}
    seen |= {"user": one_hash(job.user), "group": group, "name": name, "tokens": tokens}
    seen |= {"family": one_hash(job.family), "models": one_hash(models)}
    return tuple(seen[column] for column in TRAIT.names or ())


def traits_of(jobs: Jobs) -> Table:
    """What predictors may see of these jobs."""
    table, traits = jobs.table, records(TRAIT, len(jobs))
    for each in AMOUNTS:
        traits[each.column] = table[each.column]
    user_of = np.zeros(max(1, len(jobs.names)), np.int64)
    user_of[table["group"]] = table["user"]
    names = jobs.names or ("",)
    owners = [jobs.users[user] if user < len(jobs.users) else str(user) for user in user_of]
    groups = [f"{owner}\0{name}" for owner, name in zip(owners, names, strict=True)]
    traits["user"] = _hashes(owners)[table["group"]]
    traits["group"] = _hashes(groups)[table["group"]]
    traits["name"] = _hashes(names)[table["group"]]
    traits["tokens"] = np.array([tokens_in_name(name) for name in names], np.uint64)[table["group"]]
    traits["family"] = _hashes(jobs.families)[table["family"]]
    traits["models"] = _hashes(["|".join(sorted(some)) for some in jobs.allowed])[table["allowed"]]
    return traits


def tokens_in_name(name: str) -> list[int]:
    """The words and numbers in a name, as hashes: train-bert_2 has train, bert and 2."""
    words = list(dict.fromkeys(_WORD.findall(name.lower())))[:TOKENS]
    return [text_hash(f"word {word}") for word in words] + [0] * (TOKENS - len(words))


def text_hash(text: str) -> int:
    """A hash of a text, equal on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=65536)
def one_hash(text: str) -> int:
    """`text_hash` with a cache."""
    return text_hash(text)


@lru_cache(maxsize=65536)
def _name_hashes(user: str, name: str) -> tuple[int, int, tuple[int, ...]]:
    """The hashes of a user's job with this name: group, name and words."""
    return text_hash(f"{user}\0{name}"), text_hash(name), tuple(tokens_in_name(name))


def _hashes(texts: tuple[str, ...] | list[str]) -> npt.NDArray[np.uint64]:
    """The hash of each text."""
    return np.array([text_hash(text) for text in texts], np.uint64)


def seconds_of(jobs: Jobs) -> Floats:
    """The true runtime of each job on the reference model."""
    return np.asarray(jobs.work / units_of(jobs.table), np.float64)


def untold(jobs: Jobs) -> Jobs:
    """The same jobs without information on their work: the estimate is the limit, or a default if there is none."""
    table = jobs.table.copy().view(np.recarray)
    limit = np.where(np.isfinite(table["limit"]), table["limit"], UNKNOWN_S)
    table["estimate"] = limit * units_of(table)
    return replace(jobs, table=table)


def units_of(table: Table) -> Floats:
    """Number of GPUs of each job, with fractions; 1 for a job without GPUs."""
    return np.where(table["gpus"] > 0, table["gpus"] * (table["share"] / 1000.0), 1.0)


def as_they_came(submit: Floats, seconds: Floats, wait: Floats | float = 0.0) -> Events:
    """The jobs in submit order, and before each the jobs that had ended by then, ordered by end."""
    count = len(submit)
    end = submit + wait + seconds
    # At equal times an end comes first, because it can be known at the submission. No job ends before it is submitted.
    time = np.concatenate([end, submit])
    ended = np.concatenate([np.zeros(count), np.ones(count)])
    instant = np.concatenate([end <= submit, np.zeros(count, bool)])
    order = np.lexsort((np.where(instant, 2, ended), time))
    return np.where(order < count, ~order, order - count)
