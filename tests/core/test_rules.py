"""The rules one by one, on small clusters."""

import math

import numpy as np
import pytest
from tests.strategies import gpu_model

from adlro.core.plan import plan_cluster
from adlro.core.records import MEASURED, Cluster, Gpus, Job, Link, Node, Placing, Speed
from adlro.core.rules import (
    attained,
    best_runtime,
    count_bits,
    dequeue,
    enqueue,
    expected_end,
    first_idle,
    fits,
    gpu_share,
    is_short,
    learn,
    portion,
    queue_position,
    release,
    restart_cost,
    runtime,
    seen,
    settle_usage,
    shared_gpu,
    take,
    usage_now,
    work_done,
    work_left,
)
from adlro.core.tables import NOBODY, RUNNING, View
from adlro.normalise.pack import pack, pack_jobs

FAST, SLOW = "fast", "slow"


def view_of(*jobs: Job, groups: tuple[dict[str, int], ...] = ({FAST: 4}, {SLOW: 4}), cpus: float = 8.0) -> View:
    """A cluster with one node for each mapping of model to count, and these jobs still to come."""
    link = Link("pcie", 32.0)
    nodes = tuple(
        Node(f"n{i}", cpus, 64.0, tuple(Gpus(model, count) for model, count in group.items()), link)
        for i, group in enumerate(groups)
    )
    cluster = Cluster("hand", "", nodes, link, {FAST: gpu_model(FAST), SLOW: gpu_model(SLOW, 8.0)})
    return pack(plan_cluster(cluster), pack_jobs(jobs), speed)


def speed(family: str, placing: Placing) -> Speed:
    """The fast model works at 1, the slow at 1/4; over several nodes half."""
    assert placing.model is not None
    return Speed({FAST: 1.0, SLOW: 0.25}[placing.model.name] * (0.5 if placing.nodes > 1 else 1.0), MEASURED)


def started(view: View, j: int, s: int, now: float = 0.0) -> None:
    """Let a job run there as the simulator would, as far as the rules look."""
    take(view, j, s)
    run = view.runs[j]
    run.state, run.started, run.since, run.saved = RUNNING, now, now, run.done
    if run.starts > 0:
        run.since += view.clock[0].restart
    run.starts += 1


# ---- what fits ------------------------------------------------------------------------------------------------------


def test_a_job_fits_where_gpus_cores_memory_and_gpu_memory_are_free() -> None:
    jobs = [Job("a", 1.0, gpus=3), Job("a", 1.0, cpus=5.0), Job("a", 1.0, cpus=5.0), Job("a", 1.0, gpu_memory_gb=12.0)]
    view = view_of(*jobs, Job("a", 1.0, gpus=2), Job("a", 1.0, memory_gb=64.0))
    assert [fits(view, j, 0) for j in range(6)] == [True] * 6
    assert [fits(view, j, 1) for j in range(6)] == [True, True, True, False, True, True]
    take(view, 0, 0)
    assert [fits(view, j, 0) for j in range(1, 6)] == [True, True, True, False, True]
    take(view, 1, 0)
    assert not any(fits(view, j, 0) for j in range(2, 6))
    release(view, 0)
    assert [fits(view, j, 0) for j in range(2, 6)] == [False, True, True, True]


def test_nothing_fits_on_a_node_that_is_down() -> None:
    view = view_of(Job("a", 1.0), Job("a", 1.0, share=100), Job("a", 1.0, gpus=0))
    view.nodes[0].up = 0
    assert [fits(view, j, 0) for j in range(3)] == [False] * 3
    assert [fits(view, j, 1) for j in range(3)] == [True] * 3


def test_a_wide_gang_fits_at_the_anchor_only_even_if_the_anchor_itself_is_down() -> None:
    view = view_of(Job("a", 1.0, gpus=6), groups=({FAST: 4}, {FAST: 4}, {FAST: 4}))
    assert [fits(view, 0, s) for s in range(3)] == [True, False, False]
    view.nodes[0].up = 0
    assert [fits(view, 0, s) for s in range(3)] == [True, False, False]
    view.nodes[1].up = 0
    assert not fits(view, 0, 0)


def test_a_wide_gang_never_takes_more_nodes_than_its_width() -> None:
    view = view_of(Job("a", 1.0, gpus=6), *[Job("a", 1.0, gpus=2)] * 3, groups=({FAST: 4}, {FAST: 4}, {FAST: 4}))
    take(view, 1, 0)
    take(view, 2, 1)
    assert fits(view, 0, 0)  # 4 + 2
    take(view, 3, 2)
    assert not fits(view, 0, 0)  # 2 + 2 + 2 would be one node too many


