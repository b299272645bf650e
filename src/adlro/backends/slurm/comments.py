"""Words of ours in the comments of jobs: marks, decisions, and the line that users see."""

import re
from collections.abc import Mapping
from typing import Final

from adlro.core.records import Job
from adlro.core.schema import properties_of, property_of

HELD: Final = "held"
"""The word of a job that waits for us: adlro:held. job_submit.lua writes it."""

USER_HELD: Final = "userheld"
"""The word of a job that its user holds: adlro:userheld. job_submit.lua writes it; the hold is the user's to end."""

_MARKS: Final = frozenset([HELD, USER_HELD])
"""Words without a value."""

RELEASED: Final = "released"
"""The word of a job that was given back to Slurm, with the moment: adlro:released=1794725489."""

PROVEN: Final = ("gpus", "submit")
"""Words that count only in the admin comment: GPUs that ADLRO has taken out of a request, and the first submission."""

DEFAULT_PRIORITY: Final[float] = property_of(Job, "priority").default
IN_COMMENT: Final = tuple(each for each in properties_of(Job) if each.in_comment)
"""What a job asks for that Slurm has no field for: each is a word of the comment."""

_OURS: Final = re.compile(r"(?:^|(?<=\s))adlro:([a-z]+)(?:=(\S*))?(?=\s|$)", re.ASCII)
"""Only ASCII spaces part words, as for job_submit.lua: what is one word there must not be two here."""

_LONGEST_LINE: Final = 160
LINE: Final = re.compile(r"\[adlro: [^\]]*\]")
"""What users are told in the comment: [adlro: waits for 4 v100 on one node; start about 14:20]."""


def words_in(comment: str) -> dict[str, str]:
    """Our words in a comment: {"decision": "17", "held": "yes"}."""
    words = _OURS.findall(LINE.sub(" ", comment))
    return {name: value or ("yes" if name in _MARKS else "") for name, value in words}


def comment_with(comment: str, words: Mapping[str, str], line: str = "") -> str:
    """A comment with exactly these words of ours and this line for users, and the user's own text before them.

    A mark such as `held` has no value: any value but "" keeps it.
    """
    text = " ".join(re.findall(r"\S+", _OURS.sub(" ", LINE.sub(" ", comment)), re.ASCII))
    ours = [f"adlro:{name}" if name in _MARKS else f"adlro:{name}={value}" for name, value in words.items() if value]
    told = [f"[adlro: {re.sub(r'[^ -Z^-~]', ' ', line)[:_LONGEST_LINE]}]"] if line else []
    return " ".join([*([text] if text else []), *told, *ours])
