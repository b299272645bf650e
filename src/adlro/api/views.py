"""What is shown to whom, as JSON: made once for each state and kind of reader, cut to what was asked for.

An operator sees all. Others see that jobs of others are there, what they need and where they run; not whose they are,
nor their names, reasons or past, unless the site shows them (`others = "shown"`).
"""

import gzip
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from typing import Any, Final, final

from pydantic_core import to_json

from adlro.api.pace import breathe, paced
from adlro.core.ports import ENDED, PLACES, JobState, LiveJob, Part, Setback
from adlro.core.records import WHOLE_GPU, Cluster, Job, Node
from adlro.core.schema import properties_of
from adlro.live.service import Alarm, Decision, Event, Mention, Start, State, Who, Why, why_placed, with_names
from adlro.process.collector import paused_collector

MOST_ALARMS: Final = 100
MOST_HISTORY: Final = 500
MOST_KEPT: Final = 4096
LARGEST_KEPT: Final = 64 * 1024 * 1024
MOST_LISTS: Final = 64
MOST_COSTLY: Final = 16
"""Answers that are kept until the state changes, their bytes, lists of which pages are cut, and answers that are made
anew with every picture because they take long."""

OF_NO_JOB: Final = frozenset({
    "tick", "number", "policy", "decided_by", "fallback", "seconds", "waiting", "running", "decisions", "alarms",
    "kind", "text", "node",
})  # fmt: skip
"""What everyone is told of an event that is about no job."""

LONG_S: Final = 0.005
LARGE: Final = 1000
"""A picture that took longer to make, or that has more jobs and nodes than this, is made aside."""

SELDOM: Final = 10.0
OLDEST_S: Final = 1.0
"""Turns may follow each other closely. A large picture rests for so many times as long as it took, up to a second."""

JOB_NAMES: Final = tuple(each.name for each in properties_of(Job))
JOB_VALUES: Final = attrgetter(*JOB_NAMES)
NODE_NAMES: Final = tuple(each.name for each in properties_of(Node) if each.name != "gpus")
NODE_VALUES: Final = attrgetter(*NODE_NAMES)
"""What is shown of jobs and nodes; the GPUs of a node are shown one by one."""

PIECE: Final = 100
"""Records that are written as JSON in one go; the interpreter is not free meanwhile."""

WORTH_PACKING: Final = 4096
"""Bytes from which an answer is compressed for those who take it so."""


def json_bytes(value: object) -> bytes:
    """A value as JSON: records by the names of their fields; what is not a number is null."""
    return to_json(value, inf_nan_mode="null")


def json_in_pieces(value: object) -> bytes:
    """The same as `json_bytes`, piece by piece: between two of them other threads have their turn."""
    breathe()
    if isinstance(value, Mapping):
        entries = list(value.items())
        if len(entries) > PIECE:
            pieces = (dict(entries[at : at + PIECE]) for at in range(0, len(entries), PIECE))
            return b"{" + b",".join(json_in_a_piece(piece) for piece in pieces) + b"}"
        parts = [json_bytes(str(key)) + b":" + json_in_pieces(each) for key, each in entries]
        return b"{" + b",".join(parts) + b"}"
    if isinstance(value, list | tuple) and len(value) > PIECE:
        cut = (value[at : at + PIECE] for at in range(0, len(value), PIECE))
        return b"[" + b",".join(json_in_a_piece(piece) for piece in cut) + b"]"
    return json_bytes(value)


def json_in_a_piece(value: object) -> bytes:
    """A part of a list or a mapping, without its brackets."""
    breathe()
    return json_bytes(value)[1:-1]


@dataclass(slots=True)
class Body:
    """An answer as it goes out, with a tag that changes when it does."""

    plain: bytes
    tag: str = ""
    uses: int = 0  # how often it went out
    _packed: bytes | None = None

    def __post_init__(self) -> None:
        self.tag = f'"{blake2b(self.plain, digest_size=12).hexdigest()}"'

    @property
    def is_packed(self) -> bool:
        """Whether it has been compressed."""
        return self._packed is not None

    @property
    def packed(self) -> bytes:
        """The same, compressed."""
        if self._packed is None:
            self._packed = gzip.compress(self.plain, 1, mtime=0)
        return self._packed


