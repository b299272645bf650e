"""Gymnasium environments over the batch: one cluster at a time, or many in one compiled call.

`import adlro` registers both as "adlro/Cluster-v0" wherever Gymnasium is installed. The observation is one flat vector
of what the network sees (`decide/network/planes.py`), so that any library that knows Gymnasium can learn on it.
Legal actions are in `info["action_mask"]` and in `action_masks()`; an action that may not be counts as waiting.
`learn/sb3.py` has the same environments for Stable-Baselines3.
"""

import math
from collections.abc import Sequence
from functools import cache
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from adlro.core.errors import UsageError
from adlro.core.tables import Ints, Jobs
from adlro.decide.network.planes import FARTHEST, Singles
from adlro.experiment.instance import draw as draw_instance
from adlro.experiment.scenario import Recorded, load_scenario
from adlro.ingest.traces.windows import cut
from adlro.learn.worlds.batch import Batch, make_batch, start_all, step
from adlro.learn.worlds.draw import make_world, random_worlds, stack
from adlro.learn.worlds.envs import Draw, Seen, Worlds

_MENU: Final = 2000
"""How many jobs of a synthetic workload episodes are drawn from."""

RANDOM: Final = "random"
"""The name of a cluster that is drawn again for every episode."""

REWARDS: Final = ("time", "shaped")

CELL: Final = 12
"""Pixels of one pair of job and pool in a picture."""

BAR: Final = 48
"""Pixels of the bar of a pool that is wholly free."""

PAPER, _LINE, LEGAL, PRESENT, FREE_CELL = (
    (255, 255, 255),
    (225, 225, 225),
    (46, 139, 87),
    (233, 180, 76),
    (70, 110, 180),
)

Load = float | Sequence[float]
ActionMask = npt.NDArray[np.int8]
DrawnImage = npt.NDArray[np.uint8]

RENDER_MODES: Final = ("rgb_array",)


def cluster_batch(
    count: int,
    threads: int,
    *,
    cluster: str | Path = "paper16",
    workload: str | Path = "paper",
    jobs: int = 64,
    load: Load = 0.9,
    rows: int = 16,
    reward: str = "time",
    window: Sequence[int] | None = None,
    backlog: int = 0,
    bursts: float = 0.0,
    sigma: float = 0.0,
    failures: float = 0.0,
    worlds: int = 32,
    worlds_seed: int = 0,
) -> Batch:
    """This many environments with these options (docs/environment.md)."""
    low, high = loads_of(load)
    if reward not in REWARDS:
        raise UsageError(f"reward is {reward!r}; expected {' or '.join(REWARDS)}.")
    cluster, workload = _named("cluster", cluster), _named("workload", workload)
    jobs, rows, worlds = _whole("jobs", jobs, 1), _whole("rows", rows, 1), _whole("worlds", worlds, 1)
    backlog, worlds_seed = _whole("backlog", backlog), _whole("worlds_seed", worlds_seed)
    bursts, failures = share("bursts", bursts), share("failures", failures)
    if not (_is_number(sigma) and 0.0 <= sigma <= 5.0):
        raise UsageError(f"sigma is {sigma!r}; expected a number from 0 to 5.")
    place = None if window is None else _place_of(window)
    if cluster == RANDOM:
        if place is not None:
            raise UsageError("window is for a trace on a given cluster; leave it out, or name a cluster.")
        found = drawn_worlds(worlds, worlds_seed)
    else:
        found = given_world(cluster, workload, place)
    menu = int(found.info.menu.min())
    if found.info.in_order.any() and menu < jobs:
        raise UsageError(f"{workload}: {menu} jobs can run on {cluster}, but jobs is {jobs}. Ask for {menu} or fewer.")
    how = Draw(low, high, backlog, bursts, float(sigma), 0.0, failures, reward == "shaped")
    return make_batch(found, count, jobs, rows, found.pools.shape[1], how, 1, threads)


@cache
def drawn_worlds(count: int, seed: int) -> Worlds:
    """Worlds drawn at random, made once: nothing writes into them."""
    return stack(random_worlds(count, seed))


