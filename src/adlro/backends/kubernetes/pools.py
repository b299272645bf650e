"""Pools: the nodes of one GPU model that are alike for every waiting pod.

The rules let a job name GPU models, not nodes. So the nodes of one model become several pools, each with a model name
of its own ("a100-sxm4-80gb", "a100-sxm4-80gb@2"), wherever a waiting pod may run on some of them and not on others. A
pod then names the pools whose nodes all accept it. All pools of a model have the same datasheet, hence the same speeds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.nodes import NodeFacts, Products
from adlro.backends.kubernetes.pods import Pod
from adlro.backends.kubernetes.quantities import CPU, RAM
from adlro.backends.kubernetes.wants import Wants, refusal
from adlro.core.plan import MOST_GPUS_ON_A_SITE
from adlro.core.records import CPU_ONLY, Cluster, GpuModel, Gpus, Link, Node

MOST_DEMANDS: Final = 48
"""So many different demands divide nodes into pools. Further ones use only pools that accept them as a whole."""

_MOST_JUDGED: Final = 1000
"""Demands of which it is remembered which nodes meet them."""

_KEPT: Final = 200
"""A demand that no pod has any more still divides nodes for so many readings, so that pools do not change each turn."""

PCIE_LINK: Final = Link("pcie", 32.0)
PLAIN_NETWORK: Final = Link("ethernet-10g", 2.5)
_Card = tuple[str, str]
"""A kind of GPU: its model, and its product where the model is a guess."""

_GIB: Final = 1024**3
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Joined:
    """How GPUs and nodes are joined, as a cluster file says."""

    name: str = "kubernetes"
    links: Mapping[str, Link] | None = None
    network: Link = PLAIN_NETWORK


@dataclass(frozen=True, slots=True)
class Pools:
    """The nodes as a cluster with pools."""

    cluster: Cluster
    nodes: Mapping[str, NodeFacts]
    pool_of: Mapping[str, str]  # by node: its model name in the cluster; CPU_ONLY without GPUs
    members: Mapping[str, tuple[NodeFacts, ...]]  # by pool
    notes: tuple[str, ...] = ()


@final
class Dividing:
    """Divides nodes into pools, and keeps what does not change: one thread at a time."""

    def __init__(self, products: Products, joined: Joined) -> None:
        self._products, self._joined = products, joined
        self._seen: dict[Wants, int] = {}  # by demand: the reading in which a pod last had it
        self._reading = 0
        self.latest: Pools | None = None
        self._made_from: tuple[object, ...] = ()
        self._accepts: dict[Wants, dict[str, tuple[NodeFacts, str]]] = {}  # by demand and node
        self._fitting: dict[object, frozenset[str]] = {}  # by what a pod demands and asks for, in the latest pools
        self.version = 0
        """Changes with the pools."""

    def pools(
        self, nodes: Mapping[str, NodeFacts], background: Mapping[str, Mapping[str, int]], waiting: Iterable[Wants]
    ) -> Pools:
        """The pools of these nodes. `background` is what pods that belong to a node hold there."""
        self._reading += 1
        for wants in waiting:
            self._seen[wants] = self._reading
        self._seen = {wants: at for wants, at in self._seen.items() if self._reading - at < _KEPT}
        demands = sorted(self._seen, key=self._seen.__getitem__, reverse=True)[:MOST_DEMANDS]
        made_from = (nodes, background, frozenset(demands))
        if self.latest is None or made_from != self._made_from:
            self._made_from = made_from
            self.latest = self._divide(nodes, background, demands)
            self._fitting.clear()
            self.version += 1
        return self.latest

    def refusal(self, wants: Wants, node: NodeFacts) -> str:
        """Why a node does not meet a demand, whatever runs on it; "" if it does."""
        return self._judged(self._known_of(wants), wants, node)

    def _known_of(self, wants: Wants) -> dict[str, tuple[NodeFacts, str]]:
        known = self._accepts.get(wants)
        if known is None:
            if len(self._accepts) > _MOST_JUDGED:
                self._accepts.clear()
            known = self._accepts[wants] = {}
        return known

    def _judged(self, known: dict[str, tuple[NodeFacts, str]], wants: Wants, node: NodeFacts) -> str:
        found = known.get(node.name)
        if found is None or found[0] is not node:
            found = known[node.name] = (
                node,
                refusal(wants, node.name, node.labels, node.taints, node.allocatable, node.most_attached),
            )
        return found[1]

    def _divide(
        self, nodes: Mapping[str, NodeFacts], background: Mapping[str, Mapping[str, int]], demands: Sequence[Wants]
    ) -> Pools:
        found: dict[_Card, GpuModel] = {}
        notes: dict[str, str] = {}
        groups: dict[tuple[_Card, tuple[bool, ...]], list[NodeFacts]] = {}
        judged = [(wants, self._known_of(wants)) for wants in demands]
        for node in nodes.values():
            if not node.gpus:
                continue
            model, note = self._products.of(node)
            card = (model.name, node.product if note else "")  # two unknown products are two kinds of GPU
            found[card] = model
            if note:
                notes.setdefault(node.product, note)
            alike = tuple(not self._judged(known, wants, node) for wants, known in judged)
            groups.setdefault((card, alike), []).append(node)
        members, models = _named(groups, found)
        pool_of = {node.name: name for name, group in members.items() for node in group}
        slices = Counter(name for node in nodes.values() for name in node.slices)
        if slices:
            notes["mig"] = f"nodes offer MIG slices ({', '.join(sorted(slices))}), which ADLRO does not place."
        links = self._joined.links or {}
        records = (
            _record(node, pool_of.get(name, ""), background.get(name, {}), links) for name, node in nodes.items()
        )
        cluster = Cluster(self._joined.name, "a live Kubernetes", tuple(records), self._joined.network, models)
        return Pools(
            cluster, nodes, {node: pool_of.get(node, CPU_ONLY) for node in nodes},
            {name: tuple(group) for name, group in members.items()}, tuple(notes.values()),
        )  # fmt: skip

    def fitting(self, pods: Sequence[Pod], pools: Pools) -> frozenset[str]:
        """The pools in which every node accepts the pods, and some node is large enough for each of them."""
        found = frozenset(pools.members)
        for pod in pods:
            if pod.gpus:  # others may run elsewhere
                found &= self._fitting_one(pod, pools)
        return found

    def _fitting_one(self, pod: Pod, pools: Pools) -> frozenset[str]:
        """The pools for one pod. Pods that ask for the same have the same answer."""
        key = (pod.wants, *pod.asks.items())
        found = self._fitting.get(key)
        if found is None or pools is not self.latest:
            known = self._known_of(pod.wants)
            found = frozenset(name for name, group in pools.members.items() if self._fits(pod, known, group))
            if pools is self.latest:
                self._fitting[key] = found
        return found

    def _fits(self, pod: Pod, known: dict[str, tuple[NodeFacts, str]], group: Sequence[NodeFacts]) -> bool:
        if any(self._judged(known, pod.wants, node) for node in group):
            return False
        return any(node.gpu_resource == pod.gpu_resource and not lacking(pod.asks, node.allocatable) for node in group)

    def nearest_miss(self, pod: Pod, pools: Pools) -> str:
        """Why no node could ever take a pod, in kube-scheduler's form, and the node that misses least."""
        if not pools.nodes:
            return "there are no nodes"
        reasons: Counter[str] = Counter()
        best: tuple[int, str, str] | None = None
        for node in pools.nodes.values():
            short = lacking(pod.asks, node.allocatable)
            wrong = [reason] if (reason := self.refusal(pod.wants, node)) else []
            wrong += [f"Insufficient {name}" for name in short if f"Insufficient {name}" not in wrong]
            if not wrong:
                return ""
            reasons[wrong[0]] += 1
            if best is None or len(wrong) < best[0]:
                detail = "; ".join(
                    f"it has {amount_in_words(name, room)} of {amount_in_words(name, pod.asks[name])}"
                    for name in short
                    for room in [node.allocatable.get(name, 0)]
                )
                best = (len(wrong), node.name, detail or wrong[0])
        told = ", ".join(f"{many} {reason}" for reason, many in reasons.most_common())
        assert best is not None
        return f"0/{len(pools.nodes)} nodes are available: {told}. Nearest: {best[1]} ({best[2]})."


