"""What predictors of runtimes have in common: what they see of a job, and the order in which they see and learn.

A predictor follows events: at one it predicts a job that is submitted, at another it learns a job that has ended.
What it sees of a job is a row of TRAIT, which holds neither the job's work nor any estimate of it.
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
"""Row j: job j is submitted and predicted. Row ~j: it has ended and is learnt."""

P10: Final = 0
P50: Final = 1
P90: Final = 2

SHORTEST_S: Final = 1.0
"""Shorter runtimes count as this long: most logs have whole seconds, and a logarithm needs more than 0."""

UNKNOWN_S: Final = 600.0
"""What a job without a limit is predicted to run while nothing has been learnt."""

NO_LIMIT: Final = 1e12
"""A limit from here on is none; infinite ones are."""

TOKENS: Final = 4
"""Words of a name that are told apart, the first ones."""

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
        ("tokens", "u8", (TOKENS,)),  # hashes of the words in the name; 0: no more
    ],
    align=True,
)
"""What is known of a job when it is submitted, as far as its runtime may depend on it."""


class Predictor(Protocol):
    """Whatever predicts runtimes and learns from jobs that have ended."""

    def follow(self, traits: Table, seconds: Floats, events: Events) -> Floats:
        """Predict and learn in this order; p10, p50 and p90 in s [J, 3], NaN for a job that was not predicted.

        `seconds` are the runtimes; that of a job is read when it is learnt, not before.
        """


AMOUNTS: Final = tuple(each for each in stored_in(Job) if each.column in (TRAIT.names or ()))
"""The amounts among them."""


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
    """A number for a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=65536)
def one_hash(text: str) -> int:
    """`text_hash`, remembered."""
    return text_hash(text)


@lru_cache(maxsize=65536)
def _name_hashes(user: str, name: str) -> tuple[int, int, tuple[int, ...]]:
    """The numbers under which predictors know a user's job of this name: group, name and words."""
    return text_hash(f"{user}\0{name}"), text_hash(name), tuple(tokens_in_name(name))


def _hashes(texts: tuple[str, ...] | list[str]) -> npt.NDArray[np.uint64]:
    """The number of each text."""
    return np.array([text_hash(text) for text in texts], np.uint64)


def seconds_of(jobs: Jobs) -> Floats:
    """The true runtime of each job on the reference model."""
    return np.asarray(jobs.work / units_of(jobs.table), np.float64)


def untold(jobs: Jobs) -> Jobs:
    """The same jobs with nothing told of their work: the limit, or the same for all that have none, in its place."""
    table = jobs.table.copy().view(np.recarray)
    limit = np.where(np.isfinite(table["limit"]), table["limit"], UNKNOWN_S)
    table["estimate"] = limit * units_of(table)
    return replace(jobs, table=table)


def units_of(table: Table) -> Floats:
    """GPUs of each job, with fractions; 1 for a job without."""
    return np.where(table["gpus"] > 0, table["gpus"] * (table["share"] / 1000.0), 1.0)


def as_they_came(submit: Floats, seconds: Floats, wait: Floats | float = 0.0) -> Events:
    """The jobs in submit order, and before each of them the jobs that had ended by then, in the order of their ends."""
    count = len(submit)
    end = submit + wait + seconds
    # At the same moment an end comes first: whoever submits then can know it. A job never ends before it is submitted.
    time = np.concatenate([end, submit])
    ended = np.concatenate([np.zeros(count), np.ones(count)])
    instant = np.concatenate([end <= submit, np.zeros(count, bool)])
    order = np.lexsort((np.where(instant, 2, ended), time))
    return np.where(order < count, ~order, order - count)