@cache
def given_world(cluster: str, workload: str, window: tuple[int, int] | None) -> Worlds:
    """The world of a cluster and a workload or (a window of) a trace, made once: nothing writes into it."""
    scenario = load_scenario(cluster, workload)
    recorded = isinstance(scenario.workload, Recorded)
    if window is not None and not recorded:
        raise UsageError(f"window is for a trace, and {workload!r} is a workload; leave window out.")
    if not recorded:
        scenario = load_scenario(cluster, workload, _MENU)
    jobs = draw_instance(scenario, 0).jobs
    if window is not None:
        jobs = cut_out(jobs, workload, *window)
    return stack([make_world(scenario.plan, jobs, in_order=recorded)])


def cut_out(jobs: Jobs, trace: str, first: int, count: int) -> Jobs:
    """The jobs of a window of a trace."""
    if first < 0 or count < 1 or first + count > len(jobs):
        raise UsageError(
            f"window is ({first}, {count}); expected the first job and how many, of the {len(jobs)} jobs of {trace}."
        )
    return cut(jobs, first, count)


# ---- what is asked for ---------------------------------------------------------------------------------------------
# Numbers leave here as Python's own: with another type in `Draw` all would be compiled anew.


def _named(name: str, value: Any) -> str:
    """The name of a shipped cluster or workload, or the path of a file."""
    if not isinstance(value, (str, Path)):
        raise UsageError(f"{name} is {value!r}; expected a name or the path of a file.")
    return str(value)


def _whole(name: str, value: Any, least: int = 0) -> int:
    """The value as a whole number, of any numeric type."""
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise UsageError(f"{name} is {value!r}; expected a whole number from {least}.")
    return number


def _is_number(value: Any) -> bool:
    """Whether the value is one finite number, of any numeric type."""
    return isinstance(value, Real) and math.isfinite(value)


def share(name: str, value: Any) -> float:
    """A share of the episodes."""
    if not (_is_number(value) and 0.0 <= value <= 1.0):
        raise UsageError(f"{name} is {value!r}; expected the share of episodes that have them, from 0 to 1.")
    return float(value)


def loads_of(load: Any) -> tuple[float, float]:
    """The smallest and the largest load."""
    both = tuple(load) if isinstance(load, (tuple, list)) else (load, load)
    if len(both) != 2 or not all(map(_is_number, both)) or not 0.0 < both[0] <= both[1]:
        raise UsageError(f"load is {load!r}; expected a number above 0, or two of them, the smaller first.")
    return float(both[0]), float(both[1])


def _place_of(window: Any) -> tuple[int, int]:
    """The first job of a window, and its number of jobs."""
    try:
        first, count = map(index, window)
    except (TypeError, ValueError):
        raise UsageError(f"window is {window!r}; expected two whole numbers: the first job and how many.") from None
    return first, count


def _seeds_of(seed: Any, count: int) -> list[int | None]:
    """A seed for each environment: from one number on, or those of a list. None leaves a generator as it is."""
    given = list(seed) if isinstance(seed, (tuple, list)) else np.asarray(seed).tolist()
    if not isinstance(given, list):
        return [None if given is None else _whole("seed", given) + i for i in range(count)]
    if len(given) != count:
        raise UsageError(f"seed is a list of {len(given)}; expected {count}, one for each environment.")
    return [None if each is None else _whole("seed", each) for each in given]


def actions_of(actions: Any, shape: tuple[int, ...], wait: int) -> Ints:
    """Actions as the batch takes them; invalid numbers count as waiting.

    (To the batch, −2 is a random legal action.)
    """
    try:
        given = np.asarray(actions)
    except ValueError:  # lists of several lengths
        given = np.asarray(None)
    if given.shape != shape or given.dtype.kind not in "iuO" or not all_whole(given):
        many = f"{shape[0]} whole numbers, one for each environment" if shape else "a whole number"
        raise UsageError(f"actions: shape {given.shape}, type {given.dtype}; expected {many}.")
    return np.where((given >= 0) & (given < wait), given, wait).astype(np.int32).reshape(-1)


