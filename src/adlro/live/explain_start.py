"""Why a job was started where it was: what the policy saw, and how long it will run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from adlro.core.rules import in_queue, queue_position, runtime
from adlro.core.tables import FOREVER, NOBODY, Floats, View
from adlro.decide.catalogue import CHECKPOINT
from adlro.decide.checkpoint import read_arrays, read_weights
from adlro.decide.network.greedy_q import ROWS, Mind, advice_by_q, new_mind, shipped
from adlro.decide.network.inference import Weights
from adlro.decide.network.readings import PRESET, no_worth, shipped_worth, worth_of_arrays
from adlro.live.explain_places import mention_of, parts_at, places_of
from adlro.live.guard import STARVATION_GUARD, Chosen
from adlro.live.scene import Scene
from adlro.live.service import Alternative, Mention
from adlro.live.words import short_names, spell

MOST_OLDER: Final = 4
"""How many older jobs at the head of the queue are looked at when a job starts."""

MOST_PLACES: Final = 2
"""How many other open places a sentence names."""

CLEARLY: Final = 0.1
"""A busy model is named if the job would run shorter there by this share."""

MARGIN: Final = 0.05
"""Runtimes that differ by less than this share count as equal."""

NETWORKS: Final[Mapping[str, Callable[[], Weights]]] = {"adlro": shipped, "adlro-lookahead": shipped}
"""The policies of the catalogue that use a network, and its weights. Readings are worth the same to both."""


@final
class Judge:
    """Reads the scores of the network behind a policy; a policy without a network has no scores."""

    def __init__(self, policy: str) -> None:
        self._weights, self._worth = weights_behind(policy), worth_behind(policy)
        self._mind: tuple[tuple[int, ...], Mind] | None = None

    @property
    def has_network(self) -> bool:
        """Whether there is a network to read."""
        return self._weights is not None

    def scores(self, view: View) -> tuple[dict[tuple[int, int], float], float]:
        """Q of each legal (job, site) pair that the network looks at, and of waiting."""
        mind = self._mind_for(view)
        if mind is None or view.clock[0].queued == 0:
            return {}, 0.0
        most = ROWS * len(view.pools)
        jobs, sites, scores = np.zeros(most, np.int32), np.zeros(most, np.int32), np.zeros(most)
        _, count, _, _ = advice_by_q(view, mind, jobs, sites, scores)
        pairs = zip(jobs[:count].tolist(), sites[:count].tolist(), strict=True)
        return dict(zip(pairs, scores[:count].tolist(), strict=True)), float(mind.q[-1])

    def check(self, view: View) -> str:
        """What is wrong with the network's scores; "" if all are finite."""
        found, waiting = self.scores(view)
        if all(np.isfinite(value) for value in (*found.values(), waiting)):
            return ""
        return "the network's judgement is not a number."

    def _mind_for(self, view: View) -> Mind | None:
        if self._weights is None:
            return None
        shape = (len(view.pools), len(view.gpus), *view.spare.shape)
        if self._mind is None or self._mind[0] != shape:
            self._mind = shape, new_mind(view, self._weights, ROWS, worth=self._worth)
        return self._mind[1]


def weights_behind(policy: str) -> Weights | None:
    """The network that decides in a policy, or advises it."""
    if policy in NETWORKS:
        return NETWORKS[policy]()
    preset = preset_of(policy)
    if preset == PRESET:
        return shipped()
    return read_weights(Path(policy))[0] if preset not in (None, "paper") else None


def worth_behind(policy: str) -> Floats:
    """What readings of GPUs are worth to this network."""
    if policy in NETWORKS:
        return shipped_worth()
    if preset_of(policy) == PRESET:
        return worth_of_arrays(read_arrays(Path(policy))[0], policy)
    return no_worth()


def preset_of(policy: str) -> str | None:
    """The preset of a checkpoint, "" if it names none; None for a policy that is no checkpoint."""
    return str(read_arrays(Path(policy))[1].get("preset", "")) if policy.endswith(CHECKPOINT) else None


@dataclass(frozen=True, slots=True)
class Older:
    """A job that had waited longer than one that started: whether it fitted then, and its shortest runtime."""

    job: int
    fits: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Around:
    """The circumstances of a start: faster places that were busy, and the oldest jobs that had waited longer."""

    busy: tuple[tuple[str, float], ...] = ()  # model and runtime there
    older: tuple[Older, ...] = ()
    ahead: int = 0  # how many waited longer


