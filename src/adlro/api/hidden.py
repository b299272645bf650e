"""Which part of a job, a decision or an event each requester may see."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from adlro.api.pace import breathe
from adlro.api.pictures import Eyes, Picture
from adlro.core.learned import JobSpeeds
from adlro.core.ports import LiveJob, Setback
from adlro.core.records import Job
from adlro.core.schema import properties_of
from adlro.live.service import Alarm, Decision, Event, Mention, Start, State, Why, why_placed, with_names

JOB_NAMES: Final = tuple(each.name for each in properties_of(Job))
JOB_VALUES: Final = attrgetter(*JOB_NAMES)

OF_NO_JOB: Final = frozenset({
    "tick", "number", "policy", "decided_by", "fallback", "seconds", "waiting", "running", "decisions", "alarms",
    "kind", "text", "node",
})  # fmt: skip
"""Fields of an event without a job that everybody sees."""


def job_shown(live: LiveJob, eyes: Eyes) -> dict[str, Any]:
    """A job as this reader sees it."""
    breathe()
    seen = eyes.sees(live)
    job = dict(zip(JOB_NAMES, JOB_VALUES(live.job), strict=True))
    job["models"] = sorted(live.job.models)
    if not seen:
        job["user"] = job["name"] = ""
    return {
        "id": live.id,
        "job": job,
        "state": live.state, "parts": live.parts, "started_s": live.started_s, "ended_s": live.ended_s,
        "starts": live.starts, "managed": live.managed, "exit_code": live.exit_code, "signal": live.signal,
        "reason": live.reason if seen else "", "decision": live.decision,
        "partition": live.partition, "qos": live.qos if seen else "",
        "setback": live.setback if seen else Setback.NONE, "is_stopping": live.is_stopping,
        "gpu_pace": live.gpu_pace, "is_hidden": not seen,
    }  # fmt: skip


def decision_shown(decision: Decision, live: LiveJob | None, eyes: Eyes) -> Decision:
    """A decision as this reader sees it: of others' jobs the places only, and of past jobs only one's own.

    Its reason names other jobs by their ids; the names of those that the reader may see are added here.
    """
    if not eyes.all and (live is None or not eyes.sees(live)):
        return replace(decision, reason="", like=(), mentions=())
    mentions = mentions_shown(decision.mentions, eyes)
    like = tuple(one if eyes.all or one.user == eyes.name else replace(one, user="", name="") for one in decision.like)
    return replace(decision, reason=with_names(decision.reason, mentions), like=like, mentions=mentions)


def mentions_shown(mentions: Sequence[Mention], eyes: Eyes) -> tuple[Mention, ...]:
    """The jobs that a sentence names, with name and user only where this reader may see them."""
    is_own = bool(eyes.name)
    return tuple(
        one if eyes.all or (is_own and one.user == eyes.name) else replace(one, name="", user="") for one in mentions
    )


def why_here(picture: Picture, id: str) -> Why | None:
    """Why a job runs where it does, or how it ended; None if this picture does not say, and the daemon is to be asked.

    The job and its decision are of the same turn.
    """
    live = None if id in picture.touched else picture.jobs.get(id)
    made = picture.state.placed.get(id)
    return why_placed(live, made) if live is not None and made is not None else None


def why_shown(why: Why, live: LiveJob | None, eyes: Eyes) -> Why:
    """An answer to why, with names of other jobs and its decision as this reader sees them."""
    mentions = mentions_shown(why.mentions, eyes)
    decision = why.decision and decision_shown(why.decision, live, eyes)
    return replace(why, text=with_names(why.text, mentions), mentions=mentions, decision=decision)


def speeds_shown(speeds: JobSpeeds, eyes: Eyes) -> JobSpeeds:
    """What is believed of a job's speeds. Of others' past jobs neither user nor name nor the words in common."""
    because = tuple(
        past
        if eyes.all or (eyes.name and past.user == eyes.name)
        else replace(past, user="", name="", parts=tuple(each for each in past.parts if not is_of_a_name(each)))
        for past in speeds.because
    )
    return replace(speeds, because=because)


def is_of_a_name(part: str) -> bool:
    """Whether a part of a job tells its user or a word of its name."""
    return part.partition(" ")[0] in ("user", "word")


def alarms_shown(alarms: Iterable[Alarm], jobs: Mapping[str, LiveJob], eyes: Eyes) -> list[Alarm]:
    """The alarms that are about no job, or about one that this reader sees."""
    return [alarm for alarm in alarms if eyes.all or not alarm.job or is_seen(alarm.job, jobs, eyes)]


def is_seen(id: str, jobs: Mapping[str, LiveJob], eyes: Eyes) -> bool:
    """Whether a job exists and may be shown completely."""
    live = jobs.get(id)
    return live is not None and eyes.sees(live)


def event_shown(event: Event, jobs: Mapping[str, LiveJob], eyes: Eyes) -> Event:
    """An event as this reader sees it: for other users' jobs only the id."""
    if eyes.all:
        return event
    id = event.data.get("job")
    if not id:
        plain = {key: value for key, value in event.data.items() if key in OF_NO_JOB and not isinstance(value, list)}
        return replace(event, data=plain)
    is_own = bool(eyes.name) and event.data.get("user") == eyes.name
    return event if is_own or is_seen(str(id), jobs, eyes) else replace(event, data={"job": id})


def starts_of(state: State, jobs: Iterable[LiveJob]) -> dict[str, Start]:
    """The predicted starts of jobs that wait."""
    return {live.id: state.starts[live.id] for live in jobs if live.id in state.starts}