@dataclass(frozen=True, slots=True)
class Eyes:
    """How much one sees: all, or only the jobs of `name` (nobody's if it is empty)."""

    name: str = ""
    all: bool = False

    def sees(self, live: LiveJob) -> bool:
        """Whether a job may be shown whole."""
        return self.all or (bool(self.name) and live.job.user == self.name)


def eyes_of(who: Who, others: str) -> Eyes:
    """What somebody sees."""
    if who.role == "operator" or others == "shown":
        return Eyes(all=True)
    return Eyes(who.name if who.role == "user" else "")


Address = tuple[str, bytes, Eyes]
"""What was asked, as it was written, and who sees the answer."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are asked for; what is empty does not filter."""

    states: tuple[str, ...] = ()
    user: str = ""
    model: str = ""
    partition: str = ""
    node: str = ""
    search: str = ""  # in lower case
    sort: str = ""  # one of SORT_KEYS
    is_descending: bool = False


@dataclass(slots=True)
class Picture:
    """A state with its jobs in order, and the answers made of it so far."""

    state: State
    jobs: dict[str, LiveJob]
    held: list[LiveJob]
    waiting: list[LiveJob]
    ended: list[LiveJob]
    lists: dict[tuple[Eyes, Filter], list[LiveJob]] = field(default_factory=dict)
    bodies: dict[Address, Body] = field(default_factory=dict)
    costly: dict[Address, Callable[["Picture"], object]] = field(
        default_factory=dict
    )  # what took long to make, and how
    size: int = 0  # of the bodies
    touched: set[str] = field(default_factory=set)  # jobs that were handed in or cancelled since

    def keep(self, address: Address, body: Body) -> None:
        """Keep an answer, if there is room; else forget the others."""
        if len(self.bodies) >= MOST_KEPT or self.size + len(body.plain) > LARGEST_KEPT:
            self.bodies.clear()
            self.size = 0
        self.bodies[address] = body
        self.size += len(body.plain)

    def make(self, address: Address, how: Callable[["Picture"], object], packs: bool) -> Body:
        """Make an answer, compressed too if it is worth it and `packs`, and keep it."""
        began = time.thread_time()
        body = Body(json_in_pieces(how(self)))
        if packs and len(body.plain) >= WORTH_PACKING:
            _ = body.packed  # here, so that the event loop has not to wait for it
        self.keep(address, body)
        if time.thread_time() - began > LONG_S and len(self.costly) < MOST_COSTLY:
            self.costly[address] = how
        return body

    def touch(self, job: str) -> None:
        """A job is no longer as this picture shows it: answers about it are made anew."""
        self.touched.add(job)
        for address in list(self.bodies):  # a copy: other threads keep answers meanwhile
            if f"/jobs/{job}" in address[0]:
                self.bodies.pop(address, None)


def picture_of(state: State) -> Picture:
    """Put the jobs of a state in order: those that hold GPUs, those that wait by predicted start, the latest ended."""
    jobs = state.snapshot.jobs
    starts = state.starts

    def by_start(live: LiveJob) -> tuple[float, float]:
        start = starts.get(live.id)
        middle = start.middle_s if start else None
        return (float("inf") if middle is None else middle, live.job.submit_s)

    by_id = {live.id: live for live in jobs}
    breathe()
    held = sorted((live for live in jobs if live.state in PLACES), key=lambda live: live.started_s or float("inf"))
    breathe()
    waiting = sorted((live for live in jobs if live.state is JobState.WAITING), key=by_start)
    breathe()
    ended = sorted((live for live in jobs if live.state in ENDED), key=lambda live: -(live.ended_s or 0.0))
    breathe()
    return Picture(state, by_id, held, waiting, ended)


def is_same(one: State, other: State) -> bool:
    """Whether two states are made of the same things; it does not look into them."""
    return one is other or all(
        getattr(one, each.name) is getattr(other, each.name)
        or (isinstance(getattr(one, each.name), str | bool) and getattr(one, each.name) == getattr(other, each.name))
        for each in fields(State)
    )


def is_large(state: State) -> bool:
    """Whether a picture of a state, or an answer made of it, probably takes long."""
    return len(state.snapshot.jobs) + len(state.snapshot.cluster.nodes) > LARGE


