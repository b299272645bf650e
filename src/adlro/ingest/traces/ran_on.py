"""On which GPU models the jobs of a trace ran: by what it calls their GPUs, by their nodes, or as the user says.

A job's work is its time multiplied by the speed of its family where it ran. Only then does a job that took an hour on a
T4 take an hour when it is replayed on a T4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import numpy as np
from pydantic import Field

from adlro.core.records import GpuModel, Link, Placing, SpeedOf
from adlro.core.tables import Floats, Jobs
from adlro.core.toml import Schema
from adlro.ingest.host_lists import hosts_in
from adlro.ingest.traces.rows import CodeColumn
from adlro.ingest.traces.tabulate import RanOn, TraceReport

AS_IN_THE_TRACE: Final = "as in the trace"
_MOST_NAMED: Final = 3


class RanOnMap(Schema):
    """The file behind `--ran-on FILE.toml`: GPU models by the trace's words for GPUs, and by nodes."""

    default: str | None = None
    types: dict[str, str] = Field({})
    nodes: dict[str, str] = Field({})


@dataclass(frozen=True, slots=True)
class RanOnGpus:
    """The GPUs that a job ran on: their model, and what joined them."""

    model: GpuModel
    link: Link


@dataclass(frozen=True, slots=True)
class KnownPlaces:
    """What is known about where jobs ran. Who composes the stages fills it."""

    type_of: Callable[[str], GpuModel | None]  # by the trace's word for a GPU
    node_of: Callable[[str], RanOnGpus | None]  # by the name of a node
    link_of: Callable[[GpuModel], Link]  # where nothing but the model is known
    network: Link
    is_same_everywhere: Callable[[str], bool]  # whether a family has the same speed on every GPU
    default: GpuModel | None = None
    types: Mapping[str, GpuModel] = field(default_factory=dict)  # what the user says, by the word in lower case


@dataclass(frozen=True, slots=True)
class Placed:
    """For each job the number of what it ran on; 0: not known. A gang may have run on several."""

    codes: CodeColumn  # [J]
    wheres: tuple[tuple[RanOnGpus, ...], ...]
    unknown: Mapping[str, int] = field(default_factory=dict)  # words for GPUs that are no model, with their jobs
    unnamed: int = 0  # GPU jobs with nodes of which nobody says what GPUs they have


def on_the_reference(
    jobs: Jobs, report: TraceReport, ran: RanOn, places: KnownPlaces, speed: SpeedOf
) -> tuple[Jobs, TraceReport]:
    """The jobs with their work in GPU-seconds of the reference model, and a report that says where they ran."""
    placed = place_jobs(jobs, ran, places)
    if not placed.codes.any():
        return jobs, replace(report, warnings=(*report.warnings, *place_warnings(jobs, placed, places)))
    factor = recorded_speeds(jobs, ran, placed, places, speed)
    none = int(np.count_nonzero(factor == 0))
    factor = np.where(factor > 0, factor, 1.0)
    told = f"{in_words(jobs, placed)}; a job's work is its time × the speed of its family there"
    said = [*report.warnings, *place_warnings(jobs, placed, places)]
    if none:
        said.append(f"{none:,} jobs ran on GPUs on which their family has no speed: their times are left as they are")
    report = replace(report, ran_on=told, warnings=tuple(said))
    if (factor == 1.0).all():
        return jobs, report
    table = jobs.table.copy()
    if report.estimates != AS_IN_THE_TRACE:  # requested times, which were meant for the same GPUs
        table["estimate"] *= factor
    return replace(jobs, table=table, work=jobs.work * factor), report


