"""Properties of jobs and nodes: declared once, and the same bounds everywhere."""

from dataclasses import dataclass, field, fields

import numpy as np
import pytest

from adlro.core.records import Job, Node
from adlro.core.schema import PROPERTY_KEY, about, columns_for, problem_in, properties_of, property_of, stored_in
from adlro.core.tables import JOB, NODE


@dataclass(frozen=True, slots=True)
class Thing:
    """A record with a property that the real ones do not have."""

    disk_gb: float = field(default=2.0, metadata=about("Disk.", unit="GB", least=0, most=50, dtype="i4", scale=1024))
    level: int | None = field(default=None, metadata=about("Level.", least=1, dtype="f8"))


@pytest.mark.parametrize("record", [Job, Node])
def test_every_field_of_a_record_is_declared_as_a_property(record: type) -> None:
    assert all(PROPERTY_KEY in each.metadata and each.metadata[PROPERTY_KEY].words for each in fields(record))


@pytest.mark.parametrize(("record", "table"), [(Job, JOB), (Node, NODE)])
def test_the_table_has_a_column_for_every_stored_property(record: type, table: "np.dtype[np.void]") -> None:
    assert {each.column for each in stored_in(record)} <= set(table.names or ())


def test_a_new_property_has_a_column_in_the_units_of_the_table() -> None:
    disk, level = properties_of(Thing)
    assert columns_for(Thing) == [("level", "f8"), ("disk", "i4")]
    assert disk.filled(np.array([0.5, np.nan])).tolist() == [512.0, 2048.0]
    assert level.filled(np.array([3.0, np.nan])).tolist() == [3.0, np.inf]
    assert disk.from_table(512) == 0.5


@pytest.mark.parametrize(
    ("thing", "problem"),
    [
        (Thing(), ""),
        (Thing(50.0, 1), ""),
        (Thing(50.5), "disk_gb is 50.5; expected a number of GB from 0 to 50"),
        (Thing(float("nan")), "disk_gb is nan; expected a number of GB from 0 to 50"),
        (Thing(level=0), "level is 0; expected a whole number from 1"),
        (Thing(level=1.5), "level is 1.5; expected a whole number from 1"),  # type: ignore[arg-type]
        (Thing("much"), "disk_gb is much; expected a number of GB from 0 to 50"),  # type: ignore[arg-type]
    ],
)
def test_a_value_out_of_bounds_is_told_with_what_was_expected(thing: Thing, problem: str) -> None:
    assert problem_in(thing) == problem


def test_amounts_in_a_column_have_the_same_bounds_as_those_of_a_record() -> None:
    priority = property_of(Job, "priority")
    assert priority.are_wrong(np.array([0.0, 1.0, 2.0, -0.1, np.nan])).tolist() == [False, False, True, True, False]
    assert priority.problem(2.0) == "priority is 2.0; expected a number from 0 to 1"
