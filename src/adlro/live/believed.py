"""What policies believe about the speeds of live jobs, by what they may know (docs/speeds.md).

`known`: the table. `prior`: the datasheet. `agnostic`: all GPUs alike. `learned`: the datasheet, corrected by the jobs
that ended here. The memory is the one of the simulated runs (predict/speed_memory.py). It is taught by ended jobs in
the order of their ends: after a restart by those in the store, in the same order, so that each teaches once.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Final, final

import numpy as np

from adlro.catalogue.families import find_family, guessed_family, is_family
from adlro.catalogue.speeds import datasheet_speed, for_every_family, speed_of
from adlro.core.learned import (
    AGNOSTIC_SPEEDS,
    KNOWN_SPEEDS,
    LEARNED,
    LEARNED_SPEEDS,
    PRIOR_SPEEDS,
    JobSpeeds,
    LearnedSpeed,
    LearnedTable,
    PastSpeed,
)
from adlro.core.plan import Plan
from adlro.core.ports import JobState, Part
from adlro.core.readings import with_unsure
from adlro.core.records import CPU_ONLY, MEASURED, MODELLED, Cluster, Job, Placing, Speed, SpeedOf
from adlro.core.tables import Floats, Jobs, Numbers, View
from adlro.core.units import DAY_S
from adlro.experiment.learned_speeds import datasheet_alone, find_families, speed_against
from adlro.experiment.unknown_speeds import (
    all_alike,
    believed_rates,
    memory_bounds,
    models_of_forms,
    parts_of_job,
    rates_where_able,
)
from adlro.live.corrections import Corrections
from adlro.live.predicting import AT_ONCE_S, LINKS, ExpectedWork, MeasuredJob, pace
from adlro.live.scene import model_name
from adlro.normalise.pack import pack_believed
from adlro.predict.encoder import HOURS, Words, unpacked
from adlro.predict.job_parts import JobParts, job_vectors, same_parts
from adlro.predict.speed_memory import (
    MOST_EXPERIENCES,
    NOISE,
    ModelShift,
    SpeedBelief,
    SpeedMemory,
    rates_believed,
    spreads_believed,
)

LESSONS: Final = MOST_EXPERIENCES
"""How many of the latest ended jobs teach at the start: as many as the memory holds."""

_UNSURE: Final = 0.7
"""Spread of the error in the predicted work of jobs alike that is the same on every model. It is large, because live
work is measured with believed speeds: jobs that only ran on one model say nothing about its speed."""

_AT_A_TURN: Final = 512
"""Beliefs that are brought up to date in one turn, when something was learnt; the others wait for the next turn."""

_AT_ONCE: Final = 256
"""Jobs whose beliefs are computed together: how sure they are takes much memory."""

_KEPT: Final = 32_768
_REASONS: Final = 5


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A job that has taught: enough to teach it again, and to name it."""

    id: str
    parts: JobParts
    family: str  # whose datasheet speeds were believed at first
    model: str
    log: float
    doubt: float


