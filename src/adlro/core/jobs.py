"""The job table: the only place that checks jobs and fills their rows."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from adlro.core.errors import ConfigError
from adlro.core.records import WHOLE_GPU, Job
from adlro.core.schema import problem_in, stored_in
from adlro.core.sizes import sizes_of, wrong_with_sizes
from adlro.core.tables import JOB, Floats, Jobs, Numbers, Table, records


def wrong_with(job: Job) -> str:
    """What makes this job invalid on every cluster, as an error line for the user; "" if it is valid."""
    wrong = problem_in(job)
    if not wrong and job.share < WHOLE_GPU and job.gpus != 1:
        wrong = f"share is {job.share} with {job.gpus} GPUs; expected {WHOLE_GPU}, or gpus = 1"
    if not wrong and job.sizes:
        wrong = wrong_with_sizes(job.sizes)
        if not wrong and (job.gpus == 0 or job.share < WHOLE_GPU):
            wrong = f"sizes is {job.sizes!r}; expected none for a job without whole GPUs"
    return f"job {job.name!r} of user {job.user!r}: {wrong}. Correct it." if wrong else ""


def check_job(job: Job) -> None:
    """Raise an error for a job that is invalid on every cluster."""
    if wrong := wrong_with(job):
        raise ConfigError(wrong)


@final
class JobNames:
    """The names behind the numbers in a job table: families, users, models, sizes, groups (user and job name)."""

    def __init__(self) -> None:
        self.families, self.users, self.groups, self.allowed = Numbers(), Numbers(), Numbers(), Numbers()
        self.sizes = Numbers()
        self.users.number("")
        self.allowed.number(frozenset())
        self.sizes.number(())

    def jobs(self, table: Table, work: Floats) -> Jobs:
        """A table that uses these numbers, together with the current names."""
        names = tuple(name for _, name in self.groups.things)
        return Jobs(
            table, work, tuple(self.families.things), tuple(self.users.things), names, tuple(self.allowed.things),
            tuple(self.sizes.things),
        )  # fmt: skip

    def of(self, jobs: Sequence[Job]) -> dict[str, list[int]]:
        """The columns of numbers for these jobs."""
        return {
            "family": [self.families.number(job.family) for job in jobs],
            "allowed": [self.allowed.number(job.models) for job in jobs],
            "user": [self.users.number(job.user) for job in jobs],
            "group": [self.groups.number((job.user, job.name)) for job in jobs],
            "sizes": [self.sizes.number(sizes_of(job.sizes)) for job in jobs],
        }


def job_table(
    work: Floats, amounts: Mapping[str, Any], labels: Mapping[str, Any], like: tuple[Any, Any] | None = None
) -> Table:
    """The job table for jobs with this work.

    `amounts` has columns by property name, in the units of `Job`; NaN means that no value was given. `labels` has
    columns as the table stores them. A column in neither gets its default, or the values of another table: `like` is
    that table and one of its rows for each job. A missing estimate becomes the true work.
    """
    table = records(JOB, len(work)).view(np.ndarray)
    for each in stored_in(Job):
        if each.name in amounts:
            table[each.column] = each.filled(np.asarray(amounts[each.name]), work if each.name == "estimate" else None)
        elif like is None:
            table[each.column] = work if each.name == "estimate" else each.usual
        else:
            table[each.column] = like[0][each.column][like[1]]
    for column in ("family", "allowed", "user", "group", "sizes"):
        if column in labels:
            table[column] = labels[column]
        elif like is not None:
            table[column] = like[0][column][like[1]]
    return table.view(np.recarray)


def job_rows(jobs: Sequence[Job], names: JobNames) -> tuple[Table, Floats]:
    """The rows of jobs that have been checked, and their work."""
    work = np.array([job.work for job in jobs], np.float64)
    amounts = {
        each.name: np.array([getattr(job, each.name) for job in jobs], np.float64)  # None becomes NaN
        for each in stored_in(Job)
    }
    return job_table(work, amounts, names.of(jobs)), work


def amounts_of(row: Any) -> dict[str, Any]:
    """The amounts of one table row, by property name and in the units of `Job`."""
    found: dict[str, Any] = {}
    for each in stored_in(Job):
        amount = each.kind(each.from_table(row[each.column]))
        found[each.name] = None if each.is_optional and amount == np.inf else amount
    return found
