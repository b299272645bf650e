"""What a run is made of besides its jobs: the bandwidth that they use, where it is read."""

import numpy as np
import pytest

from adlro.catalogue.speeds import bandwidth_used
from adlro.experiment.instance import Instance, bandwidth_of, draw
from adlro.experiment.scenario import load_scenario


def sharing(measured: bool = True, speeds: str = "known") -> Instance:
    """Jobs of `paper` on `paper16`, of which the first one shares its GPU."""
    made = draw(load_scenario("paper16", "paper", 40, measured_pace=measured, speeds=speeds), 0)
    made.jobs.table["share"][0] = 500
    return made


def test_each_kind_of_job_uses_what_its_family_uses_at_its_speed() -> None:
    made = sharing()
    used, plan = bandwidth_of(made), made.scenario.plan
    assert used.shape == made.view.rate.shape
    j = next(j for j in range(1, 40) if made.view.jobs["gpus"][j] == 1)
    kind, family = made.view.jobs["kind"][j], made.jobs.families[made.jobs.table["family"][j]]
    for h, form in enumerate(plan.form_records):
        expected = bandwidth_used(family, plan.cluster.models[form.model], float(made.view.rate[kind, h]))
        assert used[kind, h] == pytest.approx(expected)
    assert 0.0 < used[kind].min() < used[kind].max() <= 1.0


def test_where_each_job_is_a_kind_of_its_own_so_is_what_it_uses() -> None:
    hidden, known = sharing(speeds="prior"), sharing()
    assert np.array_equal(bandwidth_of(hidden), bandwidth_of(known)[known.view.jobs["kind"]])


def test_where_nobody_shares_or_nothing_is_measured_it_is_not_computed() -> None:
    assert not bandwidth_of(sharing(measured=False)).size
    assert not bandwidth_of(draw(load_scenario("paper16", "paper", 40, measured_pace=True), 0)).size