@final
class LiveSpeeds:
    """The speeds that policies believe in. One thread teaches; any thread may ask."""

    def __init__(self, how: str = KNOWN_SPEEDS, speed: SpeedOf = speed_of) -> None:
        self.how, self._table = how, for_every_family(speed)
        self._lock = RLock()
        self._memory: SpeedMemory | None = None
        self._cluster: Cluster | None = None
        self._names: list[str] = []
        self._lessons: dict[int, _Lesson] = {}  # by the number of the experience
        self._taught = 0
        # By job: how many jobs had taught when it was computed; for each model the belief and its spread.
        self._shifts: OrderedDict[JobParts, tuple[int, Floats, Floats]] = OrderedDict()
        self._vectors: OrderedDict[JobParts, Words] = OrderedDict()

    @property
    def learns(self) -> bool:
        """Whether ended jobs teach."""
        return self.how == LEARNED_SPEEDS

    @property
    def taught(self) -> int:
        """How many jobs have taught."""
        return self._taught

    # ---- learning --------------------------------------------------------------------------------------------------

    def learn(
        self, job: MeasuredJob, expected: ExpectedWork, cluster: Cluster, corrections: Corrections
    ) -> ModelShift | None:
        """Learn from a job that ended, if it says something about speeds. Tells if its model has changed as a whole."""
        if not self.learns or not self._teaches(job, cluster):
            return None
        live, model = job.job, job.parts[0].model
        # GPUs that are slow by themselves say nothing about their model.
        slow = min(corrections.of_part(part) for part in job.parts)
        slow = min(slow, 1.0 if live.gpu_pace is None else live.gpu_pace)
        usual = pace(live.job, job.parts, cluster, Corrections(), self._prior_of(live.job)) * slow
        log = math.log(max(expected.work, 1e-3) / (job.runtime_s * usual))
        lesson = _Lesson(
            live.id, _as_asked(live.job), prior_family(live.job), model, log, 1.0 + expected.spread**2 / NOISE
        )
        with self._lock:
            self._prepare(cluster)
            return self._teach(lesson)

    def _teaches(self, job: MeasuredJob, cluster: Cluster) -> bool:
        """Whether a job says something about speeds: it ran through on whole GPUs of one known model."""
        live = job.job
        return (
            live.state is JobState.FINISHED
            and live.starts <= 1
            and live.job.gpus > 0
            and job.runtime_s >= AT_ONCE_S
            and live.gpu_pace != 0.0
            and len({part.model for part in job.parts}) == 1
            and job.parts[0].model in cluster.models
            and job.parts[0].model != CPU_ONLY
        )

    def _teach(self, lesson: _Lesson) -> ModelShift | None:
        memory = self._memory
        assert memory is not None
        self._taught += 1
        number = self._taught
        self._lessons[number] = lesson
        vector = self._vector(lesson.parts)
        found = memory.learn(vector, self._names.index(lesson.model), lesson.log, number, lesson.doubt, _UNSURE)
        if len(self._lessons) > 2 * MOST_EXPERIENCES:
            there = set(memory.numbers())
            self._lessons = {each: known for each, known in self._lessons.items() if each in there}
        return found

    def _prepare(self, cluster: Cluster) -> None:
        """Make the memory; with a model that it does not have, make it again and teach it again."""
        names = [name for name in cluster.models if name != CPU_ONLY]
        self._cluster = cluster
        if self._memory is not None and set(names) <= set(self._names):
            return
        names += [name for name in self._names if name not in names and name in cluster.models]
        models = [cluster.models[name] for name in names]
        self._memory, self._names = SpeedMemory(models, memory_bounds(models)), names
        lessons, self._lessons = list(self._lessons.values()), {}
        self._taught -= len(lessons)
        self._shifts.clear()
        for lesson in lessons:
            if lesson.model in names:
                self._teach(lesson)

    # ---- beliefs ---------------------------------------------------------------------------------------------------

    def pace(self, job: Job, parts: Sequence[Part], cluster: Cluster, corrections: Corrections) -> float:
        """Work per second of a job on these parts, as believed."""
        return pace(job, parts, cluster, corrections, self.speed_for(job, cluster))

    def speed_for(self, job: Job, cluster: Cluster) -> SpeedOf:
        """The speeds that are believed of one job."""
        if self.how == KNOWN_SPEEDS:
            return self._table

        def speed_here(family: str, at: Placing) -> Speed:
            found = self._table(family, at)
            if at.model is None or at.gpus == 0 or (self.learns and found.source == MEASURED):
                return found
            prior = self._prior_of(job)(family, at).value or 1.0
            if not self.learns:
                return Speed(prior, MODELLED, self.how)
            with self._lock:
                self._prepare(cluster)
                if at.model.name not in self._names:
                    return Speed(prior, MODELLED, "the datasheet")
                shift = self._beliefs([_as_asked(job)]).shift
                there = np.array([self._names.index(at.model.name)], np.int32)
            return Speed(float(rates_believed(np.array([[prior]]), shift, there)[0, 0]), LEARNED, "by jobs alike")

        return speed_here

    def view_of(self, plan: Plan, jobs: Jobs, known: View, records: Sequence[Job], corrections: Corrections) -> View:
        """The view with the rates that are believed of these jobs [J]; those with equal beliefs stay alike."""
        if self.how == KNOWN_SPEEDS or not records:
            return known
        guesses, asked = Numbers(), Numbers()
        table = jobs.table.copy().view(np.recarray)
        table["family"] = [guesses.number(prior_family(job)) for job in records]
        hidden = replace(jobs, table=table, families=tuple(guesses.things))
        rate = believed_rates(plan, hidden, known, all_alike if self.how == AGNOSTIC_SPEEDS else datasheet_speed)
        alike, unsure = np.zeros(len(records), np.int64), np.zeros((0, len(plan.forms)))
        if self.how == PRIOR_SPEEDS:
            with self._lock:
                self._prepare(plan.cluster)
                unsure = self._unsure_at_first(plan, len(records))
        if self.learns:
            alike = np.array([asked.number(_as_asked(job)) for job in records], np.int64)
            with self._lock:
                self._prepare(plan.cluster)
                belief, forms = self._beliefs(asked.things), models_of_forms(plan, self._names)
                rate = rates_believed(rate, belief.shift[alike], forms)
                unsure = spreads_believed(belief.spread[alike], forms)
            by_table = rates_where_able(plan, jobs, known, _if_measured(self._table))
            rate, unsure = np.where(by_table > 0.0, by_table, rate), np.where(by_table > 0.0, 0.0, unsure)
        elif corrections.families:
            models = [form.model for form in plan.form_records]
            rate *= [[corrections.of(job.family, model) for model in models] for job in records]
        key = np.stack([known.jobs["demand"], table["family"], alike], axis=1)
        _, firsts, kind = np.unique(key, axis=0, return_index=True, return_inverse=True)
        own = replace(jobs, table=jobs.table.copy().view(np.recarray))
        view = pack_believed(plan, own, known, rate[firsts], kind.ravel().astype(np.int32))
        return with_unsure(view, unsure[firsts]) if len(unsure) else view

    def _unsure_at_first(self, plan: Plan, jobs: int) -> Floats:
        """The spread of beliefs before anything was learnt [J, H]."""
        assert self._memory is not None
        spread = self._memory.spread_at_first()[None, :]
        return np.repeat(spreads_believed(spread, models_of_forms(plan, self._names)), jobs, axis=0)

    def _prior_of(self, job: Job) -> SpeedOf:
        """What is believed of a job before anything was learnt."""
        if self.how == AGNOSTIC_SPEEDS:
            return all_alike
        family = prior_family(job)
        return lambda _, at: datasheet_speed(family, at)

    def _beliefs(self, asked: Sequence[JobParts]) -> SpeedBelief:
        """What is believed of these jobs on each model of the memory [n, M]; some of it may be some turns old."""
        memory = self._memory
        assert memory is not None
        known, left = self._shifts, _AT_A_TURN
        out: list[JobParts] = []
        for parts in asked:
            found = known.get(parts)
            if found is None or (found[0] != self._taught and left > 0):
                out.append(parts)
                left -= found is not None
        for first in range(0, len(out), _AT_ONCE):
            some = out[first : first + _AT_ONCE]
            belief = memory.believe(np.array([self._vector(each) for each in some]))
            for parts, shift, spread in zip(some, belief.shift, belief.spread, strict=True):
                known[parts] = (self._taught, shift, spread)
                known.move_to_end(parts)
        result = SpeedBelief(
            np.array([known[parts][1] for parts in asked]), np.array([known[parts][2] for parts in asked])
        )
        while len(known) > _KEPT:
            known.popitem(last=False)
        return result

    def _vector(self, parts: JobParts) -> Words:
        if (found := self._vectors.get(parts)) is None:
            found = self._vectors[parts] = job_vectors([parts])[0]
            if len(self._vectors) > _KEPT:
                self._vectors.popitem(last=False)
        return found

    # ---- answers ---------------------------------------------------------------------------------------------------

    def of_job(self, job: Job, cluster: Cluster) -> JobSpeeds:
        """What is believed of one job on each model that it may use, against the fastest, and why."""
        allowed = {model_name(name, cluster) for name in job.models}
        names = [name for name in cluster.models if name != CPU_ONLY and (not allowed or name in allowed)]
        if job.gpus == 0 or not names:
            return JobSpeeds("", {}, ())
        links = LINKS.of(cluster)
        link = {group.model: links[node.name] for node in cluster.nodes for group in node.gpus}
        speed = self.speed_for(job, cluster)
        found = {
            name: speed(
                job.family, Placing(cluster.models[name], job.gpus, 1, link.get(name, cluster.network), cluster.network)
            )
            for name in names
        }
        best = max(names, key=lambda name: found[name].value)
        if found[best].value <= 0.0:
            return JobSpeeds("", {}, ())
        logs = np.log(np.maximum([found[name].value for name in names], 1e-9))
        with self._lock:
            memory = self._memory if self.learns else None
            there = Counter(lesson.model for lesson in self._lessons.values())
            covariance = np.zeros((len(names), len(names)))
            if memory is not None:
                rows = [self._names.index(name) for name in names if found[name].source == LEARNED]
                mine = [at for at, name in enumerate(names) if found[name].source == LEARNED]
                _, whole = memory.profile(self._vector(_as_asked(job))[None, :])
                covariance[np.ix_(mine, mine)] = whole[np.ix_(rows, rows)]
            because = self._reasons(job) if memory is not None else ()
        speeds: dict[str, LearnedSpeed] = {}
        for at, name in enumerate(names):
            against = speed_against(at, names.index(best), logs, covariance, there[name])
            speeds[name] = replace(against, source=found[name].source)
        return JobSpeeds(best, speeds, because)

    def _reasons(self, job: Job) -> tuple[PastSpeed, ...]:
        """The past jobs on which beliefs about a job rest most, on any model."""
        memory, parts = self._memory, _as_asked(job)
        assert memory is not None
        vector = self._vector(parts)
        most: dict[int, tuple[float, float]] = {}
        for model in range(len(self._names)):
            for number, share, alike in memory.shares(vector, model)[:_REASONS]:
                most[number] = max(most.get(number, (0.0, 0.0)), (share, alike))
        found = []
        for number, (share, alike) in sorted(most.items(), key=lambda item: -item[1][0])[:_REASONS]:
            past, its = memory.vector_of(number), self._lessons.get(number)
            if past is None or its is None:
                continue
            common = tuple(f"{role} {value}" for role, value, _ in same_parts(parts, unpacked(past)))
            found.append(PastSpeed(its.parts.user, its.parts.name, its.model, share, alike, common, its.id))
        return tuple(found)

    def found(self) -> LearnedTable:
        """The families that the memory has found, and what they rest on."""
        with self._lock:
            memory = self._memory
            if memory is None or not self._lessons:
                return LearnedTable(self._names[0] if self._names else "", (), 0, 0, "live")
            there = set(memory.numbers())
            lessons = [(number, its) for number, its in self._lessons.items() if number in there]
            parts = [its.parts for _, its in lessons]
            vectors = {row: self._vector(each) for row, each in enumerate(parts)}
            prior = np.array([self._datasheet(its) for _, its in lessons])
            rows = np.arange(len(parts))
            seen = [(row, self._names.index(its.model)) for row, (_, its) in enumerate(lessons)]
            families = find_families(memory, parts, vectors, prior, rows, seen, self._names)
            return LearnedTable(self._names[0], families, self._taught, 0, "live")

    def _datasheet(self, lesson: _Lesson) -> list[float]:
        """The logarithms of the first beliefs about a job, by model."""
        cluster = self._cluster
        assert cluster is not None
        gpus = lesson.parts.gpus
        return [
            math.log(max(datasheet_alone(lesson.family, gpus, cluster.models[name], cluster.network), 1e-3))
            if name in cluster.models
            else 0.0
            for name in self._names
        ]


def prior_family(job: Job) -> str:
    """The family whose datasheet speeds are believed at first: the job's own, else one that its name suggests."""
    if is_family(job.family) and not find_family(job.family).same_everywhere:
        return job.family
    return guessed_family(job.name)


def _as_asked(job: Job) -> JobParts:
    """The parts of a job, so that jobs alike are equal: of the time of its submission only the hour counts."""
    parts = parts_of_job(job)
    hour_s = DAY_S / HOURS
    return parts._replace(submit_s=parts.submit_s % DAY_S // hour_s * hour_s)


def _if_measured(table: SpeedOf) -> SpeedOf:
    """The speeds of a table that were measured; 0 for others."""

    def speed_here(family: str, at: Placing) -> Speed:
        found = table(family, at)
        return found if found.source == MEASURED else replace(found, value=0.0)

    return speed_here
