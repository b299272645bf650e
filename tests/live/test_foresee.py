"""Foresight: predicted starts are those that come when estimates are right, and questions are answered in a second."""

import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, large_cluster, running, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import CatalogueError, UsageError
from adlro.core.ports import JobState, LiveJob, Part, Setback, Submission
from adlro.core.records import Job
from adlro.core.tables import Floats, Table
from adlro.decide.catalogue import find_policy
from adlro.live.foresee import Foresight, changed_snapshot
from adlro.live.forward import drawn_work, play_forward, usual_work
from adlro.live.said import as_said
from adlro.live.scene import Scene, Scenes
from adlro.live.service import OtherWish, WhatIf
from adlro.live.turn import Orchestrator, TurnSettings

V100 = "v100-sxm2-16gb"
ONLY = frozenset([V100])


def vaguely(traits: Table, jobs: Table, scale: Floats) -> Floats:
    """As said, give or take a half."""
    said = jobs["estimate"]
    return np.stack([said / 1.5, said, said * 1.5], axis=1)


def scene_of(*jobs: LiveJob, **given: object) -> Scene:
    return Scenes().scene(snapshot(*jobs, **given), vaguely)  # type: ignore[arg-type]


def full_volta(seconds: float) -> list[LiveJob]:
    """Both Volta nodes held for so long."""
    return [
        running(node, (Part(node, V100, 4, (0, 1, 2, 3)),), family="uniform", estimate=4 * seconds * (1 + at))
        for at, node in enumerate(("volta0", "volta1"))
    ]


def test_a_job_is_predicted_to_start_when_the_one_before_it_is_expected_to_end() -> None:
    scene = scene_of(*full_volta(1000.0), waiting("a", gpus=4, models=ONLY), waiting("b", gpus=4, models=ONLY), at_s=10)
    starts = Foresight().starts(scene, scene.view, find_policy("fcfs"), 2.0)
    first, second = starts["a"], starts["b"]
    assert first.low_s is not None
    assert first.middle_s is not None
    assert first.high_s is not None
    assert first.low_s < first.middle_s < first.high_s
    assert first.middle_s - EPOCH_S == pytest.approx(1000.0, rel=0.35)
    assert second.middle_s is not None
    assert second.middle_s > first.middle_s


def test_a_job_that_can_never_start_has_no_start() -> None:
    scene = scene_of(waiting("a", gpus=4, models=ONLY), down={"volta0": "", "volta1": ""})
    start = Foresight().starts(scene, scene.view, find_policy("fcfs"), 1.0)["a"]
    assert (start.low_s, start.middle_s, start.high_s) == (None, None, None)


def test_no_start_is_in_the_past() -> None:
    foresight, policy = Foresight(), find_policy("fcfs")
    held = full_volta(100.0)
    for at_s in (10.0, 90.0, 150.0, 900.0):
        scene = scene_of(*held, waiting("a", gpus=4, models=ONLY), at_s=at_s)
        start = foresight.starts(scene, scene.view, policy, 0.5)["a"]
        assert start.low_s is not None
        assert start.low_s >= EPOCH_S + at_s


def test_where_estimates_are_right_things_come_as_foreseen() -> None:
    random, backend = Random(5), Obedient(load_cluster("paper16"))
    for number in range(40):
        gpus = random.choice([1, 2, 4, 8])
        backend.jobs[str(number)] = waiting(
            str(number), family="uniform", gpus=gpus, estimate=60.0 * gpus * random.randint(1, 30), limit_s=None
        )
    backend.seconds = lambda job, parts: (job.job.estimate or 0.0) / job.job.gpus
    ours = Orchestrator(backend, Notebook(), "fcfs-first-fit", "fcfs", TurnSettings(starts_s=1.0, compare_s=1e9))
    ours.tick()
    scene = Scenes().scene(backend.read(), as_said)
    played = play_forward(scene.view, usual_work(scene.view)[0], find_policy("fcfs-first-fit"), 5.0)
    for _ in range(1000):
        if all(job.state is JobState.FINISHED for job in backend.jobs.values()):
            break
        backend.wait(60.0)
        ours.tick()
    for j, job in enumerate(scene.live):
        if job.state is JobState.WAITING:
            began = backend.jobs[job.id].started_s
            assert began is not None
            assert scene.time_s(float(played.start[j])) == pytest.approx(began, abs=1.0)