def all_whole(given: npt.NDArray[Any]) -> bool:
    """Whether these are whole numbers: those beyond 64 bits are objects to NumPy."""
    return given.dtype.kind != "O" or all(isinstance(each, int) for each in given.flat)


# ---- what is seen ------------------------------------------------------------------------------------------------


def _length_of(seen: Seen) -> int:
    """The length of the observation of one environment."""
    return sum(int(np.prod(array.shape[1:])) for array in seen)


def flat(seen: Seen) -> Singles:
    """The observations as vectors [B, …], in the order of `Seen`.

    What is not there is 0: the batch leaves the planes of unused rows as they were.
    """
    count = len(seen.whole)
    there = seen.present.astype(np.float32)
    parts = (
        seen.rows * there.max(axis=2)[..., None],
        seen.pools,
        seen.pairs * there[..., None],
        seen.whole,
        seen.prior * there,
        there,
        seen.legal.astype(np.float32),
    )
    return np.clip(np.concatenate([part.reshape(count, -1) for part in parts], axis=1), -FARTHEST, FARTHEST)


def space_of(batch: Batch) -> Box:
    """The space of one observation."""
    return Box(-FARTHEST, FARTHEST, (_length_of(batch.seen),), np.float32)


def masks_of(batch: Batch) -> ActionMask:
    """Which actions are legal [B, A], as Gymnasium's spaces take it."""
    return batch.seen.legal.astype(np.int8)


def _picture_of(seen: Seen, which: int, is_over: bool) -> DrawnImage:
    """What one environment shows: a cell for each row and pool, and below each pool how much of it is free."""
    present = seen.present[which]
    legal = seen.legal[which, :-1].reshape(present.shape)
    return picture_of_cells(present, legal, seen.pools[which, :, 0], is_over)


def picture_of_cells(
    present: npt.NDArray[Any], legal: npt.NDArray[Any], free: npt.NDArray[Any], is_over: bool
) -> DrawnImage:
    """A cell for each job and place [W, P], and below each place a bar for the share of it that is free [P].

    Green: the job may start there now. Yellow: it could run there, but not now. White: there is no such job or place.
    """
    rows, places = present.shape
    image = np.full((rows * CELL + BAR + 1, places * CELL + 1, 3), PAPER, np.uint8)
    for p in range(places if not is_over else 0):
        for w in range(rows):
            if present[w, p]:
                place = image[w * CELL + 1 : (w + 1) * CELL, p * CELL + 1 : (p + 1) * CELL]
                place[:] = LEGAL if legal[w, p] else PRESENT
        height = round(float(np.clip(free[p], 0.0, 1.0)) * BAR)
        image[image.shape[0] - height :, p * CELL + 1 : (p + 1) * CELL] = FREE_CELL
    image[: rows * CELL + 1 : CELL] = _LINE
    image[:, ::CELL] = _LINE
    return image


def mode_of(render_mode: Any) -> str | None:
    """The way of drawing that is asked for."""
    if render_mode not in (None, *RENDER_MODES):
        raise UsageError(f"render_mode is {render_mode!r}; expected {' or '.join(map(repr, RENDER_MODES))}, or None.")
    return None if render_mode is None else str(render_mode)


def state_from(random: np.random.Generator) -> int:
    """A state for the generator of an environment."""
    return int(random.integers(1, 2**63))


# ---- one cluster -------------------------------------------------------------------------------------------------


