"""Speeds that are not what they were thought to be: measured work against expected work, with a change detector.

Every job that ended is held against what jobs like it were before: those of the same user and name, the user's own
estimates, or (where neither is known well enough) what was predicted of it when it started. What is left (a logarithm,
in units of its usual spread) goes into a two-sided CUSUM for its model, for its family on that model, for its sites,
and for each of its GPUs where they are known. A single worn GPU shows first at that GPU, because all its jobs
are slow; a driver update shows first at the model, because every job counts there. What was found explains the rest:
the other sums begin anew. A change that the same jobs show elsewhere too is none of the hardware: users do change
what they run. Then what is usual of these jobs is learnt anew, and nobody is told.
"""

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import numpy as np

from adlro.core.records import CPU_ONLY
from adlro.live.corrections import Corrections
from adlro.live.predicting import TENTH, MeasuredJob, centre, said_of
from adlro.live.service import Drift

ALLOWANCE: Final = 0.5
"""The k of the CUSUM: half of the shift, in spreads, that is found soonest. The usual value is known from n jobs only;
its possible error, 1.25 spreads over the root of n, is added."""

THRESHOLD: Final = 6.5
"""The h of the CUSUM. On normal noise: 2 false alarms over 54,000 jobs; a change of 1.5 spreads is found after 13 jobs
(median) or 22 jobs (90 % of cases), a large change after 3."""

_MOST: Final = 3.0
"""One job counts at most this many spreads: a job that failed early is no sign of a worn GPU."""

_LEAST_SPREAD: Final = 0.05
LEAST_SHIFT: Final = 0.05
"""Smaller changes of the logarithm are not corrected."""

LEAST_PAST: Final = 12
"""At least this many jobs of a kind must be known before another job is compared with them."""

_FEW: Final = 3
"""At least this many jobs are needed to tell which part of the cluster has changed."""

PAST: Final = 128
DELAY: Final = 24
"""A job counts as past after this many more jobs of its kind have ended. Otherwise a slow change would soon look
usual."""

_KINDS: Final = 4096
_KEYS: Final = 65_536
FOLLOW: Final = 0.1
"""The share of the remaining difference by which each job moves a correction."""

RESOLUTION: Final = 0.03
"""A correction in use changes only by more than this."""

_SLOWEST: Final = 0.2
FASTEST: Final = 3.0
LATELY: Final = 512
ELSEWHERE: Final = 4
"""The number of latest jobs of the same kind on other hardware that are looked at. If they show the same change, this
hardware is not its cause."""

PREDICTED: Final = "predicted"


class DriftKey(NamedTuple):
    """What may have changed: a model, a family on it, a site or a GPU. An empty name or NOBODY means all."""

    model: str
    family: str = ""
    node: str = ""
    gpu: int | None = None


class DriftSample(NamedTuple):
    """One job as evidence for a change."""

    left: float
    z: float
    keys: tuple[DriftKey, ...]
    kind: tuple[str, ...]
    number: int


@dataclass(slots=True)
class Sums:
    """The two-sided CUSUM of one key, with the jobs that each side was made of since it was last 0."""

    slow: float = 0.0
    fast: float = 0.0
    slow_by: list[DriftSample] = field(default_factory=list)
    fast_by: list[DriftSample] = field(default_factory=list)
    since_s: float = 0.0

    def add(self, seen: DriftSample, allowance: float, time_s: float) -> list[DriftSample]:
        """Add one job; return the jobs that show a change, if there is one."""
        z = seen.z
        if self.slow == 0.0 and self.fast == 0.0:
            self.since_s = time_s
        self.slow, self.fast = max(0.0, self.slow + z - allowance), max(0.0, self.fast - z - allowance)
        for total, made_of in ((self.slow, self.slow_by), (self.fast, self.fast_by)):
            if total == 0.0:
                made_of.clear()
            else:
                made_of.append(seen)
        if self.slow > THRESHOLD:
            return self.slow_by
        return self.fast_by if self.fast > THRESHOLD else []


@dataclass(slots=True)
class Found:
    """A change that was found."""

    log_factor: float
    jobs: int
    since_s: float
    used: float  # the factor in use


