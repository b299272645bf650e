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
from adlro.catalogue.speeds import datasheet_speed
from adlro.core.errors import UsageError
from adlro.core.learned import LEARNED_SPEEDS, FoundFamily, JobSpeeds, LearnedSpeed, LearnedTable, PastSpeed
from adlro.core.records import CPU_ONLY, Cluster, GpuModel, Link, Placing
from adlro.core.tables import Floats, Masks
from adlro.experiment.instance import draw
from adlro.experiment.policies import policy as find_policy
from adlro.experiment.scenario import load_scenario
from adlro.experiment.traces import link_of, read_places
from adlro.experiment.unknown_speeds import job_parts_of, learning_player, memory_bounds
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.predict.encoder import Words, unpacked
from adlro.predict.following import units_of
from adlro.predict.job_parts import JobParts, job_vectors, name_words, same_parts
from adlro.predict.speed_memory import SpeedMemory
from adlro.simulation.simulator import simulate

_ALIKE: Final = 0.25
"""Jobs whose log speeds differ by less than this (root mean square over the models) are one family."""

_MOST_FAMILIES: Final = 40
_LABEL_WORDS: Final = 3
_REASONS: Final = 5
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
class _Taught:
    """A memory that has learnt a history, and what it learnt from."""

    memory: SpeedMemory
    cluster: Cluster
    names: list[str]  # of the models
    parts: list[JobParts]  # of all jobs of the history
    rows: Masks  # the jobs that taught something
    models: Masks  # where each of all jobs ran; NOBODY: not known
    vectors: Mapping[int, Words]
    prior: Floats  # [rows, M]
    on_gpus: int  # jobs of the history with GPUs


def learn_history(trace: str, cluster: str, options: TraceOptions) -> LearnedTable:
    """Learn speeds from jobs that ran on a cluster: the families found."""
    taught = _taught_by(trace, cluster, options)
    seen = [(int(j), int(taught.models[j])) for j in taught.rows]
    found = find_families(taught.memory, taught.parts, taught.vectors, taught.prior, taught.rows, seen, taught.names)
    return LearnedTable(taught.names[0], found, len(taught.rows), taught.on_gpus - len(taught.rows), trace)


def learn_for_job(trace: str, cluster: str, options: TraceOptions, job: JobParts) -> JobSpeeds:
    """What a history says about one job, and why."""
    taught = _taught_by(trace, cluster, options)
    vector = job_vectors([job])[0]
    mean, covariance = taught.memory.profile(vector[None, :])
    prior = np.log([max(_datasheet(taught.cluster, job, taught.cluster.models[name]), 1e-3) for name in taught.names])
    there = Counter(taught.models[taught.rows].tolist())
    speeds = {name: speed_against(m, 0, mean + prior, covariance, there[m]) for m, name in enumerate(taught.names)}
    because = []
    for number, share, alike in taught.memory.shares(vector, 0)[:_REASONS]:
        past, where = taught.parts[number], taught.names[int(taught.models[number])]
        common = tuple(f"{role} {value}" for role, value, _ in same_parts(job, unpacked(taught.vectors[number])))
        because.append(PastSpeed(past.user, past.name, where, share, alike, common))
    return JobSpeeds(taught.names[0], speeds, tuple(because))


def speed_against(m: int, reference: int, logs: Floats, covariance: Floats, jobs: int) -> LearnedSpeed:
    """The speed on a model against that on the reference, with its interval."""
    log = float(logs[m] - logs[reference])
    both = float(covariance[m, m] + covariance[reference, reference] - 2 * covariance[m, reference])
    spread = _TENTH * math.sqrt(max(0.0, both))
    return LearnedSpeed(math.exp(log), math.exp(log - spread), math.exp(log + spread), jobs)


def _taught_by(trace: str, cluster: str, options: TraceOptions) -> _Taught:
    """A memory that has learnt a history. Runtimes are all that is known of the work of its jobs."""
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
    parts = job_parts_of(jobs)
    vectors = job_vectors([parts[j] for j in usable])
    memory = SpeedMemory(models, memory_bounds(models), any_gpu=_RUNTIMES_DIFFER, noise=_RUNS_DIFFER)
    usual = float(np.log(seconds[usable]).mean())
    prior = np.log([[max(_datasheet(where, parts[j], model), 1e-3) for model in models] for j in usable])
    for row in np.argsort((table["submit"] + seconds)[usable], kind="stable").tolist():
        j = int(usable[row])
        m = int(model_of[j])
        memory.learn(vectors[row], m, usual - math.log(seconds[j]) - prior[row, m], j)
    by_job = dict(zip(usable.tolist(), vectors, strict=True))
    on_gpus = int(np.count_nonzero(table["gpus"] > 0))
    return _Taught(memory, where, names, parts, usable, model_of, by_job, prior, on_gpus)


def learn_run(cluster: str, workload: str, policy: str, seed: int, jobs: int | None) -> LearnedTable:
    """Play one run with learned speeds, and show what the memory has found at its end."""
    scenario = load_scenario(cluster, workload, jobs, speeds=LEARNED_SPEEDS)
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
    parts = job_parts_of(believed.signed)
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
        profile = _believed(memory, vectors, prior, rows, places)[0]
        profile = profile - profile.mean()
        near = [float(np.sqrt(np.mean((profile - centre) ** 2))) for centre in centres]
        if near and min(near) < _ALIKE:
            members[int(np.argmin(near))] += places
        else:
            centres.append(profile)
            members.append(list(places))
    commonness = Counter(word for j in rows.tolist() for word in name_words(parts[j].name))
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
    words = Counter(word for j in mine for word in name_words(parts[j].name) if not word.isdigit())
    label = sorted(words, key=lambda word: (-(words[word] ** 2) / commonness[word], word))[:_LABEL_WORDS]
    users = [user for user, _ in Counter(parts[j].user for j in mine).most_common()]
    logs, covariance = _believed(memory, vectors, prior, rows, places)
    there = Counter(model for j in mine for model in ran.get(j, ()))
    speeds = {name: speed_against(m, 0, logs, covariance, there[m]) for m, name in enumerate(names)}
    return FoundFamily(tuple(label), tuple(users), len(mine), speeds)


def _believed(
    memory: SpeedMemory, vectors: Mapping[int, Words], prior: Floats, rows: Masks, places: Sequence[int]
) -> tuple[Floats, Floats]:
    """The mean log speed of the latest of these jobs on each model, and its covariance.

    What the memory knows is against the prior of each job, and jobs of one family may have different priors.
    """
    latest = sorted(places)[-_FOR_A_MEAN:]
    mean, covariance = memory.profile(np.array([vectors[int(rows[place])] for place in latest]))
    return mean + prior[latest].mean(axis=0), covariance


def _stem(parts: JobParts) -> tuple[str, ...]:
    """What jobs of one user that recur have in common: user, GPUs, and the words of the name without numbers."""
    return (parts.user, str(parts.gpus), *(word for word in name_words(parts.name) if not word.isdigit()))


def datasheet_alone(family: str, gpus: int, model: GpuModel, network: Link) -> float:
    """The speed of a family by the datasheet of a model, on one node."""
    return datasheet_speed(family, Placing(model, max(1, gpus), 1, link_of(model), network)).value


def _datasheet(cluster: Cluster, parts: JobParts, model: GpuModel) -> float:
    """The prior for a job on a model."""
    return datasheet_alone(guessed_family(parts.name), parts.gpus, model, cluster.network)
