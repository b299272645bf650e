"""Lower bounds on the mean JCT: how well any policy could do at best, even one that knows the future."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from adlro.core.records import WHOLE_GPU
from adlro.core.run import Run
from adlro.core.tables import DONE, Floats, Ints
from adlro.measure.sizes import at_best


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on a mean JCT in seconds. None: there is no job to bound."""

    fastest_runtime_s: float | None
    pooled_srpt_s: float | None
    best_s: float | None  # the larger, hence the tighter


def lower_bounds(run: Run) -> Bounds:
    """Bounds on the mean JCT of the jobs that finished in this run; the other jobs could only have delayed them."""
    done = np.sort(run.events["job"][run.events["what"] == DONE])
    table, work = run.jobs.table[done], run.jobs.work[done]
    gpus = table["gpus"] * table["share"] / WHOLE_GPU
    form_gpus = np.bincount(run.site_form, run.site_gpus, minlength=run.rate.shape[1]).astype(np.float64)
    possible = at_best(run)
    row = possible.row[done]
    fastest = fastest_runtime_bound(work, row, possible.fastest)
    pooled = pooled_srpt_bound(table["submit"], work, row, gpus, possible.thrifty, form_gpus)
    return Bounds(fastest, pooled, None if fastest is None or pooled is None else max(fastest, pooled))


def fastest_runtime_bound(work: Floats, kind: Ints, fastest: Floats) -> float | None:
    """Mean runtime if every job [J] started at once at its fastest placing [K]; jobs that can run nowhere are left out.

    No JCT is below work / fastest rate, as long as no GPU is faster than new (a speed factor above 1).
    """
    runs = fastest[kind] > 0
    return float(np.mean(work[runs] / fastest[kind[runs]])) if runs.any() else None


def pooled_srpt_bound(
    submit: Floats, work: Floats, kind: Ints, gpus: Floats, rate: Floats, form_gpus: Floats
) -> float | None:
    """Mean JCT of shortest-remaining-first on one machine as strong as all GPUs together.

    `submit`, `work`, `kind` and `gpus` (GPUs held, shares as fractions) are by job [J]; `rate` is [K, H]; `form_gpus`
    is the number of GPUs in all sites of a shape [H]. Jobs that can run nowhere are left out.

    Why it is a bound. Let s[k, h] = rate / gpus be the work that a kind does in a GPU-second on a shape. In any
    schedule a job gets its work from GPU-seconds x[h] on the shapes, `work = sum_h s[k, h] x[h]`, and in each second
    all jobs together get at most the GPUs of each shape. Two relaxations make that one machine and one size per job:

    - count GPU-seconds: a job needs at least `work / max_h s[k, h]`, and a second has as many as there are GPUs;
    - count work: a job needs `work`, and a second yields at most `sum_h GPUs[h] · max_k s[k, h]`.

    In both, the real schedule is a way to divide the machine among the jobs that have arrived, giving each its size
    before it ends. No such division has a smaller mean JCT than shortest remaining first with preemption (Schrage
    1968). So both are bounds, and so is the larger one. Restarts, failures, wear below 1, and gangs that wait for
    their GPUs only make the real schedule later. A job that can be resized counts with the best s of its sizes. More
    GPUs shrink sizes or raise the yield of a second, so the bound never grows with the cluster, unless they slow a gang
    down. Jobs without GPUs have size 0.
    """
    runs = rate.max(axis=1)[kind] > 0 if len(kind) else np.zeros(0, np.bool_)
    if not runs.any():
        return None
    submit, work, kind, gpus = submit[runs], work[runs], kind[runs], gpus[runs]
    needs = np.zeros(len(rate))
    needs[kind] = gpus
    # Kinds without GPUs, or without a job, ask for nothing and must not count as fast.
    per_gpu = np.divide(rate, needs[:, None], out=np.zeros_like(rate), where=needs[:, None] > 0)
    speed = per_gpu.max(axis=1)[kind]
    gpu_s = np.divide(work, speed, out=np.zeros_like(work), where=speed > 0)
    work = np.where(speed > 0, work, 0.0)
    total, most = float(form_gpus.sum()), float(form_gpus @ per_gpu.max(axis=0))
    return max(_srpt_mean_s(submit, gpu_s / max(total, 1.0)), _srpt_mean_s(submit, work / most if most else work))


def _srpt_mean_s(submit: Floats, size_s: Floats) -> float:
    """Mean JCT of shortest remaining first, with preemption; `size_s` is each job's time alone on the machine."""
    order = np.argsort(submit, kind="stable")
    left: list[tuple[float, float]] = []  # (remaining s, submit): which of two equal ones goes first is no matter
    now = jct = 0.0
    for arrives, size in zip([*submit[order].tolist(), np.inf], [*size_s[order].tolist(), 0.0], strict=True):
        while left and now + left[0][0] <= arrives:
            remaining, submitted = heappop(left)
            now += remaining
            jct += now - submitted
        if left:
            remaining, submitted = heappop(left)
            heappush(left, (remaining - (arrives - now), submitted))
        now = arrives
        heappush(left, (size, arrives))
    return jct / len(submit)