def test_draws_lie_around_what_is_expected_and_never_below_what_is_done() -> None:
    jobs = [*full_volta(1000.0), *(waiting(f"w{n}", estimate=1000.0) for n in range(400))]
    scene = scene_of(*jobs, at_s=1500)
    drawn = drawn_work(scene, scene.view, np.random.default_rng(1))
    done = usual_work(scene.view)[1]
    assert (drawn > done).all()
    some = drawn[2:]
    assert np.median(some) == pytest.approx(1000.0, rel=0.1)
    assert np.quantile(some, 0.1) == pytest.approx(1000.0 / 1.5, rel=0.15)
    assert np.quantile(some, 0.9) == pytest.approx(1500.0, rel=0.15)


def test_a_long_queue_is_foreseen_in_the_time_there_is() -> None:
    random = Random(1)
    jobs = [
        waiting(f"w{n}", at_s=n * 0.01, gpus=random.choice([1, 2, 4]), estimate=random.uniform(100, 9e3))
        for n in range(3000)
    ]
    seen = replace(snapshot(*jobs, at_s=100), cluster=large_cluster(100))
    scene = Scenes().scene(seen, vaguely)
    foresight, policy = Foresight(), find_policy("adlro")
    foresight.starts(scene, scene.view, policy, 0.2)  # what must be compiled is
    began = time.process_time()
    starts = foresight.starts(scene, scene.view, policy, 0.2)
    assert time.process_time() - began < 1.0
    assert sum(start.middle_s is not None for start in starts.values()) > 2900


# ---- what if -----------------------------------------------------------------------------------------------------


def daemon(nodes: int, jobs: int, policy: str = "sjf") -> Orchestrator:
    """One that has made a turn on a cluster of four times so many GPUs."""
    random = Random(2)
    backend = Obedient(large_cluster(nodes) if nodes != 4 else load_cluster("paper16"))
    for number in range(jobs):
        backend.jobs[str(number)] = waiting(
            str(number), gpus=random.choice([1, 2, 4]), estimate=random.uniform(300.0, 9000.0), user=f"u{number % 5}"
        )
    ours = Orchestrator(backend, Notebook(), policy, settings=TurnSettings(compare_s=1e9, decide_s=5.0, decision_s=5.0))
    ours.tick()
    return ours


def test_more_gpus_make_jobs_end_sooner_and_fewer_later() -> None:
    ours = daemon(4, 60)
    more = ours.what_if(WhatIf(add_nodes=(("v100", 4, 4),)))
    assert more.jct_s is not None
    assert more.jct_if_s is not None
    assert more.jct_if_s < 0.8 * more.jct_s
    assert more.changed > 20
    assert "less time" in more.text
    fewer = ours.what_if(WhatIf(remove_nodes=("volta0",)))
    assert fewer.jct_if_s is not None
    assert fewer.jct_s is not None
    assert fewer.jct_if_s > fewer.jct_s
    assert fewer.makespan_if_s > fewer.makespan_s  # type: ignore[operator]


def test_a_new_job_is_told_its_start_and_is_not_handed_in() -> None:
    ours = daemon(4, 30)
    short = Submission(Job("simulation", 0.0, gpus=1, estimate=30.0))
    wide = Submission(Job("simulation", 0.0, gpus=8, estimate=90_000.0))
    foreseen = ours.what_if(WhatIf(jobs=(short, wide)))
    first, second = (start.middle_s for start in foreseen.starts)
    assert first is not None
    assert second is not None
    assert EPOCH_S <= first < second
    assert len(ours.state().snapshot.jobs) == 30


def after_a_turn(*jobs: LiveJob) -> Orchestrator:
    """One that has made a turn on the paper's cluster with these jobs."""
    backend = Obedient(load_cluster("paper16"), {job.id: job for job in jobs})
    ours = Orchestrator(backend, Notebook(), "fcfs", settings=TurnSettings(compare_s=1e9, decide_s=5.0, decision_s=5.0))
    ours.tick()
    return ours


