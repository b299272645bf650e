"""Speeds that were learnt, as a table: families that the memory found, how sure it is of them, and what that rests on.

They come from a history of jobs that says where each ran, or from one run with learned speeds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import guessed_family
from adlro.catalogue.speeds import bound_profiles, datasheet_speed
from adlro.core.errors import UsageError
from adlro.core.records import CPU_ONLY, Cluster, GpuModel, Placing
from adlro.core.tables import Floats, Masks
from adlro.experiment.instance import draw
from adlro.experiment.policies import policy as find_policy
from adlro.experiment.scenario import load_scenario
from adlro.experiment.traces import link_of, read_places
from adlro.experiment.unknown_speeds import LEARNED, learning_player, parts_of
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.predict.encoder import Words
from adlro.predict.following import units_of
from adlro.predict.job_parts import JobParts, job_vectors, words_of
from adlro.predict.speed_memory import SpeedMemory
from adlro.simulation.simulator import simulate

_ALIKE: Final = 0.25
"""Jobs whose log speeds differ by less than this (root mean square over the models) are one family."""

_MOST_FAMILIES: Final = 40
_LABEL_WORDS: Final = 3
_FOR_A_MEAN: Final = 32
"""The speeds of a family are the mean of its latest jobs, so many of them."""

_RUNTIMES_DIFFER: Final = 4.0
"""Variance of the logarithm of runtimes between jobs that are not alike: a history says how long, not how much work."""

_RUNS_DIFFER: Final = 0.25
"""Variance of the logarithm of runtimes of jobs alike."""

_TENTH: Final = 1.2816
_SHORTEST_S: Final = 10.0
"""Shorter jobs of a history failed or tested something."""


@dataclass(frozen=True, slots=True)
class LearnedSpeed:
    """A speed relative to the reference model of the table, with the interval that holds it in eight of ten cases."""

    value: float
    low: float
    high: float
    jobs: int  # of this family that ran there


@dataclass(frozen=True, slots=True)
class FoundFamily:
    """Jobs that run alike, as the memory found them: their commonest words, users, and speeds by model."""

    words: tuple[str, ...]
    users: tuple[str, ...]
    jobs: int
    speeds: dict[str, LearnedSpeed]


@dataclass(frozen=True, slots=True)
class LearnedTable:
    """The families found, the model that speeds are relative to, and what they rest on."""

    reference: str
    families: tuple[FoundFamily, ...]
    jobs: int  # that taught something
    skipped: int  # jobs on GPUs of which it is not known where they ran, or too short
    source: str


def learn_history(trace: str, cluster: str, options: TraceOptions) -> LearnedTable:
    """Learn speeds from jobs that ran on a cluster. Their runtimes are all that is known of their work."""
    where = load_cluster(cluster)
    jobs, ran_on = read_places(trace, replace(options, ran_on=options.ran_on or cluster))
    names = [name for name in where.models if name != CPU_ONLY]
    models = [where.models[name] for name in names]
    table, units = jobs.table, units_of(jobs.table)
    seconds = jobs.work / units
    model_of = np.array([names.index(name) if name in names else -1 for name in ran_on])
    usable = np.flatnonzero((table["gpus"] > 0) & (model_of >= 0) & (seconds >= _SHORTEST_S))
    if not len(usable):
        raise UsageError(
            f"'{trace}' has no job of which it is known on which GPUs of {where.name} it ran; expected GPU types "
            "(gres/gpu:t4) or node names of the cluster, or --ran-on."
        )
    parts = parts_of(jobs)
    vectors = job_vectors([parts[j] for j in usable])
    memory = SpeedMemory(models, _bounds(models), any_gpu=_RUNTIMES_DIFFER, noise=_RUNS_DIFFER)
    usual = float(np.log(seconds[usable]).mean())
    prior = np.log([[max(_datasheet(where, parts[j], model), 1e-3) for model in models] for j in usable])
    for row in np.argsort((table["submit"] + seconds)[usable], kind="stable").tolist():
        j = int(usable[row])
        m = int(model_of[j])
        memory.learn(vectors[row], m, usual - math.log(seconds[j]) - prior[row, m], j)
    seen = [(int(j), int(model_of[j])) for j in usable]
    found = find_families(memory, parts, dict(zip(usable.tolist(), vectors, strict=True)), prior, usable, seen, names)
    skipped = int(np.count_nonzero(table["gpus"] > 0)) - len(usable)
    return LearnedTable(names[0], found, len(usable), skipped, trace)


def learn_run(cluster: str, workload: str, policy: str, seed: int, jobs: int | None) -> LearnedTable:
    """Play one run with learned speeds, and show what the memory has found at its end."""
    scenario = load_scenario(cluster, workload, jobs, speeds=LEARNED)
    instance = draw(scenario, seed)
    believed, plan = instance.believed, scenario.plan
    assert believed is not None
    player = learning_player(believed, plan, None)
    view = believed.view._replace(rate=believed.view.rate.copy(), fastest=believed.view.fastest.copy())
    simulate(
        view, instance.jobs.work, find_policy(policy), scenario.settings, instance.disturbances, seed, player,
        rate=believed.rate,
    )  # fmt: skip
    names = [name for name in plan.models if name != CPU_ONLY]
    form_of = {form.model: h for h, form in reversed(list(enumerate(plan.form_records)))}
    units = units_of(believed.signed.table)
    prior = np.log(np.maximum(believed.view.rate[:, [form_of[name] for name in names]] / units[:, None], 1e-9))
    seen = player.taught()
    rows = np.array(sorted({j for j, _ in seen}), np.int64)
    parts = parts_of(believed.signed)
    vectors = dict(zip(rows.tolist(), job_vectors([parts[j] for j in rows]), strict=True))
    found = find_families(player.memory, parts, vectors, prior[rows], rows, seen, names)
    return LearnedTable(names[0], found, len(rows), 0, f"{workload} on {cluster}, {policy}, seed {seed}")


def find_families(
    memory: SpeedMemory,
    parts: Sequence[JobParts],
    vectors: Mapping[int, Words],
    prior: Floats,
    rows: Masks,
    seen: Sequence[tuple[int, int]],
    names: Sequence[str],
) -> tuple[FoundFamily, ...]:
    """Jobs that are believed to run alike, largest family first. `seen` are the (job, model) pairs that taught."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, j in enumerate(rows.tolist()):
        groups.setdefault(_stem(parts[j]), []).append(place)
    centres: list[Floats] = []
    members: list[list[int]] = []
    for places in sorted(groups.values(), key=len, reverse=True):
        mean, _ = memory.profile(_some(vectors, rows, places))
        profile = mean + prior[places[-1]]
        profile = profile - profile.mean()
        near = [float(np.sqrt(np.mean((profile - centre) ** 2))) for centre in centres]
        if near and min(near) < _ALIKE:
            members[int(np.argmin(near))] += places
        else:
            centres.append(profile)
            members.append(list(places))
    commonness = Counter(word for j in rows.tolist() for word in words_of(parts[j].name))
    ran: dict[int, list[int]] = {}
    for j, model in seen:
        ran.setdefault(j, []).append(model)
    found = [_family(memory, parts, vectors, prior, rows, each, commonness, ran, names) for each in members]
    return tuple(sorted(found, key=lambda family: -family.jobs)[:_MOST_FAMILIES])


