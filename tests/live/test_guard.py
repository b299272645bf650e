"""The guard: whatever a policy does wrong, the fallback decides, the reason is told, and the policy gets its chance."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.daemon.daemons import until
from tests.live.stand_in import EPOCH_S, Notebook, Obedient, Watch, running, snapshot, waiting

from adlro.catalogue.clusters import load_cluster
from adlro.core.errors import PolicyError
from adlro.core.policy import Policy, starting
from adlro.core.policy import waiting as wait_until
from adlro.core.ports import LiveJob, Part
from adlro.core.tables import START, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.live.guard import STARVATION_GUARD, Decided, Guarded
from adlro.live.limits import GuardTable, Limits
from adlro.live.said import as_said
from adlro.live.scene import Scene, Scenes
from adlro.live.service import Alarm
from adlro.live.turn import Orchestrator, TurnSettings

V100, T4, MI50 = "v100-sxm2-16gb", "t4", "mi50"


def scene_of(*jobs: LiveJob, **given: object) -> Scene:
    return Scenes().scene(snapshot(*jobs, **given), as_said)  # type: ignore[arg-type]


def plain(name: str, choose: Callable[[View], Choice]) -> Policy:
    return Policy(name, "", make=lambda view, seed: choose)


def fails(view: View) -> Choice:
    raise PolicyError("it has no idea.")


def divides(view: View) -> Choice:
    raise ZeroDivisionError("division by zero")


def sleeps(view: View) -> Choice:
    time.sleep(0.6)
    return wait_until()


FAULTS = {
    "illegal": (lambda view: starting(0, 99), "illegal"),
    "taken": (lambda view: starting(0, 2), "illegal"),
    "nan": (lambda view: Choice(0, -1, -1, float("nan")), "nan"),
    "raises": (fails, "policy"),
    "crashes": (divides, "policy"),
    "nonsense": (lambda view: "start", "policy"),
    "sleeps": (sleeps, "slow"),
}


@pytest.fixture(scope="module")
def warm() -> None:
    """Load all compiled code that the test needs; that may take longer than a decision may."""
    patient = Limits(decide_s=600.0, decision_s=600.0)
    scene = scene_of(waiting("a"), running("b", (Part("turing", T4, 4),)))
    for policy, by in ((find_policy("sjf"), "sjf"), (plain("illegal", lambda view: starting(0, 99)), "fcfs")):
        assert Guarded(policy, find_policy("fcfs"), patient).decide(scene).by == by


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fallback_decides_when_a_policy_misbehaves(fault: str) -> None:
    choose, kind = FAULTS[fault]
    time_ = Watch()
    limits = Limits(decide_s=5.0, decision_s=0.5, guard=GuardTable(guarded_s=600.0))
    guarded = Guarded(plain(fault, choose), find_policy("fcfs"), limits, time_)  # type: ignore[arg-type]
    scene = scene_of(waiting("a"), running("b", (Part("turing", T4, 4),)))
    decided = guarded.decide(scene)
    assert decided.is_guarded
    assert decided.by == "fcfs"
    assert decided.tripped is not None
    assert decided.tripped[0] == kind
    assert [(each.verb, each.by) for each in decided.chosen] == [(START, "fcfs")]
    again = guarded.decide(scene)
    assert again.is_guarded
    assert again.tripped is None  # told once
    guarded.use(find_policy("sjf"))
    back = guarded.decide(scene)
    assert back.by == "sjf"
    assert back.is_back


def test_the_policy_decides_again_after_a_while() -> None:
    time_, faults = Watch(), [True]
    good = find_policy("sjf").choose
    assert good is not None

    def sometimes(view: View) -> Choice:
        return fails(view) if faults[0] else good(view)

    limits = Limits(guard=GuardTable(guarded_s=600.0))
    guarded = Guarded(plain("sometimes", sometimes), find_policy("fcfs"), limits, time_)
    scene = scene_of(waiting("a"))
    assert guarded.decide(scene).by == "fcfs"
    faults[0] = False
    time_.time = 599.0
    assert guarded.decide(scene).by == "fcfs"
    time_.time = 601.0
    decided = guarded.decide(scene)
    assert decided.by == "sometimes"
    assert decided.is_back
    assert not guarded.decide(scene).is_back


def test_a_policy_that_never_answers_is_given_up_and_not_asked_again_until_it_has() -> None:
    asked, wake = [0], [False]

    def hangs(view: View) -> Choice:
        asked[0] += 1
        while not wake[0]:
            time.sleep(0.005)
        return wait_until()

    time_ = Watch()
    limits = Limits(0.02, 0.02, guard=GuardTable(guarded_s=1.0))
    guarded = Guarded(plain("hangs", hangs), find_policy("fcfs"), limits, time_)
    scene = scene_of(waiting("a"))
    decided = guarded.decide(scene)
    assert decided.tripped is not None
    assert decided.tripped[0] == "slow"
    time_.time = 100.0
    assert guarded.decide(scene).by == "fcfs"
    assert asked[0] == 1
    wake[0] = True

    def is_asked_again() -> bool:
        time_.time += 100.0
        return guarded.decide(scene).by == "hangs"

    until(is_asked_again)


def test_a_turn_ends_when_its_time_is_over_and_that_is_no_fault() -> None:
    fcfs = find_policy("fcfs").choose
    assert fcfs is not None

    def slow(view: View) -> Choice:
        time.sleep(0.03)
        return fcfs(view)

    guarded = Guarded(plain("slow", slow), find_policy("fcfs"), Limits(decide_s=0.05, decision_s=1.0))
    decided = guarded.decide(scene_of(*(waiting(f"w{n}") for n in range(16))))
    assert decided.is_cut
    assert not decided.is_guarded
    assert 1 <= len(decided.chosen) < 16


def test_a_turn_that_had_to_wait_for_the_processor_decides_as_much_as_any() -> None:
    fcfs = find_policy("fcfs").choose
    assert fcfs is not None

    def waits(view: View) -> Choice:
        time.sleep(0.1)  # as if others had the processor
        return fcfs(view)

    guarded = Guarded(plain("waits", waits), find_policy("fcfs"), Limits(decide_s=0.3, decision_s=5.0))
    decided = guarded.decide(scene_of(*(waiting(f"w{n}") for n in range(6))))
    assert not decided.is_cut
    assert len(decided.chosen) == 6


@pytest.mark.parametrize("kind", ["stale", "telemetry"])
def test_a_policy_that_cannot_know_does_not_decide(kind: str) -> None:
    guarded = Guarded(find_policy("sjf"), find_policy("fcfs"), Limits(), Watch())
    scene = scene_of(waiting("a"))
    assert guarded.decide(scene).by == "sjf"
    decided = guarded.decide(scene, unfit=(kind, "it is so."))
    assert decided.by == "fcfs"
    assert decided.tripped == (kind, "it is so.")
    assert guarded.decide(scene, unfit=(kind, "it is still so.")).tripped is None
    decided = guarded.decide(scene)
    assert decided.by == "sjf"
    assert decided.is_back


def test_when_even_the_fallback_fails_nobody_decides_and_both_are_told() -> None:
    decided = Guarded(plain("one", fails), plain("two", divides)).decide(scene_of(waiting("a")))
    assert decided.chosen == ()
    assert decided.tripped is not None
    assert "no idea" in decided.tripped[1]
    assert "division by zero" in decided.tripped[1]


def test_a_network_whose_judgement_is_no_number_does_not_decide() -> None:
    from adlro.decide.network.greedy_q import shipped
    from adlro.live.explain_start import Judge

    judge = Judge("adlro")
    weights = shipped()
    judge._weights = weights._replace(**{name: array * float("nan") for name, array in weights._asdict().items()})
    guarded = Guarded(find_policy("adlro"), find_policy("fcfs"), Limits(decision_s=60.0, decide_s=60.0))
    decided = guarded.decide(scene_of(waiting("a")), check=judge.check)
    assert decided.by == "fcfs"
    assert decided.tripped == ("nan", "the network's judgement is not a number.")
    assert Judge("adlro").check(scene_of(waiting("a")).view) == ""


# ---- in the orchestrator -----------------------------------------------------------------------------------------


def ours(backend: Obedient, policy: str = "sjf", **given: object) -> tuple[Orchestrator, Watch]:
    time_ = Watch()
    # A busy machine may keep a decision waiting; tests about slow policies give their own limit.
    settings = TurnSettings(**{"starts_s": 0.01, "decision_s": 30.0, **given})  # type: ignore[arg-type]
    return Orchestrator(backend, Notebook(), policy, "fcfs", settings, monotonic=time_), time_


def test_a_snapshot_whose_time_stands_still_is_stale() -> None:
    orchestrator, time_ = ours(Obedient(load_cluster("paper16")), guard=GuardTable(stale_s=60.0))
    assert orchestrator.tick().decided_by == "sjf"
    time_.time = 61.0
    tick = orchestrator.tick()
    assert tick.decided_by == "fcfs"
    assert [alarm.kind for alarm in tick.alarms] == ["stale"]
    assert orchestrator.state().is_guarded


def test_telemetry_that_is_gone_is_told() -> None:
    backend, figures = Obedient(load_cluster("paper16")), [{"volta0/0": {"utilisation": 0.5}}]
    orchestrator = Orchestrator(
        backend, Notebook(), "sjf", "fcfs", telemetry=lambda: figures[0] if figures else None, monotonic=Watch()
    )
    assert orchestrator.tick().decided_by == "sjf"
    assert orchestrator.state().telemetry == {"volta0/0": {"utilisation": 0.5}}
    figures.clear()
    tick = orchestrator.tick()
    assert tick.decided_by == "fcfs"
    assert [alarm.kind for alarm in tick.alarms] == ["telemetry"]


def longest_first(view: View) -> Choice:
    """A policy that nobody wants: the longest job, and only on an idle cluster."""
    from adlro.core.rules import fits, in_queue

    clock = view.clock[0]
    if clock.running > 0:
        return wait_until()
    j = max((int(in_queue(view, q)) for q in range(clock.queued)), key=lambda j: float(view.jobs["estimate"][j]))
    return next((starting(j, s) for s in range(len(view.sites)) if fits(view, j, s)), wait_until())


def test_a_policy_that_would_have_been_worse_than_the_fallback_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "adlro.live.turn.find_policy",
        lambda name: plain("bad", longest_first) if name == "bad" else find_policy(name),
    )
    backend = Obedient(load_cluster("paper16"))
    for number in range(40):
        backend.jobs[f"j{number}"] = waiting(f"j{number}", family="uniform", estimate=100.0 + number, user="ann")
    backend.seconds = lambda job, parts: job.job.estimate or 0.0
    orchestrator, time_ = ours(backend, "bad", compare_s=100.0, guard=GuardTable(window_s=1e6, guarded_s=1e9))
    alarms: list[Alarm] = []
    for _ in range(40):
        alarms += orchestrator.tick().alarms
        backend.wait(100.0)
        time_.time += 100.0
    assert "worse" in [alarm.kind for alarm in alarms]
    worse = next(alarm for alarm in alarms if alarm.kind == "worse")
    assert "in the system with bad" in worse.text
    assert orchestrator.state().is_guarded
    compared = [point.fallback_jct_s for point in orchestrator.state().history if point.fallback_jct_s is not None]
    assert compared


# ---- waiting until a time ----------------------------------------------------------------------------------------


def test_a_policy_that_waits_until_a_time_is_not_asked_before_unless_something_changes() -> None:
    asked: list[float] = []

    def patient(view: View) -> Choice:
        asked.append(float(view.clock[0].now))
        return wait_until(100.0)

    guarded = Guarded(plain("patient", patient), find_policy("fcfs"))
    decided = guarded.decide(scene_at(0.0, waiting("a")))
    assert (decided.until_s, asked) == (EPOCH_S + 100.0, [0.0])
    assert guarded.decide(scene_at(50.0, waiting("a"))).until_s == EPOCH_S + 100.0
    assert asked == [0.0]
    guarded.decide(scene_at(60.0, waiting("a"), waiting("b", at_s=55.0)))
    assert asked == [0.0, 60.0]
    guarded.decide(scene_at(100.0, waiting("a"), waiting("b", at_s=55.0)))
    assert asked == [0.0, 60.0, 100.0]


def test_a_policy_that_names_no_time_is_asked_in_every_turn() -> None:
    asked: list[float] = []

    def waits(view: View) -> Choice:
        asked.append(float(view.clock[0].now))
        return wait_until()

    guarded = Guarded(plain("waits", waits), find_policy("fcfs"))
    for time_s in (0.0, 1.0, 2.0):
        assert guarded.decide(scene_at(time_s, waiting("a"))).until_s == math.inf
    assert asked == [0.0, 1.0, 2.0]


def scene_at(time_s: float, *jobs: LiveJob) -> Scene:
    """A scene at this time."""
    return scene_of(*jobs, at_s=time_s)


# ---- starvation --------------------------------------------------------------------------------------------------


def small_first(view: View) -> Choice:
    """Starts the smallest job that fits anywhere, so that wide ones starve."""
    from adlro.core.rules import fits, in_queue

    queue = [int(in_queue(view, q)) for q in range(view.clock[0].queued)]
    for j in sorted(queue, key=lambda j: (int(view.jobs["gpus"][j]), j)):
        for s in range(len(view.sites)):
            if fits(view, j, s):
                return starting(j, s)
    return wait_until()


@pytest.mark.parametrize("bound_s", [0.0, 3000.0])
def test_no_job_waits_longer_than_the_bound_however_many_small_ones_come(bound_s: float) -> None:
    backend = Obedient(load_cluster("paper16"))
    backend.seconds = lambda job, parts: 290.0
    orchestrator, time_ = ours(backend, guard=GuardTable(max_wait_s=bound_s), compare_s=1e9)
    orchestrator._guarded.policy = plain("small first", small_first)
    only = frozenset([V100])
    waited = None
    for turn in range(80):
        if turn == 2:
            backend.jobs["wide"] = waiting("wide", at_s=120.0, gpus=8, models=only, family="uniform", estimate=2320.0)
        for number in range(4):
            backend.jobs[f"s{turn}-{number}"] = waiting(
                f"s{turn}-{number}", at_s=60.0 * turn, models=only, family="uniform", estimate=290.0
            )
        orchestrator.tick()
        if waited is None and "wide" in backend.starts:
            waited = backend.now_s - EPOCH_S - 120.0
        backend.wait(60.0)
        time_.time += 60.0
    if bound_s:
        assert waited is not None
        assert waited <= bound_s + 60.0
        assert "kept" in [alarm.kind for alarm in orchestrator.state().alarms]
    else:
        assert waited is None  # without a bound it starves: the test is a real one


def overdue(guarded: Guarded, *jobs: LiveJob, at_s: float) -> Decided:
    return guarded.decide(scene_of(*jobs, at_s=at_s))


def test_a_job_that_has_waited_too_long_and_fits_starts_first() -> None:
    limits = Limits(guard=GuardTable(max_wait_s=100.0))
    never = Guarded(plain("never", lambda view: wait_until()), find_policy("fcfs"), limits)
    assert overdue(never, waiting("a"), at_s=99.0).chosen == ()
    assert [each.by for each in overdue(never, waiting("a"), at_s=101.0).chosen] == [STARVATION_GUARD]


def test_what_is_kept_for_a_job_stays_kept_until_it_starts() -> None:
    limits = Limits(guard=GuardTable(max_wait_s=1000.0))
    guarded = Guarded(find_policy("fcfs-first-fit"), find_policy("fcfs"), limits)
    only = frozenset([V100])
    wide = waiting("wide", gpus=4, models=only)
    ends = {"volta0": 4000.0, "volta1": 7000.0}
    held = [
        running(node, (Part(node, V100, 3, (0, 1, 2)),), estimate=3 * ends[node], family="uniform") for node in ends
    ]
    small = waiting("small", at_s=1.0, models=only)
    decided = overdue(guarded, wide, *held, small, at_s=600.0)
    assert decided.kept.nodes == {"wide": ("volta0",)}
    assert [each.parts[0].node for each in decided.chosen] == ["volta1"]
    # Now the other node would be free first; but what was promised stays.
    held[0] = replace(held[0], job=replace(held[0].job, estimate=90_000.0))
    assert overdue(guarded, wide, *held, at_s=700.0).kept.nodes == {"wide": ("volta0",)}
    decided = overdue(guarded, wide, held[1], at_s=800.0)
    assert [(each.by, each.parts[0].node) for each in decided.chosen] == [(STARVATION_GUARD, "volta0")]
    assert decided.kept.nodes == {}


def test_a_job_for_which_no_node_can_be_kept_is_told() -> None:
    guarded = Guarded(find_policy("fcfs"), find_policy("fcfs"), Limits(guard=GuardTable(max_wait_s=100.0)))
    decided = guarded.decide(
        scene_of(waiting("a", gpus=4, models=frozenset([MI50])), at_s=200.0, down={"radeon": "broken"})
    )
    assert decided.kept.hopeless == ("a",)
