"""Which node each pod of an order goes to: the one that was ordered, or one of the same pool that accepts it.

The rules know GPUs, cores and memory. What else a node may lack for a pod shows here: a host port or a disk that is
taken, other extended resources, volumes that it can attach, a pod that repels it. Then another node of the same pool is
taken, or the order is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.nodes import NodeFacts
from adlro.backends.kubernetes.podjobs import indices_of
from adlro.backends.kubernetes.pods import DECISION, GPUS, Pod, Repels
from adlro.backends.kubernetes.pools import Pools, amount_in_words, lacking
from adlro.backends.kubernetes.reader import PodReader
from adlro.backends.kubernetes.wants import HOSTNAME, matches
from adlro.core.ports import Order, Part
from adlro.core.records import CPU_ONLY

ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Seat:
    """A node for a pod, and the notes that its binding carries."""

    pod: Pod
    node: str
    notes: Mapping[str, str]


@final
class PodSeating:
    """Finds nodes for the pods of orders, one order after the other. The reader's lock is held meanwhile."""

    def __init__(self, reader: PodReader, pools: Pools) -> None:
        self._reader, self._pools = reader, pools
        self._room: dict[str, dict[str, int]] = {}
        self._nominated: dict[str, list[Pod]] = {}  # by node: pods of other schedulers, for which pods end there
        for pod in reader.waiting.values():
            if pod.nominated and pod.scheduler != reader.naming.scheduler:
                self._nominated.setdefault(pod.nominated, []).append(pod)
        self._repelling = [(pod, each) for pod in reader.repelling.values() for each in pod.repels]

    def seats(self, order: Order, pods: Sequence[Pod]) -> list[Seat] | str:
        """A node for each pod of an order; why there is none, in words. Nothing is taken in that case."""
        seats: list[Seat] = []
        for pod in sorted(pods, key=lambda each: -each.gpus):
            first = ""
            for node in self._candidates(order.parts, pod):
                refused = self.refusal(pod, node)
                if not refused:
                    seats.append(self._take(pod, node, order))
                    break
                first = first or f"{node.name}: {refused}"
            else:
                for seat in seats:
                    self.release(seat)
                return first or f"{order.parts[0].node} is not there any more"
        return seats

    def release(self, seat: Seat) -> None:
        """Let the room of a pod go that was not bound."""
        self._reader.forget(seat.pod)
        self._room.pop(seat.node, None)

    def refusal(self, pod: Pod, node: NodeFacts) -> str:
        """Why a node cannot take a pod now; "" if it can."""
        if node.down:
            return node.down
        if wrong := self._reader.dividing.refusal(self._reader.making.wants_of(pod), node):
            return wrong
        if short := lacking(pod.asks, self._room_on(node)):
            return f"Insufficient {short[0]} (free: {amount_in_words(short[0], self._room_on(node).get(short[0], 0))})"
        here = self._reader.on_node.get(node.name, {}).values()
        if pod.ports and any(clash(mine, theirs) for other in here for theirs in other.ports for mine in pod.ports):
            return "node(s) didn't have free ports for the requested pod ports"
        if (alone := self._reader.volumes.lonely(pod)) and self._is_in_use(pod, alone):
            return "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
        if wrong := self._reader.volumes.refusal(pod, node, (*here, *self._nominated.get(node.name, ()))):
            return wrong
        if pod.repels and any(self._repelled(pod, each, node) for each in pod.repels):
            return "node(s) didn't match pod anti-affinity rules"
        if any(self._is_repelled_by(pod, other, each, node) for other, each in self._repelling):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    # ---- the candidates ------------------------------------------------------------------------------------------

    def _candidates(self, parts: Sequence[Part], pod: Pod) -> Iterator[NodeFacts]:
        """The ordered nodes, then the others of the pool, the fullest first."""
        nodes = self._reader.nodes
        ordered = [part.node for part in parts]
        yield from (nodes[name] for name in ordered if name in nodes)
        pool = next((part.model for part in parts if part.model != CPU_ONLY), "")
        others: Iterable[NodeFacts] = nodes.values()
        if pod.gpus:
            others = (nodes[each.name] for each in self._pools.members.get(pool, ()) if each.name in nodes)
        left = [node for node in others if node.name not in ordered and not node.down]
        resource = pod.gpu_resource
        if resource:
            left = [node for node in left if self._room_on(node).get(resource, 0) >= pod.gpus]
            left.sort(key=lambda node: (self._room_on(node)[resource], node.name))
        yield from left

    def _room_on(self, node: NodeFacts) -> dict[str, int]:
        """What is free on a node."""
        known = self._room.get(node.name)
        if known is None:
            known = dict(node.allocatable)
            here = self._reader.on_node.get(node.name, {}).values()
            for pod in (*here, *self._nominated.get(node.name, ())):
                for name, many in pod.asks.items():
                    known[name] = known.get(name, 0) - many
            self._room[node.name] = known
        return known

    def _take(self, pod: Pod, node: NodeFacts, order: Order) -> Seat:
        """Let a pod have its room from now on."""
        room = self._room_on(node)
        notes = {DECISION: order.decision, **self._reader.making.notes_at_start(pod)}
        if numbers := self._gpu_numbers(pod, node, order):
            notes[GPUS] = ",".join(map(str, numbers))
        self._reader.assume(pod, node.name, notes)
        for name, many in pod.asks.items():
            room[name] = room.get(name, 0) - many
        self._repelling += [(pod, each) for each in pod.repels]
        return Seat(pod, node.name, notes)

    def _gpu_numbers(self, pod: Pod, node: NodeFacts, order: Order) -> tuple[int, ...]:
        """The GPUs of the order where they are free, else the lowest that are; none if others' are not known."""
        if not pod.gpus:
            return ()
        others = [each for each in self._reader.on_node.get(node.name, {}).values() if each.gpus]
        held = [indices_of(each) for each in others]
        if not all(held):
            return ()
        taken = {number for each in held for number in each}
        wanted = [number for part in order.parts if part.node == node.name for number in part.indices]
        free = [number for number in (*wanted, *range(node.gpus)) if number not in taken]
        chosen = (
            sorted(dict.fromkeys(free))[: pod.gpus] if not wanted else sorted(list(dict.fromkeys(free))[: pod.gpus])
        )
        return tuple(chosen) if len(chosen) == pod.gpus else ()

    def _is_in_use(self, pod: Pod, claims: frozenset[str]) -> bool:
        """Whether another pod that stands somewhere uses one of these claims."""
        there = (other for pods in self._reader.on_node.values() for other in pods.values())
        return any(other.namespace == pod.namespace and not claims.isdisjoint(other.claims) for other in there)

    # ---- pods that repel each other ------------------------------------------------------------------------------

    def _repelled(self, pod: Pod, rule: Repels, node: NodeFacts) -> bool:
        """Whether a pod that this pod repels stands in the domain of the node."""
        domain = node.labels.get(rule.topology)
        if domain is None and rule.topology != HOSTNAME:
            return False
        for name, others in self._reader.on_node.items():
            there = self._reader.nodes.get(name)
            is_same = name == node.name or (
                there is not None and domain is not None and there.labels.get(rule.topology) == domain
            )
            if is_same and any(applies(rule, pod, other) for other in others.values()):
                return True
        return False

    def _is_repelled_by(self, pod: Pod, other: Pod, rule: Repels, node: NodeFacts) -> bool:
        """Whether a pod that stands somewhere keeps this pod from the domain of the node."""
        if not applies(rule, other, pod) or other.uid == pod.uid:
            return False
        where = self._reader.pods.get(other.key)
        there = self._reader.nodes.get(where.node) if where is not None else None
        if there is None:
            return False
        domain = there.labels.get(rule.topology)
        return there.name == node.name or (domain is not None and node.labels.get(rule.topology) == domain)


def applies(rule: Repels, of: Pod, to: Pod) -> bool:
    """Whether a rule of one pod means another pod."""
    if not (rule.everywhere or to.namespace in (rule.namespaces or {of.namespace})):
        return False
    return matches(rule.selector, to.labels)


def clash(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """Whether two host ports are the same."""
    return one[1:] == other[1:] and (one[0] == other[0] or ANY_ADDRESS in (one[0], other[0]))
