"""The cluster as the watches tell it, and snapshots of it.

What a pod was bound to by us counts at once (it is assumed) and until the watch tells of it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, final

from adlro.backends.kubernetes.client import Api, Raw
from adlro.backends.kubernetes.gangs import Gang, Groups, gang_id, gangs_of
from adlro.backends.kubernetes.nodes import NodeFacts, node_facts_of
from adlro.backends.kubernetes.podjobs import PodJobs, PodNaming, ended_state
from adlro.backends.kubernetes.pods import BACKGROUND, Pod, bound, pod_of
from adlro.backends.kubernetes.pools import Dividing, Pools
from adlro.backends.kubernetes.quantities import CPU, RAM
from adlro.backends.kubernetes.returning import OF_BINDING, RETURN_S
from adlro.backends.kubernetes.watching import Watching, wait_until_listed
from adlro.core.errors import BackendError
from adlro.core.ports import JobState, LiveJob, Snapshot

STALE_S: Final = 30.0
"""A copy that has not been up to date for so long is no snapshot."""

ASSUMED_S: Final = 60.0
"""A binding that the watch does not tell of for so long is forgotten."""

ENDED_S: Final = 3600.0
MOST_ENDED: Final = 20_000
"""Ended pods stay in snapshots for so long, and at most so many of them."""


@final
class PodReader:
    """A copy of the cluster that watches keep up to date. Any thread may use it while it holds `lock`."""

    def __init__(
        self,
        api: Api,
        naming: PodNaming,
        dividing: Dividing,
        clock: Callable[[], float] = time.time,
        pause_s: float = 0.2,
    ) -> None:
        self._api, self.naming, self.dividing, self._clock = api, naming, dividing, clock
        self.making = PodJobs(naming, dividing)
        self.lock = threading.RLock()
        self.nodes: dict[str, NodeFacts] = {}
        self.pods: dict[str, Pod] = {}
        self.on_node: dict[str, dict[str, Pod]] = {}
        """By node, the pods that take room there, those that we assume among them."""
        self.volumes, self.groups = self.making.volumes, Groups()
        self._ended: dict[str, tuple[LiveJob, float]] = {}  # by id, with the time at which it was seen to have ended
        self._assumed: dict[str, tuple[Pod, float]] = {}  # by uid: as it was bound, and until when that counts
        self._returning: dict[str, tuple[LiveJob, float]] = {}  # by id: its pods were evicted, and are not there again
        self._jobs: dict[str, tuple[object, LiveJob]] = {}  # by id, with what it was made from
        self._background: dict[str, Mapping[str, int]] = {}
        self._keep = frozenset(filter(None, [naming.user_label]))
        self._nodes_copy: dict[str, NodeFacts] = {}
        self.changes = 0
        self._read_at = -1
        self.on_change: Callable[[], None] = lambda: None
        needed = [
            Watching(api, "/api/v1/nodes", self._put_node, self._drop_node, pause_s=pause_s),
            Watching(api, "/api/v1/pods", self._put_pod, self._drop_pod, pause_s=pause_s),
        ]
        optional = [
            Watching(api, path, put, drop, is_needed=False, pause_s=pause_s)
            for path, put, drop in (
                (
                    "/api/v1/persistentvolumeclaims",
                    self._locked(self.volumes.put_claim),
                    self._locked(self.volumes.drop_claim),
                ),
                (
                    "/api/v1/persistentvolumes",
                    self._locked(self.volumes.put_volume),
                    self._locked(self.volumes.drop_volume),
                ),
                (
                    "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
                    self._locked(self.groups.put),
                    self._locked(self.groups.drop),
                ),
                *(
                    (
                        f"/apis/scheduling.k8s.io/{version}/podgroups",
                        self._locked(self.groups.put),
                        self._locked(self.groups.drop),
                    )
                    for version in ("v1alpha2", "v1alpha3")  # Kubernetes 1.36 has the first, 1.37 the second
                ),
                (
                    "/apis/scheduling.k8s.io/v1alpha1/workloads",
                    self._locked(self.groups.put_workload),
                    self._locked(self.groups.drop_workload),
                ),
            )
        ]
        self._needed, self._watches = needed, needed + optional
        self._is_started = False
        self.latest_jobs: tuple[LiveJob, ...] = ()
        self.gangs: dict[str, Gang] = {}
        """The gangs of the latest snapshot, by id."""

    # ---- the copy ------------------------------------------------------------------------------------------------

    def start(self, seconds: float) -> None:
        """Begin to watch; wait until everything is listed once."""
        if not self._is_started:
            self._is_started = True
            for watch in self._watches:
                watch.start()
        wait_until_listed(self._watches, seconds)

    def close(self) -> None:
        """End the watches."""
        for watch in self._watches:
            watch.stop()
        self._api.wake()
        for watch in self._watches:
            watch.join()

    def has_changed(self) -> bool:
        """Whether anything has changed since the latest snapshot."""
        return self.changes != self._read_at

    def _locked(self, take: Callable[[Raw], None]) -> Callable[[Raw], None]:
        def take_alone(raw: Raw) -> None:
            with self._changing():
                take(raw)

        return take_alone

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.lock:
            yield
            self.changes += 1
        self.on_change()

    def _put_node(self, raw: Raw) -> None:
        node = node_facts_of(raw)
        with self.lock:
            if self.nodes.get(node.name) == node:
                return  # a heartbeat
        with self._changing():
            self.nodes[node.name] = node

    def _drop_node(self, raw: Raw) -> None:
        with self._changing():
            self.nodes.pop(raw["metadata"]["name"], None)

    def _put_pod(self, raw: Raw) -> None:
        pod = pod_of(raw, self._keep)
        with self._changing():
            assumed = self._assumed.get(pod.uid)
            if assumed is not None and not pod.node and pod.phase == "Pending":
                pod = replace(pod, node=assumed[0].node, notes=assumed[0].notes)  # told before our binding
            elif assumed is not None:
                del self._assumed[pod.uid]
            self._settle(pod)

    def _drop_pod(self, raw: Raw) -> None:
        meta = raw["metadata"]
        key = f"{meta.get('namespace', 'default')}.{meta['name']}"
        with self._changing():
            before = self.pods.get(key)
            if before is None or before.uid != meta.get("uid", before.uid):
                return
            self._assumed.pop(before.uid, None)
            self._remove(before)
            self._note_gone(before, pod_of(raw, self._keep) if "spec" in raw else before)
            self.making.evicted.discard(before.uid)
            self.making.slots.drop(before)
            self._jobs.pop(key, None)

    def _note_gone(self, before: Pod, last: Pod) -> None:
        """Remember the job of a pod that is gone: how it ended, or that it will go on in another pod."""
        making, at = self.making, last.ended_s or self._clock()
        gang = self.gangs.get(gang_id(before)) if before.gang else None
        if gang is not None:
            job = making.whole_gang(gang, before)
        elif before.owner[0] not in BACKGROUND or before.gpus:
            job = making.job_of(before if before.node else last)
        else:
            return
        if job.starts:
            making.slots.note_past(job.id, job.starts, job.job.submit_s)
        if before.uid in making.evicted and last.phase != "Succeeded":
            said = "it was stopped, and its owner has not created its pod again yet"
            self._returning[job.id] = (
                replace(job, state=JobState.WAITING, parts=(), started_s=None, managed=False, reason=said, decision=""),
                self._clock(),
            )
        elif gang is None and job.id not in self._ended and making.slots.is_current(before):
            state = ended_state(last) or JobState.CANCELLED
            parts = job.parts or making.parts_of([last])
            self._note_end(replace(job, state=state, ended_s=at, parts=parts, reason=last.reason))

    def _settle(self, pod: Pod) -> None:
        """Put a pod where it stands now."""
        before = self.pods.get(pod.key)
        if before is not None:
            self._remove(before)
        self.pods[pod.key] = pod
        self.making.slots.put(pod)
        self._ended.pop(pod.key, None)
        if pod.holds_room:
            self.on_node.setdefault(pod.node, {})[pod.key] = pod

    def _remove(self, pod: Pod) -> None:
        self.pods.pop(pod.key, None)
        if pod.node in self.on_node:
            self.on_node[pod.node].pop(pod.key, None)

    def _note_end(self, job: LiveJob) -> None:
        """Keep a pod that is gone for a while: others learn from how it ended."""
        self._ended[job.id] = job, self._clock()
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    # ---- assuming ------------------------------------------------------------------------------------------------

    def assume(self, pod: Pod, node: str, notes: Mapping[str, str]) -> None:
        """Count a pod as bound from now on."""
        with self.lock:
            told = self.pods.get(pod.key)
            if told is None or told.uid != pod.uid or told.node:
                return
            taken = bound(told, node, notes)
            self._assumed[pod.uid] = taken, time.monotonic() + ASSUMED_S
            self._settle(taken)

    def forget(self, pod: Pod) -> None:
        """The binding came to nothing: the pod waits again."""
        with self.lock:
            if self._assumed.pop(pod.uid, None) is not None:
                told = self.pods.get(pod.key)
                if told is not None and told.uid == pod.uid:
                    self._settle(replace(told, node="", notes=pod.notes))

    def _expire(self) -> None:
        now = time.monotonic()
        for uid, (pod, until) in list(self._assumed.items()):
            if now > until:
                notes = {name: value for name, value in pod.notes.items() if name not in OF_BINDING}
                self.forget(replace(pod, node="", notes=notes))
                self._assumed.pop(uid, None)

    # ---- a snapshot ----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cluster now. Raises BackendError when the copy is not up to date."""
        for watch in self._needed:
            silent = time.monotonic() - watch.heard_s
            if watch.trouble and silent > STALE_S:
                raise BackendError(f"{watch.path} has not been heard of for {silent:.0f} s: {watch.trouble}")
        with self.lock:
            self._read_at = self.changes
            self._expire()
            pools = self.pools()
            jobs = self.latest_jobs = tuple(self._all_jobs(pools))
            down = {name: node.down for name, node in self.nodes.items() if node.down}
        notes = [*pools.notes]
        notes += [f"{watch.path}: {watch.trouble}" for watch in self._needed if watch.trouble]
        notes += [f"the right to {right} is missing" for right in sorted(self._api.denied)]
        return Snapshot(self._clock(), pools.cluster, jobs, down, tuple(notes))

    def pods_of(self, job: str) -> tuple[Pod, ...]:
        """The pods of a job of the latest snapshot, as they are now."""
        gang = self.gangs.get(job)
        slot = self.making.slots.current(job)
        keys = [pod.key for pod in gang.pods] if gang is not None else [slot.key if slot is not None else job]
        return tuple(pod for key in keys if (pod := self.pods.get(key)) is not None)

    def pools(self) -> Pools:
        """The nodes as pools, divided by what waiting pods demand."""
        waiting = {self.making.wants_of(pod) for pod in self.pods.values() if pod.waits and pod.gpus}
        if self._nodes_copy != self.nodes:
            self._nodes_copy = dict(self.nodes)
        return self.dividing.pools(self._nodes_copy, self._held_by_nodes(), waiting)

    def _held_by_nodes(self) -> Mapping[str, Mapping[str, int]]:
        """What DaemonSets and static pods hold on each node; the same object while nothing changes."""
        found: dict[str, dict[str, int]] = {}
        for node, pods in self.on_node.items():
            for pod in pods.values():
                if pod.owner[0] in BACKGROUND and not pod.gpus:
                    held = found.setdefault(node, {})
                    for name in (CPU, RAM):
                        held[name] = held.get(name, 0) + pod.asks.get(name, 0)
        if found != self._background:
            self._background = dict(found)
        return self._background

    def _all_jobs(self, pools: Pools) -> list[LiveJob]:
        making = self.making
        making.look([pod for pod in self.pods.values() if pod.waits])
        self.gangs = gangs_of(self.pods.values(), self.groups, self.naming.scheduler)
        found = {}
        for pod in self.pods.values():
            if pod.owner[0] in BACKGROUND and not pod.gpus:
                continue
            if pod.gang and pod.scheduler == self.naming.scheduler and gang_id(pod) in self.gangs:
                continue
            if not making.slots.is_current(pod):
                continue
            made_from = making.made_from(pod)
            known = self._jobs.get(pod.key)
            if known is None or known[0] != made_from:
                known = made_from, making.job_of(pod, pools)
                self._jobs[pod.key] = known
            found[known[1].id] = known[1]
        for gang in self.gangs.values():
            for job in making.jobs_of_gang(gang, pools):
                found[job.id] = job
        making.slots.forget_past(found)
        self._add_gone(found)
        return list(found.values())

    def _add_gone(self, found: dict[str, LiveJob]) -> None:
        """Add jobs whose pods are gone: those that will go on, and for a while those that have ended."""
        now = self._clock()
        for id, (job, at) in list(self._returning.items()):
            if id in found:
                del self._returning[id]
            elif now - at <= RETURN_S:
                found[id] = job
            else:
                del self._returning[id]
                self._note_end(replace(job, state=JobState.CANCELLED, ended_s=now))
        for id, (job, at) in list(self._ended.items()):
            if now - at > ENDED_S or id in found:
                del self._ended[id]
            else:
                found[id] = job