def lacking(asks: Mapping[str, int], room: Mapping[str, int]) -> list[str]:
    """The resources of which there is not enough room."""
    return [name for name, many in asks.items() if many > room.get(name, 0)]


def amount_in_words(resource: str, many: int) -> str:
    """An amount for people."""
    if resource == CPU:
        return f"{many / 1000:g} cores"
    if resource == RAM:
        return f"{many / _GIB:.1f} GiB memory"
    return f"{many} {resource}"


def _named(
    groups: Mapping[tuple[_Card, tuple[bool, ...]], list[NodeFacts]], found: Mapping[_Card, GpuModel]
) -> tuple[dict[str, list[NodeFacts]], dict[str, GpuModel]]:
    """Groups under the names of their pools: the largest of a model has the plain name."""
    ranked = sorted(groups.items(), key=lambda each: (each[0][0], -len(each[1]), each[1][0].name))
    numbers: Counter[str] = Counter()
    members, models = {}, {}
    for (card, _), group in ranked:
        model = card[0]
        numbers[model] += 1
        name = model if numbers[model] == 1 else f"{model}@{numbers[model]}"
        members[name], models[name] = group, found[card]
    return members, models


def _record(node: NodeFacts, pool: str, held: Mapping[str, int], links: Mapping[str, Link]) -> Node:
    """Our record of a node: what its own pods (DaemonSets) leave of it."""
    cpus = max(0, node.allocatable.get(CPU, 0) - held.get(CPU, 0)) / 1000
    memory = max(0, node.allocatable.get(RAM, 0) - held.get(RAM, 0)) // _MIB / 1024
    gpus = min(node.gpus, MOST_GPUS_ON_A_SITE)
    return Node(node.name, cpus, memory, (Gpus(pool, gpus),) if gpus else (), links.get(node.name, PCIE_LINK))
