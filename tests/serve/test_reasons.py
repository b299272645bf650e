"""Why: the dominant reason is what the rules say, in words for the one who waits."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.stand_in import EPOCH_S, Notebook, Obedient, Watch, running, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import JobState, LiveJob, Part
from adlro.decide.catalogue import find_policy
from adlro.serve.guard import Guarded, Limits
from adlro.serve.live_view import Scenes, as_said
from adlro.serve.orchestrator import Orchestrator, Settings
from adlro.serve.reasons import (
    Judge,
    Standing,
    given_back,
    parts_at,
    passed_over,
    short_names,
    short_reason,
    spell,
    why,
)
from adlro.serve.service import Decision, Start, Why

V100, T4, MI50 = "v100-sxm2-16gb", "t4", "mi50"
ALL = {"volta0": V100, "volta1": V100, "turing": T4, "radeon": MI50}


def held(node: str, gpus: int = 4, **given: object) -> LiveJob:
    """A job that holds the first GPUs of a node."""
    given.setdefault("estimate", 4e4)
    return running(f"on-{node}", (Part(node, ALL[node], gpus, tuple(range(gpus))),), "uniform", 0.0, **given)


def asked(job: LiveJob, *others: LiveJob, policy: str = "fcfs-first-fit", at_s: float = 100.0, **given: object) -> Why:
    """Why this job stands as it does after a turn."""
    max_wait_s = float(given.pop("max_wait_s", 0.0))  # type: ignore[arg-type]
    scene = Scenes().scene(snapshot(job, *others, at_s=at_s, **given), as_said)  # type: ignore[arg-type]
    limits = Limits(max_wait_s=max_wait_s, turn_s=30.0, decision_s=30.0)
    decided = Guarded(find_policy(policy), find_policy("fcfs"), limits).decide(scene)
    standing = Standing(scene, decided.view, policy, decided.by, kept=decided.kept.nodes)
    return why(standing, job, None)


def answers(found: Why) -> dict[str, str]:
    return {place["model"]: place["answer"] for place in found.places}


def test_everything_is_busy() -> None:
    found = asked(waiting("a", at_s=50.0), *(held(node) for node in ALL))
    assert found.dominant == "resources"
    assert found.rule == "What fits where"
    assert answers(found)[V100] == "0 of 8 GPUs are free, at most 0 on one node; needs 1"
    assert found.ahead == 0


def test_free_gpus_are_on_different_nodes() -> None:
    job = waiting("a", at_s=50.0, gpus=3, models=frozenset([V100]))
    found = asked(job, held("volta0", 2), held("volta1", 2))
    assert found.dominant == "resources"
    assert answers(found)[V100] == "4 of 8 GPUs are free, at most 2 on one node; needs 3"
    assert answers(found)[T4] == "the job does not allow this model"


def test_gpus_are_free_but_not_the_memory() -> None:
    job = waiting("a", at_s=50.0, memory_gb=200.0, models=frozenset([MI50]))
    found = asked(job, held("radeon", 1, memory_gb=100.0))
    assert found.dominant == "resources"
    assert answers(found)[MI50] == "GPUs are free, but not the cores or the memory beside them"


def test_a_job_that_can_never_run_here() -> None:
    found = asked(waiting("a", gpus=9))
    assert found.dominant == "never"
    assert found.text == "It can never run here: it needs 9 GPUs of one model; this cluster has at most 8."
    assert asked(waiting("a", models=frozenset(["h100-sxm"]))).dominant == "never"


def test_nodes_are_down() -> None:
    found = asked(waiting("a", gpus=4, models=frozenset([T4])), down={"turing": "fan broken"})
    assert found.dominant == "down"
    assert "turing" in found.text
    assert "fan broken" in found.text
    assert answers(found)[T4] == "turing is down: fan broken"


def test_nodes_are_kept_for_a_job_that_has_waited_too_long() -> None:
    old = waiting("old", gpus=4, models=frozenset([T4]))
    found = asked(waiting("a", at_s=50.0, models=frozenset([T4])), old, held("turing", 3), max_wait_s=110.0, at_s=109.0)
    assert found.dominant == "reserved"
    assert "kept for job old" in found.text
    assert found.rule == "starvation guard"


def test_a_policy_waits_for_a_faster_gpu() -> None:
    job = waiting("a", family="simulation", at_s=50.0)
    found = asked(job, held("volta0"), held("volta1"), held("radeon"), policy="sjf-picky")
    assert found.dominant == "policy"
    assert found.rule == "policy sjf-picky"
    assert found.text == "Waits for v100, where it runs about 60 min: t4 is free, but it would take 6.7 h there."
    assert answers(found)[T4] == "fits on turing now"


def test_others_go_first() -> None:
    wide = waiting("wide", at_s=10.0, gpus=8)
    small = waiting("small", at_s=20.0, family="uniform")
    found = asked(small, wide, held("volta0", 1), policy="fcfs")
    assert found.dominant == "priority"
    assert "fcfs lets others go first" in found.text
    assert found.ahead == 1


def test_a_job_that_is_not_ours() -> None:
    found = asked(replace(waiting("a"), managed=False, reason="Priority"))
    assert found.dominant == "unmanaged"
    assert found.text.endswith("Priority")


def test_a_job_that_came_after_the_turn() -> None:
    scene = Scenes().scene(snapshot(), as_said)
    assert why(Standing(scene, scene.view, "fcfs", "fcfs"), waiting("new"), None).dominant == "new"


def test_a_job_that_runs_has_the_decision_that_put_it_there() -> None:
    job = held("volta0")
    made = Decision("1", EPOCH_S, 1, job.id, "start", job.parts, "sjf", "sjf: it was the only place open.")
    scene = Scenes().scene(snapshot(job), as_said)
    found = why(Standing(scene, scene.view, "sjf", "sjf"), job, made)
    assert found.dominant == "running"
    assert found.decision is made
    assert found.text == "It runs on 4 × v100-sxm2-16gb on volta0. sjf: it was the only place open."
    assert "No decision of ours" in why(Standing(scene, scene.view, "sjf", "sjf"), job, None).text


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_ended(state: JobState) -> None:
    scene = Scenes().scene(snapshot(), as_said)
    assert why(Standing(scene, scene.view, "sjf", "sjf"), replace(waiting("a"), state=state), None).dominant == "ended"


def test_jobs_ahead_are_those_predicted_to_start_before() -> None:
    jobs = [waiting(name, at_s=number, gpus=4) for number, name in enumerate("abc")]
    scene = Scenes().scene(snapshot(*jobs, *(held(node) for node in ALL), at_s=100.0), as_said)
    starts = {name: Start(name, 1.0, time, 9.0) for name, time in (("a", 30.0), ("b", 10.0), ("c", 20.0))}
    standing = Standing(scene, scene.view, "sjf", "sjf", starts)
    assert [why(standing, job, None).ahead for job in jobs] == [2, 0, 1]


def test_the_network_says_what_it_thinks_of_every_place() -> None:
    scene = Scenes().scene(snapshot(waiting("a"), held("radeon")), as_said)
    scores, wait = Judge("adlro").scores(scene.view)
    j = scene.index["a"]
    assert {scene.plan.models[scene.plan.sites[s].model] for job, s in scores if job == j} == {V100, T4}
    assert max(scores.values()) > wait
    assert Judge("sjf").scores(scene.view) == ({}, 0.0)


def test_a_gang_has_all_its_parts_among_the_alternatives() -> None:
    scene = Scenes().scene(snapshot(waiting("a", gpus=8)), as_said)
    assert parts_at(scene, scene.view, 0, 0) == (Part("volta0", V100, 4), Part("volta1", V100, 4))


def test_times_are_spelt_short() -> None:
    assert [spell(seconds) for seconds in (5.0, 119.0, 600.0, 7200.0, 2e5, float("inf"))] == [
        "5 s", "119 s", "10 min", "2.0 h", "2.3 d", "for ever",
    ]  # fmt: skip


# ---- one line for squeue ---------------------------------------------------------------------------------------------


@pytest.fixture
def vienna(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The daemon's time zone."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOON_S = 1_700_046_000.0  # 2023-11-15 12:00 in Vienna


def in_short(short: str, start: Start | None = None, dominant: str = "resources") -> str:
    return short_reason(Why("a", "waiting", dominant, "", "", short=short), start, NOON_S)


@pytest.mark.usefixtures("vienna")
def test_the_line_for_squeue_has_what_the_job_waits_for_and_when_it_starts() -> None:
    start = Start("a", NOON_S + 6600, NOON_S + 8400, NOON_S + 15000)
    wanted = "adlro: waits for 4 v100 on one node; start about 14:20 (13:50-16:10) CET"
    assert in_short("waits for 4 v100 on one node", start) == wanted


@pytest.mark.usefixtures("vienna")
def test_a_start_on_another_day_has_its_date_and_so_has_the_end_of_its_interval() -> None:
    start = Start("a", NOON_S + 43000, NOON_S + 86400, NOON_S + 2 * 86400)
    assert in_short("x", start) == "adlro: x; start about Nov 16 12:00 (Nov 15 23:56-Nov 17 12:00) CET"


@pytest.mark.usefixtures("vienna")
def test_a_start_in_the_past_is_expected_any_moment_and_one_that_is_not_foreseen_is_said_so() -> None:
    assert in_short("x", Start("a", NOON_S - 9, NOON_S - 5, NOON_S + 5)) == "adlro: x; start expected any moment"
    assert in_short("x") == "adlro: x; start not foreseen yet"
    assert in_short("x", dominant="never") == "adlro: x"


@pytest.mark.usefixtures("vienna")
@given(text=st.text(max_size=200))
def test_no_line_for_squeue_is_too_long_or_has_a_sign_that_scontrol_misreads(text: str) -> None:
    start = Start("a", NOON_S + 43000, NOON_S + 86400, NOON_S + 2 * 86400)
    for line in (in_short(text, start), given_back(text), passed_over(text, f"when {text} ends")):
        assert line.startswith("adlro: ")
        assert len(line) <= 100
        assert re.fullmatch(r"[A-Za-z0-9 _.,:;()+/@<>*-]+", line)
    assert in_short(text, start).endswith("CET")


def test_a_job_that_is_given_back_or_passed_over_has_its_line() -> None:
    assert given_back("--exclusive is not ours") == "adlro: given back to Slurm: --exclusive is not ours"
    wanted = "adlro: passed over: Slurm limit QOSMaxGRESPerUser; tried again when a job of ann ends"
    assert passed_over("Slurm's limit QOSMaxGRESPerUser", "when a job of ann ends") == wanted


def test_models_are_named_as_short_as_they_can_be_told_apart() -> None:
    assert short_names([V100, T4, MI50]) == {V100: "v100", T4: "t4", MI50: "mi50"}
    two = short_names(["v100-sxm2-16gb", "v100-sxm2-32gb", "v100-pcie", "a100", "a100-80gb"])
    assert len(set(two.values())) == 5
    assert two["v100-pcie"] == "v100-pcie"
    assert two["a100"] == "a100"


@pytest.mark.parametrize(
    ("needs", "short"),
    [
        ({"gpus": 4, "models": frozenset([V100])}, "waits for 4 v100 on one node"),
        ({"gpus": 8, "models": frozenset([V100])}, "waits for 8 v100 on 2 nodes"),
        ({"gpus": 2, "models": frozenset([V100, T4])}, "waits for 2 v100 or t4 on one node"),
        ({"gpus": 1}, "waits for 1 GPU"),
        ({"gpus": 4}, "waits for 4 GPUs of one model on one node"),
        ({"share": 500, "models": frozenset([T4])}, "waits for 0.5 of a t4"),
        ({"gpus": 0, "cpus": 20.0, "memory_gb": 10.0}, "waits for a node with 20 cores and 10 GB free"),
    ],
)
def test_what_a_job_waits_for_is_named(needs: dict[str, object], short: str) -> None:
    found = asked(waiting("a", "uniform", 50.0, **needs), *(held(node, cpus=15.0) for node in ALL))
    assert found.dominant == "resources"
    assert found.short == short


def test_the_daemon_answers_for_jobs_that_wait_run_and_ended() -> None:
    backend = Obedient(load_cluster("paper16"))
    backend.seconds = lambda job, parts: 500.0
    for number in range(6):
        backend.jobs[f"j{number}"] = waiting(f"j{number}", gpus=4, at_s=float(number))
    ours = Orchestrator(backend, Notebook(), "sjf", settings=Settings(compare_s=1e9), monotonic=Watch())
    assert ours.why("j0") is None
    ours.tick()
    by_state = {
        state: [job.id for job in backend.jobs.values() if job.state is state]
        for state in (JobState.RUNNING, JobState.WAITING)
    }
    assert len(by_state[JobState.RUNNING]) == 4
    runs = ours.why(by_state[JobState.RUNNING][0])
    assert runs is not None
    assert runs.decision is not None
    waits = ours.why(by_state[JobState.WAITING][0])
    assert waits is not None
    assert waits.dominant == "resources"
    assert waits.start is not None
    assert waits.start.middle_s is not None
    backend.wait(600.0)
    ours.tick()
    ended = ours.why(by_state[JobState.RUNNING][0])
    assert ended is not None
    assert ended.dominant == "ended"
    assert ours.why("none-such") is None
