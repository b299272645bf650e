"""Sorting in compiled code without new arrays."""

from adlro.core.compiled import compiled
from adlro.core.tables import Floats, Ints


@compiled
def sort_pairs(keys: Floats, numbers: Ints, count: int) -> None:
    """Sort the first `count` numbers by key, and numbers with equal keys by number (heap sort)."""
    for start in range(count // 2 - 1, -1, -1):
        sift(keys, numbers, start, count)
    for last in range(count - 1, 0, -1):
        swap(keys, numbers, 0, last)
        sift(keys, numbers, 0, last)


@compiled
def sift(keys: Floats, numbers: Ints, start: int, count: int) -> None:
    """Move a pair down the heap until no pair below it is larger."""
    at = start
    while True:
        below = 2 * at + 1
        if below >= count:
            return
        if below + 1 < count and is_less(keys, numbers, below, below + 1):
            below += 1
        if not is_less(keys, numbers, at, below):
            return
        swap(keys, numbers, at, below)
        at = below


@compiled
def is_less(keys: Floats, numbers: Ints, a: int, b: int) -> bool:
    """Whether pair a belongs before pair b."""
    return keys[a] < keys[b] or (keys[a] == keys[b] and numbers[a] < numbers[b])


@compiled
def swap(keys: Floats, numbers: Ints, a: int, b: int) -> None:
    """Exchange two pairs."""
    keys[a], keys[b] = keys[b], keys[a]
    numbers[a], numbers[b] = numbers[b], numbers[a]


@compiled
def is_among(numbers: Ints, count: int, number: int) -> bool:
    """Whether a number is among the first `count`."""
    for i in range(count):
        if numbers[i] == number:
            return True
    return False