def place_jobs(jobs: Jobs, ran: RanOn, places: KnownPlaces) -> Placed:
    """Where each GPU job ran: its GPUs' type decides, then its nodes, then what the user says of all jobs."""
    wheres: dict[tuple[RanOnGpus, ...], int] = {(): 0}
    on_gpus = np.asarray(jobs.table["gpus"] > 0)
    codes = np.zeros(len(jobs), np.int64)
    unknown: dict[str, int] = {}
    default = () if places.default is None else (RanOnGpus(places.default, places.link_of(places.default)),)
    type_codes = np.zeros(len(jobs), np.int64) if ran.types is None else ran.types.codes
    node_codes = np.zeros(len(jobs), np.int64) if ran.places is None else ran.places.codes
    types: Sequence[str] = ("",) if ran.types is None else ran.types.texts
    lists: Sequence[str] = ("",) if ran.places is None else ran.places.texts
    node_of = cache(places.node_of)
    by_list = [tuple(dict.fromkeys(map(node_of, hosts_in(text)))) if text else () for text in lists]
    pairs, which = np.unique(type_codes * len(lists) + node_codes, return_inverse=True)
    counts = np.bincount(which[on_gpus], minlength=len(pairs))
    unnamed = 0
    numbers = np.zeros(len(pairs), np.int64)
    for number, pair in enumerate(pairs.tolist()):
        words = [word for word in types[pair // len(lists)].split("|") if word]
        nodes = by_list[pair % len(lists)]
        models = [places.type_of(word) for word in words]
        known = tuple(where for where in nodes if where is not None)
        whole = known if known and len(known) == len(nodes) else ()
        if models and None not in models:
            links = {where.model.name: where.link for where in known}
            each = (model for model in models if model is not None)
            found = tuple(
                dict.fromkeys(RanOnGpus(model, links.get(model.name) or places.link_of(model)) for model in each)
            )
        else:
            found = whole or default
            for word, model in zip(words, models, strict=True):
                if model is None and not found:
                    unknown[word] = unknown.get(word, 0) + int(counts[number])
            unnamed += int(counts[number]) if nodes and not words and not found else 0
        numbers[number] = wheres.setdefault(found, len(wheres))
    codes[on_gpus] = numbers[which[on_gpus]]
    return Placed(codes, tuple(wheres), {word: jobs for word, jobs in unknown.items() if jobs}, unnamed)


def recorded_speeds(jobs: Jobs, ran: RanOn, placed: Placed, places: KnownPlaces, speed: SpeedOf) -> Floats:
    """How fast each job ran where it ran, for each of its GPUs; 1 where that is not known, 0 if it cannot run there.

    The slowest of its GPUs counts.
    """
    table = jobs.table
    gpus = table["gpus"].astype(np.int64)
    nodes = np.ones(len(jobs)) if ran.nodes is None else np.nan_to_num(ran.nodes, nan=1.0)
    nodes = np.clip(nodes, 1, np.maximum(gpus, 1)).astype(np.int64)
    columns = np.stack([placed.codes, table["family"].astype(np.int64), gpus, nodes])
    kinds, which = np.unique(columns, axis=1, return_inverse=True)
    found = np.ones(kinds.shape[1])
    for number, (code, family, count, over) in enumerate(kinds.T.tolist()):
        found[number] = min(
            (
                speed(jobs.families[family], Placing(where.model, count, over, where.link, places.network)).value
                for where in placed.wheres[code]
            ),
            default=1.0,
        )
    return found[which.reshape(-1)]


def in_words(jobs: Jobs, placed: Placed) -> str:
    """How many jobs ran on which models."""
    counts = np.bincount(placed.codes, minlength=len(placed.wheres))
    total = int(np.count_nonzero(jobs.table["gpus"] > 0))
    by_model: dict[str, int] = {}
    for where, count in zip(placed.wheres[1:], counts[1:].tolist(), strict=True):
        name = " and ".join(dict.fromkeys(one.model.name for one in where))
        by_model[name] = by_model.get(name, 0) + count
    ranked = sorted(by_model.items(), key=lambda pair: -pair[1])
    return f"{int(counts[1:].sum()):,} of {total:,} GPU jobs on {', '.join(f'{m} ({n:,})' for m, n in ranked)}"


def place_warnings(jobs: Jobs, placed: Placed, places: KnownPlaces) -> list[str]:
    """What could be known about where jobs ran and is not, if it would matter."""
    if all(map(places.is_same_everywhere, jobs.families)):
        return []
    ranked = sorted(placed.unknown.items(), key=lambda pair: -pair[1])
    shown = ", ".join(f"'{word}' ({count:,} jobs)" for word, count in ranked[:_MOST_NAMED])
    more = f" and {len(ranked) - _MOST_NAMED} others" if len(ranked) > _MOST_NAMED else ""
    lines = []
    if ranked:
        lines.append(
            f"GPU types {shown}{more} are no models of the catalogue: these times count as if the jobs had run on the "
            "reference model. Say which models they are: --ran-on FILE.toml, [types]"
        )
    if placed.unnamed:
        lines.append(
            f"{placed.unnamed:,} jobs name their nodes, but not their GPUs: these times count as if the jobs had run "
            "on the reference model. Say which GPUs the nodes have: --ran-on with a cluster, or a file with [nodes]"
        )
    return lines


def node_rule(nodes: Mapping[str, GpuModel], link_of: Callable[[GpuModel], Link]) -> Callable[[str], RanOnGpus | None]:
    """The GPUs of a node by a map: its own name, a list as in gpu[01-08], or a pattern with *."""
    exact = {name: model for text, model in nodes.items() if "*" not in text for name in hosts_in(text)}
    patterns = [(text, model) for text, model in nodes.items() if "*" in text]

    def where(name: str) -> RanOnGpus | None:
        model = exact.get(name) or next((model for text, model in patterns if fnmatchcase(name, text)), None)
        return None if model is None else RanOnGpus(model, link_of(model))

    return where