class ClusterEnv(gymnasium.Env[Any, np.int64]):
    """One cluster: an action starts one of the first jobs in one of the pools of GPUs, or waits.

    Action w · pools + p starts the job of row w in pool p; the last action waits. An episode ends with its last job.
    """

    metadata: dict[str, Any] = {"render_modes": [*RENDER_MODES], "render_fps": 4}  # noqa: RUF012  (Gymnasium's way)

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        self.render_mode = mode_of(render_mode)
        self.batch = cluster_batch(1, 1, **options)
        self.observation_space = space_of(self.batch)
        self.action_space = Discrete(self.batch.actions)
        self.seeded = False
        self.fresh = False  # the batch has begun the next episode already

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Singles, dict[str, Any]]:
        """Begin an episode; with a seed, it and all later episodes repeat those of that seed."""
        super().reset(seed=None if seed is None else _whole("seed", seed))
        if seed is not None or not self.seeded:
            self.batch.envs.state["random"][0] = state_from(self.np_random)
            self.seeded = True
            self.fresh = False
        if not self.fresh:
            start_all(self.batch)
        self.fresh = False
        return flat(self.batch.seen)[0], {"action_mask": masks_of(self.batch)[0]}

    def step(self, action: np.int64) -> tuple[Singles, float, bool, bool, dict[str, Any]]:
        """Take an action and go on to the next decision. After the last job there is nothing to be seen: all 0."""
        step(self.batch, actions_of(action, (), self.batch.actions - 1))
        came = self.batch.came
        over = bool(came.done[0])
        self.fresh = over
        info: dict[str, Any] = {"action_mask": masks_of(self.batch)[0]}
        seen = flat(self.batch.seen)[0]
        if over:
            seen[:] = 0.0
            info["action_mask"][:-1] = 0
            info["action_mask"][-1] = 1
            info["mean_jct"] = float(came.score[0])
        return seen, float(came.reward[0]), over, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, as SB3-contrib's MaskablePPO asks for it."""
        if self.fresh:  # the episode is over
            return np.arange(self.batch.actions) == self.batch.actions - 1
        return masks_of(self.batch)[0].astype(np.bool_)

    def render(self) -> DrawnImage | None:
        """A picture of rows and pools, if one was asked for."""
        return None if self.render_mode is None else _picture_of(self.batch.seen, 0, self.fresh)

    def close(self) -> None:
        """Stop the threads."""
        self.batch.threads.shutdown()


# ---- many clusters -----------------------------------------------------------------------------------------------


class ClusterVectorEnv(VectorEnv[Singles, Ints, Any]):
    """Many clusters stepped in one compiled call; one that ends begins anew in the same step.

    Environment i with seed s goes through the same episodes as `ClusterEnv` with seed s + i.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [*RENDER_MODES],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int = 1, threads: int | None = None, render_mode: str | None = None, **options: Any
    ) -> None:
        self.num_envs = _whole("num_envs", num_envs, 1)
        self.render_mode = mode_of(render_mode)
        self.batch = cluster_batch(self.num_envs, 0 if threads is None else _whole("threads", threads), **options)
        self.single_observation_space = space_of(self.batch)
        self.single_action_space = Discrete(self.batch.actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.seeded = np.zeros(self.num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Singles, dict[str, Any]]:
        """Begin an episode in every environment; with a seed, it and all later ones repeat those of that seed."""
        for i, each in enumerate(_seeds_of(seed, self.num_envs)):
            if each is not None or not self.seeded[i]:
                self.batch.envs.state["random"][i] = state_from(seeding.np_random(each)[0])
        self.seeded[:] = True
        start_all(self.batch)
        return flat(self.batch.seen), {"action_mask": masks_of(self.batch)}

    def step(
        self, actions: Ints
    ) -> tuple[Singles, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Take an action in every environment and go on to their next decisions."""
        step(self.batch, actions_of(actions, (self.num_envs,), self.batch.actions - 1))
        came = self.batch.came
        over = came.done.astype(np.bool_)
        info: dict[str, Any] = {"action_mask": masks_of(self.batch), "_action_mask": np.ones(self.num_envs, np.bool_)}
        if over.any():
            last = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(over):
                last[i] = np.zeros(self.single_observation_space.shape or (), np.float32)
            info["final_obs"], info["_final_obs"] = last, over.copy()
            info["final_info"] = {"mean_jct": came.score.astype(np.float64), "_mean_jct": over.copy()}
            info["_final_info"] = over.copy()
        return flat(self.batch.seen), came.reward.astype(np.float64), over, np.zeros(self.num_envs, np.bool_), info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now in each environment [B, A]."""
        return masks_of(self.batch).astype(np.bool_)

    def render(self) -> tuple[DrawnImage, ...] | None:
        """A picture of each environment, if they were asked for."""
        if self.render_mode is None:
            return None
        return tuple(_picture_of(self.batch.seen, i, is_over=False) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        self.batch.threads.shutdown()
