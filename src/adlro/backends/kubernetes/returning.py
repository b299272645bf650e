"""Jobs that go on in another pod: what we evict, its owner creates again under another name.

A pod that is marked as restartable and has an owner is one of the owner's slots, and its job is that slot: NAMESPACE.
OWNER:SLOT. The slot is the pod's completion index if it has one, else the lowest number that no other pod of the owner
has. The binding writes it into the pod, so it outlives the daemon; a pod that waits gets the slot that became free.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.pods import BACKGROUND, DECISION, GPUS, Pod

SLOT: Final = "slot"
STARTS: Final = "starts"
SUBMITTED_AT: Final = "submitted"
"""Our notes on a bound pod: its slot, how often its job has started with it, and when the job was first submitted."""

OF_BINDING: Final = frozenset([DECISION, GPUS, SLOT, STARTS, SUBMITTED_AT])
"""The notes that a binding writes."""

RETURN_S: Final = 600.0
"""A job whose pod was evicted counts as waiting for so long, even if its owner does not create the pod again."""

_Owner = tuple[str, str]  # namespace and name


def can_return(pod: Pod) -> bool:
    """Whether an owner creates this pod again when it is gone."""
    return bool(pod.owner[0]) and pod.owner[0] not in BACKGROUND


@dataclass(frozen=True, slots=True)
class JobPast:
    """What a job did in pods that are gone."""

    starts: int
    submit_s: float


@final
class Slots:
    """Which pods are one job, one after the other."""

    def __init__(self) -> None:
        self._new: dict[str, Pod] = {}  # by uid: pods that have no slot yet
        self._slot: dict[str, tuple[_Owner, int]] = {}  # by uid
        self._pods: dict[_Owner, dict[int, dict[str, Pod]]] = {}  # by owner and slot: its pods, by uid
        self._past: dict[str, JobPast] = {}  # by id

    def put(self, pod: Pod) -> None:
        """Take in a pod, or its change."""
        if not (pod.is_restartable and can_return(pod)) or pod.gang:
            return
        place = self._slot.get(pod.uid)
        if place is None:
            self._new[pod.uid] = pod
        else:
            self._pods[place[0]][place[1]][pod.uid] = pod

    def drop(self, pod: Pod) -> None:
        """A pod is gone; its slot is free if no other pod has it."""
        self._new.pop(pod.uid, None)
        owner, number = self._slot.pop(pod.uid, (("", ""), 0))
        slots = self._pods.get(owner)
        if slots is not None:
            slots[number].pop(pod.uid, None)
            if not slots[number]:
                del slots[number]
            if not slots:
                del self._pods[owner]

    def assign(self) -> None:
        """Give new pods their slots: first those that say theirs, then the others in the order of their creation."""
        for pod in sorted(self._new.values(), key=lambda each: (said_slot(each) is None, each.created_s, each.name)):
            owner = (pod.namespace, pod.owner[1])
            slots = self._pods.setdefault(owner, {})
            number = said_slot(pod)
            if number is None:
                held = {slot for slot, pods in slots.items() if any(not each.is_leaving for each in pods.values())}
                number = next(slot for slot in range(len(held) + 1) if slot not in held)
            slots.setdefault(number, {})[pod.uid] = pod
            self._slot[pod.uid] = owner, number
        self._new.clear()

    def id_of(self, pod: Pod) -> str:
        """The job of a pod: its own name if it is in no slot."""
        place = self._slot.get(pod.uid)
        return pod.key if place is None else _id(*place)

    def slot_of(self, pod: Pod) -> int | None:
        """The slot of a pod; None if it is in none."""
        place = self._slot.get(pod.uid)
        return None if place is None else place[1]

    def is_current(self, pod: Pod) -> bool:
        """Whether this pod is its job now: the one that still holds room, else the youngest."""
        place = self._slot.get(pod.uid)
        if place is None:
            return True
        return _current(self._pods[place[0]][place[1]].values()).uid == pod.uid

    def current(self, id: str) -> Pod | None:
        """The pod that is a job now; None if no slot has this id."""
        stem, _, number = id.rpartition(":")
        namespace, _, name = stem.partition(".")
        if not number.isdigit():
            return None
        pods = self._pods.get((namespace, name), {}).get(int(number))
        return _current(pods.values()) if pods else None

    # ---- over several pods -----------------------------------------------------------------------------------------

    def past(self, id: str) -> JobPast | None:
        """What a job did in earlier pods, as far as we saw it."""
        return self._past.get(id)

    def note_past(self, id: str, starts: int, submit_s: float) -> None:
        """Remember a job whose pod is gone."""
        self._past[id] = JobPast(starts, submit_s)

    def forget_past(self, there: Iterable[str]) -> None:
        """Forget jobs that are gone, once there are many of them."""
        kept = set(there)
        if len(self._past) > 2 * len(kept) + 1000:
            self._past = {id: past for id, past in self._past.items() if id in kept}


def said_slot(pod: Pod) -> int | None:
    """The slot that a pod says itself: the one of its binding, or its completion index."""
    said = pod.notes.get(SLOT, "") or pod.index
    return int(said) if said.isdigit() else None


def _id(owner: _Owner, number: int) -> str:
    return f"{owner[0]}.{owner[1]}:{number}"


def _current(pods: Iterable[Pod]) -> Pod:
    return max(pods, key=lambda pod: (pod.holds_room, pod.created_s, pod.name))