@final
class Explaining:
    """Finds the alternatives of a start. It takes time, so only the first choices of a turn are explained."""

    def __init__(self, scene: Scene, judge: Judge, most: int) -> None:
        self._scene, self._judge, self._left = scene, judge, most
        self.around: dict[int, Around] = {}  # by job
        self._nowhere: set[int] = set()  # fit nowhere: starts only take room
        self._running = 0

    def __call__(self, view: View, j: int, s: int) -> tuple[tuple[Alternative, ...], float | None]:
        """The alternatives of a start, the chosen one first, and its score."""
        self.around.pop(j, None)
        if self._left <= 0:
            return (), None
        self._left -= 1
        scores, _ = self._judge.scores(view)
        spots, seconds = places_of(view, j)
        chosen_pool = int(view.sites[s].pool)
        mine = float(runtime(view, j, s))
        found = [Alternative(parts_at(self._scene, view, j, s), scores.get((j, s)), round(mine, 3), True)]
        for p, spot in enumerate(spots.tolist()):
            if spot != NOBODY and p != chosen_pool:
                parts = parts_at(self._scene, view, j, spot)
                found.append(Alternative(parts, scores.get((j, spot)), round(float(seconds[p]), 3)))
        models = self._scene.plan.models
        busy = tuple(
            (models[p], float(seconds[p]))
            for p, spot in enumerate(spots.tolist())
            if spot == NOBODY and p != chosen_pool and seconds[p] < (1.0 - CLEARLY) * mine
        )
        older = self._older(view, j)
        self.around[j] = Around(busy, older, int(queue_position(view, j)))
        return tuple(found), found[0].score

    def _older(self, view: View, j: int) -> tuple[Older, ...]:
        """The oldest jobs ahead of this one in the queue."""
        if int(view.clock[0].running) < self._running:
            self._nowhere.clear()  # a job was stopped: there is room again
        self._running = int(view.clock[0].running)
        found = []
        for position in range(min(int(queue_position(view, j)), MOST_OLDER)):
            other = int(in_queue(view, position))
            fastest = FOREVER
            if other not in self._nowhere:
                spots, seconds = places_of(view, other)
                fastest = float(seconds[spots != NOBODY].min(initial=FOREVER))
                if fastest == FOREVER:
                    self._nowhere.add(other)
            found.append(Older(other, fastest < FOREVER, fastest))
        return tuple(found)


def why_started(
    scene: Scene, chosen: Chosen, around: Around | None, runtime_s: float, started: Collection[int]
) -> tuple[str, tuple[Mention, ...]]:
    """Why a job started where it did and before which jobs, in words, and the jobs that the text names.

    `started` are all jobs that start in this turn: they have not been overtaken.
    """
    where = f"{how_long(scene, chosen, around, runtime_s)}{size_in_words(scene, chosen)}"
    if chosen.by == STARVATION_GUARD:
        waited = max(0.0, float(scene.view.clock[0].now - scene.view.jobs[chosen.job].submit))
        return f"{where} It goes first, because it has waited {spell(waited)} and no job may wait longer.", ()
    if around is None:
        return where, ()
    left = [one for one in around.older if one.job not in started]
    ahead = around.ahead - (len(around.older) - len(left))
    if not left:
        return f"{where} No older job waits." if ahead <= 0 else where, ()
    rival = next((one for one in left if one.fits), None)
    other = rival or left[0]
    id = scene.live[other.job].id
    before = f"Starts before job {id}, which is older" if ahead == 1 else f"Starts before {ahead:,} older jobs"
    if rival is None:
        but = " but fits nowhere now." if ahead == 1 else f": job {id}, the oldest, fits nowhere now."
    else:
        but = ", " if ahead == 1 else f", such as job {id}, "
        but += because(scene, chosen, runtime_s, rival)
    return f"{where} {before}{but}", (mention_of(scene, id),)


def size_in_words(scene: Scene, chosen: Chosen) -> str:
    """With how many GPUs a job starts, if it asked for another number; "" if it has what it asked for."""
    job, gpus = scene.live[chosen.job].job, sum(part.count for part in chosen.parts)
    return f" It gets {gpus} GPUs, one of its sizes ({job.sizes}); it asked for {job.gpus}." if gpus != job.gpus else ""


def how_long(scene: Scene, chosen: Chosen, around: Around | None, runtime_s: float) -> str:
    """How long a job runs where it starts, where else it could have started, and where it would be faster."""
    here = chosen.alternatives[0].runtime_s if chosen.alternatives else runtime_s
    if not chosen.parts or chosen.parts[0].count == 0:
        return f"About {spell(here)}."
    names = short_names(scene.plan.models)
    said = [f"{spell(here)} on {names[chosen.parts[0].model]} here"]
    if free := sorted(chosen.alternatives[1:], key=lambda one: one.runtime_s)[:MOST_PLACES]:
        said += [f"{spell(one.runtime_s)} on {names[one.parts[0].model]}" for one in free]
    if around is not None and around.busy:
        model, seconds = min(around.busy, key=lambda one: one[1])
        said.append(f"{spell(seconds)} on {names[model]}, which is not free")
    elif chosen.alternatives and not free:
        said.append("no other model is free")
    return f"{', '.join(said)}."


def because(scene: Scene, chosen: Chosen, runtime_s: float, rival: Older) -> str:
    """Why a job started before an older job that also fitted."""
    here = chosen.alternatives[0].runtime_s if chosen.alternatives else runtime_s
    if rival.seconds - here > max(MARGIN * rival.seconds, 1.0):
        return f"because it ends {spell(rival.seconds - here)} sooner."
    mine, other = (max(1, scene.live[j].job.gpus) for j in (chosen.job, rival.job))
    if mine * here < (1.0 - MARGIN) * other * rival.seconds:
        return f"because it needs fewer GPUs: {mine}, not {other}."
    return f"as {chosen.by} ranks it higher."
