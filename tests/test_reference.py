"""The second simulator against cases computed by hand, so that it can be trusted as a yardstick."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import (
    Answer,
    Event,
    Options,
    Policy,
    World,
    always_wait,
    fcfs,
    fcfs_easy,
    fcfs_first_fit,
    random_choices,
    simulate,
    sjf,
    sjf_picky,
    srtf,
)
from tests.strategies import Scenario, gpu_model, scenarios

from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed
from adlro.core.tables import NOBODY, START, STOP, WAIT

FAST, SLOW = "fast", "slow"


def cluster_of(*groups: dict[str, int], cpus: float = 8.0, memory_gb: float = 64.0) -> Cluster:
    """A cluster with one node for each mapping of model to count."""
    link = Link("pcie", 32.0)
    nodes = tuple(
        Node(f"n{i}", cpus, memory_gb, tuple(Gpus(model, count) for model, count in group.items()), link)
        for i, group in enumerate(groups)
    )
    return Cluster("hand", "", nodes, link, {FAST: gpu_model(FAST), SLOW: gpu_model(SLOW)})


def speed(family: str, placing: Placing) -> Speed:
    """The fast model works at 1, the slow at 1/4; over several nodes half; nothing runs the family 'never'."""
    assert placing.model is not None
    value = {FAST: 1.0, SLOW: 0.25}[placing.model.name] * (0.5 if placing.nodes > 1 else 1.0)
    return Speed(0.0 if family == "never" else value, MEASURED)


def job(
    work: float,
    submit_s: float = 0.0,
    gpus: int = 1,
    *,
    share: int = 1000,
    cpus: float = 0.0,
    memory_gb: float = 0.0,
    gpu_memory_gb: float = 0.0,
    limit_s: float | None = None,
    estimate: float | None = None,
    checkpoint: float | None = None,
) -> Job:
    """A job of the family that runs everywhere."""
    return Job(
        "any",
        work,
        submit_s,
        gpus,
        share,
        cpus,
        memory_gb,
        gpu_memory_gb,
        limit_s=limit_s,
        estimate=estimate,
        checkpoint=checkpoint,
    )


def run(
    cluster: Cluster,
    jobs: Sequence[Job],
    policy: Policy = fcfs,
    options: Options = Options(),  # noqa: B008 - frozen
    disturbances: Sequence[Disturbance] = (),
    preemptive: bool = False,
) -> list[Event]:
    """What happens by hand-made speeds."""
    return simulate(cluster, jobs, speed, policy, options, disturbances, preemptive)


def scripted(*answers: Answer) -> Policy:
    """A policy that gives these answers in turn, then waits."""
    left = list(answers)
    return lambda world: left.pop(0) if left else (WAIT, NOBODY, NOBODY, math.inf)


def start(job: int, site: int = 0) -> Answer:
    """Start a job."""
    return (START, job, site, math.inf)


def stop(job: int) -> Answer:
    """Stop a job."""
    return (STOP, job, NOBODY, math.inf)


def until(time: float) -> Answer:
    """Wait until a time."""
    return (WAIT, NOBODY, NOBODY, time)


def test_jobs_run_in_submit_order_and_at_once_when_a_gpu_is_free() -> None:
    events = run(cluster_of({FAST: 2}), [job(4.0, 1.0), job(8.0, 0.0, gpus=2), job(2.0, 1.0)])
    assert events == [
        (0.0, "start", 0, (0, (0, 1))),
        (4.0, "finish", 0, ()),
        (4.0, "start", 1, (0, (0,))),
        (4.0, "start", 2, (0, (1,))),
        (6.0, "finish", 2, ()),
        (8.0, "finish", 1, ()),
    ]


def test_ends_come_before_arrivals_and_gpus_are_free_at_once() -> None:
    events = run(cluster_of({FAST: 1}), [job(4.0), job(4.0, 4.0)])
    assert [event[:3] for event in events] == [
        (0.0, "start", 0),
        (4.0, "finish", 0),
        (4.0, "start", 1),
        (8.0, "finish", 1),
    ]


def test_a_share_goes_to_the_fullest_gpu_that_takes_it() -> None:
    jobs = [job(64.0, share=500), job(64.0, share=750), job(64.0, share=250), job(64.0, share=125), job(64.0, gpus=1)]
    events = run(cluster_of({FAST: 3}), jobs, fcfs_first_fit)
    placed = [event[3] for event in events if event[1] == "start"]
    assert placed == [(0, (0,)), (0, (1,)), (0, (1,)), (0, (0,)), (0, (2,))]
    assert events[5][:3] == (64.0, "finish", 4)  # then 64 / 0.75, 64 / 0.5, 64 / 0.25, 64 / 0.125
    assert [event[0] for event in events[7:]] == [128.0, 256.0, 512.0]


def test_a_share_passes_by_a_gpu_whose_memory_is_taken() -> None:
    jobs = [job(8.0, share=500, gpu_memory_gb=12.0), job(8.0, share=500, gpu_memory_gb=8.0)]
    events = run(cluster_of({FAST: 2}), jobs)
    assert [event[3] for event in events[:2]] == [(0, (0,)), (0, (1,))]


def test_a_wide_gang_takes_the_emptiest_nodes_at_half_speed() -> None:
    # Widths: 6 GPUs of sites of 2, 4 and 4 take two nodes. Node 1 has one GPU taken, so 4 come from n2 and 2 from n1.
    # The second gang finds 1 free GPU on n1 and 2 on n0 and would need both and more.
    jobs = [job(16.0, cpus=8.0), job(48.0, gpus=6, cpus=6.0), job(12.0, gpus=6)]
    policy = scripted(start(0, 1), start(1, 0), start(2, 0), start(2, 0))
    events = run(cluster_of({FAST: 2}, {FAST: 4}, {FAST: 4}, cpus=10.0), jobs, policy)
    assert events == [
        (0.0, "start", 0, (1, (0,))),
        (0.0, "start", 1, (2, (0, 1, 2, 3))),
        (0.0, "spread", 1, (1, (1, 2))),
        (0.0, "illegal", 2, (START, 0)),
        (16.0, "finish", 0, ()),
        (16.0, "finish", 1, ()),
        (16.0, "start", 2, (1, (0, 1, 2, 3))),
        (16.0, "spread", 2, (2, (0, 1))),
        (20.0, "finish", 2, ()),
    ]


def test_a_wide_gang_skips_a_node_that_lacks_cores_and_never_takes_more_nodes_than_its_width() -> None:
    # 5 GPUs of sites of 4, 2, 2 and 2: width 2 (4 + 1). With n0 short of cores it would take the other three: it waits.
    jobs = [job(8.0, gpus=0, cpus=5.0), job(20.0, gpus=5, cpus=5.0)]
    policy = scripted(start(0, 0), start(1, 0), start(1, 0))
    events = run(cluster_of({FAST: 4}, {FAST: 2}, {FAST: 2}, {FAST: 2}), jobs, policy)
    assert [event[:3] for event in events[:4]] == [
        (0.0, "start", 0),
        (0.0, "illegal", 1),
        (8.0, "finish", 0),
        (8.0, "start", 1),
    ]
    assert events[4] == (8.0, "spread", 1, (1, (0,)))
    assert events[5] == (16.0, "finish", 1, ())


def test_what_can_never_run_is_refused() -> None:
    jobs = [
        job(1.0, gpus=4),
        Job("never", 1.0),
        job(1.0, cpus=8.125),
        job(1.0, gpu_memory_gb=17.0),
        Job("any", 1.0, models=frozenset({"other"})),
        job(3.0, gpus=3),
        job(2.0, gpus=0, gpu_memory_gb=99.0),
    ]
    events = run(cluster_of({FAST: 2}, {FAST: 1}, {}), jobs)
    assert [event[2] for event in events if event[1] == "refuse"] == [0, 1, 2, 3, 4]
    assert (2.0, "finish", 6, ()) in events
    assert (2.0, "finish", 5, ()) in events  # 3 GPUs over two nodes at half speed


def test_a_stopped_job_keeps_its_work_and_pays_the_restart() -> None:
    policy = scripted(start(0), until(3.0), stop(0), until(5.0), start(0))
    events = run(cluster_of({FAST: 1}), [job(8.0)], policy, Options(restart_s=2.0), preemptive=True)
    assert events == [
        (0.0, "start", 0, (0, (0,))),
        (3.0, "stop", 0, ()),
        (5.0, "start", 0, (0, (0,))),
        (12.0, "finish", 0, ()),
    ]


@pytest.mark.parametrize(("checkpoint", "lost", "end"), [(None, 7.0, 20.0), (0.0, 0.0, 13.0), (3.0, 1.0, 14.0)])
def test_a_failure_costs_the_work_since_the_last_checkpoint(checkpoint: float | None, lost: float, end: float) -> None:
    trouble = [Disturbance(7.0, "down", "n0"), Disturbance(8.0, "down", "n0"), Disturbance(10.0, "up", "n0")]
    events = run(cluster_of({FAST: 1}), [job(10.0, checkpoint=checkpoint)], disturbances=trouble)
    assert events == [
        (0.0, "start", 0, (0, (0,))),
        (7.0, "down", NOBODY, (0,)),
        (7.0, "fail", 0, (lost,)),
        (10.0, "up", NOBODY, (0,)),
        (10.0, "start", 0, (0, (0,))),
        (end, "finish", 0, ()),
    ]


def test_a_failure_cannot_take_what_was_saved_by_a_stop() -> None:
    policy = scripted(start(0), until(5.0), stop(0), start(0))
    trouble = [Disturbance(7.0, "down", "n0")]
    events = run(cluster_of({FAST: 1}), [job(10.0)], policy, disturbances=trouble, preemptive=True)
    assert events[-1] == (7.0, "fail", 0, (2.0,))


def test_wear_is_settled_when_it_changes_and_after_the_restart() -> None:
    # 8 GPU-seconds on 2 GPUs: 2 s at rate 2, then rate 1 from 2 s: 4 left at 2 s, end 6 s.
    # Started anew at 3 s (3 left) with 2 s of restart; at 4 s the factor becomes 1/4: rate 1/2 from 5 s, end 11 s.
    trouble = [Disturbance(2.0, "speed", "n0", 2, 0.5), Disturbance(4.0, "speed", "n0", 2, 0.25)]
    policy = scripted(start(0, 1), until(2.5), until(3.0), stop(0), start(0, 1))
    cluster = cluster_of({SLOW: 1, FAST: 2})
    events = run(cluster, [job(8.0, gpus=2)], policy, Options(restart_s=2.0), trouble, preemptive=True)
    assert events[1] == (2.0, "speed", NOBODY, (1, (1,), 0.5))
    assert events[-1] == (11.0, "finish", 0, ())


def test_a_limit_counts_all_stretches_and_a_tie_is_a_finish() -> None:
    policy = scripted(start(0), start(1), until(3.0), stop(0), until(4.0), start(0))
    jobs = [job(8.0, limit_s=6.0), job(8.0, limit_s=8.0)]
    events = run(cluster_of({FAST: 2}), jobs, policy, Options(restart_s=1.0, kill_at_limit=True), preemptive=True)
    assert events[-2:] == [(7.0, "kill", 0, ()), (8.0, "finish", 1, ())]
    assert "kill" not in [event[1] for event in run(cluster_of({FAST: 2}), jobs)]


def test_an_illegal_choice_is_recorded_and_counts_as_waiting() -> None:
    policy = scripted(start(1), start(0), stop(0), start(0), start(5), start(1))
    events = run(cluster_of({FAST: 1}), [job(4.0), job(1.0, 2.0)], policy)
    assert [event[:3] for event in events] == [
        (0.0, "illegal", 1),
        (2.0, "start", 0),
        (2.0, "stop", 0),
        (2.0, "start", 0),
        (2.0, "illegal", 5),
        (6.0, "finish", 0),
        (6.0, "start", 1),
        (7.0, "finish", 1),
    ]


def test_a_policy_that_swings_to_and_fro_is_cut_off() -> None:
    def swing(world: World) -> Answer:
        return stop(0) if world.running else start(0)

    events = run(cluster_of({FAST: 1}), [job(4.0), job(4.0)], swing)
    assert [event[1] for event in events] == ["start", "stop"] * 12
    assert len(events) == 4 * 2 + 16


def test_a_policy_that_only_waits_still_ends_the_run() -> None:
    asked: list[float] = []

    def dawdle(world: World) -> Answer:
        asked.append(world.now)
        return until(world.now + 1.0)

    assert run(cluster_of({FAST: 1}), [job(4.0)], always_wait) == []
    assert run(cluster_of({FAST: 1}), [job(4.0)], dawdle) == []
    assert asked == [float(second) for second in range(101)]


def test_a_policy_sees_only_the_window() -> None:
    jobs = [job(1.0, gpus=2), job(1.0), job(1.0), job(1.0)]
    seen: list[list[int]] = []

    def look(world: World) -> Answer:
        seen.append([job for job, _ in world.legal()])
        return fcfs(world)

    run(cluster_of({FAST: 2}), jobs, look, Options(window=2))
    assert seen == [[0, 1], [], [1, 2], [2, 3], [], [3]]


def test_sjf_looks_at_estimates_and_doubles_those_that_were_exceeded() -> None:
    left: list[float] = []

    def look(world: World) -> Answer:
        left.append(world.work_left(0))
        return sjf(world)

    events = run(cluster_of({FAST: 1}), [job(9.0, estimate=2.0), job(1.0, estimate=4.0), job(1.0, 8.0)], look)
    assert [event[2] for event in events if event[1] == "start"] == [0, 2, 1]
    assert left[:4] == [2.0, 2.0, 8.0, 7.0]  # at 8 s it has done 8: the estimate is 16


def test_sjf_takes_a_slow_site_and_sjf_picky_waits_for_a_fast_one() -> None:
    cluster, jobs = cluster_of({SLOW: 1}, {FAST: 1}), [job(4.0), job(4.0)]
    assert run(cluster, jobs, sjf)[-1] == (16.0, "finish", 1, ())
    assert run(cluster, jobs, sjf_picky)[-1] == (8.0, "finish", 1, ())


def test_easy_backfills_only_what_does_not_delay_the_head() -> None:
    # 0 holds 2 of 5 GPUs until 8 s; the head (1) needs 4. Then 2 would hold 2 until 9 s: it would delay the head.
    # 3 holds 2 until 8 s: it may. 4 is long, but needs only the one GPU that the head leaves.
    jobs = [job(16.0, gpus=2), job(4.0, gpus=4), job(18.0, gpus=2), job(16.0, gpus=2), job(20.0)]
    events = run(cluster_of({FAST: 5}), jobs, fcfs_easy)
    assert [event[:3] for event in events if event[1] == "start"] == [
        (0.0, "start", 0),
        (0.0, "start", 3),
        (0.0, "start", 4),
        (8.0, "start", 1),
        (9.0, "start", 2),
    ]
    assert [event[2] for event in run(cluster_of({FAST: 5}), jobs, fcfs_first_fit)[:2]] == [0, 2]


def test_srtf_stops_the_longest_job_for_a_shorter_one() -> None:
    jobs = [job(10.0), job(20.0), job(4.0, 2.0), job(30.0, 3.0)]
    events = run(cluster_of({FAST: 2}), jobs, srtf, Options(restart_s=1.0), preemptive=True)
    assert [event[:3] for event in events] == [
        (0.0, "start", 0),
        (0.0, "start", 1),
        (2.0, "stop", 1),
        (2.0, "start", 2),
        (6.0, "finish", 2),
        (6.0, "start", 1),
        (10.0, "finish", 0),
        (10.0, "start", 3),
        (25.0, "finish", 1),
        (40.0, "finish", 3),
    ]


def test_srtf_stops_nobody_in_vain() -> None:
    # Job 1 has more left than job 2 takes, job 0 has less: stopping job 1 alone would not make room for two GPUs.
    jobs = [job(3.0), job(20.0), job(8.0, gpus=2)]
    events = run(cluster_of({FAST: 2}), jobs, scripted_then_srtf(start(0), start(1)), preemptive=True)
    assert "stop" not in [event[1] for event in events if event[0] < 3.0]


def scripted_then_srtf(*answers: Answer) -> Policy:
    """These answers in turn, then srtf."""
    left = list(answers)
    return lambda world: left.pop(0) if left else srtf(world)


POLICIES = (fcfs, fcfs_first_fit, sjf, sjf_picky, fcfs_easy, srtf, always_wait)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from(POLICIES) | st.integers(0, 99).map(random_choices), st.booleans())
def test_no_gpu_holds_more_than_it_has_and_every_run_ends(scenario: Scenario, policy: Policy, preemptive: bool) -> None:
    def watch(world: World) -> Answer:
        room = world.room
        assert all(0 <= share <= 1000 for site in room.share for share in site)
        assert min(room.cpus + room.memory + [memory for site in room.gpu_memory for memory in site]) >= 0
        assert world.running or room.share == world.empty.share
        assert all(world.jobs[job].submit_s <= world.now for job in world.queue + world.running)
        return policy(world)

    events = simulate(
        scenario.cluster, scenario.jobs, scenario.speed, watch, scenario.options, scenario.disturbances, preemptive
    )
    times = [event[0] for event in events]
    assert times == sorted(times)
    ended = [event[2] for event in events if event[1] in ("finish", "kill", "refuse")]
    assert len(ended) == len(set(ended))
    if policy is fcfs_first_fit and not any(disturbance.what == "down" for disturbance in scenario.disturbances):
        assert len(ended) == len(scenario.jobs)
