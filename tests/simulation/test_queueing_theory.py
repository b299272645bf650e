"""A queue whose answer is known: Poisson arrivals, exponential work, c GPUs, first come first served (Erlang C)."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats
from tests.both import fcfs, policy_of
from tests.strategies import gpu_model

from adlro.core.plan import plan_cluster
from adlro.core.records import MEASURED, Cluster, Gpus, Link, Node, Placing, Speed
from adlro.core.tables import DONE, FOREVER, JOB, STARTED, Floats, Jobs, records
from adlro.normalise.pack import pack
from adlro.simulation.simulator import simulate

BATCHES = 40
CONFIDENCE = 0.99
SERVICE_S = 100.0


def erlang_c_wait(servers: int, load: float, service_s: float) -> float:
    """Mean wait in an M/M/c queue with this load for each server."""
    offered = servers * load
    below = math.fsum(offered**k / math.factorial(k) for k in range(servers))
    busy = offered**servers / math.factorial(servers) / (1.0 - load)
    return busy / (below + busy) * service_s / (servers * (1.0 - load))


def servers_of(nodes: int, gpus: int) -> Cluster:
    """This many nodes, with this many GPUs each."""
    link = Link("pcie", 32.0)
    machines = tuple(Node(f"n{i}", 8.0, 64.0, (Gpus("any", gpus),), link) for i in range(nodes))
    return Cluster("servers", "", machines, link, {"any": gpu_model("any")})


def unit_speed(family: str, placing: Placing) -> Speed:
    """Every GPU does one unit of work in a second."""
    return Speed(1.0, MEASURED)


@cache
def arrivals_and_work(servers: int, load: float, count: int) -> tuple[Floats, Floats]:
    """When the jobs come, and how much work each is."""
    random = np.random.default_rng(servers)
    return np.cumsum(random.exponential(SERVICE_S / (servers * load), count)), random.exponential(SERVICE_S, count)


@cache
def waits(nodes: int, gpus: int, load: float, count: int) -> Floats:
    """How long each of `count` jobs of one GPU waits, in submit order."""
    submit, work = arrivals_and_work(nodes * gpus, load, count)
    table = records(JOB, count)
    table.submit = submit
    table.limit = table.checkpoint = FOREVER
    table.gpus, table.share = 1, 1000
    jobs = Jobs(table, work, ("any",))
    log = simulate(pack(plan_cluster(servers_of(nodes, gpus)), jobs, unit_speed), work, policy_of(fcfs)).events
    starts = log[log.what == STARTED]
    assert np.count_nonzero(log.what == DONE) == count
    assert (starts.job == np.arange(count)).all()
    return starts.time - table.submit


def interval(waited: Floats) -> tuple[float, float]:
    """Where the mean wait lies, from the means of long batches (single waits depend on those before)."""
    means = waited[len(waited) // 20 :]  # the queue was empty at first
    means = means[len(means) % BATCHES :].reshape(BATCHES, -1).mean(axis=1)
    low, high = stats.t.interval(CONFIDENCE, BATCHES - 1, means.mean(), stats.sem(means))
    return float(low), float(high)


CASES = [(1, 1, 0.7, 1_000_000), (1, 8, 0.8, 1_000_000), (4, 1, 0.75, 1_000_000)]


@pytest.mark.parametrize(("nodes", "gpus", "load", "count"), CASES)
def test_the_mean_wait_is_that_of_erlang_c(nodes: int, gpus: int, load: float, count: int) -> None:
    low, high = interval(waits(nodes, gpus, load, count))
    expected = erlang_c_wait(nodes * gpus, load, SERVICE_S)
    assert low <= expected <= high
    assert high - low < 0.1 * expected  # narrow enough to mean something


@pytest.mark.parametrize(("nodes", "gpus", "load", "count"), CASES)
@pytest.mark.parametrize("error", [0.98, 1.02])
def test_service_that_is_2_percent_off_would_be_noticed(
    error: float, nodes: int, gpus: int, load: float, count: int
) -> None:
    low, high = interval(waits(nodes, gpus, load, count))
    assert not low <= erlang_c_wait(nodes * gpus, load * error, SERVICE_S * error) <= high


def test_on_one_server_every_single_wait_is_the_sum_of_what_came_before() -> None:
    # Lindley: each wait is the one before, plus its work, less the time until this arrival, but never below 0.
    nodes, gpus, load, count = CASES[0]
    submit, work = arrivals_and_work(1, load, count)
    walk = np.concatenate([[0.0], np.cumsum(work[:-1] - np.diff(submit))])
    np.testing.assert_allclose(waits(nodes, gpus, load, count), walk - np.minimum.accumulate(walk), atol=1e-4)


def test_one_server_waits_as_the_textbook_says() -> None:
    assert erlang_c_wait(1, 0.7, SERVICE_S) == pytest.approx(0.7 / 0.3 * SERVICE_S)
    # Two servers at load 1/2 each: Erlang C is 1/3, so the mean wait is a third of the service time.
    assert erlang_c_wait(2, 0.5, SERVICE_S) == pytest.approx(SERVICE_S / 3)
