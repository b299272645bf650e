"""The verbs that look at less than every pair choose as if they had looked at all."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import run_compiled
from tests.strategies import Scenario, scenarios, wide_scenarios

from adlro.core.policy import Policy
from adlro.core.rules import best_runtime, fits, runtime
from adlro.core.tables import START, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.decide.rules.baselines import f1_key, qssf_key, unicep_key, wfp3_key

NOTHING = Choice(0, -1, -1, math.inf)


def waiting(view: View) -> list[int]:
    """The jobs that a policy sees."""
    clock = view.clock[0]
    queue = view.queue[clock.head : clock.head + clock.queued].tolist()
    return list(queue[: clock.window] if clock.window else queue)


def legal(view: View) -> Iterator[tuple[int, int]]:
    """Every legal pair, in submit order, then by site."""
    return ((j, s) for j in waiting(view) for s in range(len(view.sites)) if fits(view, j, s))


def least(pairs: list[tuple[Any, int, int]]) -> Choice:
    """Start the pair with the least value; of equal ones the first job, then the first site."""
    return Choice(START, *min(pairs)[1:], math.inf) if pairs else NOTHING


def by_pairs(name: str) -> Policy:
    """The policy of this name as docs/policies.md defines it, in plain Python, from every legal pair."""

    def choose(view: View) -> Choice:
        pairs = list(legal(view))
        if name == "sjf":
            return least([(runtime(view, j, s), j, s) for j, s in pairs])
        if name == "sjf-picky":
            near = [(j, s) for j, s in pairs if runtime(view, j, s) * 0.5 <= best_runtime(view, j)]
            return least([(runtime(view, j, s), j, s) for j, s in near])
        if name == "best-fit":
            return least([((j, int(view.sites[s].free_share)), j, s) for j, s in pairs])
        key = {"f1": f1_key, "wfp3": wfp3_key, "unicep": unicep_key, "qssf": qssf_key}[name]
        return least([((-key(view, j), j, runtime(view, j, s)), j, s) for j, s in pairs])

    prepare = find_policy(name).prepare
    return Policy(name, "", make=lambda view, seed: choose, prepare=prepare)


@pytest.mark.parametrize("name", ["sjf", "sjf-picky", "best-fit", "f1", "wfp3", "unicep", "qssf"])
@settings(max_examples=15)
@given(scenario=scenarios() | wide_scenarios())
def test_a_rule_chooses_as_if_it_had_looked_at_every_pair(name: str, scenario: Scenario) -> None:
    expected = run_compiled(scenario, by_pairs(name)).events
    assert run_compiled(scenario, find_policy(name)).events == expected


@settings(max_examples=50)
@given(times=st.lists(st.integers(0, 6).map(float), min_size=1, max_size=40), data=st.data())
def test_the_kth_smallest_is_what_sorting_finds(times: list[float], data: st.DataObject) -> None:
    from adlro.decide.outlook import smallest

    k = data.draw(st.integers(1, len(times) + 1))
    room = np.array(times)
    found = smallest(room, len(times), k)
    assert found == (sorted(times)[k - 1] if k <= len(times) else math.inf)
    assert all(time >= found for time in room[k:])
