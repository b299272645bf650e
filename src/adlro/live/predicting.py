"""How long live jobs will run:

from the runtimes of similar jobs here, and from users' estimates, weighted by past errors.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, TypeVar, cast, final

import numpy as np
import numpy.typing as npt

from adlro.catalogue.speeds import speed_of
from adlro.core.ports import JobState, LiveJob, Part
from adlro.core.records import CPU_ONLY, WHOLE_GPU, Cluster, Job, Link, Placing, SpeedOf
from adlro.core.sizes import as_it_runs
from adlro.core.tables import RUNNING, Floats, Table, View
from adlro.decide.rules.reserving import HALF_LIFE_S
from adlro.live.corrections import Corrections, corrected
from adlro.live.scene import Carried, gpu_units, start_cost_s
from adlro.live.service import Like
from adlro.predict import expected
from adlro.predict.following import SHORTEST_S, TRAIT, one_hash, trait_of
from adlro.predict.habits import Habits
from adlro.predict.memory import Memory
from adlro.predict.online import count_live, learn_live, tell_live

_KEYS: Final = 1 << 13
"""How many keys habits keep at each level: enough for thousands of users, in about 12 MB."""

_USERS: Final = 4096
"""How many users' estimates are weighed; the user whose last job ended longest ago is forgotten first."""

_KEPT: Final = 32
"""How many jobs of a user are used to weigh the user's estimates."""

_FEW: Final = 3
"""With fewer jobs than this, a user's estimate is used unchanged."""

DOUBT: Final = 0.5
"""Spread (of the logarithm) of an estimate that has not been weighed yet."""

_GROUPS: Final = 65_536
"""For how many users and job names the past is kept."""

AT_ONCE_S: Final = 10.0
"""A job that fails within this time failed at once: a wrong path, a refused start."""

_LEAST_SPREAD: Final = 0.05
TENTH: Final = 1.2816
"""The tenths of a normal distribution lie this many spreads below and above its middle."""

_BETTER: Final = 0.8
"""Habits replace a user's estimate if their error is below this share of the estimate's error."""


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job that ended, and how much work it was, computed with the current speeds."""

    job: LiveJob
    runtime_s: float
    work: float  # GPU-seconds on the reference model
    parts: tuple[Part, ...]
    expected: float | None = None  # what its work was predicted to be when it started


@final
class Links:
    """The link of each node by name, for the latest cluster that was asked about."""

    def __init__(self) -> None:
        self._found: tuple[Cluster | None, dict[str, Link]] = (None, {})

    def of(self, cluster: Cluster) -> dict[str, Link]:
        """The links of this cluster."""
        known, links = self._found
        if known is not cluster:
            links = {node.name: node.link for node in cluster.nodes}
            self._found = (cluster, links)
        return links


LINKS: Final = Links()


def pace(
    job: Job, parts: Sequence[Part], cluster: Cluster, corrections: Corrections, speed: SpeedOf = speed_of
) -> float:
    """Work per second of a job on these parts, as far as known; otherwise 1 for each of its GPUs."""
    if job.gpus == 0 or not parts:
        return gpu_units(job)
    job = as_it_runs(job, parts)
    units = gpu_units(job)
    first = parts[0]
    model = cluster.models.get(first.model)
    if model is None or first.model == CPU_ONLY:
        return units
    link = LINKS.of(cluster).get(first.node, cluster.network)
    placing = Placing(model, job.gpus, len({part.node for part in parts}), link, cluster.network)
    found = corrected(speed, corrections)(job.family, placing).value
    return units * (found if found > 0.0 else 1.0) * min(corrections.of_part(part) for part in parts)


PaceOf = Callable[[Job, Sequence[Part], Cluster, Corrections], float]
"""Work per second of a job on some parts: `pace` with the table, or with what is believed instead."""


def measured(
    jobs: Sequence[LiveJob],
    cluster: Cluster,
    corrections: Corrections,
    expected: Mapping[str, float] | None = None,
    pace_of: PaceOf = pace,
    carried: Mapping[str, Carried] | None = None,
    restart_s: float = 0.0,
) -> list[MeasuredJob]:
    """The jobs that ran to their own end, with their measured and their expected work.

    A job that never ran, or failed as soon as it began, says nothing about the runtime of such jobs.
    """
    found = []
    for job in jobs:
        if job.state is JobState.CANCELLED or job.started_s is None or job.ended_s is None:
            continue
        seconds = job.ended_s - job.started_s
        if seconds <= 0.0 or (job.state is JobState.FAILED and seconds < AT_ONCE_S):
            continue
        lost = start_cost_s(job, restart_s)
        work = max(seconds - lost, 1.0) * pace_of(job.job, job.parts, cluster, corrections)
        if carried and job.id in carried:
            work += carried[job.id].saved  # of earlier stretches
        found.append(MeasuredJob(job, seconds, work, job.parts, (expected or {}).get(job.id)))
    return found


@dataclass(slots=True)
class Word:
    """How good a user's estimates were."""

    off: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))  # log of measured / estimated
    habits_off: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the same for habits

    def weighed(self) -> tuple[float, float, bool]:
        """What to add to the logarithm of the user's next estimate, its spread, and whether habits are better."""
        if len(self.off) < _FEW:
            return 0.0, DOUBT, False
        middle, spread = centre(self.off)
        spread = max(spread, _LEAST_SPREAD) + DOUBT / len(self.off)
        word_error = float(np.mean([abs(off - middle) for off in self.off]))
        habits_error = float(np.mean(np.abs(self.habits_off)))
        return middle, spread, len(self.off) >= 2 * _FEW and habits_error < _BETTER * word_error


