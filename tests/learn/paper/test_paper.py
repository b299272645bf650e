"""Preset paper: its state by hand, its legal assignments against the rules, its reward against the log of a run."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.both import run_compiled
from tests.decide.two_models import ADA, BELL, cluster_of, speed
from tests.reference import Options
from tests.strategies import Scenario, scenarios

from adlro.core.errors import ConfigError, PolicyError, TraceError
from adlro.core.plan import plan_cluster
from adlro.core.policy import Choose, Policy, starting, waiting
from adlro.core.records import Cluster, Disturbance, Job
from adlro.core.remembering import Remembered
from adlro.core.rules import fits, in_queue, seen
from adlro.core.tables import DONE, DOWN, FAILED, FOREVER, NOBODY, STARTED, UP, Jobs, View
from adlro.decide.catalogue import find_policy, policies
from adlro.decide.network.paper_q import (
    PaperChooser,
    PaperMind,
    PaperWeights,
    forward,
    make_mind,
    paper_policy,
    paper_shipped,
    paper_shipped_path,
)
from adlro.decide.network.paper_state import SIZES, TYPES, WINDOW, mark, observe, site_of, target
from adlro.learn.paper.envs import PaperBatch, choose_paper_by_chance, make_paper_batch, step_paper
from adlro.learn.paper.network import (
    PAPER_MASKED_Q,
    PaperNetwork,
    line_grid,
    node_grid,
    paper_network_of,
    paper_weights_of,
)
from adlro.learn.worlds.draw import DrawnWorld, make_world, stack
from adlro.learn.worlds.envs import Draw
from adlro.normalise.pack import pack, pack_jobs
from adlro.simulation.simulator import SimulationSettings, simulate

FAMILIES = ("same", "ada", "bell")
CALM = Draw(0.6, 1.2, 10, 0.3, 0.0, 0.2, 0.0, False)
STORMY = CALM._replace(failures=1.0)

SMALL = cluster_of({ADA: 2}, {ADA: 2}, {BELL: 3})


def menu(count: int = 64) -> list[Job]:
    """Jobs of every kind that the small cluster can run: singles, shares of a GPU, gangs, gangs over two nodes."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        gpus = int(random.choice((1, 1, 2, 3, 4)))
        share = int(random.choice((1000, 250, 500))) if gpus == 1 else 1000
        found.append(
            Job(
                FAMILIES[number % 3],
                float(random.integers(5, 200)),
                float(number),
                gpus=gpus,
                share=share,
                cpus=float(random.choice((0.0, 1.0, 2.0))),
                gpu_memory_gb=4.0 if share < 1000 else 0.0,
                priority=float(random.choice((0.25, 1.0))),
                checkpoint=10.0,
            )
        )
    return found


def world(cluster: Cluster = SMALL) -> DrawnWorld:
    """The small cluster with the menu."""
    return make_world(plan_cluster(cluster), pack_jobs(menu()), speed)


def batch_of(
    count: int, jobs: int, draw: Draw = CALM, lam: float = 0.3, workers: int = 1, keeps: bool = False
) -> PaperBatch:
    """Environments on the small cluster."""
    return make_paper_batch(stack([world()]), count, jobs, draw, lam, 7, workers, keeps=keeps)


def a_network(gpus: int = 7, grid: bool = False, keeps: bool = False) -> PaperNetwork:
    """A network with weights by chance, the same each time; the grid is that of the small cluster."""
    torch.manual_seed(3)
    cells = node_grid([2, 2, 3]) if grid else line_grid(gpus)
    return PaperNetwork(cells, channels=5, hidden=11, keeps=keeps)


def asked(scenario: Scenario, question: Callable[[View], None]) -> None:
    """Run the scenario with the first legal pair each time, and ask the question before each decision."""

    def make(view: View, seed: int) -> Choose:
        def choose(view: View) -> object:
            question(view)
            for q in range(seen(view)):
                j = in_queue(view, q)
                for s in range(len(view.sites)):
                    if fits(view, j, s):
                        return starting(j, s)
            return waiting()

        return choose  # type: ignore[return-value]

    run_compiled(scenario, Policy("asked", "", make=make))


def blank(gpus: int) -> PaperMind:
    """Room to look at a cluster of so many GPUs."""
    return make_mind(paper_weights_of(a_network(gpus)), 3)


# ---- state and legality ------------------------------------------------------------------------------------------


