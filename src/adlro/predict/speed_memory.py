"""The memory of speeds: which job ran where and how fast, and what that says about other jobs on other GPUs.

An experience is the vector of a job, the GPU model that it ran on, and the logarithm of its speed there over that of
the datasheet. Two experiences are alike if the jobs are (similarity of their hypervectors) and the GPUs are (similarity
of theirs, and what their datasheets say about jobs bound by different units). With this likeness as a covariance, the
belief about a job on a model is the mean of a Gaussian process: a weighted sum of experiences, with its uncertainty.

A model that has become slower or faster as a whole is noticed by a CUSUM test on the errors of the beliefs; the
experiences from before the change are then moved by its size.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import compiled_alone
from adlro.core.records import GpuModel
from adlro.core.tables import Floats, Ints
from adlro.predict.encoder import Words
from adlro.predict.job_parts import LONG, gpu_vectors
from adlro.predict.memory import ones

MOST_EXPERIENCES: Final = 1024
"""A full memory first forgets experiences that newer ones say as well, then the oldest."""

BOUND_OF_ALL: Final = 0.4
BOUND_OF_ALIKE: Final = 1.6
"""Variance of how far a unit bounds jobs (by the datasheets): what all jobs have in common, and jobs alike."""

MODEL_OF_ALL: Final = 0.8
MODEL_OF_ALIKE: Final = 0.6
"""Variance of the speed on a model apart from its datasheet: what all jobs have in common there, and jobs alike."""

_MODEL_ALONE: Final = 0.4
"""Share of these variances that a model shares with no other, however similar its parts are."""

ON_REFERENCE: Final = 0.2
"""Spread on the reference model over that on others, where work is told in its seconds: its speed is then 1."""

ANY_GPU: Final = 0.1
"""Variance of an error in the estimates of jobs alike, which is the same on every model."""

HEDGE: Final = 1.25
"""Before anything is known, a job is taken to be bound by each unit in part, and by none. This times that mean is the
first belief: it is more than 1 because a model that is believed too fast is tried and corrected, while nobody tries one
that is believed too slow.
"""

NOISE: Final = 0.06
"""Variance of one experience around the belief."""

_LIKE_ENOUGH: Final = 0.7
_TOLD_OFTEN: Final = 6
_MOST_SHIFT: Final = 3.0
_LEAST_VARIANCE: Final = 1e-6

CUSUM_SLACK: Final = 0.75
CUSUM_ALARM: Final = 10.0
_MOST_Z: Final = 2.0
_ERRORS_KEPT: Final = 64
_LARGE: Final = 0.8
_LEAST_ERROR: Final = 0.1
FEWEST_TO_JUDGE: Final = 12
"""Errors of a model are not judged before it has this many experiences."""


@compiled_alone
def fill_similarities(some: Words, others: Words, out: Floats) -> None:
    """Fill in the similarity of each vector with each of the others: 1 for equal ones, about 0 for unrelated ones."""
    entries = 64.0 * some.shape[1]
    for i in range(len(some)):
        for k in range(len(others)):
            apart = 0
            for w in range(some.shape[1]):
                apart += ones(some[i, w] ^ others[k, w])
            out[i, k] = 1.0 - 2.0 * apart / entries


def similarities(some: Words, others: Words) -> Floats:
    """Similarity of each vector with each of the others [n, m]."""
    out = np.zeros((len(some), len(others)))
    fill_similarities(some, others, out)
    return out


@dataclass(frozen=True, slots=True)
class SpeedBelief:
    """What is believed of some jobs on each model: logarithm of the speed over the prior's, and its spread [n, M]."""

    shift: Floats
    spread: Floats


def rates_believed(prior: Floats, shift: Floats, model_of: Ints) -> Floats:
    """How a belief becomes rates [n, H]: the prior's, moved by what is believed of the model of each form.

    `shift` is by job and model [n, M], `model_of` the model of each form (NOBODY: no GPUs, as the prior says).
    """
    return np.asarray(prior * np.exp(np.where(model_of >= 0, shift[:, model_of], 0.0)))


