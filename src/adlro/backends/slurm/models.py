"""On which GPU models a Slurm job may run, and which of its requests we cannot place."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from adlro.backends.slurm.comments import ASKED_FOR
from adlro.backends.slurm.nodes import NamedNode, Naming, Reserved
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.backends.slurm.places import whole_in
from adlro.core.records import CPU_ONLY
from adlro.ingest.host_lists import gpus_in, hosts_in

PATIENCE_S: Final = 35.0
"""A job that has not begun in its place for this long has lost it. By then Slurm has looked for backfill too
(bf_interval is 30 s by default)."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a job requests of nodes. Many jobs have the same request, so it is answered once."""

    partition: str
    excluded: str
    features: str
    types: frozenset[str]
    bound: str  # the model that it cannot leave
    has_gpus: bool
    nodes: int
    each: int  # GPUs on each of its nodes, if it must have so many
    on_one: int  # GPUs that must be on one node
    reserved: frozenset[str]  # nodes that are reserved before it would end


@dataclass(frozen=True, slots=True)
class AllowedModels:
    """The models that a job may get (none: all of them); else why we do not place it now.

    Not `is_for_good`: it only has to wait.
    """

    models: frozenset[str] = frozenset()
    problem: str = ""
    is_for_good: bool = True


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """One look at the cluster: what all its jobs share."""

    sites: Mapping[str, NamedNode]
    down: frozenset[str]
    reserved: Mapping[str, Reserved]
    naming: Naming
    now_s: float
    keeps_types: bool
    patience_s: float = PATIENCE_S
    notes: list[str] = field(default_factory=list)
    answers: dict[NodeRequest, AllowedModels] = field(default_factory=dict)


def is_in(job: SlurmJob, naming: Naming) -> bool:
    """Whether a job was submitted to one of our partitions."""
    return not naming.partitions or bool(naming.partitions & set(job.partition.split(",")))


def models_for(job: SlurmJob, words: Mapping[str, str], look: ClusterLook) -> AllowedModels:
    """The models that a waiting job may get, or why we do not place it."""
    if job.is_het:
        return AllowedModels(problem="it is part of a heterogeneous job")
    if job.reservation:
        return AllowedModels(problem=f"it asks for the reservation {job.reservation}")
    if not is_in(job, look.naming):
        return AllowedModels(problem=f"it is in partition {job.partition}, where ADLRO places no jobs")
    if job.required_nodes and "decision" not in words:
        return AllowedModels(problem=f"it names its nodes ({job.required_nodes})")
    if job.special:
        return AllowedModels(problem=job.special)
    each = whole_in(words.get(ASKED_FOR, "").partition(":")[0]) or sum(count for _, count in gpus_in(job.per_node))
    has_gpus = bool(job.gres) or whole_in(words.get("gpus", "0")) > 0
    if job.nodes > 1 and not has_gpus:
        return AllowedModels(problem=f"it asks for {job.nodes} nodes without GPUs")
    is_bound = "bound" in words  # its types are then those of the devices that we chose, and no wish of its own
    wish = NodeRequest(
        job.partition,
        job.excluded_nodes,
        job.features,
        frozenset() if is_bound else frozenset(word for word, _ in gpus_in(f"{job.per_node},{job.per_job}") if word),
        words["bound"] if is_bound and look.keeps_types else "",
        has_gpus,
        job.nodes,
        each if job.nodes > 1 and "decision" not in words else 0,
        max(each, whole_in(words.get("gpus", "0"))) if job.nodes == 1 and not gpus_in(job.per_job) else 0,
        _reserved_for(job, look),
    )
    if wish not in look.answers:
        look.answers[wish] = _models_of(wish, look)
    return look.answers[wish]


def _reserved_for(job: SlurmJob, look: ClusterLook) -> frozenset[str]:
    """The nodes that are not reserved now, but will be before the job would have to end."""
    end_s = math.inf if job.limit_s is None else look.now_s + job.limit_s
    return frozenset(name for name, kept in look.reserved.items() if not kept.is_active and kept.start_unix < end_s)


def _models_of(wish: NodeRequest, look: ClusterLook) -> AllowedModels:
    """The models that meet a wish (none: all of them), or what is wrong with it.

    We place by model; a job that may use some nodes of a model but not others has a wish for which we have no word.
    """
    partitions, excluded = set(wish.partition.split(",")), set(hosts_in(wish.excluded))
    able: dict[str, set[str]] = {}  # for each model, the nodes that it may use …
    every: dict[str, set[str]] = {}  # … and all that have it
    large = models_with(wish.on_one, look.sites)
    waits_for = ""
    for name, site in look.sites.items():
        if (has := _has_features(wish.features, site.node.features)) is None:
            return AllowedModels(problem=f"its constraint '{wish.features}' is more than a choice of features")
        fits = bool(has and partitions & set(site.node.partitions) and name not in excluded)
        for model, devices in site.devices.items() if wish.has_gpus else [(CPU_ONLY, None)]:
            every.setdefault(model, set()).add(name)
            if devices is not None and model not in large:
                continue  # it would have to be split over nodes, and asks for one
            if fits and wish.bound in ("", model) and (devices is None or wish.types <= set(devices.types)):
                if name in wish.reserved:
                    waits_for = waits_for or f"{name} is {look.reserved[name].in_words}, before it would end"
                else:
                    able.setdefault(model, set()).add(name)
    if not able:
        return AllowedModels(problem=waits_for or "no node can ever take it", is_for_good=not waits_for)
    if any(nodes != every[model] for model, nodes in able.items()):
        others = f": {waits_for}" if waits_for else ""
        return AllowedModels(problem=f"it may use some nodes and not others that are like them{others}")
    if wish.each:  # of several nodes we choose the fewest: it must want whole ones
        found = (site.devices.get(model) for site in look.sites.values() for model in able)
        if {len(devices.types) for devices in found if devices is not None} != {wish.each}:
            return AllowedModels(problem=f"it asks for {wish.nodes} nodes with {wish.each} GPUs on each")
    return AllowedModels(frozenset() if len(able) == len(every) else frozenset(able))


def models_with(gpus: int, sites: Mapping[str, NamedNode]) -> set[str]:
    """The models of which some node has this many GPUs. By the rules, a job that fits on one node waits for one."""
    return {model for site in sites.values() for model, devices in site.devices.items() if len(devices.types) >= gpus}


def _has_features(constraint: str, features: Sequence[str]) -> bool | None:
    """Whether a node's features meet a constraint of words with & , or |; None if the constraint is more complex."""
    if not constraint:
        return True
    if re.search(r"[()\[\]*]", constraint):
        return None
    return any(all(word in features for word in re.split(r"[&,]", part)) for part in constraint.split("|"))
