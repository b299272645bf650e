"""A run in which policies learn how fast jobs run: beliefs are corrected by the jobs that have ended.

It only uses what could be measured: who submitted what, where and for how long it ran, and the estimate of its work
that policies were told. Work over time is a rate; its logarithm, less that of the prior, is an experience for the
memory of speeds. Jobs that were killed or lost work in a failure teach nothing.
"""

from collections.abc import Sequence
from typing import Final, final

import numpy as np
import numpy.typing as npt
from numba import types

from adlro.core.compiled import compiled_with
from adlro.core.driver import Player
from adlro.core.engine import DECIDE, LOG_FULL, TRUTH_TYPE, Truth, advance, apply, is_asked, log_is_full
from adlro.core.policy import CHOOSE_TYPE, VIEW_TYPE, Choose
from adlro.core.readings import unsure_in
from adlro.core.tables import DONE, FAILED, NOBODY, REFUSED, STARTED, STOPPED, Floats, Ints, View
from adlro.predict.encoder import Words
from adlro.predict.speed_memory import SpeedMemory, rates_believed, spreads_believed

NEWS: Final = 3
"""Why `_play_to_news` returned: a job has ended or arrived. The other reasons are those of `engine.advance`."""

_AT_A_LOOK: Final = 256
"""Waiting jobs whose speeds are believed anew when something was learnt, in turn."""

_MORE_OVERDUE: Final = 1.1
"""A job that should have ended teaches something new when it has run on for this multiple."""

_STILL: Final = 1.25
"""A job that should have ended is taken to need this multiple of the time that it has run."""

_SHORTEST_SHARE: Final = 0.1
"""A model on which a job spent less than this share of its time teaches nothing."""


TRY: Final = 0.35
_MOST_TRY: Final = 0.6
"""The logarithm of a waiting job's speed on a model is told higher by this multiple of its spread there, beyond that on
the model that is known best, and at most by so much: a model that nobody tries is never learnt."""

_CHEAP: Final = 1.0
_RECENT: Final = 256
"""Only jobs that cost little try models: fully up to this share of the median work of recent jobs, and less and less up
to e times that."""


@compiled_with(types.int64(VIEW_TYPE, TRUTH_TYPE, CHOOSE_TYPE, types.int64))
def _play_to_news(view: View, truth: Truth, choose: Choose, every: int) -> int:
    """Play until the first choice of a moment with news (of every moment, if `every` is 1), or to the end.

    Call it again after looking: `choices` then is 0 and `halfway` as it was, so the choices of the moment follow.
    """
    read = truth.progress[0].events
    arrived = view.clock[0].arrived
    looked = is_asked(truth)
    while True:
        if not looked:
            status = advance(view, truth)
            if status != DECIDE:
                return status
            if log_is_full(view, truth):
                return LOG_FULL
            if truth.progress[0].choices == 0:
                news = every == 1 or view.clock[0].arrived != arrived
                while read < truth.progress[0].events:
                    news |= truth.events[read].what != STARTED
                    read += 1
                if news:
                    return NEWS
        looked = False
        while is_asked(truth):
            if log_is_full(view, truth):
                return LOG_FULL
            apply(view, truth, choose(view))


