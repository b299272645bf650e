"""A network that may stop jobs: it begins as the one that ships, and where nobody may be stopped it stays that."""

from pathlib import Path

import numpy as np
import pytest
from tests.decide.conftest import Case, Fate, mixed_case, play, run

from adlro.core.policy import Policy
from adlro.decide.catalogue import find_policy
from adlro.decide.checkpoint import with_stops
from adlro.decide.network.greedy_q import shipped
from adlro.decide.network.inference import Weights
from adlro.decide.network.stopping_q import stopping_q
from adlro.decide.stops import without_stops


def begun(boldness: float = 0.1) -> Weights:
    """The network that ships, with inputs for stopping that it has not learnt to use."""
    arrays = {name: array for name, array in shipped()._asdict().items() if name != "claim"}
    return Weights(**with_stops(arrays, boldness))


def policy(boldness: float = 0.1) -> Policy:
    return stopping_q(begun(boldness), Path("begun.safetensors"))


@pytest.mark.parametrize("seed", range(4))
def test_where_no_job_may_be_stopped_it_decides_as_the_one_that_ships(seed: int) -> None:
    case = mixed_case(seed)
    assert play(case, without_stops(policy()), seed).events == play(case, "adlro", seed).events


def test_it_begins_with_the_rules_claims() -> None:
    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert run(case, policy()) == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


def test_without_boldness_and_learning_it_waits_instead() -> None:
    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    assert run(case, policy(0.0)) == {0: Fate(0, 0, 1000), 1: Fate(1000, 0, 1010)}


def test_what_it_learnt_about_claims_decides_against_the_rule() -> None:
    weights = begun()
    claim = weights.claim.copy()
    claim[:-1] = -1.0  # channels are 0 or more: every claim is worse than waiting
    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    timid = stopping_q(weights._replace(claim=claim), Path("timid.safetensors"))
    assert run(case, timid)[0].stops == 0


def test_it_never_does_what_is_illegal_nor_stops_a_job_that_was_started_at_this_moment() -> None:
    stops = 0
    for seed in range(4):
        started: dict[int, float] = {}
        for time, what, job, _ in play(mixed_case(seed), policy(), seed).events:
            assert what != "illegal"
            if what == "start":
                started[job] = time
            elif what == "stop":
                assert started[job] < time
                stops += 1
    assert stops > 10


def test_the_shipped_checkpoint_has_no_inputs_for_stopping() -> None:
    assert shipped().claim.size == 0
    assert not find_policy("adlro").preemptive
    assert np.array_equal(begun().pair[: len(shipped().pair)], shipped().pair)
