"""The cluster as the watches tell it, and snapshots of it.

What a pod was bound to by us counts at once (it is assumed) and until the watch tells of it.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, final

from adlro.backends.kubernetes.client import Api, Raw
from adlro.backends.kubernetes.gangs import Gang, Groups, gangs_of
from adlro.backends.kubernetes.nodes import NodeFacts, node_facts_of
from adlro.backends.kubernetes.pods import BACKGROUND, DECISION, GPUS, Pod, bound, pod_of
from adlro.backends.kubernetes.pools import Dividing, Pools
from adlro.backends.kubernetes.quantities import CPU, RAM
from adlro.backends.kubernetes.volumes import Volumes
from adlro.backends.kubernetes.wants import Wants
from adlro.backends.kubernetes.watching import Watching, wait_until_listed
from adlro.core.errors import BackendError
from adlro.core.ports import JobState, LiveJob, MissingRight, Part, Setback, Snapshot
from adlro.core.records import CPU_ONLY, Job

STALE_S: Final = 30.0
"""A copy that has not been up to date for so long is no snapshot."""

NEEDED_RIGHTS: Final = frozenset(f"{verb} {what}" for verb in ("list", "watch") for what in ("nodes", "pods")) | {
    "create pods/binding"
}
"""Without these no pod can be placed."""

ASSUMED_S: Final = 60.0
"""A binding that the watch does not tell of for so long is forgotten."""

ENDED_S: Final = 3600.0
MOST_ENDED: Final = 20_000
"""Ended pods stay in snapshots for so long, and at most so many of them."""

PRIORITY_SCALE: Final = 1000.0
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class PodRule:
    """Pods of which a field fits a pattern are of a family."""

    pattern: re.Pattern[str]
    family: str
    field: str = "owner"

    def fits(self, pod: Pod) -> bool:
        """Whether this pod is meant."""
        text = {"name": pod.name, "owner": pod.owner[1], "namespace": pod.namespace, "image": pod.image}[self.field]
        return self.pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class PodNaming:
    """How the words of pods become ours."""

    scheduler: str = "adlro"
    families: tuple[PodRule, ...] = ()
    default_family: str = "learning"
    user_label: str = ""
    is_family: Callable[[str], bool] = lambda name: True


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
        self.lock = threading.RLock()
        self.nodes: dict[str, NodeFacts] = {}
        self.pods: dict[str, Pod] = {}
        self.on_node: dict[str, dict[str, Pod]] = {}
        """By node, the pods that take room there, those that we assume among them."""
        self.volumes, self.groups = Volumes(), Groups()
        self._ended: dict[str, tuple[LiveJob, float]] = {}  # by id, with the time at which it was seen to have ended
        self._assumed: dict[str, tuple[Pod, float]] = {}  # by uid: as it was bound, and until when that counts
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
                (
                    "/apis/scheduling.k8s.io/v1alpha1/podgroups",
                    self._locked(self.groups.put),
                    self._locked(self.groups.drop),
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
            is_job = before.owner[0] not in BACKGROUND or before.gpus
            if is_job and key not in self._ended and not before.gang:
                last = pod_of(raw, self._keep) if "spec" in raw else before
                at = last.ended_s or self._clock()
                state = ended_state(last) or JobState.CANCELLED
                job = self._job_of(before if before.node else last)
                self._note_end(
                    replace(job, state=state, ended_s=at, parts=job.parts or self._parts([last]), reason=last.reason)
                )
            self._jobs.pop(key, None)

    def _settle(self, pod: Pod) -> None:
        """Put a pod where it stands now."""
        before = self.pods.get(pod.key)
        if before is not None:
            self._remove(before)
        self.pods[pod.key] = pod
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
                self.forget(
                    replace(pod, node="", notes={k: v for k, v in pod.notes.items() if k not in (DECISION, GPUS)})
                )
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
        lacks = tuple(MissingRight(right, right in NEEDED_RIGHTS) for right in sorted(self._api.denied))
        return Snapshot(self._clock(), pools.cluster, jobs, down, tuple(notes), lacks, "namespace")

    def pools(self) -> Pools:
        """The nodes as pools, divided by what waiting pods demand."""
        waiting = {self.wants_of(pod) for pod in self.pods.values() if pod.waits and pod.gpus}
        if self._nodes_copy != self.nodes:
            self._nodes_copy = dict(self.nodes)
        return self.dividing.pools(self._nodes_copy, self._held_by_nodes(), waiting)

    def wants_of(self, pod: Pod) -> Wants:
        """What a pod demands of its node, its volumes included."""
        return self.volumes.added(pod) if pod.claims else pod.wants

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
        now = self._clock()
        self.gangs = gangs_of(self.pods.values(), self.groups, self.naming.scheduler)
        found = []
        for pod in self.pods.values():
            if pod.owner[0] in BACKGROUND and not pod.gpus:
                continue
            if pod.gang and pod.scheduler == self.naming.scheduler:
                continue
            made_from = (pod, self.dividing.version, self.volumes.version if pod.claims else 0)
            known = self._jobs.get(pod.key)
            if known is None or known[0] != made_from:
                known = made_from, self._job_of(pod, pools)
                self._jobs[pod.key] = known
            found.append(known[1])
        for gang in self.gangs.values():
            found.extend(self._jobs_of_gang(gang, pools))
        for id, (job, at) in list(self._ended.items()):
            if now - at > ENDED_S:
                del self._ended[id]
            else:
                found.append(job)
        return found

    def _job_of(self, pod: Pod, pools: Pools | None = None) -> LiveJob:
        """A pod as a job."""
        state = pod_state(pod)
        managed, reason, models = pod.scheduler == self.naming.scheduler, pod.reason, frozenset[str]()
        setback = Setback.NONE
        if state is JobState.WAITING and pools is not None:
            models, refused = self._where([pod], pools)
            reason = refused or ("" if managed else "Resources")
            setback = Setback.UNPLACEABLE if managed and refused else Setback.NONE
            managed = managed and not refused
        return LiveJob(
            pod.key, self._request(pod, [pod], models), state, self._parts([pod]), pod.started_s, pod.ended_s,
            1 if pod.started_s is not None else 0, managed, pod.exit_code, pod.signal, reason,
            pod.notes.get(DECISION, ""), pod.namespace, setback=setback,
        )  # fmt: skip

    def _jobs_of_gang(self, gang: Gang, pools: Pools) -> Iterator[LiveJob]:
        """A gang as one job; one that is bound in part as what is bound, and what is left."""
        waiting, standing, ended = gang.waiting, gang.standing, gang.ended
        first = gang.pods[0]
        if standing:
            running = all(pod.phase == "Running" for pod in standing)
            began = [pod.started_s for pod in standing if pod.started_s is not None]
            state = JobState.RUNNING if running else JobState.PLACED
            id = gang.id if not waiting else f"{gang.id}+bound"
            yield LiveJob(
                id, self._request(first, standing, frozenset()), state, self._parts(standing),
                min(began) if began else None, None, 1 if began else 0, not waiting,
                decision=standing[0].notes.get(DECISION, ""), partition=first.namespace,
            )  # fmt: skip
        if waiting:
            models, refused = self._where(waiting, pools)
            refused = gang.incomplete or refused
            if standing and any(pod.gpus for pod in standing):
                models &= {pools.pool_of.get(pod.node, "") for pod in standing if pod.gpus}
                refused = refused or ("" if models else "the rest of its gang stands where it may not run")
            yield LiveJob(
                gang.id, self._request(first, waiting, models), JobState.WAITING, managed=not refused, reason=refused,
                partition=first.namespace, setback=Setback.UNPLACEABLE if refused else Setback.NONE,
            )  # fmt: skip
        if ended and not standing and not waiting:
            states = [ended_state(pod) or JobState.FAILED for pod in ended]
            state = JobState.FAILED if JobState.FAILED in states else JobState.FINISHED
            times = [pod.ended_s for pod in ended if pod.ended_s is not None]
            began = [pod.started_s for pod in ended if pod.started_s is not None]
            yield LiveJob(
                gang.id, self._request(first, ended, frozenset()), state, self._parts(ended), min(began, default=None),
                max(times, default=None), 1, decision=ended[0].notes.get(DECISION, ""), partition=first.namespace,
            )  # fmt: skip

    def _where(self, pods: Sequence[Pod], pools: Pools) -> tuple[frozenset[str], str]:
        """The pools that waiting pods may go to, and why there are none."""
        judged = []
        for pod in pods:
            if pod.unsupported:
                return frozenset(), pod.unsupported
            if wrong := self.volumes.problem(pod):
                return frozenset(), wrong
            judged.append(replace(pod, wants=self.wants_of(pod)) if pod.claims else pod)
        if not any(pod.gpus for pod in judged):
            missing = [miss for pod in judged if (miss := self.dividing.nearest_miss(pod, pools))]
            return frozenset(), missing[0] if missing else ""
        models = self.dividing.fitting(judged, pools)
        if models:
            return models, ""
        missing = [miss for pod in judged if (miss := self.dividing.nearest_miss(pod, pools))]
        return frozenset(), missing[0] if missing else "no GPU model has room for all of its pods"

    def _request(self, first: Pod, pods: Sequence[Pod], models: frozenset[str]) -> Job:
        """What pods ask for together, as a job."""
        naming, notes = self.naming, first.notes
        user = (notes.get("user") or notes.get(naming.user_label, "")) if naming.user_label else notes.get("user", "")
        said = notes.get("estimate", "")
        return Job(
            self.family_of(first),
            submit_s=min(pod.created_s for pod in pods),
            gpus=sum(pod.gpus for pod in pods),
            cpus=sum(pod.asks.get(CPU, 0) for pod in pods) / 1000,
            memory_gb=sum(-(-pod.asks.get(RAM, 0) // _MIB) for pod in pods) / 1024,
            models=models,
            priority=0.5 + 0.5 * first.priority / (abs(first.priority) + PRIORITY_SCALE),
            user=user or first.namespace,
            name=first.gang or first.job_name,
            limit_s=first.limit_s,
            estimate=float(said) if said.replace(".", "", 1).isdigit() else None,
        )

    def family_of(self, pod: Pod) -> str:
        """The family of a pod: as it says, as a pattern of the config says, or the default."""
        said = pod.notes.get("family", "")
        if said and self.naming.is_family(said):
            return said
        return next((rule.family for rule in self.naming.families if rule.fits(pod)), self.naming.default_family)

    def _parts(self, pods: Sequence[Pod]) -> tuple[Part, ...]:
        """Where pods stand, by node."""
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.node:
                by_node.setdefault(pod.node, []).append(pod)
        has_gpus = any(pod.gpus for pod in pods)
        found = []
        for node, here in by_node.items():
            count = sum(pod.gpus for pod in here)
            if not count:
                if not has_gpus:
                    found.append(Part(node, CPU_ONLY, 0))
                continue
            known = [indices_of(pod) for pod in here if pod.gpus]
            indices = tuple(sorted(number for each in known for number in each)) if all(known) else ()
            pools = self.dividing.latest
            model = pools.pool_of.get(node, "") if pools is not None else ""
            found.append(Part(node, model, count, indices if len(set(indices)) == count else ()))
        return tuple(found)


def pod_state(pod: Pod) -> JobState:
    """Where a pod stands, in our words."""
    if ended := ended_state(pod):
        return ended
    if not pod.node:
        return JobState.WAITING if not pod.is_leaving else JobState.CANCELLED
    return JobState.RUNNING if pod.phase == "Running" else JobState.PLACED


def ended_state(pod: Pod) -> JobState | None:
    """How a pod ended; None if it did not."""
    return {"Succeeded": JobState.FINISHED, "Failed": JobState.FAILED}.get(pod.phase)


def indices_of(pod: Pod) -> tuple[int, ...]:
    """The GPUs that we gave it, as its annotation says."""
    words = [word for word in pod.notes.get(GPUS, "").split(",") if word.isdigit()]
    return tuple(map(int, words)) if len(words) == pod.gpus else ()
