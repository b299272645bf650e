"""What an operator wants to see of a trace first, as plain numbers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from adlro.core.records import WHOLE_GPU
from adlro.core.tables import FOREVER, Floats, Jobs
from adlro.core.units import DAY_S, HOUR_S
from adlro.ingest.traces.tabulate import TraceReport

_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
EPOCH_WEEKDAY: Final = 3  # 1970-01-01 was a Thursday
MOST_SIZES: Final = 12
_SHORTEST_S: Final = 1e-3  # nobody means to ask for less
_MOST_USERS: Final = 5
_QUANTILES: Final = (50, 90, 99)


def describe_trace(jobs: Jobs, report: TraceReport, gpus: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A trace in numbers; `gpus` is how many of each model a cluster has, to hold the load against."""
    table = jobs.table
    duration = durations_s(jobs)
    on_gpus = table["gpus"] > 0
    gpu_hours = np.where(on_gpus, jobs.work, 0.0) / HOUR_S
    span_s = max(report.span_s, 1.0)
    return {
        "report": asdict(report),
        "jobs": len(jobs),
        "gpu_jobs": int(np.count_nonzero(on_gpus)),
        "span_s": report.span_s,
        "jobs_per_hour": len(jobs) / (span_s / HOUR_S),
        "arrivals": _arrivals(table["submit"], report),
        "sizes": _sizes(table),
        "duration_s": _quantiles(duration),
        "gpu_hours": float(gpu_hours.sum()),
        "users": _users(jobs, gpu_hours),
        "demand_by_models": _by_models(jobs, gpu_hours, span_s, gpus),
        "gpus_busy_on_average": float(gpu_hours.sum() * HOUR_S / span_s),
        "load_per_gpu": float(gpu_hours.sum() * HOUR_S / span_s / sum(gpus.values())) if gpus else None,
        "families": _families(jobs),
        "estimates": _estimates(used_of_requested(jobs)),
    }


def durations_s(jobs: Jobs) -> Floats:
    """How long each job ran."""
    table = jobs.table
    return jobs.work / np.where(table["gpus"] > 0, table["gpus"] * (table["share"] / WHOLE_GPU), 1.0)


def used_of_requested(jobs: Jobs) -> Floats:
    """The share of its requested time that each job used, of those that requested any."""
    limit = jobs.table["limit"]
    asked = (limit >= _SHORTEST_S) & (limit < FOREVER)
    return durations_s(jobs)[asked] / limit[asked]


def _arrivals(submit: Floats, report: TraceReport) -> dict[str, Any]:
    """Jobs an hour by hour of the day and by weekday; from the first job where the trace has no clock."""
    clock = report.start_unix is not None
    # A scaled trace keeps its hours: the times are stretched back before they are read from the clock.
    when = np.asarray(submit) * report.scale_load + (report.start_unix or 0.0)
    hour = (when % DAY_S // HOUR_S).astype(np.int64)
    day = ((when // DAY_S).astype(np.int64) + (EPOCH_WEEKDAY if clock else 0)) % 7
    hours = max(float(when[-1] - when[0]) / HOUR_S, 1.0)
    return {
        "clock": "UTC" if clock else "from the first job",
        "by_hour": (np.bincount(hour, minlength=24) / max(hours / 24, 1.0)).tolist(),
        "by_weekday": (np.bincount(day, minlength=7) / max(hours / 7, 24.0)).tolist(),
    }


def _sizes(table: Any) -> list[dict[str, Any]]:
    """How many jobs have so many GPUs; shares of one are put together, rare sizes too."""
    share = (table["gpus"] == 1) & (table["share"] < WHOLE_GPU)
    found, counts = np.unique(table["gpus"][~share], return_counts=True)
    rows: list[dict[str, Any]] = [
        {"gpus": str(gpus), "jobs": int(count)} for gpus, count in zip(found, counts, strict=True)
    ]
    if share.any():
        place = int(np.count_nonzero(found < 1))
        rows.insert(place, {"gpus": "part of 1", "jobs": int(np.count_nonzero(share))})
    if len(rows) > MOST_SIZES:
        frequent = sorted(rows, key=lambda row: -row["jobs"])[: MOST_SIZES - 1]
        rest = sum(row["jobs"] for row in rows if row not in frequent)
        rows = [row for row in rows if row in frequent] + [{"gpus": "other", "jobs": rest}]
    return rows


def _quantiles(values: Floats) -> dict[str, float]:
    """Some quantiles and the mean."""
    found = np.percentile(values, _QUANTILES)
    return {f"p{q}": float(value) for q, value in zip(_QUANTILES, found, strict=True)} | {
        "mean": float(np.mean(values))
    }


def _users(jobs: Jobs, gpu_hours: Floats) -> dict[str, Any]:
    """How many users there are, and who uses most."""
    used = np.bincount(jobs.table["user"], gpu_hours, minlength=len(jobs.users))
    counts = np.bincount(jobs.table["user"], minlength=len(jobs.users))
    known = [place for place, name in enumerate(jobs.users) if name and counts[place]]
    most = sorted(known, key=lambda place: (-used[place], -counts[place]))[:_MOST_USERS]
    return {
        "count": len(known),
        "most": [
            {"user": jobs.users[place], "jobs": int(counts[place]), "gpu_hours": float(used[place])} for place in most
        ],
    }


def _by_models(jobs: Jobs, gpu_hours: Floats, span_s: float, gpus: Mapping[str, int] | None) -> list[dict[str, Any]]:
    """What is asked of which GPU models, and the load on them if nothing else ran there."""
    hours = np.bincount(jobs.table["allowed"], gpu_hours, minlength=len(jobs.allowed))
    counts = np.bincount(jobs.table["allowed"], minlength=len(jobs.allowed))
    rows: list[dict[str, Any]] = []
    for models, used, count in zip(jobs.allowed, hours, counts, strict=True):
        if count:
            there = sum(number for model, number in (gpus or {}).items() if not models or model in models)
            load = float(used) * HOUR_S / span_s / there if there else None
            name = " | ".join(sorted(models)) or "any"
            rows.append({"models": name, "jobs": int(count), "gpu_hours": float(used), "load_per_gpu": load})
    return sorted(rows, key=lambda row: -row["gpu_hours"])


def _families(jobs: Jobs) -> dict[str, int]:
    """Jobs by family."""
    counts = np.bincount(jobs.table["family"], minlength=len(jobs.families))
    return {name: int(count) for name, count in zip(jobs.families, counts, strict=True) if count}


def _estimates(used: Floats) -> dict[str, Any] | None:
    """How the time that was used compares with the time that was asked for; None if nobody asked for a time."""
    if not len(used):
        return None
    p10, p50, p90 = np.percentile(used, (10, 50, 90))
    return {
        "jobs": len(used),
        "used_of_requested": {"p10": float(p10), "p50": float(p50), "p90": float(p90)},
        "over_the_request": float(np.mean(used > 1)),
    }
