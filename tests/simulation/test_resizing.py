"""Jobs that can be resized, by hand: what a resize changes, what it costs, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.both import Ran, run_compiled
from tests.decide.two_models import ADA, BELL, cluster_of, finishes, speed
from tests.reference import Options
from tests.strategies import Scenario

from adlro.core.copying import copied
from adlro.core.plan import plan_cluster
from adlro.core.policy import Policy, resizing, starting, stopping, waiting
from adlro.core.records import Job
from adlro.core.rules import attained
from adlro.core.run import Run
from adlro.core.tables import Choice, View
from adlro.decide.catalogue import find_policy
from adlro.measure.bounds import lower_bounds
from adlro.measure.metrics import measure
from adlro.normalise.pack import pack, pack_jobs

FOUR = cluster_of({ADA: 4})


def script(*lines: tuple[float, Choice]) -> Policy:
    """A policy that makes these choices, each as soon as its time has come."""

    def make(view: View, seed: int) -> "object":
        left = list(lines)

        def choose(view: View) -> Choice:
            now = float(view.clock[0].now)
            if left and left[0][0] <= now:
                return left.pop(0)[1]
            return waiting(left[0][0]) if left else waiting()

        return choose

    return Policy("script", "", make=make, preemptive=True, resizes=True)  # type: ignore[arg-type]


def played(jobs: Sequence[Job], *lines: tuple[float, Choice], restart_s: float = 0.0) -> Ran:
    """A script on one node of four GPUs."""
    return run_compiled(Scenario(FOUR, list(jobs), speed, Options(restart_s=restart_s), []), script(*lines))


ELASTIC = Job("same", work=800.0, gpus=4, cpus=6.0, sizes="1,2,4,8")


def test_a_waiting_job_is_resized_and_runs_at_its_new_size() -> None:
    ran = played([ELASTIC], (0.0, resizing(0, 2)), (0.0, starting(0, 0)))
    assert ran.events == [
        (0.0, "resize", 0, (2,)), (0.0, "start", 0, (0, (0, 1))), (400.0, "finish", 0, ()),
    ]  # fmt: skip


def test_a_running_job_is_resized_by_a_stop_a_resize_and_a_start_and_pays_for_the_restart() -> None:
    lines = [(0.0, starting(0, 0)), (100.0, stopping(0)), (100.0, resizing(0, 1)), (100.0, starting(0, 0))]
    # 400 of 800 are done; 50 s of restart; the other 400 take 400 s on one GPU.
    assert finishes(played([ELASTIC], *lines, restart_s=50.0)) == {0: 550.0}
    own = replace(ELASTIC, restart_s=7.0, start_s=3.0)
    assert finishes(played([own], *lines, restart_s=50.0)) == {0: pytest.approx(100.0 + 7.0 + (800 - 4 * 97))}


def test_the_first_start_costs_what_the_job_says() -> None:
    assert finishes(played([replace(ELASTIC, start_s=25.0)], (0.0, starting(0, 0)), restart_s=99.0)) == {0: 225.0}


@pytest.mark.parametrize(
    ("size", "before"),
    [(2, [(0.0, starting(0, 0))]), (3, []), (0, []), (8, [])],
    ids=["it runs", "not one of its sizes", "no GPUs", "the cluster has only four"],
)
def test_a_resize_is_refused(size: int, before: list[tuple[float, Choice]]) -> None:
    ran = played([ELASTIC], *before, (10.0, resizing(0, size)), (20.0, starting(0, 0)))
    assert [event[1] for event in ran.events if event[1] in ("resize", "illegal")][:1] == ["illegal"]


def test_a_job_without_sizes_cannot_be_resized() -> None:
    ran = played([replace(ELASTIC, sizes="")], (0.0, resizing(0, 2)))
    assert [event[1] for event in ran.events] == ["illegal"]


def test_cores_and_memory_follow_the_size_rounded_up_and_jobs_alike_share_their_shapes() -> None:
    jobs = pack_jobs([ELASTIC, Job("same", gpus=2), replace(ELASTIC, submit_s=1.0), replace(ELASTIC, memory_gb=1.0)])
    view = pack(plan_cluster(FOUR), jobs, speed)
    assert view.jobs.shapes.tolist() == [4, 0, 4, 4]
    assert view.jobs.first_shape[0] == view.jobs.first_shape[3] != view.jobs.first_shape[2]
    first = view.jobs.first_shape[0]
    assert view.shapes.gpus[first : first + 4].tolist() == [1, 2, 4, 8]
    assert view.shapes.cpus[first : first + 4].tolist() == [1500, 3000, 6000, 12000]
    assert view.shapes.demand[first + 2] == view.jobs.demand[0]


def test_the_size_that_was_asked_for_is_one_of_the_sizes() -> None:
    view = pack(plan_cluster(FOUR), pack_jobs([Job("same", gpus=3, sizes="1,2")]), speed)
    assert view.shapes.gpus.tolist() == [1, 2, 3]


def test_a_policy_that_knows_where_a_job_does_not_fit_sees_that_a_smaller_one_does() -> None:
    first_fit = find_policy("fcfs-first-fit").choose
    assert first_fit is not None
    answers: list[Choice] = []

    def choose(view: View) -> Choice:
        answers.append(first_fit(view))
        if len(answers) == 2:
            return resizing(1, 1)  # it has just found out that job 1 fits nowhere
        return answers[-1]

    jobs = [Job("same", work=300.0, gpus=3), ELASTIC]
    policy = Policy("asking", "", make=lambda view, seed: choose, resizes=True)
    ran = run_compiled(Scenario(FOUR, jobs, speed, Options(), []), policy)
    assert [event[:3] for event in ran.events[:3]] == [(0.0, "start", 0), (0.0, "resize", 1), (0.0, "start", 1)]


def test_gpu_seconds_that_a_job_has_had_are_counted_at_the_sizes_it_had() -> None:
    seen = []

    def make(view: View, seed: int) -> "object":
        lines = [
            (0.0, starting(0, 0)), (100.0, stopping(0)), (100.0, resizing(0, 1)), (100.0, starting(0, 0)),
            (150.0, None), (150.0, waiting()),
        ]  # fmt: skip

        def choose(view: View) -> Choice:
            if lines and lines[0][0] <= view.clock[0].now:
                choice = lines.pop(0)[1]
                if choice is None:
                    seen.append(attained(view, 0))
                    return waiting()
                return choice
            return waiting(lines[0][0]) if lines else waiting()

        return choose

    policy = Policy("script", "", make=make, preemptive=True, resizes=True)  # type: ignore[arg-type]
    run_compiled(Scenario(FOUR, [ELASTIC], speed, Options(), []), policy)
    assert seen == [pytest.approx(4 * 100.0 + 50.0)]


def told(ran: Ran) -> Run:
    """The run as the measures read it."""
    plan = ran.plan
    asked = pack_jobs([ELASTIC])
    view = pack(plan, asked, speed)
    return Run(
        plan.cluster, asked, ran.outcome.events, view.rate, np.ascontiguousarray(plan.sites.form),
        tuple(plan.models[m] for m in plan.sites.model), np.ascontiguousarray(plan.sites.gpus),
        np.ascontiguousarray(plan.sites.node), "script", 0, ran.outcome.unfinished, {}, 0, view.shapes,
    )  # fmt: skip


def test_the_measures_use_the_size_at_the_time() -> None:
    lines = [(0.0, starting(0, 0)), (100.0, stopping(0)), (100.0, resizing(0, 1)), (100.0, starting(0, 0))]
    run = told(played([ELASTIC], *lines))
    found = measure(run)
    # 4 GPUs for 100 s, then 1 for 400 s, of 4 GPUs for 500 s. The work takes 800 GPU-seconds at any size.
    assert found.utilisation == pytest.approx(800 / 2000)
    assert found.effective_utilisation == pytest.approx(800 / 2000)
    # The best runtime is at 8 GPUs' rate, which the rates have although the cluster has only four: not counted.
    assert found.bounded_slowdown_mean == pytest.approx(500 / 200)
    assert lower_bounds(run).fastest_runtime_s == pytest.approx(200.0)


def test_a_copy_of_a_view_has_its_own_sizes() -> None:
    view = pack(plan_cluster(FOUR), pack_jobs([ELASTIC]), speed)
    copied(view).jobs.gpus[0] = 1
    assert view.jobs.gpus[0] == 4


def test_policies_that_do_not_resize_take_the_size_that_was_asked_for() -> None:
    rigid = [replace(ELASTIC, sizes="")] * 3
    for name in ("fcfs-easy", "srtf", "plan"):
        policy = find_policy(name)
        one = run_compiled(Scenario(cluster_of({ADA: 4}, {BELL: 4}), [ELASTIC] * 3, speed, Options(), []), policy)
        two = run_compiled(Scenario(cluster_of({ADA: 4}, {BELL: 4}), rigid, speed, Options(), []), policy)
        assert one.events == two.events
