"""Runs in which policies do not know how fast jobs run: what they believe instead.

`prior`: the roofline of the datasheet, by a family that is guessed from the name. `agnostic`: all GPUs alike.
`learned`: the prior, corrected in the run by what jobs that ended have shown (predict/speeds).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from adlro.catalogue.families import guessed_family
from adlro.catalogue.speeds import bound_profiles, datasheet_speed
from adlro.core.driver import Player
from adlro.core.learned import AGNOSTIC_SPEEDS
from adlro.core.plan import Plan, fill_kind
from adlro.core.readings import with_unsure
from adlro.core.records import CPU_ONLY, MODELLED, GpuModel, Job, Placing, Speed, SpeedOf
from adlro.core.tables import NOBODY, Floats, Ints, Jobs, Numbers, View
from adlro.core.units import MIB_PER_GB
from adlro.normalise.pack import mark_possible, pack_believed
from adlro.predict.following import units_of
from adlro.predict.job_parts import JobParts, job_vectors
from adlro.predict.speed_memory import ON_REFERENCE, SpeedMemory, spreads_believed
from adlro.predict.speed_player import LearningSpeeds


@dataclass(frozen=True, slots=True)
class Believed:
    """What policies believe about the speeds of jobs. Each job is a kind of its own there."""

    how: str
    view: View  # with the believed rates, before the first job
    rate: Floats  # [J, H] how fast jobs really run
    signed: Jobs  # the jobs with the users and names that a learner sees
    possible: npt.NDArray[np.bool_]  # [J, H] where each job fits on the empty cluster


def believe(plan: Plan, jobs: Jobs, known: View, signed: Jobs, how: str) -> Believed:
    """What policies believe at the beginning. `signed` are the same jobs with the names that a learner sees."""
    guesses = Numbers()
    by_group = np.array([guesses.number(guessed_family(name)) for name in signed.names] or [0], np.int32)
    if not guesses.things:
        guesses.number(guessed_family(""))
    table = jobs.table.copy().view(np.recarray)
    table["family"] = by_group[signed.table["group"]]
    hidden = replace(jobs, table=table, families=tuple(guesses.things))
    rate = believed_rates(plan, hidden, known, all_alike if how == AGNOSTIC_SPEEDS else datasheet_speed)
    view = pack_believed(plan, hidden, known, rate)
    if how != AGNOSTIC_SPEEDS:
        view = with_unsure(view, unsure_at_first(plan, len(rate)))
    possible = np.zeros(rate.shape, np.bool_)
    mark_possible(view, possible)
    return Believed(how, view, np.ascontiguousarray(known.rate[known.jobs["kind"]]), signed, possible)


def all_alike(_family: str, _at: Placing) -> Speed:
    """Every GPU is as fast as the reference model."""
    return Speed(1.0, MODELLED, "all GPUs alike")


def believed_rates(plan: Plan, hidden: Jobs, known: View, speed: SpeedOf) -> Floats:
    """The rates [J, H] by the families of these jobs, wherever the known view lets them run."""
    rate = rates_where_able(plan, hidden, known, speed)
    able = known.width[known.jobs["kind"]] > 0
    return np.where(able & (rate <= 0.0), units_of(hidden.table)[:, None], rate)


def rates_where_able(plan: Plan, jobs: Jobs, known: View, speed: SpeedOf) -> Floats:
    """The rates [J, H] by these speeds and families; 0 where the known view has none, or the speed is 0."""
    table, kinds = jobs.table, known.jobs["kind"]
    pairs, row_of = np.unique(np.stack([table["family"], kinds], axis=1), axis=0, return_inverse=True)
    row_of = row_of.ravel()
    firsts = np.zeros(len(pairs), np.int64)
    firsts[row_of[::-1]] = np.arange(len(table))[::-1]
    rows = np.zeros((len(pairs), len(plan.forms)))
    for row, j in enumerate(firsts):
        job, width = table[j], np.zeros(len(plan.forms), np.int32)
        fill_kind(plan, job, jobs.families[job.family], jobs.allowed[job.allowed], speed, rows[row], width)
        rows[row] *= known.width[kinds[j]] > 0
    return rows[row_of]


def memory_bounds(models: Sequence[GpuModel]) -> Floats:
    """How jobs that one unit bounds differ from the prior of a job of which nothing is known."""
    return np.array(bound_profiles(models, guessed_family("")))


def models_of_forms(plan: Plan, names: Sequence[str]) -> Ints:
    """For each form the number of its model among these names; NOBODY: it has no GPUs, or a model that is not there."""
    known = {name: number for number, name in enumerate(names)}
    return np.array([known.get(form.model, NOBODY) if form.gpus else NOBODY for form in plan.form_records], np.int32)


def unsure_at_first(plan: Plan, jobs: int) -> Floats:
    """How unsure the beliefs are before the first job has ended [J, H]."""
    names = [name for name in plan.models if name != CPU_ONLY]
    spread = new_memory(plan, names).spread_at_first()[None, :]
    return np.repeat(spreads_believed(spread, models_of_forms(plan, names)), jobs, axis=0)


def new_memory(plan: Plan, names: Sequence[str]) -> SpeedMemory:
    """A memory of speeds on these models that has learnt nothing yet."""
    models = [plan.cluster.models[name] for name in names]
    return SpeedMemory(models, memory_bounds(models), on_reference=ON_REFERENCE)


def learning_player(believed: Believed, plan: Plan, then: Player | None) -> LearningSpeeds:
    """A player that has learnt nothing yet."""
    names = [name for name in plan.models if name != CPU_ONLY]
    memory = new_memory(plan, names)
    vectors, forms = job_vectors(job_parts_of(believed.signed)), models_of_forms(plan, names)
    return LearningSpeeds(memory, vectors, believed.view.rate, believed.possible, forms, then)


def job_parts_of(jobs: Jobs) -> list[JobParts]:
    """What a learner of speeds sees of these jobs."""
    table = jobs.table
    names = jobs.names or ("",)
    return [
        JobParts(
            jobs.users[row.user] if row.user < len(jobs.users) else str(row.user),
            names[row.group] if row.group < len(names) else "",
            int(row.gpus), row.cpus / 1000, row.memory / MIB_PER_GB, row.gpu_memory / MIB_PER_GB,
            float(row.limit), float(row.submit),
        )
        for row in table
    ]  # fmt: skip


def parts_of_job(job: Job) -> JobParts:
    """What a learner of speeds sees of one job."""
    limit_s = math.inf if job.limit_s is None else job.limit_s
    return JobParts(
        job.user, job.name, job.gpus, job.cpus, job.memory_gb, job.gpu_memory_gb, limit_s, job.submit_s or 0.0
    )
