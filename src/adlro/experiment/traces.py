"""Traces with the families and speeds of the catalogue: which family each job gets, and the one way to read a trace."""

import csv
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

from adlro.catalogue.clusters import cluster_names, load_cluster
from adlro.catalogue.families import REFERENCE, families
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.catalogue.speeds import family_named, is_alike_everywhere, speed_of
from adlro.catalogue.workloads import SUFFIX
from adlro.core.errors import CatalogueError, ConfigError, TraceError, UsageError
from adlro.core.records import Cluster, GpuModel, Link, Placing, SpeedOf
from adlro.core.tables import Jobs
from adlro.core.toml import checked, nearest, read_text
from adlro.ingest.host_lists import INDEX_TYPE
from adlro.ingest.telemetry.names import model_of
from adlro.ingest.traces import catalogue as traces
from adlro.ingest.traces.column_map import ColumnMap, read_column_map
from adlro.ingest.traces.family_map import read_family_map
from adlro.ingest.traces.job_lists import MeasuredFamilies
from adlro.ingest.traces.ran_on import KnownPlaces, RanOnGpus, RanOnMap, node_rule, on_the_reference, place_jobs
from adlro.ingest.traces.tabulate import FamilyRule, TraceOptions, TraceReport
from adlro.normalise.pack import with_model_names


def read_trace(trace: str | Any, options: TraceOptions, speed: SpeedOf = speed_of) -> tuple[Jobs, TraceReport]:
    """The jobs of a trace (a path, or a DataFrame) in submit order, all of known families, and the report on it."""
    _recorded, jobs, report = read_history(trace, options, speed)
    return jobs, report


def read_history(trace: str | Any, options: TraceOptions, speed: SpeedOf = speed_of) -> tuple[Jobs, Jobs, TraceReport]:
    """The jobs of a trace twice, and the report: with times as recorded, and with work for the reference model."""
    rule = family_rule(options.families or "uniform", speed)
    places = places_of_trace(options.ran_on)
    known = replace(places, is_same_everywhere=lambda family: is_alike_everywhere(family, speed))
    columns = None if options.columns is None else columns_in(options.columns)
    found = traces.read_any_trace(trace, options, rule, MeasuredFamilies(known_family, reference_rate), columns)
    for name in found.jobs.families:
        try:
            family_named(name, speed)
        except CatalogueError as error:
            where = trace if isinstance(trace, str) else found.report.file
            raise TraceError(f"'{where}': {error}") from None
    recorded = named_as_told(found.jobs, places.types)
    jobs, report = on_the_reference(recorded, found.report, found.ran, known, speed)
    return recorded, jobs, report


def read_places(trace: str | Any, options: TraceOptions) -> tuple[Jobs, list[str]]:
    """The jobs of a trace with times as recorded, and the GPU model that each ran on; empty if it is not known."""
    rule = family_rule(options.families or "uniform")
    columns = None if options.columns is None else columns_in(options.columns)
    found = traces.read_any_trace(trace, options, rule, MeasuredFamilies(known_family, reference_rate), columns)
    placed = place_jobs(found.jobs, found.ran, places_of_trace(options.ran_on))
    single = [where[0].model.name if len(where) == 1 else "" for where in placed.wheres]
    return found.jobs, [single[code] for code in placed.codes.tolist()]


def columns_in(path: str) -> ColumnMap:
    """The map behind --columns."""
    return read_column_map(read_text(path, "map of columns"), path)


# ---- where jobs ran ----------------------------------------------------------------------------------------------


def places_of_trace(ran_on: str | None) -> KnownPlaces:
    """Where jobs ran, by what --ran-on says: a GPU model, a cluster, or a map of GPU types and nodes."""
    if ran_on is None:
        return known_places()
    if ran_on in cluster_names():
        return places_in(load_cluster(ran_on))
    if not ran_on.endswith(SUFFIX):
        try:
            return known_places(default=find_gpu(ran_on))
        except CatalogueError:
            words = [*cluster_names(), *gpu_models()]
            raise UsageError(
                f"--ran-on is {ran_on!r}, which is no GPU model and no cluster.{nearest(ran_on, words)} Expected a "
                f"model of 'adlro gpus', a cluster of 'adlro clusters', or a file that ends in {SUFFIX}."
            ) from None
    text = read_text(ran_on, "file of --ran-on")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{ran_on}: this is not TOML: {error}.") from None
    if isinstance(values.get("nodes"), list):  # [[nodes]] of a cluster file, not [nodes] of a map
        return places_in(load_cluster(ran_on))
    found = checked(values, ran_on, RanOnMap)

    def model(key: str, name: str) -> GpuModel:
        try:
            return find_gpu(name)
        except CatalogueError as error:
            raise ConfigError(f"{ran_on}: '{key}': {error}") from None

    return known_places(
        types={word.lower(): model(f"types.{word}", name) for word, name in found.types.items()},
        node_of=node_rule({word: model(f"nodes.{word}", name) for word, name in found.nodes.items()}, link_of),
        default=None if found.default is None else model("default", found.default),
    )


