"""Traces of GPU clusters as tables: Philly (two forms), Alibaba openb and DLRM, Helios."""

from typing import Final

import numpy as np

from adlro.ingest.traces.cells import Cells
from adlro.ingest.traces.rows import Rows, nothing, whole_or_share

QOS_PRIORITY: Final = {"LS": 0.9, "Guaranteed": 0.75, "Burstable": 0.5, "BE": 0.25}
"""Latency-sensitive before guaranteed before burstable before best effort."""

DLRM_END_S: Final = 31 * 86_400.0
"""The trace ends on day 31; an instance without a deletion time lived until then."""


def read_philly(cells: Cells) -> Rows:
    """Philly as Pollux and Sia prepared it; the rows are not in time order. The virtual cluster stands for the user."""
    return Rows(
        line=cells.line,
        submit=cells.time("timestamp"),
        duration=cells.number("duration"),
        gpus=_at_least_1(cells.number("num_gpus")),
        user=cells.labels("cluster"),
    )


def read_philly_sizes(cells: Cells) -> Rows:
    """Philly with all job sizes; topology and shape are not part of the trace and are not read."""
    return Rows(
        line=cells.line,
        submit=cells.number("arrival time (sec)"),
        duration=cells.number("duration (sec)"),
        gpus=_at_least_1(cells.number("size")),
        id=cells.columns["#job id"],
    )


def read_openb(cells: Cells) -> Rows:
    """Alibaba's openb pods: shares of a GPU, allowed types, and quality of service as priority."""
    gpus, scheduled = cells.number("num_gpu"), cells.number("scheduled_time")
    never = np.isnan(scheduled)
    return Rows(
        line=cells.line,
        submit=cells.number("creation_time"),
        duration=cells.number("deletion_time") - scheduled,
        gpus=gpus,
        share=whole_or_share(gpus, cells.number("gpu_milli")),
        given={
            "cpus": cells.number("cpu_milli") / 1000,
            "memory_gb": cells.number("memory_mib") / 1024,
            "priority": cells.parsed("qos", lambda text: QOS_PRIORITY.get(text, 0.5)),
        },
        models=cells.labels("gpu_spec"),
        id=cells.columns["name"],
        aside={"never scheduled": never & cells.is_in("pod_phase", ("Pending", "Failed"))},
    )


def read_dlrm(cells: Cells) -> Rows:
    """Alibaba's recommendation services: instances older than the trace begin at 0, living ones end with it."""
    created, deleted = cells.number("creation_time"), cells.number("deletion_time")
    submit = np.where(np.isnan(created), 0.0, created)
    return Rows(
        line=cells.line,
        submit=submit,
        duration=np.where(np.isnan(deleted), DLRM_END_S, deleted) - submit,
        gpus=cells.number("gpu_request"),
        given={"cpus": cells.number("cpu_request"), "memory_gb": cells.number("memory_request")},
        user=cells.labels("app_name"),
        name=cells.labels("role"),
        id=cells.columns["instance_sn"],
    )


def read_helios(cells: Cells) -> Rows:
    """SenseTime Helios: `duration` is the time it ran, `queue` the time it waited, both in seconds."""
    duration = cells.number("duration")
    start = cells.time("start_time") if cells.has("start_time") else nothing(len(cells))
    never = np.isnan(start) & (np.isnan(duration) | (duration == 0))
    return Rows(
        line=cells.line,
        submit=cells.time("submit_time"),
        duration=np.where(np.isnan(duration), cells.time("end_time") - start, duration),
        gpus=cells.number("gpu_num"),
        given={"cpus": cells.number("cpu_num")},
        user=cells.labels("user"),
        name=cells.labels(cells.first_of("jobname", "vc")),
        id=cells.columns["job_id"],
        aside={"never started": never & cells.is_in("state", ("CANCELLED", "PENDING", "FAILED"))},
    )


def _at_least_1(gpus: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The numbers, with an invalid one in place of 0: these lists contain GPU jobs only."""
    return np.where(gpus == 0, -1.0, gpus)
