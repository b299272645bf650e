"""What a property of a job or a node is. Each is declared once, on the field of its record in records.py.

Tables, checks, our CSV and Parquet files, workload and cluster files, the API, the command line and the tables in the
documents all use these declarations.
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
"""Key of the declaration in a field's metadata."""

_FARTHEST: Final = sys.float_info.max
NO_BOUND: Final = 1e9
"""Bounds from this value on only reject nonsense. Messages do not show them."""

UNIT_SUFFIXES: Final = ("_s", "_gb")

_NEEDED: Final = object()
"""Marks a property without a default."""


@dataclass(frozen=True, slots=True)
class FromUser:
    """What is different when a user gives the property: in the API, on the command line or in a file."""

    most: float | None = None
    above: float | None = None  # exclusive lower bound
    words: str = ""  # added to the property's own words


@dataclass(frozen=True, slots=True)
class Property:
    """One property: its meaning, its range, and how tables store it. `properties_of` fills in the last four fields."""

    words: str  # one sentence for users, shown in the API, the command line and the documents
    unit: str = ""
    least: float = -_FARTHEST
    most: float = _FARTHEST
    dtype: str = ""  # of its column in the table; "": not in the table, or stored as a number from `JobNames`
    scale: int = 1  # table units in one of our units, such as 1000 thousandths in a core
    empty: str = ""  # what None or an empty cell means, in words
    from_user: FromUser = FromUser()
    option: str = ""  # how `adlro submit --help` shows the value (a flag has none); "": no option, or one by hand
    in_workload: bool = False  # a key of [[families]] in workload files: one value for all jobs of the family
    in_comment: bool = False  # Slurm has no field for it, so it is a word in the job's comment
    name: str = ""
    kind: type = str
    default: Any = _NEEDED
    is_optional: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether it has no default."""
        return self.default is _NEEDED

    @property
    def is_number(self) -> bool:
        """Whether it is a number, not a text or a list."""
        return self.kind in (int, float)

    @property
    def user_words(self) -> str:
        """Its description for users who give it."""
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
        """Its word in a Slurm comment: letters only."""
        return self.column.replace("_", "")

    @property
    def usual(self) -> Any:
        """The table's value if none is given."""
        return self.stored(self.default)

    def stored(self, amount: Any) -> Any:
        """An amount in the units of the table. None means unlimited (inf)."""
        if amount is None:
            return math.inf
        return round(amount * self.scale) if self.scale != 1 else amount

    def from_table(self, amount: Any) -> Any:
        """The inverse of `stored`, for a column or one amount."""
        return amount / self.scale if self.scale != 1 else amount

    def filled(self, amounts: "npt.NDArray[Any]", usual: Any = None) -> Any:
        """A column of the table from amounts in our units. NaN (no value given) becomes the usual amount."""
        import numpy as np  # imported here: the command line shows properties without NumPy

        missing = np.isnan(amounts)
        stored = np.rint(amounts * self.scale) if self.scale != 1 else amounts
        return np.where(missing, self.usual if usual is None else usual, stored) if missing.any() else stored

    def are_wrong(self, amounts: "npt.NDArray[np.float64]") -> "npt.NDArray[np.bool_]":
        """Which of these amounts are out of bounds. NaN is allowed."""
        return (amounts < self.least) | (amounts > self.most)

    @property
    def range_words(self) -> str:
        """Its bounds in words, such as "from 0 to 1"."""
        low = f" from {self.least}" if self.least > -NO_BOUND else ""
        return f"{low} to {self.most}" if self.most < NO_BOUND else low

    @property
    def kind_words(self) -> str:
        """Its kind in words, such as "a number of GB"."""
        return ("a whole number" if self.kind is int else "a number") + (f" of {self.unit}" if self.unit else "")

    @property
    def expected(self) -> str:
        """Its valid values, in words."""
        return self.kind_words + self.range_words

    @property
    def expected_of_user(self) -> str:
        """The values that a user may give, in words."""
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
    """The property with this name."""
    return next(each for each in properties_of(record) if each.name == name)


@cache
def stored_in(record: type) -> tuple[Property, ...]:
    """The properties that are amounts stored in the table of such records."""
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
    """What is wrong with the first amount of a record that is out of bounds; "" if all are valid."""
    kind: type = type(record)
    for each in _numbers(kind):
        if wrong := each.problem(getattr(record, each.name)):
            return wrong
    return ""


@cache
def _numbers(record: type) -> tuple[Property, ...]:
    return tuple(each for each in properties_of(record) if each.is_number)