def test_a_waiting_job_is_told_when_it_would_start_with_fewer_gpus_or_on_another_model() -> None:
    ours = after_a_turn(*full_volta(10_000.0), waiting("a", gpus=4, models=ONLY), waiting("b", gpus=1))
    answer = ours.what_if(WhatIf(change=(OtherWish("a", gpus=2, models=("t4",)),)))
    (start,) = answer.starts
    assert start.job == "a"
    assert start.middle_s is not None
    assert start.middle_s - EPOCH_S < 100
    assert answer.text.startswith("Job a would start in about 0 s (as it is: in about ")
    as_is = ours.what_if(WhatIf(change=(OtherWish("a"),))).starts[0]
    assert as_is.middle_s is not None
    assert as_is.middle_s - EPOCH_S > 1000


def test_a_job_that_cannot_be_placed_is_told_what_would_do() -> None:
    huge = replace(waiting("huge", gpus=4096), managed=False, reason="none has", setback=Setback.UNPLACEABLE)
    answer = after_a_turn(huge).what_if(WhatIf(change=(OtherWish("huge", gpus=2),)))
    assert answer.starts[0].middle_s is not None
    assert "(as it is: no start is foreseen)" in answer.text


def test_other_wishes_of_a_job_that_runs_or_for_a_model_that_is_not_there_are_refused_in_words() -> None:
    seen = snapshot(*full_volta(100.0), waiting("a"))
    with pytest.raises(UsageError, match="job volta0 does not wait"):
        changed_snapshot(seen, WhatIf(change=(OtherWish("volta0", gpus=1),)))
    with pytest.raises(UsageError, match="the cluster has no h100"):
        changed_snapshot(seen, WhatIf(change=(OtherWish("a", models=("h100",)),)))


def test_another_policy_is_played_as_itself() -> None:
    ours = daemon(4, 60)
    worse = ours.what_if(WhatIf(policy="fcfs"))
    assert worse.jct_if_s > worse.jct_s  # type: ignore[operator]
    with pytest.raises(CatalogueError):
        ours.what_if(WhatIf(policy="none-such"))


def test_a_question_about_what_is_not_there_is_refused_in_words() -> None:
    ours = daemon(4, 3)
    with pytest.raises(UsageError, match="no node 'volta9'"):
        ours.what_if(WhatIf(remove_nodes=("volta9",)))
    with pytest.raises(CatalogueError, match="no GPU model"):
        ours.what_if(WhatIf(add_nodes=(("abacus", 4, 1),)))
    with pytest.raises(UsageError, match="1 to 62 GPUs"):
        ours.what_if(WhatIf(add_nodes=(("v100", 99, 1),)))


def test_jobs_on_a_node_that_is_taken_away_wait_again() -> None:
    seen = snapshot(running("a", (Part("volta0", V100, 1, (0,)),)), running("b", (Part("volta1", V100, 1, (0,)),)))
    changed, new = changed_snapshot(seen, WhatIf(remove_nodes=("volta0",)))
    assert [job.state for job in changed.jobs] == [JobState.WAITING, JobState.RUNNING]
    assert new == ()
    assert len(changed.cluster.nodes) == 3


@pytest.mark.parametrize(("nodes", "jobs", "policy"), [(4, 100, "adlro"), (250, 2000, "adlro"), (250, 2000, "sjf")])
def test_an_answer_takes_less_than_a_second(nodes: int, jobs: int, policy: str) -> None:
    ours = daemon(nodes, jobs, policy)
    job = Submission(Job("learning", 0.0, gpus=4, estimate=3600.0))
    questions = (WhatIf(jobs=(job,)), WhatIf(add_nodes=(("v100", 4, 1),)), WhatIf(jobs=(job,) * 5))
    ours.what_if(questions[0])  # what must be compiled is
    for question in questions:
        began = time.process_time()
        foreseen = ours.what_if(question)
        assert time.process_time() - began < 1.0
        assert foreseen.jct_s is not None