def test_the_state_is_what_one_finds_by_hand() -> None:
    jobs = [
        Job("same", 100.0, 0.0, gpus=2, priority=0.5),  # takes both GPUs of the first node
        Job("ada", 100.0, 0.0, share=250, gpu_memory_gb=12.0, priority=1.0),  # of the first GPU of the second node
        Job("bell", 50.0, 1.0, gpus=4, priority=0.25),  # over both nodes of ada: does not fit
        Job("same", 50.0, 1.0, gpus=1, priority=0.75),
        Job("ada", 50.0, 1.0, share=500, gpu_memory_gb=8.0, priority=0.5),
        Job("ada", 50.0, 1.0, share=800, priority=0.5),
        Job("ada", 50.0, 1.0, share=500, priority=0.5),
    ]
    found: list[tuple[float, ...]] = []
    grids: list[np.ndarray] = []
    mind = blank(7)

    def look(view: View) -> None:
        if view.clock[0].now == 1.0 and view.clock[0].queued == 5 and not found:
            mark(view, mind.rows, mind.kept, mind.legal)
            observe(view, mind.rows, mind.kept, mind.use, mind.queue, mind.jobs)
            found.append((*mind.use[:, 0], *mind.use[:, 1], *mind.queue))
            grids.extend((mind.jobs.copy(), mind.legal.reshape(WINDOW, 7).copy()))

    asked(Scenario(SMALL, jobs, speed, Options(), []), look)
    # One of the first family, three of the second, one of the third; four of one GPU, one of four.
    waiting = [math.log2(1 + count) / 10 for count in (1, 3, 1, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0)]
    assert found == [pytest.approx((*2 * (1.0, 1.0, 0.25, 0.0, 0.0, 0.0, 0.0), 5 / 13, *waiting))]
    state = np.zeros((WINDOW, 1 + TYPES + SIZES))
    state[0, 1 + TYPES + 2] = 1.0  # four GPUs
    state[1:5, 1 + TYPES] = 1.0  # one GPU or a share of one
    state[:5, 0] = 0.25, 0.75, 0.5, 0.5, 0.5
    state[0, 3] = state[1, 1] = state[2, 2] = state[3, 2] = state[4, 2] = (
        1.0  # bell is the third family, same the first, ada the second
    )
    assert grids[0] == pytest.approx(state)
    legal = np.zeros((WINDOW, 7), int)
    legal[1, 3:] = 1  # not the GPU of which a quarter is taken
    legal[2, 3:] = 1  # its memory is not enough
    legal[3, 3:] = 1  # nor is what is left of it
    legal[4, 2:] = 1
    assert grids[1].tolist() == legal.tolist()


def test_the_gpus_of_a_node_that_is_down_are_in_use_and_cannot_be_chosen() -> None:
    seen_use: list[list[float]] = []
    mind = blank(7)

    def look(view: View) -> None:
        if view.clock[0].now == 2.0 and not seen_use:
            mark(view, mind.rows, mind.kept, mind.legal)
            observe(view, mind.rows, mind.kept, mind.use, mind.queue, mind.jobs)
            seen_use.extend((*mind.use.T.tolist(), mind.legal[:7].tolist()))

    asked(Scenario(SMALL, [Job("same", 9.0, 2.0)], speed, Options(), [Disturbance(1.0, "down", "n2")]), look)
    assert seen_use == [[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0] * 7, [1, 1, 1, 1, 0, 0, 0]]


