"""The memory of placements that turned out well: what it learns from, what it is like, and what it leaves alone."""

import numpy as np
import pytest
from tests.decide.conftest import Case
from tests.decide.test_outlook import HALF_T4, T4, V100, looked

from adlro.core.tables import FINISHED, View
from adlro.decide.network.past import (
    ENDS,
    GANGS,
    LENGTHS,
    WATCHED,
    Past,
    forget,
    gang_of,
    length_of,
    new_past,
    notice_ends,
    observe_past,
    remember,
)
from adlro.decide.network.planes import LIKENESS, Planes, make_planes, observe
from adlro.decide.outlook import Outlook

CASE = Case([(V100, 4), (V100, 2), (T4, 2)], [(0, 10), (0, 16, 2), (0, 4), (0, 30, 3)], HALF_T4)


def begun() -> tuple[View, Outlook, Past]:
    view, outlook = looked(CASE, [(0, 0), (1, 0)])
    return view, outlook, new_past(view)


def shown(view: View, outlook: Outlook, past: Past) -> Planes:
    planes = make_planes(5, len(view.pools))
    observe(view, outlook, planes)
    observe_past(view, outlook, past, planes)
    return planes


def test_nothing_is_known_at_first() -> None:
    planes = shown(*begun())
    assert not planes.pairs[:, :, LIKENESS].any()


def test_an_end_is_noticed_once_by_whoever_watched_the_job_run() -> None:
    view, _, past = begun()
    notice_ends(view, past)
    assert past.state[WATCHED] == view.clock[0].running == 2
    assert past.state[ENDS] == 0
    j = int(view.running[0])
    view.runs[j].state = FINISHED
    view.running[0] = view.running[1]
    view.clock[0].running -= 1
    notice_ends(view, past)
    notice_ends(view, past)
    assert past.state[ENDS] == 1
    assert past.weight.sum() > 0


def test_a_good_placement_speaks_for_its_pool_and_for_jobs_like_it_only() -> None:
    view, outlook, past = begun()
    usual, j = 4, int(outlook.rows[0])
    for _ in range(usual):  # what is usual: ten times as long as need be
        ended(view, j, 10.0)
        remember(view, past, j, 1)
    ended(view, j, 1.0)
    remember(view, past, j, 0)
    planes = shown(view, outlook, past)
    likeness = planes.pairs[0, :, LIKENESS]
    assert likeness[0] == pytest.approx(0.5)  # one placement, good: 1 / (1 + 1)
    assert np.abs(planes.pairs[:, :, LIKENESS]).max() <= 1.0
    longer = [
        w
        for w in range(int(outlook.counts[0]))
        if length_of(float(outlook.brief[w])) != length_of(float(outlook.brief[0]))
    ]
    assert all(abs(planes.pairs[w, 0, LIKENESS]) < likeness[0] for w in longer)


def ended(view: View, j: int, stretch: float) -> None:
    run, job = view.runs[j], view.jobs[j]
    run.starts, run.started, run.held = 1, job.submit, stretch * job.estimate / view.fastest[job.demand]


def test_everything_can_be_forgotten() -> None:
    view, _, past = begun()
    ended(view, 0, 1.0)
    remember(view, past, 0, 0)
    forget(past)
    assert not past.good.any()
    assert not past.weight.any()
    assert not past.state.any()


@pytest.mark.parametrize(("gpus", "gang"), [(1, 0), (2, 1), (3, 2), (4, 2), (8, 3), (32, 5), (512, GANGS - 1)])
def test_gangs_are_told_apart_by_the_logarithm_of_their_size(gpus: int, gang: int) -> None:
    assert gang_of(gpus) == gang


@pytest.mark.parametrize(("seconds", "length"), [(0.0, 0), (7.9, 0), (8.0, 1), (600.0, 3), (1e9, LENGTHS - 1)])
def test_lengths_are_told_apart_in_steps_of_eight(seconds: float, length: int) -> None:
    assert length_of(seconds) == length
