"""Calls of compiled functions without a look at the types."""

import numpy as np

from adlro.core.calling import quick_call
from adlro.core.compiled import compiled_alone, compiled_form, compiled_with, is_compiled
from adlro.core.policy import FLOATS
from adlro.core.tables import Floats


@compiled_alone
def scaled_sum(values: Floats, factor: float) -> float:
    total = 0.0
    for value in values:
        total += factor * value
    return total


@compiled_alone
def first_of(values: Floats) -> float:
    return values[0]


@compiled_with(FLOATS.dtype(FLOATS))
def last_of(values: Floats) -> float:
    return values[len(values) - 1]


def test_every_call_gets_the_tables_and_its_own_arguments() -> None:
    values = np.array([1.0, 2.0])
    call = quick_call(scaled_sum, values)
    assert [call(factor) for factor in (1.0, 2.0, 3.0)] == [3.0, 6.0, 9.0]
    values[0] = 5.0
    assert call(1.0) == 7.0


def test_tables_of_another_type_are_compiled_for_and_not_misread() -> None:
    small, large = np.array([1.0, 2.0]), np.array([3, 4])
    calls = [quick_call(first_of, each) for each in (small, large, small)]
    assert [call() for call in calls for _ in range(3)] == [1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0]


def test_a_function_of_one_signature_is_called_at_its_entry_too() -> None:
    call = quick_call(last_of, np.array([1.0, 2.0]))
    assert [call(), call()] == [2.0, 2.0]
    assert is_compiled(compiled_form(last_of))


def test_plain_functions_are_called_as_they_are() -> None:
    assert quick_call(max, 3)(5) == 5