def _family(
    memory: SpeedMemory,
    parts: Sequence[JobParts],
    vectors: Mapping[int, Words],
    prior: Floats,
    rows: Masks,
    places: Sequence[int],
    commonness: Counter[str],
    ran: dict[int, list[int]],
    names: Sequence[str],
) -> FoundFamily:
    """One family in words and numbers; its speeds are the mean of its latest jobs."""
    mine = [int(rows[place]) for place in places]
    words = Counter(word for j in mine for word in words_of(parts[j].name) if not word.isdigit())
    label = sorted(words, key=lambda word: (-(words[word] ** 2) / commonness[word], word))[:_LABEL_WORDS]
    users = [user for user, _ in Counter(parts[j].user for j in mine).most_common()]
    last = places[-1]
    mean, covariance = memory.profile(_some(vectors, rows, places))
    there = Counter(model for j in mine for model in ran.get(j, ()))
    speeds = {}
    for m, name in enumerate(names):
        log = float(mean[m] - mean[0] + prior[last, m] - prior[last, 0])
        spread = math.sqrt(max(0.0, float(covariance[m, m] + covariance[0, 0] - 2 * covariance[m, 0])))
        low, high = math.exp(log - _TENTH * spread), math.exp(log + _TENTH * spread)
        speeds[name] = LearnedSpeed(math.exp(log), low, high, there[m])
    return FoundFamily(tuple(label), tuple(users), len(mine), speeds)


def _some(vectors: Mapping[int, Words], rows: Masks, places: Sequence[int]) -> Words:
    """The vectors of the latest of these jobs."""
    return np.array([vectors[int(rows[place])] for place in sorted(places)[-_FOR_A_MEAN:]])


def _stem(parts: JobParts) -> tuple[str, ...]:
    """What jobs of one user that recur have in common: user, GPUs, and the words of the name without numbers."""
    return (parts.user, str(parts.gpus), *(word for word in words_of(parts.name) if not word.isdigit()))


def _bounds(models: Sequence[GpuModel]) -> Floats:
    return np.array(bound_profiles(models, guessed_family("")))


def _datasheet(cluster: Cluster, parts: JobParts, model: GpuModel) -> float:
    """The prior for a job on a model, on one node."""
    return datasheet_speed(
        guessed_family(parts.name), Placing(model, max(1, parts.gpus), 1, link_of(model), cluster.network)
    ).value