@dataclass(slots=True)
class Evidence:
    """The values of past jobs of one kind, and of the jobs that do not count yet."""

    past: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    recent: deque[float] = field(default_factory=deque)
    lately: deque[tuple[float, frozenset[DriftKey]]] = field(default_factory=lambda: deque(maxlen=4 * ELSEWHERE))

    def beside(self, key: DriftKey, left: float) -> float:
        """How much a job differs beyond what the latest jobs of its kind show elsewhere: users change what they run."""
        elsewhere = [other for other, keys in reversed(self.lately) if key not in keys][:ELSEWHERE]
        if len(elsewhere) < 2:
            return left
        less = left - float(np.median(elsewhere))
        return 0.0 if less * left <= 0.0 else math.copysign(min(abs(less), abs(left)), left)

    def renew(self) -> None:
        """Take the latest values as the usual ones."""
        lately = list(self.recent) or list(self.past)[-DELAY:]
        self.past.clear()
        self.past.extend(lately)
        self.recent.clear()

    def add(self, value: float) -> None:
        """Add a value; it counts after DELAY more jobs, or at once while few are known."""
        if len(self.past) < LEAST_PAST:
            self.past.append(value)
            return
        self.recent.append(value)
        if len(self.recent) > DELAY:
            self.past.append(self.recent.popleft())


