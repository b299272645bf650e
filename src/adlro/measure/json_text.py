"""Results as JSON: what a program reads, the same from every command."""

import json
import math
import re
from typing import Any, Final

_NUMBERS: Final = re.compile(r"\[\n[^\[\]{}\"]*\]")


def json_text(value: Any) -> str:
    """A value as JSON. What is not a number is null; a list of numbers stands in one line."""
    text = json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False)
    return _NUMBERS.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


def without_nan(value: Any) -> Any:
    """The same value with None for every number that JSON cannot say."""
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
