"""Single fields of Slurm's text and JSON: lists of devices, amounts of memory, times, numbers that may be unset."""

import json
import re
from typing import Any, Final

from adlro.core.errors import TelemetryError
from adlro.ingest.host_lists import whole_numbers

_MIB_PER: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1.0}

_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_]*)=")
_DEVICES: Final = re.compile(r"gpu(?::([^:,()=/]+))?:\d+\(IDX:([\d,-]*)\)")


def parsed(text: str, where: str) -> Any:
    """The JSON in a text; TelemetryError for what is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TelemetryError(f"{where}: this is not JSON: {error}.") from None


def without_errors(answer: Any, where: str) -> dict[str, Any]:
    """Slurm's JSON, if it reports no errors: with its controller down it exits with 0 and an empty list."""
    if not isinstance(answer, dict):
        raise TelemetryError(f"{where}: this JSON is not an object; expected an answer of Slurm.")
    errors = answer.get("errors")
    if errors:
        first = errors[0] if isinstance(errors, list) else errors
        words = (first.get("error"), first.get("description")) if isinstance(first, dict) else (first,)
        said = ": ".join(str(word) for word in words if word)
        raise TelemetryError(f"{where}: Slurm reports an error: {said}. Is slurmctld running?")
    return answer


def devices_in(detail: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The devices that a job holds on a node: (("v100", (0, 1)),) for gpu:v100:2(IDX:0-1). No type without any."""
    found = ((word or "", whole_numbers(numbers)) for word, numbers in _DEVICES.findall(detail))
    return tuple((word, numbers) for word, numbers in found if numbers)


def pairs_in(block: str) -> dict[str, str]:
    """Key=value of a block of scontrol; a value ends where the next key begins, so it may have spaces in it."""
    found = list(_KEY.finditer(block))
    ends = [match.start() for match in found[1:]] + [len(block)]
    values: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        values.setdefault(match[1], block[match.end() : end].strip())
    return values


def told_in(text: str) -> str:
    """A value, or nothing where Slurm says that there is none."""
    return "" if text.strip() in ("(null)", "N/A", "n/a") else text


def words_of(value: Any) -> list[str]:
    """A list of words, which some versions write with commas."""
    if isinstance(value, list):
        return [str(word) for word in value]
    return [word for word in str(value or "").split(",") if word]


def number_in(value: Any) -> float | None:
    """A number as 22.05 and 24.11 write it; None where it is not set or has no end."""
    if isinstance(value, dict):
        return number_in(value.get("number")) if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in (4_294_967_294, 4_294_967_295) else float(value)


def mib_in(text: str) -> float:
    """MiB of an amount of memory, as in 4G or 2000Mc."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)[nc]?", text.strip())
    if not found:
        raise ValueError(text)
    return float(found[1]) * _MIB_PER[found[2]]


def seconds_in(text: str) -> float | None:
    """[days-]hours:minutes:seconds, or none."""
    if text.strip() in ("UNLIMITED", "NOT_SET", "INVALID", "N/A", ""):
        return None
    days, _, clock = text.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    while len(parts) < 3:
        parts.insert(0, 0)
    return int(days or 0) * 86_400.0 + parts[0] * 3600 + parts[1] * 60 + parts[2]


def unix_in(text: str) -> float | None:
    """A time as squeue writes it: in the time zone of this machine."""
    from datetime import datetime

    return None if text.strip() in ("N/A", "Unknown", "") else datetime.fromisoformat(text.strip()).timestamp()