@settings(max_examples=60)
@given(scenarios())
def test_the_legal_assignments_are_exactly_the_pairs_that_fit(scenario: Scenario) -> None:
    gpus = scenario.cluster.gpu_count
    if gpus == 0:
        return
    rows, legal = np.zeros(WINDOW, np.int32), np.zeros(WINDOW * gpus, np.uint8)
    never = np.zeros(0, np.int32)

    def look(view: View) -> None:
        count = mark(view, rows, never, legal)
        assert count == legal.sum()
        window = [j for j in (in_queue(view, q) for q in range(seen(view))) if view.jobs[j].gpus > 0][:WINDOW]
        assert rows.tolist() == window + [NOBODY] * (WINDOW - len(window))
        meant = set()
        for action in np.flatnonzero(legal):
            j, g = int(rows[action // gpus]), int(action % gpus)
            s = site_of(view, g)
            site, gpu, job = view.sites[s], view.gpus[g], view.jobs[j]
            assert site.first_gpu <= g < site.first_gpu + site.gpus
            assert view.nodes[site.node].up
            assert gpu.free_share >= job.share
            assert job.share == 1000 or gpu.free_memory >= job.gpu_memory
            meant.add((j, target(view, j, s)))
        assert meant == {(j, s) for j in window for s in range(len(view.sites)) if fits(view, j, s)}

    asked(scenario, look)


def test_a_step_always_leaves_something_legal_and_starts_one_job() -> None:
    batch = batch_of(20, 12)
    actions = np.zeros(20, np.int32)
    for _ in range(60):
        assert (batch.seen.legal.sum(axis=1) > 0).all()
        before = np.array([np.count_nonzero(batch.envs.runs["starts"][b]) for b in range(20)])
        choose_paper_by_chance(batch, actions)
        assert batch.seen.legal[np.arange(20), actions].all()
        step_paper(batch, actions)
        after = np.array([np.count_nonzero(batch.envs.runs["starts"][b]) for b in range(20)])
        assert (after[batch.came.done == 0] == before[batch.came.done == 0] + 1).all()
        assert (batch.envs.clock["illegal"] == 0).all()


def test_the_number_of_threads_changes_nothing() -> None:
    one, three = batch_of(10, 12, workers=1), batch_of(10, 12, workers=3)
    actions = np.zeros(10, np.int32)
    for _ in range(40):
        choose_paper_by_chance(one, actions)
        step_paper(one, actions)
        choose_paper_by_chance(three, actions)
        step_paper(three, actions)
        for name in (*one.seen._fields, *one.came._fields):
            mine, other = ((each.seen if name in each.seen._fields else each.came) for each in (one, three))
            assert np.array_equal(getattr(mine, name), getattr(other, name))


# ---- the reward --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [CALM, STORMY], ids=["calm", "nodes fail"])
def test_the_rewards_of_an_episode_add_up_to_completion_times_and_idle_time_of_the_same_run(draw: Draw) -> None:
    lam, ended, failed = 0.3, 0, 0
    batch = batch_of(12, 14, draw, lam)
    plan = world().plan
    actions = np.zeros(batch.count, np.int32)
    jobs = [Jobs(batch.envs.jobs[b].copy(), batch.envs.work[b].copy(), FAMILIES) for b in range(batch.count)]
    storms = [[tuple(row) for row in batch.envs.disturbances[b].copy()] for b in range(batch.count)]
    told: list[list[tuple[float, int, int]]] = [[] for _ in jobs]
    gained = np.zeros(batch.count)
    going = np.ones(batch.count, bool)
    scores = np.zeros(batch.count)
    while going.any():
        choose_paper_by_chance(batch, actions)
        for b in np.flatnonzero(going).tolist():
            job, gpu = int(batch.rows[b, actions[b] // 7]), int(actions[b] % 7)
            site = (0, 0, 1, 1, 2, 2, 2)[gpu]
            if jobs[b].table[job].gpus > 2 and site == 1:
                site = 0  # over two nodes of ada: their anchor
            told[b].append((float(batch.envs.clock[b, 0].now), job, site))
        step_paper(batch, actions)
        gained[going] += batch.came.reward[going]
        scores[going] += batch.came.score[going]
        going &= batch.came.done == 0
    for b, mine in enumerate(jobs):
        disturbances = [
            (float(time), int(what), int(node), int(gpu), float(factor))
            for time, factor, node, gpu, what in storms[b]
            if time < FOREVER
        ]
        outcome = simulate(
            pack(plan, mine, speed), mine.work, replaying(told[b]), SimulationSettings(restart_s=30.0), disturbances
        )
        assert outcome.unfinished == outcome.illegal == 0
        first, last = told[b][0][0], max(event.time for event in outcome.events if event.what == DONE)
        completion = sum(event.time - mine.table[event.job].submit for event in outcome.events if event.what == DONE)
        idle = 7 * (last - first)
        since: dict[int, float] = {}
        down: dict[int, float] = {}
        for event in outcome.events:
            time = min(max(event.time, first), last)
            if event.what == STARTED:
                since[event.job] = time
            elif event.what in (DONE, FAILED):
                job = mine.table[event.job]
                idle -= (time - since[event.job]) * job.gpus * job.share / 1000
                failed += event.what == FAILED
            elif event.what == DOWN:
                down[event.site] = time
            elif event.what == UP:
                idle -= (time - down.pop(event.site)) * (2, 2, 3)[event.site]
        idle -= sum((last - time) * (2, 2, 3)[node] for node, time in down.items())
        unit = batch.worlds.info[0].unit
        assert gained[b] == pytest.approx(-(completion + lam * idle) / unit, rel=1e-5)
        assert scores[b] == pytest.approx(completion / len(mine) / unit, rel=1e-5)
        ended += 1
    assert ended == batch.count
    assert (failed > 0) == (draw.failures > 0)


def replaying(told: list[tuple[float, int, int]]) -> Policy:
    """A policy that starts these jobs at these times and sites."""

    def make(view: View, seed: int) -> Choose:
        left = iter(told)
        following = [next(left)]

        def choose(view: View) -> object:
            if not following or following[0][0] != view.clock[0].now:
                return waiting()
            _, job, site = following.pop()
            following.extend(one for one in [next(left, None)] if one is not None)
            return starting(job, site)

        return choose  # type: ignore[return-value]

    return Policy("replaying", "", make=make)


@pytest.mark.parametrize("lam", [0.0, 1.0, -0.1, float("nan"), float("inf")])
def test_a_weight_that_the_paper_does_not_allow_is_refused_in_one_line(lam: float) -> None:
    with pytest.raises(ConfigError, match=r"^lambda is [^\n]*; expected a number above 0 and below 1[^\n]*$"):
        batch_of(1, 4, lam=lam)


def test_clusters_of_different_sizes_are_refused_in_one_line() -> None:
    both = stack([world(), world(cluster_of({ADA: 4}, {BELL: 4}))])
    with pytest.raises(ConfigError, match=r"^preset paper: the clusters have 7, 8 GPUs; expected one [^\n]*$"):
        make_paper_batch(both, 1, 4, CALM, 0.5, 0)


def test_jobs_without_a_gpu_are_not_on_the_menu() -> None:
    jobs = pack_jobs([Job("same", 5.0, 90.0, gpus=0), *menu()])
    found = stack([make_world(plan_cluster(SMALL), jobs, speed)])
    assert found.info.menu.tolist() == [len(menu())]
    assert (found.jobs.gpus > 0).all()
    np.testing.assert_array_equal(found.work, stack([world()]).work)
    with pytest.raises(TraceError, match=r"^the workload has no job that uses a GPU of [^\n]*$"):
        stack([make_world(plan_cluster(SMALL), pack_jobs([Job("same", 5.0, 90.0, gpus=0)]), speed)])


# ---- the network and its policy ----------------------------------------------------------------------------------


def after(steps: int) -> PaperBatch:
    """Environments after so many steps by chance."""
    batch = batch_of(50, 16)
    actions = np.zeros(50, np.int32)
    for _ in range(steps):
        choose_paper_by_chance(batch, actions)
        step_paper(batch, actions)
    return batch


def q_of(network: PaperNetwork, batch: PaperBatch) -> np.ndarray:
    """Q by PyTorch."""
    with torch.no_grad():
        return network(tuple(torch.from_numpy(each.copy()) for each in batch.seen)).numpy()


def test_the_network_has_one_output_for_each_assignment_and_never_chooses_an_illegal_one() -> None:
    batch = after(5)
    q = q_of(a_network(), batch)
    assert q.shape == batch.seen.legal.shape == (50, WINDOW * 7)
    assert batch.actions == WINDOW * 7
    assert (q[batch.seen.legal == 0] == PAPER_MASKED_Q).all()
    assert (q[batch.seen.legal != 0] > PAPER_MASKED_Q / 2).all()
    assert batch.seen.legal[np.arange(50), q.argmax(axis=1)].all()


@pytest.mark.parametrize("grid", [False, True], ids=["in a row", "on a grid"])
def test_the_policy_computes_the_same_q_as_pytorch(grid: bool) -> None:
    network = a_network(grid=grid)
    mind = make_mind(paper_weights_of(network), 3)
    for steps in (0, 3, 9):
        batch = after(steps)
        expected = q_of(network, batch)
        for b in range(batch.count):
            mind.use[:], mind.queue[:], mind.jobs[:] = batch.seen.use[b], batch.seen.queue[b], batch.seen.jobs[b]
            mind.rows[:] = batch.rows[b]
            forward(mind)
            legal = batch.seen.legal[b] != 0
            assert mind.q[legal] == pytest.approx(expected[b, legal], abs=1e-5)


def test_a_network_goes_into_weights_and_comes_back_unchanged() -> None:
    network = a_network(grid=True)
    back = paper_network_of(paper_weights_of(network)).state_dict()
    assert back.keys() == network.state_dict().keys()
    assert all(torch.equal(value, back[name]) for name, value in network.state_dict().items())


def test_the_policy_takes_the_assignment_with_the_largest_q() -> None:
    # The bias of the GPU and the priority of the job decide: the last GPU, for the job with the highest priority.
    blank_weights = PaperWeights(*(np.zeros_like(each) for each in paper_weights_of(a_network())))
    weights = blank_weights._replace(grid=line_grid(7))
    weights.action_bias[:] = np.arange(7)
    weights.full[-1 - TYPES - SIZES, 0] = 1.0
    weights.action[0] = 100.0
    first, second = Job("same", 10.0, 0.0, priority=0.1), Job("same", 20.0, 0.0, gpus=2, priority=0.9)
    plan, jobs = plan_cluster(SMALL), pack_jobs([first, second])
    outcome = simulate(pack(plan, jobs, speed), jobs.work, paper_policy(weights, "paper"))
    starts = [(int(event.job), int(event.site)) for event in outcome.events if event.what == STARTED]
    assert starts == [(1, 2), (0, 2)]


@pytest.mark.parametrize("keeps", [False, True])
def test_gpus_are_kept_for_a_gang_over_several_nodes_if_its_q_is_the_largest(keeps: bool) -> None:
    blank_weights = PaperWeights(*(np.zeros_like(each) for each in paper_weights_of(a_network())))
    weights = blank_weights._replace(grid=line_grid(7), keeps=np.array([keeps], np.float32))
    weights.full[-SIZES + 2, 0] = 1.0  # jobs of three or four GPUs
    weights.action[0] = 100.0
    jobs = pack_jobs(
        [
            Job("same", 100.0, 0.0, gpus=2),  # on the first node until 50
            Job("ada", 400.0, 1.0, gpus=4),  # needs the first two nodes
            Job("same", 500.0, 1.0),  # would start on the second node
        ]
    )
    outcome = simulate(pack(plan_cluster(SMALL), jobs, speed), jobs.work, paper_policy(weights, "paper"))
    starts = {int(event.job): (float(event.time), int(event.site)) for event in outcome.events if event.what == STARTED}
    ends = {int(event.job): float(event.time) for event in outcome.events if event.what == DONE}
    assert starts[1][0] == ends[0] if keeps else starts[1][0] == ends[2]
    assert starts[2] == (1.0, 2 if keeps else 1)


def test_what_is_kept_is_remembered_and_ends_with_the_job() -> None:
    network = a_network(keeps=True)
    view = pack(plan_cluster(SMALL), pack_jobs(menu(3)), speed)
    one, two = (PaperChooser(view, make_mind(paper_weights_of(network), 3)) for _ in range(2))
    kept = Remembered((2,), {"sites": [[0, 1]]}, rest={"sites": 3})
    assert one.recall(view, kept)
    assert one.remembered() == kept
    assert two.recall(view, Remembered((NOBODY - 1,), {"sites": [[0, 1]]}, rest={"sites": 3}))
    assert two.remembered().jobs == ()
    assert not two.recall(view, Remembered(rest={"sites": 5}))
    one(view)  # the job does not wait yet
    assert one.remembered().jobs == ()


@settings(max_examples=20)
@given(scenarios(), st.integers(0, 1000), st.booleans())
def test_the_policy_chooses_nothing_illegal(scenario: Scenario, seed: int, keeps: bool) -> None:
    torch.manual_seed(seed)
    gpus = scenario.cluster.gpu_count
    if gpus == 0:
        return
    ran = run_compiled(
        scenario, paper_policy(paper_weights_of(PaperNetwork(line_grid(gpus), 4, 8, keeps=keeps)), "paper")
    )
    assert ran.outcome.illegal == 0


def test_a_cluster_of_another_size_is_refused_in_one_line() -> None:
    policy = paper_policy(paper_weights_of(a_network(16)), "mine")
    jobs = pack_jobs(menu(4))
    with pytest.raises(PolicyError, match=r"^policy 'mine' was trained for a cluster of 16 GPUs and this one has 7; "):
        simulate(pack(plan_cluster(SMALL), jobs, speed), jobs.work, policy)


def test_weights_that_do_not_belong_together_are_refused_in_one_line() -> None:
    weights = paper_weights_of(a_network())
    with pytest.raises(PolicyError, match=r"^policy 'mine': 'full' has the shape \(\d+, 11\); expected [^\n]*$"):
        paper_policy(weights._replace(full=weights.full[:-1]), "mine")
    with pytest.raises(PolicyError, match=r"^policy 'mine': 'far_bias' holds what is no number[^\n]*$"):
        paper_policy(weights._replace(far_bias=np.full(5, np.nan, np.float32)), "mine")


def test_the_shipped_agent_fits_its_cluster_and_is_left_out_of_all() -> None:
    names = [policy.name for policy in policies()]
    assert "paper-dqn" not in names
    weights = paper_shipped()
    assert weights.action_bias.shape == (16,)
    assert paper_shipped_path().stat().st_size <= 2_000_000
    assert find_policy("paper-dqn").make is not None
