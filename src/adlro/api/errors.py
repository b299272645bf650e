"""Errors of the API in one shape: what is wrong, where, what was expected, what to do. Never a traceback."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from pydantic_core import to_json

from adlro.core.accounts import NAME_RULE
from adlro.core.errors import AccountError, AdlroError, BackendError, StoreError
from adlro.core.records import Job
from adlro.core.schema import properties_of

LONGEST_SHOWN: Final = 80

_AMOUNTS: Final = {each.name: each.expected_of_user for each in properties_of(Job) if each.is_number}
"""What is expected of the amounts of a job."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, in words for the one who asked."""

    what: str
    where: str = ""
    expected: str = ""
    do: str = ""


@final
class Refused(Exception):  # noqa: N818  it is an answer, not a fault of ours
    """An answer that is an error."""

    def __init__(self, status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, problem)
        self.status = status
        self.problem = problem
        self.headers = dict(headers or {})


def refused(
    status: int, what: str, where: str = "", expected: str = "", do: str = "", headers: Mapping[str, str] | None = None
) -> Refused:
    """An answer that is an error, in words."""
    return Refused(status, Problem(what, where, expected, do), headers)


def body_of(problem: Problem) -> bytes:
    """A problem as JSON."""
    return to_json({"error": asdict(problem)})


def refused_for(error: AdlroError, where: str) -> Refused:
    """What a user's mistake, or a cluster that does not answer, is over HTTP."""
    if isinstance(error, BackendError | StoreError):
        return refused(503, str(error), where, "a cluster that answers", "Ask again in a while, or ask an operator.")
    if isinstance(error, AccountError):
        return refused(403, str(error), where, "a user whose jobs this daemon takes", "Ask an operator.")
    return refused(409, str(error), where)


def refused_for_input(errors: list[Mapping[str, Any]]) -> Refused:
    """What is wrong with an input, the first problem of it."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    more = f" There are {len(errors) - 1} more problems." if len(errors) > 1 else ""
    if first["type"] == "json_invalid":
        return refused(422, "the body is not JSON", "body", "JSON in UTF-8", "Correct it and send it again.")
    expected = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    what = f"{'.'.join(place[1:]) or place[0]!r} is {_shown(first.get('input'))}"
    if first["type"] == "missing":
        what = f"'{place[-1]}' is missing"
    elif place[-2:-1] == ["job"] and place[-1] in _AMOUNTS:
        expected = _AMOUNTS[place[-1]]
    elif place[-1] == "user" and first["type"] == "string_pattern_mismatch":
        expected = NAME_RULE
    elif first["type"] == "extra_forbidden":
        what, expected = f"there is no '{_shown(place[-1])[1:-1]}'", "a name that the document lists"
    return refused(
        422, what, ".".join(_shown(part)[1:-1] for part in place), expected, f"Correct it and send it again.{more}"
    )


def _shown(value: object) -> str:
    """A value as it was given, or what sort of thing it is where that would be long."""
    if isinstance(value, dict | list | tuple):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