@final
class Views:
    """The latest picture. Any thread may ask; one makes it.

    Where that takes long the picture before it is shown meanwhile, for a moment: else all who ask after a turn would
    wait together, and then be answered one after the other.
    """

    def __init__(self, latest: Callable[[], State]) -> None:
        self._latest = latest
        self._picture: Picture | None = None
        self._took_s = 0.0
        self._rests_until = -math.inf
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def ready(self) -> Picture | None:
        """The picture of the latest state if it is made already, or the one before it while a large one is made."""
        picture = self._picture
        if picture is None or is_same(picture.state, latest := self._latest()):
            return picture
        if self._took_s < LONG_S and not is_large(latest):
            return None
        if time.monotonic() >= self._rests_until and self._making.acquire(blocking=False):
            threading.Thread(target=self._make, name="picture", daemon=True).start()
        return picture

    def _make(self) -> None:
        """Make the picture aside, and in it what took long to make in the one before and was asked for."""
        try:
            old, state = self._picture, self._latest()
            with paced(), paused_collector():
                began = time.thread_time()
                new = picture_of(state)
                took_s = time.thread_time() - began
                for eyes, asked in list(old.lists) if old else ():
                    if not (asked.sort or asked.search):  # what one reader sorts or looks for is made when asked for
                        listed(new, eyes, asked)
                        breathe()
                for address, how in list(old.costly.items()) if old else ():
                    was = old.bodies.get(address) if old else None
                    if was is not None and was.uses:
                        new.make(address, how, was.is_packed)
                rests_s = min(SELDOM * (time.thread_time() - began), OLDEST_S)
            with self._lock:
                self._picture, self._took_s = new, took_s
                self._rests_until = time.monotonic() + rests_s
        finally:
            self._making.release()

    def picture(self) -> Picture:
        """The picture of the latest state."""
        with self._lock:
            state = self._latest()
            if self._picture is None or not is_same(self._picture.state, state):
                began = time.thread_time()
                self._picture = picture_of(state)
                self._took_s = time.thread_time() - began
            return self._picture


# ---- what is hidden --------------------------------------------------------------------------------------------------


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
        "setback": live.setback if seen else Setback.NONE, "is_hidden": not seen,
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


def alarms_shown(alarms: Iterable[Alarm], jobs: Mapping[str, LiveJob], eyes: Eyes) -> list[Alarm]:
    """The alarms that are about no job, or about one that this reader sees."""
    return [alarm for alarm in alarms if eyes.all or not alarm.job or is_seen(alarm.job, jobs, eyes)]


def is_seen(id: str, jobs: Mapping[str, LiveJob], eyes: Eyes) -> bool:
    """Whether a job is there and may be shown whole."""
    live = jobs.get(id)
    return live is not None and eyes.sees(live)


def event_shown(event: Event, jobs: Mapping[str, LiveJob], eyes: Eyes) -> Event:
    """An event as this reader sees it: of others' jobs the id only."""
    if eyes.all:
        return event
    id = event.data.get("job")
    if not id:
        plain = {key: value for key, value in event.data.items() if key in OF_NO_JOB and not isinstance(value, list)}
        return replace(event, data=plain)
    is_own = bool(eyes.name) and event.data.get("user") == eyes.name
    return event if is_own or is_seen(str(id), jobs, eyes) else replace(event, data={"job": id})


# ---- answers ---------------------------------------------------------------------------------------------------------


def state_shown(picture: Picture, eyes: Eyes, waiting: int, ended: int) -> dict[str, Any]:
    """All that a screen shows."""
    state = picture.state
    snapshot = state.snapshot
    queue = picture.waiting[:waiting]
    counts = Counter(live.state for live in snapshot.jobs)
    tick = state.tick
    return {
        "snapshot": {
            "time_s": snapshot.time_s,
            "cluster": {
                "name": snapshot.cluster.name, "summary": snapshot.cluster.summary, "nodes": snapshot.cluster.nodes,
                "network": snapshot.cluster.network, "models": models_shown(snapshot.cluster),
            },
            "jobs": [job_shown(live, eyes) for live in chain(picture.held, queue, picture.ended[:ended])],
            "down": snapshot.down, "notes": snapshot.notes,
        },
        "tick": tick and {
            "number": tick.number, "time_s": tick.time_s, "policy": tick.policy, "decided_by": tick.decided_by,
            "seconds": tick.seconds, "waiting": tick.waiting, "running": tick.running,
            "alarms": alarms_shown(tick.alarms, picture.jobs, eyes), "is_cut": tick.is_cut,
        },
        "backend": state.backend, "policy": state.policy, "fallback": state.fallback, "is_guarded": state.is_guarded,
        "is_leader": state.is_leader, "starts": starts_of(state, queue),
        "alarms": alarms_shown(state.alarms, picture.jobs, eyes)[-MOST_ALARMS:], "drifts": state.drifts,
        "history": state.history[-MOST_HISTORY:], "telemetry": state.telemetry,
        "counts": {str(kind): counts[kind] for kind in JobState},
        "partitions": sorted({live.partition for live in snapshot.jobs} - {""}),
    }  # fmt: skip


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


