"""Our words in the comments of jobs: marks, decisions, and the line for users."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from adlro.core.records import Job
from adlro.core.schema import Property, properties_of, property_of

HELD: Final = "held"
"""The word of a job that waits for us: adlro:held. job_submit.lua writes it."""

USER_HELD: Final = "userheld"
"""The word of a job that its user holds: adlro:userheld. job_submit.lua writes it; the hold is the user's to end."""

RELEASED: Final = "released"
"""The word of a job that was given back to Slurm, with the moment: adlro:released=1794725489."""

ASKED_FOR: Final = "asked"
"""The word of a job that was resized: adlro:asked=2:8:16000, the GPUs, cores and MiB of memory that it asked for."""

PROVEN: Final = ("gpus", "submit", ASKED_FOR)
"""Words that count only in the admin comment: GPUs that ADLRO has taken out of a request, the first submission, and
what a job asked for before it was resized."""

DEFAULT_PRIORITY: Final[float] = property_of(Job, "priority").default
IN_COMMENT: Final = tuple(each for each in properties_of(Job) if each.in_comment)
"""What a job asks for that Slurm has no field for: each is a word of the comment."""

_YES_OR_NO: Final = frozenset(each.word for each in IN_COMMENT if each.kind is bool)
_MARKS: Final = frozenset([HELD, USER_HELD]) | _YES_OR_NO
"""Words without a value."""

_YES: Final = frozenset(["", "yes", "true", "1"])

STOPPING_WORD: Final = "stopping"
"""The word of a running job that was told to stop: adlro:stopping=1794725489.0, the moment at which it is put back (or
`asked`, before its signal was sent), and how often it had restarted. After its requeue the word means nothing."""

ASKED: Final = "asked"

_SIGNAL: Final = re.compile(r"(?:([RB]{1,2}):)?([A-Za-z0-9]{1,12})(?:@([0-9]{1,5}))?", re.ASCII)
SIGNAL_S: Final = 60.0
"""What Slurm takes for the time of a --signal that has none."""

_IN_SCRIPT: Final = re.compile(r"^#SBATCH\s+(?:.*\s)?--signal[=\s]+(\S+)", re.M)

_OURS: Final = re.compile(r"(?:^|(?<=\s))adlro:([a-z]+)(?:=(\S*))?(?=\s|$)", re.ASCII)
"""Only ASCII spaces separate words, as in job_submit.lua: one word there must not be two here."""

_LONGEST_LINE: Final = 160
LINE: Final = re.compile(r"\[adlro: [^\]]*\]")
"""What users are told in the comment: [adlro: waits for 4 v100 on one node; start about 14:20]."""


def words_in(comment: str) -> dict[str, str]:
    """Our words in a comment: {"decision": "17", "held": "yes"}."""
    words = _OURS.findall(LINE.sub(" ", comment))
    return {
        name: "yes" if name in _MARKS and not value else value
        for name, value in words
        if name not in _YES_OR_NO or value.lower() in _YES
    }


def comment_with(comment: str, words: Mapping[str, str], line: str = "") -> str:
    """A comment with exactly these words of ours and this line for users, and the user's own text before them.

    A mark such as `held` has no value: any value but "" keeps it.
    """
    text = " ".join(re.findall(r"\S+", _OURS.sub(" ", LINE.sub(" ", comment)), re.ASCII))
    ours = [f"adlro:{name}" if name in _MARKS else f"adlro:{name}={value}" for name, value in words.items() if value]
    told = [f"[adlro: {re.sub(r'[^ -Z^-~]', ' ', line)[:_LONGEST_LINE]}]"] if line else []
    return " ".join([*([text] if text else []), *told, *ours])


def said_in(words: Mapping[str, str], each: Property) -> Any:
    """What the words of a comment say of a property that Slurm has no field for."""
    if each.kind is bool:
        return each.word in words
    if each.kind is str:
        return words.get(each.word, "")
    return each.kind(number_of(words.get(each.word), each.default))


def word_for(each: Property, value: Any) -> str:
    """The word of a comment that says this of a property."""
    if each.kind is bool:
        return f"adlro:{each.word}"
    return f"adlro:{each.word}={value}" if each.kind is str else f"adlro:{each.word}={value:g}"


def number_of(text: str | None, otherwise: float) -> float:
    """The number in a text, or another one if there is none."""
    try:
        value = float(text or "")
    except ValueError:
        return otherwise
    return value if abs(value) < 1e15 else otherwise


@dataclass(frozen=True, slots=True)
class JobSignal:
    """The signal that a job wants before it is ended (--signal), and how many seconds before."""

    name: str
    seconds: float
    to_script: bool  # to the batch script alone, else to the job's steps


def signal_in(text: str) -> JobSignal | None:
    """What a --signal=[B:]NAME[@SECONDS] asks for; None if it cannot be read."""
    found = _SIGNAL.fullmatch(text)
    if found is None:
        return None
    return JobSignal(found[2].upper(), float(found[3]) if found[3] else SIGNAL_S, "B" in (found[1] or ""))


def signal_of_script(script: str) -> JobSignal | None:
    """The last --signal among the #SBATCH lines of a script."""
    found = _IN_SCRIPT.findall(script)
    return signal_in(found[-1]) if found else None


def stop_mark(when: str, restarts: int) -> str:
    """The value of the word of a job that was told to stop."""
    return f"{when}.{restarts}"


def stop_in(words: Mapping[str, str], restarts: int) -> str:
    """When a job that was told to stop is put back: a moment, or ASKED; "" if it was not, or restarted since."""
    when, _, count = words.get(STOPPING_WORD, "").rpartition(".")
    is_asked = when == ASKED or (when.isascii() and when.isdigit())
    return when if is_asked and count == str(restarts) else ""
