"""Who holds what: the rules, the occupancy by names, the shadow and the live view agree on random clusters and jobs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import Scenario, gpu_model, scenarios

from adlro.backends.shadow.dry_run import Shadow
from adlro.core.occupancy import Occupancy
from adlro.core.plan import Plan, gpu_numbers, plan_cluster
from adlro.core.ports import JobState, LiveJob, Order, Part, Snapshot
from adlro.core.records import CPU_ONLY, Cluster, Gpus, Job, Link, Node
from adlro.core.rules import fits, release, take
from adlro.core.tables import NOBODY, View
from adlro.live.said import as_said
from adlro.live.scene import Scenes
from adlro.normalise.pack import pack, pack_jobs

LINK = Link("pcie", 32.0)
TWO = Cluster(
    "two",
    "",
    (Node("a", 8, 64, (Gpus("v100", 2),), LINK), Node("b", 8, 64, (Gpus("v100", 2),), LINK)),
    LINK,
    {"v100": gpu_model("v100", 16.0)},
)


class Still:
    """A cluster that is always the same, and that nobody may touch."""

    name = "still"
    can_stop = can_resize = places_gpus = can_annotate = False

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def read(self) -> Snapshot:
        return self.snapshot

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} reached the cluster")


def still(snapshot: Snapshot) -> Any:
    """Such a cluster as a back end."""
    return Still(snapshot)


def parts_of(plan: Plan, view: View, j: int) -> tuple[Part, ...]:
    """Where the rules have put a job."""
    run, found = view.runs[j], []
    held, more = [(int(run.site), int(run.mask))], int(run.parts)
    while more != NOBODY:
        held.append((int(view.parts[more].site), int(view.parts[more].mask)))
        more = int(view.parts[more].next)
    for s, mask in held:
        node, numbers = plan.cluster.nodes[plan.sites[s].node].name, gpu_numbers(plan, s, mask)
        model = plan.models[plan.sites[s].model] if numbers else CPU_ONLY
        found.append(Part(node, model, len(numbers), numbers))
    return tuple(found)


def any_place(draw: Callable[..., Any], plan: Plan, job: Job) -> tuple[Part, ...]:
    """A place for a job, drawn at random: sensible in form, and often without room, too wide or too narrow."""
    if job.gpus == 0:
        return (Part(draw(st.sampled_from(plan.cluster.nodes)).name, CPU_ONLY, 0),)
    p = draw(st.integers(0, len(plan.pools) - 1))
    pool = plan.pools[p]
    sites = [int(s) for s in plan.pool_sites[pool.first_site : pool.first_site + pool.sites]]
    parts, needed = [], job.gpus
    for s in draw(st.permutations(sites)):
        count = min(needed, draw(st.integers(1, max(1, int(plan.sites[s].gpus)))))
        if count:
            numbers = gpu_numbers(plan, s, (1 << int(plan.sites[s].gpus)) - 1)
            some = draw(st.sampled_from([(), tuple(numbers[:count]), tuple(numbers[-count:])]))
            parts.append(Part(plan.cluster.nodes[plan.sites[s].node].name, plan.models[p], count, some))
            needed -= count
    return tuple(parts)


def tables(view: View) -> dict[str, Any]:
    """All that says what is free."""
    whole = {name: np.asarray(getattr(view, name)).tolist() for name in ("nodes", "pools", "spare", "bits")}
    sites = [[int(site[name]) for name in SITE_FIELDS] for site in view.sites]
    gpus = [[int(gpu[name]) for name in GPU_FIELDS] for gpu in view.gpus]
    return whole | {"sites": sites, "gpus": gpus, "open": int(view.clock[0].open)}


SITE_FIELDS = ("free_mask", "free_gpus", "free_share", "open_share")
GPU_FIELDS = ("free_share", "free_memory", "memory")


@settings(max_examples=50)
@given(scenarios(), st.data())
def test_whoever_is_asked_says_what_the_rules_say(scenario: Scenario, data: st.DataObject) -> None:
    plan, jobs = plan_cluster(scenario.cluster), sorted(scenario.jobs, key=lambda job: job.submit_s)
    view = pack(plan, pack_jobs(jobs), scenario.speed)
    occupancy = Occupancy(scenario.cluster, scenario.speed)
    down = data.draw(st.sets(st.sampled_from([node.name for node in scenario.cluster.nodes]), max_size=1))
    for n, node in enumerate(scenario.cluster.nodes):
        if node.name in down:
            view.nodes[n].up = 0
            occupancy.close(node.name, "drained")
    running: dict[int, tuple[Part, ...]] = {}
    for j, job in enumerate(jobs):
        wanted = any_place(data.draw, plan, job)
        shadow = Shadow(still(snapshot(scenario, jobs, running, down)), speed=scenario.speed)
        shadow.read()
        said = occupancy.fit(job, wanted)
        assert shadow.act([Order(str(j), "d", wanted)])[0].done == (not isinstance(said, str)), said
        open_sites = [s for s in range(len(plan.sites)) if fits(view, j, s)]
        if not isinstance(said, str):
            assert site_of(plan, view, j, wanted) in open_sites
        if not open_sites:
            continue
        take(view, j, data.draw(st.sampled_from(open_sites)))
        parts = parts_of(plan, view, j)
        unnamed = tuple(replace(part, indices=()) for part in parts)
        assert occupancy.fit(job, unnamed) == parts
        assert occupancy.fit(job, parts) == parts
        assert shadow_of(scenario, jobs, running, down).act([Order(str(j), "d", parts)])[0].done
        occupancy.take(str(j), job, parts)
        running[j] = parts
        if data.draw(st.integers(0, 3)) == 0:
            over = data.draw(st.sampled_from(sorted(running)))
            release(view, over)
            occupancy.release(str(over))
            del running[over]
    shown = Scenes(scenario.speed).scene(snapshot(scenario, jobs, running, down), as_said).view
    for n, node in enumerate(scenario.cluster.nodes):
        if node.name in down:
            occupancy.close(node.name, "drained")
            shown.nodes[n].up = view.nodes[n].up
    assert free(shown) == free(view) == free(occupancy._view)


def free(view: View) -> dict[str, Any]:
    """All that says what is free, without what only tells which sites are worth a look."""
    found = tables(view)
    return {name: found[name] for name in ("nodes", "gpus", "sites", "spare")} | {
        "pools": [int(pool.free_gpus) for pool in view.pools]
    }


def site_of(plan: Plan, view: View, j: int, parts: tuple[Part, ...]) -> int:
    """The site that stands for a place: of a gang over several nodes the anchor of its pool."""
    for s, site in enumerate(plan.sites):
        model = plan.models[site.model]
        if plan.cluster.nodes[site.node].name == parts[0].node and parts[0].model in (model, CPU_ONLY):
            return int(plan.pools[site.pool].anchor) if len(parts) > 1 else s
    raise AssertionError("there is no such place")


def snapshot(scenario: Scenario, jobs: Sequence[Job], running: dict[int, tuple[Part, ...]], down: set[str]) -> Snapshot:
    """The jobs that run where they run; the others wait."""
    live = []
    for j, job in enumerate(jobs):
        state = JobState.RUNNING if j in running else JobState.WAITING
        live.append(LiveJob(str(j), job, state, running.get(j, ()), started_s=0.0 if j in running else None))
    return Snapshot(0.0, scenario.cluster, tuple(live), dict.fromkeys(down, "drained"))


def shadow_of(scenario: Scenario, jobs: Sequence[Job], running: dict[int, tuple[Part, ...]], down: set[str]) -> Shadow:
    """A shadow of that cluster, which has looked at it."""
    shadow = Shadow(still(snapshot(scenario, jobs, running, down)), speed=scenario.speed)
    shadow.read()
    return shadow


def test_a_gang_is_not_spread_over_more_nodes_than_it_takes() -> None:
    said = Occupancy(TWO).fit(Job("any", 1.0, gpus=2), (Part("a", "v100", 1), Part("b", "v100", 1)))
    assert said == "the place has 2 nodes; the job takes 1 of this model"


def test_jobs_that_the_cluster_put_on_one_gpu_hold_two_and_give_both_back() -> None:
    occupancy, job = Occupancy(TWO), Job("any", 1.0)
    for holder in ("x", "y"):
        occupancy.stand(holder, job, (Part("a", "v100", 1, (0,)),))
    assert "0 of 1 GPUs are free" in str(occupancy.fit(job, (Part("a", "v100", 1),)))
    occupancy.follow([("y", job, (Part("a", "v100", 1, (0,)),))])
    assert occupancy.holders() == {"y"}
    occupancy.release("y")
    assert occupancy.fit(Job("any", 1.0, gpus=2), (Part("a", "v100", 2),)) == (Part("a", "v100", 2, (0, 1)),)


def test_a_job_without_gpus_on_two_nodes_holds_half_of_its_cores_on_each() -> None:
    occupancy, job = Occupancy(TWO), Job("any", 1.0, gpus=0, cpus=8.0)
    occupancy.stand("x", job, (Part("a", CPU_ONLY, 0), Part("b", CPU_ONLY, 0)))
    assert "4 cores free" in str(occupancy.fit(replace(job, cpus=5.0), (Part("b", CPU_ONLY, 0),)))
    occupancy.release("x")
    assert occupancy.fit(job, (Part("b", CPU_ONLY, 0),)) == (Part("b", CPU_ONLY, 0),)


def test_a_model_may_be_asked_for_by_any_of_its_names() -> None:
    cluster = replace(TWO, models={"v100": replace(gpu_model("v100"), aliases=("Tesla-V100",))})
    place = (Part("a", "v100", 1),)
    assert not isinstance(Occupancy(cluster).fit(Job("any", 1.0, models=frozenset(["tesla-v100"])), place), str)
    assert Occupancy(cluster).fit(Job("any", 1.0, models=frozenset(["a100"])), place) == "the job does not allow v100"


def test_a_place_that_the_cluster_does_not_have_cannot_be_taken() -> None:
    for part in (Part("c", "v100", 1), Part("a", "v100", 1, (2,))):
        with pytest.raises(KeyError):
            Occupancy(TWO).take("x", Job("any", 1.0), (part,))