Key = Callable[[LiveJob, Picture], Any]
SORT_KEYS: Final[Mapping[str, Key]] = {
    "id": lambda live, _: counted(live.id),
    "name": lambda live, _: counted(live.job.name) or None,
    "user": lambda live, _: live.job.user.casefold() or None,
    "partition": lambda live, _: live.partition.casefold() or None,
    "state": lambda live, _: list(JobState).index(live.state),
    "gpus": lambda live, _: live.job.gpus * live.job.share,
    "submitted": lambda live, _: live.job.submit_s,
    "waited": lambda live, now: (live.started_s or now.state.snapshot.time_s) - live.job.submit_s,
    "started": lambda live, _: live.started_s,
    "start": lambda live, now: start.middle_s if (start := now.state.starts.get(live.id)) else live.started_s,
    "place": lambda live, _: counted(live.parts[0].node) if live.parts else None,
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


def counted(text: str) -> list[tuple[int, int | str]]:
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


def starts_of(state: State, jobs: Iterable[LiveJob]) -> dict[str, Start]:
    """The predicted starts of jobs that wait."""
    return {live.id: state.starts[live.id] for live in jobs if live.id in state.starts}


def models_shown(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The GPU models in a few words."""
    keys = ("title", "vendor", "architecture", "memory_gb", "tdp_w")
    return {name: {key: getattr(model, key) for key in keys} for name, model in cluster.models.items()}


def cluster_shown(picture: Picture, eyes: Eyes) -> dict[str, Any]:
    """Nodes and GPUs, who runs on each, and what they say of themselves."""
    state = picture.state
    cluster = state.snapshot.cluster
    parts: dict[str, list[tuple[LiveJob, Part]]] = {}
    for live in picture.held:
        for part in live.parts:
            parts.setdefault(part.node, []).append((live, part))
    return {
        "time_s": state.snapshot.time_s, "name": cluster.name, "summary": cluster.summary, "gpus": cluster.gpu_count,
        "network": cluster.network, "models": models_shown(cluster),
        "nodes": [
            {
                **dict(zip(NODE_NAMES, NODE_VALUES(node), strict=True)),
                "down": state.snapshot.down.get(node.name),
                "gpus": gpus_shown(node, parts.get(node.name, ()), state.telemetry, eyes),
            }
            for node in cluster.nodes
        ],
    }  # fmt: skip


def gpus_shown(
    node: Node, parts: Sequence[tuple[LiveJob, Part]], telemetry: Mapping[str, Mapping[str, float | None]], eyes: Eyes
) -> list[dict[str, Any]]:
    """The GPUs of a node, numbered through its models; a job whose GPUs are not known is on the first with room."""
    breathe()
    models = [gpus.model for gpus in node.gpus for _ in range(gpus.count)]
    jobs: list[list[dict[str, Any]]] = [[] for _ in models]
    room = [WHOLE_GPU] * len(models)
    for known in (True, False):
        for live, part in parts:
            if bool(part.indices) is not known:
                continue
            share = live.job.share
            if known:
                taken = [index for index in part.indices if 0 <= index < len(models)]
            else:
                taken = [i for i, model in enumerate(models) if model == part.model and room[i] >= share][: part.count]
            seen = eyes.sees(live)
            for index in taken:
                room[index] -= share
                tenant = {
                        "id": live.id,
                        "user": live.job.user if seen else "",
                        "name": live.job.name if seen else "",
                        "is_index_known": known,
                }  # fmt: skip
                jobs[index].append(tenant)
    return [
        {"index": i, "model": model, "jobs": jobs[i], "telemetry": telemetry.get(f"{node.name}/{i}")}
        for i, model in enumerate(models)
    ]
