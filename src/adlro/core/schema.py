"""What a property of a job or a node is. Each is declared once, on the field of its record in records.py.

Tables, checks, our CSV and Parquet, workload and cluster files, the API, the command line and the tables in the
documents all read these declarations.
"""

import math
import sys
import types
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROPERTY_KEY: Final = "property"
"""Under which a field's metadata keeps its declaration."""

_FARTHEST: Final = sys.float_info.max
NO_BOUND: Final = 1e9
"""A bound from here on only guards against nonsense. Messages leave it out."""

UNIT_SUFFIXES: Final = ("_s", "_gb")

_NEEDED: Final = object()
"""The default of a property that has none."""


@dataclass(frozen=True, slots=True)
class FromUser:
    """What is different where a user writes the property: in the API, at the command line or in a file."""

    most: float | None = None
    above: float | None = None  # exclusive lower bound
    words: str = ""  # added to the property's own


@dataclass(frozen=True, slots=True)
class Property:
    """One property: what it means, what it may be, and how tables store it. `properties_of` fills in the last four."""

    words: str  # one sentence for users: API, command line and documents show it
    unit: str = ""
    least: float = -_FARTHEST
    most: float = _FARTHEST
    dtype: str = ""  # of its column in the table; "": the table does not have it, or has a number for it
    scale: int = 1  # the table has so many of its own units for one of ours: 1000 thousandths of a core
    empty: str = ""  # in words, what None or an empty cell means
    from_user: FromUser = FromUser()
    option: str = ""  # how `adlro submit --help` shows the value (a flag has none); "": no option, or one of its own
    in_workload: bool = False  # a key of [[families]] in workload files: the same for all jobs of the family
    in_comment: bool = False  # Slurm has no field for it: it travels as a word in the job's comment
    name: str = ""
    kind: type = str
    default: Any = _NEEDED
    is_optional: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether there is no default."""
        return self.default is _NEEDED

    @property
    def is_number(self) -> bool:
        """Whether it is an amount, not a text or a list."""
        return self.kind in (int, float)

    @property
    def user_words(self) -> str:
        """What users read who are to write it."""
        return f"{self.words} {self.from_user.words}".rstrip()

    @property
    def column(self) -> str:
        """Its column in the table: its name without the unit."""
        for suffix in UNIT_SUFFIXES:
            if self.name.endswith(suffix):
                return self.name.removesuffix(suffix)
        return self.name

    @property
    def word(self) -> str:
        """Its word in a comment: letters only."""
        return self.column.replace("_", "")

    @property
    def usual(self) -> Any:
        """What the table has where nothing is said."""
        return self.stored(self.default)

    def stored(self, amount: Any) -> Any:
        """An amount in the units of the table. None is an amount without end."""
        if amount is None:
            return math.inf
        return round(amount * self.scale) if self.scale != 1 else amount

    def from_table(self, amount: Any) -> Any:
        """The reverse: a column in our units, or one amount."""
        return amount / self.scale if self.scale != 1 else amount

    def filled(self, amounts: "npt.NDArray[Any]", usual: Any = None) -> Any:
        """A column of the table from amounts in our units. Where nothing is said (NaN), it has the usual amount."""
        import numpy as np  # here, because the command line shows properties without it

        missing = np.isnan(amounts)
        stored = np.rint(amounts * self.scale) if self.scale != 1 else amounts
        return np.where(missing, self.usual if usual is None else usual, stored) if missing.any() else stored

    def are_wrong(self, amounts: "npt.NDArray[np.float64]") -> "npt.NDArray[np.bool_]":
        """Which of these amounts are out of bounds; NaN is not."""
        return (amounts < self.least) | (amounts > self.most)

    @property
    def range_words(self) -> str:
        """Its bounds in words: from 0 to 1."""
        low = f" from {self.least}" if self.least > -NO_BOUND else ""
        return f"{low} to {self.most}" if self.most < NO_BOUND else low

    @property
    def kind_words(self) -> str:
        """What sort of amount it is: a number of GB."""
        return ("a whole number" if self.kind is int else "a number") + (f" of {self.unit}" if self.unit else "")

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        return self.kind_words + self.range_words

    @property
    def expected_of_user(self) -> str:
        """What a user may write, in words."""
        most = self.most if self.from_user.most is None else self.from_user.most
        if self.from_user.above is None:
            return self.kind_words + replace(self, most=most).range_words
        high = f", to {most}" if most < NO_BOUND else ""
        return f"{self.kind_words} above {self.from_user.above}{high}"

    def problem(self, value: Any) -> str:
        """What is wrong with this value; "" if nothing is."""
        if value is None and self.is_optional:
            return ""
        try:
            fits = self.least <= value <= self.most and (self.kind is not int or value == int(value))
        except TypeError:
            fits = False
        return "" if fits else f"{self.name} is {value}; expected {self.expected}"


def about(words: str, **more: Any) -> dict[str, Property]:
    """The metadata of a field: its declaration as a property."""
    return {PROPERTY_KEY: Property(words, **more)}


@cache
def properties_of(record: type) -> tuple[Property, ...]:
    """The properties of a record, in the order of its fields."""
    hints = get_type_hints(record)
    found = []
    for each in fields(record):
        hint = hints[each.name]
        is_optional = get_origin(hint) in (Union, types.UnionType)
        if is_optional:
            hint = next(kind for kind in get_args(hint) if kind is not type(None))
        found.append(
            replace(
                each.metadata[PROPERTY_KEY],
                name=each.name,
                kind=get_origin(hint) or hint,
                default=_NEEDED if each.default is MISSING else each.default,
                is_optional=is_optional,
            )
        )
    return tuple(found)


def property_of(record: type, name: str) -> Property:
    """The property of this name."""
    return next(each for each in properties_of(record) if each.name == name)


@cache
def stored_in(record: type) -> tuple[Property, ...]:
    """The properties that have a column of amounts in the table of such records."""
    return tuple(each for each in properties_of(record) if each.dtype)


def columns_for(record: type) -> list[tuple[str, str]]:
    """The columns of amounts in the table of such records; wide ones first, so that none needs padding."""
    columns = [(each.column, each.dtype) for each in stored_in(record)]
    return sorted(columns, key=lambda column: -int(column[1][1:]))


def fill_row(row: Any, record: Any) -> None:
    """Write the amounts of a record into a row of its table."""
    kind: type = type(record)
    for each in stored_in(kind):
        row[each.column] = each.stored(getattr(record, each.name))


def problem_in(record: Any) -> str:
    """What is wrong with the first amount of a record that is out of bounds; "" if none is."""
    kind: type = type(record)
    for each in _numbers(kind):
        if wrong := each.problem(getattr(record, each.name)):
            return wrong
    return ""


@cache
def _numbers(record: type) -> tuple[Property, ...]:
    return tuple(each for each in properties_of(record) if each.is_number)