UNHEARD: Final = Word()


def centre(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """The median of some values, and their spread by the median of the distances from it."""
    all_of_them = np.fromiter(values, np.float64)
    middle = float(np.median(all_of_them))
    return middle, 1.4826 * float(np.median(np.abs(all_of_them - middle)))


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """The work that was expected of a job, in GPU-seconds on the reference model, and the spread of its logarithm."""

    work: float
    spread: float


K = TypeVar("K")
Lengths = OrderedDict[K, tuple[float, float]]
"""By owner: the number of jobs, and the sum of the logarithms of their work."""


def one_more(known: Lengths[K], key: K, length: float) -> None:
    """Add one job; the owner whose last job ended longest ago is forgotten first."""
    jobs, total = known.pop(key, (0.0, 0.0))
    known[key] = (jobs + 1.0, total + length)
    if len(known) > _GROUPS:
        known.popitem(last=False)


def decayed(gpus: Any, seconds: Any) -> Any:
    """GPU-seconds of a run on this many GPUs that ends now, decayed as in `rules.usage_now`."""
    decay = math.log(2.0) / HALF_LIFE_S
    return gpus * (1.0 - np.exp(-decay * seconds)) / decay


@final
class UserHistory:
    """What users consumed and how long their jobs were, for policies that use it."""

    def __init__(self) -> None:
        self._groups: Lengths[tuple[str, str]] = OrderedDict()
        self._users: Lengths[str] = OrderedDict()
        self._usage: OrderedDict[str, tuple[float, float]] = OrderedDict()  # GPU-seconds, and when that was so
        self._all = (0.0, 0.0)

    def learn(self, job: MeasuredJob) -> None:
        """Learn from a job that ended."""
        record = job.job.job
        length = math.log(max(job.work, 1.0))
        group = (record.user, record.name)
        one_more(self._groups, group, length)
        one_more(self._users, record.user, length)
        self._all = (self._all[0] + 1.0, self._all[1] + length)
        end_s = job.job.ended_s or 0.0
        had = float(decayed(record.gpus * record.share / WHOLE_GPU, job.runtime_s))
        self._usage[record.user] = (self.usage(record.user, end_s) + had, end_s)
        if len(self._usage) > _GROUPS:
            self._usage.popitem(last=False)

    def usage(self, user: str, time_s: float) -> float:
        """GPU-seconds of a user's ended jobs; older ones count less."""
        had, when_s = self._usage.get(user, (0.0, time_s))
        return had * 0.5 ** (max(0.0, time_s - when_s) / HALF_LIFE_S)

    def remind(self, view: View, users: Sequence[str], groups: Sequence[tuple[str, str]], time_s: float) -> None:
        """Write the history into a view, with what running jobs have consumed."""
        now = float(view.clock[0].now)
        running = view.running[: view.clock[0].running]
        owners = view.jobs["user"][running]
        jobs = view.jobs
        units = (jobs["gpus"] * (jobs["share"] / WHOLE_GPU))[running]
        held = np.bincount(owners, decayed(units, now - view.runs["started"][running]), len(view.users))
        table = view.users.view(np.ndarray)
        table["gpus"] = np.bincount(owners, units, len(view.users))
        table["settled"] = now
        for u, user in enumerate(users):
            table["usage"][u] = self.usage(user, time_s) + held[u]
            table["finished"][u], table["log_work"][u] = self._users.get(user, (0.0, 0.0))
        known = view.groups.view(np.ndarray)
        for g, group in enumerate(groups):
            if g < len(known) and group in self._groups:
                known["finished"][g], known["log_work"][g] = self._groups[group]
        view.clock[0].finished, view.clock[0].log_work = self._all


@final
class Runtimes:
    """Learns from jobs that ended and predicts those that have not."""

    def __init__(self) -> None:
        self._habits = Habits.new(_KEYS)
        self._means = expected.empty(_KEYS)
        self._longest = np.zeros(1)  # s, the longest limit of a job that was seen
        self._telling = Lock()  # turns and questions both ask
        self._memory = Memory.new()
        self._past: dict[int, tuple[str, str, str, float]] = {}  # number -> id, name, user, runtime
        self._words: OrderedDict[int, Word] = OrderedDict()
        self.past = UserHistory()
        self.learnt = 0

    def learn(self, jobs: Sequence[MeasuredJob]) -> list[ExpectedWork]:
        """Learn jobs that ended, in this order; what was to be expected of each just before it was learnt."""
        if not jobs:
            return []
        before: list[ExpectedWork] = []
        traits = np.array([trait_of(each.job.job) for each in jobs], TRAIT).view(np.recarray)
        seconds = np.array([each.work / gpu_units(each.job.job) for each in jobs])
        rows = np.arange(len(jobs))
        told = self._habits.follow(traits, seconds, np.stack([rows, ~rows], axis=1).ravel())
        with self._telling:
            learn_live(self._means, traits, seconds)
        for each in jobs:
            self.past.learn(each)
        for each, (low, middle, high), ran in zip(jobs, told.tolist(), seconds.tolist(), strict=True):
            said = said_of(each.job.job)
            before.append(self._expected(each.job.job, said, low, middle, high))
            if said > 0.0:
                word = self._words.setdefault(one_hash(each.job.job.user), Word())
                self._words.move_to_end(one_hash(each.job.job.user))
                word.off.append(math.log(max(each.work, 1.0) / max(said, 1.0)))
                word.habits_off.append(math.log(max(ran, 1.0) / middle))
                if len(self._words) > _USERS:
                    self._words.popitem(last=False)
        self._remember(jobs, traits, seconds)
        self.learnt += len(jobs)
        return before

    def _expected(self, job: Job, said: float, low: float, middle: float, high: float) -> ExpectedWork:
        """As in `predict`: the user's estimate, shifted, or the seconds that habits say."""
        shift, spread, trusts_habits = self._words.get(one_hash(job.user), UNHEARD).weighed()
        if said > 0.0 and not trusts_habits:
            return ExpectedWork(said * math.exp(shift), spread)
        is_sure = 0.0 < low <= high < math.inf
        return ExpectedWork(middle * gpu_units(job), math.log(high / low) / (2 * TENTH) if is_sure else DOUBT)

    def _remember(self, jobs: Sequence[MeasuredJob], traits: Table, seconds: Floats) -> None:
        """Keep jobs for `like`, each under a number of its own."""
        state = self._memory.state
        capacity = len(state.number)
        for first in range(0, len(jobs), capacity):
            few = slice(first, first + capacity)
            before = int(state.learnt[0])
            count = len(jobs[few])
            self._memory.remember(traits[few].view(np.recarray), seconds[few], np.arange(count))
            numbers = np.arange(before, before + count)
            state.number[numbers % capacity] = numbers
            for number, each in zip(numbers.tolist(), jobs[few], strict=True):
                self._past[number] = each.job.id, each.job.job.name, each.job.job.user, each.runtime_s
                self._past.pop(number - capacity, None)

    def predict(self, traits: Table, jobs: Table, scale: Floats) -> Floats:
        """p10, p50 and p90 of the work of each job, in GPU-seconds on the reference model [J, 3].

        Where the submitter said something it is his word that counts, shifted by how far he was off lately, unless
        habits were clearly nearer to the truth for his jobs. No job is expected to run longer than its limit where it
        is fastest.
        """
        count = len(jobs)
        units = np.where(jobs["gpus"] > 0, jobs["gpus"] * (jobs["share"] / WHOLE_GPU), 1.0)
        longest = traits["limit"] * scale
        asked = traits.copy()
        asked["limit"] = longest
        rows = np.arange(count)
        found = self._habits.follow(asked.view(np.recarray), np.zeros(count), rows) * units[:, None]
        said = jobs["estimate"].astype(np.float64)
        has_said = said > 0.0
        if has_said.any():
            users, row_of = np.unique(traits["user"][has_said], return_inverse=True)
            words = [self._words.get(user, UNHEARD).weighed() for user in users.tolist()]
            shift, spread = np.array([word[0] for word in words]), np.array([word[1] for word in words])
            trusts_habits = np.array([word[2] for word in words])[row_of]
            middle, reach = shift[row_of], TENTH * spread[row_of]
            # A word that needs no shift is told as it was said, to the last digit.
            factors = np.exp(np.stack([middle - reach, middle, middle + reach], axis=1))
            told = np.maximum(said[has_said], 1.0)[:, None] * factors
            found[has_said] = np.where(trusts_habits[:, None], found[has_said], told)
        most = np.where(np.isfinite(longest), np.maximum(longest, 1.0) * units, np.inf)
        return np.maximum(np.minimum(found, most[:, None]), 1e-3)

    def tell(self, view: View, traits: Table, said: Floats, middle: Floats) -> None:
        """Write down what policies are told of jobs that wait and of which the submitter says nothing.

        As in the simulator (`predict/online.py`): the median alone would take too many long jobs for short ones.
        """
        runs, jobs, now = view.runs.view(np.ndarray), view.jobs, float(view.clock[0].now)
        units = np.where(jobs["gpus"] > 0, jobs["gpus"] * (jobs["share"] / WHOLE_GPU), 1.0)
        run = np.flatnonzero(runs["state"] == RUNNING)
        wait = np.flatnonzero((said <= 0.0) & (runs["state"] != RUNNING))
        speeds = view.rate[jobs["kind"][run], view.sites["form"][runs["site"][run]]] / units[run]
        moments = runs["since"][run] - runs["saved"][run] / units[run] / speeds
        seconds = np.zeros(len(wait))
        with self._telling:
            count_live(self._means, rows_of(traits, run), speeds, moments)
            logs = np.log(np.maximum(middle[wait] / units[wait], SHORTEST_S))
            tell_live(self._means, rows_of(traits, wait), logs, self._longest, now, seconds)
            count_live(self._means, rows_of(traits, run), -speeds, moments)
        view.jobs.estimate[wait] = seconds * units[wait]

    def like(self, traits: Table, most: int = 3) -> tuple[Like, ...]:
        """The past jobs that are most similar to the first of these."""
        found = []
        for similar in self._memory.like(traits, most):
            if (past := self._past.get(similar.number)) is not None:
                found.append(Like(*past, similarity=round(similar.similarity, 3)))
        return tuple(found)


def rows_of(table: Table, rows: npt.NDArray[np.intp]) -> Table:
    """Some rows of a table, as a table."""
    return cast(Table, np.ascontiguousarray(table[rows]).view(np.recarray))


def said_of(job: Job) -> float:
    """The user's estimate of the work; 0 if there is none."""
    return job.estimate if job.estimate is not None else job.work
