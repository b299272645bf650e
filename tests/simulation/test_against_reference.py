"""The compiled simulator and the reference agree on every event, whatever the cluster, the jobs and the policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import reference
from tests.both import PLAIN, disagreement, looking, roughened, run_compiled
from tests.reference import Answer, Event, Options, Sight, random_choices
from tests.strategies import Scenario, gpu_model, scenarios, wide_scenarios

from adlro.core.records import MEASURED, Cluster, Gpus, Job, Link, Node, Speed
from adlro.decide.catalogue import find_policy


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


CATALOGUE: dict[str, reference.Policy] = {
    "fcfs": reference.fcfs,
    "fcfs-first-fit": reference.fcfs_first_fit,
    "sjf": reference.sjf,
    "sjf-picky": reference.sjf_picky,
    "fcfs-easy": reference.fcfs_easy,
    "srtf": reference.srtf,
}


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=60)
@given(scenario=scenarios(), rough=st.booleans())
def test_the_policies_that_ship_choose_as_docs_policies_says(name: str, scenario: Scenario, rough: bool) -> None:
    if rough:
        scenario = roughened(scenario, 0)
    policy = find_policy(name)
    expected = in_the_reference(scenario, CATALOGUE[name], policy.preemptive)
    assert not disagreement(run_compiled(scenario, policy).events, expected)


@pytest.mark.parametrize("name", CATALOGUE)
@settings(max_examples=15)
@given(scenario=wide_scenarios())
def test_gangs_over_many_nodes_start_when_and_where_the_rules_say(name: str, scenario: Scenario) -> None:
    policy = find_policy(name)
    expected = in_the_reference(scenario, CATALOGUE[name], policy.preemptive)
    assert not disagreement(run_compiled(scenario, policy).events, expected)


def test_a_gang_may_come_to_fit_because_another_job_started() -> None:
    # n0 has cores for 2 GPUs of the gang, not for the 4 that it would be asked for while it has 4 free. Once the last
    # job has taken one of them, the gang takes n1 first and the rest of it fits on n0, at the same moment.
    link = Link("pcie", 32.0)
    nodes = tuple(Node(name, 8.0, 64.0, (Gpus("ada", 4),), link) for name in ("n0", "n1"))
    cluster = Cluster("two", "", nodes, link, {"ada": gpu_model("ada")})
    jobs = [Job("any", 9.0, gpus=0, cpus=5.0), Job("any", 9.0, gpus=6, cpus=6.0), Job("any", 9.0)]
    scenario = Scenario(cluster, jobs, lambda family, placing: Speed(1.0, MEASURED), Options(), [])
    expected = in_the_reference(scenario, reference.fcfs_first_fit)
    assert [event[:3] for event in expected[:3]] == [(0.0, "start", 0), (0.0, "start", 2), (0.0, "start", 1)]
    for policy in (PLAIN["fcfs-first-fit"][0], find_policy("fcfs-first-fit")):
        assert not disagreement(run_compiled(scenario, policy).events, expected)


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