@final
class Watch:
    """Watches the speeds of one cluster. Without `by_model` it judges nodes and GPUs only, not all GPUs of a model."""

    def __init__(self, by_model: bool = True) -> None:
        self._by_model = by_model
        self._kinds: OrderedDict[tuple[str, ...], Evidence] = OrderedDict()
        self._sums: OrderedDict[DriftKey, Sums] = OrderedDict()
        self._found: dict[DriftKey, Found] = {}
        self._lately: deque[DriftSample] = deque(maxlen=LATELY)
        self._seen = 0
        self._corrections = Corrections()

    @property
    def corrections(self) -> Corrections:
        """The speed corrections that every policy should use."""
        return self._corrections

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """The changes that are in use, the latest last."""
        found = sorted(self._found.items(), key=lambda item: item[1].since_s)
        return tuple(
            Drift(key.model, each.used, each.jobs, each.since_s, key.family, key.node, key.gpu) for key, each in found
        )

    def observe(self, job: MeasuredJob) -> Drift | None:
        """Compare a finished job with jobs like it; return the change that it reveals, if any."""
        if not job.parts or job.parts[0].model == CPU_ONLY or job.work <= 0.0 or job.job.ended_s is None:
            return None
        usual = self._usual(job)
        if usual is None:
            return None
        left, spread, known, kind = usual
        # A spread from few jobs is uncertain, and one that is too small makes noise look like drift.
        spread = max(spread, _LEAST_SPREAD) * (1.0 + 0.75 / math.sqrt(known))
        allowance = ALLOWANCE + 1.25 / math.sqrt(known)
        keys = keys_of(job)
        if kind[0] == PREDICTED or not self._by_model:
            keys = [key for key in keys if key.node]  # a prediction is not good enough to judge all GPUs of a model
        self._follow(keys, left, spread)
        self._seen += 1
        self._lately.append(seen_as(left, spread, keys, kind, self._seen))
        like_it = self._kinds.get(kind, Evidence())
        changed: tuple[DriftKey, list[DriftSample], float] | None = None
        largest = 0.0
        for key in keys:
            sums = self._sums.setdefault(key, Sums())
            self._sums.move_to_end(key)
            one = seen_as(like_it.beside(key, left), spread, keys, kind, self._seen)
            made_of = sums.add(one, allowance, job.job.ended_s)
            if made_of and max(sums.slow, sums.fast) > largest:  # of equal ones the widest
                largest = max(sums.slow, sums.fast)
                changed = key, made_of, sums.since_s
        like_it.lately.append((left, frozenset(keys)))
        while len(self._sums) > _KEYS:
            self._sums.popitem(last=False)
        return self._adopt(*changed) if changed else None

    def _usual(self, job: MeasuredJob) -> tuple[float, float, int, tuple[str, ...]] | None:
        """How much a job differs from jobs like it, their spread, number and kind; None if too few are known.

        The first kind with enough jobs counts; all kinds learn from the job.
        """
        found = None
        for kind, value in kinds_of(job):
            seen = self._kinds.setdefault(kind, Evidence())
            self._kinds.move_to_end(kind)
            if found is None and len(seen.past) >= LEAST_PAST:
                middle, spread = usual_of(seen.past)
                found = value - middle, spread, len(seen.past), kind
            seen.add(value)
        while len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        return found

    def _adopt(self, key: DriftKey, made_of: list[DriftSample], since_s: float) -> Drift | None:
        """Use a change as a correction if the hardware caused it, and reset every sum that it explains."""
        key, made_of = narrowed(key, made_of)
        shift, jobs = float(np.median([seen.left for seen in made_of])), len(made_of)
        is_of_hardware = self._is_of_hardware(key, made_of)
        if is_of_hardware is None:
            return None
        for other in [other for other in self._sums if other.model == key.model]:
            if not (other.node and key.node) or other.node == key.node:
                del self._sums[other]
        if not is_of_hardware:
            for kind in {seen.kind for seen in made_of}:
                if kind in self._kinds:
                    self._kinds[kind].renew()
            return None
        for known in self._kinds.values():
            known.recent.clear()
        if abs(shift) < LEAST_SHIFT:
            return None
        key = self._undone(key, shift)
        before = self._found.get(key)
        log_factor = (before.log_factor if before else 0.0) - shift
        log_factor = max(math.log(_SLOWEST), min(math.log(FASTEST), log_factor))
        if abs(log_factor) < LEAST_SHIFT:
            self._found.pop(key, None)
            self._publish()
            return Drift(key.model, 1.0, jobs, since_s, key.family, key.node, key.gpu)
        used = round(math.exp(log_factor), 2)
        self._found[key] = Found(log_factor, jobs + (before.jobs if before else 0), since_s, used)
        self._publish()
        return Drift(key.model, used, jobs, since_s, key.family, key.node, key.gpu)

    def _undone(self, key: DriftKey, shift: float) -> DriftKey:
        """The wider change that this one undoes, if any: a whole that was slow recovers as a whole."""
        for wider in (DriftKey(key.model, "", key.node), DriftKey(key.model, key.family), DriftKey(key.model)):
            found = self._found.get(wider)
            if wider != key and key not in self._found and found is not None and found.log_factor * shift < 0.0:
                return wider
        return key

    def _is_of_hardware(self, key: DriftKey, made_of: list[DriftSample]) -> bool | None:
        """Whether the hardware caused a change:

        its kinds of jobs do not show it elsewhere, or several users show it. None: too early to say.
        """
        here = mean_z(made_of)
        by_kind: dict[tuple[str, ...], list[DriftSample]] = {}
        for seen in made_of:
            by_kind.setdefault(seen.kind, []).append(seen)
        showing = {kind for kind, mine in by_kind.items() if mean_z(mine) / here >= 0.5}
        first = made_of[0].number
        elsewhere = [
            seen for seen in self._lately if seen.number >= first and seen.kind in showing and key not in seen.keys
        ]
        if len(elsewhere) >= _FEW:
            return mean_z(elsewhere) / here < 0.5
        users = Counter(seen.kind[1] for seen in made_of if seen.kind in showing and seen.kind[0] != PREDICTED)
        if sum(jobs > 1 for jobs in users.values()) > 1:
            return True
        return None if len(made_of) <= DELAY else False

    def _follow(self, keys: list[DriftKey], left: float, spread: float) -> None:
        """Move the corrections in use by the remaining difference of each job."""
        moved = False
        for key in keys:
            if (found := self._found.get(key)) is not None:
                found.jobs += 1
                found.log_factor -= FOLLOW * max(-_MOST * spread, min(_MOST * spread, left)) / len(keys)
                if abs(math.exp(found.log_factor) - found.used) > RESOLUTION:
                    found.used = round(math.exp(found.log_factor), 2)
                    moved = True
                if abs(found.log_factor) < LEAST_SHIFT / 2:
                    del self._found[key]
                    moved = True
        if moved:
            self._publish()

    def _publish(self) -> None:
        """Publish the corrections for policies."""
        found = {key: each.used for key, each in self._found.items()}
        self._corrections = Corrections(
            families={(key.family, key.model): used for key, used in found.items() if not key.node},
            gpus={(key.node, key.gpu): used for key, used in found.items() if key.gpu is not None},
            sites={(key.node, key.model): used for key, used in found.items() if key.node and key.gpu is None},
        )


