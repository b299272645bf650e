"""Measured speed factors of GPUs: sites that differ in them are not alike, and jobs expect what they may get."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.strategies import gpu_model

from adlro.core.plan import expected_factor, plan_cluster
from adlro.core.records import MEASURED, Cluster, Gpus, Job, Link, Node, Placing, Speed
from adlro.normalise.pack import pack, pack_jobs

PCIE = Link("pcie", 32.0)
ALIKE = tuple(Node(f"n{number}", 8.0, 64.0, (Gpus("big", 4),), PCIE) for number in range(3))
CLUSTER = Cluster("hand", "", ALIKE, PCIE, {"big": replace(gpu_model("big"), name="big")})


def unit_speed(family: str, placing: Placing) -> Speed:
    return Speed(1.0, MEASURED)


def test_without_factors_alike_sites_share_a_form() -> None:
    assert len(plan_cluster(CLUSTER).forms) == 1
    assert len(plan_cluster(CLUSTER, {"n1": (1.0, 1.0, 1.0, 1.0)}).forms) == 1


def test_sites_with_other_factors_have_a_form_of_their_own() -> None:
    plan = plan_cluster(CLUSTER, {"n1": (1.0, 0.5, 1.0, 1.0), "n2": (0.5,)})
    assert plan.sites.form.tolist() == [0, 1, 1]  # which of its GPUs is worn does not tell a site from another
    assert plan.pools[0].sites == 3
    assert [form.factors for form in plan.form_records] == [(), (0.5, 1.0, 1.0, 1.0)]


def test_factors_go_to_the_models_of_a_node_in_their_order() -> None:
    mixed = replace(CLUSTER, nodes=(replace(ALIKE[0], gpus=(Gpus("big", 2), Gpus("other", 2))),))
    mixed = replace(mixed, models={**mixed.models, "other": replace(gpu_model("other"), name="other")})
    plan = plan_cluster(mixed, {"n0": (1.0, 1.0, 1.0, 0.25)})
    assert [form.factors for form in plan.form_records] == [(), (0.25, 1.0)]


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
def test_a_job_expects_the_mean_time_over_all_gpus_that_it_may_get(taken: int) -> None:
    factors = (0.4, 0.7, 1.0, 1.1)
    every = [1.0 / min(some) for some in itertools.combinations(factors, taken)]
    assert expected_factor(factors, taken) == pytest.approx(1.0 / np.mean(every))


def test_no_factors_are_a_factor_of_one() -> None:
    assert expected_factor((), 2) == 1.0
    assert expected_factor((1.0, 1.0), 2) == 1.0


def test_rates_follow_the_factors() -> None:
    jobs = pack_jobs([Job("a", 1.0, gpus=gpus) for gpus in (1, 4, 8)])
    plan = plan_cluster(CLUSTER, {"n1": (0.5, 1.0, 1.0, 1.0)})
    view = pack(plan, jobs, unit_speed)
    one, four, eight = view.rate[jobs.table.kind]
    assert one == pytest.approx([1.0, 1.0 / 1.25])
    assert four == pytest.approx([4.0, 2.0])
    # A gang over two of three nodes meets the worn one in two of three cases, whichever site stands for the pool.
    assert eight == pytest.approx([8.0 / (1 / 3 + 2 / 3 * 2)] * 2)
    assert view.width[jobs.table.kind[2]].tolist() == [2, 2]
