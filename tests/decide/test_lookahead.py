"""Look-ahead: what it sees by hand, and that its small world is the cluster as it is and goes on as the run does."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import settings_of, tell
from tests.decide.conftest import Case, Fate, mixed_case, play, run
from tests.reference import Event
from tests.strategies import Scenario, scenarios

from adlro.core.engine import OVER, advance, apply, is_asked
from adlro.core.errors import PolicyError
from adlro.core.plan import plan_cluster
from adlro.core.policy import Choose, Policy
from adlro.core.rules import best_runtime
from adlro.core.tables import NOBODY, RUNNING, WAIT, Choice, Floats, Ints, View
from adlro.decide import lookahead as looking
from adlro.decide.catalogue import find_policy, policies
from adlro.decide.lookahead import Advice, Advise, lookahead
from adlro.decide.lookahead.gathering import fill_members, room_to_gather
from adlro.decide.lookahead.playing import Trial, World, blank_world, fill, try_out
from adlro.decide.lookahead.ranking import by_runtime
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import Outcome, simulate

ROOT = Path(__file__).parent.parent.parent


@cache
def over(name: str) -> Policy:
    """Look-ahead over a rule."""
    return lookahead(find_policy(name))


def known_jobs(view: View, most: int, named: list[int]) -> Ints:
    """The jobs of the world, with at most so many that wait and all that are named."""
    room = room_to_gather(view, 1, 0)
    count = fill_members(view, room.keys, room.numbers, most, np.array(named, np.int32), len(named))
    return room.numbers[:count]


# ---- by hand ------------------------------------------------------------------------------------------------------


def test_it_gives_the_fast_gpu_to_the_job_that_gains_most_by_it() -> None:
    # sjf gives the fast GPU to the shorter job, and the other one takes ten times as long on the slow GPU.
    speeds = {"plain": {"fast": 1.0, "slow": 1.0}, "choosy": {"fast": 1.0, "slow": 0.1}}
    jobs = [(0, 10, 1, {"family": "plain"}), (0, 11, 1, {"family": "choosy"})]
    case = Case([("fast", 1), ("slow", 1)], jobs, speeds)
    assert run(case, "sjf") == {0: Fate(0, 0, 10), 1: Fate(0, 1, 110)}
    assert run(case, over("sjf")) == {0: Fate(0, 1, 10), 1: Fate(0, 0, 11)}


def test_it_waits_for_a_fast_gpu_that_will_soon_be_free() -> None:
    speeds = {"any": {"fast": 1.0, "slow": 0.1}}
    case = Case([("fast", 1), ("slow", 1)], [(0, 20), (5, 30)], speeds)
    assert run(case, "sjf")[1] == Fate(5, 1, 305)
    assert run(case, over("sjf"))[1] == Fate(20, 0, 50)


def test_it_does_not_wait_when_the_slow_gpu_ends_sooner() -> None:
    speeds = {"any": {"fast": 1.0, "slow": 0.5}}
    case = Case([("fast", 1), ("slow", 1)], [(0, 100), (5, 30)], speeds)
    assert run(case, over("sjf"))[1] == Fate(5, 1, 65)


def test_a_plan_keeps_a_node_for_a_gang_until_it_is_free() -> None:
    # One GPU falls free at 10, the other at 12. Long jobs wait, and a short gang of two behind them. At 10 it does not
    # fit; a single wait would not help it, since at 12 the base starts the long jobs all the same.
    case = Case([("v100", 2)], [(0, 10), (0, 12), *[(1, 100)] * 5, (1, 20, 2)])
    assert run(case, "fcfs-first-fit")[7].start == 310
    assert run(case, lookahead(find_policy("fcfs-first-fit"), plans=0))[7].start >= 110
    assert run(case, over("fcfs-first-fit"))[7] == Fate(12, 0, 22)


def test_nothing_is_played_forward_while_nothing_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    # A gang waits for a node that is held: a plan to keep it, and whatever else, begins with waiting.
    played: list[float] = []

    def noting(view: View, *rest: object) -> None:
        played.append(float(view.clock[0].now))
        try_out(view, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(looking, "try_out", noting)
    case = Case([("v100", 2)], [(0, 10, 2), (1, 20, 2), (2, 5)])
    assert run(case, over("sjf"))[2] == Fate(5, 0, 10)
    assert played
    assert min(played) == 5


def test_with_nothing_to_choose_it_is_the_base() -> None:
    case = Case([("v100", 1)], [(0, 10), (20, 5), (40, 7)])
    assert play(case, over("sjf")).events == play(case, "sjf").events


def test_a_base_in_plain_python_is_refused_in_one_line() -> None:
    with pytest.raises(PolicyError, match=r"^look-ahead over 'gavel-maxmin': expected a compiled policy; [^\n]*$"):
        lookahead(find_policy("gavel-maxmin"))


def test_the_one_that_cheats_is_found_by_name_and_is_not_on_the_list() -> None:
    assert find_policy("lookahead-clairvoyant").needs == ("truth",)
    assert "lookahead-clairvoyant" not in [policy.name for policy in policies()]


def test_the_clairvoyant_one_keeps_a_gpu_for_a_job_that_will_come() -> None:
    speeds = {"any": {"fast": 1.0, "slow": 0.8}, "choosy": {"fast": 1.0, "slow": 0.01}}
    jobs = [(0, 100), (1, 10, 1, {"family": "choosy"})]
    case = Case([("fast", 1), ("slow", 1)], jobs, speeds)
    assert run(case, "lookahead-eft-reserving")[0].site == 0
    assert run(case, "lookahead-clairvoyant") == {0: Fate(0, 1, 125), 1: Fate(1, 0, 11)}


# ---- promises -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_what_it_takes_never_costs_more_than_the_choice_of_the_base(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    chosen = looking.chosen

    def spy(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
        answer = chosen(trial, members, tried, first)
        costs = trial.cost[:tried]
        found.append((costs[0], costs.min(), answer == first))
        return answer

    monkeypatch.setattr(looking, "chosen", spy)
    play(mixed_case(seed), over("sjf"))
    assert any(not same for _, _, same in found)
    for of_base, least, same in found:
        # A plan may begin with the base's choice and still be better than going on as the base does.
        assert same or least < of_base


def left_undone(world: View) -> float:
    """What the jobs that never began would need, as look-ahead guesses it."""
    waiting = world.queue[world.clock[0].head : world.clock[0].head + world.clock[0].queued]
    return sum(best_runtime(world, j) for j in waiting)


def test_it_stops_playing_when_all_have_begun_and_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[list[float]] = []
    chosen = looking.chosen

    def spy(trial: Trial, members: Ints, tried: int, first: Choice) -> Choice:
        costs[-1] += trial.cost[:tried].tolist()
        return chosen(trial, members, tried, first)

    monkeypatch.setattr(looking, "chosen", spy)
    for seed in range(3):
        outcomes = []
        for policy in (over("sjf"), lookahead(find_policy("sjf"), leaf=left_undone)):  # with a leaf: played to the end
            costs.append([])
            outcomes.append(play(mixed_case(seed), policy).events)
        assert outcomes[0] == outcomes[1]
        assert costs[-2] == pytest.approx(costs[-1])
        assert len(costs[-1]) > 10


def test_on_a_large_cluster_fewer_choices_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    chosen = looking.chosen

    def spy(trial: Trial, members: Ints, count: int, first: Choice) -> Choice:
        tried.append(count)
        return chosen(trial, members, count, first)

    monkeypatch.setattr(looking, "chosen", spy)
    play(mixed_case(0), over("sjf"))
    most, tried = max(tried), []
    monkeypatch.setattr(looking, "MOST_WORK", 1)
    play(mixed_case(0), over("sjf"))
    assert most > 4
    assert max(tried) <= 4  # the base's choice, a pair, waiting, a plan


def test_a_budget_of_nothing_gives_the_answers_of_the_base() -> None:
    policy = lookahead(find_policy("sjf"), budget_s=0.0)
    for seed in range(3):
        assert play(mixed_case(seed), policy).events == play(mixed_case(seed), "sjf").events


def test_a_budget_that_suffices_changes_nothing() -> None:
    policy = lookahead(find_policy("sjf"), budget_s=1.0, clock=lambda: 0.0)
    for seed in range(3):
        assert play(mixed_case(seed), policy).events == play(mixed_case(seed), over("sjf")).events


def test_when_the_budget_ends_the_best_so_far_is_taken() -> None:
    speeds = {"plain": {"fast": 1.0, "slow": 1.0}, "choosy": {"fast": 1.0, "slow": 0.1}}
    jobs = [(0, 10, 1, {"family": "plain"}), (0, 11, 1, {"family": "choosy"})]
    case = Case([("fast", 1), ("slow", 1)], jobs, speeds)

    def with_ticks(budget: float) -> dict[int, Fate]:
        ticks = count()
        return run(case, lookahead(find_policy("sjf"), budget_s=budget, clock=lambda: float(next(ticks))))

    assert with_ticks(2.0) == run(case, "sjf")  # the clock was read twice before, so only the base's choice is tried
    assert with_ticks(20.0) == run(case, over("sjf"))


def test_jobs_still_to_come_change_nothing_and_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    case, later = mixed_case(1), 1e7
    sizes: list[int] = []

    def counting(view: View, rows: int, preemptive: bool) -> World:
        sizes.append(rows)
        return blank_world(view, rows, preemptive)

    monkeypatch.setattr(looking, "blank_world", counting)

    def run_before(more: int) -> tuple[list[Event], list[int]]:
        sizes.clear()
        far = [(later + 1e6 * i, 1.0, 1, {"family": "vision", "estimate": 1.0}) for i in range(more)]
        events = play(replace(case, jobs=[*case.jobs, *far]), over("sjf")).events
        return [event for event in events if event[0] < later], sizes.copy()

    assert run_before(0) == run_before(100) == run_before(10_000)


def test_a_short_world_holds_the_shortest_jobs_and_the_one_that_the_base_chose() -> None:
    jobs = [(0, 1000), *[(1, 100 - i) for i in range(20)]]
    case = Case([("v100", 1)], jobs)
    seen_by: list[list[int]] = []

    def rank(view: View, most: int) -> tuple[Ints, Ints, Floats]:
        seen_by.append(known_jobs(view, 4, [1]).tolist())
        return by_runtime(view, most)

    run(case, lookahead(find_policy("sjf"), rank=rank, most_jobs=4))
    assert [1, 17, 18, 19, 20] in [found[-5:] for found in seen_by]


def test_the_rank_given_decides_what_is_tried() -> None:
    def none(view: View, most: int) -> tuple[Ints, Ints, Floats]:
        return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)

    speeds = {"any": {"fast": 1.0, "slow": 0.1}}
    case = Case([("fast", 1), ("slow", 1)], [(0, 20), (5, 30)], speeds)
    # Waiting is tried whatever the ranking says.
    assert run(case, lookahead(find_policy("sjf"), rank=none, plans=0))[1] == Fate(20, 0, 50)


def test_an_adviser_may_name_a_job_to_stop() -> None:
    # The base `sjf` never stops a job; job 1 ends at 30 instead of 1010 if job 0 makes room for it.
    def adviser(view: View) -> Advise:
        def advise(shown: View, most: int) -> Advice:
            first = find_policy("sjf").choose(shown)  # type: ignore[misc]
            waits = shown.clock[0].queued > 0 and shown.runs[0].state == RUNNING and first.verb == WAIT
            jobs = np.zeros(int(waits and shown.runs[0].starts == 1), np.int32)
            return Advice(first, jobs, np.full(len(jobs), NOBODY, np.int32), np.zeros(len(jobs)), 0.0)

        return advise

    case = Case([("v100", 1)], [(0, 1000), (20, 10)], restart_s=5.0)
    policy = lookahead(replace(find_policy("sjf"), preemptive=True), adviser=adviser)
    assert run(case, policy) == {0: Fate(0, 0, 1015, stops=1), 1: Fate(20, 0, 30)}


def test_at_the_horizon_the_leaf_is_asked() -> None:
    asked: list[float] = []

    def leaf(world: View) -> float:
        asked.append(float(world.clock[0].now))
        return 0.0

    case = Case([("v100", 1), ("v100", 1)], [(0, 10), (0, 20), (0, 30), (0, 40)])
    run(case, lookahead(find_policy("sjf"), horizon_s=15.0, leaf=leaf))
    assert asked[0] == 20.0  # the first decision after the horizon


@given(scenarios(most_jobs=10), st.sampled_from(("sjf", "eft", "srtf", "fcfs-easy", "multifactor")))
@settings(max_examples=40)
def test_on_any_cluster_it_chooses_what_is_legal_and_leaves_nothing_undone_that_the_base_does(
    scenario: Scenario, name: str
) -> None:
    outcome = simulated(scenario, over(name))
    assert outcome.illegal == 0
    assert outcome.unfinished <= simulated(scenario, find_policy(name)).unfinished


# ---- the world ----------------------------------------------------------------------------------------------------

NO_FUTURE = np.empty(0)


def simulated(scenario: Scenario, policy: Policy) -> Outcome:
    """A run to its end."""
    plan, jobs = plan_cluster(scenario.cluster), pack_jobs(scenario.jobs)
    view = pack(plan, jobs, scenario.speed)
    disturbances = pack_disturbances(plan, scenario.disturbances)
    return simulate(view, jobs.work, policy, settings_of(scenario), disturbances)


def foretold(view: View, base: Policy, world: World) -> list[Event]:
    """What happens from here on in the world when it is filled from the view, told with the jobs of the view."""
    members = known_jobs(view, 1000, [])
    world.members[: len(members)] = members
    fill(view, world, len(members), 0, NO_FUTURE)
    assert base.choose is not None
    shown, truth, events = world.shown, world.truth, []
    while advance(shown, truth) != OVER:
        while is_asked(truth):
            apply(shown, truth, base.choose(shown))
        events += [tell(event) for event in truth.events[: truth.progress[0].events]]
        truth.progress[0].events = 0
    events += [tell(event) for event in truth.events[: truth.progress[0].events]]
    return [(time, what, int(members[job]), detail) for time, what, job, detail in events]


def prophet(base: Policy, after: float, nth: int, told: list[tuple[float, list[int], list[Event]]]) -> Policy:
    """The base, that at the n-th moment after a time tells how the run will go on."""
    ask = base.choose
    assert ask is not None

    def make(view: View, seed: int) -> Choose:
        moments: list[float] = []
        world = blank_world(view, len(view.jobs) + 3, base.preemptive)  # of the empty cluster: all must be copied later

        def choose(view: View) -> Choice:
            now = float(view.clock[0].now)
            if now > after and now not in moments:
                moments.append(now)
                if len(moments) == nth:
                    events = foretold(view, base, world)
                    assert events == foretold(view, base, world)  # a world that has been played is as good as new
                    told.append((now, known_jobs(view, 1000, []).tolist(), events))
            return ask(view)

        return choose

    return replace(base, choose=None, make=make)


@given(
    scenarios(),
    st.sampled_from(("sjf", "sjf-picky", "eft", "best-fit", "srtf", "srsf", "fcfs-easy", "multifactor")),
    st.integers(1, 4),
)
@settings(max_examples=150)
def test_a_world_goes_on_exactly_as_the_run_if_estimates_are_right_and_nothing_comes(
    scenario: Scenario, name: str, nth: int
) -> None:
    base = find_policy(name)
    # Estimates are right, nothing wears, nothing is killed, and the policy sees the whole queue.
    scenario = replace(
        scenario,
        jobs=[replace(job, estimate=None) for job in scenario.jobs],
        disturbances=[item for item in scenario.disturbances if item.what != "speed"],
        options=replace(scenario.options, kill_at_limit=False, window=0),
    )
    last = max([job.submit_s for job in scenario.jobs] + [item.time_s for item in scenario.disturbances])
    told: list[tuple[float, list[int], list[Event]]] = []
    events = [tell(event) for event in simulated(scenario, prophet(base, last, nth, told)).events]
    if not told:
        return
    now, members, expected = told[0]
    happened = [event for event in events if event[2] in members and (event[0] >= now or event[1] == "finish")]
    assert expected == happened


def test_the_examples_of_worlds_hold_gangs_over_nodes_shares_failures_and_restarts() -> None:
    seen_in: set[str] = set()
    for seed in range(30):
        case = replace(mixed_case(seed), window=0)
        told: list[tuple[float, list[int], list[Event]]] = []
        play(case, prophet(find_policy("srtf"), 0.0, 6, told))
        seen_in |= {what for _, _, events in told for _, what, _, _ in events}
    assert {"start", "spread", "stop", "finish"} <= seen_in


def test_a_job_past_its_estimate_is_expected_to_double_it() -> None:
    told: list[tuple[float, list[int], list[Event]]] = []
    jobs = [(0, 100, 1, {"estimate": 10.0}), (30, 5)]
    play(Case([("v100", 1), ("v100", 1)], jobs), prophet(find_policy("sjf"), 1.0, 1, told))
    assert [event for event in told[0][2] if event[1] == "finish"] == [(35.0, "finish", 1, ()), (40.0, "finish", 0, ())]


# ---- compiled or not ----------------------------------------------------------------------------------------------

SCRIPT = "import json; from tests.decide.test_lookahead import everything; print(json.dumps(everything()))"


def everything() -> list[list[Event]]:
    """What look-ahead makes of a few cases."""
    return [play(mixed_case(seed, 12), over(name)).events for seed in range(2) for name in ("sjf", "eft", "srtf")]


def test_uncompiled_it_does_exactly_the_same() -> None:
    path = os.pathsep.join([str(ROOT), *(folder for folder in sys.path if folder)])
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == json.loads(json.dumps(everything()))


def test_the_jobs_of_a_long_trace_hold_their_gpus_in_the_world_too() -> None:
    # Job 70 has a higher number than the world has rows. While it runs, two more jobs come for the other GPU.
    before = [(100.0 * number, 10) for number in range(70)]
    case = Case([("v100", 2)], [*before, (7000, 500), (7005, 10), (7005, 20)], restart_s=1.0)
    assert [run(case, "lookahead-plan")[job].finish for job in (70, 71)] == [500 + 7000, 7015]
