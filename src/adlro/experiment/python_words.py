"""Errors in the words of Python: what the commands call --queue-window 5 is queue_window=5 there."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from adlro.core.errors import AdlroError

_P = ParamSpec("_P")
_R = TypeVar("_R")

FLAG: Final = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: (?=(?:\d|[A-Z]+\b))(\w[\w.:]*\w|\w))?")
"""A flag of a command, with the value that may follow it."""

KEYWORDS: Final = {
    "unit": "gpus_per_unit", "jobs": "job_count", "workload": "jobs", "set": "settings", "from": "start",
    "json": "as_dict()",
}  # fmt: skip
"""Flags that are called otherwise in Python."""

SWITCHES: Final = {"skip_bad_rows", "kill_at_limit", "regression", "resume"}
"""Keywords that are on or off."""


def in_python_words(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, whose errors name its keywords in place of flags."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except AdlroError as error:
            text = str(error)
            if (told := reworded(text)) != text:
                raise type(error)(told) from error.__cause__
            raise

    return call


def reworded(text: str) -> str:
    """The text with keywords for flags."""

    def keyword(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        name = KEYWORDS.get(name, name)
        value = found[2] or ("True" if name in SWITCHES else None)
        return name if value is None else f"{name}={value}"

    return FLAG.sub(keyword, text)
