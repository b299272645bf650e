"""Lists of jobs: filtered, searched, sorted and cut to what was asked for."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from adlro.api.hidden import job_shown, starts_of
from adlro.api.pictures import MOST_LISTS, Eyes, Filter, Picture
from adlro.core.ports import ENDED, JobState, LiveJob


def jobs_shown(picture: Picture, eyes: Eyes, asked: Filter, offset: int, limit: int) -> dict[str, Any]:
    """A page of jobs."""
    found = listed(picture, eyes, asked)
    page = found[offset : offset + limit]
    return {
        "jobs": [job_shown(live, eyes) for live in page], "starts": starts_of(picture.state, page),
        "total": len(found), "offset": offset, "limit": limit, "time_s": picture.state.snapshot.time_s,
        "backend": picture.state.backend,
    }  # fmt: skip


def listed(picture: Picture, eyes: Eyes, asked: Filter) -> list[LiveJob]:
    """The jobs that are asked for; pages are cut from the same list."""
    key = (eyes, asked)
    if key not in picture.lists:
        if len(picture.lists) >= MOST_LISTS:
            picture.lists.clear()
        found = [live for live in in_order(picture, asked) if is_asked_for(live, asked, eyes)]
        picture.lists[key] = in_sorting(found, asked, picture, eyes) if asked.sort else found
    return picture.lists[key]


def in_order(picture: Picture, asked: Filter) -> Iterable[LiveJob]:
    """The jobs in the states that are asked for, in the order in which they are listed."""
    if not asked.states:
        return chain(picture.held, picture.waiting, picture.ended)
    listed = chain(
        picture.held if "running" in asked.states or "placed" in asked.states else (),
        picture.waiting if "waiting" in asked.states else (),
        picture.ended if ENDED & set(asked.states) else (),
    )
    return (live for live in listed if live.state in asked.states)


def is_asked_for(live: LiveJob, asked: Filter, eyes: Eyes) -> bool:
    """Whether a job is of the user, on the model and so on; whose a hidden job is cannot be found out."""
    if asked.user and not (live.job.user == asked.user and eyes.sees(live)):
        return False
    if asked.partition and live.partition != asked.partition:
        return False
    if asked.node and not any(part.node == asked.node for part in live.parts):
        return False
    if asked.search and not any(asked.search in text.casefold() for text in searched(live, eyes)):
        return False
    if not asked.model:
        return True
    if live.parts:
        return any(part.model == asked.model for part in live.parts)
    return not live.job.models or asked.model in live.job.models


def searched(live: LiveJob, eyes: Eyes) -> tuple[str, ...]:
    """The texts of a job in which this reader may search."""
    seen = (live.job.name, live.job.user) if eyes.sees(live) else ()
    return (live.id, live.job.family, live.partition, *seen)


SortKey = Callable[[LiveJob, Picture], Any]
SORT_KEYS: Final[Mapping[str, SortKey]] = {
    "id": lambda live, _: _counted(live.id),
    "name": lambda live, _: _counted(live.job.name) or None,
    "user": lambda live, _: live.job.user.casefold() or None,
    "partition": lambda live, _: live.partition.casefold() or None,
    "state": lambda live, _: list(JobState).index(live.state),
    "gpus": lambda live, _: live.job.gpus * live.job.share,
    "submitted": lambda live, _: live.job.submit_s,
    "waited": lambda live, now: (live.started_s or now.state.snapshot.time_s) - live.job.submit_s,
    "started": lambda live, _: live.started_s,
    "start": lambda live, now: start.middle_s if (start := now.state.starts.get(live.id)) else live.started_s,
    "place": lambda live, _: _counted(live.parts[0].node) if live.parts else None,
    "ran": lambda live, now: (
        (now.state.snapshot.time_s if live.ended_s is None else live.ended_s) - live.started_s
        if live.started_s is not None
        else None
    ),
    "ended": lambda live, _: live.ended_s,
}
"""By what jobs can be sorted; None comes last."""

HIDDEN_KEYS: Final = frozenset({"name", "user"})
"""Sorting by these must not tell what is hidden: such jobs come last, in their usual order."""


def _counted(text: str) -> list[tuple[int, int | str]]:
    """A key by which node9 comes before node10."""
    parts = re.split(r"([0-9]{1,18})", text.casefold())
    return [(0, int(part)) if number % 2 else (1, part) for number, part in enumerate(parts) if part]


def in_sorting(jobs: list[LiveJob], asked: Filter, picture: Picture, eyes: Eyes) -> list[LiveJob]:
    """The jobs sorted; those without a value, or with one that is hidden, last, in their usual order."""
    key = SORT_KEYS[asked.sort]
    first: list[tuple[Any, LiveJob]] = []
    last: list[LiveJob] = []
    for live in jobs:
        value = None if asked.sort in HIDDEN_KEYS and not eyes.sees(live) else key(live, picture)
        if value is None:
            last.append(live)
        else:
            first.append((value, live))
    first.sort(key=lambda pair: pair[0], reverse=asked.is_descending)
    return [*(live for _, live in first), *last]
