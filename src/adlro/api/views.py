"""What is shown to whom, as JSON: made once for each state and kind of reader, cut to what was asked for.

An operator sees all. Others see that jobs of others are there, what they need and where they run; not whose they are,
nor their names, reasons or past, unless the site shows them (`others = "shown"`).
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, final

from adlro.api.hidden import alarms_shown, job_shown, starts_of
from adlro.api.listing import listed
from adlro.api.pace import breathe, paced
from adlro.api.pictures import LONG_S, OLDEST_PICTURE_S, SELDOM, Eyes, Picture, is_large, is_same, picture_of
from adlro.core.ports import JobState, LiveJob, Part
from adlro.core.records import WHOLE_GPU, Cluster, Node
from adlro.core.schema import properties_of
from adlro.live.service import State
from adlro.process.collector import paused_collector

MOST_ALARMS: Final = 100
_MOST_HISTORY: Final = 500

NODE_NAMES: Final = tuple(each.name for each in properties_of(Node) if each.name != "gpus")
NODE_VALUES: Final = attrgetter(*NODE_NAMES)
"""What is shown of a node, besides its GPUs."""


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
                rests_s = min(SELDOM * (time.thread_time() - began), OLDEST_PICTURE_S)
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
        "stopping": state.stopping, "history": state.history[-_MOST_HISTORY:], "telemetry": state.telemetry,
        "counts": {str(kind): counts[kind] for kind in JobState},
        "partitions": sorted({live.partition for live in snapshot.jobs} - {""}),
        "partition_word": snapshot.partition_word,
    }  # fmt: skip


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
