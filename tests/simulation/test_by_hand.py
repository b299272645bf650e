"""Small cases of the compiled simulator that can be worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from tests.both import fcfs, first_fit, policy_of, run_compiled, run_with_log_of
from tests.reference import Event, Options
from tests.strategies import Scenario, gpu_model, scenarios

from adlro.core.errors import PolicyError
from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy, starting, stopping, waiting
from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed
from adlro.core.tables import NOBODY, Choice, View
from adlro.normalise.pack import pack, pack_jobs
from adlro.simulation.simulator import SimulationSettings, simulate

FAST, SLOW = "fast", "slow"
FCFS, FIRST_FIT = policy_of(fcfs), policy_of(first_fit)


def cluster_of(*groups: dict[str, int], cpus: float = 8.0) -> Cluster:
    """A cluster with one node for each mapping of model to count."""
    link = Link("pcie", 32.0)
    nodes = tuple(
        Node(f"n{i}", cpus, 64.0, tuple(Gpus(model, count) for model, count in group.items()), link)
        for i, group in enumerate(groups)
    )
    return Cluster("hand", "", nodes, link, {FAST: gpu_model(FAST), SLOW: gpu_model(SLOW)})


def speed(family: str, placing: Placing) -> Speed:
    """The fast model works at 1, the slow at 1/4; over several nodes half."""
    assert placing.model is not None
    return Speed({FAST: 1.0, SLOW: 0.25}[placing.model.name] * (0.5 if placing.nodes > 1 else 1.0), MEASURED)


def scripted(*choices: Choice, preemptive: bool = False) -> Policy:
    """A policy that says these things in turn, then waits."""
    left = list(choices)
    return Policy("scripted", "", make=lambda view, seed: lambda view: left.pop(0) if left else waiting(),
                  preemptive=preemptive)  # fmt: skip


def run(
    cluster: Cluster,
    jobs: Sequence[Job],
    policy: Policy = FCFS,
    options: Options = Options(),  # noqa: B008  (frozen)
    disturbances: Sequence[Disturbance] = (),
) -> list[Event]:
    """What happens."""
    return run_compiled(Scenario(cluster, list(jobs), speed, options, list(disturbances)), policy).events


def test_a_gang_waits_for_a_whole_node_and_those_behind_it_wait_too() -> None:
    jobs = [Job("any", 4.0), Job("any", 16.0, gpus=4), Job("any", 2.0)]
    assert run(cluster_of({FAST: 4}), jobs) == [
        (0.0, "start", 0, (0, (0,))),
        (4.0, "finish", 0, ()),
        (4.0, "start", 1, (0, (0, 1, 2, 3))),
        (8.0, "finish", 1, ()),
        (8.0, "start", 2, (0, (0,))),
        (10.0, "finish", 2, ()),
    ]


def test_a_job_that_needs_every_gpu_can_start() -> None:
    assert run(cluster_of({FAST: 62}), [Job("any", 124.0, gpus=62)])[-1] == (2.0, "finish", 0, ())


def test_first_fit_passes_the_gang_that_waits() -> None:
    jobs = [Job("any", 4.0), Job("any", 16.0, gpus=4), Job("any", 2.0)]
    starts = [event[:3] for event in run(cluster_of({FAST: 4}), jobs, FIRST_FIT) if event[1] == "start"]
    assert starts == [(0.0, "start", 0), (0.0, "start", 2), (4.0, "start", 1)]


def test_shares_are_packed_on_the_fullest_gpu_and_a_whole_gpu_stays_free() -> None:
    shares = [500, 750, 250, 125]
    jobs = [*(Job("any", 1.0, share=share) for share in shares), Job("any", 64.0)]
    events = run(cluster_of({FAST: 3}), jobs)
    assert [event[3] for event in events[:5]] == [(0, (0,)), (0, (1,)), (0, (1,)), (0, (0,)), (0, (2,))]
    assert {event[2]: event[0] for event in events[5:9]} == {0: 2.0, 1: 4 / 3, 2: 4.0, 3: 8.0}


def test_a_share_needs_the_gpu_memory_too_and_a_freed_share_is_used_again() -> None:
    jobs = [Job("any", 2.0, share=500, gpu_memory_gb=12.0), Job("any", 2.0, share=500, gpu_memory_gb=8.0)]
    events = run(cluster_of({FAST: 1}), jobs)
    assert [event[:3] for event in events] == [
        (0.0, "start", 0),
        (4.0, "finish", 0),
        (4.0, "start", 1),
        (8.0, "finish", 1),
    ]


def test_a_gang_over_two_nodes_takes_its_portion_of_the_cores_of_each() -> None:
    # 6 GPUs of 4 + 4 with 7 cores: ceil(7·4/6) = 4.667 on the first, ceil(7·2/6) = 2.334 (thousandths) on the second.
    # So a job of 3.333 cores still fits beside it on n0, and one of 5.666 on n1; one of 3.334 would not on n0.
    gang = Job("any", 30.0, gpus=6, cpus=7.0)
    for cpus, sites in ((3.333, [0, 1]), (3.334, [1]), (5.666, [1]), (5.667, [])):
        events = run(cluster_of({FAST: 4}, {FAST: 4}), [gang, Job("any", 1.0, gpus=0, cpus=cpus)])
        assert events[:2] == [(0.0, "start", 0, (0, (0, 1, 2, 3))), (0.0, "spread", 0, (1, (0, 1)))]
        assert [event[3][0] for event in events if event[:3] == (0.0, "start", 1)] == sites[:1]
        assert (10.0, "finish", 0, ()) in events  # 6 GPUs at half speed


def test_a_gang_takes_the_emptiest_nodes_first() -> None:
    policy = scripted(starting(0, 1), starting(1, 0))
    events = run(cluster_of({FAST: 2}, {FAST: 4}, {FAST: 4}), [Job("any", 99.0), Job("any", 1.0, gpus=6)], policy)
    assert events[1:3] == [(0.0, "start", 1, (2, (0, 1, 2, 3))), (0.0, "spread", 1, (1, (1, 2)))]


def test_a_stopped_job_keeps_its_work_and_pays_the_restart() -> None:
    policy = scripted(starting(0, 0), waiting(3.0), stopping(0), waiting(5.0), starting(0, 0), preemptive=True)
    assert run(cluster_of({FAST: 1}), [Job("any", 8.0)], policy, Options(restart_s=2.0)) == [
        (0.0, "start", 0, (0, (0,))),
        (3.0, "stop", 0, ()),
        (5.0, "start", 0, (0, (0,))),
        (12.0, "finish", 0, ()),
    ]


@pytest.mark.parametrize(("checkpoint", "lost", "end"), [(None, 7.0, 20.0), (0.0, 0.0, 13.0), (3.0, 1.0, 14.0)])
def test_a_failure_costs_the_work_since_the_last_checkpoint(checkpoint: float | None, lost: float, end: float) -> None:
    trouble = [Disturbance(7.0, "down", "n0"), Disturbance(8.0, "down", "n0"), Disturbance(10.0, "up", "n0")]
    assert run(cluster_of({FAST: 1}), [Job("any", 10.0, checkpoint=checkpoint)], disturbances=trouble) == [
        (0.0, "start", 0, (0, (0,))),
        (7.0, "down", NOBODY, (0,)),
        (7.0, "fail", 0, (lost,)),
        (10.0, "up", NOBODY, (0,)),
        (10.0, "start", 0, (0, (0,))),
        (end, "finish", 0, ()),
    ]


def test_the_jobs_of_a_failed_node_come_back_in_job_order_and_a_gang_fails_with_any_of_its_nodes() -> None:
    trouble = [Disturbance(1.0, "down", "n1")]
    policy = scripted(starting(2, 1), starting(1, 0), starting(0, 1))
    jobs = [Job("any", 9.0), Job("any", 12.0, gpus=6), Job("any", 9.0)]
    events = run(cluster_of({FAST: 4}, {FAST: 4}), jobs, policy, disturbances=trouble)
    assert [event[:3] for event in events[4:]] == [
        (1.0, "down", NOBODY),
        (1.0, "fail", 0),
        (1.0, "fail", 1),
        (1.0, "fail", 2),
    ]


def test_a_failure_cannot_take_what_was_saved_by_a_stop() -> None:
    policy = scripted(starting(0, 0), waiting(5.0), stopping(0), starting(0, 0), preemptive=True)
    events = run(cluster_of({FAST: 1}), [Job("any", 10.0)], policy, disturbances=[Disturbance(7.0, "down", "n0")])
    assert events[-1] == (7.0, "fail", 0, (2.0,))


def test_wear_counts_from_when_it_comes_and_for_the_slowest_gpu() -> None:
    # 16 GPU-seconds on 2 GPUs: 8 done at 4 s; then at 1/2, 4 more by 8 s; then at 1/4, the last 4 take 8 s.
    trouble = [
        Disturbance(4.0, "speed", "n0", 1, 0.5),
        Disturbance(8.0, "speed", "n0", 2, 0.25),
        Disturbance(8.0, "speed", "n0", 0, 0.125),  # another site's
    ]
    cluster = cluster_of({SLOW: 1, FAST: 2})
    events = run(cluster, [Job("any", 16.0, gpus=2)], scripted(starting(0, 1)), disturbances=trouble)
    assert events[1:] == [
        (4.0, "speed", NOBODY, (1, (0,), 0.5)),
        (8.0, "speed", NOBODY, (1, (1,), 0.25)),
        (8.0, "speed", NOBODY, (0, (0,), 0.125)),
        (16.0, "finish", 0, ()),
    ]


def test_a_limit_counts_all_stretches_and_a_tie_is_a_finish() -> None:
    policy = scripted(
        starting(0, 0), starting(1, 0), waiting(3.0), stopping(0), waiting(4.0), starting(0, 0), preemptive=True
    )
    jobs = [Job("any", 8.0, limit_s=6.0), Job("any", 8.0, limit_s=8.0)]
    options = Options(restart_s=1.0, kill_at_limit=True)
    assert run(cluster_of({FAST: 2}), jobs, policy, options)[-2:] == [(7.0, "kill", 0, ()), (8.0, "finish", 1, ())]
    assert [event[:3] for event in run(cluster_of({FAST: 2}), jobs)[-2:]] == [(8.0, "finish", 0), (8.0, "finish", 1)]


def test_a_policy_is_asked_when_it_wants_unless_something_comes_first() -> None:
    asked: list[float] = []
    wanted = [2.0, 1.5, 9.0, 8.0]  # at 2 s 1.5 is past and so no time; an arrival at 6 s comes before 9 s

    def choose(view: View) -> Choice:
        asked.append(float(view.clock[0].now))
        return waiting(wanted[len(asked) - 1]) if len(asked) <= len(wanted) else starting(len(asked) - 5, 0)

    policy = Policy("dawdler", "", make=lambda view, seed: choose)
    run(cluster_of({FAST: 3}), [Job("any", 1.0, submit_s=submit_s) for submit_s in (0.0, 4.0, 6.0)], policy)
    assert asked == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


def test_a_policy_that_always_waits_still_ends_the_run() -> None:
    asked: list[float] = []

    def choose(view: View) -> Choice:
        asked.append(float(view.clock[0].now))
        return waiting(asked[-1] + 1.0)

    assert run(cluster_of({FAST: 1}), [Job("any", 4.0)], scripted()) == []
    assert run(cluster_of({FAST: 1}), [Job("any", 4.0)], Policy("dawdler", "", make=lambda view, seed: choose)) == []
    assert asked == [float(second) for second in range(101)]


def test_a_policy_that_swings_to_and_fro_is_cut_off_and_its_last_word_is_a_plain_wait() -> None:
    asked: list[float] = []

    def choose(view: View) -> Choice:
        asked.append(float(view.clock[0].now))
        if len(asked) > 4 * 2 + 16:
            return waiting(3.0)
        return stopping(0) if view.clock[0].running else starting(0, 0)

    policy = Policy("swing", "", make=lambda view, seed: choose)
    events = run(cluster_of({FAST: 1}), [Job("any", 4.0), Job("any", 4.0), Job("any", 4.0, submit_s=9.0)], policy)
    assert [event[1] for event in events] == ["start", "stop"] * 12
    assert asked == [0.0] * 25 + [9.0]


def test_illegal_choices_are_logged_counted_and_wait() -> None:
    cluster, jobs = cluster_of({FAST: 1}), [Job("any", 4.0), Job("any", 1.0, submit_s=2.0)]
    plan, table = plan_cluster(cluster), pack_jobs(jobs)
    view = pack(plan, table, speed)
    policy = scripted(starting(1, 0), starting(0, 0), starting(1, 0), starting(1, 0))
    outcome = simulate(view, table.work, policy, SimulationSettings())
    assert outcome.events.time[outcome.events.what == 8].tolist() == [0.0, 2.0]
    assert (outcome.illegal, outcome.unfinished) == (2, 0)


def test_what_cannot_run_is_refused_when_it_comes_and_blocks_nobody() -> None:
    jobs = [Job("any", 1.0, gpus=5), Job("any", 1.0, cpus=9.0), Job("any", 2.0), Job("any", 1.0, submit_s=1.0, gpus=3)]
    assert [event[:3] for event in run(cluster_of({FAST: 2}), jobs)] == [
        (0.0, "refuse", 0),
        (0.0, "refuse", 1),
        (0.0, "start", 2),
        (1.0, "refuse", 3),
        (2.0, "finish", 2),
    ]


def test_what_befalls_the_cluster_at_the_last_finish_is_logged_and_later_things_are_not() -> None:
    trouble = [Disturbance(4.0, "down", "n0"), Disturbance(5.0, "up", "n0")]
    events = run(cluster_of({FAST: 1}), [Job("any", 4.0)], disturbances=trouble)
    assert [event[:2] for event in events[1:]] == [(4.0, "finish"), (4.0, "down")]


def test_a_plain_policy_may_answer_with_numpy_numbers_and_is_told_when_it_answers_nonsense() -> None:
    numbers = Choice(np.int32(1), np.int16(0), np.uint8(0), np.float32(0))  # type: ignore[arg-type]
    assert run(cluster_of({FAST: 1}), [Job("any", 4.0)], scripted(numbers))[-1] == (4.0, "finish", 0, ())
    nonsense = Policy("mute", "", make=lambda view, seed: lambda view: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(PolicyError, match=r"policy 'mute' answered None; expected a Choice"):
        run(cluster_of({FAST: 1}), [Job("any", 4.0)], nonsense)


@settings(max_examples=60)
@given(scenario=scenarios())
def test_a_log_that_grows_row_by_row_holds_the_same_events(scenario: Scenario) -> None:
    whole = run_compiled(scenario, FIRST_FIT)
    grown = run_with_log_of(scenario, FIRST_FIT, rows=0)
    assert grown.events == whole.events
    assert grown.view.clock == whole.view.clock
