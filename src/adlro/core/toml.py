"""Checked TOML: a text and a schema give a model, or one error line that says what is wrong and what to write."""

import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.schema import Property

M = TypeVar("M", bound=BaseModel)

_KINDS = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


class Schema(BaseModel):
    """A table of a TOML file: only known keys, exact types (an integer is accepted as a number)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def model_field(each: Property, kind: Any = None) -> tuple[Any, Any]:
    """The type and default of a model field for a property that users give, for `model_with`.

    `kind` replaces its type, for example by one that also accepts 2.0 for 2.
    """
    kind = kind or each.kind
    limits: dict[str, Any] = {}
    if each.is_number:
        above, most = each.from_user.above, each.from_user.most
        limits = {"ge": each.least} if above is None else {"gt": above}
        limits["le"] = each.most if most is None else most
    default = {} if each.is_needed else {"default": each.default}
    return kind | None if each.is_optional else kind, Field(description=each.user_words, **default, **limits)


def model_with(name: str, base: type[BaseModel], found: Mapping[str, tuple[Any, Any]]) -> Any:
    """A model with these fields in addition to those of its base."""
    return create_model(name, __base__=base, **cast(Any, found))


def parse_toml(text: str, where: str, schema: type[M]) -> M:
    """The text as a `schema`; `where` is the file name in error messages."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: this is not TOML: {error}.") from None
    return checked(values, where, schema)


def checked(values: Any, where: str, schema: type[M]) -> M:
    """The values as a `schema`; `where` names their source in error messages."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        # A misspelt key also makes its right name missing; the message about the unknown key helps more.
        problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
        more = len(problems) - 1
        rest = f" ({more} more problem{'s' if more > 1 else ''} in this file.)" if more else ""
        raise ConfigError(f"{where}: {_explain(problems[0], schema)}{rest}") from None


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The end of a message, " Did you mean 'x'?", with the candidate most like the word; "" if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def _explain(problem: ErrorDetails, schema: type[BaseModel]) -> str:
    """One problem in words: where, what was found, what was expected."""
    path, key = problem["loc"], str(problem["loc"][-1]) if problem["loc"] else ""
    table, field = _look_up(schema, path)
    match problem["type"]:
        case "extra_forbidden":
            known = sorted(table.model_fields) if table else []
            guess = nearest(key, known) or f" Known keys here: {', '.join(known)}."
            return f"unknown key '{_dotted(path)}'.{guess}"
        case "missing":
            return f"'{_dotted(path)}' is missing; expected {_expected(field, problem)}."
        case "value_error":
            text = str(problem["ctx"]["error"]).rstrip(".")
            return f"'{_dotted(path)}': {text}." if path else f"{text}."
    found = problem["input"]
    choices = _choices(field.annotation) if field else ()
    guess = nearest(found, choices) if isinstance(found, str) else ""
    return f"'{_dotted(path)}' is {_shown(found)}; expected {_expected(field, problem)}.{guess}"


def _dotted(path: tuple[int | str, ...]) -> str:
    """nodes[0].gpu for ('nodes', 0, 'gpu')."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _shown(found: object) -> str:
    """The value as its author wrote it, or only its type if that would be long."""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, dict):
        return "a table"
    if isinstance(found, list):
        return "a list"
    return repr(found)


def _look_up(schema: type[BaseModel], path: tuple[int | str, ...]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The table with the last key of the path, and that key's field if the table has it."""
    kind: Any = schema
    table: type[BaseModel] | None = None
    field: FieldInfo | None = None
    for part in path:
        kind = _without_none(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            table, field = kind, kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        else:  # an entry of a list or of a table with free names: its type is the last type argument
            inner = get_args(kind)
            kind, field = (inner[-1] if inner else None), None
    return table, field


def _without_none(kind: Any) -> Any:
    """X for the type X | None."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _choices(kind: Any) -> tuple[str, ...]:
    """The texts that a Literal allows."""
    kind = _without_none(kind)
    return tuple(str(choice) for choice in get_args(kind)) if get_origin(kind) is Literal else ()


def _expected(field: FieldInfo | None, problem: ErrorDetails) -> str:
    """What the key should contain, with its range."""
    if field is None:
        return problem["msg"].removeprefix("Input should be ")
    if problem["type"] in ("too_short", "string_too_short"):
        return f"at least {problem['ctx']['min_length']} in it"
    kind = _without_none(field.annotation)
    if choices := _choices(kind):
        return " or ".join(f"'{choice}'" for choice in choices)
    if kind in _KINDS:
        return _KINDS[kind] + _range(field.metadata)
    return "a list" if get_origin(kind) is list else "a table"


def _range(limits: list[Any]) -> str:
    """The limits of a number in words, such as "from 1 to 64"."""
    words = []
    for limit in limits:
        match limit:
            case Ge(low):
                words.append(f"from {low}")
            case Gt(low):
                words.append(f"above {low}" if len(limits) == 1 else f"above {low} and up")
            case Le(high):
                words.append(f"to {high}")
            case Lt(high):
                words.append(f"below {high}")
    return f" {' '.join(words)}" if words else ""


def read_text(path: str, what: str) -> str:
    """The text of a user's file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise CatalogueError(f"cannot read the {what} '{path}': {reason}.") from None
