"""Jobs of Slurm's that start with another number of GPUs than they asked for.

Slurm changes the request of a held job within one node: its GPUs on the node, cores and memory. What the job was
submitted with is a word of its admin comment, which users cannot write (docs/slurm.md says what was tried).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from adlro.backends.slurm.comments import ASKED_FOR, number_of
from adlro.backends.slurm.models import ClusterLook, models_for
from adlro.backends.slurm.parse_jobs import SlurmJob
from adlro.backends.slurm.places import whole_in
from adlro.backends.slurm.ways import CommandWay, KnownJob, NotNowError
from adlro.core.ports import Part
from adlro.core.records import Job
from adlro.core.sizes import as_ordered, sizes_of, wrong_with_sizes


def as_asked(ours: Job, words: Mapping[str, str]) -> dict[str, Any]:
    """The GPUs, cores and memory that a job asked for, also if it was given others since."""
    asked = [number_of(text, 0.0) for text in words.get(ASKED_FOR, "").split(":")]
    if len(asked) == 3 and asked[0] >= 1:
        return {"gpus": int(asked[0]), "cpus": asked[1], "memory_gb": asked[2] * 1024**2 / 1e9}
    return {"gpus": ours.gpus or whole_in(words.get("gpus", "0"))}


def sizes_here(job: SlurmJob, words: Mapping[str, str], look: ClusterLook) -> str:
    """The sizes of a restartable job that it can have here: those that fit on one node of each model it may get.

    The number that it has is one of them. If there is no other, a note says why.
    """
    text = words["sizes"]
    why = wrong_with_sizes(text) or job.rigid
    if not why:
        models = models_for(job, words, look).models
        largest: dict[str, int] = {}
        for site in look.sites.values():
            for model, devices in site.devices.items():
                if not models or model in models:
                    largest[model] = max(largest.get(model, 0), len(devices.types))
        held = sum(count for _, count in job.gres)
        fit = [size for size in sizes_of(text) if size <= min(largest.values(), default=0) or size == held]
        if fit:
            return ",".join(map(str, fit))
        why = f"none of its sizes ({text[:40]}) fits on one node of each model that it may get"
    look.notes.append(f"job {job.id} keeps its number of GPUs: {why}")
    return ""


def resized(told: KnownJob, parts: Sequence[Part], commands: CommandWay | None) -> dict[str, str]:
    """Give a held job the cores and memory of its size at this place; returns words for its admin comment.

    What it was submitted with is noted first, so that whoever dies in between does not forget it.
    """
    gpus, job = sum(part.count for part in parts), told.live.job
    if gpus == job.gpus and ASKED_FOR not in told.words:
        return {}
    if isinstance(found := as_ordered(job, parts), str):
        raise NotNowError(found)
    if commands is None or len(parts) > 1:
        raise NotNowError("another number of GPUs needs Slurm's commands (command_line), and one node")
    proof = {ASKED_FOR: told.asked_for}
    commands.resize(told.live.id, told.admin_comment(**proof), told.size_words(gpus))
    return proof
