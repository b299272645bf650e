"""Users and names that say what a job is, but not reliably: noisy signatures of families, for jobs of a workload file.

Workload files say which family a job has, and their jobs are called name0, name1 … A learner of speeds may not see the
family, so it needs what a real cluster has instead: people who work on a few things, and who name their jobs by habits
of their own. The draws have a stream of their own: nothing else about the jobs changes.
"""

import re
from dataclasses import replace
from typing import Final

import numpy as np

from adlro.core.tables import Jobs, Numbers

USERS: Final = 20
HOMES: Final = 4
"""How many users work on a family; the others submit it now and then."""

SIGNATURE_NOISE: Final = 0.2
"""Share of jobs with a misleading signature: a user who does not work on the family, or a name that says nothing, or
that of another family. Each is drawn by itself."""

_STREAM: Final = 19_001
_VERBS: Final = ("train", "run", "exp", "job", "fit", "tune")
_CODES: Final = (
    "orion", "lyra", "vega", "draco", "cygnus", "hydra", "pavo", "corvus", "aquila", "gemini", "norma", "volans",
    "carina", "mensa", "fornax", "crux", "antlia", "circinus", "dorado", "grus", "indus", "lupus", "musca", "pyxis",
)  # fmt: skip
_NUMBER: Final = re.compile(r"\d+")


def signed(jobs: Jobs, seed: int, noise: float = SIGNATURE_NOISE) -> Jobs:
    """The same jobs with users and names that are noisy signatures of their families."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM,))))
    homes = np.array([rng.choice(USERS, HOMES, replace=False) for _ in jobs.families])
    style = rng.integers(0, 3, USERS)
    codes = rng.integers(0, len(_CODES), (USERS, len(jobs.families)))
    family = np.asarray(jobs.table["family"])
    count = len(jobs)
    strange, silent, wrong = (rng.random(count) < share for share in (noise, noise / 2, noise / 2))
    user = np.where(strange, rng.integers(0, USERS, count), homes[family, rng.integers(0, HOMES, count)])
    named = np.where(wrong, rng.integers(0, len(jobs.families), count), family)
    draws = zip(
        user.tolist(), named.tolist(), silent.tolist(), rng.integers(0, len(_VERBS), count).tolist(),
        rng.integers(0, 100, count).tolist(), (rng.random(count) < 0.5).tolist(), strict=True,
    )  # fmt: skip
    groups, words = Numbers(), [_words_of(each) for each in jobs.families]
    numbers = np.zeros(count, np.int32)
    for j, (u, f, says_nothing, verb, number, tells_batch) in enumerate(draws):
        called = "" if says_nothing else _called(words[f], int(style[u]), _CODES[codes[u, f]], tells_batch)
        numbers[j] = groups.number((u, f"{_VERBS[verb]}-{called}{number}"))
    table = jobs.table.copy().view(np.recarray)
    table["user"], table["group"] = user, numbers
    users = tuple(f"user{number}" for number in range(USERS))
    return replace(jobs, table=table, users=users, names=tuple(name for _, name in groups.things))


def _words_of(family: str) -> tuple[str, str]:
    """What a family is called, and its batch size: gavel/resnet-18-b32 is resnet-18 and 32."""
    word = family.rsplit("/", 1)[-1]
    found = re.fullmatch(r"(.*)-b(\d+)", word)
    return (found[1], found[2]) if found else (word, "")


def _called(words: tuple[str, str], style: int, code: str, tells_batch: bool) -> str:
    """What a user calls a family: by its word, by an abbreviation, or by a code name that only this user has."""
    word, batch = words
    if style == 1:
        digits = "".join(_NUMBER.findall(word))
        word = "".join(each[:2] for each in re.split(r"[^a-z]+", word) if each) + digits
    elif style == 2:
        word = code
    return f"{word}-bs{batch}-" if tells_batch and batch else f"{word}-"
