"""`adlro-preemptive`: a network starts and stops, `plan` does the rest, only who may be is stopped; with look-ahead."""

from dataclasses import replace

import numpy as np
import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.decide.catalogue import find_policy
from adlro.decide.checkpoint import may_stop, read_arrays
from adlro.decide.network import preemptive_q as preemptive
from adlro.decide.network.greedy_q import shipped, shipped_path
from adlro.decide.network.inference import Weights
from adlro.decide.network.preemptive_q import preemptive_q, shipped_to_stop
from adlro.decide.rules.timelines import MOST_STARTS
from adlro.decide.stops import without_stops


def with_waiting_at(value: float, weights: Weights) -> Weights:
    """Weights without an opinion on pairs, and this one on waiting."""
    waiting = np.zeros_like(weights.waiting)
    waiting[-1] = value
    return weights._replace(
        advantage=np.zeros_like(weights.advantage),
        waiting=waiting,
        trust=np.ones(1, np.float32),
        claim=np.zeros_like(weights.claim),
    )


AHEAD = "adlro-preemptive-lookahead"
LAZY = preemptive_q(
    lambda: with_waiting_at(100.0, shipped()),
    lambda: with_waiting_at(100.0, shipped_to_stop()),
    "lazy",
    "waits while anything runs",
)


def test_the_checkpoint_that_ships_may_stop_jobs_is_small_and_tells_how_it_was_made() -> None:
    arrays, about = read_arrays(shipped_path(), stops=True)
    assert may_stop(arrays)
    assert shipped_path().stat().st_size <= 1_000_000
    assert set(about["afterwards"]["averaged"]) == {"weights", "chosen_of", "on"}
    assert sum(about["afterwards"]["averaged"]["weights"].values()) == 1.0


def test_a_short_job_takes_the_place_of_a_long_one_when_the_network_waits() -> None:
    # As under `plan`: at 20 job 1 would end at 1010 without a stop, and at 30 with it.
    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert run(case, "adlro-preemptive") == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


@pytest.mark.parametrize(("nodes", "is_plan"), [(32, False), (33, True)])
def test_plan_decides_alone_on_clusters_larger_than_those_of_the_training(nodes: int, is_plan: bool) -> None:
    # 256 and 264 GPUs. The network would let the second job wait for the end of the first.
    case = Case(nodes * [("v100", 8)], [(0, 10), (0, 20)], restart_s=3.0)
    assert (run(case, LAZY) == run(case, "plan")) == is_plan


@pytest.mark.parametrize(("queued", "is_plan"), [(1, True), (2, False)])
def test_where_few_jobs_wait_on_several_models_the_network_is_not_asked(queued: int, is_plan: bool) -> None:
    # Eight GPUs: 1.6 waiting jobs make it busy. The network would let those that come at 1 wait until job 0 ends.
    case = Case([("v100", 7), ("t4", 1)], [(0, 10), *(queued * [(1, 20)])], restart_s=3.0)
    assert (run(case, LAZY)[1].start == 1) == is_plan


@pytest.mark.parametrize(("restart_s", "start"), [(2.0, 0), (3.0, 10)])
def test_a_start_that_the_network_does_not_want_must_be_cheap_to_undo(restart_s: float, start: int) -> None:
    # The network would let job 1 wait for the end of job 0. Job 1 runs for 20: ten restarts of 2, but not of 3.
    case = Case([("v100", 2)], [(0, 10), (0, 20)], restart_s=restart_s)
    assert run(case, LAZY) == {0: Fate(0, 0, 10), 1: Fate(start, 0, start + 20)}


def test_a_job_that_may_not_be_stopped_is_not_started_against_the_network() -> None:
    case = Case([("v100", 2)], [(0, 10), (0, 20)], restart_s=2.0)
    assert run(case, without_stops(LAZY)) == {0: Fate(0, 0, 10), 1: Fate(10, 0, 30)}


@pytest.mark.parametrize("seed", range(4))
def test_where_stopping_is_not_allowed_it_is_adlro(seed: int) -> None:
    case = mixed_case(seed)
    assert run(case, "adlro-preemptive+stops(0)", seed) == run(case, "adlro", seed)


def test_a_job_that_may_not_be_stopped_again_keeps_its_gpu_while_others_are_stopped() -> None:
    # Job 0 is stopped for job 1; for job 2 only the other long job may be.
    case = Case([("v100", 2)], [(0, 4000), (0, 3000), (20, 10), (40, 10)], restart_s=1.0)
    assert [run(case, "adlro-preemptive+stops(1)")[job].stops for job in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["adlro-preemptive", AHEAD])
def test_at_one_moment_no_job_is_stopped_or_started_twice(policy: str, seed: int) -> None:
    seen: set[tuple[float, str, int]] = set()
    started: dict[int, float] = {}
    for time, what, job, _ in play(replace(mixed_case(seed), disturbances=()), policy, seed).events:
        if what in ("start", "stop"):
            assert (time, what, job) not in seen
            assert what == "start" or started[job] < time
            seen.add((time, what, job))
            started[job] = time if what == "start" else started[job]


def test_no_job_is_stopped_more_often_than_the_bound() -> None:
    short = [(100.0 * number, 10) for number in range(1, MOST_STARTS + 11)]
    fates = run(Case([("v100", 1)], [(0, 100_000), *short], restart_s=1.0), "adlro-preemptive")
    assert fates[0].stops == MOST_STARTS


# ---- with look-ahead ---------------------------------------------------------------------------------------------


def test_look_ahead_stops_a_long_job_for_a_short_one() -> None:
    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert find_policy(AHEAD).preemptive
    assert run(case, AHEAD) == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


def test_look_ahead_sees_where_stops_can_be_saved() -> None:
    # Job 0 is nearly as fast on the slow GPU. If it goes there, nobody needs to be stopped for jobs 1 and 2.
    speeds = {"even": {"fast": 1.0, "slow": 0.9}, "any": {"fast": 1.0, "slow": 0.5}}
    jobs = [(0, 200, 1, {"family": "even"}), (0, 100, 1, {"family": "any"}), (10, 100, 1, {"family": "any"})]
    case = Case([("fast", 1), ("slow", 1)], jobs, speeds, restart_s=5.0)
    fates = run(case, AHEAD)
    assert fates == {0: Fate(0, 1, fates[0].finish), 1: Fate(0, 0, 100), 2: Fate(100, 0, 200)}
    assert sum(fate.stops for fate in run(case, "plan").values()) > 0


@pytest.mark.parametrize("seed", range(3))
def test_where_stopping_is_not_allowed_it_is_the_look_ahead_that_keeps_jobs_running(seed: int) -> None:
    case = mixed_case(seed)
    assert run(case, f"{AHEAD}+stops(0)", seed) == run(case, "adlro-lookahead", seed)


@pytest.mark.parametrize("seed", range(3))
def test_where_playing_forward_takes_too_long_nothing_is_played(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = mixed_case(seed)
    before = run(case, AHEAD, seed)
    monkeypatch.setattr(preemptive, "MOST_REPLANNED", 0)
    assert run(case, AHEAD, seed) == run(case, "adlro-preemptive", seed) != before
