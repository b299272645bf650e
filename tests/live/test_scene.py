"""A snapshot as tables: jobs stand where they stand, wait in the order they came, and nothing strange breaks it."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.live.stand_in import EPOCH_S, running, snapshot, waiting

from adlro.core.copying import copied
from adlro.core.driver import truth_from_here
from adlro.core.engine import apply
from adlro.core.policy import starting
from adlro.core.ports import JobState, LiveJob, Part
from adlro.core.records import Job
from adlro.core.rules import expected_end, fits, in_queue, runtime
from adlro.core.tables import FOREVER, REFUSED, RUNNING, View
from adlro.decide.catalogue import find_policy
from adlro.live.corrections import Corrections
from adlro.live.forward import play_forward, usual_work
from adlro.live.said import as_said
from adlro.live.scene import Scene, Scenes, log_length

V100, T4, MI50 = "v100-sxm2-16gb", "t4", "mi50"


def scene_of(*jobs: LiveJob, **given: object) -> Scene:
    return Scenes().scene(snapshot(*jobs, **given), as_said)  # type: ignore[arg-type]


def free_on(scene: Scene, node: str) -> list[int]:
    """The GPUs of a node that are wholly free."""
    names = [each.name for each in scene.plan.cluster.nodes]
    site = scene.view.sites[scene.plan.nodes[names.index(node)].first_site]
    return [g for g in range(site.gpus) if site.free_mask >> g & 1]


def queue_of(scene: Scene) -> list[str]:
    return [scene.live[int(in_queue(scene.view, q))].id for q in range(scene.view.clock[0].queued)]


def started(scene: Scene, id: str, node: str) -> tuple[View, tuple[Part, ...]]:
    """A copy of the view in which a job was started at a node, and where it stands."""
    view = copied(scene.view)
    truth = truth_from_here(view, usual_work(view)[0], log_length(view), False)
    names = [each.name for each in scene.plan.cluster.nodes]
    j = scene.index[id]
    assert apply(view, truth, starting(j, int(scene.plan.nodes[names.index(node)].first_site)))
    return view, scene.parts_of(view, j)


def test_a_running_job_holds_exactly_the_gpus_that_it_has() -> None:
    scene = scene_of(running("a", (Part("volta0", V100, 2, (1, 3)),)))
    assert free_on(scene, "volta0") == [0, 2]
    assert free_on(scene, "volta1") == [0, 1, 2, 3]


def test_gpus_that_are_not_named_are_taken_after_those_that_are() -> None:
    unnamed = running("a", (Part("volta0", V100, 2),))
    named = running("b", (Part("volta0", V100, 1, (0,)),), at_s=5)
    scene = scene_of(unnamed, named, at_s=10)
    assert free_on(scene, "volta0") == [3]


def test_an_order_names_gpus_only_where_those_held_are_known() -> None:
    scene = scene_of(running("a", (Part("volta0", V100, 2, (0, 2)),)), waiting("b", gpus=2))
    assert started(scene, "b", "volta0")[1] == (Part("volta0", V100, 2, (1, 3)),)
    scene = scene_of(running("a", (Part("volta0", V100, 2),)), waiting("b", gpus=2))
    assert started(scene, "b", "volta0")[1] == (Part("volta0", V100, 2),)


def test_a_gang_over_two_nodes_becomes_two_parts_and_stands_so_again() -> None:
    scene = scene_of(waiting("a", gpus=8))
    parts = started(scene, "a", "volta0")[1]
    assert parts == (Part("volta0", V100, 4, (0, 1, 2, 3)), Part("volta1", V100, 4, (0, 1, 2, 3)))
    again = scene_of(running("a", parts))
    assert again.parts_of(again.view, 0) == parts
    assert free_on(again, "volta1") == []


def test_two_jobs_share_a_gpu() -> None:
    one = running("a", (Part("turing", T4, 1, (2,)),), share=300, gpus=1)
    scene = scene_of(one, waiting("b", share=700, gpus=1), waiting("c", share=800, gpus=1))
    view, parts = started(scene, "b", "turing")
    assert parts == (Part("turing", T4, 1, (2,)),)
    assert view.gpus[scene.plan.sites[2].first_gpu + 2].free_share == 0
    assert started(scene, "c", "turing")[1] == (Part("turing", T4, 1, (0,)),)


def test_a_job_whose_node_is_gone_is_noted_and_holds_nothing() -> None:
    scene = scene_of(running("a", (Part("gone", V100, 4, (0,)),)), waiting("b"))
    assert queue_of(scene) == ["b"]
    assert any("gone" in note for note in scene.notes)
    assert scene.view.clock[0].running == 0


def test_a_gpu_that_two_jobs_claim_breaks_nothing() -> None:
    twice = [running(name, (Part("radeon", MI50, 4, (0, 1, 2, 3)),)) for name in "abc"]
    scene = scene_of(*twice, waiting("d", gpus=4, models=frozenset([MI50])))
    played = play_forward(scene.view, usual_work(scene.view)[0], find_policy("fcfs"), 5.0)
    assert played.is_whole
    assert not np.isnan(played.end).any()


def test_a_node_that_is_down_takes_no_job_and_keeps_those_it_has() -> None:
    held = running("a", (Part("volta0", V100, 1, (0,)),))
    scene = scene_of(held, waiting("b", gpus=4, models=frozenset([V100])), down={"volta0": "drained"})
    assert not fits(scene.view, 1, 0)
    assert fits(scene.view, 1, 1)
    assert scene.view.runs[0].state == RUNNING


def test_jobs_wait_in_the_order_of_their_first_submission() -> None:
    jobs = [waiting("late", at_s=30), waiting("early", at_s=10), waiting("requeued", at_s=40)]
    scene = Scenes().scene(snapshot(*jobs, at_s=50), as_said, {"requeued": EPOCH_S + 1})
    assert queue_of(scene) == ["requeued", "early", "late"]
    assert scene.view.clock[0].now == 49.0
    assert scene.time_s(float(scene.view.jobs[0].submit)) == EPOCH_S + 1


def test_a_job_that_is_not_ours_takes_room_and_is_not_queued() -> None:
    theirs = replace(waiting("theirs"), managed=False)
    scene = scene_of(theirs, replace(running("b", (Part("volta0", V100, 4, (0, 1, 2, 3)),)), managed=False))
    assert queue_of(scene) == []
    assert free_on(scene, "volta0") == []


def test_a_job_that_can_never_run_is_not_queued() -> None:
    scene = scene_of(waiting("a", gpus=64), waiting("b"))
    assert queue_of(scene) == ["b"]
    assert scene.view.runs[scene.index["a"]].state == REFUSED


def test_a_job_that_no_cluster_could_mean_is_left_out_with_a_note() -> None:
    scene = scene_of(waiting("a", gpus=-1), waiting("b"))
    assert queue_of(scene) == ["b"]
    assert "job a is left out" in scene.notes[0]


def test_a_job_with_more_memory_than_a_table_can_hold_is_left_out_and_the_others_are_seen() -> None:
    scene = scene_of(waiting("a", memory_gb=3e6), waiting("b"))
    assert queue_of(scene) == ["b"]
    assert "memory_gb is 3000000.0; expected a number of GB from 0 to 2000000" in scene.notes[0]


def test_a_job_stands_where_our_rules_would_never_have_put_it() -> None:
    odd = running("a", (Part("turing", T4, 2, (0, 1)),), models=frozenset([V100]))
    scene = scene_of(odd)
    assert free_on(scene, "turing") == [2, 3]
    assert float(expected_end(scene.view, 0)) < FOREVER


def test_an_unknown_family_runs_alike_everywhere() -> None:
    scene = scene_of(waiting("a", family="never-heard-of"))
    assert queue_of(scene) == ["a"]
    assert runtime(scene.view, 0, 0) == runtime(scene.view, 0, 2) == 3600.0


def test_a_job_that_has_started_before_has_its_work_and_pays_for_the_restart() -> None:
    from adlro.live.scene import Carried

    job = replace(waiting("a", family="uniform"), starts=1)
    scene = Scenes().scene(snapshot(job), as_said, carried={"a": Carried(saved=1600.0)})
    assert runtime(scene.view, 0, 0) == 2000.0 + 30.0


def test_a_worn_gpu_makes_its_site_slower_by_how_likely_one_gets_it() -> None:
    jobs = [waiting("one"), waiting("four", gpus=4)]
    seen = snapshot(*jobs)
    before = Scenes().scene(seen, as_said).view
    worn = Corrections(gpus={("volta1", 2): 0.5})
    after = Scenes().scene(seen, as_said, corrections=worn).view
    assert runtime(after, 0, 0) == runtime(before, 0, 0)
    assert runtime(after, 0, 1) == pytest.approx(
        1.25 * runtime(before, 0, 1)
    )  # a quarter of the jobs takes twice as long
    assert runtime(after, 1, 1) == pytest.approx(2.0 * runtime(before, 1, 1))  # four GPUs are as fast as the slowest


def test_a_family_that_runs_slower_on_a_model_does_so_for_every_policy() -> None:
    seen = snapshot(waiting("a"), waiting("b", family="learning"))
    before = Scenes().scene(seen, as_said).view
    after = Scenes().scene(seen, as_said, corrections=Corrections(families={("simulation", V100): 0.8})).view
    assert runtime(after, 0, 0) == pytest.approx(runtime(before, 0, 0) / 0.8)
    assert runtime(after, 1, 0) == runtime(before, 1, 0)
    assert runtime(after, 0, 2) == runtime(before, 0, 2)


def test_rows_are_kept_between_scenes_and_follow_a_job_that_changes() -> None:
    scenes = Scenes()
    job = waiting("a", gpus=2)
    first = scenes.scene(snapshot(job), as_said)
    same = scenes.scene(snapshot(job), as_said)
    assert first.plan is same.plan
    assert first.view.jobs.tobytes() == same.view.jobs.tobytes()
    wider = replace(job, job=replace(job.job, gpus=4))
    assert scenes.scene(snapshot(wider), as_said).view.jobs[0].gpus == 4


def test_rows_of_jobs_that_are_gone_are_forgotten() -> None:
    scenes = Scenes()
    for turn in range(60):
        scenes.scene(snapshot(*(waiting(f"{turn}-{n}") for n in range(50))), as_said)
    assert len(scenes._row) < 1300


def random_jobs(random: Random) -> list[LiveJob]:
    """Running jobs as a scheduler of another kind might have put them, named or not, and some that wait."""
    jobs: list[LiveJob] = []
    for node, model in (("volta0", V100), ("volta1", V100), ("turing", T4), ("radeon", MI50)):
        free = [0, 1, 2, 3]
        random.shuffle(free)
        while free and random.random() < 0.8:
            count = random.randint(1, len(free))
            mine, free = tuple(sorted(free[:count])), free[count:]
            named = mine if random.random() < 0.6 else ()
            share = random.choice([1000, 1000, 400]) if count == 1 else 1000
            part = Part(node, model, count, named)
            jobs.append(running(f"r{len(jobs)}", (part,), share=share, gpus=count, cpus=random.choice([0, 1, 3])))
    if random.random() < 0.3:
        jobs = [job for job in jobs if job.parts[0].model != V100]
        parts = tuple(Part(node, V100, 3, (0, 1, 2)) for node in ("volta0", "volta1"))
        jobs.append(running("wide", parts, gpus=6, cpus=5, memory_gb=7))
    for number in range(random.randint(0, 12)):
        gpus = random.choice([0, 1, 1, 2, 4, 8])
        share = random.choice([1000, 300]) if gpus == 1 else 1000
        jobs.append(waiting(f"w{number}", at_s=number, gpus=gpus, share=share, cpus=2, estimate=random.uniform(1, 9e3)))
    return jobs


@pytest.mark.parametrize("seed", range(40))
def test_whatever_stands_where_all_is_free_again_when_all_has_ended(seed: int) -> None:
    scene = scene_of(*random_jobs(Random(seed)), at_s=100)
    world = copied(scene.view)
    truth = truth_from_here(world, usual_work(world)[0], log_length(world), False)
    from adlro.core.engine import OVER, play

    choose = find_policy("fcfs-first-fit").choose
    assert choose is not None
    assert play(world, truth, choose) == OVER
    assert world.clock[0].illegal == 0
    for name in ("free_mask", "free_gpus", "free_share", "open_share"):
        assert (world.sites[name] == scene.plan.sites[name]).all(), name
    for name in ("free_cpus", "free_memory", "jobs"):
        assert (world.nodes[name] == scene.plan.nodes[name]).all(), name
    assert (world.gpus.free_share == scene.plan.gpus.free_share).all()
    assert (world.gpus.free_memory == scene.plan.gpus.free_memory).all()


def test_a_view_is_not_changed_by_playing_it_forward() -> None:
    scene = scene_of(*random_jobs(Random(3)), at_s=100)
    before = [np.array(array) for array in scene.view]
    play_forward(scene.view, usual_work(scene.view)[0], find_policy("sjf"), 5.0)
    assert all((old == new).all() for old, new in zip(before, scene.view, strict=True))


def test_a_placed_job_holds_its_place() -> None:
    placed = LiveJob(
        "a", Job("simulation", 0.0, EPOCH_S, gpus=4, estimate=60.0), JobState.PLACED, (Part("radeon", MI50, 4),)
    )
    assert free_on(scene_of(placed), "radeon") == []