def seen_as(left: float, spread: float, keys: list[DriftKey], kind: tuple[str, ...], number: int) -> DriftSample:
    """A job with its remaining difference, in spreads."""
    return DriftSample(left, max(-_MOST, min(_MOST, left / spread)), tuple(keys), kind, number)


def usual_of(past: deque[float]) -> tuple[float, float]:
    """The median of some values and their spread:

    from the distances to the median, or from the outer tenths if that is larger.
    """
    middle, spread = centre(past)
    low, high = np.quantile(np.fromiter(past, np.float64), (0.1, 0.9))
    return middle, max(spread, float(high - low) / (2 * TENTH))


def narrowed(key: DriftKey, made_of: list[DriftSample]) -> tuple[DriftKey, list[DriftSample]]:
    """The one site or GPU that causes a wider change, if the other jobs do not show it."""
    if key.gpu is not None:
        return key, made_of
    by_part: dict[DriftKey, list[DriftSample]] = {}
    for seen in made_of:
        for part in seen.keys:
            if part.node and part != key and part.node == (key.node or part.node):
                by_part.setdefault(part, []).append(seen)
    if not by_part:
        return key, made_of
    part, mine = max(by_part.items(), key=lambda item: abs(sum(seen.z for seen in item[1])))
    others = [seen for seen in made_of if part not in seen.keys]
    if not others:
        # Nothing else was seen: no word about others, unless several parts were always seen together.
        as_often = [each for each, seen in by_part.items() if len(seen) == len(mine)]
        alone = sum((each.gpu is None) == (part.gpu is None) for each in as_often) == 1
        return narrowed(part, mine) if alone else (key, made_of)
    if len(mine) < _FEW:
        return key, made_of
    rest = abs(mean_z(others))
    return narrowed(part, mine) if rest < ALLOWANCE and rest < abs(mean_z(mine)) / 2 else (key, made_of)


def mean_z(made_of: list[DriftSample]) -> float:
    """The mean in spreads."""
    return sum(seen.z for seen in made_of) / len(made_of)


def kinds_of(job: MeasuredJob) -> list[tuple[tuple[str, ...], float]]:
    """The kinds that a job is compared with, narrowest first, and its value for each:

    the error of the estimate, its work, or the error of the prediction.
    """
    record = job.job.job
    said = said_of(record)
    if said > 0.0:
        return [(("said", record.user, record.family), math.log(job.work / said))]
    found: list[tuple[tuple[str, ...], float]] = [
        (("ran", record.user, record.name, record.family, str(record.gpus)), math.log(job.work))
    ]
    if job.expected:
        found.append(((PREDICTED, record.family), math.log(job.work / job.expected)))
    return found


def keys_of(job: MeasuredJob) -> list[DriftKey]:
    """The keys that a job is evidence for, widest first."""
    model, family = job.parts[0].model, job.job.job.family
    keys = [DriftKey(model), DriftKey(model, family)]
    for part in job.parts:
        keys.append(DriftKey(part.model, "", part.node))
        keys += [DriftKey(part.model, "", part.node, number) for number in part.indices]
    return keys


def drift_in_words(drift: Drift) -> str:
    """A change in one sentence."""
    where = drift.model
    if drift.node:
        where = (
            f"{drift.node} ({drift.model})" if drift.gpu is None else f"GPU {drift.gpu} of {drift.node} ({drift.model})"
        )
    what = f"family {drift.family} on {where}" if drift.family else where
    if drift.factor == 1.0:
        return f"{what} runs at the expected speed again."
    return f"{what} runs at {drift.factor:.0%} of the expected speed, seen on {drift.jobs} jobs."
