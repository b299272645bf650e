"""What back ends check of a job before they take it."""

import math

from adlro.core.records import WHOLE_GPU, Job


def wrong_with(job: Job) -> str:
    """What no cluster could mean; nothing if all is well."""
    if job.gpus < 0:
        return f"gpus is {job.gpus}; expected 0 or more"
    if not 1 <= job.share <= WHOLE_GPU or (job.share < WHOLE_GPU and job.gpus != 1):
        return f"share is {job.share} with {job.gpus} GPUs; expected 1000, or less with one GPU"
    amounts: dict[str, float | None] = {
        "work": job.work, "cpus": job.cpus, "memory_gb": job.memory_gb, "gpu_memory_gb": job.gpu_memory_gb,
        "limit_s": job.limit_s, "estimate": job.estimate, "checkpoint": job.checkpoint,
    }  # fmt: skip
    for name, amount in amounts.items():
        if amount is not None and not 0.0 <= amount < math.inf:
            return f"{name} is {amount}; expected 0 or more"
    return ""
