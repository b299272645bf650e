"""Pods as jobs: what a pod or a gang asks for, where it stands, and why nobody can place it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from adlro.backends.kubernetes.gangs import Gang, gang_id
from adlro.backends.kubernetes.pods import DECISION, GPUS, Pod
from adlro.backends.kubernetes.pools import Dividing, Pools
from adlro.backends.kubernetes.quantities import CPU, RAM
from adlro.backends.kubernetes.returning import SLOT, STARTS, SUBMITTED_AT, Slots, can_return
from adlro.backends.kubernetes.volumes import Volumes
from adlro.backends.kubernetes.wants import Wants
from adlro.core.ports import JobState, LiveJob, Part, Setback
from adlro.core.records import CPU_ONLY, Job

PRIORITY_SCALE: Final = 1000.0
_MIB: Final = 1024**2
_NOBODY: Final = -(2**63)
"""Below every priority."""


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
class PodJobs:
    """Makes jobs of pods. The reader's lock is held meanwhile."""

    def __init__(self, naming: PodNaming, dividing: Dividing) -> None:
        self.naming, self.dividing, self.volumes, self.slots = naming, dividing, Volumes(), Slots()
        self.evicted: set[str] = set()
        """The uids of pods that we told to end, so that their jobs wait again."""
        self.most_waiting = _NOBODY
        """The highest priority of the pods that wait for us and may preempt others."""

    def wants_of(self, pod: Pod) -> Wants:
        """What a pod demands of its node, its volumes included."""
        return self.volumes.added(pod) if pod.claims or pod.attaches else pod.wants

    def look(self, waiting: Iterable[Pod]) -> None:
        """Before the jobs of a snapshot are made: give new pods their slots, and see for whom others may end."""
        self.slots.assign()
        ours = (pod.priority for pod in waiting if pod.can_preempt and pod.scheduler == self.naming.scheduler)
        self.most_waiting = max(ours, default=_NOBODY)

    def job_of(self, pod: Pod, pools: Pools | None = None) -> LiveJob:
        """A pod as a job."""
        state = pod_state(pod)
        managed, reason, models = pod.scheduler == self.naming.scheduler, pod.reason, frozenset[str]()
        setback = Setback.NONE
        if state is JobState.WAITING and pools is not None:
            models, refused = self._where([pod], pools)
            reason = refused or ("" if managed else "Resources")
            setback = Setback.UNPLACEABLE if managed and refused else Setback.NONE
            managed = managed and not refused
        id = self.slots.id_of(pod)
        return LiveJob(
            id, self._request(id, pod, [pod], models), state, self.parts_of([pod]), pod.started_s, pod.ended_s,
            self.starts_of(id, [pod]), managed, pod.exit_code, pod.signal, reason, pod.notes.get(DECISION, ""),
            pod.namespace, setback=setback, is_stopping=self._is_stopping([pod]),
            also=() if id == pod.key else (pod.key,),
        )  # fmt: skip

    def jobs_of_gang(self, gang: Gang, pools: Pools) -> Iterator[LiveJob]:
        """A gang as one job; one that is bound in part as what is bound, and what is left.

        While its pods are being evicted, those that replace them are not shown: the job still holds its place.
        """
        standing = gang.standing
        is_stopping = self._is_stopping(standing)
        waiting = () if is_stopping else gang.waiting
        first = gang.pods[0]
        if standing:
            running = all(pod.phase == "Running" for pod in standing)
            began = [pod.started_s for pod in standing if pod.started_s is not None]
            state = JobState.RUNNING if running else JobState.PLACED
            id = gang.id if not waiting else f"{gang.id}+bound"
            yield LiveJob(
                id, self._request(gang.id, first, standing, frozenset()), state, self.parts_of(standing),
                min(began) if began else None, None, self.starts_of(gang.id, standing), not waiting,
                decision=standing[0].notes.get(DECISION, ""), partition=first.namespace, is_stopping=is_stopping,
                also=tuple(pod.key for pod in standing),
            )  # fmt: skip
        if waiting:
            yield self._waiting_gang(gang, pools)
        if gang.ended and not standing and not waiting:
            yield self._ended_gang(gang)

    def whole_gang(self, gang: Gang, last: Pod) -> LiveJob:
        """A gang as it last stood, when a pod of it is gone."""
        return LiveJob(
            gang.id, self._request(gang.id, last, gang.pods, frozenset()), JobState.RUNNING, self.parts_of(gang.pods),
            last.started_s, starts=self.starts_of(gang.id, [last]), partition=last.namespace,
        )  # fmt: skip

    def _waiting_gang(self, gang: Gang, pools: Pools) -> LiveJob:
        """What waits of a gang."""
        first, waiting, standing = gang.pods[0], gang.waiting, gang.standing
        models, refused = self._where(waiting, pools)
        refused = gang.incomplete or refused
        if standing and any(pod.gpus for pod in standing):
            models &= {pools.pool_of.get(pod.node, "") for pod in standing if pod.gpus}
            refused = refused or ("" if models else "the rest of its gang stands where it may not run")
        return LiveJob(
            gang.id, self._request(gang.id, first, waiting, models), JobState.WAITING, managed=not refused,
            starts=self.starts_of(gang.id, waiting), reason=refused, partition=first.namespace,
            setback=Setback.UNPLACEABLE if refused else Setback.NONE, also=tuple(pod.key for pod in waiting),
        )  # fmt: skip

    def _ended_gang(self, gang: Gang) -> LiveJob:
        """A gang of which all pods have ended."""
        first, ended = gang.pods[0], gang.ended
        states = [ended_state(pod) or JobState.FAILED for pod in ended]
        state = JobState.FAILED if JobState.FAILED in states else JobState.FINISHED
        times = [pod.ended_s for pod in ended if pod.ended_s is not None]
        began = [pod.started_s for pod in ended if pod.started_s is not None]
        return LiveJob(
            gang.id, self._request(gang.id, first, ended, frozenset()), state, self.parts_of(ended),
            min(began, default=None), max(times, default=None), max(1, self.starts_of(gang.id, ended)),
            decision=ended[0].notes.get(DECISION, ""), partition=first.namespace,
            also=tuple(pod.key for pod in ended),
        )  # fmt: skip

    def _is_stopping(self, pods: Sequence[Pod]) -> bool:
        """Whether pods that hold room were told to end, so that their job waits again."""
        return any(pod.holds_room and pod.uid in self.evicted for pod in pods)

    def starts_of(self, id: str, pods: Sequence[Pod]) -> int:
        """How often a job has started, in earlier pods too."""
        past = self.slots.past(id)
        before = past.starts if past is not None else 0
        if all(pod.started_s is None for pod in pods):
            return before
        said = pods[0].notes.get(STARTS, "")
        return int(said) if said.isdigit() else max(before, 1)

    def notes_at_start(self, pod: Pod) -> dict[str, str]:
        """What the binding of a pod says of its job, if that may go on in another pod."""
        if not (pod.is_restartable and can_return(pod)):
            return {}
        id = gang_id(pod) if pod.gang else self.slots.id_of(pod)
        slot = self.slots.slot_of(pod)
        notes = {STARTS: str(self.starts_of(id, [pod]) + 1), SUBMITTED_AT: f"{self.submitted_s(id, [pod]):.0f}"}
        return notes if slot is None else notes | {SLOT: str(slot)}

    def submitted_s(self, id: str, pods: Sequence[Pod]) -> float:
        """When a job was first submitted: with its first pod."""
        past = self.slots.past(id)
        said = pods[0].notes.get(SUBMITTED_AT, "")
        first = float(said) if said.replace(".", "", 1).isdigit() else min(pod.created_s for pod in pods)
        return min(first, past.submit_s) if past is not None else first

    def _where(self, pods: Sequence[Pod], pools: Pools) -> tuple[frozenset[str], str]:
        """The pools that waiting pods may go to, and why there are none."""
        judged = []
        for pod in pods:
            if pod.unsupported:
                return frozenset(), pod.unsupported
            if wrong := self.volumes.problem(pod):
                return frozenset(), wrong
            judged.append(replace(pod, wants=self.wants_of(pod)) if pod.claims or pod.attaches else pod)
        if not any(pod.gpus for pod in judged):
            missing = [miss for pod in judged if (miss := self.dividing.nearest_miss(pod, pools))]
            return frozenset(), missing[0] if missing else ""
        models = self.dividing.fitting(judged, pools)
        if models:
            return models, ""
        missing = [miss for pod in judged if (miss := self.dividing.nearest_miss(pod, pools))]
        return frozenset(), missing[0] if missing else "no GPU model has room for all of its pods"

    def _request(self, id: str, first: Pod, pods: Sequence[Pod], models: frozenset[str]) -> Job:
        """What pods ask for together, as a job."""
        naming, notes = self.naming, first.notes
        user = (notes.get("user") or notes.get(naming.user_label, "")) if naming.user_label else notes.get("user", "")
        said = notes.get("estimate", "")
        return Job(
            self.family_of(first),
            submit_s=self.submitted_s(id, pods),
            gpus=sum(pod.gpus for pod in pods),
            cpus=sum(pod.asks.get(CPU, 0) for pod in pods) / 1000,
            memory_gb=sum(-(-pod.asks.get(RAM, 0) // _MIB) for pod in pods) / 1024,
            models=models,
            priority=0.5 + 0.5 * first.priority / (abs(first.priority) + PRIORITY_SCALE),
            user=user or first.namespace,
            name=first.gang or first.job_name,
            limit_s=first.limit_s,
            estimate=float(said) if said.replace(".", "", 1).isdigit() else None,
            restartable=all(map(self._may_end, pods)),
        )

    def _may_end(self, pod: Pod) -> bool:
        """Whether a pod may be evicted: it is marked, its owner creates it again, and somebody waits for its place.

        Nobody waits for the place of a pod whose priority is higher than that of all who may preempt.
        """
        is_low = not pod.node or pod.priority <= self.most_waiting
        return pod.is_restartable and can_return(pod) and is_low

    def family_of(self, pod: Pod) -> str:
        """The family of a pod: as it says, as a pattern of the config says, or the default."""
        said = pod.notes.get("family", "")
        if said and self.naming.is_family(said):
            return said
        return next((rule.family for rule in self.naming.families if rule.fits(pod)), self.naming.default_family)

    def parts_of(self, pods: Sequence[Pod]) -> tuple[Part, ...]:
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
