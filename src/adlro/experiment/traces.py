"""Traces with the families and speeds of the catalogue: which family each job gets, and the one way to read a trace."""

import csv
from importlib import resources
from pathlib import Path
from typing import Any

from adlro.catalogue.families import REFERENCE, families, find_family
from adlro.catalogue.gpus import gpu_models
from adlro.catalogue.speeds import speed_of
from adlro.catalogue.workloads import SUFFIX
from adlro.core.errors import CatalogueError, ConfigError, TraceError, UsageError
from adlro.core.records import Link, Placing
from adlro.core.tables import Jobs
from adlro.ingest.traces import catalogue as traces
from adlro.ingest.traces.family_map import read_family_map
from adlro.ingest.traces.job_lists import MeasuredFamilies
from adlro.ingest.traces.tabulate import FamilyRule, TraceOptions, TraceReport


def read_trace(trace: str | Any, options: TraceOptions) -> tuple[Jobs, TraceReport]:
    """The jobs of a trace (a path, or a DataFrame) in submit order, all of known families, and the report on it."""
    rule = family_rule(options.families or "uniform")
    jobs, report = traces.read_any_trace(trace, options, rule, MeasuredFamilies(measured_family, reference_rate))
    for name in jobs.families:
        try:
            find_family(name)
        except CatalogueError as error:
            where = trace if isinstance(trace, str) else report.file
            raise TraceError(f"'{where}': {error}") from None
    return jobs, report


def family_rule(text: str) -> FamilyRule:
    """The rule behind --families: a family for all jobs, hash:GROUP for measured ones, or what a column says."""
    how, colon, rest = text.partition(":")
    if text.endswith(SUFFIX):
        return mapped_families(text)
    if how == "column" and rest:
        hint = f"Say which families they are in a map: --families FILE{SUFFIX}."
        return FamilyRule(f"as in column '{rest}'", ("uniform",), rest, measured_family, hint)
    if how != "hash" and not colon:
        return FamilyRule(text, (find_family(text).name,))
    names = tuple(name for name in families() if name.startswith(f"{rest}/") and runs_alone(name))
    if how != "hash" or not names or not rest:
        raise UsageError(
            f"--families is {text!r}; expected uniform, hash:sia, hash:gavel, the name of a family, column:NAME, "
            f"or a map that ends in {SUFFIX}."
        )
    return FamilyRule(text, names)


def mapped_families(path: str) -> FamilyRule:
    """The rule of a file that maps the values of a column to families."""

    def known(key: str, name: str) -> str:
        try:
            return find_family(name).name
        except CatalogueError as error:
            raise ConfigError(f"{path}: '{key}': {error}") from None

    found = read_family_map(read_text(path, "map of families"), path, known)
    hint = f"Add what is missing to [map] in {path}, or a default."
    return FamilyRule(found.told(), ("uniform",), found.column, found.family_of, hint)


def runs_alone(family: str) -> bool:
    """Whether one GPU of the reference model can run it: a trace has jobs of every size."""
    link = Link("nvlink", 300.0)
    return speed_of(family, Placing(gpu_models()[REFERENCE], 1, 1, link, link)).value > 0


def measured_family(original: str) -> str | None:
    """Our name for a family of a job list, if it was measured."""
    try:
        return find_family(original).name
    except CatalogueError:
        return None


def reference_rate(family: str) -> float | None:
    """Steps per second on one GPU of the reference model, as measured by Gavel."""
    text = resources.files("adlro.catalogue").joinpath("throughputs", "gavel.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        if (row["family"], row["gpu"], row["gpus"], row["across"]) == (family, REFERENCE, "1", "0"):
            return float(row["per_second"])
    return None


def read_text(path: str, what: str) -> str:
    """The text of a user's file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise CatalogueError(f"cannot read the {what} '{path}': {reason}.") from None
