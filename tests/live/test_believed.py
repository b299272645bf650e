"""Live speeds: policies believe what jobs here have shown, each job teaches once, and slow GPUs are not slow models."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.daemon.mortal import QUICK, World
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, snapshot

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.learned import AGNOSTIC_SPEEDS, KNOWN_SPEEDS, LEARNED_SPEEDS, PRIOR_SPEEDS, SPEEDS
from adlro.core.ports import JobState, LiveJob, Part, Submission
from adlro.core.readings import unsure_in, unsure_of
from adlro.core.records import Job, Link, Node, Placing
from adlro.live.believed import LiveSpeeds, prior_family
from adlro.live.clocks import JobClocks
from adlro.live.corrections import Corrections
from adlro.live.predicting import ExpectedWork, MeasuredJob
from adlro.live.said import as_said
from adlro.live.scene import Scene, Scenes
from adlro.live.turn import Orchestrator, TurnSettings

V100, T4 = "v100-sxm2-16gb", "t4"
CLUSTER = load_cluster("paper16")
TRUE = {"slow": {V100: 1.0, T4: 0.15, "mi50": 0.6}, "even": {V100: 1.0, T4: 1.0, "mi50": 1.0}}
"""How fast two kinds of jobs really are; the datasheets say that a T4 is a third of a V100 for both."""


def named(kind: str, number: int) -> Job:
    user = "ann" if kind == "slow" else "bob"
    return Job("uniform", 0.0, gpus=1, user=user, name=f"{kind}-train-{number % 5}", limit_s=7200.0)


def really(job: LiveJob, parts: tuple[Part, ...]) -> float:
    return 600.0 / TRUE[job.job.name.split("-")[0]][parts[0].model]


def life(memory: Notebook, backend: Obedient, speeds: str = LEARNED_SPEEDS, rounds: int = 6) -> Orchestrator:
    """A daemon that sees so many rounds of jobs, which fill the cluster."""
    settings = TurnSettings(starts_s=0.01, compare_s=1e9, speeds=speeds)
    ours, random = Orchestrator(backend, memory, "sjf", settings=settings), Random(0)
    for _ in range(rounds):
        for number in range(16):
            backend.submit(Submission(named(("slow", "even")[number % 2], random.randrange(5))))
        for _ in range(3):
            ours.tick()
            backend.wait(1500.0)
    for kind in ("slow", "even"):
        backend.submit(Submission(named(kind, 3)))
    ours.tick()
    return ours


def rate(scene: Scene, kind: str, model: str) -> float:
    """The rate of a waiting job of this kind on a model."""
    j = next(j for j, live in enumerate(scene.live) if live.job.name.startswith(kind))
    form = next(h for h, form in enumerate(scene.plan.form_records) if form.model == model)
    return float(scene.view.rate[scene.view.jobs[j].kind, form])


def scene_of(ours: Orchestrator) -> Scene:
    assert ours._standing is not None
    return ours._standing.scene


@pytest.fixture(scope="module")
def lived() -> tuple[Orchestrator, Notebook, Obedient]:
    backend, memory = Obedient(CLUSTER, seconds=really), Notebook()
    return life(memory, backend), memory, backend


def test_the_rates_of_the_scene_follow_what_ended_jobs_have_shown(
    lived: tuple[Orchestrator, Notebook, Obedient],
) -> None:
    first = life(Notebook(), Obedient(CLUSTER, seconds=really), rounds=0)
    before = rate(scene_of(first), "slow", T4) / rate(scene_of(first), "slow", V100)
    assert before > 0.3
    scene = scene_of(lived[0])
    assert 0.1 < rate(scene, "slow", T4) / rate(scene, "slow", V100) < 0.21
    assert 0.65 < rate(scene, "even", T4) / rate(scene, "even", V100) < 1.2


def unsure(scene: Scene, kind: str, model: str) -> float:
    """How unsure the rate of a waiting job of this kind on a model is."""
    j = next(j for j, live in enumerate(scene.live) if live.job.name.startswith(kind))
    form = next(h for h, form in enumerate(scene.plan.form_records) if form.model == model)
    return unsure_of(scene.view, int(scene.view.jobs[j].kind), form)


def test_the_scene_says_how_sure_rates_are(lived: tuple[Orchestrator, Notebook, Obedient]) -> None:
    by_how = {how: life(Notebook(), Obedient(CLUSTER, seconds=really), how, rounds=0) for how in SPEEDS}
    assert not len(unsure_in(scene_of(by_how[KNOWN_SPEEDS]).view))
    assert not len(unsure_in(scene_of(by_how[AGNOSTIC_SPEEDS]).view))
    at_first = unsure(scene_of(by_how[PRIOR_SPEEDS]), "slow", T4)
    assert at_first > 0.5
    assert unsure(scene_of(by_how[LEARNED_SPEEDS]), "slow", T4) == pytest.approx(at_first)
    assert unsure(scene_of(lived[0]), "slow", T4) < 0.8 * at_first


def test_a_restart_keeps_what_was_learnt_and_no_job_teaches_twice(
    lived: tuple[Orchestrator, Notebook, Obedient],
) -> None:
    ours, memory, backend = lived
    again = Orchestrator(backend, memory, "sjf", settings=TurnSettings(starts_s=0.01, speeds=LEARNED_SPEEDS))
    for _ in range(3):
        again.tick()
    assert ours._speeds.taught == again._speeds.taught == len(memory.past)
    for kind in ("slow", "even"):
        mine, theirs = (each._speeds.of_job(named(kind, 3), CLUSTER).speeds for each in (ours, again))
        for model, speed in mine.items():
            assert theirs[model].value == pytest.approx(speed.value, rel=0.02)


def test_what_is_believed_of_a_job_says_how_sure_it_is_and_on_which_past_jobs_it_rests(
    lived: tuple[Orchestrator, Notebook, Obedient],
) -> None:
    ours, memory, backend = lived
    waiting = next(id for id, job in backend.jobs.items() if job.job.user == "ann" and job.state is JobState.RUNNING)
    found = ours.speeds(waiting)
    assert found is not None
    assert found.reference == V100
    assert found.speeds[V100].value == 1.0
    assert found.speeds[T4].low < 0.15 < found.speeds[T4].high < 0.6
    assert sum(each.jobs for each in found.speeds.values()) == len(memory.past)
    for past in found.because:
        assert memory.past[past.job].job.name == past.name
        assert memory.past[past.job].parts[0].model == past.model
        assert ("word slow" in past.parts) == ("user ann" in past.parts) == (past.user == "ann")
    assert found.because[0].user == "ann"
    assert ours.speeds("nobody's") is None


def test_the_families_found_are_the_two_kinds(lived: tuple[Orchestrator, Notebook, Obedient]) -> None:
    found = lived[0].learned_speeds()
    assert {family.users: family.words[0] for family in found.families} == {("ann",): "slow", ("bob",): "even"}
    assert found.jobs == len(lived[1].past)


@pytest.mark.parametrize("how", SPEEDS)
def test_a_rate_of_the_scene_is_the_pace_that_work_is_measured_with(
    how: str, lived: tuple[Orchestrator, Notebook, Obedient]
) -> None:
    speeds = lived[0]._speeds if how == LEARNED_SPEEDS else LiveSpeeds(how)
    corrections = Corrections(families={("", T4): 0.5}) if how != LEARNED_SPEEDS else Corrections()
    jobs = [named("slow", 1), replace(named("even", 2), gpus=4), replace(named("even", 2), family="simulation")]
    seen = snapshot(*(LiveJob(str(at), job, JobState.WAITING) for at, job in enumerate(jobs)))
    scene = Scenes(believe=speeds.view_of).scene(seen, as_said, corrections=corrections)
    for j, live in enumerate(scene.live):
        for s, site in enumerate(scene.plan.sites):
            part = scene.part(s, (1 << live.job.gpus) - 1, live.job.gpus)
            expected = speeds.pace(live.job, (part,), CLUSTER, corrections)
            assert scene.view.rate[scene.view.jobs[j].kind, site.form] == pytest.approx(expected)


def test_without_the_option_the_rates_are_those_of_the_table() -> None:
    backend = Obedient(CLUSTER, seconds=really)
    ours = life(Notebook(), backend, "known", rounds=2)
    plain = Scenes().scene(backend.read(), as_said)
    assert np.array_equal(scene_of(ours).view.rate, plain.view.rate)
    assert ours.learned_speeds().families == ()
    assert ours._speeds.taught == 0


def test_jobs_alike_are_one_kind_and_speeds_that_were_measured_stay_those_of_the_table() -> None:
    volta, pascal = (load_cluster("gavel108").models[name] for name in ("v100-sxm2-16gb", "p100-pcie-16gb"))
    speeds = LiveSpeeds(LEARNED_SPEEDS)
    cluster = load_cluster("gavel108")
    there = Part(next(node.name for node in cluster.nodes if node.gpus[0].model == pascal.name), pascal.name, 1)
    measured, other = (Job(family, 0.0, EPOCH_S, gpus=1, user="ann", name="a3c") for family in ("gavel/a3c", "uniform"))
    for job in (measured, other):
        live = LiveJob("1", job, JobState.FINISHED, (there,), EPOCH_S, EPOCH_S + 6000.0, 1)
        for _ in range(5):
            speeds.learn(MeasuredJob(live, 6000.0, 60.0, (there,)), ExpectedWork(60.0, 0.1), cluster, Corrections())
    jobs = (LiveJob("a", measured, JobState.WAITING), LiveJob("b", other, JobState.WAITING))
    alike = (LiveJob("c", other, JobState.WAITING), LiveJob("d", replace(other, name="b3d"), JobState.WAITING))
    scene = Scenes(believe=speeds.view_of).scene(snapshot(*jobs, *alike, cluster="gavel108"), as_said)
    kinds = scene.view.jobs["kind"]
    assert kinds[1] == kinds[2]
    assert len(set(kinds.tolist())) == 3
    here = Placing(pascal, 1, 1, Link("pcie", 32.0), cluster.network)
    assert speeds.pace(measured, (there,), cluster, Corrections()) == speed_of("gavel/a3c", here).value
    assert speeds.pace(other, (there,), cluster, Corrections()) < 0.1
    form = next(h for h, form in enumerate(scene.plan.form_records) if form.model == pascal.name)
    assert scene.view.rate[kinds[0], form] == speed_of("gavel/a3c", here).value
    assert scene.view.rate[kinds[1], form] < 0.1
    assert volta.name in speeds.of_job(other, cluster).speeds


# ---- telemetry -----------------------------------------------------------------------------------------------------


def ran_on(part: Part, gpu_pace: float | None) -> MeasuredJob:
    job = named("even", 1)
    live = LiveJob("1", job, JobState.FINISHED, (part,), EPOCH_S, EPOCH_S + 1200.0, 1, gpu_pace=gpu_pace)
    return MeasuredJob(live, 1200.0, 1200.0, (part,))


def believed_after(gpu_pace: float | None, corrections: Corrections = Corrections()) -> tuple[float, int]:  # noqa: B008
    speeds, part = LiveSpeeds(LEARNED_SPEEDS), Part("volta0", V100, 1, (0,))
    for _ in range(8):
        speeds.learn(ran_on(part, gpu_pace), ExpectedWork(600.0, 0.1), CLUSTER, corrections)
    return speeds.pace(named("even", 1), (part,), CLUSTER, Corrections()), speeds.taught


def test_a_throttled_gpu_does_not_teach_that_its_model_is_slow() -> None:
    slow, _ = believed_after(None)
    corrected, taught = believed_after(0.5)
    assert taught == 8
    assert slow < 0.8 * corrected
    assert corrected == pytest.approx(believed_after(1.0, Corrections(gpus={("volta0", 0): 0.5}))[0])
    assert believed_after(0.0)[1] == 0, "throttled by an unknown amount: it teaches nothing"


def test_the_clock_of_a_throttled_gpu_is_held_against_the_usual_one_of_its_model() -> None:
    clocks = JobClocks()
    parts = [Part("volta0", V100, 1, (index,)) for index in range(3)]
    jobs = [LiveJob(str(at), named("even", at), JobState.RUNNING, (part,)) for at, part in enumerate(parts)]
    figures: dict[str, dict[str, float | None]] = {
        "volta0/0": {"throttle": 0.0, "sm_clock": 0.9},
        "volta0/1": {"throttle": 1.0, "sm_clock": 0.45},
        "volta0/2": {"throttle": 1.0, "sm_clock": None},
    }
    for at in range(400):
        clocks.note(snapshot(*jobs, at_s=10.0 * at), figures)
    usual, slow, unknown = (clocks.ended(job.id) for job in jobs)
    assert usual == 1.0
    assert slow is not None
    assert 0.45 < slow < 0.75
    assert unknown == 0.0
    assert clocks.ended("0") is None
    clocks.note(snapshot(*jobs), None)
    assert clocks.ended("0") is None


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_a_new_gpu_model_in_the_cluster_keeps_what_was_learnt(
    lived: tuple[Orchestrator, Notebook, Obedient],
) -> None:
    speeds = LiveSpeeds(LEARNED_SPEEDS)
    part = Part("turing", T4, 1, (0,))
    for _ in range(6):
        job = replace(ran_on(part, None).job, parts=(part,))
        speeds.learn(MeasuredJob(job, 1200.0, 1.0, (part,)), ExpectedWork(100.0, 0.1), CLUSTER, Corrections())
    before = speeds.pace(named("even", 1), (part,), CLUSTER, Corrections())
    a100 = load_cluster("paper16")
    more = replace(a100, models={**a100.models, **load_cluster("gavel108").models})
    more = replace(
        more, nodes=(*more.nodes, Node("k", 8, 64, (load_cluster("gavel108").nodes[-1].gpus[0],), Link("pcie", 32.0)))
    )
    assert speeds.pace(named("even", 1), (part,), more, Corrections()) == pytest.approx(before, rel=0.25)
    assert speeds.taught == 6


def test_the_first_belief_is_by_the_family_that_was_declared_else_by_the_name() -> None:
    assert prior_family(Job("simulation", 0.0, name="train")) == "simulation"
    assert prior_family(Job("uniform", 0.0, name="gromacs-7")) == "simulation"
    assert prior_family(Job("no such family", 0.0, name="job")) == "learning"


@pytest.mark.parametrize("place", ["before ended", "after ended", "after ticked"])
def test_a_daemon_that_is_killed_has_learnt_every_ended_job_once(tmp_path: Path, place: str) -> None:
    world = World(tmp_path, settings=replace(QUICK, speeds=LEARNED_SPEEDS))
    try:
        world.submitted(9, gpus=(1, 2))
        world.turn()
        world.clock.move(120.0)
        world.fuse.at = place
        jobs = world.played_to_the_end()
        assert world.fuse.deaths == 1
        world.turn()
        running = world.daemon._running
        assert running is not None
        ours = running.decider
        assert isinstance(ours, Orchestrator)
        assert ours._speeds.taught == sum(job.state is JobState.FINISHED for job in jobs) == 9
    finally:
        world.daemon.close()