def test_the_parts_of_a_gang_are_given_back_whole() -> None:
    view = view_of(Job("a", 1.0, gpus=7, cpus=7.0, memory_gb=7.0), groups=({FAST: 2}, {FAST: 4}, {FAST: 2}), cpus=9.0)
    before = [table.copy() for table in (view.sites, view.nodes, view.gpus, view.pools)]
    take(view, 0, 0)
    run = view.runs[0]
    assert (run.site, run.mask) == (1, 0b1111)
    second = view.parts[run.parts]
    third = view.parts[second.next]
    assert (second.site, second.mask, third.site, third.mask, third.next) == (0, 0b11, 2, 0b1, NOBODY)
    assert view.nodes.free_cpus.tolist() == [7000, 5000, 8000]
    release(view, 0)
    for old, new in zip(before, (view.sites, view.nodes, view.gpus, view.pools), strict=True):
        for column in set(old.dtype.names) - {"changes", "holder"}:  # who was there last, and how often that changed
            assert old[column].tolist() == new[column].tolist()


def test_a_share_goes_to_the_fullest_gpu_with_room_and_memory() -> None:
    shares = [700, 500, 200, 300, 300]
    view = view_of(*(Job("a", 1.0, share=share, gpu_memory_gb=4.0) for share in shares), groups=({FAST: 3},))
    for j in (0, 1):
        take(view, j, 0)
    assert [view.runs[j].mask for j in (0, 1)] == [0b1, 0b10]
    assert shared_gpu(view, 2, 0) == 0
    take(view, 2, 0)
    assert shared_gpu(view, 3, 0) == 1
    view.gpus[1].free_memory = 4095
    assert shared_gpu(view, 3, 0) == NOBODY
    take(view, 3, 0)
    assert view.runs[3].mask == 0b100
    assert view.sites[0].open_share == 700
    release(view, 3)
    assert (view.sites[0].free_mask, view.sites[0].free_gpus, view.sites[0].open_share) == (0b100, 1, 500)


def test_portions_are_rounded_up() -> None:
    assert [portion(1000, taken, 3) for taken in (0, 1, 2, 3)] == [0, 334, 667, 1000]


def test_bits_are_counted() -> None:
    assert [count_bits(mask) for mask in (0, 1, 0b1011, 2**62 - 1)] == [0, 1, 3, 62]


# ---- how long -------------------------------------------------------------------------------------------------------


def test_a_runtime_is_the_restart_and_the_work_left_at_the_rate_there() -> None:
    view = view_of(Job("a", 99.0, gpus=2, estimate=16.0))
    view.clock[0].restart = 5.0
    assert (runtime(view, 0, 0), runtime(view, 0, 1), best_runtime(view, 0)) == (8.0, 32.0, 8.0)
    view.runs[0].starts, view.runs[0].done = 1, 6.0
    assert (runtime(view, 0, 0), runtime(view, 0, 1), best_runtime(view, 0)) == (10.0, 25.0, 10.0)
    assert restart_cost(view, 0) == 5.0


def test_a_runtime_is_forever_where_the_job_cannot_run() -> None:
    view = view_of(Job("a", 9.0, gpu_memory_gb=12.0))
    assert math.isinf(runtime(view, 0, 1))


@pytest.mark.parametrize(
    ("estimate", "done", "left"),
    [(8.0, 0.0, 8.0), (8.0, 3.0, 5.0), (8.0, 8.0, 8.0), (8.0, 9.0, 7.0), (8.0, 33.0, 31.0), (0.0, 0.0, 0.0),
     (0.0, 0.5, 0.5), (0.0, 1.0, 1.0), (0.0, 5.0, 3.0)],
)  # fmt: skip
def test_an_estimate_that_is_used_up_doubles_until_something_is_left(estimate: float, done: float, left: float) -> None:
    view = view_of(Job("a", 99.0, estimate=estimate))
    view.runs[0].done = done
    assert work_left(view, 0) == left


def test_what_a_policy_reckons_of_a_running_job_does_not_show_wear() -> None:
    view = view_of(Job("a", 99.0, gpus=2, estimate=50.0))
    clock, run = view.clock[0], view.runs[0]
    clock.restart = 3.0
    run.done = 10.0
    run.starts = 1
    clock.now = 20.0
    started(view, 0, 0, now=20.0)
    assert (work_done(view, 0), expected_end(view, 0)) == (10.0, 43.0)
    clock.now = 22.0
    assert (work_done(view, 0), expected_end(view, 0)) == (10.0, 43.0)  # the restart is still being paid
    clock.now = 25.0
    assert (work_done(view, 0), expected_end(view, 0)) == (14.0, 43.0)
    run.done, run.since = 11.0, 25.0  # the simulator has settled less, because a GPU was slow
    assert (work_done(view, 0), expected_end(view, 0)) == (14.0, 43.0)


