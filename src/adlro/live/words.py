"""Times and GPU models in words, for sentences and for lines on a terminal."""

import math
import re
import time
from collections.abc import Iterable
from typing import Final

_SOON_S: Final = 60.0
"""What is expected within this time is expected any moment."""

HALF_A_YEAR_S: Final = 183 * 86400.0
"""A date further away than this has its year."""

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def spell(seconds: float) -> str:
    """A length of time in words, short."""
    if not math.isfinite(seconds):
        return "for ever"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            count = seconds / length
            return f"{count:.1f} {unit}" if count < 9.95 and unit != "min" else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def short_names(models: Iterable[str]) -> dict[str, str]:
    """GPU models as people say them: v100-sxm2-16gb is v100, unless the cluster has another v100."""
    known = set(models)
    found = {}
    for model in known:
        words = model.split("-")
        stems = ("-".join(words[:count]) for count in range(1, len(words) + 1))
        found[model] = next(
            (stem for stem in stems if not any(f"{other}-".startswith(f"{stem}-") for other in known - {model})), model
        )
    return found


def when_expected(time_s: float, now_s: float) -> str:
    """When something is expected."""
    return "any moment" if time_s < now_s + _SOON_S else f"about {moment(time_s, now_s)}"


def moment(time_s: float, now_s: float) -> str:
    """A moment in the local time zone: 14:20 CET, with the date if it is not today."""
    return f"{day(time_s, now_s)}{clock(time_s)} {zone(time_s)}"


def clock(time_s: float) -> str:
    """Hours and minutes."""
    return time.strftime("%H:%M", time.localtime(time_s))


def day(time_s: float, now_s: float) -> str:
    """The date before a clock's time, with a space after it; nothing if it is today."""
    at, now = time.localtime(time_s), time.localtime(now_s)
    if (at.tm_year, at.tm_yday) == (now.tm_year, now.tm_yday):
        return ""
    year = f" {at.tm_year}" if abs(time_s - now_s) > HALF_A_YEAR_S else ""
    return f"{MONTHS[at.tm_mon - 1]} {at.tm_mday}{year} "


def zone(time_s: float) -> str:
    """The time zone as people write it."""
    return plain_ascii(time.strftime("%Z", time.localtime(time_s))) or "local time"


def plain_ascii(text: str) -> str:
    """Text without what scontrol, squeue or a script around them could misread: one line, no quotes, = or |."""
    for sign, instead in (("×", "x"), ("–", "-"), ("—", "-"), ("…", "..."), ("'s ", " "), ("’s ", " "), ("=", ":")):
        text = text.replace(sign, instead)
    text = re.sub(r"[\"'`’“”\\]", "", text)
    text = re.sub(r"[^A-Za-z0-9 _.,:;()+/@<>*-]", " ", text)
    return " ".join(text.split()).rstrip(".;, ")