@final
class LearningSpeeds:
    """Plays one run. `view.rate` and `view.fastest` must belong to this run only.

    `vectors` are the jobs as the memory sees them, `prior` the rates [J, H] that are believed before anything has
    ended, `possible` says where each job fits on the empty cluster [J, H], `model_of` gives the memory's number of the
    model of each form (NOBODY: no GPUs). `then` is the player of a runtime predictor, if there is one.
    """

    def __init__(
        self,
        memory: SpeedMemory,
        vectors: Words,
        prior: Floats,
        possible: npt.NDArray[np.bool_],
        model_of: Ints,
        then: Player | None = None,
    ) -> None:
        self.memory, self._vectors, self._prior, self._possible = memory, vectors, prior, possible
        self._model_of, self._then = model_of, then
        count = len(prior)
        self._followed = np.full(count, NOBODY, np.int32)  # by job: its number among those that the memory follows
        self._told = np.zeros(count)
        self._form = np.full(count, NOBODY, np.int64)
        self._since = np.zeros(count)
        self._spent = np.zeros((count, prior.shape[1]))  # seconds of work on each form
        self._ran = np.zeros(count, np.bool_)
        self._spoiled = np.zeros(count, np.bool_)
        self._heard = np.full(count, np.inf)  # seconds after which an overdue job teaches something new
        self._taught: list[tuple[int, int]] = []
        self._read = self._arrived = self._turn = 0

    def play(self, view: View, truth: Truth, choose: Choose) -> int:
        """Like `engine.play`, with a look whenever something has happened."""
        while True:
            status = _play_to_news(view, truth, choose, 0 if self._then is None else 1)
            if status != NEWS:
                return status
            self.look(view, truth)

    def look(self, view: View, truth: Truth) -> None:
        """Learn from jobs that have ended, and correct what is believed of those that wait or run."""
        if self._then is not None:
            self._then.look(view, truth)
        started, learnt = self._read_log(view, truth)
        self._correct(view, started)
        learnt |= self._note_overdue(view)
        clock = view.clock[0]
        last, queued = int(clock.arrived), int(clock.queued)
        new = self._arrived + np.flatnonzero(view.runs["state"][self._arrived : last] != REFUSED)
        if len(new):
            self._told[new] = view.jobs["estimate"][new]
            self._followed[new] = self.memory.follow(self._vectors[new])
        self._arrived = last
        waiting = new.tolist()
        if learnt:
            some = min(_AT_A_LOOK, queued)
            places = (self._turn + np.arange(some)) % max(1, queued)
            waiting += view.queue[int(clock.head) + places].tolist()
            self._turn += some
            self._correct(view, view.running[: int(clock.running)].tolist())
        self._correct(view, sorted(set(waiting)), is_waiting=True)

    def taught(self) -> list[tuple[int, int]]:
        """The jobs that have taught something, each with the number of the model that it ran on."""
        return list(self._taught)

    def _read_log(self, view: View, truth: Truth) -> tuple[list[int], bool]:
        """Read what has happened: the jobs that have started, and whether something was learnt."""
        started, learnt, last = [], False, int(truth.progress[0].events)
        for event in truth.events[self._read : last]:
            j, what = int(event.job), int(event.what)
            if what == STARTED:
                restart = float(view.clock[0].restart) if self._ran[j] else 0.0
                self._form[j], self._since[j] = int(view.sites[int(event.site)].form), float(event.time) + restart
                self._ran[j] = True
                started.append(j)
            elif what in (DONE, STOPPED, FAILED):
                self._spent[j, self._form[j]] += max(0.0, float(event.time) - self._since[j])
                self._spoiled[j] |= what == FAILED
                if what == DONE and not self._spoiled[j]:
                    learnt |= self._learn(view, j)
                if what == DONE:
                    self.memory.unfollow([int(self._followed[j])])
                    self._followed[j] = NOBODY
        self._read = last
        return [j for j in started if self._followed[j] != NOBODY], learnt

    def _note_overdue(self, view: View) -> bool:
        """Learn from jobs that still run and should have ended: they are slower than was believed."""
        running = view.running[: int(view.clock[0].running)]
        fresh = running[(self._spent[running].sum(axis=1) == 0.0) & (self._form[running] >= 0)]
        rate = view.rate[fresh, self._form[fresh]]
        ran = float(view.clock[0].now) - self._since[fresh]
        due = np.where(np.isinf(self._heard[fresh]), self._told[fresh] / np.maximum(rate, 1e-12), self._heard[fresh])
        late = np.flatnonzero((ran > due) & (self._told[fresh] > 0.0) & (self._model_of[self._form[fresh]] != NOBODY))
        for i in late.tolist():
            j, h = int(fresh[i]), int(self._form[fresh[i]])
            log = float(np.log(self._told[j] / (_STILL * ran[i] * self._prior[j, h])))
            model = int(self._model_of[h])
            if not self.memory.revise(model, log, j):
                self.memory.learn(self._vectors[j], model, log, j, is_final=False)
            self._heard[j] = _MORE_OVERDUE * ran[i]
        return len(late) > 0

    def _learn(self, view: View, j: int) -> bool:
        """Learn a job that has done all its work."""
        spent, rate = self._spent[j], view.rate[j]
        expected = float(spent @ rate)
        if expected <= 0.0 or self._told[j] <= 0.0:
            return False
        off = float(np.log(self._told[j] / expected))  # how much faster it was than believed, over all its stretches
        whole = float(spent.sum())
        for h in np.flatnonzero(spent > _SHORTEST_SHARE * whole).tolist():
            if self._model_of[h] != NOBODY:
                log = off + float(np.log(rate[h] / self._prior[j, h]))
                model = int(self._model_of[h])
                self._taught.append((j, model))
                if self._heard[j] == np.inf or not self.memory.revise(model, log, j, is_final=True):
                    self.memory.learn(self._vectors[j], model, log, j, whole / float(spent[h]))
        return True

    def _correct(self, view: View, jobs: Sequence[int], is_waiting: bool = False) -> None:
        """Write the beliefs about these jobs into the view."""
        if not jobs:
            return
        rows = np.array(jobs)
        belief = self.memory.followed(self._followed[rows])
        shift = belief.shift + self._tries(rows, belief.spread) if is_waiting else belief.shift
        view.rate[rows] = rates_believed(self._prior[rows], shift, self._model_of)
        unsure_in(view)[rows] = spreads_believed(belief.spread, self._model_of)
        view.fastest[rows] = np.where(self._possible[rows], view.rate[rows], 0.0).max(axis=1)

    def _tries(self, rows: Ints, spread: Floats) -> Floats:
        """How much higher the speeds of these waiting jobs are told, so that models are tried [n, M]."""
        median = float(np.median(self._told[max(0, self._arrived - _RECENT) : self._arrived]))
        costs = np.log(np.maximum(self._told[rows], 1e-9) / max(_CHEAP * median, 1e-9))
        beyond = spread - spread.min(axis=1, keepdims=True)
        return np.asarray(np.minimum(TRY * beyond, _MOST_TRY) * np.clip(1.0 - costs, 0.0, 1.0)[:, None])