def test_attained_service_counts_gpu_seconds_of_all_stretches_and_seconds_without_gpus() -> None:
    jobs = [Job("a", 9.0, gpus=2), Job("a", 9.0, share=250), Job("a", 9.0, gpus=0)]
    view = view_of(*jobs)
    assert [gpu_share(view, j) for j in range(3)] == [2.0, 0.25, 1.0]
    for j in range(3):
        view.runs[j].held = 4.0
        started(view, j, 0, now=10.0)
    view.clock[0].now = 18.0
    assert [attained(view, j) for j in range(3)] == [24.0, 3.0, 12.0]


# ---- which sites are worth a look ------------------------------------------------------------------------------------


def test_the_first_idle_site_of_a_form_is_the_lowest_beyond_one_word_too() -> None:
    view = view_of(*[Job("a", 1.0)] * 80, groups=({FAST: 1},) * 80)
    for j in range(80):
        assert first_idle(view, 0) == j
        take(view, j, j)
    assert first_idle(view, 0) == NOBODY
    release(view, 73)
    release(view, 40)
    assert first_idle(view, 0) == 40


def test_a_site_whose_neighbour_is_used_is_open_not_idle() -> None:
    view = view_of(Job("a", 1.0), groups=({FAST: 2, SLOW: 2}, {FAST: 2, SLOW: 2}))
    take(view, 0, 0)
    assert sorted(view.open.site[: view.clock[0].open].tolist()) == [0, 1]
    assert [first_idle(view, h) for h in range(2)] == [2, 3]


# ---- the queue ------------------------------------------------------------------------------------------------------


def queued(view: View) -> list[int]:
    """The queue."""
    clock = view.clock[0]
    return list(view.queue[clock.head : clock.head + clock.queued])


def test_the_queue_is_in_job_order_whatever_goes_in_and_out() -> None:
    count = 12
    view = view_of(*[Job("a", 1.0)] * count)
    random = np.random.default_rng(0)
    inside: set[int] = set()
    for _ in range(400):
        j = int(random.integers(count))
        if j in inside:
            assert queue_position(view, j) == sorted(inside).index(j)
            dequeue(view, j)
        else:
            enqueue(view, j)
        inside ^= {j}
        assert queued(view) == sorted(inside)


@pytest.mark.parametrize(("window", "expected"), [(0, 5), (3, 3), (5, 5), (9, 5)])
def test_a_policy_sees_the_window(window: int, expected: int) -> None:
    view = view_of(*[Job("a", 1.0)] * 5)
    for j in range(5):
        enqueue(view, j)
    view.clock[0].window = window
    assert seen(view) == expected


# ---- what has been used and learnt ----------------------------------------------------------------------------------


def test_usage_halves_in_a_half_life_and_grows_with_what_is_held() -> None:
    view = view_of(Job("a", 1.0, user="ann"))
    clock = view.clock[0]
    clock.half_life = 100.0
    settle_usage(view, 1, 4.0)
    clock.now = 100.0
    rate = math.log(2) / 100.0
    assert usage_now(view, 1) == pytest.approx(4.0 * 0.5 / rate)  # the integral of 4·2^(-t/100) over a half-life
    settle_usage(view, 1, -4.0)
    clock.now = 200.0
    assert usage_now(view, 1) == pytest.approx(4.0 * 0.25 / rate)
    assert usage_now(view, 0) == 0.0


def test_usage_is_not_kept_without_a_half_life() -> None:
    view = view_of(Job("a", 1.0))
    settle_usage(view, 0, 4.0)
    view.clock[0].now = 10.0
    assert usage_now(view, 0) == 0.0


def test_finished_work_is_remembered_by_group_and_user() -> None:
    view = view_of(Job("a", 1.0, user="ann", name="x"), Job("a", 1.0, user="ann", name="y"))
    learn(view, 0, math.e)
    learn(view, 1, math.e**3)
    learn(view, 1, 0.5)  # counts as 1: its logarithm is 0
    assert view.groups.finished.tolist() == [1.0, 2.0]
    assert view.groups.log_work.tolist() == pytest.approx([1.0, 3.0])
    assert view.users[1].finished == 3.0
    assert view.users[1].log_work == pytest.approx(4.0)


@pytest.mark.parametrize("gpus", [1, 3, 8])
def test_a_node_is_short_of_a_portion_when_it_has_less_than_that_rounded_up(gpus: int) -> None:
    for amount in range(3 * gpus + 2):
        for taken in range(1, gpus + 1):
            for free in range(4):
                assert is_short(free, amount, taken, gpus) == (free < portion(amount, taken, gpus))