def spreads_believed(spread: Floats, model_of: Ints) -> Floats:
    """The spread of the logarithm of each of those rates [n, H], from that by model [n, M]; 0 without GPUs."""
    return np.asarray(np.where(model_of >= 0, spread[:, model_of], 0.0))


@dataclass(frozen=True, slots=True)
class ModelShift:
    """A model that became slower or faster as a whole: by which factor, and how many experiences showed it."""

    model: int
    factor: float
    seen: int


class _Followed(NamedTuple):
    """Jobs that are followed: vectors [F, LONG/64], likeness with each experience [F, most], variance [F, M]."""

    vectors: Words
    like: Floats
    variance: Floats


@dataclass(slots=True)
class _Watch:
    """The CUSUM sums of a model's errors, upwards and downwards, and the errors since each sum was last 0."""

    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    errors: list[list[tuple[float, int]]] = field(default_factory=lambda: [[], []])
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_ERRORS_KEPT))


@final
class SpeedMemory:
    """Experiences of jobs on some GPU models.

    `bounds` [B, M] is how jobs that one unit bounds differ from the prior: log of their speed over the prior's; it is
    0 on the reference model. `any_gpu` is the variance of what jobs alike have in common on every model, `noise` that
    of one experience, `on_reference` the spread on the reference model over that on others. Jobs that are *followed*
    are kept up to date with each experience, which is much faster than to ask for their beliefs anew.
    """

    def __init__(
        self,
        models: Sequence[GpuModel],
        bounds: Floats,
        most: int = MOST_EXPERIENCES,
        any_gpu: float = ANY_GPU,
        noise: float = NOISE,
        on_reference: float = 1.0,
    ) -> None:
        vectors = gpu_vectors(models)
        alike = np.maximum(similarities(vectors, vectors), 0.0)
        bound = bounds.T @ bounds / max(1, len(bounds))
        free = np.where(np.abs(bounds).max(axis=0, initial=0.0) > 0.0, 1.0, on_reference)
        model = ((1.0 - _MODEL_ALONE) * alike + _MODEL_ALONE * np.eye(len(models))) * np.outer(free, free)
        self._all: Floats = BOUND_OF_ALL * bound + MODEL_OF_ALL * model  # covariance on two models [M, M]: of all jobs,
        self._alike: Floats = BOUND_OF_ALIKE * bound + MODEL_OF_ALIKE * model + any_gpu  # and of jobs alike
        self._usual = HEDGE * bounds.mean(axis=0) if len(bounds) else np.zeros(len(models))
        self._most, self._noise_of_one = most, noise
        self._followed = _Followed(
            np.zeros((0, LONG // 64), np.uint64), np.zeros((0, most)), np.zeros((0, len(models)))
        )
        self._free: list[int] = []
        self._vectors = np.zeros((most, LONG // 64), np.uint64)
        self._model = np.zeros(most, np.int64)
        self._log = np.zeros(most)
        self._noise = np.zeros(most)
        self._unsure = np.zeros(most)
        self._before = np.zeros(most)  # what was believed before it
        self._serial = np.zeros(most, np.int64)  # its own number, negative until it is final
        self._number = np.zeros(most, np.int64)
        self._inverse = np.zeros((most, most))
        self._room = np.zeros((most, most))  # so that an update of the inverse allocates nothing
        self._weights = np.zeros(most)
        self._watched = [_Watch() for _ in models]
        self._count = 0
        self.learnt = 0

    def __len__(self) -> int:
        """Number of experiences stored now."""
        return self._count

    def learn(
        self,
        vector: Words,
        model: int,
        log: float,
        number: int = 0,
        doubt: float = 1.0,
        unsure: float = 0.0,
        is_final: bool = True,
    ) -> ModelShift | None:
        """Store an experience under a number; more `doubt` means that it counts less. Tells if the model has changed.

        `log` is the logarithm of the speed that was seen over that of the prior. `unsure` is the spread of an error in
        it that experiences of jobs alike have in common on every model, and that is no speed: their work was predicted.
        One that is not final is not judged before it is revised for the last time.
        """
        log = min(max(log, -_MOST_SHIFT), _MOST_SHIFT)
        n = self._count
        column = self._column(vector, model, unsure)
        believed = float(self._usual[model] + column @ self._weights[:n])
        believed = min(max(believed, -_MOST_SHIFT), _MOST_SHIFT)
        changed = self._watch(model, log - believed, self.learnt) if is_final else None
        if n == self._most:
            self._forget()
            n = self._count
            column = self._column(vector, model, unsure)
        own = float(self._variance()[model]) + unsure**2 + self._noise_of_one * doubt
        self._vectors[n], self._model[n], self._log[n], self._unsure[n] = vector, model, log, unsure
        self._noise[n], self._number[n] = self._noise_of_one * doubt, number
        self._before[n], self._serial[n] = believed, self.learnt if is_final else -1 - self.learnt
        inverse = self._inverse
        solved = inverse[:n, :n] @ column
        left = own - float(column @ solved)
        self._tell_followed(vector, model, solved, left)
        inverse[:n, :n] += np.multiply(solved[:, None], solved / left, out=self._room[:n, :n])
        inverse[:n, n] = inverse[n, :n] = -solved / left
        inverse[n, n] = 1.0 / left
        weight = (log - float(self._usual[model]) - float(column @ self._weights[:n])) / left
        self._weights[:n] -= weight * solved
        self._weights[n] = weight
        self._count, self.learnt = n + 1, self.learnt + 1
        return changed

    def revise(self, model: int, log: float, number: int, is_final: bool = False) -> bool:
        """Give the experience with this number on this model another speed; False if there is none.

        The last time (`is_final`) its error against what was believed before it is judged.
        """
        n = self._count
        found = np.flatnonzero((self._number[:n] == number) & (self._model[:n] == model))
        if not len(found):
            return False
        at = int(found[-1])
        self._log[at] = min(max(log, -_MOST_SHIFT), _MOST_SHIFT)
        self._weigh()
        if is_final and self._serial[at] < 0:
            self._serial[at] = -1 - self._serial[at]
            self._watch(model, float(self._log[at] - self._before[at]), int(self._serial[at]))
        return True

    def shift_of(self, vectors: Words) -> Floats:
        """What is believed of these jobs on each model: logarithm of the speed over the prior's [n, M]."""
        return self._shift(self._job_likeness(vectors))

    def believe(self, vectors: Words) -> SpeedBelief:
        """What is believed of these jobs on each model, and how surely."""
        like = self._job_likeness(vectors)
        return SpeedBelief(self._shift(like), np.sqrt(self._left(like)))

    def spread_at_first(self) -> Floats:
        """How sure a belief about any job is before anything was learnt: the spread on each model [M]."""
        return np.sqrt(self._variance())

    def profile(self, vectors: Words) -> tuple[Floats, Floats]:
        """What is believed of these jobs in the mean, on the models together: mean [M] and covariance [M, M]."""
        n = self._count
        alike = float(np.maximum(similarities(vectors, vectors), 0.0).mean())
        own = self._all + alike * self._alike
        covariance = self._covariances(self._job_likeness(vectors).mean(axis=0, keepdims=True))[0]
        known = covariance @ self._inverse[:n, :n] @ covariance.T
        return np.asarray(self._usual + covariance @ self._weights[:n]), np.asarray(own - known)

    def shares(self, vector: Words, model: int) -> list[tuple[int, float, float]]:
        """The experiences that a belief rests on, most important first: number, share of the weight, similarity."""
        n = self._count
        if n == 0:
            return []
        column = self._covariance(vector[None, :], np.array([model]))[0]
        weights = np.abs(self._inverse[:n, :n] @ column)
        weights /= max(float(weights.sum()), 1e-12)
        alike = similarities(vector[None, :], self._vectors[:n])[0]
        order = np.argsort(-weights, kind="stable")
        return [(int(self._number[i]), float(weights[i]), float(alike[i])) for i in order]

    def numbers(self) -> list[int]:
        """The numbers of the experiences that are stored now, the oldest first."""
        return [int(number) for number in self._number[: self._count]]

    def vector_of(self, number: int) -> Words | None:
        """The vector of the latest experience with this number; None if it has been forgotten."""
        found = np.flatnonzero(self._number[: self._count] == number)
        return self._vectors[found[-1]] if len(found) else None

    # ---- followed jobs ---------------------------------------------------------------------------------------------

    def follow(self, vectors: Words) -> Ints:
        """Follow these jobs; returns a number for each, which `followed` and `unfollow` take."""
        old = self._followed
        if len(self._free) < len(vectors):
            there, more = len(old.vectors), max(64, len(old.vectors), len(vectors))
            self._followed = _Followed(*(np.concatenate([a, np.zeros((more, a.shape[1]), a.dtype)]) for a in old))
            self._free = [*range(there + more - 1, there - 1, -1), *self._free]
        numbers = np.array([self._free.pop() for _ in range(len(vectors))], np.int32)
        new, like = self._followed, self._job_likeness(vectors)
        new.vectors[numbers] = vectors
        new.like[numbers, : self._count] = like
        new.variance[numbers] = self._left(like)
        return numbers

    def unfollow(self, numbers: Iterable[int]) -> None:
        """Follow these jobs no longer."""
        self._free.extend(numbers)

    def followed(self, numbers: Ints) -> SpeedBelief:
        """What `believe` says of these followed jobs."""
        now = self._followed
        return SpeedBelief(self._shift(now.like[numbers, : self._count]), np.sqrt(now.variance[numbers]))

    def _tell_followed(self, vector: Words, model: int, solved: Floats, left: float) -> None:
        """Lower the variance of the followed jobs by what a new experience tells; its own variance was `left`."""
        now, n = self._followed, self._count
        if not len(now.vectors):
            return
        like = np.maximum(similarities(now.vectors, vector[None, :]), 0.0)
        shared = self._all[:, model] + like * self._alike[:, model]
        shared -= self._summed(now.like[:, :n], solved)
        now.like[:, n] = like[:, 0]
        np.maximum(now.variance - shared**2 / left, _LEAST_VARIANCE, out=now.variance)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _summed(self, like: Floats, weights: Floats) -> Floats:
        """Sum over all experiences of weight × covariance with jobs that are so much like them [n, M]."""
        by_model = np.zeros((self._count, len(self._all)))
        by_model[np.arange(self._count), self._model[: self._count]] = weights
        return np.asarray(by_model.sum(axis=0) @ self._all + (like @ by_model) @ self._alike)

    def _shift(self, like: Floats) -> Floats:
        """What is believed of jobs that are so much like the experiences [n, M]."""
        shift = self._usual + self._summed(like, self._weights[: self._count])
        return np.clip(shift, -_MOST_SHIFT, _MOST_SHIFT)

    def _left(self, like: Floats) -> Floats:
        """The variance that experiences have left of jobs that are so much like them [n, M]."""
        n = self._count
        flat = self._covariances(like).reshape(len(like) * len(self._all), n)
        known = np.einsum("ij,ij->i", flat @ self._inverse[:n, :n], flat).reshape(len(like), len(self._all))
        return np.maximum(self._variance() - known, _LEAST_VARIANCE)

    def _job_likeness(self, vectors: Words) -> Floats:
        return np.maximum(similarities(vectors, self._vectors[: self._count]), 0.0)

    def _covariances(self, like: Floats) -> Floats:
        """Covariance of each of some jobs on each model with all experiences [n, M, count], by their likeness."""
        models = self._model[: self._count]
        return np.asarray(self._all[:, models] + like[:, None, :] * self._alike[:, models])

    def _column(self, vector: Words, model: int, unsure: float) -> Floats:
        """Covariance of a new experience with all others [count]."""
        column = self._covariance(vector[None, :], np.array([model]))[0]
        if unsure == 0.0 or self._count == 0:
            return column
        alike = self._job_likeness(vector[None, :])[0]
        return np.asarray(column + alike * unsure * self._unsure[: self._count])

    def _covariance(self, vectors: Words, models: npt.NDArray[np.int64]) -> Floats:
        """Covariance of each of these (job, model) pairs with all experiences [n, count]."""
        at = np.ix_(models, self._model[: self._count])
        return np.asarray(self._all[at] + self._job_likeness(vectors) * self._alike[at])

    def _variance(self) -> Floats:
        """Variance before anything is known, by model."""
        return np.asarray(np.diag(self._all) + np.diag(self._alike))

    def _weigh(self) -> None:
        n = self._count
        self._weights[:n] = self._inverse[:n, :n] @ (self._log[:n] - self._usual[self._model[:n]])

    def _forget(self) -> None:
        """Drop experiences that newer ones of the same model and of jobs alike say as well, then the oldest."""
        n = self._count
        alike = similarities(self._vectors[:n], self._vectors[:n])
        kept: list[int] = []
        for i in range(n - 1, -1, -1):
            same = [k for k in kept if self._model[k] == self._model[i] and alike[i, k] > _LIKE_ENOUGH]
            if len(same) < _TOLD_OFTEN:
                kept.append(i)
        rows = np.array(sorted(kept[: self._most * 3 // 4]))
        m = len(rows)
        for array in (
            self._vectors,
            self._model,
            self._log,
            self._noise,
            self._unsure,
            self._number,
            self._before,
            self._serial,
        ):
            array[:m] = array[rows]
        self._count = m
        jobs = np.maximum(alike[np.ix_(rows, rows)], 0.0)
        at = np.ix_(self._model[:m], self._model[:m])
        unsure = np.outer(self._unsure[:m], self._unsure[:m])
        whole = self._all[at] + jobs * (self._alike[at] + unsure) + np.diag(self._noise[:m])
        self._inverse[:m, :m] = np.linalg.inv(whole)
        self._weigh()
        now = self._followed
        now.like[:, :m] = now.like[:, rows]
        now.variance[:] = self._left(now.like[:, :m])

    def _watch(self, model: int, error: float, serial: int) -> ModelShift | None:
        """Add an error to the sums of its model; if one of them is too large, the model has changed."""
        watch = self._watched[model]
        usual = math.sqrt(sum(each**2 for each in watch.recent) / max(1, len(watch.recent)))
        watch.recent.append(error)
        if len(watch.recent) <= FEWEST_TO_JUDGE:
            return None
        z = min(max(error / max(usual, _LEAST_ERROR), -_MOST_Z), _MOST_Z)
        for side, sign in enumerate((1.0, -1.0)):
            watch.sums[side] = max(0.0, watch.sums[side] + sign * z - CUSUM_SLACK)
            if watch.sums[side] == 0.0:
                watch.errors[side].clear()
                continue
            watch.errors[side].append((error, serial))
            if watch.sums[side] > CUSUM_ALARM:
                return self._move(model, watch.errors[side])
        return None

    def _move(self, model: int, showing: list[tuple[float, int]]) -> ModelShift:
        """Move the experiences of a model from before a change by its size."""
        errors = [error for error, _ in showing]
        sign = 1.0 if sum(errors) > 0.0 else -1.0
        # Not the mean: the first may be from before the change, and the last ones have moved the belief already.
        size, seen = sign * float(np.quantile(sign * np.array(errors), _LARGE)), len(errors)
        n = self._count
        after = np.isin(self._serial[:n], [serial for _, serial in showing]) | (self._serial[:n] < 0)
        before = np.flatnonzero((self._model[:n] == model) & ~after)
        self._log[before] = np.clip(self._log[before] + size, -_MOST_SHIFT, _MOST_SHIFT)
        self._watched[model] = _Watch(recent=self._watched[model].recent)
        self._weigh()
        return ModelShift(model, math.exp(size), seen)
