"""What telemetry shows of GPUs beside their pace: how cool they are, and how much of their memory bandwidth is left.

Policies may read it. Nothing that happens in the simulator depends on it. docs/semantics.md says when it is read.
"""

from typing import NamedTuple

import numpy as np

from adlro.core.compiled import compiled, compiled_alone
from adlro.core.records import WHOLE_GPU
from adlro.core.rules import gpus_to_take, next_part
from adlro.core.tables import FOREVER, NOBODY, Floats, View


class Gauge(NamedTuple):
    """What was read of the GPUs that a job would get."""

    headroom: float  # C below the limit, of the hottest; FOREVER: not read
    bandwidth: float  # share of its memory bandwidth that is left, on the GPU with the least; 1: all, or not read


@compiled
def gauge_at(view: View, j: int, s: int) -> Gauge:
    """What was read of the GPUs that the job would get if it started at the site now. The caller has checked `fits`."""
    job = view.jobs[j]
    width = view.width[job.kind, view.sites[s].form]
    if job.gpus == 0:
        return Gauge(FOREVER, 1.0)
    if width == 1:
        return gauge_of(view, s, gpus_to_take(view, j, s, job.gpus))
    headroom, bandwidth = FOREVER, 1.0
    needed = job.gpus
    last = NOBODY
    for _ in range(width):
        last = next_part(view, j, s, last, needed)
        if last == NOBODY:
            break
        count = min(needed, view.sites[last].free_gpus)
        part = gauge_of(view, last, gpus_to_take(view, j, last, count))
        headroom, bandwidth = min(headroom, part.headroom), min(bandwidth, part.bandwidth)
        needed -= count
    return Gauge(headroom, bandwidth)


@compiled
def gauge_of(view: View, s: int, mask: int) -> Gauge:
    """What was read of these GPUs of a site."""
    headroom, bandwidth = FOREVER, 1.0
    site = view.sites[s]
    for g in range(site.gpus):
        if mask >> g & 1:
            gpu = view.gpus[site.first_gpu + g]
            headroom = min(headroom, float(gpu.headroom))
            bandwidth = min(bandwidth, float(gpu.bandwidth))
    return Gauge(headroom, bandwidth)


@compiled
def is_unsure(view: View) -> bool:
    """Whether the view says how unsure rates are. It does so behind the best rates in View.fastest."""
    return len(view.fastest) > len(view.demands)


@compiled
def unsure_of(view: View, kind: int, h: int) -> float:
    """The spread of the logarithm of the rate that is believed of a kind on a form; 0 where rates are known."""
    at = len(view.demands) + kind * view.rate.shape[1] + h
    return view.fastest[at] if at < len(view.fastest) else 0.0


def unsure_in(view: View) -> Floats:
    """How unsure all rates are [K, H], to be read and written; no rows where they are known."""
    return view.fastest[len(view.demands) :].reshape(-1, view.rate.shape[1])


def with_unsure(view: View, unsure: Floats) -> View:
    """The view, which says that its rates are so unsure [K, H]."""
    return view._replace(fastest=np.concatenate([view.fastest[: len(view.demands)], unsure.ravel()]))


@compiled
def use_bandwidth(view: View, s: int, mask: int, used: float) -> None:
    """Note that a job uses this share of the bandwidth of each of these GPUs."""
    site = view.sites[s]
    for g in range(site.gpus):
        if mask >> g & 1:
            gpu = view.gpus[site.first_gpu + g]
            gpu.bandwidth = max(0.0, gpu.bandwidth - used)


# It is rarely needed, so it is not inlined.
@compiled_alone
def read_bandwidth(view: View, bandwidth: Floats) -> None:
    """Read how much bandwidth is left on each GPU. `bandwidth` is what a job on whole GPUs uses of each [K, H]."""
    view.clock[0].metered = 1
    for g in range(len(view.gpus)):
        view.gpus[g].bandwidth = 1.0
    for i in range(view.clock[0].running):
        j = view.running[i]
        job = view.jobs[j]
        run = view.runs[j]
        used = bandwidth[job.kind, view.sites[run.site].form] * job.share / WHOLE_GPU
        use_bandwidth(view, run.site, run.mask, used)
        p = run.parts
        while p != NOBODY:
            use_bandwidth(view, view.parts[p].site, view.parts[p].mask, used)
            p = view.parts[p].next
