"""What is known about speeds, and speeds that were learnt, as records: for experiments, the daemon and its API."""

from dataclasses import dataclass
from typing import Final

from adlro.core.errors import UsageError

KNOWN_SPEEDS: Final = "known"
PRIOR_SPEEDS: Final = "prior"
AGNOSTIC_SPEEDS: Final = "agnostic"
LEARNED_SPEEDS: Final = "learned"
SPEEDS: Final = (KNOWN_SPEEDS, PRIOR_SPEEDS, AGNOSTIC_SPEEDS, LEARNED_SPEEDS)
"""What policies may know about the speeds of jobs (docs/speeds.md)."""


def check_speeds(text: str) -> str:
    """What policies are to know about speeds, if it is one of SPEEDS."""
    if text not in SPEEDS:
        raise UsageError(f"--speeds is {text!r}; expected {', '.join(SPEEDS[:-1])} or {SPEEDS[-1]}.")
    return text


LEARNED: Final = "learned"
"""Source of a speed that jobs have shown; the others are those of `records.Speed`."""


@dataclass(frozen=True, slots=True)
class LearnedSpeed:
    """A speed relative to the reference model of the table, with the interval that holds it in eight of ten cases."""

    value: float
    low: float
    high: float
    jobs: int  # that ran there and taught something: of a family, or of any where the speed is of one job
    source: str = LEARNED  # or measured, modelled


@dataclass(frozen=True, slots=True)
class FoundFamily:
    """Jobs that run alike, as the memory found them: their commonest words, users, and speeds by model."""

    words: tuple[str, ...]
    users: tuple[str, ...]
    jobs: int
    speeds: dict[str, LearnedSpeed]


@dataclass(frozen=True, slots=True)
class PastSpeed:
    """A past job that a belief rests on: who it was, where it ran, its share of the weight, and the parts in common."""

    user: str
    name: str
    model: str
    share: float
    similarity: float
    parts: tuple[str, ...]  # as in "user ann", by unbinding
    job: str = ""  # its id; "" in a history


@dataclass(frozen=True, slots=True)
class JobSpeeds:
    """What is believed of one job: its speed on each model against a reference, and the past jobs behind it."""

    reference: str
    speeds: dict[str, LearnedSpeed]
    because: tuple[PastSpeed, ...]


@dataclass(frozen=True, slots=True)
class LearnedTable:
    """The families found, the model that speeds are relative to, and what they rest on."""

    reference: str
    families: tuple[FoundFamily, ...]
    jobs: int  # that taught something
    skipped: int  # jobs on GPUs of which it is not known where they ran, or too short
    source: str
