"""Runtime prediction for users: methods by name, their evaluation on a trace, and the prediction of one job."""

import importlib.util
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic import Field

from adlro.core.errors import ConfigError, UsageError
from adlro.core.records import Job
from adlro.core.tables import Floats, Jobs, Table, records
from adlro.core.toml import Schema, model_field, model_with, nearest, parse_toml
from adlro.predict.baselines import LastTwo, LightGbm, Limit, RunningMedian
from adlro.predict.encoder import unbinding_accuracy
from adlro.predict.following import (
    AMOUNTS,
    P10,
    P50,
    P90,
    SHORTEST_S,
    TRAIT,
    Predictor,
    as_they_came,
    seconds_of,
    trait_of,
    traits_of,
)
from adlro.predict.habits import Habits
from adlro.predict.memory import Memory

DEFAULT: Final = "habits"
LIKE: Final = 5
REMEMBERED: Final = 100_000
"""Number of jobs of a history that the memory keeps: the newest ones."""

_WARM_UP_JOBS: Final = 64
BUNDLED: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DIMENSIONS_TRIED: Final = (256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Method:
    """A prediction method; `make` returns a predictor that has learnt nothing."""

    name: str
    summary: str
    make: Callable[[], Predictor]
    package: str = ""  # the package that must be installed for it


METHODS: Final = (
    Method("habits", "what like jobs ran lately, by user, name, size and limit, weighted by past errors", Habits.new),
    Method("memory", "the most similar of the last 100,000 finished jobs, as hypervectors", Memory.new),
    Method("limit", "what the user requested (600 s where nothing was)", Limit),
    Method("last-two", "mean of the user's last two jobs", LastTwo),
    Method("running-median", "median of all the user's jobs", RunningMedian),
    Method("lightgbm", "gradient-boosted trees on the same fields, trained anew each day", LightGbm, "lightgbm"),
)


def find_method(name: str) -> Method:
    """The method with this name."""
    for method in METHODS:
        if method.name == name:
            if not available(method):
                raise UsageError(
                    f"--method {name} needs the package {method.package}, which is not installed. "
                    f"Install it with pip install {method.package}, or choose another method."
                )
            return method
    names = [method.name for method in METHODS]
    raise UsageError(f"there is no method '{name}'.{nearest(name, names)} The methods are {', '.join(names)}.")


def available(method: Method) -> bool:
    """Whether the packages that a method needs are installed."""
    return not method.package or importlib.util.find_spec(method.package) is not None


# ---- on a trace ----------------------------------------------------------------------------------------------------


def evaluate(
    jobs: Jobs, methods: Sequence[Method], on_method: Callable[[str, int], None] = lambda name, done: None
) -> dict[str, dict[str, float | None]]:
    """How well each method predicts these jobs in submit order, learning only from jobs that had ended by then.

    The seconds are CPU time of the whole pass, without compilation.
    """
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    events = as_they_came(traits["submit"], seconds)
    found: dict[str, dict[str, float | None]] = {}
    for done, method in enumerate(methods):
        on_method(method.name, done)
        few = min(_WARM_UP_JOBS, len(traits))
        first = traits[:few].view(np.recarray)
        method.make().follow(first, seconds[:few], as_they_came(first["submit"], seconds[:few]))
        predictor = method.make()
        begin = time.process_time()
        predicted = predictor.follow(traits, seconds, events)
        spent = time.process_time() - begin
        found[method.name] = {**prediction_errors(predicted, seconds), "seconds": spent}
    return found


def prediction_errors(predicted: Floats, seconds: Floats) -> dict[str, float | None]:
    """Median relative error, mean absolute error of the logarithm, and the share of jobs inside the interval."""
    truth = np.maximum(seconds, SHORTEST_S)
    middle = predicted[:, P50]
    covered: float | None = None
    if np.isfinite(predicted[:, P10]).all():
        # A relative tolerance: rounding must not count as a miss.
        inside = (truth >= predicted[:, P10] * (1 - 1e-9)) & (truth <= predicted[:, P90] * (1 + 1e-9))
        covered = float(np.mean(inside))
    return {
        "median_relative_error": float(np.median(np.abs(middle - truth) / truth)),
        "mean_log_error": float(np.mean(np.abs(np.log(middle / truth)))),
        "interval_coverage": covered,
    }


# ---- one job -------------------------------------------------------------------------------------------------------


SeenAmounts: Any = model_with(
    "SeenAmounts", Schema, {each.name: model_field(each) for each in AMOUNTS if each.name != "submit_s"}
)


class AskedJob(SeenAmounts):  # type: ignore[misc]  # the amounts come from Job
    """A job to predict, as in a TOML file; the names have the same meaning as in our own job files."""

    user: str = ""
    name: str = ""
    family: str = "uniform"
    models: list[str] = Field([])
    submit_s: float | None = Field(None, ge=0)


@dataclass(frozen=True, slots=True)
class SimilarJob:
    """A past job that is similar to the given one."""

    user: str
    name: str
    gpus: int
    submit_s: float
    limit_s: float | None
    runtime_s: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a job will run, in s, and similar past jobs."""

    method: str
    learnt: int
    p10_s: float | None
    p50_s: float
    p90_s: float | None
    like: tuple[SimilarJob, ...]


def read_job(text: str, where: str) -> AskedJob:
    """The job of a TOML file."""
    try:
        return parse_toml(text, where, AskedJob)
    except ConfigError as error:
        if re.search(r"'\w+_s' is ", str(error)) is None:
            raise
        raise ConfigError(f"{error} Times are in seconds, as in limit_s = 7200.") from None


def traits_of_one(job: AskedJob, submit_s: float) -> Table:
    """What predictors see of the job."""
    said = job.model_dump() | {"models": frozenset(job.models)}
    if job.submit_s is None:
        said["submit_s"] = submit_s
    traits = records(TRAIT, 1)
    traits[0] = trait_of(Job(**said))
    return traits


def predict_one(history: Jobs, job: AskedJob, method: Method) -> Prediction:
    """Learn a history, then predict one job. With `submit_s`, only jobs that had ended by then are learnt."""
    past, ran = traits_of(history), seconds_of(history)
    end = past["submit"] + ran
    asked = traits_of_one(job, float(end.max()))
    known = np.flatnonzero(end <= asked["submit"][0])
    events = as_they_came(past["submit"], ran)
    events = events[(events >= 0) | np.isin(~events, known)]
    events = events[(events < 0) | (past["submit"][np.maximum(events, 0)] <= asked["submit"][0])]
    count = len(past)
    traits = np.concatenate([past, asked]).view(np.recarray)
    seconds = np.append(ran, np.nan)
    low, middle, high = method.make().follow(traits, seconds, np.append(events, count))[count]
    memory = Memory.new(min(REMEMBERED, max(1, len(known))))
    memory.remember(past, ran, ~events[events < 0])
    return Prediction(
        method.name,
        len(known),
        None if np.isnan(low) else float(low),
        float(middle),
        None if np.isnan(high) else float(high),
        tuple(liked(history, past, ran, similar.number, similar.similarity) for similar in memory.like(asked, LIKE)),
    )


def liked(history: Jobs, past: Table, ran: Floats, number: int, similarity: float) -> SimilarJob:
    """A past job as a record of the answer."""
    row = history.table[number]
    limit = float(row.limit)
    return SimilarJob(
        history.users[row.user] if row.user < len(history.users) else str(row.user),
        history.names[row.group] if history.names else "",
        int(row.gpus),
        float(past["submit"][number]),
        limit if np.isfinite(limit) else None,
        float(ran[number]),
        similarity,
    )


# ---- capacity of hypervectors --------------------------------------------------------------------------------------


def unbinding_table() -> dict[int, list[tuple[int, float]]]:
    """By dimensions: how many pairs were bundled, and the share of fillers that were decoded correctly."""
    return {size: [(bundled, unbinding_accuracy(bundled, size)) for bundled in BUNDLED] for size in DIMENSIONS_TRIED}


def evaluation_json(found: dict[str, dict[str, float | None]], name: str, jobs: int) -> dict[str, Any]:
    """The evaluation in the format of --json."""
    return {"trace": name, "jobs": jobs, "methods": found}