def places_in(cluster: Cluster) -> KnownPlaces:
    """Where jobs ran, if they ran on this cluster: its nodes are known by their names."""
    there = {
        node.name: RanOnGpus(cluster.models[node.gpus[0].model], node.link)
        for node in cluster.nodes
        if len(node.gpus) == 1  # of several models nobody knows which one it was
    }
    return known_places(node_of=there.get, own=cluster.models, network=cluster.network)


def known_places(
    types: Mapping[str, GpuModel] | None = None,
    node_of: Callable[[str], RanOnGpus | None] = lambda _name: None,
    default: GpuModel | None = None,
    own: Mapping[str, GpuModel] | None = None,
    network: Link = Link("ethernet-100g", 25.0),  # noqa: B008  (frozen)
) -> KnownPlaces:
    """Where jobs ran, with the GPU models of the catalogue for the words of a trace that are not in `types`."""

    def type_of(word: str) -> GpuModel | None:
        for each in dict.fromkeys((word, INDEX_TYPE.sub("", word))):
            if model := (types or {}).get(each.lower()) or model_of(each, lambda name: find_gpu(name, own or {})):
                return model
        return None

    return KnownPlaces(type_of, node_of, link_of, network, is_alike_everywhere, default, types or {})


def named_as_told(jobs: Jobs, types: Mapping[str, GpuModel]) -> Jobs:
    """The same jobs with the models that the user names for the trace's words for GPUs, where they allow only some."""
    names = {}
    for word in frozenset().union(*jobs.allowed):
        for each in (INDEX_TYPE.sub("", word), word):
            if model := types.get(each.lower()):
                names[word] = model.name
    return with_model_names(jobs, names) if names else jobs


def link_of(model: GpuModel) -> Link:
    """What joins GPUs of this model on a node of which nothing else is known: its own link, or PCIe."""
    if model.link_type and model.link_gb_s:
        return Link(model.link_type, model.link_gb_s)
    return Link("pcie", model.pcie_gb_s)


# ---- families ----------------------------------------------------------------------------------------------------


def family_rule(text: str, speed: SpeedOf = speed_of) -> FamilyRule:
    """The rule behind --families: a family for all jobs, hash:GROUP for measured ones, or what a column says."""
    how, colon, rest = text.partition(":")
    if text.endswith(SUFFIX):
        return mapped_families(text, speed)
    if how == "column" and rest:
        hint = f"Say which families they are in a map: --families FILE{SUFFIX}."
        return FamilyRule(f"as in column '{rest}'", ("uniform",), rest, lambda word: known_family(word, speed), hint)
    if how != "hash" and not colon:
        return FamilyRule(text, (family_named(text, speed),))
    names = tuple(name for name in families() if name.startswith(f"{rest}/") and runs_alone(name))
    if how != "hash" or not names or not rest:
        raise UsageError(
            f"--families is {text!r}; expected uniform, hash:sia, hash:gavel, the name of a family, column:NAME, "
            f"or a map that ends in {SUFFIX}."
        )
    return FamilyRule(text, names)


def mapped_families(path: str, speed: SpeedOf = speed_of) -> FamilyRule:
    """The rule of a file that maps the values of a column to families."""

    def known(key: str, name: str) -> str:
        try:
            return family_named(name, speed)
        except CatalogueError as error:
            raise ConfigError(f"{path}: '{key}': {error}") from None

    found = read_family_map(read_text(path, "map of families"), path, known)
    hint = f"Add what is missing to [map] in {path}, or a default."
    return FamilyRule(found.told(), ("uniform",), found.column, found.family_of, hint)


def runs_alone(family: str) -> bool:
    """Whether one GPU of the reference model can run the family: a trace has jobs of every size."""
    link = Link("nvlink", 300.0)
    return speed_of(family, Placing(gpu_models()[REFERENCE], 1, 1, link, link)).value > 0


def known_family(word: str, speed: SpeedOf = speed_of) -> str | None:
    """Our name for a family, of a job list for example; None if there is no such family."""
    try:
        return family_named(word, speed)
    except CatalogueError:
        return None


def reference_rate(family: str) -> float | None:
    """Steps per second on one GPU of the reference model, as measured by Gavel."""
    text = resources.files("adlro.catalogue").joinpath("throughputs", "gavel.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        if (row["family"], row["gpu"], row["gpus"], row["across"]) == (family, REFERENCE, "1", "0"):
            return float(row["per_second"])
    return None
