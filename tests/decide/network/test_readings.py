"""What readings are worth: by hand, nothing where nothing is read, and the weights that ship."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.both import run_compiled
from tests.decide.two_models import ADA, BELL, cluster_of, speed
from tests.strategies import Scenario, scenarios

import adlro.decide
from adlro.core.errors import CheckpointError
from adlro.core.plan import plan_cluster
from adlro.core.readings import with_unsure
from adlro.core.records import Job
from adlro.core.rules import enqueue_all, renew_paces
from adlro.core.tables import NOBODY, View
from adlro.decide.catalogue import find_policy
from adlro.decide.checkpoint import read_arrays
from adlro.decide.network.greedy_q import (
    ROWS,
    advice_by_q,
    best_by_q,
    consider,
    fill_bonus,
    new_mind,
    q_policy,
    shipped,
)
from adlro.decide.network.readings import (
    PRESET,
    READINGS,
    SITUATIONS,
    WARM_C,
    no_worth,
    shipped_worth,
    worth_of_arrays,
)
from adlro.experiment.instance import draw, play_out
from adlro.experiment.scenario import load_scenario
from adlro.learn.train.checkpoint import write_checkpoint

SLOWER, HOTTER, BUSIER, UNSURE = range(len(READINGS))


def dear(*which: int, by: float = -100.0) -> np.ndarray:
    """Weights with which these readings count more than anything else."""
    worth = no_worth()
    worth[list(which), 0] = by
    return worth


def two_models(*jobs: Job) -> View:
    """A view of a GPU of each model, in which paces are seen and all jobs wait."""
    view = _packed(*jobs)
    enqueue_all(view, np.arange(len(jobs), dtype=np.int32))
    view.clock[0].readings, view.sites.ranked = 1, NOBODY
    renew_paces(view)
    return view


def _packed(*jobs: Job) -> View:
    from adlro.normalise.pack import pack, pack_jobs

    return pack(plan_cluster(cluster_of({ADA: 1}, {BELL: 1}), by_site=True), pack_jobs(jobs), speed)


def bonuses(view: View, worth: np.ndarray) -> list[float]:
    """What is added to Q of the first job on each model."""
    mind = new_mind(view, shipped(), ROWS, worth=worth)
    consider(view, mind)
    fill_bonus(view, mind)
    return [float(each) for each in mind.bonus[: len(view.pools)]]


# ---- nothing to read -----------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(scenario=scenarios())
def test_on_healthy_gpus_readings_change_nothing_whatever_they_are_worth(scenario: Scenario) -> None:
    scenario = replace(scenario, disturbances=[each for each in scenario.disturbances if each.what != "speed"])
    scenario = replace(scenario, options=replace(scenario.options, measured=True))
    counting = q_policy(shipped, "counting", "", lambda: dear(SLOWER, HOTTER, BUSIER, UNSURE))
    without = q_policy(shipped, "without", "")
    assert run_compiled(scenario, counting).events == run_compiled(scenario, without).events


def test_where_nothing_is_read_exactly_0_is_added() -> None:
    worth = np.full(no_worth().shape, 7.0)
    assert bonuses(two_models(Job("same", 10.0)), worth) == [0.0, 0.0]
    assert bonuses(two_models(Job("half", 10.0)), worth) == [0.0, 0.0]


def test_without_measured_paces_the_policy_plays_as_it_would_without_readings() -> None:
    made = draw(load_scenario("paper16", "paper", 120), 1)
    counting = q_policy(shipped, "adlro", "", lambda: dear(SLOWER, HOTTER, BUSIER, UNSURE))
    starts = [
        play_out(made, draw(made.scenario, 1).view, each).events for each in (counting, q_policy(shipped, "a", ""))
    ]
    assert np.array_equal(starts[0], starts[1])


# ---- by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("situation", "value"), [("length of the job", -np.log(2.0)), ("jobs waiting", np.log(2.0))])
def test_a_reading_counts_by_the_length_of_the_job_and_by_how_many_wait(situation: str, value: float) -> None:
    # The first job takes 10 s, the second 40 s wherever it runs, the typical one 20 s. One job waits for each GPU.
    view = two_models(Job("same", 10.0), Job("half", 20.0))
    view.gpus.pace = (0.5, 1.0)
    view.clock[0].readings, view.sites.ranked = 2, NOBODY
    renew_paces(view)
    worth = no_worth()
    worth[SLOWER, SITUATIONS.index(situation)] = 3.0
    assert bonuses(view, worth) == pytest.approx([3.0 * value * np.log(2.0), 0.0], rel=1e-3)


def test_a_reading_counts_by_how_much_worse_it_is_than_at_the_best_choice() -> None:
    view = two_models(Job("same", 10.0))
    view.gpus.pace = (0.5, 1.0)
    view.clock[0].readings, view.sites.ranked = 2, NOBODY
    renew_paces(view)
    assert bonuses(view, dear(SLOWER, by=-2.0)) == pytest.approx([-2.0 * np.log(2.0), 0.0])
    view.clock[0].metered = 1
    view.gpus.headroom = (WARM_C / 4, WARM_C / 2)
    assert bonuses(view, dear(HOTTER, by=-2.0)) == pytest.approx([-0.5, 0.0])
    view.gpus.headroom = (np.inf, 2 * WARM_C)
    assert bonuses(view, dear(HOTTER)) == [0.0, 0.0], "far below its limit, or not read: cold"
    view.gpus.bandwidth = (1.0, 0.25)
    assert bonuses(view, dear(BUSIER, by=-2.0)) == pytest.approx([0.0, -1.5])
    view = with_unsure(view, np.array([[0.3, 0.7]]))
    assert bonuses(view, dear(UNSURE, by=1.0)) == pytest.approx([0.0, 0.4])


def test_a_job_with_one_choice_has_nothing_to_compare() -> None:
    view = two_models(Job("same", 10.0, models=frozenset([ADA])))
    view.clock[0].metered = 1
    view.gpus.headroom = (0.0, 60.0)
    assert bonuses(view, dear(HOTTER))[0] == 0.0


def test_what_a_reading_is_worth_depends_on_the_situation() -> None:
    view = two_models(Job("same", 10.0), Job("half", 1000.0))
    view.clock[0].metered = 1
    view.gpus.headroom = (WARM_C, 0.0)
    mind = new_mind(view, shipped(), ROWS)
    consider(view, mind)
    length = float(np.log(mind.outlook.brief[0] / mind.outlook.unit[0]))
    worth = no_worth()
    worth[HOTTER] = (0.0, 1.0, 0.0)
    assert length < 0.0
    assert bonuses(view, worth) == pytest.approx([0.0, length], rel=1e-6)
    worth[HOTTER] = (0.0, 0.0, 1.0)
    assert bonuses(view, worth) == pytest.approx([0.0, np.log(1.0 + 2 / 2)], rel=1e-6)


@pytest.mark.parametrize(("headroom", "site"), [((50.0, 1.0), 0), ((1.0, 50.0), 1)])
def test_what_is_read_decides_if_it_is_worth_enough(headroom: tuple[float, float], site: int) -> None:
    view = two_models(Job("same", 10.0))
    view.clock[0].metered = 1
    view.gpus.headroom = headroom
    mind = new_mind(view, shipped(), ROWS, worth=dear(HOTTER))
    assert best_by_q(view, mind).site == site
    jobs, sites, scores = np.zeros(4, np.int32), np.zeros(4, np.int32), np.zeros(4)
    first, count, _, _ = advice_by_q(view, mind, jobs, sites, scores)
    assert (first.site, count, sites[0]) == (site, 2, site)


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def shipped_file() -> Path:
    return Path(adlro.decide.__path__[0]) / "checkpoints" / "adlro-readings.safetensors"


def test_the_checkpoint_that_ships_tells_how_it_was_made() -> None:
    arrays, about = read_arrays(shipped_file())
    assert {"preset", "training", "config", "curve", "device", "left_out"} <= about.keys()
    assert np.array_equal(worth_of_arrays(arrays, ""), shipped_worth())
    assert (tuple(about["readings"]), tuple(about["situations"])) == (READINGS, SITUATIONS)


def test_a_checkpoint_of_ones_own_is_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    write_checkpoint(path, {"worth": dear(HOTTER).astype(np.float32)}, {"preset": PRESET})
    policy = find_policy(str(path))
    made = draw(load_scenario("paper16", "paper", 120, measured_pace=True), 1)
    events = [play_out(made, draw(made.scenario, 1).view, each).events for each in (policy, q_policy(shipped, "a", ""))]
    assert policy.name == "mine"
    assert np.array_equal(events[0], events[1]), "nothing is read, so it is the network without readings"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [({}, "'worth' is missing"), ({"worth": np.zeros((2, 3))}, r"'worth' has the shape \(2, 3\)")],
)
def test_a_checkpoint_with_other_arrays_is_refused(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        worth_of_arrays(arrays, "mine")
