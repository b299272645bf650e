"""How good a network is: mean completion times on fixed episodes, compared with two rules on the same ones.

The episodes only depend on the seed: the paper's cluster at three loads, and random clusters.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from adlro.core.compiled import is_compiled
from adlro.core.driver import Driver
from adlro.core.policy import Choose, Policy
from adlro.core.tables import DONE, OVERRAN, Ints
from adlro.decide.outlook import eft_reserving
from adlro.decide.rules.baselines import sjf_picky
from adlro.learn.train.config import TrainConfig
from adlro.learn.train.presets import Preset
from adlro.learn.worlds.envs import Worlds, truth_of, view_of

EXAM_SEED: Final = 5
"""The seed of the evaluation; training draws its episodes with other seeds."""

LOADS: Final = (0.7, 0.9, 1.1)
"""Offered loads of the paper's cluster."""

Scores = npt.NDArray[np.float64]
Act = Callable[[Any], Ints]
"""A function from a batch to the action in every environment."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One part of the evaluation: worlds, a range of loads, and the rules' results there."""

    name: str
    worlds: Worlds
    config: TrainConfig  # how its episodes are drawn
    rule: Scores  # [B] mean completion time of each episode under eft-reserving, in units of the world
    picky: Scores  # [B] under sjf-picky


@dataclass(frozen=True, slots=True)
class Marks:
    """The result of an evaluation: mean completion times as ratios (geometric means over episodes)."""

    against_rule: float  # below 1: better than eft-reserving
    against_picky: float
    by_sheet: dict[str, float]  # against eft-reserving


def make_exam(
    preset: Preset, config: TrainConfig, fixed: Worlds, drawn: Worlds | None, threads: int
) -> tuple[Sheet, ...]:
    """The evaluation, with the rules' results on it."""
    parts: list[tuple[str, Worlds, float, float]] = [(f"load {load}", fixed, load, load) for load in LOADS]
    if drawn is not None:
        parts.append(("random", drawn, 0.6, 1.2))
    sheets = []
    for name, worlds, low, high in parts:
        how = replace(
            config, jobs=config.exam_jobs, most_jobs=0, load_low=low, load_high=high, backlog=0, burst=0.0, sigma=0.0,
            jitter=0.1, failures=0.0, shaped=False,
        )  # fmt: skip
        rule, picky = (reference(preset, how, worlds, choose, threads) for choose in (eft_reserving, sjf_picky))
        sheets.append(Sheet(name, worlds, how, rule, picky))
    return tuple(sheets)


def reference(preset: Preset, how: TrainConfig, worlds: Worlds, choose: Choose, threads: int) -> Scores:
    """The result of a compiled policy in the first episode of each environment."""
    batch = preset.make_batch(how, worlds, how.exam_environments, EXAM_SEED, threads)
    with ThreadPoolExecutor(threads) as pool:
        return np.array(list(pool.map(lambda b: _play_out(batch, b, choose), range(batch.count))))


def _play_out(batch: Any, b: int, choose: Choose) -> float:
    """The mean completion time of an environment's episode, in units of the world, under this policy."""
    view, truth = _plain(view_of)(batch.worlds, batch.envs, b, b), _plain(truth_of)(batch.worlds, batch.envs, b, b)
    driver = Driver(view, truth, Policy("reference", "", choose))
    progress, total, is_over = truth.progress[0], 0.0, False
    while not is_over:
        is_over = driver.run_until_full()
        events = truth.events[: progress.events]
        ended = events[(events.what == DONE) | (events.what == OVERRAN)]
        total += float((ended.time - view.jobs.submit[ended.job]).sum())
        progress.events = 0
    return total / len(view.jobs) / float(batch.worlds.info[batch.envs.state[b].world].unit)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The uncompiled function: without reference counts, a compiled one cannot return arrays to Python."""
    return function.py_func if is_compiled(function) else function  # type: ignore[attr-defined]


def play_evaluation(preset: Preset, exam: Sequence[Sheet], act: Act, threads: int) -> Marks:
    """Let `act` play the evaluation."""
    scores = [sit(preset, sheet, act, threads) for sheet in exam]
    by_sheet = {sheet.name: ratio(score, sheet.rule) for sheet, score in zip(exam, scores, strict=True)}
    picky = [ratio(score, sheet.picky) for sheet, score in zip(exam, scores, strict=True)]
    return Marks(_mean(list(by_sheet.values())), _mean(picky), by_sheet)


def sit(preset: Preset, sheet: Sheet, act: Act, threads: int) -> Scores:
    """The mean completion time of the first episode of each environment."""
    batch = preset.make_batch(sheet.config, sheet.worlds, sheet.config.exam_environments, EXAM_SEED, threads)
    scores, ended = np.zeros(batch.count), np.zeros(batch.count, bool)
    actions = np.zeros(batch.count, np.int32)
    while not ended.all():
        actions[:] = act(batch)
        preset.step(batch, actions)
        new = (batch.came.done > 0) & ~ended
        scores[new] = batch.came.score[new]
        ended |= new
    return scores


def ratio(scores: Scores, reference: Scores) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.mean(np.log(scores / reference))))


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(ratios))))
