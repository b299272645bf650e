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
from adlro.backends.kubernetes.disks import driver_limits
from adlro.backends.kubernetes.gangs import Gang, Groups, gang_id, gangs_of
from adlro.backends.kubernetes.nodes import NodeFacts, node_facts_of
from adlro.backends.kubernetes.podjobs import PodJobs, PodNaming, ended_state
from adlro.backends.kubernetes.pods import BACKGROUND, Pod, bound, pod_of
from adlro.backends.kubernetes.pools import Dividing, Pools
from adlro.backends.kubernetes.quantities import CPU, RAM
from adlro.backends.kubernetes.returning import OF_BINDING, RETURN_S
from adlro.backends.kubernetes.watching import Watching, wait_until_listed
from adlro.core.errors import BackendError
from adlro.core.ports import JobState, LiveJob, MissingRight, Snapshot

STALE_S: Final = 30.0
"""A copy that has not been up to date for so long is no snapshot."""

NEEDED_RIGHTS: Final = frozenset(f"{verb} {what}" for verb in ("list", "watch") for what in ("nodes", "pods")) | {
    "create pods/binding"
}
"""Without these no pod can be placed."""

ASSUMED_S: Final = 60.0
"""A binding that the watch does not tell of for so long is forgotten."""

LIMIT_RIGHTS: Final = frozenset(f"{verb} csinodes.storage.k8s.io" for verb in ("list", "watch"))
"""Without these, pods with volumes that nodes attach are not placed."""

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
        self.waiting: dict[str, Pod] = {}
        self.repelling: dict[str, Pod] = {}
        """Of all pods, those that wait for a node; and those that stand on one and keep others away."""
        self._of_nodes: dict[str, Pod] = {}  # pods of DaemonSets and the like, which belong to their node
        self._of_gangs: dict[str, Pod] = {}  # pods that may be of a gang of ours
        self._changed: set[str] = set()  # keys of pods that have changed since the latest snapshot
        self._live: dict[str, LiveJob] = {}  # by key: the jobs of pods that are their own job
        self._made_from = (-1, -1)  # the versions of pools and volumes with which these were made
        self._restartable: set[str] = set()  # keys
        self.volumes, self.groups = self.making.volumes, Groups()
        self._ended: dict[str, tuple[LiveJob, float]] = {}  # by id, with the time at which it was seen to have ended
        self._assumed: dict[str, tuple[Pod, float]] = {}  # by uid: as it was bound, and until when that counts
        self._returning: dict[str, tuple[LiveJob, float]] = {}  # by id: its pods were evicted, and are not there again
        self._background: dict[str, Mapping[str, int]] = {}
        self._keep = frozenset(filter(None, [naming.user_label]))
        self._nodes_copy: dict[str, NodeFacts] = {}
        self.changes = 0
        self._read_at = -1
        self._drivers: dict[str, Mapping[str, int | None]] = {}  # by node: its CSINode
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
                ("/apis/storage.k8s.io/v1/csinodes", self._put_drivers, self._drop_drivers),
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
        """Whether anything has changed since the latest snapshot that counts."""
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

    def _put_node(self, raw: Raw) -> None:
        node = node_facts_of(raw)
        with self.lock:
            if drivers := self._drivers.get(node.name):
                node = replace(node, drivers=drivers)
            if self.nodes.get(node.name) == node:
                return  # a heartbeat
        with self._changing():
            self.nodes[node.name] = node

    def _drop_node(self, raw: Raw) -> None:
        with self._changing():
            self.nodes.pop(raw["metadata"]["name"], None)

    def _put_drivers(self, raw: Raw) -> None:
        self._settle_drivers(raw["metadata"]["name"], driver_limits(raw))

    def _drop_drivers(self, raw: Raw) -> None:
        self._settle_drivers(raw["metadata"]["name"], {})

    def _settle_drivers(self, name: str, drivers: Mapping[str, int | None]) -> None:
        """Take in how many volumes a node can attach."""
        with self._changing():
            self._drivers[name] = drivers
            if not drivers:
                del self._drivers[name]
            if name in self.nodes:
                self.nodes[name] = replace(self.nodes[name], drivers=drivers)

    def _put_pod(self, raw: Raw) -> None:
        pod = pod_of(raw, self._keep)
        with self.lock:
            assumed = self._assumed.get(pod.uid)
            if assumed is not None and not pod.node and pod.phase == "Pending":
                pod = replace(pod, node=assumed[0].node, notes=assumed[0].notes)  # told before our binding
            elif assumed is not None:
                del self._assumed[pod.uid]
            before = self.pods.get(pod.key)
            # Our own bindings and words come back to us, and kubelets write much that we do not use.
            if before is None or replace(before, version=pod.version, shown=pod.shown) != pod:
                self.changes += 1
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

    def _note_gone(self, before: Pod, last: Pod) -> None:
        """Remember the job of a pod that is gone: how it ended, or that it will go on in another pod."""
        making, at = self.making, last.ended_s or self._clock()
        gang = self.gangs.get(gang_id(before)) if before.gang else None
        if gang is not None:
            job = making.whole_gang(gang, before)
        elif not is_of_node(before):
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
        self._changed.add(pod.key)
        if pod.holds_room:
            self.on_node.setdefault(pod.node, {})[pod.key] = pod
            if pod.repels:
                self.repelling[pod.key] = pod
            if is_of_node(pod):
                self._of_nodes[pod.key] = pod
        elif pod.waits:
            self.waiting[pod.key] = pod
        if pod.gang and pod.scheduler == self.naming.scheduler:
            self._of_gangs[pod.key] = pod
        if pod.is_restartable:
            self._restartable.add(pod.key)

    def _remove(self, pod: Pod) -> None:
        self._changed.add(pod.key)
        for index in (self.pods, self.waiting, self.repelling, self._of_nodes, self._of_gangs):
            index.pop(pod.key, None)
        self._restartable.discard(pod.key)
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

    def snapshot(self, is_back: bool = False) -> Snapshot:
        """The cluster now. Raises BackendError when the copy is not up to date.

        One that only looks at what became of orders (`is_back`) does not make changes old.
        """
        for watch in self._needed:
            silent = time.monotonic() - watch.heard_s
            if watch.trouble and silent > STALE_S:
                raise BackendError(f"{watch.path} has not been heard of for {silent:.0f} s: {watch.trouble}")
        with self.lock:
            if not is_back:
                self._read_at = self.changes
            self._expire()
            self.volumes.know_limits(self._api.denied.keys().isdisjoint(LIMIT_RIGHTS))
            pools = self.pools()
            jobs = self.latest_jobs = tuple(self._all_jobs(pools))
            down = {name: node.down for name, node in self.nodes.items() if node.down}
        notes = [*pools.notes]
        notes += [f"{watch.path}: {watch.trouble}" for watch in self._needed if watch.trouble]
        notes += [f"the right to {right} is missing" for right in sorted(self._api.denied)]
        lacks = tuple(MissingRight(right, right in NEEDED_RIGHTS) for right in sorted(self._api.denied))
        return Snapshot(self._clock(), pools.cluster, jobs, down, tuple(notes), lacks, "namespace")

    def pods_of(self, job: str) -> tuple[Pod, ...]:
        """The pods of a job of the latest snapshot, as they are now."""
        gang = self.gangs.get(job)
        slot = self.making.slots.current(job)
        keys = [pod.key for pod in gang.pods] if gang is not None else [slot.key if slot is not None else job]
        return tuple(pod for key in keys if (pod := self.pods.get(key)) is not None)

    def pools(self) -> Pools:
        """The nodes as pools, divided by what waiting pods demand."""
        wanted = (self.making.wants_of(pod) for pod in self.waiting.values() if pod.gpus)
        waiting = {id(wants): wants for wants in wanted}.values()  # equal ones are mostly one object: few are hashed
        if self._nodes_copy != self.nodes:
            self._nodes_copy = dict(self.nodes)
        return self.dividing.pools(self._nodes_copy, self._held_by_nodes(), waiting)

    def _held_by_nodes(self) -> Mapping[str, Mapping[str, int]]:
        """What DaemonSets and static pods hold on each node; the same object while nothing changes."""
        found: dict[str, dict[str, int]] = {}
        for pod in self._of_nodes.values():
            held = found.setdefault(pod.node, {})
            for name in (CPU, RAM):
                held[name] = held.get(name, 0) + pod.asks.get(name, 0)
        if found != self._background:
            self._background = dict(found)
        return self._background

    def _all_jobs(self, pools: Pools) -> list[LiveJob]:
        """All jobs: those of pods that have not changed are as they were."""
        making = self.making
        making.look(self.waiting.values())
        self.gangs = gangs_of(self._of_gangs.values(), self.groups, self.naming.scheduler)
        changed = self._all_changed()
        for key in changed:
            pod = self.pods.get(key)
            is_member = pod is not None and key in self._of_gangs and gang_id(pod) in self.gangs
            if pod is None or is_member or is_of_node(pod) or not making.slots.is_current(pod):
                self._live.pop(key, None)
            else:
                self._live[key] = making.job_of(pod, pools)
        found = {job.id: job for job in self._live.values()}
        for gang in self.gangs.values():
            for job in making.jobs_of_gang(gang, pools):
                found[job.id] = job
        making.slots.forget_past(found)
        self._add_gone(found)
        return list(found.values())

    def _all_changed(self) -> set[str]:
        """The keys of pods whose jobs may have changed since the latest snapshot."""
        changed, self._changed = self._changed, set()
        pools, volumes = self._made_from
        if pools != self.dividing.version:
            changed |= self.pods.keys()
        elif volumes != self.volumes.version:
            changed |= {key for key, pod in self.pods.items() if pod.claims or pod.attaches}
        self._made_from = self.dividing.version, self.volumes.version
        # Whether a pod is its job, and may end for others, depends on other pods.
        return changed | self._of_gangs.keys() | self._restartable

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


def is_of_node(pod: Pod) -> bool:
    """Whether a pod belongs to its node, as those of DaemonSets do: it takes room for good, and is no job."""
    return pod.owner[0] in BACKGROUND and not pod.gpus
