"""Records become tables and come back; what cannot be is said in words."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import clusters, gpu_model, jobs, speeds

from adlro.core.errors import ConfigError
from adlro.core.plan import Plan, fewest_nodes, plan_cluster
from adlro.core.records import MEASURED, Cluster, Disturbance, Gpus, Job, Link, Node, Placing, Speed, SpeedOf
from adlro.core.tables import DOWN, NOBODY, REFUSED, SPEED, UP
from adlro.normalise.pack import pack, pack_disturbances, pack_jobs, refusals, unpack_job, with_model_names

PCIE, NVLINK = Link("pcie", 32.0), Link("nvlink", 300.0)


def node(name: str, *gpus: Gpus, cpus: float = 8.0, memory_gb: float = 64.0, link: Link = PCIE) -> Node:
    """A node."""
    return Node(name, cpus, memory_gb, gpus, link)


def cluster_of(*nodes: Node) -> Cluster:
    """A cluster of these nodes, with models of 16 GB (big) and 8 GB (small)."""
    models = {"big": gpu_model("big", 16.0), "small": gpu_model("small", 8.0)}
    return Cluster("hand", "", nodes, Link("ethernet", 8.0), models)


def unit_speed(family: str, placing: Placing) -> Speed:
    """1 on every model; nothing runs the family 'never'; over a slow link half."""
    value = 0.5 if placing.gpus > 1 and placing.link == PCIE else 1.0
    return Speed(0.0 if family == "never" else value, MEASURED)


# ---- jobs ---------------------------------------------------------------------------------------------------------


CLUSTER = cluster_of(node("n0", Gpus("big", 4)), node("n1", Gpus("small", 2), Gpus("big", 2)))


@settings(max_examples=60)
@given(drawn=st.lists(jobs(CLUSTER), max_size=8))
def test_a_job_comes_back_as_it_was(drawn: list[Job]) -> None:
    given_jobs = [replace(job, user=f"u{i % 3}", name=f"n{i % 2}", priority=i % 5 / 4) for i, job in enumerate(drawn)]
    table = pack_jobs(given_jobs)
    expected = sorted(given_jobs, key=lambda job: job.submit_s)
    back = [unpack_job(table, j) for j in range(len(table))]
    assert back == [replace(job, estimate=job.work if job.estimate is None else job.estimate) for job in expected]


def test_jobs_are_numbered_by_submit_time_and_equal_times_keep_their_order() -> None:
    table = pack_jobs([Job("a", 1.0, 5.0), Job("b", 2.0, 0.0), Job("c", 3.0, 5.0)])
    assert table.work.tolist() == [2.0, 1.0, 3.0]
    assert table.families == ("b", "a", "c")


def test_jobs_of_one_user_and_name_share_a_group() -> None:
    who = [("ann", "x"), ("ann", "y"), ("bob", "x"), ("ann", "x")]
    table = pack_jobs([Job("a", 1.0, user=user, name=name) for user, name in who])
    assert table.table.group.tolist() == [0, 1, 2, 0]


def test_amounts_become_thousandths_and_mebibytes() -> None:
    row = pack_jobs([Job("a", 1.0, cpus=1.5, memory_gb=0.5, gpu_memory_gb=2.25)]).table[0]
    assert (row.cpus, row.memory, row.gpu_memory) == (1500, 512, 2304)
    assert math.isinf(row.limit)
    assert math.isinf(row.checkpoint)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": -1}, "gpus is -1; expected a whole number from 0 to 1000000"),
        ({"share": 0}, "share is 0; expected a whole number from 1 to 1000"),
        ({"share": 500, "gpus": 2}, "share is 500 with 2 GPUs; expected 1000, or gpus = 1"),
        ({"work": -1.0}, "work is -1.0; expected a number of GPU-seconds from 0"),
        ({"work": math.inf}, "work is inf; expected"),
        ({"submit_s": math.nan}, "submit_s is nan; expected"),
        ({"priority": 1.5}, "priority is 1.5; expected a number from 0 to 1"),
        ({"gpus": 1.5}, "gpus is 1.5; expected a whole number"),
        ({"memory_gb": 3e6}, "memory_gb is 3000000.0; expected a number of GB from 0 to 2000000"),
        ({"cpus": -0.5}, "cpus is -0.5; expected a number of cores from 0"),
        ({"memory_gb": -1.0}, "memory_gb is -1.0; expected a number of GB from 0"),
        ({"gpu_memory_gb": math.nan}, "gpu_memory_gb is nan; expected a number of GB from 0 to 100000"),
        ({"limit_s": -1.0}, "limit_s is -1.0; expected a number of seconds from 0"),
        ({"estimate": -2.0}, "estimate is -2.0; expected a number of GPU-seconds from 0"),
        ({"checkpoint": math.inf}, "checkpoint is inf; expected a number of GPU-seconds from 0"),
    ],
)
def test_a_job_that_no_cluster_could_mean_is_an_error(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"job 'train' of user 'ann': {message}"):
        pack_jobs([replace(Job("a", 1.0, user="ann", name="train"), **wrong)])  # type: ignore[arg-type]


def test_allowed_models_are_called_as_the_cluster_calls_them() -> None:
    table = pack_jobs([Job("a", 1.0, models=frozenset({"V100", "K80"}))])
    assert with_model_names(table, {"V100": "v100"}).allowed == (frozenset(), frozenset({"v100", "K80"}))


# ---- the cluster ---------------------------------------------------------------------------------------------------


def plan() -> Plan:
    """Sites 0 big×4 (n0), 1 small×2 and 2 big×2 (n1), 3 none (n2), 4 big×4 (n3), alike to 0, 5 big×4 by nvlink (n4)."""
    big, few = Gpus("big", 4), Gpus("big", 2)
    nodes = (
        node("n0", big),
        node("n1", Gpus("small", 2), few),
        node("n2"),
        node("n3", big),
        node("n4", big, link=NVLINK),
    )
    return plan_cluster(cluster_of(*nodes))


def test_sites_are_numbered_as_in_the_cluster_and_alike_ones_share_a_form() -> None:
    made = plan()
    assert made.sites.node.tolist() == [0, 1, 1, 2, 3, 4]
    assert made.sites.gpus.tolist() == [4, 2, 2, 0, 4, 4]
    assert made.sites.first_gpu.tolist() == [0, 4, 6, 8, 8, 12]
    assert made.sites.form.tolist() == [0, 1, 2, 3, 0, 4]
    assert made.nodes.first_site.tolist() == [0, 1, 3, 4, 5]
    assert made.nodes.sites.tolist() == [1, 2, 1, 1, 1]
    assert made.forms.sites.tolist() == [2, 1, 1, 1, 1]
    assert made.form_sites.tolist() == [0, 4, 1, 2, 3, 5]


def test_a_pool_is_all_sites_of_a_model_and_its_anchor_the_first() -> None:
    made = plan()
    assert made.models == ("big", "small", "cpu")
    assert made.pools.gpus.tolist() == [14, 2, 0]
    assert made.pools.anchor.tolist() == [0, 1, 3]
    firsts, counts = made.pools.first_site.tolist(), made.pools.sites.tolist()
    assert [made.pool_sites[first : first + count].tolist() for first, count in zip(firsts, counts, strict=True)] == [
        [0, 2, 4, 5],
        [1],
        [3],
    ]


def test_everything_is_free_and_idle_at_first_also_beyond_one_word_of_bits() -> None:
    made = plan_cluster(cluster_of(*(node(f"n{i}", Gpus("big", 62)) for i in range(70))))
    assert made.forms.sites.tolist() == [70]
    idle, free = made.bits[: made.pools[0].first_word], made.bits[made.pools[0].first_word :]
    assert sum(int(word).bit_count() for word in idle) == 70
    all_free = free[62 * made.pools[0].words :]
    assert sum(int(word).bit_count() for word in free) == sum(int(word).bit_count() for word in all_free) == 70
    assert (made.sites.free_mask == 2**62 - 1).all()
    assert (made.gpus.free_share == 1000).all()
    assert (made.gpus.free_memory == 16 * 1024).all()


def test_more_gpus_than_a_mask_holds_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"node 'n0' has 63 big GPUs; expected at most 62"):
        plan_cluster(cluster_of(node("n0", Gpus("big", 63))))


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (10, 3), (11, 4), (12, 4), (13, 0)]
)
def test_a_gang_takes_the_fewest_nodes_largest_first(gpus: int, nodes: int) -> None:
    assert fewest_nodes([(2, 1), (4, 1), (2, 1), (4, 1)], gpus) == nodes


# ---- the view ------------------------------------------------------------------------------------------------------


def test_rates_and_widths_say_where_a_job_runs_and_how_fast() -> None:
    made = plan()
    wide = Job("a", 1.0, gpus=6)
    kinds = [
        Job("a", 1.0, gpus=4),
        wide,
        Job("a", 1.0, share=250),
        Job("a", 1.0, gpus=0),
        replace(wide, models=frozenset({"small"})),
        Job("a", 1.0, gpu_memory_gb=10.0),
        Job("never", 1.0),
    ]
    table = pack_jobs(kinds)
    view = pack(made, table, unit_speed)
    rows = table.table.kind
    # forms: big×4 by pcie, small×2, big×2, none, big×4 by nvlink
    assert view.width[rows].tolist() == [
        [1, 0, 0, 0, 1],
        [2, 0, 2, 0, 2],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0],
        [1, 0, 1, 0, 1],
        [0, 0, 0, 0, 0],
    ]
    assert view.rate[rows].tolist() == [
        [2.0, 0.0, 0.0, 0.0, 4.0],
        [3.0, 0.0, 3.0, 0.0, 3.0],  # the slowest link of the pool counts
        [0.25, 0.25, 0.25, 0.0, 0.25],
        [1.0] * 5,
        [0.0] * 5,
        [1.0, 0.0, 1.0, 0.0, 1.0],
        [0.0] * 5,
    ]
    assert view.fastest[view.jobs.demand][:4].tolist() == [4.0, 3.0, 0.25, 1.0]


def test_jobs_that_run_alike_share_a_kind() -> None:
    table = pack_jobs([Job("a", 1.0), Job("a", 2.0, cpus=3.0), Job("b", 1.0), Job("a", 1.0, gpu_memory_gb=8.0),
                       Job("a", 1.0, gpu_memory_gb=8.5)])  # fmt: skip
    pack(plan(), table, unit_speed)
    kind = table.table.kind
    assert kind[0] == kind[1]
    assert len({int(kind[0]), int(kind[2]), int(kind[4])}) == 3
    assert kind[3] != kind[4]  # the small model has 8 GB


def test_a_fresh_view_owns_what_changes() -> None:
    made, table = plan(), pack_jobs([Job("a", 1.0)])
    first, second = pack(made, table, unit_speed), pack(made, table, unit_speed)
    first.sites.free_gpus, first.nodes.free_cpus, first.bits[:] = 0, 0, 0
    assert second.sites.free_gpus.tolist() == made.sites.free_gpus.tolist() == [4, 2, 2, 0, 4, 4]
    assert (second.nodes.free_cpus == 8000).all()
    assert second.bits.any()


def test_no_jobs_at_all_can_be_packed() -> None:
    view = pack(plan(), pack_jobs([]), unit_speed)
    assert len(view.jobs) == len(view.runs) == 0


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job("a", 1.0, models=frozenset({"k80", "p100"})), "allows only k80, p100; this cluster has big, small, cpu"),
        (Job("a", 1.0, gpus=15), "needs 15 GPUs of one model; this cluster has at most 14"),
        (Job("a", 1.0, gpu_memory_gb=17.0), "needs 17408 MiB on each GPU; this cluster has at most 16384"),
        (Job("never", 1.0), "family 'never' has no speed on big, small"),
        (Job("a", 1.0, cpus=9.0), "needs 9 CPU cores on one node; the largest has 8"),
        (Job("a", 1.0, memory_gb=65.0), "needs 66560 MiB of memory on one node; the largest has 65536"),
        (
            Job("a", 1.0, gpus=0, cpus=9.0, models=frozenset({"k80"})),
            "needs 9 CPU cores on one node; the largest has 8",
        ),
        (
            Job("a", 1.0, gpus=6, cpus=40.0),
            "needs 6 GPUs, 40 cores and 0 MiB together; the fewest nodes with so many GPUs do not have them all",
        ),
    ],
)
def test_a_refusal_names_the_first_thing_that_is_lacking(job: Job, reason: str) -> None:
    made, table = plan(), pack_jobs([Job("a", 1.0), job])
    view = pack(made, table, unit_speed)
    assert refusals(made, table, view) == {1: reason}


def test_a_refusal_tells_many_gpus_from_large_ones() -> None:
    made = plan_cluster(cluster_of(node("n0", Gpus("big", 2)), node("n1", Gpus("small", 4))))
    table = pack_jobs([Job("a", 1.0, gpus=4, gpu_memory_gb=16.0)])
    reason = "needs 4 GPUs of one model with 16384 MiB each; this cluster has no such model"
    assert refusals(made, table, pack(made, table, unit_speed)) == {0: reason}


def test_a_refusal_tells_that_no_node_has_everything_together() -> None:
    made = plan_cluster(cluster_of(node("n0", Gpus("big", 2), cpus=2.0), node("n1", cpus=16.0)))
    table = pack_jobs([Job("a", 1.0, gpus=1, cpus=8.0), Job("a", 1.0, gpus=0, cpus=8.0)])
    reason = "needs 1 GPUs, 8 cores and 0 MiB together; no node has them all"
    assert refusals(made, table, pack(made, table, unit_speed)) == {0: reason}


@settings(max_examples=60)
@given(st.data())
def test_every_refused_job_has_a_reason_that_is_true_of_it(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    table = pack_jobs(data.draw(st.lists(jobs(cluster), min_size=1, max_size=8)))
    speed: SpeedOf = data.draw(speeds())
    made = plan_cluster(cluster)
    view = pack(made, table, speed)
    reasons = refusals(made, table, view)
    assert sorted(reasons) == np.flatnonzero(view.runs.state == REFUSED).tolist()
    for j, reason in reasons.items():
        job = unpack_job(table, j)
        if reason.startswith("family"):
            assert job.gpus > 0
            assert any(
                speed(job.family, Placing(model, 1, 1, PCIE, PCIE)).value == 0 for model in cluster.models.values()
            )
        elif reason.startswith("allows"):
            assert not job.models & {group.model for n in cluster.nodes for group in n.gpus}
        else:
            assert reason.startswith("needs")


# ---- what befalls it ----------------------------------------------------------------------------------------------


def test_disturbances_get_numbers_for_names() -> None:
    trouble = [
        Disturbance(3.0, "down", "n1"),
        Disturbance(4.0, "up", "n1"),
        Disturbance(5.0, "speed", "n1", 3, 0.5),
    ]
    rows = pack_disturbances(plan(), trouble)
    assert [row[:3] for row in rows] == [(3.0, DOWN, 1), (4.0, UP, 1), (5.0, SPEED, 1)]
    assert rows[2][3:] == (7, 0.5)  # 4 GPUs of n0, then the 2 small ones and the second big one of n1


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (Disturbance(3.0, "down", "n9"), r"disturbance at 3.0 s: no node 'n9' in cluster 'hand'"),
        (Disturbance(3.0, "speed", "n1", 4, 0.5), r"disturbance at 3.0 s: node 'n1' has no GPU 4; it has 4"),
        (Disturbance(3.0, "speed", "n2", 0, 0.5), r"node 'n2' has no GPU 0; it has 0"),
        (Disturbance(3.0, "speed", "n0", 0, 0.0), r"factor is 0.0; expected above 0, to 10"),
        (Disturbance(3.0, "melt", "n0"), r"what is 'melt'; expected down, up, speed"),
    ],
)
def test_a_disturbance_of_nothing_is_an_error(trouble: Disturbance, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack_disturbances(plan(), [trouble])


def test_a_fresh_run_holds_nothing() -> None:
    view = pack(plan(), pack_jobs([Job("a", 1.0)]), unit_speed)
    run = view.runs[0]
    assert (run.site, run.parts, run.slot, run.starts, run.mask) == (NOBODY, NOBODY, NOBODY, 0, 0)
