"""The optimum of small cases, by a time-indexed integer program: no policy beats it, and no lower bound is above it."""

import math
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from tests.decide.conftest import Case, play, run

from adlro.core.run import Run
from adlro.decide.catalogue import policies
from adlro.measure.bounds import lower_bounds

SEEDS = range(24)
WITHOUT_STOPS = [policy.name for policy in policies() if not policy.preemptive]
NODES = (("ada", 2), ("bell", 1))
SPEEDS = {"even": {"ada": 1.0, "bell": 1.0}, "uneven": {"ada": 1.0, "bell": 0.5}, "ada only": {"bell": 0.0}}


class Start(NamedTuple):
    """One column of the program: a job that starts at a site at a time, and how long it runs there."""

    job: int
    site: int
    time: int
    duration: int


def small_case(seed: int) -> Case:
    """3 to 5 jobs on 2 GPUs of one model and 1 of another; all times are whole seconds wherever they run."""
    source = Random(seed)
    jobs = []
    for _ in range(source.choice((3, 4, 5, 5))):
        gpus = source.choice((1, 1, 2))
        work = float(gpus * source.randint(1, 6))
        jobs.append((float(source.randint(0, 4)), work, gpus, {"family": source.choice(tuple(SPEEDS))}))
    return Case(NODES, sorted(jobs, key=lambda job: job[0]), SPEEDS)


def starts_of(case: Case) -> list[Start]:
    """Every way to start every job until all could have run one after the other."""
    ways = []
    for job, (_, work, gpus, more) in enumerate(case.jobs):
        for site, (model, room, *_) in enumerate(case.nodes):
            speed = SPEEDS[more["family"]].get(model, 1.0)
            if gpus <= room and speed > 0:
                ways.append((job, site, math.ceil(work / (gpus * speed))))
    longest = {job: max(duration for other, _, duration in ways if other == job) for job, _, _ in ways}
    horizon = int(max(job[0] for job in case.jobs)) + sum(longest.values())
    return [
        Start(job, site, time, duration)
        for job, site, duration in ways
        for time in range(int(case.jobs[job][0]), horizon - duration + 1)
    ]


def optimum(case: Case) -> float:
    """The least sum of completion times (finish − submit) that any schedule without stops can have."""
    starts = starts_of(case)
    horizon = max(start.time + start.duration for start in starts)
    once = np.zeros((len(case.jobs), len(starts)))
    held = np.zeros((len(case.nodes), horizon, len(starts)))
    for column, start in enumerate(starts):
        once[start.job, column] = 1
        held[start.site, start.time : start.time + start.duration, column] = case.jobs[start.job][2]
    room = np.repeat([node[1] for node in case.nodes], horizon)
    solved = milp(
        [start.time + start.duration - case.jobs[start.job][0] for start in starts],
        integrality=np.ones(len(starts)),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(held.reshape(len(room), -1), -np.inf, room)],
    )
    assert solved.status == 0
    return float(round(solved.fun))


@cache
def known(seed: int) -> float:
    """The optimum of the case of this seed."""
    return optimum(small_case(seed))


@cache
def total_s(seed: int, name: str) -> float:
    """The sum of completion times that the policy comes to."""
    case = small_case(seed)
    fates = run(case, name)
    assert len(fates) == len(case.jobs)
    return sum(fate.finish - case.jobs[job][0] for job, fate in fates.items())


def test_the_program_finds_the_optimum_of_a_case_done_by_hand() -> None:
    # On ada jobs of 2 and 3 s, and one of 1 s on both GPUs. If it is last, 2 + 3 + 4 = 9; if first, 1 + 3 + 4 = 8.
    # The fourth has bell to itself, at half speed: 2 / 0.5 = 4.
    only = {"family": "ada only"}
    jobs = [(0.0, 2.0, 1, only), (0.0, 3.0, 1, only), (0.0, 2.0, 2, only), (0.0, 2.0, 1, {"family": "uneven"})]
    assert optimum(Case(NODES, jobs, SPEEDS)) == 8 + 4


@pytest.mark.parametrize("seed", SEEDS)
def test_no_policy_that_never_stops_a_job_is_better_than_the_optimum(seed: int) -> None:
    found = {name: total_s(seed, name) for name in WITHOUT_STOPS}
    assert {name: total for name, total in found.items() if total < known(seed) - 1e-9} == {}


def test_the_optimum_is_within_reach_and_not_of_everybody() -> None:
    assert any(total_s(seed, "allox") == known(seed) for seed in SEEDS)
    assert sum(total_s(seed, "fcfs") for seed in SEEDS) > 1.1 * sum(known(seed) for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lower_bounds_are_not_above_the_optimum(seed: int) -> None:
    case = small_case(seed)
    ran = play(case, "sjf")
    plan = ran.plan
    bounds = lower_bounds(
        Run(
            cluster=plan.cluster,
            jobs=ran.jobs,
            events=ran.outcome.events,
            rate=ran.view.rate,
            site_form=np.ascontiguousarray(plan.sites["form"]),
            site_model=tuple(plan.models[model] for model in plan.sites["model"]),
            site_gpus=np.ascontiguousarray(plan.sites["gpus"]),
            site_node=np.ascontiguousarray(plan.sites["node"]),
            policy="sjf",
            seed=0,
            unfinished=0,
            refusals={},
            illegal=0,
        )
    )
    mean_s = known(seed) / len(case.jobs)
    assert bounds.fastest_runtime_s is not None
    assert bounds.pooled_srpt_s is not None
    assert 0 < bounds.fastest_runtime_s <= mean_s + 1e-9
    assert 0 < bounds.pooled_srpt_s <= mean_s + 1e-9
    assert bounds.best_s == max(bounds.fastest_runtime_s, bounds.pooled_srpt_s)
