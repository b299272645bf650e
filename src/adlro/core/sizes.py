"""The sizes of a job: the numbers of GPUs that it can run with, as users write them."""

import re
from typing import Final

MOST_GPUS_OF_SIZES: Final = 4096
"""The largest size of a job that can be resized."""


def sizes_of(text: str) -> tuple[int, ...]:
    """The numbers of GPUs that a text such as "1,2,4" or "2-8" names, ascending; `wrong_with_sizes` checks it."""
    found: set[int] = set()
    for part in text.replace("|", ",").split(",") if text.strip() else []:
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if first > last:
            raise ValueError(part)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def wrong_with_sizes(text: str) -> str:
    """What is wrong with a text of sizes; "" if nothing is."""
    try:
        sizes = sizes_of(text) if len(text) <= 1000 and all(len(word) <= 5 for word in re.findall(r"\d+", text)) else ()
    except ValueError:
        sizes = ()
    if sizes and sizes[0] >= 1 and sizes[-1] <= MOST_GPUS_OF_SIZES:
        return ""
    return f"sizes is {text!r}; expected numbers of GPUs from 1 to {MOST_GPUS_OF_SIZES}, as in 1,2,4,8 or 1-8"
