"""The compiled simulator and the reference agree on every event, whatever the cluster, the jobs and the policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.both import PLAIN, disagreement, looking, roughened, run_compiled
from tests.reference import Answer, Event, Sight, random_choices
from tests.strategies import Scenario, scenarios


def in_the_reference(scenario: Scenario, policy: reference.Policy, preemptive: bool = False) -> list[Event]:
    """What happens in the reference."""
    return reference.simulate(
        scenario.cluster, scenario.jobs, scenario.speed, policy, scenario.options, scenario.disturbances, preemptive
    )


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=50)
@given(scenario=scenarios())
def test_both_simulators_agree_on_every_event(name: str, scenario: Scenario) -> None:
    policy, same_policy = PLAIN[name]
    assert not disagreement(run_compiled(scenario, policy).events, in_the_reference(scenario, same_policy))


class Witness:
    """A random policy that writes down what it saw and said."""

    def __init__(self, seed: int) -> None:
        self._choose = random_choices(seed)
        self.seen: list[tuple[float, list[int], list[int], list[tuple[int, int]], Answer]] = []

    def __call__(self, sight: Sight) -> Answer:
        answer = self._choose(sight)
        self.seen.append((sight.now, sight.queue, sight.running, sight.legal(), answer))
        return answer


@settings(max_examples=200)
@given(scenario=scenarios(), seed=st.integers(0, 2**16), preemptive=st.booleans())
def test_random_choices_see_the_same_legal_pairs_and_have_the_same_effect(
    scenario: Scenario, seed: int, preemptive: bool
) -> None:
    mine, theirs = Witness(seed), Witness(seed)
    events = run_compiled(scenario, looking(mine, preemptive)).events
    expected = in_the_reference(scenario, theirs, preemptive)
    assert mine.seen == theirs.seen
    assert not disagreement(events, expected)


@settings(max_examples=50)
@given(scenario=scenarios(), seed=st.integers(0, 2**16), preemptive=st.booleans())
def test_both_agree_when_every_sum_is_rounded(scenario: Scenario, seed: int, preemptive: bool) -> None:
    scenario = roughened(scenario, seed)
    events = run_compiled(scenario, looking(random_choices(seed), preemptive)).events
    assert not disagreement(events, in_the_reference(scenario, random_choices(seed), preemptive))
    for policy, same_policy in (PLAIN["fcfs-first-fit"], PLAIN["sjf-picky"]):
        assert not disagreement(run_compiled(scenario, policy).events, in_the_reference(scenario, same_policy))
