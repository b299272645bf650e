"""The sizes of a job: the numbers of GPUs that it can run with, as users write them."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from adlro.core.ports import Part
from adlro.core.records import WHOLE_GPU, Job

MOST_GPUS_OF_SIZES: Final = 4096
"""The largest size of a job that can be resized."""


def sizes_of(text: str) -> tuple[int, ...]:
    """The numbers of GPUs that a text such as "1,2,4" or "2-8" names, ascending; `wrong_with_sizes` checks it."""
    found: set[int] = set()
    for part in text.replace("|", ",").split(",") if text.strip() else []:
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if first > last:
            raise ValueError(part)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def wrong_with_sizes(text: str) -> str:
    """What is wrong with a text of sizes; "" if nothing is."""
    try:
        sizes = sizes_of(text) if len(text) <= 1000 and all(len(word) <= 5 for word in re.findall(r"\d+", text)) else ()
    except ValueError:
        sizes = ()
    if sizes and sizes[0] >= 1 and sizes[-1] <= MOST_GPUS_OF_SIZES:
        return ""
    return f"sizes is {text!r}; expected numbers of GPUs from 1 to {MOST_GPUS_OF_SIZES}, as in 1,2,4,8 or 1-8"


def sized(job: Job, gpus: int) -> Job:
    """The job as it asks for this many GPUs: with the cores and the memory that belong to them."""
    if gpus == job.gpus or not job.gpus:
        return job
    cpus, memory = -(-round(job.cpus * 1000) * gpus // job.gpus), -(-round(job.memory_gb * 1024) * gpus // job.gpus)
    return replace(job, gpus=gpus, cpus=cpus / 1000, memory_gb=memory / 1024)


def gpus_ordered(job: Job, parts: Iterable[Part]) -> int:
    """The GPUs of these parts; for a job with a fraction of a GPU or without GPUs, its own number."""
    return sum(part.count for part in parts) if job.gpus and job.share == WHOLE_GPU else job.gpus


def as_it_runs(job: Job, parts: Iterable[Part]) -> Job:
    """The job with the GPUs of the parts that it holds, if it names sizes."""
    return sized(job, gpus_ordered(job, parts)) if job.sizes else job


def as_ordered(job: Job, parts: Iterable[Part]) -> Job | str:
    """The job with the GPUs of an order, or why a live cluster may not run it with so many."""
    gpus = gpus_ordered(job, parts)
    if gpus == job.gpus:
        return job
    if not job.sizes:
        return f"the place has {gpus} GPUs; the job needs {job.gpus}, and names no other sizes"
    if not job.restartable:
        return f"the place has {gpus} GPUs; the job needs {job.gpus}, because it is not marked as restartable"
    if gpus not in sizes_of(job.sizes):
        return f"the place has {gpus} GPUs; the job's sizes are {job.sizes}"
    return sized(job, gpus)
