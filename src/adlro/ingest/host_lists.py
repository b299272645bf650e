"""Lists as Slurm writes them: of hosts (r0n[08-09],b), of numbers (0-3,8) and of GPUs (gpu:v100:4)."""

import math
import re
from itertools import chain, product, zip_longest
from typing import Final

_ENTRY: Final = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")  # commas in brackets do not end an entry
_BRACKET: Final = re.compile(r"\[([^\]]*)\]")
_NUMBERS: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_GPUS: Final = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([^:,()=/]+))?[:=](\d+)(?:\([^)]*\))?(?=,|$)")

MOST_IN_A_LIST: Final = 100_000
INDEX_TYPE: Final = re.compile(r"_\d+$")
"""The end of a GRES type that tells single GPUs apart: t4_0, t4_1."""


def whole_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list with ranges and steps: (1, 3, 5, 8) for 1-5:2,8; nothing for what is no list."""
    numbers: list[int] = []
    for part in text.split(","):
        if found := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip()):
            first, last, step = int(found[1]), int(found[2] or found[1]), max(int(found[3] or 1), 1)
            if (last - first) // step > MOST_IN_A_LIST:
                return ()
            numbers += range(first, last + 1, step)
    return tuple(numbers)


def gpus_in(gres: str) -> tuple[tuple[str, int], ...]:
    """The GPUs in a list of generic resources: (("v100", 4),) for gpu:v100:4(S:0-1), gres/gpu:2 or gres:gpu:2."""
    return tuple((word or "", int(count)) for word, count in _GPUS.findall(gres))


def hosts_in(text: str) -> tuple[str, ...]:
    """The nodes of a list as Slurm shortens it: ("r0n08", "r0n09", "b") for r0n[08-09],b.

    The ranges of several brackets are combined, the last one fastest. A range has as many digits as its first number.
    An entry that Slurm would refuse (n[3-1], n[x], more than MOST_IN_A_LIST nodes) stands for itself.
    """
    return tuple(name for entry in _ENTRY.findall(text) for name in _expanded(entry.strip()) if name)


def _expanded(entry: str) -> list[str]:
    """The names that one entry of a node list stands for."""
    texts, brackets = _BRACKET.split(entry)[::2], _BRACKET.findall(entry)
    ranges = [_labels(bracket) for bracket in brackets]
    if not all(ranges) or math.prod(map(len, ranges)) > MOST_IN_A_LIST:
        return [entry]
    return ["".join(chain.from_iterable(zip_longest(texts, chosen, fillvalue=""))) for chosen in product(*ranges)]


def _labels(bracket: str) -> list[str]:
    """The numbers between two brackets as they stand in names: 08, 09 and 11 for 08-09,11; nothing for a bad list."""
    labels: list[str] = []
    for piece in bracket.split(","):
        found = _NUMBERS.fullmatch(piece)
        if not found:
            return []
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < MOST_IN_A_LIST:
            return []
        labels += [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]
    return labels
