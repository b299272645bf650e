"""`plan` with corrections: without a network it is `plan`, each factor changes what it says, and where it is used."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.core.code_cache import SHARED
from adlro.core.errors import CheckpointError
from adlro.core.policy import Policy
from adlro.decide.catalogue import find_policy
from adlro.decide.checkpoint import Arrays, read_arrays
from adlro.decide.network.corrected_plan import (
    DEAR_S,
    LEARNT_GPUS,
    PLAN,
    corrected_policy,
    corrector_of,
    shipped_corrector,
)
from adlro.decide.rules import corrections
from adlro.decide.rules.corrections import INPUTS, OUTPUTS, Corrector
from adlro.decide.rules.plan import plan_with
from adlro.learn.train.checkpoint import write_checkpoint

V100, T4 = "v100", "t4"
SLOW_T4 = {"any": {V100: 1.0, T4: 0.25}}
FIXED = Path("own.safetensors")


def looking_at(name: str, output: int, strength: float, slower: float = math.inf) -> Corrector:
    """A network of one unit: the logarithm of one factor is the strength where this input is large."""
    first, second = np.zeros((len(INPUTS), 1)), np.zeros((1, OUTPUTS))
    first[INPUTS.index(name)] = 50.0
    second[0, output] = strength
    return Corrector(first, second, slower)


def everywhere(corrector: Corrector) -> Policy:
    """`plan` with this corrector on any cluster."""
    return Policy(
        "own", "", make=lambda view, seed: lambda shown: plan_with(shown, corrector), preemptive=True, heeds_marks=True
    )


@pytest.mark.parametrize("seed", range(6))
def test_with_answers_of_0_it_is_plan(seed: int) -> None:
    nothing = Corrector(np.full((len(INPUTS), 3), 0.7), np.zeros((3, OUTPUTS)), math.inf)
    case = mixed_case(seed)
    assert play(case, everywhere(nothing), seed).events == play(case, "plan", seed).events


def test_what_a_victim_loses_counts_more_or_less() -> None:
    # As under `plan`: at 20 job 1 gains 980 by a stop of job 0, which would lose 10/4 + 5 · (1 + 1).
    case = Case([(V100, 1)], [(0, 1000), (20, 950)], restart_s=5.0)
    late = Case([(V100, 1)], [(0, 1200), (20, 800)], restart_s=5.0)
    dear, cheap = (looking_at("one", corrections.SETTING_BACK, strength) for strength in (2.5, -2.5))
    assert run(late, "plan")[0].stops == 1  # it gains 1180 and the other loses 200 and two restarts
    assert run(late, everywhere(dear))[0].stops == 0  # 800/4 times 12 is more
    assert run(case, everywhere(cheap))[0].stops == 1


def test_the_restart_of_a_victim_counts_more_for_jobs_that_hold_on() -> None:
    case = Case([(V100, 1)], [(0, 1000), (20, 10)], restart_s=50.0)
    held = looking_at("runs", corrections.STICKING, 2.5)
    assert run(case, "plan")[0].stops == 1  # gain 980, loss 2.5 + 100
    assert run(case, everywhere(held)) == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 1010)}


def test_jobs_are_planned_in_the_order_of_the_corrected_times() -> None:
    # Long jobs count as shorter than short ones: the long one has the GPU first.
    case = Case([(V100, 1)], [(0, 100), (0, 50)], restart_s=1000.0)
    long_first = looking_at("time left", corrections.ORDER, -2.5)
    assert run(case, "plan") == {0: Fate(50, 0, 150), 1: Fate(0, 0, 50)}
    assert run(case, everywhere(long_first)) == {0: Fate(0, 0, 100), 1: Fate(100, 0, 150)}


def test_a_gap_that_is_too_short_is_filled_if_less_will_do() -> None:
    # Job 1 waits for the V100 until 100. On the T4 it would get a quarter of 100 done, which is less than a restart.
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 200)], SLOW_T4, restart_s=30.0)
    eager = looking_at("one", corrections.FILLING, -2.5)
    assert run(case, "plan")[1].start == 100
    assert run(case, everywhere(eager))[1].start == 0


def test_a_move_is_made_for_less_if_its_restart_counts_less() -> None:
    # Job 1 starts on the T4 and would end there at 286. At 100 it has 130 left. On the V100 it would end at 270 with
    # its restart of 40: 16 sooner, but `plan` asks for another 40.
    speeds = {"red": {V100: 1.0, T4: 0.05}, "any": {V100: 1.0, T4: 0.7}}
    case = Case([(V100, 1), (T4, 1)], [(0, 100, 1, {"family": "red"}), (0, 200)], speeds, restart_s=40.0)
    eager = looking_at("one", corrections.MOVING, -2.5)
    stays = run(case, "plan")[1]
    assert (stays.site, stays.stops) == (1, 0)
    assert stays.finish == pytest.approx(200 / 0.7)
    assert run(case, everywhere(eager))[1] == Fate(0, 0, 270, stops=1)


def test_a_job_leaves_a_fast_gpu_that_others_need_more_only_with_a_corrector() -> None:
    # Job 0 is nearly as fast on the T4, which job 1 leaves at 32. Jobs 2 and 3 need the V100. `plan` moves nobody to a
    # slower place; with a corrector job 0 pays 10 and goes.
    speeds = {"red": {V100: 1.0, T4: 0.05}, "blue": {V100: 1.0, T4: 0.95}}
    red, blue = {"family": "red"}, {"family": "blue"}
    jobs = [(0, 4000, 1, blue), (0, 30, 1, blue), (5, 5000, 1, red), (5, 5000, 1, red)]
    case = Case([(V100, 1), (T4, 1)], jobs, speeds, restart_s=10.0)
    moving = Corrector(np.zeros((len(INPUTS), 1)), np.zeros((1, OUTPUTS)), 0.01)
    assert run(case, "plan")[0] == Fate(0, 0, 4000)
    moved = run(case, everywhere(moving))[0]
    assert (moved.site, moved.stops) == (1, 1)
    assert 4210 < moved.finish < 4230
    assert run(case, everywhere(moving._replace(slower=10.0)))[0] == Fate(0, 0, 4000)


@pytest.mark.parametrize("seed", range(4))
def test_at_one_moment_no_job_is_stopped_after_it_was_started(seed: int) -> None:
    random = np.random.default_rng(seed)
    wild = Corrector(random.normal(0, 2, (len(INPUTS), 4)), random.normal(0, 2, (4, OUTPUTS)), 0.05)
    started: dict[int, float] = {}
    for time, what, job, _ in play(mixed_case(seed), everywhere(wild), seed).events:
        if what == "start":
            started[job] = time
        elif what == "stop":
            assert started[job] < time


# ---- where it is used, and its checkpoint -------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "is_plan"), [([(V100, 1)], True), ([(V100, 1), (T4, 1)], False)])
def test_on_clusters_of_one_model_it_is_plan(nodes: list[tuple[str, int]], is_plan: bool) -> None:
    case = Case(nodes, [(0, 100), (0, 50), (0, 60), (0, 70)], {"any": {V100: 1.0, T4: 1.0}}, restart_s=500.0)
    policy = corrected_policy(looking_at("time left", corrections.ORDER, -2.5), FIXED)
    assert (run(case, policy) == run(case, "plan")) == is_plan


@pytest.mark.parametrize(("nodes", "is_plan"), [(LEARNT_GPUS // 8, False), (LEARNT_GPUS // 8 + 1, True)])
def test_on_clusters_larger_than_those_of_the_training_it_is_plan(nodes: int, is_plan: bool) -> None:
    case = Case([*((nodes - 1) * [(V100, 8)]), (T4, 8)], [(0, 1e5, 8 * nodes - 8), (0, 5e4, 8 * nodes - 8)], SLOW_T4)
    policy = corrected_policy(looking_at("time left", corrections.ORDER, -2.5), FIXED)
    assert (run(case, policy) == run(case, "plan")) == is_plan


@pytest.mark.parametrize(("restart_s", "is_plan"), [(DEAR_S, False), (DEAR_S + 1, True)])
def test_where_restarts_are_dear_it_is_plan(restart_s: float, is_plan: bool) -> None:
    case = Case([(V100, 1), (T4, 1)], [(0, 100), (0, 50)], {"any": {V100: 1.0, T4: 0.01}}, restart_s=restart_s)
    policy = corrected_policy(looking_at("time left", corrections.ORDER, -2.5), FIXED)
    assert (run(case, policy) == run(case, "plan")) == is_plan


def test_the_compiled_policy_has_the_weights_of_the_file() -> None:
    case = mixed_case(3)
    by_file = corrected_policy(shipped_corrector(), FIXED)
    assert play(case, "adlro-plan", 3).events == play(case, by_file, 3).events
    assert "decide/checkpoints/adlro-plan.safetensors" in SHARED


def shipped_arrays() -> tuple[Arrays, dict[str, object]]:
    """The arrays and the provenance of the checkpoint that ships."""
    import adlro.decide

    return read_arrays(Path(adlro.decide.__path__[0]) / "checkpoints" / "adlro-plan.safetensors")


def test_the_checkpoint_that_ships_tells_how_it_was_made() -> None:
    about = shipped_arrays()[1]
    assert {"preset", "training", "config", "curve", "device", "before"} <= about.keys()


def test_a_checkpoint_of_ones_own_is_a_policy(tmp_path: Path) -> None:
    arrays, _ = shipped_arrays()
    write_checkpoint(tmp_path / "mine.safetensors", arrays, {"preset": PLAN})
    policy = find_policy(str(tmp_path / "mine.safetensors"))
    assert (policy.name, policy.preemptive) == ("mine", True)
    assert play(mixed_case(1), replace(policy, name="x"), 1).events == play(mixed_case(1), "adlro-plan", 1).events


@pytest.mark.parametrize(
    ("change", "message"),
    [({"first": np.zeros((2, 12))}, r"'first' has the shape \(2, 12\)"), ({"slower": None}, "'slower' is missing")],
)
def test_a_checkpoint_with_other_arrays_is_refused(change: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {name: each for name, each in {**shipped_arrays()[0], **change}.items() if each is not None}
    with pytest.raises(CheckpointError, match=message):
        corrector_of(arrays, "mine")
