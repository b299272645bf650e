"""The size of rewards in each world, so that all worlds count equally.

What a choice gains or loses differs a thousandfold between worlds: with few GPUs and jobs of very different lengths,
one start in the wrong place delays everybody for hours. Unscaled, most rewards are far outside the range in which the
loss is quadratic, and the network learns something closer to the median gain than to the mean. Dividing by one number
for each world does not change which choice is best there.
"""

from typing import Any, Final

import numpy as np

from adlro.core.tables import Floats
from adlro.decide.outlook import IDLE
from adlro.learn.worlds.batch import BY_CHANCE, make_batch, step
from adlro.learn.worlds.envs import Draw, Seen, Worlds

_ROUNDS: Final = 96
_MOST: Final = 4096
EACH: Final = 16
"""Environments for each world; at most _MOST in total."""

CHANCE: Final = 0.15
"""Share of random actions; the others are the rule's."""

KNOWN: Final = 8.0
"""A world with this many observed rewards has weight one half; the usual size has the other half."""


def with_scales(worlds: Worlds, draw: Draw, jobs: int, rows: int, seed: int, threads: int) -> Worlds:
    """The worlds with the size of their rewards, measured by playing the rule with some random actions."""
    count = min(_MOST, EACH * len(worlds.info))
    batch = make_batch(worlds, count, jobs, rows, worlds.pools.shape[1], draw, seed, threads)
    total, seen = np.zeros(len(worlds.info)), np.zeros(len(worlds.info))
    random = np.random.default_rng(seed)
    for _ in range(_ROUNDS):
        actions = by_the_rule(batch.seen)
        actions[random.random(count) < CHANCE] = BY_CHANCE
        world = batch.envs.state["world"].copy()  # the step may begin another episode
        step(batch, actions)
        differs = batch.came.agreed == 0
        total += np.bincount(world[differs], np.abs(batch.came.reward[differs]), len(total))
        seen += np.bincount(world[differs], minlength=len(total))
    info = worlds.info.copy()
    info["scale"] = worlds.info["scale"] * sizes(total, seen)
    return worlds._replace(info=info)


def sizes(total: Floats, seen: Floats) -> Floats:
    """The mean size of each world's rewards, shrunk towards the usual size if few were observed."""
    often = (seen >= KNOWN) & (total > 0)
    usual = float(np.exp(np.mean(np.log(total[often] / seen[often])))) if often.any() else 1.0
    found: Floats = (total + KNOWN * usual) / (seen + KNOWN)
    return found


def by_the_rule(seen: Seen) -> Any:
    """The rule's action in every environment."""
    prior = np.where(seen.legal[:, :-1] > 0, seen.prior.reshape(len(seen.prior), -1), -np.inf)
    best = prior.argmax(1)
    wise = prior[np.arange(len(best)), best] > IDLE
    return np.where(wise, best, prior.shape[1]).astype(np.int32)
