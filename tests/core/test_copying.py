"""Copies of a view: what a run changes is its own, everything else is shared."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from tests.both import settings_of
from tests.strategies import Scenario, scenarios

from adlro.core.copying import CLUSTER, JOBS, LISTS, copied, copy_cluster, copy_lists, copy_queue, imagined
from adlro.core.plan import plan_cluster
from adlro.core.tables import View
from adlro.decide.catalogue import find_policy
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs
from adlro.simulation.simulator import simulate


def all_of(view: View) -> dict[str, Any]:
    """Everything in it."""
    return {name: np.asarray(array).tolist() for name, array in view._asdict().items()}


def played(scenario: Scenario, view: View, work: Any) -> None:
    """A run to its end on this view."""
    happening = pack_disturbances(plan_cluster(scenario.cluster), scenario.disturbances)
    simulate(view, work, find_policy("srtf"), settings_of(scenario), happening)


@settings(max_examples=30)
@given(scenarios())
def test_a_run_on_a_copy_leaves_the_view_as_it_was(scenario: Scenario) -> None:
    jobs = pack_jobs(scenario.jobs)
    view = pack(plan_cluster(scenario.cluster), jobs, scenario.speed)
    before = all_of(view)
    played(scenario, copied(view), jobs.work)
    assert all_of(view) == before
    again, other = copied(view), copied(view)
    played(scenario, again, jobs.work)
    played(scenario, other, jobs.work)
    assert all_of(again) == all_of(other)


@settings(max_examples=30)
@given(scenarios())
def test_what_is_copied_into_a_used_view_is_what_a_new_copy_has(scenario: Scenario) -> None:
    jobs = pack_jobs(scenario.jobs)
    view = pack(plan_cluster(scenario.cluster), jobs, scenario.speed)
    used = copied(view)
    played(scenario, used, jobs.work)
    for copy in (copy_cluster, copy_lists, copy_queue):
        copy(view, used)
    mine, theirs = all_of(view), all_of(used)
    assert [name for name in (*CLUSTER, "clock", "released", "demands") if mine[name] != theirs[name]] == []


def test_every_array_of_a_view_is_named_once_or_shared() -> None:
    shared = {"jobs", "shapes", "spread", "form_sites", "pool_sites", "rate", "width", "fastest"}
    assert sorted((*CLUSTER, *LISTS, *JOBS, *shared)) == sorted(View._fields)


@settings(max_examples=10)
@given(scenarios())
def test_an_imagined_cluster_has_its_own_sites_and_the_same_jobs(scenario: Scenario) -> None:
    view = pack(plan_cluster(scenario.cluster), pack_jobs(scenario.jobs), scenario.speed)
    world = imagined(view)
    own = {name for name in View._fields if not np.shares_memory(getattr(view, name), getattr(world, name))}
    assert own >= {*CLUSTER, *LISTS} - {"parts"}  # where jobs stand is theirs: it is read, and not changed
    assert not own & {"runs", "queue", "running", "parts"}
