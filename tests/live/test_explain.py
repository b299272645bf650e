"""Why: the dominant reason is what the rules say, in words for the one who waits."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, Watch, running, snapshot, waiting

from adlro.api.hidden import why_here
from adlro.api.pictures import picture_of
from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import JobState, LiveJob, Part, Setback
from adlro.decide.catalogue import find_policy
from adlro.live.explain import Standing, explain_job
from adlro.live.explain_places import parts_at
from adlro.live.explain_short import short_reason
from adlro.live.explain_start import Judge
from adlro.live.guard import Guarded
from adlro.live.limits import GuardTable, Limits
from adlro.live.said import as_said
from adlro.live.scene import Scenes
from adlro.live.service import Decision, Mention, Start, Why, with_names
from adlro.live.turn import Orchestrator, TurnSettings
from adlro.live.words import moment, short_names, spell

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
    limits = Limits(guard=GuardTable(max_wait_s=max_wait_s), decide_s=30.0, decision_s=30.0)
    decided = Guarded(find_policy(policy), find_policy("fcfs"), limits).decide(scene)
    standing = Standing(scene, decided.view, policy, decided.by, kept=decided.kept.nodes)
    return explain_job(standing, job, None)


def answers(found: Why) -> dict[str, str]:
    return {place["model"]: place["answer"] for place in found.places}


def test_everything_is_busy() -> None:
    found = asked(waiting("a", at_s=50.0), *(held(node) for node in ALL))
    assert found.dominant == "resources"
    assert found.rule == "What fits where"
    assert answers(found)[V100] == "0 of 8 GPUs are free, at most 0 on one node; needs 1"
    assert found.ahead == 0


@pytest.mark.usefixtures("vienna")
def test_who_waits_is_told_where_room_comes_free_first_when_and_by_the_end_of_which_job() -> None:
    job = waiting("a", "uniform", 50.0, gpus=4, models=frozenset([V100]))
    soon = replace(held("volta1", 2, estimate=2 * 3600.0, name="bert-large", user="bob"), id="812")
    found = asked(job, held("volta0"), soon)
    assert found.text == (
        "Waits for 4 v100 on one node: volta1 has 2 free; the next 2 come free about Nov 15 00:13 CET (job 812)."
    )
    assert found.mentions == (Mention("812", "bert-large", "bob"),)
    assert found.short == "waits for 4 v100 on one node"


def test_who_waits_for_cores_is_told_so() -> None:
    job = waiting("a", "uniform", 50.0, cpus=30.0, models=frozenset([MI50]))
    found = asked(job, held("radeon", 1, cpus=10.0, estimate=3600.0))
    assert found.text.startswith(
        "Waits for 1 mi50: radeon has the GPUs, and the cores and the memory beside them about"
    )


def test_the_line_for_squeue_needs_no_look_at_what_comes_free() -> None:
    job = waiting("a", at_s=50.0)
    scene = Scenes().scene(snapshot(job, *(held(node) for node in ALL), at_s=100.0), as_said)
    brief = explain_job(Standing(scene, scene.view, "fcfs", "fcfs"), job, None, in_full=False)
    full = explain_job(Standing(scene, scene.view, "fcfs", "fcfs"), job, None)
    assert (brief.dominant, brief.short) == (full.dominant, full.short)
    assert brief.places == ()


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
    assert "free nodes are kept for job old, which has waited too long" in found.text
    assert [mention.job for mention in found.mentions] == ["old"]
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
    assert found.text.endswith("but fcfs lets others go first.")
    assert found.ahead == 1


@pytest.mark.usefixtures("vienna")
def test_the_next_of_those_who_go_first_is_named_where_that_is_foreseen() -> None:
    wide, small = waiting("wide", at_s=10.0, gpus=8, name="lattice-3", user="bob"), waiting("small", at_s=20.0)
    scene = Scenes().scene(snapshot(wide, small, held("volta0", 1), at_s=100.0), as_said)
    starts = {
        "wide": Start("wide", None, EPOCH_S + 7300.0, None),
        "small": Start("small", None, EPOCH_S + 8000.0, None),
    }
    found = explain_job(Standing(scene, scene.view, "fcfs", "fcfs", starts), small, None)
    assert found.text.endswith("but fcfs lets job wide go first, which starts about Nov 15 01:15 CET.")
    assert found.mentions == (Mention("wide", "lattice-3", "bob"),)


# ---- why a job was started ---------------------------------------------------------------------------------------


def started(*jobs: LiveJob, policy: str = "sjf", max_wait_s: float = 0.0, at_s: float = 100.0) -> dict[str, Decision]:
    """The decisions of one turn, by job."""
    backend = Obedient(load_cluster("paper16"), {job.id: job for job in jobs}, EPOCH_S + at_s)
    settings = TurnSettings(compare_s=1e9, decide_s=30.0, decision_s=30.0, guard=GuardTable(max_wait_s=max_wait_s))
    tick = Orchestrator(backend, Notebook(), policy, settings=settings, monotonic=Watch()).tick()
    return {decision.job: decision for decision in tick.decisions}


def test_a_decision_names_the_runtimes_here_and_elsewhere_and_who_was_overtaken_and_why() -> None:
    full = [held("volta1"), held("radeon")]
    on_v100 = {"models": frozenset([V100, T4]), "gpus": 4}
    old = waiting("812", "uniform", 10.0, estimate=4 * 4 * 3600.0, name="lattice-3", user="bob", **on_v100)
    young = waiting("900", "simulation", 20.0, estimate=4 * 1800.0, **on_v100)
    other = waiting("901", "uniform", 30.0, estimate=4 * 3600.0, **on_v100)
    made = started(old, young, other, *full)
    assert set(made) == {"900", "901"}
    assert made["900"].reason == (
        "30 min on v100 here, 4.2 h on t4. Starts before job 812, which is older, because it ends 3.5 h sooner."
    )
    assert made["900"].mentions == (Mention("812", "lattice-3", "bob"),)
    assert (
        with_names(made["900"].reason, made["900"].mentions)
        .split(". ")[1]
        .startswith("Starts before lattice-3 (job 812), which is older,")
    )


def test_a_faster_model_that_is_busy_is_named() -> None:
    made = started(waiting("a", "simulation"), held("volta0"), held("volta1"), held("radeon"), policy="fcfs-first-fit")
    assert made["a"].reason == "6.7 h on t4 here, 60 min on v100, which is not free. No older job waits."


def test_an_older_job_that_fits_nowhere_is_named() -> None:
    wide = waiting("wide", at_s=1.0, gpus=8, models=frozenset([V100]))
    made = started(wide, waiting("a", at_s=2.0, models=frozenset([T4])), held("volta0"), policy="fcfs-first-fit")
    assert made["a"].reason == (
        "6.7 h on t4 here, no other model is free. Starts before job wide, which is older but fits nowhere now."
    )


def test_jobs_that_start_in_the_same_turn_are_not_overtaken() -> None:
    made = started(*(waiting(f"j{n}", at_s=float(n), estimate=9000.0 - n) for n in range(6)))
    assert len(made) == 6
    assert all("Starts before" not in decision.reason for decision in made.values())


def test_a_job_that_waited_too_long_says_so() -> None:
    made = started(waiting("a"), max_wait_s=3600.0, at_s=7200.0)
    assert "It goes first, because it has waited 2.0 h" in made["a"].reason


@pytest.mark.parametrize("policy", ["adlro", "adlro-lookahead", "sjf", "fcfs", "fcfs-easy"])
def test_no_sentence_has_a_score(policy: str) -> None:
    jobs = [waiting(f"j{n}", at_s=float(n), gpus=1 + n % 4, estimate=500.0 * (n % 5 + 1)) for n in range(12)]
    made = started(*jobs, policy=policy)
    assert made
    for decision in made.values():
        assert not re.search(r"\bQ\b|score|-?\d\.\d\d", decision.reason)


def test_names_stand_beside_the_right_ids_only() -> None:
    named = (Mention("81", "one", "a"), Mention("81_2", "two", "a"), Mention("7.1", "", "b"))
    assert with_names("job 81, job 81_2, job 812, job 7.1. job 81.", named) == (
        "one (job 81), two (job 81_2), job 812, job 7.1. one (job 81)."
    )


def test_a_job_that_is_not_ours() -> None:
    found = asked(replace(waiting("a"), managed=False, reason="Priority"))
    assert found.dominant == "unmanaged"
    assert found.text.endswith("Priority")


def test_a_job_that_waits_for_us_and_cannot_be_placed_is_told_why_and_not_that_it_is_anothers() -> None:
    reason = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu."
    ours = replace(waiting("a"), managed=False, reason=reason, setback=Setback.UNPLACEABLE)
    found = asked(ours)
    assert (found.dominant, found.text) == ("never", f"ADLRO cannot place it: {reason}")


def test_a_job_that_came_after_the_turn() -> None:
    scene = Scenes().scene(snapshot(), as_said)
    assert explain_job(Standing(scene, scene.view, "fcfs", "fcfs"), waiting("new"), None).dominant == "new"


def test_a_job_that_runs_has_the_decision_that_put_it_there() -> None:
    job = held("volta0")
    made = Decision("1", EPOCH_S, 1, job.id, "start", job.parts, "sjf", "sjf: it was the only place open.")
    scene = Scenes().scene(snapshot(job), as_said)
    found = explain_job(Standing(scene, scene.view, "sjf", "sjf"), job, made)
    assert found.dominant == "running"
    assert found.decision is made
    assert found.text == "It runs on 4 × v100-sxm2-16gb on volta0. sjf: it was the only place open."
    assert "No decision of ours" in explain_job(Standing(scene, scene.view, "sjf", "sjf"), job, None).text


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_ended(state: JobState) -> None:
    scene = Scenes().scene(snapshot(), as_said)
    assert (
        explain_job(Standing(scene, scene.view, "sjf", "sjf"), replace(waiting("a"), state=state), None).dominant
        == "ended"
    )


def test_jobs_ahead_are_those_predicted_to_start_before() -> None:
    jobs = [waiting(name, at_s=number, gpus=4) for number, name in enumerate("abc")]
    scene = Scenes().scene(snapshot(*jobs, *(held(node) for node in ALL), at_s=100.0), as_said)
    starts = {name: Start(name, 1.0, time, 9.0) for name, time in (("a", 30.0), ("b", 10.0), ("c", 20.0))}
    standing = Standing(scene, scene.view, "sjf", "sjf", starts)
    assert [explain_job(standing, job, None).ahead for job in jobs] == [2, 0, 1]


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
    wanted = "waits for 4 v100 on one node; start about 14:20 (13:50-16:10) CET"
    assert in_short("waits for 4 v100 on one node", start) == wanted


@pytest.mark.usefixtures("vienna")
def test_a_start_on_another_day_has_its_date_and_so_has_the_end_of_its_interval() -> None:
    start = Start("a", NOON_S + 43000, NOON_S + 86400, NOON_S + 2 * 86400)
    assert in_short("x", start) == "x; start about Nov 16 12:00 (today 23:56-Nov 17 12:00) CET"


@pytest.mark.usefixtures("vienna")
def test_a_start_in_the_past_is_expected_any_moment_and_one_that_is_not_foreseen_is_said_so() -> None:
    assert in_short("x", Start("a", NOON_S - 9, NOON_S - 5, NOON_S + 5)) == "x; start expected any moment"
    assert in_short("x") == "x; start not predicted yet"
    assert in_short("x", dominant="never") == "x"


@pytest.mark.usefixtures("vienna")
@given(text=st.text(max_size=200))
def test_no_line_for_squeue_is_too_long_or_has_a_sign_that_scontrol_misreads(text: str) -> None:
    start = Start("a", NOON_S + 43000, NOON_S + 86400, NOON_S + 2 * 86400)
    for line in (in_short(text, start), in_short(text)):
        assert len(line) <= 100
        assert re.fullmatch(r"[A-Za-z0-9 _.,:;()+/@<>*-]+", line)
    assert in_short(text, start).endswith("CET")


@pytest.mark.usefixtures("vienna")
def test_a_moment_has_its_time_zone_and_its_date_if_it_is_not_today() -> None:
    found = [moment(NOON_S + seconds, NOON_S) for seconds in (60.0, 86400.0, 365 * 86400.0, 200 * 86400.0)]
    assert found == ["12:01 CET", "Nov 16 12:00 CET", "Nov 14 2024 12:00 CET", "Jun 2 2024 13:00 CEST"]


def test_a_job_that_is_passed_over_says_what_the_cluster_said_and_when_it_is_tried_again() -> None:
    job = waiting("a")
    scene = Scenes().scene(snapshot(job), as_said)
    text = "A limit keeps it from starting (QOSMaxGRESPerUser); it is tried again when a job of ann ends."
    for held, line in (
        (text, "passed over: QOSMaxGRESPerUser; tried again when a job of ann ends"),
        ("It is refused.", "passed over: It is refused"),
    ):
        found = explain_job(Standing(scene, scene.view, "fcfs", "fcfs", held={"a": held}), job, None)
        assert (found.dominant, found.text) == ("refused", held)
        assert short_reason(found) == line


def test_a_note_about_another_job_is_not_told_of_one_whose_id_is_part_of_it() -> None:
    scene = Scenes().scene(snapshot(), as_said)
    scene = replace(scene, notes=("job 812 is on a node that the cluster does not have",))
    standing = Standing(scene, scene.view, "fcfs", "fcfs")
    assert explain_job(standing, waiting("81"), None).text == "It came after the latest turn."
    assert explain_job(standing, waiting("812"), None).text.startswith("job 812 is on")


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
    ours = Orchestrator(backend, Notebook(), "sjf", settings=TurnSettings(compare_s=1e9), monotonic=Watch())
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


def test_the_state_alone_says_of_placed_and_ended_jobs_what_the_daemon_says() -> None:
    backend = Obedient(load_cluster("paper16"))
    backend.seconds = lambda job, parts: 500.0 if job.id < "j3" else 5000.0
    for number in range(6):
        backend.jobs[f"j{number}"] = waiting(f"j{number}", gpus=4, at_s=float(number))
    ours = Orchestrator(backend, Notebook(), "sjf", settings=TurnSettings(compare_s=1e9), monotonic=Watch())
    seen = set()
    for _ in range(3):
        ours.tick()
        picture = picture_of(ours.state())
        for job in picture.state.snapshot.jobs:
            here = why_here(picture, job.id)
            assert here == (None if job.state is JobState.WAITING else ours.why(job.id))
            seen.add(job.state)
        backend.wait(600.0)
    assert seen >= {JobState.WAITING, JobState.RUNNING, JobState.FINISHED}
    assert why_here(picture_of(replace(ours.state(), placed={})), "j0") is None  # placed by an earlier daemon: ask
