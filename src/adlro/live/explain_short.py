"""Why a job waits in one line, for squeue."""

import time

from adlro.live.explain import LONGEST_LINE, STARTS_LATER
from adlro.live.service import Start, Why
from adlro.live.words import clock, day, plain_ascii, zone


def short_reason(why: Why, start: Start | None = None, now_s: float | None = None) -> str:
    """What a job waits for and its predicted start, in one line for the comment of a Slurm job.

    "waits for 4 v100 on one node; start about 14:20 (13:50-16:10) CET". Times are in the daemon's time zone; the
    date is there unless it is today's. `start` is `why.start` unless given.
    """
    what = why.short or f"{why.state}, {why.dominant}"
    if why.dominant not in STARTS_LATER:
        return _one_line(what)
    return _one_line(what, when_in_short(start or why.start, time.time() if now_s is None else now_s))


def _one_line(what: str, then: str = "") -> str:
    """One line that scontrol accepts:

    plain ASCII without quotes, at most LONGEST_LINE characters.

    `what` is cut if the line is too long; `then` stays whole if possible.
    """
    rest = f"; {plain_ascii(then)}" if then else ""
    room = max(LONGEST_LINE - len(rest), 20)
    what = plain_ascii(what)
    if len(what) > room:
        what = what[: room - 3].rstrip() + "..."
    return f"{what}{rest}"[:LONGEST_LINE]


def when_in_short(start: Start | None, now_s: float) -> str:
    """A predicted start with its interval, as in: start about 14:20 (13:50-16:10) CET."""
    if start is None or start.middle_s is None:
        return "start not predicted yet"
    if start.middle_s <= now_s:
        return "start expected any moment"
    text = f"start about {day(start.middle_s, now_s)}{clock(start.middle_s)}"
    if start.low_s is not None and start.high_s is not None:
        low_s = max(start.low_s, now_s)
        low = f"{day(low_s, start.middle_s) and (day(low_s, now_s) or 'today ')}{clock(low_s)}"
        text += f" ({low}-{day(start.high_s, start.middle_s)}{clock(start.high_s)})"
    return f"{text} {zone(start.middle_s)}"
