"""The learned policy: it says what its weights say, only what may be, and ships with weights that load."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from safetensors import safe_open
from tests.both import run_compiled
from tests.decide.conftest import Case, Fate, mixed_case, run
from tests.strategies import Scenario, scenarios, wide_scenarios

from adlro.core.errors import CheckpointError
from adlro.core.rules import fits
from adlro.core.tables import NOBODY, View
from adlro.decide.catalogue import find_policy
from adlro.decide.network import greedy_q
from adlro.decide.network.greedy_q import ROWS, TRIED, advice_by_q, best_by_q, new_mind, q_lookahead, q_policy, shipped
from adlro.decide.network.inference import Weights
from adlro.decide.wrappers import wrapped
from adlro.experiment.instance import draw
from adlro.experiment.scenario import load_scenario

CHECKPOINT = Path(greedy_q.__file__).parent.parent / "checkpoints" / "adlro.safetensors"


def without_opinion() -> Weights:
    """Weights that leave the prior alone to decide."""
    weights = shipped()
    return weights._replace(
        advantage=np.zeros_like(weights.advantage), waiting=np.zeros_like(weights.waiting), trust=np.ones(1, np.float32)
    )


def test_a_network_without_an_opinion_is_the_rule() -> None:
    nothing = q_policy(without_opinion, "nothing", "has no opinion")
    for seed in range(5):
        case = mixed_case(seed)
        assert run(case, nothing) == run(case, "eft-reserving")


def test_a_network_that_would_rather_wait_waits_only_while_something_runs() -> None:
    weights = without_opinion()
    weights.waiting[-1] = 100.0
    lazy = q_policy(lambda: weights, "lazy", "waits")
    case = Case([("fast", 2)], [(0, 10), (0, 20)])
    assert run(case, lazy) == {0: Fate(0, 0, 10), 1: Fate(10, 0, 30)}


def test_a_job_without_gpus_starts_at_once() -> None:
    case = Case([("fast", 1)], [(0, 10), (1, 10, 0)])
    assert run(case, "adlro")[1].start == 1


@pytest.mark.parametrize("name", ["adlro", "adlro-lookahead", "eft-reserving"])
def test_jobs_that_take_no_time_at_all_are_done_too(name: str) -> None:
    case = Case([("fast", 1), ("slow", 1)], [(0, 0), (0, 10), (0, 0), (5, 0), (5, 3)])
    assert sorted(run(case, name)) == [0, 1, 2, 3, 4]


def test_a_network_without_a_number_does_what_the_rule_does() -> None:
    weights = without_opinion()._replace(advantage=np.full_like(shipped().advantage, np.nan))
    case = mixed_case(1)
    assert run(case, q_policy(lambda: weights, "broken", "has no number")) == run(case, "eft-reserving")


@pytest.mark.parametrize("name", ["adlro", "eft-reserving"])
def test_of_jobs_without_gpus_the_shortest_goes_first(name: str) -> None:
    case = Case([("fast", 1, 2.0)], [(0, 30, 0, {"cpus": 2.0}), (0, 10, 0, {"cpus": 2.0}), (0, 20, 0, {"cpus": 2.0})])
    assert [run(case, name)[job].start for job in range(3)] == [30, 0, 10]


@pytest.mark.parametrize("name", ["adlro", "eft-reserving"])
def test_a_job_without_gpus_goes_where_the_fewest_gpus_are_then_where_the_fewest_cores_are_free(name: str) -> None:
    nodes = [("fast", 2, 8.0), ("fast", 1, 8.0), ("fast", 1, 4.0), ("fast", 1, 2.0)]
    case = Case(nodes, [(0, 10, 0, {"cpus": 4.0})])
    assert run(case, name)[0].site == 2


@pytest.mark.parametrize("name", ["adlro", "adlro-lookahead"])
def test_the_same_run_comes_out_the_same(name: str) -> None:
    case = mixed_case(3)
    assert run(case, name) == run(case, name)


@settings(max_examples=30)
@given(scenario=scenarios() | wide_scenarios())
def test_what_is_foreseen_may_be_kept_between_decisions(scenario: Scenario) -> None:
    expected = run_compiled(scenario, find_policy("adlro")).events
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(greedy_q, "KEPT_FROM", 0)
        assert run_compiled(scenario, find_policy("adlro")).events == expected


@settings(max_examples=10)
@given(scenario=scenarios())
def test_what_is_kept_is_forgotten_when_a_copy_is_shown(scenario: Scenario) -> None:
    bounded = wrapped(find_policy("adlro"), "starvation", 4.0)
    expected = run_compiled(scenario, bounded).events
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(greedy_q, "KEPT_FROM", 0)
        assert run_compiled(scenario, bounded).events == expected


def test_the_ranking_has_legal_pairs_only_and_the_best_first() -> None:
    seen = 0

    def make(view: View, seed: int):  # type: ignore[no-untyped-def]
        mind = new_mind(view, shipped(), ROWS)
        jobs, sites, scores = np.zeros(5, np.int32), np.zeros(5, np.int32), np.zeros(5)

        def choose(view: View):  # type: ignore[no-untyped-def]
            nonlocal seen
            first, count, _, _ = advice_by_q(view, mind, jobs, sites, scores)
            assert all(fits(view, j, s) for j, s in zip(jobs[:count], sites[:count], strict=True))
            assert all(scores[: count - 1] >= scores[1:count]) if count > 1 else True
            choice = best_by_q(view, mind)
            assert choice == first
            if choice.site != NOBODY and view.jobs[choice.job].gpus > 0:
                assert (choice.job, choice.site) == (jobs[0], sites[0])
            seen += count > 1
            return choice

        return choose

    watched = q_policy(shipped, "watched", "is looked at")
    from dataclasses import replace

    for number in range(4):
        run(mixed_case(number), replace(watched, make=make))
    assert seen > 0


@pytest.mark.parametrize(("cluster", "gpus"), [("paper16", 16), ("gavel108", 108), ("openb", 6212)])
def test_the_rule_counts_more_on_clusters_beyond_what_was_tried(cluster: str, gpus: int) -> None:
    view = draw(load_scenario(cluster, "paper", 4), 0).view
    assert len(view.gpus) == gpus
    expected = shipped().trust[0] * max(1.0, gpus / TRIED)
    assert new_mind(view, shipped(), ROWS).weights.trust[0] == pytest.approx(expected)


def test_advice_that_says_nothing_leaves_look_ahead_as_it_is() -> None:
    advised = q_lookahead(without_opinion, "advised", "has no opinion")
    case = Case([("fast", 1), ("slow", 1)], [(0, 20), (5, 30)], {"any": {"fast": 1.0, "slow": 0.1}})
    assert run(case, advised) == run(case, "lookahead-eft-reserving")


def test_the_checkpoint_that_ships_is_small_and_says_where_it_comes_from() -> None:
    assert CHECKPOINT.stat().st_size <= 2_000_000
    with safe_open(CHECKPOINT, framework="numpy") as file:
        provenance = json.loads(file.metadata()["adlro"])
    assert provenance["preset"] == "adlro"
    assert {"config", "seed", "versions", "evaluation", "curve"} <= set(provenance)


def test_a_checkpoint_of_ones_own_is_a_policy_by_its_path(tmp_path: Path) -> None:
    own = tmp_path / "mine.safetensors"
    own.write_bytes(CHECKPOINT.read_bytes())
    assert find_policy(str(own)).name == "mine"
    assert run(mixed_case(1), find_policy(str(own))) == run(mixed_case(1), "adlro")


def test_a_file_that_is_no_checkpoint_is_told_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"wrong\.safetensors"):
        find_policy(str(wrong))
